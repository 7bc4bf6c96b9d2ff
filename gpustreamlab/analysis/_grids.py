"""Kernels whose grid was sized for the whole card although they ran in a partition of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gpustreamlab.analysis._scale import count_text, three_digits
from gpustreamlab.analysis._utilization import layout_warnings, size_of
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import BoolArray, SpanKind

MOST_BLOCKS_PER_SM = 32
"""Most blocks that an SM holds at once on any card so far; a grid of more per SM was not sized by the SMs. Source: CUDA C++
Programming Guide, technical specifications per compute capability."""

LISTED_GRIDS = 3
"""How many kernels the advice names: those with most launches."""

_LIBRARY = re.compile(
    r"gemm|gemv|cutlass|cublas|cudnn|cufft|cusparse|cusolver|nvjet|xmma|fmha|flash_|nccl|splitk|winograd|convolve"
    r"|(?:^|_)sm\d\d+_|\b(?:at|c10|cub|thrust|cute|cudf|raft|rmm|ggml)::|^cupy_|^triton_",
    re.IGNORECASE,
)
"""Signs of kernels whose grids a library sizes, in their names: advice on those could not be followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSizedGrid:
    """A kernel that was launched with a multiple of the card's SMs as its grid, in a partition with fewer SMs."""

    name: str
    """The kernel."""
    partition: str
    """The partition in which it ran."""
    grid_blocks: int
    """Blocks of its grid."""
    card_sms: int
    """SMs of the card."""
    granted_sms: int
    """SMs of the partition as it was."""
    span_count: int
    """How many launches were seen."""

    @property
    def waves(self) -> float:
        """Blocks for each SM that it could use; on the whole card this is a whole number."""
        return self.grid_blocks / self.granted_sms

    def __str__(self) -> str:
        times = f" ({self.span_count:,} times)" if self.span_count > 1 else ""
        per_card = self.grid_blocks // self.card_sms
        return (
            f"{display_name(self.name, 40)} was launched{times} with {self.grid_blocks:,} blocks, {per_card} for each of the "
            f"card's {self.card_sms:,} SMs, in {display_name(self.partition, 24)} with {self.granted_sms:,} SMs: "
            f"{three_digits(self.waves)} blocks per SM. Size the grid by stream.sm_count"
        )


def card_sized_grids(trace: Trace) -> tuple[CardSizedGrid, ...]:
    """Find kernels in partitions whose grid was probably sized for the whole card.

    These are kernels that ran in a partition smaller than the card, with a grid that is an exact multiple of the card's SMs, up
    to `MOST_BLOCKS_PER_SM` for each. Where the card's SM count is a power of two, grids that were sized by the data are found
    as well: it is a hint, no proof. Kernels with the name of a library's are left out: the library sizes their
    grids.

    Parameters
    ----------
    trace
        The spans. Without the extra column ``grid_blocks``, or without kernels, nothing is found.

    Returns
    -------
    tuple of CardSizedGrid
        One for each name, grid and partition; those with most launches first.
    """
    blocks = trace.extra.get("grid_blocks")
    if blocks is None or not trace.partitions:
        return ()
    card_sms = trace.metadata.device.sm_count
    sizes = [size_of(trace, part) for part in trace.partitions]
    is_smaller = np.array([*(0 < size.granted_sms < card_sms for size in sizes), False])
    is_kernel = trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)
    fits = (blocks > 0) & (blocks % card_sms == 0) & (blocks <= MOST_BLOCKS_PER_SM * card_sms)
    rows = np.flatnonzero(is_kernel & fits & is_smaller[trace.partition] & ~_of_libraries(trace))
    keys = np.stack((trace.name[rows], trace.partition[rows], blocks[rows].astype(np.int64)), axis=1)
    found: dict[CardSizedGrid, int] = {}
    unique, launches = np.unique(keys, axis=0, return_counts=True)
    for (name, code, count), launch_count in zip(unique.tolist(), launches.tolist(), strict=True):
        grid = CardSizedGrid(
            name=trace.names[name],
            partition=trace.partitions[code].name,
            grid_blocks=count,
            card_sms=card_sms,
            granted_sms=sizes[code].granted_sms,
            span_count=0,
        )
        found[grid] = found.get(grid, 0) + launch_count
    # Partitions of one name and size, told apart only by their groups, count together.
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return tuple(replace(grid, span_count=count) for grid, count in ordered)


def grid_advice(trace: Trace) -> str:
    """Say in one sentence which kernels of the user were sized for the whole card; empty where none was."""
    grids = card_sized_grids(trace)
    if not grids:
        return ""
    told = [
        f"{display_name(grid.name, 40)} ({grid.grid_blocks:,} blocks on the {grid.granted_sms:,} SMs of "
        f"{display_name(grid.partition, 24)}, {count_text(grid.span_count, 'launch', 'launches')})"
        for grid in grids[:LISTED_GRIDS]
    ]
    more = len(grids) - LISTED_GRIDS
    told += [f"{more:,} more, see card_sized_grids()"] if more > 0 else []
    return f"Grids of a multiple of the card's {grids[0].card_sms:,} SMs: {', '.join(told)}. Size them by stream.sm_count"


def partition_warnings(trace: Trace) -> list[str]:
    """Say what about a trace's partitions is not as it reads: not enforced, not as measured."""
    return list(layout_warnings(trace.layout))


def _of_libraries(trace: Trace) -> BoolArray:
    """Tell which spans have the name of a library's kernel; shape (n_spans,), bool."""
    by_name = np.array([_LIBRARY.search(name) is not None for name in trace.names], bool)[trace.name]
    detail = trace.extra.get("detail")
    if detail is None:
        return by_name
    # The name alone may be too short to tell; the last entry is that of a span without details.
    by_detail = np.array([*(_LIBRARY.search(one.full_name) is not None for one in trace.details), False], bool)[detail]
    found: BoolArray = by_name | by_detail
    return found
