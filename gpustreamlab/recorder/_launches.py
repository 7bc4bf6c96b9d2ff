"""The calls of the host that enqueued work, found again by the work's correlation."""

from __future__ import annotations

import numpy as np

from gpustreamlab.typing import Int64Array

KEPT_LAUNCHES = 262_144
"""Calls that late work is looked up in; the newest count. A stream holds about a thousand launches that have not ended."""


class Launches:
    """The newest calls, by correlation. One call may have enqueued much work: a graph.

    Parameters
    ----------
    limit
        How many are kept.
    """

    def __init__(self, limit: int = KEPT_LAUNCHES) -> None:
        self._limit = limit
        # Correlation, start, thread's code, number of the range, start on the host's clock; by correlation.
        self._rows = np.empty((5, 0), np.int64)

    def __len__(self) -> int:
        return self._rows.shape[1]

    def add(
        self,
        correlation: Int64Array,
        start_ns: Int64Array,
        thread: Int64Array,
        parent: Int64Array,
        start_host_ns: Int64Array,
    ) -> None:
        """Take more calls; `trim` forgets the oldest."""
        rows = np.concatenate((self._rows, np.stack((correlation, start_ns, thread, parent, start_host_ns))), axis=1)
        self._rows = rows[:, np.argsort(rows[0], kind="stable")]

    def find(self, correlation: Int64Array) -> Int64Array:
        """Return the row of each call, or -1; for `take`. Of two calls of one number the later one counts."""
        known = self._rows[0]
        if not len(known):
            return np.full(len(correlation), -1, np.int64)
        at = np.maximum(np.searchsorted(known, correlation, side="right") - 1, 0)
        return np.where((known[at] == correlation) & (correlation != 0), at, -1)

    def take(self, row: Int64Array) -> Int64Array:
        """Return start, thread's code, range's number and start on the host's clock; -1 each for row -1; shape (4, n)."""
        if not len(self):
            return np.full((4, len(row)), -1, np.int64)
        return np.where(row >= 0, self._rows[1:, row], -1)

    def trim(self) -> None:
        """Forget the oldest calls beyond the limit."""
        if len(self) > self._limit:
            newest = np.argpartition(self._rows[1], -self._limit)[-self._limit :]
            self._rows = self._rows[:, np.sort(newest)]

    def clear(self) -> None:
        """Forget all calls: the numbers of those to come may begin anew."""
        self._rows = self._rows[:, :0]
