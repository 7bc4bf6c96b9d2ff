"""The timeline as a static picture, for places without JavaScript: SVG, and PNG made of it by resvg."""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from gpustreamlab._util.words import install_line
from gpustreamlab.analysis import Merged, bin_width_ns, display_name, format_ns, merge_narrow, summary_text, time_ticks
from gpustreamlab.draw._card import counts_bytes
from gpustreamlab.draw._colours import DARK_TEXT, STRAY_COLOUR, all_fills, hatch_patterns, line_of
from gpustreamlab.draw._columns import SpanColumns
from gpustreamlab.draw._groups import ROW_PX
from gpustreamlab.draw._legend import (
    Bars,
    Box,
    Entries,
    bar_fills,
    bar_hatches,
    bar_shapes,
    name_entries,
    partition_entries,
)
from gpustreamlab.draw._picture import Header, Picture, plan_picture
from gpustreamlab.draw._scene import LANE_GAP_PX, Scene, plan_scene, text_width_px
from gpustreamlab.draw._sm_map import (
    ACCENT,
    GRID,
    INK,
    LEAST_LABELLED_PX,
    PAPER,
    SOFT,
    WARN,
    WIDTH_PX,
    SVGPlot,
    card_shapes,
    group_shapes,
    mark_shapes,
    svg_text,
)
from gpustreamlab.draw._why import finding_lines, why_tables, why_went
from gpustreamlab.errors import MissingExtraError, OptionError
from gpustreamlab.model import Trace
from gpustreamlab.typing import Int64Array

STRAY_PX = 8  # Size of the corner on work that left its stream
MAX_STRAYS = 500  # Most corners in a picture


def stray_shapes(picture: Picture, items: Merged, plot: SVGPlot) -> Iterator[str]:
    """Draw a red corner on each kernel, copy or fill that ran on another stream than its range had selected."""
    scene, columns = picture.scene, picture.columns
    owner, row = columns.owner_lane[items.pick], columns.row[items.pick]
    places = np.flatnonzero((owner >= 0) & (owner != scene.rows.lane[row]))[:MAX_STRAYS]
    x0, x1 = plot.x(items.left_ns[places]), plot.x(items.right_ns[places])
    corners = []
    for place, begin, end in zip(places.tolist(), x0.tolist(), x1.tolist(), strict=True):
        top = plot.y(float(scene.row_top[row[place]]))
        right = max(begin + STRAY_PX / 2, end)
        corners.append(f"M{right - STRAY_PX:.1f} {top:.1f}h{STRAY_PX}v{STRAY_PX}z")
    if corners:
        yield f'<path d="{"".join(corners)}" fill="{STRAY_COLOUR}" stroke="{PAPER}"/>'


LABEL_PX = 11  # Size of the names on bars, in px; what is lower has smaller ones
SMALL_LABEL_PX = 9  # Their size on lower bars
CAPTURED_WORDS = "kernels captured"  # What stands beside the strip that tells when


def capture_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw when kernels were captured, where they were not all the time."""
    if not scene.is_partly_captured:
        return
    top, bottom = plot.lanes_bottom_px + 4, plot.bottom_px
    yield f'<path d="M{plot.left_px:.1f} {bottom:.1f}H{plot.right_px:.1f}" stroke="{GRID}"/>'
    for begin_ns, end_ns in scene.windows:
        begin, end = (float(np.clip(x, plot.left_px, plot.right_px)) for x in plot.x(np.array([begin_ns, end_ns])))
        size = f'width="{max(1.0, end - begin):.1f}" height="{bottom - top - 4:.1f}"'
        yield f'<rect x="{begin:.1f}" y="{top + 2:.1f}" {size} fill="{ACCENT}"/>'
    yield svg_text(plot.left_px - 8, bottom - 1, CAPTURED_WORDS, "end", SOFT, 10)


LABEL_CHARACTERS = 320  # How many characters of a name a bar shows, at most
LEAST_ROW_PX = 0.6  # Bars are at least this high, also where there are so many lanes that they cover each other
LEAST_LINED_PX = 4  # Spans that are at least this wide have a bar of their own; narrower ones are drawn as load

_LEADS = re.compile(r"^(memcpy|memset|void)\s+", re.IGNORECASE)  # What names of a kind begin with, and tells none apart
_NUMBERS = re.compile(r"(?<![^\s_\-#:/.=\[(])[0-9]+(?![^\s_\-:/.,\])])")  # Those that stand by themselves, as in `name_group`
LEAST_LETTERS = 4  # Of a name that is cut

WAIT_COLOUR = "#7d8792"
"""Arrows between spans: their contrast to the paper is above 3:1."""

LEAST_SHADED_PX = 3  # Every second lane is shaded where lanes are at least this high
MAX_SVG_BARS = 3_000  # Most bars of a picture within a page or a notebook; narrower neighbours are merged until they are fewer
MAX_FILE_BARS = 20_000  # Most bars of a picture that is a file of its own: as many as the page draws

MAX_SVG_WAITS = 300  # Most arrows between spans that a picture holds


WIDTH_LIMITS_MM = (40.0, 420.0)  # Least and most width of a picture in a document


def timeline_svg(
    trace: Trace,
    *,
    picture: Picture | None = None,
    why: Mapping[str, Any] | None = None,
    max_bars: int = MAX_SVG_BARS,
    width_mm: float | None = None,
) -> str:
    """Draw a trace as SVG text: header, where the time went, time axis, card, lanes, findings. No scripts, all names escaped.

    `why` is what `why_tables` says of it, where that is known already.

    Every span is in it: those that are too narrow share a bar with their neighbours, by the rule of the page.
    """
    if width_mm is not None:
        _check_number("width_mm", width_mm, WIDTH_LIMITS_MM, "save('run.svg', width_mm=180)")
    picture = _without_memory(plan_picture(trace) if picture is None else picture)
    why = why_tables(trace, picture.scene.zero_ns) if why is None else why
    went = why.get("went") or why_went(trace, picture.scene.zero_ns)
    scene = picture.scene
    head, head_px = _head(picture.header, scene.notes, name_entries(trace, scene), partition_entries(trace, scene))
    bar, bar_px = went_shapes(went, head_px)
    plot = SVGPlot(scene, head_px + bar_px, more_words=[CAPTURED_WORDS] if scene.is_partly_captured else [])
    items = merged_items(picture.columns, plot.scale_x, max_bars)
    words = " ".join(_left_out(picture, items, load=", as high as they are busy"))
    notes = [svg_text(plot.right_px, plot.bottom_px + 14, words, "end", SOFT, 11)] if words else []
    parts = [*head, *bar, *_lane_shapes(scene, plot, "" if len(trace) else picture.header.empty), *_axis(plot)]
    found, found_px = _findings(finding_lines(why), plot.bottom_px + 22)
    parts += [*_plot_shapes(picture, items, plot), *notes, *found]
    height_px = round(plot.bottom_px + 22 + found_px)
    size = f'width="{WIDTH_PX}" height="{height_px}"'
    if width_mm is not None:
        size = f'width="{width_mm:g}mm" height="{height_px * width_mm / WIDTH_PX:.2f}mm"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH_PX} {height_px}" '
        f'font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" font-size="12" fill="{INK}">'
        f"<title>{escape(picture.header.title)}</title><defs>{hatch_patterns()}</defs>"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(parts)}</svg>'
    )


def _findings(lines: Sequence[str], top_px: float) -> tuple[list[str], float]:
    """Write findings below the picture, and return how high they are."""
    if not lines:
        return [], 0.0
    wrapped = [part for line in lines for part in textwrap.wrap(line, 140, subsequent_indent="\N{NO-BREAK SPACE}" * 4)]
    texts = [svg_text(12, top_px + 16, "Findings", "start", INK, 12)]
    texts += [svg_text(12, top_px + 33 + 17 * place, text, "start", INK, 12) for place, text in enumerate(wrapped)]
    return texts, 24.0 + 17 * len(wrapped)


def _without_memory(picture: Picture) -> Picture:
    """Fold the memory of all lanes, as the viewer does until it is asked for."""
    trace = picture.trace
    if not counts_bytes(trace).any():
        return picture
    scene, kept = picture.scene, ~counts_bytes(trace)
    columns = {name: getattr(trace.counters, name)[kept] for name in ("time_ns", "lane", "name", "value")}
    bare = replace(trace, counters=replace(trace.counters, **columns))
    folded = plan_scene(bare, scene.rows, zero_ns=scene.zero_ns, width_ns=scene.width_ns)
    return replace(picture, trace=bare, scene=folded)


def _plot_shapes(picture: Picture, items: Merged, plot: SVGPlot) -> Iterator[str]:
    """Draw what is above the lanes' ground: partitions, the card, waits, bars, moments."""
    scene = picture.scene
    yield from group_shapes(scene, plot)
    yield from _waits(picture, plot)  # below the bars, so that their names can be read
    yield from _bars(picture, items, plot)
    yield from stray_shapes(picture, items, plot)
    yield from card_shapes(picture, plot)
    yield from capture_shapes(scene, plot)
    yield from mark_shapes(scene, plot)


_DARK = {INK: "#e6e9ec", SOFT: "#a9b3bd", GRID: "#3a424b", PAPER: "#14171a", WARN: "#f0b35c", ACCENT: "#79b8ff"}
_DARK |= {line_of(fill, INK): line_of(fill, _DARK[INK]) for fill in all_fills()}
"""Colours of a picture in a dark theme, by those on paper."""
_LIGHT_COLOUR = re.compile(rf'(fill|stroke)="({"|".join(_DARK)})"')
_SIZE = re.compile(r'^<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"')
_FRAME_COLOURS = ";".join(f"--gsl-{light[1:]}:light-dark({light},{dark})" for light, dark in _DARK.items())
_FRAME_STYLE = (
    f":root{{color-scheme:light dark;{_FRAME_COLOURS}}}"
    "body{margin:0;forced-color-adjust:none}svg{display:block;width:100%;height:auto}"
)
_STILL_STYLE = (
    ".gsl-still{overflow-x:auto}.gsl-still>img{display:none}.gsl-still>iframe{display:block;width:100%;min-width:600px;border:0}"
    'body[data-jp-theme-light="true"] .gsl-still{color-scheme:light}'
    'body[data-jp-theme-light="false"] .gsl-still,.vscode-dark .gsl-still{color-scheme:dark}'
    "@media print{body .gsl-still.gsl-still{color-scheme:light}}"
)


def picture_html(trace: Trace) -> str:
    """Draw a trace as HTML for a notebook's output: one static picture."""
    return still_html(timeline_svg(trace), summary_text(trace))


def still_html(svg: str, words: str) -> str:
    """Put a picture of ours into HTML that follows a notebook's theme.

    A frame shows it, in the scheme of what surrounds it, without a script. In a notebook that is not trusted an image is left,
    and no text of it stands about.
    """
    themed = _LIGHT_COLOUR.sub(lambda found: f'{found[1]}="var(--gsl-{found[2][1:]})"', svg)
    ((width, height),) = _SIZE.findall(svg)
    page = f"<!DOCTYPE html><style>{_FRAME_STYLE}</style>{themed}"
    return (
        f'<div class="gsl-still"><style>{_STILL_STYLE}</style><img alt="{escape(words)}" src="{picture_uri(svg)}">'
        f'<iframe title="{escape(words)}" style="max-width:{width}px;aspect-ratio:{width}/{height}" srcdoc="{escape(page)}">'
        "</iframe></div>"
    )


def picture_uri(svg: str) -> str:
    """Return an SVG text as a data URI for an ``img`` element, in which nothing runs."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


_BADGE_FILLS = {"SIMULATED": "#e69f00", "MEASURED": "#56b4e9"}


def _head(header: Header, notes: Sequence[str], names: Entries, partitions: Entries) -> tuple[list[str], float]:
    badge_px = text_width_px(header.badge, 11) + 14
    lines = [
        f'<text x="12" y="24" font-size="16" font-weight="600">{escape(cut_end(header.title, 80))}</text>',
        svg_text(WIDTH_PX - 20 - badge_px, 23, header.tier, "end", SOFT, 11),
        f'<rect x="{WIDTH_PX - 12 - badge_px:.0f}" y="10" width="{badge_px:.0f}" height="18" rx="9" '
        f'fill="{_BADGE_FILLS.get(header.badge, "#c9ced6")}"/>',
        f'<text x="{WIDTH_PX - 12 - badge_px / 2:.0f}" y="23" font-size="11" text-anchor="middle" '
        f'fill="{DARK_TEXT}">{header.badge}</text>',
    ]
    place = 42
    texts = [(header.facts, INK, 400), (header.finding, INK, 600), (header.source, SOFT, 400)]
    texts += [(f"⚠ {fact}", "#8a4b00", 600) for fact in (*header.missing, *notes)]
    for text, colour, weight in texts:
        for line in textwrap.wrap(text, 140):
            lines.append(f'<text x="12" y="{place}" fill="{colour}" font-weight="{weight}">{escape(line)}</text>')
            place += 17
    shapes, place = _legend_shapes(names, place, swatch_px=16)
    lines += shapes
    if partitions:
        shapes, place = _legend_shapes(partitions, place + 10, swatch_px=24)
        lines += shapes
    return lines, place + 4.0


def _legend_shapes(entries: Entries, place: int, *, swatch_px: int) -> tuple[list[str], int]:
    """Write texts with their swatches in lines, and return where the next line begins."""
    parts, x = [], 12.0
    for name, swatch in entries:
        indent_px = swatch_px + 5 if swatch else 0
        width_px = indent_px + text_width_px(name, 12) + 13
        if x + width_px > WIDTH_PX + 1 and x > 12:
            x, place = 12.0, place + 18
        text = f'<text x="{indent_px}" y="10">{escape(name)}</text>'
        parts.append(f'<g transform="translate({x:.0f} {place - 9})">{swatch}{text}</g>')
        x += width_px
    return parts, place + (12 if entries else -6)


def _lane_shapes(scene: Scene, plot: SVGPlot, empty: str) -> Iterator[str]:
    """Draw what lies below the bars: the lanes' ground and their labels; or say why there is nothing."""
    last_px = -100.0
    for index, box in enumerate(sorted((lane for lane in scene.lanes if not lane.is_idle), key=lambda lane: lane.top)):
        top, bottom = plot.y(box.top), plot.y(box.bottom)
        if index % 2 and bottom - top >= LEAST_SHADED_PX:
            place = f'x="0" y="{top:.1f}" width="{WIDTH_PX}" height="{bottom - top:.1f}"'
            yield f'<rect {place} fill="#808080" fill-opacity=".1"/>'
        for part in box.parts[1:]:
            yield svg_text(plot.left_px - 8, (plot.y(part.top) + plot.y(part.bottom)) / 2 + 4, part.label, "end", SOFT, 10)
        # Beside its first row, as in the viewer.
        middle = min((top + bottom) / 2, top + (ROW_PX + LANE_GAP_PX) / 2)
        if middle - last_px < 11:
            continue
        last_px = middle
        yield svg_text(plot.left_px - 8, middle + 4, box.text, "end", INK)
    if scene.idle_text:
        yield svg_text(plot.left_px, plot.y(scene.height_px) - 5, scene.idle_text, "start", SOFT, 11)
    if empty:
        yield svg_text(
            (plot.left_px + plot.right_px) / 2, (plot.top_px + plot.lanes_bottom_px) / 2 + 4, empty, "middle", SOFT, 14
        )


def merged_items(columns: SpanColumns, scale_x: float, limit: int = MAX_SVG_BARS) -> Merged:
    """Merge narrow neighbours of one row as the page does, in wider bins until at most `limit` bars are left, or one a row."""
    bin_ns = bin_width_ns(1 / scale_x)
    items = merge_narrow(columns.row, columns.start_ns, columns.end_ns, bin_ns)
    if len(items) <= limit:
        return items
    # Wider bins that are made of whole narrow ones merge the items as they would merge the spans.
    row, left_ns = columns.row[items.first], items.left_ns
    long_ns = np.where(items.count == 1, items.right_ns, left_ns)
    while bin_ns * scale_x <= 2 * WIDTH_PX:
        bin_ns *= 2
        if len(merge_narrow(row, left_ns, long_ns, bin_ns)) <= limit:
            break
    return merge_narrow(columns.row, columns.start_ns, columns.end_ns, bin_ns)


def _bars(picture: Picture, items: Merged, plot: SVGPlot) -> Iterator[str]:
    scene, columns = picture.scene, picture.columns
    rows, names = columns.row[items.pick].tolist(), columns.name[items.pick].tolist()
    x0, x1 = plot.x(items.left_ns), plot.x(items.right_ns)
    # A gap of less than a px is none, or one, by chance: it makes lower.
    gap_px = np.append(x0[1:] - x1[:-1], np.inf)
    is_joined = (np.append(np.diff(columns.row[items.first]), 1) == 0) & (gap_px >= 0) & (gap_px < 1)
    x1 = np.maximum(np.where(is_joined, x1 + gap_px, x1), x0 + 1)
    is_own = (items.count == 1) & (x1 - x0 >= LEAST_LINED_PX)
    loads = np.minimum(1, items.busy_ns * plot.scale_x / (x1 - x0)).tolist()
    bars, labels = Bars(), dict[tuple[str, bool], list[str]]()
    looks = zip(bar_fills(picture, items, is_own), bar_hatches(picture, items), bar_shapes(picture, items), strict=True)
    spans = zip(rows, names, x0.tolist(), x1.tolist(), is_own.tolist(), loads, looks, strict=True)
    for row, name, begin, end, own, load, (fill, hatch, shape) in spans:
        top = plot.y(float(scene.row_top[row]))
        height = max(LEAST_ROW_PX, float(scene.row_bottom[row] - scene.row_top[row]) * plot.scale_y)
        if not own:
            is_host = scene.lanes[scene.rows.lane[row]].is_host
            is_hollow = not is_host and (shape == "open" or bool(scene.row_pale[row]))
            box = Box(begin, top, end - begin, height)
            bars.add_load(fill, is_hollow=is_hollow, box=box, share=load)
            continue
        bars.add(fill, hatch, shape, Box(begin, top, end - begin, height), is_pale=bool(scene.row_pale[row]))
        if height >= LEAST_LABELLED_PX and (label := _bar_label(picture.trace.names[name], end - begin - 4)):
            is_small = height < LABEL_PX
            place = f'x="{(begin + end) / 2:.1f}" y="{top + height / 2 + (3 if is_small else 4):.1f}"'
            labels.setdefault((fill if shape == "solid" else "", is_small), []).append(f"<text {place}>{escape(label)}</text>")
    yield from bars.shapes(INK)
    for (fill, is_small), texts in labels.items():
        # A border in the colour of the bar keeps the letters apart from the lines of its hatch.
        look = f'fill="{DARK_TEXT}" stroke="{fill}" stroke-width="3" paint-order="stroke"' if fill else f'fill="{INK}"'
        size = SMALL_LABEL_PX if is_small else LABEL_PX
        yield f'<g font-size="{size}" text-anchor="middle" stroke-linejoin="round" {look}>{"".join(texts)}</g>'


def _bar_label(name: str, room_px: float) -> str:
    """Return a name, or where there is no room its number, or its begin; empty where that says nothing."""
    label = display_name(name, LABEL_CHARACTERS)
    if text_width_px(label, LABEL_PX) <= room_px:
        return label
    label = _LEADS.sub("", label)
    if "::" in label or "<" in label:  # a function of C++: its own name, without templates and namespaces
        label = re.split(r"[<(]", label)[0].rsplit("::", 1)[-1] or label
    numbers = _NUMBERS.findall(label)
    if numbers and text_width_px(label, LABEL_PX) > room_px:
        return numbers[-1] if text_width_px(numbers[-1], LABEL_PX) <= room_px else ""
    if (excess := text_width_px(label, LABEL_PX) / room_px) > 1:
        label = cut_end(label, int(len(label) / excess))
    return label if len(label) >= LEAST_LETTERS or not label.endswith("…") else ""


def _wait_edges(picture: Picture) -> Int64Array:
    """Return the arrows of waits between streams: time and row of both ends; shape (n, 4), int64."""
    columns, places = picture.columns, _wait_places(picture)[:MAX_SVG_WAITS]
    edges: Int64Array = columns.edges[places]
    # What was told to wait after it had begun waited within: the arrow ends there, and not behind its end.
    until_ns = picture.trace.end_ns[columns.edge_place[places, 1]] - picture.scene.zero_ns
    edges[:, 2] = np.maximum(edges[:, 2], np.minimum(edges[:, 0], until_ns))
    return edges


def _waits(picture: Picture, plot: SVGPlot) -> Iterator[str]:
    scene = picture.scene
    for source_ns, source_row, target_ns, target_row in _wait_edges(picture).tolist():
        down = scene.row_top[source_row] <= scene.row_top[target_row]
        from_y, to_y = (scene.row_bottom, scene.row_top) if down else (scene.row_top, scene.row_bottom)
        x0, x1 = (plot.left_px + time_ns * plot.scale_x for time_ns in (source_ns, target_ns))
        y0, y1 = plot.y(float(from_y[source_row])), plot.y(float(to_y[target_row]))
        # Half a head: those of opposite ways lie on opposite sides of their lines.
        back = -5 if down else 5
        yield f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{WAIT_COLOUR}"/>'
        yield f'<path d="M{x1:.1f} {y1:.1f}v{back}h{back}z" fill="{WAIT_COLOUR}"/>'


def _wait_places(picture: Picture) -> Int64Array:
    """Return which edges are drawn: launches are as many as kernels, and ranges wait as the work in them does."""
    columns = picture.columns
    return np.flatnonzero((columns.edge_kind == 0) & (columns.edge_told == 0))


def _left_out(picture: Picture, items: Merged, *, load: str) -> list[str]:
    """Say which things share a shape, what then tells of their load, and which are left out."""
    span_count, edge_count = len(picture.columns.row), len(_wait_places(picture))
    notes = []
    if len(items.first) < span_count:
        notes.append(f"Narrow neighbours share a bar here: {span_count:,} spans in {len(items.first):,} bars{load}.")
    if edge_count > MAX_SVG_WAITS:
        notes.append(f"{MAX_SVG_WAITS:,} of {edge_count:,} waits are drawn.")
    return notes


def _axis(plot: SVGPlot) -> Iterator[str]:
    for tick_ns, label in time_ticks(0, plot.end_ns):
        x = plot.left_px + tick_ns * plot.scale_x
        yield f'<path d="M{x:.1f} {plot.top_px - 4:.0f}V{plot.bottom_px:.0f}" stroke="{GRID}" stroke-opacity=".7"/>'
        yield svg_text(x, plot.top_px - 8, label, "middle", INK, 11)


WENT_PX = 20  # Height of the bar that tells where the time went
LEAST_WENT_PX = 30  # Pieces that are at least this wide have a text


def went_shapes(went: Mapping[str, Any], top_px: float) -> tuple[list[str], float]:
    """Draw where the time went as one bar with its sentence, and return how high both are."""
    if not went:
        return [], 0.0
    lead = "Where the time went"
    x = 24 + text_width_px(lead, 13)
    wide, total = WIDTH_PX - 12 - x, sum(piece["ns"] for piece in went["pieces"]) or 1
    parts = [f'<text x="12" y="{top_px + 15:.1f}" font-weight="600">{lead}</text>']
    for piece in went["pieces"]:
        width = wide * piece["ns"] / total
        box = f'x="{x:.1f}" y="{top_px:.1f}" width="{width:.1f}" height="{WENT_PX}"'
        parts.append(f'<rect {box} fill="{piece["fill"]}" stroke="{SOFT}" stroke-width=".5"/>')
        texts = (f"{piece['label']} {format_ns(piece['ns'])}", format_ns(piece["ns"]))
        if width >= LEAST_WENT_PX and (text := next((one for one in texts if text_width_px(one, 11) <= width - 8), "")):
            parts.append(svg_text(x + 5, top_px + 14, text, "start", INK if piece["fill"] == "none" else DARK_TEXT, 11))
        x += width
    parts.append(svg_text(12, top_px + WENT_PX + 15, went["said"], "start", SOFT, 12))
    return parts, WENT_PX + 22.0


def cut_end(text: str, limit: int) -> str:
    """Cut a text at its end."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"


PNG_SCALE = 2.0  # Pixels of a picture for each px of the page, where nothing else is asked for
SCALE_LIMITS = (0.1, 8.0)  # Least and most of them: the most makes a picture of 8,000 px in width
FONT_FAMILY = "Roboto"  # What stands for ``sans-serif`` in pictures
FONT_FACES = ("Roboto", "RobotoBold", "RobotoItalic")  # Its faces, as the package ``font-roboto`` names them


def svg_png(svg: str, *, scale: float = PNG_SCALE) -> bytes:
    """Write an SVG text as a PNG picture. A machine need not have a font: the extra brings one."""
    _check_number("scale", scale, SCALE_LIMITS, "save('run.png', scale=2)")
    try:
        import font_roboto
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise MissingExtraError(
            f"Saving a timeline as .png needs the packages resvg-py and font-roboto, of which one is missing ({error}). "
            f"Install them with: {install_line('png')} - or save as .svg, which needs nothing more."
        ) from error
    fonts = [font_roboto.font_files[name] for name in FONT_FACES]
    # Roboto has no arrow, and a text with one would be drawn in whatever other font there is.
    text = svg.replace("→", " to ")
    return bytes(svg_to_bytes(svg_string=text, zoom=float(scale), dpi=96, font_files=fonts, sans_serif_family=FONT_FAMILY))


def _check_number(name: str, given: object, limits: tuple[float, float], usual: str) -> None:
    least, most = limits
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not least <= given <= most:
        raise OptionError(f"{name} is {given!r}; it must be a number from {least:g} to {most:g}. Use {usual}.")
