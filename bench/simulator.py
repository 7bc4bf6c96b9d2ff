"""How fast the simulated device is, how much memory it takes, and how far it is from the H200 that it is calibrated to."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench._common import report
from gpustreamlab.backends.sim import H200, KernelSpec, SimBackend, plan_matmul, plan_streaming

MEASURED = {
    8: (2.485, 770),
    16: (1.264, 1502),
    24: (0.844, 2196),
    32: (0.654, 2878),
    48: (0.425, 3921),
    64: (0.351, 4263),
    80: (0.272, 4251),
    96: (0.239, 4236),
    112: (0.242, 4233),
    128: (0.210, 4234),
    132: (0.169, None),
}
"""One NVIDIA H200, by SM count: bf16 4096^3 matrix product in ms, 2 GiB streaming add in GB/s. Source: FACTS.md."""
STREAM_COUNT = 16


def tiny_kernels(count: int) -> int:
    """Launch kernels of 8 small blocks round robin, with an event and a wait now and then; return how many."""
    backend = SimBackend()
    streams = [backend.create_stream(priority=0) for _ in range(STREAM_COUNT)]
    events = [backend.acquire_event() for _ in range(STREAM_COUNT)]
    for number in range(count):
        stream = streams[number % STREAM_COUNT]
        backend.launch_spin(stream, 20_000, blocks=8, fill_sms=False)
        if number % 100 == 0:
            event = events[number // 100 % STREAM_COUNT]
            stream.record(event)
            streams[(number + 5) % STREAM_COUNT].wait(event)
    backend.synchronize()
    return count


def card_filling_kernels(count: int) -> int:
    """Launch kernels of three waves that compete for the whole card, at two priorities."""
    backend = SimBackend()
    streams = [backend.create_stream(priority=-(number % 2)) for number in range(STREAM_COUNT)]
    for number in range(count):
        backend.launch_spin(streams[number % STREAM_COUNT], 2_000, blocks=330, fill_sms=True)
    backend.synchronize()
    return count


def memory_bound_kernels(count: int) -> int:
    """Launch streaming adds of 48 MB that share the memory's bandwidth."""
    backend = SimBackend()
    streams = [backend.create_stream(priority=0) for _ in range(STREAM_COUNT)]
    spec = plan_streaming(H200, "add", size_bytes=48 << 20, operations=4 << 20, dtype=np.dtype("f4"))
    for number in range(count):
        backend.launch_kernel(streams[number % STREAM_COUNT], spec)
    backend.synchronize()
    return count


def partitioned_kernels(count: int) -> int:
    """Launch kernels on four partitions of the SMs and on the whole card."""
    backend = SimBackend()
    sets = [range(place * 32, place * 32 + 32) for place in range(4)] + [None]
    streams = [backend.create_stream(priority=0, sm_ids=sets[number % 5]) for number in range(STREAM_COUNT)]
    for number in range(count):
        backend.launch_spin(streams[number % STREAM_COUNT], 5_000, blocks=24, fill_sms=False)
    backend.synchronize()
    return count


def measure_speed(work: Callable[[int], int], count: int) -> dict[str, Any]:
    """Run one kind of work once and return its row; memory is the process's peak so far."""
    start = time.perf_counter()
    work(count)
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "work": work.__name__,
        "kernels": count,
        "seconds": round(seconds, 2),
        "kernels/s": round(count / seconds),
        "us/kernel": round(seconds / count * 1e6, 2),
        "peak RSS MB": round(peak_mb),
    }


def model_row(sm_count: int) -> tuple[float, float]:
    """Return the model's matrix product in ms and streaming add in GB/s on a number of SMs."""
    product = plan_matmul(H200, "matmul", m=4096, n=4096, k=4096, batch=1, dtype=np.dtype("f2"))
    # 2 GiB written and 2 GiB read; the bandwidth does not depend on how they are divided.
    add = plan_streaming(H200, "add", size_bytes=4 << 30, operations=1 << 30, dtype=np.dtype("f2"))
    return _time_on(sm_count, product) / 1e6, add.size_bytes / _time_on(sm_count, add)


def _time_on(sm_count: int, spec: KernelSpec) -> int:
    backend = SimBackend("h200")
    stream = backend.create_stream(priority=0, sm_ids=range(sm_count))
    start, end = backend.acquire_event(), backend.acquire_event()
    backend.launch_kernel(stream, spec)
    stream.record(end)
    stream.record(start)  # the next launch starts right behind
    backend.launch_kernel(stream, spec)
    stream.record(end)
    stream.synchronize()
    return backend.elapsed_ns(start, end)


def calibration_rows() -> list[dict[str, Any]]:
    """Return measured and modelled figures side by side."""
    rows = []
    for sm_count, (measured_ms, measured_gb_per_s) in MEASURED.items():
        ms, gb_per_s = model_row(sm_count)
        row = {"SMs": sm_count, "product, H200 (ms)": f"{measured_ms:.3f}", "model (ms)": f"{ms:.3f}"}
        row["off by"] = f"{ms / measured_ms - 1:+.1%}"
        row["add, H200 (GB/s)"] = "–" if measured_gb_per_s is None else str(measured_gb_per_s)
        row["model (GB/s)"] = f"{gb_per_s:.0f}"
        row["off by "] = "–" if measured_gb_per_s is None else f"{gb_per_s / measured_gb_per_s - 1:+.1%}"
        rows.append(row)
    return rows


def calibration_table() -> str:
    """Return the calibration as the Markdown table that docs/explanations/simulated-device.md shows; a test compares them."""
    rows = calibration_rows()
    lines = ["| " + " | ".join(name.strip() for name in rows[0]) + " |", "|" + "---:|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows])


def main() -> None:
    """Print both tables."""
    print(calibration_table())
    rows = [measure_speed(tiny_kernels, count) for count in (10_000, 100_000, 1_000_000)]
    rows += [measure_speed(work, 100_000) for work in (card_filling_kernels, memory_bound_kernels, partitioned_kernels)]
    report("Simulated device: kernels per second", rows)


if __name__ == "__main__":
    main()
