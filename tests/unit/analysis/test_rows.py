"""Rows of a finished trace: nothing hides anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, span_rows
from gpustreamlab.analysis._rows import LEVEL_TOLERANCE_NS
from gpustreamlab.model import SPAN_KINDS, Lane
from gpustreamlab.typing import LaneKind
from tests.helpers.kernel_traces import kernel_trace, random_kernel_trace
from tests.helpers.traces import (
    empty_trace,
    make_kernel_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    random_trace,
    repartition_trace,
)

LATE = 1 << 62
HOST = "host: MainThread"
RANGE, CALL, NVTX = {"kind": "range"}, {"kind": "host"}, {"kind": "annotation"}


def sub_rows(trace):
    """The sub-row of each span within its lane, and the layer of each of these, lane by lane."""
    table, codes = span_rows(trace)
    order = np.lexsort((table.sub_row, table.lane))
    return table.sub_row[codes].tolist(), table.layer[order].tolist()


PLACED = {
    "following": ([("a", "x", 0, 10), ("a", "y", 10, 20), ("b", "z", 5, 15)], {}, [0, 0, 0]),
    "two threads have a block each": (
        [
            ("a", "worker A", 10, 70, {"thread": 1}),
            ("a", "copy", 20, 40, {"thread": 1, "parent": 0}),
            ("a", "worker B", 30, 90, {"thread": 2}),
            ("a", "fill", 50, 80, {"thread": 2, "parent": 2}),
        ],
        {"threads": ("a", "b", "c")},
        [0, 1, 2, 3],
    ),
    "nested through another lane": (
        [("a", "outer", 0, 100), ("b", "middle", 10, 90, {"parent": 0}), ("a", "inner", 20, 80, {"parent": 1})],
        {},
        [0, 0, 1],
    ),
    "nested deeply": (
        [("a", "x", k, 1_000 - k, {"parent": k - 1}) for k in range(MAX_LANE_ROWS + 3)],
        {},
        [*range(MAX_LANE_ROWS), *[MAX_LANE_ROWS - 1] * 3],
    ),
    "overlap": ([("a", "x", 0, 105), ("a", "y", 100, 200)], {}, [0, 1]),
    "overlap within the stated error": ([("a", "x", 0, 105), ("a", "y", 100, 200)], {"range_error_ns": 5}, [0, 0]),
    "covered within the stated error": ([("a", "x", 0, 105), ("a", "y", 101, 104)], {"range_error_ns": 5}, [0, 1]),
    "times of years": (
        [("a", "x", 0, LATE), ("a", "y", LATE, LATE + 5), ("b", "z", 1, 2), ("a", "w", LATE + 1, LATE + 3)],
        {},
        [0, 0, 0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spans", "options", "expected"), PLACED.values(), ids=PLACED)
def test_ranges_lie_below_what_encloses_them_and_beside_what_overlaps(spans, options, expected):
    assert sub_rows(make_trace(spans, **options))[0] == expected


KERNELS = {
    "whatever encloses them": (
        [
            ("a", "step", 0, 1_000, RANGE),
            ("a", "inner", 100, 900, RANGE | {"parent": 0}),
            ("a", "k", 200, 300, {"parent": 1}),
            ("a", "k", 300, 400, {"parent": 0}),
            ("a", "copy", 2_000, 2_100, {"kind": "copy"}),
            ("b", "k", 0, 5_000),
        ],
        [0, 1, 2, 2, 2, 0],
        [0, 0, 1, 1],
    ),
    "a lane with work only": ([("a", "k", 0, 10), ("a", "k", 20, 30)], [0, 0], [1]),
    "a graph's": ([("a", "x", 0, 1_000), ("a", "y", 200, 800), ("a", "z", 1_000, 1_500)], [0, 1, 0], [1, 1]),
    "more overlap": ([("a", "x", 0, 1_000), ("a", "y", 999 - LEVEL_TOLERANCE_NS, 2_000)], [0, 1], [1, 1]),
    "calls below ranges of others": (
        [
            (HOST, "cudf: join", 0, 1_000, NVTX),
            (HOST, "cudf: probe", 200, 800, NVTX | {"parent": 0}),
            (HOST, "cudaLaunchKernel", 300, 400, CALL | {"parent": 1}),
            (HOST, "cudaGraphLaunch", 1_500, 2_500, CALL),
            (HOST, "cuLaunchKernel", 1_600, 2_000, CALL),
            (HOST, "cudf: sort", 2_000, 2_500, NVTX),
        ],
        [0, 1, 2, 2, 3, 0],
        [0, 0, 1, 1],
    ),
    "a range in an annotation is outermost": (
        [
            (HOST, "cudf: join", 0, 1_000, NVTX),
            ("a", "outer", 0, 1_000, RANGE),
            ("a", "inner", 100, 900, RANGE | {"parent": 3}),
            (HOST, "cudf: probe", 50, 950, NVTX | {"parent": 1}),
        ],
        [0, 0, 1, 1],
        [0, 0, 0, 0],
    ),
    "of no length first": ([(HOST, "c", 0, 0, CALL), (HOST, "c", 0, 9, CALL)], [0, 0], [1]),
}


@pytest.mark.parametrize(("spans", "expected", "layers"), KERNELS.values(), ids=KERNELS)
def test_work_and_calls_lie_below_ranges(spans, expected, layers):
    assert sub_rows(make_kernel_trace(spans)) == (expected, layers)


@pytest.mark.parametrize("kinds", [("range", "range", "range"), ("range", "range", "annotation")])
def test_parents_in_a_circle_do_not_hang(kinds):
    spans = [("a", "x", 0, 10, {"parent": 1}), ("b", "y", 0, 10, {"parent": 2}), ("b", "z", 0, 10, {"parent": 1})]
    trace = make_kernel_trace([(*span[:4], span[4] | {"kind": kind}) for span, kind in zip(spans, kinds, strict=True)])
    assert len(sub_rows(trace)[0]) == 3


def test_every_lane_has_a_row_and_lanes_follow_each_other():
    lanes = tuple(Lane(name=name, stream=place) for place, name in enumerate("abc", 1))
    table, codes = span_rows(make_trace([("b", "x", 0, 1), ("b", "y", 0, 2)], lanes=lanes))
    assert (table.lane.tolist(), table.sub_row.tolist(), codes.tolist()) == ([0, 1, 1, 2], [0, 0, 1, 0], [2, 1])
    assert len(span_rows(empty_trace())[0]) == 0


@pytest.mark.parametrize(
    ("kind", "others", "folded", "layer"), [("range", "kernel", MAX_LANE_ROWS - 1, 1), ("kernel", "range", MAX_LANE_ROWS, 0)]
)
def test_what_fits_nowhere_is_folded_into_the_last_row_of_its_level_and_counted(kind, others, folded, layer):
    spans = [("a", "x", k, 10_000, {"kind": kind}) for k in range(0, 200 * (MAX_LANE_ROWS + 5), 200)]
    spans = [(*span[:3], 1_000_000, span[4]) for span in spans]
    spans += [("a", "y", 2_000_000 + k, 2_000_001 + k, {"kind": others}) for k in range(3)]
    table, codes = span_rows(make_kernel_trace(spans))
    assert np.flatnonzero(table.overlaps).tolist() == [folded]
    assert table.folded_spans == 5
    assert len(table) == MAX_LANE_ROWS + 1
    assert np.bincount(codes)[folded] == 6
    assert table.layer[codes[-1]] == layer


def test_spans_with_fewer_sms_have_lower_rows_in_the_same_sub_row():
    trace = repartition_trace()
    table, codes = span_rows(trace)
    assert table.lane.tolist() == [0, 1, 0, 0, 1, 1]
    assert table.share.tolist() == pytest.approx([1, 1, 64 / 132, 96 / 132, 0.3, 68 / 132])
    assert table.sub_row.tolist() == [0] * 6
    assert codes[trace.partition == 0].tolist() == [3] * 4
    assert table.lane_sms.tolist() == [132, 132]
    assert not len(span_rows(nested_trace())[0].lane_sms)


TRACES = {
    "empty": empty_trace(), "nested": nested_trace(), "partitions": partition_trace(), "repartition": repartition_trace(),
    "8 partitions": many_partitions_trace(), "100 lanes": random_trace(500, 100), "many": random_trace(20_000, 8),
    "kernels": kernel_trace(), "many kernels": random_kernel_trace(3_000),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_spans_of_a_row_are_of_one_lane_and_layer_and_follow_each_other(trace):
    table, codes = span_rows(trace)
    tolerance_ns = max(LEVEL_TOLERANCE_NS, trace.metadata.clock_error_ns + trace.metadata.range_error_ns)
    order = np.lexsort((trace.end_ns, trace.start_ns, codes))
    same = codes[order][1:] == codes[order][:-1]
    assert (trace.start_ns[order][1:] >= trace.end_ns[order][:-1] - tolerance_ns)[same].all()
    assert (np.diff(trace.end_ns[order])[same] >= 0).all()
    assert not table.overlaps.any()
    assert table.lane[codes].tolist() == trace.lane.tolist()
    assert table.layer[codes].tolist() == [int(SPAN_KINDS[kind] in {"kernel", "copy", "fill", "host"}) for kind in trace.kind]
    for lane, known in enumerate(trace.lanes):
        own = table.sub_row[table.lane == lane]
        assert set(own.tolist()) == set(range(own.max() + 1))
        assert known.kind is LaneKind.STREAM or own.max() <= 2


@st.composite
def intervals(draw, kind):
    trace = []
    for _ in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 40)) * 1_000
        trace.append((draw(st.sampled_from("ab")), "x", start, start + draw(st.integers(1, 20)) * 1_000, {"kind": kind}))
    return trace if draw(st.booleans()) else sorted(trace, key=lambda span: span[2])


@given(st.sampled_from(["range", "kernel", "annotation"]).flatmap(intervals))
@example([("a", "x", 1_000 * start, 1_000 * end, {"kind": "host"}) for start, end in [(0, 2), (0, 2), (1, 3), (2, 3)]])
@settings(deadline=None)
def test_no_two_spans_of_a_row_overlap_and_no_row_is_wasted(spans):
    trace = make_kernel_trace(spans)
    table, codes = span_rows(trace)
    for code in np.unique(codes).tolist():
        own = np.flatnonzero(codes == code)
        own = own[np.argsort(trace.start_ns[own])]
        assert (trace.start_ns[own][1:] >= trace.end_ns[own][:-1]).all()
    for lane in range(len(trace.lanes)):
        own = trace.lane == lane
        most = max(int(((trace.start_ns[own] <= t) & (t < trace.end_ns[own])).sum()) for t in trace.start_ns[own].tolist())
        assert table.sub_row[codes[own]].max() + 1 == most


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
    assert sub_rows(make_trace(spans, lanes=(Lane(name="a"),)))[0] == [span[4]["depth"] for span in spans]


def test_nested_calls_are_placed_without_looking_at_each(monkeypatch):
    monkeypatch.setattr("gpustreamlab.analysis._rows._first_fit", None)
    calls = [(0, 9_000), (1_000, 8_000), (2_000, 5_000), (6_000, 7_000)]
    spans = [(HOST, "c", 10_000 * k + start, 10_000 * k + end, CALL) for start, end in calls for k in range(1_000)]
    assert np.reshape(sub_rows(make_kernel_trace(spans))[0], (4, -1)).tolist() == [[row] * 1_000 for row in (0, 1, 2, 2)]
