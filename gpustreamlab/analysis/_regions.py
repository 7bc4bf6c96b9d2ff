"""Which bytes an array covers, and whether two arrays share any."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import Int64Array, SpanKind

OVERLAP_WORK = 10_000
"""How hard NumPy may try to find a byte that two strided arrays share; beyond that they "may" share one."""
_SHIFT = 1 << 20
"""Added to distances between addresses, so that no address is 0."""


class Region(NamedTuple):
    """Bytes of device memory, as an array walks over them."""

    start: int
    """First byte."""
    end: int
    """Behind the last byte."""
    address: int | None = None
    """Of the element at index 0; None where all bytes from start to end are covered."""
    shape: tuple[int, ...] = ()
    """Size of each dimension."""
    strides: tuple[int, ...] = ()
    """Bytes from one element to the next along each dimension."""
    itemsize: int = 1
    """Bytes of one element."""
    is_certain: bool = True
    """False where only some of the elements are meant, and it is not known which (an index array chose them)."""

    @property
    def is_whole(self) -> bool:
        """Whether each byte from start to end is certainly covered."""
        return self.address is None and self.is_certain


@lru_cache(maxsize=4_096)
def region_of(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, *, is_certain: bool = True
) -> Region:
    """Return the region of an array that is not empty."""
    start = end = address
    covered = count = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: abs(pair[1])):
        reach = (size - 1) * stride
        start, end = start + min(reach, 0), end + max(reach, 0)
        count *= size if stride else 1
        covered = covered and (size == 1 or abs(stride) <= itemsize * (count // size if stride else 1))
    end += itemsize
    is_dense = bool(covered) and end - start == count * itemsize
    if is_dense:
        return Region(start, end, is_certain=is_certain)
    return Region(start, end, address, tuple(shape), tuple(strides), itemsize, is_certain)


def overlap(first: Region, second: Region) -> bool | None:
    """Tell whether two regions share a byte; None where they may, and it is not known.

    Examples
    --------
    >>> even, odd = region_of(0, (4,), (16,), 8), region_of(8, (4,), (16,), 8)
    >>> overlap(even, odd), overlap(even, region_of(0, (8,), (8,), 8))
    (False, True)
    """
    if first.start >= second.end or second.start >= first.end:
        return False
    if not (first.is_certain and second.is_certain):
        return None
    if first.address is None and second.address is None:
        return True
    origin = min(first.start, second.start)
    return _share(_moved(first, origin), _moved(second, origin))


def covers(first: Region, second: Region) -> bool:
    """Tell whether what conflicts with the second region conflicts with the first as well, as far as that is known."""
    if first == second:
        return True
    if first.address is None and first.start <= second.start and second.end <= first.end:
        return first.is_certain or not second.is_certain
    return False


def _moved(region: Region, origin: int) -> Region:
    """Return a region relative to an address, so that equal pairs are decided once."""
    address = region.start if region.address is None else region.address
    return region._replace(start=region.start - origin, end=region.end - origin, address=address - origin + _SHIFT)


@lru_cache(maxsize=4_096)
def _share(first: Region, second: Region) -> bool | None:
    try:
        # NumPy's stub knows two values of max_work; any number is taken.
        return bool(np.shares_memory(_Addresses(first), _Addresses(second), max_work=OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return None


class _Addresses:
    """What NumPy takes for an array at the region's address. Nothing is there: it asks for the bounds only, and never reads."""

    def __init__(self, region: Region) -> None:
        shape, strides, itemsize = region.shape, region.strides, region.itemsize
        if not shape:  # all bytes from start to end, or one element
            shape, strides, itemsize = (region.end - region.start,), (1,), 1
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{itemsize}",
            "shape": shape,
            "strides": strides,
            "data": (region.address, True),
        }


class Layer(IntEnum):
    """A layer of a lane, from the top."""

    NAMED = 0
    """Ranges on streams; ranges of others (NVTX) and samples of the Python stack on threads of the host."""
    WORK = 1
    """Kernels, copies and fills on streams, and calls on threads of the host."""


class Level(IntEnum):
    """Spans that share rows. Those of two levels never lie in one row."""

    RANGE = 0
    """Ranges: they nest by their parents, and so does all that is of no other level."""
    ANNOTATION = 1
    """Ranges of others: they nest by time."""
    SAMPLE = 2
    """Samples of a thread's Python stack: they follow each other."""
    WORK = 3
    """Kernels, copies and fills: they follow each other, but for those of one graph."""
    CALL = 4
    """Calls of the host: they nest by time, where one is made of others."""

    @property
    def layer(self) -> Layer:
        """The layer that it belongs to."""
        return Layer.NAMED if self < Level.WORK else Layer.WORK


_LEVELS = {
    SpanKind.KERNEL: Level.WORK,
    SpanKind.COPY: Level.WORK,
    SpanKind.FILL: Level.WORK,
    SpanKind.HOST: Level.CALL,
    SpanKind.ANNOTATION: Level.ANNOTATION,
    SpanKind.SAMPLE: Level.SAMPLE,
}

LEVEL_OF_KIND: Int64Array = np.array([_LEVELS.get(kind, Level.RANGE) for kind in SPAN_KINDS], np.int64)
"""Level by the code of the kind; shape (n_kinds,), int64."""

LAYER_OF_LEVEL: Int64Array = np.array([level.layer for level in Level], np.int64)
"""Layer by level; shape (n_levels,), int64."""

LEVEL_COUNT = len(Level)

LEVEL_TOLERANCE_NS = 100
"""Spans of any level but ranges that overlap by no more than this follow each other: no clock of a device is better."""
