"""Where the time went: why streams were idle, how long their queues were, and which chain of steps set the run's length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, of_each_trace, require_one_rank, require_trace, sweep, sweep_of, turns_of
from gpustreamlab.analysis._card_idle import CardIdle, card_idle
from gpustreamlab.analysis._causes import find_causes
from gpustreamlab.analysis._device_causes import CODES, event_waits, last_awaited
from gpustreamlab.analysis._host_waits import calls_by, host_waits, innermost_range, thread_lanes
from gpustreamlab.analysis._pieces import behind_on_lane, find_pieces, launch_calls, launch_latency_ns
from gpustreamlab.analysis._report import Answer, ReportTable, add_up, listed
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.analysis._stacks import FunctionCount, count_functions, functions_text
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Cause, EdgeKind, IdleKind, Int64Array, PathStep, SpanKind

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

    @property
    def card(self) -> CardIdle:
        """When the whole card had nothing to do, and where the host was meanwhile; see `gpustreamlab.analysis.card_idle`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[9, 60], stream=["a", "b"], kind="kernel")
        >>> idle(trace).card.idle_ns
        41
        """
        return card_idle(self.trace)

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
    row, start_ns, duration_ns, kind, delay_ns = _gaps(trace)
    lane = trace.lane[row].astype(np.int64)
    columns = {"start_ns": start_ns, "duration_ns": duration_ns, "kind": kind, "launch_delay_ns": delay_ns}
    return Idle(row=row, lane=lane, **columns, trace=trace)


@of_each_trace
def _gaps(trace: Trace) -> tuple[Int64Array, ...]:
    """Return the columns of `Idle` but for the lane."""
    rows, gaps_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in sweep(trace).by_lane:
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
    place = np.repeat(np.arange(len(row)), (1 + is_cut).astype(np.intp, copy=False))
    is_rest = np.diff(place, prepend=-1) == 0
    row, duration_ns, known_ns, is_cut = row[place], duration_ns[place], known_ns[place], is_cut[place]
    start_ns = start_ns[place] + np.where(is_rest, duration_ns - known_ns, 0)
    duration_ns = np.where(is_rest, known_ns, np.where(is_cut, duration_ns - known_ns, duration_ns))
    tests = [of_host[place] & ~is_rest, waited[place], duration_ns < LAUNCH_GAP_NS]
    return row, start_ns, duration_ns, np.select(tests, [0, 1, 2], 3), delay_ns


# The critical path

STEPS = tuple(PathStep)
_ROOM = (Cause.COPY_ENGINE, Cause.GRID_FILLS_DEVICE, Cause.PARTITION_SMALL, Cause.SM_RESOURCES, Cause.SAME_SM_PRIORITY)
_ORDER = (Cause.LEGACY_STREAM, Cause.QUEUE_ALIAS, Cause.GRAPH_ORDER)
_HOLD_UP = [CODES.index(cause) for cause in (*_ROOM, *_ORDER)]
"""Causes of the device that say which work of another stream stood in front."""


class PathPart(NamedTuple):
    """All steps of one kind and name on a critical path."""

    step: PathStep
    """What kind of step."""
    name: str
    """The work, or what the host did."""
    stream: str
    """The stream, or the thread of the host."""
    total_ns: int
    """How much of the path it is, in ns."""
    step_count: int
    """How many steps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CriticalPath(Answer):
    """The chain of steps that set how long a run took, from its first start to its last end.

    Each began as the one before ended. To shorten a step shortens the run by at most as much; to shorten anything else does
    not, unless what a step of the queue waited for: that is not known. False where nothing ran.
    """

    step: Int64Array
    """Code of the `PathStep`, by its order; shape (n_steps,), int64."""
    row: Int64Array
    """Row of the work that ran or was launched, of the host's call, or of the innermost range of others (NVTX, an operator of a
    profile) that the host was in, -1 where it was in none; shape (n_steps,), int64."""
    lane: Int64Array
    """The stream, or the thread of the host, index into `lanes`, or -1; shape (n_steps,), int64."""
    start_ns: Int64Array
    """When it began; shape (n_steps,), int64, in ns."""
    end_ns: Int64Array
    """When it ended, which is when the next began; shape (n_steps,), int64, in ns."""
    name: Int64Array
    """Name of the row, index into `names`, or -1; shape (n_steps,), int64."""
    functions: tuple[FunctionCount, ...]
    """Where threads stood while the host was on the path; empty without samples of their stacks."""
    has_calls: bool
    """Whether calls of the host are known; without them host time has no names, and waits of the host are part of it."""

    _columns: ClassVar = ("step", "row", "lane", "start_ns", "end_ns", "name")

    _title: ClassVar = "Critical path:"
    _frame: ClassVar = {
        "step": ("step", STEPS),
        "row": "row",
        "name": ("name", "names"),
        "lane": ("lane", "lanes"),
        "start_ns": "start_ns",
        "duration_ns": "_step_ns",
    }

    @property
    def duration_ns(self) -> int:
        """How long the path is: from its first step to its last, in ns."""
        return int(self.end_ns[-1] - self.start_ns[0]) if len(self) else 0

    @property
    def parts(self) -> tuple[PathPart, ...]:
        """Steps of one kind, name and lane together; what takes most of the path first."""
        return tuple(
            PathPart(STEPS[step], self._name(STEPS[step], name), self.lanes[lane].name if lane >= 0 else "host", total, count)
            for (step, name, lane), count, total in add_up((self.step, self.name, self.lane), self._step_ns)
        )

    def _name(self, step: PathStep, name: int) -> str:
        if name >= 0:
            return self.names[name]
        return "no call" if step is PathStep.HOST else "work"

    def share(self, step: PathStep | str) -> float:
        """Return how much of the path is of one kind of step; NaN where nothing ran."""
        of_kind = self.step == STEPS.index(PathStep(step))
        return float(self._step_ns[of_kind].sum() / self.duration_ns) if self.duration_ns else float("nan")

    @property
    def _step_ns(self) -> Int64Array:
        return self.end_ns - self.start_ns

    def _line(self) -> str:
        if not len(self):
            return "nothing ran"
        shares = [f"{step.value} {format_share(self.share(step))}" for step in STEPS if self.share(step) > 0]
        return f"{format_ns(self.duration_ns)} from the first start to the last end: {', '.join(shares)}"

    def _tables(self) -> list[ReportTable]:
        def cells(part: PathPart) -> list[str]:
            figures = [format_ns(part.total_ns), format_share(part.total_ns / max(self.duration_ns, 1)), f"{part.step_count:,}"]
            return [part.step.value, display_name(part.name, 40), display_name(part.stream, 32), *figures]

        head = ["step", "what", "where", "on the path", "share", "steps"]
        return [listed("What the run's length is made of", head, self.parts, cells, most=12, names=(1, 2))]

    def _notes(self) -> list[str]:
        if not len(self):
            return [*self.metadata.missing]
        notes = ["If a step took nothing, the run would be shorter by at most as much: another chain may take over."]
        if self.functions:
            notes.append(f"The host on the path: {functions_text(self.functions)}.")
        hosts = {part.stream for part in self.parts if part.step is PathStep.HOST}
        if self.metadata.imported and len(hosts) > 1:
            notes.append("What threads of the host waited for in each other is not recorded: time without calls may be that.")
        if not self.has_calls:
            notes.append(f"Calls of the host are not known: {calls_by(self.metadata)} tells what it did and waited for.")
        return [*notes, *self.metadata.missing]


class _Step(NamedTuple):
    step: PathStep
    row: int
    lane: int
    start_ns: int
    end_ns: int


def critical_path(trace: Trace) -> CriticalPath:
    """Find the chain of steps that set how long a run took.

    From the work that ended last the chain goes back to what it began behind: the work in front of it on its stream, the work
    whose event it waited for, work of another stream that held it up on the device, as `explain` tells, or its launch by the
    host, whichever came last. Behind a launch stands what its thread did before, back to the last call in which it waited for
    the device, and behind that the work that it waited for. Work that began later than a launch takes, for no known reason, was
    in the queue.

    Parameters
    ----------
    trace
        The spans. Waits are those that the trace has edges for; host time is named where calls were captured.

    Raises
    ------
    OptionError
        If it is no trace, or one of several ranks: ``trace.where(device=1)`` is of one.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 50_000, 60_000], end_ns=[40_000, 60_000, 95_000], stream=["a", "b", "b"], name=["x", "y", "z"],
    ...     queued_ns=[-5_000, 45_000, 46_000],
    ... )
    >>> path = critical_path(trace)
    >>> [(part.step.value, part.name, part.total_ns) for part in path.parts]
    [('host', 'no call', 45000), ('work', 'z', 35000), ('work', 'y', 10000), ('launch', 'y', 5000)]
    """
    require_trace(trace, "critical_path")
    rows = counted_rows(trace)
    require_one_rank(trace, rows, "critical_path")
    steps = list(_walk(trace, np.flatnonzero(rows)))[::-1]
    columns = np.array([(STEPS.index(step.step), *step[1:]) for step in steps], np.int64).reshape(-1, 5).T
    step, row, lane, start_ns, end_ns = _in_ranges(trace, columns)
    is_host = step == STEPS.index(PathStep.HOST)
    return CriticalPath(
        step=step,
        row=row,
        lane=lane,
        start_ns=start_ns,
        end_ns=end_ns,
        name=np.append(trace.name, -1)[row].astype(np.int64),
        functions=count_functions(trace, lane[is_host], start_ns[is_host], end_ns[is_host]),
        has_calls=bool((launch_calls(trace) >= 0).any()),
        trace=trace,
    )


def _walk(trace: Trace, rows: Int64Array) -> Iterator[_Step]:
    """Yield the steps of the path from the last to the first."""
    # A range that stands in another one is part of it.
    rows = rows[~np.isin(trace.parent[rows], rows)]
    if not len(rows):
        return
    began_ns = int(trace.start_ns[rows].min())
    start_ns = began_ns + 1
    behind, latency_ns = _work_behind(trace, rows)
    call = launch_calls(trace)
    host = _Host(trace)
    row = int(rows[np.argmax(trace.end_ns[rows])])
    now_ns = int(trace.end_ns[row])
    while start_ns > began_ns:
        lane, start_ns, queued_ns = int(trace.lane[row]), int(trace.start_ns[row]), int(trace.queued_ns[row])
        yield _Step(PathStep.WORK, row, lane, start_ns, now_ns)
        last = int(behind[row])
        last_ns = min(int(trace.end_ns[last]), start_ns) if last >= 0 else began_ns
        if last >= 0 and (queued_ns >= start_ns or queued_ns <= last_ns):
            if last_ns < start_ns:
                yield _Step(PathStep.QUEUE, row, lane, last_ns, start_ns)
            row, now_ns = last, last_ns
            continue
        launched_ns = max(min(queued_ns, start_ns), began_ns)
        if launched_ns < start_ns:
            called_ns = max(launched_ns, int(trace.end_ns[call[row]]) if call[row] >= 0 else launched_ns)
            kind = PathStep.QUEUE if start_ns - called_ns > latency_ns else PathStep.LAUNCH
            yield _Step(kind, row, lane, launched_ns, start_ns)
        thread = host.thread_of(row)
        work = host.work_before(thread, launched_ns, start_ns)
        free_ns = max(min(int(trace.end_ns[work]), launched_ns), began_ns) if work >= 0 else began_ns
        yield from host.steps(thread, free_ns, launched_ns)
        if free_ns <= began_ns:
            return
        row, now_ns = work, free_ns


def _work_behind(trace: Trace, rows: Int64Array) -> tuple[Int64Array, int]:
    """Return for each row the work that it waited for and that ended last, or -1; and what a launch takes at most, in ns."""
    # It waits for what its stream had to finish, for events, and for what held it up on the device.
    is_row = np.zeros(len(trace), bool)
    is_row[rows] = True
    behind = behind_on_lane(trace, sweep_of(trace, is_row).by_lane)
    waits = trace.edges.select(EdgeKind.WAIT)
    pieces = find_pieces(trace, is_row)
    found = find_causes(trace, pieces)
    held = found.among(np.isin(found.cause, _HOLD_UP) & (found.before >= 0))
    source = np.concatenate((waits.source, held.before))
    target = np.concatenate((waits.target, pieces.row[held.piece]))
    # What is no work of a stream, or began later, cannot have been in front.
    is_sound = is_row[source] & is_row[target] & (trace.start_ns[source] < trace.start_ns[target])
    source, target = source[is_sound], target[is_sound]
    awaited = last_awaited(trace, source[::-1], target[::-1])  # of two that ended at once, the first
    is_later = (awaited >= 0) & ((behind < 0) | (trace.end_ns[awaited] > trace.end_ns[behind]))
    behind[is_later] = awaited[is_later]
    return behind, pieces.latency_ns


def _in_ranges(trace: Trace, columns: Int64Array) -> Int64Array:
    """Return the steps with those of the host outside of calls cut where ranges of others begin and end, and in these."""
    is_bare = (columns[0] == STEPS.index(PathStep.HOST)) & (columns[1] < 0)
    parts = [columns[:, ~is_bare]]
    is_range = trace.kind == SPAN_KINDS.index(SpanKind.ANNOTATION)
    for lane in np.unique(columns[2, is_bare]).tolist():
        gaps = columns[:, is_bare & (columns[2] == lane)]
        own = np.flatnonzero(is_range & (trace.lane == lane))
        times_ns = np.unique(np.concatenate((trace.start_ns[own], trace.end_ns[own])))
        low, high = np.searchsorted(times_ns, gaps[3], side="right"), np.searchsorted(times_ns, gaps[4])
        count = (high - low + 1).astype(np.intp, copy=False)
        pieces, inside = np.repeat(gaps, count, axis=1), turns_of(count)
        cut_ns = np.append(times_ns, 0)[np.repeat(low, count) + inside - 1]
        pieces[3] = np.where(inside > 0, cut_ns, pieces[3])
        pieces[4, :-1] = np.where(inside[1:] > 0, cut_ns[1:], pieces[4, :-1])
        pieces[1] = innermost_range(trace, own, pieces[3])
        parts.append(pieces)
    joined = np.concatenate(parts, axis=1)
    return joined[:, np.argsort(joined[3], kind="stable")]


class _Host:
    """What threads of the host did, and what they waited for."""

    def __init__(self, trace: Trace) -> None:
        waits = host_waits(trace)
        of_work = np.flatnonzero(waits.waited_for >= 0)
        self._wait_end_ns = waits.start_ns[of_work] + waits.duration_ns[of_work]
        order = of_work[np.argsort(self._wait_end_ns, kind="stable")]
        self._wait_end_ns.sort()
        self._wait_lane, self._works = waits.lane[order], waits.waited_for[order]
        calls = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.HOST))
        self._calls = calls[np.argsort(trace.start_ns[calls], kind="stable")]
        self._trace, self._threads = trace, thread_lanes(trace, launch_calls(trace))

    def thread_of(self, row: int) -> int:
        """Return the lane of the thread that launched a row, or -1."""
        return int(self._threads(np.array([row]))[0])

    def work_before(self, thread: int, time_ns: int, start_ns: int) -> int:
        """Return the work that a thread waited for last, up to a time, and that began before `start_ns`; or -1."""
        place = int(np.searchsorted(self._wait_end_ns, time_ns, side="right")) - 1
        while place >= 0:
            if self._wait_lane[place] == thread and self._trace.start_ns[self._works[place]] < start_ns:
                return int(self._works[place])
            place -= 1
        return -1

    def steps(self, thread: int, from_ns: int, to_ns: int) -> Iterator[_Step]:
        """Yield the calls of a thread between two times, and the time between them, from the last to the first."""
        trace = self._trace
        last = int(np.searchsorted(trace.start_ns[self._calls], to_ns))
        first = int(np.searchsorted(trace.start_ns[self._calls], from_ns))
        rows = self._calls[max(first - 1, 0) : last]
        for row in rows[(trace.lane[rows] == thread) & (trace.end_ns[rows] > from_ns)][::-1].tolist():
            began_ns, ended_ns = max(int(trace.start_ns[row]), from_ns), min(int(trace.end_ns[row]), to_ns)
            if began_ns >= to_ns:
                continue
            if ended_ns < to_ns:
                yield _Step(PathStep.HOST, -1, thread, ended_ns, to_ns)
            if began_ns < ended_ns:
                yield _Step(PathStep.HOST, row, thread, began_ns, ended_ns)
            to_ns = began_ns
        if from_ns < to_ns:
            yield _Step(PathStep.HOST, -1, thread, from_ns, to_ns)
