"""The layout that figure and picture share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab import Session
from gpustreamlab.analysis import RowTable, span_rows
from gpustreamlab.draw import plan_scene
from gpustreamlab.draw._groups import CARD_ROW_PX, LEAST_ROW_PX
from gpustreamlab.draw._scene import LABEL_PX, LANE_GAP_PX, ROW_PX, fit_label, lane_detail, text_width_px
from gpustreamlab.model import Lane
from gpustreamlab.workloads import spin
from tests.helpers.traces import (
    empty_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    random_trace,
    repartition_trace,
)


def test_the_axis_begins_at_the_first_start():
    scene = plan_scene(make_trace([("a", "x", 700, 900), ("b", "y", 500, 800)]))
    assert (scene.zero_ns, scene.width_ns) == (500, 400)


def test_rows_of_bars_are_within_their_lane_and_do_not_touch():
    scene = plan_scene(nested_trace())
    for row, lane in enumerate(scene.rows.lane.tolist()):
        assert scene.lanes[lane].top < scene.row_top[row] < scene.row_bottom[row] < scene.lanes[lane].bottom
    assert (scene.row_top[1:] > scene.row_bottom[:-1]).all()
    assert scene.lanes[-1].bottom == scene.height_px


def test_rows_may_come_in_any_order():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 0, 100)])
    given = RowTable(
        lane=np.array([1, 0, 0, 1]), sub_row=np.array([0, 0, 1, 0]), share=np.array([1, 1, 1, 0.5]), overlaps=np.zeros(4, bool)
    )
    scene = plan_scene(trace, given, zero_ns=0, width_ns=100.0)
    in_order = plan_scene(make_trace([("a", "x", 0, 100), ("a", "x", 0, 100), ("b", "x", 0, 100)]))
    assert scene.row_top[[1, 2, 0]].tolist() == in_order.row_top.tolist()
    lower, full = scene.row_bottom[3] - scene.row_top[3], scene.row_bottom[0] - scene.row_top[0]
    assert lower == full / 2
    assert scene.row_top[3] + scene.row_bottom[3] == scene.row_top[0] + scene.row_bottom[0]


def test_folded_rows_are_noted():
    scene = plan_scene(make_trace([("a", "x", k, 1_000) for k in range(80)]))
    assert scene.notes == ("16 spans are folded into the last row of their stream, where they may cover others",)


@pytest.mark.parametrize("lane_count", [100, 10_000])
def test_many_lanes_have_rows_of_full_height(lane_count):
    scene = plan_scene(random_trace(500, lane_count))
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 2)
    assert scene.height_px == lane_count * (ROW_PX + LANE_GAP_PX)


def test_empty_trace_has_a_scene():
    scene = plan_scene(empty_trace())
    assert (len(scene.rows), scene.height_px, scene.width_ns, scene.notes) == (0, 0, 0, ())


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


def test_lanes_are_grouped_by_partition_in_the_order_of_the_layout_and_the_whole_card_is_last():
    scene = plan_scene(partition_trace())
    assert [box.label for box in sorted(scene.lanes, key=lambda box: box.top)] == ["prefill", "kv", "decode", "logging"]
    assert [box.group.name for box in scene.groups] == ["prefill", "decode", None]
    assert [box.group for box in scene.lanes] == [2, 0, 1, 0]


@pytest.mark.parametrize(
    "trace", [partition_trace(), repartition_trace(), many_partitions_trace()], ids=["two", "repartition", "many"]
)
def test_groups_and_lanes_and_rows_tile_the_picture(trace):
    scene = plan_scene(trace)
    for row, lane in enumerate(scene.rows.lane.tolist()):
        assert scene.lanes[lane].top < scene.row_top[row] < scene.row_bottom[row] < scene.lanes[lane].bottom
    full = np.flatnonzero(scene.rows.share == 1)
    full = full[np.argsort(scene.row_top[full])]
    assert (scene.row_top[full][1:] > scene.row_bottom[full][:-1]).all()
    for box in scene.groups:
        inside = [code for code, lane in enumerate(scene.lanes) if box.head_bottom <= lane.top and lane.bottom <= box.bottom]
        assert inside == list(box.group.lanes)
    for above, below in pairwise(scene.groups):
        assert above.bottom == pytest.approx(below.top)
    assert scene.groups[-1].bottom == pytest.approx(scene.height_px)


def test_lanes_are_as_high_as_their_partitions_have_sms():
    scene = plan_scene(partition_trace())
    heights = dict(zip((box.label for box in scene.lanes), (scene.row_bottom - scene.row_top + 2).tolist(), strict=True))
    assert heights["logging"] == CARD_ROW_PX
    assert heights["prefill"] == pytest.approx(CARD_ROW_PX * 96 / 132)
    assert heights["decode"] == LEAST_ROW_PX


def test_without_partitions_nothing_of_them_is_drawn():
    scene = plan_scene(random_trace(50, 3))
    assert (scene.groups, scene.marks, scene.mark_rows, scene.bands) == ((), (), (), ())
    assert [(entry.text, entry.band) for entry in scene.partitions] == [("whole card · 132 SMs", -1)]
    assert np.allclose(scene.row_bottom - scene.row_top, ROW_PX - 2)


def test_bars_tell_of_sms_alike_before_and_after_their_lanes_move():
    sms = {"left": 16, "right": 116, "whole": 132}
    with Session("sim", capture="ranges") as lab:
        for name in sms:
            with lab.on(lab.stream(name), "before"):
                spin(lab, 1_000)
        lab.partition(p=16, q="rest")
        for name, part in zip(sms, ("p", "q", None), strict=True):
            with lab.on(lab.stream(name, partition=part), "after"):
                spin(lab, 1_000)
    trace = lab.trace
    scene, (_, row) = plan_scene(trace), span_rows(trace)
    heights_px = (scene.row_bottom - scene.row_top)[row]
    for lane, name, height_px in zip(trace.lane, trace.name, heights_px, strict=True):
        share = sms[trace.lanes[lane].name] / 132 if trace.names[name] == "after" else 1
        assert height_px == pytest.approx(max(share * CARD_ROW_PX, LEAST_ROW_PX), abs=2)


def test_a_layout_that_is_not_enforced_has_groups_but_no_strip_of_sms():
    scene = plan_scene(partition_trace(is_enforced=False))
    assert scene.bands == ()
    assert scene.groups[0].group.label == "prefill · all 132 SMs, not enforced"
    assert np.allclose(scene.row_bottom - scene.row_top + 2, CARD_ROW_PX)
