"""All cards of a node: what recording them at once costs beside one, copies between each pair, and how far clocks are apart.

Each card has a thread that launches small kernels on a stream; one card and all of them, recorded and with nothing on, in
processes of their own in turn. Beside the time that the cards' clocks are off, by a flag in host memory, stands the bound that
the trace states.

Needs two GPUs or more: ``python -m bench.cards --json bench/results/cards.json``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench._common import report

NEEDS_GPU = True
LAUNCHES = 20_000
ROUNDS = 5
COPIES = 5
COPY_BYTES = 256 << 20
LIMIT_S = 200.0


def main(argv: list[str] | None = None) -> None:
    import cupy

    cards = cupy.cuda.runtime.getDeviceCount()
    counts = [count for count in (1, 2, 4, 8) if count <= cards]
    times: dict[tuple[int, bool], list[dict[str, float]]] = {}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for _, count, is_recorded in itertools.product(range(ROUNDS), counts, (False, True)):
            times.setdefault((count, is_recorded), []).append(
                pool.submit(launch, count, is_recorded=is_recorded).result(LIMIT_S)
            )
        rows = [_cost(count, times[count, False], times[count, True]) for count in counts]
        rows += pool.submit(pairs, cards).result(LIMIT_S)
    report(f"{cards} cards of a node: cost of recording at once, copies, clocks (medians of {ROUNDS})", rows, argv)


def _cost(count: int, off: list[dict[str, float]], on: list[dict[str, float]]) -> dict[str, Any]:
    def median(told: list[dict[str, float]], name: str) -> float:
        return statistics.median(one[name] for one in told)

    return {
        "what": f"{count} card{'s' if count > 1 else ''}, {LAUNCHES:,} launches each",
        "off, us a launch": median(off, "launch_us"),
        "recorded / off": median(on, "launch_us") / median(off, "launch_us"),
        "host threads more": median(on, "threads") - median(off, "threads"),
        "MB more": median(on, "mb") - median(off, "mb"),
        "trace, us a kernel": median(on, "trace_us"),
        "kernels lost": sum(one["lost"] for one in on),
    }


def launch(count: int, *, is_recorded: bool) -> dict[str, float]:
    """Return what launching on some cards at once takes, with a node that records, or with nothing on."""
    import cupy

    from gpustreamlab import Node
    from gpustreamlab.typing import SpanKind

    kernels = []
    for card in range(count):
        with cupy.cuda.Device(card):
            x = cupy.zeros(1024, cupy.float32)
            kernels.append((cupy.cuda.Stream(non_blocking=True), cupy.ElementwiseKernel("", "float32 x", "x += 1", "more"), x))
            kernels[-1][1](x)
    node = Node(backend="cuda", devices=range(count), capture="kernels") if is_recorded else None
    begin, ends_s = threading.Barrier(count + 1), []

    def work(card: int) -> None:
        stream, kernel, x = kernels[card]
        with cupy.cuda.Device(card), stream:
            kernel(x)
            stream.synchronize()
            begin.wait()
            for _ in range(LAUNCHES):
                kernel(x)
            stream.synchronize()
            ends_s.append(time.perf_counter())

    threads = [threading.Thread(target=work, args=(card,)) for card in range(count)]
    for thread in threads:
        thread.start()
    mb_before = _resident_mb()
    begin.wait()
    began_s = time.perf_counter()
    busy = len(list(Path("/proc/self/task").iterdir()))
    for thread in threads:
        thread.join()
    found = {"launch_us": (max(ends_s) - began_s) / LAUNCHES * 1e6, "threads": busy, "lost": 0.0, "trace_us": 0.0}
    if node is not None:
        began_s = time.perf_counter()
        trace = node.trace
        found["trace_us"] = (time.perf_counter() - began_s) / (LAUNCHES * count) * 1e6
        found["lost"] = float(LAUNCHES * count + count - len(trace.where(kind=SpanKind.KERNEL)))
    found["mb"] = _resident_mb() - mb_before
    if node is not None:
        node.close()
    return found


def pairs(cards: int) -> list[dict[str, Any]]:
    """Return for each pair of cards how far their clocks are off, and how copies go, once as it comes and once as peers."""
    import cupy

    from gpustreamlab import Node

    rows = []
    with Node(backend="cuda") as node:
        for card in range(cards):
            node.stream(f"s{card}", device=card)
        for one, other in itertools.combinations(range(cards), 2):
            flag = clocks(node, one, other)
            rows.append({"what": f"clocks of GPU {one} and {other}"} | flag)
        for one, other in itertools.permutations(range(cards), 2):
            rows.append(_copies(node, one, other))
        for one, other in itertools.permutations(range(cards), 2):
            with cupy.cuda.Device(one):
                cupy.cuda.runtime.deviceEnablePeerAccess(other)
        for one, other in itertools.permutations(range(cards), 2):
            rows.append(_copies(node, one, other))
    return rows


def clocks(node: Any, one: int, other: int) -> dict[str, float]:
    """Compare what the node takes the clocks to be apart with a flag that goes back and forth."""
    from gpustreamlab.model import shifted_moment

    backends = node._backends
    at_ns = backends[other].host_to_clock_ns(backends[other].glance_ns())
    by_flag_ns = backends[other].ahead_of(backends[one])[0]
    ahead = node._clocks.ahead()
    by_node_ns = sum(sign * (shifted_moment(at_ns, ahead[card]) - at_ns) for sign, card in ((1, other), (-1, one)))
    return {
        "off by a flag, us": abs(by_node_ns - by_flag_ns) / 1e3,
        "stated bound, us": node.trace.metadata.clock_error_ns / 1e3,
    }


def _copies(node: Any, one: int, other: int) -> dict[str, Any]:
    import cupy

    node.clear()
    with cupy.cuda.Device(one):
        source = cupy.zeros(COPY_BYTES, cupy.uint8)
    with cupy.cuda.Device(other):
        target = cupy.zeros(COPY_BYTES, cupy.uint8)
    node.synchronize()
    said_ms = []
    for _ in range(COPIES):
        with node.on(f"s{one}"):
            stream = cupy.cuda.get_current_stream()
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            cupy.cuda.runtime.memcpyPeerAsync(target.data.ptr, other, source.data.ptr, one, COPY_BYTES, stream.ptr)
            end.record(stream)
            end.synchronize()
            said_ms.append(cupy.cuda.get_elapsed_time(begin, end))
    node.synchronize()
    trace = node.trace.where(kind="copy")
    peer = [row for row, code in enumerate(trace.name) if "PtoP" in trace.names[code]]
    name = trace.names[trace.name[peer[-1]]]
    return {
        "what": f"GPU {one} to {other}: {name}",
        "GB/s": COPY_BYTES / float(np.median(trace.duration_ns[peer])),
        "GB/s by events": COPY_BYTES / statistics.median(said_ms) / 1e6,
    }


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


if __name__ == "__main__":
    main()
