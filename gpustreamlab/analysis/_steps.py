"""Steps and requests: what names of ranges say of them, how long each took, and what held their work up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, interval_sum_ns, require_trace, sweep_of, turns_of, union_edges
from gpustreamlab.analysis._card_idle import repeated
from gpustreamlab.analysis._causes import find_causes
from gpustreamlab.analysis._device_causes import CODES, event_waits
from gpustreamlab.analysis._host_waits import is_blocking, longest_call, named_calls, thread_lanes
from gpustreamlab.analysis._idle_and_path import KINDS, idle
from gpustreamlab.analysis._pieces import behind_on_lane, find_pieces, launch_calls
from gpustreamlab.analysis._report import Answer, ReportTable, add_up, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.errors import InvalidNameError, OptionError, nearest_hint
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import BoolArray, Cause, IdleKind, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd

StepsBy = Literal["step", "request"]  # What `steps` tells apart
MOST_DEEP = 1_000  # Ranges around a span that are looked at
LEAST_SHARE = 0.05  # Causes are told from this share of the time on
MOST_CAUSES = 3

_NO_ID = re.compile(r"[^\w.:@+-]")
_ASKED = re.compile(r"(?<![a-zA-Z])(?:req|request)s?(?:_?id)?(?:\s*[=:#]\s*([^\s,;)\]]+)|\s+(\d+)\b)", re.IGNORECASE)
_STEP = re.compile(r"(?<![a-zA-Z])(?:profiler)?(?:step|iteration|iter)\s*[=:#_\-]?\s*(\d{1,18})\b", re.IGNORECASE)
_HELD = [SPAN_KINDS.index(kind) for kind in (SpanKind.RANGE, SpanKind.ANNOTATION)]


class NameTags(NamedTuple):
    """What the name of a range says of its step and its requests."""

    phase: str
    """The name without that."""
    requests: tuple[str, ...] = ()
    """Requests that share it; empty for none."""
    step: int = -1
    """The step; -1 for none."""


def tagged_name(name: str, *, request: object = None, step: int | None = None) -> str:
    """Return the name of a range that says of which step and which requests it is: other tools show it, too.

    Parameters
    ----------
    name
        The range's own.
    request
        A text or number, or several for a batch that requests share; None for none.
    step
        A number from 0 on; None for none.

    Raises
    ------
    InvalidNameError
        If the step is no such number, or a request is no text or number.

    Examples
    --------
    >>> tagged_name("decode", request=[7, 9], step=3), name_tags("decode request=7/9 step=3")
    ('decode request=7/9 step=3', NameTags(phase='decode', requests=('7', '9'), step=3))
    >>> name_tags("ProfilerStep#12"), name_tags("gemm")
    (NameTags(phase='step', requests=(), step=12), NameTags(phase='gemm', requests=(), step=-1))
    """
    parts = [name]
    if request is not None:
        several = request if isinstance(request, Iterable) and not isinstance(request, str) else [request]
        asked = [_NO_ID.sub("_", str(one).strip()) for one in several]
        if not asked or not all(asked):
            raise InvalidNameError(f"request is {request!r}; it is a text or a number, or several, as request=[7, 9].")
        parts.append(f"request={'/'.join(asked)}")
    if step is not None:
        if isinstance(step, bool) or not hasattr(step, "__index__") or not 0 <= int(step) < 10**18:
            raise InvalidNameError(f"step is {step!r}; it is a number from 0 on, as step=3.")
        parts.append(f"step={int(step)}")
    return " ".join(parts)


def name_tags(name: str) -> NameTags:
    """Return what the name of a range says of its step and requests, whoever wrote it: ``step 12``, ``request=7``, ..."""
    asked, step = _ASKED.search(name), _STEP.search(name)
    if not asked and not step:
        return NameTags(name)
    phase = " ".join(_STEP.sub(" ", _ASKED.sub(" ", name)).split()).strip(" ,;:()[]-_")
    requests = tuple(dict.fromkeys(filter(None, (asked[1] or asked[2]).split("/")))) if asked else ()
    return NameTags(phase or ("step" if step else "request"), requests, int(step[1]) if step else -1)


def spans_named(trace: Trace, name: str) -> BoolArray:
    """Tell which spans have a name, or else are ranges of that name in any step or request; shape (n_spans,), bool."""
    if name in trace.names:
        own: BoolArray = trace.name == trace.names.index(name)
        return own
    codes = [code for code, text in enumerate(trace.names) if name_tags(text).phase == name]
    return np.isin(trace.name, codes) & np.isin(trace.kind, _HELD)


class TagColumns(NamedTuple):
    """Of which step, which requests and which phase each span is: its own, or the nearest range's around it or its launch."""

    step: Int64Array
    """Number of the step, or -1; shape (n_spans,), int64."""
    request: Int64Array
    """Index into `requests`, or -1; shape (n_spans,), int64."""
    phase: Int64Array
    """Index into `phases`, or -1; shape (n_spans,), int64."""
    requests: tuple[tuple[str, ...], ...]
    """Requests that share something."""
    phases: tuple[str, ...]
    """Names of ranges that are of a step or a request, without these."""


def tag_columns(trace: Trace) -> TagColumns:
    """Return of which step, requests and phase each span of a trace is."""
    is_range = np.isin(trace.kind, _HELD)
    told = {code: name_tags(trace.names[code]) for code in np.unique(trace.name[is_range]).tolist()}
    told = {code: tags for code, tags in told.items() if tags.requests or tags.step >= 0}
    requests = tuple(dict.fromkeys(tags.requests for tags in told.values() if tags.requests))
    phases = tuple(dict.fromkeys(tags.phase for tags in told.values()))
    by_name = np.full((3, len(trace.names)), -1, np.int64)
    place = {one: at for at, one in enumerate(requests)}, {one: at for at, one in enumerate(phases)}
    for code, tags in told.items():
        by_name[:, code] = tags.step, place[0].get(tags.requests, -1), place[1][tags.phase]
    found = np.where(is_range, by_name[:, trace.name], -1)
    if told:
        call = launch_calls(trace)
        for own in found:
            own[:] = _inherited(trace, own)
            left = (own < 0) & (call >= 0)
            own[left] = own[call[left]]
    return TagColumns(found[0], found[1], found[2], requests, phases)


def _inherited(trace: Trace, own: Int64Array) -> Int64Array:
    """Return for each row its own value, or that of the nearest range around it that has one, or -1."""
    found, above = own.copy(), trace.parent.copy()
    asking = np.flatnonzero((found < 0) & (above >= 0))
    for _ in range(MOST_DEEP):
        if not len(asking):
            break
        found[asking] = own[above[asking]]
        above[asking] = trace.parent[above[asking]]
        asking = asking[(found[asking] < 0) & (above[asking] >= 0)]
    return found


class Phase(NamedTuple):
    """All ranges of one name that are of steps or requests."""

    name: str
    """Their name without these."""
    range_count: int
    """How many steps or requests had one."""
    p50_ns: int
    """Half of them took at most so long, in ns."""
    p95_ns: int
    """95% of them took at most so long, in ns."""
    causes: tuple[tuple[str, float], ...]
    """What held their work up, and for which share of their time on their streams; longest first."""

    @property
    def text(self) -> str:
        """What held it up, in a line."""
        return f"{display_name(self.name, 40)}: {self.held_up or 'nothing held it up'}"

    @property
    def held_up(self) -> str:
        """The causes that count, in words; empty where there are none."""
        told = [f"{format_share(share)} {cause}" for cause, share in self.causes if share >= LEAST_SHARE]
        return ", ".join(told[:MOST_CAUSES])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Steps(Answer):
    """How long each step, or each request, took. False where there are none.

    A step lasts from when the host had asked for it and its stream was free to the end of its last work.
    """

    by: StepsBy
    """What each row stands for."""
    labels: tuple[str, ...]
    """The step or request of each row."""
    start_ns: Int64Array
    """When it began; shape (n_rows,), int64, in ns."""
    end_ns: Int64Array
    """When its last work ended; shape (n_rows,), int64, in ns."""
    busy_ns: Int64Array
    """For how long any of its work ran, what requests share in full; shape (n_rows,), int64, in ns."""
    part_ns: Int64Array
    """Time of its work, of what n requests share an nth, so that all rows make up the whole; shape (n_rows,), int64, in ns."""
    phases: tuple[Phase, ...]
    """The ranges that they consist of, what takes longest first."""

    _columns: ClassVar = ("start_ns", "end_ns", "busy_ns", "part_ns")
    _title: ClassVar = "Steps:"
    _frame: ClassVar = {name: name for name in ("start_ns", "end_ns", "duration_ns", "busy_ns", "part_ns")}

    @property
    def duration_ns(self) -> Int64Array:
        """From its beginning to its end; shape (n_rows,), int64, in ns."""
        return self.end_ns - self.start_ns

    @property
    def text(self) -> str:
        """How long they took, and what held up the two phases that take longest, in a line."""
        return "; ".join([self._line(), *(one.text for one in self.phases if one.held_up)][:MOST_CAUSES])

    def quantile_ns(self, share: float) -> int:
        """Return how long that share of them took at most, in ns: 0.5 for half of them; 0 where there are none."""
        return int(np.quantile(self.duration_ns, share, method="higher")) if len(self) else 0

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each step or request, which is the first column: when it was, and its times in ns."""
        frame = Answer.to_pandas(self)
        frame.insert(0, self.by, self.labels)
        return frame

    def lanes_trace(self) -> Trace:
        """Return a trace with a lane for each step or request, and in it a range for each phase of it.

        What several requests share is in the lane of each, and its name says so. The ranges last from the first
        work in them to the last.

        Examples
        --------
        >>> names = ["decode request=7", "decode request=7/9", "prefill request=9"]
        >>> trace = Trace.from_columns(start_ns=[0, 9, 20], end_ns=[8, 19, 30], stream=["a", "a", "b"], name=names)
        >>> lanes = steps(trace, "request").lanes_trace()
        >>> [(lanes.lanes[lane].name, lanes.names[name]) for lane, name in zip(lanes.lane, lanes.name)]
        [('request 7', 'decode'), ('request 7', 'decode, shared'), ('request 9', 'decode, shared'), ('request 9', 'prefill')]
        """
        tags, keys, work, code = _find(self.trace, self.by)
        start_ns, end_ns = _extents(work.instance, keys.shape[1], self.trace.start_ns[work.row], self.trace.end_ns[work.row])
        own = np.full(keys.shape[1], -1, np.int64)
        own[work.instance] = code[work.row]
        ran = np.flatnonzero(own >= 0)
        row, label, sharers, _ = _members(tags, self.by, own[ran])
        texts = _flat(tags.requests)
        made = type(self.trace).from_columns(
            start_ns=start_ns[ran[row]],
            end_ns=end_ns[ran[row]],
            stream=[f"{self.by} {one if self.by == 'step' else texts[one]}" for one in label.tolist()],
            name=[
                f"{tags.phases[phase]}{', shared' * (count > 1)}"
                for phase, count in zip(keys[0, ran[row]].tolist(), sharers.tolist(), strict=True)
            ],
            kind=SpanKind.ANNOTATION,
        )
        # No stream is busy with them: what is said of streams, as that they share a queue, would be wrong of requests.
        lanes = tuple(replace(lane, kind=LaneKind.STREAM, name=lane.name.removeprefix("host: ")) for lane in made.lanes)
        return replace(made, lanes=lanes, metadata=replace(self.trace.metadata, devices=()))

    def _line(self) -> str:
        if not len(self):
            return f"no range says of which {self.by} it is"
        times = f"half take at most {format_ns(self.quantile_ns(0.5))}, 95% at most {format_ns(self.quantile_ns(0.95))}"
        return f"{count_text(len(self), self.by)}, {times}"

    def _tables(self) -> list[ReportTable]:
        def of_phase(one: Phase) -> list[str]:
            times = [format_ns(one.p50_ns), format_ns(one.p95_ns)]
            return [display_name(one.name, 40), f"{one.range_count:,}", *times, one.held_up]

        def of_row(place: int) -> list[str]:
            times = [format_ns(int(values[place])) for values in (self.duration_ns, self.busy_ns, self.part_ns)]
            return [self.labels[place], *times]

        phases = listed("What they consist of", ["range", "count", "p50", "p95", "held up"], self.phases, of_phase, most=10)
        rows = listed(f"By {self.by}", [self.by, "took", "busy", "its part"], range(len(self)), of_row)
        return [*([phases] if self.phases else []), rows]

    def _notes(self) -> list[str]:
        shared = "Busy counts what requests share for each of them, its part only an nth of it."
        return [*([shared] if self.by == "request" and len(self) else []), *self.metadata.missing]


def steps(trace: Trace, by: StepsBy = "step") -> Steps:
    """Say how long each step or request took, and what held up the ranges that it consists of.

    Parameters
    ----------
    trace
        The spans.
    by
        ``"step"`` or ``"request"``, as ``lab.range("decode", request=7, step=3)`` says; so do names of other ranges, as
        ``step 12``, ``iteration=12``, ``ProfilerStep#12`` or ``request=7``. Where no range says a step, what the run repeats
        counts, see `CardIdle.step_name`.

    Raises
    ------
    OptionError
        If it is no trace, or `by` is another word.

    Notes
    -----
    Work is of the step and requests of the nearest range around it, or around its launch. What held it up is told for the time
    on its streams, by the gaps before its work since the range was entered, see `idle`: of events, and of full SMs and copy
    engines, the work in front is named. That a kernel took longer beside others counts, too, see `explain`.

    Examples
    --------
    >>> names = ["decode step=0", "decode step=1", "decode step=2"]
    >>> trace = Trace.from_columns(start_ns=[0, 50, 80], end_ns=[40, 70, 90], stream=["a"] * 3, name=names)
    >>> steps(trace)
    <Steps: 3 steps, half take at most 20 ns, 95% at most 40 ns>
    """
    require_trace(trace, "steps")
    if by not in get_args(StepsBy):
        raise OptionError(
            f"steps() is by 'step' or 'request', not {str(by)[:40]!r}. {nearest_hint(str(by), get_args(StepsBy))}"
        )
    tags, keys, work, code = _find(trace, by)
    row, group, sharers, turn = _members(tags, by, code[work.row])
    labels, group = np.unique(group, return_inverse=True)
    lasted_ns = trace.duration_ns[work.row[row]]
    part_ns, busy_ns = np.zeros((2, len(labels)), np.int64)
    np.add.at(part_ns, group, lasted_ns // sharers + (turn < lasted_ns % sharers))
    start_ns, end_ns = _extents(group, len(labels), work.begin_ns[row], trace.end_ns[work.row[row]])
    by_group = row[np.argsort(group, kind="stable")]
    bounds = np.searchsorted(np.sort(group), np.arange(len(labels) + 1))
    for at in range(len(labels)):
        own = by_group[bounds[at] : bounds[at + 1]]
        busy_ns[at] = interval_sum_ns(union_edges(trace.start_ns[work.row[own]], trace.end_ns[work.row[own]]))
    order = np.argsort(start_ns, kind="stable")
    texts = [str(one) if by == "step" else _flat(tags.requests)[one] for one in labels[order].tolist()]
    return Steps(
        trace=trace,
        by=by,
        labels=tuple(texts),
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        busy_ns=busy_ns[order],
        part_ns=part_ns[order],
        phases=_phases(trace, tags, work, keys[0]),
    )


def _find(trace: Trace, by: StepsBy) -> tuple[TagColumns, Int64Array, _Work, Int64Array]:
    """Return the tags, the instances (phase, step and requests of each), their work, and the step or requests of each row."""
    tags = tag_columns(trace)
    is_told = by == "request" or bool((tags.step >= 0).any())
    asked_ns = trace.queued_ns if is_told else trace.start_ns
    tags = tags if is_told else _repeats(trace, tags)
    code = tags.step if by == "step" else tags.request
    inside = np.flatnonzero((code >= 0) & (tags.phase >= 0))
    keys, place = np.unique(np.stack((tags.phase, tags.step, tags.request))[:, inside], axis=1, return_inverse=True)
    of_row = np.full(len(trace), -1, np.int64)
    of_row[inside] = place.reshape(-1)
    since_ns = np.full(keys.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(since_ns, of_row[inside], asked_ns[inside])
    work = _Work(trace, of_row, since_ns)
    return tags, keys, work, code


def named_steps(trace: Trace) -> Steps | None:
    """Return the steps that ranges name, or else the requests; None where they name neither."""
    tags = tag_columns(trace)
    by: StepsBy = "step" if (tags.step >= 0).any() else "request"
    return steps(trace, by) if by == "step" or tags.requests else None


class _Work:
    """The work of some instances of ranges: of which one each row is, or -1, and when the host had asked for each."""

    def __init__(self, trace: Trace, of_row: Int64Array, since_ns: Int64Array) -> None:
        counted = counted_rows(trace) & (trace.end_ns > trace.start_ns)
        row = np.flatnonzero(counted & (of_row >= 0))
        self.counted = counted
        self.row = row[~np.isin(trace.parent[row], row)]  # a range that stands in another one is part of it
        self.of_row, self.since_ns, self.instance = of_row, since_ns, of_row[self.row]
        behind = behind_on_lane(trace, sweep_of(trace, counted).by_lane)[self.row]
        self.is_first = behind < 0  # on its stream
        free_ns = np.where(self.is_first, np.iinfo(np.int64).min, trace.end_ns[behind])
        self.begin_ns = np.minimum(trace.start_ns[self.row], np.maximum(free_ns, since_ns[self.instance]))
        self.alone_ns = np.maximum(trace.end_ns[self.row] - np.maximum(trace.start_ns[self.row], free_ns), 0)
        """For how long each ran when nothing before it on its stream still did."""


def _repeats(trace: Trace, tags: TagColumns) -> TagColumns:
    """Return what a run repeats as its steps, by when work began."""
    name, began_ns = repeated(trace)
    step = np.searchsorted(began_ns, trace.start_ns, side="right") - 1
    step[(step == len(began_ns) - 1) | ~counted_rows(trace)] = -1
    return tags._replace(step=step, phase=np.where(step >= 0, 0, -1), phases=(name,))


def _flat(requests: Sequence[tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(one for several in requests for one in several))


def _members(tags: TagColumns, by: StepsBy, code: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Return a row for each work and each step or request that it is of: its place, that, how many share it, and its turn."""
    if by == "step":
        return np.arange(len(code)), code, np.ones(len(code), np.int64), np.zeros(len(code), np.int64)
    place = {one: at for at, one in enumerate(_flat(tags.requests))}
    sizes = np.array([len(several) for several in tags.requests], np.int64)
    members = np.array([place[one] for several in tags.requests for one in several], np.int64)
    sharers = sizes[code]
    row, turn = np.repeat(np.arange(len(code)), sharers), turns_of(sharers)
    return row, members[(np.cumsum(sizes) - sizes)[code[row]] + turn], sharers[row], turn


def _extents(group: Int64Array, count: int, begin_ns: Int64Array, end_ns: Int64Array) -> tuple[Int64Array, Int64Array]:
    starts, ends = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(starts, group, begin_ns)
    np.maximum.at(ends, group, end_ns)
    return starts, ends


def _phases(trace: Trace, tags: TagColumns, work: _Work, phase_of: Int64Array) -> tuple[Phase, ...]:
    """Say of each phase how long its ranges took, and what held their work up."""
    start_ns, end_ns = _extents(work.instance, len(phase_of), work.begin_ns, trace.end_ns[work.row])
    ran = np.flatnonzero(end_ns > start_ns)
    whole_ns = np.zeros(len(tags.phases), np.int64)
    np.add.at(whole_ns, phase_of[work.instance], trace.start_ns[work.row] - work.begin_ns + work.alone_ns)
    held: dict[int, list[tuple[str, float]]] = {}
    texts, parts = _held_up(trace, tags, work)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    for (phase, cause), _, total_ns in add_up(columns[:2], columns[2]):
        if total_ns and whole_ns[phase]:
            held.setdefault(phase, []).append((texts(cause), total_ns / int(whole_ns[phase])))
    found = []
    for phase in np.argsort(-whole_ns, kind="stable").tolist():
        lasted_ns = (end_ns - start_ns)[ran[phase_of[ran] == phase]]
        if len(lasted_ns):
            p50, p95 = (int(np.quantile(lasted_ns, share, method="higher")) for share in (0.5, 0.95))
            found.append(Phase(tags.phases[phase], len(lasted_ns), p50, p95, tuple(held.get(phase, ()))))
    return tuple(found)


def _held_up(
    trace: Trace, tags: TagColumns, work: _Work
) -> tuple[Callable[[int], str], list[tuple[Int64Array, Int64Array, Int64Array]]]:
    """Return what tells a cause by its code; and by phase and cause for how long it held something up, a row for each."""
    gaps, first = idle(trace), work.row[work.is_first]
    own = np.flatnonzero(np.isin(gaps.row, work.row))
    awaited, _ = event_waits(trace, first, 0)
    is_event = (awaited >= 0) & (trace.end_ns[awaited] > work.begin_ns[work.is_first])
    row = np.concatenate((gaps.row[own], first))
    kind = np.concatenate((gaps.kind[own], np.where(is_event, _EVENT, KINDS.index(IdleKind.HOST))))
    from_ns = np.concatenate((gaps.start_ns[own], work.begin_ns[work.is_first]))
    to_ns = np.concatenate((gaps.start_ns[own] + gaps.duration_ns[own], trace.start_ns[first]))
    from_ns = np.maximum(from_ns, work.since_ns[work.of_row[row]])
    inside = from_ns < to_ns
    row, kind, from_ns, to_ns = (values[inside] for values in (row, kind, from_ns, to_ns))

    def who(of: Int64Array, front: Int64Array) -> Int64Array:
        """Name what stood in front by its phase, or its stream where that is the same one, or none."""
        phase = tags.phase[front]
        return np.where((phase >= 0) & (phase != tags.phase[of]), phase, len(tags.phases) + trace.lane[front])

    pieces = find_pieces(trace, work.counted)
    causes = find_causes(trace, pieces)
    is_slow = causes.cause == CODES.index(Cause.SLOWED_DOWN)
    device = np.flatnonzero((causes.before >= 0) & ~is_slow)
    device = device[np.argsort(causes.waited_ns[device], kind="stable")]  # of several for one row the longest counts
    front = np.full(len(trace), -1, np.int64)
    front[pieces.row[causes.piece[device]]] = causes.before[device]
    awaited, _ = event_waits(trace, row, 0)
    is_queued = kind == KINDS.index(IdleKind.OTHER)
    stood = np.where(kind == _EVENT, awaited, np.where(is_queued, front[row], -1))
    behind = np.where(stood >= 0, _BEHIND + who(row, stood), np.where(is_queued, _QUEUED, _LAUNCHES))
    blocking = np.flatnonzero(named_calls(trace, is_blocking))
    call = longest_call(trace, blocking, thread_lanes(trace, launch_calls(trace))(row), from_ns, to_ns)
    in_call_ns = np.minimum(trace.end_ns[call], to_ns) - np.maximum(trace.start_ns[call], from_ns)
    waits = (kind == KINDS.index(IdleKind.HOST)) & (call >= 0) & (in_call_ns > (to_ns - from_ns) / 2)
    behind[waits] = _IN_CALL - trace.name[call[waits]]
    slow = np.flatnonzero(is_slow & (causes.before >= 0))
    slow = slow[work.of_row[causes.call[slow]] >= 0]
    slowed, by = causes.call[slow], causes.before[slow]

    def text(code: int) -> str:
        if code <= _IN_CALL:
            return f"with the host in {display_name(trace.names[_IN_CALL - code], 40)}"
        if code < _BEHIND:
            return _PLAIN[code]
        place, is_slowed = (code - _BEHIND) % _SLOWED, code >= _BEHIND + _SLOWED
        name = tags.phases[place] if place < len(tags.phases) else trace.lanes[place - len(tags.phases)].name
        return f"{'slowed by' if is_slowed else 'behind'} {display_name(name, 32)}"

    return text, [
        (tags.phase[row], behind, to_ns - from_ns),
        (tags.phase[slowed], _BEHIND + _SLOWED + who(slowed, by), causes.waited_ns[slow]),
    ]


_LAUNCHES, _QUEUED, _BEHIND, _SLOWED, _IN_CALL = 0, 1, 2, 1 << 40, -1
_EVENT = KINDS.index(IdleKind.EVENT)
_PLAIN = ("bound by launches", "in its queue")
