"""What it costs to sample the Python stacks of threads that launch: the host's time, and the share of a core.

Each case runs with kernels and calls captured, with and without samples, in turn; ratios are taken within a round, and medians
over the rounds. Thirty frames stand around each case, as in a program of some size. On a machine without a GPU the launches are
those of the simulated device, in real time.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin

NEEDS_GPU = False
ROUNDS = 61  # short ones: what else the machine does changes from second to second
LAUNCHES = 5_000
ADDITIONS = 4_000_000
DEPTH = 30


def main(argv: list[str] | None = None) -> None:
    with Session(capture="ranges") as lab:
        lab.stream("work")
        cases = {
            f"{LAUNCHES:,} launches one after the other": lambda: _launch(lab),
            f"{ADDITIONS:,} additions in Python": _add,
            "waits for 0.1 s": lambda: time.sleep(0.1),
        }
        rows = [_row(lab, name, work) for name, work in cases.items()]
        what = f"on {lab.device.name}{' (simulated)' if lab.device.simulated else ''}"
    report(f"Samples of Python stacks (median of {ROUNDS} pairs, {what})", rows, argv)


def _row(lab: Session, name: str, work: Callable[[], object]) -> dict[str, Any]:
    _run(lab, work, stacks=True)
    pairs = [(_run(lab, work, stacks=False), _run(lab, work, stacks=True)) for _ in range(ROUNDS)]
    low, middle, high = statistics.quantiles((sampled["s"] / plain["s"] for plain, sampled in pairs), n=4)
    return {
        "the host": name,
        "s without": round(statistics.median(plain["s"] for plain, _ in pairs), 3),
        "times as long with": round(middle, 3),
        "middle half of the pairs": f"{low:.3f} to {high:.3f}",
        "samples/s": round(statistics.median(sampled["samples"] / sampled["s"] for _, sampled in pairs)),
        "% of a core": round(statistics.median(100 * sampled["sampler_s"] / sampled["s"] for _, sampled in pairs), 2),
    }


def _run(lab: Session, work: Callable[[], object], *, stacks: bool) -> dict[str, float]:
    lab.synchronize()
    lab.clear()
    with lab.capture("kernels", stacks=stacks):
        spin(lab, 1_000, stream="work")  # so that this thread is one that launches
        with _cpu_seconds("gpustreamlab stacks") as sampler_s:
            began = time.perf_counter()
            _deep(work, DEPTH)
            took = time.perf_counter() - began
        lab.synchronize()
    count = len(lab.trace.where(kind=SpanKind.SAMPLE))
    return {"s": took, "samples": count, "sampler_s": sampler_s[0]}


def _deep(work: Callable[[], object], depth: int) -> object:
    return _deep(work, depth - 1) if depth else work()


def _launch(lab: Session) -> None:
    with lab.on("work"):
        for _ in range(LAUNCHES):
            spin(lab, 1_000)


def _add() -> int:
    total = 0
    for number in range(ADDITIONS):
        total += number
    return total


@contextmanager
def _cpu_seconds(thread_name: str) -> Any:
    """Measure for how long a thread of this name computes; a list of one number, 0 where there is none."""
    idents = [one.ident for one in threading.enumerate() if one.name == thread_name and one.ident is not None]
    clocks = [time.pthread_getcpuclockid(ident) for ident in idents]
    took = [-sum(map(time.clock_gettime, clocks))]
    yield took
    took[0] += sum(map(time.clock_gettime, clocks))


if __name__ == "__main__":
    main()
