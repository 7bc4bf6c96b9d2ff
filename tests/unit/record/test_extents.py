"""From when to when ranges last by their work: against a plain search, and against the events of the simulated device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.backends.sim._source import SimActivitySource
from gpustreamlab.record._extents import NEVER, WorkExtents
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin


def columns(rows, width):
    return np.array(rows, np.int64).reshape(-1, width).T


def plain_times(numbers, opened_ns, ranges, work):
    """Search all work for each range, call by call."""
    bounds = {number: (lane, opened, closed) for number, lane, opened, closed in ranges}
    whole = {}
    for _, _, start, end, call in work:
        known = whole.get(call, (start, end))
        whole[call] = min(known[0], start), max(known[1], end)
    found = []
    for number, queued in zip(numbers, opened_ns, strict=True):
        lane, opened, closed = bounds[number]
        mine = [whole[call] for where, launch, _, _, call in work if where == lane and opened <= launch <= closed]
        before = [whole[call][1] for where, launch, _, _, call in work if where == lane and launch < opened]
        empty = max([queued, *before])
        found.append((min(start for start, _ in mine), max(end for _, end in mine)) if mine else (empty, empty))
    return found


def make_case(rng):
    """Return nested ranges on two lanes, and work that each lane runs in the order of its launches."""
    ranges, opened, now = [], [], 0
    launches = []
    for number in range(int(rng.integers(1, 25))):
        now += int(rng.integers(1, 5))
        while opened and rng.random() < 0.5:
            ranges.append((*opened.pop(), now))
            now += 1
        opened.append((number, int(rng.integers(0, 2)), now))
        for _ in range(int(rng.integers(0, 4))):
            now += 1
            launches.append((int(rng.integers(0, 2)), now))
    while opened:
        now += 1
        ranges.append((*opened.pop(), now))
    free, work = [0, 0], []
    for call, (lane, launch) in enumerate(launches):
        lanes = (0, 1) if rng.random() < 0.1 else (lane,)  # a graph has work on both
        for one in lanes:
            start = max(free[one], launch) + int(rng.integers(0, 20))
            free[one] = start + int(rng.integers(1, 30))
            work.append((one, launch, start, free[one], call))
    return ranges, work


@pytest.mark.parametrize("seed", range(60))
def test_ranges_are_what_a_plain_search_finds(seed):
    rng = np.random.default_rng(seed)
    ranges, work = make_case(rng)
    extents = WorkExtents()
    # Told of in batches: a call's work comes together, and each lane's in the order of its launches.
    cuts = sorted(rng.integers(0, len(work) + 1, 3).tolist())
    calls = [row[4] for row in work]
    bounds = [0, *(calls.index(calls[cut]) if cut < len(work) else cut for cut in cuts), len(work)]
    for first, last in pairwise(bounds):
        told_until = work[last - 1][1] if last else 0
        known = [(n, lane, begin, end if end < told_until else NEVER) for n, lane, begin, end in ranges if begin <= told_until]
        rows = work[first:last]
        extents.fold(columns(known, 4), columns([rows[place] for place in rng.permutation(len(rows))], 5))
    extents.fold(columns(ranges, 4), columns([], 5))

    numbers = [row[0] for row in ranges]
    opened_ns = [row[2] for row in ranges]
    start, end = extents.times(np.array(numbers), np.array(opened_ns))
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == plain_times(numbers, opened_ns, ranges, work)


class TimingSource(SimActivitySource):
    """A source of the simulated device that times ranges, as CUPTI does: of what has ended everything is told at once."""

    times_ranges = True

    def drain(self, *, is_last=False):
        told = super().drain(is_last=is_last)
        self.seen = getattr(self, "seen", set()) | set(told.calls.thread.tolist())
        told.told_until.update(dict.fromkeys(self.seen, self._driver.clock.now_ns))
        return told


@pytest.fixture
def lab(monkeypatch):
    backend = SimBackend()
    monkeypatch.setattr(backend, "activity_source", lambda: TimingSource(backend.driver))
    with Session(backend, capture="ranges") as session:
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
    monkeypatch.setattr(TimingSource, "lost_reason", "another profiler took over")
    monkeypatch.setattr(TimingSource, "complete_until_host_ns", last_word_ns)
    with pytest.warns(UserWarning, match="another profiler took over"):
        lab._recorder.collect_work()
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
        lab._recorder.collect_work()  # as the thread on the side may, while the stream's work still runs
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
