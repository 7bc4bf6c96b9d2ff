"""Sharing out the SMs of a session: bad input, work in flight, reuse, proof, threads, closing, and what the trace keeps."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab import Session, load_trace, plan_partitions
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import (
    DeviceError,
    PartitionError,
    PartitionInUseError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    PartitionWarning,
    StreamExistsError,
)
from gpustreamlab.model import Layout, Partition, WorkqueueOptions
from gpustreamlab.workloads import spin
from tests.helpers.selections import names_of
from tests.unit.model.equality import assert_same_trace

MS = 1_000_000


@pytest.fixture
def lab():
    with Session(SimBackend("h200"), capture="ranges") as session:
        yield session


@pytest.fixture
def halves(lab):
    """A session with partitions a (64 SMs) and b (68 SMs), and streams x in a, y in b and z on the whole card."""
    lab.partition(a=64, b="rest")
    lab.stream("x", partition="a")
    lab.stream("y", partition="b")
    lab.stream("z")
    return lab


def enqueue(lab, name, duration_ns=1_000, label=None):
    with lab.on(name, label):
        spin(lab, duration_ns)


def spans(trace):
    """Each range's lane, name, partition and its granted SMs."""
    told = []
    for row in range(len(trace)):
        code = trace.partition[row]
        part = trace.partitions[code] if code >= 0 else None
        told.append((trace.lanes[trace.lane[row]].name, trace.names[trace.name[row]], part and (part.name, part.granted_sms)))
    return told


def state_of(lab):
    """What a refused change has to leave untouched."""
    streams = tuple((name, id(stream), stream.handle, stream.partition) for name, stream in lab.streams.items())
    trace = lab.trace
    return id(lab.layout), streams, len(trace), trace.partitions, trace.layouts, len(lab._partitions.cache)


# From the whole card to partitions and back


def test_streams_know_their_partition_and_its_sms(halves):
    x, y, z = halves.streams.values()

    assert [(stream.partition, stream.sm_count) for stream in (x, y, z)] == [("a", 64), ("b", 68), (None, 132)]
    assert [stream.lane.partition for stream in (x, y, z)] == ["a", "b", None]
    assert "64 SMs of a" in repr(x)
    assert "a 64 SMs, b 68 SMs (2 of at most 64 green contexts alive, 2 in all)" in repr(halves)


def test_the_layout_is_what_partition_returns(lab):
    assert lab.layout is None
    layout = lab.partition({"a": 96, "b": 32})
    assert lab.layout is layout
    assert layout == plan_partitions({"a": 96, "b": 32}, lab.device)
    assert lab.partition(None) is None
    assert lab.layout is None


def test_streams_come_back_when_their_partition_does(halves):
    before = {name: stream.handle for name, stream in halves.streams.items()}
    created = halves._partitions.cache.created_count
    halves.partition(None)
    assert [stream.partition for stream in halves.streams.values()] == [None, None, None]
    halves.partition(a=64, b="rest")

    assert {name: stream.handle for name, stream in halves.streams.items()} == before
    assert [stream.partition for stream in halves.streams.values()] == ["a", "b", None]
    assert halves._partitions.cache.created_count == created


def test_priorities_move_along(lab):
    lab.partition(a=64, b="rest")
    stream = lab.stream("x", priority=-3, partition="a")
    lab.partition(a=32, b="rest")
    assert stream.priority == stream._backend_stream.priority == -3
    lab.partition(None)
    assert stream._backend_stream.priority == -3


# Bad input: what needs a layout; the rest is in test_bad_input.py

FOREIGN = Layout(partitions=(Partition(name="a", requested_sms=8, granted_sms=8, groups=(99,)),))
REFUSED = {
    "in use": (lambda lab: lab.partition(b=32), PartitionInUseError, ("'a'", "stream 'x'", "partition=None")),
    "foreign layout": (lambda lab: lab.partition(FOREIGN), PartitionError, ("not of H200", "plan_partitions")),
    "beyond the limit": (lambda lab: lab.partition(a=8, b=8, c=8), PartitionError, ("the 2 green contexts", "context_limit=3")),
    "renamed to nowhere": (lambda lab: lab.partition({"c": 8}, renamed={"a": "d"}), PartitionError, ("'a'", "'d'")),
    "renamed from nowhere": (lambda lab: lab.partition(a=64, renamed={"x": "a"}), PartitionError, ("'x'",)),
    "unknown partition": (lambda lab: lab.stream("w", partition="c"), PartitionNotFoundError, ("'c'", "'a', 'b'")),
    "move to an unknown one": (lambda lab: lab.stream("x", partition="aa"), PartitionNotFoundError, ("'aa'", "'a'")),
    "partition that is no name": (lambda lab: lab.stream("x", partition=5), PartitionNotFoundError, ("'5'",)),
    "another priority": (lambda lab: lab.stream("x", priority=-1, partition="b"), StreamExistsError, ("'x'", "-1")),
    "moves of two plans": (lambda lab: lab.partitions.plan_moves({"a": 64}, b=8), PartitionError, ("both were given",)),
    "moves of one in use": (lambda lab: lab.partitions.plan_moves({"b": 8}), PartitionInUseError, ("'a'", "'x'")),
}


@pytest.mark.parametrize(("do", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_a_refused_change_leaves_everything_as_it_was(do, error, words):
    with Session(SimBackend("h200"), context_limit=2, capture="ranges") as lab:
        lab.partition(a=64, b="rest")
        lab.stream("x", partition="a")
        enqueue(lab, "x", 5 * MS, "running")
        before = state_of(lab)
        with pytest.raises(error) as told:
            do(lab)
        assert [word for word in words if word not in str(told.value)] == []
        assert state_of(lab) == before
        assert not lab.stream("x").query()
        assert lab.partitions.verify().holds


def test_a_numpy_integer_is_a_number(lab):
    assert lab.partition(a=np.int64(64), b=np.uint8(68)).names == ("a", "b")
    pa.table(lab.trace)


# Devices without the feature


@pytest.mark.parametrize(
    ("preset", "words"), [("laptop", "a GPU that has green contexts"), ("h200-cuda12.2", r"CUDA 12\.2 .*CUDA 12\.5")]
)
class TestWithoutGreenContexts:
    def test_one_warning_and_plain_streams(self, preset, words):
        with Session(SimBackend(preset), capture="ranges") as lab:
            with pytest.warns(PartitionWarning, match=rf"{words}[\s\S]*plain streams") as told:
                layout = lab.partition(a=8, b="rest")
            assert len(told) == 1
            assert told[0].filename == __file__
            assert not layout.is_enforced
            whole = lab.device.sm_count
            stream = lab.stream("x", partition="a")
            assert (stream.partition, stream.sm_count) == ("a", whole)
            enqueue(lab, "x")
            lab.synchronize()
            assert spans(lab.trace) == [("x", "x", ("a", whole))]
            assert "not enforced" in repr(lab)
            assert lab._backend.driver.context_count == 0
            lab.partition(None)
            assert lab.stream("x").partition is None

    def test_strict_is_an_error(self, preset, words):
        with Session(SimBackend(preset)) as lab:
            with pytest.raises(PartitionUnavailableError, match=rf"{words}[\s\S]*Leave out strict=True"):
                lab.partition({"a": 8}, strict=True)
            assert lab.layout is None

    def test_proof_does_not_say_that_it_holds(self, preset, words):
        with Session(SimBackend(preset)) as lab, pytest.warns(PartitionWarning, match=words):
            lab.partition(a=8, b="rest")
            lab.stream("x", partition="a")
            proof = lab.partitions.verify()
            assert not proof.holds
            assert "not enforced" in str(proof)

    def test_nothing_is_drained(self, preset, words):
        with Session(SimBackend(preset)) as lab, pytest.warns(PartitionWarning, match=words):
            lab.stream("x")
            enqueue(lab, "x", 5 * MS)
            lab.partition(a=8, b="rest")
            lab.stream("x", partition="a")
            lab.stream("x", partition="b")
            assert not lab.stream("x").query()


def test_missing_features_are_left_out_with_one_warning(lab):
    with pytest.warns(PartitionWarning, match=r"co-scheduling[\s\S]*backfill[\s\S]*workqueues[\s\S]*13\.1") as told:
        layout = lab.partition(
            {"a": gsl.PartitionOptions(sms=20, coscheduled_sms=4), "b": gsl.PartitionOptions(sms="rest", backfill=True)},
            workqueue=WorkqueueOptions(concurrency_limit=4),
        )
    assert len(told) == 1
    assert layout == plan_partitions({"a": 20, "b": "rest"}, lab.device)
    for shares, workqueue in (
        ({"a": gsl.PartitionOptions(sms=20, coscheduled_sms=4)}, None),
        ({"a": 8}, WorkqueueOptions()),
    ):
        with pytest.raises(PartitionUnavailableError, match=r"13\.1"):
            lab.partition(shares, strict=True, workqueue=workqueue)
    assert lab.layout is layout


def test_structured_partitions_where_the_driver_has_them():
    with Session(SimBackend("h200-cuda13.1")) as lab:
        workqueue = WorkqueueOptions(concurrency_limit=4)
        layout = lab.partition(
            {"a": gsl.PartitionOptions(sms=20, coscheduled_sms=4), "b": "rest"}, strict=True, workqueue=workqueue
        )
        assert layout.workqueue == workqueue
        lab.stream("x", partition="a")
        assert lab.stream("x").sm_count == 20
        assert lab.partitions.verify().holds
        lab.partition({"a": 20, "b": "rest"})
        assert lab.partitions.verify().holds


def test_a_structured_layout_on_an_older_driver_is_planned_anew_with_a_warning(lab):
    newer = SimBackend("h200-cuda13.1").device
    structured = plan_partitions({"a": gsl.PartitionOptions(sms=20, coscheduled_sms=4)}, newer)
    lab.partition(b=8)
    before = state_of(lab)
    with pytest.raises(PartitionUnavailableError, match=r"13\.1"):
        lab.partition(structured, strict=True)
    assert state_of(lab) == before
    with pytest.warns(gsl.PartitionWarning, match=r"13\.1"):
        layout = lab.partition(structured)
    assert (layout["a"].granted_sms, layout["a"].is_structured) == (20, False)


def test_a_layout_that_was_not_enforced_is_planned_anew_where_it_can_be(lab):
    with pytest.warns(gsl.PartitionWarning), gsl.Session(SimBackend("laptop")) as laptop:
        layout = laptop.partition(a=16)
    assert not layout.is_enforced
    assert lab.partition(layout).is_enforced
    assert lab.layout["a"].granted_sms == 16


def test_the_same_layout_again_is_no_change(lab):
    lab.partition(a=32)
    lab.partition(a=32)
    assert len(lab.trace.layouts) == 1


def test_waits_survive_a_move(lab):
    lab.partition(a=32, b="rest")
    first, second = lab.stream("first", partition="a"), lab.stream("second", partition="a")
    with lab.on(first, "produce"):
        spin(lab, 1_000)
    second.wait(first)
    lab.partition(a=64, b="rest")
    with lab.on(second, "consume"):
        spin(lab, 1_000)
    first.wait(second)
    lab.partition(None)
    with lab.on(first, "again"):
        spin(lab, 1_000)
    lab.synchronize()
    trace = lab.trace
    names = names_of(trace)
    edges = [(names[a], names[b]) for a, b in zip(trace.edges.source, trace.edges.target, strict=True)]
    assert edges == [("produce", "consume"), ("consume", "again")]


# Work in flight


def test_only_streams_that_move_are_drained(lab):
    lab.partition(a=32, b=32, c="rest")
    for name in "abc":
        lab.stream(name, partition=name)
        enqueue(lab, name, 10 * MS if name == "a" else MS)
    began_ns = lab._backend.host_time_ns()

    moves = lab.partitions.plan_moves(plan_partitions({"a": 32, "b": 48, "c": "rest"}, lab.device))
    lab.partition(a=32, b=48, c="rest")

    assert moves == ("b", "c")
    assert not lab.stream("a").query()
    assert MS / 2 < lab._backend.host_time_ns() - began_ns < 4 * MS
    lab.synchronize()
    assert sorted(spans(lab.trace)) == [("a", "a", ("a", 32)), ("b", "b", ("b", 32)), ("c", "c", ("c", 68))]


def test_planning_the_moves_changes_nothing(halves):
    before = state_of(halves)
    assert halves.partitions.plan_moves(None) == ("x", "y")
    assert halves.partitions.plan_moves({"a": 64, "b": 8}) == halves.partitions.plan_moves(a=64, b=8, round="exact") == ("y",)
    assert halves.partitions.plan_moves(halves.layout) == ()
    assert halves.partitions.plan_moves(plan_partitions({"a": 64, "b": 8}, halves.device)) == ("y",)
    renamed = plan_partitions({"c": 64, "b": "rest"}, halves.device)
    assert halves.partitions.plan_moves(renamed, renamed={"a": "c"}) == ()
    assert state_of(halves) == before


def test_renaming_moves_nothing(halves):
    enqueue(halves, "x", 5 * MS, "running")
    handle = halves.stream("x").handle
    halves.partition({"c": 64, "b": "rest"}, renamed={"a": "c"})

    assert not halves.stream("x").query()
    assert (halves.stream("x").partition, halves.stream("x").handle) == ("c", handle)
    enqueue(halves, "x", 1_000, "renamed")
    halves.synchronize()
    assert spans(halves.trace) == [("x", "running", ("a", 64)), ("x", "renamed", ("c", 64))]
    halves.partition(None)
    halves.partition(c=64, b="rest")
    assert halves.stream("x").partition == "c"


def test_names_can_be_swapped(halves):
    halves.partition({"b": 64, "a": "rest"}, renamed={"a": "b", "b": "a"})
    assert [(stream.partition, stream.sm_count) for stream in halves.streams.values()] == [("b", 64), ("a", 68), (None, 132)]
    halves.partition({"a": 64, "b": "rest"})
    assert [(stream.partition, stream.sm_count) for stream in halves.streams.values()] == [("b", 68), ("a", 64), (None, 132)]
    assert halves.partitions.verify().holds


def test_a_selected_stream_does_not_move(halves):
    with halves.on("x", "outer"):
        before = id(halves.layout), halves.stream("x").handle
        for do in (
            lambda: halves.partition(None),
            lambda: halves.partition(a=8, b=8),
            lambda: halves.stream("x", partition="b"),
        ):
            with pytest.raises(PartitionInUseError, match=r"'x' is selected by a thread.*lab\.on\('x'\)"):
                do()
        assert (id(halves.layout), halves.stream("x").handle) == before
        halves.partition(a=64, b=8)  # only y moves
        halves.stream("x", partition="a")
    assert halves.stream("x").partition == "a"
    halves.partition(None)


def test_a_handed_over_range_survives_every_change(lab):
    lab.partition(a=64, b="rest")
    lab.stream("x", partition="a")
    opened = lab.recording.start_range("x", "long")
    for sms in (63, 62, 61):
        lab.partition(a=sms, b="rest")  # the same SMs, another request
        enqueue(lab, "x", 1_000, f"short {sms}")
    with pytest.raises(PartitionInUseError, match=r"has a range open.*end\(\)"):
        lab.partition(a=32, b="rest")
    opened.end()
    lab.partition(a=32, b="rest")
    lab.synchronize()
    assert [name for _, name, _ in spans(lab.trace)] == ["long", *(f"short {sms}" for sms in (63, 62, 61))]
    assert lab.trace.metadata.dropped_spans == 0


def test_lent_streams_stay_where_they_are(halves):
    lent = halves._backend.create_stream(priority=-1)
    stream = halves.stream("lent", external=lent)
    enqueue(halves, "lent", 5 * MS)
    halves.partition(None)
    assert not stream.query()
    assert (stream.handle, stream.partition) == (lent.handle, None)
    halves.partition(a=64, b="rest")
    with pytest.raises(PartitionError, match=r"'lent' is lent by another library.*lab\.stream\('other', partition='a'\)"):
        halves.stream("lent", partition="a")
    with pytest.raises(PartitionError, match="cannot work in partition 'a'"):
        halves.stream("other", partition="a", external=halves._backend.create_stream())
    assert list(halves.streams) == ["x", "y", "z", "lent"]


def test_a_failing_context_leaves_the_old_layout(halves, monkeypatch):
    enqueue(halves, "x", 5 * MS)
    layout, handle = halves.layout, halves.stream("x").handle
    create, calls = halves._backend.create_context, itertools.count(1)

    def fail_second(spec):
        if next(calls) == 2:
            raise DeviceError("no memory left")
        return create(spec)

    monkeypatch.setattr(halves._backend, "create_context", fail_second)
    with pytest.raises(DeviceError, match="no memory left"):
        halves.partition(a=8, b=8)
    assert halves.layout is layout
    assert halves.stream("x").handle == handle
    assert not halves.stream("x").query()
    assert halves.partitions.verify().holds
    halves.partition(a=8, b=8)
    assert halves.partitions.verify().holds


def test_a_failing_stream_leaves_the_old_layout_and_no_other_new_stream(halves, monkeypatch):
    before, streams = state_of(halves)[:2], set(halves._backend.driver.streams)
    context_type = type(next(iter(halves._partitions.cache._contexts.values())))
    create, calls = context_type.create_stream, itertools.count(1)

    def fail_second(context, **options):
        if next(calls) == 2:
            raise DeviceError("no more streams")
        return create(context, **options)

    monkeypatch.setattr(context_type, "create_stream", fail_second)
    with pytest.raises(DeviceError, match="no more streams"):
        halves.partition(a=32, b="rest")
    assert (state_of(halves)[:2], set(halves._backend.driver.streams)) == (before, streams)
    assert halves.partition(a=32, b="rest").names == ("a", "b")


def test_what_the_device_granted_is_what_counts(lab, monkeypatch):
    create = lab._backend.create_context

    def grant_less(spec):
        context = create(spec)
        context.sm_count -= 2
        return context

    monkeypatch.setattr(lab._backend, "create_context", grant_less)
    with pytest.warns(PartitionWarning, match="'a' was planned with 64 SMs; the device granted 62") as told:
        layout = lab.partition(a=64)
    assert told[0].filename == __file__
    assert (layout["a"].requested_sms, layout["a"].granted_sms, layout.remainder_sms) == (64, 62, 70)
    assert lab.stream("x", partition="a").sm_count == 62
    assert lab._partitions.cache.created_count == 1
    with pytest.warns(PartitionWarning, match="granted 62"):
        lab.partition(a=64)
    assert lab._partitions.cache.created_count == 1


# Nothing grows


def sizes(lab):
    """How much a session holds on to."""
    recorder = lab._recorder
    return {
        "contexts": len(lab._partitions.cache),
        "made": lab._partitions.cache.created_count,
        "recorded": len(recorder.in_flight.lanes),
        "lanes": len(recorder._tables.lanes),
        "homes": sum(len(stream._places) for stream in lab.streams.values()),
        "writers": len(recorder.thread_state().writers),
        "streams": len(lab._backend.driver.streams),
        "partitions": len(recorder._tables._partitions),
    }


LAYOUTS = [{"a": sms, "b": "rest"} for sms in range(8, 88, 8)]


def test_a_thousand_changes_among_ten_layouts_make_their_contexts_once(lab):
    lab.partition(LAYOUTS[0])
    lab.stream("x", partition="a")
    lab.stream("y", partition="b")

    def go_round():
        for shares in LAYOUTS:
            lab.partition(shares)
            enqueue(lab, "x")

    go_round()
    lab.synchronize()
    before = sizes(lab)
    assert before["made"] == 20
    for _ in range(99):
        go_round()
    lab.synchronize()
    assert sizes(lab) == before
    assert len(lab.trace) == 1_000
    assert lab.trace.metadata.dropped_spans == 0
    assert len(lab.trace.layouts) <= 1_001


def test_beyond_the_limit_the_contexts_that_were_used_last_stay(caplog):
    with Session(SimBackend(), context_limit=4, capture="ranges") as lab:
        lab.partition(LAYOUTS[0])
        lab.stream("x", partition="a")
        lab.stream("y", partition="b")
        for shares in LAYOUTS * 2:
            lab.partition(shares)
            enqueue(lab, "x")
            assert len(lab._partitions.cache) <= 4
            assert lab.partitions.verify().holds
        lab.synchronize()
        held = sizes(lab)
        assert (held["contexts"], held["made"]) == (4, 40)
        # Two own places in each of the contexts that are left, and the probes: no stream of a destroyed context.
        assert held["homes"] <= 2 * 2 + 2
        assert held["streams"] <= held["homes"] + 4
        assert held["recorded"] <= held["homes"] + 2
        assert len(lab.trace) == 20
        assert lab.trace.metadata.dropped_spans == 0
    assert "More than 4 green contexts" in caplog.text


# Proof


def test_verified_sms_are_kept_and_stay_with_their_contexts(halves):
    proof = halves.partitions.verify()
    first = halves.layout
    assert first.has_verified_sms
    assert [part.sm_ids for part in first] == [part.sm_ids for part in proof.partitions]
    assert set(first["a"].sm_ids).isdisjoint(first["b"].sm_ids)
    halves.partition(None)
    halves.partition(a=64, b="rest")
    assert halves.layout == first
    assert halves.trace.layout == first
    halves.partition(a=32, b="rest")
    assert halves.layout["a"].sm_ids is None


def test_sms_that_others_measured_are_not_believed(halves):
    halves.partitions.verify()
    measured = halves.layout
    with Session(SimBackend()) as other:
        other.partition(measured)
        assert not other.layout.has_verified_sms
    halves.partition(measured)
    assert halves.layout.has_verified_sms


def test_the_map_measures_without_touching_streams(halves):
    enqueue(halves, "x", 5 * MS)
    drawn = halves.partitions.map()
    assert drawn.layout.has_verified_sms
    assert halves.layout.has_verified_sms
    assert "2 partitions" in repr(drawn)
    assert drawn._repr_svg_().startswith("<svg")
    halves.partition(None)
    assert "0 partitions" in repr(halves.partitions.map())


def test_proof_on_the_whole_card(lab):
    lab.stream("x")
    proof = lab.partitions.verify()
    assert (proof.partitions, len(proof.streams[0].inside), proof.streams[0].partition) == ((), 132, None)
    assert "no partitions" in str(proof)


def test_a_leak_is_told(halves, monkeypatch):
    probe = halves._backend.probe_sms

    def leak(streams):
        seen = probe(streams)
        return [np.union1d(ids, [131]) for ids in seen] if seen else seen

    monkeypatch.setattr(halves._backend, "probe_sms", leak)
    proof = halves.partitions.verify()
    assert not proof.holds
    assert proof.shared == (("a", "b", 1),)
    assert "NOT as asked" in str(proof)


# Listeners


def test_listeners_hear_of_each_change_until_they_stop(lab):
    heard = []
    stop = lab.partitions.watch(heard.append)
    first = lab.partition(a=64)
    lab.partition(None)
    assert heard == [first, None]
    stop()
    stop()
    lab.partition(a=64)
    assert len(heard) == 2


# Threads


# Made ahead


def test_prepared_layouts_are_made_and_nothing_else_changes(halves):
    enqueue(halves, "x", 50 * MS)
    before = state_of(halves)[:5]
    layouts = halves.partitions.prepare(
        {"a": 32, "b": "rest"}, plan_partitions({"a": 8, "b": 16}, halves.device), {"a": 66}, round="down"
    )
    assert [layout["a"].granted_sms for layout in layouts] == [32, 8, 64]
    assert state_of(halves)[:5] == before
    assert not halves.stream("x").query()
    made = halves._partitions.cache.created_count
    assert made == 2 + 4  # the 64 SMs of a are there
    halves.stream("y", partition=None)
    for layout in layouts:
        assert halves.partition(layout) == layout
    assert halves._partitions.cache.created_count == made


# Closing


def test_closing_ends_work_and_leaves_nothing_on_the_device():
    backend = SimBackend()
    contexts = []
    create = backend.create_context
    backend.create_context = lambda spec: contexts.append(create(spec)) or contexts[-1]
    lab = Session(backend, capture="ranges")
    lab.partition(a=64, b="rest")
    for name, partition in (("x", "a"), ("y", "b"), ("z", None)):
        lab.stream(name, partition=partition)
        enqueue(lab, name, 3 * MS)
    lab.partitions.map()
    enqueue(lab, "x", 3 * MS, "in flight")
    lab.partition(a=64, b=8)
    lab.close()
    lab.close()

    assert sorted(name for _, name, _ in spans(lab.trace)) == ["in flight", "x", "y", "z"]
    assert all(context.is_closed for context in contexts)
    assert backend.driver.streams == {}
    assert lab.layout.names == ("a", "b")
    backend.close()


# The trace


def test_partitions_and_layouts_survive_saving_and_pickling(halves, tmp_path):
    enqueue(halves, "x", label="one")
    halves.partitions.verify()
    halves.partition(a=32, b=96)
    enqueue(halves, "x", label="two")
    halves.partition(None)
    enqueue(halves, "x", label="three")
    halves.synchronize()
    trace = halves.trace
    assert spans(trace) == [("x", "one", ("a", 64)), ("x", "two", ("a", 32)), ("x", "three", None)]
    assert [change.layout and change.layout.names for change in trace.layouts] == [("a", "b"), ("a", "b"), None]
    times = [change.time_ns for change in trace.layouts]
    assert times == sorted(times)
    assert trace.end_ns[0] <= times[1] <= trace.start_ns[1]
    assert trace.layout is None
    assert trace.metadata.device.sm_resource.remainder_sms == 12
    trace.save(tmp_path / "run.parquet")

    for twin in (load_trace(tmp_path / "run.parquet"), pickle.loads(pickle.dumps(trace))):
        assert_same_trace(twin, trace)
        assert spans(twin) == spans(trace)


def test_clearing_keeps_the_layout_in_use(halves):
    enqueue(halves, "x")
    halves.partition(a=32, b=96)
    halves.synchronize()
    halves.clear()
    trace = halves.trace
    assert len(trace) == 0
    assert [change.layout.names for change in trace.layouts] == [("a", "b")]
    assert trace.layout == halves.layout


def test_a_lent_stream_of_a_foreign_green_context_shows_its_sms(lab):
    lab.partition(a=32)
    lent = lab.stream("a", partition="a")
    with gsl.Session(lab._backend) as other:
        taken = other.stream("theirs", external=lent)
        assert (taken.sm_count, taken.partition) == (32, None)
        assert other.stream("mine").sm_count == 132


def test_a_remainder_that_does_not_join_groups_is_reached_by_a_split():
    """What a driver of CUDA 13.1 may say of the remainder; the layout is the same, made of one structured split."""
    with gsl.Session(SimBackend("h200-cuda13.1")) as lab:
        apart = replace(lab.device, sm_resource=replace(lab.device.sm_resource, remainder_joins=False))
        layout = plan_partitions({"prefill": 96, "decode": "rest"}, apart)
        assert {part.name: part.granted_sms for part in layout} == {"prefill": 96, "decode": 36}
        assert all(part.is_structured for part in layout)
        assert lab.partition(layout)["decode"].granted_sms == 36
        assert lab.partitions.verify().holds
        assert all(not part.is_structured for part in plan_partitions({"prefill": 96}, apart))
