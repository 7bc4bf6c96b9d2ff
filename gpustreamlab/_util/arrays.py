"""Arrays in values: in containers, in attributes, in what functions close over."""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
MOST_ITEMS = 100_000
"""Up to how many items of containers are looked at for arrays."""
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_LOOKED_INTO = frozenset({"builtins", "collections", "itertools", "functools", "types"})
"""Modules of iterators, partial functions and containers without attributes."""
_SEQUENCES = (list, tuple, set, frozenset, deque)


# Types are asked, not objects: `isinstance`, `hasattr` and `len` may run code of the user's, which must not notice.


def cached_by_type(function: Callable[[type], T]) -> Callable[[type], T]:
    """Keep what a function returns for a class; classes that are made anew by each run of a cell go in the end."""
    return functools.lru_cache(maxsize=10_000)(function)


@cached_by_type
def names_of_type(kind: type) -> frozenset[str]:
    """Return the names that a class and its bases define."""
    return frozenset().union(*(vars(base) for base in kind.__mro__))


@cached_by_type
def _is_array_type(kind: type) -> bool:
    if issubclass(kind, (np.ndarray, np.generic)):
        return issubclass(kind, np.ndarray)
    names = names_of_type(kind)
    return names >= {"shape", "dtype", "strides"} or names >= {"shape", "untyped_storage"}


def is_array(value: object) -> bool:
    """Tell whether a value is an array in device memory, or NumPy's."""
    return _is_array_type(type(value))


def find_arrays(value: object) -> Iterator[Any]:
    """Find the arrays that a value leads to: in containers, iterators, attributes, and what functions close over.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros(3)
    >>> [len(list(find_arrays(one))) for one in ([x, {"k": x}], iter([x]), lambda: x, "x")]
    [1, 1, 0, 0]
    """
    seen = set[int]()
    waiting = [value]
    while waiting and len(seen) < MOST_ITEMS:
        one = waiting.pop()
        if id(one) in seen or issubclass(type(one), _PLAIN):
            continue
        seen.add(id(one))
        if is_array(one):
            yield one
        else:
            waiting.extend(parts_of(one))


def is_own(value: object) -> bool:
    """Tell whether a value is an object of this package: a session, a stream. Its attributes are not the user's."""
    return type(value).__module__.startswith("gpustreamlab.")


def parts_of(value: object) -> Iterable[object]:
    """Return what a container holds, the attributes of an instance, or what a function closes over."""
    kind = type(value)
    if issubclass(kind, types.FunctionType):  # not its globals: those are variables of the program, or of another module
        function: Any = value
        return [*(function.__closure__ or ()), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if is_own(value):
        return ()
    found = [one for _, one in items_of(value)]
    found += [*(attributes_of(value) or {}).values(), *(one for _, one, _ in slotted(value))]
    return [*found, *gc.get_referents(value)] if kind.__module__ in _LOOKED_INTO else found


def items_of(value: Any) -> list[tuple[object, object]]:
    """Return what a list, tuple, set, deque or dictionary holds, by place or key; nothing for what is none."""
    kind = type(value)
    if issubclass(kind, dict):  # an ordered one keeps an order of its own
        return list(OrderedDict.items(value) if issubclass(kind, OrderedDict) else dict.items(value))
    base = next((one for one in _SEQUENCES if issubclass(kind, one)), None)
    return [] if base is None else list(enumerate(base.__iter__(value)))


def attributes_of(value: object) -> dict[str, Any] | None:
    """Return the dictionary of an object's attributes, or None."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


def slotted(value: object) -> Iterator[tuple[str, object, Any]]:
    """Yield what the ``__slots__`` of an object hold: the name, the value, and the descriptor that sets it."""
    for base in type(value).__mro__:
        for name, one in vars(base).items() if "__slots__" in vars(base) else ():
            if type(one) is types.MemberDescriptorType:
                try:
                    held = one.__get__(value)
                except AttributeError:  # it is not set
                    continue
                yield name, held, one
