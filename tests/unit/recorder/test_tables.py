"""What is kept beside the rows: counters, details, lanes, threads, windows, launches, extents, stacks; how they are found."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends import StreamFacts
from gpustreamlab.errors import DeviceError, OptionError
from gpustreamlab.model import Lane, WorkDetail
from gpustreamlab.recorder import ChunkLog, _chunks, _kernel_tier, counters_of, make_samples
from gpustreamlab.recorder._extents import NEVER, Intervals, WorkExtents, find_innermost
from gpustreamlab.recorder._kernel_tier import MOST_NS, CaptureWindows, StackSampler
from gpustreamlab.recorder._tables import (
    HOST_LANES,
    OTHER_NAMES,
    OTHER_STREAMS,
    OTHER_THREADS,
    OUTSIDE_LANES,
    LaneTable,
    Markers,
    Threads,
)
from gpustreamlab.recorder._work import OTHER_DETAIL, DetailTable, Launches, StreamKeys
from gpustreamlab.typing import MarkerKind
from tests.helpers.planted import MS


def ints(*values):
    return np.array(values, np.int64)


class TestCounters:
    def test_the_first_and_the_last_sample_of_a_millisecond_count_however_they_come(self):
        samples = [(100, 0, 1.0), (900_000, 0, 2.0), (1_000_000, 0, 3.0), (5, 1, 7.0), (1_200_000, 0, 3.5), (1_500_000, 0, 4.5)]
        time_ns, lane, value = zip(*samples, strict=True)
        for cut in range(7):
            parts = [
                make_samples(ints(*time_ns[own]), ints(*lane[own]), ints(*[0] * len(time_ns[own])), value[own])
                for own in (slice(cut), slice(cut, None))
            ]
            found = counters_of(np.concatenate(parts, axis=1), ["pool_used_bytes"])

            assert list(zip(found.time_ns.tolist(), found.lane.tolist(), found.value.tolist(), strict=True)) == [
                (5, 1, 7.0),
                (100, 0, 1.0),
                (900_000, 0, 2.0),
                (1_000_000, 0, 3.0),
                (1_500_000, 0, 4.5),
            ]
            assert found.names == ("pool_used_bytes",)

    def test_samples_are_bounded(self, monkeypatch):
        monkeypatch.setattr(_chunks, "KEPT_SAMPLES", 4)
        zeros = np.zeros(100, np.int64)
        told = make_samples(np.arange(100) * 1_000_000, zeros, zeros, np.arange(100.0))
        assert counters_of(told, ["bytes"]).value.tolist() == [96.0, 97.0, 98.0, 99.0]


class TestDetails:
    def test_beyond_the_limit_one_detail_is_shared(self):
        table = DetailTable(limit=3)
        codes = table.codes([WorkDetail(full_name=str(number)) for number in range(5)])
        assert codes.tolist() == [0, 1, 2, 2, 2, -1]
        assert table.all[2] == OTHER_DETAIL
        assert table.starting_at(1) == table.all[1:]

    def test_names_are_bounded_together_and_each(self):
        table = DetailTable(characters=10_000)
        table.codes([WorkDetail(full_name="x" * 65_536), WorkDetail(full_name="y" * 65_536), WorkDetail(full_name="z")])
        shown = [detail.full_name[:1] + detail.full_name[-1:] for detail in table.all]
        assert shown == ["x…", "()", "zz"]


class TestLanes:
    def test_streams_of_others_share_a_lane_beyond_the_limit(self):
        lanes = LaneTable()
        found = {lanes.add_outside(1, number, StreamFacts(f"stream {number}", 132, 0)) for number in range(OUTSIDE_LANES + 9)}
        assert len(found) == OUTSIDE_LANES
        assert lanes.all[-1].name == OTHER_STREAMS
        assert lanes.all[-1].outside

    def test_threads_share_a_lane_beyond_the_limit(self):
        lanes = LaneTable()
        found = {lanes.add_host(number, f"thread {number}") for number in range(HOST_LANES + 9)}
        assert len(found) == HOST_LANES
        assert lanes.all[-1].name == OTHER_THREADS

    def test_names_are_unique_and_never_those_of_the_sessions_streams(self):
        lanes = LaneTable()
        facts = StreamFacts("torch", 132, 0)
        lanes.add_outside(1, 1, facts)
        lanes.add_outside(2, 1, facts)
        own = lanes.add(Lane(name="torch"))
        assert [lane.name for lane in lanes.all] == ["stream torch", "stream torch (2)", "torch"]
        assert lanes.add(Lane(name="torch")) == own


class TestStreamKeys:
    def find(self, keys, *asked):
        context, stream, at_ns = (ints(*column) for column in zip(*asked, strict=True))
        lane, partition = keys.find(context, stream, at_ns, lambda key: 90 + key[1])
        return list(zip(lane.tolist(), partition.tolist(), strict=True))

    def test_a_stream_that_changed_its_place_is_where_it_was_then(self):
        keys = StreamKeys()
        keys.note((1, 7), lane=0, partition=-1, from_ns=100)
        keys.note((1, 7), lane=0, partition=3, from_ns=500)
        keys.note((1, 7), lane=0, partition=3, from_ns=600)
        assert self.find(keys, (1, 7, 5), (1, 7, 499), (1, 7, 500), (1, 7, 10**9)) == [(0, -1), (0, -1), (0, 3), (0, 3)]


class TestWindows:
    def test_an_open_window_ends_now(self):
        windows = CaptureWindows()
        windows.open(5)
        windows.close(9)
        windows.open(20)
        assert windows.until(lambda: 30) == ((5, 9), (20, 30))
        windows.clear()
        assert windows.until(lambda: 30) == ((20, 30),)

    def test_windows_are_bounded(self, monkeypatch):
        monkeypatch.setattr(_kernel_tier, "KEPT_WINDOWS", 2)
        windows = CaptureWindows()
        for number in range(4):
            windows.open(number * 10)
            windows.close(number * 10 + 1)
        assert windows.until(lambda: 0) == ((0, 21), (30, 31))


class TestLaunches:
    def test_calls_are_found_in_any_order_and_the_oldest_are_forgotten(self):
        launches = Launches(limit=1)
        launches.add(ints(9, 3), ints(90, 30), ints(0, 1), ints(-1, 5), ints(90, 30))
        launches.add(ints(4), ints(40), ints(1), ints(6), ints(40))
        found = launches.find(ints(4, 3, 0, 7))
        assert [column.tolist() for column in launches.take(found)] == [
            [40, 30, -1, -1],
            [1, 1, -1, -1],
            [6, 5, -1, -1],
            [40, 30, -1, -1],
        ]
        launches.trim()
        assert launches.find(ints(3, 4, 9)).tolist() == [-1, -1, 0]

    def test_of_two_calls_of_one_number_the_later_counts(self):
        launches = Launches()
        launches.add(ints(7, 7), ints(10, 20), ints(0, 0), ints(1, 2), ints(10, 20))
        launches.add(ints(7), ints(30), ints(0), ints(3), ints(30))
        assert launches.take(launches.find(ints(7, 6, 8)))[2].tolist() == [3, -1, -1]
        launches.clear()
        assert launches.find(ints(7)).tolist() == [-1]


@pytest.mark.parametrize("ring_size", [0, -1, True, 1.5, "10"])
def test_a_ring_of_no_size_is_refused(ring_size):
    with pytest.raises(OptionError, match="ring_size"):
        ChunkLog(ring_size)


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)), max_size=12)
MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), max_size=12)


def plainly(rows, group, at):
    """Of those around the moment the one that started last, and of two such the later one."""
    around = [
        (start, number) for number, (mine, start, width) in enumerate(rows) if mine == group and start <= at < start + width
    ]
    return max(around)[1] if around else -1


@given(ROWS, MOMENTS)
def test_the_one_that_started_last_is_found(rows, moments):
    group, start, width = np.array(rows, np.int64).reshape(-1, 3).T
    asked, at = np.array(moments, np.int64).reshape(-1, 2).T
    found = find_innermost(Intervals(group, start, start + width, np.arange(len(rows))), asked, at)

    assert found.tolist() == [plainly(rows, *moment) for moment in moments]


def test_an_interval_is_not_around_itself():
    nested = Intervals(*np.array([[1, 1, 1], [0, 0, 5], [10, 10, 8], [0, 1, 2]]))
    found = find_innermost(nested, np.array([1, 1, 1]), np.array([0, 0, 5]), itself=np.array([0, 1, 2]))

    assert found.tolist() == [-1, 0, 1]


def test_a_long_row_of_siblings_takes_few_rounds():
    count = 200_000
    start = np.append(0, np.arange(count) * 10)
    end = np.append(count * 10 + 1, start[1:] + 5)
    intervals = Intervals(np.zeros(count + 1, np.int64), start, end, np.arange(count + 1))
    found = find_innermost(intervals, np.zeros(2, np.int64), np.array([count * 10 - 7, count * 10 - 3]))

    assert found.tolist() == [count, 0]


class TestThreads:
    def test_they_are_bounded(self):
        threads = Threads(LaneTable(), limit=3)
        codes = [threads.code(ident, "worker") for ident in range(100)]
        assert threads.texts == ("worker", "worker (2)", OTHER_NAMES)
        assert set(codes[2:]) == {2}

    def test_a_number_that_is_used_again_is_another_thread_and_one_that_has_ended_gives_its_name_to_no_other(self):
        threads = Threads(LaneTable())
        threads.note(5, "first", 1_000)
        threads.note(5, "second", 2_000)
        threads.look(lambda: 3_000)
        codes = threads.codes(ints(5, 5, 5, 5, 6), ints(500, 1_999, 3_000, 3_001, 0)).tolist()
        assert [threads.texts[code] for code in codes] == ["first", "first", "second", "thread 5", "thread 6"]
        assert len(set(threads.lanes(threads.codes(ints(5, 5), ints(0, 2_500))).tolist())) == 2


def test_markers_are_told_once_and_survive_a_device_that_fails():
    markers = Markers(itertools.count().__next__, 0)
    markers.note("late", MarkerKind.MARK, 20)
    markers.note("early", MarkerKind.MARK, 10)

    def until_it_fails(host_ns):
        if host_ns == 30:
            raise DeviceError("lost")
        return host_ns

    assert [marker.text for marker in markers.take(until_it_fails)] == ["late", "early"]
    markers.note("lost", MarkerKind.MARK, 30)
    assert markers.take(until_it_fails) == []
    assert [marker.text for marker in markers.take(int)] == ["lost"]


# From when to when ranges last by their work


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


# Samples of Python stacks


class Clock:
    """Goes on when it is told to."""

    now_ns = 0

    def __call__(self):
        return self.now_ns


def parked(ready, done):
    ready.set()
    done.wait()


@contextmanager
def parked_thread(name="worker"):
    """Keep a thread in `parked`; give its number as calls have it."""
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: parked(ready, done), name=name)
    thread.start()
    ready.wait()
    try:
        yield thread.ident & 0xFFFF_FFFF
    finally:
        done.set()
        thread.join()


def looked(clock, sampler, times_ns):
    for clock.now_ns in times_ns:
        sampler.look()


def test_a_look_names_the_innermost_function_and_lasts_until_the_next_one():
    clock = Clock()
    sampler = StackSampler(clock)
    with parked_thread() as ident:
        looked(clock, sampler, [0, 5 * MS, 5 * MS + 1, 500 * MS])
        clock.now_ns = 501 * MS
        batch = sampler.take({ident})
    assert batch.thread.tolist() == [ident] * 4
    assert batch.start_host_ns.tolist() == [0, 5 * MS, 5 * MS + 1, 500 * MS]
    assert batch.end_host_ns.tolist() == [5 * MS, 5 * MS + 1, 5 * MS + 1 + MOST_NS, 501 * MS]
    ((innermost, whole),) = batch.stacks
    line = parked.__code__.co_firstlineno
    assert innermost == f"parked (test_tables.py:{line})"
    assert [text.partition(" ")[0] for text in whole.split(" > ")] == ["<lambda>", "parked"], "from the outermost on"


def test_a_thread_is_told_of_as_soon_as_it_has_launched():
    clock = Clock()
    sampler = StackSampler(clock)
    with parked_thread() as ident, parked_thread("gpustreamlab helper") as helper:
        looked(clock, sampler, [0, MS])
        assert not len(sampler.take({ident + 1}).thread), "what was seen of a thread that is off goes when nobody looks"
        sampler._updater = object()  # as if it looked
        looked(clock, sampler, [2 * MS, 3 * MS])
        assert not len(sampler.take(()).thread)
        looked(clock, sampler, [4 * MS])
        batch = sampler.take({ident, helper})
        assert batch.start_host_ns.tolist() == [2 * MS, 3 * MS], "the last one lasts until the next"
        assert set(batch.thread.tolist()) == {ident}, "threads of the package are none of the user's"


def test_looks_that_are_not_taken_in_time_are_counted(monkeypatch):
    monkeypatch.setattr(_kernel_tier, "KEPT_LOOKS", 3)
    clock = Clock()
    sampler = StackSampler(clock)
    with parked_thread() as ident:
        looked(clock, sampler, range(5))
        assert sampler.take({ident}).start_host_ns.tolist() == [2, 3, 4]
        assert sampler.dropped_count == 0, "nobody knew that it would launch"
        looked(clock, sampler, range(5, 10))
        assert sampler.take({ident}).start_host_ns.tolist() == [7, 8, 9]
    assert sampler.dropped_count == 2


def test_a_stack_is_cut_at_its_outer_end():
    sampler = StackSampler(Clock())
    looker = threading.Thread(target=sampler.look)

    def wait_deep(depth):
        if depth:
            return wait_deep(depth - 1)
        looker.start()
        return looker.join()

    wait_deep(50)
    (stack,) = sampler.take({threading.get_ident() & 0xFFFF_FFFF}).stacks
    assert [text.partition(" ")[0] for text in stack[1].split(" > ")] == ["wait_deep"] * _kernel_tier.MAX_FRAMES
