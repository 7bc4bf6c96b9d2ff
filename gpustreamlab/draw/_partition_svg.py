"""Partitions in the static picture: bands beside their lanes, marks of changes, and the strip of SM-time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from gpustreamlab.draw._colours import DARK_TEXT, PartitionStyle
from gpustreamlab.draw._hatches import hatch_fill
from gpustreamlab.draw._marks import MARK_RANKS
from gpustreamlab.draw._scene import Scene, text_width_px
from gpustreamlab.draw._svg_plot import ACCENT, BAND_PX, INK, PAPER, SMS_STRIP_PX, SOFT, WARN, WIDTH_PX, SVGPlot, svg_text
from gpustreamlab.typing import FloatArray, Int64Array

MAX_SVG_MARKS = 100
"""Most moments that a picture marks: the last."""

_COLUMNS = 400

_MARK_LOOKS = {"layout": (WARN, "5 3"), "mark": (ACCENT, "1.5 3"), "cell": (SOFT, "1.5 3")}
_LABEL_PX, _LABEL_HIGH_PX = 38, 13  # An area of that size is labelled with its SMs.
_RUN_GAP_PX = 2.0

Steps = tuple[FloatArray, Int64Array]


def group_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw a line with the name above the lanes of each partition, and a band in its colour beside them."""
    for box in scene.groups:
        style = box.group.style
        top, head, bottom = plot.y(box.top), plot.y(box.head_bottom), plot.y(box.bottom)
        yield _box(0, top, WIDTH_PX, head - top, style.fill, 'fill-opacity=".3"')
        yield from _styled_box(0, top, BAND_PX, bottom - top - 1, style)
        if head - top < 11:
            continue
        middle = (top + head) / 2 + 4
        detail = f'<tspan dx="14" fill="{SOFT}" font-weight="400">{escape(box.group.detail)}</tspan>'
        yield (
            f'<text x="{BAND_PX + 8}" y="{middle:.1f}" font-weight="600">{escape(box.group.label)}'
            f"{detail if box.group.detail else ''}</text>"
        )
        if style.letter:
            yield (
                f'<text x="{BAND_PX / 2}" y="{middle:.1f}" text-anchor="middle" font-weight="600" '
                f'fill="{DARK_TEXT}">{style.letter}</text>'
            )


def mark_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw a line at each moment with a name, and its label where there is room."""
    taken: list[list[tuple[float, float]]] = [[] for _ in scene.mark_rows]
    labels = []
    for mark in sorted(scene.marks[-MAX_SVG_MARKS:], key=lambda mark: (MARK_RANKS[mark.kind], mark.time_ns)):
        colour, dashes = _MARK_LOOKS[mark.kind]
        x = plot.left_px + mark.time_ns * plot.scale_x
        path = f"M{x:.1f} {plot.top_px:.1f}V{plot.bottom_px:.1f}"
        yield f'<path d="{path}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}"/>'
        room = text_width_px(mark.text, 11) + 12
        is_right = x + room <= plot.right_px
        begin = x if is_right else x - room
        row = next((row for row, ends in enumerate(taken) if _is_free(ends, begin, begin + room)), None)
        if row is None or begin < plot.left_px - 0.01 * (plot.right_px - plot.left_px):
            continue
        taken[row].append((begin, begin + room))
        y = plot.y(scene.mark_rows[row]) + 4
        labels.append(svg_text(x + 4 if is_right else x - 4, y, mark.text, "start" if is_right else "end", colour, 11))
    if labels:
        # A border in the colour of the paper keeps the letters apart from the lines of other moments.
        yield f'<g stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke">{"".join(labels)}</g>'


def sm_strip_shapes(scene: Scene, steps: Sequence[Steps], plot: SVGPlot) -> Iterator[str]:
    """Draw the SMs that the partitions occupy over time, stacked, as high as the card has SMs.

    Parameters
    ----------
    scene
        The bands.
    steps
        What each band shows, as `band_steps` returns.
    plot
        Where things are.
    """
    if not scene.bands:
        return
    sm_count = scene.partitions[0].granted_sms
    scale = SMS_STRIP_PX / sm_count
    edges_ns = _common_times(steps, plot)
    low = np.zeros(len(edges_ns) - 1)
    borders_px = plot.x(edges_ns)
    for band, (times_ns, sms) in zip(scene.bands, steps, strict=True):
        if not len(times_ns):
            continue
        busy_sms = _means(times_ns, sms.astype(np.float64), edges_ns)
        high = low + busy_sms
        path = _area(borders_px, plot.sms_bottom_px - high * scale, plot.sms_bottom_px - low * scale)
        hatch = hatch_fill(band.style.hatch)
        yield f'<path d="{path}" fill="{band.style.fill}"/>'
        if hatch:
            yield f'<path d="{path}" fill="{hatch}"/>'
        yield from _sms_labels(borders_px, low, busy_sms, band.style, plot, scale)
        low = high
    box = f'x="{plot.left_px:.1f}" y="{plot.sms_top_px:.1f}" width="{plot.right_px - plot.left_px:.1f}" height="{SMS_STRIP_PX}"'
    yield f'<rect {box} fill="none" stroke="{SOFT}" stroke-opacity=".35"/>'
    yield svg_text(plot.left_px - 8, plot.sms_top_px + 8, f"{sm_count:,} SMs", "end", INK, 11)
    yield svg_text(plot.left_px - 8, plot.sms_top_px + 22, "in use", "end", SOFT, 11)
    yield svg_text(plot.left_px - 8, plot.sms_bottom_px, "0", "end", INK, 11)


def _is_free(labels: Sequence[tuple[float, float]], begin: float, end: float) -> bool:
    return all(end <= left or begin >= right for left, right in labels)


def _sms_labels(
    borders_px: FloatArray, low: FloatArray, sms: FloatArray, style: PartitionStyle, plot: SVGPlot, scale: float
) -> Iterator[str]:
    """Write a partition's letter and SMs where their number begins to be another one that stays for long enough."""
    written = 0.0
    for first, last in _runs(borders_px, low, sms):
        level, room_px = float(sms[first]), float(borders_px[last + 1] - borders_px[first])
        if room_px < _LABEL_PX or level * scale < _LABEL_HIGH_PX or abs(level - written) < 0.5:
            continue
        text = f"{style.letter} {level:,.0f}".strip()
        width_px = text_width_px(text, 11) + 6
        if width_px + 4 > room_px:
            continue
        written = level
        x, middle = float(borders_px[first]) + 3, plot.sms_bottom_px - (float(low[first]) + level / 2) * scale
        yield _box(x, middle - 7, width_px, 14, style.fill)
        yield f'<text x="{x + 3:.1f}" y="{middle + 4:.1f}" fill="{DARK_TEXT}" font-size="11" font-weight="600">{text}</text>'


def _runs(borders_px: FloatArray, low: FloatArray, sms: FloatArray) -> Iterator[tuple[int, int]]:
    """Return the first and last column of each area of one height and place; a gap between two spans does not end it."""
    first = 0
    while first < len(sms):
        last = place = first
        while place + 1 < len(sms) and borders_px[place + 1] <= borders_px[last + 1] + _RUN_GAP_PX:
            place += 1
            if abs(sms[place] - sms[first]) < 0.01 and abs(low[place] - low[first]) < 0.01:
                last = place
        yield first, last
        first = last + 1


def step_path(times_ns: FloatArray, values: FloatArray, plot: SVGPlot, *, bottom_px: float, scale: float) -> str:
    """Return the outline of the area below a step function: its steps where they are few, means of columns where many."""
    if not len(times_ns):
        return ""
    if len(times_ns) > _COLUMNS:
        edges_ns = np.linspace(0, plot.end_ns, _COLUMNS + 1)
        times_ns, values = edges_ns[:-1], _means(times_ns, values, edges_ns)
    ends_px = plot.x(np.append(times_ns, plot.end_ns))
    return _area(ends_px, bottom_px - values * scale, np.full(len(values), bottom_px))


def _common_times(steps: Sequence[Steps], plot: SVGPlot) -> FloatArray:
    """Return borders of columns for all bands: every step where they are few, even columns where many."""
    if sum(len(times_ns) for times_ns, _ in steps) > _COLUMNS:
        # Fewer columns where there are many bands: each column of each band costs about 20 bytes.
        return np.linspace(0, plot.end_ns, max(100, 3 * _COLUMNS // max(3, len(steps))) + 1)
    return np.unique(np.concatenate([[0.0, plot.end_ns], *(times_ns for times_ns, _ in steps)]))


def _means(times_ns: FloatArray, values: FloatArray, edges_ns: FloatArray) -> FloatArray:
    """Return the mean of a step function, which ends at 0, between neighbouring edges."""
    area = np.concatenate(([0.0], np.cumsum(np.diff(times_ns) * values[:-1])))
    means: FloatArray = np.diff(np.interp(edges_ns, times_ns, area)) / np.diff(edges_ns)
    return means


def _area(borders_px: FloatArray, high_px: FloatArray, low_px: FloatArray) -> str:
    """Return a closed outline between two step functions with the same borders; what has no height is left out."""
    parts = []
    filled = np.flatnonzero(low_px - high_px > 1e-3)
    for run in np.split(filled, np.flatnonzero(np.diff(filled) > 1) + 1):
        if not len(run):
            continue
        forth = "".join(f"V{high_px[place]:.1f}H{borders_px[place + 1]:.1f}" for place in run.tolist())
        back = "".join(f"V{low_px[place]:.1f}H{borders_px[place]:.1f}" for place in run[::-1].tolist())
        parts.append(f"M{borders_px[run[0]]:.1f} {low_px[run[0]]:.1f}{forth}{back}z")
    return "".join(parts)


def _styled_box(x: float, y: float, width: float, height: float, style: PartitionStyle) -> Iterator[str]:
    yield _box(x, y, width, height, style.fill)
    if hatch := hatch_fill(style.hatch):
        yield _box(x, y, width, height, hatch)


def _box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" {more}/>'
