"""The host cost of selecting a stream with 0, 1 and 3 frameworks loaded, beside their own ``with`` in the same run.

CuPy is always there. The frameworks are loaded one after the other, in this process: torch, then Numba-CUDA and Triton. Their
own cost is what a user would write without this package: ``with cupy_stream, torch.cuda.stream(s):`` (Numba-CUDA and Triton
have nothing to write). Rounds are interleaved, ratios are taken within a round, and medians over the rounds.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from bench._common import report
from bench._numba_cuda import import_numba_cuda
from gpustreamlab import Session, Stream

NEEDS_GPU = True
CALLS = 2_000
ROUNDS = 25
STAGES: tuple[tuple[int, tuple[str, ...]], ...] = ((0, ()), (1, ("torch",)), (3, ("numba.cuda", "triton")))
"""How many frameworks are loaded beside CuPy, and which come with this stage."""


def main(argv: list[str] | None = None) -> None:
    rows = []
    with Session("cuda", capture="ranges") as lab:
        stream = lab.stream("a")
        for count, modules in STAGES:
            _import_all(modules)
            with lab.select(stream):  # the first selection starts what was loaded
                pass
            times = _measure(_works(lab, stream, count))
            rows += [
                {
                    "frameworks": count,
                    "what": name,
                    "host us": round(statistics.median(values), 3),
                    "times their own": _ratio(values, times["their own with"]),
                }
                for name, values in times.items()
            ]
        print(lab.recording.adapters)
    report(f"Host cost of selecting a stream (median of {ROUNDS} rounds of {CALLS:,})", rows, argv)


def _works(lab: Session, stream: Stream, count: int) -> dict[str, Callable[[], None]]:
    kept = lab.select(stream)

    def select() -> None:
        for _ in range(CALLS):
            with lab.select(stream):
                pass

    def select_kept() -> None:
        for _ in range(CALLS):
            with kept:
                pass

    def on() -> None:
        for _ in range(CALLS):
            with lab.on(stream, "x"):
                pass

    return {
        "their own with": _own_with(stream, has_torch=count > 0),
        "lab.select": select,
        "lab.select, made once": select_kept,
        "lab.on (with a range)": on,
    }


def _own_with(stream: Stream, *, has_torch: bool) -> Callable[[], None]:
    import cupy

    cupy_stream = cupy.cuda.Stream.from_external(stream)

    def cupy_only() -> None:
        for _ in range(CALLS):
            with cupy_stream:
                pass

    if not has_torch:
        return cupy_only
    import torch

    torch_stream: Any = torch.cuda.ExternalStream(stream.handle)

    def both() -> None:
        for _ in range(CALLS):
            with cupy_stream, torch.cuda.stream(torch_stream):
                pass

    return both


def _measure(works: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(ROUNDS + 2):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            if round_number >= 2:
                times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return times


def _ratio(values: list[float], others: list[float]) -> float:
    return round(statistics.median(value / other for value, other in zip(values, others, strict=True)), 2)


def _import_all(modules: tuple[str, ...]) -> None:
    for module in modules:
        if module == "numba.cuda":
            import_numba_cuda()
        else:
            importlib.import_module(module)


if __name__ == "__main__":
    main()
