"""Why work did not overlap: planted causes are named, clean programs are left alone."""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from tests.helpers.planted import CLEAN, PLANTED

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
