"""What is new since a cursor: read in pieces, it is the same as read at once."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.model import Counters
from gpustreamlab.record import START, build_trace, join, join_samples
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend, kernel_detail

ROWS = ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread", "partition")
TABLES = ("names", "lanes", "threads", "partitions", "layouts", "markers", "details")


@pytest.fixture
def source():
    return FakeActivitySource()


@pytest.fixture
def lab(source):
    with Session(FakeSourceBackend(source), ring_size=200) as session:
        session.stream("a")
        session.stream("b")
        yield session


def facts_of(trace):
    counters = [getattr(trace.counters, name).tolist() for name in ("time_ns", "lane", "name", "value")]
    edges = sorted(zip(trace.edges.source.tolist(), trace.edges.target.tolist(), trace.edges.kind.tolist(), strict=True))
    return (
        {name: getattr(trace, name).tolist() for name in ROWS},
        {name: tuple(getattr(trace, name)) for name in TABLES},
        edges,
        counters,
    )


def step(lab, source, rng, number):
    """Do one of the things that a recorder is told of."""
    kind = rng.integers(8)
    lane = lab.stream("ab"[number % 2])
    if kind < 4:
        with lab.on(lane, f"r{rng.integers(9)}"), lab.range("inner"):
            pass
    elif kind == 4:
        lane.wait(lab.stream("ba"[number % 2]).record())
    elif kind == 5:
        lab.mark(f"mark {number}")
    elif kind == 6:
        source.push_work(number * 10, number * 10 + 5, stream=9, name="k", detail=kernel_detail(f"k{rng.integers(4)}"))
        source.push_dependency(source=(0, 1), record=number, target=(0, 2), wait=number + 1)
    else:
        source.push_memory(number * 100_000, float(rng.integers(9)), stream=9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clear_at", [None, 40])
def test_what_is_read_in_pieces_is_what_is_read_at_once(lab, source, seed, clear_at):
    # GIVEN two readers of which one reads now and then
    rng, cursor, deltas = np.random.default_rng(seed), START, []
    lab.capture("kernels")
    for number in range(90):
        if number == clear_at:
            lab.clear()
        step(lab, source, rng, number)
        if rng.integers(4) == 0:
            deltas.append(lab._recorder.changes(cursor))
            cursor = deltas[-1].cursor

    # WHEN all has ended
    lab.synchronize()
    deltas.append(lab._recorder.changes(cursor))

    # THEN its deltas together are what the other one reads
    joined, whole = join(deltas), lab._recorder.changes()
    assert joined.missed == 0
    assert joined.cursor[:-1] == whole.cursor[:-1]  # the version also changes by itself
    assert joined.columns["number"].tolist() == whole.columns["number"].tolist()
    assert facts_of(build_trace(joined)) == facts_of(build_trace(whole)) == facts_of(lab.trace)


def test_a_reader_that_is_too_late_is_told_how_many_rows_it_missed():
    with Session("sim", ring_size=10, capture="ranges") as lab:
        lab.stream("a")
        first = lab._recorder.changes()
        for _ in range(25):
            with lab.on("a"):
                pass
        lab.synchronize()
        late = lab._recorder.changes(first.cursor)
        assert (late.row_count, late.missed, late.is_cleared) == (10, 15, False)

        # What was cleared is not missed, what the ring dropped since then is
        lab.clear()
        for _ in range(12):
            with lab.on("a"):
                pass
        lab.synchronize()
        assert [
            (one.row_count, one.missed, one.is_cleared) for one in map(lab._recorder.changes, (first.cursor, late.cursor))
        ] == [(10, 2, True)] * 2


def test_tables_are_told_anew_only_where_they_changed(lab):
    first = lab._recorder.changes()
    same = lab._recorder.changes(first.cursor)
    lab.mark("here")
    marked = lab._recorder.changes(same.cursor)
    titled = lab._recorder.changes(marked.cursor, title="other")

    assert [delta.is_changed for delta in (first, same, marked, titled)] == [True, False, True, True]
    assert same.tables == first.tables
    assert [marker.text for marker in marked.tables.markers] == ["here"]
    assert titled.tables.metadata.title == "other"


def test_nothing_but_the_tables_is_read_up_to_the_beginning(lab):
    with lab.on("a"):
        pass
    lab.synchronize()
    told = lab._recorder.changes(until=START)

    assert (told.row_count, told.names, told.cursor) == (0, (), START)
    assert [lane.name for lane in told.tables.lanes] == ["a", "b"]


def test_samples_that_come_again_count_once():
    def samples(*pairs):
        time_ns, value = zip(*pairs, strict=True)
        zeros = [0] * len(pairs)
        return Counters(time_ns=time_ns, lane=zeros, name=zeros, value=value, names=("bytes",))

    joined = join_samples([samples((1, 5.0), (9, 2.0)), Counters(), samples((9, 2.0), (11, 4.0), (2_000_000, 1.0))])

    assert joined.time_ns.tolist() == [1, 11, 2_000_000]
    assert joined.value.tolist() == [5.0, 4.0, 1.0]


# Ranges that have not ended, around rows that were read


def drain(lab, cursor=START, awaited=()):
    lab._backend.synchronize()
    drained = lab._recorder.changes(cursor, awaited=awaited)
    unended = drained.unended
    return drained, {
        number: (parent, lane)
        for number, parent, lane in zip(unended.number.tolist(), unended.parent.tolist(), unended.lane.tolist(), strict=True)
    }


def test_open_ranges_around_what_was_drained_are_told(lab):
    with lab.on("a", "outer"):
        with lab.on("b", "middle"):
            with lab.range("inner"):
                pass
            drained, unended = drain(lab)
    (inner,) = drained.columns["parent"].tolist()
    outer = unended[inner][0]

    assert unended[inner] == (outer, 1)
    assert unended[outer] == (-1, 0)


def test_what_is_drained_itself_is_not_told(lab):
    with lab.on("a", "outer"), lab.range("inner"):
        pass
    drained, unended = drain(lab)

    assert len(drained.columns["number"]) == 2
    assert unended == {}


def test_ranges_that_wait_for_the_device_are_told(lab):
    with lab.on("a", "outer"):
        with lab.range("inner"):
            pass
        lab._backend.synchronize()
        from gpustreamlab.workloads import spin

        spin(lab, 1_000_000)
    with lab._recorder.observing():
        drained = lab._recorder.changes(awaited=())
        unended = drained.unended

    assert len(drained.columns["number"]) == 1
    assert drained.columns["parent"][0] in unended.number.tolist()


def test_who_waits_for_a_range_learns_that_it_will_never_come(lab):
    with lab.on("a", "outer"):
        number = lab._recorder.open_number(lab.stream("a")._recorded)
        _, unended = drain(lab, awaited=[number, number + 998])
    assert list(unended) == [number]

    lab.synchronize()
    drained, unended = drain(lab, awaited=[number, number + 998])
    assert drained.columns["number"].tolist() == [number]
    assert 999 not in unended
