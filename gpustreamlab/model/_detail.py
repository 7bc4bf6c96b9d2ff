"""What a piece of device work was, beyond its name."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model._fields import Count, check_fields

SM_SHARED_BYTES = 228 << 10
"""Shared memory of an SM, the most that any has (9.0 to 12.x). Source: CUDA C++ Programming Guide, "Compute Capabilities"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDetail:
    """How a kernel was launched, or what a copy went between. Many spans share one.

    Examples
    --------
    >>> WorkDetail(full_name="void gemm<float>(float*)", grid=(128, 2, 1), block=(256, 1, 1)).grid_blocks
    256
    """

    full_name: str
    """The demangled name with all its arguments, or what a copy went between."""
    grid: tuple[Count, Count, Count] = (0, 0, 0)
    """Blocks of the grid in x, y, z; zeros for what has none."""
    block: tuple[Count, Count, Count] = (0, 0, 0)
    """Threads of a block in x, y, z; zeros for what has none."""
    registers: Count = 0
    """Registers of a thread."""
    static_shared_bytes: Count = 0
    """Shared memory of a block that the kernel declares."""
    dynamic_shared_bytes: Count = 0
    """Shared memory of a block that the launch asked for."""
    graph: Count = 0
    """Id of the CUDA graph that launched it; 0 for none."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def grid_blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]
