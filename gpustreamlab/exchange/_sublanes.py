"""Sub-lanes: viewers show spans of one row only where they nest or follow each other."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.typing import Int64Array

MOST_NESTED = 500
"""How deep spans of one sub-lane nest at most; Perfetto's engine drops those below 512."""
_NEVER = 1 << 63
"""When what is open in a sub-lane that is empty ends: later than all spans."""


def sublanes(start_ns: Int64Array, end_ns: Int64Array, lane: NDArray[np.integer]) -> Int64Array:
    """Tell which sub-lane of its lane each span gets, so that the spans of one nest or do not overlap."""
    order = nesting_order(start_ns, end_ns, lane)
    # An instant is inside or between others wherever it is.
    order = order[end_ns[order] > start_ns[order]]
    start, end = start_ns[order], end_ns[order]
    found = np.zeros(len(order), np.int64)
    for first, last in _runs(np.asarray(lane)[order]):
        for begin, stop in (_crossed(start[first:last], end[first:last]) + first).tolist():
            found[begin:stop] = _assign(start[begin:stop].tolist(), end[begin:stop].tolist())
    result = np.zeros(len(start_ns), np.int64)
    result[order] = found
    return result


def nesting_order(start_ns: Int64Array, end_ns: Int64Array, lane: NDArray[np.integer]) -> Int64Array:
    """Return the rows by lane and start; of two that begin at once the longer one is first."""
    if len(lane) and (start_ns[1:] >= start_ns[:-1]).all() and lane.max() < 1 << 15:  # sorting small codes is quick
        order = np.argsort(lane.astype(np.int16), kind="stable")
        starts, ends, lanes = start_ns[order], end_ns[order], lane[order]
        is_tie = (starts[1:] == starts[:-1]) & (lanes[1:] == lanes[:-1])
        if not (is_tie & (ends[1:] > ends[:-1])).any():
            return order
    return np.lexsort((~end_ns, start_ns, lane))  # ~ is a minus that never overflows


def _runs(lanes: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return where each lane begins and stops."""
    bounds = [*np.flatnonzero(np.diff(lanes, prepend=-1)).tolist(), len(lanes)]
    return list(pairwise(bounds))


def _crossed(start: Int64Array, end: Int64Array) -> Int64Array:
    """Return where stretches of a lane begin and stop in which spans overlap but do not nest, or too deep; shape (n, 2)."""
    is_first = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
    if is_first.all():
        return np.empty((0, 2), np.int64)
    place = np.arange(len(start))
    depth = place - np.searchsorted(np.sort(end), start, side="right")
    # Where those before it nest, the innermost that is open is the last one that lies one less deep.
    keys = np.sort(depth * len(start) + place)
    inside = np.flatnonzero(depth > 0)
    around = keys[np.searchsorted(keys, (depth[inside] - 1) * len(start) + inside) - 1] % len(start)
    is_bad = depth >= MOST_NESTED
    is_bad[inside] |= end[inside] > end[around]
    bounds = np.append(np.flatnonzero(is_first), len(start))
    bad = np.unique(np.searchsorted(bounds, np.flatnonzero(is_bad), side="right"))
    return np.stack((bounds[bad - 1], bounds[bad]), axis=1)


def _assign(start: list[int], end: list[int]) -> list[int]:
    """Return a sub-lane for each span of a stretch: the one in which the span around it ends soonest, else an empty one."""
    open_ends: list[list[int]] = []
    innermost: list[tuple[int, int]] = []  # end of the innermost open span of each sub-lane, in order
    found = []
    for begins, ends in zip(start, end, strict=True):
        while innermost and innermost[0][0] <= begins:
            _, lane = innermost.pop(0)
            open_ends[lane].pop()
            insort(innermost, (open_ends[lane][-1] if open_ends[lane] else _NEVER, lane))
        at = bisect_left(innermost, (ends, -1))
        while at < len(innermost) and len(open_ends[innermost[at][1]]) >= MOST_NESTED:
            at += 1
        if at == len(innermost):
            open_ends.append([])
            lane = len(open_ends) - 1
        else:
            _, lane = innermost.pop(at)
        open_ends[lane].append(ends)
        insort(innermost, (ends, lane))
        found.append(lane)
    return found
