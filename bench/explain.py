"""Which planted causes are named right, on the simulated device or a GPU, and how long an explanation takes."""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from bench._common import median_seconds, report
from gpustreamlab import Session, Trace
from gpustreamlab.analysis import Explanation
from gpustreamlab.model import Accesses, Edges
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin, spin_card
from tests.helpers.planted import CLEAN, PLANTED, clean_program

SPAN_COUNTS = (1_000_000, 10_000_000)
CANDIDATE_COUNTS = (5_000, 1_000_000)
"""Spans of runs with calls and data, of which ten candidates are scheduled anew."""
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
    rows = [*judged(options.backend, planted), *clean(options.backend, options.random), *timed(), *timed_with_candidates()]
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


def timed_with_candidates() -> list[dict[str, Any]]:
    """Say how long runs with ten candidates take, whatever was worked out before, and how much memory more than the trace."""
    rows = []
    for count in CANDIDATE_COUNTS:
        kept = run_with_candidates(count)
        seconds, before_kb = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(ROUNDS):
            trace = kept[np.arange(len(kept))]  # what is kept of a trace is of this one
            began = perf_counter()
            trace.explain()
            seconds.append(perf_counter() - began)
        more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        told = {"named first": round(float(np.median(seconds)), 3), "else": f"{more_mb:.0f} MB more"}
        rows.append({"what": f"{len(kept):,} spans with calls, data and ten candidates, s", **told})
    return rows


def run_with_candidates(count: int) -> Trace:
    """Return a run of about so many spans in which much may be changed, as turns of one that was recorded."""
    with Session("sim") as lab:
        lab.capture("kernels", host=True)
        copy, compute = lab.stream("copy"), lab.stream("compute")
        given, taken = np.ones((8, 64, 1024), "f4"), lab.memory.pinned_empty((64, 1024), "f4")
        array, kept = lab.xp.empty((64, 1024), "f4"), []
        lab.synchronize()
        lab.clear()
        for turn in range(8):
            with lab.on(copy, "up"):
                array.set(given[turn])
            compute.wait(copy)
            with lab.on(compute, "step"):
                kept.append(array * 2)
            spin(lab, 20_000, blocks=8, stream=lab.stream(f"s{turn % 2}"))
            with lab.on(compute, "down"):
                kept[-1].get(out=taken, blocking=turn % 2 == 0)
            copy.wait(compute)
        lab.synchronize()
        return in_turns(lab.trace, max(1, round(count / len(lab.trace))))


def in_turns(trace: Trace, count: int) -> Trace:
    """Return a run so many times one behind the other."""
    size, turn = len(trace), np.arange(count)
    apart_ns = int(trace.end_ns.max() - trace.queued_ns.min()) + 10_000

    def repeated(rows: np.ndarray) -> np.ndarray:
        return (np.tile(rows, (count, 1)) + np.where(rows < 0, 0, turn[:, None] * size)).ravel()

    def tiled(values: Mapping[str, np.ndarray], *rows: str) -> dict[str, np.ndarray]:
        return {name: repeated(column) if name in rows else np.tile(column, count) for name, column in values.items()}

    times = {name: getattr(trace, name) + turn[:, None] * apart_ns for name in ("start_ns", "end_ns", "queued_ns")}
    edges = {name: getattr(trace.edges, name) for name in ("source", "target", "kind")}
    columns: dict[str, Any] = {name: values.ravel() for name, values in times.items()}
    columns |= tiled({name: getattr(trace, name) for name in ("lane", "name", "kind", "thread", "partition")})
    columns |= {
        "parent": repeated(trace.parent),
        "extra": tiled(trace.extra),
        "edges": Edges(**tiled(edges, "source", "target")),
        "accesses": Accesses(**tiled(trace.accesses.columns, "span")),
    }
    return replace(trace, **columns)


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
