"""Launches are found without records of calls: by when kernels were queued, and by what lies before them in their buffer."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._calls import SLACK_NS, LaunchReader, OwnCalls
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._constants import CallbackDomain, MarkerFlag, RecordKind
from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
from gpustreamlab.backends.cuda.cupti._records import concat_records, parse_buffer
from gpustreamlab.backends.cuda.cupti._source import CALL_KINDS, NEEDED_KINDS
from gpustreamlab.backends.cuda.cupti._work import Texts
from tests.helpers.cupti_buffers import build_buffer
from tests.helpers.fake_cupti import SYNCHRONIZE, FakeCard, FakeCuptiLibrary, make_source
from tests.helpers.recorded_buffers import CALL_NAMES

KERNEL, COPY, FILL, MARKER = RecordKind.CONCURRENT_KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.MARKER
CALL_RECORDS = {RecordKind.DRIVER, RecordKind.RUNTIME}


def needed():
    reader = LaunchReader()
    reader.take_over()
    return reader


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
    layouts = find_layouts(130001)
    checked = exact = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        threads = [random_thread(rng, 1 + 1_000 * thread) for thread in range(3)]
        reader, parts = needed(), []
        for place, (records, _, _) in enumerate(threads):
            cuts = np.sort(rng.integers(0, len(records) + 1, 3)).tolist()
            for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
                buffer = parse_buffer(build_buffer(records[begin:end]), layouts)
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


def test_a_buffer_that_comes_after_a_later_one_of_its_thread_takes_no_time_from_that():
    layouts = find_layouts(130001)
    reader = needed()
    later = build_buffer([(MARKER, {"timestamp": 9_000_000, "threadId": 1})])
    earlier = build_buffer([(COPY, {"start": 2_000_000, "end": 2_000_001}), (MARKER, {"timestamp": 1_000_000, "threadId": 1})])
    reader.note(parse_buffer(later, layouts), 7)
    told = reader.note(parse_buffer(earlier, layouts), 7)
    assert told.columns[COPY]["launched"].tolist() == [1_000_000 - SLACK_NS]


def test_a_buffer_without_times_leaves_those_of_its_thread_as_they_were():
    layouts = find_layouts(130001)
    reader = needed()
    copy = (COPY, {"start": 5_000_000, "end": 5_000_001})
    told = [reader.note(parse_buffer(build_buffer(records), layouts), 7) for records in ([copy], [copy])]
    told.append(reader.note(parse_buffer(build_buffer([(MARKER, {"timestamp": 3_000_000, "threadId": 7})]), layouts), 7))
    told.append(reader.note(parse_buffer(build_buffer([copy]), layouts), 7))
    launched = [part.columns[COPY]["launched"].tolist() for part in told if COPY in part.columns]
    assert launched == [[5_000_000], [5_000_000], [3_000_000 + SLACK_NS]]


def test_what_a_thread_did_before_its_first_range_is_not_of_that_range():
    fill = (FILL, {"start": 1_000_000, "end": 1_000_010})
    told = needed().note(parse_buffer(build_buffer([fill, (MARKER, {"timestamp": 2_500_000})]), find_layouts(130001)), 7)
    assert told.columns[FILL]["launched"].tolist() == [1_000_000]


def test_a_copy_behind_an_own_kernel_is_not_own():
    clock = [10_000]
    stretches = OwnCalls(lambda: clock[0])
    with stretches.making():
        clock[0] = 14_000
    thread = threading.get_ident() & 0xFFFF_FFFF
    own = (KERNEL, {"queued": 12_000, "start": 13_000, "end": 14_000, "correlationId": 3})
    copy = (COPY, {"start": 900_000, "end": 900_001, "correlationId": 4})
    records = needed().note(parse_buffer(build_buffer([own, copy]), find_layouts(130001)), thread)
    calls = needed().read(records, Texts(), stretches, WallClock(lambda: 0, lambda: 0), until_host_ns=10**9)
    assert calls.correlation.tolist() == [4]


def test_work_of_one_call_is_one_launch_and_own_ones_are_left_out():
    rows = [
        (KERNEL, {"queued": at, "start": at + 5_000, "end": at + 6_000, "correlationId": n})
        for at, n in ((10_000, 3), (9_000, 3), (20_000, 4), (30_000, 5), (90_000, 6))
    ]
    records = needed().note(parse_buffer(build_buffer(rows), find_layouts(130001)), 7)
    own = OwnCalls(lambda: 0)
    own.note(np.array([4]))
    texts = Texts()
    calls = needed().read(records, texts, own, WallClock(lambda: 0, lambda: 0), until_host_ns=80_000)
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
    assert told.calls.thread.tolist() == [threading.get_ident() & 0xFFFF_FFFF]
    assert abs(int(told.calls.start_host_ns[0]) - before_ns - 1_000) < 2_000
    assert told.calls.start_ns[0] < told.work.start_ns[0]
    assert told.told_until[threading.get_ident() & 0xFFFF_FFFF] >= before_ns


def test_with_calls_launches_are_known_by_those_alone(source, card):
    source.start()
    source.drain()
    assert {*CALL_KINDS, *CALL_RECORDS} <= card.library.kinds
    card.kernel()
    told = source.drain()
    assert [told.names[name] for name in told.calls.name.tolist()] == ["cuLaunchKernel"]


def test_calls_are_recorded_where_launches_would_not_be_known_without(monkeypatch, card, hears):
    unheard = make_source(monkeypatch, card)
    unheard.start(with_calls=False)
    assert card.library.kinds >= CALL_RECORDS
    unheard.close()
    card.library.lacking.add("cuptiActivityEnableLatencyTimestamps")
    unqueued = make_source(monkeypatch, card, mark_range=hears)
    unqueued.start(with_calls=False)
    assert card.library.kinds >= CALL_RECORDS


def test_calls_are_recorded_where_threads_share_buffers(monkeypatch, hears):
    card = FakeCard(FakeCuptiLibrary(28))
    source = make_source(monkeypatch, card, mark_range=hears)
    source.start(with_calls=False)
    assert card.library.kinds >= CALL_RECORDS


def test_what_torch_profiler_records_too_stays_on(monkeypatch, source, card):
    source.start()
    monkeypatch.setattr(_cupti_source, "is_torch_profiling", lambda: True)
    source.start(with_calls=False)
    assert card.library.kinds >= CALL_RECORDS


def test_it_stays_where_a_graph_of_peer_copies_was_launched(source, card):
    source.start(with_calls=False)
    card.library.emit(RecordKind.MEMCPY2, start=5, end=6, graphId=3, correlationId=9)
    source.stop()
    source.drain(is_last=True)
    assert card.library.finalized_count == 0


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
