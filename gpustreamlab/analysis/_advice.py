"""What changing one thing, and then another, would gain: each is scheduled anew before it is promised."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._busy import of_each_trace
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._data_order import read_memory
from gpustreamlab.analysis._explanation import MOST_ERROR, Forecast
from gpustreamlab.analysis._host_waits import ALLOCATES, calls_alike, copy_rates, named_calls
from gpustreamlab.analysis._makers import NVIDIA, maker_of
from gpustreamlab.analysis._needed_waits import needed_calls
from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD, Call, Program, Work, in_launch_order, read_program
from gpustreamlab.analysis._replay import Impossible, calibrate, has_full_sms, is_as_before, replay
from gpustreamlab.analysis._strays import strays
from gpustreamlab.errors import OptionError
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import Cause, Change, Int64Array, SpanKind

MOST_WORKS, PIECES = 1_600, 4
"""Of runs with more work so many pieces, with so much work together, are scheduled anew and stand for the whole."""
LEAST_SHARE = 0.02
"""A change that gains less than this share of the run is not worth telling."""
LAST_TIMES = 2.5
"""What is only looked at where nothing simpler gains has to gain so many times that."""
MOST_STEPS = 4
"""How many changes are told, one on top of the other."""
STREAM_COUNTS = (2, 4, 8)
"""On how many streams kernels of one stream are tried."""
ENOUGH_SHARE = 0.9
"""The fewest streams are advised that gain this share of what the best number of them does."""
SAME_SHARE = 0.98
"""Of changes that gain about the same, the simplest is advised, which comes first."""
ONE_STREAM_SHARE = 0.98
"""A stream with so much of the work is as good as the only one: arrays are often made on another one, once."""
ONE_OF = (Cause.SAME_LANE, Cause.PARTITION_SMALL)
"""Causes of which one change is made: a further one of that kind would be another program."""
UNEVEN_TIMES = 1.4
"""From how many times the mean of such streams on one has more to do than others."""
USUAL_RATES: Mapping[int, float] = MappingProxyType({7: 13e9, 8: 27e9, 9: 53e9, 10: 53e9, 12: 53e9})
"""Bytes per second of copies of page-locked memory, by the major compute capability: 85% of PCIe 3, 4 and 5 with 16 lanes."""
ENOUGH_BUFFERS = 1 << 30
"""With so many arrays no write waits for a read: only results order work."""
FEWEST_WAITS = 4
"""From so many waits for events on, what one takes the host is known."""
MOST_CALL_NS = 40_000
"""What the host takes at most to let a stream wait, with all that Python does for it, or to launch on another stream. Source:
18 to 46 us in ten programs of CuPy on an H200."""
_STREAM_WAITS = re.compile(r"StreamWaitEvent")
GRAPH_CALL_NS, GRAPH_NODE_NS = 5_000, 200
"""What the launch of a graph costs the host, and each node of it. Source: the simulated device, after an H100."""
PACE_TIMES = 1.5
"""How many times as fast a host may be a second later: on an H200's, medians of launches changed by a third."""


class Option(NamedTuple):
    """Something that may be changed."""

    key: str  # what it is called in texts
    cause: Cause
    make: Callable[[Run], Run | Sequence[Run] | None]  # what the program would be: of several the best counts
    is_last: bool = False  # only looked at where nothing else gains
    is_guess: bool = False  # only looked at where nothing else at all gains, and never promised


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One change on top of those before it."""

    key: str
    cause: Cause
    gain_ns: int
    """What it gains, in ns."""
    before: Run
    after: Run
    is_guess: bool = False
    """Whether it rests on what nobody knows."""

    @property
    def places(self) -> list[int]:
        """Work that it changes, or that the calls launch which it changes, as places in `Program.works`."""
        before, after = self.before.program, self.after.program
        if before.works != after.works:
            pairs = zip(before.works, after.works, strict=True)
            found = [place for place, (one, other) in enumerate(pairs) if one != other]
            kernels = [place for place in found if before.works[place].kind == KERNEL]
            return kernels if self.key == "in_streams" and kernels else found
        both = enumerate(zip(before.seats, after.seats, strict=False))
        seats = {lane: len(seat) for lane, (seat, then) in both if seat is not None and seat != then}
        if seats:  # the stream that had fewest SMs is what it is about
            return [place for place, work in enumerate(before.works) if work.lane == min(seats, key=seats.__getitem__)]
        kept = frozenset(after.calls)
        launched = [place for call in before.calls if call not in kept for place in call.works]
        waiting = [after for _, after in sorted(before.waits - after.waits)]
        return launched or waiting

    @property
    def shortened(self) -> list[Call]:
        """Calls that launch work and take less time than they did, as they were."""
        pairs = zip(self.before.program.calls, self.after.program.calls, strict=False)
        return [one for one, other in pairs if self.key == "calls" and one.works and other.cost_ns < one.cost_ns]

    @property
    def held(self) -> list[tuple[int, int]]:
        """Calls that waited and no longer do, or for less, each with the work that it launched or waited for, as rows."""
        program, kept = self.before.program, frozenset(self.after.program.calls)
        waiting = [call for call in program.calls if call.row >= 0 and call.awaits]
        gone = [call for call in waiting if call not in kept]
        if self.key == "pinned":
            gone = gone or [call for call in waiting if not {*self.places}.isdisjoint(call.works)]
        return [(call.row, program.works[held_by(program, call)].row) for call in gone]


def held_by(program: Program, call: Call) -> int:
    """Return the work that a call held up: what it launches, else what its thread launches next, else what it waited for."""
    behind = program.calls[program.calls.index(call) :]
    return next((one.works[0] for one in behind if one.works and one.thread == call.thread), call.awaits[0])


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What a run took, what it would take, and what no order can beat."""

    runs: tuple[Run, ...]
    """The program as it was recorded: of a long one some pieces."""
    steps: tuple[Step, ...]
    """Changes, each on top of those before; what gains most comes first."""
    forecast: Forecast
    """What that comes to."""

    @property
    def is_certain(self) -> bool:
        """Whether what no step changes is known to gain nothing: all that work touches is known, and where the host waited."""
        # Of several cards only changes are tried that leave work where it is.
        is_known = all(run.memory.is_known and run.program.has_calls and not run.program.cards for run in self.runs)
        told = self.forecast
        is_guess = bool(self.steps) and all(step.is_guess for step in self.steps)  # that rests on nothing else
        return is_known and (not told.is_bound or (is_guess and abs(told.error) <= MOST_ERROR and not told.is_frail))

    @property
    def needed_calls(self) -> frozenset[int]:
        """Calls whose waits the host may need for what it launches next, as rows of the trace: they stay in all changes."""
        kept = ((run.program.calls, needed_calls(run.program, run.memory)) for run in self.runs)
        return frozenset(calls[number].row for calls, numbers in kept for number in numbers)


def advise(trace: Trace, rows: Int64Array, calls: Mapping[Cause, Sequence[int]], slowed_ns: int) -> Advice | None:
    """Find what changing gains in some work of devices that are alike; None where the run cannot be played again."""
    # `calls` are rows of calls of the host that held it up, by what they did; `slowed_ns` is what it cost that kernels slowed
    # each other down: what they share besides the SMs is not scheduled.
    runs, measured_ns, share = read_runs(trace, rows)
    try:
        walls = [replay(run.program).wall_ns for run in runs]
    except Impossible:
        return None
    options = _options(trace, runs[0], calls)
    steps, after = _greedy(_State(runs, tuple(walls)), options)
    floors = [_floor(run) for run in after.runs]
    kinds = dict.fromkeys(name for told in floors for name in told)
    floor_of = max(kinds, key=lambda name: sum(told.get(name, 0) for told in floors))
    floor_ns = min(sum(told.get(floor_of, 0) for told in floors), after.wall_ns)
    # Pieces stand for the whole: gains and the floor are shares of it.
    whole_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    times = whole_ns / measured_ns if share < 1 else 1.0
    steps = [replace(step, gain_ns=round(step.gain_ns * times)) for step in steps]
    forecast = Forecast(
        measured_ns=whole_ns,
        replayed_ns=round(sum(walls) * times),
        gain_ns=sum(step.gain_ns for step in steps),
        change_count=len(steps),
        floor_ns=round(floor_ns * times),
        floor_of=floor_of,
        is_bound=False,
        slowed_ns=slowed_ns,
        is_frail=bool(steps) and not trace.metadata.simulated and _dear_ns(runs, after.runs) > (1 - LEAST_SHARE) * sum(walls),
        works_share=share,
    )
    is_guessed = maker_of(trace) is not NVIDIA and not any(copy_rates(trace))
    return Advice(runs, tuple(steps), replace(forecast, is_bound=_is_bound(runs, steps, forecast, is_guessed=is_guessed)))


def _is_bound(runs: Sequence[Run], steps: Sequence[Step], forecast: Forecast, *, is_guessed: bool) -> bool:
    """Tell whether nothing is promised.

    The replay is too far off, kernels that slow each other down were to overlap more, it is a guess how fast copies of
    page-locked memory are (on a card of another maker than NVIDIA, without any) or that work is independent, or a wait of the
    host would be left out of a run of which no data are known: the host may need what it waits for, even where streams keep
    their order.
    """
    causes = {step.cause for step in steps}
    leaves_waits = not causes.isdisjoint((Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM))
    return (
        abs(forecast.error) > MOST_ERROR
        or forecast.is_frail
        or 0 < forecast.gain_ns < forecast.slowed_ns
        or (is_guessed and Cause.PAGEABLE_COPY in causes)
        or any(step.is_guess for step in steps)
        or (leaves_waits and not any(run.memory.is_known or any(run.memory.touches) for run in runs))
    )


def _dear_ns(before: Sequence[Run], after: Sequence[Run]) -> int:
    """Return what changed runs take where what the host does for the changes is dear, in ns."""
    dear = (changes.with_dear_calls(one, other, MOST_CALL_NS) for one, other in zip(before, after, strict=True))
    return sum(replay(run.program).wall_ns for run in dear)


def read_runs(trace: Trace, rows: Int64Array) -> tuple[tuple[Run, ...], int, float]:
    """Read a run: whole, or of a long one some pieces; with what these took together, in ns, and which share of its work."""
    return _read_runs(trace, rows.tobytes())


@of_each_trace
def _read_runs(trace: Trace, told: bytes) -> tuple[tuple[Run, ...], int, float]:
    """Do so once: to calibrate it takes long, and what is asked of the run then is asked of the same one."""
    rows = np.frombuffer(told, np.int64)
    if len(rows) <= MOST_WORKS:
        wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
        return (read_run(trace, rows),), wall_ns, 1.0
    rows = in_launch_order(trace, rows)
    size = MOST_WORKS // PIECES
    firsts = np.linspace(0, len(rows) - size, PIECES).astype(np.int64).tolist()
    pieces = [rows[first : first + size] for first in firsts]
    launched_ns = np.append(trace.queued_ns[rows], trace.end_ns.max() + 1)
    until_ns = [int(launched_ns[first + size]) for first in firsts]
    runs = tuple(
        replace(_read_piece(trace, piece, end_ns), share=size / len(rows))
        for piece, end_ns in zip(pieces, until_ns, strict=True)
    )
    wall_ns = sum(int(trace.end_ns[piece].max() - trace.start_ns[piece].min()) for piece in pieces)
    return runs, wall_ns, len(pieces) * size / len(rows)


def _read_piece(trace: Trace, rows: Int64Array, until_ns: int) -> Run:
    """Read the work of some rows, and the calls of the host meanwhile."""
    from_ns = int(min(trace.queued_ns[rows].min(), trace.start_ns[rows].min()))
    is_call = (trace.kind == SPAN_KINDS.index(SpanKind.HOST)) & (trace.start_ns >= from_ns) & (trace.start_ns < until_ns)
    chosen = np.sort(np.concatenate((rows, np.flatnonzero(is_call))))
    part = trace[chosen]
    return read_run(part, np.searchsorted(chosen, rows), [*chosen.tolist(), -1])


class Delays(NamedTuple):
    """How long work of a stream begins after it could, in ns: the median, and what 95% of it stays below."""

    median_ns: int
    most_ns: int

    @classmethod
    def of(cls, delays_ns: Sequence[int]) -> Delays:
        return cls(int(np.median(delays_ns)), int(np.quantile(delays_ns, 0.95)))


def delays_with_priority(advice: Advice, lane: int) -> tuple[Delays, Delays] | None:
    """Return the delays of a stream's kernels as they were, and with priority before all others; None where it has none."""
    if lane >= len(advice.runs[0].program.priorities):
        return None
    first = min(advice.runs[0].program.priorities) - 1
    before = [delay for run in advice.runs for delay in _delays(run, lane)]
    after = [delay for run in advice.runs for delay in _delays(changes.with_priorities(run, {lane: first}), lane)]
    if not before:
        return None
    return Delays.of(before), Delays.of(after)


def _delays(run: Run, lane: int) -> list[int]:
    """Return how long each kernel begins after its launch, and after what it has to wait for, in ns."""
    played = replay(run.program)
    awaited_ns: dict[int, int] = {}
    for before, after in run.program.waits:
        awaited_ns[after] = max(awaited_ns.get(after, 0), int(played.end_ns[before]))
    delays, free_ns = [], 0
    for place, work in enumerate(run.program.works):
        if work.lane == lane:
            free_ns = max(free_ns, awaited_ns.get(place, 0))
            if work.kind == KERNEL:
                delays.append(int(played.start_ns[place] - max(int(played.launched_ns[place]), free_ns)))
            free_ns = int(played.end_ns[place])
    return delays


CHANGES: Mapping[Change, Callable[[Run], Run | None]] = MappingProxyType(
    {
        Change.PINNED: changes.pinned,
        Change.NO_HOST_WAITS: changes.no_host_waits,
        Change.DEVICE_WAITS: changes.device_waits,
        Change.FINE_WAITS: changes.fine_waits,
        Change.SECOND_BUFFER: changes.two_buffers,
        Change.MORE_STREAMS: partial(changes.in_streams, count=STREAM_COUNTS[-1]),
        Change.ONE_STREAM: changes.in_one_stream,
        Change.IN_TURN: changes.in_turn,
        Change.GRAPH: partial(changes.as_graph, call_ns=GRAPH_CALL_NS, node_ns=GRAPH_NODE_NS),
        Change.THREADS: changes.in_threads,
        Change.LOADED_BEFORE: changes.streams_before,
    }
)


def change_run(
    trace: Trace, run: Run, made: Iterable[Change], without: Iterable[Cause], calls: Mapping[Cause, Sequence[int]]
) -> Run:
    """Return a run with changes made one on top of the other, and then without some causes; `OptionError` if one cannot be."""
    for change in made:
        changed = CHANGES[change](run)
        if change is Change.LOADED_BEFORE:
            changed = _loaded_before(changed or run, calls) or changed
        if changed is None:
            raise OptionError(f"Nothing in this run changes with {change.value!r}. Leave it out, or see trace.explain().")
        run = changed
    for cause in without:
        found = [best for option in _options(trace, run, calls) if option.cause is cause and (best := _best_of(option, run))]
        if not found:
            raise OptionError(
                f"Nothing is known that would take {cause} out of this run: what is waited for is needed, or unknown, or it is "
                "not waited for. trace.explain() says which causes can be left out: those that save something."
            )
        run = min(found, key=lambda best: best[1])[0]
    return run


def _loaded_before(run: Run, calls: Mapping[Cause, Sequence[int]]) -> Run | None:
    rows = frozenset(calls.get(Cause.LAZY_LOAD, ()))
    return changes.calls_of(run, rows, _launch_ns(run)) if rows else None


def _launch_ns(run: Run) -> int:
    """Return what a launch costs the host, in the median, in ns."""
    launches_ns = [call.cost_ns for call in run.program.calls if call.works and not call.awaits]
    return int(np.median(launches_ns)) if launches_ns else 0


def read_run(trace: Trace, rows: Int64Array, row_of: Sequence[int] | None = None) -> Run:
    """Read the program of a trace, and calibrate it; of a part of a trace with its rows as they are in the whole, -1 behind."""
    run = run_of(trace, read_program(trace, rows))
    lasted_ns = np.array([work.alone_ns for work in run.program.works], np.int64)
    if row_of is not None:
        works = tuple(Work(row_of[work.row], *work[1:]) for work in run.program.works)
        calls = tuple(Call(row_of[call.row], *call[1:]) for call in run.program.calls)
        run = run.with_program(works=works, calls=calls)
    with suppress(Impossible):  # then `replay` says so again
        run = replace(run, program=calibrate(run.program, lasted_ns))
    return run


def run_of(trace: Trace, program: Program) -> Run:
    """Return a program with what its work touches."""
    rows = np.array([work.row for work in program.works], np.int64)
    return Run(program, read_memory(trace, rows), _rates(trace), _wait_ns(trace, program))


def _wait_ns(trace: Trace, program: Program) -> int:
    """Return what it takes the host to let a stream wait: as in the run, else about half of what it takes to launch."""
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.HOST))
    rows = rows[np.lexsort((trace.start_ns[rows], trace.lane[rows]))]
    is_wait = named_calls(trace, _STREAM_WAITS.search)[rows]
    own = np.flatnonzero(is_wait[1:] & (trace.lane[rows[1:]] == trace.lane[rows[:-1]]))
    if len(own) >= FEWEST_WAITS:
        return int(np.median(trace.end_ns[rows[own + 1]] - trace.end_ns[rows[own]]))
    spacings_ns = [call.gap_ns + call.cost_ns for call in program.calls if call.works and not call.awaits]
    return int(np.quantile(spacings_ns, 0.25) / 2) if spacings_ns else 0


def _rates(trace: Trace) -> dict[int, float]:
    """Return what copies of page-locked memory reach each way, in bytes per second, as far as it is known."""
    told = copy_rates(trace)
    rates = dict(zip((UPLOAD, DOWNLOAD), told, strict=True))
    known = {way: float(rate) for way, rate in rates.items() if rate is not None}
    usual = USUAL_RATES.get(trace.metadata.device.compute_capability[0])
    for way in rates:
        # Links are as fast both ways; else it is what cards of that kind have.
        known.setdefault(way, max(known.values(), default=usual) or 0.0)
    return {way: rate for way, rate in known.items() if rate}


# What may be changed


def _options(trace: Trace, run: Run, calls: Mapping[Cause, Sequence[int]]) -> list[Option]:
    """Return what may be changed, what is simplest first."""
    program = run.program
    found = [Option("pinned", Cause.PAGEABLE_COPY, changes.pinned)]
    if program.has_calls:
        found += _options_of_host(trace, run, calls)
    found.append(Option("fine_waits", Cause.EVENT_WAIT, changes.fine_waits))
    found.append(Option("two_buffers", Cause.EVENT_WAIT, changes.two_buffers))
    if program.cards:  # what moves work might move it to another card
        return found
    if program.main_lane()[1] >= ONE_STREAM_SHARE and len(run.memory.place):
        found.append(Option("by_role", Cause.SAME_LANE, changes.by_role))
    if program.main_lane(KERNEL)[1] >= ONE_STREAM_SHARE and len(run.memory.place):
        is_guess = program.main_lane()[1] < ONE_STREAM_SHARE  # such pipelines are as their authors want them
        found.append(Option("in_streams", Cause.SAME_LANE, _in_streams, is_last=True, is_guess=is_guess))
    copying = changes.lanes_of_copies_both_ways(program)
    found.append(Option("split_copies", Cause.COPY_ENGINE if len(copying) > 1 else Cause.SAME_LANE, changes.split_copies))
    uneven = _uneven(trace, program)
    if uneven:
        deal = partial(changes.dealt_evenly, lanes=uneven)
        found.append(Option("dealt_evenly", Cause.NOT_OFFERED, deal, is_last=True, is_guess=not run.memory.is_known))
    stray = _strayed(trace, program)
    if stray:
        found.append(Option("moved", Cause.OTHER_STREAM, partial(changes.moved, lanes=stray)))
    found.append(Option("whole_card", Cause.PARTITION_SMALL, changes.whole_card))
    found.append(Option("other_part", Cause.PARTITION_SMALL, changes.other_part))
    found.append(Option("first_of_all", Cause.GRID_FILLS_DEVICE, _first_of_all, is_last=True))
    if changes.is_in_blocks(program):
        late = Cause.QUEUE_FULL if calls.get(Cause.QUEUE_FULL) else Cause.HOST_LATE  # which has the host launch late
        found.append(Option("in_turn", late, changes.in_turn))
    if program.has_calls:
        found.append(Option("as_graph", Cause.LAUNCH_BOUND, _as_graph, is_last=True))
    return found


def _options_of_host(trace: Trace, run: Run, calls: Mapping[Cause, Sequence[int]]) -> Iterable[Option]:
    waits = _waits_by_cause(trace, run)
    for cause, numbers in waits.items():
        if numbers:
            yield Option("host_waits", cause, partial(_without_some, trace=trace, cause=cause))
    of_device, of_stream = (waits[cause] for cause in (Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM))
    if of_device and of_stream:
        cause = Cause.HOST_SYNC_DEVICE if len(of_device) > len(of_stream) else Cause.HOST_SYNC_STREAM
        yield Option("host_waits", cause, changes.no_host_waits)
    made = [trace.names[trace.name[call.row]] for call in run.program.calls if call.makes_stream and call.row >= 0]
    cause = Cause.HOST_CALL if any("GreenCtx" in name for name in made) else Cause.LAUNCH_BOUND
    yield Option("streams_before", cause, changes.streams_before)
    for cause, rows in calls.items():
        yield Option("calls", cause, partial(changes.calls_of, rows=frozenset(rows), cost_ns=_launch_ns(run)))


def _waits_by_cause(trace: Trace, run: Run) -> dict[Cause, list[int]]:
    """Return the waits of the host that hold up launches, by what makes them: a wait for a card, for a stream, or freeing."""
    found: dict[Cause, list[int]] = {Cause.HOST_SYNC_DEVICE: [], Cause.HOST_SYNC_STREAM: [], Cause.ALLOC_SYNC: []}
    for number, of_device in changes.host_waits(run.program).items():
        row = run.program.calls[number].row
        is_allocation = row >= 0 and ALLOCATES.search(trace.names[int(trace.name[row])]) is not None
        cause = Cause.HOST_SYNC_DEVICE if of_device else Cause.HOST_SYNC_STREAM
        found[Cause.ALLOC_SYNC if is_allocation else cause].append(number)
    return found


def _without_some(run: Run, *, trace: Trace, cause: Cause) -> Run | None:
    numbers = _waits_by_cause(trace, run)[cause]
    changed = changes.without_waits(run, numbers)
    if cause is not Cause.ALLOC_SYNC:
        return changed
    freeing = np.array([run.program.calls[number].row for number in numbers], np.int64)
    beside = np.setdiff1d(calls_alike(trace, freeing), freeing)  # those that waited for nothing take their time, too
    return changes.calls_of(changed or run, frozenset(beside.tolist()), 0) or changed


def _as_graph(run: Run) -> Run | None:
    """Return the program with turns as graphs, where that would gain on a faster host, too."""
    loop = changes.find_repeats(run)
    if loop is None:
        return None
    made = partial(changes.repeats_as_graph, call_ns=GRAPH_CALL_NS, node_ns=GRAPH_NODE_NS, loop=loop)
    calls = [
        call._replace(gap_ns=round(call.gap_ns / PACE_TIMES), cost_ns=round(call.cost_ns / PACE_TIMES))
        for call in run.program.calls
    ]
    faster = run.with_program(calls=tuple(calls))
    changed = made(faster)
    if changed is None or replay(changed.program).wall_ns > (1 - LEAST_SHARE) * replay(faster.program).wall_ns:
        return None
    return made(run)


def _in_streams(run: Run) -> Run | None:
    """Return the program with its kernels on some streams: on the fewest that gain about as much as any number of them."""
    tried = [made for count in STREAM_COUNTS if (made := changes.in_streams(run, count)) is not None]
    walls = [(replay(made.program).wall_ns, made) for made in tried]
    now_ns, least_ns = replay(run.program).wall_ns, min((wall_ns for wall_ns, _ in walls), default=0)
    if not walls or least_ns >= now_ns:
        return None
    return next(made for wall_ns, made in walls if now_ns - wall_ns >= ENOUGH_SHARE * (now_ns - least_ns))


def _uneven(trace: Trace, program: Program) -> list[int]:
    """Return the streams that do jobs of one kind where one has more of them than others; empty where none has.

    They run the same kernels as the one with most work, on the same SMs and as urgent.
    """
    kinds: dict[int, set[int]] = {}
    alone_ns = Counter[int]()
    for work in program.works:
        kinds.setdefault(work.lane, set()).add(int(trace.name[work.row]))
        alone_ns[work.lane] += work.alone_ns
    main, most_ns = alone_ns.most_common(1)[0]
    key = program.seats[main], program.priorities[main], kinds[main]
    alike = [lane for lane, own in kinds.items() if (program.seats[lane], program.priorities[lane], own) == key]
    return alike if most_ns * len(alike) >= UNEVEN_TIMES * sum(alone_ns[lane] for lane in alike) else []


def _first_of_all(run: Run) -> Sequence[Run]:
    """Return the program with each stream first in turn, where that may gain anything: kernels wait for SMs."""
    return changes.first_of_all(run) if has_full_sms(run.program) else ()


def _strayed(trace: Trace, program: Program) -> dict[int, int]:
    """Return which work ran on another stream than was selected, and which that was."""
    found = strays(trace)
    selected = dict(zip(found.row.tolist(), found.selected.tolist(), strict=True))
    return {place: selected[work.row] for place, work in enumerate(program.works) if selected.get(work.row, -1) >= 0}


# The best of them, and what is then the best


class _State(NamedTuple):
    """A run, or pieces of it, as changed so far."""

    runs: tuple[Run, ...]
    walls: tuple[int, ...]  # what each takes, in ns

    @property
    def wall_ns(self) -> int:
        return sum(self.walls)

    def with_option(self, option: Option) -> _State | None:
        """Return what it would be with something changed; None where nothing is to change, or it cannot be."""
        found = [_best_of(option, run) for run in self.runs]
        if not any(found):
            return None
        pairs = [one or (run, wall_ns) for one, run, wall_ns in zip(found, self.runs, self.walls, strict=True)]
        runs, walls = zip(*pairs, strict=True)
        return _State(runs, walls)

    def step_to(self, option: Option, after: _State) -> Step:
        """Return the change to another state; where it gains most stands for it."""
        gains = [before - now for before, now in zip(self.walls, after.walls, strict=True)]
        most = int(np.argmax(gains))
        return Step(option.key, option.cause, sum(gains), self.runs[most], after.runs[most], option.is_guess)


def _best_of(option: Option, run: Run) -> tuple[Run, int] | None:
    """Return the program with something changed, and what it takes; None where there is nothing to change."""
    best: tuple[Run, int] | None = None
    try:
        made = option.make(run)
        for changed in [made] if isinstance(made, Run) else made or ():
            paid = changes.with_cost_of_calls(run, changed, run.wait_ns)
            wall_ns = replay(run.program if is_as_before(run.program, paid.program) else paid.program).wall_ns
            if best is None or wall_ns < best[1]:
                best = paid, wall_ns
    except Impossible:
        return None
    return best


def _greedy(state: _State, options: Sequence[Option]) -> tuple[list[Step], _State]:
    """Make the change that gains most, then the one that gains most of what is left, until little is."""
    least_ns = LEAST_SHARE * state.wall_ns
    steps: list[Step] = []
    left = list(options)
    while left and len(steps) < MOST_STEPS:
        first = _worth(state, [one for one in left if not one.is_last], least_ns)
        first = first or _worth(
            state, [one for one in left if one.is_last and not (one.is_guess and steps)], LAST_TIMES * least_ns
        )
        if not first:
            break
        most_ns = max(state.wall_ns - after.wall_ns for _, after in first)
        option, after = next(one for one in first if state.wall_ns - one[1].wall_ns >= SAME_SHARE * most_ns)
        steps.append(state.step_to(option, after))
        state = after
        if option.is_guess:
            break  # nothing is built on it
        once = option.cause in ONE_OF
        left = [one for one in left if one is not option and not (once and one.cause is option.cause)]
        if option.cause is Cause.SAME_LANE:
            left = [one for one in left if one.cause is not Cause.HOST_LATE]  # they are launched in turn already
    return steps, state


def _worth(state: _State, options: Iterable[Option], least_ns: float) -> list[tuple[Option, _State]]:
    """Return the changes that gain more than this alone, and what the run then is."""
    found = ((option, state.with_option(option)) for option in options)
    return [(option, after) for option, after in found if after is not None and state.wall_ns - after.wall_ns > least_ns]


def _floor(run: Run) -> dict[str, int]:
    """Return what no change of order can beat, in ns, by what takes so long alone.

    That is the work of each engine of each card, and the longest chain of work of which each needs what is before it. Order in
    a stream alone is no need: where it is not known what work touches, it may go elsewhere.
    """
    program = run.program
    ways = {UPLOAD: "copies to the device", DOWNLOAD: "copies to the host"}
    if program.card.share_engine:
        ways = dict.fromkeys(ways, "copies both ways")
    busy_ns = defaultdict[tuple[str, int], float](float, {(name, 0): 0.0 for name in (*ways.values(), "kernels")})
    longest_ns, least_ns = 0, []
    for work in program.works:
        least_ns.append(work.alone_ns)
        card = program.card_of(work.lane)
        if work.kind in ways:
            busy_ns[ways[work.kind], card] += work.alone_ns
        elif work.kind == KERNEL:
            full_sms = work.blocks / max(1, program.card.slots_per_sm // max(1, work.slots))
            waves, least_waves = (max(1, ceil(full_sms / sms)) for sms in (work.sms, program.card.sm_count))
            busy_ns["kernels", card] += work.alone_ns * min(work.sms, full_sms / waves) / program.card.sm_count
            least_ns[-1] = int(work.alone_ns * least_waves / waves)
            longest_ns = max(longest_ns, least_ns[-1])
    told = dict[str, int]()
    for (name, _), lasted_ns in busy_ns.items():  # of several cards the busiest
        told[name] = max(told.get(name, 0), int(lasted_ns))
    return told | {"kernels": max(told["kernels"], longest_ns), "steps that need each other": _chain_ns(run, least_ns)}


def _chain_ns(run: Run, least_ns: Sequence[int]) -> int:
    """Return how long the longest chain of work is that has to go one after the other, in ns, each at its least."""
    before: dict[int, list[int]] = {}
    for first, second in run.memory.edges(ENOUGH_BUFFERS):
        before.setdefault(second, []).append(first)
    ends_ns: list[int] = []
    for place, lasts_ns in enumerate(least_ns):
        ends_ns.append(max((ends_ns[one] for one in before.get(place, ())), default=0) + lasts_ns)
    return max(ends_ns, default=0)
