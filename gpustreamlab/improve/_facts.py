"""What was seen of one run, by the statements of its program: what each launched, where, what it touched and waited for."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from gpustreamlab.analysis._advice import read_runs, run_of
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._needed_waits import needed_calls
from gpustreamlab.analysis._program import DOWNLOAD, UPLOAD, read_program
from gpustreamlab.backends import Backend
from gpustreamlab.improve._draft import BODIES, Draft
from gpustreamlab.improve._run import Look, is_host_tensor, names_loaded, parts_of_statement, reached
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.programs._source import names_of_code
from gpustreamlab.streams.stream import Stream

SELECTS = ("on", "select")
LOOPS = (ast.For, ast.While)
TRIES = (ast.Try, ast.TryStar)
HIDING = (*TRIES, ast.Match)
"""Statements with branches that have no places of their own."""
_TAKE_IN = ("asarray", "array", "set")
"""What copies to the device what it is given."""


class Facts:
    """What is known of one draft by one run."""

    def __init__(self, draft: Draft, look: Look, trace: Trace, backend: Backend, session: Any, known: str | None) -> None:
        self.draft = draft
        self.trace = trace
        self.look = look
        self.statements = [one for _, one in draft.statements()]
        self._lists = [body for body, _ in draft.statements()]
        self._began_ns = np.array([backend.host_to_clock_ns(at_ns) for _, at_ns in look.times], np.int64)
        self._place = np.array([place for place, _ in look.times], np.int64)
        rows = np.flatnonzero(np.isin(trace.kind, [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]))
        self.run: Run = run_of(trace, read_program(trace, rows))  # as recorded
        self.pieces: tuple[Run, ...] = read_runs(trace, rows)[0]  # calibrated, to predict from
        works = self.run.program.works
        self.site_of = self._sites([int(trace.queued_ns[work.row]) for work in works])
        """Which statement launched each work."""
        named = (name for name, value in self.values() if session is not None and value is session)
        self.session_name = next(named, None if known in draft.names else known)

    def _sites(self, times_ns: list[int]) -> list[int]:
        if not len(self._began_ns):
            return [-1] * len(times_ns)
        found = np.searchsorted(self._began_ns, np.array(times_ns, np.int64), side="right") - 1
        return [int(self._place[one]) if one >= 0 else -1 for one in found.tolist()]

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield names with the values that they had, of statements that ran or may run."""
        for place, kinds in enumerate(self.look.kinds):
            if place in self.executed or place in self.unseen:
                yield from kinds.items()

    # Statements

    @cached_property
    def executed(self) -> frozenset[int]:
        """Statements that ran."""
        return frozenset(self._place.tolist())

    @cached_property
    def parents(self) -> list[tuple[int, ...]]:
        """Of each statement those that it stands in, from the outside in."""
        place_of = {id(one): place for place, one in enumerate(self.statements)}
        found: list[tuple[int, ...]] = [()] * len(self.statements)
        for place, one in enumerate(self.statements):  # the outer ones come first
            for name in BODIES:
                for inner in getattr(one, name, None) or []:
                    if id(inner) in place_of:
                        found[place_of[id(inner)]] = (*found[place], place)
        return found

    @cached_property
    def unseen(self) -> frozenset[int]:
        """Statements that did not run, and may another time: not those of a branch that only what was prepared decides."""
        heads = [one if isinstance(one, ast.If) and is_pure(one.test) else None for one in self.statements]
        fixed = {place for place, one in enumerate(heads) if one is not None and not names_loaded(one) & self._bound}
        left = {*range(len(self.statements))} - self.executed
        return frozenset(place for place in left if not fixed & {*self.parents[place]})

    def hindering(self, last: int | None = None) -> list[int]:
        """Return what did not run and may launch work on memory that other work uses, up to a place: its order is not known."""
        places = range(len(self.statements) if last is None else last + 1)
        untried = [place for place in places if place in self.unseen or isinstance(self.statements[place], HIDING)]
        launching = {site for site in self.site_of if site in places}
        kinds = (ast.Call, ast.BinOp, ast.AugAssign)
        found = []
        for place in untried:
            own, unit = self._memory_named(place), self.unit_of(place)
            may_launch = any(isinstance(part, kinds) for part in parts_of_statement(self.statements[place]))
            is_on_several = unit != place and not names_loaded(self.statements[unit]).isdisjoint(self._bound)
            others = launching.union(untried) - {place}
            if may_launch and own and (is_on_several or any(own & self._memory_named(other) for other in others)):
                found.append(place)
        return found

    def _memory_named(self, place: int) -> set[int]:
        """Return the memory of the device to which names of a statement lead, at any time."""
        return {one for name in names_loaded(self.statements[place]) for one in self.look.arrays.get(name, ())}

    def leaving(self, place: int) -> list[int]:
        """Return what may jump over what stands behind a statement's loop, or at the end of the program."""
        loop, last = self.loop_of(place), self.draft.body[-1]
        end = len(self.statements) - isinstance(last, ast.Return)  # in front of which the wait is put
        region = self.within(loop) if loop is not None else range(place, end)
        jumps = (ast.Return, ast.Raise, ast.Assert, *TRIES)
        tried = [one for one in self.parents[place] if isinstance(self.statements[one], TRIES)]
        return [*tried, *(one for one in region if isinstance(self.statements[one], jumps))]

    def list_of(self, place: int) -> int:
        """Return a number for the list of statements that one stands in."""
        return id(self._lists[place])

    def turns_of(self, loop: int) -> list[int]:
        """Return of each work in which turn of a loop it was launched; -1 for none."""
        inside = self.within(loop)
        began_ns = self._began_ns[self._place == inside[1]]
        return [
            int(np.searchsorted(began_ns, self.trace.queued_ns[work.row], side="right")) - 1 if site in inside[1:] else -1
            for work, site in zip(self.run.program.works, self.site_of, strict=True)
        ]

    def loop_of(self, place: int) -> int | None:
        """Return the outermost loop that a statement stands in."""
        return next((one for one in self.parents[place] if isinstance(self.statements[one], LOOPS)), None)

    def inner_loop_of(self, place: int) -> int | None:
        """Return the innermost loop that a statement stands in."""
        return next((one for one in self.parents[place][::-1] if isinstance(self.statements[one], LOOPS)), None)

    def within(self, place: int) -> list[int]:
        """Return the statements in another one, with itself."""
        return [one for one in range(len(self.statements)) if one == place or place in self.parents[one]]

    def region(self, place: int) -> list[int]:
        """Return the statements that may run between a statement and the end of its outermost loop, or of the program."""
        loop = self.loop_of(place)
        inside = self.within(loop) if loop is not None else range(place, len(self.statements))
        return [one for one in inside if one in self.executed or one in self.unseen]

    def unit_of(self, place: int) -> int:
        """Return the ``with lab.on(...)`` block that a statement stands in, the innermost; itself where there is none."""
        return next((one for one in self.parents[place][::-1] if selection(self.statements[one]) is not None), place)

    @cached_property
    def units(self) -> dict[int, list[int]]:
        """Blocks and statements that launched work, in their order, each with its works."""
        found: dict[int, list[int]] = {}
        for work, site in enumerate(self.site_of):
            if site >= 0:
                found.setdefault(self.unit_of(site), []).append(work)
        return dict(sorted(found.items()))

    @cached_property
    def _bound(self) -> set[str]:
        """Variables that the program binds itself."""
        return set().union(*map(names_bound, self.statements))

    # Streams

    def lanes_of(self, places: Iterable[int]) -> set[int]:
        """Return the streams of the work of some statements."""
        chosen = {*places}
        return {self.run.program.works[work].lane for work, site in enumerate(self.site_of) if site in chosen}

    def lane_name(self, lane: int) -> str:
        """Return what a stream is called."""
        return self.trace.lanes[lane].name

    def stream_text(self, unit: int) -> str | None:
        """Return what to type for the stream of a block or statement; None where it is not one, or not to be named."""
        chosen = selection(self.statements[unit])
        lanes = self.lanes_of(self.within(unit))
        if len(lanes) == 1:
            return self.text_of_lane(*lanes)
        is_stream = isinstance(chosen, ast.Name) and isinstance(self.look.kinds[unit].get(chosen.id), Stream)
        return ast.unparse(chosen) if is_stream and chosen is not None else None

    def text_of_lane(self, lane: int) -> str | None:
        """Return what to type for a stream: a variable that is it in the whole program, else what the session calls it."""
        name = self.lane_name(lane)
        for variable in self._lasting:
            seen = [value for one, value in self.values() if one == variable]
            if all(isinstance(value, Stream) and value.name == name for value in seen):
                return variable
        is_named = self.session_name is not None and " " not in name  # the default stream has no name
        return f"{self.session_name}.stream({json.dumps(name)})" if is_named else None

    def module_name(self, wanted: str) -> str | None:
        """Return what a program calls a module; None where it does not know it."""
        function = self.draft.function
        known = {**({} if function is None else function.__globals__), **dict(self.values())}
        return next((name for name, one in known.items() if isinstance(one, ModuleType) and one.__name__ == wanted), None)

    @cached_property
    def _lasting(self) -> list[str]:
        """Variables that the program does not bind itself."""
        return list(dict.fromkeys(name for name, _ in self.values() if name not in self._bound))

    # What waits, and for what

    @cached_property
    def waiting(self) -> dict[int, list[int]]:
        """Statements in which the host waited, with the numbers of the calls."""
        calls = [(number, call) for number, call in enumerate(self.run.program.calls) if call.awaits and call.row >= 0]
        sites = self._sites([int(self.trace.start_ns[call.row]) for _, call in calls])
        found: dict[int, list[int]] = {}
        for (number, _), site in zip(calls, sites, strict=True):
            found.setdefault(site, []).append(number)
        return found

    def has_waits(self, places: Iterable[int]) -> bool:
        """Tell whether the host waits in some statements for less than all: what waits for all may be behind the program."""
        calls = self.run.program.calls
        return any(not calls[number].is_of_device for place in places for number in self.waiting.get(place, ()))

    def needs_wait(self, place: int) -> bool:
        """Tell whether the host may need that a statement waits, by what it copies behind it."""
        return not needed_calls(self.run.program, self.run.memory).isdisjoint(self.waiting.get(place, ()))

    @cached_property
    def needs(self) -> dict[tuple[int, int], set[tuple[int, int]]]:
        """Blocks and statements whose work needs that of another one, of another stream: which works, before and behind."""
        works, found = self.run.program.works, dict[tuple[int, int], set[tuple[int, int]]]()
        for before, after in self.run.memory.edges():
            if works[before].lane != works[after].lane and min(self.site_of[before], self.site_of[after]) >= 0:
                pair = self.unit_of(self.site_of[before]), self.unit_of(self.site_of[after])
                found.setdefault(pair, set()).add((before, after))
        return found

    def is_awaited(self, before: int, after: int) -> bool:
        """Tell whether the stream of a work waits for that of another one anyway, right in front of it."""
        works = self.run.program.works
        return any(
            target == after and works[source].lane == works[before].lane and source >= before
            for source, target in self.run.program.waits
        )

    # Memory of the host

    def copied_names(self, place: int) -> set[str]:
        """Return the names in a statement that lead to memory of the host which a call copies, and for nothing else."""
        one, handed = self.statements[place], list[ast.expr]()
        for node in parts_of_simple(one):
            match node:
                case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in _TAKE_IN:
                    handed.append(first)
                case ast.Call(func=ast.Attribute(attr="get"), keywords=keywords):
                    handed += [part.value for part in keywords if part.arg == "out"]
                case ast.Call(func=ast.Attribute(value=value)) if is_upload(node, self.look.kinds[place]):
                    handed.append(value)
        plain = [part for part in handed if is_plain_place(part)]
        inside = {id(name): name.id for part in plain for name in ast.walk(part) if isinstance(name, ast.Name)}
        names = [name for name in ast.walk(one) if isinstance(name, ast.Name) and id(name) not in inside]
        others = {name.id for name in names if isinstance(name.ctx, ast.Load) or isinstance(one, ast.AugAssign)}
        return {*inside.values()} - others

    def copies_at(self, place: int) -> set[tuple[int, int]]:
        """Return which memory of the host a statement hands to copies."""
        names = self.copied_names(place)
        return {one for name in names for one in self.look.host_memory[place].get(name, ())}

    def is_touched(self, region: Collection[int], memory: Collection[tuple[int, int]] | None) -> bool:
        """Tell whether the host itself may look at memory, in some statements; at any, where it is None."""
        return next(self.touching(region, memory), None) is not None

    def touching(self, region: Collection[int], memory: Collection[tuple[int, int]] | None) -> Iterator[int]:
        """Yield the statements in which the host itself may look at memory."""
        for place in region:
            one, own = self.statements[place], self.look.host_memory[place]
            names = names_loaded(one) - self.copied_names(place) - self._only_gone_through(place)
            found = own if place in self.executed else self.look.known  # by a branch that was not taken
            ranges = {part for name in names for part in found.get(name, ())}
            if any(memory is None or any(begin < last and first < end for first, last in memory) for begin, end in ranges):
                yield place

    def is_looked_up(self, name: str, value: Any, place: int) -> bool:
        """Tell whether a statement looks at a variable, or at the list that it is by another name or in a function."""
        if name in names_loaded(self.statements[place]):
            return True
        for one in (part for given in self.look.kinds[place].values() for part in reached(given)):
            code = getattr(one, "__code__", None)
            if (one is value and value is not None) or (code and name in names_of_code(code) | {*code.co_freevars}):
                return True
        return False

    def _only_gone_through(self, place: int) -> set[str]:
        """Return the variables whose items a loop takes, and a list that is given one more: it looks at none of their bytes."""
        one, kinds = self.statements[place], self.look.kinds[place]
        match one:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name)), args=[new])):
                is_alone = not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(new))
                return {name} if is_alone and type(kinds.get(name)) is list else set()
        plain = (ast.Name, ast.Load, ast.Constant, ast.Call)
        if not isinstance(one, ast.For) or not all(isinstance(part, plain) for part in ast.walk(one.iter)):
            return set()
        names = names_loaded(one)
        if not names - kinds.keys() <= {"enumerate", "zip", "range", "len", "reversed"}:
            return set()
        values = {name: kinds[name] for name in names & kinds.keys()}
        are_parts = all(type(value) in (list, tuple, int) or getattr(value, "ndim", 0) > 1 for value in values.values())
        return {*values} if are_parts else set()  # one axis has numbers, which are read

    def memory_of_copies(self, region: Collection[int], lanes: Collection[int] | None = None) -> set[tuple[int, int]] | None:
        """Return which memory of the host is copied from or to in some statements; None where that is not known.

        Of some streams, or of all.
        """
        found: set[tuple[int, int]] = set()
        copying = {
            self.site_of[number]
            for number, work in enumerate(self.run.program.works)
            if work.kind in (UPLOAD, DOWNLOAD) and (lanes is None or work.lane in lanes)
        }
        for place in copying & {*region}:
            if not self.copied_names(place) and place not in self.reading:
                return None
            found |= self.copies_at(place)
        for place in self.unseen & {*region}:  # which may copy, too
            found |= {one for name in self.copied_names(place) for one in self.look.known.get(name, ())}
        return found

    @cached_property
    def reading(self) -> frozenset[int]:
        """Statements that fetch a value, or an array, into new memory of the host."""
        return frozenset(place for place, one in enumerate(self.statements) if any(map(is_reading, ast.walk(one))))


def is_pure(test: ast.expr) -> bool:
    """Tell whether a condition looks at variables only."""
    parts = (ast.Compare, ast.Name, ast.Constant, ast.cmpop, ast.expr_context, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop)
    return all(isinstance(one, parts) for one in ast.walk(test))


def names_bound(part: ast.AST) -> set[str]:
    """Return the variables that syntax binds."""
    return {one.id for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def selection(one: ast.stmt) -> ast.expr | None:
    """Return the stream that ``with lab.on(stream, ...):`` selects."""
    match one:
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Attribute(attr=attr), args=[chosen, *_]))]):
            return chosen if attr in SELECTS else None
    return None


def is_reading(node: ast.AST) -> bool:
    """Tell whether an expression has the host read a value of the device."""
    match node:
        case ast.Call(func=ast.Name(id="float" | "int" | "bool"), args=[_]):
            return True
        case ast.Call(func=ast.Attribute(attr="item" | "tolist" | "cpu" | "numpy" | "asnumpy")):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[], keywords=keywords):
            return not any(one.arg == "out" for one in keywords)
    return False


def parts_of_simple(one: ast.stmt) -> Iterator[ast.AST]:
    """Yield the syntax of a statement that has no others in it."""
    return (part for part in ast.walk(one) if not any(getattr(one, name, None) for name in BODIES))


def is_upload(node: ast.AST, values: Mapping[str, Any]) -> bool:
    """Tell whether an expression copies a tensor of the host to the device, as it is: ``x.to(device)``, ``x.cuda()``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="to" | "cuda" as attr, value=value), args=args, keywords=keywords):
            devices = [*args, *(one.value for one in keywords if one.arg == "device")]
            is_plain = is_plain_place(value) and {one.arg for one in keywords} <= {"device", "non_blocking"}
            held = reached(values.get(root_of(value)))
            is_device = _is_device(devices[0], values) if len(devices) == 1 else attr == "cuda" and not devices
            return is_plain and is_device and any(map(is_host_tensor, held))
    return False


def _is_device(part: ast.expr, values: Mapping[str, Any]) -> bool:
    known = part.value if isinstance(part, ast.Constant) else values.get(part.id, "") if isinstance(part, ast.Name) else ""
    return str(known).startswith("cuda")


def root_of(part: ast.expr) -> str:
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        part = part.value
    return part.id if isinstance(part, ast.Name) else ""


def is_plain_place(part: ast.expr) -> bool:
    """Tell whether an expression is a variable, an attribute or an item of one: it computes nothing."""
    parts = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.BinOp)
    marks = (ast.expr_context, ast.unaryop, ast.operator)
    return not isinstance(part, ast.BinOp) and all(isinstance(one, (*parts, *marks)) for one in ast.walk(part))
