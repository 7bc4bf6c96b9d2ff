"""A plan as Python: statements in `with lab.on(...)`, waits, and what holds memory that crosses streams; and how it runs."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

from gpustreamlab.backends import Backend
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.programs._graph import Recording, Schedule
from gpustreamlab.programs._source import LABEL_LENGTH, Source, Statement, free_name
from gpustreamlab.typing import HazardMode

if TYPE_CHECKING:
    from gpustreamlab.session import Session


@dataclass(slots=True)
class _Block:
    """Statements that one ``with lab.on(...)`` has in it; without a stream, statements of the host alone."""

    stream: str | None
    body: list[str | int] = field(default_factory=list)  # Numbers of statements, and lines of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A plan as text, and as a tree whose statements have the lines of the source."""

    text: str  # To read, paste and keep
    tree: ast.Module  # To run
    blocks: frozenset[int]  # Which statements of the tree are ``with`` blocks of ours
    streams: tuple[str, ...]  # The streams that it works on; it ends in the first
    variables: frozenset[str]  # What it binds beyond what the program binds
    compiled: dict[str, CodeType] = field(default_factory=dict, repr=False, compare=False)
    """The tree as it was compiled, by what tracebacks call it."""

    def compile(self, filename: str, flags: int) -> CodeType:
        """Return what runs, under a source's flags; it is compiled once."""
        if filename not in self.compiled:
            self.compiled[filename] = compile(self.tree, filename, "exec", flags, dont_inherit=True)
        return self.compiled[filename]


def write_code(source: Source, planned: Schedule, recording: Recording, session: str, *, has_ranges: bool = True) -> Code:
    """Write a plan as Python."""
    writer = _Writer(source, planned, recording, session)
    lines: list[str] = []
    tree, blocks = ast.Module([], []), set[int]()
    for item in writer.items():
        if isinstance(item, str):
            lines.append(item)
            tree.body.extend(ast.parse(item).body)
            continue
        inside = [ast.parse(part).body[0] if isinstance(part, str) else source.statements[part].node for part in item.body]
        texts = [part if isinstance(part, str) else source.statements[part].text for part in item.body]
        if item.stream is None:
            lines.extend(texts)
            tree.body.extend(inside)
        else:
            head = writer.head(item, has_ranges=has_ranges)
            lines.append(f"{head}:")
            lines.extend(line for text in texts for line in textwrap.indent(text, "    ").splitlines())
            around = ast.parse(f"{head}: pass").body[0]
            assert isinstance(around, ast.With)  # noqa: S101 - for the type checker
            around.body = inside
            blocks.add(len(tree.body))
            tree.body.append(around)
    return Code(
        text="\n".join(lines) + "\n",
        tree=ast.fix_missing_locations(tree),
        blocks=frozenset(blocks),
        streams=planned.streams,
        variables=frozenset(writer.variables),
    )


class _Writer:
    def __init__(self, source: Source, planned: Schedule, recording: Recording, session: str) -> None:
        self._statements = source.statements
        self._planned = planned
        self._recording = recording
        self._session = session
        self._taken = {name for statement in source.statements for name in statement.reads | statement.writes}
        self.variables: list[str] = []
        self._events: dict[int, str] = {}
        """Variables of events, by the statement that they are recorded behind; -1 stands for the beginning."""
        self._place = dict[int, str]()  # The stream out of whose memory each piece is
        self._last_touch: dict[tuple[int, str], int] = {}
        self._sure = set(source.inputs)  # Variables that are bound to arrays in any run, if they are in one
        self._born: dict[int, list[int]] = defaultdict(list)
        for piece, number in recording.born.items():
            self._born[number].append(piece)

    def head(self, block: _Block, *, has_ranges: bool) -> str:
        numbers = [part for part in block.body if isinstance(part, int)]
        told = [self._statements[number] for number in numbers if self._planned.stream[number] is not None]
        if not has_ranges:
            return f"with {self._session}.select({block.stream!r})"
        return f"with {self._session}.on({block.stream!r}, {_label(told)!r})"

    def items(self) -> Iterator[str | _Block]:
        blocks = self._blocks()
        if -1 in self._events:
            yield f"{self._events[-1]} = {self._stream(self._planned.streams[0])}.record()"
        yield from blocks
        home = self._planned.streams[0]
        for wait in self._planned.joins:
            yield f"{self._stream(home)}.wait({wait.stream!r})"

    def _stream(self, name: str) -> str:
        return f"{self._session}.stream({name!r})"

    def _blocks(self) -> list[str | _Block]:
        self._find_events()
        self._find_touches()
        made: list[str | _Block] = []
        current: _Block | None = None
        for number, statement in enumerate(self._statements):
            stream = self._planned.stream[number]
            waits = self._waits(number)
            steers = self._recording.works[number].barrier == "selects streams itself"
            if steers:
                made += [f"{self._session}.synchronize()", _Block(None, [number]), f"{self._session}.synchronize()"]
                self._place |= dict.fromkeys(self._born[number], "")  # on streams of its own
                current = None
                continue
            if stream is None and current is None:
                made.append(_Block(None, [number]))
                self._bind(number, statement)
                continue
            if current is None or waits or (stream is not None and stream != current.stream):
                made += waits
                current = _Block(stream)
                made.append(current)
            self._add(current, number, statement)
        return made

    def _add(self, block: _Block, number: int, statement: Statement) -> None:
        """Put a statement into a block, with what keeps the memory of other streams until this one is done with it."""
        assert block.stream is not None  # noqa: S101 - for the type checker
        stream = self._stream(block.stream)
        self._place |= dict.fromkeys(self._born[number], block.stream)
        held, kept, unnamed = self._to_hold(number, block.stream)
        variables = []
        for name in kept:  # the statement gives the name, or the place in a container, to another array
            variables.append(self._variable(f"kept_{statement.line}"))
            block.body.append(f"{variables[-1]} = {self._arrays(name, is_kept=True)}")
        block.body.append(number)
        self._bind(number, statement)
        if number in self._events:
            block.body.append(f"{self._events[number]} = {stream}.record()")
        if held or kept:
            block.body.append(f"{stream}.hold({', '.join([*map(self._arrays, held), *variables])})")
        if variables:
            block.body.append(f"del {', '.join(variables)}")
        for place in unnamed:  # no variable leads to it: who may use its memory next waits
            block.body.append(f"{self._stream(place)}.wait({block.stream!r})")

    def _bind(self, number: int, statement: Statement) -> None:
        """Take note of which variables are bound to arrays in any run."""
        is_sure = not (statement.is_branching or self._recording.works[number].barrier)
        self._sure -= statement.writes
        self._sure |= statement.binds if is_sure else frozenset()

    def _arrays(self, name: str, *, is_kept: bool = False) -> str:
        """Return what gives the arrays that a variable leads to; where it may be bound to none, or not at all, that is none."""
        if name in self._sure and not (is_kept and name in self._recording.containers):
            return name
        return f"{self._session}.memory.arrays_in({name if name in self._sure else f'vars().get({name!r})'})"

    def _waits(self, number: int) -> list[str]:
        stream = self._planned.stream[number]
        made = []
        for wait in self._planned.waits[number]:
            known = self._events.get(wait.behind)
            made.append(f"{self._stream(str(stream))}.wait({known or repr(wait.stream)})")
        return made

    def _find_events(self) -> None:
        """Choose which waits need an event: those for less than all that the other stream holds by then."""
        last: dict[str, int] = {}
        needed = set[int]()
        for number, stream in enumerate(self._planned.stream):
            for wait in self._planned.waits[number]:
                if last.get(wait.stream, -1) != wait.behind:
                    needed.add(wait.behind)
            if stream is not None:
                last[stream] = number
        for number in sorted(needed):
            line = self._statements[number].line if number >= 0 else 0
            self._events[number] = self._variable(f"done_{line}" if number >= 0 else "began")

    def _variable(self, wanted: str) -> str:
        name = free_name(wanted, self._taken)
        self._taken.add(name)
        self.variables.append(name)
        return name

    def _find_touches(self) -> None:
        for number, work in enumerate(self._recording.works):
            stream = self._planned.stream[number]
            if stream is not None:
                for access in work.accesses:
                    self._last_touch[access.piece, stream] = number

    def _to_hold(self, number: int, stream: str) -> tuple[list[str], list[str], list[str]]:
        """Return variables to hold behind a statement, and those that have to be kept before it rebinds them.

        And the streams that have to wait for it, since no variable leads to memory of theirs that it uses.
        """
        held, kept, unnamed = set[str](), set[str](), set[str]()
        home = self._planned.streams[0]
        for piece in {access.piece for access in self._recording.works[number].accesses}:
            place = self._place.get(piece)  # None for an input: a run before may have made it on any of the streams
            if place == stream or self._last_touch.get((piece, stream)) != number or len(self._planned.streams) == 1:
                continue
            if place in (home, None) and piece in self._recording.survivors:
                continue  # by the time that it can be given up, the first stream has waited for all others
            name = self._recording.names[number].get(piece)
            before = self._recording.reached[number].get(piece)
            if name is not None:
                held.add(name)
            elif before is not None:
                kept.add(before)
            elif place != "":
                unnamed |= {place} if place else {*self._planned.streams} - {stream}
        return sorted(held), sorted(kept), sorted(unnamed)


def _label(statements: Sequence[Statement]) -> str:
    """Return what a block is called on the timeline."""
    if not statements:
        return "host"
    labels = list(dict.fromkeys(statement.label for statement in statements))
    if len(labels) == 1:
        return labels[0][:LABEL_LENGTH]
    return f"lines {statements[0].line} to {statements[-1].line}"


def probed(code: Code, source: Source, name: str) -> Code:
    """Return code that calls a function of this name behind each statement, with the statement's number."""
    numbers = {id(one.node): number for number, one in enumerate(source.statements)}

    def with_calls(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made = []
        for one in body:
            made.append(one)
            if id(one) in numbers:
                made.append(ast.copy_location(ast.parse(f"{name}({numbers[id(one)]})").body[0], one))
        return made

    body = [
        ast.copy_location(ast.With(one.items, with_calls(one.body)), one)
        if isinstance(one, ast.With) and place in code.blocks
        else one
        for place, one in enumerate(code.tree.body)
    ]
    return replace(code, compiled={}, tree=ast.fix_missing_locations(ast.Module(with_calls(body), [])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A program: statements, and the variables that they look up."""

    lab: Session  # Where it runs
    source: Source  # The statements
    look_up: Callable[[], dict[str, Any]]
    """Returns the variables as they are now: the user's own namespace, or a copy of what the caller sees."""
    is_own: bool  # Whether that is the namespace that the user gave, which running changes in place
    session_name: str  # The variable through which its code calls the session

    @property
    def backend(self) -> Backend:
        return self.lab._backend

    @property
    def values(self) -> dict[str, Any]:
        """The variables as they are now."""
        return self.look_up()

    def execute(self, code: Code, values: dict[str, Any], given: Mapping[str, object] = MappingProxyType({})) -> dict[str, Any]:
        """Run code of it on variables, which it changes; those that only the plan needs, and that are given, are put back."""
        __tracebackhide__ = True
        compiled = code.compile(self.source.filename, self.source.flags)
        with self.running(values, {**dict.fromkeys(code.variables), **given}):
            try:
                exec(compiled, values)  # noqa: S102 - the user's program
            except BaseException:
                self._join(code.streams)
                raise
        return values

    @contextmanager
    def running(self, values: dict[str, Any], given: Mapping[str, object]) -> Iterator[None]:
        """Let variables be such as a program's code needs: the session, and what is given; at the end they are put back."""
        had = {name: values[name] for name in (*given, self.session_name, "__builtins__") if name in values}
        needed = {name: value for name, value in given.items() if value is not None}
        for name, value in (needed | {self.session_name: self.lab}).items():
            values[name] = value  # noqa: PERF403 - a function's variables take note of it
        try:
            yield
        finally:
            for name in (*given, self.session_name, "__builtins__"):
                if name in had:
                    values[name] = had[name]
                elif name in values:
                    del values[name]

    def _join(self, streams: Sequence[str]) -> None:
        """Let the first stream wait for the others, as the program would have at its end: what they read may go now."""
        with suppress(GPUStreamLabError):
            for name in streams[1:]:
                self.lab.stream(streams[0]).wait(name)


@contextmanager
def watching(lab: Session) -> Iterator[AccessWatch]:
    """Follow accesses in a ``with`` block: by the session's own watch, or one for the time being."""
    if lab._accesses.is_watching:
        yield lab._accesses
        return
    made = AccessWatch(lab._backend, lab._recorder, HazardMode.REPORT, table=lab._table, defer=lab._keeper.defer)
    lab._keeper.add_watch(made)
    try:
        yield made
    finally:
        made.close()
