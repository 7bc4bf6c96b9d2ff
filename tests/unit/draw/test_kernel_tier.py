"""Kernels, calls of the host, memory and strays in what is drawn from a trace of the kernel tier."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.analysis import strays
from gpustreamlab.draw import detail_entries, name_styles, pack_columns, plan_picture, plan_scene, text_timeline, timeline_svg
from gpustreamlab.draw._colours import CALL_STYLES, call_class
from gpustreamlab.draw._columns import WORK_DEFAULTS, wait_twins
from gpustreamlab.draw._legend import MAX_SAMPLES, plan_memory
from gpustreamlab.draw._scene import owner_rows, stray_facts
from gpustreamlab.draw._tables import scene_tables
from gpustreamlab.model import COLUMN_DTYPES, SPAN_KINDS, Counters, Edges, Lane, WorkDetail
from gpustreamlab.typing import LaneKind, SpanKind
from tests.helpers.kernel_traces import GEMM, kernel_trace
from tests.helpers.traces import MS, make_kernel_trace, partition_trace, pipeline_trace, random_trace


@pytest.fixture(scope="module")
def picture():
    return plan_picture(kernel_trace())


def tables_of(picture):
    tables = scene_tables(picture.trace, picture.scene, picture.header, picture.counted)
    return json.loads(json.dumps(tables, allow_nan=False))


def rows_of(picture, name):
    trace = picture.trace
    return np.flatnonzero(picture.columns.name == trace.names.index(name))


# ---- rows


def test_kernels_lie_below_the_ranges_of_their_stream(picture):
    scene, columns = picture.scene, picture.columns
    (step,), gemm = rows_of(picture, "step 0"), rows_of(picture, "gemm_bf16")
    above, below = columns.row[step], columns.row[gemm[0]]
    assert scene.rows.lane[above] == scene.rows.lane[below]
    assert scene.row_bottom[above] < scene.row_top[below]
    assert (scene.row_pale[above], scene.row_pale[below]) == (True, False)


def test_every_row_is_within_its_lane_and_rows_of_a_lane_do_not_touch(picture):
    scene = picture.scene
    for lane, box in enumerate(scene.lanes):
        own = np.flatnonzero(scene.rows.lane == lane)
        own = own[np.argsort(scene.row_top[own])]
        assert box.top < scene.row_top[own[0]]
        assert scene.row_bottom[own[-1]] < box.bottom
        assert (scene.row_top[own[1:]] > scene.row_bottom[own[:-1]]).all()


def test_threads_of_the_host_come_last_in_a_group_of_their_own(picture):
    scene, trace = picture.scene, picture.trace
    hosts = [box for lane, box in zip(trace.lanes, scene.lanes, strict=True) if lane.kind is LaneKind.HOST]
    streams = [box for lane, box in zip(trace.lanes, scene.lanes, strict=True) if lane.kind is LaneKind.STREAM]
    assert min(box.top for box in hosts) > max(box.bottom for box in streams)
    assert [scene.groups[box.group].group.label for box in hosts] == ["host", "host"]
    assert [box.group.is_host for box in scene.groups] == [False, False, False, True]
    assert scene.groups[-1].bottom == scene.height_px


def test_without_partitions_streams_come_first_and_only_the_host_has_a_group():
    trace = make_kernel_trace([("host: MainThread", "cuLaunchKernel", 0, 5, {"kind": "host"}), ("a", "gemm", 10, 20)])
    scene = plan_scene(trace)
    assert [box.group.label for box in scene.groups] == ["host"]
    assert [box.group for box in scene.lanes] == [0, -1]
    assert scene.lanes[1].bottom == scene.groups[0].top


def test_lanes_say_which_rows_hold_what(picture):
    labels = {box.label: [part.label for part in box.parts] for box in picture.scene.lanes}
    assert labels == {
        "prefill": ["ranges", "kernels", "memory"],
        "decode": ["ranges", "work"],
        "copies": ["ranges", "copies", "memory"],
        "torch stream 13": [],
        "stream 21": [],
        "host: MainThread": ["NVTX", "calls"],
        "host: loader": [],
    }


def test_the_priority_stands_beside_the_name(picture):
    texts = {box.label: box.texts[0] for box in picture.scene.lanes}
    assert (texts["decode"], texts["prefill"]) == ("decode · priority -1", "prefill")
    assert "decode · priority -1" in re.findall(r">([^<>]+)</text>", timeline_svg(kernel_trace()))


@pytest.mark.parametrize(
    ("kinds", "label"), [(["kernel"], "kernels"), (["copy"], "copies"), (["fill"], "fills"), (["copy", "fill"], "work")]
)
def test_rows_of_work_are_called_after_what_they_hold(kinds, label):
    work = [("a", "x", 10 * place, 10 * place + 5, {"kind": kind, "parent": 0}) for place, kind in enumerate(kinds)]
    (box,) = plan_scene(make_kernel_trace([("a", "step", 0, 90, {"kind": "range"}), *work])).lanes
    assert [part.label for part in box.parts] == ["ranges", label]


def test_streams_of_others_say_so(picture):
    details = {box.label: box.detail for box in picture.scene.lanes}
    assert (details["torch stream 13"], details["copies"]) == ("not made here", "")


def test_ranges_stand_back_only_where_there_are_kernels():
    assert not plan_scene(pipeline_trace()).row_pale.any()
    assert not any("pale" in row for row in tables_of(plan_picture(pipeline_trace()))["rows"])


# ---- columns


def test_columns_tell_how_a_kernel_was_launched_and_in_which_range(picture):
    trace, columns = picture.trace, picture.columns
    gemm = rows_of(picture, "gemm_bf16")[0]
    assert trace.details[columns.detail[gemm]] == GEMM
    assert trace.names[columns.owner_name[gemm]] == "step 0"
    assert trace.lanes[columns.owner_lane[gemm]].name == "prefill"
    copy = rows_of(picture, "copy HtoD")[0]
    assert columns.size_bytes[copy] == 16 << 20


def test_work_within_ranges_of_others_belongs_to_the_range_around_them(picture):
    columns, trace = picture.columns, picture.trace
    join = rows_of(picture, "hash_join")[0]
    assert trace.names[columns.owner_name[join]] == "step 0"


def test_columns_of_a_range_tell_when_its_work_ran(picture):
    columns = picture.columns
    (step,) = rows_of(picture, "step 0")
    found = columns.work_lead_ns[step], columns.work_tail_ns[step], columns.work_count[step]
    assert found == (5_000, 10_000, 3)


def test_strays_are_those_whose_range_selected_another_lane(picture):
    trace, columns = picture.trace, picture.columns
    lane = trace.lane[columns.place]
    found = np.flatnonzero((columns.owner_lane >= 0) & (columns.owner_lane != lane))
    assert sorted(columns.place[found].tolist()) == strays(trace).row.tolist()
    assert len(found) == 8
    (fact,) = stray_facts(trace)
    assert fact.startswith("Strays: 8 kernels ran on other streams than the selected one")
    assert fact in picture.header.missing
    assert stray_facts(kernel_trace(has_strays=False)) == []


def test_parents_in_a_circle_have_no_owner():
    spans = [
        ("host: a", "x", 0, 9, {"kind": "annotation", "parent": 1}),
        ("host: a", "y", 0, 9, {"kind": "annotation", "parent": 0}),
        ("s", "gemm", 1, 2, {"parent": 0}),
    ]
    rows = [(lane, name, start, end, {**options, "parent": -1}) for lane, name, start, end, options in spans]
    trace = replace(make_kernel_trace(rows), parent=[1, 0, 0])
    assert owner_rows(trace).tolist() == [-1, -1, -1]


def test_a_trace_of_ranges_has_no_columns_of_work():
    manifest, _ = pack_columns(plan_picture(random_trace(1_000)).columns, level=None)
    assert "detail" not in manifest["columns"]
    assert manifest["edges"]["columns"]["kind"] == 0


def test_columns_left_out_have_their_defaults():
    columns = plan_picture(pipeline_trace()).columns
    assert {name: set(getattr(columns, name).tolist()) for name in WORK_DEFAULTS} == {
        name: {value} for name, value in WORK_DEFAULTS.items()
    }


def test_launches_lead_from_the_start_of_the_call(picture):
    columns, trace = picture.columns, picture.trace
    launches = columns.edges[columns.edge_kind == 1]
    calls = trace.start_ns[trace.kind == SPAN_KINDS.index(SpanKind.HOST)] - picture.scene.zero_ns
    assert set(launches[:, 0].tolist()) <= set(calls.tolist())
    assert (launches[:, 2] > launches[:, 0]).all()


# ---- tables


def test_tables_hold_details_windows_and_call_styles(picture):
    tables = tables_of(picture)
    assert len(tables["details"]) == len(picture.trace.details)
    assert [label for label, *_ in tables["call_styles"]] == ["launch", "synchronise", "memory", "event"]
    assert tables["capture"]["shown"] is False
    assert [lane["host"] for lane in tables["lanes"]] == [False] * 5 + [True] * 2
    assert tables["kind_on_sms"][SPAN_KINDS.index(SpanKind.COPY)] is False


def test_windows_are_shown_where_they_leave_something_out():
    scene = plan_picture(kernel_trace(windows=((0, 2 * MS), (6 * MS, 7 * MS)))).scene
    assert scene.is_partly_captured
    assert scene.windows[1][1] - scene.windows[1][0] == MS


def test_full_names_are_cut_and_hold_no_signs_that_turn_a_line_round():
    ((text, *_),) = detail_entries([WorkDetail(full_name="\u202e" + "x" * 65_536)])
    assert len(text) <= 1_000
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("cudaLaunchKernel", "launch"), ("cuLaunchKernelEx", "launch"), ("cudaMemcpyAsync", "launch"),
        ("cuMemsetD8Async", "launch"), ("cudaGraphLaunch", "launch"), ("cudaDeviceSynchronize", "synchronise"),
        ("cuEventSynchronize", "synchronise"), ("cuMemAllocAsync", "memory"), ("cudaFree", "memory"),
        ("cuMemHostAlloc", "memory"), ("cudaEventRecord", "event"), ("cuStreamWaitEvent", "event"),
        ("cuApplyLayerNorm", ""), ("cudf: join", ""), ("step", ""), ("cuda kernel", ""),
    ],
)  # fmt: skip
def test_calls_are_told_by_what_they_are_for(name, label):
    assert call_class(name) == label


def test_calls_take_no_look_from_other_names():
    names = ["step", "cudaStreamSynchronize", "gemm"]
    step, call, gemm = name_styles(names)
    assert [step, gemm] == list(name_styles(["step", "gemm"]))
    assert call == CALL_STYLES["synchronise"]


# ---- memory


def test_memory_has_a_strip_below_its_lane(picture):
    scene = picture.scene
    prefill, copies = plan_memory(picture.trace, scene)
    assert [line.label for line in prefill.lines] == ["pool reserved", "pool in use"]
    assert [line.is_filled for line in copies.lines] == [True]
    own = scene.rows.lane == prefill.lane
    assert scene.row_bottom[own].max() < prefill.top < prefill.bottom < scene.lanes[prefill.lane].bottom
    assert prefill.most_bytes == 112 << 20


def test_many_samples_keep_their_highest_and_their_last():
    count = 50_000
    values = np.arange(count, dtype=float) % 977
    counters = Counters(
        time_ns=np.arange(count), lane=np.zeros(count), name=np.zeros(count), value=values, names=("pool_used_bytes",)
    )
    trace = make_kernel_trace([("a", "gemm", 0, count)], counters=counters)
    (strip,) = plan_memory(trace, plan_scene(trace))
    (line,) = strip.lines
    assert len(line.time_ns) <= MAX_SAMPLES
    assert (line.value.max(), line.value[-1]) == (976, values[-1])
    assert (np.diff(line.time_ns) > 0).all()


def test_memory_that_was_not_measured_has_no_line():
    counters = Counters(time_ns=[0], lane=[0], name=[0], value=[np.nan], names=("pool_used_bytes",))
    trace = make_kernel_trace([("a", "gemm", 0, 9)], counters=counters)
    (strip,) = plan_memory(trace, plan_scene(trace))
    assert (strip.lines, strip.most_bytes) == ((), 0)
    assert "max 0 B" in timeline_svg(trace)


def test_a_stream_with_memory_alone_is_its_strip():
    counters = Counters(time_ns=[0, 50], lane=[1, 1], name=[0, 0], value=[7.0, 9.0], names=("pool_used_bytes",))
    trace = replace(late_call_trace(), counters=counters)
    scene = plan_scene(trace)
    box = scene.lanes[1]
    assert [part.label for part in box.parts] == ["memory"]
    assert (box.texts[0], box.bottom - box.top) == ("default stream · memory", 40)
    (strip,) = plan_memory(trace, scene)
    assert box.top < strip.top < strip.bottom < box.bottom
    assert "default stream" in timeline_svg(trace)
    assert "default stream" not in text_timeline(trace, 100)


def test_a_stream_of_a_partition_with_memory_alone_is_its_strip_as_well():
    whole = partition_trace()
    own = np.flatnonzero(whole.lane != 2)  # all but those of "decode"
    columns = {name: getattr(whole, name)[own] for name in COLUMN_DTYPES}
    counters = Counters(time_ns=[0, 50], lane=[2, 2], name=[0, 0], value=[7.0, 9.0], names=("pool_used_bytes",))
    trace = replace(whole, **columns | {"parent": np.full(len(own), -1)}, edges=Edges(), counters=counters)
    box = plan_scene(trace).lanes[2]
    assert [part.label for part in box.parts] == ["memory"]
    assert "decode" in timeline_svg(trace)


# ---- waits


def test_a_wait_of_ranges_knows_that_of_the_work_in_them():
    trace = kernel_trace()
    twins, waits = wait_twins(trace), np.flatnonzero(trace.edges.kind == 0)
    kinds = np.array([kind.value for kind in SPAN_KINDS])
    found = [
        (kinds[trace.kind[trace.edges.source[own]]], trace.names[trace.name[trace.edges.target[waits[place + twins[own]]]]])
        for place, own in enumerate(waits.tolist())
        if twins[own]
    ]
    assert found == [("range", "gemm_bf16")] * 4
    assert not twins[trace.edges.kind != 0].any()


def test_waits_of_other_ranges_have_no_twin():
    step = {"kind": "range"}
    spans = [("a", "x", 0, 10, step), ("b", "y", 20, 90, step), ("a", "k", 1, 9), ("b", "m", 30, 40, {"parent": 1})]
    assert wait_twins(make_kernel_trace(spans, edges=[(0, 1), (2, 3)])).tolist() == [0, 0]
    spans[2] = ("a", "k", 1, 9, {"parent": 0})
    assert wait_twins(make_kernel_trace(spans, edges=[(0, 1), (2, 3)])).tolist() == [1, 0]


# ---- other forms


def test_header_says_what_was_captured():
    header = plan_picture(kernel_trace()).header
    assert header.tier == "kernels + ranges by CUPTI 13.0, ±200 ns"
    assert "in 5 streams and 2 host threads" in header.facts
    assert plan_picture(pipeline_trace()).header.tier == "ranges only: bars contain waiting"


def late_call_trace():
    """Calls around all work, a range that reaches beyond its kernel, and a stream on which nothing ran."""
    return make_kernel_trace(
        [
            ("host: MainThread", "cudaLaunchKernel", 0, 400, {"kind": "host"}),
            ("a", "step", 100, 700, {"kind": "range"}),
            ("a", "gemm", 300, 600, {"parent": 1}),
            ("host: MainThread", "cudaDeviceSynchronize", 500, 1_000, {"kind": "host"}),
        ],
        lanes=(
            Lane(name="a", stream=1),
            Lane(name="default stream", stream=0, outside=True),
            Lane(name="host: MainThread", kind=LaneKind.HOST),
        ),
    )


def test_all_headers_tell_the_same_time_and_streams():
    trace = late_call_trace()
    header = plan_picture(trace).header
    assert header.facts == "NVIDIA H200 · 4 spans in 1 stream and 1 host thread · 600 ns"
    first, *lines = text_timeline(trace, 120).splitlines()
    assert first == "Timeline of 4 spans in 1 stream and 1 host thread on NVIDIA H200 (SIMULATED): 600 ns"
    assert header.finding == "Busy 50% of the time; one stream, so nothing can overlap"
    assert header.finding in lines
    assert next(line for line in lines if line.startswith("a ")).endswith(" 50%")


def test_of_calls_alone_no_time_is_told():
    trace = make_kernel_trace([("host: MainThread", "cudaFree", 10, 400, {"kind": "host"})])
    assert plan_picture(trace).header.facts.endswith("1 span in 0 streams and 1 host thread · 0 ns")
    assert "0 ns" in text_timeline(trace, 100).splitlines()[0]


def test_static_picture_shows_kernels_calls_strays_memory_and_windows():
    svg = timeline_svg(kernel_trace(windows=((0, 2 * MS), (6 * MS, 8 * MS))))
    texts = re.findall(r">([^<>]+)</text>", svg)
    for text in (
        "gemm_bf16",
        "cudaStreamSynchronize",
        "kernels",
        "calls",
        "memory",
        "max 112 MiB",
        "kernels captured",
        "host: MainThread",
    ):
        assert text in texts, text
    assert svg.count("#c40d2e") == 2  # the corners, and their sign in the legend
    assert "kernels captured" not in timeline_svg(kernel_trace())


def test_text_shows_threads_of_the_host_below_all_streams():
    lines = text_timeline(kernel_trace(), 120).splitlines()
    host = next(number for number, line in enumerate(lines) if line.startswith("host · "))
    assert "host: MainThread" in lines[host + 1]
    assert all(name in "\n".join(lines[:host]) for name in ("prefill", "torch stream 13"))
    assert any("Strays: 8 kernels ran on other streams" in line for line in lines)


def test_text_of_many_threads_keeps_those_that_called_longest():
    spans = [(f"host: {k}", "cudaDeviceSynchronize", 0, 10 * k + 1, {"kind": "host"}) for k in range(9)]
    shown = text_timeline(make_kernel_trace([*spans, ("s", "gemm", 0, 90)]), 100)
    assert re.findall(r"host: (\d)", shown) == ["5", "6", "7", "8"]
    assert "5 more threads" in shown
