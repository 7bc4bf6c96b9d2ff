"""Overlap: small traces by hand, then properties against a brute-force count."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import _busy, overlap
from gpustreamlab.model import Lane
from tests.helpers.traces import empty_trace, make_trace, random_trace

LANES = tuple(Lane(name=f"s{number}", stream=number) for number in range(40))


def test_two_lanes_by_hand():
    result = overlap(make_trace([("a", "x", 0, 100), ("b", "y", 40, 300)]))
    assert result.busy_ns.tolist() == [100, 260]
    assert result.common_ns.tolist() == [[100, 60], [60, 260]]
    assert result.concurrency_ns.tolist() == [0, 240, 60]
    assert (result.wall_ns, result.active_ns, result.sum_ns, result.ideal_ns) == (300, 300, 360, 260)
    assert result.mean_concurrency == 1.2
    assert result.max_concurrency == 360 / 260
    assert result.common_share.tolist() == [[1.0, 0.6], [0.6, 1.0]]


def test_empty_trace_has_no_busy_time_and_no_concurrency():
    result = overlap(empty_trace())
    assert (result.wall_ns, result.sum_ns, result.concurrency_ns.tolist()) == (0, 0, [0])
    assert math.isnan(result.mean_concurrency)
    assert math.isnan(result.max_concurrency)


def test_spans_of_no_length_widen_the_wall_only():
    result = overlap(make_trace([("a", "x", 5, 5), ("a", "x", 10, 20), ("b", "x", 50, 50)]))
    assert result.busy_ns.tolist() == [10, 0]
    assert result.wall_ns == 45
    assert np.isnan(result.common_share[0, 1])


def test_to_pandas_has_a_row_for_each_ordered_pair():
    frame = overlap(make_trace([("a", "x", 0, 100), ("b", "y", 40, 300)])).to_pandas()
    assert frame.columns.tolist() == ["stream", "other", "common_ns", "common_share"]
    assert frame.pivot(index="stream", columns="other", values="common_ns").to_numpy().tolist() == [[100, 60], [60, 260]]


def test_times_that_are_years_apart_are_exact():
    result = overlap(make_trace([("a", "x", 0, 7), ("b", "x", 5, 1 << 61), ("b", "x", (1 << 61) + 2, 1 << 62)]))
    assert result.common_ns.tolist() == [[7, 2], [2, (1 << 62) - 7]]
    assert result.concurrency_ns.tolist() == [2, (1 << 62) - 4, 2]


def test_sums_are_exact_beyond_what_floats_hold():
    far_ns = (1 << 57) + 1
    result = overlap(make_trace([("a", "x", 0, far_ns), ("b", "y", 1, far_ns)]))
    assert result.busy_ns.tolist() == [far_ns, far_ns - 1]
    assert result.common_ns[0, 1] == far_ns - 1


@st.composite
def traces(draw, max_lanes=5):
    lane_count = draw(st.integers(1, max_lanes))
    count = draw(st.integers(0, 30))
    spans = []
    for _ in range(count):
        start = draw(st.integers(-20, 60))
        spans.append((f"s{draw(st.integers(0, lane_count - 1))}", "x", start, start + draw(st.integers(0, 25))))
    return make_trace(spans, lanes=LANES[:lane_count])


def brute_force(trace):
    """Count the lanes that are busy in each nanosecond."""
    if not len(trace):
        return np.zeros((len(trace.lanes), 0), bool)
    first, last = int(trace.start_ns.min()), int(trace.end_ns.max())
    busy = np.zeros((len(trace.lanes), last - first), bool)
    for start, end, lane in zip(trace.start_ns.tolist(), trace.end_ns.tolist(), trace.lane.tolist(), strict=True):
        busy[lane, start - first : end - first] = True
    return busy


def assert_matches_brute_force(trace):
    busy, result = brute_force(trace), overlap(trace)
    counts = busy.astype(np.int64)
    assert np.array_equal(result.common_ns, counts @ counts.T)
    assert np.array_equal(result.concurrency_ns, np.bincount(counts.sum(axis=0), minlength=len(trace.lanes) + 1))
    assert np.array_equal(result.busy_ns, np.diagonal(result.common_ns))
    assert result.wall_ns == busy.shape[1]


@given(traces() | traces(max_lanes=40))  # in any order, nested, repeated, touching, and lanes without spans
def test_overlap_is_what_counting_every_nanosecond_gives(trace):
    assert_matches_brute_force(trace)


@given(traces(), st.integers(2, 6))
def test_overlap_does_not_depend_on_the_windows_of_the_sweep(trace, window_edges):
    original = _busy.WINDOW_EDGES
    _busy.WINDOW_EDGES = window_edges
    try:
        assert_matches_brute_force(trace)
    finally:
        _busy.WINDOW_EDGES = original


def test_threads_give_what_one_thread_gives(monkeypatch):
    trace = random_trace(3_000, 20)
    alone = overlap(trace)
    monkeypatch.setattr("gpustreamlab.analysis._busy.THREADED_ROWS", 1)
    monkeypatch.setattr("gpustreamlab.analysis._busy.WINDOW_EDGES", 64)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    threaded = overlap(trace)
    assert np.array_equal(alone.common_ns, threaded.common_ns)
    assert np.array_equal(alone.concurrency_ns, threaded.concurrency_ns)
    assert alone.concurrency_ns.sum() == alone.wall_ns


def test_streams_of_others_on_which_nothing_ran_are_left_out():
    lanes = (Lane(name="a", stream=1), Lane(name="b", stream=2), Lane(name="default stream", stream=0, outside=True))
    assert [lane.name for lane in overlap(make_trace([("a", "gemm", 0, 9)], lanes=lanes)).lanes] == ["a", "b"]
    busy = make_trace([("a", "gemm", 0, 9), ("default stream", "gemm", 0, 9)], lanes=lanes)
    assert [lane.name for lane in overlap(busy).lanes] == ["a", "b", "default stream"]
