"""What other makers' traces tell is used as NVIDIA's is: streams, hardware queues, the null stream, waits, and words."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis._makers import maker_of
from gpustreamlab.typing import Cause, Certainty
from tests.helpers import dialect_files as files
from tests.helpers.nsys_files import two_streams

ROCM_HEAD = files.ROCM_CSV.partition("\n")[0] + "\n"


def read(tmp_path, content, name="run"):
    (tmp_path / name).write_bytes(content)
    return gsl.load_trace(tmp_path / name)


def causes(trace):
    return {(finding.code, finding.certainty) for finding in trace.explain().findings}


def streams(trace):
    return [(lane.name, lane.stream) for lane in trace.lanes if lane.kind == "stream"]


@pytest.mark.parametrize(
    ("numbers", "queues", "copies", "found"),
    [
        ((3,), (1,), (3,), [("stream 3", 3)]),
        ((0,), (1,), (0,), [("default stream", 0)]),
        ((0,), (4, 5), (0,), [("copies", 0), ("queue 4", 4), ("queue 5", 5)]),  # no stream is told
        ((0, 3), (4, 5), (3, 0), [("default stream", 0), ("stream 3", 3)]),
        ((3,), (4, 5), (), [("stream 3", 3)]),  # a stream may come through several queues
    ],
)
def test_one_hip_stream_is_one_lane_with_its_copies(numbers, queues, copies, found, tmp_path):
    trace = read(tmp_path, files.hip_in_turn(numbers, queues, copies=copies))
    assert streams(trace) == found
    assert {detail.channel for detail in trace.details if detail.full_name.startswith("saxpy")} == {*queues}


def test_one_stream_of_a_rocpd_database_is_one_lane(tmp_path):
    path = files.rocpd(tmp_path / "run.db")
    with sqlite3.connect(path) as base:
        base.execute("update rocpd_kernel_dispatch_0000abcd set stream_id = 1, queue_id = 1, start = end - 900")
    base.close()
    trace = gsl.load_trace(path)
    assert streams(trace) == [("stream 1", 1)]
    assert {detail.channel for detail in trace.details} == {1, -1}


@pytest.mark.parametrize(
    ("numbers", "queues", "call", "found"),
    [
        ((1, 2), (7, 7), 0, (Cause.QUEUE_ALIAS, Certainty.PROVED)),
        ((1, 2), (7, 8), 0, (Cause.UNKNOWN, Certainty.UNKNOWN)),
        ((1, 2), (7, 7), 1, (Cause.EVENT_WAIT, Certainty.LIKELY)),
        ((0, 2), (7, 8), 0, (Cause.LEGACY_STREAM, Certainty.LIKELY)),
        ((0, 2), (7, 7), 0, (Cause.QUEUE_ALIAS, Certainty.PROVED)),
        ((0, 2), (7, 8), 1, (Cause.EVENT_WAIT, Certainty.LIKELY)),
    ],
)
def test_queues_and_the_null_stream_of_hip_are_causes(numbers, queues, call, found, tmp_path):
    trace = read(tmp_path, files.hip_in_turn(numbers, queues, call=call))
    assert causes(trace) == {found}
    assert trace.metadata.waits_told is (call == 0)


def test_a_table_of_rocprofv3_is_of_amd_and_tells_queues(tmp_path):
    head = ROCM_HEAD + "".join(
        f'"KERNEL_DISPATCH","Agent 4",1,{turn % 2},"k",{turn},{1_000_000 + turn * 10_000},{1_009_000 + turn * 10_000},0'
        ",256,1,1,2048,1,1\n"
        for turn in range(20)
    )
    trace = read(tmp_path, head.encode())
    assert streams(trace) == [("default stream", 0), ("stream 1", 1)]
    text = str(trace.explain())
    assert "GPU_MAX_HW_QUEUES" in text
    assert "compute units" in text
    assert "both came through one hardware queue" in " ".join(text.split())
    assert "CUDA" not in text
    # THEN a picture says what is missing in the same words
    picture = trace.timeline()._repr_html_()
    assert "its compute units is not known" in picture
    assert "fill its SMs" not in picture


def ascend(*, with_ids, with_records=True):
    """Return a trace of Ascend's profiler: kernels of two streams in turn, each behind a wait for an event of the other."""
    number = {"args": {"Task Type": "EVENT", "Event Id": 5}} if with_ids else {"args": {"Task Type": "EVENT"}}
    events = [files.named(1, "CANN"), files.named(2, "Ascend Hardware")]
    for turn in range(12):
        at, stream, early = 5_000 + 105 * turn, 46 + turn % 2, 1_000 + 10 * turn
        events += [files.slice_of(1, 9, "aclrtLaunchKernel", early, 5), files.flow(1, 9, "s", turn + 1, early)]
        events += [files.slice_of(2, stream, "MatMulV2", at, 100), files.flow(2, stream, "f", turn + 1, at)]
        events += [files.slice_of(2, stream, "EVENT_RECORD", at + 100, 1, **number)] * with_records
        events += [files.slice_of(2, stream, "EVENT_WAIT", at - 104, 102, **number)] * (turn > 0)
    return files.chrome(events)


@pytest.mark.parametrize(("with_ids", "sure"), [(True, Certainty.PROVED), (False, Certainty.LIKELY)])
def test_streams_of_ascend_wait_for_events(with_ids, sure, tmp_path):
    trace = read(tmp_path, ascend(with_ids=with_ids))
    assert causes(trace) == {(Cause.EVENT_WAIT, sure)}
    waits = trace.edges.select("wait")
    assert len(waits) == (11 if with_ids else 0)
    assert (waits.target > waits.source).all()
    assert trace.metadata.waits_told is with_ids
    assert ("For which events streams waited is not told." in trace.metadata.missing) is not with_ids


def test_a_wait_for_an_event_that_nobody_recorded_is_no_edge(tmp_path):
    assert not len(read(tmp_path, ascend(with_ids=True, with_records=False)).edges.select("wait"))


def test_calls_of_an_unnamed_maker_are_joined_in_a_profile_of_pytorch(tmp_path):
    events = []
    for turn in range(20):
        at = 1_000 + 100 * turn
        told = {"args": {"correlation": turn + 1}}
        events.append(files.slice_of(1, 1, "aclrtLaunchKernel", at, 5, cat="privateuse1_runtime", **told))
        told = {"args": {"correlation": turn + 1, "device": 0, "stream": 1}}
        events.append(files.slice_of(0, 1, "MatMul", at + 9, 50, cat="kernel", **told))
    trace = read(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    assert len(trace.edges.select("launch")) == 20
    assert "no AscendCL call" in " ".join(str(trace.explain()).split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AMD Instinct MI300X", "a HIP graph, a compute unit, 4 compute units, RCCL, hipMalloc, NCCL_MAX, torch.cuda, CUDA_X"),
        ("Intel Arc", "a SYCL graph, a Xe core, 4 Xe cores, oneCCL, cudaMalloc, NCCL_MAX, torch.xpu, CUDA_X"),
        ("Ascend 910B", "an AscendCL graph, an AI core, 4 AI cores, HCCL, cudaMalloc, NCCL_MAX, torch.npu, CUDA_X"),
        ("NVIDIA H100", "a CUDA graph, an SM, 4 SMs, NCCL, cudaMalloc, NCCL_MAX, torch.cuda, CUDA_X"),
    ],
)
def test_what_is_said_is_said_in_the_makers_words(name, words):
    trace = gsl.Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], device=name)
    said = "a CUDA graph, an SM, 4 SMs, NCCL, cudaMalloc, NCCL_MAX, torch.cuda, CUDA_X"
    assert maker_of(trace).words(said) == words


def test_cards_of_two_makers_stay_two_when_traces_are_merged(tmp_path):
    files.rocpd(tmp_path / "amd.db")
    nvidia = two_streams().write(tmp_path / "nvidia.sqlite")
    trace = gsl.merge([nvidia, tmp_path / "amd.db", nvidia], ahead_ns=[0, 0, 10**9])
    assert [(card.ordinal, "AMD" in card.name) for card in trace.devices] == [(0, False), (1, True)]
    assert {(lane.device, lane.name) for lane in trace.lanes if lane.kind == "stream"} >= {(1, "stream 1"), (1, "stream 2")}


def test_uuids_of_cards_are_read(tmp_path):
    assert gsl.load_trace(files.rocpd(tmp_path / "amd.db")).metadata.device.uuid == "77"
    path = two_streams().write(tmp_path / "nvidia.sqlite")
    with sqlite3.connect(path) as base:
        base.execute("alter table TARGET_INFO_GPU add column uuid text default 'GPU-1'")
    base.close()
    assert gsl.load_trace(path).metadata.device.uuid == "GPU-1"


@pytest.mark.parametrize(("uuids", "count"), [(("a", "a"), 1), (("a", "b"), 2), (("", "b"), 1)])
def test_cards_of_one_name_are_told_apart_by_their_uuids(uuids, count):
    traces = [gsl.Trace.from_columns(start_ns=[0], end_ns=[9], stream=[name], device="H100") for name in "xy"]
    for place, uuid in enumerate(uuids):
        meta = traces[place].metadata
        traces[place] = replace(traces[place], metadata=replace(meta, device=replace(meta.device, uuid=uuid)))
    assert len(gsl.merge(traces, ahead_ns=[0, 5]).devices) == count
