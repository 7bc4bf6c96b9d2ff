"""One piece of scratch memory, as its user holds it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike

from gpustreamlab.errors import InvalidHandleError, NotSimulatedError, OptionError, SessionError, StreamClosedError
from gpustreamlab.process_bound import ProcessBound
from gpustreamlab.scratch._sizes import check_size

if TYPE_CHECKING:
    from gpustreamlab.scratch._arena import ScratchArena
    from gpustreamlab.scratch._blocks import Block, Slot

NEEDS_LOCK = not getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether another thread may come between two bytecodes: on a free-threaded interpreter.

Elsewhere CPython changes threads, and handles signals, at calls and backward jumps only. So a stretch without them happens as a
whole: taking or giving back a block and counting it. Everywhere that is done here no call stands between, up to the last one.
"""


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

    __slots__ = ("__weakref__", "_arena", "_block", "_slot", "nbytes")

    _block: Block | None
    _arena: ScratchArena
    _slot: Slot
    nbytes: int
    """How many bytes were asked for."""

    def __init__(self, arena: ScratchArena, nbytes: int) -> None:
        # The hot path; see `NEEDS_LOCK` for why it has no lock.
        self._block = None
        if type(nbytes) is not int:
            nbytes = check_size(nbytes)
        self._arena = arena
        self.nbytes = nbytes
        now_ns = arena.glance_ns()
        if now_ns >= arena.turn_ns:
            arena.turn(now_ns)
        try:
            slot = arena.slots[nbytes]
        except KeyError:
            slot = arena.find_slot(check_size(nbytes))
        self._slot = slot
        free = slot.free
        if free and not NEEDS_LOCK:
            self._block = free[-1]
            del free[-1]
            slot.taken_count += 1
            arena.used_bytes = used_bytes = arena.used_bytes + slot.size_bytes
            arena.changed_ns = now_ns
            if used_bytes > arena.top_bytes:
                arena.top_bytes = used_bytes
                arena.top_ns = now_ns
        elif not (NEEDS_LOCK and arena.give_out(self)):
            arena.supply(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        arena = self._arena
        if self._block is None or arena.is_closed:
            return
        slot = self._slot
        now_ns = arena.glance_ns()
        if now_ns >= arena.turn_ns:
            arena.turn(now_ns)
        if NEEDS_LOCK:
            arena.take_back(self, now_ns)
            return
        block = self._block
        if block is not None:
            self._block = None
            arena.used_bytes -= slot.size_bytes
            arena.changed_ns = now_ns
            slot.back.append(block)

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
        if self._arena.is_simulated:
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
