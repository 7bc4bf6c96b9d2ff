"""A comparison of two traces for terminals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpustreamlab.analysis import TextTable, TraceComparison, comparison_tables, wall_line
from gpustreamlab.sentences import MIN_WIDTH, text_width

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

LISTED_ITEMS = 20
"""How many names, and how many lanes, a terminal lists."""


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
        for table in comparison_tables(self._result, limit=LISTED_ITEMS, name_limit=name_limit):
            yield _rich_table(table)
            if table.more:
                yield Text(table.more, "dim")
        for note in self._result.notes[bool(self._result.work_note) :]:
            yield Text(f"⚠ {note}", "yellow")


def comparison_text(result: TraceComparison, titles: tuple[str, str], width: int | None = None) -> str:
    """Write a comparison as plain text.

    Parameters
    ----------
    result, titles
        As for `ComparisonText`.
    width
        How many columns it may take, from `MIN_WIDTH`; None takes the terminal's width, or 80 where there is none.
    """
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
