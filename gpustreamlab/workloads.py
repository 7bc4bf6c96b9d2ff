"""The same named work on the GPU and on the simulated device: for lessons, contract tests and benchmarks."""

from __future__ import annotations

from typing import Any

from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.session import Session
from gpustreamlab.streams import Stream

__all__ = ["copy_to_device", "copy_to_host", "matrix_product", "spin", "spin_card", "streaming_add"]


def spin(lab: Session, duration_ns: int, *, blocks: int = 1) -> None:
    """Enqueue a kernel on the selected stream whose blocks each stay busy for a time, and use next to nothing else.

    Parameters
    ----------
    duration_ns
        How long each block is busy, in ns of the device's clock.
    blocks
        How many blocks; several fit onto one SM.

    Raises
    ------
    SelectionError
        If no stream is selected in this thread.
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     lab.stream("a")
    ...     with lab.on("a", "spin"):
    ...         spin(lab, 50_000)
    ...     lab.synchronize()
    ...     int(lab.trace.duration_ns[0]) >= 50_000
    <Stream 'a', ...>
    True
    """
    lab.backend.launch_spin(
        _selected(lab, "spin").backend_stream,
        _positive("duration_ns", duration_ns),
        blocks=_positive("blocks", blocks),
        fill_sms=False,
    )


def spin_card(lab: Session, duration_ns: int) -> None:
    """Enqueue a kernel on the selected stream that takes every SM of the card for a time: one block an SM.

    Two of them cannot run side by side, whatever their streams.
    """
    stream = _selected(lab, "spin_card").backend_stream
    lab.backend.launch_spin(stream, _positive("duration_ns", duration_ns), blocks=lab.device.sm_count, fill_sms=True)


def streaming_add(lab: Session, x: Any, y: Any, out: Any) -> None:
    """Enqueue ``out = x + y``: three arrays' worth of memory traffic and next to no arithmetic.

    Take elements of 16 bytes (complex128) to reach what the memory gives: CuPy's kernel handles one element a thread, and on
    an H200 float16 reached 1.3 TB/s, float32 2.5 TB/s and complex128 4.4 TB/s (CuPy 14.2).
    """
    lab.xp.add(x, y, out=out)


def matrix_product(lab: Session, a: Any, b: Any, out: Any) -> None:
    """Enqueue ``out = a @ b``: 2 m n k operations for ``a`` of shape (m, k) and ``b`` of shape (k, n)."""
    lab.xp.matmul(a, b, out=out)


def copy_to_device(host: Any, device: Any) -> None:
    """Enqueue a copy of a host array into a device array of its shape and type; asynchronous if `host` is page-locked."""
    _require_device_array("copy_to_device(host, device)", device)
    device.set(host)


def copy_to_host(device: Any, host: Any) -> None:
    """Enqueue a copy of a device array into a host array of its shape and type; asynchronous if `host` is page-locked."""
    _require_device_array("copy_to_host(device, host)", device)
    device.get(out=host, blocking=False)


def _selected(lab: Session, work: str) -> Stream:
    current = lab.current
    if current is None:
        raise SelectionError(f"{work} needs a stream, and none is selected in this thread. Use: with lab.on('name'): ...")
    return current


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} is {value!r}; it is a whole number of at least 1.")
    return value


def _require_device_array(call: str, device: object) -> None:
    if not (hasattr(device, "set") and hasattr(device, "get")):
        raise OptionError(
            f"{call} was given a {type(device).__name__} as its device array. Make one with lab.xp.empty(shape, dtype), and "
            "mind the order of the two."
        )
