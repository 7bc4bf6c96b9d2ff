"""What sharing out the SMs costs: host time of `lab.partition`, and device memory, beside raw calls of cuda.core.

Cached: two layouts in turn with a stream in each partition, all idle, so that the drain is only two calls. New: layouts that
were not there before, per green context. Rounds of ours and of the raw calls are interleaved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from bench._common import report
from gpustreamlab import Session

NEEDS_GPU = True
ROUNDS = 200
NEW_LAYOUTS = 7
CYCLES = 100
LAYOUTS = 10


def main(argv: list[str] | None = None) -> None:
    rows = [*_cached(), *_new(), *_memory()]
    report(f"Sharing out the SMs (cached: median of {ROUNDS}; memory: {CYCLES * LAYOUTS:,} repartitions)", rows, argv)


def _cached() -> list[dict[str, Any]]:
    with Session("cuda", capture="ranges") as lab:
        sizes = [{"a": 8 * groups, "b": "rest"} for groups in (2, 4)]
        lab.partition(sizes[0])
        streams = [lab.stream(name, partition=name) for name in "ab"]
        turn = count()

        def ours() -> None:
            lab.partition(sizes[next(turn) % 2])

        def raw() -> None:
            for stream in streams:
                stream.synchronize()

        ours_us, raw_us = _interleaved(ours, raw, ROUNDS)
    return [
        {"what": "raw: synchronise both streams", "median us": raw_us},
        {"what": "lab.partition, contexts cached, 2 streams move", "median us": ours_us, "goal": "100 us"},
    ]


def _new() -> list[dict[str, Any]]:
    from cuda.core import ContextOptions, Device, SMResourceOptions, StreamOptions

    with Session("cuda", capture="ranges") as lab:
        lab.stream("a")
        device = Device(0)
        sms = device.resources.sm
        assert lab.device.sm_resource is not None
        groups, _ = sms.split(SMResourceOptions(count=(8,) * lab.device.sm_resource.group_count))
        held = []
        sizes = count(1)

        def ours() -> None:
            lab.partition({"a": 8 * next(sizes), "b": "rest"})

        def raw() -> None:
            for part in (groups[:3], groups[3:]):
                context = device.create_context(ContextOptions(resources=part))
                held.append((context, context.create_stream(StreamOptions(nonblocking=True))))

        ours_us, raw_us = _interleaved(ours, raw, NEW_LAYOUTS)
        for context, stream in held:
            stream.close()
            context.close()
    return [
        {"what": "raw: create a context and a stream (cuda.core)", "median us": raw_us / 2},
        {"what": "lab.partition, per new context", "median us": ours_us / 2, "goal": "1,500 us"},
    ]


def _memory() -> list[dict[str, Any]]:
    from cuda.core import ContextOptions, Device, SMResourceOptions

    with Session("cuda", capture="ranges") as lab:
        lab.stream("a")
        sizes = [{"a": 8 * groups, "b": "rest"} for groups in range(1, LAYOUTS + 1)]

        def go_round() -> None:
            for shares in sizes:
                lab.partition(shares)
                lab.stream("a", partition="a")

        first_mib = _lost_mib(go_round)
        later_mib = _lost_mib(lambda: [go_round() for _ in range(CYCLES - 1)])
        device = Device(0)
        groups, _ = device.resources.sm.split(SMResourceOptions(count=(8,) * 8))

        def raw() -> None:
            for _ in range(2 * LAYOUTS):
                device.create_context(ContextOptions(resources=groups[:4])).close()

        raw_mib = _lost_mib(raw)
    return [
        {"what": f"{LAYOUTS} layouts once ({2 * LAYOUTS} contexts)", "device memory MiB": first_mib},
        {"what": f"{(CYCLES - 1) * LAYOUTS} more repartitions among them", "device memory MiB": later_mib, "goal": "0"},
        {"what": f"raw: {2 * LAYOUTS} contexts created and destroyed", "device memory MiB": raw_mib},
    ]


def _interleaved(ours: Callable[[], None], raw: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Return the medians of both, in us."""
    times: dict[str, list[float]] = {"ours": [], "raw": []}
    for _ in range(rounds):
        for name, work in (("ours", ours), ("raw", raw)):
            began = time.perf_counter()
            work()
            times[name].append((time.perf_counter() - began) * 1e6)
    return round(statistics.median(times["ours"]), 1), round(statistics.median(times["raw"]), 1)


def _lost_mib(work: Callable[[], object]) -> float:
    import cupy

    before = cupy.cuda.runtime.memGetInfo()[0]
    work()
    return round((before - cupy.cuda.runtime.memGetInfo()[0]) / 2**20, 1)


if __name__ == "__main__":
    main()
