"""Who owns an array's memory, and whether anybody still refers to it."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gpustreamlab._util.defences import process_lock
from gpustreamlab.errors import OptionError

_log = logging.getLogger(__name__)


_CONTAINERS = (list, tuple, dict, set, frozenset)
_NO_ARRAYS = (*_CONTAINERS, str, bytes, int, float, complex, type(None), type)


class Owner:
    """What must stay alive for an array's memory to stay.

    Whether anybody else refers to it is read from CPython's reference count, which is exact where there is a global interpreter
    lock. In a free-threaded build a count that is read while other threads change it may be wrong for a moment, so there an
    owner has to be found alone twice, by two sweeps.
    """

    __slots__ = ("__weakref__", "_sightings", "key", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.key = id(memory)
        """The same for all arrays in this memory, as long as it is kept."""
        self._sightings = 0

    def is_alone(self) -> bool:
        """Tell whether nobody else refers to the memory."""
        self._sightings = self._sightings + 1 if self._is_alone_now() else 0
        return self._sightings >= _SIGHTINGS

    def _is_alone_now(self) -> bool:
        return sys.getrefcount(self.memory) <= _ALONE


class TorchStorage(Owner):
    """The storage of a tensor. Torch counts the tensors in it, and what autograd keeps, in a count of its own."""

    __slots__ = ()

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self.key = memory._cdata  # noqa: SLF001 - the storage's address; every tensor gives a wrapper of its own

    def _is_alone_now(self) -> bool:
        return super()._is_alone_now() and _use_count(self.memory) <= _lone_use_count()


def check_array(array: object, lane_name: str) -> None:
    """Raise `OptionError` for what is surely no array: a plain value, or a container of arrays."""
    if isinstance(array, _NO_ARRAYS):
        hint = "each of its arrays for itself" if isinstance(array, _CONTAINERS) else "the array itself"
        raise OptionError(
            f"A {type(array).__name__} is not an array. Pass {hint}: lab.stream({lane_name!r}).use(array, after=...)."
        )


def is_empty(array: Any) -> bool:
    """Tell whether an array of any library has no elements, so that there is nothing in it to wait for."""
    shape = getattr(array, "shape", None)
    if shape is None:
        shape = (getattr(array, "__cuda_array_interface__", None) or {}).get("shape")
    return isinstance(shape, tuple) and 0 in shape


def find_owner(array: Any) -> Owner:
    """Return who owns an array's memory.

    For CuPy that is the allocation behind all views; for torch the storage; for NumPy and the simulated device the last base.
    For arrays of other libraries it is the object itself: their views are not known.
    """
    owner = _make_owner(array)
    # One for the whole process: two sessions that each kept one would take each other's for somebody who refers to the memory.
    with _owners_lock:
        return _owners.setdefault((type(owner), owner.key), owner)


def _make_owner(array: Any) -> Owner:
    if "torch" in sys.modules and hasattr(array, "untyped_storage"):  # subclasses of tensors live anywhere
        return _torch_owner(array)
    memory = getattr(getattr(array, "data", None), "mem", None)  # cupy.ndarray.data.mem
    if memory is not None:
        return Owner(memory)
    return Owner(_last_base(getattr(array, "sim_values", array)))


def _last_base(array: Any) -> object:
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    while isinstance(owner, memoryview) and owner.obj is not None:
        owner = owner.obj
    return owner


def _torch_owner(tensor: Any) -> Owner:
    try:
        owner = TorchStorage(tensor.untyped_storage())
        _lone_use_count()
    except (AttributeError, TypeError, RuntimeError) as error:
        # Views that outlive the tensor are not seen then.
        _log.debug("This version of torch does not tell how often a storage is used: %s", error)
        return Owner(tensor)
    return owner


def _use_count(storage: Any) -> int:
    """Return how many tensors and wrappers refer to a storage. Source: torch, what its CUDA graph trees ask."""
    count: int = sys.modules["torch"]._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no public name for it
    return count


@functools.cache
def _lone_use_count() -> int:
    """Return the count of a storage to which only our wrapper refers, measured."""
    return _use_count(sys.modules["torch"].empty(1, device="cpu").untyped_storage())


_owners: WeakValueDictionary[tuple[type[Owner], int], Owner] = WeakValueDictionary()
"""Of all memory that any session keeps: an owner keeps its memory, so the key stays its own as long as it is here."""
_owners_lock = process_lock()
_SIGHTINGS = 1 if getattr(sys, "_is_gil_enabled", lambda: True)() else 2
_probe = Owner(object())
_ALONE = sys.getrefcount(_probe.memory)
