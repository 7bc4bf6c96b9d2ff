"""Why streams were idle between pieces of their work, and how long their queues were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, require_trace
from gpustreamlab.analysis._causes import event_waits
from gpustreamlab.analysis._pieces import launch_latency_ns, ordered_by_lane
from gpustreamlab.analysis._report import Answer, ReportTable
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.model import Trace, display_name
from gpustreamlab.typing import IdleKind, Int64Array

KINDS = tuple(IdleKind)
LAUNCH_GAP_NS = 30_000
"""Below this a gap between work that was queued counts as the launch's own. Source: HolisticTraceAnalysis, ``kernel_wait``."""


class QueueLength(NamedTuple):
    """How much work of a stream was launched and had not begun, over time; it stays until the next time."""

    time_ns: Int64Array
    """When it changed; shape (n_times,), int64, strictly increasing, in ns."""
    length: Int64Array
    """How much there was from then on; shape (n_times,), int64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Idle(Answer):
    """The gaps between work of one stream, by what they were for. False where there are none.

    A gap that was the host's until the launch, and an event's from then on, is two.
    """

    row: Int64Array
    """Row of the work behind each gap; shape (n_gaps,), int64."""
    lane: Int64Array
    """Its stream, index into `lanes`; shape (n_gaps,), int64."""
    start_ns: Int64Array
    """When the stream became idle; shape (n_gaps,), int64, in ns."""
    duration_ns: Int64Array
    """For how long; shape (n_gaps,), int64, in ns."""
    kind: Int64Array
    """Code of the `IdleKind`, by its order; shape (n_gaps,), int64."""
    launch_delay_ns: Int64Array
    """From the call of the host to the start, for each row of the trace; shape (n_spans,), int64, in ns; -1 where unknown."""

    _columns: ClassVar = ("row", "lane", "start_ns", "duration_ns", "kind", "launch_delay_ns")

    _title: ClassVar = "Idle:"
    _frame: ClassVar = {
        "row": "row",
        "stream": ("lane", "lanes"),
        "start_ns": "start_ns",
        "duration_ns": "duration_ns",
        "kind": ("kind", KINDS),
    }

    def total_ns(self, stream: str, kind: IdleKind | str | None = None) -> int:
        """Return for how long a stream was idle between its work, in ns: all of it, or one kind.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50_000], end_ns=[9_000, 60_000], stream=["a", "a"], queued_ns=[-9, 40_000])
        >>> idle(trace).total_ns("a"), idle(trace).total_ns("a", "host"), idle(trace).total_ns("a", "event")
        (41000, 41000, 0)
        """
        names = np.array([lane.name == stream for lane in self.lanes])
        chosen = names[self.lane]
        if kind is not None:
            chosen = chosen & (self.kind == KINDS.index(IdleKind(kind)))
        return int(self.duration_ns[chosen].sum())

    def queue_length(self, stream: str) -> QueueLength:
        """Return how much launched work of a stream had not begun, over time; empty where launches are not known.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[5, 20], end_ns=[9, 30], stream=["a", "a"], queued_ns=[0, 2])
        >>> idle(trace).queue_length("a").length.tolist()
        [1, 2, 1, 0]
        """
        names = np.array([lane.name == stream for lane in self.lanes])
        rows = np.flatnonzero((self.launch_delay_ns >= 0) & names[self.trace.lane])
        times_ns = np.concatenate((self.trace.queued_ns[rows], self.trace.start_ns[rows]))
        change = np.repeat((1, -1), len(rows))
        when_ns, place = np.unique(times_ns, return_inverse=True)
        step = np.bincount(place.reshape(-1), weights=change, minlength=len(when_ns)).astype(np.int64)
        return QueueLength(when_ns, np.cumsum(step))

    def _totals(self) -> Int64Array:
        sums = np.zeros((len(self.lanes), len(KINDS)), np.int64)
        np.add.at(sums, (self.lane, self.kind), self.duration_ns)
        return sums

    def _line(self) -> str:
        sums = self._totals().sum(axis=0)
        if not sums.any():
            return "no stream was idle between its work"
        told = [f"{format_ns(int(total))} {_WORDS[kind]}" for kind, total in zip(KINDS, sums, strict=True) if total]
        return f"streams were idle between their work {', '.join(told)}"

    def _tables(self) -> list[ReportTable]:
        sums = self._totals()
        rows = [["stream", "idle", *(kind.value for kind in KINDS), "gaps"]]
        gaps = np.bincount(self.lane, minlength=len(self.lanes))
        for lane in np.argsort(-sums.sum(axis=1), kind="stable").tolist():
            if gaps[lane]:
                times = [format_ns(int(value)) for value in (sums[lane].sum(), *sums[lane])]
                rows.append([display_name(self.lanes[lane].name, 32), *times, f"{gaps[lane]:,}"])
        return [ReportTable(caption="Idle between work, by what it was for", rows=rows)]

    def _notes(self) -> list[str]:
        notes = [f"{'; '.join(IDLE_TEXTS[:3])}."] if len(self) else []
        known = self.launch_delay_ns[self.launch_delay_ns >= 0]
        if len(self) and len(known):
            notes.append(f"From its launch to its start work took {format_ns(float(np.median(known)))} (median).")
        return [*notes, *self.metadata.missing]


IDLE_TEXTS = (
    "host: launched when the stream was idle already",
    "event: it waited for one, once launched",
    "launch: less than 30 us, and queued",
    "other: it was queued, or its launch is not known",
)
"""What each kind means, by the order of `IdleKind`."""
_WORDS = {
    IdleKind.HOST: "for the host",
    IdleKind.EVENT: "for events",
    IdleKind.LAUNCH: "for launches",
    IdleKind.OTHER: "for other reasons",
}


def idle(trace: Trace) -> Idle:
    """Say why each stream was idle between its work, how long launches took to begin, and how long queues were.

    Parameters
    ----------
    trace
        The spans.

    Raises
    ------
    OptionError
        If it is no trace.

    Notes
    -----
    A gap is the host's where the work behind it was launched when the stream was idle already; all of it, as in
    HolisticTraceAnalysis (``host_wait``), unless that work waited for an event that came after its launch: then the gap is the
    event's from the launch on, where HolisticTraceAnalysis still calls all of it ``host_wait``. Else it is an event's where the
    work began as what it waited for ended; else the launch's below 30 us (``kernel_wait`` there); else of another kind: no room
    on the SMs, a busy copy engine. Where the time of the launch is not known it is never the host's.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0, 50_000], end_ns=[9_000, 60_000], stream=["a", "a"], queued_ns=[-9, 1_000])
    >>> idle(trace)
    <Idle: streams were idle between their work 41.0 µs for other reasons>
    """
    require_trace(trace, "idle")
    rows, gaps_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in ordered_by_lane(trace, counted_rows(trace)):
        since_ns = np.maximum.accumulate(trace.end_ns[part])[:-1]
        lasted_ns = trace.start_ns[part[1:]] - since_ns
        rows.append(part[1:][lasted_ns > 0])
        gaps_ns.append(lasted_ns[lasted_ns > 0])
    row, duration_ns = np.concatenate(rows), np.concatenate(gaps_ns)
    delay_ns = np.where(trace.queued_ns < trace.start_ns, trace.start_ns - trace.queued_ns, -1)
    delay_ns[~counted_rows(trace)] = -1
    known_ns = delay_ns[row]
    source, waited = event_waits(trace, row, launch_latency_ns(known_ns[known_ns >= 0]))
    of_host = (known_ns >= 0) & (known_ns < duration_ns)
    start_ns = trace.start_ns[row] - duration_ns
    # A gap of the host in which the event came after the launch is cut there.
    is_cut = of_host & waited & (trace.end_ns[source] > trace.queued_ns[row])
    place = np.repeat(np.arange(len(row)), 1 + is_cut)
    is_rest = np.diff(place, prepend=-1) == 0
    row, duration_ns, known_ns, is_cut = row[place], duration_ns[place], known_ns[place], is_cut[place]
    start_ns = start_ns[place] + np.where(is_rest, duration_ns - known_ns, 0)
    duration_ns = np.where(is_rest, known_ns, np.where(is_cut, duration_ns - known_ns, duration_ns))
    tests = [of_host[place] & ~is_rest, waited[place], duration_ns < LAUNCH_GAP_NS]
    return Idle(
        row=row,
        lane=trace.lane[row].astype(np.int64),
        start_ns=start_ns,
        duration_ns=duration_ns,
        kind=np.select(tests, [0, 1, 2], 3),
        launch_delay_ns=delay_ns,
        trace=trace,
    )
