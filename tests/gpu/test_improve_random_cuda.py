"""Random programs of streams are improved on a card: equal, without a new race, and not slower beyond the noise."""

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.tuning._measure import interval
from tests.helpers.improve_random import faults_of, function_of, names_for, random_program

SIDE, TURNS = 512, 15


@pytest.mark.parametrize("seed", range(20))
def test_an_improved_program_gives_the_same_and_is_not_slower_beyond_the_noise(seed):
    program = random_program(seed, keeps=True)
    with gsl.Session("cuda") as lab:
        found = lab.improve(function_of(program.text, names_for(lab, SIDE)), lab, seconds=1)

        assert all(one.interval_ns[0] > 0 for one in found.kept)
        assert faults_of(program, found.source, SIDE, "cuda") == [], found.diff

        works = [function_of(text, names_for(lab, SIDE))(lab) for text in (program.text, found.source)]
        taken_ns = np.array([[wall_ns(lab, work) for work in works] for _ in range(TURNS)][1:])
    low, high = interval(taken_ns[:, 1] - taken_ns[:, 0])
    assert low <= 0, f"it takes {low:.0f} to {high:.0f} ns longer\n{found.diff}"


def wall_ns(lab, work):
    """Return how long a run takes, until the device is done."""
    lab.synchronize()
    began_ns = lab._backend.host_time_ns()
    work()
    lab.synchronize()
    return lab._backend.host_time_ns() - began_ns
