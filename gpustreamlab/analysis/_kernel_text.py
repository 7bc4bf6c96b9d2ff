"""What only the kernel tier tells, in words: windows of capture, queueing, strays, waits of the host."""

from __future__ import annotations

import numpy as np

from gpustreamlab.analysis._busy import Basis, basis_of, uncut_ns
from gpustreamlab.analysis._host_waits import capture_edges, host_waits
from gpustreamlab.analysis._host_waits_text import wait_line
from gpustreamlab.analysis._sm_time import interval_sum_ns
from gpustreamlab.analysis._strays import strays
from gpustreamlab.analysis._strays_text import stray_line
from gpustreamlab.analysis._units import format_ns, format_share
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import CaptureTier, SpanKind

WHOLE_SHARE = 0.995
"""Share of the time from which on kernels count as captured throughout."""


def kernel_lines(trace: Trace) -> list[str]:
    """Say what kernels and calls tell of queueing, strays and waits of the host, one line each."""
    found, waits = strays(trace), host_waits(trace)
    lines = [queueing_line(trace)]
    lines += [f"Strays: {stray_line(found)}: see strays()"] if found else []
    lines += [f"Host: {wait_line(waits)}"] if waits else []
    return [line for line in lines if line]


def capture_facts(trace: Trace, basis: Basis | None = None) -> list[str]:
    """Say when kernels were captured, where that was not all the time.

    Parameters
    ----------
    trace
        The spans.
    basis
        What its figures are of; None to find out.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 60], end_ns=[50, 100], queued_ns=[0, 0], lane=[0, 0], name=[0, 0], kind=[0, 1], parent=[-1, -1],
    ...     thread=[0, 0], names=("step",), threads=("MainThread",), lanes=(Lane(name="compute", stream=1),),
    ...     metadata=TraceMetadata(
    ...         backend="sim", device=Device(name="demo", sm_count=4), tier="kernels", capture_windows=((55, 80), (90, 100))
    ...     ),
    ... )
    >>> capture_facts(trace)
    ['kernels captured in 2 windows, 35% of the time: elsewhere ranges count']
    """
    windows = trace.metadata.capture_windows
    if not windows:
        return []
    basis = basis_of(trace) if basis is None else basis
    if basis.tier is CaptureTier.RANGES:
        return ["kernels were captured at other times only"]
    if not len(trace):
        return [f"kernels captured in {len(windows):,} windows"] if len(windows) > 1 else []
    wall_ns, edges_ns = int(trace.end_ns.max()) - int(trace.start_ns.min()), capture_edges(trace)
    where = f" in {len(edges_ns) // 2:,} windows" if len(edges_ns) > 2 else ""
    share = interval_sum_ns(edges_ns) / wall_ns if wall_ns else 1.0
    if share >= WHOLE_SHARE:
        return []
    elsewhere = ": elsewhere ranges count" if SpanKind.RANGE in basis.counted else ""
    return [f"kernels captured{where}{',' if where else ''} {format_share(share)} of the time{elsewhere}"]


def queueing_line(trace: Trace) -> str:
    """Say how long kernels waited between their launch and their start; empty where there are none."""
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    waited_ns = uncut_ns(trace)[0][rows] - trace.queued_ns[rows]
    if not waited_ns.any():
        return ""
    median, most = format_ns(float(np.median(waited_ns))), format_ns(int(waited_ns.max()))
    return f"Queueing: kernels start {median} after their launch (median), at most {most}"
