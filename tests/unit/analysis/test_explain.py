"""Why work did not overlap: planted causes are named, clean programs are left alone."""

from __future__ import annotations

import random

import pytest

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin
from tests.helpers.planted import CLEAN, MB, PLANTED, host_arrays

PROGRAMS = [pytest.param(cause, program, id=program.__name__) for cause, programs in PLANTED.items() for program in programs]


def run(program):
    with gsl.Session("sim", capture="ranges") as lab:
        lab.capture("kernels", host=True)
        program(lab)
        lab.synchronize()
        return lab.trace


@pytest.mark.parametrize(("cause", "program"), PROGRAMS)
def test_a_planted_cause_is_named_first(cause, program):
    found = run(program).explain("a", "b")
    assert found.findings, found
    assert found.findings[0].code == cause, str(found)


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_nothing_is_found_in_a_clean_program(program):
    assert not run(program).explain().findings


def clean_program(seed):
    """Return a program of two to four streams that overlap: short grids, one copy a direction, no waits."""
    chance = random.Random(seed)

    def program(lab):
        names = "abcd"[: chance.randint(2, 4)]
        for name in names:
            lab.stream(name, priority=chance.choice((0, -1)))
        hosts, arrays = host_arrays(lab, 2, chance.choice((8, 32)) * MB, pinned=True)
        lab.synchronize()
        for turn in range(chance.randint(1, 6)):
            for name in names:
                with lab.on(name, f"step {turn}"):
                    spin(lab, chance.randint(200_000, 2_000_000), blocks=chance.choice((1, 4, 16)))
                    if not turn and name in "ab":
                        copy = copy_to_device if name == "a" else copy_to_host
                        copy(lab, *((hosts[0], arrays[0]) if name == "a" else (arrays[1], hosts[1])))

    return program


def test_random_clean_programs_get_no_finding():
    false_alarms = {seed: str(found) for seed in range(200) if len(found := run(clean_program(seed)).explain())}
    assert len(false_alarms) <= 1, "\n".join(false_alarms.values())
