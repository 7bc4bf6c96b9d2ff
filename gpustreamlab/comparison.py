"""Two traces beside each other: to look at in a notebook, to keep as a file, to compute with."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gpustreamlab.analysis import TraceComparison, compare_traces, comparison_line, headline
from gpustreamlab.draw import ComparisonText, comparison_page, comparison_tables_html, comparison_text
from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.model import Trace, write_file_whole
from gpustreamlab.sentences import suffix_fault
from gpustreamlab.spool import load_trace

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions

__all__ = ["Comparison", "SupportsTrace", "compare"]


@runtime_checkable
class SupportsTrace(Protocol):
    """Anything with a trace: a session, a timeline."""

    @property
    def trace(self) -> Trace:
        """The spans."""
        ...


class Comparison:
    """Two traces and what differs between them. `compare` makes it.

    In a notebook it shows both timelines, one above the other on the same scale of time, and tables of what differs; elsewhere
    the tables.

    Parameters
    ----------
    a, b
        The traces.
    """

    def __init__(self, a: Trace, b: Trace) -> None:
        self._a, self._b = a, b
        self._result = compare_traces(a, b)

    @property
    def a(self) -> Trace:
        """The first trace."""
        return self._a

    @property
    def b(self) -> Trace:
        """The second trace."""
        return self._b

    @property
    def result(self) -> TraceComparison:
        """Every figure, as arrays: by lane, by name, and in total."""
        return self._result

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for the totals, each lane and each name; see `TraceComparison.to_pandas`."""
        return self._result.to_pandas()

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
        return f"<Comparison: {comparison_line(self._result)}>"

    def __str__(self) -> str:
        return comparison_text(self._result, self._titles())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[ComparisonText]:
        yield ComparisonText(self._result, self._titles())

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        wanted = [mime for mime in _MIME_TYPES if (not include or mime in include) and mime not in (exclude or ())]
        forms = {"text/plain": self.__str__, "text/html": self._html}
        return {mime: forms[mime]() for mime in wanted}

    def _html(self) -> str:
        """Return the page in a frame; where frames are not shown, the tables below it say what differs."""
        frame = "width:100%;height:0;border:0;display:block"
        return (
            '<div class="gpustreamlab-comparison mathjax_ignore">'
            f'<iframe title="Comparison of two timelines" style="{frame}" srcdoc="{escape(self._page())}"></iframe>'
            f"<details><summary>The same as tables</summary>{comparison_tables_html(self._result)}</details>"
            "</div>"
        )

    def _page(self) -> str:
        return comparison_page(self._a, self._b, self._result)

    def _titles(self) -> tuple[str, str]:
        return headline(self._a), headline(self._b)


def compare(a: Trace | SupportsTrace | str | PathLike[str], b: Trace | SupportsTrace | str | PathLike[str]) -> Comparison:
    """Compare two traces: before and after, one layout and another, simulated and measured.

    Parameters
    ----------
    a, b
        Traces, files that `Trace.save` wrote, or what has a trace: a session, a timeline. Lanes and names are matched by what
        they are called.

    Returns
    -------
    Comparison
        Differences are b - a, ratios b / a.

    Raises
    ------
    TraceFileError
        If a file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    OptionError
        If one of both is none of these.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> def run(end_ns):
    ...     return Trace(
    ...         start_ns=[0], end_ns=[end_ns], queued_ns=[0], lane=[0], name=[0], kind=[0], parent=[-1], thread=[0],
    ...         names=("gemm",), threads=("MainThread",), lanes=(Lane(name="compute", stream=1),),
    ...         metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4, simulated=True)),
    ...     )
    >>> compare(run(400), run(300))
    <Comparison: wall time 400 ns → 300 ns (1.33× faster)>
    """
    return Comparison(_trace_of(a, "a"), _trace_of(b, "b"))


def _trace_of(source: object, which: str) -> Trace:
    if isinstance(source, Trace):
        return source
    if isinstance(source, (str, PathLike)):
        return load_trace(source)
    if isinstance(source, SupportsTrace):
        return source.trace
    raise OptionError(
        f"compare({which}=...) got a {type(source).__name__}; it takes a Trace, a file that Trace.save wrote, or an object "
        "with a trace. Use for example compare('before.parquet', lab.trace)."
    )


_MIME_TYPES = ("text/plain", "text/html")
