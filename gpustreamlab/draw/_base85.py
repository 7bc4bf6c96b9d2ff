"""Bytes as plain letters within a page: five letters for four bytes, where base64 takes six letters for four and a half."""

from __future__ import annotations

import numpy as np

ALPHABET = "".join(sign for sign in map(chr, range(33, 127)) if sign not in "\"%&'-<>\\`")
"""The 85 letters: none ends a script, an attribute or a comment, or has to be escaped in one."""

_LETTERS = np.frombuffer(ALPHABET.encode(), np.uint8)
_PIECE_BYTES = 1 << 16  # what the processor's cache holds, with all that is computed from it
_PAIRS = np.stack((np.repeat(_LETTERS, 85), np.tile(_LETTERS, 85)), axis=1)


def to_base85(data: bytes) -> str:
    """Write bytes as letters; the last group of n bytes has n + 1 letters.

    Examples
    --------
    >>> to_base85(b""), len(to_base85(b"12345")), to_base85(bytes(4))
    ('', 7, '!!!!!')
    """
    missing = -len(data) % 4
    padded = data + bytes(missing)
    parts = [_write_words(padded[first : first + _PIECE_BYTES]) for first in range(0, len(padded), _PIECE_BYTES)]
    return b"".join(parts)[: 5 * len(padded) // 4 - missing].decode("ascii")


def _write_words(data: bytes) -> bytes:
    words = np.frombuffer(data, ">u4").astype(np.uint32)
    # Two letters at a time: two divisions instead of four.
    high = words // 7225
    top = high // 7225
    letters = np.empty((len(words), 5), np.uint8)
    letters[:, 0] = _LETTERS[top]
    letters[:, 1:3] = _PAIRS[high - top * 7225]
    letters[:, 3:5] = _PAIRS[words - high * 7225]
    return letters.tobytes()
