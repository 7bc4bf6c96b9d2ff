"""The first run of a program, in order on one stream: what each statement touches, and how long its work takes."""

from __future__ import annotations

import ast
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab._util.arrays import find_arrays, is_array
from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import Touch, blocks_that_fit
from gpustreamlab.errors import SelectionError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.programs._calls import (
    RUNS_TEXT,
    CallLog,
    TorchPieces,
    bytes_of,
    globals_of,
    instrumented,
    is_followed,
    is_tensor,
    is_user_function,
    plain_again,
    region_of_tensor,
    watching_torch,
)
from gpustreamlab.programs._code import Statements, watching
from gpustreamlab.programs._graph import LAUNCH_NS, Access, Engine, Recording, StreamCosts, Work
from gpustreamlab.programs._source import LABEL_LENGTH, Source, Statement, what_decides
from gpustreamlab.programs._values import (
    is_of_session,
    is_plain,
    is_random,
    needed_names,
    reach,
    replace_values,
    signature,
)
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.session import Session

_RUNS_CODE = ("generator", "map", "filter", *map("itertools.{}".format, ("starmap", "accumulate", "takewhile", "dropwhile")))
"""Iterators that run code of the user's for their next value."""
_DEFINES = (ast.FunctionDef, ast.Lambda, ast.ClassDef)
_UNCHANGED = (types.ModuleType, types.FunctionType, type)
COST_TRIES = 3  # How often the host's cost of a stream is measured
WAITED_NS = 4 * LAUNCH_NS
"""A statement that enqueues nothing and orders streams, and took the host longer than this, has waited for the device."""


@dataclass(slots=True)
class _Step:
    """What one statement did in the recorded run."""

    accesses: dict[Access, None] = field(default_factory=dict)
    is_host_read: bool = False
    unknown: str = ""
    is_chance: bool = False
    steers: bool = False
    orders: bool = False
    outside: str = ""  # Its line, with what it calls that may change files, processes or other machines
    named: frozenset[int] = frozenset()  # Pieces of the arrays that it names itself
    looked_up: frozenset[str] = frozenset()  # Variables that it, or functions of the user's behind it, look up
    reaches_device: bool = False  # Whether it leads to arrays on the device, which it may use next time
    reaches_host: bool = False  # Whether it leads to arrays of the host, whose values may be others next time
    can_decide: bool = False  # Whether functions behind it have conditions
    can_choose: bool = False  # Whether functions behind it take items by an index
    leads: dict[str, bool] = field(default_factory=dict)
    """Variables that it binds or may change, new arrays left out; and whether they lead to arrays that are not new."""
    reached: dict[int, str] = field(default_factory=dict)
    """Names of variables by the pieces of memory that they reach, in front of it."""
    crossing: dict[int, str] = field(default_factory=dict)
    """Names of variables by the pieces of memory that they reach, behind it."""
    born: set[int] = field(default_factory=set)  # Pieces that were first seen in it
    host_ns: int = 0  # How long the host took for it, with what takes notes, in ns


class _Exchange:
    """Returns what is to stand in place of a value; the same for the same one."""

    def __init__(self, change: Callable[[Any], Any], known: Iterable[tuple[Any, Any]] = ()) -> None:
        self._change = change
        self.known = {id(value): (value, made) for value, made in known}

    def __call__(self, value: Any) -> Any:
        if id(value) in self.known:
            return self.known[id(value)][1]
        made = self._change(value)
        if type(value) is tuple:
            parts = tuple(map(self, value))
            made = value if all(one is other for one, other in zip(parts, value, strict=True)) else parts
        if made is not value:
            self.known[id(value)] = value, made
        return made


@contextmanager
def tracked(program: Statements, values: dict[str, Any], watch: AccessWatch) -> Iterator[None]:
    """Put arrays that tell of accesses in place of those that variables lead to, in a ``with`` block.

    Behind it the arrays that were there are there again, and what the program made is plain, unless the session watches anyway.
    Where all arrays of a backend tell, nothing is done.
    """
    track, module, is_watching = watch.track, program.backend.xp, program.lab._accesses.is_watching
    if track is None:
        yield
        return
    kind, looked_up = module.ndarray, program.source.looked_up
    telling_kind = type(track(module.empty(0)))

    def telling(value: Any) -> Any:
        return watch_module if value is module else track(value) if type(value) is kind else value

    def plain(value: Any) -> Any:
        return kind.view(value, kind) if type(value) is telling_kind and not is_watching else value

    watch_module = watch.xp
    put = _Exchange(telling)
    replace_values(values, needed_names(program.source, values), looked_up, put)
    try:
        yield
    finally:
        written = {name for one in program.source.statements for name in one.writes}
        back = _Exchange(plain, ((made, value) for value, made in put.known.values()))
        replace_values(values, {*needed_names(program.source, values), *written}, looked_up, back)


def record(program: Statements, home: str, values: dict[str, Any]) -> Recording:
    """Run a program, in order on one stream, and take note of what it touches, and how long its work takes."""
    __tracebackhide__ = True
    source, lab = program.source, program.lab
    with program.running(values, {}), program.lab._selections.same_behind(), watching(program.lab) as watch:
        unknown, random = _unknown_inputs(source, values)
        tap = _Tap(watch, source)
        with tracked(program, values, watch):
            steps = tap.run(program, values, home)
            survivors = tap.reached(values)
    lab.synchronize()
    works, is_measured = measured(lab.trace, [program.backend.host_to_clock_ns(one) for one in tap.bounds_ns])
    notes = tap.notes
    if not is_measured:
        notes.append(
            "Kernels were not captured, so times are those of ranges, and how many SMs a kernel fills is not known: the plan "
            "takes them to fit beside each other. plan.compare() measures."
        )
    born = {piece: place for place, step in enumerate(steps) for piece in step.born}
    return Recording(
        works=tuple(_joined(source, steps, works, unknown, random)),
        names=tuple(step.crossing for step in steps),
        reached=tuple(step.reached for step in steps),
        containers=frozenset(tap.containers),
        born=born,
        survivors=survivors,
        notes=tuple(notes),
        costs=_stream_costs(program, home),
        outside=next((step.outside for step in steps if step.outside), ""),
    )


def _unknown_inputs(source: Source, values: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the inputs that lead to what gives another value each time, and what that is; and generators of random numbers."""
    needed = sorted(needed_names(source, values))
    random = [name for name in needed if is_random(values[name])]
    found = {name: signature(values, [name], source.looked_up).unknown for name in needed if name not in random}
    return {name: next(iter(unknown.values())) for name, unknown in found.items() if unknown}, random


class _Tap:
    """Takes note of what each statement touches."""

    def __init__(self, watch: AccessWatch, source: Source) -> None:
        self._watch = watch
        self._source = source
        self._step = _Step()
        self._log = CallLog(self._touch_arguments, self._is_own)
        self._seen: set[int] = set()
        self._tensors = TorchPieces()
        self._areas = _Areas()
        self.containers = set[str]()  # Variables that lead to arrays and are none
        self.notes: list[str] = []  # What could not be known, one sentence each
        self.bounds_ns: list[int] = []  # When each statement began, and when the last one ended, by the host's clock

    def run(self, program: Statements, values: dict[str, Any], home: str) -> list[_Step]:
        """Run the statements, one by one."""
        __tracebackhide__ = True
        source = self._source
        needed = needed_names(source, values)
        for name in needed:
            self._reach(name, values)
        self._seen |= self._numbers(needed, values)
        steps: list[_Step] = []
        codes = []
        CallLog.active[threading.get_ident()] = self._log
        try:
            for statement in source.statements:
                made, plain = (
                    compile(ast.Module([node], []), source.filename, "exec", source.flags, dont_inherit=True)
                    for node in (instrumented(statement.node), statement.node)
                )
                codes.append((made, plain))
                steps.append(self._run(program, statement, made, values, home))
        finally:
            del CallLog.active[threading.get_ident()]
            with delayed_interrupts():  # else functions would go on telling
                plain_again([*codes, *self._log.rewritten])
        return steps

    def _run(self, program: Statements, statement: Statement, code: types.CodeType, values: dict[str, Any], home: str) -> _Step:
        __tracebackhide__ = True
        lab, now = program.lab, program.backend.host_time_ns
        step = self._step = _Step()
        self._log.begin(statement.line)
        self._look(statement, values)
        for name in sorted(step.looked_up):
            self._reach(name, values)
        step.reached, step.crossing = step.crossing, {}
        is_over = False
        self._watch.tap = self
        self.bounds_ns[-1:] = [now()]  # in front of its range
        try:
            with lab.on(home, statement.label[:LABEL_LENGTH]), watching_torch(self._note_tensors, self.host_wait):
                began_ns = now()
                exec(code, values)  # noqa: S102 - the user's statement
                step.host_ns = now() - began_ns
                is_over = True
            self.bounds_ns.append(now())
        except SelectionError:
            if is_over:
                raise SelectionError(
                    f"Line {statement.line} leaves another stream selected than it found. Use: with lab.on('name'): and, in "
                    "it, what runs there."
                ) from None
            raise
        finally:
            self._watch.tap = None
        for name in _names_used(statement, values):
            self._reach(name, values)
        log = self._log
        step.unknown, step.is_chance = log.unknown or step.unknown, log.is_chance
        step.steers, step.orders = log.steers, log.orders or _asks_for_stream(statement, lab, values)
        step.outside = f"line {statement.line} calls {log.outside}" if log.outside else ""
        step.leads = {name: self._is_led(values[name]) for name in self._changed(statement, values)}
        return step

    def _changed(self, statement: Statement, values: Mapping[str, object]) -> Iterator[str]:
        """Yield the variables that a statement binds, new arrays left out, and those whose content it may change."""
        for name in sorted(statement.writes | statement.reads):
            value = values.get(name)
            if name not in values or issubclass(type(value), _UNCHANGED) or is_of_session(value):
                continue
            is_new = is_array(value) and self._number_of(value) in self._step.born
            if not is_new and (name in statement.writes or not (is_array(value) or is_plain(value))):
                yield name

    def _is_led(self, value: object) -> bool:
        """Tell whether a value leads to arrays on the device that were there before the statement."""
        numbers = {self._number_of(array) for array in find_arrays(value)} - {None}
        return not numbers <= self._step.born

    def reached(self, values: dict[str, Any]) -> frozenset[int]:
        """Return the pieces of memory that variables of the program reach."""
        self._step = _Step()
        written = {name for one in self._source.statements for name in one.writes}
        names = needed_names(self._source, values) | written
        for name in names:
            self._reach(name, values)
        return frozenset(self._step.crossing) | self._numbers(names, values)

    def _numbers(self, names: Iterable[str], values: dict[str, Any]) -> frozenset[int]:
        """Return the numbers of all arrays that variables lead to, by functions and classes as well."""
        arrays = (slot.value for _, slot in reach(values, names, self._source.looked_up) if is_array(slot.value))
        return frozenset(number for number in map(self._number_of, arrays) if number is not None)

    def work(self, work: str, reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Note what work reads and writes."""
        for touches, is_write in ((reads, False), (writes, True)):
            for piece, region in touches:
                number = self._areas.number(piece.number, piece.start, piece.end)
                self._note(number, Access(number, region, is_write))

    def host_wait(self) -> None:
        """Note that the host has waited."""
        self._step.is_host_read = True

    def _note(self, piece: int, access: Access) -> None:
        if piece not in self._seen:
            self._seen.add(piece)
            self._step.born.add(piece)
        self._step.accesses[access] = None

    def _note_tensors(self, work: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Note what an operator of torch reads and writes."""
        for tensors, is_write in ((reads, False), (writes, True)):
            for tensor in tensors:
                number = self._areas.number(self._tensors.number(tensor), *bytes_of(tensor))
                self._note(number, Access(number, region_of_tensor(tensor), is_write))

    def _touch_arguments(self, work: str, arguments: object) -> None:
        """Take arrays that a kernel is given as read and written."""
        for array in find_arrays(arguments):
            if is_tensor(array):
                self._note_tensors(work, [array], [array])
                continue
            touch = self._watch.find(array)
            if touch is None and not issubclass(type(array), np.ndarray):
                self._step.unknown = f"{work}, given an array that is not followed"
            elif touch is not None:
                self.work(work, [touch], [touch])

    def _is_own(self, code: types.CodeType) -> bool:
        """Tell whether code was written within the program."""
        statements = self._source.statements
        last = statements[-1].node.end_lineno or statements[-1].line
        return code.co_filename == self._source.filename and statements[0].line <= code.co_firstlineno <= last

    def _look(self, statement: Statement, values: dict[str, Any]) -> None:
        """Note what a statement looks up: its arrays, and what nobody follows."""
        arrays = [values[name] for name in sorted(statement.reads) if name in values and is_array(values[name])]
        self._step.named = frozenset(number for number in map(self._number_of, arrays) if number is not None)
        self._step.looked_up = frozenset(_names_used(statement, values))
        for _, slot in reach(values, self._step.looked_up, self._source.looked_up):
            if is_array(slot.value):
                is_of_host = self._number_of(slot.value) is None
                self._step.reaches_host |= is_of_host
                self._step.reaches_device |= not is_of_host
            elif is_user_function(slot.value):
                can_decide, can_choose = what_decides(slot.value.__code__)
                self._step.can_decide |= can_decide
                self._step.can_choose |= can_choose
        for name in sorted(statement.reads):
            if name in RUNS_TEXT and name not in values:
                self._step.unknown = f"{name}, which runs what is not known before"
            value = values.get(name)
            if name not in values or is_followed(value):
                continue
            if is_array(value) and (
                is_tensor(value)
                or issubclass(type(value), np.ndarray)
                or self._watch.find(value) is not None
                or not _size(value)
            ):
                continue
            self._step.unknown = f"{name!r}, a {type(value).__module__}.{type(value).__qualname__}"

    def _number_of(self, array: Any) -> int | None:
        """Return the number of an array's memory; None for the host's."""
        if is_tensor(array):
            return self._areas.number(self._tensors.number(array), *bytes_of(array)) if array.is_cuda else None
        touch = self._watch.find(array)
        return None if touch is None else self._areas.number(touch[0].number, touch[0].start, touch[0].end)

    def _reach(self, name: str, values: Mapping[str, object]) -> None:
        """Note which memory a variable reaches."""
        if name not in values or type(values[name]) is types.ModuleType or is_of_session(values[name]):
            return
        for array in find_arrays(values[name]):
            number = self._number_of(array)
            if number is not None:
                if array is not values[name]:
                    self.containers.add(name)
                if number not in self._seen:
                    self._seen.add(number)
                    self._step.born.add(number)
                self._step.crossing.setdefault(number, name)


class _Areas:
    """Numbers of memory that two libraries may share: what overlaps in addresses counts as one piece."""

    def __init__(self) -> None:
        self._of_arrays: dict[int, tuple[int, int]] = {}
        self._of_tensors: dict[int, tuple[int, int]] = {}
        self._same: dict[int, int] = {}

    def number(self, number: int, start: int, end: int) -> int:
        """Return the number under which a piece is known; those of tensors are below 0."""
        known = self._of_tensors if number < 0 else self._of_arrays
        if number not in known:
            known[number] = start, end
            others = self._of_arrays if number < 0 else self._of_tensors
            shared = [other for other, (first, last) in others.items() if start < last and first < end]
            self._same[number] = self._same[shared[0]] if shared else number
        return self._same[number]


def _names_used(statement: Statement, values: Mapping[str, object]) -> Iterator[str]:
    """Yield the variables that a statement uses, then those that its functions look up."""
    names = sorted(statement.reads | statement.writes)
    yield from names
    for name in names:
        function = values.get(name)
        if type(function) is types.FunctionType:
            yield from sorted(globals_of(function, values))


def _asks_for_stream(statement: Statement, lab: Session, values: Mapping[str, object]) -> bool:
    """Tell whether a statement looks at ``lab.current``."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == "current"
        and isinstance(part.value, ast.Name)
        and values.get(part.value.id) is lab
        for part in ast.walk(statement.node)
    )


def _size(value: Any) -> int:
    return int(np.prod(value.shape)) if hasattr(value, "shape") else 1


def _stream_costs(program: Statements, home: str) -> StreamCosts:
    """Measure what the host does for a change of streams, and for a wait; the least of some tries counts."""
    lab, now = program.lab, program.backend.host_time_ns
    switches, waits = [], []
    for _ in range(COST_TRIES):
        began_ns = now()
        with lab.select(home):
            pass
        left_ns = now()
        stream = lab.stream(home)
        stream.wait(stream.record())
        switches.append(left_ns - began_ns)
        waits.append(now() - left_ns)
    return StreamCosts(min(switches), min(waits))


def measured(trace: Trace, bounds_ns: Sequence[int]) -> tuple[list[Work], bool]:
    """Return what statements did on the device, and whether kernels tell: what was queued while each of them ran."""
    works = [Work()] * (len(bounds_ns) - 1)
    owner = np.searchsorted(bounds_ns, trace.queued_ns, side="right") - 1
    owner[owner == len(works)] = -1
    codes = [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)]
    work = np.flatnonzero(np.isin(trace.kind, codes))
    is_told = len(work) > 0
    share = _shares(trace) if is_told else np.zeros(len(trace))
    if not is_told:  # ranges then, the outermost of each statement
        is_inner = (trace.parent >= 0) & (owner[trace.parent] == owner)
        work = np.flatnonzero((trace.kind == SPAN_KINDS.index(SpanKind.RANGE)) & ~is_inner)
    for place, rows in _by_owner(owner[work], work) if len(work) else ():
        works[place] = _work_of(trace, rows, share[rows])
    return works, is_told


def _by_owner(owner: Any, work: Any) -> Iterator[tuple[int, Any]]:
    order = np.argsort(owner, kind="stable")
    owner, work = owner[order], work[order]
    cuts = np.flatnonzero(np.diff(owner)) + 1
    for rows, place in zip(np.split(work, cuts), owner[np.concatenate(([0], cuts))].tolist(), strict=True):
        if place >= 0:
            yield place, rows


def _shares(trace: Trace) -> Any:
    """Return which share of its SMs each kernel fills, up to 1; shape (n_spans,), float64."""
    blocks = trace.extra.get("grid_blocks")
    if blocks is None:
        return np.zeros(len(trace))
    sms = max(trace.metadata.device.sm_count, 1)
    return np.minimum(blocks / np.maximum(sms * blocks_that_fit(trace), 1), 1.0)


def _work_of(trace: Trace, rows: Any, share: Any) -> Work:
    lasted_ns = trace.duration_ns[rows]
    total_ns = int(lasted_ns.sum())
    copies = trace.kind[rows] == SPAN_KINDS.index(SpanKind.COPY)
    engine = Engine.SMS
    if lasted_ns[copies].sum() * 2 > total_ns:
        longest = rows[copies][int(np.argmax(lasted_ns[copies]))]
        name = trace.names[trace.name[longest]]
        engine = Engine.COPY_IN if "HtoD" in name else Engine.COPY_OUT if "DtoH" in name else Engine.SMS
    kernels_ns = lasted_ns[~copies]
    weighted = float((share[~copies] * kernels_ns).sum() / kernels_ns.sum()) if kernels_ns.sum() else 0.0
    # The host waits for a copy from or to pageable memory, which is staged.
    is_staged = any("pageable" in _detail(trace, row) for row in rows[copies].tolist())
    return Work(engine=engine, duration_ns=total_ns, share=weighted, waits=is_staged, host_ns=LAUNCH_NS * len(rows))


def _detail(trace: Trace, row: int) -> str:
    detail = trace.extra.get("detail")
    return "" if detail is None or detail[row] < 0 else trace.details[detail[row]].full_name


def _joined(
    source: Source, steps: Sequence[_Step], works: Sequence[Work], unknown: Mapping[str, str], random: Iterable[str]
) -> list[Work]:
    """Put what statements touch beside what they took, and say which are barriers."""
    uncertain = dict(unknown)  # Variables that may lead to other arrays in the next run, and why
    varying = set(random)  # Variables that may have other values in the next run; they lead to no array that was there before
    joined = []
    for statement, step, work in zip(source.statements, steps, works, strict=True):
        leading = sorted(step.looked_up & uncertain.keys())
        varies = step.is_chance or step.is_host_read or bool(leading or step.looked_up & varying)
        accesses = tuple(step.accesses)
        barrier = _own_barrier(step) or _barrier_of_values(
            statement, step, [(name, uncertain[name]) for name in leading], varies=varies
        )
        if not barrier and accesses and (varies or step.reaches_host):  # which bytes may be others in the next run
            is_write = any(one.is_write and one.piece not in step.born for one in accesses)
            others = (Access(one, None, is_write) for one in sorted(step.named))
            accesses = tuple(dict.fromkeys((*(access._replace(region=None) for access in accesses), *others)))
        for name in statement.binds:
            uncertain.pop(name, None)
            varying.discard(name)
        if varies or step.unknown or step.reaches_host:
            uncertain |= {name: "bound by what is not known before" for name, is_led in step.leads.items() if is_led}
            varying |= {name for name, is_led in step.leads.items() if not is_led}
        if varies and any(isinstance(part, _DEFINES) for part in ast.walk(statement.node)):
            uncertain |= dict.fromkeys(statement.writes, "which may call what is not known before")
        joined.append(_work(statement, step, replace(work, accesses=accesses, barrier=barrier)))
    return joined


def _barrier_of_values(statement: Statement, step: _Step, leading: Sequence[tuple[str, str]], *, varies: bool) -> str:
    """Return why values that may be others in the next run may lead to other arrays; an empty text where they cannot.

    Values of arrays of the host are data as a rule: they count where something decides or chooses by values.
    """
    is_elsewhere = not _pieces(step.accesses) <= step.named | step.born
    chooses = statement.chooses or step.can_decide or (step.can_choose and is_elsewhere)
    if (varies or step.reaches_host) and (step.accesses or step.reaches_device) and (statement.is_branching or chooses):
        return f"{'decides' if statement.is_branching else 'may choose arrays'} by values that may be others in the next run"
    if leading and (step.accesses or any(why in _RUNS_CODE for _, why in leading)):
        return f"uses {leading[0][0]!r}, {leading[0][1]}, so its next arrays are not known"
    if varies and step.accesses and is_elsewhere:
        return "may use other arrays in the next run, by values that are not known before"
    return ""


def _pieces(accesses: Iterable[Access]) -> set[int]:
    return {one.piece for one in accesses}


def _own_barrier(step: _Step) -> str:
    if step.unknown:
        return f"uses {step.unknown}"
    if step.steers:
        return "selects streams itself"
    return "orders streams itself, or asks which is selected" if step.orders else ""


def _work(statement: Statement, step: _Step, work: Work) -> Work:
    """Return a statement's work with what is the host's."""
    engine = Engine.SMS if work.engine is Engine.NONE and work.accesses else work.engine
    waits = work.waits or step.is_host_read
    # On one stream the host waited for all that came before: not as long on more.
    waits |= bool(step.orders) and engine is Engine.NONE and step.host_ns > WAITED_NS
    # A first run compiles and allocates, so its launches count as what they cost later. To wait is none of the host's work.
    launches_ns = step.host_ns if work.engine is Engine.NONE else work.host_ns
    host_ns = LAUNCH_NS if waits else max(min(step.host_ns, launches_ns), LAUNCH_NS)
    is_read = step.is_host_read or (waits and not work.waits)
    return replace(work, waits=waits, is_host_read=is_read, stream=statement.stream, engine=engine, host_ns=host_ns)


def least_work(known: Work, timed: Sequence[Work], *, is_told: bool) -> Work:
    """Return a statement's work with the least that later runs took."""
    waits = known.waits if not is_told or known.is_host_read else all(one.waits for one in timed)
    host_ns = LAUNCH_NS if waits else max(min(one.host_ns for one in timed), LAUNCH_NS)
    if not is_told or known.engine is Engine.NONE:
        return replace(known, waits=waits, host_ns=host_ns)
    least = min((known, *timed), key=lambda one: one.duration_ns)
    return replace(known, waits=waits, host_ns=host_ns, duration_ns=least.duration_ns, engine=least.engine, share=least.share)
