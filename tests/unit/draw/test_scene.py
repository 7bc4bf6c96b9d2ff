"""The layout that figure and picture share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.draw import MAX_DRAWN_EDGES, plan_scene
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
from gpustreamlab.model import Lane, Layout, Partition
from tests.helpers.traces import empty_trace, make_trace, nested_trace, pipeline_trace, random_trace


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
    ("lane", "layout", "text"),
    [
        (Lane(name="a"), None, ""),
        (Lane(name="a", priority=-2), None, "priority -2"),
        (Lane(name="a", partition="p"), None, "p"),
        (
            Lane(name="a", partition="p"),
            Layout(partitions=(Partition(name="p", requested_sms=20, granted_sms=24),)),
            "p (24 SMs)",
        ),
        (
            Lane(name="a", partition="other"),
            Layout(partitions=(Partition(name="p", requested_sms=20, granted_sms=24),)),
            "other",
        ),
    ],
)
def test_lane_detail_has_priority_and_partition(lane, layout, text):
    assert lane_detail(lane, layout) == text


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
