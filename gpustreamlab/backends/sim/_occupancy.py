"""What a block of a modelled kernel takes of an SM, and so how many blocks an SM holds at once."""

from __future__ import annotations

from typing import NamedTuple

from gpustreamlab.model import SMLimits

MAX_BLOCK_THREADS = 1_024
"""Most threads of a block. Source: CUDA C++ Programming Guide, technical specifications per compute capability."""
MAX_THREAD_REGISTERS = 255
"""Most registers of a thread. Source: as above."""
RESERVED_SHARED_BYTES = 1 << 10
"""Shared memory of an SM that a block cannot have: the system keeps it. Source: as above, compute capability 8.0 and newer."""


class BlockShape(NamedTuple):
    """What a block takes of an SM, as the records tell it.

    Examples
    --------
    >>> BlockShape(threads=128, registers=64).blocks_per_sm(SMLimits())  # 65,536 registers for 8,192 of each block
    8
    """

    threads: int
    """Threads of a block."""
    registers: int = 0
    """Registers of a thread."""
    shared_bytes: int = 0
    """Shared memory of a block."""

    def limits(self, limits: SMLimits) -> dict[str, int]:
        """Return how many blocks fit on an SM by each of what it has: blocks, threads, registers, shared memory."""
        return {
            "blocks": limits.blocks,
            "threads": limits.threads // max(self.threads, 1),
            "registers": limits.registers // max(self.threads * self.registers, 1),
            "shared memory": limits.shared_bytes // max(self.shared_bytes, 1),
        }

    def blocks_per_sm(self, limits: SMLimits) -> int:
        """Return how many blocks an SM holds at once: what the scarcest of it allows, 0 where none fits."""
        return min(self.limits(limits).values())


def plain_shape(blocks_per_sm: int, limits: SMLimits) -> BlockShape:
    """Return a block of which so many fit on an SM, and no more, for a kernel of which no more is known.

    Examples
    --------
    >>> [plain_shape(count, SMLimits()).threads for count in (1, 2, 8, 32)]
    [1024, 1024, 256, 64]
    """
    threads = max(1, min(MAX_BLOCK_THREADS, limits.threads // blocks_per_sm))
    return BlockShape(threads=threads, registers=min(MAX_THREAD_REGISTERS, limits.registers // (threads * blocks_per_sm)))


STREAMING = BlockShape(threads=128, registers=32)
"""Of element-wise work: 16 on an SM."""
LARGE_TILE = BlockShape(threads=384, registers=168, shared_bytes=227 << 10)
"""Of a matrix product in large tiles: an SM each, as kernels of Hopper have them that load and multiply in groups of warps."""
SMALL_TILE = BlockShape(threads=128, registers=64, shared_bytes=16 << 10)
"""Of a matrix product in small tiles: 8 on an SM."""
SPIN = BlockShape(threads=32, registers=16)
"""Of a kernel that waits, as on a GPU: 32 on an SM."""
SPIN_CARD = BlockShape(threads=32, registers=16, shared_bytes=227 << 10)
"""Of one that takes an SM for each block, by its shared memory, as on a GPU."""
