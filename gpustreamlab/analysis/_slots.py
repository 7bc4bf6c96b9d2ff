"""Where intervals lie below each other, so that none hides another: the lowest slot of their group that is free."""

from __future__ import annotations

import heapq

import numpy as np

from gpustreamlab.typing import BoolArray, Int32Array, Int64Array

MAX_LANE_ROWS = 64
"""How many sub-rows spans of one level have in a lane at most; what would need more is folded into the last, and counted."""


def place_in_slots(
    group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int = 0
) -> Int64Array:
    """Place intervals in the lowest slot of their group that is free, as long as it is one of the first `MAX_LANE_ROWS`.

    What has no length may get a higher one where others end just then.

    Parameters
    ----------
    group : ndarray of int, shape (n,)
        Intervals of different groups are independent.
    start_ns, end_ns : ndarray of int64, shape (n,)
        The intervals, sorted as `by_group_and_start` does.
    tolerance_ns
        Intervals that overlap by no more than this fit into one slot, unless one would be covered.

    Returns
    -------
    ndarray of int64, shape (n,)
        The slot of each interval, from 0.
    """
    slots = np.zeros(len(group), np.int64)
    same = group[1:] == group[:-1]
    if not (same & (start_ns[1:] < end_ns[:-1])).any():
        # What follows its neighbour follows all before that one too, as their ends are in order.
        return slots
    reach_ns = _reach_before(group, end_ns)
    begins = np.append(True, ~same) | (start_ns >= reach_ns)
    conflicts = ~begins & ((start_ns < reach_ns - tolerance_ns) | (end_ns <= reach_ns))
    if not conflicts.any():
        return slots
    cluster = np.cumsum(begins) - 1
    crowded = np.zeros(int(cluster[-1]) + 1, bool)
    crowded[cluster[conflicts]] = True
    rows = np.flatnonzero(crowded[cluster])
    crowd = begins[rows], start_ns[rows], end_ns[rows]
    nested = _nested_slots(*crowd, tolerance_ns)
    slots[rows] = _first_fit(*crowd, tolerance_ns) if nested is None else nested
    return slots


def by_group_and_start(group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the order of intervals by group, then start: first those of no length, then the longest."""
    # numpy sorts 16-bit keys by radix, in linear time; a trace is most often in order of time within each group already.
    order = np.argsort(group.astype(np.uint16) if int(group.max(initial=0)) < 1 << 16 else group, kind="stable")
    code, start, end = group[order], start_ns[order], end_ns[order]
    rest = np.flatnonzero((start[1:] <= start[:-1]) & (code[1:] == code[:-1]))
    is_tie, before, after = start[rest + 1] == start[rest], end[rest], end[rest + 1]
    is_ordered = is_tie & ((before == start[rest]) | ((after <= before) & (after > start[rest])))
    return order if is_ordered.all() else np.lexsort((-end_ns, end_ns > start_ns, start_ns, group))


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


def _nested_slots(begins: BoolArray, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> Int64Array | None:
    """Give each interval the slot below all that run when it starts; None where that is not the lowest free one, or is covered.

    Of intervals that nest, as calls that are made of others do, it always is. Intervals are sorted by start, the longest
    first; where `begins`, none before reaches any further.
    """
    cluster = np.cumsum(begins) - 1
    least_ns = int(start_ns.min())
    width_ns = int(end_ns.max()) - least_ns + tolerance_ns + 1
    if width_ns * (int(cluster[-1]) + 1) >= 1 << 62:
        return None
    shift_ns = cluster * width_ns - least_ns
    ended = np.searchsorted(np.sort(end_ns + shift_ns), start_ns + shift_ns + tolerance_ns, side="right")
    slots: Int64Array = np.arange(len(cluster)) - ended
    if slots.min() < 0 or not _lie_below_running(slots, start_ns, end_ns, tolerance_ns):
        return None
    key = cluster * (int(slots.max()) + 1) + slots
    order = np.argsort(key, kind="stable")
    follows = key[order][1:] == key[order][:-1]
    start_ns, end_ns, before_ns = start_ns[order][1:], end_ns[order][1:], end_ns[order][:-1]
    collides = (start_ns < before_ns) & ((start_ns < before_ns - tolerance_ns) | (end_ns <= before_ns))
    return None if (collides & follows).any() else slots


def _lie_below_running(slots: Int64Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> bool:
    """Tell whether in every slot above an interval, the last one before it still runs when it starts.

    Slots from `MAX_LANE_ROWS` on are not asked for: there may be as many as intervals, and what lies in them is folded.
    """
    low = np.flatnonzero(slots < MAX_LANE_ROWS)
    slots, start_ns, end_ns = slots[low], start_ns[low], end_ns[low]
    by_slot = np.split(np.argsort(slots, kind="stable"), np.cumsum(np.bincount(slots))[:-1])
    above, until_ns = by_slot[0], end_ns[by_slot[0]]
    for rows in by_slot[1:]:
        place = np.searchsorted(above, rows) - 1
        if not len(rows) or place[0] < 0 or (until_ns[place] <= start_ns[rows] + tolerance_ns).any():
            return False
        above, until_ns = rows, np.minimum(end_ns[rows], until_ns[place])
    return True


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
