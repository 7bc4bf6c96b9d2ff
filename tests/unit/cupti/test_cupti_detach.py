"""CUPTI leaves the process when recording has ended, and what tells whether ranges can be timed by their work."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.backends.cuda._kernels import FENCE_BYTES, FENCE_VALUE, Fence
from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._layouts import CallbackDomain, MarkerFlag, RecordKind
from tests.helpers.captured import drain_all, kernels_of
from tests.helpers.fake_cupti import LAUNCH, MULTIPLE_SUBSCRIBERS, SYNCHRONIZE, add_source, make_source
from tests.helpers.recorded_buffers import CALL_NAMES

GET_CONTEXT_DEVICE = 899
GRAPH_LAUNCH = (1, 898)


@pytest.fixture(autouse=True)
def _more_calls(monkeypatch):
    domain = CallbackDomain.DRIVER_API
    monkeypatch.setitem(CALL_NAMES[domain], GET_CONTEXT_DEVICE, "cuCtxGetDevice")
    monkeypatch.setitem(CALL_NAMES[domain], GRAPH_LAUNCH[1], "cuGraphLaunch")


@pytest.fixture
def source(monkeypatch, card):
    return make_source(monkeypatch, card)


def record(source, card, between=lambda: None):
    source.start()
    card.kernel()
    source.stop()
    between()
    return source.drain(is_last=True)


def test_it_leaves_when_everything_is_told_and_comes_back(source, card):
    for count in (1, 2):
        source.start()
        assert source.is_attached
        card.kernel()
        source.stop()
        assert source.is_attached
        assert card.library.finalized_count == count - 1
        assert len(source.drain(is_last=True).work) == 1
        assert card.library.finalized_count == count
        assert not source.is_attached


def test_it_stays_where_its_profiler_was_used(source, card):
    source._cupti.has_profiled = True
    record(source, card)
    assert (card.library.finalized_count, source.is_attached, source._cupti.has_left) == (0, True, False)
    source._cupti.has_profiled = False
    record(source, card)
    assert (card.library.finalized_count, source.is_attached, source._cupti.has_left) == (1, False, True)


def test_it_leaves_where_a_source_is_closed_with_work_on_its_way(source, card):
    source.start()
    card.kernel()
    source.close()
    assert card.library.finalized_count == 1


def test_the_last_session_takes_cupti_out_of_the_process(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    source.start()
    other.start()
    source.stop()
    source.drain(is_last=True)
    assert (card.library.finalized_count, source.is_attached, other.is_attached) == (0, False, True)
    card.kernel("goes on")
    told = drain_all(other, card)
    other.stop()
    told += [other.drain(is_last=True)]

    assert [name for name, *_ in kernels_of(told)] == ["goes on"]
    assert (card.library.finalized_count, other.is_attached) == (1, False)


REASONS = {
    "a graph in the recording": lambda card: card.call(GRAPH_LAUNCH),
    "a graph after the stop": None,
    "a kernel of a graph": lambda card: card.kernel(graphId=5),
    "peer copies of a graph": lambda card: card.library.emit(RecordKind.MEMCPY2, start=5, end=6, graphId=3, correlationId=9),
    "another subscriber": lambda card: card.library.refused.update(cuptiSubscribe=MULTIPLE_SUBSCRIBERS),
    "a version that cannot": lambda card: card.library.lacking.add("cuptiFinalize"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_it_stays_where_leaving_would_do_harm(source, card, reason):
    source.start()
    card.kernel()
    if happens := REASONS[reason]:
        happens(card)
    source.stop()
    if not happens:
        card.call(GRAPH_LAUNCH)
    told = source.drain(is_last=True)
    called = [told.names[name] for name in told.calls.name.tolist()]
    assert ("cuGraphLaunch" in called) is (reason == "a graph in the recording")
    assert card.library.finalized_count == 0
    assert card.library.subscriber is None
    assert source.is_attached
    card.library.refused.clear()
    record(source, card)
    # Also after later recordings: a graph may still be there.
    assert card.library.finalized_count == (reason == "another subscriber")


def test_calls_after_the_stop_are_not_told_of(source, card):
    told = record(source, card, between=lambda: card.advance(10_000) or card.call(SYNCHRONIZE))
    assert "cuStreamSynchronize" not in [told.names[name] for name in told.calls.name.tolist()]


# Whether ranges can be timed by their work


@pytest.mark.parametrize(("domain", "hears"), [(DOMAIN_NAME, True), ("of another library", False), (None, False)])
def test_ranges_are_timed_by_work_only_where_cupti_hears_ours(monkeypatch, card, domain, hears):
    def mark_range():
        if domain is not None:
            card.marker(MarkerFlag.START, 1, "capture", domain=domain)
            card.marker(MarkerFlag.END, 1, domain=domain)

    source = make_source(monkeypatch, card, mark_range=mark_range)
    source.start()
    assert source.times_ranges is hears


def test_a_thread_is_told_of_until_the_last_call_whose_record_came_and_not_until_its_last_call(source, card):
    """A call is known as it returns, long before CUPTI tells of the work that it launched."""
    source.start()
    source.drain()
    card.advance(50_000)
    card.call(LAUNCH, thread=5)
    number = card.call(SYNCHRONIZE, thread=7)
    waited_ns = card.now_ns
    card.advance(50_000)
    card.marker(MarkerFlag.END, 3, domain=DOMAIN_NAME, thread=6)
    marked_ns = card.now_ns - 1_000
    until = source.drain().told_until
    assert {5, 7}.isdisjoint(until)
    card.library.emit(RecordKind.SYNCHRONIZATION, correlationId=number & 0xFFFF_FFFF, type=3)
    later = source.drain().told_until
    assert abs(later[7] - waited_ns - 2_000) < 1_000
    assert 5 not in later
    assert abs(until[6] - marked_ns - 2_000) < 1_000


def test_what_lies_between_two_recordings_counts_as_missed_by_nobody(source, card):
    source.start()
    source.stop()
    card.library.emit(RecordKind.DRIVER, cbid=LAUNCH[1], start=5, end=6, threadId=7, correlationId=9)  # by another's clock
    source.start()
    assert source.dropped_count == 0


# Fences


class Runtime:
    """``cupy.cuda.runtime``, as far as fences use it."""

    def __init__(self, capturing=()):
        self.capturing = capturing
        self.filled, self.freed = [], []

    def malloc(self, size_bytes):
        assert size_bytes == FENCE_BYTES
        return 0x1000

    def free(self, address):
        self.freed.append(address)

    def streamIsCapturing(self, handle):  # noqa: N802 - CUDA's name
        return handle in self.capturing

    def memsetAsync(self, *arguments):  # noqa: N802 - CUDA's name
        self.filled.append(arguments)


def test_a_fence_fills_four_bytes_but_not_in_a_graph():
    runtime = Runtime(capturing={8})
    fence = Fence(runtime)
    fence.put(7)
    fence.put(8)
    assert runtime.filled == [(0x1000, FENCE_VALUE, FENCE_BYTES, 7)]
    fence.close()
    fence.close()
    assert runtime.freed == [0x1000]


@pytest.mark.parametrize("value", [FENCE_VALUE, FENCE_VALUE * 0x0101_0101])
def test_fences_are_no_fills_of_the_program(source, card, value):
    source.start()
    begin_ns = card.now_ns
    fields = {
        "contextId": 1,
        "streamId": 13,
        "deviceId": 0,
        "start": card.cupti_ns(begin_ns),
        "end": card.cupti_ns(begin_ns + 9),
    }
    card.library.emit(RecordKind.MEMSET, bytes=FENCE_BYTES, value=value, correlationId=card.call(), **fields)
    card.library.emit(RecordKind.MEMSET, bytes=FENCE_BYTES, value=0, correlationId=card.call(), **fields)
    source.stop()
    told = source.drain(is_last=True)
    assert told.work.size_bytes.tolist() == [FENCE_BYTES]
    assert len(told.calls) == 1
    assert np.array_equal(told.calls.correlation, told.work.correlation)
    assert _cupti_source.are_fences({"bytes": np.array([4, 8]), "value": np.array([value, value])}).tolist() == [True, False]
