"""How long it takes to write a timeline as one offline page, and how large that is, beside an empty Bokeh page.

Run ``python bench/export.py [--ranges N ...] [--json PATH]``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bokeh
import numpy as np
from bokeh.core.validation import silence
from bokeh.core.validation.warnings import MISSING_RENDERERS
from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE

from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
from gpustreamlab.timeline import Timeline

LANE_COUNT = 16
REPEATS = 5


def make_trace(range_count: int) -> Trace:
    """Return ranges in time order, of 12 names, in 16 lanes."""
    rng = np.random.default_rng(0)
    lane = rng.integers(0, LANE_COUNT, range_count)
    start_ns = np.sort(rng.integers(0, 1_000 * range_count, range_count))
    zeros = np.zeros(range_count, np.int8)
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + rng.integers(500, 8_000, range_count),
        queued_ns=start_ns - rng.integers(0, 20_000, range_count),
        lane=lane,
        name=rng.integers(0, 12, range_count),
        kind=zeros,
        parent=zeros - 1,
        thread=zeros,
        names=tuple(f"kernel {code}" for code in range(12)),
        threads=("MainThread",),
        lanes=tuple(Lane(name=f"stream {code}", stream=code) for code in range(LANE_COUNT)),
        metadata=TraceMetadata(backend="sim", device=Device(name="bench", sm_count=1, simulated=True)),
    )


def write_empty_bokeh(path: Path) -> None:
    """Write what Bokeh itself writes for a figure with nothing in it: the floor."""
    silence(MISSING_RENDERERS)
    path.write_text(file_html(figure(), INLINE, "empty"), encoding="utf-8")


def measure(write: Callable[[Path], object], path: Path) -> tuple[float, float]:
    times_s = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        write(path)
        times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s), path.stat().st_size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranges", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'page':>24} {'s':>8} {'MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        cases: list[tuple[str, int | None, Callable[[Path], object]]] = [("empty Bokeh page", None, write_empty_bokeh)]
        cases += [(f"{count:,} ranges", count, Timeline(make_trace(count)).save) for count in options.ranges]
        for name, count, write in cases:
            seconds, size_mb = measure(write, path)
            rows.append({"page": name, "ranges": count, "seconds": seconds, "size_mb": size_mb})
            print(f"{name:>24} {seconds:>8.3f} {size_mb:>8.2f}")
    if options.json:
        facts = {"bench": "export", "lanes": LANE_COUNT, "repeats": REPEATS, "cores": os.cpu_count()}
        facts |= {"python": platform.python_version(), "bokeh": bokeh.__version__}
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
