"""Blocks of device memory, by size, and which of them nobody uses any more."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any
from weakref import ref

import numpy as np

from gpustreamlab.errors import OptionError


class Block:
    """A piece of device memory. One whose scratch is gone, and has not given it back, is garbage."""

    __slots__ = ("address", "holder")

    def __init__(self, address: int) -> None:
        self.address = address
        self.holder: ref[Any] | None = None
        """The scratch that has it; None while it is free."""


class SizeClass:
    """Blocks of one size of one lane, on the streams on which they are in order."""

    __slots__ = ("blocks", "free", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        """Of each block."""
        self.free: list[Block] = []
        """Those that can be given out; last in, first out, so that caches are warm."""
        self.blocks: list[Block] = []
        """All of them, in use or free."""

    @property
    def block_count(self) -> int:
        """How many there are, in use or free."""
        return len(self.blocks)

    def take_garbage(self) -> Iterator[Block]:
        """Find blocks whose scratch is gone, each once.

        They are looked for, so that scratch needs no finaliser: one would run anywhere, also where the lists change.
        """
        for block in self.blocks:
            if block.holder is not None and block.holder() is None:
                block.holder = None
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


ALIGNMENT_BYTES = 512
"""Addresses and sizes of blocks are multiples of it."""
CLASSES_PER_DOUBLING = 4
"""How many sizes of blocks there are between a power of two and the next: at most a quarter of what is asked for is wasted."""
MAX_BYTES = 1 << 63
"""What is no size any more."""


def size_class(nbytes: int) -> int:
    """Return the size of the block that is given out for a number of bytes.

    Multiples of 512 up to 4 KiB, then four sizes between a power of two and the next: at most 25% more than was asked for, or
    511 bytes.

    Examples
    --------
    >>> [size_class(nbytes) for nbytes in (0, 1, 512, 513, 4_097, 1 << 20, (1 << 20) + 1)]
    [512, 512, 512, 1024, 5120, 1048576, 1310720]
    """
    step = max(ALIGNMENT_BYTES, 1 << max(0, nbytes - 1).bit_length() >> CLASSES_PER_DOUBLING.bit_length())
    return max(1, -(-nbytes // step)) * step


def check_size(nbytes: object, *, example: str = "lane.scratch(1 << 20)") -> int:
    """Return a number of bytes, 0 or more; raise `OptionError` for anything else, with an example of the call."""
    try:
        size: int = index(nbytes)  # type: ignore[arg-type]
    except TypeError:
        size = -1
    if isinstance(nbytes, (bool, np.bool_)) or not 0 <= size < MAX_BYTES:
        raise OptionError(
            f"{str(nbytes)[:40]!s} ({type(nbytes).__name__}) is not a size of scratch: an integer number of bytes from 0 to "
            f"2**63 - 1. Use for example {example}."
        )
    return size
