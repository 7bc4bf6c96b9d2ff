"""Copies of a program's inputs, and what they were: runs on copies change nothing of the user's."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpustreamlab._util.arrays import find_arrays, is_array, is_own
from gpustreamlab._util.ownership import find_owner
from gpustreamlab.errors import ProgramError
from gpustreamlab.programs._torch import copied_tensors, is_tensor

_KEPT = (types.ModuleType, types.BuiltinFunctionType, type)


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
        if isinstance(value, types.GeneratorType):
            raise ProgramError(
                f"{name!r} is a generator, which gives its values once, and a plan runs the program several times. Pass a "
                f"list: {name} = list({name})."
            )
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
    owners: dict[int, tuple[int, int]] = {}
    return {name: _sign(values[name], owners, set()) for name in sorted(values)}


def is_settled(value: object) -> bool:
    """Tell whether a value keeps what a plan depends on for as long as it is the same object."""
    is_plain = isinstance(value, (int, float, complex, str, bytes, type(None), types.FunctionType, *_KEPT))
    return is_plain or is_array(value) or is_own(value) or type(value).__module__.startswith("torch.")


def _sign(value: object, owners: dict[int, tuple[int, int]], seen: set[int]) -> object:
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return type(value), value if value == value else "nan"
    if is_array(value):
        array: Any = value
        address = _address_of(array)
        place, first = owners.setdefault(find_owner(array).key, (len(owners), address))
        strides = array.strides if hasattr(array, "strides") else tuple(array.stride())
        return type(value), tuple(array.shape), str(array.dtype), tuple(strides), place, address - first
    if id(value) in seen:
        return type(value)
    seen.add(id(value))  # all of them are kept by the variables meanwhile
    if isinstance(value, Mapping):
        return type(value), tuple((key, _sign(one, owners, seen)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_sign(one, owners, seen) for one in value)
    if isinstance(value, types.FunctionType):
        return value.__code__, tuple(_sign(one, owners, seen) for one in find_arrays(value))
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and not isinstance(value, _KEPT) and not is_own(value):
        return type(value), tuple((key, _sign(one, owners, seen)) for key, one in held.items())
    return type(value), id(value)


def _address_of(array: Any) -> int:
    """Return where an array begins; on the simulated device where its values do."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if not isinstance(array, np.ndarray) and hasattr(array, "sim_values"):
        array = array.sim_values
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr)
