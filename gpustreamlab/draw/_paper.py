"""The timeline as a figure of a paper: as wide as a column, texts of one size, no headings. SVG, and PDF by Typst."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from html import escape

from gpustreamlab._util.words import install_line
from gpustreamlab.analysis import time_ticks
from gpustreamlab.draw._colours import HATCH_CLASS, hatch_patterns
from gpustreamlab.draw._groups import band_steps
from gpustreamlab.draw._legend import LEGEND_NAMES, Entries, name_entries, partition_entries
from gpustreamlab.draw._picture import Picture, plan_picture
from gpustreamlab.draw._scene import MARK_PX, Scene, fit_label, text_width_px
from gpustreamlab.draw._sm_map import GRID, INK, PAPER, SOFT, SVGPlot, svg_text
from gpustreamlab.draw._svg import (
    CAPTURED_WORDS,
    MAX_FILE_BARS,
    font_folder,
    lane_shapes,
    left_out,
    legend_shapes,
    merged_items,
    plot_shapes,
)
from gpustreamlab.errors import MissingExtraError, OptionError
from gpustreamlab.model import Trace
from gpustreamlab.typing import CaptureTier

COLUMN_MM = 85.0
"""Width of a picture where nothing else is asked for: one column of most journals; 178 are two."""

FONT_PT = 7.0
"""Size of all its texts where nothing else is asked for."""

WIDTH_LIMITS_MM = (40.0, 420.0)
"""Least and most width."""

FONT_LIMITS_PT = (4.0, 20.0)
"""Smallest and largest text."""

PAPER_PNG_SCALE = 600 / 96
"""Pixels of a ``.png`` for each px of a page: 600 to the inch, as journals ask for line drawings."""

_PT_MM = 25.4 / 72
_TEXT_PX = 11
"""Size of all texts, in the units of the picture."""
_LEAST_EMS = 20
"""A picture is at least so many times as wide as its letters are high."""
_ROW_SCALE = 0.85  # Rows are as low as their labels allow.
_MOST_HEIGHT_MM = 200.0
_LABEL_SHARE, _MOST_LABEL_PX = 0.3, 150.0
_LEGEND_LINES = 3
_EDGE_PX = 2.0


class _PaperPlot(SVGPlot):
    strip_px = 0  # The lanes show what was busy.
    text_px = _TEXT_PX

    def __init__(self, scene: Scene, top_px: float, *, width_px: float, unit_mm: float) -> None:
        self.most_label_px = max(60.0, min(_LABEL_SHARE * width_px, _MOST_LABEL_PX))
        self._most_px = _MOST_HEIGHT_MM / unit_mm
        words = [CAPTURED_WORDS] if scene.is_partly_captured else []
        super().__init__(scene, top_px, width_px=width_px, strip_words=words)
        self._band_px = self.left_px - min(self.left_px, self.most_label_px)
        self.right_px = width_px - 12.0

    def scale_of(self, scene: Scene) -> float:
        return min(_ROW_SCALE, self._most_px / max(1.0, scene.height_px))

    def label(self, text: str) -> str:
        room_px = self.left_px - self._band_px - 8
        # Its detail stands behind a lane's name, and goes first.
        whole = (part for part in (text, text.partition(" · ")[0]) if text_width_px(part, _TEXT_PX) <= room_px)
        return next(whole, "") or fit_label(text.partition(" · ")[0], room_px)

    def shade(self, top: float, bottom: float) -> str:
        lines = "".join(f"M{_EDGE_PX} {y:.1f}H{self.right_px:.1f}" for y in (top, bottom))
        return f'<path d="{lines}" stroke="{GRID}" stroke-width=".5"/>'


def paper_svg(trace: Trace, *, width_mm: float = COLUMN_MM, font_pt: float = FONT_PT) -> str:
    """Draw a trace as SVG text for a paper: lanes, SMs of partitions, time axis and a short legend, on white.

    It never hides what the times are: a line below it says that they are simulated, or of ranges alone, or what is missing.

    Parameters
    ----------
    trace
        The spans.
    width_mm
        Width, 40 to 420 mm.
    font_pt
        Size of all its texts, 4 to 20 pt.

    Raises
    ------
    OptionError
        If one of both is no number within its limits, or the letters are too large for the width.
    """
    _check_number("width_mm", width_mm, WIDTH_LIMITS_MM, "85 is one column of most journals, 178 are two")
    _check_number("font_pt", font_pt, FONT_LIMITS_PT, "7 is usual in figures")
    unit_mm = font_pt * _PT_MM / _TEXT_PX
    width_px = width_mm / unit_mm
    if width_px < _LEAST_EMS * _TEXT_PX:
        raise OptionError(
            f"font_pt is {font_pt:g} at width_mm={width_mm:g}, where letters leave no room for the lanes. "
            f"Use at most font_pt={int(width_mm / _PT_MM / _LEAST_EMS * 10) / 10:g}, or a wider picture."
        )
    picture = plan_picture(trace)
    scene = _without_cells(picture.scene)
    picture = replace(picture, scene=scene)
    unused_px = 0 if scene.marks else MARK_PX * _ROW_SCALE * len(scene.mark_rows)
    plot = _PaperPlot(scene, _EDGE_PX - unused_px, width_px=width_px, unit_mm=unit_mm)
    items = merged_items(picture.columns, plot.scale_x, MAX_FILE_BARS)
    steps = band_steps(trace, scene.bands, scene.zero_ns)
    parts = [*lane_shapes(scene, plot, "" if len(trace) else "no spans"), *_axis(plot)]
    parts += plot_shapes(picture, items, steps, plot)
    legend, bottom_px = _legend(trace, scene, plot, partition_entries(scene, steps))
    parts += legend
    for line in _wrapped([*_facts(picture), *left_out(picture, items)], width_px):
        parts.append(svg_text(_EDGE_PX, bottom_px, line, "start", SOFT))
        bottom_px += 14
    height_px, hatches = bottom_px - 6, hatch_patterns(is_screen=False)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width_mm:g}mm" height="{height_px * unit_mm:.2f}mm" '
        f'viewBox="0 0 {width_px:.2f} {height_px:.2f}" font-family="Roboto,Helvetica,Arial,sans-serif" '
        f'font-size="{_TEXT_PX}" fill="{INK}"><title>{escape(picture.header.title)}</title><defs>{hatches}</defs>'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>{_of_one_size("".join(parts)).replace(HATCH_CLASS, "")}</svg>'
    )


def svg_pdf(svg: str, *, title: str, alt: str) -> bytes:
    """Write an SVG text as one page of PDF of the same size: lines stay lines and texts stay texts, in fonts that are within.

    Parameters
    ----------
    svg
        The picture.
    title
        What the document is called.
    alt
        What it shows, for those who do not see it.

    Raises
    ------
    MissingExtraError
        If the package that writes it is not installed.
    """
    try:
        import typst
    except ImportError as error:
        raise MissingExtraError(
            "Saving a timeline as .pdf needs the package typst, which is not installed. "
            f"Install it with: {install_line('pdf')} - or save as .svg, which needs nothing more."
        ) from error
    source = b"""
        #set page(width: auto, height: auto, margin: 0pt)
        #set document(title: sys.inputs.title, date: none)
        #image(bytes(sys.inputs.svg), format: "svg", alt: sys.inputs.alt)
    """
    # Roboto has no arrow, and a text with one would be drawn in whatever other font there is.
    inputs = {"svg": svg.replace("→", " to "), "title": title, "alt": alt}
    fonts = typst.Fonts(font_paths=font_folder())
    return bytes(typst.compile(source, sys_inputs=inputs, font_paths=fonts, format="pdf"))


def _check_number(name: str, given: object, limits: tuple[float, float], hint: str) -> None:
    least, most = limits
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not least <= given <= most:
        raise OptionError(f"{name} is {given!r}; it must be a number from {least:g} to {most:g}. {hint[0].upper()}{hint[1:]}.")


def _without_cells(scene: Scene) -> Scene:
    """Leave out when cells ran: a paper has none."""
    return replace(scene, marks=tuple(mark for mark in scene.marks if mark.kind != "cell"))


def _axis(plot: SVGPlot) -> Iterator[str]:
    bottom, labels = plot.bottom_px, time_ticks(0, plot.end_ns, max(2, round((plot.right_px - plot.left_px) / 60)))
    for tick_ns, label in labels:
        x = plot.left_px + tick_ns * plot.scale_x
        yield f'<path d="M{x:.1f} {max(0.0, plot.top_px):.0f}V{bottom + 3:.0f}" stroke="{GRID}" stroke-width=".5"/>'
        yield svg_text(x, bottom + 14, label.rpartition(" ")[0], "middle", INK)
    yield f'<path d="M{plot.left_px:.1f} {bottom:.1f}H{plot.right_px:.1f}" stroke="{SOFT}"/>'
    unit = labels[0][1].rpartition(" ")[2]
    yield svg_text(plot.left_px - 14, bottom + 14, f"time, {unit}", "end", INK)


def _legend(trace: Trace, scene: Scene, plot: SVGPlot, partitions: Entries) -> tuple[list[str], float]:
    """Draw as many names as few lines hold, and return where the next line of text stands."""
    place = round(plot.bottom_px + 32)
    sides = {"left_px": _EDGE_PX, "right_px": plot.width_px - _EDGE_PX}
    shapes: list[str] = []
    if any(plot.y(box.head_bottom) - plot.y(box.top) < _TEXT_PX for box in scene.groups):  # too low for the partitions' names
        shapes, end = legend_shapes(partitions, place, swatch_px=24, **sides)
        place = round(end) + 10
    # Calls are the first to go: where they matter their bars have names.
    for count in range(LEGEND_NAMES, 0, -1):
        entries = name_entries(trace, scene, count)
        if count < LEGEND_NAMES:
            entries = [entry for entry in entries if not entry[0].startswith("call: ")]
        names, end = legend_shapes(entries, place, swatch_px=16, **sides)
        if end <= place + 18 * (_LEGEND_LINES - 1) + 12:
            break
    return [*shapes, *names], end + 6 if entries else place


def _facts(picture: Picture) -> list[str]:
    """Say what a reader of the picture must know of its times, and nothing else."""
    meta, header = picture.trace.metadata, picture.header
    facts = ["Simulated, not measured"] if meta.simulated else []
    if meta.is_from_columns or meta.tier is CaptureTier.RANGES:
        facts.append(header.tier[0].upper() + header.tier[1:])
    return [f"{fact.removesuffix('.')}." for fact in (*facts, *header.missing, *picture.scene.notes)]


def _wrapped(sentences: list[str], width_px: float) -> list[str]:
    text = " ".join(sentences)
    letter_px = text_width_px(text, _TEXT_PX) / max(1, len(text))
    return textwrap.wrap(text, int((width_px - 2 * _EDGE_PX) / letter_px)) if text else []


def _of_one_size(shapes: str) -> str:
    return re.sub(r' font-size="[\d.]+"', "", shapes)
