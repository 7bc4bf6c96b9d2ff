"""Streams that are closed while a thread has them selected: they are destroyed when that thread has left them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpustreamlab.backends import BackendContext, BackendStream, ContextSpec
from gpustreamlab.recorder import RecordedLane

__all__ = ["LeftStreams"]

_log = logging.getLogger(__name__)


class _Left(NamedTuple):
    places: Sequence[RecordedLane]
    stream: BackendStream
    spec: ContextSpec | None
    let_go: Callable[[], object]


class LeftStreams:
    """Destroys the backend's streams of a session, but none on which a library may still launch: that would end the process.

    Parameters
    ----------
    is_lending
        Whether libraries have these streams by their handles.
    """

    def __init__(self, *, is_lending: bool) -> None:
        self._is_lending = is_lending
        self._waiting: list[_Left] = []
        self._contexts: dict[ContextSpec, BackendContext] = {}
        self.disown()

    @property
    def specs(self) -> set[ContextSpec]:
        """What the green contexts of the streams that wait are made of."""
        return {left.spec for left in tuple(self._waiting) if left.spec is not None}

    def is_needed(self, places: Sequence[RecordedLane]) -> bool:
        """Tell whether a thread has a stream selected, in any of its places, so that a library may still launch there."""
        return self._is_lending and any(place.is_selected for place in places)

    def close(
        self, places: Sequence[RecordedLane], stream: BackendStream, spec: ContextSpec | None, let_go: Callable[[], object]
    ) -> None:
        """Destroy a stream, now or when no thread has it selected any more.

        Parameters
        ----------
        places, stream, spec
            The stream as the recorder knows it, and the backend, and what its green context is made of.
        let_go
            Called before that, to free what work of that thread may still use.
        """
        if not self.is_needed(places):
            _close_all([let_go, stream.close])
            return
        _log.warning(
            "Stream %r was closed while a thread has it selected. What that thread enqueues there is not recorded; the stream "
            "is destroyed when its `with` block ends.",
            places[0].name,
        )
        with self._lock:
            self._waiting.append(_Left(places, stream, spec, let_go))
        self.sweep()  # the thread may have left it in between

    def take_context(self, spec: ContextSpec, context: BackendContext) -> bool:
        """Take over a green context that is to be destroyed, if a stream in it waits; it goes with the last of them."""
        with self._lock:
            is_needed = spec in self.specs
            if is_needed:
                self._contexts[spec] = context
        return is_needed

    def sweep(self) -> None:
        """Destroy what no thread has selected any more; one that fails keeps no other from being destroyed."""
        with self._lock:
            ended = [left for left in self._waiting if not self.is_needed(left.places)]
            self._waiting = [left for left in self._waiting if left not in ended]
            spare = self._contexts.keys() - self.specs
            contexts = [self._contexts.pop(spec) for spec in spare]
        streams = [close for left in ended for close in (left.let_go, left.stream.close)]
        _close_all([*streams, *(context.close for context in contexts)])

    def disown(self) -> None:
        """Make its lock anew: in a forked child, a thread that is not in this process may hold the other one."""
        self._lock = threading.RLock()


def _close_all(closers: list[Callable[[], object]]) -> None:
    failures: list[Exception] = []
    for close in closers:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - raised below, after the others
            failures.append(error)
    if failures:
        raise failures[0]
