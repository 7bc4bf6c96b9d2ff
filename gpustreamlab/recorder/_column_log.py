"""The newest rows of a table, as columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from gpustreamlab.typing import Int64Array

_MANY_BLOCKS = 256


class ColumnLog:
    """Rows that are appended in blocks and read together; the oldest make room.

    Parameters
    ----------
    names
        Of the columns, int64 each.
    limit
        How many rows are kept: ``limit * 8 * len(names)`` bytes, and up to twice that while a block is appended.

    Examples
    --------
    >>> log = ColumnLog(("time_ns",), limit=2)
    >>> log.append({"time_ns": np.arange(5)})
    >>> log.read()["time_ns"].tolist(), log.appended_count
    ([3, 4], 5)
    """

    def __init__(self, names: Sequence[str], limit: int) -> None:
        self._names = tuple(names)
        self._limit = limit
        self._blocks: deque[Int64Array] = deque()
        self.appended_count = 0
        """Rows so far, those that are gone too."""
        self._held_count = 0

    def __len__(self) -> int:
        return self._held_count

    def append(self, columns: Mapping[str, Int64Array]) -> None:
        """Append rows, given as equally long columns."""
        block = np.stack([columns[name] for name in self._names])[:, -self._limit :]
        if not block.size:
            return
        self.appended_count += len(columns[self._names[0]])
        self._blocks.append(block)
        self._held_count += block.shape[1]
        if self._held_count > self._limit or len(self._blocks) > _MANY_BLOCKS:
            self._compact()

    def read(self, cursor: int = 0) -> dict[str, Int64Array]:
        """Return the rows that were appended since a cursor and are still there; the next cursor is `appended_count`."""
        wanted = min(self._held_count, self.appended_count - cursor)
        if len(self._blocks) > 1:
            self._compact()
        block = self._blocks[0] if self._blocks else np.empty((len(self._names), 0), np.int64)
        return dict(zip(self._names, block[:, block.shape[1] - wanted :], strict=True))

    def clear(self) -> None:
        """Forget every row; cursors go on."""
        self._blocks.clear()
        self._held_count = 0

    def _compact(self) -> None:
        whole = np.concatenate(tuple(self._blocks), axis=1)[:, -self._limit :]
        self._blocks = deque((whole,))
        self._held_count = whole.shape[1]
