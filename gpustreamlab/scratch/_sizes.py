"""Which sizes of blocks there are, and what is a size at all."""

from __future__ import annotations

from operator import index

import numpy as np

from gpustreamlab.errors import OptionError

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
