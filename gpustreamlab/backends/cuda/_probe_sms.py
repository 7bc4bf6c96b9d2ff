"""Find out on which SMs the work of a stream runs: each block of a kernel notes its ``%smid``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpustreamlab.backends.cuda._kernels import probe_kernel
from gpustreamlab.backends.cuda._stream import CudaStream
from gpustreamlab.typing import Int64Array

MAX_SM_IDS = 1_024
"""Room for SM ids; the largest cards have under 200."""
BLOCK_NS = 10_000
"""How long each block holds its SM, so that the blocks behind it go to others."""
BLOCKS_PER_SM = 2
"""Blocks for each SM of the card: with one, a late start of a neighbour could leave an SM out."""

_in_flight: list[tuple[Any, tuple[CudaStream, ...]]] = []
"""What kernels may still write to: after an error or an interrupt, the memory stays until their streams are done."""


def probe_sms(
    streams: Sequence[CudaStream], *, ordinal: int, sm_count: int, pinned_empty: Callable[..., Any], select: Any, restore: Any
) -> list[Int64Array]:
    """Run the probe on all streams at once and wait for it.

    Each block takes a whole SM for a moment. Enough blocks for the whole card run on every stream, so a stream that is not
    confined shows more SMs than its partition has.
    """
    _in_flight[:] = [(array, used) for array, used in _in_flight if not all(stream.is_idle for stream in used)]
    seen = pinned_empty((len(streams), MAX_SM_IDS), np.uint32)
    seen[...] = 0
    kernel, shared_bytes = probe_kernel(ordinal)
    entry = (seen, tuple(streams))
    _in_flight.append(entry)
    for row, stream in zip(seen, streams, strict=True):
        token = select(stream)
        try:
            arguments = (np.uint64(row.ctypes.data), np.int64(BLOCK_NS))
            kernel((BLOCKS_PER_SM * sm_count,), (32,), arguments, shared_mem=shared_bytes)
        finally:
            restore(token)
    for stream in streams:
        stream.synchronize()
    _in_flight[:] = [known for known in _in_flight if known is not entry]
    return [np.flatnonzero(row).astype(np.int64) for row in seen]
