"""Which bytes an array covers, and whether two arrays share any."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

OVERLAP_WORK = 10_000
"""How hard NumPy may try to find a byte that two strided arrays share; beyond that they "may" share one."""
_SHIFT = 1 << 20  # Added to distances between addresses, so that no address is 0


class Region(NamedTuple):
    """Bytes of device memory, as an array walks over them."""

    start: int  # First byte
    end: int  # Behind the last byte
    address: int | None = None  # Of the element at index 0; None where all bytes from start to end are covered
    shape: tuple[int, ...] = ()  # Size of each dimension
    strides: tuple[int, ...] = ()  # Bytes from one element to the next along each dimension
    itemsize: int = 1  # Bytes of one element
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
