"""Legend of a static picture: names and partitions with their colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import (
    Merged,
    counted_rows,
    display_name,
    distinct,
    group_labels,
    host_waits,
    name_group,
    sm_kinds,
)
from gpustreamlab.draw._card import counter_line, counts_bytes
from gpustreamlab.draw._colours import (
    CALL_STYLES,
    DARK_TEXT,
    GREY,
    HATCH_CLASS,
    KIND_HATCHES,
    OPEN_ALPHA,
    STRAY_COLOUR,
    PartitionStyle,
    Shape,
    call_class,
    fill_of,
    hatch_fill,
    line_of,
)
from gpustreamlab.draw._picture import Picture
from gpustreamlab.draw._scene import NO_WAIT, Scene, stray_facts
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array, SpanKind

LEGEND_PARTITIONS = 12  # How many partitions the legend shows: the first
LEGEND_NAMES = 14  # How many names the legend shows: those that take most time
PARTITION_LEAD = "SMs by partition:"  # What stands before the partitions

_INK = "#1b1f24"
_WAITING_KINDS = (SpanKind.RANGE, SpanKind.ANNOTATION, SpanKind.WAIT)

Entries = list[tuple[str, str]]  # Texts of a legend, each with its swatch as SVG, or nothing


def name_entries(trace: Trace, scene: Scene) -> Entries:
    """Return the names of a static picture's legend, then kinds that have a hatch of their own, calls and strays."""
    (named, more), uses = used_names(trace, LEGEND_NAMES), _uses_of_names(trace)
    kinds = [SPAN_KINDS[kind] for kind in sorted({kind for used in uses.values() for _, kind in used})]
    looks = [
        *((display_name(label, 28), _name_swatch(trace, scene, uses, label, code)) for label, code in named),
        *(
            (
                f"kind: {kind.value}",
                swatch_svg(fill_of(GREY), KIND_HATCHES.get(kind, " "), "hollow" if kind in _WAITING_KINDS else "solid"),
            )
            for kind in kinds
            if len(kinds) > 1 and kind is not SpanKind.HOST
        ),
        *_call_entries(trace),
        *([("stray", f'<path d="M5 0h11v11z" fill="{STRAY_COLOUR}"/>')] if stray_facts(trace) else []),
    ]
    # A picture within the picture cuts off what is beyond its border.
    entries = [(text, f'<svg width="16" height="12">{swatch}</svg>') for text, swatch in looks]
    return [*entries, *([(f"and {more:,} more names", "")] if more else [])]


def partition_entries(trace: Trace, scene: Scene) -> Entries:
    """Return the partitions of a static picture's legend; none where there are none."""
    worked = np.unique(trace.partition[counted_rows(trace, sm_kinds(trace))] + 1).tolist()
    used = {scene.partitions[code].band for code in worked}
    entries = [
        (
            band.label if place in used else f"{band.label}, idle",
            f'<svg width="24" height="14">{partition_swatch_svg(band.style)}</svg>',
        )
        for place, band in enumerate(scene.bands)
        if place in used or band.name is not None
    ]
    more = len(entries) - LEGEND_PARTITIONS
    tail = [(f"and {more:,} more", "")] if more > 0 else []
    return [(PARTITION_LEAD, ""), *entries[:LEGEND_PARTITIONS], *tail] if entries else []


def used_names(trace: Trace, limit: int) -> tuple[list[tuple[str, int]], int]:
    """Return the names that take most time, each with a code that looks like it, and how many more there are; none of calls.

    Names that differ by a number are one; it stands where the first of them does.
    """
    count = np.bincount(trace.name, minlength=len(trace.names))
    totals = np.bincount(trace.name, weights=trace.duration_ns, minlength=len(trace.names))
    present = [code for code in np.flatnonzero(count).tolist() if not call_class(trace.names[code])]
    first: dict[str, int] = {}
    total_ns: Counter[str] = Counter()
    for code, label in zip(present, group_labels([trace.names[code] for code in present]), strict=True):
        first.setdefault(label, code)
        total_ns[label] += totals[code]
    longest = sorted(first, key=lambda label: -total_ns[label])[:limit]
    return sorted(((label, first[label]) for label in longest), key=lambda entry: entry[1]), len(first) - len(longest)


def partition_swatch_svg(style: PartitionStyle) -> str:
    """Draw a partition's colour, hatch and letters as SVG shapes, 24 by 14."""
    letters = (
        f'<text x="12" y="11" font-size="11" font-weight="700" text-anchor="middle" fill="{DARK_TEXT}">{style.letter}</text>'
    )
    return _hatched("24", "14", style.fill, style.hatch) + (letters if style.letter else "")


def _hatched(width: str, height: str, fill: str, hatch: str) -> str:
    size = f'width="{width}" height="{height}" rx="2"'
    over = f'<rect {size} fill="{pattern}" {HATCH_CLASS}/>' if (pattern := hatch_fill(hatch)) else ""
    return f'<rect {size} fill="{fill}"/>{over}'


def _uses_of_names(trace: Trace) -> dict[int, set[tuple[int, int]]]:
    """Return the lanes and kinds of the spans of each name, by codes."""
    lanes, kinds = len(trace.lanes), len(SPAN_KINDS)
    found, _ = distinct((trace.name.astype(np.int64) * lanes + trace.lane) * kinds + trace.kind)
    uses: dict[int, set[tuple[int, int]]] = {}
    for key in found.tolist():
        rest, kind = divmod(key, kinds)
        uses.setdefault(rest // lanes, set()).add((rest % lanes, kind))
    return uses


def _name_swatch(trace: Trace, scene: Scene, uses: dict[int, set[tuple[int, int]]], label: str, code: int) -> str:
    """Draw how names look that are one in the legend: in grey where their bars are of several hues."""
    is_group = "*" in label
    codes = [other for other, name in enumerate(trace.names) if name_group(name) == label] if is_group else [code]
    used = [uses[one] for one in {code, *codes} if one in uses]
    hues = {scene.lane_hues[lane] for one in used for lane, _ in one}
    style, kinds = scene.styles[code], {SPAN_KINDS[kind] for one in used for _, kind in one}
    is_waiting = kinds <= set(_WAITING_KINDS)
    shape: Shape = "solid" if not is_waiting else "hollow" if scene.row_pale.any() else "open"
    return swatch_svg(fill_of(hues.pop() if len(hues) == 1 else GREY, style.tint), style.hatch, shape)


def _shape(is_hollow: bool) -> Shape:  # noqa: FBT001 - it says what it is
    return "hollow" if is_hollow else "solid"


def swatch_svg(fill: str, hatch: str, shape: Shape = "solid") -> str:
    """Draw a colour, a hatch and a shape as SVG, 16 by 12."""
    line = line_of(fill, _INK)
    if shape == "hollow":
        return f'<rect x=".5" y=".5" width="15" height="11" rx="2" fill="none" stroke="{line}"/>'
    if shape == "open":
        rails = f'<path d="M0 .5h16M0 11.5h16" stroke="{line}"/>'
        return f'<path d="M3 0h10v12h-10z" fill="{fill}" fill-opacity="{OPEN_ALPHA}"/>{rails}'
    return _hatched("16", "12", fill, hatch)


def _call_entries(trace: Trace) -> Entries:
    present = {call_class(trace.names[code]) for code in np.flatnonzero(np.bincount(trace.name)).tolist()}
    if SPAN_KINDS.index(SpanKind.HOST) in trace.kind and len(host_waits(trace)):
        present.add("synchronise")
    return [
        (f"call: {label}", swatch_svg(style.fill, style.hatch, _shape(style.is_hollow)))
        for label, style in CALL_STYLES.items()
        if label in present
    ]


_WORDS = {
    "pool_used_bytes": ("pool in use", True),
    "pool_reserved_bytes": ("pool reserved", False),
    "async_used_bytes": ("stream-ordered in use", True),
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryLine:
    """One quantity of one lane: each value holds until the next time."""

    label: str  # What it is
    is_filled: bool  # True for memory in use, false for what is only reserved
    time_ns: FloatArray  # When it changed, in ns since zero; shape (n,), float64, in order
    value: FloatArray  # To what, in bytes; shape (n,), float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryStrip:
    """The lines below one lane, on one scale."""

    lane: int  # The lane
    top: float  # Upper border, in px from the top of all lanes
    bottom: float  # Lower border
    most_bytes: float  # The top of the scale: the highest value
    lines: tuple[MemoryLine, ...]  # What is reserved, then what is in use


def plan_memory(trace: Trace, scene: Scene) -> tuple[MemoryStrip, ...]:
    """Return the strips of all lanes with counters of memory; a counter that is not in bytes has none."""
    counters, is_memory, strips = trace.counters, counts_bytes(trace), []
    codes = np.unique(counters.name[is_memory]).tolist()
    for lane in np.unique(counters.lane[is_memory]).tolist():
        part = scene.lanes[lane].parts[-1]
        lines = [_line(trace, lane, code, scene.zero_ns) for code in codes]
        known = sorted((line for line in lines if len(line.time_ns)), key=lambda line: line.is_filled)
        most = max((float(line.value.max()) for line in known), default=0.0)
        strips.append(MemoryStrip(lane=lane, top=part.top, bottom=part.bottom, most_bytes=most, lines=tuple(known)))
    return tuple(strips)


def memory_entries(trace: Trace, scene: Scene) -> list[dict[str, Any]]:
    """Write the strips as the viewer reads them."""
    return [
        {
            "lane": strip.lane,
            "top": round(strip.top, 2),
            "bottom": round(strip.bottom, 2),
            "most": strip.most_bytes,
            "most_text": format_bytes(strip.most_bytes),
            "lines": [
                {"label": line.label, "filled": line.is_filled, "time": line.time_ns.tolist(), "value": line.value.tolist()}
                for line in strip.lines
            ],
        }
        for strip in plan_memory(trace, scene)
    ]


def format_bytes(size_bytes: float) -> str:
    """Write a number of bytes with three digits and its unit.

    Examples
    --------
    >>> format_bytes(0), format_bytes(1000), format_bytes(1536), format_bytes(16 << 20)
    ('0 B', '1000 B', '1.50 KiB', '16.0 MiB')
    """
    place = 0
    while abs(size_bytes) >= 1023.5 and place < len(_UNITS) - 1:
        size_bytes, place = size_bytes / 1024, place + 1
    digits = 0 if place == 0 or abs(size_bytes) >= 100 else 1 if abs(size_bytes) >= 10 else 2
    return f"{size_bytes:.{digits}f} {_UNITS[place]}"


def _line(trace: Trace, lane: int, code: int, zero_ns: int) -> MemoryLine:
    line, name = counter_line(trace, lane, code, zero_ns), trace.counters.names[code]
    label, is_filled = _WORDS.get(name, (name.removesuffix("_bytes").replace("_", " "), True))
    return MemoryLine(label=label, is_filled=is_filled, time_ns=line.time_ns, value=line.value)


FADE_PX = 5.0  # Width of the steps in which the end of such a bar fades out
FADED_PX = 24  # Bars that are at least this wide do so, between two lines
LEAST_LOAD_PX = 1.5  # How high the load of spans far apart is, at least

PALE_ALPHA = 0.3  # How opaque a range is whose work is drawn below it
GAP_PX = 0.7  # What keeps neighbours apart

_CALLS = tuple(CALL_STYLES.values())
_BLOCKING = list(CALL_STYLES).index("synchronise")


def bar_fills(picture: Picture, items: Merged, is_own: BoolArray) -> list[str]:
    """Return the colour of each bar: its partition's or stream's hue in the tint of its name, without one where it is load."""
    scene, columns = picture.scene, picture.columns
    lane = scene.rows.lane[columns.row[items.pick]]
    bands = np.array([part.band for part in scene.partitions], np.int64)[columns.partition[items.pick]]
    is_split = ~(np.array([box.is_host for box in scene.lanes], bool) | scene.has_own_hue)[lane]
    hues = np.array([*(band.style.hue for band in scene.bands), GREY], np.int64)[bands]
    hues = np.where((bands >= 0) & is_split, hues, np.array(scene.lane_hues, np.int64)[lane])
    tints = np.array([style.tint for style in scene.styles], np.int64)[columns.name[items.pick]] * is_own
    calls = np.where(is_own, _call_codes(picture, items), -1)
    return [
        _CALLS[call].fill if call >= 0 else fill_of(hue, tint)
        for call, hue, tint in zip(calls.tolist(), hues.tolist(), tints.tolist(), strict=True)
    ]


def bar_hatches(picture: Picture, items: Merged) -> list[str]:
    """Return the hatch of each bar: that of its kind, or else of its name."""
    scene, columns = picture.scene, picture.columns
    names, kinds = columns.name[items.pick].tolist(), columns.kind[items.pick].tolist()
    return [scene.kind_hatch[kind] or scene.styles[name].hatch for name, kind in zip(names, kinds, strict=True)]


def bar_shapes(picture: Picture, items: Merged) -> list[Shape]:
    """Return the shape of each bar."""
    scene, columns = picture.scene, picture.columns
    row, kind = columns.row[items.pick], columns.kind[items.pick]
    is_host = np.array([lane.is_host for lane in scene.lanes], bool)[scene.rows.lane[row]]
    is_known = np.full(len(row), not scene.is_partly_captured)
    for begin_ns, end_ns in scene.windows:
        is_known |= (items.left_ns >= begin_ns) & (items.right_ns <= end_ns)
    is_pale = scene.row_pale[row]
    is_open = (kind == SPAN_KINDS.index(SpanKind.RANGE)) & ~is_host & ~(is_pale & is_known)
    is_waiting = np.array([*(style.is_hollow for style in _CALLS), False], bool)[_call_codes(picture, items)]
    is_hollow = is_pale | (kind == SPAN_KINDS.index(SpanKind.WAIT)) | is_waiting
    shapes: list[Shape] = np.where(is_open, "open", np.where(is_hollow, "hollow", "solid")).tolist()
    return shapes


def _call_codes(picture: Picture, items: Merged) -> Int64Array:
    """Return the place of each bar in `CALL_STYLES`, -1 for what is no call; one that blocked the host counts as made to."""
    columns = picture.columns
    of_names = np.array([max(-1, style.hue - GREY - 1) for style in picture.scene.styles], np.int64)
    codes: Int64Array = np.where(columns.waited_name[items.pick] > NO_WAIT, _BLOCKING, of_names[columns.name[items.pick]])
    return codes


class Box(NamedTuple):
    """Where a bar is, in px."""

    left: float
    top: float
    width: float
    height: float

    @property
    def path(self) -> str:
        """Its border, as SVG writes it."""
        return f"M{self.left:.1f} {self.top:.1f}h{self.width:.1f}v{self.height:.1f}h-{self.width:.1f}z"


@dataclass(slots=True)
class Bars:
    """Collects bars, so that those that look alike are one path."""

    solid: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # By colour and hatch
    pale: dict[tuple[str, float], list[str]] = field(default_factory=dict)  # By colour and opacity
    loads: dict[tuple[str, float], list[str]] = field(default_factory=dict)  # By colour and opacity
    lines: dict[str, list[str]] = field(default_factory=dict)  # By colour

    def add(self, fill: str, hatch: str, shape: Shape, box: Box, *, is_pale: bool = False) -> None:
        """Add the bar of one span; a pale one holds work that is drawn below it."""
        left, top, width, height = box
        if shape == "solid":
            self.solid.setdefault((fill, hatch), []).append(box._replace(width=width - GAP_PX).path)
        elif shape == "hollow":
            if is_pale:
                self._add_pale(fill, box._replace(width=width - GAP_PX), PALE_ALPHA)
            self.lines.setdefault(fill, []).append(Box(left + 0.5, top + 0.5, width - 1 - GAP_PX, height - 1).path)
        elif width < FADED_PX:
            self._add_pale(fill, box._replace(width=width - GAP_PX), OPEN_ALPHA)
        else:
            self._add_rims(fill, box)
            fade = min(FADE_PX, width / 6)
            for step in (0, fade, 2 * fade):
                self._add_pale(fill, Box(left + step, top, width - 2 * step, height), OPEN_ALPHA / 3)

    def add_load(self, fill: str, *, is_hollow: bool, box: Box, share: float) -> None:
        """Add spans that are too narrow for bars: as high as their share of the time."""
        load = min(box.height, max(LEAST_LOAD_PX, share * box.height))
        low = box._replace(top=box.top + box.height - load, height=load)
        self.loads.setdefault((fill, OPEN_ALPHA if is_hollow else 1.0), []).append(low.path)
        if is_hollow:
            self._add_rims(fill, low)

    def shapes(self, ink: str) -> Iterator[str]:
        """Write all of them; outlines are mixed with ink."""
        yield from _pale_paths(self.pale)
        for (fill, hatch), paths in self.solid.items():
            yield f'<path d="{"".join(paths)}" fill="{fill}"/>'
            if over := hatch_fill(hatch):
                yield f'<path d="{"".join(paths)}" fill="{over}" {HATCH_CLASS}/>'
        for fill, paths in self.lines.items():
            yield f'<path d="{"".join(paths)}" fill="none" stroke="{line_of(fill, ink)}"/>'
        # Narrow ones come last, so that no wide neighbour covers them.
        yield from _pale_paths(self.loads)

    def _add_rims(self, fill: str, box: Box) -> None:
        left, top, width, height = box
        self.lines.setdefault(fill, []).append(f"M{left:.1f} {top + 0.5:.1f}h{width:.1f}m0 {height - 1:.1f}h-{width:.1f}")

    def _add_pale(self, fill: str, box: Box, alpha: float) -> None:
        self.pale.setdefault((fill, alpha), []).append(box.path)


def _pale_paths(paths: Mapping[tuple[str, float], Sequence[str]]) -> Iterator[str]:
    for (fill, alpha), parts in paths.items():
        yield f'<path d="{"".join(parts)}" fill="{fill}" fill-opacity="{alpha:.2g}"/>'
