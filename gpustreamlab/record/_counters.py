"""Samples of quantities of lanes, thinned and bounded."""

from __future__ import annotations

import numpy as np

from gpustreamlab.model import Counters
from gpustreamlab.record._buffer import RowRing
from gpustreamlab.record._names import OTHER_NAMES, CodeTable
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array

KEPT_SAMPLES = 262_144
"""Samples that are kept for the trace; the newest count."""
SAMPLE_EVERY_NS = 1_000_000
"""Of the samples of one lane and counter within a millisecond the first and the last one count, and the highest where that is
higher: without the first, memory would be unknown while the first work runs."""
COUNTER_NAMES = 64
"""Different counters told apart."""

NO_SAMPLES = Counters()
_COLUMNS = ("time_ns", "lane", "name", "value")


class CounterLog:
    """The newest samples of all lanes.

    Parameters
    ----------
    limit
        How many are kept.
    """

    def __init__(self, limit: int = KEPT_SAMPLES) -> None:
        self._log = RowRing(limit, _COLUMNS)
        self._last = np.empty((4, 0), np.int64)  # of each lane and counter's last millisecond: later ones may take their place
        self._names: CodeTable[str] = CodeTable(COUNTER_NAMES, OTHER_NAMES)
        self._told_count = 0

    @property
    def cursor(self) -> tuple[int, int]:
        """Samples so far that no later one replaces, and how often samples were told of."""
        return self._log.appended_count, self._told_count

    def code(self, name: str) -> int:
        """Return the code of a counter."""
        return self._names.code(name)

    def append(self, time_ns: Int64Array, lane: Int64Array, name: Int64Array, value: FloatArray) -> None:
        """Take samples, in any order."""
        self._told_count += 1
        fresh = np.stack((time_ns, lane, name, np.asarray(value, np.float64).view(np.int64)))
        rows = np.concatenate((self._last, fresh), axis=1)
        # Stable: of two samples at one time the later one told of counts.
        rows = rows[:, np.lexsort((rows[0], rows[2], rows[1]))]
        counts = samples_that_count(rows[0], rows[1], rows[2], rows[3].view(np.float64))
        is_other = (np.diff(rows[1:3], axis=1) != 0).any(axis=0)
        ends = np.flatnonzero(np.append(is_other, True))
        millisecond = rows[0] // SAMPLE_EVERY_NS
        series = np.append(0, np.cumsum(is_other))
        is_last = millisecond == millisecond[ends][series]
        self._last = rows[:, counts & is_last]
        self._keep(rows[:, counts & ~is_last])

    def settle(self) -> None:
        """Let no later sample take the place of one that is there."""
        self._keep(self._last)
        self._last = self._last[:, :0]

    def clear(self) -> None:
        """Forget all samples."""
        self._log.clear()
        self._last = self._last[:, :0]

    def counters(self, cursor: tuple[int, int] = (0, 0)) -> Counters:
        """Return the samples since a cursor, in order of time; the newest of each quantity come again with the next ones."""
        if cursor[1] == self._told_count:
            return NO_SAMPLES
        columns = self._log.read(cursor[0]).columns
        rows = np.concatenate((np.stack([columns[name] for name in _COLUMNS]), self._last), axis=1)
        time_ns, lane, name, value = rows[:, np.argsort(rows[0], kind="stable")]
        return Counters(
            time_ns=time_ns,
            lane=lane.astype(np.int32),
            name=name.astype(np.int32),
            value=np.ascontiguousarray(value).view(np.float64),
            names=self._names.all,
        )

    def _keep(self, rows: Int64Array) -> None:
        rows = rows[:, np.argsort(rows[0], kind="stable")]
        self._log.append(dict(zip(_COLUMNS, rows, strict=True)))


def samples_that_count(time_ns: Int64Array, lane: Int64Array, name: Int64Array, value: FloatArray) -> BoolArray:
    """Tell which samples are kept: in each millisecond the first and last of a lane and counter, and the highest if higher.

    Parameters
    ----------
    time_ns, lane, name, value
        Ordered by lane, counter and time; shape (n,) each, one at least.

    Examples
    --------
    >>> one = np.zeros(5, np.int64)
    >>> samples_that_count(np.arange(5), one, one, np.array([1.0, 5.0, 5.0, 3.0, 2.0])).tolist()
    [True, True, False, False, True]
    """
    is_end = np.append((np.diff(np.stack((lane, name, time_ns // SAMPLE_EVERY_NS)), axis=1) != 0).any(axis=0), True)
    ends = np.flatnonzero(is_end)
    group = np.append(0, np.cumsum(is_end[:-1]))
    height = np.where(np.isnan(value), -np.inf, value)
    order = np.lexsort((-height, group))  # stable: the first of equally high ones
    tops = order[np.append(True, np.diff(group[order]) != 0)]
    counts: BoolArray = is_end.copy()
    starts = np.append(0, ends[:-1] + 1)
    counts[starts[time_ns[starts] != time_ns[ends]]] = True  # what comes again counts once
    counts[tops[height[tops] > height[ends]]] = True
    return counts
