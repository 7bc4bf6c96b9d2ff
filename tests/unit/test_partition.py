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
    assert "a 64 SMs, b 68 SMs (2 green contexts alive)" in repr(halves)


def test_the_layout_is_what_partition_returns(lab):
    assert lab.layout is None
    layout = lab.partition({"a": 96, "b": 32})
    assert lab.layout is layout
    assert layout == plan_partitions({"a": 96, "b": 32}, lab.device)
    lab.partition({"a": np.int64(96), "b": np.uint8(32)})
    assert len(lab.trace.layouts) == 1  # the same again is no change
    pa.table(lab.trace)
    assert lab.partition(None) is None
    assert lab.layout is None
    assert "no partitions" in str(lab.partitions.verify())


def test_streams_come_back_when_their_partition_does(halves):
    high = halves.stream("high", priority=-3, partition="a")
    before = {name: stream.handle for name, stream in halves.streams.items()}
    created = len(halves._partitions.cache)
    halves.partition(None)
    assert [stream.partition for stream in halves.streams.values()] == [None] * 4
    assert high.priority == high._backend_stream.priority == -3
    halves.partition(a=64, b="rest")

    assert {name: stream.handle for name, stream in halves.streams.items()} == before
    assert [stream.partition for stream in halves.streams.values()] == ["a", "b", None, "a"]
    assert len(halves._partitions.cache) == created


# Bad input: what needs a layout; the rest is in test_bad_input.py

FOREIGN = Layout(partitions=(Partition(name="a", requested_sms=8, granted_sms=8, groups=(99,)),))
REFUSED = {
    "in use": (lambda lab: lab.partition(b=32), PartitionInUseError, ("'a'", "stream 'x'", "partition=None")),
    "foreign layout": (lambda lab: lab.partition(FOREIGN), PartitionError, ("not of H200", "plan_partitions")),
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
    with Session(SimBackend("h200"), capture="ranges") as lab:
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


# Devices without a feature


@pytest.mark.parametrize(
    ("preset", "words"), [("laptop", "a GPU that has green contexts"), ("h200-cuda12.2", r"CUDA 12\.2 .*CUDA 12\.5")]
)
def test_without_green_contexts_there_is_one_warning_and_plain_streams(lab, preset, words):
    with Session(SimBackend(preset), capture="ranges") as other:
        with pytest.raises(PartitionUnavailableError, match=rf"{words}[\s\S]*Leave out strict=True"):
            other.partition({"a": 8}, strict=True)
        assert other.layout is None
        with pytest.warns(PartitionWarning, match=rf"{words}[\s\S]*plain streams") as told:
            layout = other.partition(a=8, b="rest")
        assert [warning.filename for warning in told] == [__file__]
        assert not layout.is_enforced
        whole = other.device.sm_count
        stream = other.stream("x", partition="a")
        assert (stream.partition, stream.sm_count) == ("a", whole)
        enqueue(other, "x", 5 * MS)
        other.stream("x", partition="b")  # nothing is drained
        assert not stream.query()
        assert (other._backend.driver.context_count, "not enforced" in repr(other)) == (0, True)
        proof = other.partitions.verify()
        assert (proof.holds, "not enforced" in str(proof)) == (False, True)
        assert spans(other.trace) == [("x", "x", ("a", whole))]
        other.partition(None)
        assert stream.partition is None
    assert lab.partition(layout).is_enforced  # planned anew where it can be
    assert lab.layout["a"].granted_sms == 8


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


# Work in flight


def test_only_streams_that_move_are_drained(lab):
    lab.partition(a=32, b=32, c="rest")
    for name in "abc":
        lab.stream(name, partition=name)
        enqueue(lab, name, 10 * MS if name == "a" else MS)
    began_ns = lab._backend.host_time_ns()

    moves = lab.partitions.plan_moves(plan_partitions({"a": 32, "b": 48, "c": "rest"}, lab.device))
    assert lab.partitions.plan_moves(None) == ("a", "b", "c")
    assert lab.partitions.plan_moves(lab.layout) == lab.partitions.plan_moves(a=32, b=32, c="rest", round="exact") == ()
    lab.partition(a=32, b=48, c="rest")

    assert moves == ("b", "c")
    assert not lab.stream("a").query()
    assert MS / 2 < lab._backend.host_time_ns() - began_ns < 4 * MS
    lab.synchronize()
    assert sorted(spans(lab.trace)) == [("a", "a", ("a", 32)), ("b", "b", ("b", 32)), ("c", "c", ("c", 68))]


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


@pytest.mark.parametrize("fails", ["context", "stream"])
def test_what_fails_half_way_leaves_the_old_layout_and_no_other_new_stream(halves, monkeypatch, fails):
    enqueue(halves, "x", 5 * MS)
    before, streams = state_of(halves)[:2], set(halves._backend.driver.streams)
    context_type = type(next(iter(halves._partitions.cache._contexts.values())))
    owner, name = (context_type, "create_stream") if fails == "stream" else (halves._backend, "create_context")
    create, calls = getattr(owner, name), itertools.count(1)

    def fail_second(*what, **options):
        if next(calls) == 2:
            raise DeviceError("no more of them")
        return create(*what, **options)

    monkeypatch.setattr(owner, name, fail_second)
    with pytest.raises(DeviceError, match="no more of them"):
        halves.partition(a=32, b="rest")
    assert (state_of(halves)[:2], set(halves._backend.driver.streams)) == (before, streams)
    if fails == "context":
        assert not halves.stream("x").query()
    assert halves.partition(a=32, b="rest").names == ("a", "b")
    assert halves.partitions.verify().holds


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
    assert len(lab._partitions.cache) == 1
    with pytest.warns(PartitionWarning, match="granted 62"):
        lab.partition(a=64)
    assert len(lab._partitions.cache) == 1


# Nothing grows


def sizes(lab):
    """How much a session holds on to."""
    recorder = lab._recorder
    return {
        "contexts": len(lab._partitions.cache),
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
    assert before["contexts"] == 20
    for _ in range(99):
        go_round()
    lab.synchronize()
    assert sizes(lab) == before
    assert len(lab.trace) == 1_000
    assert lab.trace.metadata.dropped_spans == 0
    assert len(lab.trace.layouts) <= 1_001


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
    with Session(SimBackend()) as other:
        other.partition(first)
        assert not other.layout.has_verified_sms  # what others measured is not believed
    lent = halves.stream("x", partition="a")
    with Session(halves._backend) as other:
        taken = other.stream("theirs", external=lent)
        assert (taken.sm_count, taken.partition, other.stream("mine").sm_count) == (64, None, 132)
    halves.clear()
    assert [change.layout.names for change in halves.trace.layouts] == [("a", "b")]
    heard, handle = [], halves.stream("x").handle
    stop = halves.partitions.watch(heard.append)
    enqueue(halves, "x", 5 * MS)
    halves.partition({"c": 64, "b": "rest"}, renamed={"a": "c"})
    drawn = halves.partitions.map()
    assert not halves.stream("x").query()  # neither the map nor another name has moved it
    assert (halves.stream("x").partition, halves.stream("x").handle) == ("c", handle)
    assert drawn.layout.has_verified_sms
    assert ("2 partitions" in repr(drawn), drawn._repr_svg_()[:4], drawn._repr_html_()[:4]) == (True, "<svg", "<div")
    stop()
    stop()
    halves.partition(c=32, b="rest")
    assert [layout.names for layout in heard] == [("c", "b")] * len(heard)
    assert halves.layout["c"].sm_ids is None


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
    made = len(halves._partitions.cache)
    assert made == 2 + 4  # the 64 SMs of a are there
    halves.stream("y", partition=None)
    for layout in layouts:
        assert halves.partition(layout) == layout
    assert len(halves._partitions.cache) == made


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
