"""The simulated device as a source of activities: what `gpustreamlab.testing` leaves open, and what is exact only here."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends import EVERY_STREAM, THE_HOST, CallClass, ContextSpec
from gpustreamlab.backends.sim import H200, SimActivitySource, SimBackend
from gpustreamlab.errors import CaptureUnavailableError, SessionClosedError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind

MS = 1_000_000
COSTS = H200.host


@pytest.fixture
def source(backend):
    made = backend.activity_source()
    made.start()
    yield made
    made.close()


def spin(backend, stream, duration_ns=MS):
    backend.launch_spin(stream, duration_ns, blocks=4, fill_sms=False)


def calls(told):
    """Return (name, start, end) of every call."""
    names = [told.names[code] for code in told.calls.name]
    return list(zip(names, told.calls.start_ns.tolist(), told.calls.end_ns.tolist(), strict=True))


def counters(source, stream):
    """Return the values of a stream's memory counters since the last time, in order."""
    told, seen = source.drain(), {}
    for row in np.flatnonzero(told.memory.stream == stream.handle):
        seen.setdefault(told.names[told.memory.name[row]], []).append(int(told.memory.value[row]))
    return seen


class TestWork:
    def test_a_kernel_is_told_with_all_its_facts(self, backend, source):
        green = backend.create_context(ContextSpec(groups=(0,))).create_stream(priority=0)
        for blocks in (4, 2, 4):
            backend.launch_spin(green, MS, blocks=blocks, fill_sms=False)
            launched_ns = backend.driver.clock.now_ns
            backend.synchronize()
        told = source.drain()
        work = told.work
        assert {SPAN_KINDS[code] for code in work.kind} == {SpanKind.KERNEL}
        assert (work.start_ns[-1], work.end_ns[-1]) == (launched_ns, launched_ns + MS)
        assert (work.context[0], work.stream[0]) == source.key_of(green) == (1, green.handle)
        assert work.detail.tolist() == [0, 1, 0]  # those that are alike share one
        assert [(detail.full_name, detail.grid) for detail in told.details] == [
            ("simulated::spin", (4, 1, 1)),
            ("simulated::spin", (2, 1, 1)),
        ]
        made = {"cuGreenCtxCreate", "cuGreenCtxStreamCreate"}
        assert set(told.names) == {"cudaLaunchKernel", "spin", "cudaDeviceSynchronize"} | made
        assert all(column.dtype == np.int64 for column in (work.kind, work.start_ns, work.correlation, work.detail))

    def test_copies_and_fills_say_what_they_went_between(self, backend, source):
        device = backend.xp.zeros(1_000, "f4")
        for host in (backend.pinned_empty(1_000, "f4"), np.zeros(1_000, "f4")):
            device.set(host)
            device.get(out=host)
        told = source.drain()
        details = [told.details[code] for code in told.work.detail]
        assert [(told.names[code], detail.full_name) for code, detail in zip(told.work.name, details, strict=True)] == [
            ("memset", "device memory"),
            ("memcpy HtoD", "page-locked host memory to device memory"),
            ("memcpy DtoH", "device memory to page-locked host memory"),
            ("memcpy HtoD", "pageable host memory to device memory"),
            ("memcpy DtoH", "device memory to pageable host memory"),
        ]
        assert told.work.size_bytes.tolist() == [4_000] * 5
        _ = device + 1
        backend.synchronize()
        assert source.drain().work.size_bytes.tolist() == [0]  # a kernel's are not told
        assert [SPAN_KINDS[code] for code in told.work.kind] == [SpanKind.FILL] + [SpanKind.COPY] * 4
        assert details[0].grid == (0, 0, 0)
        assert calls(told)[1][0] == "cudaMemsetAsync"


class TestCalls:
    def test_each_call_has_its_name_class_and_time(self, backend, source, stream):
        event = backend.acquire_event()
        source.drain()
        other, begin_ns = backend.create_stream(priority=0), backend.driver.clock.now_ns
        spin(backend, stream)
        stream.record(event)
        other.wait(event)
        told = source.drain()
        record_ns, wait_ns = begin_ns + COSTS.launch_ns, begin_ns + COSTS.launch_ns + COSTS.record_ns
        assert calls(told) == [
            ("cudaStreamCreateWithPriority", begin_ns - COSTS.create_stream_ns, begin_ns),
            ("cudaLaunchKernel", begin_ns, record_ns),
            ("cudaStreamWaitEvent", wait_ns, wait_ns + COSTS.wait_ns),
        ]
        assert told.calls.call_class.tolist() == [CallClass.CREATE, CallClass.LAUNCH, CallClass.EVENT]
        first = told.calls.correlation[0]
        assert (told.calls.correlation - first).tolist() == [0, 1, 3]  # recording an event is numbered, and not told of
        assert (told.calls.start_host_ns == told.calls.start_ns).all()

    @pytest.mark.parametrize(
        ("name", "wait"),
        [
            ("cudaStreamSynchronize", lambda backend, stream, event: stream.synchronize()),
            ("cudaEventSynchronize", lambda backend, stream, event: backend.synchronize_event(event)),
            ("cudaDeviceSynchronize", lambda backend, stream, event: backend.synchronize()),
        ],
    )
    def test_a_synchronisation_lasts_as_long_as_the_host_was_blocked(self, backend, source, stream, name, wait):
        event = backend.acquire_event()
        spin(backend, stream)
        stream.record(event)
        begin_ns = backend.driver.clock.now_ns
        wait(backend, stream, event)
        told = source.drain()
        assert calls(told)[-1] == (name, begin_ns, told.work.end_ns[0] + COSTS.synchronize_ns)

    def test_a_copy_is_one_call_that_blocks_where_memory_is_pageable(self, backend, source):
        device = backend.xp.empty(1 << 20, "f4")
        source.drain()
        device.set(np.zeros(1 << 20, "f4"))
        told = source.drain()
        assert calls(told) == [("cudaMemcpyAsync", told.calls.start_ns[0], told.work.end_ns[0] + COSTS.synchronize_ns)]
        assert told.calls.correlation.tolist() == told.work.correlation.tolist()
        device.set(backend.pinned_empty(1 << 20, "f4"))
        (call,) = calls(source.drain())
        assert (call[0], call[2] - call[1]) == ("cudaMemcpyAsync", COSTS.copy_ns)

    def test_a_dependency_is_a_wait_for_what_another_stream_recorded_meanwhile(self, backend, stream):
        early, never, own, over = (backend.acquire_event() for _ in range(4))
        other, source = backend.create_stream(priority=0), backend.activity_source()
        stream.record(early)
        source.start()
        other.record(own)
        stream.record(over)
        stream.synchronize()
        for event in (early, never, own, over):
            other.wait(event)
        told = source.drain()
        waits = told.dependencies.target_stream != THE_HOST
        of_streams = told.dependencies.source_stream[waits], told.dependencies.record[waits]
        assert [column.tolist() for column in of_streams] == [[stream.handle], [2]]
        assert [name for name, *_ in calls(told)].count("cudaStreamWaitEvent") == 4
        source.close()

    def test_a_call_that_blocked_says_what_for(self, backend, source, stream):
        known, never = backend.acquire_event(), backend.acquire_event()
        stream.record(known)
        source.drain()
        for event in (known, never):
            backend.synchronize_event(event)
        stream.synchronize()
        backend.synchronize()
        told = source.drain()
        event, of_never, of_stream, of_device = told.calls.correlation.tolist()
        awaited = told.dependencies
        assert set(awaited.target_stream.tolist()) == {THE_HOST}
        assert awaited.wait.tolist() == [event, of_stream, of_device]
        assert awaited.source_stream.tolist() == [stream.handle, stream.handle, EVERY_STREAM]
        assert awaited.record.tolist() == [event - 1, of_stream, of_device]
        assert of_never == event + 1


class TestMemory:
    def test_an_array_counts_on_its_stream_until_it_is_gone_and_its_memory_stays_reserved(self, backend, source, stream):
        backend.select(stream)
        array = backend.xp.empty(1_000, "f4")
        view = array[10:20].reshape(2, 5).T
        del array
        assert counters(source, stream) == {"pool_used_bytes": [4_096], "pool_reserved_bytes": [4_096]}
        backend.select(backend.null_stream)
        del view
        assert counters(source, stream) == {"pool_used_bytes": [0]}
        backend.select(stream)
        kept = backend.xp.empty(500, "f4")
        assert backend.xp.empty(0).size == 0
        assert counters(source, stream) == {"pool_used_bytes": [2_048]}
        source.stop()
        source.start()  # what arrays hold by then is told at once
        assert counters(source, stream) == {"pool_used_bytes": [2_048], "pool_reserved_bytes": [4_096]}
        assert kept.size == 500

    def test_only_growing_is_a_call_and_it_comes_before_the_kernel(self, backend, source):
        for _ in range(2):
            backend.xp.ones(1_000, "f4")
        told = source.drain()
        assert [name for name, *_ in calls(told)] == ["cudaMalloc", "cudaLaunchKernel", "cudaLaunchKernel"]
        assert told.calls.size_bytes.tolist() == [4_096, 0, 0]
        assert told.calls.call_class[0] == CallClass.MEMORY

    @pytest.mark.parametrize("use", [lambda backend, stream: stream.synchronize(), spin])
    def test_freeing_is_told_at_the_time_at_which_it_happened(self, backend, source, stream, use):
        array = backend.xp.empty(100, "f8")
        spin(backend, stream)
        freed_ns = backend.driver.clock.now_ns
        del array
        use(backend, stream)
        told = source.drain()
        assert told.memory.time_ns[-1] == freed_ns < told.calls.end_ns[-1]

    def test_no_way_to_make_an_array_leaks(self, backend, source):
        xp, memory = backend.xp, backend.driver.memory
        made = [xp.zeros(8) + 1, xp.asarray(np.arange(8.0))[[1, 2, 3]], xp.random.rand(5), xp.modf(xp.ones(5))]
        made += [xp.arange(64).sum(), xp.broadcast_to(xp.ones(4), (1_000, 4)), xp.ones(4)[2], xp.empty(0)]
        assert 7 < memory.block_count < 20
        del made
        gc.collect()
        assert memory.block_count == 0
        assert counters(source, backend.null_stream)["pool_used_bytes"][-1] == 0

    @given(st.lists(st.tuples(st.sampled_from([512, 1_024, 1_536, 4_096]), st.integers(0, 5)), max_size=80))
    def test_memory_of_a_pool_never_overlaps_adds_up_and_is_used_again(self, steps):
        pool, live, most_bytes, freed = SimBackend().null_stream.queue.pool, [], 0, []
        for size_bytes, choice in steps:
            if choice < 3 or not live:
                offset = pool.allocate(size_bytes)
                again = [place for place in freed if place[1] == size_bytes]
                if again:
                    assert (offset, size_bytes) == again[-1]
                    freed.remove(again[-1])
                live.append((offset, size_bytes))
            else:
                freed.append(live.pop(choice % len(live)))
                pool.free(*freed[-1])
            assert pool.used_bytes == sum(held_bytes for _, held_bytes in live)
            most_bytes = max(most_bytes, pool.used_bytes)
            assert pool.reserved_bytes == most_bytes
            ends = [0, *(at for offset, held_bytes in sorted(live + freed) for at in (offset, offset + held_bytes))]
            assert ends == sorted(ends)

    def test_a_backend_with_arrays_is_garbage_like_any_other(self):
        backend = SimBackend()
        array, source = backend.xp.ones(10), backend.activity_source()
        source.start()
        seen = weakref.ref(backend)
        del backend, array, source
        gc.collect()
        assert seen() is None


class TestLife:
    def test_streams_are_described_by_their_number_also_when_they_are_closed_or_unknown(self, backend, source):
        context = backend.create_context(ContextSpec(groups=(0, 1)))
        green, plain = context.create_stream(priority=0), backend.create_stream(priority=0, sm_ids=range(4))
        green_key = source.key_of(green)
        assert source.describe_stream(*green_key).is_blocking is False
        for _ in range(2):
            assert source.describe_stream(*green_key)[:3] == (f"stream {green.handle}", 16, 0)
            context.close()
        assert source.describe_stream(*source.key_of(plain))[:5] == (f"stream {plain.handle}", 4, 0, 0, False)
        assert source.describe_stream(*source.key_of(backend.null_stream))[:5] == ("default stream", 132, 0, 0, True)
        assert source.describe_stream(99, 1_234)[:5] == ("stream 1234", 132, 0, 0, None)

    def test_several_sources_collect_at_once_and_each_what_was_launched_in_its_time(self, backend, source, stream):
        other = backend.activity_source()
        source.start()
        spin(backend, stream)
        other.start()
        spin(backend, stream)
        source.stop()
        spin(backend, stream)
        backend.synchronize()
        told = [each.drain() for each in (source, other)]
        assert [len(each.work) for each in told] == [2, 2]
        assert [each.work.correlation.tolist() for each in told] == [[2, 3], [3, 4]]
        assert "collecting" in repr(other)
        assert "stopped" in repr(source)
        other.close()

    def test_the_buffer_is_bounded_and_counts_what_it_drops(self, backend, stream):
        source = SimActivitySource(backend.driver, record_limit=10)
        source.start()
        for _ in range(20):
            spin(backend, stream)
        backend.synchronize()
        told = source.drain()
        assert (len(told.calls), len(told.work)) == (10, 0)
        assert len(told.accesses) == 20  # that a launch touches nothing takes no room
        assert source.dropped_count == 42 - 10  # a synchronization has two records
        spin(backend, stream)
        backend.synchronize()
        assert len(source.drain().work) == 1
        assert source.dropped_count == 42 - 10
        source.close()

    def test_a_closed_source_or_device_gives_nothing_and_does_not_start(self, backend, stream):
        closed, left = backend.activity_source(), backend.activity_source()
        for source in (closed, left):
            source.start()
        spin(backend, stream)
        closed.close()
        with pytest.raises(CaptureUnavailableError, match="was closed"):
            closed.start()
        backend.close()
        told = closed.drain()
        assert (len(told.calls), len(told.work), "closed" in repr(closed)) == (0, 0, True)
        assert len(left.drain(is_last=True).work) == 1
        left.stop()
        for call in (left.start, backend.activity_source):
            with pytest.raises(SessionClosedError):
                call()

    def test_a_drain_by_another_thread_loses_nothing(self, backend, source):
        told, done = [], threading.Event()

        def drain():
            while not done.is_set():
                told.append(source.drain())

        thread = threading.Thread(target=drain)
        thread.start()
        streams = [backend.create_stream(priority=0) for _ in range(4)]
        for number in range(400):
            spin(backend, streams[number % 4], 10_000)
        backend.synchronize()
        done.set()
        thread.join()
        told.append(source.drain())
        numbers = np.concatenate([batch.work.correlation for batch in told])
        assert sorted(numbers.tolist()) == list(range(numbers.min(), numbers.min() + 400))
