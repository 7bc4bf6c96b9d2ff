"""What CUPTI calls: for buffers, pooled, bounded and taken back as they are; and at calls of the driver.

CUPTI asks for an empty buffer in the thread of the user's call and hands full ones over in a thread of its own. Both only move
a buffer from one list to another, and a call of the driver is only noted; reading happens later, elsewhere. That is done in C
(callbacks.c): CUPTI may hold a lock of its own while it calls, and a thread that enters CUDA with the interpreter's lock held
waits for that one, so a callback that waits for the interpreter may wait for ever. Wheels for Linux hold it compiled
(hatch_build.py); else the machine's own compiler compiles it when kernels are first captured, into the user's cache.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda._idle import keep_for_good
from gpustreamlab.backends.cuda.cupti._arguments import CShape, c_shape, driver_table
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.errors import CaptureUnavailableError

_log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 20
"""Size of a buffer: 4,800 kernels."""
BUFFER_LIMIT = 256
"""Buffers that exist at most: 256 MiB, 1.2 million kernels that nobody has fetched. More records are dropped and counted."""
_FIRST_THAT_MAY_BE_REFUSED = 27
"""CUPTI's API version in CUDA 12.9."""

_SIZE = ctypes.POINTER(ctypes.c_size_t)
REQUEST = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
"""CUpti_BuffersCallbackRequestFunc."""
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
"""CUpti_BuffersCallbackCompleteFunc."""
CALL = np.dtype(
    [
        *(("start", np.int64), ("end", np.int64)),
        *(("threadId", np.uint32), ("correlationId", np.uint32)),
        *(("cbid", np.uint16), ("words", np.uint16), ("flags", np.uint32)),
        *(("stream", np.uint64), ("object", np.uint64), ("size", np.uint64)),
    ]
)
"""What callbacks.c notes of a call; the names are those of CUPTI's records of calls. What the last three are, and how many
``words`` come with it, depends on the function: see `_arguments.SHAPES`."""
CALL_FIELDS = ("start", "end", "threadId", "correlationId", "cbid")
"""Those of them that a record of a call has."""
DRAIN_BYTES = 64 << 20
"""How much may lie in full buffers where nobody asks for it: 300,000 kernels."""
DRAIN_CALLS = 1 << 18
"""The same of slots in the ring of calls: a quarter."""
WORDS = 7
"""Words that a slot of the ring holds; a call takes one slot more for them."""

_NAME_BYTES = 4_096

SOURCES = tuple(Path(__file__).with_name(name) for name in ("callbacks.c", "inject.c"))
COMPILERS = ("cc", "gcc", "clang")
# In a program that we know nothing of, names of ours are ours, whatever else is called so.
_FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic")
_COMPILE_S = 60
"""How long a compiler may take: ziglang makes its own libraries on its first run."""


class ActivityBuffers:
    """The buffers and the ring of calls of this process, as CUPTI knows one pair of callbacks and one subscriber."""

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, buffer_limit: int = BUFFER_LIMIT) -> None:
        self.buffer_bytes = buffer_bytes
        try:
            self._library = self._load(buffer_limit)
        except OSError as error:
            raise CaptureUnavailableError(
                f"CUPTI's callbacks cannot be made on this machine, so kernels are not seen. {error}"
            ) from error
        self.request = ctypes.cast(self._library.request_buffer, REQUEST)
        """What CUPTI calls for an empty buffer."""
        self.complete = ctypes.cast(self._library.complete_buffer, COMPLETE)
        """What CUPTI calls with a full one."""
        self.note_call = ctypes.cast(self._library.note_call, ctypes.c_void_p)
        """What CUPTI calls at a call of the driver that is followed."""

    def register(self, cupti: Cupti) -> None:
        """Let CUPTI use these buffers."""
        # CUPTI calls these until the process ends, even while the interpreter is taken down: this reference is never dropped.
        keep_for_good(self)
        if cupti.version < _FIRST_THAT_MAY_BE_REFUSED and self._library.refuse_nobody():
            raise CaptureUnavailableError("There is no memory for CUPTI's buffers, so kernels are not seen.")
        cupti.require("cuptiActivityRegisterCallbacks", self.request, self.complete)

    @property
    def full_bytes(self) -> int:
        """Bytes in buffers that wait to be taken."""
        return int(self._library.count_full()) * self.buffer_bytes

    def take(self) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return what was filled since the last time, in that order: each with its address, for `give_back`."""
        taken = []
        valid_bytes = ctypes.c_uint64()
        while address := self._library.take_full(ctypes.byref(valid_bytes)):
            data = np.ctypeslib.as_array((ctypes.c_uint8 * valid_bytes.value).from_address(address))
            taken.append((address, data))
        return taken

    def take_spilt_bytes(self) -> int:
        """Return how many bytes of records found no buffer since the last time, where CUPTI may not be refused one."""
        return int(self._library.take_spilt_bytes())

    def give_back(self, ticket: int) -> None:
        """Let a buffer that was taken be filled again."""
        self._library.give_back(ticket)

    @property
    def are_full(self) -> bool:
        """Whether so much waits that it is time to read."""
        return self.full_bytes >= DRAIN_BYTES or self.call_count >= DRAIN_CALLS

    @property
    def call_count(self) -> int:
        """Calls that wait to be taken."""
        return int(self._library.count_calls())

    def take_calls(self) -> tuple[NDArray[np.void], NDArray[np.uint64], int]:
        """Return the calls that have returned since the last time, of dtype `CALL`, their words, and how many found no room."""
        most = self.call_count  # what comes meanwhile is for the next time; memory that nobody writes takes none
        calls, words = np.empty(most, CALL), np.empty(most * WORDS, np.uint64)
        taken = int(self._take_calls(calls.ctypes.data, len(calls), words.ctypes.data, len(words))) if most else 0
        return calls[:taken], words[: int(calls["words"][:taken].sum())], int(self._library.take_lost_calls())

    def begin_calls(self, driver: Any) -> None:
        """Let what is known of memory and functions begin anew; the arguments of launches are asked of this libcuda."""
        self._library.set_driver(driver_table(driver))
        self._library.begin_calls()

    def set_shape(self, function: int, name: str) -> None:
        """Say what is noted of the calls of a function of the driver, by its number and its name as CUPTI has them."""
        self._library.set_shape(function, c_shape(name))

    def tell_memory(self, address: int, size_bytes: int) -> None:
        """Note that there is memory, or none where the size is 0: words of arguments that lie elsewhere are not brought."""
        self._library.tell_memory(address, size_bytes)

    def function_name(self, function: int) -> str:
        """Return the name of a function that was launched; empty where the driver does not tell."""
        text = ctypes.create_string_buffer(_NAME_BYTES)
        size = int(self._library.function_name(function, text, _NAME_BYTES))
        return text.raw[:size].decode(errors="replace")

    def _load(self, buffer_limit: int) -> ctypes.PyDLL:
        # PyDLL keeps the interpreter's lock: each call takes nanoseconds, but for one. The library is never closed.
        path = str(find_library())
        library = ctypes.PyDLL(path)
        self._take_calls = ctypes.CDLL(path).take_calls
        library.set_up.argtypes = (ctypes.c_size_t, ctypes.c_uint64)
        library.take_full.restype = ctypes.c_void_p
        library.give_back.argtypes = (ctypes.c_void_p,)
        library.give_back.restype = None
        library.count_full.restype = ctypes.c_uint64
        self._take_calls.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
        library.function_name.argtypes = (ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64)
        counts = (self._take_calls, library.count_calls, library.take_lost_calls, library.take_spilt_bytes)
        for function in (*counts, library.function_name):
            function.restype = ctypes.c_uint64
        library.set_shape.argtypes = (ctypes.c_uint32, CShape)
        library.tell_memory.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
        if library.set_up(self.buffer_bytes, buffer_limit) or library.set_up_calls():
            raise OSError("The buffers of this process were made before, or there is no memory for them.")
        return library


@cache
def reading_library() -> ctypes.CDLL:
    """Return the same, for what reads long and keeps nothing: it gives up the interpreter's lock."""
    library = ctypes.CDLL(str(find_library()))
    library.count_records.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
    library.split_records.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    library.count_records.restype = library.split_records.restype = None
    library.find_function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64)
    library.find_function.restype = ctypes.c_void_p
    library.put_block.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    library.note_nowhere.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.put_block.restype = library.note_nowhere.restype = None
    library.read_accesses.argtypes = (ctypes.c_void_p,)
    return library


def find_library() -> Path:
    """Return the compiled callbacks: of the wheel, of the user's cache, where they were made before, else compiled now."""
    if sys.platform != "linux":
        raise OSError(f"CUPTI's callbacks are compiled on Linux alone; this is {sys.platform}.")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()[:16]
    name = f"callbacks-{digest}-{platform.machine()}.so"
    if (built := SOURCES[0].with_name(name)).exists():
        return built
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "gpustreamlab")
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        _log.warning(
            "CUPTI's callbacks are compiled in each process, as %s cannot be made or is not yours alone. "
            "Set XDG_CACHE_HOME to a folder of your own.",
            folder,
        )
        folder = Path(tempfile.mkdtemp(prefix="gpustreamlab-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / name
    if not _is_ours(library):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # beside it, so that it appears there whole
            made = Path(scratch, library.name)
            compile_sources(SOURCES, made)
            made.chmod(0o700)  # a umask may let the group write it
            made.replace(library)
    return library


def _is_ours(path: Path) -> bool:
    """Tell whether only this user can have put it there: who loads a library runs it."""
    try:
        own, above = path.lstat(), path.parent.stat()
    except OSError:
        return False
    user = os.geteuid()
    # What a group may write above is no matter: a umask of 002 makes ~/.cache so.
    others_move = above.st_uid not in (0, user) or (above.st_mode & 0o002 and not above.st_mode & stat.S_ISVTX)
    return own.st_uid == user and not stat.S_ISLNK(own.st_mode) and not own.st_mode & 0o022 and not others_move


def compile_sources(sources: Sequence[Path], target: Path) -> None:
    """Compile a library of C with the first compiler that there is."""
    command = _find_compiler()
    try:
        done = subprocess.run(  # noqa: S603 - a compiler of this machine, and files of this package
            [*command, *_FLAGS, "-o", str(target), *map(str, sources), "-ldl"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            # ziglang links what its cache holds, and that lies below XDG_CACHE_HOME too.
            env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(target.parent)},
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)} took more than {_COMPILE_S} s.") from None
    if done.returncode:
        raise OSError(f"{' '.join(command)} could not compile {sources[0].name}: {done.stderr.strip()[-300:]}")


def _find_compiler() -> list[str]:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found:
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise OSError("There is no C compiler here. Install one (cc, gcc or clang), or: pip install 'gpustreamlab[native]'.")
