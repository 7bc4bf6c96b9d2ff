"""Ranges that were closed and wait for the device: counted, bounded, and moved into the buffer when their work has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpustreamlab.backends import Backend
from gpustreamlab.errors import OptionError
from gpustreamlab.recorder._buffer import SpanBuffer
from gpustreamlab.recorder._kernel_tier import KernelTier
from gpustreamlab.recorder._range_rows import range_columns
from gpustreamlab.recorder._ranges import COLLECT_EVERY, FinishedRange, LaneWriter, RecordedLane

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
        self.lanes: list[RecordedLane] = []
        """Where ranges can be open or wait."""
        self.idle_pairs: list[tuple[Any, Any]] = []
        """Pairs of events for the next ranges."""
        self.overflowed_count = 0
        """Ranges that were dropped because too many waited."""

    @property
    def count(self) -> int:
        """How many waited when they were last collected."""
        lanes = tuple(self.lanes)
        return sum(len(lane.handed_over) + sum(len(writer.finished) for writer in tuple(lane.writers)) for lane in lanes)

    @property
    def first_collection_at(self) -> int:
        """How many closed ranges of a new writer bring about its first collection in passing."""
        return min(COLLECT_EVERY, self._pending_limit + 1)

    def add_lane(self, recorded: RecordedLane) -> None:
        """Take in a lane; those from which nothing more can come go."""
        self.lanes[:] = [
            known
            for known in self.lanes
            if not (known.is_spent if known.index == recorded.index else known.is_closed and known.is_idle)
        ]
        self.lanes.append(recorded)

    def hand_over(self, lane: RecordedLane, row: FinishedRange, thread: int) -> None:
        """Take a closed range that any thread could end; where too many wait for the device, drop it and count it."""
        lane.handed_over.append((row, thread))
        if lane.is_retired and lane not in self.lanes:
            self.lanes.append(lane)  # it counted as spent while the range was open
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

    def collect(self) -> None:
        """Move ranges whose device work has ended into the buffer. Never waits for the device."""
        if self._is_collecting:
            return  # called from inside itself: who collects already goes on when this returns
        self._is_collecting = True
        try:
            for lane in self.lanes:
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

    def _collect_lane(self, lane: RecordedLane) -> None:
        for writer in lane.writers:
            ended = self._count_ended(writer.finished)
            if ended:
                rows = writer.finished[:ended]
                if self._kernels.is_awaiting:
                    self._kernels.closed.append(rows, writer.ident)  # twice is as good as once
                self._append_rows(lane, rows, [writer.thread] * ended)
                # Between these two lines no interrupt can come: a row is either waiting or in the buffer.
                del writer.finished[:ended]
                self._release(rows)
        if lane.handed_over:
            self._collect_handed_over(lane)
        if any(_is_spent(writer) for writer in lane.writers):
            lane.writers[:] = [writer for writer in lane.writers if not _is_spent(writer)]

    def _collect_handed_over(self, lane: RecordedLane) -> None:
        ended: list[tuple[FinishedRange, int]] = []
        waiting: list[tuple[FinishedRange, int]] = []
        for row, thread in lane.handed_over:
            (ended if self._backend.is_event_done(row[0][1]) else waiting).append((row, thread))
        if ended:
            rows, threads = zip(*ended, strict=True)
            self._append_rows(lane, rows, threads)
            lane.handed_over = waiting
            self._release(rows)

    def _append_rows(self, lane: RecordedLane, rows: Sequence[FinishedRange], threads: Sequence[int]) -> None:
        self._buffer.append(range_columns(self._backend, lane, rows, threads))

    def _release(self, rows: Sequence[FinishedRange]) -> None:
        """Keep pairs of events for the next ranges; beyond the bound they go back to the pool."""
        room = max(0, IDLE_PAIRS - len(self.idle_pairs))
        self.idle_pairs.extend(row[0] for row in rows[:room])
        for events, *_ in rows[room:]:
            self._backend.release_events(events)

    def _count_ended(self, waiting: Sequence[FinishedRange]) -> int:
        """Return how many of a lane's closed ranges have ended: a stream ends them in order, so a few questions are enough."""
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
            f"pending_limit is {pending_limit!r}; it is a number of ranges, at least 1. "
            "Use gpustreamlab.Session(pending_limit=65_536)."
        )


def _is_spent(writer: LaneWriter) -> bool:
    """Tell whether nothing more can come from a writer: its thread has ended and its ranges are collected."""
    return not writer.finished and writer.owner() is None
