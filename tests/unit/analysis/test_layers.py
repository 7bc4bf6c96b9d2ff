"""Rows of the kernel tier: ranges above, work and calls below."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, Layer, RowTable, assign_rows, span_rows
from gpustreamlab.analysis._regions import LAYER_OF_LEVEL, LEVEL_OF_KIND, LEVEL_TOLERANCE_NS
from gpustreamlab.analysis._rows import _first_fit, _nested_slots, place_in_slots
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import LaneKind, SpanKind
from tests.helpers.kernel_traces import kernel_trace, random_kernel_trace
from tests.helpers.traces import make_kernel_trace

HOST = "host: MainThread"


def rows_of(*spans):
    rows = assign_rows(make_kernel_trace(spans))
    return rows.row.tolist(), rows.layer.tolist()


def test_every_kind_has_a_level():
    layers = {kind: Layer(LAYER_OF_LEVEL[LEVEL_OF_KIND[code]]) for code, kind in enumerate(SPAN_KINDS)}
    assert [kind for kind, layer in layers.items() if layer is Layer.WORK] == [
        SpanKind.KERNEL,
        SpanKind.COPY,
        SpanKind.FILL,
        SpanKind.HOST,
    ]


def test_kernels_follow_each_other_in_one_row_whatever_encloses_them():
    row, layer = rows_of(
        ("a", "step", 0, 1_000, {"kind": "range"}),
        ("a", "inner", 100, 900, {"kind": "range", "parent": 0}),
        ("a", "k", 200, 300, {"parent": 1}),
        ("a", "k", 300, 400, {"parent": 0}),
        ("a", "copy", 2_000, 2_100, {"kind": "copy"}),
        ("b", "k", 0, 5_000),
    )
    assert row == [0, 1, 2, 2, 2, 3]
    assert layer == [0, 0, 1, 1]


def test_a_lane_with_work_only_has_no_row_for_ranges():
    assert rows_of(("a", "k", 0, 10), ("a", "k", 20, 30)) == ([0, 0], [1])


def test_kernels_of_a_graph_that_run_at_once_lie_below_each_other():
    row, layer = rows_of(("a", "x", 0, 1_000), ("a", "y", 200, 800), ("a", "z", 1_000, 1_500))
    assert (row, layer) == ([0, 1, 0], [1, 1])


def test_work_that_overlaps_by_less_than_any_clock_can_tell_follows():
    assert rows_of(("a", "x", 0, 1_000), ("a", "y", 1_000 - LEVEL_TOLERANCE_NS, 2_000))[0] == [0, 0]
    assert rows_of(("a", "x", 0, 1_000), ("a", "y", 999 - LEVEL_TOLERANCE_NS, 2_000))[0] == [0, 1]


def test_ranges_of_others_nest_by_time_and_calls_lie_below_them():
    row, layer = rows_of(
        (HOST, "cudf: join", 0, 1_000, {"kind": "annotation"}),
        (HOST, "cudf: probe", 200, 800, {"kind": "annotation", "parent": 0}),
        (HOST, "cudaLaunchKernel", 300, 400, {"kind": "host", "parent": 1}),
        (HOST, "cudaGraphLaunch", 1_500, 2_500, {"kind": "host"}),
        (HOST, "cuLaunchKernel", 1_600, 2_000, {"kind": "host"}),
        (HOST, "cudf: sort", 2_000, 2_500, {"kind": "annotation"}),
    )
    assert row == [0, 1, 2, 2, 3, 0]
    assert layer == [0, 0, 1, 1]


def test_a_range_within_an_annotation_of_another_lane_is_outermost_in_its_own():
    row, _ = rows_of(
        (HOST, "cudf: join", 0, 1_000, {"kind": "annotation"}),
        ("a", "outer", 0, 1_000, {"kind": "range"}),
        ("a", "inner", 100, 900, {"kind": "range", "parent": 3}),
        (HOST, "cudf: probe", 50, 950, {"kind": "annotation", "parent": 1}),
    )
    assert row == [0, 2, 3, 1]


def test_parents_that_point_in_a_circle_through_lanes_end():
    row, _ = rows_of(
        ("a", "x", 0, 100, {"kind": "range", "parent": 1}),
        ("b", "y", 0, 100, {"kind": "range", "parent": 2}),
        ("b", "z", 0, 100, {"kind": "annotation", "parent": 1}),
    )
    assert len(row) == 3


def test_each_level_folds_on_its_own():
    spans = [("a", "x", k, 10_000, {"kind": "range"}) for k in range(MAX_LANE_ROWS + 3)]
    spans += [("a", "k", 20_000 + k, 20_001 + k) for k in range(3)]
    table, codes = span_rows(make_kernel_trace(spans))
    assert table.folded_spans == 3
    assert table.overlaps.tolist() == [*[False] * (MAX_LANE_ROWS - 1), True, False]
    assert codes[-1] == MAX_LANE_ROWS


def test_the_table_says_which_layer_a_row_is():
    trace = kernel_trace()
    table, codes = span_rows(trace)
    expected = [int(trace.kind[row] not in (0, SPAN_KINDS.index(SpanKind.ANNOTATION))) for row in range(len(trace))]
    assert table.layer[codes].tolist() == expected
    assert table.lane[codes].tolist() == trace.lane.tolist()


def test_a_table_without_layers_is_of_ranges():
    one = np.zeros(2, np.int64)
    table = RowTable(lane=one, shelf=one, share=one + 1.0, overlaps=one > 0)
    assert table.layer.tolist() == [0, 0]


@pytest.mark.parametrize("trace", [kernel_trace(), random_kernel_trace(3_000)], ids=["story", "random"])
def test_no_span_of_a_row_overlaps_another(trace):
    rows = assign_rows(trace)
    tolerance_ns = max(LEVEL_TOLERANCE_NS, trace.metadata.clock_error_ns + trace.metadata.range_error_ns)
    order = np.lexsort((trace.start_ns, rows.row))
    same = rows.row[order][1:] == rows.row[order][:-1]
    assert (trace.start_ns[order][1:] >= trace.end_ns[order][:-1] - tolerance_ns)[same].all()
    assert (trace.end_ns[order][1:] >= trace.end_ns[order][:-1])[same].all()
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes])
    assert rows.row_count[is_host].max() <= 3


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40), st.integers(0, 3))
def test_places_told_by_counting_are_as_good_as_those_found_one_by_one(intervals, tolerance_ns):
    start_ns, duration_ns = np.array(intervals, np.int64).T
    order = np.lexsort((-duration_ns, start_ns))
    start_ns, end_ns = start_ns[order], (start_ns + duration_ns)[order]
    begins = np.arange(len(order)) == 0
    slots = _nested_slots(begins, start_ns, end_ns, tolerance_ns)
    if slots is None:
        return
    for slot in np.unique(slots):
        starts, ends = start_ns[slots == slot], end_ns[slots == slot]
        assert (starts[1:] >= ends[:-1] - tolerance_ns).all()
        assert (ends[1:] >= ends[:-1]).all()
    # A slot may be left out where one in between has ended before its turn.
    assert slots.max() <= max(_first_fit(begins, start_ns, end_ns, 0)) + 1


def test_nested_calls_are_placed_without_looking_at_each(monkeypatch):
    monkeypatch.setattr("gpustreamlab.analysis._rows._first_fit", None)
    outer = np.arange(5_000) * 1_000
    start_ns = np.concatenate((outer, outer + 100, outer + 200, outer + 600))
    end_ns = np.concatenate((outer + 900, outer + 800, outer + 500, outer + 700))
    slots = place_in_slots(np.zeros(len(start_ns), np.int64), start_ns, end_ns)
    assert slots.reshape(4, -1).tolist() == [[0] * 5_000, [1] * 5_000, [2] * 5_000, [2] * 5_000]


@pytest.mark.parametrize("calls", [[(0, 0), (0, 9)], [(0, 9), (0, 0)], [(0, 9), (0, 0), (0, 4)]])
def test_a_call_of_no_length_comes_before_one_that_begins_with_it(calls):
    row, _ = rows_of(*((HOST, "call", start, end, {"kind": "host"}) for start, end in calls))
    assert row == [int((start, end) == (0, 4)) for start, end in calls]
