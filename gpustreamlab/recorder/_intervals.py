"""Which interval is the innermost around a moment: of many at once, and without a loop over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpustreamlab.typing import Int64Array


class Intervals(NamedTuple):
    """Intervals of several groups, half open: each begins at its start and has ended at its end."""

    group: Int64Array
    """Shape (n,), int64; those of one group enclose each other."""
    start: Int64Array
    """Shape (n,), int64."""
    end: Int64Array
    """Shape (n,), int64."""
    number: Int64Array
    """Of two that start together the one with the lower number is the outer one; shape (n,), int64."""


def find_innermost(intervals: Intervals, group: Int64Array, at: Int64Array, itself: Int64Array | None = None) -> Int64Array:
    """Return for each moment of a group the index of the innermost interval around it, or -1.

    Where intervals overlap without enclosing each other, the one that started last counts.

    Parameters
    ----------
    intervals
        In any order.
    group, at
        Of each moment; shape (n,), int64.
    itself
        The index of the interval that begins there, which is not around itself, or -1; shape (n,), int64.

    Examples
    --------
    >>> outer_and_inner = Intervals(*np.array([[7, 7], [0, 10], [100, 20], [0, 1]]))
    >>> find_innermost(outer_and_inner, np.array([7, 7, 7, 8]), np.array([15, 20, 100, 15])).tolist()
    [1, 0, -1, -1]
    """
    found = np.full(len(at), -1, np.int64)
    if not len(at) or not len(intervals.group):
        return found
    order = np.lexsort((intervals.number, intervals.start, intervals.group))
    ordered = Intervals(*(column[order] for column in intervals))
    found = _last_started(ordered, group, at)
    above = find_enclosing(ordered)
    if itself is not None:
        mine = np.flatnonzero(itself >= 0)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        found[mine] = above[place[itself[mine]]]
    inside = np.flatnonzero(found >= 0)
    while inside.size:
        inside = inside[at[inside] >= ordered.end[found[inside]]]
        found[inside] = above[found[inside]]
        inside = inside[found[inside] >= 0]
    return np.where(found >= 0, order[found], -1).astype(np.int64)


def find_enclosing(ordered: Intervals) -> Int64Array:
    """Return for each interval the index of the innermost one that encloses it, or -1.

    Parameters
    ----------
    ordered
        Sorted by group, start and number.

    Notes
    -----
    Each looks at the one before it. Where that ends too early, so do all that it encloses, and the next to look at is what
    encloses it: as all do this at once, the distance doubles with each round.
    """
    above = np.arange(-1, len(ordered.start) - 1, dtype=np.int64)
    above[np.flatnonzero(np.diff(ordered.group)) + 1] = -1
    unsettled = np.arange(len(above))
    while unsettled.size:
        before = above[unsettled]
        unsettled = unsettled[(before >= 0) & (ordered.end[before] < ordered.end[unsettled])]
        above[unsettled] = above[above[unsettled]]
    return above


def _last_started(ordered: Intervals, group: Int64Array, at: Int64Array) -> Int64Array:
    """Return the index of the interval of its group that started last before each moment, or at it; or -1."""
    found = np.full(len(at), -1, np.int64)
    order = np.argsort(group, kind="stable")
    groups = group[order]
    begins = np.flatnonzero(np.diff(ordered.group, prepend=ordered.group[0] - 1))
    for first, last in zip(begins.tolist(), [*begins[1:].tolist(), len(ordered.group)], strict=True):
        number = ordered.group[first]
        low, high = np.searchsorted(groups, number), np.searchsorted(groups, number, side="right")
        asked = order[low:high]
        place = first - 1 + np.searchsorted(ordered.start[first:last], at[asked], side="right")
        found[asked] = np.where(place >= first, place, -1)
    return found
