"""A run prints as the program would alone; what runs on copies print is kept back."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import warnings
from contextlib import contextmanager

import pytest

from gpustreamlab import Session

LOUD = "print('out')\nprint('err', file=sys.stderr)\nsay('logged')\nwarn()\nb = x + 1\n"


@pytest.fixture
def lab():
    with Session("sim") as session:
        yield session


@pytest.fixture
def values(lab):
    return {"lab": lab, "x": lab.xp.ones((16, 16)), "sys": sys, "say": say, "warn": warn}


@contextmanager
def handler_of_now():
    """Let the logger write to what `sys.stderr` is now."""
    log, handler = logging.getLogger("loud"), logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def say(text):
    logging.getLogger("loud").warning(text)


def warn():
    warnings.warn("warned", stacklevel=1)


@pytest.mark.filterwarnings("default::UserWarning")
def test_runs_on_copies_print_nothing_and_a_run_prints_once(lab, values, capsys):
    with handler_of_now():
        plan = lab.program(LOUD, values).plan()
        for _ in range(2):  # in order, and as planned
            with pytest.warns(UserWarning, match="warned"):
                plan.run()
            out, err = capsys.readouterr()
            assert (out, err.count("err"), err.count("logged")) == ("out\n", 1, 1)
        assert plan.check()
        plan.compare(repeats=2)
        assert tuple(capsys.readouterr()) == ("", "")


def test_a_run_that_fails_shows_what_it_printed(lab, values, capsys):
    with handler_of_now():
        values["n"] = [1]
        plan = lab.program("print('out')\nsay('logged')\n1 / n[0]\ny = 1", values).plan()
        plan.run(), capsys.readouterr()
        values["n"][0] = 0
        with pytest.raises(ZeroDivisionError):
            plan.check()
        out, err = capsys.readouterr()
        assert (out, err) == ("out\n", "logged\n")
        say("later")
        assert capsys.readouterr().err == "later\n"


def test_a_handler_that_a_run_has_made_writes_to_the_real_stream_later(lab, values, capsys):
    made = logging.getLogger("made")
    names = {**values, "made": made, "handler": made_handler}
    plan = lab.program("made.addHandler(handler(sys.stderr))\nb = x + 1", names).plan()
    plan.run()
    made.handlers.clear()
    plan.check()
    try:
        made.warning("later")
        assert capsys.readouterr().err.startswith("later\n")
    finally:
        made.handlers.clear()


def made_handler(stream):
    return logging.StreamHandler(stream)


def test_what_other_threads_print_is_shown(lab, values, capsys):
    asked, told = queue.SimpleQueue(), queue.SimpleQueue()

    def tell():
        while asked.get(timeout=60):
            print("other")
            told.put(True)

    thread = threading.Thread(target=tell)
    thread.start()
    step = {"step": lambda: (asked.put(True), told.get(timeout=60), print("own"))}
    plan = lab.program("step()\nb = x + 1", {**values, **step}).plan()
    plan.run()
    assert capsys.readouterr().out == "other\nown\n"
    assert plan.check()
    asked.put(False)
    thread.join()
    assert capsys.readouterr().out == "other\n" * 3
