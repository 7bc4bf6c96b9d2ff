"""Named ranges on a lane: two events on the stream and an NVTX range around them.

This is the hot path. It makes no decision that can be made later, and it never waits for the device.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gpustreamlab.backends import BackendStream
    from gpustreamlab.recorder._recorder import Recorder

_log = logging.getLogger(__name__)


class FinishedRange(NamedTuple):
    """A closed range whose device work may still run."""

    start: Any
    end: Any
    name: int
    queued_host_ns: int
    number: int
    parent: int
    thread: int


class RecordedLane:
    """What the recorder knows of one stream."""

    __slots__ = ("finished", "incoming", "index", "last_number", "lock", "record", "stream")

    def __init__(self, index: int, stream: BackendStream) -> None:
        self.index = index
        self.stream = stream
        self.record = stream.record
        self.lock = threading.Lock()
        """Held while an end is recorded and appended, so that `finished` is in the stream's own order."""
        self.finished: deque[FinishedRange] = deque()
        """Closed ranges in the order in which the stream ends them."""
        self.last_number = -1
        """Number of the range opened last, or -1."""
        self.incoming: list[int] = []
        """Numbers of ranges that the next range of this lane waits for."""


class ThreadState:
    """Ranges open in one thread."""

    __slots__ = ("open_numbers", "thread")

    def __init__(self, thread: int) -> None:
        self.open_numbers: list[int] = []
        self.thread = thread


class Range:
    """A named range on a lane, as a context manager for one use in one thread.

    Opening and closing enqueue an event each and return at once. An exception inside passes through unchanged and the range
    is kept.
    """

    __slots__ = ("_code", "_depth", "_lane", "_name", "_number", "_parent", "_queued_host_ns", "_recorder", "_start", "_state")

    def __init__(self, recorder: Recorder, lane: RecordedLane, name: str) -> None:
        self._recorder = recorder
        self._lane = lane
        self._name = name

    def __enter__(self) -> Range:
        recorder = self._recorder
        lane = self._lane
        self._queued_host_ns = now_ns = recorder.host_time_ns()
        if now_ns >= recorder.next_tick_ns:
            recorder.next_tick_ns = recorder.tick(now_ns)
        self._code, annotation = recorder.prepared(self._name)
        self._start = start = recorder.acquire_event()
        lane.record(start)
        self._state = state = recorder.thread_state()
        self._number = number = next(recorder.numbers)
        open_numbers = state.open_numbers
        self._depth = len(open_numbers)
        self._parent = open_numbers[-1] if open_numbers else -1
        open_numbers.append(number)
        lane.last_number = number
        if lane.incoming:
            recorder.close_edges(lane, number)
        recorder.push_range(annotation)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        recorder = self._recorder
        recorder.pop_range()
        state = self._state
        del state.open_numbers[self._depth :]
        lane = self._lane
        try:
            end = recorder.acquire_event()
            finished = FinishedRange(
                self._start, end, self._code, self._queued_host_ns, self._number, self._parent, state.thread
            )
            with lane.lock:
                lane.record(end)
                lane.finished.append(finished)
        except Exception:
            recorder.failed_count += 1
            if error is None:
                raise
            # The user's own exception matters more than a range that could not be closed after it.
            _log.warning("The range %r could not be closed on a failed stream.", self._name, exc_info=True)
            return
        recorder.after_append(lane)

    def abandon(self) -> None:
        """Close the range without its end, since its stream is gone; it counts as dropped."""
        self._recorder.pop_range()
        del self._state.open_numbers[self._depth :]
        self._recorder.failed_count += 1


class OpenRange:
    """A range that any thread may end: for work that starts in one callback and ends in another.

    It is no parent of other ranges, since those follow the thread; close it with `end`.
    """

    def __init__(self, recorder: Recorder, lane: RecordedLane, name: str) -> None:
        self._recorder = recorder
        self._lane = lane
        self._queued_host_ns = recorder.host_time_ns()
        self._code, _ = recorder.prepared(name)
        state = recorder.thread_state()
        self._thread = state.thread
        self._parent = state.open_numbers[-1] if state.open_numbers else -1
        self._start: Any = recorder.acquire_event()
        lane.record(self._start)
        self._number = next(recorder.numbers)
        lane.last_number = self._number

    def end(self) -> None:
        """Close the range behind the work enqueued so far. Idempotent."""
        start, self._start = self._start, None
        if start is None:
            return
        end = self._recorder.acquire_event()
        finished = FinishedRange(start, end, self._code, self._queued_host_ns, self._number, self._parent, self._thread)
        with self._lane.lock:
            self._lane.record(end)
            self._lane.finished.append(finished)
        self._recorder.after_append(self._lane)


def new_numbers() -> count[int]:
    """Return a counter for ranges; ``next`` of it is atomic."""
    return count()
