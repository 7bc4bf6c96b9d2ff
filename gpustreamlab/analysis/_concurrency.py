"""How many lanes were busy at once, what they share, and how that is said."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpustreamlab.analysis._busy import (
    busy_edges,
    busy_sum_ns,
    count_steps,
    counted_extent,
    counted_kinds,
    counted_rows,
    interval_sum_ns,
    is_work,
    of_device,
    per_row,
    range_only_ns,
    require_trace,
    stream_extent,
)
from gpustreamlab.analysis._scale import format_ns, format_share, three_digits
from gpustreamlab.analysis._utilization import size_of
from gpustreamlab.model import NO_COMMON_TIME, SPAN_KINDS, Trace, TraceMetadata
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

# As CUPTI's constants are named, in the names of copies; within the device, no such engine is needed.
_DIRECTIONS = (
    ("copies to the device share an engine", re.compile(r"\bHto[DA]\b")),
    ("copies to the host share an engine", re.compile(r"\b[DA]toH\b")),
)
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
    """Find the shared resource of a device that spans of these kinds need longest."""
    # Assumed is one copy engine for each direction, and that a kernel fills the SMs of its partition if its grid has as many
    # blocks as fit on them at once. Kernels of several partitions share the card by the SMs that each has.
    if not is_work(trace).any():
        return NOTHING_SHARED
    rows = counted_rows(trace, kinds)
    is_kernel = rows & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    blocks = trace.extra.get("grid_blocks")
    needed: list[tuple[int, str]] = []
    are_grids_known = bool(is_kernel.any()) and blocks is not None and bool((blocks[is_kernel] > 0).all())
    for device in trace.devices:
        own = of_device(trace, device)
        needed += _copy_times(trace, rows & own)
        if blocks is not None and device.sm_count:
            needed += _sm_times(trace, is_kernel & own, blocks, device.sm_count)
        are_grids_known &= bool(device.sm_count) or not (is_kernel & own).any()
    busy_ns, reason = max(needed, default=(0, ""))
    return Shared(busy_ns=busy_ns, reason=reason, are_copies_known=True, are_grids_known=are_grids_known)


def concurrency_text(mean: float, most: float, reason: str, counted: Collection[SpanKind]) -> str:
    """Write a mean concurrency with its bound, and what it is bounded by where that is not the busiest stream."""
    # Where ranges count it is itself a bound, as they contain waiting, and has no other. The bound holds for work at full
    # speed: a mean above it says that work which shares something slowed each other.
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


def blocks_that_fit(trace: Trace) -> Int64Array:
    """Return how many blocks of each kernel fit on an SM at once; where little is known of a launch, more than do."""
    fit = per_row(trace, [device.sm_limits.blocks for device in trace.devices])
    for needed, there_are in block_needs(trace):
        fit = np.minimum(fit, there_are // np.maximum(needed, 1))
    blocks: Int64Array = np.maximum(fit, 1)
    return blocks


def block_needs(trace: Trace) -> list[tuple[Int64Array, Int64Array]]:
    """Return how many threads, registers and bytes of shared memory a block of each kernel needs, and how many its SM has."""
    none = np.zeros(len(trace), np.int64)
    threads, registers, shared_bytes = (trace.extra.get(name, none) for name in ("block_threads", "registers", "shared_bytes"))
    limits = [device.sm_limits for device in trace.devices]
    return [
        (threads, per_row(trace, [one.threads for one in limits])),
        (registers * threads, per_row(trace, [one.registers for one in limits])),
        (shared_bytes, per_row(trace, [one.shared_bytes for one in limits])),
    ]


def _sm_times(trace: Trace, is_kernel: BoolArray, blocks: np.ndarray, card_sms: int) -> Iterator[tuple[int, str]]:
    """Yield how long the SMs of each partition are needed, and those of the card, to which a partition adds its part."""
    sm_counts = np.array([*(size_of(trace, part).granted_sms for part in trace.partitions), card_sms], np.int64)
    fills = is_kernel & (blocks >= sm_counts[trace.partition] * blocks_that_fit(trace))
    card_sm_ns = 0
    for partition in np.unique(trace.partition[fills]).tolist():
        time_ns = busy_sum_ns(trace, fills & (trace.partition == partition))
        card_sm_ns += time_ns * int(sm_counts[partition])
        yield time_ns, SMS_SHARED
    yield card_sm_ns // card_sms, SMS_SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Busy time of all lanes together. All times are exact integers of nanoseconds."""

    wall_ns: int
    """From the first start to the last end of the counted spans, in ns."""
    sum_ns: int
    """What the lanes' busy times add up to, in ns."""
    active_ns: int
    """Time in which at least one lane was busy, in ns."""
    together_ns: int
    """Time in which two or more lanes were busy, in ns."""
    busiest_ns: int
    """Busy time of the busiest lane, in ns."""
    peak_lanes: int
    """Most lanes that were busy at one time."""
    range_only_ns: int = 0
    """How much of `sum_ns` is known from ranges only, in ns: an upper bound, as they also contain queueing."""
    shared: Shared = NOTHING_SHARED
    """What the lanes share, as far as it is known."""

    @property
    def mean_concurrency(self) -> float:
        """Mean number of lanes busy while any is: `sum_ns` / `active_ns`; NaN if none ever was.

        It is no speed-up: work that was slowed by other work was busy for longer.
        """
        return self.sum_ns / self.active_ns if self.active_ns else math.nan

    @property
    def max_concurrency(self) -> float:
        """The same if this work took `ideal_ns`: `sum_ns` / `ideal_ns`; NaN if no lane was ever busy."""
        return self.sum_ns / self.ideal_ns if self.ideal_ns else math.nan

    @property
    def ideal_ns(self) -> int:
        """Least time that this work takes at full speed, in ns: the busiest lane's, or that of what several lanes share."""
        return max(self.busiest_ns, self.shared.busy_ns)

    def mean_text(self, counted: Collection[SpanKind]) -> str:
        """Write `mean_concurrency` and its bound in words, given which kinds of spans count."""
        reason = self.shared.reason if self.shared.busy_ns > self.busiest_ns else ""
        return concurrency_text(self.mean_concurrency, self.max_concurrency, reason, counted)

    @property
    def together_share(self) -> float:
        """`together_ns` as a share of `active_ns`: pauses between cells do not count; NaN where nothing ran."""
        return self.together_ns / self.active_ns if self.active_ns else math.nan


def concurrency(
    trace: Trace,
    edges: Sequence[Int64Array] | None = None,
    steps: tuple[Int64Array, Int64Array] | None = None,
) -> Concurrency:
    """Compute how much ran at the same time; `busy_edges`, and `count_steps` of them, may be given where they are known."""
    require_trace(trace, "concurrency")
    kinds = counted_kinds(trace)
    edges = busy_edges(trace, kinds) if edges is None else edges
    times_ns, counts = count_steps(edges) if steps is None else steps
    lasting_ns = np.diff(times_ns)
    counts_then = counts[: len(lasting_ns)]
    lanes_ns = [interval_sum_ns(lane) for lane in edges]
    first_ns, last_ns = counted_extent(trace, kinds)
    active_ns = int(lasting_ns.sum()) - int(lasting_ns[counts_then == 0].sum())
    return Concurrency(
        wall_ns=last_ns - first_ns,
        sum_ns=sum(lanes_ns),
        active_ns=active_ns,
        together_ns=active_ns - int(lasting_ns[counts_then == 1].sum()),
        busiest_ns=max(lanes_ns, default=0),
        peak_lanes=int(counts.max(initial=0)),
        range_only_ns=range_only_ns(trace, kinds, sum(lanes_ns)),
        shared=shared_time(trace, kinds),
    )


def over_wall(trace: Trace, result: Concurrency) -> Concurrency:
    """Return how much ran at once with the whole time of all streams, which is the length of a picture, as its wall."""
    first_ns, last_ns = stream_extent(trace)
    return replace(result, wall_ns=last_ns - first_ns)


_MEAN = "; mean concurrency "


def finding_text(result: Concurrency, meta: TraceMetadata, *, lane_count: int, counted: Collection[SpanKind]) -> str:
    """Say in one line how much of some streams ran at once; empty where nothing ran, or where that is not known."""
    # Where ranges count all is an upper bound, and the line says so, and how much of the busy time that is. Of what share of
    # the time that is nothing is said then: nobody knows for how long any stream worked.
    if not result.sum_ns or NO_COMMON_TIME in meta.missing:
        return ""
    if lane_count < 2:
        word = "Queued or running" if SpanKind.RANGE in counted else "Busy"
        return f"{word} {format_share(result.active_ns / result.wall_ns)} of the time; one stream, so nothing can overlap"
    has_ranges = SpanKind.RANGE in counted
    if has_ranges and result.together_ns:
        together = f"What ran at once is not known, at most {format_ns(result.together_ns)}"
    else:
        # Of many streams a high share says little: 2 of 100 may have been all.
        counts = f"2 to {result.peak_lanes:,}" if result.peak_lanes > 2 else "2"
        together = f"{counts} streams at once {format_share(result.together_share)} of the time any worked"
    bound = f"{together}{_MEAN}{result.mean_text(counted)}"
    if not has_ranges:
        return bound
    if not 0 < result.range_only_ns < result.sum_ns:
        return f"{bound}. Ranges contain waiting"
    by_ranges = format_share(result.range_only_ns / result.sum_ns)
    return f"{bound}. {by_ranges} of the busy time is by ranges only, which contain waiting"


def plain_finding(finding: str) -> str:
    """Return what a `finding_text` begins with, as the one sentence of a picture's head ends with it."""
    return f"{finding[:1].lower()}{finding[1:].partition(_MEAN)[0]}"
