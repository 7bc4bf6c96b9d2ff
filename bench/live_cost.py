"""What a live view costs the code that it watches: the same loop without one, with one, and with 1M spans/s recorded beside it.

The view is updated 10 times a second. The floor is the loop alone. Rounds are interleaved, ratios are taken within a round, and
medians over the rounds. What the view would put on the wire is packed, and counted instead of sent.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from bench._common import report
from gpustreamlab import Session
from gpustreamlab._util.background import Updater
from gpustreamlab.recorder import SPAN_COLUMNS, Recorder
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.typing import Int64Array

LOOP_S = 1.0
ROUNDS = 7
POUR_HZ = 20
POURED_A_SECOND = 1_000_000
DURATION_NS = 700


def main(argv: list[str] | None = None) -> None:
    with Session(capture="ranges") as lab:
        lab.stream("a"), lab.stream("b")
        cases: dict[str, dict[str, bool]] = {
            "loop alone": {},
            "with a live view": {"is_watched": True},
            "1M spans/s beside it": {"is_poured": True},
            "1M spans/s and a live view": {"is_watched": True, "is_poured": True},
        }
        rounds = [{name: _run(lab, **case) for name, case in cases.items()} for _ in range(ROUNDS + 1)][1:]
    floors = dict.fromkeys(cases, "loop alone") | {"1M spans/s and a live view": "1M spans/s beside it"}
    rows = [_row(name, floors[name], rounds) for name in cases]
    report(f"What a live view costs the code it watches (median of {ROUNDS} rounds of {LOOP_S:.0f} s)", rows, argv)


def _row(name: str, floor: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    figures = [own[name] for own in rounds]
    ratios = [own[floor]["ranges"] / own[name]["ranges"] for own in rounds]
    return {
        "what": name,
        "us a range": round(statistics.median(LOOP_S * 1e6 / own["ranges"] for own in figures), 2),
        "times the loop": f"{statistics.median(ratios):.3f} of {floor!r}",
        "spans a second": round(statistics.median(own["spans"] for own in figures) / LOOP_S),
        "items sent": round(statistics.median(own["items"] for own in figures) / LOOP_S),
        "bytes sent": round(statistics.median(own["bytes"] for own in figures) / LOOP_S),
        "updates": round(statistics.median(own["updates"] for own in figures) / LOOP_S, 1),
    }


def _run(lab: Session, *, is_watched: bool = False, is_poured: bool = False) -> dict[str, float]:
    recorder = lab._recorder  # the bench stands in for a tier that records kernels
    lab.clear()
    sent = {"items": 0, "bytes": 0, "updates": 0}
    with ExitStack() as stack:
        if is_watched:
            stack.enter_context(_watching(recorder, sent))
        poured = stack.enter_context(_pouring(recorder)) if is_poured else []
        ranges = _loop(lab)
    lab.synchronize()
    return {"ranges": ranges, "spans": 2 * ranges + sum(poured), **sent}


def _loop(lab: Session) -> int:
    """Open and close ranges for a second; return how many times. Simulated time passes only when it is waited for."""
    end = time.perf_counter() + LOOP_S
    count = 0
    while time.perf_counter() < end:
        with lab.on("a", "step"):
            for _ in range(200):
                with lab.range("inner"):
                    pass
        count += 200
        if lab.device.simulated:
            lab.synchronize()
    return count


@contextmanager
def _watching(recorder: Recorder, sent: dict[str, int]) -> Iterator[None]:
    feed = LiveFeed(recorder)

    def step() -> bool:
        update = feed.refresh()
        if update is not None:
            sent["items"] += update.facts["manifest"]["n"]
            sent["bytes"] += len(update.blob)
            sent["updates"] += 1
        return True

    updater = Updater(step, name="bench")
    updater.start()
    try:
        yield
    finally:
        updater.stop()


@contextmanager
def _pouring(recorder: Recorder) -> Iterator[list[int]]:
    """Put spans into the recorder's buffer from another thread, as a tier that hands over whole buffers of records does."""
    stopping, poured = threading.Event(), []

    def pour() -> None:
        count, begin_ns = POURED_A_SECOND // POUR_HZ, recorder.now_ns()
        while not stopping.wait(1 / POUR_HZ):
            recorder.log.append(_spans(count, begin_ns, recorder.numbers))
            begin_ns += count * 1_000
            poured.append(count)

    thread = threading.Thread(target=pour, daemon=True)
    thread.start()
    try:
        yield poured
    finally:
        stopping.set()
        thread.join()


def _spans(count: int, begin_ns: int, numbers: Iterator[int]) -> Int64Array:
    start_ns = begin_ns + np.arange(count) * 1_000
    zeros = np.zeros(count, np.int64)
    columns = {
        "start_ns": start_ns,
        "end_ns": start_ns + DURATION_NS,
        "queued_ns": start_ns,
        "lane": zeros + 1,
        "name": zeros,
        "kind": zeros,
        "parent": zeros - 1,
        "thread": zeros,
        "partition": zeros - 1,
        "detail": zeros - 1,
        "size_bytes": zeros,
        "correlation": zeros,
        "number": (1 << 40) + next(numbers) * 10_000_000 + np.arange(count),
    }
    return np.stack([columns[name] for name in SPAN_COLUMNS])


if __name__ == "__main__":
    main()
