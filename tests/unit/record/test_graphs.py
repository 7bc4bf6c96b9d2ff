"""Launches of CUDA graphs become spans that cover their nodes."""

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend, kernel_detail


@pytest.fixture
def lab():
    source = FakeActivitySource()
    with Session(FakeSourceBackend(source)) as session:
        session.stream("a")
        session.stream("b")
        session.capture("kernels")
        yield session


def launch_graph(lab, stream, correlation, starts_ns, graph=7):
    source, now_ns = lab._backend.source_given, lab._recorder._look_at_clock()
    lab._backend.host_time_ns()  # time goes on
    for place, after_ns in enumerate(starts_ns):
        detail = replace(kernel_detail(f"node{place}"), graph=graph)
        start_ns = now_ns + after_ns
        push = source.push_launch if place == 0 else source.push_work
        times = (now_ns, start_ns, start_ns + 1_000) if place == 0 else (start_ns, start_ns + 1_000)
        push(*times, correlation=correlation, stream=lab.stream(stream)._backend_stream, name=f"node{place}", detail=detail)


def launches(trace):
    return np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.ANNOTATION)).tolist()


def test_a_launch_covers_its_nodes_and_lies_in_the_range_around_it(lab):
    with lab.on("a", "step"):
        launch_graph(lab, "a", 5, [3_000, 9_000])
    lab.synchronize()
    trace = lab.trace
    (row,) = launches(trace)
    nodes = [int(np.flatnonzero(trace.name == trace.names.index(f"node{place}"))[0]) for place in range(2)]
    assert trace.names[trace.name[row]] == "graph 7"
    assert trace.lanes[trace.lane[row]].name == "a"
    assert trace.names[trace.name[trace.parent[row]]] == "step"
    assert trace.parent[nodes].tolist() == [row, row]
    assert (trace.start_ns[row], trace.end_ns[row]) == (trace.start_ns[nodes[0]], trace.end_ns[nodes[1]])
    assert trace.extra["work_count"][row] == 2
    assert trace.extra["work_count"][trace.parent[row]] == 2
    assert (np.diff(trace.start_ns) >= 0).all()


def test_each_launch_of_a_graph_is_a_span(lab):
    for correlation in (5, 6):
        with lab.on("a", "step"):
            launch_graph(lab, "a", correlation, [3_000, 9_000])
    with lab.on("b", "step"):
        launch_graph(lab, "b", 7, [3_000], graph=8)
    lab.synchronize()
    trace = lab.trace
    assert [trace.names[trace.name[row]] for row in launches(trace)] == ["graph 7", "graph 7", "graph 8"]
    assert [trace.lanes[trace.lane[row]].name for row in launches(trace)] == ["a", "a", "b"]
    assert not lab.trace.strays()
