"""The real scheduler gives out whole rounds of waves at once; here it has to agree with one that goes block by block."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.backends.sim import DevicePreset, DeviceWork, KernelSpec
from gpustreamlab.backends.sim._commands import CopyRun, CopySpec, Mark, Wait
from gpustreamlab.backends.sim._scheduler import Scheduler
from tests.helpers.long_runs import count
from tests.unit.sim.sim_reference import Job, Reference

SM_COUNT, SLOTS = 4, 4
PRESET = DevicePreset(name="tiny", sm_count=SM_COUNT, slots_per_sm=SLOTS)
STREAMS = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), st.frozensets(st.integers(0, SM_COUNT - 1), min_size=1))),
    min_size=1,
    max_size=5,
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
        if kind == "wait":
            job.target = recorded.get(which)
        if kind == "record":
            recorded[which] = job
        jobs.append(job)
    return jobs


def run_real(streams, jobs, *, catch_up):
    """Return (submit, start, end) of each kernel and copy."""
    works: list[DeviceWork] = []
    scheduler = Scheduler(PRESET)
    scheduler.observer = works.append
    lanes = [scheduler.add_stream(number, -level, sm_ids) for number, (level, sm_ids) in enumerate(streams)]
    marks: dict[int, Mark] = {}
    for job in jobs:
        if catch_up:
            scheduler.run_before(job.submit_ns)
        lane = lanes[job.stream]
        if job.kind == "kernel":
            spec = KernelSpec(name="k", blocks=job.blocks, block_slots=job.slots, block_ns=job.block_ns)
            scheduler.submit_kernel(lane, spec, job.submit_ns)
        elif job.kind == "copy":
            scheduler.submit(lane, CopyRun(lane, CopySpec("c", job.engine, 1, job.block_ns)), job.submit_ns)
        elif job.kind == "record":
            marks[job.event] = Mark()
            scheduler.submit(lane, marks[job.event], job.submit_ns)
        elif job.event in marks:
            scheduler.submit(lane, Wait(marks[job.event]), job.submit_ns)
    while scheduler.busy_count:
        scheduler.step()
    return sorted((work.queued_ns, work.start_ns, work.end_ns) for work in works), scheduler


def run_reference(streams, jobs, groups):
    low = PRESET.priority_range[1]
    masks = [{number for number, group in enumerate(groups) if sm_ids is None or group <= sm_ids} for _, sm_ids in streams]
    reference = Reference([len(group) * SLOTS for group in groups], [-level - low for level, _ in streams], masks)
    reference.run(jobs)
    return sorted((job.submit_ns, job.start_ns, job.end_ns) for job in jobs if job.kind in {"kernel", "copy"})


@settings(max_examples=count(40, 100), deadline=None)
@given(streams=STREAMS, steps=STEPS)
def test_whole_rounds_end_as_single_waves_do(streams, steps):
    jobs = make_jobs(streams, steps)
    real, scheduler = run_real(streams, jobs, catch_up=False)
    assert real == run_reference(streams, jobs, scheduler.pool.groups)
    assert scheduler.pool.free == [len(group) * SLOTS for group in scheduler.pool.groups]


@settings(max_examples=count(40, 100), deadline=None)
@given(streams=STREAMS, steps=STEPS)
def test_when_the_simulation_catches_up_does_not_matter(streams, steps):
    jobs = make_jobs(streams, steps)
    assert run_real(streams, jobs, catch_up=True)[0] == run_real(streams, jobs, catch_up=False)[0]
