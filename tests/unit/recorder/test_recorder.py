"""Ranges from opening to trace, on a backend whose device is played by the test."""

import logging
import threading

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends import RangeTimes
from gpustreamlab.errors import DeviceError, StickyDeviceError
from tests.helpers.instant_backend import InstantBackend, InstantStream


class PlayedStream(InstantStream):
    """Records events in order; they happen when the test says so."""

    def __init__(self, backend, number):
        super().__init__(backend, number)
        self.record = self.record_raw = self._record

    def _record(self, event):
        if self.backend.is_broken:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        self.backend.recorded.append(event)
        event["at_ns"] = len(self.backend.recorded) * 1_000

    def synchronize(self):
        self.backend.synchronize()


class PlayedBackend(InstantBackend):
    """A device of which the test decides how far it has come."""

    def __init__(self):
        super().__init__()
        self.done_count, self.is_broken, self.now_ns = 0, False, 0
        self.ticks, self.pushed = [], []
        self.push_range, self.pop_range = self.pushed.append, lambda: self.pushed.append("pop")

    def create_stream(self, *, priority):
        return PlayedStream(self, next(self._numbers))

    def acquire_event(self):
        super().acquire_event()
        return {}

    def is_event_done(self, event):
        if self.is_broken:
            raise StickyDeviceError("lost")
        return event["at_ns"] <= self.done_count * 1_000

    def synchronize(self):
        self.done_count = len(self.recorded)

    def host_time_ns(self):
        self.now_ns += 10
        return self.now_ns

    def tick(self, now_ns):
        self.ticks.append(now_ns)
        return now_ns + 1_000

    def resolve(self, starts, ends, queued_host_ns):
        times = [np.array([event["at_ns"] for event in events], np.int64) for events in (starts, ends)]
        return RangeTimes(*times, queued_host_ns)

    def map_error(self, error, doing):
        return DeviceError(f"{doing} failed: {error}")


@pytest.fixture
def backend():
    return PlayedBackend()


@pytest.fixture
def lab(backend):
    session = Session(backend)
    session.stream("a")
    yield session
    backend.is_broken = False
    session.close()


def names(trace):
    return [trace.names[code] for code in trace.name]


def test_only_ranges_whose_work_has_ended_are_in_the_trace(lab, backend):
    for label in "xyz":
        with lab.on("a", label):
            pass
    for done_count, expected in ((0, []), (1, []), (2, ["x"]), (5, ["x", "y"]), (6, ["x", "y", "z"])):
        backend.done_count = done_count
        assert names(lab.trace) == expected
        assert lab.trace.metadata.pending_spans == 3 - len(expected)


def test_what_the_device_does_not_get_done_is_dropped_and_counted(backend, monkeypatch):
    monkeypatch.setattr("gpustreamlab.recorder._in_flight.PENDING_LIMIT", 5)
    with Session(backend) as lab:
        lab.stream("a")
        for number in range(8):
            with lab.on("a", f"n{number}"):
                pass
        backend.synchronize()
        assert names(lab.trace) == ["n0", "n1", "n2", "n3", "n4"]
        assert lab.trace.metadata.dropped_spans == 3


def test_the_clock_ticks_when_it_is_due_only(lab, backend):
    for _ in range(300):
        with lab.on("a"):
            pass
    assert len(backend.ticks) < 30
    assert np.diff(backend.ticks).min() >= 1_000


def test_a_users_error_passes_through_a_stream_that_has_failed_too(lab, backend, caplog):
    caplog.set_level(logging.WARNING)

    def fail():
        with lab.on("a", "bad"):
            backend.is_broken = True
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "bad" in caplog.text
    assert lab.trace.metadata.dropped_spans == 1
    assert lab.current is None


def test_a_failing_stream_is_told_with_the_range_and_the_stream(lab, backend):
    with pytest.raises(DeviceError, match=r"range 'bad' on stream 'a' failed: CUDA_ERROR_ILLEGAL"), lab.on("a", "bad"):
        backend.is_broken = True
    assert lab.current is None
    with pytest.raises(DeviceError, match="Recording range 'x'"), lab.on("a", "x"):
        raise AssertionError("the block of a range that did not open ran")
    assert lab.current is None


def test_a_lost_device_keeps_the_trace_so_far(lab, backend):
    with lab.on("a", "kept"):
        pass
    backend.synchronize()
    assert names(lab.trace) == ["kept"]
    with lab.on("a", "lost"):
        pass
    backend.is_broken = True
    assert names(lab.trace) == ["kept"]
    assert lab.trace.metadata.pending_spans == 1


def test_a_range_lies_inside_its_parent_whatever_the_correction_of_times_says(lab, backend, monkeypatch):
    with lab.on("a", "outer"), lab.range("inner"):
        pass
    backend.synchronize()
    start_ns, end_ns = np.array([50, 10]), np.array([95, 90])
    monkeypatch.setattr(backend, "resolve", lambda *_: RangeTimes(start_ns, end_ns, start_ns))
    trace = lab.trace
    assert list(zip(names(trace), trace.start_ns.tolist(), trace.end_ns.tolist(), strict=True)) == [
        ("outer", 10, 90),
        ("inner", 50, 90),
    ]


def test_writers_of_ended_threads_go_away(lab, backend):
    def work():
        with lab.on("a"):
            pass

    for _ in range(50):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        backend.synchronize()
        lab.trace  # noqa: B018 - collects
    assert len(lab.streams["a"]._recorded.writers) <= 1
