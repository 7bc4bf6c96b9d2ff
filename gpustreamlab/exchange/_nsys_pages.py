"""Whole numbers of SQLite tables, read off the file's pages at numpy's speed.

SQLite's own interface makes an object of every number, and a report of a million kernels holds thirty million. Only plain
tables are read here: what is anything else is left to SQLite. Source: sqlite.org, "Database File Format".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.typing import BoolArray, Int64Array

NO_NUMBER = int(np.iinfo(np.int64).min)
"""Stands for all that is no whole number: NULL, text, a float, a blob."""
CHUNK_PAGES = 256
"""Pages that are read at a time."""

_LEAF, _INTERIOR = 0x0D, 0x05
_HEAD_BYTES = 100
_MOST_LEVELS = 20
_SLACK_BYTES = 64
"""Behind the last page, so that no number that is read there ends outside of memory."""
_FIRST_TEXT = 12
"""Kinds of values from here on are texts and blobs, by their sizes."""
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, 0], np.int64)
"""Bytes of a value by its kind."""
_SHIFTS = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0, 0, 0, 0], np.int64)
"""How far eight bytes are shifted for the number that they begin with."""
_IS_STORED = np.isin(np.arange(_FIRST_TEXT + 1), [1, 2, 3, 4, 5, 6])
_FIXED = np.array([NO_NUMBER] * 8 + [0, 1] + [NO_NUMBER] * 3, np.int64)
"""What kinds without a stored number stand for: 8 is nought, 9 is one."""

_Bytes = NDArray[np.uint8]


class DamagedError(Exception):
    """The pages of a table do not hold together."""


class Pages:
    """The pages of a database.

    Parameters
    ----------
    file
        Open for reading; it stays so.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            raise DamagedError("it ends within its head")
        told = int.from_bytes(head[16:18], "big")
        self._page_bytes = 65_536 if told == 1 else told
        self._usable = self._page_bytes - head[20]
        if self._page_bytes.bit_count() != 1 or self._usable < 480:
            raise DamagedError(f"its pages are said to have {self._page_bytes} bytes")
        self.count = file.seek(0, 2) // self._page_bytes
        """How many pages there are."""

    def leaves(self, root: int) -> tuple[Int64Array, int]:
        """Return the numbers of a table's leaves, in the order of its rows, and how many rows they have.

        Raises
        ------
        DamagedError
            If it is no plain table, its pages make no tree, or its rows are said to be larger than the file: then SQLite might
            read for ever.
        """
        seen = np.zeros(self.count + 1, bool)
        seen_count, level = 0, np.array([root], np.int64)
        for _ in range(_MOST_LEVELS):
            if level.min() < 1 or level.max() > self.count:
                raise DamagedError("it names a page that does not exist")
            seen[level] = True
            seen_count += len(level)
            if np.count_nonzero(seen) != seen_count:
                raise DamagedError("it names a page twice")
            kind = int(self._read(level[:1])[_head_at(level[0])])
            if kind == _LEAF:
                return level, self._count_rows(level)
            if kind != _INTERIOR:
                raise DamagedError("a table is stored in another way than nsys does it")
            level = np.concatenate([self._children(page) for page in level])
        raise DamagedError("its pages are nested too deep")

    def _count_rows(self, leaves: Int64Array) -> int:
        row_count = size_bytes = 0
        leaves = leaves[leaves > 1]  # the first page has another head
        for first in range(0, len(leaves), CHUNK_PAGES):
            part = leaves[first : first + CHUNK_PAGES]
            _, _, size = self._cells(self._read(part), len(part))
            row_count += len(size)
            size_bytes += int(np.minimum(size, 1 << 40).sum())
            if size.min(initial=0) < 0 or size_bytes > self.count * self._page_bytes:
                raise DamagedError("its rows are said to be larger than it is")
        return row_count

    def read(self, leaves: Int64Array, row_count: int, columns: Sequence[int], step: Callable[[], None]) -> Int64Array | None:
        """Return columns, by their places, as whole numbers, `NO_NUMBER` where there is none; shape (n_columns, n_rows).

        None where the table holds more than is read here: rows that go on on other pages, or lack columns.
        """
        found, done = np.empty((len(columns), row_count), np.int64), 0
        for first in range(0, len(leaves), CHUNK_PAGES):
            part = self._read_rows(leaves[first : first + CHUNK_PAGES], columns)
            if part is None:
                return None
            found[:, done : done + part.shape[1]] = part
            done += part.shape[1]
            step()
        return found

    def _read_rows(self, numbers: Int64Array, columns: Sequence[int]) -> Int64Array | None:
        data = self._read(numbers)
        page_at, row_at, size = self._cells(data, len(numbers))
        if not len(row_at):
            return np.empty((len(columns), 0), np.int64)
        if (size > self._usable - 35).any():
            return None
        _, row_at = _varints(data, row_at)
        end = row_at + size
        header_bytes, kind_at = _varints(data, row_at)
        if ((size < 0) | (end > page_at + self._usable) | (header_bytes < 1) | (header_bytes > size)).any():
            raise DamagedError("a row reaches beyond its page")
        return _read_columns(data, row_at + header_bytes, kind_at, end, columns)

    def _cells(self, data: _Bytes, page_count: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return of each row on some pages where its page begins, where its number is, and how many bytes it has."""
        page_at = np.arange(page_count) * self._page_bytes
        counts = _numbers_at(data, ">u2", page_at + 3)
        if (data[page_at] != _LEAF).any() or (8 + 2 * counts > self._usable).any():
            raise DamagedError("a page of a table is none")
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        page_at = np.repeat(page_at, counts)
        cell = np.minimum(_numbers_at(data, ">u2", page_at + 8 + 2 * place), self._usable - 1)
        size, row_at = _varints(data, page_at + cell)
        return page_at, row_at, size

    def _children(self, number: np.int64) -> Int64Array:
        """Return the pages below an interior one."""
        data, head = self._read(np.array([number])), _head_at(number)
        count = int(_numbers_at(data, ">u2", np.array([head + 3]))[0])
        if data[head] != _INTERIOR or head + 12 + 2 * count > self._usable:
            raise DamagedError("a page of a table is none")
        cells = _numbers_at(data, ">u2", head + 12 + 2 * np.arange(count))
        return _numbers_at(data, ">u4", np.append(np.minimum(cells, self._usable), head + 8))

    def _read(self, numbers: Int64Array) -> _Bytes:
        """Return pages behind each other, with some slack."""
        data = np.zeros(len(numbers) * self._page_bytes + _SLACK_BYTES, np.uint8)
        view, done = data.data, 0
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            length = len(run) * self._page_bytes
            self._file.seek((int(run[0]) - 1) * self._page_bytes)
            if self._file.readinto(view[done : done + length]) != length:  # type: ignore[attr-defined]
                raise DamagedError("it became shorter while it was read")
            done += length
        return data


def _head_at(page: np.int64) -> int:
    """Return where the head of a page is: the first one begins with that of the file."""
    return _HEAD_BYTES if page == 1 else 0


def _read_columns(
    data: _Bytes, value_at: Int64Array, kind_at: Int64Array, end: Int64Array, columns: Sequence[int]
) -> Int64Array | None:
    """Return columns of rows, by where the first value and its kind are, and the row's end; None where rows are too short."""
    found = np.empty((len(columns), len(end)), np.int64)
    places = {column: place for place, column in enumerate(columns)}
    header_end = value_at
    for column in range(max(columns) + 1):
        if (kind_at >= header_end).any():
            return None
        kind, kind_at = _varints(data, kind_at)
        texts = np.flatnonzero(kind.view(np.uint64) >= _FIRST_TEXT)  # or below nought
        length = kind[texts] - _FIRST_TEXT >> 1
        kind[texts] = _FIRST_TEXT
        size = _SIZES[kind]
        size[texts] = length
        next_at = value_at + size
        if ((next_at > end) | (size < 0)).any():
            raise DamagedError("a value reaches beyond its row")
        if column in places:
            found[places[column]] = _values(data, value_at, kind)
        value_at = next_at
    return found


def _values(data: _Bytes, at: Int64Array, kind: Int64Array) -> Int64Array:
    number = _numbers_at(data, ">i8", at) >> _SHIFTS[kind]
    is_stored = _IS_STORED[kind]
    return number if is_stored.all() else np.where(is_stored, number, _FIXED[kind])


def _varints(data: _Bytes, at: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return numbers of one to nine bytes, and where they end."""
    byte = data[at]
    value, end = byte.astype(np.int64), at + 1
    if not len(byte) or byte.max() < 128:
        return value, end
    more: NDArray[np.intp] = np.flatnonzero(byte >= 128)
    value[more] &= 127
    for turn in range(2, 10):
        if not len(more):
            break
        byte = data[end[more]]
        bits = 8 if turn == 9 else 7
        value[more] = (value[more] << bits) | (byte & ((1 << bits) - 1))
        end[more] += 1
        goes_on: BoolArray = byte >= 128
        more = more[goes_on]
    return value, end


def _numbers_at(data: _Bytes, kind: str, at: Any) -> Int64Array:
    """Return numbers of several bytes that begin anywhere."""
    wide = np.dtype(kind)
    view: NDArray[Any] = np.ndarray((len(data) - wide.itemsize + 1,), wide, data, strides=(1,))
    found: Int64Array = view[at].astype(np.int64)
    return found
