"""What a session is told of a card's work, with a fake libcupti."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import types

import numpy as np
import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda import _cupti, _cupti_clients, _cupti_source, _cupti_streams
from gpustreamlab.backends.cuda._cupti_buffers import ActivityBuffers
from gpustreamlab.backends.cuda._cupti_constants import MarkerFlag, RecordKind
from gpustreamlab.backends.cuda._cupti_loss import LOST_AFTER_NS, LOST_UNSEEN_NS
from gpustreamlab.backends.cuda._cupti_source import NEEDED_KINDS, WISHED_KINDS
from gpustreamlab.backends.cuda._pool_watch import USED, PoolSample
from gpustreamlab.errors import CaptureUnavailableError, DeviceError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.cupti_buffers import build_buffer
from tests.helpers.fake_cupti import (
    CLOCK,
    GET_DEVICE,
    INSUFFICIENT_PRIVILEGES,
    INVALID_KIND,
    MALLOC,
    SYNCHRONIZE,
    FakeCard,
    FakeCuptiLibrary,
    FakePoolWatch,
    add_source,
    make_source,
)
from tests.helpers.recorded_buffers import MIXED, read_buffers

THREAD = threading.get_ident() & 0xFFFF_FFFF
SET_CLOCK = "cuptiActivityRegisterTimestampCallback"
CALL_RECORDS = {RecordKind.DRIVER, RecordKind.RUNTIME}


@pytest.fixture(autouse=True)
def no_other_client(monkeypatch):
    for name in _cupti_clients._NSYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "cupti", raising=False)


@pytest.fixture(autouse=True)
def no_known_contexts(monkeypatch):
    monkeypatch.setattr(_cupti_streams, "_sms", {})


@pytest.fixture
def card():
    return FakeCard(FakeCuptiLibrary(), drift_ppm=3.0)


@pytest.fixture
def source(monkeypatch, card):
    return make_source(monkeypatch, card)


def install_torch(monkeypatch, *, is_profiling):
    torch = types.ModuleType("torch")
    torch.autograd = types.SimpleNamespace(_profiler_enabled=lambda: torch.is_profiling)
    torch.is_profiling = is_profiling
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def drain_all(source, card, count=3):
    """Drain a few times as the session's thread does, 0.2 s apart."""
    parts = []
    for _ in range(count):
        card.advance(200_000_000)
        parts.append(source.drain())
    return parts


def kernels_of(parts):
    return [
        (part.names[name], stream, end - start)
        for part in parts
        for name, stream, start, end in zip(
            part.work.name.tolist(),
            part.work.stream.tolist(),
            part.work.start_ns.tolist(),
            part.work.end_ns.tolist(),
            strict=True,
        )
    ]


def calls_of(parts):
    return [part.names[name] for part in parts for name in part.calls.name.tolist()]


# Collecting


def test_a_kernel_is_told_on_the_sessions_clock(card, source):
    source.start()
    drain_all(source, card)

    began_ns = card.kernel("_ZN3lab4spinILi4EEEvl", duration_ns=8_000, dynamicSharedMemory=64, registersPerThread=16)
    (done,) = drain_all(source, card, 1)

    assert len(done.work) == 1
    assert done.names[done.work.name[0]] == "spin<4>"
    detail = done.details[done.work.detail[0]]
    assert detail.full_name == "void lab::spin<4>(long)"
    assert (detail.grid, detail.block, detail.registers, detail.dynamic_shared_bytes) == ((4, 0, 0), (64, 0, 0), 16, 64)
    assert abs(int(done.work.start_ns[0]) - began_ns) <= source.error_ns
    assert abs(int(done.work.end_ns[0]) - began_ns - 8_000) <= source.error_ns
    assert (int(done.work.context[0]), int(done.work.stream[0])) == (1, 13)
    assert SPAN_KINDS[done.work.kind[0]] is SpanKind.KERNEL
    assert source.description == "CUPTI 13.0"


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


def test_what_was_collected_before_a_second_start_is_kept(card, source):
    source.start()
    card.kernel("first")
    source.stop()
    source.start()
    card.kernel("second")

    names = [name for name, *_ in kernels_of(drain_all(source, card))]

    assert names == ["first", "second"]


def test_the_last_drain_takes_what_is_held_back(card, source):
    source.start()
    card.kernel(is_late=True)

    early = drain_all(source, card)
    source.stop()
    last = source.drain(is_last=True)

    assert kernels_of(early) == []
    assert len(last.work) == 1


def test_nothing_is_on_after_a_stop(card, source):
    source.start()
    assert set(NEEDED_KINDS) | CALL_RECORDS <= card.library.kinds
    assert (2, 17) in card.library.left_out

    source.stop()

    assert card.library.kinds == set()
    assert card.library.left_out == set()  # who records calls next finds all of them
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


def test_kinds_that_a_version_lacks_are_left_out(monkeypatch):
    card = FakeCard(FakeCuptiLibrary(18, lacking={"cuptiActivityEnableAndDump"}, refused={RecordKind.MARKER: INVALID_KIND}))
    source = make_source(monkeypatch, card)

    source.start()
    card.kernel()

    assert {RecordKind.GREEN_CONTEXT, RecordKind.MARKER}.isdisjoint(card.library.kinds)
    assert len(kernels_of(drain_all(source, card))) == 1
    assert source.description == "CUPTI 12 (API 18)"


def test_without_a_choice_of_calls_all_are_recorded_and_the_others_left_out_here(monkeypatch):
    lacking = {"cuptiActivityEnableDriverApi", "cuptiActivityEnableRuntimeApi"}
    card = FakeCard(FakeCuptiLibrary(lacking=lacking))
    source = make_source(monkeypatch, card)
    source.start()

    card.call(GET_DEVICE)
    card.call(SYNCHRONIZE)

    assert calls_of(drain_all(source, card)) == ["cudaStreamSynchronize"]


def test_the_costs_of_events_are_measured_at_each_change(monkeypatch, card):
    changes = []
    source = make_source(monkeypatch, card, on_change=lambda: changes.append(source._is_on))

    source.start()
    source.stop()

    assert changes == [True, False]


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
    monkeypatch.setattr(_cupti_source, "DRAIN_BYTES", 0)
    assert source.keep_up()
    assert len(kept) == 4
    assert not source.lost_reason


def test_a_long_time_without_draining_is_no_loss(monkeypatch, card):
    source = make_source(monkeypatch, card)
    source.start()
    for _ in range(50):
        card.advance(200_000_000)
        source.keep_up()
    card.kernel()
    assert len(source.drain().work) == 1
    assert not source.lost_reason


def test_the_sessions_clock_may_fail_to_be_kept(monkeypatch, card):
    def fail():
        raise DeviceError("no luck")

    source = make_source(monkeypatch, card, keep_time=fail)
    source.start()
    assert source.keep_up() in {True, False}
    assert not source.lost_reason


def test_a_failing_calibration_stops_nothing(monkeypatch, card):
    def fail():
        raise DeviceError("no luck")

    source = make_source(monkeypatch, card, on_change=fail)

    source.start()
    card.kernel()
    source.stop()

    assert len(source.drain(is_last=True).work) == 1


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
        "cudaStreamSynchronize",
        "cudaMalloc",
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


def test_calls_of_a_calibration_are_left_out(monkeypatch, card):
    def calibrate():
        card.call(MALLOC)
        card.call(SYNCHRONIZE)

    source = make_source(monkeypatch, card, on_change=calibrate)
    source.start()
    card.advance(50_000)
    card.call(SYNCHRONIZE)
    card.advance(50_000)
    with source.own_calls():
        card.call(MALLOC)

    assert calls_of(drain_all(source, card)) == ["cudaStreamSynchronize"]


def test_a_call_of_another_thread_at_the_same_time_is_kept(monkeypatch, card):
    source = make_source(monkeypatch, card, on_change=lambda: card.call(SYNCHRONIZE, thread=5))

    source.start()

    assert calls_of(drain_all(source, card)) == ["cudaStreamSynchronize"]


# Records that are not as they should be


def test_incomplete_kernels_are_counted_as_dropped(card, source):
    source.start()
    card.kernel(start=0)
    card.kernel(end=5)
    card.kernel("fine")
    card.kernel(start=0, deviceId=1)

    assert [name for name, *_ in kernels_of(drain_all(source, card))] == ["fine"]
    assert source.dropped_count == 2


def test_work_of_other_devices_is_left_out(monkeypatch, card):
    source = make_source(monkeypatch, card)
    source.start()

    card.kernel("ours")
    card.kernel("theirs", deviceId=1)

    assert [name for name, *_ in kernels_of(drain_all(source, card))] == ["ours"]
    assert source.dropped_count == 0


def test_records_that_cupti_drops_are_counted_also_at_the_end(card, source):
    source.start()
    card.library.dropped_count = 3
    drain_all(source, card)
    source.stop()
    card.library.dropped_count = 4
    source.drain(is_last=True)

    assert source.dropped_count == 7


def test_bytes_that_make_no_sense_are_counted_and_logged(card, source, caplog):
    source.start()
    card.library.emit_raw(np.full(64, 200, np.uint8))
    card.advance(200_000_000)
    done = source.drain()

    assert len(done.work) == 0
    assert source.dropped_count == 1
    assert "bytes that cannot be read: {3368601800: 1}" in caplog.text


def test_more_records_than_buffers_are_dropped_and_counted(monkeypatch, card):
    source = make_source(monkeypatch, card)
    monkeypatch.setattr(_cupti_source, "_buffers", [ActivityBuffers(buffer_bytes=4096, buffer_limit=2)])
    source.start()
    for _ in range(100):
        card.kernel()

    told = len(kernels_of(drain_all(source, card)))

    assert 0 < told < 100
    # Calls and kernels are dropped alike; the anchor's two records may be among them.
    assert source.dropped_count >= 100 - told


def test_a_foreign_buffer_in_our_callback_is_not_touched(card, source):
    source.start()
    card.library.complete_foreign()
    card.kernel()

    assert len(kernels_of(drain_all(source, card))) == 1
    assert source.dropped_count == 0


def test_work_before_the_first_anchor_is_held_until_it_can_be_placed(card, source):
    card.is_slow = True
    source.start()
    card.is_slow = False
    began_ns = card.kernel()
    card.is_stuck = True

    early = source.drain()
    card.is_stuck = False
    (done,) = drain_all(source, card, 1)

    assert len(early.work) == 0
    assert abs(int(done.work.start_ns[0]) - began_ns) <= source.error_ns


def test_work_that_can_never_be_placed_is_dropped(card, source):
    card.is_stuck = True
    source.start()
    card.kernel()
    source.stop()

    assert len(source.drain(is_last=True).work) == 0
    assert source.dropped_count > 0


@pytest.mark.parametrize("version", MIXED)
def test_recorded_buffers_become_work_and_calls(monkeypatch, version):
    card = FakeCard(FakeCuptiLibrary(version))
    source = make_source(monkeypatch, card)
    source.start()
    for data in read_buffers("mixed", version):
        card.library.emit_raw(data)
    card.advance(8_000_000_000)  # by then all of them are past

    # The names' addresses are those of another process: they cannot be read, or are anything.
    done = source.drain()

    kinds = [SPAN_KINDS[kind] for kind in done.work.kind.tolist()]
    assert kinds.count(SpanKind.KERNEL) == 21
    assert sorted(done.work.size_bytes[[kind is SpanKind.COPY for kind in kinds]].tolist()) == [4 << 20] * 2
    assert sorted(done.work.size_bytes[[kind is SpanKind.FILL for kind in kinds]].tolist()) == [8, 1024, 1024, 1024]
    assert sum(done.details[code].graph == 2 for code in done.work.detail.tolist()) == 4
    assert "memcpy HtoD (pageable)" in done.names
    # Every launch that ran something is among the calls; the three waits of the second stream are dependencies.
    assert set(done.work.correlation.tolist()) <= set(done.calls.correlation.tolist())
    assert done.dependencies.source_stream.tolist() == [13] * 3
    assert done.dependencies.target_stream.tolist() == [14] * 3
    assert len(done.annotations) == 6
    assert (done.calls.size_bytes == 1 << 20).sum() == 2


@pytest.mark.parametrize("bad_ns", [1, 2**62, 2**63 - 1])
def test_a_time_that_cannot_be_spoils_nothing(card, source, bad_ns):
    source.start()
    drain_all(source, card)
    error_ns = source.error_ns
    card.advance(50_000)
    emit, text, now_ns = card.library.emit, card.library.text, card.cupti_ns(card.now_ns)
    memory = {"isAsync": 1, "bytes": 8, "contextId": 1, "streamId": 13, "deviceId": 0}
    kernel = {"contextId": 1, "deviceId": 0}
    emit(RecordKind.MARKER, flags=MarkerFlag.START, id=1, timestamp=bad_ns, threadId=7, name=text("x"), domain=text("cudf"))
    emit(RecordKind.MARKER, flags=MarkerFlag.END, id=1, timestamp=now_ns, threadId=7)
    emit(RecordKind.MEMORY2, memoryOperationType=1, address=8, timestamp=bad_ns, **memory)
    emit(RecordKind.CONCURRENT_KERNEL, start=now_ns, end=bad_ns, streamId=13, name=text("bad"), **kernel)
    emit(RecordKind.CONCURRENT_KERNEL, start=bad_ns, end=bad_ns, streamId=12, dynamicSharedMemory=9, **kernel)  # an anchor
    emit(RecordKind.RUNTIME, start=bad_ns, end=bad_ns, cbid=SYNCHRONIZE[1], threadId=5, correlationId=9)
    card.kernel("fine")
    parts = drain_all(source, card)

    assert [name for name, *_ in kernels_of(parts)] == ["fine"]
    assert calls_of(parts) == ["cuLaunchKernel"]
    assert sum(len(part.annotations) + len(part.memory) for part in parts) == 0
    assert source.error_ns <= error_ns + 100
    assert source.dropped_count == 5


def test_a_marker_or_allocation_without_a_time_is_dropped(card, source):
    source.start()
    drain_all(source, card)
    card.library.emit(RecordKind.MARKER, flags=MarkerFlag.START, id=1, timestamp=0, threadId=7)
    card.library.emit(RecordKind.MEMORY2, timestamp=0, memoryOperationType=1, isAsync=1, address=8, bytes=5, deviceId=0)
    parts = drain_all(source, card)

    assert sum(len(part.memory) for part in parts) == 0
    assert source.error_ns < 20_000
    assert source.dropped_count == 2


def test_records_that_wait_for_the_first_anchor_are_bounded(monkeypatch, card, source):
    monkeypatch.setattr(_cupti_source, "HELD_RECORDS", 100)
    card.is_stuck = True
    source.start()
    held = []
    for _ in range(20):
        for _ in range(10):
            card.kernel()
        drain_all(source, card, 1)
        held.append(sum(records.record_count for records in source._held))
    card.is_stuck = False
    parts = drain_all(source, card, 2)
    source.stop()
    parts.append(source.drain(is_last=True))

    assert max(held) <= 100
    told = sum(len(part.work) for part in parts)
    assert 0 < told < 200
    assert source.dropped_count >= 200 - told


@pytest.mark.parametrize("step_ns", [1_000_000_000, -1_000_000_000, 60_000])
def test_a_call_is_placed_by_the_wall_clock_of_its_own_time(card, source, caplog, step_ns):
    source.start()
    drain_all(source, card)
    keep_for(source, card, 1e9)
    card.advance(1e9)
    source.keep_up()
    if step_ns > 0:
        card.advance(50_000)
        before_ns = card.now_ns
        card.call(MALLOC)
    card.wall_step_ns = step_ns
    card.advance(100_000_000)
    after_ns = card.now_ns
    card.call(SYNCHRONIZE)
    parts = [*drain_all(source, card, 1), *keep_for(source, card, 10e9)]
    told = {
        part.names[name]: start
        for part in parts
        for name, start in zip(part.calls.name.tolist(), part.calls.start_host_ns.tolist(), strict=True)
    }

    assert abs(told["cudaStreamSynchronize"] - after_ns) < 5_000
    assert step_ns < 0 or abs(told["cudaMalloc"] - before_ns) < 5_000
    assert caplog.text.count("The wall clock was set by") == 1
    assert set(told) <= {"cudaStreamSynchronize", "cudaMalloc"}  # own calls are known all the same


def test_numbers_of_calls_go_on_beyond_32_bits(card, source):
    card.correlation = 2**32 - 30
    source.start()
    parts = []
    for _ in range(20):
        card.advance(50_000)
        card.kernel()
        parts += drain_all(source, card, 1)

    work = np.concatenate([part.work.correlation for part in parts])
    calls = np.concatenate([part.calls.correlation for part in parts])
    assert (np.diff(work) > 0).all()
    assert work.max() > 2**32
    assert set(work.tolist()) == set(calls.tolist())


def test_numbers_of_calls_that_begin_anew_do_not_come_twice(card, source):
    numbers = []
    for _ in range(3):
        card.correlation = 1_000
        source.start()
        card.advance(50_000)
        card.kernel()
        parts = drain_all(source, card)
        source.stop()
        parts.append(source.drain(is_last=True))
        numbers += [number for part in parts for number in part.work.correlation.tolist()]
        assert {n for part in parts for n in part.calls.correlation.tolist()} == {numbers[-1]}

    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)


def test_the_sessions_clock_is_kept_without_a_stretch_of_own_calls(card, source):
    source.start()
    before = len(source._own_calls._stretches)
    keep_for(source, card, 10e9)

    # The first anchors, and then one a second.
    assert len(source._own_calls._stretches) - before <= 20


# Others


def test_two_sessions_do_not_capture_at_once(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    source.start()
    card.kernel("first's")

    with pytest.raises(CaptureUnavailableError, match=r"Another session.*other\.capture\(\"ranges\"\)"):
        other.start()
    source.stop()
    mine = source.drain(is_last=True)
    other.start()
    card.kernel("second's")
    theirs = drain_all(other, card)

    assert [name for name, *_ in kernels_of([mine])] == ["first's"]
    assert [name for name, *_ in kernels_of(theirs)] == ["second's"]
    assert len(source.drain(is_last=True).work) == 0


def test_what_one_session_left_is_not_told_to_another(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    source.start()
    card.kernel("first's")
    drain_all(source, card, 1)
    card.kernel("never fetched")
    source.stop()
    other.start()
    card.kernel("second's")
    stolen = source.drain(is_last=True)

    names = [name for name, *_ in kernels_of(drain_all(other, card))]
    other.stop()

    assert "second's" in names
    assert len(stolen.work) == 0
    assert len(source.drain(is_last=True).work) == 0


def test_a_running_torch_profiler_is_not_disturbed(monkeypatch, card, source):
    install_torch(monkeypatch, is_profiling=True)

    with pytest.raises(CaptureUnavailableError, match=r"torch\.profiler is running; leave its `with` block"):
        source.start()

    assert "cuptiActivityEnable" not in card.library.history
    assert "cuptiActivityRegisterCallbacks" not in card.library.history


def test_another_subscriber_is_not_disturbed(monkeypatch, card, source):
    card.library.subscriber = "nsys"

    with pytest.raises(CaptureUnavailableError, match="another profiler has subscribed"):
        source.start()

    # torch keeps the place after its first use, and does not mind.
    install_torch(monkeypatch, is_profiling=False)
    source.start()
    source.stop()
    assert card.library.subscriber == "nsys"


def test_the_subscribers_place_is_given_back(card, source):
    source.start()

    assert card.library.subscriber is None
    assert {"cuptiSubscribe", "cuptiUnsubscribe"} <= set(card.library.history)


@pytest.mark.parametrize("name", ["NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"])
def test_an_injected_profiler_is_named(monkeypatch, source, name):
    monkeypatch.setenv(name, "1")

    with pytest.raises(CaptureUnavailableError, match=rf"{name} is set\); run without it"):
        source.start()


def test_cupti_python_is_named(monkeypatch, source):
    monkeypatch.setitem(sys.modules, "cupti", types.ModuleType("cupti"))

    with pytest.raises(CaptureUnavailableError, match="cupti-python is imported"):
        source.start()


def test_a_torch_without_the_question_is_no_profiler(monkeypatch, source):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    source.start()
    source.stop()

    assert source.lost_reason == ""


def test_torch_profiler_in_the_middle_takes_over_and_is_left_alone(monkeypatch, card, source):
    torch = install_torch(monkeypatch, is_profiling=False)
    source.start()
    card.kernel("before")
    before = drain_all(source, card)
    torch.is_profiling = True
    card.library.be_taken_over()

    drain_all(source, card, 10)
    card.kernel("theirs")
    after = drain_all(source, card)
    card.library.history.clear()
    source.stop()

    assert [name for name, *_ in kernels_of(before)] == ["before"]
    assert kernels_of(after) == []
    assert source.lost_reason == "torch.profiler took CUPTI over at 12:34:56; kernels are not captured any more"
    assert set(NEEDED_KINDS) | CALL_RECORDS <= card.library.kinds
    assert RecordKind.MARKER not in card.library.kinds
    assert card.library.left_out == set()
    assert "cuptiActivityFlushAll" not in card.library.history


def test_a_profiler_of_the_host_alone_takes_nothing(monkeypatch, card, source):
    torch = install_torch(monkeypatch, is_profiling=False)
    source.start()
    torch.is_profiling = True
    card.kernel()

    assert len(kernels_of(drain_all(source, card, 30))) == 1
    assert source.lost_reason == ""


def test_another_client_is_noticed_after_a_while_and_capture_can_start_again(card, source):
    source.start()
    drain_all(source, card)
    complete_ns = card.now_ns
    card.library.be_taken_over()
    card.library.subscriber = "another"
    drain_all(source, card, 2 * LOST_AFTER_NS // 200_000_000)
    lost, until_ns = source.lost_reason, source.complete_until_host_ns

    source.stop()
    with pytest.raises(CaptureUnavailableError, match="another profiler"):
        source.start()
    card.library.subscriber = None
    source.start()
    card.kernel()

    assert lost.startswith("another profiler took CUPTI over")
    assert complete_ns - 1_000_000_000 < until_ns <= complete_ns
    assert source.lost_reason == ""
    assert source.complete_until_host_ns > card.now_ns - 1_000
    assert len(kernels_of(drain_all(source, card))) == 1


def test_a_shortly_run_torch_profiler_is_noticed_within_seconds(monkeypatch, card, source):
    """It was over before anybody looked; what it leaves behind is that it holds the subscriber's place."""
    install_torch(monkeypatch, is_profiling=False)
    source.start()
    drain_all(source, card)
    card.library.be_taken_over()
    card.library.subscriber = "torch"
    drain_all(source, card, 2 * LOST_AFTER_NS // 200_000_000)

    assert source.lost_reason.startswith("torch.profiler took CUPTI over")
    source.stop()
    assert card.library.kinds == set()  # it is over, so nobody else would turn them off


def test_a_torch_profiler_that_was_seen_running_is_noticed_soon(monkeypatch, card, source):
    """It holds the place since before the capture: it has run once already."""
    torch = install_torch(monkeypatch, is_profiling=False)
    card.library.subscriber = "torch"
    source.start()
    drain_all(source, card)
    torch.is_profiling = True
    card.library.be_taken_over()
    source.keep_up()
    torch.is_profiling = False
    for _ in range(10):
        card.advance(200_000_000)
        if source.keep_up():
            source.drain()

    assert source.lost_reason.startswith("torch.profiler took CUPTI over")


def test_what_was_left_on_for_another_client_goes_off_once_that_is_gone(monkeypatch, card, source):
    torch = install_torch(monkeypatch, is_profiling=False)
    source.start()
    drain_all(source, card)
    torch.is_profiling = True
    card.library.be_taken_over()
    drain_all(source, card, 10)
    source.stop()
    source.drain()
    assert set(NEEDED_KINDS) <= card.library.kinds

    torch.is_profiling = False
    source.close()

    assert card.library.kinds == set()


def keep_for(source, card, duration_ns):
    """Let the session's thread do its work for a while."""
    parts = []
    for _ in range(int(duration_ns) // 200_000_000):
        card.advance(200_000_000)
        if source.keep_up():
            parts.append(source.drain())
    return parts


def test_an_anchor_that_has_just_been_sent_holds_nothing_back(monkeypatch, card, source):
    """A flush gives no buffer with a record that is not complete."""
    source.start()
    drain_all(source, card, 10)
    launch, flush, launched_ns = source._clock._launch, FakeCuptiLibrary.activity_flush_all, [0]

    def slow_launch(tag):
        launched_ns[0] = card.now_ns
        return launch(tag)

    def flush_complete(library, flag):
        if card.now_ns - launched_ns[0] > 1_000_000:
            flush(library, flag)

    monkeypatch.setattr(source._clock, "_launch", slow_launch)
    monkeypatch.setattr(FakeCuptiLibrary, "activity_flush_all", flush_complete)
    card.kernel()
    parts = []
    for _ in range(4):  # an anchor is due at each
        card.advance(1_200_000_000)
        parts.append(source.drain())

    assert len(kernels_of(parts)) == 1


@pytest.mark.parametrize("seconds", [4, 30])
def test_a_kernel_that_runs_for_long_is_no_loss_and_is_told_of(card, source, seconds):
    """No buffer comes while a record in it is not complete."""
    source.start()
    drain_all(source, card)
    card.library.is_held_up = True
    began_ns = card.now_ns
    keep_for(source, card, seconds * 1e9)
    card.library.is_held_up = False
    end_ns = card.now_ns
    card.kernel("long", start=card.cupti_ns(began_ns), end=card.cupti_ns(end_ns))
    parts = drain_all(source, card)

    assert source.lost_reason == ""
    ((name, _, duration_ns),) = kernels_of(parts)
    assert name == "long"
    assert abs(duration_ns - (end_ns - began_ns)) <= 2 * source.error_ns
    assert source.dropped_count == 0


def test_a_kernel_of_minutes_costs_its_own_record_but_not_the_capture(card, source):
    source.start()
    drain_all(source, card)
    card.library.is_held_up = True
    card.kernel("of minutes", end=0)
    card.kernel("beside it")
    parts = keep_for(source, card, 3 * LOST_UNSEEN_NS)
    card.library.is_held_up = False
    parts += drain_all(source, card)

    assert source.lost_reason == ""
    assert [name for name, *_ in kernels_of(parts)] == ["beside it"]
    assert source.dropped_count == 1


def test_a_client_without_any_sign_is_noticed_after_a_long_while(card, source):
    source.start()
    drain_all(source, card)
    card.library.be_taken_over()
    keep_for(source, card, LOST_UNSEEN_NS - 5e9)
    early = source.lost_reason
    keep_for(source, card, 10e9)

    assert early == ""
    assert source.lost_reason.startswith("another profiler took CUPTI over")
    source.stop()
    assert card.library.kinds == set()


def test_kernels_that_somebody_switched_off_are_noticed_although_calls_come(card, source):
    source.start()
    drain_all(source, card)
    card.library.kinds -= set(NEEDED_KINDS)
    for _ in range(70):
        card.call(SYNCHRONIZE)
        keep_for(source, card, 1e9)

    assert source.lost_reason


def test_anchors_that_do_not_run_are_no_loss(card, source):
    """A card that is full for long runs them late."""
    source.start()
    card.is_stuck = True
    drain_all(source, card, 40)

    assert source.lost_reason == ""


def test_a_device_that_fails_does_not_fail_a_drain(monkeypatch, card, source):
    source.start()
    card.kernel()

    def fail(tag):
        raise DeviceError("sticky")

    monkeypatch.setattr(source._clock, "_launch", fail)

    assert len(kernels_of(drain_all(source, card))) == 1
    source.stop()


def test_a_forked_child_does_nothing(monkeypatch, card, source):
    source.start()
    card.kernel()
    own = os.getpid()
    card.library.history.clear()
    monkeypatch.setattr(_cupti_source.os, "getpid", lambda: own + 1)
    source._lock.acquire()  # as another thread of the parent might have held it

    child = source.drain(is_last=True)
    source.stop()
    source.close()

    assert len(child.work) == 0
    assert card.library.history == []


# Ranges of others, waits, memory, streams


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


def test_our_own_ranges_are_no_annotations(card, source):
    source.start()
    card.marker(MarkerFlag.START, 1, "mine", domain="gpustreamlab")
    card.marker(MarkerFlag.END, 1, domain="gpustreamlab")

    parts = drain_all(source, card)

    assert sum(len(part.annotations) for part in parts) == 0


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
    emit(RecordKind.SYNCHRONIZATION, cudaEventId=5, correlationId=34, type=3, contextId=1, streamId=19)
    (second,) = drain_all(source, card, 1)

    assert first.dependencies.record.tolist() == [10]
    assert (first.dependencies.source_stream.tolist(), first.dependencies.target_stream.tolist()) == ([13], [19])
    assert first.dependencies.wait.tolist() == [15]
    assert second.dependencies.record.tolist() == [20, 11]
    assert second.dependencies.source_context.tolist() == [1, 2]
    assert second.dependencies.wait.tolist() == [30, 31]


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
    emit(RecordKind.CONTEXT, contextId=1, nullStreamId=7)
    emit(RecordKind.CONTEXT, contextId=3, nullStreamId=17, isGreenContext=1, numMultiprocessors=64)
    emit(RecordKind.MEMSET, start=card.cupti_ns(5), end=card.cupti_ns(9), contextId=1, streamId=30, deviceId=0)
    card.kernel("void at::native::fill<4>(int)", stream=30)
    card.kernel("format::at_least(int)", stream=31)
    drain_all(source, card)
    card.kernel("cupy_add__float32", stream=31)
    drain_all(source, card)

    assert source.describe_stream(1, 7).name == "default stream"
    assert source.describe_stream(3, 17) == ("default stream", 64, 0)
    assert source.describe_stream(1, 30) == ("torch stream 30", 132, 0)
    assert source.describe_stream(1, 31).name == "CuPy stream 31"
    assert source.describe_stream(1, 99).name == "stream 99"


def test_green_contexts_of_newer_versions_tell_their_sms(monkeypatch):
    card = FakeCard(FakeCuptiLibrary(130202))
    source = make_source(monkeypatch, card)
    source.start()
    card.library.emit(RecordKind.GREEN_CONTEXT, contextId=2, numMultiprocessors=32)
    drain_all(source, card)

    assert source.describe_stream(2, 18).sm_count == 32


def test_a_sessions_stream_is_numbered_as_in_the_records(source):
    assert source.key_of(types.SimpleNamespace(handle=0x7000, sm_count=132)) == (1, 14)


def test_sms_of_a_context_of_which_cupti_tells_nothing_are_known_by_a_sessions_stream(monkeypatch, card, source):
    # GIVEN a green context that an earlier session made
    assert source.describe_stream(1, 30).sm_count == 132

    # WHEN a session has a stream there
    source.key_of(types.SimpleNamespace(handle=0x7000, sm_count=64))

    # THEN every session knows what others enqueue there had
    assert source.describe_stream(1, 30).sm_count == 64
    assert make_source(monkeypatch, card).describe_stream(1, 31).sm_count == 64
    assert source.describe_stream(2, 30).sm_count == 132


def test_a_stream_that_the_driver_does_not_know_is_an_error(monkeypatch, source):
    from tests.helpers.fake_cupti import install_driver_bindings

    install_driver_bindings(monkeypatch, contexts={})

    with pytest.raises(DeviceError, match="cuStreamGetCtx"):
        source.key_of(types.SimpleNamespace(handle=0x7000))


def test_all_wished_kinds_are_known():
    assert set(WISHED_KINDS).isdisjoint(NEEDED_KINDS)
    assert RecordKind.KERNEL not in WISHED_KINDS
    assert len(build_buffer([(RecordKind.MARKER, {})])) == 56


def test_a_clock_that_another_profiler_left_behind_is_set_right(monkeypatch, card):
    setting = card.library.history
    source = make_source(monkeypatch, card)
    source.start()
    source.stop()
    assert SET_CLOCK not in setting

    foreign = CLOCK(lambda: 91_573_348_616)  # as torch.profiler's, which counts the processor's cycles
    for _ in range(2):
        card.library.clock_address = ctypes.cast(foreign, ctypes.c_void_p).value
        setting.clear()
        source.start()
        source.stop()
        assert setting.count(SET_CLOCK) == 1
        assert abs(CLOCK(card.library.clock_address)() - time.time_ns()) < 1_000_000_000

        setting.clear()
        source.start()  # setting it takes the times off records that are not read yet
        source.stop()
        assert SET_CLOCK not in setting


def test_a_clock_that_cannot_be_set_stops_nothing(monkeypatch, card):
    monkeypatch.setattr(_cupti, "_wall_clock_address", lambda: None)
    card.library.lacking.add("cuptiGetTimestamp")
    source = make_source(monkeypatch, card)
    source.start()
    card.kernel()
    source.stop()
    assert len(source.drain(is_last=True).work) == 1
