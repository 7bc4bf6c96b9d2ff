"""Several cards as one node: their clocks, their kernels, and waits from one to the other."""

import numpy as np
import pytest

from gpustreamlab import Node
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin

KINDS = list(SpanKind)


@pytest.fixture
def node():
    with Node(backend="cuda") as node:
        yield node


def kernels_of(trace):
    return np.flatnonzero(trace.kind == KINDS.index(SpanKind.KERNEL))


def test_both_cards_record_their_own_kernels(node):
    for number in range(len(node)):
        node.stream(f"s{number}", device=number)
    for number in range(len(node)):
        with node.on(f"s{number}", f"step {number}"):
            spin(node[number], 100_000 * (number + 1))
    node.synchronize()
    trace = node.trace
    kernels = kernels_of(trace)
    told = {trace.lanes[trace.lane[row]].device: round(trace.duration_ns[row] / 100_000) for row in kernels}
    assert told == {number: number + 1 for number in range(len(node))}
    assert len(trace.devices) == len(node)
    assert [len(session.trace.where(kind="kernel")) for session in node] == [1] * len(node)


def test_a_stream_waits_for_an_event_of_another_card(node):
    first, last = node.stream("first"), node.stream("last", device=len(node) - 1)
    for _ in range(20):
        with node.on("first", "produce"):
            spin(node[0], 200_000)
        last.wait(first.record())
        with node.on("last", "consume"):
            spin(node[len(node) - 1], 50_000)
    node.synchronize()
    trace = node.trace
    kernels = kernels_of(trace)
    produced = [row for row in kernels if trace.lanes[trace.lane[row]].name == "first"]
    consumed = [row for row in kernels if trace.lanes[trace.lane[row]].name == "last"]
    gaps_ns = trace.start_ns[consumed] - trace.end_ns[produced]
    assert len(gaps_ns) == 20
    assert gaps_ns.min() > -trace.metadata.clock_error_ns
    assert np.median(gaps_ns) < 10_000 + trace.metadata.clock_error_ns


def test_a_kernel_that_waits_for_one_of_another_card_has_an_edge_from_it(node):
    first, last = node.stream("first"), node.stream("last", device=len(node) - 1)
    for _ in range(20):
        with node.on("first", "produce"):
            spin(node[0], 50_000)
        last.wait(first.record())
        with node.on("last", "consume"):
            spin(node[len(node) - 1], 20_000)
    node.synchronize()
    trace = node.trace
    is_kernel = trace.kind == KINDS.index(SpanKind.KERNEL)
    pairs = np.stack((trace.edges.source, trace.edges.target))[:, is_kernel[trace.edges.source] & is_kernel[trace.edges.target]]
    names = [[trace.lanes[lane].name for lane in trace.lane[pair]] for pair in pairs.T]
    assert names == [["first", "last"]] * 20
    assert "last" in str(trace.where(kind="kernel").critical_path())


def test_a_kernel_on_another_card_than_its_range_is_a_stray_of_it_and_each_call_is_told_once(node):
    node.stream("last", device=len(node) - 1)
    for session in node:
        session.capture("kernels", host=True)
    with node.on("last", "step"), node[0].xp.cuda.Device(0):
        filled = node[0].xp.ones(1_000)
    node.synchronize()
    trace = node.trace
    strays = trace.strays()
    assert len(strays) >= 1
    assert "last" in str(strays)
    calls = trace.where(kind="host")
    numbers = calls.extra["correlation"]
    assert len(numbers) == len(np.unique(numbers)) > 0
    assert filled.shape == (1_000,)
