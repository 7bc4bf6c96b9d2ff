"""Legend and bars of a static picture, and the memory of lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import Merged, counted_rows, host_waits, sm_kinds
from gpustreamlab.draw._card import counter_line, counts_bytes
from gpustreamlab.draw._colours import (
    CALL_STYLES,
    DARK_TEXT,
    GREY,
    HATCH_CLASS,
    OPEN_ALPHA,
    STRAY_COLOUR,
    CallStyle,
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
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

LEGEND_PARTITIONS = 12  # How many partitions the legend shows: the first
PARTITION_LEAD = "SMs by partition:"  # What stands before the partitions

_INK = "#1b1f24"

Entries = list[tuple[str, str]]  # Texts of a legend, each with its swatch as SVG, or nothing


def look_entries(trace: Trace) -> Entries:
    """Return what a static picture's legend tells of colours that are no stream's and no partition's: calls, and strays."""
    present = {call_class(trace.names[code]) for code in np.flatnonzero(np.bincount(trace.name)).tolist()}
    if SPAN_KINDS.index(SpanKind.HOST) in trace.kind and len(host_waits(trace)):
        present.add("synchronise")
    entries = [(f"call: {label}", _call_swatch(style)) for label, style in CALL_STYLES.items() if label in present]
    stray = f'<svg width="16" height="12"><path d="M5 0h11v11z" fill="{STRAY_COLOUR}"/></svg>'
    return [*entries, *([("stray", stray)] if stray_facts(trace) else [])]


def _call_swatch(style: CallStyle) -> str:
    shape = _swatch(16, 12, style.fill, style.hatch)
    if style.is_hollow:
        shape = f'<rect x=".5" y=".5" width="15" height="11" rx="2" fill="none" stroke="{line_of(style.fill, _INK)}"/>'
    return f'<svg width="16" height="12">{shape}</svg>'  # a picture within the picture cuts off what is beyond its border


def _swatch(width: int, height: int, fill: str, hatch: str) -> str:
    size = f'width="{width}" height="{height}" rx="2"'
    over = f'<rect {size} fill="{pattern}" {HATCH_CLASS}/>' if (pattern := hatch_fill(hatch)) else ""
    return f'<rect {size} fill="{fill}"/>{over}'


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


def partition_swatch_svg(style: PartitionStyle) -> str:
    """Draw a partition's colour, hatch and letters as SVG shapes, 24 by 14."""
    look = f'font-size="11" font-weight="700" text-anchor="middle" fill="{DARK_TEXT}"'
    letters = f'<text x="12" y="11" {look}>{style.letter}</text>' if style.letter else ""
    return _swatch(24, 14, style.fill, style.hatch) + letters


_WORDS = {
    "pool_used_bytes": ("pool in use", True),
    "pool_reserved_bytes": ("pool reserved", False),
    "async_used_bytes": ("stream-ordered in use", True),
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def memory_entries(trace: Trace, scene: Scene) -> list[dict[str, Any]]:
    """Write the memory of each lane that has any as the viewer reads it: lines of bytes on one scale, those in use last."""
    counters, is_memory, entries = trace.counters, counts_bytes(trace), []
    codes = np.unique(counters.name[is_memory]).tolist()
    for lane in np.unique(counters.lane[is_memory]).tolist():
        part, lines = scene.lanes[lane].parts[-1], []
        for code in codes:
            line, name = counter_line(trace, lane, code, scene.zero_ns), counters.names[code]
            label, is_filled = _WORDS.get(name, (name.removesuffix("_bytes").replace("_", " "), True))
            if len(line.time_ns):
                lines.append({"label": label, "filled": is_filled, "time": line.time_ns.tolist(), "value": line.value.tolist()})
        lines.sort(key=itemgetter("filled"))
        most = max((max(line["value"]) for line in lines), default=0.0)
        entry = {"lane": lane, "top": round(part.top, 2), "bottom": round(part.bottom, 2), "most": most}
        entries.append(entry | {"most_text": format_bytes(most), "lines": lines})
    return entries


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
