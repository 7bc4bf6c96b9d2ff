"""Which thread of the host a call, an annotation, or work was of."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.record._names import OTHER_NAMES, LaneTable, Threads
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend


@pytest.fixture
def source():
    return FakeActivitySource()


@pytest.fixture
def lab(source):
    with Session(FakeSourceBackend(source)) as session:
        session.stream("a")
        session._recorder.start_capture(source)
        yield session


def row_named(trace, name):
    return [trace.names[code] for code in trace.name].index(name)


def parent_of(trace, name):
    parent = trace.parent[row_named(trace, name)]
    return None if parent < 0 else trace.names[trace.name[parent]]


def thread_of(trace, name):
    return trace.threads[trace.thread[row_named(trace, name)]]


def run_pair(*targets):
    """Run functions in threads that live at the same time and have the same name."""
    together = threading.Barrier(len(targets), timeout=60)

    def run(target):
        together.wait()
        target()
        together.wait()

    threads = [threading.Thread(target=run, args=(target,), name="worker") for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_first_annotation_of_a_thread_is_in_the_lane_of_its_calls(lab, source):
    source.push_annotation(1_000, 9_000, name="cudf: join")
    source.push_launch(2_000, 3_000, 4_000, stream=0, correlation=7)
    trace = lab.trace
    lanes = {name: trace.lanes[trace.lane[row_named(trace, name)]].name for name in ("cudf: join", "cudaLaunchKernel")}
    assert lanes == {"cudf: join": "host: MainThread", "cudaLaunchKernel": "host: MainThread"}


def test_work_is_in_annotations_of_its_own_thread_not_of_one_of_the_same_name(lab, source):
    idents = []
    run_pair(*[lambda: (idents.append(threading.get_ident()), lab._recorder.thread_state())] * 2)
    run_pair(*[lambda: lab.trace] * 2)
    source.push_annotation(1_000, 9_000, name="cudf: join", thread=idents[0])
    for number, ident in enumerate(idents):
        source.push_call(2_000, 2_100, correlation=7 + number, thread=ident)
        source.push_work(3_000, 4_000, stream=0, correlation=7 + number, name=f"kernel {number}")
    trace = lab.trace

    assert parent_of(trace, "kernel 0") == "cudf: join"
    assert parent_of(trace, "kernel 1") is None


def test_work_and_ranges_of_a_thread_have_the_same_thread(lab, source):
    def work(number):
        with lab.on("a", f"range {number}"):
            now_ns = lab._recorder._look_at_clock()
            lab._backend.host_time_ns()
            source.push_launch(now_ns, now_ns + 9, now_ns + 10, stream=0, correlation=number + 1, name=f"kernel {number}")
            lab._recorder.collect_work()

    run_pair(lambda: work(0), lambda: work(1))
    lab.synchronize()
    trace = lab.trace
    for number in range(2):
        assert thread_of(trace, f"kernel {number}") == thread_of(trace, f"range {number}")


@pytest.mark.parametrize("skew_ns", [-30_000, 0, 30_000])
def test_annotations_are_matched_to_ranges_on_the_hosts_clock(lab, source, skew_ns):
    """The two clocks are put on each other within tens of microseconds, ranges follow each other within two."""
    backend = lab._backend

    def annotated(name):
        begin_ns, call_ns, end_ns = (backend.host_time_ns() for _ in range(3))
        times = begin_ns + skew_ns, end_ns + skew_ns
        source.push_annotation(*times, name=f"in {name}", start_host_ns=begin_ns)
        source.push_call(call_ns + skew_ns, end_ns + skew_ns, correlation=call_ns, start_host_ns=call_ns)
        source.push_work(end_ns + 10**6, end_ns + 2 * 10**6, stream=0, correlation=call_ns, name=f"kernel of {name}")

    backend.launch_spin(lab.stream("a")._backend_stream, 10**6, blocks=1, fill_sms=False)  # no time below zero is told
    lab.synchronize()
    with lab.on("a", "outer"):
        for name in ("first", "second"):
            with lab.range(name):
                annotated(name)
        annotated("outer")
    lab.synchronize()
    trace = lab.trace

    for name in ("first", "second", "outer"):
        assert parent_of(trace, f"in {name}") == name
        assert parent_of(trace, f"kernel of {name}") == f"in {name}"


class TestThreads:
    def test_texts_are_never_twice(self):
        threads = Threads(LaneTable(), limit=9)
        for ident, name in enumerate(("worker (2)", "worker", "worker", "worker")):
            threads.code(ident, name)
        assert threads.texts == ("worker (2)", "worker", "worker (3)", "worker (4)")

    def test_they_are_bounded(self):
        threads = Threads(LaneTable(), limit=3)
        codes = [threads.code(ident, "worker") for ident in range(100)]
        assert threads.texts == ("worker", "worker (2)", OTHER_NAMES)
        assert set(codes[2:]) == {2}
        assert len(threads._codes) <= 3


def test_a_number_that_is_used_again_is_another_thread():
    threads = Threads(LaneTable())
    threads.note(5, "first", 1_000)
    threads.note(5, "second", 2_000)

    codes = threads.codes(np.array([5, 5, 5, 6]), np.array([500, 1_999, 2_000, 0]))

    assert codes[0] == codes[1] != codes[2]
    assert len(set(codes.tolist())) == 3
    assert len(set(threads.lanes(np.array([5, 5]), np.array([0, 3_000])).tolist())) == 2


def test_a_thread_that_has_ended_gives_its_name_to_no_other():
    threads = Threads(LaneTable())
    threads.note(5, "ended", 0)
    threads.look(1_000)

    codes = threads.codes(np.array([5, 5]), np.array([999, 1_000])).tolist()

    assert [threads.texts[code] for code in codes] == ["ended", "thread 5"]
