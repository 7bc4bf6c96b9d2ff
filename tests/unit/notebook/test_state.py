"""The state of the partitioner and its actions, without a widget."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import PartitionOptions, plan_partitions
from gpustreamlab.draw import grid_of
from gpustreamlab.model import Device, SMResource, Verification, VerifiedLane, VerifiedPartition, WorkqueueOptions
from gpustreamlab.notebook import _state as actions
from gpustreamlab.notebook._form import Surroundings, view_of
from gpustreamlab.notebook._state import DraftRow, act, grantable_sms, start, take_layout
from gpustreamlab.typing import Rounding

H200 = Device(
    name="H200",
    sm_count=132,
    sm_resource=SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12),
)
A100 = Device(name="A100", sm_count=108, sm_resource=SMResource(min_sms=4, alignment_sms=2, group_sms=4, group_count=27))
NEWER = Device(
    name="H200",
    sm_count=132,
    sm_resource=SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12, is_structured=True),
)
PLAIN = Device(name="laptop", sm_count=24)


def layout_of(device=H200, **shares):
    return plan_partitions(shares, device)


def state_of(device=H200, **shares):
    return start(device, layout_of(device, **shares) if shares else None)


def granted(state):
    return {part.name: part.granted_sms for part in state.plan.layout or ()}


def do(state, name, **arguments):
    return act(state, {"do": name, **arguments})


def view(state, **around):
    return view_of(state, Surroundings(**around))


def test_start_shows_the_layout_in_use_and_nothing_to_apply():
    state = state_of(prefill=96, decode=36)

    assert [(row.name, row.request, row.origin) for row in state.rows] == [
        ("prefill", "96", "prefill"),
        ("decode", "36", "decode"),
    ]
    assert not state.is_dirty
    assert not view(state)["apply"]["is_enabled"]


def test_requested_and_granted_are_shown_at_once_where_they_differ():
    state = do(state_of(prefill=96, decode=36), "set_request", key=0, text="7")

    row = view(state)["rows"][0]
    assert (row["requested_sms"], row["granted_sms"], row["difference"]) == (7, 8, "1 more than asked")
    assert state.is_dirty


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("133", "asks for 133 SMs; H200 has 132"),
        ("0", "smallest partition has 8"),
        ("-1", "smallest partition has 8"),
        ("1000000000", "asks for 1,000,000,000 SMs"),
        ("9" * 5000, "H200 has 132"),
        ("", "give SMs as a whole number"),
        ("many", "give SMs as a whole number"),
        ("150%", "shares of the card are above 0"),
        ("1.5", "shares of the card are above 0"),
        ("nan.", "give SMs as a whole number"),
    ],
)
def test_what_cannot_be_granted_is_said_beside_its_field_and_nothing_is_applied(text, says):
    state = do(state_of(prefill=96, decode=36), "set_request", key=1, text=text)

    shown = view(state)
    assert says in shown["rows"][1]["problem"]
    assert (shown["rows"][1]["is_request_bad"], shown["rows"][1]["is_name_bad"]) == (True, False)
    assert shown["rows"][0]["problem"] == ""
    assert not shown["apply"]["is_enabled"]
    assert state.applied == layout_of(prefill=96, decode=36)


def test_a_sum_beyond_the_card_is_said_beside_the_field_edited_last():
    state = do(state_of(prefill=96, decode=36), "set_request", key=1, text="64")

    assert "prefill 96 + decode 64 = 160 SMs" in view(state)["rows"][1]["problem"]


def test_nearest_plan_is_drawn_and_can_be_taken():
    state = do(state_of(prefill=96, decode=36), "set_request", key=0, text="133")

    shown = view(state)
    assert shown["is_nearest_shown"]
    assert sum(run["sms"] for run in shown["runs"]) == 132
    taken = do(state, "use_nearest")
    assert taken.plan.problem is None
    assert [run["sms"] for run in view(taken)["runs"]] == [run["sms"] for run in shown["runs"]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "cannot be empty"),
        ("a b", "use 'a_b'"),
        ("prefill", "Another partition is called 'prefill'"),
        ("x" * 300, "at most 100"),
    ],
)
def test_a_name_that_cannot_be_used_is_said_beside_its_field(name, says):
    state = do(state_of(prefill=96, decode=36), "set_name", key=1, text=name)

    shown = view(state)["rows"][1]
    assert says in shown["problem"]
    assert (shown["is_name_bad"], shown["is_request_bad"]) == (True, False)
    assert not view(state)["apply"]["is_enabled"]


def test_long_text_is_cut():
    assert len(do(state_of(prefill=96), "set_request", key=0, text="9" * 10**6).rows[0].request) == actions.MAX_REQUEST_TYPED


def test_dragging_takes_from_the_neighbour_and_snaps():
    assert do(state_of(prefill=96, decode=36), "move_boundary", left=0, sms=41).plan.layout["prefill"].granted_sms == 40


def test_dragging_beyond_the_neighbour_stops_at_the_smallest_partition():
    assert granted(do(state_of(prefill=96, decode=36), "move_boundary", left=0, sms=10_000)) == {"prefill": 124, "decode": 8}
    assert granted(do(state_of(prefill=96, decode=36), "move_boundary", left=0, sms=-5)) == {"prefill": 8, "decode": 124}


def test_the_last_boundary_gives_sms_to_none_and_takes_them_back():
    state = do(state_of(prefill=96, decode=36), "move_boundary", left=1, sms=8)

    assert granted(state) == {"prefill": 96, "decode": 8}
    assert state.plan.layout.remainder_sms == 28
    assert granted(do(state, "move_boundary", left=1, sms=36)) == {"prefill": 96, "decode": 36}


def test_who_asks_for_the_rest_goes_on_doing_so_when_a_neighbour_moves():
    state = do(state_of(prefill=96, decode=36), "set_request", key=1, text="rest")
    moved = do(state, "move_boundary", left=0, sms=48)

    assert moved.rows[1].request == "rest"
    assert granted(moved) == {"prefill": 48, "decode": 84}
    assert "decode='rest'" in moved.python_line


@pytest.mark.parametrize("device", [H200, A100, NEWER], ids=["groups", "small-groups", "structured"])
def test_every_stop_is_what_the_device_then_grants(device):
    state = state_of(device, a=40, b=40, c="rest")
    checked = 0
    for boundary in state.boundaries:
        for stop in boundary.stops:
            moved = do(state, "move_boundary", left=boundary.left, sms=stop)
            before, after = granted(state), granted(moved)
            names = [row.name for row in state.rows if row.key in {boundary.left, boundary.right}]
            assert after[names[0]] == stop
            assert {name: sms for name, sms in after.items() if name not in names} == {
                name: sms for name, sms in before.items() if name not in names
            }
            checked += 1
    assert checked > 20


def test_sizes_that_a_device_grants_reach_the_whole_card():
    assert grantable_sms(H200)[:4] == (8, 12, 16, 20)
    assert grantable_sms(H200)[-1] == 132
    assert grantable_sms(NEWER) == grantable_sms(H200)
    assert grantable_sms(PLAIN) == ()


def test_add_takes_half_of_the_card_then_the_rest_then_half_of_the_largest():
    one = do(state_of(), "add")
    two = do(one, "add")
    three = do(two, "add")

    assert list(granted(one).values()) == [64]
    assert list(granted(two).values()) == [64, 68]
    assert sum(granted(three).values()) == 132
    assert len(granted(three)) == 3
    assert list(granted(three)) == ["part1", "part2", "part3"]


def test_add_until_the_card_is_full_then_says_so():
    state = state_of()
    for _ in range(40):
        state = do(state, "add")

    assert state.plan.problem is None
    assert len(state.rows) <= 16
    assert "no room" in state.notice
    assert sum(granted(state).values()) == 132


def test_add_to_a_draft_without_a_plan_says_what_to_do_first():
    state = do(do(state_of(prefill=96), "set_request", key=0, text="0"), "add")

    assert len(state.rows) == 1
    assert "Correct the draft first" in state.notice


def test_remove_leaves_its_sms_in_none():
    state = do(state_of(prefill=96, decode=36), "remove", key=0)

    assert granted(state) == {"decode": 36}
    assert state.plan.layout.remainder_sms == 96
    assert state.python_line == "lab.partition(decode=36, round='up')"


def test_off_asks_for_the_whole_card_and_revert_comes_back():
    off = do(state_of(prefill=96, decode=36), "clear")

    assert off.plan.layout is None
    assert off.is_dirty
    assert off.python_line == "lab.partition(None)"
    back = do(off, "revert")
    assert granted(back) == {"prefill": 96, "decode": 36}
    assert not back.is_dirty


def test_renaming_says_which_streams_follow_and_the_python_line_does_so_too():
    state = do(state_of(prefill=96, decode=36), "set_name", key=1, text="copy-in")

    assert state.renamed == {"decode": "copy-in"}
    assert state.python_line == "lab.partition({'prefill': 96, 'copy-in': 36}, round='up', renamed={'decode': 'copy-in'})"
    assert view(state, streams={"decode": ("s",)})["rows"][1]["streams"] == ["s"]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([("prefill", "96"), ("decode", "32")], "lab.partition(prefill=96, decode=32, round='down')"),
        ([("a", "25%"), ("b", "0.5"), ("c", "rest")], "lab.partition(a='25%', b=0.5, c='rest', round='down')"),
        ([("class", "8")], "lab.partition({'class': 8}, round='down')"),
        ([("round", "8")], "lab.partition({'round': 8}, round='down')"),
        ([("a'b", "8")], "lab.partition({\"a'b\": 8}, round='down')"),
    ],
)
def test_python_line_is_python_that_asks_for_the_same(rows, line):
    drafted = tuple(DraftRow(key=n, name=name, request=request) for n, (name, request) in enumerate(rows))
    made = actions.PartitionerState(device=H200, rows=drafted, rounding=Rounding.DOWN).python_line

    assert made == line
    compile(made, "line", "eval")


def test_python_line_keeps_what_only_a_structured_split_can_do():
    layout = plan_partitions(
        {"a": PartitionOptions(sms=32, coscheduled_sms=16, backfill=True)},
        NEWER,
        workqueue=WorkqueueOptions(concurrency_limit=2),
    )
    state = start(NEWER, layout)

    assert not state.is_dirty
    assert "gsl.PartitionOptions(sms=32, coscheduled_sms=16" in state.python_line
    assert "workqueue=gsl.WorkqueueOptions(" in state.python_line


def test_rounding_changes_what_is_granted():
    state = do(do(state_of(prefill=96), "set_request", key=0, text="98"), "set_rounding", text="down")

    assert granted(state)["prefill"] <= 98
    assert "Unknown rounding 'sideways'" in do(state, "set_rounding", text="sideways").notice


@pytest.mark.parametrize(
    "action",
    [
        None,
        [],
        "add",
        {},
        {"do": []},
        {"do": "no such thing"},
        {"do": "set_request", "key": 99, "text": "8"},
        {"do": "remove", "key": 99},
        {"do": "move_boundary", "left": 99, "sms": 8},
    ],
)
def test_a_wrong_action_is_said_and_changes_nothing(action):
    before = state_of(prefill=96, decode=36)
    after = act(before, action)

    assert after.rows == before.rows
    assert after.notice
    assert after.is_notice_bad


def test_own_layout_makes_the_draft_clean_and_keeps_what_was_typed():
    state = do(do(state_of(prefill=96, decode=36), "set_request", key=0, text="25%"), "set_name", key=1, text="rest-of-it")
    applied = take_layout(state, state.plan.layout)

    assert not applied.is_dirty
    assert applied.rows[0].request == "25%"
    assert applied.renamed == {}


def test_a_layout_from_elsewhere_shows_itself_where_nothing_was_drafted():
    state = take_layout(state_of(prefill=96, decode=36), layout_of(train=64))

    assert granted(state) == {"train": 64}
    assert not state.is_dirty


def test_a_layout_from_elsewhere_keeps_a_draft_and_says_so():
    draft = do(state_of(prefill=96, decode=36), "set_request", key=0, text="40")
    state = take_layout(draft, layout_of(train=64))

    assert [row.request for row in state.rows] == ["40", "36"]
    assert "changed elsewhere" in state.notice
    assert state.renamed == {}
    assert granted(do(state, "revert")) == {"train": 64}


def test_apply_says_what_it_drains():
    draft = do(state_of(prefill=96, decode=36), "set_request", key=0, text="40")

    assert view(draft)["apply"]["label"] == "Apply"
    assert view(draft, moves=("decode",))["apply"]["label"] == "Apply: drains and moves stream decode"
    assert view(draft, moves=("a", "b", "c"))["apply"]["label"] == "Apply: drains and moves streams a, b, c"
    assert view(draft, moves=tuple("abcdef"))["apply"]["label"] == "Apply: drains and moves streams a, b and 4 more"
    refused = view(draft, refusal="Partition 'x' is in use.")["apply"]
    assert (refused["is_enabled"], refused["detail"]) == (False, "Partition 'x' is in use.")


def test_proof_tells_seen_outside_and_shared():
    state = state_of(prefill=96, decode=36)
    parts = [
        VerifiedPartition(name="prefill", requested_sms=96, granted_sms=96, sm_ids=tuple(range(96))),
        VerifiedPartition(name="decode", requested_sms=36, granted_sms=36, sm_ids=tuple(range(95, 131))),
    ]
    lane = VerifiedLane(name="s", partition="decode", inside=(95,), outside=(1, 2))
    proof = Verification(device="H200", sm_count=132, partitions=tuple(parts), lanes=(lane,), duration_ns=10**7)
    assert view(state)["rows"][0]["proof"] == "not verified"

    layout = layout_of(prefill=96, decode=36)
    seen = type(layout)(
        partitions=tuple(replace_ids(part, found.sm_ids) for part, found in zip(layout, parts, strict=True)),
        remainder_sms=layout.remainder_sms,
    )
    state = take_layout(actions.take_verification(state, proof), seen)

    rows = view(state)["rows"]
    assert rows[0]["proof"] == "96 of 96 SMs seen, 1 shared with decode"
    assert rows[1]["proof"] == "36 of 36 SMs seen, 2 outside, 1 shared with prefill"
    assert rows[1]["is_proof_bad"]
    assert "NOT as asked" in state.notice
    moved = do(state, "move_boundary", left=0, sms=40)
    assert view(moved)["rows"][0]["proof"] == "in use after Apply"


def replace_ids(part, sm_ids):
    from dataclasses import replace

    return replace(part, sm_ids=sm_ids)


def test_a_device_that_cannot_partition_shows_its_card_and_the_reason():
    state = start(PLAIN, None, "green-contexts: not available")
    shown = view(state)

    assert shown["obstacle"] == "green-contexts: not available"
    assert shown["device"]["sm_count"] == 24
    assert not shown["can_edit"]
    assert act(state, {"do": "add"}) == state


def test_a_closed_session_is_readable_and_cannot_be_changed():
    # GIVEN a draft that was never applied
    before = state_of(prefill=96, decode=36)
    draft = act(before, {"do": "set_request", "key": before.rows[0].key, "text": "48"})
    assert draft.is_dirty

    # WHEN the session is closed
    state = actions.take_closed(draft, before.applied)
    shown = view(state)

    # THEN the layout that it had is shown, not the draft

    assert "closed" in shown["obstacle"]
    assert [row["granted_sms"] for row in shown["rows"]] == [96, 36]
    assert not shown["can_edit"]
    assert act(state, {"do": "clear"}) == state


def test_grid_has_a_cell_for_each_sm_and_whole_groups_in_a_column():
    for device in (H200, A100, PLAIN, Device(name="huge", sm_count=5_000)):
        grid = grid_of(device)
        assert grid.row_count * (grid.column_count - 1) < device.sm_count <= grid.row_count * grid.column_count
        assert grid.column_count <= 40
    assert grid_of(H200).row_count == 8


STEPS = st.one_of(
    st.fixed_dictionaries({"do": st.sampled_from(["add", "clear", "revert", "use_nearest"])}),
    st.fixed_dictionaries({"do": st.just("remove"), "key": st.integers(0, 6)}),
    st.fixed_dictionaries(
        {
            "do": st.just("set_request"),
            "key": st.integers(0, 6),
            "text": st.sampled_from(["7", "8", "133", "25%", "rest", "", "-3", "0.5"]),
        }
    ),
    st.fixed_dictionaries(
        {"do": st.just("set_name"), "key": st.integers(0, 6), "text": st.sampled_from(["a", "b", "", "a b"])}
    ),
    st.fixed_dictionaries({"do": st.just("move_boundary"), "left": st.integers(0, 6), "sms": st.integers(-10, 200)}),
    st.fixed_dictionaries({"do": st.just("set_rounding"), "text": st.sampled_from(["up", "down", "exact"])}),
)


@given(st.lists(STEPS, max_size=8))
def test_whatever_is_done_the_view_can_be_sent_and_the_cells_fit_the_card(steps):
    state = state_of(prefill=96, decode=36)
    for step in steps:
        state = act(state, step)

    shown = json.loads(json.dumps(view(state)))
    assert sum(run["sms"] for run in shown["runs"]) <= 132
    assert len({row["key"] for row in shown["rows"]}) == len(shown["rows"])
    assert (shown["problem"] is None) or not shown["apply"]["is_enabled"]
    for boundary in shown["boundaries"]:
        assert boundary["left_sms"] in boundary["stops"]


def test_streams_on_the_whole_card_are_named():
    shown = view(state_of(prefill=96, decode=36), streams={"": ("copy", "other"), "prefill": ("p",)})
    assert shown["whole_card"] == "copy, other have the whole card, and so share SMs with every partition."
    assert view(state_of(prefill=96, decode=36), streams={"prefill": ("p",)})["whole_card"] == ""
    assert view(state_of(), streams={"": ("copy",)})["whole_card"] == ""
