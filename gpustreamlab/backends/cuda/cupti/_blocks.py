"""Memory that is allocated now, by address: of the driver, and what pools of libraries give out of it. callbacks.c keeps it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._activity import take_buffer_number
from gpustreamlab.backends.cuda.cupti._buffers import reading_library

WRITTEN = -1
"""Stands in the field ``born`` of a block for memory that somebody may have written."""
_NEIGHBOURHOOD = 1 << 30

BLOCK = np.dtype(
    [
        *(("start", np.uint64), ("end", np.uint64), ("number", np.int64), ("born", np.int64), ("made_ns", np.int64)),
        *(("stream", np.uint64), ("flags", np.uint64), ("is_pool", np.uint64), ("written_by", np.uint64)),
        ("has_pointers", np.uint64),
    ]
)
"""An allocation, or what a library's pool gave out of one: ``struct block`` of callbacks.c."""
EVENT = np.dtype([("call", np.int64), ("what", np.int64), ("cause", np.int64), ("block", BLOCK)])
"""What became of a block: ``struct event``."""
CHANGE = np.dtype([("wall_ns", np.int64), ("start", np.uint64), ("bytes", np.uint64), ("stream", np.uint64)])
"""What a pool did: ``struct change``; the fields are those of `BlockChange`."""


class What(IntEnum):
    """What an event is."""

    GONE = 0
    MADE = 1
    WAITED = 2
    """A call waited for the device, as it freed memory."""


class Cause(IntEnum):
    """What brought an event about; else the index of a pool's change."""

    CALL = -1
    ASKED = -2
    """The driver was asked what was there before."""


class Stop(IntEnum):
    """Why ``read_accesses`` has stopped."""

    DONE = 0
    ASK_MEMORY = 1
    """It is not known what is at an address."""
    ASK_FUNCTION = 2
    """It is not known what kind of function is launched."""
    GROW = 3
    """There is no room for one more block or event."""
    OTHER = 4
    """A call of another role comes."""


KEPT_FUNCTIONS = 65_536
"""Functions whose outputs are remembered; then all is learned anew."""
_SLOTS, _NOWHERE, _FUNCTION_WORDS = 1 << 17, 8_192, 66
_ROOM = 64


class _Table(ctypes.Structure):
    _fields_ = (("blocks", ctypes.c_void_p), ("count", ctypes.c_uint64), ("room", ctypes.c_uint64))


class _State(ctypes.Structure):
    _fields_ = (
        *(("memory", _Table), ("parts", _Table), ("handles", ctypes.c_void_p), ("places", ctypes.c_void_p)),
        *(("functions", ctypes.c_void_p), ("function_count", ctypes.c_uint64)),
        *(("nowhere", ctypes.c_void_p), ("nowhere_count", ctypes.c_uint64), ("numbers", ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("opaque_count", "known", "learned", "unknown")),
        *((name, ctypes.c_uint64) for name in ("has_unseen_pool", "is_followed", "marks_writes", "launch_count")),
        *((name, ctypes.c_void_p) for name in ("calls", "words", "roles", "changes")),
        *((name, ctypes.c_uint64) for name in ("call_count", "change_count", "call", "word", "change")),
        *(("rows", ctypes.c_void_p), ("row_room", ctypes.c_uint64), ("row_count", ctypes.c_uint64)),
        *(("asked", ctypes.c_uint64), ("events", ctypes.c_void_p)),
        *(("event_count", ctypes.c_uint64), ("event_room", ctypes.c_uint64)),
    )


class Blocks:
    """All blocks, and what is known of functions: what callbacks.c reads calls with. Who uses it sets the fields of `state`."""

    def __init__(self) -> None:
        self.state = _State()
        self._library = reading_library()
        self._arrays: dict[str, NDArray[Any]] = {}
        for name in ("memory", "parts"):
            self._point(name, np.empty(_ROOM, BLOCK))
        self.give("nowhere", np.zeros(_NOWHERE, np.uint64))
        self.give("events", np.empty(0, EVENT))
        self.forget_functions()

    def give(self, field: str, array: NDArray[Any]) -> None:
        """Let a field of the state be this array, which stays alive so long."""
        self._arrays[field] = array
        setattr(self.state, field, array.ctypes.data)

    def forget_functions(self) -> None:
        """Know of no function what it writes."""
        self.give("handles", np.zeros(_SLOTS, np.uint64))
        self.give("places", np.zeros(_SLOTS, np.uint32))
        self.give("functions", np.zeros((KEPT_FUNCTIONS, _FUNCTION_WORDS), np.uint64))
        self.state.function_count = 0

    def note_function(self, handle: int, *, spins: bool, hides: bool) -> None:
        """Take what kind of function is launched by a handle."""
        if self.state.function_count == KEPT_FUNCTIONS:
            self.forget_functions()
        self._library.find_function(ctypes.byref(self.state), handle, spins + 2 * hides)

    def read(self, *, limit: int) -> Stop:
        """Read calls before this one; return why it was stopped."""
        self.state.call_count = limit
        return Stop(self._library.read_accesses(ctypes.byref(self.state)))

    def grow(self) -> None:
        """Make room for more blocks, and as many events."""
        for name in ("memory", "parts"):
            table = getattr(self.state, name)
            if table.count == table.room:
                self._point(name, np.concatenate((self._arrays[name], np.empty(table.room, BLOCK))))
        if self.state.is_followed and not self.state.event_count:
            room = 4 * (self.state.memory.count + self.state.parts.count) + 4 * _ROOM
            self.give("events", np.empty(room, EVENT))
            self.state.event_room = room

    def put(self, name: str, start: int, size: int, **facts: int) -> np.void:
        """Put a block into the memory of the driver or the parts of a pool, where nobody saw it made; return it."""
        self.grow()
        block = np.zeros(1, BLOCK)
        facts |= {"start": start, "end": start + size, "number": take_buffer_number(), "born": WRITTEN}
        for field, value in facts.items():
            block[field] = value
        table = ctypes.addressof(self.state) + getattr(_State, name).offset
        self._library.put_block(ctypes.byref(self.state), table, block.ctypes.data, Cause.ASKED)
        put: np.void = block[0]
        return put

    def note_written(self, numbers: set[int]) -> None:
        """Note that somebody has written blocks."""
        for table in (self.table("memory"), self.table("parts")):
            table["born"][np.isin(table["number"], [*numbers])] = WRITTEN

    def note_nowhere(self, address: int) -> None:
        """Note that there is no memory at an address."""
        self._library.note_nowhere(ctypes.byref(self.state), address)

    def table(self, name: str) -> NDArray[np.void]:
        """Return the blocks of the memory or of the parts, by address."""
        blocks: NDArray[np.void] = self._arrays[name][: getattr(self.state, name).count]
        return blocks

    def take_events(self) -> NDArray[np.void]:
        """Return what became of blocks, and forget it."""
        events: NDArray[np.void] = self._arrays["events"][: self.state.event_count].copy()
        self.state.event_count = 0
        return events

    def find(self, address: int) -> int:
        """Return the number of the block that an address is in, of a pool's first; 0 where there is none."""
        for table in (self.table("parts"), self.table("memory")):
            numbers = table["number"][(table["start"] <= address) & (address < table["end"])]
            if len(numbers):
                return int(numbers[0])
        return 0

    def is_near(self, address: int) -> bool:
        """Tell whether some block of the driver's is in the neighbourhood of an address."""
        starts = self.table("memory")["start"]
        at = int(np.searchsorted(starts, np.uint64(address), side="right"))
        return any(abs(start - address) < _NEIGHBOURHOOD for start in starts[max(0, at - 1) : at + 1].tolist())

    def _point(self, name: str, blocks: NDArray[np.void]) -> None:
        self._arrays[name] = blocks
        table = getattr(self.state, name)
        table.blocks, table.room = blocks.ctypes.data, len(blocks)


class BlockChange(NamedTuple):
    """What a library's pool gave out, or took back."""

    wall_ns: int
    """By the wall clock; rather early than late."""
    start: int
    size_bytes: int
    """0 for one that is taken back."""
    stream: int
    """Handle of the stream that it is for."""


_MEMORY_TYPE, _IS_MANAGED, _RANGE_START, _RANGE_SIZE = 2, 8, 11, 12
"""CUpointer_attribute."""
_HOST = 1


def ask_driver(library: Any) -> Callable[[int], tuple[int, int, bool] | None]:
    """Return what asks libcuda which allocation an address is in: its first address, its size, and whether it is the host's."""
    attributes = (ctypes.c_int * 4)(_MEMORY_TYPE, _IS_MANAGED, _RANGE_START, _RANGE_SIZE)

    def ask(address: int) -> tuple[int, int, bool] | None:
        kind, is_managed, start, size = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint64(), ctypes.c_size_t()
        places = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in (kind, is_managed, start, size)))
        code = library.cuPointerGetAttributes(4, attributes, places, ctypes.c_uint64(address))
        if code or not kind.value or not size.value or not start.value <= address < start.value + size.value:
            return None
        return start.value, size.value, kind.value == _HOST or bool(is_managed.value)

    return ask
