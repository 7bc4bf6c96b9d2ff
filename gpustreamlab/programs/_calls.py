"""Which calls a statement makes: those whose work on the device is followed, and those of which nothing is known."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import gc
import inspect
import os
import re
import site
import sys
import sysconfig
import textwrap
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gpustreamlab.errors import ProgramError
from gpustreamlab.programs._source import FUTURES
from gpustreamlab.programs._torch import BASED_ON_TORCH, STREAMS_OF_TORCH, UNSEEN, eager

CALL = "__gpustreamlab_call__"
"""The built-in that is told of a recorded program's calls. It stays: a generator may go on when the recording is over."""
_LEFT_ALONE = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})
"""Built-ins that look at their caller."""
RUNS_TEXT = frozenset({"eval", "exec", "__import__"})
"""Built-ins that run what nobody has read."""
_KERNELS = frozenset({"RawKernel", "ElementwiseKernel", "ReductionKernel", "JitRawKernel", "_JitRawKernel"})
"""Kernels of CuPy that the user wrote: they touch the arrays that they are given."""
_KERNEL_LIBRARIES = frozenset({"numba", "triton"})
_CHANCE = frozenset({"random", "secrets", "time", "uuid", "os", "posix", "datetime", "io", "_io", "pathlib"})
"""What gives other values each time."""
_CHANCE_OF_NUMPY = "numpy.random"
_RUNS_CELLS = frozenset({"run_line_magic", "run_cell_magic", "system", "getoutput", "run_cell", "ex", "ev"})
"""Methods of IPython's shell that run what nobody has read."""
_OUTSIDE = frozenset({"shutil", "subprocess", "socket", "sqlite3", "urllib", "http", "smtplib", "ftplib", "tempfile"})
"""What changes files, processes and other machines."""
_CHANGES_FILES = re.compile(
    "ch(mod|own)|fork|kill|(hard|sym)?link(_to)?|mk\\w*|makedirs|p?open|putenv|re(move|name)\\w*|replace|rmdir|system|touch|"
    "truncate|unlink|write\\w*"
)
"""Functions and methods that do, of what may also only look."""
_TAKES_FUNCTIONS = (map, filter, sorted, min, max, functools.reduce)
"""What calls functions that it is given."""
_STEERS = frozenset({"on", "select", "run_on", "partition"})
"""Methods of a session under which work goes to streams of its own."""
_ORDERS = frozenset({"synchronize", "wait", "make_wait", "record", "use", "hold", "query"})
"""Methods of sessions, streams and events that order work, or ask for the order."""
_CLOSES = frozenset({"close"})


def instrumented(node: ast.stmt) -> ast.stmt:
    """Return a statement that tells `CALL` of its calls."""
    made: ast.stmt = _Rewriter().visit(copy.deepcopy(node))
    return ast.fix_missing_locations(made)


class _Rewriter(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _LEFT_ALONE:
            return node
        # Only told of: the call itself stays in its frame, which warnings, tracebacks, eval and the like look at.
        return ast.copy_location(
            ast.Call(ast.Call(ast.Name(CALL, ast.Load()), [node.func], []), node.args, node.keywords), node
        )


def _told(function: Any) -> Any:
    log = CallLog.active.get(threading.get_ident())
    return function if log is None else log.tell(function)


setattr(builtins, CALL, _told)


class CallLog:
    """Is told of the calls of a recorded program, and keeps what it cannot follow.

    Parameters
    ----------
    touch
        Is given the arguments of kernels that the user wrote.
    is_own
        Tells whether code was written within the program.
    """

    active: ClassVar[dict[int, CallLog]] = {}
    """Those that a program is recorded by now, by its thread."""

    def __init__(self, touch: Callable[[str, object], None], is_own: Callable[[types.CodeType], bool]) -> None:
        self._touch = touch
        self._is_own = is_own
        self._rewritten: dict[types.CodeType, types.FunctionType | None] = {}
        self.unknown = ""
        """What was called last, and is not followed; empty for nothing."""
        self.is_chance = False
        """Whether something was called that gives other values each time."""
        self.steers = False
        """Whether a stream was selected."""
        self.orders = False
        """Whether something was ordered that the program orders itself."""
        self.calls_own = False
        """Whether a function of the user's was called."""
        self.outside = ""
        """What was called that may change files, processes or other machines; empty for nothing."""
        self.line = 0
        """The line of the statement."""

    def begin(self, line: int) -> None:
        """Forget what the statement before has called."""
        self.unknown, self.is_chance, self.steers, self.orders, self.line = "", False, False, False, line
        self.calls_own, self.outside = False, ""

    def tell(self, function: Any) -> Any:
        """Take note of what is about to be called; return what is to be called in its place."""
        __tracebackhide__ = True
        plain = eager(function.func if type(function) is functools.partial else function)
        name, root = _name_of(plain)
        self._note_call(plain, name, root)
        if root == "":
            self.calls_own = True
            plain = self._followed(plain)
        if type(function) is functools.partial:
            return functools.partial(plain, *function.args, **function.keywords)
        if root in _KERNEL_LIBRARIES or (root == "cupy" and type(plain).__name__ in _KERNELS):
            return functools.partial(self._launch, plain, name)
        return functools.partial(self._call_followed, plain) if any(plain is one for one in _TAKES_FUNCTIONS) else plain

    def _launch(self, kernel: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a kernel of the user's, which may read and write all that it is given."""
        __tracebackhide__ = True
        self._touch(name, (args, kwargs))
        return kernel(*args, **kwargs)

    def _call_followed(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what calls functions that it is given."""
        __tracebackhide__ = True
        kwargs = {name: self._followed(value) for name, value in kwargs.items()}
        return function(*map(self._followed, args), **kwargs)

    def _note_call(self, plain: Any, name: str, root: str) -> None:
        """Keep what a call means for the statement: that nothing is known of it, that it gives other values each time."""
        if root == "gpustreamlab":
            self._note_own(plain, name)
        elif root in _KERNEL_LIBRARIES or (root == "cupy" and type(plain).__name__ in _KERNELS):
            return  # its arguments are looked at when it is launched
        elif root in _CHANCE or _module_of(plain).startswith(_CHANCE_OF_NUMPY):
            self.is_chance = True
            if _CHANGES_FILES.fullmatch(name.rpartition(".")[2]):
                self.outside = self.outside or name
        elif root in BASED_ON_TORCH:
            if name.rpartition(".")[2] in UNSEEN or _module_of(plain).startswith(STREAMS_OF_TORCH):
                self.unknown = name  # else its operators are told of
        elif root and (root not in _HARMLESS or (root == "IPython" and name.rpartition(".")[2] in _RUNS_CELLS)):
            self.unknown = name
        elif root in _OUTSIDE:
            self.outside = self.outside or name

    def _note_own(self, function: Any, name: str) -> None:
        owner = type(getattr(function, "__self__", None)).__name__
        method = getattr(function, "__name__", "")
        if owner in ("Session", "Stream") and method in _CLOSES:
            raise ProgramError(
                f"Line {self.line} closes a {owner.lower()}, in which work of the program may still run. Close it behind it."
            )
        if owner in ("Session", "Program", "Plan") and method in ("program", "plan"):
            raise ProgramError(
                f"Line {self.line} makes a program within a program. Plan it outside, and call its statements here."
            )
        if owner == "Session" and method in _STEERS:
            self.steers = True
        if owner in ("Session", "Stream", "Event") and method in _ORDERS:
            self.orders = True

    def _followed(self, function: Any) -> Any:
        """Return a function of the user's that makes its calls through this, too; as it is where its source is not known."""
        if isinstance(function, types.MethodType):
            followed = self._followed(function.__func__)
            return types.MethodType(followed, function.__self__) if followed is not function.__func__ else function
        if not isinstance(function, types.FunctionType) or _name_of(function)[1] != "":
            return function
        code = function.__code__
        if code not in self._rewritten:
            self._rewritten[code] = self._rewrite(function)
        made = self._rewritten[code]
        if made is None:
            self.unknown = self.unknown or f"{function.__qualname__}, whose source is not known"
            return function
        found = types.FunctionType(
            _code_of(made, function), function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        found.__kwdefaults__ = function.__kwdefaults__
        return found

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType | None:
        """Compile a function anew, so that it tells `CALL` of its calls; None where that cannot be done."""
        if function.__code__.co_name == "<lambda>" or self._is_own(function.__code__):
            return function  # it tells already
        try:
            lines, first = inspect.getsourcelines(function.__code__)  # not of what it wraps
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return None
        node = tree.body[0]
        if not isinstance(node, ast.FunctionDef) or node.name != function.__code__.co_name:
            return None
        _leave_out_expressions(node)
        _Rewriter().visit(node)
        outer = _closing_over(node, function.__code__.co_freevars)
        ast.increment_lineno(tree, first - 1)
        module = ast.fix_missing_locations(ast.Module([outer], []))
        made: dict[str, Any] = {}
        flags = function.__code__.co_flags & FUTURES
        code = compile(module, function.__code__.co_filename, "exec", flags, dont_inherit=True)
        exec(code, {"__name__": function.__module__}, made)  # noqa: S102 - the user's function, as it is but for its calls
        found = made[outer.name]
        return found if isinstance(found, types.FunctionType) else None


def _leave_out_expressions(node: ast.FunctionDef) -> None:
    """Leave out what a definition evaluates: the function exists, with its defaults."""
    arguments = node.args
    node.decorator_list, node.returns = [], None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [None if one is None else ast.Constant(None) for one in arguments.kw_defaults]
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None


def _closing_over(node: ast.FunctionDef, names: tuple[str, ...]) -> ast.FunctionDef:
    """Put a function into another one that has what it closes over as its parameters."""
    if not names:
        return node
    arguments = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    body: list[ast.stmt] = [node, ast.Return(ast.Name(node.name, ast.Load()))]
    outer = ast.FunctionDef(f"_{node.name}", arguments, body, [], None)
    return ast.fix_missing_locations(ast.copy_location(outer, node))


def _code_of(made: types.FunctionType, function: types.FunctionType) -> types.CodeType:
    """Return the code that stands for a function's: of one that closes over names, the inner one."""
    if not function.__code__.co_freevars or made is function:
        return made.__code__
    inner = [part for part in made.__code__.co_consts if isinstance(part, types.CodeType)]
    return next(part for part in inner if part.co_name == function.__code__.co_name)


def plain_again(pairs: Sequence[tuple[types.CodeType, types.CodeType]]) -> None:
    """Give the functions that recorded statements made the code that the statements have without a recording.

    Parameters
    ----------
    pairs
        Each statement's code as it was recorded, and as it is.
    """
    plain = {id(one): other for made, code in pairs for one, other in zip(_inner(made), _inner(code), strict=True)}
    codes = [one for made, _ in pairs for one in _inner(made)]
    for holder in gc.get_referrers(*codes) if codes else ():
        if isinstance(holder, types.FunctionType) and id(holder.__code__) in plain:
            holder.__code__ = plain[id(holder.__code__)]


def _inner(code: types.CodeType) -> list[types.CodeType]:
    found = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [one for part in found for one in (part, *_inner(part))]


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.realpath(folder) + os.sep for folder in folders if folder and len(folder) > 1})


_HARMLESS = frozenset({*sys.stdlib_module_names, "builtins", "numpy", "IPython", "matplotlib", "pandas"}) - _CHANCE
"""Libraries that put no work on the device."""


def _name_of(function: Any) -> tuple[str, str]:
    """Return a callable's name, and the library that it is of; an empty one for the user's own code."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    if type(function).__module__.startswith("gpustreamlab."):
        return name, "gpustreamlab"
    plain = getattr(function, "__func__", function)
    if isinstance(plain, types.FunctionType):
        return name, root_of(plain.__module__, plain.__code__.co_filename)
    if isinstance(function, type):
        return name, root_of(function.__module__, _file_of(function))
    if owner is not None and not isinstance(owner, types.ModuleType):
        kind = owner if isinstance(owner, type) else type(owner)
        return name, root_of(kind.__module__, _file_of(kind))
    module = getattr(function, "__module__", None) if isinstance(function, types.BuiltinFunctionType) else None
    return name, root_of(module or type(function).__module__, _file_of(type(function)))


def _module_of(function: Any) -> str:
    """Return the module of a callable, or of what it is a method of."""
    owner = getattr(function, "__self__", None)
    kind = type(owner) if owner is not None and not isinstance(owner, types.ModuleType) else function
    return getattr(kind, "__module__", None) or ""


def _file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ""


@functools.cache
def root_of(module: str | None, file: str) -> str:
    """Return the library that code is of; an empty text for code of the user's."""
    root = (module or "").partition(".")[0]
    if root in _HARMLESS or root in _CHANCE or root == "gpustreamlab":
        return root
    if root in ("__main__", "") or not file:
        return "" if root in ("__main__", "") or root not in sys.modules else root
    path = os.path.realpath(file)
    return root if path.startswith(_library_folders()) or path.endswith((".so", ".pyd")) else ""


def root_of_type(kind: type) -> str:
    """Return the library that a type is of; an empty text for one of the user's."""
    return root_of(kind.__module__, _file_of(kind))


def is_of_user(function: types.FunctionType) -> bool:
    """Tell whether a function is the user's own, not a library's."""
    return not _name_of(function)[1]


def is_followed(value: object) -> bool:
    """Tell whether a program may hold such a value without anything being hidden in it: none of another library's objects."""
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return True  # what is called is looked at when it is called
    if kind.__name__ in _KERNELS:
        return True
    root = root_of(kind.__module__, _file_of(kind))
    known = {"", "gpustreamlab", *_KERNEL_LIBRARIES, *BASED_ON_TORCH}
    return root in known or root in _HARMLESS or root in _CHANCE


def globals_of(function: types.FunctionType, names: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that a function, and what it calls among these, look up."""
    found, waiting = set[str](), [function.__code__]
    while waiting:
        code = waiting.pop()
        for name in code.co_names:
            if name in names and name not in found:
                found.add(name)
                value = names[name]
                if isinstance(value, types.FunctionType):
                    waiting.append(value.__code__)
        waiting.extend(part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(found)
