"""What is drawn, before anything draws it: one description for the figure and for the static picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import Rows, assign_rows, busy_edges, count_steps, display_name, format_ns
from gpustreamlab.draw._bar_heights import add_lower_rows
from gpustreamlab.draw._colours import KIND_FILLS, KIND_HATCHES, NameStyle, name_styles
from gpustreamlab.draw._groups import (
    ROW_PX,
    LaneGroup,
    LayoutMark,
    SMBand,
    partition_texts,
    plan_bands,
    plan_groups,
    plan_marks,
    row_px,
)
from gpustreamlab.model import SPAN_KINDS, Lane, Trace
from gpustreamlab.typing import FloatArray, Int64Array

MAX_DRAWN_SPANS = 200_000
"""Most spans that a figure holds; the longest are kept, and the page says how many are not drawn."""

MAX_DRAWN_EDGES = 2_000
"""Most arrows between spans that a figure holds; the first are kept, and the page says how many are not drawn."""

MAX_HEIGHT_PX = 12_000
"""Tallest canvas; rows get lower where a trace needs more. Browsers refuse much taller ones."""

GROUP_PX = 22
"""Height of the line above the lanes of a partition, with its name and SMs."""

MARK_PX = 17
"""Height of a line of labels of changes of the layout, above all lanes."""

LANE_GAP_PX = 10
"""Free space between two lanes."""

LABEL_CHARACTERS = 24
"""How many characters of a lane's name its label shows, at most."""

LABEL_PX = 190
"""How wide a lane's label is, at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneBox:
    """Where a lane is, in px from the top."""

    lane: int
    """Its place in `Trace.lanes`."""
    top: float
    """Upper border."""
    bottom: float
    """Lower border."""
    label: str
    """The lane's name as it is shown."""
    detail: str
    """Its priority, or nothing where that is ordinary."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBox:
    """Where the lanes of a partition are, in px from the top."""

    top: float
    """Upper border of the line with its name."""
    head_bottom: float
    """Lower border of that line."""
    bottom: float
    """Lower border of its last lane."""
    group: LaneGroup
    """What is written there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """All that a picture of a trace shows. Spans are sorted by row, then by start."""

    span: Int64Array
    """Row of the trace of each drawn span; shape (n_drawn,), int64."""
    left_ns: FloatArray
    """Start since `zero_ns`; shape (n_drawn,), float64: what a browser computes with, exact up to 104 days."""
    right_ns: FloatArray
    """End since `zero_ns`; shape (n_drawn,), float64."""
    row: Int64Array
    """Row of each drawn span; shape (n_drawn,), int64."""
    row_top: FloatArray
    """Upper border of each row's bars, in px from the top; shape (n_rows,), float64."""
    row_bottom: FloatArray
    """Lower border of each row's bars, in px from the top; shape (n_rows,), float64."""
    row_lane: Int64Array
    """Lane of each row; shape (n_rows,), int64."""
    lanes: tuple[LaneBox, ...]
    """Where the lanes are, from the top."""
    groups: tuple[GroupBox, ...]
    """Where the partitions are, from the top; empty where there are none."""
    marks: tuple[LayoutMark, ...]
    """When the SMs were shared out anew."""
    mark_rows: tuple[float, ...]
    """Middle of each line of their labels, in px from the top, above all lanes."""
    bands: tuple[SMBand, ...]
    """SMs in use over time, by partition, from the bottom; empty where there are no partitions."""
    sm_count: int
    """How many SMs the card has."""
    partition_texts: tuple[str, ...]
    """Each of the trace's partitions as it was, the whole card last; empty where there are none."""
    height_px: float
    """Height of all lanes."""
    styles: tuple[NameStyle, ...]
    """How each name of the trace looks."""
    kind_hatch: tuple[str, ...]
    """Hatch of each kind, or an empty text where the name's counts."""
    kind_fill: tuple[str, ...]
    """Colour of each kind, or an empty text where the name's counts."""
    step_ns: FloatArray
    """When the number of busy lanes changes, since `zero_ns`; shape (n_steps,), float64."""
    step_count: Int64Array
    """How many lanes are busy from then on; shape (n_steps,), int64."""
    edges: Int64Array
    """Source and target of each drawn edge, as places in `span`; shape (n_edges, 2), int64."""
    zero_ns: int
    """The trace's time at which the axis has its 0: the first start."""
    width_ns: float
    """From the first start to the last end."""
    notes: tuple[str, ...]
    """What the picture leaves out, in words."""


def plan_scene(trace: Trace, *, max_spans: int = MAX_DRAWN_SPANS) -> Scene:
    """Lay out a trace for drawing.

    Parameters
    ----------
    trace
        The spans.
    max_spans
        How many spans are drawn at most; the longest are kept.
    """
    zero_ns = int(trace.start_ns.min()) if len(trace) else 0
    width_ns = float(trace.end_ns.max() - zero_ns) if len(trace) else 0.0
    groups, bands = plan_groups(trace), plan_bands(trace, zero_ns)
    marks, mark_notes = plan_marks(trace, zero_ns, width_ns)
    rows = assign_rows(trace)
    lanes = _lane_rooms(trace, rows, groups, marks_px=MARK_PX * _mark_row_count(marks))
    kept, notes = _longest(trace, max_spans)
    drawn_row, row_top, row_bottom, row_lane = add_lower_rows(
        trace, lanes.drawn_row[rows.row], lanes.row_top, lanes.row_bottom, lanes.row_lane
    )
    order = kept[np.lexsort((trace.start_ns[kept], drawn_row[kept]))]
    step_ns, step_count = count_steps(busy_edges(trace))
    edges, edge_notes = _drawn_edges(trace, order)
    if rows.folded_spans:
        notes.append(f"{rows.folded_spans:,} spans are folded into the last row of their stream, where they may cover others")
    return Scene(
        span=order,
        left_ns=(trace.start_ns[order] - zero_ns).astype(np.float64),
        right_ns=(trace.end_ns[order] - zero_ns).astype(np.float64),
        row=drawn_row[order],
        row_top=row_top,
        row_bottom=row_bottom,
        row_lane=row_lane,
        lanes=lanes.boxes,
        groups=lanes.groups,
        marks=marks,
        mark_rows=tuple(MARK_PX * lanes.scale * (row + 0.5) for row in range(_mark_row_count(marks))),
        bands=bands,
        sm_count=trace.metadata.device.sm_count,
        partition_texts=tuple(partition_texts(trace)) if groups or bands else (),
        height_px=lanes.height_px,
        styles=name_styles(trace.names),
        kind_hatch=tuple(KIND_HATCHES.get(kind, "") for kind in SPAN_KINDS),
        kind_fill=tuple(KIND_FILLS.get(kind, "") for kind in SPAN_KINDS),
        step_ns=(step_ns - zero_ns).astype(np.float64),
        step_count=step_count,
        edges=edges,
        zero_ns=zero_ns,
        width_ns=width_ns,
        notes=(*notes, *edge_notes, *mark_notes),
    )


def lane_detail(lane: Lane) -> str:
    """Write a lane's priority, where it is not the ordinary one; its partition stands above it.

    Examples
    --------
    >>> lane_detail(Lane(name="decode", priority=-1, partition="small"))
    'priority -1'
    """
    return f"priority {lane.priority}" if lane.priority else ""


def fit_label(text: str, characters: int = LABEL_CHARACTERS) -> str:
    """Cut a text in its middle until it is short and narrow enough to stand beside a lane."""
    limits = range(min(characters, max(2, len(text))), 1, -1)
    return next((cut for limit in limits if text_width_px(cut := display_name(text, limit)) <= LABEL_PX), "…")


def text_width_px(text: str, size_px: float = 12) -> float:
    """Estimate how wide a text is in a sans-serif font, rather too wide than too narrow."""
    return size_px * sum(_letter_width(sign) for sign in text)


def _letter_width(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF" or unicodedata.category(sign) == "So":
        return 1.3
    if sign in "MW@%m…":
        return 1.0
    if sign in " .,:;·'()[]-|!iljtfrI":
        return 0.42
    return 0.6 if sign.islower() else 0.72


def used_names(trace: Trace, scene: Scene, limit: int) -> tuple[list[int], int]:
    """Return the codes of the names that take most time, in their own order, and how many more there are."""
    totals = np.zeros(len(trace.names))
    np.add.at(totals, trace.name[scene.span], scene.right_ns - scene.left_ns)
    present = np.flatnonzero(np.bincount(trace.name[scene.span], minlength=len(trace.names)))
    longest = present[np.argsort(-totals[present], kind="stable")][:limit]
    return sorted(longest.tolist()), len(present) - len(longest)


def used_hatches(trace: Trace, scene: Scene) -> list[str]:
    """Return the hatches that the drawn spans need."""
    names, kinds = np.unique(trace.name[scene.span]).tolist(), np.unique(trace.kind[scene.span]).tolist()
    signs = {scene.styles[name].hatch for name in names} | {scene.kind_hatch[kind] for kind in kinds}
    return sorted(signs - {" ", ""})


def drawn_kinds(trace: Trace, scene: Scene) -> list[int]:
    """Return the codes of the drawn kinds that have a hatch of their own."""
    return [kind for kind in np.unique(trace.kind[scene.span]).tolist() if scene.kind_hatch[kind]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LaneRooms:
    """Where lanes, groups and rows are, from the top."""

    boxes: tuple[LaneBox, ...]
    groups: tuple[GroupBox, ...]
    row_top: FloatArray
    row_bottom: FloatArray
    row_lane: Int64Array
    drawn_row: Int64Array
    """By row of `Rows`: its place from the top."""
    scale: float
    """What heights were multiplied by to stay within `MAX_HEIGHT_PX`."""
    height_px: float


def _lane_rooms(trace: Trace, rows: Rows, groups: Sequence[LaneGroup], *, marks_px: float) -> _LaneRooms:
    order = np.array([lane for group in groups for lane in group.lanes] or range(len(trace.lanes)), np.int64)
    row_count = rows.row_count[order]
    height_px = _row_heights(trace, rows, groups)[order]
    details = [lane_detail(trace.lanes[lane]) for lane in order.tolist()]
    bars_px = row_count * height_px
    outer = np.maximum(bars_px, [32 if detail else ROW_PX for detail in details]) + LANE_GAP_PX if len(order) else np.zeros(0)
    heads = np.array([GROUP_PX * (lane == group.lanes[0]) for group in groups for lane in group.lanes] or np.zeros(len(order)))
    total_px = marks_px + float((outer + heads).sum())
    scale = min(1.0, MAX_HEIGHT_PX / max(1.0, total_px))
    bottom = marks_px + np.cumsum(outer + heads)
    top = bottom - outer
    place = np.arange(rows.total) - np.repeat(np.cumsum(row_count) - row_count, row_count)
    row_px = np.repeat(height_px, row_count)
    row_top = (np.repeat(top + (outer - bars_px) / 2, row_count) + place * row_px + 1) * scale
    drawn_row = np.empty(rows.total, np.int64)
    drawn_row[np.repeat(rows.first_row[order], row_count) + place] = np.arange(rows.total)
    boxes = tuple(
        LaneBox(lane=lane, top=begin * scale, bottom=end * scale, label=fit_label(trace.lanes[lane].name), detail=detail)
        for lane, detail, begin, end in zip(order.tolist(), details, top.tolist(), bottom.tolist(), strict=True)
    )
    return _LaneRooms(
        boxes=boxes,
        groups=_group_boxes(groups, boxes, GROUP_PX * scale),
        row_top=row_top,
        row_bottom=row_top + (row_px - 2) * scale,
        row_lane=np.repeat(order, row_count),
        drawn_row=drawn_row,
        scale=scale,
        height_px=total_px * scale,
    )


def _mark_row_count(marks: Sequence[LayoutMark]) -> int:
    return 0 if not marks else 1 if len(marks) < 4 else 2


def _row_heights(trace: Trace, rows: Rows, groups: Sequence[LaneGroup]) -> FloatArray:
    """Return how high the rows of each lane of the trace are, in px; shape (n_lanes,)."""
    heights: FloatArray = np.full(len(trace.lanes), float(ROW_PX))
    for group in groups:
        for lane in group.lanes:
            heights[lane] = row_px(group.granted_sms, trace.metadata.device.sm_count, int(rows.row_count[lane]))
    return heights


def _group_boxes(groups: Sequence[LaneGroup], boxes: Sequence[LaneBox], head_px: float) -> tuple[GroupBox, ...]:
    placed, first = [], 0
    for group in groups:
        last = first + len(group.lanes) - 1
        top = boxes[first].top
        placed.append(GroupBox(top=top - head_px, head_bottom=top, bottom=boxes[last].bottom, group=group))
        first = last + 1
    return tuple(placed)


def _longest(trace: Trace, max_spans: int) -> tuple[Int64Array, list[str]]:
    """Return which spans are drawn, and a note where not all are."""
    left_out = len(trace) - max_spans
    if left_out <= 0:
        return np.arange(len(trace)), []
    order = np.argsort(trace.duration_ns, kind="stable")
    limit_ns = int(trace.duration_ns[order[left_out - 1]])
    note = f"the {left_out:,} shortest of {len(trace):,} spans (up to {format_ns(limit_ns)}) are not drawn"
    return np.sort(order[left_out:]), [f"{note}; the strip of busy streams and overlap() count them"]


def _drawn_edges(trace: Trace, order: Int64Array) -> tuple[Int64Array, list[str]]:
    place = np.full(len(trace), -1)
    place[order] = np.arange(len(order))
    ends = np.stack((place[trace.edges.source], place[trace.edges.target]), axis=1)
    drawn = ends[(ends >= 0).all(axis=1)][:MAX_DRAWN_EDGES]
    left_out = len(trace.edges) - len(drawn)
    return drawn, [f"{left_out:,} of {len(trace.edges):,} waits are not drawn"] if left_out else []


def label_lines(boxes: Sequence[LaneBox]) -> list[tuple[float, str]]:
    """Return the middle of each lane in px from the top, and its label in one or two lines."""
    return [((box.top + box.bottom) / 2, f"{box.label}\n{box.detail}" if box.detail else box.label) for box in boxes]
