"""Which features of partitions a driver and its Python bindings have."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gpustreamlab.model import Capabilities, Capability, SMResource
from gpustreamlab.typing import Feature

Version = tuple[int, int]
"""Major and minor number, for example (13, 1)."""


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
        (11, 2), "scratch memory comes from cudaMalloc, and a lane waits for its work where its arena grows or is trimmed"
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
    """Say which features a device has.

    Parameters
    ----------
    driver
        The CUDA version that the driver supports; None where there is no driver.
    bindings
        The CUDA version that the Python bindings were made for; None where there are none.
    resource
        How the device's SMs can be shared out; None where they cannot.
    problem
        Why `resource` is None although the versions are new enough.
    has_memory_pools
        Whether the device allocates memory in the order of a stream.

    Examples
    --------
    >>> old = green_capabilities((12, 2), (13, 0), None)
    >>> print(old["green-contexts"])
    green-contexts: not available, the driver supports CUDA 12.2; it needs CUDA 12.5 in the driver and the bindings. Without
    it: plain streams that share all SMs
    """
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
