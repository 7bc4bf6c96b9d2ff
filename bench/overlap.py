"""How long `overlap()` takes, beside the sweep that a user would write in pandas.

Run ``python bench/overlap.py [--spans N ...] [--json PATH]``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from gpustreamlab.analysis import overlap
from gpustreamlab.model import Device, Lane, Trace, TraceMetadata

LANE_COUNT = 16
REPEATS = 3


def make_trace(span_count: int) -> Trace:
    """Return spans in time order; those of one lane do not overlap, as on a stream."""
    rng = np.random.default_rng(0)
    lane = rng.integers(0, LANE_COUNT, span_count)
    gap_ns, duration_ns = rng.integers(0, 3_000, span_count), rng.integers(500, 8_000, span_count)
    end_ns = np.empty(span_count, np.int64)
    for code in range(LANE_COUNT):
        rows = lane == code
        end_ns[rows] = np.cumsum(gap_ns[rows] + duration_ns[rows])
    start_ns = end_ns - duration_ns
    order = np.argsort(start_ns, kind="stable")
    zeros = np.zeros(span_count, np.int8)
    return Trace(
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        queued_ns=start_ns[order],
        lane=lane[order],
        name=zeros,
        kind=zeros,
        parent=zeros - 1,
        thread=zeros,
        names=("kernel",),
        threads=("MainThread",),
        lanes=tuple(Lane(name=f"stream {code}", stream=code) for code in range(LANE_COUNT)),
        metadata=TraceMetadata(backend="sim", device=Device(name="bench", sm_count=1, simulated=True)),
    )


def pandas_sweep(trace: Trace) -> np.ndarray:
    """Compute the same matrix as a user would: all edges in one frame, sorted, a running mask of lanes, grouped."""
    bit = np.left_shift(1, trace.lane.astype(np.int64))
    frame = pd.DataFrame({"time": np.concatenate([trace.start_ns, trace.end_ns]), "change": np.concatenate([bit, -bit])})
    frame = frame.sort_values("time", kind="stable")
    mask = frame["change"].cumsum()
    lasting = frame["time"].diff().shift(-1)
    sums = lasting.groupby(mask).sum()
    lanes = (sums.index.to_numpy()[:, None] >> np.arange(LANE_COUNT)) & 1
    return lanes.T @ (lanes * sums.to_numpy()[:, None])


def measure(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(REPEATS):
        gc.collect()
        begin = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin)
    return statistics.median(times_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'spans':>12} {'overlap, s':>12} {'pandas, s':>12} {'ratio':>8}")
    for span_count in options.spans:
        trace = make_trace(span_count)
        ours_s, pandas_s = measure(lambda trace=trace: overlap(trace)), measure(lambda trace=trace: pandas_sweep(trace))
        if not np.array_equal(overlap(trace).common_ns, pandas_sweep(trace).astype(np.int64)):
            raise SystemExit("The two do not agree.")
        rows.append({"spans": span_count, "overlap_s": ours_s, "pandas_s": pandas_s})
        print(f"{span_count:>12,} {ours_s:>12.3f} {pandas_s:>12.3f} {pandas_s / ours_s:>7.1f}x")
    if options.json:
        facts = {"bench": "overlap", "lanes": LANE_COUNT, "repeats": REPEATS, "cores": os.cpu_count()}
        facts |= {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__}
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
