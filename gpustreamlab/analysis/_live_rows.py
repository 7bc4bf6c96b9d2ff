"""Which row each span is drawn in, decided as spans come in; `gpustreamlab.analysis._rows` says how."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._regions import LEVEL_OF_KIND, Level
from gpustreamlab.analysis._rows import (
    MAX_LANE_ROWS,
    NEVER_NS,
    Place,
    Planner,
    Spans,
    by_group_and_start,
    climb,
    enclosing,
    place_in_slots,
)
from gpustreamlab.typing import Int64Array

KEPT_INTERVALS = 512  # How many of a sub-row's last spans are known, to place one that comes late between them


class ArrivedSpans(NamedTuple):
    """Spans in the order in which they came, as columns of equal length."""

    number: Int64Array  # Numbers that tell spans apart; shape (n,), int64
    parent: Int64Array  # Number of the enclosing span, or -1; shape (n,), int64
    lane: Int64Array  # Shape (n,), int64
    start_ns: Int64Array  # Shape (n,), int64
    end_ns: Int64Array  # Shape (n,), int64
    sms: Int64Array  # How many SMs each could use; shape (n,), int64
    kind: Int64Array  # Code of the `SpanKind`; shape (n,), int64


class OpenSpans(NamedTuple):
    """Ranges that have not come yet and enclose some spans that have, as columns of equal length."""

    number: Int64Array  # Shape (n,), int64
    parent: Int64Array  # Shape (n,), int64
    lane: Int64Array  # Shape (n,), int64


class LiveRows(Planner):
    """The rows of a timeline that grows.

    Examples
    --------
    >>> rows = LiveRows()
    >>> column = lambda *values: np.array(values, np.int64)
    >>> gemm = ArrivedSpans(column(1), column(0), column(0), column(500), column(900), column(132), column(0))
    >>> rows.add(gemm, OpenSpans(column(0), column(-1), column(0))).tolist()
    [0]
    >>> step = ArrivedSpans(column(0), column(-1), column(0), column(0), column(1000), column(132), column(0))
    >>> rows.add(step, OpenSpans(column(), column(), column())).tolist()
    [1]
    >>> rows.table(lane_count=1).sub_row.tolist()
    [1, 0]
    """

    upwards = frozenset({Level.ANNOTATION, Level.CALL})

    def __init__(self, tolerance_ns: int = 0) -> None:
        super().__init__(tolerance_ns)
        self._stacks: dict[Place, _Stack] = {}

    def add(self, spans: ArrivedSpans, open_spans: OpenSpans) -> Int64Array:
        """Return the code of each span's row; shape (n,), int64."""
        level, depth = LEVEL_OF_KIND[spans.kind], np.zeros(len(spans.number), np.int64)
        ranges = np.flatnonzero(level == Level.RANGE)
        if (spans.parent[ranges] >= 0).any():
            columns = zip((spans.number, spans.parent, spans.lane), open_spans, strict=True)
            number, parent, lane = (np.concatenate((own[ranges], opened)) for own, opened in columns)
            depth[ranges] = climb(enclosing(_rows_of(number, parent), lane))[0][: len(ranges)]
        return self.place(Spans(spans.lane, spans.start_ns, spans.end_ns, spans.sms), level, depth, 0 * depth)

    def slots(self, places: Sequence[Place], group: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
        """Return which sub-row of its place each span has: one where it fits between those that came before; shape (n,)."""
        tolerance_ns = self.tolerance_of(places)
        order = by_group_and_start(group, start_ns, end_ns)
        group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
        slots = place_in_slots(group, start_ns, end_ns, tolerance_ns)
        for first, last in pairwise(np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist()):
            place, own = places[group[first]], slice(first, last)
            if place not in self._stacks:
                self._stacks[place] = _Stack(tolerance_ns, is_upwards=place.level in self.upwards)
            self._stacks[place].fill(start_ns[own], end_ns[own], slots[own])
        found = np.empty(len(order), np.int64)
        found[order] = slots
        return found


class _Stack:
    """Sub-rows directly below each other: each takes spans that follow each other."""

    def __init__(self, tolerance_ns: int, *, is_upwards: bool = False) -> None:
        self._tolerance_ns, self._is_upwards = tolerance_ns, is_upwards
        self.rows: list[_SubRow] = []

    def fill(self, starts: Int64Array, ends: Int64Array, slots: Int64Array) -> None:
        """Put spans where there is room."""
        is_plain = not slots.any()
        if is_plain and not self._collides(0, int(starts[0]), int(ends[0])):
            self.rows[0].extend(starts, ends)
        elif self._is_upwards:
            order = np.lexsort((-starts, ends))
            slots[order] = self._fit_all(starts[order], ends[order])
        else:
            wanted = np.minimum(slots, MAX_LANE_ROWS)
            for slot in np.unique(wanted).tolist():
                rows = np.flatnonzero(wanted == slot)
                slots[rows] = self._append(slot, starts[rows], ends[rows])

    def _append(self, slot: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Put spans that follow each other behind those of a sub-row; those that come too late for it, where there is room."""
        found = np.full(len(starts), slot)
        if slot == MAX_LANE_ROWS:
            return found
        at = int(np.searchsorted(starts, self._row(slot).reach_ns - self._tolerance_ns))
        # Few late ones are placed one by one, many in the first sub-row behind which they come.
        late = starts[:at], ends[:at]
        found[:at] = self._append(slot + 1, *late) if at > KEPT_INTERVALS else self._fit_all(*late)
        while at < len(starts) and self._collides(slot, int(starts[at]), int(ends[at])):
            # What came late may have reached further still.
            found[at] = self._fit(int(starts[at]), int(ends[at]))
            at += 1
        if at < len(starts):
            self._row(slot).extend(starts[at:], ends[at:])
        return found

    def _fit_all(self, starts: Int64Array, ends: Int64Array) -> list[int]:
        return [self._fit(*span) for span in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _fit(self, start_ns: int, end_ns: int) -> int:
        """Put one span into the first sub-row that has room."""
        for slot in range(MAX_LANE_ROWS):
            if self._row(slot).take(start_ns, end_ns, self._tolerance_ns):
                return slot
        return MAX_LANE_ROWS

    def _collides(self, slot: int, start_ns: int, end_ns: int) -> bool:
        return _collides(start_ns, end_ns, self._row(slot).reach_ns, self._tolerance_ns)

    def _row(self, slot: int) -> _SubRow:
        while len(self.rows) <= slot:
            self.rows.append(_SubRow())
        return self.rows[slot]


@dataclass(slots=True)
class _SubRow:
    """Spans that follow each other: the last of them, in order of time."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    reach_ns: int = -NEVER_NS  # End of the last one
    since_ns: int = -NEVER_NS  # End of the last one that is not known any more

    def extend(self, starts: Int64Array, ends: Int64Array) -> None:
        """Take spans that come behind all others."""
        if len(starts) > KEPT_INTERVALS:
            self.starts, self.ends = [], []
            self.since_ns = int(ends[-KEPT_INTERVALS - 1])
        self.starts += starts[-KEPT_INTERVALS:].tolist()
        self.ends += ends[-KEPT_INTERVALS:].tolist()
        self._trim()

    def take(self, start_ns: int, end_ns: int, tolerance_ns: int) -> bool:
        """Take a span if it has room between the others."""
        at = bisect_right(self.starts, start_ns)
        before_ns = self.ends[at - 1] if at else self.since_ns
        if _collides(start_ns, end_ns, before_ns, tolerance_ns):
            return False
        if at < len(self.starts) and _collides(self.starts[at], self.ends[at], end_ns, tolerance_ns):
            return False
        self.starts.insert(at, start_ns)
        self.ends.insert(at, end_ns)
        self._trim()
        return True

    def _trim(self) -> None:
        self.reach_ns = self.ends[-1]
        excess = len(self.starts) - KEPT_INTERVALS
        if excess > KEPT_INTERVALS:
            self.since_ns = self.ends[excess - 1]
            del self.starts[:excess], self.ends[:excess]


def _collides(start_ns: int, end_ns: int, before_ns: int, tolerance_ns: int) -> bool:
    """Tell whether a span cannot follow one that ends at `before_ns` in one sub-row."""
    return start_ns < before_ns and (start_ns < before_ns - tolerance_ns or end_ns <= before_ns)


def _rows_of(number: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the row of each wanted number, or -1."""
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], wanted), len(order) - 1)
    rows: Int64Array = np.where((number[order][at] == wanted) & (wanted >= 0), order[at], -1)
    return rows
