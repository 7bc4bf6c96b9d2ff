"""Which NumPy functions the simulated device has, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.sim._commands import KernelSpec
from gpustreamlab.backends.sim._cost import plan_matmul, plan_streaming
from gpustreamlab.backends.sim._presets import DevicePreset
from gpustreamlab.errors import NotSimulatedError

HostArray: TypeAlias = NDArray[Any]
_SORT_PASSES = 4  # of a radix sort over memory
_RANDOM_OPERATIONS = 20
_MIN_TILED_SIDE = 16  # products with a thinner side go through memory once, as matrix-vector products do


class Call(NamedTuple):
    """One call, after NumPy computed it."""

    name: str
    """The function's name."""
    inputs: Sequence[HostArray]
    """Device arrays that it read."""
    outputs: Sequence[HostArray]
    """Device arrays that it wrote."""
    arguments: Sequence[Any]
    """Its positional arguments."""

    @property
    def size_bytes(self) -> int:
        """Bytes read and written; what broadcasting repeats is read once."""
        return sum(count_bytes(array) for array in (*self.inputs, *self.outputs))

    @property
    def element_count(self) -> int:
        """Elements of the largest array."""
        return max((array.size for array in (*self.inputs, *self.outputs)), default=0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What is computed with: the widest dtype there is."""
        return max(
            (array.dtype for array in (*self.inputs, *self.outputs)), key=lambda dtype: (dtype.kind in "fc", dtype.itemsize)
        )


Planner: TypeAlias = Callable[[DevicePreset, Call], KernelSpec]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a function costs."""

    plan: Planner
    """Returns the function's kernel."""
    may_be_view: bool = False
    """Whether a result that shares its input's memory costs nothing."""
    needs_host: bool = False
    """Whether the host has to know a value (such as the size of the result) before it goes on."""
    is_creation: bool = False
    """Whether it makes arrays from host values only."""


def count_bytes(array: HostArray) -> int:
    """Return how many bytes an array covers in memory; broadcast dimensions count once.

    Examples
    --------
    >>> count_bytes(np.broadcast_to(np.zeros(4), (1_000, 4)))
    32
    """
    sizes = (size for size, stride in zip(array.shape, array.strides, strict=True) if stride or not size)
    return int(array.itemsize * math.prod(sizes))


def split_names(names: str) -> frozenset[str]:
    """Return the names of a list written as text."""
    return frozenset(names.split())


def streaming(operations: float = 1.0, passes: int = 1) -> Planner:
    """Return the planner of work that goes over memory, with so many operations for each element."""

    def plan(preset: DevicePreset, call: Call) -> KernelSpec:
        return plan_streaming(
            preset,
            call.name,
            size_bytes=call.size_bytes * passes,
            operations=round(call.element_count * operations),
            dtype=call.dtype,
        )

    return plan


def _plan_sort(preset: DevicePreset, call: Call) -> KernelSpec:
    count = call.element_count
    operations = round(count * math.log2(max(count, 2)))
    return plan_streaming(preset, call.name, size_bytes=call.size_bytes * _SORT_PASSES, operations=operations, dtype=call.dtype)


def _plan_fft(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan one pass over memory for each transformed axis, and 5 n log2 n operations, half of that for real data."""
    base = call.name.rpartition(".")[2]
    shape = max(call.inputs[0], call.outputs[0], key=lambda array: array.size).shape
    axis_count = len(shape) if base.endswith("n") else 2 if base.endswith("2") else 1
    points = math.prod(shape[len(shape) - min(axis_count, len(shape)) :])
    factor = 2.5 if base.lstrip("i").startswith("r") or base.startswith("h") else 5.0
    operations = round(factor * call.element_count * math.log2(max(points, 2)))
    return plan_streaming(preset, call.name, size_bytes=call.size_bytes * axis_count, operations=operations, dtype=call.dtype)


def _plan_product(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan ``matmul``, ``dot``, ``inner`` and ``tensordot``: the operations are 2 m n k, whatever the axes are called."""
    left, right, result = call.inputs[0], call.inputs[-1], call.outputs[0]
    count = result.size
    if call.name == "matmul":
        m, k = left.shape[-2:] if left.ndim > 1 else (1, left.size)
        n = right.shape[-1] if right.ndim > 1 else 1
    else:
        k = max(1, math.isqrt(left.size * right.size // count))  # (m k) (k n) / (m n)
        m = max(1, left.size // k)
        n = max(1, count // m)
    batch = max(1, count // (m * n))
    if min(m, n) < _MIN_TILED_SIDE:
        return plan_streaming(preset, call.name, size_bytes=call.size_bytes, operations=2 * count * k, dtype=call.dtype)
    return plan_matmul(preset, call.name, m=m, n=n, k=k, batch=batch, dtype=call.dtype)


def _plan_einsum(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan 2 operations for each point of the space that all labels span."""
    terms = call.arguments[0]
    if not isinstance(terms, str) or "." in terms:
        raise NotSimulatedError(
            f"The simulated device cannot tell the cost of einsum({terms!r}, ...). Write every label out, such as 'ik,kj->ij'."
        )
    sizes: dict[str, int] = {}
    for labels, array in zip(terms.replace(" ", "").partition("->")[0].split(","), call.inputs, strict=False):
        sizes.update(zip(labels, array.shape, strict=True))
    operations = 2 * math.prod(sizes.values())
    return plan_streaming(preset, call.name, size_bytes=call.size_bytes, operations=operations, dtype=call.dtype)


_ELEMENTWISE = Rule(streaming())
_HEAVY = Rule(streaming(8))  # transcendental: several operations for each element
_REDUCTION = Rule(streaming())
_LONG_REDUCTION = Rule(streaming(3))
_SCAN = Rule(streaming(2, passes=2))
_VIEW = Rule(streaming(0), may_be_view=True)
_MOVE = Rule(streaming(0))
_CREATE = Rule(streaming(), is_creation=True)
_SORT = Rule(_plan_sort)
_SORT_SIZED = Rule(_plan_sort, needs_host=True)
_SIZED = Rule(streaming(2, passes=2), needs_host=True)
_SEARCH = Rule(streaming(16))
_FFT = Rule(_plan_fft)
_PRODUCT = Rule(_plan_product)

_NAMES: tuple[tuple[Rule, str], ...] = (
    (
        _ELEMENTWISE,
        "absolute add bitwise_and bitwise_or bitwise_xor clip conj conjugate copysign deg2rad degrees divide divmod equal "
        "fabs float_power floor floor_divide fmax fmin fmod greater greater_equal invert isclose isfinite isinf isnan "
        "isneginf isposinf ceil ldexp left_shift less less_equal logical_and logical_not logical_or logical_xor maximum "
        "minimum mod modf multiply nan_to_num negative nextafter not_equal positive rad2deg radians reciprocal remainder "
        "right_shift rint round around sign signbit sqrt square subtract true_divide trunc where abs iscomplex isreal interp",
    ),
    (
        _HEAVY,
        "angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt cos cosh exp exp2 expm1 frexp hypot log log10 "
        "log1p log2 logaddexp logaddexp2 power sin sinc sinh tan tanh i0 unwrap polyval",
    ),
    (
        _REDUCTION,
        "all any sum prod max min amax amin argmax argmin mean count_nonzero nansum nanprod nanmax nanmin nanargmax "
        "nanargmin nanmean trace average ptp allclose array_equal vdot linalg.norm",
    ),
    (_LONG_REDUCTION, "std var nanstd nanvar cov corrcoef"),
    (_SCAN, "cumsum cumprod nancumsum nancumprod diff gradient"),
    (
        _VIEW,
        "reshape ravel transpose moveaxis rollaxis swapaxes squeeze expand_dims broadcast_to broadcast_arrays atleast_1d "
        "atleast_2d atleast_3d split array_split hsplit vsplit dsplit flip fliplr flipud rot90 diagonal real imag view "
        "ascontiguousarray asfortranarray",
    ),
    (
        _MOVE,
        "concatenate stack hstack vstack dstack column_stack tile repeat roll pad take take_along_axis copy tril triu diag "
        "diagflat flatten astype fill put fft.fftshift fft.ifftshift meshgrid cross copyto choose select getitem setitem "
        "vander",
    ),
    (
        _CREATE,
        "arange linspace logspace eye identity tri ones full empty zeros hanning hamming blackman bartlett kaiser indices "
        "fft.fftfreq fft.rfftfreq",
    ),
    (_ELEMENTWISE, "ones_like full_like zeros_like empty_like"),
    (_SORT, "sort argsort partition argpartition median percentile quantile nanmedian lexsort"),
    (_SORT_SIZED, "unique"),
    (_SIZED, "nonzero flatnonzero argwhere extract compress bincount histogram mask"),
    (_SEARCH, "searchsorted digitize isin"),
    (_FFT, " ".join(f"fft.{i}{kind}fft{axes}" for i in ("", "i") for kind in ("", "r") for axes in ("", "2", "n"))),
    (_FFT, "fft.hfft fft.ihfft"),
    (_PRODUCT, "matmul dot inner tensordot"),
    (_ELEMENTWISE, "outer kron convolve correlate"),
    (Rule(_plan_einsum), "einsum"),
)

RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES for name in names.split()}
"""Every modelled function by its name in NumPy; submodules with a dot. A few names are methods or steps without a function."""

METHODS = split_names(
    "all any argmax argmin argpartition argsort astype clip conj conjugate copy cumprod cumsum diagonal dot fill flatten "
    "max mean min nonzero partition prod put ravel repeat reshape round searchsorted sort squeeze std sum swapaxes take "
    "trace transpose "
    "var view compress choose"
)
"""Methods of device arrays that are modelled as the function of the same name."""

WRITING_METHODS = frozenset({"fill", "sort", "put", "partition"})
"""Methods that write their own array and return nothing."""

CHOOSING = frozenset({"take", "take_along_axis"})
"""Functions that read only some elements of their first array."""

METADATA = split_names(
    "shape ndim size result_type can_cast promote_types iscomplexobj isrealobj isscalar broadcast_shapes may_share_memory "
    "shares_memory "
    "common_type issubdtype finfo iinfo dtype min_scalar_type get_printoptions set_printoptions printoptions"
)
"""Functions that read no values: NumPy's own, on the host, free."""

CONSTANTS = split_names("pi e inf nan newaxis euler_gamma")
"""Constants that NumPy and CuPy share."""

RANDOM = Rule(streaming(_RANDOM_OPERATIONS), is_creation=True)
"""What drawing random numbers costs."""
