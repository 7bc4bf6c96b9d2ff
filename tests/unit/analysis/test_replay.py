"""Programs played again: hosts that wait, several threads, order by data, and what nobody knows."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.analysis._changes import (
    Run,
    as_graph,
    by_role,
    fine_waits,
    in_turn,
    no_host_waits,
    repeats_as_graph,
    two_buffers,
    without_waits,
)
from gpustreamlab.analysis._data_order import Memory
from gpustreamlab.analysis._needed_waits import kept_for_opaque, needed_calls
from gpustreamlab.analysis._program import KERNEL, UPLOAD, Call, Card, Program, Work
from gpustreamlab.analysis._replay import Impossible, calibrate, has_full_sms, is_as_before, replay

CARD = Card(132, 32, 1 << 60, (0, 0))


def kernel(lane, ns, blocks=1, slots=1):
    return Work(0, lane, lane, KERNEL, ns, blocks, slots, 132, 0, is_pageable=False)


def copy(lane, ns):
    return Work(0, lane, lane, UPLOAD, ns, 0, 0, 132, 1 << 20, is_pageable=False)


def launch(place, thread=0, gap=10, **more):
    return Call(place, thread, gap, 5, (place,), 5, **more)


def program(works, calls, waits=(), lanes=3):
    return Program(
        card=CARD,
        works=tuple(works),
        calls=tuple(calls),
        waits=frozenset(waits),
        seats=(None,) * lanes,
        priorities=(0,) * lanes,
        has_calls=True,
    )


def touched(*touches):
    """Return memory of works, each a list of (buffer, begin, end, mode), R and W of the host; None for opaque work."""
    rows = [(place, *one) for place, some in enumerate(touches) for one in some or ()]
    mode = [row[-1] for row in rows]
    columns = np.array([row[:-1] for row in rows], np.int64).reshape(-1, 4).T
    return Memory(
        **dict(zip(("place", "buffer", "begin", "end"), columns, strict=True)),
        is_write=np.array([one in "wW" for one in mode], bool),
        is_host=np.array([one in "RW" for one in mode], bool),
        is_opaque=np.array([some is None for some in touches]),
    )


def test_the_host_stands_still_until_what_it_waits_for_has_ended():
    works = [kernel(0, 1_000), kernel(1, 500)]
    waiting = Call(-1, 0, 0, 0, awaits=(0,), back_ns=7)
    played = replay(program(works, [launch(0), waiting, launch(1)]))
    assert played.start_ns.tolist() == [15, 15 + 1_000 + 7 + 10 + 5]
    assert played.wall_ns == 15 + 1_000 + 22 + 500 - 15
    assert replay(program(works, [launch(0), launch(1)])).start_ns.tolist() == [15, 30]


def test_threads_launch_beside_each_other_and_one_that_waits_holds_up_only_itself():
    works = [kernel(0, 1_000), kernel(1, 100), kernel(0, 50)]
    calls = [launch(0), Call(-1, 0, 0, 0, awaits=(0,)), launch(1, thread=1, gap=300), launch(2)]
    played = replay(program(works, calls))
    assert played.start_ns.tolist() == [15, 305, 15 + 1_000 + 15]


def test_streams_wait_for_others_and_a_wait_for_what_is_launched_later_is_impossible():
    works = [copy(0, 100), kernel(1, 10)]
    assert replay(program(works, [launch(0), launch(1)], [(0, 1)])).start_ns.tolist() == [15, 115]
    with pytest.raises(Impossible):
        replay(program(works, [launch(1), launch(0)], [(0, 1)]))


def test_moved_work_is_awaited_where_it_is_now():
    works = [kernel(0, 100)._replace(lane=1), kernel(0, 100)._replace(lane=2), kernel(0, 10)]
    played = replay(program(works, [launch(0), launch(1), Call(-1, 0, 0, 0, awaits=(1,)), launch(2)]))
    assert played.start_ns[2] >= played.end_ns[:2].max()


def test_kernels_that_shared_the_sms_are_calibrated_to_what_they_take_alone():
    full = {"blocks": 132 * 32, "slots": 1}
    alone = program([kernel(0, 1_000, **full), kernel(1, 1_000, **full)], [launch(0), launch(1)])
    lasted = replay(alone)
    recorded = alone.change(
        works=tuple(
            work._replace(alone_ns=int(ns)) for work, ns in zip(alone.works, lasted.end_ns - lasted.start_ns, strict=True)
        )
    )
    found = calibrate(recorded, lasted.end_ns - lasted.start_ns)
    assert abs(replay(found).wall_ns - lasted.wall_ns) <= 0.001 * lasted.wall_ns


# By data


def test_reads_stand_behind_writes_and_writes_behind_all_users():
    memory = touched([(1, 0, 8, "w")], [(1, 0, 4, "r")], [(1, 4, 8, "r")], [(1, 0, 4, "w")], [(2, 0, 8, "r")])
    assert sorted(memory.edges()) == [(0, 1), (0, 2), (0, 3), (1, 3)]


def test_with_two_buffers_a_whole_write_waits_for_the_version_before_the_last():
    turn = ([(1, 0, 8, "w")], [(1, 0, 8, "r")])
    memory = touched(*(turn * 3))
    assert (1, 2) in memory.edges()
    assert sorted(memory.edges(2)) == [(0, 1), (0, 4), (1, 4), (2, 3), (4, 5)]
    part = touched([(1, 0, 8, "w")], [(1, 0, 8, "r")], [(1, 0, 4, "w")])
    assert part.edges(2) == part.edges()  # what is not written over is the same array
    halves = ([(1, 0, 4, "w")], [(1, 4, 8, "w")], [(1, 0, 8, "r")])
    assert sorted(touched(*(halves * 3)).edges(2)) == [
        (0, 2), (0, 6), (1, 2), (1, 7), (2, 6), (2, 7), (3, 5), (4, 5), (6, 8), (7, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_orders_are_those_of_a_search_byte_by_byte(seed):
    chance = np.random.default_rng(seed)
    touches = []
    for _ in range(40):
        begin = int(chance.integers(0, 20))
        touches.append([(int(chance.integers(1, 3)), begin, begin + int(chance.integers(1, 8)), chance.choice(["r", "w"]))])
    wanted, writer, readers = set(), {}, {}
    for work, ((buffer, begin, end, mode),) in enumerate(touches):
        for byte in range(begin, end):
            place = buffer, byte
            if place in writer:
                wanted.add((writer[place], work))
            if mode == "w":
                wanted |= {(reader, work) for reader in readers.get(place, ())}
                writer[place], readers[place] = work, set()
            else:
                readers.setdefault(place, set()).add(work)
    assert {pair for pair in touched(*touches).edges() if pair[0] != pair[1]} == wanted


def test_opaque_work_keeps_the_waits_in_front_of_it_and_behind_it():
    works = [kernel(0, 10), kernel(1, 10), kernel(1, 10)]
    one = program(works, [launch(0), launch(1), launch(2)], [(0, 1)])
    assert kept_for_opaque(one, touched([], [], None), one.waits) == {(0, 2)}
    assert kept_for_opaque(one, touched(None, [], []), one.waits) == {(0, 1)}
    assert kept_for_opaque(one, touched([], [], []), one.waits) == frozenset()
    chain = program([kernel(0, 10), kernel(1, 10), kernel(2, 10)], [launch(0), launch(1), launch(2)], [(0, 1), (1, 2)])
    assert kept_for_opaque(chain, touched(None, [], []), chain.waits) == {(0, 1), (0, 2)}
    assert kept_for_opaque(chain, touched([], [], None), chain.waits) == {(0, 2), (1, 2)}


def test_the_host_waits_where_its_memory_is_used_again():
    works = [copy(0, 100), kernel(1, 50), copy(0, 100)]
    calls = [launch(0), Call(-1, 0, 0, 0, awaits=(0,)), launch(1), launch(2)]
    again = touched([(9, 0, 8, "R"), (1, 0, 8, "w")], [(1, 0, 8, "r")], [(9, 0, 8, "R"), (2, 0, 8, "w")])
    other = touched([(9, 0, 8, "R"), (1, 0, 8, "w")], [(1, 0, 8, "r")], [(9, 8, 16, "R"), (2, 0, 8, "w")])
    unknown = touched([(9, 0, 8, "R"), (1, 0, 8, "w")], [(1, 0, 8, "r")], None)
    one = program(works, calls)
    assert needed_calls(one, again) == {1}
    assert needed_calls(one, other) == frozenset()
    assert needed_calls(one, unknown) == {1}
    assert no_host_waits(Run(one, again, {})) is None
    changed = no_host_waits(Run(one, other, {}))
    assert changed.program.waits == {(0, 1)}  # the stream waits in place of the host
    assert not any(call.awaits for call in changed.program.calls)


def test_the_host_waits_where_it_may_make_one_slice_of_its_memory_of_another():
    works = [copy(1, 100), copy(0, 100)]
    one = program(works, [launch(0), Call(-1, 0, 0, 0, awaits=(0,)), launch(1)])
    for buffer, begin, is_needed in ((9, 8, True), (9, 0, True), (8, 0, False), (10, 0, True)):
        used = touched([(2, 0, 8, "r"), (9, 0, 8, "W")], [(buffer, begin, begin + 8, "R"), (1, 0, 8, "w")])
        assert (needed_calls(one, used) == {1}) is is_needed, (buffer, begin)


@pytest.mark.parametrize("seed", range(40))
def test_opaque_work_that_gets_another_stream_keeps_its_place_among_all_work(seed):
    # GIVEN a program on one stream, of some work of which nobody knows what it touches
    drawn = np.random.default_rng(seed)
    works = [(copy if drawn.random() < 0.5 else kernel)(0, 100) for _ in range(12)]
    memory = touched(
        *(None if drawn.random() < 0.3 else [(int(drawn.integers(3)), 0, 8, "rw"[drawn.integers(2)])] for _ in works)
    )
    run = Run(program(works, [launch(place) for place in range(12)], lanes=1), memory, {})
    # WHEN copies and kernels get streams of their own, and waits become as fine as may be
    changed = by_role(run)
    if changed is None:
        assert len({work.kind for work in works}) == 1 or memory.is_opaque.all()
        return
    for other in (changed, fine_waits(changed) or changed, two_buffers(changed) or changed):
        # THEN opaque work is behind all that was in front of it, and in front of all that was behind it
        lanes = [work.lane for work in other.program.works]
        behind = np.zeros((12, 12), bool)
        for after in range(12):
            direct = [
                before for before in range(after) if lanes[before] == lanes[after] or (before, after) in other.program.waits
            ]
            for before in direct:
                behind[after] |= behind[before]
                behind[after, before] = True
        for place in np.flatnonzero(memory.is_opaque):
            assert behind[place, :place].all()
            assert behind[place + 1 :, place].all()


def test_a_wait_of_the_host_that_is_left_out_keeps_opaque_kernels_in_order():
    works = [kernel(0, 100), kernel(1, 50)]
    one = program(works, [launch(0), Call(-1, 0, 0, 0, awaits=(0,)), launch(1)])
    assert without_waits(Run(one, touched(None, []), {}), [1]).program.waits == {(0, 1)}
    assert without_waits(Run(one, touched([], []), {}), [1]).program.waits == frozenset()


# Launches


def test_launches_go_round_the_streams_and_no_wait_is_overtaken():
    works = [kernel(0, 10), kernel(0, 10), kernel(1, 10), kernel(1, 10)]
    one = program(works, [launch(place) for place in range(4)], [(1, 2)])
    assert in_turn(Run(one, touched([], [], [], []), {})) is None
    free = one.change(waits=frozenset())
    assert [call.works for call in in_turn(Run(free, touched([], [], [], []), {})).program.calls] == [(0,), (2,), (1,), (3,)]


def test_a_graph_is_one_launch_between_two_waits_of_the_host():
    works = [kernel(place % 2, 10) for place in range(10)]
    calls = [launch(place) for place in range(10)]
    calls.insert(5, Call(-1, 0, 0, 0, awaits=(4,)))
    made = as_graph(Run(program(works, calls), touched(*[[]] * 10), {}), 1_000, 10).program.calls
    assert [len(call.works) for call in made] == [5, 0, 5]
    assert made[0].cost_ns == 1_050
    few = [launch(place, gap=200_000) for place in range(10)]
    assert len(as_graph(Run(program(works, few), touched(*[[]] * 10), {}), 1_000, 10).program.calls) == 10


@pytest.mark.parametrize(("turns", "is_made"), [(3, False), (20, True)])
def test_turns_of_a_loop_are_a_graph_where_it_is_launched_again_and_its_capture_is_paid_for(turns, is_made):
    works = [kernel(0, 10) for _ in range(2 * turns)]
    run = Run(program(works, [launch(place) for place in range(2 * turns)]), touched(*[[(0, 0, 8, "r")]] * (2 * turns)), {})
    made = repeats_as_graph(run, 10, 1)
    assert (made is not None) is is_made
    if made is None:
        return
    sizes = [len(call.works) for call in made.program.calls]
    assert sum(sizes) == 2 * turns
    assert len(sizes) > 1
    _first, again, *later = made.program.calls
    captured_ns = sum(call.gap_ns + call.cost_ns for call in run.program.calls[: sizes[0]])
    assert again.gap_ns - later[0].gap_ns >= captured_ns


def test_what_held_the_host_up_once_is_not_promised_to_go_with_a_graph():
    works = [kernel(0, 10) for _ in range(10)]
    calls = [launch(place) for place in range(10)]
    usual_ns = calls[1].gap_ns + calls[1].cost_ns
    held_up = [*calls[:5], calls[5]._replace(cost_ns=calls[5].cost_ns + 200 * usual_ns), *calls[6:]]
    usual, late = (
        as_graph(Run(program(works, some), touched(*[[]] * 10), {}), 1_000, 10).program.calls for some in (calls, held_up)
    )
    assert [call.works for call in late] == [tuple(range(10))]
    assert late[0].cost_ns - usual[0].cost_ns == 200 * usual_ns


def test_other_waits_that_nothing_stood_in_leave_the_course_of_a_program_as_it_is():
    rng, counts = np.random.default_rng(0), [0, 0]
    for _ in range(200):
        works = [(kernel if rng.random() < 0.7 else copy)(int(rng.integers(3)), int(rng.integers(10, 400))) for _ in range(12)]
        pairs = [(a, b) for b in range(12) for a in range(b) if works[a].lane != works[b].lane]
        some, others = (frozenset(pair for pair in pairs if rng.random() < 0.08) for _ in range(2))
        first = program(works, map(launch, range(12)), some)
        changed = first.change(waits=some ^ frozenset([*others][:1]))
        is_same = is_as_before(first, changed)
        counts[is_same] += 1
        if is_same:
            assert replay(changed).end_ns.tolist() == replay(first).end_ns.tolist()
    assert min(counts) > 20


def test_full_sms_are_where_kernels_wait_for_room_or_share_it():
    alone = [kernel(0, 100, blocks=132 * 32), kernel(1, 100, blocks=132 * 32)]
    at_once = program(alone, map(launch, range(2)))
    in_order = program(alone, map(launch, range(2)), [(0, 1)])
    small = program([kernel(0, 100), kernel(1, 100)], map(launch, range(2)))
    assert [has_full_sms(one) for one in (at_once, in_order, small)] == [True, False, False]
