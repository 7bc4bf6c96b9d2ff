"""Reports of users, made anew: each gives its right answer, as a value. The inputs are in tests/data, see its README."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, TraceError, TraceFileError
from gpustreamlab.run._told import told_lines
from gpustreamlab.typing import Cause, Certainty, SpanKind
from gpustreamlab.workloads import spin

REPORTS = Path(__file__).parents[2] / "data" / "reports"
MS = 1_000_000


def read(name):
    return gsl.load_trace(REPORTS / f"{name}.gz")


def events_of(name):
    return json.loads(gzip.decompress((REPORTS / f"{name}.gz").read_bytes()))


def changed(tmp_path, name, change):
    """Return the trace of a report that was changed in one thing."""
    told = events_of(name)
    change(told)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(told))
    return gsl.load_trace(path)


def changed_base(tmp_path, name, *statements):
    path = tmp_path / name
    path.write_bytes(gzip.decompress((REPORTS / f"{name}.gz").read_bytes()))
    base = sqlite3.connect(path)
    for statement in statements:
        base.execute(statement)
    base.commit()
    base.close()
    return gsl.load_trace(path)


def codes(trace, *names):
    return [finding.code for finding in trace.explain(*names).findings]


# What the file says of the card


def test_copies_both_ways_share_the_one_engine_of_a_card():
    # GIVEN a card with one copy engine, and copies both ways in turn on four streams
    trace = read("02_one_copy_engine.sqlite")
    found = trace.explain()
    # THEN that is the cause, and next to nothing is to be gained
    assert trace.metadata.device.copy_engines == 1
    assert {finding.code for finding in found.findings} == {Cause.COPY_ENGINE}
    assert found.bound_ns == max(finding.bound_ns for finding in found.findings) == 400_000
    assert found.forecast.floor_ns == 64 * MS
    assert trace.overlap().ideal_ns == 64 * MS


def test_two_engines_and_an_unknown_number_of_them_are_not_taken_for_one(tmp_path):
    two = changed_base(tmp_path, "02_one_copy_engine.sqlite", "update TARGET_INFO_GPU set asyncEngines = 2")
    assert two.metadata.device.copy_engines == 2
    assert set(codes(two)) == {Cause.UNKNOWN}
    assert "Ruled out: one copy engine" in two.explain().findings[0].fix


def test_blocks_that_fill_the_shared_memory_of_compute_units_are_told():
    trace = read("35_mi300_lds.json")
    limits = trace.metadata.device.sm_limits
    # THEN limits are those of the file, and what it does not tell limits nothing
    assert (limits.shared_bytes, limits.threads, limits.registers, limits.blocks) == (65_536, 2_048, 0, 0)
    (finding,) = trace.explain().findings
    assert finding.code in {Cause.GRID_FILLS_DEVICE, Cause.SM_RESOURCES}


def test_small_blocks_of_a_card_whose_limits_are_unknown_fill_nothing(tmp_path):
    def change(told):
        del told["deviceProperties"][0]["maxSharedMemoryPerMultiProcessor"]
        del told["deviceProperties"][0]["maxThreadsPerMultiprocessor"]

    assert codes(changed(tmp_path, "35_mi300_lds.json", change)) == [Cause.UNKNOWN]


@pytest.mark.parametrize("numbers", [[2], [9], [2, 9]])
def test_a_card_is_the_one_that_the_properties_name_whatever_number_records_carry(tmp_path, numbers):
    def change(told):
        work = [event for event in told["traceEvents"] if event["cat"] == "kernel"]
        for place, event in enumerate(work):
            event["pid"] = event["args"]["device"] = numbers[place % len(numbers)]

    trace = changed(tmp_path, "81_rocm_device_number.json", change)
    assert {(device.name, device.sm_count) for device in trace.devices} == {("AMD Instinct MI300X", 304)}


def test_a_number_of_several_unlike_cards_is_not_guessed(tmp_path):
    def change(told):
        told["deviceProperties"].append({**told["deviceProperties"][0], "id": 1, "numSms": 228})

    assert changed(tmp_path, "81_rocm_device_number.json", change).metadata.device.sm_count == 0


# Calls that held the host


def test_the_operation_in_which_the_host_was_is_named():
    findings = read("03_dtype_mismatch.json").explain().findings
    assert [(one.code, one.operation) for one in findings] == [
        (Cause.PAGEABLE_COPY, "aten::copy_"),
        (Cause.HOST_LATE, "aten::copy_"),
    ]
    assert findings[1].waited_ns == pytest.approx(2.53 * MS, rel=0.01)
    assert "aten::copy_ meanwhile (2.48 ms)" in findings[1].text
    assert "converts on the host" in findings[1].fix


def test_a_copy_that_held_its_call_is_one_of_pageable_memory():
    trace = read("04_rocm_unpinned.json")
    (finding,) = trace.explain().findings
    assert finding.code in {Cause.PAGEABLE_COPY, Cause.HOST_SYNC_STREAM}
    assert trace.names[trace.name[finding.call_row]] == "hipMemcpyAsync"
    assert trace.duration_ns[finding.call_row] == 5 * MS


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("hipHostMalloc", Cause.ALLOC_SYNC),
        ("hipMemGetInfo", Cause.HOST_CALL),
        ("cudaGraphInstantiate", Cause.HOST_CALL),
        ("cudaMemGetInfo", Cause.HOST_CALL),
    ],
)
def test_a_long_call_is_a_cause_by_its_name(tmp_path, call, code):
    # GIVEN the same with another call, and no copy
    def change(told):
        told["traceEvents"] = [event for event in told["traceEvents"] if event["cat"] != "gpu_memcpy"]
        for event in told["traceEvents"]:
            event["name"] = call if event["name"] == "hipMemcpyAsync" else event["name"]

    trace = changed(tmp_path, "04_rocm_unpinned.json", change)
    finding = trace.explain().findings[0]
    assert (finding.code, trace.names[trace.name[finding.call_row]]) == (code, call)
    assert max(finding.bound_ns, finding.saves_ns) >= 3.9 * MS


@pytest.mark.parametrize(("call", "code"), [("hipHostMalloc", Cause.ALLOC_SYNC), ("cudaMemGetInfo", Cause.HOST_CALL)])
def test_on_one_stream_the_call_and_the_operation_that_left_the_card_idle_are_named(tmp_path, call, code):
    def change(told):
        told["traceEvents"] = [event for event in told["traceEvents"] if event["cat"] != "gpu_memcpy"]
        for event in told["traceEvents"]:
            event["name"] = call if event["name"] == "hipMemcpyAsync" else event["name"]
            if event["cat"] == "kernel":
                event["tid"] = event["args"]["stream"] = 1
                event["dur"] = 300 if event["name"] == "gemm_a" else event["dur"]
        operation = {"ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 1, "tid": 1, "ts": 38, "dur": 5_004, "args": {}}
        told["traceEvents"].append(operation)

    trace = changed(tmp_path, "04_rocm_unpinned.json", change)
    found = trace.explain()
    (finding,) = found.findings
    assert (finding.code, finding.operation) == (code, "aten::item")
    assert f"1. {code}, {call} in aten::item: saves at most 4.71 ms, not promised." in told_lines(trace)[-1]
    assert finding.waited_ns == finding.bound_ns == 4_710_000
    assert "4.71 ms" in found.headline


def test_the_function_that_made_a_long_call_is_named():
    # GIVEN two kernels, between which one function allocates for 5 ms, and was looked at there
    trace = gsl.Trace.from_columns(
        start_ns=[0, 2_000, 10_000, 1_000_000, 5_100_000, 5_110_000],
        end_ns=[1_000, 3_000_000, 5_050_000, 3_000_000, 5_105_000, 8_000_000],
        queued_ns=[0, 0, 10_000, 1_000_000, 5_100_000, 5_100_000],
        stream=["host: main", "a", "host: main", "host: main", "host: main", "a"],
        name=["cuLaunchKernel", "gemm", "cuMemHostAlloc", "load (train.py:12)", "cuLaunchKernel", "gemm"],
        kind=["host", "kernel", "host", "sample", "host", "kernel"],
        thread=["main"] * 6,
    )
    (finding,) = trace.explain().findings
    assert (finding.function, finding.sample_count, finding.function_share) == ("load (train.py:12)", 1, 1.0)
    assert told_lines(trace)[-1].startswith(f"1. {finding.code}, cuMemHostAlloc in load (train.py:12): saves ")


def test_one_load_is_billed_once_to_the_launch_that_it_held():
    found = read("44_serial_loop_sync_after_upload.json").explain()
    assert [finding.code for finding in found.findings] == [*[Cause.HOST_SYNC_STREAM] * 3, Cause.LAZY_LOAD]
    assert [finding.bound_ns for finding in found.findings[:3]] == [pytest.approx(12 * MS, rel=0.01)] * 3
    load = found.findings[-1]
    assert (load.piece_count, load.stream) == (1, "stream 20")
    # THEN without it the run is shorter by all of it, but the launch itself
    assert load.saves_ns == pytest.approx(40 * MS, rel=0.001)
    assert abs(found.forecast.error) < 0.001


def test_a_load_behind_uploads_is_worth_what_the_uploads_would_have_hidden():
    found = read("46_lazy_load_behind_uploads.json").explain()
    first = found.findings[0]
    assert (first.code, first.piece_count, first.stream) == (Cause.LAZY_LOAD, 1, "stream 13")
    assert first.saves_ns == pytest.approx(560_000, rel=0.02)
    assert abs(found.forecast.error) < 0.01


def test_a_graph_launch_in_which_the_host_sits_while_the_card_is_idle_is_named():
    trace = read("54_graph_launch_bubble.json")
    found = {finding.code: finding for finding in trace.explain().findings}
    call = found[Cause.HOST_CALL]
    assert trace.names[trace.name[call.call_row]] == "cudaGraphLaunch"
    assert trace.duration_ns[call.call_row] == 2_826_000
    assert (call.piece_count, call.waited_ns) == (9, pytest.approx(9 * 2.826 * MS, rel=0.01))
    # THEN the card was idle for a quarter of the run as long
    wait = found[Cause.HOST_SYNC_STREAM]
    assert trace.idle().total_ns("stream 7", "host") / wait.bound_ns == pytest.approx(1, rel=0.01)
    assert wait.saves_ns == 0  # the host may need what it waits for
    assert call.waited_ns / trace.explain().forecast.measured_ns > 0.2


# Whether a profile can be trusted


@pytest.mark.parametrize(("name", "lost"), [("53_first_kernels_lost.json", 15), ("28_kernels_lost.json", 40)])
def test_launches_without_kernels_are_said_before_anything_else(name, lost):
    trace = read(name)
    quality = trace.quality()
    assert (quality["kernels lost"], len(quality.lost_row)) == (lost, lost)
    assert quality.doubts[0][:3] == ("kernels lost", lost, 40)
    for answer in (trace.explain(), trace.idle(), trace.overlap(), trace.totals(), trace.host_waits()):
        assert " ".join(str(answer).split()).startswith(f"The profile is incomplete: {lost} of 40 launches")
        assert f"{lost} of 40 launches" in answer._repr_html_().partition("</p>")[0]
    assert f"{lost} of 40 launches" in " ".join(str(trace.timeline()).split())


def test_a_sound_profile_has_no_doubt():
    trace = read("50_nccl_slows_gemm.json")
    assert not trace.quality()
    assert trace.metadata.doubt == ""


def test_records_without_a_time_are_refused_and_counted():
    trace = read("51b_ts_zero_absolute.json")
    assert trace.metadata.refused_records == trace.quality()["no time"] == 3
    assert trace.end_ns.max() - trace.start_ns.min() < 2 * MS
    assert (trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum() == 10


def test_work_before_its_call_says_that_the_clocks_disagree(tmp_path):
    def change(told):
        for event in told["traceEvents"]:
            event["ts"] -= 500 if event["cat"] == "kernel" else 0

    trace = changed(tmp_path, "53_first_kernels_lost.json", change)
    (clocks,) = (one for one in trace.quality().doubts if one.check == "clocks")
    assert (clocks.record_count, clocks.of, clocks.worst_ns) == (25, 25, 490_000)
    assert "disagree" in trace.metadata.doubt


def test_what_nsys_warned_of_is_said(tmp_path):
    trace = changed_base(
        tmp_path,
        "61_cooperative.sqlite",
        "create table DIAGNOSTIC_EVENT (timestamp integer, severity integer, text text)",
        "insert into DIAGNOSTIC_EVENT values (1, 1, 'Profiling has started.'), (2, 2, 'Not all CUDA events were collected.')",
        "create table PROFILER_OVERHEAD (start integer, end integer, globalTid integer, nameId integer)",
        "insert into PROFILER_OVERHEAD values (1000, 31000, 1, 1)",
    )
    assert trace.metadata.diagnostics == ("Not all CUDA events were collected.",)
    assert "Not all CUDA events were collected" in trace.metadata.doubt
    assert trace.quality().to_pandas()[["check", "worst_ns"]].values.tolist() == [["tool", 0], ["overhead", 30_000]]


def test_what_the_profiler_of_pytorch_took_itself_is_said(tmp_path):
    def change(told):
        row = {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, "ts": 5, "args": {}}
        told["traceEvents"] += [{**row, "dur": 700}, {**row, "dur": 300}]

    trace = changed(tmp_path, "50_nccl_slows_gemm.json", change)
    assert [(one.check, one.worst_ns) for one in trace.quality().doubts] == [("overhead", MS)]
    assert trace.metadata.doubt == ""


def test_graph_launches_that_were_recorded_as_one_are_counted(tmp_path):
    trace = changed_base(
        tmp_path,
        "61_cooperative.sqlite",
        "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start integer, end integer, deviceId integer, contextId integer, "
        "streamId integer, correlationId integer, globalPid integer, graphId integer)",
        "insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (7000000, 8000000, 0, 1, 13, 9, 16777216000, 4)",
    )
    assert trace.quality()["whole graphs"] == 1


def test_launches_of_a_capture_have_no_kernels_to_lose(tmp_path):
    def change(told):
        launches = [event for event in told["traceEvents"] if event["name"] == "cudaLaunchKernel"]
        begin, end = launches[0]["ts"] - 2, launches[14]["ts"] + 10
        for name, ts in (("cudaStreamBeginCapture", begin), ("cudaStreamEndCapture", end)):
            told["traceEvents"].append({**launches[0], "name": name, "ts": ts, "dur": 1, "args": {"correlation": 0}})

    assert changed(tmp_path, "53_first_kernels_lost.json", change).quality()["kernels lost"] == 0


def test_kernels_of_one_stream_that_overlap_are_dependent_launches(tmp_path):
    def change(told):
        for event in told["traceEvents"]:
            event["dur"] = 130 if event.get("cat") == "kernel" else event["dur"]

    trace = changed(tmp_path, "51b_ts_zero_absolute.json", change)
    assert trace.metadata.refused_records == 3
    assert trace.quality().dependent_count == 9
    # THEN no answer counts the time twice
    assert trace.overlap().busy_ns.tolist() == [1_030_000]
    assert trace.idle().total_ns("stream 7", "host") == 0
    assert trace.critical_path().duration_ns <= trace.end_ns.max() - trace.start_ns.min()


# How work shares a card


def test_page_faults_of_managed_memory_are_a_cause_and_no_copies_of_a_stream():
    trace = read("72_managed_memory.sqlite")
    (finding,) = trace.explain().findings
    assert (finding.code, finding.waited_ns, finding.stream) == (Cause.PAGE_FAULTS, 400_000, "stream 7")
    assert "cudaMemPrefetchAsync" in finding.fix
    assert [lane.name for lane in trace.overlap().lanes] == ["stream 7"]
    assert "stream 0" not in {lane.name for lane in trace.lanes}


def test_pages_that_were_prefetched_are_no_faults(tmp_path):
    trace = changed_base(tmp_path, "72_managed_memory.sqlite", "update CUPTI_ACTIVITY_KIND_MEMCPY set migrationCause = 3")
    assert codes(trace) == []


def test_two_processes_share_a_card_by_slices_of_time():
    found = read("07_two_processes.sqlite").explain().findings
    assert {finding.code for finding in found} == {Cause.TIME_SLICED}
    assert found[0].bound_ns == 12 * MS
    assert "MPS" in found[0].fix


@pytest.mark.parametrize(("change_ns", "cause"), [(300_000, Cause.TIME_SLICED), (600_000, Cause.UNKNOWN)])
def test_a_card_takes_some_time_to_change_from_one_process_to_another(change_ns, cause, tmp_path):
    late = f"correlationId * {change_ns}"
    later = f"update CUPTI_ACTIVITY_KIND_KERNEL set start = start + {late}, end = end + {late}"
    assert {*codes(changed_base(tmp_path, "07_two_processes.sqlite", later))} == {cause}


def test_two_processes_that_ran_at_once_do_not_take_turns(tmp_path):
    trace = changed_base(
        tmp_path,
        "07_two_processes.sqlite",
        "update CUPTI_ACTIVITY_KIND_KERNEL set start = start - 1500000, end = end - 1500000 where correlationId = 2",
    )
    assert Cause.TIME_SLICED not in codes(trace)


def test_one_hardware_queue_is_possible_where_work_ran_as_launched():
    found = read("06_max_connections_unknown.json").explain().findings
    assert {(finding.code, finding.certainty) for finding in found} == {(Cause.QUEUE_ALIAS, Certainty.LIKELY)}
    assert all("CUDA_DEVICE_MAX_CONNECTIONS=1" in finding.text and "would tell" in finding.text for finding in found)


def test_streams_that_wait_for_each_other_keep_the_order_of_launches_without_one_queue(tmp_path):
    def change(told):
        first = told["traceEvents"][0]
        told["traceEvents"].append({**first, "name": "cudaStreamWaitEvent", "ts": 5, "args": {"correlation": 901}})

    assert Cause.QUEUE_ALIAS not in codes(changed(tmp_path, "06_max_connections_unknown.json", change))


@pytest.mark.parametrize("lost", ["launchType", "name of the call"])
def test_a_cooperative_launch_waits_for_room_for_all_its_blocks(tmp_path, lost):
    forget = {
        "launchType": "update CUPTI_ACTIVITY_KIND_KERNEL set launchType = null",
        "name of the call": "update StringIds set value = 'cudaLaunchKernelExC_v11060' where id = 2",
    }[lost]
    (finding,) = changed_base(tmp_path, "61_cooperative.sqlite", forget).explain().findings
    assert (finding.code, finding.bound_ns) == (Cause.COOPERATIVE, 2 * MS)


def test_what_collectives_slow_costs_what_it_slowed():
    found = read("50_nccl_slows_gemm.json").explain()
    (finding,) = found.findings
    assert (finding.code, finding.waited_ns, finding.bound_ns) == (Cause.SLOWED_DOWN, 8_640_000, 8_640_000)
    assert finding.other == "stream 21"
    assert "ncclDevKernel" in finding.text
    for kernel, cost in (("sm80_xmma_gemm", "7.20 ms"), ("flash_fwd", "1.20 ms")):
        assert re.search(rf"{kernel}\S* {cost}", finding.text)
    # THEN what the SMs explain is said: 8 blocks take 8 of 108 SMs, so that 108 blocks go round twice
    assert "8 or more of the 108 SMs" in finding.text
    assert "2 turns" in finding.text


def test_latency_behind_a_full_card_is_told_and_priority_not_advised_to_who_has_it():
    with gsl.Session("sim") as lab:
        lab.capture("kernels", host=True)
        lab.stream("prefill", priority=0)
        lab.stream("decode", priority=-2)
        for _ in range(10):
            spin(lab, 5 * MS, blocks=132 * 32, stream="prefill")
        for _ in range(10):
            spin(lab, 50_000, blocks=8, stream="decode")
            lab.streams["decode"].synchronize()
        lab.synchronize()
        (finding,) = lab.explain("decode", "prefill").findings
    assert (finding.code, finding.saves_ns, finding.piece_count) == (Cause.GRID_FILLS_DEVICE, 0, 10)
    assert finding.waited_ns == pytest.approx(10 * 4.96 * MS, rel=0.01)
    assert "priority already (-2)" in finding.fix
    assert "lab.partition" in finding.fix


def test_launch_order_is_told_of_two_streams_that_are_asked_for():
    with gsl.Session("sim") as lab:
        lab.capture("kernels", host=True)
        for name in "ab":
            lab.stream(name)
        for name in "ab":
            for _ in range(100):
                spin(lab, 20_000, blocks=8, stream=name)
        lab.synchronize()
        first = lab.explain("a", "b").findings[0]
    assert (first.code, first.saves_ns) == (Cause.HOST_LATE, pytest.approx(440_000, rel=0.05))


# Told apart


def test_a_file_of_nvprof_is_refused_by_name():
    with pytest.raises(TraceFileError, match=r"a file of nvprof"):
        read("nvprof.sqlite")


def test_a_report_without_cuda_is_sound(tmp_path):
    path = tmp_path / "run.sqlite"
    base = sqlite3.connect(path)
    for statement in (
        "create table META_DATA_EXPORT (name text, value text)",
        "insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2025.3.2')",
        "create table OSRT_API (start integer, end integer, globalTid integer, nameId integer)",
        "insert into OSRT_API values (1, 2, 3, 4)",
    ):
        base.execute(statement)
    base.commit()
    base.close()
    with pytest.raises(TraceFileError, match=r"no CUDA was recorded") as raised:
        gsl.load_trace(path)
    assert "damaged" not in str(raised.value)


def test_a_file_by_hand_is_not_measured_by_pytorch_and_keeps_its_names(tmp_path):
    rows = [{"ph": "M", "name": "thread_name", "pid": 3, "tid": 8, "args": {"name": "my compute"}}]
    rows += [{"ph": "X", "cat": "kernel", "name": "work", "pid": 3, "tid": 8, "ts": 1, "dur": 5}]
    path = tmp_path / "by-hand.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = gsl.load_trace(path)
    assert [lane.name for lane in trace.lanes] == ["my compute"]
    assert trace.metadata.device.ordinal == 0
    assert trace.metadata.kernel_error_ns == trace.metadata.clock_error_ns == 0
    text = " ".join(str(trace.timeline()).split())
    assert "PyTorch" not in text
    assert "measured on hardware" not in text


# Several traces as one


def simulated(name):
    with gsl.Session("sim") as lab:
        spin(lab, MS, stream=lab.stream(name))
        lab.synchronize()
        return lab.trace


def test_simulated_runs_that_were_not_one_are_not_merged(tmp_path):
    traces = [simulated("a"), simulated("b")]
    with pytest.raises(TraceError, match=r"begins at 0"):
        gsl.merge(traces)
    paths = [tmp_path / f"{place}.parquet" for place in range(2)]
    for trace, path in zip(traces, paths, strict=True):
        trace.save(path)
    for wrong in (1.5, float("nan"), "1"):
        with pytest.raises(OptionError, match="give whole numbers of ns"):
            gsl.merge(paths, ahead_ns=[0, wrong])
    behind = gsl.merge(paths, ahead_ns=[0, 2 * MS])
    assert behind.overlap()["a", "b"].common_ns == 0
