"""Where the time of the whole run went: how many streams worked at once, and why no more did, as one bar and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustreamlab.analysis import (
    Basis,
    Explanation,
    basis_of,
    busy_edges,
    count_steps,
    counted_rows,
    format_ns,
    host_waits,
    idle,
    stream_extent,
    used_stream_count,
)
from gpustreamlab.model import NO_COMMON_TIME, Trace
from gpustreamlab.typing import CaptureTier, IdleKind, Int64Array, SpanKind

LISTED_PLACES = 200  # How many places of a piece a click lights, the longest first
MOST_WORDS = 20  # Of the sentence below the bar
MOST_TOGETHER = 3  # So many streams at once, or more, are one piece

REASONS = (
    ("", "#c3c9d0", "nothing more is known"),
    ("copies bound", "#b79adb", "a copy ran alone, and the others waited for it"),
    ("kernels bound", "#7fb3b8", "a kernel ran alone, and the others waited for it"),
    ("waits for data", "#e8b84a", "the next work waited for an event"),
    ("launch late", "#ee8a62", "the next work was launched when its stream was idle already"),
    ("host waits", "#d98aa0", "the host was blocked in a call, and launched nothing"),
    ("repartition", "#9aa7b4", "the SMs were shared out anew"),
    ("pipeline fills", "#a9cfae", "before the first streams worked together"),
    ("pipeline drains", "#8dbbae", "after streams worked together for the last time"),
)
"""Why no more ran: a name, its colour, and what it means."""
_NONE, _COPIES, _KERNELS, _DATA, _LATE, _HOST, _ANEW, _FILLS, _DRAINS = range(len(REASONS))
NOTHING = "none"  # The colour of time in which nothing ran
_TOGETHER_FILLS = {2: "#a8cbff", 3: "#6ea8fe"}  # Two streams at once, and more
_KINDS = tuple(IdleKind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A part of the run's time."""

    streams: int  # How many streams worked at once; the most stands for more, too
    label: str  # What it is, in a few words
    about: str  # What that means
    fill: str  # Its colour
    total_ns: int  # How long it lasted, in all
    places_ns: Int64Array  # From when to when, the longest first; shape (n, 2), int64


def plan_went(trace: Trace, basis: Basis) -> tuple[Piece, ...]:
    """Share out the time from the first start to the last end; empty where nothing ran, or its times cannot be compared."""
    times_ns, counts = count_steps(busy_edges(trace, basis.counted))
    if len(times_ns) < 2 or NO_COMMON_TIME in trace.metadata.missing:
        return ()
    is_few, has_reasons = used_stream_count(trace) < 2, basis.tier is not CaptureTier.RANGES
    alone = "one stream" if is_few else "only one had work" if has_reasons else "one alone"
    counts = np.append(0, counts)  # before the first work, and behind the last, nothing runs
    by_start = lone_ns = np.empty(0, np.int64)
    if has_reasons:  # alone, or with nothing at work, each start of work may have one of its own
        counted = np.flatnonzero(counted_rows(trace, basis.counted))
        by_start = counted[np.argsort(trace.start_ns[counted], kind="stable")]
        begins_ns = trace.start_ns[by_start]
        lone_ns = begins_ns[counts[np.searchsorted(times_ns, begins_ns)] < 2]
    edges_ns = np.sort(np.concatenate((times_ns, lone_ns, stream_extent(trace))), kind="stable")  # merges what is sorted
    edges_ns = edges_ns[np.append(True, edges_ns[1:] > edges_ns[:-1])]
    level = np.minimum(counts[np.searchsorted(times_ns, edges_ns[:-1], side="right")], MOST_TOGETHER)
    reason = np.zeros(len(level), np.int64)
    if has_reasons:
        low = np.flatnonzero(level < (1 if is_few else 2))
        reason[low] = _reasons(trace, edges_ns, level, low, by_start)
    word = "queued or running" if basis.tier is CaptureTier.RANGES else "at once"
    most = int(counts.max())
    pieces = []
    for key in sorted(set((level * len(REASONS) + reason).tolist()), key=lambda key: (-(key // len(REASONS)), key)):
        streams, code = divmod(key, len(REASONS))
        own = np.flatnonzero((level == streams) & (reason == code))
        spells = _spells(edges_ns, own)
        name, fill, about = REASONS[code]
        if streams > 1:
            more = " or more" if streams == MOST_TOGETHER < most else ""
            name, fill, about = f"{streams}{more} streams {word}", _TOGETHER_FILLS[streams], "work overlapped"
        elif not code or streams:
            about = f"one stream alone: {about}" if streams else about
            name = (name or alone) if streams else "nothing ran"
        else:
            name = f"nothing ran: {name}"
        lasts_ns = spells[:, 1] - spells[:, 0]
        longest = np.argsort(-lasts_ns, kind="stable")[:LISTED_PLACES]
        pieces.append(
            Piece(
                streams=streams,
                label=name,
                about=about,
                fill=fill if streams or code else NOTHING,
                total_ns=int(lasts_ns.sum()),
                places_ns=spells[longest],
            )
        )
    return tuple(pieces)


def _spells(edges_ns: Int64Array, own: Int64Array) -> Int64Array:
    """Return from when to when stretches last, those that touch as one; shape (n, 2)."""
    opens = np.append(True, np.diff(own) > 1) if len(own) else np.empty(0, bool)
    return np.stack((edges_ns[own[opens]], edges_ns[own[np.append(opens[1:], True)] + 1]), axis=1)


def _reasons(trace: Trace, edges_ns: Int64Array, level: Int64Array, low: Int64Array, by_start: Int64Array) -> Int64Array:
    """Return why no more ran in stretches: by the gap in front of the work that began next."""
    begin_ns, end_ns = edges_ns[low], edges_ns[low + 1]
    gaps = idle(trace)
    order = np.argsort(gaps.start_ns, kind="stable")
    # A gap that was the host's and then an event's is two: the second counts from its start on.
    first, last = np.full(len(trace), -1), np.full(len(trace), -1)
    since_ns = np.zeros(len(trace), np.int64)
    first[gaps.row[order[::-1]]] = gaps.kind[order[::-1]]
    last[gaps.row[order]], since_ns[gaps.row[order]] = gaps.kind[order], gaps.start_ns[order]
    place = np.searchsorted(trace.start_ns[by_start], end_ns)
    coming = by_start[np.minimum(place, len(by_start) - 1)]
    kind = np.where(place == len(by_start), -1, np.where(begin_ns >= since_ns[coming], last[coming], first[coming]))
    of_kind = {IdleKind.HOST: _LATE, IdleKind.EVENT: _DATA, IdleKind.LAUNCH: _LATE, IdleKind.OTHER: _NONE}
    found = np.array([*(of_kind[one] for one in _KINDS), _NONE], np.int64)[kind]
    found[(found == _LATE) & _blocked(trace, begin_ns, end_ns)] = _HOST
    copy_ns, copies = count_steps(busy_edges(trace, (SpanKind.COPY,)))
    is_copy = (level[low] == 1) & (np.append(0, copies)[np.searchsorted(copy_ns, begin_ns, side="right")] == 1)
    is_alone = level[low] == 1
    binds = is_alone & ((found == _DATA) | (found == _NONE) & _is_awaited(trace, by_start, (begin_ns + end_ns) // 2))
    found[binds] = np.where(is_copy[binds], _COPIES, _KERNELS)
    holds = is_alone & (found != _LATE) & (end_ns < trace.queued_ns[by_start].max()) & _blocked(trace, begin_ns, end_ns)
    found[holds] = _HOST  # it has yet to launch what could run beside
    together = np.flatnonzero(level > 1)
    if len(together):
        together_ns = int((edges_ns[together + 1] - edges_ns[together]).sum())
        calm = (level[low] == 1) & ((found != _LATE) & (found != _HOST))
        for chosen, reason in ((calm & (low < together[0]), _FILLS), (calm & (low > together[-1]), _DRAINS)):
            if int((end_ns - begin_ns)[chosen].sum()) < together_ns:  # else it is no pipeline
                found[chosen] = reason
    found[begin_ns >= trace.end_ns[by_start].max()] = _NONE
    for change in trace.layouts:
        found[(level[low] == 0) & (begin_ns <= change.time_ns) & (change.time_ns <= end_ns)] = _ANEW
    return found


def _is_awaited(trace: Trace, by_start: Int64Array, times_ns: Int64Array) -> Any:
    """Tell at which times launched work had not begun in a stream in which nothing else ran."""
    rows = by_start[np.argsort(trace.lane[by_start], kind="stable")]
    start_ns, is_first = trace.start_ns[rows], np.append(True, np.diff(trace.lane[rows]) != 0)
    before_ns = np.where(is_first, np.iinfo(np.int64).min, np.append(0, trace.end_ns[rows][:-1]))
    since_ns = np.maximum(trace.queued_ns[rows], before_ns)
    waits = since_ns < start_ns
    begun, ended = (np.searchsorted(np.sort(edge[waits]), times_ns, side="right") for edge in (since_ns, start_ns))
    return begun > ended


def _blocked(trace: Trace, begin_ns: Int64Array, end_ns: Int64Array) -> Any:
    """Tell in which stretches a call that blocked the host was under way for most of the time."""
    waits = host_waits(trace)
    edges = np.stack((waits.start_ns, waits.start_ns + waits.duration_ns), axis=1)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    if not len(edges):
        return np.zeros(len(begin_ns), bool)
    reach = np.maximum.accumulate(edges[:, 1])
    middle = (begin_ns + end_ns) // 2
    place = np.searchsorted(edges[:, 0], middle, side="right") - 1
    return (place >= 0) & (reach[np.maximum(place, 0)] > middle)


def went_entry(trace: Trace, zero_ns: int, found: Explanation | None) -> dict[str, Any]:
    """Write the bar and its sentence as the viewer reads them; empty where there is none."""
    basis = basis_of(trace)
    pieces = plan_went(trace, basis) if len(trace) else ()
    if not pieces:
        return {}
    return {
        "pieces": [
            {
                "label": piece.label,
                "about": piece.about,
                "fill": piece.fill,
                "ns": piece.total_ns,
                "places": (piece.places_ns - zero_ns).tolist(),
            }
            for piece in pieces
        ],
        "said": went_text(pieces, found, is_ranges=basis.tier is CaptureTier.RANGES),
    }


def went_text(pieces: Sequence[Piece], found: Explanation | None, *, is_ranges: bool) -> str:
    """Say in at most `MOST_WORDS` words what the run took, could take, and what bounds it, with the figures of `explain`."""
    took_ns = sum(piece.total_ns for piece in pieces)
    if is_ranges:
        return f"{format_ns(took_ns)} in all. Ranges contain waiting: what ran at once in them is not known."
    forecast = found.forecast if found is not None else None
    took = f"Took {format_ns(took_ns)}"
    if found is None or not found.streams:
        return f"{took}."
    if len(found.streams) < 2:
        return f"{took} on one stream: nothing can overlap."
    if forecast is None:
        least = f"; overlap could save at most {format_ns(found.bound_ns)}, not promised"
        return f"{took}{least if found.bound_ns >= found.worth_ns else '; more overlap would save nothing'}."
    floor = f"lower bound: {forecast.floor_of}, {format_ns(forecast.floor_ns)}"
    gain_ns = forecast.gain_ns if forecast.change_count else 0
    if gain_ns:
        best = "at best " if forecast.is_bound else ""
        possible = f"; {best}{format_ns(took_ns - gain_ns)} possible with the fixes listed"
    elif (perhaps_ns := min(max([0, *(one.bound_ns for one in found.findings)]), found.bound_ns)) >= found.worth_ns:
        possible = f"; at most {format_ns(perhaps_ns)} less, not promised"
    else:
        possible = "; no change that was tried makes it shorter"
    said = f"{took}{possible}; {floor}."
    return said if len(said.split()) <= MOST_WORDS else f"{took}{possible}."
