"""Two traces beside each other, as a page."""

from __future__ import annotations

from html import escape

from gpustreamlab.analysis import TraceComparison, comparison_tables, html_of_table, wall_line
from gpustreamlab.draw._colours import NameLooks, style_entries
from gpustreamlab.draw._header import header_html, warnings_html
from gpustreamlab.draw._html import (
    bokeh_text,
    fill_template,
    page_data,
    page_letters,
    scene_tables,
    viewer_packed,
    viewer_style,
    viewer_text,
)
from gpustreamlab.draw._picture import Picture, plan_picture
from gpustreamlab.model import Trace

LISTED_ITEMS = 200  # How many names, and how many lanes, the page lists


def comparison_page(a: Trace, b: Trace, result: TraceComparison) -> str:
    """Return the page as text."""
    sides = (plan_picture(a), plan_picture(b))
    data_a, data_b = _sides_data(sides)
    notes, is_other_work = result.notes, bool(result.work_note)
    return fill_template(
        "compare.html",
        title="Comparison of two timelines",
        style=viewer_text("page.css") + viewer_text("compare.css") + viewer_style(),
        finding=escape(wall_line(result)),
        warning=warnings_html(notes[:is_other_work]),
        notes=warnings_html(notes[is_other_work:]),
        headera=header_html(sides[0].header, sides[0].scene.notes),
        headerb=header_html(sides[1].header, sides[1].scene.notes, "-b"),
        tables=f'<div class="gsl-tables">{comparison_tables_html(result)}</div>',
        bokeh=bokeh_text(),
        viewer=viewer_packed(),
        dataa=data_a[0],
        spansa=data_a[1],
        datab=data_b[0],
        spansb=data_b[1],
        boot=viewer_text("page.js"),
    )


def comparison_tables_html(result: TraceComparison) -> str:
    """Write the figures of a comparison as HTML tables; every text is escaped."""
    return "".join(map(html_of_table, comparison_tables(result, limit=LISTED_ITEMS)))


def _sides_data(sides: tuple[Picture, Picture]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return data and spans of both timelines as letters: with one length of the axis, one room for names, one look a name."""
    tables = [scene_tables(side.trace, side.scene, side.header, side.counted) for side in sides]
    extent_ns = max(table["extent_ns"] for table in tables)
    border_px = max(table["border_px"] for table in tables)
    looks = NameLooks()
    looks.add([name for side in sides for name in side.trace.names])
    packed = []
    for side, table in zip(sides, tables, strict=True):
        styles = style_entries(looks.add(side.trace.names))
        common = {"extent_ns": extent_ns, "border_px": border_px, "name_styles": styles}
        packed.append(page_letters(*page_data(side, table | common)))
    return packed[0], packed[1]
