"""Which SMs a context gets, what each preset's driver can do, and what it refuses."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.sim import H200, LAPTOP, PRESETS, DevicePreset, SimBackend, SMGroups
from gpustreamlab.backends.sim._sms import SMSplitter
from gpustreamlab.errors import DeviceError, NotSimulatedError, OptionError
from gpustreamlab.model import SMResource, WorkqueueOptions
from gpustreamlab.typing import Feature

GREEN = ContextSpec(groups=(0,))
STRUCTURED = ContextSpec(split=(SplitGroup(sms=16), SplitGroup(sms=32)), place=1)
WORKQUEUE = ContextSpec(groups=(0,), workqueue=WorkqueueOptions())
OLD = "h200-cuda12.2"
NEW = SMSplitter(PRESETS["h200-cuda13.1"])


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
    ("groups", "preset", "words"),
    [
        ({"min_sms": 0}, {}, "SMGroups has"),
        ({"alignment_sms": 0}, {}, "SMGroups has"),
        ({"table": ((0, 1),)}, {}, "SMGroups has"),
        ({"table": ((0, 1, 2, 3), (3, 4, 5, 6))}, {}, "SMGroups has"),
        ({}, {"sm_count": 3}, "do not fit"),
        ({"table": TABLE}, {"sm_count": 3}, "do not fit"),
        *(({}, {"driver_version": version}, "driver_version") for version in ("", "13", "13.x", "13.0.1", "v13.0")),
    ],
)
def test_impossible_sizes_and_versions_are_refused(groups, preset, words):
    with pytest.raises(OptionError, match=words):
        DevicePreset(
            **{"name": "x", "sm_count": 8, **preset}, sm_groups=SMGroups(**{"min_sms": 4, "alignment_sms": 4, **groups})
        )


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


@pytest.mark.parametrize(("version", "available"), [("12.4", False), ("12.5", True), ("13.0", True), ("14.0", True)])
def test_a_driver_of_ones_own(version, available):
    preset = dataclasses.replace(LAPTOP, sm_groups=SMGroups(min_sms=4, alignment_sms=2), driver_version=version)
    resource = SimBackend(preset).device.sm_resource
    assert (resource is not None) is available
    if available:
        assert (resource.group_sms, resource.group_count, resource.remainder_sms) == (4, 6, 0)


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


@pytest.mark.parametrize(
    ("preset", "spec", "sms"), [("h200", GREEN, 8), ("h200-cuda13.1", STRUCTURED, 32), ("h200-cuda13.1", WORKQUEUE, 8)]
)
def test_what_is_there_is_granted(preset, spec, sms):
    assert SimBackend(preset).create_context(spec).sm_count == sms


SIXTEEN = SMSplitter(DevicePreset(name="x", sm_count=16, sm_groups=SMGroups(min_sms=8, alignment_sms=8)))


@pytest.mark.parametrize(
    ("splitter", "spec", "code", "words"),
    [
        *(
            (NEW, ContextSpec(groups=groups), "INVALID_RESOURCE_CONFIGURATION", "0 to 15.*15 is the remainder of 12 SMs")
            for groups in ((16,), (-1,), (0, 99), (3, 3), (10**9,))
        ),
        (SIXTEEN, ContextSpec(groups=(2,)), "INVALID_RESOURCE_CONFIGURATION", r"0 to 1, each once\.$"),
        (NEW, ContextSpec(), "INVALID_VALUE", "neither was given"),
        (NEW, dataclasses.replace(STRUCTURED, groups=(0,)), "INVALID_VALUE", "both was given"),
        (NEW, dataclasses.replace(STRUCTURED, place=2), "INVALID_VALUE", "Give 0 to 1"),
        (NEW, dataclasses.replace(STRUCTURED, place=-1), "INVALID_VALUE", "Give 0 to 1"),
    ],
)
def test_specs_that_name_no_sms_are_refused(splitter, spec, code, words):
    with pytest.raises(DeviceError, match=words) as caught:
        splitter.find_sm_ids(spec)
    assert caught.value.driver_code == code


def split(*groups):
    return [NEW.find_sm_ids(ContextSpec(split=groups, place=place)) for place in range(len(groups))]


class TestStructuredSplit:
    def test_it_takes_the_card_in_order(self):
        ids = H200.sm_groups.cut(132)
        first, second = split(SplitGroup(sms=16), SplitGroup(sms=8))
        assert first == {*ids[0], *ids[1]}
        assert second == set(ids[2])

    def test_small_co_scheduled_sizes_stay_within_a_group(self):
        first, second = split(SplitGroup(sms=4, coscheduled_sms=4), SplitGroup(sms=6, coscheduled_sms=2))
        assert first == {0, 1, 16, 17}
        assert second == {32, 33, 48, 49, 2, 3}

    def test_backfill_reaches_every_sm(self):
        first, second = split(SplitGroup(sms=36, backfill=True), SplitGroup(sms=96))
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
    def test_what_cannot_be_granted_is_refused(self, groups):
        with pytest.raises(DeviceError, match="Creating a green context failed") as caught:
            split(*groups)
        assert caught.value.driver_code == "INVALID_RESOURCE_CONFIGURATION"

    def test_the_same_split_refuses_all_its_places(self):
        groups = (SplitGroup(sms=8), SplitGroup(sms=12))
        for place in (0, 1):
            with pytest.raises(DeviceError, match="12 SMs are no multiple of 8"):
                NEW.find_sm_ids(ContextSpec(split=groups, place=place))

    def test_large_co_scheduled_sizes_are_not_modelled(self):
        with pytest.raises(NotSimulatedError, match="at most 8"):
            split(SplitGroup(sms=16, coscheduled_sms=16))

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
    def test_what_is_granted_is_disjoint_exact_and_scheduled_together(self, groups):
        try:
            granted = split(*groups)
        except DeviceError:
            assert sum(group.sms for group in groups) > 100  # only a crowded card refuses whole multiples
            return
        assert [len(ids) for ids in granted] == [group.sms for group in groups]
        assert len(set().union(*granted)) == sum(group.sms for group in groups)
        for group, ids in zip(groups, granted, strict=True):
            if not group.backfill:
                sizes = [len(ids & set(cut)) for cut in H200.sm_groups.cut(132)]
                assert all(size % (group.coscheduled_sms or 8) == 0 for size in sizes)
