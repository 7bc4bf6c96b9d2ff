"""Bounded rings of rows, read by append index; and how rows and intervals are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.typing import Int32Array, Int64Array

SPAN_COLUMNS = (
    "start_ns",
    "end_ns",
    "queued_ns",
    "lane",
    "name",
    "kind",
    "parent",
    "thread",
    "partition",
    "number",
    "detail",
    "size_bytes",
    "correlation",
)
"""What the ring holds for each span, int64 each. ``number`` counts ranges as they open, and everything else, from
`FIRST_WORK_NUMBER` on, as it is told of; ``parent`` is the number of a range, or -1."""

FIRST_WORK_NUMBER = 1 << 48
"""Numbers of spans that are no ranges begin here: so they tell no one that ranges were opened."""
NUMBERS_APART = (1 << 36) + 7_919
"""How far the first numbers of two recorders of a process are apart: a span of one has no number of a span of another. Not a
power of two: readers keep the last spans by their numbers modulo one."""
RECORDERS = 4_095
"""Recorders of a process whose numbers differ; then they begin anew."""

MAX_RING_SIZE = 1_000_000_000
"""Most spans that a ring may hold: 104 GB."""

_FIRST_ROWS = 1_024


class Drained(NamedTuple):
    """What was appended between two indices."""

    columns: Mapping[str, Int64Array]
    """Copies, shape (n_new,) each, in the order of appending; see `SPAN_COLUMNS`."""
    cursor: int
    """Append index of the span behind the last one."""
    missed: int
    """Spans that were overwritten before they could be read; those that were cleared do not count."""
    clear_count: int
    """How often the buffer was cleared before this."""


class RowRing:
    """The last `ring_size` rows. Who uses it holds a lock.

    Memory grows with use up to ``ring_size * 8`` bytes for each column. When the ring is full, the oldest rows make room.

    Parameters
    ----------
    ring_size
        How many rows are kept, from 1 to `MAX_RING_SIZE`.
    names
        Of the columns, int64 each.

    Examples
    --------
    >>> log = RowRing(2, ("time_ns",))
    >>> log.append({"time_ns": np.arange(5)})
    >>> log.read().columns["time_ns"].tolist(), log.appended_count
    ([3, 4], 5)
    """

    def __init__(self, ring_size: int, names: Sequence[str] = SPAN_COLUMNS) -> None:
        if type(ring_size) is not int or not 1 <= ring_size <= MAX_RING_SIZE:
            raise OptionError(
                f"ring_size is {ring_size!r}; it must be a number of spans, from 1 to {MAX_RING_SIZE:,}. "
                "Use gpustreamlab.Session(ring_size=1_000_000)."
            )
        self.ring_size = ring_size
        self._names = tuple(names)
        self._rows = np.empty((len(names), 0), np.int64)
        self._first = 0  # append index of the row that came first after the last clear: it was in the first place
        self.appended_count = 0
        """Rows so far, those that are gone too."""
        self.clear_count = 0
        """How often it was cleared."""

    def __len__(self) -> int:
        return min(self.appended_count - self._first, self.ring_size)

    @property
    def dropped_count(self) -> int:
        """Rows that were overwritten because the ring was full, since it was last cleared."""
        return max(0, self.appended_count - self._first - self.ring_size)

    @property
    def size_bytes(self) -> int:
        """Memory that it holds."""
        return self._rows.nbytes

    def clear(self) -> None:
        """Forget every row, and give their memory back; append indices go on."""
        self._rows, self._first = self._rows[:, :0].copy(), self.appended_count
        self.clear_count += 1

    def append(self, columns: Mapping[str, Int64Array]) -> None:
        """Append rows, given as equally long columns. An interrupt leaves all of them here, or none."""
        block = np.stack([columns[name] for name in self._names])
        end = self.appended_count + block.shape[1]
        kept = block[:, -self.ring_size :]
        self._grow(min(end - self._first, self.ring_size))
        self._rows[:, self._places(end - kept.shape[1], end)] = kept
        self.appended_count = end

    def read(self, first: int = 0, last: int | None = None) -> Drained:
        """Return what is still there of the rows with these append indices, the last one not included; without it, all."""
        end = self.appended_count if last is None else last
        kept = max(first, self.appended_count - len(self))
        rows = self._rows[:, self._places(kept, max(kept, end))].copy()
        return Drained(dict(zip(self._names, rows, strict=True)), end, kept - max(first, self._first), self.clear_count)

    def _places(self, first: int, last: int) -> slice | Int64Array:
        """Return where the rows of append indices are, the last one not included."""
        low = (first - self._first) % self.ring_size
        if low + last - first <= self.ring_size:
            return slice(low, low + last - first)
        places: Int64Array = np.arange(low, low + last - first) % self.ring_size
        return places

    def _grow(self, wanted: int) -> None:
        """Make room for so many rows."""
        held = self._rows.shape[1]
        if wanted > held:
            # Until the ring is full it has not wrapped, so rows are in order and growing is a copy.
            rows = np.empty((len(self._names), min(max(wanted, 2 * held, _FIRST_ROWS), self.ring_size)), np.int64)
            rows[:, :held] = self._rows
            self._rows = rows


class RowFinder:
    """Finds rows by a number that each has.

    Parameters
    ----------
    numbers
        Of the rows; shape (n,), int64. Of equal ones the first counts.

    Examples
    --------
    >>> RowFinder(np.array([7, 5])).rows_of(np.array([5, 6, 7])).tolist()
    [1, -1, 0]
    """

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

    group: Int64Array
    """Shape (n,), int64; those of one group enclose each other."""
    start: Int64Array
    """Shape (n,), int64."""
    end: Int64Array
    """Shape (n,), int64."""
    number: Int64Array
    """Of two that start together the one with the lower number is the outer one; shape (n,), int64."""


def find_innermost(
    intervals: Intervals, group: Int64Array, at: Int64Array, itself: Int64Array | Int32Array | None = None
) -> Int64Array:
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
    if not len(at) or not len(intervals.group):
        return np.full(len(at), -1, np.int64)
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
    ended = inside[at[inside] >= ordered.end[found[inside]]]
    jumps = [above.astype(np.int32)]  # to what lies 1 above, 2, 4, ..., and ends no earlier
    while ended.size and (jumps[-1] >= 0).any():
        jumps.append(np.where(jumps[-1] >= 0, jumps[-1][jumps[-1]], -1))
    for jump in reversed(jumps):
        higher = jump[found[ended]]
        goes = (higher >= 0) & (at[ended] >= ordered.end[higher])
        found[ended[goes]] = higher[goes]
    found[ended] = above[found[ended]]
    return np.where(found >= 0, order[found], -1).astype(np.int64)


def find_enclosing(ordered: Intervals) -> Int64Array:
    """Return for each interval the index of the innermost one that encloses it, or -1.

    Parameters
    ----------
    ordered
        Sorted by group, start and number.
    """
    ends, is_first = ordered.end.tolist(), np.diff(ordered.group, prepend=ordered.group[:1]).astype(bool).tolist()
    above: list[int] = []
    opened: list[int] = []  # each is looked at once when it closes, however deep they nest
    for place, (end, begins) in enumerate(zip(ends, is_first, strict=True)):
        if begins:
            opened.clear()
        while opened and ends[opened[-1]] < end:
            opened.pop()
        above.append(opened[-1] if opened else -1)
        opened.append(place)
    return np.array(above, np.int64)


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
