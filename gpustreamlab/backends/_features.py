"""Which features of partitions a driver and its Python bindings have."""

from __future__ import annotations

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
    Feature.GREEN_CONTEXTS: _Need((12, 4), "plain streams that share all SMs, with one warning, or an error with strict=True"),
    Feature.UNEQUAL_SPLIT: _Need(
        (13, 1), "partitions are made of several of the smallest groups, which reaches their multiples"
    ),
    Feature.COSCHEDULING: _Need((13, 1), "groups of the device's own size, with one warning, or an error with strict=True"),
    Feature.BACKFILL: _Need((13, 1), "counts are rounded to whole groups, with one warning, or an error with strict=True"),
    Feature.WORKQUEUES: _Need((13, 1), "all partitions share work queues, with one warning, or an error with strict=True"),
}
"""Source: CUDA driver API 12.4 and 13.1, "Green Contexts"; `FACTS.md` for what 13.0 does."""


def green_capabilities(
    driver: Version | None, bindings: Version | None, resource: SMResource | None, problem: str = ""
) -> Capabilities:
    """Say which features are there.

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

    Examples
    --------
    >>> old = green_capabilities((12, 2), (13, 0), None)
    >>> print(old["green-contexts"])
    green-contexts: not available, the driver supports CUDA 12.2; it needs CUDA 12.4 in the driver and the bindings. Without it: \
plain streams that share all SMs, with one warning, or an error with strict=True
    """
    items = []
    for feature, need in _NEEDS.items():
        missing = _missing(need.version, driver, bindings) or (
            "" if resource else problem or "this device cannot partition its SMs"
        )
        detail = missing or (_sizes(resource) if feature is Feature.GREEN_CONTEXTS and resource else "available")
        items.append(
            Capability(
                feature=feature,
                available=not missing,
                detail=detail,
                needs=f"CUDA {_text(need.version)} in the driver and the bindings",
                fallback=need.fallback,
            )
        )
    return Capabilities(tuple(items))


def _missing(needed: Version, driver: Version | None, bindings: Version | None) -> str:
    if driver is None:
        return "there is no driver"
    if driver < needed:
        return f"the driver supports CUDA {_text(driver)}"
    if bindings is None:
        return "cuda.bindings is not installed"
    if bindings < needed:
        return f"cuda.bindings is for CUDA {_text(bindings)}"
    return ""


def _sizes(resource: SMResource) -> str:
    rest = f" and {resource.remainder_sms} SMs left over" if resource.remainder_sms else ""
    return (
        f"{resource.usable_sms} SMs, at least {resource.min_sms} a partition, in steps of {resource.group_sms} "
        f"({resource.group_count} groups{rest})"
    )


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
