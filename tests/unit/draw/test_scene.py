"""The layout that page, picture and text share: lanes, rows and marks; groups by partition are in `test_groups`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import RowTable, is_work
from gpustreamlab.draw import GREY, plan_scene
from gpustreamlab.draw._scene import IDLE_PX, LABEL_PX, LANE_GAP_PX, MAX_MARKS, ROW_PX, lane_detail, lane_labels, text_width_px
from gpustreamlab.model import Lane, Layout, LayoutChange, Marker
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    PREFILL,
    empty_trace,
    make_kernel_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    random_trace,
    repartition_trace,
    without_spans,
)

TRACES = {
    "nested": nested_trace(), "two": partition_trace(), "repartition": repartition_trace(), "many": many_partitions_trace(),
    "kernels": kernel_trace(),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_groups_and_lanes_and_rows_tile_the_picture(trace):
    scene = plan_scene(trace)
    for lane, box in enumerate(scene.lanes):
        own = np.flatnonzero(scene.rows.lane == lane)
        _, first = np.unique(scene.row_top[own], return_index=True)  # rows of several sizes of a partition share a place
        own = own[first]
        assert box.top < scene.row_top[own[0]]
        assert scene.row_bottom[own[-1]] < box.bottom
        assert (scene.row_top[own[1:]] > scene.row_bottom[own[:-1]]).all()
    assert (scene.row_top < scene.row_bottom).all()
    for box in scene.groups:
        inside = [code for code, lane in enumerate(scene.lanes) if box.head_bottom <= lane.top and lane.bottom <= box.bottom]
        assert sorted(inside, key=lambda code: scene.lanes[code].top) == list(box.group.lanes)
    for above, below in pairwise(scene.groups):
        assert above.bottom == pytest.approx(below.top)
    assert max(box.bottom for box in (*scene.lanes, *scene.groups)) == pytest.approx(scene.height_px)


def from_the_top(scene, trace):
    return [trace.lanes[code].name for code in sorted(range(len(scene.lanes)), key=lambda code: scene.lanes[code].top)]


def test_lanes_come_in_the_order_of_their_first_work_and_those_without_any_last():
    trace = make_trace([("late", "x", 900, 950), ("first", "y", 10, 20), ("first", "y", 990, 995), ("middle", "z", 500, 980)])
    assert from_the_top(plan_scene(trace), trace) == ["first", "middle", "late"]
    # WHEN a lane has work, its ranges do not count: they begin when it is told to work
    trace = kernel_trace()
    on_device = is_work(trace)
    for box in plan_scene(trace).groups:
        first = {code: trace.start_ns[on_device & (trace.lane == code)] for code in box.group.lanes}
        began = [times.min() for times in first.values() if len(times)]
        assert box.group.is_host or began == sorted(began)
    # WHEN names differ by a number, these count, within each partition
    trace = many_partitions_trace()
    for box in plan_scene(trace).groups:
        names = [trace.lanes[lane].name for lane in box.group.lanes]
        assert names == sorted(names, key=lambda name: int("".join(filter(str.isdigit, name))))


def test_the_lanes_of_a_live_view_stay_where_they_first_worked():
    trace = without_spans(make_trace([("a", "x", 0, 1), ("b", "x", 0, 1), ("c", "x", 0, 1)]))
    for worked, order in {(2,): ["c", "a", "b"], (2, 1): ["c", "b", "a"], (2, 1, 2): ["c", "b", "a"]}.items():
        lane = np.array(worked)
        ones = np.ones(len(lane))
        rows = RowTable(lane=lane, sub_row=np.arange(len(lane)), share=ones, overlaps=ones < 1)
        assert from_the_top(plan_scene(trace, rows, zero_ns=0, width_ns=9.0), trace) == order


def test_the_axis_begins_at_the_first_start():
    scene = plan_scene(make_trace([("a", "x", 700, 900), ("b", "y", 500, 800)]))
    assert (scene.zero_ns, scene.width_ns) == (500, 400)


def test_rows_may_come_in_any_order():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 0, 100)])
    given = RowTable(
        lane=np.array([1, 0, 0, 1]), sub_row=np.array([0, 0, 1, 0]), share=np.array([1, 1, 1, 0.5]), overlaps=np.zeros(4, bool)
    )
    scene = plan_scene(trace, given, zero_ns=0, width_ns=100.0)
    in_order = plan_scene(make_trace([("a", "x", 0, 100), ("a", "x", 0, 100), ("b", "x", 0, 100)]))
    assert scene.row_top[[1, 2, 0]].tolist() == in_order.row_top.tolist()
    assert scene.row_top[3] == scene.row_top[0]


def test_folded_rows_are_noted():
    scene = plan_scene(make_trace([("a", "x", k, 1_000) for k in range(80)]))
    assert scene.notes == ("16 spans are folded into the last row of their stream, where they may cover others",)


@pytest.mark.parametrize("lane_count", [3, 100, 10_000])
def test_without_partitions_nothing_of_them_is_drawn_and_rows_have_full_height(lane_count):
    scene = plan_scene(random_trace(500, lane_count))
    assert (scene.groups, scene.marks, scene.mark_rows, scene.bands) == ((), (), (), ())
    assert [(entry.text, entry.band) for entry in scene.partitions] == [("whole card · 132 SMs", -1)]
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 1)
    # THEN the streams on which nothing ran are one line
    idle = sum(box.is_idle for box in scene.lanes)
    used = scene.height_px - scene.head_px - (IDLE_PX if idle else 0)
    assert used == (lane_count - idle) * (ROW_PX + LANE_GAP_PX)
    assert (scene.idle_text == f"{idle:,} streams without work") == (idle > 0)


def test_empty_trace_has_a_scene():
    scene = plan_scene(empty_trace())
    assert (len(scene.rows), scene.height_px, scene.width_ns, scene.notes) == (0, scene.head_px, 0, ())
    assert [row.label for row in scene.card_rows] == ["132 SMs"]


@pytest.mark.parametrize(
    ("facts", "text"),
    [({}, ""), ({"priority": -2, "partition": "p"}, "priority -2"), ({"outside": True}, "not made here")],
)
def test_lane_detail_has_what_is_not_ordinary(facts, text):
    assert lane_detail(Lane(name="a", **facts)) == text


@given(st.text(max_size=200))
def test_labels_fit_beside_the_lanes(text):
    assert max(map(text_width_px, lane_labels([text, f"{text} 2", "a"]))) <= LABEL_PX


def test_streams_whose_names_differ_by_a_number_follow_each_other_as_the_numbers_count():
    trace = make_trace([("s10", "x", 0, 9), ("up", "x", 1, 9), ("s2", "x", 2, 9), ("s1", "x", 3, 9)])
    assert from_the_top(plan_scene(trace), trace) == ["s1", "s2", "s10", "up"]


# ---- partitions


def test_lanes_are_grouped_by_partition_and_rows_are_as_high_with_few_sms_as_with_many():
    scene = plan_scene(partition_trace())
    assert [box.label for box in sorted(scene.lanes, key=lambda box: box.top)] == ["prefill", "kv", "decode", "logging"]
    assert [box.group.name for box in scene.groups] == ["prefill", "decode", None]
    assert [box.group for box in scene.lanes] == [2, 0, 1, 0]
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 1)


def test_neighbours_have_other_hues_also_where_lanes_are_in_the_order_of_their_first_work():
    trace = random_trace(400, 30)
    scene = plan_scene(trace)
    hues = [scene.lane_hues[code] for code in sorted(range(30), key=lambda code: scene.lanes[code].top)]
    assert hues == [place % GREY for place in range(30)]


def test_a_layout_that_is_not_enforced_has_groups_but_no_strip_of_sms():
    scene = plan_scene(partition_trace(is_enforced=False))
    assert scene.bands == ()
    assert scene.groups[0].group.label == "prefill · all 132 SMs, not enforced"


def test_without_partitions_streams_come_first_and_only_the_host_has_a_group():
    trace = make_kernel_trace([("host: MainThread", "cuLaunchKernel", 0, 5, {"kind": "host"}), ("a", "gemm", 10, 20)])
    scene = plan_scene(trace)
    assert [box.group.label for box in scene.groups] == ["host"]
    assert [box.group for box in scene.lanes] == [0, -1]
    assert scene.lanes[1].bottom == scene.groups[0].top


# ---- marks


def marks_of(*changes, markers=(), spans=(("a", "x", 1_000, 1_100),)):
    """Return the marks of a scene, and its notes; changes are tuples of a time since the first start and a layout."""
    zero_ns = spans[0][2]
    layouts = tuple(LayoutChange(time_ns=zero_ns + at, layout=layout) for at, layout in changes)
    trace = make_trace(spans, layouts=layouts)
    scene = plan_scene(
        replace(trace, markers=tuple(Marker(time_ns=zero_ns + at, text=text, kind=kind) for at, text, kind in markers))
    )
    assert len(scene.mark_rows) == min(2, len(scene.marks))
    return [(mark.time_ns, mark.text, mark.kind) for mark in scene.marks], scene.notes


SEEN, UNSEEN = Layout(partitions=(PREFILL,)), Layout(partitions=(replace(PREFILL, sm_ids=None),))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([(-5, SEEN), (200, None)], id="before the first and after the last span"),
        pytest.param([(-5, UNSEEN), (50, SEEN)], id="only measured anew"),
    ],
)
def test_what_changes_nothing_in_the_picture_has_no_mark(changes):
    assert marks_of(*changes) == ([], ())


def test_markers_and_changes_are_marked_in_order_of_time_but_for_cells_far_before():
    markers = [(-990, "In [1]", "cell"), (80, "In [3]", "cell"), (20, "warm\nup", "mark")]
    marks, notes = marks_of((50, SEEN), markers=markers)
    assert marks == [(20, "warm␣up", "mark"), (50, "prefill 96 SMs", "layout"), (80, "In [3]", "cell")]
    assert notes == ()


def test_too_many_changes_are_cut_and_counted():
    changes = [(k + 1, None if k % 2 else SEEN) for k in range(MAX_MARKS + 3)]
    marks, notes = marks_of(*changes, spans=[("a", "x", 0, 10_000)])
    assert len(marks) == MAX_MARKS
    assert notes == ("3 of 503 changes of the partitions are not marked",)
