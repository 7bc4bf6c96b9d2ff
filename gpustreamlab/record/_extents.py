"""From when to when a range lasted on the device, by the work that was launched inside it: no event is put on its stream.

A stream runs its work in order. So what two events around a block would enclose is what was enqueued on the stream between
their records, by whatever thread: the work of the lane whose launch lies between the opening and the closing of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.record._buffer import ColumnLog, Intervals, find_innermost
from gpustreamlab.record._ranges import NOTHING_OPEN, FinishedRange, RecordedLane, ThreadState
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

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


RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
ANNOTATION_CODE = SPAN_KINDS.index(SpanKind.ANNOTATION)
HOST_CODE = SPAN_KINDS.index(SpanKind.HOST)


class NumberPlaces:
    """Finds rows by their numbers.

    Parameters
    ----------
    numbers
        Of the rows; shape (n,), int64.
    """

    def __init__(self, numbers: Int64Array) -> None:
        self._order = np.argsort(numbers, kind="stable")
        self._sorted = numbers[self._order]

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Return the row of each number, or -1 where there is none."""
        if not self._sorted.size:
            return np.full(len(numbers), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        return np.where(self._sorted[at] == numbers, self._order[at], -1).astype(np.int64)


def is_work(kind: Int64Array) -> BoolArray:
    """Tell which rows are kernels, copies and fills."""
    found: BoolArray = (kind > RANGE_CODE) & (kind <= SPAN_KINDS.index(SpanKind.FILL))
    return found


def adopt_by_annotations(rows: Mapping[str, Int64Array], parent: Int64Array) -> Int64Array:
    """Return the parents, with annotations where those are nearer than the range.

    Parameters
    ----------
    rows
        Columns of the trace in its order. Work is inside what its thread had open when it was launched.
    parent
        The row of each one's range, or -1; shape (n,), int64.
    """
    is_launch = rows["number"] < 0  # of a graph: it was launched as its nodes were
    annotated = np.flatnonzero((rows["kind"] == ANNOTATION_CODE) & ~is_launch)
    asking = np.flatnonzero((rows["kind"] != RANGE_CODE) & (rows["thread"] >= 0))
    if not len(annotated):
        return parent
    columns = (rows["thread"], rows["start_ns"], rows["end_ns"], np.arange(len(parent)))
    intervals = Intervals(*(column[annotated] for column in columns))
    at_ns = np.where(is_work(rows["kind"]) | is_launch, rows["queued_ns"], rows["start_ns"])
    found = find_innermost(intervals, rows["thread"][asking], at_ns[asking], itself=_places_among(asking, annotated))
    row = np.where(found >= 0, annotated[found], -1)
    known = parent[asking]
    # A range that is around the annotation too was open when that began, and is no newer than the innermost one then.
    is_around = ~is_launch[known] & (rows["parent"][asking] <= rows["parent"][row])
    is_nearer = (row >= 0) & ((known < 0) | is_around)
    adopted = parent.copy()
    adopted[asking] = np.where(is_nearer, row, known)
    return adopted


def _places_among(rows: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the place of each row among the wanted ones, both ascending, or -1."""
    at = np.minimum(np.searchsorted(wanted, rows), len(wanted) - 1)
    return np.where(wanted[at] == rows, at, -1)


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
    inside = np.flatnonzero(works & (parent >= 0))
    for level in (inside, *_levels(np.flatnonzero(holds), parent)):
        above = parent[level]
        order = np.argsort(above, kind="stable")
        level, above = level[order], above[order]  # noqa: PLW2901 - the same, in order
        heads = np.flatnonzero(np.diff(above, prepend=-1))
        if len(heads):
            into = above[heads]
            first_ns[into] = np.minimum(first_ns[into], np.minimum.reduceat(first_ns[level], heads))
            last_ns[into] = np.maximum(last_ns[into], np.maximum.reduceat(last_ns[level], heads))
            count[into] += np.add.reduceat(count[level], heads)
    is_empty = holds & (count == 0)
    first_ns[is_empty] = last_ns[is_empty] = start_ns[is_empty]
    return {"work_start_ns": first_ns, "work_end_ns": last_ns, "work_count": count}


def _levels(holders: Int64Array, parent: Int64Array) -> list[Int64Array]:
    """Return the rows that have parents, those that lie deepest first."""
    depth = np.zeros(len(holders), np.int64)
    climbing, above = np.arange(len(holders)), parent[holders]
    while climbing.size:
        is_inside = above >= 0
        climbing, above = climbing[is_inside], above[is_inside]
        depth[climbing] += 1
        above = parent[above]
    order = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order], prepend=-1))
    return [block for block in np.split(holders[order], bounds[1:]) if len(block) and parent[block[0]] >= 0]


class Relatives(NamedTuple):
    """Ranges that have not ended, as columns; each is an ancestor of one that was drained."""

    number: Int64Array
    """Shape (n,), int64."""
    parent: Int64Array
    """Number of the enclosing range, or -1; shape (n,), int64."""
    lane: Int64Array
    """Shape (n,), int64."""
    queued_host_ns: Int64Array
    """When each was opened, on the host's clock; shape (n,), int64."""


def find_relatives(
    columns: Mapping[str, Int64Array], lanes: Sequence[RecordedLane], awaited: Collection[int] = ()
) -> Relatives:
    """Find the ranges that enclose drained ones and have not ended.

    Parameters
    ----------
    columns
        What was drained just now, under the same lock.
    lanes
        Where open and waiting ranges are looked for.
    awaited
        Numbers of more ranges to look for.
    """
    parent = columns["parent"][columns["parent"] >= 0]
    missing = set(_absent(distinct(parent)[0], columns["number"]).tolist())
    missing |= set(awaited)
    found: dict[int, tuple[int, int, int]] = {}
    known: dict[int, tuple[int, int, int]] = {}
    # A range goes from the open ones to the waiting ones without a lock: looked for in this order it is seen in one of them.
    for place in (_open, _waiting):
        if missing - found.keys():
            known |= place(lanes)
            _climb(missing, known, found)
    rows = np.array([(number, *entry) for number, entry in found.items()], np.int64).reshape(-1, 4)
    return Relatives(*rows.T.copy())


def _absent(wanted: Int64Array, number: Int64Array) -> Int64Array:
    """Return those of the wanted numbers that are not there. Numbers come in long runs, which a stable sort makes use of."""
    ordered = np.append(np.sort(number, kind="stable"), -1)
    absent: Int64Array = wanted[ordered[np.searchsorted(ordered[:-1], wanted)] != wanted]
    return absent


def _climb(wanted: set[int], known: Mapping[int, tuple[int, int, int]], found: dict[int, tuple[int, int, int]]) -> None:
    """Add those that are wanted, and their own ancestors."""
    for number in wanted:
        while number in known and number not in found:
            found[number] = known[number]
            number = known[number][0]  # noqa: PLW2901 - one step up


def _open(lanes: Sequence[RecordedLane]) -> dict[int, tuple[int, int, int]]:
    """Return the open ranges of all threads: by number their parent, lane, and when they were opened."""
    states = {state for lane in lanes for writer in tuple(lane.writers) if (state := writer.owner()) is not None}
    found = {}
    for state in states:
        entries = state.open_ranges
        for below, (_, queued_host_ns, number, opened) in zip((NOTHING_OPEN, *entries), entries, strict=False):
            found[number] = (below[2], opened.lane.index, queued_host_ns)
    return found


def _waiting(lanes: Sequence[RecordedLane]) -> dict[int, tuple[int, int, int]]:
    """Return the closed ranges that wait for the device, likewise."""
    found = {}
    for lane in lanes:
        for _, _, queued_host_ns, number, parent, _ in lane.closed_ranges():
            found[number] = (parent, lane.index, queued_host_ns)
    return found


KEPT_CHECKPOINTS = 1_000
"""Checkpoints whose time is remembered; the newest count."""


class Checkpoints:
    """Remembers when the numbers were taken that stand for moments."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}

    def note(self, number: int, host_ns: int, row: int) -> None:
        """Note a number that is lower than those of all ranges to come, and the append index of the next row."""
        self._known[number] = host_ns, row
        while len(self._known) > KEPT_CHECKPOINTS:
            del self._known[next(iter(self._known))]

    def row(self, since: int) -> int:
        """Return the append index from which on rows may be of later than a checkpoint."""
        return self._known.get(since, (0, 0))[1]

    def find_later(self, columns: Mapping[str, Int64Array], since: int, to_clock_ns: Callable[[int], int]) -> BoolArray:
        """Tell which spans were opened or launched after a checkpoint."""
        is_range = columns["kind"] == RANGE_CODE
        is_later = is_range & (columns["number"] > since)
        if since in self._known:
            since_ns = to_clock_ns(self._known[since][0])
        else:  # long ago: what was launched before the first range is not told from what came before the checkpoint
            since_ns = int(columns["queued_ns"][is_later].min(initial=np.iinfo(np.int64).max))
        found: BoolArray = is_later | (~is_range & (columns["queued_ns"] >= since_ns))
        return found


CLOSED_RANGES = 262_144
"""Closed ranges that launches are looked up in, beside those that still wait for the device; the newest count."""

_COLUMNS = ("thread", "opened_host_ns", "closed_host_ns", "number")


class ClosedRanges:
    """The ranges that have left the threads that closed them, kept while kernels are captured.

    Parameters
    ----------
    limit
        How many are kept.
    """

    def __init__(self, limit: int = CLOSED_RANGES) -> None:
        self._log = ColumnLog(_COLUMNS, limit)

    def __len__(self) -> int:
        return len(self._log)

    def append(self, rows: Sequence[FinishedRange], thread: int) -> None:
        """Keep ranges that a thread has closed."""
        self._log.append(dict(zip(_COLUMNS, _columns_of(rows, thread), strict=True)))

    def intervals(self, first_ns: int, last_ns: int) -> Int64Array:
        """Return those that were open at some time in between: thread, opening, closing, number; shape (4, n)."""
        columns = self._log.read()
        is_near = (columns["closed_host_ns"] > first_ns) & (columns["opened_host_ns"] <= last_ns)
        return np.stack([columns[name][is_near] for name in _COLUMNS])


def find_enclosing_ranges(
    closed: ClosedRanges,
    states: Iterable[ThreadState],
    lanes: Sequence[RecordedLane],
    thread: Int64Array,
    at_host_ns: Int64Array,
) -> Int64Array:
    """Return the number of the innermost range that each thread had open at each moment of the host, or -1.

    Who calls holds the recorder's lock, so that no range goes from those that wait to the closed ones meanwhile.

    Parameters
    ----------
    closed
        Ranges that have ended.
    states
        What is open in the threads that live.
    lanes
        Where closed ranges wait for the device.
    thread
        Shape (n,), int64: as activities number threads.
    at_host_ns
        Shape (n,), int64.
    """
    if not len(at_host_ns):
        return np.empty(0, np.int64)
    # A range goes from the open ones to the waiting ones without a lock: looked for in this order it is seen in one of them.
    opened = [_open_in(state) for state in states]
    waiting = [
        _columns_of(tuple(writer.finished), writer.ident) for lane in lanes for writer in tuple(lane.writers) if writer.finished
    ]
    ended = closed.intervals(int(at_host_ns.min()), int(at_host_ns.max()))
    whole = np.concatenate((*opened, *waiting, ended), axis=1)
    # Seen in two places, it counts as closed.
    whole = whole[:, np.lexsort((whole[2], whole[3]))]
    whole = whole[:, np.diff(whole[3], prepend=-2) > 0]
    found = find_innermost(Intervals(*whole), thread, at_host_ns)
    return np.where(found >= 0, whole[3][found], -1) if whole.shape[1] else found


def _columns_of(rows: Sequence[FinishedRange], thread: int) -> Int64Array:
    _, _, opened, numbers, _, closed = zip(*rows, strict=True)
    return np.array([[thread] * len(rows), opened, closed, numbers], np.int64)


def _open_in(state: ThreadState) -> Int64Array:
    rows = [(state.ident, queued_host_ns, NEVER, number) for _, queued_host_ns, number, _ in state.open_ranges]
    return np.array(rows, np.int64).reshape(-1, 4).T
