"""How far the clocks of several cards of a host are apart, compared again and again."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from gpustreamlab._util.background import Updater
from gpustreamlab.backends import Backend
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.model import Ahead

_log = logging.getLogger(__name__)

SOON_NS = 100_000_000  # The least time between two comparisons: drift that is measured over a shorter one is mostly noise
EVERY_NS = 10_000_000_000
"""The longest. In 150 s on two H200, half of them busy, no comparison was more than 0.40 us off the line between two that far
apart, of which noise makes 0.3."""
_LOOK_HZ = 2.0

WANDER = 1e-7
"""How much the drift of two cards' clocks may change: waits were 2.7 us off at 30 s from the nearest comparison (two H100),
flags 0.5 us at 60 s (two H200)."""
DRIFT = 5e-6  # How much the clocks of two cards may drift apart where that was not measured: 2.8 us a second were seen on H100s


class CardClocks:
    """Compares the clocks of cards with that of the first, in a thread on the side and whenever it is asked to.

    Until the next comparison passes as much time as passed between the first and the last one, up to `EVERY_NS`. So what comes
    after the last one goes on at a pace that was measured over as long a time.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = tuple(backends)
        self._is_one = len(backends) == 1 or backends[0].device.simulated  # those of simulated cards are
        self._lock = threading.Lock()
        self._compared: list[list[tuple[int, int, int]]] = []
        """For each comparison and device: when by its own clock, what that lacks to be the first one's, and the error."""
        self._first_ns = self._last_ns = 0
        self.compare()
        self._updater = Updater(_step_of(self), refresh_hz=_LOOK_HZ, name="gpustreamlab clocks of cards")
        if not self._is_one:
            self._updater.start()

    def compare(self) -> None:
        """Compare them now, where that was not done lately and nobody else is at it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            now_ns = self._backends[0].glance_ns()
            if not self._compared:
                self._first_ns = now_ns
            elif self._is_one or now_ns - self._last_ns < min(EVERY_NS, max(SOON_NS, self._last_ns - self._first_ns)):
                return
            reference = self._backends[0]
            told = [(one.host_to_clock_ns(one.glance_ns()), *one.ahead_of(reference)) for one in self._backends]
            self._compared.append(told)
            self._last_ns = now_ns
        finally:
            self._lock.release()

    def ahead(self) -> list[Ahead]:
        """Return how far each clock is ahead of the first one's, see `gpustreamlab.merge`."""
        measured = np.array(self._compared, np.int64)  # shape (comparisons, devices, 3)
        return [(measured[:, place, 0], measured[:, place, 1]) for place in range(len(self._backends))]

    def error_ns(self, until_ns: int) -> int:
        """Return the bound on the error of that, up to a time of the first clock."""
        if self._is_one:
            return 0
        compared = self._compared
        at_ns = [told[0][0] for told in compared]
        measured_ns = max(error for told in compared for _, _, error in told)
        gaps_ns = [later - before for before, later in pairwise(at_ns)]
        beyond_ns = max(0, until_ns - at_ns[-1])
        lost_ns = beyond_ns * DRIFT
        if gaps_ns:
            lost_ns = min(lost_ns, beyond_ns * (WANDER + 2 * measured_ns / gaps_ns[-1]))
        return measured_ns + round(max(gaps_ns, default=0) / 2 * WANDER + lost_ns)

    def stop(self) -> None:
        """Compare no more. Idempotent."""
        self._updater.stop()


def _step_of(clocks: CardClocks) -> Callable[[], bool]:
    """Return what the thread on the side does; it does not keep the clocks alive."""
    known = weakref.ref(clocks)

    def step() -> bool:
        alive = known()
        if alive is None:
            return False
        try:
            alive.compare()
        except GPUStreamLabError as error:  # whoever uses the device is told; a full card may have room later
            _log.debug("The clocks of the cards were not compared: %s", error)
        return True

    return step
