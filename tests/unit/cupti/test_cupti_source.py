"""What a session is told of a card's work and of the host's calls, with a fake libcupti."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda.cupti import _buffers
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._layouts import OverheadKind, RecordKind
from gpustreamlab.backends.cuda.cupti._source import NEEDED_KINDS
from gpustreamlab.errors import CaptureUnavailableError, DeviceError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.captured import calls_of, drain_all, kernels_of
from tests.helpers.fake_cupti import (
    GET_VERSION,
    INSUFFICIENT_PRIVILEGES,
    INVALID_KIND,
    MALLOC,
    SYNCHRONIZE,
    FakeCard,
    FakeCuptiLibrary,
    make_source,
)

THREAD = threading.get_ident() & 0xFFFF_FFFF


# Collecting


def test_a_kernel_is_told_on_the_sessions_clock(card, source):
    source.start()
    drain_all(source, card)

    began_ns = card.kernel(
        "_ZN3lab4spinILi4EEEvl", duration_ns=8_000, dynamicSharedMemory=64, registersPerThread=16, channelID=3, launchType=1
    )
    (done,) = drain_all(source, card, 1)

    assert len(done.work) == 1
    assert done.names[done.work.name[0]] == "spin<4>"
    detail = done.details[done.work.detail[0]]
    assert detail.full_name == "void lab::spin<4>(long)"
    assert (detail.grid, detail.block, detail.registers, detail.dynamic_shared_bytes) == ((4, 0, 0), (64, 0, 0), 16, 64)
    assert (detail.channel, detail.is_cooperative) == (3, True)
    assert abs(int(done.work.start_ns[0]) - began_ns) <= source.error_ns
    assert abs(int(done.work.end_ns[0]) - began_ns - 8_000) <= source.error_ns
    assert (int(done.work.context[0]), int(done.work.stream[0])) == (1, 13)
    assert SPAN_KINDS[done.work.kind[0]] is SpanKind.KERNEL
    assert source.description == "CUPTI 13.0"


def test_nodes_of_a_graph_are_numbered_over_all_kinds_by_their_ids(card, source):
    source.start()
    drain_all(source, card)
    first = 3 << 32
    for node in (5, 1):
        card.kernel(graphId=3, graphNodeId=first + node)
    times = {"start": card.cupti_ns(card.now_ns - 10), "end": card.cupti_ns(card.now_ns), "contextId": 1, "deviceId": 0}
    card.library.emit(RecordKind.MEMSET, graphId=3, graphNodeId=first + 2, correlationId=9, streamId=13, bytes=8, **times)
    card.kernel()
    told = drain_all(source, card, 4)
    nodes = {(detail.graph, detail.node) for one in told for detail in one.details}
    assert nodes == {(3, 2), (3, 0), (3, 1), (0, -1)}


def test_nodes_have_no_numbers_before_all_of_their_graph_are_known(card, source):
    card.library.cuptiGetGraphExecId = lambda handle, number: setattr(number._obj, "value", handle.value + 1) or 0
    assert source.find_graph(2, 2) == 3
    source.start()
    drain_all(source, card)
    card.kernel(graphId=3, graphNodeId=8)
    (told,) = drain_all(source, card, 1)
    assert [detail.node for detail in told.details] == [-1]
    card.kernel(graphId=3, graphNodeId=7)
    (told,) = drain_all(source, card, 1)
    assert [detail.node for detail in told.details] == [0]
    card.library.cuptiGetGraphExecId = lambda handle, number: 1
    assert source.find_graph(2, 2) == 0


def test_what_the_driver_did_besides_is_told_of_threads_that_make_calls(card, source):
    source.start()
    drain_all(source, card)
    card.advance(100_000)
    begin_ns = card.now_ns
    card.kernel()
    times = {"start": card.WALL_NS + begin_ns + 1_000, "end": card.WALL_NS + begin_ns + 3_000}
    for kind, thread in (
        (OverheadKind.LAZY_FUNCTION_LOADING, THREAD),
        (OverheadKind.COMMAND_BUFFER_FULL, THREAD),
        (OverheadKind.CUPTI_BUFFER_FLUSH, 4_711),  # CUPTI's own thread holds up nobody
    ):
        card.library.emit(RecordKind.OVERHEAD, overheadKind=kind, objectKind=2, threadId=thread, **times)
    (done,) = drain_all(source, card, 1)
    calls = zip(done.calls.name.tolist(), (done.calls.end_ns - done.calls.start_ns).tolist(), strict=True)
    told = {done.names[name]: lasted_ns for name, lasted_ns in calls}
    assert told["overhead: lazy function loading"] == told["overhead: command buffer full"] == 2_000
    assert len(told) == 3


def test_each_record_comes_once_over_many_starts_and_drains(card, source):
    parts, launched = [], 0
    for _ in range(4):
        source.start()
        source.start()  # again: nothing happens
        for _ in range(3):
            for _ in range(5):
                card.kernel()
                launched += 1
            parts += drain_all(source, card, 2)
        source.stop()
        source.stop()
        card.kernel()  # nobody looks
        parts += [source.drain(is_last=True), source.drain(is_last=True), source.drain()]

    assert len(kernels_of(parts)) == launched
    numbers = np.concatenate([part.work.correlation for part in parts])
    assert len(set(numbers.tolist())) == launched
    assert source.dropped_count == 0


def test_what_was_collected_before_a_second_start_is_kept_and_the_last_drain_takes_what_is_held_back(card, source):
    source.start()
    card.kernel("first")
    source.stop()
    source.start()
    card.kernel("second")
    card.kernel("late", is_late=True)
    early = drain_all(source, card)
    source.stop()

    assert [name for name, *_ in kernels_of(early)] == ["first", "second"]
    assert [name for name, *_ in kernels_of([source.drain(is_last=True)])] == ["late"]


def test_nothing_is_on_after_a_stop(card, source):
    source.start()
    assert set(NEEDED_KINDS) <= card.library.kinds
    assert card.library.followed

    source.stop()
    assert card.library.kinds == set()

    source.drain(is_last=True)
    assert (card.library.followed, card.library.subscriber) == (set(), None)
    source.close()
    source.close()
    assert len(source.drain().work) == 0


def test_a_failing_start_leaves_nothing_on(monkeypatch, card):
    card.library.refused[RecordKind.MEMSET] = INSUFFICIENT_PRIVILEGES
    source = make_source(monkeypatch, card)

    with pytest.raises(CaptureUnavailableError, match="INSUFFICIENT_PRIVILEGES.*ERR_NVGPUCTRPERM"):
        source.start()

    assert card.library.kinds == set()
    source.stop()  # it is not on
    assert len(source.drain().work) == 0


def test_what_a_version_lacks_is_left_out(monkeypatch):
    card = FakeCard(FakeCuptiLibrary(18, lacking={"cuptiActivityEnableAndDump"}, refused={RecordKind.MARKER: INVALID_KIND}))
    source = make_source(monkeypatch, card)
    source.start()
    card.kernel()
    assert {RecordKind.GREEN_CONTEXT, RecordKind.MARKER}.isdisjoint(card.library.kinds)
    assert len(kernels_of(drain_all(source, card))) == 1
    assert source.description == "CUPTI 12 (API 18)"

    # Without a choice of calls all are recorded, and the others left out here.
    card = FakeCard(FakeCuptiLibrary(lacking={"cuptiActivityEnableDriverApi", "cuptiActivityEnableRuntimeApi"}))
    card.library.refused["cuptiSubscribe"] = INVALID_KIND
    source = make_source(monkeypatch, card)
    source.start()
    card.call(GET_VERSION)
    card.call(SYNCHRONIZE)
    assert calls_of(drain_all(source, card)) == ["cuStreamSynchronize"]


def test_records_are_left_unread_for_a_while_unless_there_are_many(monkeypatch, card):
    kept = []
    source = make_source(monkeypatch, card, keep_time=lambda: kept.append(card.now_ns))
    source.start()
    source.drain()
    assert not source.keep_up()
    card.advance(_cupti_source.DRAIN_EVERY_NS)
    assert source.keep_up()
    source.drain()
    assert not source.keep_up()
    monkeypatch.setattr(_buffers, "DRAIN_BYTES", 0)
    assert source.keep_up()
    assert len(kept) == 4
    assert not source.lost_reason


def test_the_sessions_clock_may_fail_to_be_kept_and_a_long_time_without_draining_is_no_loss(monkeypatch, card):
    def fail():
        raise DeviceError("no luck")

    source = make_source(monkeypatch, card, keep_time=fail)
    source.start()
    for _ in range(50):
        card.advance(200_000_000)
        source.keep_up()
    card.kernel()
    assert len(source.drain().work) == 1
    assert not source.lost_reason


# The host's calls


def test_calls_are_classified_and_named(card, source):
    source.start()
    drain_all(source, card)

    card.advance(50_000)
    card.call(SYNCHRONIZE, duration_ns=30_000)
    number = card.call(MALLOC)
    card.library.emit(RecordKind.MEMORY2, correlationId=number, bytes=4096, memoryOperationType=1, timestamp=card.cupti_ns(9))
    began_ns = card.now_ns
    launched = card.call(thread=0x1_2345_6789)
    (done,) = drain_all(source, card, 1)

    order = np.argsort(done.calls.start_ns)
    assert [done.names[name] for name in done.calls.name[order].tolist()] == [
        "cuStreamSynchronize",
        "cuMemAlloc",
        "cuLaunchKernel",
    ]
    assert done.calls.call_class[order].tolist() == [CallClass.SYNCHRONIZE, CallClass.MEMORY, CallClass.LAUNCH]
    assert done.calls.size_bytes[order].tolist() == [0, 4096, 0]
    assert done.calls.thread[order].tolist() == [THREAD, THREAD, 0x2345_6789]
    assert done.calls.correlation[order][2] == launched
    assert abs(int(done.calls.start_host_ns[order][2]) - began_ns) < 1_000
    assert int((done.calls.end_ns - done.calls.start_ns)[order][0]) == 30_000


def test_calls_of_the_clock_itself_are_left_out_whenever_they_come(card, source):
    source.start()
    drain_all(source, card, 10)

    card.is_slow = True  # the anchors' calls come now, their kernels with the last drain
    parts = drain_all(source, card, 20)
    source.stop()
    parts.append(source.drain(is_last=True))

    assert calls_of(parts) == []
    assert kernels_of(parts) == []


def copy_between(card, down_ns, up_ns, *, number, size_bytes=256 << 20):
    """Tell the last part of a copy from device 0 to device 1, as CUPTI does where neither reads the other's memory."""
    ways = ((2, 0, 1, 13, down_ns), (1, 1, 2, 18, up_ns))
    for kind, device, context, stream, (begin_ns, end_ns) in ways:
        card.library.emit(
            RecordKind.MEMCPY,
            copyKind=kind,
            srcKind=3,
            dstKind=3,
            bytes=size_bytes,
            start=card.cupti_ns(begin_ns),
            end=card.cupti_ns(end_ns),
            deviceId=device,
            contextId=context,
            streamId=stream,
            correlationId=number,
        )


def test_a_copy_through_the_host_is_one_from_its_first_way_to_the_end_of_its_second(card, source):
    source.start()
    drain_all(source, card)
    at_ns = card.now_ns
    copy_between(card, (at_ns, at_ns + 21_000), (at_ns + 28_000, at_ns + 49_000), number=77)
    card.advance(100_000)
    told = drain_all(source, card, 2)
    assert [(name, stream, round((length) / 1_000)) for name, stream, length in kernels_of(told)] == [
        ("memcpy PtoP (through the host)", 13, 49)
    ]
    assert [one.full_name for part in told for one in part.details] == ["memcpy GPU 0 to GPU 1, through the host"]


def test_copies_down_and_up_of_different_calls_or_of_one_card_stay_two(card, source):
    source.start()
    drain_all(source, card)
    at_ns = card.now_ns
    copy_between(card, (at_ns, at_ns + 1_000), (at_ns, at_ns + 1_000), number=0)
    card.advance(100_000)
    assert [name for name, _, _ in kernels_of(drain_all(source, card, 2))] == ["memcpy DtoH"]


def test_a_copy_that_another_card_runs_is_told_where_it_goes_to_and_its_stream_is_not_of_this_session(card, source):
    source.start()
    drain_all(source, card)
    times = {"start": card.cupti_ns(card.now_ns), "end": card.cupti_ns(card.now_ns + 5_000)}
    where = {"deviceId": 1, "contextId": 2, "streamId": 10, "srcDeviceId": 1, "dstDeviceId": 0}
    card.library.emit(RecordKind.MEMCPY2, copyKind=10, srcKind=3, dstKind=3, bytes=8, correlationId=5, **times, **where)
    card.library.emit(RecordKind.MEMCPY2, copyKind=10, bytes=8, correlationId=6, **times, **(where | {"dstDeviceId": 2}))
    card.advance(100_000)
    told = drain_all(source, card, 2)
    assert [(name, stream) for name, stream, _ in kernels_of(told)] == [("memcpy PtoP", 10)]
    assert [one.full_name for part in told for one in part.details] == ["memcpy GPU 1 to GPU 0"]
    assert source.are_foreign(np.array([2, 1]), np.array([10, 13])).tolist() == [True, False]
