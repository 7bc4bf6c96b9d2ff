"""The packets of Perfetto's traces: where they are in a file, and the one that holds a trace of ours."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab._util.shell import steps
from gpustreamlab._util.words import install_line
from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange._formats import unpacked

CLEARED, NEEDS_STATE = 1, 2
"""Flags of a packet: what its sequence interned before does not hold any more; it needs what was interned."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of track events."""
PACKET_BYTES = 256
"""What a packet takes while it is read, though it may be empty and packed to nothing."""
_FRAME = re.compile(rb"\n([\x80-\xff]{0,9}[\0-\x7f])")
"""What stands in front of each packet: its tag, and its size as a varint."""
_OWN_HEAD = bytes.fromhex("50016801f2940e")
"""How a packet of ours begins: sequence 1, cleared, and field 29,022, which Perfetto has not and skips: a Parquet file."""
_VARINT_BYTES, _LONGEST_FRAME = 5, 11
_LOOK_BYTES = 1 << 16
_STEP_BYTES = 1 << 20
"""After so many bytes progress is shown."""


def load_messages() -> Any:
    """Return Perfetto's module of messages."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise MissingExtraError(
            "Perfetto's files are read and written by its package perfetto, which is not installed. "
            f"Install it with: {install_line('perfetto')} - or save as .json.gz, which Perfetto opens, too."
        ) from error
    return perfetto_trace_pb2


def is_pftrace(head: bytes) -> bool:
    """Tell by its first bytes, unpacked, whether a file is a trace of Perfetto's."""
    start = head[:_LOOK_BYTES]
    found = list(_frames(start))
    if not found or start.isspace():
        return False
    (_, first_end), (_, last_end) = found[0], found[-1]
    is_first_seen = first_end <= len(start) or len(start) == _LOOK_BYTES
    return is_first_seen and len(start) - last_end <= _LONGEST_FRAME and last_end > 2 * len(found)  # not all are empty


def own_packet(data: bytes) -> bytes:
    """Return the packet that holds a trace of ours, a Parquet file."""
    front = _OWN_HEAD + _varint(len(data))
    return b"\n" + _varint(len(front) + len(data)) + front + data


class Packets:
    """The packets of a file, packed by gzip or not; one that was cut off is read as far as it goes."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = str(path)
        self.left_out = Counter[str]()
        """How many packets and events were not read, by what they are."""
        self.count = self.damaged_count = self.lost_bytes = self._inflated_bytes = 0
        self.is_cut = False
        """Whether the file could not be unpacked to its end."""
        self._most_bytes = room_bytes()
        self._content = self._read(Path(path))

    def own(self) -> bytes | None:
        """Return the trace that a file of ours holds; None for files of others, and for several of ours in one."""
        if self._content.count(_OWN_HEAD) != 1:
            return None
        begin = self._content.index(_OWN_HEAD) + len(_OWN_HEAD)
        data = begin + _VARINT_BYTES
        return self._content[data : data + _size(self._content[begin:data])]

    def __iter__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what each packet holds, and its message; those that are packed are unpacked."""
        shown = 0
        with steps(len(self._content) // _STEP_BYTES, "reading") as step:
            for end, data, packet in self._parsed(self._content):
                if data == "compressed_packets":
                    yield from (inner[1:] for inner in self._parsed(self._inflated(packet.compressed_packets)))
                else:
                    yield data, packet
                while shown < end // _STEP_BYTES:
                    shown += 1
                    step("packets")

    def _parsed(self, content: bytes) -> Iterator[tuple[int, str | None, Any]]:
        """Yield where each packet of some bytes ends, what it holds, and its message."""
        parse, done = load_messages().TracePacket.FromString, 0
        from google.protobuf.message import DecodeError

        for begin, end in _frames(content):
            if end > len(content):
                break
            done = end
            self.count += 1
            if self.count * PACKET_BYTES > self._most_bytes:
                require_room(self.count * PACKET_BYTES, f"{self.path!r}, of {self.count:,} packets or more,", self._most_bytes)
            try:
                packet = parse(content[begin:end])
            except DecodeError:
                self.damaged_count += 1
            else:
                yield end, packet.WhichOneof("data"), packet
        self.lost_bytes += len(content) - done

    def _inflated(self, packed: bytes) -> bytes:
        """Return packets that are packed within a packet; nothing where that is damaged."""
        try:
            content = zlib.decompressobj().decompress(packed, self._most_bytes + 1)
        except zlib.error:
            self.left_out["damaged packed packets"] += 1
            return b""
        self._inflated_bytes += len(content)
        require_room(self._inflated_bytes, repr(self.path), self._most_bytes)
        return content

    def _read(self, path: Path) -> bytes:
        parts: list[bytes] = []
        try:
            require_room(path.stat().st_size, repr(self.path))
            with path.open("rb") as file:
                parts.extend(unpacked(file))
        except TraceFileError:
            raise
        except (OSError, EOFError, zlib.error) as error:
            if not parts:
                raise TraceFileError(f"{self.path!r} cannot be read: {error}. Copy it again.") from error
            self.is_cut = True
        return b"".join(parts)


def _frames(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each packet begins and ends; the last one may end behind the bytes."""
    end = 0
    while found := _FRAME.match(content, end):
        begin, varint = found.end(), found[1]
        end = begin + (varint[0] if len(varint) == 1 else _size(varint))
        yield begin, end


def _size(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


def _varint(value: int) -> bytes:
    """Return a size in `_VARINT_BYTES`, more than it may need."""
    return bytes(value >> 7 * place & 0x7F | (0x80 if place < _VARINT_BYTES - 1 else 0) for place in range(_VARINT_BYTES))
