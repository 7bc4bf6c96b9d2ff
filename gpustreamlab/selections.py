"""Streams selected per thread: nested, and restored on every exit."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from gpustreamlab.backends import Backend
from gpustreamlab.errors import SelectionError
from gpustreamlab.recorder import Range, Recorder
from gpustreamlab.streams import Stream

__all__ = ["Selection", "Selections"]

_log = logging.getLogger(__name__)


class Selections:
    """What is selected in each thread of one session."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self.backend = backend
        self._recorder = recorder
        self._local = threading.local()
        self.is_closed = False

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        entered = self.entered()
        return entered[-1].stream if entered else None

    def entered(self) -> list[Selection]:
        """Return this thread's selections, innermost last."""
        try:
            entered: list[Selection] = self._local.entered
        except AttributeError:
            entered = self._local.entered = []
        return entered

    def select(self, stream: Stream, label: str) -> Selection:
        """Return a selection of a stream, with a range of this name, to enter with ``with``."""
        return Selection(self, stream, self._recorder.range(stream.recorded, label))

    def close(self) -> None:
        """Put back what was selected in this thread before the first selection; leaving one later is then silent."""
        self.is_closed = True
        entered = self.entered()
        while entered:
            self.backend.restore(entered.pop().token)


class Selection:
    """A stream selected for one thread, with a range around it; made by `Session.on`, entered with ``with`` once."""

    __slots__ = ("_range", "_selections", "stream", "token")

    def __init__(self, selections: Selections, stream: Stream, around: Range) -> None:
        self._selections = selections
        self._range = around
        self.stream = stream
        """The selected stream."""
        self.token: object = None
        """What the backend needs to put back the selection before this one."""

    def __enter__(self) -> Stream:
        backend = self._selections.backend
        self.stream.require_open()
        self.token = backend.select(self.stream.backend_stream)
        try:
            self._range.__enter__()
        except BaseException:
            backend.restore(self.token)
            raise
        self._selections.entered().append(self)
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.stream.is_closed:
                self._range.abandon()
            else:
                self._range.__exit__(kind, error, trace)
        finally:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        entered = self._selections.entered()
        if entered and entered[-1] is self:
            entered.pop()
            self._selections.backend.restore(self.token)
        elif self in entered:
            # The selection above takes over what is to be put back, so that nothing stays selected in the end.
            place = entered.index(self)
            entered[place + 1].token = self.token
            del entered[place]
            self._complain(error, "before one that was entered after it")
        elif not self._selections.is_closed:
            self._complain(error, "in a thread that did not enter it")

    def _complain(self, error: BaseException | None, how: str) -> None:
        message = f"The selection of stream {self.stream.name!r} was left {how}. Enter and leave with nested `with` blocks."
        if error is None:
            raise SelectionError(message)
        _log.warning(message)
