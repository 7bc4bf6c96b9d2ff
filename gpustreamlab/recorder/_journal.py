"""What readers of spans read: a recorder, or several journals as one, on the clock of the first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from gpustreamlab._util.background import Updater, held_weakly
from gpustreamlab._util.defences import process_lock
from gpustreamlab.backends import Backend
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.model import (
    Ahead,
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
from gpustreamlab.recorder._chunks import SAMPLE_COLUMNS, START, Chunk, ChunkLog, columns_block
from gpustreamlab.recorder._extents import ANNOTATION_CODE, HOST_CODE, SAMPLE_CODE
from gpustreamlab.recorder._in_flight import NO_UNENDED, Unended
from gpustreamlab.recorder._tables import KEPT_MARKERS, NAME_LIMIT, OTHER_NAMES, CodeTable, Tables
from gpustreamlab.recorder._trace_maker import fold
from gpustreamlab.recorder._work import COUNTER_NAMES, DetailTable
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

_log = logging.getLogger(__name__)

KEPT_ROWS = 4_000_000  # Spans of all together that are kept; the newest count
KEPT_CALLS = 1 << 18  # Calls by whose numbers it is known that another journal told of them; the newest count
SAME_MARK_NS = 1_000_000
"""Markers of one text that several journals have are one where they are no further apart: a cell, told to each session."""
FOREVER_NS = 1 << 62  # When a window of capture ends that is still open: later than anything that is recorded


class Journal(Protocol):
    """What a reader of spans reads: `Recorder`, and several of them together."""

    def changes(self, since: int = START, *, collects: bool = True, **options: Any) -> Chunk:
        """Return what is new since a place; see `Recorder.changes`."""

    def follow(self, since: int) -> tuple[Chunk, Unended]:
        """Return that, and which ranges have not ended; see `Recorder.follow`."""

    def trace(self) -> Trace:
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
    def tables(self) -> Tables:
        """The tables as they are now, without markers."""

    @property
    def dropped_count(self) -> int:
        """Spans that are missing."""

    @property
    def lost_count(self) -> int:
        """Spans that never came into its log; part of these."""

    @property
    def pending_count(self) -> int:
        """Closed ranges whose work has not ended."""

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected, without a span; 0 where that is not counted."""


def capture_windows(tables: Tables, chunk: Chunk) -> tuple[tuple[int, int], ...]:
    """Return when kernels were captured. A window that is open has no end: the metadata have that of when they were told."""
    windows = tables.metadata.capture_windows
    return (*windows[:-1], (windows[-1][0], FOREVER_NS)) if windows and chunk.is_capturing else windows


@dataclass(slots=True)
class _Part:
    """How far one journal was read, and what its codes are called here."""

    place: int = START
    names: list[int] = field(default_factory=list)
    details: list[int] = field(default_factory=list)
    counter_names: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    tables: Tables | None = None


class JoinedJournal:
    """Several journals as one. Every method may be called from any thread; nothing here waits for a device.

    Rows are copied here as they are read, in the order of reading, so that several readers see the same.
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
        title: str = "",
    ) -> None:
        self._journals = tuple(journals)
        self._ahead = ahead
        self._error_ns = error_ns
        self._devices = tuple(devices)
        self._tells_alike = tells_alike
        self._missing_facts = missing
        self._title = title
        self._lock = process_lock()
        self._names: CodeTable[str] = CodeTable(NAME_LIMIT, OTHER_NAMES)
        self._details = DetailTable()
        self._counter_names: CodeTable[str] = CodeTable(COUNTER_NAMES, OTHER_NAMES)
        codes: dict[str, CodeTable[Any]] = {"names": self._names, "details": self._details}
        codes["counter_names"] = self._counter_names
        self.log = ChunkLog(KEPT_ROWS, codes, self._describe)
        self._version = 0
        self._told_version = -1
        self._is_capturing = False
        self._forget()

    def _forget(self) -> None:
        """Forget what was told, and read all journals from their beginning on."""
        self.log.clear()
        self._parts = [_Part() for _ in self._journals]
        self._row_counts = [0] * len(self._journals)
        self._lanes: dict[tuple[object, ...], int] = {}
        self._shown: list[Lane] = []
        self._threads: dict[tuple[int, str], int] = {}
        self._partitions: list[Partition] = []
        self._marked: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._calls = np.empty(0, np.int64)
        self._missed = self._end_ns = 0
        self._version += 1

    def changes(self, since: int = START, *, collects: bool = True, **options: Any) -> Chunk:
        """Read what is new of each journal, then return what is new since a place; see `Recorder.changes`."""
        with self._lock:
            if collects:
                self._read()
            self.log.seal()
            told = self.log.read(since, **options)
            return told._replace(lost=self._lost_before, pending=self.pending_count, is_capturing=self._is_capturing)

    def follow(self, since: int) -> tuple[Chunk, Unended]:
        """Read what is new of each journal, then return what is new, and what has not ended; see `Recorder.follow`."""
        with self._lock:
            unended = self._read()
            return self.changes(since, collects=False), unended

    def trace(self) -> Trace:
        """Return everything so far, on the clock of the first."""
        told = self.changes()
        return fold([told._replace(tables=self.tables)], unselected_work=self.unselected_work)

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
                        found.append((part.lanes[lane], part.names[name], at_ns, count))
        return sorted(found)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Let this thread's questions cost no simulated device any time."""
        with ExitStack() as stack:
            for journal in self._journals:
                stack.enter_context(journal.observing())
            yield

    @property
    def tables(self) -> Tables:
        """The tables as they are now, without markers."""
        with self._lock:
            ahead = self._ahead()
            told = [part.tables or journal.tables for part, journal in zip(self._parts, self._journals, strict=True)]
            metadata = join_metadata(
                [tables.metadata for tables in told],
                self._devices,
                ahead_ns=ahead,
                error_ns=self._error_ns(self._end_ns),
                busiest=max(range(len(told)), key=lambda place: self._row_counts[place]),
            )
            return Tables(
                lanes=with_devices(self._shown),
                threads=[name for _, name in self._threads],
                partitions=tuple(self._partitions),
                layouts=told[0].layouts if len(told) == 1 else (),
                markers=(),
                metadata=replace(
                    metadata, title=self._title or metadata.title, missing=(*metadata.missing, *self._missing_facts())
                ),
            )

    @property
    def dropped_count(self) -> int:
        """Spans that are missing."""
        return self.log.dropped_count + self.lost_count

    @property
    def lost_count(self) -> int:
        """Spans that were lost before they came here. What made room in a journal after it was read is here, and not lost."""
        return self._missed + self._lost_before

    @property
    def _lost_before(self) -> int:
        """Spans that never came into a journal."""
        return sum(journal.lost_count for journal in self._journals)

    @property
    def pending_count(self) -> int:
        """Closed ranges whose work has not ended."""
        return sum(journal.pending_count for journal in self._journals)

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected, without a span."""
        return sum(journal.unselected_work for journal in self._journals)

    def _describe(self, is_wanted: bool) -> tuple[Tables | None, Sequence[Marker]]:  # noqa: FBT001 - see `ChunkLog`
        if not is_wanted and self._version == self._told_version:
            return None, ()
        tables, self._told_version = self.tables, self._version
        return tables, ()

    def _read(self) -> Unended:
        """Take what is new of each; where one begins anew, begin anew with what the others still have."""
        ahead, told = self._ahead(), self._take()
        if any(chunk.is_anew and part.tables is not None for part, chunk, _ in told):
            self._forget()
            told = self._take()
        windows: list[tuple[int, int]] = []
        for place, ((part, chunk, _), own) in enumerate(zip(told, ahead, strict=True)):
            self._learn(part, chunk)
            if not chunk.is_empty:
                self.log.add(self._placed(place, chunk, own, windows))
            if part.tables is not None:
                found = capture_windows(part.tables, chunk)
                windows += [(shifted_moment(begin, own), shifted_moment(end, own)) for begin, end in found]
        self._is_capturing = any(chunk.is_capturing for _, chunk, _ in told)
        open_ranges = [
            unended._replace(lane=np.array(part.lanes, np.int64)[unended.lane])
            for part, _, unended in told
            if len(unended.number)
        ]
        return Unended(*map(np.concatenate, zip(*open_ranges, strict=True))) if open_ranges else NO_UNENDED

    def _take(self) -> list[tuple[_Part, Chunk, Unended]]:
        return [(part, *journal.follow(part.place)) for part, journal in zip(self._parts, self._journals, strict=True)]

    def _learn(self, part: _Part, chunk: Chunk) -> None:
        """Learn what the codes of a journal mean."""
        part.place = chunk.place
        part.names += [self._names.code(name) for name in chunk.names]
        part.details += [self._details.code(detail) for detail in chunk.details]
        part.counter_names += [self._counter_names.code(name) for name in chunk.counter_names]
        tables = chunk.tables
        if tables is None:
            return
        self._version += 1
        part.tables = tables
        part.lanes = [self._lane_code(lane) for lane in tables.lanes]
        process = tables.lanes[0].process if tables.lanes else 0
        part.threads = [self._threads.setdefault((process, name), len(self._threads)) for name in tables.threads]
        for partition in tables.partitions[len(part.partitions) :]:
            part.partitions.append(len(self._partitions))
            self._partitions.append(partition)
        for code, partition in zip(part.partitions, tables.partitions, strict=True):
            self._partitions[code] = partition

    def _lane_code(self, lane: Lane) -> int:
        key = (lane.process, lane.kind, *(lane.key if lane.kind is LaneKind.STREAM else ()), lane.name)
        code = self._lanes.setdefault(key, len(self._shown))
        if code == len(self._shown):
            self._shown.append(lane)
        elif self._shown[code].outside or not lane.outside:  # of two that tell of a stream, the one that has it counts
            self._shown[code] = lane
        return code

    def _placed(self, place: int, chunk: Chunk, ahead: Ahead, windows: Sequence[tuple[int, int]]) -> Chunk:
        """Return what a journal tells, with codes and times of this one."""
        part, columns = self._parts[place], chunk.columns
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] = shifted(columns[name], ahead)
        maps = {
            "lane": part.lanes,
            "name": part.names,
            "thread": part.threads,
            "partition": part.partitions,
            "detail": part.details,
        }
        for name, codes in maps.items():
            columns[name] = np.array([*codes, -1], np.int64)[columns[name]]
        rows = columns_block(columns)
        if self._tells_alike:
            rows = rows[:, self._are_new(columns, windows)]
        self._end_ns = max(self._end_ns, int(columns["end_ns"].max(initial=0)))
        self._row_counts[place] += rows.shape[1]
        self._missed += chunk.missed
        lanes = np.array([*part.lanes, -1], np.int64)
        source, record, target, wait = chunk.dependencies
        samples = dict(zip(SAMPLE_COLUMNS, chunk.samples, strict=True))
        samples["time_ns"], samples["lane"] = shifted(samples["time_ns"], ahead), lanes[samples["lane"]]
        samples["name"] = np.array([*part.counter_names, -1], np.int64)[samples["name"]]
        return Chunk(
            rows=rows,
            edges=chunk.edges,
            dependencies=np.stack((_placed_lane(lanes, source), record, _placed_lane(lanes, target), wait)),
            samples=np.stack([samples[name] for name in SAMPLE_COLUMNS]),
            accesses=chunk.accesses,
            markers=self._new_markers(place, chunk.markers, ahead),
            missed=chunk.missed,
            missed_accesses=chunk.missed_accesses,
        )

    def _are_new(self, columns: dict[str, Int64Array], windows: Sequence[tuple[int, int]]) -> BoolArray:
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

    def _new_markers(self, place: int, markers: Sequence[Marker], ahead: Ahead) -> list[Marker]:
        """Return the markers of which no other journal told; a cell is told to each session."""
        kept = []
        for marker in markers:
            at_ns = shifted_moment(marker.time_ns, ahead)
            bucket = at_ns // SAME_MARK_NS
            near = [self._marked.get((marker.kind, marker.text, bucket + step)) for step in (-1, 0, 1)]
            if not any(one is not None and one[1] != place and abs(one[0] - at_ns) <= SAME_MARK_NS for one in near):
                kept.append(replace(marker, time_ns=at_ns))
            self._marked[marker.kind, marker.text, bucket] = at_ns, place
        while len(self._marked) > 2 * KEPT_MARKERS:
            del self._marked[next(iter(self._marked))]
        return kept


def _placed_lane(lanes: Int64Array, code: Int64Array) -> Int64Array:
    """Return the lanes' codes here; below 0 stand the host, and whole devices, which all journals call alike."""
    return np.where(code < 0, code, np.append(lanes, -1)[np.maximum(code, 0)])


# How far the clocks of several cards of a host are apart, compared again and again

SOON_NS = 100_000_000  # The least time between two comparisons: drift that is measured over a shorter one is mostly noise
EVERY_NS = 10_000_000_000
"""The longest. In 150 s on two H200, half of them busy, no comparison was more than 0.40 us off the line between two that far
apart, of which noise makes 0.3."""
_LOOK_HZ = 2.0

WANDER = 1e-7
"""How much the drift of two cards' clocks may change: waits were 2.7 us off at 30 s from the nearest comparison (two H100),
flags 0.5 us at 60 s (two H200)."""
DRIFT = 5e-6  # How much the clocks of two cards may drift apart where that was not measured: 2.8 us a second were seen on H100s


class CardClocks:
    """Compares the clocks of cards with that of the first, in a thread on the side and whenever it is asked to.

    Until the next comparison passes as much time as passed between the first and the last one, up to `EVERY_NS`. So what comes
    after the last one goes on at a pace that was measured over as long a time.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = tuple(backends)
        self._is_one = len(backends) == 1 or backends[0].device.simulated  # those of simulated cards are
        self._lock = threading.Lock()
        self._compared: list[list[tuple[int, int, int]]] = []
        """For each comparison and device: when by its own clock, what that lacks to be the first one's, and the error."""
        self._first_ns = self._last_ns = 0
        self.compare()
        self._updater = Updater(held_weakly(self._step), refresh_hz=_LOOK_HZ, name="gpustreamlab clocks of cards")
        if not self._is_one:
            self._updater.start()

    def compare(self) -> None:
        """Compare them now, where that was not done lately and nobody else is at it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            now_ns = self._backends[0].glance_ns()
            if not self._compared:
                self._first_ns = now_ns
            elif self._is_one or now_ns - self._last_ns < min(EVERY_NS, max(SOON_NS, self._last_ns - self._first_ns)):
                return
            reference = self._backends[0]
            told = [(one.host_to_clock_ns(one.glance_ns()), *one.ahead_of(reference)) for one in self._backends]
            self._compared.append(told)
            self._last_ns = now_ns
        finally:
            self._lock.release()

    def _step(self) -> bool:
        try:
            self.compare()
        except GPUStreamLabError as error:  # whoever uses the device is told; a full card may have room later
            _log.debug("The clocks of the cards were not compared: %s", error)
        return True

    def ahead(self) -> list[Ahead]:
        """Return how far each clock is ahead of the first one's, see `gpustreamlab.merge`."""
        measured = np.array(self._compared, np.int64)  # shape (comparisons, devices, 3)
        return [(measured[:, place, 0], measured[:, place, 1]) for place in range(len(self._backends))]

    def error_ns(self, until_ns: int) -> int:
        """Return the bound on the error of that, up to a time of the first clock."""
        if self._is_one:
            return 0
        compared = self._compared
        at_ns = [told[0][0] for told in compared]
        measured_ns = max(error for told in compared for _, _, error in told)
        gaps_ns = [later - before for before, later in pairwise(at_ns)]
        beyond_ns = max(0, until_ns - at_ns[-1])
        lost_ns = beyond_ns * DRIFT
        if gaps_ns:
            lost_ns = min(lost_ns, beyond_ns * (WANDER + 2 * measured_ns / gaps_ns[-1]))
        return measured_ns + round(max(gaps_ns, default=0) / 2 * WANDER + lost_ns)

    def stop(self) -> None:
        """Compare no more. Idempotent."""
        self._updater.stop()
