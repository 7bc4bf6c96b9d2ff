"""The buffers that CUPTI fills: pooled, bounded, and taken back as they are.

CUPTI asks for an empty buffer in the thread of the user's call and hands full ones over in a thread of its own. Both only move
a buffer from one list to another; reading happens later, elsewhere. Where there is a compiler, that is done without Python
(`NativePool`): CUPTI may hold a lock of its own while it calls, and a thread that enters CUDA with the interpreter's lock held
waits for that one, so a callback that waits for the interpreter may wait for ever.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda._idle import keep_for_good
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._native_callbacks import COMPLETE, REQUEST, FilledBuffer, NativePool

_log = logging.getLogger(__name__)


BUFFER_BYTES = 1 << 20
"""Size of a buffer: 4,800 kernels."""
BUFFER_LIMIT = 256
"""Buffers that exist at most: 256 MiB, 1.2 million kernels that nobody has fetched. More records are dropped and counted."""

_ALIGNMENT = 64


class ActivityBuffers:
    """The buffers of this process.

    Parameters
    ----------
    buffer_bytes, buffer_limit
        Size of each, and how many exist at most.
    """

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, buffer_limit: int = BUFFER_LIMIT) -> None:
        self.buffer_bytes = buffer_bytes
        self.buffer_limit = buffer_limit
        self._pool = _make_pool(buffer_bytes, buffer_limit)

    def register(self, cupti: Cupti) -> None:
        """Let CUPTI use these buffers."""
        # CUPTI calls these until the process ends, even while the interpreter is taken down: this reference is never dropped.
        keep_for_good(self._pool)
        cupti.require("cuptiActivityRegisterCallbacks", self._pool.request, self._pool.complete)

    @property
    def is_native(self) -> bool:
        """Whether CUPTI is served without the interpreter's lock."""
        return isinstance(self._pool, NativePool)

    @property
    def refused_count(self) -> int:
        """How often CUPTI got none because all were in use."""
        return self._pool.refused_count

    @property
    def full_bytes(self) -> int:
        """Bytes in buffers that wait to be taken."""
        return self._pool.full_count * self.buffer_bytes

    def take(self) -> list[FilledBuffer]:
        """Return what was filled since the last time."""
        return self._pool.take()

    def give_back(self, ticket: int) -> None:
        """Let a buffer be filled again."""
        self._pool.give_back(ticket)


class PythonPool:
    """Buffers that CUPTI takes and gives back through Python, for machines without a compiler.

    Parameters
    ----------
    buffer_bytes, buffer_limit
        Size of each, and how many exist at most.
    """

    def __init__(self, *, buffer_bytes: int, buffer_limit: int) -> None:
        self.refused_count = 0
        self._buffer_bytes = buffer_bytes
        self._buffer_limit = buffer_limit
        self._idle: list[tuple[int, NDArray[np.uint8]]] = []
        self._lent: dict[int, tuple[NDArray[np.uint8], int]] = {}
        self._full: deque[tuple[int, NDArray[np.uint8], int, int]] = deque()
        self._taken: dict[int, NDArray[np.uint8]] = {}
        self._made_count = 0
        self._lock = threading.Lock()
        self.request = REQUEST(self._give)
        self.complete = COMPLETE(self._take_back)

    @property
    def full_count(self) -> int:
        """Buffers that wait to be taken."""
        return len(self._full)

    def take(self) -> list[FilledBuffer]:
        """Return what was filled since the last time, in that order."""
        taken = []
        while self._full:
            address, memory, valid_bytes, thread = self._full.popleft()
            self._taken[address] = memory
            taken.append(FilledBuffer(address, memory[:valid_bytes], thread))
        return taken

    def give_back(self, address: int) -> None:
        """Let a buffer that was taken be filled again."""
        memory = self._taken.pop(address, None)
        if memory is not None:
            self._idle.append((address, memory))

    def _give(self, address: Any, size: Any, most_records: Any) -> None:
        most_records[0] = 0
        address[0], size[0] = None, 0
        try:
            ticket, memory = self._idle.pop()
        except IndexError:
            made = self._make()
            if made is None:
                self.refused_count += 1
                return
            ticket, memory = made
        self._lent[ticket] = memory, threading.get_ident() & 0xFFFF_FFFF
        address[0], size[0] = ticket, self._buffer_bytes

    def _make(self) -> tuple[int, NDArray[np.uint8]] | None:
        with self._lock:
            if self._made_count >= self._buffer_limit:
                return None
            self._made_count += 1
        raw = np.empty(self._buffer_bytes + _ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % _ALIGNMENT
        memory = raw[skip : skip + self._buffer_bytes]
        return memory.ctypes.data, memory

    def _take_back(self, _context: int, _stream: int, address: int, _size: int, valid_bytes: int) -> None:
        # One that another client gave CUPTI is not ours to touch.
        lent = self._lent.pop(address, None)
        if lent is not None:
            memory, thread = lent
            self._full.append((address, memory, valid_bytes, thread))


def _make_pool(buffer_bytes: int, buffer_limit: int) -> NativePool | PythonPool:
    try:
        return NativePool(buffer_bytes=buffer_bytes, buffer_limit=buffer_limit)
    except OSError as error:
        _log.warning(
            "CUPTI is served through Python, which may wait for ever where other threads call CUDA while it captures. %s",
            error,
        )
        return PythonPool(buffer_bytes=buffer_bytes, buffer_limit=buffer_limit)
