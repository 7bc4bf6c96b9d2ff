"""Counters of a CUDA device by NVML: its GPU performance monitoring (GPM) where the card has it, else its utilization rates."""

# GPM needs no privilege and takes 0.4 ms of one thread a sample (H200). It says what happened between two samples, but as of
# the last time that the card counted on: on an H200 every 102 ms. Two samples between which it did not come out as errors, as
# zeros and, its memory, as no number. Asked each 100 ms, whenever that was, a value was of a time up to 100 ms before: a copy
# in a loop came out as 67%, not 86%. So the first two moments of counting on are looked for, and then each is asked for as it
# comes: a little earlier each time, until it is too early. Values are late by 4 ms, and by what the thread waits for Python:
# of the first two moments none may be seen so late, or what was counted in 102 ms stands for 14, each too soon.

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from gpustreamlab._util.defences import process_lock
from gpustreamlab.backends._counters import CounterReading
from gpustreamlab.backends.cuda._probe import CLOCK_LIMITS, clock_bit, load_nvml

_log = logging.getLogger(__name__)

PERIOD_S = 0.1  # Of rates
AGAIN_S = 0.004  # Until it is asked again, where it was too early
EARLIER_NS, LATER_NS = 200_000, 1_800_000  # What then changes from one time to the next: one question in ten is too early
PROMPT_NS = 25_000_000  # Of two questions within this time the second one has seen the card count on at once
MOST_WAIT_NS = 250_000_000
SLOW_EVERY_NS = 100_000_000  # Power and clocks change slowly, and NVML takes longer for them

COUNTING = process_lock()
"""Held by who asks a card for counters: it has them for one at a time, and two sessions of a process were refused by turns."""

_MEMORY = "dram_active_percent"
_MIB, _AS_IT_IS = 1024.0 * 1024.0, 1.0
_GPM = {  # What is asked for, by its name in nvml.h, and what one unit of it is
    "sm_active_percent": ("NVML_GPM_METRIC_SM_UTIL", _AS_IT_IS),
    "sm_occupancy_percent": ("NVML_GPM_METRIC_SM_OCCUPANCY", _AS_IT_IS),
    "tensor_active_percent": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", _AS_IT_IS),
    _MEMORY: ("NVML_GPM_METRIC_DRAM_BW_UTIL", _AS_IT_IS),
    "pcie_rx_bytes_per_s": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
    "pcie_tx_bytes_per_s": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
    "nvlink_rx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _MIB),
    "nvlink_tx_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _MIB),
}


class NvmlCounters:
    """Reads the counters of one card; made by `open_counters`."""

    period_s = PERIOD_S

    def __init__(self, nvml: Any, card: Any, clock_ns: Callable[[], int]) -> None:
        self._nvml, self._card, self._clock_ns = nvml, card, clock_ns
        self._spare: list[Any] = []
        self._last: Any = None
        self._last_ns = self._slow_ns = clock_ns()
        self._slow_until_ns = 0
        self._has_gpm = self._begin_gpm()
        self._asked_ns = 0
        self._came_ns = 0  # When it last counted on
        self._every_ns = 0  # From one time to the next, once that is known
        self._was_early = True
        self.pause_s = AGAIN_S if self._has_gpm else PERIOD_S
        self.description = "NVML GPM" if self._has_gpm else "NVML utilization"

    def read(self, *, is_last: bool = False) -> list[CounterReading]:
        """Return what was counted since the last time that there was something to tell."""
        del is_last  # the card goes on by itself
        with COUNTING:
            values, begin_ns, now_ns = self._read_gpm() if self._has_gpm else self._read_rates()
        if not values:
            return []
        if now_ns >= self._slow_until_ns:
            values |= self._read_slow()
            self._slow_until_ns = now_ns + SLOW_EVERY_NS
        return [CounterReading(begin_ns, now_ns, values)]

    def close(self) -> None:
        """Give the samples back. Idempotent."""
        with COUNTING:
            for sample in [*self._spare, *([] if self._last is None else [self._last])]:
                self._nvml.nvmlGpmSampleFree(sample)
            self._spare, self._last = [], None

    def _begin_gpm(self) -> bool:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._card).isSupportedDevice:
                return False
            self._spare = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            with COUNTING:
                self._last, self._last_ns = self._sample()
        except (nvml.NVMLError, AttributeError) as error:  # a package that is older, or a card in MIG mode
            _log.debug("No GPU performance monitoring: %s", error)
            self.close()
            return False
        return True

    def _sample(self) -> tuple[Any, int]:
        """Take a sample; return it, and the middle of the time that it took."""
        sample, begin_ns = self._spare[-1], self._clock_ns()
        self._nvml.nvmlGpmSampleGet(self._card, sample)
        return self._spare.pop(), (begin_ns + self._clock_ns()) // 2

    def _read_gpm(self) -> tuple[dict[str, float], int, int]:
        nvml, last_ns = self._nvml, self._last_ns
        try:
            sample, now_ns = self._sample()
        except nvml.NVMLError_InUse:  # another process samples at this very moment
            return {}, last_ns, last_ns
        is_prompt, self._asked_ns = now_ns - self._asked_ns <= PROMPT_NS, now_ns
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        asked.sample1, asked.sample2 = self._last, sample
        for place, (metric, _) in enumerate(_GPM.values()):
            asked.metrics[place].metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(asked)
        values = {
            name: asked.metrics[place].value * unit
            for place, (name, (_, unit)) in enumerate(_GPM.items())
            if asked.metrics[place].nvmlReturn == nvml.NVML_SUCCESS and not math.isnan(asked.metrics[place].value)
        }
        if not (_MEMORY in values or any(values.values()) or now_ns - last_ns >= MOST_WAIT_NS):
            self._spare.append(sample)
            self._every_ns += LATER_NS if self._every_ns else 0
            self._was_early, self.pause_s = True, AGAIN_S
            return {}, last_ns, now_ns
        self._spare.append(self._last)
        self._last, self._last_ns = sample, now_ns
        if not self._came_ns or not (self._every_ns or is_prompt):  # the time since is of another length than what was counted
            self._came_ns = now_ns if is_prompt else 0
            return {}, last_ns, now_ns
        self._every_ns = self._every_ns - EARLIER_NS if self._every_ns else now_ns - last_ns - round(AGAIN_S * 1e9)
        # Where this thread had to wait for its turn, the card counted on before.
        self._came_ns = now_ns if self._was_early else min(now_ns, self._came_ns + self._every_ns)
        self._was_early, self.pause_s = False, max(AGAIN_S, (self._came_ns + self._every_ns - now_ns) / 1e9)
        return values, last_ns, now_ns

    def _read_rates(self) -> tuple[dict[str, float], int, int]:
        """Return NVML's own rates, which it averages over a sixth of a second to a second."""
        last_ns, now_ns = self._last_ns, self._clock_ns()
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._card)
        self._last_ns = now_ns
        return {"kernel_time_percent": float(rates.gpu), "memory_time_percent": float(rates.memory)}, last_ns, now_ns

    def _read_slow(self) -> dict[str, float]:
        nvml, card = self._nvml, self._card
        values: dict[str, float] = {}
        asked: dict[str, Callable[[], float]] = {
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1_000,
            "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM)),
            "clocks_held_down": lambda: float(self._are_clocks_held_down()),
        }
        for name, ask in asked.items():
            try:
                values[name] = ask()
            except nvml.NVMLError as error:  # of a card that does not tell
                _log.debug("NVML does not tell %s: %s", name, error)
        return values

    def _are_clocks_held_down(self) -> bool:
        reasons = int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._card))
        return any(reasons & clock_bit(self._nvml, name) for name in CLOCK_LIMITS)


def open_counters(bus_id: str, clock_ns: Callable[[], int] = time.time_ns) -> NvmlCounters | None:
    """Begin to count on the card with a PCI bus id; None where NVML cannot be asked.

    Parameters
    ----------
    bus_id
        Of the card, as ``cudaDeviceGetPCIBusId`` returns it.
    clock_ns
        The backend's clock of the host.
    """
    nvml = load_nvml()
    if nvml is None:
        return None
    try:
        return NvmlCounters(nvml, nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()), clock_ns)
    except nvml.NVMLError as error:
        _log.debug("NVML counts nothing on card %s: %s", bus_id, error)
        return None
