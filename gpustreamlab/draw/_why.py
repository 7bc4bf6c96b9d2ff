"""The findings of a page, one for each thing to change: in plain words, with the line to copy and all places; and each gap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis import (
    CAUSE_TITLES,
    IDLE_TEXTS,
    LISTED_FINDINGS,
    NEEDS,
    Explanation,
    Finding,
    code_lines,
    count_text,
    dropped_text,
    explain,
    finding_texts,
    format_ns,
    format_share,
    host_waits,
    idle,
    is_work,
    strays,
    wait_needs,
)
from gpustreamlab.draw._went import went_entry
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Note, Trace, TraceMetadata, display_name
from gpustreamlab.typing import Cause, Certainty, Int64Array, LaneKind, Need, NoteKind

EXPLAINED_SPANS = 1_000_000  # Of longer traces a page says what to type instead: so many take 0.4 to 1 s
LISTED_PIECES = 200  # How many pieces of a finding a page has, those first that waited longest
ON_TIME = (Cause.OTHER_STREAM, Cause.SLOWED_DOWN, Cause.OTHER_RANK, Cause.NOT_OFFERED)
"""Causes that concern work while it ran, not why its stream was idle before."""
LISTED_NEEDS = 2_000  # Of how many waits a page says whether data need them, those that are needed first
LISTED_GAPS = 2_000  # Of how many gaps a page says what `trace.idle()` says, the longest first

SHARED_OUT = "layout: the SMs were shared out anew, which waits until all work has ended"
"""Text of a gap in which that was done, whatever kind it is."""


def why_tables(trace: Trace, zero_ns: int, number: Int64Array | None = None) -> dict[str, Any]:
    """Explain a trace for the viewer, as a JSON object; pieces and gaps refer to spans by lane, times and number."""
    drawn = Drawn(trace, zero_ns, np.arange(len(trace)) if number is None else number)
    if len(trace) > EXPLAINED_SPANS:
        asked = f"More than {EXPLAINED_SPANS:,} spans are not explained in a page: type trace.explain()."
        return _unexplained(trace, zero_ns, found_entries(drawn, frozenset()), asked) | {
            "went": went_entry(trace, zero_ns, None)
        }
    if trace.metadata.is_predicted:  # what held work up is not in it: each gap would have an unknown cause
        return _unexplained(trace, zero_ns, [], "Predicted times are not explained. Run it, and ask the trace of the run.")
    try:
        parts = [_Part("", trace, explain(trace), np.arange(len(trace)))]
    except OptionError:  # several processes on several GPUs: their waits for each other are not in the trace
        parts = [*_each_gpu(trace)]
    ranked = [(part, one) for part in parts for one in part.found.findings]
    if len(parts) > 1:
        ranked.sort(key=lambda pair: -pair[1].saves_ns)
    told = ranked[:LISTED_FINDINGS]
    rows = ((part, row) for part, one in told for row in one.pieces.call_row[:LISTED_PIECES].tolist() if row >= 0)
    calls = {int(part.rows[row]) for part, row in rows}
    entries = _unexplained(trace, zero_ns, found_entries(drawn, calls), "") | {
        "findings": grouped_by_fix(_finding_entry(drawn, part, finding) for part, finding in told),
        "gaps": _gap_entries(trace, zero_ns),
        "needs": need_entries(drawn),
        "went": went_entry(trace, zero_ns, parts[0].found if len(parts) == 1 else None),
        "explained": True,
    }
    more = len(ranked) - len(told)
    return entries | (_told_of_one(parts[0].found, more) if len(parts) == 1 else _told_of_each(parts, more))


def why_went(trace: Trace, zero_ns: int) -> dict[str, Any]:
    """Return of `why_tables` where the time went alone, for a picture."""
    is_asked = 0 < len(trace) <= EXPLAINED_SPANS and not trace.metadata.is_predicted
    try:
        found = explain(trace) if is_asked else None
    except OptionError:  # several processes on several GPUs
        found = None
    return went_entry(trace, zero_ns, found)


@dataclass(frozen=True)
class _Part:
    """A part that has an explanation of its own: the whole trace, or one of its GPUs."""

    label: str
    trace: Trace
    found: Explanation
    rows: Int64Array  # Which rows of the whole trace its rows are; shape (n_spans,), int64


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
        "bound": [found.maker.words(f"Bound by the host: {one}") for one in found.host_bound[:LISTED_FINDINGS]],
    }


def _told_of_each(parts: Sequence[_Part], more: int) -> dict[str, Any]:
    """Say of each GPU what overlapped on it, those first where most is to be gained."""
    lines = [f"{part.label}{part.found.headline}" for part in sorted(parts, key=lambda part: -part.found.gain_ns)]
    bound = [part.found.maker.words(f"{part.label}bound by the host: {one}") for part in parts for one in part.found.host_bound]
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
    """Return what is told where nothing explains why work did not overlap."""
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
    texts = [(finding.text, finding.fix)]
    if count > 1:
        first, *others = (finding_texts(finding.code, part.trace, finding.pieces, place) for place in range(count))
        # What is said of all of them, as one change mends them or none does, holds for each.
        own_text, own_fix = finding.other is not None or finding.step < 0, first[1] == finding.fix
        texts += [(text if own_text else finding.text, fix if own_fix else finding.fix) for text, fix in others]
    pieces = [_piece_entry(drawn, part, finding, place, words) for place, words in enumerate(texts)]
    likely = f", {finding.certainty}" if finding.certainty in (Certainty.LIKELY, Certainty.MEASURED) else ""
    return {
        "head": f"{part.label}{CAUSE_TITLES[finding.code]}",
        "code": f"{finding.code}{likely}",
        "gain": _gain_text(part.found, finding),
        "lines": code_lines(finding.fix),
        "folds": not (finding.saves_ns or (finding.bound_ns and finding.code is not Cause.UNKNOWN)),
        "count": finding.piece_count,
        "pieces": pieces,
    }


def _gain_text(found: Explanation, finding: Finding) -> str:
    """Say in a few words what a change saves; one change after the other."""
    if finding.saves_ns:
        wall_ns = found.active_ns if found.forecast is None else found.forecast.measured_ns
        after = "after that " if finding.step > 0 else ""
        return f"{after}saves {format_ns(finding.saves_ns)} ({format_share(finding.saves_ns / max(1, wall_ns))})"
    return f"at most {format_ns(finding.bound_ns)}, not promised" if finding.bound_ns else "saves nothing"


def _piece_entry(drawn: Drawn, part: _Part, finding: Finding, place: int, words: tuple[str, str]) -> dict[str, Any]:
    row, other, call, since_ns, _, start_ns, *_ = (int(column[place]) for column in finding.pieces)
    told = (("late", row), ("other", other), ("call", call))
    spans = {name: drawn.span(int(part.rows[at])) for name, at in told if at >= 0}
    since = (start_ns if finding.code in ON_TIME else since_ns) - drawn.zero_ns
    return spans | {"since": since, "text": words[0], "fix": words[1]}


def _gap_entries(trace: Trace, zero_ns: int) -> list[list[int]]:
    """Return lane, end and word of the longest gaps; of one that is two, first the host's and then an event's, the longer."""
    gaps = idle(trace)
    most = min(2 * LISTED_GAPS, len(gaps.row))  # no gap is more than two
    longest = np.sort(np.argpartition(-gaps.duration_ns, most - 1)[:most]) if most else np.empty(0, np.int64)
    longest = longest[np.argsort(-gaps.duration_ns[longest], kind="stable")]
    _, first = np.unique(gaps.row[longest], return_index=True)
    longest = longest[np.sort(first)[:LISTED_GAPS]]
    row, since_ns = gaps.row[longest], gaps.start_ns[longest]
    changes_ns = np.array(sorted(change.time_ns for change in trace.layouts), np.int64)
    until = np.searchsorted(changes_ns, trace.start_ns[row], side="right")
    is_anew = until > np.searchsorted(changes_ns, since_ns, side="left")
    word = np.where(is_anew, len(IDLE_TEXTS), gaps.kind[longest])
    entries: list[list[int]] = np.stack((gaps.lane[longest], trace.start_ns[row] - zero_ns, word), axis=1).tolist()
    return entries


_NEED_WORDS = {Need.NEEDED: "data need this wait", Need.NOT_NEEDED: "no data need this wait"}


def need_entries(drawn: Drawn) -> dict[str, str] | None:
    """Write of waits whether data need them, by the numbers of their spans; others are not known. None without accesses."""
    trace, number = drawn.trace, drawn.number
    if not len(trace.accesses):
        return None
    found, edges = wait_needs(trace), trace.edges
    buffers: dict[int, list[str]] = {}
    for edge, buffer in zip(found.edge.tolist(), found.buffer.tolist(), strict=True):
        buffers.setdefault(edge, []).append(str(buffer))
    told = [np.flatnonzero(found.need == NEEDS.index(need)) for need in _NEED_WORDS]
    entries = {}
    for edge in np.concatenate(told)[:LISTED_NEEDS].tolist():
        own, words = buffers.get(edge, []), _NEED_WORDS[NEEDS[found.need[edge]]]
        of = f" (buffer{'s' * (len(own) > 1)} {', '.join(own[:4])}{', …' * (len(own) > 4)})" if own else ""
        entries[f"{number[edges.source[edge]]} {number[edges.target[edge]]}"] = f"{words}{of}"
    return entries


LISTED_MARKS = 20  # Groups of a sort that a page lists, those first that took longest
LISTED_PLACES = 200  # How many places of a group are marked, the longest first
LEAST_WAIT_SHARE = 0.01  # From which share of the time on that calls were seen a wait of the host is marked
_NAME_WIDTH = 32
_NO_LANE = -1


class Drawn(NamedTuple):
    """A trace as a page shows it."""

    trace: Trace  # The spans
    zero_ns: int  # The trace's time from which the page counts
    number: Int64Array  # What the page calls each span: the number that the recorder gave it, or its row; shape (n_spans,)

    def span(self, row: int) -> list[int]:
        """Return the key of a span in a page: lane, start, end and number."""
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
    """Return what is found in a trace, in the form of the findings of `why_tables`, each with its kind."""
    return [
        *hazard_entries(drawn),
        *_strays(drawn),
        *_waits(drawn, told_calls),
        *_dropped(drawn.trace.metadata),
    ]


def _entry(kind: str, head: str, pieces: list[dict[str, Any]]) -> dict[str, Any]:
    entry = {"kind": kind, "head": head, "code": "", "gain": "", "count": len(pieces), "pieces": pieces, "folds": False}
    return entry | {"lines": code_lines(pieces[0]["fix"])}


def _piece(span: list[int], text: str, fix: str) -> dict[str, Any]:
    return {"late": span, "since": span[1], "text": text, "fix": fix}


def hazard_entries(drawn: Drawn) -> Iterator[dict[str, Any]]:
    """Yield the hazards among them, one entry for each missing order; one between two cards is on both, by a note each."""
    groups: dict[str, list[Note]] = {}
    for note in drawn.trace.notes:
        if note.kind is NoteKind.HAZARD:
            groups.setdefault(_missing_order(note)[0], []).append(note)
    for line, notes in [*groups.items()][:LISTED_MARKS]:
        # Several arrays may be at one place: one wait there mends them all.
        places = {(note.time_ns, note.end_ns, note.stream, _missing_order(note)[1]): note for note in reversed(notes)}
        pieces = [_hazard_piece(drawn, note) for note in reversed(places.values())]
        kinds = ", ".join(dict.fromkeys(note.text.partition(":")[0] for note in notes))
        entry = _entry("hazard", _hazard_title(line, kinds), pieces)
        yield entry | {"code": kinds, "gain": "results may be wrong", "lines": [line] if line else []}


def missing_order_count(trace: Trace) -> int:
    """Count the lines that would mend all hazards of a trace: there is one entry for each."""
    return len({_missing_order(note)[0] for note in trace.notes if note.kind is NoteKind.HAZARD})


def _missing_order(note: Note) -> tuple[str, str]:
    """Return the line that a hazard misses, and where it belongs; nothing and all of its advice where that is none of ours."""
    told = _PUT.fullmatch(note.fix)
    return (told["line"], told["where"]) if told else ("", note.fix)


def _hazard_title(line: str, kinds: str) -> str:
    waits = _WAITS.search(line)
    if waits:
        late, early = (display_name(waits[side], _NAME_WIDTH) for side in ("late", "early"))
        return f"A missing wait: {late} does not wait for {early}"
    if "use-after-free" in kinds:
        return "Memory goes while it is still in use"
    return "A missing wait: nothing orders what shares memory"


def _hazard_piece(drawn: Drawn, note: Note) -> dict[str, Any]:
    line, where = _missing_order(note)
    told = _SIDES.fullmatch(note.text)
    text = f"{told['late']} may run before {told['early']} has ended: both use {told['array']}." if told else note.text
    return _piece(drawn.noted(note), text, f"Put it {where}." if line else note.fix)


_PUT = re.compile(r"Put (?P<line>.+?\)) (?P<where>(?:before|after|where) .+)\.", re.DOTALL)
_WAITS = re.compile(r"stream\('(?P<late>[^']*)'\)\.wait\(\w+\.stream\('(?P<early>[^']*)'\)\)")
_SIDES = re.compile(
    r"[^:]+: (?P<array>.+), [\d,]+ times?: first .+?: (?P<early>.+); then(?:, unordered,)? .+?: (?P<late>.+)", re.DOTALL
)


def grouped_by_fix(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries of one title that the same line mends, or the same words, as one: with the pieces of all."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry in entries:
        own = groups.setdefault((entry["head"], *(entry["lines"] or [entry["pieces"][0]["fix"]])), entry)
        if own is not entry:
            own["count"] += entry["count"]
            own["pieces"] = [*own["pieces"], *entry["pieces"]][:LISTED_PIECES]
            own["folds"] = own["folds"] and entry["folds"]
    return list(groups.values())


LISTED_LINES = 3  # How many findings a picture lists that nobody can click


def finding_lines(why: Mapping[str, Any]) -> list[str]:
    """Write the first findings of `why_tables` as plain text, each with its gain and what to type."""
    faults, others = ([one for one in why["marks"] if (one["kind"] in FAULTS) is is_fault] for is_fault in (True, False))
    told = [entry for entry in (*faults, *why["findings"], *others) if not entry["folds"]]
    lines = []
    for number, entry in enumerate(told[:LISTED_LINES], 1):
        facts = ", ".join(filter(None, [entry["gain"], f"{entry['count']:,} times" if entry["count"] > 1 else ""]))
        does = "; ".join(entry["lines"][:2]) or entry["pieces"][0]["fix"]
        lines.append(f"{number}. {entry['head']}{f' ({facts})' if facts else ''}: {does}")
    return lines + ([f"… and {len(told) - LISTED_LINES:,} more"] if len(told) > LISTED_LINES else [])


FAULTS = ("hazard", "stray")
"""Kinds of findings where the program is wrong, not only slow: they come first."""


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
        yield _entry("stray", f"Ran astray: {name} on {ran_on} instead of {selected}", pieces) | {"code": "stray"}


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
        entry = _entry("wait", "The host waited before it launched more", pieces)
        yield entry | {"code": call, "gain": f"blocked for {format_ns(total_ns)}", "folds": True}


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
    yield _entry("dropped", f"{count_text(meta.dropped_spans, 'span')} dropped", [_piece([_NO_LANE, 0, 0, -1], text, fix)])
