"""What other makers' traces tell is used as NVIDIA's is: streams, hardware queues, the null stream, waits, and words."""

from __future__ import annotations

import sqlite3

import pytest

import gpustreamlab as gsl
from gpustreamlab.typing import Cause, Certainty
from tests.helpers import dialect_files as files


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


ROCM_HEAD = files.ROCM_CSV.partition("\n")[0] + "\n"
