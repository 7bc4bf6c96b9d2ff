"""How long the host was blocked, and in which call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import copy_rates, host_waits, summary_text
from gpustreamlab.model import WorkDetail
from gpustreamlab.typing import EdgeKind
from gpustreamlab.workloads import spin
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import empty_trace, make_kernel_trace, pipeline_trace

MAIN, LOADER = "host: MainThread", "host: loader"
CALL = {"kind": "host"}


def waiting(**facts):
    """Two threads that wait for kernels on two streams, for 1,000 ns."""
    spans = [
        ("a", "gemm", 0, 400),
        ("b", "copy", 100, 900, {"kind": "copy"}),
        (MAIN, "cudaLaunchKernel", 0, 50, CALL),
        (MAIN, "cudaStreamSynchronize", 100, 405, CALL),
        (MAIN, "cudaStreamSynchronize", 500, 510, CALL),
        (MAIN, "cudaMemcpyAsync", 520, 530, CALL),
        (LOADER, "cudaMemcpy", 95, 905, CALL),
        (LOADER, "cudaDeviceSynchronize", 950, 1_000, CALL),
    ]
    return make_kernel_trace(spans, **facts)


def test_calls_that_block_are_told_from_others_with_what_they_waited_for():
    result = host_waits(waiting(kernel_error_ns=0))
    assert result.row.tolist() == [3, 4, 6, 7]
    assert result.waited_for.tolist() == [0, -1, 1, -1]
    assert result.duration_ns.tolist() == [305, 10, 810, 50]
    assert dict(zip([lane.name for lane in result.lanes], result.waited_ns.tolist(), strict=True)) == {
        "a": 0, "b": 0, MAIN: 315, LOADER: 860,
    }  # fmt: skip
    assert result.captured_ns == 1_000
    assert result.share.max() == 0.86


def test_calls_of_one_name_and_thread_are_one_group():
    first, second, third = host_waits(waiting(kernel_error_ns=0)).groups
    assert (first.call, first.thread, first.call_count, first.waited_for) == ("cudaMemcpy", LOADER, 1, "copy")
    assert (second.call, second.call_count, second.total_ns, second.longest_ns) == ("cudaStreamSynchronize", 2, 315, 305)
    assert second.waited_for == "gemm"
    assert third.waited_for is None


@pytest.mark.parametrize(
    ("other", "thread", "call", "expected"),
    [
        ((100, 990_000, 50), 0, "cudaStreamSynchronize", "other"),  # launched before, ended last
        ((100, 990_000, 250), 0, "cudaStreamSynchronize", "A"),  # launched after the call
        ((100, 990_000, 250), 0, "cudaDeviceSynchronize", "A"),
        ((100, 990_000, 50), 1, "cudaStreamSynchronize", "A"),  # of another thread
        ((100, 990_000, 50), 1, "cudaDeviceSynchronize", "other"),
        ((100, 1_500_000, 50), 0, "cudaStreamSynchronize", "A"),  # still ran
    ],
)
def test_a_call_waited_for_what_was_launched_before_it(other, thread, call, expected):
    start, end, queued = other
    spans = [
        ("a", "A", 100, 980_000, {"queued_ns": 0}),
        ("b", "other", max(start, queued + 10), end, {"queued_ns": queued, "thread": thread}),
        (MAIN, call, 200, 1_000_000, CALL),
    ]
    result = host_waits(make_kernel_trace(spans, threads=("MainThread", "worker"), kernel_error_ns=0))
    assert [result.names[name] for name in result.waited_name] == [expected]


def test_a_stream_was_waited_for_only_once_nothing_of_the_thread_was_left_on_it():
    # GIVEN small kernels launched before, of which some ran on behind the call
    small = [("b", "small", 100 + 1_000 * turn, 1_000 + 1_000 * turn, {"queued_ns": 50}) for turn in range(300)]
    spans = [("a", "A", 100, 199_500, {"queued_ns": 0}), (MAIN, "cudaStreamSynchronize", 200, 200_100, CALL), *small]
    result = host_waits(make_kernel_trace(spans, kernel_error_ns=0))
    assert [result.names[name] for name in result.waited_name] == ["A"]


def test_work_of_another_thread_is_what_a_stream_waited_for_where_the_own_ended_long_before():
    spans = [
        ("a", "own", 100, 5_000, {"queued_ns": 0}),
        ("a", "other", 5_100, 990_000, {"queued_ns": 50, "thread": 1}),
        (MAIN, "cudaStreamSynchronize", 200, 1_000_000, CALL),
    ]
    result = host_waits(make_kernel_trace(spans, threads=("MainThread", "worker"), kernel_error_ns=0))
    assert [result.names[name] for name in result.waited_name] == ["other"]


def test_the_line_names_the_thread_that_waited_longest():
    assert repr(host_waits(waiting(kernel_error_ns=0))) == (
        "<HostWaits: loader waited 86% of the time, most of it in cudaMemcpy: 1 call, the longest 810 ns for copy>"
    )
    line = "Host: MainThread waited 82% of the time in cudaStreamSynchronize: 4 calls, the longest 1.60 ms for softmax"
    assert line in summary_text(kernel_trace(4)).splitlines()


def test_waits_that_overlap_count_once_in_a_thread():
    spans = [(MAIN, "cudaDeviceSynchronize", 0, 80, CALL), (MAIN, "cuCtxSynchronize", 10, 70, CALL), ("a", "k", 0, 100)]
    assert host_waits(make_kernel_trace(spans, windows=((0, 100),))).waited_ns.tolist() == [80, 0]


def test_only_time_in_which_calls_were_seen_counts():
    spans = [("a", "step", 0, 1_000, {"kind": "range"}), (MAIN, "cudaStreamSynchronize", 500, 700, CALL)]
    result = host_waits(make_kernel_trace(spans, windows=((400, 600), (650, 850))))
    assert result.captured_ns == 400
    assert result.waited_ns.tolist() == [0, 150]


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (pipeline_trace(), "calls of the host were not captured, only ranges: capture them with lab.capture('kernels')"),
        (empty_trace(), "calls of the host were not captured, only ranges: capture them with lab.capture('kernels')"),
        (kernel_trace(has_host=False), "capture them with lab.capture('kernels'), without host=False"),
        (make_kernel_trace([(MAIN, "cudaLaunchKernel", 0, 5, CALL)]), "no call of the host waited for the device"),
    ],
    ids=["ranges", "empty", "no calls", "none waits"],
)
def test_without_waits_it_is_false_and_says_why(trace, told):
    result = host_waits(trace)
    assert not result
    assert result.groups == ()
    assert told in " ".join(str(result).split())
    assert (result.captured_ns > 0) is (result.call_count > 0)
    assert "Host:" not in summary_text(trace)


BLOCKING = ("cudaStreamSynchronize", "cuStreamSynchronize_ptsz", "cudaEventSynchronize", "cudaMemcpy2D", "cudaFree")
OTHERS = ("cudaFreeAsync", "cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaMallocAsync", "my memcpy", "")


@pytest.mark.parametrize("call", [*BLOCKING, *OTHERS])
def test_blocking_calls_are_known_by_their_names(call):
    trace = make_kernel_trace([(MAIN, call, 0, 9, CALL), ("a", "k", 10, 20)])
    assert bool(host_waits(trace)) is (call in BLOCKING)


@pytest.mark.parametrize(
    ("name", "detail", "blocks"),
    [
        ("memcpy DtoH (pageable)", None, True),
        ("memcpy DtoH", WorkDetail(full_name="device memory to pageable host memory"), True),
        ("memcpy DtoH (pinned)", None, False),
        ("memcpy HtoD (pageable)", None, True),
        ("memcpy HtoD", WorkDetail(full_name="pageable host memory to device memory"), True),
        ("memcpy HtoD (pinned)", None, False),
        ("memcpy DtoH", WorkDetail(full_name="device memory to page-locked host memory"), False),
    ],
)
def test_a_copy_of_pageable_memory_blocks_whatever_its_call_is_named(name, detail, blocks):
    # GIVEN float(total): a kernel, and an asynchronous copy into pageable memory
    described = {} if detail is None else {"detail": detail}
    spans = [
        ("a", "sum", 0, 400),
        ("a", name, 410, 420, {"kind": "copy"} | described),
        (MAIN, "cudaMemcpyAsync", 100, 430, CALL),
    ]
    result = host_waits(make_kernel_trace(spans, edges=((2, 1, EdgeKind.LAUNCH),), kernel_error_ns=0))

    # THEN the call waited for the kernel
    assert result.row.tolist() == ([2] if blocks else [])
    assert result.waited_for.tolist() == ([0] if blocks else [])


@pytest.mark.parametrize(("call_end_ns", "blocks"), [(50, False), (115, False), (160, True), (205, True)])
def test_a_copy_from_pageable_memory_blocks_where_its_call_lasts_through_it(call_end_ns, blocks):
    # GIVEN a copy that ran from 100 to 200, staged or not
    spans = [("a", "memcpy HtoD (pageable)", 100, 200, {"kind": "copy"}), (MAIN, "cudaMemcpyAsync", 0, call_end_ns, CALL)]
    result = host_waits(make_kernel_trace(spans, edges=((1, 0, EdgeKind.LAUNCH),), kernel_error_ns=10))
    assert result.row.tolist() == ([1] if blocks else [])


def test_a_copy_that_started_at_once_is_what_its_call_waited_for():
    # GIVEN a kernel of another stream that ends while the copy runs up
    spans = [
        ("a", "gemm", 0, 105),
        ("b", "memcpy HtoD (pageable)", 110, 500, {"kind": "copy"}),
        (MAIN, "cudaMemcpyAsync", 100, 510, CALL),
    ]
    result = host_waits(make_kernel_trace(spans, edges=((2, 1, EdgeKind.LAUNCH),), kernel_error_ns=0))
    assert result.waited_for.tolist() == [1]


@pytest.mark.parametrize("call", [(50, 50), (200, 300)], ids=["takes no time", "not while calls were captured"])
def test_calls_that_waited_for_no_time_are_printed(call):
    spans = [("a", "k", 0, 100), (MAIN, "cudaStreamSynchronize", *call, CALL)]
    assert "no call of the host waited for the device" in str(host_waits(make_kernel_trace(spans, windows=((0, 150),))))


def copies(lab):
    device = lab.xp.empty(1 << 20, np.float32)
    with lab.on("copy"):
        device.set(lab.memory.pinned_empty(1 << 20, np.float32))
        device.set(np.ones(1 << 20, np.float32))
    lab.synchronize()


def test_rates_of_copies_are_the_cards_or_those_of_the_fastest_large_copy_from_page_locked_memory():
    with gsl.Session("sim") as lab:
        lab.capture("kernels")
        lab.stream("copy")
        copies(lab)
        trace = lab.trace
    assert copy_rates(trace) == (55e9, 55e9)
    untold = replace(trace.metadata.device, h2d_bytes_per_s=None, d2h_bytes_per_s=None)
    rates = copy_rates(replace(trace, metadata=replace(trace.metadata, device=untold)))
    assert rates.h2d == pytest.approx(55e9, rel=0.05)
    assert rates.h2d < 55e9
    assert rates.d2h is None


def test_what_a_call_waited_for_is_what_its_edges_say():
    with gsl.Session("sim") as lab:
        lab.capture("kernels", host=True)
        first, second = lab.stream("first"), lab.stream("second")
        spin(lab, 1_000_000, stream=first)
        early = first.record()
        spin(lab, 1_000_000, stream=first)
        spin(lab, 2_000_000, stream=second)
        early.synchronize()
        second.synchronize()
        lab.synchronize()
        trace = lab.trace
    result = host_waits(trace)
    calls = [trace.names[name] for name in result.name.tolist()]
    assert calls == ["cudaEventSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize"]
    assert result.waited_for[2] == -1
    awaited = [(trace.lanes[trace.lane[row]].name, int(trace.duration_ns[row])) for row in result.waited_for[:2]]
    assert awaited == [("first", 1_000_000), ("second", 2_000_000)]
    assert "most probably" not in str(result)
    # AND a synchronization of the device names the last work of each stream, whether it had ended or not
    syncs = trace.edges.select("sync")
    of_device = syncs.source[syncs.target == result.row[2]]
    assert sorted(trace.lanes[lane].name for lane in trace.lane[of_device]) == ["first", "second"]
