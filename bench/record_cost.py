"""What `gpustreamlab record` costs a program that replays a CUDA graph: tokens a second of GPT-2, in fresh processes in turn.

Each token is one launch of a graph of some 150 kernels, and one value that the host reads. Beside it torch.profiler, and the
floor: CUPTI's records of whole graphs, which nobody reads.

    python -m bench.record_cost --json bench/results/record_cost.json [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import truediv
from pathlib import Path
from typing import Any

from bench._common import report
from bench.capture_cost import captured, floor, gpt2, profiler

NEEDS_GPU = True
SECONDS = 2.0
LIMIT_S = 120
RECORD = (sys.executable, "-m", "gpustreamlab", "record", "--quiet", "--force")
TOOLS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), ""),
    "floor: records of whole graphs": ((), "floor"),
    "gpustreamlab record (whole graphs)": (RECORD, ""),
    "gpustreamlab record --graphs nodes": ((*RECORD, "--graphs", "nodes"), ""),
    "torch.profiler": ((), "profiler"),
}
"""What runs the program, and what is on within its process."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tool", choices=["", "floor", "profiler"])
    options, rest = parser.parse_known_args(argv)
    if options.tool is not None:
        print(tokens_a_second(options.tool))
        return
    found: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for tool, rates in found.items():
                rates.append(_in_a_process(*TOOLS[tool], Path(folder)))
                print(tool, rates[-1], flush=True)
    rows: list[dict[str, Any]] = [
        {"recorded by": tool, "tokens a second": round(statistics.median(rates), 1)} for tool, rates in found.items()
    ]
    for row, rates in zip(rows, found.values(), strict=True):
        row["times alone"] = round(statistics.median(map(truediv, rates, found["nothing"])), 3)
        row["processes"] = len(rates)
    report(f"GPT-2 decodes by replays of a CUDA graph (medians of {options.rounds} processes each, in turn)", rows, rest)


def _in_a_process(recorder: tuple[str, ...], tool: str, folder: Path) -> float:
    around = [*recorder, "--page", str(folder / "page.html"), "--"] if recorder else []
    command = [*around, sys.executable, "-m", "bench.record_cost", "--tool", tool]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return float(done.stdout.split()[-1])


def tokens_a_second(tool: str) -> float:
    """Decode for some seconds in this process, by one launch of a graph and one read of the host a token."""
    # From the start: CUPTI 13.0 dies of a launch of a graph that was made before whole graphs were recorded.
    with {"": nullcontext, "floor": partial(floor, has_nodes=False), "profiler": profiler}[tool]():
        decode = _decoding()
        decode(0.5)
        return decode(SECONDS)


def _decoding() -> Callable[[float], float]:
    import torch

    model = gpt2()
    tokens = torch.randint(0, 50_000, (1, 64), device="cuda")

    def step() -> None:
        newest = model(tokens, use_cache=False).logits[:, -1:].argmax(-1)
        tokens.copy_(torch.cat((tokens[:, 1:], newest), 1))

    graph = captured(step)

    def decode(seconds: float) -> float:
        count, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < seconds:
            graph.replay()
            int(tokens[0, -1])
            count += 1
        return count / (time.perf_counter() - began_s)

    return decode


if __name__ == "__main__":
    main()
