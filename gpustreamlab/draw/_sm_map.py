"""The card as a grid of its SMs, coloured by partition: as a picture and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import display_name, layout_warnings, proof_text, sms_text
from gpustreamlab.draw._card import Area, CardLayer, card_layers, row_weights, stack_layers
from gpustreamlab.draw._colours import (
    DARK_TEXT,
    HATCH_CLASS,
    OPEN_STRIP_ALPHA,
    STRAY_COLOUR,
    WHOLE_CARD_STYLE,
    PartitionStyle,
    fill_of,
    hatch_fill,
    hatch_patterns,
    partition_style,
)
from gpustreamlab.draw._picture import Picture
from gpustreamlab.draw._scene import MARK_RANKS, Scene, text_width_px
from gpustreamlab.model import Device, Layout
from gpustreamlab.typing import FloatArray, Int64Array

WIDTH_PX = 1000  # Width of the picture
MAX_SVG_HEIGHT_PX = 2_400  # Tallest area of lanes in the picture; rows get lower where a trace needs more
AXIS_PX = 22  # Height of the time axis, above all lanes
CAPTURE_PX = 14  # Height of the strip that tells when kernels were captured
BAND_PX = 22  # Width of the coloured band left of a partition's lanes

INK, SOFT, GRID, PAPER, WARN, ACCENT = "#1b1f24", "#57606a", "#d0d7de", "#ffffff", "#8a4b00", "#0550ae"

_MOST_LABEL_PX = 220.0  # of what stands left of the lanes


class SVGPlot:
    """Where things are in the picture, in px."""

    def __init__(self, scene: Scene, top_px: float, *, more_words: Sequence[str] = ()) -> None:
        texts = [*(box.text for box in scene.lanes if not box.is_idle), *(row.label for row in scene.card_rows), *more_words]
        band_px = BAND_PX if scene.groups else 0
        # 12: lanes, see `svg_text`.
        self.left_px = band_px + min(_MOST_LABEL_PX, 20 + max([40.0, *(text_width_px(text, 12) for text in texts)]))
        self.right_px = WIDTH_PX - 24.0  # half of the last time on the axis stands beyond it
        self.top_px, self.head_px = top_px + AXIS_PX, scene.head_px
        lanes_px = scene.height_px - scene.head_px
        self.scale_y = min(1.0, MAX_SVG_HEIGHT_PX / max(1.0, lanes_px))
        self.lanes_bottom_px = self.top_px + max(40.0, scene.head_px + lanes_px * self.scale_y)
        self.bottom_px = self.lanes_bottom_px + (CAPTURE_PX if scene.is_partly_captured else 0)
        self.end_ns = scene.width_ns or 1e6
        self.scale_x = (self.right_px - self.left_px) / self.end_ns

    def x(self, time_ns: FloatArray | Int64Array) -> FloatArray:
        """Return where times are."""
        return self.left_px + np.asarray(time_ns, np.float64) * self.scale_x

    def y(self, place_px: float) -> float:
        """Return where a place of the scene is."""
        low_px = max(0.0, place_px - self.head_px)  # only the lanes get lower
        return self.top_px + min(place_px, self.head_px) + low_px * self.scale_y


def svg_text(x: float, y: float, text: str, anchor: str, colour: str, size_px: int = 12) -> str:
    """Write one line of text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size_px}">{escape(text)}</text>'


_MOST_COLUMNS = 24  # So that a cell of the map has room for its id.
_FEWEST_ROWS = 4


class Grid(NamedTuple):
    """Cells column by column, so that partitions are bands and their boundaries stand upright."""

    row_count: int  # Cells of a column: a whole number of the device's smallest groups where it has such
    column_count: int  # Columns; the last one may be shorter


def grid_of(device: Device, count: int = 0) -> Grid:
    """Return the grid that shows all SMs of a device.

    Examples
    --------
    >>> grid_of(Device(name="laptop", sm_count=24))
    Grid(row_count=4, column_count=6)
    """
    step = 1 if device.sm_resource is None else device.sm_resource.group_sms
    row_count = -(-_FEWEST_ROWS // step) * step
    count = count or device.sm_count
    while -(-count // row_count) > _MOST_COLUMNS:
        row_count += step
    return Grid(row_count, -(-count // row_count))


ROW_SMS = 16  # SMs in a row of the text, up to 256 of them; more in larger cards

_WIDTH_PX = 624
_SIDE_PX = 12
_INK, _SOFT = "var(--jp-ui-font-color1, #1b1f24)", "var(--jp-ui-font-color2, #57606a)"
_PAPER, _WARN = "var(--jp-layout-color0, #ffffff)", "var(--jp-warn-color0, #8a4b00)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SMMapPlan:
    """Which SM of the card is where, as far as it is known. Places are those of the layout's partitions."""

    located: tuple[tuple[int, ...], ...]
    """By SM id: the places of the partitions whose work ran there; empty if no partition's SMs are known."""
    loose: tuple[tuple[int | None, int], ...]
    """Counts of SMs whose ids are not known: the partition's place (None for no partition), and how many."""
    notes: tuple[str, ...]  # What the picture leaves open


def plan_sm_map(device: Device, layout: Layout | None) -> SMMapPlan:
    """Work out which SMs are known to belong where. No SM id is ever made up."""
    parts = tuple(layout) if layout and layout.is_enforced else ()
    known = [place for place, part in enumerate(parts) if part.sm_ids is not None]
    loose: list[tuple[int | None, int]] = [(place, part.granted_sms) for place, part in enumerate(parts) if part.sm_ids is None]
    notes = list(layout_warnings(layout))
    if loose:
        notes.append("Which SMs these are is not known yet: lab.partitions.verify() finds out")
    if parts and not known:
        rest = device.sm_count - sum(part.granted_sms for part in parts)
        return SMMapPlan(located=(), loose=(*loose, (None, max(0, rest))), notes=tuple(notes))
    owners: dict[int, list[int]] = {}
    for place in known:
        for sm_id in parts[place].sm_ids or ():
            owners.setdefault(sm_id, []).append(place)
    count = max([device.sm_count, *(sm_id + 1 for sm_id in owners)])
    if count > device.sm_count:
        notes.append(f"The ids of this card's {device.sm_count:,} SMs have gaps: cells up to {count - 1:,} are drawn")
    return SMMapPlan(
        located=tuple(tuple(owners.get(sm_id, ())) for sm_id in range(count)), loose=tuple(loose), notes=tuple(notes)
    )


def sm_map_svg(*, device: Device, layout: Layout | None, title: str = "", lines: Sequence[str] = ()) -> str:
    """Draw the card as SVG text: a cell for each SM, coloured and lettered by partition, with a legend, and lines below."""
    plan = plan_sm_map(device, layout)
    head, top_px = _head(device, layout, plan, title)
    grid, top_px = _grid(device, plan, top_px)
    loose, top_px = _loose(device, plan, top_px)
    below = [part for line in lines for part in textwrap.wrap(line, 88)]
    told = [f'<text x="{_SIDE_PX}" y="{top_px + 18 * row + 14:.0f}">{escape(line)}</text>' for row, line in enumerate(below)]
    height_px = round(top_px + 18 * len(below) + 8)
    name = escape(display_name(title or device.name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH_PX}" height="{height_px}" '
        f'viewBox="0 0 {_WIDTH_PX} {height_px}" style="max-width:100%;height:auto" role="img" '
        f'font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" font-size="13" fill="{_INK}">'
        f"<title>SMs of {name}</title><defs>{hatch_patterns()}</defs>"
        f'<rect width="100%" height="100%" rx="6" fill="{_PAPER}"/>{"".join([*head, *grid, *loose, *told])}</svg>'
    )


def sm_map_text(*, device: Device, layout: Layout | None, title: str = "") -> str:
    """Write the card as text for terminals: a letter for each SM, rows labelled by the first SM id, and a legend.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Layout, Partition
    >>> small = Partition(name="small", requested_sms=3, granted_sms=4, sm_ids=(0, 1, 4, 5))
    >>> print(sm_map_text(device=Device(name="demo", sm_count=8), layout=Layout(partitions=(small,), remainder_sms=4)))
    SMs of demo (8 SMs)
      A  small: 4 SMs (asked for 3), verified
      .  in no partition: 4 SMs
       0  AA..AA..
    """
    plan = plan_sm_map(device, layout)
    lines = [_headline(device, title)]
    lines += [f"  {style.letter or '.'}  {text}" for style, text in _legend(device, layout, plan)]
    lines += [f"  ! {note}" for note in plan.notes]
    columns = _columns(len(plan.located))
    for first in range(0, len(plan.located), columns):
        cells = "".join(_sign(places, plan) for places in plan.located[first : first + columns])
        lines.append(f"{first:>4}  {cells}")
    for place, count in plan.loose:
        if count:
            lines.append(f"   ?  {_letter(place) or '.'} x {count:,}, not located")
    return "\n".join(lines)


def _headline(device: Device, title: str) -> str:
    named = display_name(title) if title else f"SMs of {display_name(device.name)}"
    return f"{named} ({device.sm_count:,} SMs{', SIMULATED' if device.simulated else ''})"


def _legend(device: Device, layout: Layout | None, plan: SMMapPlan) -> Iterator[tuple[PartitionStyle, str]]:
    if layout is None or not layout.partitions:
        yield WHOLE_CARD_STYLE, f"no partitions: every stream may use all {device.sm_count:,} SMs"
        return
    for place, part in enumerate(layout):
        facts = f"asked for {part.requested_sms:,} SMs, not enforced"
        if layout.is_enforced:
            facts = f"{sms_text(part.granted_sms, part.requested_sms)}, {proof_text(part, layout) or 'not located yet'}"
        yield partition_style(place), f"{display_name(part.name, 32)}: {facts}"
    count = layout.remainder_sms if layout.is_enforced else 0
    words = "in no partition"
    if plan.located and not plan.loose and layout.is_enforced:
        spare = sum(not places for places in plan.located) - (len(plan.located) - device.sm_count)
        words = words if spare == count else "not seen in any partition"
        count = spare
    if count > 0:
        yield WHOLE_CARD_STYLE, f"{words}: {count:,} SM{'' if count == 1 else 's'}"


def _head(device: Device, layout: Layout | None, plan: SMMapPlan, title: str) -> tuple[list[str], float]:
    shown = f"{display_name(title or device.name, 44)} · {device.sm_count:,} SMs" + (" (SIMULATED)" if device.simulated else "")
    parts = [f'<text x="{_SIDE_PX}" y="25" font-size="16" font-weight="600">{escape(shown)}</text>']
    place = 48
    for style, text in _legend(device, layout, plan):
        parts.append(_cell(_SIDE_PX, place - 13, 26, 18, style, style.letter))
        parts.append(f'<text x="{_SIDE_PX + 34}" y="{place + 1}">{escape(text)}</text>')
        place += 24
    for line in (line for note in plan.notes for line in textwrap.wrap(f"⚠ {note}", 88)):
        parts.append(f'<text x="{_SIDE_PX}" y="{place}" fill="{_WARN}" font-size="12">{escape(line)}</text>')
        place += 18
    return parts, place - 8.0


def _grid(device: Device, plan: SMMapPlan, top_px: float) -> tuple[list[str], float]:
    """Draw the SMs column by column, as the partitioner does."""
    if not plan.located:
        return [], top_px
    corners, (width, height), bottom_px = _cells(device, len(plan.located), top_px)
    parts = []
    for sm_id, (places, (x, y)) in enumerate(zip(plan.located, corners, strict=True)):
        parts.append(_sm_cell(x, y, width, height, places, plan))
        if width + 3 >= 24:
            parts.append(f'<text x="{x + 4:.1f}" y="{y + 11:.1f}" font-size="9" fill="{DARK_TEXT}">{sm_id}</text>')
    return parts, bottom_px


def _cells(device: Device, count: int, top_px: float) -> tuple[list[tuple[float, float]], tuple[float, float], float]:
    """Return the corners of cells column by column, their width and height without the gap, and where the next thing begins."""
    grid = grid_of(device, count)
    width = (_WIDTH_PX - 2 * _SIDE_PX) / max(ROW_SMS, grid.column_count)
    height = width * 0.84
    corners = [
        (_SIDE_PX + number // grid.row_count * width, top_px + number % grid.row_count * height) for number in range(count)
    ]
    return corners, (width - 3, height - 3), top_px + grid.row_count * height + 4


def _loose(device: Device, plan: SMMapPlan, top_px: float) -> tuple[list[str], float]:
    """Draw a cell for each SM that is not located: hatched, dashed, without an id."""
    cells = [place for place, count in plan.loose for _ in range(count)]
    if not cells:
        return [], top_px
    corners, (width, height), bottom_px = _cells(device, len(cells), top_px + 20)
    parts = [f'<text x="{_SIDE_PX}" y="{top_px + 12:.1f}" font-size="12" fill="{_SOFT}">not located yet (count only)</text>']
    for place, (x, y) in zip(cells, corners, strict=True):
        style = WHOLE_CARD_STYLE if place is None else partition_style(place)
        parts.append(
            _cell_box(x, y, width, height, f'fill="{style.fill}" fill-opacity=".45" stroke="{_SOFT}" stroke-dasharray="3 2"')
        )
        parts.append(_cell_box(x, y, width, height, f'fill="{hatch_fill("/")}" {HATCH_CLASS}'))
        parts.append(_letters(x + width / 2, y + height / 2 + 5, style.letter, width + 3))
    return parts, bottom_px


def _sm_cell(x: float, y: float, width: float, height: float, places: tuple[int, ...], plan: SMMapPlan) -> str:
    if not places and plan.loose:
        return _cell_box(x + 0.5, y + 0.5, width - 1, height - 1, f'fill="none" stroke="{_SOFT}" stroke-dasharray="2 3"')
    if len(places) < 2:
        style = partition_style(places[0]) if places else WHOLE_CARD_STYLE
        # The SM's id is in the upper left corner.
        letters = _letters(x + 0.66 * width, y + height - 5, style.letter, width * 0.75)
        return _cell(x, y, width, height, style, "") + letters
    # An SM of several partitions, which should not be: the colours side by side, in a dark frame.
    part_px = width / len(places)
    parts = [_cell(x + part_px * number, y, part_px, height, partition_style(place), "") for number, place in enumerate(places)]
    frame = _cell_box(x, y, width, height, 'fill="none" stroke="#b00020" stroke-width="2"')
    return "".join(parts) + frame + _letters(x + width / 2, y + height - 4, "+".join(map(_letter, places)), width)


def _cell(x: float, y: float, width: float, height: float, style: PartitionStyle, letters: str) -> str:
    hatch = hatch_fill(style.hatch)
    over = _cell_box(x, y, width, height, f'fill="{hatch}" fill-opacity=".4" {HATCH_CLASS}') if hatch else ""
    under = _cell_box(x, y, width, height, f'fill="{style.fill}"')
    return f"{under}{over}{_letters(x + width / 2, y + height / 2 + 5, letters, width)}"


def _cell_box(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" {look}/>'


def _letters(x: float, y: float, letters: str, width_px: float) -> str:
    if not letters or width_px < 12:
        return ""
    size_px = min(13, width_px / (0.75 * len(letters) + 0.3))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size_px:.0f}" font-weight="600" '
        f'fill="{DARK_TEXT}">{letters}</text>'
    )


def _columns(count: int) -> int:
    return ROW_SMS if count <= 256 else 2 * ROW_SMS if count <= 1024 else 4 * ROW_SMS


def _letter(place: int | None) -> str:
    return "" if place is None else partition_style(place).letter


def _sign(places: tuple[int, ...], plan: SMMapPlan) -> str:
    if len(places) > 1:
        return "#"
    if places:
        return _letter(places[0])[-1]
    return "?" if plan.loose else "."


MAX_SVG_MARKS = 100  # Most moments that a picture marks: the last

_COLUMNS = 400

_MARK_LOOKS = {
    "layout": (WARN, "5 3"),
    "mark": (ACCENT, "1.5 3"),
    "cell": (SOFT, "1.5 3"),
    "note": (ACCENT, "none"),
    "hazard": (WARN, "none"),
}
_SIGN = 'font-size="11" font-weight="700" text-anchor="middle" fill="#ffffff"'
LEAST_LABELLED_PX = 8  # How high a row of the card, or a bar, is at least that has a name, in px
_LABEL_HIGH_PX = 12  # An area of that height has its number of SMs in it; a lower one above it
_MOST_LABELLED = 24  # Of more areas none is
_RUN_GAP_PX = 2.0


def group_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw a line with the name above the lanes of each partition, and a band in its colour beside them."""
    for box in scene.groups:
        style = box.group.style
        top, head, bottom = plot.y(box.top), plot.y(box.head_bottom), plot.y(box.bottom)
        yield _box(0, top, WIDTH_PX, head - top, style.fill, 'fill-opacity=".3"')
        yield _box(0, top, BAND_PX, bottom - top - 1, style.fill)
        if hatch := hatch_fill(style.hatch):
            yield _box(0, top, BAND_PX, bottom - top - 1, hatch, HATCH_CLASS)
        if head - top < 11:
            continue
        middle = (top + head) / 2 + 4
        label, text = box.group.label, box.group.detail
        has_room = text_width_px(label, 12) + text_width_px(text, 12) + BAND_PX + 24 <= WIDTH_PX
        detail = f'<tspan dx="14" fill="{SOFT}" font-weight="400">{escape(text)}</tspan>' if text and has_room else ""
        yield f'<text x="{BAND_PX + 8}" y="{middle:.1f}" font-weight="600">{escape(label)}{detail}</text>'
        if style.letter:
            yield (
                f'<text x="{BAND_PX / 2}" y="{middle:.1f}" text-anchor="middle" font-weight="600" '
                f'fill="{DARK_TEXT}">{style.letter}</text>'
            )


def mark_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw a line at each moment with a name, and its label where there is room."""
    taken: list[list[tuple[float, float]]] = [[] for _ in scene.mark_rows]
    labels, signs = list[str](), list[str]()
    for mark in sorted(scene.marks[-MAX_SVG_MARKS:], key=lambda mark: (MARK_RANKS[mark.kind], mark.time_ns)):
        colour, dashes = _MARK_LOOKS[mark.kind]
        x = plot.left_px + mark.time_ns * plot.scale_x
        path = f"M{x:.1f} {plot.top_px:.1f}V{plot.bottom_px:.1f}"
        yield f'<path d="{path}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}"/>'
        room = text_width_px(mark.text, 11) + 12
        is_right = x + room <= plot.right_px
        begin = x if is_right else x - room
        end = begin + room
        free = (row for row, labels in enumerate(taken) if all(end <= left or begin >= right for left, right in labels))
        if mark.kind == "hazard":
            signs.append(f'<circle cx="{x:.1f}" cy="{plot.top_px:.1f}" r="7" fill="{STRAY_COLOUR}"/>')
            signs.append(f'<text x="{x:.1f}" y="{plot.top_px + 4:.1f}" {_SIGN}>!</text>')
            continue
        row = next(free, None)
        if row is None or begin < plot.left_px - 0.01 * (plot.right_px - plot.left_px):
            continue
        taken[row].append((begin, end))
        y = plot.y(scene.mark_rows[row]) + 4
        labels.append(svg_text(x + 4 if is_right else x - 4, y, mark.text, "start" if is_right else "end", colour, 11))
    yield from signs
    if labels:
        # A border in the colour of the paper keeps the letters apart from the lines of other moments.
        yield f'<g stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke">{"".join(labels)}</g>'


def card_shapes(picture: Picture, plot: SVGPlot) -> Iterator[str]:
    """Draw the rows of the card: SMs and copies over time, by partition, or by stream where there are none."""
    scene, trace = picture.scene, picture.trace
    is_open = picture.header.counts_ranges
    starts_ns = np.clip([-1.0, *(time_ns for time_ns, _ in scene.own_sms)], -1.0, plot.end_ns)
    count = max(0, len(scene.bands) - 1)
    sizes = np.array([[0] * count, *(sms[:count] for _, sms in scene.own_sms)]).reshape(len(starts_ns), count)
    edges_ns = _card_edges(picture, starts_ns, plot)
    own = sizes[np.searchsorted(starts_ns, (edges_ns[1:] + edges_ns[:-1]) / 2) - 1]
    weights = row_weights(trace, scene.card_rows)
    for row in scene.card_rows:
        top, bottom, is_sms = plot.y(row.top), plot.y(row.bottom), row.kind == "sms"
        yield _box(plot.left_px, top, plot.right_px - plot.left_px, bottom - top, "#808080", 'fill-opacity=".1"')
        layers = card_layers(trace, scene, row, weights, edges_ns)
        scale, opacity = (bottom - top) / row.most, OPEN_STRIP_ALPHA if is_open and is_sms else 1
        areas = stack_layers(layers, own if is_sms else own[:, :0], row.most)
        for layer, low, high in areas:
            style = _style_of(scene, layer)
            path = _area(plot.x(edges_ns), bottom - high * scale, bottom - low * scale)
            yield f'<path d="{path}" fill="{fill_of(layer.hue)}" fill-opacity="{opacity}"/>'
            if style.hue == layer.hue and (hatch := hatch_fill(style.hatch)):
                yield f'<path d="{path}" fill="{hatch}" {HATCH_CLASS}/>'
        if is_sms and 0 < len(areas) < _MOST_LABELLED:
            yield from _sms_labels(scene, areas, plot.x(edges_ns), (top, bottom, scale))
        if bottom - top >= LEAST_LABELLED_PX:
            yield svg_text(plot.left_px - 8, (top + bottom) / 2 + 4, row.label, "end", SOFT, 11 if is_sms else 10)


def _card_edges(picture: Picture, starts_ns: FloatArray, plot: SVGPlot) -> FloatArray:
    """Return borders of columns: every change where they are few, even columns where many."""
    trace, zero_ns = picture.trace, picture.scene.zero_ns
    if 2 * len(trace) + len(starts_ns) > _COLUMNS:
        # Fewer columns where there are many colours: each column of each costs about 20 bytes.
        colours = len(picture.scene.bands) + len(set(picture.scene.lane_hues))
        return np.linspace(0, plot.end_ns, max(60, 2 * _COLUMNS // max(2, colours)) + 1)
    times_ns = np.concatenate(([0.0, plot.end_ns], starts_ns, trace.start_ns - zero_ns, trace.end_ns - zero_ns))
    return np.unique(times_ns[(times_ns >= 0) & (times_ns <= plot.end_ns)])


def _style_of(scene: Scene, layer: CardLayer) -> PartitionStyle:
    return scene.bands[layer.band].style if layer.band >= 0 else WHOLE_CARD_STYLE


def _sms_labels(scene: Scene, areas: Sequence[Area], borders_px: FloatArray, box: tuple[float, float, float]) -> Iterator[str]:
    """Write letters and SMs of areas where their number begins to be another one that stays; above those that are low.

    What lies in several areas is written once, in all.
    """
    (top_px, bottom_px, scale), told = box, dict[int, float]()
    highest = np.max([high for _, _, high in areas], axis=0)
    for layer, low, high in areas:
        style, own = _style_of(scene, layer), [to - from_ for one, from_, to in areas if one is layer]
        for first, last in _runs(borders_px, low, high - low):
            level, room_px = float(high[first] - low[first]), float(borders_px[last + 1] - borders_px[first])
            number, is_high = float(sum(sms[first] for sms in own)), level * scale >= _LABEL_HIGH_PX
            is_top = highest[first] < high[first] + 0.01 and high[first] * scale < bottom_px - top_px - 12
            text = f"{style.letter if style.hue == layer.hue else ''} {number:,.0f}".strip()
            width_px, is_other = text_width_px(text, 11) + 6, abs(number - told.get(id(layer), 0)) >= 0.5
            if room_px < width_px + 4 or level < 0.5 or not is_other or not (is_high or is_top):
                continue
            told[id(layer)] = number
            x = float(borders_px[first]) + 3
            middle = bottom_px - float(high[first] - level / 2 if is_high else high[first]) * scale - (0 if is_high else 7)
            if is_high:
                yield _box(x, middle - 6, width_px, 12, fill_of(layer.hue))
            look = f'fill="{DARK_TEXT if is_high else INK}" font-size="11" font-weight="600"'
            yield f'<text x="{x + 3:.1f}" y="{middle + 4:.1f}" {look}>{text}</text>'


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


def _box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" {more}/>'
