"""Streams selected per thread: nested, and restored on every exit."""

from __future__ import annotations

import logging
from types import TracebackType

from gpustreamlab.backends import Backend
from gpustreamlab.errors import SelectionError
from gpustreamlab.recorder import LaneWriter, Range, Recorder
from gpustreamlab.streams import Stream

__all__ = ["Selection", "Selections"]

_log = logging.getLogger(__name__)


class Selections:
    """What is selected in each thread of one session."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self.backend = backend
        self.recorder = recorder
        self.is_closed = False

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        entered = self.entered()
        return entered[-1].stream if entered else None

    def entered(self) -> list[Selection]:
        """Return this thread's selections, innermost last."""
        return self.recorder.thread_state().selections

    def select(self, stream: Stream, label: str) -> Selection:
        """Return a selection of a stream, with a range of this name, to enter with ``with``."""
        return Selection(self, stream, label)

    def range(self, label: str) -> Range:
        """Return a range on the stream selected in this thread, to enter with ``with``."""
        state = self.recorder.thread_state()
        if state.writer is None:
            raise SelectionError(
                f"Range {label!r} needs a stream, and none is selected in this thread. Use: with lab.on('name', {label!r}): ..."
            )
        return state.writer.range(str(label))

    def close(self) -> None:
        """Put back what was selected in this thread before the first selection; leaving one later is then silent."""
        self.is_closed = True
        entered = self.entered()
        while entered:
            selection = entered.pop()
            self.recorder.thread_state().writer = selection.above
            self.backend.restore(selection.token)


class Selection:
    """A stream selected for one thread, with a range around it; made by `Session.on`, entered with ``with`` once."""

    __slots__ = ("_label", "_range", "_selections", "_state", "above", "depth", "stream", "token")

    def __init__(self, selections: Selections, stream: Stream, label: str) -> None:
        self._selections = selections
        self._label = label
        self.stream = stream
        """The selected stream."""
        self.token: object = None
        """What the backend needs to put back the selection before this one."""
        self.above: LaneWriter | None = None
        """Writer of the lane selected before."""
        self.depth = 0
        """How many ranges were open in this thread before."""

    def __enter__(self) -> Stream:
        recorder = self._selections.recorder
        backend = self._selections.backend
        stream = self.stream
        self._state = state = recorder.thread_state()
        writer = recorder.writer(stream.recorded, state)
        self.depth = len(state.open_ranges)
        self.token = token = backend.select(stream.backend_stream)
        try:
            self._range = entered = writer.range(self._label)
            entered.__enter__()
        except BaseException:
            backend.restore(token)
            raise
        self.above = state.writer
        state.writer = writer
        state.selections.append(self)
        return stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        entered = self._state.selections
        if not entered or entered[-1] is not self or self._selections.recorder.thread_state() is not self._state:
            self._leave_out_of_turn(error)
            return
        try:
            # A range that an interrupt kept from being closed is forgotten here.
            del self._state.open_ranges[self.depth + 1 :]
            if self.stream.is_closed:
                self._range.abandon()
            else:
                self._range.__exit__(kind, error, trace)
        finally:
            entered.pop()
            self._state.writer = self.above
            self._selections.backend.restore(self.token)

    def _leave_out_of_turn(self, error: BaseException | None) -> None:
        """Leave so that nothing stays selected in the end, drop the range, and say what was wrong."""
        entered = self._state.selections
        if self not in entered:
            if not self._selections.is_closed:
                self._complain(error, "twice")
            return
        if self._selections.recorder.thread_state() is not self._state:
            self._complain(error, "in a thread that did not enter it")
            return
        place = entered.index(self)
        following = entered[place + 1]
        # The selection above takes over what is to be put back, and the ranges above move down by one.
        following.token, following.above = self.token, self.above
        for selection in entered[place + 1 :]:
            selection.depth -= 1
        del self._state.open_ranges[self.depth]
        del entered[place]
        self._selections.recorder.failed_count += 1
        self._complain(error, "before one that was entered after it")

    def _complain(self, error: BaseException | None, how: str) -> None:
        message = f"The selection of stream {self.stream.name!r} was left {how}. Enter and leave with nested `with` blocks."
        if error is None:
            raise SelectionError(message)
        _log.warning(message)
