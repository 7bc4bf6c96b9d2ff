"""What streams were idle for, and the chain of steps that set a run's length."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpustreamlab.analysis import concurrency, counted_rows
from gpustreamlab.model import WorkDetail
from gpustreamlab.typing import IdleKind, PathStep
from gpustreamlab.workloads import spin
from tests.helpers.planted import event_wait_in_a_ping_pong, record, tiny_kernels, wait_for_device_in_a_loop
from tests.helpers.traces import empty_trace, make_kernel_trace, make_trace

US = 1_000


def random_program(seed):
    """Return a program of three streams with waits, synchronisations and ranges in any order."""
    chance = random.Random(seed)

    def program(lab):
        streams = [lab.stream(name) for name in "abc"]
        for _ in range(25):
            stream, other = chance.choice(streams), chance.choice(streams)
            turn = chance.random()
            if turn < 0.15:
                stream.wait(other.record())
            elif turn < 0.25:
                chance.choice((stream.synchronize, lab.synchronize))()
            else:
                with lab.on(stream.name, "step"):
                    spin(lab, chance.randint(2_000, 200_000))

    return program


@pytest.mark.parametrize("seed", range(30))
def test_a_critical_path_is_as_long_as_the_run_and_idle_time_is_all_time_between_work(seed):
    trace = record(random_program(seed))
    path, found, works = trace.critical_path(), trace.idle(), counted_rows(trace)
    assert path.duration_ns == concurrency(trace).wall_ns == path.to_pandas().duration_ns.sum()
    assert (path.end_ns[:-1] == path.start_ns[1:]).all()
    assert (path.end_ns > path.start_ns).all()
    work = path.row[path.step == list(PathStep).index(PathStep.WORK)]
    assert works[work].all()
    assert len(np.unique(work)) == len(work)
    assert sum(part.total_ns for part in path.parts) == path.duration_ns
    for place, lane in enumerate(trace.lanes):
        rows = np.flatnonzero(works & (trace.lane == place))
        if len(rows):
            extent_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
            idle_ns = extent_ns - int(trace.duration_ns[rows].sum())
            assert found.total_ns(lane.name) == idle_ns == sum(found.total_ns(lane.name, kind) for kind in IdleKind)


@pytest.mark.parametrize(
    ("program", "kind", "step"),
    [(tiny_kernels, "host", "host"), (event_wait_in_a_ping_pong, "event", "work"), (wait_for_device_in_a_loop, "host", "work")],
)
def test_planted_programs_are_idle_for_what_was_planted(program, kind, step):
    trace = record(program)
    found, path = trace.idle(), trace.critical_path()
    assert found.total_ns("a", kind) > 0.9 * found.total_ns("a")
    assert path.share(step) > 0.5


def test_gaps_are_told_by_launch_event_and_length():
    spans = [
        ("a", "first", 0, 100 * US, {"queued_ns": -10 * US}),
        ("a", "late", 200 * US, 210 * US, {"queued_ns": 190 * US}),
        ("a", "queued", 220 * US, 230 * US, {"queued_ns": 195 * US}),
        ("b", "before", 0, 500 * US, {"queued_ns": -5 * US}),
        ("a", "waits", 501 * US, 510 * US, {"queued_ns": 196 * US}),
        ("a", "blocked", 900 * US, 910 * US, {"queued_ns": 197 * US}),
    ]
    trace = make_trace(spans, kind="kernel", tier="kernels", edges=[(3, 4)])
    found = trace.idle().to_pandas().sort_values("start_ns")
    assert found.kind.tolist() == ["host", "launch", "event", "other"]
    assert found.duration_ns.tolist() == [100 * US, 10 * US, 271 * US, 390 * US]


def test_the_path_goes_over_waits_of_the_host_and_names_its_calls():
    spans = [
        ("host: MainThread", "cudaLaunchKernel", 0, 4 * US, {"kind": "host"}),
        ("a", "first", 5 * US, 100 * US, {"queued_ns": 0}),
        ("host: MainThread", "cudaStreamSynchronize", 6 * US, 103 * US, {"kind": "host"}),
        ("host: MainThread", "cudaLaunchKernel", 110 * US, 114 * US, {"kind": "host"}),
        ("b", "second", 120 * US, 200 * US, {"queued_ns": 110 * US}),
    ]
    trace = make_trace(spans, kind="kernel", tier="kernels", edges=[(0, 1, "launch"), (3, 4, "launch")])
    steps = trace.critical_path().to_pandas()
    assert steps.step.tolist() == ["work", "host", "host", "launch", "work"]
    assert steps.name.tolist() == ["first", "cudaStreamSynchronize", None, "second", "second"]
    assert steps.duration_ns.tolist() == [95 * US, 3 * US, 7 * US, 10 * US, 80 * US]


def test_an_event_that_came_after_a_late_launch_has_the_gap_from_the_launch_on():
    spans = [
        ("a", "first", 0, 100 * US, {"queued_ns": -10 * US}),
        ("b", "source", 0, 500 * US, {"queued_ns": -5 * US}),
        ("a", "waits", 501 * US, 510 * US, {"queued_ns": 104 * US}),
        ("a", "late", 600 * US, 610 * US, {"queued_ns": 595 * US}),
    ]
    trace = make_trace(spans, kind="kernel", tier="kernels", edges=[(1, 2), (1, 3)])
    found = trace.idle().to_pandas()
    assert found.kind.tolist() == ["host", "event", "host"]
    assert found.start_ns.tolist() == [100 * US, 104 * US, 510 * US]
    assert found.duration_ns.tolist() == [4 * US, 397 * US, 90 * US]
    assert found.row.tolist() == [2, 2, 3]


FULL = WorkDetail(full_name="fills the card", grid=(132 * 64, 1, 1), block=(1024, 1, 1))
COPY = {"kind": "copy"}


def steps_of(trace):
    """Return the kinds, names and durations (us) of the steps of the path that take longer than 20 us."""
    steps = trace.critical_path().to_pandas()
    assert (steps.duration_ns > 0).all()
    steps = steps[steps.duration_ns > 20 * US]
    return list(zip(steps.step, steps.name, steps.duration_ns // US, strict=True))


def test_the_path_goes_to_the_grid_that_left_no_room():
    spans = [
        ("a", "A", 8 * US, 10_000 * US, {"queued_ns": 0, "detail": FULL}),
        ("b", "B", 10_001 * US, 20_000 * US, {"queued_ns": 10 * US, "detail": FULL}),
    ]
    assert steps_of(make_kernel_trace(spans)) == [("work", "A", 9_992), ("work", "B", 9_999)]


def test_the_path_goes_to_the_copies_in_front_on_the_copy_engine():
    spans = [
        (
            stream,
            f"memcpy HtoD {turn}",
            (8 + turn * 1_002) * US,
            (1_008 + turn * 1_002) * US,
            COPY | {"queued_ns": turn * 4 * US},
        )
        for turn, stream in enumerate("abab")
    ]
    assert steps_of(make_kernel_trace(spans)) == [("work", f"memcpy HtoD {turn}", 1_000) for turn in range(4)]


def test_work_that_began_later_than_a_launch_takes_was_in_the_queue():
    spans = [
        ("a", "A", 8 * US, 20 * US, {"queued_ns": 0}),
        ("b", "late", 900 * US, 1_000 * US, {"queued_ns": 15 * US}),
        ("c", "beside", 8 * US, 300 * US, {"queued_ns": 0}),
    ]
    assert steps_of(make_kernel_trace(spans)) == [("queue", "late", 885), ("work", "late", 100)]


def test_a_launch_that_itself_took_long_is_no_queue():
    spans = [
        ("a", "A", 8 * US, 500 * US, {"queued_ns": 0}),
        ("host: MainThread", "cudaLaunchKernel", 10 * US, 890 * US, {"kind": "host"}),
        ("b", "slow to launch", 900 * US, 1_000 * US, {"queued_ns": 10 * US}),
    ]
    trace = make_kernel_trace(spans, edges=[(1, 2, "launch")])
    assert steps_of(trace) == [("launch", "slow to launch", 890), ("work", "slow to launch", 100)]


def test_the_path_does_not_go_through_what_was_launched_after_the_wait_began():
    # GIVEN a thread that waits for A while another thread launches small kernels, some of them before
    tokens = [
        ("tokens", "token", (14 + 4 * turn) * US, (17 + 4 * turn) * US, {"queued_ns": turn * US, "thread": 1})
        for turn in range(600)
    ]
    spans = [
        ("a", "A", 8 * US, 1_000 * US, {"queued_ns": -5 * US}),
        ("host: MainThread", "cudaStreamSynchronize", 12 * US, 1_005 * US, {"kind": "host"}),
        ("host: MainThread", "cudaLaunchKernel", 1_010 * US, 1_014 * US, {"kind": "host"}),
        ("a", "A2", 1_020 * US, 3_000 * US, {"queued_ns": 1_010 * US}),
        *tokens,
    ]
    trace = make_kernel_trace(spans, threads=("MainThread", "worker"), edges=[(2, 3, "launch")])
    assert steps_of(trace) == [("work", "A", 992), ("work", "A2", 1_980)]


def test_of_nothing_nothing_is_told():
    trace = empty_trace()
    assert (len(trace.critical_path()), len(trace.idle()), len(trace.explain())) == (0, 0, 0)
    assert trace.critical_path().parts == ()
    assert [str(answer).splitlines()[0] for answer in (trace.critical_path(), trace.idle(), trace.explain())] == [
        "Critical path: nothing ran",
        "Idle: no stream was idle between its work",
        "Why: nothing has ended",
    ]
