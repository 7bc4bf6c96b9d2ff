"""The first runs of a program, on copies of its inputs: what each statement touches, and how long it takes."""

from __future__ import annotations

import ast
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpustreamlab._util.arrays import find_arrays, is_array, is_own
from gpustreamlab.analysis import Touch, blocks_that_fit
from gpustreamlab.errors import SelectionError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.programs._calls import CALL, RUNS_TEXT, CallLog, globals_of, instrumented, is_followed, is_of_user
from gpustreamlab.programs._graph import LAUNCH_NS, Access, Engine, Recording, StreamCosts, Work
from gpustreamlab.programs._ground import Lab, Statements
from gpustreamlab.programs._source import LABEL_LENGTH, Source, Statement, refuse_crossing, short_text
from gpustreamlab.programs._torch import TorchPieces, bytes_of, graph_breaks, is_tensor, watching_torch
from gpustreamlab.programs._torch import region as region_of_tensor
from gpustreamlab.programs._values import copied
from gpustreamlab.typing import SpanKind

_numbers = itertools.count(1)

COST_TRIES = 3
"""How often the host's cost of a stream is measured."""
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
    reached: dict[int, str] = field(default_factory=dict)
    """Names of variables by the pieces of memory that they reach, in front of it."""
    crossing: dict[int, str] = field(default_factory=dict)
    """Names of variables by the pieces of memory that they reach, behind it."""
    born: set[int] = field(default_factory=set)
    """Pieces that were first seen in it."""


def needed_names(source: Source, values: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that a program looks up before it binds them, those of its functions too."""
    found, bound = set[str](), set[str]()
    for statement in source.statements:
        found |= {name for name in statement.needs if name not in bound and name in values}
        bound |= statement.binds
    for name in tuple(found):
        value = values[name]
        if isinstance(value, types.FunctionType):
            known = value.__globals__
            found |= {inner for inner in globals_of(value, known) if inner in values and known[inner] is values[inner]}
    return frozenset(found)


def copied_inputs(program: Statements, watch: AccessWatch | None) -> tuple[dict[str, Any], list[str]]:
    """Return variables to run a program on, with copies of all that it may change; and the names of what cannot be copied.

    With a `watch` arrays tell what is read and written, and so do functions that look them up.
    """
    source, values, ground = program.source, program.values, program.ground
    names = needed_names(source, values)
    kept = {name: values[name] for name in names if not _is_of_session(values[name])}
    made, shared = copied(kept, ground.backend.duplicate)
    copies: dict[str, Any] = {**values, **made}
    if watch is not None and watch.track is not None:
        for name in made:
            copies[name] = _tracked(made[name], watch.track, ground.backend.xp, watch.xp)
    for name, value in made.items():
        if isinstance(value, types.FunctionType):
            copies[name] = _on_copies(value, values, copies)
    return copies, shared


def rebound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables in a dictionary of their own; functions that look up variables of these look there."""
    made = dict(values)
    for name, value in values.items():
        if isinstance(value, types.FunctionType) and value.__globals__ is values:
            made[name] = _on_copies(value, values, made)
    return made


def _on_copies(function: types.FunctionType, values: Mapping[str, object], copies: dict[str, Any]) -> types.FunctionType:
    """Return a function that looks up copies where it looks up variables of the program."""
    known = function.__globals__
    shared = {name for name in globals_of(function, known) if name in copies and known[name] is values.get(name)}
    if not shared or not is_of_user(function):
        return function
    # What the program binds anew is seen by functions of its own namespace only.
    names = copies if known is values else {**known, **{name: copies[name] for name in shared}}
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__module__, made.__qualname__ = (
        function.__kwdefaults__,
        function.__module__,
        function.__qualname__,
    )
    made.__dict__.update(function.__dict__)
    return made


def _is_of_session(value: object) -> bool:
    return is_own(value) and not is_array(value)


def _tracked(value: Any, track: Callable[[Any], Any], plain_module: Any, watched_module: Any) -> Any:
    """Return a value with its arrays as ones that tell; containers are changed in place, since they are copies."""
    if value is plain_module:
        return watched_module
    if isinstance(value, plain_module.ndarray):
        return track(value)
    if isinstance(value, list):
        value[:] = [_tracked(one, track, plain_module, watched_module) for one in value]
    elif isinstance(value, dict):
        value.update({key: _tracked(one, track, plain_module, watched_module) for key, one in value.items()})
    elif type(value) is tuple:
        return tuple(_tracked(one, track, plain_module, watched_module) for one in value)
    elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(
        value, (types.ModuleType, types.FunctionType, type)
    ):
        for name, one in vars(value).items():
            if isinstance(one, (plain_module.ndarray, list, dict, tuple)):
                vars(value)[name] = _tracked(one, track, plain_module, watched_module)
    return value


def record(program: Statements, home: str) -> Recording:
    """Run a program on copies of its inputs: to see what it touches, how long its work takes, and how long the host takes.

    Parameters
    ----------
    program
        The program.
    home
        The stream on which it runs.
    """
    __tracebackhide__ = True
    with program.ground.dry_running(home) as stream:
        return _recorded(program, stream)


def _recorded(program: Statements, home: str) -> Recording:
    __tracebackhide__ = True
    source, lab = program.source, program.ground.lab
    with program.ground.same_selection(), program.ground.watching() as watch:
        with lab.select(home):
            copies, shared = copied_inputs(program, watch)
        tap = _Tap(watch, source)
        tap.leave_alone(program.values, copies)
        steps = tap.run(lab, copies, home)
        survivors = tap.reached(copies)
        lab.synchronize()
        del copies
    with lab.select(home):
        copies, _ = copied_inputs(program, None)
    lab.synchronize()
    works, is_measured, broken = _timed(program, copies, home)
    del copies
    host_ns = _host_times(program, home)
    works = [replace(work, host_ns=max(taken, LAUNCH_NS)) for work, taken in zip(works, host_ns, strict=True)]
    works = _joined(source, steps, works)
    notes = [
        f"{name!r} cannot be copied: what the program does to it was done to it, while the plan was made." for name in shared
    ]
    if not is_measured:
        notes.append(
            "Kernels were not captured, so times are those of ranges, and how many SMs a kernel fills is not known: the plan "
            "takes them to fit beside each other. plan.compare() measures."
        )
    born = {piece: place for place, step in enumerate(steps) for piece in step.born}
    return Recording(
        works=tuple(works),
        names=tuple(step.crossing for step in steps),
        reached=tuple(step.reached for step in steps),
        containers=frozenset(tap.containers),
        born=born,
        survivors=survivors,
        notes=(*notes, *broken),
        costs=_stream_costs(program, home),
        is_measured=is_measured,
    )


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
        self._originals: dict[int, str] = {}
        self.containers = set[str]()
        """Variables that lead to arrays and are none."""

    def run(self, lab: Lab, values: dict[str, Any], home: str) -> list[_Step]:
        """Run the statements, one by one."""
        __tracebackhide__ = True
        values[CALL] = self._log.call
        for name in needed_names(self._source, values):
            self._reach(name, values)
        steps = []
        for statement in self._source.statements:
            self._step = _Step()
            self._log.begin(statement.line)
            self._look(statement, values)
            for name in _names_used(statement, values):
                self._reach(name, values)
            self._step.reached, self._step.crossing = self._step.crossing, {}
            code = compile(ast.Module([instrumented(statement.node)], []), self._source.filename, "exec")
            self._watch.tap = self
            is_over = False
            try:
                with lab.on(home, plan_label(statement.text)), watching_torch(self._note_tensors, self.host_wait):
                    exec(code, values)  # noqa: S102 - the user's statement
                    is_over = True
            except SelectionError:
                if is_over:
                    refuse_crossing(self._source.statements, statement.line)
                raise
            finally:
                self._watch.tap = None
            for name in _names_used(statement, values):
                self._reach(name, values)
            step = self._step
            step.unknown, step.is_chance = self._log.unknown or step.unknown, self._log.is_chance
            step.steers, step.orders = self._log.steers, self._log.orders or _asks_for_stream(statement, lab, values)
            steps.append(step)
        return steps

    def reached(self, values: Mapping[str, object]) -> frozenset[int]:
        """Return the pieces of memory that variables of the program reach."""
        self._step = _Step()
        written = {name for one in self._source.statements for name in one.writes}
        for name in needed_names(self._source, values) | written:
            self._reach(name, values)
        return frozenset(self._step.crossing)

    def leave_alone(self, values: Mapping[str, object], copies: Mapping[str, object]) -> None:
        """Know the arrays of which the program has copies: what still uses one looks its variables up elsewhere."""
        for name, value in values.items():
            if value is not copies.get(name):
                for array in find_arrays(value):
                    number = self._number_of(array)
                    if number is not None:
                        self._originals[number] = name

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
        if piece in self._originals:
            self._step.unknown = f"{self._originals[piece]!r} as methods and decorated functions look it up, not as a copy"
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
            if touch is None and not isinstance(array, np.ndarray):
                self._step.unknown = f"{work}, given an array that is not followed"
            elif touch is not None:
                self.work(work, [touch], [touch])

    def _is_own(self, code: types.CodeType) -> bool:
        """Tell whether code was written within the program."""
        statements = self._source.statements
        last = statements[-1].node.end_lineno or statements[-1].line
        return code.co_filename == self._source.filename and statements[0].line <= code.co_firstlineno <= last

    def _look(self, statement: Statement, values: Mapping[str, object]) -> None:
        """Note what a statement looks up and nobody follows."""
        for name in sorted(statement.reads):
            if name in RUNS_TEXT and name not in values:
                self._step.unknown = f"{name}, which runs what is not known before"
            value = values.get(name)
            if name not in values or is_followed(value):
                continue
            if is_array(value) and (
                is_tensor(value) or isinstance(value, np.ndarray) or self._watch.find(value) is not None or not _size(value)
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
        if name not in values or isinstance(values[name], types.ModuleType) or _is_of_session(values[name]):
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
        if isinstance(function, types.FunctionType):
            yield from sorted(globals_of(function, values))


def _asks_for_stream(statement: Statement, lab: Lab, values: Mapping[str, object]) -> bool:
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


def plan_label(text: str) -> str:
    """Return what the recorded run of a statement is called on the timeline."""
    return f"plan: {short_text(text, LABEL_LENGTH)}"


def _timed(program: Statements, values: dict[str, Any], home: str) -> tuple[list[Work], bool, list[str]]:
    """Run the statements again, and measure them."""
    __tracebackhide__ = True
    source, lab = program.source, program.ground.lab
    number = next(_numbers)
    labels = []
    notes = []
    for place, statement in enumerate(source.statements):
        label = f"plan {number}.{place}: {short_text(statement.text, LABEL_LENGTH)}"
        labels.append(label)
        code = compile(ast.Module([statement.node], []), source.filename, "exec")
        before = graph_breaks()
        with lab.on(home, label):
            exec(code, values)  # noqa: S102 - the user's statement
        broken = [reason for reason, count in graph_breaks().items() if count > before.get(reason, 0)]
        if broken:
            notes.append(
                f"Line {statement.line}: torch.compile broke its graph {len(broken)} times, first for: {broken[0]:.200}"
            )
    lab.synchronize()
    works, is_measured = measured(program.ground.whole_trace(), labels)
    return works, is_measured, notes


def _host_times(program: Statements, home: str) -> list[int]:
    """Run the statements twice more, as one range each, and return how long the host took for each at least, in ns.

    One run alone may hold what is not the statement's: memory that the pool asks the driver for, or another thread.
    """
    __tracebackhide__ = True
    return [min(both) for both in zip(*(_host_times_once(program, home) for _ in range(2)), strict=True)]


def _host_times_once(program: Statements, home: str) -> list[int]:
    __tracebackhide__ = True
    lab, backend = program.ground.lab, program.ground.backend
    with lab.select(home):
        values, _ = copied_inputs(program, None)
    codes = [compile(ast.Module([one.node], []), program.source.filename, "exec") for one in program.source.statements]
    lab.synchronize()
    times_ns = [backend.host_time_ns()]
    with lab.on(home, plan_label("all statements")):
        times_ns[0] = backend.host_time_ns()
        for code in codes:
            exec(code, values)  # noqa: S102 - the user's statement
            times_ns.append(backend.host_time_ns())
    lab.synchronize()
    return [int(lasted_ns) for lasted_ns in np.diff(times_ns)]


def _stream_costs(program: Statements, home: str) -> StreamCosts:
    """Measure what the host does for a change of streams, and for a wait; the least of some tries counts."""
    lab, now = program.ground.lab, program.ground.backend.host_time_ns
    switches, waits = [], []
    for _ in range(COST_TRIES):
        began_ns = now()
        with lab.on(home, plan_label("nothing")):
            pass
        left_ns = now()
        stream = lab.stream(home)
        stream.wait(stream.record())
        switches.append(left_ns - began_ns)
        waits.append(now() - left_ns)
    return StreamCosts(min(switches), min(waits))


def measured(trace: Trace, labels: Sequence[str]) -> tuple[list[Work], bool]:
    """Return what statements did on the device, from the trace of their ranges."""
    places = {name: place for place, name in enumerate(labels)}
    by_name = np.array([places.get(name, -1) for name in trace.names], np.int64)
    is_range = trace.kind == SPAN_KINDS.index(SpanKind.RANGE)
    statement = np.where(is_range, by_name[trace.name], -1)
    work = np.flatnonzero(
        np.isin(trace.kind, [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)])
    )
    above = trace.parent[work].astype(np.int64)
    while True:  # up to the statement, through ranges of the user's own
        onward = (above >= 0) & (statement[above] < 0)
        if not onward.any():
            break
        above[onward] = trace.parent[above[onward]]
    owner = np.where(above >= 0, statement[above], -1)
    works = [Work()] * len(labels)
    if len(work):
        share = _shares(trace)
        for place, rows in _by_owner(owner, work):
            works[place] = _work_of(trace, rows, share[rows])
        return works, True
    for row in np.flatnonzero(statement >= 0).tolist():
        works[int(statement[row])] = Work(engine=Engine.SMS, duration_ns=int(trace.duration_ns[row]), share=0.0)
    return works, False


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
    return Work(engine=engine, duration_ns=total_ns, share=weighted, waits=is_staged)


def _detail(trace: Trace, row: int) -> str:
    detail = trace.extra.get("detail")
    return "" if detail is None or detail[row] < 0 else trace.details[detail[row]].full_name


def _joined(source: Source, steps: Sequence[_Step], works: Sequence[Work]) -> list[Work]:
    """Put what statements touch beside what they took, and say which are barriers."""
    tainted: set[str] = set()
    joined = []
    for statement, step, work in zip(source.statements, steps, works, strict=True):
        depends = bool(statement.reads & tainted)
        decides = statement.is_branching and (step.is_host_read or bool(statement.tests & tainted))
        if step.is_host_read or step.is_chance or step.unknown or depends:
            tainted |= statement.writes
        accesses = tuple(step.accesses)
        if depends:  # which bytes may be others in the next run
            accesses = tuple(dict.fromkeys(access._replace(region=None) for access in accesses))
        barrier = ""
        if step.unknown:
            barrier = f"uses {step.unknown}"
        elif step.steers:
            barrier = "selects streams itself"
        elif step.orders:
            barrier = "orders streams itself, or asks which is selected"
        elif decides:
            barrier = "decides by values of the device"
        engine = work.engine
        if engine is Engine.NONE and accesses:
            engine = Engine.SMS
        waits = work.waits or step.is_host_read
        # On one stream the host waited for all that came before: not as long on more.
        waits |= bool(step.orders) and engine is Engine.NONE and work.host_ns > WAITED_NS
        joined.append(
            replace(
                work,
                accesses=accesses,
                barrier=barrier,
                waits=waits,
                stream=statement.stream,
                engine=engine,
                host_ns=LAUNCH_NS if waits else work.host_ns,  # else it is what it waited for, on one stream
            )
        )
    return joined
