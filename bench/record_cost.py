"""What `gpustreamlab record` costs a program that replays a CUDA graph: tokens a second of GPT-2, in fresh processes in turn.

Each token is one launch of a graph of some 150 kernels, and one value that the host reads. Beside it torch.profiler, and the
floor: CUPTI's records of whole graphs, which nobody reads.

    python -m bench.record_cost --json bench/results/record_cost.json [--rounds 5]
"""

from __future__ import annotations

import argparse
import math
import os
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
from bench.capture_cost import floor, profiler

NEEDS_GPU = True
SECONDS = 2.0
LIMIT_S = 120
RECORD = (sys.executable, "-m", "gpustreamlab", "record", "--quiet", "--force")
TOOLS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "floor: records of whole graphs": ("--tool", "floor"),
    "gpustreamlab record (whole graphs)": RECORD,
    "gpustreamlab record --graphs nodes": (*RECORD, "--graphs", "nodes"),
    "torch.profiler": ("--tool", "profiler"),
}


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
                rates.append(_in_a_process(TOOLS[tool], Path(folder)))
                print(tool, rates[-1], flush=True)
    rows: list[dict[str, Any]] = [
        {"recorded by": tool, "tokens a second": round(statistics.median(rates), 1)} for tool, rates in found.items()
    ]
    for row, rates in zip(rows, found.values(), strict=True):
        row["times alone"] = round(statistics.median(map(truediv, rates, found["nothing"])), 3)
        row["processes"] = len(rates)
    report(f"GPT-2 decodes by replays of a CUDA graph (medians of {options.rounds} processes each, in turn)", rows, rest)


def _in_a_process(tool: tuple[str, ...], folder: Path) -> float:
    program = [sys.executable, "-m", "bench.record_cost"]
    if tool[:1] == (sys.executable,):
        command = [*tool, "--page", str(folder / "page.html"), "--", *program, "--tool", ""]
    else:
        command = [*program, *(tool or ("--tool", ""))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ)
    if done.returncode:
        print(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2_000:]}", flush=True)
        return math.nan
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
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768)).cuda().half().eval()
    tokens = torch.randint(0, 50_000, (1, 64), device="cuda")

    def step() -> None:
        newest = model(tokens, use_cache=False).logits[:, -1:].argmax(-1)
        tokens.copy_(torch.cat((tokens[:, 1:], newest), 1))

    with torch.no_grad():
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

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
