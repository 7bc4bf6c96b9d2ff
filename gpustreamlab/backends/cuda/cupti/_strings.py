"""Read the strings that CUPTI's records point to, and make kernel names readable.

A record holds an address only, and a broken buffer holds any number. Strings are therefore read through the operating
system's view of this process, where a bad address is an error code and not a crash.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from functools import cache
from types import TracebackType
from typing import Any, Self

STRING_LIMIT = 65_536
"""Longest string that is read, in bytes."""

_MEMORY = "/proc/self/mem"
_DEMANGLE_LIMIT = 1_024
"""Longest name that libstdc++ takes. Source: DEMANGLE_RECURSION_LIMIT in libiberty's cp-demangle.c, half of 2,048."""
_BACK_REFERENCES = 40
"""Most back references that are passed on: each two can double the text, and 100 of them fill any memory."""


class StringReader:
    """Read the strings of one drain; each address is read once.

    Names may be freed and their addresses used again after a drain, so a reader must not outlive it. It must not be used in a
    child of `os.fork` either: it would read the parent's memory.
    """

    def __init__(self) -> None:
        self._texts: dict[int, str | None] = {0: None}
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def read(self, address: int, limit: int = STRING_LIMIT) -> str | None:
        """Return the string at an address, or None where there is none."""
        if address not in self._texts:
            self._texts[address] = self._read(address, limit)
        return self._texts[address]

    def close(self) -> None:
        """Forget all strings. A closed reader opens again when it is used."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._texts = {0: None}

    def _read(self, address: int, limit: int) -> str | None:
        parts, left = [], limit
        while left > 0:
            part = self._read_page(address, left)
            if not part:
                return None
            text, found, _ = part.partition(b"\0")
            parts.append(text)
            if found:
                break
            address, left = address + len(part), left - len(part)
        return b"".join(parts).decode(errors="replace")

    def _read_page(self, address: int, limit: int) -> bytes:
        """Read up to the end of the page, so that a string before an unmapped page is read whole."""
        try:
            if self._file < 0:
                self._file = os.open(_MEMORY, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._file, min(limit, mmap.PAGESIZE - address % mmap.PAGESIZE), address)
        except (OSError, OverflowError):
            return b""


def demangle(name: str) -> str:
    """Return the C++ declaration that a linker name stands for, or the name itself.

    Examples
    --------
    >>> demangle("_ZN3lab4spinILi4EEEvl")
    'void lab::spin<4>(long)'
    >>> demangle("cupy_add__float32")
    'cupy_add__float32'
    """
    if not name.startswith("_Z") or len(name) > _DEMANGLE_LIMIT or not name.isascii():
        return name
    libraries = _load_demangler()
    if libraries is None or len(_BACK_REFERENCE.findall(name)) > _BACK_REFERENCES:
        return name
    demangler, free = libraries
    status = ctypes.c_int()
    address = demangler(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return name
    try:
        return ctypes.string_at(address).decode(errors="replace")[:STRING_LIMIT]
    finally:
        free(address)


@cache
def _load_demangler() -> tuple[Any, Any] | None:
    try:
        demangler = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        free = ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return None
    demangler.restype = ctypes.c_void_p
    demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return demangler, free


_BACK_REFERENCE = re.compile(r"S[0-9A-Z]*_")
