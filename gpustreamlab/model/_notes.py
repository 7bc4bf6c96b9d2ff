"""Notes as a browser has them, which readers write there."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from gpustreamlab.errors import TraceError
from gpustreamlab.model._device import Note
from gpustreamlab.model._trace import Trace
from gpustreamlab.typing import NoteKind


def written_entries(trace: Trace) -> list[list[str | None]]:
    """Return what readers wrote: time, end or None, lane or None, text; times as text, which loses no digit in a browser."""
    return [
        [str(note.time_ns), None if note.end_ns is None else str(note.end_ns), note.stream, note.text]
        for note in trace.notes
        if note.kind is NoteKind.NOTE
    ]


def read_written(entries: object) -> tuple[Note, ...]:
    """Read what a reader wrote in a browser: time, end or None, lane or None, text; what is none of that is left out.

    Examples
    --------
    >>> [note.text for note in read_written([["5", None, None, "here"], ["x", None, None, "no time"], 7])]
    ['here']
    """
    notes = []
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(TypeError, ValueError, TraceError):
            time_ns, end_ns, stream, text = entry
            end_ns = None if end_ns is None else int(end_ns)
            notes.append(Note(time_ns=int(time_ns), end_ns=end_ns, stream=stream, text=text))
    return tuple(notes)


def with_written(trace: Trace, notes: tuple[Note, ...]) -> Trace:
    """Return a trace with what a reader wrote in the place of the notes that readers wrote before."""
    others = (note for note in trace.notes if note.kind is not NoteKind.NOTE)
    return replace(trace, notes=(*others, *notes))
