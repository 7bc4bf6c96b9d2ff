"""Times of events on one clock of integer nanoseconds that stays precise for hours.

``cuEventElapsedTime`` gives a 32-bit float of milliseconds, so a time read against one base event gets coarser with age
(FACTS.md: 7.8 us after 75 s). Here an *anchor* event is recorded at least every quarter of a second while ranges are being
recorded, and each anchor's place is the sum of integer steps from anchor to anchor. The card's event clock ticks in steps
(32 ns on an H100 and H200), and a step below half a second is known to better than half a tick, so the sum is exact. After a
longer pause the anchor is placed by the card's own ``%globaltimer`` instead, read by a small kernel in front of it.
"""

# Tried or weighed, and left:
# - One base event for the whole session. The step of the float is 7.8 us after 75 s, 62 us after ten minutes, 250 us after an
#   hour, and a session lives for hours. Steps below half a second are rounded to whole ticks and are exact, and integers add
#   up without a loss.
# - `%globaltimer` at both ends of every range. A kernel has to read it, and a kernel needs an SM: behind a full card it waits
#   for one, and what follows waits with it. So it is read across pauses only, on a stream of the session's own.
# - One kernel and one event across a pause. A card that was idle fetches commands slowly, and now and then the event comes 10
#   us late. Nine are recorded, and the median counts of those that are not late: none is ever early, and while CUPTI is being
#   set up most of a burst may be late together.
# - A tick that is known beforehand. It is measured, as the greatest common divisor of short distances. Those of 16 ms and more
#   are left out: a float of milliseconds may be a nanosecond off there.
# - The nearest anchor by the host's time alone. A deep queue starts long after it was filled: such starts are read a second
#   time, against the anchor that is near on the card's clock.
# - The average latency between host and card. Whatever delays a message only makes it later, so of nine anchors around a host
#   time the one that was delayed least places it.
#
# What a pair of events adds to a kernel is measured by kernels that time themselves, in a full queue: an idle stream would
# show the host's speed instead. It is 3 to 4 us in front of the first instruction and 0.6 us behind the last. The kernel
# itself ends 0.6 to 1.0 us after its last instruction, by CUPTI, so a range is let end there, too.
#
# What no figure here covers is a cold card: after 0.6 s without work events come up to 20 us late for a while. The errors that
# a trace states hold for a warm one. CUPTI's times are on another clock, the host's wall clock: `cupti/_clock.py` ties them.

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._protocol import EventPool, RangeTimes
from gpustreamlab.backends.cuda._kernels import clock_kernel
from gpustreamlab.backends.cuda._libcuda import import_cupy
from gpustreamlab.backends.cuda._stream import CupySelection
from gpustreamlab.errors import DeviceError
from gpustreamlab.typing import FloatArray, Int64Array

if TYPE_CHECKING:
    from gpustreamlab.backends.cuda._backend import CudaBackend

ANCHOR_INTERVAL_NS = 250_000_000  # Host time between two anchors while ranges are recorded
EXACT_STEP_NS = 500_000_000
"""Longest distance that a 32-bit float of milliseconds resolves to half of 32 ns: its step is 30.5 ns from 256 to 512 ms."""
WHOLE_NS_MS = 16.0
"""Milliseconds below which a 32-bit float tells whole nanoseconds apart: its step is 0.95 ns from 8 to 16 ms, then 1.9."""
KEPT_ANCHORS = 4_096  # Anchors kept for ranges that end late: 17 minutes of uninterrupted recording
HOST_DRIFT_PPM = 20  # Assumed bound on how fast host and card clocks drift apart; 6 ppm were seen on an H200
PROMPT_NS = 900  # How far the delays of events behind small kernels are apart where nothing holds them up
HOST_WINDOW = 4  # Anchors on either side whose smallest latency places host times


@dataclass(slots=True)
class Anchor:
    """An event and its place on the clock: `device_ns` is 0 until the event has happened."""

    event: Any
    host_ns: int
    device_ns: int = 0


@dataclass(slots=True)
class Burst:
    """Several events, each behind a kernel that stored ``%globaltimer``: the way across a pause.

    A card that has been idle is slow to fetch commands: now and then an event comes 10 us after the kernel in front of it
    (seen on an H200). Of several, the one with the median delay among those that are not late is an anchor.
    """

    events: list[Any]
    host_ns: int
    timers: Any  # Page-locked uint64, shape (n_events, 2): when each kernel began and ended by ``%globaltimer``, in ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured when the clock was started. All in ns."""

    tick_ns: int  # Step of the card's event clock
    pair_ns: int  # What a pair of events adds to the kernel between them (median)
    pair_spread_ns: int  # How far that varies (5th to 95th percentile)
    anchor_spread_ns: int
    """How far the time from a kernel's end, by ``%globaltimer``, to the event behind it varies (5th to 95th percentile)."""
    latency_ns: int  # From the host's call to the event on an idle stream: half of the shortest record-and-wait


class EventClock:
    """Places finished events on an int64 clock that starts at 0 with the session."""

    def __init__(
        self,
        *,
        record: Callable[[], Any],
        record_burst: Callable[[], tuple[list[Any], Any]],
        release: Callable[[list[Any]], None],
        calibration: Calibration,
    ) -> None:
        self.calibration = calibration
        self._record = record
        self._record_burst = record_burst
        self._release = release
        self._lock = threading.Lock()
        self._anchors: list[Anchor] = []
        self._waiting: deque[Anchor | Burst] = deque()
        self._last_tick_ns = 0
        self._timed_anchors = 0
        self._rounding_ns = 0
        self._start()

    @property
    def error_ns(self) -> int:
        """Bound on the error of the distance between any two time stamps, in ns."""
        # Across a pause an event may come later than usual by about its own cost: an idle card is slow to fetch commands.
        timed = self.calibration.anchor_spread_ns + self.calibration.pair_ns if self._timed_anchors else 0
        return self.calibration.tick_ns + timed + self._rounding_ns

    @property
    def host_error_ns(self) -> int:
        """Bound on the error of a host time put on this clock, in ns."""
        window_ns = 2 * HOST_WINDOW * ANCHOR_INTERVAL_NS
        return self.calibration.latency_ns + window_ns * HOST_DRIFT_PPM // 1_000_000

    def tick(self, now_ns: int) -> int:
        """Record an anchor; return the host time at which the next one is due."""
        with self._lock:
            paused = now_ns - self._last_tick_ns > EXACT_STEP_NS - ANCHOR_INTERVAL_NS // 2
            self._last_tick_ns = now_ns
            self._waiting.append(self._new_burst(now_ns) if paused else Anchor(self._record(), now_ns))
        return now_ns + ANCHOR_INTERVAL_NS

    def keep(self, now_ns: int) -> None:
        """Record an anchor if the last one is old enough, so that the chain of short steps goes on without ranges."""
        if now_ns - self._last_tick_ns >= ANCHOR_INTERVAL_NS // 2:
            self.tick(now_ns)

    def place(self, starts: Sequence[Any], ends: Sequence[Any], queued_host_ns: Int64Array) -> RangeTimes:
        """Return when finished event pairs ran, uncorrected; see `RangeTimes`."""
        with self._lock:
            self._settle()
            anchors = list(self._anchors)
        host_ns, device_ns = _times(anchors)
        nearest = np.clip(np.searchsorted(host_ns, queued_host_ns, side="right") - 1, 0, None)
        start_ns = self._starts(starts, anchors, device_ns, nearest)
        late = start_ns - device_ns[nearest] > EXACT_STEP_NS
        if late.any():
            # Deep queues start long after they were filled: read those against the anchor that is near on the card's clock.
            rows = np.flatnonzero(late)
            nearest = np.clip(np.searchsorted(device_ns, start_ns[rows], side="right") - 1, 0, None)
            start_ns[rows] = self._starts([starts[row] for row in rows.tolist()], anchors, device_ns, nearest)
        duration_ns = self._snap(np.array([end - start for start, end in zip(starts, ends, strict=True)], np.float64))
        queued_ns = queued_host_ns + _host_offsets(host_ns, device_ns, queued_host_ns, self.calibration.latency_ns)
        return RangeTimes(start_ns, start_ns + duration_ns, np.minimum(queued_ns, start_ns))

    def place_host(self, asked_host_ns: int) -> int:
        """Put a host time on this clock, within `host_error_ns`."""
        with self._lock:
            with contextlib.suppress(Exception):  # a device that has failed tells nothing new; what is known still places it
                self._settle()
            host_ns, device_ns = _times(self._anchors)
        asked = np.array([asked_host_ns], np.int64)
        return asked_host_ns + int(_host_offsets(host_ns, device_ns, asked, self.calibration.latency_ns)[0])

    def close(self) -> None:
        """Give every anchor's event back. Idempotent."""
        with self._lock:
            events = [anchor.event for anchor in self._anchors]
            for waiting in self._waiting:
                events += waiting.events if isinstance(waiting, Burst) else [waiting.event]
            self._anchors.clear()
            self._waiting.clear()
        self._release(events)

    def _start(self) -> None:
        burst = self._new_burst(time.perf_counter_ns())
        burst.events[-1].sync()
        self._last_tick_ns = burst.host_ns
        anchor, self.origin_timer_ns = self._chosen(burst)
        """The other is ``%globaltimer`` at the clock's zero."""
        self._anchors.append(anchor)
        self.origin_host_ns = anchor.host_ns + self.calibration.latency_ns  # Host time of the clock's zero

    def _new_burst(self, now_ns: int) -> Burst:
        events, timers = self._record_burst()
        return Burst(events, now_ns, timers)

    def _settle(self) -> None:
        """Place every waiting anchor whose event has happened."""
        while self._waiting:
            waiting = self._waiting[0]
            last_event = waiting.events[-1] if isinstance(waiting, Burst) else waiting.event
            if not last_event.is_done:
                break
            self._waiting.popleft()
            self._anchors.append(self._placed(waiting))
        excess = len(self._anchors) - KEPT_ANCHORS
        if excess > 0:
            self._release([anchor.event for anchor in self._anchors[:excess]])
            del self._anchors[:excess]

    def _placed(self, waiting: Anchor | Burst) -> Anchor:
        anchor, timer_ns = self._chosen(waiting) if isinstance(waiting, Burst) else (waiting, None)
        last = self._anchors[-1]
        step_ns = int(self._snap(np.array([anchor.event - last.event]))[0])
        if timer_ns is None or step_ns < EXACT_STEP_NS:
            anchor.device_ns = last.device_ns + step_ns
            self._rounding_ns += rounding_ns(step_ns, self.calibration.tick_ns)
        else:
            anchor.device_ns = timer_ns - self.origin_timer_ns
            self._timed_anchors += 1
        return anchor

    def _chosen(self, burst: Burst) -> tuple[Anchor, int]:
        """Return the anchor of a burst, and when its kernel ended by ``%globaltimer``; the other events are given back."""
        first = burst.events[0]
        event_ns = self._snap(np.array([event - first for event in burst.events]))
        began_ns, ended_ns = burst.timers.astype(np.int64).T
        row = row_of_prompt_median(event_ns - (ended_ns - ended_ns[0]))
        self._release(burst.events[:row] + burst.events[row + 1 :])
        return Anchor(burst.events[row], burst.host_ns + int(ended_ns[row] - began_ns[0])), int(ended_ns[row])

    def _starts(self, starts: Sequence[Any], anchors: list[Anchor], device_ns: Int64Array, nearest: Int64Array) -> Int64Array:
        elapsed_ms = [event - anchors[row].event for event, row in zip(starts, nearest.tolist(), strict=True)]
        return device_ns[nearest] + self._snap(np.array(elapsed_ms, np.float64))

    def _snap(self, elapsed_ms: FloatArray) -> Int64Array:
        return snap_to_ticks(elapsed_ms, self.calibration.tick_ns)


def _times(anchors: list[Anchor]) -> tuple[Int64Array, Int64Array]:
    host_ns = np.array([anchor.host_ns for anchor in anchors], np.int64)
    return host_ns, np.array([anchor.device_ns for anchor in anchors], np.int64)


def snap_to_ticks(elapsed_ms: FloatArray, tick_ns: int) -> Int64Array:
    """Turn float milliseconds into the integer nanoseconds they were rounded from.

    Examples
    --------
    >>> snap_to_ticks(np.array([np.float32(251.000032)], np.float64), 32).tolist()
    [251000032]
    """
    return np.rint(elapsed_ms * (1e6 / tick_ns)).astype(np.int64) * tick_ns


def row_of_prompt_median(late_ns: Int64Array) -> int:
    """Return the row whose value is the median of those that are not late, the lower one of two.

    In a full queue an event stands 0 to 900 ns behind its kernel (H200). On a cold card, or where CUPTI is just being set up,
    most of a burst may come 20 to 200 us late, and nothing is early: what is over `PROMPT_NS` behind the first is left out.

    Examples
    --------
    >>> row_of_prompt_median(np.array([5, 203_000, 3, 4, 203_100, 203_050]))
    3
    """
    prompt = np.flatnonzero(late_ns <= late_ns.min() + PROMPT_NS)
    return int(prompt[np.argsort(late_ns[prompt], kind="stable")[(len(prompt) - 1) // 2]])


def rounding_ns(step_ns: int, tick_ns: int) -> int:
    """Return how far a distance read as float32 milliseconds may be off after `snap_to_ticks`, in ns.

    Examples
    --------
    >>> rounding_ns(250_000_000, 32), rounding_ns(75_000_000_000, 32)
    (0, 3907)
    """
    half_step_ns = float(np.spacing(np.float32(step_ns / 1e6))) * 1e6 / 2
    return 0 if half_step_ns < tick_ns / 2 else int(np.ceil(half_step_ns))


def find_tick_ns(elapsed_ms: Sequence[float]) -> int:
    """Return the step of the event clock from short distances, in ns: 1 where none is seen.

    Distances of `WHOLE_NS_MS` or more are left out: as float32 they may be a nanosecond off.

    Examples
    --------
    >>> find_tick_ns([0.001248, 0.00128, 0.001312, np.float32(16.233632)])
    32
    """
    distances_ms = np.asarray(elapsed_ms)
    distances = np.rint(distances_ms[distances_ms < WHOLE_NS_MS] * 1e6).astype(np.int64)
    return max(1, int(np.gcd.reduce(distances))) if distances.size else 1


def _host_offsets(host_ns: Int64Array, device_ns: Int64Array, asked_host_ns: Int64Array, latency_ns: int) -> Int64Array:
    """Return card time minus host time at each asked host time, from the anchor least delayed nearby."""
    padded = np.pad(device_ns - host_ns - latency_ns, HOST_WINDOW, mode="edge")
    best = np.lib.stride_tricks.sliding_window_view(padded, 2 * HOST_WINDOW + 1).min(axis=1)
    nearest = np.clip(np.searchsorted(host_ns, asked_host_ns, side="right") - 1, 0, None)
    offsets: Int64Array = best[nearest]
    return offsets


PAIR_COUNT = 100
SPIN_NS = 5_000
GATE_NS = 3_000_000
"""The kernel in front of the pairs runs this long, so that the pairs are all enqueued before the first one starts."""
LATENCY_TRIES = 20

KERNEL_TAIL_NS = 700
"""How much later a kernel ends than its last instruction, where that has not been measured: the median on an H200."""
KERNEL_TAIL_SPREAD_NS = 800
"""How far that varies with the kernel's size, 576 to 992 ns on an H200, and with the card: in four of eight sessions on H100s,
ranges were 0.96 to 1.06 us short in the median, of which the spread of the events' cost explains 0.45."""


class PairCost(NamedTuple):
    """Where two events stand that are recorded around a kernel, on the session's clock."""

    before_ns: int  # How long before the kernel's first instruction the first one stands
    after_ns: int  # How long after its last instruction the second one stands


def calibrate(
    stream: Any,
    *,
    acquire_event: Callable[[], Any],
    release_events: Callable[[list[Any]], object],
    spin: Callable[[int, int], None],
    times: NDArray[np.uint64],
) -> Calibration:
    """Time known kernels with event pairs on an otherwise idle stream.

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
    """Run kernels that time themselves between pairs of events, in a full queue, and return the events."""
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
    """Return where pairs of events stand around their kernels (medians)."""
    before_ns = np.median(timers_ns[:, 0] - places.start_ns)
    after_ns = np.median(places.end_ns - timers_ns[:, 1])
    return PairCost(round(before_ns), round(after_ns))


def _distances_ns(events: list[Any], origins: list[Any]) -> FloatArray:
    return np.array([event - origin for event, origin in zip(events, origins, strict=True)]) * 1e6


def _spread_ns(values_ns: FloatArray) -> int:
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


BURST_EVENTS = 9  # Events, each behind a kernel, from which an anchor is chosen after a pause: 0.3 ms of one SM
BURST_SPIN_NS = 30_000  # How long each of those kernels runs: long enough for its event to be enqueued behind it


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


# How far the timers of two cards of a host are apart: a flag in host memory goes back and forth between them.
TURNS = 200  # How often the flag goes to the other card and back: about 0.5 ms
_GIVE_UP_NS = 200_000_000

_SOURCE = r"""
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Card `me` (0 or 1) waits until the flag says that it is its turn, and passes it on; when it saw it, and when it passed it on.
extern "C" __global__ void gpustreamlab_flag(volatile unsigned int* flag, int me, int turns, unsigned long long* seen_passed) {
    const unsigned long long began = global_timer();
    for (int turn = 0; turn < turns; ++turn) {
        const unsigned int mine = 2 * turn + me;
        while (*flag < mine)
            if (global_timer() - began > GIVE_UP_NS) return;
        seen_passed[2 * turn] = global_timer();
        __threadfence_system();
        seen_passed[2 * turn + 1] = global_timer();
        *flag = mine + 1;
    }
}
""".replace("GIVE_UP_NS", f"{_GIVE_UP_NS}ull")


@cache
def _kernel(device_ordinal: int) -> Any:
    cupy = import_cupy()
    with cupy.cuda.Device(device_ordinal):
        return cupy.RawModule(code=_SOURCE).get_function("gpustreamlab_flag")


def measure_timers(first: CudaBackend, second: CudaBackend) -> tuple[int, int]:
    """Return how far the second card's ``%globaltimer`` is ahead of the first one's, and the bound on the error, in ns.

    Of the turns that took the shortest, half the time that the flag was on its way bounds the error: that is exact where both
    ways are as long.
    """
    flag = first.pinned_empty(1, np.uint32)
    times = [backend.pinned_empty((TURNS, 2), np.uint64) for backend in (first, second)]
    flag[:] = 0
    for turns in (0, TURNS):  # the first launch of a kernel loads it, which may wait for whatever runs
        for me, (backend, seen) in enumerate(zip((first, second), times, strict=True)):
            seen[:] = 0
            arguments = np.uint64(flag.ctypes.data), np.int32(me), np.int32(turns), np.uint64(seen.ctypes.data)
            backend.launch_own(_kernel(backend.device.ordinal), arguments)
        for backend in (first, second):
            backend.await_own()
    here, there = (one.astype(np.int64) for one in times)
    if not (here.all() and there.all()):
        raise DeviceError("The clocks of two cards could not be compared: one of them had no room for a block for 0.2 s.")
    out_ns = there[:-1, 0] - here[:-1, 1]
    back_ns = here[1:, 0] - there[:-1, 1]
    trip_ns = out_ns + back_ns
    shortest = trip_ns <= np.percentile(trip_ns, 10)
    return round(float(np.median((out_ns - back_ns)[shortest])) / 2), int(trip_ns.min() + 1) // 2
