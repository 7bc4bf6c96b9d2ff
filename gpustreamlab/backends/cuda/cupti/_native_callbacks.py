"""CUPTI's two callbacks as machine code, and the buffers that they move: neither waits for the interpreter's lock.

Why, and how the lists work, is told in the C source, scripts/cupti_callbacks.c; what is generated here comes from it by
``python -m scripts.cupti_callbacks``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIZE = ctypes.POINTER(ctypes.c_size_t)
REQUEST = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
"""CUpti_BuffersCallbackRequestFunc."""
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
"""CUpti_BuffersCallbackCompleteFunc."""

# These take nanoseconds and call nothing, so the interpreter's lock is kept.
_TAKE_FULL = ctypes.PYFUNCTYPE(ctypes.c_uint64)
_FREE_BUFFER = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)
_THREAD_POINTER = ctypes.PYFUNCTYPE(ctypes.c_uint64)

_ALIGNMENT = 64
_MOST_BUFFERS = 0xFFFF
_MAP_NORESERVE = 0x4000
"""The same on both machines; the module `mmap` names it from 3.13 on."""

_WORDS = ("free", "full", "refused_count", "completed_count", "first_address", "stride_bytes", "buffer_bytes", "buffer_count")
_STATE = np.dtype([(name, np.uint64) for name in _WORDS])
_BUFFER = np.dtype(
    [("next", np.uint32), ("is_lent", np.uint32), ("valid_bytes", np.uint64), ("thread", np.uint64), ("unused", np.uint64)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCode:
    """The callbacks of one kind of machine."""

    code: bytes
    """What to map, executable."""
    offsets: dict[str, int]
    """Where each function begins."""
    compiler: str
    """What made it."""


class FilledBuffer(NamedTuple):
    """What CUPTI has filled."""

    ticket: int
    """Its address, for `give_back`."""
    data: NDArray[np.uint8]
    """The records."""
    thread: int
    """Whose records they are: ``threading.get_ident() & 0xFFFF_FFFF`` of the thread that asked for the buffer."""


class NativePool:
    """Buffers that CUPTI takes and gives back without Python.

    All lie in one mapping, of which only what CUPTI has written takes memory; what was used last is lent first.

    Parameters
    ----------
    buffer_bytes, buffer_limit
        Size of each, and how many there are.

    Raises
    ------
    OSError
        If there is no code for this machine, or it may not be mapped.
    """

    def __init__(self, *, buffer_bytes: int, buffer_limit: int) -> None:
        native = find_code()
        if not 0 < buffer_limit <= _MOST_BUFFERS:
            raise OSError(f"{buffer_limit} buffers are not from 1 to {_MOST_BUFFERS}.")
        stride_bytes = _round_up(buffer_bytes, _ALIGNMENT)
        table_offset = STATE_OFFSET + _STATE.itemsize
        arena_offset = _round_up(table_offset + buffer_limit * _BUFFER.itemsize, mmap.PAGESIZE)
        self._memory = _map_memory(arena_offset + buffer_limit * stride_bytes)
        self._memory[: len(native.code)] = native.code
        address = _protect(self._memory, STATE_OFFSET)
        self._arena = np.frombuffer(self._memory, np.uint8, offset=arena_offset)
        self._state = np.frombuffer(self._memory, _STATE, 1, offset=STATE_OFFSET)
        self._buffers = np.frombuffer(self._memory, _BUFFER, buffer_limit, offset=table_offset)
        self._state["first_address"] = address + arena_offset
        self._state["stride_bytes"], self._state["buffer_bytes"] = stride_bytes, buffer_bytes
        self._state["buffer_count"] = buffer_limit
        self._taken: set[int] = set()
        self._taken_count = 0
        self._lock = threading.Lock()
        places = {name: address + offset for name, offset in native.offsets.items()}
        self.request = REQUEST(places["request_buffer"])
        """What CUPTI calls for an empty buffer."""
        self.complete = COMPLETE(places["complete_buffer"])
        """What CUPTI calls with a full one."""
        self._take_full = _TAKE_FULL(places["take_full"])
        self._free_buffer = _FREE_BUFFER(places["free_buffer"])
        # A thread's pointer and what Python calls it are as far apart in every thread.
        self._to_ident = threading.get_ident() - int(_THREAD_POINTER(places["thread_pointer"])())
        for index in reversed(range(buffer_limit)):
            self._free_buffer(index)

    @property
    def refused_count(self) -> int:
        """How often CUPTI got none because all were in use."""
        return int(self._state["refused_count"][0])

    @property
    def full_count(self) -> int:
        """Buffers that wait to be taken."""
        return int(self._state["completed_count"][0]) - self._taken_count

    def take(self) -> list[FilledBuffer]:
        """Return what was filled since the last time, in that order."""
        indices = []
        with self._lock:
            link = self._take_full()
            while link:
                indices.append(link - 1)
                link = int(self._buffers["next"][link - 1])
            self._taken.update(indices)
            self._taken_count += len(indices)
        return [self._content(index) for index in reversed(indices)]

    def give_back(self, address: int) -> None:
        """Let a buffer that was taken be filled again."""
        index = (address - int(self._state["first_address"][0])) // int(self._state["stride_bytes"][0])
        with self._lock:
            if index in self._taken:
                self._taken.remove(index)
                self._free_buffer(index)

    def _content(self, index: int) -> FilledBuffer:
        begin = index * int(self._state["stride_bytes"][0])
        valid_bytes = min(int(self._buffers["valid_bytes"][index]), int(self._state["buffer_bytes"][0]))
        thread = (int(self._buffers["thread"][index]) + self._to_ident) & 0xFFFF_FFFF
        return FilledBuffer(int(self._state["first_address"][0]) + begin, self._arena[begin : begin + valid_bytes], thread)


def find_code() -> NativeCode:
    """Return the code for this machine.

    Raises
    ------
    OSError
        If there is none.
    """
    is_known = sys.platform == "linux" and sys.maxsize > 1 << 32 and STATE_OFFSET % mmap.PAGESIZE == 0
    machine = platform.machine()
    if not is_known or machine not in CODE:
        raise OSError(f"There is no code for {sys.platform} on {machine} with pages of {mmap.PAGESIZE} bytes.")
    return CODE[machine]


def _map_memory(size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(memory: mmap.mmap, size_bytes: int) -> int:
    """Make the first bytes executable and no longer writable; return where they lie.

    The kernel makes the instruction caches of aarch64 agree when a page becomes executable.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), f"Memory may not be made executable: {os.strerror(ctypes.get_errno())}")
    return address


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


# --- generated: begin ---
SOURCE_SHA256 = "456ebd79587f7be1d50c6be02b1b89a13a0ab75c0fa2980ff4c5dc59f6646e3b"
STATE_OFFSET = 0x10000
CODE = {
    "x86_64": NativeCode(
        compiler="x86_64-linux-gnu-gcc (Debian 12.2.0-14+deb12u1) 12.2.0",
        offsets={"request_buffer": 0, "complete_buffer": 192, "take_full": 320, "free_buffer": 336, "thread_pointer": 400},
        code=bytes.fromhex(
            "f30f1efa488b05f5ff00004889f948c702000000004889c281e2ffff00000f847c0000004883c201488d3dd1ff000048"
            "c1e2054801fa8b3a4889c26631d24881c2000001004809faf0480fb115afff000075c20fb7c0488d3df3ff0000644c8b"
            "0425000000004883e8014889c248c1e2054c890417c74417f401000000480faf05a3ff000048030594ff000048890148"
            "8b159aff0000488916c3660f1f440000f048830567ff00000148c70100000000ebe466662e0f1f8400000000000f1f00"
            "f30f1efa4889d031d2482b0550ff000048f73551ff0000483b055aff000073054885d2740bc3662e0f1f840000000000"
            "488d4802488d3509ff000048c1e10587140e85d274df4c89443104f048830504ff000001488b15edfe00004883ee0448"
            "01f1488d700189114889d0f0480fb135d4fe00004889c275edc3660f1f440000f30f1efa31c0488705bbfe0000c36690"
            "f30f1efa488d5702488d0da1fe0000488b059afe000048c1e205488db7010001004801ca0fb7c8890a4889c16631c948"
            "01f1f0480fb10d75fe000075e7c36690f30f1efa64488b042500000000c3"
        ),
    ),
    "aarch64": NativeCode(
        compiler="aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0",
        offsets={"request_buffer": 0, "complete_buffer": 192, "take_full": 368, "free_buffer": 400, "thread_pointer": 480},
        code=bytes.fromhex(
            "86000090c300009163fcdfc85f0000f9643c40f2c200009185040091200400544514058ba50040b9e503052a64bc7092"
            "84404091840005aa45fc5fc8bf0003eb61000054447c07c8ff000071e30305aa01feff54a33c409284000090630400d1"
            "8440019146d03bd565e87bd3a400048b860000f98400009084100191a500048b24008052a40000b9451842a9441840f9"
            "6314069b030000f9240000f9c0035fd68200009042400091457c5fc8a5040091457c03c8a3ffff351f0000f9f7ffff17"
            "8000009000000091030442a9051c40f9420003cb4308c19abf0003eb690000546188019b410000b4c0035fd661080091"
            "820000904210009121e87bd32200028b45fc5f885ffc0688c6ffff35e5feff3482000090422000912500028ba40000f9"
            "8400009084600091867c5fc8c6040091867c05c8a5ffff35440040f92100008b63040091240000b9407c5fc81f0004eb"
            "6100005443fc05c8bf000071e40300aa21ffff54c0035fd61f2003d51f2003d5810000902120009120fc5fc83f7c02c8"
            "c2ffff35c0035fd61f2003d51f2003d58100009021000091220040f90308009100404091e40301aa000400912314038b"
            "413c0012610000b941bc70922100008b857c5fc8bf0002eb6100005481fc06c8df000071e20305aac1feff54c0035fd6"
            "40d03bd5c0035fd6"
        ),
    ),
}
# --- generated: end ---
