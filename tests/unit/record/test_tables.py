"""The ring of rows and what is kept beside it: counters, details, lanes, windows, launches; how intervals are found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends import StreamFacts
from gpustreamlab.errors import DeviceError, OptionError
from gpustreamlab.model import Lane, WorkDetail
from gpustreamlab.record import ChunkLog, _chunks, _kernel_tier, counters_of, make_samples
from gpustreamlab.record._extents import Intervals, find_innermost
from gpustreamlab.record._kernel_tier import CaptureWindows
from gpustreamlab.record._tables import (
    HOST_LANES,
    OTHER_NAMES,
    OTHER_STREAMS,
    OTHER_THREADS,
    OUTSIDE_LANES,
    LaneTable,
    Markers,
    Threads,
)
from gpustreamlab.record._work import OTHER_DETAIL, DetailTable, Launches, StreamKeys
from gpustreamlab.typing import MarkerKind


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
        launches = Launches(limit=2)
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
        assert launches.find(ints(3, 4, 9)).tolist() == [-1, 0, 1]

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
        threads.look(3_000)
        codes = threads.codes(ints(5, 5, 5, 5, 6), ints(500, 1_999, 2_000, 3_000, 0)).tolist()
        assert [threads.texts[code] for code in codes] == ["first", "first", "second", "thread 5", "thread 6"]
        assert len(set(threads.lanes(ints(5, 5), ints(0, 2_500)).tolist())) == 2


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
