"""What reading a record of CUPTI costs, beside copying its bytes and beside cupti-python's own callback.

Buffers are made here, so no GPU is needed: one kind in a long run, a launch call and its kernel in turn, and a mix without
order. The floor is a memcpy of the bytes. Rounds are interleaved; figures are medians over the rounds.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._common import report
from gpustreamlab.backends.cuda._probe import why_unavailable
from gpustreamlab.backends.cuda.cupti._layouts import Layouts, RecordKind, find_layouts
from gpustreamlab.backends.cuda.cupti._records import parse_buffer

NEEDS_GPU = False

_PEER = """
import time
import cupy
from cupti import cupti

LAUNCHES = 20_000
seen = []

def complete(activities):
    seen.extend((activity.name, activity.start, activity.end, activity.stream_id) for activity in activities)

kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
kernel((1,), (32,), ())
cupy.cuda.runtime.deviceSynchronize()
cupti.activity_register_callbacks(lambda: (16 << 20, 0), complete)
cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
for _ in range(LAUNCHES):
    kernel((1,), (32,), ())
cupy.cuda.runtime.deviceSynchronize()
began = time.perf_counter()
cupti.activity_flush_all(1)
print((time.perf_counter() - began) / len(seen) * 1e9)
"""
VERSION = 130001
BUFFER_BYTES = 1 << 20
ROUNDS = 15


def main(argv: list[str] | None = None) -> None:
    layouts = find_layouts(VERSION)
    assert layouts is not None
    rows = [_row(name, make_buffer(kinds, layouts), layouts) for name, kinds in streams().items()]
    peer_ns = peer_cupti_python()
    rows.append(
        {"records": "kernels, cupti-python's callback", "ns a record": "not measured here" if peer_ns is None else peer_ns}
    )
    report(f"Parse of activity buffers of {BUFFER_BYTES >> 20} MiB (CUPTI {VERSION}, median of {ROUNDS} rounds)", rows, argv)


def streams() -> dict[str, NDArray[np.int64]]:
    """Return a stretch of kinds for each case; it is repeated until the buffer is full."""
    kernel, runtime, driver = RecordKind.CONCURRENT_KERNEL, RecordKind.RUNTIME, RecordKind.DRIVER
    others = [kernel, runtime, driver, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.SYNCHRONIZATION, RecordKind.CUDA_EVENT]
    return {
        "kernels, one run": np.array([kernel]),
        "launch calls, one run": np.array([runtime]),
        "launch call and kernel in turn": np.array([runtime, kernel]),
        "runs of 500": np.repeat([runtime, kernel], 500),
        "runs of 20": np.repeat([runtime, kernel], 20),
        "seven kinds without order": np.random.default_rng(0).choice(others, 4_096),
    }


def make_buffer(kinds: NDArray[np.int64], layouts: Layouts) -> NDArray[np.uint8]:
    """Fill a buffer with records of noise."""
    sizes = np.array([layouts.sizes[int(kind)] for kind in kinds])
    times = max(BUFFER_BYTES // int(sizes.sum()), 1)
    ends = np.cumsum(np.tile(sizes, times))
    data = np.random.default_rng(1).integers(0, 256, int(ends[-1]), dtype=np.uint8)
    data.view("<u4")[(ends - np.tile(sizes, times)) // 4] = np.tile(kinds, times)
    return data


def peer_cupti_python() -> float | None:
    """Return what cupti-python's own callback costs a kernel, in ns; None where it, or a GPU, is missing.

    It runs in a process of its own: CUPTI has room for one client.
    """
    if why_unavailable() is not None or importlib.util.find_spec("cupti") is None:
        return None
    done = subprocess.run([sys.executable, "-c", _PEER], capture_output=True, text=True, check=True, timeout=120)
    return round(float(done.stdout), 1)


def _row(name: str, data: NDArray[np.uint8], layouts: Layouts) -> dict[str, Any]:
    count = parse_buffer(data, layouts).record_count
    works: dict[str, Callable[[], object]] = {"parse": partial(parse_buffer, data, layouts), "floor": data.copy}
    times: dict[str, list[float]] = {work: [] for work in works}
    for _ in range(ROUNDS):
        for work, call in works.items():
            began = time.perf_counter()
            call()
            times[work].append((time.perf_counter() - began) / count * 1e9)
    parse, floor = statistics.median(times["parse"]), statistics.median(times["floor"])
    return {
        "records": name,
        "bytes a record": round(data.size / count),
        "ns a record": round(parse, 1),
        "best": round(min(times["parse"]), 1),
        "memcpy ns": round(floor, 1),
        "times memcpy": round(parse / floor, 1),
    }


if __name__ == "__main__":
    main()
