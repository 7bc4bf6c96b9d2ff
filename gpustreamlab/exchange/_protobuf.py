"""Protocol buffers by the column: many messages of one layout are written, and many of any layout are read, at once.

Source: the encoding of protocol buffers, https://protobuf.dev/programming-guides/encoding. A varint may be longer than it needs
to be; with a fixed length for all, messages are rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.typing import BoolArray, Int64Array

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.uint64]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
"""Bytes of a number of 64 bits."""
FEW_MESSAGES = 64
"""Fewer are read one by one."""


def varint(value: int, width: int = 1) -> bytes:
    """Return a number of 64 bits, in at least so many bytes.

    Examples
    --------
    >>> varint(300).hex(), varint(1, width=3).hex(), varint(-1).hex()
    ('ac02', '818000', 'ffffffffffffffffff01')
    """
    value &= (1 << 64) - 1
    parts: list[int] = []
    while value > 0x7F or len(parts) < width - 1:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def tag(number: int, wire: int = VARINT) -> bytes:
    """Return what stands in front of a field."""
    return varint(number << 3 | wire)


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds a whole number."""
    return tag(number) + varint(value)


def fixed_field(number: int, value: int) -> bytes:
    """Return a field of eight bytes."""
    return tag(number, FIXED64) + value.to_bytes(8, "little")


def bytes_field(number: int, *parts: bytes) -> bytes:
    """Return a field that holds bytes: a text, or a message."""
    content = b"".join(parts)
    return tag(number, LENGTH) + varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """Return a field that holds a text."""
    return bytes_field(number, text.encode())


class Hole(NamedTuple):
    """Where a row holds a number of its own."""

    values: NDArray[np.integer] | NDArray[np.float64]
    """One a row, at least 0; of eight bytes where they are fixed."""
    width: int
    """Bytes of the varint; 0 for eight bytes as they are."""
    is_there: BoolArray | None = None
    """Which rows have it, and the bytes in front of it that say so; None for all."""
    front: bytes = b""
    """Those bytes."""


def hole(values: NDArray[np.integer], front: bytes = b"") -> Hole:
    """Return a place for varints, as wide as the largest needs."""
    return Hole(values, len(varint(int(values.max(initial=0)))), front=front)


Parts: TypeAlias = Sequence[bytes | Hole]


def width_of(parts: Parts) -> int:
    """Return how many bytes a row of such parts has."""
    return sum(len(part) if isinstance(part, bytes) else len(part.front) + (part.width or 8) for part in parts)


def write_rows(parts: Parts, first: int, last: int, filler: bytes) -> Bytes:
    """Return messages of one layout; shape (last - first, n_bytes).

    Parameters
    ----------
    parts
        What a row is made of.
    first, last
        Which rows.
    filler
        Tag of a field that holds 1 in all rows: where a row lacks a part, it is said once more, in a varint as long as that.
    """
    template = b"".join(part if isinstance(part, bytes) else part.front + bytes(part.width or 8) for part in parts)
    rows = np.empty((last - first, len(template)), np.uint8)
    rows[:] = np.frombuffer(template, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            at += len(part)
            continue
        begin, at = at, at + len(part.front)
        values = part.values[first:last]
        if part.width:
            _write_varints(rows[:, at : at + part.width], values.astype(np.uint64))
        else:
            rows[:, at : at + 8] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
        at += part.width or 8
        if part.is_there is not None:
            rows[~part.is_there[first:last], begin:at] = np.frombuffer(_filled(filler, at - begin), np.uint8)
    return rows


def _write_varints(into: Bytes, values: Numbers) -> None:
    width = into.shape[1]
    rest = values.astype(np.uint32) if width < 5 else values
    for place in range(width):
        byte = rest.astype(np.uint8)
        into[:, place] = byte & 0x7F if place == width - 1 else byte | 0x80
        rest = rest >> rest.dtype.type(7)


def _filled(filler: bytes, size: int) -> bytes:
    """Return so many bytes that say again that a field is 1."""
    text = b""
    while size - len(text) > len(filler) + LONGEST_VARINT:
        text += filler + varint(1)
    return text + filler + varint(1, size - len(text) - len(filler))


class Fields(NamedTuple):
    """All fields of many messages, in order of their place within each."""

    owner: Int64Array
    """Which message; shape (n_fields,)."""
    number: Int64Array
    """Number of the field."""
    wire: Int64Array
    """How it is stored."""
    value: Numbers
    """A whole number, or the eight or four bytes; 0 for bytes."""
    first: Int64Array
    """Where bytes begin."""
    last: Int64Array
    """Where they end."""
    is_damaged: BoolArray
    """Which messages could not be read to their end; shape (n_messages,)."""

    def rows(self, number: int, wire: int = VARINT) -> Int64Array:
        """Return which fields have a number, and are stored like this."""
        return np.flatnonzero((self.number == number) & (self.wire == wire))

    def numbers(self, number: int, default: int = 0, wire: int = VARINT) -> Numbers:
        """Return a whole number of each message; the last counts."""
        found = np.full(len(self.is_damaged), default, np.uint64)
        rows = self.rows(number, wire)
        found[self.owner[rows]] = self.value[rows]
        return found

    def spans(self, number: int) -> tuple[Int64Array, Int64Array]:
        """Return where the bytes of a field are in each message, the last counts; an end of -1 where there is none."""
        first, last = np.full((2, len(self.is_damaged)), -1, np.int64)
        rows = self.rows(number, LENGTH)
        first[self.owner[rows]], last[self.owner[rows]] = self.first[rows], self.last[rows]
        return first, last


def read_fields(data: Bytes, first: Int64Array, last: Int64Array) -> Fields:
    """Read messages that lie anywhere in some bytes.

    Parameters
    ----------
    data
        The bytes, with `LONGEST_VARINT` more behind the last message.
    first, last
        Where each message begins and ends; shape (n_messages,).
    """
    at, owner = first.copy(), np.arange(len(first))
    is_damaged = np.zeros(len(first), bool)
    columns: list[tuple[NDArray[Any], ...]] = []
    while True:
        is_open = at < last[owner]
        at, owner = at[is_open], owner[is_open]
        if len(owner) < FEW_MESSAGES:
            break
        head, at, fits = read_varints(data, at)
        wire = (head & np.uint64(7)).astype(np.int64)
        number = (head >> np.uint64(3)).astype(np.int64)
        value, begin, at, is_known = _read_values(data, at, wire)
        is_good = fits & is_known & (at <= last[owner]) & (number > 0)
        is_damaged[owner[~is_good]] = True
        at, owner = at[is_good], owner[is_good]
        columns.append((owner, number[is_good], wire[is_good], value[is_good], begin[is_good], at))
    for message, begins in zip(owner.tolist(), at.tolist(), strict=True):
        found, is_whole = _one_by_one(data.data, begins, int(last[message]))
        is_damaged[message] = not is_whole
        if found:
            columns.append((np.full(len(found), message), *_columns(found)))
    if not columns:
        nothing = np.empty(0, np.int64)
        columns = [(nothing, nothing, nothing, nothing.astype(np.uint64), nothing, nothing)]
    owner, number, wire, value, begin, end = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Fields(owner, number, wire, value, begin, end, is_damaged)


def read_varints(data: Bytes, at: Int64Array) -> tuple[Numbers, Int64Array, BoolArray]:
    """Return the numbers, where each one ends, and whether it does."""
    byte = data[at]
    value, ends = (byte & 0x7F).astype(np.uint64), at + 1
    fits = byte < 0x80
    more = np.flatnonzero(~fits)
    for place in range(1, LONGEST_VARINT):
        if not len(more):
            break
        byte = data[at[more] + place]
        value[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
        ends[more] += 1
        is_last = byte < 0x80
        fits[more[is_last]] = True
        more = more[~is_last]
    return value, ends, fits


def _read_values(data: Bytes, at: Int64Array, wire: Int64Array) -> tuple[Numbers, Int64Array, Int64Array, BoolArray]:
    """Return the values, where bytes begin, where each field ends, and whether it can be read."""
    value, begin = np.zeros(len(at), np.uint64), at.copy()
    end, fits = at.copy(), np.zeros(len(at), bool)
    rows = np.flatnonzero((wire == VARINT) | (wire == LENGTH))
    value[rows], begin[rows], fits[rows] = read_varints(data, at[rows])
    end[rows] = begin[rows]
    rows = rows[wire[rows] == LENGTH]
    fits[rows] &= value[rows] < np.uint64(len(data))
    end[rows] += np.where(fits[rows], value[rows], 0).astype(np.int64)
    value[rows] = 0
    for kind, size in ((FIXED64, 8), (FIXED32, 4)):
        rows = np.flatnonzero((wire == kind) & (at + size <= len(data)))
        places = at[rows]
        for place in range(size):
            value[rows] |= data[places + place].astype(np.uint64) << np.uint64(8 * place)
        end[rows] += size
        fits[rows] = True
    return value, begin, end, fits


Field: TypeAlias = tuple[int, int, int, int, int]
"""Number, how it is stored, value, where its bytes begin and where it ends."""


def read_field(data: memoryview, at: int, last: int) -> Field | None:
    """Read one field of a message that ends somewhere; None where it is damaged."""
    head, at = _one_varint(data, at, last)
    number, wire, value = head >> 3, head & 7, 0
    if wire in (VARINT, LENGTH) and at >= 0:
        value, at = _one_varint(data, at, last)
    end = at + {VARINT: 0, FIXED64: 8, LENGTH: value, FIXED32: 4}.get(wire, last + 1)
    if at < 0 or end > last or not 0 < number < 1 << 61:
        return None
    if wire in (FIXED64, FIXED32):
        value = int.from_bytes(data[at:end], "little")
    return number, wire, 0 if wire == LENGTH else value, at, end


def _one_by_one(data: memoryview, at: int, last: int) -> tuple[list[Field], bool]:
    """Return the fields of one message, and whether they go on to its end."""
    found: list[Field] = []
    while at < last:
        field = read_field(data, at, last)
        if field is None:
            return found, False
        found.append(field)
        at = field[4]
    return found, True


def _columns(fields: list[Field]) -> tuple[NDArray[Any], ...]:
    number, wire, value, begin, end = zip(*fields, strict=True)
    plain = [np.array(column, np.int64) for column in (number, wire, begin, end)]
    return plain[0], plain[1], np.array(value, np.uint64), plain[2], plain[3]


def _one_varint(data: memoryview, at: int, last: int) -> tuple[int, int]:
    """Return a number and where it ends; -1 where it does not."""
    value = 0
    for place in range(min(LONGEST_VARINT, last - at)):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + place + 1
    return 0, -1
