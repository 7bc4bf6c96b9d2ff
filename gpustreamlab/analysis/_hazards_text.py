"""Hazards in words and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustreamlab.analysis._hazards import NO_LANE
from gpustreamlab.analysis._report import Report, ReportTable
from gpustreamlab.analysis._units import display_name
from gpustreamlab.typing import HazardKind, HazardMode

if TYPE_CHECKING:
    from gpustreamlab.analysis._hazards import Hazard, Hazards, HazardSide

LISTED_HAZARDS = 20
"""How many hazards the table lists."""
_NAME_WIDTH = 32


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
    rows = [["", "array", "first", "then, unordered", "times", "missing", "where"], *map(_row, listed)]
    rows += [[f"… {more:,} more: see .to_pandas()", *[""] * 6]] if more else []
    tables = (ReportTable(caption="What crossed lanes without an order", rows=rows, has_row_heads=True),) if listed else ()
    return Report(title="Hazards:", line=hazard_line(result), tables=tables, notes=tuple(_notes(result)))


def hazard_fix(hazard: Hazard) -> str:
    """Return the missing order as code."""
    first, second = hazard.first.lane, hazard.second.lane
    if first == NO_LANE:
        return "lab.synchronize()"
    if hazard.kind is HazardKind.USE_AFTER_FREE:
        return f"lab.stream({first!r}).hold({hazard.array if hazard.array.isidentifier() else 'array'})"
    if second == NO_LANE:
        return f"lab.stream({first!r}).synchronize()"
    return f"lab.stream({second!r}).wait(lab.stream({first!r}))"


def hazard_where(hazard: Hazard) -> str:
    """Say where that code belongs."""
    if hazard.kind is HazardKind.USE_AFTER_FREE:
        return f"behind {_place(hazard.first)}, before the array goes"
    if hazard.first.lane == NO_LANE:
        return f"behind {_place(hazard.first)}, or do that on a lane too"
    return f"before {_place(hazard.second)}"


def _row(hazard: Hazard) -> list[str]:
    kind = hazard.kind.value if hazard.is_certain else f"{hazard.kind.value}, may be"
    name = f"{hazard.array} #{hazard.allocation}"
    return [
        kind,
        display_name(name, _NAME_WIDTH),
        _side(hazard.first),
        _side(hazard.second),
        f"{hazard.hazard_count:,}",
        hazard.fix,
        hazard.where,
    ]


def _side(side: HazardSide) -> str:
    return f"{display_name(side.lane, _NAME_WIDTH)}: {_place(side)}"


def _place(side: HazardSide) -> str:
    if side.range:
        return f"{display_name(side.range, _NAME_WIDTH)!r} ({side.work})"
    return f"{side.work} ({'outside all ranges' if side.lane != NO_LANE else 'no lane selected'})"


def _notes(result: Hazards) -> list[str]:
    notes = []
    if len(result):
        notes.append("Each row is one missing order; #n is the array's memory, never used again for another.")
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


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
