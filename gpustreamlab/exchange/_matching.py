"""Which begin belongs to which end, and which slice a flow is bound to. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.typing import BoolArray, Int64Array


def match_begins(
    group: NDArray[np.integer], time_ns: Int64Array, is_begin: BoolArray, name: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Match each end with the newest begin of its group and name that has none yet, else with the newest one.

    Parameters
    ----------
    group : ndarray of integers, shape (n,)
        What nests: a thread, or an id.
    time_ns : ndarray of int64, shape (n,)
        When; of equal ones the order of the file counts.
    is_begin : ndarray of bool, shape (n,)
    name : ndarray of int64, shape (n,)
        Equal for equal names; ends may have none that a begin has.

    Returns
    -------
    tuple of two ndarrays of int64
        Places of the begins, and of their ends. What is in neither has no partner.

    Examples
    --------
    >>> five = np.zeros(5, int), np.arange(5), np.array([1, 1, 0, 0, 0], bool)
    >>> [found.tolist() for found in match_begins(*five, np.array([7, 8, -1, -1, -1]))]
    [[1, 0], [2, 3]]
    >>> [found.tolist() for found in match_begins(*five, np.array([7, 8, 7, 8, 8]))]
    [[0, 1], [2, 3]]
    """
    order = np.lexsort((time_ns, group))
    is_opening, groups, names = (values[order].data for values in (is_begin, group, name))  # no object for each is kept
    begins, ends = array("q"), array("q")
    opened: list[int] = []
    named: dict[int, list[int]] = {}
    has_ended = bytearray(len(order))
    current: int | None = None
    for place, opens, mine, code in zip(order.data, is_opening, groups, names, strict=True):
        if mine != current:
            opened, named, current = [], {}, mine
        if opens:
            opened.append(place)
            named.setdefault(code, []).append(place)
            continue
        for newest in (named.get(code, []), opened):
            while newest and has_ended[newest[-1]]:
                newest.pop()
            if newest:
                begin = newest.pop()
                has_ended[begin] = True
                begins.append(begin)
                ends.append(place)
                break
    return np.frombuffer(begins, np.int64), np.frombuffer(ends, np.int64)


def slices_at(
    track: Int64Array, start_ns: Int64Array, end_ns: Int64Array, at_track: Int64Array, at_ns: Int64Array, is_next: BoolArray
) -> Int64Array:
    """Return which slice each moment of a track is bound to.

    Parameters
    ----------
    track, start_ns, end_ns : ndarray of int64, shape (n_slices,)
        The slices, in order of their starts; of two that begin at once the outer one is first.
    at_track, at_ns : ndarray of int64, shape (n_moments,)
        The moments.
    is_next : ndarray of bool, shape (n_moments,)
        True for the next slice that begins then or later, False for the innermost one around the moment: one that ends with it
        counts where there is no other.

    Returns
    -------
    ndarray of int64, shape (n_moments,)
        Places of the slices, or -1.

    Examples
    --------
    >>> slices = np.zeros(2, int), np.array([0, 5]), np.array([4, 9])
    >>> slices_at(*slices, np.zeros(3, int), np.array([2, 2, 4]), np.array([0, 1, 0], bool)).tolist()
    [0, 1, 0]
    """
    found = np.full(len(at_ns), -1, np.int64)
    rows_of: dict[int, list[int]] = defaultdict(list)
    asked = set(at_track.tolist())
    rows = np.flatnonzero(np.isin(track, [*asked])) if asked else np.empty(0, np.int64)
    for row, mine in zip(rows.tolist(), track[rows].tolist(), strict=True):
        rows_of[mine].append(row)
    for one, mine_rows in rows_of.items():
        rows = np.array(mine_rows)
        asking = np.flatnonzero(at_track == one)
        asking = asking[np.argsort(at_ns[asking], kind="stable")]
        following = np.searchsorted(start_ns[rows], at_ns[asking])
        found[asking] = np.append(rows, -1)[following]
        around = asking[~is_next[asking]]
        found[around] = _innermost(rows.tolist(), start_ns[rows].tolist(), end_ns[rows].tolist(), at_ns[around].tolist())
    return found


def _innermost(rows: list[int], start_ns: list[int], end_ns: list[int], at_ns: list[int]) -> list[int]:
    """Return the innermost slice around each moment, of which the times ascend, or -1."""
    found: list[int] = []
    opened: list[int] = []
    place = 0
    for at in at_ns:
        just_ended = -1
        while place < len(rows) and start_ns[place] <= at:
            while opened and end_ns[opened[-1]] <= start_ns[place]:
                opened.pop()
            opened.append(place)
            place += 1
        while opened and end_ns[opened[-1]] <= at:
            last = opened[-1]
            if end_ns[last] == at and just_ended < 0:
                just_ended = last
            if start_ns[last] == at:
                break  # an instant
            opened.pop()
        innermost = opened[-1] if opened else just_ended
        found.append(rows[innermost] if innermost >= 0 else -1)
    return found
