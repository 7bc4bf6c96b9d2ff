"""Green contexts of the simulated device: where their work runs, and what closing them leaves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends import ContextSpec
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import DeviceError, InvalidHandleError, OptionError, StreamClosedError

MS = 1_000_000
REMAINDER = 15
EIGHTH = frozenset({0, 1, 16, 17, 32, 33, 48, 49})  # group 0 of an H200


def stream_on(backend, *groups, priority=0):
    return backend.create_context(ContextSpec(groups=groups)).create_stream(priority=priority)


def fill_card(backend, stream, blocks=132):
    backend.launch_spin(stream, MS, blocks=blocks, fill_sms=True)


def durations_ms(works):
    return [(work.end_ns - work.start_ns) / MS for work in works]


class TestContexts:
    def test_what_is_refused_costs_nothing(self, backend, cost_ns):
        def refused():
            with pytest.raises(DeviceError):
                backend.create_context(ContextSpec(groups=(16,)))

        assert (cost_ns(refused), backend.driver.context_count) == (0, 0)
        for priority in (1, -6):
            with pytest.raises(OptionError, match="Use priority="):
                stream_on(backend, 0, priority=priority)

    def test_a_closed_one_makes_no_streams_and_its_streams_cannot_be_used(self, backend, works):
        context = backend.create_context(ContextSpec(groups=(0,)))
        stream, event = context.create_stream(priority=0), backend.acquire_event()
        adopted = backend.adopt_stream(stream)
        fill_card(backend, stream)
        context.close()
        for call in (
            lambda: fill_card(backend, stream),
            lambda: fill_card(backend, adopted),
            lambda: stream.record(event),
            lambda: backend.select(stream),
            lambda: backend.probe_sms([stream]),
        ):
            with pytest.raises(StreamClosedError, match="closed before"):
                call()
        with pytest.raises(InvalidHandleError, match=r"Context 1 .*lab\.partition") as caught:
            context.create_stream(priority=0)
        assert caught.value.driver_code == "CONTEXT_IS_DESTROYED"
        assert "closed" in repr(context)
        backend.synchronize()
        assert durations_ms(works) == [17.0]  # what it held still ran: 132 blocks on 8 SMs

    def test_closed_streams_and_contexts_leave_the_scheduler_small(self, backend):
        for number in range(300):
            context = backend.create_context(ContextSpec(groups=(number % 10, 10 + number % 3)))
            for _ in range(3):
                context.create_stream(priority=0).close()
            assert len(context._streams) <= 1
            fill_card(backend, context.create_stream(priority=0))
            context.close()
        backend.synchronize()
        assert len(backend.driver.scheduler.pool.groups) <= 17
        assert len(backend.driver.scheduler.streams) == 1
        assert backend.driver.streams == {}
        assert backend.driver.context_count == 300


# Partitions by their groups, each with priorities of streams and blocks of their kernels; what the kernels take, in ms.
SIDE_BY_SIDE = {
    **{f"{count} groups": ([(range(count), [(0, 132)])], [-(-132 // (8 * count))]) for count in (1, 3, 8, 12, 15)},
    "96 and 36 SMs": ([(range(12), [(0, 132)]), ((12, 13, 14, REMAINDER), [(0, 132)])], [2, 4]),
    "four of 24 SMs": ([(range(first, first + 3), [(0, 132)]) for first in (0, 3, 6, 9)], [6] * 4),  # FACTS.md: 6.1 ms
    "the remainder alone": ([((REMAINDER,), [(0, 132)])], [11]),
    "a shared set of 24 SMs, in turns": ([(range(3), [(0, 132), (0, 132)])], [6, 6]),
    "a priority acts within its partition only": (
        [((0, 1), [(0, 160), (-5, 16)]), ((2, 3), [(0, 160)])],
        [11, 1, 10],
    ),
}


class TestConfinement:
    @pytest.mark.parametrize(("partitions", "expected_ms"), SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
    def test_disjoint_partitions_run_side_by_side_in_whole_waves(self, backend, works, partitions, expected_ms):
        contexts = [backend.create_context(ContextSpec(groups=tuple(groups))) for groups, _ in partitions]
        streams = [
            (context.create_stream(priority=priority), blocks)
            for context, (_, own) in zip(contexts, partitions, strict=True)
            for priority, blocks in own
        ]
        for stream, blocks in streams:
            fill_card(backend, stream, blocks)
        backend.synchronize()
        by_stream = {work.stream: work for work in works}
        assert durations_ms([by_stream[stream.handle] for stream, _ in streams]) == expected_ms
        assert max(work.start_ns for work in works) < min(work.end_ns for work in works) or 1 in expected_ms

    def test_memory_bandwidth_is_shared_across_partitions(self, backend, works):
        half = 8_000_000
        streams = [stream_on(backend, *range(7)), stream_on(backend, *range(7, 14))]  # 56 SMs each can draw more than all have
        array = backend.xp.empty(half, "f4")
        for stream in streams:
            backend.select(stream)
            _ = array + 1
        backend.synchronize()
        alone_ns = 2 * half * 4 / 4.25e12 * 1e9
        assert min(work.end_ns - work.start_ns for work in works) > 1.8 * alone_ns

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
            token = backend.select(stream)
            backend.xp.ones((64, 64), "f4").sum()
            backend.restore(token)
        backend.synchronize()
        cut = backend.preset.sm_groups.cut(132)
        for stream, part in zip(streams, parts, strict=True):
            own = {sm for group in part for sm in cut[group]}
            assert seen[stream.handle] <= own
            assert len(seen[stream.handle]) >= min(len(own), blocks)
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
        assert backend.probe_sms([stream_on(backend, REMAINDER)])[0].tolist() == list(range(120, 132))
        assert backend.probe_sms([]) == []

    def test_crowded_streams_are_tried_again_alone(self, backend):
        context = backend.create_context(ContextSpec(groups=(0, 1, 2, 3, 4)))
        crowd = [context.create_stream(priority=0) for _ in range(5)] + [backend.create_stream(priority=0) for _ in range(3)]
        assert [len(ids) for ids in backend.probe_sms(crowd)] == [40] * 5 + [132] * 3

    def test_it_leaves_nothing_behind_also_where_it_fails(self, backend, monkeypatch):
        stream = stream_on(backend, 0)

        def interrupt(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(backend.driver, "synchronize_stream", interrupt)
            backend.probe_sms([stream])
        assert backend.driver.scheduler.placement_observer is None
        assert len(backend.probe_sms([stream])[0]) == 8
