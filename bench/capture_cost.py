"""What recording every kernel and call costs whole programs, beside torch.profiler and the floor: CUPTI's kernel records alone.

Each program runs in a fresh process for each tool and round, the tools of a round one behind the other: some times with nothing
on, as often recorded, as often after the tool is closed. Figures are medians over the rounds of what a process took, as
multiples of what it took with nothing on. Reading is timed apart, with 100,000 kernels at once.

    python -m bench.capture_cost --json bench/results/capture_cost.json [--rounds 5] [--only hazards --only reading]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bench._common import report

NEEDS_GPU = True
RUNS = 5
LAUNCHES = 20_000
READ_KERNELS = 100_000
LIMIT_S = 120.0


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="run the parts that have this in their program or tool")
    options, rest = parser.parse_known_args(argv)
    parts = [part for part in PARTS if not options.only or any(word in " ".join(part) for word in options.only)]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {part: [] for part in parts}
    # Its server has imported all that takes long, so that a process is there at once, and fresh.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch", "cupy", "transformers", "gpustreamlab"])
    with ProcessPoolExecutor(1, mp_context=processes, max_tasks_per_child=1) as pool:
        for _ in range(options.rounds):
            for part, times in found.items():
                times.append(pool.submit(measure, *part).result(LIMIT_S))
                print(*part, times[-1], flush=True)
    rows = [times[0] if program == READING else _row(program, tool, times) for (program, tool), times in found.items()]
    report(f"Programs while recorded and afterwards, as multiples of alone (medians of {options.rounds} processes)", rows, rest)


def _row(program: str, tool: str, times: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians over processes; and, as a host may be busy, the least of one as a multiple of the least of the other."""
    row: dict[str, Any] = {"program": program, "tool": tool}
    row["off ms"] = round(statistics.median(one["off"] for one in times) * 1e3, 3)
    for when in ("recorded", "closed"):
        row[when] = round(statistics.median(one[when] / one["off"] for one in times), 3)
        row[f"{when}, least"] = round(min(one[when] for one in times) / min(one["off"] for one in times), 3)
    return row


def measure(program: str, tool: str) -> dict[str, Any]:
    """Return how long a program takes alone, recorded and afterwards, in seconds, in this process."""
    if program == READING:
        return _reading()
    run = PROGRAMS[program]()
    run(), run()
    found = {"off": _median(run)}
    with TOOLS[tool]():
        run()
        found["recorded"] = _median(run)
    run()
    return found | {"closed": _median(run)}


def _median(run: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


# Programs: each returns what runs once, and waits


def torch_launches() -> Callable[[], None]:
    import torch

    launch = torch_loop(LAUNCHES)

    def run() -> None:
        launch()
        torch.cuda.synchronize()

    return run


def torch_loop(count: int) -> Callable[[], None]:
    """Return what launches so many small kernels by torch, and does not wait."""
    import torch

    x = torch.ones(64, device="cuda")

    def run() -> None:
        for _ in range(count):
            x.add_(1)

    return run


def cupy_launches() -> Callable[[], None]:
    import cupy

    launch = cupy_loop(LAUNCHES)

    def run() -> None:
        launch()
        cupy.cuda.get_current_stream().synchronize()

    return run


def cupy_loop(count: int) -> Callable[[], None]:
    """Return what launches so many empty kernels by CuPy, and does not wait."""
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")

    def run() -> None:
        for _ in range(count):
            kernel((1,), (32,), ())

    return run


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768)).cuda().half().eval()


def decode() -> Callable[[], None]:
    import torch

    model = gpt2()
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

    model = gpt2()
    tokens = torch.randint(0, 50_000, (1, 64), device="cuda")
    graph = captured(lambda: model(tokens, use_cache=False))

    def run() -> None:
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()

    return run


def captured(step: Callable[[], object]) -> Any:
    """Return a CUDA graph of torch of what a function does, which was done before."""
    import torch

    with torch.no_grad():
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph


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
def floor(*, has_nodes: bool = True) -> Iterator[None]:
    """CUPTI's kernel records alone, which nobody reads; without nodes one for each launch of a graph."""
    from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
    from gpustreamlab.backends.cuda.cupti._layouts import RecordKind
    from gpustreamlab.backends.cuda.cupti._library import load_cupti

    cupti = load_cupti()
    ActivityBuffers().register(cupti)
    kinds = (RecordKind.CONCURRENT_KERNEL, *(() if has_nodes else (RecordKind.GRAPH_TRACE,)))
    cupti.enable(kinds)
    try:
        yield
    finally:
        cupti.disable(kinds)
        cupti.call("cuptiActivityFlushAll", 1)
        cupti.detach()


@contextmanager
def ours(hazards: str = "off", *, counters: bool = False) -> Iterator[None]:
    from gpustreamlab import Session

    with Session("cuda", capture="kernels", ring_size=4_000_000, hazards=hazards, counters=counters):
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
    (COUNTERS := "gpustreamlab, counters"): lambda: ours(counters=True),
    (NOTHING := "nothing"): nullcontext,
}
WHERE = {
    HAZARDS: {BY_TORCH, BY_CUPY, DECODING, TRAINING},
    COUNTERS: {BY_TORCH, DECODING, TRAINING},
    NOTHING: {BY_TORCH, TRAINING},
}
"""The programs that a tool is measured with; the others with all."""
READING = "reading"
PARTS = [(program, tool) for program in PROGRAMS for tool in TOOLS if program in WHERE.get(tool, PROGRAMS)] + [(READING, OURS)]


def _reading() -> dict[str, Any]:
    """Time the reading of kernels that lie in CUPTI's buffers, and of the calls that launched them."""
    import cupy

    from gpustreamlab import Session
    from gpustreamlab.typing import SpanKind

    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    times, counts = [], set()
    for _ in range(RUNS):
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
    main()
