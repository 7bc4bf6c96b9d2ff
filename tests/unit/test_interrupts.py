"""Ctrl-C at any instant: nothing stays selected, no range stays open, and the session goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import SelectionError
from gpustreamlab.recorder import _ranges
from gpustreamlab.streams import selection as selections
from tests.helpers import long_runs
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.interrupt_storm import is_unreachable, program
from tests.helpers.line_interrupts import LineInterrupts
from tests.helpers.selections import names_of

EACH = long_runs.count(sample=4, full=1)
"""Of so many lines one is tried."""

WATCHED = selections, _ranges


WHOLE = {"outer": None, "first": "outer", "inner": "first", "second": "inner", "third": "outer"}


def caught_inside(lab):
    """Go on inside the outermost selection after an interrupt, as a user's own handler would."""
    with lab.on("a", "around"):
        try:
            program(lab)
        except KeyboardInterrupt:
            pass
        with lab.range("afterwards"):
            pass


def nesting(lab):
    """Each range's name and its parent's; a trace is validated as it is made, and so is that children lie inside."""
    lab.synchronize()
    trace = lab.trace
    inside = np.flatnonzero((trace.parent >= 0) & (trace.lane[trace.parent] == trace.lane))
    assert (trace.start_ns[inside] >= trace.start_ns[trace.parent[inside]]).all()
    assert (trace.end_ns[inside] <= trace.end_ns[trace.parent[inside]]).all()
    named = names_of(trace)
    return {name: named[parent] if parent >= 0 else None for name, parent in zip(named, trace.parent, strict=True)}


def count_lines(work):
    counter = LineInterrupts(WATCHED, 10**9)
    with Session(InstantBackend()) as lab, counter:
        lab.stream("a")
        lab.stream("b")
        work(lab)
    return 10**9 - counter.left


def interrupted(work, at):
    """Run on a new session with an interrupt before a line; return the session and where it came."""
    lab = Session(InstantBackend())
    lab.stream("a")
    lab.stream("b")
    try:
        with LineInterrupts(WATCHED, at) as interrupter:
            work(lab)
    except KeyboardInterrupt:
        pass
    except SelectionError:
        assert is_unreachable(interrupter.place)
    return lab, interrupter.place


def test_an_interrupt_before_any_line_leaves_nothing_selected_and_nothing_open():
    left = Counter()
    line_count = count_lines(program)
    assert line_count > 150
    for at in range(1, line_count + 1, EACH):
        lab, place = interrupted(program, at)
        with lab:
            if place is None:
                continue  # the closing of the session is beyond the program
            is_left = lab.current is not None or lab._backend.selected is not None
            left[is_left] += 1
            assert not is_left or is_unreachable(place), f"selected after an interrupt before {place}"
            kept = nesting(lab)
            assert kept.items() <= WHOLE.items() or place
            if is_left:
                continue
            lab.clear()
            program(lab)
            assert nesting(lab) == WHOLE
            assert lab.trace.metadata.dropped_spans == 0
    assert left[True] <= 2 * 3
    assert left[False] > 150 // EACH


def test_an_interrupt_caught_inside_an_outer_selection_is_over_when_that_is_left():
    line_count = count_lines(caught_inside)
    for at in range(1, line_count + 1, EACH):
        lab, place = interrupted(caught_inside, at)
        with lab:
            if place is None or is_unreachable(place):
                # Either beyond the program, or in the outermost selection itself, or told by a SelectionError.
                continue
            assert lab.current is None, place
            assert lab._backend.selected is None, place
            assert lab._recorder.thread_state().top_number == -1
            kept = nesting(lab)
            assert kept.get("around") is None
            lab.clear()
            caught_inside(lab)
            assert nesting(lab) == {name: parent or "around" for name, parent in WHOLE.items()} | {
                "around": None,
                "afterwards": "around",
            }


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_signals_at_random_instants_leave_nothing_selected_open_or_counted_twice():
    # In a process of its own: an interrupt inside a coverage tracer or pytest-timeout would be theirs to survive.
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.interrupt_storm", "300"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["interrupts"] == 300
    assert (told["selected"], told["open"], told["nvtx"]) == (0, 0, 0)
    assert told["numbers"] == told["spans"] > 300
    assert told["dropped"] <= 300 * 5
    assert told["spans_afterwards"] == 5
