"""``lab.select``: what `Session.on` does, without a range; and interrupts while libraries follow."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import SelectionError, SessionClosedError, StreamClosedError, StreamNotFoundError
from gpustreamlab.streams import selection as selections
from tests.helpers.interrupt_storm import is_unreachable
from tests.helpers.lending_backend import LendingBackend, fresh_registry, make_torch
from tests.helpers.line_interrupts import LineInterrupts
from tests.helpers.long_runs import count
from tests.helpers.threads import run_in_thread

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")


def names(lab):
    lab.synchronize()
    return sorted(lab.trace.names[code] for code in lab.trace.name)


def test_it_nests_with_on_in_any_order_and_records_no_range(lab):
    seen = []
    with lab.select("a") as stream:
        assert lab.current is stream is lab.stream("a")
        assert lab._backend.selected_stream.handle == stream.handle
        with lab.on("b", "one"):
            with lab.select("a"), lab.range("inside"):
                seen.append(lab.current.name)
            seen.append(lab.current.name)
        seen.append(lab.current.name)
        with pytest.raises(ZeroDivisionError), lab.select("b"):
            raise ZeroDivisionError
        seen.append(lab.current.name)
    assert seen == ["a", "b", "a", "a"]
    assert names(lab) == ["inside", "one"]
    trace = lab.trace
    lanes = {trace.names[name]: trace.lanes[lane].name for name, lane in zip(trace.name, trace.lane, strict=True)}
    assert lanes == {"one": "b", "inside": "a"}


def test_one_selection_can_be_entered_again_but_not_twice_at_once(lab):
    selection = lab.select("a")
    for _ in range(2):
        with selection:
            with pytest.raises(SelectionError, match="entered already"):
                selection.__enter__()
    assert lab.current is None


def test_a_range_left_open_inside_is_closed_with_it(lab):
    selection = lab.select("a")
    selection.__enter__()
    lab.range("open").__enter__()
    selection.__exit__(None, None, None)
    assert lab.current is None
    with lab.on("b", "later"):
        pass
    assert names(lab) == ["later"]


def test_wrong_nesting_is_reported_and_puts_back(lab):
    outer, inner = lab.select("a"), lab.select("b")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(SelectionError, match="before one that was entered after it"):
        outer.__exit__(None, None, None)
    assert lab.current is lab.stream("b")
    inner.__exit__(None, None, None)
    assert lab.current is None
    with pytest.raises(SelectionError, match="twice"):
        inner.__exit__(None, None, None)


def test_leaving_it_in_another_thread_is_refused(lab):
    with lab.select("a") as stream:
        inner = lab.select("b")
        inner.__enter__()
        raised = run_in_thread(lambda: inner.__exit__(None, None, None))
        assert "in a thread that did not enter it" in str(raised)
        inner.__exit__(None, None, None)
        assert lab.current is stream
    assert run_in_thread(lambda: lab.current) is None


def test_what_cannot_be_selected_is_told(lab):
    with pytest.raises(StreamNotFoundError, match="'a'"):
        lab.select("aa")
    closed = lab.stream("gone")
    selection = lab.select(closed)
    closed.close()
    with pytest.raises(StreamClosedError):
        lab.select(closed)
    with pytest.raises(StreamClosedError):
        selection.__enter__()
    lab.close()
    with pytest.raises(SessionClosedError):
        lab.select("a")


# Interrupts while a library follows


def watched(lab):
    """Return the modules of what a selection passes."""
    followers = lab._selections.followers
    parts = followers, followers.active[0].adapter, lab.range("a range of its own")
    return [selections, *(sys.modules[type(one).__module__] for one in parts)]


def program(lab):
    with lab.on("a"):
        with lab.select("b"):
            pass
        with lab.on("b", "two"):
            pass


def run_interrupted(monkeypatch, at):
    """Run on a new session with an interrupt before a line; return where it came, and what torch and the backend have."""
    torch, state = make_torch()
    fresh_registry(monkeypatch)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Session(LendingBackend()) as lab:
        lab.stream("a")
        lab.stream("b")
        with lab.select("a"):  # torch is started here
            interrupter = LineInterrupts(watched(lab), at)
        try:
            with interrupter:
                program(lab)
        except KeyboardInterrupt:
            pass
        is_selected = lab._backend.selected_stream is not lab._backend.null_stream
        found = (state.current != (0, 0, 1), is_selected, lab.current is not None)
        with lab.on("a"):
            assert state.current[0] == lab.stream("a").handle
    return interrupter, found


def test_an_interrupt_before_any_line_leaves_nothing_selected_in_the_library(monkeypatch):
    counter, _ = run_interrupted(monkeypatch, 10**9)
    line_count = 10**9 - counter.left
    assert line_count > 150
    told = Counter()
    every = count(3, 1)
    for at in range(1, line_count + 1, every):
        interrupter, found = run_interrupted(monkeypatch, at)
        code, line = interrupter.place
        is_beyond = is_unreachable(interrupter.place)
        told[is_beyond] += 1
        assert is_beyond or not any(found), f"{found} after an interrupt before line {line} of {code.co_qualname}"
    assert told[False] > 140 // every
