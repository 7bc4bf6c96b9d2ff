"""Guards and held memory under Ctrl-C, forks, captures and failures: nobody is locked out, and nothing is kept for good."""

from __future__ import annotations

import sys
import threading
import weakref

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import DeviceError, StreamNotFoundError
from gpustreamlab.memory import guards
from gpustreamlab.workloads import spin
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.line_interrupts import LineInterrupts, send_interrupt


def program(guard):
    with guard.on("a", "outer"), guard.on("b", "inner"):
        pass
    with guard.on("b", "after"):
        pass


def enters(guard):
    """Tell whether another thread is let in."""
    entered = threading.Event()

    def enter():
        with guard.on("a"):
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return entered.wait(20)


def interrupted(at):
    lab = Session(SimBackend())
    lab.stream("a"), lab.stream("b")
    guard = lab.memory.guard(object(), "workspace")
    signals = LineInterrupts([guards], at, send_interrupt)
    try:
        with signals:
            program(guard)
    except KeyboardInterrupt:
        pass
    return lab, guard, signals


@pytest.mark.no_cover  # coverage's own lock does not survive an interrupt
def test_an_interrupt_before_any_line_locks_nobody_out():
    at, tried = 0, 0
    while True:
        at += 1
        lab, guard, signals = interrupted(at)
        with lab:
            if signals.place is None:
                break
            tried += 1
            lab._put_back_left()  # what the end of a cell does
            assert enters(guard), signals.place
            guard.close()
    assert tried > 40


@pytest.fixture
def left_use():
    """Leave a block on lane "a" by an interrupt at the first instruction of what would end it; give session and guard."""

    def interrupt(frame, event, argument):
        if event == "call" and frame.f_code is guards.GuardedUse.__exit__.__code__:
            sys.settrace(before)
            raise KeyboardInterrupt

    with Session("sim") as lab:
        lab.stream("a"), lab.stream("b")
        guard, before = lab.memory.guard(object(), "workspace"), sys.gettrace()
        try:
            with guard.on("a"):
                spin(lab, 1_000_000)
                sys.settrace(interrupt)
        except KeyboardInterrupt:
            pass
        assert lab.current is lab.stream("a")
        yield lab, guard


@pytest.mark.no_cover
def test_a_use_that_was_left_is_ended_with_its_cell(left_use):
    lab, guard = left_use
    lab._put_back_left()
    assert lab.current is None
    assert "last used on 'a'" in repr(guard)
    assert enters(guard)
    with guard.on("b", "next"):
        pass
    lab.synchronize()
    frame = lab.trace.to_pandas()
    assert frame["start_ns"][frame["name"] == "next"].item() >= 1_000_000
    guard.close()
    assert guard.is_closed


@pytest.mark.no_cover
def test_what_was_left_is_put_back_at_once_where_it_is_asked_for(left_use):
    lab, guard = left_use
    lab._put_back_left()
    assert lab.current is None
    assert "last used on 'a'" in repr(guard)
    with lab.on("b", "outer"), guard.on("a"):
        lab._begin_cell("In [2]")  # what was entered before it stays
        lab._put_back_left()
        assert lab.current is lab.stream("a")
    assert lab.current is None


def test_memory_that_two_sessions_use_is_let_go():
    with Session(InstantBackend()) as first, Session(InstantBackend()) as second:
        array = np.zeros(8)
        alive = weakref.ref(array)
        for lab in (first, second):
            lane = lab.stream("a")
            lane.use(array, after=lane.record())
        del array
        for lab in (first, second, first):
            lab.synchronize()
        assert alive() is None
        assert (first.memory.held_count, second.memory.held_count) == (0, 0)


class CapturingStream:
    """Lets one stream of the simulated device look as if a graph were captured on it."""

    def __init__(self, monkeypatch, stream):
        self.recorded = []
        record = type(stream).record
        monkeypatch.setattr(type(stream), "is_capturing", property(lambda other: other is stream))
        monkeypatch.setattr(type(stream), "record", lambda other, event: self.recorded.append(other) or record(other, event))


def test_nothing_is_recorded_into_a_graph_that_somebody_captures(monkeypatch):
    with Session("sim") as lab:
        a, b = lab.stream("a"), lab.stream("b")
        with lab.on(b, "write"):
            x = lab.xp.ones(8)
        a.use(x)
        capturing = CapturingStream(monkeypatch, a._backend_stream)
        del x
        b.hold(object())
        lab._keeper.sweep()
        assert a._backend_stream not in capturing.recorded
        with pytest.raises(DeviceError, match="'a' is being captured into a CUDA graph"):
            a.hold(object())
        monkeypatch.undo()
        lab.synchronize()
        assert lab.memory.held_count == 0


def test_a_use_is_noted_even_where_nothing_can_be_held(monkeypatch):
    with Session("sim") as lab:
        lab.stream("a"), lab.stream("b")
        guard = lab.memory.guard(object(), "workspace")
        with monkeypatch.context() as patch:
            patch.setattr(lab._keeper, "hold", lambda *_: (_ for _ in ()).throw(DeviceError("no event")))
            with pytest.raises(DeviceError, match="no event"), guard.on("a"):
                spin(lab, 1_000_000)
        assert not guard.query()
        with guard.on("b"):
            pass
        lab.stream("b").synchronize()
        assert lab.stream("a").query()  # so b has waited


def test_an_engine_makes_no_lane_of_a_misspelt_name():
    from gpustreamlab.engines import OnnxEngine

    with Session(SimBackend()) as lab:
        lab.stream("decode")
        with pytest.raises(StreamNotFoundError, match="'decode'"):
            OnnxEngine(lab, object(), "decdoe")
        assert list(lab.streams) == ["decode"]
