"""Green contexts of the simulated device: what they cost, where their work runs, and what closing them leaves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends import Backend, ContextSpec, SplitGroup
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import DeviceError, InvalidHandleError, OptionError, SessionClosedError, StreamClosedError

MS = 1_000_000
REMAINDER = 15
EIGHTH = frozenset({0, 1, 16, 17, 32, 33, 48, 49})  # group 0 of an H200


@pytest.fixture
def works(backend):
    seen = []
    backend.set_observer(seen.append)
    return seen


def stream_on(backend, *groups, priority=0):
    return backend.create_context(ContextSpec(groups=groups)).create_stream(priority=priority)


def fill_card(backend, stream, count=1):
    for _ in range(count):
        backend.launch_spin(stream, MS, blocks=132, fill_sms=True)


def durations_ms(works):
    return [(work.end_ns - work.start_ns) / MS for work in works]


def overlaps(first, second):
    return max(first.start_ns, second.start_ns) < min(first.end_ns, second.end_ns)


class TestContexts:
    def test_numbers_count_from_1_and_are_in_the_keys_of_streams(self, backend):
        first = backend.create_context(ContextSpec(groups=(0,)))
        second = backend.create_context(ContextSpec(groups=(1, REMAINDER)))
        streams = [first.create_stream(priority=0), second.create_stream(priority=-2), backend.create_stream(priority=0)]
        assert [stream.key for stream in streams] == [(0, 1, 3), (0, 2, 4), (0, 0, 5)]
        assert streams[1].priority == -2
        assert (first.sm_count, second.sm_count) == (8, 20)

    def test_an_adopted_stream_keeps_its_context(self, backend):
        owner = stream_on(backend, 3, priority=-1)
        adopted = backend.adopt_stream(owner)
        assert (adopted.key, adopted.priority) == (owner.key, -1)

    def test_costs_are_virtual_host_time(self, backend):
        clock, host = backend.driver.clock, backend.preset.host
        start_ns = clock.now_ns
        context = backend.create_context(ContextSpec(groups=(0,)))
        created_ns = clock.now_ns
        context.create_stream(priority=0)
        stream_ns = clock.now_ns
        context.close()
        assert created_ns - start_ns == host.create_context_ns == 1_300_000
        assert stream_ns - created_ns == host.create_stream_ns == 8_000
        assert clock.now_ns - stream_ns == host.destroy_context_ns

    def test_each_context_costs_4_mib_for_good(self, backend):
        assert backend.context_bytes == 0
        for _ in range(3):
            backend.create_context(ContextSpec(groups=(0,))).close()
        assert backend.context_bytes == 3 * 4 * 2**20

    def test_a_refused_context_costs_nothing(self, backend):
        before = backend.driver.clock.now_ns
        with pytest.raises(DeviceError):
            backend.create_context(ContextSpec(groups=(16,)))
        assert (backend.context_bytes, backend.driver.clock.now_ns) == (0, before)

    @pytest.mark.parametrize("priority", [1, -6])
    def test_priorities_outside_the_range_are_refused(self, backend, priority):
        with pytest.raises(OptionError, match="Use priority="):
            stream_on(backend, 0, priority=priority)

    def test_the_backend_keeps_the_protocol(self, backend):
        checked: Backend = backend  # for mypy; at run time the members are looked for
        for member in ("capabilities", "create_context", "probe_sms", "host_to_clock_ns"):
            assert hasattr(checked, member)
        assert backend.host_to_clock_ns(12) == 12

    def test_streams_do_not_wait_for_the_null_stream(self, backend, works):
        fill_card(backend, backend.null_stream)
        backend.launch_spin(stream_on(backend, 0), 1_000, blocks=1, fill_sms=False)
        backend.synchronize()
        assert works[0].stream == backend.null_stream.handle  # it held all SMs: order comes from SMs, not from the stream rule
        assert not backend.driver._blocking


class TestClosing:
    def test_its_streams_cannot_be_used_any_more(self, backend):
        context = backend.create_context(ContextSpec(groups=(0,)))
        stream, event = context.create_stream(priority=0), backend.acquire_event()
        context.close()
        for call in (
            lambda: fill_card(backend, stream),
            lambda: stream.record(event),
            lambda: backend.select(stream),
            lambda: backend.probe_sms([stream]),
        ):
            with pytest.raises(StreamClosedError, match="closed before"):
                call()

    def test_an_adopted_stream_of_it_cannot_be_used_either(self, backend):
        context = backend.create_context(ContextSpec(groups=(0,)))
        adopted = backend.adopt_stream(context.create_stream(priority=0))
        context.close()
        with pytest.raises(StreamClosedError, match="closed before"):
            fill_card(backend, adopted)

    def test_it_makes_no_more_streams(self, backend):
        context = backend.create_context(ContextSpec(groups=(0,)))
        context.close()
        with pytest.raises(InvalidHandleError, match=r"Context 1 .*lab\.partition") as caught:
            context.create_stream(priority=0)
        assert caught.value.driver_code == "CONTEXT_IS_DESTROYED"
        assert "closed" in repr(context)

    def test_work_that_its_streams_hold_still_runs_on_its_sms(self, backend, works):
        context = backend.create_context(ContextSpec(groups=(0,)))
        fill_card(backend, context.create_stream(priority=0))
        context.close()
        backend.synchronize()
        assert durations_ms(works) == [17.0]  # 132 blocks on 8 SMs

    def test_closing_twice_or_after_the_device_is_silent(self, backend):
        first, second = (backend.create_context(ContextSpec(groups=(0,))) for _ in range(2))
        first.close()
        spent_ns = backend.driver.clock.now_ns
        first.close()
        assert backend.driver.clock.now_ns == spent_ns
        backend.close()
        second.close()
        assert second.is_closed

    def test_a_closed_device_makes_no_contexts_and_no_streams_of_them(self, backend):
        context = backend.create_context(ContextSpec(groups=(0,)))
        backend.close()
        for call in (lambda: backend.create_context(ContextSpec(groups=(0,))), context.create_stream):
            with pytest.raises(SessionClosedError, match="was closed"):
                call()

    def test_closed_streams_are_not_kept(self, backend):
        context = backend.create_context(ContextSpec(groups=(0,)))
        for _ in range(100):
            context.create_stream(priority=0).close()
        assert len(context._streams) == 1
        assert len(backend.driver.scheduler.streams) == 1


class TestConfinement:
    @pytest.mark.parametrize("count", [1, 3, 8, 12, 15])
    def test_a_card_filling_kernel_takes_132_over_n_times_as_long_in_whole_waves(self, backend, works, count):
        fill_card(backend, stream_on(backend, *range(count)))
        backend.synchronize()
        assert durations_ms(works) == [-(-132 // (8 * count))]

    def test_disjoint_partitions_run_side_by_side(self, backend, works):
        left, right = stream_on(backend, *range(12)), stream_on(backend, 12, 13, 14, REMAINDER)
        fill_card(backend, left)
        fill_card(backend, right)
        backend.synchronize()
        assert overlaps(*works)
        assert durations_ms(works) == [2.0, 4.0]  # on 96 and on 36 SMs

    def test_four_partitions_run_side_by_side_where_plain_streams_queue(self, backend, works):
        for first in (0, 3, 6, 9):
            fill_card(backend, stream_on(backend, first, first + 1, first + 2))
        backend.synchronize()
        assert durations_ms(works) == [6.0] * 4  # FACTS.md: 6.1 ms on an H200
        assert all(overlaps(*pair) for pair in itertools.combinations(works, 2))

    def test_streams_of_one_partition_queue_up(self, backend, works):
        context = backend.create_context(ContextSpec(groups=(0, 1, 2)))
        for _ in range(2):
            fill_card(backend, context.create_stream(priority=0))
        backend.synchronize()
        assert works[1].start_ns == works[0].end_ns - MS  # on what the last wave of the first leaves over
        assert works[1].end_ns - works[0].start_ns == 11 * MS  # 264 blocks on 24 SMs

    def test_equal_and_overlapping_contexts_share_their_sms(self, backend, works):
        for groups in ((0, 1, 2), (0, 1, 2), (2, 3)):
            fill_card(backend, stream_on(backend, *groups))
        backend.synchronize()
        assert works[1].end_ns - works[0].start_ns == 11 * MS  # 264 blocks on 24 SMs

    def test_the_remainder_alone_is_a_partition(self, backend, works):
        stream = stream_on(backend, REMAINDER)
        fill_card(backend, stream)
        backend.synchronize()
        assert durations_ms(works) == [11.0]
        assert backend.probe_sms([stream])[0].tolist() == list(range(120, 132))

    def test_a_priority_acts_within_its_partition_only(self, backend, works):
        context = backend.create_context(ContextSpec(groups=(0, 1)))
        low, high = context.create_stream(priority=0), context.create_stream(priority=-5)
        other = stream_on(backend, 2, 3)
        backend.launch_spin(low, MS, blocks=160, fill_sms=True)
        backend.launch_spin(other, MS, blocks=160, fill_sms=True)
        backend.launch_spin(high, MS, blocks=16, fill_sms=True)
        backend.synchronize()
        span = {work.stream: work for work in works}
        assert span[high.handle].start_ns == span[low.handle].start_ns + MS  # at the next block boundary
        assert durations_ms([span[low.handle], span[other.handle]]) == [11.0, 10.0]

    def test_a_latency_critical_kernel_does_not_wait_behind_another_partition(self, backend, works):
        bulk, urgent = stream_on(backend, *range(14)), stream_on(backend, 14)
        fill_card(backend, bulk, count=20)
        backend.launch_spin(urgent, 50_000, blocks=8, fill_sms=True)
        submitted_ns = backend.driver.clock.now_ns
        backend.synchronize()
        work = next(work for work in works if work.stream == urgent.handle)
        assert work.end_ns == submitted_ns + 50_000

    def test_memory_bandwidth_is_shared_across_partitions(self, backend, works):
        xp, half = backend.xp, 8_000_000
        streams = [stream_on(backend, *range(7)), stream_on(backend, *range(7, 14))]  # 56 SMs each can draw more than all have
        arrays = [xp.empty(half, "f4") for _ in streams]
        for array, stream in zip(arrays, streams, strict=True):
            token = backend.select(stream)
            _ = array + 1
            backend.restore(token)
        backend.synchronize()
        alone_ns = 2 * half * 4 / 4.25e12 * 1e9
        assert min(work.end_ns - work.start_ns for work in works) > 1.8 * alone_ns

    def test_array_work_is_confined_too(self, backend, works):
        stream, xp = stream_on(backend, 0), backend.xp
        a = xp.ones((512, 512), "f4")  # products of 64 tiles; sums and additions of 32 and more blocks
        seen = watch_placements(backend)
        for target in (stream, backend.null_stream):
            token = backend.select(target)
            _ = (a @ a).sum()
            backend.restore(token)
        backend.synchronize()
        assert seen[stream.handle] == EIGHTH
        assert not seen[0] <= EIGHTH

    @settings(deadline=None, max_examples=25)
    @given(st.permutations(range(16)), st.lists(st.integers(1, 15), min_size=1, max_size=4, unique=True), st.integers(1, 300))
    def test_work_of_any_disjoint_partitions_stays_in_its_own(self, order, cuts, blocks):
        backend = SimBackend()
        bounds = [0, *sorted(cuts), 16]
        parts = [order[start:end] for start, end in itertools.pairwise(bounds)]
        streams = [stream_on(backend, *sorted(part)) for part in parts]
        seen = watch_placements(backend)
        for stream in [*streams, *streams]:
            backend.launch_spin(stream, 1_000, blocks=blocks, fill_sms=True)
        backend.synchronize()
        cut = backend.preset.sm_groups.cut(132)
        for stream, part in zip(streams, parts, strict=True):
            own = {sm for group in part for sm in cut[group]}
            assert seen[stream.handle] <= own
            assert len(seen[stream.handle]) == min(len(own), blocks)
        assert backend.driver.scheduler.pool.free == [32 * len(group) for group in backend.driver.scheduler.pool.groups]


def watch_placements(backend):
    """Note by stream all SMs on which the scheduler starts blocks from now on."""
    scheduler, seen = backend.driver.scheduler, {}

    def note(run, parts):
        for number, blocks in parts:
            seen.setdefault(run.stream.number, set()).update(sorted(scheduler.pool.groups[number])[:blocks])

    scheduler.placement_observer = note
    return seen


class TestProbe:
    def test_it_sees_each_partition_and_the_whole_card(self, backend):
        streams = [stream_on(backend, *range(12)), stream_on(backend, 12, 13, 14, REMAINDER), backend.create_stream(priority=0)]
        ids = backend.probe_sms(streams)
        assert [len(seen) for seen in ids] == [96, 36, 132]
        assert sorted(np.concatenate(ids[:2]).tolist()) == ids[2].tolist() == list(range(132))
        assert all(seen.dtype == np.int64 for seen in ids)

    def test_it_takes_less_than_50_ms_of_virtual_time_for_many_streams(self, backend):
        contexts = [backend.create_context(ContextSpec(groups=(group,))) for group in range(16)]
        streams = [context.create_stream(priority=0) for context in contexts for _ in range(4)]
        start_ns = backend.driver.clock.now_ns
        backend.probe_sms(streams)
        spent_ns = backend.driver.clock.now_ns - start_ns
        assert 100_000 < spent_ns < 50 * MS

    def test_crowded_streams_are_tried_again_alone(self, backend):
        context = backend.create_context(ContextSpec(groups=(0, 1, 2, 3, 4)))
        crowd = [context.create_stream(priority=0) for _ in range(5)] + [backend.create_stream(priority=0) for _ in range(3)]
        assert [len(ids) for ids in backend.probe_sms(crowd)] == [40] * 5 + [132] * 3

    def test_its_kernels_are_real_work_that_waits_its_turn(self, backend, works):
        stream = stream_on(backend, 0)
        fill_card(backend, stream)
        assert backend.probe_sms([stream])[0].tolist() == sorted(EIGHTH)
        assert [work.name for work in works] == ["spin", "gpustreamlab_probe"]
        assert works[1].start_ns >= works[0].end_ns - MS

    def test_a_fault_in_confinement_shows(self, backend):
        stream = stream_on(backend, 0)
        stream.queue.mask = backend.driver.scheduler.pool.full_mask
        assert len(backend.probe_sms([stream])[0]) == 132

    def test_no_streams_and_the_same_stream_twice(self, backend):
        assert backend.probe_sms([]) == []
        stream = stream_on(backend, 0)
        assert [ids.tolist() for ids in backend.probe_sms([stream, stream])] == [sorted(EIGHTH)] * 2

    def test_it_leaves_nothing_behind_also_where_it_fails(self, backend, monkeypatch):
        stream = stream_on(backend, 0)

        def interrupt(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(backend.driver, "synchronize_stream", interrupt)
            backend.probe_sms([stream])
        assert backend.driver.scheduler.placement_observer is None
        assert len(backend.probe_sms([stream])[0]) == 8

    def test_streams_of_others_are_refused(self, backend):
        with pytest.raises(InvalidHandleError, match="not one of its streams"):
            backend.probe_sms([SimBackend().create_stream(priority=0)])


def run_program(preset):
    """Use partitions in every way the preset allows; return what ended, what was seen and the host's time."""
    backend, works = SimBackend(preset), []
    backend.set_observer(works.append)
    specs = [ContextSpec(groups=(0, 2, 4)), ContextSpec(groups=(1, REMAINDER)), ContextSpec(groups=(4, 5))]
    if preset == "h200-cuda13.1":
        split = (SplitGroup(sms=48, coscheduled_sms=4), SplitGroup(sms=30, backfill=True))
        specs += [ContextSpec(split=split, place=place) for place in (0, 1)]
    contexts = [backend.create_context(spec) for spec in specs]
    streams = [context.create_stream(priority=-(place % 2)) for place, context in enumerate(contexts)]
    for number in range(60):
        stream = streams[number % len(streams)]
        backend.launch_spin(stream, 1_000 + 37 * number, blocks=30 + 5 * number, fill_sms=number % 2 == 0)
        if number == 40:
            contexts[0].close()
            streams[0] = backend.create_context(ContextSpec(groups=(0, 1, 2))).create_stream(priority=0)
    seen = [ids.tolist() for ids in backend.probe_sms(streams)]
    backend.synchronize()
    return works, seen, backend.host_time_ns()


@pytest.mark.parametrize("preset", ["h200", "h200-cuda13.1"])
def test_the_same_program_gives_the_same_times_to_the_bit(preset):
    assert run_program(preset) == run_program(preset)


def test_hundreds_of_contexts_of_a_few_sets_leave_the_scheduler_small():
    backend = SimBackend()
    for number in range(300):
        context = backend.create_context(ContextSpec(groups=(number % 10, 10 + number % 3)))
        fill_card(backend, context.create_stream(priority=0))
        context.close()
    backend.synchronize()
    assert len(backend.driver.scheduler.pool.groups) <= 17
    assert backend.driver.streams == {}
    assert backend.context_bytes == 300 * 4 * 2**20
