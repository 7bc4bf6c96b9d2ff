"""A run prints as the program would alone; what runs on copies print is kept back."""

from __future__ import annotations

import sys
import warnings

import pytest

from gpustreamlab import Session

LOUD = "print('out')\nprint('err', file=sys.stderr)\nwarn()\nb = x + 1\n"


@pytest.fixture
def lab():
    with Session("sim") as session:
        yield session


@pytest.fixture
def values(lab):
    return {"lab": lab, "x": lab.xp.ones((16, 16)), "sys": sys, "warn": warn}


def warn():
    warnings.warn("warned", stacklevel=1)


@pytest.mark.filterwarnings("default::UserWarning")
def test_runs_on_copies_print_nothing_and_a_run_prints_once(lab, values, capsys):
    plan = lab.program(LOUD, values).plan()
    for _ in range(2):  # in order, and as planned
        with pytest.warns(UserWarning, match="warned"):
            plan.run()
        out, err = capsys.readouterr()
        assert (out, err.count("err")) == ("out\n", 1)
    assert plan.check()
    plan.compare(repeats=2)
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_run_that_fails_shows_what_it_printed(lab, values, capsys):
    values["n"] = [1]
    plan = lab.program("print('out')\n1 / n[0]\ny = 1", values).plan()
    plan.run(), capsys.readouterr()
    values["n"][0] = 0
    with pytest.raises(ZeroDivisionError):
        plan.check()
    assert capsys.readouterr().out == "out\n"
