"""The same named work on the GPU and on the simulated device: for lessons, contract tests and benchmarks.

Everything here takes ``stream=``: a stream's name, a `gpustreamlab.Stream`, or any object with ``__cuda_stream__``. Without it,
work goes to the stream selected in this thread. None of it waits, and none of it opens a range. `modelled` needs the simulated
device. `sample_profile` is a file of another tool to try.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.session import Session
from gpustreamlab.streams.stream import Stream
from gpustreamlab.typing import SupportsCudaStream

if TYPE_CHECKING:
    from gpustreamlab.backends.sim import ModelledKernel

__all__ = [
    "copy_to_device",
    "copy_to_host",
    "matrix_product",
    "modelled",
    "sample_profile",
    "spin",
    "spin_card",
    "streaming_add",
]

MAX_SPIN_NS = 3_600_000_000_000
"""Longest time that a kernel may be asked to spin, in ns: an hour. On a GPU nothing but the end of the process stops it."""
MAX_BLOCKS = 2**31 - 1  # Most blocks of a grid in its first dimension. Source: CUDA C++ Programming Guide, compute capabilities

_Target: TypeAlias = str | Stream | SupportsCudaStream | None


def spin(lab: Session, duration_ns: int, *, blocks: int = 1, stream: _Target = None) -> None:
    """Enqueue a kernel whose blocks each stay busy for a time, and use next to nothing else.

    Parameters
    ----------
    duration_ns
        How long each block is busy, in ns of the device's clock; at most `MAX_SPIN_NS`.
    blocks
        How many blocks, at most `MAX_BLOCKS`; several fit onto one SM.
    stream
        Where: a stream's name, a stream, or an object with ``__cuda_stream__``; None for the one selected in this thread.

    Raises
    ------
    SelectionError
        If no stream is given, and none is selected in this thread.
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     lab.stream("a")
    ...     with lab.on("a", "spin"):
    ...         spin(lab, 50_000)
    ...     before = lab.stream("b").record()
    ...     spin(lab, 50_000, stream="b")
    ...     before.elapsed_ns(lab.stream("b").record()) >= 50_000
    <Stream 'a', ...>
    True
    """
    _require_session("spin(lab, duration_ns)", lab)
    _require_within("duration_ns", duration_ns, MAX_SPIN_NS)
    _require_within("blocks", blocks, MAX_BLOCKS)
    with _target(lab, stream, "spin") as chosen:
        lab.recording.backend.launch_spin(chosen._backend_stream, duration_ns, blocks=blocks, fill_sms=False)  # noqa: SLF001


def spin_card(lab: Session, duration_ns: int, *, stream: _Target = None) -> None:
    """Enqueue a kernel that takes every SM of the card for a time: one block an SM.

    Two of them cannot run side by side, whatever their streams.
    """
    _require_session("spin_card(lab, duration_ns)", lab)
    _require_within("duration_ns", duration_ns, MAX_SPIN_NS)
    with _target(lab, stream, "spin_card") as chosen:
        lab.recording.backend.launch_spin(chosen._backend_stream, duration_ns, blocks=lab.device.sm_count, fill_sms=True)  # noqa: SLF001


def streaming_add(lab: Session, x: Any, y: Any, out: Any, *, stream: _Target = None) -> None:
    """Enqueue ``out = x + y``: three arrays' worth of memory traffic and next to no arithmetic.

    Take elements of 16 bytes (complex128) to reach what the memory gives: CuPy's kernel handles one element a thread, and on
    an H200 float16 reached 1.3 TB/s, float32 2.5 TB/s and complex128 4.4 TB/s (CuPy 14.2).
    """
    _require_session("streaming_add(lab, x, y, out)", lab)
    with _where(lab, stream):
        lab.xp.add(x, y, out=out)


def matrix_product(lab: Session, a: Any, b: Any, out: Any, *, stream: _Target = None) -> None:
    """Enqueue ``out = a @ b``: 2 m n k operations for ``a`` of shape (m, k) and ``b`` of shape (k, n)."""
    _require_session("matrix_product(lab, a, b, out)", lab)
    with _where(lab, stream):
        lab.xp.matmul(a, b, out=out)


def copy_to_device(lab: Session, host: Any, device: Any, *, stream: _Target = None) -> None:
    """Enqueue a copy of a host array into a device array of its shape and type; asynchronous if `host` is page-locked."""
    _require_session("copy_to_device(lab, host, device)", lab)
    _require_device_array("copy_to_device(lab, host, device)", device)
    with _where(lab, stream):
        device.set(host)


def copy_to_host(lab: Session, device: Any, host: Any, *, stream: _Target = None) -> None:
    """Enqueue a copy of a device array into a host array of its shape and type; asynchronous if `host` is page-locked."""
    _require_session("copy_to_host(lab, device, host)", lab)
    _require_device_array("copy_to_host(lab, device, host)", device)
    with _where(lab, stream):
        device.get(out=host, blocking=False)


def modelled(
    lab: Session,
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
    stream: _Target = None,
) -> ModelledKernel:
    """Enqueue a kernel of your own on the simulated device: you say what it takes, the model for how long. It computes nothing.

    Parameters
    ----------
    name
        What it is called in records.
    blocks
        Blocks of the grid, at most `MAX_BLOCKS`.
    threads_per_block, registers_per_thread, shared_bytes
        What a block takes of an SM: up to 1,024 threads, 255 registers of 32 bits for each, and shared memory in bytes. They
        decide how many blocks an SM holds at once, and nothing else.
    bytes_per_block, operations_per_block
        What a block reads and writes of the device's memory in bytes, and its arithmetic operations. A block takes the longer
        of the two, by its share of an SM's speed and of what an SM draws from memory; 1.5 us at least.
    sm_operations_per_s
        Operations per second of one SM; None for 0.4e12 (``h200``), plain 32-bit arithmetic.
    cooperative
        Whether it begins only when there is room for all its blocks at once, as ``cudaLaunchCooperativeKernel`` has it.
    stream
        Where: a stream's name, a stream, or an object with ``__cuda_stream__``; None for the one selected in this thread.

    Returns
    -------
    gpustreamlab.backends.sim.ModelledKernel
        How many blocks an SM holds and why, waves, and the time in ns that it takes alone on the stream's SMs.

    Raises
    ------
    OptionError
        If a number is out of range, no block fits on an SM, not all of a cooperative kernel do at once, it would take more than
        13 days, or the session is on a GPU.
    SelectionError
        If no stream is given, and none is selected in this thread.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     lab.stream("a")
    ...     kernel = modelled(lab, "scale", blocks=1_056, threads_per_block=256, bytes_per_block=65_536, stream="a")
    ...     kernel.blocks_per_sm, kernel.limited_by, kernel.waves, kernel.alone_ns
    <Stream 'a', ...>
    (8, 'threads', 1, 16284)
    """
    _require_session("modelled(lab, name, blocks=..., threads_per_block=...)", lab)
    if not lab.device.simulated:
        raise OptionError(
            f"Kernel {name!r:.40} was to be modelled, and this session is on a GPU, where kernels are measured: write it with "
            "lab.xp.RawKernel, or open gpustreamlab.Session('sim')."
        )
    with _target(lab, stream, "modelled") as chosen:
        made: ModelledKernel = lab.recording.backend.launch_own(  # type: ignore[attr-defined]
            chosen._backend_stream,  # noqa: SLF001
            name,
            blocks=blocks,
            threads_per_block=threads_per_block,
            registers_per_thread=registers_per_thread,
            shared_bytes=shared_bytes,
            bytes_per_block=bytes_per_block,
            operations_per_block=operations_per_block,
            sm_operations_per_s=sm_operations_per_s,
            cooperative=cooperative,
        )
    return made


def _where(lab: Session, stream: _Target) -> AbstractContextManager[Stream | None]:
    """Return what selects the stream for a moment; the library's own choice stands where none was given."""
    return nullcontext(lab.current) if stream is None else lab.select(stream)


def _target(lab: Session, stream: _Target, work: str) -> AbstractContextManager[Stream]:
    if stream is not None:
        return lab.select(stream)
    current = lab.current
    if current is None:
        raise SelectionError(
            f"{work} needs a stream: none was given, and none is selected in this thread. "
            "Use: with lab.on('name'): ... or pass stream='name'."
        )
    return nullcontext(current)


def _require_session(call: str, lab: object) -> None:
    if not isinstance(lab, Session):
        raise OptionError(
            f"{call} was given a {type(lab).__name__} as its session. Open one with lab = gpustreamlab.Session(), and pass it "
            "first."
        )


def _require_within(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise OptionError(f"{name} is {value!r:.40}; it must be a whole number from 1 to {most:,}.")


def _require_device_array(call: str, device: object) -> None:
    if not (hasattr(device, "set") and hasattr(device, "get")):
        raise OptionError(
            f"{call} was given a {type(device).__name__} as its device array. Make one with lab.xp.empty(shape, dtype), and "
            "mind the order of the two."
        )


def sample_profile() -> Path:
    """Return the path of a profile of PyTorch, to try what can be asked of a file.

    Copies, matrix products on 64 SMs, a scaling on the other 68, and a CUDA graph, each on a stream of its own, five times:
    torch 2.11 on an H100, recorded with ``enable_cuda_sync_events=True``. First a kernel spins for 20 ms on each.

    Examples
    --------
    >>> from gpustreamlab import load_trace
    >>> load_trace(sample_profile())
    <Trace: 247 spans in 5 streams and 1 host thread on NVIDIA H100 80GB HBM3>
    """
    return Path(__file__).parent / "exchange" / "sample_profile.json.gz"
