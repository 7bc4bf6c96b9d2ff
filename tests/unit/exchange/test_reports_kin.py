"""Inputs of the same kinds as the reports of users, of other cards, makers, sizes and streams: the answers follow."""

from __future__ import annotations

import json
import re

import pytest

import gpustreamlab as gsl
from gpustreamlab.cli import main
from gpustreamlab.typing import Cause, Certainty
from tests.helpers.kineto import DEVICE, call, kineto, launched, span, work, write
from tests.unit.exchange.test_reports import MS, REPORTS, changed, changed_base, read

H100 = DEVICE | {
    "name": "NVIDIA H100 80GB HBM3",
    "maxThreadsPerMultiprocessor": 2_048,
    "regsPerMultiprocessor": 65_536,
    "sharedMemPerMultiprocessor": 233_472,
}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "maxThreadsPerMultiprocessor": 2_048}
SMALL, WHOLE = {"grid": [8, 1, 1]}, {"grid": [132, 1, 1]}


def of(tmp_path, events, device=H100):
    return gsl.load_trace(write(tmp_path / "run.json", kineto(events, deviceProperties=[device])))


def in_turn(streams, *, by="cudaLaunchKernel", count=12):
    """Return work of several streams that ran one after the other, as launched."""
    return [
        event
        for turn in range(count)
        for event in launched(
            100 + turn * 400, 399, 10 * turn, stream=streams[turn % len(streams)], correlation=1 + turn, by=by, **SMALL
        )
    ]


def steps(count, period, *, gap, call_name, took, lasted, wait):
    """Return a loop of one stream in which a call leaves the card idle before each step's kernels."""
    events = []
    for step in range(count):
        at = step * period
        events.append(call(at + gap, took, call_name, correlation=1 + step))
        nodes = ((at + gap + took + 5 + place * 100, f"node_{place % 3}") for place in range(lasted // 100))
        events.extend(work(begin, 98, name, stream=7, correlation=1 + step) for begin, name in nodes)
        events.append(call(at + gap + took + 3, lasted + 10, wait, correlation=9_000 + step))
    return events


# Other cards and makers


def test_one_engine_counts_for_the_card_that_has_it(tmp_path):
    # GIVEN a second card, with engines of its own, and all work on that
    trace = changed_base(
        tmp_path,
        "02_one_copy_engine.sqlite",
        "insert into TARGET_INFO_GPU select 1, 1, 'NVIDIA A100', 108, 3, 32, 64, 32, 65536, 167936, 8, 0, totalMemory "
        "from TARGET_INFO_GPU",
        "update CUPTI_ACTIVITY_KIND_MEMCPY set deviceId = 1",
        "update CUPTI_ACTIVITY_KIND_KERNEL set deviceId = 1",
    )
    assert (trace.metadata.device.name, trace.metadata.device.copy_engines) == ("NVIDIA A100", 3)
    assert Cause.COPY_ENGINE not in {one.code for one in trace.explain().findings}


def test_what_is_advised_on_a_card_of_amd_is_of_rocm(tmp_path):
    names = ("04_rocm_unpinned.json", "35_mi300_lds.json", "81_rocm_device_number.json")
    traces = [read(name) for name in names] + [of(tmp_path, in_turn((1, 2), by="hipLaunchKernel"), MI300)]
    for trace in traces:
        finding = trace.explain().findings[0]
        assert not re.search(r"CUDA_|cuda[A-Z]|\bSMs?\b|lab\.partition|lab\.memory|MPS", finding.text + finding.fix)
    assert (finding.code, finding.certainty) == (Cause.QUEUE_ALIAS, Certainty.LIKELY)
    assert "GPU_MAX_HW_QUEUES" in finding.text
    assert "GPU_MAX_HW_QUEUES" in finding.fix
    assert "rocprofv3" in finding.text


def test_cards_of_a_third_maker_get_no_advice_of_the_others(tmp_path):
    intel = {"id": 0, "name": "Intel(R) Data Center GPU Max 1550", "numSms": 512}
    found = of(tmp_path, in_turn((1, 2), by="urEnqueueKernelLaunch"), intel).explain()
    assert {one.code for one in found.findings} == {Cause.UNKNOWN}
    assert not re.search(r"CUDA_DEVICE|lab\.capture", str(found))


def test_how_fast_another_makers_link_is_is_no_promise(tmp_path):
    events = []
    for step in range(10):
        at, number = step * 1_000, 100 + step
        name = "Memcpy HtoD (Pageable -> Device)"
        events += [call(at, 700, "hipMemcpyAsync", correlation=number)]
        events += [work(at + 5, 690, name, stream=1, correlation=number, cat="gpu_memcpy", bytes=4 << 20)]
        events += launched(at + 710, 200, at + 702, stream=1, correlation=1 + step, by="hipLaunchKernel")
    amd, nvidia = (
        of(tmp_path, events, device).explain().findings[0]
        for device in (MI300 | {"computeMajor": 9}, H100 | {"computeMajor": 9})
    )
    assert (amd.code, nvidia.code) == (Cause.PAGEABLE_COPY, Cause.PAGEABLE_COPY)
    assert (amd.saves_ns, amd.bound_ns > 0) == (0, True)
    assert nvidia.saves_ns > 0


def test_steps_without_work_of_a_card_are_no_steps(tmp_path):
    events = [span(step * 100, 90, f"ProfilerStep#{step}", "user_annotation") for step in range(5)]
    assert of(tmp_path, events).idle().card.step_ns.tolist() == []


def test_one_queue_is_possible_of_three_streams(tmp_path):
    findings = of(tmp_path, in_turn((7, 24, 30))).explain().findings
    assert {(one.code, one.certainty) for one in findings} == {(Cause.QUEUE_ALIAS, Certainty.LIKELY)}
    assert len(findings) == 3


def test_what_blocks_take_most_of_is_said():
    (finding,) = read("35_mi300_lds.json").explain().findings
    assert "65,536 of the 65,536 bytes of shared memory of a compute unit" in finding.text


def test_a_limit_that_is_not_told_is_not_said(tmp_path):
    # GIVEN blocks of 1,024 threads that fill an SM of any card so far, and a card of which little is known
    many = {"grid": [120, 1, 1], "block": [1024, 1, 1]}
    events = [
        *launched(30, 4_000, 10, stream=1, correlation=1, **many),
        *launched(4_031, 1_000, 20, stream=2, correlation=2, **many),
    ]
    (finding,) = of(tmp_path, events, {"id": 0, "name": "a card", "numSms": 60}).explain().findings
    assert finding.code is Cause.GRID_FILLS_DEVICE
    assert "2,560" not in finding.text


def test_full_units_are_not_ruled_out_where_the_file_does_not_tell_their_limits(tmp_path):
    device = {"id": 0, "name": "a card", "numSms": 60}
    events = [*launched(30, 4_000, 10, stream=1, correlation=1), *launched(4_031, 1_000, 20, stream=2, correlation=2)]
    (finding,) = of(tmp_path, events, device).explain().findings
    ruled_out, unknown = finding.fix.split("Not recorded")
    assert finding.code is Cause.UNKNOWN
    assert "full SMs" in unknown
    assert "full SMs" not in ruled_out


# Calls that held the host


def test_pageable_copies_of_one_stream_are_a_cause_in_a_profile_of_pytorch(tmp_path):
    events = []
    for step in range(20):
        at = step * 1_330
        events.append(call(at, 1_000, "cudaMemcpyAsync", correlation=3 * step + 1))
        name = "Memcpy HtoD (Pageable -> Device)"
        events.append(work(at + 20, 960, name, stream=7, correlation=3 * step + 1, cat="gpu_memcpy", bytes=1 << 24))
        events += launched(at + 1_010, 300, at + 1_002, stream=7, correlation=3 * step + 2, **WHOLE)
        events.append(call(at + 1_010, 310, "cudaStreamSynchronize", correlation=3 * step + 3))
    found = of(tmp_path, events).explain()
    # THEN pinned memory is as fast as the link, and the fastest pageable copy is no measure of that
    assert found.findings[0].code is Cause.PAGEABLE_COPY
    assert found.findings[0].saves_ns == pytest.approx(20 * 0.64 * MS, rel=0.05)


def test_freeing_memory_is_told_as_that_and_not_as_a_wait_to_leave_out(tmp_path):
    events = []
    for step in range(30):
        at = step * 1_010
        events += [call(at, 400, "cudaMalloc", correlation=9_000), call(at + 405, 600, "cudaFree", correlation=9_000)]
        events += launched(at + 410, 200, at + 402, stream=7, correlation=1 + step, **WHOLE)
    finding = of(tmp_path, events).explain().findings[0]
    assert finding.code is Cause.ALLOC_SYNC
    assert finding.saves_ns > 15 * MS
    assert "Allocate before the loop" in finding.fix


def test_a_call_of_less_than_a_tenth_of_a_millisecond_is_a_cause_where_it_comes_again_and_again(tmp_path):
    events = []
    for step in range(60):
        at = step * 180
        events += launched(at + 10, 100, at, stream=7, correlation=2 * step + 1, took=4, **SMALL)
        events.append(call(at + 6, 70, "cudaMemGetInfo", correlation=0))
        events += launched(at + 90, 100, at + 80, stream=8, correlation=2 * step + 2, took=4, **SMALL)
    trace = of(tmp_path, events)
    (finding,) = trace.explain().findings
    assert (finding.code, trace.names[trace.name[finding.call_row]]) == (Cause.HOST_CALL, "cudaMemGetInfo")
    assert finding.bound_ns == pytest.approx(60 * 66_000, rel=0.02)


@pytest.mark.parametrize(
    ("launch", "wait", "device"),
    [("cudaGraphLaunch", "cudaStreamSynchronize", H100), ("hipGraphLaunch", "hipDeviceSynchronize", MI300)],
)
def test_a_graph_launch_goes_before_the_wait_that_only_shows_it(tmp_path, launch, wait, device):
    events = steps(12, 4_600, gap=20, call_name=launch, took=1_500, lasted=3_000, wait=wait)
    trace = of(tmp_path, events, device)
    first = trace.explain().findings[0]
    assert (first.code, trace.names[trace.name[first.call_row]]) == (Cause.HOST_CALL, launch)
    assert first.waited_ns == pytest.approx(11 * 1.5 * MS, rel=0.01)
    assert f"{launch.removesuffix('Launch')}Upload" in first.fix


def test_a_load_that_costs_more_than_all_else_comes_first(tmp_path):
    # GIVEN a load of 9 ms behind uploads that only share an engine
    def change(told):
        for event in told["traceEvents"]:
            event["ts"] += 7_500 if event["ts"] > 1_540 else 0
            event["dur"] = 9_000 if event["dur"] == 1_500 else event["dur"]

    found = changed(tmp_path, "46_lazy_load_behind_uploads.json", change).explain()
    assert found.findings[0].code is Cause.LAZY_LOAD
    assert found.findings[0].saves_ns == pytest.approx((7.5 + 0.56) * MS, rel=0.02)


def test_where_nothing_else_was_offered_the_operation_is_named(tmp_path):
    name = "Memcpy DtoH (Device -> Pageable)"
    events = [
        *launched(20, 5_000, 10, stream=7, correlation=1),
        span(40, 3_000, "aten::item"),
        span(45, 2_900, "aten::_local_scalar_dense"),
        *launched(3_005, 10, 3_000, stream=20, correlation=2, name=name, cat="gpu_memcpy", by="cudaMemcpyAsync", bytes=4),
        *launched(3_140, 4_000, 3_130, stream=20, correlation=3),
    ]
    finding = of(tmp_path, events).explain().findings[0]
    assert finding.operation == "aten::_local_scalar_dense"
    assert "reads a value" in finding.fix


# One stream waits for another


def test_a_wait_that_only_its_call_tells_of_is_likely(tmp_path):
    events = []
    for step in range(20):
        at, number = step * 1_020, 2 * step + 1
        events += launched(at + 10, 500, at, stream=7, correlation=number)
        events.append(call(at + 7, 1, "cudaStreamWaitEvent", correlation=0))
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events += launched(at + 512, 500, at + 9, stream=20, correlation=number + 1, name=name, **SMALL)
    finding = next(one for one in of(tmp_path, events).explain().findings if one.stream == "stream 20")
    assert (finding.code, finding.certainty, finding.other) == (Cause.EVENT_WAIT, Certainty.LIKELY, "stream 7")
    assert "keep the wait" in finding.fix


def test_dependent_launches_are_played_again_as_they_were(tmp_path):
    # GIVEN kernels of 130 us of one stream that begin each 100 us, twice, with a wait of the host between
    events = []
    for place in range(10):
        for part, stream in enumerate((7, 8)):
            at = part * 1_050
            events += launched(at + 60 + place * 100, 130, at + 10 + place * 5, stream=stream, correlation=1 + 2 * place + part)
    events.append(call(70, 1_020, "cudaStreamSynchronize", correlation=900))
    trace = of(tmp_path, events)
    forecast = trace.explain().forecast
    assert trace.quality().dependent_count == 18
    assert abs(forecast.error) < 0.02
    assert forecast.floor_ns == 130_000  # one of them: nobody knows whether they need each other


# What slows, and what moves pages


def test_a_collective_that_began_before_a_kernel_ended_did_not_wait_for_its_end(tmp_path):
    # GIVEN a kernel of five waves, in the last of which blocks of a collective with priority find room
    events = []
    for turn in range(6):
        at, number = turn * 4_000, 1 + 2 * turn
        shape = {"grid": [1_320, 1, 1], "block": [256, 1, 1], "registers per thread": 128}
        events += launched(at + 100, 3_000, at + 50, name="gemm", stream=7, correlation=number, **shape)
        few = {"grid": [16, 1, 1], "block": [544, 1, 1], "registers per thread": 96, "priority": -5}
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        events += launched(at + 2_900, 400, at + 60, name=name, stream=20, correlation=number + 1, **few)
    # THEN no event behind that kernel held it up, but that there was no room
    found = of(tmp_path, events).explain().findings
    assert Cause.EVENT_WAIT not in {finding.code for finding in found}
    (full,) = (finding for finding in found if finding.code is Cause.GRID_FILLS_DEVICE)
    assert full.other == "stream 7"
    assert "priority already (-5)" in full.fix


def test_a_collective_that_waited_for_what_it_sends_was_not_launched_late(tmp_path):
    # GIVEN a profile as PyTorch writes it: streams wait by calls, of which no rows tell what for
    events = []
    for turn in range(6):
        at, number = turn * 20_000, 1 + 10 * turn
        events += launched(at + 100, 8_000, at + 50, name="backward", stream=7, correlation=number, **WHOLE)
        events += [call(at + 56 + 10 * which, 1, "cudaStreamWaitEvent", correlation=number + 2 + which) for which in (0, 1)]
        few = {"grid": [16, 1, 1], "block": [544, 1, 1]}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events += launched(at + 8_101, 3_000, at + 60, name=name, stream=20, correlation=number + 4, **few)
        events += launched(at + 11_102, 1_000, at + 70, name="optimizer", stream=7, correlation=number + 5, **WHOLE)
    # THEN that its stream was idle since the collective before is no fault of the host
    assert {(one.code, one.certainty) for one in of(tmp_path, events).explain().findings} == {
        (Cause.EVENT_WAIT, Certainty.LIKELY)
    }


def test_the_share_that_taken_sms_explain_is_said():
    (finding,) = read("50_nccl_slows_gemm.json").explain().findings
    assert "2 turns in place of 1: all of it" in finding.text
    assert "memory, caches or clocks" not in finding.text


def test_bandwidth_that_copies_take_is_said(tmp_path):
    # GIVEN kernels that take longer beside copies of 25 GB/s, on a card of 320 GB/s
    kernels, copies = [], []
    for place in range(20):
        begin = 10_000_000 + place * 2_000_000
        end = begin + (1_300_000 if place % 2 else 1_000_000)
        grid = "4, 4, NULL, 0, 0, 32, 640, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, 0, NULL, 0"
        kernels.append(f"({begin}, {end}, 0, 1, NULL, 13, {100 + place}, 16777216000, {grid})")
        if place % 2:
            way = "32500000, 1, NULL, 1, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1"
            copies.append(f"({begin}, {end}, 0, 1, NULL, 14, {200 + place}, 16777216000, {way})")
    trace = changed_base(
        tmp_path,
        "02_one_copy_engine.sqlite",
        "alter table TARGET_INFO_GPU add column memoryBandwidth int",
        "update TARGET_INFO_GPU set memoryBandwidth = 320000000000",
        *(f"delete from CUPTI_ACTIVITY_KIND_{table}" for table in ("KERNEL", "MEMCPY", "RUNTIME")),
        f"insert into CUPTI_ACTIVITY_KIND_KERNEL values {', '.join(kernels)}",
        f"insert into CUPTI_ACTIVITY_KIND_MEMCPY values {', '.join(copies)}",
    )
    finding = next(one for one in trace.explain().findings if one.code is Cause.SLOWED_DOWN)
    assert finding.bound_ns == 10 * 300_000
    assert "8% of the memory's bandwidth" in finding.text


@pytest.mark.parametrize(("kind", "why", "is_fault"), [(12, 2, False), (11, 2, True), (12, 4, True), (11, 5, False)])
def test_pages_that_the_host_took_back_are_no_faults_of_a_kernel_and_evicted_ones_are(tmp_path, kind, why, is_fault):
    trace = changed_base(
        tmp_path,
        "72_managed_memory.sqlite",
        f"update CUPTI_ACTIVITY_KIND_MEMCPY set copyKind = {kind}, migrationCause = {why}",
    )
    findings = trace.explain().findings
    assert [one.code for one in findings] == [Cause.PAGE_FAULTS] * is_fault
    assert is_fault == bool(findings)
    assert ("more is used than fits" in "".join(one.text for one in findings)) == (why == 4)


# Said in every picture


def test_what_speaks_against_a_profile_comes_first_in_texts_and_is_seen_on_a_page(capsys, tmp_path):
    source = str(REPORTS / "53_first_kernels_lost.json.gz")
    timeline = gsl.load_trace(source).timeline()
    assert str(timeline).startswith("⚠ The profile is incomplete: 15 of 40 launches")
    page = tmp_path / "page.html"
    assert main(["view", source, "-o", str(page), "--no-open"]) == 0
    assert capsys.readouterr().out.startswith("The profile is incomplete: 15 of 40 launches")
    mark = re.search(r'class="gsl-lost"[^>]*>([^<]*)<', page.read_text())
    assert mark is not None
    assert "The profile is incomplete" in mark[1]


def test_a_file_by_hand_is_marked_as_no_measurement(tmp_path):
    rows = [{"ph": "X", "name": "step", "pid": 1, "tid": 2, "ts": 5, "dur": 10}]
    path = tmp_path / "by-hand.json"
    path.write_text(json.dumps(rows))
    timeline = gsl.load_trace(path).timeline()
    assert "as a file says" in str(timeline)
    timeline.save(tmp_path / "page.html")
    assert "FROM A FILE" in (tmp_path / "page.html").read_text()


def test_launches_that_failed_are_told_as_that_and_not_as_lost_kernels(tmp_path):
    # GIVEN a report in which the launch of a kernel, and a question whether an event is over, return an error
    made = changed_base(
        tmp_path,
        "61_cooperative.sqlite",
        "update CUPTI_ACTIVITY_KIND_RUNTIME set returnValue = 701 where correlationId = 2",
        "update CUPTI_ACTIVITY_KIND_RUNTIME set returnValue = 600 where correlationId = 3",
        "delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId = 2",
    )
    found = made.quality()
    assert (found["kernels lost"], found["tool"]) == (0, 1)
    assert "1 call failed" in str(found)
    assert "cudaLaunchCooperativeKernel (error 701)" in str(found)
    assert "cudaDeviceSynchronize" in made.names  # as an error of other calls may be an answer


# What happens in each turn of a loop


@pytest.mark.parametrize(("name", "turns"), [("aten::nonzero", 20), ("aten::item", 8), ("aten::item", 2)])
def test_a_value_that_the_host_reads_in_each_turn_is_told_with_its_operation(tmp_path, name, turns):
    # GIVEN a loop of one stream: kernels, then the host waits in an operation for a value of 8 bytes, and launches on
    events, at, free, number = [], 100, 100, 1

    def launch(lasts, what, **more):
        nonlocal at, free, number
        start = max(at + 10, free)
        events.extend(launched(start, lasts, at, stream=7, correlation=number, name=what, **more))
        at, free, number = at + 8, start + lasts + 1, number + 1

    for _ in range(turns):
        for place in range(12):
            launch(40, f"layer_{place}")
        begin = at
        launch(2, "Memcpy DtoH (Device -> Pageable)", cat="gpu_memcpy", by="cudaMemcpyAsync", bytes=8)
        events.append(call(at, free + 5 - at, "cudaStreamSynchronize", correlation=number))
        at, number = free + 8, number + 1
        events.append(span(begin, at - begin, name))
        at += 250
    # WHEN it is asked why
    found = of(tmp_path, events).explain()
    # THEN the wait is told with its operation, what to do, and what it costs at most, of which nothing is promised
    first = found.findings[0]
    assert (first.code, first.operation, first.piece_count) == (Cause.HOST_SYNC_STREAM, name, turns - 1)
    assert first.saves_ns == 0
    assert 0.8 * (turns - 1) * 250_000 < first.bound_ns < 1.2 * turns * 260_000
    assert "keep that on the card" in first.fix
    assert (" once, for " in first.text, " times, " in first.text) == (turns == 2, turns > 2)


@pytest.mark.parametrize("frees", [2, 5])
@pytest.mark.parametrize("name", ["cudaFree", "hipFree"])
def test_all_frees_in_front_of_a_launch_are_billed(tmp_path, frees, name):
    # GIVEN a loop in which one kernel of 30 us is followed by several calls that free memory, of 100 us each
    events, at = [], 100
    for turn in range(10):
        events += launched(at + 10, 30, at, stream=7, correlation=100 * turn + 1)
        events += [call(at + 8 + 102 * place, 100, name, correlation=100 * turn + 2 + place) for place in range(frees)]
        at += 102 * frees + 10
    # WHEN it is asked why THEN what all of them cost would be saved, not only what the longest does
    first = of(tmp_path, events).explain().findings[0]
    assert first.code is Cause.ALLOC_SYNC
    assert first.saves_ns == pytest.approx(9 * (102 * frees + 10 - 30) * 1_000, rel=0.05)
