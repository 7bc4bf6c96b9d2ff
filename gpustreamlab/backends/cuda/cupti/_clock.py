"""CUPTI's times on the session's clock.

CUPTI turns the card's times into the host's wall clock. The two drift apart (1 to 3 us a second on an H200), and the session's
clock is the card's. So a small kernel that stores ``%globaltimer`` runs on the clock's own stream once a second while kernels
are captured. CUPTI records it like any other, which gives the same moment on both scales: an anchor. Between two anchors the
distance is interpolated; with anchors 1 s apart it was right to 44 ns (H200, driver 580).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.typing import Int64Array

_log = logging.getLogger(__name__)


TAGS = 4_096
"""Anchors on their way are told apart by the bytes of shared memory they ask for, from 1 to this."""
KEPT_ANCHORS = 7_200
"""Anchors kept: two hours of one a second. What is older is extrapolated from the first one kept."""
SLOPE_SPAN_NS = 2_000_000_000
"""Beyond the last anchor the drift goes on as it was over this time before it."""
LEAST_SPAN_NS = 20_000_000
"""No drift is told from anchors nearer to each other."""
UNKNOWN_DRIFT_PPM = 10
"""How fast CUPTI's times may drift away where that has not been measured; 1 to 3 were seen on an H200."""
CLOSE_ANCHORS_NS = 10_000_000_000
"""Between anchors this near to each other the drift changes little; farther ones lie on either side of a pause."""
CURVE_SHARE = 4
"""Where the drift changes, what lies between two anchors is off by less than this part of what lies a step beyond."""
GRAIN_NS = 64
"""Two steps of the card's timer: CUPTI's start of a kernel and the kernel's own reading differ by up to one each."""

ANCHOR_SPIN_NS = 1_000


@dataclass(frozen=True, slots=True)
class SentAnchor:
    """A kernel on its way."""

    tag: int
    """Bytes of shared memory it asks for."""
    timers: NDArray[np.uint64]
    """Page-locked, shape (2,): when it began and ended by ``%globaltimer``; 0 before."""
    host_ns: int
    """When it was launched."""


class CuptiClock:
    """Places CUPTI's times on the session's clock."""

    def __init__(
        self, *, launch: Callable[[int], NDArray[np.uint64]], origin_timer_ns: int, host_time_ns: Callable[[], int]
    ) -> None:
        self._launch = launch
        self._origin_timer_ns = origin_timer_ns
        self._host_time_ns = host_time_ns
        self._lock = threading.RLock()
        self._sent: deque[SentAnchor] = deque(maxlen=TAGS)
        self._next_tag = 1
        self._cupti_ns: Int64Array = np.empty(0, np.int64)
        self._behind_ns: Int64Array = np.empty(0, np.int64)
        """By how much CUPTI's time is ahead of the session's clock at each anchor."""
        self._worst_ns = 0
        self._farthest_ns = 0
        """How far beyond the last anchor times were placed."""
        self._tails_ns: deque[int] = deque(maxlen=64)
        self.last_seen_host_ns = 0
        """When the newest anchor that has come back was launched, by the host's clock."""

    @property
    def anchor_count(self) -> int:
        """Anchors so far."""
        return len(self._cupti_ns)

    @property
    def error_ns(self) -> int:
        """Bound on the error of every time placed so far, in ns: the timer's grain, and how far off the anchors were."""
        with self._lock:
            # How far off what lies beyond the last anchor is, will be known with the next one.
            return GRAIN_NS + max(self._worst_ns, int(self._farthest_ns * self._slope_error(last=True)))

    @property
    def newest_sent(self) -> SentAnchor | None:
        """The anchor that was launched last and is not in the records; None where there is none."""
        with self._lock:
            return self._sent[-1] if self._sent else None

    @property
    def oldest_waiting_host_ns(self) -> int | None:
        """When the oldest anchor was launched that has run but is not in the records; None where there is none."""
        with self._lock:
            return next((sent.host_ns for sent in self._sent if sent.timers[1]), None)

    def send(self) -> SentAnchor:
        """Launch an anchor."""
        with self._lock:
            tag, self._next_tag = self._next_tag, self._next_tag % TAGS + 1
            sent = SentAnchor(tag, self._launch(tag), self._host_time_ns())
            self._sent.append(sent)
            return sent

    def forget_sent(self) -> None:
        """Give up the anchors that have not come back."""
        with self._lock:
            self._sent.clear()

    @property
    def tail_ns(self) -> int | None:
        """How much later CUPTI says that a kernel ended than its last instruction (median); None before the first anchor."""
        return int(np.median(self._tails_ns)) if self._tails_ns else None

    def note(self, start_ns: Int64Array, end_ns: Int64Array, tag: Int64Array) -> None:
        """Take the records of anchors: when each ran by CUPTI, and how much shared memory it asked for."""
        with self._lock:
            waiting = {sent.tag: sent for sent in self._sent}
            for start, end, number in zip(start_ns.tolist(), end_ns.tolist(), tag.tolist(), strict=True):
                sent = waiting.pop(number, None)
                if sent is not None and sent.timers[0]:
                    began, ended = sent.timers.tolist()
                    self._add(start, began - self._origin_timer_ns)
                    self._tails_ns.append(end - start - (ended - began))
                    self.last_seen_host_ns = max(self.last_seen_host_ns, sent.host_ns)
            self._sent = deque(waiting.values(), maxlen=TAGS)

    def place(self, cupti_ns: Int64Array) -> Int64Array:
        """Put CUPTI's times on the session's clock; shape (n,), int64."""
        with self._lock:
            if len(cupti_ns) and len(self._cupti_ns):
                self._farthest_ns = max(self._farthest_ns, int(cupti_ns.max() - self._cupti_ns[-1]))
                before_ns = int(self._cupti_ns[0] - cupti_ns.min())
                self._worst_ns = max(self._worst_ns, int(before_ns * self._slope_error(last=False)))
            return cupti_ns - self._ahead_at(cupti_ns)

    def _add(self, cupti_ns: int, clock_ns: int) -> None:
        ahead_ns = cupti_ns - clock_ns
        step_ns = cupti_ns - int(self._cupti_ns[-1]) if len(self._cupti_ns) else 0
        if step_ns > 0:
            off_ns = abs(ahead_ns - int(self._ahead_at(np.array([cupti_ns], np.int64))[0]))
            # What was placed beyond the last anchor was off in proportion to how far beyond it was.
            beyond_ns = off_ns * min(step_ns, self._farthest_ns) // step_ns
            beyond_ns += int(max(0, self._farthest_ns - step_ns) * self._slope_error(last=True))
            is_curve = len(self._cupti_ns) > 1 and step_ns < CLOSE_ANCHORS_NS
            self._worst_ns = max(self._worst_ns, beyond_ns, off_ns // CURVE_SHARE if is_curve else 0)
            self._farthest_ns = 0
        at = int(np.searchsorted(self._cupti_ns, cupti_ns))
        self._cupti_ns = np.insert(self._cupti_ns, at, cupti_ns)[-KEPT_ANCHORS:]
        self._behind_ns = np.insert(self._behind_ns, at, ahead_ns)[-KEPT_ANCHORS:]

    def _ahead_at(self, cupti_ns: Int64Array) -> Int64Array:
        """Return by how much CUPTI's time is ahead of the clock at these times."""
        known = self._cupti_ns
        if not len(known) or not len(cupti_ns):
            return np.zeros(len(cupti_ns), np.int64)
        low = max(0, int(np.searchsorted(known, cupti_ns.min())) - 1)
        near, ahead = known[low : int(np.searchsorted(known, cupti_ns.max())) + 1], self._behind_ns[low:]
        # Differences from an anchor nearby are small enough for float64 to be exact to the nanosecond.
        drift = np.interp(
            (cupti_ns - near[0]).astype(np.float64),
            (near - near[0]).astype(np.float64),
            (ahead[: len(near)] - ahead[0]).astype(np.float64),
        )
        if cupti_ns.max() > known[-1]:
            drift += np.maximum(0, cupti_ns - known[-1]) * self._slope(last=True)
        if cupti_ns.min() < known[0]:
            drift -= np.maximum(0, known[0] - cupti_ns) * self._slope(last=False)
        placed: Int64Array = np.rint(drift, out=drift).astype(np.int64) + ahead[0]
        return placed

    def _slope(self, *, last: bool) -> float:
        """Return how fast the two drift apart at the last or first anchors, in ns a ns; 0 where that is not known yet."""
        first, second = self._slope_anchors(last=last)
        span = int(self._cupti_ns[second] - self._cupti_ns[first])
        return int(self._behind_ns[second] - self._behind_ns[first]) / span if span >= LEAST_SPAN_NS else 0.0

    def _slope_anchors(self, *, last: bool) -> tuple[int, int]:
        """Return which two anchors tell the drift: about `SLOPE_SPAN_NS` apart, never the same one where there are two."""
        known, end = self._cupti_ns, len(self._cupti_ns) - 1
        if last:
            return max(0, min(int(np.searchsorted(known, known[-1] - SLOPE_SPAN_NS)), end - 1)), end
        return 0, min(int(np.searchsorted(known, known[0] + SLOPE_SPAN_NS)), end)

    def _slope_error(self, *, last: bool) -> float:
        """Return how far off the drift at the last or first anchors may be, in ns a ns."""
        unknown = UNKNOWN_DRIFT_PPM * 1e-6
        if not len(self._cupti_ns):
            return unknown
        first, second = self._slope_anchors(last=last)
        span = int(self._cupti_ns[second] - self._cupti_ns[first])
        return min(unknown, 2 * GRAIN_NS / span) if span >= LEAST_SPAN_NS else unknown


def wall_minus_host_ns(wall_time_ns: Callable[[], int], host_time_ns: Callable[[], int]) -> int:
    """Return the wall clock minus the host's monotonic clock, from the fastest of a few readings."""
    readings = []
    for _ in range(5):
        before = host_time_ns()
        wall = wall_time_ns()
        after = host_time_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def anchor_launcher(spin: Callable[..., Any], pinned_empty: Callable[..., NDArray[Any]]) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that launches an anchor."""
    # One block for all tags: an anchor's place is used again when its tag is.
    timers = pinned_empty((TAGS + 1, 2), np.uint64)
    timers[:] = 0

    def launch(tag: int) -> NDArray[np.uint64]:
        own: NDArray[np.uint64] = timers[tag]
        own[:] = 0
        spin(ANCHOR_SPIN_NS, own, tag)
        return own

    return launch


KEPT_STRETCHES = 256
"""Stretches of equal distance between the two clocks that are remembered; what is older counts to the first one."""
SAME_NS = 2_000
"""Readings of the distance that differ by less are equal: that is how well it can be read."""
JUMP_NS = 50_000
"""A greater change of the distance is told in the log: somebody has set the wall clock."""


class _Stretch(NamedTuple):
    """Between two readings of the host's clock the wall clock was ahead by so much."""

    first_host_ns: int
    last_host_ns: int
    ahead_ns: int


class WallClock:
    """Turns times of the wall clock into the host's, each by what held at its own time: the wall clock may be set meanwhile.

    Where the wall clock was set back, the times that it shows twice count as the later ones.
    """

    def __init__(self, wall_time_ns: Callable[[], int], host_time_ns: Callable[[], int]) -> None:
        self._wall_time_ns = wall_time_ns
        self._host_time_ns = host_time_ns
        ahead_ns, now_ns = wall_minus_host_ns(wall_time_ns, host_time_ns), host_time_ns()
        self._stretches = deque([_Stretch(now_ns, now_ns, ahead_ns)], maxlen=KEPT_STRETCHES)

    def look(self) -> None:
        """Read how far the clocks are apart."""
        ahead_ns, now_ns = wall_minus_host_ns(self._wall_time_ns, self._host_time_ns), self._host_time_ns()
        last = self._stretches[-1]
        change_ns = ahead_ns - last.ahead_ns
        if abs(change_ns) < SAME_NS:
            self._stretches[-1] = last._replace(last_host_ns=now_ns)
            return
        if abs(change_ns) > JUMP_NS:
            _log.warning("The wall clock was set by %+.6f s; times of the host around that may be off by it", change_ns / 1e9)
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
