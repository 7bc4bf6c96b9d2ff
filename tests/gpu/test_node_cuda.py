"""Several cards as one node: their clocks, their kernels, and waits from one to the other."""

import itertools
import json

import cupy
import numpy as np
import pytest

from bench.cards import clocks
from gpustreamlab import Node, Session
from gpustreamlab.testing import CAPTURE_CHECKS, CONTRACT_CHECKS, GRAPH_CHECKS
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.node_advice import CASES, recorded
from tests.helpers.programs import run_alone
from tests.helpers.traces import wall_ns

KINDS = list(SpanKind)
CARDS = cupy.cuda.runtime.getDeviceCount()


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


def test_a_stream_waits_for_an_event_of_another_card_and_an_edge_tells_so(node):
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
    is_kernel = np.isin(np.arange(len(trace)), kernels)
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
    assert (len(strays) >= 1) is (len(node) > 1)  # of one card there is no other
    assert len(node) == 1 or "last" in str(strays)
    calls = trace.where(kind="host")
    numbers = calls.extra["correlation"]
    assert len(numbers) == len(np.unique(numbers)) > 0
    assert filled.shape == (1_000,)


def copies_of(trace):
    """Return the stream, the name, the parent's name, and the duration in ns of each copy."""
    rows = np.flatnonzero(trace.kind == KINDS.index(SpanKind.COPY))
    return [
        (
            trace.lanes[trace.lane[row]].name,
            trace.names[trace.name[row]],
            trace.names[trace.name[trace.parent[row]]] if trace.parent[row] >= 0 else None,
            int(trace.duration_ns[row]),
        )
        for row in rows
    ]


PEERS = """
import cupy, json, sys
from gpustreamlab import Node, Session
from gpustreamlab.testing import CAPTURE_CHECKS, CONTRACT_CHECKS, GRAPH_CHECKS
from gpustreamlab.workloads import spin
from gpustreamlab.typing import SpanKind
is_direct, last, size = sys.argv[1] == "direct", int(sys.argv[2]), 128 << 20
with Node(backend="cuda") as node:
    node.stream("a")
    node.stream("b", device=last)
    with cupy.cuda.Device(0):
        x = cupy.zeros(size, cupy.uint8)
    with cupy.cuda.Device(last):
        y = cupy.zeros(size, cupy.uint8)
    if is_direct:
        for own, other in ((0, last), (last, 0)):
            with cupy.cuda.Device(own):
                cupy.cuda.runtime.deviceEnablePeerAccess(other)
    node.synchronize()
    for _ in range(2):
        node.clear()
        said = {}
        for place, name in ((0, "a"), (last, "b")):
            with node.on(name, f"hand over on {name}"):
                events = [cupy.cuda.Event(), cupy.cuda.Event()]
                spin(node[place], 200_000)
                handle = cupy.cuda.get_current_stream()
                events[0].record(handle)
                cupy.cuda.runtime.memcpyPeerAsync(y.data.ptr, last, x.data.ptr, 0, size, handle.ptr)
                events[1].record(handle)
                spin(node[place], 100_000)
            node.synchronize()
            said[name] = cupy.cuda.get_elapsed_time(*events)
    trace = node.trace
    from tests.gpu.test_node_cuda import copies_of
    ranges = trace.where(kind=SpanKind.RANGE).duration_ns.tolist()
    print(json.dumps([copies_of(trace), said, len(trace.strays()), ranges]))
"""


@pytest.mark.parametrize("card", range(1, CARDS))
@pytest.mark.parametrize(("way", "name"), [("direct", "memcpy PtoP"), ("staged", "memcpy PtoP (through the host)")])
def test_a_copy_between_cards_is_in_the_stream_that_launched_it_and_lasts_as_long_as_events_say(card, way, name):
    copies, said_ms, strays, ranges_ns = json.loads(run_alone(PEERS, way, str(card)).splitlines()[-1])
    assert [copy[:3] for copy in copies] == [["a", name, "hand over on a"], ["b", name, "hand over on b"]]
    for stream, _, _, duration_ns in copies:
        assert duration_ns == pytest.approx(said_ms[stream] * 1e6, rel=0.05, abs=40_000)
    for range_ns, copy in zip(ranges_ns, copies, strict=True):
        assert range_ns > copy[3] + 300_000
    assert strays == 0


def test_clocks_of_each_pair_of_cards_are_known_to_a_microsecond(node):
    for one, other in itertools.combinations(range(len(node)), 2):
        found = clocks(node, one, other)
        assert found["off by a flag, us"] <= min(1.0, found["stated bound, us"]), (one, other, found)


@pytest.mark.parametrize("card", range(1, CARDS) or [0])
@pytest.mark.parametrize("check", [*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS], ids=lambda check: check.__name__)
def test_each_card_keeps_the_contract(check, card):
    check(lambda **options: Session("cuda", device=card, capture="ranges", **options))


@pytest.mark.parametrize(("program", "cause"), CASES)
def test_what_is_promised_of_two_cards_is_gained(program, cause):
    # GIVEN a program and its better version, each the quickest of three runs, as the host is another one each time
    def quickest(is_better):
        with Node(range(2), backend="cuda") as node:
            return min((recorded(node, program, is_better=is_better, warm_ups=2) for _ in range(3)), key=wall_ns)

    worse, better = quickest(is_better=False), quickest(is_better=True)
    found, gain_ns = worse.explain(), wall_ns(worse) - wall_ns(better)

    # THEN no more is promised than is gained, and nothing of the better one
    told = str(found), str(better.explain()), wall_ns(worse), wall_ns(better)
    print(*told, sep="\n")
    assert found.findings[0].code is cause, told
    assert found.gain_ns <= 1.15 * gain_ns, told
    assert better.explain().gain_ns <= 0.1 * wall_ns(better), told
