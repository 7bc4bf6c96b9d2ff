"""Lanes by partition: grouping, labels, bands and marks."""

from __future__ import annotations

from dataclasses import replace

from gpustreamlab.draw import plan_groups
from gpustreamlab.draw._groups import (
    lane_partitions,
    partition_order,
    plan_bands,
    plan_partitions,
)
from gpustreamlab.model import Device, Lane, Layout, LayoutChange, Partition
from tests.helpers.traces import (
    DECODE,
    PREFILL,
    empty_trace,
    make_trace,
    nested_trace,
    partition_trace,
    repartition_trace,
    without_spans,
)


def test_labels_of_groups_have_sms_details_and_the_sizes_that_there_were():
    groups = plan_groups(partition_trace())
    assert [(group.label, group.detail) for group in groups] == [
        ("prefill · 96 SMs", "asked for 90 · verified"),
        ("decode · 36 SMs", "verified"),
        ("whole card · 132 SMs", "shares SMs with every partition"),
    ]
    assert [group.label for group in plan_groups(repartition_trace())] == ["prefill · 96→64 SMs", "decode · 36→68 SMs"]
    sizes = (8, 16, 24, 32, 40, 48)
    layouts = [Layout(partitions=(Partition(name="p", requested_sms=sms, granted_sms=sms),)) for sms in sizes]
    changes = [LayoutChange(time_ns=10 * k, layout=layout) for k, layout in enumerate(layouts)]
    lanes = (Lane(name="a", partition="p"),)
    trace = make_trace([("a", "x", 0, 100)], lanes=lanes, layouts=changes, layout=layouts[-1])
    assert plan_groups(trace)[0].label == "p · 8→16→…→48 SMs"
    assert plan_groups(nested_trace()) == ()
    assert plan_groups(empty_trace()) == ()


def test_partition_without_a_size_is_named_only():
    trace = make_trace([("a", "x", 0, 10)], lanes=(Lane(name="a", partition="p", sm_count=24),))
    (group,) = plan_groups(trace)
    assert (group.label, group.detail, group.granted_sms) == ("p", "", 24)


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
        layouts=(
            LayoutChange(time_ns=1, layout=Layout(partitions=(gone,))),
            LayoutChange(time_ns=2, layout=Layout(partitions=(PREFILL, DECODE))),
        ),
        lanes=(Lane(name="a", partition="unknown"),),
    )
    assert partition_order(trace) == ("prefill", "decode", "gone", "unknown")


def test_labels_are_the_same_without_the_spans():
    trace = repartition_trace()
    tables = without_spans(trace)
    extent_ns = (0, int(trace.end_ns.max()))
    assert plan_bands(tables, extent_ns) == plan_bands(trace)
    assert [group.label for group in plan_groups(tables, extent_ns)] == [group.label for group in plan_groups(trace)]
    assert plan_partitions(tables, plan_bands(tables)) == plan_partitions(trace, plan_bands(trace))


def test_partitions_in_which_nothing_ran_have_a_band_only_while_they_are_there():
    spare = Partition(name="spare", requested_sms=8, granted_sms=8)
    trace = partition_trace()
    trace = replace(trace, layout=Layout(partitions=(*trace.layout, spare)), layouts=())
    bands = plan_bands(trace)
    assert [band.name for band in bands] == ["prefill", "decode", "spare", None]
    trace = partition_trace()
    before_ns = trace.layouts[0].time_ns - 1
    gone = LayoutChange(time_ns=before_ns, layout=Layout(partitions=(Partition(name="gone", requested_sms=8, granted_sms=8),)))
    trace = replace(trace, layouts=(gone, *trace.layouts))
    bands = plan_bands(trace)
    assert [band.name for band in bands] == ["prefill", "decode", None]


def test_every_size_of_a_partition_has_its_text_and_points_to_the_band_of_its_name():
    trace = repartition_trace()
    entries = plan_partitions(trace, plan_bands(trace))
    assert [(entry.granted_sms, entry.band) for entry in entries] == [(132, 2), (96, 0), (36, 1), (64, 0), (68, 1)]
    texts = [entry.text for entry in plan_partitions(partition_trace(), ())]
    assert texts == ["whole card · 132 SMs", "prefill · 96 SMs (asked for 90)", "decode · 36 SMs"]


def test_devices_of_several_hosts_are_grouped_by_host_in_the_order_of_their_first_devices():
    trace = make_trace([(name, "x", 0, 100) for name in "abcd"])
    cards = tuple(
        Device(name="H200", ordinal=place, host=host, sm_count=132) for place, host in enumerate(("n2", "n1", "n2", ""))
    )
    lanes = tuple(replace(lane, device=place) for place, lane in enumerate(trace.lanes))
    several = replace(trace, lanes=lanes, metadata=replace(trace.metadata, devices=cards))
    assert [group.label for group in plan_groups(several)] == [
        "n2 / GPU 0 · 132 SMs",
        "n2 / GPU 2 · 132 SMs",
        "n1 / GPU 1 · 132 SMs",
        "unknown host / GPU 3 · 132 SMs",
    ]
    one_host = replace(several, metadata=replace(trace.metadata, devices=tuple(replace(card, host="n1") for card in cards)))
    assert [group.label for group in plan_groups(one_host)] == [f"GPU {place} · 132 SMs" for place in range(4)]
