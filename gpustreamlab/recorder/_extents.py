"""From when to when a range lasted on the device, by the work that was launched inside it: no event is put on its stream.

A stream runs its work in order. So what two events around a block would enclose is what was enqueued on the stream between
their records, by whatever thread: the work of the lane whose launch lies between the opening and the closing of the range.
"""

from __future__ import annotations

import numpy as np

from gpustreamlab.typing import Int64Array

NEVER = np.iinfo(np.int64).max
"""When a range that is still open was closed."""

RANGE_FIELDS = 4
"""Rows of what `WorkExtents.fold` takes of ranges: number, lane, host times of opening and closing."""
WORK_FIELDS = 5
"""Rows of what it takes of work: lane, host time of its launch, start, end, number of the launching call."""

_NOTHING = np.empty((4, 0), np.int64)


class WorkExtents:
    """First start and last end of the work in each range that is open, or waits for its work.

    Every batch of work is laid against the ranges as they are then, once: a range was open before its work was launched, and
    leaves only when all its work has been told of. So nothing is kept of the work itself, however long a range lasts.
    """

    def __init__(self) -> None:
        # By range: number, first start, last end, end of the last work before it; sorted by number.
        self._known: Int64Array = _NOTHING
        self._last_end: dict[int, int] = {}

    def fold(self, ranges: Int64Array, work: Int64Array) -> None:
        """Take a batch of work.

        Parameters
        ----------
        ranges : ndarray of int64, shape (RANGE_FIELDS, n_ranges)
            Those that are open or wait, each once. What is not among them is forgotten.
        work : ndarray of int64, shape (WORK_FIELDS, n_work)
            What has ended, in any order. Work of one call, a graph's, counts as a whole for each lane that it ran on.
        """
        ranges = ranges[:, np.argsort(ranges[0], kind="stable")]
        extents = self._carry_over(ranges)
        if work.shape[1]:
            lane, launch, start, end = _whole_calls(work)
            for one in np.unique(lane).tolist():
                mine = np.flatnonzero(lane == one)
                mine = mine[np.argsort(launch[mine], kind="stable")]
                here = np.flatnonzero(ranges[1] == one)
                if len(here):
                    extents[:, here] = _widen(extents[:, here], ranges[2:, here], launch[mine], start[mine], end[mine])
                self._last_end[one] = max(self._last_end.get(one, 0), int(end[mine].max()))
        self._known = np.concatenate((ranges[:1], extents))

    def times(self, numbers: Int64Array, opened_ns: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return when ranges began and ended on the device; one without work is an instant.

        Parameters
        ----------
        numbers
            Of the ranges; shape (n,), int64.
        opened_ns
            When each was opened, on the device's clock: one without work is there, or where the stream's work before it has
            ended, as an event would be.
        """
        at = np.minimum(np.searchsorted(self._known[0], numbers), self._known.shape[1] - 1)
        if not self._known.shape[1]:
            return opened_ns, opened_ns
        is_known = self._known[0, at] == numbers
        defaults = (NEVER, 0, 0)
        first, last, before = (
            np.where(is_known, row[at], default) for row, default in zip(self._known[1:], defaults, strict=True)
        )
        empty_ns = np.maximum(opened_ns, before)
        has_work = first != NEVER
        return np.where(has_work, first, empty_ns), np.where(has_work, last, empty_ns)

    def _carry_over(self, ranges: Int64Array) -> Int64Array:
        """Return what is known of these ranges: first start, last end, end of the work before; shape (3, n)."""
        lanes, place = np.unique(ranges[1], return_inverse=True)
        before = np.array([self._last_end.get(lane, 0) for lane in lanes.tolist()], np.int64)[place]
        extents = np.stack((np.full(len(before), NEVER), np.zeros(len(before), np.int64), before))
        if self._known.shape[1]:
            at = np.minimum(np.searchsorted(self._known[0], ranges[0]), self._known.shape[1] - 1)
            is_known = self._known[0, at] == ranges[0]
            extents[:, is_known] = self._known[1:, at[is_known]]
        return extents


def _whole_calls(work: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return lane, launch, start and end, with the first start and the last end of each call for all work of it."""
    lane, launch, start, end, call = work
    order = np.argsort(call, kind="stable")
    heads = np.flatnonzero(np.diff(call[order], prepend=call[order[0]] - 1))
    if len(heads) == len(order):
        return lane, launch, start, end
    sizes = np.diff(np.append(heads, len(order)))
    first, last = np.minimum.reduceat(start[order], heads), np.maximum.reduceat(end[order], heads)
    return lane[order], launch[order], np.repeat(first, sizes), np.repeat(last, sizes)


def _widen(extents: Int64Array, bounds: Int64Array, launch: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the extents of one lane's ranges with a batch of its work, which is sorted by launch."""
    low, high = np.searchsorted(launch, bounds[0]), np.searchsorted(launch, bounds[1], side="right")
    high = np.maximum(low, high)
    first, last, before = extents
    ended = np.maximum.accumulate(end)
    before = np.where((low > 0) & (first == NEVER), np.maximum(before, ended[low - 1]), before)
    # Slices of a range each: between them lie those that are not asked for.
    slices = np.stack((low, high), axis=1).ravel()
    starts, ends = np.append(start, NEVER), np.append(end, 0)
    has_work = high > low
    first = np.where(has_work, np.minimum(first, np.minimum.reduceat(starts, slices)[::2]), first)
    last = np.where(has_work, np.maximum(last, np.maximum.reduceat(ends, slices)[::2]), last)
    return np.stack((first, last, before))
