"""What a cell's text tells: the names that it looks up before it binds them, and those whose arrays it can only read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpustreamlab.notebook.parsers import PARSERS
from gpustreamlab.programs._calls import RUNS_TEXT
from gpustreamlab.programs._source import names_of

STEERS = frozenset({"on", "select", "run_on", "stream", "streams", "partition"})
"""Attributes of a session through which work goes to streams that the cell chooses."""
_LOOKS = frozenset({"globals", "locals", "vars"})
_AROUND = frozenset({"time", "capture", "gpustream", "gpuprogram"})
"""Magics that run their body as it stands."""
_QUIET = frozenset({"matplotlib", "config", "load_ext", "who", "whos", "pip", "cd", "pwd", "env", "precision", "autoreload"})
"""Magics of IPython that put no work on the device."""
_FIGURES = frozenset({"shape", "dtype", "size", "ndim", "nbytes", "itemsize", "strides"})
_READ_METHODS = frozenset(
    ["sum", "mean", "std", "var", "prod", "max", "min", "argmax", "argmin", "copy", "get", "item", "tolist"]
)
_READ_BUILTINS = frozenset({"print", "float", "int", "bool", "len", "str", "repr", "type", "isinstance", "id", "display"})
_ONE = "exp log log2 log10 sqrt square abs absolute negative sin cos tan tanh sum mean std var prod max min argmax argmin"
_TWO = "add subtract multiply divide true_divide power maximum minimum matmul dot equal not_equal less greater inner outer"
_READ_FUNCTIONS = {**dict.fromkeys(f"{_ONE} zeros_like ones_like empty_like".split(), 1), **dict.fromkeys(_TWO.split(), 2)}
"""Functions of array modules that give new arrays, and how many of their first arguments they only read."""


@dataclass(slots=True, kw_only=True)
class CellText:
    """What can be read from a cell before it runs."""

    reads: set[str] = field(default_factory=set)
    """Names that it looks up before it has bound them."""
    writes: set[str] = field(default_factory=set)
    """Names that it binds or deletes, or into whose elements it stores."""
    changes: set[str] = field(default_factory=set)
    """Names whose arrays it may change in place, or give another name."""
    modules: set[str] = field(default_factory=set)
    """Names that have to be array modules, or the rest does not hold."""
    attributes: set[str] = field(default_factory=set)
    """Attributes that it looks up, on whatever."""
    streams: set[str] = field(default_factory=set)
    """Streams that it names in ``lab.on("copy")`` and the like."""
    steers: bool = False
    """Whether it chooses streams in any other way."""
    own_stream: bool = False
    """Whether a magic selects the cell's stream."""
    is_idle: bool = False
    """Whether it is nothing but magics that put no work on the device."""
    unknown: str = ""
    """What it does of which nothing can be known; empty for nothing."""


def read_cell(source: str) -> CellText:
    r"""Read a cell as IPython runs it, its magics turned into calls.

    Raises
    ------
    SyntaxError
        If it is no Python.

    Examples
    --------
    >>> text = read_cell("y = x @ x; z = f(y, w); u[0] = 1")
    >>> sorted(text.reads), sorted(text.writes), sorted(text.changes)
    (['f', 'u', 'w', 'x'], ['u', 'y', 'z'], ['f', 'u', 'w', 'y'])
    """
    text = CellText()
    tree = ast.parse(source)
    bodies = [tree, *_inner_cells(tree, text)]
    bound: set[str] = set()
    for body in bodies:
        _Reader(text).read(body.body, bound)
        _find_changes(body, text)
        _find_steering(body, text)
    text.is_idle = not text.unknown and len(bodies) == 1 and all(map(_is_magic, tree.body))
    return text


def _inner_cells(tree: ast.Module, text: CellText) -> Iterator[ast.Module]:
    """Return what magics run, and note those of which nothing is known."""
    for node in ast.walk(tree):
        method, name, rest = magic_call(node)
        if not method:
            continue
        given = [one.value for one in rest if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if method == "run_cell_magic" and name in _AROUND and len(given) == 2:
            text.own_stream |= name in ("gpustream", "gpuprogram")
            inner = ast.parse(_transformed(given[1]))
        elif method == "run_line_magic" and name == "time" and given:
            inner = ast.parse(_transformed(given[0]))
        else:
            if method not in ("system", "getoutput") and name not in PARSERS and name not in _QUIET:
                text.unknown = f"runs %{name}"
            continue
        yield inner
        yield from _inner_cells(inner, text)


def _transformed(text: str) -> str:
    from IPython import get_ipython

    shell = get_ipython()
    return text if shell is None else str(shell.transform_cell(text))


def magic_call(node: ast.AST) -> tuple[str, str, list[ast.expr]]:
    """Return the method of IPython, the name, and the other arguments of a call that runs a magic; an empty method for none."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method), args=[first, *rest]):
            name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            return method, name, rest
    return "", "", []


def _is_magic(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and magic_call(node.value)[0] != ""


class _Reader:
    """Follows statements in their order, so that names which a cell has bound itself do not count as looked up."""

    def __init__(self, text: CellText) -> None:
        self._text = text
        self._defined: dict[str, frozenset[str]] = {}
        """What functions of the cell look up when they are called."""

    def read(self, body: Iterable[ast.stmt], bound: set[str]) -> None:
        """Read statements; `bound` gets the names that are bound behind them for sure."""
        for node in body:
            self._read(node, bound)

    def _read(self, node: ast.stmt, bound: set[str]) -> None:
        match node:
            case ast.For() | ast.AsyncFor():
                self._use(ast.Expr(node.iter), bound)
                self.read(node.body, bound | self._bind(ast.Assign([node.target], ast.Constant(0))))
                self.read(node.orelse, set(bound))
            case ast.If() | ast.While():
                self._use(ast.Expr(node.test), bound)
                branches = [set(bound), set(bound)]
                self.read(node.body, branches[0])
                self.read(node.orelse, branches[1])
                bound |= branches[0] & branches[1] if isinstance(node, ast.If) else bound
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._use(ast.Expr(item.context_expr), bound)
                    if item.optional_vars is not None:
                        bound |= self._bind(ast.Assign([item.optional_vars], ast.Constant(0)))
                self.read(node.body, bound)
            case ast.Try() | ast.TryStar():
                self.read(node.body, set(bound))
                for handler in node.handlers:
                    caught = {handler.name} if handler.name else set()
                    self._use(ast.Expr(handler.type or ast.Constant(0)), bound)
                    self.read(handler.body, bound | caught)
                self.read(node.orelse, set(bound))
                self.read(node.finalbody, bound)
            case _:
                bound |= self._use(node, bound)

    def _bind(self, node: ast.stmt) -> set[str]:
        _, writes = names_of(ast.fix_missing_locations(node))
        self._text.writes |= writes
        return set(writes)

    def _use(self, node: ast.stmt, bound: set[str]) -> set[str]:
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            self._text.unknown = f"imports * from {node.module}"
            return set()
        reads, writes = names_of(ast.fix_missing_locations(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._defined[node.name] = reads  # when it is called, not now
            reads = names_of(ast.Module([ast.Expr(one) for one in (*node.decorator_list, *node.args.defaults)], []))[0]
        waiting, seen = set(reads), set[str]()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            waiting |= self._defined.get(name, frozenset()) - seen
        if called := seen & (RUNS_TEXT | _LOOKS):
            self._text.unknown = f"uses {min(called)}"
        self._text.reads |= seen - bound
        self._text.writes |= writes
        return set(writes)


def _find_changes(tree: ast.Module, text: CellText) -> None:
    """Note which names are used in any way but reading the array's values."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text.attributes.add(node.attr)
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            text.writes |= {one.id for one in [_root_of(node)] if one is not None}
        if not isinstance(node, ast.Name):
            continue
        if isinstance(node.ctx, ast.Load):
            if not _is_only_read(node, parents, text):
                text.changes.add(node.id)
        elif isinstance(parents.get(node), ast.AugAssign):
            text.changes.add(node.id)


def _root_of(node: ast.expr) -> ast.Name | None:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _is_only_read(node: ast.expr, parents: Mapping[ast.AST, ast.AST], text: CellText) -> bool:
    """Tell whether an expression's array is read where it stands, and neither changed nor named."""
    above = parents[node]
    match above:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.FormattedValue() | ast.Expr():
            return True
        case ast.Subscript() if above.slice is node:
            return True
        case ast.Subscript(ctx=ast.Load()) if above.value is node:
            return _is_only_read(above, parents, text)
        case ast.Attribute(ctx=ast.Load(), attr=name):
            call = parents[above]
            if isinstance(call, ast.Call) and call.func is above:
                return name in _READ_METHODS and not any(one.arg in ("out", None) for one in call.keywords)
            return name in _FIGURES or (name == "T" and _is_only_read(above, parents, text))
        case ast.Call(func=ast.Name(id=name)):
            return node is not above.func and name in _READ_BUILTINS and name not in text.writes
        case ast.Call(func=ast.Attribute(attr=name) as function) if node in above.args:
            root = _root_of(function)
            if root is None or above.args.index(node) >= _READ_FUNCTIONS.get(name, 0):
                return False
            text.modules.add(root.id)
            return True
    return False


def _find_steering(tree: ast.Module, text: CellText) -> None:
    """Note which streams a cell names, and whether it chooses them in a way that does not tell their names."""
    named = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="on" | "select" | "stream") as function, args=[first, *_]):
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    text.streams.add(first.value)
                    named.add(function)
    text.steers |= any(isinstance(node, ast.Attribute) and node.attr in STEERS and node not in named for node in ast.walk(tree))
