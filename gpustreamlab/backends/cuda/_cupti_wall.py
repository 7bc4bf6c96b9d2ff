"""The wall clock, in which CUPTI tells its times, and the host's monotonic clock."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpustreamlab.backends.cuda._cupti_clock import wall_minus_host_ns
from gpustreamlab.backends.cuda._cupti_constants import RecordKind
from gpustreamlab.backends.cuda._cupti_records import Columns, Records
from gpustreamlab.typing import BoolArray, Int64Array

_log = logging.getLogger(__name__)

KEPT_STRETCHES = 256
"""Stretches of equal distance between the two clocks that are remembered; what is older counts to the first one."""
SAME_NS = 2_000
"""Readings of the distance that differ by less are equal: that is how well it can be read."""
JUMP_NS = 50_000
"""A greater change of the distance is told in the log: somebody has set the wall clock."""
SLACK_NS = 1_000_000_000
"""How far a time may lie before the begin of the capture, or after now: CUPTI's own clock drifts by 10 ms an hour."""

_TIMES = ("start", "end", "timestamp")
_TIMED = (
    RecordKind.CONCURRENT_KERNEL,
    RecordKind.KERNEL,
    RecordKind.MEMCPY,
    RecordKind.MEMCPY2,
    RecordKind.MEMSET,
    RecordKind.DRIVER,
    RecordKind.RUNTIME,
    RecordKind.MARKER,
    RecordKind.MEMORY2,
)
"""Kinds whose times are used."""


class _Stretch(NamedTuple):
    """Between two readings of the host's clock the wall clock was ahead by so much."""

    first_host_ns: int
    last_host_ns: int
    ahead_ns: int


class WallClock:
    """Turns times of the wall clock into the host's, each by what held at its own time: the wall clock may be set meanwhile.

    Parameters
    ----------
    wall_time_ns, host_time_ns
        Read the two clocks.

    Notes
    -----
    Where the wall clock was set back, the times that it shows twice count as the later ones.
    """

    def __init__(self, wall_time_ns: Callable[[], int], host_time_ns: Callable[[], int]) -> None:
        self._wall_time_ns = wall_time_ns
        self._host_time_ns = host_time_ns
        self._stretches: deque[_Stretch] = deque(maxlen=KEPT_STRETCHES)
        self._least_ahead_ns = self._most_ahead_ns = 0
        self._begin_host_ns = 0
        self.look()

    def look(self) -> None:
        """Read how far the clocks are apart."""
        ahead_ns = wall_minus_host_ns(self._wall_time_ns, self._host_time_ns)
        now_ns = self._host_time_ns()
        if not self._stretches:
            self._least_ahead_ns = self._most_ahead_ns = ahead_ns
            self._begin_host_ns = now_ns
            self._stretches.append(_Stretch(now_ns, now_ns, ahead_ns))
            return
        last = self._stretches[-1]
        change_ns = ahead_ns - last.ahead_ns
        if abs(change_ns) < SAME_NS:
            self._stretches[-1] = last._replace(last_host_ns=now_ns)
            return
        if abs(change_ns) > JUMP_NS:
            _log.warning("The wall clock was set by %+.6f s; times of the host around that may be off by it", change_ns / 1e9)
        self._least_ahead_ns = min(self._least_ahead_ns, ahead_ns)
        self._most_ahead_ns = max(self._most_ahead_ns, ahead_ns)
        self._stretches.append(_Stretch(now_ns, now_ns, ahead_ns))

    def to_host_ns(self, wall_ns: Int64Array) -> Int64Array:
        """Put times of the wall clock on the host's clock; shape (n,), int64."""
        host_ns: Int64Array = wall_ns - self._stretches[0].ahead_ns
        for before, stretch in pairwise(self._stretches):
            is_later = wall_ns >= before.last_host_ns + stretch.ahead_ns
            if is_later.any():
                host_ns = np.where(is_later, wall_ns - stretch.ahead_ns, host_ns)
        return host_ns

    def to_wall_ns(self, host_ns: int) -> int:
        """Put a time of the host's clock on the wall clock."""
        held = next((stretch for stretch in reversed(self._stretches) if stretch.first_host_ns <= host_ns), self._stretches[0])
        return host_ns + held.ahead_ns

    def are_plausible(self, wall_ns: Int64Array) -> BoolArray:
        """Tell which times lie between the begin and now, within a second; shape (n,), bool."""
        first_ns = self._begin_host_ns + self._least_ahead_ns - SLACK_NS
        last_ns = self._host_time_ns() + self._most_ahead_ns + SLACK_NS
        found: BoolArray = (wall_ns >= first_ns) & (wall_ns <= last_ns)
        return found


def without_implausible(records: Records, wall: WallClock) -> tuple[Records, int]:
    """Leave out the records whose times cannot be: one of them would spoil the stated error of all. Also return how many.

    A kernel, copy or call with a time of zero is incomplete; that is for others to judge.
    """
    columns, refused_count = dict(records.columns), 0
    for kind in _TIMED:
        if kind not in columns:
            continue
        is_good = _have_plausible_times(columns[kind], wall, may_be_zero=kind not in {RecordKind.MARKER, RecordKind.MEMORY2})
        if is_good.all():
            continue
        refused_count += int((~is_good).sum())
        kept = {name: values[is_good] for name, values in columns.pop(kind).items()}
        if is_good.any():  # no kind is there without records
            columns[kind] = kept
    return (replace(records, columns=columns) if refused_count else records), refused_count


def _have_plausible_times(columns: Columns, wall: WallClock, *, may_be_zero: bool) -> BoolArray:
    is_good = np.ones(len(next(iter(columns.values()))), bool)
    for name in _TIMES:
        if name in columns:
            times = columns[name].astype(np.int64, copy=False)
            is_good &= wall.are_plausible(times) | ((times == 0) if may_be_zero else False)
    return is_good
