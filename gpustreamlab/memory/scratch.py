"""Scratch memory of lanes: given out and taken back in the order of a stream, without a wait.

Work of one stream is in order, so a block that was given back can be given out again at once: whatever still uses it comes
before whatever will. That holds within one stream, so every lane has an arena of its own, and an arena knows on which stream
its free blocks are in order. See docs/explanations/decisions/0017-scratch.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import index
from types import TracebackType
from typing import Any, NoReturn, Self
from weakref import ref

import numpy as np
from numpy.typing import DTypeLike

from gpustreamlab._util.defences import ProcessBound, process_lock
from gpustreamlab.analysis import ScratchTable
from gpustreamlab.backends import Backend, BackendStream
from gpustreamlab.errors import (
    DeviceError,
    DeviceMemoryError,
    InvalidHandleError,
    NotSimulatedError,
    OptionError,
    SessionError,
    StreamClosedError,
)
from gpustreamlab.memory._arena import MAX_BYTES, Block, ScratchArena, check_size
from gpustreamlab.memory.lifetimes import KeptStream
from gpustreamlab.record import LaneSample, Recorder
from gpustreamlab.typing import Feature

_log = logging.getLogger(__name__)


class _NoInterfaceError(NotSimulatedError, AttributeError):
    """The simulated device has no pointers for others; an AttributeError too, so that hasattr() works."""


class Scratch(ProcessBound):
    """Device memory of one lane, until it is given back: at the end of a ``with`` block, by `close`, or when it is garbage.

    Made by `Stream.scratch`. It is for work of its lane: what is enqueued there before it is given back may still use it, as
    the lane runs in order. Giving back waits for nothing else, and ends it also where `Stream.hold` keeps it.

    Where another lane uses it too, do not give it back, neither by ``with`` nor by `close`. Let that lane wait in front of what
    it does there, ``other.wait(lane.record())``, and keep it behind that, ``other.hold(scratch)``. Then it becomes garbage, and
    its lane has it again, once that is done and nobody else refers to it.

    Taking and giving back is safe in any thread, and for a lane that works in several threads.
    """

    __slots__ = ("__weakref__", "_arena", "_block", "_lease", "nbytes")

    _block: Block | None
    _arena: ScratchArena
    _lease: ref[Scratch]
    nbytes: int
    """How many bytes were asked for."""

    def __init__(self, arena: ScratchArena, nbytes: int) -> None:
        self._block = None
        self._arena = arena
        self.nbytes = nbytes if type(nbytes) is int and 0 <= nbytes < MAX_BYTES else check_size(nbytes)
        now_ns = arena.glance_ns()
        if now_ns >= arena.turn_ns:
            arena.turn(now_ns)
        if not arena.give_out(self):
            arena.supply(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        arena = self._arena
        if self._block is None or arena.is_closed:
            return
        now_ns = arena.glance_ns()
        if now_ns >= arena.turn_ns:
            arena.turn(now_ns)
        arena.take_back(self, now_ns)

    def __repr__(self) -> str:
        block, ending = self._block, self.ending
        state = f"at {block.address:#x}" if block is not None and not ending else ending
        return f"<Scratch of {self._arena.lane.name!r}, {self.nbytes:,} bytes, {state}>"

    @property
    def ptr(self) -> int:
        """Address on the device, a multiple of 512.

        Raises
        ------
        SessionError
            If it was given back; a `StreamClosedError` if its lane was closed.
        """
        block = self._block
        if block is None or self._arena.is_closed:
            self._refuse()
        return block.address

    @property
    def lane(self) -> Any:
        """The `Stream` whose memory it is."""
        return self._arena.lane

    @property
    def is_closed(self) -> bool:
        """True once it was given back, or its lane was closed."""
        return self._block is None or self._arena.is_closed

    @property
    def ending(self) -> str:
        """How it ended: ``"given back"`` or ``"lane closed"``; empty while the memory is there."""
        if self._block is None:
            return "given back"
        return "lane closed" if self._arena.is_closed else ""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Lend the memory as bytes. Source: CUDA Array Interface, version 3; ``stream`` is the lane's."""
        if self._arena.backend.device.simulated:
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
            "stream": self._arena.lane.handle,
        }

    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an array of ``lab.xp`` in this memory, from its beginning, uninitialised.

        It keeps the memory from becoming garbage, but not from being given back: after the ``with`` block, or `close`, the
        lane gives it out again, and the array shows what others write.

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
        for length in lengths:
            size_bytes *= _check_length(length, shape)
        if size_bytes > self.nbytes:
            raise OptionError(
                f"An array of shape {shape} and {dtype} takes {size_bytes:,} bytes; this scratch of lane "
                f"{self._arena.lane.name!r} has {self.nbytes:,}. Use lane.scratch({size_bytes})."
            )
        address = self.ptr
        try:
            return self._arena.backend.scratch_array(address, self.nbytes, tuple(map(index, lengths)), dtype, self)
        except InvalidHandleError:
            self.require_open()  # its lane may have been closed meanwhile
            raise

    def close(self) -> None:
        """Give it back: the lane may give it out again at once. Twice is silent."""
        self.__exit__(None, None, None)

    def require_open(self) -> None:
        """Raise what `ptr` raises where the memory is gone."""
        if self._block is None or self._arena.is_closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        name = self._arena.lane.name
        if self._arena.is_closed:
            raise StreamClosedError(
                f"This scratch of {self.nbytes:,} bytes is gone: lane {name!r} {self._arena.why_closed}. Take scratch of an "
                "open lane, and close that after the last use."
            )
        raise SessionError(
            f"This scratch of {self.nbytes:,} bytes was given back to lane {name!r}, which may have given it out again. Use it "
            f"inside its `with` block, or take more: lab.stream({name!r}).scratch({self.nbytes})."
        )


def check_held(objects: Iterable[object]) -> None:
    """Refuse scratch that was given back, or freed with its lane: to keep it keeps nothing."""
    for one in objects:
        if type(one) is Scratch:
            one.require_open()


def _check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise OptionError(f"{dtype!r} is not a dtype. Use for example work.array(256, 'float32').") from error
    if found.hasobject or not found.itemsize:
        raise OptionError(f"Device memory holds no elements of {found}. Use for example work.array(256, 'float32').")
    return found


def _check_length(length: object, shape: object) -> int:
    try:
        found: int = index(length)  # type: ignore[arg-type]
    except TypeError:
        found = -1
    if isinstance(length, bool) or found < 0:
        raise OptionError(
            f"{shape!r} is not a shape: a shape consists of integers, 0 or greater. Use for example work.array((4, 64), 'f4')."
        )
    return found


LIMIT_SHARE = 0.5
"""How much of the device's memory all lanes of a session may reserve, if nothing else is said."""


class ScratchPool:
    """The arenas of one session.

    Parameters
    ----------
    backend, recorder
        The session's.
    limit_bytes
        How much all lanes may reserve; None for a share of the device's memory, `LIMIT_SHARE`.

    Raises
    ------
    OptionError
        If the limit is no number of bytes, at least 1.
    """

    def __init__(self, backend: Backend, recorder: Recorder, limit_bytes: int | None = None) -> None:
        self.backend = backend
        self.limit_bytes = _find_limit(limit_bytes, backend)
        """How much all lanes may reserve."""
        ordered = next((item for item in backend.capabilities if item.feature is Feature.STREAM_ORDERED_MEMORY), None)
        self.reason = "" if ordered is None or ordered.available else ordered.detail
        """Why growing and trimming waits for a lane's work; empty where it does not."""
        self.reserved_bytes = 0
        """What all lanes hold."""
        self._recorder = recorder
        self._lock = process_lock()
        self._arenas: dict[int, ScratchArena] = {}
        recorder.add_sampler(self)

    def open(self, lane: KeptStream, stream: BackendStream, lane_index: int) -> ScratchArena:
        """Return the arena of a new lane; one that was closed under the name goes on in its row of the table."""
        made = ScratchArena(lane, stream, lane_index, self)
        with self._lock:
            before = self._arenas.get(lane_index)
            if before is not None:
                self.hand_over(before)
            self._arenas[lane_index] = made
        return made

    def forget(self, lane_index: int) -> None:
        """Forget the arena of a lane that is closed, and whose name nobody will use soon."""
        with self._lock:
            known = self._arenas.pop(lane_index, None)
        if known is not None:
            self.hand_over(known)

    @property
    def statistics(self) -> ScratchTable:
        """How all lanes are now, as a value."""
        return ScratchTable(items=tuple(arena.statistics for arena in self._all()), limit_bytes=self.limit_bytes)

    def reserve(self, size_bytes: int, arena: ScratchArena) -> None:
        """Count what an arena is about to allocate; at the limit, the lanes first give back what nobody uses.

        Raises
        ------
        DeviceMemoryError
            If it is more than the limit allows.
        """
        if self._try_reserve(size_bytes):
            return
        if size_bytes <= self.limit_bytes:
            self._trim_all()
        if not self._try_reserve(size_bytes):
            raise DeviceMemoryError(
                f"Lane {arena.lane.name!r} asked for {size_bytes:,} bytes of scratch; all lanes of the session may hold "
                f"{self.limit_bytes:,}, and hold {self.reserved_bytes:,}. {self._advice(size_bytes)}"
            )

    def release(self, size_bytes: int) -> None:
        """Count what is not reserved any more."""
        with self._lock:
            self.reserved_bytes -= size_bytes

    def relieve(self) -> None:
        """Give back what no lane uses, and what the array module keeps."""
        self._trim_all()
        self.backend.relieve_memory()

    def memory_text(self) -> str:
        """Say how the device's memory is taken."""
        free_bytes, total_bytes = self.backend.memory_info()
        return (
            f"{free_bytes:,} of {total_bytes:,} bytes of the device are free; the session's lanes hold {self.reserved_bytes:,} "
            "as scratch."
        )

    def take_samples(self) -> Sequence[LaneSample]:
        """Return the samples of all lanes since the last time."""
        return [sample for arena in self._all() for sample in arena.take_samples()]

    def tell_all(self) -> None:
        """Let the next samples begin with how all lanes are now."""
        for arena in self._all():
            arena.tell_all()

    def hand_over(self, arena: ScratchArena) -> None:
        """Hand a lane's samples to the recorder."""
        self._recorder.add_samples(arena.take_samples())

    def disown(self) -> None:
        """Give everything up without touching it: in a forked child, what the lanes hold is the parent's."""
        self._lock = process_lock()
        for arena in self._arenas.values():
            arena.disown()

    def _advice(self, size_bytes: int) -> str:
        """Say what helps where the limit is too low; a limit above the device's memory does not."""
        card_bytes = self.backend.device.memory_bytes
        needed_bytes = self.reserved_bytes + size_bytes
        if card_bytes and size_bytes > card_bytes:
            return f"The whole device has {card_bytes:,} bytes, so no limit allows it: take less, in several pieces."
        if card_bytes and needed_bytes > card_bytes:
            return f"The whole device has {card_bytes:,} bytes: take less, or give back what the lanes hold."
        return f"Give some back, or start with gpustreamlab.Session(scratch_limit_bytes={needed_bytes})."

    def _all(self) -> tuple[ScratchArena, ...]:
        return (*self._arenas.values(),)

    def _try_reserve(self, size_bytes: int) -> bool:
        with self._lock:
            if self.reserved_bytes + size_bytes > self.limit_bytes:
                return False
            self.reserved_bytes += size_bytes
            return True

    def _trim_all(self) -> None:
        for arena in self._all():
            try:
                arena.trim()
            except DeviceError as error:  # the others go on
                _log.debug("The scratch of lane %r was not trimmed: %s", arena.lane.name, error)


def _find_limit(limit_bytes: object, backend: Backend) -> int:
    if limit_bytes is None:
        return int(backend.device.memory_bytes * LIMIT_SHARE) or MAX_BYTES
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 1:
        raise OptionError(
            f"scratch_limit_bytes is {limit_bytes!r}; it must be a number of bytes, at least 1. "
            "Use gpustreamlab.Session(scratch_limit_bytes=8 << 30)."
        )
    return limit_bytes
