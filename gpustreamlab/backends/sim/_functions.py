"""Which NumPy functions the simulated device has, and what each costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.sim._commands import KernelSpec
from gpustreamlab.backends.sim._cost import DevicePreset, plan_matmul, plan_streaming
from gpustreamlab.errors import NotSimulatedError, nearest_hint

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._xp import ArrayModule


HostArray: TypeAlias = NDArray[Any]
_SORT_PASSES = 4  # of a radix sort over memory
_RANDOM_OPERATIONS = 20
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
    return lambda preset, call: _pass_over(preset, call, call.element_count * operations, passes)


def _pass_over(preset: DevicePreset, call: Call, operations: float, passes: int = 1) -> KernelSpec:
    """Return a kernel that goes over a call's memory, with so many operations in all."""
    size_bytes = call.size_bytes * passes
    return plan_streaming(preset, call.name, size_bytes=size_bytes, operations=round(operations), dtype=call.dtype)


def _plan_sort(preset: DevicePreset, call: Call) -> KernelSpec:
    return _pass_over(preset, call, call.element_count * math.log2(max(call.element_count, 2)), _SORT_PASSES)


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
    batch = max(1, count // (m * n))
    if min(m, n) < _MIN_TILED_SIDE:
        return _pass_over(preset, call, 2 * count * k)
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
    return _pass_over(preset, call, 2 * math.prod(sizes.values()))


def _plan_generic(preset: DevicePreset, call: Call) -> KernelSpec:
    """Plan what is rarely used and whose cost is not modelled: one operation for each element. Records say so."""
    return replace(_pass_over(preset, call, call.element_count), is_generic=True)


_PLAIN = Rule(streaming())
_HEAVY = Rule(streaming(8))  # transcendental: several operations for each element
_LONG_REDUCTION = Rule(streaming(3))
_SCAN = Rule(streaming(2, passes=2))
_VIEW = Rule(streaming(0), may_be_view=True)
_MOVE = Rule(streaming(0))
_CREATE = Rule(streaming(), is_creation=True)
_SORT = Rule(_plan_sort)
_SORT_SIZED = Rule(_plan_sort, needs_host=True)
_SIZED = Rule(streaming(2, passes=2), needs_host=True)
_CREATE_SIZED = Rule(streaming(2, passes=2), needs_host=True, is_creation=True)
_FFT = Rule(_plan_fft)
_PRODUCT = Rule(_plan_product)
_GENERIC = Rule(_plan_generic)
_GENERIC_SIZED = Rule(_plan_generic, needs_host=True)
_RANDOM = Rule(streaming(_RANDOM_OPERATIONS), is_creation=True)

# What differs from the rule that all other functions of NumPy follow: one operation for each element, one pass over memory.
_NAMES: tuple[tuple[Rule, str], ...] = (
    (
        _HEAVY,
        "angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt cos cosh exp exp2 expm1 frexp hypot log log10 "
        "log1p log2 logaddexp logaddexp2 power sin sinc sinh tan tanh i0 unwrap polyval",
    ),
    (_LONG_REDUCTION, "std var nanstd nanvar cov corrcoef"),
    (_SCAN, "cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod diff ediff1d gradient"),
    (
        _VIEW,
        "reshape ravel transpose moveaxis rollaxis swapaxes squeeze expand_dims broadcast_to broadcast_arrays atleast_1d "
        "atleast_2d atleast_3d split array_split hsplit vsplit dsplit flip fliplr flipud rot90 diagonal real imag view "
        "ascontiguousarray asfortranarray require matrix_transpose",
    ),
    (
        _MOVE,
        "concatenate stack hstack vstack dstack column_stack tile repeat roll pad take take_along_axis copy tril triu diag "
        "diagflat flatten astype fill put fft.fftshift fft.ifftshift meshgrid cross copyto choose select getitem setitem "
        "vander append resize row_stack place putmask put_along_axis fill_diagonal",
    ),
    (
        _CREATE,
        "arange linspace logspace eye identity tri ones full empty zeros hanning hamming blackman bartlett kaiser indices "
        "diag_indices r_ c_ mgrid ogrid fft.fftfreq fft.rfftfreq",
    ),
    (_SORT, "sort argsort partition argpartition median percentile quantile nanmedian lexsort sort_complex"),
    (
        _SORT_SIZED,
        "unique unique_all unique_counts unique_inverse unique_values union1d intersect1d setdiff1d setxor1d",
    ),
    (
        _SIZED,
        "nonzero flatnonzero argwhere extract compress bincount histogram histogram2d histogramdd mask delete trim_zeros "
        "real_if_close tril_indices_from triu_indices_from",
    ),
    (_CREATE_SIZED, "tril_indices triu_indices"),
    (Rule(streaming(0), may_be_view=True, is_creation=True), "ix_"),
    (_FFT, " ".join(f"fft.{i}{kind}fft{axes}" for i in ("", "i") for kind in ("", "r") for axes in ("", "2", "n"))),
    (_FFT, "fft.hfft fft.ihfft"),
    (_PRODUCT, "matmul dot inner tensordot"),
    (Rule(_plan_einsum), "einsum"),
    (
        _GENERIC,
        "convolve correlate digitize interp isin searchsorted linalg.cholesky linalg.cond linalg.det linalg.eig linalg.eigh "
        "linalg.eigvals linalg.eigvalsh linalg.inv linalg.matrix_power linalg.matrix_rank linalg.pinv linalg.qr "
        "linalg.slogdet linalg.solve linalg.svd linalg.tensorinv linalg.tensorsolve",
    ),
    (_GENERIC_SIZED, "linalg.lstsq polyfit roots"),
)

UFUNC_METHODS = {
    "outer": None,
    "reduce": split_names("add multiply"),
    "accumulate": split_names("add multiply"),
    "reduceat": split_names("add"),
    "at": split_names("add subtract maximum minimum bitwise_and bitwise_or bitwise_xor"),
}
"""Methods of ufuncs, and which ufuncs have them in CuPy; None is all."""

METADATA = split_names(
    "shape ndim size result_type can_cast promote_types iscomplexobj isrealobj isscalar broadcast_shapes may_share_memory "
    "shares_memory common_type issubdtype finfo iinfo dtype min_scalar_type get_printoptions set_printoptions printoptions "
    "isdtype isfortran iterable typename mintypecode base_repr binary_repr broadcast ndindex linalg.LinAlgError"
)
"""Functions that read no values: NumPy's own, on the host, free."""

HOST = split_names(
    "array_repr array_str array2string format_float_positional format_float_scientific save savez savez_compressed savetxt "
    "load loadtxt genfromtxt fromfile frombuffer fromiter fromstring asarray_chkfinite"
)
"""Functions that work on the host: device arrays are copied there first, and arrays that they return to the device."""

CONSTANTS = split_names("pi e inf nan newaxis euler_gamma s_ index_exp exceptions")
"""Constants that NumPy and CuPy share."""

_RENAMED = (
    "round_=round trapz=trapezoid product=prod cumproduct=cumprod alltrue=all sometrue=any float_=float64 complex_=complex128 "
    "cfloat=complex128 singlecomplex=complex64 Inf=inf Infinity=inf infty=inf PINF=inf NaN=nan NAN=nan fromDlpack=from_dlpack"
)
OLD_NAMES: dict[str, str] = dict(pair.split("=") for pair in _RENAMED.split())
"""Names that NumPy 2 dropped and CuPy keeps."""

_NO_KERNELS = (
    "It computes with NumPy and cannot run CUDA C++ or compile a kernel. Write it with functions of lab.xp, "
    "or use a GPU: gpustreamlab.Session('cuda')."
)
_NO_POOL = (
    "The simulated device's memory has no limit and no pool to steer. "
    "lab.memory.scratch(nbytes) lends temporary memory on both."
)
_NO_CALLBACK = (
    "CuPy would call your Python function with device arrays. Write it for whole arrays: xp.where, xp.select, xp.einsum."
)
_NOT_IN_CUPY = "CuPy does not have it either."
_ADVICE: tuple[tuple[str, str], ...] = (
    ("RawKernel RawModule ElementwiseKernel ReductionKernel vectorize", _NO_KERNELS),
    (
        "fuse memoize clear_memo",
        "Nothing is compiled here: call the function as it is; each of its steps is a kernel of its own.",
    ),
    (
        "cuda",
        "lab.stream(name) and lab.on(name) replace xp.cuda.Stream, lab.event() its Event, lab.synchronize() the device's "
        "synchronize(), lab.memory.pinned_empty(shape) page-locked memory. They work on a GPU too.",
    ),
    ("get_default_memory_pool get_default_pinned_memory_pool", _NO_POOL),
    ("apply_along_axis apply_over_axes piecewise", _NO_CALLBACK),
    ("mask_indices", "Use xp.nonzero(xp.triu(xp.ones((n, n))))."),
    ("poly1d polynomial", "Use xp.polyval, xp.polyfit, xp.polyadd, xp.polymul and xp.roots on arrays of coefficients."),
    ("flatiter", "array.flat is a view here."),
    ("in1d", "Use xp.isin(xp.ravel(a), b)."),
    ("msort", "Use xp.sort(a, axis=0)."),
    ("asfarray", "Use xp.asarray(a, dtype=float)."),
    ("NINF NZERO PZERO", "Use -xp.inf, -0.0 or 0.0."),
    (
        "byte_bounds issctype issubclass_ issubsctype obj2sctype sctype2char who make_aligned_dtype "
        "disable_experimental_feature_warning",
        "Use numpy's own function of the same purpose on array.dtype or array.get().",
    ),
    ("is_available", "Ask lab.device.simulated."),
    ("show_config testing lib typing", "It is about CuPy itself: import it from cupy on a machine with a GPU."),
    ("errstate seterr geterr", f"{_NOT_IN_CUPY} A GPU never warns of overflow or division by zero: leave it out."),
    ("insert", f"{_NOT_IN_CUPY} Use xp.concatenate([a[:i], values, a[i:]])."),
    ("nanpercentile nanquantile", f"{_NOT_IN_CUPY} Use xp.percentile(a[~xp.isnan(a)], q)."),
    ("geomspace", f"{_NOT_IN_CUPY} Use xp.logspace."),
    ("unstack", f"{_NOT_IN_CUPY} Iterate over xp.moveaxis(a, axis, 0)."),
    ("matvec vecmat vecdot linalg.vecdot linalg.multi_dot", f"{_NOT_IN_CUPY} Use @ or xp.einsum."),
    ("histogram_bin_edges", f"{_NOT_IN_CUPY} xp.histogram(a, bins)[1] are the edges."),
    ("linalg.svdvals", f"{_NOT_IN_CUPY} Use xp.linalg.svd(a, compute_uv=False)."),
    ("linalg.matrix_norm linalg.vector_norm", f"{_NOT_IN_CUPY} Use xp.linalg.norm."),
    (
        "asmatrix block bmat busday_count busday_offset datetime_as_string datetime_data einsum_path frompyfunc fromregex "
        "get_include getbufsize geterrcall info is_busday isnat nested_iters polyder polydiv polyint setbufsize seterrcall "
        "show_runtime spacing test linalg.diagonal linalg.outer linalg.tensordot linalg.trace linalg.test fft.test",
        f"{_NOT_IN_CUPY} Compute it on the host: xp.asarray(numpy_function(array.get())).",
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
            plain, name = getattr(module, base, None), prefix + base
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

WRITING_METHODS = frozenset({"fill", "sort", "put", "partition"})
"""Methods that write their own array and return nothing."""

WRITING = split_names("copyto put place putmask put_along_axis fill_diagonal random.shuffle")
"""Functions that write their first array and return nothing, as do all ``ufunc.at``."""

WRITING_SOME = split_names("put place putmask put_along_axis fill_diagonal")
"""Functions and methods that write only some elements, and it is not known which, as do all ``ufunc.at``."""

CHOOSING = frozenset({"take", "take_along_axis"})
"""Functions that read only some elements of their first array."""


def rule_of(name: str) -> Rule | None:
    """Return what a function costs; None if it has no model."""
    return _RANDOM if name.startswith("random.") else RULES.get(name)


def explain_missing(name: str, *, exists: bool) -> Exception:
    """Return the error for a name without a model: what to do instead."""
    base, _, method = name.rpartition(".")
    if name in ADVICE:
        return NotSimulatedNameError(f"The simulated device has no xp.{name}. {ADVICE[name]}")
    if not exists:
        return AttributeError(f"NumPy and the simulated device have no function {name!r}. {nearest_hint(method, RULES)}")
    if (owners := UFUNC_METHODS.get(method)) and base in RULES:
        return NotSimulatedNameError(
            f"The simulated device has no xp.{name}, because CuPy has {method} of {', '.join(sorted(owners))} only. "
            "Use a function such as xp.max, xp.all or xp.cumsum, or compute it on the host."
        )
    return NotSimulatedNameError(
        f"The simulated device does not model the time of numpy.{name}. {nearest_hint(name, RULES)} "
        "Or compute it on the host: xp.asarray(numpy_function(array.get()))."
    )


_STATE = split_names("seed get_state set_state bytes tomaxint random_integers")
_LEGACY = frozenset(name for name in dir(np.random.RandomState) if not name.startswith("_")) - _STATE
_MODERN = split_names(
    "random integers uniform standard_normal exponential standard_exponential poisson binomial gamma beta standard_gamma "
    "chisquare dirichlet f geometric hypergeometric logseries power"
)
_ALIASES = {"ranf": "random_sample", "sample": "random_sample"}
_RANDOM_ADVICE = {
    "normal": "CuPy's Generator has none either. Use xp.random.normal, or loc + scale * rng.standard_normal(size).",
    "choice": "CuPy's Generator has none either. Use xp.random.choice, or a[rng.integers(0, len(a), size)].",
    "permutation": "CuPy's Generator has none either. Use xp.random.permutation, or xp.argsort(rng.random(n)).",
    "shuffle": "CuPy's Generator has none either. Use xp.random.shuffle.",
}


class SimGenerator:
    """A random generator, as `numpy.random.Generator` or `numpy.random.RandomState`."""

    def __init__(self, module: ArrayModule, source: np.random.Generator | np.random.RandomState) -> None:
        self._module = module
        self._source = source
        self._is_legacy = isinstance(source, np.random.RandomState)
        self._known = _LEGACY if self._is_legacy else _MODERN

    def __deepcopy__(self, memo: dict[int, Any]) -> SimGenerator:
        return SimGenerator(self._module, copy.deepcopy(self._source, memo))

    def seed(self, seed: int | None = None) -> None:
        """Start the sequence of numbers at a seed; the same seed gives the same numbers."""
        if isinstance(self._source, np.random.RandomState):
            self._source.seed(seed)
        else:
            raise NotSimulatedNameError("A generator is seeded when it is made: xp.random.default_rng(seed).")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        plain_name = _ALIASES.get(name, name) if self._is_legacy else name
        if plain_name not in self._known:
            advice = _RANDOM_ADVICE.get(name) or nearest_hint(name, self._known)
            raise NotSimulatedNameError(f"The simulated device does not draw {name!r} random numbers. {advice}")

        def draw(*args: Any, **kwargs: Any) -> Any:
            # NumPy's older functions take no dtype where CuPy's do.
            dtype = kwargs.pop("dtype", None) if self._is_legacy and name != "randint" else None
            plain = getattr(self._source, plain_name)
            function = plain if dtype is None else lambda *a, **k: np.asarray(plain(*a, **k)).astype(dtype)
            return self._module.call_function(f"random.{name}", function, args, kwargs)

        draw.__name__ = name
        return draw

    def __dir__(self) -> list[str]:
        return sorted(self._known)


class RandomModule(SimGenerator):
    """``xp.random``. The numbers are NumPy's, not the bit streams of CuPy's generators."""

    def __init__(self, module: ArrayModule) -> None:
        self.source = np.random.RandomState()  # numpy.random's functions, without its global state
        super().__init__(module, self.source)

    def default_rng(self, seed: int | None = None) -> SimGenerator:
        """Make a generator of its own."""
        return SimGenerator(self._module, np.random.default_rng(seed))

    def RandomState(self, seed: int | None = None) -> SimGenerator:  # noqa: N802
        """Make a generator of its own, with the older functions."""
        return SimGenerator(self._module, np.random.RandomState(seed))

    def get_random_state(self) -> SimGenerator:
        """Return the generator that the functions of this module draw from."""
        return self

    def __dir__(self) -> list[str]:
        return sorted({"seed", "default_rng", "RandomState", "get_random_state", *self._known, *_ALIASES})
