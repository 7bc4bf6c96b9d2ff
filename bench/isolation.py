"""How long a 50 us kernel takes from its launch to the host's return, beside a stream that keeps the card full.

The busy stream holds a queue of kernels that each take every SM it may use for 1 ms. The short kernel is launched and waited
for again and again: on an idle card (the floor), on a plain stream, on a stream of the highest priority, and in a partition.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.streams.stream import Event, Stream
from gpustreamlab.workloads import spin

NEEDS_GPU = True
REPEATS = 200
SHORT_NS = 50_000
LONG_NS = 1_000_000
SHORT_BLOCKS = 8
QUEUE = 12


def main(argv: list[str] | None = None) -> None:
    rows = []
    with Session("cuda", capture="ranges") as lab:
        plain = lab.stream("plain")
        urgent = lab.stream("urgent", priority=lab._backend.priority_range[1])
        busy = lab.stream("busy")
        rows.append(_row("alone on an idle card", lab, plain, None))
        rows.append(_row("plain stream", lab, plain, busy))
        rows.append(_row("highest priority", lab, urgent, busy))
        lab.partition({"short": 8, "long": "rest"})
        short, long = lab.stream("short", partition="short"), lab.stream("long", partition="long")
        rows.append(_row(f"partition of {short.sm_count} SMs", lab, short, long))
        lab.partition({"short": 32, "long": "rest"})
        rows.append(_row(f"partition of {short.sm_count} SMs", lab, short, long))
    report(f"A 50 us kernel beside 1 ms kernels that fill the card ({REPEATS} launches)", rows, argv)


def _row(what: str, lab: Session, short: Stream, busy: Stream | None) -> dict[str, Any]:
    lab.synchronize()
    queue: deque[Event] = deque()
    latencies_us = [_latency_us(lab, short, busy, queue) for _ in range(REPEATS + 20)][20:]
    lab.synchronize()
    lab.clear()
    p50, p99 = np.percentile(latencies_us, [50, 99])
    return {
        "50 us kernel": what,
        "p50 us": round(float(p50), 1),
        "p99 us": round(float(p99), 1),
        "worst us": round(max(latencies_us), 1),
    }


def _latency_us(lab: Session, short: Stream, busy: Stream | None, queue: deque[Event]) -> float:
    """Keep the busy stream's queue filled, then launch the short kernel and wait for it."""
    while queue and queue[0].query():
        queue.popleft().close()
    while busy is not None and len(queue) < QUEUE:
        with lab.on(busy, "long") as stream:
            lab._backend.launch_spin(stream._backend_stream, LONG_NS, blocks=stream.sm_count, fill_sms=True)
        queue.append(busy.record())
    time.sleep(0.0003)  # somewhere in the middle of a long kernel
    began = time.perf_counter()
    with lab.on(short, "short"):
        spin(lab, SHORT_NS, blocks=SHORT_BLOCKS)
    short.synchronize()
    return (time.perf_counter() - began) * 1e6


if __name__ == "__main__":
    main()
