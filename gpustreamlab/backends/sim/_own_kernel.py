"""Kernels of the user's own on the simulated device: what they take is stated, their time is modelled."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import SupportsIndex

from gpustreamlab.backends.sim._commands import KernelSpec
from gpustreamlab.backends.sim._cost import DevicePreset
from gpustreamlab.backends.sim._occupancy import (
    MAX_BLOCK_THREADS,
    MAX_THREAD_REGISTERS,
    RESERVED_SHARED_BYTES,
    BlockShape,
)
from gpustreamlab.backends.sim._scheduler import Scheduler
from gpustreamlab.errors import OptionError

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
    compute_ns, memory_ns = operations * per_sm / rate * 1e9, size_bytes * per_sm / preset.sm_bytes_per_s * 1e9
    return KernelSpec(
        name=name,
        blocks=count,
        block_slots=preset.slots_per_sm // per_sm,
        block_ns=max(round(compute_ns), round(memory_ns), preset.kernel_floor_ns, 1),
        block_bytes=size_bytes,
        block_limit_bytes_per_s=preset.sm_bytes_per_s // per_sm,
        operations=operations * count,
        size_bytes=size_bytes * count,
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
