"""Device memory in the simulated world: which stream's pool each array's memory is of. It has no limit and costs no time."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.analysis import Piece, Region, Touch, region_of
from gpustreamlab.backends._activity import CERTAINTY_SHIFT, IS_HOST, IS_WRITE, CallClass, take_buffer_number
from gpustreamlab.errors import DeviceMemoryError, InvalidHandleError
from gpustreamlab.model import ACCESS_CERTAINTIES
from gpustreamlab.schedule._commands import StreamQueue
from gpustreamlab.typing import AccessCertainty

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._driver import SimDriver
    from gpustreamlab.backends.sim._source import Collecting
    from gpustreamlab.backends.sim._stream import NodeWork
    from gpustreamlab.memory.scratch import Scratch


BLOCK_BYTES = 512  # Sizes are rounded up to it. Source: CuPy's memory pool


class Pages(np.ndarray[Any, np.dtype[Any]]):
    """Memory that is no pool's: page-locked, or a stream's scratch. Users get plain arrays whose base it is.

    So copies and results of theirs do not count as such memory.
    """

    is_scratch = False
    stream_number = 0
    """Of the stream on which scratch was allocated."""
    owner: Scratch | None = None
    """Kept alive by arrays in scratch."""
    noted: tuple[object, Piece] | None = None
    """Who watches accesses, and what stands for the memory there."""
    number = 0
    """Of the memory among all of the process; 0 for scratch that nobody has asked for. Given out anew, it has a new one."""


def create_pinned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array in memory that counts as page-locked."""
    pages = Pages(shape, dtype=dtype)
    pages.number = take_buffer_number()  # as on a card, numbers tell what was allocated before what
    return pages.view(np.ndarray)


def is_pinned(array: NDArray[Any]) -> bool:
    """Tell whether an array's memory counts as page-locked: whether its owner says so."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if type(owner) is Pages:
            return not owner.is_scratch
        owner = owner.base
    return False


def owner_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that has the memory of a view."""
    while isinstance(base := array.base, np.ndarray):
        array = base
    return array


USED, RESERVED = "pool_used_bytes", "pool_reserved_bytes"
_POOL_BITS = 44  # of a modelled address: below them the place in a pool, then the stream
_UNKNOWN = ACCESS_CERTAINTIES.index(AccessCertainty.UNKNOWN) << CERTAINTY_SHIFT
_KEPT_HOST = 4_096  # Pageable arrays whose numbers are kept; those that are gone make room, then the oldest
Extent: TypeAlias = tuple[int, int, int, int]
"""Number of an allocation, first byte, byte behind the last one, flags; see `gpustreamlab.backends.AccessBatch`."""
_HOST_BASE = 1 << 62  # added to addresses of the host, which then meet none of the device


class MemoryPool:
    """Knows whose memory each array holds. As CuPy's pool, it never gives back."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._blocks: dict[int, _Block] = {}
        # What is garbage by now. A C function is called back: Python code there could swallow a Ctrl-C.
        self._dead: deque[_Block] = deque()
        self._has_scratch = False
        # By address of an array's values, which array that was and its number. A number is kept as long as the array lives.
        self._host: dict[int, tuple[weakref.ref[NDArray[Any]], int]] = {}

    @property
    def block_count(self) -> int:
        """Pieces of memory that arrays hold."""
        self.settle()
        return len(self._blocks)

    def hold(self, values: NDArray[Any], stream: StreamQueue) -> None:
        """Count the memory behind an array as allocated on a stream until it is gone; a view counts nothing."""
        owner = owner_of(values)
        key = id(owner)
        known = self._blocks.get(key)
        if (known is not None and known() is owner) or not owner.nbytes or type(owner) is Pages:
            return
        with self._driver.lock:
            self._driver.check_open()
            self.settle()
            pool, reserved_bytes = stream.pool, stream.pool.reserved_bytes
            block = _Block(owner, self._dead.append)
            block.key, block.stream, block.size_bytes = key, stream, -(-owner.nbytes // BLOCK_BYTES) * BLOCK_BYTES
            block.offset, block.address, block.touch = pool.allocate(block.size_bytes), -1, None
            whole = take_buffer_number(), 0, owner.nbytes
            block.extents = (*whole, 0), (*whole, IS_WRITE)
            self._blocks[key] = block
            source, now_ns = self._driver.source, self._driver.clock.now_ns
            if source is not None:
                if grown_bytes := pool.reserved_bytes - reserved_bytes:
                    source.note_call("cudaMalloc", CallClass.MEMORY, now_ns, now_ns, size_bytes=grown_bytes)
                    source.note_memory(now_ns, stream, RESERVED, pool.reserved_bytes)
                source.note_memory(now_ns, stream, USED, pool.used_bytes)

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
        owner = owner_of(values)
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

    def find_accesses(self, work: NodeWork) -> list[Extent]:
        """Return which bytes of which allocations work touches; no bytes of none where it is known to touch nothing."""
        found, some, is_write = [], work.some, 0
        find = self._blocks.get
        if not work.reads and not work.writes:
            return [(0, 0, 0, 0)]
        for arrays in (work.reads, work.writes):
            for values in arrays:
                block = find(id(values))
                if block is not None and values is not some and block() is values:  # all of it, as most are
                    found.append(block.extents[is_write])
                elif values.size:
                    found.append(self._extent(values, IS_WRITE * is_write, is_certain=values is not some))
            is_write = 1
        return found

    def _extent(self, values: NDArray[Any], flags: int, *, is_certain: bool) -> Extent:
        owner = owner_of(values)
        number = self._number_of(owner)
        if not number:
            number, flags = self._host_number(owner), flags | IS_HOST
            is_certain = is_certain and owner.base is None  # what lies in memory of others may lie there twice
        elif isinstance(owner, Pages) and not owner.is_scratch:
            flags |= IS_HOST
        region = region_of(_address_of(values) - _address_of(owner), values.shape, values.strides, values.itemsize)
        if not is_certain or region.end - region.start != values.nbytes:  # with gaps: a row says from where to where
            flags |= _UNKNOWN
        return number, region.start, region.end, flags

    def _number_of(self, owner: NDArray[Any]) -> int:
        """Return the number of memory of this card, of another one of the host, or of pages; 0 where it is pageable."""
        if isinstance(owner, Pages):
            owner.number = owner.number or take_buffer_number()
            return owner.number
        for card in self._driver.cards:
            block = card.memory._blocks.get(id(owner))  # noqa: SLF001 - of this class
            if block is not None and block() is owner:
                return block.extents[0][0]
        return 0

    def _host_number(self, owner: NDArray[Any]) -> int:
        """Return the number of a pageable array. Nothing keeps it; another one at its address later has another number."""
        address = _address_of(owner)
        known = self._host.get(address)
        alive = None if known is None else known[0]()
        is_same = alive is owner or (alive is not None and owner.base is not None and alive.base is owner.base)
        if known is not None and is_same:
            return known[1]
        if len(self._host) >= _KEPT_HOST:
            self._host = {at: one for at, one in self._host.items() if one[0]() is not None}
            while len(self._host) >= _KEPT_HOST:
                del self._host[next(iter(self._host))]
        self._host[address] = weakref.ref(owner), take_buffer_number()
        return self._host[address][1]

    def find_ended(self, arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[Piece, Scratch]]:
        """Find arrays in scratch that was given back, or freed with its stream; called once they were found as memory."""
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
        if not self._dead:
            return
        with self._driver.lock:
            while self._dead:
                block = self._dead.popleft()
                if self._blocks.get(getattr(block, "key", 0)) is block:
                    del self._blocks[block.key]
                    self._free(block)

    def tell_all(self, source: Collecting) -> None:
        """Tell of the state of every pool, to one that has just begun."""
        driver = self._driver
        for stream in (driver.null_stream, *driver.streams.values()):
            if stream.pool.reserved_bytes:
                source.note_memory(driver.clock.now_ns, stream, USED, stream.pool.used_bytes)
                source.note_memory(driver.clock.now_ns, stream, RESERVED, stream.pool.reserved_bytes)

    def _free(self, block: _Block) -> None:
        driver, pool = self._driver, block.stream.pool
        pool.free(block.offset, block.size_bytes)
        if block.touch is not None and driver.accesses is not None:
            driver.accesses.free(block.touch[0])
        block.touch = None  # the piece knows the block: no cycle is left to the collector
        if driver.source is not None:
            driver.source.note_memory(driver.clock.now_ns, block.stream, USED, pool.used_bytes)

    def _find_memory(self, block: _Block, owner: NDArray[Any]) -> Touch:
        """Return what stands for all of a block's memory among those who watch accesses."""
        sink = self._driver.accesses
        assert sink is not None  # noqa: S101 - for the type checker: asked for while accesses are watched only
        number = block.stream.number
        start = (number << _POOL_BITS) + block.offset
        piece = sink.allocate(number, start, start + block.size_bytes, owner.shape, owner.dtype)
        piece.owner = block
        touch = block.touch = piece, None
        return touch

    def _touch_pages(self, values: NDArray[Any], pages: NDArray[Any], *, is_certain: bool) -> Touch | None:
        """Return which memory an array is that no pool has: page-locked, or a stream's scratch."""
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


class _Block(weakref.ref["NDArray[Any]"]):
    """Looks at the array that owns memory, without keeping it."""

    __slots__ = ("address", "extents", "key", "offset", "size_bytes", "stream", "touch")
    address: int
    key: int
    extents: tuple[Extent, Extent]  # All of its array: read, and written
    offset: int
    size_bytes: int
    stream: StreamQueue
    touch: Touch | None


def _region_in(values: NDArray[Any], owner_address: int, piece: Piece, *, is_certain: bool) -> Region:
    """Return the bytes of a view, where its owner's memory has modelled addresses."""
    address = piece.start + _address_of(values) - owner_address
    return region_of(address, values.shape, values.strides, values.itemsize, is_certain=is_certain)


def _address_of(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])


FIRST_ADDRESS = 0x7000_0000_0000  # Where blocks begin
PAGE_BYTES = 1 << 21  # Blocks are this far apart at least, as a driver's are
ASYNC_USED = "async_used_bytes"  # Counter of what was allocated in stream order, as CUPTI tells of it


@dataclass(slots=True)
class _ScratchBlock:
    address: int
    stream: StreamQueue
    size_bytes: int
    pages: Pages | None = None
    """Its memory, once an array looks at it."""


class SimScratch:
    """Gives out blocks of device memory, counted against the device's size.

    Each stream has a pool: what was freed in its order is given out again in it, where the size is the same.
    """

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._blocks: dict[int, _ScratchBlock] = {}
        self._next_address = FIRST_ADDRESS
        self.used_bytes = 0
        """What all blocks take."""

    def allocate(self, stream: StreamQueue, size_bytes: int) -> int:
        """Return the address of a block; the host's clock goes on by what the call costs."""
        driver, memory_bytes = self._driver, self._driver.preset.memory_bytes
        with driver.lock:
            driver.check_open()
            if stream in driver.captures:
                raise driver.captures[stream].refuse(
                    f"Taking scratch of stream {stream.number}",
                    "Take scratch before the capture begins, and hold it for as long as the graph is used.",
                )
            if memory_bytes and self.used_bytes + size_bytes > memory_bytes:
                raise DeviceMemoryError(
                    f"Allocating {size_bytes:,} bytes on the simulated {driver.preset.name} failed: "
                    f"{self.used_bytes:,} of its {memory_bytes:,} bytes are in use as scratch. Free some.",
                    driver_code="OUT_OF_MEMORY",
                )
            spare = stream.spare.get(size_bytes)
            block = spare.pop() if spare else self._make(stream, size_bytes)
            if block.pages is not None:
                block.pages.number = 0
            self._blocks[block.address] = block
            self._change("cudaMallocAsync", stream, size_bytes)
        return int(block.address)

    def free(self, stream: StreamQueue, address: int) -> None:
        """Take a block back."""
        with self._driver.lock:
            block = self._find(address)
            del self._blocks[address]
            if stream is block.stream:
                stream.spare.setdefault(block.size_bytes, []).append(block)
            self._change("cudaFreeAsync", block.stream, -block.size_bytes)

    def array(self, address: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: Any) -> NDArray[Any]:
        """Return values in a block's memory; they keep the owner alive, and alias every other array of the block."""
        with self._driver.lock:
            block = self._find(address)
            if block.pages is None:
                block.pages = Pages(block.size_bytes, np.uint8)
                block.pages.is_scratch, block.pages.stream_number = True, block.stream.number
        held = block.pages.view(Pages)
        held.is_scratch, held.owner = True, owner
        return np.ndarray(shape, dtype, held)

    def _make(self, stream: StreamQueue, size_bytes: int) -> _ScratchBlock:
        block = _ScratchBlock(self._next_address, stream, size_bytes)
        self._next_address += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        return block

    def _find(self, address: int) -> _ScratchBlock:
        block = self._blocks.get(address)
        if block is None:
            raise InvalidHandleError(f"The simulated device has no memory at {address:#x}: it was freed, or is no scratch.")
        return block

    def _change(self, call: str, stream: StreamQueue, change_bytes: int) -> None:
        """Count a change, spend what the call costs, and tell of it."""
        driver = self._driver
        began_ns = driver.clock.now_ns
        driver.charge(driver.preset.host.allocate_ns)
        self.used_bytes += change_bytes
        if driver.source is not None:
            driver.source.note_call(call, CallClass.MEMORY, began_ns, driver.clock.now_ns, size_bytes=abs(change_bytes))
            used_bytes = sum(block.size_bytes for block in self._blocks.values() if block.stream is stream)
            driver.source.note_memory(driver.clock.now_ns, stream, ASYNC_USED, used_bytes)
