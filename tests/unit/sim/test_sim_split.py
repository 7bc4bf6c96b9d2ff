"""Which SMs a context gets, what each preset's driver can do, and what it refuses."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.sim import H200, PRESETS, DevicePreset, SimBackend, SMGroups
from gpustreamlab.errors import DeviceError, NotSimulatedError, OptionError
from gpustreamlab.model import SMResource, WorkqueueOptions
from gpustreamlab.typing import Feature

GREEN = ContextSpec(groups=(0,))
STRUCTURED = ContextSpec(split=(SplitGroup(sms=16), SplitGroup(sms=32)), place=1)
WORKQUEUE = ContextSpec(groups=(0,), workqueue=WorkqueueOptions())
OLD = "h200-cuda12.2"


def sms_of(backend, spec):
    return backend.create_context(spec)._sm_ids


@pytest.fixture(scope="module")
def new():
    return SimBackend("h200-cuda13.1")


def test_groups_of_an_h200_are_as_measured():
    groups = H200.sm_groups.cut(132)
    assert [len(group) for group in groups] == [8] * 15 + [12]
    assert groups[0] == (0, 1, 16, 17, 32, 33, 48, 49)
    assert groups[8] == (64, 65, 78, 79, 92, 93, 106, 107)
    assert groups[14] == (76, 77, 90, 91, 104, 105, 118, 119)
    assert groups[15] == tuple(range(120, 132))
    assert sorted(sm for group in groups for sm in group) == list(range(132))


def test_groups_without_a_table_follow_each_other():
    assert SMGroups(min_sms=6, alignment_sms=4).cut(20) == (tuple(range(8)), tuple(range(8, 16)), (16, 17, 18, 19))
    assert SMGroups(min_sms=2, alignment_sms=2).cut(4) == ((0, 1), (2, 3), ())


TABLE = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("groups", "sm_count"),
    [
        *(({"min_sms": 0}, 8), ({"alignment_sms": 0}, 8), ({}, 3), ({"table": TABLE}, 3), ({"table": ((0, 1),)}, 8)),
        ({"table": ((0, 1, 2, 3), (3, 4, 5, 6))}, 8),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, sm_count):
    with pytest.raises(OptionError, match="does not fit a device with SMs 0 to"):
        DevicePreset(name="x", sm_count=sm_count, sm_groups=SMGroups(**{"min_sms": 4, "alignment_sms": 4, **groups}))


EIGHTS = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)


@pytest.mark.parametrize(
    ("name", "version", "features", "resource", "reason"),
    [
        ("h200", "13.0", {Feature.GREEN_CONTEXTS}, EIGHTS, "132 SMs|120"),
        ("h200-cuda13.1", "13.1", set(Feature), dataclasses.replace(EIGHTS, is_structured=True), "132 SMs|120"),
        (OLD, "12.2", set(), None, "the driver supports CUDA 12.2"),
        ("laptop", "13.0", set(), None, "this device cannot partition its SMs"),
    ],
)
def test_what_the_presets_can_do(name, version, features, resource, reason):
    backend = SimBackend(name)
    available = {item.feature for item in backend.capabilities if item.available}
    assert available == features | {Feature.STREAM_ORDERED_MEMORY}
    assert (backend.device.driver_version, backend.device.sm_resource, backend.name) == (version, resource, "sim")
    assert re.search(reason, backend.capabilities[Feature.GREEN_CONTEXTS].detail)
    if name.startswith("h200"):
        assert dataclasses.replace(PRESETS[name], driver_version=H200.driver_version) == H200


@pytest.mark.parametrize(
    ("preset", "spec", "feature"),
    [
        (OLD, GREEN, "green-contexts"),
        ("laptop", GREEN, "green-contexts"),
        (OLD, STRUCTURED, "green-contexts"),
        ("h200", STRUCTURED, "unequal-split"),
        ("h200", WORKQUEUE, "workqueues"),
    ],
)
def test_what_is_missing_is_refused_by_name(preset, spec, feature):
    with pytest.raises(DeviceError, match=f"has no {feature}.*It needs .*Without it: ") as caught:
        SimBackend(preset).create_context(spec)
    assert caught.value.driver_code == "NOT_SUPPORTED"


@pytest.mark.parametrize("groups", [(16,), (-1,), (0, 99), (3, 3), (10**9,), ()])
def test_groups_that_there_are_not_are_refused(new, groups):
    with pytest.raises(DeviceError, match="Give numbers from 0 to 15, each once") as caught:
        sms_of(new, ContextSpec(groups=groups))
    assert caught.value.driver_code == "INVALID_RESOURCE_CONFIGURATION"


def split(backend, *groups):
    return [sms_of(backend, ContextSpec(split=groups, place=place)) for place in range(len(groups))]


class TestStructuredSplit:
    def test_it_takes_the_card_in_order(self, new):
        ids = H200.sm_groups.cut(132)
        first, second = split(new, SplitGroup(sms=16), SplitGroup(sms=8))
        assert first == {*ids[0], *ids[1]}
        assert second == set(ids[2])

    def test_backfill_reaches_every_sm(self, new):
        first, second = split(new, SplitGroup(sms=36, backfill=True), SplitGroup(sms=96))
        assert (len(first), len(second)) == (36, 96)
        assert not first & second
        assert {*range(120, 132)} < first  # those that are scheduled together went to the other one

    @pytest.mark.parametrize(
        "groups",
        [
            (SplitGroup(sms=128),),  # 15 groups of 8; the remainder's SMs are not scheduled together
            (SplitGroup(sms=120), SplitGroup(sms=4, coscheduled_sms=4)),
            (SplitGroup(sms=134, backfill=True),),
            (SplitGroup(sms=12),),
            (SplitGroup(sms=0),),
            (SplitGroup(sms=-8),),
            (SplitGroup(sms=7, backfill=True),),
            (SplitGroup(sms=9, coscheduled_sms=3),),
            (SplitGroup(sms=8, coscheduled_sms=-8),),
            (SplitGroup(sms=8, preferred_coscheduled_sms=12),),
        ],
    )
    def test_what_cannot_be_granted_is_refused(self, new, groups):
        with pytest.raises(DeviceError, match="Creating a green context failed") as caught:
            split(new, *groups)
        assert caught.value.driver_code == "INVALID_RESOURCE_CONFIGURATION"

    def test_large_co_scheduled_sizes_are_not_modelled(self, new):
        with pytest.raises(NotSimulatedError, match="at most 8"):
            split(new, SplitGroup(sms=16, coscheduled_sms=16))

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(
            st.tuples(st.sampled_from([0, 2, 4, 8]), st.integers(1, 12), st.booleans()).map(
                lambda drawn: SplitGroup(sms=(drawn[0] or 8) * drawn[1], coscheduled_sms=drawn[0], backfill=drawn[2])
            ),
            min_size=1,
            max_size=6,
        )
    )
    def test_what_is_granted_is_disjoint_exact_and_scheduled_together(self, new, groups):
        try:
            granted = split(new, *groups)
        except DeviceError:
            assert sum(group.sms for group in groups) > 100  # only a crowded card refuses whole multiples
            return
        assert [len(ids) for ids in granted] == [group.sms for group in groups]
        assert len(set().union(*granted)) == sum(group.sms for group in groups)
        for group, ids in zip(groups, granted, strict=True):
            if not group.backfill:
                sizes = [len(ids & set(cut)) for cut in H200.sm_groups.cut(132)]
                assert all(size % (group.coscheduled_sms or 8) == 0 for size in sizes)
