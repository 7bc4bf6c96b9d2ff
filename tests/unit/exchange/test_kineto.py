"""Files of PyTorch's profiler become traces: exact, with what they do not tell."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import counted_rows, counter_means
from gpustreamlab.errors import TraceFileError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.kineto import (
    BASE_NS,
    DEVICE,
    call,
    kineto,
    launched,
    span,
    stream_wait,
    two_streams,
    work,
    write,
    write_two_streams,
)


@pytest.fixture
def load(tmp_path):
    def load(events, name="run.json", **top):
        return gsl.load_trace(write(tmp_path / name, kineto(events, **top)))

    return load


def rows(trace, kind):
    return np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind(kind)))


def names(trace, chosen):
    return [trace.names[code] for code in trace.name[chosen].tolist()]


def test_streams_threads_and_kinds_are_as_in_a_trace_of_our_own(tmp_path):
    trace = gsl.load_trace(write_two_streams(tmp_path))
    assert [lane.name for lane in trace.lanes] == ["stream 7", "stream 20", "host: thread 100", "host: loader (101)"]
    assert trace.threads == ("thread 100", "loader (101)")
    assert names(trace, rows(trace, "kernel")) == ["gemm", "gemm", "relu", "producer", "consumer", "late", "last"]
    assert names(trace, rows(trace, "copy")) == ["memcpy HtoD (pinned)"]
    assert names(trace, rows(trace, "fill")) == ["memset"]
    assert names(trace, rows(trace, "annotation")) == ["ProfilerStep#1", "aten::mm"]
    assert len(rows(trace, "host")) == 12
    assert counted_rows(trace).sum() == 9
    device = trace.metadata.device
    assert (device.name, device.sm_count, device.compute_capability) == ("demo", 132, (9, 0))
    assert {lane.sm_count for lane in trace.lanes[:2]} == {132}
    first = rows(trace, "kernel")[0]
    facts = {"grid_blocks": 128, "block_threads": 128, "registers": 32, "shared_bytes": 1024, "correlation": 11}
    assert {name: int(trace.extra[name][first]) for name in facts} == facts
    assert trace.extra["size_bytes"][rows(trace, "copy")].tolist() == [4096]
    assert trace.metadata.imported == (
        "9 kernels, copies and fills, 12 calls, 2 ranges, 1 waits of streams, 5 that say the same again or name threads of "
        "29 events"
    )
    assert trace.metadata.missing == ()


def test_times_are_exact_and_launches_are_their_calls(tmp_path):
    trace = gsl.load_trace(write_two_streams(tmp_path))
    first = rows(trace, "kernel")[0]
    assert trace.metadata.epoch_unix_ns == BASE_NS + 500
    assert (trace.start_ns[first], trace.end_ns[first], trace.queued_ns[first]) == (19_625, 70_125, 9_500)
    edges = trace.edges.select("launch")
    assert len(edges) == 9
    assert (trace.queued_ns[edges.target] == trace.start_ns[edges.source]).all()
    assert (trace.thread[edges.target] == trace.thread[edges.source]).all()
    copy = rows(trace, "copy")[0]
    assert trace.threads[trace.thread[copy]] == "loader (101)"


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1712195495505583.033", 1712195495505583033),
        ("1712195495505583", 1712195495505583000),
        ("1712195495505583.1", 1712195495505583100),
        ("1.7e15", 1_700_000_000_000_000_000),
        ('"1712195495505583.033"', 1712195495505583033),
    ],
)
def test_a_time_since_1970_keeps_every_nanosecond(tmp_path, ts, ns):
    text = (
        json.dumps(kineto([work(0, 1, stream=7, correlation=1)])).replace('"ts": 0', f'"ts": {ts}').replace(str(BASE_NS), "0")
    )
    path = tmp_path / "run.json"
    path.write_text(text)
    trace = gsl.load_trace(path)
    assert trace.metadata.epoch_unix_ns + int(trace.start_ns[0]) == ns


def test_times_that_are_not_since_1970_stay_as_they_are(load):
    trace = load([work(5, 1, stream=7, correlation=1)], baseTimeNanoseconds=0)
    assert (trace.metadata.epoch_unix_ns, trace.start_ns.tolist()) == (0, [5_000])


def test_times_of_whole_microseconds_may_be_wrong_by_one(load):
    whole, fine = (load([{**work(5, 1, stream=7, correlation=1), "ts": ts}]) for ts in (5, 5.25))
    assert (whole.metadata.kernel_error_ns, fine.metadata.kernel_error_ns) == (1_000, 0)
    assert whole.metadata.clock == "that of the file, in steps of 1 us"


def test_a_wait_for_an_event_is_an_edge_and_no_work(tmp_path):
    trace = gsl.load_trace(write_two_streams(tmp_path))
    waits = trace.edges.select("wait")
    assert (names(trace, waits.source), names(trace, waits.target)) == (["producer"], ["consumer"])
    assert trace.metadata.waits_told
    assert trace.idle().total_ns("stream 20", "event") == 55_000
    assert [trace.lanes[lane].name for lane in np.unique(trace.lane[counted_rows(trace)])] == ["stream 7", "stream 20"]


def test_flows_make_no_edges(load):
    flow = {"id": 1, "cat": "ac2g", "name": "ac2g"}
    trace = load(
        [
            call(0, 5, correlation=1),
            work(10, 5, stream=7, correlation=2),
            {"ph": "s", "pid": 100, "tid": 100, "ts": 0, **flow},
            {"ph": "f", "pid": 0, "tid": 7, "ts": 10, "bp": "e", **flow},
        ]
    )
    assert len(trace.edges) == 0
    assert trace.idle().launch_delay_ns.tolist() == [-1, -1]
    assert trace.metadata.missing == ("1 of 1 kernels, copies and fills have no call in the file to tell their launch.",)


def test_ranges_are_around_what_was_launched_in_them(tmp_path):
    trace = gsl.load_trace(write_two_streams(tmp_path))
    step, operator = rows(trace, "annotation").tolist()
    assert trace.parent[operator] == step
    assert trace.extra["work_count"][operator] == 7  # of its own thread, launched before it ended
    assert trace.explain("aten::mm", "stream 20").streams == ("stream 7", "stream 20")


def test_work_of_one_graph_launch_is_together(load):
    nodes = [work(ts, 5, stream=7, correlation=1, **{"graph id": 3, "graph node id": ts}) for ts in (20, 30, 40)]
    trace = load([call(0, 5, "cudaGraphLaunch", correlation=1), *nodes])
    (graph,) = rows(trace, "annotation").tolist()
    assert trace.names[trace.name[graph]] == "graph 3"
    assert (trace.start_ns[graph], trace.end_ns[graph]) == (20_000, 45_000)
    assert len(trace.edges.select("launch")) == 3


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_no_json_are_left_out(tmp_path, number):
    text = json.dumps(kineto([work(0, 5, "Memset (Device)", stream=7, correlation=1, cat="gpu_memset", bytes=8, speed=77)]))
    path = tmp_path / "run.json"
    path.write_text(text.replace("77", number))
    assert gsl.load_trace(path).extra["size_bytes"].tolist() == [8]


def test_names_of_2021_are_read(load):
    events = [
        {**call(0, 5, correlation=1), "cat": "Runtime", "tid": "100"},
        {**work(10, 5, stream=7, correlation=1), "cat": "Kernel", "tid": "stream 7"},
        {**work(20, 5, "Memcpy HtoD (Pageable -> Device)", stream=7, correlation=2, cat="Memcpy"), "tid": "stream 7"},
        {**span(0, 9, "aten::mm"), "cat": "Operator", "tid": "100"},
    ]
    trace = load(events)
    assert sorted(trace.kind.tolist()) == [1, 2, 5, 7]
    assert names(trace, rows(trace, "copy")) == ["memcpy HtoD (pageable)"]


def test_rocm_has_no_context_and_tells_some_grids_in_threads(load):
    def amd(ts, correlation):
        event = work(ts, 5, stream=0, correlation=correlation)
        return {**event, "args": {key: value for key, value in event["args"].items() if key != "context"}}

    trace = load(
        [
            call(0, 2, "hipExtModuleLaunchKernel", correlation=1),
            amd(10, 1),
            call(3, 2, "hipLaunchKernel", correlation=2),
            amd(20, 2),
            call(6, 30, "hipMemcpyWithStream", correlation=3),
        ]
    )
    assert trace.lanes[0].key == (0, 0, 0)
    assert trace.extra["grid_blocks"][rows(trace, "kernel")].tolist() == [0, 128]
    assert names(trace, trace.host_waits().row) == ["hipMemcpyWithStream"]


def test_devices_and_contexts_tell_streams_apart(load):
    def at(device, context):
        return work(0, 5, stream=7, correlation=1, device=device, context=context)

    assert [lane.name for lane in load([at(0, 1), at(1, 1)]).lanes] == ["GPU 0 stream 7", "GPU 1 stream 7"]
    assert [lane.name for lane in load([at(0, 1), at(0, 2)]).lanes] == ["stream 7, context 1", "stream 7, context 2"]


@pytest.mark.parametrize("kind", [float, str])
def test_numbers_that_went_through_another_tool_are_the_same(load, kind):
    events = [
        event for place in (1, 2) for event in launched(20 * place, 5, place, stream=6 + place, correlation=place, device=1)
    ]
    wanted = load(events)
    for event in events:
        event["args"] |= {key: kind(value) for key, value in event["args"].items() if isinstance(value, int)}
        event |= {key: kind(event[key]) for key in ("pid", "tid")}
    trace = load(events)
    assert [lane.key for lane in trace.lanes[:2]] == [(1, 1, 7), (1, 1, 8)] == [lane.key for lane in wanted.lanes[:2]]
    assert len(trace.edges.select("launch")) == 2


def test_streams_without_arguments_are_told_by_their_rows(load):
    events = [work(20 * place, 5, stream=None, correlation=place, device=None) for place in (1, 2)]
    for place, event in enumerate(events):
        event |= {"pid": 0, "tid": f"stream {7 + place} "}
    assert [lane.name for lane in load(events).lanes] == ["stream 7", "stream 8"]


def test_newer_files_tell_priorities_queues_and_limits(load):
    card = {**DEVICE, "maxThreadsPerMultiprocessor": 1536, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 102400}
    trace = load(
        [work(0, 5, stream=7, correlation=1, priority=-3, channel=4), work(0, 5, stream=8, correlation=2)],
        deviceProperties=[card],
    )
    assert [lane.priority for lane in trace.lanes] == [-3, 0]
    assert [trace.details[code].channel for code in trace.extra["detail"].tolist()] == [4, -1]
    limits = trace.metadata.device.sm_limits
    assert (limits.threads, limits.registers, limits.shared_bytes) == (1536, 65536, 102400)


def test_two_threads_of_one_name_have_lanes_of_their_own(load):
    named = [{"ph": "M", "name": "thread_name", "pid": 100, "tid": tid, "args": {"name": "python"}} for tid in (100, 101)]
    trace = load([*named, span(0, 1, "x", tid=100), span(0, 1, "x", tid=101)])
    assert [lane.name for lane in trace.lanes] == ["host: python (100, 100)", "host: python (100, 101)"]


def test_what_is_not_read_and_what_is_refused_is_counted(load):
    good, back = work(0, 5, stream=7, correlation=1), work(9, -5, stream=7, correlation=2)
    bad = [{**good, "ts": ts} for ts in (None, 1e30, "soon", True)]
    note = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100, "ts": 3}
    trace = load([good, back, *bad, span(0, 1, "f()", "python_function"), {**span(0, 1, "x"), "cat": None}, note])
    assert len(trace) == 1
    assert trace.metadata.imported == (
        "1 kernels, copies and fills, 0 calls, 0 ranges of 9 events; not read: 1 cpu_instant_event, 1 python_function, 1 "
        "without a category; 5 refused, as their times make no sense"
    )


def test_waits_that_the_file_does_not_tell_are_said(load):
    two = [*launched(20, 9, 1, stream=7, correlation=1), *launched(40, 9, 2, stream=20, correlation=2)]
    wait = [call(3, 1, "cudaStreamWaitEvent", correlation=3)]
    told = stream_wait(3, stream=20, awaited=7, record=2, correlation=3)
    assert load(two[:2]).metadata.waits_told  # one stream
    silent, called, all_told = load(two), load(two + wait), load([*two, *wait, told])
    assert (silent.metadata.waits_told, called.metadata.waits_told, all_told.metadata.waits_told) == (False, False, True)
    assert silent.metadata.missing[0].startswith("Whether streams waited for events is not told; ")
    assert called.metadata.missing == (
        "0 of 1 waits of streams for events are told; the profiler tells it with enable_cuda_sync_events=True.",
    )
    assert called.metadata.missing[0] in " ".join(str(called.idle()).split())


def test_waits_in_green_contexts_tell_the_context_that_those_are_of(load):
    green = [work(20 * at, 9, stream=stream, correlation=at, context=context) for at, stream, context in ((1, 7, 1), (4, 9, 3))]
    calls = [call(1, 1, correlation=1), call(3, 1, "cudaEventRecord", correlation=2), call(9, 1, correlation=4)]
    wait = [call(5, 1, "cudaStreamWaitEvent", correlation=3), stream_wait(5, stream=9, awaited=7, record=2, correlation=3)]
    trace = load([*green, *calls, *wait])
    assert [lane.key for lane in trace.lanes[:2]] == [(0, 1, 7), (0, 3, 9)]
    edges = trace.edges.select("wait")
    assert (trace.lane[edges.source].tolist(), trace.lane[edges.target].tolist()) == ([0], [1])
    many = load([*green, work(99, 9, stream=9, correlation=6, context=4), *calls, *wait])  # nobody says which
    assert len(many.edges.select("wait")) == 0


def test_waits_that_do_not_say_what_for_are_counted(load):
    two = [*launched(20, 9, 1, stream=7, correlation=1), *launched(40, 9, 2, stream=20, correlation=2)]
    told, untold = (stream_wait(3, stream=20, awaited=7, record=record, correlation=3) for record in (2, -1))
    for waits, said in (([untold], "1 of 1"), ([told, untold, untold], "2 of 3")):
        trace = load(two + waits)
        assert (trace.metadata.missing, trace.metadata.waits_told) == (
            (f"{said} waits do not say what they waited for.",),
            False,
        )
        assert f", {len(waits)} waits of streams of {4 + len(waits)} events" in trace.metadata.imported


def test_an_option_that_was_on_is_not_advised(load):
    two = [*launched(20, 9, 1, stream=7, correlation=1), *launched(40, 9, 2, stream=20, correlation=2)]
    waits = [call(at, 1, "cudaStreamWaitEvent", correlation=at) for at in (3, 5)]
    trace = load([*two, *waits, stream_wait(3, stream=20, awaited=7, record=2, correlation=3)])
    assert trace.metadata.missing == ("1 of 2 waits of streams for events are told.",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(json.dumps(two_streams()).encode())[:200], "cut off"),
        (json.dumps(two_streams()).encode()[:300], "cut off"),
        (b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f", "ts": 1, "dur": 2}]}', "another tool .*'chrome'"),
        (b'{"traceEvents": []}', "nothing ran"),
        (b'{"events": 1}', "traceEvents"),
        (b"[1, 2]", "cannot be read"),
        (b'{"traceEvents": [{"args": 3}]}', "cannot be read"),
        (b"{" + b"[" * 100_000, "cannot be read"),
        (b"<html>", "cannot be read"),
        (gzip.compress(b"PAR1"), "cannot be read"),
    ],
    ids=["cut gzip", "cut", "other tool", "empty", "no events", "numbers", "arguments", "deep", "page", "other gzip"],
)
def test_a_bad_file_says_what_it_is(tmp_path, content, told):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=told):
        gsl.load_trace(path, "kineto")


@pytest.mark.parametrize("word", ["SM Active (%)", "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"])
def test_samples_of_the_card_s_counters_are_counters(load, word):
    """As torch writes them since 2026, and as Kineto does: rows of a process of their own, of a series without a name."""

    def sample(ts, name, value, card=0):
        row = {"ph": "C", "name": name, "pid": f"GPU {card} Counters", "ts": ts, "args": {"": value}}
        return row | ({"cat": "hardware_counters", "tid": 0} if "__" in word else {})

    events = [
        *launched(20, 50, 10, correlation=1, stream=7, name="gemm"),
        *(sample(20 + 10 * place, word, 90.5 + place) for place in range(6)),
        *(sample(20 + 10 * place, "DRAM BW (%)", 40) for place in range(6)),
        sample(30, "l1tex__data_bank_reads.sum", 7),
        {"ph": "C", "name": "of the host", "pid": 100, "ts": 20, "args": {"bytes": 3}},
    ]
    trace = load(events)
    counters = trace.counters
    assert counters.names == ("sm_active_percent", "dram_active_percent", "l1tex__data_bank_reads.sum")
    own = counters.name == 0
    assert counters.value[own].tolist() == [90.5, 91.5, 92.5, 93.5, 94.5, 95.5]
    (kernel,) = rows(trace, "kernel")
    assert counters.time_ns[own][0] == trace.start_ns[kernel], "on the clock of the kernels"
    assert {trace.lanes[lane].name for lane in counters.lane.tolist()} == {"counters of GPU 0"}
    means = counter_means(trace, trace.start_ns[[kernel]], trace.end_ns[[kernel]])
    assert means["dram_active_percent"] == 40
    assert means["sm_active_percent"] == pytest.approx(92.5)
    assert "13 samples of counters" in trace.metadata.imported
