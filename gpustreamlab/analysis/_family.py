"""How deep spans lie within others of their lane, where those may come before or after them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpustreamlab.analysis._distinct import distinct
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, climb
from gpustreamlab.typing import Int64Array

REMEMBERED_SPANS = 1 << 16
"""How many of the last spans are remembered, for one that comes after the span around it."""


class Spans(Protocol):
    """Spans by number, as columns of equal length."""

    @property
    def number(self) -> Int64Array:
        """Shape (n,), int64."""
        ...

    @property
    def parent(self) -> Int64Array:
        """Shape (n,), int64."""
        ...

    @property
    def lane(self) -> Int64Array:
        """Shape (n,), int64."""
        ...


class Family:
    """Who encloses whom."""

    def __init__(self) -> None:
        # By number, modulo the size: a newer span takes the place of an older one.
        self._number = np.full(REMEMBERED_SPANS, -1, np.int64)
        self._parent = np.full(REMEMBERED_SPANS, -1, np.int64)
        self._lane = np.zeros(REMEMBERED_SPANS, np.int64)

    def add(self, spans: Spans, open_spans: Spans) -> tuple[Int64Array, Int64Array]:
        """Return how many spans of its lane enclose each span, and the number of the outermost of them, or its own."""
        if (spans.parent < 0).all():
            self._remember(spans)
            return np.zeros(len(spans.number), np.int64), spans.number
        number = np.concatenate((spans.number, open_spans.number))
        lane = np.concatenate((spans.lane, open_spans.lane))
        above_number = np.concatenate((spans.parent, open_spans.parent))
        above = _rows_of(number, above_number)
        past = self._recall(distinct(above_number[(above < 0) & (above_number >= 0)])[0])
        if len(past[0]):
            columns = zip((number, lane, above_number), past, strict=True)
            number, lane, above_number = (np.concatenate(pair) for pair in columns)
            above = _rows_of(number, above_number)
        self._remember(spans)
        above = _same_lane(above, lane)
        depth, root = climb(above)
        return depth[: len(spans.number)], number[root[: len(spans.number)]]

    def _remember(self, spans: Spans) -> None:
        place = spans.number % REMEMBERED_SPANS
        self._number[place], self._parent[place], self._lane[place] = spans.number, spans.parent, spans.lane

    def _recall(self, wanted: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return number, lane and parent of those that came before and are remembered, and of what encloses them."""
        found: list[Int64Array] = []
        for _ in range(MAX_LANE_ROWS):
            place = wanted % REMEMBERED_SPANS
            place = place[(self._number[place] == wanted) & (wanted >= 0)]
            if not place.size:
                break
            found.append(place)
            wanted = np.unique(self._parent[place])
        places = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return self._number[places], self._lane[places], self._parent[places]


def _rows_of(number: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the row of each wanted number, or -1."""
    least, width = int(number.min()), int(number.max() - number.min()) + 1
    if width <= 8 * len(number):
        # Numbers that follow each other: a table of them is faster than sorting.
        table = np.full(width + 1, -1, np.int64)
        table[number - least] = np.arange(len(number))
        at = wanted - least
        return table[np.where((at >= 0) & (at < width), at, width)]
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], wanted), len(order) - 1)
    rows: Int64Array = np.where((number[order][at] == wanted) & (wanted >= 0), order[at], -1)
    return rows


def _same_lane(above: Int64Array, lane: Int64Array) -> Int64Array:
    """Climb on where the enclosing span is of another lane."""
    above = above.copy()
    parents = above.copy()
    for _ in range(4 * MAX_LANE_ROWS):
        away = np.flatnonzero((above >= 0) & (lane[above] != lane))
        if not away.size:
            break
        above[away] = parents[above[away]]
    return above
