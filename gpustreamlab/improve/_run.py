"""One run of a program: in a session of its own, on copies of its inputs, with all that it gives and does."""

from __future__ import annotations

import ast
import io
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab._util.arrays import MOST_ITEMS, find_arrays, find_owner, is_array, parts_of
from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import Hazards
from gpustreamlab.errors import ProgramError
from gpustreamlab.improve._draft import Draft, walk_statements
from gpustreamlab.improve._held import CODE, Functions, Space, Unseen, leaves, other_values, same, spaces_of
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.programs._calls import CallLog, bytes_of, instrumented, is_user_function, root_of_type
from gpustreamlab.programs._check import _near, kept_random_state
from gpustreamlab.programs._source import copied_syntax, names_of_code
from gpustreamlab.programs._values import closed_over, copied, is_of_session
from gpustreamlab.streams.stream import Event, Stream

if TYPE_CHECKING:
    from gpustreamlab.session import Session

FILENAME = "<improve>"
_SEEDED = frozenset({"default_rng", "Generator", "RandomState", "SeedSequence", "PCG64", "Random"})
"""What makes a generator, which is the program's own then."""
_LIBRARY_CHANCE = frozenset(
    {"rand", "randn", "randint", "randperm", "normal", "uniform", "random", "manual_seed", "seed", "dropout"}
)
"""Functions of CuPy, torch and the simulated device's arrays that draw from a generator of the whole process."""
_ASKS = frozenset({"input", "breakpoint"})
_Changes = list[tuple[Space, Mapping[str, Any]]]
"""Modules and classes, each with what some of their names are to mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run gave."""

    wall_ns: int  # From its first call to the end of its last work
    values: Mapping[str, Any]  # What its variables and inputs hold behind it, on the host
    printed: str
    error: BaseException | None
    hazards: Hazards
    trace: Trace
    device_bytes: int  # How much memory its arrays took, at most
    untouched: frozenset[str] = frozenset()  # What was the same in front of it, where that was asked for

    @property
    def unseen(self) -> list[str]:
        """What it holds that cannot be compared, and what each is."""
        return [f"{name}, {one.kind}" for name, one in self.values.items() if isinstance(one, Unseen)]

    def differs_from(self, other: Outcome, tolerance: float | None, untouched: frozenset[str] = frozenset()) -> str:
        """Say what is not as in another run; empty where all is equal, bit for bit or within the tolerance.

        What both leave untouched may hold what was in the memory before.
        """
        if type(self.error) is not type(other.error) or str(self.error) != str(other.error):
            return f"it raises {self.error!r:.200}" if self.error is not None else f"it does not raise {other.error!r:.200}"
        if self.printed != other.printed:
            return "it prints something else"
        names = self.differing(other, tolerance) - untouched
        return f"{', '.join(sorted(names))} differ{'s' * (len(names) == 1)}" if names else ""

    def differing(self, other: Outcome, tolerance: float | None) -> frozenset[str]:
        """Return the variables that hold something else than in another run; of what is used no more arrays count."""

        def is_same(name: str, value: Any) -> bool:
            if name not in self.values:
                return not isinstance(value, np.ndarray)
            found = self.values[name]
            return same(value, found) or (tolerance is not None and _near(value, found, tolerance))

        return frozenset(name for name, value in other.values.items() if not is_same(name, value))

    def new_hazard(self, other: Outcome) -> str:
        """Say which race is in this run and not in another one; empty for none."""
        known = Counter({(one.kind, one.first.work, one.second.work): one.hazard_count for one in other.hazards.hazards})
        for one in self.hazards.hazards:
            if one.hazard_count > known[one.kind, one.first.work, one.second.work]:
                return f"{one.kind.value} of {one.array}: {one.first.work}, then {one.second.work}"
        return ""


class Runner:
    """Runs drafts of one program."""

    def __init__(self, lab: Session, values: Mapping[str, Any], arguments: Sequence[Any]) -> None:
        self.lab = lab
        self._values = values  # What its names mean
        self._arguments = arguments

    @property
    def session_name(self) -> str | None:
        """What a program may call the session, though it does not."""
        return next((name for name, value in self._values.items() if value is self.lab and not name.startswith("_")), None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the session of the user's record nothing in a ``with`` block; what the program did to it stays as it was."""
        with self.lab.capture("ranges"), self.lab._accesses.lent():
            yield

    def run(self, draft: Draft, look: Look | None = None, *, compares: bool = False, is_watched: bool = True) -> Outcome:
        """Run it once, in a session of its own on the same device; what it prints and raises is kept.

        And which variables are as they were in front of it, if that is asked for. What is watched runs slower on a card.
        """
        lab = self.lab
        lab.synchronize()
        session, printed = None, io.StringIO()
        try:
            with delayed_interrupts():  # there is a session to close, or none was begun
                session = type(lab)(lab._backend, title="improve", hazards="report" if is_watched else "off", counters=False)
            if lab.layout is not None:
                session.partition(lab.layout)
            names, changes = self._copies(session, draft)
            with kept_random_state(lab._backend), redirect_stdout(printed), other_values(changes):
                call, named = self._call_of(draft, names, look, changes)
                session.synchronize()
                had = _data_of(named()) if compares else {}
                session.synchronize()
                session.clear()
                printed.truncate(printed.seek(0))
                now = lab._backend.host_time_ns
                error: BaseException | None = None
                began_ns = now()
                try:
                    call()
                except Exception as raised:  # noqa: BLE001 - the user's, compared with those of other runs
                    error = raised
                called_ns = now()
                session.synchronize()
                synchronized_ns = now()
                hazards, trace, values = session.memory.hazards(), session.trace, named()
                is_work = np.isin(trace.kind, [SPAN_KINDS.index(kind) for kind in DEVICE_WORK])
                last_ns = int(trace.end_ns[is_work].max(initial=0))
                wall_ns = max(called_ns - began_ns, last_ns - lab._backend.host_to_clock_ns(began_ns))
                if not is_work.any():  # no kernels are captured, or it launches none
                    wall_ns = synchronized_ns - began_ns
                held = {id(one): one for value in values.values() for one in find_arrays(value)}
                data = _data_of(values)
                return Outcome(
                    wall_ns=wall_ns,
                    values=data,
                    untouched=frozenset(name for name, value in had.items() if name in data and same(value, data[name])),
                    printed=printed.getvalue(),
                    error=error,
                    hazards=hazards,
                    trace=trace,
                    device_bytes=max(_most_used(trace), sum(int(getattr(one, "nbytes", 0)) for one in held.values())),
                )
        finally:
            with delayed_interrupts():
                if session is not None:
                    session.close()

    def _call_of(
        self, draft: Draft, names: dict[str, Any], look: Look | None, changes: _Changes
    ) -> tuple[Callable[[], object], Callable[[], dict[str, Any]]]:
        """Return what is to be measured, prepared; and what gives the variables that it leaves behind."""
        arguments = [names.pop(f"argument {place}") for place in range(len(self._arguments))]
        inputs = names.keys() & draft.names
        scope, shared = names if look is None else look.scope(names), partial(_shared, changes)
        if draft.definition is None:
            code = draft.compiled(draft.body if look is None else look.told(draft.body), FILENAME)
            return (
                lambda: exec(code, scope),  # noqa: S102 - the user's program
                lambda: shared() | {name: scope[name] for name in scope if name in inputs or name not in self._values},
            )
        definition: ast.FunctionDef = copied_syntax(draft.definition)
        definition.decorator_list = []
        if look is not None:
            measured = next((one for one in definition.body if getattr(one, "name", "") == draft.inner), definition)
            measured.body = look.told(measured.body)  # type: ignore[attr-defined]
        exec(draft.compiled([definition], FILENAME), scope)  # noqa: S102 - the user's program
        function = scope[definition.name]
        given: dict[str, Any] = {f"argument {place}": one for place, one in enumerate(arguments)}
        given |= {name: scope[name] for name in inputs}
        if draft.inner is None:
            return lambda: given.update({"what it returns": function(*arguments)}), lambda: {**shared(), **given}
        work = function(*arguments)
        return (
            lambda: given.update({"what it returns": work()}),
            lambda: {**shared(), **given, **{one.key: one.value for one in closed_over(work)}},
        )

    def _copies(self, session: Session, draft: Draft) -> tuple[dict[str, Any], _Changes]:
        """Return what names mean, with copies of all that a run may change; this session in place of the user's.

        And what is to stand in modules and classes of the user's, in which functions and methods look names up.
        """
        lab, known = self.lab, dict(self._values)
        used = {name: known[name] for name in sorted(draft.names & known.keys())}
        used |= {f"argument {place}": one for place, one in enumerate(self._arguments)}
        seen = [*used.values(), *(one for value in used.values() for one in reached(value))]
        spaces, functions = spaces_of(seen, draft.stored), Functions(seen)
        shared = {f"{name} in {number}": one for number, space in enumerate(spaces) for name, one in space.values().items()}
        memo: dict[int, Any] = {id(lab): session, id(lab.xp): session.xp, **functions.copies}
        for stream in lab.streams.values():
            memo[id(stream)] = _twin(session, stream)
        values = {**used, **shared, **functions.kept}
        made, refusing = copied(values, lab._backend.duplicate, memo)
        if refusing:
            name, kind = refusing[0], type(values[refusing[0]])
            raise refused(f"{name.partition(' in ')[0]!r}, a {kind.__module__}.{kind.__qualname__}, cannot be copied")
        functions.fill(made)
        changes: _Changes = [
            (space, {name: made[f"{name} in {number}"] for name in space.values()}) for number, space in enumerate(spaces)
        ]
        return {**known, **{name: made[name] for name in used}}, changes


def _shared(changes: _Changes) -> dict[str, Any]:
    """Return what modules and classes hold."""
    found = ((space.name, *item) for space, _ in changes for item in space.values().items())
    return {f"{name} in {owner}": one for owner, name, one in found}


def _data_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what variables hold, on the host; what they lead to by itself."""
    return {name: one for variable, value in values.items() if _counts(value) for name, one in leaves(variable, value)}


def _most_used(trace: Trace) -> int:
    """Return how much memory the pools of all streams gave out together, at most, as far as that was recorded."""
    counters, used, most = trace.counters, dict[int, float](), 0.0
    for lane, name, value in zip(counters.lane.tolist(), counters.name.tolist(), counters.value.tolist(), strict=True):
        if counters.names[name] == "pool_used_bytes":
            used[lane] = value
            most = max(most, sum(used.values()))
    return int(most)


def _twin(session: Session, stream: Stream) -> Stream:
    """Return a stream like one of the user's, in another session."""
    if stream.is_lent:
        return session.stream(stream.name, external=stream)
    return session.stream(stream.name, priority=stream.priority, partition=stream.partition)


def refused(why: str) -> ProgramError:
    """Return the error that a program is not improved, as it may not run several times."""
    return ProgramError(
        f"lab.improve runs a program many times, on copies of its inputs. This one cannot have them: {why}. Leave that out "
        "of what is improved, or pass what it gives as an array."
    )


def _counts(value: Any) -> bool:
    """Tell whether a variable is compared: what it leads to may be data."""
    return not isinstance(value, (*CODE, Stream, Event)) and not is_of_session(value)


class Look:
    """What is seen of one run: when each statement began, what of the host's memory it looks at, and what it calls."""

    AT = "__gpustreamlab_at__"

    def __init__(self, draft: Draft, now: Callable[[], int]) -> None:
        self._now = now
        self.places = {id(one): place for place, (_, one) in enumerate(draft.statements())}
        self._statements = [one for _, one in draft.statements()]
        self._names: Mapping[str, Any] = {}
        self.times: list[tuple[int, int]] = []  # When which statement began; of each time that it did
        self.host_memory: list[dict[str, set[tuple[int, int]]]] = [{} for _ in self._statements]
        """Of each statement which of the host's memory its names lead to: from and to where, by name."""
        self.known: dict[str, set[tuple[int, int]]] = {}
        """Which memory of the host names lead to in any of them."""
        self.kinds: list[dict[str, Any]] = [{} for _ in self._statements]
        """Of each statement a value that each of its names had."""
        self.arrays: dict[str, set[int]] = {}
        """Which memory of the device names lead to in any of them."""
        self._begun: set[int] = set()
        self._inside = {place: self._places_in(one) for place, one in enumerate(self._statements)}

    def scope(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return variables with what is called in front of each statement."""
        names[self.AT] = self._at
        self._names = names
        return names

    def told(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements that tell when they begin, and which functions they call."""
        count = 0

        def with_calls(body: list[ast.stmt]) -> list[ast.stmt]:
            nonlocal count
            made = []
            for one in body:
                made += ast.parse(f"{self.AT}({count}, locals())").body
                count += 1
                made.append(one)
                if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    for name in ("body", "orelse", "finalbody"):
                        if getattr(one, name, None):
                            setattr(one, name, with_calls(getattr(one, name)))
            return made

        made = with_calls(copied_syntax(body))
        return [instrumented(one) for one in made]

    def _places_in(self, one: ast.stmt) -> list[int]:
        """Return the statements in one that may not run."""
        is_choice = isinstance(one, (ast.If, ast.For, ast.While, ast.Try, ast.TryStar))
        return [self.places[id(inner)] for _, inner in walk_statements([one]) if inner is not one and is_choice]

    def _at(self, place: int, names: Mapping[str, Any]) -> None:
        self.times.append((place, self._now()))
        self._begun.add(place)
        for one in (place, *(inner for inner in self._inside[place] if inner not in self._begun)):
            self._note(one, names)

    def _note(self, place: int, names: Mapping[str, Any]) -> None:
        for name in names_loaded(self._statements[place]):
            if name in names or name in self._names:
                value = self.kinds[place][name] = names[name] if name in names else self._names[name]
                ranges, arrays = memory_of(value)
                for memory in (self.host_memory[place], self.known):
                    memory.setdefault(name, set()).update(ranges)
                self.arrays.setdefault(name, set()).update(arrays)

    @contextmanager
    def following(self) -> Iterator[Effects]:
        """Follow calls in a ``with`` block."""
        log = CallLog.active[threading.get_ident()] = Effects(lambda _work, _arguments: None, _is_own)
        log.begin(0)
        try:
            yield log
        finally:
            del CallLog.active[threading.get_ident()]


def _is_own(code: types.CodeType) -> bool:
    return code.co_filename == FILENAME


class Effects(CallLog):
    """Is told of the calls of a program; keeps the first that reaches beyond its arrays."""

    found = ""

    def _note_call(self, plain: Any, name: str, root: str) -> None:
        super()._note_call(plain, name, root)
        last = name.rpartition(".")[2]
        owner = getattr(plain, "__self__", None)
        module = getattr(plain, "__module__", None) or type(owner).__module__
        if self.outside:
            self.found = self.found or f"it calls {self.outside}"
        elif root in ("_io", "io", "builtins") and last in {"open", *_ASKS}:
            self.found = self.found or f"it calls {last}()"
        elif last not in _SEEDED and (root in ("random", "secrets", "uuid") or str(module).startswith("numpy.random")):
            is_global = isinstance(owner, np.random.RandomState) or root != "numpy"
            if is_global and self._is_shared(owner):
                self.found = self.found or f"it draws from a generator that is not its own, by {name}()"
        elif last in _LIBRARY_CHANCE and (root in ("cupy", "torch") or type(owner).__name__ == "RandomModule"):
            self.found = self.found or f"it draws from a generator that is not its own, by {name}()"

    @staticmethod
    def _is_shared(owner: Any) -> bool:
        import random

        shared = (np.random.mtrand._rand, getattr(random, "_inst", None), None)
        return any(owner is one for one in shared) or isinstance(owner, types.ModuleType)


def parts_of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the syntax of a statement; of one that has others in it that of its head, and of its handlers."""
    heads: list[ast.AST] = [node]
    match node:
        case ast.For(iter=head) | ast.While(test=head) | ast.If(test=head):
            heads = [head]
        case ast.With(items=items) | ast.Try(handlers=items) | ast.TryStar(handlers=items):
            heads = [*items]
        case ast.FunctionDef() | ast.ClassDef():
            heads = []
    return (one for head in heads for one in ast.walk(head))


def names_loaded(node: ast.stmt) -> set[str]:
    """Return the names that a statement looks up itself."""
    return {one.id for one in parts_of_statement(node) if isinstance(one, ast.Name)}


def reached(value: Any) -> Iterator[Any]:
    """Yield a value and all that it leads to: what it holds, what functions close over or look up, and methods do."""
    seen, waiting = set[int](), [value]
    while waiting and len(seen) < MOST_ITEMS:
        one = waiting.pop()
        kind = one if isinstance(one, type) else type(one)
        is_users = not root_of_type(kind)
        if (
            id(one) not in seen
            and not isinstance(one, (str, bytes, int, float, types.ModuleType))
            and (kind is not one or is_users)
        ):
            seen.add(id(one))
            yield one
            if is_user_function(one):
                waiting += [one.__globals__[name] for name in names_of_code(one.__code__) if name in one.__globals__]
            waiting += [part for base in kind.__mro__ * is_users if not root_of_type(base) for part in vars(base).values()]
            waiting += [] if is_array(one) else parts_of(one)


def memory_of(value: Any) -> tuple[set[tuple[int, int]], set[int]]:
    """Return which memory a value leads to, whole allocations: of the host from and to where, and of the device."""
    found, arrays = set[tuple[int, int]](), set[int]()
    for one in reached(value):
        if isinstance(one, np.ndarray):
            owner = one
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            begin = owner.__array_interface__["data"][0]
            found.add((begin, begin + max(1, owner.nbytes)))
        elif is_host_tensor(one):
            found.add(bytes_of(one))
        elif is_array(one):
            arrays.add(find_owner(one).key)
    return found, arrays


def is_host_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor in memory of the host."""
    is_tensor = is_array(value) and hasattr(value, "untyped_storage") and value.device.type == "cpu"
    return is_tensor and str(getattr(value, "layout", "torch.strided")) == "torch.strided"  # a sparse one has no storage
