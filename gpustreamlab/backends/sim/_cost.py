"""What a call costs the simulated device: its grid, bytes and operations.

Every modelled kernel is a grid of equal blocks. A block's time is the longest of its arithmetic, its share of the memory
traffic and the preset's floor. How grids are cut is a convention of this module, not a copy of any library's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpustreamlab.backends.sim._commands import DEVICE_TO_HOST, HOST_TO_DEVICE, CopySpec, KernelSpec
from gpustreamlab.backends.sim._presets import DevicePreset
from gpustreamlab.errors import OptionError
from gpustreamlab.typing import SpanKind

_BLOCK_BYTES = 32_768  # of a streaming kernel
_STREAM_BLOCKS_PER_SM = 16
_LARGE_TILE = (128, 256)  # of a matrix product; takes a whole SM
_SMALL_TILE = (64, 64)
_SMALL_TILES_PER_SM = 8


@lru_cache(maxsize=256)
def plan_spin(slots_per_sm: int, duration_ns: int, blocks: int, *, fill_sms: bool) -> KernelSpec:
    """Return a kernel whose blocks each run for an exact time.

    Raises
    ------
    OptionError
        For a time or a number of blocks below 1.
    """
    if duration_ns < 1 or blocks < 1:
        raise OptionError(f"A spin of {blocks} blocks for {duration_ns} ns cannot run; give at least 1 block and 1 ns.")
    slots = slots_per_sm if fill_sms else 1
    return KernelSpec(name="spin", blocks=int(blocks), block_slots=slots, block_ns=int(duration_ns))


def plan_streaming(
    preset: DevicePreset,
    name: str,
    *,
    size_bytes: int,
    operations: int,
    dtype: np.dtype[Any],
    kind: SpanKind = SpanKind.KERNEL,
) -> KernelSpec:
    """Return a kernel that goes through memory once: element-wise work, reductions, copies within the device, fills.

    Parameters
    ----------
    preset
        The device.
    name
        The kernel's name.
    size_bytes
        Bytes read plus bytes written.
    operations
        Arithmetic operations.
    dtype
        What is computed with; 64-bit floats have their own speed.
    kind
        Kernel or fill.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> plan_streaming(H200, "add", size_bytes=3 << 20, operations=1 << 18, dtype=np.dtype("f4")).blocks
    96
    """
    blocks = max(1, -(-size_bytes // _BLOCK_BYTES))
    blocks_per_sm = min(_STREAM_BLOCKS_PER_SM, preset.slots_per_sm)
    rate = preset.float64_operations_per_s if dtype.char in "dDgG" else preset.sm_operations_per_s
    return _plan_blocks(
        preset,
        name,
        blocks=blocks,
        blocks_per_sm=blocks_per_sm,
        size_bytes=size_bytes,
        operations=operations,
        rate=rate,
        kind=kind,
    )


def plan_matmul(preset: DevicePreset, name: str, *, m: int, n: int, k: int, batch: int, dtype: np.dtype[Any]) -> KernelSpec:
    """Return the kernel of a matrix product ``(m, k) @ (k, n)``, or of a batch of them.

    Output tiles of 128 x 256 take a whole SM each; where they would leave more than half of the card idle, tiles of 64 x 64 an
    eighth.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> plan_matmul(H200, "matmul", m=4096, n=4096, k=4096, batch=1, dtype=np.dtype("f2")).blocks
    512
    """
    m, n, k, batch = max(m, 1), max(n, 1), max(k, 1), max(batch, 1)
    tile, blocks_per_sm = _LARGE_TILE, 1
    if 2 * batch * _count_tiles(m, n, tile) < preset.sm_count:
        tile, blocks_per_sm = _SMALL_TILE, min(_SMALL_TILES_PER_SM, preset.slots_per_sm)
    blocks = batch * _count_tiles(m, n, tile)
    rate = preset.matmul_operations_per_s.get(f"{dtype.kind}{dtype.itemsize}", preset.sm_operations_per_s)
    factor = 4 if dtype.kind == "c" else 1  # a complex product is four real ones
    return _plan_blocks(
        preset,
        name,
        blocks=blocks,
        blocks_per_sm=blocks_per_sm,
        size_bytes=batch * (m * k + k * n + m * n) * dtype.itemsize,
        operations=2 * factor * batch * m * n * k,
        # Tiles at the edge are computed whole.
        padded_operations=2 * factor * blocks * tile[0] * tile[1] * k,
        rate=rate,
        efficiency=preset.matmul_efficiency,
    )


def plan_host_copy(preset: DevicePreset, engine: int, size_bytes: int, *, is_pinned: bool) -> CopySpec:
    """Return a copy between host and device."""
    pinned_rate = preset.h2d_bytes_per_s if engine == HOST_TO_DEVICE else preset.d2h_bytes_per_s
    rate = pinned_rate if is_pinned else min(preset.pageable_bytes_per_s, pinned_rate)
    duration_ns = max(1, preset.copy_latency_ns + -(-size_bytes * 1_000_000_000 // rate))
    return CopySpec(_COPY_NAMES[engine], engine, size_bytes, duration_ns, is_pinned)


_COPY_NAMES = {HOST_TO_DEVICE: "memcpy HtoD", DEVICE_TO_HOST: "memcpy DtoH"}


def _count_tiles(m: int, n: int, tile: tuple[int, int]) -> int:
    return -(-m // tile[0]) * -(-n // tile[1])


def _plan_blocks(
    preset: DevicePreset,
    name: str,
    *,
    blocks: int,
    blocks_per_sm: int,
    size_bytes: int,
    operations: int,
    rate: float,
    padded_operations: int | None = None,
    kind: SpanKind = SpanKind.KERNEL,
    efficiency: tuple[tuple[int, float], ...] = (),
) -> KernelSpec:
    """Cut a kernel into blocks that have their slots' share of an SM."""
    block_operations = (operations if padded_operations is None else padded_operations) / blocks
    block_bytes = size_bytes // blocks
    compute_ns = block_operations * blocks_per_sm / rate * 1e9
    memory_ns = block_bytes * blocks_per_sm / preset.sm_bytes_per_s * 1e9
    return KernelSpec(
        name=name,
        blocks=blocks,
        block_slots=preset.slots_per_sm // blocks_per_sm,
        block_ns=max(round(compute_ns), round(memory_ns), preset.kernel_floor_ns, 1),
        block_bytes=block_bytes,
        block_limit_bytes_per_s=preset.sm_bytes_per_s // blocks_per_sm,
        operations=operations,
        size_bytes=size_bytes,
        kind=kind,
        efficiency=efficiency,
    )
