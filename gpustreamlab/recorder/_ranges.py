"""Named ranges on a lane: two events on the stream and an NVTX range around them.

This is the hot path: well under a microsecond of Python beside the two event records. A range holds no state of its own, so it
is made once for each name and used again; what is open stands in a list of the thread. Nothing here waits for the device.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from gpustreamlab.backends import BackendStream
    from gpustreamlab.recorder._recorder import Recorder

_log = logging.getLogger(__name__)

FinishedRange: TypeAlias = tuple[tuple[Any, Any], int, int, int, int]
"""A closed range whose device work may still run: its pair of events, its name's code, when it was queued (host ns), its
number, and its parent's number or -1. A plain tuple: a named one takes 0.3 us to make."""

COLLECT_EVERY = 4_096
"""Closed ranges after which finished ones are collected in passing, so that their events are used again."""


class RecordedLane:
    """What the recorder knows of one stream."""

    __slots__ = ("incoming", "index", "last_number", "stream", "writers")

    def __init__(self, index: int, stream: BackendStream) -> None:
        self.index = index
        self.stream = stream
        self.last_number = -1
        """Number of the range opened last, or -1."""
        self.incoming: list[int] = []
        """Numbers of ranges that the next range of this lane waits for."""
        self.writers: list[LaneWriter] = []
        """One for each thread that has ranges here."""


class ThreadState:
    """What one thread has open and selected."""

    __slots__ = ("open_ranges", "selections", "thread", "writer", "writers")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        """Code of the thread's name."""
        self.open_ranges: list[tuple[tuple[Any, Any], int, int]] = []
        """Pair of events, queued host ns and number of each open range, innermost last."""
        self.writer: LaneWriter | None = None
        """Writer of the selected lane."""
        self.writers: dict[RecordedLane, LaneWriter] = {}
        """Writers by lane."""
        self.selections: list[Any] = []
        """Streams selected, innermost last; kept for `gpustreamlab.selections`."""

    @property
    def top_number(self) -> int:
        """Number of the innermost open range, or -1."""
        return self.open_ranges[-1][2] if self.open_ranges else -1


class LaneWriter:
    """One thread's way to one lane: since a thread closes its ranges in the stream's order, no lock is needed."""

    __slots__ = ("collect_at", "finished", "lane", "open_ranges", "owner", "ranges", "record", "recorder", "thread")

    def __init__(self, recorder: Recorder, lane: RecordedLane, state: ThreadState, *, collect_at: int) -> None:
        self.recorder = recorder
        self.lane = lane
        self.record: Callable[[Any], object] = lane.stream.record_raw
        self.open_ranges = state.open_ranges
        self.thread = state.thread
        self.owner = threading.current_thread()
        """The thread, to see whether it lives."""
        self.ranges: dict[str, Range] = {}
        """Ranges made so far, by name."""
        self.finished: deque[FinishedRange] = deque()
        """Closed ranges in the order in which the stream ends them."""
        self.collect_at = collect_at
        """How many closed ranges bring about the next collection in passing."""

    def range(self, name: str) -> Range:
        """Return the range of this name, to enter with ``with`` any number of times, inside itself too."""
        try:
            return self.ranges[name]
        except KeyError:
            return self.recorder.make_range(self, name)


class Range:
    """A named range on a lane, for one thread, as a context manager.

    Opening and closing enqueue an event each and return at once. An exception inside passes through unchanged and the range
    is kept.
    """

    __slots__ = ("_annotation", "_code", "_name", "_writer")

    def __init__(self, writer: LaneWriter, name: str, code: int, annotation: Any) -> None:
        self._writer = writer
        self._name = name
        self._code = code
        self._annotation = annotation

    def __enter__(self) -> None:
        writer = self._writer
        recorder = writer.recorder
        now_ns = recorder.host_time_ns()
        if now_ns >= recorder.next_tick_ns:
            recorder.tick(now_ns)
        try:
            events = recorder.pop_pair()
        except IndexError:
            events = recorder.new_pair()
        try:
            writer.record(events[0])
        except Exception as error:
            raise recorder.failed(error, self._name, writer.lane) from error
        lane = writer.lane
        lane.last_number = number = next(recorder.numbers)
        writer.open_ranges.append((events, now_ns, number))
        if lane.incoming:
            recorder.close_edges(lane, number)
        recorder.push_range(self._annotation)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        writer = self._writer
        recorder = writer.recorder
        recorder.pop_range()
        open_ranges = writer.open_ranges
        events, queued_host_ns, number = open_ranges.pop()
        try:
            writer.record(events[1])
        except Exception as failure:
            mapped = recorder.failed(failure, self._name, writer.lane)
            if error is None:
                raise mapped from failure
            # The user's own exception matters more than a range that could not be closed after it.
            _log.warning("%s", mapped)
            return
        finished = writer.finished
        finished.append((events, self._code, queued_host_ns, number, open_ranges[-1][2] if open_ranges else -1))
        if len(finished) >= writer.collect_at:
            recorder.collect_in_passing(writer)

    def abandon(self) -> None:
        """Close the range without its end, since its stream is gone; it counts as dropped."""
        recorder = self._writer.recorder
        recorder.pop_range()
        self._writer.open_ranges.pop()
        recorder.failed_count += 1


class OpenRange:
    """A range that any thread may end: for work that starts in one callback and ends in another.

    It is no parent of other ranges, since those follow the thread, and other tools do not see it; close it with `end`.
    """

    def __init__(self, recorder: Recorder, lane: RecordedLane, name: str) -> None:
        self._recorder = recorder
        state = recorder.thread_state()
        # A writer of its own: the stream may end other ranges of this thread later than this one.
        self._writer = recorder.new_writer(lane, state)
        self._name = name
        self._parent = state.top_number
        self._queued_host_ns = recorder.host_time_ns()
        self._code, _ = recorder.prepare(name)
        self._events: tuple[Any, Any] | None = recorder.new_pair()
        self._record(self._events[0])
        self._number = lane.last_number = next(recorder.numbers)

    def end(self) -> None:
        """Close the range behind the work enqueued so far. Idempotent."""
        events, self._events = self._events, None
        if events is None:
            return
        self._record(events[1])
        self._writer.finished.append((events, self._code, self._queued_host_ns, self._number, self._parent))

    def _record(self, event: Any) -> None:
        try:
            self._writer.record(event)
        except Exception as error:
            raise self._recorder.failed(error, self._name, self._writer.lane) from error
