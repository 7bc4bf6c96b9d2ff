"""Launches are known by their calls, by callback or by records, from the start of a capture to the last look for graphs."""

from __future__ import annotations

import threading

import pytest

from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti._layouts import CallbackDomain, MarkerFlag, RecordKind
from gpustreamlab.backends.cuda.cupti._source import NEEDED_KINDS
from tests.helpers.captured import CALL_RECORDS
from tests.helpers.fake_cupti import SYNCHRONIZE, install_torch, make_source
from tests.helpers.recorded_buffers import CALL_NAMES

GRAPH_LAUNCH = 898
ME = threading.get_ident() & 0xFFFF_FFFF


@pytest.fixture
def source(monkeypatch, card):
    """Mark a range as a session does, so that CUPTI is known to hear it."""

    def mark_range():
        card.marker(MarkerFlag.START, 1, "capture", domain=DOMAIN_NAME, thread=threading.get_ident())
        card.marker(MarkerFlag.END, 1, domain=DOMAIN_NAME, thread=threading.get_ident())

    return make_source(monkeypatch, card, mark_range=mark_range)


@pytest.fixture(params=["callback", "records"])
def way(monkeypatch, card, request):
    """How calls are known: torch.profiler keeps the subscriber's place after its first use."""
    monkeypatch.setitem(CALL_NAMES[CallbackDomain.DRIVER_API], GRAPH_LAUNCH, "cuGraphLaunch")
    if request.param == "records":
        install_torch(monkeypatch, is_profiling=False)
        card.library.subscriber = "torch"
    return request.param


def test_a_launch_is_known_by_its_call(source, card, way):
    source.start()
    source.drain()
    is_followed = way == "callback"
    assert card.library.kinds.isdisjoint(CALL_RECORDS) is is_followed
    assert ((1, 307) in card.library.followed) is is_followed
    assert ("another profiler has the callbacks" in source.description) is not is_followed
    card.advance(100_000)  # else it might be one of the session's own
    before_ns = card.now_ns
    card.kernel()
    card.call(SYNCHRONIZE)
    told = source.drain()
    launch, _ = told.calls.correlation.tolist()
    assert told.work.correlation.tolist() == [launch]
    assert told.calls.thread.tolist() == [ME, ME]
    assert [told.names[name] for name in told.calls.name.tolist()] == ["cuLaunchKernel", "cuStreamSynchronize"]
    assert told.calls.start_ns[0] < told.work.start_ns[0]
    if not is_followed:
        assert told.told_until[ME] >= before_ns


def test_times_of_queueing_are_never_asked_for(source, card):
    """Where they are on, the launch of a CUDA graph writes beyond CUPTI's memory: seen with 13.0 and 13.1."""
    asked = []
    card.library.cuptiActivityEnableLatencyTimestamps = asked.append
    source.start()
    card.kernel()
    source.drain()
    source.stop()
    source.drain(is_last=True)
    assert not asked


def test_after_a_stop_launches_of_graphs_are_looked_for_until_it_leaves(monkeypatch, source, card, way):
    monkeypatch.setitem(CALL_NAMES[CallbackDomain.DRIVER_API], 899, "cuCtxGetDevice")
    source.start()
    card.kernel()
    source.stop()
    assert card.library.followed == ({(1, GRAPH_LAUNCH)} if way == "callback" else set())
    assert card.library.kinds == (set() if way == "callback" else CALL_RECORDS)
    assert not card.library.left_out
    assert set(NEEDED_KINDS).isdisjoint(card.library.kinds)
    assert len(source.drain(is_last=True).work) == 1
    assert not card.library.kinds
    assert card.library.finalized_count == (way == "callback")  # torch would lose its place


def test_work_that_could_not_be_timed_before_a_start_counts_as_missed_by_nobody(monkeypatch, card):
    def ran_before():
        card.library.emit(RecordKind.CONCURRENT_KERNEL, start=0, end=0, correlationId=5, contextId=1, streamId=13)

    source = make_source(monkeypatch, card, mark_range=ran_before)
    source.start()
    source.drain()
    assert source.dropped_count == 0
