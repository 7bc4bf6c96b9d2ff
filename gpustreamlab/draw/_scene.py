"""Where things are in a picture of a trace, before anything draws it: one plan for the viewer and for the static picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpustreamlab.analysis import RowTable, display_name, span_rows
from gpustreamlab.draw._colours import KIND_FILLS, KIND_HATCHES, NameStyle, name_styles
from gpustreamlab.draw._groups import (
    ROW_PX,
    LaneGroup,
    PartitionEntry,
    SMBand,
    plan_bands,
    plan_groups,
    plan_partitions,
    row_px,
)
from gpustreamlab.draw._marks import MARK_PX, Mark, mark_row_count, plan_marks
from gpustreamlab.model import SPAN_KINDS, Lane, Trace
from gpustreamlab.typing import FloatArray, Int64Array

GROUP_PX = 22
"""Height of the line above the lanes of a partition, with its name and SMs."""

LANE_GAP_PX = 10
"""Free space between two lanes."""

DETAIL_LANE_PX = 32
"""Height of a lane that has a second line beside it, at least."""

LABEL_CHARACTERS = 24
"""How many characters of a lane's name its label shows, at most."""

LABEL_PX = 190
"""How wide a lane's label is, at most."""

BAND_PX = 26
"""Width of the coloured band left of a partition's lanes, with its letter."""

_LEAST_BORDER_PX = 56
_LABEL_MARGIN_PX = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBox:
    """Where a lane is, in px from the top of all lanes."""

    top: float
    """Upper border."""
    bottom: float
    """Lower border."""
    label: str
    """The lane's name as it is shown."""
    detail: str
    """Its priority, or nothing where that is ordinary."""
    group: int
    """Place of its group, or -1 where there are no partitions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBox:
    """Where the lanes of a partition are, in px from the top of all lanes."""

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
    """Where lanes, rows, partitions and marks are, and how names look. It holds no spans."""

    rows: RowTable
    """The rows by their code."""
    row_top: FloatArray
    """Upper border of each row's bars, in px from the top; shape (n_rows,), float64."""
    row_bottom: FloatArray
    """Lower border of each row's bars, in px from the top; shape (n_rows,), float64."""
    lanes: tuple[LaneBox, ...]
    """Where each lane of the trace is, by its code; where there are partitions, they do not follow each other in this order."""
    groups: tuple[GroupBox, ...]
    """Where the partitions are, from the top; empty where there are none."""
    marks: tuple[Mark, ...]
    """Moments with a name, in order of time."""
    mark_rows: tuple[float, ...]
    """Middle of each line of their labels, in px from the top, above all lanes."""
    bands: tuple[SMBand, ...]
    """What the strip of SM-time stacks, from the bottom, the whole card last; empty where there are no partitions."""
    partitions: tuple[PartitionEntry, ...]
    """The whole card, then each of the trace's partitions by its code."""
    height_px: float
    """Height of all lanes."""
    border_px: int
    """Room left of the lanes that their labels need."""
    styles: tuple[NameStyle, ...]
    """How each name of the trace looks."""
    kind_hatch: tuple[str, ...]
    """Hatch of each kind, or an empty text where the name's counts."""
    kind_fill: tuple[str, ...]
    """Colour of each kind, or an empty text where the name's counts."""
    zero_ns: int
    """The trace's time at which the axis has its 0."""
    width_ns: float
    """From there to the last end."""
    notes: tuple[str, ...]
    """What the picture leaves out or may hide, in words."""


def plan_scene(
    trace: Trace, rows: RowTable | None = None, *, zero_ns: int | None = None, width_ns: float | None = None
) -> Scene:
    """Lay out the lanes of a trace for drawing.

    Parameters
    ----------
    trace
        The tables; its spans are looked at only for what is left out here.
    rows
        The rows; None for those of the trace's own spans.
    zero_ns, width_ns
        Where the axis has its 0, and how far the spans reach from there; None for the first start and the last end.
    """
    rows = span_rows(trace)[0] if rows is None else rows
    zero_ns = first_start_ns(trace) if zero_ns is None else zero_ns
    width_ns = float(trace.end_ns.max() - zero_ns) if width_ns is None and len(trace) else width_ns or 0.0
    extent_ns = (zero_ns, zero_ns + int(width_ns))
    groups, bands = plan_groups(trace, extent_ns), plan_bands(trace, extent_ns)
    marks, mark_notes = plan_marks(trace, zero_ns, width_ns)
    mark_rows = tuple(MARK_PX * (row + 0.5) for row in range(mark_row_count(marks)))
    rooms = _plan_rooms(trace, rows, groups, marks_px=MARK_PX * len(mark_rows))
    return Scene(
        rows=rows,
        row_top=rooms.row_top,
        row_bottom=rooms.row_bottom,
        lanes=rooms.lanes,
        groups=rooms.groups,
        marks=marks,
        mark_rows=mark_rows,
        bands=bands,
        partitions=plan_partitions(trace, bands),
        height_px=rooms.height_px,
        border_px=_border_px(rooms.lanes, has_groups=bool(groups)),
        styles=name_styles(trace.names),
        kind_hatch=tuple(KIND_HATCHES.get(kind, "") for kind in SPAN_KINDS),
        kind_fill=tuple(KIND_FILLS.get(kind, "") for kind in SPAN_KINDS),
        zero_ns=zero_ns,
        width_ns=width_ns,
        notes=(*_row_notes(rows), *mark_notes),
    )


def first_start_ns(trace: Trace) -> int:
    """Return when the first span started; 0 where there is none."""
    return int(trace.start_ns.min()) if len(trace) else 0


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
    return size_px * sum(map(_letter_width, text))


@lru_cache(4096)
def _letter_width(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF" or unicodedata.category(sign) == "So":
        return 1.3
    if sign in "MW@%m…":
        return 1.0
    if sign in " .,:;·'()[]-|!iljtfrI":
        return 0.42
    return 0.6 if sign.islower() else 0.72


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rooms:
    """Where lanes, groups and rows are, from the top."""

    lanes: tuple[LaneBox, ...]
    groups: tuple[GroupBox, ...]
    row_top: FloatArray
    row_bottom: FloatArray
    height_px: float


def _plan_rooms(trace: Trace, rows: RowTable, groups: Sequence[LaneGroup], *, marks_px: float) -> _Rooms:
    lane_count = len(trace.lanes)
    order = np.array([lane for group in groups for lane in group.lanes] or range(lane_count), np.int64)
    shelves = np.ones(lane_count, np.int64)
    np.maximum.at(shelves, rows.lane, rows.shelf + 1)
    row_px_of_lane = _row_heights(trace, shelves, groups)
    details = [lane_detail(lane) for lane in trace.lanes]
    bars_px = shelves * row_px_of_lane
    outer_px = np.maximum(bars_px, [DETAIL_LANE_PX if detail else ROW_PX for detail in details]) + LANE_GAP_PX
    heads_px = np.zeros(lane_count)
    heads_px[[group.lanes[0] for group in groups]] = GROUP_PX
    top, bottom = np.zeros(lane_count), np.zeros(lane_count)
    bottom[order] = marks_px + np.cumsum((outer_px + heads_px)[order])
    top[order] = bottom[order] - outer_px[order]
    group_of = np.full(lane_count, -1)
    for place, group in enumerate(groups):
        group_of[list(group.lanes)] = place
    boxes = tuple(
        LaneBox(top=begin, bottom=end, label=fit_label(lane.name), detail=detail, group=group)
        for lane, detail, begin, end, group in zip(
            trace.lanes, details, top.tolist(), bottom.tolist(), group_of.tolist(), strict=True
        )
    )
    row_top, row_bottom = _row_borders(rows, top + (outer_px - bars_px) / 2, row_px_of_lane)
    height_px = marks_px + float((outer_px + heads_px).sum())
    return _Rooms(lanes=boxes, groups=_group_boxes(groups, boxes), row_top=row_top, row_bottom=row_bottom, height_px=height_px)


def _row_heights(trace: Trace, shelves: Int64Array, groups: Sequence[LaneGroup]) -> FloatArray:
    """Return how high the rows of each lane of the trace are, in px; shape (n_lanes,)."""
    heights: FloatArray = np.full(len(trace.lanes), float(ROW_PX))
    for group in groups:
        for lane in group.lanes:
            heights[lane] = row_px(group.granted_sms, trace.metadata.device.sm_count, int(shelves[lane]))
    return heights


def _row_borders(rows: RowTable, bars_top: FloatArray, row_px_of_lane: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the borders of each row's bars: lower bars are in the middle of their sub-row."""
    height_px = row_px_of_lane[rows.lane]
    middle = bars_top[rows.lane] + (rows.shelf + 0.5) * height_px
    half_px = (height_px - 2) / 2 * rows.share
    return middle - half_px, middle + half_px


def _group_boxes(groups: Sequence[LaneGroup], boxes: Sequence[LaneBox]) -> tuple[GroupBox, ...]:
    placed = []
    for group in groups:
        top, bottom = boxes[group.lanes[0]].top, boxes[group.lanes[-1]].bottom
        placed.append(GroupBox(top=top - GROUP_PX, head_bottom=top, bottom=bottom, group=group))
    return tuple(placed)


def _border_px(boxes: Sequence[LaneBox], *, has_groups: bool) -> int:
    texts = (text for box in boxes for text in (box.label, box.detail))
    widest_px = max((text_width_px(text) for text in texts), default=0.0)
    return int(max(_LEAST_BORDER_PX, widest_px) + _LABEL_MARGIN_PX) + (BAND_PX if has_groups else 0)


def _row_notes(rows: RowTable) -> list[str]:
    if not rows.folded_spans:
        return []
    return [f"{rows.folded_spans:,} spans are folded into the last row of their stream, where they may cover others"]
