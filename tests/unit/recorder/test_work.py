"""Kernels, copies and calls from a source of activities to the trace."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends import Activities, StreamFacts
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS
from gpustreamlab.typing import CaptureTier, EdgeKind, LaneKind, SpanKind
from tests.helpers.fake_activity import BATCHES, FakeActivitySource, FakeSourceBackend, kernel_detail, make_batch
from tests.helpers.threads import run_in_thread


@pytest.fixture
def source():
    return FakeActivitySource()


@pytest.fixture
def lab(source):
    with Session(FakeSourceBackend(source)) as session:
        session.stream("a")
        session.stream("b")
        session._recorder.start_capture(source)
        yield session


def key(lab, name):
    return lab.stream(name)._backend_stream


def launch(lab, stream, correlation, *, after_ns=5_000, width_ns=1_000, **work):
    """Feed a launch of now, and its kernel."""
    now_ns = lab._recorder.look_at_clock()
    lab._backend.host_time_ns()  # time goes on
    on = key(lab, stream) if isinstance(stream, str) else stream
    lab._backend.source_given.push_launch(
        now_ns, now_ns + after_ns, now_ns + after_ns + width_ns, correlation=correlation, stream=on, **work
    )
    return now_ns


def rows(trace, kind):
    return np.flatnonzero(trace.kind == SPAN_KINDS.index(kind))


def row_named(trace, name):
    (row,) = np.flatnonzero(trace.name == trace.names.index(name))
    return int(row)


def name_of(trace, row):
    return None if row < 0 else trace.names[trace.name[row]]


def parent_of(trace, name):
    return name_of(trace, trace.parent[row_named(trace, name)])


def trace_of(lab):
    lab.synchronize()
    return lab.trace


# Rows


def test_a_kernel_has_its_stream_range_queueing_thread_and_detail(lab):
    with lab.on("a", "outer"), lab.range("inner"):
        called_ns = launch(lab, "b", 3, name="gemm", detail=kernel_detail("void gemm<float>()", blocks=64))
    trace = trace_of(lab)
    row = row_named(trace, "gemm")

    assert trace.lanes[trace.lane[row]].name == "b"
    assert parent_of(trace, "gemm") == "inner"
    assert trace.queued_ns[row] == called_ns
    assert trace.threads[trace.thread[row]] == "MainThread"
    assert trace.details[trace.extra["detail"][row]].full_name == "void gemm<float>()"
    facts = {name: int(trace.extra[name][row]) for name in ("grid_blocks", "block_threads", "correlation", "work_count")}
    assert facts == {"grid_blocks": 64, "block_threads": 128, "correlation": 3, "work_count": 1}


def test_ranges_know_the_work_at_any_depth_below_them(lab):
    with lab.on("a", "outer"):
        first_ns = launch(lab, "a", 1, name="first")
        with lab.range("inner"):
            launch(lab, "a", 2, name="second", after_ns=100_000)
        with lab.range("empty"):
            pass
    trace = trace_of(lab)
    outer, inner, empty = (row_named(trace, name) for name in ("outer", "inner", "empty"))
    extra = trace.extra

    assert extra["work_count"][[outer, inner, empty]].tolist() == [2, 1, 0]
    assert extra["work_start_ns"][outer] == first_ns + 5_000
    assert extra["work_end_ns"][outer] == trace.end_ns[row_named(trace, "second")]
    assert extra["work_start_ns"][empty] == extra["work_end_ns"][empty] == trace.start_ns[empty]


def test_calls_are_rows_of_the_threads_lane_with_edges_to_their_work(lab):
    launch(lab, "a", 1, name="first")
    lab._backend.source_given.push_work(9_000, 9_500, stream=key(lab, "b"), name="graph node", correlation=1)
    trace = trace_of(lab)
    (call,) = rows(trace, SpanKind.HOST)
    lane = trace.lanes[trace.lane[call]]

    assert (lane.name, lane.kind, lane.sm_count) == ("host: MainThread", LaneKind.HOST, 0)
    assert lane.stream == threading.get_ident() & 0xFFFF_FFFF
    assert set(trace.edges.source.tolist()) == {call}
    assert set(trace.edges.target.tolist()) == {row_named(trace, "first"), row_named(trace, "graph node")}
    assert set(trace.edges.kind.tolist()) == {EDGE_KINDS.index(EdgeKind.LAUNCH)}


def test_work_of_streams_that_no_session_made_has_lanes_of_its_own(lab, source):
    source.streams[5, 13] = StreamFacts("torch stream 13", 64, 0)
    source.push_work(10, 20, stream=13, context=5, name="far")
    source.push_work(10, 20, stream=0, context=5, name="default")
    source.push_work(30, 40, stream=13, context=5, name="again")
    trace = trace_of(lab)
    outside = {lane.name: lane.sm_count for lane in trace.lanes if lane.outside}

    assert outside == {"torch stream 13": 64, "default stream": 132}
    assert trace.lane[row_named(trace, "far")] == trace.lane[row_named(trace, "again")]


# Ranges around launches


def test_work_waits_one_drain_for_its_call(lab, source):
    recorder = lab._recorder
    with lab.on("a", "outer"):
        now_ns = recorder.look_at_clock()
        source.push_work(now_ns + 10, now_ns + 20, stream=key(lab, "a"), correlation=7, name="early")
        source.push_work(now_ns + 30, now_ns + 40, stream=key(lab, "a"), correlation=8, name="alone")
        recorder.kernels.take(is_complete=False)
        assert recorder.span_count == 0
        source.push_call(now_ns, now_ns + 5, correlation=7)
        recorder.kernels.take(is_complete=False)
        assert recorder.span_count == 3  # the other one goes without
    trace = trace_of(lab)

    assert parent_of(trace, "early") == "outer"
    assert parent_of(trace, "alone") is None
    assert trace.queued_ns[row_named(trace, "alone")] == trace.start_ns[row_named(trace, "alone")]


def test_a_range_that_is_still_open_encloses_what_is_launched_in_it(lab):
    with lab.on("a", "open"):
        launch(lab, "a", 1, name="inside")
        lab._recorder.kernels.take(is_complete=False)
    launch(lab, "a", 2, name="outside")
    trace = trace_of(lab)

    assert parent_of(trace, "inside") == "open"
    assert parent_of(trace, "outside") is None


def test_launches_of_each_thread_are_in_the_ranges_of_that_thread(lab):
    def work():
        with lab.on("b", "theirs"):
            launch(lab, "b", 2, name="their kernel")

    with lab.on("a", "mine"):
        run_in_thread(work)
        launch(lab, "a", 1, name="my kernel")
    trace = trace_of(lab)

    assert parent_of(trace, "my kernel") == "mine"
    assert parent_of(trace, "their kernel") == "theirs"
    assert len([lane for lane in trace.lanes if lane.kind is LaneKind.HOST]) == 2


def test_a_thread_that_ended_with_a_range_open_breaks_no_matching(lab):
    def leave_open():
        lab.on("b", "never left").__enter__()
        launch(lab, "b", 1, name="lost parent")

    run_in_thread(leave_open)
    with lab.on("a", "whole"):
        launch(lab, "a", 2, name="found parent")
    trace = trace_of(lab)

    assert parent_of(trace, "found parent") == "whole"
    assert parent_of(trace, "lost parent") is None


def test_annotations_of_others_are_parents_where_they_are_nearer(lab, source):
    with lab.on("a", "outer"):
        begin_ns = lab._backend.host_time_ns()
        lab._backend.host_time_ns()
        launch(lab, "a", 1, name="in annotation")
        with lab.range("inner"):
            launch(lab, "a", 2, name="in range")
        end_ns = lab._backend.host_time_ns()
        source.push_annotation(begin_ns, end_ns, name="cudf: join")
        source.push_annotation(begin_ns + 1, end_ns, name="cudf: hash")
        lab._backend.host_time_ns()
        launch(lab, "a", 3, name="after")
    trace = trace_of(lab)

    assert {name: parent_of(trace, name) for name in ("in annotation", "in range", "after", "cudf: hash", "cudf: join")} == {
        "in annotation": "cudf: hash",
        "in range": "inner",
        "after": "outer",
        "cudf: hash": "cudf: join",
        "cudf: join": "outer",
    }
    assert trace.extra["work_count"][row_named(trace, "cudf: join")] == 1


# Waits


def test_a_wait_leads_from_the_last_work_before_to_the_first_work_after(lab, source):
    for correlation, stream, name in (
        (1, "a", "a1"),
        (2, "a", "a2"),
        (5, "a", "a3"),
        (3, "b", "b1"),
        (7, "b", "b2"),
        (8, "b", "b3"),
    ):
        launch(lab, stream, correlation, name=name)
    ends = [source.key_of(key(lab, name)) for name in ("a", "b")]
    source.push_dependency(source=ends[0], record=4, target=ends[1], wait=6)
    source.push_dependency(source=ends[0], record=4, target=ends[1], wait=9)
    trace = trace_of(lab)
    waits = trace.edges.kind == EDGE_KINDS.index(EdgeKind.WAIT)

    pairs = zip(trace.edges.source[waits].tolist(), trace.edges.target[waits].tolist(), strict=True)
    assert [(name_of(trace, one), name_of(trace, two)) for one, two in pairs] == [("a2", "b2")]


# Bounds, nonsense, and what is forgotten


def test_records_that_make_no_sense_are_counted_and_nowhere(lab, source):
    on = key(lab, "a")
    source.push_work(0, 10, stream=on, name="at zero")
    source.push_work(10, 5, stream=on, name="backwards")
    source.push_work(10, 20, stream=on, name="a range", kind=SpanKind.RANGE)
    source.push_call(10, 5)
    source.push_annotation(10, 5, name="backwards")
    source.push_work(10, 20, stream=on, name="good")
    source.drop_next(2)
    source.push_work(10, 20, stream=on)
    source.push_work(10, 20, stream=on)
    trace = trace_of(lab)

    assert [name_of(trace, row) for row in range(len(trace))] == ["good"]
    assert trace.metadata.dropped_records == trace.metadata.dropped_spans == 7


def test_a_trace_since_a_checkpoint_has_what_was_launched_after_it(lab):
    with lab.on("a", "before"):
        launch(lab, "a", 1, name="warm-up", after_ns=10**9)
    checkpoint = lab.recording.checkpoint()
    lab._backend.host_time_ns()
    with lab.on("a", "after"):
        launch(lab, "a", 2, name="kernel")
    lab.synchronize()
    trace = lab.recording.since(checkpoint)

    assert sorted(name_of(trace, row) for row in range(len(trace))) == ["after", "cudaLaunchKernel", "kernel"]
    assert lab._recorder.trace(since=lab.recording.checkpoint() + 10**9).extra["work_count"].tolist() == []


def test_memory_of_streams_is_counters_of_their_lanes(lab, source):
    source.push_memory(5_000_000, 512.0, stream=key(lab, "b"))
    counters = trace_of(lab).counters
    assert (counters.names, counters.value.tolist(), counters.lane.tolist()) == (("pool_used_bytes",), [512.0], [1])


# Metadata


def test_random_records_never_raise(lab, source):
    """Whatever a source tells ends in the trace or in the count of what is missing."""
    lab._captures._stop_updater()  # it would take a batch a second time
    rng = np.random.default_rng(5)
    told = 0
    for _ in range(60):
        count = int(rng.integers(0, 50))
        batches = {}
        for kind, batch in BATCHES.items():
            width = len(batch.__dataclass_fields__)
            wide = rng.integers(-(2**62), 2**62, (count, width))
            small = rng.integers(-3, 6, (count, width))
            batches[kind] = make_batch(kind, np.where(rng.random((count, width)) < 0.1, wide, small).tolist())
        told += sum(len(batches[kind]) for kind in ("work", "calls", "annotations", "memory"))
        batch = Activities(**batches, names=("x", "y" * 65_536, "\ud800"), details=(kernel_detail("d"),) * 3)
        source.drain = lambda *, is_last=False, batch=batch: batch
        lab._recorder.kernels.take(is_complete=False)
        source.drain = lambda *, is_last=False: Activities()
        trace = lab.trace
        assert lab.recording.tier is CaptureTier.KERNELS
    assert len(trace) > 100
    assert told * 0.5 < trace.metadata.dropped_records < told - len(trace)


# Launches of CUDA graphs are spans that cover their nodes


def launch_graph(lab, stream, correlation, starts_ns, graph=7, first_node=0):
    source, now_ns = lab._backend.source_given, lab._recorder.look_at_clock()
    lab._backend.host_time_ns()  # time goes on
    for place, after_ns in enumerate(starts_ns):
        detail = replace(kernel_detail(f"node{place}"), graph=graph, node=first_node + place)
        start_ns = now_ns + after_ns
        push = source.push_launch if place == 0 else source.push_work
        times = (now_ns, start_ns, start_ns + 1_000) if place == 0 else (start_ns, start_ns + 1_000)
        push(*times, correlation=correlation, stream=lab.stream(stream)._backend_stream, name=f"node{place}", detail=detail)


def test_a_launch_covers_its_nodes_and_lies_in_the_range_around_it(lab):
    with lab.on("a", "step"):
        launch_graph(lab, "a", 5, [3_000, 9_000])
    trace = trace_of(lab)
    (row,) = rows(trace, SpanKind.ANNOTATION).tolist()
    nodes = [row_named(trace, f"node{place}") for place in range(2)]
    assert trace.names[trace.name[row]] == "graph 7"
    assert trace.lanes[trace.lane[row]].name == "a"
    assert trace.names[trace.name[trace.parent[row]]] == "step"
    assert trace.parent[nodes].tolist() == [row, row]
    assert (trace.start_ns[row], trace.end_ns[row]) == (trace.start_ns[nodes[0]], trace.end_ns[nodes[1]])
    assert trace.extra["work_count"][row] == 2
    assert trace.extra["work_count"][trace.parent[row]] == 2
    assert (np.diff(trace.start_ns) >= 0).all()


def test_each_part_of_a_launch_is_a_span_of_the_lane_that_it_ran_on(lab):
    lab._recorder.kernels.name_graph(7, [(0, "old")])
    lab._recorder.kernels.name_graph(7, [(1, "load"), (3, "gemm")])
    with lab.on("a", "step"):
        launch_graph(lab, "a", 5, [3_000, 9_000, 11_000, 13_000, 15_000])
        launch_graph(lab, "b", 5, [4_000], first_node=4)
    launch_graph(lab, "a", 6, [3_000], first_node=3)
    trace = trace_of(lab)
    found = [(trace.names[trace.name[row]], trace.lanes[trace.lane[row]].name) for row in rows(trace, SpanKind.ANNOTATION)]
    assert sorted(found) == [("gemm", "a"), ("gemm", "a"), ("gemm", "b"), ("graph 7", "a"), ("load", "a")]
    nodes = [row for row in rows(trace, SpanKind.KERNEL).tolist() if trace.details[trace.extra["detail"][row]].node < 3]
    assert [trace.names[trace.name[trace.parent[row]]] for row in nodes] == ["graph 7", "load", "load"]
    load = row_named(trace, "load")
    assert (trace.start_ns[load], trace.end_ns[load]) == (trace.start_ns[nodes[1]], trace.end_ns[nodes[2]])
    assert trace.names[trace.name[trace.parent[load]]] == "step"


# Which thread of the host a call, an annotation, or work was of


@pytest.mark.parametrize("skew_ns", [-30_000, 0, 30_000])
def test_annotations_are_matched_to_ranges_on_the_hosts_clock(lab, source, skew_ns):
    """The two clocks are put on each other within tens of microseconds, ranges follow each other within two."""
    backend = lab._backend

    def annotated(name):
        begin_ns, call_ns, end_ns = (backend.host_time_ns() for _ in range(3))
        times = begin_ns + skew_ns, end_ns + skew_ns
        source.push_annotation(*times, name=f"in {name}", start_host_ns=begin_ns)
        source.push_call(call_ns + skew_ns, end_ns + skew_ns, correlation=call_ns, start_host_ns=call_ns)
        source.push_work(end_ns + 10**6, end_ns + 2 * 10**6, stream=0, correlation=call_ns, name=f"kernel of {name}")

    backend.launch_spin(lab.stream("a")._backend_stream, 10**6, blocks=1, fill_sms=False)  # no time below zero is told
    lab.synchronize()
    with lab.on("a", "outer"):
        for name in ("first", "second"):
            with lab.range(name):
                annotated(name)
        annotated("outer")
    trace = trace_of(lab)

    for name in ("first", "second", "outer"):
        assert parent_of(trace, f"in {name}") == name
        assert parent_of(trace, f"kernel of {name}") == f"in {name}"


# Copies between devices


def test_a_copy_between_devices_is_in_the_stream_of_its_range_wherever_it_runs(lab, source):
    with lab.on("a", "hand over"):
        launch(lab, 10, 1, context=7, name="memcpy PtoP", kind=SpanKind.COPY)
    launch(lab, 10, 2, context=7, name="memcpy PtoP", kind=SpanKind.COPY, after_ns=20_000)
    trace = trace_of(lab)
    inside, outside = rows(trace, SpanKind.COPY)
    assert (trace.lanes[trace.lane[inside]].name, trace.lanes[trace.lane[outside]].name) == ("a", "stream 10")
    assert len(trace.strays()) == 0


def test_a_copy_through_the_host_begins_behind_its_call_and_what_its_stream_did(lab, source):
    with lab.on("a", "hand over"):
        first_ns = launch(lab, "a", 1, after_ns=5_000, width_ns=50_000)
        launch(lab, "a", 2, name="memcpy PtoP (through the host)", kind=SpanKind.COPY, after_ns=900_000, width_ns=40_000)
        third_ns = launch(lab, "b", 3, name="memcpy PtoP (through the host)", kind=SpanKind.COPY, after_ns=900_000)
    trace = trace_of(lab)
    on_b, on_a = rows(trace, SpanKind.COPY)
    assert (trace.start_ns[on_a], trace.start_ns[on_b]) == (first_ns + 55_000, third_ns)
    assert trace.end_ns[on_a] > first_ns + 940_000
