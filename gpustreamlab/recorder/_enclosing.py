"""Which range a thread had open at a moment, whether that range is still open, waits for the device, or has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpustreamlab.recorder._column_log import ColumnLog
from gpustreamlab.recorder._extents import NEVER
from gpustreamlab.recorder._intervals import Intervals, find_innermost
from gpustreamlab.recorder._ranges import FinishedRange, RecordedLane, ThreadState
from gpustreamlab.typing import Int64Array

CLOSED_RANGES = 262_144
"""Closed ranges that launches are looked up in, beside those that still wait for the device; the newest count."""

_COLUMNS = ("thread", "opened_host_ns", "closed_host_ns", "number")


class ClosedRanges:
    """The ranges that have left the threads that closed them, kept while kernels are captured.

    Parameters
    ----------
    limit
        How many are kept.
    """

    def __init__(self, limit: int = CLOSED_RANGES) -> None:
        self._log = ColumnLog(_COLUMNS, limit)

    def __len__(self) -> int:
        return len(self._log)

    def append(self, rows: Sequence[FinishedRange], thread: int) -> None:
        """Keep ranges that a thread has closed."""
        self._log.append(dict(zip(_COLUMNS, _columns_of(rows, thread), strict=True)))

    def intervals(self, first_ns: int, last_ns: int) -> Int64Array:
        """Return those that were open at some time in between: thread, opening, closing, number; shape (4, n)."""
        columns = self._log.read()
        is_near = (columns["closed_host_ns"] > first_ns) & (columns["opened_host_ns"] <= last_ns)
        return np.stack([columns[name][is_near] for name in _COLUMNS])


def find_enclosing_ranges(
    closed: ClosedRanges,
    states: Iterable[ThreadState],
    lanes: Sequence[RecordedLane],
    thread: Int64Array,
    at_host_ns: Int64Array,
) -> Int64Array:
    """Return the number of the innermost range that each thread had open at each moment of the host, or -1.

    Who calls holds the recorder's lock, so that no range goes from those that wait to the closed ones meanwhile.

    Parameters
    ----------
    closed
        Ranges that have ended.
    states
        What is open in the threads that live.
    lanes
        Where closed ranges wait for the device.
    thread
        Shape (n,), int64: as activities number threads.
    at_host_ns
        Shape (n,), int64.
    """
    if not len(at_host_ns):
        return np.empty(0, np.int64)
    # A range goes from the open ones to the waiting ones without a lock: looked for in this order it is seen in one of them.
    opened = [_open_in(state) for state in states]
    waiting = [
        _columns_of(tuple(writer.finished), writer.ident) for lane in lanes for writer in tuple(lane.writers) if writer.finished
    ]
    ended = closed.intervals(int(at_host_ns.min()), int(at_host_ns.max()))
    whole = np.concatenate((*opened, *waiting, ended), axis=1)
    # Seen in two places, it counts as closed.
    whole = whole[:, np.lexsort((whole[2], whole[3]))]
    whole = whole[:, np.diff(whole[3], prepend=-2) > 0]
    found = find_innermost(Intervals(*whole), thread, at_host_ns)
    return np.where(found >= 0, whole[3][found], -1) if whole.shape[1] else found


def _columns_of(rows: Sequence[FinishedRange], thread: int) -> Int64Array:
    _, _, opened, numbers, _, closed = zip(*rows, strict=True)
    return np.array([[thread] * len(rows), opened, closed, numbers], np.int64)


def _open_in(state: ThreadState) -> Int64Array:
    entries = [entry for entry in tuple(state.open_ranges) if entry[3] is not None]
    rows = [(state.ident, queued_host_ns, NEVER, number) for _, queued_host_ns, number, _ in entries]
    return np.array(rows, np.int64).reshape(-1, 4).T
