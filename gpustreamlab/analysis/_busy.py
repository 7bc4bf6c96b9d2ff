"""When each lane was busy: the union of its spans."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array, SpanKind

DEVICE_WORK = (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)
"""Kinds of spans that are work on the device, whatever the tier."""

THREADED_ROWS = 500_000
"""From how many rows on a second thread pays."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def counted_kinds(trace: Trace) -> tuple[SpanKind, ...]:
    """Say which kinds of spans count as busy time in this trace.

    Waits, host work and markers never do. Where the trace holds kernels, copies and fills, only those do: the ranges around
    them also contain the queueing.

    Returns
    -------
    tuple of SpanKind
        In the order of `SpanKind`.
    """
    codes = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
    if trace.metadata.tier is CaptureTier.KERNELS and np.isin(trace.kind, codes).any():
        return DEVICE_WORK
    return (SpanKind.RANGE, *DEVICE_WORK)


def counted_rows(trace: Trace, kinds: Sequence[SpanKind]) -> BoolArray:
    """Tell which rows of the trace are of one of the kinds; shape (n_spans,), bool."""
    table = np.array([kind in kinds for kind in SPAN_KINDS])
    return table[trace.kind]


def busy_edges(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> list[Int64Array]:
    """Return when each lane became busy and idle.

    Nested, repeated and touching spans count once; spans of no length do not count.

    Parameters
    ----------
    trace
        The spans.
    kinds
        Kinds that count as busy; None means `counted_kinds`.

    Returns
    -------
    list of ndarray of int64, shape (2 * n_intervals,)
        One array a lane, strictly increasing, in ns: start, end, start, end and so on.
    """
    rows, offsets = _rows_by_lane(trace, counted_rows(trace, counted_kinds(trace) if kinds is None else kinds))

    def edges_of(lane: int) -> Int64Array:
        part = slice(int(offsets[lane]), int(offsets[lane + 1]))
        if rows is None:
            return union_edges(trace.start_ns[part], trace.end_ns[part])
        return union_edges(trace.start_ns[rows[part]], trace.end_ns[rows[part]])

    return map_threaded(edges_of, range(len(trace.lanes)), row_count=len(trace))


def union_edges(start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the union of intervals as start, end, start, end …, strictly increasing.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n,)
        The intervals, in any order, overlapping or not.
    """
    if not len(start_ns):
        return np.empty(0, np.int64)
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach_ns = np.maximum.accumulate(end_ns)
    opens = start_ns[1:] > reach_ns[:-1]
    if not opens.all():
        start_ns = start_ns[np.concatenate(([True], opens))]
        reach_ns = reach_ns[np.concatenate((opens, [True]))]
    lasting = start_ns < reach_ns
    if not lasting.all():
        start_ns, reach_ns = start_ns[lasting], reach_ns[lasting]
    edges = np.empty(2 * len(start_ns), np.int64)
    edges[0::2] = start_ns
    edges[1::2] = reach_ns
    return edges


def map_threaded(work: Callable[[_Item], _Result], items: Sequence[_Item], *, row_count: int) -> list[_Result]:
    """Apply `work` to every item, in threads where the data is large enough: numpy releases the GIL."""
    thread_count = min(os.cpu_count() or 1, 8, len(items))
    if row_count < THREADED_ROWS or thread_count < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(thread_count) as pool:
        return list(pool.map(work, items))


def _rows_by_lane(trace: Trace, counted: BoolArray) -> tuple[Int64Array | None, Int64Array]:
    """Return the counted rows grouped by lane (None: all rows, as they are) and where each lane's group begins."""
    kept = None if counted.all() else np.flatnonzero(counted)
    lane = trace.lane if kept is None else trace.lane[kept]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(lane, minlength=len(trace.lanes)))))
    if (lane[1:] >= lane[:-1]).all():
        return kept, offsets
    # numpy sorts 16-bit keys by radix, in linear time.
    order = np.argsort(lane.astype(np.uint16) if len(trace.lanes) <= 1 << 16 else lane, kind="stable")
    return (order if kept is None else kept[order]), offsets
