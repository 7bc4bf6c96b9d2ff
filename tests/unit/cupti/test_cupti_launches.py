"""Launches are known by the records of their calls, from the start of a capture to the last look for graphs."""

from __future__ import annotations

import threading

import pytest

from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti._layouts import CallbackDomain, MarkerFlag, RecordKind
from gpustreamlab.backends.cuda.cupti._source import NEEDED_KINDS
from tests.helpers.captured import CALL_RECORDS
from tests.helpers.fake_cupti import SYNCHRONIZE, make_source
from tests.helpers.recorded_buffers import CALL_NAMES

ME = threading.get_ident() & 0xFFFF_FFFF


@pytest.fixture
def source(monkeypatch, card):
    """Mark a range as a session does, so that CUPTI is known to hear it."""

    def mark_range():
        card.marker(MarkerFlag.START, 1, "capture", domain=DOMAIN_NAME, thread=threading.get_ident())
        card.marker(MarkerFlag.END, 1, domain=DOMAIN_NAME, thread=threading.get_ident())

    return make_source(monkeypatch, card, mark_range=mark_range)


def test_a_launch_is_known_by_its_call(source, card):
    source.start()
    source.drain()
    assert card.library.kinds >= CALL_RECORDS
    card.advance(100_000)  # else it might be one of the session's own
    before_ns = card.now_ns
    card.kernel()
    card.call(SYNCHRONIZE)
    told = source.drain()
    launch, _ = told.calls.correlation.tolist()
    assert told.work.correlation.tolist() == [launch]
    assert told.calls.thread.tolist() == [ME, ME]
    assert [told.names[name] for name in told.calls.name.tolist()] == ["cuLaunchKernel", "cudaStreamSynchronize"]
    assert told.calls.start_ns[0] < told.work.start_ns[0]
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


def test_after_a_stop_launches_of_graphs_are_looked_for_until_it_leaves(monkeypatch, source, card):
    monkeypatch.setitem(CALL_NAMES[CallbackDomain.DRIVER_API], 899, "cuCtxGetDevice")
    source.start()
    card.kernel()
    source.stop()
    assert card.library.kinds == CALL_RECORDS
    assert not card.library.left_out
    assert set(NEEDED_KINDS).isdisjoint(card.library.kinds)
    assert len(source.drain(is_last=True).work) == 1
    assert not card.library.kinds
    assert card.library.finalized_count == 1


def test_work_that_could_not_be_timed_before_a_start_counts_as_missed_by_nobody(monkeypatch, card):
    def ran_before():
        card.library.emit(RecordKind.CONCURRENT_KERNEL, start=0, end=0, correlationId=5, contextId=1, streamId=13)

    source = make_source(monkeypatch, card, mark_range=ran_before)
    source.start()
    source.drain()
    assert source.dropped_count == 0
