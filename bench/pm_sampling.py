"""Fine counters of a card (CUPTI's PM sampling): are they right, on which clock, what they cost, and what they change.

Known loads beside what they moved or computed; kernels' durations with the sampling off and on, in turn; where the counters
rise beside where kernels begin, at once and after a while; what the sampler itself takes. Each part runs in a process of its
own, and what fails is a row that says why.

    python -m bench.pm_sampling --json bench/results/pm_sampling.json [--every-us 50] [--age 20] [--only loads --only durations]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bench._common import report

NEEDS_GPU = True
LIMIT_S = 150.0
ROUNDS = 8
FLOP_A_CLOCK = 4096  # Of one SM with compute capability 9.0, dense bf16. Source: H100 white paper, 989.4 TFLOP/s at 1,830 MHz


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--every-us", type=float, default=50)
    parser.add_argument("--age", type=float, default=20)
    parser.add_argument("--only", action="append", default=[])
    options, rest = parser.parse_known_args(argv)
    rows = []
    for name in PARTS:
        if not options.only or name in options.only:
            for row in _apart(name, options.every_us, options.age):
                rows.append({"part": name, **row})
                print(rows[-1], flush=True)
    report(f"PM sampling each {options.every_us:g} us", rows, rest)


def _apart(name: str, every_us: float, age_s: float) -> list[dict[str, Any]]:
    """Run a part in a process of its own; one that crashes or hangs is a row, too."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, name, every_us, age_s))
    process.start()
    theirs.close()
    try:
        rows: list[dict[str, Any]] = ours.recv() if ours.poll(LIMIT_S) else [{"error": f"nothing after {LIMIT_S:g} s"}]
    except EOFError:
        process.join()
        rows = [{"error": f"the process ended with {process.exitcode}"}]
    process.join(5)
    if process.is_alive():
        process.kill()
    return rows


def _run(pipe: Connection, name: str, every_us: float, age_s: float) -> None:
    try:
        pipe.send(PARTS[name](every_us, age_s))
    except Exception as error:  # noqa: BLE001 - the other parts are worth having
        traceback.print_exc()
        pipe.send([{"error": f"{type(error).__name__}: {error}"}])


def opening(every_us: float, _age_s: float) -> list[dict[str, Any]]:
    """Read the sampler as it is: how long it takes to begin and to read, and how old its samples are."""
    from gpustreamlab import Session
    from gpustreamlab.backends import COUNTER_GROUPS

    names = [name for group in COUNTER_GROUPS.values() for name in group]
    with Session("cuda", capture="ranges") as lab:
        began_s = time.perf_counter()
        source: Any = lab._backend.fine_counter_source(names, round(every_us * 1e3))
        opened_s = time.perf_counter() - began_s
        reads, found = [], []
        for _ in range(3):
            time.sleep(source.period_s)
            began_s = time.perf_counter()
            found += source.read()
            reads.append(time.perf_counter() - began_s)
        late_ms = (lab._backend.host_time_ns() - found[-1].end_host_ns) / 1e6
        found += source.read(is_last=True)
        source.close()
    steps_us = np.diff(np.concatenate([one.begin_host_ns for one in found])) / 1e3
    values = {name: float(np.nanmean(np.concatenate([one.values[name] for one in found]))) for name in found[0].values}
    return [
        {
            "cupti": source._cupti.title,
            "open ms": round(opened_s * 1e3, 1),
            "read ms": round(statistics.median(reads) * 1e3, 2),
            "samples": len(steps_us) + 1,
            "step us": round(float(np.median(steps_us)), 2),
            "most us": round(float(steps_us.max()), 1),
            "newest is ms old": round(late_ms, 2),
            "image MiB": round(len(source._image) / 2**20, 1),
            "buffer MiB": source._buffer_bytes >> 20,
            "left out": str(source.left_out),
            "idle": str({name: round(value, 2) for name, value in values.items()}),
        }
    ]


def loads(every_us: float, _age_s: float) -> list[dict[str, Any]]:
    """Count known loads, a second each."""
    return [_counted(name, *made(), every_us) for name, made in LOADS.items()]


def _counted(name: str, load: Callable[[], object], amount: float, every_us: float) -> dict[str, Any]:
    import torch

    from gpustreamlab import Session
    from gpustreamlab.analysis import counter_means

    for _ in range(8):
        load()
    torch.cuda.synchronize()
    with Session("cuda", capture="ranges") as lab:
        lab.stream("load")
        with lab.counters(every_us=every_us) as block:
            with lab.on("load", "load"):
                began_s, count = time.perf_counter(), 0
                while time.perf_counter() < began_s + 1:
                    for _ in range(8):
                        load()
                    torch.cuda.synchronize()
                    count += 8
                true = amount * count / (time.perf_counter() - began_s)
            lab.synchronize()
    trace = lab.trace
    row = [place for place, code in enumerate(trace.name) if trace.names[code] == "load"]
    means = counter_means(trace, trace.start_ns[row], trace.end_ns[row])
    seen = {
        "copy": means.get("dram_bytes_per_s", 0.0),
        "upload": means.get("pcie_rx_bytes_per_s", 0.0),
        "product": means.get("tensor_active_percent", 0.0)
        / 100 * means.get("sm_clock_mhz", 0.0) * 1e6 * lab.device.sm_count * FLOP_A_CLOCK,
    }[name]  # fmt: skip
    own = np.isnan(trace.counters.value).mean()
    told = {key: float(f"{value:.5g}") for key, value in means.items()}
    return {
        "load": name,
        "true": true,
        "counted": seen,
        "ratio": round(seen / true, 4),
        "missing": round(float(own), 5),
        "left out": str(block.left_out),
        **told,
    }


def _copy() -> tuple[Callable[[], object], float]:
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2.0 * (1 << 30)


def _product() -> tuple[Callable[[], object], float]:
    import torch

    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return lambda: torch.matmul(x, x, out=y), 2.0 * 8192**3


def _upload() -> tuple[Callable[[], object], float]:
    import torch

    source = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()
    target = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    return lambda: target.copy_(source, non_blocking=True), float(1 << 28)


LOADS = {"copy": _copy, "product": _product, "upload": _upload}


def durations(every_us: float, _age_s: float) -> list[dict[str, Any]]:
    """Time kernels with the sampling off and on in turn: by CUDA events, and as they are captured beside it."""
    import torch

    from gpustreamlab import Session

    small = torch.ones(1 << 10, device="cuda")
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    y, z = torch.empty_like(x), torch.ones(1 << 26, device="cuda")
    kernels: dict[str, Callable[[], object]] = {
        "small add": lambda: small.add_(1),
        "256 MiB add": lambda: z.add_(1),
        "4096 product": lambda: torch.matmul(x, x, out=y),
    }
    rows = []
    for name, run in kernels.items():
        for _ in range(200):
            run()
        torch.cuda.synchronize()
        by_events: dict[bool, list[float]] = {False: [], True: []}
        captured: dict[bool, list[float]] = {False: [], True: []}
        host: dict[bool, list[float]] = {False: [], True: []}
        for place in range(2 * ROUNDS):
            is_on = place % 2 == 1
            with Session("cuda", capture="kernels") as lab:
                block = lab.counters(every_us=every_us) if is_on else None
                if block is not None:
                    block.__enter__()
                time.sleep(0.05)
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                began_s = time.perf_counter()
                start.record()
                for _ in range(400):
                    run()
                end.record()
                host[is_on].append((time.perf_counter() - began_s) / 400 * 1e6)
                torch.cuda.synchronize()
                by_events[is_on].append(start.elapsed_time(end) / 400 * 1e3)
                if block is not None:
                    block.stop()
                lab.synchronize()
            found = lab.trace.where(kind="kernel")
            captured[is_on] += ((found.end_ns - found.start_ns) / 1e3).tolist()
        row: dict[str, Any] = {"kernel": name}
        for title, times in (("event us", by_events), ("kernel us", captured), ("host us", host)):
            off, on = (statistics.median(times[is_on]) if times[is_on] else float("nan") for is_on in (False, True))
            row |= {f"{title} off": round(off, 3), f"{title} on": round(on, 3), f"{title} ratio": round(on / off, 4)}
        rows.append(row | {"captured off": len(captured[False]), "captured on": len(captured[True]), "launched": 400 * ROUNDS})
    return rows


def clock(_every_us: float, age_s: float) -> list[dict[str, Any]]:
    """Compare where SMs become active by the counters with where kernels begin, now and after a while."""
    import torch

    from gpustreamlab import Session

    x = torch.ones(1 << 27, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    rows = []
    with Session("cuda", capture="kernels") as lab:
        for age in (0.0, age_s):
            time.sleep(age)
            with lab.counters("sm", every_us=10):
                for _ in range(60):
                    time.sleep(0.002)
                    x.add_(1)
                    torch.cuda.synchronize()
            lab.synchronize()
            trace = lab.trace
            starts_ns = trace.where(kind="kernel").start_ns[-60:]
            own = trace.counters.name == trace.counters.names.index("sm_active_percent")
            offs_us = [_rise_ns(trace.counters.time_ns[own], trace.counters.value[own], at) / 1e3 for at in starts_ns.tolist()]
            shares = dict(
                zip(("5%", "median", "95%"), np.round(np.nanpercentile(offs_us, [5, 50, 95]), 2).tolist(), strict=True)
            )
            rows.append(
                {"after s": age, "kernels": len(starts_ns), **{f"rise behind start us, {k}": v for k, v in shares.items()}}
            )
            rows[-1] |= {
                "error of kernels ns": trace.metadata.kernel_error_ns,
                "error of the host ns": trace.metadata.host_error_ns,
            }
    return rows


def _rise_ns(time_ns: Any, value: Any, start_ns: int) -> float:
    """Return how far behind a kernel's start the counter rises: within the first sample that is not idle, by its share."""
    near = np.flatnonzero((time_ns > start_ns - 1_500_000) & (time_ns < start_ns + 1_500_000))
    busy = near[np.nan_to_num(value[near]) > 5]
    if not len(busy) or busy[0] + 2 >= len(value):
        return float("nan")
    first = busy[0]
    share = min(1.0, value[first] / max(value[first + 1], value[first + 2]))
    return float(time_ns[first + 1] - share * (time_ns[first + 1] - time_ns[first]) - start_ns)


def cost(every_us: float, _age_s: float) -> list[dict[str, Any]]:
    """Measure what the sampling takes of the host: cores, and how much a busy Python thread is slowed down."""
    from gpustreamlab import Session

    def spin() -> int:
        until_s, count = time.perf_counter() + 1, 0
        while time.perf_counter() < until_s:
            count += 1
        return count

    with Session("cuda", capture="ranges") as lab:
        alone = statistics.median(spin() for _ in range(3))
        rows = []
        for groups in (("sm",), ("sm", "tensor", "dram", "pcie")):
            with lab.counters(*groups, every_us=every_us):
                began_s = time.process_time()
                time.sleep(2)
                cores = (time.process_time() - began_s) / 2
                beside = spin()
            rows.append({"groups": " ".join(groups), "cores": round(cores, 3), "python slowed": round(alone / beside, 3)})
        missing = np.isnan(lab.trace.counters.value).sum()
    return [*rows, {"groups": "all", "samples": len(lab.trace.counters), "missing": int(missing)}]


PARTS: dict[str, Callable[[float, float], list[dict[str, Any]]]] = {
    "opening": opening,
    "loads": loads,
    "durations": durations,
    "clock": clock,
    "cost": cost,
}

if __name__ == "__main__":
    main()
