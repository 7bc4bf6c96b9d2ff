"""How long a card had nothing to do between its first work and its last, and where the host was meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpustreamlab.analysis._busy import is_work, require_one_rank, require_trace, union_edges
from gpustreamlab.analysis._report import Answer, ReportTable, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Int64Array, SpanKind

_HOST, _SAMPLE = SPAN_KINDS.index(SpanKind.HOST), SPAN_KINDS.index(SpanKind.SAMPLE)
NO_CALL = "no CUDA call (Python, data, the program's own code)"
"""Where the host was when it was in none of the calls that are recorded."""
LEAST_SHARE = 0.01
"""Share of the whole time from which on a call is named in the line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CardIdle(Answer):
    """The times in which nothing ran on a card, with the work around each. False where there are none.

    One stream is enough to ask it: a card that waits for its host is idle, whatever its streams could have overlapped.
    """

    row: Int64Array
    """Row of the work behind each gap; shape (n_gaps,), int64."""
    before: Int64Array
    """Row of the work that ended last before it; shape (n_gaps,), int64."""
    start_ns: Int64Array
    """When the card became idle; shape (n_gaps,), int64, in ns."""
    duration_ns: Int64Array
    """For how long; shape (n_gaps,), int64, in ns."""
    wall_ns: int
    """From the card's first work to its last, in ns."""
    calls: tuple[tuple[str, int], ...]
    """Where the thread that launched most was in these gaps: calls by name, and in ns; longest first. Empty where no calls are
    in the trace. `NO_CALL` stands for the rest."""
    functions: tuple[tuple[str, int], ...]
    """Functions of Python in which that thread was seen in the gaps, and how often; most first. Empty without samples."""

    _columns: ClassVar = ("row", "before", "start_ns", "duration_ns")
    _title: ClassVar = "Idle card:"
    _frame: ClassVar = {"row": "row", "before": "before", "start_ns": "start_ns", "duration_ns": "duration_ns"}

    @property
    def idle_ns(self) -> int:
        """Time in which nothing ran, in ns."""
        return int(self.duration_ns.sum())

    @property
    def line(self) -> str:
        """How long it was idle, and where the host was, in a line."""
        return self._line()

    def _line(self) -> str:
        if not self.wall_ns:
            return "nothing ran"
        told = f"idle {format_share(self.idle_ns / self.wall_ns)} of {format_ns(self.wall_ns)}"
        if not len(self):
            return f"never idle in {format_ns(self.wall_ns)}"
        named = [
            f"{format_share(held_ns / self.wall_ns)} in {display_name(name, 60)}"
            for name, held_ns in self.calls[:3]
            if held_ns >= LEAST_SHARE * self.wall_ns
        ]
        where = f": the host was {', '.join(named)}" if named else ""
        seen = sum(count for _, count in self.functions)
        function = f"; Python stood most often in {display_name(self.functions[0][0], 60)}" if seen else ""
        return f"{told}, in {count_text(len(self), 'gap')}{where}{function}"

    def _tables(self) -> list[ReportTable]:
        by_pair = _by_pair(self)
        return [
            listed(
                "Between which work",
                ["behind", "before", "gaps", "idle"],
                by_pair,
                lambda one: [display_name(one[0], 40), display_name(one[1], 40), f"{one[2]:,}", format_ns(one[3])],
                most=10,
            )
        ]

    def _notes(self) -> list[str]:
        missing = "Calls of the host are not in the trace, so it is not known where that was."
        return [*([] if self.calls or not len(self) else [missing]), *self.metadata.missing]


def card_idle(trace: Trace) -> CardIdle:
    """Say when a card had nothing to do, and where its host was meanwhile.

    Parameters
    ----------
    trace
        The spans of one card; with calls of the host, it is told what held it up.

    Raises
    ------
    OptionError
        If it is no trace, or one of several ranks.

    Notes
    -----
    A gap lies between the end of all work so far and the next start, by the kernels, copies and fills in the trace. Calls are
    those of the thread that made most of them; time in none of them is the program's own.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 50, 20], end_ns=[10, 60, 45], stream=["a", "a", "main"], kind=["kernel", "kernel", "host"],
    ...     name=["gemm", "relu", "cudaStreamSynchronize"],
    ... )
    >>> found = card_idle(trace)
    >>> found.idle_ns, found.calls[0]
    (40, ('cudaStreamSynchronize', 25))
    """
    require_trace(trace, "card_idle")
    is_counted = is_work(trace) & (trace.end_ns > trace.start_ns)
    require_one_rank(trace, is_counted, "card_idle")
    rows = np.flatnonzero(is_counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    edges = union_edges(trace.start_ns[rows], trace.end_ns[rows])
    starts, ends = edges[1:-1:2], edges[2::2]
    by_end = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    return CardIdle(
        trace=trace,
        row=rows[np.searchsorted(trace.start_ns[rows], ends)],
        before=by_end[np.searchsorted(trace.end_ns[by_end], starts)],
        start_ns=starts,
        duration_ns=ends - starts,
        wall_ns=int(edges[-1] - edges[0]) if len(edges) else 0,
        calls=_held_by(trace, starts, ends),
        functions=_seen_in(trace, starts, ends),
    )


def _by_pair(found: CardIdle) -> list[tuple[str, str, int, int]]:
    """Return names behind and before gaps with how many and how long, longest first."""
    trace = found.trace
    keys, place = np.unique(np.stack((trace.name[found.before], trace.name[found.row])), axis=1, return_inverse=True)
    place = place.reshape(-1)
    counts = np.bincount(place)
    sums = np.zeros(len(counts), np.int64)
    np.add.at(sums, place, found.duration_ns)
    order = np.argsort(-sums, kind="stable").tolist()
    names = trace.names
    return [(names[int(keys[0, one])], names[int(keys[1, one])], int(counts[one]), int(sums[one])) for one in order]


def _idle_before_ns(starts: Int64Array, ends: Int64Array, times_ns: Int64Array) -> Int64Array:
    """Return how much of the gaps lies before each of some times, in ns."""
    total = np.concatenate(([0], np.cumsum(ends - starts)))
    place = np.searchsorted(starts, times_ns, side="right")
    last = np.maximum(place - 1, 0)
    inside: Int64Array = np.where(place > 0, np.minimum(times_ns, ends[last]) - starts[last], 0)
    return total[last] + inside


def _held_by(trace: Trace, starts: Int64Array, ends: Int64Array) -> tuple[tuple[str, int], ...]:
    """Add up by name where the thread with most calls was in the gaps."""
    calls = np.flatnonzero(trace.kind == _HOST)
    if not len(calls) or not len(starts):
        return ()
    thread = np.bincount(trace.lane[calls]).argmax()
    calls = calls[trace.lane[calls] == thread]
    held_ns = _idle_before_ns(starts, ends, trace.end_ns[calls]) - _idle_before_ns(starts, ends, trace.start_ns[calls])
    by_name = np.zeros(len(trace.names), np.int64)
    np.add.at(by_name, trace.name[calls], held_ns)
    told = [(trace.names[code], int(by_name[code])) for code in np.flatnonzero(by_name).tolist()]
    told.append((NO_CALL, max(0, int((ends - starts).sum()) - int(by_name.sum()))))
    return tuple(sorted((one for one in told if one[1]), key=lambda one: -one[1]))


def _seen_in(trace: Trace, starts: Int64Array, ends: Int64Array) -> tuple[tuple[str, int], ...]:
    """Count in which functions Python stood in the gaps."""
    samples = np.flatnonzero(trace.kind == _SAMPLE)
    if not len(samples) or not len(starts):
        return ()
    place = np.searchsorted(starts, trace.start_ns[samples], side="right") - 1
    inside = (place >= 0) & (trace.start_ns[samples] < ends[np.maximum(place, 0)])
    counts = np.bincount(trace.name[samples[inside]], minlength=len(trace.names))
    return tuple((trace.names[code], int(counts[code])) for code in np.argsort(-counts, kind="stable").tolist() if counts[code])
