"""Sub-rows: nothing hides anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, assign_rows
from gpustreamlab.model import Lane
from tests.helpers.traces import empty_trace, make_trace, nested_trace, random_trace


def test_spans_that_follow_each_other_share_a_row():
    rows = assign_rows(make_trace([("a", "x", 0, 10), ("a", "y", 10, 20), ("b", "z", 5, 15)]))
    assert rows.row.tolist() == [0, 0, 1]
    assert (rows.first_row.tolist(), rows.row_count.tolist(), rows.total) == ([0, 1], [1, 1], 2)


def test_nested_ranges_go_one_row_down_each():
    rows = assign_rows(nested_trace())
    step, forward, gemm, softmax, backward, gemm_again = rows.row.tolist()[:6]
    assert (step, forward, backward) == (0, 1, 1)
    assert (gemm, softmax, gemm_again) == (2, 2, 2)


def test_two_threads_in_one_lane_get_a_block_of_rows_each():
    spans = [
        ("side", "worker A", 10, 70, {"thread": 1}),
        ("side", "copy", 20, 40, {"thread": 1, "parent": 0}),
        ("side", "worker B", 30, 90, {"thread": 2}),
        ("side", "fill", 50, 80, {"thread": 2, "parent": 2}),
    ]
    assert assign_rows(make_trace(spans, threads=("a", "b", "c"))).row.tolist() == [0, 1, 2, 3]


def test_work_lies_below_all_ranges_of_its_lane_however_deep_they_are():
    rows = assign_rows(nested_trace())
    worker_a, copy, worker_b, fill = rows.row.tolist()[6:10]
    assert (worker_a, worker_b, copy) == (3, 4, 5)
    assert fill == copy  # the copy ends before the fill starts
    assert rows.layer.tolist() == [0, 0, 1, 0, 0, 1]


def test_range_nested_through_another_lane_is_below_its_ancestor():
    spans = [("a", "outer", 0, 100), ("b", "middle", 10, 90, {"parent": 0}), ("a", "inner", 20, 80, {"parent": 1})]
    rows = assign_rows(make_trace(spans))
    assert rows.row.tolist() == [0, 2, 1]


def test_overlap_within_the_stated_error_is_no_overlap():
    spans = [("a", "x", 0, 105), ("a", "y", 100, 200)]
    assert assign_rows(make_trace(spans)).total == 2
    assert assign_rows(make_trace(spans, range_error_ns=5)).total == 1


def test_span_that_would_be_covered_gets_a_row_even_within_the_error():
    assert assign_rows(make_trace([("a", "x", 0, 105), ("a", "y", 101, 104)], range_error_ns=5)).total == 2


def test_lane_without_spans_keeps_one_row():
    rows = assign_rows(
        make_trace([("b", "x", 0, 1)], lanes=(Lane(name="a", stream=1), Lane(name="b", stream=2), Lane(name="c", stream=3)))
    )
    assert rows.row_count.tolist() == [1, 1, 1]
    assert rows.row.tolist() == [1]


def test_empty_trace_has_no_rows():
    assert assign_rows(empty_trace()).total == 0


def test_more_rows_than_a_lane_may_have_are_folded_and_counted():
    rows = assign_rows(make_trace([("a", "x", k, 1_000) for k in range(MAX_LANE_ROWS + 5)]))
    assert rows.total == MAX_LANE_ROWS
    assert rows.folded_spans == 5


def test_parents_in_a_circle_do_not_hang():
    spans = [("a", "x", 0, 10, {"parent": 1}), ("a", "y", 0, 10, {"parent": 0}), ("b", "z", 0, 1, {"parent": 0})]
    assert assign_rows(make_trace(spans)).total >= 3


@st.composite
def crowded(draw):
    spans = []
    for _ in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 40))
        spans.append((draw(st.sampled_from("ab")), "x", start, start + draw(st.integers(1, 20))))
    return make_trace(spans)


@given(crowded())
@settings(deadline=None)
def test_no_two_spans_of_a_row_overlap_and_no_row_is_wasted(trace):
    rows = assign_rows(trace)
    for row in range(rows.total):
        members = np.flatnonzero(rows.row == row)
        order = members[np.argsort(trace.start_ns[members])]
        assert (trace.start_ns[order][1:] >= trace.end_ns[order][:-1]).all()
        assert len(members)
    for lane in range(len(trace.lanes)):
        mine = trace.lane == lane
        most = max(int(((trace.start_ns[mine] <= t) & (t < trace.end_ns[mine])).sum()) for t in trace.start_ns[mine].tolist())
        assert rows.row_count[lane] == most


@st.composite
def nested(draw):
    """Ranges that nest as a program's do: each within its parent, brothers one after the other."""
    spans = []

    def grow(start, end, parent, depth):
        while end - start > 2 and draw(st.booleans()):
            first = draw(st.integers(start, end - 2))
            last = draw(st.integers(first + 1, end))
            spans.append(("a", "x", first, last, {"parent": parent, "depth": depth}))
            if depth < 4:
                grow(first, last, len(spans) - 1, depth + 1)
            start = last

    grow(0, 60, -1, 0)
    return spans


@given(nested())
@settings(deadline=None)
def test_row_of_a_nested_range_is_its_depth(spans):
    rows = assign_rows(make_trace(spans, lanes=(Lane(name="a"),)))
    assert rows.row.tolist() == [span[4]["depth"] for span in spans]


@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
def test_many_spans_need_one_row_a_lane(shuffle):
    trace = random_trace(20_000, 8)
    assert assign_rows(trace).row_count.tolist() == [1] * 8
    if shuffle:
        order = np.random.default_rng(0).permutation(len(trace))
        spans = [(f"stream {trace.lane[k]}", "x", int(trace.start_ns[k]), int(trace.end_ns[k])) for k in order[:2_000]]
        assert assign_rows(make_trace(spans)).row_count.max() == 1
