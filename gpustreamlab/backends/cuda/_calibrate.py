"""Measure the events' own cost and the clock's grain, once, when a session starts (about 20 ms)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpustreamlab.backends.cuda._clock import Calibration, find_tick_ns
from gpustreamlab.typing import Int64Array

PAIR_COUNT = 100
SPIN_NS = 5_000
GATE_NS = 3_000_000
"""The kernel in front of the pairs runs this long, so that the pairs are all enqueued before the first one starts."""
LATENCY_TRIES = 20

KERNEL_TAIL_NS = 700
"""How much later a kernel ends than its last instruction, where that has not been measured: the median on an H200."""
KERNEL_TAIL_SPREAD_NS = 300
"""How far that varies with the kernel's size: 576 to 992 ns on an H200."""


class PairCosts:
    """What a pair of events cost at which time: kernels that are recorded start a little later than others.

    Parameters
    ----------
    first_ns
        The cost at the beginning, in ns.

    Examples
    --------
    >>> costs = PairCosts(3_500)
    >>> costs.note(1_000, 4_000)
    >>> costs.at(np.array([999, 1_000, 2_000])).tolist()
    [3500, 4000, 4000]
    """

    def __init__(self, first_ns: int) -> None:
        self._since_ns = np.array([-(2**62)], np.int64)
        self._cost_ns = np.array([first_ns], np.int64)

    @property
    def last_ns(self) -> int:
        """The cost now, in ns."""
        return int(self._cost_ns[-1])

    def note(self, host_ns: int, cost_ns: int) -> None:
        """Note the cost of pairs that are opened from a host time on."""
        self._since_ns = np.append(self._since_ns, host_ns)
        self._cost_ns = np.append(self._cost_ns, cost_ns)

    def at(self, host_ns: Int64Array) -> Int64Array:
        """Return the cost of pairs that were opened at these host times; shape (n,), int64, in ns."""
        found: Int64Array = self._cost_ns[np.searchsorted(self._since_ns, host_ns, side="right") - 1]
        return found


def calibrate(
    stream: Any,
    *,
    create_event: Callable[[], Any],
    spin: Callable[[int, int], None],
    times: np.ndarray[Any, np.dtype[np.uint64]],
) -> Calibration:
    """Time known kernels with event pairs on an otherwise idle stream.

    Parameters
    ----------
    stream
        A `cuda.core.Stream`.
    create_event
        Makes a timing event.
    spin
        ``spin(duration_ns, row)`` launches a kernel on the stream that stores its own begin and end, by ``%globaltimer``,
        in ``times[row]``.
    times : ndarray of uint64, shape (PAIR_COUNT, 2)
        Page-locked.

    Notes
    -----
    The pairs are queued behind a longer kernel, so what is measured is the events' cost on a busy stream, not the host's
    speed. Kernels time themselves with ``%globaltimer``, which ticks as the event clock does (checked by the GPU tests).
    """
    starts = [create_event() for _ in range(PAIR_COUNT)]
    ends = [create_event() for _ in range(PAIR_COUNT)]
    for _ in range(2):  # the first round loads the kernel
        spin(GATE_NS, 0)
        for row in range(PAIR_COUNT):
            stream.record(starts[row])
            spin(SPIN_NS, row)
            stream.record(ends[row])
        stream.sync()
    began_ns, ended_ns = times.astype(np.int64).T
    pair_ns = _distances_ns(ends, starts) - (ended_ns - began_ns)
    behind_ns = _distances_ns(ends, [ends[0]] * PAIR_COUNT) - (ended_ns - ended_ns[0])
    calibration = Calibration(
        tick_ns=find_tick_ns([end - starts[0] for end in ends]),
        pair_ns=int(np.median(pair_ns)),
        pair_spread_ns=_spread_ns(pair_ns),
        anchor_spread_ns=_spread_ns(behind_ns),
        latency_ns=_latency_ns(stream, starts[0]),
    )
    for event in (*starts, *ends):
        event.close()
    return calibration


def _distances_ns(events: list[Any], origins: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([event - origin for event, origin in zip(events, origins, strict=True)]) * 1e6


def _spread_ns(values_ns: np.ndarray[Any, np.dtype[np.float64]]) -> int:
    low, high = np.percentile(values_ns, [5, 95])
    return int(np.ceil(high - low))


def _latency_ns(stream: Any, event: Any) -> int:
    """Return half of the shortest time from a record to the host's knowing that it happened."""
    shortest_ns = 2**62
    for _ in range(LATENCY_TRIES):
        began_ns = time.perf_counter_ns()
        stream.record(event)
        event.sync()
        shortest_ns = min(shortest_ns, time.perf_counter_ns() - began_ns)
    return shortest_ns // 2
