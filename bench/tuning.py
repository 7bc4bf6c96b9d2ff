"""Tuning: what measuring costs, how models fit, what tasks cost each other, and whether the search finds the best split.

Sweeps of kernels of several libraries with the held-out errors of their models; a matrix of co-runs; for pairs of tasks the
tuned split beside all splits measured one by one (how far from the best, with how many evaluations), and two runs of one tuning
beside each other. For four programs the makespan that `trace.what_if` predicts at three other layouts beside the one that was
measured there. Beside `lab.bench.measure` stand cupyx.profiler.benchmark and torch.utils.benchmark, in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench._common import report
from gpustreamlab import Session, Trace
from gpustreamlab.backends.sim import H200, KernelSpec, plan_matmul, plan_streaming
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.tuning import Corun, Sweep, _tune
from gpustreamlab.workloads import spin, streaming_add

Tasks = dict[str, Callable[[], object]]
PAIRS = (("product", "addition"), ("product", "spin"), ("transform", "addition"), ("product", "transform"))
FEW = 12
"""A search that may measure fewer places than there are: a climb."""
CHAIN = [step for _ in range(4) for step in (("a", "product"), ("b", "addition"))]
PROGRAMS = {
    "products beside additions": [("a", "product")] * 6 + [("b", "addition")] * 6,
    "a chain across streams": CHAIN,
    "spins beside products": [("a", "product")] * 6 + [("b", "spin")] * 10,
    "transforms beside additions": [("a", "transform")] * 20 + [("b", "addition")] * 4,
}
"""Steps: a stream, and the task that it runs. In the chain each waits for the one before."""
RECORDED = {"a": 64, "b": "rest"}
PREDICTED = ({"a": 32, "b": "rest"}, {"a": 96, "b": "rest"}, None)
RUNS = 5
_WORK_CODES = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("sim", "cuda"), default="sim")
    options, rest = parser.parse_known_args(argv)
    with Session(options.backend) as lab:
        tasks = _modelled(lab) if lab.device.simulated else make_tasks(lab)
        swept: dict[str, Sweep] = {}
        rows = [*costs(lab, tasks), *sweeps(lab, tasks, swept), *predictions(lab, tasks, swept)]
        rows += [*coruns(lab, tasks), *searches(lab, tasks)]
        where = lab.device.label
    report(f"Tuning ({where})", rows, rest)


def make_tasks(lab: Session) -> Tasks:
    """Return tasks of CuPy, torch and Triton."""
    xp = lab.xp
    a, product = xp.ones((4096, 4096), "float16"), xp.empty((4096, 4096), "float16")
    x, added = xp.ones(1 << 24, "complex128"), xp.empty(1 << 24, "complex128")
    signal = xp.ones((2048, 8192), "complex64")  # large enough that the host keeps ahead of it
    tasks: Tasks = {
        "product": lambda: xp.matmul(a, a, out=product),
        "addition": lambda: streaming_add(lab, x, x, added),
        "transform": lambda: xp.fft.fft(signal),
        "spin": lambda: spin(lab, 100_000, blocks=64),
    }
    tasks |= _others()
    lab.synchronize()
    return tasks


def _modelled(lab: Session) -> Tasks:
    """Return tasks of kernels as those of CuPy's calls, with nothing to compute."""
    backend: Any = lab.recording.backend

    def launch(spec: KernelSpec) -> None:
        backend.launch_kernel(backend.selected_stream, spec)

    product = plan_matmul(H200, "matmul", m=4096, n=4096, k=4096, batch=1, dtype=np.dtype("f2"))
    addition = plan_streaming(H200, "add", size_bytes=3 << 28, operations=1 << 24, dtype=np.dtype("c16"))
    transform = plan_streaming(H200, "fft", size_bytes=2 << 27, operations=5 * 13 << 24, dtype=np.dtype("c8"))
    return {
        "product": lambda: launch(product),
        "addition": lambda: launch(addition),
        "transform": lambda: launch(transform),
        "spin": lambda: spin(lab, 100_000, blocks=64),
    }


def _others() -> Tasks:
    import torch

    from bench._triton_kernels import launch

    q = torch.randn(8, 16, 1024, 64, device="cuda", dtype=torch.float16)
    x, out = torch.ones(1 << 26, device="cuda"), torch.empty(1 << 26, device="cuda")
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.cuda.synchronize()
    return {"torch.attention": lambda: attend(q, q, q), "triton.scale": lambda: launch(x, x, out)}


def costs(lab: Session, tasks: Tasks) -> list[dict[str, Any]]:
    """Compare a measurement with those of others: what they say, and how long they take for 50 calls."""
    task = tasks["product"]
    ways: dict[str, Callable[[], float]] = {"lab.measure": lambda: lab.bench.measure(task, repeats=50).median_ns}
    if not lab.device.simulated:
        ways |= _measurers(task)
    rows = []
    for name, way in ways.items():
        took, said = [], []
        for _ in range(3):
            began_s = time.perf_counter()
            said.append(way())
            took.append(time.perf_counter() - began_s)
        rows.append(
            {"what": f"measure: {name}", "us": round(statistics.median(said) / 1e3, 2), "s": round(statistics.median(took), 3)}
        )
    return rows


def _measurers(task: Callable[[], object]) -> dict[str, Callable[[], float]]:
    import numpy as np
    import torch.utils.benchmark as torch_benchmark
    from cupyx.profiler import benchmark

    def by_cupy() -> float:
        return float(np.median(benchmark(task, n_repeat=50, n_warmup=3).gpu_times)) * 1e9

    def by_torch() -> float:
        return torch_benchmark.Timer("task()", globals={"task": task}).timeit(50).median * 1e9

    return {"cupyx.profiler.benchmark": by_cupy, "torch.utils.benchmark.Timer": by_torch}


def sweeps(lab: Session, tasks: Tasks, swept: dict[str, Sweep]) -> list[dict[str, Any]]:
    """Sweep each task over all sizes that the device grants; keep the sweeps in `swept`."""
    rows = []
    for name, task in tasks.items():
        began_s = time.perf_counter()
        found = swept[name] = lab.bench.sweep(task, repeats=8)
        best = found.fits[0]
        rows.append(
            {
                "what": f"sweep: {name}",
                "us": round(float(found.median_ns[-1]) / 1e3, 2),
                "s": round(time.perf_counter() - began_s, 2),
                "model": best.model if found.fit is not None else "none fits",
                "held-out error": f"{best.median_error:.1%}",
                "worst": f"{best.worst_error:.0%}",
                "knee, SMs": found.knee,
            }
        )
    return rows


def predictions(lab: Session, tasks: Tasks, swept: dict[str, Sweep]) -> list[dict[str, Any]]:
    """Predict each program at other layouts from one recorded run, and run it there."""
    rows, errors = [], []
    for name, program in PROGRAMS.items():
        recorded = run_program(lab, tasks, program, RECORDED)
        known = {task: swept[task] for _, task in program}
        for layout in (RECORDED, *PREDICTED):
            said = recorded.what_if(layout, sweep=known)
            is_own = layout is RECORDED
            runs = [recorded] if is_own else [run_program(lab, tasks, program, layout) for _ in range(RUNS)]
            measured_ns = statistics.median(makespan_of(trace) for trace in runs)
            off = said.makespan_ns / measured_ns - 1
            errors += [] if is_own else [abs(off)]
            rows.append(
                {
                    "what": f"what if: {name}",
                    "place": "whole card" if layout is None else f"a {layout['a']}, b rest" + ", as recorded" * is_own,
                    "us": round(measured_ns / 1e3, 1),
                    "predicted, us": round(said.makespan_ns / 1e3, 1),
                    "off by": f"{off:+.1%}",
                    "stated": f"{said.error:.1%}",
                }
            )
    lab.partition(None)
    rows.append({"what": "what if: all", "off by": f"{statistics.median(errors):.1%} median, {max(errors):.1%} worst"})
    return rows


def run_program(lab: Session, tasks: Tasks, program: list[tuple[str, str]], layout: dict[str, Any] | None) -> Trace:
    """Return the trace of a program with a layout, None for the whole card."""
    lab.partition(layout)
    streams = {name: lab.stream(name, partition=name if layout else None) for name in "ab"}
    is_chain = program is CHAIN
    for _ in range(2):  # the first one warms up
        lab.synchronize()
        lab.clear()
        before = None
        for name, task in program:
            if is_chain and before is not None:
                streams[name].wait(before)
            with lab.on(name, task):
                tasks[task]()
            before = streams[name].record() if is_chain else None
    lab.synchronize()
    return lab.trace


def makespan_of(trace: Trace) -> int:
    """Return the time from the first start to the last end of the work of a trace, in ns."""
    rows = np.isin(trace.kind, _WORK_CODES)
    return int(trace.end_ns[rows].max() - trace.start_ns[rows].min())


def coruns(lab: Session, tasks: Tasks) -> list[dict[str, Any]]:
    """Measure every two tasks beside each other on the whole card."""
    rows = []
    for first, second in itertools.combinations(tasks, 2):
        found = lab.bench.corun({first: tasks[first], second: tasks[second]}, repeats=8)
        low, high = found.speedup_interval
        slow = [round(one.slowdown, 2) for one in found.tasks]
        rows.append(
            {
                "what": f"co-run: {first}, {second}",
                "gain": f"{found.speedup:.2f} ({low:.2f} to {high:.2f})",
                "slowdowns": str(slow),
            }
        )
    return rows


def searches(lab: Session, tasks: Tasks) -> list[dict[str, Any]]:
    """Compare a climb with all splits measured one by one, and two runs of one tuning."""
    rows = []
    for names in PAIRS:
        pair = {name: tasks[name] for name in names}
        everything = lab.bench.tune(pair, "makespan", repeats=6)
        of_place = {trial.place: makespan(trial.corun) for trial in everything.trials}
        kept, _tune.FEW_PLACES = _tune.FEW_PLACES, FEW
        try:
            climbs = [lab.bench.tune(pair, "makespan", repeats=6) for _ in range(2)]
        finally:
            _tune.FEW_PLACES = kept
        best = min(of_place.values())
        rows.append(
            {
                "what": f"tune: {', '.join(names)}",
                "candidates": everything.candidate_count,
                "measured": len(climbs[0].trials),
                "best, us": round(best / 1e3, 1),
                "from the best": f"{of_place.get(climbs[0].best.place, makespan(climbs[0].best.corun)) / best - 1:+.1%}",
                "second run": f"{makespan(climbs[1].best.corun) / makespan(climbs[0].best.corun) - 1:+.1%}",
                "place": str(climbs[0].best.place),
            }
        )
    return rows


def makespan(found: Corun) -> float:
    """Return the median time from the first start to the last end, in ns."""
    return found.metric("makespan")


if __name__ == "__main__":
    main()
