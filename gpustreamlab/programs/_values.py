"""What a program's variables lead to: what a plan depends on, arrays put in place of others, and copies of inputs."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import functools
import inspect
import itertools
import pathlib
import random
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustreamlab._util.arrays import (
    MOST_ITEMS,
    attributes_of,
    cached_by_type,
    find_arrays,
    find_owner,
    is_array,
    is_own,
    items_of,
    names_of_type,
    slotted,
)
from gpustreamlab.programs._calls import copied_tensors, globals_of, is_tensor, is_user_function, root_of, root_of_type
from gpustreamlab.programs._source import Source, names_of_code

if TYPE_CHECKING:
    from gpustreamlab.programs._code import Statements

_PLAIN: tuple[type, ...] = (int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic, np.dtype)
_PLAIN += (pathlib.PurePath, dt.date, dt.time, dt.timedelta, decimal.Decimal)
_VALUED = (int, float, complex, str, bytes)
_WRAPPERS = (functools.partial, staticmethod, classmethod, property)
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_FOLLOWED = (types.FunctionType, types.MethodType, types.ModuleType, type)
_NOT_COPIED = (types.ModuleType, types.BuiltinFunctionType, type)
_WRAPPED = ("func", "args", "keywords", "__func__", "fget", "fset")
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__slots__"})
_GIVES_OTHERS = frozenset({"__next__", "read", "recv", "get_nowait", "execute"})
"""Methods of what gives another value each time: iterators, files, queues, data bases."""
_RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)  # noqa: S311 - it makes none
_MEMORY = frozenset({"ctypes", "_ctypes", "array", "mmap", "pandas", "polars", "pyarrow"})
"""Libraries whose objects hold values that nobody sees from outside."""
_CONSTANT = frozenset({"_thread", "re", "operator", "weakref", "_abc", "typing", "types", "enum", "inspect", "_struct"})
"""Modules of the standard library whose objects have nothing in them that a program may go by."""
_CONSTANT_TYPES: tuple[type, ...] = (object, type(NotImplemented), types.CodeType, types.BuiltinFunctionType, types.CellType)
_CONSTANT_TYPES += (
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.UnionType,
    types.GenericAlias,
)
_CONSTANT_TYPES += (types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)


# Facts of types, see `gpustreamlab._util.arrays`: the objects themselves are not asked.


@cached_by_type
def _is_plain_type(kind: type) -> bool:
    return kind in _PLAIN or (issubclass(kind, _PLAIN) and root_of_type(kind) != "")


@cached_by_type
def _is_random_type(kind: type) -> bool:
    return issubclass(kind, _RANDOM) or kind.__name__ in ("Generator", "RandomState", "SimGenerator")


@cached_by_type
def _is_opaque_type(kind: type) -> bool:
    """Tell whether nobody sees into objects of a type, of Python's own, in which something may change."""
    root = root_of_type(kind)
    is_known = kind in _CONSTANT_TYPES or root in _CONSTANT or issubclass(kind, (*_CONTAINERS, *_WRAPPERS, *_FOLLOWED))
    has_attributes = kind.__dictoffset__ != 0 or "__slots__" in names_of_type(kind)
    return (
        root in _MEMORY
        or issubclass(kind, threading.local)
        or (root in sys.stdlib_module_names | {"builtins"} and not is_known and not has_attributes)
    )


@cached_by_type
def _gives_others_type(kind: type) -> bool:
    is_of_library = root_of_type(kind) != ""  # of an object of the user's the attributes are looked at
    return _is_random_type(kind) or (is_of_library and bool(_GIVES_OTHERS & names_of_type(kind))) or _is_opaque_type(kind)


def is_plain(value: object) -> bool:
    """Tell whether a value is a number, a text and the like, or a tuple of these: it leads to no array."""
    return _is_plain_type(type(value)) or (type(value) is tuple and all(map(is_plain, value)))


def is_random(value: object) -> bool:
    """Tell whether a value is a generator of random numbers: Python's, NumPy's, torch's or the array module's."""
    return _is_random_type(type(value))


def gives_others(value: object) -> bool:
    """Tell whether a value may give another one each time that it is asked, by what nobody sees."""
    return _gives_others_type(type(value))


# What variables lead to

MORE = "more than are followed"  # The key of a place that stands for all behind the last that is looked at


class Slot(NamedTuple):
    """A place that holds a value, and that another one can be put into."""

    key: Any  # Its index, key or name
    value: Any  # What it holds
    owner: Any = None  # What has it
    put: Callable[[Any, Any, Any], object] | None = None
    """Called with owner, key and another value puts that there; None where that cannot be done."""


def reach(values: dict[str, Any], names: Iterable[str], looked_up: frozenset[str]) -> Iterator[tuple[str, Slot]]:
    """Yield all places that variables lead to: containers, objects, and the user's functions, classes and modules.

    Each comes with what it belongs to: its variable, or a function, class or module, which others may share.
    """
    seen = dict[int, object]()
    modules: list[tuple[str, types.ModuleType, set[str]]] = []
    known = sorted((name for name in names if name in values), reverse=True)
    waiting = [(name, root_slot(values, name)) for name in known]
    while waiting and len(seen) < MOST_ITEMS:
        label, slot = waiting.pop()
        yield label, slot
        value = slot.value
        if id(value) not in seen and not (is_array(value) or _is_plain_type(type(value))):
            seen[id(value)] = value  # kept, so that no other object gets its number
            looked_up |= names_of_code(value.__code__) if type(value) is types.FunctionType else frozenset()
            label = _shared_label(value) or label
            if issubclass(type(value), types.ModuleType):
                modules.append((label, value, set()))
            waiting += [(label, one) for one in _slots_within(value)][::-1]
        if not waiting:  # modules come last, when all that is looked up is known
            waiting = [(label, one) for label, module, done in modules for one in _new_slots(module, looked_up, done)]
    if waiting:
        yield "values", Slot(MORE, object())


def root_slot(values: dict[str, Any], name: str) -> Slot:
    """Return the place of a variable."""
    return values.slot(name) if type(values) is FunctionNames else Slot(name, values[name], values, dict.__setitem__)


def required_names(function: types.FunctionType) -> tuple[str, ...]:
    """Return a function's parameters that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.default is one.empty)


class FunctionNames(dict[str, Any]):
    """The variables of a function that runs as a program: its own, then those of its closure and its module as they are now.

    What neither knows comes from the caller. As a dictionary it holds all of them as they were when it was made.
    """

    def __init__(self, function: types.FunctionType, look_up: Callable[[], dict[str, Any]]) -> None:
        given, module, closed = look_up(), function.__globals__, closed_over(function)
        own = {one.name: one.default for one in inspect.signature(function).parameters.values()}
        own |= {name: given[name] for name in own if name in given}
        own = {name: value for name, value in own.items() if value is not inspect.Parameter.empty}
        self._own = {*own}
        self._elsewhere = dict.fromkeys(module, (module, dict.__setitem__)) | {one.key: one[2:] for one in closed}
        super().__init__({**given, **module, **{one.key: one.value for one in closed}, **own})

    def __getitem__(self, name: str) -> Any:
        return self.slot(name).value

    def slot(self, name: str) -> Slot:
        """Return the place of a variable, with what it holds now."""
        if name in self._own or name not in self._elsewhere:
            return Slot(name, super().__getitem__(name), self, dict.__setitem__)
        owner, put = self._elsewhere[name]
        return Slot(name, owner.cell_contents if type(owner) is types.CellType else owner[name], owner, put)

    def __setitem__(self, name: str, value: object) -> None:
        self._own.add(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._own.discard(name)
        super().__delitem__(name)


def closed_over(function: types.FunctionType) -> list[Slot]:
    """Return the variables of outer functions that a function uses, as far as they are bound."""
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not bound yet
            found.append(Slot(name, cell.cell_contents, cell, _put_cell))
    return found


def _shared_label(value: Any) -> str:
    """Return what a module, and a function or class of the user's, is called; an empty text for all else."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        return f"module {(attributes_of(value) or {}).get('__name__')}"
    if kind is types.FunctionType:
        return f"function {value.__qualname__}" if is_user_function(value) else ""
    return f"class {value.__qualname__}" if issubclass(kind, type) and not root_of_type(value) else ""


def _new_slots(module: types.ModuleType, looked_up: frozenset[str], done: set[str]) -> list[Slot]:
    """Return what is looked up in a module; in a library's only plain values and containers, which are its state."""
    held = attributes_of(module) or {}
    new = [name for name in sorted(looked_up - done) if name in held]
    done.update(new)
    if root_of(held.get("__name__"), held.get("__file__") or ""):
        new = [name for name in new if is_plain(held[name]) or issubclass(type(held[name]), (list, dict, MutableMapping))]
    return [Slot(name, held[name], held, dict.__setitem__) for name in new]


def _slots_within(value: Any) -> list[Slot]:
    kind = type(value)
    if kind is types.FunctionType:
        return _slots_of_function(value)
    if issubclass(kind, type):
        return _slots_of_class(value)
    if kind is types.MethodType:
        return [Slot("__self__", value.__self__), Slot("__func__", value.__func__)]
    if issubclass(kind, types.ModuleType):
        return []  # see `_new_slots`
    if kind in _WRAPPERS:
        return [Slot(name, getattr(value, name)) for name in _WRAPPED if hasattr(value, name)]
    put = next((base.__setitem__ for base in (list, dict, deque) if issubclass(kind, base)), None)
    found = [Slot(key, one, value, put) for key, one in items_of(value)]
    if is_own(value):
        return found
    if root_of_type(kind) == "":
        found.append(Slot("class", kind))
    held = attributes_of(value)
    found += [Slot(name, one, held, dict.__setitem__) for name, one in (held or {}).items()]
    return found + [Slot(name, one, value, _put_slot(descriptor)) for name, one, descriptor in slotted(value)]


def _put_slot(descriptor: Any) -> Callable[[Any, Any, Any], object]:
    return lambda owner, _name, value: descriptor.__set__(owner, value)


def _slots_of_function(function: types.FunctionType) -> list[Slot]:
    known = function.__globals__
    found = [Slot("__defaults__", function.__defaults__, function, setattr), Slot("__kwdefaults__", function.__kwdefaults__)]
    found.append(Slot("__dict__", attributes_of(function)))
    found += closed_over(function)
    if is_user_function(function):
        names = sorted(names_of_code(function.__code__) & known.keys())
        found += [Slot(name, known[name], known, dict.__setitem__) for name in names]
    return found


def _put_cell(cell: types.CellType, _name: str, value: object) -> None:
    cell.cell_contents = value


def _slots_of_class(kind: type) -> list[Slot]:
    if root_of_type(kind):
        return []
    own = [Slot(name, one, kind, type.__setattr__) for name, one in vars(kind).items() if name not in _OF_CLASSES]
    return [Slot("bases", kind.__bases__), *own]


def replace_values(
    values: dict[str, Any], names: Iterable[str], looked_up: frozenset[str], change: Callable[[Any], Any]
) -> None:
    """Put other values in place of some that variables lead to, wherever they are."""
    for _, (key, value, owner, put) in reach(values, names, looked_up):
        if put is not None and (made := change(value)) is not value:
            put(owner, key, made)


# What a plan depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a plan depends on: types, shapes and plain values, and which arrays share memory."""

    parts: Mapping[str, tuple[object, ...]]
    """What a variable leads to, by its name, and what a function, class or module does, by kind and name."""
    unknown: Mapping[str, str]  # What leads to what gives another value each time, an iterator or a file, and what that is
    views: Sequence[tuple[Callable[[Any], tuple[int, ...]], Callable[[], Any], tuple[int, ...]]] | None
    """How to look again at all that was looked into, and the identities of what it held; None where that includes modules.

    Nothing is kept alive that can be referred to weakly.
    """
    dicts: Sequence[dict[Any, Any]]
    """The dictionaries among it, those of objects as well, which are many: they are looked at in one go."""
    held: tuple[tuple[int, ...], tuple[int, ...]]  # The identities of their keys and values

    def changed(self, other: Signature) -> list[str]:
        """Return which parts of it are others in another one."""
        return sorted(name for name in {*self.parts, *other.parts} if self.parts.get(name) != other.parts.get(name))

    def is_untouched(self) -> bool:
        """Tell whether all that it saw still holds the very same objects: then it need not be made again."""
        if self.views is None or _held_by(self.dicts) != self.held:
            return False
        now = ((look, find(), seen) for look, find, seen in self.views)
        return all(value is not None and look(value) == seen for look, value, seen in now)


def signature(values: dict[str, Any], names: Iterable[str] | None = None, looked_up: frozenset[str] = frozenset()) -> Signature:
    """Return what a plan depends on; see `reach`.

    Examples
    --------
    >>> import numpy as np
    >>> first = signature({"x": np.zeros(3), "n": 2})
    >>> first.changed(signature({"x": np.ones(3), "n": 2})), first.changed(signature({"x": np.zeros(4), "n": 3}))
    ([], ['n', 'x'])
    """
    owners: dict[int, tuple[str, int, int]] = {}
    numbers: dict[int, tuple[str, int]] = {}  # within what it belongs to: what comes in elsewhere changes none of them
    views: list[tuple[Callable[[Any], tuple[int, ...]], Callable[[], Any], tuple[int, ...]]] = []
    parts: dict[str, list[object]] = {}
    dicts: list[dict[Any, Any]] = []
    unknown: dict[str, str] = {}
    is_of_modules = False
    for label, (key, value, _, _) in reach(values, values if names is None else names, looked_up):
        kind = type(value)
        is_of_modules |= label.startswith("module ")
        if _is_plain_type(kind):
            sign: object = kind, value if kind in (int, str, bytes, bool) else repr(value)
        elif id(value) in numbers:
            sign = numbers[id(value)]
        else:
            numbers[id(value)] = number = label, len(parts.get(label, ()))
            if kind is dict or (kind is OrderedDict and len(value) < 2):  # a longer one has an order of its own
                dicts.append(value)
            elif not issubclass(kind, types.ModuleType):
                view = _viewer(value)
                if view is _view_object:
                    dicts.append(object.__getattribute__(value, "__dict__"))
                find = weakref.ref(value) if can_be_weak(value) else functools.partial(_itself, value)
                views.append((view, find, view(value)))
            sign = kind, number, _sign_array(value, owners, number) if is_array(value) else _inside(value)
            if gives_others(value):
                unknown[label] = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        parts.setdefault(label, []).append((key, sign))
    signed = {label: tuple(found) for label, found in parts.items()}
    return Signature(parts=signed, unknown=unknown, views=None if is_of_modules else views, dicts=dicts, held=_held_by(dicts))


def _held_by(dicts: Sequence[dict[Any, Any]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    keys = itertools.chain.from_iterable(map(dict.__iter__, dicts))
    return tuple(map(id, keys)), tuple(map(id, itertools.chain.from_iterable(map(dict.values, dicts))))


def can_be_weak(value: object) -> bool:
    """Tell whether a value can be referred to without being kept alive."""
    return type(value).__weakrefoffset__ != 0


def _itself(value: Any) -> Any:
    return value


def _viewer(value: Any) -> Callable[[Any], tuple[int, ...]]:
    """Return what gives the identities of what such a value holds, in little time; of an array its address."""
    kind = type(value)
    if is_array(value):
        return _view_array
    is_plain_object = attributes_of(value) is not None and "__slots__" not in names_of_type(kind)
    if kind is not types.FunctionType and is_plain_object and not issubclass(kind, _CONTAINERS):
        return _view_object
    return _view_slots


def _view_array(array: Any) -> tuple[int, ...]:
    return (_address_of(array),)


def _view_object(value: Any) -> tuple[int, ...]:
    return (id(object.__getattribute__(value, "__dict__")),)  # what it holds: see `_held_by`


def _view_slots(value: Any) -> tuple[int, ...]:
    return tuple(id(slot.value) for slot in _slots_within(value))


def _inside(value: Any) -> object:
    """Return what stands for a value that is no array; what it leads to stands behind it."""
    kind = type(value)
    if kind is types.FunctionType:
        return value.__code__
    if issubclass(kind, _CONTAINERS):
        return len(items_of(value))
    base: Any = next((one for one in _VALUED if issubclass(kind, one)), None)  # of a class of the user's, else it is plain
    if base is not None:
        return base.__getnewargs__(value)
    has_attributes = attributes_of(value) is not None or "__slots__" in names_of_type(kind) or kind in _WRAPPERS
    return None if has_attributes and not issubclass(kind, (types.ModuleType, type)) and not is_own(value) else id(value)


def _sign_array(array: Any, owners: dict[int, tuple[str, int, int]], number: tuple[str, int]) -> object:
    address = _address_of(array)
    *place, first = owners.setdefault(find_owner(array).key, (*number, address))
    strides = array.strides if "strides" in names_of_type(type(array)) else tuple(array.stride())
    return tuple(array.shape), str(array.dtype), tuple(strides), *place, address - first


def _address_of(array: Any) -> int:
    """Return where an array begins; on the simulated device where its values do."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if not isinstance(array, np.ndarray) and hasattr(array, "sim_values"):
        array = array.sim_values
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr)


# Copies


def copied(
    values: Mapping[str, object],
    duplicate: Callable[[Sequence[Any]], Sequence[Any]],
    instead: Mapping[int, Any] = types.MappingProxyType({}),
) -> tuple[dict[str, object], list[str]]:
    """Return copies of variables; arrays that share memory have copies that do. And the names of what cannot be copied.

    Of some objects, by their identities, others stand in the copies.
    """
    arrays = list({id(array): array for value in values.values() for array in find_arrays(value)}.values())
    memo: dict[int, Any] = {id(array): made for array, made in zip(arrays, duplicate(arrays), strict=True) if made is not None}
    memo |= instead
    tensors = [array for array in arrays if is_tensor(array) and id(array) not in memo]
    memo |= {id(tensor): made for tensor, made in zip(tensors, copied_tensors(tensors), strict=True)}
    made: dict[str, object] = {}
    shared = []
    for name, value in values.items():
        if isinstance(value, _NOT_COPIED):
            made[name] = value
            continue
        try:
            made[name] = _copied_function(value, memo) if isinstance(value, types.FunctionType) else copy.deepcopy(value, memo)
        except Exception:  # noqa: BLE001 - any class may refuse, each in its own way
            made[name] = value
            if gives_others(value) or not root_of_type(type(value)):  # else a stream, a lock: it is what it is
                shared.append(name)
    return made, shared


def _copied_function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return a function with copies of the arrays that it closes over or has as defaults; itself where it has none."""
    if id(function) in memo:
        return memo[id(function)]  # type: ignore[no-any-return]
    if next(find_arrays(function), None) is None:
        return function
    cells = tuple(types.CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    return remade(
        function,
        closure=cells,
        defaults=copy.deepcopy(function.__defaults__, memo),
        kwdefaults=copy.deepcopy(function.__kwdefaults__, memo),
    )


def remade(function: types.FunctionType, names: dict[str, Any] | None = None, **others: Any) -> types.FunctionType:
    """Return a function that does what another one does, with other globals, defaults or variables that it closes over."""
    given = {name: others.get(name, getattr(function, f"__{name}__")) for name in ("defaults", "kwdefaults", "closure")}
    known = function.__globals__ if names is None else names
    made = types.FunctionType(function.__code__, known, function.__name__, given["defaults"], given["closure"])
    made.__kwdefaults__, made.__module__, made.__qualname__ = given["kwdefaults"], function.__module__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return made


def needed_names(source: Source, values: Mapping[str, object]) -> frozenset[str]:
    """Return the variables that a program looks up before it binds them, those of its functions too."""
    found = {name for name in source.inputs if name in values}
    for name in tuple(found):
        value = values[name]
        if type(value) is types.FunctionType:
            known = value.__globals__
            found |= {inner for inner in globals_of(value, known) if inner in values and known[inner] is values[inner]}
    return frozenset(found)


def copied_inputs(program: Statements) -> tuple[dict[str, Any], list[str]]:
    """Return variables to run a program on, with copies of all that it may change; and the names of what cannot be copied."""
    source, values = program.source, program.values
    names = needed_names(source, values)
    kept = {name: values[name] for name in names if not is_of_session(values[name])}
    made, shared = copied(kept, program.backend.duplicate)
    copies: dict[str, Any] = {**values, **made}
    for name, value in made.items():
        if type(value) is types.FunctionType:
            copies[name] = _on_copies(value, values, copies)
    return copies, shared


def rebound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables in a dictionary of their own; functions that look up variables of these look there."""
    made = dict(values)
    for name, value in values.items():
        if type(value) is types.FunctionType and value.__globals__ is values:
            made[name] = _on_copies(value, values, made)
    return made


def _on_copies(function: types.FunctionType, values: Mapping[str, object], copies: dict[str, Any]) -> types.FunctionType:
    """Return a function that looks up copies where it looks up variables of the program."""
    known = function.__globals__
    shared = {name for name in globals_of(function, known) if name in copies and known[name] is values.get(name)}
    if not shared or not is_user_function(function):
        return function
    # What the program binds anew is seen by functions of its own namespace only.
    names = copies if known is values else {**known, **{name: copies[name] for name in shared}}
    return remade(function, names)


def is_of_session(value: object) -> bool:
    return is_own(value) and not is_array(value) and not is_random(value)
