"""The timeline of a trace, and the comparison of two traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gpustreamlab._util.shell import holds_code, running_cell, running_kernel_shell
from gpustreamlab._util.words import StandsElsewhere, suffix_fault
from gpustreamlab.analysis import (
    TraceComparison,
    compare_traces,
    empty_hint,
    headline,
    pending_text,
    summary_text,
    used_stream_count,
)
from gpustreamlab.draw import (
    MAX_FILE_BARS,
    PNG_SCALE,
    TextTimeline,
    comparison_page,
    comparison_tables_html,
    inline_html,
    plan_picture,
    svg_png,
    text_timeline,
    timeline_svg,
    why_tables,
    write_html,
)
from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.model import Note, Trace, TraceMetadata, write_file_whole
from gpustreamlab.typing import NoteKind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Timeline"]

_MIME_TYPES = ("text/plain", "text/html", "image/svg+xml")


class Timeline(StandsElsewhere):
    """A picture of a trace: a lane for each stream, its ranges as bars, and how many streams were busy.

    In a notebook it shows itself; in a terminal it is drawn with signs, by IPython, ``print`` and `rich.print`.

    Parameters
    ----------
    trace
        The spans.

    Raises
    ------
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Trace, TraceMetadata
    >>> empty = Trace(
    ...     start_ns=[], end_ns=[], queued_ns=[], lane=[], name=[], kind=[], parent=[], thread=[], names=(), lanes=(),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4, simulated=True)),
    ... )
    >>> Timeline(empty)
    <Timeline of 0 spans in 0 streams on demo (SIMULATED)>
    """

    _guesses: ClassVar = {
        "it as the last line of a cell, or print(lab.timeline())": "show display plot",
        "lab.timeline().save('run.html'), and open that file in a browser": "open view",
        "lab.timeline().save('run.html')": "to_html write_html save_html export write to_file",
    }

    def __init__(self, trace: Trace) -> None:
        if not isinstance(trace, Trace):
            raise OptionError(f"A Timeline is drawn of a trace, not of a {type(trace).__name__}. Use {_what_to_type(trace)}.")
        self._trace = trace

    @property
    def trace(self) -> Trace:
        """The spans that are drawn."""
        return self._trace

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes that readers wrote on it, in order of time."""
        return tuple(note for note in self.trace.notes if note.kind is NoteKind.NOTE)

    def save(
        self,
        path: str | PathLike[str],
        *,
        width_mm: float | None = None,
        scale: float | None = None,
        with_data: bool = False,
    ) -> Path:
        """Write the timeline as one file that opens offline.

        Parameters
        ----------
        path
            Where to: ``.html`` for a page to zoom in, ``.svg``, in which texts are texts, or ``.png`` for a picture.
        width_mm
            Width of a ``.svg`` in a document, 40 to 420 mm: two columns of a paper are about 180. None for that of the page.
        scale
            Pixels of a ``.png`` for each px of the page, of which an inch has 96; None for 2, which is sharp on fine screens.
        with_data
            Whether a ``.html`` holds the trace itself as well, which `gpustreamlab.load_trace` reads back exactly.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        OptionError
            If the file's suffix is none of these or the file has none, if a number is none of these, or an option says nothing
            of this sort of file.
        MissingExtraError
            If a ``.png`` is asked for and the package that renders it is not installed.
        TraceFileError
            If the file cannot be written; a file that was there before is then left as it was.

        Examples
        --------
        ::

            lab.timeline().save("run.html")
            lab.timeline().save("fig.svg", width_mm=180)
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix not in (".html", ".svg", ".png"):
            raise OptionError(
                f"A timeline cannot be saved as {target.name!r}: {suffix_fault(target.suffix)}. "
                "Choose from '.html', '.svg' and '.png'. For the data, use lab.trace.save('run.parquet')."
            )
        if scale is not None and suffix != ".png":
            raise OptionError(f"scale is {scale!r}, but only a .png has pixels. Leave it out to write {target.name!r}.")
        if with_data and suffix != ".html":
            raise OptionError(
                f"with_data is {with_data!r}, but only a .html holds data. Leave it out to write {target.name!r}, or use "
                "lab.timeline().save('run.html', with_data=True)."
            )
        if width_mm is not None and suffix != ".svg":
            raise OptionError(f"width_mm is {width_mm!r}, but only a .svg has one. Leave it out to write {target.name!r}.")
        if suffix == ".html":
            write_html(self.trace, target, with_data=with_data)
            return target
        svg = timeline_svg(self.trace, max_bars=MAX_FILE_BARS, width_mm=width_mm)
        data = svg_png(svg, scale=PNG_SCALE if scale is None else scale) if suffix == ".png" else svg.encode()
        write_file_whole(target, lambda partial: partial.write_bytes(data))
        return target

    def __repr__(self) -> str:
        trace = self.trace
        return f"<{'; '.join([headline(trace), *([] if _has_work(trace) else _why_empty(trace.metadata))])}>"

    def __str__(self) -> str:
        return text_timeline(self.trace)

    def __rich__(self) -> TextTimeline:
        return TextTimeline(self.trace)

    def _ipython_display_(self) -> None:
        """Draw it with signs in a terminal; a notebook asks for the forms that it can show."""
        if running_kernel_shell() is not None:
            raise NotImplementedError
        import rich

        rich.print(TextTimeline(self.trace))

    def _repr_html_(self) -> str:
        """Return what those show who ask for one form alone, as marimo does."""
        return notebook_forms(self.trace, ["text/html"], with_code=True)["text/html"]

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        wanted = _wanted(_MIME_TYPES, include, exclude)
        return notebook_forms(self.trace, wanted, with_code="text/html" in wanted and holds_code(running_cell()))


def notebook_forms(trace: Trace, wanted: Collection[str] = _MIME_TYPES, *, with_code: bool) -> dict[str, str]:
    """Return what notebooks show, by MIME type; with the viewer's code, or for one of which another output holds it."""
    words = summary_text(trace)
    forms = {"text/plain": words}
    if {*wanted} - {"text/plain"}:
        picture = plan_picture(trace)
        why = why_tables(trace, picture.scene.zero_ns)
        forms["image/svg+xml"] = svg = timeline_svg(trace, picture=picture, why=why)
        if "text/html" in wanted:
            forms["text/html"] = inline_html(trace, words=words, picture=picture, why=why, svg=svg, with_code=with_code)
    return {mime: forms[mime] for mime in wanted}


def _what_to_type(given: object) -> str:
    """Return the call that makes a timeline of what was given instead of a trace."""
    if isinstance(given, (str, PathLike)):
        return "gpustreamlab.Timeline(gpustreamlab.load_trace('run.parquet'))"
    if isinstance(getattr(type(given), "trace", None), property):  # a session, or a timeline
        return "lab.timeline() or gpustreamlab.Timeline(lab.trace)"
    return "lab.timeline() for what ran so far, or gpustreamlab.Timeline(gpustreamlab.load_trace('run.parquet'))"


def _has_work(trace: Trace) -> bool:
    """Tell whether any stream has spans: calls of the host are there before their work has ended."""
    return len(trace) > 0 and used_stream_count(trace) > 0


def _why_empty(meta: TraceMetadata) -> list[str]:
    if meta.pending_spans:
        return [pending_text(meta.pending_spans, meta)]
    return [empty_hint(meta)] if meta.unselected_work else []


def _wanted(offered: Iterable[str], include: Collection[str] | None, exclude: Collection[str] | None) -> list[str]:
    """Return the MIME types, of those that are offered, that IPython asks for; source: `IPython.display.display`."""
    return [mime for mime in offered if (not include or mime in include) and mime not in (exclude or ())]


class Comparison:
    """Two traces and what differs between them. `gpustreamlab.compare` makes it.

    In a notebook it shows both timelines, one above the other on the same scale of time, and tables of what differs; elsewhere
    the tables.

    Parameters
    ----------
    a, b
        The traces.
    """

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a = a
        """The first trace."""
        self.b = b
        """The second trace."""
        self.result: TraceComparison = compare_traces(a, b)
        """Every figure, as arrays: by lane, by name, and in total."""

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for the totals, each stream and each name; see `TraceComparison.to_pandas`."""
        return self.result.to_pandas()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write both timelines and the tables as one page that opens offline.

        Zooming into one timeline zooms into the other. The time of each begins at its own first span.

        Parameters
        ----------
        path
            Where to; the suffix is ``.html``.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        OptionError
            If the file's suffix is another one.
        TraceFileError
            If the file cannot be written; a file that was there before is then left as it was.
        """
        target = Path(path)
        if target.suffix.lower() != ".html":
            raise OptionError(
                f"A comparison cannot be saved as {target.name!r}: {suffix_fault(target.suffix)}. "
                f"{nearest_hint(target.suffix.lower(), ['.html'])} For the figures, use compare(a, b).to_pandas()."
            )
        page = self._page()
        write_file_whole(target, lambda partial: partial.write_text(page, encoding="utf-8"))
        return target

    def __repr__(self) -> str:
        return repr(self.result).replace("TraceComparison", "Comparison", 1)

    def __str__(self) -> str:
        return "\n".join([str(self.result), "", f"a: {headline(self.a)}", f"b: {headline(self.b)}"])

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        forms = {"text/plain": self.__str__, "text/html": self._repr_html_}
        return {mime: forms[mime]() for mime in _wanted(forms, include, exclude)}

    def _repr_html_(self) -> str:
        """Return the page in a frame; where frames are not shown, the tables below it say what differs."""
        frame = "width:100%;height:0;border:0;display:block"
        page = self._page(with_code=holds_code(running_cell()))
        return (
            '<div class="gpustreamlab-comparison mathjax_ignore">'
            f'<iframe title="Comparison of two timelines" style="{frame}" srcdoc="{escape(page)}"></iframe>'
            f"<details><summary>The same as tables</summary>{comparison_tables_html(self.result)}</details>"
            "</div>"
        )

    def _page(self, *, with_code: bool = True) -> str:
        return comparison_page(self.a, self.b, self.result, with_code=with_code)
