"""Rows with codes, as the viewer counts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, assign_rows, span_rows
from gpustreamlab.analysis._rows import place_in_slots
from tests.helpers.traces import (
    empty_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    random_trace,
    repartition_trace,
)

TRACES = {
    "empty": empty_trace(), "nested": nested_trace(), "partitions": partition_trace(), "repartition": repartition_trace(),
    "8-partitions": many_partitions_trace(), "100-lanes": random_trace(500, 100),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_spans_are_in_rows_of_their_lane_and_sub_row(trace):
    table, codes = span_rows(trace)
    rows = assign_rows(trace)
    assert table.lane[codes].tolist() == trace.lane.tolist()
    assert table.shelf[codes].tolist() == (rows.row - rows.first_row[trace.lane] if len(trace) else rows.row).tolist()


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_starts_and_ends_of_a_row_are_in_order(trace):
    table, codes = span_rows(trace)
    order = np.lexsort((trace.end_ns, trace.start_ns, codes))
    same = codes[order][1:] == codes[order][:-1]
    assert (np.diff(trace.end_ns[order])[same] >= 0).all()
    assert not table.overlaps.any()


def test_every_lane_has_a_row():
    table, _ = span_rows(random_trace(3, 10))
    assert table.lane.tolist() == list(range(10))


def test_spans_with_fewer_sms_have_lower_rows_in_the_same_sub_row():
    trace = repartition_trace()
    table, codes = span_rows(trace)
    assert table.lane.tolist() == [0, 1, 0, 0, 1, 1]
    assert table.share.tolist() == pytest.approx([1, 1, 64 / 132, 96 / 132, 0.3, 68 / 132])
    assert table.shelf.tolist() == [0] * 6
    assert codes[trace.partition == 0].tolist() == [3] * 4


def test_rows_in_which_spans_are_folded_say_that_they_overlap():
    table, codes = span_rows(make_trace([("a", "x", k, 1_000) for k in range(MAX_LANE_ROWS + 5)] + [("b", "y", 0, 1)]))
    assert np.flatnonzero(table.overlaps).tolist() == [MAX_LANE_ROWS - 1]
    assert table.folded_spans == 5
    assert codes[MAX_LANE_ROWS - 1 : MAX_LANE_ROWS + 5].tolist() == [MAX_LANE_ROWS - 1] * 6


def slots_one_by_one(group, start, end):
    """The lowest slot that is free, tried in order of start."""
    slots, last = [0] * len(group), {}
    for place in sorted(range(len(group)), key=lambda k: (group[k], start[k], -end[k])):
        busy = last.setdefault(group[place], [])
        begins = all(other <= start[place] for other in busy)
        if begins:
            busy.clear()
        slot = next((number for number, other in enumerate(busy) if other <= start[place]), len(busy))
        busy[slot : slot + 1] = [end[place]]
        slots[place] = slot
    return slots


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=30), st.booleans())
@example(intervals=[(0, 0, 2), (0, 0, 2), (0, 1, 2), (0, 2, 1)], is_sorted=False)
@settings(deadline=None)
def test_slots_are_the_lowest_that_are_free(intervals, is_sorted):
    intervals = sorted(intervals, key=lambda item: item[1]) if is_sorted else intervals
    group = np.array([item[0] for item in intervals], np.int32)
    start = np.array([item[1] for item in intervals], np.int64)
    end = start + np.array([item[2] for item in intervals], np.int64)
    assert place_in_slots(group, start, end).tolist() == slots_one_by_one(group.tolist(), start.tolist(), end.tolist())


def test_times_of_years_are_placed_as_others():
    late = 1 << 62
    trace = make_trace([("a", "x", 0, late), ("a", "y", late, late + 5), ("b", "z", 1, 2), ("a", "w", late + 1, late + 3)])
    assert assign_rows(trace).row.tolist() == [0, 0, 2, 1]
