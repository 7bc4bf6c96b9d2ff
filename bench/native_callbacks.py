"""What it costs to serve CUPTI through Python instead of C: the host's time a launch while kernels are captured.

Each case is a process of its own, as CUPTI knows one pair of callbacks: one thread that launches, and that thread beside two
that keep the interpreter busy. A process that does not end is told as such: a callback in Python may wait for ever.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.backends.cuda.cupti import _buffers
from gpustreamlab.typing import SpanKind

NEEDS_GPU = True
LAUNCHES = 50_000
ROUNDS = 3
LIMIT_S = 14
CASES = [(pool, busy) for pool in ("native", "python") for busy in (0, 2)]


def main(argv: list[str] | None = None) -> None:
    rows = [{"callbacks": pool, "busy threads": busy, **_measure_apart(pool, busy)} for pool, busy in CASES]
    report(f"Launches of an empty kernel, kernels captured (median of {ROUNDS} rounds of {LAUNCHES:,})", rows, argv)


def _measure_apart(pool: str, busy: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.native_callbacks", "--case", pool, str(busy)]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"us a launch": f"did not end in {LIMIT_S} s"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _measure(pool: str, busy: int) -> dict[str, Any]:
    import cupy

    if pool == "python":
        _buffers._make_pool = lambda buffer_bytes, buffer_limit: _buffers.PythonPool(
            buffer_bytes=buffer_bytes, buffer_limit=buffer_limit
        )
    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    is_over = threading.Event()
    threads = [threading.Thread(target=_keep_busy, args=(is_over,)) for _ in range(busy)]
    with Session("cuda", ring_size=ROUNDS * LAUNCHES * 2, capture="kernels") as lab:
        lab.stream("work")
        kernel((1,), (32,), ())
        for thread in threads:
            thread.start()
        times_us = [_launch(lab, kernel) for _ in range(ROUNDS)]
        is_over.set()
        kernels = int((lab.trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum())
    assert _buffers_are(pool), f"CUPTI was not served by {pool}"
    return {"us a launch": round(statistics.median(times_us), 2), "kernels told of": f"{kernels:,} of {ROUNDS * LAUNCHES:,}"}


def _launch(lab: Session, kernel: Any) -> float:
    with lab.on("work"), lab.stream("work").backend_stream.cupy:
        began_s = time.perf_counter()
        for _ in range(LAUNCHES):
            kernel((1,), (32,), ())
        return (time.perf_counter() - began_s) / LAUNCHES * 1e6


def _keep_busy(is_over: threading.Event) -> None:
    while not is_over.is_set():
        sum(range(1_000))


def _buffers_are(pool: str) -> bool:
    from gpustreamlab.backends.cuda.cupti import _source

    return _source._buffers[0].is_native == (pool == "native")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(_measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main(sys.argv[1:])
