"""How the bars of a static picture look, by the rules of the viewer (brush.js, paint_bars.js)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import Merged
from gpustreamlab.draw._colours import CALL_STYLES, GREY, HATCH_CLASS, OPEN_ALPHA, Shape, fill_of, hatch_fill, line_of
from gpustreamlab.draw._picture import Picture
from gpustreamlab.draw._scene import NO_WAIT
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

FADE_PX = 5.0
"""Width of the steps in which the end of such a bar fades out."""

FADED_PX = 24
"""Bars that are at least this wide do so, between two lines."""

LEAST_LOAD_PX = 1.5
"""How high the load of spans far apart is, at least."""

SHADES, LEAST_SHADE = 16, 12
"""Of the colour of load, where its height tells SMs: as many steps, and that of the least (brush.js)."""

GAP_PX = 0.7
"""What keeps neighbours apart."""

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

    solid: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """By colour and hatch."""
    pale: dict[tuple[str, float], list[str]] = field(default_factory=dict)
    """By colour and opacity."""
    loads: dict[tuple[str, float], list[str]] = field(default_factory=dict)
    """By colour and opacity."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """By colour."""

    def add(self, fill: str, hatch: str, shape: Shape, box: Box) -> None:
        """Add the bar of one span."""
        left, top, width, height = box
        if shape == "solid":
            self.solid.setdefault((fill, hatch), []).append(box._replace(width=width - GAP_PX).path)
        elif shape == "hollow":
            self.lines.setdefault(fill, []).append(Box(left + 0.5, top + 0.5, width - 1 - GAP_PX, height - 1).path)
        elif width < FADED_PX:
            self._add_pale(fill, box._replace(width=width - GAP_PX), OPEN_ALPHA)
        else:
            self._add_rims(fill, box)
            fade = min(FADE_PX, width / 6)
            for step in (0, fade, 2 * fade):
                self._add_pale(fill, Box(left + step, top, width - 2 * step, height), OPEN_ALPHA / 3)

    def add_load(self, fill: str, *, is_hollow: bool, keeps_height: bool, box: Box, share: float) -> None:
        """Add spans that are too narrow for bars: as high, or where height tells SMs as dark, as their share of the time."""
        load = box.height if keeps_height else min(box.height, max(LEAST_LOAD_PX, share * box.height))
        low = box._replace(top=box.top + box.height - load, height=load)
        alpha = OPEN_ALPHA if is_hollow else _load_alpha(share) if keeps_height else 1.0
        self.loads.setdefault((fill, alpha), []).append(low.path)
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


def _load_alpha(share: float) -> float:
    """Return an opacity in few steps, so that bars that look alike are one path; the least stands out from the paper.

    Examples
    --------
    >>> _load_alpha(0.0), _load_alpha(0.5), _load_alpha(1.0)
    (0.75, 0.875, 1.0)
    """
    return (LEAST_SHADE + round(share * (SHADES - LEAST_SHADE))) / SHADES


def _pale_paths(paths: Mapping[tuple[str, float], Sequence[str]]) -> Iterator[str]:
    for (fill, alpha), parts in paths.items():
        yield f'<path d="{"".join(parts)}" fill="{fill}" fill-opacity="{alpha:.2g}"/>'
