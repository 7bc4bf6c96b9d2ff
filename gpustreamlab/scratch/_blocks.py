"""Blocks of device memory, by size, and which of them nobody refers to any more."""

from __future__ import annotations

import sys
from collections.abc import Iterator


class Block:
    """A piece of device memory. One that nothing refers to any more is garbage, and is found by that."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address


class SizeClass:
    """Blocks of one size of one lane, on the streams on which they are in order."""

    __slots__ = ("blocks", "free", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        """Of each block."""
        self.free: list[Block] = []
        """Those that can be given out; last in, first out, so that caches are warm."""
        self.blocks: list[Block] = [Block(0)]
        """All of them, in use or free; the first one is none, and nothing else refers to it."""

    @property
    def block_count(self) -> int:
        """How many there are, in use or free."""
        return len(self.blocks) - 1

    def find_garbage(self) -> Iterator[Block]:
        """Find blocks to which nothing refers but the list of all: what used them is gone, and has not given them back.

        References are counted, so that giving back needs no finaliser: one would run anywhere, and lose a Ctrl-C and a block
        where that comes in the middle of it.
        """
        least = 0
        for block in self.blocks:
            count = sys.getrefcount(block)
            least = least or count
            if count == least and block.address:
                yield block


class Slot:
    """What a lane knows of one size that was asked for."""

    __slots__ = ("back", "free", "kind", "size_bytes", "taken_count")

    def __init__(self, kind: SizeClass) -> None:
        self.kind = kind
        """Its size class."""
        self.size_bytes = kind.size_bytes
        """Of a block."""
        self.free = kind.free
        """Where blocks are taken from. Another list, empty for ever, once the lane works on another stream."""
        self.back = kind.free
        """Where they are given back to."""
        self.taken_count = 0
        """How often it was asked for."""
