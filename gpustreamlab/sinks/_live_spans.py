"""Spans as a page gets them: each with the code of its row, in the order of rows and starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import ArrivedSpans, LiveRows, OpenSpans, bin_width_ns, merge_narrow
from gpustreamlab.draw import SpanColumns
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.record import START, Delta, Recorder, Unended
from gpustreamlab.typing import Int32Array, Int64Array, SpanKind

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


RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
IS_WORK = np.array([kind in DEVICE_WORK for kind in SPAN_KINDS])

MAX_SPANS = 10_000_000
"""Most spans that a page may hold: the memory of a browser's tab is finite."""
MOVED_SPANS = 200_000
"""Most spans that are sent once more so that the axis begins at the first of them."""


class NewSpans(NamedTuple):
    """What came since the last time."""

    delta: Delta
    """What the recorder told."""
    columns: SpanColumns
    """The spans, or items that stand for several."""
    missed_count: int = 0
    """How many were overwritten before they could be read, since the page is there."""
    is_moved: bool = False
    """Whether `columns` are all spans so far: one that started before the page's zero came, which has moved there."""


class SpanReader:
    """Reads a recorder's spans once, in the order in which they ended, and gives each a row.

    Parameters
    ----------
    recorder
        Whose spans.
    capacity
        How many can be read again.
    """

    def __init__(self, recorder: Recorder, capacity: int) -> None:
        self._recorder = recorder
        self.capacity = capacity
        self.cursor = START
        """Up to where it has read."""
        self._is_new = True
        self.rows = LiveRows()
        """The rows of the spans since then."""
        self.zero_ns = 0
        """The clock's time that is the page's zero."""
        self.start_ns = 0
        """First start so far; before the zero where that could not move any more."""
        self.end_ns = 0
        """Last end so far."""
        self.span_count = 0
        """Spans since the recorder was cleared."""
        self._since = 0
        self._codes, self._ends, self._owners = CodeRing(capacity), EdgeEnds(), Owners()

    def read_new(self, most: int = MAX_SPANS, *, title: str = "") -> NewSpans:
        """Return what is new, with narrow spans merged where there are more than so many.

        Spans come in the order of their ends, so the first start may come late. The zero then moves there, and as all times
        count from it, what is returned is everything so far.
        """
        awaited = self.rows.awaited
        delta = self._recorder.changes(self.cursor, awaited=awaited, title=title)
        unended = delta.unended
        missed = 0 if self._is_new else delta.missed
        if self._is_new or delta.is_cleared:
            self._start_anew(delta)
        self._forget_lost(awaited, delta.columns["number"], unended)
        codes = self.rows.add(self._arrived(delta), OpenSpans(unended.number, unended.parent, unended.lane))
        self._codes.put(delta.first, codes)
        self.cursor = delta.cursor
        is_moved = self._note_extent(delta.columns, unended)
        self._remember(delta.columns, codes, unended)
        edges = self._ends.resolve(delta.edges)
        columns = self.read_again().columns if is_moved else self._columns(delta, codes, edges, most)
        return NewSpans(delta, columns, missed, is_moved)

    def read_again(self) -> NewSpans:
        """Return what was read before and can be read again, with all names and details so far."""
        delta = self._recorder.changes(START._replace(row=self.first), until=self.cursor)
        codes = self._codes.get(delta.first, delta.cursor.row)
        arrows = find_edges(delta.edges, *_ends_of(delta.columns, codes, _ranges_of(delta.columns)))
        return NewSpans(delta, self._columns(delta, codes, arrows, MAX_SPANS))

    def _remember(self, columns: Mapping[str, Int64Array], codes: Int64Array, unended: Unended) -> None:
        """Remember ranges for arrows, and for the work that was launched in them."""
        rows = _ranges_of(columns)
        self._ends.remember(*_ends_of(columns, codes, rows))
        self._owners.remember(unended.number, unended.lane)
        self._owners.remember(columns["number"][rows], columns["lane"][rows], columns["name"][rows])

    def _forget_lost(self, awaited: Collection[int], number: Int64Array, unended: Unended) -> None:
        """Give up the places of awaited spans that have not come and are not on their way."""
        if awaited:
            come = number[np.isin(number, np.array(list(awaited)))]
            self.rows.forget(set(awaited) - set(unended.number.tolist()) - set(come.tolist()))

    @property
    def clear_count(self) -> int:
        """How often the recorder had been cleared; -1 before anything was read."""
        return -1 if self._is_new else self.cursor.clear_count

    @property
    def first(self) -> int:
        """Append index of the first span that can be read again."""
        return max(self._since, self.cursor.row - self.capacity)

    def _start_anew(self, delta: Delta) -> None:
        meta = delta.tables.metadata
        self._is_new = False
        self.rows = LiveRows(meta.clock_error_ns + meta.range_error_ns)
        self.zero_ns, self.start_ns, self.end_ns, self.span_count = 0, 0, 0, 0
        self._since = delta.first
        self._codes, self._ends, self._owners = CodeRing(self.capacity), EdgeEnds(), Owners()

    def _arrived(self, delta: Delta) -> ArrivedSpans:
        columns, tables = delta.columns, delta.tables
        # -1, the whole card, is last.
        sms = np.array([*(part.granted_sms for part in tables.partitions), tables.metadata.device.sm_count], np.int64)
        return ArrivedSpans(
            number=columns["number"],
            parent=columns["parent"],
            lane=columns["lane"],
            start_ns=columns["start_ns"],
            end_ns=columns["end_ns"],
            sms=sms[columns["partition"]],
            kind=columns["kind"],
        )

    def _note_extent(self, columns: Mapping[str, Int64Array], unended: Unended) -> bool:
        """Note how far the spans reach; tell whether the zero has moved, and with it those that were read before."""
        count = len(columns["start_ns"])
        if not count:
            return False
        first_ns, last_ns = int(columns["start_ns"].min()), int(columns["end_ns"].max())
        is_begin = not self.span_count
        self.span_count += count
        self.start_ns = first_ns if is_begin else min(self.start_ns, first_ns)
        self.end_ns = last_ns if is_begin else max(self.end_ns, last_ns)
        is_moved = not is_begin and first_ns < self.zero_ns and self.cursor.row - self.first <= MOVED_SPANS
        if is_begin or is_moved:
            # A range that is still open started before what it encloses.
            opened = [self._recorder.to_clock_ns(host_ns) for host_ns in unended.queued_host_ns.tolist()]
            self.zero_ns = min([first_ns, *opened])
        return is_moved

    def _columns(self, delta: Delta, codes: Int64Array, edges: Int64Array, most: int) -> SpanColumns:
        """Sort spans, and merge narrow ones of a row where there are more than so many."""
        columns = delta.columns
        order = np.lexsort((columns["end_ns"], columns["start_ns"], codes))
        row = codes[order]
        start_ns, end_ns = columns["start_ns"][order] - self.zero_ns, columns["end_ns"][order] - self.zero_ns
        count, busy_ns = np.empty(0, np.int64), np.empty(0, np.int64)
        if len(row) > most:
            items = merge_narrow(row, start_ns, end_ns, _bin_ns(row, start_ns, end_ns, most))
            row, order = row[items.first], order[items.pick]
            start_ns, end_ns, count, busy_ns = items.left_ns, items.right_ns, items.count, items.busy_ns
        return SpanColumns(
            row=row,
            start_ns=start_ns,
            end_ns=end_ns,
            name=columns["name"][order],
            kind=columns["kind"][order],
            thread=columns["thread"][order],
            partition=columns["partition"][order] + 1,
            queueing_ns=np.maximum(0, columns["start_ns"][order] - columns["queued_ns"][order]),
            place=delta.first + order,
            count=count,
            busy_ns=busy_ns,
            edges=edges - np.array([self.zero_ns, 0, self.zero_ns, 0]),
            **self._work(columns, order),
        )

    def _work(self, columns: Mapping[str, Int64Array], order: Int64Array) -> dict[str, Int64Array]:
        """Return what is known of kernels, copies and fills; nothing where there are none."""
        if (columns["kind"] == RANGE_CODE).all():
            return {}
        is_work = IS_WORK[columns["kind"][order]]
        lane, name = self._owners.of(np.where(is_work, columns["parent"][order], -1))
        return {
            "detail": columns["detail"][order],
            "size_bytes": columns["size_bytes"][order],
            "owner_lane": lane,
            "owner_name": name,
        }


def _bin_ns(row: Int64Array, start_ns: Int64Array, end_ns: Int64Array, most: int) -> int:
    """Return a width of bins with which about so many items are left, or up to twice as many."""
    row_count = 1 + int(np.count_nonzero(np.diff(row)))
    return bin_width_ns(int(end_ns.max() - start_ns.min()) * row_count / most)


def _ranges_of(columns: Mapping[str, Int64Array]) -> Int64Array:
    """Return which spans are ranges: arrows are drawn between these, and work is launched in them."""
    return np.flatnonzero(columns["kind"] == RANGE_CODE)


def _ends_of(
    columns: Mapping[str, Int64Array], codes: Int64Array, rows: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return number, row, start and end of some spans."""
    return columns["number"][rows], codes[rows], columns["start_ns"][rows], columns["end_ns"][rows]
