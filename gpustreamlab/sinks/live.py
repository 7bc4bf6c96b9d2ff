"""What a live view is sent: the spans that came since the last time, small and in bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import (
    ArrivedSpans,
    OpenSpans,
    RowPlanner,
    bin_width_ns,
    display_name,
    merge_narrow,
)
from gpustreamlab.draw import (
    Header,
    NameLooks,
    SpanColumns,
    detail_entries,
    draw_figure,
    is_partly_captured,
    pack_columns,
    plan_header,
    plan_tables,
    style_entries,
)
from gpustreamlab.errors import OptionError
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Counters, Marker, SMLimits, Trace
from gpustreamlab.recorder import (
    KEPT_MARKERS,
    SPAN_COLUMNS,
    START,
    Chunk,
    Journal,
    RowFinder,
    Tables,
    TraceData,
    Unended,
    build_trace,
    capture_windows,
    counters_of,
    thinned,
)
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
        """Take more arrows as pairs of numbers; return those whose ranges both came, as `_arrows` does."""
        pairs = np.concatenate((self._waiting, edges))[-WAITING_EDGES:]
        found = self._ranges[:, pairs % KNOWN_SPANS]
        is_known = ((found[_NUMBER] == pairs) & (found[_ROW] >= 0)).all(axis=1)
        self._waiting = pairs[~is_known]
        return _arrows(pairs[is_known], *found[_ROW:, is_known])


def find_edges(edges: Int64Array, columns: Mapping[str, Int64Array], row: Int64Array) -> Int64Array:
    """Return the arrows between these spans, whose rows are these, as `_arrows` does."""
    at = RowFinder(columns["number"]).rows_of(edges)
    at = at[(at >= 0).all(axis=1)]
    return _arrows(columns["number"][at], row[at], columns["start_ns"][at], columns["end_ns"][at])


def _arrows(number: Int64Array, row: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return arrows in order of time: as `SpanColumns.edges`, and behind it the numbers of both spans; shape (n, 6)."""
    found = np.column_stack((end_ns[:, 0], row[:, 0], start_ns[:, 1], row[:, 1], number))
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
        """Return what is new, with narrow spans merged where there are more than so many."""
        # Spans come in the order of their ends, so the first start may come late. The zero then moves there, and as all times
        # count from it, what is returned is everything so far.
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
            edges=edges[:, :4] - np.array([self.zero_ns, 0, self.zero_ns, 0]),
            edge_place=edges[:, 4:],
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


NAME_CHARACTERS = 200  # How many characters of a name a page gets

COUNT_EVERY_S = 0.5  # How often the number of spans above the picture is sent anew

MEMORY_EVERY_S = 2.0  # How often the memory of the lanes is sent anew, with the tables

_ADDED = ("names", "name_styles", "details")
_COUNTED = (SpanKind.RANGE, *DEVICE_WORK)
"""Kinds that count as busy; the page leaves out the ranges that start while kernels are captured."""


class TablePlanner:
    """Keeps the tables of one page."""

    def __init__(self) -> None:
        self._source: tuple[object, ...] = ()
        self._header: dict[str, Any] = {}
        self._version: tuple[object, ...] = ()
        self._counted = 0
        self._counted_s = 0.0
        self._looks = NameLooks()
        self._limits = SMLimits()
        self._memory_s = -MEMORY_EVERY_S
        self._forget()
        self.planned: dict[str, Any] = {}  # The tables as they were sent last, without names

    def _forget(self) -> None:
        self._name_count = self._detail_count = 0
        self._markers: list[Marker] = []
        self._counter_names: list[str] = []
        self._samples: list[Int64Array] = []
        self._counters = Counters()

    def changes(
        self,
        chunk: Chunk,
        reader: SpanReader,
        *,
        now_ns: int,
        pending_count: int = 0,
    ) -> dict[str, Any]:
        """Return what has changed since the last time: ``tables``, ``header``, ``names`` and ``details``."""
        now_s = time.monotonic()
        self._limits = reader.tables.metadata.device.sm_limits
        added = self._take(chunk, now_s)
        pending_count = 0 if reader.span_count else pending_count  # the header says it only where there is nothing else
        dropped_count = reader.dropped_count
        version = reader.zero_ns, pending_count, dropped_count
        is_stale = reader.span_count != self._counted and now_s - self._counted_s >= COUNT_EVERY_S
        if (
            not (added or chunk.tables is not None or chunk.markers or is_stale)
            and (*version, reader.rows.version) == self._version
        ):
            return {}
        self._counted, self._counted_s = reader.span_count, now_s
        # Rows of later may be of streams of which nothing is told by now.
        meta = replace(reader.tables.metadata, dropped_spans=dropped_count)
        markers = sorted(self._markers, key=lambda marker: marker.time_ns)
        told = TraceData(reader.tables._replace(markers=markers, metadata=meta), Chunk().columns, counters=self._counters)
        trace = build_trace(told, keeps_lanes=True)
        spans_ns = float(reader.end_ns - reader.start_ns)
        header = plan_header(trace, span_count=reader.span_count, width_ns=spans_ns, pending_count=pending_count)
        # While a window of capture is open, the page needs no other end of it with each span that comes.
        shown = replace(trace, metadata=replace(trace.metadata, capture_windows=capture_windows(reader.tables, chunk)))
        changed = self._new_tables(shown, reader, header, now_ns) | self._new_header(header) | added
        self._version = (*version, reader.rows.version)  # lanes without spans were given rows
        return changed

    def whole(self, chunk: Chunk) -> dict[str, Any]:
        """Return all tables as they were sent last, with the names and details of a chunk, which are all so far."""
        return self.planned | _name_tables(chunk.names, self._looks) | {"details": detail_entries(chunk.details, self._limits)}

    def _take(self, chunk: Chunk, now_s: float) -> dict[str, Any]:
        """Return new names and details, each with the code of the first; now and then show the memory of the lanes as it is."""
        if chunk.is_anew:
            self._forget()
        self._markers = [*self._markers, *chunk.markers][-KEPT_MARKERS:]
        self._counter_names += chunk.counter_names
        self._samples.append(chunk.samples)
        if now_s - self._memory_s >= MEMORY_EVERY_S:
            self._memory_s = now_s
            self._samples = [thinned(np.concatenate(self._samples, axis=1), self._counter_names)]
            self._counters = counters_of(self._samples[0], self._counter_names)
        added: dict[str, Any] = {}
        if chunk.names:
            added["names"] = {"from": self._name_count} | _name_tables(chunk.names, self._looks)
        if chunk.details:
            added["details"] = {"from": self._detail_count, "entries": detail_entries(chunk.details, self._limits)}
        self._name_count += len(chunk.names)
        self._detail_count += len(chunk.details)
        return added

    def _new_tables(self, trace: Trace, reader: SpanReader, header: Header, now_ns: int) -> dict[str, Any]:
        zero_ns, windows = reader.zero_ns, trace.metadata.capture_windows
        # Ranges that came after the last window make it count that they are not captured.
        moved = [(float(begin - zero_ns), float(end - zero_ns)) for begin, end in windows]
        is_partly = is_partly_captured(moved, float(reader.end_ns - zero_ns))
        source = (*_source_of(trace, reader.rows), header.busy_word, zero_ns, reader.clear_count, windows, is_partly)
        if source == self._source:
            return {}
        self._source = source
        width_ns = float(max(0, reader.end_ns - zero_ns, now_ns - zero_ns))
        rows = reader.rows.table(lane_count=len(trace.lanes))
        self.planned = plan_tables(trace, rows, zero_ns=reader.zero_ns, width_ns=width_ns, header=header, counted=_COUNTED)
        return {"tables": {name: entry for name, entry in self.planned.items() if name not in _ADDED}}

    def _new_header(self, header: Header) -> dict[str, Any]:
        facts = asdict(header)
        changed = {name: fact for name, fact in facts.items() if fact != self._header.get(name)}
        self._header = self.planned["header"] = facts
        return {"header": changed} if changed else {}


def _source_of(trace: Trace, rows: RowPlanner) -> tuple[object, ...]:
    """Return what the tables depend on."""
    meta = trace.metadata
    tables = (trace.lanes, trace.threads, trace.partitions, trace.layouts, trace.layout, trace.markers, len(trace.counters))
    return (*tables, meta.device, meta.epoch_unix_ns, *rows.version)


def _name_tables(names: Sequence[str], looks: NameLooks) -> dict[str, list[Any]]:
    return {
        "names": [_shown(name) for name in names],
        "name_styles": style_entries(looks.add(names)),
    }


def _shown(name: str) -> str:
    # Most names are short and plain; looking at each of their letters takes far longer.
    return name if name and len(name) <= NAME_CHARACTERS and name.isprintable() else display_name(name, NAME_CHARACTERS)


DEFAULT_CAPACITY = 1_000_000  # Spans that a live view holds; the oldest make room
DEFAULT_MAX_RATE = 20_000  # Items of one update beyond which narrow spans are merged
SNAPSHOT_LEVEL = 1  # How hard all spans are compressed: a page that waits for them, and the kernel, have better things to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a page is sent."""

    facts: dict[str, Any]  # All but the spans, as a JSON object
    blob: bytes  # The spans, which ``facts["manifest"]`` tells how to read


class LiveFeed:
    """Turns what a recorder collects into updates of a page."""

    # Every method may be called from any thread. Nothing here waits for the device. Memory is bounded: 4 bytes for each of
    # `capacity` spans, and some MB.

    def __init__(
        self,
        recorder: Journal,
        *,
        capacity: int = DEFAULT_CAPACITY,
        max_rate: int = DEFAULT_MAX_RATE,
    ) -> None:
        self.capacity = check_span_limit("capacity", capacity)
        self.max_rate = check_span_limit("max_rate", max_rate)
        self._recorder = recorder
        self._lock = threading.RLock()
        self._reader = SpanReader(recorder, capacity)
        self._planner = TablePlanner()
        self._number = 0
        self._pending_count = 0
        self._open: list[tuple[int, int, int, int]] = []
        self._now_ns = 0
        with recorder.observing():
            self._planner.changes(Chunk(tables=self._reader.tables), self._reader, now_ns=0)

    def refresh(self) -> Update | None:
        """Return what is new since the last refresh; None where nothing is."""
        with self._lock, self._recorder.observing():
            clear_count, before = self._reader.clear_count, (self._pending_count, self._open)
            new = self._reader.read_new(self.max_rate)
            self._pending_count = self._recorder.pending_count
            now_ns, self._open = self._recorder.now_ns(), self._unended()
            # What runs grows; a simulated clock stands still meanwhile.
            is_other = before != (self._pending_count, self._open) or bool(self._open and now_ns != self._now_ns)
            self._now_ns = now_ns
            is_cleared = new.is_moved or self._reader.clear_count != clear_count
            changed = self._planner.changes(new.chunk, self._reader, now_ns=now_ns, pending_count=self._pending_count)
            if not (new.chunk.row_count or changed or is_cleared or is_other):
                return None
            self._number += 1
            merged = 0 if new.is_moved else new.chunk.row_count - len(new.columns)
            facts = {"missed": new.missed_count, "merged": merged, "is_cleared": is_cleared, "is_moved": new.is_moved}
            return self._pack(changed | facts, new.columns, now_ns, level=None)

    def has_unended(self) -> bool:
        """Return whether a range is open, or its work has not ended as far as is known."""
        with self._recorder.observing():
            return bool(self._recorder.pending_count or self._recorder.unended())

    def _unended(self) -> list[tuple[int, int, int, int]]:
        """Return what has not ended, with lanes as the page counts them; a lane of which it was not told yet comes later."""
        lanes = dict(enumerate(self._reader.lane.tolist()))
        told = self._recorder.unended()
        return [(lanes[at], name, since_ns, count) for at, name, since_ns, count in told if lanes.get(at, -1) >= 0]

    def snapshot(self) -> Update:
        """Return everything up to the last refresh, for a page that comes later or has missed something."""
        with self._lock, self._recorder.observing():
            again = self._reader.read_again()
            facts = {"tables": self._planner.whole(again.chunk)}
            return self._pack(facts, again.columns, self._recorder.now_ns(), level=SNAPSHOT_LEVEL)

    def figure(self) -> dict[str, Any]:
        """Return the figure as an item of BokehJS; the page draws everything else into it."""
        from bokeh.embed import json_item

        with self._lock:
            item: dict[str, Any] = json_item(draw_figure(self._planner.planned))
        return item

    def _pack(self, facts: dict[str, Any], columns: SpanColumns, now_ns: int, *, level: int | None) -> Update:
        manifest, blob = pack_columns(columns, level=level)
        common = {
            "number": self._number,
            "manifest": manifest,
            "now_ns": float(now_ns - self._reader.zero_ns),
            "clear_count": self._reader.clear_count,
            "pending": self._pending_count,
            "open": [(lane, name, float(since_ns - self._reader.zero_ns), count) for lane, name, since_ns, count in self._open],
        }
        return Update(facts=facts | common, blob=blob)


def check_span_limit(name: str, value: object) -> int:
    """Return a limit on spans; raise `OptionError` for what is none."""
    if type(value) is not int or not 1 <= value <= MAX_SPANS:
        raise OptionError(
            f"{name} is {value!r}; it must be a number of spans, from 1 to {MAX_SPANS:,}. "
            f"Use for example lab.timeline({name}=100_000)."
        )
    return value
