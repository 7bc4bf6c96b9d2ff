"""Guards and held memory under Ctrl-C, forks, captures and failures: nobody is locked out, and nothing is kept for good."""

from __future__ import annotations

import sys
import threading

import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import DeviceError, StreamNotFoundError
from tests.helpers import long_runs
from tests.helpers.line_interrupts import LineInterrupts, send_interrupt

EACH = long_runs.count(sample=4, full=1)
"""Of so many lines one is tried."""


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
    signals = LineInterrupts([sys.modules[type(guard).__module__]], at, send_interrupt)
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
        at += EACH
        lab, guard, signals = interrupted(at)
        with lab:
            if signals.place is None:
                break
            tried += 1
            lab._put_back_left()  # what the end of a cell does
            assert enters(guard), signals.place
            guard.close()
    assert tried > 40 // EACH


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


def test_an_engine_makes_no_lane_of_a_misspelt_name():
    from gpustreamlab.engines import OnnxEngine

    with Session(SimBackend()) as lab:
        lab.stream("decode")
        with pytest.raises(StreamNotFoundError, match="'decode'"):
            OnnxEngine(lab, object(), "decdoe")
        assert list(lab.streams) == ["decode"]
