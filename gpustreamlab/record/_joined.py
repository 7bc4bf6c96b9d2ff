"""Several journals read as one: the devices of a node, or the engines of a cluster, on the clock of the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from gpustreamlab._util.defences import process_lock
from gpustreamlab.model import (
    Ahead,
    Counters,
    Device,
    Lane,
    Marker,
    Partition,
    Trace,
    join_metadata,
    shifted,
    shifted_moment,
    with_devices,
)
from gpustreamlab.record._buffer import SPAN_COLUMNS, RowRing
from gpustreamlab.record._details import DetailTable
from gpustreamlab.record._extents import ANNOTATION_CODE, HOST_CODE, SAMPLE_CODE
from gpustreamlab.record._in_flight import Unended
from gpustreamlab.record._journal import NO_UNENDED, START, Cursor, Delta, RangeEdges, join_samples
from gpustreamlab.record._names import OTHER_NAMES, CodeTable
from gpustreamlab.record._tables import NAME_LIMIT, Tables
from gpustreamlab.record._trace_maker import build_trace
from gpustreamlab.record._work import DEPENDENCY_COLUMNS, KEPT_DEPENDENCIES
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

KEPT_ROWS = 4_000_000
"""Spans of all together that are kept; the newest count."""
KEPT_CALLS = 1 << 18
"""Calls by whose numbers it is known that another journal told of them; the newest count."""
SAME_MARK_NS = 1_000_000
"""Markers of one text that several journals have are one where they are no further apart: a cell, told to each session."""
_JOINED_AT = 256
"""How many parts samples are kept in before they are made one."""


class Journal(Protocol):
    """What a reader of spans reads: `Recorder`, and several of them together."""

    def changes(
        self,
        since: Cursor = START,
        *,
        until: Cursor | None = None,
        awaited: Collection[int] | None = None,
        collects: bool = True,
        title: str = "",
    ) -> Delta:
        """Return what is new since a cursor; see `Recorder.changes`."""

    def trace(self, *, title: str = "") -> Trace:
        """Return everything so far."""

    def to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the journal's clock."""

    def now_ns(self) -> int:
        """Return the present time on that clock."""

    def unended(self) -> list[tuple[int, int, int, int]]:
        """Return of each lane the range that has not ended and was opened first; see `Recorder.unended`."""

    def observing(self) -> AbstractContextManager[None]:
        """Let this thread's questions cost a simulated device no time."""

    @property
    def lost_count(self) -> int:
        """Spans that never came into its buffer."""

    @property
    def pending_count(self) -> int:
        """Closed ranges whose work has not ended."""

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of; 0 where that is not counted."""


@dataclass(slots=True)
class _Part:
    """How far one journal was read, and what its codes are called here."""

    cursor: Cursor = START
    names: list[int] = field(default_factory=list)
    details: list[int] = field(default_factory=list)
    lanes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    threads: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    partitions: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    tables: Tables | None = None


class JoinedJournal:
    """Several journals as one. Every method may be called from any thread; nothing here waits for a device.

    Rows are copied here as they are read, in the order of reading, so that several readers see the same.

    Parameters
    ----------
    journals
        One or more. Numbers of spans and of calls are taken to be different in each, but where one call is told by several.
    ahead
        Returns how far the clock of each of `journals`, which do not change meanwhile, is ahead of the first one's; see
        `gpustreamlab.merge`. What is read later is placed by what is known then.
    error_ns
        Returns the bound on the error of that up to a time of the first clock, in ns.
    devices
        All that the journals tell of.
    tells_alike
        Whether each is told of the calls of the whole process, as by CUPTI.
    missing
        Returns what the trace cannot tell, in sentences.
    """

    def __init__(
        self,
        journals: Sequence[Journal],
        *,
        ahead: Callable[[], Sequence[Ahead]],
        error_ns: Callable[[int], int],
        devices: Sequence[Device],
        tells_alike: bool,
        missing: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._journals = tuple(journals)
        self._ahead = ahead
        self._error_ns = error_ns
        self._end_ns = 0  # the last end so far
        self._devices = tuple(devices)
        self._tells_alike = tells_alike
        self._missing_facts = missing
        self._lock = process_lock()
        self._buffer = RowRing(KEPT_ROWS)
        self._parts = [_Part() for _ in self._journals]
        self._names: CodeTable[str] = CodeTable(NAME_LIMIT, OTHER_NAMES)
        self._details = DetailTable()
        self._counter_names: CodeTable[str] = CodeTable(NAME_LIMIT, OTHER_NAMES)
        self._lanes: dict[tuple[object, ...], int] = {}
        self._shown: list[Lane] = []
        self._threads: dict[tuple[int, str], int] = {}
        self._partitions: list[Partition] = []
        self._dependencies = RowRing(KEPT_DEPENDENCIES, DEPENDENCY_COLUMNS)
        self._edges = RangeEdges(KEPT_ROWS)
        self._samples: list[Counters] = []
        self._first_sample = 0  # how many parts of samples were made one
        self._calls = np.empty(0, np.int64)
        self._version = 0
        self._missed = 0

    def add(self, journal: Journal, device: Device) -> None:
        """Read one more from now on."""
        with self._lock:
            self._journals += (journal,)
            self._parts.append(_Part())
            self._devices += (device,)

    def leave_out(self, journals: Collection[Journal]) -> None:
        """Read some no more, and forget what they told."""
        with self._lock:
            kept = [place for place, journal in enumerate(self._journals) if journal not in journals]
            self._journals = tuple(self._journals[place] for place in kept)
            self._devices = tuple(self._devices[place] for place in kept)
            self._forget()

    @property
    def journals(self) -> tuple[Journal, ...]:
        """Those that are read."""
        return self._journals

    def changes(
        self,
        since: Cursor = START,
        *,
        until: Cursor | None = None,
        awaited: Collection[int] | None = None,
        collects: bool = True,
        title: str = "",
    ) -> Delta:
        """Read what is new of each journal, then return what is new since a cursor; see `Recorder.changes`."""
        with self._lock:
            ahead = self._ahead()
            told = self._read(ahead, awaited) if until is None and collects else []
            rows = self._buffer.read(since.row, None if until is None else until.row)
            names, details = self._names.starting_at(since.name), self._details.starting_at(since.detail)
            dependencies = self._dependencies.read(since.dependency)
            edge, counters = self._edges.count, self._samples[max(0, since.sample[0] - self._first_sample) :]
            if until is not None:
                names, details = names[: until.name - since.name], details[: until.detail - since.detail]
                edge, counters = until.edge, []
            sample = self._first_sample + len(self._samples)
            version = (self._version, title)
            return Delta(
                tables=self._tables(ahead, title),
                columns=rows.columns,
                cursor=until
                or Cursor(
                    row=rows.cursor,
                    clear_count=rows.clear_count,
                    name=since.name + len(names),
                    detail=since.detail + len(details),
                    edge=edge,
                    dependency=dependencies.cursor,
                    sample=(sample, 0),
                    version=version,
                ),
                missed=rows.missed,
                is_cleared=rows.clear_count != since.clear_count,
                is_changed=version != since.version,
                names=names,
                details=details,
                edges=self._edges.read(since.edge, edge),
                dependencies=dependencies.columns,
                counters=join_samples(counters),
                unended=_joined_unended(told),
                is_capturing=any(delta.is_capturing for _, delta in told),
            )

    def trace(self, *, title: str = "") -> Trace:
        """Return everything so far, on the clock of the first."""
        facts = {"pending_spans": self.pending_count, "unselected_work": self.unselected_work}
        return build_trace(self.changes(title=title).with_facts(**facts))

    def to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the clock of the first."""
        return self._journals[0].to_clock_ns(host_ns)

    def now_ns(self) -> int:
        """Return the latest time that any of them knows, on that clock."""
        with self._lock:
            ahead = self._ahead()
            return max(shifted_moment(journal.now_ns(), own) for journal, own in zip(self._journals, ahead, strict=True))

    def unended(self) -> list[tuple[int, int, int, int]]:
        """Return of each lane the range that has not ended and was opened first; see `Recorder.unended`."""
        found = []
        with self._lock:
            ahead = self._ahead()
            for journal, part, own in zip(self._journals, self._parts, ahead, strict=True):
                for lane, name, since_ns, count in journal.unended():
                    if lane < len(part.lanes) and name < len(part.names):  # else it was not read yet
                        at_ns = shifted_moment(since_ns, own)
                        found.append((int(part.lanes[lane]), part.names[name], at_ns, count))
        return sorted(found)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Let this thread's questions cost no simulated device any time."""
        with ExitStack() as stack:
            for journal in self._journals:
                stack.enter_context(journal.observing())
            yield

    @property
    def lost_count(self) -> int:
        """Spans that were lost before they came here. What made room in a journal after it was read is here, and not lost."""
        return self._missed + sum(journal.lost_count for journal in self._journals)

    @property
    def pending_count(self) -> int:
        """Closed ranges whose work has not ended."""
        return sum(journal.pending_count for journal in self._journals)

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of."""
        return sum(journal.unselected_work for journal in self._journals)

    # Reading

    def _read(self, ahead: Sequence[Ahead], awaited: Collection[int] | None) -> list[tuple[_Part, Delta]]:
        """Take what is new of each; where one was cleared, begin anew with what the others still have."""
        told = self._take(awaited)
        if any(delta.is_cleared and part.tables is not None for part, delta in told):
            self._forget()
            told = self._take(awaited)
        windows: list[tuple[int, int]] = []
        for (part, delta), own in zip(told, ahead, strict=True):
            self._note(part, delta)
            self._keep(part, delta, own, windows)
            windows += [(shifted_moment(begin, own), shifted_moment(end, own)) for begin, end in delta.capture_windows]
        return told

    def _take(self, awaited: Collection[int] | None) -> list[tuple[_Part, Delta]]:
        return [
            (part, journal.changes(part.cursor, awaited=awaited))
            for part, journal in zip(self._parts, self._journals, strict=True)
        ]

    def _forget(self) -> None:
        self._buffer.clear()
        self._dependencies.clear()
        self._edges.clear()
        self._first_sample += len(self._samples)
        self._samples, self._calls, self._missed = [], self._calls[:0], 0
        self._parts = [_Part() for _ in self._journals]
        self._lanes, self._shown, self._threads, self._partitions = {}, [], {}, []
        self._version += 1

    def _note(self, part: _Part, delta: Delta) -> None:
        """Learn what the codes of a journal mean."""
        self._missed += delta.missed
        part.names += [self._names.code(name) for name in delta.names]
        part.details += [self._details.code(detail) for detail in delta.details]
        if delta.is_changed or part.tables is None:
            self._version += 1
            tables = delta.tables
            part.lanes = np.array([self._lane_code(lane) for lane in tables.lanes], np.int64)
            process = tables.lanes[0].process if tables.lanes else 0
            codes = [self._threads.setdefault((process, name), len(self._threads)) for name in tables.threads]
            part.threads = np.array(codes, np.int64)
            new = len(tables.partitions) - len(part.partitions)
            first = len(self._partitions)
            part.partitions = np.append(part.partitions, np.arange(first, first + new))
            self._partitions += [*tables.partitions[len(tables.partitions) - new :]] if new else []
            for code, partition in zip(part.partitions.tolist(), tables.partitions, strict=True):
                self._partitions[code] = partition
        part.cursor, part.tables = delta.cursor, delta.tables

    def _lane_code(self, lane: Lane) -> int:
        key = (lane.process, lane.kind, *(lane.key if lane.kind is LaneKind.STREAM else ()), lane.name)
        code = self._lanes.setdefault(key, len(self._shown))
        if code == len(self._shown):
            self._shown.append(lane)
        elif self._shown[code].outside or not lane.outside:  # of two that tell of a stream, the one that has it counts
            self._shown[code] = lane
        return code

    def _keep(self, part: _Part, delta: Delta, ahead: Ahead, windows: Sequence[tuple[int, int]]) -> None:
        """Copy the rows of a journal, with codes and times of this one."""
        columns = dict(delta.columns)
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] = shifted(columns[name], ahead)
        maps = {
            "lane": part.lanes,
            "name": np.array(part.names, np.int64),
            "thread": part.threads,
            "partition": part.partitions,
            "detail": np.array(part.details, np.int64),
        }
        for name, codes in maps.items():
            columns[name] = np.append(codes, -1)[columns[name]]
        if self._tells_alike:
            is_new = self._are_new(columns, windows)
            columns = {name: values[is_new] for name, values in columns.items()}
        self._end_ns = max(self._end_ns, int(columns["end_ns"].max(initial=0)))
        self._buffer.append({name: columns[name] for name in SPAN_COLUMNS})
        for source, target in delta.edges.tolist():
            self._edges.add(source, target)
        waits = delta.dependencies
        if len(waits["wait"]):
            lanes = {name: part.lanes[waits[name]] for name in ("source_lane", "target_lane")}
            self._dependencies.append({**waits, **lanes})
        if len(delta.counters):
            self._keep_samples(part, delta.counters, ahead)

    def _are_new(self, columns: Mapping[str, Int64Array], windows: Sequence[tuple[int, int]]) -> BoolArray:
        """Tell which rows no other journal told of: calls by their numbers, ranges of others by when it captured."""
        kind, number, start_ns = columns["kind"], columns["correlation"], columns["start_ns"]
        calls = (kind == HOST_CODE) & (number > 0)
        is_known = calls & np.isin(number, self._calls)
        self._calls = np.append(self._calls, number[calls & ~is_known])[-KEPT_CALLS:]
        is_told = np.zeros(len(kind), bool)
        for begin, end in windows:
            is_told |= (start_ns >= begin) & (start_ns <= end)
        are_new: BoolArray = ~(is_known | (is_told & np.isin(kind, (ANNOTATION_CODE, SAMPLE_CODE))))
        return are_new

    def _keep_samples(self, part: _Part, told: Counters, ahead: Ahead) -> None:
        names = np.array([self._counter_names.code(name) for name in told.names], np.int32)
        self._samples.append(
            replace(
                told,
                time_ns=shifted(told.time_ns, ahead),
                lane=part.lanes[told.lane].astype(np.int32),
                name=names[told.name],
                names=self._counter_names.all,
            )
        )
        if len(self._samples) > _JOINED_AT:
            self._first_sample += len(self._samples) - 1
            self._samples = [join_samples(self._samples)]

    def _tables(self, ahead: Sequence[Ahead], title: str) -> Tables:
        told = [part.tables for part in self._parts if part.tables is not None]
        if len(told) < len(self._parts):  # nothing was read yet
            told = [journal.changes(until=START).tables for journal in self._journals]
        counts = [part.cursor.row for part in self._parts]
        metadata = join_metadata(
            [tables.metadata for tables in told],
            self._devices,
            ahead_ns=ahead,
            error_ns=self._error_ns(self._end_ns),
            busiest=int(np.argmax(counts)),
        )
        dropped = self.lost_count + self._buffer.dropped_count
        return Tables(
            lanes=with_devices(self._shown),
            threads=[name for _, name in self._threads],
            partitions=tuple(self._partitions),
            layouts=told[0].layouts if len(told) == 1 else (),
            markers=_joined_markers([tables.markers for tables in told], ahead),
            metadata=replace(
                metadata,
                dropped_spans=dropped,
                title=title or metadata.title,
                missing=(*metadata.missing, *self._missing_facts()),
            ),
        )


def _joined_markers(told: Sequence[Sequence[Marker]], ahead: Sequence[Ahead]) -> tuple[Marker, ...]:
    """Return all markers in order of time; what several journals were told of, once."""
    placed = [
        (replace(marker, time_ns=shifted_moment(marker.time_ns, own)), place)
        for place, (markers, own) in enumerate(zip(told, ahead, strict=True))
        for marker in markers
    ]
    kept: list[tuple[Marker, int]] = []
    newest: dict[tuple[str, str], tuple[Marker, int]] = {}
    for marker, place in sorted(placed, key=lambda one: (one[0].time_ns, one[1])):
        before = newest.get((marker.kind, marker.text))
        if before is None or before[1] == place or marker.time_ns - before[0].time_ns > SAME_MARK_NS:
            kept.append((marker, place))
            newest[marker.kind, marker.text] = marker, place
    return tuple(marker for marker, _ in kept)


def _joined_unended(told: Sequence[tuple[_Part, Delta]]) -> Unended:
    """Return the ranges that have not ended, of all."""
    found = [delta.unended._replace(lane=part.lanes[delta.unended.lane]) for part, delta in told if len(delta.unended.number)]
    return Unended(*map(np.concatenate, zip(*found, strict=True))) if found else NO_UNENDED
