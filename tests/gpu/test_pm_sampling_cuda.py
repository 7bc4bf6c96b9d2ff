"""PM sampling of a real card: what known loads draw, beside kernels that are captured, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import counter_means
from gpustreamlab.errors import CaptureUnavailableError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def require_sampling():
    with Session("cuda", capture="ranges") as lab:
        try:
            with lab.counters("sm"):
                pass
        except CaptureUnavailableError as error:
            if "cannot be sampled" in str(error) and "RmProfilingAdminOnly" not in str(error):
                raise
            pytest.skip(str(error))


def counted(load, *groups, seconds=0.5, capture="ranges"):
    """Repeat a load for a time; return the trace, the means of the counters within it, and how often it ran a second."""
    load()
    torch.cuda.synchronize()
    with Session("cuda", capture=capture) as lab:
        lab.stream("load")
        count = 0
        with lab.counters(*groups, every_us=50) as block:
            assert not block.left_out
            with lab.on("load", "load"):
                began_s = time.perf_counter()
                while time.perf_counter() < began_s + seconds:
                    for _ in range(4):
                        load()
                    torch.cuda.synchronize()
                    count += 4
                took_s = time.perf_counter() - began_s
            lab.synchronize()
    trace = lab.trace
    (row,) = np.flatnonzero(np.array([trace.names[code] == "load" for code in trace.name]))
    return trace, counter_means(trace, trace.start_ns[[row]], trace.end_ns[[row]]), count / took_s


def test_a_copy_within_the_card_is_counted_as_what_it_moves():
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    trace, means, rate = counted(lambda: target.copy_(source), "sm", "dram")
    print("copy", means, rate * 2 * (1 << 30) / 1e12, "TB/s")
    assert means["dram_bytes_per_s"] == pytest.approx(rate * 2 * (1 << 30), rel=0.05)
    assert means["dram_active_percent"] > 75
    assert "counters of GPU 0: CUPTI PM sampling" in [lane.name for lane in trace.lanes]


def test_samples_follow_each_other_at_the_pace_that_was_asked_for():
    x = torch.ones(1 << 28, device="cuda")
    trace, _, _ = counted(lambda: x.add_(1), "sm", "dram", "pcie")
    own = trace.counters.name == trace.counters.names.index("sm_active_percent")
    time_ns, value = trace.counters.time_ns[own], trace.counters.value[own]
    assert np.median(np.diff(time_ns)) == pytest.approx(50_000, rel=0.02)
    assert np.isnan(value).mean() < 0.01
    assert len(value) > 0.9 * 0.5 / 50e-6


def test_an_upload_is_counted_as_what_it_moves():
    source = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    target = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    _, means, rate = counted(lambda: target.copy_(source, non_blocking=True), "sm", "pcie")
    print("upload", means, rate * (1 << 28) / 1e9, "GB/s")
    assert means["pcie_rx_bytes_per_s"] == pytest.approx(rate * (1 << 28), rel=0.1)
    assert means["sm_active_percent"] < 10


def test_a_product_keeps_tensor_cores_busy():
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    _, means, rate = counted(lambda: torch.matmul(x, x, out=y), "sm", "tensor")
    print("product", means, rate * 2 * 8192**3 / 1e12, "TFLOP/s")
    assert means["tensor_active_percent"] > 70
    assert means["sm_clock_mhz"] > 500


def test_kernels_are_captured_in_a_block_and_behind_it_and_stand_where_the_card_was_busy():
    x = torch.ones(1 << 28, device="cuda")
    torch.cuda.synchronize()
    with Session("cuda", capture="kernels") as lab:
        for _ in range(2):
            with lab.counters("sm", "dram", every_us=20):
                for _ in range(20):
                    x.add_(1)
                    torch.cuda.synchronize()
                    time.sleep(0.002)
            for _ in range(20):
                x.add_(1)
            lab.synchronize()
    trace = lab.trace
    kernels = trace.where(kind="kernel")
    assert len(kernels) == 80
    assert trace.metadata.dropped_spans == 0
    own = trace.counters.name == trace.counters.names.index("sm_active_percent")
    time_ns, value = trace.counters.time_ns[own], np.nan_to_num(trace.counters.value[own])
    offs_ns = []
    for start_ns in kernels.start_ns[:20].tolist():
        near = np.flatnonzero((time_ns > start_ns - 1_500_000) & (value > 50))
        offs_ns.append(int(time_ns[near[0]]) - start_ns)
    print("edges behind starts of kernels, us:", np.percentile(offs_ns, [0, 50, 100]) / 1e3)
    assert abs(np.median(offs_ns)) < 100_000


def test_another_block_of_the_process_is_refused_and_the_first_goes_on():
    with Session("cuda", capture="ranges") as first, Session("cuda", capture="ranges") as second:
        with first.counters("sm"):
            with pytest.raises(CaptureUnavailableError, match="Another sampler has the card"), second.counters("sm"):
                pass
            time.sleep(0.1)
        with second.counters("sm"):
            time.sleep(0.1)
    for lab in (first, second):
        assert np.isfinite(lab.trace.counters.value).sum() > 1_000


def test_it_goes_beside_the_counters_that_are_always_there():
    pytest.importorskip("pynvml")
    with Session("cuda", counters=True, capture="ranges") as lab:
        with lab.counters("sm"):
            time.sleep(0.5)
        time.sleep(0.3)
    lanes = {lab.trace.lanes[code].name for code in np.unique(lab.trace.counters.lane)}
    assert "counters of GPU 0: CUPTI PM sampling" in lanes
    assert any(name.startswith("counters of GPU 0: NVML") for name in lanes)


def test_it_comes_back_after_cupti_has_left_the_process():
    code = """
import torch
from gpustreamlab import Session
x = torch.ones(1 << 20, device="cuda")
with Session("cuda", capture="kernels", counters=False) as lab:
    x.add_(1)
    lab.synchronize()
with Session("cuda", capture="ranges", counters=False) as lab:
    with lab.counters("sm"):
        for _ in range(2_000):
            x.add_(1)
        lab.synchronize()
    print(len(lab.trace.counters))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) > 100
