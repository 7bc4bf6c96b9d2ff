"""SMs over time: who had them, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, interval_sum_ns, sm_kinds, union_edges
from gpustreamlab.analysis._devices import of_device
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.model import Device, Layout, Partition, Trace, display_name
from gpustreamlab.typing import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """A partition as it was for a while. The same name with other counts is another one."""

    name: str | None
    """Its name; None for the whole card."""
    requested_sms: int
    """How many SMs were asked for; all of the card for the whole card."""
    granted_sms: int
    """How many SMs its work could use: those granted, or all of the card where the device could not enforce the layout."""
    is_enforced: bool = True
    """False where the device could not partition its SMs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SMSteps:
    """When a partition of one size became busy and idle."""

    size: PartitionSize
    """The partition."""
    edges_ns: Int64Array
    """Busy, idle, busy, idle and so on; shape (2 * n_intervals,), int64, strictly increasing, on the trace's clock."""

    @property
    def busy_ns(self) -> int:
        """Time in which at least one counted span ran in it, in ns."""
        return interval_sum_ns(self.edges_ns)


def sm_time_steps(trace: Trace, device: Device | None = None) -> tuple[SMSteps, ...]:
    """Return when each partition of a device, as it was then, became busy and idle.

    A partition is busy while at least one counted span of any of its lanes runs in it (see `sm_kinds`); where those are ranges,
    they also contain queueing.

    Parameters
    ----------
    trace
        The spans.
    device
        One of `Trace.devices`; None for that of a trace of one. Of several each has the partitions in which spans ran on it.

    Returns
    -------
    tuple of SMSteps
        In the order of the layouts, then those that only spans tell of; the whole card is last.
    """
    device = trace.metadata.device if device is None else device
    sizes, is_one = partition_sizes(trace), len(trace.devices) < 2
    whole = whole_card(device)
    places = {size: place for place, size in enumerate((*sizes, whole))}
    # The last code, -1, is the whole card's.
    code_place = np.array([*(places[size_of(trace, part)] for part in trace.partitions), places[whole]])
    rows = np.flatnonzero(counted_rows(trace, sm_kinds(trace)) & of_device(trace, device))
    place = code_place[trace.partition[rows]]
    order = rows[np.argsort(place, kind="stable")]
    borders = np.concatenate(([0], np.cumsum(np.bincount(place, minlength=len(places)))))
    steps = []
    for size, (first, last) in zip(places, pairwise(borders.tolist()), strict=True):
        part = order[first:last]
        steps.append(SMSteps(size=size, edges_ns=union_edges(trace.start_ns[part], trace.end_ns[part])))
    used = tuple(step for step in steps if len(step.edges_ns) or (is_one and step.size != whole))
    return used or (SMSteps(size=whole, edges_ns=np.empty(0, np.int64)),)


def stack_sms(steps: Sequence[SMSteps], sm_count: int) -> list[tuple[Int64Array, Int64Array]]:
    """Stack the SMs of busy partitions, never higher than the card.

    Parameters
    ----------
    steps
        When each partition was busy, from the bottom of the stack. What shares SMs with those before it, as the whole card
        does, gets only the SMs that are left.
    sm_count
        How many SMs the card has.

    Returns
    -------
    list of tuple of two ndarrays of int64, shape (n_steps,)
        For each partition: times in ns at which the number of SMs that it occupies changes, and to what; the last is 0.
    """
    times_ns = np.unique(np.concatenate([np.empty(0, np.int64), *(step.edges_ns for step in steps)]))
    top = np.zeros(len(times_ns), np.int64)
    stacked = []
    for step in steps:
        is_busy = np.searchsorted(step.edges_ns, times_ns, side="right") & 1
        higher = np.minimum(top + is_busy * step.size.granted_sms, sm_count)
        height = higher - top
        changed = np.diff(height, prepend=0) != 0
        stacked.append((times_ns[changed], height[changed]))
        top = higher
    return stacked


def partition_sizes(trace: Trace) -> tuple[PartitionSize, ...]:
    """Return every partition that the trace knows, once for each size, in the order of the layouts."""
    layouts = [change.layout for change in trace.layouts] + [trace.layout]
    of_layouts = (layout_size(trace, part, layout) for layout in layouts if layout for part in layout)
    of_spans = (size_of(trace, part) for part in trace.partitions)
    return tuple(dict.fromkeys((*of_layouts, *of_spans)))


def whole_card(device: Device) -> PartitionSize:
    """Return the whole card as if it was a partition."""
    return PartitionSize(name=None, requested_sms=device.sm_count, granted_sms=device.sm_count)


def size_of(trace: Trace, partition: Partition) -> PartitionSize:
    """Return the size of one of the trace's own partitions, as the layouts tell it."""
    wanted = (partition.name, partition.requested_sms, partition.granted_sms)
    layouts = (*(change.layout for change in trace.layouts), trace.layout)
    has_it = (one for one in layouts if one and wanted in {(part.name, part.requested_sms, part.granted_sms) for part in one})
    return layout_size(trace, partition, next(has_it, None))


def layout_size(trace: Trace, partition: Partition, layout: Layout | None) -> PartitionSize:
    """Return the size of a partition of a layout; without a layout, as it says itself."""
    is_enforced = layout is None or layout.is_enforced
    granted_sms = partition.granted_sms if is_enforced else trace.metadata.device.sm_count
    return PartitionSize(
        name=partition.name, requested_sms=partition.requested_sms, granted_sms=granted_sms, is_enforced=is_enforced
    )


def layout_spells(trace: Trace, first_ns: int, last_ns: int) -> Iterator[tuple[int, int, Layout | None]]:
    """Yield from when to when each layout lasted within a time, in ns, and the layout; None before the first change."""
    begin_ns, layout = first_ns, None
    for change in trace.layouts:
        time_ns = min(max(change.time_ns, begin_ns), last_ns)
        if time_ns > begin_ns:
            yield begin_ns, time_ns, layout
        begin_ns, layout = time_ns, change.layout
    if last_ns > begin_ns:
        yield begin_ns, last_ns, layout


NAME_LIMIT = 24
"""How many characters of a partition's name are shown."""

LISTED_CHANGES = 4
"""How many partitions a change of the layout names."""


def sms_text(granted_sms: int, requested_sms: int) -> str:
    """Write how many SMs a partition has, and how many were asked for where that differs.

    Examples
    --------
    >>> sms_text(96, 90), sms_text(32, 32)
    ('96 SMs (asked for 90)', '32 SMs')
    """
    asked = f" (asked for {requested_sms:,})" if requested_sms != granted_sms else ""
    return f"{count_text(granted_sms, 'SM')}{asked}"


def proof_text(partition: Partition, layout: Layout) -> str:
    """Say what measuring a partition's SMs showed; empty where it was not measured.

    Examples
    --------
    >>> small = Partition(name="small", requested_sms=2, granted_sms=2, sm_ids=(0, 1))
    >>> proof_text(small, Layout(partitions=(small,)))
    'verified'
    """
    if partition.sm_ids is None:
        return ""
    seen = set(partition.sm_ids)
    shared = [
        f"shares {count_text(count, 'SM')} with {display_name(other.name, NAME_LIMIT)}"
        for other in layout
        if other is not partition and other.sm_ids is not None and (count := len(seen & set(other.sm_ids)))
    ]
    complete = len(seen) == partition.granted_sms
    facts = [] if complete else [f"{len(seen):,} of {partition.granted_sms:,} SMs seen"]
    return ", ".join([*facts, *shared]) or "verified"


def change_text(before: Layout | None, after: Layout | None) -> str:
    """Say how one layout became another; empty where no partition changed its size.

    Examples
    --------
    >>> first = Layout(partitions=(Partition(name="prefill", requested_sms=96, granted_sms=96),))
    >>> second = Layout(partitions=(Partition(name="prefill", requested_sms=64, granted_sms=64),))
    >>> change_text(first, second), change_text(None, first), change_text(second, None)
    ('prefill 96→64', 'prefill 96 SMs', 'no partitions')
    """
    old, new = ({part.name: part.granted_sms for part in layout or ()} for layout in (before, after))
    was_enforced, is_enforced = (layout is None or layout.is_enforced for layout in (before, after))
    if old == new and was_enforced == is_enforced:
        return ""
    if not new:
        return "no partitions"
    facts = [
        f"{display_name(name, NAME_LIMIT)} {f'{old[name]:,}→{count:,}' if name in old else f'{count:,} SMs'}"
        for name, count in new.items()
        if old.get(name) != count
    ]
    facts += [f"{display_name(name, NAME_LIMIT)} gone" for name in old if name not in new]
    more = len(facts) - LISTED_CHANGES
    shown = ", ".join(facts[:LISTED_CHANGES]) + (f" and {more:,} more" if more > 0 else "")
    return shown if is_enforced else " ".join(filter(None, (shown, "(not enforced)")))


def layout_warnings(layout: Layout | None) -> list[str]:
    """Say what about a layout is not as its numbers read."""
    if layout is None or not layout.partitions:
        return []
    if not layout.is_enforced:
        return ["Layout not enforced: SMs cannot be partitioned here, so every stream may use the whole card"]
    return [
        f"Partition {display_name(part.name, NAME_LIMIT)}: {proof}"
        for part in layout
        if (proof := proof_text(part, layout)) not in {"", "verified"}
    ]
