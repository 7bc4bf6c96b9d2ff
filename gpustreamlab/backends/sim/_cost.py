"""What a call costs the simulated device: its grid, bytes and operations.

Every modelled kernel is a grid of equal blocks. A block's time is the longest of its arithmetic, its share of the memory
traffic and the preset's floor. How grids are cut is a convention of this module, not a copy of any library's.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, SupportsIndex

import numpy as np

from gpustreamlab.backends._activity import PEER_COPY
from gpustreamlab.backends.sim._commands import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    LARGE_TILE,
    MAX_BLOCK_THREADS,
    MAX_THREAD_REGISTERS,
    PEER,
    RESERVED_SHARED_BYTES,
    SMALL_TILE,
    SPIN,
    SPIN_CARD,
    STREAMING,
    BlockShape,
    CopySpec,
    KernelSpec,
)
from gpustreamlab.backends.sim._scheduler import Scheduler
from gpustreamlab.backends.sim._sms import SMGroups
from gpustreamlab.errors import BackendNotFoundError, OptionError, nearest_hint
from gpustreamlab.model import SMLimits
from gpustreamlab.typing import SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What each call costs the host, in ns of virtual time. Every enqueue costs at least 1 ns."""

    launch_ns: int = 4_000
    """Launching a kernel or a fill. Source: FACTS.md, a CuPy RawKernel."""
    copy_ns: int = 4_000
    """Enqueuing a copy. An assumption: as a launch."""
    record_ns: int = 1_100
    """Recording an event. Source: FACTS.md."""
    wait_ns: int = 1_000
    """Making a stream wait for an event. An assumption: about as a record."""
    query_ns: int = 1_300
    """Asking whether a stream or an event is done. Source: FACTS.md."""
    elapsed_ns: int = 180
    """Reading the time between two events. Source: FACTS.md."""
    select_ns: int = 400
    """Selecting a stream. Source: FACTS.md, ``with stream:``."""
    synchronize_ns: int = 2_000
    """Returning from a synchronisation, after the device is done. An assumption."""
    create_stream_ns: int = 8_000
    """Creating a stream, of a green context or not. Measured on an H200, driver 13.0."""
    create_context_ns: int = 1_300_000
    """Creating a green context. Measured on an H200, driver 13.0: 1.1 to 1.7 ms."""
    destroy_context_ns: int = 16_000
    """Destroying a green context. Measured on an H200, driver 13.0."""
    allocate_ns: int = 2_000
    """Allocating or freeing memory in the order of a stream. An assumption."""
    graph_launch_ns: int = 5_000
    """Launching a CUDA graph, but for its nodes. An assumption: a little more than a kernel, from Python."""
    graph_node_ns: int = 200
    """Launching each node of a graph. An assumption."""
    instantiate_ns: int = 20_000
    """Making a graph of what was captured, but for its nodes. An assumption."""
    instantiate_node_ns: int = 2_000
    """Making each node of a graph, or updating it. An assumption."""
    push_ns: int = 50
    """Opening or closing a range for other tools. Source: FACTS.md, an NVTX domain."""
    clock_read_ns: int = 40
    """Reading the host's clock."""

    def __post_init__(self) -> None:
        enqueues = (self.launch_ns, self.copy_ns, self.record_ns, self.wait_ns)
        if min(enqueues) < 1 or min(self.query_ns, self.clock_read_ns) < 1:
            raise OptionError(
                "Every enqueue, query and clock read of HostCosts costs at least 1 ns, so that loops on them end."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePreset:
    """Sizes and speeds of a simulated device.

    Examples
    --------
    >>> DevicePreset(name="tiny", sm_count=4).slots_per_sm
    32
    """

    name: str
    """What the device calls itself."""
    sm_count: int
    """How many streaming multiprocessors there are."""
    slots_per_sm: int = 32
    """How many of the smallest blocks fit on one SM; a power of two."""
    memory_bytes: int = 0
    """Device memory. Scratch memory is counted against it, arrays are not; 0 for no limit."""
    compute_capability: tuple[int, int] = (0, 0)
    """Major and minor number; only shown."""
    memory_bytes_per_s: int = 4_250_000_000_000
    """What all SMs together may draw from memory."""
    sm_bytes_per_s: int = 94_000_000_000
    """What one SM may draw from memory; a block may draw the share of its slots."""
    h2d_bytes_per_s: int = 55_000_000_000
    """Copies from page-locked host memory to the device."""
    d2h_bytes_per_s: int = 55_000_000_000
    """Copies from the device to page-locked host memory."""
    peer_bytes_per_s: int = 396_000_000_000
    """Copies from another card. 18 links of NVLink between two H100: 256 MiB in 677 us, 16 MiB in 45 us."""
    pageable_bytes_per_s: int = 12_000_000_000
    """Copies from or to ordinary host memory, either way. An assumption."""
    copy_latency_ns: int = 1_500
    """Start of a copy before bytes flow. An assumption."""
    kernel_floor_ns: int = 1_500
    """The shortest time that a block of a modelled kernel takes. An assumption; spins are exact."""
    matmul_operations_per_s: dict[str, float] = field(default_factory=lambda: {"f2": 6.92e12, "f4": 0.4e12, "f8": 0.4e12})
    """Matrix product: operations per second of one SM, by dtype kind and size; others use ``sm_operations_per_s``."""
    matmul_extra_waves: dict[str, float] = field(default_factory=dict)
    """How many waves more than its grid has a matrix product takes, by dtype kind and size, none for others: what it costs to
    fill and drain the SMs."""
    sm_operations_per_s: float = 0.4e12
    """All other arithmetic: operations per second of one SM."""
    float64_operations_per_s: float = 0.2e12
    """The same for 64-bit floats."""
    priority_range: tuple[int, int] = (0, -5)
    """Lowest and highest stream priority."""
    queue_limit: int = 1_024
    """Work a stream may hold before the next enqueue blocks the host."""
    sm_groups: SMGroups | None = None
    """The smallest groups that the driver splits the SMs into; None for a device without green contexts."""
    has_memory_pools: bool = True
    """Whether memory can be allocated in the order of a stream."""
    driver_version: str = "13.0"
    """The CUDA version that the driver supports; the bindings are taken to have the same."""
    context_bytes: int = 4 << 20
    """Device memory that each green context costs for good. Source: FACTS.md, an H200 with driver 13.0."""
    host: HostCosts = field(default_factory=HostCosts)
    """What each call costs the host."""

    def __post_init__(self) -> None:
        rates = [f"{what}_bytes_per_s" for what in ("memory", "sm", "h2d", "d2h", "peer", "pageable")]
        for what in ("sm_count", "slots_per_sm", *rates, "queue_limit"):
            if (value := getattr(self, what)) < 1:
                raise OptionError(f"DevicePreset {self.name!r} has {what}={value}; give at least 1.")
        if not all(0 <= waves < math.inf for waves in self.matmul_extra_waves.values()):
            raise OptionError(
                f"DevicePreset {self.name!r} has matmul_extra_waves={self.matmul_extra_waves}; give 0 or more of each "
                "dtype, such as {'f2': 1.0}."
            )
        if self.slots_per_sm & (self.slots_per_sm - 1):
            raise OptionError(
                f"DevicePreset {self.name!r} has slots_per_sm={self.slots_per_sm}; give a power of two, such as 32."
            )
        if not re.fullmatch(r"\d+\.\d+", self.driver_version):
            raise OptionError(
                f"DevicePreset {self.name!r} has driver_version={self.driver_version!r}; give two numbers, such as '13.0'."
            )
        if self.sm_groups is not None:
            self.sm_groups.cut(self.sm_count)

    @property
    def sm_limits(self) -> SMLimits:
        """What an SM holds at once: as many blocks as it has slots, and else what `SMLimits` has anyway."""
        return SMLimits(blocks=self.slots_per_sm)

    @property
    def cuda_version(self) -> tuple[int, int]:
        """Major and minor number of `driver_version`."""
        major, minor = self.driver_version.split(".")
        return int(major), int(minor)


# The SM ids of each group as ``%smid`` showed them on an H200: SMs are numbered across the GPCs, two by two.
_H200_GROUPS = tuple(
    tuple(sm for row in range(4) for sm in (first + row * stride, first + row * stride + 1))
    # One GPC has no more than 8 SMs.
    for first, stride in [*((2 * g, 16) for g in range(8)), *((64 + 2 * g, 14) for g in range(7))]
)


H200 = DevicePreset(
    name="H200",
    sm_count=132,
    memory_bytes=141_000_000_000,
    compute_capability=(9, 0),
    matmul_operations_per_s={"f2": 7.17e12, "f4": 0.368e12, "f8": 0.368e12},
    matmul_extra_waves={"f2": 1.0},
    sm_groups=SMGroups(min_sms=8, alignment_sms=8, table=_H200_GROUPS),
)
"""Calibrated to one NVIDIA H200, driver 13.0; see docs/explanations/simulated-device.md."""

H200_CUDA13_1 = replace(H200, driver_version="13.1")
"""The same card with a driver that has structured splits and work queues. An assumption: none was at hand."""

H200_CUDA12_2 = replace(H200, driver_version="12.2")
"""The same card with a driver that is too old for green contexts."""

LAPTOP = DevicePreset(
    name="laptop GPU",
    sm_count=24,
    memory_bytes=8_000_000_000,
    compute_capability=(8, 9),
    memory_bytes_per_s=240_000_000_000,
    sm_bytes_per_s=16_000_000_000,
    h2d_bytes_per_s=12_000_000_000,
    d2h_bytes_per_s=12_000_000_000,
    peer_bytes_per_s=6_000_000_000,
    pageable_bytes_per_s=6_000_000_000,
    matmul_operations_per_s={"f2": 1.2e12, "f4": 0.3e12, "f8": 0.005e12},
    sm_operations_per_s=0.3e12,
    float64_operations_per_s=0.005e12,
)
"""A small card such as laptops have, without green contexts. Round figures, not measured on any device."""

PRESETS = {"h200": H200, "h200-cuda13.1": H200_CUDA13_1, "h200-cuda12.2": H200_CUDA12_2, "laptop": LAPTOP}


def find_preset(preset: str | DevicePreset) -> DevicePreset:
    """Return the preset of a name, or the given one."""
    if isinstance(preset, DevicePreset):
        return preset
    key = str(preset).lower()
    if key in PRESETS:
        return PRESETS[key]
    raise BackendNotFoundError(
        f"No simulated device is called {preset!r}. {nearest_hint(key, PRESETS)} "
        "SimBackend takes one of these names or a DevicePreset."
    )


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
    slots = slots_per_sm if fill_sms else 1
    shape = SPIN_CARD if fill_sms else SPIN
    return KernelSpec(name="spin", blocks=int(blocks), block_slots=slots, block_ns=int(duration_ns), shape=shape)


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
    return _plan_blocks(
        preset,
        name,
        blocks=max(1, -(-size_bytes // _BLOCK_BYTES)),
        blocks_per_sm=min(_STREAM_BLOCKS_PER_SM, preset.slots_per_sm),
        size_bytes=size_bytes,
        operations=operations,
        rate=preset.float64_operations_per_s if dtype.char in "dDgG" else preset.sm_operations_per_s,
        kind=kind,
        shape=STREAMING,
    )


def plan_matmul(preset: DevicePreset, name: str, *, m: int, n: int, k: int, batch: int, dtype: np.dtype[Any]) -> KernelSpec:
    """Return the kernel of a matrix product ``(m, k) @ (k, n)``, or of a batch of them.

    Output tiles of 128 x 256 take a whole SM each; where they would leave more than half of the card idle, tiles of 64 x 64 an
    eighth. On a stream with n SMs it takes as many waves as n SMs need for its tiles, and the preset's extra waves: more SMs
    never make it slower.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> plan_matmul(H200, "matmul", m=4096, n=4096, k=4096, batch=1, dtype=np.dtype("f2")).blocks
    512
    """
    m, n, k, batch = max(m, 1), max(n, 1), max(k, 1), max(batch, 1)
    tile, blocks_per_sm, shape = _LARGE_TILE, 1, LARGE_TILE
    if 2 * batch * _count_tiles(m, n, tile) < preset.sm_count:
        tile, blocks_per_sm, shape = _SMALL_TILE, min(_SMALL_TILES_PER_SM, preset.slots_per_sm), SMALL_TILE
    blocks = batch * _count_tiles(m, n, tile)
    known_as = f"{dtype.kind}{dtype.itemsize}"
    rate = preset.matmul_operations_per_s.get(known_as, preset.sm_operations_per_s)
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
        extra_waves=preset.matmul_extra_waves.get(known_as, 0.0),
        shape=shape,
    )


def plan_host_copy(preset: DevicePreset, engine: int, size_bytes: int, *, is_pinned: bool) -> CopySpec:
    """Return a copy between host and device."""
    pinned_rate = preset.h2d_bytes_per_s if engine == HOST_TO_DEVICE else preset.d2h_bytes_per_s
    rate = pinned_rate if is_pinned else min(preset.pageable_bytes_per_s, pinned_rate)
    duration_ns = max(1, preset.copy_latency_ns + -(-size_bytes * 1_000_000_000 // rate))
    return CopySpec(_COPY_NAMES[engine], engine, size_bytes, duration_ns, is_pinned)


def plan_peer_copy(preset: DevicePreset, size_bytes: int, *, source: int, target: int) -> CopySpec:
    """Return a copy from one card to another, by their numbers."""
    duration_ns = max(1, preset.copy_latency_ns + -(-size_bytes * 1_000_000_000 // preset.peer_bytes_per_s))
    return CopySpec(PEER_COPY, PEER, size_bytes, duration_ns, places=f"memcpy GPU {source} to GPU {target}")


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
    **more: Any,
) -> KernelSpec:
    """Cut a kernel into blocks that have their slots' share of an SM; `more` are fields of its spec."""
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
        **more,
    )


_MOST = 2**31 - 1
_MOST_WORK = 2**62
_LONGEST_NS = 2**50
"""How long a kernel may take alone, but for contended memory: 13 days. Beyond months, fractions of a ns are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledKernel:
    """What the model makes of a kernel on the SMs of a stream, if it runs there alone."""

    name: str
    """The kernel."""
    blocks: int
    """Blocks of its grid."""
    fitting_blocks: int
    """How many blocks fit on an SM by threads, registers and shared memory, as on a GPU."""
    blocks_per_sm: int
    """How many the model puts there: the next lower power of two."""
    limited_by: str
    """What is scarcest: ``blocks``, ``threads``, ``registers`` or ``shared memory``."""
    bound_by: str
    """What a block spends its time on: ``arithmetic``, ``memory``, or ``floor``, the shortest time that a block takes."""
    sm_count: int
    """SMs of the stream."""
    waves: int
    """How often these are filled until all blocks have run."""
    block_ns: int
    """How long a block runs where the memory's bandwidth is not contended."""
    alone_ns: int
    """How long the kernel takes on these SMs with nothing beside it."""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.alone_ns:,} ns alone on {self.sm_count} SMs (modelled), {self.blocks:,} blocks, "
            f"{self.blocks_per_sm} an SM (limited by {self.limited_by}), waves: {self.waves:,}, "
            f"{self.block_ns:,} ns a block (bound by {self.bound_by})"
        )


def plan_kernel(
    preset: DevicePreset,
    name: str,
    *,
    blocks: SupportsIndex,
    threads_per_block: SupportsIndex,
    registers_per_thread: SupportsIndex = 32,
    shared_bytes: SupportsIndex = 0,
    bytes_per_block: SupportsIndex = 0,
    operations_per_block: SupportsIndex = 0,
    sm_operations_per_s: float | None = None,
) -> KernelSpec:
    """Return a kernel of the user's own.

    Parameters
    ----------
    preset
        The device.
    name
        What it is called in records.
    blocks
        Blocks of the grid.
    threads_per_block, registers_per_thread, shared_bytes
        What a block takes of an SM: up to 1,024 threads, 255 registers of 32 bits for each, and shared memory in bytes. They
        decide how many blocks an SM holds at once, and nothing else.
    bytes_per_block, operations_per_block
        What a block reads and writes of the device's memory in bytes, and its arithmetic operations.
    sm_operations_per_s
        Operations per second of one SM; None for the preset's ``sm_operations_per_s``.

    Raises
    ------
    OptionError
        If a number is out of range, or no block fits on an SM.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> spec = plan_kernel(H200, "scale", blocks=1_056, threads_per_block=256, bytes_per_block=65_536)
    >>> spec.block_slots, spec.block_ns  # 8 blocks share an SM's 94 GB/s
    (4, 5578)
    """
    if type(name) is not str or not name:
        raise OptionError(f"A modelled kernel's name is {name!r:.40}; give a text, such as 'scale'.")
    count = _whole("blocks", blocks, 1, _MOST)
    shape = BlockShape(
        threads=_whole("threads_per_block", threads_per_block, 1, MAX_BLOCK_THREADS),
        registers=_whole("registers_per_thread", registers_per_thread, 0, MAX_THREAD_REGISTERS),
        shared_bytes=_whole("shared_bytes", shared_bytes, 0, preset.sm_limits.shared_bytes - RESERVED_SHARED_BYTES),
    )
    size_bytes = _whole("bytes_per_block", bytes_per_block, 0, _MOST_WORK)
    operations = _whole("operations_per_block", operations_per_block, 0, _MOST_WORK)
    rate = preset.sm_operations_per_s if sm_operations_per_s is None else float(sm_operations_per_s)
    if not 0 < rate < float("inf"):
        raise OptionError(f"sm_operations_per_s is {sm_operations_per_s!r}; give more than 0, such as 0.4e12.")
    fitting = shape.blocks_per_sm(preset.sm_limits)
    if not fitting:
        raise OptionError(
            f"Kernel {name!r} has blocks of {shape.threads} threads with {shape.registers} registers each, and an SM has "
            f"{preset.sm_limits.registers:,} registers in all. Take fewer threads, or fewer registers for each."
        )
    per_sm = 1 << (fitting.bit_length() - 1)
    return _plan_blocks(
        preset,
        name,
        blocks=count,
        blocks_per_sm=per_sm,
        size_bytes=size_bytes * count,
        operations=operations * count,
        rate=rate,
        shape=shape,
    )


def explain_kernel(preset: DevicePreset, spec: KernelSpec, sm_count: int) -> ModelledKernel:
    """Return what the model makes of a kernel on so many SMs; it runs there alone, on a device of its own."""
    per_sm = preset.slots_per_sm // spec.block_slots
    fits = {"blocks": per_sm} if spec.shape is None else spec.shape.limits(preset.sm_limits)
    scarcest = min(fits, key=fits.__getitem__)
    draw_ns = spec.block_bytes * per_sm / preset.sm_bytes_per_s * 1e9
    bound_by = (
        "memory" if round(draw_ns) == spec.block_ns else "floor" if spec.block_ns <= preset.kernel_floor_ns else "arithmetic"
    )
    waves, block_ns = -(-spec.blocks // (per_sm * sm_count)), spec.block_ns_on(sm_count * preset.slots_per_sm)
    if waves * block_ns > _LONGEST_NS:
        raise OptionError(
            f"Kernel {spec.name!r} would take {waves * block_ns / 86_400e9:,.0f} days on {sm_count} SMs, and 13 is the most. "
            "Give it fewer blocks, or less for each to do."
        )
    scheduler = Scheduler(preset)
    stream = scheduler.add_stream(1, preset.priority_range[0], frozenset(range(sm_count)))
    scheduler.submit_kernel(stream, spec, 1)
    scheduler.run_until(lambda: not scheduler.busy_count, lambda _now_ns: None)
    return ModelledKernel(
        name=spec.name,
        blocks=spec.blocks,
        fitting_blocks=fits[scarcest],
        blocks_per_sm=per_sm,
        limited_by=scarcest,
        bound_by=bound_by,
        sm_count=sm_count,
        waves=waves,
        block_ns=block_ns,
        alone_ns=scheduler.now_ns - 1,
    )


def _whole(what: str, value: object, least: int, most: int) -> int:
    number = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else least - 1
    if not least <= number <= most:
        raise OptionError(f"{what} is {value!r:.40}; it must be a whole number from {least:,} to {most:,}.")
    return number
