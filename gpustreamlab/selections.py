"""Streams selected per thread: nested, and restored on every exit."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import TracebackType
from typing import Final

from gpustreamlab.backends import Backend
from gpustreamlab.errors import DeviceError, SelectionError
from gpustreamlab.recorder import LaneWriter, Range, Recorder, ThreadState
from gpustreamlab.streams import Stream, check_label

__all__ = ["Selection", "Selections"]

_log = logging.getLogger(__name__)
_NOTHING: Final = object()


class Selections:
    """What is selected in each thread of one session."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self.backend = backend
        self.recorder = recorder
        self.local = recorder.local
        self.select, self.restore = backend.select, backend.restore
        self.is_closed = False

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        entered = self.entered()
        return entered[-1].stream if entered else None

    def entered(self) -> list[Selection]:
        """Return this thread's selections, innermost last."""
        return self.recorder.thread_state().selections

    def range(self, label: str) -> Range:
        """Return a range on the stream selected in this thread, to enter with ``with``."""
        state = self.recorder.thread_state()
        if state.writer is None:
            raise SelectionError(
                f"Range {label!r} needs a stream, and none is selected in this thread. Use: with lab.on('name', {label!r}): ..."
            )
        return state.writer.range(check_label(label))

    def close(self) -> None:
        """Close this thread's open ranges and put back what was selected before them; leaving one later is then silent."""
        self.is_closed = True
        state = self.recorder.thread_state()
        while (opened := state.open_ranges[-1][3]) is not None:
            with suppress(DeviceError):  # closing the stream tells of a device that has failed
                opened.__exit__(None, None, None)
        if state.selections:
            state.selections[0].put_back()


class Selection:
    """A stream selected for one thread, with a range around it; made by `Session.on`, entered with ``with``.

    Every exit puts back what was selected before, an interrupt (Ctrl-C) too. One instant is beyond Python's reach: an
    interrupt between the last call of the block and the first instruction of ``__exit__``. The selection around it, if there
    is one, then puts everything back.
    """

    __slots__ = ("_above", "_depth", "_is_taken", "_label", "_range", "_selections", "_state", "_token", "stream")

    def __init__(self, selections: Selections, stream: Stream, label: str) -> None:
        self._selections = selections
        self._label = label
        self.stream = stream
        """The selected stream."""
        self._state: ThreadState | None = None  # of the thread that entered it; None while it is not entered
        self._is_taken = False  # whether the selection around it was left first and took this one along
        # Set as it is entered:
        self._token: object  # what the backend needs to put back the selection before this one
        self._above: LaneWriter | None  # writer of the lane selected before
        self._depth: int  # how many ranges were open in this thread before

    def __enter__(self) -> Stream:
        if self._state is not None:
            raise SelectionError(
                f"The selection of stream {self.stream.name!r} is entered already. "
                f"Make another with lab.on({self.stream.name!r})."
            )
        stream = self.stream
        if stream.is_closed:
            stream.require_open()
        selections = self._selections
        recorder = selections.recorder
        try:
            state: ThreadState = selections.local.state
        except AttributeError:
            state = recorder.thread_state()
        home = stream.home  # read once: another thread may move the stream
        try:
            writer = state.writers[home.recorded]
        except KeyError:
            writer = recorder.writer(home.recorded, state)
        self._token = _NOTHING
        self._above = state.writer
        self._depth = len(state.open_ranges)
        try:
            self._state = state
            state.selections.append(self)
            self._token = selections.select(home.backend_stream)
            state.writer = writer
            self._range = entered = writer.ranges.get(self._label) or writer.range(self._label)
            entered.__enter__()
            return stream
        except BaseException:
            recorder.drop_open(state.open_ranges, self._depth)  # the block does not run, so nothing will be missing
            self.put_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state = self._state
        try:
            is_mine = state is not None and getattr(self._selections.local, "state", None) is state
            if state is not None and is_mine:
                # No `try` inside this one: CPython 3.11 can be interrupted, uncaught, where an inner one begins.
                if state.selections[-1] is self and len(state.open_ranges) == self._depth + 1:
                    self._range.__exit__(None, error, None)
                    # What `put_back` does, without what it asks: this is the hot path.
                    state.writer = self._above
                    self._selections.restore(self._token)
                    del state.selections[-1]
                    self._state = None
                else:
                    self._leave_out_of_turn(state, error)
        except BaseException:
            # An interrupt may have stopped the putting back; doing it again changes nothing that is done.
            self.put_back()
            raise
        if not is_mine:
            self._refuse_to_leave(error)

    def put_back(self) -> None:
        """Leave this selection and those entered after it, whose own exits are then silent. Nothing to do the second time."""
        state = self._state
        if state is None:
            return
        if len(state.open_ranges) > self._depth:
            self._drop_open(state, self._depth)
        state.writer = self._above
        try:
            if self._token is not _NOTHING:
                self._selections.restore(self._token)
        except Exception:
            self._forget(state)
            raise
        entered = state.selections
        if entered and entered[-1] is self:
            del entered[-1]
            self._state = None
        else:
            self._forget(state)

    def _leave_out_of_turn(self, state: ThreadState, error: BaseException | None) -> None:
        is_in_turn = state.selections[-1] is self
        self._drop_open(state, self._depth + 1)
        try:
            self._range.__exit__(None, error, None)
        finally:
            self.put_back()
        if not is_in_turn:
            self._complain(error, "before one that was entered after it")

    def _drop_open(self, state: ThreadState, depth: int) -> None:
        """Drop and count ranges that an interrupt or wrong nesting left open."""
        if len(state.open_ranges) > depth:
            recorder = self._selections.recorder
            recorder.count_failed(recorder.drop_open(state.open_ranges, depth))

    def _forget(self, state: ThreadState) -> None:
        entered = state.selections
        while entered and entered[-1] is not self and self in entered:
            taken = entered[-1]
            taken._is_taken, taken._state = True, None  # noqa: SLF001 - of this class
            del entered[-1]
        if entered and entered[-1] is self:
            del entered[-1]
        self._state = None

    def _refuse_to_leave(self, error: BaseException | None) -> None:
        if self._state is not None:
            self._complain(error, "in a thread that did not enter it")
        elif self._is_taken or self._selections.is_closed:
            self._is_taken = False
        else:
            self._complain(error, "twice")

    def _complain(self, error: BaseException | None, how: str) -> None:
        message = f"The selection of stream {self.stream.name!r} was left {how}. Enter and leave with nested `with` blocks."
        if error is None:
            raise SelectionError(message)
        _log.warning(message)
