"""Streams and events of a session, and the checks of their names."""

from __future__ import annotations

import threading

import pytest

from gpustreamlab import Session
from gpustreamlab.backends import lent_handle
from gpustreamlab.backends._protocol import EventPool
from gpustreamlab.errors import StreamClosedError, StreamNotFoundError, StreamRefusedError
from gpustreamlab.streams.table import KEPT_CLOSED
from tests.helpers.instant_backend import InstantBackend


@pytest.fixture
def lab():
    with Session("sim") as session:
        session.stream("a")
        session.stream("b", priority=-2)
        yield session


def test_repr_tells_name_priority_handle_and_state(lab):
    stream = lab.stream("b")
    assert repr(stream) == f"<Stream 'b', priority -2, handle {stream.handle:#x}>"
    stream.close()
    assert repr(stream).endswith(" closed>")
    assert stream.is_closed


def test_a_stream_lends_itself_until_it_is_closed(lab):
    stream = lab.stream("a")
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert lent_handle(stream) == stream.handle
    stream.close()
    with pytest.raises(StreamClosedError):
        lent_handle(stream)


@pytest.mark.parametrize("lent", [None, (0,), [0, 5], (2, 5), 5])
def test_what_is_not_the_protocol_is_refused(lent):
    class Lender:
        def __cuda_stream__(self):
            return lent

    with pytest.raises(StreamRefusedError, match=r"Lender\.__cuda_stream__\(\) gave .* version 0 .* \(0, handle\)"):
        lent_handle(Lender())


def test_lanes_that_were_closed_cost_nothing_for_ever(lab):
    # GIVEN a server that makes a lane for each request
    for number in range(KEPT_CLOSED + 50):
        stream = lab.stream(f"request-{number}")
        with lab.on(stream, "work"):
            pass
        stream.close()

    # THEN the last ones are known as closed, the others as never made, and all their work is in the trace
    with pytest.raises(StreamClosedError, match="is closed"):
        lab.on(f"request-{number}")
    with pytest.raises(StreamNotFoundError, match="no stream 'request-0'"):
        lab.on("request-0")
    assert len(lab.trace.where(kind="range")) == KEPT_CLOSED + 50

    # AND nothing goes on looking at those that are gone
    assert len(lab._table.by_name) <= KEPT_CLOSED + 3
    assert len(lab._recorder.in_flight.lanes) <= 3
    assert len(lab.memory.statistics.items) <= KEPT_CLOSED + 3
    with lab.on(lab.stream("request-0"), "again"):
        pass
    lab.synchronize()
    assert lab.trace.to_pandas()["lane"].tolist().count("request-0") == 2


def test_a_stream_that_fails_to_synchronise_is_destroyed_all_the_same(monkeypatch):
    backend = InstantBackend()
    with Session(backend) as lab:
        stream = lab.stream("a")
        monkeypatch.setattr(stream._backend_stream, "synchronize", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stream.close()
        assert backend.calls == ["close 7"]
        assert stream.is_closed


def wait_names(lab):
    """Pairs of names of ranges, of which the second waited for the first."""
    lab.synchronize()
    trace = lab.trace
    edges = trace.edges.select("wait")
    return [tuple(trace.names[trace.name[row]] for row in pair) for pair in zip(edges.source, edges.target, strict=True)]


def test_a_range_waits_for_what_its_stream_is_told_to_wait_for_inside_it(lab):
    copy, compute = lab.stream("copy"), lab.stream("compute")
    with lab.on("copy", "upload"):
        pass
    with lab.on("compute", "outer"):
        with lab.on("copy", "other"), lab.on("compute", "gemm"), lab.on("copy", "inside"):
            compute.wait(copy)
        compute.wait(copy)
    with lab.on("compute", "unrelated"):
        pass
    assert wait_names(lab) == [("inside", "gemm"), ("inside", "outer")]


def test_a_range_of_another_thread_does_not_wait_for_what_comes_beside_it(lab):
    copy, compute = lab.stream("copy"), lab.stream("compute")
    with lab.on("copy", "upload"):
        pass
    with lab.on("compute", "gemm"):
        thread = threading.Thread(target=compute.wait, args=(copy,))
        thread.start()
        thread.join()
    with lab.on("compute", "next"):
        pass
    assert wait_names(lab) == [("upload", "next")]


def test_edges_that_no_range_ends_are_bounded(lab):
    for number in range(1_500):
        with lab.on("a", f"n{number}"):
            pass
        lab.stream("b").wait(lab.stream("a"))
    most = len(lab.stream("b")._recorded.incoming)
    assert most < 1_500
    with lab.on("b", "last"):
        pass
    lab.synchronize()
    assert len(lab.trace.edges.source) == most


def test_the_event_pool_keeps_no_more_than_it_may():
    made = []
    pool = EventPool(lambda: made.append(len(made)) or made[-1], keep_count=2)
    taken = [pool.acquire() for _ in range(4)]
    pool.release(taken)
    assert len(pool) == 2
    assert pool.acquire() in taken
    assert len(made) == 4
    assert len(pool.clear()) == 1
    assert len(pool) == 0
