"""GPU time that a range adds to a 10 us kernel, beside a bare event pair and no events at all.

Kernels are queued behind a long one, so the stream never waits for the host, and time themselves with %globaltimer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from bench._common import report
from gpustreamlab import Session

NEEDS_GPU = True
KERNELS = 300
ROUNDS = 15
KERNEL_NS = 10_000
GATE_NS = 12_000_000


def main(argv: list[str] | None = None) -> None:
    with Session("cuda", capture="ranges") as lab:
        works = _works(lab)
        periods: dict[str, list[float]] = {name: [] for name in works}
        for round_number in range(ROUNDS + 1):
            for name, work in works.items():
                period_us = _period_us(lab, work)
                if round_number:
                    periods[name].append(period_us)
    rows = [
        {
            "what": name,
            "us a kernel": round(statistics.median(values), 3),
            "times a bare event pair": round(
                statistics.median(v / b for v, b in zip(values, periods["event pair"], strict=True)), 3
            ),
        }
        for name, values in periods.items()
    ]
    report(f"GPU time of a {KERNEL_NS // 1000} us kernel in a full queue (median of {ROUNDS} rounds of {KERNELS})", rows, argv)


def _works(lab: Session) -> dict[str, Callable[[int, object], None]]:
    from gpustreamlab.backends.cuda._kernels import spin_kernel

    spin = spin_kernel(0)
    stream = lab.stream("a")
    record = stream._backend_stream.core.record
    events = [(lab._backend.acquire_event(), lab._backend.acquire_event()) for _ in range(KERNELS)]

    def bare(row: int, slot: object) -> None:
        spin((1,), (1,), (np.int64(KERNEL_NS), slot))

    def event_pair(row: int, slot: object) -> None:
        record(events[row][0])
        spin((1,), (1,), (np.int64(KERNEL_NS), slot))
        record(events[row][1])

    def in_range(row: int, slot: object) -> None:
        with lab.range("x"):
            spin((1,), (1,), (np.int64(KERNEL_NS), slot))

    return {"no events": bare, "event pair": event_pair, "range": in_range}


def _period_us(lab: Session, work: Callable[[int, object], None]) -> float:
    import cupy

    times = cupy.zeros((KERNELS, 2), cupy.uint64)
    slots = [times[row] for row in range(KERNELS)]
    lab.synchronize()
    with lab.on("a", "gate"):
        lab._backend.launch_spin(lab.stream("a")._backend_stream, GATE_NS, blocks=1, fill_sms=False)
        for row, slot in enumerate(slots):
            work(row, slot)
    lab.synchronize()
    began_ended = times.get().astype(np.int64)
    return float(began_ended[-1, 1] - began_ended[0, 0]) / KERNELS / 1e3


if __name__ == "__main__":
    main()
