"""What several streams share: the copy engine of each direction, and the SMs. It bounds how many of them can work at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis._busy import busy_sum_ns, counted_rows, is_work
from gpustreamlab.analysis._sm_time import size_of
from gpustreamlab.analysis._units import three_digits
from gpustreamlab.model import SM_SHARED_BYTES, SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

# As CUPTI's constants are named, in the names of copies; within the device, no such engine is needed.
_DIRECTIONS = (
    ("copies to the device share an engine", re.compile(r"\bHto[DA]\b")),
    ("copies to the host share an engine", re.compile(r"\b[DA]toH\b")),
)
SM_BLOCKS, SM_THREADS, SM_REGISTERS = 32, 2_048, 65_536
"""What an SM holds at once, the most of any. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""
SMS_SHARED = "kernels share the SMs"
"""What bounds the streams where the SMs do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How long what the streams share is needed at least, one user after the other."""

    busy_ns: int = 0
    """Time of the resource that is needed longest, in ns; 0 where none is known to be shared."""
    reason: str = ""
    """Which that is, in words; empty where none is."""
    are_copies_known: bool = False
    """Whether copies were seen one by one."""
    are_grids_known: bool = False
    """Whether the grid of each counted kernel is known; without, the SMs are not in it."""


NOTHING_SHARED = Shared()
"""Where nothing is known of what ran."""


def shared_time(trace: Trace, kinds: Sequence[SpanKind]) -> Shared:
    """Find the shared resource that is needed longest.

    Assumed is one copy engine for each direction, and that a kernel fills the SMs of its partition if its grid has as many
    blocks as fit on them at once, by their threads, registers and shared memory. Kernels of several partitions share the card
    by the SMs that each has.

    Parameters
    ----------
    trace
        The spans.
    kinds
        Kinds that count as busy time.
    """
    if not is_work(trace).any():
        return NOTHING_SHARED
    rows = counted_rows(trace, kinds)
    is_kernel = rows & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    blocks = trace.extra.get("grid_blocks") if trace.metadata.device.sm_count else None
    are_grids_known = bool(is_kernel.any()) and blocks is not None and bool((blocks[is_kernel] > 0).all())
    needed = [*_copy_times(trace, rows), *(_sm_times(trace, is_kernel, blocks) if blocks is not None else ())]
    busy_ns, reason = max(needed, default=(0, ""))
    return Shared(busy_ns=busy_ns, reason=reason, are_copies_known=True, are_grids_known=are_grids_known)


def concurrency_text(mean: float, most: float, reason: str, counted: Collection[SpanKind]) -> str:
    """Write a mean concurrency with its bound, and what it is bounded by where that is not the busiest stream.

    Where ranges count it is itself a bound, as they contain waiting, and has no other. The bound holds for work at full speed:
    a mean above it says that work which shares something slowed each other.

    Examples
    --------
    >>> concurrency_text(1.2, 1.5, "", (SpanKind.KERNEL,)), concurrency_text(1.2, 1.5, "", (SpanKind.RANGE,))
    ('1.20 of at most 1.50', 'up to 1.20')
    >>> concurrency_text(0.9, 1.0, SMS_SHARED, (SpanKind.KERNEL,))
    '0.90 of at most 1.00 at full speed: kernels share the SMs'
    >>> concurrency_text(1.04, 1.0, SMS_SHARED, (SpanKind.KERNEL,))
    '1.04; at full speed at most 1.00: kernels share the SMs, so they slowed each other'
    """
    if SpanKind.RANGE in counted:
        return f"up to {three_digits(mean)}"
    # As written: a hair above the bound is the bound.
    if reason and float(f"{mean:.2f}") > float(f"{most:.2f}"):
        return f"{three_digits(mean)}; at full speed at most {three_digits(most)}: {reason}, so they slowed each other"
    return f"{three_digits(mean)} of at most {three_digits(most)}{f' at full speed: {reason}' if reason else ''}"


def bound_note(shared: Shared) -> str:
    """Say in one sentence what the bound of the mean concurrency assumes, where kernels, copies and fills are known."""
    sms = (
        "kernels whose blocks fill the SMs of their partition share them"
        if shared.are_grids_known
        else "and that kernels may share SMs is left out where their grids are not known"
    )
    return f"At most: the busiest stream hides all others, copies in one direction share one engine, {sms}."


def _copy_times(trace: Trace, rows: BoolArray) -> Iterator[tuple[int, str]]:
    is_copy = rows & (trace.kind == SPAN_KINDS.index(SpanKind.COPY))
    for reason, sign in _DIRECTIONS:
        is_named = np.array([sign.search(name) is not None for name in trace.names], bool)
        if is_named.any():
            yield busy_sum_ns(trace, is_copy & is_named[trace.name]), reason


def _blocks_that_fit(trace: Trace) -> Int64Array:
    """Return how many blocks of each kernel fit on an SM at once; where little is known of a launch, more than do."""
    none = np.zeros(len(trace), np.int64)
    threads, registers, shared_bytes = (trace.extra.get(name, none) for name in ("block_threads", "registers", "shared_bytes"))
    fit = np.full(len(trace), SM_BLOCKS)
    for needed, there_are in ((threads, SM_THREADS), (registers * threads, SM_REGISTERS), (shared_bytes, SM_SHARED_BYTES)):
        fit = np.minimum(fit, there_are // np.maximum(needed, 1))
    blocks: Int64Array = np.maximum(fit, 1)
    return blocks


def _sm_times(trace: Trace, is_kernel: BoolArray, blocks: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yield how long the SMs of each partition are needed, and those of the card, to which a partition adds its part."""
    card_sms = trace.metadata.device.sm_count
    sm_counts = np.array([*(size_of(trace, part).granted_sms for part in trace.partitions), card_sms], np.int64)
    fills = is_kernel & (blocks >= sm_counts[trace.partition] * _blocks_that_fit(trace))
    card_sm_ns = 0
    for partition in np.unique(trace.partition[fills]).tolist():
        time_ns = busy_sum_ns(trace, fills & (trace.partition == partition))
        card_sm_ns += time_ns * int(sm_counts[partition])
        yield time_ns, SMS_SHARED
    yield card_sm_ns // card_sms, SMS_SHARED
