"""Level of detail: what is too narrow to be seen alone is merged, so that count and busy time stay exact.

Time is cut into bins of fixed places. A span at least as long as a bin is an item of its own. Shorter ones of a row that start
in the same bin, with no long one between them, merge into one item. The rule is the same in the page's JavaScript
(`draw/viewer/lod.js`); the two are tested against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpustreamlab.typing import BoolArray, Int64Array

BIN_PX = 1.5
"""How wide a bin is at least, in px."""

PICK_SAMPLES = 8
"""How many spans of a merged item are asked for the longest, which gives it its colour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """Items that stand for spans, in the order of these."""

    first: Int64Array
    """Place of the first span of each item; shape (n_items,), int64."""
    last: Int64Array
    """Place of the last one; shape (n_items,), int64."""
    left_ns: Int64Array
    """Start of the first span; shape (n_items,), int64."""
    right_ns: Int64Array
    """Latest end of the spans; shape (n_items,), int64."""
    count: Int64Array
    """How many spans there are; shape (n_items,), int64."""
    busy_ns: Int64Array
    """Sum of their durations; shape (n_items,), int64."""
    pick: Int64Array
    """Place of the longest of up to eight evenly spaced ones; shape (n_items,), int64."""

    def __len__(self) -> int:
        return len(self.first)


def bin_width_ns(ns_per_px: float) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 … ns that is at least 1.5 px.

    Examples
    --------
    >>> [bin_width_ns(scale) for scale in (0.1, 1, 2, 2.5, 1000)]
    [1, 2, 3, 4, 1536]
    """
    wanted_ns = BIN_PX * ns_per_px
    width_ns = 1
    while width_ns < wanted_ns:
        if width_ns > 1 and width_ns * 3 // 2 >= wanted_ns:
            return width_ns * 3 // 2
        width_ns *= 2
    return width_ns


def merge_narrow(row: Int64Array, start_ns: Int64Array, end_ns: Int64Array, bin_ns: int) -> Merged:
    """Merge spans that are narrower than a bin.

    Parameters
    ----------
    row, start_ns, end_ns : ndarray of int64, shape (n_spans,)
        The spans, sorted by row, then by start.
    bin_ns
        Width of a bin, in ns, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> items = merge_narrow(np.zeros(4, int), np.array([0, 2, 5, 30]), np.array([1, 4, 6, 50]), 10)
    >>> items.count.tolist(), items.busy_ns.tolist(), items.right_ns.tolist()
    ([3, 1], [4, 20], [6, 50])
    """
    duration_ns = end_ns - start_ns
    first = np.flatnonzero(_opens(row, start_ns // bin_ns, duration_ns >= bin_ns))
    last = np.append(first[1:], len(row))[: len(first)] - 1
    if not len(first):
        return Merged(first=first, last=last, left_ns=first, right_ns=first, count=first, busy_ns=first, pick=first)
    return Merged(
        first=first,
        last=last,
        left_ns=start_ns[first],
        right_ns=np.maximum.reduceat(end_ns, first),
        count=last - first + 1,
        busy_ns=np.add.reduceat(duration_ns, first),
        pick=_pick_longest(duration_ns, first, last),
    )


def _opens(row: Int64Array, bin_number: Int64Array, is_long: BoolArray) -> BoolArray:
    """Tell which spans begin an item."""
    opens = np.ones(len(row), bool)
    opens[1:] = (row[1:] != row[:-1]) | (bin_number[1:] != bin_number[:-1]) | is_long[1:] | is_long[:-1]
    return opens


def _pick_longest(duration_ns: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    pick = first.copy()
    several = np.flatnonzero(last > first)
    width = (last - first)[several]
    samples = first[several, None] + width[:, None] * np.arange(PICK_SAMPLES) // (PICK_SAMPLES - 1)
    longest = duration_ns[samples].argmax(axis=1)
    pick[several] = samples[np.arange(len(several)), longest]
    return pick
