"""What recording every kernel and call costs whole programs, beside torch.profiler and the floor: CUPTI's kernel records alone.

Each program runs in a fresh process for each tool: five times with nothing on, five times recorded, five times after the tool
is closed; figures are medians, as multiples of the time with nothing on. Reading is timed apart, with 100,000 kernels at once.

    python -m bench.capture_cost --json bench/results/capture_cost.json
    python -m bench.capture_cost --only hazards --only reading  # what has one of these in its program or its tool
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bench._common import report

NEEDS_GPU = True
ROUNDS = 5
LAUNCHES = 20_000
READ_KERNELS = 100_000
CHILD = "CAPTURE_COST_CHILD"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", action="append", default=[], help="run the parts that have this in their program or tool")
    options, argv = parser.parse_known_args(argv)
    rows = []
    for program, tool in PARTS:
        if options.only and not any(word in f"{program} {tool}" for word in options.only):
            continue
        found = _in_a_process(program, tool)
        rows.append(found if program == READING else _row(program, tool, found))
    report(f"Programs while recorded and afterwards, as multiples of alone (medians of {ROUNDS})", rows, argv)


def _row(program: str, tool: str, times: dict[str, float]) -> dict[str, Any]:
    return {
        "program": program,
        "tool": tool,
        "off ms": round(times["off"] * 1e3, 3),
        "recorded": round(times["on"] / times["off"], 3),
        "at most": MOST.get((program, tool), ""),
        "closed": round(times["closed"] / times["off"], 3),
    }


def _in_a_process(program: str, tool: str) -> dict[str, Any]:
    child = [sys.executable, "-W", "ignore", "-m", "bench.capture_cost"]
    done = subprocess.run(
        child, env=os.environ | {CHILD: f"{program}/{tool}"}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"{program} under {tool} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(program, tool, found, flush=True)
    return found


def measure(program: str, tool: str) -> dict[str, Any]:
    """Time a program alone, recorded and afterwards, in this process."""
    if program == READING:
        return _reading()
    run = PROGRAMS[program]()
    run(), run()
    found = {"off": _median(run)}
    with TOOLS[tool]():
        run()
        found["on"] = _median(run)
    run()
    return found | {"closed": _median(run)}


def _median(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


# Programs: each returns what runs once, and waits


def torch_launches() -> Callable[[], None]:
    import torch

    x = torch.ones(64, device="cuda")

    def run() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)
        torch.cuda.synchronize()

    return run


def cupy_launches() -> Callable[[], None]:
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")

    def run() -> None:
        for _ in range(LAUNCHES):
            kernel((1,), (32,), ())
        cupy.cuda.get_current_stream().synchronize()

    return run


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768)).cuda().half().eval()


def decode() -> Callable[[], None]:
    import torch

    model = _gpt2()
    prompt = torch.randint(0, 50_000, (1, 32), device="cuda")

    @torch.no_grad()
    def run() -> None:
        token, cache = prompt, None
        for _ in range(32):
            found = model(token, past_key_values=cache, use_cache=True)
            token, cache = found.logits[:, -1:].argmax(-1), found.past_key_values
        torch.cuda.synchronize()

    return run


def replayed_decode() -> Callable[[], None]:
    import torch

    model = _gpt2()
    tokens = torch.randint(0, 50_000, (1, 64), device="cuda")
    with torch.no_grad():
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                model(tokens, use_cache=False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(tokens, use_cache=False)

    def run() -> None:
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()

    return run


def training() -> Callable[[], None]:
    import torch

    from bench._resnet import resnet50

    model = resnet50(10).cuda().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(0, 10, (32,), device="cuda")

    def run() -> None:
        for _ in range(5):
            optimiser.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        torch.cuda.synchronize()

    return run


def many_streams() -> Callable[[], None]:
    import torch

    streams = [torch.cuda.Stream() for _ in range(32)]

    def run() -> None:
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(1_000_000)
        torch.cuda.synchronize()

    return run


PROGRAMS: dict[str, Callable[[], Callable[[], None]]] = {
    (BY_TORCH := "20,000 launches by torch"): torch_launches,
    (BY_CUPY := "20,000 launches by CuPy"): cupy_launches,
    (DECODING := "GPT-2 decodes 32 tokens"): decode,
    "GPT-2 replayed as a CUDA graph": replayed_decode,
    (TRAINING := "ResNet-50, 5 steps"): training,
    "32 streams of long kernels": many_streams,
}


# Tools: each is on inside its block


@contextmanager
def floor() -> Iterator[None]:
    """CUPTI's kernel records alone, which nobody reads."""
    from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
    from gpustreamlab.backends.cuda.cupti._layouts import RecordKind
    from gpustreamlab.backends.cuda.cupti._library import load_cupti

    cupti = load_cupti()
    ActivityBuffers().register(cupti)
    cupti.enable((RecordKind.CONCURRENT_KERNEL,))
    try:
        yield
    finally:
        cupti.disable((RecordKind.CONCURRENT_KERNEL,))
        cupti.call("cuptiActivityFlushAll", 1)
        cupti.detach()


@contextmanager
def ours(hazards: str = "off") -> Iterator[None]:
    from gpustreamlab import Session

    with Session("cuda", capture="kernels", ring_size=4_000_000, hazards=hazards):
        yield


@contextmanager
def profiler() -> Iterator[None]:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        yield


TOOLS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "floor: kernel records alone": floor,
    (OURS := "gpustreamlab"): ours,
    "torch.profiler": profiler,
    (HAZARDS := "gpustreamlab, hazards"): lambda: ours("report"),
    (NOTHING := "nothing"): nullcontext,
}
WHERE = {HAZARDS: {BY_TORCH, BY_CUPY, DECODING, TRAINING}, NOTHING: {BY_TORCH, TRAINING}}
"""The programs that a tool is measured with; the others with all. So all of it takes less than four minutes of an H200."""
READING = "reading"
PARTS = [(program, tool) for program in PROGRAMS for tool in TOOLS if program in WHERE.get(tool, PROGRAMS)] + [(READING, OURS)]
MOST = {(BY_TORCH, HAZARDS): 1.35, (BY_CUPY, HAZARDS): 1.35, (TRAINING, HAZARDS): 1.1}
"""What issue 42 allows."""


def _reading() -> dict[str, Any]:
    """Time the reading of kernels that lie in CUPTI's buffers, and of the calls that launched them."""
    import cupy

    from gpustreamlab import Session
    from gpustreamlab.typing import SpanKind

    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    times, counts = [], set()
    for _ in range(ROUNDS):
        with Session("cuda", capture="kernels", ring_size=4 * READ_KERNELS) as lab:
            lab.trace  # noqa: B018 - what is read first is settled before
            for _ in range(READ_KERNELS):
                kernel((1,), (32,), ())
            cupy.cuda.get_current_stream().synchronize()
            began_s = time.thread_time()
            lab.synchronize()
            trace = lab.trace
            times.append(time.thread_time() - began_s)
            counts.add(int((trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum()))
    return {
        "program": f"reading {READ_KERNELS:,} kernels",
        "tool": "gpustreamlab",
        "us a kernel, at most": round(statistics.median(times) / READ_KERNELS * 1e6, 3),
        "kernels in the trace": ", ".join(f"{count:,}" for count in sorted(counts)),
    }


if __name__ == "__main__":
    if CHILD in os.environ:
        print(json.dumps(measure(*os.environ[CHILD].split("/"))))
    else:
        main(sys.argv[1:])
