"""A session used from many threads: what each has selected and open is its own, and nobody waits for another one's GPU."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import (
    DeviceError,
    GPUStreamLabError,
    PartitionInUseError,
    PartitionNotFoundError,
    SessionClosedError,
    StreamClosedError,
)
from gpustreamlab.green import context_specs
from gpustreamlab.workloads import spin
from tests.helpers.nvtx_stacks import CheckedSim
from tests.helpers.selections import rows_of
from tests.helpers.threads import run_in_thread

THREADS = 16


@pytest.fixture
def backend():
    return CheckedSim()


@pytest.fixture
def lab(backend):
    with Session(backend, capture="ranges") as session:
        yield session


def run_at_once(*works):
    """Run each in a thread of its own, all at once; return what they returned, or raise the first error."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait(60)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result(60) for done in [pool.submit(run, work) for work in works]]


def told(trace):
    threads = [trace.threads[trace.thread[row]] for row in trace.start_ns.argsort(kind="stable")]
    return [(*row, thread) for row, thread in zip(rows_of(trace), threads, strict=True)]


# Selections


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
        before = lab._backend.selected_stream
        try:
            with lab.on(lane, "held"):
                with lab.range("open"):
                    selected.set()
                    go_on.wait(60)
                    attempt("array", lambda: lab.xp.ones(4))
                    attempt("range", lambda: lab.range("late").__enter__())
                    attempt("select", lambda: lab.on(lane).__enter__())
                    attempt("record", lambda: lab.stream(lane).record() if lab.state != "open" else lab.on(lane))
        except BaseException as error:
            met["exit"] = error
        met["after"] = lab._backend.selected_stream is before

    thread = threading.Thread(target=hold)
    thread.start()
    selected.wait(60)
    work()
    go_on.set()
    thread.join()
    return met


CLOSES = pytest.mark.parametrize("close", [lambda lab: lab.stream("a").close(), Session.close], ids=["lane", "session"])


@CLOSES
def test_a_lane_closed_while_another_thread_has_it_selected(backend, close):
    with Session(backend) as lab:
        lab.stream("a")
        met = in_the_middle(lab, lambda: close(lab))
        refused = StreamClosedError if lab.state == "open" else SessionClosedError
        assert isinstance(met["array"], GPUStreamLabError)
        assert isinstance(met["range"], (StreamClosedError, SessionClosedError))
        assert [type(met[name]) for name in ("select", "record")] == [refused] * 2
        assert met["after"] is True
        assert "exit" not in met
    backend.check()


# Who waits for the GPU keeps nobody waiting


class GatedSim(CheckedSim):
    """A device on which waiting takes until the test says so."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Semaphore(0), threading.Event()

    def wait_for_gate(self):
        self.entered.release()
        assert self.gate.wait(60)

    def synchronize(self):
        self.wait_for_gate()
        super().synchronize()

    def synchronize_event(self, event):
        self.wait_for_gate()
        super().synchronize_event(event)


@pytest.fixture
def gated(monkeypatch):
    backend = GatedSim()
    with Session(backend, capture="ranges") as lab:
        for name in ("a", "b"):
            lab.stream(name)
        backend.slow = lab.stream("a")._backend_stream
        stream_type = type(backend.slow)
        synchronize = stream_type.synchronize

        def wait(self):
            if self is backend.slow:
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
    lab.recording.start_range("b", "handed over").end()
    lab.recording.mark("here")
    return len(lab.trace), repr(lab), lab.current


WAITS = {
    "a stream": lambda lab: lab.stream("a").synchronize(),
    "an event": lambda lab: lab.stream("a").record().synchronize(),
    "the device": lambda lab: lab.synchronize(),
}


@contextmanager
def underway(lab, work):
    """Have another thread do something that waits for lane "a", until the block ends; give what it then raises."""
    raised = []
    thread = threading.Thread(target=lambda: raised.append(run_in_thread(work)), daemon=True)
    thread.start()
    try:
        assert lab._backend.entered.acquire(timeout=60), f"nothing was waited for: {raised}"
        yield raised
    finally:
        lab._backend.gate.set()
        thread.join(60)
    assert not thread.is_alive()


def at_once(work):
    """Do something in another thread, which has to come back; return what it returned, or raised."""
    found = []

    def run():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it waits for what another thread does"
    return found[0]


@pytest.fixture
def shared_out(gated):
    """Lane "a" in the left partition, "b" in none, and waiting for "a" takes until the test says so."""
    gated.partition(left=64, right=64)
    gated._backend.gate.set()
    lane = gated.stream("a", partition="left")
    gated._backend.slow = lane._backend_stream
    gated._backend.gate.clear()
    while gated._backend.entered.acquire(blocking=False):
        pass
    return gated


CHANGES = {
    "a stream closes": lambda lab: lab.stream("a").close(),
    "a stream moves": lambda lab: lab.stream("a", partition="right"),
    "the SMs are shared out": lambda lab: lab.partition(left=32, right="rest"),
    "the card is whole again": lambda lab: lab.partition(None),
}
MEANWHILE = {
    "make a stream": lambda lab: lab.stream("new").name,
    "make a stream in a partition": lambda lab: lab.stream("inside", partition="left").sm_count,
    "let a stream stay": lambda lab: lab.stream("b", partition=None).name,
    "record": lambda lab: len(use(lab)),
    "capture": lambda lab: str(lab.capture("ranges").tier),
    "preview": lambda lab: lab.partitions.plan_moves(lab.layout),
    "prepare": lambda lab: lab.partitions.prepare({"left": 16, "right": "rest"})[0]["left"].granted_sms,
    "read the trace": lambda lab: len(lab.trace),
    "draw": lambda lab: type(lab.timeline()).__name__,
    "look": lambda lab: (len(lab.streams) > 1, lab.layout["left"].granted_sms, lab.partitions.capabilities is not None),
    "close another stream": lambda lab: lab.stream("b").close(),
    "make it again": lambda lab: lab.stream("b").is_closed,
}
FOUND = {
    "make a stream": "new", "make a stream in a partition": 64, "let a stream stay": "b", "record": 3, "capture": "ranges",
    "preview": (), "prepare": 16, "draw": "Timeline", "look": (True, 64, True), "close another stream": None,
    "make it again": False,
}  # fmt: skip


def check_places(lab):
    """Fail unless every stream works where the layout says."""
    specs = context_specs(lab.layout)
    for stream in lab.streams.values():
        assert stream._recorded.spec == specs.get(stream.partition)
        assert stream.sm_count == (132 if stream.partition is None else lab.layout[stream.partition].granted_sms)
    assert lab.partitions.verify().holds


@pytest.mark.parametrize("change", (WAITS | CHANGES).values(), ids=WAITS | CHANGES)
def test_what_waits_for_a_stream_keeps_nobody_waiting(shared_out, change):
    with underway(shared_out, lambda: change(shared_out)) as raised:
        found = {name: at_once(lambda do=do: do(shared_out)) for name, do in MEANWHILE.items()}
        assert found.pop("read the trace") >= 0
        assert found == FOUND
    assert raised == [None]
    check_places(shared_out)
    shared_out.synchronize()
    assert shared_out.trace.metadata.dropped_spans == 0


REFUSED = {
    "make a stream": lambda lab: lab.stream("new"),
    "make it in a partition": lambda lab: lab.stream("new", partition="left"),
    "move": lambda lab: lab.stream("b", partition="right"),
    "select": lambda lab: lab.on("b"),
    "share out": lambda lab: lab.partition(left=32),
    "prepare": lambda lab: lab.partitions.prepare({"left": 16}),
    "prove": lambda lab: lab.partitions.verify(),
    "capture": lambda lab: lab.capture("ranges"),
    "mark": lambda lab: lab.recording.mark("late"),
    "wait": lambda lab: lab.synchronize(),
    "guard": lambda lab: lab.memory.guard(object()),
}


def test_a_session_that_closes_refuses_at_once_and_can_be_read(shared_out):
    lane = shared_out.stream("b")
    with underway(shared_out, shared_out.close) as raised:
        for name, do in REFUSED.items():
            assert isinstance(at_once(lambda do=do: do(shared_out)), SessionClosedError), name
        assert at_once(lambda: len(shared_out.trace)) == 0
        assert at_once(shared_out.partitions.map).layout is at_once(lambda: shared_out.layout) is not None
        assert at_once(lambda: list(shared_out.streams)) == ["b"]
        assert type(at_once(shared_out.timeline)).__name__ == "Timeline"
        assert "closing" in at_once(lambda: repr(shared_out))
        assert at_once(lane.close) is None
        assert list(shared_out.streams) == []
    assert raised == [None]
    assert shared_out.state != "open"
    assert shared_out._backend.driver.streams == {}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_device_that_fails_while_it_is_waited_for_leaves_all_locks_free(lab, monkeypatch, change):
    lab.partition(left=64, right=64)
    lane = lab.stream("a", partition="left")
    with monkeypatch.context() as patch:
        patch.setattr(type(lane._backend_stream), "synchronize", lambda stream: (_ for _ in ()).throw(DeviceError("lost")))
        with pytest.raises(DeviceError, match="lost"):
            change(lab)
    assert at_once(lambda: lab.partition(None)) is None
    assert at_once(lambda: lab.stream("a").close()) is None
    assert at_once(lambda: lab.stream("b", partition=None).name) == "b"
    check_places(lab)


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
            with Session("sim", capture="ranges") as own:
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
        assert stream.read() == "None,False,0,SessionClosedError,SessionClosedError,StreamClosedError,1"
    lab.synchronize()
    assert sorted(name for _, name, *_ in told(lab.trace)) == ["inner", "outer"]
    backend.check()


# Everything at once, for a while


class CountedSim(CheckedSim):
    """Counts how often each stream and context is destroyed."""

    def __init__(self):
        super().__init__()
        self.contexts, self.destroyed = [], Counter()
        destroy = self.driver.destroy_stream

        def destroy_and_count(queue):
            self.destroyed[queue.number] += 1
            destroy(queue)

        self.driver.destroy_stream = destroy_and_count

    def create_context(self, spec):
        made = super().create_context(spec)
        self.contexts.append(made)
        return made


SHARES = ({"left": 64, "right": 64}, {"left": 32, "right": "rest"}, {"left": 16, "middle": 32, "right": "rest"}, None)
USUAL = ("work", "make", "move", "close", "share out", "prepare", "verify")
"""What the threads do at least once, however slow the machine is."""
EXPECTED = (PartitionInUseError, PartitionNotFoundError, StreamClosedError)


def take_turns(lab, number, done, is_over):
    """Make, select, move, close and share out at random; count how often each was done."""
    rng = random.Random(number)
    own = f"own-{number}"
    doing = {
        "make": lambda: lab.stream(own),
        "make in a partition": lambda: lab.stream(f"shared-{rng.randrange(6)}", partition=rng.choice(("left", "right", None))),
        "move": lambda: lab.stream(own, partition=rng.choice(("left", "right", None))),
        "close": lambda: lab.stream(f"shared-{rng.randrange(6)}").close(),
        "close own": lambda: lab.stream(own).close(),
        "share out": lambda: lab.partition(rng.choice(SHARES)),
        "prepare": lambda: lab.partitions.prepare({"left": rng.choice((8, 24, 40)), "right": "rest"}),
        "verify": lambda: lab.partitions.verify(),
        "read": lambda: (len(lab.trace), lab.partitions.plan_moves(None), repr(lab)),
    }
    weights = (4, 4, 4, 3, 1, 4, 1, 1, 1)

    def work():
        name = own if rng.random() < 0.7 else f"shared-{rng.randrange(6)}"
        lab.stream(name)
        with lab.on(name, "work"), lab.memory.scratch(rng.choice((512, 4_096))):
            spin(lab, rng.choice((100, 100_000)))

    while not is_over():
        name = rng.choices(("work", *doing), (12, *weights))[0]
        try:
            (work if name == "work" else doing[name])()
            done[name] += 1
        except EXPECTED as error:
            done[type(error).__name__] += 1


def join_or_tell(threads, limit_s):
    """Wait for threads; fail with the stacks of all where one does not end."""
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0, deadline_s - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        stacks = [f"{ident}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in sys._current_frames().items()]
        pytest.fail("Threads wait for each other.\n" + "\n".join(stacks))


@pytest.mark.parametrize("ending", ["quiet", "closed in the middle"])
def test_sixteen_threads_make_close_move_share_out_and_select(ending):
    backend, errors = CountedSim(), []
    counts = [Counter() for _ in range(THREADS)]
    lab = Session(backend)
    lab.partition(SHARES[0])
    until_s = time.monotonic() + 1.5
    expected = () if ending == "quiet" else (SessionClosedError,)

    def is_over():
        return time.monotonic() > until_s and all(any(done[name] for done in counts) for name in USUAL)

    def run(number):
        try:
            take_turns(lab, number, counts[number], is_over)
        except expected:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        if ending != "quiet":
            time.sleep(0.7)
            lab.close()
        join_or_tell(threads, 60)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    if ending == "quiet":
        check_places(lab)
        lab.synchronize()
        assert told(lab.trace)
        lab.close()
    assert backend.driver.streams == {}
    assert set(backend.destroyed.values()) == {1}
    assert all(context.is_closed for context in backend.contexts)
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
    assert lab._recorder.changes().edges.shape == (2, 4 * rounds)
