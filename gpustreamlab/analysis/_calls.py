"""Calls of the host: which there are, by name and thread, and for how long a thread was in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpustreamlab.analysis._busy import union_edges
from gpustreamlab.analysis._pieces import StepTime
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind, SpanKind

MOST_OF, TIMES, TIMES_CALL = 0.5, 1.5, 4
"""An operation counts for a time in which it was open for more than this share of it, and if it lasts no longer than so many
times: what does much else says little."""


def named_calls(trace: Trace, told: Callable[[str], object], kind: SpanKind = SpanKind.HOST) -> BoolArray:
    """Tell which rows are calls of the host, or of another kind, with a name that fits; shape (n_spans,), bool."""
    by_name = np.array([*(bool(told(name)) for name in trace.names), False])
    found: BoolArray = trace.kind == SPAN_KINDS.index(kind)
    rows = np.flatnonzero(found)
    found[rows] = by_name[trace.name[rows]]
    return found


def thread_lanes(trace: Trace, call: Int64Array) -> Callable[[Int64Array], Int64Array]:
    """Return what tells of rows the lane of the thread that launched them, or -1; given what `launch_calls` returns."""
    places = {lane.name: place for place, lane in enumerate(trace.lanes) if lane.kind is LaneKind.HOST}
    by_thread = np.array([*(places.get(f"host: {thread}", -1) for thread in trace.threads), -1], np.int64)

    def tell(row: Int64Array) -> Int64Array:
        lanes: Int64Array = np.where(call[row] >= 0, trace.lane[call[row]], by_thread[trace.thread[row]])
        return lanes

    return tell


def time_in_calls(
    trace: Trace, calls: Int64Array, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return for how long a thread was in some calls between two times, and the last of these calls, or -1."""
    inside_ns, last = np.zeros(len(lane), np.int64), np.full(len(lane), -1, np.int64)
    for thread in np.unique(trace.lane[calls]).tolist():
        own = calls[trace.lane[calls] == thread]
        own = own[np.argsort(trace.start_ns[own], kind="stable")]
        asked = np.flatnonzero(lane == thread)
        steps = StepTime([union_edges(trace.start_ns[own], trace.end_ns[own])])
        inside_ns[asked] = steps.between(from_ns[asked], to_ns[asked])
        place = np.searchsorted(trace.start_ns[own], to_ns[asked], side="left") - 1
        last[asked] = np.where(place >= 0, own[place], -1)
    return inside_ns, last


def longest_call(trace: Trace, calls: Int64Array, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> Int64Array:
    """Return the longest of some calls in which a thread was between two times, or -1."""
    longest = np.full(len(lane), -1, np.int64)
    for thread in np.unique(lane).tolist():
        own = calls[trace.lane[calls] == thread]
        own = own[np.argsort(trace.start_ns[own], kind="stable")]
        asked = np.flatnonzero(lane == thread)
        by_duration = np.argsort(lasted_ns(trace, own), kind="stable")
        rank = np.empty(len(own) + 1, np.int64)
        rank[by_duration], rank[-1] = np.arange(len(own)), -1
        first = np.searchsorted(np.maximum.accumulate(trace.end_ns[own]), from_ns[asked], side="right")
        # Slices of a piece each: between them lie those that are not asked for.
        behind = np.maximum(np.searchsorted(trace.start_ns[own], to_ns[asked], side="left"), first)
        most = np.maximum.reduceat(rank, np.stack((first, behind), axis=1).ravel())[::2]
        longest[asked] = np.where(behind > first, np.append(own, -1)[np.append(by_duration, -1)[most]], -1)
    return longest


def open_operations(
    trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array, *, of_call: bool = False
) -> Int64Array:
    """Return the innermost range that others named on a thread, in which it was for most of some time, or -1.

    Such are operations of a framework (``aten::copy_``) and ranges of NVTX. An operation that made a call may take longer than
    what was done in a gap.
    """
    found, ranges = np.full(len(lane), -1, np.int64), np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.ANNOTATION))
    is_operation = np.array([of_call and "::" in name for name in trace.names], bool)
    for thread in np.unique(lane).tolist():
        own = ranges[trace.lane[ranges] == thread]
        start_ns, end_ns = trace.start_ns[own], trace.end_ns[own]
        times = np.where(is_operation[trace.name[own]], TIMES_CALL, TIMES)
        for place in np.flatnonzero(lane == thread).tolist():
            inside_ns = np.minimum(end_ns, to_ns[place]) - np.maximum(start_ns, from_ns[place])
            asked_ns = to_ns[place] - from_ns[place]
            fits = np.flatnonzero((inside_ns > MOST_OF * asked_ns) & (end_ns - start_ns <= times * asked_ns))
            if len(fits):
                found[place] = own[fits[np.argmin((end_ns - start_ns)[fits])]]
    return found


def contain(trace: Trace, outer: Int64Array, inner: Int64Array) -> BoolArray:
    """Tell which calls (-1 for none) another call began in; same shape as `outer`."""
    found = np.zeros(len(outer), bool)
    for thread in np.unique(trace.lane[inner]).tolist():
        starts_ns = np.sort(trace.start_ns[inner[trace.lane[inner] == thread]])
        own = (outer >= 0) & (trace.lane[outer] == thread)
        first, last = trace.start_ns[outer[own]], trace.end_ns[outer[own]]
        found[own] = np.searchsorted(starts_ns, last) > np.searchsorted(starts_ns, first, side="right")
    return found


def lasted_ns(trace: Trace, row: Int64Array) -> Int64Array:
    """Return `Trace.duration_ns` of some rows, without computing that of all."""
    return trace.end_ns[row] - trace.start_ns[row]


def innermost_range(trace: Trace, ranges: Int64Array, at_ns: Int64Array) -> Int64Array:
    """Return for each time the row of the innermost of a thread's ranges around it, or -1."""
    if not len(ranges):
        return np.full(len(at_ns), -1, np.int64)
    ranges = ranges[np.lexsort((-trace.end_ns[ranges], trace.start_ns[ranges]))]
    found = np.append(ranges, -1)[np.searchsorted(trace.start_ns[ranges], at_ns, side="right") - 1]
    is_own = np.zeros(len(trace) + 1, bool)
    is_own[ranges] = True
    while (is_over := (found >= 0) & (trace.end_ns[found] <= at_ns)).any():
        found[is_over] = trace.parent[found[is_over]]
        found[~is_own[found]] = -1
    return found
