"""Statements of a program: read from a cell or a function, with what each asks for and what it cannot be."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import io
import itertools
import operator
import symtable
import textwrap
import tokenize
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from gpustreamlab.errors import ProgramError

RESULT = "result"  # The variable that holds what a function returns, or what the last expression of a cell gives
LABEL_LENGTH = 60  # How much of a statement its range is called by
_ANNOTATION = "#:"
FUTURES = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""Flags of code whose source has ``from __future__ import ...``; without `dont_inherit`, what is compiled here has ours."""
_SHARED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
"""Kinds of nodes that the interpreter makes once, for all code."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a program."""

    line: int  # Its first line, from 1, in the source as it was given
    text: str  # Its source, as Python writes it
    node: ast.stmt  # The same as a tree, with the lines of the source
    stream: str | None  # The stream that it was given by ``with lab.on(...)`` or ``#: name``; None if it is to be found
    label: str  # What its work is called on the timeline
    reads: frozenset[str]  # Names that it looks up
    writes: frozenset[str]  # Names that it binds or deletes
    needs: frozenset[str]  # Names that it may look up before it binds them
    binds: frozenset[str]  # Names that it binds whatever its conditions are
    is_branching: bool  # Whether any condition decides what it does

    @functools.cached_property
    def chooses(self) -> bool:
        """Whether an item of something that has no name, or that is no array, may be chosen by a value."""
        parts = [part for part in ast.walk(self.node) if isinstance(part, (ast.Subscript, ast.Lambda))]
        return any(isinstance(part, ast.Lambda) or not _is_constant(part.slice) for part in parts)

    @property
    def is_loop(self) -> bool:
        """Whether it has a loop, or a comprehension, whose turns are not statements of the plan."""
        loops = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        return any(isinstance(node, loops) for node in ast.walk(self.node))


@dataclass(frozen=True, kw_only=True)
class Source:
    """A program as it was given."""

    statements: tuple[Statement, ...]  # In their order
    filename: str  # What tracebacks call it
    function: FunctionType | None  # The function; None for text
    session_name: str | None  # The variable through which the program calls the session; None if it does not
    result: str | None  # The variable that gets what the last expression gives; None if there is none
    flags: int = 0  # The flags that it is compiled with: those of its ``from __future__ import ...``

    @functools.cached_property
    def inputs(self) -> frozenset[str]:
        """The names that it may look up before it binds them."""
        found, bound = set[str](), set[str]()
        for statement in self.statements:
            found |= statement.needs - bound
            bound |= statement.binds
        return frozenset(found)

    @functools.cached_property
    def looked_up(self) -> frozenset[str]:
        """The names that it looks up: variables and attributes."""
        code = compile(
            ast.Module([one.node for one in self.statements], []), self.filename, "exec", self.flags, dont_inherit=True
        )
        return names_of_code(code)


def read_source(
    program: str | Callable[..., Any],
    is_session: Callable[[str], bool],
    *,
    filename: str = "<program>",
    result: str = RESULT,
    flags: int = 0,
) -> Source:
    """Read a cell's text, or a function."""
    if isinstance(program, str):
        return _read_text(program, is_session, filename, result, flags)
    if not isinstance(program, FunctionType):
        raise ProgramError(
            f"lab.program takes a function or its source, not {program!r:.80}. Pass a function written with def."
        )
    if hasattr(program, "__wrapped__"):
        raise ProgramError(
            f"{program.__qualname__} is decorated, and a program has none of what its decorators do. Pass the function that it "
            "wraps, lab.program(f.__wrapped__), and write what they do into it."
        )
    return _read_function(program, is_session)


def _read_text(text: str, is_session: Callable[[str], bool], filename: str, result: str, flags: int) -> Source:
    tree = ast.parse(text, filename)
    futures = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    for name in (alias.name for one in futures for alias in one.names):
        flags |= getattr(getattr(__future__, name), "compiler_flag", 0)
    tree.body = [one for one in tree.body if one not in futures]
    last = tree.body[-1] if tree.body else None
    has_result = isinstance(last, ast.Expr) and not (len(tree.body) == 1 and _is_docstring(last))
    if isinstance(last, ast.Expr) and has_result:
        tree.body[-1] = _bind_result(last, result)
    reader = _Reader(text, filename, is_session, 0)
    return Source(
        statements=tuple(reader.read(tree.body)),
        filename=filename,
        function=None,
        session_name=reader.session_name,
        result=result if has_result else None,
        flags=flags,
    )


def _read_function(function: FunctionType, is_session: Callable[[str], bool]) -> Source:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise ProgramError(
            f"The source of {function.__qualname__} cannot be found ({error}). Pass the statements as text: lab.program(text)."
        ) from None
    text = textwrap.dedent("".join(lines))
    tree = ast.parse(text).body[0]
    if not isinstance(tree, ast.FunctionDef):
        kind = "a coroutine function" if isinstance(tree, ast.AsyncFunctionDef) else "no function written with def"
        raise ProgramError(f"{function.__qualname__} is {kind}; a program runs from its first statement to its last.")
    body = tree.body
    has_result = isinstance(body[-1], ast.Return) and body[-1].value is not None
    if isinstance(body[-1], ast.Return) and has_result:
        body[-1] = _bind_result(body[-1], RESULT)
    ast.increment_lineno(tree, first - 1)
    _refuse_scopes(tree, function)
    body = [_without_annotation(one) for one in body]
    reader = _Reader(text, function.__code__.co_filename, is_session, first - 1)
    if function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise ProgramError(f"{function.__qualname__} takes * or ** arguments; name each parameter of a program.")
    return Source(
        statements=tuple(reader.read(body)),
        filename=function.__code__.co_filename,
        function=function,
        session_name=reader.session_name,
        result=RESULT if has_result else None,
        flags=function.__code__.co_flags & FUTURES,
    )


def inner_codes(code: CodeType) -> list[CodeType]:
    """Return the code of the functions, classes and comprehensions that stand in code, not of those in these."""
    return [part for part in code.co_consts if isinstance(part, CodeType)]


@functools.cache
def names_of_code(code: CodeType) -> frozenset[str]:
    """Return the names that code, and the functions in it, look up: variables and attributes."""
    return frozenset(code.co_names).union(*map(names_of_code, inner_codes(code)))


def _is_constant(index: ast.expr) -> bool:
    return not any(isinstance(part, (ast.Name, ast.Call, ast.Attribute)) for part in ast.walk(index))


@functools.cache
def what_decides(code: CodeType) -> tuple[bool, bool]:
    """Tell whether code, or a function in it, has conditions or loops, and whether it takes items by an index."""
    names = [one.opname for one in dis.get_instructions(code)]
    # The end of a `with` block asks whether to raise: no condition of the user's.
    jumps = (now for before, now in itertools.pairwise(["", *names]) if before != "WITH_EXCEPT_START")
    decides = any(("JUMP" in name and "_IF_" in name) or name in ("CHECK_EXC_MATCH", "FOR_ITER") for name in jumps)
    found = [(decides, any("SUBSCR" in name for name in names))]
    found += map(what_decides, inner_codes(code))
    return any(one for one, _ in found), any(one for _, one in found)


def _refuse_scopes(tree: ast.FunctionDef, function: FunctionType) -> None:
    """Raise `ProgramError` for functions in a function that bind its variables, or its module's: a program has its own."""
    for one in ast.walk(tree):
        if not isinstance(one, (ast.Global, ast.Nonlocal)):
            continue
        names = one.names
        if isinstance(one, ast.Global) or any(name in function.__code__.co_cellvars for name in names):
            raise ProgramError(
                f"Line {one.lineno} of {function.__code__.co_filename} declares {names[0]!r} {type(one).__name__.lower()} in a "
                "function in the program, whose variables are the program's own. Define that function outside of it."
            )


def _without_annotation(node: ast.stmt) -> ast.stmt:
    """Return a statement of a function as it is run: annotations of its variables are not evaluated."""
    if not isinstance(node, ast.AnnAssign):
        return node
    made = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
    return ast.fix_missing_locations(ast.copy_location(made, node))


def free_name(wanted: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the one that is wanted, else that with a number.

    Examples
    --------
    >>> free_name("result", {"result", "result_2"})
    'result_3'
    """
    numbered = (f"{wanted}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain((wanted,), numbered) if name not in taken)


def short_text(text: str, length: int = 48) -> str:
    r"""Return a statement in one line.

    Examples
    --------
    >>> short_text("with torch.no_grad():\n    y = model(x)")
    'with torch.no_grad(): y = model(x)'
    """
    line = " ".join(part.strip() for part in text.splitlines())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _bind_result(last: ast.Expr | ast.Return, name: str) -> ast.stmt:
    assert last.value is not None  # noqa: S101 - for the type checker
    bound = ast.Assign(targets=[ast.Name(name, ast.Store())], value=last.value)
    return ast.fix_missing_locations(ast.copy_location(bound, last))


class _Reader:
    """Takes the statements of one source."""

    def __init__(self, text: str, filename: str, is_session: Callable[[str], bool], lines_above: int) -> None:
        self._lines = text.splitlines()
        self._above = lines_above
        self._filename = filename
        self._is_session = is_session
        self._annotations = dict(_annotations(text))
        self.session_name: str | None = None

    def read(self, body: Sequence[ast.stmt]) -> Iterator[Statement]:
        for node in body:
            _refuse(node, self._filename)
            if _is_docstring(node):
                continue
            yield from self._read(node, None, "")

    def _read(self, node: ast.stmt, stream: str | None, label: str) -> Iterator[Statement]:
        given = self._given_stream(node)
        if given is not None and isinstance(node, ast.With):
            for inner in node.body:  # the innermost selection counts, as where it runs
                yield from self._read(inner, *given)
            return
        text = ast.unparse(node)
        reads, writes = names_of(node)
        needs, binds = first_uses(node, (reads, writes))
        yield Statement(
            line=node.lineno,
            text=text,
            node=node,
            stream=self._annotation(node) or stream,  # what stands beside it counts over the block around it
            label=label or short_text(text, LABEL_LENGTH),
            reads=reads,
            writes=writes,
            needs=needs,
            binds=binds,
            is_branching=_is_branching(node),
        )

    def _given_stream(self, node: ast.stmt) -> tuple[str, str] | None:
        """Return the stream and label of ``with lab.on("copy", "label"):``, which all that stands in it gets."""
        if not isinstance(node, ast.With) or len(node.items) != 1 or node.items[0].optional_vars is not None:
            return None
        match node.items[0].context_expr:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="on" | "select"),
                args=[ast.Constant(value=str(stream)), *more],
                keywords=[],
            ) if self._is_session(name):
                self.session_name = name
                label = more[0].value if more and isinstance(more[0], ast.Constant) and isinstance(more[0].value, str) else ""
                return stream, label
        return None

    def _annotation(self, node: ast.stmt) -> str | None:
        """Return the stream of a comment ``#: stream`` beside a statement, or in the comments right above it."""
        above = node.lineno - self._above - 1
        while above >= 1 and self._lines[above - 1].lstrip().startswith("#"):
            above -= 1
        lines = range((node.end_lineno or node.lineno) - self._above, above, -1)
        return next((self._annotations[line] for line in lines if line in self._annotations), None)


def _annotations(text: str) -> Iterator[tuple[int, str]]:
    """Find comments ``#: stream``, by their lines."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.string.startswith(_ANNOTATION):
                yield token.start[0], token.string[len(_ANNOTATION) :].strip()
    except (tokenize.TokenError, IndentationError):
        return  # ast.parse says what is wrong


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


_REFUSED: Mapping[type[ast.AST], str] = {
    ast.Await: "awaits; a program runs from its first statement to its last. Await in a cell of its own",
    ast.AsyncFor: "awaits; a program runs from its first statement to its last. Await in a cell of its own",
    ast.AsyncWith: "awaits; a program runs from its first statement to its last. Await in a cell of its own",
    ast.Yield: "yields; a program is no generator. Collect what it makes in a list",
    ast.YieldFrom: "yields; a program is no generator. Collect what it makes in a list",
    ast.Return: "returns before the end; a program's statements all run. Put the condition into a function that it calls",
    ast.Global: "declares a global name; a program's names are its own. Return what it makes",
    ast.Nonlocal: "declares a nonlocal name; a program's names are its own. Return what it makes",
}


def _refuse(node: ast.AST, filename: str) -> None:
    """Raise `ProgramError` for what a program cannot have; functions that it defines may have it."""
    for kind, why in _REFUSED.items():
        if isinstance(node, kind):
            raise ProgramError(f"Line {getattr(node, 'lineno', 0)} of {filename} {why}.")
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        raise ProgramError(
            f"Line {node.lineno} of {filename} imports *, so the names that it binds are not known. Import what it needs: from "
            f"{node.module} import name."
        )
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(node):
        _refuse(child, filename)


def copied_syntax(part: Any) -> Any:
    """Return a copy of syntax. Not by `copy.deepcopy`: nodes such as ``Load()`` are one for all code.

    Where tracebacks were shown, a library has put onto them what leads to all of another file.
    """
    if isinstance(part, list):
        return [copied_syntax(one) for one in part]
    if not isinstance(part, ast.AST) or isinstance(part, _SHARED):
        return part
    kind = type(part)
    made = kind.__new__(kind)  # which does not ask for its fields
    vars(made).update(vars(part))  # what a draft notes of a statement, too
    for name, value in ast.iter_fields(part):
        setattr(made, name, copied_syntax(value))
    return made


def names_of(node: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a statement looks up and binds, those in functions and comprehensions within it too."""
    table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
    reads, writes = set[str](), set[str]()
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            writes.add(symbol.get_name())
        if symbol.is_referenced():
            reads.add(symbol.get_name())
    _add_inner(table, reads, writes)
    deleted = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Del)}
    augmented = {one.target.id for one in ast.walk(node) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)}
    return frozenset(reads | augmented), frozenset(writes | deleted)


_Uses = tuple[frozenset[str], frozenset[str]]


def first_uses(node: ast.stmt, used: _Uses | None = None) -> _Uses:
    """Return the names that a statement may look up before it binds them, and those that it binds in any case."""
    match node:
        case ast.If(test=test, body=body, orelse=other):
            (first, bound), (second, also_bound) = _uses_in(body), _uses_in(other)
            return _looked_up(test) | first | second, bound & also_bound
        case ast.While(test=test, body=body, orelse=other):
            return _looked_up(test) | _uses_in(body)[0] | _uses_in(other)[0], frozenset()
        case ast.For(target=target, iter=iterated, body=body, orelse=other):
            bound = frozenset(
                one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            )
            return _looked_up(iterated) | _looked_up(target) | (_uses_in(body)[0] - bound) | _uses_in(other)[0], frozenset()
    reads, writes = used or names_of(node)
    plain = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    is_certain = isinstance(node, plain) and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
    return reads, writes if is_certain else frozenset()


def _uses_in(body: Sequence[ast.stmt]) -> _Uses:
    needs, binds = frozenset[str](), frozenset[str]()
    for node in body:
        first, bound = first_uses(node)
        needs, binds = needs | (first - binds), binds | bound
    return needs, binds


def _looked_up(part: ast.expr) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def _add_inner(table: symtable.SymbolTable, reads: set[str], writes: set[str]) -> None:
    for child in table.get_children():
        for symbol in child.get_symbols():
            if symbol.is_global():
                reads.add(symbol.get_name())
                if symbol.is_assigned():
                    writes.add(symbol.get_name())
        _add_inner(child, reads, writes)


_BRANCHES = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.Match, ast.BoolOp, ast.For, ast.Try, ast.Break, ast.Continue)


def _is_branching(node: ast.stmt) -> bool:
    """Tell whether a statement has any condition."""
    parts = list(ast.walk(node))
    return any(isinstance(part, _BRANCHES) or (isinstance(part, ast.comprehension) and part.ifs) for part in parts)
