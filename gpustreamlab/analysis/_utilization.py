"""Partitions over time: who had which SMs, how long they were busy, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import (
    counted_extent,
    counted_rows,
    edges_of,
    interval_sum_ns,
    of_device,
    per_row,
    require_trace,
    sm_kinds,
    union_edges,
)
from gpustreamlab.analysis._card_counters import counter_means, means_text
from gpustreamlab.analysis._report import Answer, ReportTable, more_row
from gpustreamlab.analysis._scale import count_text, format_ms, format_ns, format_share, ratios
from gpustreamlab.errors import TraceError
from gpustreamlab.model import Device, Layout, Partition, SMLimits, Trace, display_name, unchangeable
from gpustreamlab.typing import FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Utilization(Answer):
    """Busy time and SMs of each partition, as it was: a name that had two sizes has two rows.

    A partition is busy as a whole while at least one counted span runs in it: its kernels may leave some of its SMs idle.
    Where the counted spans are ranges they also contain the queueing inside them. So `sm_ns` is an upper bound of the SM-time
    that the work used. Where kernels were captured, copies and fills do not count: they use no SMs.
    """

    names: tuple[str | None, ...] = field()  # type: ignore[assignment] # of the partitions, not of the trace
    """Name of each partition; None for the whole card, that is for streams in no partition, which is last of its device."""
    requested_sms: Int64Array
    """SMs that were asked for; shape (n_partitions,), int64."""
    granted_sms: Int64Array
    """SMs that the work could use; shape (n_partitions,), int64; all of the card for the whole card, and where the device
    could not enforce the layout."""
    busy_ns: Int64Array
    """Time in which at least one counted span ran in the partition; shape (n_partitions,), int64, in ns."""
    window_ns: Int64Array
    """How long the partition had this size within `wall_ns`; shape (n_partitions,), int64, in ns.
    Spans that ran in it outside of that, by the error of the clock, widen it."""
    sm_count: int
    """How many SMs the card has; of several devices all of theirs."""
    wall_ns: int
    """From the first start to the last end of all that counts as busy time, copies and fills too, in ns."""
    card_sm_ns: int
    """SM-time of all partitions together, in SM x ns. SMs that two of them share at one time, as the whole card does with
    every partition, count once: so it may be less than the sum of `sm_ns`."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as time in which SMs were in use."""
    device: Int64Array
    """Number of the device that each partition is of; shape (n_partitions,), int64."""
    active_sms: FloatArray
    """SMs that were active, by the card's counters, while the partition worked and nothing else on the card did; shape
    (n_partitions,), float64, NaN where that was not counted, or never so. Of the card's counters no one can tell whose they are
    while several partitions work."""
    counted_means: Mapping[str, float]
    """Mean of each of the card's counters over `wall_ns`, see `gpustreamlab.model.CARD_COUNTERS`; of one card, and where they
    were counted."""

    _columns: ClassVar = ("device", "requested_sms", "granted_sms", "busy_ns", "window_ns")
    _title: ClassVar = "Utilization of"

    @property
    def sm_ns(self) -> Int64Array:
        """`busy_ns` x `granted_sms`: SM-time that the spans occupied; shape (n_partitions,), int64, in SM x ns."""
        return self.busy_ns * self.granted_sms

    @property
    def share(self) -> FloatArray:
        """`busy_ns` / `window_ns`; shape (n_partitions,), float64, from 0 to 1; NaN where there was no time."""
        return ratios(self.busy_ns, self.window_ns)

    @property
    def card_share(self) -> float:
        """`card_sm_ns` as a share of all SMs over `wall_ns`; from 0 to 1, NaN where nothing ran."""
        return self.card_sm_ns / (self.sm_count * self.wall_ns) if self.wall_ns else math.nan

    def _names_by_device(self) -> list[list[str | None]]:
        numbers = self.device.tolist()
        return [[name for name, of in zip(self.names, numbers, strict=True) if of == number] for number in sorted({*numbers})]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a partition, as a `pandas.DataFrame`.

        The columns are ``partition`` (None for the whole card), ``requested_sms``, ``granted_sms``, ``busy_ns``,
        ``window_ns``, ``sm_ns``, ``share`` and ``active_sms``; of several devices ``device`` as well.
        """
        import pandas as pd

        # As objects: pandas would make a missing text of None.
        names = pd.Series(self.names, dtype=object)
        columns = ("requested_sms", "granted_sms", "busy_ns", "window_ns", "sm_ns", "share", "active_sms")
        of_cards = {"device": self.device} if len(self._names_by_device()) > 1 else {}
        return pd.DataFrame({"partition": names} | {column: getattr(self, column) for column in columns} | of_cards)

    def _line(self) -> str:
        count = count_text(sum(name is not None for name in self.names), "partition")
        where = f"{count} on {display_name(self.metadata.device_label)}"
        if not self.wall_ns:
            return f"{where}, no time recorded"
        return (
            f"{where}, {format_share(self.card_share)} of the SM-time of {self.sm_count:,} SMs over {format_ns(self.wall_ns)}"
        )

    def _tables(self) -> Sequence[ReportTable]:
        return [ReportTable(caption="SMs and time of each partition", rows=_rows(self))] if self.wall_ns else []

    def _notes(self) -> list[str]:
        notes = ["A partition counts as a whole while anything runs in it: kernels may leave some of its SMs idle."]
        notes += [f"Counted by the card over the whole time: {told}." for told in [means_text(self.counted_means)] if told]
        if np.isfinite(self.active_sms).any():
            notes.append("Active SMs: while nothing but the partition worked; the card does not count them apart.")
        if SpanKind.RANGE in self.counted:
            notes.append("Ranges contain the queueing inside them: SM-time is an upper bound of what the work used.")
        elif SpanKind.COPY not in self.counted:
            notes.append("Kernels count; copies and fills use no SMs.")
        if any(None in own and len(own) > 1 for own in self._names_by_device()):
            notes.append("The whole card shares its SMs with every partition; the total counts them once.")
        return notes


def utilization(trace: Trace) -> Utilization:
    """Compute how long each partition was busy, and how much SM-time that was.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.

    Returns
    -------
    Utilization
        Exact to the nanosecond of the trace's own times. Partitions that were gone before the first span are left out.

    Raises
    ------
    TraceError
        If the trace is so long that SM-time does not fit into 64 bits, which only wrong times make, or if it is not known how
        many SMs a card has.
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.analysis import utilization
    >>> from gpustreamlab.model import Device, Lane, Partition, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 200], queued_ns=[0, 0], lane=[0, 1], name=[0, 0], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("gemm",), threads=("MainThread",), partition=[0, -1],
    ...     lanes=(Lane(name="decode", stream=1, partition="small"), Lane(name="rest", stream=2)),
    ...     partitions=(Partition(name="small", requested_sms=10, granted_sms=16),),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=64)),
    ... )
    >>> result = utilization(trace)
    >>> result.names, result.busy_ns.tolist(), result.sm_ns.tolist(), result.card_sm_ns
    (('small', None), [100, 150], [1600, 9600], 10400)
    """
    require_trace(trace, "utilization")
    first_ns, last_ns = counted_extent(trace)
    devices = trace.devices
    sm_count = sum(device.sm_count for device in devices)
    unknown = [device for device in devices if not device.sm_count]
    if unknown:
        advice = "Use Trace.from_columns(..., sm_count=132), for example."
        if trace.metadata.imported:
            advice = "The file tells no device properties of it; trace.overlap() needs none."
        card = "the card" if len(devices) == 1 else f"GPU {unknown[0].ordinal}"
        raise TraceError(f"How many SMs {card} has is not known. {advice}")
    if (last_ns - first_ns) * sm_count >= 1 << 63:
        raise TraceError(
            f"The trace lasts {(last_ns - first_ns) / 1e9:.3g} s on {sm_count:,} SMs: its SM-time does not fit into 64 bits. "
            "Leave out the spans whose times are wrong."
        )
    by_device = [sm_time_steps(trace, device) for device in devices]
    steps = [step for own in by_device for step in own]
    numbers = [device.ordinal for device, own in zip(devices, by_device, strict=True) for _ in own]
    windows = [_window_ns(trace, step, first_ns, last_ns) for step in steps]
    kept = [place for place, step in enumerate(steps) if windows[place] or _is_current(trace, step.size)]
    sizes = [steps[place].size for place in kept]
    stacked = [part for own, device in zip(by_device, devices, strict=True) for part in stack_sms(own, device.sm_count)]
    wall = np.array([first_ns]), np.array([last_ns])
    active = [_active_sms(trace, own, device) for own, device in zip(by_device, devices, strict=True)]
    active_sms = unchangeable(np.array([share for of_card in active for share in of_card], np.float64)[kept])
    return Utilization(
        names=tuple(size.name for size in sizes),
        requested_sms=np.array([size.requested_sms for size in sizes]),
        granted_sms=np.array([size.granted_sms for size in sizes]),
        busy_ns=np.array([steps[place].busy_ns for place in kept]),
        window_ns=np.array([windows[place] for place in kept]),
        sm_count=sm_count,
        wall_ns=last_ns - first_ns,
        card_sm_ns=sum(int(np.diff(times_ns) @ sms[:-1]) for times_ns, sms in stacked),
        counted=sm_kinds(trace),
        device=np.array([numbers[place] for place in kept]),
        active_sms=active_sms,
        counted_means=counter_means(trace, *wall) if len(devices) == 1 else {},
        trace=trace,
    )


def _active_sms(trace: Trace, steps: Sequence[SMSteps], device: Device) -> list[float]:
    """Return how many SMs were active while each partition of a card worked alone; NaN where that is not known."""
    if not len(trace.counters):
        return [math.nan] * len(steps)
    edges = np.unique(np.concatenate([step.edges_ns for step in steps]))
    works = np.stack([np.searchsorted(step.edges_ns, edges[:-1], side="right") % 2 == 1 for step in steps])
    found = []
    for is_alone in works & (works.sum(axis=0) == 1):
        means = counter_means(trace, edges[:-1][is_alone], edges[1:][is_alone], device.ordinal)
        found.append(means.get("sm_active_percent", math.nan) * device.sm_count / 100)
    return found


def _window_ns(trace: Trace, step: SMSteps, first_ns: int, last_ns: int) -> int:
    if step.size.name is None or not trace.layouts:
        return last_ns - first_ns
    spells = [
        (begin_ns, end_ns)
        for begin_ns, end_ns, layout in layout_spells(trace, first_ns, last_ns)
        if layout and any(layout_size(trace, part, layout) == step.size for part in layout)
    ]
    begins_ns, ends_ns = np.concatenate((np.array(spells, np.int64).reshape(-1, 2), step.edges_ns.reshape(-1, 2))).T
    return interval_sum_ns(union_edges(begins_ns, ends_ns))


def _is_current(trace: Trace, size: PartitionSize) -> bool:
    if size.name is None:
        return True
    return trace.layout is not None and any(layout_size(trace, part, trace.layout) == size for part in trace.layout)


LISTED_PARTITIONS = 40  # How many partitions are listed

WHOLE_CARD = "whole card"  # How the place of streams in no partition is called

_NAME_WIDTH = 24


def _rows(result: Utilization) -> list[list[str]]:
    cards = result.device.tolist() if len({*result.device.tolist()}) > 1 else []
    rows = [["partition", "asked for", "granted SMs", "time, ms", "of, ms", "share", "SM x ms"]]
    shares, sm_ns = result.share, result.sm_ns
    for place, name in enumerate(result.names[:LISTED_PARTITIONS]):
        rows.append(
            [
                (f"GPU {cards[place]} " if cards else "") + (WHOLE_CARD if name is None else display_name(name, _NAME_WIDTH)),
                "-" if name is None else f"{result.requested_sms[place]:,}",
                f"{result.granted_sms[place]:,}",
                format_ms(result.busy_ns[place]),
                format_ms(result.window_ns[place]),
                format_share(shares[place]),
                format_ms(sm_ns[place]),
            ]
        )
    times = [format_ms(result.wall_ns), format_share(result.card_share), format_ms(result.card_sm_ns)]
    rows.append(["all SMs of the cards" if cards else "all SMs of the card", "", f"{result.sm_count:,}", "", *times])
    if np.isfinite(result.active_sms).any():
        active = ["-" if math.isnan(sms) else f"{sms:.1f}" for sms in result.active_sms[:LISTED_PARTITIONS].tolist()]
        rows = [[*row, told] for row, told in zip(rows, ["active SMs", *active, ""], strict=True)]
    return rows + more_row(len(result.names) - LISTED_PARTITIONS, len(rows[0]))


# SMs over time


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """A partition as it was for a while. The same name with other counts is another one."""

    name: str | None  # Its name; None for the whole card
    requested_sms: int  # How many SMs were asked for; all of the card for the whole card
    granted_sms: int
    """How many SMs its work could use: those granted, or all of the card where the device could not enforce the layout."""
    is_enforced: bool = True  # False where the device could not partition its SMs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SMSteps:
    """When a partition of one size became busy and idle."""

    size: PartitionSize  # The partition
    edges_ns: Int64Array
    """Busy, idle, busy, idle and so on; shape (2 * n_intervals,), int64, strictly increasing, on the trace's clock."""

    @property
    def busy_ns(self) -> int:
        """Time in which at least one counted span ran in it, in ns."""
        return interval_sum_ns(self.edges_ns)


def sm_time_steps(trace: Trace, device: Device | None = None) -> tuple[SMSteps, ...]:
    """Return when each partition of a device, as it was then, became busy and idle; the whole card is last."""
    device = trace.metadata.device if device is None else device
    sizes, is_one, whole = partition_sizes(trace), len(trace.devices) < 2, whole_card(device)
    places = {size: place for place, size in enumerate(dict.fromkeys((*sizes, whole)))}
    # The last code, -1, is the whole card's.
    code_place = np.array([*(places[size_of(trace, part)] for part in trace.partitions), places[whole]])
    counted = counted_rows(trace, sm_kinds(trace)) & of_device(trace, device)
    edges = edges_of(trace, counted, code_place[trace.partition], len(places))
    steps = [SMSteps(size=size, edges_ns=own) for size, own in zip(places, edges, strict=True)]
    used = tuple(step for step in steps if len(step.edges_ns) or (is_one and step.size != whole))
    return used or (SMSteps(size=whole, edges_ns=np.empty(0, np.int64)),)


def stack_sms(steps: Sequence[SMSteps], sm_count: int) -> list[tuple[Int64Array, Int64Array]]:
    """Stack the SMs of busy partitions, never higher than the card: for each the times at which its SMs change, and to what."""
    # What shares SMs with those before it, as the whole card does, gets only the SMs that are left.
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


UNKNOWN_LIMITS = SMLimits(blocks=64, threads=2_560, registers=1 << 40, shared_bytes=1 << 40)
"""Stand for limits that are not known: no SM or compute unit of any card so far holds more blocks or threads."""


def blocks_that_fit(trace: Trace) -> Int64Array:
    """Return how many blocks of each kernel fit on an SM at once; where little is known of a launch, more than do."""
    fit = per_row(trace, [device.sm_limits.blocks or UNKNOWN_LIMITS.blocks for device in trace.devices])
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
        (threads, per_row(trace, [one.threads or UNKNOWN_LIMITS.threads for one in limits])),
        (registers * threads, per_row(trace, [one.registers or UNKNOWN_LIMITS.registers for one in limits])),
        (shared_bytes, per_row(trace, [one.shared_bytes or UNKNOWN_LIMITS.shared_bytes for one in limits])),
    ]


# How that is said

NAME_LIMIT = 24  # How many characters of a partition's name are shown

LISTED_CHANGES = 4  # How many partitions a change of the layout names


def sms_text(granted_sms: int, requested_sms: int) -> str:
    """Write how many SMs a partition has, and how many were asked for where that differs: "96 SMs (asked for 90)"."""
    asked = f" (asked for {requested_sms:,})" if requested_sms != granted_sms else ""
    return f"{count_text(granted_sms, 'SM')}{asked}"


def proof_text(partition: Partition, layout: Layout) -> str:
    """Say what measuring a partition's SMs showed; empty where it was not measured."""
    if partition.sm_ids is None:
        return ""
    seen = partition.seen_sms
    shared = [
        f"shares {count_text(count, 'SM')} with {display_name(other.name, NAME_LIMIT)}"
        for other in layout
        if other is not partition and (count := len(seen & other.seen_sms))
    ]
    complete = len(seen) == partition.granted_sms
    facts = [] if complete else [f"{len(seen):,} of {partition.granted_sms:,} SMs seen"]
    return ", ".join([*facts, *shared]) or "verified"


def change_text(before: Layout | None, after: Layout | None) -> str:
    """Say how one layout became another, "prefill 96→64"; empty where no partition changed its size."""
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
