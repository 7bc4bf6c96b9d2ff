"""What each part of recording adds to a launch, of torch and of CuPy: bursts with it on and off in turn, within one process.

Hosts change their pace by a third from one second to the next, which medians over processes do not take out (`capture_cost`);
differences of bursts that follow each other at once do. CUPTI is in the process all the while: what that takes is not in here.

    python -m bench.recording_parts --json bench/results/recording_parts.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bench._common import report
from bench.capture_cost import cupy_loop, torch_loop
from gpustreamlab.backends.cuda._libcuda import load_libcuda
from gpustreamlab.backends.cuda.cupti._arguments import CShape
from gpustreamlab.backends.cuda.cupti._clients import SHARING
from gpustreamlab.backends.cuda.cupti._layouts import RecordKind
from gpustreamlab.backends.cuda.cupti._library import Cupti, load_cupti

NEEDS_GPU = True
LAUNCHES = 2_000
PAIRS = 24
OTHERS = ("MARKER", "MEMORY2", "SYNCHRONIZATION", "CUDA_EVENT", "CONTEXT", "OVERHEAD", "MEMCPY", "MEMSET", "MEMCPY2")


def main(argv: list[str] | None = None) -> None:
    import torch

    loops = {"torch": torch_loop(LAUNCHES), "CuPy": cupy_loop(LAUNCHES)}
    for loop in loops.values():
        loop()
    torch.cuda.synchronize()
    cupti, buffers = load_cupti(), SHARING.buffers
    buffers.register(cupti)
    rows = []

    def compare(part: str, switch: Callable[[int], object]) -> None:
        for name, loop in loops.items():
            rows.append({"part": part, "launches by": name, **_added(cupti, loop, switch)})
            print(rows[-1], flush=True)

    compare("nothing", int)
    kernels = partial(_record, cupti, [RecordKind.CONCURRENT_KERNEL])
    compare("kernel records", kernels)
    kernels(1)
    for number, name in cupti.followed_calls.items():
        buffers.set_shape(number, name)
    buffers.begin_calls(load_libcuda())
    if not cupti._subscribe(buffers.note_call):
        raise SystemExit("Another profiler has CUPTI's place for a subscriber.")
    launches = [number for number, name in cupti.followed_calls.items() if "LaunchKernel" in name]
    compare("callback at launches", partial(_follow, cupti, launches))
    compare("callback at all calls", partial(_follow, cupti, cupti.followed_calls))
    _follow(cupti, cupti.followed_calls, 1)
    compare("of that arguments", partial(_read_arguments, cupti, launches))
    _read_arguments(cupti, launches, 1)
    compare("all other records", partial(_record, cupti, [getattr(RecordKind, name) for name in OTHERS]))
    cupti.disable_calls()
    kernels(0)
    report(f"Added to a launch, us: medians of {PAIRS} differences of bursts of {LAUNCHES:,}", rows, argv)


def _added(cupti: Cupti, loop: Callable[[], None], switch: Callable[[int], object]) -> dict[str, Any]:
    """Return what a part adds to a launch, in us: the median and the quartiles of differences; and what it takes without."""
    times: dict[int, list[float]] = {1: [], 0: []}
    for turn in range(PAIRS):
        for on in (1, 0) if turn % 2 else (0, 1):
            switch(on)
            times[on].append(_burst_us(cupti, loop))
    switch(0)
    low, middle, high = statistics.quantiles((one - other for one, other in zip(times[1], times[0], strict=True)), n=4)
    return {
        "adds us": round(middle, 2),
        "quartiles": f"{low:.2f} to {high:.2f}",
        "without, us": round(statistics.median(times[0]), 2),
    }


def _burst_us(cupti: Cupti, loop: Callable[[], None]) -> float:
    """Return what a launch takes, and throw away what was recorded meanwhile."""
    import torch

    torch.cuda.synchronize()
    began_s = time.perf_counter()
    loop()
    took_s = time.perf_counter() - began_s
    torch.cuda.synchronize()
    cupti.call("cuptiActivityFlushAll", 0)
    for ticket, _ in SHARING.buffers.take():
        SHARING.buffers.give_back(ticket)
    SHARING.buffers.take_calls()
    return took_s / LAUNCHES * 1e6


# What is switched on and off


def _record(cupti: Cupti, kinds: Iterable[RecordKind], on: int) -> None:
    for kind in kinds:
        cupti.call("cuptiActivityEnable" if on else "cuptiActivityDisable", int(kind))


def _follow(cupti: Cupti, numbers: Iterable[int], on: int) -> None:
    cupti._follow(numbers, is_on=on)


def _read_arguments(cupti: Cupti, launches: Iterable[int], on: int) -> None:
    for number in launches:
        if on:
            SHARING.buffers.set_shape(number, cupti.followed_calls[number])
        else:
            SHARING.buffers._library.set_shape(number, CShape())


if __name__ == "__main__":
    main()
