"""Page-locked host memory in the simulated world."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class PinnedArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array whose memory counts as page-locked. Views of it count too, copies do not."""

    _owns_locked_pages = False


def create_pinned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array in memory that counts as page-locked.

    Examples
    --------
    >>> buffer = create_pinned(8, "f4")
    >>> is_pinned(buffer[2:4]), is_pinned(buffer.copy())
    (True, False)
    """
    array = PinnedArray(shape, dtype=dtype)
    array._owns_locked_pages = True
    return array


def is_pinned(array: NDArray[Any]) -> bool:
    """Tell whether an array's memory counts as page-locked, by asking who owns it."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, PinnedArray) and owner._owns_locked_pages:
            return True
        owner = owner.base
    return False
