"""Where the time of the whole run went: how many streams worked at once, and why no more did, as one bar and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import (
    Basis,
    Explanation,
    basis_of,
    counted_rows,
    format_ns,
    format_share,
    host_waits,
    idle,
    sweep,
    turns_of,
    used_stream_count,
)
from gpustreamlab.model import NO_COMMON_TIME, Trace
from gpustreamlab.typing import BoolArray, CaptureTier, IdleKind, Int64Array, SpanKind

LISTED_PLACES = 200  # How many places of a piece a click lights, the longest first
LEAST_SHARE = 0.005  # Of the run: shorter pieces are one, where there are several
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
    """Share out the time from the first to the last work; empty where nothing ran, or its times cannot be compared."""
    times_ns, counts = sweep(trace, basis.counted).steps.steps
    if len(times_ns) < 2 or NO_COMMON_TIME in trace.metadata.missing:
        return ()
    # Many changes are among more streams than are told apart: without them few stretches are left.
    level = np.minimum(counts, MOST_TOGETHER)
    changes = np.flatnonzero(np.append(True, level[1:] != level[:-1]))
    stretches = _Stretches(times_ns[changes[:-1]], times_ns[changes[1:]], level[changes[:-1]])
    is_few, has_reasons = used_stream_count(trace) < 2, basis.tier is not CaptureTier.RANGES
    alone = "one stream" if is_few else "only one had work" if has_reasons else "one alone"
    is_low = stretches.level < (1 if is_few else 2)
    parts = [(stretches, np.zeros(len(is_low), np.int64))]
    if has_reasons:
        high = stretches.among(~is_low)
        low, reason = _reasons(trace, stretches.among(is_low), high.among(high.level > 1), basis.counted)
        parts = [(high, np.zeros(len(high.level), np.int64)), (low, reason)]
    word = "queued or running" if basis.tier is CaptureTier.RANGES else "at once"
    most = int(counts.max())
    pieces = []
    for own, reasons in parts:
        keys = own.level * len(REASONS) + reasons
        for key in np.flatnonzero(np.bincount(keys.astype(np.intp, copy=False))).tolist():
            streams, code = divmod(key, len(REASONS))
            spells = _spells(own.among(keys == key))
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
            fill = fill if streams or code else NOTHING
            piece = Piece(
                streams=streams,
                label=name,
                about=about,
                fill=fill,
                total_ns=int(lasts_ns.sum()),
                places_ns=spells[longest],
            )
            pieces.append((-streams, code, piece))
    return _without_specks([piece for *_, piece in sorted(pieces, key=lambda one: one[:2])])


def _without_specks(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Return the pieces with all that nobody could see in the bar as one, which comes last."""
    least_ns = LEAST_SHARE * sum(piece.total_ns for piece in pieces)
    small = [piece for piece in pieces if piece.total_ns < least_ns]
    if len(small) < 2:
        return tuple(pieces)
    places_ns = np.concatenate([piece.places_ns for piece in small])
    longest = np.argsort(places_ns[:, 0] - places_ns[:, 1], kind="stable")[:LISTED_PLACES]
    rest = Piece(
        streams=1,
        label="the rest",
        about=", ".join(f"{piece.label} {format_ns(piece.total_ns)}" for piece in small),
        fill=REASONS[_NONE][1],
        total_ns=sum(piece.total_ns for piece in small),
        places_ns=places_ns[longest],
    )
    return (*(piece for piece in pieces if piece.total_ns >= least_ns), rest)


class _Stretches(NamedTuple):
    """Times in which so many streams worked; int64 arrays of shape (n,), in order of time."""

    begin_ns: Int64Array
    end_ns: Int64Array
    level: Int64Array

    def among(self, chosen: BoolArray) -> _Stretches:
        return _Stretches(*(column[chosen] for column in self))

    def cut(self, times_ns: Int64Array) -> _Stretches:
        """Return them cut at all times within, which are in order."""
        first, last = np.searchsorted(times_ns, self.begin_ns, side="right"), np.searchsorted(times_ns, self.end_ns)
        count = 1 + np.maximum(last - first, 0)
        turn = turns_of(count)
        count = count.astype(np.intp, copy=False)
        begin_ns, end_ns, level = (np.repeat(column, count) for column in self)
        inside = turn > 0
        begin_ns[inside] = times_ns[(np.repeat(first, count) + turn - 1)[inside]]
        end_ns[:-1][inside[1:]] = begin_ns[1:][inside[1:]]
        return _Stretches(begin_ns, end_ns, level)


def _spells(own: _Stretches) -> Int64Array:
    """Return from when to when stretches last, those that touch as one; shape (n, 2)."""
    opens = np.append(True, own.begin_ns[1:] > own.end_ns[:-1])
    return np.stack((own.begin_ns[opens], own.end_ns[np.append(opens[1:], True)]), axis=1)


def _reasons(
    trace: Trace, low: _Stretches, together: _Stretches, counted: tuple[SpanKind, ...]
) -> tuple[_Stretches, Int64Array]:
    """Return stretches cut where work began, and why no more ran in each: by the gap in front of the work that began next."""
    rows = np.flatnonzero(counted_rows(trace, counted))
    by_start = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    begins_ns = trace.start_ns[by_start]
    low = low.cut(np.unique(begins_ns))
    begin_ns, end_ns, level = low
    gaps = idle(trace)
    order = np.argsort(gaps.start_ns, kind="stable")
    # A gap that was the host's and then an event's is two: the second counts from its start on.
    first, last = np.full(len(trace), -1), np.full(len(trace), -1)
    since_ns = np.zeros(len(trace), np.int64)
    first[gaps.row[order[::-1]]] = gaps.kind[order[::-1]]
    last[gaps.row[order]], since_ns[gaps.row[order]] = gaps.kind[order], gaps.start_ns[order]
    place = np.searchsorted(begins_ns, end_ns)
    coming = by_start[np.minimum(place, len(by_start) - 1)]
    kind = np.where(place == len(by_start), -1, np.where(begin_ns >= since_ns[coming], last[coming], first[coming]))
    of_kind = {IdleKind.HOST: _LATE, IdleKind.EVENT: _DATA, IdleKind.LAUNCH: _LATE, IdleKind.OTHER: _NONE}
    found = np.array([*(of_kind[one] for one in _KINDS), _NONE], np.int64)[kind]
    found[(found == _LATE) & _blocked(trace, begin_ns, end_ns)] = _HOST
    copy_ns, copies = sweep(trace, (SpanKind.COPY,)).steps.steps
    is_alone = level == 1
    is_copy = is_alone & (np.append(0, copies)[np.searchsorted(copy_ns, begin_ns, side="right")] == 1)
    binds = is_alone & ((found == _DATA) | (found == _NONE) & _is_awaited(trace, by_start, (begin_ns + end_ns) // 2))
    found[binds] = np.where(is_copy[binds], _COPIES, _KERNELS)
    holds = is_alone & (found != _LATE) & (end_ns < trace.queued_ns[by_start].max()) & _blocked(trace, begin_ns, end_ns)
    found[holds] = _HOST  # it has yet to launch what could run beside
    if len(together.level):
        together_ns = int((together.end_ns - together.begin_ns).sum())
        calm = is_alone & ((found != _LATE) & (found != _HOST))
        before, behind = begin_ns < together.begin_ns[0], begin_ns > together.begin_ns[-1]
        for chosen, reason in ((calm & before, _FILLS), (calm & behind, _DRAINS)):
            if int((end_ns - begin_ns)[chosen].sum()) < together_ns:  # else it is no pipeline
                found[chosen] = reason
    for change in trace.layouts:
        found[(level == 0) & (begin_ns <= change.time_ns) & (change.time_ns <= end_ns)] = _ANEW
    return low, found


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
    if len(found.streams) < 2 and not (forecast is not None and forecast.change_count):
        nothing_ns = sum(piece.total_ns for piece in pieces if not piece.streams)
        return f"{took} on one stream; nothing ran for {format_share(nothing_ns / max(took_ns, 1))} of it."
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
