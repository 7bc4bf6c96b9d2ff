"""Partitions, layouts, capabilities, proofs and names as values: what cannot exist, and what they say of themselves."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import InvalidNameError, OptionError, PartitionNotFoundError
from gpustreamlab.model import (
    Layout,
    Partition,
    SMResource,
    Verification,
    VerifiedStream,
    WorkqueueOptions,
    check_name,
)
from gpustreamlab.typing import Feature

H200 = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)
EVIL = "<img src=x onerror=alert(1)>"


def part(name="a", sms=8, **more):
    return Partition(name=name, requested_sms=sms, granted_sms=sms, **more)


def test_groups_and_the_remainder_have_their_sms():
    assert H200.usable_sms == 132
    assert H200.sms_of((0, 3)) == 16
    assert H200.sms_of((15,)) == 12
    assert H200.sms_of(tuple(range(16))) == 132
    assert H200.sms_of(()) == 0


def test_work_queue_options_are_checked():
    assert WorkqueueOptions().concurrency_limit is None
    assert WorkqueueOptions(sharing_scope="device_ctx", concurrency_limit=4).concurrency_limit == 4
    limit = WorkqueueOptions(concurrency_limit=np.int64(4)).concurrency_limit
    assert type(limit) is int
    assert dataclasses.replace(H200, remainder_sms=0).usable_sms == 120
    with pytest.raises(OptionError, match=r"sharing_scope is 'device'\. Did you mean 'device_ctx'\?"):
        WorkqueueOptions(sharing_scope="device")
    for wrong in (0, -1, True, 1.5, "4"):
        with pytest.raises(OptionError, match=r"concurrency_limit is .*Expected `int"):
            WorkqueueOptions(concurrency_limit=wrong)


def test_a_layout_is_a_collection_of_its_partitions():
    layout = Layout(partitions=[part("a"), part("b", 16)], remainder_sms=108)
    assert (len(layout), layout.names, [one.name for one in layout]) == (2, ("a", "b"), ["a", "b"])
    assert layout["b"].granted_sms == 16
    assert ("a" in layout, "c" in layout, None in layout) == (True, False, False)
    assert hash(layout) == hash(copy.deepcopy(layout))
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert (part(groups=[0], sm_ids=[3]).groups, part(split=(8,)).is_structured, part().is_structured) == ((0,), True, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.partitions = ()


def test_an_unknown_partition_is_named_with_the_nearest():
    layout = Layout(partitions=(part("prefill"), part("decode")))
    with pytest.raises(PartitionNotFoundError, match="no partition 'decoder'. Did you mean 'decode'") as told:
        layout["decoder"]
    assert isinstance(told.value, KeyError)
    assert not str(told.value).startswith('"')


def test_a_layout_says_what_was_asked_and_granted():
    layout = Layout(
        partitions=(Partition(name="a", requested_sms=90, granted_sms=96), part("b", 12, sm_ids=(3, 5))), remainder_sms=24
    )
    line, why = str(layout).split("\n", 1)
    assert line == "Layout: a 96 SMs (asked for 90), b 12 SMs (asked for 12); 24 SMs in no partition"
    assert "round='exact' refuses" in why
    assert "\n" not in str(dataclasses.replace(layout, partitions=layout.partitions[1:])), "what is as asked needs no reason"
    shown = layout._repr_html_()
    for fact in (">90<", ">96<", "not yet", "2 SMs seen", "24 SMs are in no partition"):
        assert fact in shown
    assert not layout.has_verified_sms
    assert Layout(partitions=(layout["b"],)).has_verified_sms
    loose = dataclasses.replace(layout, is_enforced=False)
    assert "not enforced" in str(loose)
    assert "Not enforced" in loose._repr_html_()


def test_html_of_names_is_escaped():
    proof = Verification(
        device=EVIL,
        sm_count=8,
        partitions=(Partition(name=EVIL, requested_sms=8, granted_sms=8, sm_ids=(0,)),) * 2,
        streams=(VerifiedStream(name=EVIL, partition=EVIL, inside=(0,), outside=()),) * 2
        + (VerifiedStream(name=EVIL, partition=None, inside=(0,), outside=()),),
        duration_ns=1,
    )
    for shown in (Layout(partitions=(part(EVIL),))._repr_html_(), proof._repr_html_()):
        assert "<img" not in shown
        assert "&lt;img" in shown


def proof_of(partitions, lanes=(), **more):
    return Verification(
        device="H200",
        sm_count=132,
        partitions=tuple(
            Partition(name=name, requested_sms=len(ids), granted_sms=granted, sm_ids=tuple(ids))
            for name, granted, ids in partitions
        ),
        streams=tuple(
            VerifiedStream(name=name, partition=where, inside=tuple(i), outside=tuple(o)) for name, where, i, o in lanes
        ),
        duration_ns=1_500_000,
        **more,
    )


PROOFS = {
    "as asked": (
        proof_of([("a", 2, [0, 1]), ("b", 1, [2])], [("x", "a", [0, 1], [])]),
        ("SMs of H200: verified (1.5 ms)", "stream x (a): 2 SMs inside, 0 outside"),
        ((), True, True),
    ),
    "beside the whole card": (
        proof_of([("a", 1, [0])], [("x", None, [0, 1, 2], [])]),
        ("verified", "share SMs with every partition: x", "whole card"),
        ((), True, True),
    ),
    "no partitions": (proof_of([], [("x", None, range(132), [])]), ("no partitions", "every stream may"), ((), True, True)),
    "not enforced": (proof_of([], is_enforced=False), ("not enforced",), ((), True, False)),
    "shared": (
        proof_of([("a", 2, [0, 1]), ("b", 2, [1, 2]), ("c", 3, [0, 1, 2])]),
        ("NOT as asked", "Partitions a and b share 1 SMs"),
        ((("a", "b", 1), ("a", "c", 2), ("b", "c", 2)), True, False),
    ),
    "outside": (
        proof_of([("a", 2, [0, 1])], [("x", "a", [0], [7])]),
        ("NOT as asked", "1 SMs inside, 1 outside"),
        ((), False, False),
    ),
    "incomplete": (proof_of([("a", 3, [0, 1])]), ("NOT as asked", "granted 3 SMs and 2 were seen"), ((), True, False)),
}


@pytest.mark.parametrize(("proof", "words", "facts"), PROOFS.values(), ids=PROOFS)
def test_a_proof_says_whether_it_holds_and_why(proof, words, facts):
    assert (proof.shared, proof.is_confined, proof.holds) == facts
    assert proof.is_disjoint is not bool(proof.shared)
    assert all(word in str(proof) for word in words)
    assert words[0].partition(" (")[0] in proof._repr_html_()


def test_capabilities_are_found_by_feature_and_shown():
    capabilities = SimBackend("h200").capabilities
    assert [item.feature for item in capabilities] == list(Feature)
    assert capabilities.has(Feature.GREEN_CONTEXTS)
    assert not capabilities.has("backfill")
    assert sum(not line.startswith(" ") for line in str(capabilities).splitlines()) == len(Feature)
    assert capabilities._repr_html_().count("<tr>") == len(Feature) + 1
    with pytest.raises(ValueError, match="teleport"):
        capabilities.has("teleport")


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
    assert check_name("Größe-0/分区", "partition", "lab.partition(a=8)") == "Größe-0/分区"
    with pytest.raises(InvalidNameError, match=words):
        check_name(name, "partition", "lab.partition(a=8)")


def test_a_foreign_layout_is_shown_without_signs_that_steer_a_terminal():
    layout = Layout(partitions=(Partition(name="a\x1b[31m\u202eb", requested_sms=1, granted_sms=1),))
    for shown in (str(layout), layout._repr_html_(), str(dataclasses.replace(layout, is_enforced=False))):
        assert "a␣[31m␣b" in shown
        assert not {"\x1b", "\u202e"} & set(shown)
