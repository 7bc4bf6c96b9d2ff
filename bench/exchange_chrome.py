"""How long it takes to write a million spans as Chrome's JSON, and to read them back.

Beside it, ``json.dumps`` of the same events, which is what a writer by hand does. Figures are medians over the
rounds, each of a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench._common import median_seconds, report
from bench._traces import make_trace
from gpustreamlab.exchange._chrome import read_chrome
from gpustreamlab.exchange._chrome_write import write_chrome

NEEDS_GPU = False
SPAN_COUNT = 1_000_000
ROUNDS = 3


def main(argv: list[str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        jobs: list[tuple[str, str, Callable[[Any, Path], object]]] = [
            ("write Chrome JSON", "run.json", write_chrome),
            ("write Chrome JSON, packed", "run.json.gz", write_chrome),
            ("read it back", "run.json", _read_chrome),
            ("read it back, packed", "run.json.gz", _read_chrome),
            ("json.dumps of the same events", "run.json", _dump_again),
        ]
        rows = [_row(name, place / file, work) for name, file, work in jobs]
    report(f"{SPAN_COUNT:,} spans as files (median of {ROUNDS} rounds)", rows, argv)


def _row(name: str, path: Path, work: Callable[[Any, Path], object]) -> dict[str, Any]:
    """Return a row of the table; each job has a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        seconds = pool.apply(_measure, (work, path))
    return {"what": name, "s": seconds, "file MB": round(path.stat().st_size / 1e6, 1)}


def _measure(work: Callable[[Any, Path], object], path: Path) -> float:
    trace: Any = json.loads(path.read_bytes())["traceEvents"] if work is _dump_again else make_trace(SPAN_COUNT)
    return median_seconds(partial(work, trace, path), rounds=ROUNDS)


def _read_chrome(_: object, path: Path) -> object:
    return read_chrome(path)


def _dump_again(events: object, _: Path) -> object:
    return json.dumps(events)


if __name__ == "__main__":
    main(sys.argv[1:])
