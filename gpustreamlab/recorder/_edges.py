"""Which range waited for which, where a lane was told to wait for another."""

from __future__ import annotations

from collections import deque
from itertools import islice

from gpustreamlab.recorder._ranges import RecordedLane

KEPT_EDGES = 256
"""Edges kept that wait for the next range of a lane; the newest count."""


class RangeEdges:
    """Pairs of range numbers, of which the second waited for the first. Who uses them holds the recorder's lock.

    Parameters
    ----------
    limit
        How many are kept; the newest count.
    """

    def __init__(self, limit: int) -> None:
        self._pairs: deque[tuple[int, int]] = deque(maxlen=limit)
        self._count = 0

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """Those that are kept."""
        return tuple(self._pairs)

    def add(self, source_number: int, target_number: int) -> None:
        """Note that an open range waits for an earlier range."""
        self._count += 1
        self._pairs.append((source_number, target_number))

    def begin(self, source_number: int, target: RecordedLane) -> None:
        """Note that the next range of a lane waits for an earlier range."""
        target.incoming.append(source_number)
        del target.incoming[:-KEPT_EDGES]

    def end(self, lane: RecordedLane, number: int) -> None:
        """Let those that wait for a lane's next range end at it."""
        incoming, lane.incoming = lane.incoming, []
        for source in incoming:
            self.add(source, number)

    def since(self, cursor: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return those that came since a cursor, and the next cursor."""
        fresh = min(self._count - cursor, len(self._pairs))
        return tuple(islice(self._pairs, len(self._pairs) - fresh, None)), self._count

    def clear(self) -> None:
        """Forget them; cursors go on."""
        self._pairs.clear()
