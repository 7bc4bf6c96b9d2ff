"""Rows of a report as columns: which of them make sense, which process they are of, and which are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._nsys_pages import NO_NUMBER
from gpustreamlab.record import RowFinder
from gpustreamlab.typing import BoolArray, Int64Array

MOST_LANES = 4_096
"""Most processes of a report, and most of their streams and threads."""

_LARGEST_TIME_NS = 1 << 61
_CALL_BITS = 32
_PROCESS_MASK = -(1 << 24)
"""What a thread's global number has in common with its process's."""

Columns: TypeAlias = dict[str, Int64Array]


def timed(rows: Columns) -> tuple[Columns, int]:
    """Return the rows whose times make sense, and how many others there are."""
    start_ns, end_ns = rows["start"], rows["end"]
    is_good = (start_ns > -_LARGEST_TIME_NS) & (end_ns < _LARGEST_TIME_NS) & (start_ns <= end_ns)
    return chosen(rows, is_good), len(is_good) - int(np.count_nonzero(is_good))


def chosen(rows: Columns, which: BoolArray) -> Columns:
    """Return some of the rows."""
    return rows if which.all() else {name: values[which] for name, values in rows.items()}


def at_least(values: Int64Array, least: int = 0, below: int = 1 << 40) -> Int64Array:
    """Return the numbers, with `least` for those that are none, or beyond all reason."""
    if not len(values) or (values.min() >= least and values.max() < below):
        return values
    found: Int64Array = np.where((values >= least) & (values < below), values, least)
    return found


class Processes:
    """The processes of a report, by the numbers that nsys gives to them.

    Parameters
    ----------
    numbers
        Those of all rows.
    name
        How messages call the file.
    """

    def __init__(self, numbers: Iterable[Int64Array], name: str) -> None:
        self._known = np.unique(np.concatenate([distinct(some & _PROCESS_MASK)[0] for some in numbers]))
        self._name = name
        self.require_few(len(self._known), "processes")

    def require_few(self, count: int, what: str) -> None:
        """Raise an error where there are more of something than lanes can show."""
        if count > MOST_LANES:
            raise TraceFileError(
                f"{self._name!r} has {count:,} {what}; {MOST_LANES:,} are read. Profile for a shorter time: "
                "nsys profile --duration=10."
            )

    def codes(self, numbers: Int64Array) -> Int64Array:
        """Return the code of each process, or of each thread's; -1 for one that is not known."""
        return RowFinder(self._known).rows_of(numbers & _PROCESS_MASK)

    def calls(self, codes: Int64Array, correlation: Int64Array) -> Int64Array:
        """Return numbers of calls that no two processes share; 0 for none. Those of the first stay as they are."""
        is_there = (correlation > 0) & (correlation < 1 << _CALL_BITS) & (codes >= 0)
        found: Int64Array = np.where(is_there, correlation + (codes << _CALL_BITS), 0)
        return found

    def pids(self) -> list[int]:
        """Return the number that the system gave to each."""
        return [number >> 24 & 0xFF_FFFF for number in self._known.tolist()]


def alike(columns: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the first of each sort of rows that are equal in all columns, as they come, and the sort of each row.

    Examples
    --------
    >>> first, sort = alike([np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5])])
    >>> first.tolist(), sort.tolist()
    ([0, 1, 2], [0, 1, 2, 0])
    """
    import pandas as pd  # slow to load

    sorts = pd.DataFrame(dict(enumerate(columns))).groupby([*range(len(columns))], sort=False)
    sort = sorts.ngroup().to_numpy(np.int64)
    return np.flatnonzero(np.diff(np.maximum.accumulate(sort), prepend=-1)), sort


def or_else(values: Int64Array, other: int) -> Int64Array:
    """Return the numbers, with another one where there is none."""
    if not len(values) or values.min() != NO_NUMBER:
        return values
    found: Int64Array = np.where(values == NO_NUMBER, other, values)
    return found


def joined(parts: Sequence[Columns]) -> Columns:
    """Return rows behind each other."""
    some = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    return some[0] if len(some) == 1 else {name: np.concatenate([part[name] for part in some]) for name in some[0]}
