"""Kernels, calls of the host, memory and strays in what is drawn from a trace of the kernel tier."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.analysis import strays
from gpustreamlab.draw import (
    WORK_DEFAULTS,
    detail_entries,
    page_data,
    plan_memory,
    plan_picture,
    plan_scene,
    stray_facts,
    text_timeline,
    timeline_svg,
)
from gpustreamlab.draw._card import MAX_SAMPLES
from gpustreamlab.model import COLUMN_DTYPES, SPAN_KINDS, Counters, Device, Edges, Lane, SMLimits, WorkDetail
from gpustreamlab.typing import LaneKind, SpanKind
from tests.helpers.kernel_traces import GEMM, kernel_trace
from tests.helpers.traces import MS, make_kernel_trace, partition_trace, pipeline_trace

WINDOWS = ((0, 2 * MS), (6 * MS, 7 * MS))


@pytest.fixture(scope="module")
def picture():
    return plan_picture(kernel_trace())


def tables_of(picture):
    return json.loads(json.dumps(page_data(picture)[0]["tables"], allow_nan=False))


def rows_of(picture, name):
    return np.flatnonzero(picture.columns.name == picture.trace.names.index(name))


def texts_of(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_kernels_lie_below_the_ranges_of_their_stream_which_stand_back(picture):
    scene, columns = picture.scene, picture.columns
    above, below = columns.row[rows_of(picture, "step 0")[0]], columns.row[rows_of(picture, "gemm_bf16")[0]]
    assert scene.rows.lane[above] == scene.rows.lane[below]
    assert scene.row_bottom[above] < scene.row_top[below]
    assert (scene.row_pale[above], scene.row_pale[below]) == (True, False)
    assert not plan_scene(pipeline_trace()).row_pale.any()
    assert not any("pale" in row for row in tables_of(plan_picture(pipeline_trace()))["rows"])


def test_threads_of_the_host_come_last_in_a_group_of_their_own(picture):
    scene, trace = picture.scene, picture.trace
    hosts = [box for lane, box in zip(trace.lanes, scene.lanes, strict=True) if lane.kind is LaneKind.HOST]
    streams = [box for lane, box in zip(trace.lanes, scene.lanes, strict=True) if lane.kind is LaneKind.STREAM]
    assert min(box.top for box in hosts) > max(box.bottom for box in streams)
    assert [scene.groups[box.group].group.label for box in hosts] == ["host", "host"]
    assert [box.group.is_host for box in scene.groups] == [False, False, False, True]
    assert [lane["host"] for lane in tables_of(picture)["lanes"]] == [False] * 5 + [True] * 2


def test_lanes_say_what_is_not_ordinary_and_where_their_memory_is(picture):
    parts = {box.label: (box.detail, [part.label for part in box.parts]) for box in picture.scene.lanes}
    assert parts == {
        "prefill": ("", ["", "memory"]),
        "decode": ("priority -1", []),
        "copies": ("", ["", "memory"]),
        "torch stream 13": ("not made here", []),
        "stream 21": ("not made here", []),
        "host: MainThread": ("", []),
        "host: loader": ("", []),
    }
    assert "decode · priority -1" in texts_of(timeline_svg(picture.trace))


# ---- columns and tables


def test_columns_tell_how_work_was_launched_in_which_range_and_when_it_ran(picture):
    trace, columns = picture.trace, picture.columns
    gemm, join = rows_of(picture, "gemm_bf16")[0], rows_of(picture, "hash_join")[0]
    assert trace.details[columns.detail[gemm]] == GEMM
    assert trace.lanes[columns.owner_lane[gemm]].name == "prefill"
    # Work within ranges of others belongs to the range around them.
    assert [trace.names[columns.owner_name[row]] for row in (gemm, join)] == ["step 0", "step 0"]
    assert columns.size_bytes[rows_of(picture, "copy HtoD")[0]] == 16 << 20
    (step,) = rows_of(picture, "step 0")
    assert (columns.work_lead_ns[step], columns.work_tail_ns[step], columns.work_count[step]) == (5_000, 10_000, 3)
    of_ranges = plan_picture(pipeline_trace()).columns
    assert {name: set(getattr(of_ranges, name).tolist()) for name in WORK_DEFAULTS} == {
        name: {value} for name, value in WORK_DEFAULTS.items()
    }


def test_strays_are_those_whose_range_selected_another_lane(picture):
    trace, columns = picture.trace, picture.columns
    found = np.flatnonzero((columns.owner_lane >= 0) & (columns.owner_lane != trace.lane[columns.place]))
    assert sorted(columns.place[found].tolist()) == strays(trace).row.tolist()
    assert len(found) == 8
    (fact,) = stray_facts(trace)
    assert fact.startswith("Strays: 8 kernels ran on other streams than the selected one")
    assert fact in picture.header.missing
    assert stray_facts(kernel_trace(has_strays=False)) == []


def test_parents_in_a_circle_have_no_owner():
    note = {"kind": "annotation"}
    trace = make_kernel_trace([("host: a", "x", 0, 9, note), ("host: a", "y", 0, 9, note), ("s", "gemm", 1, 2)])
    assert set(plan_picture(replace(trace, parent=[1, 0, 0])).columns.owner_name.tolist()) == {-1}


def test_launches_lead_from_the_start_of_the_call(picture):
    columns, trace = picture.columns, picture.trace
    launches = columns.edges[columns.edge_kind == 1]
    calls = trace.start_ns[trace.kind == SPAN_KINDS.index(SpanKind.HOST)] - picture.scene.zero_ns
    assert set(launches[:, 0].tolist()) <= set(calls.tolist())
    assert (launches[:, 2] > launches[:, 0]).all()


def test_tables_hold_details_windows_and_call_styles(picture):
    tables = tables_of(picture)
    assert len(tables["details"]) == len(picture.trace.details)
    assert [label for label, *_ in tables["call_styles"]] == ["launch", "synchronise", "memory", "event", "create"]
    assert tables["kind_on_sms"][SPAN_KINDS.index(SpanKind.COPY)] is False
    assert tables["capture"]["shown"] is False
    shown = tables_of(plan_picture(kernel_trace(windows=WINDOWS)))["capture"]
    assert (shown["shown"], np.diff(shown["windows"][1]).tolist()) == (True, [MS])


def test_full_names_are_cut_and_hold_no_signs_that_turn_a_line_round():
    ((text, *_),) = detail_entries([WorkDetail(full_name="\u202e" + "x" * 65_536)], SMLimits())
    assert len(text) <= 1_000
    assert "\u202e" not in text


# ---- memory


def counted(trace, lane, values, times_ns=(0, 50)):
    zeros = np.zeros(len(values))
    counters = Counters(time_ns=times_ns, lane=zeros + lane, name=zeros, value=values, names=("pool_used_bytes",))
    return replace(trace, counters=counters)


def test_memory_has_a_strip_below_its_lane(picture):
    scene = picture.scene
    prefill, copies = plan_memory(picture.trace, scene)
    assert [line.label for line in prefill.lines] == ["pool reserved", "pool in use"]
    assert [line.is_filled for line in copies.lines] == [True]
    own = scene.rows.lane == prefill.lane
    assert scene.row_bottom[own].max() < prefill.top < prefill.bottom < scene.lanes[prefill.lane].bottom
    assert prefill.most_bytes == 112 << 20


def test_what_is_counted_in_another_unit_is_no_memory():
    trace = make_kernel_trace([("a", "gemm", 0, 100), ("b", "gemm", 0, 100)])
    values = {"time_ns": [0, 0, 50], "lane": [0, 1, 1], "name": [0, 0, 1], "value": [2e6, 1e6, 64.0]}
    trace = replace(trace, counters=Counters(**values, names=("thread_time_ns", "pool_used_bytes")))
    (strip,) = plan_memory(trace, plan_scene(trace))
    assert strip.lane == 1
    assert strip.most_bytes == 64
    assert [line.label for line in strip.lines] == ["pool in use"]
    only_time = replace(trace, counters=Counters(time_ns=[0], lane=[0], name=[0], value=[2e6], names=("thread_time_ns",)))
    assert plan_memory(only_time, plan_scene(only_time)) == ()
    assert "MiB" not in timeline_svg(only_time)


def test_many_samples_keep_their_highest_and_their_last():
    count = 50_000
    values = np.arange(count, dtype=float) % 977
    values[12_345] = 5_000
    trace = counted(make_kernel_trace([("a", "gemm", 0, count)]), 0, values, np.arange(count))
    ((line,),) = (strip.lines for strip in plan_memory(trace, plan_scene(trace)))
    assert len(line.time_ns) <= MAX_SAMPLES
    assert (line.value.max(), line.value[-1]) == (5_000, values[-1])
    assert (np.diff(line.time_ns) > 0).all()


def test_memory_that_was_not_measured_has_no_line():
    trace = counted(make_kernel_trace([("a", "gemm", 0, 9)]), 0, [np.nan], [0])
    (strip,) = plan_memory(trace, plan_scene(trace))
    assert (strip.lines, strip.most_bytes) == ((), 0)


def test_a_stream_with_memory_alone_is_its_strip():
    trace = counted(late_call_trace(), 1, [7.0, 9.0])
    scene = plan_scene(trace)
    box, (strip,) = scene.lanes[1], plan_memory(trace, scene)
    assert (box.text, box.bottom - box.top) == ("default stream · memory", 36)
    assert box.top < strip.top < strip.bottom < box.bottom
    # THEN a picture folds it, as the viewer does
    assert "1 stream without work" in timeline_svg(trace)
    assert "default stream" not in text_timeline(trace, 100)


def test_a_stream_of_a_partition_with_memory_alone_is_its_strip_as_well():
    whole = partition_trace()
    own = np.flatnonzero(whole.lane != 2)  # all but those of "decode"
    columns = {name: getattr(whole, name)[own] for name in COLUMN_DTYPES}
    trace = counted(replace(whole, **columns | {"parent": np.full(len(own), -1)}, edges=Edges()), 2, [7.0, 9.0])
    assert [part.label for part in plan_scene(trace).lanes[2].parts] == ["memory"]
    assert "decode" in timeline_svg(trace)  # its partition


# ---- other forms


def late_call_trace():
    """Calls around all work, a range that reaches beyond its kernel, and a stream on which nothing ran."""
    spans = [
        ("host: MainThread", "cudaLaunchKernel", 0, 400, {"kind": "host"}),
        ("a", "step", 100, 700, {"kind": "range"}),
        ("a", "gemm", 300, 600, {"parent": 1}),
        ("host: MainThread", "cudaDeviceSynchronize", 500, 1_000, {"kind": "host"}),
    ]
    streams = (Lane(name="a", stream=1), Lane(name="default stream", stream=0, outside=True))
    return make_kernel_trace(spans, lanes=(*streams, Lane(name="host: MainThread", kind=LaneKind.HOST)))


def test_all_headers_tell_the_same_tier_time_and_streams(picture):
    assert picture.header.tier == "kernels + ranges by CUPTI 13.0, ±200 ns"
    assert "in 5 streams and 2 host threads" in picture.header.facts
    assert plan_picture(pipeline_trace()).header.tier == "ranges only: bars contain waiting"
    trace = late_call_trace()
    header = plan_picture(trace).header
    assert header.facts == "NVIDIA H200 · 4 spans in 1 stream and 1 host thread · 300 ns"
    first, *lines = text_timeline(trace, 120).splitlines()
    assert first == "Timeline of 4 spans in 1 stream and 1 host thread on NVIDIA H200 (SIMULATED): 300 ns"
    assert header.finding == "Busy 100% of the time, on one stream"
    assert header.finding in lines
    assert next(line for line in lines if line.startswith("a ")).endswith("100%")


def test_of_calls_alone_the_threads_and_their_time_are_told_and_no_sms_where_these_are_not_known():
    trace = make_kernel_trace([("host: MainThread", "cudaFree", 10, 400, {"kind": "host"})])
    unknown = replace(trace, metadata=replace(trace.metadata, device=Device(name="unknown device", sm_count=0)))
    for one in (trace, unknown):
        assert plan_picture(one).header.facts.endswith("1 span in 1 host thread · 390 ns")
        assert text_timeline(one, 100).splitlines()[0].endswith(": 390 ns")
    assert plan_picture(unknown).header.sentence == "1 host thread · 390 ns"
    assert [one.text for one in plan_picture(unknown).scene.partitions] == ["whole card"]


def test_static_picture_shows_kernels_calls_strays_and_windows_and_folds_memory(picture):
    svg = timeline_svg(kernel_trace(windows=WINDOWS))
    bars = {"gemm_bf16", "cudaStreamSynchronize", "host: MainThread"}
    assert bars | {"copy in", "copy out", "132 SMs", "kernels captured"} <= set(texts_of(svg))
    assert "memory" not in texts_of(svg)
    assert svg.count("#c40d2e") == 2  # the corners, and their sign in the legend
    assert "#c40d2e" not in timeline_svg(pipeline_trace())
    whole = timeline_svg(picture.trace)
    assert "kernels captured" not in whole
    assert len(re.findall("v(-?5)h\\1z", whole)) == 4  # of 8 waits, half are of ranges with work that waited as well


def test_text_shows_threads_of_the_host_below_all_streams(picture):
    lines = text_timeline(picture.trace, 120).splitlines()
    host = next(number for number, line in enumerate(lines) if line.startswith("host · "))
    assert "host: MainThread" in lines[host + 1]
    assert all(name in "\n".join(lines[:host]) for name in ("prefill", "torch stream 13"))
    assert any("Strays: 8 kernels ran on other streams" in line for line in lines)


def test_text_of_many_threads_keeps_those_that_called_longest():
    spans = [(f"host: {k}", "cudaDeviceSynchronize", 0, 10 * k + 1, {"kind": "host"}) for k in range(9)]
    shown = text_timeline(make_kernel_trace([*spans, ("s", "gemm", 0, 90)]), 100)
    assert re.findall(r"host: (\d)", shown) == ["5", "6", "7", "8"]
    assert "5 more threads" in shown
