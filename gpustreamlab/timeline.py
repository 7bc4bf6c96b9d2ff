"""The timeline of a trace: to look at in a notebook, to keep as a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType

from gpustreamlab.analysis import headline, overlap, summary_text
from gpustreamlab.draw import inline_html, plan_scene, timeline_svg, write_html
from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.model import Trace, write_file_whole

__all__ = ["Timeline", "load_trace"]


class Timeline:
    """A picture of a trace: a lane for each stream, its ranges as bars, and how many streams were busy.

    In a notebook it shows itself; elsewhere its text says what is in it.

    Parameters
    ----------
    trace
        The spans.

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

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @property
    def trace(self) -> Trace:
        """The spans that are drawn."""
        return self._trace

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the timeline as one file that opens offline.

        Parameters
        ----------
        path
            Where to: ``.html`` for a page to zoom in, ``.svg`` for a picture.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        OptionError
            If the file's suffix is neither.
        TraceFileError
            If the file cannot be written; a file that was there before is then left as it was.
        """
        target = Path(path)
        writer = _WRITERS.get(target.suffix.lower())
        if writer is None:
            raise OptionError(
                f"A timeline cannot be saved as {target.name!r}: the suffix {target.suffix!r} says no known format. "
                f"{nearest_hint(target.suffix.lower(), _WRITERS)} For the data, use lab.trace.save('run.parquet')."
            )
        writer(self._trace, target)
        return target

    def __repr__(self) -> str:
        return f"<{headline(self._trace)}>"

    def __str__(self) -> str:
        return summary_text(self._trace)

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        trace = self._trace
        wanted = {mime for mime in _MIME_TYPES if (not include or mime in include) and mime not in (exclude or ())}
        result = overlap(trace)
        forms = {"text/plain": summary_text(trace, result)}
        if wanted - {"text/plain"}:
            scene = plan_scene(trace)
            forms["image/svg+xml"] = timeline_svg(trace, scene=scene, result=result)
            if "text/html" in wanted:
                forms["text/html"] = inline_html(trace, scene=scene, result=result, svg=forms["image/svg+xml"])
        return {mime: forms[mime] for mime in _MIME_TYPES if mime in wanted}


def load_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace that `Trace.save` wrote.

    Raises
    ------
    TraceFileError
        If the file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    """
    return Trace.load(path)


def _write_svg(trace: Trace, target: Path) -> None:
    svg = timeline_svg(trace)
    write_file_whole(target, lambda partial: partial.write_text(svg, encoding="utf-8"))


_MIME_TYPES = ("text/plain", "text/html", "image/svg+xml")

_WRITERS: Mapping[str, Callable[[Trace, Path], None]] = MappingProxyType({".html": write_html, ".svg": _write_svg})
