"""Arrays in values: in containers, in attributes, in what functions close over."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

MOST_ITEMS = 100_000
"""Up to how many items of containers are looked at for arrays."""
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_LOOKED_INTO = frozenset({"builtins", "collections", "itertools", "functools", "types"})
"""Modules of iterators, partial functions and containers without attributes."""


def is_array(value: object) -> bool:
    """Tell whether a value is an array in device memory, or NumPy's."""
    kind = type(value)  # modules of arrays look long for an attribute that they have not
    return not issubclass(kind, np.generic) and (
        issubclass(kind, np.ndarray)
        or (hasattr(kind, "shape") and hasattr(kind, "dtype") and hasattr(kind, "strides"))
        or (hasattr(kind, "untyped_storage") and hasattr(kind, "shape"))
    )


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
        if id(one) in seen or isinstance(one, _PLAIN):
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
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, types.FunctionType):  # not its globals: those are variables of the program, or of another module
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if is_own(value):
        return ()
    held = getattr(value, "__dict__", None)
    found = list(held.values()) if isinstance(held, dict) else []
    found += [getattr(value, name, None) for kind in type(value).__mro__ for name in slots_of(kind)]
    return [*found, *gc.get_referents(value)] if type(value).__module__ in _LOOKED_INTO else found


def slots_of(kind: type) -> Iterable[str]:
    """Return the names of a class's own ``__slots__``."""
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
