"""The layout that figure and picture share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import assign_rows
from gpustreamlab.draw import MAX_DRAWN_EDGES, plan_scene
from gpustreamlab.draw._groups import CARD_ROW_PX, LEAST_ROW_PX
from gpustreamlab.draw._scene import (
    LABEL_PX,
    MAX_HEIGHT_PX,
    ROW_PX,
    fit_label,
    lane_detail,
    text_width_px,
    used_hatches,
    used_names,
)
from gpustreamlab.model import Lane
from tests.helpers.traces import (
    empty_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)


def test_times_count_from_the_first_start():
    scene = plan_scene(make_trace([("a", "x", 700, 900), ("b", "y", 500, 800)]))
    assert scene.zero_ns == 500
    assert scene.left_ns.tolist() == [200, 0]
    assert scene.right_ns.tolist() == [400, 300]
    assert scene.width_ns == 400


def test_spans_are_sorted_by_row_then_start():
    scene = plan_scene(make_trace([("b", "x", 50, 60), ("a", "x", 30, 40), ("b", "x", 10, 20)]))
    assert scene.span.tolist() == [2, 0, 1]


def test_rows_of_bars_are_within_their_lane_and_do_not_touch():
    scene = plan_scene(nested_trace())
    for row, lane in enumerate(scene.row_lane.tolist()):
        assert scene.lanes[lane].top < scene.row_top[row] < scene.row_bottom[row] < scene.lanes[lane].bottom
    assert (scene.row_top[1:] > scene.row_bottom[:-1]).all()
    assert scene.lanes[-1].bottom == scene.height_px


def test_too_many_spans_keep_the_longest_and_say_so():
    trace = make_trace([("a", "x", k * 100, k * 100 + k + 1) for k in range(10)])
    scene = plan_scene(trace, max_spans=4)
    assert scene.span.tolist() == [6, 7, 8, 9]
    assert len(scene.notes) == 1
    assert scene.notes[0].startswith("the 6 shortest of 10 spans (up to 6 ns) are not drawn")


def test_strip_counts_spans_that_are_not_drawn():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 10, 20)])
    assert plan_scene(trace, max_spans=1).step_count.tolist() == [1, 2, 1, 0]


def test_edges_point_to_places_of_the_scene():
    trace = pipeline_trace(2)
    scene = plan_scene(trace)
    assert scene.span[scene.edges].tolist() == np.stack((trace.edges.source, trace.edges.target), axis=1).tolist()


def test_edges_to_spans_that_are_not_drawn_are_counted():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 100, 101)], edges=[(0, 1)])
    assert "1 of 1 waits are not drawn" in plan_scene(trace, max_spans=1).notes


def test_too_many_edges_are_cut_and_counted():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 100, 200)], edges=[(0, 1)] * (MAX_DRAWN_EDGES + 3))
    scene = plan_scene(trace)
    assert len(scene.edges) == MAX_DRAWN_EDGES
    assert f"3 of {MAX_DRAWN_EDGES + 3:,} waits are not drawn" in scene.notes


def test_folded_rows_are_noted():
    assert any("folded" in note for note in plan_scene(make_trace([("a", "x", k, 1_000) for k in range(80)])).notes)


def test_a_thousand_lanes_stay_within_what_a_browser_draws():
    scene = plan_scene(random_trace(2_000, 1_000))
    assert scene.height_px == pytest.approx(MAX_HEIGHT_PX)
    assert (scene.row_bottom > scene.row_top).all()


def test_hundred_lanes_have_rows_of_full_height():
    scene = plan_scene(random_trace(500, 100))
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 2)


def test_empty_trace_has_a_scene():
    scene = plan_scene(empty_trace())
    assert (len(scene.span), scene.height_px, scene.notes) == (0, 0, ())


@pytest.mark.parametrize(
    ("lane", "text"),
    [
        (Lane(name="a"), ""),
        (Lane(name="a", priority=-2), "priority -2"),
        (Lane(name="a", priority=-2, partition="p"), "priority -2"),
    ],
)
def test_lane_detail_has_the_priority_only(lane, text):
    assert lane_detail(lane) == text


@given(st.text(max_size=200))
def test_labels_fit_beside_the_lanes(text):
    assert text_width_px(fit_label(text)) <= LABEL_PX


def test_legend_names_are_those_that_take_most_time():
    trace = make_trace([("a", "short", 0, 1), ("a", "long", 1, 100), ("a", "middle", 100, 150)])
    assert used_names(trace, plan_scene(trace), 2) == ([1, 2], 1)


def test_hatches_are_those_in_use():
    trace = pipeline_trace()
    styles = plan_scene(trace).styles
    assert used_hatches(trace, plan_scene(trace)) == sorted({style.hatch for style in styles} - {" "})
    assert {"\\", ".", "x"} <= set(used_hatches(nested_trace(), plan_scene(nested_trace())))


def test_lanes_are_grouped_by_partition_in_the_order_of_the_layout_and_the_whole_card_is_last():
    scene = plan_scene(partition_trace())
    assert [box.label for box in scene.lanes] == ["prefill", "kv", "decode", "logging"]
    assert [box.group.name for box in scene.groups] == ["prefill", "decode", None]
    assert [box.lane for box in scene.lanes] == [1, 3, 2, 0]


@pytest.mark.parametrize(
    "trace", [partition_trace(), repartition_trace(), many_partitions_trace()], ids=["two", "repartition", "many"]
)
def test_groups_and_lanes_and_rows_tile_the_picture(trace):
    scene = plan_scene(trace)
    place = {box.lane: box for box in scene.lanes}
    for row, lane in enumerate(scene.row_lane.tolist()):
        assert place[lane].top < scene.row_top[row] < scene.row_bottom[row] < place[lane].bottom
    own = scene.row_top[: int(assign_rows(trace).total)]  # behind them are lower ones, inside those
    assert (own[1:] > scene.row_bottom[: len(own) - 1]).all()
    for box in scene.groups:
        inside = [lane for lane in scene.lanes if box.head_bottom <= lane.top and lane.bottom <= box.bottom]
        assert [lane.lane for lane in inside] == list(box.group.lanes)
    for above, below in pairwise(scene.groups):
        assert above.bottom == pytest.approx(below.top)
    assert scene.groups[-1].bottom == pytest.approx(scene.height_px)


def test_spans_stay_on_their_lane_when_lanes_are_reordered():
    trace = many_partitions_trace()
    scene = plan_scene(trace)
    assert scene.row_lane[scene.row].tolist() == trace.lane[scene.span].tolist()
    assert (np.diff(scene.row) >= 0).all()


def test_lanes_are_as_high_as_their_partitions_have_sms():
    scene = plan_scene(partition_trace())
    heights = dict(zip((box.label for box in scene.lanes), (scene.row_bottom - scene.row_top + 2).tolist(), strict=True))
    assert heights["logging"] == CARD_ROW_PX
    assert heights["prefill"] == pytest.approx(CARD_ROW_PX * 96 / 132)
    assert heights["decode"] == LEAST_ROW_PX


def test_without_partitions_nothing_of_them_is_drawn():
    scene = plan_scene(nested_trace())
    assert (scene.groups, scene.marks, scene.mark_rows, scene.bands, scene.partition_texts) == ((), (), (), (), ())
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 2)


def test_a_layout_that_is_not_enforced_has_groups_but_no_strip_of_sms():
    scene = plan_scene(partition_trace(is_enforced=False))
    assert scene.bands == ()
    assert scene.groups[0].group.label == "prefill · all 132 SMs, not enforced"
    assert np.allclose(scene.row_bottom - scene.row_top + 2, CARD_ROW_PX)
