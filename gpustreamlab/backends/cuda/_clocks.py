"""How fast a card runs, and what slows it down, as NVML tells through nvidia-ml-py."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from gpustreamlab.model import ClockRates

_log = logging.getLogger(__name__)

_LIMITS = {
    "SwPowerCap": "its power limit",
    "HwSlowdown": "a hardware slowdown",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "the power supply",
    "ApplicationsClocksSetting": "clocks that were set for applications",
    "SyncBoost": "clocks in step with other cards",
}
"""What holds clocks down, by the end of NVML's names, ``nvmlClocksEventReason...``."""


def read_clocks(bus_id: str) -> ClockRates | None:
    """Return the clocks of the card with a PCI bus id; None where NVML cannot be asked."""
    nvml = _load()
    if nvml is None:
        return None
    try:
        card = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))
        return ClockRates(
            sm_mhz=int(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            memory_mhz=int(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM)),
            limits=tuple(dict.fromkeys(word for name, word in _LIMITS.items() if reasons & _bit(nvml, name))),
        )
    except nvml.NVMLError as error:
        _log.debug("NVML does not tell of card %s: %s", bus_id, error)
        return None


def _bit(nvml: Any, name: str) -> int:
    return int(getattr(nvml, f"nvmlClocksEventReason{name}", 0) or getattr(nvml, f"nvmlClocksThrottleReason{name}", 0))


@cache
def _load() -> Any:
    """Return the package, with NVML begun; None where either is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - the library is missing, or the driver's is
        _log.debug("NVML cannot be asked: %s", error)
        return None
    return pynvml
