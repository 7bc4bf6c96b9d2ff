"""The kernel tier on a real GPU: every kernel on the session's clock, in the right lane and partition, and never in the way."""

import threading
import time
from itertools import pairwise

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.typing import CaptureTier, EdgeKind, LaneKind, SpanKind
from gpustreamlab.workloads import spin_card
from tests.helpers.programs import run_alone, spin_kernel

KINDS = list(SpanKind)
WORK = (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)
GATE_NS = 5_000_000


def rows_of(trace, *kinds):
    return np.flatnonzero(np.isin(trace.kind, [KINDS.index(kind) for kind in kinds])).tolist()


def named(trace, *kinds):
    return [trace.names[trace.name[row]] for row in rows_of(trace, *kinds)]


def lane_of(trace, row):
    return trace.lanes[trace.lane[row]]


def spin(lab, duration_ns, grid=1, block=32, timers=None):
    pointer = np.uint64(0) if timers is None else timers
    spin_kernel()((grid,), (block,), (np.int64(duration_ns), pointer))


def test_kernels_copies_and_fills_have_lane_range_and_details(lab):
    lab.stream("compute")
    with lab.capture("kernels") as capture:
        assert capture.tier is CaptureTier.KERNELS
        with lab.on("compute", "step"):
            spin(lab, 20_000, grid=3, block=64)
            array = cupy.zeros(1 << 20, cupy.uint8)
            array.set(np.ones(1 << 20, np.uint8))
        lab.synchronize()
    trace = lab.trace
    assert trace.metadata.tier is CaptureTier.KERNELS
    assert len(trace.metadata.capture_windows) == 1
    assert trace.metadata.capture_source.startswith("CUPTI")
    (kernel,) = [row for row in rows_of(trace, SpanKind.KERNEL) if trace.names[trace.name[row]] == "spin"]
    (fill,), (copy,) = rows_of(trace, SpanKind.FILL), rows_of(trace, SpanKind.COPY)
    step = trace.names.index("step")
    for row in (kernel, fill, copy):
        assert lane_of(trace, row).name == "compute"
        assert trace.name[trace.parent[row]] == step
        assert trace.extra["size_bytes"][row] == (0 if row == kernel else 1 << 20)
    detail = trace.details[trace.extra["detail"][kernel]]
    assert (detail.grid, detail.block) == ((3, 1, 1), (64, 1, 1))
    assert detail.registers > 0
    assert 20_000 <= trace.duration_ns[kernel] < 40_000
    step_row = trace.parent[kernel]
    assert trace.extra["work_count"][step_row] == 3
    assert trace.extra["work_start_ns"][step_row] == trace.start_ns[kernel]
    assert not lab.trace.strays()


def test_times_are_those_of_the_kernels_own_timer(lab):
    lab.stream("a")
    origin_ns = lab._backend._clock.origin_timer_ns
    with lab.capture("kernels"):
        for _ in range(3):
            timers = cupy.zeros((40, 2), cupy.uint64)
            with lab.on("a", "awake"):
                spin_card(lab, 200_000_000)
            lab.synchronize()
            lab.clear()
            with lab.on("a", "gate"):
                spin(lab, GATE_NS)
            for row in range(40):
                with lab.on("a", f"range {row}"):
                    spin(lab, 20_000, timers=timers[row])
            lab.synchronize()
            trace, timer_ns = lab.trace, timers.get().astype(np.int64) - origin_ns
            kernels = [row for row in rows_of(trace, SpanKind.KERNEL) if 20_000 <= trace.duration_ns[row] < 100_000]
            assert len(kernels) == 40
            error_ns = trace.metadata.kernel_error_ns
            assert error_ns <= 2_000
            assert np.abs(trace.start_ns[kernels] - timer_ns[:, 0]).max() <= error_ns
            # A kernel ends a little after its last instruction.
            assert np.abs(trace.end_ns[kernels] - timer_ns[:, 1] - 700).max() <= error_ns + 300
            ranges = [int(trace.parent[row]) for row in kernels[10:]]
            start_error_ns = trace.start_ns[ranges] - trace.start_ns[kernels[10:]]
            end_error_ns = trace.end_ns[ranges] - trace.end_ns[kernels[10:]]
            assert np.percentile(np.abs(start_error_ns), 90) <= 500
            assert np.percentile(np.abs(end_error_ns), 90) <= trace.metadata.range_error_ns
            assert np.median(np.abs(end_error_ns)) <= 500


def test_partitions_are_those_that_the_kernel_ran_in_also_after_a_move(lab):
    with lab.capture("kernels"):
        lab.partition(small=16, big="rest")
        lab.stream("a", partition="small")
        with lab.on("a", "in small"):
            spin(lab, 5_000)
        lab.stream("a", partition="big")
        with lab.on("a", "in big"):
            spin(lab, 5_000)
        lab.synchronize()
    trace = lab.trace
    kernels = [row for row in rows_of(trace, SpanKind.KERNEL) if trace.names[trace.name[row]] == "spin"]
    assert [trace.partitions[trace.partition[row]].name for row in kernels] == ["small", "big"]
    assert {lane_of(trace, row).name for row in kernels} == {"a"}
    assert not lab.trace.strays()


def test_a_library_that_leaves_the_selected_stream_is_named(lab):
    torch = pytest.importorskip("torch")
    ones = torch.ones(1_000, device="cuda")
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with lab.capture("kernels"):
        with lab.on(lab.stream("compute"), "step"):
            spin(lab, 5_000)
            with torch.cuda.stream(other):
                ones * 2
            with cupy.cuda.Stream.null:
                cupy.arange(1_000)
            ones + 1  # torch follows the selection
        lab.synchronize()
    strays = lab.trace.strays()
    assert len(strays) == 2
    frame = strays.to_pandas()
    assert any(name.startswith("torch stream") for name in frame["ran_on"])
    assert "default stream" in set(frame["ran_on"])
    assert set(frame["selected"]) == {"compute"}
    outside = [lane.name for lane in lab.trace.lanes if lane.outside]
    assert len(outside) == 2


def test_ranges_of_other_libraries_cover_their_kernels():
    out = run_alone(
        """
        import threading
        import gpustreamlab as gsl
        from gpustreamlab.workloads import spin
        with gsl.Session("cuda", capture="ranges") as lab:
            import nvtx, torch
            torch.ones(1, device="cuda")
            lab.stream("a")
            with lab.capture("kernels"):
                with lab.on("a", "step"), nvtx.annotate("mine"):
                    spin(lab, 10_000)
                    with nvtx.annotate("inner", domain="lib"):
                        spin(lab, 10_000)
                torch.cuda.nvtx.range_push("torch's")
                with lab.on("a", "second"):
                    spin(lab, 10_000)
                torch.cuda.nvtx.range_pop()
                def work():
                    with nvtx.annotate("in a thread"), lab.on("a", "third"):
                        spin(lab, 10_000)
                thread = threading.Thread(target=work); thread.start(); thread.join()
                lab.synchronize()
            trace = lab.trace
            from gpustreamlab.typing import SpanKind
            kinds = list(SpanKind)
            for row in range(len(trace)):
                if kinds[trace.kind[row]] is SpanKind.KERNEL and trace.names[trace.name[row]] == "spin":
                    print("kernel in", trace.names[trace.name[trace.parent[row]]])
            told = {trace.names[trace.name[r]] for r in range(len(trace)) if kinds[trace.kind[r]] is SpanKind.ANNOTATION}
            print(sorted(told))
        import os
        print("left", os.environ.get("NVTX_INJECTION64_PATH"))
        """
    )
    assert "kernel in mine" in out
    assert "kernel in lib: inner" in out
    assert "kernel in second" in out
    for name in ("mine", "lib: inner", "torch's", "in a thread"):
        assert name in out.splitlines()[-2]
    assert out.splitlines()[-1] == "left None"


def test_launches_waits_and_what_blocked_are_on_host_lanes(lab):
    copy, compute = lab.stream("copy"), lab.stream("compute")
    with lab.capture("kernels"):
        with lab.on("copy", "first"):
            spin(lab, 20_000_000)  # a slow host comes to synchronize() 1 ms later
        compute.wait(copy.record())
        with lab.on("compute", "second"):
            spin(lab, 10_000)
        compute.synchronize()
    trace = lab.trace
    assert any(lane.kind is LaneKind.HOST and "MainThread" in lane.name for lane in trace.lanes)
    blocking = [row for row in rows_of(trace, SpanKind.HOST) if "Synchronize" in trace.names[trace.name[row]]]
    assert trace.duration_ns[blocking].max() > 500_000
    first, second = rows_of(trace, SpanKind.KERNEL)
    edge_kinds = list(EdgeKind)
    edges = {
        (int(source), int(target), edge_kinds[kind])
        for source, target, kind in zip(trace.edges.source, trace.edges.target, trace.edges.kind, strict=True)
    }
    assert (first, second, EdgeKind.WAIT) in edges
    launches = {target for source, target, kind in edges if kind is EdgeKind.LAUNCH}
    assert {first, second} <= launches
    assert trace.queued_ns[second] < trace.start_ns[second]


def test_waits_between_partitions_are_edges_between_kernels(lab):
    lab.partition({"left": 32, "right": "rest"})
    streams = [lab.stream("a", partition="left"), lab.stream("b", partition="right"), lab.stream("plain")]
    with lab.capture("kernels"):
        before = None
        for stream in (*streams, *streams):
            if before is not None:
                stream.wait(before)
            with lab.on(stream):
                spin(lab, 100_000)
            before = stream.record()
        lab.synchronize()
    trace = lab.trace
    kernels = rows_of(trace, SpanKind.KERNEL)
    waits = {
        (int(source), int(target))
        for source, target, kind in zip(trace.edges.source, trace.edges.target, trace.edges.kind, strict=True)
        if list(EdgeKind)[kind] is EdgeKind.WAIT
    }
    assert len(kernels) == 6
    assert set(pairwise(kernels)) <= waits


def test_graph_nodes_are_told_one_by_one(lab):
    stream = lab.stream("a")
    spin(lab, 1_000)
    stream._backend_stream.cupy.begin_capture()
    with stream._backend_stream.cupy:
        spin(lab, 5_000, grid=2)
        spin(lab, 5_000, grid=4)
    graph = stream._backend_stream.cupy.end_capture()
    with lab.capture("kernels"):
        with lab.on("a", "launch"):
            graph.launch(stream._backend_stream.cupy)
        lab.synchronize()
    trace = lab.trace
    kernels = rows_of(trace, SpanKind.KERNEL)
    details = [trace.details[trace.extra["detail"][row]] for row in kernels]
    assert [detail.grid[0] for detail in details] == [2, 4]
    assert all(detail.graph for detail in details)
    assert {lane_of(trace, row).name for row in kernels} == {"a"}
    assert len(set(trace.extra["correlation"][kernels].tolist())) == 1
    (launch,) = rows_of(trace, SpanKind.ANNOTATION)
    assert trace.parent[kernels].tolist() == [launch, launch]
    assert trace.names[trace.name[trace.parent[launch]]] == "launch"


def test_capture_starts_and_stops_many_times_and_loses_nothing(lab):
    lab.stream("a")
    for _ in range(20):
        with lab.capture("kernels"):
            with lab.on("a", "in"):
                spin(lab, 2_000)
            lab.synchronize()
        with lab.on("a", "out"):
            spin(lab, 2_000)
        lab.synchronize()
    trace = lab.trace
    assert named(trace, SpanKind.KERNEL).count("spin") == 20
    assert len(trace.metadata.capture_windows) == 20
    assert trace.metadata.dropped_records == 0
    assert lab.recording.tier is CaptureTier.RANGES


def test_a_hundred_thousand_kernels_are_all_there(lab):
    lab.stream("a")
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    with lab.capture("kernels"):
        with lab.on("a", "many"):
            for _ in range(100_000):
                nothing((1,), (32,), ())
        lab.synchronize()
    trace = lab.trace
    assert named(trace, SpanKind.KERNEL).count("nothing") == 100_000
    assert trace.metadata.dropped_spans == 0


def test_torch_profiler_in_the_middle_is_left_alone():
    out = run_alone(
        """
        import time, warnings
        import torch
        import gpustreamlab as gsl
        from gpustreamlab.errors import CaptureWarning
        from gpustreamlab.workloads import spin
        ones = torch.ones(1000, device="cuda")
        with gsl.Session("cuda", capture="ranges") as lab, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            lab.stream("a")
            lab.capture("kernels")
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(5):
                    ones + 1
                torch.cuda.synchronize()
                time.sleep(1)
                inside = lab.capture("kernels")
                print("inside", inside.tier, "|", inside.note)
            def seen():
                return sum(one.device_type.name == "CUDA" and "elementwise" in one.name for one in profiler.events())
            print("events", seen())
            print("warned", any(issubclass(one.category, CaptureWarning) for one in told))
            print("note", lab.trace.metadata.capture_note)
            after = lab.capture("kernels")
            with lab.on("a", "after"):
                spin(lab, 10_000)
            lab.synchronize()
            print("after", after.tier, lab.trace.names.count("spin"))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            ones + 1
            torch.cuda.synchronize()
        print("again", seen())
        """
    )
    assert "inside ranges | " in out
    assert "torch.profiler" in out
    assert "events 5" in out
    assert "warned True" in out
    assert "after kernels 1" in out
    assert "again 1" in out


def test_torch_profiler_has_every_kernel_beside_and_after_a_capture():
    """A buffer of ours that CUPTI still had would be filled with its first 3,120 kernels, and be refused by it."""
    out = run_alone(
        """
        import time
        import torch
        import gpustreamlab as gsl
        from gpustreamlab.typing import SpanKind
        from torch.profiler import ProfilerActivity, profile, schedule
        numbers = torch.zeros(32, device="cuda")
        def launch(count=20_000):
            for _ in range(count):
                numbers.add_(1)
            torch.cuda.synchronize()
        def profiled():
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                launch()
            return sum(one.device_type.name == "CUDA" and "elementwise" in one.name for one in profiler.events())
        def kept(lab):
            trace = lab.trace
            return int((trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum())
        launch(100)
        print("alone", profiled())
        for again in range(2):
            with gsl.Session("cuda", ring_size=100_000) as lab:
                launch(1000)
                print("open", again, profiled(), kept(lab), lab.trace.metadata.dropped_records)
            with gsl.Session("cuda", ring_size=100_000, capture="ranges") as lab:
                with lab.capture("kernels"):
                    launch(1000)
                print("stopped", again, profiled(), kept(lab), lab.trace.metadata.dropped_records)
            print("closed", again, profiled())
        with gsl.Session("cuda", ring_size=100_000) as lab:
            counts = []
            def ready(profiler):
                counts.append(sum(one.device_type.name == "CUDA" and "elementwise" in one.name for one in profiler.events()))
            steps = schedule(wait=1, warmup=1, active=1, repeat=2)
            with profile(activities=[ProfilerActivity.CUDA], schedule=steps, on_trace_ready=ready) as profiler:
                for _ in range(6):
                    launch(1000)
                    time.sleep(1)
                    profiler.step()
            print("steps", counts)
        """
    )
    assert "alone 20000" in out
    for again in range(2):
        assert f"open {again} 20000 1000 0" in out
        assert f"stopped {again} 20000 1000 0" in out
        assert f"closed {again} 20000" in out
    assert "steps [1000, 1000]" in out


def test_two_sessions_of_one_card_capture_at_once(lab):
    lab.stream("a")
    with lab.capture("kernels"), Session("cuda", capture="ranges") as other:
        with lab.on("a", "before"):
            spin(lab, 10_000)
        with other.capture("kernels") as capture:
            assert capture.tier is CaptureTier.KERNELS
            with lab.on("a", "ours"):
                spin(lab, 20_000)
            with other.on(other.stream("b"), "theirs"):
                spin(other, 30_000)
        with lab.on("a", "after"):
            spin(lab, 40_000)
        other.synchronize()
        lab.synchronize()
        theirs, ours = (one.trace.where(kind="kernel") for one in (other, lab))
        assert [round(ns / 10_000) for ns in theirs.duration_ns] == [3]
        assert [round(ns / 10_000) for ns in ours.duration_ns] == [1, 2, 4]
        assert lab.recording.tier is CaptureTier.KERNELS
    with lab.on("a", "alone"):
        spin(lab, 50_000)
    lab.synchronize()
    assert len(lab.trace.where(kind="kernel")) == 3


def test_a_session_closes_while_kernels_are_captured_and_keeps_them():
    lab = Session("cuda")
    lab.stream("a")
    lab.capture("kernels")
    with lab.on("a", "step"):
        spin(lab, 1_000_000)
    lab.close()
    assert named(lab.trace, SpanKind.KERNEL) == ["spin"]
    with Session("cuda") as later:
        assert later.capture("kernels").tier is CaptureTier.KERNELS


def test_kernels_of_several_threads_go_to_their_ranges(lab):
    names = [f"lane {place}".replace(" ", "-") for place in range(4)]
    for name in names:
        lab.stream(name)

    def work(name):
        for _ in range(50):
            with lab.on(name, f"range of {name}"):
                spin(lab, 2_000)

    with lab.capture("kernels"):
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lab.synchronize()
    trace = lab.trace
    kernels = rows_of(trace, SpanKind.KERNEL)
    assert len(kernels) == 200
    for row in kernels:
        assert trace.names[trace.name[trace.parent[row]]] == f"range of {lane_of(trace, row).name}"


def test_a_process_may_end_or_fork_with_capture_on():
    out = run_alone(
        """
        import os
        import gpustreamlab as gsl
        from gpustreamlab.workloads import spin
        lab = gsl.Session("cuda", capture="ranges")
        lab.stream("a")
        lab.capture("kernels")
        with lab.on("a", "step"):
            spin(lab, 1_000)
        child = os.fork()
        if child == 0:
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with lab.on("a", "step"):
            spin(lab, 1_000)
        lab.synchronize()
        print(len(lab.trace))
        """
    )
    assert out.split()[0] == "0"


def test_capture_stays_on_through_a_pause(lab):
    lab.stream("a")
    origin_ns = lab._backend._clock.origin_timer_ns
    timers = cupy.zeros((2, 2), cupy.uint64)
    lab.synchronize()
    with lab.capture("kernels"):
        for row in range(2):
            with lab.on("a", "step"):
                spin(lab, 50_000, timers=timers[row])
            lab.synchronize()
            time.sleep(2.5)
    trace = lab.trace
    kernels = [row for row in rows_of(trace, SpanKind.KERNEL) if trace.duration_ns[row] >= 50_000]
    off_ns = trace.start_ns[kernels] - (timers.get().astype(np.int64)[:, 0] - origin_ns)
    assert np.abs(off_ns).max() <= trace.metadata.kernel_error_ns <= 3_000


def test_an_unknown_cupti_says_so(monkeypatch, lab):
    from gpustreamlab.backends.cuda.cupti import _library as _cupti

    monkeypatch.setattr(_cupti, "_loaded", {})
    monkeypatch.setattr(_cupti, "find_layouts", lambda version: None)
    with pytest.raises(CaptureUnavailableError, match="not known"):
        lab.capture("kernels")
    assert lab.capture("auto").tier is CaptureTier.RANGES


def test_stopping_while_work_runs_waits_for_nothing_and_spoils_no_range(lab):
    lab.stream("a"), lab.stream("b")
    with lab.on("a", "before"):
        spin(lab, 100_000)
    lab.synchronize()
    began_s = time.perf_counter()
    with lab.capture("kernels"):
        with lab.on("a", "long"):
            spin_card(lab, 1_500_000_000)
    stopped_s = time.perf_counter() - began_s
    assert stopped_s < 1.0
    lab.synchronize()
    with lab.on("b", "after"):
        spin(lab, 100_000)
    lab.synchronize()
    trace = lab.trace
    durations_ns = {trace.names[trace.name[row]]: int(trace.duration_ns[row]) for row in rows_of(trace, SpanKind.RANGE)}
    assert 95_000 < durations_ns["after"] < 200_000
    longest = max(trace.duration_ns[row] for row in rows_of(trace, SpanKind.KERNEL))
    assert longest >= 1_500_000_000


def test_a_kernel_of_eight_seconds_is_no_loss_of_the_capture(lab):
    lab.stream("a"), lab.stream("b")
    with lab.capture("kernels") as capture:
        with lab.on("a", "long"):
            spin(lab, 8_000_000_000)
        for _ in range(16):
            with lab.on("b", "short"):
                spin(lab, 10_000)
            time.sleep(0.5)
        lab.synchronize()
        assert capture.tier is CaptureTier.KERNELS
    trace = lab.trace
    kernels = rows_of(trace, SpanKind.KERNEL)
    assert len(kernels) == 17
    assert trace.duration_ns[kernels].max() >= 8_000_000_000
    assert not trace.metadata.capture_note


def test_a_graph_of_torch_can_be_captured_meanwhile():
    out = run_alone(
        """
        import time, tempfile, os
        import torch
        import gpustreamlab as gsl
        ones = torch.ones(1000, device="cuda")
        path = os.path.join(tempfile.mkdtemp(), "run.gsl")
        with gsl.Session("cuda", spool=path, capture="ranges") as lab:
            lab.stream("a")
            with lab.capture("kernels"):
                for _ in range(20):
                    with lab.on("a", "range"):
                        pass
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):  # global mode
                        more = ones + 1
                        time.sleep(0.15)
                    graph.replay()
                torch.cuda.synchronize()
            print("graphs", sum(name.startswith("graph ") for name in lab.trace.names), lab.recording.spool.state.value)
        print("loaded", len(gsl.load_trace(path)) > 0)
        """
    )
    assert "graphs 20 writing" in out
    assert "loaded True" in out


def test_threads_that_record_events_with_the_gil_held_do_not_hang(lab):
    lab.stream("a")
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")

    def work():
        stream = cupy.cuda.Stream(non_blocking=True)
        events = [cupy.cuda.Event() for _ in range(50)]
        for _ in range(150):
            with stream:
                for event in events:
                    nothing((1,), (32,), ())
                    event.record(stream)
                    _ = event.done
        stream.synchronize()

    with lab.capture("kernels"):
        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        lab.synchronize()
    assert named(lab.trace, SpanKind.KERNEL).count("nothing") == 4 * 150 * 50


def test_kernels_are_captured_by_default_by_each_session_in_streams_of_its_own():
    first, second = (Session("cuda", host=False) for _ in range(2))  # calls of the process are in both
    try:
        assert (first.recording.tier, second.recording.tier) == (CaptureTier.KERNELS, CaptureTier.KERNELS)
        with second.on(second.stream("a"), "work"):
            cupy.ones(1_000)
        second.synchronize()
        kinds = second.trace.to_pandas()["kind"].astype(str).tolist()
        assert kinds == ["range", "kernel"], kinds
        assert second.trace.parent.tolist()[1] == 0
        assert len(first.trace) == 0, first.trace.to_pandas()  # nor what the second did for its clock
        second.close()
        assert first.recording.tier is CaptureTier.KERNELS
        first.stream("b")
        with first.on("b", "later"):
            cupy.ones(1_000)
        first.synchronize()
        assert [lane.name for lane in first.trace.lanes if lane.kind is LaneKind.STREAM] == ["b"]
        assert len(first.trace) == 2
    finally:
        second.close()
        first.close()


def test_the_probe_of_sms_is_in_no_trace():
    with Session("cuda", host=False) as lab:
        lab.stream("a")
        with lab.on("a", "work"):
            cupy.ones(1_000)
        lab.partitions.verify()
        lab.synchronize()
        assert next(lab.trace.names[code] for code in lab.trace.name) == "work"
        assert len(lab.trace) == 2, lab.trace.names
