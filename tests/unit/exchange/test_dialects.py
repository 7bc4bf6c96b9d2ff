"""Files of other profilers become traces: their streams are lanes, their calls are joined, and what they lack is told."""

from __future__ import annotations

import os
import random
import re
import sqlite3

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import GPUStreamLabError, TraceFileError
from gpustreamlab.exchange import find_format
from gpustreamlab.model import SPAN_KINDS
from tests.helpers import dialect_files as files

CHANGED = int(os.environ.get("GPUSTREAMLAB_FUZZ", "60"))  # Of each format; 2,000 by hand


def saved(content):
    """Return what writes such bytes into a folder."""

    def write(folder):
        (folder / "made").write_bytes(content)
        return folder / "made"

    return write


MADE = {
    "onnx": saved(files.onnx()),
    "ascend": saved(files.chrome(files.ASCEND)),
    "unitrace": saved(files.chrome(files.UNITRACE)),
    "rocprof": saved(files.chrome(files.ROCPROF)),
    "tensorflow": saved(files.chrome(files.TENSORFLOW)),
    "rocpd": lambda folder: files.rocpd(folder / "made"),
    "rpd": lambda folder: files.rpd(folder / "made"),
    "rocprofv3 json": saved(files.rocprofv3_json()),
}


def told(trace):
    """Return each span: lane, name, kind, start and end."""
    frame = trace.to_pandas()
    return [tuple(row) for row in frame[["lane", "name", "kind", "start_ns", "end_ns"]].itertuples(index=False)]


def device_work(trace):
    return [(*row[:3], row[4] - row[3]) for row in told(trace) if row[2] in {"kernel", "copy", "fill"}]


def test_an_onnx_profile_has_its_kernels_and_copies_on_streams(tmp_path):
    path = MADE["onnx"](tmp_path)
    trace = gsl.load_trace(path)
    assert find_format(path) == "chrome"
    assert trace.metadata.capture_source == "ONNX Runtime"
    assert device_work(trace) == [
        ("stream 7", "memcpy HtoD", "copy", 30_000),
        ("stream 7", "ampere_sgemm_32x32", "kernel", 80_000),
        ("stream 13", "add_kernel", "kernel", 50_000),
    ]
    details = {detail.full_name: (detail.grid, detail.block) for detail in trace.details}
    assert details["ampere_sgemm_32x32"] == ((64, 2, 1), (128, 1, 1))
    assert trace.extra["size_bytes"].max() == 4096
    assert {row[0] for row in told(trace) if row[2] == "annotation"} == {"host: thread 6"}
    assert "neither which card nor which call" in " ".join(trace.metadata.missing)


def test_streams_of_an_ascend_are_lanes_and_waits_are_no_work(tmp_path):
    trace = gsl.load_trace(MADE["ascend"](tmp_path))
    assert device_work(trace) == [
        ("stream 46", "MatMulV2", "kernel", 130_000),
        ("stream 43", "MEMCPY_ASYNC", "copy", 30_000),
    ]
    assert ("stream 43", "EVENT_WAIT", "annotation") in [row[:3] for row in told(trace)]
    assert len(trace.edges.select("launch")) == 1
    assert trace.metadata.epoch_unix_ns == 1_730_943_468_310_229_220
    assert not any(lane.name.startswith("host: ") and "Overlap" in lane.name for lane in trace.lanes)


def test_engines_of_unitrace_are_lanes_by_their_names(tmp_path):
    trace = gsl.load_trace(MADE["unitrace"](tmp_path))
    assert [row[0] for row in device_work(trace)] == ["Thread 10 Compute Engine<0,0>"]
    assert trace.lanes[0].device == 1
    assert len(trace.edges.select("launch")) == 1


def test_rocprof_and_tensorflow_have_their_devices(tmp_path):
    rocprof = gsl.load_trace(MADE["rocprof"](tmp_path))
    assert device_work(rocprof) == [("stream 0", "saxpy", "kernel", 50_000), ("stream 1", "sgemm", "kernel", 60_000)]
    assert {lane.device for lane in rocprof.lanes if lane.kind == "stream"} == {1}
    tensorflow = gsl.load_trace(MADE["tensorflow"](tmp_path))
    assert device_work(tensorflow) == [("stream 13", "MatMul", "kernel", 40_000)]  # once: "stream:all" says it again


def test_a_rocpd_database_has_streams_blocks_calls_and_its_card(tmp_path):
    path = MADE["rocpd"](tmp_path)
    trace = gsl.load_trace(path)
    assert find_format(path) == "rocm"
    assert told(trace) == [
        ("host: thread 4711", "step", "annotation", 900, 9000),
        ("host: thread 4711", "hipLaunchKernel", "host", 1000, 1500),
        ("host: thread 4711", "hipLaunchKernel", "host", 2000, 2500),
        ("host: thread 4711", "hipMemcpyAsync", "host", 2600, 2900),
        ("stream 1", "saxpy", "kernel", 3000, 5000),
        ("stream 2", "gemm.kd", "kernel", 4000, 7000),
        ("stream 1", "memcpy HtoD", "copy", 7000, 8000),
    ]
    assert [detail.grid for detail in trace.details] == [(4, 1, 1), (10, 2, 1), (0, 0, 0)]
    assert len(trace.edges.select("launch")) == 3
    device = trace.metadata.device
    assert (device.name, device.sm_count, device.sm_limits.shared_bytes) == ("AMD Instinct MI300X", 304, 64 << 10)


def test_a_database_of_rocm_profile_data_is_read(tmp_path):
    trace = gsl.load_trace(MADE["rpd"](tmp_path))
    assert told(trace) == [
        ("host: thread 77", "hipLaunchKernel", "host", 100, 200),
        ("GPU 0 queue 0", "saxpy", "kernel", 300, 900),
        ("GPU 1 queue 0", "memcpy HtoD", "copy", 950, 990),
    ]
    assert len(trace.edges.select("launch")) == 1


def test_json_of_rocprofv3_is_read(tmp_path):
    trace = gsl.load_trace(MADE["rocprofv3 json"](tmp_path))
    assert told(trace) == [
        ("host: thread 77", "step", "annotation", 900, 8000),
        ("host: thread 77", "hipLaunchKernel", "host", 1000, 1500),
        ("queue 1", "saxpy", "kernel", 3000, 5000),
        ("copies", "memcpy DtoH", "copy", 6000, 7000),
    ]
    assert trace.details[0].grid == (4, 1, 1)
    assert "1 of scratch_memory" in trace.metadata.imported
    assert trace.metadata.device.sm_count == 304


@pytest.mark.parametrize("name", MADE)
def test_a_damaged_file_gives_a_trace_or_an_error_of_ours(name, tmp_path):
    content, dice = MADE[name](tmp_path).read_bytes(), random.Random(47)
    for _ in range(CHANGED):
        changed = bytearray(content)
        for _ in range(dice.choice((1, 2, 8))):
            at = dice.randrange(len(changed))
            changed[at : at + dice.choice((0, 1, 1, 4))] = dice.choice(
                (b"", b"\0", b"-1", b"9" * 30, b"null", b'"x"', b"[]", b"{}", bytes([dice.randrange(256)]))
            )
        if dice.random() < 0.2:
            del changed[dice.randrange(1, len(changed)) :]
        (tmp_path / "changed").write_bytes(changed)
        try:
            trace = gsl.load_trace(tmp_path / "changed")
        except GPUStreamLabError:
            continue
        assert len(trace.kind) == len(trace)
        assert {SPAN_KINDS[code] for code in trace.kind.tolist()} <= {*SPAN_KINDS}


def test_a_database_without_rows_says_what_to_record(tmp_path):
    with sqlite3.connect(tmp_path / "made.db") as base:
        base.execute("create table rocpd_op(id integer primary key, start, end)")
    base.close()
    with pytest.raises(TraceFileError, match=re.escape("holds no kernels, copies, calls or ranges")) as error:
        gsl.load_trace(tmp_path / "made.db")
    assert "rocprofv3 --sys-trace --output-format rocpd" in str(error.value)
