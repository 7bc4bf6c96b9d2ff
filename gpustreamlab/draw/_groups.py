"""Lanes by partition: which are drawn together, in which order, how high, and what is written beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import (
    PartitionSize,
    SMSteps,
    change_text,
    display_name,
    layout_size,
    layout_spells,
    partition_sizes,
    proof_text,
    size_of,
    sm_time_steps,
    sms_text,
    stack_sms,
)
from gpustreamlab.draw._colours import WHOLE_CARD_STYLE, PartitionStyle, partition_style
from gpustreamlab.model import Trace
from gpustreamlab.typing import FloatArray, Int64Array

ROW_PX = 22
"""Height of a row of bars where there are no partitions."""

LEAST_ROW_PX = 16
"""Height of a row of bars in the smallest partitions: a name still fits into a bar."""

CARD_ROW_PX = 52
"""Height of a row of bars that has all SMs of the card; with fewer SMs it is lower in proportion."""

MOST_LANE_PX = 130
"""Height beyond which a lane of several rows is not stretched by its SMs."""

MAX_MARKED_CHANGES = 500
"""Most changes of the layout that are marked; the last are kept, and the page says how many are not."""

LISTED_SIZES = 4
"""How many sizes of one partition its label shows."""

WHOLE_CARD = "whole card"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGroup:
    """The lanes of one partition."""

    name: str | None
    """The partition; None for the whole card."""
    lanes: tuple[int, ...]
    """Places of its lanes in `Trace.lanes`, in their own order."""
    style: PartitionStyle
    """How it looks."""
    label: str
    """Its name and how many SMs it has, or had one after the other."""
    detail: str
    """What was asked for, and whether it was proved."""
    granted_sms: int
    """How many SMs it has in the end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SMBand:
    """The SMs that one partition occupies over time, within a stack that is never higher than the card."""

    label: str
    """The partition, as its group's label."""
    style: PartitionStyle
    """How it looks."""
    step_ns: FloatArray
    """When the number changes; shape (n_steps,), float64, since the first start."""
    step_sms: Int64Array
    """How many SMs from then on; shape (n_steps,), int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMark:
    """A moment at which the SMs were shared out anew."""

    time_ns: float
    """When, in ns since the first start."""
    text: str
    """What changed."""


def plan_groups(trace: Trace) -> tuple[LaneGroup, ...]:
    """Group the lanes by partition: those of the layout in its order, then others, then the whole card.

    Returns
    -------
    tuple of LaneGroup
        Each lane is in one. Empty where no lane has, or had, a partition.
    """
    members: dict[str | None, list[int]] = {}
    for place, name in enumerate(lane_partitions(trace)):
        members.setdefault(name, []).append(place)
    if not members.keys() - {None}:
        return ()
    order = partition_order(trace)
    return tuple(_group(trace, name, order, members[name]) for name in (*order, None) if name in members)


def lane_partitions(trace: Trace) -> list[str | None]:
    """Return the partition that each lane belongs to.

    Where the SMs are shared out no more in the end, that is the last one in which the lane's spans ran.
    """
    names = [lane.partition for lane in trace.lanes]
    if trace.layout is not None:
        return names
    ran = np.flatnonzero(trace.partition >= 0)
    ran = ran[np.argsort(trace.start_ns[ran], kind="stable")]
    last = np.full(len(names), -1)
    # Of several values for one place, the last one stays.
    last[trace.lane[ran]] = trace.partition[ran]
    return [
        trace.partitions[code].name if name is None and code >= 0 else name
        for name, code in zip(names, last.tolist(), strict=True)
    ]


def partition_order(trace: Trace) -> tuple[str, ...]:
    """Return the names of all partitions: the layout's in its order, then those that are gone or only lanes know."""
    current = trace.layout.names if trace.layout else ()
    earlier = (size.name for size in partition_sizes(trace) if size.name is not None)
    of_lanes = (lane.partition for lane in trace.lanes if lane.partition is not None)
    return tuple(dict.fromkeys((*current, *earlier, *of_lanes)))


def name_style(name: str | None, order: Sequence[str]) -> PartitionStyle:
    """Return how a partition of that name looks."""
    return WHOLE_CARD_STYLE if name is None else partition_style(order.index(name))


def row_px(sm_count: int, of_sms: int, row_count: int) -> float:
    """Return how high the rows of a lane are: in proportion to its SMs, within limits.

    Parameters
    ----------
    sm_count, of_sms
        SMs of the lane and of the card.
    row_count
        How many rows the lane has: one of many rows is not stretched as far.

    Examples
    --------
    >>> row_px(132, 132, 1), row_px(66, 132, 1), row_px(8, 132, 1), row_px(132, 132, 20)
    (52.0, 26.0, 16.0, 22.0)
    """
    wanted_px = CARD_ROW_PX * min(1.0, sm_count / of_sms)
    return float(max(LEAST_ROW_PX, min(wanted_px, max(ROW_PX, MOST_LANE_PX / row_count))))


def plan_bands(trace: Trace, zero_ns: int) -> tuple[SMBand, ...]:
    """Return what the strip of SM-time shows: one band a name, then the whole card.

    What ran while a layout was not enforced ran on the whole card. Empty where there are no partitions.
    """
    steps = sm_time_steps(trace)
    if not any(_band_name(step) is not None for step in steps):
        return ()
    order = partition_order(trace)
    names: tuple[str | None, ...] = (*order, None)
    steps = tuple(sorted(steps, key=lambda step: names.index(_band_name(step))))
    stacked = stack_sms(steps, trace.metadata.device.sm_count)
    bands = []
    for name in names:
        own = [series for step, series in zip(steps, stacked, strict=True) if _band_name(step) == name and len(series[0])]
        if own:
            times_ns, sms = _add_steps(own)
            label = _label(trace, name, _sizes_over_time(trace, name))
            bands.append(
                SMBand(label=label, style=name_style(name, order), step_ns=(times_ns - zero_ns).astype(float), step_sms=sms)
            )
    return tuple(bands)


def idle_partitions(trace: Trace, bands: Sequence[SMBand]) -> list[tuple[str, PartitionStyle]]:
    """Return the current partitions in which nothing ran, and how they look."""
    order, drawn = partition_order(trace), {band.style for band in bands}
    if trace.layout is None or not trace.layout.is_enforced:
        return []
    return [
        (f"{_label(trace, name, _sizes_over_time(trace, name))}, idle", style)
        for name in trace.layout.names
        if (style := name_style(name, order)) not in drawn
    ]


def _band_name(step: SMSteps) -> str | None:
    return step.size.name if step.size.is_enforced else None


def plan_marks(trace: Trace, zero_ns: int, width_ns: float) -> tuple[tuple[LayoutMark, ...], list[str]]:
    """Return where the layout changed while spans ran, and a note where not all changes are marked."""
    marks, before = [], None
    for change in trace.layouts:
        text = change_text(before, change.layout)
        time_ns = float(change.time_ns - zero_ns)
        before = change.layout
        if text and 0 < time_ns < width_ns:
            marks.append(LayoutMark(time_ns=time_ns, text=text))
    left_out = len(marks) - MAX_MARKED_CHANGES
    notes = [f"{left_out:,} of {len(marks):,} changes of the partitions are not marked"] if left_out > 0 else []
    return tuple(marks[-MAX_MARKED_CHANGES:]), notes


def partition_texts(trace: Trace) -> list[str]:
    """Write each of the trace's partitions as it was when spans ran in it, and the whole card last."""
    texts = []
    for partition in trace.partitions:
        size = size_of(trace, partition)
        name = display_name(partition.name, 200)
        if size.is_enforced:
            texts.append(f"{name} · {sms_text(size.granted_sms, size.requested_sms)}")
        else:
            texts.append(f"{name} · asked for {size.requested_sms:,}, not enforced: all {size.granted_sms:,} SMs")
    return [*texts, f"{WHOLE_CARD} · {trace.metadata.device.sm_count:,} SMs"]


def _group(trace: Trace, name: str | None, order: Sequence[str], lanes: Sequence[int]) -> LaneGroup:
    sizes = _sizes_over_time(trace, name)
    known = [trace.lanes[lane].sm_count for lane in lanes if trace.lanes[lane].sm_count]
    if sizes:
        granted_sms = max(size.granted_sms for size in sizes)
    else:
        granted_sms = known[-1] if known and name is not None else trace.metadata.device.sm_count
    return LaneGroup(
        name=name,
        lanes=tuple(lanes),
        style=name_style(name, order),
        label=_label(trace, name, sizes),
        detail=_detail(trace, name, sizes),
        granted_sms=granted_sms,
    )


def _sizes_over_time(trace: Trace, name: str | None) -> list[PartitionSize]:
    """Return the sizes that a partition had while spans ran, one after the other, without repeats in a row."""
    if name is None:
        return []
    first_ns, last_ns = (int(trace.start_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    layouts = [*(layout for _, _, layout in layout_spells(trace, first_ns, last_ns)), trace.layout]
    found = [layout_size(trace, layout[name], layout) for layout in layouts if layout and name in layout]
    found = found or [size for size in partition_sizes(trace) if size.name == name]
    return [size for place, size in enumerate(found) if not place or size != found[place - 1]]


def _label(trace: Trace, name: str | None, sizes: Sequence[PartitionSize]) -> str:
    if name is None:
        return f"{WHOLE_CARD} · {trace.metadata.device.sm_count:,} SMs"
    shown = display_name(name, 28)
    if not sizes:
        return shown
    if not sizes[-1].is_enforced:
        return f"{shown} · all {sizes[-1].granted_sms:,} SMs, not enforced"
    counts = _listed([size.granted_sms for size in sizes])
    return f"{shown} · {counts} SM{'' if counts == '1' else 's'}"


def _listed(counts: Sequence[int]) -> str:
    """Write counts that follow each other, without repeats and not too many: "96→64"."""
    texts = [f"{count:,}" for place, count in enumerate(counts) if not place or count != counts[place - 1]]
    if len(texts) > LISTED_SIZES:
        texts = [*texts[: LISTED_SIZES - 2], "…", texts[-1]]
    return "→".join(texts)


def _detail(trace: Trace, name: str | None, sizes: Sequence[PartitionSize]) -> str:
    if name is None:
        return "shares SMs with every partition"
    facts = []
    if sizes and any(size.requested_sms != size.granted_sms for size in sizes):
        facts.append(f"asked for {_listed([size.requested_sms for size in sizes])}")
    layout = trace.layout
    if layout is None or name not in layout:
        facts += ["no partition any more"] if trace.layouts else []
    elif layout.is_enforced:
        facts += filter(None, [proof_text(layout[name], layout)])
    return " · ".join(facts)


def _add_steps(series: Sequence[tuple[Int64Array, Int64Array]]) -> tuple[Int64Array, Int64Array]:
    """Add up step functions that all begin at 0."""
    if len(series) == 1:
        return series[0]
    times_ns = np.concatenate([times for times, _ in series])
    rises = np.concatenate([np.diff(sms, prepend=0) for _, sms in series])
    unique_ns, place = np.unique(times_ns, return_inverse=True)
    sums = np.zeros(len(unique_ns), np.int64)
    np.add.at(sums, place, rises)
    return unique_ns, np.cumsum(sums)
