"""Read the strings that CUPTI's records point to, and make kernel names readable.

A record holds an address only, and a broken buffer holds any number. Strings are therefore read through the operating
system's view of this process, where a bad address is an error code and not a crash.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from functools import cache
from types import TracebackType
from typing import Any, Self

STRING_LIMIT = 65_536
"""Longest string that is read, in bytes."""
SHORT_LIMIT = 96
"""Longest short name, in characters."""

_MEMORY = "/proc/self/mem"
_DEMANGLE_LIMIT = 1_024
"""Longest name that libstdc++ takes. Source: DEMANGLE_RECURSION_LIMIT in libiberty's cp-demangle.c, half of 2,048."""
_BACK_REFERENCES = 40
"""Most back references that are passed on: each two can double the text, and 100 of them fill any memory."""
_KEPT = 72
"""How many characters of template arguments a short name keeps."""


class StringReader:
    """Read the strings of one drain; each address is read once.

    Names may be freed and their addresses used again after a drain, so a reader must not outlive it. It must not be used in a
    child of `os.fork` either: it would read the parent's memory.

    Examples
    --------
    >>> text = ctypes.create_string_buffer(b"spin")
    >>> with StringReader() as strings:
    ...     strings.read(ctypes.addressof(text)), strings.read(8)
    ('spin', None)
    """

    def __init__(self) -> None:
        self._texts: dict[int, str | None] = {0: None}
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def read(self, address: int, limit: int = STRING_LIMIT) -> str | None:
        """Return the string at an address, or None where there is none.

        Parameters
        ----------
        address
            Where it begins; 0 and anything that cannot be read give None.
        limit
            Bytes after which it is cut.
        """
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


def short_name(full: str) -> str:
    """Return a kernel's own name: no return type, namespaces or arguments, and few template arguments.

    Parameters
    ----------
    full
        The declaration that `demangle` returned, a linker name, or a plain name.

    Returns
    -------
    str
        At most `SHORT_LIMIT` characters; never empty unless ``full`` is.

    Examples
    --------
    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)")
    'vectorized_elementwise_kernel<4>'
    >>> short_name("void gemm_kernel<cutlass::half_t, 2>(Params)")
    'gemm_kernel<...>'
    >>> short_name("_ZN7cutlass6KernelI3LongEvT_")
    'Kernel<...>'
    """
    full = full.strip() or full
    short = full
    if full.startswith("_Z"):
        short = _read_linker_name(full) or full
    elif any(sign in full for sign in ("(", "::", "<")):
        short = _read_declaration(full) or full
    return short if len(short) <= SHORT_LIMIT else short[: SHORT_LIMIT - 1] + "…"


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

_TOKEN = re.compile(r"\(anonymous (?:namespace|class|enum|struct)\)|::|->|[<>(){}\[\] ]")
"""What gives a declaration its shape. No kernel is an operator, a lambda, or within a function."""
_PAIRS = {")": "(", "]": "[", "}": "{", ">": "<"}
_ARGUMENT = re.compile(r" ?(?:\([\w: ]{1,40}\)(?=-?\d))?([-\w][\w. ]{0,71}\*?) ?(?=[,>])")
"""A template argument that is worth keeping: a number, a word, a plain type. The cast before a number is left out."""
_LINKER_PART = re.compile(r"(?P<size>[1-9]\d{0,5})|N[rVKRO]*|L(?=\d)|St|S[0-9A-Z]*_")
"""A part of a linker name before its template arguments: the length of a word, the begin of a nested name, a known scope."""
_NUMBER = re.compile(r"(-?\d+)u?l{0,2}")


def _top_level(full: str) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens outside of all brackets, with where they begin and end; a pair of brackets is one token."""
    stack: list[str] = []
    counts = dict.fromkeys("([{<", 0)
    outer = 0
    for match in _TOKEN.finditer(full):
        token = match[0]
        if token in counts:
            if not stack:
                outer = match.start()
            stack.append(token)
            counts[token] += 1
        elif token in _PAIRS:
            opening = _PAIRS[token]
            # An angle bracket closes only its own: within others it is an operator.
            if not counts[opening] or (opening == "<" and stack[-1] != "<"):
                continue
            while (last := stack.pop()) != opening:
                counts[last] -= 1
            counts[opening] -= 1
            if not stack:
                yield full[outer], outer, match.end()
        elif not stack:
            yield token, match.start(), match.end()
    if stack:
        yield full[outer], outer, len(full)


def _read_declaration(full: str) -> str:
    begin, end, template = 0, len(full), -1
    for piece, start, after in _top_level(full):
        if piece in {"::", " "}:
            begin, template = after, -1
        elif piece == "<" and template < 0 and start > begin:
            template = start
        elif piece == "(":
            end = start
            break
    base = full[begin : end if template < 0 else template].strip()
    return base + _short_template(full, template) if base and template >= 0 else base


def _short_template(full: str, place: int) -> str:
    """Keep the template arguments before the first long one."""
    kept, place, length = [], place + 1, 0
    while (match := _ARGUMENT.match(full, place)) is not None:
        number = _NUMBER.fullmatch(match[1])
        kept.append(number[1] if number else match[1].strip())
        length += len(kept[-1]) + 2
        if length > _KEPT:
            kept.pop()
            break
        place = match.end() + 1
        if full[match.end()] == ">":
            break
    return f"<{', '.join(kept) or '...'}>"


def _read_linker_name(full: str) -> str:
    """Read a linker name as far as the first template arguments, for names that could not be demangled."""
    place, name, is_nested = 2, "", False
    while (match := _LINKER_PART.match(full, place)) is not None:
        place = match.end()
        if match["size"]:
            part = full[place : place + int(match["size"])]
            place += len(part)
            name = name if part.startswith("_GLOBAL__N_") else part
            if not is_nested:
                break
        is_nested = is_nested or match[0].startswith("N")
    return f"{name}<...>" if name and full[place : place + 1] == "I" else name
