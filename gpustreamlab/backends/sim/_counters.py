"""Counters of the simulated device, by its model: exact averages of what its SMs held and its memory and its links moved."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gpustreamlab.backends._counters import CounterReading
from gpustreamlab.schedule._commands import DEVICE_TO_HOST, HOST_TO_DEVICE, PEER

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._driver import SimDriver

PERIOD_NS = 20_000  # As fine as hardware samples at best
MOST_PERIODS = 50  # How many of them become one piece where nothing changes
_LINKS = {HOST_TO_DEVICE: ("pcie_rx_bytes_per_s",), DEVICE_TO_HOST: ("pcie_tx_bytes_per_s",), PEER: ("nvlink_tx_bytes_per_s",)}
_USUAL = (
    "sm_active_percent", "sm_occupancy_percent", "dram_active_percent",
    "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_tx_bytes_per_s",
)  # fmt: skip
_MODELLED = (*_USUAL, "dram_bytes_per_s")


class SimCounters:
    """Adds up what the device does between two instants of its simulation.

    An SM counts as active while it holds a block; blocks of a kernel are spread over as many SMs as there are.
    """

    description = "the simulated device's model"
    period_s = pause_s = 0.0

    def __init__(self, driver: SimDriver, counters: Sequence[str] = _USUAL, period_ns: int | None = None) -> None:
        self._driver, self._period_ns = driver, period_ns or PERIOD_NS
        self._most_periods = 1 if period_ns else MOST_PERIODS  # a pace that was asked for is kept
        self._counters = [name for name in counters if name in _MODELLED]
        self.left_out = {name: "the simulated device does not model it" for name in counters if name not in _MODELLED}
        self._readings: list[CounterReading] = []
        self._sums: defaultdict[str, float] = defaultdict(float)
        with driver.lock:
            driver.catch_up()
            self._begin_ns = self._now_ns = driver.clock.now_ns
            driver.scheduler.meters.append(self._count)

    def read(self, *, is_last: bool = False) -> list[CounterReading]:
        """Return what was counted since the last time, by pieces of the period of virtual time at most."""
        del is_last  # all that was counted is told each time
        driver = self._driver
        with driver.lock:
            driver.catch_up()
            self._count(driver.clock.now_ns)
            self._close_piece()
            found, self._readings = self._readings, []
        return found

    def close(self) -> None:
        """Count no more."""
        with self._driver.lock, suppress(ValueError):
            self._driver.scheduler.meters.remove(self._count)

    def _count(self, until_ns: int) -> None:
        """Take that the device went on as it is until then."""
        rates = self._rates()
        while self._now_ns < until_ns:
            # While all stays the same, pieces are longer; while nothing happens, one is for all of that.
            period_ns = self._period_ns
            most = (until_ns - self._begin_ns) // period_ns if self._now_ns == self._begin_ns else 1
            count = max(1, min(most, self._most_periods) if rates else most)
            end_ns = min(until_ns, self._begin_ns + count * period_ns)
            for name, rate in rates.items():
                self._sums[name] += rate * (end_ns - self._now_ns)
            self._now_ns = end_ns
            if end_ns == self._begin_ns + count * period_ns:
                self._close_piece()

    def _close_piece(self) -> None:
        duration_ns = self._now_ns - self._begin_ns
        if duration_ns > 0:
            values = {name: self._sums[name] / duration_ns for name in self._counters}
            self._readings.append(CounterReading(self._begin_ns, self._now_ns, values))
        self._begin_ns = self._now_ns
        self._sums.clear()

    def _rates(self) -> dict[str, float]:
        """Return what each counter is at this instant, but for zeros."""
        scheduler = self._driver.scheduler
        pool, preset = scheduler.pool, scheduler.preset
        blocks = Counter[int]()
        bytes_per_s = 0.0
        for run in scheduler.running_kernels():
            bytes_per_s += run.running * run.block_draw * run.speed
            for batch in run.batches:
                for group, count in batch.parts:
                    blocks[group] += count
        all_slots = preset.sm_count * preset.slots_per_sm
        active = sum(min(len(pool.groups[group]), count) for group, count in blocks.items())
        rates = defaultdict[str, float](float)
        for copy in scheduler.running_copies():
            rate = copy.spec.size_bytes * 1e9 / copy.spec.duration_ns
            bytes_per_s += rate  # what comes in is written to the card's memory, what goes out is read from it
            for name in _LINKS[copy.spec.engine]:
                rates[name] += rate
        bytes_per_s = min(bytes_per_s, preset.memory_bytes_per_s)  # copies do not slow kernels in this model
        rates |= {
            "sm_active_percent": 100 * active / preset.sm_count,
            "sm_occupancy_percent": 100 * (all_slots - sum(pool.free)) / all_slots,
            "dram_active_percent": 100 * bytes_per_s / preset.memory_bytes_per_s,
            "dram_bytes_per_s": bytes_per_s,
        }
        return {name: rate for name, rate in rates.items() if rate}
