"""How long a trace is, and in how many streams: by what ran on the device; calls of the host do not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpustreamlab.analysis._busy import stream_count
from gpustreamlab.analysis._concurrency import Concurrency
from gpustreamlab.model import Trace
from gpustreamlab.typing import LaneKind


def stream_extent(trace: Trace) -> tuple[int, int]:
    """Return the first start and the last end of all spans on streams, on the trace's clock; 0, 0 where there are none.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 20, 30], end_ns=[25, 90, 100], queued_ns=[0, 20, 30], lane=[1, 0, 1], name=[0, 1, 0], kind=[5, 1, 5],
    ...     parent=[-1, -1, -1], thread=[0, 0, 0], names=("cudaLaunchKernel", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="compute", stream=1), Lane(name="host: MainThread", kind="host")),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> stream_extent(trace)
    (20, 90)
    """
    if all(lane.kind is LaneKind.STREAM for lane in trace.lanes):
        return (int(trace.start_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    own = np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes])[trace.lane]
    return (int(trace.start_ns[own].min()), int(trace.end_ns[own].max())) if own.any() else (0, 0)


def over_wall(trace: Trace, result: Concurrency) -> Concurrency:
    """Return how much ran at once with shares of the whole time of all streams, as every headline writes it."""
    first_ns, last_ns = stream_extent(trace)
    return replace(result, wall_ns=last_ns - first_ns)


def used_stream_count(trace: Trace) -> int:
    """Return how many streams have spans; of a trace without spans, as a live view has, how many streams there are."""
    return len(used_streams(trace)) if len(trace) else stream_count(trace)


def used_streams(trace: Trace) -> list[int]:
    """Return the places of the lanes that are streams and have spans."""
    counts = np.bincount(trace.lane, minlength=len(trace.lanes)).tolist()
    return [place for place, lane in enumerate(trace.lanes) if lane.kind is LaneKind.STREAM and counts[place]]
