"""Measure the events' own cost and the clock's grain, once, when a session starts (about 20 ms)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.backends._protocol import RangeTimes
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


class PairCost(NamedTuple):
    """Where two events stand that are recorded around a kernel, on the session's clock."""

    before_ns: int
    """How long before the kernel's first instruction the first one stands."""
    after_ns: int
    """How long after its last instruction the second one stands."""


def calibrate(
    stream: Any,
    *,
    acquire_event: Callable[[], Any],
    release_events: Callable[[list[Any]], object],
    spin: Callable[[int, int], None],
    times: np.ndarray[Any, np.dtype[np.uint64]],
) -> Calibration:
    """Time known kernels with event pairs on an otherwise idle stream.

    Parameters
    ----------
    stream
        A `cuda.core.Stream`.
    acquire_event, release_events
        Lend timing events, and take them back.
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
    starts, ends = run_pairs(stream, acquire_event=acquire_event, spin=spin)
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
    release_events([*starts, *ends])
    return calibration


def run_pairs(
    stream: Any,
    *,
    acquire_event: Callable[[], Any],
    spin: Callable[[int, int], None],
    fence: Callable[[], object] = bool,
) -> tuple[list[Any], list[Any]]:
    """Run kernels that time themselves between pairs of events, in a full queue, and return the events.

    Parameters
    ----------
    fence
        Put in front of each event, as ranges do.
    """
    starts = [acquire_event() for _ in range(PAIR_COUNT)]
    ends = [acquire_event() for _ in range(PAIR_COUNT)]
    for _ in range(2):  # the first round loads the kernel
        spin(GATE_NS, 0)
        for row in range(PAIR_COUNT):
            fence()
            stream.record(starts[row])
            spin(SPIN_NS, row)
            fence()
            stream.record(ends[row])
        stream.sync()
    return starts, ends


def locate_pairs(places: RangeTimes, timers_ns: Int64Array) -> PairCost:
    """Return where pairs of events stand around their kernels (medians).

    Parameters
    ----------
    places
        The events' own times on the session's clock.
    timers_ns : ndarray of int64, shape (n, 2)
        When each kernel ran its first and last instruction, on the same clock.
    """
    before_ns = np.median(timers_ns[:, 0] - places.start_ns)
    after_ns = np.median(places.end_ns - timers_ns[:, 1])
    return PairCost(round(before_ns), round(after_ns))


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
