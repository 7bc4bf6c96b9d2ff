"""Launches are found without records of calls: by when kernels were queued, and by what lies before them in their buffer."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti import _source
from gpustreamlab.backends.cuda.cupti._calls import SLACK_NS, CallReader, OwnCalls
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._constants import CallbackDomain, MarkerFlag, RecordKind
from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
from gpustreamlab.backends.cuda.cupti._records import concat_records, parse_buffer
from gpustreamlab.backends.cuda.cupti._source import CALL_KINDS, NEEDED_KINDS
from gpustreamlab.backends.cuda.cupti._work import Texts
from tests.helpers.captured import CALL_RECORDS
from tests.helpers.cupti_buffers import build_buffer
from tests.helpers.fake_cupti import SYNCHRONIZE, FakeCard, FakeCuptiLibrary, make_source
from tests.helpers.recorded_buffers import CALL_NAMES

KERNEL, COPY, FILL, MARKER = RecordKind.CONCURRENT_KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.MARKER
ME = threading.get_ident() & 0xFFFF_FFFF
LAYOUTS = find_layouts(130001)


def needed(own=None):
    """Return a reader of a thread's buffers where calls are not recorded; the wall clock is the host's."""
    reader = CallReader(None, own or OwnCalls(lambda: 0), WallClock(lambda: 0, lambda: 0))
    reader.find_launches()
    return reader


def parsed(*records):
    return parse_buffer(build_buffer(records), LAYOUTS)


def random_thread(rng, first_call):
    """Return what one thread did: records, and for each piece of work its number and the span in which it was launched."""
    now_ns, known_ns = int(rng.integers(1, 1_000)) * 10_000, None
    records, launches = [], []
    for number in range(int(rng.integers(1, 60))):
        now_ns += int(rng.integers(5_000, 200_000))
        kind = (KERNEL, KERNEL, COPY, FILL, MARKER)[rng.integers(5)]
        if kind == MARKER:
            records.append((kind, {"timestamp": now_ns, "threadId": 1}))
            known_ns = now_ns
            continue
        is_queued = kind == KERNEL and rng.random() < 0.8  # the others are of graphs
        start_ns = now_ns + int(rng.integers(3_000, 300_000))
        fields = {"start": start_ns, "end": start_ns + 10, "correlationId": first_call + number}
        records.append((kind, fields | ({"queued": now_ns} if is_queued else {})))
        earliest_ns = now_ns if is_queued else known_ns
        launches.append((first_call + number, earliest_ns, now_ns, start_ns))
        known_ns = now_ns if is_queued else known_ns
    return records, launches, now_ns


def test_each_launch_is_placed_behind_what_its_thread_did_before():
    checked = exact = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        threads = [random_thread(rng, 1 + 1_000 * thread) for thread in range(3)]
        reader, parts = needed(), []
        for place, (records, _, _) in enumerate(threads):
            cuts = np.sort(rng.integers(0, len(records) + 1, 3)).tolist()
            for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
                buffer = parsed(*records[begin:end])
                parts.append(reader.note(buffer, 70 + place))
        told = concat_records(parts)
        found = {}
        for kind in (KERNEL, COPY, FILL):
            table = told.columns.get(kind)
            if table is not None:
                rows = zip(table["correlationId"].tolist(), table["launched"].tolist(), table["threadId"].tolist(), strict=True)
                found |= {number: (launched, thread) for number, launched, thread in rows}
        for place, (_, launches, ended_ns) in enumerate(threads):
            for number, earliest_ns, now_ns, start_ns in launches:
                launched_ns, thread = found.pop(number)
                assert thread == 70 + place
                if earliest_ns == now_ns:
                    assert launched_ns == now_ns
                    exact += 1
                elif earliest_ns is not None:
                    assert launched_ns == earliest_ns + SLACK_NS <= now_ns
                else:  # the first of its thread: before what follows, or where that is not known, before it began
                    assert 0 < launched_ns <= max(start_ns, ended_ns)
                checked += 1
        assert not found
    assert checked > 3_000
    assert exact > 1_000


COPIED = (COPY, {"start": 5_000_000, "end": 5_000_001, "correlationId": 1})
BUFFERS = {
    "a later one of its thread came before": (
        [
            [(MARKER, {"timestamp": 9_000_000})],
            [(COPY, {"start": 2_000_000, "end": 2_000_001}), (MARKER, {"timestamp": 1_000_000})],
        ],
        [[1_000_000 - SLACK_NS]],
    ),
    "without times": (
        [[COPIED], [COPIED], [(MARKER, {"timestamp": 3_000_000})], [COPIED]],
        [[5_000_000], [5_000_000], [3_002_000]],
    ),
    "before the first range": ([[COPIED, (MARKER, {"timestamp": 7_500_000})]], [[5_000_000]]),
}


@pytest.mark.parametrize(("buffers", "launched"), BUFFERS.values(), ids=BUFFERS)
def test_a_buffer_takes_times_from_what_its_thread_did_before(buffers, launched):
    reader = needed()
    told = [reader.note(parsed(*records), 7) for records in buffers]
    assert [part.columns[COPY]["launched"].tolist() for part in told if COPY in part.columns] == launched


def test_a_copy_behind_an_own_kernel_is_not_own():
    clock = [10_000]
    stretches = OwnCalls(lambda: clock[0])
    with stretches.making():
        clock[0] = 14_000
    own = (KERNEL, {"queued": 12_000, "start": 13_000, "end": 14_000, "correlationId": 3})
    copy = (COPY, {"start": 900_000, "end": 900_001, "correlationId": 4})
    reader = needed(stretches)
    calls = reader.read(reader.note(parsed(own, copy), ME), Texts(), until_host_ns=10**9)
    assert calls.correlation.tolist() == [4]


def test_work_of_one_call_is_one_launch_and_own_ones_are_left_out():
    rows = [
        (KERNEL, {"queued": at, "start": at + 5_000, "end": at + 6_000, "correlationId": n})
        for at, n in ((10_000, 3), (9_000, 3), (20_000, 4), (30_000, 5), (90_000, 6))
    ]
    own = OwnCalls(lambda: 0)
    own.note(np.array([4]))
    reader, texts = needed(own), Texts()
    calls = reader.read(reader.note(parsed(*rows), 7), texts, until_host_ns=80_000)
    assert calls.correlation.tolist() == [3, 5]
    assert calls.start_host_ns.tolist() == calls.start_ns.tolist() == calls.end_ns.tolist() == [9_000, 30_000]
    assert set(calls.call_class.tolist()) == {CallClass.LAUNCH}
    assert {list(texts.names)[name] for name in calls.name.tolist()} == {"launch"}


# The source


@pytest.fixture
def hears(card):
    """Mark a range as a session does, so that CUPTI is known to hear it."""

    def mark_range():
        card.marker(MarkerFlag.START, 1, "capture", domain=DOMAIN_NAME, thread=threading.get_ident())
        card.marker(MarkerFlag.END, 1, domain=DOMAIN_NAME, thread=threading.get_ident())

    return mark_range


@pytest.fixture
def source(monkeypatch, card, hears):
    return make_source(monkeypatch, card, mark_range=hears)


def test_without_calls_nothing_is_on_that_makes_launches_dear_and_launches_are_known(source, card):
    source.start(with_calls=False)
    source.drain()
    assert card.library.kinds.isdisjoint({*CALL_KINDS, *CALL_RECORDS})
    card.advance(100_000)
    before_ns = card.now_ns
    card.kernel()
    card.call(SYNCHRONIZE)
    told = source.drain()
    assert len(told.work) == len(told.calls) == 1
    assert told.calls.correlation.tolist() == told.work.correlation.tolist()
    assert told.calls.thread.tolist() == [ME]
    assert abs(int(told.calls.start_host_ns[0]) - before_ns - 1_000) < 2_000
    assert told.calls.start_ns[0] < told.work.start_ns[0]
    assert told.told_until[ME] >= before_ns


def test_with_calls_launches_are_known_by_those_alone(source, card):
    source.start()
    source.drain()
    assert {*CALL_KINDS, *CALL_RECORDS} <= card.library.kinds
    card.advance(50_000)  # else it might be one of the session's own
    card.kernel()
    told = source.drain()
    assert [told.names[name] for name in told.calls.name.tolist()] == ["cuLaunchKernel"]


@pytest.mark.parametrize("lack", ["our ranges", "times of queueing", "buffers for each thread", "leave of torch"])
def test_calls_are_recorded_where_launches_would_not_be_known_without(monkeypatch, card, hears, lack):
    if lack == "times of queueing":
        card.library.lacking.add("cuptiActivityEnableLatencyTimestamps")
    elif lack == "buffers for each thread":
        card = FakeCard(FakeCuptiLibrary(28))
    source = make_source(monkeypatch, card, **({} if lack == "our ranges" else {"mark_range": hears}))
    if lack == "leave of torch":
        source.start()
        monkeypatch.setattr(_source, "is_torch_profiling", lambda: True)
    source.start(with_calls=False)
    assert card.library.kinds >= CALL_RECORDS


def test_calls_come_and_go_while_it_collects(source, card):
    source.start()
    names = []
    for with_calls in (True, False, True):
        source.start(with_calls=with_calls)
        assert (card.library.kinds >= CALL_RECORDS) is with_calls
        card.advance(100_000)  # else it might be one of the session's own
        card.kernel()
        told = source.drain()
        names += [told.names[name] for name in told.calls.name.tolist()]
        assert len(told.work) == 1
    assert names == ["cuLaunchKernel", "launch", "cuLaunchKernel"]
    assert not card.library.tells_queue_times


def test_after_a_stop_launches_of_graphs_are_looked_for_until_it_leaves(monkeypatch, source, card):
    monkeypatch.setitem(CALL_NAMES[CallbackDomain.DRIVER_API], 899, "cuCtxGetDevice")
    source.start(with_calls=False)
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
