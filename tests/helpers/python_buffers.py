"""Callbacks of CUPTI in Python: enough for a fake libcupti, where there is no compiler; a real one they can block for ever."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda.cupti._buffers import (
    BUFFER_BYTES,
    BUFFER_LIMIT,
    COMPLETE,
    REQUEST,
    ActivityBuffers,
)

_ALIGNMENT = 64


class PythonBuffers(ActivityBuffers):
    """Buffers that CUPTI takes and gives back through Python."""

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, buffer_limit: int = BUFFER_LIMIT) -> None:
        self.buffer_bytes = buffer_bytes
        self._buffer_limit = buffer_limit
        self._idle: list[tuple[int, NDArray[np.uint8]]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._full: deque[tuple[int, NDArray[np.uint8], int]] = deque()
        self._taken: dict[int, NDArray[np.uint8]] = {}
        self._made_count = 0
        self._lock = threading.Lock()
        self.request = REQUEST(self._give)
        self.complete = COMPLETE(self._take_back)
        self.note_call = None

    @property
    def full_bytes(self) -> int:
        """Bytes in buffers that wait to be taken."""
        return len(self._full) * self.buffer_bytes

    @property
    def call_count(self) -> int:
        """None: what stands for the ring is in the fake libcupti."""
        return 0

    def take(self) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return what was filled since the last time, in that order."""
        taken = []
        while self._full:
            address, memory, valid_bytes = self._full.popleft()
            self._taken[address] = memory
            taken.append((address, memory[:valid_bytes]))
        return taken

    def take_spilt_bytes(self) -> int:
        """None: whoever finds no buffer here is refused."""
        return 0

    def give_back(self, ticket: int) -> None:
        """Let a buffer that was taken be filled again."""
        memory = self._taken.pop(ticket, None)
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
                return
            ticket, memory = made
        self._lent[ticket] = memory
        address[0], size[0] = ticket, self.buffer_bytes

    def _make(self) -> tuple[int, NDArray[np.uint8]] | None:
        with self._lock:
            if self._made_count >= self._buffer_limit:
                return None
            self._made_count += 1
        raw = np.empty(self.buffer_bytes + _ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % _ALIGNMENT
        memory = raw[skip : skip + self.buffer_bytes]
        return memory.ctypes.data, memory

    def _take_back(self, _context: int, _stream: int, address: int, _size: int, valid_bytes: int) -> None:
        # One that another client gave CUPTI is not ours to touch.
        memory = self._lent.pop(address, None)
        if memory is not None:
            self._full.append((address, memory, valid_bytes))
