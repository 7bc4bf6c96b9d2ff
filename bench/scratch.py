"""What taking and giving back scratch costs the host, beside CuPy's pool and the driver's stream-ordered allocator.

All of them reuse memory: nothing grows while it is measured. Rounds are interleaved, ratios are taken within a round, and
medians over the rounds. Sixteen threads do the same at once, each on a stream of its own; their time is that of one call of one
thread. ``ours`` and ``best other`` are compared: the goal is at most 1.2.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from bench._common import report
from gpustreamlab import Session, Stream

NEEDS_GPU = True
CALLS = 1_000
CALLS_TOGETHER = 100
"""Of each of the threads."""
ROUNDS = 15
WARM_ROUNDS = 3
THREADS = 16
SIZES = {"4 KiB": 1 << 12, "1 MiB": 1 << 20, "64 MiB": 1 << 26}

OURS = "lane.scratch"


def main(argv: list[str] | None = None) -> None:
    rows = []
    with Session("cuda", capture="ranges") as lab:
        lanes = [lab.stream(f"lane{number}") for number in range(THREADS)]
        for size_name, size_bytes in SIZES.items():
            rows += _rows(f"{size_name}, 1 thread", _time_rounds(lab, lanes[:1], size_bytes))
            rows += _rows(f"{size_name}, {THREADS} threads", _time_rounds(lab, lanes, size_bytes))
    report(f"Host cost of taking and giving back scratch (median of {ROUNDS} rounds)", rows, argv)


def _rows(case: str, times: dict[str, list[float]]) -> list[dict[str, object]]:
    others = [name for name in times if name != OURS]
    best = [min(values) for values in zip(*(times[name] for name in others), strict=True)]
    return [
        {
            "case": case,
            "what": name,
            "host us a call": round(statistics.median(values), 3),
            "ours, times this": round(_ratio(times[OURS], values), 2) if name != OURS else "",
            "ours, times the best other": round(_ratio(times[OURS], best), 2) if name == OURS else "",
        }
        for name, values in times.items()
    ]


def _ratio(values: list[float], others: list[float]) -> float:
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def _time_rounds(lab: Session, lanes: list[Stream], size_bytes: int) -> dict[str, list[float]]:
    works = _works(size_bytes)
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(ROUNDS + WARM_ROUNDS):
        for name, work in works.items():
            lab.synchronize()
            call_s = _call_alone_s(lab, lanes[0], work) if len(lanes) == 1 else _call_together_s(lab, lanes, work)
            if round_number >= WARM_ROUNDS:
                times[name].append(call_s * 1e6)
    return times


def _call_alone_s(lab: Session, lane: Stream, work: Callable[[Stream, int], None]) -> float:
    with lab.on(lane):
        began = time.perf_counter()
        work(lane, CALLS)
        return (time.perf_counter() - began) / CALLS


def _call_together_s(lab: Session, lanes: list[Stream], work: Callable[[Stream, int], None]) -> float:
    ready = threading.Barrier(len(lanes) + 1)

    def run(lane: Stream) -> None:
        with lab.on(lane):
            ready.wait()
            work(lane, CALLS_TOGETHER)

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / len(lanes) / CALLS_TOGETHER


def _works(size_bytes: int) -> dict[str, Callable[[Stream, int], None]]:
    import cupy

    runtime, alloc = cupy.cuda.runtime, cupy.cuda.alloc
    async_pool = cupy.cuda.MemoryAsyncPool()
    runtime.memPoolSetAttribute(runtime.deviceGetDefaultMemPool(0), 4, 1 << 40)  # cudaMemPoolAttrReleaseThreshold: keep it

    def scratch(lane: Stream, count: int) -> None:
        for _ in range(count):
            with lane.scratch(size_bytes):
                pass

    def pool(_lane: Stream, count: int) -> None:
        for _ in range(count):
            memory = alloc(size_bytes)
            del memory

    def asynchronous_pool(_lane: Stream, count: int) -> None:
        malloc = async_pool.malloc
        for _ in range(count):
            memory = malloc(size_bytes)
            del memory

    def driver(lane: Stream, count: int) -> None:
        handle = lane.handle
        for _ in range(count):
            runtime.freeAsync(runtime.mallocAsync(size_bytes, handle), handle)

    return {
        OURS: scratch,
        "CuPy's pool": pool,
        "CuPy's MemoryAsyncPool": asynchronous_pool,
        "cudaMallocAsync, cudaFreeAsync": driver,
    }


if __name__ == "__main__":
    main()
