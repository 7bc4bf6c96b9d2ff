"""Schedules small enough to compute by hand, then properties of memory and SM sets, and a plain scheduler beside it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends.sim import DevicePreset, HostCosts, KernelSpec, SimBackend, plan_host_copy
from gpustreamlab.errors import OptionError
from tests.helpers.long_runs import count
from tests.unit.sim.sim_reference import Job, Reference

TINY = DevicePreset(name="tiny", sm_count=4, slots_per_sm=4, memory_bytes_per_s=2_000_000_000, sm_bytes_per_s=1_000_000_000)
FULL = 4  # slots of a block that takes a whole SM


class Lab:
    """The scheduler of a backend, with everything that ended on it; streams count from 0 beside the NULL stream."""

    def __init__(self):
        self.scheduler = SimBackend(TINY).driver.scheduler
        self.works = []
        self.scheduler.observer = self.works.append

    def stream(self, priority=0, sm_ids=None):
        number = len(self.scheduler.streams) - 1
        return self.scheduler.add_stream(number, priority, None if sm_ids is None else frozenset(sm_ids))

    def launch(self, stream, at, *, blocks, ns, slots=FULL, **more):
        spec = KernelSpec(name="k", blocks=blocks, block_slots=slots, block_ns=ns, **more)
        self.scheduler.submit_kernel(stream, spec, at)

    def spans(self):
        while self.scheduler.busy_count:
            self.scheduler.step()
        return [(work.stream, work.start_ns, work.end_ns) for work in self.works]


@pytest.fixture
def lab():
    return Lab()


def memory_bound(blocks, ns):
    """A kernel whose blocks each draw all that their SM may: 1 GB/s, so 1 byte per ns."""
    return {"blocks": blocks, "ns": ns, "block_bytes": ns, "block_limit_bytes_per_s": 1_000_000_000}


def one(at, ns, blocks=1, slots=FULL):
    return at, {"blocks": blocks, "ns": ns, "slots": slots}


# Streams by their options, each with its launches (when, what), and the spans (stream, start, end) in the order of the ends.
SCHEDULES = {
    "one block runs for its time": ([({}, [one(10, 100)])], [(0, 10, 110)]),
    "a stream runs in order": ([({}, [one(0, 100), one(5, 50)])], [(0, 0, 100), (0, 100, 150)]),
    "a gap stays where the host was late": ([({}, [one(0, 10), one(500, 10)])], [(0, 0, 10), (0, 500, 510)]),
    "kernels that fill the card run in turn": (
        [({}, [one(at, 1_000, 4)]) for at in range(4)], [(at, at and 1_000 * at, 1_000 * (at + 1)) for at in range(4)],
    ),
    "kernels in partitions run side by side": (
        [({"sm_ids": [quarter]}, [one(0, 1_000, 4)]) for quarter in range(4)], [(quarter, 0, 4_000) for quarter in range(4)],
    ),
    "small kernels share the card": (
        [({}, [one(0, 100, slots=1)]) for _ in range(16)], [(number, 0, 100) for number in range(16)],
    ),
    "waves are quantised: 4 + 4 + 1 blocks on 4 SMs": ([({}, [one(0, 100, 9)])], [(0, 0, 300)]),
    "the next kernel takes what the last wave leaves over": (
        [({}, [one(0, 100, 5)]), ({}, [one(1, 100, 3)])], [(0, 0, 200), (1, 100, 200)],
    ),
    # The third fills the rest with the second; then 3 slots are free for the fourth, but the third waits in front.
    "a kernel with blocks left keeps later ones out even where it does not fit": (
        [({}, [one(0, 100, 1, 1)]), ({}, [one(1, 100, 2)]), ({}, [one(2, 100, 3)]), ({}, [one(3, 10, 1, 1)])],
        [(0, 0, 100), (1, 1, 101), (3, 101, 111), (2, 2, 201)],
    ),
    "a higher priority gets the slots at the next block boundary": (
        [({}, [one(0, 100, 40)]), ({"priority": -1}, [one(150, 100, 4)])], [(1, 200, 300), (0, 0, 1_100)],
    ),
    "a higher priority does not push out running blocks": (
        [({}, [one(0, 1_000, 4)]), ({"priority": -5}, [one(10, 10)])], [(0, 0, 1_000), (1, 1_000, 1_010)],
    ),
    "among equals the first to be ready goes first": (
        [({}, [one(0, 100, 4), one(1, 100, 4)]), ({}, [one(2, 100, 4)])], [(0, 0, 100), (1, 100, 200), (0, 200, 300)],
    ),
    "a partition does not wait for a claim on other SMs": (
        [({"sm_ids": [0, 1]}, [one(0, 100, 20)]), ({"sm_ids": [2, 3]}, [one(1, 100, 2)])], [(1, 1, 101), (0, 0, 1_000)],
    ),
    "under the cap memory does not slow": ([({}, [(0, memory_bound(2, 1_000))])], [(0, 0, 1_000)]),
    "over the cap kernels slow in proportion: 4 GB/s of 2": ([({}, [(0, memory_bound(4, 1_000))])], [(0, 0, 2_000)]),
    "speeds change as kernels come and go": (
        [({}, [(0, memory_bound(2, 1_000))]), ({}, [(500, memory_bound(2, 1_000))])], [(0, 0, 1_500), (1, 500, 2_000)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("streams", "spans"), SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_is_what_it_is_by_hand(lab, streams, spans):
    made = [(lab.stream(**options), own) for options, own in streams]
    launches = [(at, stream, kernel) for stream, own in made for at, kernel in own]
    for at, stream, kernel in sorted(launches, key=lambda launch: launch[0]):
        lab.launch(stream, at, **kernel)
    assert lab.spans() == spans


def test_a_kernel_bound_by_arithmetic_is_not_slowed_by_its_neighbour(lab):
    lab.launch(lab.stream(), 0, blocks=1, ns=1_000, block_bytes=100, block_limit_bytes_per_s=1_000_000_000)
    lab.launch(lab.stream(), 0, **memory_bound(3, 1_000))  # gets 1.9 GB/s of the 3 that it wants until the first ends
    (first, second) = sorted(lab.spans())
    assert first == (0, 0, 1_000)
    assert second[2] == 1_000 + round((3_000 - 1_900) / 2)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 500), st.integers(1, 400)), min_size=1, max_size=12
    )
)
def test_memory_never_gives_more_than_the_cap_and_no_byte_is_lost(launches):
    lab = Lab()
    streams = [lab.stream() for _ in range(4)]
    now_ns = total_bytes = 0
    for number, blocks, ns, gap_ns in launches:
        now_ns += gap_ns
        lab.launch(streams[number], now_ns, **memory_bound(blocks, ns))
        total_bytes += blocks * ns
    spans = lab.spans()
    wall_ns = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    assert wall_ns >= total_bytes / 2 - 1  # 2 bytes per ns
    assert lab.scheduler.pool.free == [16]
    assert lab.scheduler._wanted_bytes_per_s == 0
    for stream in streams:
        own = [span for span in spans if span[0] == stream.number]
        assert all(before[2] <= after[1] for before, after in itertools.pairwise(own))


SM_SETS = st.one_of(st.none(), st.frozensets(st.integers(0, 3), min_size=1))
LAUNCHES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.tuples(st.integers(-2, 0), SM_SETS)),  # a stream, or a new one
        st.integers(1, 40),
        st.sampled_from([1, 2, 4]),
        st.integers(1, 50),
        st.integers(1, 60),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(LAUNCHES)
def test_kernels_stay_on_their_sms_also_where_groups_are_cut_while_they_run(launches):
    lab = Lab()
    streams = [lab.stream()]
    allowed = [frozenset(range(4))]
    now_ns = 0
    for target, blocks, slots, ns, gap_ns, draws in launches:
        now_ns += gap_ns
        lab.scheduler.run_before(now_ns)
        if isinstance(target, tuple):
            priority, sm_ids = target
            streams.append(lab.stream(priority, sm_ids))
            allowed.append(frozenset(range(4)) if sm_ids is None else sm_ids)
            place = len(streams) - 1
        else:
            place = target % len(streams)
        memory = {"block_bytes": ns, "block_limit_bytes_per_s": 1_000_000_000} if draws else {}
        lab.launch(streams[place], now_ns, blocks=blocks, ns=ns, slots=slots, **memory)
    while lab.scheduler.busy_count:
        lab.scheduler.step()
        check_slots(lab.scheduler, allowed)
    assert lab.scheduler.pool.free == [len(group) * 4 for group in lab.scheduler.pool.groups]
    assert len(lab.works) == len(launches)


def check_slots(scheduler, allowed):
    """Every slot is free or held once, and only by kernels whose stream may use its SM."""
    groups = scheduler.pool.groups
    held = [0] * len(groups)
    for run in scheduler.running_kernels():
        for batch in run.batches:
            for number, blocks in batch.parts:
                held[number] += blocks * run.spec.block_slots
                assert groups[number] <= allowed[run.stream.number]
    for number, group in enumerate(groups):
        assert held[number] + scheduler.pool.free[number] == 4 * len(group)
        assert scheduler.pool.free[number] >= 0


def test_the_heap_stays_small_under_changing_speeds(lab):
    lab.launch(lab.stream(), 0, **memory_bound(3, 10_000_000))
    other = lab.stream()
    for at in range(4_000):
        lab.launch(other, 100 * at, **memory_bound(1, 10))  # each start and end changes the first kernel's speed
    longest = 0
    while lab.scheduler.busy_count:
        lab.scheduler.step()
        longest = max(longest, len(lab.scheduler._heap))
    assert len(lab.works) == 4_001
    assert longest < 5_000


@pytest.mark.parametrize("wrong", [{"blocks": 0}, {"ns": 0}, {"slots": 3}, {"slots": 0}])
def test_impossible_kernels_are_refused(lab, wrong):
    with pytest.raises(OptionError, match="give"):
        lab.launch(lab.stream(), 0, **{"blocks": 1, "ns": 1, **wrong})


# Against a scheduler that goes block by block, where this one gives out whole rounds of waves at once

FREE = HostCosts(launch_ns=1, copy_ns=1, record_ns=1, wait_ns=1)
PLAIN = DevicePreset(
    name="plain", sm_count=4, slots_per_sm=4, h2d_bytes_per_s=10**9, d2h_bytes_per_s=10**9, copy_latency_ns=0, host=FREE
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # stream
        st.sampled_from(["kernel"] * 6 + ["copy", "record", "wait"]),
        st.integers(1, 30),  # blocks
        st.sampled_from([1, 2, 4]),  # slots
        st.integers(1, 12),  # ns
        st.integers(1, 20),  # ns to the next submission
        st.integers(0, 1),  # engine or event
    ),
    min_size=1,
    max_size=24,
)


def make_jobs(streams, steps):
    jobs, recorded, now_ns = [], {}, 0
    for stream, kind, blocks, slots, block_ns, gap_ns, which in steps:
        now_ns += gap_ns
        job = Job(kind, stream % len(streams), now_ns, blocks, slots, block_ns, which, which)
        job.target = recorded.get(which) if kind == "wait" else None
        if kind == "record":
            recorded[which] = job
        jobs.append(job)
    return jobs


def run_real(streams, jobs, *, catch_up):
    """Return (submit, start, end) of each kernel and copy."""
    backend, works = SimBackend(PLAIN), []
    backend.driver.scheduler.observer = works.append
    lanes = [backend.create_stream(priority=-level, sm_ids=sm_ids) for level, sm_ids in streams]
    events = [backend.acquire_event(), backend.acquire_event()]
    began_ns = backend.driver.clock.now_ns
    for job in jobs:
        backend.driver.clock.jump_to(began_ns + job.submit_ns - 1)
        if catch_up:
            backend.driver.catch_up()
        lane = lanes[job.stream]
        if job.kind == "kernel":
            backend.launch_kernel(lane, KernelSpec(name="k", blocks=job.blocks, block_slots=job.slots, block_ns=job.block_ns))
        elif job.kind == "copy":
            backend.driver.copy(lane.queue, plan_host_copy(PLAIN, job.engine, job.block_ns, is_pinned=True))
        elif job.kind == "record":
            lane.record(events[job.event])
        else:
            lane.wait(events[job.event])
    backend.synchronize()
    times = sorted(tuple(ns - began_ns for ns in (work.queued_ns, work.start_ns, work.end_ns)) for work in works)
    return times, backend.driver.scheduler.pool


def run_reference(streams, jobs, groups):
    masks = [{number for number, group in enumerate(groups) if sm_ids is None or group <= sm_ids} for _, sm_ids in streams]
    reference = Reference([4 * len(group) for group in groups], [5 - level for level, _ in streams], masks)
    reference.run(jobs)
    return sorted((job.submit_ns, job.start_ns, job.end_ns) for job in jobs if job.kind in {"kernel", "copy"})


@settings(max_examples=count(40, 100), deadline=None)
@given(streams=st.lists(st.tuples(st.integers(0, 2), SM_SETS), min_size=1, max_size=5), steps=STEPS)
def test_whole_rounds_end_as_single_waves_do_whenever_the_simulation_catches_up(streams, steps):
    jobs = make_jobs(streams, steps)
    real, pool = run_real(streams, jobs, catch_up=False)
    assert run_real(streams, jobs, catch_up=True)[0] == real
    assert real == run_reference(streams, jobs, pool.groups)
    assert pool.free == [4 * len(group) for group in pool.groups]
