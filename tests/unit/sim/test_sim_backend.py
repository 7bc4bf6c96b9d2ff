"""The simulated device behind the protocol: what calls cost, the NULL stream, errors, and that it repeats to the bit."""

from __future__ import annotations

import hashlib
import json
from functools import cache

import numpy as np
import pytest

from gpustreamlab.backends import ContextSpec
from gpustreamlab.backends.sim import H200, DevicePreset, HostCosts, SimBackend, plan_host_copy
from gpustreamlab.errors import (
    BackendNotFoundError,
    DeviceMemoryError,
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


def fill_card(backend, stream, duration_ns=MS):
    backend.launch_spin(stream, duration_ns, blocks=backend.device.sm_count, fill_sms=True)


def small(backend, stream, duration_ns=MS):
    backend.launch_spin(stream, duration_ns, blocks=1, fill_sms=False)


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
    def test_calls_cost_what_the_preset_says(self, backend, stream, cost_ns):
        event, costs = backend.acquire_event(), backend.preset.host
        contexts = []
        calls = [
            (lambda: fill_card(backend, stream), costs.launch_ns),
            (lambda: stream.record(event), costs.record_ns),
            (lambda: stream.wait(event), costs.wait_ns),
            (stream.query, costs.query_ns),
            (lambda: backend.is_event_done(event), costs.query_ns),
            (lambda: backend.restore(backend.select(stream)), costs.select_ns),
            (backend.host_time_ns, costs.clock_read_ns),
            (backend.glance_ns, 0),
            (lambda: backend.push_range(backend.annotation("name")), costs.push_ns),
            (backend.pop_range, costs.push_ns),
            (lambda: contexts.append(backend.create_context(ContextSpec(groups=(0,)))), 1_300_000),
            (lambda: contexts[0].create_stream(priority=0), 8_000),
            (lambda: contexts[0].close(), costs.destroy_context_ns),
            (lambda: contexts[0].close(), 0),
            (lambda: sum(range(200_000)), 0),  # real time is not part of it
        ]
        for call, expected_ns in calls:
            assert cost_ns(call) == expected_ns
        with backend.observing():
            for call in (backend.host_time_ns, stream.query, lambda: backend.is_event_done(event)):
                assert cost_ns(call) == 0

    def test_synchronising_advances_it_to_the_end_of_the_work(self, backend, stream, cost_ns):
        fill_card(backend, stream)
        assert cost_ns(stream.synchronize) == MS + backend.preset.host.synchronize_ns

    def test_a_full_stream_blocks_the_host(self):
        backend = SimBackend(DevicePreset(name="short", sm_count=1, queue_limit=4))
        stream = backend.create_stream(priority=0)
        start = backend.driver.clock.now_ns
        for _ in range(10):
            fill_card(backend, stream)
            assert len(stream.queue.queue) <= 4
        waited_ns = backend.driver.clock.now_ns - start
        assert 4 * MS < waited_ns < 6 * MS  # all but the 4 that the stream holds and the one that runs

    def test_the_clock_is_stated_as_exact(self, backend):
        info = backend.clock_info()
        assert (info.epoch_unix_ns, info.clock_error_ns, info.range_error_ns, info.range_correction_ns) == (0, 0, 0, 0)
        assert "virtual" in info.description
        assert (backend.tick(5) > 10**18, backend.host_to_clock_ns(12)) == (True, 12)


class TestEvents:
    def test_a_start_event_on_an_idle_stream_fires_at_once_so_ranges_hold_their_queueing(self, backend, stream):
        fill_card(backend, backend.create_stream(priority=0))
        start = recorded(backend, stream)
        fill_card(backend, stream)
        end = recorded(backend, stream)
        stream.synchronize()
        assert backend.elapsed_ns(start, end) > 1.9 * MS
        times = backend.resolve([start, start], [end, start], np.array([1, 2]))
        assert times.start_ns.tolist() == [start.mark.time_ns] * 2
        assert times.end_ns.tolist() == [end.mark.time_ns, start.mark.time_ns]
        assert times.queued_ns.dtype == np.int64

    def test_recording_again_forgets_the_point_before(self, backend, stream):
        event = recorded(backend, stream)
        assert repr(event) == "<SimEvent, recorded>"
        backend.synchronize_event(event)
        assert repr(event).startswith("<SimEvent, reached at ")
        fill_card(backend, stream)
        stream.record(event)
        assert not backend.is_event_done(event)
        with pytest.raises(SessionError, match=r"event\.synchronize"):
            backend.elapsed_ns(event, event)
        backend.synchronize_event(event)
        assert backend.is_event_done(event)
        backend.release_events([event])
        assert repr(event) == "<SimEvent, not recorded>"

    def test_an_event_that_was_never_recorded_is_done_and_has_no_time(self, backend, stream):
        event = backend.acquire_event()
        assert backend.is_event_done(event)
        backend.synchronize_event(event)
        stream.wait(event)
        stream.synchronize()
        with pytest.raises(EventNotRecordedError, match=r"stream\.record\(event\)"):
            backend.elapsed_ns(event, event)

    def test_foreign_events_are_refused(self, backend, stream):
        for call in (stream.record, stream.wait, backend.is_event_done):
            with pytest.raises(InvalidHandleError, match=r"lab\.event"):
                call(object())


class TestNullStream:
    def test_it_and_the_streams_of_a_session_run_side_by_side(self, backend, works, stream):
        for one in (stream, backend.null_stream):
            small(backend, one)
        backend.synchronize()
        assert works[1].start_ns < works[0].end_ns

    def test_xp_works_on_it_while_no_stream_is_selected(self, backend, works):
        backend.xp.ones(8)
        assert backend.unselected_work == 1
        backend.synchronize()
        assert [work.stream for work in works] == [0]


class TestStreams:
    def test_closing_twice_is_silent_and_later_use_is_not(self, backend, works, stream):
        fill_card(backend, stream)
        adopted, event = backend.adopt_stream(stream), backend.acquire_event()
        assert (adopted.handle, adopted.key, adopted.priority) == (stream.handle, stream.key, 0)
        adopted.close()
        assert not stream.query()  # its owner's still
        again = backend.adopt_stream(stream)
        stream.close()
        stream.close()
        calls = (stream.query, stream.synchronize, lambda: fill_card(backend, stream), lambda: backend.select(stream))
        for call in (*calls, lambda: stream.record(event), lambda: fill_card(backend, again)):
            with pytest.raises(StreamClosedError, match=r"lab\.stream"):
                call()
        backend.synchronize()
        assert len(works) == 1  # what it held still ran
        assert stream.queue not in backend.driver.scheduler.streams

    @pytest.mark.parametrize(
        ("lender", "words"),
        [
            *((Lender(handle), "no session can take it") for handle in (0, 1, 2)),
            (Lender(77), "does not know"),
            (42, "__cuda_stream__"),
            (SimBackend().create_stream(priority=0), "is of another simulated device"),
        ],
    )
    def test_what_cannot_be_a_lane_is_refused_with_the_reason(self, backend, lender, words):
        with pytest.raises(StreamRefusedError, match=words):
            backend.adopt_stream(lender)

    def test_wrong_arguments_are_refused(self, backend, stream):
        other = SimBackend().create_stream(priority=0)
        calls = [
            (lambda: backend.select(other), InvalidHandleError, "not one of its streams"),
            (lambda: backend.probe_sms([other]), InvalidHandleError, "not one of its streams"),
            (lambda: backend.restore(None), SelectionError, "select"),
            *(
                (lambda sm_ids=sm_ids: backend.create_stream(sm_ids=sm_ids), OptionError, "SMs")
                for sm_ids in ([], [132], [-1, 0])
            ),
            *((lambda low=low: backend.create_stream(priority=low), OptionError, "Use priority=") for low in (1, -6, 10**9)),
            *((lambda ns=ns: small(backend, stream, ns), OptionError, "spin") for ns in (0, -5)),
            (lambda: backend.launch_spin(stream, 1, blocks=0, fill_sms=True), OptionError, "spin"),
            (lambda: SimBackend("labtop"), BackendNotFoundError, "Did you mean 'laptop'"),
            (lambda: HostCosts(query_ns=0), OptionError, "at least 1 ns"),
            *(
                (lambda more=more: DevicePreset(**{"name": "x", "sm_count": 1} | more), OptionError, f"'x' has {min(more)}=")
                for more in (
                    *({"sm_count": 0}, {"slots_per_sm": 24}, {"memory_bytes_per_s": 0}),
                    *({"matmul_extra_waves": {"f2": waves}} for waves in (-0.1, float("nan"), float("inf"))),
                    *({"driver_version": version} for version in ("", "13", "13.x", "13.0.1", "v13.0")),
                )
            ),
        ]
        for call, error, words in calls:
            with pytest.raises(error, match=words):
                call()


class TestCopies:
    @pytest.mark.parametrize("engine", [0, 1])
    def test_a_copy_takes_its_bytes_over_the_link(self, engine):
        pinned = plan_host_copy(H200, engine, 55_000_000, is_pinned=True)
        assert pinned.duration_ns == 1_000_000 + H200.copy_latency_ns
        assert plan_host_copy(H200, engine, 55_000_000, is_pinned=False).duration_ns > 4 * pinned.duration_ns

    def test_pinned_copies_return_at_once_and_both_directions_overlap(self, backend, works, stream, cost_ns):
        array, other = backend.xp.empty(1_000_000, "f4"), backend.xp.empty(1_000_000, "f4")
        host, back = backend.pinned_empty(1_000_000, "f4"), backend.pinned_empty(1_000_000, "f4")
        token = backend.select(stream)
        assert cost_ns(lambda: array.set(host)) < 10_000
        backend.restore(token)
        assert cost_ns(lambda: other.get(out=back, blocking=False)) < 10_000
        backend.synchronize()
        assert works[1].start_ns < works[0].end_ns
        assert cost_ns(lambda: array.set(np.ones(1_000_000, "f4"))) > 4_000_000 / 12  # pageable memory blocks the host

    def test_views_of_pinned_memory_are_pinned_and_copies_are_not(self, backend, cost_ns):
        host = backend.pinned_empty((400, 400), np.float32)
        host.fill(1)
        assert type(host) is np.ndarray
        for view in (host, host[1:], host[::2].T, host.view("i4"), host.reshape(-1)[3:]):
            array = backend.xp.empty(view.shape, view.dtype)
            assert cost_ns(lambda array=array, view=view: array.set(view)) < 10_000  # it does not wait
        for copy in (host.copy(), host + 1, np.ascontiguousarray(host.T)):
            array = backend.xp.empty(copy.shape, copy.dtype)
            assert cost_ns(lambda array=array, copy=copy: array.set(copy)) > 10_000

    def test_scratch_aliases_and_is_counted(self, backend, stream):
        address = backend.allocate_scratch(stream, 4_096)
        one, other = (backend.scratch_array(address, 4_096, 8, "f4", self) for _ in range(2))
        one[:] = 3
        assert other.get().tolist() == [3] * 8
        with pytest.raises(DeviceMemoryError, match="4,096 of its"):
            backend.allocate_scratch(stream, 1 << 50)
        backend.free_scratch(stream, address)
        for call in (lambda: backend.free_scratch(stream, address), lambda: backend.scratch_array(address, 1, 1, "u1", self)):
            with pytest.raises(InvalidHandleError, match="no memory at"):
                call()


def test_a_closed_device_says_so():
    backend = SimBackend()
    assert backend.device.simulated
    assert "simulated" in backend.source()
    assert "simulated" in repr(backend)
    stream, context = backend.create_stream(priority=0), backend.create_context(ContextSpec(groups=(0,)))
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
        lambda: backend.create_context(ContextSpec(groups=(0,))),
        context.create_stream,
    )
    for call in calls:
        with pytest.raises(SessionClosedError, match="was closed"):
            call()
    assert "closed" in repr(backend)
    stream.close()
    context.close()
    assert context.is_closed


DIGESTS = {"h200-cuda13.1": "83a68b5c69b820b6", "laptop": "9480a141e2266bec"}
"""Of everything that `run_program` gives. They change with the model only, which is told in the change log."""


def run_program(preset="h200-cuda13.1", *, drain_every=0):
    """Run a program that uses a bit of everything; return what ended, without numbers of calls, the SMs and the host's time.

    With `drain_every`, a source of activities collects on and off meanwhile.
    """
    backend, works = SimBackend(preset), []
    backend.driver.scheduler.observer = lambda work: works.append(work[:-1])
    source = backend.activity_source() if drain_every else None
    streams = [backend.create_stream(priority=-(i % 3), sm_ids=None if i % 2 else range(2 * i, 2 * i + 4)) for i in range(6)]
    if backend.device.sm_resource is not None:
        streams += [
            backend.create_context(ContextSpec(groups=groups)).create_stream(priority=0) for groups in ((0, 2), (2, 15))
        ]
    host, pageable = backend.pinned_empty((64, 64), "f4"), np.ones((64, 64), "f4")
    host[...] = 1
    for number in range(160):
        if source and number % drain_every == 0:
            source.drain()
            (source.stop if number % 3 == 1 else source.start)()
        stream = streams[number % len(streams)]
        token = backend.select(stream)
        array = backend.xp.empty((64, 64), "f4")
        array.set(pageable if number % 10 == 0 else host)
        (array @ array).sum().cumsum()
        if number % 20 == 0:
            array.get()
        backend.launch_spin(stream, 1_000 + 37 * number, blocks=30 + number, fill_sms=number % 2 == 0)
        event = recorded(backend, stream)
        streams[(number + 1) % len(streams)].wait(event)
        backend.restore(token)
        if number % 7 == 0:
            backend.xp.zeros(100)
            backend.synchronize_event(event)
    seen = [ids.tolist() for ids in backend.probe_sms(streams)]
    backend.synchronize()
    return works, seen, backend.host_time_ns()


plain_run = cache(run_program)


@pytest.mark.parametrize("preset", ["h200-cuda13.1", "laptop"])
@pytest.mark.parametrize("drain_every", [0, 1, 5, 50])
def test_a_program_takes_the_same_time_to_the_bit_also_with_a_source(preset, drain_every):
    assert run_program(preset, drain_every=drain_every) == plain_run(preset)


@pytest.mark.parametrize(("preset", "digest"), DIGESTS.items())
def test_a_program_takes_the_time_that_it_always_took(preset, digest):
    works, seen, end_ns = plain_run(preset)
    plain = [[work[0].value, *work[1:]] for work in works]
    assert hashlib.sha256(json.dumps([plain, seen, end_ns]).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("lazy_commands", [0, 1, 7])
def test_how_lazily_the_device_is_simulated_does_not_matter(monkeypatch, lazy_commands):
    usual = plain_run("h200-cuda13.1")
    monkeypatch.setattr("gpustreamlab.backends.sim._driver._LAZY_COMMANDS", lazy_commands)
    assert run_program() == usual
