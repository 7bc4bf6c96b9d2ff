"""A kernel that ends at a moment of the card's own clock."""

from __future__ import annotations

from functools import cache
from typing import Any

_SOURCE = r"""
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Busy until the card's own clock reads began_ended[0] + offset_ns; began_ended[0] is set by an earlier spin.
extern "C" __global__ void spin_until(long long offset_ns, const unsigned long long* origin, unsigned long long* began_ended) {
    const unsigned long long began = global_timer();
    unsigned long long now = began;
    while (static_cast<long long>(now - origin[0]) < offset_ns) now = global_timer();
    began_ended[0] = began;
    began_ended[1] = now;
}
"""


@cache
def spin_until_kernel(device_ordinal: int) -> Any:
    """Return ``spin_until(int64 offset_ns, uint64* origin, uint64* began_ended)`` for a device."""
    import cupy

    return cupy.RawModule(code=_SOURCE).get_function("spin_until")
