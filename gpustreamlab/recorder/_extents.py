"""From when to when a range lasted on the device, by the work that was launched inside it: no event is put on its stream.

A stream runs its work in order. So what two events around a block would enclose is what was enqueued on the stream between
their records, by whatever thread: the work of the lane whose launch lies between the opening and the closing of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import BoolArray, Int32Array, Int64Array, SpanKind

NEVER = np.iinfo(np.int64).max  # When a range that is still open was closed

RANGE_FIELDS = 4  # Rows of what `WorkExtents.fold` takes of ranges: number, lane, host times of opening and closing
WORK_FIELDS = 5  # Columns that it takes of work: lane, host time of its launch, start, end, number of the launching call

_NOTHING = np.empty((RANGE_FIELDS, 0), np.int64)


class RowFinder:
    """Finds rows by a number that each has."""

    def __init__(self, numbers: Int64Array) -> None:
        order = np.argsort(numbers, kind="stable")
        self._sorted = numbers[order]
        self._order = order.astype(np.int32) if len(order) < 1 << 31 else order

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Return the row of each number, or -1 where there is none; same shape."""
        if not self._sorted.size:
            return np.full(numbers.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        return np.where(self._sorted[at] == numbers, self._order[at], -1).astype(np.int64)


class Intervals(NamedTuple):
    """Intervals of several groups, half open: each begins at its start and has ended at its end."""

    group: Int64Array  # Shape (n,), int64; those of one group enclose each other
    start: Int64Array  # Shape (n,), int64
    end: Int64Array  # Shape (n,), int64
    number: Int64Array  # Of two that start together the one with the lower number is the outer one; shape (n,), int64


def find_innermost(
    intervals: Intervals, group: Int64Array, at: Int64Array, itself: Int64Array | Int32Array | None = None
) -> Int64Array:
    """Return for each moment of a group the index of the innermost interval around it, or -1.

    Where intervals overlap without enclosing each other, the one that started last counts.
    """
    if not len(at) or not len(intervals.group):
        return np.full(len(at), -1, np.int64)
    order = np.lexsort((intervals.number, intervals.start, intervals.group))
    ordered = Intervals(*(column[order] for column in intervals))
    found = _last_started(ordered, group, at)
    above = find_enclosing(ordered)
    if itself is not None:
        mine = np.flatnonzero(itself >= 0)
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        found[mine] = above[place[itself[mine]]]
        del mine, place
    ended = np.flatnonzero((found >= 0) & (at >= ordered.end[found]))
    jumps = [above.astype(np.int32)]  # to what lies 1 above, 2, 4, ..., and ends no earlier
    while ended.size and (jumps[-1] >= 0).any():
        jumps.append(np.where(jumps[-1] >= 0, jumps[-1][jumps[-1]], -1))
    for jump in reversed(jumps):
        higher = jump[found[ended]]
        goes = (higher >= 0) & (at[ended] >= ordered.end[higher])
        found[ended[goes]] = higher[goes]
    found[ended] = above[found[ended]]
    return np.where(found >= 0, order[found], -1).astype(np.int64, copy=False)


def find_enclosing(ordered: Intervals) -> Int64Array:
    """Return for each interval the index of the innermost one that encloses it, or -1."""
    ends, above = ordered.end, np.arange(-1, len(ordered.end) - 1, dtype=np.int64)
    above[np.flatnonzero(np.diff(ordered.group)) + 1] = -1
    looking = np.flatnonzero(above >= 0)
    while len(looking):
        higher = above[looking]
        looking = looking[(higher >= 0) & (ends[higher] < ends[looking])]
        # All between one and its `above` end before that does, so it may go on from there, known or not: rows of siblings take
        # few rounds, however many they are.
        above[looking] = above[above[looking]]
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


class WorkExtents:
    """First start and last end of the work in each range that is open, or waits for its work.

    Every batch of work is laid against the ranges as they are then, once: a range was open before its work was launched, and
    leaves only when the records of all its work have come. So nothing is kept of the work itself, however long a range lasts.
    """

    def __init__(self) -> None:
        # By range: number, first start, last end, end of the last work before it; sorted by number.
        self._known: Int64Array = _NOTHING
        self._last_end: dict[int, int] = {}

    def fold(self, ranges: Int64Array, work: Sequence[Int64Array]) -> None:
        """Take a batch of work."""
        ranges = ranges[:, np.argsort(ranges[0], kind="stable")]
        extents = self._carry_over(ranges)
        work = _whole_calls(work)
        for one in distinct(work[0])[0].tolist():
            is_here = work[0] == one
            here = np.flatnonzero(ranges[1] == one)
            if len(here):
                launch, start, end = (column[is_here] for column in work[1:4])
                order = np.argsort(launch, kind="stable")
                extents[:, here] = _widen(extents[:, here], ranges[2:, here], launch[order], start[order], end[order])
            self._last_end[one] = max(self._last_end.get(one, 0), int(work[3][is_here].max()))
        self._known = np.concatenate((ranges[:1], extents))

    def times(self, numbers: Int64Array, opened_ns: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return when ranges began and ended on the device; one without work is an instant."""
        at = RowFinder(self._known[0]).rows_of(numbers)
        first, last, before = np.append(self._known[1:], [[NEVER], [0], [0]], axis=1)[:, at]  # -1, not known, is last
        empty_ns = np.maximum(opened_ns, before)
        has_work = first != NEVER
        return np.where(has_work, first, empty_ns), np.where(has_work, last, empty_ns)

    def _carry_over(self, ranges: Int64Array) -> Int64Array:
        """Return what is known of these ranges: first start, last end, end of the work before; shape (3, n)."""
        lanes, place = np.unique(ranges[1], return_inverse=True)
        before = np.array([self._last_end.get(lane, 0) for lane in lanes.tolist()], np.int64)[place]
        extents = np.stack((np.full(len(before), NEVER), np.zeros(len(before), np.int64), before))
        at = RowFinder(self._known[0]).rows_of(ranges[0])
        extents[:, at >= 0] = self._known[1:, at[at >= 0]]
        return extents


def _whole_calls(work: Sequence[Int64Array]) -> Sequence[Int64Array]:
    """Return the work with the first start and the last end of each call for all work of it."""
    if (work[4][1:] > work[4][:-1]).all():
        return work
    order = np.argsort(work[4], kind="stable")
    lane, launch, start, end, call = (column[order] for column in work)
    heads = np.flatnonzero(np.diff(call, prepend=call[0] - 1))
    sizes = np.diff(np.append(heads, len(call))).astype(np.intp, copy=False)
    first, last = np.minimum.reduceat(start, heads), np.maximum.reduceat(end, heads)
    return lane, launch, np.repeat(first, sizes), np.repeat(last, sizes), call


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


RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
ANNOTATION_CODE = SPAN_KINDS.index(SpanKind.ANNOTATION)
HOST_CODE = SPAN_KINDS.index(SpanKind.HOST)
SAMPLE_CODE = SPAN_KINDS.index(SpanKind.SAMPLE)


def is_work(kind: Int64Array) -> BoolArray:
    """Tell which rows are kernels, copies and fills."""
    found: BoolArray = (kind > RANGE_CODE) & (kind <= SPAN_KINDS.index(SpanKind.FILL))
    return found


def adopt_by_annotations(rows: Mapping[str, Int64Array], parent: Int64Array) -> Int64Array:
    """Return the parents, with annotations where those are nearer than the range."""
    is_launch = rows["number"] < 0  # of a graph: it was launched as its nodes were
    annotated = np.flatnonzero((rows["kind"] == ANNOTATION_CODE) & ~is_launch)
    asking = np.flatnonzero((rows["kind"] != RANGE_CODE) & (rows["thread"] >= 0))
    if not len(annotated):
        return parent
    intervals = Intervals(rows["thread"][annotated], rows["start_ns"][annotated], rows["end_ns"][annotated], annotated)
    at_ns = np.where(is_work(rows["kind"]) | is_launch, rows["queued_ns"], rows["start_ns"])[asking]
    itself = np.full(len(parent), -1, np.int32)
    itself[annotated] = np.arange(len(annotated))
    found = find_innermost(intervals, rows["thread"][asking], at_ns, itself[asking])
    del at_ns, itself
    row = np.where(found >= 0, annotated[found], -1)
    known = parent[asking]
    # A range that is around the annotation too was open when that began, and is no newer than the innermost one then.
    is_around = ~is_launch[known] & (rows["parent"][asking] <= rows["parent"][row])
    is_nearer = (row >= 0) & ((known < 0) | is_around)
    adopted = parent.copy()
    adopted[asking] = np.where(is_nearer, row, known)
    return adopted


def span_work(rows: Mapping[str, Int64Array], parent: Int64Array) -> dict[str, Int64Array]:
    """Return for each row the first start, the last end and the number of the work at any depth below it.

    Ranges and annotations without any, and calls, have their own start twice; work has its own start and end.
    """
    kind, start_ns, end_ns = rows["kind"], rows["start_ns"], rows["end_ns"]
    works = is_work(kind)
    first_ns, last_ns = start_ns.copy(), np.where(works, end_ns, start_ns)
    count = works.astype(np.int64)
    holds = (kind == RANGE_CODE) | (kind == ANNOTATION_CODE)
    first_ns[holds], last_ns[holds] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    holders, level, above = np.flatnonzero(holds), np.flatnonzero(works & (parent >= 0)), parent.copy()
    # Work counts in what holds it, then that in what lies 1 above it, 2, 4, ...: a deep nest takes few rounds, too.
    for _ in range(2 + len(holders).bit_length()):
        into = above[level]
        np.minimum.at(first_ns, into, first_ns[level])
        np.maximum.at(last_ns, into, last_ns[level])
        np.add.at(count, into, count[level])
        above[level] = above[into]
        level = holders[above[holders] >= 0]
    is_empty = holds & (count == 0)
    first_ns[is_empty] = last_ns[is_empty] = start_ns[is_empty]
    return {"work_start_ns": first_ns, "work_end_ns": last_ns, "work_count": count}


KEPT_CHECKPOINTS = 1_000  # Checkpoints whose time is remembered; the newest count


class Checkpoints:
    """Remembers when the numbers were taken that stand for moments."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}

    def note(self, number: int, host_ns: int, place: int) -> None:
        """Note a number that is lower than those of all ranges to come, and a place before which nothing is of later."""
        self._known[number] = host_ns, place
        while len(self._known) > KEPT_CHECKPOINTS:
            del self._known[next(iter(self._known))]

    def place(self, since: int) -> int:
        """Return the place from which on rows may be of later than a checkpoint."""
        return self._known.get(since, (0, 0))[1]

    def find_later(self, columns: Mapping[str, Int64Array], since: int, to_clock_ns: Callable[[int], int]) -> BoolArray:
        """Tell which spans were opened or launched after a checkpoint."""
        is_range = columns["kind"] == RANGE_CODE
        is_later = is_range & (columns["number"] > since)
        if since in self._known:
            since_ns = to_clock_ns(self._known[since][0])
        else:  # long ago: launches before the first range cannot be separated from those before the checkpoint
            since_ns = int(columns["queued_ns"][is_later].min(initial=np.iinfo(np.int64).max))
        found: BoolArray = is_later | (~is_range & (columns["queued_ns"] >= since_ns))
        return found
