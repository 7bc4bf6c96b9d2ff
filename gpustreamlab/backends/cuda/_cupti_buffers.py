"""The buffers that CUPTI fills: pooled, bounded, and taken back as they are.

CUPTI asks for an empty buffer in the thread of the user's call and hands full ones over in a thread of its own. Both only move
a buffer from one list to another; reading happens later, elsewhere.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda._cupti import Cupti

BUFFER_BYTES = 1 << 20
"""Size of a buffer: 4,800 kernels."""
BUFFER_LIMIT = 256
"""Buffers that exist at most: 256 MiB, 1.2 million kernels that nobody has fetched. More records are dropped and counted."""

_ALIGNMENT = 64

_SIZE = ctypes.POINTER(ctypes.c_size_t)
_REQUEST = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


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
        self.refused_count = 0
        """How often CUPTI got none because all were in use."""
        self._idle: list[tuple[int, NDArray[np.uint8]]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._full: deque[tuple[int, int]] = deque()
        self._made_count = 0
        self._lock = threading.Lock()
        # CUPTI calls these for as long as the process lives, so they live as long.
        self._request = _REQUEST(self._give)
        self._complete = _COMPLETE(self._take_back)

    def register(self, cupti: Cupti) -> None:
        """Let CUPTI use these buffers."""
        cupti.require("cuptiActivityRegisterCallbacks", self._request, self._complete)

    @property
    def full_bytes(self) -> int:
        """Bytes in buffers that wait to be taken."""
        return len(self._full) * self.buffer_bytes

    def take(self) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return what was filled since the last time: for each a ticket for `give_back`, and the bytes."""
        taken = []
        while self._full:
            address, valid_bytes = self._full.popleft()
            memory = self._lent.get(address)
            if memory is not None:
                taken.append((address, memory[:valid_bytes]))
        return taken

    def give_back(self, ticket: int) -> None:
        """Let a buffer be filled again."""
        memory = self._lent.pop(ticket, None)
        if memory is not None:
            self._idle.append((ticket, memory))

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
        self._lent[ticket] = memory
        address[0], size[0] = ticket, self.buffer_bytes

    def _make(self) -> tuple[int, NDArray[np.uint8]] | None:
        with self._lock:
            if self._made_count >= self.buffer_limit:
                return None
            self._made_count += 1
        raw = np.empty(self.buffer_bytes + _ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % _ALIGNMENT
        memory = raw[skip : skip + self.buffer_bytes]
        return memory.ctypes.data, memory

    def _take_back(self, _context: int, _stream: int, address: int, _size: int, valid_bytes: int) -> None:
        # One that another client gave CUPTI is not ours to touch.
        if address in self._lent:
            self._full.append((address, min(valid_bytes, self.buffer_bytes)))
