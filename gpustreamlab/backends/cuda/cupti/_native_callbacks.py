"""CUPTI's two callbacks in C, callbacks.c, which do not wait for the interpreter's lock.

They are compiled by the machine's own compiler when kernels are captured for the first time, and kept in the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIZE = ctypes.POINTER(ctypes.c_size_t)
REQUEST = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
"""CUpti_BuffersCallbackRequestFunc."""
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
"""CUpti_BuffersCallbackCompleteFunc."""

SOURCE = Path(__file__).with_name("callbacks.c")
COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-pthread")
_COMPILE_S = 60
"""How long a compiler may take: ziglang makes its own libraries on its first run."""


class FilledBuffer(NamedTuple):
    """What CUPTI has filled."""

    ticket: int
    """Its address, for `give_back`."""
    data: NDArray[np.uint8]
    """The records."""
    thread: int
    """Whose records they are: ``threading.get_ident() & 0xFFFF_FFFF`` of the thread that asked for the buffer."""


class NativePool:
    """Buffers that CUPTI takes and gives back without Python. One for each process, as CUPTI knows one pair of callbacks.

    Parameters
    ----------
    buffer_bytes, buffer_limit
        Size of each, and how many there are.

    Raises
    ------
    OSError
        If there is no compiler, or what it made cannot be used.
    """

    def __init__(self, *, buffer_bytes: int, buffer_limit: int) -> None:
        # PyDLL keeps the interpreter's lock: each call takes nanoseconds. The library is never closed.
        library = ctypes.PyDLL(str(find_library()))
        library.set_up.argtypes = (ctypes.c_size_t, ctypes.c_uint64)
        library.take_full.restype = ctypes.c_void_p
        library.give_back.argtypes = (ctypes.c_void_p,)
        library.give_back.restype = library.count.restype = None
        if library.set_up(buffer_bytes, buffer_limit):
            raise OSError("The buffers of this process were made before, or there is no memory for them.")
        self._library = library
        self.request = ctypes.cast(library.request_buffer, REQUEST)
        """What CUPTI calls for an empty buffer."""
        self.complete = ctypes.cast(library.complete_buffer, COMPLETE)
        """What CUPTI calls with a full one."""

    @property
    def refused_count(self) -> int:
        """How often CUPTI got none because all were in use."""
        return self._count()[1]

    @property
    def full_count(self) -> int:
        """Buffers that wait to be taken."""
        return self._count()[0]

    def take(self) -> list[FilledBuffer]:
        """Return what was filled since the last time, in that order."""
        taken = []
        valid_bytes, thread = ctypes.c_uint64(), ctypes.c_uint64()
        while address := self._library.take_full(ctypes.byref(valid_bytes), ctypes.byref(thread)):
            data = np.ctypeslib.as_array((ctypes.c_uint8 * valid_bytes.value).from_address(address))
            taken.append(FilledBuffer(address, data, thread.value & 0xFFFF_FFFF))
        return taken

    def give_back(self, address: int) -> None:
        """Let a buffer that was taken be filled again."""
        self._library.give_back(address)

    def _count(self) -> tuple[int, int]:
        full, refused = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.count(ctypes.byref(full), ctypes.byref(refused))
        return full.value, refused.value


def find_library() -> Path:
    """Return the compiled callbacks: of the user's cache, where they were made before, else compiled now.

    Raises
    ------
    OSError
        If they cannot be compiled here.
    """
    if sys.platform != "linux":
        raise OSError(f"CUPTI's callbacks are compiled on Linux alone; this is {sys.platform}.")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "gpustreamlab")
    library = folder / f"callbacks-{digest}-{platform.machine()}.so"
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # beside it, so that it appears there whole
            made = Path(scratch, library.name)
            compile_source(SOURCE, made)
            made.replace(library)
    return library


def compile_source(source: Path, target: Path) -> None:
    """Compile a library of C with the first compiler that there is.

    Raises
    ------
    OSError
        If there is none, or it fails.
    """
    command = _find_compiler()
    try:
        done = subprocess.run(  # noqa: S603 - a compiler of this machine, and a file of this package
            [*command, *_FLAGS, "-o", str(target), str(source)], check=False, capture_output=True, text=True, timeout=_COMPILE_S
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)} took more than {_COMPILE_S} s.") from None
    if done.returncode:
        raise OSError(f"{' '.join(command)} could not compile {source.name}: {done.stderr.strip()[-300:]}")


def _find_compiler() -> list[str]:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found:
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise OSError("There is no C compiler here. Install one (cc, gcc or clang), or: pip install 'gpustreamlab[native]'.")
