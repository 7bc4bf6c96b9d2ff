"""What is drawn, before anything draws it: one description for the figure and for the static picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import Rows, assign_rows, busy_edges, count_steps, display_name, format_ns
from gpustreamlab.draw._colours import KIND_FILLS, KIND_HATCHES, NameStyle, name_styles
from gpustreamlab.model import SPAN_KINDS, Lane, Layout, Trace
from gpustreamlab.typing import FloatArray, Int64Array

MAX_DRAWN_SPANS = 200_000
"""Most spans that a figure holds; the longest are kept, and the page says how many are not drawn."""

MAX_DRAWN_EDGES = 2_000
"""Most arrows between spans that a figure holds; the first are kept, and the page says how many are not drawn."""

MAX_HEIGHT_PX = 12_000
"""Tallest canvas; rows get lower where a trace needs more. Browsers refuse much taller ones."""

ROW_PX = 22
"""Height of a row of bars."""

LANE_GAP_PX = 10
"""Free space between two lanes."""

LABEL_CHARACTERS = 24
"""How many characters of a lane's name its label shows, at most."""

LABEL_PX = 190
"""How wide a lane's label is, at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneBox:
    """Where a lane is, in px from the top."""

    top: float
    """Upper border."""
    bottom: float
    """Lower border."""
    label: str
    """The lane's name as it is shown."""
    detail: str
    """Priority and partition, or nothing where both are ordinary."""


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
    """Where the lanes are."""
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
    rows = assign_rows(trace)
    lanes, tops, bottoms, height_px = _lane_boxes(trace, rows)
    kept, notes = _longest(trace, max_spans)
    order = kept[np.lexsort((trace.start_ns[kept], rows.row[kept]))]
    zero_ns = int(trace.start_ns.min()) if len(trace) else 0
    step_ns, step_count = count_steps(busy_edges(trace))
    edges, edge_notes = _drawn_edges(trace, order)
    if rows.folded_spans:
        notes.append(f"{rows.folded_spans:,} spans are folded into the last row of their stream, where they may cover others")
    return Scene(
        span=order,
        left_ns=(trace.start_ns[order] - zero_ns).astype(np.float64),
        right_ns=(trace.end_ns[order] - zero_ns).astype(np.float64),
        row=rows.row[order].astype(np.int64),
        row_top=tops,
        row_bottom=bottoms,
        row_lane=np.repeat(np.arange(len(trace.lanes)), rows.row_count),
        lanes=lanes,
        height_px=height_px,
        styles=name_styles(trace.names),
        kind_hatch=tuple(KIND_HATCHES.get(kind, "") for kind in SPAN_KINDS),
        kind_fill=tuple(KIND_FILLS.get(kind, "") for kind in SPAN_KINDS),
        step_ns=(step_ns - zero_ns).astype(np.float64),
        step_count=step_count,
        edges=edges,
        zero_ns=zero_ns,
        width_ns=float(trace.end_ns.max() - zero_ns) if len(trace) else 0.0,
        notes=(*notes, *edge_notes),
    )


def lane_detail(lane: Lane, layout: Layout | None) -> str:
    """Write a lane's priority and partition, where they are not the ordinary ones.

    Examples
    --------
    >>> lane_detail(Lane(name="decode", priority=-1, partition="small"), None)
    'priority -1 · small'
    """
    facts = [f"priority {lane.priority}"] if lane.priority else []
    if lane.partition is not None:
        sms = next((part.granted_sms for part in layout.partitions if part.name == lane.partition), None) if layout else None
        facts.append(display_name(lane.partition, 12) + (f" ({sms} SMs)" if sms is not None else ""))
    return fit_label(" · ".join(facts), LABEL_CHARACTERS + 8) if facts else ""


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


def _lane_boxes(trace: Trace, rows: Rows) -> tuple[tuple[LaneBox, ...], FloatArray, FloatArray, float]:
    details = [lane_detail(lane, trace.layout) for lane in trace.lanes]
    inner = np.maximum(rows.row_count * ROW_PX, [32 if detail else ROW_PX for detail in details])
    outer = inner + LANE_GAP_PX if len(details) else np.zeros(0)
    scale = min(1.0, MAX_HEIGHT_PX / max(1.0, float(outer.sum())))
    lane_top = (np.cumsum(outer) - outer) * scale
    lane_bottom = lane_top + outer * scale
    boxes = tuple(
        LaneBox(top=top, bottom=bottom, label=fit_label(lane.name), detail=detail)
        for lane, detail, top, bottom in zip(trace.lanes, details, lane_top.tolist(), lane_bottom.tolist(), strict=True)
    )
    place = np.arange(rows.total) - np.repeat(rows.first_row, rows.row_count)
    bars_px = rows.row_count * ROW_PX
    first_px = lane_top / scale + (outer - bars_px) / 2
    tops = ((np.repeat(first_px, rows.row_count) + place * ROW_PX + 1) * scale).astype(np.float64)
    return boxes, tops, tops + (ROW_PX - 2) * scale, float(outer.sum() * scale)


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
