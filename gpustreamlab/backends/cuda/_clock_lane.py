"""A stream of the clock's own on one device: anchors and the kernels that time themselves run there, beside the user's work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._protocol import EventPool
from gpustreamlab.backends.cuda._clock import PAIR_COUNT, EventClock, PairCost, calibrate, locate_pairs, run_pairs
from gpustreamlab.backends.cuda._kernels import clock_kernel
from gpustreamlab.backends.cuda._stream import CupySelection

BURST_EVENTS = 9
"""Events, each behind a kernel, from which an anchor is chosen after a pause: 0.3 ms of one SM."""
BURST_SPIN_NS = 30_000
"""How long each of those kernels runs: long enough for its event to be enqueued behind it."""


class ClockLane:
    """Measures on a stream of its own."""

    def __init__(
        self,
        stream: Any,
        cupy_stream: Any,
        *,
        ordinal: int,
        selection: CupySelection,
        events: EventPool[Any],
        pinned_empty: Callable[..., NDArray[Any]],
        own_calls: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.stream, self.cupy_stream = stream, cupy_stream
        self._selected = SimpleNamespace(cupy=cupy_stream)
        self._ordinal = ordinal
        self._selection = selection
        self._events = events
        self._pinned_empty = pinned_empty
        self._own_calls = own_calls

    def launch(self, kernel: Any, arguments: tuple[Any, ...], *, shared_bytes: int = 0) -> None:
        """Launch one block of one thread."""
        token = self._selection.select(self._selected)
        try:
            kernel((1,), (1,), arguments, shared_mem=shared_bytes)
        finally:
            self._selection.restore(token)

    def spin(self, duration_ns: int, began_ended: NDArray[Any], shared_bytes: int = 0) -> None:
        """Launch a kernel that stores when it began and ended, by ``%globaltimer``."""
        arguments = (np.int64(duration_ns), np.uint64(began_ended.ctypes.data))
        self.launch(clock_kernel(self._ordinal), arguments, shared_bytes=shared_bytes)

    def start_clock(self) -> EventClock:
        """Time known kernels, and return a clock whose anchors are recorded here."""
        times = self._pinned_empty((PAIR_COUNT, 2), np.uint64)
        calibration = calibrate(
            self.stream,
            acquire_event=self._events.acquire,
            release_events=self._events.release,
            spin=lambda duration_ns, row: self.spin(duration_ns, times[row]),
            times=times,
        )
        return EventClock(
            record=self._record,
            record_burst=self._record_burst,
            release=self._events.release,
            calibration=calibration,
        )

    def locate_pairs(self, clock: EventClock, *, fence: Callable[[int], object], host_time_ns: Callable[[], int]) -> PairCost:
        """Return where two events stand that are recorded around a kernel, each behind a fence, on a clock."""
        handle = int(self.stream.handle)
        times = self._pinned_empty((PAIR_COUNT, 2), np.uint64)

        def run() -> tuple[list[Any], list[Any]]:
            return run_pairs(
                self.stream,
                fence=lambda: fence(handle),
                acquire_event=self._events.acquire,
                spin=lambda duration_ns, row: self.spin(duration_ns, times[row]),
            )

        for events in run():  # CUPTI, just switched on, and a cold card hold up the first work by 200 us
            self._events.release(events)
        clock.tick(host_time_ns())
        starts, ends = run()
        queued_ns = np.full(len(starts), host_time_ns(), np.int64)
        cost = locate_pairs(clock.place(starts, ends, queued_ns), times.astype(np.int64) - clock.origin_timer_ns)
        self._events.release((*starts, *ends))
        return cost

    def _record(self) -> Any:
        return self.stream.record(self._events.acquire())

    def _record_burst(self) -> tuple[list[Any], NDArray[Any]]:
        events = []
        with self._own_calls():
            timers = self._pinned_empty((BURST_EVENTS, 2), np.uint64)
            for row in range(BURST_EVENTS):
                self.spin(BURST_SPIN_NS, timers[row])
                events.append(self._record())
        return events, timers
