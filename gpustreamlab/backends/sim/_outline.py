"""What a function returns, without computing it: shapes and dtypes, for a simulated device that keeps time and no values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.sim._functions import WRITING, split_names
from gpustreamlab.errors import NotSimulatedError

_LIKE_ONE = split_names(
    "where clip round around nan_to_num isclose angle sinc i0 sort argsort cumsum cumprod nancumsum nancumprod copy astype "
    "flatten roll tril triu fft.fft fft.ifft fft.fft2 fft.ifft2 fft.fftn fft.ifftn fft.fftshift fft.ifftshift imag "
    "isreal iscomplex ones_like full_like fix"
)
"""Functions whose result has the shape that their arrays broadcast to."""
_REDUCING = split_names(
    "sum prod mean std var max min amax amin any all argmax argmin nansum nanprod nanmean nanstd nanvar nanmax nanmin "
    "nanargmax nanargmin median ptp count_nonzero add.reduce multiply.reduce"
)
"""Functions that take an axis, or several, out of their first array."""
_SHAPED = split_names("ones full zeros empty")
"""Functions that are given the shape of their result first."""
_SMALL = split_names("arange linspace logspace hanning hamming blackman bartlett kaiser fft.fftfreq fft.rfftfreq")
"""Functions of which NumPy computes the one dimension that they have."""
_FEW = 3  # along each dimension, so that the variance of a sample does not warn
_SIZE_AT = {
    **dict.fromkeys(("random", "random_sample", "ranf", "sample", "standard_normal", "standard_exponential"), 0),
    **dict.fromkeys(("exponential", "poisson", "chisquare"), 1),
    **dict.fromkeys(("uniform", "normal", "randint", "integers", "gamma", "beta", "binomial", "laplace", "lognormal"), 2),
}
"""Which argument of a function of random numbers is the size."""


def outline(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, is_view: bool, in_place: bool
) -> Any:
    """Return arrays like those that a function would return, with no values in them; views are views.

    Raises
    ------
    NotSimulatedError
        For functions whose result's shape depends on values, or is not known here.
    ValueError
        If shapes do not fit.
    """
    if in_place or name in WRITING or name.endswith(".at"):
        return None
    if is_view:
        return function(*args, **kwargs)  # NumPy copies no values for a view
    plain: Any = getattr(np, name, function) if name in {"power", "matmul"} else function  # not `**`, which computes in place
    outs: tuple[Any, ...] = ()
    if isinstance(plain, np.ufunc):
        outs, args = tuple(args[plain.nin :]), args[: plain.nin]
    options = {key: value for key, value in kwargs.items() if key != "out"}
    given = args[0] if function is operator.ipow else kwargs.get("out", outs or None)
    made = _make(name, plain, args, options)
    return made if given is None else _take_out(name, made, given)


def _make(name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if name.startswith("random."):
        return _draw(name, function, args, kwargs)
    if name in _SMALL:
        return function(*args, **kwargs)
    if name in _SHAPED:
        shape = args[0] if args else kwargs.pop("shape")
        return np.empty(shape, function((), *args[1:], **kwargs).dtype)
    if name in _REDUCING:
        return _reduce(function, args, kwargs)
    if name in _OWN:
        return _OWN[name](name, function, args, kwargs)
    return _broadcast(name, function, args, kwargs)


def _broadcast(name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what an element-wise function does, or one whose result is like its array."""
    is_elementwise = isinstance(function, np.ufunc) and function.signature is None
    is_known = is_elementwise or (name in _LIKE_ONE and not any(kwargs.get(key) is not None for key in ("n", "s", "shape")))
    if not is_known or (name.startswith("fft.") and len(args) > 1) or (name == "where" and len(args) != 3):
        raise NotSimulatedError(
            f"This simulated device keeps time and no values, and cannot tell the shape of what xp.{name} returns here. Use a "
            "function whose result's shape follows from its arguments, or compute: SimBackend(..., timing_only=False)."
        )
    shape = np.broadcast_shapes(*(value.shape for value in (*args, kwargs.get("where")) if isinstance(value, np.ndarray)))
    tiny = [_tiny(value) for value in args]
    with np.errstate(all="ignore"):
        made = function(*tiny, **{key: _tiny(value) for key, value in kwargs.items()})
    return args[0] if made is tiny[0] else _fill(made, shape)


def _multiply(name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a product of arrays, or with ``dot`` of an array and a number."""
    made = function(*map(_tiny, args[:2]), **kwargs)
    left, right = np.shape(args[0]), np.shape(args[1])
    return _fill(made, _product_shape(name, left, right) if left and right else left or right)


def _tiny(value: Any) -> Any:
    """Return an array of one element for an array, to learn dtypes by; other values as they are."""
    return np.ones((1,) * value.ndim, value.dtype) if isinstance(value, np.ndarray) else value


def _fill(tiny: Any, shape: tuple[int, ...]) -> Any:
    """Return arrays of a shape and of the dtypes of small ones."""
    if isinstance(tiny, tuple | list):
        return tuple(_fill(one, shape) for one in tiny)
    tiny = np.asarray(tiny)
    return np.empty(shape if tiny.ndim == len(shape) else math.prod(shape), tiny.dtype)  # what is flattened has one dimension


def _take_out(name: str, made: Any, given: Any) -> Any:
    """Check that results fit the arrays that are to take them, and return those."""
    results = made if isinstance(made, tuple) else (made,)
    outs = given if isinstance(given, tuple) else (given,)
    for result, out in zip(results, outs, strict=False):
        if out is None:
            continue
        if result.shape != out.shape or not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise ValueError(
                f"xp.{name} gives {result.dtype} of shape {result.shape}, and out= is {out.dtype} of shape {out.shape}."
            )
    kept = tuple(result if out is None else out for result, out in zip(results, (*outs, *[None] * len(results)), strict=False))
    return kept if isinstance(made, tuple) else kept[0]


def _product_shape(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ValueError(f"xp.{name} was given shapes {left} and {right}: {left[-1]} is not {inner}.")
    columns = right[-1:] if len(right) > 1 else ()
    if name == "dot":
        return (*left[:-1], *right[:-2], *columns)
    return (*np.broadcast_shapes(left[:-2], right[:-2]), *left[-2:-1], *columns)


def _reduce(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    values = args[0]
    axis = kwargs.get("axis", args[1] if len(args) > 1 else None)
    if isinstance(function, np.ufunc) or getattr(function, "__name__", "") in {"reduce", "reduceat"}:
        axis = kwargs.get("axis", args[1] if len(args) > 1 else 0)
    with np.errstate(all="ignore"):
        few = np.ones((_FEW,) * values.ndim, values.dtype)
        tiny = np.asarray(function(few, *args[1:], **{key: _tiny(value) for key, value in kwargs.items()}))
    axes = range(values.ndim) if axis is None else [axis] if np.ndim(axis) == 0 else axis
    gone = {int(number) % max(values.ndim, 1) for number in axes}
    if kwargs.get("keepdims"):
        shape = tuple(1 if number in gone else size for number, size in enumerate(values.shape))
    else:
        shape = tuple(size for number, size in enumerate(values.shape) if number not in gone)
    if len(shape) != tiny.ndim:
        raise NotSimulatedError("A reduction's axis and keepdims are to be given by name where values are not computed.")
    return np.empty(shape, tiny.dtype)


def _join(name: str, _function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> NDArray[Any]:
    arrays = list(args[0])
    axis = int(kwargs.get("axis", args[1] if len(args) > 1 else 0) or 0)
    dtype = kwargs.get("dtype") or np.result_type(*arrays)
    if name == "vstack":
        arrays = [np.atleast_2d(array) for array in arrays]
    elif name == "hstack":
        axis = 1 if arrays[0].ndim > 1 else 0
    elif name == "stack":
        axis %= arrays[0].ndim + 1
        arrays = [np.expand_dims(array, axis) for array in arrays]
    axis %= max(arrays[0].ndim, 1)
    others = {(*array.shape[:axis], *array.shape[axis + 1 :]) for array in arrays}
    if len(others) != 1 or len({array.ndim for array in arrays}) != 1:
        raise ValueError(f"xp.{name} was given shapes {[array.shape for array in arrays]}, which do not fit along axis {axis}.")
    shape = arrays[0].shape
    return np.empty((*shape[:axis], sum(array.shape[axis] for array in arrays), *shape[axis + 1 :]), dtype)


def _sum_labels(_name: str, _function: Any, args: Sequence[Any], _kwargs: dict[str, Any]) -> NDArray[Any]:
    terms = args[0]
    if not isinstance(terms, str) or "." in terms:
        raise NotSimulatedError("Write every label of einsum out, such as 'ik,kj->ij', where values are not computed.")
    ins, arrow, result = terms.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for labels, array in zip(ins.split(","), args[1:], strict=True):
        for label, size in zip(labels, array.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise ValueError(f"Label {label!r} of einsum({terms!r}) has sizes {sizes[label]} and {size}.")
    if not arrow:
        result = "".join(sorted(label for label in sizes if ins.count(label) == 1))
    return np.empty(tuple(sizes[label] for label in result), np.result_type(*args[1:]))


def _draw(name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> NDArray[Any]:
    base, taken, options = name.rpartition(".")[2], list(args), dict(kwargs)
    if base in {"rand", "randn"}:
        return np.empty(tuple(int(size) for size in args), np.asarray(function()).dtype)
    at = _SIZE_AT.get(base)
    if "size" in options:
        size = options.pop("size")
    elif at is not None:
        size = taken[at] if len(taken) > at else None
        del taken[at : at + 1]
    else:
        raise NotSimulatedError(
            f"This simulated device keeps time and no values. Give xp.{name} its size by name: size=(1024, 1024)."
        )
    shape = () if size is None else (int(size),) if np.ndim(size) == 0 else tuple(int(one) for one in size)
    if math.prod(shape) < 0:
        raise ValueError(f"xp.{name} was given the size {size!r}.")
    with np.errstate(all="ignore"):
        tiny = function(*map(_tiny, taken), size=1, **options)
    return np.empty(shape, np.asarray(tiny).dtype)


_OWN: dict[str, Callable[[str, Any, Sequence[Any], dict[str, Any]], Any]] = {
    "matmul": _multiply,
    "dot": _multiply,
    "einsum": _sum_labels,
    **dict.fromkeys(("concatenate", "stack", "vstack", "hstack"), _join),
}
