"""Which planted causes are named right, on the simulated device or a GPU, and how long an explanation takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench._common import median_seconds, report
from gpustreamlab import Session, Trace
from gpustreamlab.analysis import Explanation
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin, spin_card
from tests.helpers.planted import CLEAN, PLANTED, clean_program

SPAN_COUNTS = (1_000_000, 10_000_000)
ROUNDS = 3
Program = Callable[[Session], object]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("sim", "cuda"), default="sim")
    parser.add_argument("--random", type=int, default=200, help="random clean programs")
    options, rest = parser.parse_known_args(argv)
    planted: dict[Cause, list[Program]] = {cause: list(programs) for cause, programs in PLANTED.items()}
    if options.backend == "cuda":
        from tests.helpers.planted_cuda import PLANTED_CUDA

        for cause, programs in PLANTED_CUDA.items():
            planted.setdefault(cause, []).extend(programs)
        explained(options.backend, lambda lab: [spin(lab, 1_000, stream=lab.stream("a")), spin_card(lab, 1_000, stream="a")])
    rows = [*judged(options.backend, planted), *clean(options.backend, options.random), *timed()]
    report(f"Explanations, {options.backend}", rows, rest)


def explained(backend: str, program: Program) -> Explanation:
    """Run a program and explain it: its streams `a` and `b`, or all."""
    with Session(backend, capture="ranges") as lab:
        lab.capture("kernels", host=True)
        program(lab)
        lab.synchronize()
        names = {lane.name for lane in lab.trace.lanes}
        return lab.explain("a", "b") if {"a", "b"} <= names else lab.explain()


def judged(backend: str, planted: Mapping[Cause, Sequence[Program]]) -> list[dict[str, Any]]:
    """Say of each cause how many of its programs are explained by it first, and by what the others are."""
    rows = []
    for cause, programs in planted.items():
        found = [[finding.code for finding in explained(backend, program).findings][:1] or ["none"] for program in programs]
        first = [codes[0] for codes in found]
        others = ", ".join(sorted({str(code) for code in first if code != cause}))
        rows.append({"what": str(cause), "programs": len(programs), "named first": first.count(cause), "else": others})
    total = {"what": "all causes", "programs": sum(row["programs"] for row in rows), "else": ""}
    return [*rows, total | {"named first": sum(row["named first"] for row in rows)}]


def clean(backend: str, count: int) -> list[dict[str, Any]]:
    """Say how many clean programs get a finding."""
    programs = [*CLEAN, *(clean_program(seed) for seed in range(count))]
    found = [explained(backend, program).findings[:1] for program in programs]
    alarms = [str(findings[0].code) for findings in found if findings]
    others = ", ".join(sorted({*alarms}))
    return [{"what": "clean programs with a finding", "programs": len(programs), "named first": len(alarms), "else": others}]


def timed() -> list[dict[str, Any]]:
    """Say how long traces of 1 and 10 million kernels take."""
    rows = []
    for count in SPAN_COUNTS:
        trace = big_trace(count)
        seconds = median_seconds(lambda trace=trace: trace.explain(), rounds=ROUNDS)
        rows.append({"what": f"{count:,} kernels in 4 streams, s", "named first": round(seconds, 2)})
    return rows


def big_trace(count: int) -> Trace:
    """Return kernels of 1 to 20 us in four streams with pauses of up to 8 us, launched 2 to 60 us before."""
    chance = np.random.default_rng(0)
    lasted_ns = chance.integers(1_000, 20_000, (4, count // 4))
    end_ns = np.cumsum(lasted_ns + chance.integers(0, 8_000, lasted_ns.shape), axis=1)
    start_ns = (end_ns - lasted_ns).ravel()
    order = np.argsort(start_ns, kind="stable")
    return Trace.from_columns(
        start_ns=start_ns[order],
        end_ns=end_ns.ravel()[order],
        queued_ns=start_ns[order] - chance.integers(2_000, 60_000, count),
        stream=np.repeat([f"s{number}" for number in range(4)], count // 4)[order],
        name=np.array([f"k{number}" for number in range(20)])[chance.integers(0, 20, count)],
        kind="kernel",
    )


if __name__ == "__main__":
    main()
