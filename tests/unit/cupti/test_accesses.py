"""Which memory work touched: from the calls of the driver, whoever made them."""

from __future__ import annotations

import random

import pytest

from gpustreamlab.backends._activity import SPIN_NAME
from gpustreamlab.backends.cuda.cupti._arguments import CallFlag
from gpustreamlab.backends.cuda.cupti._blocks import BlockChange
from tests.helpers.driver_calls import NUMBERS, ROLES, DriverCalls, Role

A, B, C = 0x7F00_0000_0000, 0x7F00_1000_0000, 0x7F00_2000_0000
FAR = 0x0005_0000_0000
SIZE = 4_096


@pytest.fixture
def made():
    """Calls after which three pieces of memory are there, of which two were written."""
    calls = DriverCalls()
    for address in (A, B, C):
        calls.allocate(address, SIZE)
    calls.copy(A, 1, SIZE)
    calls.copy(B, 1, SIZE)
    calls.read()
    return calls


def without_buffers(rows):
    return [row[2:] for row in rows]


def test_a_place_that_is_given_memory_that_nobody_had_written_is_an_output(made):
    first = made.launch(9, A, B, C)
    again = made.launch(9, C, B, A)

    rows = made.read()

    assert [row[0] for row in rows] == [first] * 3 + [again] * 3
    reads = [(0, SIZE, "r", "learned")] * 2
    assert without_buffers(rows) == [*reads, (0, SIZE, "w", "learned"), *reads, (0, SIZE, "w", "learned")]
    assert rows[2][1] == rows[3][1], "the same memory, written and then read"


def test_what_writes_is_not_known_before_an_output_was_seen(made):
    made.launch(9, A, B)
    assert [row[4:] for row in made.read()] == [("w", "unknown")] * 2


def test_a_kernel_that_is_given_one_piece_of_memory_writes_it(made):
    made.launch(9, A, A + 64)
    assert without_buffers(made.read()) == [(0, SIZE, "w", "learned"), (64, SIZE, "w", "learned")]


def test_memory_that_others_may_have_written_teaches_nothing(made):
    made.call("cuGraphLaunch", stream=16)
    made.launch(9, A, C)
    assert [row[4:] for row in made.read()] == [("w", "unknown")] * 2


def test_a_kernel_that_hides_what_it_writes_teaches_nothing(made, monkeypatch):
    monkeypatch.setattr(made.reader, "_name_of", lambda function: "ncclDevKernel_AllReduce_Sum" if function == 8 else "other")
    made.launch(8, B)
    made.launch(9, A, C)
    rows = made.read()
    assert [row[4:] for row in rows[-2:]] == [("w", "unknown")] * 2
    assert rows[1][1:] == (0, 0, 0, "w", "unknown"), "it uses more than is known"


def test_a_kernel_that_gets_memory_with_pointers_uses_more_than_is_known(made):
    # GIVEN memory into which addresses were copied
    made.reader.follow(is_on=True)
    made.steps()
    made.launch(9, A, C)
    made.call("cuMemcpyHtoDAsync_v2", words=[1, 16], target=B + 64, size=16, flags=CallFlag.POINTERS)
    first = made.launch(9, A, B)
    made.copy(B, 1, 64)
    second = made.launch(9, B, C)
    made.copy(B, 1, SIZE)
    made.launch(9, A, B)
    # WHEN, THEN: until it is written whole
    assert [row[0] for row in made.read() if not row[1]] == [first, second]
    assert [step.hides for step in made.steps() if step.name == "kernel 9"] == [False, True, True, False]


def test_a_spin_that_is_given_no_memory_is_known_to_touch_nothing(made, monkeypatch):
    # GIVEN the one of workloads.spin, one of another name, and one of a user that is called spin
    names = {8: SPIN_NAME, 7: "spin"}
    monkeypatch.setattr(made.reader, "_name_of", lambda function: names.get(function, "other"))
    made.launch(8, 200_000, 0)
    made.launch(9, A, C)
    made.launch(8, B)
    made.launch(7, 200_000, 0)
    rows = made.read()
    assert rows[0][1:] == (0, 0, 0, "r", "known")
    assert [row[4:] for row in rows[1:]] == [("r", "learned"), ("w", "learned"), ("w", "learned")]


def test_copies_and_fills_have_exact_extents(made):
    made.copy(A + 100, B + 200, 50)
    made.call("cuMemsetD32Async", stream=16, target=C + 4, size=16)
    rows = made.read()
    assert without_buffers(rows) == [(100, 150, "w", "known"), (200, 250, "r", "known"), (4, 20, "w", "known")]


def test_memory_that_was_freed_has_another_number_when_it_comes_again(made):
    made.launch(9, A)
    made.free(A)
    made.launch(9, A)
    made.allocate(A, SIZE)
    made.launch(9, A)
    rows = made.read()
    assert len(rows) == 2
    assert rows[0][1] != rows[1][1]


def test_a_free_that_returns_after_its_memory_was_given_out_again_frees_nothing(made):
    begin_ns = made.now_ns
    made.allocate(A, 2 * SIZE)
    made.free(A, begin_ns=begin_ns)
    made.launch(9, A)
    assert without_buffers(made.read()) == [(0, 2 * SIZE, "w", "learned")]


def test_the_driver_is_asked_once_for_memory_that_was_there_before_and_for_a_word_that_is_none():
    calls = DriverCalls()
    calls.existing = [(A, SIZE, False)]
    for _ in range(3):
        calls.launch(9, A + 8, FAR)
        calls.launch(9, A + 16, FAR + 8)
    assert without_buffers(calls.read()) == [(8, SIZE, "w", "learned"), (16, SIZE, "w", "learned")] * 3
    assert calls.asked == [A + 8, FAR]
    assert calls.told == [(A, SIZE), (FAR, 0)]


def test_a_word_beside_memory_that_is_there_is_asked_for_again_once_some_was_made():
    calls = DriverCalls()
    calls.existing = [(A, SIZE, False)]
    calls.launch(9, A, A + SIZE)
    calls.read()
    assert calls.told == [(A, SIZE)], "beside others that are there callbacks go on looking"
    calls.existing.append((A + SIZE, SIZE, False))
    calls.allocate(C, SIZE)
    calls.launch(9, A, A + SIZE)
    assert len({row[1] for row in calls.read()}) == 2


def test_page_locked_memory_is_the_hosts_and_may_be_written_without_a_call():
    calls = DriverCalls()
    calls.call("cuMemHostAlloc", target=A, size=SIZE)
    calls.allocate(B, SIZE)
    calls.launch(9, A, B)
    flags = calls.reader.read(*calls.take(), ROLES)["flags"].tolist()
    assert [flag & 3 for flag in flags] == [2, 1]


def test_calls_that_failed_did_nothing(made):
    made.call("cuMemAlloc_v2", target=A, size=SIZE, flags=CallFlag.FAILED)
    made.launch(9, A, flags=CallFlag.FAILED)
    assert made.read() == []


def test_what_is_captured_into_a_graph_is_no_work(made):
    made.call("cuStreamBeginCapture_v2", stream=16)
    made.call("cuEventRecord", stream=16, target=5)
    made.call("cuStreamWaitEvent", stream=32, target=5)
    made.launch(9, A, stream=16)
    made.launch(9, A, stream=32)
    beside = made.launch(9, A, stream=48)
    made.call("cuStreamEndCapture", stream=16)
    behind = made.launch(9, A, stream=32)
    assert [row[0] for row in made.read()] == [beside, behind]


def test_blocks_of_a_librarys_pool_are_told_apart(made):
    at_ns = made.now_ns + 500
    changes = [BlockChange(at_ns, A, 256, 0), BlockChange(at_ns, A + 256, 256, 0), BlockChange(at_ns + 2_000, A, 0, 0)]
    made.reader.add_changes(changes)
    made.launch(9, A, A + 300)
    made.launch(9, A, A + 300)
    made.launch(9, A, A + 300)
    rows = made.read()
    assert without_buffers(rows[:2]) == [(0, 256, "w", "learned"), (44, 256, "w", "learned")]
    assert [row[0] for row in rows] == [6, 6, 7, 7, 8], "the third finds its first argument in nobody's memory"


def test_256_places_and_arguments_that_were_cut_say_that_there_is_more(made):
    made.launch(9, *[A] * 256)
    made.launch(9, A, C, flags=CallFlag.OPAQUE)
    rows = made.read()
    assert len({row[1] for row in rows}) == 3
    assert rows[-1][1:4] == (0, 0, 0), "memory that is not known"
    assert rows[-1][4:] == ("w", "unknown")


def test_calls_that_are_read_together_say_what_they_say_one_by_one():
    together, alone = (_random_calls(seed=5) for _ in range(2))
    every, each = together.read_in_parts(700), alone.read_in_parts(1)
    assert len(every) > 3_000
    assert _renumbered(every) == _renumbered(each)


def _random_calls(seed):
    """Return calls of functions whose outputs are known by then, between which memory changes now and then."""
    chance = random.Random(seed)
    calls = DriverCalls()
    pieces = [A + place * SIZE for place in range(8)]
    for address in pieces:
        calls.allocate(address, SIZE)
    for place, address in enumerate(pieces):
        calls.launch(chance.choice((9, 10)) if place > 1 else 9 + place, 0, address)
    for turn in range(2_000):
        if turn % 97 == 96:
            address = chance.choice(pieces)
            calls.free(address)
            calls.allocate(address, SIZE)
            calls.call("cuMemsetD8Async", stream=16, target=address, size=SIZE)
        one, other = chance.choice(pieces), chance.choice(pieces)
        if chance.random() < 0.1:
            calls.copy(one, other + 8, 64)
        elif chance.random() < 0.1:
            calls.call("cuEventRecord", stream=16, target=3)
        else:
            words = (one, other + 8 * chance.randrange(200), chance.choice((0, one, other)))
            calls.launch(chance.choice((9, 10)), *words, stream=chance.choice((16, 32)), size=chance.randrange(3))
    return calls


@pytest.mark.parametrize("seed", range(8))
def test_calls_of_any_kind_in_any_order_give_accesses_within_their_memory(seed):
    """What no driver does is read as well: callbacks.c trusts no call (see `test_call_ring.py`, under AddressSanitizer)."""
    chance = random.Random(seed)
    calls = DriverCalls()
    calls.existing = [(C, SIZE, True)]
    calls.reader.follow(is_on=bool(seed % 2))
    places = [A + place * 256 for place in range(64)] + [C, C + SIZE - 1, 0, 8, FAR, (1 << 48) - 1]
    for _ in range(20):
        for name in chance.choices([*NUMBERS], k=40):
            words = [chance.choice(places) | chance.randrange(1 << 13) << 48 for _ in range(chance.choice((0, 1, 2, 7, 512)))]
            size = chance.choice((0, 1, 255, SIZE, (1 << 64) - 1))
            flags = chance.choice((0, 0, CallFlag.FAILED, CallFlag.OPAQUE, CallFlag.PER_THREAD, CallFlag.BLOCKING))
            is_copy = ROLES[NUMBERS[name]].role is Role.COPY
            words = [chance.choice(places), size] if is_copy else words
            calls.call(
                name, words=words, stream=chance.choice((0, 1, 2, 16)), target=chance.choice(places), size=size, flags=flags
            )
        now_ns = calls.now_ns
        calls.reader.add_changes(
            BlockChange(now_ns - 30_000 + 10 * turn, chance.choice(places[:64]), chance.choice((0, 256, 700)), 16)
            for turn in range(chance.randrange(9))
        )
        assert all(0 <= begin <= end for _, buffer, begin, end, *_ in calls.read() if buffer)
        calls.steps()


def _renumbered(rows):
    numbers = {}
    return [(row[0], numbers.setdefault(row[1], len(numbers)), *row[2:]) for row in rows]


def test_a_graph_that_was_captured_does_at_each_launch_what_its_nodes_do(made):
    made.call("cuStreamBeginCapture_v2", stream=16)
    made.launch(9, A, stream=16)
    made.launch(9, A, stream=16)
    made.copy(B, A + 8, 16, stream=16)
    made.call("cuStreamEndCapture", stream=16, target=500)
    made.call("cuGraphInstantiateWithFlags", target=600, size=500)
    launches = [made.call("cuGraphLaunch", stream=32, target=600) for _ in range(2)]
    made.call("cuGraphExecKernelNodeSetParams_v2", target=600)
    made.call("cuGraphLaunch", stream=32, target=600)

    columns = made.reader.read(*made.take(), ROLES)

    assert columns["correlationId"].tolist() == [number for number in launches for _ in range(4)]
    assert (columns["flags"] >> 8).tolist() == [1, 2, 3, 3] * 2, "the place of each node, from 1"
    assert (columns["flags"] & 1).tolist() == [1, 1, 1, 0] * 2


@pytest.mark.parametrize("inside", ["cuGraphLaunch", "cuMemcpy3DAsync_v2"])
def test_a_graph_with_a_graph_inside_is_not_known(made, inside):
    made.call("cuStreamBeginCapture_v2", stream=16)
    made.launch(9, A, stream=16)
    made.call(inside, stream=16, target=700, words=[0, 0] if "Memcpy" in inside else [])
    made.call("cuStreamEndCapture", stream=16, target=500)
    made.call("cuGraphInstantiateWithFlags", target=600, size=500)
    made.call("cuGraphLaunch", stream=32, target=600)
    rows = made.read()
    assert len(rows) == (0 if inside == "cuGraphLaunch" else 1)


def test_memory_of_a_pool_that_nobody_tells_of_is_not_known_to_be_shared(made):
    made.allocate(C, 2 << 20)
    made.reader.has_unseen_pool = True
    made.launch(9, A, C + 512)
    assert [row[2:] for row in made.read()] == [(0, SIZE, "r", "learned"), (512, 2 << 20, "w", "unknown")]


def test_new_memory_at_each_launch_has_a_number_of_its_own_and_is_told_of_in_order():
    calls = DriverCalls()
    calls.reader.follow(is_on=True)
    for _ in range(100):
        for address in (A, B, C):
            calls.allocate(address, SIZE)
        calls.launch(9, A, B, C)
        for address in (A, B, C):
            calls.free(address)
    rows = calls.read()
    assert len({row[1] for row in rows}) == len(rows) == 300
    kinds = [step.kind.name for step in calls.steps()]
    assert kinds == [*["MADE"] * 3, "WORK", *["SEEN_ALL", "GONE"] * 3] * 100


def test_there_is_room_for_any_number_of_blocks():
    calls = DriverCalls()
    for place in range(1_000):
        calls.allocate(A + place * SIZE, SIZE)
    calls.launch(9, *[A + place * SIZE + 8 for place in range(0, 1_000, 10)])
    calls.call("cuMemUnmap", target=A, size=500 * SIZE)
    calls.launch(9, *[A + place * SIZE + 8 for place in range(0, 1_000, 10)])
    rows = calls.read()
    assert [row[2:4] for row in rows] == [(8, SIZE)] * 150
    assert [row[1] for row in rows[50:100]] == [row[1] for row in rows[100:]]
