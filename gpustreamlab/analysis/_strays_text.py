"""Strays in words and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpustreamlab.analysis._report import Report, ReportTable
from gpustreamlab.analysis._units import format_ns
from gpustreamlab.model import SPAN_KINDS, Lane, display_name
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._strays import StrayGroup, Strays

LISTED_GROUPS = 20
"""How many groups the table lists."""
LISTED_STREAMS = 3
"""For how many streams that work strayed to it is said what to do."""
_NAME_WIDTH = 32
_PLURALS = {SpanKind.COPY: "copies"}


def work_text(kind: Int64Array) -> str:
    """Say how many kernels, copies and fills there are.

    Examples
    --------
    >>> work_text(np.array([1, 1, 2]))
    '2 kernels and 1 copy'
    """
    counts = np.bincount(kind, minlength=len(SPAN_KINDS)).tolist()
    shown = [
        f"{count:,} {kind.value if count == 1 else _PLURALS.get(kind, f'{kind.value}s')}"
        for kind, count in zip(SPAN_KINDS, counts, strict=True)
        if count
    ]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "nothing"


def stray_line(result: Strays) -> str:
    """Say the main facts in one line."""
    if not len(result):
        where = "all work inside ranges ran on the selected stream"
        return where if result.work_count else _nothing_captured(result)
    ran = f"{work_text(result.kind)} ran on {'another stream' if len(_streams(result)) == 1 else 'other streams'}"
    left = int(result.left_partition.sum())
    outside = "" if left == len(result) else f"{left:,} of them "
    beyond = f", {outside}outside the partition" if left else ""
    return f"{ran} than the selected one{beyond}: {_group_text(result.groups[0], len(result))}"


def stray_report(result: Strays) -> Report:
    """Say all of it: what went where, and what to do."""
    rows = [["name", "ran on", "selected", "partition", "spans", "time"]]
    groups = result.groups
    rows += [_row(group) for group in groups[:LISTED_GROUPS]]
    more = len(groups) - LISTED_GROUPS
    rows += [[f"… {more:,} more: see .to_pandas()", *[""] * 5]] if more > 0 else []
    tables = (ReportTable(caption="Work that left the selected stream", rows=rows, names=(0, 1, 2, 3)),) if groups else ()
    notes = [*result.advice]
    if result.metadata.simulated:
        notes.append(f"Simulated: {result.metadata.device.label}. No hardware stands behind these times.")
    return Report(title="Strays:", line=stray_line(result), tables=tables, notes=tuple(notes))


def stray_advice(result: Strays) -> list[str]:
    """Say for each stream that work strayed to what to do; those with most of it first."""
    return [
        _advice(result.lanes[ran_on], result.lanes[selected].name) for ran_on, selected in _streams(result)[:LISTED_STREAMS]
    ]


def _streams(result: Strays) -> list[tuple[int, int]]:
    """Return each lane that work strayed to, by how much did, with the stream that it most often came from."""
    pairs, counts = np.unique(np.stack((result.ran_on, result.selected), axis=1), axis=0, return_counts=True)
    most: dict[int, tuple[int, int]] = {}
    totals: dict[int, int] = {}
    for (ran_on, selected), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        totals[ran_on] = totals.get(ran_on, 0) + count
        most[ran_on] = max(most.get(ran_on, (0, 0)), (count, selected))
    return [(ran_on, most[ran_on][1]) for ran_on in sorted(totals, key=lambda lane: -totals[lane])]


def _advice(lane: Lane, selected: str) -> str:
    name, wanted = display_name(lane.name, _NAME_WIDTH), display_name(selected, _NAME_WIDTH)
    if not lane.outside:
        return f"{name} is not the selected stream: open the range on it, with lab.on({name!r}, ...), or launch on {wanted}."
    if lane.name.startswith("torch stream"):
        handle = f"torch.cuda.ExternalStream(lab.stream({wanted!r}).handle)"
        return f"{name} is not the selected stream: wrap the call in torch.cuda.stream({handle})."
    if "default" in lane.name:
        return f"{name} takes the work that names no stream: pass lab.stream({wanted!r}) to the library that launched it."
    return f"{name} belongs to others: pass lab.stream({wanted!r}) to the library that launched on it."


def _row(group: StrayGroup) -> list[str]:
    ran_in, selected_in = (name and display_name(name, 24) for name in (group.ran_in, group.selected_in))
    place = f"left {selected_in or 'the whole card'} for {ran_in or 'the whole card'}" if group.left_partition else "same"
    return [
        display_name(group.name, _NAME_WIDTH),
        display_name(group.ran_on, _NAME_WIDTH),
        display_name(group.selected, _NAME_WIDTH),
        place,
        f"{group.span_count:,}",
        format_ns(group.total_ns),
    ]


def _nothing_captured(result: Strays) -> str:
    """Say that there is no work to look at, and what to type."""
    if result.metadata.tier is CaptureTier.KERNELS:
        return "no kernels were captured inside ranges"
    return "kernels were not captured, only ranges: capture them with lab.capture('kernels')"


def _group_text(group: StrayGroup, count: int) -> str:
    name, ran_on, selected = (display_name(text, _NAME_WIDTH) for text in (group.name, group.ran_on, group.selected))
    if group.span_count < count:
        share = f"{group.span_count:,} of {count:,}, {format_ns(group.total_ns)}"
        return f"most often {name} ({share}), on {ran_on} instead of {selected}"
    times = f" {count:,} times" if count > 1 else ""
    return f"{name} ran{times} on {ran_on} instead of {selected} ({format_ns(group.total_ns)})"
