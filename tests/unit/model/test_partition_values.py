"""Partitions, layouts, capabilities, proofs and names as values: what cannot exist, and what they say of themselves."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from gpustreamlab.analysis import utilization
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import InvalidNameError, OptionError, PartitionNotFoundError, TraceError
from gpustreamlab.model import (
    Device,
    Layout,
    LayoutChange,
    Partition,
    SMResource,
    Verification,
    VerifiedLane,
    VerifiedPartition,
    WorkqueueOptions,
    check_name,
)
from gpustreamlab.typing import Feature
from tests.helpers.traces import make_trace

H200 = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)
EVIL = "<img src=x onerror=alert(1)>"


def part(name="a", sms=8, **more):
    return Partition(name=name, requested_sms=sms, granted_sms=sms, **more)


# SMResource and Device


def test_groups_and_the_remainder_have_their_sms():
    assert H200.usable_sms == 132
    assert H200.sms_of((0, 3)) == 16
    assert H200.sms_of((15,)) == 12
    assert H200.sms_of(tuple(range(16))) == 132
    assert H200.sms_of(()) == 0


@pytest.mark.parametrize("field", ["min_sms", "alignment_sms", "group_sms", "group_count"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_at_least_one(field, value):
    with pytest.raises(TraceError, match="Expected `int` >= 1"):
        dataclasses.replace(H200, **{field: value})


def test_a_remainder_is_not_negative():
    assert dataclasses.replace(H200, remainder_sms=0).usable_sms == 120
    with pytest.raises(TraceError, match="remainder_sms is -1.*>= 0"):
        dataclasses.replace(H200, remainder_sms=-1)


# Partition


@pytest.mark.parametrize("sms", [(-1, 8), (8, -1)])
def test_sms_are_not_negative(sms):
    with pytest.raises(TraceError, match=">= 0"):
        Partition(name="a", requested_sms=sms[0], granted_sms=sms[1])


def test_lists_become_tuples_so_that_a_partition_can_be_hashed():
    made = part(groups=[0, 1], sm_ids=[3, 4])
    assert (made.groups, made.sm_ids) == ((0, 1), (3, 4))
    assert hash(made) == hash(part(groups=(0, 1), sm_ids=(3, 4)))


def test_a_partition_of_a_split_says_so():
    assert part(split=(8,)).is_structured
    assert not part().is_structured


# WorkqueueOptions


def test_work_queue_options_are_checked():
    assert WorkqueueOptions().concurrency_limit is None
    assert WorkqueueOptions(sharing_scope="device_ctx", concurrency_limit=4).concurrency_limit == 4
    limit = WorkqueueOptions(concurrency_limit=np.int64(4)).concurrency_limit
    assert type(limit) is int
    with pytest.raises(OptionError, match=r"sharing_scope is 'device'\. Did you mean 'device_ctx'\?"):
        WorkqueueOptions(sharing_scope="device")
    for wrong in (0, -1, True, 1.5, "4"):
        with pytest.raises(OptionError, match=r"concurrency_limit is .*Expected `int"):
            WorkqueueOptions(concurrency_limit=wrong)


# Layout


def test_a_layout_is_a_collection_of_its_partitions():
    layout = Layout(partitions=[part("a"), part("b", 16)], remainder_sms=108)
    assert (len(layout), layout.names, [one.name for one in layout]) == (2, ("a", "b"), ["a", "b"])
    assert layout["b"].granted_sms == 16
    assert ("a" in layout, "c" in layout, None in layout) == (True, False, False)
    assert hash(layout) == hash(copy.deepcopy(layout))
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_an_unknown_partition_is_named_with_the_nearest():
    layout = Layout(partitions=(part("prefill"), part("decode")))
    with pytest.raises(PartitionNotFoundError, match="no partition 'decoder'. Did you mean 'decode'") as told:
        layout["decoder"]
    assert isinstance(told.value, KeyError)
    assert not str(told.value).startswith('"')


def test_a_name_occurs_once():
    with pytest.raises(TraceError, match="each partition once"):
        Layout(partitions=(part("a"), part("a")))


def test_sms_are_verified_when_every_partition_was():
    seen, unseen = part("a", sm_ids=(0, 1)), part("b")
    assert Layout(partitions=(seen,)).has_verified_sms
    assert not Layout(partitions=(seen, unseen)).has_verified_sms


def test_a_layout_says_what_was_asked_and_granted():
    layout = Layout(
        partitions=(Partition(name="a", requested_sms=90, granted_sms=96), part("b", 12, sm_ids=(3, 5))), remainder_sms=24
    )
    assert str(layout) == "Layout: a 96 SMs (asked for 90), b 12 SMs (asked for 12); 24 SMs in no partition"
    shown = layout._repr_html_()
    for fact in (">90<", ">96<", "not yet", "2 SMs seen", "24 SMs are in no partition"):
        assert fact in shown


def test_a_layout_that_is_not_enforced_says_so_first():
    layout = Layout(partitions=(part("a"),), is_enforced=False)
    assert "not enforced" in str(layout)
    assert "Not enforced" in layout._repr_html_()


def test_html_of_names_is_escaped():
    proof = Verification(
        device=EVIL,
        sm_count=8,
        partitions=(VerifiedPartition(name=EVIL, requested_sms=8, granted_sms=8, sm_ids=(0,)),) * 2,
        lanes=(VerifiedLane(name=EVIL, partition=EVIL, inside=(0,), outside=()),) * 2
        + (VerifiedLane(name=EVIL, partition=None, inside=(0,), outside=()),),
        duration_ns=1,
    )
    for shown in (Layout(partitions=(part(EVIL),))._repr_html_(), proof._repr_html_()):
        assert "<img" not in shown
        assert "&lt;img" in shown


@pytest.mark.parametrize("value", [part(), Layout(partitions=()), LayoutChange(time_ns=0, layout=None), WorkqueueOptions()])
def test_values_cannot_be_changed(value):
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        value.name = "other"


def test_a_device_keeps_its_resource_through_pickling():
    device = Device(name="x", sm_count=132, sm_resource=H200)
    assert pickle.loads(pickle.dumps(device)) == device


# Verification


def proof_of(partitions, lanes=(), **more):
    return Verification(
        device="H200",
        sm_count=132,
        partitions=tuple(
            VerifiedPartition(name=name, requested_sms=len(ids), granted_sms=granted, sm_ids=tuple(ids))
            for name, granted, ids in partitions
        ),
        lanes=tuple(VerifiedLane(name=name, partition=where, inside=tuple(i), outside=tuple(o)) for name, where, i, o in lanes),
        duration_ns=1_500_000,
        **more,
    )


def test_a_proof_holds_where_all_is_as_asked():
    proof = proof_of([("a", 2, [0, 1]), ("b", 1, [2])], [("x", "a", [0, 1], [])])
    assert proof.holds
    assert proof.is_disjoint
    assert proof.is_confined
    assert str(proof).splitlines()[0] == "SMs of H200: verified (1.5 ms)"
    assert "stream x (a): 2 SMs inside, 0 outside" in str(proof)


BROKEN = {
    "shared": (proof_of([("a", 2, [0, 1]), ("b", 2, [1, 2])]), "Partitions a and b share 1 SMs"),
    "outside": (proof_of([("a", 2, [0, 1])], [("x", "a", [0], [7])]), "1 SMs inside, 1 outside"),
    "incomplete": (proof_of([("a", 3, [0, 1])]), "granted 3 SMs and 2 were seen"),
}


@pytest.mark.parametrize(("proof", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_proof_says_why(proof, words):
    assert not proof.holds
    assert "NOT as asked" in str(proof)
    assert "NOT as asked" in proof._repr_html_()
    assert words in str(proof)


def test_every_pair_that_shares_is_told():
    proof = proof_of([("a", 2, [0, 1]), ("b", 2, [1, 2]), ("c", 3, [0, 1, 2])])
    assert proof.shared == (("a", "b", 1), ("a", "c", 2), ("b", "c", 2))


def test_streams_on_the_whole_card_are_told():
    proof = proof_of([("a", 1, [0])], [("x", None, [0, 1, 2], [])])
    assert proof.holds
    assert "share SMs with every partition: x" in str(proof)
    assert "whole card" in proof._repr_html_()


def test_a_proof_without_partitions_says_so():
    proof = proof_of([], [("x", None, range(132), [])])
    assert proof.holds
    assert "no partitions" in str(proof)


def test_a_proof_of_what_is_not_enforced_does_not_hold():
    proof = proof_of([], [("x", None, range(132), [])], is_enforced=False)
    assert not proof.holds
    assert "not enforced" in str(proof)
    assert "not enforced" in proof._repr_html_()


# Capabilities


def test_capabilities_are_found_by_feature_and_shown():
    capabilities = SimBackend("h200").capabilities
    assert [item.feature for item in capabilities] == list(Feature)
    assert capabilities.has(Feature.GREEN_CONTEXTS)
    assert not capabilities.has("backfill")
    assert sum(not line.startswith(" ") for line in str(capabilities).splitlines()) == len(Feature)
    assert capabilities._repr_html_().count("<tr>") == len(Feature) + 1
    with pytest.raises(ValueError, match="teleport"):
        capabilities.has("teleport")


# Names


@pytest.mark.parametrize("name", ["a", "prefill-0", "Größe", "分区", "x" * 100])
def test_names_that_magics_can_take(name):
    assert check_name(name, "partition", "lab.partition(a=8)") == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "A partition's name cannot be empty"),
        (None, "not NoneType"),
        ("x" * 101, "at most 100 characters"),
        ("a=b", "use 'a_b'"),
        ("<>", "use 'partition'"),
        ("a\nb", "use 'a_b'"),
        ("🚀", "use 'partition'"),
    ],
)
def test_other_names_come_with_one_that_works(name, words):
    with pytest.raises(InvalidNameError, match=words):
        check_name(name, "partition", "lab.partition(a=8)")


# Layouts of a trace made by hand


def with_layouts(**tables):
    """A span in each of two spells."""
    spans = [("a", "k", 0, 100, {"partition": 0}), ("a", "k", 150, 250, {"partition": 1})]
    return make_trace(spans, device=Device(name="demo", sm_count=132), **tables)


def test_layouts_of_a_trace_are_put_in_order_and_the_last_is_that_at_the_end():
    first, last = (Layout(partitions=(part("p", sms),)) for sms in (96, 64))
    changes = (LayoutChange(time_ns=120, layout=last), LayoutChange(time_ns=0, layout=first))
    trace = with_layouts(layouts=changes, partitions=(part("p", 96), part("p", 64)))
    result = utilization(trace)
    assert (trace.layouts, trace.layout) == (changes[::-1], last)
    assert list(zip(result.granted_sms.tolist(), result.window_ns.tolist(), strict=True)) == [(96, 120), (64, 130)]


def test_a_layout_that_is_not_the_last_one_is_refused():
    # GIVEN a partition that would be listed twice
    change = LayoutChange(time_ns=0, layout=Layout(partitions=(part("p", 96),)))
    with pytest.raises(TraceError, match="Leave layout out"):
        with_layouts(layouts=(change,), layout=Layout(partitions=(part("p", 64),)), partitions=(part("p"), part("p", 64)))
    # THEN measuring its SMs makes it no other one
    measured = Layout(partitions=(part("p", 96, sm_ids=tuple(range(96))),))
    assert with_layouts(layouts=(change,), layout=measured, partitions=(part("p"), part("q"))).layout is measured


def test_a_partition_that_has_the_name_of_the_whole_card_is_refused():
    with pytest.raises(TraceError, match="Partition.name is None"):
        part(None)


def test_a_foreign_layout_is_shown_without_signs_that_steer_a_terminal():
    layout = Layout(partitions=(Partition(name="a\x1b[31m\u202eb", requested_sms=1, granted_sms=1),))
    for shown in (str(layout), layout._repr_html_(), str(dataclasses.replace(layout, is_enforced=False))):
        assert "a␣[31m␣b" in shown
        assert not {"\x1b", "\u202e"} & set(shown)
