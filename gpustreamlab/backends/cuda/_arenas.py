"""What CuPy's pool keeps for each stream, given back when the stream is gone, and once more later.

The pool keeps one arena for each stream pointer. It outlives the stream, and is inherited by the next one with the same pointer
(cupy#8068). An array that outlives its stream, in a reference cycle say, gives its memory back to an arena that nobody uses:
on an H200 that was 45 MiB a minute, with 16 threads that close lanes and sessions.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

SWEEP_EVERY = 64
"""After so many streams were destroyed, the arenas of those that went before are looked at again: freeing may wait."""
KEPT_POINTERS = 1_024
"""Destroyed streams that are remembered. Pointers are used again, so there are seldom more."""

_gone: OrderedDict[tuple[int, int], Any] = OrderedDict()
_lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it


class StreamArenas:
    """The arenas of one device's streams.

    Parameters
    ----------
    pool
        ``cupy.get_default_memory_pool()``.
    ordinal
        The CUDA device.
    scope
        Makes it current, and lets what is freed break no capture of a CUDA graph in another thread, as a context manager.
    """

    def __init__(self, pool: Any, ordinal: int, scope: Callable[[], AbstractContextManager[None]]) -> None:
        self._pool = pool
        self._ordinal = ordinal
        self._scope = scope
        self._ended_count = 0

    def begin(self, pointer: int) -> None:
        """Note that there is a stream of this pointer, perhaps again."""
        with _lock:
            _gone.pop((self._ordinal, pointer), None)

    def end(self, cupy_stream: Any) -> None:
        """Give back what is kept for a CuPy stream that is about to be destroyed; it is looked at again in a later `sweep`."""
        with self._scope():
            self._pool.free_all_blocks(stream=cupy_stream)
        with _lock:
            _gone[self._ordinal, int(cupy_stream.ptr)] = cupy_stream
            if len(_gone) > KEPT_POINTERS:
                _gone.popitem(last=False)
            self._ended_count += 1
            is_due = self._ended_count % SWEEP_EVERY == 0
        if is_due:
            self.sweep()

    def sweep(self) -> None:
        """Give back what has come to arenas of streams that are gone."""
        with _lock:
            gone = [stream for (ordinal, _), stream in _gone.items() if ordinal == self._ordinal]
        with self._scope():
            for stream in gone:
                self._pool.free_all_blocks(stream=stream)
