"""Random programs of streams are improved on a card: equal, without a new race, and not slower beyond the noise."""

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.tuning._measure import interval
from tests.helpers.improve_random import faults_of, function_of, names_for, random_program

SIDE, TURNS = 512, 15
TRIES = 3
"""An interval of 95% is above nothing by chance in one of forty measurements, and twenty programs are measured."""


@pytest.mark.parametrize("seed", range(20))
def test_an_improved_program_gives_the_same_and_is_not_slower_beyond_the_noise(seed):
    program = random_program(seed, keeps=True)
    with gsl.Session("cuda") as lab:
        found = lab.improve(function_of(program.text, names_for(lab, SIDE)), lab, seconds=1)

        assert all(one.interval_ns[0] > 0 for one in found.kept)
        assert faults_of(program, found.source, SIDE, "cuda") == [], found.diff

    assert bool(found.diff) == bool(found.kept)
    longer_ns = [longer(program.text, found.source) for _ in range(TRIES if found.diff else 0)]
    assert not longer_ns or min(low for low, _ in longer_ns) <= 0, f"it takes {longer_ns} ns longer\n{found.diff}"


def longer(old, new):
    """Return how much longer a run of the new program takes than one of the old one, in ns, as an interval of 95%.

    Each has a session of its own: a stream keeps the priority with which it was made.
    """
    with gsl.Session("cuda", capture="ranges") as first, gsl.Session("cuda", capture="ranges") as second:
        works = [(lab, function_of(text, names_for(lab, SIDE))(lab)) for lab, text in ((first, old), (second, new))]
        taken_ns = np.zeros((TURNS, 2))
        for turn in range(TURNS):
            for place in (0, 1) if turn % 2 else (1, 0):  # what runs second finds the card warmer
                taken_ns[turn, place] = wall_ns(*works[place])
    return interval(np.diff(taken_ns[1:])[:, 0])


def wall_ns(lab, work):
    """Return how long a run takes, until the device is done."""
    lab.synchronize()
    began_ns = lab._backend.host_time_ns()
    work()
    lab.synchronize()
    return lab._backend.host_time_ns() - began_ns
