"""From when to when ranges last by their work: against the events of the simulated device."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin


class Timing:
    """What makes a source of the simulated device time ranges, as CUPTI does: of what has ended everything is told at once."""

    times_ranges = True
    lost_reason = ""

    def drain(self, *, is_last=False):
        told = super().drain(is_last=is_last)
        self.seen = getattr(self, "seen", set()) | set(told.calls.thread.tolist())
        told.told_until.update(dict.fromkeys(self.seen, self.complete_until_host_ns))
        return told


class TimingBackend(SimBackend):
    def activity_source(self):
        self.source = super().activity_source()
        self.source.__class__ = type("TimingSource", (Timing, type(self.source)), {})
        return self.source


@pytest.fixture
def lab():
    with Session(TimingBackend(), capture="ranges") as session:
        session.stream("a")
        session.stream("b")
        yield session


def rows(trace, kind):
    frame = trace.to_pandas()
    return [*frame[frame.kind.astype(str) == kind.value].itertuples()]


def ranges_of(lab):
    return {span.name: (span.start_ns, span.end_ns) for span in rows(lab.trace, SpanKind.RANGE)}


def test_a_range_lasts_from_the_first_start_to_the_last_end_of_its_work(lab):
    with lab.capture("kernels"):
        with lab.on("a", "outer"):
            spin(lab, 30_000)
            with lab.on("b", "aside"):
                spin(lab, 200_000)
            with lab.range("inner"):
                spin(lab, 40_000)
            with lab.range("empty"):
                pass
        lab.synchronize()
    kernels = sorted((span.lane, span.start_ns, span.end_ns) for span in rows(lab.trace, SpanKind.KERNEL))
    (_, first, _), (_, second, second_end), (_, aside, aside_end) = kernels
    assert ranges_of(lab) == {
        "outer": (first, second_end),
        "inner": (second, second_end),
        "aside": (aside, aside_end),
        "empty": (second_end, second_end),
    }
    assert {span.correlation for span in rows(lab.trace, SpanKind.RANGE)} == {-1}


def test_ranges_come_when_their_work_has_ended_and_not_before(lab):
    with lab.capture("kernels"):
        with lab.on("a", "short"):
            spin(lab, 10_000)
        with lab.on("b", "long"):
            spin(lab, 900_000_000)
        lab.stream("a").synchronize()
        assert set(ranges_of(lab)) == {"short"}
        assert lab.trace.metadata.pending_spans == 1
        lab.stream("b").synchronize()
        assert set(ranges_of(lab)) == {"short", "long"}


def test_they_put_no_event_on_the_stream(lab, monkeypatch):
    with lab.capture("kernels"):
        monkeypatch.setattr(lab._recorder, "new_pair", lambda: pytest.fail("an event"))
        lab._recorder.in_flight.take_idle_pairs()
        with lab.on("a", "outer"), lab.range("inner"):
            spin(lab, 1_000)
        opened = lab.recording.start_range("a", "handed over")
        with lab.select("a"):
            spin(lab, 1_000)
        opened.end()
        lab.synchronize()
    assert set(ranges_of(lab)) == {"outer", "inner", "handed over"}
    assert (lab.trace.metadata.pending_spans, lab.trace.metadata.dropped_spans) == (0, 0)


def test_ranges_closed_after_the_last_word_of_a_lost_source_are_dropped_and_counted(lab, monkeypatch):
    lab.capture("kernels")
    with lab.on("a", "before"):
        spin(lab, 10_000)
    lab.synchronize()
    assert set(ranges_of(lab)) == {"before"}
    last_word_ns = lab._backend.host_time_ns()
    with lab.on("a", "after"):
        spin(lab, 10_000)
    source = type(lab._backend.source)
    monkeypatch.setattr(source, "lost_reason", "another profiler took over")
    monkeypatch.setattr(source, "complete_until_host_ns", last_word_ns, raising=False)
    with pytest.warns(UserWarning, match="another profiler took over"):
        lab._recorder.kernels.take(is_complete=False)
    assert not lab._recorder.is_timed_by_work
    with lab.on("a", "by events"):
        spin(lab, 10_000)
    lab.synchronize()
    assert set(ranges_of(lab)) == {"before", "by events"}
    assert lab.trace.metadata.dropped_spans == 1


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_range_that_is_open_when_recording_ends_has_an_event_at_its_end(lab, is_handed_over):
    capture = lab.capture("kernels")
    with lab.select("a"):
        if is_handed_over:
            opened = lab.recording.start_range("a", "across")
            end = opened.end
        else:
            opened = lab.range("across")
            opened.__enter__()

            def end():
                opened.__exit__(None, None, None)

        spin(lab, 10_000)
        capture.stop()
        spin(lab, 500_000)
        end()
    lab.synchronize()
    (kernel,) = rows(lab.trace, SpanKind.KERNEL)
    start_ns, end_ns = ranges_of(lab)["across"]
    assert start_ns == kernel.start_ns
    assert end_ns >= kernel.end_ns + 500_000
    assert lab.trace.metadata.dropped_spans == 0


def test_a_range_on_a_stream_that_is_being_closed_is_whole(lab, monkeypatch):
    backend_stream = lab.stream("a")._backend_stream
    wait = backend_stream.synchronize

    def look_and_wait():
        lab._recorder.kernels.take(is_complete=False)  # as the thread on the side may, while the stream's work still runs
        wait()

    with lab.capture("kernels"):
        with lab.on("a", "long"):
            spin(lab, 50_000_000)
        monkeypatch.setattr(type(backend_stream), "synchronize", lambda stream: look_and_wait())
        lab.stream("a").close()
        monkeypatch.undo()
        lab.synchronize()
        start_ns, end_ns = ranges_of(lab)["long"]
    assert end_ns - start_ns == 50_000_000
