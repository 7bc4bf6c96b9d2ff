"""Ctrl-C at any line of sharing out the SMs: the old layout or the new one, whole, and everything goes on and closes."""

from __future__ import annotations

import gc
import signal

import pytest

from gpustreamlab import Session, green, session
from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import _plan
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.recorder import _recorder, _tables
from gpustreamlab.streams import layout, life, stream, table
from gpustreamlab.workloads import spin
from tests.helpers.line_interrupts import LineInterrupts, send_interrupt
from tests.helpers.long_runs import count
from tests.helpers.selections import names_of

MS = 1_000_000
WATCHED = (session, table, layout, life, green, stream, _plan, _recorder, _tables)
"""Where interrupts come. Inside the simulated device they would be those of a driver, which is no Python."""


class Interrupter(LineInterrupts):
    """Sends SIGINT to this process before one line of the watched modules, with no garbage collection meanwhile."""

    def __init__(self, at):
        super().__init__(WATCHED, at, send_interrupt)

    def __enter__(self):
        gc.disable()  # a session of an earlier round may warn
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        gc.enable()


class Bench:
    """A session with work in flight, on a device that tells what is left of it."""

    def __init__(self):
        self.backend = SimBackend()
        self.contexts, self.heard = [], []
        self.backend.create_context = self.create_context
        self.lab = Session(self.backend)
        self.old = self.lab.partition(a=64, b="rest")
        for name, partition in (("x", "a"), ("y", "b"), ("z", None)):
            self.lab.stream(name, partition=partition)
            with self.lab.on(name, "before"):
                spin(self.lab, MS)
        self.lab.partitions.watch(self.heard.append)

    def create_context(self, spec):
        self.contexts.append(SimBackend.create_context(self.backend, spec))
        return self.contexts[-1]

    def check(self):
        """Fail unless the layout is whole, all works, and closing leaves nothing on the device."""
        lab = self.lab
        where = lab.layout
        for lane in lab.streams.values():
            assert lane.sm_count == (132 if lane.partition is None else where[lane.partition].granted_sms)
            assert lane._recorded.spec == green.context_specs(where).get(lane.partition)
        assert lab.partitions.verify().holds
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        for name in lab.streams:
            with lab.on(name, "after"):
                spin(lab, 1_000)
        lab.synchronize()
        named = names_of(lab.trace)
        assert named.count("before") == 3
        assert named.count("after") == len(lab.streams)
        assert lab.trace.layout == lab.layout
        assert lab.trace.metadata.dropped_spans == lab.trace.metadata.pending_spans == 0
        lab.partition(None)
        lab.partition(self.old)
        assert len(lab._partitions.cache) <= 5
        assert sum(not context.is_closed for context in self.contexts) == len(lab._partitions.cache)
        known = sum(len(lane._places) for lane in lab.streams.values()) + len(lab._partitions.probe._streams)
        assert len(self.backend.driver.streams) == known
        self.close()

    def close(self):
        self.lab.close()
        assert all(context.is_closed for context in self.contexts)
        assert self.backend.driver.streams == {}
        self.backend.close()


CHANGES = {
    "share out": (lambda bench: bench.lab.partition(a=32, b="rest"), 23),
    "rename": (lambda bench: bench.lab.partition({"c": 64, "b": "rest"}, renamed={"a": "c"}), 17),
    "back to the whole card": (lambda bench: bench.lab.partition(None), 11),
    "move": (lambda bench: bench.lab.stream("x", partition="b"), 7),
    "make": (lambda bench: bench.lab.stream("new", partition="b"), 7),
    "verify": (lambda bench: bench.lab.partitions.verify(), 23),
}


def placed(bench):
    return [(lane.name, lane.partition) for lane in bench.lab.streams.values()]


def count_lines(work):
    counter = Interrupter(10**9)
    bench = Bench()
    with counter:
        work(bench)
    bench.close()
    return 10**9 - counter.left


@pytest.mark.parametrize(("work", "step"), CHANGES.values(), ids=CHANGES)
def test_an_interrupt_leaves_the_old_state_or_the_new_whole(work, step):
    finished = Bench()
    before = finished.lab.layout, placed(finished)
    work(finished)
    after = finished.lab.layout, placed(finished)
    finished.close()
    seen = set()
    for at in range(1, count_lines(work), step * count(2, 1)):
        bench = Bench()
        with pytest.raises(KeyboardInterrupt), Interrupter(at):
            work(bench)
        state = bench.lab.layout, placed(bench)
        assert state in (before, after), at
        seen.add(state == after)
        assert bench.heard in ([], [bench.lab.layout] if state == after else []), at
        bench.check()
    assert False in seen


def test_an_interrupted_close_goes_on_with_the_contexts():
    for at in range(1, count_lines(lambda bench: bench.lab.close()), 17):
        bench = Bench()
        with pytest.raises(KeyboardInterrupt), Interrupter(at):
            bench.lab.close()
        bench.close()
        assert bench.lab.state != "open"


# delayed_interrupts


def test_interrupts_wait_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt) as told, delayed_interrupts():
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append(1)
        signal.raise_signal(signal.SIGINT)
        done.append(2)
        raise ValueError("mine")
    assert (done, type(told.value.__context__)) == ([1, 2], ValueError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_users_own_handler_hears_of_it_and_ignoring_stays_ignoring():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with delayed_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with delayed_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
