"""Copies of arrays of any library that share memory as the originals do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._duplicate import duplicate_host


def duplicate(arrays: Sequence[Any], xp: Any, pinned_empty: Callable[..., NDArray[Any]]) -> list[Any]:
    """Return copies of arrays, made in the selected stream; None for a tensor that is in no CuPy array's memory."""
    known: dict[int, tuple[Any, Any]] = {}

    def copy_host(owner: NDArray[Any]) -> NDArray[Any]:
        made = pinned_empty(owner.shape, owner.dtype) if _is_pinned(owner, xp) else np.empty_like(owner, subok=False)
        made[...] = owner
        return made

    def copy_device(array: Any) -> Any:
        memory = array.data.mem
        if id(memory) not in known:
            known[id(memory)] = memory, xp.cuda.alloc(memory.size)
            known[id(memory)][1].copy_from_device_async(xp.cuda.MemoryPointer(memory, 0), memory.size)
        place = known[id(memory)][1] + (array.data.ptr - memory.ptr)
        return xp.ndarray(array.shape, array.dtype, memptr=place, strides=array.strides)

    def copy_shared(tensor: Any) -> Any:
        """Copy a tensor of torch in the memory of a CuPy array: it is in the memory of that one's copy."""
        start = int(tensor.untyped_storage().data_ptr()) if hasattr(tensor, "untyped_storage") and tensor.is_cuda else 0
        for memory, made in known.values():
            if memory.ptr <= start < memory.ptr + memory.size:
                torch = sys.modules["torch"]
                whole = xp.ndarray((memory.size,), xp.uint8, memptr=made)
                place = (int(tensor.data_ptr()) - memory.ptr) // tensor.element_size()
                storage = torch.from_dlpack(whole).untyped_storage()
                found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                return found.set_(storage, place, tensor.shape, tensor.stride())
        return None

    host = iter(duplicate_host([array for array in arrays if isinstance(array, np.ndarray)], copy_host))
    of_cupy = {id(array): copy_device(array) for array in arrays if isinstance(array, xp.ndarray)}
    return [
        next(host) if isinstance(array, np.ndarray) else of_cupy[id(array)] if id(array) in of_cupy else copy_shared(array)
        for array in arrays
    ]


def _is_pinned(array: NDArray[Any], xp: Any) -> bool:
    """Tell whether an array lies in page-locked memory."""
    runtime = xp.cuda.runtime
    with contextlib.suppress(runtime.CUDARuntimeError):  # memory that CUDA does not know, with old drivers
        return bool(runtime.pointerGetAttributes(array.ctypes.data).type == runtime.memoryTypeHost)
    return False
