"""The few kernels that the CUDA backend brings along."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gpustreamlab.backends._activity import PROBE_NAME, SPIN_NAME
from gpustreamlab.backends.cuda._libcuda import import_cupy
from gpustreamlab.backends.cuda.cupti._records import Columns
from gpustreamlab.typing import BoolArray

_SOURCE = r"""
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Each block is busy for duration_ns of the card's own clock; block 0 stores when it began and ended.
__device__ __forceinline__ void be_busy(long long duration_ns, unsigned long long* began_ended) {
    const unsigned long long began = global_timer();
    unsigned long long now = began;
    while (static_cast<long long>(now - began) < duration_ns) now = global_timer();
    if (began_ended && blockIdx.x == 0 && threadIdx.x == 0) {
        began_ended[0] = began;
        began_ended[1] = now;
    }
}

// That of workloads.spin: shown as spin, and known by a linker's name that no kernel of a user has.
namespace gpustreamlab {
__global__ void spin(long long duration_ns, unsigned long long* began_ended) { be_busy(duration_ns, began_ended); }
}

// The same for a session's clock.
extern "C" __global__ void gpustreamlab_clock(long long duration_ns, unsigned long long* began_ended) {
    be_busy(duration_ns, began_ended);
}

// Each block is busy for duration_ns and marks the SM that it is on.
extern "C" __global__ void gpustreamlab_probe(unsigned int* seen, long long duration_ns) {
    unsigned int sm;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    be_busy(duration_ns, nullptr);
    if (threadIdx.x == 0) seen[sm] = 1;
}
"""


@cache
def spin_kernel(device_ordinal: int) -> Any:
    """Return ``spin(int64 duration_ns, uint64* began_ended)`` for a device; the pointer may be 0."""
    return _module(device_ordinal).get_function(SPIN_NAME)


@cache
def clock_kernel(device_ordinal: int) -> Any:
    """Return ``gpustreamlab_clock(int64 duration_ns, uint64* began_ended)`` for a device: a `spin_kernel` in no trace."""
    return _module(device_ordinal).get_function("gpustreamlab_clock")


@cache
def filling_spin_kernel(device_ordinal: int) -> tuple[Any, int]:
    """Return a ``spin`` whose blocks each need a whole SM, and the bytes of shared memory that make it so."""
    return _filling_kernel(SPIN_NAME, device_ordinal)


@cache
def probe_kernel(device_ordinal: int) -> tuple[Any, int]:
    """Return ``gpustreamlab_probe(uint32* seen, int64 duration_ns)``, a whole SM a block, and the bytes that make it so."""
    return _filling_kernel(PROBE_NAME, device_ordinal)


def _filling_kernel(name: str, device_ordinal: int) -> tuple[Any, int]:
    cupy = import_cupy()
    with cupy.cuda.Device(device_ordinal) as device:  # CuPy loads a kernel, and sets its attributes, for the current one
        # A module of its own: the attribute below would change every launch of the shared function.
        kernel = cupy.RawModule(code=_SOURCE).get_function(name)
        shared_bytes = int(device.attributes["MaxSharedMemoryPerBlockOptin"])
        kernel.max_dynamic_shared_size_bytes = shared_bytes
    return kernel, shared_bytes


@cache
def _module(device_ordinal: int) -> Any:
    return import_cupy().RawModule(code=_SOURCE)


FENCE_BYTES = 4  # How much is filled
FENCE_VALUE = 0xC7  # With what: CUPTI tells of it, so that these can be left out

_WORD = FENCE_VALUE * 0x0101_0101  # The same where the driver fills words


class Fence:
    """Four bytes of one device to be filled in front of an event."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._address: int = runtime.malloc(FENCE_BYTES)
        self.put = self._make_put()
        """Put a fence into the stream of a handle, whose device has to be current; a CUDA graph that is captured gets none."""

    def close(self) -> None:
        """Free the memory; nothing may use it any more. Idempotent."""
        address, self._address = self._address, 0
        if address:
            self._runtime.free(address)

    def _make_put(self) -> Callable[[int], object]:
        # On the hot path of ranges: what it needs is at hand.
        fill, is_capturing, address = self._runtime.memsetAsync, self._runtime.streamIsCapturing, self._address

        def put(handle: int) -> None:
            if not is_capturing(handle):
                fill(address, FENCE_VALUE, FENCE_BYTES, handle)

        return put


def are_fences(fills: Columns) -> BoolArray:
    """Tell which records of fills are fences."""
    found: BoolArray = (fills["bytes"] == FENCE_BYTES) & np.isin(fills["value"], [FENCE_VALUE, _WORD])
    return found
