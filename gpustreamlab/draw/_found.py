"""What is marked in the picture beside the causes of late work: hazards, strays, waits of the host, and what was dropped."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from gpustreamlab.analysis import count_text, dropped_text, format_ns, host_waits, is_work, strays
from gpustreamlab.model import Note, Trace, TraceMetadata, display_name
from gpustreamlab.typing import NoteKind

LISTED_MARKS = 20
"""Of how many groups of a sort a page tells, those first that took longest."""
LISTED_PLACES = 200
"""How many places of a group are marked, the longest first."""
LEAST_WAIT_SHARE = 0.01
"""From which share of the time on that calls were seen a wait of the host is marked."""
_NAME_WIDTH = 32
_NO_LANE = -1


def found_entries(trace: Trace, zero_ns: int, told_calls: Set[int]) -> list[dict[str, Any]]:
    """Return what is found in a trace, in the form of the findings of `why_tables`, each with its kind.

    Parameters
    ----------
    trace
        The spans.
    zero_ns
        The trace's time from which times are counted.
    told_calls
        Rows of calls that findings tell of: of the same call on the same thread nothing more is said.
    """
    return [
        *hazard_entries(trace, zero_ns),
        *_strays(trace, zero_ns),
        *_waits(trace, zero_ns, told_calls),
        *_dropped(trace.metadata),
    ]


def _entry(kind: str, head: str, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": kind, "head": head, "count": len(pieces), "pieces": pieces}


def _piece(lane: int, start_ns: int, end_ns: int, text: str, fix: str) -> dict[str, Any]:
    return {"late": [lane, start_ns, end_ns], "since": start_ns, "text": text, "fix": fix}


def hazard_entries(trace: Trace, zero_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the hazards among them; one between two cards is told of on both, by a note each."""
    code = {lane.name: place for place, lane in enumerate(trace.lanes)}
    groups: dict[str, list[Note]] = {}
    for note in trace.notes:
        if note.kind is NoteKind.HAZARD:
            groups.setdefault(note.text, []).append(note)
    for text, notes in [*groups.items()][:LISTED_MARKS]:
        pieces = []
        for note in notes:
            end_ns = note.time_ns if note.end_ns is None else note.end_ns
            lane = _NO_LANE if note.stream is None else code.get(note.stream, _NO_LANE)
            pieces.append(_piece(lane, note.time_ns - zero_ns, end_ns - zero_ns, text, note.fix))
        streams = " and ".join(dict.fromkeys(display_name(note.stream, _NAME_WIDTH) for note in notes if note.stream))
        yield _entry("hazard", f"Hazard: {text.partition(':')[0]}{streams and f' on {streams}'}", pieces)


def _strays(trace: Trace, zero_ns: int) -> Iterator[dict[str, Any]]:
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
        pieces = [
            _piece(int(trace.lane[row]), int(trace.start_ns[row]) - zero_ns, int(trace.end_ns[row]) - zero_ns, text, group.fix)
            for row in own
        ]
        yield _entry("stray", f"Stray: {name} on {ran_on} instead of {selected}", pieces)


def _waits(trace: Trace, zero_ns: int, told_calls: Set[int]) -> Iterator[dict[str, Any]]:
    """Mark calls that blocked the host before it launched more: one after the last launch holds nothing up."""
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
            start_ns, took_ns = int(found.start_ns[place]) - zero_ns, int(found.duration_ns[place])
            awaited = int(found.waited_name[place])
            until = f" until {display_name(found.names[awaited], _NAME_WIDTH)} had ended" if awaited >= 0 else ""
            text = f"{thread} was blocked in {call} for {format_ns(took_ns)}{until}, and launched more only then."
            pieces.append(_piece(lane, start_ns, start_ns + took_ns, text, _wait_fix(group.call)))
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
    yield _entry("dropped", f"Dropped: {count_text(meta.dropped_spans, 'span')}", [_piece(_NO_LANE, 0, 0, text, fix)])
