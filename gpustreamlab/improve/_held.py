"""What variables hold, value by value, to compare runs; and copies for each run of what functions, classes and modules keep."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.arrays import MOST_ITEMS, attributes_of, is_array, items_of, slotted
from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.programs._calls import is_user_function, root_of, root_of_type
from gpustreamlab.programs._check import _on_host, _same
from gpustreamlab.programs._source import names_of_code
from gpustreamlab.programs._values import closed_over, is_of_session, is_plain, remade

CODE = (types.ModuleType, types.BuiltinFunctionType, type)
_SEQUENCES = (list, tuple, deque, set, frozenset)
_PARTS = ("__defaults__", "__kwdefaults__", "__dict__")


class Unseen(NamedTuple):
    """Stands for a value that cannot be looked into."""

    kind: str  # What it is


def leaves(variable: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a variable leads to, with how to get there: arrays as the host's, plain values, and what containers have.

    Objects of the user's are followed by their attributes, others by what copies are made of.
    """
    waiting: list[tuple[str, Any, tuple[int, ...]]] = [(variable, value, ())]
    for _ in range(MOST_ITEMS):
        if not waiting:
            return
        name, one, path = waiting.pop()
        if id(one) in path:
            yield name, f"what is {len(path) - path.index(id(one))} above it"
        elif is_array(one):
            yield name, _on_host(one)
        elif is_plain(one):
            yield name, one
        elif issubclass(type(one), CODE) or is_of_session(one):
            yield name, getattr(one, "__qualname__", type(one).__qualname__)
        else:
            told, parts = _inside(one)
            yield name, told
            waiting += [(f"{name}{key}", part, (*path, id(one))) for key, part in reversed(parts)]
    yield variable, Unseen(f"more than {MOST_ITEMS:,} values")


def same(first: object, second: object) -> bool:
    """Tell whether what two runs hold in one place is equal, bit for bit."""
    if isinstance(first, np.ndarray):
        return _same(first, second)
    return type(first) is type(second) and repr(first) == repr(second)


def _inside(value: Any) -> tuple[object, list[tuple[str, Any]]]:
    """Return what a value is besides what it leads to, and that, with how to get there."""
    kind = type(value)
    if kind is types.FunctionType:
        return kind.__qualname__, [(f".{key}", part) for key, part in _kept_by(value)]
    if kind is types.MethodType:
        return kind.__qualname__, [(".__self__", value.__self__), (".__func__", value.__func__)]
    if kind in (set, frozenset):
        is_told = all(map(is_plain, value))
        return [kind.__qualname__, *sorted(map(repr, value))] if is_told else Unseen(f"a {kind.__qualname__} of objects"), []
    if kind is dict or kind in _SEQUENCES:
        items = items_of(value)
        keys = [repr(key) if is_plain(key) else "an object" for key, _ in items]
        inner = [(f".key({place})", key) for place, (key, _) in enumerate(items) if not is_plain(key)]
        told = [kind.__qualname__, *keys] if kind is dict else [kind.__qualname__, len(items)]
        return told, [*inner, *((f"[{key}]", part) for key, (_, part) in zip(keys, items, strict=True))]
    if not root_of_type(kind):
        parts = [*(attributes_of(value) or {}).items(), *((key, part) for key, part, _ in slotted(value))]
        return [kind.__qualname__, *(key for key, _ in parts)], [
            *((f".{key}", part) for key, part in parts),
            *((f"[{key!r:.40}]", part) for key, part in items_of(value)),
        ]
    return _inside_library(value)


def _inside_library(value: Any) -> tuple[object, list[tuple[str, Any]]]:
    """Return what an object of a library is copied by: how it is made, and its state."""
    kind = type(value)
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - any class may refuse, each in its own way
        return Unseen(f"a {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")), []
    if isinstance(made, str):
        return made, []
    parts = [part if place < 2 or part is None else [*part] for place, part in enumerate(made[1:5])]  # the others are iterators
    words = (".made_of", ".state", ".items", ".keys")
    return f"{kind.__module__}.{kind.__qualname__}", [*zip(words, parts, strict=False)]


def _kept_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function keeps from call to call."""
    if is_user_function(function):
        yield from ((one.key, one.value) for one in closed_over(function))
        yield from enumerate(function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
        yield from function.__dict__.items()


# What runs must not share


class Space(NamedTuple):
    """The variables of a module, or of a class, of the user's: those in which a program may put something."""

    name: str
    held: Mapping[str, Any]
    put: Callable[[str, Any], object]
    drop: Callable[[str], object]
    names: frozenset[str]

    def values(self) -> dict[str, Any]:
        """Return what they hold, as far as they are there."""
        return {name: self.held[name] for name in sorted(self.names) if name in self.held}


def spaces_of(values: Iterable[Any], stored: frozenset[str]) -> list[Space]:
    """Return the modules and classes of the user's among values, and of functions and objects; with what a program sets."""
    found = dict[int, Space]()
    for one in values:
        if is_user_function(one):
            known, names = one.__globals__, names_of_code(one.__code__)
            names |= found[id(known)].names if id(known) in found else frozenset()
            found[id(known)] = Space(str(known.get("__name__")), known, known.__setitem__, known.__delitem__, names)
        elif isinstance(one, types.ModuleType) and not root_of(one.__name__, getattr(one, "__file__", None) or ""):
            known, names = vars(one), _data_of(vars(one)) | stored
            names |= found[id(known)].names if id(known) in found else frozenset()
            found[id(known)] = Space(one.__name__, known, known.__setitem__, known.__delitem__, names)
        for kind in (one if isinstance(one, type) else type(one)).__mro__:
            if id(kind) not in found and not root_of_type(kind) and not isinstance(kind, enum.EnumMeta):
                put, drop = partial(type.__setattr__, kind), partial(type.__delattr__, kind)
                names = _data_of(vars(kind)) | stored - {*vars(kind)}
                found[id(kind)] = Space(kind.__qualname__, vars(kind), put, drop, names)
    return [one for one in found.values() if one.names]


def _data_of(held: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in held.items() if _is_data(name, value))


def _is_data(name: str, value: object) -> bool:
    """Tell whether a variable of a class or module is neither code nor what Python keeps there."""
    is_data = is_plain(value) or is_array(value) or type(value) in (dict, *_SEQUENCES) or not root_of_type(type(value))
    return is_data and not (
        name.startswith("__") or isinstance(value, (type, types.FunctionType)) or hasattr(type(value), "__get__")
    )


@contextmanager
def other_values(spaces: Sequence[tuple[Space, Mapping[str, Any]]]) -> Iterator[None]:
    """Give variables of modules and classes other values in a ``with`` block; behind it all hold what they held."""
    before = [(space, space.values()) for space, _ in spaces]
    try:
        with delayed_interrupts():
            for space, new in spaces:
                _put(space, {name: value for name, value in new.items() if space.held[name] is not value})
        yield
    finally:
        with delayed_interrupts():
            for space, old in before:
                now = space.values()
                _put(space, {name: value for name, value in old.items() if name not in now or now[name] is not value})
                for name in now.keys() - old.keys():
                    space.drop(name)


def _put(space: Space, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        space.put(name, value)


class Functions:
    """Copies of functions of the user's that keep something from call to call, to stand in the copies of all else."""

    def __init__(self, values: Iterable[Any]) -> None:
        found = {id(one): one for one in values if is_user_function(one)}
        kept = [one for one in found.values() if not all(is_plain(part) for _, part in _kept_by(one))]
        closures = [pair for one in kept for pair in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)]
        names = {id(cell): name for name, cell in closures}
        self._cells = {id(cell): (cell, types.CellType()) for _, cell in closures}
        self._pairs = [(one, remade(one, closure=self._with_cells(one))) for one in kept]
        self.copies: dict[int, Any] = {id(one): made for one, made in self._pairs}
        """Copies, by the identities of what they are of."""
        self.kept: dict[str, Any] = {
            f"{names[key]} in cell {key}": cell.cell_contents for key, (cell, _) in self._cells.items() if _is_bound(cell)
        }
        """What they keep, to be copied with all else."""
        for number, one in enumerate(kept):
            self.kept |= {f"{part} in {number}": getattr(one, part) for part in _PARTS}

    def _with_cells(self, function: types.FunctionType) -> tuple[types.CellType, ...]:
        return tuple(self._cells[id(cell)][1] for cell in function.__closure__ or ())

    def fill(self, copies: Mapping[str, Any]) -> None:
        """Let the copies keep copies of that."""
        for name in self.kept:
            part, _, place = name.partition(" in ")
            if place.startswith("cell "):
                self._cells[int(place[5:])][1].cell_contents = copies[name]
            elif part == "__dict__":
                self._pairs[int(place)][1].__dict__.update(copies[name])
            else:
                setattr(self._pairs[int(place)][1], part, copies[name])


def _is_bound(cell: types.CellType) -> bool:
    return cell != types.CellType()
