"""The simulated device behind the backend protocol: host clock, streams, events, NULL stream, errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends.sim import H200, DevicePreset, HostCosts, SimBackend, plan_host_copy
from gpustreamlab.backends.sim._commands import DEVICE_TO_HOST, HOST_TO_DEVICE
from gpustreamlab.errors import (
    BackendNotFoundError,
    EventNotRecordedError,
    InvalidHandleError,
    OptionError,
    SelectionError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
    StreamRefusedError,
)

MS = 1_000_000


@pytest.fixture
def works(backend):
    seen = []
    backend.set_observer(seen.append)
    return seen


def fill_card(backend, stream, duration_ns=MS):
    backend.launch_spin(stream, duration_ns, blocks=backend.device.sm_count, fill_sms=True)


def recorded(backend, stream):
    event = backend.acquire_event()
    stream.record(event)
    return event


class Lender:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class TestHostClock:
    def test_calls_cost_what_the_preset_says(self, backend):
        stream = backend.create_stream(priority=0)
        event = backend.acquire_event()
        costs = backend.preset.host
        calls = [
            (lambda: fill_card(backend, stream), costs.launch_ns),
            (lambda: stream.record(event), costs.record_ns),
            (lambda: stream.wait(event), costs.wait_ns),
            (stream.query, costs.query_ns),
            (lambda: backend.is_event_done(event), costs.query_ns),
            (lambda: backend.restore(backend.select(stream)), costs.select_ns),
            (backend.host_time_ns, costs.clock_read_ns),
        ]
        for call, cost_ns in calls:
            before = backend.driver.clock.now_ns
            call()
            assert backend.driver.clock.now_ns - before == cost_ns

    def test_real_time_is_not_part_of_it(self, backend):
        before = backend.host_time_ns()
        sum(range(200_000))
        assert backend.host_time_ns() - before == backend.preset.host.clock_read_ns

    def test_synchronising_advances_it_to_the_end_of_the_work(self, backend):
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream)
        launched = backend.driver.clock.now_ns
        stream.synchronize()
        assert backend.driver.clock.now_ns == launched + MS + backend.preset.host.synchronize_ns

    def test_a_polling_loop_ends(self, backend):
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream, 100_000)
        polls = 0
        while not stream.query():
            polls += 1
        assert polls == 100_000 // backend.preset.host.query_ns

    def test_a_full_stream_blocks_the_host(self):
        backend = SimBackend(DevicePreset(name="short", sm_count=1, queue_limit=4))
        stream = backend.create_stream(priority=0)
        start = backend.driver.clock.now_ns
        for _ in range(10):
            fill_card(backend, stream)
        waited_ns = backend.driver.clock.now_ns - start
        assert 4 * MS < waited_ns < 6 * MS  # all but the 4 that the stream holds and the one that runs

    def test_observing_is_free(self, backend):
        stream = backend.create_stream(priority=0)
        event = recorded(backend, stream)
        before = backend.driver.clock.now_ns
        with backend.observing():
            backend.host_time_ns()
            stream.query()
            backend.is_event_done(event)
        assert backend.driver.clock.now_ns == before

    def test_free_calls_are_refused_where_they_would_stop_time(self):
        with pytest.raises(OptionError, match="at least 1 ns"):
            HostCosts(query_ns=0)

    def test_the_clock_is_stated_as_exact(self, backend):
        info = backend.clock_info()
        assert (info.epoch_unix_ns, info.clock_error_ns, info.range_error_ns, info.range_correction_ns) == (0, 0, 0, 0)
        assert "virtual" in info.description
        assert backend.tick(5) > 10**18


class TestEvents:
    def test_a_start_event_on_an_idle_stream_fires_at_once_so_ranges_hold_their_queueing(self, backend):
        first, second = backend.create_stream(priority=0), backend.create_stream(priority=0)
        fill_card(backend, first)
        start = recorded(backend, second)
        fill_card(backend, second)
        end = recorded(backend, second)
        second.synchronize()
        assert backend.elapsed_ns(start, end) > 1.9 * MS

    def test_four_full_kernels_end_at_1_2_3_4_units(self, backend, works):
        for _ in range(4):
            fill_card(backend, backend.create_stream(priority=0))
        backend.synchronize()
        ends = [work.end_ns - works[0].start_ns for work in works]
        assert ends == [MS, 2 * MS, 3 * MS, 4 * MS]

    def test_four_quarters_end_side_by_side(self, backend, works):
        for quarter in range(4):
            fill_card(backend, backend.create_stream(priority=0, sm_ids=range(33 * quarter, 33 * quarter + 33)))
        backend.synchronize()
        assert {work.end_ns - work.start_ns for work in works} == {4 * MS}

    def test_recording_again_forgets_the_point_before(self, backend):
        stream = backend.create_stream(priority=0)
        event = recorded(backend, stream)
        backend.synchronize_event(event)
        fill_card(backend, stream)
        stream.record(event)
        assert not backend.is_event_done(event)
        backend.synchronize_event(event)
        assert backend.is_event_done(event)

    def test_a_wait_means_the_record_at_the_time_of_the_call(self, backend):
        first, second = backend.create_stream(priority=0), backend.create_stream(priority=0)
        event = recorded(backend, first)
        second.wait(event)
        backend.launch_spin(first, 10 * MS, blocks=1, fill_sms=True)
        first.record(event)
        backend.launch_spin(second, MS, blocks=1, fill_sms=True)
        second.synchronize()
        assert not first.query()

    def test_waiting_for_an_event_orders_streams(self, backend, works):
        first, second = backend.create_stream(priority=0), backend.create_stream(priority=0)
        backend.launch_spin(first, MS, blocks=1, fill_sms=False)
        second.wait(recorded(backend, first))
        backend.launch_spin(second, MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[1].start_ns == works[0].end_ns

    def test_waiting_for_an_event_that_was_never_recorded_does_nothing(self, backend):
        stream = backend.create_stream(priority=0)
        stream.wait(backend.acquire_event())
        backend.launch_spin(stream, 10, blocks=1, fill_sms=False)
        stream.synchronize()
        assert stream.query()

    def test_an_event_that_was_never_recorded_is_done_and_has_no_time(self, backend):
        event = backend.acquire_event()
        assert backend.is_event_done(event)
        backend.synchronize_event(event)
        with pytest.raises(EventNotRecordedError, match=r"stream\.record\(event\)"):
            backend.elapsed_ns(event, event)

    def test_the_time_of_an_unfinished_event_is_refused(self, backend):
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream)
        event = recorded(backend, stream)
        with pytest.raises(SessionError, match=r"event\.synchronize"):
            backend.elapsed_ns(event, event)

    def test_resolve_gives_exact_times(self, backend):
        stream = backend.create_stream(priority=0)
        start = recorded(backend, stream)
        fill_card(backend, stream)
        end = recorded(backend, stream)
        stream.synchronize()
        times = backend.resolve([start, start], [end, start], np.array([1, 2]))
        assert times.start_ns.tolist() == [start.mark.time_ns] * 2
        assert times.end_ns.tolist() == [end.mark.time_ns, start.mark.time_ns]
        assert times.queued_ns.dtype == np.int64

    def test_released_events_are_used_again_and_are_unrecorded(self, backend):
        event = recorded(backend, backend.create_stream(priority=0))
        backend.release_events([event])
        assert backend.acquire_event() is event
        assert event.mark is None

    def test_repr_says_what_an_event_holds(self, backend):
        event = backend.acquire_event()
        assert repr(event) == "<SimEvent, not recorded>"
        backend.create_stream(priority=0).record(event)
        assert repr(event) == "<SimEvent, recorded>"
        backend.synchronize_event(event)
        assert repr(event).startswith("<SimEvent, reached at ")

    @pytest.mark.parametrize("call", ["record", "wait"])
    def test_foreign_events_are_refused(self, backend, call):
        with pytest.raises(InvalidHandleError, match=r"lab\.event"):
            getattr(backend.create_stream(priority=0), call)(object())
        with pytest.raises(InvalidHandleError, match=r"lab\.event"):
            backend.is_event_done(object())


class TestNullStream:
    def test_it_waits_for_blocking_streams_and_they_for_it(self, backend, works):
        blocking = backend.create_stream(priority=0, nonblocking=False)
        backend.launch_spin(blocking, MS, blocks=1, fill_sms=False)
        backend.launch_spin(backend.null_stream, MS, blocks=1, fill_sms=False)
        backend.launch_spin(blocking, MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert [work.stream for work in works] == [blocking.handle, 0, blocking.handle]
        assert works[1].start_ns == works[0].end_ns
        assert works[2].start_ns == works[1].end_ns

    def test_streams_are_exempt_by_default(self, backend, works):
        stream = backend.create_stream(priority=0)
        backend.launch_spin(stream, MS, blocks=1, fill_sms=False)
        backend.launch_spin(backend.null_stream, MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[1].start_ns < works[0].end_ns

    def test_two_blocking_streams_overlap_with_each_other(self, backend, works):
        for _ in range(2):
            backend.launch_spin(backend.create_stream(nonblocking=False), MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[1].start_ns < works[0].end_ns

    def test_a_blocking_stream_made_later_waits_for_what_the_null_stream_holds(self, backend, works):
        backend.launch_spin(backend.null_stream, MS, blocks=1, fill_sms=False)
        backend.launch_spin(backend.create_stream(nonblocking=False), MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[1].start_ns == works[0].end_ns

    def test_it_waits_for_a_blocking_stream_that_was_closed(self, backend, works):
        blocking = backend.create_stream(nonblocking=False)
        backend.launch_spin(blocking, MS, blocks=1, fill_sms=False)
        blocking.close()
        backend.launch_spin(backend.null_stream, MS, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[1].start_ns == works[0].end_ns

    def test_xp_works_on_it_while_no_stream_is_selected(self, backend, works):
        backend.xp.ones(8)
        backend.synchronize()
        assert [work.stream for work in works] == [0]


class TestStreams:
    def test_handles_are_above_cudas_default_streams(self, backend):
        stream = backend.create_stream(priority=-2)
        assert stream.handle > 2
        assert stream.key == (0, 0, stream.handle)
        assert stream.priority == -2

    def test_selection_is_per_thread(self, backend):
        stream = backend.create_stream(priority=0)
        token = backend.select(stream)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(backend.selected_stream))
        thread.start()
        thread.join()
        assert seen == [backend.null_stream]
        assert backend.selected_stream is stream
        backend.restore(token)
        assert backend.selected_stream is backend.null_stream

    def test_many_threads_lose_no_work(self, backend, works):
        def submit(stream):
            for _ in range(200):
                backend.launch_spin(stream, 100, blocks=1, fill_sms=False)

        threads = [threading.Thread(target=submit, args=(backend.create_stream(priority=0),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        backend.synchronize()
        assert len(works) == 800

    def test_closing_twice_is_silent_and_later_use_is_not(self, backend):
        stream = backend.create_stream(priority=0)
        stream.close()
        stream.close()
        for call in (stream.query, stream.synchronize, lambda: fill_card(backend, stream), lambda: backend.select(stream)):
            with pytest.raises(StreamClosedError, match=r"lab\.stream"):
                call()
        with pytest.raises(StreamClosedError):
            stream.record(backend.acquire_event())

    def test_work_of_a_closed_stream_still_ends(self, backend, works):
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream)
        stream.close()
        backend.synchronize()
        assert len(works) == 1
        assert stream.queue not in backend.driver.scheduler.streams

    def test_a_lent_stream_is_adopted_and_survives_being_closed(self, backend):
        owner = backend.create_stream(priority=-1)
        adopted = backend.adopt_stream(owner)
        assert (adopted.handle, adopted.key, adopted.priority) == (owner.handle, owner.key, -1)
        adopted.close()
        assert owner.query()

    @pytest.mark.parametrize("handle", [0, 1, 2])
    def test_default_streams_are_refused_with_the_reason(self, backend, handle):
        with pytest.raises(StreamRefusedError, match="cannot be a lane"):
            backend.adopt_stream(Lender(handle))

    def test_unknown_handles_are_refused(self, backend):
        with pytest.raises(StreamRefusedError, match="does not know"):
            backend.adopt_stream(Lender(77))

    def test_objects_that_lend_nothing_are_refused(self, backend):
        with pytest.raises(StreamRefusedError, match="__cuda_stream__"):
            backend.adopt_stream(42)

    def test_a_stream_of_another_device_is_refused(self, backend):
        with pytest.raises(InvalidHandleError, match="not one of its streams"):
            backend.select(SimBackend().create_stream(priority=0))

    def test_a_wrong_token_is_refused(self, backend):
        with pytest.raises(SelectionError, match="select"):
            backend.restore(None)

    @pytest.mark.parametrize("priority", [1, -6, 10**9])
    def test_priorities_outside_the_range_are_refused(self, backend, priority):
        with pytest.raises(OptionError, match="Use priority="):
            backend.create_stream(priority=priority)

    @pytest.mark.parametrize("sm_ids", [[], [132], [-1, 0]])
    def test_sms_that_do_not_exist_are_refused(self, backend, sm_ids):
        with pytest.raises(OptionError, match="SMs"):
            backend.create_stream(sm_ids=sm_ids)

    def test_a_priority_runs_first_at_the_next_block_boundary(self, backend, works):
        low, high = backend.create_stream(priority=0), backend.create_stream(priority=-1)
        backend.launch_spin(low, MS, blocks=132 * 5, fill_sms=True)
        fill_card(backend, high)
        backend.synchronize()
        assert works[0].stream == high.handle
        assert works[0].start_ns == works[1].start_ns + MS
        assert works[1].end_ns == works[1].start_ns + 6 * MS


class TestCopies:
    @pytest.mark.parametrize("engine", [HOST_TO_DEVICE, DEVICE_TO_HOST])
    def test_a_copy_takes_its_bytes_over_the_link(self, engine):
        pinned = plan_host_copy(H200, engine, 55_000_000, is_pinned=True)
        assert pinned.duration_ns == 1_000_000 + H200.copy_latency_ns
        assert plan_host_copy(H200, engine, 55_000_000, is_pinned=False).duration_ns > 4 * pinned.duration_ns

    def test_pinned_copies_return_at_once_and_both_directions_overlap(self, backend, works):
        array = backend.xp.empty(1_000_000, "f4")
        other = backend.xp.empty(1_000_000, "f4")
        host = backend.pinned_empty(1_000_000, "f4")
        host[:] = 1
        up, down = backend.create_stream(priority=0), backend.create_stream(priority=0)
        start = backend.driver.clock.now_ns
        token = backend.select(up)
        array.set(host)
        backend.select(down)
        other.get(out=backend.pinned_empty(1_000_000, "f4"), blocking=False)
        backend.restore(token)
        assert backend.driver.clock.now_ns - start < 20_000
        backend.synchronize()
        assert works[1].start_ns < works[0].end_ns

    def test_pageable_copies_block_the_host(self, backend):
        array = backend.xp.empty(1_000_000, "f4")
        start = backend.driver.clock.now_ns
        array.set(np.ones(1_000_000, "f4"))
        assert backend.driver.clock.now_ns - start > 4_000_000 / 12

    def test_views_of_pinned_memory_are_pinned_and_copies_are_not(self, backend):
        from gpustreamlab.backends.sim._memory import is_pinned

        host = backend.pinned_empty((4, 4), np.float32)
        assert type(host) is np.ndarray
        for view in (host, host[1:], host[::2].T, host.view("i4"), host.reshape(-1)[3:]):
            assert is_pinned(view)
        for copy in (host.copy(), host + 1, np.ascontiguousarray(host.T), np.ones(3)):
            assert not is_pinned(copy)


class TestPresets:
    def test_the_device_is_marked_as_simulated(self):
        for name in ("h200", "laptop"):
            backend = SimBackend(name)
            assert backend.device.simulated
            assert "simulated" in backend.source()
            assert "simulated" in repr(backend)

    def test_a_preset_of_ones_own(self):
        assert SimBackend(DevicePreset(name="mine", sm_count=2)).device.sm_count == 2

    def test_an_unknown_preset_names_the_nearest(self):
        with pytest.raises(BackendNotFoundError, match="Did you mean 'laptop'"):
            SimBackend("labtop")

    @pytest.mark.parametrize("wrong", [{"sm_count": 0}, {"slots_per_sm": 24}, {"queue_limit": 0}, {"memory_bytes_per_s": 0}])
    def test_impossible_sizes_are_refused(self, wrong):
        with pytest.raises(OptionError, match="DevicePreset 'x'"):
            DevicePreset(**{"name": "x", "sm_count": 1, **wrong})


class TestLife:
    def test_closing_twice_is_silent_and_later_use_says_so(self):
        backend = SimBackend()
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream)
        backend.close()
        backend.close()
        calls = (
            lambda: fill_card(backend, stream),
            backend.synchronize,
            backend.create_stream,
            backend.acquire_event,
            lambda: backend.select(stream),
            lambda: backend.adopt_stream(stream),
            lambda: backend.xp.ones(3),
        )
        for call in calls:
            with pytest.raises(SessionClosedError, match="was closed"):
                call()
        assert "closed" in repr(backend)
        stream.close()

    def test_an_observer_that_fails_is_dropped_and_logged(self, backend, caplog):
        def observe(work):
            raise RuntimeError("no")

        backend.set_observer(observe)
        stream = backend.create_stream(priority=0)
        fill_card(backend, stream)
        fill_card(backend, stream)
        backend.synchronize()
        assert caplog.text.count("observer failed") == 1
        assert stream.query()

    def test_other_tools_see_nothing(self, backend):
        backend.push_range(backend.annotation("name"))
        backend.pop_range()
        assert backend.annotation("name") == "name"

    @pytest.mark.parametrize(("duration_ns", "blocks"), [(0, 1), (-5, 1), (1, 0)])
    def test_impossible_spins_are_refused(self, backend, duration_ns, blocks):
        with pytest.raises(OptionError, match="spin"):
            backend.launch_spin(backend.create_stream(priority=0), duration_ns, blocks=blocks, fill_sms=True)


def run_program():
    """Run a program that uses a bit of everything; return everything that ended and the host's time."""
    backend = SimBackend("laptop")
    works = []
    backend.set_observer(works.append)
    xp = backend.xp
    streams = [backend.create_stream(priority=-(i % 3), sm_ids=None if i % 2 else range(2 * i, 2 * i + 4)) for i in range(6)]
    host = backend.pinned_empty((64, 64), "f4")
    host[...] = 1
    for number in range(60):
        stream = streams[number % 6]
        token = backend.select(stream)
        array = xp.empty((64, 64), "f4")
        array.set(host)
        (array @ array).sum()
        backend.launch_spin(stream, 1_000 + 37 * number, blocks=30 + number, fill_sms=number % 2 == 0)
        streams[(number + 1) % 6].wait(recorded(backend, stream))
        backend.restore(token)
    backend.synchronize()
    return works, backend.host_time_ns()


def test_the_same_program_gives_the_same_times_to_the_bit():
    assert run_program() == run_program()


@pytest.mark.parametrize("lazy_commands", [0, 1, 7])
def test_how_lazily_the_device_is_simulated_does_not_matter(monkeypatch, lazy_commands):
    usual = run_program()
    monkeypatch.setattr("gpustreamlab.backends.sim._driver._LAZY_COMMANDS", lazy_commands)
    assert run_program() == usual
