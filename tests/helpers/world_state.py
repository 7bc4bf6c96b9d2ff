"""What variables lead to, as plain values that can be compared: identities, and what iterators and closures hold, too."""

from __future__ import annotations

import collections
import functools
import io
import pickle
import queue
import random
import re
import sys
import types
import weakref
from typing import Any

import numpy as np

from gpustreamlab._util.arrays import find_owner

_PLAIN = (int, float, complex, str, bytes, bytearray, type(None), type(...), range, slice, np.generic, np.dtype, re.Pattern)
_ITERATORS = tuple(type(iter(one)) for one in ([], (), {}, {}.items(), range(0), "", set(), collections.deque(), reversed([])))
_LOCKS = tuple(map(type, (__import__("threading").Lock(), __import__("threading").RLock())))
_SKIPPED = frozenset({"__dict__", "__weakref__", "__builtins__", "__annotations_cache__"})


def state_of(values: dict[str, Any], leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return what variables hold; two equal states are equal in all that a program can see, identities included."""
    look = _Look()
    return {
        name: look.at(values[name]) for name in sorted(values.keys() - leave_out - {"__builtins__", "__spec__", "__loader__"})
    }


class _Look:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._kept: list[Any] = []

    def at(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, _PLAIN) and kind.__module__ in ("builtins", "numpy", "re"):
            return kind.__name__, repr(value)
        if kind.__module__.startswith("gpustreamlab."):
            return self.array(value) if kind.__name__ == "SimArray" else kind.__name__
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if id(value) in self._numbers:
            return "same as", self._numbers[id(value)]
        number = self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        return number, kind.__module__, kind.__qualname__, self.inside(value, kind)

    def array(self, value: Any) -> Any:
        plain = value.sim_values if hasattr(value, "sim_values") else value
        address = plain.__array_interface__["data"][0]
        if id(value) in self._numbers:
            return "same as", self._numbers[id(value)]
        number = self._numbers[id(value)] = len(self._numbers)
        owner = find_owner(value)
        self._kept += [value, owner]
        place, first = self._owners.setdefault(owner.key, (len(self._owners), address))
        held = [self.at(one) for one in plain.ravel()] if plain.dtype == object else plain.tobytes()
        return number, type(value).__name__, plain.shape, str(plain.dtype), plain.strides, place, address - first, held

    def inside(self, value: Any, kind: type) -> Any:
        for look in (self.containers, self.callables, self.iterators, self.others):
            found = look(value, kind)
            if found is not None:
                return found
        return self.attributes(value, kind)

    def containers(self, value: Any, kind: type) -> Any:
        if issubclass(kind, np.ndarray):
            return self.array(value)
        if issubclass(kind, (list, tuple, collections.deque)):
            base = next(one for one in (list, tuple, collections.deque) if issubclass(kind, one))
            return [self.at(one) for one in base.__iter__(value)], self.attributes(value, kind)
        if issubclass(kind, dict):
            base = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict
            items = [(self.at(key), self.at(held)) for key, held in base.items(value)]
            return items, self.attributes(value, kind), self.at(getattr(value, "default_factory", None))
        if kind is types.MappingProxyType:
            return [(self.at(key), self.at(held)) for key, held in value.items()]
        if issubclass(kind, (set, frozenset)):
            return [self.at(one) for one in sorted(value, key=repr)]
        return None

    def callables(self, value: Any, kind: type) -> Any:
        if kind is types.FunctionType:
            cells = [self.cell(one) for one in value.__closure__ or ()]
            named = value.__name__, value.__qualname__, value.__module__, value.__doc__
            held = value.__defaults__, value.__kwdefaults__, value.__dict__, value.__annotations__
            return named, _code(value.__code__), cells, [self.at(one) for one in held]
        if kind is types.MethodType:
            return self.at(value.__func__), self.at(value.__self__)
        if issubclass(kind, functools.partial):
            return [self.at(one) for one in (value.func, value.args, value.keywords)], self.attributes(value, kind)
        if issubclass(kind, type):
            held = {name: one for name, one in type.__dict__["__dict__"].__get__(value).items() if name not in _SKIPPED}
            is_own = value.__module__.startswith(("gpustreamlab", "builtins", "numpy", "pandas"))
            return value.__qualname__, {} if is_own else {name: self.at(one) for name, one in sorted(held.items())}
        if issubclass(kind, (staticmethod, classmethod)):
            return self.at(value.__func__)
        if kind is property:
            return [self.at(one) for one in (value.fget, value.fset, value.fdel)]
        if kind is functools._lru_cache_wrapper:
            return value.cache_info(), self.at(value.__wrapped__)
        if kind is types.BuiltinFunctionType:
            return value.__qualname__
        return None

    def cell(self, cell: Any) -> Any:
        try:
            return self.at(cell.cell_contents)
        except ValueError:
            return "empty"

    def iterators(self, value: Any, kind: type) -> Any:
        if kind is types.GeneratorType:
            frame = value.gi_frame
            return "over" if frame is None else (frame.f_lineno, [(n, self.at(v)) for n, v in sorted(frame.f_locals.items())])
        if issubclass(kind, io.StringIO):
            return "closed" if value.closed else (value.getvalue(), value.tell())
        if issubclass(kind, io.IOBase):
            return "closed" if value.closed else value.tell()
        if isinstance(value, _ITERATORS) or kind.__module__ == "itertools" or kind in (map, zip, filter, enumerate):
            return [self.at(one) for one in value.__reduce__()[1:]]
        return None

    def others(self, value: Any, kind: type) -> Any:
        if issubclass(kind, np.random.Generator):
            return repr(value.bit_generator.state)
        if issubclass(kind, np.random.RandomState):
            return pickle.dumps(value.get_state())
        if issubclass(kind, random.Random):
            return value.getstate()
        if kind in _LOCKS:
            return re.sub(" at .*", "", repr(value))
        if kind is queue.SimpleQueue:
            return value.qsize()
        if issubclass(kind, weakref.ref):
            return self.at(value())
        if issubclass(kind, BaseException):
            return repr(value.args), [self.at(one) for one in (value.__cause__, value.__context__)], value.__suppress_context__
        return None

    def attributes(self, value: Any, kind: type) -> Any:
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            held = {}
        found = [(name, self.at(one)) for name, one in dict.items(held)]
        for one in kind.__mro__:
            for name, slot in vars(one).items():
                if isinstance(slot, types.MemberDescriptorType) and one.__module__ not in sys.stdlib_module_names:
                    try:
                        found.append((name, self.at(slot.__get__(value))))
                    except AttributeError:
                        found.append((name, "unset"))
        return found


def _code(code: types.CodeType) -> Any:
    """Return what a function does, without the file's name: recorded programs have names of their own."""
    parts = [_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return (
        code.co_name,
        code.co_qualname,
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_flags,
        code.co_firstlineno,
        parts,
    )


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """Return where two states differ first, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}, key=str):
            if one.get(name, "missing") != other.get(name, "missing"):
                return first_difference(one.get(name, "missing"), other.get(name, "missing"), f"{path}.{name}")
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for place, (first, second) in enumerate(zip(one, other, strict=True)):
            if first != second:
                return first_difference(first, second, f"{path}[{place}]")
    if isinstance(one, bytes) and isinstance(other, bytes) and len(one) == len(other) and len(one) % 8 == 0:
        one, other = np.frombuffer(one).tolist(), np.frombuffer(other).tolist()
    return f"{path}: plain {one!r:.600}, planned {other!r:.600}"
