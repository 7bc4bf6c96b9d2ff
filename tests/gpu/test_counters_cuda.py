"""Counters of a real card say what known loads draw."""

from __future__ import annotations

import threading
import time

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import counter_means
from gpustreamlab.backends.cuda._counters import open_counters
from gpustreamlab.typing import Cause, Certainty

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def require_gpm():
    pytest.importorskip("pynvml")
    source = open_counters(cupy.cuda.runtime.deviceGetPCIBusId(0))
    assert source is not None
    is_supported = source.description == "NVML GPM"
    source.close()
    if not is_supported:
        pytest.skip("The card has no GPU performance monitoring.")


def counted(load, seconds=1.0):
    """Repeat a load for a time; return the means of the counters within it, and how often it ran a second."""
    load()
    torch.cuda.synchronize()
    with Session("cuda", counters=True, capture="ranges") as lab:
        lab.stream("load")
        until_s = time.perf_counter() + seconds
        count = 0
        with lab.on("load", "load"):
            began_s = time.perf_counter()
            while time.perf_counter() < until_s:
                for _ in range(4):
                    load()
                torch.cuda.synchronize()
                count += 4
            took_s = time.perf_counter() - began_s
        lab.synchronize()
    trace = lab.trace
    (row,) = np.flatnonzero(np.array([trace.names[code] == "load" for code in trace.name]))
    return counter_means(trace, trace.start_ns[[row]], trace.end_ns[[row]]), count / took_s


def test_a_copy_within_the_card_keeps_memory_busy():
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    means, rate = counted(lambda: target.copy_(source))
    print("copy", means, rate * 2 * (1 << 30) / 1e12, "TB/s")
    assert means["dram_active_percent"] > 75
    assert means["pcie_rx_bytes_per_s"] < 1e9


def test_an_upload_is_counted_as_what_it_moves():
    source = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    target = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    means, rate = counted(lambda: target.copy_(source, non_blocking=True))
    print("upload", means, rate * (1 << 28) / 1e9, "GB/s")
    # Headers of the bus's packets are counted, too, or not, by card: 3% are wanted of what was moved.
    assert means["pcie_rx_bytes_per_s"] == pytest.approx(rate * (1 << 28), rel=0.1)
    assert means["sm_active_percent"] < 10


def test_a_product_keeps_tensor_cores_busy_and_draws_power():
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    means, rate = counted(lambda: torch.matmul(x, x, out=y))
    print("product", means, rate * 2 * 8192**3 / 1e12, "TFLOP/s")
    assert means["tensor_active_percent"] > 70
    assert means["sm_active_percent"] > 80
    assert means["power_watts"] > 200
    assert means["sm_clock_mhz"] > 500


def test_an_idle_card_is_idle():
    means, _ = counted(lambda: time.sleep(0.05))
    print("idle", means)
    assert means["sm_active_percent"] < 5


def test_counting_loses_no_kernels():
    with Session("cuda", counters=True) as lab:
        lab.stream("load")
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        (thread,) = (one for one in threading.enumerate() if one.name == "gpustreamlab counters")
        assert thread.is_alive()
        began_s = time.perf_counter()
        for _ in range(20_000):
            x.add_(1)
        torch.cuda.synchronize()
        while time.perf_counter() - began_s < 2:
            time.sleep(0.05)
        lab.synchronize()
        trace = lab.trace
    assert trace.metadata.dropped_spans == 0
    assert len(trace.where(kind="kernel")) >= 20_000


def slowed(load, parts=None, seconds=0.6):
    """Run a load on two streams at once, then on one of them, each for a time; return what slowed its kernels down."""
    with Session("cuda", counters=True, hazards="off") as lab:
        if parts:
            lab.partition(parts)
        for name in "ab":
            lab.stream(name, partition=name if parts else None)
            with lab.on(name, "warm"):
                load(name)
        lab.synchronize()
        for names in ("ab", "b"):
            until_s = time.perf_counter() + seconds
            while time.perf_counter() < until_s:
                for _ in range(8):
                    for name in names:
                        with lab.on(name, "together" if len(names) > 1 else "alone"):
                            load(name)
                lab.synchronize()
        found = [one for one in lab.explain().findings if one.code is Cause.SLOWED_DOWN]
        print([(one.certainty, one.text) for one in found], lab.trace.utilization().counted_means)
    return found


def test_two_streaming_kernels_are_measured_to_share_the_memory():
    source = {name: torch.empty(1 << 28, dtype=torch.float32, device="cuda") for name in "ab"}
    target = {name: torch.empty_like(one) for name, one in source.items()}
    found = slowed(lambda name: torch.add(source[name], 1, out=target[name]), {"a": 64, "b": "rest"})
    assert found
    assert Certainty.MEASURED in {one.certainty for one in found}
    assert any("they share the memory's bandwidth" in one.text for one in found)


BUSY = r"""extern "C" __global__ void busy(float* to, int turns)
{
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (int turn = 0; turn < turns; turn++) {
        a = a * 1.0001f + 0.1f; b = b * 1.0001f + 0.1f; c = c * 1.0001f + 0.1f; d = d * 1.0001f + 0.1f;
    }
    if (a + b + c + d == 0.123f)
        *to = a;
}"""


def test_two_kernels_that_compute_are_measured_to_share_the_sms():
    busy, to = cupy.RawKernel(BUSY, "busy"), cupy.zeros(1, "float32")
    blocks = 4 * cupy.cuda.Device().attributes["MultiProcessorCount"]  # half of what fits, and all that the SMs can do
    found = slowed(lambda _: busy((blocks,), (256,), (to, np.int32(100_000))))
    assert not any("they share the memory's bandwidth" in one.text for one in found)
    assert {one.certainty for one in found if "they share the SMs" in one.text} == {Certainty.MEASURED}


def test_what_a_call_moves_is_counted_by_sweeps_and_coruns_and_what_if_shares_it():
    x = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    moved = 2 * x.nbytes
    with Session("cuda", hazards="off") as lab:

        def add():
            torch.add(x, 1, out=y)

        swept = lab.bench.sweep(add, sms=[64, lab.device.sm_count])
        both = lab.bench.corun({"one": add, "two": add})
    print(
        "sweep", swept.memory_bytes / moved, "corun", both["one"].memory_bytes / moved, both.memory_bytes_per_s / 1e12, "TB/s"
    )
    assert swept.memory_bytes == pytest.approx(moved, rel=0.1)
    assert both["one"].memory_bytes == pytest.approx(moved, rel=0.1)
    assert both.memory_bytes_per_s > 0.75 * lab.device.memory_bytes_per_s
