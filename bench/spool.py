"""What a spool costs: time and bytes for each span, beside writing the raw rows and saving the whole trace as Parquet.

The rows are like those of 4 streams with nested ranges and kernels. The floor is one ``write`` of the rows as they are. Parquet
is what a user would do instead, every time for the whole trace, since a Parquet file that is not finished cannot be read.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench._common import median_seconds, report
from gpustreamlab import Session, load_trace
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.model import Lane
from gpustreamlab.recorder import SPAN_COLUMNS, Recorder
from gpustreamlab.sinks._spool_format import SpoolFile
from gpustreamlab.sinks.spool import Spool

BATCHES = (100, 4_000, 100_000)
"""Spans between two refreshes: 500, 20,000 and 500,000 a second."""
ROUNDS = 9
RANGES = 20_000
NAMES = 20


def main(argv: list[str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [_measure(Path(folder), span_count) for span_count in BATCHES]
        rows.append(_measure_user(Path(folder)))
    report(f"A spool beside a plain write and Parquet (median of {ROUNDS} rounds)", rows, argv)


def _measure(folder: Path, span_count: int) -> dict[str, Any]:
    """Measure one refresh of so many new spans."""
    raw = _rows(span_count, 0).tobytes()
    path = folder / f"{span_count}.gsl"
    recorder = _recorder()
    spool = Spool(SpoolFile(path), recorder, refresh_hz=1)
    took_s, sizes = [], []
    for number in range(ROUNDS):
        recorder.log.append(_rows(span_count, number))
        before_bytes = spool.size_bytes
        began = time.perf_counter()
        spool.refresh()
        took_s.append(time.perf_counter() - began)
        sizes.append(spool.size_bytes - before_bytes)
    spool.close()
    trace = load_trace(path)
    saved = folder / "run.parquet"
    save_s = median_seconds(lambda: trace.save(saved), rounds=ROUNDS)
    return {
        "what": f"{span_count:,} new spans",
        "plain write us a span": round(
            median_seconds(lambda: _write(folder / "raw", raw), rounds=ROUNDS) / span_count * 1e6, 4
        ),
        "spool us a span": round(statistics.median(took_s) / span_count * 1e6, 3),
        "spool ms": round(statistics.median(took_s) * 1e3, 2),
        "plain bytes": len(raw) // span_count,
        "spool bytes": round(statistics.median(sizes) / span_count, 1),
        "Parquet us a span": round(save_s / len(trace) * 1e6, 3),
        "Parquet bytes": round(saved.stat().st_size / len(trace), 1),
        "load us a span": round(median_seconds(lambda: load_trace(path), rounds=3) / len(trace) * 1e6, 3),
    }


def _measure_user(folder: Path) -> dict[str, Any]:
    """Measure ranges of the user with and without a spool, in turns, on the simulated device."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(ROUNDS):
        for is_spooled in (False, True):
            with Session("sim", spool=folder / f"user-{number}.gsl" if is_spooled else None, capture="ranges") as lab:
                lab.stream("copy")
                began = time.perf_counter()
                for _ in range(RANGES):
                    with lab.on("copy", "step"):
                        pass
                times[is_spooled].append((time.perf_counter() - began) / RANGES * 1e6)
    return {
        "what": f"{RANGES:,} ranges of the user",
        "range us without": round(statistics.median(times[False]), 3),
        "range us with": round(statistics.median(times[True]), 3),
        "ratio": round(statistics.median(spooled / plain for plain, spooled in zip(times[False], times[True], strict=True)), 3),
    }


def _recorder() -> Recorder:
    backend = SimBackend()
    recorder = Recorder(backend)
    for number in range(4):
        stream = backend.create_stream(priority=0)
        recorder.add_lane(Lane(name=f"stream-{number}"), stream)
    for number in range(NAMES):
        recorder.prepare(f"range {number}")
    recorder.thread_state()
    return recorder


def _rows(span_count: int, place: int) -> np.ndarray:
    """Return spans of a run, of which as many times as many stand before them."""
    chance = np.random.default_rng(place)
    number = place * span_count + np.arange(span_count)
    start_ns = 10**12 + 60_000 * span_count * place + np.cumsum(chance.integers(1_000, 60_000, span_count))
    columns = {
        "start_ns": start_ns,
        "end_ns": start_ns + chance.integers(2_000, 50_000, span_count),
        "queued_ns": start_ns - chance.integers(1_000, 5_000, span_count),
        "lane": chance.integers(0, 4, span_count),
        "name": chance.integers(0, NAMES, span_count),
        "parent": np.where(chance.random(span_count) < 0.5, number - 1, -1),
        "partition": np.full(span_count, -1),
        "detail": np.full(span_count, -1),
        "number": number,
        "correlation": 3 * number,
    }
    return np.stack([columns.get(name, np.zeros(span_count)).astype(np.int64) for name in SPAN_COLUMNS])


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, data)
    os.close(descriptor)


if __name__ == "__main__":
    main()
