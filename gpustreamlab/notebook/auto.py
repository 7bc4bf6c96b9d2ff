"""Each cell on a stream that is chosen for it: cells that share nothing run side by side, others wait on the device.

What a cell shares with earlier ones is found by the memory that its names lead to, before it runs and when it has run. An array
counts as read and written, unless the cell's text can only read it. In front of and behind a cell with something that cannot be
known, the host waits for everything.
"""

from __future__ import annotations

import ast
import types
import weakref
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpustreamlab._util.arrays import find_arrays, find_owner, is_array
from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.notebook.parsers import PARSERS
from gpustreamlab.programs._calls import RUNS_TEXT, is_known_library, is_user_function, library_of, root_of_type
from gpustreamlab.programs._source import first_uses, names_of, names_of_code
from gpustreamlab.programs._values import MORE, gives_others, is_plain, is_random, reach

__all__ = ["MOST_STREAMS", "AutoCell", "CellStreams", "CellText", "read_cell"]

MOST_STREAMS = 32  # How many streams cells may be spread over
MOST_PIECES = 10_000  # Beyond how many pieces of memory the host waits, so that they can be forgotten
KEPT_EVENTS = 64  # How many cells' ends are kept for each stream; who waits for an earlier one waits for the oldest of these
_PREFIX = "auto-"
_STEERS = frozenset({"on", "select", "run_on", "stream", "streams", "partition"})
"""Attributes of a session through which work goes to streams that the cell chooses."""
_LOOKS = frozenset({"globals", "locals", "vars"})
_AROUND = frozenset({"time", "capture", "gpustream", "gpuprogram"})  # Magics that run their body as it stands
_QUIET = frozenset({"matplotlib", "config", "load_ext", "who", "whos", "pip", "cd", "pwd", "env", "precision", "autoreload"})
"""Magics of IPython that put no work on the device."""
_FIGURES = frozenset({"shape", "dtype", "size", "ndim", "nbytes", "itemsize", "strides"})
_READ_METHODS = frozenset(
    ["sum", "mean", "std", "var", "prod", "max", "min", "argmax", "argmin", "copy", "get", "item", "tolist"]
)
_READ_BUILTINS = {*["print", "float", "int", "bool", "len", "str", "repr", "type", "isinstance", "id", "display"]}
_ONE = "exp log log2 log10 sqrt square abs absolute negative sin cos tan tanh sum mean std var prod max min argmax argmin"
_TWO = "add subtract multiply divide true_divide power maximum minimum matmul dot equal not_equal less greater inner outer"
_READ_FUNCTIONS = {**dict.fromkeys(f"{_ONE} zeros_like ones_like empty_like".split(), 1), **dict.fromkeys(_TWO.split(), 2)}
"""Functions of array modules that give new arrays, and how many of their first arguments they only read."""
_ARRAYS = frozenset({"numpy", "cupy", "torch", "gpustreamlab"})
_HOST = frozenset({"ipykernel", "traitlets", "ipywidgets", "tqdm"})  # Further libraries that put no work on the device
_THREADS = frozenset({"threading", "concurrent", "asyncio", "multiprocessing"})  # Libraries whose objects work behind a cell
STEERS_ITSELF = "chooses streams itself"
_OWN_UNKNOWN = ("gpustreamlab.programs", "gpustreamlab.streams", "gpustreamlab.memory")
_SHARED = frozenset({"random", "fft", "linalg", "sparse"})
"""Parts of array modules that keep memory between calls, one for all streams."""


@dataclass(slots=True, kw_only=True)
class CellText:
    """What can be read from a cell before it runs."""

    reads: set[str] = field(default_factory=set)  # Names that it looks up before it has bound them
    writes: set[str] = field(default_factory=set)  # Names that it binds or deletes, or into whose elements it stores
    changes: set[str] = field(default_factory=set)  # Names whose arrays it may change in place, or give another name
    modules: set[str] = field(default_factory=set)  # Names that have to be array modules, or the rest does not hold
    attributes: set[str] = field(default_factory=set)  # Attributes that it looks up, on whatever
    own_stream: bool = False  # Whether a magic selects the cell's stream
    is_idle: bool = False  # Whether it is nothing but magics that put no work on the device
    unknown: str = ""  # What it does of which nothing can be known; empty for nothing


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
        for node in body.body:
            reads, writes = names_of(node)
            needs, binds = first_uses(node, (reads, writes))
            text.reads |= needs - bound
            text.writes |= writes
            bound |= binds
        _find_changes(body, text)
    if called := text.reads & (RUNS_TEXT | _LOOKS):
        text.unknown = f"uses {min(called)}"
    text.is_idle = not text.unknown and len(bodies) == 1 and all(map(_is_magic, tree.body))
    return text


def _inner_cells(tree: ast.Module, text: CellText) -> Iterator[ast.Module]:
    """Return what magics run, and note those of which nothing is known."""
    for node in ast.walk(tree):
        method, name, given = _magic_call(node)
        if (method, name) == ("run_line_magic", "time") or (method == "run_cell_magic" and name in _AROUND):
            text.own_stream |= name in ("gpustream", "gpuprogram")
            inner = ast.parse(_transformed(given[-1]))
            yield inner
            yield from _inner_cells(inner, text)
        elif method and method not in ("system", "getoutput") and name not in PARSERS and name not in _QUIET:
            text.unknown = f"runs %{name}"


def _transformed(text: str) -> str:
    from IPython import get_ipython

    shell = get_ipython()
    return text if shell is None else str(shell.transform_cell(text))


def _magic_call(node: ast.AST) -> tuple[str, str, list[str]]:
    """Return the method of IPython that a call runs a magic by, its name, and its text; an empty method for no magic."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method), args=arguments):
            name, *given = [one.value if isinstance(one, ast.Constant) else "" for one in arguments] or [""]
            return method, str(name), list(map(str, given)) or [""]
    return "", "", []


def _is_magic(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _magic_call(node.value)[0] != ""


def _find_changes(tree: ast.Module, text: CellText) -> None:
    """Note which names are used in any way but reading the array's values."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text.attributes.add(node.attr)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            text.unknown = f"imports * from {node.module}"
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            text.writes |= {one.id for one in [_root_of(node)] if one is not None}
        if isinstance(node, ast.Name):
            is_load = isinstance(node.ctx, ast.Load)
            if (is_load and not _is_only_read(node, parents, text)) or isinstance(parents.get(node), ast.AugAssign):
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


class _Found:
    """What a cell's names lead to: arrays, by the memory that they share, and what hides some of which nobody can know."""

    def __init__(self, text: CellText, values: dict[str, Any], names: Iterable[str]) -> None:
        self.unknown = text.unknown
        self.pieces: dict[Hashable, bool] = {}  # The memory that it uses, by keys, and whether it may change it
        self.arrays: dict[Hashable, Any] = {}  # Arrays, and objects that keep some, by the same keys
        looked_up, has_session = set[str](), False
        holds = all(name not in values or _is_array_module(values[name]) for name in text.modules)
        known = {name for name in names if name in values}
        read = {name for name in known if holds and name not in text.changes and _is_plain_array(values[name])}
        for _, slot in reach(values, known - read, frozenset(text.attributes)):
            value = slot.value
            has_session |= type(value).__name__ == "Session" and type(value).__module__.startswith("gpustreamlab.")
            if is_user_function(value):
                looked_up |= names_of_code(value.__code__)
            elif not is_plain(value):
                self._follow(slot.key, value)
        if called := RUNS_TEXT & looked_up:
            self.unknown = self.unknown or f"uses {min(called)}"
        looked_up |= text.attributes
        if has_session and _STEERS & looked_up:
            self.unknown = self.unknown or STEERS_ITSELF
        for name in _SHARED & looked_up:
            self._add(("library", name), None)
        for name in read:
            key = find_owner(values[name]).key
            self.pieces.setdefault(key, False)
            self.arrays[key] = values[name]

    def _follow(self, place: object, value: Any) -> None:
        """Note an array, or an object that keeps some, or that something is hidden."""
        if is_array(value):
            self._add(find_owner(value).key, value)
            if getattr(value, "requires_grad", False):
                self.unknown = "reaches a tensor of autograd, which keeps others"
        elif is_random(value) or (root_of_type(type(value)) == "cupy" and not callable(value)):
            self._add(("object", id(value)), value)
        else:
            self.unknown = self.unknown or _what_hides(place, value)
            if type(value) is types.BuiltinFunctionType:  # a method with what it is of
                for array in find_arrays(value.__self__):
                    self._add(find_owner(array).key, array)

    def _add(self, key: Hashable, value: Any) -> None:
        self.pieces[key] = True
        self.arrays[key] = value


def _what_hides(key: object, value: Any) -> str:
    """Return what a value hides, arrays or work, of which nobody can know; an empty text for nothing."""
    kind = type(value)
    if key == MORE:
        return "reaches more objects than are followed"
    if kind.__module__.startswith(_OWN_UNKNOWN):
        return f"holds a {kind.__name__}"
    library = library_of(value)
    is_hidden = gives_others(value) or kind is weakref.ref or kind.__name__ == "_lru_cache_wrapper"
    if is_hidden or library in _THREADS or not (is_known_library(library) or library in _HOST):
        return f"uses a {kind.__name__} of {library or 'the notebook'}"
    return ""


def _is_plain_array(value: object) -> bool:
    """Tell whether a value is an array of a library of which it is known what its operators do."""
    return is_array(value) and not getattr(value, "requires_grad", False) and root_of_type(type(value)) in _ARRAYS


def _is_array_module(value: object) -> bool:
    """Tell whether functions of a value are those of NumPy: an array module, or a session, which has one."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _ARRAYS
    return type(value).__module__.startswith("gpustreamlab.") and type(value).__name__ in ("ArrayModule", "Session")


class Mark(NamedTuple):
    """The end of a cell's work on a stream."""

    stream: str  # The stream
    turn: int  # Which cell it was, counted from the first


@dataclass(slots=True)
class _Uses:
    """Which cells used a piece of memory last."""

    written: frozenset[Mark] = frozenset()
    read: set[Mark] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class AutoCell:
    """A cell that runs on a stream that was chosen for it."""

    text: CellText  # What its text tells
    found: _Found  # What its names lead to in front of it
    marks: set[Mark]  # What it is behind
    turn: int  # Which cell it is, counted from the first
    streams: set[str] = field(default_factory=set)  # Where its work goes
    waits: set[Mark] = field(default_factory=set)  # What its streams were made to wait for
    selection: Any = None  # What selects its stream; None for a cell that selects its own


class CellStreams:
    """The streams of one session's cells."""

    def __init__(self, session: Any, values: dict[str, Any], count: int) -> None:
        if not 1 <= count <= MOST_STREAMS:
            raise OptionError(f"--streams is {count}; cells are spread over 1 to {MOST_STREAMS} streams. Use --streams 4.")
        self.session = session  # The session
        self.count = count  # How many streams cells are spread over
        self._values = values
        self._pool = [f"{_PREFIX}{number}" for number in range(1, count + 1)]
        self._uses: dict[Hashable, _Uses] = {}
        self._events: dict[str, deque[tuple[int, Any]]] = {}
        self._waited: dict[tuple[str, str], int] = {}  # Up to which turn of another stream one has waited
        self._turn = 0
        session.synchronize()  # what ran before has no event

    def begin(self, text: CellText, label: str) -> AutoCell:
        """Choose a cell's stream, let it wait for the cells whose memory this one uses, and select it."""
        self._turn += 1
        found = _Found(text, self._values, text.reads)
        if found.unknown or len(self._uses) > MOST_PIECES:
            self.wait_on_host()
        cell = AutoCell(text=text, found=found, marks=self._before(found.pieces), turn=self._turn)
        if text.own_stream:  # its magic calls `order`
            return cell
        name = self._choose(cell.marks)
        self.order(cell, name)
        stream = self.session.stream(name)
        # A range of a cell that chooses its streams itself would be empty, most often.
        cell.selection = self.session.select(stream) if found.unknown == STEERS_ITSELF else self.session.on(stream, label)
        cell.selection.__enter__()
        return cell

    def order(self, cell: AutoCell, name: str) -> None:
        """Let a stream wait for the cells that a cell has to be behind."""
        cell.streams.add(name)
        stream = self.session.stream(name)
        last: dict[str, Mark] = {}
        for mark in sorted(cell.marks):
            last[mark.stream] = mark
        for other, mark in last.items():
            if other == name or self._waited.get((name, other), 0) >= mark.turn:
                continue
            turn, event = next((turn, event) for turn, event in self._events[other] if turn >= mark.turn)
            stream.wait(event)
            cell.waits.add(mark)
            self._waited[name, other] = turn

    def end(self, cell: AutoCell, error: BaseException | None) -> None:
        """Put back what was selected, and note what the cell used and where its work ends."""
        if cell.selection is not None:
            self._leave(cell.selection, error)
        if self.session.state != "open" or not cell.streams:
            return
        if cell.found.unknown or (error is not None and cell.text.own_stream):  # a program that fails does not join its streams
            self.wait_on_host()
            return
        waited = {key for key, is_written in cell.found.pieces.items() if is_written}
        now = _Found(cell.text, self._values, cell.text.reads | cell.text.writes)
        known = cell.found.pieces  # what is new was written
        pieces = known | {key: known.get(key, True) or is_written for key, is_written in now.pieces.items()}
        arrays = [array for array in ({**now.arrays, **cell.found.arrays}).values() if array is not None]
        marks = set()
        for name in cell.streams:
            stream = self.session.streams.get(name)
            if stream is not None and not stream.is_closed:
                if arrays:
                    stream.hold(*arrays)
                self._record(stream, cell.turn)
                marks.add(Mark(name, cell.turn))
        self._note(pieces, marks, waited)

    def wait_on_host(self) -> None:
        """Wait for everything: in front of and behind a cell whose work has no stream that is known."""
        if self.session.state == "open":
            self.session.synchronize()
        self._uses.clear()

    def close(self) -> None:
        """Give the events back."""
        for events in self._events.values():
            for _, event in events:
                event.close()
        self._events.clear()

    def _before(self, pieces: Mapping[Hashable, bool]) -> set[Mark]:
        """Return which cells' ends a cell has to wait for: reads come behind writes, and writes behind both."""
        found: set[Mark] = set()
        for key, is_written in pieces.items():
            uses = self._uses.get(key)
            if uses is not None:
                found |= uses.written
                found |= uses.read if is_written else set()
        return found

    def _note(self, pieces: Mapping[Hashable, bool], marks: Collection[Mark], waited: Collection[Hashable]) -> None:
        """Note what a cell has used, and where its work ends; `waited` has that for whose earlier uses it has waited."""
        for key, is_written in pieces.items():
            uses = self._uses.setdefault(key, _Uses())
            if is_written and key in waited:
                uses.written, uses.read = frozenset(marks), set()
            elif is_written:
                uses.written |= frozenset(marks)
            else:
                uses.read.update(marks)

    def _choose(self, marks: Iterable[Mark]) -> str:
        """Return the stream whose last cell is the latest that this one waits for, else a free one, else the oldest."""
        last = {name: events[-1][0] for name, events in self._events.items() if events}
        behind = [mark for mark in marks if mark.stream in self._pool and last.get(mark.stream) == mark.turn]
        if behind:
            return max(behind, key=lambda mark: mark.turn).stream
        for name in self._pool:
            if name not in last or self._events[name][-1][1].query():
                return name
        return min(self._pool, key=lambda name: last.get(name, 0))

    def _record(self, stream: Any, turn: int) -> None:
        events = self._events.setdefault(stream.name, deque())
        events.append((turn, stream._record_order()))  # noqa: SLF001 - an event without a time
        if len(events) > KEPT_EVENTS:
            events.popleft()[1].close()

    @staticmethod
    def _leave(selection: Any, error: BaseException | None) -> None:
        with suppress(SelectionError):  # something that the cell has entered is still there; that is put back with it
            if error is None:
                selection.__exit__(None, None, None)
            else:
                selection.__exit__(type(error), error, error.__traceback__)
        selection.put_back()
