"""The part of the battery that is about CUDA graphs: captured once, launched many times."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpustreamlab.backends import GraphCapture
from gpustreamlab.errors import GraphCaptureError, InvalidHandleError
from gpustreamlab.session import Session
from gpustreamlab.streams.stream import Stream
from gpustreamlab.testing._contract import SPIN_NS, ContractCheck, OpenSession, checks_in, expect
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin

_COUNT = 1 << 12


def a_graph_computes_from_what_its_inputs_hold(open_session: OpenSession) -> None:
    """A launch does what was captured, on two streams, with the values that the inputs have by then."""
    with open_session() as lab:
        first, second, source = lab.stream("first"), lab.stream("second"), _filled(lab, 1)
        with _capturing(lab, first) as capture:
            doubled = source * 2
            second.wait(first)
            with lab.on(second):
                added = source + 10
            first.wait(second)
            total = (doubled + added).sum()
            count = capture.node_count
            graph = capture.instantiate()
        assert count == graph.node_count >= 4
        for value in (1, 5, 7):
            with lab.on(first):
                source[...] = value
                graph.launch(first._backend_stream)
                np.testing.assert_array_equal(added.get(), value + 10)
                assert float(total) == (3 * value + 10) * _COUNT
        graph.close()


def launches_are_in_the_order_of_their_streams(open_session: OpenSession) -> None:
    """A launch runs behind what its stream holds, later work behind it, and launches in two streams one after the other."""
    with open_session() as lab:
        lanes, counter = (lab.stream("a"), lab.stream("b")), _filled(lab, 0)
        with _capturing(lab, lanes[0]) as capture:
            counter += 1
            spin(lab, SPIN_NS // 20)
            graph = capture.instantiate()
        with lab.on("a"):
            counter[...] = 0
        lanes[1].wait(lanes[0])
        before = lanes[1].record()
        for number in range(100):
            graph.launch(lanes[(number + 1) % 2]._backend_stream)
        after = lanes[0].record()
        lab.synchronize()
        with lab.on("a"):
            np.testing.assert_array_equal(counter.get(), 100)
        assert before.elapsed_ns(after) >= 100 * (SPIN_NS // 20) * 0.95
        graph.close()


def a_stream_that_was_not_joined_is_told(open_session: OpenSession) -> None:
    """A capture ends with an error that names the streams that the first one does not wait for; all of them work again."""
    with open_session() as lab:
        first, second = lab.stream("first"), lab.stream("second")
        with _capturing(lab, first) as capture:
            spin(lab, 1_000)
            second.wait(first)
            with lab.on(second):
                spin(lab, 1_000)
            try:
                capture.instantiate()
            except GraphCaptureError as error:
                assert error.unjoined == (second.handle,)  # noqa: PT017 - no pytest here
                assert f"{second.handle:#x}" in str(error)  # noqa: PT017 - likewise
            else:
                raise AssertionError("GraphCaptureError was not raised")
            capture.abandon()
        for stream in (first, second):
            with lab.on(stream):
                spin(lab, 1_000)
            stream.synchronize()


def calls_that_wait_break_a_capture(open_session: OpenSession) -> None:
    """A call that would wait for captured work says so, there is no graph then, and the stream works again."""
    with open_session() as lab:
        stream, source = lab.stream("a"), _filled(lab, 1)
        outside = lab.stream("outside").record()
        calls: tuple[Callable[[], object], ...] = (
            stream.synchronize,
            stream.query,
            lambda: stream.record().synchronize(),
            lambda: _mapped(lab, source.get),
            lambda: _mapped(lab, lambda: float(source.sum())),
            lambda: stream.wait(outside),
            lambda: lab._backend.begin_graph(stream._backend_stream),
        )
        for call in calls:
            with _capturing(lab, stream) as capture:
                spin(lab, 1_000)
                expect(GraphCaptureError, call)
                capture.abandon()
                capture.abandon()
            np.testing.assert_array_equal(_read(lab, stream, source), 1)
            expect(GraphCaptureError, capture.instantiate)


def page_locked_copies_are_captured(open_session: OpenSession) -> None:
    """Copies from and to page-locked memory read and write it at each launch; CuPy refuses to capture them, and is told of."""
    with open_session() as lab:
        stream = lab.stream("a")
        host, back = (lab.memory.pinned_empty((_COUNT,), "float32") for _ in range(2))
        host[...] = 0
        with lab.on(stream):
            device = lab.xp.zeros(_COUNT, "float32")
        with _capturing(lab, stream) as capture:
            try:
                device.set(host)
            except RuntimeError as error:
                assert isinstance(lab._backend.map_error(error, "Copying"), GraphCaptureError)  # noqa: PT017 - only some backends refuse
                return
            (device * 2).get(out=back, blocking=False)
            graph = capture.instantiate()
        assert graph.node_count == 3
        for value in (1, 2):
            host[...] = value
            _launch(lab, graph, stream)
            np.testing.assert_array_equal(back, 2 * value)
        graph.close()


def a_graph_is_closed_while_it_runs(open_session: OpenSession) -> None:
    """Closing waits for nothing and cuts nothing off; a closed graph says so, and keeps nothing."""
    with open_session() as lab:
        stream, source = lab.stream("a"), _filled(lab, 1)
        held: list[_Thing] = [_Thing()]
        with lab.on(stream):
            out = lab.xp.zeros(_COUNT, "float32")
        with _capturing(lab, stream) as capture:
            spin(lab, 5 * SPIN_NS)
            lab.xp.add(source, 1, out=out)
            stream.hold(held[0])
            graph = capture.instantiate()
        is_there = weakref.ref(held.pop())
        graph.launch(stream._backend_stream)
        assert is_there() is not None
        graph.close()
        graph.close()
        expect(InvalidHandleError, lambda: graph.launch(stream._backend_stream))
        np.testing.assert_array_equal(_read(lab, stream, out), 2)
        lab.synchronize()
        del capture
        gc.collect()
        assert is_there() is None


def ranges_of_a_capture_are_not_recorded(open_session: OpenSession) -> None:
    """Ranges inside a capture are silent; those around launches are recorded, and cover the work of the graph."""
    with open_session() as lab:
        stream = lab.stream("a")
        with _capturing(lab, stream) as capture:
            with lab.on(stream, "captured"), lab.range("inside"):
                spin(lab, SPIN_NS)
            assert capture.node_count == 1
            graph = capture.instantiate()
        for _ in range(2):
            with lab.on(stream, "launched"):
                graph.launch(stream._backend_stream)
        lab.synchronize()
        trace = lab.trace
        names = [trace.names[code] for code in trace.name]
        assert names == ["a", "launched", "launched"]  # the first one was open as the capture began, and was closed behind it
        assert (trace.duration_ns[1:] >= SPIN_NS * 0.95).all()
        assert trace.metadata.dropped_spans == trace.metadata.pending_spans == 0
        graph.close()


def kernels_of_a_launch_are_told_by_its_parts(open_session: OpenSession) -> None:
    """Kernels of a graph know it and their place in it; each launch, lane and named part has a row that is their parent."""
    with open_session() as lab, lab.capture("kernels"):
        first, second = lab.stream("first"), lab.stream("second")
        with _capturing(lab, first) as capture:
            spin(lab, SPIN_NS)
            second.wait(first)
            marks = [(0, "fork"), (capture.node_count, "branches")]
            with lab.on(second):
                spin(lab, SPIN_NS)
            spin(lab, SPIN_NS)
            first.wait(second)
            marks.append((capture.node_count, "join"))
            spin(lab, SPIN_NS)
            graph = capture.instantiate()
        lab._recorder.kernels.name_graph(graph.id, marks)
        for _ in range(2):
            graph.launch(first._backend_stream)
        lab.synchronize()
        trace = lab.trace
        kinds = list(trace.kind)
        kernels = [row for row in range(len(trace)) if kinds[row] == list(SpanKind).index(SpanKind.KERNEL)]
        details = [trace.details[trace.extra["detail"][row]] for row in kernels]
        assert {detail.graph for detail in details} == {graph.id}
        assert sorted(detail.node for detail in details) == [0, 0, 1, 1, 2, 2, 3, 3]
        parts = {detail.node: trace.names[trace.name[trace.parent[row]]] for row, detail in zip(kernels, details, strict=True)}
        assert parts == {0: "fork", 1: "branches", 2: "branches", 3: "join"}
        assert len({int(trace.parent[row]) for row, detail in zip(kernels, details, strict=True) if detail.node == 0}) == 2
        graph.close()


GRAPH_CHECKS: tuple[ContractCheck, ...] = checks_in(globals())  # Every check, to run one by one


class _Thing:
    """What can be held, and looked at without holding it."""


@contextmanager
def _capturing(lab: Session, stream: Stream) -> Iterator[GraphCapture]:
    """Capture with the stream selected; loads the kernels that the checks capture before."""
    with lab.on(stream):
        capture = lab._backend.begin_graph(stream._backend_stream)
        try:
            yield capture
        finally:
            capture.abandon()


def _filled(lab: Session, value: float) -> Any:
    """Return an array on the device, after every kernel that the checks capture was loaded once."""
    with lab.on(lab.stream("loading")):
        array = lab.xp.full(_COUNT, value, "float32")
        other = lab.xp.sqrt(array * 2 + (array + 10))
        other += 1
        other[...] = value
        lab.xp.add(other, 1, out=other)
        lab.xp.multiply(other, 2, out=other)
        float(other.sum())
        spin(lab, 1_000)
    lab.synchronize()
    return array


def _launch(lab: Session, graph: Any, stream: Stream) -> None:
    graph.launch(stream._backend_stream)
    lab.synchronize()


def _read(lab: Session, stream: Stream, array: Any) -> Any:
    with lab.on(stream):
        return array.get()


def _mapped(lab: Session, call: Callable[[], object]) -> None:
    """Raise what stands for an error of the array module."""
    try:
        call()
    except Exception as error:
        raise lab._backend.map_error(error, "Reading values") from error
