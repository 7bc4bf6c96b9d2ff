"""The memory that a pool keeps for one stream: what is in use, and what was freed and stays reserved."""

from __future__ import annotations

from bisect import bisect_left, insort

BLOCK_BYTES = 512
"""Sizes are rounded up to it. Source: CuPy's memory pool."""


class Chunk:
    """A piece of memory. Pieces that were split off one another know their neighbours, to be joined again."""

    __slots__ = ("after", "arena", "before", "is_free", "offset", "size_bytes")

    def __init__(self, arena: StreamArena, offset: int, size_bytes: int) -> None:
        self.arena = arena
        self.offset = offset
        """Its place in the arena: bytes in front of it."""
        self.size_bytes = size_bytes
        self.is_free = False
        self.before: Chunk | None = None
        self.after: Chunk | None = None


class StreamArena:
    """Gives out the smallest free piece that is large enough, cut to size; joins free neighbours. It never returns any.

    Source: CuPy's ``SingleDeviceMemoryPool``, which has one arena for each stream.

    Examples
    --------
    >>> arena = StreamArena()
    >>> first = arena.allocate(1_000)
    >>> arena.free(first)
    >>> arena.used_bytes, arena.reserved_bytes
    (0, 1024)
    >>> arena.allocate(10).size_bytes, arena.reserved_bytes  # out of what was freed
    (512, 1024)
    """

    __slots__ = ("_free", "_sizes", "reserved_bytes", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0
        """What arrays hold."""
        self.reserved_bytes = 0
        """What the pool holds: used and free."""
        self._free: dict[int, dict[Chunk, None]] = {}
        self._sizes: list[int] = []

    def allocate(self, size_bytes: int) -> Chunk:
        """Give out a piece, of what is free or newly reserved."""
        size_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        place = bisect_left(self._sizes, size_bytes)
        if place == len(self._sizes):
            chunk = Chunk(self, self.reserved_bytes, size_bytes)  # it never returns any, so nothing lies there yet
            self.reserved_bytes += size_bytes
        else:
            chunk = next(reversed(self._free[self._sizes[place]]))
            self._take(chunk)
            if chunk.size_bytes > size_bytes:
                self._split(chunk, size_bytes)
        self.used_bytes += size_bytes
        return chunk

    def free(self, chunk: Chunk) -> None:
        """Take a piece back; it stays reserved."""
        self.used_bytes -= chunk.size_bytes
        before, after = chunk.before, chunk.after
        if after is not None and after.is_free:
            self._take(after)
            _join(chunk, after)
        if before is not None and before.is_free:
            self._take(before)
            _join(before, chunk)
            chunk = before
        self._put(chunk)

    def _split(self, chunk: Chunk, size_bytes: int) -> None:
        rest = Chunk(self, chunk.offset + size_bytes, chunk.size_bytes - size_bytes)
        chunk.size_bytes = size_bytes
        rest.before, rest.after = chunk, chunk.after
        if rest.after is not None:
            rest.after.before = rest
        chunk.after = rest
        self._put(rest)

    def _put(self, chunk: Chunk) -> None:
        chunk.is_free = True
        same = self._free.get(chunk.size_bytes)
        if same is None:
            same = self._free[chunk.size_bytes] = {}
            insort(self._sizes, chunk.size_bytes)
        same[chunk] = None

    def _take(self, chunk: Chunk) -> None:
        chunk.is_free = False
        same = self._free[chunk.size_bytes]
        del same[chunk]
        if not same:
            del self._free[chunk.size_bytes]
            del self._sizes[bisect_left(self._sizes, chunk.size_bytes)]


def _join(chunk: Chunk, after: Chunk) -> None:
    """Let a piece take in the one behind it."""
    chunk.size_bytes += after.size_bytes
    chunk.after = after.after
    if chunk.after is not None:
        chunk.after.before = chunk
