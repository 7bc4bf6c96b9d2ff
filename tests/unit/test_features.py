"""Which features a driver and its bindings have, by version and by device."""

from __future__ import annotations

import itertools

import pytest

from gpustreamlab.backends import green_capabilities
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.model import SMResource
from gpustreamlab.typing import Feature

H200 = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)
OLDER = (Feature.GREEN_CONTEXTS, Feature.STREAM_ORDERED_MEMORY)
NEWER = [feature for feature in Feature if feature not in OLDER]

VERSIONS = [None, (11, 8), (12, 0), (12, 4), (12, 5), (12, 9), (13, 0), (13, 1), (13, 2), (14, 0)]


@pytest.mark.parametrize("driver", VERSIONS)
@pytest.mark.parametrize("bindings", VERSIONS)
def test_both_the_driver_and_the_bindings_have_to_be_new_enough(driver, bindings):
    capabilities = green_capabilities(driver, bindings, H200)
    older = min(driver or (0, 0), bindings or (0, 0))
    assert capabilities.has("green-contexts") == (older >= (12, 5))
    assert capabilities.has("stream-ordered-memory") == (older >= (11, 2))
    assert {capabilities.has(feature) for feature in NEWER} == {older >= (13, 1)}


@pytest.mark.parametrize(("driver", "bindings"), list(itertools.product(VERSIONS, VERSIONS)))
def test_what_is_missing_says_what_it_needs_and_what_happens_without_it(driver, bindings):
    for item in green_capabilities(driver, bindings, H200):
        assert item.needs.startswith("CUDA 1")
        assert item.fallback
        assert item.available or "; it needs CUDA" in str(item)
        assert item.available or "Without it: " in str(item)
        # The fix is a package only where the driver is new enough.
        assert item.lacks_package == (not item.available and driver is not None and driver >= need_of(item))


def need_of(item):
    return tuple(int(part) for part in item.needs.split()[1].split("."))


@pytest.mark.parametrize(
    ("driver", "bindings", "detail"),
    [
        (None, (13, 0), "there is no driver"),
        ((12, 2), (13, 0), "the driver supports CUDA 12.2"),
        ((13, 0), None, "cuda.bindings is not installed"),
        ((13, 0), (12, 3), "cuda.bindings is for CUDA 12.3"),
        ((12, 2), None, "the driver supports CUDA 12.2"),
    ],
)
def test_the_first_thing_that_is_missing_is_named(driver, bindings, detail):
    assert green_capabilities(driver, bindings, H200)["green-contexts"].detail == detail


def test_sizes_are_told_where_it_works():
    detail = green_capabilities((13, 0), (13, 0), H200)["green-contexts"].detail
    assert detail == "132 SMs, at least 8 a partition, in steps of 8 (15 groups and 12 SMs left over)"
    even = SMResource(min_sms=4, alignment_sms=2, group_sms=4, group_count=6)
    assert green_capabilities((13, 0), (13, 0), even)["green-contexts"].detail.endswith("(6 groups)")


def test_a_device_that_cannot_partition_has_none_of_it():
    capabilities = green_capabilities((13, 1), (13, 1), None)
    assert [item.feature for item in capabilities if item.available] == [Feature.STREAM_ORDERED_MEMORY]
    assert capabilities["workqueues"].detail == "this device cannot partition its SMs"
    assert green_capabilities((13, 1), (13, 1), None, "no luck")["workqueues"].detail == "no luck"


def test_a_device_without_memory_pools_says_what_scratch_does_then():
    item = green_capabilities((13, 1), (13, 1), H200, has_memory_pools=False)["stream-ordered-memory"]
    assert not item.available
    assert item.detail == "this device has no memory pools"
    assert "cudaMalloc" in item.fallback
    old = green_capabilities((11, 1), (13, 1), H200, has_memory_pools=False)["stream-ordered-memory"]
    assert old.detail == "the driver supports CUDA 11.1"


@pytest.mark.parametrize(
    ("preset", "available"),
    [("h200", [Feature.GREEN_CONTEXTS]), ("h200-cuda13.1", list(Feature)[:5]), ("h200-cuda12.2", []), ("laptop", [])],
)
def test_presets_have_what_their_driver_has(preset, available):
    backend = SimBackend(preset)
    assert [item.feature for item in backend.capabilities if item.available] == [*available, Feature.STREAM_ORDERED_MEMORY]
    assert (backend.device.sm_resource is not None) == bool(available)
    assert (backend.device.sm_resource is not None and backend.device.sm_resource.is_structured) == (len(available) == 5)
