"""One call of each library that is there, as a user writes it: nothing in them knows of our lanes, but for what is told.

Each maker prepares its data and returns a function of the selected lane that enqueues the work and does not wait for it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from gpustreamlab import Session
from gpustreamlab.engines import quadrants_stream
from gpustreamlab.streams.stream import Stream

Call = Callable[[Stream], object]
"""Enqueues one call of a library; the lane is selected, and only what takes a stream by argument reads it."""

SIDE = 4096
SCALE = """extern "C" __global__ void scale_raw(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 1.5f;
}"""
SIZE = 1 << 26


class Library(NamedTuple):
    """One call of one library."""

    library: str
    """Its name."""
    call: str
    """What is called."""
    module: str
    """The module without which it is not there."""
    make: Callable[[Session], Call]
    """Prepares it."""
    follows: bool = True
    """Whether it works on the selected lane; False for one that cannot be told."""

    @property
    def is_there(self) -> bool:
        """Whether the library is installed."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package around it is missing
            return False


def _torch_matmul(lab: Session) -> Call:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda lane: torch.matmul(a, b, out=out)


def _torch_conv2d(lab: Session) -> Call:
    import torch

    images = torch.randn(32, 64, 112, 112, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    weights = torch.randn(128, 64, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    return lambda lane: torch.nn.functional.conv2d(images, weights, padding=1)


def _torch_attention(lab: Session) -> Call:
    import torch

    q, k, v = (torch.randn(4, 16, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda lane: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _torch_compiled(lab: Session) -> Call:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for one kernel
    import torch

    x = torch.randn(SIZE, device="cuda")
    compiled = torch.compile(lambda value: torch.nn.functional.gelu(value) * value + 1)
    return lambda lane: compiled(x)


def _triton(lab: Session) -> Call:
    import torch

    from bench import _triton_kernels

    x, y = (torch.randn(SIZE, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    return lambda lane: _triton_kernels.launch(x, y, out)


def _cupy_elementwise(lab: Session) -> Call:
    x, out = lab.xp.ones(SIZE, "float32"), lab.xp.empty(SIZE, "float32")
    return lambda lane: lab.xp.sqrt(x, out=out)


def _cupy_matmul(lab: Session) -> Call:
    a, b, out = (lab.xp.ones((SIDE, SIDE), "float32") for _ in range(3))
    return lambda lane: lab.xp.matmul(a, b, out=out)


def _cupy_fft(lab: Session) -> Call:
    x = lab.xp.ones((256, 1 << 16), "complex64")
    return lambda lane: lab.xp.fft.fft(x)


def _raw_kernel(lab: Session) -> Call:
    x, kernel = lab.xp.ones(SIZE, "float32"), lab.xp.RawKernel(SCALE, "scale_raw")
    return lambda lane: kernel((SIZE // 256,), (256,), (x, lab.xp.int32(SIZE)))


def _numba(lab: Session) -> Call:
    import numpy as np

    for gone, stays in {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}.items():
        if gone not in vars(np):  # numba-cuda of the GPU machine asks for names that NumPy 2.5 has not any more
            setattr(np, gone, getattr(np, stays))
    from numba import cuda

    @cuda.jit("void(float32[::1])")  # type: ignore[untyped-decorator]
    def scale_numba(x: Any) -> None:
        place = cuda.grid(1)
        if place < x.size:
            x[place] *= 1.5

    x = cuda.device_array(SIZE, "float32")
    return lambda lane: scale_numba[SIZE // 256, 256](x)


def _cuda_core(lab: Session) -> Call:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    arch = "".join(str(number) for number in lab.device.compute_capability)
    code = SCALE.replace("scale_raw", "scale_core")
    kernel = Program(code, "c++", ProgramOptions(arch=f"sm_{arch}")).compile("cubin").get_kernel("scale_core")
    x = lab.xp.ones(SIZE, "float32")
    Device(lab.device.ordinal).set_current()
    config = LaunchConfig(grid=SIZE // 256, block=256)
    return lambda lane: launch(lane.core, config, kernel, x.data.ptr, lab.xp.int32(SIZE))


def _quadrants(lab: Session) -> Call:
    import quadrants as qd
    import quadrants.lang.stream

    qd.init(arch=qd.cuda, log_level=qd.ERROR)
    x = qd.field(qd.f32, SIZE)

    @qd.kernel
    def scale_quadrants():  # type: ignore[no-untyped-def]
        for i in x:
            x[i] *= 1.5

    return lambda lane: scale_quadrants(qd_stream=quadrants_stream(lane))


def _jax(lab: Session) -> Call:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    x = jax.numpy.ones((SIDE, SIDE), "bfloat16")
    product = jax.jit(lambda value: value @ value)
    return lambda lane: product(x)


LIBRARIES = (
    Library("torch", "matmul, bf16", "torch", _torch_matmul),
    Library("torch", "conv2d", "torch", _torch_conv2d),
    Library("torch", "scaled_dot_product_attention", "torch", _torch_attention),
    Library("torch", "torch.compile (Triton)", "torch", _torch_compiled),
    Library("Triton", "kernel by hand", "triton", _triton),
    Library("CuPy", "elementwise", "cupy", _cupy_elementwise),
    Library("CuPy", "matmul", "cupy", _cupy_matmul),
    Library("CuPy", "fft", "cupy", _cupy_fft),
    Library("CuPy", "RawKernel", "cupy", _raw_kernel),
    Library("Numba-CUDA", "kernel", "numba", _numba),
    Library("cuda.core", "launch(stream.core, ...)", "cuda.core", _cuda_core),
    Library("Quadrants", "kernel(..., qd_stream=...)", "quadrants", _quadrants),
    Library("JAX", "jit matmul", "jax", _jax, follows=False),
)
