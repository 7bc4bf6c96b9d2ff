"""Ranges that were closed and wait for the device: counted, bounded, and moved into the buffer when their work has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpustreamlab.backends import Backend, RangeTimes
from gpustreamlab.errors import OptionError
from gpustreamlab.record._buffer import SpanBuffer
from gpustreamlab.record._extents import NEVER, RANGE_CODE, RANGE_FIELDS, WorkExtents
from gpustreamlab.record._kernel_tier import KernelTier
from gpustreamlab.record._ranges import COLLECT_EVERY, NO_EVENTS, FinishedRange, LaneWriter, RecordedLane, ThreadState
from gpustreamlab.typing import Int64Array

TIMED_BY_WORK = -1
"""Stands in the column ``correlation``, which says nothing else of a range, where it was timed by the work inside it."""


def range_columns(
    backend: Backend, lane: RecordedLane, rows: Sequence[FinishedRange], threads: Sequence[int], extents: WorkExtents
) -> dict[str, Int64Array]:
    """Return the columns of ranges of one lane; their times are put on the backend's clock.

    Parameters
    ----------
    rows
        All with two events, all without, or all with one at their end: what has no event is timed by `extents`.
    """
    pairs, names, queued, numbers, parents, _ = zip(*rows, strict=True)
    queued_host_ns = np.array(queued, np.int64)
    starts, ends = zip(*pairs, strict=True)
    if starts[0] is None:
        times = _times_by_work(backend, queued_host_ns, np.array(numbers, np.int64), extents)
        if ends[0] is not None:
            times = times._replace(end_ns=np.maximum(times.start_ns, backend.resolve(ends, ends, queued_host_ns).end_ns))
    else:
        times = backend.resolve(starts, ends, queued_host_ns)
    count = len(rows)
    return {
        "start_ns": times.start_ns,
        "end_ns": times.end_ns,
        "queued_ns": times.queued_ns,
        "lane": np.full(count, lane.index, np.int64),
        "name": np.array(names, np.int64),
        "kind": np.full(count, RANGE_CODE, np.int64),
        "parent": np.array(parents, np.int64),
        "thread": np.array(threads, np.int64),
        "partition": np.full(count, lane.partition, np.int64),
        "number": np.array(numbers, np.int64),
        "detail": np.full(count, -1, np.int64),
        "size_bytes": np.zeros(count, np.int64),
        "correlation": np.full(count, TIMED_BY_WORK if pairs[0] is NO_EVENTS else 0, np.int64),
    }


def _times_by_work(backend: Backend, queued_host_ns: Int64Array, numbers: Int64Array, extents: WorkExtents) -> RangeTimes:
    # Between the first and the last the two clocks drift evenly, as far as the host's error goes: two questions are enough.
    bounds = [int(queued_host_ns.min()), int(queued_host_ns.max())]
    ahead_ns = [backend.host_to_clock_ns(bound) - bound for bound in bounds]
    queued_ns = queued_host_ns + np.rint(np.interp(queued_host_ns, bounds, ahead_ns)).astype(np.int64)
    start_ns, end_ns = extents.times(numbers, queued_ns)
    return RangeTimes(start_ns, end_ns, np.minimum(queued_ns, start_ns))


DEFAULT_PENDING_LIMIT = 65_536
"""Closed ranges of one lane and thread whose device work has not ended, beyond which new ones are dropped."""
IDLE_PAIRS = 65_536
"""Pairs of events kept for later ranges; more go back to the backend's pool."""


class WaitingRanges:
    """The closed ranges of all lanes on their way into the buffer. Who changes them holds the recorder's lock.

    Parameters
    ----------
    backend, buffer, kernels
        The recorder's.
    pending_limit
        How many closed ranges of one lane and thread may wait; later ones are counted as dropped.
    """

    def __init__(self, backend: Backend, buffer: SpanBuffer, kernels: KernelTier, pending_limit: int) -> None:
        self._backend = backend
        self._buffer = buffer
        self._kernels = kernels
        self._pending_limit = pending_limit
        self._is_collecting = False
        self._extents = WorkExtents()
        self._places: dict[int, tuple[RecordedLane, ...]] = {}  # by the index of their lane
        self._sweeps_at = 0
        self.idle_pairs: list[tuple[Any, Any]] = []
        """Pairs of events for the next ranges."""
        self.overflowed_count = 0
        """Ranges that were dropped because too many waited."""

    @property
    def lanes(self) -> list[RecordedLane]:
        """Where ranges can be open or wait."""
        return [lane for places in [*self._places.values()] for lane in places]

    def places_of(self, index: int) -> tuple[RecordedLane, ...]:
        """Return those of them that are of one lane."""
        return self._places.get(index, ())

    @property
    def count(self) -> int:
        """How many waited when they were last collected."""
        return sum(len(lane.handed_over) + sum(len(writer.finished) for writer in tuple(lane.writers)) for lane in self.lanes)

    @property
    def first_collection_at(self) -> int:
        """How many closed ranges of a new writer bring about its first collection in passing."""
        return min(COLLECT_EVERY, self._pending_limit + 1)

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

    def hand_over(self, lane: RecordedLane, row: FinishedRange, thread: int) -> None:
        """Take a closed range that any thread could end; where too many wait for the device, drop it and count it."""
        lane.handed_over.append((row, thread))
        if lane.is_retired and lane not in self.places_of(lane.index):
            self._places[lane.index] = (*self.places_of(lane.index), lane)  # it counted as spent while the range was open
        if len(lane.handed_over) % COLLECT_EVERY == 0 or len(lane.handed_over) > self._pending_limit:
            self.collect()
        if len(lane.handed_over) > self._pending_limit:
            self._release([lane.handed_over.pop()[0]])
            self.overflowed_count += 1

    def collect_in_passing(self, writer: LaneWriter) -> None:
        """Collect when many ranges have closed, and drop the newest where the device falls behind."""
        self.collect()
        waiting = writer.finished
        while len(waiting) > self._pending_limit:
            self._release([waiting.pop()])
            self.overflowed_count += 1
        writer.collect_at = min(len(waiting) + COLLECT_EVERY, self._pending_limit + 1)

    def collect(self, lanes: Iterable[RecordedLane] | None = None) -> None:
        """Move ranges whose device work has ended into the buffer, of all lanes or of some. Never waits for the device."""
        if self._is_collecting:
            return  # called from inside itself: who collects already goes on when this returns
        self._is_collecting = True
        try:
            for lane in self.lanes if lanes is None else lanes:
                self._collect_lane(lane)
        finally:
            self._is_collecting = False

    def take_idle_pairs(self) -> list[tuple[Any, Any]]:
        """Return the pairs of events that no range holds, and keep none."""
        pairs = self.idle_pairs[:]
        self.idle_pairs.clear()
        return pairs

    def leave_to_parent(self) -> None:
        """Begin anew in a forked child: a thread that is not in this process may have been collecting."""
        self._is_collecting = False

    def lanes_timed_by_work(self) -> list[RecordedLane]:
        """Return the places with closed ranges that wait to be told of their work."""
        return [lane for lane in self.lanes if any(row[0] is NO_EVENTS for row in lane.closed_ranges())]

    def fold(self, work: Int64Array, states: Iterable[ThreadState]) -> None:
        """Lay work that was told of just now against the ranges that are timed by it; see `WorkExtents.fold`."""
        # A range goes from the open ones to the closed ones without a lock: looked for in this order it is seen in one of them.
        ranges = [_open_in(state) for state in states]
        ranges += [find(lane) for find in (_started_in, _closed_in) for lane in self.lanes]
        whole = np.concatenate([np.empty((RANGE_FIELDS, 0), np.int64), *ranges], axis=1)
        # One that was closed in between is seen twice; as closed it comes first.
        whole = whole[:, np.lexsort((whole[3], whole[0]))]
        self._extents.fold(whole[:, np.diff(whole[0], prepend=-1) > 0], work)

    def drop_untold(self, until_host_ns: int) -> None:
        """Drop and count the ranges without events that were closed later: of their work nobody will tell."""

        def is_kept(row: FinishedRange) -> bool:
            return row[0] is not NO_EVENTS or row[5] <= until_host_ns

        for lane in self.lanes:
            for writer in lane.writers:
                # In one step, since their thread may close another one meanwhile.
                rows = writer.finished[:]
                kept = [row for row in rows if is_kept(row)]
                writer.finished[: len(rows)] = kept
                self.overflowed_count += len(rows) - len(kept)
            handed_over = [entry for entry in lane.handed_over if is_kept(entry[0])]
            self.overflowed_count += len(lane.handed_over) - len(handed_over)
            lane.handed_over = handed_over

    def _collect_lane(self, lane: RecordedLane) -> None:
        for writer in lane.writers:
            count, rows, kept = self._sort(lane, writer)
            if rows:
                if self._kernels.is_awaiting:
                    self._kernels.closed.append(rows, writer.ident)  # twice is as good as once
                self._append_rows(lane, rows, [writer.thread] * len(rows))
                # Between these two lines no interrupt can come: a row is either waiting or in the buffer.
                writer.finished[:count] = kept
                self._release(rows)
        if lane.handed_over:
            self._collect_handed_over(lane)
        if any(_is_spent(writer) for writer in lane.writers):
            lane.writers[:] = [writer for writer in lane.writers if not _is_spent(writer)]

    def _collect_handed_over(self, lane: RecordedLane) -> None:
        ended: list[tuple[FinishedRange, int]] = []
        waiting: list[tuple[FinishedRange, int]] = []
        told_ns = self._kernels.told_until_ns(lane.index, None)
        for row, thread in lane.handed_over:
            is_done = (
                row[5] <= told_ns if row[0] is NO_EVENTS else self._is_told(row) and self._backend.is_event_done(row[0][1])
            )
            (ended if is_done else waiting).append((row, thread))
        if ended:
            rows, threads = zip(*ended, strict=True)
            self._append_rows(lane, rows, threads)
            lane.handed_over = waiting
            self._release(rows)

    def _append_rows(self, lane: RecordedLane, rows: Sequence[FinishedRange], threads: Sequence[int]) -> None:
        if _have_pairs(rows):
            self._buffer.append(range_columns(self._backend, lane, rows, threads, self._extents))
            return
        blocks = []
        # By a pair of events, by work alone, by work and an event at the end.
        for kind in ((False, False), (True, True), (True, False)):
            chosen = [
                (row, thread)
                for row, thread in zip(rows, threads, strict=True)
                if (row[0][0] is None, row[0][1] is None) == kind
            ]
            if chosen:
                alike, codes = zip(*chosen, strict=True)
                blocks.append(range_columns(self._backend, lane, alike, codes, self._extents))
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        self._buffer.append(columns)  # at the end: an interrupt leaves all of them in the buffer, or none

    def _release(self, rows: Sequence[FinishedRange]) -> None:
        """Keep pairs of events for the next ranges; beyond the bound they go back to the pool."""
        pairs = [row[0] for row in rows if row[0][0] is not None]
        if len(pairs) < len(rows):
            self._backend.release_events([row[0][1] for row in rows if row[0][0] is None and row[0][1] is not None])
        room = max(0, IDLE_PAIRS - len(self.idle_pairs))
        self.idle_pairs.extend(pairs[:room])
        for events in pairs[room:]:
            self._backend.release_events(events)

    def _sort(self, lane: RecordedLane, writer: LaneWriter) -> tuple[int, list[FinishedRange], list[FinishedRange]]:
        """Return how many closed ranges were looked at, those of them that have ended, and those that stay."""
        waiting = writer.finished[:]
        if _have_pairs(waiting):
            reached = self._count_reached(waiting)
            return reached, waiting[:reached], []
        with_events = [row for row in waiting if row[0] is not NO_EVENTS]
        reached = self._count_reached(with_events)
        # Nobody hears any more from a thread that has ended.
        told_ns = self._kernels.told_until_ns(lane.index, None if writer.owner() is None else writer.ident)
        ended = {row[3] for row in with_events[:reached] if self._is_told(row)}
        ended |= {row[3] for row in waiting if row[0] is NO_EVENTS and row[5] <= told_ns}
        return len(waiting), [row for row in waiting if row[3] in ended], [row for row in waiting if row[3] not in ended]

    def _is_told(self, row: FinishedRange) -> bool:
        """Tell whether nothing more comes of a range with an event: one with an end alone begins with work."""
        return row[0][0] is not None or not self._kernels.is_awaiting

    def _count_reached(self, waiting: Sequence[FinishedRange]) -> int:
        """Return how many ranges with events have ended: a stream ends them in order, so a few questions are enough."""
        is_done = self._backend.is_event_done
        low, high = 0, len(waiting)
        if high and is_done(waiting[high - 1][0][1]):
            return high
        while low < high:
            middle = (low + high) // 2
            if is_done(waiting[middle][0][1]):
                low = middle + 1
            else:
                high = middle
        return low


def check_pending_limit(pending_limit: object) -> None:
    """Raise `OptionError` for what is no number of ranges."""
    if type(pending_limit) is not int or pending_limit < 1:
        raise OptionError(
            f"pending_limit is {pending_limit!r}; it must be a number of ranges, at least 1. "
            "Use gpustreamlab.Session(pending_limit=65_536)."
        )


def _have_pairs(rows: Sequence[FinishedRange]) -> bool:
    """Tell whether all have two events, as everywhere but on a GPU whose kernels are recorded."""
    return not any(row[0][0] is None for row in rows)


def _closed_in(lane: RecordedLane) -> Int64Array:
    """Return the closed ranges of a place that are timed by their work; for `WorkExtents.fold`."""
    found = [(row[3], lane.index, row[2], row[5]) for row in lane.closed_ranges() if row[0][0] is None]
    return np.array(found, np.int64).reshape(-1, RANGE_FIELDS).T


def _started_in(lane: RecordedLane) -> Int64Array:
    """Return those that any thread may end, and none has; for `WorkExtents.fold`."""
    found = [(number, lane.index, queued_host_ns, NEVER) for number, queued_host_ns in lane.started_by_work()]
    return np.array(found, np.int64).reshape(-1, RANGE_FIELDS).T


def _open_in(state: ThreadState) -> Int64Array:
    """Return the ranges that a thread has open and that are timed by their work; for `WorkExtents.fold`."""
    entries = [entry for entry in state.open_ranges if entry[0] is NO_EVENTS]
    found = [(number, opened.lane.index, queued_ns, NEVER) for _, queued_ns, number, opened in entries]
    return np.array(found, np.int64).reshape(-1, RANGE_FIELDS).T


def _is_spent(writer: LaneWriter) -> bool:
    """Tell whether nothing more can come from a writer: its thread has ended and its ranges are collected."""
    return not writer.finished and writer.owner() is None
