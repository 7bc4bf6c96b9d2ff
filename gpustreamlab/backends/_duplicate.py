"""Copies of NumPy arrays that share memory among themselves as the originals do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Copy = Callable[[NDArray[Any]], NDArray[Any]]


def duplicate_host(arrays: Sequence[NDArray[Any]], copy: Copy = lambda owner: owner.copy(order="K")) -> list[NDArray[Any]]:
    """Return copies of NumPy arrays.

    Examples
    --------
    >>> x = np.arange(6)
    >>> whole, part = duplicate_host([x, x[2:4]])
    >>> whole[2:4] = 0
    >>> part.tolist(), x.tolist()
    ([0, 0], [0, 1, 2, 3, 4, 5])
    """
    owners: dict[int, NDArray[Any]] = {}
    made = []
    for array in arrays:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in owners:
            owners[id(owner)] = copy(owner)
        made.append(_view_of(array, owner, owners[id(owner)]))
    return made


def _view_of(array: NDArray[Any], owner: NDArray[Any], copied: NDArray[Any]) -> NDArray[Any]:
    """Return the view of a copied owner that an array is of its own."""
    if array is owner or not array.size:
        return copied if array is owner else array.copy()
    flat = copied.reshape(-1, order="A").view(np.uint8)
    offset = int(array.__array_interface__["data"][0]) - int(owner.__array_interface__["data"][0])
    return np.ndarray(array.shape, array.dtype, buffer=flat, offset=offset, strides=array.strides)
