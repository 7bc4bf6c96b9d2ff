"""Device memory in the simulated world: which stream's arena each array's memory is of. It has no limit and costs no time."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends.sim._arena import Chunk, StreamArena
from gpustreamlab.backends.sim._commands import StreamQueue

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._driver import SimDriver

USED, RESERVED = "pool_used_bytes", "pool_reserved_bytes"


class MemoryPool:
    """Knows how much of every stream's memory arrays hold, and how much stays reserved. As CuPy's pool, it never gives back.

    One difference: the arena of a stream that was destroyed goes with its last array. An interrupt (Ctrl-C) in the middle of a
    change is repaired before the next one, rather than held back: holding back costs more than all the rest of this.

    Parameters
    ----------
    driver
        The device's driver.
    """

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._arenas: dict[int, tuple[StreamQueue, StreamArena]] = {}
        self._blocks: dict[int, _Block] = {}
        self._is_torn = False
        # What is garbage by now. A C function is called back: Python code there could swallow a Ctrl-C.
        self._dead: deque[_Block] = deque()

    @property
    def block_count(self) -> int:
        """Pieces of memory that arrays hold."""
        self.settle()
        return len(self._blocks)

    def hold(self, values: NDArray[Any], stream: StreamQueue) -> None:
        """Count the memory behind an array as allocated on a stream until it is gone; a view counts nothing."""
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        key = id(owner)
        known = self._blocks.get(key)
        if (known is not None and known() is owner) or not owner.nbytes:
            return
        with self._driver.lock:
            self.settle()
            self._is_torn = True
            arena = self._arena_of(stream)
            reserved_bytes = arena.reserved_bytes
            block = _Block(owner, self._dead.append)
            block.key, block.stream, block.chunk = key, stream, arena.allocate(owner.nbytes)
            self._blocks[key] = block
            self._is_torn = False
            if self._driver.log is not None:
                self._tell(stream, arena, grown_bytes=arena.reserved_bytes - reserved_bytes)

    def settle(self) -> None:
        """Take back the memory of arrays that are gone; the clock has not moved since if this comes before each call."""
        if not self._dead and not self._is_torn:
            return
        with self._driver.lock:
            if self._is_torn:
                self._repair()
            self._is_torn = True
            while self._dead:
                block = self._dead.popleft()
                if self._blocks.get(getattr(block, "key", 0)) is block:
                    del self._blocks[block.key]
                    self._free(block)
            self._is_torn = False

    def forget_stream(self, stream: StreamQueue) -> None:
        """Let go of the arena of a destroyed stream, now or with the last array that is in it."""
        self.settle()
        place = self._arenas.get(stream.number)
        if place is not None and not place[1].used_bytes:
            self._drop(stream)

    def tell_all(self) -> None:
        """Put the state of every arena into the driver's log, for one that has just begun."""
        self.settle()
        for stream, arena in self._arenas.values():
            self._note(stream, USED, arena.used_bytes)
            self._note(stream, RESERVED, arena.reserved_bytes)

    def _arena_of(self, stream: StreamQueue) -> StreamArena:
        place = self._arenas.get(stream.number)
        if place is None:
            place = self._arenas[stream.number] = (stream, StreamArena())
        return place[1]

    def _free(self, block: _Block) -> None:
        arena = block.chunk.arena
        arena.free(block.chunk)
        self._tell(block.stream, arena)
        if block.stream.is_closed and not arena.used_bytes:
            self._drop(block.stream)

    def _drop(self, stream: StreamQueue) -> None:
        self._arenas.pop(stream.number, None)
        self._note(stream, RESERVED, 0)

    def _repair(self) -> None:
        """Start from what arrays hold, after an interrupt in the middle of a change; what was free is not reserved any more."""
        self._dead.clear()
        self._arenas.clear()
        for block in list(self._blocks.values()):
            owner = block()
            if owner is None:
                del self._blocks[block.key]
            else:
                block.chunk = self._arena_of(block.stream).allocate(owner.nbytes)

    def _tell(self, stream: StreamQueue, arena: StreamArena, *, grown_bytes: int = 0) -> None:
        log, now_ns = self._driver.log, self._driver.clock.now_ns
        if grown_bytes and log is not None:
            log.note_call("cudaMalloc", CallClass.MEMORY, now_ns, now_ns, size_bytes=grown_bytes)
            self._note(stream, RESERVED, arena.reserved_bytes)
        self._note(stream, USED, arena.used_bytes)

    def _note(self, stream: StreamQueue, name: str, value_bytes: int) -> None:
        if self._driver.log is not None:
            self._driver.log.note_memory(self._driver.clock.now_ns, stream, name, value_bytes)


class _Block(weakref.ref["NDArray[Any]"]):
    """Looks at the array that owns memory, without keeping it."""

    __slots__ = ("chunk", "key", "stream")
    chunk: Chunk
    key: int
    stream: StreamQueue
