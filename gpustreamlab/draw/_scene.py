"""Where things are in a picture of a trace, before anything draws it: one plan for the viewer and for the static picture."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import (
    RowTable,
    change_text,
    count_text,
    display_name,
    host_waits,
    is_work,
    nearest_ranges,
    span_rows,
    strays,
)
from gpustreamlab.draw._card import CardRow, counts_bytes, detail_fit, only_counted, plan_card
from gpustreamlab.draw._colours import GREY, KIND_HATCHES, NameStyle, name_styles
from gpustreamlab.draw._groups import (
    ROW_PX,
    LaneGroup,
    PartitionEntry,
    SMBand,
    host_group,
    own_sms,
    plan_bands,
    plan_groups,
    plan_partitions,
    work_order,
)
from gpustreamlab.model import SPAN_KINDS, Lane, Marker, Note, SMLimits, Trace, WorkDetail
from gpustreamlab.typing import BoolArray, CaptureTier, FloatArray, Int64Array, LaneKind, NoteKind, SpanKind

MARK_PX = 17  # Height of a line of labels of marks, above all lanes
MAX_MARKS = 500  # Most moments of a sort that are marked; the last are kept, and the page says how many are not

MARK_RANKS = {"note": 0, "hazard": 1, "layout": 2, "mark": 3, "cell": 4}
"""Rank of labels where there is no room for all: notes and findings first."""

_NUMBER = re.compile(r"[0-9]+")
TEXT_LIMIT = 60  # How many characters of a moment's name are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment with a name."""

    time_ns: float  # When, in ns since the zero of the axis
    text: str  # What happened
    kind: str  # ``"layout"`` for a change of the partitions, else the kind of the trace's note or marker


def plan_marks(trace: Trace, zero_ns: int, width_ns: float) -> tuple[tuple[Mark, ...], list[str]]:
    """Return the moments within a picture in order of time, and notes where not all are marked."""
    margin_ns = 0.01 * width_ns
    moments: tuple[Note | Marker, ...] = (*trace.notes, *trace.markers)
    markers = [
        Mark(time_ns=time_ns, text=display_name(_mark_text(marker), TEXT_LIMIT), kind=marker.kind.value)
        for marker in moments
        if -margin_ns <= (time_ns := float(marker.time_ns - zero_ns)) <= width_ns + margin_ns
    ]
    found, notes = [], []
    for marks, what in ((_layout_marks(trace, zero_ns, width_ns), "changes of the partitions"), (markers, "notes and markers")):
        found += marks[-MAX_MARKS:]
        if len(marks) > MAX_MARKS:
            notes.append(f"{len(marks) - MAX_MARKS:,} of {len(marks):,} {what} are not marked")
    return tuple(sorted(found, key=lambda mark: mark.time_ns)), notes


def _mark_text(moment: Note | Marker) -> str:
    """Write a note whole, but of a hazard its kind: the viewer shows the rest."""
    return f"hazard: {moment.text.partition(':')[0]}" if moment.kind is NoteKind.HAZARD else moment.text


def _layout_marks(trace: Trace, zero_ns: int, width_ns: float) -> list[Mark]:
    """Mark changes of the layout while spans ran: what was so from the start is in the labels of the partitions."""
    marks, before = [], None
    for change in trace.layouts:
        text = change_text(before, change.layout)
        time_ns = float(change.time_ns - zero_ns)
        before = change.layout
        if text and 0 < time_ns < width_ns:
            marks.append(Mark(time_ns=time_ns, text=text, kind="layout"))
    return marks


GROUP_PX = 20  # Height of the line above the lanes of a partition, with its name and SMs
LANE_GAP_PX = 6  # Free space between two lanes
HOST_ROW_PX = 12  # Height of a row of the host's calls, or of ranges that others named
LAYER_GAP_PX = 1  # Free space between the ranges of a lane and its kernels
MEMORY_PX = 30  # Height of the strip with the memory of a lane
IDLE_PX = 18  # Height of the line that stands for all lanes without work
LABEL_CHARACTERS = 24  # How many characters of a lane's name its label shows, at most
LABEL_PX = 190  # How wide a lane's label is, at most
BAND_PX = 26  # Width of the coloured band left of a partition's lanes, with its letter
CAPTURE_SLACK = 0.02  # A capture that leaves out no more of the whole time than this, at its ends, has everything
MEMORY_LABEL = "memory"  # Label of that strip

_LEAST_BORDER_PX = 56
_LABEL_MARGIN_PX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePart:
    """Rows of a lane that belong together, in px from the top of all lanes."""

    label: str  # What they hold; empty for bars
    top: float  # Upper border
    bottom: float  # Lower border


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBox:
    """Where a lane is, in px from the top of all lanes."""

    top: float  # Upper border
    bottom: float  # Lower border
    label: str  # The lane's name as it is shown
    detail: str  # What is not ordinary of it, behind its name
    group: int  # Place of its group, or -1 where there are no partitions
    parts: tuple[LanePart, ...] = ()
    """Its bars and its memory, from the top; empty where it has no memory."""
    is_host: bool = False  # True for a thread of the host
    is_idle: bool = False  # True where nothing ran on it: it is folded into one line with all others
    is_counted: bool = False  # True where it has nothing but counters that the card's rows show: it is not shown

    @property
    def text(self) -> str:
        """What stands beside it."""
        return " · ".join(filter(None, (self.label, self.detail)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupBox:
    """Where the lanes of a partition are, in px from the top of all lanes."""

    top: float  # Upper border of the line with its name
    head_bottom: float  # Lower border of that line
    bottom: float  # Lower border of its last lane
    group: LaneGroup  # What is written there


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Where lanes, rows, partitions and marks are, and how names look. It holds no spans."""

    rows: RowTable  # The rows by their code
    row_top: FloatArray  # Upper border of each row's bars, in px from the top; shape (n_rows,), float64
    row_bottom: FloatArray  # Lower border of each row's bars, in px from the top; shape (n_rows,), float64
    row_pale: BoolArray  # Whether a row holds ranges that are drawn pale beside their kernels; shape (n_rows,), bool
    lanes: tuple[LaneBox, ...]
    """Where each lane of the trace is, by its code; where there are partitions, they do not follow each other in this order."""
    groups: tuple[GroupBox, ...]  # Where the partitions are, from the top; empty where there are none
    marks: tuple[Mark, ...]  # Moments with a name, in order of time
    mark_rows: tuple[float, ...]  # Middle of each line of their labels, in px from the top, above all else
    card_rows: tuple[CardRow, ...]  # The rows of the card, above all lanes
    head_px: float  # Where the lanes begin, in px from the top
    idle_text: str  # What stands below the lanes for those without work; empty where there are none
    bands: tuple[SMBand, ...]
    """Places in the card's row of SMs, from the bottom, the whole card last; empty where there are no partitions."""
    own_sms: tuple[tuple[float, tuple[int, ...]], ...]
    """From when on, in ns since zero, how many SMs each band keeps for itself: its place in the strip is that of these."""
    partitions: tuple[PartitionEntry, ...]  # The whole card, then each of the trace's partitions by its code
    sm_count: int  # How many SMs all cards have
    height_px: float  # Height of all lanes
    border_px: int  # Room left of the lanes that their labels need
    lane_hues: tuple[int, ...]
    """Place of each lane's hue: its partition's, its own where its card has no partitions, grey for threads of the host."""
    has_own_hue: BoolArray  # Whether a lane's hue is its own; shape (n_lanes,), bool
    styles: tuple[NameStyle, ...]  # How each name of the trace looks
    kind_hatch: tuple[str, ...]  # Hatch of each kind, or an empty text where the name's counts
    windows: tuple[tuple[float, float], ...]  # From when to when kernels were captured, in ns since zero
    is_partly_captured: bool  # Whether they were for some of the time only
    zero_ns: int  # The trace's time at which the axis has its 0
    width_ns: float  # From there to the last end
    notes: tuple[str, ...]  # What the picture leaves out or may hide, in words


def plan_scene(
    trace: Trace,
    rows: RowTable | None = None,
    *,
    zero_ns: int | None = None,
    width_ns: float | None = None,
) -> Scene:
    """Lay out the lanes of a trace for drawing."""
    rows = span_rows(trace)[0] if rows is None else rows
    if zero_ns is None:
        zero_ns = int(trace.start_ns.min()) if len(trace) else 0
    width_ns = float(trace.end_ns.max() - zero_ns) if width_ns is None and len(trace) else width_ns or 0.0
    extent_ns = (zero_ns, zero_ns + int(width_ns))
    host = host_group(trace)
    order, bands = work_order(trace, rows), plan_bands(trace, extent_ns)
    rank = np.argsort(order)
    streams = [replace(group, lanes=tuple(sorted(group.lanes, key=rank.item))) for group in plan_groups(trace, extent_ns)]
    groups = (*streams, *([host] if host else []))
    marks, mark_notes = plan_marks(trace, zero_ns, width_ns)
    windows = tuple((float(begin - zero_ns), float(end - zero_ns)) for begin, end in trace.metadata.capture_windows)
    # Two marks may be too near to each other for one line of labels.
    labelled = [mark for mark in marks if mark.kind != NoteKind.HAZARD.value]  # a hazard has a sign
    mark_rows = tuple(MARK_PX * (row + 0.5) for row in range(min(2, len(labelled))))
    card_rows, head_px = plan_card(trace, float(MARK_PX * len(mark_rows)), zero_ns)
    lanes, boxes, (row_top, row_bottom), height_px = _plan_rooms(trace, rows, groups, order=order, head_px=head_px)
    idle_count = sum(lane.is_idle and not lane.is_counted for lane in lanes)
    lane_hues, has_own_hue = _lane_hues(trace, lanes, boxes)
    folded = f"{rows.folded_spans:,} spans are folded into the last row of their stream, where they may cover others"
    return Scene(
        rows=rows,
        row_top=row_top,
        row_bottom=row_bottom,
        row_pale=_pale_rows(trace, rows),
        lanes=lanes,
        groups=boxes,
        marks=marks,
        mark_rows=mark_rows,
        card_rows=card_rows,
        head_px=head_px,
        idle_text=f"{count_text(idle_count, 'stream')} without work" if idle_count else "",
        bands=bands,
        own_sms=own_sms(trace, bands, zero_ns),
        partitions=plan_partitions(trace, bands),
        sm_count=sum(card.sm_count for card in trace.devices),
        height_px=height_px,
        border_px=_border_px(lanes, card_rows, has_groups=bool(groups)),
        lane_hues=lane_hues,
        has_own_hue=has_own_hue,
        styles=name_styles(trace.names),
        kind_hatch=tuple(KIND_HATCHES.get(kind, "") for kind in SPAN_KINDS),
        windows=windows,
        is_partly_captured=is_partly_captured(windows, width_ns),
        zero_ns=zero_ns,
        width_ns=width_ns,
        notes=(*([folded] if rows.folded_spans else []), *mark_notes),
    )


def _lane_hues(trace: Trace, lanes: Sequence[LaneBox], groups: Sequence[GroupBox]) -> tuple[tuple[int, ...], BoolArray]:
    """Return the hue of each lane, and whether it is its own: on cards without partitions, whatever the other cards have."""
    split = [box.group for box in groups if box.group.style.letter]
    cards = {trace.lanes[lane].device for group in split for lane in group.lanes}
    own = np.array([not box.is_host and lane.device not in cards for lane, box in zip(trace.lanes, lanes, strict=True)], bool)
    hues = [groups[lane.group].group.style.hue if lane.group >= 0 else GREY for lane in lanes]
    # By their places in the picture, so that no neighbours have the same, behind those of the partitions.
    down = [lane for lane in np.argsort([lane.top for lane in lanes], kind="stable").tolist() if own[lane]]
    for place, lane in enumerate(down, len({group.name for group in split})):
        hues[lane] = place % GREY
    return tuple(hues), own


def lane_detail(lane: Lane) -> str:
    """Write what is not ordinary of a lane: its priority, that others made it; its partition stands above it.

    Examples
    --------
    >>> lane_detail(Lane(name="decode", priority=-1, partition="small"))
    'priority -1'
    """
    facts = [*(["not made here"] if lane.outside else []), *([f"priority {lane.priority}"] if lane.priority else [])]
    return " · ".join(facts)


def memory_lanes(trace: Trace, rows: RowTable | None = None) -> BoolArray:
    """Tell which lanes have memory, but no spans; shape (n_lanes,), bool.

    Of a trace without spans, as a live view has, these are streams of others on which no work ran, by its rows.
    """
    alone = np.zeros(len(trace.lanes), bool)
    alone[trace.counters.lane[counts_bytes(trace)]] = True
    if len(trace) or rows is None:
        alone[trace.lane] = False
    else:
        alone &= np.array([lane.outside for lane in trace.lanes], bool)
        alone[rows.lane[rows.layer > 0]] = False
    return alone


def lane_labels(names: Sequence[str]) -> list[str]:
    """Return what stands beside lanes: their names, or what tells long ones apart, short and narrow enough.

    Examples
    --------
    >>> lane_labels(["upload", "stream of the next batch of requests 1", "stream of the next batch of requests 2"])
    ['upload', '…requests 1', '…requests 2']
    """
    shown = [display_name(name, 200) for name in names]
    kin: dict[str, set[str]] = {}
    for name in shown:
        if _cut(name) != name:
            kin.setdefault(_NUMBER.sub("#", name), set()).add(name)
    return [_cut(_own_part(name, sorted(kin.get(_NUMBER.sub("#", name), ())))) for name in shown]


def _own_part(name: str, kin: Sequence[str]) -> str:
    """Return of a name what its kin, which differ by a number, do not share, with the last word of what they do."""
    if len(kin) < 2:
        return name
    words = _shared_lead(kin).rstrip().rsplit(" ", 1)
    return f"…{name[len(words[0]) :].lstrip()}" if len(words) > 1 else name


def _shared_lead(texts: Sequence[str]) -> str:
    """Return with what all texts begin."""
    signs = zip(*texts, strict=False)
    return "".join(sign[0] for sign in takewhile(lambda signs: len(set(signs)) == 1, signs))


def _cut(text: str) -> str:
    """Cut a text in its middle until it is short and narrow enough for the label of a lane."""
    limits = range(min(LABEL_CHARACTERS, max(2, len(text))), 1, -1)
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
class _Layers:
    """The two layers of each lane: rows of ranges, and below them rows of work."""

    first_shelf: Int64Array  # Sub-row with which each layer begins; shape (2, n_lanes)
    shelves: Int64Array  # Sub-rows of each; shape (2, n_lanes)
    row_px: FloatArray  # Height of a sub-row of each lane; shape (n_lanes,)
    memory_px: FloatArray  # Height of the strip below them; shape (n_lanes,)
    memory_alone: BoolArray  # Lanes that have nothing but that strip: nothing ran there; shape (n_lanes,), bool

    @property
    def bars_px(self) -> FloatArray:
        """Height of each layer; shape (2, n_lanes)."""
        return self.shelves * self.row_px

    @property
    def gap_px(self) -> FloatArray:
        """Free space between both; shape (n_lanes,)."""
        heights: FloatArray = np.where((self.bars_px > 0).all(axis=0), float(LAYER_GAP_PX), 0.0)
        return heights


def _plan_rooms(
    trace: Trace, rows: RowTable, groups: Sequence[LaneGroup], *, order: Sequence[int], head_px: float
) -> tuple[tuple[LaneBox, ...], tuple[GroupBox, ...], tuple[FloatArray, FloatArray], float]:
    """Return where lanes, groups and the bars of each row are, from the top, and how high all is."""
    lane_count = len(trace.lanes)
    grouped = [lane for group in groups for lane in group.lanes]
    # Streams without a partition come first: then the only group is the host's.
    alone = set(order) - set(grouped)
    down = np.array([*(lane for lane in order if lane in alone), *grouped], np.int64)
    layers = _plan_layers(trace, rows)
    inner_px = layers.bars_px.sum(axis=0) + layers.gap_px
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes], bool)
    is_counted = only_counted(trace)
    is_idle = _idle_lanes(trace, layers.memory_px > 0) | is_counted
    outer_px = np.where(is_idle, 0.0, np.maximum(inner_px, np.where(is_host, HOST_ROW_PX, 0)) + layers.memory_px + LANE_GAP_PX)
    heads_px = np.zeros(lane_count)
    heads_px[[group.lanes[0] for group in groups]] = GROUP_PX
    top, bottom = np.zeros(lane_count), np.zeros(lane_count)
    bottom[down] = head_px + np.cumsum((outer_px + heads_px)[down])
    top[down] = bottom[down] - outer_px[down]
    group_of = np.full(lane_count, -1)
    for place, group in enumerate(groups):
        group_of[list(group.lanes)] = place
    bars_top = top + LANE_GAP_PX / 2
    boxes = tuple(
        LaneBox(
            top=float(top[place]),
            bottom=float(bottom[place]),
            label=label,
            detail=MEMORY_LABEL if layers.memory_alone[place] else lane_detail(lane),
            group=int(group_of[place]),
            parts=_lane_parts(layers, place, float(bars_top[place])),
            is_host=bool(is_host[place]),
            is_idle=bool(is_idle[place]),
            is_counted=bool(is_counted[place]),
        )
        for place, (lane, label) in enumerate(zip(trace.lanes, lane_labels([lane.name for lane in trace.lanes]), strict=True))
    )
    placed = tuple(
        GroupBox(
            top=(head := boxes[group.lanes[0]].top) - GROUP_PX,
            head_bottom=head,
            bottom=boxes[group.lanes[-1]].bottom,
            group=group,
        )
        for group in groups
    )
    height_px = head_px + float((outer_px + heads_px).sum()) + (IDLE_PX if (is_idle & ~is_counted).any() else 0)
    return boxes, placed, _row_borders(rows, layers, bars_top), height_px


def _idle_lanes(trace: Trace, has_memory: BoolArray) -> BoolArray:
    """Tell which streams have no spans; shape (n_lanes,), bool. Of a live view, whose trace holds none, the page knows."""
    if not len(trace):
        return np.zeros(len(trace.lanes), bool)
    is_stream = np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)
    idle: BoolArray = is_stream & (np.bincount(trace.lane, minlength=len(trace.lanes)) == 0) & ~has_memory
    return idle


def _plan_layers(trace: Trace, rows: RowTable) -> _Layers:
    lane_count, layer = len(trace.lanes), rows.layer
    place = layer * lane_count + rows.lane
    end, first = np.zeros(2 * lane_count, np.int64), np.full(2 * lane_count, np.iinfo(np.int64).max)
    np.maximum.at(end, place, rows.sub_row + 1)
    np.minimum.at(first, place, rows.sub_row)
    shelves = np.where(end > 0, end - np.minimum(first, end), 0).reshape(2, lane_count)
    has_memory = np.zeros(lane_count, bool)
    has_memory[trace.counters.lane[counts_bytes(trace)]] = True
    alone = memory_lanes(trace, rows)
    shelves[:, alone] = 0
    return _Layers(
        first_shelf=first.reshape(2, lane_count),
        shelves=shelves,
        row_px=np.array([HOST_ROW_PX if lane.kind is LaneKind.HOST else ROW_PX for lane in trace.lanes], np.float64),
        memory_px=np.where(has_memory, float(MEMORY_PX), 0.0),
        memory_alone=alone,
    )


def _lane_parts(layers: _Layers, place: int, top: float) -> tuple[LanePart, ...]:
    memory_px = float(layers.memory_px[place])
    if not memory_px:
        return ()
    bottom = top + float(layers.bars_px[:, place].sum() + layers.gap_px[place])
    memory = LanePart(label=MEMORY_LABEL, top=bottom + LAYER_GAP_PX, bottom=bottom + memory_px)
    return (memory,) if layers.memory_alone[place] else (LanePart(label="", top=top, bottom=bottom), memory)


def _row_borders(rows: RowTable, layers: _Layers, bars_top: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the borders of each row's bars."""
    layer, lane = rows.layer, rows.lane
    height_px = layers.row_px[lane]
    begin = bars_top[lane] + np.where(layer > 0, layers.bars_px[0, lane] + layers.gap_px[lane], 0.0)
    top = begin + (rows.sub_row - layers.first_shelf[layer, lane]) * height_px
    return top, np.where(layers.memory_alone[lane], top, top + height_px - 1)


def _pale_rows(trace: Trace, rows: RowTable) -> BoolArray:
    """Tell which rows hold ranges that are drawn pale: all ranges where there are kernels, and those that others named."""
    layer = rows.layer
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes], bool)[rows.lane]
    has_work = bool((layer[~is_host] > 0).any())
    pale: BoolArray = (layer == 0) & (is_host | has_work)
    return pale


def _border_px(boxes: Sequence[LaneBox], card_rows: Sequence[CardRow], *, has_groups: bool) -> int:
    texts = [*(box.text for box in boxes if not box.is_idle), *(row.label for row in card_rows)]
    widest_px = max((text_width_px(text) for text in texts), default=0.0)
    return int(max(_LEAST_BORDER_PX, widest_px) + _LABEL_MARGIN_PX) + (BAND_PX if has_groups else 0)


def is_partly_captured(windows: Sequence[tuple[float, float]], width_ns: float) -> bool:
    """Tell whether kernels were captured for some of the time only; a little at both ends does not count."""
    slack_ns = CAPTURE_SLACK * width_ns
    if not windows or not width_ns:
        return False
    within = [window for window in windows if window[0] < width_ns and window[1] > 0]
    return len(within) != 1 or within[0][0] > slack_ns or within[0][1] < width_ns - slack_ns


DETAIL_CHARACTERS = 1_000  # How many characters of a kernel's full name the viewer gets

NO_WAIT = -2
"""Code of the name of what a call waited for, where a span is no call that blocked the host; -1 where that is not known."""


def owner_rows(trace: Trace) -> Int64Array:
    """Return the range in which each kernel, copy and fill was launched, -1 for none and for all else; shape (n_spans,)."""
    owner = np.full(len(trace), -1, np.int64)
    work = np.flatnonzero(is_work(trace))
    owner[work] = nearest_ranges(trace, work)
    return owner


def stray_facts(trace: Trace) -> list[str]:
    """Say in one line what left the stream that its range had selected; empty where nothing did."""
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return []
    found = strays(trace)
    return [str(found).partition("\n")[0]] if found else []


def work_columns(trace: Trace) -> Mapping[str, NDArray[Any]]:
    """Return the columns of `SpanColumns` of device work; empty where no kernels were captured."""
    extra = trace.extra
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return {}
    columns: dict[str, NDArray[Any]] = {name: extra[name] for name in ("detail", "size_bytes") if name in extra}
    owner = owner_rows(trace)
    columns["owner_name"] = np.where(owner >= 0, trace.name[owner], -1)
    columns["owner_lane"] = np.where(owner >= 0, trace.lane[owner], -1)
    if "work_count" in extra:
        is_holder = (extra["work_count"] > 0) & ~is_work(trace)
        columns["work_lead_ns"] = np.where(is_holder, extra["work_start_ns"] - trace.start_ns, 0)
        columns["work_tail_ns"] = np.where(is_holder, trace.end_ns - extra["work_end_ns"], 0)
        columns["work_count"] = np.where(is_holder, extra["work_count"], 0)
    if SPAN_KINDS.index(SpanKind.HOST) in trace.kind:
        waits = host_waits(trace)
        columns["waited_name"] = np.full(len(trace), NO_WAIT)
        columns["waited_name"][waits.row] = waits.waited_name
    return columns


def detail_entries(details: Sequence[WorkDetail], limits: SMLimits) -> list[list[Any]]:
    """Write details as the viewer reads them.

    These are full name, grid, block, registers, static and dynamic shared memory, graph, and how many blocks fit on an SM.

    Examples
    --------
    >>> detail = WorkDetail(full_name="scale(float*)", grid=(4, 1, 1), block=(256, 1, 1), registers=24)
    >>> detail_entries([detail], SMLimits())
    [['scale(float*)', [4, 1, 1], [256, 1, 1], 24, 0, 0, 0, 8]]
    """
    return [
        [
            display_name(detail.full_name, DETAIL_CHARACTERS),
            list(detail.grid),
            list(detail.block),
            detail.registers,
            detail.static_shared_bytes,
            detail.dynamic_shared_bytes,
            detail.graph,
            detail_fit(detail, limits),
        ]
        for detail in details
    ]
