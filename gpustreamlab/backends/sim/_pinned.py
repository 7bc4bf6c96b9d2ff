"""Page-locked host memory in the simulated world."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.analysis import Piece


class LockedPages(np.ndarray[Any, np.dtype[Any]]):
    """Memory that counts as page-locked. Users get plain arrays whose base it is, so that copies and results do not count."""

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
    return LockedPages(shape, dtype=dtype).view(np.ndarray)


def is_pinned(array: NDArray[Any]) -> bool:
    """Tell whether an array's memory counts as page-locked: whether its owner says so."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if type(owner) is LockedPages:
            return True
        owner = owner.base
    return False
