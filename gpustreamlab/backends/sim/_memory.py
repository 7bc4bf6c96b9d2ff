"""Device memory in the simulated world: which stream's arena each array's memory is of. It has no limit and costs no time."""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.analysis import Piece, Region, Touch, region_of
from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends._features import ArrayLender
from gpustreamlab.backends.sim._commands import StreamQueue

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._driver import SimDriver


BLOCK_BYTES = 512
"""Sizes are rounded up to it. Source: CuPy's memory pool."""


class Chunk(NamedTuple):
    """A piece of an arena."""

    offset: int
    """Bytes in front of it."""
    size_bytes: int


class StreamArena:
    """Gives out the smallest free piece that is large enough, cut to size; joins free neighbours. It never returns any.

    Source: CuPy's ``SingleDeviceMemoryPool``, which has one arena for each stream.

    Examples
    --------
    >>> arena = StreamArena()
    >>> first = arena.allocate(1_000)
    >>> arena.free(first)
    >>> arena.used_bytes, arena.reserved_bytes
    (0, 1024)
    >>> arena.allocate(10).size_bytes, arena.reserved_bytes  # out of what was freed
    (512, 1024)
    """

    __slots__ = ("_begins", "_ends", "_free", "_sizes", "_top", "reserved_bytes", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0
        """What arrays hold."""
        self.reserved_bytes = 0
        """What the pool holds: used and free."""
        self._sizes: list[int] = []
        self._free: dict[int, dict[int, None]] = {}
        """Where free pieces are, by their size; those that were freed last are at the end."""
        self._begins: dict[int, int] = {}
        """Sizes of free pieces, by where they begin."""
        self._ends: dict[int, int] = {}
        """Where free pieces begin, by where they end."""
        self._top = 0

    def allocate(self, size_bytes: int) -> Chunk:
        """Give out a piece, of what is free or newly reserved."""
        size_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        place = bisect_left(self._sizes, size_bytes)
        if place == len(self._sizes):
            offset = self._top
            self._top += size_bytes + BLOCK_BYTES  # a gap: pieces that were reserved one by one are not joined
            self.reserved_bytes += size_bytes
        else:
            free_bytes = self._sizes[place]
            offset = next(reversed(self._free[free_bytes]))
            self._take(offset, free_bytes)
            if free_bytes > size_bytes:
                self._put(offset + size_bytes, free_bytes - size_bytes)
        self.used_bytes += size_bytes
        return Chunk(offset, size_bytes)

    def free(self, chunk: Chunk) -> None:
        """Take a piece back, and join it with free neighbours; it stays reserved."""
        start, size_bytes = chunk
        self.used_bytes -= size_bytes
        after_bytes = self._begins.get(start + size_bytes, 0)
        if after_bytes:
            self._take(start + size_bytes, after_bytes)
        before = self._ends.get(start, start)
        if before < start:
            self._take(before, start - before)
        self._put(before, start - before + size_bytes + after_bytes)

    def _put(self, offset: int, size_bytes: int) -> None:
        self._begins[offset], self._ends[offset + size_bytes] = size_bytes, offset
        if size_bytes not in self._free:
            self._free[size_bytes] = {}
            insort(self._sizes, size_bytes)
        self._free[size_bytes][offset] = None

    def _take(self, offset: int, size_bytes: int) -> None:
        del self._begins[offset], self._ends[offset + size_bytes]
        same = self._free[size_bytes]
        del same[offset]
        if not same:
            del self._free[size_bytes]
            self._sizes.remove(size_bytes)


class Pages(np.ndarray[Any, np.dtype[Any]]):
    """Memory that is no pool's: page-locked, or a lane's scratch. Users get plain arrays whose base it is.

    So copies and results of theirs do not count as such memory.
    """

    is_scratch = False
    stream_number = 0
    """Of the stream on which scratch was allocated."""
    owner: ArrayLender | None = None
    """Kept alive by arrays in scratch."""
    noted: tuple[object, Piece] | None = None
    """Who watches accesses, and what stands for the memory there."""


def create_pinned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array in memory that counts as page-locked.

    Examples
    --------
    >>> buffer = create_pinned(8, "f4")
    >>> is_pinned(buffer[2:4]), is_pinned(buffer.copy())
    (True, False)
    """
    return Pages(shape, dtype=dtype).view(np.ndarray)


def is_pinned(array: NDArray[Any]) -> bool:
    """Tell whether an array's memory counts as page-locked: whether its owner says so."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if type(owner) is Pages:
            return not owner.is_scratch
        owner = owner.base
    return False


USED, RESERVED = "pool_used_bytes", "pool_reserved_bytes"
_ARENA_BITS, _LIFE_BITS = 40, 56  # of a modelled address: below them the place in an arena, then the stream, then the life
_HOST_BASE = 1 << 62  # added to addresses of the host, which then meet none of the device


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
        self._life = 0  # how often all arenas were made anew
        # What is garbage by now. A C function is called back: Python code there could swallow a Ctrl-C.
        self._dead: deque[_Block] = deque()
        self._has_scratch = False

    @property
    def block_count(self) -> int:
        """Pieces of memory that arrays hold."""
        self.settle()
        return len(self._blocks)

    @property
    def used_bytes(self) -> int:
        """Bytes that arrays hold."""
        self.settle()
        return sum(arena.used_bytes for _, arena in [*self._arenas.values()])

    def hold(self, values: NDArray[Any], stream: StreamQueue) -> None:
        """Count the memory behind an array as allocated on a stream until it is gone; a view counts nothing."""
        owner = values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        key = id(owner)
        known = self._blocks.get(key)
        if (known is not None and known() is owner) or not owner.nbytes or type(owner) is Pages:
            return
        with self._driver.lock:
            self._driver.check_open()
            self.settle()
            self._is_torn = True
            arena = self._arena_of(stream)
            reserved_bytes = arena.reserved_bytes
            block = _Block(owner, self._dead.append)
            block.key, block.stream, block.arena, block.chunk = key, stream, arena, arena.allocate(owner.nbytes)
            block.address, block.touch = -1, None
            self._blocks[key] = block
            self._is_torn = False
            if self._driver.source is not None:
                self._tell(stream, arena, grown_bytes=arena.reserved_bytes - reserved_bytes)

    def find_touches(self, arrays: Sequence[NDArray[Any]], some: NDArray[Any] | None) -> list[Touch]:
        """Return which memory arrays are, only some elements of `some`; called while accesses are watched."""
        touches, blocks = [], self._blocks
        for values in arrays:
            if values.base is None and values is not some:
                block = blocks.get(id(values))
                if block is not None and block() is values:  # one that died may have had the same address
                    touches.append(block.touch or self._find_memory(block, values))
                    continue
            touch = self.touch(values, is_certain=values is not some)
            if touch is not None:
                touches.append(touch)
        return touches

    def touch(self, values: NDArray[Any], *, is_certain: bool = True) -> Touch | None:
        """Return which memory an array is, of this card or another that is watched; None where it is empty, or pageable.

        Copies from and to pageable memory block the host anyway.
        """
        owner = values
        while isinstance(base := owner.base, np.ndarray):
            owner = base
        if not values.size:
            return None
        for card in self._driver.cards:
            pool = card.memory
            block = pool._blocks.get(id(owner))  # noqa: SLF001 - of this class
            if block is not None and block() is owner and card.accesses is not None:
                break
        else:
            return self._touch_pages(values, owner, is_certain=is_certain)
        whole = block.touch or pool._find_memory(block, owner)  # noqa: SLF001 - of this class
        if is_certain and (owner is values or (values.nbytes == owner.nbytes and values.flags.forc)):
            return whole
        if block.address < 0:
            block.address = _address_of(owner)
        return whole[0], _region_in(values, block.address, whole[0], is_certain=is_certain)

    def find_ended(self, arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[Piece, ArrayLender]]:
        """Find arrays in scratch that was given back, or freed with its lane; called once they were found as memory."""
        for values in arrays if self._has_scratch else ():
            owner, lender = values, None
            while isinstance(base := owner.base, np.ndarray):
                lender = owner.owner if type(owner) is Pages else lender
                owner = base
            if lender is not None and lender.ending and isinstance(owner, Pages) and owner.noted is not None:
                yield owner.noted[1], lender

    def forget_pieces(self) -> None:
        """Let nobody's notes stand for the memory: another one begins to watch accesses, or none."""
        for block in list(self._blocks.values()):
            block.touch = None

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
        arena = block.arena
        arena.free(block.chunk)
        if block.touch is not None and self._driver.accesses is not None:
            self._driver.accesses.free(block.touch[0])
        block.touch = None  # the piece knows the block: no cycle is left to the collector
        self._tell(block.stream, arena)
        if block.stream.is_closed and not arena.used_bytes:
            self._drop(block.stream)

    def _find_memory(self, block: _Block, owner: NDArray[Any]) -> Touch:
        """Return what stands for all of a block's memory among those who watch accesses."""
        sink = self._driver.accesses
        assert sink is not None  # noqa: S101 - for the type checker: asked for while accesses are watched only
        start = (self._life << _LIFE_BITS) + (block.stream.number << _ARENA_BITS) + block.chunk.offset
        end = start + block.chunk.size_bytes  # with what it was rounded up to
        piece = sink.allocate(block.stream.number, start, end, owner.shape, owner.dtype)
        piece.owner = block
        touch = block.touch = piece, None
        return touch

    def _touch_pages(self, values: NDArray[Any], pages: NDArray[Any], *, is_certain: bool) -> Touch | None:
        """Return which memory an array is that no pool has: page-locked, or a lane's scratch."""
        sink = self._driver.accesses
        if sink is None or not isinstance(pages, Pages):
            return None
        self._has_scratch |= pages.is_scratch
        if pages.noted is None or all(pages.noted[0] is not card.accesses for card in self._driver.cards):
            start = _HOST_BASE + _address_of(pages)
            homes = (card.accesses for card in self._driver.cards if pages.stream_number in card.streams)
            sink = next(homes, None) or sink
            pages.noted = sink, sink.allocate(pages.stream_number, start, start + pages.nbytes, values.shape, values.dtype)
        piece = pages.noted[1]
        return piece, _region_in(values, _address_of(pages), piece, is_certain=is_certain)

    def _drop(self, stream: StreamQueue) -> None:
        self._arenas.pop(stream.number, None)
        self._note(stream, RESERVED, 0)

    def _repair(self) -> None:
        """Start from what arrays hold, after an interrupt in the middle of a change; what was free is not reserved any more."""
        self._dead.clear()
        self._arenas.clear()
        self._life += 1
        for block in list(self._blocks.values()):
            owner = block()
            if owner is None:
                del self._blocks[block.key]
            else:
                block.arena = self._arena_of(block.stream)
                block.chunk = block.arena.allocate(owner.nbytes)

    def _tell(self, stream: StreamQueue, arena: StreamArena, *, grown_bytes: int = 0) -> None:
        source, now_ns = self._driver.source, self._driver.clock.now_ns
        if grown_bytes and source is not None:
            source.note_call("cudaMalloc", CallClass.MEMORY, now_ns, now_ns, size_bytes=grown_bytes)
            self._note(stream, RESERVED, arena.reserved_bytes)
        self._note(stream, USED, arena.used_bytes)

    def _note(self, stream: StreamQueue, name: str, value_bytes: int) -> None:
        if self._driver.source is not None:
            self._driver.source.note_memory(self._driver.clock.now_ns, stream, name, value_bytes)


class _Block(weakref.ref["NDArray[Any]"]):
    """Looks at the array that owns memory, without keeping it."""

    __slots__ = ("address", "arena", "chunk", "key", "stream", "touch")
    address: int
    arena: StreamArena
    chunk: Chunk
    key: int
    touch: Touch | None
    stream: StreamQueue


def _region_in(values: NDArray[Any], owner_address: int, piece: Piece, *, is_certain: bool) -> Region:
    """Return the bytes of a view, where its owner's memory has modelled addresses."""
    address = piece.start + _address_of(values) - owner_address
    return region_of(address, values.shape, values.strides, values.itemsize, is_certain=is_certain)


def _address_of(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])
