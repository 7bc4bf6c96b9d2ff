"""Streams that outlive their session, for the next one; see docs/explanations/decisions/0020-streams-are-never-destroyed.md."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any


class IdleStreams:
    """The streams of one device that no session uses at the moment. Any thread may ask.

    A library that has seen a stream may use its handle at any later time: torch records an event on it where page-locked memory
    is freed that was copied there. On a destroyed stream that ends the process. So streams are lent again and never destroyed,
    not at the end of the process either, as torch does with its own. There are as many as were ever open at once.

    Parameters
    ----------
    is_idle
        Tells whether a `cuda.core.Stream` has no work left.
    """

    def __init__(self, is_idle: Callable[[Any], bool]) -> None:
        self._is_idle = is_idle
        self._lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it
        self._kept: dict[tuple[object, int], list[Any]] = {}

    def __len__(self) -> int:
        return sum(len(streams) for streams in self._kept.values())

    def take(self, context: object, priority: int, make: Callable[[], Any]) -> Any:
        """Return a `cuda.core.Stream` without work, which is the caller's from now on: a kept one, or a new one.

        Parameters
        ----------
        context
            The green context that it is of, or None for the primary context.
        priority
            What it was made with.
        make
            Makes a new one.
        """
        with self._lock:
            kept = self._kept.get((context, priority), [])
            place = next((place for place in reversed(range(len(kept))) if self._is_idle(kept[place])), None)
            if place is not None:
                return kept.pop(place)
        made = make()
        keep_for_good(made)
        return made

    def give(self, context: object, priority: int, stream: Any) -> None:
        """Take a stream back; it may still have work."""
        with self._lock:
            self._kept.setdefault((context, priority), []).append(stream)


def keep_for_good(owner: object) -> None:
    """Let an object never be destroyed, not at the end of the process either: one reference is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
