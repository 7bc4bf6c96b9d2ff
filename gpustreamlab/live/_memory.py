"""What is remembered of spans that were sent, each in memory that does not grow."""

from __future__ import annotations

import numpy as np

from gpustreamlab.typing import Int32Array, Int64Array

KNOWN_SPANS = 1 << 16
"""How many of the last spans an arrow can begin or end at."""
WAITING_EDGES = 1 << 14
"""How many arrows wait for one of their spans; the newest count."""

_FIRST_CODES = 4_096


class CodeRing:
    """The row code of each of the last spans, by append index.

    Parameters
    ----------
    size
        How many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._codes: Int32Array = np.zeros(min(size, _FIRST_CODES), np.int32)

    def put(self, first: int, codes: Int64Array) -> None:
        """Keep the codes of spans from an append index on."""
        while len(self._codes) < self._size and first + len(codes) > len(self._codes):
            # Until it is full nothing has wrapped, so growing is a copy.
            more = min(len(self._codes), self._size - len(self._codes))
            self._codes = np.concatenate((self._codes, np.zeros(more, np.int32)))
        kept = codes[-self._size :]
        places = np.arange(first + len(codes) - len(kept), first + len(codes)) % self._size
        self._codes[places] = kept

    def get(self, first: int, last: int) -> Int64Array:
        """Return the codes of spans by append index, the last one not included; they must be kept still."""
        codes: Int64Array = self._codes[np.arange(first, last) % self._size].astype(np.int64)
        return codes


class EdgeEnds:
    """Finds where arrows begin and end: on spans that came, each known by its number."""

    def __init__(self) -> None:
        # By number, modulo the size: a newer span takes the place of an older one.
        self._spans = np.full((4, KNOWN_SPANS), -1, np.int64)
        self._waiting = np.empty((0, 2), np.int64)

    def remember(self, number: Int64Array, row: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> None:
        """Remember spans."""
        self._spans[:, number % KNOWN_SPANS] = (number, row, start_ns, end_ns)

    def resolve(self, edges: Int64Array) -> Int64Array:
        """Take more arrows as pairs of numbers; return those whose spans both came, as `SpanColumns.edges`; shape (n, 4)."""
        pairs = np.concatenate((self._waiting, edges))[-WAITING_EDGES:]
        if not len(pairs):
            return np.empty((0, 4), np.int64)
        number, row, start_ns, end_ns = self._spans[:, pairs % KNOWN_SPANS]
        is_known = (number == pairs).all(axis=1)
        self._waiting = pairs[~is_known]
        return _arrows(row[is_known], start_ns[is_known], end_ns[is_known])


class Owners:
    """Knows the stream and the name of the last ranges, by number, for the work that was launched in them."""

    def __init__(self) -> None:
        # By number, modulo the size: a newer range takes the place of an older one.
        self._ranges = np.full((3, KNOWN_SPANS), -1, np.int64)

    def remember(self, number: Int64Array, lane: Int64Array, name: Int64Array | None = None) -> None:
        """Remember ranges; None for names that are not known yet."""
        place = number % KNOWN_SPANS
        self._ranges[0, place], self._ranges[1, place] = number, lane
        self._ranges[2, place] = -1 if name is None else name

    def of(self, parent: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the lane and the name of ranges, each -1 where it is not known; shape (n,) each."""
        number, lane, name = self._ranges[:, parent % KNOWN_SPANS]
        is_known = (number == parent) & (parent >= 0)
        return np.where(is_known, lane, -1), np.where(is_known, name, -1)


def find_edges(edges: Int64Array, number: Int64Array, row: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the arrows between these spans, as `SpanColumns.edges`; shape (n, 4)."""
    if not len(edges) or not len(number):
        return np.empty((0, 4), np.int64)
    order = np.argsort(number)
    at = order[np.minimum(np.searchsorted(number[order], edges), len(order) - 1)]
    at = at[(number[at] == edges).all(axis=1)]
    return _arrows(row[at], start_ns[at], end_ns[at])


def _arrows(row: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return arrows from the ends of the first spans to the starts of the second ones, in order of time."""
    found = np.stack((end_ns[:, 0], row[:, 0], start_ns[:, 1], row[:, 1]), axis=1)
    ordered: Int64Array = found[np.argsort(found[:, 0], kind="stable")]
    return ordered
