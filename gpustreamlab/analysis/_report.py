"""Results that show themselves: as one line, as text, and as HTML with the same content; and answers of a trace."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from gpustreamlab._util.words import StandsElsewhere, text_width, wrap_sentence
from gpustreamlab.analysis._makers import maker_of
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.model import SPAN_KINDS, UNNAMED_SOURCE, Lane, Partition, Trace, TraceMetadata, display_name, show_text
from gpustreamlab.typing import CaptureTier, FloatArray, Int64Array

if TYPE_CHECKING:
    import pandas as pd

_Thing = TypeVar("_Thing")
_CELL = "padding:0.25em 0.7em;text-align:right;white-space:nowrap;border:0;border-bottom:1px solid rgba(128,128,128,0.35)"
_HEAD = f"{_CELL};font-weight:600"
_WRAPPED = "white-space:normal;text-align:left;vertical-align:top"
_LEFT = "text-align:left"
_BAR = "display:inline-block;height:0.8em;vertical-align:middle;background:rgba(0,114,178,0.7)"
_TABLE = "border-collapse:collapse;margin:0.4em 0;color:inherit;background:none"
_CAPTION = "caption-side:top;text-align:left;white-space:nowrap;padding:0.2em 0;color:inherit;opacity:0.75"
_WRAPPED_EM = 7  # Least width of a cell that wraps, where a word in it is that long
_BREAK = r"(?<=\w[(])(?![)])|(?<=[)])(?=[.])|(?<=[A-Z]_)(?=[A-Z])"
"""Where a call, or a name in capitals, may go on in the next line."""
_NAME_LEAST = 10  # How many characters of a name text has at least
_BAR_EM = 14  # Width of the longest bar
NOTE_CHARACTERS = 300  # How many characters of a note are shown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportTable:
    """A table of text. What it has beside its cells shows on pages only."""

    caption: str  # What it shows
    rows: list[list[str]]
    """Its rows, the first of them the head, all of one length. A row with nothing but a first cell is a note."""
    has_row_heads: bool = False  # Whether the first cell of a row is what the row is about
    shade: FloatArray | None = None
    """How dark each cell behind the head is, from 0 to 1; shape (n_rows - 1, n_columns), float64."""
    bars: list[float] | None = None  # Length of a bar behind each row but the head, as a share of the longest possible
    names: tuple[int, ...] = (0,)  # Columns of names, which text cuts where the rows are too wide
    lines: list[str] | None = None  # What text has in its place, where the rows are too wide all the same
    wraps: bool = False  # Whether cells are sentences, which go on in further lines where a page is narrow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """What a result has to say."""

    title: str  # What it is, in a word or two
    line: str  # The main figures; text and pages have them behind the title
    tables: tuple[ReportTable, ...] = ()  # The figures
    notes: tuple[str, ...] = ()  # What they mean and what they leave out, one sentence each
    doubt: str = ""  # What has to be said before all else: that the trace is incomplete, or its times are off

    def in_words(self, words: Callable[[str], str]) -> Report:
        """Return it with each text as a function says it."""
        tables = [
            replace(
                table,
                caption=words(table.caption),
                rows=[[*map(words, row)] for row in table.rows],
                lines=None if table.lines is None else [*map(words, table.lines)],
            )
            for table in self.tables
        ]
        return replace(self, line=words(self.line), tables=tuple(tables), notes=tuple(map(words, self.notes)))


class Reported(StandsElsewhere, ABC):
    """A result with int64 columns that shows itself: ``repr``, ``str``, and what IPython asks for."""

    __slots__ = ()

    _columns: ClassVar[tuple[str, ...]]
    """Fields that are columns: read-only int64 copies are kept of them."""

    def __post_init__(self) -> None:
        for name in self._columns:
            column = np.array(getattr(self, name), np.int64)
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @abstractmethod
    def _line(self) -> str:
        """Return the main figures in one line; cheap."""

    @abstractmethod
    def _report(self) -> Report:
        """Return all that is to be said."""

    def _words(self, text: str) -> str:
        """Return a text in the words of whoever made the card."""
        return text

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._words(self._line())}>"

    def __str__(self) -> str:
        report = self._report().in_words(self._words)
        parts = [*(wrap_sentence(report.doubt) if report.doubt else []), *wrap_sentence(f"{report.title} {report.line}")]
        for table in report.tables:
            parts += ["", *text_lines(table)]
        notes = [line for note in report.notes for line in wrap_sentence(note)]
        return "\n".join([*parts, *(["", *notes] if notes else [])])

    _repr_pretty_ = show_text

    def _repr_html_(self) -> str:
        report = self._report().in_words(self._words)
        tables = "".join(map(html_of_table, report.tables))
        notes = " ".join(escape(note) for note in report.notes)
        head, _, rest = report.title.partition(" ")
        doubt = f"<p style='margin:0.4em 0'><b>{escape(report.doubt)}</b></p>" if report.doubt else ""
        return (
            f"<div class='gpustreamlab-{type(self).__name__.lower()}' style='overflow-x:auto'>{doubt}"
            f"<p style='margin:0.4em 0'><b>{escape(head)}</b> {escape(f'{rest} {report.line}'.strip())}</p>{tables}"
            f"<p style='margin:0.4em 0;opacity:0.75;font-size:90%'>{notes}</p></div>"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Answer(Reported):
    """What a trace answers: figures as columns, which show themselves and make a data frame. False where there are none.

    An answer says its class, what it is called (`_title`), its line, its tables and notes; all else is said here, once.
    """

    trace: Trace
    """The trace that was asked."""

    _title: ClassVar[str]
    """What stands before its line."""
    _simulated: ClassVar[str] = "No hardware stands behind these times."
    """What it means that the device is simulated."""
    _tells_doubt: ClassVar[bool] = False  # Whether its own line says what speaks against the trace
    _frame: ClassVar[Mapping[str, str | tuple[str, str | Sequence[str]]]]
    """Columns of the data frame: the attribute, and of codes what they point into: a table of the trace, or texts."""

    def __len__(self) -> int:
        return len(getattr(self, self._columns[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trace."""
        return self.trace.names

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes of the trace."""
        return self.trace.lanes

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions of the trace."""
        return self.trace.partitions

    @property
    def metadata(self) -> TraceMetadata:
        """Where the numbers come from."""
        return self.trace.metadata

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each, as a `pandas.DataFrame`; what codes mean is written out, and None for -1."""
        import pandas as pd

        return pd.DataFrame({name: self._written(told) for name, told in self._frame.items()})

    def _written(self, told: str | tuple[str, str | Sequence[str]]) -> Any:
        if isinstance(told, str):
            return getattr(self, told)
        name, texts = told
        tables = {"names": self.trace.names, "kinds": SPAN_KINDS} | {
            table: [one.name for one in getattr(self.trace, table)] for table in ("lanes", "partitions")
        }
        return text_column(map(str, tables[texts] if isinstance(texts, str) else texts), getattr(self, name))

    def _words(self, text: str) -> str:
        return maker_of(self.trace).words(text)

    def _tables(self) -> Sequence[ReportTable]:
        """Return the figures; asked where there are any."""
        return ()

    def _notes(self) -> Sequence[str]:
        """Return what they mean and leave out, one sentence each; that they are simulated is said after them."""
        return ()

    def _report(self) -> Report:
        tables = tuple(self._tables()) if len(self) else ()
        notes = (*self._notes(), *simulated_notes(self.metadata, self._simulated))
        doubt = "" if self._tells_doubt else self.metadata.doubt
        return Report(title=self._title, line=self._line(), tables=tables, notes=notes, doubt=doubt)


def more_row(count: int, column_count: int, hint: str = "more: see .to_pandas()") -> list[list[str]]:
    """Return the last row of a table that leaves out some, as a list of it; an empty one where none is left out."""
    return [[f"… {count:,} {hint}", *[""] * (column_count - 1)]] if count > 0 else []


def listed(
    caption: str,
    head: list[str],
    things: Sequence[_Thing],
    cells: Callable[[_Thing], list[str]],
    *,
    most: int = 20,
    hint: str = "more: see .to_pandas()",
    **options: Any,
) -> ReportTable:
    """Return a table with a row for each thing, of many for the first ones, and the rest counted."""
    rows = [head, *map(cells, things[:most]), *more_row(len(things) - most, len(head), hint)]
    return ReportTable(caption=caption, rows=rows, **options)


def add_up(columns: Sequence[Int64Array], duration_ns: Int64Array) -> list[tuple[list[int], int, int]]:
    """Return each combination of codes, how many rows have it, and what these last; what lasts longest first."""
    keys, group, counts = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True, return_counts=True)
    total_ns = np.zeros(len(keys), np.int64)
    np.add.at(total_ns, group.reshape(-1), duration_ns)
    order = np.argsort(-total_ns, kind="stable")
    return list(zip(keys[order].tolist(), counts[order].tolist(), total_ns[order].tolist(), strict=True))


def text_column(texts: Iterable[str], codes: Int64Array) -> pd.Series[Any]:
    """Return what codes mean as a column of a data frame; None for -1. As objects: pandas would make a missing text of None."""
    import pandas as pd

    return pd.Series(np.array([*texts, None], dtype=object)[codes], dtype=object)


def simulated_notes(metadata: TraceMetadata, meaning: str = "No hardware stands behind these times.") -> list[str]:
    """Say that a device is simulated, and what that means, where it is."""
    return [f"Simulated: {metadata.device_label}. {meaning}"] if metadata.simulated else []


def text_lines(table: ReportTable) -> list[str]:
    """Write rows in columns. A row with one filled cell is a note of its own and widens nothing."""
    columns = [list(map(len, column)) for column in zip(*(row for row in table.rows if any(row[1:])), strict=True)]
    # Figures are never cut; the head above them is, as it may be a name.
    least = [max([_NAME_LEAST, *([] if place in table.names else column[1:])]) for place, column in enumerate(columns)]
    widths, room = list(map(max, columns)), text_width() - 2 * (len(columns) - 1)
    while sum(widths) > room and (long := [place for place, width in enumerate(widths) if width > least[place]]):
        widths[max(long, key=widths.__getitem__)] -= 1
    if sum(widths) > room and table.lines is not None:
        return table.lines
    return [_text_row(row, widths) for row in table.rows]


def _text_row(row: list[str], widths: list[int]) -> str:
    if not any(row[1:]):
        return row[0]
    first, *others = (cell and display_name(cell, width) for cell, width in zip(row, widths, strict=True))
    cells = [f"{first:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def html_of_table(table: ReportTable) -> str:
    """Write rows as a table of HTML."""
    style = f"{_HEAD};{_WRAPPED}" if table.wraps else _HEAD
    head = "".join(f"<th style='{style}'>{escape(cell)}</th>" for cell in table.rows[0])
    if table.bars is not None:
        head += f"<th style='{_HEAD}'></th>"
    body = "".join(f"<tr style='background:none'>{_html_row(table, place)}</tr>" for place in range(len(table.rows) - 1))
    caption = f"<caption style='{_CAPTION}'>{escape(table.caption)}</caption>"
    return f"<table style='{_TABLE}'>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _wrapped(cell: str) -> str:
    """Write a cell that goes on in further lines: between words, between the parts of a call, and else where it must."""
    pieces = re.split(_BREAK, cell)
    width_em = min(_WRAPPED_EM, 0.6 * max(len(word) for piece in pieces for word in (*piece.split(), "")))
    style = f"{_CELL};{_WRAPPED};overflow-wrap:anywhere;min-width:{width_em:.1f}em"
    return f"<td style='{style}'>{'<wbr>'.join(map(escape, pieces))}</td>"


def _html_row(table: ReportTable, place: int) -> str:
    row, cells = table.rows[place + 1], []
    if not any(row[1:]):
        span = len(row) + (table.bars is not None)
        return f"<td colspan='{span}' style='{_CELL};{_LEFT};white-space:normal'>{escape(row[0])}</td>"
    for column, cell in enumerate(row):
        if table.has_row_heads and not column:
            wrapped = f";{_WRAPPED}" if table.wraps else ""
            cells.append(f"<th style='{_HEAD};{_LEFT}{wrapped}'>{escape(cell)}</th>")
            continue
        if table.wraps:
            cells.append(_wrapped(cell))
            continue
        shade = 0.0 if table.shade is None else float(table.shade[place, column])
        background = f";background:rgba(0,114,178,{0.4 * shade:.2f})" if shade else ""
        cells.append(f"<td style='{_CELL}{background}'>{escape(cell)}</td>")
    if table.bars is not None:
        width_em = _BAR_EM * table.bars[place]
        cells.append(f"<td style='{_CELL};{_LEFT}'><span style='{_BAR};width:{width_em:.2f}em'></span></td>")
    return "".join(cells)


# What metadata have to say


def device_text(meta: TraceMetadata) -> str:
    """Name the device, and say whether it is real, as far as that is known."""
    known = (
        *(("PREDICTED", meta.is_predicted), ("SIMULATED", meta.simulated), ("from columns", meta.is_from_columns)),
        ("as a file says", meta.capture_source == UNNAMED_SOURCE),
    )
    source = next((word for word, is_so in known if is_so), "measured on hardware")
    return f"{display_name(meta.device_name)} ({source})"


def doubt_facts(meta: TraceMetadata) -> list[str]:
    """Say what speaks against the trace, as a list of one; it comes first among `missing_facts`."""
    return [display_name(meta.doubt.rstrip("."), NOTE_CHARACTERS)] if meta.doubt else []


def missing_facts(meta: TraceMetadata) -> list[str]:
    """Say what the trace does not hold; empty where nothing is missing."""
    facts = doubt_facts(meta)
    facts += [f"A part, cut out of a trace of {count_text(meta.part_of_spans, 'span')}"] if meta.part_of_spans else []
    if meta.capture_note:
        lead = "Kernels were not captured" if meta.tier is CaptureTier.RANGES else "Some kernels are missing"
        facts.append(f"{lead}: {display_name(meta.capture_note, NOTE_CHARACTERS)}")
    if meta.dropped_spans:
        facts.append(dropped_text(meta))
    if meta.pending_spans:
        facts.append(pending_text(meta.pending_spans, meta))
    if meta.recovery_note and not meta.doubt:  # else that says it
        facts.append(display_name(meta.recovery_note, NOTE_CHARACTERS))
    return [*facts, *(display_name(fact, NOTE_CHARACTERS) for fact in meta.missing)]


def dropped_text(meta: TraceMetadata) -> str:
    """Say how many spans are missing, and why."""
    records = f", {meta.dropped_records:,} of them kernels, copies and calls" if meta.dropped_records else ""
    reasons = "a full buffer, a closed stream, an error or an interrupt"
    return f"{count_text(meta.dropped_spans, 'span')} dropped{records} ({reasons})"


def pending_text(count: int, meta: TraceMetadata) -> str:
    """Say that spans have not ended, and what waits for them; of a run that was cut short nothing does."""
    if meta.recovery_note:
        return f"{count_text(count, 'span')} had not ended when the run was cut short"
    if count == 1:
        return "1 span has not ended yet: lab.synchronize() waits for it"
    return f"{count:,} spans have not ended yet: lab.synchronize() waits for them"


def empty_hint(meta: TraceMetadata, *, nothing: str = "No spans yet") -> str:
    """Say why a trace may be empty, as far as that is known, and what to type; nothing where spans have not ended yet."""
    count = meta.unselected_work
    if meta.part_of_spans or meta.is_from_columns or meta.imported:
        return nothing.removesuffix(" yet")
    if meta.pending_spans:
        return ""
    if not count:
        if meta.tier is not CaptureTier.RANGES:
            return f"{nothing}: no kernel, copy or fill has ended"
        return f"{nothing}: select a stream with lab.on(...), or record all work with lab.capture('kernels')"
    work = "1 kernel, copy or fill was" if count == 1 else f"{count:,} kernels, copies or fills were"
    return f"{work} launched with no stream selected: use lab.on(...), or record all with lab.capture('kernels')"
