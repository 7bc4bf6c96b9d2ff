"""Scratch memory of streams: from the driver's stream-ordered pools, tagged with its stream, and counted.

A stream's pool gives memory out again in the stream's order, as `cudaMallocFromPoolAsync` and `cudaFreeAsync` do, so nothing
here waits, and there is nothing to keep in order but what a move or an end of the stream leaves behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from operator import index
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import ref

import numpy as np
from numpy.typing import DTypeLike

from gpustreamlab._util.defences import ProcessBound, delayed_interrupts, process_lock
from gpustreamlab.analysis import ScratchStatistics
from gpustreamlab.backends import Backend, BackendStream, order_behind
from gpustreamlab.errors import (
    DeviceMemoryError,
    InvalidHandleError,
    NotSimulatedError,
    OptionError,
    SessionError,
    StreamClosedError,
)
from gpustreamlab.memory.lifetimes import KeptStream

ALIGNMENT_BYTES = 512  # Addresses and sizes of blocks are multiples of it
MAX_BYTES = 1 << 63  # What is no size any more


class _NoInterfaceError(NotSimulatedError, AttributeError):
    """The simulated device has no pointers for others; an AttributeError too, so that hasattr() works."""


class Scratch(ProcessBound):
    """Device memory of one stream, until it is given back: at the end of a ``with`` block, by `close`, or when it is garbage.

    Made by `Stream.scratch`. It is for work of its stream: what is enqueued there before it is given back may still use it, as
    the stream runs in order. Giving back waits for nothing else, and ends it also where `Stream.hold` keeps it.

    Where another stream uses it too, do not give it back, neither by ``with`` nor by `close`. Let that stream wait in front of
    what it does there, ``other.wait(stream.record())``, and keep it behind that, ``other.hold(scratch)``. Then it becomes
    garbage, and its stream has it again, once that is done and nobody else refers to it.

    Taking and giving back is safe in any thread, and for a stream that works in several threads.
    """

    __slots__ = {
        "__weakref__": None,
        "_address": None,
        "_home": None,
        "_lease": None,
        "nbytes": "How many bytes were asked for.",
    }

    def __init__(self, home: LaneScratch, nbytes: int) -> None:
        self._home = home
        self._lease: ref[Scratch] | None = None
        self.nbytes = _check_size(nbytes)
        self._address, self._lease = home.take(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.ending or f"at {self._address:#x}"
        return f"<Scratch of {self._home.lane.name!r}, {self.nbytes:,} bytes, {state}>"

    @property
    def ptr(self) -> int:
        """Address on the device, a multiple of 512.

        Raises
        ------
        SessionError
            If it was given back; a `StreamClosedError` if its stream was closed.
        """
        self.require_open()
        return self._address

    @property
    def stream(self) -> Any:
        """The `Stream` whose memory it is."""
        return self._home.lane

    @property
    def is_closed(self) -> bool:
        """True once it was given back, or its stream was closed."""
        return bool(self.ending)

    @property
    def ending(self) -> str:
        """How it ended: ``"given back"`` or ``"stream closed"``; empty while the memory is there."""
        if self._lease is None:
            return "given back"
        return "stream closed" if self._home.is_closed else ""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Lend the memory as bytes. Source: CUDA Array Interface, version 3; ``stream`` is the stream's."""
        if self._home.backend.device.simulated:
            raise _NoInterfaceError(
                "Scratch of the simulated device has no memory that other libraries could use. Use work.array(shape, dtype), "
                "an array of lab.xp."
            )
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.ptr, False),
            "strides": None,
            "version": 3,
            "stream": self._home.lane.handle,
        }

    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an array of ``lab.xp`` in this memory, from its beginning, uninitialised.

        It keeps the memory from becoming garbage, but not from being given back: after the ``with`` block, or `close`, the
        stream gives it out again, and the array shows what others write.

        Parameters
        ----------
        shape
            As for ``lab.xp.empty``.
        dtype
            Of the elements.

        Raises
        ------
        OptionError
            If the array does not fit, or its dtype is none of a device.
        SessionError
            If the memory was given back.
        """
        dtype = _check_dtype(dtype)
        lengths = (shape,) if not isinstance(shape, (tuple, list)) else tuple(shape)
        size_bytes = dtype.itemsize
        if min(map(_whole, lengths), default=0) < 0:
            raise OptionError(
                f"{shape!r} is not a shape, which consists of integers, 0 or greater. Use for example "
                "work.array((4, 64), 'f4')."
            )
        for length in lengths:
            size_bytes *= index(length)
        if size_bytes > self.nbytes:
            raise OptionError(
                f"An array of shape {shape} and {dtype} takes {size_bytes:,} bytes; this scratch of stream "
                f"{self._home.lane.name!r} has {self.nbytes:,}. Use stream.scratch({size_bytes})."
            )
        address = self.ptr
        try:
            return self._home.backend.scratch_array(address, self.nbytes, tuple(map(index, lengths)), dtype, self)
        except InvalidHandleError:
            self.require_open()  # its stream may have been closed meanwhile
            raise

    def close(self) -> None:
        """Give it back: the stream may give it out again at once. Twice is silent."""
        lease = self._lease
        if lease is not None and not self._home.is_closed:
            self._lease = None
            self._home.give_back(lease)

    def require_open(self) -> None:
        """Raise what `ptr` raises where the memory is gone."""
        name, ending = self._home.lane.name, self.ending
        if ending and self._home.is_closed:
            raise StreamClosedError(
                f"This scratch of {self.nbytes:,} bytes is gone: stream {name!r} was closed, which frees its memory. "
                "Take scratch of an open stream, and close that after the last use."
            )
        if ending:
            raise SessionError(
                f"This scratch of {self.nbytes:,} bytes was given back to stream {name!r}, which may have given it out again. "
                f"Use it inside its `with` block, or take more: lab.stream({name!r}).scratch({self.nbytes})."
            )


class _Block(NamedTuple):
    """Memory that a stream has."""

    address: int
    nbytes: int  # that were asked for
    stream: BackendStream  # where the stream worked then


class LaneScratch:
    """The scratch memory of one stream.

    A scratch that is garbage leaves its lease in `_ended`, where the stream looks before it takes more: a finaliser, which runs
    in the middle of anything, could not call the driver.
    """

    def __init__(self, lane: KeptStream, backend: Backend) -> None:
        self.lane = lane
        self.backend = backend
        self.is_closed = False
        """True once everything is given back to the device, or is about to be."""
        self.lock = process_lock()
        """Held around calls of the driver, and where the stream goes to another place."""
        self._held: dict[ref[Scratch], _Block] = {}
        self._ended: deque[ref[Scratch]] = deque()
        self._taken_count = self._used_bytes = self._peak_bytes = 0

    @property
    def statistics(self) -> ScratchStatistics:
        """What the stream has now, as a value."""
        with self.lock:
            self._free_ended()
            return ScratchStatistics(
                stream=self.lane.name,
                used_bytes=self._used_bytes,
                peak_bytes=self._peak_bytes,
                allocation_count=self._taken_count,
            )

    def take(self, scratch: Scratch) -> tuple[int, ref[Scratch]]:
        """Return the address of memory for scratch, and the lease under which it is given back."""
        nbytes = scratch.nbytes
        with self.lock:
            self.lane._require_open()
            self._free_ended()
            stream = self.lane._backend_stream
            try:
                address = self.backend.allocate_scratch(stream, _rounded(nbytes))
            except DeviceMemoryError as error:
                raise DeviceMemoryError(
                    f"Stream {self.lane.name!r} asked for {nbytes:,} bytes of scratch, and the device does not have enough. "
                    f"{error} Take less, free arrays, or close streams that are not needed.",
                    driver_code=error.driver_code,
                ) from error
            lease = ref(scratch, self._ended.append)
            self._held[lease] = _Block(address, nbytes, stream)
            self._taken_count += 1
            self._used_bytes += nbytes
            self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        return address, lease

    def give_back(self, lease: ref[Scratch]) -> None:
        """Free memory in the order of the stream; behind its capture into a graph, if it is being captured."""
        with self.lock:
            self._ended.append(lease)
            self._free_ended()

    def close(self, *, keeps_held: bool = False) -> None:
        """Free everything behind the stream's work. Idempotent."""
        with delayed_interrupts(), self.lock, ExitStack() as freeing:
            self._free_ended()
            self.is_closed = True
            held = [] if keeps_held else [*self._held]
            if held and not self.lane._backend_stream.is_capturing:
                for lease in held:
                    freeing.callback(self._free, lease)  # one that fails keeps no other from it

    def _free_ended(self) -> None:
        # While its work is captured nothing is freed: a graph frees only what it allocated.
        while self._ended and not self.is_closed and not self.lane._backend_stream.is_capturing:
            self._free(self._ended.popleft())

    def _free(self, lease: ref[Scratch]) -> None:
        block = self._held.pop(lease, None)
        if block is None:
            return  # given back twice: by two threads, or by the finaliser of something in a cycle of garbage
        self._used_bytes -= block.nbytes
        stream = self.lane._backend_stream
        if block.stream is not stream:
            order_behind(self.backend, stream, block.stream)  # by a handle that was given out before the stream moved
        self.backend.free_scratch(stream, block.address)


def check_held(objects: Iterable[object]) -> None:
    """Refuse scratch that was given back, or freed with its stream: to keep it keeps nothing."""
    for one in objects:
        if type(one) is Scratch:
            one.require_open()


def _check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.hasobject or not found.itemsize:
        raise OptionError(f"{dtype!r} is no dtype of elements on a device. Use for example work.array(256, 'float32').")
    return found


def _whole(value: object) -> int:
    """Return an integer of 0 or more, -1 for anything else."""
    try:
        return -1 if isinstance(value, (bool, np.bool_)) else max(-1, index(value))  # type: ignore[arg-type]
    except TypeError:
        return -1


def _rounded(nbytes: int) -> int:
    """Return the size of the block for a number of bytes; none is empty, so no address is NULL."""
    return max(1, -(-nbytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


def _check_size(nbytes: object) -> int:
    """Return a number of bytes, 0 or more; raise `OptionError` for anything else."""
    size = _whole(nbytes)
    if not 0 <= size < MAX_BYTES:
        raise OptionError(
            f"{str(nbytes)[:40]!s} ({type(nbytes).__name__}) is not a size of scratch: an integer number of bytes from 0 to "
            "2**63 - 1. Use for example stream.scratch(1 << 20)."
        )
    return size
