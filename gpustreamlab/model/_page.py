"""A trace within a page of HTML: its Parquet file, as letters of an element that no browser runs or shows."""

from __future__ import annotations

import base64
import json
from os import PathLike
from pathlib import Path

from gpustreamlab._util.host import require_room
from gpustreamlab.errors import TraceFileError
from gpustreamlab.model._file import parquet_bytes, parquet_trace
from gpustreamlab.model._notes import read_written, with_written
from gpustreamlab.model._trace import Trace

_BEGIN = b'<script type="application/vnd.apache.parquet" id="gsl-trace">'
_NOTES = b'<script id="gsl-notes" type="application/json">'
_END = b"</script>"
_OUR_PAGE = b'<script type="text/plain" id="gsl-bokeh">'


def trace_element(trace: Trace) -> str:
    """Return the element that holds a trace; letters of base64 can end none.

    Examples
    --------
    >>> trace_element(Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"]))[:66]
    '<script type="application/vnd.apache.parquet" id="gsl-trace">UEFSM'
    """
    return (_BEGIN + base64.b64encode(parquet_bytes(trace)) + _END).decode()


def read_page(path: str | PathLike[str]) -> Trace:
    """Read the trace of a page that ``lab.timeline().save("run.html", with_data=True)`` wrote.

    Raises
    ------
    TraceFileError
        If the page is not ours, holds no data, or is damaged.
    """
    text, shown = _read(path), repr(str(path))
    if _OUR_PAGE not in text:
        raise TraceFileError(
            f"{shown} is no trace: it is a web page (HTML) of something else, as a download that asks for a login is. "
            "Download the file itself."
        )
    place = text.find(_BEGIN)
    if place < 0:
        raise TraceFileError(
            f"{shown} is a picture of a timeline and holds no data. Write it with its data where the trace is: "
            "lab.timeline().save('run.html', with_data=True)."
        )
    try:
        data = base64.b64decode(_element(text, _BEGIN), validate=True)
        written = read_written(json.loads(_element(text, _NOTES))) if _NOTES in text else None
    except (ValueError, RecursionError) as error:  # notes that are nested too deep
        raise TraceFileError(f"The data of the page {shown} is damaged or cut off: {error}. Copy it again.") from error
    trace = parquet_trace(data, f"the data of the page {shown}")
    return trace if written is None else with_written(trace, written)


def _element(text: bytes, begin: bytes) -> bytes:
    first = text.find(begin) + len(begin)
    end = text.find(_END, first)
    return text[first:end] if end >= 0 else b"="


def is_bare_page(path: str | PathLike[str]) -> bool:
    """Tell whether a file is a page of ours without data: whoever has the trace can draw it again."""
    text = _read(path)
    return _OUR_PAGE in text and _BEGIN not in text


def _read(path: str | PathLike[str]) -> bytes:
    try:
        require_room(Path(path).stat().st_size, repr(str(path)))
        return Path(path).read_bytes()
    except TraceFileError:
        raise
    except OSError as error:
        raise TraceFileError(f"{str(path)!r} cannot be read: {error.strerror}. Check its owner and mode.") from error
