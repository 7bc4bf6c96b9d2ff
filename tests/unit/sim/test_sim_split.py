"""Which SMs a context gets, what each preset's driver can do, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.sim import H200, LAPTOP, PRESETS, DevicePreset, SimBackend, SMGroups
from gpustreamlab.backends.sim._cost import SMSplitter
from gpustreamlab.errors import DeviceError, NotSimulatedError, OptionError
from gpustreamlab.model import SMResource, WorkqueueOptions
from gpustreamlab.typing import Feature

GREEN = ContextSpec(groups=(0,))
STRUCTURED = ContextSpec(split=(SplitGroup(sms=16), SplitGroup(sms=32)), place=1)
WORKQUEUE = ContextSpec(groups=(0,), workqueue=WorkqueueOptions())
OLD = "h200-cuda12.2"
NEW = SMSplitter(PRESETS["h200-cuda13.1"])


class TestGroups:
    def test_those_of_an_h200_are_as_measured(self):
        groups = H200.sm_groups.cut(132)
        assert [len(group) for group in groups] == [8] * 15 + [12]
        assert groups[0] == (0, 1, 16, 17, 32, 33, 48, 49)
        assert groups[1] == (2, 3, 18, 19, 34, 35, 50, 51)
        assert groups[7] == (14, 15, 30, 31, 46, 47, 62, 63)
        assert groups[8] == (64, 65, 78, 79, 92, 93, 106, 107)
        assert groups[14] == (76, 77, 90, 91, 104, 105, 118, 119)
        assert groups[15] == tuple(range(120, 132))
        assert sorted(sm for group in groups for sm in group) == list(range(132))

    def test_without_a_table_they_follow_each_other(self):
        assert SMGroups(min_sms=6, alignment_sms=4).cut(20) == (tuple(range(8)), tuple(range(8, 16)), (16, 17, 18, 19))
        assert SMGroups(min_sms=2, alignment_sms=2).cut(4) == ((0, 1), (2, 3), ())

    @pytest.mark.parametrize(
        "wrong",
        [
            {"min_sms": 0},
            {"alignment_sms": 0},
            {"table": ((0, 1),)},
            {"table": ((0, 1, 2, 3), (3, 4, 5, 6))},
        ],
    )
    def test_impossible_sizes_are_refused(self, wrong):
        with pytest.raises(OptionError, match="SMGroups has"):
            SMGroups(**{"min_sms": 4, "alignment_sms": 4, **wrong})

    @pytest.mark.parametrize("table", [(), ((0, 1, 2, 3), (4, 5, 6, 7))])
    def test_groups_that_do_not_fit_the_device_are_refused(self, table):
        with pytest.raises(OptionError, match="do not fit"):
            DevicePreset(name="x", sm_count=3, sm_groups=SMGroups(min_sms=4, alignment_sms=4, table=table))

    @pytest.mark.parametrize("version", ["", "13", "13.x", "13.0.1", "v13.0"])
    def test_a_version_is_two_numbers(self, version):
        with pytest.raises(OptionError, match="driver_version"):
            DevicePreset(name="x", sm_count=3, driver_version=version)


class TestPresets:
    def test_what_they_can_do(self):
        has = {name: {item.feature for item in SimBackend(name).capabilities if item.available} for name in PRESETS}
        memory = Feature.STREAM_ORDERED_MEMORY
        assert has == {
            "h200": {Feature.GREEN_CONTEXTS, memory},
            "h200-cuda13.1": set(Feature),
            OLD: {memory},
            "laptop": {memory},
        }

    @pytest.mark.parametrize(
        ("name", "version"), [("h200", "13.0"), ("h200-cuda13.1", "13.1"), (OLD, "12.2"), ("laptop", "13.0")]
    )
    def test_the_device_names_its_driver(self, name, version):
        backend = SimBackend(name)
        assert backend.device.driver_version == version
        assert backend.name == "sim"

    def test_how_the_sms_can_be_shared_out(self):
        expected = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)
        assert SimBackend().device.sm_resource == expected
        assert SimBackend("h200-cuda13.1").device.sm_resource == dataclasses.replace(expected, is_structured=True)
        assert SimBackend(OLD).device.sm_resource is None
        assert SimBackend("laptop").device.sm_resource is None

    @pytest.mark.parametrize(
        ("name", "reason"), [(OLD, "the driver supports CUDA 12.2"), ("laptop", "this device cannot partition its SMs")]
    )
    def test_the_capability_says_why_there_are_no_green_contexts(self, name, reason):
        assert SimBackend(name).capabilities[Feature.GREEN_CONTEXTS].detail == reason

    def test_variants_differ_in_the_driver_only(self):
        for name in ("h200-cuda13.1", OLD):
            assert dataclasses.replace(PRESETS[name], driver_version=H200.driver_version) == H200

    @pytest.mark.parametrize(("version", "available"), [("12.4", False), ("12.5", True), ("13.0", True), ("14.0", True)])
    def test_a_driver_of_ones_own(self, version, available):
        preset = dataclasses.replace(LAPTOP, sm_groups=SMGroups(min_sms=4, alignment_sms=2), driver_version=version)
        resource = SimBackend(preset).device.sm_resource
        assert (resource is not None) is available
        if available:
            assert (resource.group_sms, resource.group_count, resource.remainder_sms) == (4, 6, 0)


class TestGates:
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
    def test_what_is_missing_is_refused_by_name(self, preset, spec, feature):
        with pytest.raises(DeviceError, match=f"has no {feature}.*It needs .*Without it: ") as caught:
            SimBackend(preset).create_context(spec)
        assert caught.value.driver_code == "NOT_SUPPORTED"

    @pytest.mark.parametrize(
        ("preset", "spec", "sms"), [("h200", GREEN, 8), ("h200-cuda13.1", STRUCTURED, 32), ("h200-cuda13.1", WORKQUEUE, 8)]
    )
    def test_what_is_there_is_granted(self, preset, spec, sms):
        assert SimBackend(preset).create_context(spec).sm_count == sms

    @pytest.mark.parametrize("groups", [(16,), (-1,), (0, 99), (3, 3), (10**9,)])
    def test_groups_that_are_not_there_are_refused(self, groups):
        with pytest.raises(DeviceError, match="0 to 15.*15 is the remainder of 12 SMs") as caught:
            NEW.find_sm_ids(ContextSpec(groups=groups))
        assert caught.value.driver_code == "INVALID_RESOURCE_CONFIGURATION"

    def test_a_device_without_a_remainder_has_no_number_for_it(self):
        preset = DevicePreset(name="x", sm_count=16, sm_groups=SMGroups(min_sms=8, alignment_sms=8))
        with pytest.raises(DeviceError, match=r"0 to 1, each once\.$"):
            SMSplitter(preset).find_sm_ids(ContextSpec(groups=(2,)))

    @pytest.mark.parametrize(
        "spec",
        [
            ContextSpec(),
            dataclasses.replace(STRUCTURED, groups=(0,)),
            dataclasses.replace(STRUCTURED, place=2),
            dataclasses.replace(STRUCTURED, place=-1),
        ],
    )
    def test_specs_that_say_nothing_or_too_much_are_refused(self, spec):
        with pytest.raises(DeviceError, match="Give") as caught:
            NEW.find_sm_ids(spec)
        assert caught.value.driver_code == "INVALID_VALUE"


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
