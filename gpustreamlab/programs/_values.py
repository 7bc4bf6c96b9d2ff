"""What a program's variables lead to: what a plan depends on, arrays put in place of others, and copies of inputs."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import functools
import pathlib
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.arrays import MOST_ITEMS, find_arrays, is_array, is_own, slots_of
from gpustreamlab._util.ownership import find_owner
from gpustreamlab.programs._calls import is_of_user, root_of, root_of_type
from gpustreamlab.programs._source import names_of_code
from gpustreamlab.programs._torch import copied_tensors, is_tensor

_KEPT = (types.ModuleType, types.BuiltinFunctionType, type)
_PLAIN = (int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic, np.dtype, pathlib.PurePath)
_DATED = (dt.date, dt.time, dt.timedelta, decimal.Decimal)
_WRAPPED = ("func", "args", "keywords", "__func__", "fget", "fset")
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__slots__"})
_GIVES_OTHERS = ("__next__", "read", "recv", "get_nowait", "execute")
"""Methods of what gives another value each time: iterators, files, queues, data bases."""
_RANDOM = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)  # noqa: S311 - it makes none


def is_plain(value: object) -> bool:
    """Tell whether a value is a number, a text and the like, or a tuple of these: it leads to no array."""
    return isinstance(value, (*_PLAIN, *_DATED)) or (type(value) is tuple and all(map(is_plain, value)))


def is_random(value: object) -> bool:
    """Tell whether a value is a generator of random numbers: Python's, NumPy's, torch's or the array module's."""
    return isinstance(value, _RANDOM) or type(value).__name__ in ("Generator", "RandomState", "SimGenerator")


# What variables lead to


class Slot(NamedTuple):
    """A place that holds a value, and that another one can be put into."""

    key: object
    """Its index, key or name."""
    value: object
    """What it holds."""
    put: Callable[[Any], object] | None = None
    """Puts another value there; None where that cannot be done."""


def reach(values: dict[str, Any], names: Iterable[str], looked_up: frozenset[str]) -> Iterator[tuple[str, Slot]]:
    """Yield all places that variables lead to: containers, objects, and the user's functions, classes and modules.

    Each comes with what it belongs to: its variable, or a function, class or module of the user's, which others may share.

    Parameters
    ----------
    values, names
        Variables, and which of them are followed.
    looked_up
        Names that the program looks up: of a module only these count, and what functions look up.
    """
    seen = dict[int, object]()
    modules: list[tuple[str, types.ModuleType, set[str]]] = []
    waiting = [(name, _item(values, name)) for name in sorted(names, reverse=True) if name in values]
    while waiting:
        label, slot = waiting.pop()
        yield label, slot
        value = slot.value
        if not (is_plain(value) or is_array(value) or id(value) in seen):
            seen[id(value)] = value  # kept, so that no other object gets its number
            if isinstance(value, types.FunctionType):
                looked_up |= names_of_code(value.__code__)
            label = _shared_label(value) or label
            if isinstance(value, types.ModuleType):
                modules.append((label, value, set()))
            else:
                waiting += [(label, one) for one in _slots_within(value)][::-1]
        if not waiting:  # modules come last, when all that is looked up is known
            waiting = [(label, one) for label, module, done in modules for one in _new_slots(module, looked_up, done)]
        if len(seen) >= MOST_ITEMS:
            yield label, Slot("more than is followed", object())
            return


def _shared_label(value: object) -> str:
    """Return what a function, class or module of the user's is called; an empty text for all else."""
    match value:
        case types.FunctionType() if is_of_user(value):
            return f"function {value.__qualname__}"
        case type() if not root_of_type(value):
            return f"class {value.__qualname__}"
        case types.ModuleType() if not root_of(value.__name__, getattr(value, "__file__", None) or ""):
            return f"module {value.__name__}"
    return ""


def _new_slots(module: types.ModuleType, looked_up: frozenset[str], done: set[str]) -> list[Slot]:
    if not _shared_label(module):
        return []
    new = sorted((looked_up & vars(module).keys()) - done)
    done.update(new)
    return [_item(vars(module), name) for name in new]


def _slots_within(value: Any) -> list[Slot]:
    match value:
        case list() | deque():
            return [Slot(place, one, functools.partial(value.__setitem__, place)) for place, one in enumerate(list(value))]
        case tuple() | set() | frozenset():
            return [Slot(place, one) for place, one in enumerate(value)]
        case Mapping():
            return [_item(value, key) for key in list(value)]
        case types.FunctionType():
            return _slots_of_function(value)
        case types.MethodType():
            return [Slot("__self__", value.__self__), Slot("__func__", value.__func__)]
        case type():
            found = vars(value).items() if _shared_label(value) else ()
            put = functools.partial(functools.partial, setattr, value)
            return [
                Slot("bases", value.__bases__),
                *(Slot(name, one, put(name)) for name, one in found if name not in _OF_CLASSES),
            ]
        case functools.partial() | staticmethod() | classmethod() | property():
            return [Slot(name, getattr(value, name)) for name in _WRAPPED if hasattr(value, name)]
    return [] if is_own(value) else _slots_of_instance(value)


def _item(container: Any, key: Any) -> Slot:
    put = functools.partial(container.__setitem__, key) if isinstance(container, MutableMapping) else None
    return Slot(key, container[key], put)


def _slots_of_function(function: types.FunctionType) -> list[Slot]:
    known = function.__globals__
    found = [Slot("__defaults__", function.__defaults__, functools.partial(setattr, function, "__defaults__"))]
    found += [Slot("__kwdefaults__", function.__kwdefaults__), Slot("__dict__", vars(function))]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not bound yet
            found.append(Slot(name, cell.cell_contents, functools.partial(setattr, cell, "cell_contents")))
    if is_of_user(function):
        found += [_item(known, name) for name in sorted(names_of_code(function.__code__) & known.keys())]
    return found


def _slots_of_instance(value: object) -> list[Slot]:
    kind = type(value)
    held = getattr(value, "__dict__", None)
    found = [Slot("class", kind)] if _shared_label(kind) else []
    found += [_item(held, name) for name in list(held)] if isinstance(held, dict) else []
    slots = [name for one in kind.__mro__ for name in slots_of(one) if hasattr(value, name) and name not in _OF_CLASSES]
    return found + [Slot(name, getattr(value, name), functools.partial(setattr, value, name)) for name in slots]


def replace_values(
    values: dict[str, Any], names: Iterable[str], looked_up: frozenset[str], change: Callable[[Any], Any]
) -> None:
    """Put other values in place of some that variables lead to, wherever they are.

    Parameters
    ----------
    values, names, looked_up
        See `reach`.
    change
        Returns what is to stand in place of a value; the value itself for what stays.
    """
    for _, slot in reach(values, names, looked_up):
        if slot.put is not None and (made := change(slot.value)) is not slot.value:
            slot.put(made)


# What a plan depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a plan depends on: types, shapes and plain values, and which arrays share memory."""

    parts: Mapping[str, tuple[object, ...]]
    """What a variable leads to, by its name, and what a function, class or module of the user's does, by kind and name."""
    unknown: Mapping[str, str]
    """Variables that lead to what gives another value each time, an iterator or a file, and what that is."""
    is_lasting: bool
    """Whether all of it stays as it is for as long as the variables hold the same objects."""

    def changed(self, other: Signature) -> list[str]:
        """Return which parts of it are others in another one."""
        return sorted(name for name in {*self.parts, *other.parts} if self.parts.get(name) != other.parts.get(name))


def signature(values: dict[str, Any], names: Iterable[str] | None = None, looked_up: frozenset[str] = frozenset()) -> Signature:
    """Return what a plan depends on; see `reach`.

    Examples
    --------
    >>> import numpy as np
    >>> first = signature({"x": np.zeros(3), "n": 2})
    >>> first.changed(signature({"x": np.ones(3), "n": 2})), first.changed(signature({"x": np.zeros(4), "n": 3}))
    ([], ['n', 'x'])
    """
    owners: dict[int, tuple[int, int]] = {}
    numbers: dict[int, int] = {}
    kept = list[object]()
    parts: dict[str, list[object]] = {}
    unknown: dict[str, str] = {}
    is_lasting = True
    for label, (key, value, _) in reach(values, values if names is None else names, looked_up):
        if is_plain(value):
            sign: object = type(value), value if value == value else "nan"
        elif is_array(value):
            sign = _sign_array(value, owners)
        else:
            kept.append(value)
            is_lasting &= isinstance(value, _KEPT) and not _shared_label(value)
            sign = type(value), numbers.setdefault(id(value), len(numbers)), _inside(value)
            if gives_others(value):
                unknown[label] = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        parts.setdefault(label, []).append((key, sign))
    return Signature(parts={label: tuple(found) for label, found in parts.items()}, unknown=unknown, is_lasting=is_lasting)


def gives_others(value: object) -> bool:
    """Tell whether a value gives another one each time that it is asked, and keeps what it will give to itself."""
    kind = type(value)  # of an object of the user's the attributes are looked at
    return is_random(value) or (root_of_type(kind) != "" and any(hasattr(kind, name) for name in _GIVES_OTHERS))


def _inside(value: object) -> object:
    """Return what stands for a value that is no array; what it leads to stands behind it."""
    if isinstance(value, types.FunctionType):
        return value.__code__
    if isinstance(value, (list, tuple, set, frozenset, deque, Mapping)):
        return len(value)
    is_known = isinstance(getattr(value, "__dict__", None), dict) or any(map(slots_of, type(value).__mro__))
    return None if is_known and not isinstance(value, _KEPT) and not is_own(value) else id(value)


def _sign_array(array: Any, owners: dict[int, tuple[int, int]]) -> object:
    address = _address_of(array)
    place, first = owners.setdefault(find_owner(array).key, (len(owners), address))
    strides = array.strides if hasattr(array, "strides") else tuple(array.stride())
    return type(array), tuple(array.shape), str(array.dtype), tuple(strides), place, address - first


def _address_of(array: Any) -> int:
    """Return where an array begins; on the simulated device where its values do."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if not isinstance(array, np.ndarray) and hasattr(array, "sim_values"):
        array = array.sim_values
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr)


# Copies


def copied(
    values: Mapping[str, object], duplicate: Callable[[Sequence[Any]], Sequence[Any]]
) -> tuple[dict[str, object], list[str]]:
    """Return copies of variables; arrays that share memory have copies that do. And the names of what cannot be copied.

    Parameters
    ----------
    values
        Variables.
    duplicate
        Copies arrays, see `gpustreamlab.backends.Backend.duplicate`.
    """
    arrays = list({id(array): array for value in values.values() for array in find_arrays(value)}.values())
    memo: dict[int, Any] = {id(array): made for array, made in zip(arrays, duplicate(arrays), strict=True) if made is not None}
    tensors = [array for array in arrays if is_tensor(array) and id(array) not in memo]
    memo |= {id(tensor): made for tensor, made in zip(tensors, copied_tensors(tensors), strict=True)}
    made: dict[str, object] = {}
    shared = []
    for name, value in values.items():
        if isinstance(value, _KEPT):
            made[name] = value
            continue
        try:
            made[name] = _copied_function(value, memo) if isinstance(value, types.FunctionType) else copy.deepcopy(value, memo)
        except Exception:  # noqa: BLE001 - any class may refuse, each in its own way
            made[name] = value
            shared.append(name)
    return made, shared


def _copied_function(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return a function with copies of the arrays that it closes over or has as defaults; itself where it has none."""
    if next(find_arrays(function), None) is None:
        return function
    cells = tuple(types.CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, copy.deepcopy(function.__defaults__, memo), cells
    )
    made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return made
