"""What capturing kernels costs: the host's time a launch, and reading the records, beside torch.profiler.

The same loop of small launches with nothing on (the floor), inside a range, with kernels captured (with and without the calls
of the host in the trace), and under torch.profiler in its two forms. Rounds are interleaved, ratios are taken within a round,
and medians over the rounds. At the end 1,000,000 kernels are launched: each must be in the trace or counted as dropped.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.typing import SpanKind

NEEDS_GPU = True
LAUNCHES = 100_000
PROFILED_LAUNCHES = 20_000  # torch.profiler's events() takes 30 us a kernel
ROUNDS = 5
MANY = 1_000_000


def main(argv: list[str] | None = None) -> None:
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    with Session("cuda", ring_size=3 * MANY, capture="ranges") as lab:
        lab.stream("work")
        launch = _launcher(lab, kernel)
        for _ in range(2):
            launch(LAUNCHES)
        cases = _cases(lab)
        rounds = [{name: _round(lab, launch, *case) for name, case in cases.items()} for _ in range(ROUNDS)]
        rows = [_row(name, rounds) for name in cases]
        rows.append(_many(lab, launch))
    report(f"Launches of an empty kernel (median of {ROUNDS} rounds of {LAUNCHES:,})", rows, argv)


def _cases(lab: Session) -> dict[str, tuple[int, Callable[[], AbstractContextManager[Any]], Callable[[Any], int]]]:
    """Return for each case the launches, what is on meanwhile, and what reads the records and counts the kernels."""
    return {
        "off: launches alone": (LAUNCHES, nullcontext, lambda _: 0),
        "ranges": (LAUNCHES, lambda: lab.on("work", "launches"), lambda _: len(lab.trace) * 0),
        "kernels": (LAUNCHES, lambda: lab.capture("kernels", host=False), lambda _: _kernel_count(lab)),
        "kernels and calls": (LAUNCHES, lambda: lab.capture("kernels"), lambda _: _kernel_count(lab)),
        "torch.profiler CUDA": (PROFILED_LAUNCHES, lambda: _profiling("CUDA"), _event_count),
        "torch.profiler CPU + CUDA": (PROFILED_LAUNCHES, lambda: _profiling("CPU", "CUDA"), _event_count),
    }


def _launcher(lab: Session, kernel: Any) -> Callable[[int], float]:
    def launch(count: int) -> float:
        """Launch so many times; return the seconds that it took."""
        stream = lab.stream("work")._backend_stream.cupy
        with stream:
            began_s = time.perf_counter()
            for _ in range(count):
                kernel((1,), (32,), ())
            ended_s = time.perf_counter()
        stream.synchronize()
        return ended_s - began_s

    return launch


def _round(
    lab: Session,
    launch: Callable[[int], float],
    count: int,
    collecting: Callable[[], AbstractContextManager[Any]],
    read: Callable[[Any], int],
) -> dict[str, float]:
    lab.clear()
    with collecting() as tool:
        launch_s = launch(count)
        lab.synchronize()
    began_s = time.perf_counter()
    kernels = read(tool)
    read_s = time.perf_counter() - began_s
    return {"launch": launch_s / count, "read": read_s / count, "kernels": kernels, "launches": count}


def _row(name: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    own = [figures[name] for figures in rounds]
    return {
        "what": name,
        "us a launch": round(statistics.median(figures["launch"] for figures in own) * 1e6, 2),
        "times off": round(statistics.median(f[name]["launch"] / f["off: launches alone"]["launch"] for f in rounds), 3),
        "us to read a kernel": round(statistics.median(figures["read"] for figures in own) * 1e6, 2),
        "kernels told of": f"{int(own[-1]['kernels']):,} of {int(own[-1]['launches']):,}",
    }


def _many(lab: Session, launch: Callable[[int], float]) -> dict[str, Any]:
    lab.clear()
    with lab.capture("kernels", host=False):
        seconds = launch(MANY)
        lab.synchronize()
    began_s = time.perf_counter()
    kept, dropped = _kernel_count(lab), lab.trace.metadata.dropped_records
    return {
        "what": "kernels, 1,000,000 in one go",
        "us a launch": round(seconds / MANY * 1e6, 2),
        "us to read a kernel": round((time.perf_counter() - began_s) / MANY * 1e6, 2),
        "kernels told of": f"{kept:,} of {MANY:,}, {dropped:,} counted as dropped",
    }


def _kernel_count(lab: Session) -> int:
    trace = lab.trace
    return int((trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum())


@contextmanager
def _profiling(*activities: str) -> Iterator[Any]:
    import torch

    kinds = [getattr(torch.profiler.ProfilerActivity, name) for name in activities]
    with torch.profiler.profile(activities=kinds) as profiler:
        yield profiler


def _event_count(profiler: Any) -> int:
    return sum(event.device_type.name == "CUDA" for event in profiler.events())


if __name__ == "__main__":
    main(sys.argv[1:])
