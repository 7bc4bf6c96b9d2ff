"""Which NumPy functions the simulated device has, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.sim._commands import KernelSpec
from gpustreamlab.backends.sim._cost import DevicePreset, plan_matmul, plan_streaming
from gpustreamlab.errors import NotSimulatedError, nearest_hint

HostArray: TypeAlias = NDArray[Any]
_MIN_TILED_SIDE = 16  # products with a thinner side go through memory once, as matrix-vector products do


class NotSimulatedNameError(NotSimulatedError, AttributeError):
    """A name that CuPy or NumPy has and the simulated device has not; an AttributeError too, so that hasattr() works."""


class Call(NamedTuple):
    """One call, after NumPy computed it."""

    name: str
    """The function's name."""
    inputs: Sequence[HostArray]
    """Device arrays that it read."""
    outputs: Sequence[HostArray]
    """Device arrays that it wrote."""
    arguments: Sequence[Any] = ()
    """Its positional arguments."""

    @property
    def arrays(self) -> Sequence[HostArray]:
        """All of them."""
        return (*self.inputs, *self.outputs)

    @property
    def element_count(self) -> int:
        """Elements of the largest array."""
        return max((array.size for array in self.arrays), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a function costs."""

    operations: float | Callable[[Call], float] = 1.0
    """Operations for each element of the largest array, or a function that returns all operations of a call."""
    passes: int = 1
    """How often it goes over its memory."""
    plan: Callable[[DevicePreset, Call], KernelSpec] | None = None
    """Returns its kernel, where that follows from more than this."""
    may_be_view: bool = False
    """Whether a result that shares its input's memory costs nothing."""
    needs_host: bool = False
    """Whether the host has to know a value (such as the size of the result) before it goes on."""
    is_creation: bool = False
    """Whether it makes arrays from host values only."""
    is_generic: bool = False
    """Whether what it computes is not modelled; records say so."""

    def kernel(self, preset: DevicePreset, call: Call) -> KernelSpec:
        """Return the kernel of a call."""
        if self.plan is not None:
            return self.plan(preset, call)
        work = self.operations
        operations = work(call) if callable(work) else call.element_count * work
        return replace(_pass_over(preset, call, operations, self.passes), is_generic=self.is_generic)


def count_bytes(array: HostArray) -> int:
    """Return how many bytes an array covers in memory; broadcast dimensions count once.

    Examples
    --------
    >>> count_bytes(np.broadcast_to(np.zeros(4), (1_000, 4)))
    32
    """
    sizes = (size for size, stride in zip(array.shape, array.strides, strict=True) if stride or not size)
    return int(array.itemsize * math.prod(sizes))


def _pass_over(preset: DevicePreset, call: Call, operations: float, passes: int = 1) -> KernelSpec:
    """Return a kernel that goes over a call's memory, with so many operations in all, of the widest dtype there is."""
    size_bytes = sum(count_bytes(array) for array in call.arrays) * passes
    dtype = max((array.dtype for array in call.arrays), key=lambda dtype: (dtype.kind in "fc", dtype.itemsize))
    return plan_streaming(preset, call.name, size_bytes=size_bytes, operations=round(operations), dtype=dtype)


def _n_log_n(call: Call) -> float:
    return call.element_count * math.log2(max(call.element_count, 2))


def _plan_fft(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan one pass over memory for each transformed axis, and 5 n log2 n operations, half of that for real data."""
    base = call.name.rpartition(".")[2]
    shape = max(call.inputs[0], call.outputs[0], key=lambda array: array.size).shape
    axis_count = len(shape) if base.endswith("n") else 2 if base.endswith("2") else 1
    points = math.prod(shape[len(shape) - min(axis_count, len(shape)) :])
    factor = 2.5 if base.lstrip("i").startswith("r") or base.startswith("h") else 5.0
    return _pass_over(preset, call, factor * call.element_count * math.log2(max(points, 2)), axis_count)


def _plan_product(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan ``matmul``, ``dot``, ``inner`` and ``tensordot``: the operations are 2 m n k, whatever the axes are called."""
    left, right, result = call.inputs[0], call.inputs[-1], call.outputs[0]
    count = result.size
    if not count or not left.size:  # nothing to multiply: an empty result, or zeros
        return _pass_over(preset, call, 0)
    if call.name == "matmul":
        m, k = left.shape[-2:] if left.ndim > 1 else (1, left.size)
        n = right.shape[-1] if right.ndim > 1 else 1
    else:
        k = max(1, math.isqrt(left.size * right.size // count))  # (m k) (k n) / (m n)
        m = max(1, left.size // k)
        n = max(1, count // m)
    if min(m, n) < _MIN_TILED_SIDE:
        return _pass_over(preset, call, 2 * count * k)
    dtype = max((left, right, result), key=lambda array: (array.dtype.kind in "fc", array.itemsize)).dtype
    return plan_matmul(preset, call.name, m=m, n=n, k=k, batch=max(1, count // (m * n)), dtype=dtype)


def _einsum_operations(call: Call) -> float:
    """Return 2 operations for each point of the space that all labels span."""
    terms = call.arguments[0]
    if not isinstance(terms, str) or "." in terms:
        raise NotSimulatedError(
            f"The simulated device cannot tell the cost of einsum({terms!r}, ...). Write every label out, such as 'ik,kj->ij'."
        )
    sizes: dict[str, int] = {}
    for labels, array in zip(terms.replace(" ", "").partition("->")[0].split(","), call.inputs, strict=False):
        sizes.update(zip(labels, array.shape, strict=True))
    return 2 * math.prod(sizes.values())


_PLAIN = Rule()
_SCAN = Rule(operations=2, passes=2)
_RANDOM = Rule(operations=20, is_creation=True)

# What differs from the rule that all other functions of NumPy follow: one operation for each element, one pass over memory.
_NAMES: tuple[tuple[Rule, str], ...] = (
    (
        Rule(operations=8),  # transcendental
        "angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt cos cosh exp exp2 expm1 frexp hypot log log10 "
        "log1p log2 logaddexp logaddexp2 power sin sinc sinh tan tanh i0 unwrap polyval",
    ),
    (Rule(operations=3), "std var nanstd nanvar cov corrcoef"),
    (_SCAN, "cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod diff ediff1d gradient"),
    (
        Rule(operations=0, may_be_view=True),
        "reshape ravel transpose moveaxis rollaxis swapaxes squeeze expand_dims broadcast_to broadcast_arrays atleast_1d "
        "atleast_2d atleast_3d split array_split hsplit vsplit dsplit flip fliplr flipud rot90 diagonal real imag view "
        "ascontiguousarray asfortranarray require matrix_transpose",
    ),
    (
        Rule(operations=0),
        "concatenate stack hstack vstack dstack column_stack tile repeat roll pad take take_along_axis copy tril triu diag "
        "diagflat flatten astype fill put fft.fftshift fft.ifftshift meshgrid cross copyto choose select getitem setitem "
        "vander append resize row_stack place putmask put_along_axis fill_diagonal",
    ),
    (
        Rule(is_creation=True),
        "arange linspace logspace eye identity tri ones full empty zeros hanning hamming blackman bartlett kaiser indices "
        "diag_indices fft.fftfreq fft.rfftfreq",
    ),
    (
        Rule(operations=_n_log_n, passes=4),  # of a radix sort over memory
        "sort argsort partition argpartition median percentile quantile nanmedian lexsort sort_complex",
    ),
    (
        Rule(operations=_n_log_n, passes=4, needs_host=True),
        "unique unique_all unique_counts unique_inverse unique_values union1d intersect1d setdiff1d setxor1d",
    ),
    (
        Rule(operations=2, passes=2, needs_host=True),
        "nonzero flatnonzero argwhere extract compress bincount histogram histogram2d histogramdd mask delete trim_zeros "
        "real_if_close tril_indices_from triu_indices_from",
    ),
    (Rule(operations=2, passes=2, needs_host=True, is_creation=True), "tril_indices triu_indices"),
    (Rule(operations=0, may_be_view=True, is_creation=True), "ix_"),
    (
        Rule(plan=_plan_fft),
        " ".join(f"fft.{i}{kind}fft{axes}" for i in ("", "i") for kind in ("", "r") for axes in ("", "2", "n"))
        + " fft.hfft fft.ihfft",
    ),
    (Rule(plan=_plan_product), "matmul dot inner tensordot"),
    (Rule(operations=_einsum_operations), "einsum"),
    (
        Rule(is_generic=True),
        "convolve correlate digitize interp isin searchsorted linalg.cholesky linalg.cond linalg.det linalg.eig linalg.eigh "
        "linalg.eigvals linalg.eigvalsh linalg.inv linalg.matrix_power linalg.matrix_rank linalg.pinv linalg.qr "
        "linalg.slogdet linalg.solve linalg.svd linalg.tensorinv linalg.tensorsolve",
    ),
    (Rule(is_generic=True, needs_host=True), "linalg.lstsq polyfit roots"),
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UFUNC_METHODS = {
    "outer": None,
    "reduce": _names("add multiply"),
    "accumulate": _names("add multiply"),
    "reduceat": _names("add"),
    "at": _names("add subtract maximum minimum bitwise_and bitwise_or bitwise_xor"),
}
"""Methods of ufuncs, and which ufuncs have them in CuPy; None is all."""

METADATA = _names(
    "shape ndim size result_type can_cast promote_types iscomplexobj isrealobj isscalar broadcast_shapes may_share_memory "
    "shares_memory common_type issubdtype finfo iinfo dtype min_scalar_type get_printoptions set_printoptions printoptions "
    "isdtype isfortran iterable typename mintypecode base_repr binary_repr broadcast ndindex linalg.LinAlgError"
)
"""Functions that read no values: NumPy's own, on the host, free."""

HOST = _names(
    "array_repr array_str array2string format_float_positional format_float_scientific save savez savez_compressed savetxt "
    "load loadtxt genfromtxt fromfile frombuffer fromiter fromstring asarray_chkfinite"
)
"""Functions that work on the host: device arrays are copied there first, and arrays that they return to the device."""

CONSTANTS = _names("pi e inf nan newaxis euler_gamma s_ index_exp exceptions")
"""Constants that NumPy and CuPy share."""

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        "RawKernel RawModule ElementwiseKernel ReductionKernel vectorize fuse",
        "It computes with NumPy and cannot run CUDA C++ or compile a kernel. Write it with functions of lab.xp, or use a GPU: "
        "gpustreamlab.Session('cuda').",
    ),
    (
        "cuda",
        "lab.stream(name) and lab.on(name) replace xp.cuda.Stream, lab.event() its Event, lab.synchronize() the device's "
        "synchronize(), lab.memory.pinned_empty(shape) page-locked memory. They work on a GPU too.",
    ),
    (
        "get_default_memory_pool get_default_pinned_memory_pool",
        "The simulated device's memory has no limit and no pool to steer. lab.memory.scratch(nbytes) lends temporary memory "
        "on both.",
    ),
    (
        "apply_along_axis apply_over_axes piecewise",
        "CuPy would call your Python function with device arrays. Write it for whole arrays: xp.where, xp.select, xp.einsum.",
    ),
    (
        # Some of NumPy's names, so that no program comes to need them.
        "asmatrix block bmat busday_count busday_offset datetime_as_string datetime_data einsum_path errstate frompyfunc "
        "fromregex geomspace get_include getbufsize geterr geterrcall histogram_bin_edges info insert is_busday isnat "
        "mask_indices matvec nanpercentile nanquantile nested_iters polyder polydiv polyint setbufsize seterr seterrcall "
        "show_config show_runtime spacing test unstack vecdot vecmat linalg.diagonal linalg.matrix_norm linalg.multi_dot "
        "linalg.outer linalg.svdvals linalg.tensordot linalg.test linalg.trace linalg.vecdot linalg.vector_norm fft.test",
        "CuPy does not have it either. Compute it on the host: xp.asarray(numpy_function(array.get())).",
    ),
)

ADVICE: dict[str, str] = {name: advice for names, advice in _ADVICE for name in names.split()}
"""What to do instead of what CuPy has and the simulated device has not, and of what NumPy has and CuPy has not."""


def _derive_rules() -> dict[str, Rule]:
    """Return the rule of each function in NumPy's own lists. A function's other names (``pow``) cost what it costs."""
    rules = {name: rule for rule, names in _NAMES for name in names.split()}
    elsewhere = ADVICE.keys() | METADATA | HOST
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for base in module.__all__:
            plain, name = vars(module).get(base), prefix + base  # to get a submodule would load it: f2py takes 0.1 s
            if isinstance(plain, np.ufunc):
                for method, owners in UFUNC_METHODS.items():
                    if owners is None or plain.__name__ in owners:
                        rules[f"{name}.{method}"] = _SCAN if method == "accumulate" else _PLAIN
            if callable(plain) and not isinstance(plain, type) and name not in elsewhere:
                rules.setdefault(name, rules.get(plain.__name__, _PLAIN))
    return rules


RULES: dict[str, Rule] = _derive_rules()
"""Every modelled function by its name in NumPy; submodules with a dot. A few names are methods or steps without a function."""

METHODS = frozenset(name for name in dir(np.ndarray) if name in RULES and callable(getattr(np.ndarray, name))) - {"resize"}
"""Methods of device arrays that are modelled as the function of the same name."""

WRITING_METHODS = _names("fill sort put partition")
"""Methods that write their own array and return nothing."""

WRITING_SOME = _names("put place putmask put_along_axis fill_diagonal")
"""Functions and methods that write only some elements, and it is not known which, as do all ``ufunc.at``."""

WRITING = WRITING_SOME | _names("copyto random.shuffle")
"""Functions that write their first array and return nothing, as do all ``ufunc.at``."""

CHOOSING = _names("take take_along_axis")
"""Functions that read only some elements of their first array."""


def rule_of(name: str) -> Rule:
    """Return what a function costs."""
    rule = _RANDOM if name.startswith("random.") else RULES.get(name)
    if rule is None:
        raise explain_missing(name, exists=True)
    return rule


def explain_missing(name: str, *, exists: bool) -> Exception:
    """Return the error for a name without a model: what to do instead."""
    if name in ADVICE:
        return NotSimulatedNameError(f"The simulated device has no xp.{name}. {ADVICE[name]}")
    if not exists:
        hint = nearest_hint(name.rpartition(".")[2], RULES)
        return AttributeError(f"NumPy and the simulated device have no function {name!r}. {hint}")
    return NotSimulatedNameError(
        f"The simulated device does not model the time of numpy.{name}. {nearest_hint(name, RULES)} "
        "Or compute it on the host: xp.asarray(numpy_function(array.get()))."
    )
