"""What stands around the work: ranges of others, waits, memory, streams and their SMs."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gpustreamlab.backends import EVERY_STREAM, THE_HOST
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._layouts import MarkerFlag, RecordKind, StreamFlag
from gpustreamlab.backends.cuda.cupti._memory import USED, PoolSample
from gpustreamlab.errors import DeviceError
from tests.helpers.captured import drain_all
from tests.helpers.fake_cupti import (
    FakeCard,
    FakeCuptiLibrary,
    FakePoolWatch,
    install_driver_bindings,
    make_source,
)


def test_nvtx_ranges_are_paired_over_drains_and_threads(card, source):
    source.start()
    drain_all(source, card)
    card.marker(MarkerFlag.START, 1, "outer", thread=0x1_0000_0005)
    first = source.drain()
    begun_ns = card.now_ns
    card.marker(MarkerFlag.START, 2, "inner", domain="", thread=6)
    card.marker(MarkerFlag.END, 2, domain="")
    card.marker(MarkerFlag.END, 99)  # began before anybody looked
    card.marker(MarkerFlag.INSTANTANEOUS, 3)
    for flag in (MarkerFlag.START, MarkerFlag.END):  # our own ranges are no annotations
        card.marker(flag, 4, "mine", domain="gpustreamlab")
    card.marker(MarkerFlag.END, 1, thread=6)
    (second,) = drain_all(source, card, 1)

    assert len(first.annotations) == 0
    assert [second.names[name] for name in second.annotations.name.tolist()] == ["inner", "cudf: outer"]
    assert second.annotations.thread.tolist() == [6, 5]
    inner, outer = (second.annotations.end_ns - second.annotations.start_ns).tolist()
    assert abs(inner - 1_000) <= 2
    assert outer > inner
    started_ns = second.annotations.start_host_ns.tolist()
    assert abs(started_ns[0] - begun_ns) < 3_000
    assert started_ns[1] < started_ns[0]


def test_waits_find_records_of_this_drain_and_of_earlier_ones(card, source):
    source.start()
    emit = card.library.emit
    emit(RecordKind.CUDA_EVENT, eventId=5, correlationId=10, contextId=1, streamId=13)
    emit(RecordKind.CUDA_EVENT, eventId=5, correlationId=20, contextId=1, streamId=14)
    emit(RecordKind.CUDA_EVENT, eventId=200, correlationId=11, contextId=2, streamId=18)
    wait = {"type": 2, "contextId": 1, "streamId": 19}
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=5, correlationId=15, **wait)
    (first,) = drain_all(source, card, 1)
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=5, correlationId=30, **wait)
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=200, correlationId=31, **wait)
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=7, correlationId=32, **wait)  # never recorded
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=5, correlationId=5, **wait)  # before it was
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=0xFFFF_FFFF, correlationId=33, **wait)
    (second,) = drain_all(source, card, 1)

    assert first.dependencies.record.tolist() == [10]
    assert (first.dependencies.source_stream.tolist(), first.dependencies.target_stream.tolist()) == ([13], [19])
    assert first.dependencies.wait.tolist() == [15]
    assert second.dependencies.record.tolist() == [20, 11]
    assert second.dependencies.source_context.tolist() == [1, 2]
    assert second.dependencies.wait.tolist() == [30, 31]


def test_calls_that_block_the_host_say_which_stream_or_event_they_waited_for(card, source):
    _cupti_source.SHARING.claim(2, 23, source)
    source.start()
    emit = card.library.emit
    emit(RecordKind.CUDA_EVENT, eventId=5, correlationId=10, contextId=1, streamId=13)
    none = {"contextId": 1, "streamId": 0xFFFF_FFFF, "cudaEventId": 0xFFFF_FFFF}
    emit(RecordKind.SYNCHRONIZATION, type=1, correlationId=20, **none | {"cudaEventId": 5})
    emit(RecordKind.SYNCHRONIZATION, type=1, correlationId=21, **none | {"cudaEventId": 9})  # never recorded
    emit(RecordKind.SYNCHRONIZATION, type=3, correlationId=22, **none | {"streamId": 23})
    emit(RecordKind.SYNCHRONIZATION, type=4, correlationId=23, **none)
    (batch,) = drain_all(source, card, 1)

    waits = batch.dependencies
    assert waits.target_stream.tolist() == waits.target_context.tolist() == [THE_HOST] * 3
    assert waits.wait.tolist() == [20, 22, 23]
    assert waits.record.tolist() == [10, 22, 23]
    assert waits.source_stream.tolist() == [13, 23, EVERY_STREAM]
    assert waits.source_context.tolist()[:2] == [1, 2]


def test_waits_get_the_context_of_their_stream_where_the_primary_one_or_that_of_the_current_device_is_told(card, source):
    _cupti_source.SHARING.claim(2, 23, source)
    source.start()
    emit = card.library.emit
    emit(RecordKind.CUDA_EVENT, eventId=5, correlationId=10, contextId=2, streamId=22)
    emit(RecordKind.CUDA_EVENT, eventId=6, correlationId=11, contextId=1, streamId=30)
    card.kernel(stream=25, contextId=4)
    for event, number, stream in ((6, 15, 22), (5, 16, 30), (5, 17, 19), (6, 18, 23), (6, 19, 25)):
        emit(RecordKind.SYNCHRONIZATION, cudaEventId=event, correlationId=number, type=2, contextId=1, streamId=stream)
    (batch,) = drain_all(source, card, 1)

    told = zip(batch.dependencies.wait.tolist(), batch.dependencies.target_context.tolist(), strict=True)
    assert sorted(told) == [(15, 2), (16, 1), (17, 1), (18, 2), (19, 4)]


def test_memory_of_the_pool_and_in_stream_order(monkeypatch, card):
    watch = FakePoolWatch()
    source = make_source(monkeypatch, card, watch=watch)
    source.start()
    assert watch.is_on
    drain_all(source, card)
    watch.samples.append(PoolSample(card.now_ns, (1, 14), USED, 512))
    for operation, address, size, device in [(1, 8, 100, 0), (1, 16, 50, 0), (2, 8, 100, 0), (1, 24, 9, 1), (1, 16, 70, 0)]:
        card.advance(1_000)
        card.library.emit(
            RecordKind.MEMORY2,
            memoryOperationType=operation,
            isAsync=1,
            address=address,
            bytes=size,
            contextId=1,
            streamId=13,
            deviceId=device,
            timestamp=card.cupti_ns(card.now_ns),
        )
    (done,) = drain_all(source, card, 1)
    source.stop()

    assert [done.names[name] for name in done.memory.name.tolist()] == 4 * ["async_used_bytes"] + ["pool_used_bytes"]
    assert done.memory.value.tolist() == [100.0, 150.0, 50.0, 70.0, 512.0]
    assert done.memory.stream.tolist() == [13, 13, 13, 13, 14]
    assert [gone[:2] for gone in watch.gone] == [("pool_reserved_bytes", 8)]
    assert not watch.is_on
    assert (np.diff(done.memory.time_ns[:4]) > 0).all()


def test_streams_that_no_session_made_are_described(card, source):
    source.start()
    emit = card.library.emit
    emit(RecordKind.CONTEXT, contextId=1, nullStreamId=7, numMultiprocessors=5)
    emit(RecordKind.CONTEXT, contextId=3, nullStreamId=17, isGreenContext=1, numMultiprocessors=64)
    emit(RecordKind.STREAM, contextId=1, streamId=30, flag=StreamFlag.NON_BLOCKING, priority=(-2) & 0xFFFF_FFFF)
    emit(RecordKind.STREAM, contextId=1, streamId=31, flag=StreamFlag.DEFAULT)
    emit(RecordKind.MEMSET, start=card.cupti_ns(5), end=card.cupti_ns(9), contextId=1, streamId=30, deviceId=0)
    card.kernel("void at::native::fill<4>(int)", stream=30)
    card.kernel("format::at_least(int)", stream=31)
    drain_all(source, card)
    card.kernel("cupy_add__float32", stream=31)
    drain_all(source, card)

    assert source.describe_stream(1, 7).name == "default stream"
    assert source.describe_stream(3, 17) == ("default stream", 64, 0, 0, True, None)
    assert source.describe_stream(1, 30) == ("torch stream 30", 132, 0, -2, False, 0)
    assert source.describe_stream(1, 31) == ("CuPy stream 31", 132, 0, 0, True, 0)
    assert source.describe_stream(1, 99) == ("stream 99", 132, 0, 0, None, 0)


def test_green_contexts_of_newer_versions_tell_their_sms(monkeypatch):
    card = FakeCard(FakeCuptiLibrary(130202))
    source = make_source(monkeypatch, card)
    source.start()
    card.library.emit(RecordKind.GREEN_CONTEXT, contextId=2, numMultiprocessors=32)
    drain_all(source, card)

    assert source.describe_stream(2, 18).sm_count == 32


def test_sms_of_a_context_of_which_cupti_tells_nothing_are_known_by_a_sessions_stream(monkeypatch, card, source):
    # GIVEN a green context that an earlier session made
    assert source.describe_stream(1, 30).sm_count == 132

    # WHEN a session has a stream there
    assert source.key_of(types.SimpleNamespace(handle=0x7000, sm_count=64)) == (1, 14)

    # THEN every session knows what others enqueue there had
    assert source.describe_stream(1, 30).sm_count == 64
    assert make_source(monkeypatch, card).describe_stream(1, 31).sm_count == 64
    assert source.describe_stream(2, 30).sm_count == 132


def test_a_stream_that_the_driver_does_not_know_is_an_error(monkeypatch, source):
    install_driver_bindings(monkeypatch, contexts={})

    with pytest.raises(DeviceError, match="cuStreamGetCtx"):
        source.key_of(types.SimpleNamespace(handle=0x7000))
