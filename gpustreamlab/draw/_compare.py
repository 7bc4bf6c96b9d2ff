"""Two traces beside each other, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from gpustreamlab._util.words import MIN_WIDTH, text_width
from gpustreamlab.analysis import TextTable, TraceComparison, comparison_tables, wall_line
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

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


LISTED_ITEMS = 200  # How many names, and how many lanes, the page lists
NAME_CHARACTERS = 80  # How many characters of a name the tables show


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
    return "".join(_table(table) for table in comparison_tables(result, limit=LISTED_ITEMS, name_limit=NAME_CHARACTERS))


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


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    more = f'<p class="gsl-source">{escape(table.more)}</p>' if table.more else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<table class="gsl-compared">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


TEXT_ITEMS = 20  # How many names, and how many lanes, a terminal lists


class ComparisonText:
    """A comparison as tables that `rich.print` draws.

    Parameters
    ----------
    result
        The comparison.
    titles
        What both traces are called, a line each.
    """

    def __init__(self, result: TraceComparison, titles: tuple[str, str]) -> None:
        self._result, self._titles = result, titles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        if self._result.work_note:
            yield Text(f"⚠ {self._result.work_note}.", "yellow")
        yield Text(f"Comparison of two traces, b beside a: {wall_line(self._result)}", "bold")
        for which, title in zip("ab", self._titles, strict=True):
            yield Text(f"{which}: {title}")
        name_limit = max(12, min(40, options.max_width - 68))
        for table in comparison_tables(self._result, limit=TEXT_ITEMS, name_limit=name_limit):
            yield _rich_table(table)
            if table.more:
                yield Text(table.more, "dim")
        for note in self._result.notes[bool(self._result.work_note) :]:
            yield Text(f"⚠ {note}", "yellow")


def comparison_text(result: TraceComparison, titles: tuple[str, str], width: int | None = None) -> str:
    """Write a comparison as plain text."""
    import io

    from rich.console import Console

    columns = text_width() if width is None else max(width, MIN_WIDTH)
    console = Console(file=io.StringIO(), width=columns, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(ComparisonText(result, titles))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _rich_table(table: TextTable) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1)
    )
    for place, head in enumerate(table.head):
        drawn.add_column(head, justify="right" if place else "left", no_wrap=bool(place), overflow="ellipsis")
    for row in table.rows:
        # As Text: a name may hold what looks like markup.
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
