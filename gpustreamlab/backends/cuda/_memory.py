"""Device memory of streams: pools of the driver's for scratch, and what CuPy's pool keeps for streams that end."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends._features import duplicate_host
from gpustreamlab.backends.cuda._libcuda import map_error, mapped_errors
from gpustreamlab.backends.cuda._stream import CudaStream
from gpustreamlab.errors import DeviceMemoryError, GraphCaptureError

_log = logging.getLogger(__name__)


MEMORY_POOLS_SUPPORTED = 115  # Source: CUDA runtime API, ``cudaDevAttrMemoryPoolsSupported``
INTERNAL_DEPENDENCIES, RELEASE_THRESHOLD, USED_BYTES = 3, 4, 7
"""Source: CUDA runtime API, ``cudaMemPoolReuseAllowInternalDependencies``, ``cudaMemPoolAttrReleaseThreshold``,
``cudaMemPoolAttrUsedMemCurrent``."""
_KEEP_ALL = (1 << 64) - 1
_PINNED_IN_PLACE, _NO_HANDLE, _ON_DEVICE = 1, 0, 1
"""Source: CUDA runtime API, ``cudaMemAllocationTypePinned``, ``cudaMemHandleTypeNone``, ``cudaMemLocationTypeDevice``."""


def has_memory_pools(cupy: Any, ordinal: int) -> bool:
    """Tell whether a device allocates in the order of a stream."""
    try:
        return bool(cupy.cuda.runtime.deviceGetAttribute(MEMORY_POOLS_SUPPORTED, ordinal))
    except Exception as error:  # noqa: BLE001 - a driver that does not know the attribute has no pools
        _log.debug("The device was not asked for memory pools: %s", error)
        return False


@dataclass(eq=False, repr=False)
class CudaScratch:
    """Allocates and frees the scratch of one device's streams, each from a memory pool that no other has.

    A pool that streams share, as the device's default one, would hand memory of one to another in an order that only the
    driver knows: hazards would be found that are none. It keeps what it has over synchronisations, until its stream ends.
    """

    cupy: Any  # The module
    ordinal: int  # The CUDA device
    is_ordered: bool = field(kw_only=True)
    """Whether it has memory pools. If not, ``cudaMalloc`` and ``cudaFree`` stand in, and a stream is waited for before its
    memory is freed."""
    scope: Callable[[], AbstractContextManager[None]] = field(kw_only=True)  # Makes the device current, as a context manager

    def __post_init__(self) -> None:
        self._runtime = self.cupy.cuda.runtime
        self._pools: dict[int, int] = {}  # by the stream's handle
        self._spare: list[int] = []  # of streams that are gone

    def allocate(self, stream: CudaStream, size_bytes: int) -> int:
        """Return the address of a block; without memory, what nobody uses is given back once."""
        handle = stream.handle
        with self.scope():
            if self._runtime.streamIsCapturing(handle):
                raise GraphCaptureError(
                    f"Stream {handle:#x} cannot take scratch while it is captured into a CUDA graph: the memory would be the "
                    "graph's. Take it before the capture begins, and hold it for as long as the graph is used."
                )
            try:
                return self._call(handle, size_bytes)
            except DeviceMemoryError as error:
                _log.debug("Memory that nobody uses is given back: %s", error)
            with mapped_errors("Giving back device memory that nobody uses"):
                self._relieve()
                free_bytes, total_bytes = self._runtime.memGetInfo()
            return self._call(handle, size_bytes, f", with {free_bytes:,} of {total_bytes:,} bytes of the device free,")

    def free(self, stream: CudaStream, address: int) -> None:
        """Give a block back behind the stream's work."""
        with self.scope():
            if not self.is_ordered:
                stream.synchronize()
            with mapped_errors(f"Freeing the scratch at {address:#x} on stream {stream.handle:#x}"):
                if self.is_ordered:
                    self._runtime.freeAsync(address, stream.handle)
                else:
                    self._runtime.free(address)

    def array(self, address: int, size_bytes: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: object) -> Any:
        """Return a CuPy array in a block's memory, which keeps the owner alive."""
        cuda = self.cupy.cuda
        memory = cuda.UnownedMemory(address, size_bytes, owner, self.ordinal)
        return self.cupy.ndarray(shape, dtype=np.dtype(dtype), memptr=cuda.MemoryPointer(memory, 0))

    def end(self, handle: int) -> None:
        """Give back what the pool of a stream does not use, and keep it for another stream. Idempotent."""
        # CUDA allows to destroy a pool of which blocks are held. Driver 580 then crashes in the next allocation from another
        # pool (seen on an H200 each time). Waiting until its frees have run would break captures of other threads.
        pool = self._pools.pop(handle, 0)
        if pool:
            self._runtime.memPoolSetAttribute(pool, RELEASE_THRESHOLD, 0)
            self._runtime.memPoolTrimTo(pool, 0)
            self._spare.append(pool)

    def close(self) -> None:
        """Destroy all pools of which no block is held."""
        for handle in [*self._pools]:
            self.end(handle)
        for pool in self._take_unused():
            self._runtime.memPoolDestroy(pool)

    def _take_unused(self) -> list[int]:
        unused = [pool for pool in self._spare if not self._runtime.memPoolGetAttribute(pool, USED_BYTES)]
        self._spare = [pool for pool in self._spare if pool not in unused]
        return unused

    def _call(self, handle: int, size_bytes: int, where: str = "") -> int:
        try:
            if self.is_ordered:
                return int(self._runtime.mallocFromPoolAsync(size_bytes, self._pools.get(handle) or self._make(handle), handle))
            return int(self._runtime.malloc(size_bytes))
        except Exception as error:
            raise map_error(error, f"Allocating {size_bytes:,} bytes of scratch on stream {handle:#x}{where}") from error

    def _make(self, handle: int) -> int:
        """Return a pool for a stream. It never makes that wait for another stream that has freed memory of it."""
        unused = self._take_unused()
        pool = unused.pop() if unused else self._create()
        self._spare += unused
        self._pools[handle] = pool
        self._runtime.memPoolSetAttribute(pool, RELEASE_THRESHOLD, _KEEP_ALL)
        return pool

    def _create(self) -> int:
        runtime = self._runtime
        pool = int(runtime.memPoolCreate(runtime.MemPoolProps(_PINNED_IN_PLACE, _NO_HANDLE, _ON_DEVICE, self.ordinal)))
        runtime.memPoolSetAttribute(pool, INTERNAL_DEPENDENCIES, 0)
        return pool

    def _relieve(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()
        self._runtime.deviceSynchronize()
        for pool in [*self._pools.values(), *self._spare]:
            self._runtime.memPoolTrimTo(pool, 0)


SWEEP_EVERY = 64
"""After so many streams were destroyed, the arenas of those that went before are looked at again: freeing may wait."""
KEPT_POINTERS = 1_024  # Destroyed streams that are remembered. Pointers are used again, so there are seldom more

_gone: OrderedDict[tuple[int, int], Any] = OrderedDict()
_lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it


class StreamArenas:
    """The arenas of one device's streams."""

    def __init__(self, pool: Any, ordinal: int, scope: Callable[[], AbstractContextManager[None]]) -> None:
        self._pool = pool
        self._ordinal = ordinal
        self._scope = scope
        self._ended_count = 0

    def begin(self, pointer: int) -> None:
        """Note that there is a stream of this pointer, perhaps again."""
        with _lock:
            _gone.pop((self._ordinal, pointer), None)

    def end(self, cupy_stream: Any) -> None:
        """Give back what is kept for a CuPy stream that is about to be destroyed; it is looked at again in a later `sweep`."""
        with self._scope():
            self._pool.free_all_blocks(stream=cupy_stream)
        with _lock:
            _gone[self._ordinal, int(cupy_stream.ptr)] = cupy_stream
            if len(_gone) > KEPT_POINTERS:
                _gone.popitem(last=False)
            self._ended_count += 1
            is_due = self._ended_count % SWEEP_EVERY == 0
        if is_due:
            self.sweep()

    def sweep(self) -> None:
        """Give back what has come to arenas of streams that are gone."""
        with _lock:
            gone = [stream for (ordinal, _), stream in _gone.items() if ordinal == self._ordinal]
        with self._scope():
            for stream in gone:
                self._pool.free_all_blocks(stream=stream)


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
