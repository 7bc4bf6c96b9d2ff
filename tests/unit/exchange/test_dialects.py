"""Files of other profilers become traces: their streams are lanes, their calls are joined, and what they lack is told."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import sqlite3
import tarfile
import zipfile

import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import GPUStreamLabError, TraceFileError
from gpustreamlab.exchange import find_format
from gpustreamlab.model import SPAN_KINDS
from tests.helpers import dialect_files as files
from tests.helpers.long_runs import count
from tests.helpers.nsys_files import two_streams

CHANGED = count(8, 300)  # Of each format


def saved(content, name="made"):
    """Return what writes such bytes into a folder."""

    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


MADE = {
    "onnx": saved(files.onnx()),
    "ascend": saved(files.chrome(files.ASCEND)),
    "unitrace": saved(files.chrome(files.UNITRACE)),
    "rocprof": saved(files.chrome(files.ROCPROF)),
    "tensorflow": saved(files.chrome(files.TENSORFLOW)),
    "rocpd": lambda folder: files.rocpd(folder / "made"),
    "rocpd 4": lambda folder: files.rocpd(folder / "made", schema=4),
    "nsys lines": lambda folder: two_streams().write_lines(folder / "made"),
    "rpd json": saved(json.dumps(files.RPD).encode()),
    "rpd": lambda folder: files.rpd(folder / "made"),
    "rocprofv3 json": saved(files.rocprofv3_json()),
    "rocprofv3 pftrace": saved(files.perfetto_of_amd()),
    "xpu": saved(files.xpu()),
    "xplane": saved(files.xplane(), "made.xplane.pb"),
    "nsys csv": saved(files.NSYS_CSV.encode()),
    "rocm csv": saved(files.ROCM_CSV.encode()),
    "memory": saved(json.dumps(files.MEMORY).encode()),
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


def test_devices_of_opencl_have_no_number_and_those_of_tensorflow_1_a_context(tmp_path):
    opencl = gsl.load_trace(saved(files.chrome(files.OPENCL))(tmp_path))
    assert device_work(opencl) == [
        ("CL Queue<0x5581>", "clEnqueueWriteBuffer", "copy", 20_000),
        ("CL Queue<0x5581>", "saxpy", "kernel", 50_000),
    ]
    tensorflow = gsl.load_trace(saved(files.chrome(files.TENSORFLOW_1))(tmp_path))
    assert device_work(tensorflow) == [("stream 0", "memcpy HtoD", "copy", 4_000), ("stream 1", "MatMul", "kernel", 40_000)]


def test_json_of_rocm_profile_data_tells_as_its_database_does(tmp_path):
    trace = gsl.load_trace(MADE["rpd json"](tmp_path))
    assert told(trace) == [
        ("host: Hip 77", "hipMemcpyWithStream", "host", 100_000, 130_000),
        ("stream 0", "memcpy HtoD", "copy", 120_000, 170_000),
        ("stream 0", "memset", "fill", 180_000, 185_000),
    ]
    assert len(trace.edges.select("launch")) == 1
    assert "1 of 2 kernels, copies and fills have no call" in " ".join(trace.metadata.missing)


@pytest.mark.parametrize("name", ["rocpd", "rocpd 4"])
def test_a_rocpd_database_has_streams_blocks_calls_and_its_card(name, tmp_path):
    path = MADE[name](tmp_path)
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


def test_kernels_of_amd_in_a_perfetto_trace_lie_on_lanes_of_the_card(tmp_path):
    trace = gsl.load_trace(MADE["rocprofv3 pftrace"](tmp_path))
    assert [row[1:] for row in told(trace)] == [
        ("hipLaunchKernel", "host", 100, 400),
        ("memcpy HtoD", "copy", 500, 900),
        ("saxpy", "kernel", 1000, 5000),
        ("sgemm", "kernel", 2000, 7000),
    ]
    assert [(lane.kind, lane.device) for lane in trace.lanes] == [("stream", 0)] * 3 + [("host", 0)]
    assert len(trace.edges.select("launch")) == 1


def test_calls_of_an_intel_card_are_joined_to_their_work(tmp_path):
    trace = gsl.load_trace(MADE["xpu"](tmp_path))
    assert find_format(tmp_path / "made") == "kineto"
    assert [row[:2] for row in device_work(trace)] == [("stream 1", "gemm_kernel"), ("stream 2", "gemm_kernel")]
    assert len(trace.edges.select("launch")) == 2
    assert trace.metadata.device.name.startswith("Intel")


def test_an_xplane_file_has_streams_grids_calls_and_the_card(tmp_path):
    trace = gsl.load_trace(MADE["xplane"](tmp_path))
    assert told(trace) == [
        ("host: python", "cuLaunchKernel", "host", 1500, 1600),
        ("stream 18", "memcpy HtoD", "copy", 2000, 2300),
        ("stream 17", "gemm", "kernel", 3000, 3500),
    ]
    assert [detail.grid for detail in trace.details if detail.full_name == "gemm"] == [(8, 2, 1)]
    assert (trace.metadata.device.ordinal, trace.metadata.device.sm_count) == (1, 132)
    assert len(trace.edges.select("launch")) == 1
    assert "1 that sum up what devices did" in trace.metadata.imported


def test_lines_of_tensorflow_that_sum_up_are_not_read_as_work_again(tmp_path):
    (tmp_path / "run.xplane.pb").write_bytes(files.xplane(of_tensorflow=True))
    trace = gsl.load_trace(tmp_path / "run.xplane.pb")
    assert told(trace) == told(gsl.load_trace(MADE["xplane"](tmp_path)))
    assert "10 that sum up what devices did" in trace.metadata.imported


def test_tables_of_csv_are_read_with_rows_in_any_order(tmp_path):
    trace = gsl.load_trace(MADE["nsys csv"](tmp_path))
    assert told(trace) == [
        ("stream 13", "memcpy HtoD (pageable)", "copy", 100, 400),
        ("stream 7", "gemm<float, 2>", "kernel", 900, 1000),
    ]
    assert trace.lanes[0].device == 1
    assert {detail.grid for detail in trace.details} == {(64, 2, 1), (0, 0, 0)}
    assert trace.extra["size_bytes"].tolist() == [4000, 0]
    rocm = gsl.load_trace(MADE["rocm csv"](tmp_path))
    assert told(rocm) == [("default stream", "saxpy", "kernel", 3000, 5000), ("stream 26", "sgemm", "kernel", 6000, 7000)]
    assert [detail.channel for detail in rocm.details] == [17, 2]
    assert {detail.grid for detail in rocm.details} == {(4, 1, 1), (1, 1, 1)}


def test_copies_of_rocprofv3_are_copies_of_a_card(tmp_path):
    trace = gsl.load_trace(saved(files.ROCM_COPIES.encode())(tmp_path))
    assert told(trace) == [("copies", "memcpy HtoD", "copy", 100, 200), ("copies", "memcpy DtoH", "copy", 300, 400)]
    assert trace.lanes[0].device == 1


def test_a_table_of_rocprof_is_read(tmp_path):
    head = '"Index","KernelName","gpu-id","queue-id","grd","wgr","lds","BeginNs","EndNs","DurationNs"\n'
    (tmp_path / "results.csv").write_text(head + '0,"saxpy(float*) [clone .kd]",2,3,262144,256,512,200,300,100\n')
    trace = gsl.load_trace(tmp_path / "results.csv")
    assert [row[1:] for row in told(trace)] == [("saxpy", "kernel", 200, 300)]
    assert (trace.lanes[0].name, trace.lanes[0].device) == ("queue 3", 2)
    assert (trace.details[0].grid, trace.details[0].block) == ((1024, 1, 1), (256, 1, 1))


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n \n", b"\xef\xbb\xbf\r\n"])
def test_json_lines_may_begin_with_a_mark_or_blank_lines(before, tmp_path):
    path = MADE["nsys lines"](tmp_path)
    expected, content = told(gsl.load_trace(path)), path.read_bytes()
    path.write_bytes(before + content)
    assert (find_format(path), told(gsl.load_trace(path))) == ("nsys", expected)


@pytest.mark.parametrize("name", ["run.pb", "run"])
def test_an_xplane_file_is_known_by_any_name(name, tmp_path):
    (tmp_path / name).write_bytes(files.xplane())
    assert find_format(tmp_path / name) == "xplane"
    assert len(device_work(gsl.load_trace(tmp_path / name))) == 2
    (tmp_path / name).write_bytes(files.perfetto_of_amd())
    assert find_format(tmp_path / name) == "perfetto"


def test_a_memory_timeline_becomes_counters(tmp_path):
    counters = gsl.load_trace(MADE["memory"](tmp_path)).counters
    assert len(counters) == 16
    named = [counters.names[code] for code in counters.name.tolist()]
    values = dict(zip(zip(named, counters.time_ns.tolist(), strict=True), counters.value.tolist(), strict=True))
    assert values["parameters_bytes", 10_000] == 1
    assert values["gradients_bytes", 20_000] == 4


def zipped(folder, more=()):
    with zipfile.ZipFile(folder / "run.zip", "w") as packed:
        packed.writestr("run/trace.json", files.onnx())
        for name in more:
            packed.writestr(name, b"x")
    return folder / "run.zip"


def tarred(folder, way="w:gz"):
    with tarfile.open(folder / "run.tar.gz", way) as packed:
        member = tarfile.TarInfo("run/trace.json")
        member.size = len(files.onnx())
        packed.addfile(member, io.BytesIO(files.onnx()))
    return folder / "run.tar.gz"


def in_zstd(folder):
    with pa.CompressedOutputStream(folder / "run.json.zst", "zstd") as file:
        file.write(files.onnx())
    return folder / "run.json.zst"


@pytest.mark.parametrize("pack", [zipped, tarred, lambda folder: tarred(folder, "w"), in_zstd])
def test_an_archive_with_one_trace_opens_as_it_is(pack, tmp_path):
    assert len(device_work(gsl.load_trace(pack(tmp_path)))) == 3


def test_an_archive_that_is_damaged_or_has_more_than_one_trace_says_so(tmp_path):
    with pytest.raises(TraceFileError, match=r"archive of 2 files that may be traces \('run/trace.json', 'b.json'\)"):
        gsl.load_trace(zipped(tmp_path, ["b.json", "__MACOSX/c.json", "readme"]))
    for path in (zipped(tmp_path), tarred(tmp_path), in_zstd(tmp_path)):
        path.write_bytes(path.read_bytes()[:-60])
        with pytest.raises(TraceFileError, match=f"{path.name}.*cannot be unpacked|{path.name}.*damaged"):
            gsl.load_trace(path)


FOREIGN = {
    "ExecutionTrace": b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}',
    "ExecutionTrace of PyTorch": b'{\n  "schema": "1.0.1", "pid": 563677, "time": "2023-07-14", "nodes": []}',
    "sums of nsys": b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n90.0,5,1,5,gemm\n",
    "sums of nsys or rocprofv3": b'"Name","Calls","TotalDurationNs","AverageNs"\n"hipFree",12,1994421,166201.7\n',
    "rocprof": b'"Index","KernelName","gpu-id","queue-id","grd","wgr"\n0,"k",1,0,64,64\n',
    "speedscope": b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
    "proton": b'[{"children": [], "frame": {"name": "ROOT"}, "metrics": {}}]',
    "trtexec": b'[\n { "count" : 10 }\n, { "name" : "conv1", "timeMs" : 3 }]',
    "times of trtexec": b'[\n { "startEnqMs" : 0.2, "endEnqMs" : 1.0, "startH2dMs" : 0.1, "startComputeMs" : 0.3 }\n]',
    "Nsight Compute": b"NVR\0" + bytes(50),
    "Git LFS": gzip.compress(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_read_is_named_with_what_to_record(name, tmp_path):
    (tmp_path / "run").write_bytes(FOREIGN[name])
    with pytest.raises(TraceFileError, match=f"looks like .*{name}.*(?:Record|Export|Read the report|git lfs pull)"):
        gsl.load_trace(tmp_path / "run")


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
        path = tmp_path / ("changed.xplane.pb" if name == "xplane" else "changed")
        path.write_bytes(changed)
        try:
            trace = gsl.load_trace(path)
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
