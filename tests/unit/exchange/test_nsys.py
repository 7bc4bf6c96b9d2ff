"""Reports of Nsight Systems become traces: exact, with what they do not tell."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import re
import stat
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import counted_rows, counter_means, host_waits, idle, utilization
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange import _nsys_tables, find_format
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.nsys_files import EPOCH_NS, EVENT, KERNEL, OTHER_PID, PID, RUNTIME, SYNC, NsysFile, process, two_streams
from tests.unit.model.equality import assert_same_trace

read_nsys = partial(gsl.load_trace, format="nsys")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@pytest.fixture
def made():
    return NsysFile()


def rows(trace, kind):
    return np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind(kind)))


def names(trace, chosen):
    return [trace.names[code] for code in trace.name[chosen].tolist()]


def lane_names(trace):
    return [lane.name for lane in trace.lanes]


def said(trace, words):
    return [fact for fact in trace.metadata.missing if words in fact]


def test_streams_threads_and_kinds_are_as_in_a_trace_of_our_own(path):
    trace = read_nsys(two_streams().write(path))
    assert lane_names(trace) == ["default stream 7", "stream 13", "stream 14", "host: thread 100", "host: thread 102"]
    assert names(trace, rows(trace, "kernel")) == ["producer<float>", "consumer<float>"]
    assert names(trace, rows(trace, "copy")) == ["memcpy HtoD (pinned)"]
    assert names(trace, rows(trace, "fill")) == ["memset"]
    assert names(trace, rows(trace, "annotation")) == ["step", "NCCL: launches"]
    assert names(trace, rows(trace, "host"))[:2] == ["cudaMemcpyAsync", "cudaLaunchKernel"]
    assert counted_rows(trace).sum() == 4
    device = trace.metadata.device
    assert (device.name, device.sm_count, device.compute_capability) == ("demo", 132, (9, 0))
    limits = device.sm_limits
    assert (limits.threads, limits.registers, limits.shared_bytes, limits.blocks) == (2_048, 65_536, 200_000, 32)
    producer = rows(trace, "kernel")[0]
    facts = {"grid_blocks": 128, "block_threads": 128, "registers": 32, "shared_bytes": 1_536, "correlation": 2}
    assert {name: int(trace.extra[name][producer]) for name in facts} == facts
    assert trace.details[trace.extra["detail"][producer]].full_name == "void producer<float>(float*)"
    assert trace.extra["size_bytes"][rows(trace, "copy")].tolist() == [4_096]
    assert [(marker.text, marker.time_ns) for marker in trace.markers] == [("done", 4_000)]
    assert trace.metadata.imported == (
        "4 kernels, copies and fills, 7 calls, 2 ranges, 1 marks, 1 waits of streams, 3 that say the same again or name "
        "domains of 19 rows; not read: 1 OVERHEAD"
    )
    assert trace.metadata.missing == ()
    assert trace.metadata.waits_told


def test_every_row_is_counted(path):
    made = two_streams()
    for kind, end in ((59, None), (60, 9), (34, None), (75, None), (33, None), (59, -5)):
        made.nvtx(1, end, "x", kind=kind)
    for place in range(9):
        made.add(f"OTHER_{place}", start=place)
    used, _, left_out = read_nsys(made.write(path)).metadata.imported.partition(" rows")
    used, _, total = used.rpartition(" of ")
    numbers = [int(number) for number in re.findall(r"\b(\d+) ", f"{used}{left_out} ")]
    assert sum(numbers) == int(total) == 19 + 6 + 9
    assert "others" in left_out


def test_times_are_those_of_the_session_and_launches_are_their_calls(path):
    trace = read_nsys(two_streams().write(path))
    assert trace.metadata.epoch_unix_ns == EPOCH_NS
    assert trace.metadata.capture_source == "Nsight Systems 2026.2.1.210"
    producer = rows(trace, "kernel")[0]
    assert (trace.start_ns[producer], trace.end_ns[producer], trace.queued_ns[producer]) == (300, 1_300, 130)
    edges = trace.edges.select("launch")
    assert len(edges) == 4
    assert (trace.queued_ns[edges.target] == trace.start_ns[edges.source]).all()
    assert trace.threads[trace.thread[rows(trace, "fill")[0]]] == "thread 102"


def test_streams_tell_priorities_and_whether_the_default_stream_blocks_them(path):
    trace = read_nsys(two_streams().write(path))
    assert [(lane.priority, lane.is_blocking, lane.outside) for lane in trace.lanes[:3]] == [
        (0, True, True),
        (0, False, False),
        (-3, True, False),
    ]


def test_ranges_are_around_what_was_launched_in_them(path):
    trace = read_nsys(two_streams().write(path))
    step, launches = rows(trace, "annotation").tolist()
    assert trace.parent[launches] == step
    assert trace.extra["work_count"][launches] == 3  # of its own thread
    assert set(trace.parent[rows(trace, "kernel")].tolist()) == {launches}


def test_a_wait_for_an_event_is_an_edge_whatever_sort_the_row_says(path):
    made = two_streams()
    for row in made.tables[SYNC]:
        row["syncType"] = 3
    trace = read_nsys(made.write(path))
    waits = trace.edges.select("wait")
    assert (names(trace, waits.source), names(trace, waits.target)) == (["producer<float>"], ["consumer<float>"])


@pytest.mark.parametrize("tie", [0, 9])
def test_a_wait_is_for_the_last_record_of_the_event_before_it(path, made, tie):
    for correlation, at in ((1, 100), (11, 500)):
        made.launch(at, at + 50, at + 90, "producer", stream=13, correlation=correlation)
        made.record(at + 10, stream=13, event=40, tie=tie + bool(tie) * correlation, correlation=correlation + 1)
    made.wait(200, stream=14, event=40, tie=tie + bool(tie), correlation=5)
    made.launch(210, 260, 300, "consumer", stream=14, correlation=6)
    waits = (trace := read_nsys(made.write(path))).edges.select("wait")
    assert trace.start_ns[waits.source].tolist() == [150]
    assert trace.metadata.waits_told


def test_a_record_of_another_tie_is_not_what_was_waited_for(path, made):
    made.launch(100, 150, 190, stream=13, correlation=1)
    made.record(110, stream=13, event=40, tie=8, correlation=2)
    made.wait(200, stream=14, event=40, tie=9, correlation=3)
    made.launch(210, 260, 300, stream=14, correlation=4)
    trace = read_nsys(made.write(path))
    assert len(trace.edges.select("wait")) == 0
    assert not trace.metadata.waits_told


def test_what_the_host_waited_for_is_no_wait_of_a_stream(path, made):
    made.launch(100, 150, 190, stream=13, correlation=1)
    made.record(110, stream=13, event=40, tie=9, correlation=2)
    made.call(120, 200, "cudaEventSynchronize_v3020", correlation=3)
    made.sync(121, 199, stream=14, event=40, tie=9, kind=2, correlation=3)  # the sort says that a stream waits
    made.launch(210, 260, 300, stream=14, correlation=4)
    trace = read_nsys(made.write(path))
    assert len(trace.edges.select("wait")) == 0
    assert trace.metadata.waits_told
    assert names(trace, host_waits(trace).row) == ["cudaEventSynchronize"]


def test_waits_that_the_file_does_not_tell_are_said(path):
    made = two_streams()
    del made.tables[EVENT]
    trace = read_nsys(made.write(path))
    assert not trace.metadata.waits_told
    (fact,) = trace.metadata.missing
    assert fact.startswith(
        "0 of 1 waits of streams for events are told; nsys tells it with --trace=cuda --cuda-event-trace=true"
    )
    assert fact in " ".join(str(idle(trace)).split())


def test_a_cut_report_says_so(path):
    made = two_streams()
    made.tables[RUNTIME] = made.tables[RUNTIME][2:]
    trace = read_nsys(made.write(path))
    assert said(trace, "2 of 4 kernels, copies and fills have no call in the file")
    assert not trace.metadata.waits_told
    assert len(trace.edges.select("launch")) == 2
    without_targets = NsysFile()
    without_targets.launch(0, 10, 20)
    without_targets.launch(5, 10, 20, stream=8, correlation=2)
    trace = read_nsys(without_targets.write(path.with_name("bare.sqlite")))
    assert said(trace, "no properties of GPU 0")
    assert said(trace, "the legacy default stream")
    assert trace.metadata.epoch_unix_ns == 0


def test_green_contexts_are_partitions(path, made):
    made.gpu()
    made.context()
    made.context(3, green=1, parent=1, sms=16, mask="0xff,0x1")
    made.context(4, green=1, parent=1, sms=116)
    made.launch(0, 100, 200, stream=13, green=3, correlation=1)
    made.launch(10, 100, 200, stream=13, green=4, correlation=2)
    made.launch(20, 100, 200, stream=14, context=4, green=None, correlation=3)  # as some versions tell it
    made.launch(30, 100, 200, stream=15, correlation=4)
    trace = read_nsys(made.write(path))
    assert lane_names(trace)[:4] == [
        "context 1 stream 15",
        "context 1 green context 3 stream 13",
        "context 1 green context 4 stream 13",
        "green context 4 stream 14",
    ]
    assert [(lane.partition, lane.sm_count) for lane in trace.lanes[:4]] == [
        (None, 132),
        ("green context 3", 16),
        ("green context 4", 116),
        ("green context 4", 116),
    ]
    first, second = trace.partitions
    assert (first.granted_sms, first.groups, second.granted_sms, second.groups) == (16, (*range(8), 32), 116, ())
    assert sorted(trace.partition[rows(trace, "kernel")].tolist()) == [-1, 0, 1, 1]
    assert "green context 3" in str(utilization(trace))


def test_green_contexts_of_unknown_size_are_said(path, made):
    made.gpu()
    made.context(3, green=1, parent=1)
    made.launch(0, 100, 200, stream=13, green=3)
    trace = read_nsys(made.write(path))
    assert (trace.partitions, trace.lanes[0].sm_count, trace.lanes[0].partition) == ((), 0, None)
    assert said(trace, "How many SMs 1 streams in green contexts may use is not told")


def test_waits_of_green_contexts_find_their_streams(path, made):
    made.gpu()
    made.context(3, green=1, parent=1, sms=16)
    made.launch(0, 100, 200, "producer", stream=13, green=3, correlation=1)
    made.record(20, stream=13, event=40, correlation=2)  # these rows lack the green context
    made.wait(40, stream=14, event=40, correlation=3)
    made.launch(60, 300, 400, "consumer", stream=14, correlation=4)
    trace = read_nsys(made.write(path))
    assert names(trace, trace.edges.select("wait").source) == ["producer<float>"]


def test_processes_have_lanes_and_calls_of_their_own(path, made):
    made.gpu()
    for pid, at in ((PID, 0), (OTHER_PID, 50)):
        made.nvtx(at, at + 40, f"of {pid}", pid=pid)
        made.launch(at + 10, at + 500, at + 600, f"kernel{pid}", stream=7, correlation=1, pid=pid)
        made.record(at + 21, stream=7, event=40, tie=9, correlation=2, pid=pid)
        made.wait(at + 27, stream=8, event=40, tie=9, correlation=3, pid=pid)
        made.launch(at + 35, at + 700, at + 800, stream=8, correlation=4, pid=pid)
    trace = read_nsys(made.write(path))
    assert lane_names(trace) == [
        "process 100 stream 7",
        "process 100 stream 8",
        "process 101 stream 7",
        "process 101 stream 8",
        "host: process 100 thread 100",
        "host: process 101 thread 101",
    ]
    kernels = rows(trace, "kernel")
    assert trace.queued_ns[kernels].tolist() == [10, 60, 35, 85]
    assert [trace.names[trace.name[row]] for row in trace.parent[kernels].tolist()] == ["of 100", "of 101", "of 100", "of 101"]
    waits = trace.edges.select("wait")
    assert trace.lane[waits.source].tolist() == [0, 2]
    assert trace.lane[waits.target].tolist() == [1, 3]
    assert trace.metadata.waits_told


def test_two_processes_that_call_two_cards_device_0(path, made):
    made.gpu(0, "first")
    made.gpu(1, "second", sms=64, cuDevice=-1)
    for gpu, pid in enumerate((PID, OTHER_PID)):
        made.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        made.launch(0, 100, 200, pid=pid)
    trace = read_nsys(made.write(path))
    assert lane_names(trace)[:2] == ["GPU 0 stream 7", "GPU 1 stream 7"]
    assert [(lane.device, lane.sm_count) for lane in trace.lanes[:2]] == [(0, 132), (1, 64)]


def test_a_graph_recorded_as_a_whole_is_a_span_that_says_so(path, made):
    made.gpu()
    made.call(0, 10, "cudaGraphLaunch_v10000", correlation=1)
    made.graph(100, 900, 5)
    trace = read_nsys(made.write(path))
    (row,) = rows(trace, "kernel").tolist()
    assert trace.names[trace.name[row]] == "graph 5 (whole)"
    assert "recorded as a whole" in trace.details[trace.extra["detail"][row]].full_name
    assert (trace.start_ns[row], trace.end_ns[row], trace.queued_ns[row]) == (100, 900, 0)
    assert said(trace, "1 launches of graphs are one span each")


@pytest.mark.parametrize("has_graph_ids", [True, False])
def test_nodes_of_one_launch_of_a_graph_are_together(path, made, has_graph_ids):
    made.gpu()
    made.call(0, 10, "cudaGraphLaunch_v10000", correlation=1)
    for node, start in enumerate((100, 300)):
        made.kernel(start, start + 50, correlation=1, graphNodeId=(5 << 32) + node, **({"graphId": 5} if has_graph_ids else {}))
    made.copy(500, 600, correlation=1, graphNodeId=(5 << 32) + 7)
    if not has_graph_ids:
        for row in made.tables[KERNEL]:
            del row["graphId"]
    trace = read_nsys(made.write(path))
    (graph,) = rows(trace, "annotation").tolist()
    assert trace.names[trace.name[graph]] == "graph 5"
    assert (trace.start_ns[graph], trace.end_ns[graph]) == (100, 600)
    assert trace.parent[[*rows(trace, "kernel"), *rows(trace, "copy")]].tolist() == [graph] * 3


def test_ranges_from_start_to_end_and_open_ones(path, made):
    made.launch(20, 100, 200)
    made.nvtx(10, 90, "loop", kind=60)
    made.nvtx(15, 40, "push")
    made.nvtx(12, None, "open")
    made.nvtx(1, 2, "odd", kind=39)
    trace = read_nsys(made.write(path))
    assert names(trace, rows(trace, "annotation")) == ["loop", "push"]
    assert names(trace, trace.parent[rows(trace, "kernel")]) == ["push"]
    assert trace.metadata.pending_spans == 1
    assert "1 others of NVTX" in trace.metadata.imported


def test_steps_and_requests_are_numbered_by_their_payload(path, made):
    for at, (name, payload) in enumerate(
        [("step", {"int64Value": 3}), ("Request", {"uint32Value": 7}), ("gemm", {"int64Value": 5})]
    ):
        made.nvtx(100 * at, 100 * at + 90, name, **payload)
        made.launch(100 * at + 1, 100 * at + 10, 100 * at + 80, correlation=at + 1)
    made.nvtx(300, 390, "step")
    trace = gsl.load_trace(made.write(path))
    assert names(trace, rows(trace, "annotation")) == ["step 3", "Request 7", "gemm", "step"]
    assert trace.steps().labels == ("3",)
    assert trace.steps("request").labels == ("7",)


def test_names_of_domains_are_those_of_their_process(path, made):
    for pid, name in ((PID, "ours"), (OTHER_PID, "theirs")):
        made.nvtx(0, None, name, kind=75, domain=1, pid=pid)
        made.nvtx(1, 2, "a", domain=1, pid=pid)
    made.nvtx(3, 4, "b", domain=2)
    made.nvtx(5, 6, None)
    trace = read_nsys(made.write(path))
    assert sorted(names(trace, rows(trace, "annotation"))) == ["(no text)", "domain 2: b", "ours: a", "theirs: a"]


def test_marks_beyond_a_limit_are_counted(path, made, monkeypatch):
    monkeypatch.setattr(_nsys_tables, "MOST_MARKS", 2)
    for at in (3, 1, 2):
        made.nvtx(at, None, f"at {at}", kind=34)
    made.nvtx(0, 9, "all")
    trace = read_nsys(made.write(path))
    assert [marker.text for marker in trace.markers] == ["at 1", "at 2"]
    assert trace.metadata.dropped_markers == 1


def test_copies_of_managed_memory_are_on_no_stream(path, made):
    made.copy(0, 100, 11, (4, 2), stream=None, correlation=None)
    made.copy(200, 300, 9, (0, 1))
    trace = read_nsys(made.write(path))
    assert lane_names(trace) == ["managed memory", "stream 7"]
    assert names(trace, rows(trace, "annotation")) == ["memcpy HtoD (managed)"]  # work of no stream
    assert names(trace, rows(trace, "copy")) == ["memcpy HtoH (pageable to pinned)"]


def test_reports_of_2022_are_read(path):
    made = two_streams()
    made.add("TARGET_INFO_CUDA_NULL_STREAM", streamId=7, processId=PID, deviceId=0, contextId=1)
    made.add("EXPORT_META_DATA", name="EXPORT_PRODUCT_VERSION", value="2022.4.2.1")
    trace = read_nsys(made.write(path, is_old=True))
    assert lane_names(trace)[:3] == ["default stream 7", "stream 13", "stream 14"]
    assert trace.metadata.capture_source == "Nsight Systems 2022.4.2.1"
    assert not trace.metadata.waits_told
    assert trace.metadata.device.sm_count == 132


@pytest.mark.parametrize("page_bytes", [512, 4_096, 65_536])
def test_the_order_of_rows_and_columns_and_the_size_of_pages_do_not_count(tmp_path, page_bytes):
    wanted = read_nsys(two_streams().write(tmp_path / "0.sqlite"))
    for seed in range(4):
        got = read_nsys(two_streams().write(tmp_path / f"{page_bytes}_{seed}.sqlite", shuffled=seed, page_bytes=page_bytes))
        for name in ("start_ns", "end_ns", "queued_ns", "lane", "kind", "parent"):
            assert getattr(got, name).tolist() == getattr(wanted, name).tolist(), name
        assert names(got, slice(None)) == names(wanted, slice(None))
        assert (got.lanes, got.metadata) == (wanted.lanes, wanted.metadata)


def test_a_folder_of_parquet_files_is_the_same_trace(tmp_path, path):
    wanted = read_nsys(two_streams().write(path))
    folder = two_streams().write_folder(tmp_path / "run_pqtdir")
    assert find_format(folder) == "nsys"
    for name in ("auto", "nsys"):
        assert_same_trace(gsl.load_trace(folder, name), wanted)
    (folder / f"{KERNEL}.parquet").write_bytes(b"PAR1" + bytes(99))
    with pytest.raises(TraceFileError, match="was cut off or is damaged"):
        read_nsys(folder)


@pytest.mark.parametrize("how", [{}, {"strings_last": True}, {"by_line": True}])
def test_json_lines_tell_the_same_but_for_cards_and_streams(tmp_path, path, how):
    made = two_streams()
    lines = made.write_lines(tmp_path / "run.json", **how)
    assert find_format(lines) == "nsys"
    got = gsl.load_trace(lines)
    made.tables = {name: rows for name, rows in made.tables.items() if not name.startswith(("TARGET", "META"))}
    wanted = read_nsys(made.write(path))
    for name in ("start_ns", "end_ns", "queued_ns", "lane", "kind", "parent"):
        assert getattr(got, name).tolist() == getattr(wanted, name).tolist(), name
    assert names(got, slice(None)) == names(wanted, slice(None))
    assert (got.lanes, got.details, got.markers) == (wanted.lanes, wanted.details, wanted.markers)
    assert len(got.edges.select("wait")) == len(wanted.edges.select("wait")) == 1
    assert "2 others" in got.metadata.imported


def test_damaged_json_lines_and_diagnostics_are_told(tmp_path):
    lines = two_streams().write_lines(tmp_path / "run.json")
    said = {"Type": 49, "DiagnosticEvent": {"Timestamp": {"ns": "5"}, "Level": "Warning", "Text": "CUPTI dropped events"}}
    lines.write_text(lines.read_text() + json.dumps(said) + '\n{"Type":79,"CudaEv')
    metadata = gsl.load_trace(lines).metadata
    assert metadata.diagnostics == ("CUPTI dropped events",)
    assert "1 damaged lines" in metadata.imported


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_database_that_is_being_written_is_refused(path, ending):
    two_streams().write(path)
    path.with_name(path.name + ending).write_bytes(b"rows")
    with pytest.raises(TraceFileError, match="still being written"):
        read_nsys(path)


def test_strange_values_are_refused_or_left_out_and_counted(path):
    made = two_streams()
    for strange in ("soon", None, 1.5, b"\x01\x02", 1 << 62, -(1 << 63)):
        made.kernel(strange, 10_000, "late", correlation=50)
        made.kernel(9_000, 9_500, "odd", correlation=strange, registersPerThread=strange, gridX=strange, green=strange)
        made.call(9_000, 9_100, correlation=strange, returnValue=strange)
        made.nvtx(9_000, 9_100, strange)
    made.kernel(20, 10, "back")
    made.kernel(20, 30, "nowhere", device=None)
    trace = read_nsys(made.write(path))
    odd = [row for row in rows(trace, "kernel").tolist() if names(trace, [row]) == ["odd<float>"]]
    assert len(odd) == 6
    assert trace.extra["grid_blocks"][odd].tolist() == [0] * 6
    assert "8 refused, as their times or devices make no sense" in trace.metadata.imported
    assert "late<float>" not in names(trace, slice(None))


def test_names_that_are_too_long_or_no_text_are_cut(path, made):
    made.launch(0, 10, 20, "x" * 30_000)
    made.nvtx(0, 5, "y" * 30_000)
    made.nvtx(6, 7, "\ud7ff'; drop table StringIds; --")
    made.tables["StringIds"].append({"id": 99, "value": b"\xff\xfe"})
    trace = read_nsys(made.write(path))
    assert max(map(len, trace.names)) <= 1_001
    assert max(len(detail.full_name) for detail in trace.details) <= 8_193
    assert "\ud7ff'; drop table StringIds; --" in trace.names


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"SQLite format 3\0", "file is not a database"),
        (b"SQLite format 3\0" + bytes(4_096), "cannot be read as a report"),
        (b"<html>", "no SQLite file"),
        (gzip.compress(b"PAR1"), "no SQLite file"),
        (gzip.compress(b"SQLite format 3\0" + random.Random(1).randbytes(9_000))[:-3_000], "cannot be unpacked"),
    ],
    ids=["head", "zeros", "page", "other gzip", "cut gzip"],
)
def test_a_bad_file_says_what_it_is(path, content, told):
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=told):
        read_nsys(path)


def test_sorts_of_launches_beyond_a_limit_keep_their_names(path, monkeypatch, made):
    monkeypatch.setattr(_nsys_tables, "MOST_DETAILS", 1)
    made.launch(0, 10, 20, grid=(1, 1, 1))
    made.launch(30, 40, 50, grid=(2, 1, 1), correlation=2)
    trace = read_nsys(made.write(path))
    assert trace.extra["grid_blocks"][rows(trace, "kernel")].tolist() == [1, 0]
    assert said(trace, "1 launches have no grid")


def test_names_of_processes_threads_and_hosts_are_not_read(path):
    made = two_streams()
    made.add("PROCESSES", globalPid=process(), pid=PID, name="secret-program")
    made.add("ThreadNames", nameId=made.string("secret-thread"), priority=0, globalTid=process() + PID)
    made.add("TARGET_INFO_SYSTEM_ENV", name="HOME", value="secret-home")
    made.add("META_DATA_CAPTURE", name="HOST", value="secret-host")
    trace = read_nsys(made.write(path))
    assert b"secret" not in pickle.dumps(trace)


def export(folder, monkeypatch, script):
    """Put a program that is called nsys in front of all others."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    report = folder / "my run.nsys-rep"
    report.write_bytes(b"of nsys")
    assert find_format(report) == "nsys"
    return report


def test_a_report_is_exported_by_nsys_and_nothing_is_left(tmp_path, path, monkeypatch):
    two_streams().write(path)
    asked = 'test "$1 $2 $3 $4" = "export --type sqlite --output" && test -f "$6"'
    script = f'{asked} && cp "{path}" "$5" && echo "$5" > "{tmp_path}/where"'
    report = export(tmp_path, monkeypatch, script)
    assert_same_trace(read_nsys(report), read_nsys(path))
    where = Path((tmp_path / "where").read_text().strip())
    assert where.suffix == ".sqlite"
    assert not where.parent.exists()


def test_a_report_that_nsys_cannot_export_says_what_it_said(tmp_path, monkeypatch):
    report = export(tmp_path, monkeypatch, "echo of a newer version >&2; exit 3")
    with pytest.raises(TraceFileError, match="nsys ended with 3 and said 'of a newer version'"):
        read_nsys(report)


def test_a_report_without_nsys_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"of nsys")
    with pytest.raises(TraceFileError, match="nsys export --type sqlite -o run.sqlite run.nsys-rep"):
        read_nsys(report)


METRICS = {
    0: "GPC Clock Frequency [MHz]", 2: "SMs Active [Throughput %]", 3: "DRAM Read Bandwidth [Throughput %]",
    4: "DRAM Write Bandwidth [Throughput %]", 5: "Compute Warps in Flight [Avg Warps per Cycle]",
    6: "PCIe RX Throughput [Throughput %]",
}  # fmt: skip


@pytest.mark.parametrize("write", [NsysFile.write, NsysFile.write_folder])
def test_gpu_metrics_are_counters_of_their_card(tmp_path, made, write):
    # GIVEN samples of two cards, each 100 us, of which one metric has no unit that whole numbers tell
    made.gpu(0), made.gpu(1)
    made.launch(10, 100_000, 300_000)
    for number, name in METRICS.items():
        for card in (0, 1):
            made.add("TARGET_INFO_GPU_METRICS", typeId=1 << 32 | card, sourceId=0, metricId=number, metricName=name)
    values = {0: 1_980_000_000, 2: 90, 3: 30, 4: 25, 5: 7_000_000, 6: 3}
    for card in (1, 0):
        for at in (300_000, 100_000, 200_000):
            for number, value in values.items():
                kind = 1 << 32 | card
                made.add("GPU_METRICS", rawTimestamp=at, timestamp=at, typeId=kind, metricId=number, value=value)
    # WHEN
    trace = read_nsys(write(made, tmp_path / "run"))
    # THEN
    counters = trace.counters
    lanes = [trace.lanes[code] for code in np.unique(counters.lane).tolist()]
    assert [(lane.name, lane.device) for lane in lanes] == [("counters of GPU 0", 0), ("counters of GPU 1", 1)]
    assert (np.diff(counters.time_ns) >= 0).all()
    own = counters.lane == counters.lane.max()
    told = {name: counters.value[own & (counters.name == code)].tolist() for code, name in enumerate(counters.names)}
    assert told == {
        "sm_clock_mhz": [1_980.0] * 3,
        "sm_active_percent": [90.0] * 3,
        "dram_active_percent": [55.0] * 3,
        "pcie_rx_throughput_percent": [3.0] * 3,
    }
    assert counter_means(trace, ints(100_000), ints(300_000), 0)["dram_active_percent"] == 55
    assert "36 samples of counters" in trace.metadata.imported
    assert "GPU_METRICS" not in trace.metadata.imported


def test_gpu_metrics_that_make_no_sense_are_left_out(path, made):
    made.launch(10, 100, 300)
    made.add("TARGET_INFO_GPU_METRICS", typeId=0, metricId=2, metricName=METRICS[2])
    made.add("TARGET_INFO_GPU_METRICS", typeId=0, metricId="two", metricName=METRICS[3])
    for at, metric, value in ((-5, 2, 90), (100, 9, 90), (100, 2, None), (200, 2, 40)):
        made.add("GPU_METRICS", timestamp=at, typeId=0, metricId=metric, value=value)
    counters = read_nsys(made.write(path)).counters
    assert (counters.time_ns.tolist(), counters.value.tolist()) == ([200], [40.0])


def ints(*values):
    return np.array(values, np.int64)
