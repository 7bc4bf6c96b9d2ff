"""What a call costs the simulated device: its grid, bytes and operations.

Every modelled kernel is a grid of equal blocks. A block's time is the longest of its arithmetic, its share of the memory
traffic and the preset's floor. How grids are cut is a convention of this module, not a copy of any library's.

Bytes are those of the arrays. The operations of an element, and a few special cases, stand in one table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._activity import PEER_COPY
from gpustreamlab.backends.sim._preset import DevicePreset
from gpustreamlab.errors import NotSimulatedError, OptionError, nearest_hint
from gpustreamlab.schedule._commands import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    LARGE_TILE,
    MAX_BLOCK_THREADS,
    MAX_THREAD_REGISTERS,
    PEER,
    RESERVED_SHARED_BYTES,
    SMALL_TILE,
    SPIN,
    SPIN_CARD,
    STREAMING,
    BlockShape,
    CopySpec,
    KernelSpec,
)
from gpustreamlab.schedule._scheduler import Scheduler
from gpustreamlab.typing import SpanKind

_BLOCK_BYTES = 32_768  # of a streaming kernel
_STREAM_BLOCKS_PER_SM = 16
_LARGE_TILE = (128, 256)  # of a matrix product; takes a whole SM
_SMALL_TILE = (64, 64)
_SMALL_TILES_PER_SM = 8


@lru_cache(maxsize=256)
def plan_spin(slots_per_sm: int, duration_ns: int, blocks: int, *, fill_sms: bool) -> KernelSpec:
    """Return a kernel whose blocks each run for an exact time."""
    slots = slots_per_sm if fill_sms else 1
    shape = SPIN_CARD if fill_sms else SPIN
    return KernelSpec(name="spin", blocks=int(blocks), block_slots=slots, block_ns=int(duration_ns), shape=shape)


def plan_streaming(
    preset: DevicePreset,
    name: str,
    *,
    size_bytes: int,
    operations: int,
    dtype: np.dtype[Any],
    kind: SpanKind = SpanKind.KERNEL,
) -> KernelSpec:
    """Return a kernel that goes through memory once: element-wise work, reductions, copies within the device, fills.

    `size_bytes` are those that are read and written; 64-bit floats have a speed of their own.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> plan_streaming(H200, "add", size_bytes=3 << 20, operations=1 << 18, dtype=np.dtype("f4")).blocks
    96
    """
    return _plan_blocks(
        preset,
        name,
        blocks=max(1, -(-size_bytes // _BLOCK_BYTES)),
        blocks_per_sm=min(_STREAM_BLOCKS_PER_SM, preset.slots_per_sm),
        size_bytes=size_bytes,
        operations=operations,
        rate=preset.float64_operations_per_s if dtype.char in "dDgG" else preset.sm_operations_per_s,
        kind=kind,
        shape=STREAMING,
    )


def plan_matmul(preset: DevicePreset, name: str, *, m: int, n: int, k: int, batch: int, dtype: np.dtype[Any]) -> KernelSpec:
    """Return the kernel of a matrix product ``(m, k) @ (k, n)``, or of a batch of them.

    Output tiles of 128 x 256 take a whole SM each; where they would leave more than half of the card idle, tiles of 64 x 64 an
    eighth. On a stream with n SMs it takes as many waves as n SMs need for its tiles, and the preset's extra waves: more SMs
    never make it slower.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> plan_matmul(H200, "matmul", m=4096, n=4096, k=4096, batch=1, dtype=np.dtype("f2")).blocks
    512
    """
    m, n, k, batch = max(m, 1), max(n, 1), max(k, 1), max(batch, 1)
    tile, blocks_per_sm, shape = _LARGE_TILE, 1, LARGE_TILE
    if 2 * batch * _count_tiles(m, n, tile) < preset.sm_count:
        tile, blocks_per_sm, shape = _SMALL_TILE, min(_SMALL_TILES_PER_SM, preset.slots_per_sm), SMALL_TILE
    blocks = batch * _count_tiles(m, n, tile)
    known_as = f"{dtype.kind}{dtype.itemsize}"
    rate = preset.matmul_operations_per_s.get(known_as, preset.sm_operations_per_s)
    factor = 4 if dtype.kind == "c" else 1  # a complex product is four real ones
    return _plan_blocks(
        preset,
        name,
        blocks=blocks,
        blocks_per_sm=blocks_per_sm,
        size_bytes=batch * (m * k + k * n + m * n) * dtype.itemsize,
        operations=2 * factor * batch * m * n * k,
        # Tiles at the edge are computed whole.
        padded_operations=2 * factor * blocks * tile[0] * tile[1] * k,
        rate=rate,
        extra_waves=preset.matmul_extra_waves.get(known_as, 0.0),
        shape=shape,
    )


def plan_host_copy(preset: DevicePreset, engine: int, size_bytes: int, *, is_pinned: bool) -> CopySpec:
    """Return a copy between host and device."""
    pinned_rate = preset.h2d_bytes_per_s if engine == HOST_TO_DEVICE else preset.d2h_bytes_per_s
    rate = pinned_rate if is_pinned else min(preset.pageable_bytes_per_s, pinned_rate)
    duration_ns = max(1, preset.copy_latency_ns + -(-size_bytes * 1_000_000_000 // rate))
    return CopySpec(_COPY_NAMES[engine], engine, size_bytes, duration_ns, is_pinned)


def plan_peer_copy(preset: DevicePreset, size_bytes: int, *, source: int, target: int) -> CopySpec:
    """Return a copy from one card to another, by their numbers."""
    duration_ns = max(1, preset.copy_latency_ns + -(-size_bytes * 1_000_000_000 // preset.peer_bytes_per_s))
    return CopySpec(PEER_COPY, PEER, size_bytes, duration_ns, places=f"memcpy GPU {source} to GPU {target}")


_COPY_NAMES = {HOST_TO_DEVICE: "memcpy HtoD", DEVICE_TO_HOST: "memcpy DtoH"}


def _count_tiles(m: int, n: int, tile: tuple[int, int]) -> int:
    return -(-m // tile[0]) * -(-n // tile[1])


def _plan_blocks(
    preset: DevicePreset,
    name: str,
    *,
    blocks: int,
    blocks_per_sm: int,
    size_bytes: int,
    operations: int,
    rate: float,
    padded_operations: int | None = None,
    **more: Any,
) -> KernelSpec:
    """Cut a kernel into blocks that have their slots' share of an SM; `more` are fields of its spec."""
    block_operations = (operations if padded_operations is None else padded_operations) / blocks
    block_bytes = size_bytes // blocks
    compute_ns = block_operations * blocks_per_sm / rate * 1e9
    memory_ns = block_bytes * blocks_per_sm / preset.sm_bytes_per_s * 1e9
    return KernelSpec(
        name=name,
        blocks=blocks,
        block_slots=preset.slots_per_sm // blocks_per_sm,
        block_ns=max(round(compute_ns), round(memory_ns), preset.kernel_floor_ns, 1),
        block_bytes=block_bytes,
        block_limit_bytes_per_s=preset.sm_bytes_per_s // blocks_per_sm,
        operations=operations,
        size_bytes=size_bytes,
        **more,
    )


_MOST, _MOST_WORK = 2**31 - 1, 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledKernel:
    """What the model makes of a kernel on the SMs of a stream, if it runs there alone."""

    name: str
    """The kernel."""
    blocks: int
    """Blocks of its grid."""
    fitting_blocks: int
    """How many blocks fit on an SM by threads, registers and shared memory, as on a GPU."""
    blocks_per_sm: int
    """How many the model puts there: the next lower power of two."""
    limited_by: str
    """What is scarcest: ``blocks``, ``threads``, ``registers`` or ``shared memory``."""
    bound_by: str
    """What a block spends its time on: ``arithmetic``, ``memory``, or ``floor``, the shortest time that a block takes."""
    sm_count: int
    """SMs of the stream."""
    waves: int
    """How often these are filled until all blocks have run."""
    block_ns: int
    """How long a block runs where the memory's bandwidth is not contended."""
    alone_ns: int
    """How long the kernel takes on these SMs with nothing beside it."""

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.alone_ns:,} ns alone on {self.sm_count} SMs (modelled), {self.blocks:,} blocks, "
            f"{self.blocks_per_sm} an SM (limited by {self.limited_by}), waves: {self.waves:,}, "
            f"{self.block_ns:,} ns a block (bound by {self.bound_by})"
        )


def plan_kernel(
    preset: DevicePreset,
    name: str,
    *,
    blocks: SupportsIndex,
    threads_per_block: SupportsIndex,
    registers_per_thread: SupportsIndex = 32,
    shared_bytes: SupportsIndex = 0,
    bytes_per_block: SupportsIndex = 0,
    operations_per_block: SupportsIndex = 0,
    sm_operations_per_s: float | None = None,
    cooperative: bool = False,
) -> KernelSpec:
    """Return a kernel of the user's own.

    Parameters
    ----------
    preset
        The device.
    name
        What it is called in records.
    blocks
        Blocks of the grid.
    threads_per_block, registers_per_thread, shared_bytes
        What a block takes of an SM: up to 1,024 threads, 255 registers of 32 bits for each, and shared memory in bytes. They
        decide how many blocks an SM holds at once, and nothing else.
    bytes_per_block, operations_per_block
        What a block reads and writes of the device's memory in bytes, and its arithmetic operations.
    sm_operations_per_s
        Operations per second of one SM; None for the preset's ``sm_operations_per_s``.
    cooperative
        Whether it begins only when there is room for all its blocks at once.

    Raises
    ------
    OptionError
        If a number is out of range, or no block fits on an SM.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import H200
    >>> spec = plan_kernel(H200, "scale", blocks=1_056, threads_per_block=256, bytes_per_block=65_536)
    >>> spec.block_slots, spec.block_ns  # 8 blocks share an SM's 94 GB/s
    (4, 5578)
    """
    if type(name) is not str or not name:
        raise OptionError(f"A modelled kernel's name is {name!r:.40}; give a text, such as 'scale'.")
    count = _whole("blocks", blocks, 1, _MOST)
    shape = BlockShape(
        threads=_whole("threads_per_block", threads_per_block, 1, MAX_BLOCK_THREADS),
        registers=_whole("registers_per_thread", registers_per_thread, 0, MAX_THREAD_REGISTERS),
        shared_bytes=_whole("shared_bytes", shared_bytes, 0, preset.sm_limits.shared_bytes - RESERVED_SHARED_BYTES),
    )
    size_bytes = _whole("bytes_per_block", bytes_per_block, 0, _MOST_WORK)
    operations = _whole("operations_per_block", operations_per_block, 0, _MOST_WORK)
    rate = preset.sm_operations_per_s if sm_operations_per_s is None else float(sm_operations_per_s)
    if not 0 < rate < float("inf"):
        raise OptionError(f"sm_operations_per_s is {sm_operations_per_s!r}; give more than 0, such as 0.4e12.")
    fitting = shape.blocks_per_sm(preset.sm_limits)
    if not fitting:
        raise OptionError(
            f"Kernel {name!r} has blocks of {shape.threads} threads with {shape.registers} registers each, and an SM has "
            f"{preset.sm_limits.registers:,} registers in all. Take fewer threads, or fewer registers for each."
        )
    per_sm = 1 << (fitting.bit_length() - 1)
    return _plan_blocks(
        preset,
        name,
        blocks=count,
        blocks_per_sm=per_sm,
        size_bytes=size_bytes * count,
        operations=operations * count,
        rate=rate,
        shape=shape,
        is_cooperative=cooperative,
    )


def explain_kernel(preset: DevicePreset, spec: KernelSpec, sm_count: int) -> ModelledKernel:
    """Return what the model makes of a kernel on so many SMs; it runs there alone, on a device of its own."""
    per_sm = preset.slots_per_sm // spec.block_slots
    fits = {"blocks": per_sm} if spec.shape is None else spec.shape.limits(preset.sm_limits)
    scarcest = min(fits, key=fits.__getitem__)
    draw_ns = spec.block_bytes * per_sm / preset.sm_bytes_per_s * 1e9
    bound_by = (
        "memory" if round(draw_ns) == spec.block_ns else "floor" if spec.block_ns <= preset.kernel_floor_ns else "arithmetic"
    )
    waves, block_ns = -(-spec.blocks // (per_sm * sm_count)), spec.block_ns_on(sm_count * preset.slots_per_sm)
    scheduler = Scheduler(preset)
    stream = scheduler.add_stream(1, preset.priority_range[0], frozenset(range(sm_count)))
    scheduler.submit_kernel(stream, spec, 1)
    scheduler.run_until(lambda: not scheduler.busy_count, lambda _now_ns: None)
    return ModelledKernel(
        name=spec.name,
        blocks=spec.blocks,
        fitting_blocks=fits[scarcest],
        blocks_per_sm=per_sm,
        limited_by=scarcest,
        bound_by=bound_by,
        sm_count=sm_count,
        waves=waves,
        block_ns=block_ns,
        alone_ns=scheduler.now_ns - 1,
    )


def _whole(what: str, value: object, least: int, most: int) -> int:
    number = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else least - 1
    if not least <= number <= most:
        raise OptionError(f"{what} is {value!r:.40}; it must be a whole number from {least:,} to {most:,}.")
    return number


HostArray: TypeAlias = NDArray[Any]
_MIN_TILED_SIDE = 16  # products with a thinner side go through memory once, as matrix-vector products do


class NotSimulatedNameError(NotSimulatedError, AttributeError):
    """A name that CuPy or NumPy has and the simulated device has not; an AttributeError too, so that hasattr() works."""


class Call(NamedTuple):
    """One call, after NumPy computed it: the function's name, and the device arrays that it read and wrote."""

    name: str
    inputs: Sequence[HostArray]
    outputs: Sequence[HostArray]
    arguments: Sequence[Any] = ()  # the positional ones

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

    operations: float | Callable[[Call], float] = 1.0  # for each element of the largest array, or all of a call's
    passes: int = 1  # over its memory
    plan: Callable[[DevicePreset, Call], KernelSpec] | None = None  # its kernel, where that follows from more than this
    may_be_view: bool = False  # a result that shares its input's memory costs nothing
    needs_host: bool = False  # the host has to know a value, such as the size of the result, before it goes on
    is_creation: bool = False  # it makes arrays from host values only
    is_generic: bool = False  # what it computes is not modelled; records say so

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
_RANDOM = Rule(operations=20, is_creation=True)

# What differs from the rule that all other functions of NumPy follow: one operation for each element, one pass over memory.
_NAMES: tuple[tuple[Rule, str], ...] = (
    (
        Rule(operations=8),  # transcendental
        "angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt cos cosh exp exp2 expm1 frexp hypot log log10 "
        "log1p log2 logaddexp logaddexp2 power sin sinc sinh tan tanh i0 unwrap polyval",
    ),
    (Rule(operations=3), "std var nanstd nanvar cov corrcoef"),
    (Rule(operations=2, passes=2), "cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod diff ediff1d gradient"),
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

CONSTANTS = _names("pi e inf nan newaxis euler_gamma s_ index_exp exceptions")  # Constants that NumPy and CuPy share

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
            if callable(plain) and not isinstance(plain, type) and name not in elsewhere:
                rules.setdefault(name, rules.get(plain.__name__, _PLAIN))
    return rules


RULES: dict[str, Rule] = _derive_rules()
"""Every modelled function by its name in NumPy; submodules with a dot. A few names are methods or steps without a function."""

METHODS = frozenset(name for name in dir(np.ndarray) if name in RULES and callable(getattr(np.ndarray, name))) - {"resize"}
"""Methods of device arrays that are modelled as the function of the same name."""

WRITING_METHODS = _names("fill sort put partition")  # Methods that write their own array and return nothing

WRITING_SOME = _names("put place putmask put_along_axis fill_diagonal")
"""Functions and methods that write only some elements, and it is not known which."""

WRITING = WRITING_SOME | _names("copyto random.shuffle")  # Functions that write their first array and return nothing

CHOOSING = _names("take take_along_axis")  # Functions that read only some elements of their first array


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
