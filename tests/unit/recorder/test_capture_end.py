"""The end of a capture: work that ends later, ranges that are collected meanwhile, and a source that was lost."""

from __future__ import annotations

import threading

import pytest

from gpustreamlab import Session
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import CaptureTier, SpanKind
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend

LONG_NS = 50_000_000


class SlowSource(FakeActivitySource):
    """Keeps what has not been called complete yet, as CUPTI does: only the last drain takes it, and drops it."""

    def __init__(self):
        super().__init__()
        self.late = []
        self.on_start = self.on_stop = lambda: None

    def push_late(self, *times, **work):
        """Feed work that has begun, and ends at `complete`."""
        self.late.append((times, work))

    def complete(self):
        """Let what has begun end."""
        late, self.late = self.late, []
        for times, work in late:
            self.push_work(*times, **work)

    def start(self):
        super().start()
        self.on_start()

    def stop(self):
        super().stop()
        self.on_stop()

    def drain(self, *, is_last=False):
        if is_last:
            self.dropped_count += len(self.late)
            self.late = []
        return super().drain(is_last=is_last)


@pytest.fixture
def source():
    return SlowSource()


@pytest.fixture
def lab(source):
    with Session(FakeSourceBackend(source), capture="ranges") as session:
        session.stream("a")
        yield session


def parents(trace):
    """Return the name of the range around each kernel, by the kernel's name."""
    kernels = [row for row in range(len(trace)) if SPAN_KINDS[trace.kind[row]] is SpanKind.KERNEL]
    names = [*(trace.names[code] for code in trace.name), None]
    return {names[row]: names[trace.parent[row]] for row in kernels}


def launch(lab, source, name, correlation=5):
    """Feed a call of now, and let the kernel that it launched run on."""
    now_ns = lab._backend.host_time_ns()
    source.push_call(now_ns, now_ns + 1, correlation=correlation)
    source.push_late(now_ns + 10, now_ns + LONG_NS, stream=lab.stream("a")._backend_stream, name=name, correlation=correlation)
    lab._backend.host_time_ns()


# Work that ends later


def test_work_that_ends_after_the_capture_is_in_the_trace_after_synchronize():
    with Session("sim", capture="ranges") as lab:
        stream = lab.stream("a")
        with lab.capture("kernels"), lab.on("a", "step"):
            lab._backend.launch_spin(stream._backend_stream, LONG_NS, blocks=8, fill_sms=True)
        assert lab.recording.tier is CaptureTier.RANGES
        assert parents(lab.trace) == {}
        lab.synchronize()
        assert parents(lab.trace) == {"spin": "step"}
        assert lab.trace.metadata.dropped_records == 0


def test_work_that_a_source_tells_of_late_keeps_its_range(lab, source):
    with lab.on("a", "step"), lab.capture("kernels"):
        launch(lab, source, "late")
    assert parents(lab.trace) == {}
    source.complete()
    assert parents(lab.trace) == {"late": "step"}
    assert lab.trace.metadata.dropped_records == 0


def test_calls_that_a_source_tells_of_late_are_in_ranges_that_were_closed_after_the_capture(lab, source):
    with lab.on("a", "step"):
        with lab.capture("kernels"):
            called_ns = lab._backend.host_time_ns()
        lab._backend.host_time_ns()
    lab._backend.synchronize()
    lab._recorder.collect()
    source.push_launch(called_ns, called_ns + 10, called_ns + 20, correlation=5, stream=0, name="late")
    assert parents(lab.trace) == {"late": "step"}


def test_synchronize_takes_the_rest_and_then_nothing_is_kept_for_late_work(lab, source):
    recorder = lab._recorder
    with lab.capture("kernels"), lab.on("a", "step"):
        launch(lab, source, "late")
    assert source.history[-1] == "drain"
    assert recorder.kernels.is_awaiting_work
    lab._backend.synchronize()
    source.complete()
    lab.synchronize()

    assert source.history[-1] == "last drain"
    assert parents(lab.trace) == {"late": "step"}
    assert not recorder.kernels.is_awaiting_work
    with lab.on("a", "not captured"):
        pass
    lab.synchronize()
    assert source.history.count("last drain") == 1
    assert len(recorder.in_flight._closed) == len(recorder.kernels._reader._launches) == 0


def test_a_capture_that_begins_before_the_last_ones_work_has_ended_loses_nothing(lab, source):
    with lab.capture("kernels"), lab.on("a", "first"):
        launch(lab, source, "one", correlation=1)
    with lab.capture("kernels"), lab.on("a", "second"):
        launch(lab, source, "two", correlation=2)
    source.complete()
    lab.synchronize()
    assert parents(lab.trace) == {"one": "first", "two": "second"}


# Ranges that are collected meanwhile


@pytest.mark.parametrize("when", ["on_start", "on_stop"])
def test_a_range_that_is_collected_while_the_source_starts_or_stops_keeps_its_work(lab, source, when):
    def run_step():
        with lab.on("a", "step"):
            now_ns = lab._backend.host_time_ns()
            source.push_launch(now_ns, now_ns + 10, now_ns + 20, correlation=5, stream=0, name="kernel")
            lab._backend.host_time_ns()
        lab._backend.synchronize()
        lab._recorder.collect()

    def run_step_elsewhere():
        setattr(source, when, lambda: None)
        thread = threading.Thread(target=run_step)  # in this thread the clock stands while it is looked at
        thread.start()
        thread.join()

    setattr(source, when, run_step_elsewhere)
    with lab.capture("kernels"):
        pass
    assert parents(lab.trace) == {"kernel": "step"}


# A source that was lost


def test_a_window_ends_when_the_source_was_lost_not_when_that_is_found(lab, source):
    lab._recorder.start_capture(source)
    host_ns = lab._backend.host_time_ns()
    source.lose_client(complete_until_host_ns=host_ns)
    with lab.on("a", "unseen"):
        lab._backend.launch_spin(lab.stream("a")._backend_stream, LONG_NS, blocks=8, fill_sms=True)
    lab.synchronize()
    ((_, end_ns),) = lab.trace.metadata.capture_windows

    assert end_ns == lab._backend.host_to_clock_ns(host_ns) < lab._recorder.now_ns() - LONG_NS
    assert lab.trace.utilization().busy_ns.tolist() == [pytest.approx(LONG_NS, rel=0.01)]
