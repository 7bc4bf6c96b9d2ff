"""Where things are in a picture of a trace, before anything draws it: one plan for the viewer and for the static picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import (
    RowTable,
    busy_word,
    change_text,
    counted_kinds,
    display_name,
    host_waits,
    is_work,
    nearest_ranges,
    span_rows,
    strays,
)
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
    row_px,
    work_order,
)
from gpustreamlab.model import SPAN_KINDS, Lane, Marker, Note, Trace, WorkDetail
from gpustreamlab.typing import BoolArray, CaptureTier, FloatArray, Int64Array, LaneKind, NoteKind, SpanKind

MARK_PX = 17  # Height of a line of labels of marks, above all lanes
MAX_MARKS = 500  # Most moments of a sort that are marked; the last are kept, and the page says how many are not

MARK_RANKS = {"note": 0, "hazard": 1, "layout": 2, "mark": 3, "cell": 4}
"""Rank of labels where there is no room for all: notes and findings first."""

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


GROUP_PX = 22  # Height of the line above the lanes of a partition, with its name and SMs
LANE_GAP_PX = 10  # Free space between two lanes
DETAIL_LANE_PX = 32  # Height of a lane whose label has a second line, at least
RANGE_ROW_PX = 18  # Height of a row of ranges where rows of kernels lie below it
HOST_ROW_PX = 15  # Height of a row of the host's calls, or of ranges that others named
LAYER_GAP_PX = 3  # Free space between the ranges of a lane and its kernels
MEMORY_PX = 30  # Height of the strip with the memory of a lane
LABEL_CHARACTERS = 24  # How many characters of a lane's name its label shows, at most
LABEL_PX = 190  # How wide a lane's label is, at most
BAND_PX = 26  # Width of the coloured band left of a partition's lanes, with its letter
CAPTURE_SLACK = 0.02  # A capture that leaves out no more of the whole time than this, at its ends, has everything
MEMORY_LABEL = "memory"  # Label of that strip

_WORK_WORDS = {SpanKind.KERNEL: "kernels", SpanKind.COPY: "copies", SpanKind.FILL: "fills"}
_LEAST_BORDER_PX = 56
_LABEL_MARGIN_PX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePart:
    """Rows of a lane that belong together, in px from the top of all lanes."""

    label: str  # What they hold
    top: float  # Upper border
    bottom: float  # Lower border


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBox:
    """Where a lane is, in px from the top of all lanes."""

    top: float  # Upper border
    bottom: float  # Lower border
    label: str  # The lane's name as it is shown
    detail: str
    """Its priority, or nothing where that is ordinary: below the name, or behind it where there are rows of several sorts."""
    group: int  # Place of its group, or -1 where there are no partitions
    parts: tuple[LanePart, ...] = ()
    """Its rows of ranges, of work and of memory, from the top; empty where all rows are of one sort."""
    is_host: bool = False  # True for a thread of the host

    @property
    def texts(self) -> tuple[str, ...]:
        """Lines of its label: below its name there is room only where all rows are of one sort."""
        names = (" · ".join(filter(None, (self.label, self.detail))),) if self.parts else (self.label, self.detail)
        return (*names, *(part.label for part in self.parts))


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
    mark_rows: tuple[float, ...]  # Middle of each line of their labels, in px from the top, above all lanes
    bands: tuple[SMBand, ...]
    """Bands of the strip of SM-time, from the bottom, the whole card last; empty where there are no partitions."""
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
    strip_word: str | None = None,
) -> Scene:
    """Lay out the lanes of a trace for drawing."""
    strip_word = busy_word(counted_kinds(trace)) if strip_word is None else strip_word
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
    mark_rows = tuple(MARK_PX * (row + 0.5) for row in range(min(2, len(marks))))
    lanes, boxes, (row_top, row_bottom), height_px = _plan_rooms(
        trace, rows, groups, order=order, marks_px=MARK_PX * len(mark_rows)
    )
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
        bands=bands,
        own_sms=own_sms(trace, bands, zero_ns),
        partitions=plan_partitions(trace, bands),
        sm_count=sum(card.sm_count for card in trace.devices),
        height_px=height_px,
        border_px=_border_px(lanes, strip_word, has_groups=bool(groups)),
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


def counts_bytes(trace: Trace) -> BoolArray:
    """Tell which samples are of memory, as the unit in their counter's name says; shape (n_samples,), bool."""
    is_bytes = np.array([name.endswith("bytes") for name in trace.counters.names], bool)
    found: BoolArray = is_bytes[trace.counters.name]
    return found


def fit_label(text: str) -> str:
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
    row_px: FloatArray  # Height of each one's sub-rows; shape (2, n_lanes)
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
    trace: Trace, rows: RowTable, groups: Sequence[LaneGroup], *, order: Sequence[int], marks_px: float
) -> tuple[tuple[LaneBox, ...], tuple[GroupBox, ...], tuple[FloatArray, FloatArray], float]:
    """Return where lanes, groups and the bars of each row are, from the top, and how high all is."""
    lane_count = len(trace.lanes)
    grouped = [lane for group in groups for lane in group.lanes]
    # Streams without a partition come first: then the only group is the host's.
    alone = set(order) - set(grouped)
    down = np.array([*(lane for lane in order if lane in alone), *grouped], np.int64)
    layers = _plan_layers(trace, rows, groups)
    labels = _part_labels(trace)
    inner_px = layers.bars_px.sum(axis=0) + layers.gap_px
    # How high each lane is at least, so that there is room for its label.
    of_labels_px = [
        HOST_ROW_PX if lane.kind is LaneKind.HOST else DETAIL_LANE_PX if lane_detail(lane) else ROW_PX for lane in trace.lanes
    ]
    least_px = np.where(layers.memory_alone, 0, of_labels_px)
    outer_px = np.maximum(inner_px, least_px) + layers.memory_px + LANE_GAP_PX
    heads_px = np.zeros(lane_count)
    heads_px[[group.lanes[0] for group in groups]] = GROUP_PX
    top, bottom = np.zeros(lane_count), np.zeros(lane_count)
    bottom[down] = marks_px + np.cumsum((outer_px + heads_px)[down])
    top[down] = bottom[down] - outer_px[down]
    group_of = np.full(lane_count, -1)
    for place, group in enumerate(groups):
        group_of[list(group.lanes)] = place
    bars_top = top + (outer_px - inner_px - layers.memory_px) / 2
    boxes = tuple(
        LaneBox(
            top=float(top[place]),
            bottom=float(bottom[place]),
            label=fit_label(lane.name),
            detail=MEMORY_LABEL if layers.memory_alone[place] else lane_detail(lane),
            group=int(group_of[place]),
            parts=_lane_parts(labels[place], layers, place, float(bars_top[place])),
            is_host=lane.kind is LaneKind.HOST,
        )
        for place, lane in enumerate(trace.lanes)
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
    return boxes, placed, _row_borders(rows, layers, bars_top), marks_px + float((outer_px + heads_px).sum())


def _plan_layers(trace: Trace, rows: RowTable, groups: Sequence[LaneGroup]) -> _Layers:
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
        row_px=_row_heights(trace, rows, shelves, groups),
        memory_px=np.where(has_memory, float(MEMORY_PX), 0.0),
        memory_alone=alone,
    )


def _row_heights(trace: Trace, rows: RowTable, shelves: Int64Array, groups: Sequence[LaneGroup]) -> FloatArray:
    """Return how high the rows of each layer of each lane are, in px; shape (2, n_lanes).

    A lane that ran with more SMs before it moved has room for them, so that the height of a bar means the same everywhere.
    """
    heights: FloatArray = np.full(shelves.shape, float(ROW_PX))
    both: BoolArray = np.all(shelves > 0, axis=0)
    # Where kernels are drawn, the height of their rows shows SMs. A lane with nothing but memory has no rows.
    counts = np.where(both, shelves[1], shelves.max(axis=0, initial=1))
    of_sms = trace.metadata.device.sm_count
    is_told = len(rows.lane_sms) > 0 and (trace.layout is None or trace.layout.is_enforced)
    for group in groups:
        for lane in group.lanes:
            sms = int(rows.lane_sms[lane]) if is_told else 0
            sms = sms or group.granted_sms
            heights[:, lane] = HOST_ROW_PX if group.is_host else row_px(sms, of_sms, int(counts[lane]))
    is_stream = np.array([lane.kind is not LaneKind.HOST for lane in trace.lanes], bool)
    heights[0, both & is_stream] = RANGE_ROW_PX
    return heights


def _part_labels(trace: Trace) -> list[tuple[str, str]]:
    """Say of each lane what its two sorts of rows hold."""
    labels = []
    present = np.zeros((len(trace.lanes), len(SPAN_KINDS)), bool)
    present[trace.lane, trace.kind] = True
    for lane, kinds in zip(trace.lanes, present, strict=True):
        words = [word for kind, word in _WORK_WORDS.items() if kinds[SPAN_KINDS.index(kind)]]
        # Of a live view that is not known here.
        work = words[0] if len(words) == 1 else "work"
        labels.append(("NVTX", "calls") if lane.kind is LaneKind.HOST else ("ranges", work))
    return labels


def _lane_parts(labels: tuple[str, str], layers: _Layers, place: int, top: float) -> tuple[LanePart, ...]:
    upper_px, lower_px = layers.bars_px[:, place].tolist()
    middle = top + upper_px + float(layers.gap_px[place])
    bottom, memory_px = middle + lower_px, float(layers.memory_px[place])
    memory = [LanePart(label=MEMORY_LABEL, top=bottom + LAYER_GAP_PX, bottom=bottom + memory_px)] if memory_px else []
    if layers.memory_alone[place]:
        return tuple(memory)
    if not (upper_px and lower_px):
        return (LanePart(label="", top=top, bottom=bottom), *memory) if memory else ()
    return (
        LanePart(label=labels[0], top=top, bottom=top + upper_px),
        LanePart(label=labels[1], top=middle, bottom=bottom),
        *memory,
    )


def _row_borders(rows: RowTable, layers: _Layers, bars_top: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the borders of each row's bars: lower bars are in the middle of their sub-row."""
    layer, lane = rows.layer, rows.lane
    height_px = layers.row_px[layer, lane]
    begin = bars_top[lane] + np.where(layer > 0, layers.bars_px[0, lane] + layers.gap_px[lane], 0.0)
    middle = begin + (rows.sub_row - layers.first_shelf[layer, lane] + 0.5) * height_px
    half_px = np.where(layers.memory_alone[lane], 0.0, (height_px - 2) / 2 * rows.share)
    return middle - half_px, middle + half_px


def _pale_rows(trace: Trace, rows: RowTable) -> BoolArray:
    """Tell which rows hold ranges that are drawn pale: all ranges where there are kernels, and those that others named."""
    layer = rows.layer
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes], bool)[rows.lane]
    has_work = bool((layer[~is_host] > 0).any())
    pale: BoolArray = (layer == 0) & (is_host | has_work)
    return pale


def _border_px(boxes: Sequence[LaneBox], strip_word: str, *, has_groups: bool) -> int:
    texts = (text for box in boxes for text in box.texts)
    widest_px = max((text_width_px(text) for text in texts), default=0.0)
    return int(max(_LEAST_BORDER_PX, widest_px, text_width_px(strip_word, 11)) + _LABEL_MARGIN_PX) + (
        BAND_PX if has_groups else 0
    )


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


def detail_entries(details: Sequence[WorkDetail]) -> list[list[Any]]:
    """Write details as the viewer reads them: full name, grid, block, registers, static and dynamic shared memory, graph.

    Examples
    --------
    >>> detail_entries([WorkDetail(full_name="scale(float*)", grid=(4, 1, 1), block=(256, 1, 1), registers=24)])
    [['scale(float*)', [4, 1, 1], [256, 1, 1], 24, 0, 0, 0]]
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
        ]
        for detail in details
    ]
