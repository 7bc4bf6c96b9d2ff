"""What orders statements of a program, and the waits that do it: against oracles that know nothing of how they are found."""

import random
import time
from dataclasses import replace

import pytest

from gpustreamlab.analysis import Region, region_of
from gpustreamlab.programs._graph import Access, Engine, Work, find_dependencies, on_one_stream, schedule

STREAMS = ["home", "b", "c", "d"]


def random_region(dice):
    """Return bytes of a piece: all, a part, or every second element."""
    kind = dice.randrange(4)
    if kind == 0:
        return None
    start = dice.randrange(12)
    if kind == 1:
        return region_of(start * 8 + dice.randrange(2) * 8, (dice.randint(2, 4),), (16,), 8)
    return region_of(start * 8, (dice.randint(1, 6),), (8,), 8)


def random_works(seed):
    dice = random.Random(seed)
    works = []
    for _ in range(dice.randint(1, 16)):
        accesses = [
            Access(dice.randrange(3), random_region(dice), dice.random() < 0.4) for _ in range(dice.choice((0, 1, 1, 2, 3)))
        ]
        engine = dice.choice((Engine.SMS, Engine.SMS, Engine.COPY_IN, Engine.COPY_OUT)) if accesses else Engine.NONE
        works.append(
            Work(
                accesses=tuple(accesses),
                engine=engine,
                duration_ns=dice.randrange(50_000),
                share=dice.choice((0.1, 0.5, 1.0)),
                waits=dice.random() < 0.1,
                barrier="is opaque" if dice.random() < 0.08 else "",
                stream=dice.choice(STREAMS) if dice.random() < 0.5 and accesses else None,
            )
        )
    return works


def bytes_of(region):
    """Return the numbers of the bytes that a region covers; those of a piece are 0 to 399."""
    if region is None:
        return set(range(400))
    if region.address is None:
        return set(range(region.start, region.end))
    (count,), (stride,) = region.shape, region.strides
    return {region.address + place * stride + byte for place in range(count) for byte in range(region.itemsize)}


def conflict(first, second):
    """Tell whether two statements have to keep their order."""
    if first.barrier or second.barrier:
        return bool(first.barrier or first.accesses) and bool(second.barrier or second.accesses)
    return any(
        one.piece == other.piece and (one.is_write or other.is_write) and bytes_of(one.region) & bytes_of(other.region)
        for one in first.accesses
        for other in second.accesses
    )


def closure(behind):
    """Return for each statement all those before it, directly or by others."""
    found = []
    for direct in behind:
        found.append(set(direct).union(*(found[first] for first in direct)))
    return found


@pytest.mark.parametrize("seed", range(0, 2_000, 200))
def test_dependencies_are_those_of_a_comparison_of_every_byte(seed):
    for each in range(seed, seed + 200):
        works = random_works(each)
        active = [bool(work.barrier or work.accesses) for work in works]
        expected = closure([[i for i in range(j) if conflict(works[i], works[j])] for j in range(len(works))])
        found = closure([[one.first for one in behind] for behind in find_dependencies(works)])
        assert [one for one, is_one in zip(found, active, strict=True) if is_one] == [
            one for one, is_one in zip(expected, active, strict=True) if is_one
        ], f"seed {each}"


BEGINNING = -1


def is_ordered(planned, behind, left_out=None):
    """Tell whether each statement is behind what it has to be, by vector clocks; one wait may be left out."""
    home = planned.streams[0]
    clocks, at_end = {home: {BEGINNING}}, {BEGINNING: {BEGINNING}}
    waits = [*enumerate(planned.waits), (len(planned.stream), planned.joins)]
    for number, its_waits in waits:
        stream = planned.stream[number] if number < len(planned.stream) else home
        if stream is None:
            assert not its_waits
            continue
        clock = clocks.setdefault(stream, set())
        for wait in its_waits:
            if (number, wait) != left_out:
                assert wait.behind == BEGINNING or planned.stream[wait.behind] == wait.stream
                clock |= at_end[wait.behind]
        if number == len(planned.stream):
            return clock >= {one for one, used in enumerate(planned.stream) if used is not None}
        needed = {first for first in behind[number] if planned.stream[first] is not None} | {BEGINNING}
        if not clock >= needed:
            return False
        clock.add(number)
        at_end[number] = set(clock)
    raise AssertionError


@pytest.mark.parametrize("seed", range(0, 2_000, 200))
def test_waits_order_what_depends_and_none_of_them_can_go(seed):
    wait_count = 0
    for each in range(seed, seed + 200):
        works = random_works(each)
        planned = schedule(works, STREAMS[: 1 + each % 4])
        behind = [[i for i in range(j) if conflict(works[i], works[j])] for j in range(len(works))]
        assert is_ordered(planned, behind), f"seed {each}"
        waits = [(number, wait) for number, its in enumerate(planned.waits) for wait in its]
        waits += [(len(works), wait) for wait in planned.joins]
        wait_count += len(waits)
        for one in waits:
            assert not is_ordered(planned, behind, one), f"seed {each}: {one} is not needed"
    assert wait_count > 200


@pytest.mark.parametrize("seed", range(20))
def test_statements_keep_the_streams_that_they_were_given_and_their_order_on_each(seed):
    works = random_works(seed)
    planned = schedule(works, STREAMS)
    assert all(work.stream in (None, stream) for work, stream in zip(works, planned.stream, strict=True))
    for name in STREAMS:
        ends = [0]
        for start, end, stream in zip(planned.start_ns, planned.end_ns, planned.stream, strict=True):
            if stream == name:
                assert start >= ends[-1]
                ends.append(end)
    one = on_one_stream(works, "home")
    assert not one.wait_count
    assert set(one.stream) <= {"home", None}
    assert set(one.streams) == {"home"}


def test_statements_of_the_host_have_no_stream_and_need_no_wait():
    kernel = Work(accesses=(Access(0, None, True),), engine=Engine.SMS, duration_ns=1_000)
    planned = schedule([Work(), kernel, Work(), replace(kernel, stream="b")], ["a", "b"])
    assert planned.stream == (None, "a", None, "b")
    assert [len(waits) for waits in planned.waits] == [0, 0, 0, 1]


def independent(count):
    return [Work(accesses=(Access(place, None, True),), engine=Engine.SMS, duration_ns=10_000) for place in range(count)]


def chain(count):
    return [
        Work(accesses=(Access(place, None, False), Access(place + 1, None, True)), engine=Engine.SMS, duration_ns=10_000)
        for place in range(count)
    ]


def all_read_one(count):
    return [
        Work(accesses=(Access(-1, None, False), Access(place, None, True)), engine=Engine.SMS, duration_ns=10_000)
        for place in range(count)
    ]


def all_write_slices(count):
    return [
        Work(accesses=(Access(0, Region(8 * place, 8 * place + 8), True),), engine=Engine.SMS, duration_ns=10_000)
        for place in range(count)
    ]


def all_read_one_and_one_writes(count):
    return [*all_read_one(count - 1), Work(accesses=(Access(-1, None, True),), engine=Engine.SMS, duration_ns=10_000)]


@pytest.mark.parametrize("shape", [independent, chain, all_read_one, all_write_slices, all_read_one_and_one_writes])
def test_many_statements_are_placed_soon(shape):
    works = shape(4_000)
    before = time.process_time()
    planned = schedule(works, STREAMS)
    assert time.process_time() - before < 2, "about 0.2 s on a machine that does nothing else"
    assert len(planned.stream) == 4_000
