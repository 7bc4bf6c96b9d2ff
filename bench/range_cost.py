"""What one range costs the host, beside the raw calls that it cannot do without, and torch's record_function.

The floor is two raw event records and an NVTX push and pop with prepared attributes. Rounds are interleaved, ratios are
taken within a round, and medians over the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from bench._common import report
from gpustreamlab import Session, Stream

NEEDS_GPU = True
CALLS = 2_000
ROUNDS = 25


def main(argv: list[str] | None = None) -> None:
    with Session("cuda", capture="ranges") as lab:
        works = _works(lab)
        times: dict[str, list[float]] = {name: [] for name in works}
        for round_number in range(ROUNDS + 2):
            for name, work in works.items():
                lab.synchronize()
                began = time.perf_counter()
                work()
                if round_number >= 2:
                    times[name].append((time.perf_counter() - began) / CALLS * 1e6)
                    if name == "range":
                        began = time.perf_counter()
                        lab.synchronize()
                        times.setdefault("collecting it later", []).append((time.perf_counter() - began) / CALLS * 1e6)
    rows = [
        {
            "what": name,
            "host us a range": round(statistics.median(values), 3),
            "times the floor": _ratio(values, times["floor"]),
            "times CuPy's with": _ratio(values, times["floor + CuPy's with stream"]),
        }
        for name, values in times.items()
    ]
    report(f"Host cost of one range (median of {ROUNDS} rounds of {CALLS:,})", rows, argv)


def _ratio(values: list[float], others: list[float]) -> float:
    return round(statistics.median(value / other for value, other in zip(values, others, strict=True)), 2)


def _works(lab: Session) -> dict[str, Callable[[], None]]:
    import cupy
    import nvtx

    stream = lab.stream("a")
    domain = nvtx.get_domain("bench")
    attributes = domain.get_event_attributes(message="x")
    events = [(lab._backend.acquire_event(), lab._backend.acquire_event()) for _ in range(CALLS)]
    record = stream._backend_stream.core.record

    def floor() -> None:
        for start, end in events:
            domain.push_range(attributes)
            record(start)
            record(end)
            domain.pop_range()

    def floor_selected() -> None:
        for start, end in events:
            with cupy_stream:
                domain.push_range(attributes)
                record(start)
                record(end)
                domain.pop_range()

    def ranges() -> None:
        with lab.on(stream):
            for _ in range(CALLS):
                with lab.range("x"):
                    pass

    lab.partition({"p": 32, "rest": "rest"})
    cupy_stream = cupy.cuda.Stream.from_external(stream)
    works = {
        "floor": floor,
        "range": ranges,
        "floor + CuPy's with stream": floor_selected,
        "lab.on (selection + range)": partial(_select, lab, stream),
        "lab.on, a stream of a partition": partial(_select, lab, lab.stream("confined", partition="p")),
    }
    return works | _torch_works()


def _select(lab: Session, stream: Stream) -> None:
    for _ in range(CALLS):
        with lab.on(stream, "x"):
            pass


def _torch_works() -> dict[str, Callable[[], None]]:
    try:
        import torch
    except ImportError:
        return {}

    def record_function() -> None:
        for _ in range(CALLS):
            with torch.profiler.record_function("x"):
                pass

    def torch_events() -> None:
        for _ in range(CALLS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            end.record()

    return {"torch record_function (no profiler, no times)": record_function, "torch event pair, made anew": torch_events}


if __name__ == "__main__":
    main()
