"""Turn what a caller hands over into the read-only columns of a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.errors import TraceError


def freeze_column(name: str, values: object, dtype: DTypeLike) -> NDArray[Any]:
    """Return a read-only one-dimensional array that shares nothing writable with the caller.

    Raises
    ------
    TraceError
        If the values are not one-dimensional or do not fit the dtype exactly.
    """
    given = np.asarray(values)
    if given.ndim != 1:
        raise TraceError(f"Column {name!r} has {given.ndim} dimensions; a column has exactly 1.")
    wanted = np.dtype(dtype)
    if given.size and not np.can_cast(given.dtype, wanted, casting="safe"):
        _require_exact(name, given, wanted)
    column = np.array(given, dtype=wanted, copy=True)
    column.flags.writeable = False
    return column


def require_equal_lengths(owner: str, columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise `TraceError` where the columns are not of one length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"The columns of {owner} differ in length: {lengths}. Pass one value per row in each.")


def require_codes(name: str, codes: NDArray[Any], count: int) -> None:
    """Raise `TraceError` where a code does not point into a table of `count` entries."""
    if codes.size and (codes.min() < 0 or codes.max() >= count):
        raise TraceError(f"Column {name!r} points outside its table of {count} entries (0 to {count - 1}).")


def require_text(name: str, texts: tuple[str, ...]) -> None:
    """Raise `TraceError` where interned texts repeat, are no text, or cannot be written as UTF-8."""
    if len(set(texts)) != len(texts):
        raise TraceError(f"The entries of {name!r} repeat; each text is interned once.")
    for text in texts:
        if not isinstance(text, str):
            raise TraceError(f"{name!r} holds {text!r}, which is not a str.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TraceError(f"{name!r} holds {text!r}, which UTF-8 cannot write. Replace its lone surrogates.") from error


def _require_exact(name: str, given: NDArray[Any], wanted: np.dtype[Any]) -> None:
    if given.dtype.kind not in "iubf":
        raise TraceError(f"Column {name!r} holds {given.dtype}, not numbers. Convert it to {wanted}.")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise TraceError(f"Column {name!r} holds NaN or infinity; it stores {wanted}.")
    with np.errstate(invalid="ignore", over="ignore"):
        exact = _fits(given, wanted) and np.array_equal(given.astype(wanted).astype(given.dtype), given)
    if not exact:
        raise TraceError(f"Column {name!r} holds values that {wanted} cannot store exactly. Round or convert them first.")


def _fits(given: NDArray[Any], wanted: np.dtype[Any]) -> bool:
    """Tell whether no value lies beyond an integer dtype: one that wraps round would come back the same from a cast."""
    if wanted.kind not in "iu":
        return True
    limits = np.iinfo(wanted)
    return bool(limits.min <= given.min().item() and given.max().item() <= limits.max)
