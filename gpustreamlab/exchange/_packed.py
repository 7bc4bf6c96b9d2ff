"""Files that are packed by gzip, or not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from gpustreamlab._util.host import require_room, room_bytes

GZIP = b"\x1f\x8b"
"""How a packed file begins."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PACKED_BYTES = 16 << 10


def unpacked(file: BinaryIO, part_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Yield what a file holds, in parts, unpacked where it is packed by gzip, and as far as it can be.

    Raises
    ------
    EOFError, zlib.error
        Behind the last part, where what is packed was cut off or is damaged.
    TraceFileError
        If it unpacks to more than there is room for.
    """
    if file.read(2) != GZIP:
        file.seek(0)
        while part := file.read(part_bytes):
            yield part
        return
    file.seek(0)
    packed, unpacker = file.read(_PACKED_BYTES), zlib.decompressobj(31)
    done_bytes, most_bytes = 0, room_bytes()
    while packed:
        before = unpacker.copy()
        try:
            part = unpacker.decompress(packed, part_bytes)
        except zlib.error:  # somewhere in it, and raised there again
            yield from (before.decompress(packed[place : place + 1]) for place in range(len(packed)))
            raise
        done_bytes += len(part)
        require_room(done_bytes, repr(str(file.name)), most_bytes)
        yield part
        packed = unpacker.unconsumed_tail
        if unpacker.eof:  # another packed file may follow, or zeros
            packed = (unpacker.unused_data or file.read(_PACKED_BYTES)).lstrip(b"\0")
            unpacker = zlib.decompressobj(31)
            if not packed:
                return
        packed = packed or file.read(_PACKED_BYTES)
    raise EOFError("it ends early")
