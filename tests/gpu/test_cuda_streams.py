"""Streams of CuPy, torch and cuda.core as lanes, and what a selection does to CuPy."""

import gc
import os
import subprocess
import sys
import time

import cupy
import numpy as np
import pytest
import torch
from cuda import pathfinder
from cuda.bindings import driver
from cuda.core import Device

from gpustreamlab import Session, errors
from gpustreamlab.backends.cuda import CudaBackend
from gpustreamlab.typing import LaneKind
from gpustreamlab.workloads import spin


def test_cupy_follows_the_selection_and_gets_its_own_back(lab):
    mine = cupy.cuda.Stream(non_blocking=True)
    stream = lab.stream("a")
    with mine:
        with lab.on(stream):
            assert cupy.cuda.get_current_stream().ptr == stream.handle
        assert cupy.cuda.get_current_stream().ptr == mine.ptr
    assert cupy.cuda.get_current_stream().ptr == 0


def test_a_stream_that_was_used_is_put_back(lab):
    mine = cupy.cuda.Stream(non_blocking=True)
    mine.use()
    try:
        with lab.on(lab.stream("a")), lab.on(lab.stream("b")):
            pass
        assert cupy.cuda.get_current_stream().ptr == mine.ptr
    finally:
        cupy.cuda.Stream.null.use()


def test_a_stream_entered_inside_a_selection_gives_it_back(lab):
    stream = lab.stream("a")
    with lab.on(stream):
        with cupy.cuda.Stream(non_blocking=True):
            pass
        assert cupy.cuda.get_current_stream().ptr == stream.handle
    assert cupy.cuda.get_current_stream().ptr == 0


def test_work_after_a_pause_is_ordered_behind_its_upload(lab):
    stream, shape = lab.stream("a"), (64, 512, 512)
    host, back = lab.memory.pinned_empty(shape, "float32"), lab.memory.pinned_empty(shape, "float32")
    host[...] = np.random.default_rng(0).random(shape, dtype="float32")
    device = cupy.zeros(shape, "float32")
    lab.synchronize()
    time.sleep(0.6)
    with lab.on(stream, "upload"):
        device.set(host)
    with lab.on(stream, "double"):
        (device * 2).get(out=back, blocking=False)
    lab.synchronize()
    np.testing.assert_array_equal(back, host * 2)


def _lenders():
    device = Device(0)
    device.set_current()
    return {"cupy": cupy.cuda.Stream(non_blocking=True), "torch": torch.cuda.Stream(), "cuda": device.create_stream()}


@pytest.mark.parametrize("library", ["cupy", "torch", "cuda"])
def test_streams_of_other_libraries_are_lanes_and_outlive_the_session(library):
    lender = _lenders()[library]
    handle = lender.__cuda_stream__()[1]
    with Session("cuda", capture="ranges") as lab:
        with lab.on(lender, "work"):
            assert lab.current.handle == handle
            assert cupy.cuda.get_current_stream().ptr == handle
            total = cupy.arange(1000, dtype="float32").sum()
        lab.synchronize()
        assert lab.current is None
        assert [lane.name for lane in lab.trace.lanes if lane.kind is LaneKind.STREAM] == [f"{library}-1"]
        assert float(total) == 499500.0
    gc.collect()
    with cupy.cuda.Stream.from_external(lender):
        assert float(cupy.ones(10).sum()) == 10.0


def test_our_streams_are_taken_by_other_libraries(lab):
    stream = lab.stream("a")
    assert cupy.cuda.Stream.from_external(stream).ptr == stream.handle
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        assert torch.cuda.current_stream().cuda_stream == stream.handle
    assert int(Device(0).create_stream(stream).handle) == stream.handle


@pytest.mark.parametrize(
    "lender", [cupy.cuda.Stream.null, cupy.cuda.Stream.ptds, torch.cuda.default_stream()], ids=["null", "ptds", "torch"]
)
def test_default_streams_are_refused_with_a_reason(lab, lender):
    with pytest.raises(errors.StreamRefusedError, match="no session can take it"):
        lab.on(lender)


def test_lanes_do_not_wait_for_the_null_stream(lab):
    with lab.on(lab.stream("a"), "beside"):
        spin(lab, 1_000_000)
    done = lab.stream("a").record()
    cupy.ones(10)
    assert not done.query()


def test_reading_a_result_waits_for_its_own_stream_only(lab):
    with lab.on(lab.stream("slow"), "slow"):
        spin(lab, 50_000_000)
    slow = lab.stream("slow").record()
    with lab.on(lab.stream("quick"), "quick"):
        assert float(cupy.ones(10).sum()) == 10.0
    assert not slow.query()


def test_a_later_session_uses_the_events_of_those_before_it(monkeypatch):
    def work():
        with Session("cuda") as lab, lab.capture("kernels"), lab.on(lab.stream("a")):
            cupy.ones(10)

    work()
    made = []
    create = CudaBackend._create_event
    monkeypatch.setattr(
        CudaBackend, "_create_event", lambda backend, **options: made.append(backend) or create(backend, **options)
    )
    work()
    assert len(made) < 20  # of 200 and more: CUPTI keeps a little of each one that it has seen


def test_a_stalled_stream_drops_ranges_and_counts_them(monkeypatch):
    monkeypatch.setattr("gpustreamlab.recorder._in_flight.PENDING_LIMIT", 100)
    with Session("cuda", capture="ranges") as lab:
        lab.stream("a")
        with lab.on("a", "long"):
            spin(lab, 200_000_000)
        for _ in range(180):  # with their fences 720 commands: a stream takes about a thousand, and then waits itself
            with lab.on("a", "short"):
                pass
        lab.synchronize()
        trace = lab.trace
        assert len(trace) == 100
        assert trace.metadata.dropped_spans == 81


def test_device_7_of_1_is_named():
    with pytest.raises(errors.DeviceNotFoundError, match="no CUDA device 7"):
        Session("cuda", device=7)


def test_every_driver_error_is_mapped(lab):
    for result in driver.CUresult:
        if result is not driver.CUresult.CUDA_SUCCESS:
            mapped = lab.recording.backend.map_error(RuntimeError(f"{result.name}: something"), "Testing")
            assert isinstance(mapped, errors.DeviceError)
            assert mapped.driver_code == result.name.removeprefix("CUDA_ERROR_")


def test_running_out_of_memory_in_a_range_leaves_the_session_usable(lab):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError), lab.on(lab.stream("a"), "too much"):
        cupy.empty(1 << 45, dtype="uint8")
    with lab.on("a", "fine"):
        cupy.ones(10)
    lab.synchronize()
    assert len(lab.trace) == 2


def test_simulated_times_of_card_filling_kernels_match(lab):
    from gpustreamlab.workloads import spin_card

    with Session("sim", capture="ranges") as sim:
        ends = []
        for session in (lab, sim):
            for number in range(4):
                session.stream(f"s{number}")
            for number in range(4):
                with session.on(f"s{number}"):
                    spin_card(session, 1_000_000)
            session.synchronize()
            trace = session.trace
            ends.append(np.sort(trace.end_ns) - trace.start_ns.min())
    # The first range also contains the first launch, by the host: 10 to 110 us on the machines tried.
    assert np.allclose(np.diff(ends[0]) / 1e6, 1, rtol=0.05)
    assert np.allclose(np.diff(ends[0]), np.diff(ends[1]), rtol=0.05)
    assert ends[0][0] / 1e6 == pytest.approx(1.1, abs=0.15)


_WITH_A_TOOL = """
import gpustreamlab as gsl
from gpustreamlab.backends.cuda._nvtx import open_domain
lab = gsl.Session("cuda", capture="ranges")
print(type(open_domain()).__name__, type(lab._backend.annotation("x")).__name__)
for _ in range(3):
    with lab.on(lab.stream("a"), "outer"), lab.range("inner"):
        pass
lab.synchronize()
print(len(lab.trace), sorted(set(lab.trace.names)))
lab.close()
"""


def test_ranges_reach_a_tool_that_listens_to_nvtx():
    listener = pathfinder.load_nvidia_dynamic_lib("cupti").abs_path
    done = subprocess.run(
        [sys.executable, "-c", _WITH_A_TOOL],
        env=os.environ | {"NVTX_INJECTION64_PATH": listener},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["Domain EventAttributes", "6 ['inner', 'outer']"], done.stdout + done.stderr
