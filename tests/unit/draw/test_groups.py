"""Lanes by partition: grouping, labels, bands and marks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.draw._groups import (
    CARD_ROW_PX,
    LEAST_ROW_PX,
    MAX_MARKED_CHANGES,
    MOST_LANE_PX,
    ROW_PX,
    idle_partitions,
    lane_partitions,
    partition_order,
    partition_texts,
    plan_bands,
    plan_groups,
    plan_marks,
    row_px,
)
from gpustreamlab.model import Lane, Layout, LayoutChange, Partition
from tests.helpers.traces import DECODE, PREFILL, empty_trace, make_trace, nested_trace, partition_trace, repartition_trace


def test_group_labels_have_sms_and_details():
    groups = plan_groups(partition_trace())
    assert [(group.label, group.detail) for group in groups] == [
        ("prefill · 96 SMs", "asked for 90 · verified"),
        ("decode · 36 SMs", "verified"),
        ("whole card · 132 SMs", "shares SMs with every partition"),
    ]


def test_label_of_a_partition_has_the_sizes_that_it_had():
    assert [group.label for group in plan_groups(repartition_trace())] == ["prefill · 96→64 SMs", "decode · 36→68 SMs"]


def test_label_of_many_sizes_is_cut_in_the_middle():
    sizes = (8, 16, 24, 32, 40, 48)
    layouts = [Layout(partitions=(Partition(name="p", requested_sms=sms, granted_sms=sms),)) for sms in sizes]
    changes = [LayoutChange(time_ns=10 * k, layout=layout) for k, layout in enumerate(layouts)]
    lanes = (Lane(name="a", partition="p"),)
    trace = make_trace([("a", "x", 0, 100)], lanes=lanes, layouts=changes, layout=layouts[-1])
    assert plan_groups(trace)[0].label == "p · 8→16→…→48 SMs"


def test_partition_without_a_size_is_named_only():
    trace = make_trace([("a", "x", 0, 10)], lanes=(Lane(name="a", partition="p", sm_count=24),))
    (group,) = plan_groups(trace)
    assert (group.label, group.detail, group.granted_sms) == ("p", "", 24)


def test_lanes_without_any_partition_make_no_groups():
    assert plan_groups(nested_trace()) == ()
    assert plan_groups(empty_trace()) == ()


def test_after_the_partitions_are_gone_lanes_stay_where_their_spans_ran_last():
    trace = make_trace(
        [("a", "x", 0, 10, {"partition": 0}), ("a", "x", 20, 30, {"partition": 1}), ("b", "x", 0, 30)],
        partitions=(PREFILL, DECODE),
        layouts=(LayoutChange(time_ns=-1, layout=Layout(partitions=(PREFILL, DECODE))), LayoutChange(time_ns=40, layout=None)),
    )
    assert lane_partitions(trace) == ["decode", None]
    assert [(group.name, group.detail) for group in plan_groups(trace)] == [
        ("decode", "no partition any more"),
        (None, "shares SMs with every partition"),
    ]


def test_streams_that_were_moved_out_of_a_layout_that_stays_are_on_the_whole_card():
    trace = make_trace(
        [("a", "x", 0, 10, {"partition": 0})], partitions=(PREFILL,), layout=Layout(partitions=(PREFILL,)),
        lanes=(Lane(name="a"),),
    )  # fmt: skip
    assert lane_partitions(trace) == [None]


def test_current_partitions_come_before_those_that_are_gone():
    gone = Partition(name="gone", requested_sms=8, granted_sms=8)
    trace = make_trace(
        [("a", "x", 0, 10)],
        layouts=(LayoutChange(time_ns=1, layout=Layout(partitions=(gone,))),),
        layout=Layout(partitions=(PREFILL, DECODE)),
        lanes=(Lane(name="a", partition="unknown"),),
    )
    assert partition_order(trace) == ("prefill", "decode", "gone", "unknown")


@pytest.mark.parametrize(
    ("sms", "rows", "px"),
    [
        (132, 1, CARD_ROW_PX),
        (500, 1, CARD_ROW_PX),
        (66, 1, CARD_ROW_PX / 2),
        (1, 1, LEAST_ROW_PX),
        (132, 4, MOST_LANE_PX / 4),
        (132, 64, ROW_PX),
        (8, 64, LEAST_ROW_PX),
    ],
)
def test_row_height_follows_sms_within_limits(sms, rows, px):
    assert row_px(sms, 132, rows) == px


def test_bands_never_stack_higher_than_the_card():
    trace = partition_trace()
    bands = plan_bands(trace, 0)
    times = np.unique(np.concatenate([band.step_ns for band in bands]))
    height = sum(np.concatenate(([0], band.step_sms))[np.searchsorted(band.step_ns, times, side="right")] for band in bands)
    assert height.max() == 132
    assert [band.style.letter for band in bands] == ["A", "B", ""]
    assert max(bands[2].step_sms) == 36


def test_band_of_a_name_with_two_sizes_changes_its_height():
    band = plan_bands(repartition_trace(), 0)[0]
    assert band.label == "prefill · 96→64 SMs"
    assert set(band.step_sms.tolist()) == {0, 64, 96}


def test_partitions_in_which_nothing_ran_are_named_idle():
    spare = Partition(name="spare", requested_sms=8, granted_sms=8)
    trace = partition_trace()
    trace = replace(trace, layout=Layout(partitions=(*trace.layout, spare)), layouts=())
    assert idle_partitions(trace, plan_bands(trace, 0))[0][0] == "spare · 8 SMs, idle"


def test_changes_before_the_first_and_after_the_last_span_have_no_mark():
    layout = Layout(partitions=(PREFILL,))
    changes = (LayoutChange(time_ns=-5, layout=layout), LayoutChange(time_ns=200, layout=None))
    assert plan_marks(make_trace([("a", "x", 0, 100)], layouts=changes), 0, 100.0) == ((), [])


def test_layout_that_only_was_measured_anew_has_no_mark():
    seen, unseen = Layout(partitions=(PREFILL,)), Layout(partitions=(replace(PREFILL, sm_ids=None),))
    changes = (LayoutChange(time_ns=-5, layout=unseen), LayoutChange(time_ns=50, layout=seen))
    assert plan_marks(make_trace([("a", "x", 0, 100)], layouts=changes), 0, 100.0) == ((), [])


def test_too_many_changes_are_cut_and_counted():
    layout = Layout(partitions=(PREFILL,))
    changes = tuple(LayoutChange(time_ns=k + 1, layout=None if k % 2 else layout) for k in range(MAX_MARKED_CHANGES + 3))
    marks, notes = plan_marks(make_trace([("a", "x", 0, 10_000)], layouts=changes), 0, 10_000.0)
    assert len(marks) == MAX_MARKED_CHANGES
    assert notes == ["3 of 503 changes of the partitions are not marked"]


def test_texts_of_partitions_end_with_the_whole_card():
    assert partition_texts(partition_trace()) == ["prefill · 96 SMs (asked for 90)", "decode · 36 SMs", "whole card · 132 SMs"]
