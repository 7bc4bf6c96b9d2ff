"""What a page tells about why work did not overlap: `trace.explain()` in its own words, where each piece is, and each gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustreamlab.analysis import IDLE_TEXTS, LISTED_FINDINGS, Explanation, Finding, explain, finding_texts, idle
from gpustreamlab.draw._found import Drawn, found_entries, hazard_entries
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Trace
from gpustreamlab.typing import Cause, Certainty, Int64Array, LaneKind

EXPLAINED_SPANS = 1_000_000
"""Of longer traces a page says what to type instead: so many take 0.5 to 2 s."""
LISTED_PIECES = 200
"""How many pieces of a finding a page has, those first that waited longest."""
ON_TIME = (Cause.OTHER_STREAM, Cause.SLOWED_DOWN, Cause.NOT_OFFERED)
"""Causes that tell of work while it ran, not of why its stream was idle before."""
LISTED_GAPS = 2_000
"""Of how many gaps a page says what `trace.idle()` says, the longest first."""

SHARED_OUT = "layout: the SMs were shared out anew, which waits until all work has ended"
"""What is said of a gap in which that was done, whatever kind it is."""


def why_tables(trace: Trace, zero_ns: int, number: Int64Array | None = None) -> dict[str, Any]:
    """Explain a trace for the viewer, as a JSON object; pieces and gaps refer to spans by lane, times and number.

    Parameters
    ----------
    trace
        The spans.
    zero_ns
        The trace's time from which times are counted.
    number
        What the page calls each span, shape (n_spans,); None where that is its row.
    """
    drawn = Drawn(trace, zero_ns, np.arange(len(trace)) if number is None else number)
    if len(trace) > EXPLAINED_SPANS:
        asked = f"More than {EXPLAINED_SPANS:,} spans are not explained in a page: type trace.explain()."
        return _unexplained(trace, zero_ns, found_entries(drawn, frozenset()), asked)
    try:
        parts = [_Part("", trace, explain(trace), np.arange(len(trace)))]
    except OptionError:  # several processes on several GPUs: the trace does not tell how they waited for each other
        parts = [*_each_gpu(trace)]
    ranked = [(part, one) for part in parts for one in part.found.findings]
    if len(parts) > 1:
        ranked.sort(key=lambda pair: -pair[1].saves_ns)
    told = ranked[:LISTED_FINDINGS]
    calls = {int(row) for part, one in told for row in np.append(part.rows, -1)[one.pieces.call_row[:LISTED_PIECES]]}
    entries = _unexplained(trace, zero_ns, found_entries(drawn, calls), "") | {
        "findings": [_finding_entry(drawn, part, finding) for part, finding in told],
        "gaps": _gap_entries(trace, zero_ns),
        "explained": True,
    }
    more = len(ranked) - len(told)
    return entries | (_told_of_one(parts[0].found, more) if len(parts) == 1 else _told_of_each(parts, more))


@dataclass(frozen=True)
class _Part:
    """What is explained for itself: the whole trace, or one of its GPUs."""

    label: str
    trace: Trace
    found: Explanation
    rows: Int64Array
    """Which rows of the whole trace its rows are; shape (n_spans,), int64."""


def _each_gpu(trace: Trace) -> Iterator[_Part]:
    for device in sorted({lane.device for lane in trace.lanes if lane.kind is LaneKind.STREAM}):
        part = trace.where(device=device)
        is_own = np.array([lane in part.lanes for lane in trace.lanes], bool)
        yield _Part(f"GPU {device}: ", part, explain(part), np.flatnonzero(is_own[trace.lane]))


def _told_of_one(found: Explanation, more: int) -> dict[str, Any]:
    return {
        "line": found.headline,
        "notes": list(found.notes) if found or found.host_bound or len(found.streams) > 1 else [],
        "more": more,
        "bound": [f"Bound by the host: {one}" for one in found.host_bound[:LISTED_FINDINGS]],
    }


def _told_of_each(parts: Sequence[_Part], more: int) -> dict[str, Any]:
    """Say of each GPU what overlapped on it, those first where most is to be gained."""
    lines = [f"{part.label}{part.found.headline}" for part in sorted(parts, key=lambda part: -part.found.gain_ns)]
    bound = [f"{part.label}bound by the host: {one}" for part in parts for one in part.found.host_bound]
    notes = [f"… {more:,} more: see trace.where(device=0).explain().findings, and so for each GPU."] if more else []
    notes += [f"… {len(lines) - LISTED_FINDINGS:,} more GPUs."] if len(lines) > LISTED_FINDINGS else []
    return {
        "line": "Each GPU for itself: the trace does not tell how the processes waited for each other.",
        "notes": [*notes, *dict.fromkeys(note for part in parts for note in part.found.notes)],
        "bound": [*lines[:LISTED_FINDINGS], *bound[:LISTED_FINDINGS]],
    }


def hazard_tables(trace: Trace, zero_ns: int, number: Int64Array) -> dict[str, Any]:
    """Return of `why_tables` the hazards alone, for a page that did not ask; empty where none were found."""
    marks = [*hazard_entries(Drawn(trace, zero_ns, number))]
    line = "Found while it ran. Ask again for why work did not overlap, too."
    return _unexplained(trace, zero_ns, marks, line) | {"is_partial": True} if marks else {}


def _unexplained(trace: Trace, zero_ns: int, marks: list[dict[str, Any]], line: str) -> dict[str, Any]:
    """Return what a page is told where nothing explains why work did not overlap."""
    return (
        {
            "zero_ns": str(zero_ns),
            "lanes": [[lane.name, lane.kind is LaneKind.HOST] for lane in trace.lanes],
            "gap_words": [*IDLE_TEXTS, SHARED_OUT],
            "line": line,
            "marks": marks,
            "explained": False,
        }
        | {name: [] for name in ("notes", "findings", "bound", "gaps")}
        | {"more": 0}
    )


def _finding_entry(drawn: Drawn, part: _Part, finding: Finding) -> dict[str, Any]:
    count = min(LISTED_PIECES, len(finding.pieces.row))
    pieces = [_piece_entry(drawn, part, finding, place) for place in range(count)]
    return {"head": f"{part.label}{finding.head}", "count": finding.piece_count, "pieces": pieces}


def _piece_entry(drawn: Drawn, part: _Part, finding: Finding, place: int) -> dict[str, Any]:
    trace = part.trace
    row, other, call, since_ns, _, start_ns, waited_ns, certainty = (int(column[place]) for column in finding.pieces)
    text, fix = finding.text, finding.fix
    if place:
        sure, late = tuple(Certainty)[certainty] is Certainty.PROVED, finding.pieces
        text, fix = finding_texts(
            finding.code, trace, late, piece=place, before=other, call=call, waited_ns=waited_ns, is_proved=sure
        )
    told = (("late", row), ("other", other), ("call", call))
    spans = {name: drawn.span(int(part.rows[at])) for name, at in told if at >= 0}
    return spans | {"since": (start_ns if finding.code in ON_TIME else since_ns) - drawn.zero_ns, "text": text, "fix": fix}


def _gap_entries(trace: Trace, zero_ns: int) -> list[list[int]]:
    """Return lane, end and word of the longest gaps; of one that is two, first the host's and then an event's, the longer."""
    gaps = idle(trace)
    longest = np.argsort(-gaps.duration_ns, kind="stable")
    _, first = np.unique(gaps.row[longest], return_index=True)
    longest = longest[np.sort(first)[:LISTED_GAPS]]
    ends_ns = trace.start_ns[gaps.row] - zero_ns
    changes_ns = np.array(sorted(change.time_ns for change in trace.layouts), np.int64)
    until_ns = np.searchsorted(changes_ns, trace.start_ns[gaps.row], side="right")
    is_anew = until_ns > np.searchsorted(changes_ns, gaps.start_ns, side="left")
    word = np.where(is_anew, len(IDLE_TEXTS), gaps.kind)
    entries: list[list[int]] = np.stack((gaps.lane, ends_ns, word), axis=1)[longest].tolist()
    return entries
