"""Ranges from their opening until they are in the log: open, or closed while their work has not ended."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from gpustreamlab._util.defences import delayed_interrupts, process_lock
from gpustreamlab.analysis import distinct
from gpustreamlab.backends import Backend, RangeTimes
from gpustreamlab.errors import DeviceError, GPUStreamLabError
from gpustreamlab.recorder._chunks import SPAN_COLUMNS, Chunk, ChunkLog
from gpustreamlab.recorder._extents import NEVER, RANGE_CODE, Intervals, RowFinder, WorkExtents, find_innermost
from gpustreamlab.recorder._ranges import (
    COLLECT_EVERY,
    NO_EVENTS,
    FinishedRange,
    HandedOver,
    LaneWriter,
    RecordedLane,
    ThreadState,
)
from gpustreamlab.typing import Int64Array

TIMED_BY_WORK = -1
"""Stands in the column ``correlation``, which says nothing else of a range, where it was timed by the work inside it."""
PENDING_LIMIT = 65_536  # Closed ranges of a stream and thread that wait for the device; later ones are dropped and counted
IDLE_PAIRS = 65_536  # Pairs of events kept for later ranges; more go back to the backend's pool
CLOSED_RANGES = 262_144  # Ranges in the log that launches are looked up in, while kernels are captured; the newest count

SMALL_BLOCK = 1_024  # Blocks of so many columns together become one
NESTED = 64  # So many of the ranges that were closed first are looked through for the one that was opened first

_TIMED_BY = ((False, False), (True, True), (True, False))  # Whether a range has no event at its beginning, and none at its end


class InFlight(NamedTuple):
    """A range that is not in the log yet."""

    number: int  # Ranges are numbered as they open
    parent: int  # Number of the enclosing range, or -1
    lane: RecordedLane  # Where it was opened
    name: int  # Code of its name
    thread: int  # As activities number threads; -1 for a range that any thread may end
    opened_ns: int  # On the host's clock
    closed_ns: int  # Likewise; `NEVER` while it is open
    is_timed_by_work: bool  # Whether it has no event at its beginning


class Unended(NamedTuple):
    """Ranges that have not ended, as columns; each encloses one that was read, or was asked for."""

    number: Int64Array  # Shape (n,), int64
    parent: Int64Array  # Number of the enclosing range, or -1; shape (n,), int64
    lane: Int64Array  # Shape (n,), int64
    queued_host_ns: Int64Array  # When each was opened, on the host's clock; shape (n,), int64


_NONE = np.empty(0, np.int64)
NO_UNENDED = Unended(_NONE, _NONE, _NONE, _NONE)


class Recent:
    """The newest columns of a block; shape (n_rows, limit) at most."""

    def __init__(self, limit: int, row_count: int) -> None:
        self._limit = limit
        self._blocks: list[Int64Array] = [np.empty((row_count, 0), np.int64)]
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, self._limit)

    @property
    def block(self) -> Int64Array:
        """All of them."""
        return np.concatenate(self._blocks, axis=1)[:, -self._limit :]

    def append(self, columns: Int64Array) -> None:
        """Take more; twice as many are there at most."""
        self._count += columns.shape[1]
        if self._blocks[-1].shape[1] + columns.shape[1] <= SMALL_BLOCK:
            self._blocks[-1] = np.concatenate((self._blocks[-1], columns), axis=1)
        else:
            self._blocks.append(columns)
        if self._count > 2 * self._limit:
            self._blocks = [self.block]
            self._count = self._limit

    def clear(self) -> None:
        """Forget all."""
        self._blocks, self._count = [self._blocks[0][:, :0].copy()], 0


class RangesInFlight:
    """The ranges of all lanes on their way into the log. Who changes them holds `lock`."""

    def __init__(self, backend: Backend, log: ChunkLog) -> None:
        self._backend = backend
        self._log = log
        self.lock = process_lock()  # The recorder's
        self._is_collecting = False
        self._extents = WorkExtents()
        self._places: dict[int, tuple[RecordedLane, ...]] = {}  # by the index of their lane
        self._sweeps_at = 0
        self._told_until: dict[int, int] = {}  # host time by thread: see `Activities.told_until`
        self._done_until: dict[int, int] = {}  # host time by lane: what was launched there before it has ended
        self._closed = Recent(CLOSED_RANGES, len(Intervals._fields) + 2)  # thread, opening, closing, number, lane, name
        self.states: WeakSet[ThreadState] = WeakSet()  # Of the threads that have used the session
        self.is_awaiting_work = False
        """True while records of captured work may still come: so long, ranges that leave here are looked up too."""
        self.idle_pairs: list[tuple[Any, Any]] = []  # Pairs of events for the next ranges
        self.overflowed_count = 0  # Ranges that were dropped because too many waited

    @property
    def lanes(self) -> list[RecordedLane]:
        """Where ranges can be open or wait."""
        return [lane for places in [*self._places.values()] for lane in places]

    def places_of(self, index: int) -> tuple[RecordedLane, ...]:
        """Return those of them that are of one lane."""
        return self._places.get(index, ())

    @property
    def waiting_count(self) -> int:
        """Number of ranges that waited at the last collection."""
        return sum(len(writer.finished) for lane in self.lanes for writer in tuple(lane.writers))

    @property
    def first_collection_at(self) -> int:
        """How many closed ranges of a new writer bring about its first collection in passing."""
        return min(COLLECT_EVERY, PENDING_LIMIT + 1)

    def add_lane(self, recorded: RecordedLane) -> None:
        """Take in a lane; those from which nothing more can come go."""
        if len(self._places) >= self._sweeps_at:  # not each time: to look at all of thousands takes long
            for index, places in [*self._places.items()]:
                kept = tuple(known for known in places if known.has_waiting or not (known.is_closed and known.is_idle))
                if kept:
                    self._places[index] = kept
                else:
                    del self._places[index]
            self._sweeps_at = len(self._places) + len(self._places) // 8
        known = self.places_of(recorded.index)
        self._places[recorded.index] = (*(place for place in known if place.has_waiting or not place.is_spent), recorded)

    # What there is. A range goes from the open ones to the closed ones, and from these to the log, and whoever looks in
    # this order misses none. The first step takes no lock.

    def open(self) -> list[InFlight]:
        """Return the ranges that are open."""
        with self.lock:
            found = []
            for state in self.states:
                parent = -1
                for events, opened_ns, number, entered in state.open_ranges:
                    by_work = events[0] is None
                    one = InFlight(number, parent, entered.lane, entered.name_code, state.ident, opened_ns, NEVER, by_work)
                    found.append(one)
                    parent = number
            for lane in self.lanes:
                found += [_in_flight(lane, started.row, HandedOver.ident) for started in tuple(lane.started)]
        return found

    def closed(self) -> list[InFlight]:
        """Return the ranges that are closed and not in the log."""
        return [_in_flight(lane, row, thread) for lane in self.lanes for queue, thread in lane.queues() for row in queue]

    def known(self) -> dict[int, InFlight]:
        """Return both by their numbers; one that is seen as open and as closed counts as closed."""
        with self.lock:
            return {one.number: one for one in (*self.open(), *self.closed())}

    def first_of_lanes(self) -> dict[int, tuple[InFlight, int]]:
        """Return by lane the range that was opened first and has not ended, and how many there are; in bounded time."""
        found: dict[int, tuple[InFlight, int]] = {}

        def note(one: InFlight, count: int) -> None:
            known, before = found.get(one.lane.index, (one, 0))
            found[one.lane.index] = (min(known, one, key=lambda each: each.opened_ns), before + count)

        for one in self.open():
            note(one, 1)
        with self.lock:
            for lane in self.lanes:
                for writer in tuple(lane.writers):
                    if rows := writer.finished[:NESTED]:  # a range closes after those within it
                        note(_in_flight(lane, min(rows, key=lambda row: row[2]), writer.ident), len(writer.finished))
        return found

    def find_unended(self, columns: Mapping[str, Int64Array]) -> Unended:
        """Find the ranges that enclose rows and have not ended."""
        around = distinct(columns["parent"][columns["parent"] >= 0])[0]
        missing = around[RowFinder(columns["number"]).rows_of(around) < 0].tolist()
        if not missing:
            return NO_UNENDED
        known = self.known()
        found: dict[int, InFlight] = {}
        for wanted in missing:
            number = wanted
            while number in known and number not in found:
                found[number] = known[number]
                number = known[number].parent
        return Unended(*_columns([(one.number, one.parent, one.lane.index, one.opened_ns) for one in found.values()], 4))

    def find_enclosing(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        """Return the number of the innermost range that each thread had open at each moment of the host, or -1."""
        if not len(at_host_ns):
            return np.empty(0, np.int64)
        with self.lock:
            # Those that any thread may end are of no thread that anyone asks for.
            rows = [(one.thread, one.opened_ns, one.closed_ns, one.number) for one in self.known().values()]
            ended = self._closed.block[:4]
        ended = ended[:, (ended[2] > at_host_ns.min()) & (ended[1] <= at_host_ns.max())]
        whole = np.concatenate((_columns(rows, 4), ended), axis=1)
        found = find_innermost(Intervals(*whole), thread, at_host_ns)
        return np.append(whole[3], -1)[found]  # -1, none, is last

    def facts_of(self, number: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return lane and name's code of the ranges of these numbers, open or newly closed; -1 where unknown; shape (n,)."""
        with self.lock:
            rows = [(one.number, one.lane.index, one.name) for one in self.known().values()]
            ended = self._closed.block
        known = np.concatenate((_columns(rows, 3), ended[3:]), axis=1)
        rows_of = RowFinder(known[0]).rows_of(number)
        return np.append(known[1], -1)[rows_of], np.append(known[2], -1)[rows_of]

    def find_idle(self) -> list[int]:
        """Return the lanes that hold closed ranges without events, and no work in any of their places."""
        with self.lock:
            asked = {
                lane.index for lane in self.lanes if any(row[0] is NO_EVENTS for queue, _ in lane.queues() for row in queue)
            }
            busy = {lane.index for lane in self.lanes if lane.index in asked and not is_done(lane)}
        return sorted(asked - busy)

    # What becomes of them

    def hand_over(self, lane: RecordedLane, row: FinishedRange, thread: int) -> None:
        """Take a closed range that any thread could end; where too many wait for the device, drop it and count it."""
        lane.writers.append(HandedOver(row, thread))
        if lane.is_retired and lane not in self.places_of(lane.index):
            self._places[lane.index] = (*self.places_of(lane.index), lane)  # it counted as spent while the range was open
        if len(lane.writers) % COLLECT_EVERY == 0 or len(lane.writers) > PENDING_LIMIT:
            self.collect()
        if len(lane.writers) > PENDING_LIMIT and sum(isinstance(one, HandedOver) for one in lane.writers) > PENDING_LIMIT:
            self._release(lane.writers.pop().finished)
            self.overflowed_count += 1

    def collect_in_passing(self, writer: LaneWriter) -> None:
        """Collect when many ranges have closed, and drop the newest where the device falls behind."""
        with self.lock:
            self.collect()
            waiting = writer.finished
            while len(waiting) > PENDING_LIMIT:
                self._release([waiting.pop()])
                self.overflowed_count += 1
            writer.collect_at = min(len(waiting) + COLLECT_EVERY, PENDING_LIMIT + 1)

    def collect(self, only: RecordedLane | None = None) -> None:
        """Move ranges whose device work has ended into the log, of all lanes or of one. Never waits for the device."""
        with self.lock:
            if self._is_collecting:
                return  # called from inside itself: who collects already goes on when this returns
            self._is_collecting = True
            try:
                for lane in self.lanes if only is None else [only]:
                    self._collect_lane(lane)
            finally:
                self._is_collecting = False

    def take_idle_pairs(self) -> list[tuple[Any, Any]]:
        """Return the pairs of events that no range holds, and keep none."""
        with self.lock:
            pairs = self.idle_pairs[:]
            self.idle_pairs.clear()
        return pairs

    def end_awaiting(self) -> None:
        """Note that no more records of work come, and forget what they are looked up in."""
        with self.lock:
            self.is_awaiting_work = False
            self._closed.clear()

    def store(
        self,
        chunk: Chunk,
        work: Sequence[Int64Array],
        told_until: Mapping[int, int],
        idle: Mapping[int, int],
    ) -> None:
        """Take records of kernels: rows for the log, and until when they are complete by thread."""
        with self.lock:
            if not chunk.is_empty:
                with delayed_interrupts():
                    self._log.add(chunk)
            self._fold(work)
            # Not before: who collects meanwhile would take ranges without this work. A stream ends its work in the order of
            # the launches.
            lane, launched_ns = work[:2]
            newest = {one: int(launched_ns[lane == one].max()) - 1 for one in distinct(lane)[0].tolist()}
            for known, told in ((self._told_until, told_until), (self._done_until, newest), (self._done_until, idle)):
                for key, until_ns in told.items():
                    known[key] = max(until_ns, known.get(key, -1))
            with suppress(DeviceError):  # the next use of the device raises it
                self.collect()

    def drop_untold(self, until_host_ns: int) -> None:
        """Drop and count the ranges without events that were closed later: no records of their work will come."""

        def is_kept(row: FinishedRange) -> bool:
            return row[0] is not NO_EVENTS or row[5] <= until_host_ns

        with self.lock:
            for lane in self.lanes:
                for writer in lane.writers:
                    # In one step, since their thread may close another one meanwhile.
                    rows = writer.finished[:]
                    kept = [row for row in rows if is_kept(row)]
                    writer.finished[: len(rows)] = kept
                    self.overflowed_count += len(rows) - len(kept)

    def _fold(self, work: Sequence[Int64Array]) -> None:
        """Lay new records of work against the ranges that are timed by it; see `WorkExtents.fold`."""
        timed = [one for one in self.known().values() if one.is_timed_by_work]
        if timed or len(work[0]):
            rows = [(one.number, one.lane.index, one.opened_ns, one.closed_ns) for one in timed]
            self._extents.fold(_columns(rows, 4), work)

    def _told_until_ns(self, lane: int, thread: int | None) -> int:
        """Return the host time up to which all work that a thread, or any, has launched on a lane has ended and is recorded."""
        if not self.is_awaiting_work:
            return NEVER
        told = self._told_until
        return min(self._done_until.get(lane, -1), max(told.values(), default=-1) if thread is None else told.get(thread, -1))

    def _collect_lane(self, lane: RecordedLane) -> None:
        for writer in lane.writers:
            count, rows, kept = self._sort(lane, writer)
            if rows:
                if self.is_awaiting_work:  # twice is as good as once
                    known = [(writer.ident, row[2], row[5], row[3], lane.index, row[1]) for row in rows]
                    self._closed.append(np.array(known, np.int64).T)
                block = self._rows(lane, rows, writer.thread)
                # A row is either waiting or in the log. Ctrl-C alone is held back: what a handler of another signal raises just
                # here (an alarm) leaves the rows in both, and they are counted twice.
                with delayed_interrupts():
                    self._log.append(block)
                    writer.finished[:count] = kept
                self._release(rows)
        if any(_is_spent(writer) for writer in lane.writers):
            lane.writers[:] = [writer for writer in lane.writers if not _is_spent(writer)]

    def _rows(self, lane: RecordedLane, rows: Sequence[FinishedRange], thread: int) -> Int64Array:
        """Return the rows of a thread's ranges for the log."""
        if _have_pairs(rows):
            return self._timed_alike(lane, rows, thread)
        # By a pair of events, by work alone, by work and an event at the end.
        alike = ([row for row in rows if (row[0][0] is None, row[0][1] is None) == kind] for kind in _TIMED_BY)
        return np.concatenate([self._timed_alike(lane, chosen, thread) for chosen in alike if chosen], axis=1)

    def _timed_alike(self, lane: RecordedLane, rows: Sequence[FinishedRange], thread: int) -> Int64Array:
        """Return the rows of ranges that are timed alike; their times are put on the backend's clock."""
        pairs, names, queued, numbers, parents, _ = zip(*rows, strict=True)
        queued_host_ns = np.array(queued, np.int64)
        starts, ends = zip(*pairs, strict=True)
        if starts[0] is None:
            queued_ns = to_clock(self._backend, queued_host_ns)
            start_ns, end_ns = self._extents.times(np.array(numbers, np.int64), queued_ns)
            times = RangeTimes(start_ns, end_ns, np.minimum(queued_ns, start_ns))
            if ends[0] is not None:
                told_ns = self._backend.resolve(ends, ends, queued_host_ns).end_ns
                times = times._replace(end_ns=np.maximum(start_ns, told_ns))
        else:
            times = self._backend.resolve(starts, ends, queued_host_ns)
        found: dict[str, Any] = {
            "start_ns": times.start_ns,
            "end_ns": times.end_ns,
            "queued_ns": times.queued_ns,
            "lane": lane.index,
            "name": names,
            "kind": RANGE_CODE,
            "parent": parents,
            "thread": thread,
            "partition": lane.partition,
            "number": numbers,
            "detail": -1,
            "size_bytes": 0,
            "correlation": TIMED_BY_WORK if pairs[0] is NO_EVENTS else 0,
        }
        block = np.empty((len(SPAN_COLUMNS), len(rows)), np.int64)
        for row, name in zip(block, SPAN_COLUMNS, strict=True):
            row[:] = found[name]
        return block

    def _release(self, rows: Sequence[FinishedRange]) -> None:
        """Keep pairs of events for the next ranges; beyond the bound they go back to the pool."""
        pairs = [row[0] for row in rows if row[0][0] is not None]
        if len(pairs) < len(rows):
            self._backend.release_events([row[0][1] for row in rows if row[0][0] is None and row[0][1] is not None])
        room = max(0, IDLE_PAIRS - len(self.idle_pairs))
        self.idle_pairs.extend(pairs[:room])
        for events in pairs[room:]:
            self._backend.release_events(events)

    def _sort(
        self, lane: RecordedLane, writer: LaneWriter | HandedOver
    ) -> tuple[int, list[FinishedRange], list[FinishedRange]]:
        """Return how many closed ranges were looked at, those of them that have ended, and those that stay."""
        waiting = writer.finished[:]
        if _have_pairs(waiting):
            reached = self._count_reached(waiting)
            return reached, waiting[:reached], []
        with_events = [row for row in waiting if row[0] is not NO_EVENTS]
        reached = self._count_reached(with_events)
        # A thread that has ended collects no more.
        told_ns = self._told_until_ns(lane.index, None if writer.owner() is None else writer.ident)
        ended = {row[3] for row in with_events[:reached] if self._is_told(row)}
        ended |= {row[3] for row in waiting if row[0] is NO_EVENTS and row[5] <= told_ns}
        return len(waiting), [row for row in waiting if row[3] in ended], [row for row in waiting if row[3] not in ended]

    def _is_told(self, row: FinishedRange) -> bool:
        """Tell whether nothing more comes of a range with an event: one with an end alone begins with work."""
        return row[0][0] is not None or not self.is_awaiting_work

    def _count_reached(self, waiting: Sequence[FinishedRange]) -> int:
        """Return how many ranges with events have ended: a stream ends them in order, so a few questions are enough."""
        is_over = self._backend.is_event_done
        if waiting and is_over(waiting[-1][0][1]):
            return len(waiting)
        return bisect_left(waiting, 1, key=lambda row: int(not is_over(row[0][1])))


def _in_flight(lane: RecordedLane, row: FinishedRange, thread: int) -> InFlight:
    events, name, opened_ns, number, parent, closed_ns = row
    return InFlight(number, parent, lane, name, thread, opened_ns, closed_ns, events[0] is None)


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> Int64Array:
    """Return rows of numbers as columns; shape (count, n)."""
    return np.array(rows, np.int64).reshape(-1, count).T


def to_clock(backend: Backend, host_ns: Int64Array) -> Int64Array:
    """Put host times on the backend's clock; shape (n,), one at least.

    Between the first and the last the two clocks drift evenly, as far as the host's error goes: two questions are enough.
    """
    bounds = np.array([host_ns.min(), host_ns.max()])
    ahead_ns = np.array([backend.host_to_clock_ns(bound) - bound for bound in bounds.tolist()])
    drift_ns = np.interp(host_ns - bounds[0], bounds - bounds[0], ahead_ns - ahead_ns[0])
    shifted: Int64Array = host_ns + ahead_ns[0] + np.rint(drift_ns).astype(np.int64)
    return shifted


def is_done(lane: RecordedLane) -> bool:
    """Tell whether a stream has no work left in one place. One that is captured into a graph is not asked: that ends it."""
    try:
        # A place that is being closed still has work, until its stream is closed.
        is_over = bool(getattr(lane.stream, "is_closed", lane.is_closed))
        return is_over or (not lane.stream.is_capturing and lane.stream.query())
    except GPUStreamLabError:
        return lane.is_closed  # it may have been closed meanwhile; a device that has failed raises elsewhere


def _have_pairs(rows: Sequence[FinishedRange]) -> bool:
    """Tell whether all have two events, as everywhere but on a GPU whose kernels are recorded."""
    return not any(row[0][0] is None for row in rows)


def _is_spent(writer: LaneWriter | HandedOver) -> bool:
    """Tell whether nothing more can come from a writer: its thread has ended and its ranges are collected."""
    return not writer.finished and writer.owner() is None
