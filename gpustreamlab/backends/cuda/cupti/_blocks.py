"""Memory that is allocated now, by address: of the driver, and what pools of libraries give out of it."""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._activity import take_buffer_number
from gpustreamlab.typing import Int64Array

WRITTEN = -1
"""Stands in `Block.born` for memory that somebody may have written."""
_NEIGHBOURHOOD = 1 << 30


class Block:
    """An allocation, or what a library's pool gave out of one."""

    __slots__ = ("born", "end", "flags", "is_pool", "made_ns", "number", "start", "stream")

    def __init__(self, start: int, end: int, *, flags: int = 0, born: int = WRITTEN, made_ns: int = 0, stream: int = 0) -> None:
        self.number = take_buffer_number()
        self.start = start
        self.end = end
        self.flags = flags  # `IS_HOST` or 0
        self.born = born  # How much work of which nothing is known there was before it; -1 once somebody may have written it
        self.made_ns = made_ns  # When the call that made it returned; 0 where it was there before
        self.stream = stream
        self.is_pool = False  # Whether a library gives out parts of it


class Table:
    """Blocks that do not overlap, by address."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self._starts: list[int] = []

    def put(self, block: Block) -> list[Block]:
        """Put a block in; return those that were in its place, whose end was not told."""
        gone = self.take(block.start, block.end)
        self.blocks[block.start] = block
        insort(self._starts, block.start)
        return gone

    def take(self, start: int, end: int) -> list[Block]:
        """Take out what lies in a piece of memory."""
        block = self.blocks.get(start)
        if block is not None and block.end == end:
            self.remove(block)
            return [block]
        last = bisect_right(self._starts, end - 1)
        if not last or (self.blocks[self._starts[last - 1]].end <= start):
            return []
        first = bisect_right(self._starts, start, 0, last)
        if first and self.blocks[self._starts[first - 1]].end > start:
            first -= 1
        gone = [self.blocks.pop(one) for one in self._starts[first:last]]
        del self._starts[first:last]
        return gone

    def remove(self, block: Block) -> None:
        del self.blocks[block.start]
        del self._starts[bisect_right(self._starts, block.start) - 1]

    def is_near(self, address: int) -> bool:
        """Tell whether some block is in the neighbourhood of an address."""
        at = bisect_right(self._starts, address)
        return any(abs(start - address) < _NEIGHBOURHOOD for start in self._starts[max(0, at - 1) : at + 1])

    def find_all(self, address: NDArray[np.uint64]) -> Int64Array:
        """Return the number and the start of the block that each address is in, 0 each where there is none; shape (2, n)."""
        if not self._starts:
            return np.zeros((2, len(address)), np.int64)
        blocks = [self.blocks[start] for start in self._starts]
        facts = np.array([(0 if one.is_pool else one.number, one.start, one.end) for one in blocks], np.int64).T
        at = np.maximum(np.searchsorted(facts[1], address.view(np.int64), side="right") - 1, 0)
        number, start, end = facts[:, at]
        return np.where((address >= start) & (address < end), (number, start), 0)

    def find(self, address: int) -> Block | None:
        block = self.blocks.get(address)
        if block is None and self._starts:
            at = bisect_right(self._starts, address)
            block = self.blocks[self._starts[at - 1]] if at else None
        return block if block is not None and block.start <= address < block.end else None


class BlockChange(NamedTuple):
    """What a library's pool gave out, or took back."""

    wall_ns: int
    """By the wall clock; rather early than late."""
    start: int
    size_bytes: int
    """0 for one that is taken back."""
    stream: int
    """Handle of the stream that it is for."""


_MEMORY_TYPE, _IS_MANAGED, _RANGE_START, _RANGE_SIZE = 2, 8, 11, 12
"""CUpointer_attribute."""
_HOST = 1


def ask_driver(library: Any) -> Callable[[int], tuple[int, int, bool] | None]:
    """Return what asks libcuda which allocation an address is in: its first address, its size, and whether it is the host's."""
    attributes = (ctypes.c_int * 4)(_MEMORY_TYPE, _IS_MANAGED, _RANGE_START, _RANGE_SIZE)

    def ask(address: int) -> tuple[int, int, bool] | None:
        kind, is_managed, start, size = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint64(), ctypes.c_size_t()
        places = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in (kind, is_managed, start, size)))
        code = library.cuPointerGetAttributes(4, attributes, places, ctypes.c_uint64(address))
        if code or not kind.value or not size.value or not start.value <= address < start.value + size.value:
            return None
        return start.value, size.value, kind.value == _HOST or bool(is_managed.value)

    return ask
