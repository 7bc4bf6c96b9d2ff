"""Streams that others own: which can be lanes, and why not."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from gpustreamlab.errors import StreamRefusedError

DEFAULT_STREAM_REASONS = MappingProxyType(
    {
        0: "the NULL stream, which means another context in every thread and waits for all blocking streams",
        1: "the legacy default stream, which waits for all blocking streams, so it cannot overlap with them",
        2: "the per-thread default stream, which is another stream in every thread",
    }
)
"""Handles that name no one stream, and why none can be a lane. Source: CUDA driver API, stream synchronisation behaviour."""


_TOO_LARGE = 1 << 64


def lent_handle(lender: Any) -> int:
    """Return the handle of the stream that an object lends through ``__cuda_stream__``.

    Raises
    ------
    StreamRefusedError
        If the object lends none, speaks another version of the protocol, or lends a default stream or what is no handle.
    """
    if isinstance(lender, type) or not callable(getattr(lender, "__cuda_stream__", None)):
        raise StreamRefusedError(_why_none_lent(lender))
    lent: object = lender.__cuda_stream__()
    if not isinstance(lent, tuple) or len(lent) != 2 or lent[0] != 0:
        raise StreamRefusedError(
            f"{type(lender).__name__}.__cuda_stream__() gave {lent!r}; version 0 of the protocol gives (0, handle)."
        )
    handle = _read_handle(lender, lent[1])
    if handle in DEFAULT_STREAM_REASONS:
        raise StreamRefusedError(
            f"Stream handle {handle} is {DEFAULT_STREAM_REASONS[handle]}; it cannot be a lane. "
            "Make a stream of your own: lab.stream('name'), cupy.cuda.Stream(non_blocking=True) or torch.cuda.Stream()."
        )
    return handle


def refuse_stream(lender: object, handle: int, why: str, *, fix: str) -> StreamRefusedError:
    """Return the error for a stream that cannot be a lane."""
    return StreamRefusedError(f"The stream {handle:#x} of a {type(lender).__name__} {why}; it cannot be a lane. {fix}")


def _why_none_lent(lender: object) -> str:
    has_it = hasattr(lender, "__cuda_stream__")
    if isinstance(lender, type) and has_it:
        return f"The class {lender.__name__} lends no CUDA stream; an instance does. Pass one, for example {lender.__name__}()."
    if has_it:
        return f"{type(lender).__name__}.__cuda_stream__ is not a method. Make it one that returns (0, handle)."
    return (
        f"{_described(lender)} lends no CUDA stream: it has no __cuda_stream__ method. "
        "Pass the stream object of CuPy, torch, cuda.core or another library, not its handle."
    )


def _described(lender: object) -> str:
    if lender is None:
        return "None"
    if isinstance(lender, type):
        return f"The class {lender.__name__}"
    return f"{lender!r:.40}, of type {type(lender).__name__},"


def _read_handle(lender: object, value: object) -> int:
    try:
        if isinstance(value, (bool, float, str)):
            raise TypeError
        handle = int(value)  # type: ignore[call-overload]  # handles of some libraries are ints by __int__ alone
    except (TypeError, ValueError):
        handle = -1
    if not 0 <= handle < _TOO_LARGE:
        raise StreamRefusedError(
            f"{type(lender).__name__}.__cuda_stream__() gave {value!r} as its handle, "
            "which is not the address of a cudaStream_t. "
            "Pass the stream object of CuPy, torch, cuda.core or another library."
        )
    return int(handle)
