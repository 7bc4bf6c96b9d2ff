"""Fields that hold what their annotations say: one check for values that are made and for values that are read from a file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np

from gpustreamlab.errors import GPUStreamLabError, TraceError, nearest_hint

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A whole number that is not negative."""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
"""A whole number of at least 1."""
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number of 64 bits."""


def check_fields(value: Any, error: type[GPUStreamLabError] = TraceError) -> None:
    """Raise an error where a field of a dataclass is not of its annotated type; store lists as tuples and texts as enums.

    Parameters
    ----------
    value
        The instance; call this first in its ``__post_init__``.
    error
        What to raise.
    """
    for name, wanted in _annotations(type(value)).items():  # type: ignore[arg-type] # mypy takes no class as hashable
        object.__setattr__(value, name, check_field(value, name, wanted, error))


def check_field(value: Any, name: str, wanted: Any, error: type[GPUStreamLabError] = TraceError) -> object:
    """Return one field as the type that it should have, or raise an error that says what is wrong with it."""
    given = getattr(value, name)
    try:
        checked = _convert(given, wanted)
    except (msgspec.ValidationError, RecursionError) as wrong:
        choices = [one for one in _choices(wanted) if isinstance(one, str)]
        hint = nearest_hint(str(given), choices) if choices else f"{wrong}."
        raise error(f"{type(value).__name__}.{name} is {given!r:.80}. {hint}") from wrong
    if type(checked) is str and not checked.isascii():
        return checked.encode("utf-8", "replace").decode()  # a lone surrogate, which no file can hold, becomes "?"
    return checked


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _choices(wanted: Any) -> Iterable[object]:
    return list(wanted) if isinstance(wanted, type) and issubclass(wanted, Enum) else get_args(wanted)


def _convert(given: object, wanted: Any) -> object:
    try:
        return msgspec.convert(given, wanted)
    except msgspec.ValidationError:
        return msgspec.convert(_without_numpy(given), wanted)


def _without_numpy(given: object) -> object:
    if isinstance(given, np.generic):
        return given.item()
    return [_without_numpy(one) for one in given] if isinstance(given, (list, tuple, range, np.ndarray)) else given
