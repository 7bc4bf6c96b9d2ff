"""How long a card had nothing to do between its first work and its last, and where the host was meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpustreamlab.analysis._busy import StepTime, is_work, require_one_rank, require_trace, sweep, union_edges
from gpustreamlab.analysis._host_waits import innermost_range, named_calls
from gpustreamlab.analysis._pieces import launch_calls
from gpustreamlab.analysis._report import Answer, ReportTable, add_up, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share, name_group
from gpustreamlab.analysis._stacks import FunctionCount, count_functions
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Int64Array, SpanKind

_HOST, _SAMPLE, _RANGE, _ANNOTATION = (
    SPAN_KINDS.index(kind) for kind in (SpanKind.HOST, SpanKind.SAMPLE, SpanKind.RANGE, SpanKind.ANNOTATION)
)
NO_CALL = "no CUDA call (Python, data, the program's own code)"
"""Where the host was when it was in none of the calls that are recorded."""
IN_NO_CALL = " (in no CUDA call)"
"""Stands behind the range of a library, or of NVTX, in which it was then."""
LAUNCHED = "work launched that had not begun (events, queues, latency)"
"""What stands for the time from a launch to the start of the work."""
MOVED = "pages of managed memory on the move"
"""What stands for as much of that as such pages were moved."""
BEHIND_LAUNCH = (LAUNCHED, MOVED)  # Where the host was does not matter then
_MOVES = re.compile(r"\(managed\b")
_TAGS = re.compile(r"( (request|step)=\S+)+$")  # Of which request and which step a range is, see `tagged_name`
LEAST_SAMPLES = 12
"""Of fewer samples nothing is said."""
LEAST_STEPS = 4
"""How often something has to come to be a step."""
EQUAL_SHARE = 0.8
"""Share of the distances between two of a name, counted in spans, that are equal, from which on it comes once in each step."""
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
    """Where the thread that launched the work behind these gaps was until it had: calls by name, and in ns; longest first.
    Time in none goes to the innermost range around it, such as an operation of torch or one of NVTX, and to `NO_CALL` where
    there is none; `LAUNCHED` stands for that from a launch to the start. Empty where no calls are in the trace."""
    functions: tuple[FunctionCount, ...]
    """Functions of Python in which that thread was seen in the gaps until the launch, and how often; most first. Empty without
    samples."""
    step_name: str
    """What each step that the run repeats begins with; empty where nothing repeats. `steps` has each."""
    step_ns: Int64Array
    """When each of them began on the device, and the last one ended; shape (n_steps + 1,), int64, in ns; else empty."""
    step_calls: tuple[tuple[str, int], ...]
    """Where the host was in the gaps within these steps, as `calls`."""

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
        return self._words(self._line())

    @property
    def brief(self) -> str:
        """How long it was idle, in each step where there are steps, and where the host was; empty where it hardly was."""
        if self.idle_ns < LEAST_SHARE * self.wall_ns or not len(self):
            return ""
        idle = f"idle {format_share(self.idle_ns / self.wall_ns)}{_where_text(self.calls, self.wall_ns)}"
        return self._words(self._step_text() if self.step_name else idle)

    def _line(self) -> str:
        if not self.wall_ns:
            return "nothing ran"
        told = f"idle {format_share(self.idle_ns / self.wall_ns)} of {format_ns(self.wall_ns)}"
        if not len(self):
            return f"never idle in {format_ns(self.wall_ns)}"
        between = ""
        behind, before, _, longest_ns = _by_pair(self)[0]
        if behind != before and longest_ns > self.idle_ns / 2:
            share = "" if len(self) == 1 else f", {format_share(longest_ns / self.idle_ns)} of it"
            between = f"{share} between {display_name(behind, 40)} and {display_name(before, 40)}"
        function = f"; {self._function()}" if self._function() else ""
        where = _where_text(self.calls, self.wall_ns)
        if self.step_name:
            late_ns = float(np.quantile(np.diff(self.step_ns), 0.95))
            times = f"{count_text(len(self.step_ns) - 1, 'step')} (95% take at most {format_ns(late_ns)})"
            where = f". O{self._step_text()[1:]}. {times} from one {display_name(self.step_name, 40)} to the next"
        return f"{told}, in {count_text(len(self), 'gap')}{between}{where}{function}"

    def _step_text(self) -> str:
        """Say for how long the card is idle in a step, and where the host is meanwhile."""
        whole_ns, gaps = int(self.step_ns[-1] - self.step_ns[0]), (self.start_ns, self.start_ns + self.duration_ns)
        idle_ns = int(StepTime([union_edges(*gaps)]).between(self.step_ns[:1], self.step_ns[-1:])[0])
        where = _where_text(self.step_calls, whole_ns)
        median_ns = float(np.median(np.diff(self.step_ns)))
        return f"of {format_ns(median_ns)} a step the card is idle {format_share(idle_ns / whole_ns)}{where}"

    def _function(self) -> str:
        """Say in which function Python stood most often, where that is no chance."""
        seen = sum(count for _, count in self.functions)
        if seen < LEAST_SAMPLES or self.idle_ns < LEAST_SHARE * self.wall_ns:
            return ""
        name, count = self.functions[0]
        return f"Python stood in {display_name(name, 60)} in {format_share(count / seen)} of {seen:,} samples"

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
    A gap lies between the end of all work so far and the next start, by the kernels, copies and fills in the trace. Until the
    call that launched the work behind it has returned, the host held the card up: then its calls are told, and time in none of
    them is the program's own. Where a launch is not known, the whole gap counts so.

    A step begins with a range of the user or of a library (NVTX), or else with a kernel or copy, of a name that comes at equal
    distances in the order of all of them, as often as most names that do.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 50, 20], end_ns=[10, 60, 45], stream=["a", "a", "main"], kind=["kernel", "kernel", "host"],
    ...     name=["gemm", "relu", "cudaStreamSynchronize"],
    ... )
    >>> found = card_idle(trace)
    >>> found.idle_ns, found.calls[0]
    (40, ('cudaStreamSynchronize', 25))
    >>> found.step_name
    ''
    """
    require_trace(trace, "card_idle")
    is_counted = is_work(trace) & (trace.end_ns > trace.start_ns)
    require_one_rank(trace, is_counted, "card_idle")
    rows = np.flatnonzero(is_counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    starts, ends = sweep(trace, DEVICE_WORK).steps.pauses_ns
    by_end = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    behind = rows[np.searchsorted(trace.start_ns[rows], ends)]
    launch = launch_calls(trace)[behind] if len(behind) else behind
    held_ends = _launched_ns(trace, behind, launch, starts, ends)
    thread = _thread_of(trace, launch)
    step_name, step_ns = repeated(trace)
    in_steps = (np.clip(times_ns, *step_ns[[0, -1]]) if step_name else times_ns[:0] for times_ns in (starts, held_ends, ends))
    return CardIdle(
        trace=trace,
        row=behind,
        before=by_end[np.searchsorted(trace.end_ns[by_end], starts)],
        start_ns=starts,
        duration_ns=ends - starts,
        wall_ns=int(trace.end_ns[by_end[-1]] - trace.start_ns[rows[0]]) if len(rows) else 0,
        calls=_held_by(trace, thread, starts, held_ends, ends),
        functions=count_functions(trace, np.full(len(starts), thread), starts, held_ends),
        step_name=step_name,
        step_ns=step_ns,
        step_calls=_held_by(trace, thread, *in_steps),
    )


def _launched_ns(trace: Trace, behind: Int64Array, launch: Int64Array, starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return until when the host held up the work behind each gap: to the end of its launch, within the gap."""
    queued_ns = trace.queued_ns[behind]
    is_known = (launch >= 0) | (queued_ns < trace.start_ns[behind])
    launched_ns = np.where(launch >= 0, trace.end_ns[launch], queued_ns)
    return np.where(is_known, np.clip(launched_ns, starts, ends), ends)


def _thread_of(trace: Trace, launch: Int64Array) -> int:
    """Return the lane of the thread that launched most of the work, or else made most calls; -1 where there are no calls."""
    calls = launch[launch >= 0]
    calls = calls if len(calls) else np.flatnonzero((trace.kind == _HOST) | (trace.kind == _SAMPLE))
    return int(np.bincount(trace.lane[calls]).argmax()) if len(calls) else -1


def _by_pair(found: CardIdle) -> list[tuple[str, str, int, int]]:
    """Return names behind and before gaps with how many and how long, longest first."""
    trace = found.trace
    pairs = add_up([trace.name[rows].astype(np.int64) for rows in (found.before, found.row)], found.duration_ns)
    return [(trace.names[behind], trace.names[before], count, idle_ns) for (behind, before), count, idle_ns in pairs]


def _held_by(
    trace: Trace, thread: int, starts: Int64Array, held_ends: Int64Array, ends: Int64Array
) -> tuple[tuple[str, int], ...]:
    """Add up by name where a thread was in the gaps, until it had launched the work behind."""
    if thread < 0 or not len(starts):
        return ()
    calls = np.flatnonzero((trace.kind == _HOST) & (trace.lane == thread))
    held_ns = StepTime([union_edges(starts, held_ends)]).between(trace.start_ns[calls], trace.end_ns[calls])
    by_name = np.zeros(len(trace.names), np.int64)
    np.add.at(by_name, trace.name[calls], held_ns)
    told = [(trace.names[code], int(by_name[code])) for code in np.flatnonzero(by_name).tolist()]
    told += _outside_calls(trace, thread, calls, starts, held_ends)
    moves = np.flatnonzero(named_calls(trace, _MOVES.search, SpanKind.ANNOTATION))
    moved_ns = int(StepTime([union_edges(trace.start_ns[moves], trace.end_ns[moves])]).between(held_ends, ends).sum())
    told += [(LAUNCHED, int((ends - held_ends).sum()) - moved_ns), (MOVED, moved_ns)]
    return tuple(sorted((one for one in told if one[1]), key=lambda one: -one[1]))


def _outside_calls(trace: Trace, thread: int, calls: Int64Array, starts: Int64Array, ends: Int64Array) -> list[tuple[str, int]]:
    """Add up the time of a thread in some gaps, and in no call, by the innermost range around it."""
    ranges = np.flatnonzero((trace.kind == _ANNOTATION) & (trace.lane == thread))
    busy = union_edges(trace.start_ns[calls], trace.end_ns[calls])
    gaps = union_edges(starts, ends)
    cuts = np.unique(np.concatenate((busy, gaps, trace.start_ns[ranges], trace.end_ns[ranges])))
    is_outside = (np.searchsorted(gaps, cuts, side="right") % 2 == 1) & (np.searchsorted(busy, cuts, side="right") % 2 == 0)
    begins = np.flatnonzero(is_outside[:-1])
    around = innermost_range(trace, ranges, cuts[begins])
    code = np.where(around >= 0, trace.name[around], len(trace.names))
    held_ns = np.zeros(len(trace.names) + 1, np.int64)
    np.add.at(held_ns, code, cuts[begins + 1] - cuts[begins])
    named = [(f"{trace.names[one]}{IN_NO_CALL}", int(held_ns[one])) for one in np.flatnonzero(held_ns[:-1]).tolist()]
    return [*named, (NO_CALL, int(held_ns[-1]))]


def _where_text(calls: tuple[tuple[str, int], ...], whole_ns: int) -> str:
    """Say where the host was for how much of a time; empty where that is not known, or little."""
    named = [
        f"{format_share(held_ns / whole_ns)} with {'' if name in BEHIND_LAUNCH else 'the host in '}{display_name(name, 70)}"
        for name, held_ns in calls[:3]
        if held_ns >= LEAST_SHARE * whole_ns
    ]
    return f": {', '.join(named)}" if named else ""


def repeated(trace: Trace) -> tuple[str, Int64Array]:
    """Find what a run repeats: what each turn begins with, and when each began on the device; the last, open one only ends.

    Ranges are looked at first, then work.
    """
    rows = np.flatnonzero(is_work(trace) & (trace.end_ns > trace.start_ns))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    marks = np.flatnonzero((trace.kind == _RANGE) | (trace.kind == _ANNOTATION))
    marks = marks[np.argsort(trace.start_ns[marks], kind="stable")]
    groups = [name_group(name) for name in trace.names]
    code_of = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    codes = np.array([code_of[group] for group in groups], np.int64)
    for chosen, least in ((marks, 1), (rows, 2)):  # one kernel alone is no step
        own = chosen[_periodic(codes[trace.name[chosen]], least=least)]
        if not len(own) or not len(rows):
            continue
        began_ns = trace.start_ns[own]
        if chosen is marks and trace.kind[own[0]] == _ANNOTATION:  # on the host: a step begins with what it launched first
            queued_ns = np.maximum.accumulate(trace.queued_ns[rows])
            began_ns = trace.start_ns[rows[np.minimum(np.searchsorted(queued_ns, began_ns), len(rows) - 1)]]
        began_ns = np.unique(began_ns)  # what launched nothing is no step
        if len(began_ns) < LEAST_STEPS:
            continue
        return _TAGS.sub("", groups[int(trace.name[own[0]])]), began_ns
    return "", np.empty(0, np.int64)


def _periodic(codes: Int64Array, *, least: int) -> Int64Array:
    """Return the places of a name that comes once in each step; empty where none does.

    Most names that come at equal distances come as often as there are steps: the others are of something rarer, or finer.
    """
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes) if len(codes) else np.empty(0, np.int64)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    found: dict[int, list[Int64Array]] = {}
    for code in np.flatnonzero(counts >= LEAST_STEPS).tolist():
        places = order[bounds[code] : bounds[code + 1]]
        distances = np.diff(places)
        distance = int(np.median(distances))
        if distance >= least and (distances == distance).mean() >= EQUAL_SHARE:
            found.setdefault(len(places), []).append(places)
    if not found:
        return np.empty(0, np.int64)
    _, count = max((len(names), count) for count, names in found.items())
    return min(found[count], key=lambda places: int(places[0]))
