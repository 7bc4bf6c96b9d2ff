"""Copies of a program's inputs, and what they were: runs on copies change nothing of the user's."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from gpustreamlab._util.ownership import find_owner
from gpustreamlab.programs._torch import copied_tensors, is_tensor

_MOST_ITEMS = 100_000
"""Up to how many items of containers are looked at for arrays."""
_KEPT = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def is_array(value: object) -> bool:
    """Tell whether a value is an array in device memory, or NumPy's."""
    return (
        isinstance(value, np.ndarray)
        or (hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "strides"))
        or (hasattr(value, "untyped_storage") and hasattr(value, "shape"))
    )


def find_arrays(value: object, seen: set[int] | None = None) -> Iterator[Any]:
    """Find arrays in a value: in containers, and in attributes of instances of Python classes."""
    seen = set() if seen is None else seen
    waiting = [value]
    while waiting and len(seen) < _MOST_ITEMS:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, complex, type(None), *_KEPT)):
            continue
        seen.add(id(one))
        if is_array(one):
            yield one
        else:
            waiting.extend(parts_of(one))


def parts_of(value: object) -> Iterable[object]:
    """Return what a container holds, or the attributes of an instance."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if is_dataclass(value) or isinstance(getattr(value, "__dict__", None), dict):
        return list(getattr(value, "__dict__", {}).values())
    return ()


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
    tensors = [array for array in arrays if is_tensor(array)]
    memo |= {id(tensor): made for tensor, made in zip(tensors, copied_tensors(tensors), strict=True)}
    made: dict[str, object] = {}
    shared = []
    for name, value in values.items():
        if isinstance(value, _KEPT):
            made[name] = value
            continue
        try:
            made[name] = copy.deepcopy(value, memo)
        except Exception:  # noqa: BLE001 - any class may refuse, each in its own way
            made[name] = value
            shared.append(name)
    return made, shared


def signature(values: Mapping[str, object]) -> dict[str, object]:
    """Return what a plan depends on, by variable: types, shapes, plain values, and which arrays share memory.

    Examples
    --------
    >>> import numpy as np
    >>> signature({"x": np.zeros(3), "n": 2}) == signature({"x": np.ones(3), "n": 2})
    True
    >>> signature({"x": np.zeros(3), "n": 2}) == signature({"x": np.zeros(4), "n": 2})
    False
    """
    owners: dict[int, int] = {}
    return {name: _sign(values[name], owners) for name in sorted(values)}


def _sign(value: object, owners: dict[int, int]) -> object:
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return type(value), value if value == value else "nan"
    if is_array(value):
        array: Any = value
        place = owners.setdefault(find_owner(array).key, len(owners))
        strides = array.strides if hasattr(array, "strides") else tuple(array.stride())
        return type(value), tuple(array.shape), str(array.dtype), tuple(strides), place
    if isinstance(value, Mapping):
        return type(value), tuple((key, _sign(one, owners)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_sign(one, owners) for one in value)
    return type(value), id(value)
