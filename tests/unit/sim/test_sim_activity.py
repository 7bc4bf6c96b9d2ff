"""The simulated device as a source of activities."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends import ActivitySource, CallClass, ContextSpec
from gpustreamlab.backends.sim import H200, DevicePreset, SimActivitySource, SimBackend
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


@pytest.fixture
def stream(backend):
    return backend.create_stream(priority=0)


def spin(backend, stream, duration_ns=MS):
    backend.launch_spin(stream, duration_ns, blocks=4, fill_sms=False)


def names(told, batch):
    return [told.names[code] for code in batch.name]


def calls(told):
    """Return (name, start, end) of every call."""
    return list(zip(names(told, told.calls), told.calls.start_ns.tolist(), told.calls.end_ns.tolist(), strict=True))


def counters(told, stream):
    """Return the values of a stream's memory counters, in order."""
    seen = {}
    for row in np.flatnonzero(told.memory.stream == stream.handle):
        seen.setdefault(told.names[told.memory.name[row]], []).append(int(told.memory.value[row]))
    return seen


class TestWork:
    def test_a_kernel_is_told_with_all_its_facts(self, backend, source):
        context = backend.create_context(ContextSpec(groups=(0,)))
        green = context.create_stream(priority=0)
        spin(backend, green)
        launched_ns = backend.driver.clock.now_ns
        backend.synchronize()
        told = source.drain()
        work = told.work
        assert len(work) == 1
        assert SPAN_KINDS[work.kind[0]] is SpanKind.KERNEL
        assert (work.start_ns[0], work.end_ns[0]) == (launched_ns, launched_ns + MS)
        assert (work.context[0], work.stream[0]) == source.key_of(green) == (1, green.handle)
        assert names(told, work) == ["spin"]
        detail = told.details[work.detail[0]]
        assert (detail.full_name, detail.grid) == ("simulated::spin", (4, 1, 1))
        assert work.size_bytes[0] == 0
        assert all(column.dtype == np.int64 for column in (work.kind, work.start_ns, work.correlation, work.detail))

    def test_copies_say_what_they_went_between(self, backend, source):
        device = backend.xp.empty(1_000, "f4")
        pinned = backend.pinned_empty(1_000, "f4")
        for host in (pinned, np.zeros(1_000, "f4")):
            device.set(host)
            device.get(out=host)
        told = source.drain()
        assert names(told, told.work) == ["memcpy HtoD", "memcpy DtoH"] * 2
        assert [told.details[code].full_name for code in told.work.detail] == [
            "page-locked host memory to device memory",
            "device memory to page-locked host memory",
            "pageable host memory to device memory",
            "device memory to pageable host memory",
        ]
        assert told.work.size_bytes.tolist() == [4_000] * 4
        assert {SPAN_KINDS[code] for code in told.work.kind} == {SpanKind.COPY}

    def test_a_fill_is_told_with_its_bytes_and_no_grid(self, backend, source):
        backend.xp.zeros(1_000, "f4")
        backend.synchronize()
        told = source.drain()
        assert SPAN_KINDS[told.work.kind[0]] is SpanKind.FILL
        assert told.work.size_bytes.tolist() == [4_000]
        assert told.details[told.work.detail[0]].grid == (0, 0, 0)
        assert names(told, told.calls)[1] == "cudaMemsetAsync"

    def test_kernels_that_are_alike_share_a_detail(self, backend, source, stream):
        for blocks in (1, 2, 1, 2):
            backend.launch_spin(stream, MS, blocks=blocks, fill_sms=False)
        backend.synchronize()
        told = source.drain()
        assert told.work.detail.tolist() == [0, 1, 0, 1]
        assert len(told.names) == 3  # launch, synchronise, spin

    def test_what_has_ended_by_now_is_told_without_waiting(self, backend, source, stream):
        spin(backend, stream, 10_000)
        assert len(source.drain().work) == 0
        backend.driver.charge(20_000)
        assert len(source.drain().work) == 1

    def test_work_of_strays_has_its_own_stream(self, backend, source):
        with Session(backend) as lab:
            lane, library = lab.stream("lane"), backend.create_stream(priority=0)
            with lab.on(lane, "range"):
                spin(backend, library)
                spin(backend, backend.null_stream)
                spin(backend, lane._backend_stream)
            lab.synchronize()
            assert source.drain().work.stream.tolist() == [library.handle, 0, lane.handle]

    def test_work_before_the_start_is_not_told_of(self, backend, stream):
        source = backend.activity_source()
        spin(backend, stream)
        source.start()
        spin(backend, stream)
        backend.synchronize()
        told = source.drain()
        assert told.work.correlation.tolist() == [told.calls.correlation[0]]

    def test_work_that_runs_at_stop_is_told_of_when_it_ends(self, backend, source, stream):
        spin(backend, stream)
        source.stop()
        assert len(source.drain().work) == 0
        spin(backend, stream)
        backend.synchronize()
        told = source.drain(is_last=True)
        assert (len(told.work), len(told.calls)) == (1, 0)


class TestCalls:
    def test_each_call_has_its_name_class_and_time(self, backend, source, stream):
        other, event = backend.create_stream(priority=0), backend.acquire_event()
        begin_ns = backend.driver.clock.now_ns
        spin(backend, stream)
        stream.record(event)
        other.wait(event)
        told = source.drain()
        record_ns, wait_ns = begin_ns + COSTS.launch_ns, begin_ns + COSTS.launch_ns + COSTS.record_ns
        assert calls(told) == [
            ("cudaLaunchKernel", begin_ns, record_ns),
            ("cudaStreamWaitEvent", wait_ns, wait_ns + COSTS.wait_ns),
        ]
        assert told.calls.call_class.tolist() == [CallClass.LAUNCH, CallClass.EVENT]
        assert (told.calls.thread == threading.get_ident() & 0xFFFF_FFFF).all()
        assert told.calls.correlation.tolist() == [1, 3]  # recording an event is numbered, and not told of
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
        assert told.calls.call_class[-1] == CallClass.SYNCHRONIZE

    def test_a_pageable_copy_is_one_call_that_blocks(self, backend, source):
        device = backend.xp.empty(1 << 20, "f4")
        source.drain()
        device.set(np.zeros(1 << 20, "f4"))
        told = source.drain()
        assert names(told, told.calls) == ["cudaMemcpyAsync"]
        assert told.calls.end_ns[0] == told.work.end_ns[0] + COSTS.synchronize_ns
        assert told.calls.correlation.tolist() == told.work.correlation.tolist()

    def test_a_page_locked_copy_does_not_block(self, backend, source):
        device = backend.xp.empty(1 << 20, "f4")
        device.set(backend.pinned_empty(1 << 20, "f4"))
        assert calls(source.drain())[-1][0] == "cudaMemcpyAsync"
        backend.synchronize()
        told = source.drain()
        assert told.work.end_ns[0] > told.calls.start_ns[0]

    def test_a_launch_into_a_full_stream_lasts_until_there_is_room(self):
        backend = SimBackend(DevicePreset(name="small", sm_count=4, queue_limit=2))
        stream, source = backend.create_stream(priority=0), backend.activity_source()
        source.start()
        for _ in range(6):
            spin(backend, stream)
        took_ns = [end_ns - start_ns for _, start_ns, end_ns in calls(source.drain())]
        assert took_ns[0] == backend.preset.host.launch_ns
        assert took_ns[-1] > MS // 2

    def test_an_interrupted_synchronisation_is_told_of(self, backend, source, stream, monkeypatch):
        def interrupt(*_):
            backend.driver.clock.advance(500)
            raise KeyboardInterrupt

        spin(backend, stream)
        monkeypatch.setattr(backend.driver.scheduler, "run_until", interrupt)
        begin_ns = backend.driver.clock.now_ns
        with pytest.raises(KeyboardInterrupt):
            stream.synchronize()
        monkeypatch.undo()
        assert calls(source.drain())[-1] == ("cudaStreamSynchronize", begin_ns, begin_ns + 500)

    def test_a_launch_and_its_kernel_have_one_number(self, backend, source, stream):
        for _ in range(5):
            spin(backend, stream)
        backend.synchronize()
        told = source.drain()
        assert told.work.correlation.tolist() == told.calls.correlation[:5].tolist() == [1, 2, 3, 4, 5]


class TestDependencies:
    def test_a_wait_names_both_ends(self, backend, source, stream):
        other = backend.create_context(ContextSpec(groups=(0,))).create_stream(priority=0)
        event = backend.acquire_event()
        spin(backend, stream)
        stream.record(event)
        other.wait(event)
        found = source.drain().dependencies
        assert (found.source_context[0], found.source_stream[0], found.record[0]) == (0, stream.handle, 2)
        assert (found.target_context[0], found.target_stream[0], found.wait[0]) == (1, other.handle, 3)

    def test_a_wait_for_what_is_over_is_told_of_too(self, backend, source, stream):
        event = backend.acquire_event()
        stream.record(event)
        stream.synchronize()
        backend.create_stream(priority=0).wait(event)
        assert len(source.drain().dependencies) == 1

    def test_waits_that_wait_for_nothing_known_are_calls_only(self, backend, stream):
        early, never, own = (backend.acquire_event() for _ in range(3))
        other = backend.create_stream(priority=0)
        stream.record(early)
        source = backend.activity_source()
        source.start()
        other.record(own)
        for event in (early, never, own):
            other.wait(event)
        told = source.drain()
        assert len(told.dependencies) == 0
        assert names(told, told.calls).count("cudaStreamWaitEvent") == 3
        source.close()


class TestMemory:
    def test_an_array_counts_until_it_is_gone_and_its_memory_stays_reserved(self, backend, source, stream):
        backend.select(stream)
        array = backend.xp.empty(1_000, "f4")
        view = array[10:20].reshape(2, 5).T
        del array
        assert counters(source.drain(), stream) == {"pool_used_bytes": [4_096], "pool_reserved_bytes": [4_096]}
        del view
        assert counters(source.drain(), stream) == {"pool_used_bytes": [0]}
        backend.xp.empty(500, "f4")
        assert counters(source.drain(), stream) == {"pool_used_bytes": [2_048, 0]}

    def test_only_growing_is_a_call_and_it_comes_before_the_kernel(self, backend, source, stream):
        backend.select(stream)
        first = backend.xp.ones(1_000, "f4")
        del first
        second = backend.xp.ones(1_000, "f4")
        told = source.drain()
        assert names(told, told.calls) == ["cudaMalloc", "cudaLaunchKernel", "cudaLaunchKernel"]
        assert told.calls.size_bytes.tolist() == [4_096, 0, 0]
        assert told.calls.call_class[0] == CallClass.MEMORY
        assert second.size == 1_000

    def test_memory_goes_back_to_the_stream_it_came_from(self, backend, source, stream):
        other = backend.create_stream(priority=0)
        backend.select(stream)
        array = backend.xp.empty(100, "f8")
        backend.select(other)
        del array
        fresh = backend.xp.empty(100, "f8")
        told = source.drain()
        assert counters(told, stream) == {"pool_used_bytes": [1_024, 0], "pool_reserved_bytes": [1_024]}
        assert counters(told, other) == {"pool_used_bytes": [1_024], "pool_reserved_bytes": [1_024]}
        assert fresh.size == 100

    @pytest.mark.parametrize("use", [lambda backend, stream: stream.synchronize(), spin])
    def test_freeing_is_told_at_the_time_at_which_it_happened(self, backend, source, stream, use):
        array = backend.xp.empty(100, "f8")
        spin(backend, stream)
        freed_ns = backend.driver.clock.now_ns
        del array
        use(backend, stream)
        told = source.drain()
        assert told.memory.time_ns[-1] == freed_ns < told.calls.end_ns[-1]

    def test_a_single_value_is_allocated_once(self, backend, source, stream):
        values = backend.xp.ones(64)
        source.drain()
        total = values.sum()
        assert counters(source.drain(), backend.null_stream)["pool_used_bytes"] == [1_024]
        assert total.ndim == 0

    def test_what_arrays_held_before_the_start_is_told_at_the_start(self, backend, stream):
        backend.select(stream)
        kept, gone = backend.xp.empty(512, "u1"), backend.xp.empty(512, "u1")
        del gone
        source = backend.activity_source()
        source.start()
        assert counters(source.drain(), stream) == {"pool_used_bytes": [512], "pool_reserved_bytes": [1_024]}
        source.close()
        assert kept.size == 512

    @pytest.mark.parametrize(
        "make",
        [
            lambda xp: xp.ones((8, 8)),
            lambda xp: xp.zeros(8) + 1,
            lambda xp: xp.arange(64).sum(),
            lambda xp: xp.asarray(np.arange(8.0))[[1, 2, 3]],
            lambda xp: xp.random.rand(5),
            lambda xp: xp.modf(xp.ones(5)),
            lambda xp: xp.broadcast_to(xp.ones(4), (1_000, 4)),
            lambda xp: xp.ones(4)[2],
            lambda xp: xp.allclose(xp.ones(4), xp.ones(4)),
            lambda xp: xp.empty(0),
            lambda xp: xp.fft.rfft(xp.ones(16)),
        ],
    )
    def test_no_way_to_make_an_array_leaks(self, backend, source, make):
        memory = backend.driver.memory
        made = make(backend.xp)
        held_count = memory.block_count
        del made
        gc.collect()
        assert held_count <= 2
        assert memory.block_count == 0
        assert counters(source.drain(), backend.null_stream).get("pool_used_bytes", [0])[-1] == 0

    def test_an_array_without_elements_takes_no_memory(self, backend, source):
        assert backend.xp.empty(0).size == 0
        assert len(source.drain().memory) == 0

    def test_the_arena_of_a_closed_stream_goes_with_its_last_array(self, backend, source, stream):
        other = backend.create_stream(priority=0)
        backend.select(stream)
        array = backend.xp.empty(512, "u1")
        backend.select(other)
        stream.close()
        assert len(backend.driver.memory._arenas) == 1
        del array
        assert counters(source.drain(), stream)["pool_reserved_bytes"] == [512, 0]
        assert not backend.driver.memory._arenas

    def test_the_arena_of_an_idle_stream_goes_when_it_is_closed(self, backend, source, stream):
        backend.select(stream)
        backend.xp.empty(512, "u1")
        source.drain()
        stream.close()
        assert not backend.driver.memory._arenas
        assert counters(source.drain(), stream) == {"pool_reserved_bytes": [0]}

    def test_many_streams_and_arrays_leave_nothing(self, backend):
        for _ in range(100):
            made = backend.create_stream(priority=0)
            token = backend.select(made)
            backend.xp.ones(10)
            backend.restore(token)
            made.close()
        assert backend.driver.memory.block_count == 0
        assert not backend.driver.memory._arenas

    def test_an_interrupt_in_the_middle_is_repaired(self, backend, source, stream, monkeypatch):
        backend.select(stream)
        kept, gone = backend.xp.empty(512, "u1"), backend.xp.empty(512, "u1")
        arena = type(backend.driver.memory._arenas[stream.handle][1])
        free, allocate = arena.free, arena.allocate

        def free_and_interrupt(*args):
            free(*args)
            raise KeyboardInterrupt

        def allocate_and_interrupt(*args):
            allocate(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(arena, "free", free_and_interrupt)
        del gone
        with pytest.raises(KeyboardInterrupt):
            backend.driver.memory.settle()
        monkeypatch.setattr(arena, "free", free)
        monkeypatch.setattr(arena, "allocate", allocate_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            backend.xp.empty(512, "u1")
        monkeypatch.undo()
        after = backend.xp.empty(100, "u1")
        assert counters(source.drain(), stream)["pool_used_bytes"][-1] == 1_024
        del kept, after
        assert backend.driver.memory.block_count == 0
        assert counters(source.drain(), stream)["pool_used_bytes"][-1] == 0

    def test_a_backend_with_arrays_is_garbage_like_any_other(self):
        backend = SimBackend()
        array, source = backend.xp.ones(10), backend.activity_source()
        source.start()
        seen = weakref.ref(backend)
        del backend, array, source
        gc.collect()
        assert seen() is None


class TestStreams:
    def test_the_null_stream_is_the_default_stream(self, backend, source):
        assert source.describe_stream(*source.key_of(backend.null_stream)) == ("default stream", 132, 0)

    def test_a_stream_is_described_by_its_number_also_when_it_is_closed(self, backend, source):
        context = backend.create_context(ContextSpec(groups=(0, 1)))
        green, plain = context.create_stream(priority=0), backend.create_stream(priority=0, sm_ids=range(4))
        keys = [source.key_of(green), source.key_of(plain)]
        assert source.describe_stream(*keys[0]) == (f"stream {green.handle}", 16, 0)
        assert source.describe_stream(*keys[1]) == (f"stream {plain.handle}", 4, 0)
        green.close()
        context.close()
        assert source.describe_stream(*keys[0]) == (f"stream {green.handle}", 16, 0)

    def test_an_unknown_stream_is_described_all_the_same(self, source):
        assert source.describe_stream(99, 1_234) == ("stream 1234", 132, 0)


class TestLife:
    def test_it_is_a_source(self, source):
        checked: ActivitySource = source
        assert (checked.description, checked.error_ns, checked.lost_reason, checked.dropped_count) == (
            "simulated device",
            0,
            "",
            0,
        )

    def test_one_source_collects_at_a_time(self, backend, source, stream):
        other = backend.activity_source()
        with pytest.raises(CaptureUnavailableError, match="one collects at a time"):
            other.start()
        spin(backend, stream)
        source.stop()
        other.start()
        spin(backend, stream)
        backend.synchronize()
        assert [len(each.drain().work) for each in (source, other)] == [1, 1]
        other.close()

    def test_starting_twice_changes_nothing(self, backend, source, stream):
        source.start()
        spin(backend, stream)
        backend.synchronize()
        assert len(source.drain().work) == 1

    def test_the_buffer_is_bounded_and_counts_what_it_drops(self, backend, stream):
        source = SimActivitySource(backend.driver, record_limit=10)
        source.start()
        for _ in range(20):
            spin(backend, stream)
        backend.synchronize()
        told = source.drain()
        assert len(told.calls) + len(told.work) == 10
        assert source.dropped_count == 41 - 10
        spin(backend, stream)
        backend.synchronize()
        assert len(source.drain().work) == 1
        assert source.dropped_count == 31
        source.close()

    def test_nothing_of_it_moves_the_clock(self, backend, stream):
        begin_ns = backend.driver.clock.now_ns
        source = backend.activity_source()
        source.start()
        source.drain()
        source.describe_stream(0, 0)
        source.stop()
        source.close()
        assert backend.driver.clock.now_ns == begin_ns

    def test_a_closed_source_gives_nothing_and_does_not_start(self, backend, source, stream):
        spin(backend, stream)
        source.close()
        source.close()
        source.stop()
        backend.synchronize()
        assert len(source.drain().calls) == 0
        with pytest.raises(CaptureUnavailableError, match="was closed"):
            source.start()

    def test_a_closed_device_ends_quietly(self, backend, source, stream):
        spin(backend, stream)
        backend.close()
        assert len(source.drain(is_last=True).work) == 1
        source.stop()
        with pytest.raises(SessionClosedError):
            source.start()
        with pytest.raises(SessionClosedError):
            backend.activity_source()
        source.close()

    def test_the_users_observer_sees_the_same_work(self, backend, source, stream):
        seen = []
        backend.set_observer(seen.append)
        spin(backend, stream)
        backend.synchronize()
        backend.set_observer(None)
        spin(backend, stream)
        backend.synchronize()
        told = source.drain().work
        assert [(work.context, work.stream, work.correlation, work.end_ns) for work in seen] == [
            (told.context[0], told.stream[0], told.correlation[0], told.end_ns[0])
        ]
        assert len(told) == 2

    def test_an_observer_that_fails_does_not_cost_the_source_its_records(self, backend, source, stream, caplog):
        def fail(work):
            raise RuntimeError("no")

        backend.set_observer(fail)
        spin(backend, stream)
        spin(backend, stream)
        backend.synchronize()
        assert len(source.drain().work) == 2
        assert caplog.text.count("observer failed") == 1

    def test_its_repr_says_what_it_does(self, backend):
        source = backend.activity_source()
        assert "stopped" in repr(source)
        source.start()
        assert "collecting" in repr(source)
        source.close()
        assert "closed" in repr(source)

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
        assert sorted(numbers.tolist()) == list(range(1, 401))


def run_program(drain_every):
    """Run a program that uses a bit of everything; return what ended, without numbers of calls, and the host's time."""
    backend = SimBackend("laptop")
    works = []
    backend.set_observer(lambda work: works.append(work[:-1]))
    source = backend.activity_source() if drain_every else None
    xp = backend.xp
    streams = [backend.create_stream(priority=-(i % 3), nonblocking=i != 5) for i in range(6)]
    host, pageable = backend.pinned_empty((64, 64), "f4"), np.ones((64, 64), "f4")
    host[...] = 1
    for number in range(120):
        if source and number % drain_every == 0:
            source.drain()
            (source.stop if number % 3 == 1 else source.start)()
        stream = streams[number % 6]
        token = backend.select(stream)
        array = xp.empty((64, 64), "f4")
        array.set(pageable if number % 10 == 0 else host)
        (array @ array).sum()
        backend.launch_spin(stream, 1_000 + 37 * number, blocks=30 + number, fill_sms=number % 2 == 0)
        event = backend.acquire_event()
        stream.record(event)
        streams[(number + 1) % 6].wait(event)
        backend.restore(token)
        if number % 7 == 0:
            xp.zeros(100)
            backend.synchronize_event(event)
    backend.synchronize()
    return works, backend.host_time_ns()


@pytest.mark.parametrize("drain_every", [1, 2, 5, 50])
def test_a_program_takes_the_same_time_to_the_bit_with_a_source(drain_every):
    assert run_program(drain_every) == run_program(0)
