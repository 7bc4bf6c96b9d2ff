"""Which calls a statement makes, and what torch's operators read and write: what is followed, and what is not known."""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import inspect
import os
import re
import site
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, ClassVar

from gpustreamlab._util.arrays import attributes_of
from gpustreamlab.analysis import Piece, Region, Touch, region_of
from gpustreamlab.errors import ProgramError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.programs._source import FUTURES, copied_syntax, inner_codes

BASED_ON_TORCH = frozenset({"torch", "torchvision", "torchaudio", "transformers", "diffusers", "timm", "einops"})
"""Libraries whose work on the device goes through torch's dispatcher."""
UNSEEN = frozenset({"backward", "grad", "from_dlpack"})
"""Functions of torch that work in threads of its own, or in another library's memory."""
STREAMS_OF_TORCH = "torch.cuda"  # Where torch's streams, events and waits are: what calls them orders work itself
_READS_BACK = frozenset({"_local_scalar_dense", "nonzero", "unique", "_unique2", "masked_select", "equal", "is_nonzero"})

Note = Callable[[str, Sequence[Any], Sequence[Any]], None]
"""Is given the operator of torch, the tensors that it reads, and those that it writes."""

CALL = "__gpustreamlab_call__"
"""The built-in that is told of a recorded program's calls. It stays: a generator may go on when the recording is over."""
_LEFT_ALONE = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})  # Built-ins that look at their caller
RUNS_TEXT = frozenset({"eval", "exec", "__import__"})  # Built-ins that run what nobody has read
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
_TAKES_FUNCTIONS = (map, filter, sorted, min, max, functools.reduce)  # What calls functions that it is given
_STEERS = frozenset({"on", "select", "run_on", "partition"})  # Methods of a session under which work goes to streams of its own
_ORDERS = frozenset({"synchronize", "wait", "make_wait", "record", "use", "hold", "query"})
"""Methods of sessions, streams and events that order work, or ask for the order."""
_OF_PROGRAMS = frozenset(
    {("Session", "program"), ("Program", "plan"), *(("Plan", method) for method in ("run", "check", "compare", "capture"))}
)
"""Methods that a program cannot call, with their classes."""
_MADE_BY_A_STATEMENT = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of a class that is none of the interpreter's own
_CLOSES = frozenset({"close"})


def instrumented(node: ast.stmt) -> ast.stmt:
    """Return a statement that tells `CALL` of its calls."""
    made: ast.stmt = _Rewriter().visit(copied_syntax(node))
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
    """Is told of the calls of a recorded program, and keeps what it cannot follow."""

    active: ClassVar[dict[int, CallLog]] = {}  # Those that a program is recorded by now, by its thread

    def __init__(self, touch: Callable[[str, object], None], is_own: Callable[[types.CodeType], bool]) -> None:
        self._touch = touch
        self._is_own = is_own
        self._rewritten: dict[int, tuple[types.CodeType | None, types.CodeType]] = {}
        self._telling: dict[str, dict[tuple[str, int], types.CodeType]] = {}  # Functions that tell, by file
        self.unknown = ""  # What was called last, and is not followed; empty for nothing
        self.is_chance = False  # Whether something was called that gives other values each time
        self.steers = False  # Whether a stream was selected
        self.orders = False  # Whether something was ordered that the program orders itself
        self.outside = ""  # What was called that may change files, processes or other machines; empty for nothing
        self.line = 0  # The line of the statement

    def begin(self, line: int) -> None:
        """Forget what the statement before has called."""
        self.unknown, self.is_chance, self.steers, self.orders, self.line = "", False, False, False, line
        self.outside = ""

    def tell(self, function: Any) -> Any:
        """Take note of what is about to be called; return what is to be called in its place."""
        __tracebackhide__ = True
        plain = eager(function.func if type(function) is functools.partial else function)
        name, root = _name_of(plain)
        self._note_call(plain, name, root)
        if root == "":
            plain = self._followed(plain)
        if type(function) is functools.partial:
            return functools.partial(plain, *function.args, **function.keywords)
        if _is_kernel(plain, root):
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
        elif _is_kernel(plain, root):
            return  # its arguments are looked at when it is launched
        elif root in _CHANCE or (root == "numpy" and _module_of(plain).startswith(_CHANCE_OF_NUMPY)):
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
        if (owner, method) in _OF_PROGRAMS:
            raise ProgramError(
                f"Line {self.line} calls {method}() of a {owner.lower()} within a program. Call it outside of it."
            )
        if owner == "Session" and method in _STEERS:
            self.steers = True
        if owner in ("Session", "Stream", "Event") and method in _ORDERS:
            self.orders = True

    def _followed(self, function: Any) -> Any:
        """Return a function of the user's that tells of its calls, too; as it is where its source is not known."""
        kind = type(function)
        if kind is types.MethodType:
            followed = self._followed(function.__func__)
            return types.MethodType(followed, function.__self__) if followed is not function.__func__ else function
        if kind is not types.FunctionType:
            call: Any = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
            return self._followed(types.MethodType(call, function)) if is_user_function(call) else function
        if not is_user_function(function):
            return function
        code = function.__code__
        if id(code) not in self._rewritten:
            self._rewritten[id(code)] = self._rewrite(code), code
        made = self._rewritten[id(code)][0]
        if made is None:
            self.unknown = self.unknown or f"{function.__qualname__}, whose source is not known"
            return function
        found = types.FunctionType(made, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        found.__kwdefaults__ = function.__kwdefaults__
        return found

    def _rewrite(self, code: types.CodeType) -> types.CodeType | None:
        """Compile a function's code anew, so that it tells `CALL` of its calls; None where that cannot be done."""
        if code.co_name == "<lambda>" or self._is_own(code):
            return code  # it tells already
        if code.co_filename not in self._telling:
            self._telling[code.co_filename] = _telling_functions(code)
        made = self._telling[code.co_filename].get((code.co_qualname, code.co_firstlineno))
        return made if made is not None and made.co_freevars == code.co_freevars else None

    @property
    def rewritten(self) -> list[tuple[types.CodeType, types.CodeType]]:
        """The code of functions that told of their calls, and what it was."""
        return [(made, code) for made, code in self._rewritten.values() if made is not None]


def _telling_functions(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """Return the functions of the file of some code so that they tell `CALL` of their calls, by name and first line.

    The whole file is compiled, and never run: so names mean in each function what they did.
    """
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.fix_missing_locations(_Rewriter().visit(ast.parse("".join(lines))))
        flags = code.co_flags & FUTURES | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        whole = compile(tree, code.co_filename, "exec", flags, dont_inherit=True)
    except (OSError, SyntaxError):
        return {}
    plain = (one for one in _inner(whole) if one.co_flags & inspect.CO_OPTIMIZED and not one.co_flags & inspect.CO_COROUTINE)
    return {(one.co_qualname, one.co_firstlineno): one for one in plain}


def plain_again(pairs: Sequence[tuple[types.CodeType, types.CodeType]]) -> None:
    """Give the functions that recorded statements made the code that the statements have without a recording."""
    both = [(made, code) for made, code in pairs if made is not code]
    plain = {id(one): other for made, code in both for one, other in zip(_inner(made), _inner(code), strict=True)}
    plain |= {id(made): code for made, code in both}
    codes = [one for made, _ in both for one in (made, *_inner(made))]
    for holder in gc.get_referrers(*codes) if len(codes) > len(both) else ():
        if type(holder) is types.FunctionType and id(holder.__code__) in plain:
            holder.__code__ = plain[id(holder.__code__)]


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [one for part in inner_codes(code) for one in (part, *_inner(part))]


@functools.cache
def _library_folders() -> tuple[str, ...]:
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.realpath(folder) + os.sep for folder in folders if folder and len(folder) > 1})


_HARMLESS = frozenset({*sys.stdlib_module_names, "builtins", "numpy", "IPython", "matplotlib", "pandas"}) - _CHANCE
"""Libraries that put no work on the device."""


def _name_of(function: Any) -> tuple[str, str]:
    """Return a callable's name, and the library that it is of; an empty one for the user's own code."""
    kind = type(function)
    if kind.__module__.startswith("gpustreamlab."):
        return getattr(function, "__qualname__", kind.__qualname__), "gpustreamlab"
    if root_of_type(kind) == "":  # an object of the user's, which is not asked
        return kind.__qualname__, ""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or kind.__qualname__
    plain = getattr(function, "__func__", function)
    if type(plain) is types.FunctionType:
        module = plain.__module__ if plain.__module__ != "builtins" else None  # of variables without a name of their own
        return name, root_of(module, plain.__code__.co_filename)
    if issubclass(kind, type):
        return name, root_of_type(function)
    if owner is not None and type(owner) is not types.ModuleType:
        return name, root_of_type(owner if issubclass(type(owner), type) else type(owner))
    module = getattr(function, "__module__", None) if kind is types.BuiltinFunctionType else None
    return name, root_of(module or kind.__module__, _file_of(kind))


def _is_kernel(function: Any, root: str) -> bool:
    """Tell whether a callable of a library launches a kernel that the user wrote."""
    return root in _KERNEL_LIBRARIES or (root == "cupy" and type(function).__name__ in _KERNELS)


def _module_of(function: Any) -> str:
    """Return the module of a library's callable, or of what it is a method of."""
    owner = getattr(function, "__self__", None)
    found = type(owner) if owner is not None and type(owner) is not types.ModuleType else function
    return getattr(found, "__module__", None) or ""


def _file_of(kind: type) -> str:
    held = attributes_of(sys.modules.get(kind.__module__)) or {}
    return held.get("__file__") or ""


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
    if kind.__module__ == "builtins" and kind.__flags__ & _MADE_BY_A_STATEMENT:  # of variables without a name of their own
        return ""
    return root_of(kind.__module__, _file_of(kind))


def is_user_function(value: object) -> bool:
    """Tell whether a value is a function that the user has written."""
    return type(value) is types.FunctionType and not _name_of(value)[1]


def is_followed(value: object) -> bool:
    """Tell whether a program may hold such a value without anything being hidden in it: none of another library's objects."""
    kind: Any = value if issubclass(type(value), type) else type(value)
    if issubclass(type(value), (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return True  # what is called is looked at when it is called
    if kind.__name__ in _KERNELS:
        return True
    root = root_of(kind.__module__, _file_of(kind))
    return root != "cupy" and is_known_library(root)


def is_known_library(root: str) -> bool:
    """Tell whether it is known what calls of a library do on the device; an empty text stands for the user's own code."""
    return root in {"", "gpustreamlab", "cupy", *_KERNEL_LIBRARIES, *BASED_ON_TORCH} or root in _HARMLESS or root in _CHANCE


def library_of(value: Any) -> str:
    """Return the library that a module, a callable or an object is of; an empty text for what is the user's."""
    if issubclass(type(value), types.ModuleType):
        held = attributes_of(value) or {}
        return root_of(held.get("__name__"), held.get("__file__") or "")
    return _name_of(value)[1]


def globals_of(function: types.FunctionType, names: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that a function, and what it calls among these, look up."""
    found, waiting = set[str](), [function.__code__]
    while waiting:
        code = waiting.pop()
        for name in code.co_names:
            if name in names and name not in found:
                found.add(name)
                value = names[name]
                if type(value) is types.FunctionType:
                    waiting.append(value.__code__)
        waiting.extend(inner_codes(code))
    return frozenset(found)


# What torch reads and writes: every operator that its dispatcher runs, with what its schema says. Source:
# `torch.utils._python_dispatch.TorchDispatchMode`, and ``alias_info.is_write`` of an operator's arguments.


def torch_here() -> Any | None:
    """Return torch, if the program may use it: if it is loaded."""
    return sys.modules.get("torch")


def eager(function: Any) -> Any:
    """Return what a compiled function was compiled from: its kernels do not go through the dispatcher."""
    held = attributes_of(function) or {}
    module = (held.get("_modules") or {}).get("_orig_mod") if type(function).__module__.startswith("torch.") else None
    return held.get("_torchdynamo_orig_callable", function) if module is None else module


def watching_torch(
    note: Note, host_wait: Callable[[], object], *, device_types: Iterable[str] = ("cuda",)
) -> AbstractContextManager[object]:
    """Tell what torch's operators read and write, in a ``with`` block of this thread."""
    if torch_here() is None:
        return nullcontext()
    mode: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    devices = frozenset(device_types)

    class Watching(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if operator.is_view:
                return result
            name = _schema(operator).name.partition("::")[2]
            given = list(_given(operator, args, kwargs or {}, devices))
            made = list(_tensors(result, devices))
            note(
                name,
                [tensor for tensor, is_write in given if not is_write],
                [*(one for one, is_write in given if is_write), *made],
            )
            if given and (name in _READS_BACK or (not made and result is not None)):
                host_wait()
            return result

    return Watching()


def _schema(operator: Any) -> Any:
    return operator._schema


def _given(operator: Any, args: Any, kwargs: Mapping[str, Any], devices: frozenset[str]) -> Iterable[tuple[Any, bool]]:
    """Yield the tensors that an operator was given, and whether it writes them."""
    for place, argument in enumerate(_schema(operator).arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value, devices):
            yield tensor, is_write


def _tensors(value: object, devices: frozenset[str]) -> Iterable[Any]:
    if is_tensor(value):
        tensor: Any = value
        if tensor.device.type in devices and tensor.numel():  # an empty one has no byte
            yield tensor
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one, devices)


class TorchPieces:
    """Numbers of the storages of tensors, each for as long as the storage lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Any]] = {}

    def number(self, tensor: Any) -> int:
        """Return the number of a tensor's storage, below 0."""
        found = _weak_storage(tensor)
        known = self._known.get(found.cdata)  # unique as long as the weak reference is kept
        if known is None:
            known = self._known[found.cdata] = -1 - len(self._known), found
        return known[0]


class TorchAccesses:
    """Tells those who look for hazards what torch's operators read and write, on torch's current stream."""

    def __init__(self, watch: AccessWatch) -> None:
        self._watch = watch
        self._known: dict[int, tuple[Piece, Any]] = {}

    def note(self, work: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Note what an operator reads and writes."""
        torch: Any = torch_here()
        handle = int(torch.cuda.current_stream().cuda_stream)
        with self._watch.lock:
            touched = [[self._touch(handle, tensor) for tensor in tensors] for tensors in (reads, writes)]
            self._watch.work(handle, work, *touched)
        if self._watch.pending:
            self._watch.finish()

    def _touch(self, handle: int, tensor: Any) -> Touch:
        found = _weak_storage(tensor)
        known = self._known.get(found.cdata)
        if known is None:
            start, end = bytes_of(tensor)
            for key, (piece, storage) in [*self._known.items()]:
                if storage.expired() and piece.start < end and start < piece.end:  # its memory is handed out again
                    self._watch.free(piece)
                    del self._known[key]
            piece = self._watch.allocate(handle, start, end, tuple(tensor.shape), tensor.dtype)
            known = self._known[found.cdata] = piece, found
        return known[0], region_of_tensor(tensor)


def _weak_storage(tensor: Any) -> Any:
    reductions: Any = import_module("torch.multiprocessing.reductions")
    return reductions.StorageWeakRef(tensor.untyped_storage())


def bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the addresses of the first byte of a tensor's storage, and of the one behind its last."""
    storage = tensor.untyped_storage()
    start = int(storage.data_ptr())
    return start, start + int(storage.nbytes())


def region_of_tensor(tensor: Any) -> Region | None:
    """Return the bytes that a tensor covers; None for all of its storage."""
    size = int(tensor.element_size())
    strides = tuple(size * one for one in tensor.stride())
    found = region_of(int(tensor.data_ptr()), tuple(tensor.shape), strides, size)
    return None if found.is_whole and (found.start, found.end) == bytes_of(tensor) else found


def is_tensor(value: object) -> bool:
    """Tell whether a value is a tensor of torch."""
    torch = torch_here()
    return torch is not None and issubclass(type(value), torch.Tensor)


def copied_tensors(values: Iterable[Any]) -> list[Any]:
    """Return copies of tensors; those that share a storage have copies that do."""
    torch: Any = torch_here()
    storages: dict[int, Any] = {}
    made = []
    for value in values:
        storage = value.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        place = storages[storage._cdata]
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(place, value.storage_offset(), value.shape, value.stride())
        copy.requires_grad_(value.requires_grad)
        made.append(torch.nn.Parameter(copy, value.requires_grad) if isinstance(value, torch.nn.Parameter) else copy)
    return made
