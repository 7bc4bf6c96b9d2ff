"""What is marked in the picture beside the causes of late work: hazards, strays, waits of the host, and what was dropped."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import count_text, dropped_text, format_ns, host_waits, is_work, strays
from gpustreamlab.model import Note, Trace, TraceMetadata, display_name
from gpustreamlab.typing import Int64Array, NoteKind

LISTED_MARKS = 20
"""Of how many groups of a sort a page tells, those first that took longest."""
LISTED_PLACES = 200
"""How many places of a group are marked, the longest first."""
LEAST_WAIT_SHARE = 0.01
"""From which share of the time on that calls were seen a wait of the host is marked."""
_NAME_WIDTH = 32
_NO_LANE = -1


class Drawn(NamedTuple):
    """A trace as a page shows it."""

    trace: Trace
    """The spans."""
    zero_ns: int
    """The trace's time from which the page counts."""
    number: Int64Array
    """What the page calls each span: the number that the recorder gave it, or its row; shape (n_spans,)."""

    def span(self, row: int) -> list[int]:
        """Return what tells a span from all others in a page: lane, start, end and number."""
        trace = self.trace
        times_ns = int(trace.start_ns[row]) - self.zero_ns, int(trace.end_ns[row]) - self.zero_ns
        return [int(trace.lane[row]), *times_ns, int(self.number[row])]

    def noted(self, note: Note) -> list[int]:
        """Return the same of what a note is about: work before the range around it; number -1 where it is no span."""
        trace, end_ns = self.trace, note.time_ns if note.end_ns is None else note.end_ns
        lane = next((place for place, lane in enumerate(trace.lanes) if lane.name == note.stream), _NO_LANE)
        rows = np.flatnonzero((trace.start_ns == note.time_ns) & (trace.end_ns == end_ns) & (trace.lane == lane))
        if len(rows):
            return self.span(int(rows[np.argmax(is_work(trace)[rows])]))
        return [lane, note.time_ns - self.zero_ns, end_ns - self.zero_ns, -1]


def found_entries(drawn: Drawn, told_calls: Set[int]) -> list[dict[str, Any]]:
    """Return what is found in a trace, in the form of the findings of `why_tables`, each with its kind.

    Parameters
    ----------
    drawn
        The trace, as the page shows it.
    told_calls
        Rows of calls that findings tell of: of the same call on the same thread nothing more is said.
    """
    return [
        *hazard_entries(drawn),
        *_strays(drawn),
        *_waits(drawn, told_calls),
        *_dropped(drawn.trace.metadata),
    ]


def _entry(kind: str, head: str, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": kind, "head": head, "count": len(pieces), "pieces": pieces}


def _piece(span: list[int], text: str, fix: str) -> dict[str, Any]:
    return {"late": span, "since": span[1], "text": text, "fix": fix}


def hazard_entries(drawn: Drawn) -> Iterator[dict[str, Any]]:
    """Yield the hazards among them; one between two cards is told of on both, by a note each."""
    groups: dict[str, list[Note]] = {}
    for note in drawn.trace.notes:
        if note.kind is NoteKind.HAZARD:
            groups.setdefault(note.text, []).append(note)
    for text, notes in [*groups.items()][:LISTED_MARKS]:
        pieces = [_piece(drawn.noted(note), text, note.fix) for note in notes]
        streams = " and ".join(dict.fromkeys(display_name(note.stream, _NAME_WIDTH) for note in notes if note.stream))
        yield _entry("hazard", f"Hazard: {text.partition(':')[0]}{streams and f' on {streams}'}", pieces)


def _strays(drawn: Drawn) -> Iterator[dict[str, Any]]:
    trace = drawn.trace
    found = strays(trace)
    if not found:
        return
    key = np.stack((found.name, found.ran_on, found.selected))
    for group in found.groups[:LISTED_MARKS]:
        lanes = [lane.name for lane in found.lanes]
        same = np.array([[found.names.index(group.name)], [lanes.index(group.ran_on)], [lanes.index(group.selected)]])
        own = found.row[(key == same).all(axis=0)]
        own = own[np.argsort(trace.start_ns[own] - trace.end_ns[own], kind="stable")][:LISTED_PLACES]
        name, ran_on, selected = (display_name(text, _NAME_WIDTH) for text in (group.name, group.ran_on, group.selected))
        text = (
            f"{name} ran on {ran_on}; its range had selected {selected}. {count_text(group.span_count, 'time')}, "
            f"{format_ns(group.total_ns)} in all."
        )
        pieces = [_piece(drawn.span(row), text, group.fix) for row in own.tolist()]
        yield _entry("stray", f"Stray: {name} on {ran_on} instead of {selected}", pieces)


def _waits(drawn: Drawn, told_calls: Set[int]) -> Iterator[dict[str, Any]]:
    """Mark calls that blocked the host before it launched more: one after the last launch holds nothing up."""
    trace = drawn.trace
    found = host_waits(trace)
    if not found:
        return
    last_launch_ns = int(trace.queued_ns[is_work(trace)].max(initial=np.iinfo(np.int64).min))
    told = {(int(trace.name[row]), int(trace.lane[row])) for row in told_calls if row >= 0}
    is_long = found.duration_ns >= max(1, LEAST_WAIT_SHARE * found.captured_ns)
    is_shown = is_long & (found.start_ns + found.duration_ns <= last_launch_ns)
    for group in found.groups[:LISTED_MARKS]:
        name, lane = found.names.index(group.call), [lane.name for lane in found.lanes].index(group.thread)
        own = np.flatnonzero(is_shown & (found.name == name) & (found.lane == lane))
        if not len(own) or (name, lane) in told:
            continue
        own = own[np.argsort(-found.duration_ns[own], kind="stable")]
        call, thread = display_name(group.call, _NAME_WIDTH), display_name(group.thread, _NAME_WIDTH)
        pieces = []
        for place in own[:LISTED_PLACES]:
            awaited, took = int(found.waited_name[place]), format_ns(int(found.duration_ns[place]))
            until = f" until {display_name(found.names[awaited], _NAME_WIDTH)} had ended" if awaited >= 0 else ""
            text = f"{thread} was blocked in {call} for {took}{until}, and launched more only then."
            pieces.append(_piece(drawn.span(int(found.row[place])), text, _wait_fix(group.call)))
        total_ns = int(found.duration_ns[own].sum())
        times = f", {len(own):,} times" if len(own) > 1 else ""
        yield _entry("wait", f"Host wait: {call}: {format_ns(total_ns)}{times}", pieces)


def _wait_fix(call: str) -> str:
    word = call.lower()
    if "memcpy" in word:
        return "Let the host's side of the copy be pinned memory: lab.memory.pinned_empty(shape, dtype)."
    if "free" in word:
        return "Free after the loop, or allocate from a pool: lab.xp arrays."
    return "Launch what follows first, then wait; to order streams, let one wait for the other: lab.stream('b').wait('a')."


def _dropped(meta: TraceMetadata) -> Iterator[dict[str, Any]]:
    if not meta.dropped_spans:
        return
    text = f"{dropped_text(meta)}. They are not in the picture; when they ran is not known, but the oldest make room first."
    fix = "Record less at once, or keep more: gpustreamlab.Session(ring_size=...), or Session(spool='run.gsl') for all."
    yield _entry("dropped", f"Dropped: {count_text(meta.dropped_spans, 'span')}", [_piece([_NO_LANE, 0, 0, -1], text, fix)])
