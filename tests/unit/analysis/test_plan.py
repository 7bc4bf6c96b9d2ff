"""What is granted for what is asked: by hand, and against trying everything on small devices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpustreamlab import plan_partitions
from gpustreamlab.analysis import PartitionOptions, check_layout, unenforced_layout
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import InvalidNameError, OptionError, PartitionError, PartitionUnavailableError
from gpustreamlab.green import context_specs
from gpustreamlab.model import Device, Layout, Partition, SMResource, WorkqueueOptions
from gpustreamlab.typing import Rounding

BACKEND, STRUCTURED_BACKEND = SimBackend("h200"), SimBackend("h200-cuda13.1")
H200, STRUCTURED, LAPTOP = BACKEND.device, STRUCTURED_BACKEND.device, SimBackend("laptop").device


def device(group_sms=8, group_count=15, remainder_sms=12, **more):
    resource = SMResource(
        min_sms=group_sms,
        alignment_sms=group_sms,
        group_sms=group_sms,
        group_count=group_count,
        remainder_sms=remainder_sms,
        **more,
    )
    return Device(name="small", sm_count=resource.usable_sms, sm_resource=resource)


NO_REMAINDER = device(8, 16, 0)
GROUPS_OF_4 = device(4, 33, 0)


def attempt(shares, card, **options):
    """Plan; return the layout or None, and the refusal or None."""
    try:
        return plan_partitions(shares, card, **options), None
    except PartitionError as error:
        return None, error


def granted(layout):
    return {part.name: part.granted_sms for part in layout}


# By hand

BY_HAND = {
    "the remainder goes where it wastes least": (H200, {"a": 96, "b": 32}, "up", {"a": 100, "b": 32}, 0),
    "rest takes the remainder": (H200, {"a": 96, "b": "rest"}, "up", {"a": 96, "b": 36}, 0),
    "rest alone is the card": (H200, {"a": "rest"}, "exact", {"a": 132}, 0),
    "131 down": (H200, {"a": 131}, "down", {"a": 124}, 8),
    "numbers as text": (H200, {"a": " 88 ", "b": "0.25", "c": "REST"}, "down", {"a": 88, "b": 32, "c": 12}, 0),
    "a rest of the remainder alone, down": (H200, {"a": 120, "b": "rest"}, "down", {"a": 120, "b": 12}, 0),
    "a rest beside the owner of the remainder": (H200, {"a": 121, "b": "rest"}, "up", {"a": 124, "b": 8}, 0),
    "shares that cannot all have as many": (H200, {"a": 0.75, "b": "25%"}, "up", {"a": 100, "b": 32}, 0),
    "halves": (H200, {"a": "50%", "b": "50%"}, "up", {"a": 64, "b": 68}, 0),
    "two rests": (H200, {"a": "rest", "b": "rest"}, "up", {"a": 64, "b": 68}, 0),
    "two rests beside SMs": (H200, {"c": 60, "a": "rest", "b": "rest"}, "up", {"c": 64, "a": 32, "b": 36}, 0),
    "without a remainder": (NO_REMAINDER, {"a": 90, "b": "rest"}, "up", {"a": 96, "b": 32}, 0),
    "groups of 4": (GROUPS_OF_4, {"a": 66, "b": 66}, "down", {"a": 64, "b": 64}, 4),
}


@pytest.mark.parametrize(("card", "shares", "rounding", "wanted", "left_sms"), BY_HAND.values(), ids=BY_HAND.keys())
def test_plans_by_hand(card, shares, rounding, wanted, left_sms):
    layout = plan_partitions(shares, card, round=rounding)

    assert granted(layout) == wanted
    assert layout.remainder_sms == left_sms
    assert_sound(layout, card)


def test_requested_and_granted_are_both_kept():
    layout = plan_partitions({"a": "75%", "b": "rest"}, H200, round="down")
    same = plan_partitions({"a": np.int64(99), "b": "rest"}, H200, round="down")

    assert same == layout
    assert type(same["a"].requested_sms) is int
    assert [(part.requested_sms, part.granted_sms) for part in layout] == [(99, 96), (36, 36)]
    assert layout.names == ("a", "b")
    assert [part.groups for part in layout] == [tuple(range(12)), (12, 13, 14, 15)]
    assert layout.is_enforced


@pytest.mark.parametrize(("share", "sms"), [(0.29, 29), ("29%", 29), (1 / 3, 33), (0.001, 1), ("57%", 57), (0.07, 7)])
def test_a_share_is_whole_sms_that_it_holds(share, sms):
    assert unenforced_layout({"a": share}, Device(name="small", sm_count=100))["a"].requested_sms == sms


# Refused

ELSEWHERE = {
    "an empty name": (lambda: plan_partitions({"": 96}, H200), InvalidNameError, "cannot be empty"),
    "a name with a space": (lambda: plan_partitions({"a b": 96}, H200), InvalidNameError, "use 'a_b'"),
    "an unknown rounding": (lambda: plan_partitions({"a": 96}, H200, round="sideways"), OptionError, "Unknown rounding 's"),
    "no rounding": (lambda: plan_partitions({"a": 96}, H200, round=None), OptionError, "Unknown rounding"),
    "no device": (lambda: plan_partitions({"a": 96}, "H200"), OptionError, "not for 'H200'"),
    "a queue as text": (lambda: plan_partitions({"a": 96}, STRUCTURED, workqueue="x"), PartitionError, "WorkqueueOptions"),
    "a laptop": (lambda: plan_partitions({"a": 8}, LAPTOP), PartitionUnavailableError, r"laptop GPU.*lab\.partitions\.cap"),
    "an older driver": (
        lambda: plan_partitions({"b": 8, "a": PartitionOptions(sms=16, backfill=True)}, H200),
        PartitionUnavailableError,
        r"'a' asks for co-scheduling or backfill.*13\.1.*has 13\.0",
    ),
    "a layout on a laptop": (
        lambda: check_layout(plan_partitions({"a": 8}, H200), LAPTOP),
        PartitionUnavailableError,
        "laptop GPU",
    ),
    "a structured layout": (
        lambda: check_layout(plan_partitions({"a": PartitionOptions(sms=20, coscheduled_sms=4)}, STRUCTURED), H200),
        PartitionUnavailableError,
        r"13\.1",
    ),
    "too little, down": (lambda: plan_partitions({"a": 7}, H200, round="down"), PartitionError, r"most .*that works: a=8\."),
    "a text as option": (lambda: PartitionOptions(sms=16, coscheduled_sms="4"), PartitionError, r"coscheduled_sms is '4'"),
    "a negative option": (lambda: PartitionOptions(sms=16, preferred_coscheduled_sms=-1), PartitionError, r"_sms is -1"),
    "no SMs": (lambda: unenforced_layout({"a": 0, "b": 8}, LAPTOP), PartitionError, "'a' asks for 0 SMs.*smallest .* has 1"),
    "more than a laptop": (lambda: unenforced_layout({"a": 25}, LAPTOP), PartitionError, "25.*has 24"),
    "more in all": (lambda: unenforced_layout({"a": 20, "b": 8}, LAPTOP), PartitionError, r"a 20 \+ b 8 = 28.*has 24"),
    "no rest": (lambda: unenforced_layout({"a": 24, "b": "rest"}, LAPTOP), PartitionError, "'b'.*leave"),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "error", "message"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_asked_wrongly_or_elsewhere_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()


REFUSED = {
    "zero": ({"a": 0}, ("'a'", "0 SMs", "smallest partition has 8", "a=8"), {"a": 8}),
    "negative": ({"a": -5, "b": 96}, ("'a'", "-5", "8"), {"a": 8, "b": 96}),
    "a billion": ({"a": 10**9}, ("1,000,000,000", "132"), {"a": 132}),
    "sum beyond the card": ({"a": 96, "b": 96}, ("a 96 + b 96 = 192", "132"), {"a": 64, "b": 68}),
    "66 and 66 up": ({"a": 66, "b": 66}, ("at least", "multiples of 8", "15 groups", "12 more"), {"a": 64, "b": 68}),
    "two rests and nothing left": ({"a": 132, "b": "rest", "c": "rest"}, ("'b'", "0 SMs"), {"a": 116, "b": 8, "c": 8}),
    "17": ({f"p{k}": 7 for k in range(17)}, ("17 partitions", "room for 16"), None),
    "NaN": ({"a": float("nan")}, ("'a'", "nan", "at most 1 (100%)"), None),
    "share above 1": ({"a": 1.5}, ("1.5", "at most 1"), None),
    "float for SMs": ({"a": 96.0}, ("96.0", "whole number 96"), None),
    "True": ({"a": True}, ("'True'", "0.25", "'rest'"), None),
    "a word": ({"a": "most"}, ("'most'", "'rest'"), None),
    "nothing": ({}, ("No partition", "lab.partition(None)"), None),
    "a list of shares": ([96, 32], ("list", "prefill=96"), None),
}


@pytest.mark.parametrize(("shares", "words", "nearest"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_granted_is_told_with_the_nearest_plan(shares, words, nearest):
    with pytest.raises(PartitionError) as told:
        plan_partitions(shares, H200)

    missing = [word for word in words if word not in str(told.value)]
    assert not missing, f"{missing} not in: {told.value}"
    assert told.value.nearest == nearest
    assert len(str(told.value)) < 600
    if nearest is not None:
        assert granted(plan_partitions(nearest, H200, round="exact")) == nearest
        assert f"The nearest plan that works: {', '.join(f'{name}={sms}' for name, sms in nearest.items())}." in str(told.value)


# Structured splits


STRUCTURED_BY_HAND = {
    "co-scheduled": ({"a": PartitionOptions(sms=18, coscheduled_sms=4)}, "up", {"a": 20}),
    "co-scheduled exact": ({"a": PartitionOptions(sms=20, coscheduled_sms=4)}, "exact", {"a": 20}),
    "backfill": ({"a": PartitionOptions(sms=21, backfill=True)}, "up", {"a": 22}),
    "backfill and co-scheduled": ({"a": PartitionOptions(sms=22, coscheduled_sms=8, backfill=True)}, "exact", {"a": 22}),
    "beside a plain one": ({"a": PartitionOptions(sms=24, coscheduled_sms=4), "b": 12}, "up", {"a": 24, "b": 16}),
}


@pytest.mark.parametrize(("shares", "rounding", "wanted"), STRUCTURED_BY_HAND.values(), ids=STRUCTURED_BY_HAND.keys())
def test_structured_plans_by_hand(shares, rounding, wanted):
    layout = plan_partitions(shares, STRUCTURED, round=rounding)

    assert granted(layout) == wanted
    assert layout.remainder_sms == 132 - sum(wanted.values())
    assert all(part.is_structured and part.groups == () for part in layout)
    assert check_layout(layout, STRUCTURED) is layout


@pytest.mark.parametrize(
    ("shares", "rounding"),
    [
        ({"a": PartitionOptions(sms=2, coscheduled_sms=8)}, "down"),
        ({"a": PartitionOptions(sms=18, coscheduled_sms=4)}, "exact"),
        ({"a": PartitionOptions(sms=132, coscheduled_sms=4), "b": "rest"}, "up"),
        ({"a": PartitionOptions(sms=100, coscheduled_sms=8), "b": 32}, "up"),
        ({"a": PartitionOptions(sms=0, coscheduled_sms=8)}, "up"),
        ({"a": PartitionOptions(sms=133, backfill=True)}, "up"),
    ],
)
def test_structured_plans_that_do_not_work_are_refused(shares, rounding):
    with pytest.raises(PartitionError, match="The nearest plan that works: ") as told:
        plan_partitions(shares, STRUCTURED, round=rounding)
    assert granted(plan_partitions(told.value.nearest, STRUCTURED, round="exact")) == told.value.nearest


# Without enforcement


def test_a_layout_without_enforcement_has_the_whole_card_in_each():
    layout = unenforced_layout({"a": 10, "b": "rest", "c": "25%"}, LAPTOP)

    assert not layout.is_enforced
    assert [(part.requested_sms, part.granted_sms) for part in layout] == [(10, 24), (8, 24), (6, 24)]


# Layouts of elsewhere


FOREIGN = {
    "no partitions": [],
    "groups twice": [(8, (0,)), (8, (0,))],
    "a group twice in one": [(16, (0, 0))],
    "a group too many": [(8, (16,))],
    "a negative group": [(8, (-1,))],
    "another size": [(16, (0,))],
    "no groups": [(16, ())],
    "no SMs": [(0, ())],
}


@pytest.mark.parametrize("parts", FOREIGN.values(), ids=FOREIGN)
def test_a_layout_of_another_device_is_refused(parts):
    made = [Partition(name=f"p{k}", requested_sms=sms, granted_sms=sms, groups=own) for k, (sms, own) in enumerate(parts)]
    with pytest.raises(PartitionError, match=r"This layout is not of H200.*plan_partitions"):
        check_layout(Layout(partitions=made), STRUCTURED)


# Against trying everything

RESOURCES = st.builds(
    device, group_sms=st.sampled_from([1, 2, 4, 8, 10]), group_count=st.integers(1, 5), remainder_sms=st.integers(0, 13)
)
ANY = st.booleans()


@st.composite
def problems(draw, rest=ANY):
    """A small device, and up to three partitions of it; at most one asks for the rest."""
    card = draw(RESOURCES)
    sms = draw(st.lists(st.integers(1, card.sm_count), min_size=1, max_size=3))
    if draw(rest):
        sms[draw(st.integers(0, len(sms) - 1))] = "rest"
    return card, {f"p{place}": share for place, share in enumerate(sms)}


def every_plan(card, shares, rounding):
    """Every way to grant the shares by the rule, as SMs in order."""
    resource = card.sm_resource
    owners = [None, *range(len(shares))] if resource.remainder_sms else [None]
    for owner in owners:
        for counts in itertools.product(range(resource.group_count + 1), repeat=len(shares)):
            grants = [
                count * resource.group_sms + (resource.remainder_sms if place == owner else 0)
                for place, count in enumerate(counts)
            ]
            if sum(counts) <= resource.group_count and all(grants) and obeys(grants, shares.values(), rounding):
                yield tuple(grants)


def obeys(grants, shares, rounding):
    rule = {"up": int.__ge__, "down": int.__le__, "exact": int.__eq__}[rounding]
    return all(share == "rest" or rule(sms, share) for sms, share in zip(grants, shares, strict=True))


def miss(grants, shares):
    return sum(abs(sms - share) for sms, share in zip(grants, shares, strict=True) if share != "rest")


def assert_sound(layout, card):
    resource = card.sm_resource
    groups = [group for part in layout for group in part.groups]
    assert len(set(groups)) == len(groups)
    assert set(groups) <= set(range(resource.group_count + bool(resource.remainder_sms)))
    for part in layout:
        assert part.granted_sms == resource.sms_of(part.groups) > 0
        assert part.groups == tuple(sorted(part.groups))
    assert sum(part.granted_sms for part in layout) + layout.remainder_sms == card.sm_count
    assert layout.remainder_sms >= 0
    assert check_layout(layout, card) is layout


@given(problems(), st.sampled_from(["up", "down", "exact"]))
def test_a_plan_is_sound_obeys_the_rule_and_misses_least(problem, rounding):
    card, shares = problem
    plans = set(every_plan(card, shares, rounding))
    asked = [share for share in shares.values() if share != "rest"]
    try:
        layout = plan_partitions(shares, card, round=rounding)
    except PartitionError:
        assert not plans or sum(asked) > card.sm_count
        return
    assert_sound(layout, card)
    assert layout == plan_partitions(dict(shares), card, round=rounding)
    assert "rest" not in shares.values() or not layout.remainder_sms
    assert granted(plan_partitions(granted(layout), card, round="exact")) == granted(layout)
    grants = tuple(granted(layout).values())
    assert grants in plans
    assert miss(grants, shares.values()) == min(miss(plan, shares.values()) for plan in plans)


@given(RESOURCES, st.lists(st.integers(-5, 150) | st.just("rest"), min_size=1, max_size=7), st.sampled_from(list(Rounding)))
def test_the_nearest_plan_works_exactly(card, sms, rounding):
    shares = {f"p{place}": share for place, share in enumerate(sms)}
    assume(sms.count("rest") < 2)
    _, error = attempt(shares, card, round=rounding)
    assume(error is not None)
    resource = card.sm_resource
    assert (error.nearest is None) == (len(sms) > resource.group_count + bool(resource.remainder_sms))
    if error.nearest is not None:
        assert list(error.nearest) == list(shares)
        assert granted(plan_partitions(error.nearest, card, round="exact")) == error.nearest


@given(problems(rest=st.just(False)))
def test_the_nearest_plan_is_the_nearest_where_the_card_has_what_is_asked(problem):
    card, shares = problem
    assume(sum(shares.values()) <= card.sm_count)
    _, error = attempt(shares, card, round="exact")
    assume(error is not None and error.nearest is not None)
    at_all = every_plan(card, dict.fromkeys(shares, 1), "up")
    assert miss(error.nearest.values(), shares.values()) == min(miss(plan, shares.values()) for plan in at_all)


# Made real on the simulated device

OPTIONS = st.builds(
    PartitionOptions,
    sms=st.integers(1, 132),
    coscheduled_sms=st.sampled_from([0, 2, 4, 8]),
    backfill=st.booleans(),
)


@given(st.lists(OPTIONS | st.integers(1, 132), min_size=1, max_size=4), st.sampled_from(["up", "down"]), st.booleans())
@pytest.mark.parametrize("backend", [BACKEND, STRUCTURED_BACKEND], ids=["groups", "split"])
def test_what_a_plan_promises_the_simulated_device_grants(backend, shares, rounding, has_rest):
    if backend is BACKEND:
        shares = [share if isinstance(share, int) else share.sms for share in shares]
    asked = {f"p{place}": share for place, share in enumerate(shares)} | ({"rest": "rest"} if has_rest else {})
    layout, error = attempt(asked, backend.device, round=rounding)
    if layout is None:
        assert error.nearest is None or granted(plan_partitions(error.nearest, backend.device, round="exact")) == error.nearest
        return
    assert check_layout(layout, backend.device) is layout
    specs = context_specs(layout)
    ids = [backend._splitter.find_sm_ids(specs[part.name]) for part in layout]
    assert [len(own) for own in ids] == [part.granted_sms for part in layout]
    assert len(frozenset().union(*ids)) == sum(part.granted_sms for part in layout)


def test_a_structured_device_without_options_is_planned_in_groups_and_work_queues_are_carried_along():
    workqueue = WorkqueueOptions(concurrency_limit=4)
    layout = plan_partitions({"a": 96, "b": 32}, STRUCTURED, workqueue=workqueue)

    assert layout.workqueue == workqueue
    assert layout.partitions == plan_partitions({"a": 96, "b": 32}, H200).partitions
