"""Kernels that a user writes in CUDA C++, launched on any stream of a session."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, SupportsIndex, TypeAlias

from gpustreamlab.backends import Backend
from gpustreamlab.errors import NotSimulatedError, OptionError
from gpustreamlab.record import Blame
from gpustreamlab.streams.stream import Stream
from gpustreamlab.typing import SupportsCudaStream

__all__ = ["PLAIN_SHARED_BYTES", "RawKernel"]


PLAIN_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a block may have without more ado. Source: CUDA programming guide, compute capabilities."""

_Target: TypeAlias = str | Stream | SupportsCudaStream
_Size: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...]


class RawKernel:
    """A kernel of the user's. Made by `gpustreamlab.workloads.raw_kernel`; compiled at its first launch.

    Parameters
    ----------
    backend
        The session's backend; only CUDA can run such a kernel.
    select
        `Session.select`: finds a stream and selects it for this thread.
    blame
        Names the ranges where the device's context is lost.
    code, name
        CUDA C++, and the name of the ``extern "C" __global__`` function in it.
    options
        What ``cupy.RawKernel`` takes: ``options=("-std=c++17",)``, ``backend="nvcc"``, ...

    Raises
    ------
    NotSimulatedError
        On the simulated device.
    OptionError
        If the code or the name is no text.
    """

    def __init__(
        self,
        backend: Backend,
        select: Callable[[_Target], AbstractContextManager[Stream]],
        blame: Blame,
        *,
        code: str,
        name: str,
        options: dict[str, Any],
    ) -> None:
        _require_text("code", code)
        _require_text("name", name)
        if backend.device.simulated:
            raise NotSimulatedError(
                f"Raw kernel {name!r} is CUDA C++, and the simulated device computes with NumPy: it cannot run it. "
                "Use lab.xp or gpustreamlab.workloads, which work on both, or a GPU: gpustreamlab.Session('cuda')."
            )
        self.name = name
        """Name of the function."""
        self.kernel: Any = backend.xp.RawKernel(code, name, **options)
        """The ``cupy.RawKernel`` behind it: its attributes, its registers, ``kernel.compile()``."""
        self._backend = backend
        self._select = select
        self._blame = blame

    def __repr__(self) -> str:
        return f"<RawKernel {self.name!r}>"

    def __call__(
        self, grid: _Size, block: _Size, args: tuple[Any, ...], *, stream: _Target | None = None, shared_mem: SupportsIndex = 0
    ) -> None:
        """Enqueue the kernel, and return at once.

        Parameters
        ----------
        grid, block
            How many blocks, and threads in each: a number, or up to three.
        args
            What the function is given: device arrays, and NumPy scalars of the types that it declares.
        stream
            Where: a stream's name, a stream, or an object with ``__cuda_stream__``; None for the one selected in this thread,
            or else what CuPy works on.
        shared_mem
            Bytes of dynamic shared memory of a block. More than 48 KiB are asked for where the device has them.

        Raises
        ------
        OptionError
            If an argument is out of range.
        DeviceError
            If the driver refuses the launch.
        """
        grid, block = _dimensions("grid", grid), _dimensions("block", block)
        shared_bytes = _whole(shared_mem)
        if shared_bytes < 0:
            raise OptionError(f"shared_mem is {shared_mem!r}; it must be a number of bytes. Use for example shared_mem=4096.")
        if not isinstance(args, tuple | list):
            raise OptionError(
                f"Raw kernel {self.name!r} was given a {type(args).__name__} as its arguments. Pass a tuple: (x, n)."
            )
        with nullcontext() if stream is None else self._select(stream), self._blame:
            self._launch(grid, block, tuple(args), shared_bytes)

    def _launch(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_bytes: int) -> None:
        cuda = self._backend.xp.cuda
        try:
            if shared_bytes > PLAIN_SHARED_BYTES:
                self.kernel.max_dynamic_shared_size_bytes = shared_bytes
            self.kernel(grid, block, args, shared_mem=shared_bytes)
        except (cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError) as error:
            doing = f"Launching raw kernel {self.name!r} (grid {grid}, block {block}, {shared_bytes:,} bytes of shared memory)"
            raise self._backend.map_error(error, doing) from error


def _require_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise OptionError(
            f"A raw kernel's {what} is a str, not {text!r}. "
            "Use raw_kernel(lab, 'extern \"C\" __global__ void scale(float* x) { ... }', 'scale')."
        )


def _dimensions(what: str, value: object) -> tuple[int, ...]:
    sizes = tuple(_whole(size) for size in (value if isinstance(value, tuple | list) else (value,)))
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise OptionError(
            f"{what} is {value!r}; it must be one to three whole numbers of at least 1. Use for example {what}=(128,)."
        )
    return sizes


def _whole(value: object) -> int:
    """Return a whole number, of NumPy too; -1 for what is none."""
    return operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else -1
