"""The state of the partitioner and its actions, without a widget."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import PartitionOptions, plan_partitions
from gpustreamlab.draw import grid_of
from gpustreamlab.model import Device, Partition, SMResource, Verification, VerifiedStream, WorkqueueOptions
from gpustreamlab.notebook._form import Surroundings, view_of
from gpustreamlab.notebook._state import MAX_REQUEST_TYPED, act, start, take_closed, take_layout, take_verification

GROUPS = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12)
H200 = Device(name="H200", sm_count=132, sm_resource=GROUPS)
NEWER = replace(H200, sm_resource=replace(GROUPS, is_structured=True))
A100 = Device(name="A100", sm_count=108, sm_resource=SMResource(min_sms=4, alignment_sms=2, group_sms=4, group_count=27))
PLAIN = Device(name="laptop", sm_count=24)
TWO = {"prefill": 96, "decode": 36}


def state_of(device=H200, **shares):
    return start(device, plan_partitions(shares, device) if shares else None)


def granted(state):
    return {part.name: part.granted_sms for part in state.plan.layout or ()}


def do(state, name, **arguments):
    return act(state, {"do": name, **arguments})


def view(state, **around):
    return view_of(state, Surroundings(**around))


def test_start_shows_the_layout_in_use_and_nothing_to_apply():
    state = state_of(**TWO)
    rows = [(row.name, row.request, row.origin) for row in state.rows]
    assert rows == [("prefill", "96", "prefill"), ("decode", "36", "decode")]
    assert not state.is_dirty
    assert not view(state)["apply"]["is_enabled"]


def test_requested_and_granted_are_shown_at_once_where_they_differ():
    state = do(state_of(**TWO), "set_request", key=0, text="7")
    row = view(state)["rows"][0]
    assert (row["requested_sms"], row["granted_sms"], row["difference"]) == (7, 8, "1 more than asked")
    assert state.is_dirty


WRONG = {
    "set_request": [
        ("133", "asks for 133 SMs; H200 has 132"), ("0", "smallest partition has 8"), ("-1", "smallest partition has 8"),
        ("1000000000", "asks for 1,000,000,000 SMs"), ("9" * 5000, "H200 has 132"), ("", "give SMs as a whole number"),
        ("many", "give SMs as a whole number"), ("150%", "shares of the card are above 0"),
        ("1.5", "shares of the card are above 0"), ("nan.", "give SMs as a whole number"),
        ("64", "prefill 96 + decode 64 = 160 SMs"),  # too much together: the field edited last is at fault
    ],
    "set_name": [
        ("", "cannot be empty"), ("a b", "use 'a_b'"), ("prefill", "Another partition is called 'prefill'"),
        ("x" * 300, "at most 100"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "says"), [(name, *case) for name, cases in WRONG.items() for case in cases])
def test_what_cannot_be_is_said_beside_its_field_and_nothing_is_applied(name, text, says):
    before = state_of(**TWO)
    state = do(before, name, key=1, text=text)
    shown = view(state)
    other, own = shown["rows"]
    assert says in own["problem"]
    assert (own["is_request_bad"], own["is_name_bad"]) == (name == "set_request", name == "set_name")
    assert other["problem"] == ""
    assert not shown["apply"]["is_enabled"]
    assert state.applied == before.applied
    assert len(state.rows[1].request) <= MAX_REQUEST_TYPED
    assert "Correct the draft first" in do(state, "add").notice


def test_nearest_plan_is_drawn_and_can_be_taken():
    state = do(state_of(**TWO), "set_request", key=0, text="133")
    shown = view(state)
    assert shown["is_nearest_shown"]
    assert sum(run["sms"] for run in shown["runs"]) == 132
    taken = do(state, "use_nearest")
    assert taken.plan.problem is None
    assert [run["sms"] for run in view(taken)["runs"]] == [run["sms"] for run in shown["runs"]]


@pytest.mark.parametrize(
    ("left", "sms", "wanted"),
    [(0, 41, [40, 92]), (0, 10_000, [124, 8]), (0, -5, [8, 124]), (1, 8, [96, 8]), (1, 36, [96, 36])],
)
def test_a_boundary_takes_from_its_neighbour_or_from_none_and_snaps(left, sms, wanted):
    state = do(
        do(state_of(**TWO), "move_boundary", left=1, sms=8) if left else state_of(**TWO), "move_boundary", left=left, sms=sms
    )
    assert list(granted(state).values()) == wanted
    assert state.plan.layout.remainder_sms == 132 - sum(wanted)


def test_who_asks_for_the_rest_goes_on_doing_so_when_a_neighbour_moves():
    moved = do(do(state_of(**TWO), "set_request", key=1, text="rest"), "move_boundary", left=0, sms=48)
    assert moved.rows[1].request == "rest"
    assert granted(moved) == {"prefill": 48, "decode": 84}
    assert "decode='rest'" in moved.python_line


@pytest.mark.parametrize("device", [H200, A100, NEWER], ids=["groups", "small-groups", "structured"])
def test_every_stop_is_what_the_device_then_grants(device):
    state = state_of(device, a=40, b=40, c="rest")
    before, stop_count = granted(state), 0
    for boundary in state.boundaries:
        names = [row.name for row in state.rows if row.key in {boundary.left, boundary.right}]
        for stop in boundary.stops:
            after = granted(do(state, "move_boundary", left=boundary.left, sms=stop))
            assert after[names[0]] == stop
            assert {name: after[name] for name in after if name not in names} == {
                name: before[name] for name in before if name not in names
            }
            stop_count += 1
    assert stop_count > 20


def test_add_takes_half_of_the_card_then_the_rest_then_half_of_the_largest_until_it_is_full():
    state, seen = state_of(), []
    for _ in range(40):
        state = do(state, "add")
        seen.append(list(granted(state).values()))
    assert seen[:2] == [[64], [64, 68]]
    assert [sum(sms) for sms in seen[1:]] == [132] * 39
    assert {"part1", "part2", "part3"} < set(granted(state))
    assert len(state.rows) <= 16
    assert "no room" in state.notice


def test_letters_and_colours_stay_while_partitions_come_and_go_and_are_those_of_the_map_once_applied():
    def looks(state):
        return {row["name"]: (row["letter"], row["fill"]) for row in view(state)["rows"]}

    state = state_of(prefill=64, decode=40, chat=28)
    before = looks(state)
    grown = do(state, "add")
    assert looks(grown) == before | {"part1": looks(grown)["part1"]}
    fewer = do(grown, "remove", key=1)
    assert looks(fewer) == {name: look for name, look in looks(grown).items() if name != "decode"}
    again = do(fewer, "add")
    assert looks(again) == looks(fewer) | {"part2": before["decode"]}
    assert list(looks(again)) == ["prefill", "part2", "chat", "part1"]  # so that places give the same letters
    assert looks(take_layout(again, again.plan.layout)) == looks(again)
    assert looks(take_layout(fewer, fewer.plan.layout)) == looks(start(H200, fewer.plan.layout))


@pytest.mark.parametrize(
    ("action", "text"), [("set_request", "abc"), ("set_request", ""), ("set_name", "a b"), ("set_name", "")]
)
def test_a_draft_without_a_plan_leaves_the_card_as_it_was_and_says_what_is_wrong_at_its_row(action, text):
    state = do(state_of(**TWO), "set_request", key=1, text="24")
    seen = view(do(do(state, action, key=0, text=text), action, key=0, text=f"{text}!"))
    assert seen["runs"] == view(state)["runs"] == [{"key": 0, "sms": 96}, {"key": 1, "sms": 24}]
    assert (seen["rows"][0]["problem"], seen["rows"][1]["problem"]) == (seen["problem"]["text"], "")
    assert not seen["apply"]["is_enabled"]


def test_sms_that_were_seen_are_told_by_id_as_long_as_the_card_shows_what_is_in_use():
    layout = plan_partitions(TWO, H200)
    ids = (tuple(range(0, 132, 2))[:36], tuple(range(1, 132, 2))[:36])
    parts = (replace(layout["prefill"], sm_ids=(*ids[0], *range(72, 132))), replace(layout["decode"], sm_ids=ids[1]))
    state = start(H200, replace(layout, partitions=parts))
    located = view(state)["located"]
    assert (len(located), located[:4], located[72:]) == (132, [[0], [1], [0], [1]], [[0]] * 60)
    assert view(do(state, "set_request", key=0, text="abc"))["located"] == located
    assert view(do(state, "set_request", key=0, text="64"))["located"] == []
    assert view(state_of(**TWO))["located"] == view(state_of())["located"] == []
    twice = replace(parts[1], sm_ids=(0, *ids[1][1:]))
    assert view(start(H200, replace(layout, partitions=(parts[0], twice))))["located"][0] == [0, 1]


def test_remove_leaves_its_sms_in_none_off_asks_for_the_whole_card_and_revert_comes_back():
    state = do(state_of(**TWO), "remove", key=0)
    assert granted(state) == {"decode": 36}
    assert state.plan.layout.remainder_sms == 96
    assert state.python_line == "lab.partition(decode=36, round='up')"
    off = do(state, "clear")
    assert (off.plan.layout, off.is_dirty, off.python_line) == (None, True, "lab.partition(None)")
    back = do(off, "revert")
    assert (granted(back), back.is_dirty) == (TWO, False)


def test_renaming_says_which_streams_follow_and_the_python_line_does_so_too():
    state = do(state_of(**TWO), "set_name", key=1, text="copy-in")
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
    state = do(state_of(), "set_rounding", text="down")
    for key, (name, _) in enumerate(rows):
        state = do(do(state, "add"), "set_name", key=key, text=name)
    for key, (_, request) in enumerate(rows):
        state = do(state, "set_request", key=key, text=request)
    assert state.python_line == line
    compile(state.python_line, "line", "eval")


def test_python_line_keeps_what_only_a_structured_split_can_do():
    options = {"a": PartitionOptions(sms=32, coscheduled_sms=16, backfill=True)}
    state = start(NEWER, plan_partitions(options, NEWER, workqueue=WorkqueueOptions(concurrency_limit=2)))
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
        None, {}, {"do": "no such thing"}, {"do": "set_request", "key": 99, "text": "8"}, {"do": "remove", "key": 99},
        {"do": "move_boundary", "left": 99, "sms": 8},
    ],
)  # fmt: skip
def test_a_wrong_or_late_action_is_said_and_changes_nothing(action):
    before = state_of(**TWO)
    after = act(before, action)
    assert after.rows == before.rows
    assert after.notice
    assert after.is_notice_bad


# ---- layouts in use


def test_own_layout_makes_the_draft_clean_and_keeps_what_was_typed():
    state = do(do(state_of(**TWO), "set_request", key=0, text="25%"), "set_name", key=1, text="rest-of-it")
    applied = take_layout(state, state.plan.layout)
    assert not applied.is_dirty
    assert applied.rows[0].request == "25%"
    assert applied.renamed == {}


def test_a_layout_from_elsewhere_shows_itself_or_keeps_a_draft_and_says_so():
    elsewhere = plan_partitions({"train": 64}, H200)
    state = take_layout(state_of(**TWO), elsewhere)
    assert (granted(state), state.is_dirty) == ({"train": 64}, False)
    draft = take_layout(do(state_of(**TWO), "set_request", key=0, text="40"), elsewhere)
    assert [row.request for row in draft.rows] == ["40", "36"]
    assert "changed elsewhere" in draft.notice
    assert draft.renamed == {}
    assert granted(do(draft, "revert")) == {"train": 64}


@pytest.mark.parametrize(
    ("around", "label"),
    [
        ({}, "Apply"),
        ({"moves": ("decode",)}, "Apply: drains and moves stream decode"),
        ({"moves": ("a", "b", "c")}, "Apply: drains and moves streams a, b, c"),
        ({"moves": tuple("abcdef")}, "Apply: drains and moves streams a, b and 4 more"),
        ({"refusal": "Partition 'x' is in use."}, "Apply"),
    ],
)
def test_apply_says_what_it_drains_or_why_it_is_refused(around, label):
    shown = view(do(state_of(**TWO), "set_request", key=0, text="40"), **around)["apply"]
    assert (shown["label"], shown["is_enabled"]) == (label, "refusal" not in around)
    assert around.get("refusal", "") in shown["detail"]


def test_proof_tells_seen_outside_and_shared():
    state = state_of(**TWO)
    sm_ids = {"prefill": tuple(range(96)), "decode": tuple(range(95, 131))}
    parts = [Partition(name=name, requested_sms=sms, granted_sms=sms, sm_ids=sm_ids[name]) for name, sms in TWO.items()]
    lane = VerifiedStream(name="s", partition="decode", inside=(95,), outside=(1, 2))
    proof = Verification(device="H200", sm_count=132, partitions=tuple(parts), streams=(lane,), duration_ns=10**7)
    assert view(state)["rows"][0]["proof"] == "not verified"
    seen = replace(state.applied, partitions=tuple(replace(part, sm_ids=sm_ids[part.name]) for part in state.applied))
    state = take_layout(take_verification(state, proof), seen)
    first, second = view(state)["rows"]
    assert first["proof"] == "96 of 96 SMs seen, 1 shared with decode"
    assert (second["proof"], second["is_proof_bad"]) == ("36 of 36 SMs seen, 2 outside, 1 shared with prefill", True)
    assert "NOT as asked" in state.notice
    assert view(do(state, "move_boundary", left=0, sms=40))["rows"][0]["proof"] == "in use after Apply"


def test_a_device_that_cannot_partition_and_a_closed_session_are_readable_and_cannot_be_changed():
    plain = start(PLAIN, None, "green-contexts: not available")
    assert "no room" in do(start(PLAIN, None), "add").notice
    draft = do(state_of(**TWO), "set_request", key=0, text="48")
    assert draft.is_dirty
    closed = take_closed(draft, draft.applied)  # the layout that it had is shown, not the draft
    for state, obstacle, sms in ((plain, "green-contexts: not available", []), (closed, "closed", [96, 36])):
        shown = view(state)
        assert obstacle in shown["obstacle"]
        assert [row["granted_sms"] for row in shown["rows"]] == sms
        assert not shown["can_edit"]
        assert do(state, "add") == do(state, "clear") == state


def test_grid_has_a_cell_for_each_sm_and_whole_groups_in_a_column():
    for device in (H200, A100, PLAIN, Device(name="huge", sm_count=5_000)):
        grid = grid_of(device)
        assert grid.row_count * (grid.column_count - 1) < device.sm_count <= grid.row_count * grid.column_count
        assert grid.column_count <= 40
    assert grid_of(H200).row_count == 8


def step(name, **arguments):
    return st.fixed_dictionaries({"do": st.just(name), **arguments})


KEYS = st.integers(0, 6)
STEPS = st.one_of(
    *(step(name) for name in ("add", "clear", "revert", "use_nearest")),
    step("remove", key=KEYS),
    step("set_request", key=KEYS, text=st.sampled_from(["7", "8", "133", "25%", "rest", "", "-3", "0.5"])),
    step("set_name", key=KEYS, text=st.sampled_from(["a", "b", "", "a b"])),
    step("move_boundary", left=KEYS, sms=st.integers(-10, 200)),
    step("set_rounding", text=st.sampled_from(["up", "down", "exact"])),
)


@given(st.lists(STEPS, max_size=8))
def test_whatever_is_done_the_view_can_be_sent_and_the_cells_fit_the_card(steps):
    state = state_of(**TWO)
    for action in steps:
        state = act(state, action)
    shown = json.loads(json.dumps(view(state)))
    assert sum(run["sms"] for run in shown["runs"]) <= 132
    assert len({row["key"] for row in shown["rows"]}) == len(shown["rows"])
    assert (shown["problem"] is None) or not shown["apply"]["is_enabled"]
    for boundary in shown["boundaries"]:
        assert boundary["left_sms"] in boundary["stops"]


def test_streams_on_the_whole_card_are_named():
    shown = view(state_of(**TWO), streams={"": ("copy", "other"), "prefill": ("p",)})
    assert shown["whole_card"] == "copy, other have the whole card, and so share SMs with every partition."
    assert view(state_of(**TWO), streams={"prefill": ("p",)})["whole_card"] == ""
    assert view(state_of(), streams={"": ("copy",)})["whole_card"] == ""
