"""The packets of Perfetto's traces: where they are, and what is in them beside events."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.progress import steps
from gpustreamlab._util.room import require_room, room_bytes
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._packed import unpacked
from gpustreamlab.exchange._pftrace_packets import (
    CLEARED,
    CLOCK_SNAPSHOT,
    INTERNED,
    NEEDS_STATE,
    OWN_FIELD,
    PACKET,
    PACKET_DEFAULTS,
    SEQUENCE,
    SEQUENCE_FLAGS,
    TIMESTAMP,
    TIMESTAMP_CLOCK,
    TRACK_DESCRIPTOR,
    TRACK_EVENT,
)
from gpustreamlab.exchange._protobuf import LENGTH, LONGEST_VARINT, Bytes, Numbers, read_field, read_fields, tag
from gpustreamlab.typing import BoolArray, Int64Array

PACKET_BYTES = 256
"""What a packet takes while it is read, though it may be empty and packed to nothing."""
BLOCK_PACKETS = 1 << 16
"""Packets that are read at once."""
GPU_STAGE = 53
"""Field of a packet that holds work of a GPU."""
_LONGEST_RUN = 1 << 16
_PACKED_PACKETS = 50
THREAD_OLD = 44
"""Field of a packet that says which thread its sequence is of, in the old way."""
_CLEARED_OLD, _DROPPED, _PROCESS_OLD = 41, 42, 43
_SAID = (INTERNED, PACKET_DEFAULTS, CLOCK_SNAPSHOT, TRACK_DESCRIPTOR, THREAD_OLD, OWN_FIELD)
"""Fields that say something about later packets, or about the file."""
_HEADERS = frozenset(
    {3, TIMESTAMP, SEQUENCE, SEQUENCE_FLAGS, _CLEARED_OLD, _DROPPED, TIMESTAMP_CLOCK, 79, 87, 98, _PROCESS_OLD}
)
_KINDS = {
    1: "ftrace",
    2: "process trees",
    7: "system statistics",
    9: "process statistics",
    33: "configurations",
    35: "statistics",
}
"""Names of packets that are not read."""
_LOOK_BYTES, _ANYWHERE = 1 << 16, 1 << 40
_PACKET_TAG = PACKET << 3 | LENGTH


class Said(NamedTuple):
    """A packet that is read on its own."""

    packet: int
    fields: dict[int, tuple[int, int]]
    """Where its fields of `_SAID` begin and end."""


class Packets(NamedTuple):
    """The packets of a file, as columns."""

    data: Bytes
    """All bytes, unpacked, and `LONGEST_VARINT` more."""
    time: Numbers
    """In units of its clock."""
    has_time: BoolArray
    clock: Int64Array
    """Number of its clock, 0 where it says none."""
    sequence: Int64Array
    is_cleared: BoolArray
    """Whether what was said before in its sequence does not hold any more."""
    is_behind_loss: BoolArray
    """Whether packets before it are missing."""
    needs_state: BoolArray
    event: tuple[Int64Array, Int64Array]
    """Where an event begins and ends; an end of -1 where there is none."""
    gpu: tuple[Int64Array, Int64Array]
    """Likewise, work of a GPU."""
    said: list[Said]
    left_out: Counter[str]
    """How many packets were not read, by what they hold."""
    damaged: int
    """How many could not be read."""
    lost_bytes: int
    """Bytes at the end that are no whole packet."""
    is_cut: bool
    """Whether the file could not be unpacked to its end."""

    def __len__(self) -> int:
        return len(self.time)


def is_pftrace(head: bytes) -> bool:
    """Tell by its first bytes, unpacked, whether a file is a trace of Perfetto's.

    Examples
    --------
    >>> is_pftrace(bytes.fromhex("0a0408055001")), is_pftrace(b"name,start")
    (True, False)
    """
    start = head[:_LOOK_BYTES]
    padded = start + bytes(4 * LONGEST_VARINT)
    first, last, _ = _find(padded, len(padded))
    whole = last <= len(start)  # one that is cut by the end of what was read is filled with zeros
    first, last = first[whole], last[whole]
    if len(first):
        fields = read_fields(np.frombuffer(padded, np.uint8), first, last)
        return bool(len(fields.owner)) and not fields.is_damaged.any()
    # One packet that goes on behind what was read, as one with all names does.
    view = memoryview(padded)
    field = read_field(view, 0, _ANYWHERE)
    inner = field and read_field(view, field[3], _ANYWHERE)
    return bool(field and inner and field[:2] == (PACKET, LENGTH) and inner[0] in _HEADERS) and len(start) >= _LOOK_BYTES


def read_packets(path: str | PathLike[str]) -> Packets:
    """Find the packets of a file, packed by gzip or not; one that was cut off is read as far as it goes.

    Raises
    ------
    TraceFileError
        If it is too large, or holds no packet, or too many.
    """
    name = str(path)
    most_bytes = room_bytes()
    content, is_cut = _content(Path(path))
    first, last, lost_bytes = _find(content, most_bytes // PACKET_BYTES)
    unpacked = _unpack_packets(content, first, last, repr(name))
    if unpacked is not None:
        content = unpacked
        first, last, lost_bytes = _find(content, most_bytes // PACKET_BYTES)
    if not len(first):
        raise TraceFileError(
            f"{name!r} holds no packet of a trace of Perfetto's in {lost_bytes:,} bytes. It was cut off, is damaged, or "
            "another program wrote it."
        )
    require_room(len(first) * PACKET_BYTES, f"{name!r}, of {len(first):,} packets or more,", most_bytes)
    data = np.frombuffer(content, np.uint8)
    blocks, said, left_out = [], [], Counter[str]()
    with steps(-(-len(first) // BLOCK_PACKETS), "reading") as step:
        for begin in range(0, len(first), BLOCK_PACKETS):
            part = slice(begin, begin + BLOCK_PACKETS)
            block, told = _read_block(data, first[part], last[part], begin, left_out)
            blocks.append(block)
            said += told
            step("packets")
    parts = [*zip(*blocks, strict=True)]
    blocks.clear()
    columns = [np.concatenate(parts.pop(0)) for _ in range(len(parts))]  # never all of them twice
    time, has_time, clock, sequence, is_cleared, is_behind_loss, needs_state, *places, is_damaged = columns
    return Packets(
        *(data, time, has_time, clock, sequence, is_cleared, is_behind_loss, needs_state),
        event=(places[0], places[1]),
        gpu=(places[2], places[3]),
        said=said,
        left_out=left_out,
        damaged=int(is_damaged.sum()),
        lost_bytes=lost_bytes,
        is_cut=is_cut,
    )


def _read_block(
    data: Bytes, first: Int64Array, last: Int64Array, begin: int, left_out: Counter[str]
) -> tuple[tuple[Any, ...], list[Said]]:
    """Return the columns of some packets, and what is read on its own."""
    fields = read_fields(data, first, last)
    flags = fields.numbers(SEQUENCE_FLAGS)
    has_time = np.zeros(len(first), bool)
    has_time[fields.owner[fields.rows(TIMESTAMP)]] = True
    block = (
        fields.numbers(TIMESTAMP),
        has_time,
        fields.numbers(TIMESTAMP_CLOCK).astype(np.int64),
        fields.numbers(SEQUENCE).astype(np.int64),
        (flags & np.uint64(CLEARED) > 0) | (fields.numbers(_CLEARED_OLD) > 0),
        fields.numbers(_DROPPED) > 0,
        flags & np.uint64(NEEDS_STATE) > 0,
        *fields.spans(TRACK_EVENT),
        *fields.spans(GPU_STAGE),
        fields.is_damaged,
    )
    found: dict[int, dict[int, tuple[int, int]]] = {}
    rows = np.flatnonzero(np.isin(fields.number, _SAID) & (fields.wire == LENGTH))
    columns = (fields.owner, fields.number, fields.first, fields.last)
    for owner, number, place, end in zip(*(column[rows].tolist() for column in columns), strict=True):
        found.setdefault(owner, {})[number] = place, end
    others = fields.number[~np.isin(fields.number, [*_SAID, *_HEADERS, TRACK_EVENT, GPU_STAGE])]
    for number, count in zip(*(part.tolist() for part in np.unique(others, return_counts=True)), strict=True):
        left_out[_KINDS.get(number, f"packets with field {number}")] += count
    return block, [Said(begin + owner, found[owner]) for owner in sorted(found)]


def _content(path: Path) -> tuple[bytearray, bool]:
    """Return all bytes, unpacked, with `LONGEST_VARINT` more, and whether they could not be unpacked to the end."""
    content, is_cut = bytearray(), False
    try:
        require_room(path.stat().st_size, repr(str(path)))
        with path.open("rb") as file:
            for part in unpacked(file):
                content += part
    except TraceFileError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        if not content:
            raise TraceFileError(f"{str(path)!r} cannot be read: {error}. Copy it again.") from error
        is_cut = True
    content += bytes(LONGEST_VARINT)
    return content, is_cut


def _find(content: bytes | bytearray, most_packets: int) -> tuple[Int64Array, Int64Array, int]:
    """Return where packets begin and end, and how many bytes at the end are no whole one; it stops where there are too many."""
    data, view = np.frombuffer(content, np.uint8), memoryview(content)
    first, last = array("q"), array("q")
    at, stop, size, most = 0, len(content) - LONGEST_VARINT, -1, 0
    while at < stop and len(first) <= most_packets:
        if content[at] == _PACKET_TAG and content[at + 1] < 0x80:
            begin = at + 2
            end = begin + content[at + 1]
        elif field := read_field(view, at, stop):
            number, wire, _, begin, end = field
            if (number, wire) != (PACKET, LENGTH):
                at = end
                continue
        else:
            break
        if end > stop:
            break
        first.append(begin)
        last.append(end)
        # Many packets of one size stand in a row: where one ends the next one begins.
        most = min(2 * most, _LONGEST_RUN) if end - at == size else 4
        size, head = end - at, begin - at
        if most > 4:
            count = _run_length(data[at : min(stop, end + most * size)], head, size)
            first.extend(range(begin + size, begin + size * (count + 1), size))
            last.extend(range(end + size, end + size * (count + 1), size))
            end += count * size
        at = end
    return np.frombuffer(first, np.int64), np.frombuffer(last, np.int64), stop - at


def _run_length(data: Bytes, head: int, size: int) -> int:
    """Return how many packets behind the first one are as long as that."""
    rows = data[: len(data) // size * size].reshape(-1, size)[:, :head]
    differs = (rows != rows[0]).any(axis=1)
    return int(differs.argmax()) - 1 if differs.any() else len(rows) - 1


def _unpack_packets(content: bytearray, first: Int64Array, last: Int64Array, shown: str) -> bytearray | None:
    """Return the bytes with packed packets as those that are in them; None where there are none.

    Raises
    ------
    TraceFileError
        If they are too large.
    """
    front, data = np.frombuffer(tag(_PACKED_PACKETS, LENGTH), np.uint8), np.frombuffer(content, np.uint8)
    packed = np.flatnonzero((data[first] == front[0]) & (data[first + 1] == front[1]) & (last > first))
    if not len(packed):
        return None
    parts, done, most_bytes, view = bytearray(), 0, room_bytes(), memoryview(content)
    for row in packed.tolist():
        unpacker = zlib.decompressobj()
        field = read_field(view, int(first[row]), int(last[row]))
        try:
            inner = unpacker.decompress(view[field[3] : field[4]], most_bytes + 1 - len(parts)) if field else b""
        except zlib.error:
            continue  # it stays, and counts as not read
        parts += view[done : int(last[row - 1]) if row else 0]
        parts += inner
        require_room(len(parts), shown, most_bytes)
        done = int(last[row])
    parts += view[done:]
    return parts
