"""Groups of lanes by partition: their order, height and labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import (
    PartitionSize,
    RowTable,
    display_name,
    is_work,
    layout_size,
    layout_spells,
    partition_sizes,
    proof_text,
    size_of,
    sms_text,
    whole_card,
)
from gpustreamlab.draw._card import only_counted
from gpustreamlab.draw._colours import WHOLE_CARD_STYLE, PartitionStyle, partition_style
from gpustreamlab.model import LayoutChange, Trace
from gpustreamlab.typing import LaneKind

ROW_PX = 18  # Height of a row of bars
LISTED_SIZES = 4  # How many sizes of one partition its label shows

WHOLE_CARD = "whole card"

_NUMBER = re.compile(r"[0-9]+")

Extent = tuple[int, int]  # From when to when spans ran, in ns on the trace's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGroup:
    """The lanes of one partition."""

    name: str | None  # The partition; None for the whole card
    lanes: tuple[int, ...]  # Places of its lanes in `Trace.lanes`, in their own order
    style: PartitionStyle  # How it looks
    label: str  # Its name and how many SMs it has, or had one after the other
    detail: str  # What was asked for, and whether it was proved
    granted_sms: int  # How many SMs it has in the end
    is_host: bool = False  # True for the threads of the host, which are no partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SMBand:
    """One layer of the strip of SM-time: all sizes of one partition."""

    name: str | None  # The partition; None for the whole card
    label: str  # The partition, as its group's label
    style: PartitionStyle  # How it looks


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEntry:
    """A partition as it was when spans ran in it."""

    text: str  # Its name, and how many SMs it had
    granted_sms: int  # How many SMs its work could use
    band: int  # Place of its band, or -1 where there are none


def plan_groups(trace: Trace, extent_ns: Extent | None = None) -> tuple[LaneGroup, ...]:
    """Group the lanes by device, where there are several, and by partition: in the layout's order, then the whole card."""
    members: dict[str | None, list[int]] = {}
    for place, name in enumerate(lane_partitions(trace)):
        if trace.lanes[place].kind is not LaneKind.HOST:
            members.setdefault(name, []).append(place)
    order = partition_order(trace)
    if len({trace.lanes[place].device for places in members.values() for place in places}) > 1:
        return _device_groups(trace, order, members)
    if not members.keys() - {None}:
        return ()
    sizes = _size_history(trace, extent_ns)
    return tuple(_group(trace, name, order, members[name], sizes(name)) for name in (*order, None) if name in members)


def host_group(trace: Trace) -> LaneGroup | None:
    """Return the group of the host's threads; None where the trace has none."""
    is_counted = only_counted(trace)
    lanes = tuple(place for place, lane in enumerate(trace.lanes) if lane.kind is LaneKind.HOST and not is_counted[place])
    if not lanes:
        return None
    return LaneGroup(
        name=None,
        lanes=lanes,
        style=WHOLE_CARD_STYLE,
        label="host",
        detail="threads: what they called, and for how long; no work of the device",
        granted_sms=0,
        is_host=True,
    )


def work_order(trace: Trace, rows: RowTable) -> list[int]:
    """Return the places of all lanes in the order of their first work, so that a pipeline reads from the top.

    Those whose names differ by a number follow each other as the numbers count, behind the one that worked first.
    Work is what ran on the device; where a lane has none, its ranges stand for it. Of a trace without spans, as a live view
    has, the rows tell which lane worked first: so no lane moves that has worked. Lanes on which nothing ran come last.
    """
    never = np.iinfo(np.int64).max
    first = np.full((2, len(trace.lanes)), never)
    if len(trace):
        of_work = is_work(trace)
        for place, spans in enumerate((of_work, ~of_work)):
            np.minimum.at(first[place], trace.lane[spans], trace.start_ns[spans])
    else:
        np.minimum.at(first[0], rows.lane, np.arange(len(rows)))
    since = np.where(first[0] < never, first[0], first[1]).tolist()
    stems = [_NUMBER.sub("#", lane.name) for lane in trace.lanes]
    of_stem: dict[str, int] = {}
    for stem, time_ns in zip(stems, since, strict=True):
        of_stem[stem] = min(of_stem.get(stem, never), time_ns)
    # Lanes on which nothing ran are the last, whatever they are called.
    keys = [
        (time_ns == never, of_stem[stem], stem, [int(number) for number in _NUMBER.findall(lane.name)], time_ns)
        for stem, time_ns, lane in zip(stems, since, trace.lanes, strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


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


def plan_bands(trace: Trace, extent_ns: Extent | None = None) -> tuple[SMBand, ...]:
    """Return what the strip of SM-time stacks: one band for each name in use, then the whole card.

    What ran while a layout was not enforced ran on the whole card. Empty where there are no partitions.
    """
    current = trace.layout.names if trace.layout else ()
    in_use = {*current, *(part.name for part in trace.partitions)}
    enforced = {size.name for size in partition_sizes(trace) if size.is_enforced} & in_use
    if not enforced:
        return ()
    order, sizes = partition_order(trace), _size_history(trace, extent_ns)
    return tuple(
        SMBand(name=name, label=_label(trace, name, sizes(name)), style=name_style(name, order))
        for name in (*(name for name in order if name in enforced), None)
    )


def own_sms(trace: Trace, bands: Sequence[SMBand], zero_ns: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Return from when on, in ns since `zero_ns`, how many SMs each band kept for itself, idle or not.

    Empty for several cards, since each has a layout of its own.
    """
    if len(trace.devices) > 1 or not bands:
        return ()
    changes = trace.layouts or (LayoutChange(time_ns=zero_ns, layout=trace.layout),)
    layouts = [(change, change.layout if change.layout and change.layout.is_enforced else ()) for change in changes]
    sizes = [(change.time_ns - zero_ns, {part.name: part.granted_sms for part in layout}) for change, layout in layouts]
    return tuple((float(time_ns), tuple(sms.get(band.name or "", 0) for band in bands)) for time_ns, sms in sizes)


def plan_partitions(trace: Trace, bands: Sequence[SMBand]) -> tuple[PartitionEntry, ...]:
    """Return the whole card, then each of the trace's partitions as it was when spans ran in it."""
    places = {band.name: place for place, band in enumerate(bands)}
    entries = []
    for size in (whole_card(trace.metadata.device), *(size_of(trace, part) for part in trace.partitions)):
        text = sms_text(size.granted_sms, size.requested_sms)
        if not size.is_enforced:
            text = f"asked for {size.requested_sms:,}, not enforced: all {size.granted_sms:,} SMs"
        label = _card_label(trace) if size.name is None else f"{display_name(size.name, 200)} · {text}"
        entries.append(PartitionEntry(text=label, granted_sms=size.granted_sms, band=places.get(_band_name(size), -1)))
    return tuple(entries)


def _band_name(size: PartitionSize) -> str | None:
    return size.name if size.is_enforced else None


def _card_label(trace: Trace) -> str:
    sm_count = trace.metadata.device.sm_count
    return f"{WHOLE_CARD} · {sm_count:,} SMs" if sm_count else WHOLE_CARD


def _group(
    trace: Trace, name: str | None, order: Sequence[str], lanes: Sequence[int], sizes: Sequence[PartitionSize]
) -> LaneGroup:
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


def device_hosts(trace: Trace) -> dict[int, str]:
    """Return the host of each device by its number; empty where all are on one."""
    hosts = {device.ordinal: display_name(device.host or "unknown host", 28) for device in trace.devices}
    return hosts if len(set(hosts.values())) > 1 else {}


def _device_groups(trace: Trace, order: Sequence[str], members: Mapping[str | None, Sequence[int]]) -> tuple[LaneGroup, ...]:
    """Group by host, device and partition. Changes of partitions are not shown for several devices: they share no layout."""
    cards = {device.ordinal: device for device in trace.devices}
    hosts = device_hosts(trace)
    first = {hosts[device]: device for device in sorted(hosts, reverse=True)}  # the least of each host: their order
    places: dict[tuple[int, str | None], list[int]] = {}
    for name in (*order, None):
        for place in members.get(name, ()):
            places.setdefault((trace.lanes[place].device, name), []).append(place)
    groups = []
    rank = {device: (first.get(hosts.get(device, ""), -1), device) for device, _ in places}
    for (device, name), lanes in sorted(
        places.items(), key=lambda item: rank[item[0][0]]
    ):  # stable: in the order of partitions
        card_sms = cards[device].sm_count if device in cards else 0
        sms = trace.lanes[lanes[-1]].sm_count if name is not None else card_sms
        shown = "" if name is None else f" · {display_name(name, 28)}"
        where = f"{hosts[device]} / " if device in hosts else ""
        label = f"{where}GPU {device}{shown}{f' · {sms:,} SMs' if sms else ''}"
        detail = cards[device].label if device in cards else ""
        style = name_style(name, order)
        groups.append(
            LaneGroup(name=name, lanes=tuple(lanes), style=style, label=label, detail=detail, granted_sms=sms or card_sms)
        )
    return tuple(groups)


def _size_history(trace: Trace, extent_ns: Extent | None) -> Callable[[str | None], list[PartitionSize]]:
    """Return a function of the sizes that a partition had while spans ran, one after the other, without repeats in a row."""
    if extent_ns is None:
        extent_ns = (int(trace.start_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    layouts = [*(layout for _, _, layout in layout_spells(trace, *extent_ns)), trace.layout]
    of_name: dict[str | None, list[PartitionSize]] = {}
    for layout in filter(None, layouts):
        for part in layout:
            of_name.setdefault(part.name, []).append(layout_size(trace, part, layout))
    others = [size for size in partition_sizes(trace) if size.name not in of_name]
    for size in others:
        of_name.setdefault(size.name, []).append(size)

    def history(name: str | None) -> list[PartitionSize]:
        found = of_name.get(name, [])
        return [size for place, size in enumerate(found) if not place or size != found[place - 1]]

    return history


def _label(trace: Trace, name: str | None, sizes: Sequence[PartitionSize]) -> str:
    if name is None:
        return _card_label(trace)
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
