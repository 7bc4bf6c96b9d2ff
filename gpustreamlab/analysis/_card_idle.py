"""How long a card had nothing to do between its first work and its last, and where the host was meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpustreamlab.analysis._busy import is_work, require_one_rank, require_trace, union_edges
from gpustreamlab.analysis._pieces import launch_calls
from gpustreamlab.analysis._report import Answer, ReportTable, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share, name_group
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Int64Array, SpanKind

_HOST, _SAMPLE, _RANGE, _ANNOTATION = (
    SPAN_KINDS.index(kind) for kind in (SpanKind.HOST, SpanKind.SAMPLE, SpanKind.RANGE, SpanKind.ANNOTATION)
)
NO_CALL = "no CUDA call (Python, data, the program's own code)"
"""Where the host was when it was in none of the calls that are recorded."""
LAUNCHED = "work launched that had not begun (events, queues, latency)"
"""What stands for the time from a launch to the start of the work."""
LEAST_SAMPLES = 12
"""Of fewer samples nothing is said."""
LEAST_STEPS = 4
"""How often something has to come to be a step."""
EQUAL_SHARE = 0.8
"""Share of the distances between two of a name, counted in spans, that are equal, from which on it comes once in each step."""
LEAST_SHARE = 0.01
"""Share of the whole time from which on a call is named in the line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Steps that a run repeats: from one start of a range, or of work, that comes once in each, to the next."""

    name: str
    """What each begins with; empty where nothing repeats."""
    start_ns: Int64Array
    """When each began, on the device; shape (n_steps,), int64, in ns."""
    duration_ns: Int64Array
    """Up to the next; shape (n_steps,), int64, in ns. The last step, whose end nobody knows, is left out."""
    idle_ns: Int64Array
    """For how long of that the card was idle; shape (n_steps,), int64, in ns."""

    @property
    def text(self) -> str:
        """How many there are, how long they take, and how long the card is idle in each, in half a line."""
        median_ns, late_ns = (float(np.quantile(self.duration_ns, share)) for share in (0.5, 0.95))
        idle_ns = float(np.median(self.idle_ns))
        times = f"{format_ns(median_ns)} each (95% take at most {format_ns(late_ns)})"
        begun = f"from one {display_name(self.name, 40)} to the next"
        return f"{count_text(len(self.start_ns), 'step')} of {times}, {begun}, idle for {format_ns(idle_ns)} of it (medians)"


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
    `NO_CALL` stands for the time in none, `LAUNCHED` for that from a launch to the start. Empty where no calls are in the
    trace."""
    functions: tuple[tuple[str, int], ...]
    """Functions of Python in which that thread was seen in the gaps until the launch, and how often; most first. Empty without
    samples."""
    steps: Steps
    """The steps that the run repeats, where there are any."""

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
            f"{format_share(held_ns / self.wall_ns)} with {'' if name == LAUNCHED else 'the host in '}{display_name(name, 70)}"
            for name, held_ns in self.calls[:3]
            if held_ns >= LEAST_SHARE * self.wall_ns
        ]
        where = f": {', '.join(named)}" if named else ""
        function = f"; {self._function()}" if self._function() else ""
        steps = f"; {self.steps.text}" if len(self.steps.start_ns) else ""
        return f"{told}, in {count_text(len(self), 'gap')}{where}{function}{steps}"

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
    >>> len(found.steps.start_ns)
    0
    """
    require_trace(trace, "card_idle")
    is_counted = is_work(trace) & (trace.end_ns > trace.start_ns)
    require_one_rank(trace, is_counted, "card_idle")
    rows = np.flatnonzero(is_counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    edges = union_edges(trace.start_ns[rows], trace.end_ns[rows])
    starts, ends = edges[1:-1:2], edges[2::2]
    by_end = rows[np.argsort(trace.end_ns[rows], kind="stable")]
    behind = rows[np.searchsorted(trace.start_ns[rows], ends)]
    launch = launch_calls(trace)[behind] if len(behind) else behind
    held_ends = _launched_ns(trace, behind, launch, starts, ends)
    thread = _thread_of(trace, launch)
    return CardIdle(
        trace=trace,
        row=behind,
        before=by_end[np.searchsorted(trace.end_ns[by_end], starts)],
        start_ns=starts,
        duration_ns=ends - starts,
        wall_ns=int(edges[-1] - edges[0]) if len(edges) else 0,
        calls=_held_by(trace, thread, starts, held_ends, ends),
        functions=_seen_in(trace, starts, held_ends),
        steps=_find_steps(trace, rows, starts, ends),
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
    calls = calls if len(calls) else np.flatnonzero(trace.kind == _HOST)
    return int(np.bincount(trace.lane[calls]).argmax()) if len(calls) else -1


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


def _held_by(
    trace: Trace, thread: int, starts: Int64Array, held_ends: Int64Array, ends: Int64Array
) -> tuple[tuple[str, int], ...]:
    """Add up by name where a thread was in the gaps, until it had launched the work behind."""
    if thread < 0 or not len(starts):
        return ()
    calls = np.flatnonzero((trace.kind == _HOST) & (trace.lane == thread))
    held_ns = _idle_before_ns(starts, held_ends, trace.end_ns[calls]) - _idle_before_ns(
        starts, held_ends, trace.start_ns[calls]
    )
    by_name = np.zeros(len(trace.names), np.int64)
    np.add.at(by_name, trace.name[calls], held_ns)
    told = [(trace.names[code], int(by_name[code])) for code in np.flatnonzero(by_name).tolist()]
    told.append((NO_CALL, max(0, int((held_ends - starts).sum()) - int(by_name.sum()))))
    told.append((LAUNCHED, int((ends - held_ends).sum())))
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


def _find_steps(trace: Trace, rows: Int64Array, starts: Int64Array, ends: Int64Array) -> Steps:
    """Find what a run repeats: ranges first, then work, which is given in the order of its starts."""
    marks = np.flatnonzero((trace.kind == _RANGE) | (trace.kind == _ANNOTATION))
    marks = marks[np.argsort(trace.start_ns[marks], kind="stable")]
    groups = [name_group(name) for name in trace.names]
    code_of = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    codes = np.array([code_of[group] for group in groups], np.int64)
    for chosen, least in ((marks, 1), (rows, 2)):  # one kernel alone is no step
        first = _periodic(codes[trace.name[chosen]], least=least)
        if not len(first):
            continue
        own = chosen[first]
        began_ns = trace.start_ns[own]
        if chosen is marks and trace.kind[own[0]] == _ANNOTATION:  # on the host: a step begins with what it launched first
            queued_ns = np.maximum.accumulate(trace.queued_ns[rows])
            began_ns = trace.start_ns[rows[np.minimum(np.searchsorted(queued_ns, began_ns), len(rows) - 1)]]
        before_ns = _idle_before_ns(starts, ends, began_ns) if len(starts) else np.zeros(len(began_ns), np.int64)
        return Steps(
            name=groups[int(trace.name[own[0]])],
            start_ns=began_ns[:-1],
            duration_ns=np.diff(began_ns),
            idle_ns=np.diff(before_ns),
        )
    nothing = np.empty(0, np.int64)
    return Steps(name="", start_ns=nothing, duration_ns=nothing, idle_ns=nothing)


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
