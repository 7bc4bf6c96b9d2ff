"""What a backend may have beyond the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import Touch
from gpustreamlab.errors import GraphCaptureError, StreamRefusedError
from gpustreamlab.model import Capabilities, Capability, SMResource
from gpustreamlab.typing import Feature

Version = tuple[int, int]  # Major and minor number, for example (13, 1)


class _Need(NamedTuple):
    version: Version
    """The CUDA version that both the driver and the bindings need."""
    fallback: str
    """What happens without it."""


_NEEDS = {
    Feature.GREEN_CONTEXTS: _Need((12, 5), "plain streams that share all SMs"),
    Feature.UNEQUAL_SPLIT: _Need(
        (13, 1), "partitions are made of several of the smallest groups, which reaches their multiples"
    ),
    Feature.COSCHEDULING: _Need((13, 1), "groups of the device's own size"),
    Feature.BACKFILL: _Need((13, 1), "counts are rounded to whole groups"),
    Feature.WORKQUEUES: _Need((13, 1), "all partitions share work queues"),
    Feature.STREAM_ORDERED_MEMORY: _Need(
        (11, 2), "scratch memory comes from cudaMalloc, and giving it back waits for the stream's work"
    ),
}
"""Source: CUDA driver API 12.5 and 13.1, "Green Contexts"; `FACTS.md` for what 13.0 does; 11.2,
"Stream Ordered Memory Allocator".

Green contexts came with 12.4, but ``cuGreenCtxStreamCreate`` with 12.5. Without it, a stream can only be made while the context
is current, which a session never does.
"""


def green_capabilities(
    driver: Version | None,
    bindings: Version | None,
    resource: SMResource | None,
    problem: str = "",
    *,
    has_memory_pools: bool = True,
) -> Capabilities:
    """Say which features a device has."""
    return Capabilities(
        tuple(
            _with_pools(item, has_memory_pools)
            if item.feature is Feature.STREAM_ORDERED_MEMORY
            else _on_device(item, resource, problem)
            for item in version_capabilities(driver, bindings)
        )
    )


def _with_pools(item: Capability, has_memory_pools: bool) -> Capability:  # noqa: FBT001 - a fact of the device
    if has_memory_pools or not item.available:
        return item
    return replace(item, available=False, detail="this device has no memory pools", needs="a GPU that has memory pools")


def _on_device(item: Capability, resource: SMResource | None, problem: str) -> Capability:
    if not item.available:
        return item
    if resource is None:
        detail = problem or "this device cannot partition its SMs"
        return replace(item, available=False, detail=detail, needs="a GPU that has green contexts")
    return replace(item, detail=_sizes(resource)) if item.feature is Feature.GREEN_CONTEXTS else item


def version_capabilities(driver: Version | None, bindings: Version | None) -> Capabilities:
    """Say which features the versions of the driver and the bindings allow, whatever the device."""
    return Capabilities(tuple(_by_version(feature, need, driver, bindings) for feature, need in _NEEDS.items()))


def _by_version(feature: Feature, need: _Need, driver: Version | None, bindings: Version | None) -> Capability:
    missing, lacks_package = "", False
    if driver is None:
        missing = "there is no driver"
    elif driver < need.version:
        missing = f"the driver supports CUDA {_text(driver)}"
    elif bindings is None or bindings < need.version:
        lacks_package = True
        missing = "cuda.bindings is not installed" if bindings is None else f"cuda.bindings is for CUDA {_text(bindings)}"
    return Capability(
        feature=feature,
        available=not missing,
        detail=missing or "available",
        needs=f"CUDA {_text(need.version)} in the driver and the bindings",
        fallback=need.fallback,
        lacks_package=lacks_package,
    )


def _sizes(resource: SMResource) -> str:
    rest = f" and {resource.remainder_sms} SMs left over" if resource.remainder_sms else ""
    return (
        f"{resource.usable_sms} SMs, at least {resource.min_sms} a partition, in steps of {resource.group_sms} "
        f"({resource.group_count} groups{rest})"
    )


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


DEFAULT_STREAM_REASONS = MappingProxyType(
    {
        0: "the NULL stream, which means another context in every thread and waits for all blocking streams",
        1: "the legacy default stream, which waits for all blocking streams, so it cannot overlap with them",
        2: "the per-thread default stream, which is another stream in every thread",
    }
)
"""Handles that name no one stream, and why. Source: CUDA driver API, stream synchronisation behaviour."""


def lent_handle(lender: Any) -> int:
    """Return the handle of the stream that an object lends through ``__cuda_stream__``."""
    name = type(lender).__name__
    if isinstance(lender, type) or not callable(getattr(lender, "__cuda_stream__", None)):
        raise StreamRefusedError(
            f"{lender!r:.60}, of type {name}, lends no CUDA stream: it has no method __cuda_stream__. Pass the stream object "
            "of CuPy, torch, cuda.core or another library, not its handle or its class."
        )
    lent: object = lender.__cuda_stream__()
    if not isinstance(lent, tuple) or len(lent) != 2 or lent[0] != 0 or isinstance(lent[1], (bool, float, str)):
        raise _refuse_lent(name, lent)
    try:
        handle = int(lent[1])  # handles of some libraries are ints by __int__ alone
    except (TypeError, ValueError):
        raise _refuse_lent(name, lent) from None
    if not 0 <= handle < 1 << 64:
        raise _refuse_lent(name, lent)
    if handle in DEFAULT_STREAM_REASONS:
        raise StreamRefusedError(
            f"Stream handle {handle} is {DEFAULT_STREAM_REASONS[handle]}; no session can take it. "
            "Make a stream of your own: lab.stream('name'), cupy.cuda.Stream(non_blocking=True) or torch.cuda.Stream()."
        )
    return handle


def _refuse_lent(name: str, lent: object) -> StreamRefusedError:
    return StreamRefusedError(
        f"{name}.__cuda_stream__() gave {lent!r:.60}; version 0 of the protocol gives (0, handle), the address of a stream."
    )


def refuse_stream(lender: object, handle: int, why: str, *, fix: str) -> StreamRefusedError:
    """Return the error for a stream that no session can take."""
    return StreamRefusedError(f"The stream {handle:#x} of a {type(lender).__name__} {why}; no session can take it. {fix}")


class WatchedArrays(NamedTuple):
    """Arrays whose accesses are told of."""

    xp: Any
    """The array module that tells."""
    find: Callable[[object], Touch | None]
    """Returns which memory an array is; None for one of another library."""
    null_stream: Any
    """The stream that works while no stream is selected; it takes ``record(event)`` and ``wait(event)``."""
    track: Callable[[Any], Any] | None = None
    """Returns an array of the library as one that tells, in the same memory; None where all of them do."""


def refuse_capture(call: str, fix: str) -> GraphCaptureError:
    """Return the error for a call that no CUDA graph can hold."""
    return GraphCaptureError(
        f"{call} cannot be captured into a CUDA graph: what is captured runs at each launch, not now. {fix}"
    )


def explain_unjoined(origin: int, unjoined: Sequence[int] = ()) -> GraphCaptureError:
    """Return the error for streams that joined a capture and do not end in its first stream; none are given where unknown."""
    which = ", ".join(f"{handle:#x}" for handle in unjoined) or "a stream"
    return GraphCaptureError(
        f"The capture that began on stream {origin:#x} ended while it does not wait for all captured work: that of {which}. "
        "Before the end let the first stream wait for each of the others: first.wait(other).",
        unjoined=unjoined,
        driver_code="STREAM_CAPTURE_UNJOINED",
    )


Copy = Callable[[NDArray[Any]], NDArray[Any]]


def duplicate_host(arrays: Sequence[NDArray[Any]], copy: Copy = lambda owner: owner.copy(order="K")) -> list[NDArray[Any]]:
    """Return copies of NumPy arrays.

    Examples
    --------
    >>> x = np.arange(6)
    >>> whole, part = duplicate_host([x, x[2:4]])
    >>> whole[2:4] = 0
    >>> part.tolist(), x.tolist()
    ([0, 0], [0, 1, 2, 3, 4, 5])
    """
    owners: dict[int, NDArray[Any]] = {}
    made = []
    for array in arrays:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in owners:
            owners[id(owner)] = copy(owner)
        made.append(_view_of(array, owner, owners[id(owner)]))
    return made


def _view_of(array: NDArray[Any], owner: NDArray[Any], copied: NDArray[Any]) -> NDArray[Any]:
    """Return the view of a copied owner that an array is of its own."""
    if array is owner or not array.size:
        return copied if array is owner else array.copy()
    flat = copied.reshape(-1, order="A").view(np.uint8)
    offset = int(array.__array_interface__["data"][0]) - int(owner.__array_interface__["data"][0])
    return np.ndarray(array.shape, array.dtype, buffer=flat, offset=offset, strides=array.strides)
