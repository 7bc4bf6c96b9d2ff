"""Large traces for benchmarks."""

from __future__ import annotations

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.model import Device, Lane, TraceMetadata

LANE_COUNT = 16
NAME_COUNT = 12


def make_trace(span_count: int) -> Trace:
    """Return spans of 12 names in 16 lanes, in time order; those of one lane do not overlap, as on a stream."""
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
        queued_ns=start_ns[order] - rng.integers(0, 20_000, span_count),
        lane=lane[order],
        name=rng.integers(0, NAME_COUNT, span_count),
        kind=zeros,
        parent=zeros - 1,
        thread=zeros,
        names=tuple(f"kernel {code}" for code in range(NAME_COUNT)),
        threads=("MainThread",),
        lanes=tuple(Lane(name=f"stream {code}", stream=code) for code in range(LANE_COUNT)),
        metadata=TraceMetadata(backend="sim", device=Device(name="bench", sm_count=1, simulated=True)),
    )
