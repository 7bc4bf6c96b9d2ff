"""A session used from many threads: what each has selected and open is its own, and nobody waits for another one's GPU."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import (
    GPUStreamLabError,
    PartitionInUseError,
    SelectionError,
    SessionClosedError,
    StreamClosedError,
)
from gpustreamlab.workloads import spin
from tests.helpers.lending_backend import LendingBackend
from tests.helpers.nvtx_stacks import CheckedSim
from tests.helpers.threads import run_in_thread

THREADS = 16
ROUNDS = 12


@pytest.fixture
def backend():
    return CheckedSim()


@pytest.fixture
def lab(backend):
    with Session(backend) as session:
        yield session


def run_at_once(*works):
    """Run each in a thread of its own, all at once; return what they returned, or raise the first error."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result(60) for done in [pool.submit(run, work) for work in works]]


def told(trace):
    named = [trace.names[code] for code in trace.name]
    return [
        (trace.lanes[lane].name, name, named[parent] if parent >= 0 else None, trace.threads[thread])
        for lane, name, parent, thread in zip(trace.lane, named, trace.parent, trace.thread, strict=True)
    ]


# Selections


def test_sixteen_threads_on_a_lane_each(lab, backend):
    def work(number):
        lane = lab.stream(f"lane-{number}")
        values = []
        for step in range(ROUNDS):
            with lab.on(lane, f"outer {number}"):
                a = lab.xp.full((4, 4), float(number))
                assert lab.current is lane
                assert backend.selected_stream is lane.backend_stream
                with lab.range(f"inner {number}"):
                    time.sleep(0)
                    b = a @ a
                    with lab.on(f"lane-{number}", f"deep {number}"):
                        assert lab.current is lane
                values.append(float(b[0, 0]))
            assert lab.current is None
            assert backend.selected_stream is backend.null_stream
            assert step == len(values) - 1
        return threading.current_thread().name, values == [4.0 * number * number] * ROUNDS

    found = run_at_once(*(lambda number=number: work(number) for number in range(THREADS)))
    assert all(is_right for _, is_right in found)
    lab.synchronize()
    expected = [
        row
        for number, (thread, _) in enumerate(found)
        for row in (
            (f"lane-{number}", f"outer {number}", None, thread),
            (f"lane-{number}", f"inner {number}", f"outer {number}", thread),
            (f"lane-{number}", f"deep {number}", f"inner {number}", thread),
        )
    ]
    assert sorted(told(lab.trace), key=str) == sorted(expected * ROUNDS, key=str)
    assert lab.trace.metadata.dropped_spans == lab.trace.metadata.pending_spans == 0
    backend.check()


def test_a_new_thread_has_nothing_selected(lab, backend):
    lab.stream("a")

    def look():
        assert lab.current is None
        assert backend.selected_stream is backend.null_stream
        with pytest.raises(SelectionError, match="none is selected in this thread"):
            lab.range("orphan")

    with lab.on("a"):
        assert run_in_thread(look) is None


def test_ranges_that_one_thread_opens_and_another_ends(lab):
    lab.stream("a")
    started = run_at_once(*(lambda number=number: lab.start_range("a", f"r{number}") for number in range(THREADS)))
    run_at_once(*(opened.end for opened in started))
    lab.synchronize()
    assert sorted(name for _, name, *_ in told(lab.trace)) == sorted(f"r{number}" for number in range(THREADS))


def test_streams_of_one_name_are_one_stream(lab):
    made = run_at_once(*(lambda: lab.stream("same") for _ in range(THREADS)))
    assert {id(stream) for stream in made} == {id(lab.stream("same"))}
    assert list(lab.streams) == ["same"]


def test_a_lender_taken_by_many_threads_is_one_lane(lab, backend):
    lender = backend.create_stream(priority=0)

    def take():
        with lab.on(lender):
            return lab.current

    assert len({id(stream) for stream in run_at_once(*(take for _ in range(THREADS)))}) == 1


def select_often(lab, number):
    rng = random.Random(number)
    lane = lab.stream(f"lane-{number}")
    for _ in range(40):
        with lab.on(lane, "work"):
            spin(lab, 1_000)
            with lab.range("inner"):
                assert lab.current is lane
        if rng.random() < 0.2:
            lane.synchronize()


def make_and_close(lab):
    for number in range(30):
        with lab.on(lab.stream(f"short-{number % 3}"), "short"):
            spin(lab, 1_000)
        lab.stream(f"short-{number % 3}").close()


def share_out(lab):
    for number in range(20):
        with suppress(PartitionInUseError):
            lab.partition(left=(32, 64)[number % 2], right=64)


def read(lab, stop):
    while not stop.is_set():
        trace = lab.trace
        assert (trace.end_ns >= trace.start_ns).all()
        lab.overlap()
        repr(lab)


def test_everything_at_once(lab, backend):
    """Threads select while others make and close streams, share out the SMs anew, and read traces."""
    lab.partition(left=64, right=64)
    lab.stream("moved", partition="left")
    stop, failed = threading.Event(), []
    reader = threading.Thread(target=lambda: failed.append(run_in_thread(lambda: read(lab, stop))))
    reader.start()
    try:
        selecting = [partial(select_often, lab, number) for number in range(8)]
        run_at_once(*selecting, partial(make_and_close, lab), partial(share_out, lab), lambda: lab.mark("now"))
    finally:
        stop.set()
        reader.join()
    assert failed == [None]
    lab.synchronize()
    names = [name for _, name, *_ in told(lab.trace)]
    assert (names.count("work"), names.count("inner"), names.count("short")) == (320, 320, 30)
    assert lab.trace.metadata.dropped_spans == 0
    backend.check()


# Closing


def in_the_middle(lab, work, *, lane="a"):
    """Run something in this thread while another has a lane selected; return what that thread then meets."""
    selected, go_on = threading.Event(), threading.Event()
    met = {}

    def attempt(name, call):
        try:
            met[name] = call()
        except BaseException as error:
            met[name] = error

    def hold():
        before = lab.backend.selected_stream
        try:
            with lab.on(lane, "held"):
                with lab.range("open"):
                    selected.set()
                    go_on.wait(10)
                    attempt("array", lambda: lab.xp.ones(4))
                    attempt("range", lambda: lab.range("late").__enter__())
                    attempt("select", lambda: lab.on(lane).__enter__())
                    attempt("record", lambda: lab.stream(lane).record() if lab.is_closed else lab.on(lane))
        except BaseException as error:
            met["exit"] = error
        met["after"] = lab.backend.selected_stream is before

    thread = threading.Thread(target=hold)
    thread.start()
    selected.wait(10)
    work()
    go_on.set()
    thread.join()
    return met


def test_a_lane_closed_while_another_thread_has_it_selected(lab, backend):
    lab.stream("a")
    met = in_the_middle(lab, lab.stream("a").close)
    assert {name: type(error) for name, error in met.items()} == {
        "array": StreamClosedError, "range": StreamClosedError, "select": StreamClosedError, "record": StreamClosedError,
        "after": bool,
    }  # fmt: skip
    assert met["after"] is True
    backend.check()


@pytest.mark.parametrize("close", [lambda lab: lab.stream("a").close(), Session.close], ids=["lane", "session"])
def test_a_stream_that_a_library_may_launch_on_is_destroyed_when_it_was_left(close, caplog):
    # GIVEN a device on which a launch on a destroyed stream would end the process
    backend = LendingBackend()
    with Session(backend) as lab:
        stream = lab.stream("a").backend_stream

        # WHEN the lane is closed while another thread has it selected
        met = in_the_middle(lab, lambda: close(lab))

        # THEN the launch still finds its stream, ranges are refused, and the stream goes with the end of the block
        assert met["array"].shape == (4,)
        assert isinstance(met["range"], (SessionClosedError, StreamClosedError))
        assert stream.is_closed
        assert "'a' was closed while a thread has it selected" in caplog.text


def test_a_stream_closed_inside_its_own_block_is_destroyed_behind_it():
    with Session(LendingBackend()) as lab:
        stream = lab.stream("a").backend_stream
        with lab.select("a"), lab.select("a"):
            lab.stream("a").close()
            assert lab.xp.ones(4).shape == (4,)
            assert not stream.is_closed
        assert stream.is_closed


def test_a_session_closed_while_another_thread_has_a_lane_selected(backend):
    lab = Session(backend)
    lab.stream("a")
    met = in_the_middle(lab, lab.close)
    assert isinstance(met["array"], GPUStreamLabError)
    assert isinstance(met["range"], (SessionClosedError, StreamClosedError))
    assert isinstance(met["select"], SessionClosedError)
    assert "exit" not in met
    assert met["after"] is True
    backend.check()


def test_close_while_others_select(backend):
    with Session(backend) as lab:
        for number in range(8):
            lab.stream(f"lane-{number}")
        started = threading.Barrier(9)

        def select(number):
            started.wait(30)
            count = 0
            while True:
                try:
                    with lab.on(f"lane-{number}"), lab.range("inner"):
                        count += 1
                except (SessionClosedError, StreamClosedError):
                    return count

        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(select, number) for number in range(8)]
            started.wait(30)
            time.sleep(0.02)
            lab.close()
            assert all(future.result(30) >= 0 for future in done)
    assert backend.selected_stream is backend.null_stream
    backend.check()


def test_many_threads_close_one_session(backend):
    lab = Session(backend)
    lab.stream("a")
    run_at_once(*(lab.close for _ in range(8)))
    assert lab.is_closed


# Who waits for the GPU keeps nobody waiting


class GatedSim(CheckedSim):
    """A device on which waiting takes until the test says so."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Semaphore(0), threading.Event()

    def wait_for_gate(self):
        self.entered.release()
        assert self.gate.wait(30)

    def synchronize(self):
        self.wait_for_gate()
        super().synchronize()

    def synchronize_event(self, event):
        self.wait_for_gate()
        super().synchronize_event(event)


@pytest.fixture
def gated(monkeypatch):
    backend = GatedSim()
    with Session(backend) as lab:
        for name in ("a", "b"):
            lab.stream(name)
        slow = lab.stream("a").backend_stream
        stream_type = type(slow)
        synchronize = stream_type.synchronize

        def wait(self):
            if self is slow:
                backend.wait_for_gate()
            synchronize(self)

        monkeypatch.setattr(stream_type, "synchronize", wait)
        try:
            yield lab
        finally:
            backend.gate.set()


def use(lab):
    """Everything that a thread does on its lane, and what others read."""
    with lab.on("b", "mine"), lab.range("inner"):
        lab.xp.ones((4, 4)) @ lab.xp.ones((4, 4))
        event = lab.stream("b").record()
    lab.stream("b").wait(event)
    lab.stream("b").query()
    lab.start_range("b", "handed over").end()
    lab.mark("here")
    return len(lab.trace), repr(lab), lab.current


WAITS = {
    "a stream": lambda lab: lab.stream("a").synchronize(),
    "an event": lambda lab: lab.stream("a").record().synchronize(),
    "the device": lambda lab: lab.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_thread_that_waits_keeps_nobody_from_selecting(gated, wait):
    backend = gated.backend
    waiter = threading.Thread(target=wait, args=(gated,))
    waiter.start()
    try:
        assert backend.entered.acquire(timeout=10)
        found = []
        user = threading.Thread(target=lambda: found.append(use(gated)), daemon=True)
        user.start()
        user.join(10)
        assert not user.is_alive(), "selecting waits for another thread's GPU"
        assert found[0][2] is None
        assert run_in_thread(lambda: gated.stream("c")) is None  # new streams too
    finally:
        backend.gate.set()
        waiter.join()


def test_a_stream_that_closes_keeps_nobody_from_selecting(gated):
    backend = gated.backend
    closer = threading.Thread(target=gated.stream("a").close)
    closer.start()
    try:
        assert backend.entered.acquire(timeout=10)
        user = threading.Thread(target=use, args=(gated,), daemon=True)
        user.start()
        user.join(10)
        assert not user.is_alive(), "selecting waits for a stream that closes"
    finally:
        backend.gate.set()
        closer.join()


# Fork


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_inside_a_selection(lab, backend):
    lab.stream("a")
    read, write = os.pipe()
    decorated = lab.on("a")(lambda: None)
    child = -1
    with lab.on("a", "outer"), lab.range("inner"):
        pushed = backend.open_ranges
        child = os.fork()
        if child == 0:
            told_in_child = []
    if child == 0:
        try:
            told_in_child += [str(lab.current), str(backend.open_ranges == pushed), str(len(lab.trace))]
            for call in (lambda: lab.on("a"), lambda: lab.range("x"), decorated):
                try:
                    call()
                except GPUStreamLabError as error:
                    told_in_child.append(type(error).__name__)
            with Session("sim") as own:
                own.stream("a")
                with own.on("a", "inner child"):
                    spin(own, 1_000)
                own.synchronize()
                told_in_child.append(str(len(own.trace)))
            os.write(write, ",".join(told_in_child).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        assert stream.read() == "None,True,0,SessionClosedError,SessionClosedError,SessionClosedError,1"
    lab.synchronize()
    assert sorted(name for _, name, *_ in told(lab.trace)) == ["inner", "outer"]
    backend.check()


# What only a lock keeps right


def test_each_wait_is_one_edge_whoever_opens_the_next_range(lab):
    source, target = lab.stream("source"), lab.stream("target")
    with lab.on(source, "made"):
        pass
    done = source.record()
    rounds = 300

    def wait_and_work():
        for _ in range(rounds):
            target.wait(done)
            with lab.on(target, "used"):
                pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run_at_once(*(wait_and_work for _ in range(4)))
    finally:
        sys.setswitchinterval(interval)
    with lab.on(target, "last"):
        pass
    lab.synchronize()
    edges, count = lab._recorder.edges_from(0)
    assert (len(edges), count) == (4 * rounds, 4 * rounds)
