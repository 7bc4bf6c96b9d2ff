"""The timeline as a static SVG picture, for places without JavaScript."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from gpustreamlab.analysis import Overlap, overlap, time_ticks
from gpustreamlab.draw._colours import text_colour
from gpustreamlab.draw._figure import EMPTY_TEXT
from gpustreamlab.draw._hatches import hatch_fill, hatch_patterns
from gpustreamlab.draw._header import Header, partition_lead, partition_swatch_svg, plan_header, swatch_svg
from gpustreamlab.draw._partition_svg import group_shapes, mark_shapes, sm_strip_shapes, step_path
from gpustreamlab.draw._scene import Scene, plan_scene, text_width_px
from gpustreamlab.draw._svg_plot import GRID, INK, PAPER, SOFT, STRIP_PX, WIDTH_PX, SVGPlot, svg_text
from gpustreamlab.model import Trace
from gpustreamlab.typing import FloatArray, Int64Array

MAX_SVG_BARS = 3_000
"""Most bars that a picture holds; narrower neighbours are merged until they are fewer."""

MAX_SVG_WAITS = 300
"""Most arrows between spans that a picture holds."""


def timeline_svg(trace: Trace, *, scene: Scene | None = None, result: Overlap | None = None) -> str:
    """Draw a trace as SVG text: header, lanes, strip of busy streams, time axis. No scripts, all names escaped.

    Parameters
    ----------
    trace
        The spans.
    scene, result
        Their layout and overlap, where they are known already.
    """
    scene = plan_scene(trace) if scene is None else scene
    header = plan_header(trace, scene, overlap(trace) if result is None else result)
    head, head_px = _head(header)
    plot = SVGPlot(scene, head_px)
    below = [*_lanes(scene, plot), *group_shapes(scene, plot), *_axis(plot)]
    above = [*_waits(scene, plot), *sm_strip_shapes(scene, plot), *_strip(scene, plot), *mark_shapes(scene, plot)]
    parts = [*head, *below, *_bars(trace, scene, plot), *above]
    height_px = round(plot.bottom_px + 40)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{height_px}" viewBox="0 0 {WIDTH_PX} {height_px}" '
        f'font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" font-size="12" fill="{INK}">'
        f"<title>{escape(header.title)}</title><defs>{hatch_patterns()}</defs>"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(parts)}</svg>'
    )


def picture_uri(svg: str) -> str:
    """Return an SVG text as a data URI for an ``img`` element, in which nothing runs."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _head(header: Header) -> tuple[list[str], float]:
    badge_px = text_width_px(header.badge, 11) + 14
    lines = [
        f'<text x="12" y="24" font-size="16" font-weight="600">{escape(_cut(header.title, 80))}</text>',
        f'<rect x="{WIDTH_PX - 12 - badge_px:.0f}" y="10" width="{badge_px:.0f}" height="18" rx="9" '
        f'fill="{"#e69f00" if header.badge == "SIMULATED" else "#56b4e9"}"/>',
        f'<text x="{WIDTH_PX - 12 - badge_px / 2:.0f}" y="23" font-size="11" text-anchor="middle">{header.badge}</text>',
    ]
    place = 42
    texts = [(header.facts, INK, 400), (header.finding, INK, 600), (header.source, SOFT, 400)]
    texts += [(f"⚠ {fact}", "#8a4b00", 600) for fact in header.missing]
    for text, colour, weight in texts:
        for line in textwrap.wrap(text, 140):
            lines.append(f'<text x="12" y="{place}" fill="{colour}" font-weight="{weight}">{escape(line)}</text>')
            place += 17
    names = [(name, swatch_svg(style)) for name, style in header.legend]
    names += [(f"and {header.more_names:,} more names", "")] if header.more_names else []
    legend, place = _legend(names, place, swatch_px=16)
    # A picture within the picture cuts off what is beyond its border.
    partitions = [
        (text, f'<svg width="24" height="14">{partition_swatch_svg(style)}</svg>') for text, style in header.partitions
    ]
    partitions += [(f"and {header.more_partitions:,} more", "")] if header.more_partitions else []
    if partitions:
        shapes, place = _legend([(partition_lead(header), ""), *partitions], place + 10, swatch_px=24)
        legend += shapes
    return [*lines, *legend], place + 4.0


def _legend(entries: Sequence[tuple[str, str]], place: int, *, swatch_px: int) -> tuple[list[str], int]:
    """Write texts with their swatches in lines, and return where the next line begins."""
    parts, x = [], 12.0
    for name, swatch in entries:
        indent_px = swatch_px + 5 if swatch else 0
        width_px = indent_px + text_width_px(name, 12) + 13
        if x + width_px > WIDTH_PX - 12 and x > 12:
            x, place = 12.0, place + 18
        text = f'<text x="{indent_px}" y="10">{escape(name)}</text>'
        parts.append(f'<g transform="translate({x:.0f} {place - 9})">{swatch}{text}</g>')
        x += width_px
    return parts, place + (12 if entries else -6)


def _lanes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    last_px = -100.0
    for index, box in enumerate(scene.lanes):
        top, bottom = plot.y(box.top), plot.y(box.bottom)
        if index % 2:
            yield f'<rect x="0" y="{top:.1f}" width="{WIDTH_PX}" height="{bottom - top:.1f}" fill="#808080" fill-opacity=".1"/>'
        middle = (top + bottom) / 2
        if middle - last_px < 11:
            continue
        last_px = middle
        two = bool(box.detail) and bottom - top > 28
        yield svg_text(plot.left_px - 8, middle + (-2 if two else 4), box.label, "end", INK)
        if two:
            yield svg_text(plot.left_px - 8, middle + 12, box.detail, "end", SOFT, 10)
    if not len(scene.span):
        yield svg_text(
            (plot.left_px + plot.right_px) / 2, (plot.top_px + plot.lanes_bottom_px) / 2 + 4, EMPTY_TEXT, "middle", SOFT, 14
        )


def _bars(trace: Trace, scene: Scene, plot: SVGPlot) -> Iterator[str]:
    first, left_px, right_px, longest = merge_bars(scene, plot.scale_x)
    x0 = plot.x(left_px / plot.scale_x)
    x1 = plot.x(right_px / plot.scale_x)
    shapes: dict[tuple[str, str], list[str]] = {}
    labels: list[str] = []
    counts = np.diff([*first.tolist(), len(scene.span)])
    for place, begin, end, count in zip(longest.tolist(), x0.tolist(), x1.tolist(), counts.tolist(), strict=True):
        row, name = int(scene.row[place]), int(trace.name[scene.span[place]])
        top, height = plot.y(float(scene.row_top[row])), float(scene.row_bottom[row] - scene.row_top[row]) * plot.scale_y
        style, kind = scene.styles[name], int(trace.kind[scene.span[place]])
        fill, hatch = scene.kind_fill[kind] or style.fill, scene.kind_hatch[kind] or style.hatch
        width = max(1.0, end - begin)
        shapes.setdefault((fill, hatch if width >= 5 else " "), []).append(
            f"M{begin:.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
        )
        room = int((width - 8) / 6.3)
        text = trace.names[name]
        if count == 1 and height >= 11 and room >= min(4, len(text)):
            labels.append(svg_text(begin + 4, top + height / 2 + 4, _cut(text, room), "start", text_colour(fill), 11))
    if len(first) < len(scene.span):
        note = f"Narrow neighbours share a bar here: {len(scene.span):,} spans in {len(first):,} bars."
        labels.append(svg_text(plot.right_px, plot.bottom_px + 34, note, "end", SOFT, 11))
    for (fill, hatch), paths in shapes.items():
        outline = f'<path d="{"".join(paths)}" fill="{fill}" stroke="{PAPER}" stroke-width=".7"/>'
        over = hatch_fill(hatch)
        yield outline + (f'<path d="{"".join(paths)}" fill="{over}"/>' if over else "")
    yield from labels


def merge_bars(
    scene: Scene, scale_x: float, limit: int = MAX_SVG_BARS
) -> tuple[Int64Array, FloatArray, FloatArray, Int64Array]:
    """Merge narrow neighbours of one row until at most `limit` bars are left, or one a row.

    Returns
    -------
    tuple of four ndarrays, shape (n_bars,)
        Place in the scene of the first span of each bar; left and right end in px; place of the longest span, whose colour the
        bar has.
    """
    left_px, right_px = scene.left_ns * scale_x, scene.right_ns * scale_x
    if not len(left_px):
        none = np.zeros(0)
        return none.astype(np.int64), none, none, none.astype(np.int64)
    least_px = 1.0
    while True:
        narrow = right_px - left_px < least_px
        cell = np.floor(left_px / least_px)
        joins = narrow[1:] & narrow[:-1] & (cell[1:] == cell[:-1]) & (scene.row[1:] == scene.row[:-1])
        first = np.concatenate(([0], np.flatnonzero(~joins) + 1))
        if len(first) <= limit or least_px > 2 * WIDTH_PX:
            break
        least_px *= 2
    bar = np.repeat(np.arange(len(first)), np.diff([*first, len(left_px)]))
    order = np.lexsort((right_px - left_px, bar))
    longest = order[np.append(first[1:], len(order)) - 1]
    return first, left_px[first], np.maximum.reduceat(right_px, first), longest


def _waits(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    for source, target in scene.edges[:MAX_SVG_WAITS].tolist():
        down = scene.row_top[scene.row[source]] <= scene.row_top[scene.row[target]]
        from_y, to_y = (scene.row_bottom, scene.row_top) if down else (scene.row_top, scene.row_bottom)
        x0, x1 = (plot.left_px + float(time_ns) * plot.scale_x for time_ns in (scene.right_ns[source], scene.left_ns[target]))
        y0, y1 = plot.y(float(from_y[scene.row[source]])), plot.y(float(to_y[scene.row[target]]))
        back = -5 if down else 5
        yield f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{SOFT}"/>'
        yield f'<path d="M{x1:.1f} {y1:.1f}l-3 {back}h6z" fill="{SOFT}"/>'


def _strip(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    top, bottom = plot.strip_top_px, plot.bottom_px
    most = max(1, int(scene.step_count.max(initial=0)))
    counts = scene.step_count.astype(np.float64)
    path = step_path(scene.step_ns, counts, plot, bottom_px=bottom, scale=STRIP_PX / most)
    if path:
        yield f'<path d="{path}" fill="#4c8dae" fill-opacity=".75"/>'
    yield svg_text(plot.left_px - 8, top + 8, f"{most:,} busy", "end", INK, 11)
    yield svg_text(plot.left_px - 8, bottom, "0", "end", INK, 11)


def _axis(plot: SVGPlot) -> Iterator[str]:
    bottom = plot.bottom_px
    for tick_ns, label in time_ticks(0, plot.end_ns):
        x = plot.left_px + tick_ns * plot.scale_x
        yield f'<path d="M{x:.1f} {plot.top_px:.0f}V{bottom + 4:.0f}" stroke="{GRID}" stroke-opacity=".7"/>'
        yield svg_text(x, bottom + 18, label, "middle", INK, 11)
    yield svg_text((plot.left_px + plot.right_px) / 2, bottom + 34, "time since the first start", "middle", SOFT, 11)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: max(0, limit - 1)]}…"
