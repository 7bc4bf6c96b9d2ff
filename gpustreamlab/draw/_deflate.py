"""Deflate columns of bytes on two threads, each piece in the way that pays for it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

PIECE_BYTES = 1 << 18
"""How many bytes one thread takes at a time."""

SAMPLE_BYTES = 1 << 14
"""How many bytes of a piece are tried."""

STORED_GAIN = 0.98
"""A piece that does not get smaller than this share of its size is stored as it is."""

MATCHED_GAIN = 0.97
"""Looking for repetitions pays if it makes a piece smaller than this share of what the letters' frequencies alone do."""


def deflate(chunks: Sequence[bytes], level: int) -> bytes:
    """Deflate bytes into one raw stream (RFC 1951).

    Pieces are independent and end on a byte, so that joining them gives one stream. The low bytes of times are noise: they are
    stored. Those above are uneven but do not repeat: Huffman codes alone are as small as a search for repetitions, and faster.

    Parameters
    ----------
    chunks
        The bytes. What is alike, such as one byte of all values of a column, should be one chunk.
    level
        How hard to look for repetitions where that pays, 1 to 9.

    Examples
    --------
    >>> zlib.decompress(deflate([b"abc" * 1000, b"x"], 6), wbits=-15) == b"abc" * 1000 + b"x"
    True
    """
    pieces = [chunk[at : at + PIECE_BYTES] for chunk in chunks for at in range(0, len(chunk), PIECE_BYTES)]
    with ThreadPoolExecutor(2) as pool:
        packed = list(pool.map(lambda piece: _deflate_piece(piece, level), pieces))
    return b"".join((*packed, zlib.compressobj(level, zlib.DEFLATED, -15).flush()))


def _deflate_piece(piece: bytes, level: int) -> bytes:
    middle = max(0, len(piece) - SAMPLE_BYTES) // 2
    sample = piece[middle : middle + SAMPLE_BYTES]
    coded = len(_run(sample, level, zlib.Z_HUFFMAN_ONLY))
    matched = len(_run(sample, level, zlib.Z_DEFAULT_STRATEGY))
    if min(coded, matched) > STORED_GAIN * len(sample):
        return _run(piece, 0, zlib.Z_DEFAULT_STRATEGY)
    if matched > MATCHED_GAIN * coded:
        return _run(piece, level, zlib.Z_HUFFMAN_ONLY)
    return _run(piece, level, zlib.Z_DEFAULT_STRATEGY)


def _run(data: bytes, level: int, strategy: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)
