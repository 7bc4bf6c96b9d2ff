"""Hazards in words and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustreamlab.analysis._hazards import NO_LANE
from gpustreamlab.analysis._report import Report, ReportTable
from gpustreamlab.model import display_name
from gpustreamlab.sentences import wrap_sentence
from gpustreamlab.typing import HazardKind, HazardMode

if TYPE_CHECKING:
    from gpustreamlab.analysis._hazards import Hazard, Hazards, HazardSide

LISTED_HAZARDS = 20
"""How many hazards the table lists."""
_NAME_WIDTH = 32
LANE_CLOSED = "lane closed"
"""Work of the first side where scratch was freed with its lane. Source: ``Scratch.ending``."""
_INDENT = "    "


def hazard_line(result: Hazards) -> str:
    """Say the main facts in one line."""
    if result.mode is HazardMode.OFF:
        return 'nothing was watched (hazards="off")'
    seen = f"in {_count(result.access_count, 'access', 'accesses')} of {_count(result.array_count, 'array', 'arrays')}"
    waits = f"; {_count(result.wait_count, 'wait was', 'waits were')} put in" if result.mode is HazardMode.WAIT else ""
    if not len(result):
        return f"No hazard {seen}{waits}"
    kinds = list(dict.fromkeys(hazard.kind.value for hazard in result.hazards))
    return f"{_count(result.hazard_count, 'hazard', 'hazards')} ({', '.join(kinds)}) {seen}{waits}"


def hazard_report(result: Hazards) -> Report:
    """Say all that is known: what conflicts, and the wait that is missing."""
    listed = result.hazards[:LISTED_HAZARDS]
    more = len(result.hazards) - len(listed)
    note = f"… {more:,} more: see .to_pandas()" if more else ""
    rows = [["", "missing", "where", "array", "first", "then, unordered", "times"], *map(_row, listed)]
    rows += [[note, *[""] * 6]] if note else []
    lines = [line for hazard in listed for line in _lines(hazard)] + [note] * bool(note)
    table = ReportTable(
        caption="What crossed streams without an order", rows=rows, has_row_heads=True, names=(), lines=lines, wraps=True
    )
    return Report(title="Hazards:", line=hazard_line(result), tables=(table,) if listed else (), notes=tuple(_notes(result)))


def hazard_fix(hazard: Hazard) -> str:
    """Return the missing order as code."""
    first, second = hazard.first.lane, hazard.second.lane
    if hazard.scratch_bytes is not None:
        is_closed = hazard.first.work == LANE_CLOSED
        return (
            f"lab.stream({first!r}).close()" if is_closed else f"work = lab.stream({first!r}).scratch({hazard.scratch_bytes})"
        )
    if first == NO_LANE:
        return "lab.synchronize()"
    if _can_be_held(hazard):
        return f"lab.stream({first!r}).hold({hazard.array})"
    if second == NO_LANE:
        return f"lab.stream({first!r}).synchronize()"
    return f"lab.stream({second!r}).wait(lab.stream({first!r}))"


def hazard_where(hazard: Hazard) -> str:
    """Say where that code belongs."""
    if hazard.scratch_bytes is not None:
        if hazard.first.work == LANE_CLOSED:
            return f"after {_place(hazard.second)}, not before it"
        return "where the scratch is taken, without `with` or close(): then it stays as long as its arrays"
    if _can_be_held(hazard):
        return f"after {_place(hazard.first)}, before the array goes"
    if hazard.first.lane == NO_LANE:
        return f"after {_place(hazard.first)}, or select a stream for that too"
    return f"before {_place(hazard.second)}"


def _can_be_held(hazard: Hazard) -> bool:
    """Tell whether the array that goes too early can be named: then it is held. Else a wait makes it right as well."""
    return hazard.kind is HazardKind.USE_AFTER_FREE and hazard.array.isidentifier()


def _row(hazard: Hazard) -> list[str]:
    sides = _side(hazard.first), _side(hazard.second)
    return [_kind(hazard), hazard.fix, hazard.where, _array(hazard), *sides, f"{hazard.hazard_count:,}"]


def _lines(hazard: Hazard) -> list[str]:
    """Return a hazard as text: its kind and where the missing line belongs, the line to type there, and what it is about."""
    order = "" if hazard.scratch_bytes is not None else ", unordered,"
    words = f"{_array(hazard)}, {_count(hazard.hazard_count, 'time', 'times')}: first {_side(hazard.first)}; "
    words += f"then{order} {_side(hazard.second)}"
    head = wrap_sentence(f"{_kind(hazard)}: put this line {hazard.where}")
    return [*head, f"{_INDENT}{hazard.fix}", *wrap_sentence(words, first_indent=_INDENT, indent=_INDENT)]


def _kind(hazard: Hazard) -> str:
    return hazard.kind.value if hazard.is_certain else f"{hazard.kind.value}, may be"


def _array(hazard: Hazard) -> str:
    """Return what the array is called, or which one it was."""
    name = f"{display_name(hazard.array, _NAME_WIDTH)} #{hazard.allocation}"
    if hazard.array.isidentifier() or hazard.scratch_bytes is not None:
        return name
    made_in = repr(display_name(hazard.maker, _NAME_WIDTH)) if hazard.maker else "work outside all ranges"
    return f"the array of {name} that {made_in} made"


def _side(side: HazardSide) -> str:
    return f"{display_name(side.lane, _NAME_WIDTH)}: {_place(side)}"


def _place(side: HazardSide) -> str:
    if not side.order:
        return "its stream was closed" if side.work == LANE_CLOSED else side.work
    if side.range:
        return f"{display_name(side.range, _NAME_WIDTH)!r} ({side.work})"
    return f"{side.work} ({'outside all ranges' if side.lane != NO_LANE else 'no stream selected'})"


def _notes(result: Hazards) -> list[str]:
    notes = []
    if len(result):
        notes.append("Each row is one missing order; #n stands for the memory of its first array.")
    if any(_is_nameless(hazard) for hazard in result.hazards):
        notes.append(
            "use-after-free of an array without a name here: stream.hold(array) after its last use is better than the wait."
        )
    if any(not hazard.is_certain for hazard in result.hazards):
        notes.append('"may be": which elements were meant is not known, so the two need not share any.')
    if result.unlisted_count:
        notes.append(f"{result.unlisted_count:,} more hazards found no place in the list.")
    if result.let_go_count:
        notes.append(
            f"{result.let_go_count:,} accesses were forgotten to keep memory bounded: a hazard with them went unfound."
        )
    notes += result.unwatched
    if result.simulated:
        notes.append(f"Simulated: {result.device}. The order is exact; no hardware stands behind it.")
    return notes


def _is_nameless(hazard: Hazard) -> bool:
    is_array = hazard.kind is HazardKind.USE_AFTER_FREE and hazard.scratch_bytes is None
    return is_array and not hazard.array.isidentifier()


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
