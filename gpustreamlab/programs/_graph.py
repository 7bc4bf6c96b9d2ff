"""What has to be before what, and on which stream: dependencies from accesses, list scheduling, the fewest waits."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import Region, may_share
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.model import EDGE_KINDS, PREDICTED, SPAN_KINDS, Device, Edges, Lane, Trace, TraceMetadata, WorkDetail
from gpustreamlab.programs._source import Statement
from gpustreamlab.typing import CaptureTier, EdgeKind, SpanKind

SWITCH_NS = 3_000  # What waiting for another stream's event takes, from kernel to kernel. Source: FACTS.md, 3.1 us on an H200
RUNNING_KEPT = 64  # How many of the statements placed last are asked whether they leave room on the SMs
ALL_SMS = 1.001  # What shares of kernels that run at once may add up to
LISTED_CRITICAL = 12  # Most lines of the critical path that are listed
LAUNCH_NS = 4_000  # What a launch takes on the host, where it was not measured


class Engine(Enum):
    """What of the device a statement mostly keeps busy."""

    SMS = "SMs"
    COPY_IN = "copy engine to the device"
    COPY_OUT = "copy engine to the host"
    NONE = "host"


class Access(NamedTuple):
    """One statement's use of one piece of memory."""

    piece: int  # Number of the piece; no two pieces have the same, in one recorded run
    region: Region | None  # Its bytes; None for all of them
    is_write: bool  # Whether it may be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one statement did when it was recorded, on one stream."""

    accesses: tuple[Access, ...] = ()  # Device memory that it used
    engine: Engine = Engine.NONE  # What it kept busy; `Engine.NONE` where it enqueued nothing
    duration_ns: int = 0  # For how long its work kept the device busy, in ns
    host_ns: int = LAUNCH_NS  # How long the host took to enqueue it, without waiting, in ns
    share: float = 1.0
    """Which share of the SMs its kernels can fill, above 0 and up to 1; those that fill all run one after the other."""
    waits: bool = False  # Whether the host waits for its result
    is_host_read: bool = False  # Whether it waits by what it does, not by how it copies
    barrier: str = ""  # Why it is ordered before and after everything; empty where what it touches is known
    stream: str | None = None  # The stream that it was given


class Dependency(NamedTuple):
    """What orders a statement behind an earlier one."""

    first: int  # The earlier statement
    piece: int  # The piece of memory that both touch; -1 where one of them is a barrier


def find_dependencies(works: Sequence[Work]) -> list[list[Dependency]]:
    """Return for each statement the earlier ones that it has to be behind, as far as no other of these stands between.

    A write comes behind all reads and writes of the same bytes before it, a read behind the writes, a barrier behind all.

    Examples
    --------
    >>> x, y = 0, 1
    >>> works = [
    ...     Work(accesses=(Access(x, None, True),)),
    ...     Work(accesses=(Access(x, None, False), Access(y, None, True))),
    ...     Work(accesses=(Access(x, None, False),)),
    ... ]
    >>> [[one.first for one in found] for found in find_dependencies(works)]
    [[], [0], [0]]
    """
    pieces: dict[int, tuple[_Uses, _Uses]] = {}
    since: list[int] = []  # statements with work since the last barrier
    barrier = -1
    found: list[list[Dependency]] = []
    for place, work in enumerate(works):
        behind = {barrier: -1} if barrier >= 0 else {}
        if work.barrier:
            behind = dict.fromkeys(since, -1) or behind
            pieces, since, barrier = {}, [], place
        else:
            for access in work.accesses:
                reads, writes = pieces.setdefault(access.piece, (_Uses(), _Uses()))
                for first in (*writes.sharing(access.region), *(reads.sharing(access.region) if access.is_write else ())):
                    if first != place:
                        behind.setdefault(first, access.piece)
            for access in work.accesses:  # only now: it reads before it writes
                reads, writes = pieces[access.piece]
                if access.is_write:  # who comes behind this comes behind all that it covers
                    reads.drop(access.region)
                    writes.drop(access.region)
                (writes if access.is_write else reads).add(access.region, place)
            if work.engine is not Engine.NONE or work.accesses:
                since.append(place)
        found.append([Dependency(first, behind[first]) for first in sorted(behind)])
    return found


class _Uses:
    """Who reads, or writes, which bytes of a piece, by where they begin."""

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._parts: list[tuple[int, int, int, Region]] = []
        self._longest = 0

    def add(self, region: Region | None, place: int) -> None:
        if region is None:
            self._whole.append(place)
        else:
            insort(self._parts, (region.start, region.end, place, region), key=_begin)
            self._longest = max(self._longest, region.end - region.start)

    def sharing(self, region: Region | None) -> list[int]:
        """Return who may use some of these bytes."""
        if region is None:
            return [*self._whole, *(part[2] for part in self._parts)]
        near = self._parts[self._near(region)]
        return [*self._whole, *(part[2] for part in near if may_share(part[3], region) is not False)]

    def drop(self, region: Region | None) -> None:
        """Forget who uses these bytes and no others."""
        if region is None:
            self._whole, self._parts = [], []
        else:
            near = self._near(region)
            self._parts[near] = [part for part in self._parts[near] if part[3] != region]

    def _near(self, region: Region) -> slice:
        first = bisect_left(self._parts, region.start - self._longest, key=_begin)
        return slice(first, bisect_left(self._parts, region.end, key=_begin))


_begin = itemgetter(0)


class Wait(NamedTuple):
    """A wait of a statement's stream for another one."""

    stream: str  # The stream that is waited for
    behind: int  # The statement there whose end is enough; -1 for all that the stream holds when the program begins
    piece: int  # The memory that crosses; -1 for none in particular


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Where and when statements run, as planned."""

    streams: tuple[str, ...]
    """Streams that work, in the order of their first statement; the first is the one in which the program begins and ends."""
    stream: tuple[str | None, ...]  # The stream of each statement; None for one that enqueues nothing
    waits: tuple[tuple[Wait, ...], ...]  # What the stream of each statement waits for in front of it
    joins: tuple[Wait, ...]  # What the first stream waits for at the end
    dependencies: tuple[tuple[Dependency, ...], ...]  # As `find_dependencies` returns them
    start_ns: tuple[int, ...]  # When each statement's work would begin, in ns since the program's beginning
    end_ns: tuple[int, ...]  # When it would end
    critical: frozenset[int]  # Statements of the chain that sets the length

    @property
    def length_ns(self) -> int:
        """How long all would take."""
        return max(self.end_ns, default=0)

    @property
    def wait_count(self) -> int:
        """How often a stream waits for another one, those that begin and end it all not counted."""
        return sum(wait.behind >= 0 for waits in self.waits for wait in waits)

    @property
    def switch_count(self) -> int:
        """How often the stream changes from one statement with work to the next."""
        used = [stream for stream in self.stream if stream is not None]
        return sum(first != second for first, second in pairwise(used))


@dataclass(slots=True)
class _Lane:
    """What is known of one stream while statements are placed."""

    free_ns: int = 0
    knows: dict[str, int] = field(default_factory=dict)  # The last statement of each other stream that it is behind
    last: int = -1


class StreamCosts(NamedTuple):
    """What streams cost the host, in ns."""

    switch_ns: int = 0  # Leaving one stream and selecting another
    wait_ns: int = 0  # Recording an event, and making a stream wait for it


NO_COSTS = StreamCosts()  # The host does nothing between the statements: in a CUDA graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the first run of a program told."""

    works: tuple[Work, ...]  # What each statement did, in order
    names: tuple[Mapping[int, str], ...] = ()
    """For each statement, the variables through which pieces of memory can be reached behind it, by the piece's number."""
    reached: tuple[Mapping[int, str], ...] = ()  # The same in front of each statement, of the variables that it looks up
    containers: frozenset[str] = frozenset()
    """Variables that lead to arrays and are none: what they lead to may change while they stay."""
    born: Mapping[int, int] = field(default_factory=dict)
    """In which statement each piece of memory was allocated; those that are not there were there before."""
    survivors: frozenset[int] = frozenset()  # Pieces that variables still reach when the program has ended
    notes: tuple[str, ...] = ()  # What could not be known, one sentence each
    costs: StreamCosts = NO_COSTS  # What more streams cost the host here
    outside: str = ""  # Which line calls what may change files, processes or other machines; empty for none


class _Scheduler:
    """Places statements one by one, in the order in which the host enqueues them."""

    def __init__(self, works: Sequence[Work], names: Sequence[str], costs: StreamCosts) -> None:
        self._works = works
        self._costs = costs
        self._home = names[0]
        self._names = list(names)
        self._lanes: dict[str, _Lane] = {name: _Lane() for name in names}
        self._used = {self._home}
        self._knew: list[dict[str, int]] = []
        self._host_ns = 0
        self._host_waited_for = -1
        self._engine_free = dict.fromkeys(Engine, (0, -1))  # When each copy engine is free, and behind which statement
        self._running: list[tuple[int, float, int]] = []
        self.stream: list[str | None] = []
        self.waits: list[tuple[Wait, ...]] = []
        self.start_ns: list[int] = []
        self.end_ns: list[int] = []
        self.setter: list[int] = []  # Which statement each had to wait for last; -1 for none

    def place(self, number: int, behind: Sequence[Dependency]) -> None:
        work = self._works[number]
        self._host_ns += work.host_ns
        if work.engine is Engine.NONE and work.stream is None and not work.barrier:
            self._pass(number, behind)
            return
        name = work.stream or self._choose(number, behind)
        lane = self._lanes.setdefault(name, _Lane())
        self._host_ns += self._extra_ns(name, behind)
        start_ns, setter = self._start(name, work, behind)
        waits = self._wait(name, lane, behind)
        self._used.add(name)
        self.stream.append(name)
        self.waits.append(waits)
        self.start_ns.append(start_ns)
        end_ns = start_ns + work.duration_ns
        self.end_ns.append(end_ns)
        self.setter.append(setter)
        lane.free_ns, lane.last = end_ns, number
        self._take(number, start_ns, end_ns)
        knew = dict(lane.knows)
        knew[name] = number
        self._knew.append(knew)
        if work.waits:
            self._host_ns, self._host_waited_for = max(self._host_ns, end_ns), number

    def _pass(self, number: int, behind: Sequence[Dependency]) -> None:
        """Place a statement that enqueues nothing: it is the host's alone."""
        self.stream.append(None)
        self.waits.append(())
        self.start_ns.append(self._host_ns)
        self.end_ns.append(self._host_ns)
        self.setter.append(max((one.first for one in behind), default=-1))
        self._knew.append({})

    def _choose(self, number: int, behind: Sequence[Dependency]) -> str:
        """Return the stream on which a statement can begin first; the one that needs no wait, and no switch, of equals."""
        work = self._works[number]
        if work.barrier:
            return self._last_name()
        before = {self.stream[one.first] for one in behind}
        last = self._last_name()

        def rank(name: str) -> tuple[int, bool, bool, int]:
            start_ns, _ = self._start(name, work, behind, self._extra_ns(name, behind))
            return start_ns, name not in before, name != last, self._names.index(name)

        return min(self._names, key=rank)

    def _last_name(self) -> str:
        return next((name for name in reversed(self.stream) if name is not None), self._home)

    def _extra_ns(self, name: str, behind: Sequence[Dependency]) -> int:
        """Return what the host does more for work on a stream than for work where the last was."""
        last = self._last_name()
        if name == last:
            return 0
        waits_for = {self.stream[one.first] for one in behind} - {name, None}
        return self._costs.switch_ns + self._costs.wait_ns * max(len(waits_for), name not in self._used)

    def _start(self, name: str, work: Work, behind: Sequence[Dependency], extra_ns: int = 0) -> tuple[int, int]:
        """Return when work could begin on a stream, and which statement sets that."""
        lane = self._lanes.get(name) or _Lane()
        start_ns, setter = self._host_ns + extra_ns, self._host_waited_for
        if lane.free_ns >= start_ns:
            start_ns, setter = lane.free_ns, lane.last
        for one in behind:
            other = self.stream[one.first]
            ready_ns = self.end_ns[one.first] + (SWITCH_NS if other not in (name, None) else 0)
            if ready_ns > start_ns:
                start_ns, setter = ready_ns, one.first
        if work.engine in (Engine.COPY_IN, Engine.COPY_OUT):
            return max((start_ns, setter), self._engine_free[work.engine])
        if work.engine is Engine.SMS:
            return self._room(start_ns, setter, work.share)
        return start_ns, setter

    def _room(self, from_ns: int, setter: int, share: float) -> tuple[int, int]:
        """Return from when on the SMs have room for such a share beside what was placed before, and what sets that."""
        used = sorted(one for one in self._running if one[0] > from_ns)
        total = sum(one[1] for one in used)
        for end_ns, freed, number in used:
            if total + share <= ALL_SMS:
                break
            from_ns, setter, total = end_ns, number, total - freed
        return from_ns, setter

    def _take(self, number: int, start_ns: int, end_ns: int) -> None:
        work = self._works[number]
        if work.engine in (Engine.COPY_IN, Engine.COPY_OUT):
            self._engine_free[work.engine] = end_ns, number
        elif work.engine is Engine.SMS and end_ns > start_ns:
            self._running = [*self._running[1 - RUNNING_KEPT :], (end_ns, work.share, number)]

    def _wait(self, name: str, lane: _Lane, behind: Iterable[Dependency]) -> tuple[Wait, ...]:
        """Let a stream wait for what it does not know to be done; the latest comes first, as it may have waited for others."""
        waits = []
        if lane.last < 0 and name != self._home and not any(self.stream[one.first] for one in behind):
            waits.append(Wait(self._home, -1, -1))  # for all that came before the program
        for one in sorted(behind, key=lambda one: -one.first):
            other = self.stream[one.first]
            if other is None or other == name or lane.knows.get(other, -1) >= one.first:
                continue
            waits.append(Wait(other, one.first, one.piece))
            for known, number in self._knew[one.first].items():
                lane.knows[known] = max(lane.knows.get(known, -1), number)
        return tuple(waits)

    def joins(self) -> tuple[Wait, ...]:
        """Return what the first stream waits for, so that it is behind everything."""
        ends = [Dependency(lane.last, -1) for name, lane in self._lanes.items() if lane.last >= 0 and name != self._home]
        return self._wait(self._home, self._lanes[self._home], ends)


def schedule(works: Sequence[Work], names: Sequence[str], costs: StreamCosts = NO_COSTS) -> Schedule:
    """Choose a stream for each statement, keeping their order on the host: list scheduling by their durations.

    Examples
    --------
    >>> copies = [Work(accesses=(Access(k, None, True),), engine=Engine.COPY_IN, duration_ns=50_000) for k in range(2)]
    >>> kernels = [Work(accesses=(Access(k, None, True),), engine=Engine.SMS, duration_ns=50_000) for k in range(2)]
    >>> planned = schedule([copies[0], kernels[0], copies[1], kernels[1]], ["a", "b"])
    >>> planned.stream, planned.length_ns < 200_000
    (('a', 'a', 'b', 'b'), True)
    """
    behind = find_dependencies(works)
    placing = _Scheduler(works, names, costs)
    for number, dependencies in enumerate(behind):
        placing.place(number, dependencies)
    joins = placing.joins()
    used = tuple(dict.fromkeys([names[0], *(name for name in placing.stream if name is not None)]))
    return Schedule(
        streams=used,
        stream=tuple(placing.stream),
        waits=tuple(placing.waits),
        joins=joins,
        dependencies=tuple(map(tuple, behind)),
        start_ns=tuple(placing.start_ns),
        end_ns=tuple(placing.end_ns),
        critical=_critical(placing),
    )


def _critical(placing: _Scheduler) -> frozenset[int]:
    """Return the chain of statements that ends last, each with what it waited for last."""
    ends = placing.end_ns
    at = max(range(len(ends)), key=ends.__getitem__, default=-1)
    chain = set[int]()
    while at >= 0:
        chain.add(at)
        at = placing.setter[at]
    return frozenset(chain)


def on_one_stream(works: Sequence[Work], name: str) -> Schedule:
    """Return the schedule with everything on one stream, in order."""
    placed = [replace(work, stream=None if work.engine is Engine.NONE else name) for work in works]
    return schedule(placed, [name])


def why_nothing(statements: Sequence[Statement], recording: Recording, one: Schedule, planned: Schedule) -> str:
    barriers = sum(bool(work.barrier) for work in recording.works)
    if not any(work.engine is not Engine.NONE for work in recording.works):
        return "no statement has work for the device"
    if barriers and barriers * 2 >= sum(work.engine is not Engine.NONE for work in recording.works):
        return f"{barriers} of {len(recording.works)} statements are ordered before and after everything"
    host_ns, work_ns = (
        sum(times) for times in zip(*((work.host_ns, work.duration_ns) for work in recording.works), strict=True)
    )
    if host_ns > work_ns:
        return (
            f"the host is the limit: it takes {format_ns(host_ns)} to launch what the device does in {format_ns(work_ns)}; "
            f"{_capture_advice(statements, recording)}"
        )
    loop = max(zip(statements, recording.works, strict=True), key=lambda pair: pair[1].duration_ns)
    if loop[1].duration_ns * 2 > work_ns and loop[0].is_loop:
        return (
            f"line {loop[0].line} does most of the work and is a loop, which is one statement to a plan: write its turns out, "
            "a statement each"
        )
    waiting = [statement.line for statement, work in zip(statements[:-1], recording.works[:-1], strict=True) if work.waits]
    if waiting:
        return (
            f"the host waits for the device in line {waiting[0]}, and launches nothing meanwhile: copy to page-locked memory, "
            "array.get(out=lab.memory.pinned_empty(...), blocking=False), or read at the end"
        )
    gain = one.length_ns / max(planned.length_ns, 1)
    return f"more would be {gain:.2f} times as fast by the model, as what could overlap waits for each other or fills the SMs"


def _capture_advice(statements: Sequence[Statement], recording: Recording) -> str:
    """Say that a CUDA graph would help, or which lines a capture would refuse: those at which the host waits."""
    pairs = zip(statements, recording.works, strict=True)
    waiting = [one.line for one, work in pairs if work.waits or (work.barrier and "synchronize" in one.text)]
    lines = list(dict.fromkeys(map(str, waiting)))
    if not lines:
        return "plan.capture() launches all with one call"
    shown = ", ".join(lines[:4]) + (f" and {len(lines) - 4:,} more" if len(lines) > 4 else "")
    who, them = ("line", "it") if len(lines) == 1 else ("lines", "them")
    return (
        f"for {who} {shown}, where the host waits for the device, it cannot be one CUDA graph; with {them} moved out of the "
        "program, plan.capture() launches the rest with one call"
    )


def length_text(texts: Sequence[tuple[int, str]], planned: Schedule, recording: Recording) -> str:
    """Say which lines set the length, or that the host does, where the chain of statements begins late."""
    critical = sorted(planned.critical, key=planned.start_ns.__getitem__)
    work_ns = sum(recording.works[place].duration_ns for place in critical)
    if not work_ns:
        return ""
    begins_ns, told = planned.start_ns[critical[0]], [str(texts[place][0]) for place in critical]
    if 2 * begins_ns > planned.length_ns:
        return (
            f"The host sets the length: of {format_ns(planned.length_ns)} it takes {format_ns(begins_ns)} to launch what "
            f"comes before line {told[0]}; {format_ns(work_ns)} of work follow."
        )
    half = LISTED_CRITICAL // 2
    shown = told if len(told) <= LISTED_CRITICAL else [*told[:half], f"… {len(told) - 2 * half:,} more …", *told[-half:]]
    return f"The length is set by line{'s' if len(told) > 1 else ''} {' → '.join(shown)}, {format_ns(work_ns)} of work."


def schedule_trace(
    planned: Schedule,
    recording: Recording,
    texts: Sequence[tuple[int, str]],
    *,
    device: Device,
    backend: str,
    make: Callable[..., Trace] = Trace,
) -> Trace:
    """Return a schedule as a trace that says it is predicted: statements with work as spans, waits between streams as edges."""
    rows = [place for place, stream in enumerate(planned.stream) if stream is not None]
    row_of = {place: row for row, place in enumerate(rows)}
    lanes = tuple(Lane(name=name, device=device.ordinal, stream=1 + number) for number, name in enumerate(planned.streams))
    lane_of = {name: number for number, name in enumerate(planned.streams)}
    waits = [(row_of[wait.behind], row_of[place]) for place in rows for wait in planned.waits[place] if wait.behind in row_of]
    start_ns, end_ns = ([times[place] for place in rows] for times in (planned.start_ns, planned.end_ns))
    copies = {Engine.COPY_IN, Engine.COPY_OUT}
    kinds = [SpanKind.COPY if recording.works[place].engine in copies else SpanKind.KERNEL for place in rows]
    lines = [f"{texts[place][0]}: {' '.join(texts[place][1].split())}" for place in rows]
    names = {line: code for code, line in enumerate(dict.fromkeys(lines))}
    edges = np.array(sorted(waits), np.int64).reshape(-1, 2)
    return make(
        start_ns=start_ns,
        end_ns=end_ns,
        queued_ns=start_ns,
        lane=[lane_of[name] for name in planned.stream if name is not None],
        name=[names[line] for line in lines],
        kind=[SPAN_KINDS.index(kind) for kind in kinds],
        parent=[-1] * len(rows),
        thread=[-1] * len(rows),
        names=tuple(names),
        lanes=lanes,
        extra={"detail": np.arange(len(rows))},
        details=tuple(WorkDetail(full_name=_told(planned, recording, texts, place)) for place in rows),
        edges=Edges(source=edges[:, 0], target=edges[:, 1], kind=np.full(len(edges), EDGE_KINDS.index(EdgeKind.WAIT), np.int8)),
        metadata=TraceMetadata(
            backend=backend,
            device=replace(device, name=f"{device.name}, predicted", simulated=True),
            clock=f"{PREDICTED} by a plan from its first runs",
            tier=CaptureTier.KERNELS,
            capture_source="a plan",
            capture_windows=((0, planned.length_ns),),
            title="Plan, predicted",
        ),
    )


def behind_text(planned: Schedule, recording: Recording, texts: Sequence[tuple[int, str]], place: int) -> str:
    """Say what the stream of a statement waits for, each with the variable that crosses."""
    if recording.works[place].barrier:
        return "everything"
    lines = []
    for wait in planned.waits[place]:
        if wait.behind >= 0:
            name = recording.names[wait.behind].get(wait.piece, "") if recording.names else ""
            lines.append(f"line {texts[wait.behind][0]}{f' ({name})' if name else ''}")
    return ", ".join(lines)


def _told(planned: Schedule, recording: Recording, texts: Sequence[tuple[int, str]], place: int) -> str:
    waits, barrier = behind_text(planned, recording, texts, place), recording.works[place].barrier
    facts = [
        texts[place][1],
        *([f"waits for {waits}{f': it {barrier}' if barrier else ''}"] if waits else []),
        *(["sets the length"] if place in planned.critical else []),
    ]
    return "; ".join(facts)
