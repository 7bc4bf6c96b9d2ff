"""Moments with a name in a picture: when the SMs were shared out anew, when a cell began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpustreamlab.analysis import change_text, display_name
from gpustreamlab.model import Trace

MARK_PX = 17
"""Height of a line of labels of marks, above all lanes."""

MAX_MARKS = 500
"""Most moments of a sort that are marked; the last are kept, and the page says how many are not."""

MARK_RANKS = {"layout": 0, "mark": 1, "cell": 2}
"""Whose label wins where there is no room for all: what was asked for comes before what happens anyway."""

TEXT_LIMIT = 60
"""How many characters of a moment's name are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment with a name."""

    time_ns: float
    """When, in ns since the zero of the axis."""
    text: str
    """What happened."""
    kind: str
    """``"layout"`` for a change of the partitions, else the kind of the trace's marker."""


def plan_marks(trace: Trace, zero_ns: int, width_ns: float) -> tuple[tuple[Mark, ...], list[str]]:
    """Return the moments within a picture in order of time, and notes where not all are marked."""
    changes, change_notes = _last(_layout_marks(trace, zero_ns, width_ns), "changes of the partitions")
    markers, marker_notes = _last(_marker_marks(trace, zero_ns, width_ns), "markers")
    marks = sorted((*changes, *markers), key=lambda mark: mark.time_ns)
    return tuple(marks), [*change_notes, *marker_notes]


def mark_row_count(marks: Sequence[Mark]) -> int:
    """Return how many lines the labels of marks have: a second one as soon as two marks may be too near to each other."""
    return min(2, len(marks))


def _layout_marks(trace: Trace, zero_ns: int, width_ns: float) -> list[Mark]:
    """Mark changes of the layout while spans ran: what was so from the start is in the labels of the partitions."""
    marks, before = [], None
    for change in trace.layouts:
        text = change_text(before, change.layout)
        time_ns = float(change.time_ns - zero_ns)
        before = change.layout
        if text and 0 < time_ns < width_ns:
            marks.append(Mark(time_ns=time_ns, text=text, kind="layout"))
    return marks


def _marker_marks(trace: Trace, zero_ns: int, width_ns: float) -> list[Mark]:
    margin_ns = 0.01 * width_ns
    return [
        Mark(time_ns=time_ns, text=display_name(marker.text, TEXT_LIMIT), kind=marker.kind.value)
        for marker in trace.markers
        if -margin_ns <= (time_ns := float(marker.time_ns - zero_ns)) <= width_ns + margin_ns
    ]


def _last(marks: Sequence[Mark], what: str) -> tuple[Sequence[Mark], list[str]]:
    left_out = len(marks) - MAX_MARKS
    if left_out <= 0:
        return marks, []
    return marks[-MAX_MARKS:], [f"{left_out:,} of {len(marks):,} {what} are not marked"]
