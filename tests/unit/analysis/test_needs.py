"""What data ask for is what a walk over every byte finds, and without the waits that are not needed all stays in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab.analysis import NEEDS, _data_order, _needed_waits, wait_needs
from gpustreamlab.model import Accesses, Edges, Trace
from gpustreamlab.typing import EdgeKind, Need
from tests.helpers import long_runs
from tests.helpers.traces import data_edges, data_order

KNOWN, LEARNED, UNKNOWN = range(3)
RAW, WAR, WAW = range(3)
TRIES = settings(max_examples=long_runs.count(40, 3_000), deadline=None)


def program(lanes, touched, waits=()):
    """Return a trace of kernels, one behind the other, of rows (work, buffer, begin, end, is_write, certainty) and waits."""
    count = len(lanes)
    trace = Trace.from_columns(
        start_ns=np.arange(count), end_ns=np.arange(count) + 1, stream=[f"s{lane}" for lane in lanes], kind="kernel"
    )
    span, buffer, begin, end, is_write, certainty = np.array(touched, np.int64).reshape(-1, 6).T
    source, target = np.array(waits, np.int64).reshape(-1, 2).T
    return replace(
        trace,
        edges=Edges(source=source, target=target, kind=np.zeros(len(source), np.int8)),
        accesses=Accesses(
            span=span,
            buffer=buffer,
            begin=begin,
            end=end,
            is_write=is_write == 1,
            is_host=np.zeros(len(span), bool),
            certainty=certainty,
        ),
    )


def found(trace):
    return sorted(zip(*(column.tolist() for column in data_edges(trace)), strict=True))


def opaque_of(lanes, touched):
    """Return the work of which it is not known what all it touches."""
    is_guess = {row[0] for row in touched if row[5] == UNKNOWN or (not row[1] and row[3] > row[2])}
    return ({*range(len(lanes))} - {row[0] for row in touched}) | is_guess


def walked(lanes, touched):
    """Find the same by a walk over all bytes, work by work."""
    writer, readers, best, opaque = {}, {}, {}, opaque_of(lanes, touched)
    for work in range(len(lanes)):
        own = {(row[4], row[1], byte) for row in touched if row[0] == work for byte in range(row[2], row[3])}

        def note(before, kind, buffer, work=work):
            if lanes[before] != lanes[work]:
                key = (work, kind, buffer, lanes[before])
                best[key] = max(best.get(key, -1), before)

        for is_write, buffer, byte in sorted(own) if work not in opaque else ():
            here = (buffer, byte)
            if here in writer:
                note(writer[here], WAW if is_write else RAW, buffer)
            if is_write:
                for reader in readers.get(here, ()):
                    note(reader, WAR, buffer)
                writer[here], readers[here] = work, set()
            else:
                readers.setdefault(here, set()).add(work)
    return sorted((before, work, kind, buffer) for (work, kind, buffer, _), before in best.items())


def reach(lanes, waits):
    """Return of each work what comes before it: by its stream, and by these waits."""
    ahead = []
    for work, lane in enumerate(lanes):
        mine = {work}
        for before in range(work):
            if lanes[before] == lane:
                mine |= ahead[before]
        for source, target in waits:
            if lanes[target] == lane and target <= work:
                mine |= ahead[source]
        ahead.append(mine)
    return ahead


@st.composite
def programs(draw):
    count = draw(st.integers(1, 12))
    lanes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    touched = [
        (work, draw(st.integers(0 if draw(st.integers(0, 5)) == 0 else 1, 3)), begin, begin + draw(st.integers(0, 4)), *rest)
        for work in range(count)
        for begin, *rest in draw(
            st.lists(
                st.tuples(st.integers(0, 5), st.integers(0, 1), st.sampled_from([KNOWN, KNOWN, LEARNED, UNKNOWN])), max_size=3
            )
        )
    ]
    pairs = [(source, target) for target in range(count) for source in range(target) if lanes[source] != lanes[target]]
    waits = draw(st.lists(st.sampled_from(pairs), max_size=10, unique=True)) if pairs else []
    return lanes, touched, waits


@TRIES
@given(made=programs(), part_rows=st.sampled_from([1, 3, 1 << 22]))
def test_data_edges_are_those_that_a_walk_over_every_byte_finds(made, part_rows):
    lanes, touched, _ = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_data_order, "PART_ROWS", part_rows)
        assert found(program(lanes, touched)) == walked(lanes, touched)


@TRIES
@given(made=programs(), known_orders=st.sampled_from([0, 1 << 25]))
def test_without_what_is_not_needed_all_that_was_in_order_is(made, known_orders):
    lanes, touched, waits = made
    trace = program(lanes, touched, waits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_needed_waits, "KNOWN_ORDERS", known_orders)
        needs = [NEEDS[code] for code in wait_needs(trace).need.tolist()]
    if not touched:
        assert set(needs) <= {Need.NOT_KNOWN}
        return
    kept = [wait for wait, need in zip(waits, needs, strict=True) if need is not Need.NOT_NEEDED]
    needed = [wait for wait, need in zip(waits, needs, strict=True) if need is Need.NEEDED]
    whole, less, least = (reach(lanes, some) for some in (waits, kept, needed))
    for before, after, *_ in walked(lanes, touched):
        if before in whole[after]:
            assert before in less[after]
            # What goes through third streams is followed only as far as there is room.
            assert before in least[after] or not known_orders
    opaque = opaque_of(lanes, touched)
    for after in range(len(lanes)):
        for before in whole[after]:
            if opaque & {before, after}:
                assert before in less[after]
    # AND each that is needed stands between work that data put in order
    sure = [(before, after) for before, after, *_ in walked(lanes, touched)]
    for source, target in needed:
        assert any(before in whole[source] and target in whole[after] for before, after in sure)


def test_of_waits_that_can_stand_for_each_other_one_is_needed():
    # GIVEN a copy that a stream waits for, again and again
    lanes, touched = [0, 1, 1, 1], [(0, 1, 0, 8, 1, KNOWN), *((work, 1, 0, 8, 0, KNOWN) for work in (1, 2, 3))]
    needs = wait_needs(program(lanes, touched, [(0, 1), (0, 2), (0, 3)]))
    assert [NEEDS[code] for code in needs.need.tolist()] == [Need.NEEDED, Need.NOT_NEEDED, Need.NOT_NEEDED]


def test_an_order_through_a_third_stream_needs_both_waits():
    lanes = [0, 1, 2]
    touched = [(0, 1, 0, 8, 1, KNOWN), (1, 2, 0, 8, 1, KNOWN), (2, 1, 0, 8, 0, KNOWN)]
    needs = wait_needs(program(lanes, touched, [(0, 1), (1, 2)]))
    assert [NEEDS[code] for code in needs.need.tolist()] == [Need.NEEDED, Need.NEEDED]


def test_work_of_which_nothing_is_known_makes_waits_around_it_not_known():
    lanes, touched = [0, 1, 0, 1], [(0, 1, 0, 8, 1, KNOWN), (1, 2, 0, 8, 1, KNOWN), (3, 2, 0, 8, 1, KNOWN)]
    needs = wait_needs(program(lanes, touched, [(0, 1), (2, 3)]))
    assert [NEEDS[code] for code in needs.need.tolist()] == [Need.NOT_NEEDED, Need.NOT_KNOWN]


def test_other_edges_are_of_no_need_and_without_accesses_nothing_is_known():
    trace = program([0, 1], [], [(0, 1), (0, 1)])
    mixed = replace(trace, edges=Edges(source=[0, 0], target=[1, 1], kind=[0, 1]))
    assert wait_needs(mixed).need.tolist() == [NEEDS.index(Need.NOT_KNOWN), -1]


def pipeline(lab):
    up, compute = lab.stream("up"), lab.stream("compute")
    host = lab.memory.pinned_empty(1_000, np.float32)
    first, other = (lab.xp.empty(1_000, np.float32) for _ in range(2))
    for _ in range(3):
        with lab.on(up, "copy"):
            first.set(host)
        compute.wait(up)
        with lab.on(compute, "step"):
            first + 1
        up.wait(compute)
    with lab.on(compute, "other"):
        other.fill(0)
    up.wait(compute)  # nobody uses what came last
    with lab.on(up, "copy"):
        first.set(host)
    lab.synchronize()


@pytest.mark.parametrize("hazards", ["report", "off"])
def test_a_recorded_pipeline_needs_its_waits_and_no_other_also_from_a_spool(hazards, tmp_path):
    path = tmp_path / "run.gsl"
    with gsl.Session("sim", spool=path, hazards=hazards) as lab:
        lab.capture("kernels", host=True)
        pipeline(lab)
        recorded = lab.trace
    for trace in (recorded, gsl.load_trace(path)):
        needs, waits = wait_needs(trace).need, trace.edges.kind == 0
        of_work = waits & (trace.kind[trace.edges.source] != 0)
        told = [NEEDS[code].value for code in needs[of_work][np.argsort(trace.start_ns[trace.edges.target[of_work]])].tolist()]
        assert told == ["needed"] * 6 + ["not needed"]
        assert {*data_edges(trace)[2].tolist()} == {RAW, WAR}
        assert {*data_order(trace)} == {("up", "compute"), ("compute", "up")}
        frame = trace.to_pandas()
        told = frame[frame["kind"].isin(["kernel", "copy"]) & frame["wait_need"].notna()]
        assert told["wait_need"].tolist() == ["needed"] * 6  # the last one waits twice: what is needed counts
        assert (told["wait_buffers"] == told["wait_buffers"].iloc[0]).all()
        trace.save(tmp_path / "run.parquet")
        saved = pq.read_table(tmp_path / "run.parquet").column("wait_need").to_pylist()
        assert saved == frame["wait_need"].astype(object).where(frame["wait_need"].notna(), None).tolist()
        assert gsl.load_trace(tmp_path / "run.parquet").to_pandas().equals(frame)
    assert EdgeKind.SYNC in {list(EdgeKind)[code] for code in recorded.edges.kind.tolist()}
