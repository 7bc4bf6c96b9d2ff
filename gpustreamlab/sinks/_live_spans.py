"""Spans as a page gets them: each with the code of its row, in the order of rows and starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import ArrivedSpans, OpenSpans, RowPlanner, bin_width_ns, merge_narrow
from gpustreamlab.draw import SpanColumns
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.record import SPAN_COLUMNS, START, Chunk, Journal, RowFinder, Tables, Unended
from gpustreamlab.typing import Int64Array, SpanKind

KNOWN_SPANS = 1 << 16  # How many of the last ranges are known to arrows, and to work inside them
WAITING_EDGES = 1 << 14  # How many arrows wait for one of their spans; the newest count

_NUMBER, _LANE, _NAME, _ROW, _START, _END = range(6)


class LastRanges:
    """The last ranges by number: which stream and name work inside them belongs to, and where arrows begin and end."""

    def __init__(self) -> None:
        # By number, modulo the size: a newer range takes the place of an older one.
        self._ranges = np.full((6, KNOWN_SPANS), -1, np.int64)
        self._waiting = np.empty((0, 2), np.int64)

    def note_open(self, number: Int64Array, lane: Int64Array) -> None:
        """Remember ranges that have not ended."""
        place = number % KNOWN_SPANS
        self._ranges[:, place] = -1
        self._ranges[_NUMBER, place], self._ranges[_LANE, place] = number, lane

    def remember(self, columns: Mapping[str, Int64Array], row: Int64Array) -> None:
        """Remember the ranges among spans, whose rows are these."""
        is_range = columns["kind"] == RANGE_CODE
        found = [*(columns[name] for name in ("number", "lane", "name")), row, columns["start_ns"], columns["end_ns"]]
        self._ranges[:, columns["number"][is_range] % KNOWN_SPANS] = [values[is_range] for values in found]

    def owners(self, number: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the lane and the name of ranges, each -1 where it is not known; shape (n,) each."""
        known = self._ranges[:, number % KNOWN_SPANS]
        is_known = (known[_NUMBER] == number) & (number >= 0)
        return np.where(is_known, known[_LANE], -1), np.where(is_known, known[_NAME], -1)

    def resolve(self, edges: Int64Array) -> Int64Array:
        """Take more arrows as pairs of numbers; return those whose ranges both came, as `SpanColumns.edges`; shape (n, 4)."""
        pairs = np.concatenate((self._waiting, edges))[-WAITING_EDGES:]
        found = self._ranges[:, pairs % KNOWN_SPANS]
        is_known = ((found[_NUMBER] == pairs) & (found[_ROW] >= 0)).all(axis=1)
        self._waiting = pairs[~is_known]
        return _arrows(*found[_ROW:, is_known])


def find_edges(edges: Int64Array, columns: Mapping[str, Int64Array], row: Int64Array) -> Int64Array:
    """Return the arrows between these spans, whose rows are these, as `SpanColumns.edges`; shape (n, 4)."""
    at = RowFinder(columns["number"]).rows_of(edges)
    at = at[(at >= 0).all(axis=1)]
    return _arrows(row[at], columns["start_ns"][at], columns["end_ns"][at])


def _arrows(row: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return arrows from the ends of the first spans to the starts of the second ones, in order of time."""
    found = np.stack((end_ns[:, 0], row[:, 0], start_ns[:, 1], row[:, 1]), axis=1)
    ordered: Int64Array = found[np.argsort(found[:, 0], kind="stable")]
    return ordered


RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
IS_WORK = np.array([kind in DEVICE_WORK for kind in SPAN_KINDS])

MAX_SPANS = 10_000_000  # Most spans that a page may hold: the memory of a browser's tab is finite
MOVED_SPANS = 200_000  # Most spans that are sent once more so that the axis begins at the first of them


_LANE_ROW = SPAN_COLUMNS.index("lane")


def lane_codes(tables: Tables) -> Int64Array:
    """Return how a page counts each lane; -1 for those in which only gpustreamlab itself works; shape (n_lanes,)."""
    is_kept = np.array([not lane.is_tools for lane in tables.lanes], bool)
    return np.where(is_kept, np.cumsum(is_kept) - 1, -1)


def shown_tables(tables: Tables) -> Tables:
    """Return the tables without those lanes."""
    return tables._replace(lanes=[lane for lane in tables.lanes if not lane.is_tools])


class NewSpans(NamedTuple):
    """What came since the last time."""

    chunk: Chunk
    """What the page shows of what the recorder told: without lanes in which only gpustreamlab itself works, as traces are."""
    columns: SpanColumns  # The spans, or items that stand for several
    missed_count: int = 0  # How many were overwritten before they could be read, since the page is there
    is_moved: bool = False
    """Whether `columns` are all spans so far: one that started before the page's zero came, which has moved there."""


class SpanReader:
    """Reads a recorder's spans once, in the order in which they ended, and gives each a row."""

    def __init__(self, recorder: Journal, capacity: int) -> None:
        self._recorder = recorder
        self.capacity = capacity
        self.tables = shown_tables(recorder.tables)  # As the page shows them, without markers
        self._place = START
        self.clear_count = -1  # How often it has begun anew since the first time
        self.rows = RowPlanner()  # The rows of the spans since then
        self.zero_ns = 0  # The clock's time that is the page's zero
        self.start_ns = 0  # First start so far; before the zero where that could not move any more
        self.end_ns = 0  # Last end so far
        self.span_count = 0  # Spans since the recorder was cleared
        self._row_count = 0  # rows that were read since it began anew, of lanes that are not shown too
        self.lane = lane_codes(recorder.tables)
        """How the page counts each lane; -1 for one that it lacks. It never changes, as lanes are only added."""
        self._codes = np.zeros(capacity, np.int32)  # of the row of each of the last spans, by append index modulo the size
        self._ranges = LastRanges()

    def read_new(self, most: int = MAX_SPANS) -> NewSpans:
        """Return what is new, with narrow spans merged where there are more than so many.

        Spans come in the order of their ends, so the first start may come late. The zero then moves there, and as all times
        count from it, what is returned is everything so far.
        """
        told, unended = self._recorder.follow(self._place)
        missed = told.missed if self.clear_count >= 0 else 0
        if told.tables is not None:
            self.lane, self.tables = lane_codes(told.tables), shown_tables(told.tables)
        if told.is_anew:
            self._start_anew()
        self._place, self._row_count = told.place, self._row_count + told.row_count
        chunk, at = self._shown(told)
        is_open = self.lane[unended.lane] >= 0
        unended = Unended(*(values[is_open] for values in unended))
        unended = unended._replace(lane=self.lane[unended.lane])
        columns = chunk.columns
        codes = self.rows.add(self._arrived(columns), OpenSpans(unended.number, unended.parent, unended.lane))
        self._codes[at[-self.capacity :] % self.capacity] = codes[-self.capacity :]
        is_moved = self._note_extent(columns, unended)
        self._ranges.note_open(unended.number, unended.lane)
        self._ranges.remember(columns, codes)
        edges = self._ranges.resolve(chunk.edges.T)
        shown = self.read_again().columns if is_moved else self._columns(columns, codes, edges, most)
        return NewSpans(chunk, shown, missed, is_moved)

    def read_again(self) -> NewSpans:
        """Return what was read before and can be read again, with all names and details so far."""
        told = self._recorder.changes(collects=False, until=self._place)
        chunk, at = self._shown(told._replace(rows=told.rows[:, -min(self.capacity, self._row_count) :]))
        columns, codes = chunk.columns, self._codes[at % self.capacity].astype(np.int64)
        edges = find_edges(chunk.edges.T, columns, codes)
        return NewSpans(chunk, self._columns(columns, codes, edges, MAX_SPANS))

    @property
    def dropped_count(self) -> int:
        """Spans that the recorder lacks."""
        return self._recorder.dropped_count

    def _shown(self, told: Chunk) -> tuple[Chunk, Int64Array]:
        """Leave out what is no work of the user's, and return how the page counts each row that was read last."""
        at = np.arange(self._row_count - told.row_count, self._row_count)
        if (self.lane == np.arange(len(self.lane))).all():
            return told, at
        lane, sampled = self.lane[told.rows[_LANE_ROW]], self.lane[told.samples[1]]
        rows, samples = told.rows[:, lane >= 0], told.samples[:, sampled >= 0]
        rows[_LANE_ROW], samples[1] = lane[lane >= 0], sampled[sampled >= 0]
        return told._replace(rows=rows, samples=samples), at[lane >= 0]

    def _start_anew(self) -> None:
        meta = self.tables.metadata
        self.clear_count += 1
        self.rows = RowPlanner(meta.clock_error_ns + meta.range_error_ns)
        self.zero_ns, self.start_ns, self.end_ns, self.span_count, self._row_count = 0, 0, 0, 0, 0
        self._ranges = LastRanges()

    def _arrived(self, columns: Mapping[str, Int64Array]) -> ArrivedSpans:
        tables = self.tables
        # Behind the partitions, by -1, the cards.
        sms_of = {device.ordinal: device.sm_count for device in (tables.metadata.device, *tables.metadata.devices)}
        card_sms = np.array([sms_of.get(lane.device, 0) for lane in tables.lanes], np.int64)
        part_sms = np.array([*(part.granted_sms for part in tables.partitions), 0], np.int64)
        return ArrivedSpans(
            number=columns["number"],
            parent=columns["parent"],
            lane=columns["lane"],
            start_ns=columns["start_ns"],
            end_ns=columns["end_ns"],
            sms=np.where(columns["partition"] < 0, card_sms[columns["lane"]], part_sms[columns["partition"]]),
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
        is_moved = not is_begin and first_ns < self.zero_ns and min(self.capacity, self._row_count) <= MOVED_SPANS
        if is_begin or is_moved:
            # A range that is still open started before what it encloses.
            opened = [self._recorder.to_clock_ns(host_ns) for host_ns in unended.queued_host_ns.tolist()]
            self.zero_ns = min([first_ns, *opened])
        return is_moved

    def _columns(self, columns: Mapping[str, Int64Array], codes: Int64Array, edges: Int64Array, most: int) -> SpanColumns:
        """Sort spans, and merge narrow ones of a row where there are more than so many."""
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
            place=columns["number"][order],
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
        lane, name = self._ranges.owners(np.where(is_work, columns["parent"][order], -1))
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
