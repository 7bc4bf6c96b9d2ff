"""Streams that are closed while a thread has them selected: they are destroyed when that thread has left them."""

from __future__ import annotations

import logging
import threading

from gpustreamlab.backends import BackendStream
from gpustreamlab.recorder import RecordedLane

__all__ = ["LeftStreams"]

_log = logging.getLogger(__name__)


class LeftStreams:
    """Destroys the backend's streams of a lane, but none on which a library may still launch: that would end the process.

    Parameters
    ----------
    name
        The lane's.
    is_lending
        Whether libraries have these streams by their handles.
    """

    def __init__(self, name: str, *, is_lending: bool) -> None:
        self._name = name
        self._is_lending = is_lending
        self._waiting: list[tuple[RecordedLane, BackendStream]] = []
        self._lock = threading.Lock()

    def close(self, recorded: RecordedLane, stream: BackendStream) -> None:
        """Destroy a stream, now or when no thread has it selected any more."""
        if not (self._is_lending and recorded.is_selected):
            stream.close()
            return
        _log.warning(
            "Stream %r was closed while a thread has it selected. What that thread enqueues there is not recorded; the stream "
            "is destroyed when its `with` block ends.",
            self._name,
        )
        with self._lock:
            self._waiting.append((recorded, stream))

    def sweep(self) -> None:
        """Destroy those that no thread has selected any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            ended = [place for place in waiting if not place[0].is_selected]
            self._waiting = [place for place in waiting if place not in ended]
        for _, stream in ended:
            stream.close()
