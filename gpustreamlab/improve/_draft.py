"""A program as it was given, or changed: its syntax, the text that is shown of it, and which part of it is measured."""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from gpustreamlab.errors import ProgramError
from gpustreamlab.programs import FUTURES, free_name
from gpustreamlab.programs._source import copied_syntax, names_of

BODIES = ("body", "orelse", "finalbody")
"""Lists of statements that a statement has."""


class Draft:
    """A program's syntax. `body` is what is measured; `prepare` what a function does before it gives back what is measured."""

    def __init__(self, text: str, tree: ast.Module, function: FunctionType | None, inner: str | None) -> None:
        self._lines = text.splitlines()
        self.tree = tree
        self.function = function
        self.inner = inner

    def copy(self) -> Draft:
        """Return the same, to change."""
        return Draft("\n".join(self._lines), copied_syntax(self.tree), self.function, self.inner)

    @property
    def definition(self) -> ast.FunctionDef | None:
        """The function; None for text."""
        first = self.tree.body[0]
        return first if self.function is not None and isinstance(first, ast.FunctionDef) else None

    @property
    def prepare(self) -> list[ast.stmt] | None:
        """What runs before; None where all is measured."""
        return self.definition.body if self.definition is not None and self.inner is not None else None

    @property
    def body(self) -> list[ast.stmt]:
        """What is measured."""
        if self.definition is None:
            return self.tree.body
        inner = _definition_of(self.definition.body, self.inner)
        return self.definition.body if inner is None else inner.body

    @property
    def names(self) -> frozenset[str]:
        """All names that stand in it."""
        return frozenset().union(*(reads | writes for reads, writes in map(names_of, self.tree.body)))

    @property
    def stored(self) -> frozenset[str]:
        """All attributes that it sets."""
        parts = (one for one in ast.walk(self.tree) if isinstance(one, ast.Attribute))
        return frozenset(one.attr for one in parts if isinstance(one.ctx, ast.Store))

    def new_name(self, wanted: str) -> str:
        """Return a name that nothing in it has."""
        taken = {one.arg for one in ast.walk(self.tree) if isinstance(one, ast.arg)} | self.names
        return free_name(wanted, taken | {one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name)})

    def statements(self) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        """Yield each statement of what is measured, with the list that it stands in, from the outside in."""
        yield from walk_statements(self.body)

    @property
    def text(self) -> str:
        """Its source: lines as they were given where nothing changed."""
        ast.fix_missing_locations(self.tree)
        return "\n".join(self._texts(self.tree.body, 0)) + "\n"

    def _texts(self, body: list[ast.stmt], depth: int) -> Iterator[str]:
        for one in body:
            yield from self._text(one, depth)

    def _text(self, one: ast.stmt, depth: int) -> Iterator[str]:
        known = getattr(one, "given", None)  # as the source has it: where, and what
        if known is not None and known[3] == ast.dump(one):
            is_moved = one.col_offset != 4 * depth
            if not (is_moved and _has_long_text(one)):
                lines = self._lines[known[0] : known[1]]
                yield from _indented(lines, depth) if is_moved else lines
                return
        ours = getattr(one, "ours", None)
        if ours is not None and ours[1] == ast.dump(one):
            yield from _indented(ours[0].splitlines(), depth)
            return
        if not any(getattr(one, name, None) for name in BODIES) or isinstance(one, (ast.Try, ast.Match, ast.ClassDef)):
            yield from _indented(self.quoted(_unparsed(one)).splitlines(), depth)
            return
        if known is not None and known[4] == _head(one) and known[2] > known[0]:
            yield from _indented(self._lines[known[0] : known[2]], depth)
        else:
            yield from _indented(self.quoted(_head(one)).splitlines(), depth)
        yield from self._texts(one.body, depth + 1)  # type: ignore[attr-defined]
        others: list[ast.stmt] = getattr(one, "orelse", None) or []
        if len(others) == 1 and getattr(others[0], "is_elif", False):
            first, *rest = self._text(others[0], depth)
            yield from (f"{'    ' * depth}el{first.lstrip()}", *rest)
        elif others:
            yield from _indented(["else:"], depth)
            yield from self._texts(others, depth + 1)

    def quoted(self, text: str) -> str:
        """Return text of Python's own with the quotes of the source, where that is simple."""
        is_double = any('"' in line for line in self._lines) and '"' not in text
        return re.sub(r"'([^'\\\n]*)'", r'"\1"', text) if is_double else text

    def diff(self, other: Draft) -> str:
        """Return what another one has that this has not, as a unified diff."""
        before, after = self.text.splitlines(), other.text.splitlines()
        return "\n".join(difflib.unified_diff(before, after, "as it was", "improved", lineterm="", n=3))

    def compiled(self, body: list[ast.stmt], filename: str) -> Any:
        """Compile statements under the flags of the source."""
        flags = 0 if self.function is None else self.function.__code__.co_flags & FUTURES
        module = ast.fix_missing_locations(ast.Module(body, []))
        return compile(module, filename, "exec", flags, dont_inherit=True)


def walk_statements(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Yield statements with the lists that they stand in; those of functions in them are left out."""
    for one in [*body]:
        yield body, one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in BODIES:
                yield from walk_statements(getattr(one, name, None) or [])


_REFUSED = (ast.Global, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


def _require_plain(tree: ast.AST) -> None:
    """Raise `ProgramError` for what cannot run again on copies."""
    for one in ast.walk(tree):
        if isinstance(one, _REFUSED):
            what, fix = "waits for others to go on", "Leave that out, or pass what it needs as an argument: lab.improve(f, x)."
            if isinstance(one, ast.Global):
                what = f"declares {one.names[0]!r} global"
            elif isinstance(one, (ast.Yield, ast.YieldFrom)):
                what, fix = "yields, and goes on where it stopped", "Define the generator outside of it, or loop over a list."
            raise ProgramError(f"Line {one.lineno} {what}, so the program cannot run many times on copies. {fix}")


def read_draft(program: str | Callable[..., Any]) -> Draft:
    """Read a cell's text, or a function; of one that gives back a function without arguments, that is what is measured."""
    if isinstance(program, str):
        text = textwrap.dedent(program).strip("\n")
        tree = ast.parse(text)
        _require_plain(tree)
        if not tree.body:
            raise ProgramError("The program has no statements. Write what it is to run, a statement a line.")
        return _marked(Draft(text, tree, None, None))
    if not isinstance(program, FunctionType):
        raise ProgramError(f"lab.improve takes a function or its source, not {program!r:.80}. Pass one written with def.")
    try:
        text = textwrap.dedent(inspect.getsource(program))
    except (OSError, TypeError) as error:
        raise ProgramError(
            f"The source of {program.__qualname__} cannot be found ({error}). Pass the statements as text: lab.improve(text)."
        ) from None
    tree = ast.parse(text)
    _require_plain(tree)
    first = tree.body[0]
    if not isinstance(first, ast.FunctionDef):
        raise ProgramError(f"{program.__qualname__} is no function written with def. Write it as one, or pass its text.")
    last = first.body[-1]
    given = last.value.id if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) else ""
    inner = _definition_of(first.body, given)
    has_none = inner is not None and not any((inner.args.args, inner.args.vararg, inner.args.kwonlyargs, inner.args.kwarg))
    return _marked(Draft(text, tree, program, given if has_none else None))


def forwarded(program: Callable[..., Any], values: Mapping[str, Any]) -> tuple[FunctionType, list[Any]] | None:
    """Return the function, and its arguments, that a function of one line hands on to; None where it does more."""
    draft = read_draft(program)
    body = [one for one in draft.definition.body if not _is_text(one)] if draft.definition is not None else []
    match body:
        case [ast.Return(value=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]))]:
            target = values.get(name)
            if isinstance(target, FunctionType) and all(isinstance(one, (ast.Name, ast.Constant)) for one in arguments):
                return target, [values[one.id] if isinstance(one, ast.Name) else one.value for one in arguments]  # type: ignore[attr-defined]
    return None


def parsed(text: str) -> list[ast.stmt]:
    """Return statements of our own, which are shown as they are written here."""
    found = ast.parse(text).body
    for one in found:
        one.ours = ast.get_source_segment(text, one), ast.dump(one)  # type: ignore[attr-defined]
    return found


def _definition_of(body: list[ast.stmt], name: str | None) -> ast.FunctionDef | None:
    return next((one for one in body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def _unparsed(one: ast.stmt) -> str:
    """Return a statement as Python writes it, a tuple that is bound without brackets."""
    text = ast.unparse(one)
    if isinstance(one, ast.Assign) and isinstance(one.value, ast.Tuple) and len(one.value.elts) > 1:
        value = ast.unparse(one.value)
        return text.removesuffix(value) + value[1:-1]
    return text


def _is_text(one: ast.stmt) -> bool:
    return isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)


def _has_long_text(one: ast.stmt) -> bool:
    """Tell whether a text of several lines stands in a statement, which would change with its indentation."""
    texts = (part for part in ast.walk(one) if isinstance(part, (ast.Constant, ast.JoinedStr)))
    return any(part.end_lineno != part.lineno for part in texts)


def _indented(lines: list[str], depth: int) -> Iterator[str]:
    yield from textwrap.indent(textwrap.dedent("\n".join(lines)), "    " * depth).splitlines()


def _head(one: Any) -> str:
    """Return the first line of a statement that has others in it, as Python writes it."""
    if not hasattr(one, "body"):
        return ""
    bare = copy.copy(one)
    bare.body, bare.orelse = [ast.Pass()], []
    return ast.unparse(ast.fix_missing_locations(bare)).rpartition("\n")[0]


def _marked(draft: Draft) -> Draft:
    """Note of each statement which lines it has, from the comments above it on, and what it was."""
    lines = draft._lines
    for body in _all_bodies(draft.tree):
        before = 0
        for one in body:
            first, last = one.lineno - 1, one.end_lineno or one.lineno
            if isinstance(one, ast.FunctionDef) and one.decorator_list:
                first = min(part.lineno for part in one.decorator_list) - 1
            while first > before and (not lines[first - 1].strip() or lines[first - 1].lstrip().startswith("#")):
                first -= 1
            is_alone = not lines[one.lineno - 1][: one.col_offset].strip() and all(
                other is one or (other.end_lineno or 0) < one.lineno or other.lineno > last for other in body
            )
            one.is_elif = lines[one.lineno - 1][one.col_offset :].startswith("elif")  # type: ignore[attr-defined]
            if is_alone and not one.is_elif:  # type: ignore[attr-defined]
                one.lines = first, last, _head_end(one, first, last, lines)  # type: ignore[attr-defined]
            before = last
    for body in [*_all_bodies(draft.tree)]:
        body[:] = map(_as_statement, body)
    for body in _all_bodies(draft.tree):
        for one in body:
            if hasattr(one, "lines"):
                one.given = *one.lines, ast.dump(one), _head(one)  # type: ignore[attr-defined]
    return draft


def _head_end(one: ast.stmt, first: int, last: int, lines: list[str]) -> int:
    """Return behind which line a statement has others in it."""
    inner = getattr(one, "body", None)
    if not inner or isinstance(one, ast.Match):
        return last
    end: int = inner[0].lineno - 1
    while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _as_statement(one: ast.stmt) -> ast.stmt:
    """Return a choice of one of two calls as the statement that it is, so that each has a place of its own."""
    match one:
        case ast.Expr(value=ast.IfExp(test=test, body=body, orelse=other)):
            made = ast.If(test, [ast.copy_location(ast.Expr(part), part) for part in (body,)], [ast.Expr(other)])
            ast.fix_missing_locations(ast.copy_location(made, one))
            if hasattr(one, "lines"):
                made.lines = (*one.lines[:2], one.lines[0])  # type: ignore[attr-defined]
            return made
    return one


def _all_bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield body
