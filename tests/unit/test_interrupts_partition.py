"""Ctrl-C at any instant of sharing out the SMs: the old layout or the new one, whole, and everything goes on and closes."""

from __future__ import annotations

import dis
import gc
import signal
import sys
import weakref
from contextlib import suppress
from pathlib import Path

import pytest

from gpustreamlab import Session, green, session
from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import _plan
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.record import _in_flight, _recorder, _tables
from gpustreamlab.streams import layout as homes
from gpustreamlab.streams import layout as repartition
from gpustreamlab.streams import life as locks
from gpustreamlab.streams import life as session_life
from gpustreamlab.streams import probe as sm_probe
from gpustreamlab.streams import stream as streams
from gpustreamlab.streams import table as session_lanes
from gpustreamlab.streams import table as stream_table
from gpustreamlab.workloads import spin

MS = 1_000_000
WATCHED = (
    session,
    session_lanes,
    session_life,
    stream_table,
    repartition,
    homes,
    locks,
    green,
    streams,
    sm_probe,
    _plan,
    _recorder,
    _in_flight,
    _tables,
)
FILES = {str(Path(module.__file__)) for module in WATCHED}
"""Where interrupts come. Inside the simulated device they would be those of a driver, which is no Python."""


CHECKED_AFTER = {
    dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD") if name in dis.opmap
}
"""The instructions after which CPython looks for signals."""
BUILT_BY_C = {"__init__", "__new__", "__post_init__"}
"""Functions that C calls, which looks for signals when they have returned."""


class Interrupter:
    """Sends SIGINT to this process at one of the instants of the watched files at which CPython looks for signals."""

    def __init__(self, at):
        self.left, self.last_codes = at, {}

    def __enter__(self):
        gc.disable()  # a session of an earlier round may warn
        self.begin()
        return self

    def __exit__(self, *error):
        self.end()
        gc.enable()

    def begin(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace_call)

    def end(self):
        sys.settrace(self.before)

    def trace_call(self, frame, event, argument):
        if not self.note_call(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.trace_opcode

    def trace_opcode(self, frame, event, argument):
        if event == "return":
            self.last_codes.pop(frame, None)
        if event == "opcode":
            self.note_opcode(frame)
        return self.trace_opcode

    def note_call(self, frame):
        if frame.f_code.co_name not in BUILT_BY_C:
            self.last_codes[frame.f_back] = -1  # a call from Python into Python looks for signals as it begins only
        return frame.f_code.co_filename in FILES

    def note_opcode(self, frame):
        last = self.last_codes.get(frame, dis.opmap["RESUME"])
        self.last_codes[frame] = frame.f_code.co_code[frame.f_lasti]
        self.left -= last in CHECKED_AFTER
        if self.left == 0 and last in CHECKED_AFTER:
            self.end()
            signal.raise_signal(signal.SIGINT)


class MonitoringInterrupter(Interrupter):
    """The same by ``sys.monitoring``: from Python 3.12 on, tracing by opcodes leaves out most of a function's first calls."""

    TOOL = 4

    def begin(self):
        monitoring, events = sys.monitoring, sys.monitoring.events
        monitoring.use_tool_id(self.TOOL, "interrupts")
        monitoring.register_callback(self.TOOL, events.PY_START, self.start)
        monitoring.register_callback(self.TOOL, events.INSTRUCTION, self.step)
        leaves = (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND)
        for event in leaves:
            monitoring.register_callback(self.TOOL, event, self.leave)
        self.codes = set()
        monitoring.set_events(self.TOOL, events.PY_START | sum(leaves))

    def end(self):
        if sys.monitoring.get_tool(self.TOOL) is not None:
            for code in self.codes:
                sys.monitoring.set_local_events(self.TOOL, code, 0)
            sys.monitoring.set_events(self.TOOL, 0)
            sys.monitoring.free_tool_id(self.TOOL)

    def start(self, code, offset):
        if self.note_call(sys._getframe(1)) and code not in self.codes:
            self.codes.add(code)
            sys.monitoring.set_local_events(self.TOOL, code, sys.monitoring.events.INSTRUCTION)

    def step(self, code, offset):
        self.note_opcode(sys._getframe(1))

    def leave(self, code, offset, value):
        self.last_codes.pop(sys._getframe(1), None)


if hasattr(sys, "monitoring"):
    Interrupter = MonitoringInterrupter


class Bench:
    """A session with work in flight, on a device that tells what is left of it."""

    def __init__(self):
        self.backend = SimBackend()
        self.contexts, self.heard = [], []
        self.backend.create_context = self.create_context
        self.lab = Session(self.backend, context_limit=5)
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
        for stream in lab.streams.values():
            assert stream.sm_count == (132 if stream.partition is None else where[stream.partition].granted_sms)
            assert stream._recorded.spec == green.context_specs(where).get(stream.partition)
        assert lab.partitions.verify().holds
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        for name in lab.streams:
            with lab.on(name, "after"):
                spin(lab, 1_000)
        lab.synchronize()
        named = [lab.trace.names[code] for code in lab.trace.name]
        assert named.count("before") == 3
        assert named.count("after") == len(lab.streams)
        assert lab.trace.layout == lab.layout
        assert lab.trace.metadata.dropped_spans == lab.trace.metadata.pending_spans == 0
        lab.partition(None)
        lab.partition(self.old)
        assert len(lab._partitions.cache) <= 5
        assert sum(not context.is_closed for context in self.contexts) == len(lab._partitions.cache)
        known = sum(len(stream._places) for stream in lab.streams.values()) + len(lab._partitions.probe._streams)
        assert len(self.backend.driver.streams) == known
        self.close()

    def close(self):
        self.lab.close()
        assert all(context.is_closed for context in self.contexts)
        assert self.backend.driver.streams == {}
        self.backend.close()


def repartitioned(bench):
    return bench.lab.partition(a=32, b="rest")


def renamed(bench):
    return bench.lab.partition({"c": 64, "b": "rest"}, renamed={"a": "c"})


def back(bench):
    return bench.lab.partition(None)


def moved(bench):
    return bench.lab.stream("x", partition="b")


def made(bench):
    return bench.lab.stream("new", partition="b")


def verified(bench):
    return bench.lab.partitions.verify()


def placed(bench):
    return [(stream.name, stream.partition) for stream in bench.lab.streams.values()]


def count_instants(work):
    counter = Interrupter(10**9)
    bench = Bench()
    with counter:
        work(bench)
    bench.close()
    return 10**9 - counter.left


@pytest.mark.parametrize(
    ("work", "step"), [(repartitioned, 41), (renamed, 31), (back, 17), (moved, 13), (made, 13), (verified, 43)]
)
def test_an_interrupt_leaves_the_old_state_or_the_new_whole(work, step):
    finished = Bench()
    before = finished.lab.layout, placed(finished)
    work(finished)
    after = finished.lab.layout, placed(finished)
    finished.close()
    seen = set()
    for at in range(1, count_instants(work), step):
        bench = Bench()
        with pytest.raises(KeyboardInterrupt), Interrupter(at):
            work(bench)
        state = bench.lab.layout, placed(bench)
        assert state in (before, after), at
        seen.add(state == after)
        assert bench.heard in ([], [bench.lab.layout] if state == after else []), at
        bench.check()
    assert False in seen


def test_an_interrupt_while_it_drains_leaves_the_old_layout_and_no_streams():
    bench = Bench()
    lab = bench.lab
    stream_type = type(lab.stream("x")._backend_stream)
    synchronize = stream_type.synchronize
    lab.partition(a=32, b="rest")
    lab.partition(bench.old)
    streams_before, made_before = len(bench.backend.driver.streams), lab._partitions.cache.created_count

    def interrupt(stream):
        stream_type.synchronize = synchronize
        signal.raise_signal(signal.SIGINT)

    for sms in (24, 16, 8, 24, 16, 8):
        stream_type.synchronize = interrupt
        try:
            with pytest.raises(KeyboardInterrupt):
                lab.partition(a=sms, b=100)
        finally:
            stream_type.synchronize = synchronize
        assert lab.layout == bench.old
        assert placed(bench) == [("x", "a"), ("y", "b"), ("z", None)]
        assert len(lab._partitions.cache) <= 5
    assert len(bench.backend.driver.streams) <= streams_before
    assert lab._partitions.cache.created_count > made_before
    bench.check()


def test_an_interrupt_during_the_switch_comes_after_it(monkeypatch):
    bench = Bench()
    settle = streams.Stream._settle

    def interrupted_settle(stream, home):
        signal.raise_signal(signal.SIGINT)
        settle(stream, home)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(streams.Stream, "_settle", interrupted_settle)
        repartitioned(bench)
    assert bench.lab.layout["a"].granted_sms == 32
    assert bench.heard == [bench.lab.layout]
    bench.check()


def test_an_interrupted_close_goes_on_with_the_contexts():
    for at in range(1, count_instants(lambda bench: bench.lab.close()), 29):
        bench = Bench()
        with pytest.raises(KeyboardInterrupt), Interrupter(at):
            bench.lab.close()
        bench.close()
        assert bench.lab.state != "open"


# delayed_interrupts


def test_interrupts_wait_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), delayed_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
        signal.raise_signal(signal.SIGINT)
        done.append(2)
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class InterruptedAtItsEnd(delayed_interrupts):
    def __exit__(self, kind, error, trace):
        signal.raise_signal(signal.SIGINT)
        super().__exit__(kind, error, trace)


def test_what_the_block_used_is_freed_without_a_garbage_collection():
    def work():
        used = {"memory"}
        known.append(weakref.ref(used))
        with InterruptedAtItsEnd():
            pass

    known = []
    gc.disable()
    try:
        with suppress(KeyboardInterrupt):
            work()
        assert known[0]() is None
    finally:
        gc.enable()


def test_an_error_in_the_block_is_seen_beside_the_interrupt():
    with pytest.raises(KeyboardInterrupt) as told, delayed_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("mine")
    assert isinstance(told.value.__context__, ValueError)


def test_blocks_nest():
    done = []
    with pytest.raises(KeyboardInterrupt), delayed_interrupts():
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
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
