"""How far the timers of two cards of a host are apart: a flag in host memory goes back and forth between them."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab.backends.cuda._libcuda import import_cupy
from gpustreamlab.errors import DeviceError
from gpustreamlab.model import ClockRates
from gpustreamlab.typing import PeerAccess

if TYPE_CHECKING:
    from gpustreamlab.backends.cuda._backend import CudaBackend


TURNS = 200
"""How often the flag goes to the other card and back: about 0.5 ms."""
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


_IS_ON = 704
"""cudaErrorPeerAccessAlreadyEnabled."""


def read_peer_access(own: int, other: int) -> PeerAccess:
    """Tell whether the current device, of this number, reads the memory of another directly. Only turning it on tells."""
    runtime = import_cupy().cuda.runtime
    if not runtime.deviceCanAccessPeer(own, other):
        return PeerAccess.IMPOSSIBLE
    try:
        runtime.deviceEnablePeerAccess(other)
    except runtime.CUDARuntimeError as error:
        if error.status != _IS_ON:
            raise
        return PeerAccess.ON
    runtime.deviceDisablePeerAccess(other)
    return PeerAccess.OFF


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
