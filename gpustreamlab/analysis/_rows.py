"""Which sub-row of its lane each span is drawn in, so that no span hides another."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis._distinct import distinct
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray, Int32Array, Int64Array

MAX_LANE_ROWS = 64
"""How many sub-rows a lane has at most; what would need more is folded into the last one, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Where the spans of a trace are drawn, from the top."""

    row: Int32Array
    """Row of each span, over all lanes; shape (n_spans,), int32."""
    first_row: Int64Array
    """First row of each lane; shape (n_lanes,), int64."""
    row_count: Int64Array
    """How many rows each lane has, at least 1; shape (n_lanes,), int64."""
    folded_spans: int
    """Spans that were folded into the last row of their lane, where they may cover others."""

    @property
    def total(self) -> int:
        """How many rows all lanes have."""
        return int(self.row_count.sum())


def assign_rows(trace: Trace, tolerance_ns: int | None = None) -> Rows:
    """Give each span a row within its lane.

    A span that nothing encloses is drawn on the lane's first row, a span within it one row below, and so on. Where spans
    overlap without one enclosing the other, as those of two threads that use one stream do, each gets its own block of rows.

    Parameters
    ----------
    trace
        The spans.
    tolerance_ns
        Spans that overlap by no more than this count as following each other; None takes the trace's own stated error.

    Notes
    -----
    Linear but for sorting, except that spans which overlap on one row are placed one by one.
    """
    meta = trace.metadata
    tolerance_ns = meta.clock_error_ns + meta.range_error_ns if tolerance_ns is None else tolerance_ns
    shelf = _nested_shelves(trace, tolerance_ns) if (trace.parent >= 0).any() else _flat_shelves(trace, tolerance_ns)
    folded = int((shelf >= MAX_LANE_ROWS).sum())
    shelf = np.minimum(shelf, MAX_LANE_ROWS - 1)
    row_count = np.ones(len(trace.lanes), np.int64)
    np.maximum.at(row_count, trace.lane, shelf + 1)
    first_row = np.cumsum(row_count) - row_count
    row = (first_row[trace.lane] + shelf).astype(np.int32)
    for column in (row, first_row, row_count):
        column.flags.writeable = False
    return Rows(row=row, first_row=first_row, row_count=row_count, folded_spans=folded)


def enclosing_in_lane(trace: Trace) -> Int64Array:
    """Return the nearest enclosing span on the same lane, or -1; shape (n_spans,), int64."""
    above = trace.parent.copy()
    for _ in range(len(trace)):
        # Ranges may nest across lanes: climb on where the parent ran elsewhere.
        away = np.flatnonzero((above >= 0) & (trace.lane[above] != trace.lane))
        if not away.size:
            break
        climbed = trace.parent[above[away]]
        above[away] = np.where(climbed == away, -1, climbed)
    return above


def _flat_shelves(trace: Trace, tolerance_ns: int) -> Int64Array:
    """Return the row of each span within its lane, where no span encloses another."""
    return place_in_slots(trace.lane, trace.start_ns, trace.end_ns, tolerance_ns)


def _nested_shelves(trace: Trace, tolerance_ns: int) -> Int64Array:
    depth, root = climb(enclosing_in_lane(trace))
    track = np.zeros(len(trace), np.int64)
    outermost = np.flatnonzero(depth == 0)
    track[outermost] = place_in_slots(trace.lane[outermost], trace.start_ns[outermost], trace.end_ns[outermost], tolerance_ns)
    return _shelves(trace, track[root], depth, tolerance_ns)


def climb(above: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return how many spans enclose each one, and the outermost of them, or itself where there is none.

    Parameters
    ----------
    above : ndarray of int64, shape (n,)
        Row of the nearest enclosing span, or -1.

    Returns
    -------
    tuple of two ndarrays of int64, shape (n,)
        How many; row of the outermost.
    """
    depth, root = np.zeros(len(above), np.int64), np.arange(len(above))
    climbing = np.flatnonzero(above >= 0)
    position = above[climbing]
    # One round per level of nesting. Parents that point in a circle end at the depth at which rows are folded anyway.
    for _ in range(4 * MAX_LANE_ROWS):
        if not climbing.size:
            break
        depth[climbing] += 1
        root[climbing] = position
        further = above[position] >= 0
        climbing, position = climbing[further], above[position[further]]
    return depth, root


def _shelves(trace: Trace, track: Int64Array, depth: Int64Array, tolerance_ns: int) -> Int64Array:
    """Return the row of each span within its lane: by track, then by depth, then by what still overlaps."""
    if not len(trace):
        return np.empty(0, np.int64)
    lane = trace.lane.astype(np.int64)
    key = (lane * (int(track.max()) + 1) + track) * (int(depth.max()) + 1) + depth
    groups, group = distinct(key)
    slot = place_in_slots(group, trace.start_ns, trace.end_ns, tolerance_ns)
    slot_count = np.zeros(len(groups), np.int64)
    np.maximum.at(slot_count, group, slot + 1)
    group_lane = np.zeros(len(groups), np.int64)
    group_lane[group] = lane
    offset = np.cumsum(slot_count) - slot_count
    lane_offset = np.zeros(len(trace.lanes), np.int64)
    # Groups are sorted by lane first: written backwards, each lane keeps the offset of its first group.
    lane_offset[group_lane[::-1]] = offset[::-1]
    shelf: Int64Array = (offset - lane_offset[group_lane])[group] + slot
    return shelf


def place_in_slots(
    group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int = 0
) -> Int64Array:
    """Place intervals in the lowest slot of their group that is free.

    Parameters
    ----------
    group : ndarray of int, shape (n,)
        Intervals of different groups are independent.
    start_ns, end_ns : ndarray of int64, shape (n,)
        The intervals.
    tolerance_ns
        Intervals that overlap by no more than this fit into one slot, unless one would be covered.

    Returns
    -------
    ndarray of int64, shape (n,)
        The slot of each interval, from 0.
    """
    slots = np.zeros(len(group), np.int64)
    if len(group) < 2:
        return slots
    order = _by_group_and_start(group, start_ns, end_ns)
    group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
    same = np.concatenate(([False], group[1:] == group[:-1]))
    if not (same[1:] & (start_ns[1:] < end_ns[:-1])).any():
        # What follows its neighbour follows all before that one too, as their ends are in order.
        return slots
    reach_ns = _reach_before(group, end_ns)
    begins = ~same | (start_ns >= reach_ns)
    conflicts = ~begins & ((start_ns < reach_ns - tolerance_ns) | (end_ns <= reach_ns))
    if not conflicts.any():
        return slots
    cluster = np.cumsum(begins) - 1
    crowded = np.zeros(int(cluster[-1]) + 1, bool)
    crowded[cluster[conflicts]] = True
    rows = np.flatnonzero(crowded[cluster])
    slots[order[rows]] = _first_fit(begins[rows], start_ns[rows], end_ns[rows], tolerance_ns)
    return slots


def _by_group_and_start(group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the order of intervals by group, then start, the longest first."""
    # numpy sorts 16-bit keys by radix, in linear time; a trace is most often in order of time within each group already.
    order = np.argsort(group.astype(np.uint16) if int(group.max()) < 1 << 16 else group, kind="stable")
    code, start, end = group[order], start_ns[order], end_ns[order]
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] <= end[:-1])) | (code[1:] != code[:-1])
    return order if later.all() else np.lexsort((-end_ns, start_ns, group))


def _reach_before(group: Int64Array | Int32Array, end_ns: Int64Array) -> Int64Array:
    """Return the latest end of the intervals before each one in its group; rows are sorted by group."""
    number = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    first_ns, width_ns = int(end_ns.min()), int(end_ns.max()) - int(end_ns.min()) + 1
    if width_ns * (int(number[-1]) + 1) < 1 << 62:
        # Each group lies behind all before it, so that none reaches into the next.
        shift_ns = number * width_ns - first_ns
        latest_ns = np.maximum.accumulate(end_ns + shift_ns) - shift_ns
        return np.concatenate((latest_ns[:1], latest_ns[:-1]))
    by_end = np.argsort(end_ns, kind="stable")
    rank = np.empty(len(end_ns), np.int64)
    rank[by_end] = np.arange(len(end_ns))
    latest = np.maximum.accumulate(rank + number * len(end_ns)) - number * len(end_ns)
    reach_ns: Int64Array = end_ns[by_end[np.concatenate(([0], latest[:-1]))]]
    return reach_ns


def _first_fit(begins: BoolArray, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> list[int]:
    """Place intervals, sorted by start, one by one; where `begins`, all slots are free again."""
    slots: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    last_end_ns: list[int] = []
    for begin, start, end in zip(begins.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True):
        if begin:
            free, busy, last_end_ns = [], [], []
        while busy and busy[0][0] - tolerance_ns <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = _take_slot(free, last_end_ns, end)
        last_end_ns[slot] = end
        heapq.heappush(busy, (end, slot))
        slots.append(slot)
    return slots


def _take_slot(free: list[int], last_end_ns: list[int], end: int) -> int:
    """Take the lowest free slot in which the interval is not covered by the one before it, or open a new one."""
    covered = []
    while free and last_end_ns[free[0]] >= end:
        covered.append(heapq.heappop(free))
    slot = heapq.heappop(free) if free else len(last_end_ns)
    if slot == len(last_end_ns):
        last_end_ns.append(end)
    for other in covered:
        heapq.heappush(free, other)
    return slot
