"""How long each set of lanes was busy together: one sweep over the times at which lanes become busy and idle.

The sweep works in windows of time that fit the processor's cache. A lane's edges alternate between start and end, so their
number before a window tells whether it is busy there, and windows are independent of each other. All sums are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from gpustreamlab.analysis._busy import map_threaded
from gpustreamlab.errors import TraceError
from gpustreamlab.typing import Int64Array

WINDOW_EDGES = 1 << 17
"""About how many edges one window holds."""

MASK_LANES = 16
"""How many lanes one bit mask holds: 2 to the power of this many sums are kept."""

LONGEST_NS = 1 << 58
"""Longest trace that the sweep takes, in ns: 9 years. Times and lane numbers share 64 bits."""

Window = tuple[int, int]


def mask_durations(edges: Sequence[Int64Array]) -> Int64Array:
    """Return how long exactly each set of lanes was busy.

    Parameters
    ----------
    edges : sequence of ndarray of int64
        One array a lane, as `busy_edges` returns; at most `MASK_LANES`.

    Returns
    -------
    ndarray of int64, shape (2 ** n_lanes,)
        In ns. Bit i of the index says that lane i was busy; index 0 is the time in which all were idle.
    """
    bits = np.left_shift(1, np.arange(MASK_LANES, dtype=np.int64))

    def sweep(window: Window) -> Int64Array:
        begin_ns, end_ns = window
        parts, initial = [], 0
        for lane, lane_edges in enumerate(edges):
            first, last = np.searchsorted(lane_edges, window)
            initial |= int(first & 1) << lane
            parts.append(((lane_edges[first:last] - begin_ns) << 4) | lane)
        keys = _merge(parts)
        masks = np.bitwise_xor.accumulate(np.concatenate(([initial], bits[keys & 15])))
        sums = np.zeros(1 << len(edges), np.int64)
        np.add.at(sums, masks, _steps_ns(keys >> 4, end_ns - begin_ns))
        return sums

    return _sum_windows(sweep, edges, 1 << len(edges))


def count_durations(edges: Sequence[Int64Array]) -> Int64Array:
    """Return how long exactly k lanes were busy, for any number of lanes; shape (n_lanes + 1,), int64, in ns."""

    def sweep(window: Window) -> Int64Array:
        times_ns, counts = _counts_within(edges, window)
        sums = np.zeros(len(edges) + 1, np.int64)
        np.add.at(sums, counts, _steps_ns(times_ns - window[0], window[1] - window[0]))
        return sums

    return _sum_windows(sweep, edges, len(edges) + 1)


def _counts_within(edges: Sequence[Int64Array], window: Window) -> tuple[Int64Array, Int64Array]:
    """Return the edges of all lanes within a window, in order; and how many lanes are busy before them, and from each on."""
    parts, initial = [], 0
    for lane_edges in edges:
        first, last = np.searchsorted(lane_edges, window)
        initial += int(first & 1)
        # Whether an edge is an end goes along in the lowest bit: sorting the times is far faster than finding their order.
        parts.append(((lane_edges[first:last] - window[0]) << 1) | (np.arange(first, last) & 1))
    keys = _merge(parts)
    return (keys >> 1) + window[0], np.cumsum(np.concatenate(([initial], 1 - 2 * (keys & 1))))


def count_steps(edges: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return when the number of busy lanes changes, and to what.

    Returns
    -------
    tuple of two ndarrays of int64, shape (n_steps,)
        Times in ns, strictly increasing, and how many lanes are busy from each on; the last number is 0.
    """
    busy = [lane_edges for lane_edges in edges if len(lane_edges)]
    if not busy:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if max(int(own[-1]) for own in busy) - min(int(own[0]) for own in busy) >= LONGEST_NS:
        times_ns = np.concatenate(busy)
        order = np.argsort(times_ns, kind="stable")
        changes = np.concatenate([1 - 2 * (np.arange(len(lane_edges)) & 1) for lane_edges in busy])[order]
        return _where_changed(times_ns[order], np.append(0, np.cumsum(changes)))
    windows = _windows(busy)
    parts = map_threaded(lambda window: _where_changed(*_counts_within(busy, window)), windows, row_count=sum(map(len, busy)))
    # The last edges are at the end of the last window, which is not within.
    times_ns, counts = (np.concatenate(column) for column in zip(*parts, ([windows[-1][1]], [0]), strict=True))
    return times_ns, counts


def _where_changed(times_ns: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the times at which the count is another one than before, and which; given is also that before the first."""
    last_of_time = np.flatnonzero(np.append(times_ns[1:] > times_ns[:-1], [True] * (len(times_ns) > 0)))
    counts = counts[np.append(0, last_of_time + 1)]
    changed = counts[1:] != counts[:-1]
    return times_ns[last_of_time[changed]], counts[1:][changed]


def _sum_windows(sweep: Callable[[Window], Int64Array], edges: Sequence[Int64Array], size: int) -> Int64Array:
    windows = _windows(edges)
    sums = np.zeros(size, np.int64)
    for part in map_threaded(sweep, windows, row_count=sum(map(len, edges))):
        sums += part
    return sums


def _windows(edges: Sequence[Int64Array]) -> list[Window]:
    """Cut the time from the first edge to the last into windows of about `WINDOW_EDGES` edges."""
    busy = [lane_edges for lane_edges in edges if len(lane_edges)]
    if not busy:
        return []
    begin_ns = min(int(lane_edges[0]) for lane_edges in busy)
    end_ns = max(int(lane_edges[-1]) for lane_edges in busy)
    if end_ns - begin_ns >= LONGEST_NS:
        raise TraceError(
            f"The trace lasts {(end_ns - begin_ns) / 1e9:.3g} s from its first busy span to its last; overlap is computed for "
            f"up to {LONGEST_NS / 1e9:.3g} s. Leave out the spans whose times are wrong."
        )
    stride = max(1, WINDOW_EDGES // (4 * len(busy)))
    samples = np.sort(np.concatenate([lane_edges[::stride] for lane_edges in busy]))
    inner = np.unique(samples[:: max(1, WINDOW_EDGES // stride)])
    borders = [begin_ns, *(int(border) for border in inner if begin_ns < border < end_ns), end_ns]
    return list(pairwise(borders))


def _merge(parts: list[Int64Array]) -> Int64Array:
    # The parts are sorted, and numpy's stable sort merges sorted runs instead of sorting anew.
    keys = np.concatenate(parts)
    keys.sort(kind="stable")
    return keys


def _steps_ns(times_ns: Int64Array, width_ns: int) -> Int64Array:
    """Return how long each state lasts: the first from the window's beginning, the last to its end."""
    return np.diff(times_ns, prepend=0, append=width_ns)


SMALL_RANGE = 1 << 16
"""Values within a range like this are looked up in a table, however few there are."""


def distinct(column: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the distinct values, and the place of each entry's value among them: what `numpy.unique` does, faster.

    Parameters
    ----------
    column : ndarray of int64, shape (n,)
        Any integers.

    Returns
    -------
    tuple of two ndarrays of int64
        The values in order, shape (n_values,); places, shape (n,).

    Examples
    --------
    >>> values, places = distinct(np.array([7, 7, 5, 7]))
    >>> values.tolist(), places.tolist()
    ([5, 7], [1, 1, 0, 1])
    """
    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    least = int(column.min())
    width = int(column.max()) - least + 1
    if width <= max(SMALL_RANGE, 4 * len(column)):
        present = np.zeros(width, bool)
        present[column - least] = True
        return np.flatnonzero(present) + least, (np.cumsum(present) - 1)[column - least]
    heads = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
    values, place = np.unique(column[heads], return_inverse=True)
    return values, np.repeat(place, np.diff(np.append(heads, len(column))))
