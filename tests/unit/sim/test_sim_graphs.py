"""CUDA graphs of the simulated device: when their nodes run, what they compute, and what is told of them."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import GraphCaptureError, InvalidHandleError, SessionClosedError

SPIN_NS = 100_000


def spin(backend, stream, ns=SPIN_NS, blocks=8):
    backend.launch_spin(stream, ns, blocks=blocks, fill_sms=True)


def fork(backend, behind, stream):
    event = backend.acquire_event()
    behind.record(event)
    stream.wait(event)


def captured(backend, stream, body):
    token = backend.select(stream)
    capture = backend.begin_graph(stream)
    try:
        body()
        return capture.instantiate()
    finally:
        capture.abandon()
        backend.restore(token)


def spans(works):
    return [(work.stream, work.start_ns, work.end_ns) for work in works]


# Time


def test_a_launch_is_one_call_and_branches_run_side_by_side_behind_what_the_stream_holds(backend, works):
    first, second, launching = (backend.create_stream(priority=0) for _ in range(3))

    def body():
        spin(backend, first)
        fork(backend, first, second)
        spin(backend, second)
        spin(backend, first, 2 * SPIN_NS)
        fork(backend, second, first)
        spin(backend, first)

    graph = captured(backend, first, body)
    backend.synchronize()
    assert not works
    spin(backend, launching)
    before_ns = backend.glance_ns()
    graph.launch(launching)
    host = backend.preset.host
    assert backend.glance_ns() - before_ns == host.graph_launch_ns + 4 * host.graph_node_ns
    spin(backend, launching)
    backend.synchronize()
    a, b = first.handle, second.handle
    at = works[0].end_ns
    one, two = SPIN_NS, 2 * SPIN_NS
    assert sorted(spans(works[1:])) == sorted(
        [
            (a, at, at + one),
            (b, at + one, at + two),
            (a, at + one, at + one + two),
            (a, at + one + two, at + two + two),
            (launching.handle, at + two + two, at + two + two + one),
        ]
    )


def test_nodes_keep_the_sms_and_the_priority_of_the_stream_that_captured_them(backend, works):
    narrow = backend.create_stream(priority=0, sm_ids=range(8))
    graph = captured(backend, narrow, lambda: spin(backend, narrow, blocks=16))
    backend.create_stream(priority=0, sm_ids=range(4))  # cuts the group of 8 afterwards
    narrow.close()
    graph.launch(backend.create_stream(priority=0))
    backend.synchronize()
    (work,) = works
    assert work.end_ns - work.start_ns == 2 * SPIN_NS

    works.clear()
    high, low = backend.create_stream(priority=-1), backend.create_stream(priority=0)
    urgent = captured(backend, high, lambda: spin(backend, high, blocks=132))
    spin(backend, low, blocks=4 * 132)
    urgent.launch(backend.create_stream(priority=0))
    backend.synchronize()
    assert [work.blocks for work in works] == [132, 4 * 132]


def test_the_next_launch_waits_for_branches_behind_which_the_first_stream_did_nothing(backend, works):
    first, second, other = (backend.create_stream(priority=0) for _ in range(3))

    def body():
        spin(backend, first)
        fork(backend, first, second)
        spin(backend, second)
        fork(backend, second, first)

    graph = captured(backend, first, body)
    graph.launch(first)
    graph.launch(other)
    backend.synchronize()
    assert [work.stream for work in works] == [first.handle, second.handle] * 2
    assert works[2].start_ns == works[1].end_ns
    known = len(backend.driver.scheduler.streams)
    graph.launch(first)
    graph.close()  # the launch still ends
    backend.synchronize()
    assert (len(works), len(backend.driver.scheduler.streams)) == (6, known - 2)
    with pytest.raises(InvalidHandleError, match="closed before"):
        graph.launch(first)


# Values


def test_each_launch_computes_anew_into_the_same_memory(backend):
    xp, stream = backend.xp, backend.create_stream(priority=0)
    token = backend.select(stream)
    a, out, pattern = xp.arange(12, dtype="f8").reshape(3, 4), xp.zeros(4), xp.asarray([2, 0])
    made = {}

    def body():
        made["view"] = (a * 2)[1:]
        made["rows"] = a[pattern]
        made["sign"], made["log"] = xp.linalg.slogdet(a[:, :3] @ a[:, :3].T + xp.eye(3))
        xp.sum(a, axis=0, out=out)
        a[0] = out
        a[1, 1:3] += 1
        made["zeros"] = xp.zeros(3)
        made["zeros"] += a[0, :3]
        made["random"] = xp.random.random(8)
        made["parts"] = xp.split(xp.sort(a, axis=None), 2)

    graph = captured(backend, stream, body)
    seen = made["random"].sim_values.copy()
    a.set(np.arange(12, dtype="f8").reshape(3, 4)[::-1].copy())
    start = a.get()
    graph.launch(stream)
    expected = start.copy()
    expected[0] = start.sum(axis=0)
    expected[1, 1:3] += 1
    np.testing.assert_array_equal(a.get(), expected)
    np.testing.assert_array_equal(made["view"].get(), (start * 2)[1:])
    np.testing.assert_array_equal(made["rows"].get(), start[[2, 0]])
    square = start[:, :3] @ start[:, :3].T + np.eye(3)
    np.testing.assert_allclose(float(made["log"]), np.linalg.slogdet(square)[1])
    np.testing.assert_array_equal(made["zeros"].get(), expected[0, :3])
    np.testing.assert_array_equal(made["parts"][1].get(), np.sort(expected, axis=None)[6:])
    assert (made["random"].get() != seen).all()
    backend.restore(token)


# What cannot be captured


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda backend, xp, a: backend.synchronize(), "Waiting for the device"),
        (lambda backend, xp, a: xp.nonzero(a), "xp.nonzero"),
        (lambda backend, xp, a: a[a > 1], "xp.getitem"),
        (lambda backend, xp, a: a.set(np.ones(8)), "pageable"),
        (lambda backend, xp, a: xp.asarray([1.0]), "pageable"),
        (lambda backend, xp, a: a.get(out=backend.pinned_empty(8, "f8")), "Reading values"),
        (lambda backend, xp, a: backend.allocate_scratch(backend.selected_stream, 8), "Taking scratch"),
        (lambda backend, xp, a: backend.selected_stream.close(), "Destroying stream"),
    ],
)
def test_a_call_that_cannot_be_captured_is_named_and_there_is_no_graph(backend, call, says):
    xp, stream = backend.xp, backend.create_stream(priority=0)
    token = backend.select(stream)
    a = xp.arange(8, dtype="f8")
    capture = backend.begin_graph(stream)
    if says.startswith("Destroying"):
        call(backend, xp, a)
    else:
        with pytest.raises(GraphCaptureError, match=says):
            call(backend, xp, a)
    with pytest.raises(GraphCaptureError, match=says):
        capture.instantiate()
    assert not backend.captures
    backend.restore(token)


def test_a_stream_cannot_be_part_of_two_captures_nor_wait_for_one_that_is_over(backend):
    first, second, event = backend.create_stream(priority=0), backend.create_stream(priority=0), backend.acquire_event()
    one, two = backend.begin_graph(first), backend.begin_graph(second)
    first.record(event)
    with pytest.raises(GraphCaptureError, match="outside the capture"):
        second.wait(event)
    one.abandon(), two.abandon()
    with pytest.raises(GraphCaptureError, match="outside the capture"):
        second.wait(event)
    assert not second.is_capturing
    second.synchronize()


# What is told


@pytest.mark.parametrize("is_ordered", [True, False])
def test_accesses_of_a_launch_are_those_of_the_stream_that_launches(is_ordered):
    with Session("sim", capture="ranges") as lab:
        a, b = lab.stream("a"), lab.stream("b")
        with lab.on(a):
            x = lab.xp.arange(1 << 16)
            capture = lab._backend.begin_graph(a._backend_stream)
            x *= 2
            graph = capture.instantiate()
        lab.synchronize()
        assert not lab.memory.hazards()
        graph.launch(a._backend_stream)
        if is_ordered:
            b.wait(a)
        with lab.on(b):
            y = x + 1
        found = lab.memory.hazards()
        assert [row.kind.value for row in found.hazards] == ([] if is_ordered else ["read-after-write"])
        del y


def test_waits_of_a_capture_are_no_edges_between_ranges():
    with Session("sim", capture="ranges") as lab:
        a, b = lab.stream("a"), lab.stream("b")
        with lab.on(a, "before"):
            pass
        capture = lab._backend.begin_graph(a._backend_stream)
        b.wait(a)
        a.wait(b)
        capture.abandon()
        for stream in (a, b):
            with lab.on(stream, "behind"):
                pass
        lab.synchronize()
        assert not len(lab.trace.edges)
        open_one = lab._backend.begin_graph(a._backend_stream)
    assert open_one.is_over  # closing ends it quietly
    with pytest.raises(SessionClosedError):
        open_one.instantiate()
