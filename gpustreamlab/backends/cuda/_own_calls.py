"""Calls of the host that this package makes for itself, for clocks and calibrations: they are not shown."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gpustreamlab.typing import BoolArray, Int64Array

KEPT_STRETCHES = 1_024
"""Stretches of own calls that are remembered; a few a second at most."""
KEPT_CALLS = 16_384
"""Numbers of own calls that are remembered: their records may come later than those of the kernels that they launched."""
SLACK_NS = 2_000
"""CUPTI's time of a call and the host's clock agree to about a microsecond."""


class OwnCalls:
    """Tells own calls by the kernels they launched, and by the thread and the time at which they were made.

    The record of a call may come a drain earlier than that of its kernel, or later: neither sign is enough alone.

    Parameters
    ----------
    host_time_ns
        The host's clock.
    """

    def __init__(self, host_time_ns: Callable[[], int]) -> None:
        self._host_time_ns = host_time_ns
        self._stretches: deque[tuple[int, int, int]] = deque(maxlen=KEPT_STRETCHES)
        self._numbers: Int64Array = np.empty(0, np.int64)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Take what this thread calls inside as own."""
        begin_ns = self._host_time_ns()
        try:
            yield
        finally:
            self._stretches.append((threading.get_ident() & 0xFFFF_FFFF, begin_ns, self._host_time_ns()))

    def note(self, correlation: Int64Array) -> None:
        """Take calls as own by their numbers."""
        if len(correlation):
            self._numbers = np.concatenate([self._numbers, correlation])[-KEPT_CALLS:]

    def are_own(self, *, thread: Int64Array, start_host_ns: Int64Array, correlation: Int64Array) -> BoolArray:
        """Tell which calls are own; all shapes are (n,)."""
        is_own: BoolArray = np.isin(correlation, self._numbers)
        stretches = np.array(self._stretches, np.int64).reshape(-1, 3)
        for own_thread in np.unique(stretches[:, 0]).tolist():
            _, begin_ns, end_ns = stretches[stretches[:, 0] == own_thread].T
            order = np.argsort(begin_ns, kind="stable")
            # Stretches may lie within others: whoever began before and ends last holds the call.
            end_ns = np.maximum.accumulate(end_ns[order])
            at = np.searchsorted(begin_ns[order], start_host_ns + SLACK_NS, side="right") - 1
            is_own |= (thread == own_thread) & (at >= 0) & (start_host_ns <= end_ns[at] + SLACK_NS)
        return is_own
