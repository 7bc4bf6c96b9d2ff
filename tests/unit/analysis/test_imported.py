"""Explanations of files of other tools: nothing is proved, or ruled out, that the file has no records of."""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from gpustreamlab.typing import Cause, Certainty
from tests.helpers.kineto import DEVICE, call, kineto, launched, span, stream_wait, work, write

FILLS = [10_000, 1, 1]


@pytest.fixture
def explain(tmp_path):
    def explain(events, **top):
        return gsl.load_trace(write(tmp_path / "run.json", kineto(events, **top))).explain()

    return explain


def one_behind_the_other(device=0):
    """Return a grid that fills the card, and a kernel that was launched beside it and began as it ended."""
    return [
        *launched(100, 900, 10, stream=7, correlation=1, grid=FILLS),
        *launched(1_001, 900, 20, stream=20, correlation=2, grid=FILLS, device=device),
    ]


def test_full_sms_are_proved_only_where_waits_are_told(explain):
    (silent,) = explain(one_behind_the_other()).findings
    assert (silent.code, silent.certainty) == (Cause.GRID_FILLS_DEVICE, Certainty.LIKELY)
    other = [
        *launched(3_000, 5, 2_990, stream=20, correlation=9),
        stream_wait(2_980, stream=20, awaited=7, record=7, correlation=8),
    ]
    (told,) = explain([*one_behind_the_other(), *other]).findings
    assert (told.code, told.certainty) == (Cause.GRID_FILLS_DEVICE, Certainty.PROVED)


def test_a_wait_that_is_told_is_the_cause(explain):
    wait = stream_wait(16, stream=20, awaited=7, record=11, correlation=12)
    events = [
        *launched(100, 900, 10, stream=7, correlation=10, grid=FILLS),
        *launched(1_001, 900, 20, stream=20, correlation=20, grid=FILLS),
        wait,
    ]
    (found,) = explain(events).findings
    assert (found.code, found.certainty) == (Cause.EVENT_WAIT, Certainty.PROVED)


def test_a_kernel_of_another_card_takes_no_sms(explain):
    (found,) = explain(one_behind_the_other(device=1), deviceProperties=[DEVICE, {**DEVICE, "id": 1}]).findings
    assert (found.code, found.certainty) == (Cause.UNKNOWN, Certainty.UNKNOWN)


def test_what_has_no_call_began_late_and_nobody_knows_how_long_after_its_launch(explain):
    events = [work(0, 900, stream=7, correlation=1, grid=[1, 1, 1]), work(1_001, 900, stream=20, correlation=2, grid=[1, 1, 1])]
    found = explain(events, deviceProperties=None)
    (finding,) = found.findings
    assert finding.text.startswith("gemm on 'stream 20' began late, while gemm on 'stream 7' ran")
    assert finding.fix == (
        "Ruled out: one copy engine. Not recorded, so that nobody can tell: an event that its stream waited for, a slow "
        "launch, full SMs."
    )
    assert "ProfilerActivity.CPU" in " ".join(str(found).split())
    assert "lab.capture" not in str(found)


@pytest.mark.parametrize(("second", "is_slowed"), [("void k<a::F<0> >(int)", True), ("void k<a::F<1> >(int)", False)])
def test_a_kernel_is_compared_with_itself_on_any_queue_and_with_no_other_instance(explain, second, is_slowed):
    """One short name stands for both instances, and what runs beside another stream takes longer."""
    first = "void k<a::F<0> >(int)"
    events = [work(1_000 * n, 50, first, stream=7, correlation=n + 1, channel=3) for n in range(0, 24, 2)]
    events += [work(1_000 * n, 100, second, stream=7, correlation=n + 1, channel=4) for n in range(1, 24, 2)]
    events += [work(1_000 * n, 100, "other", stream=20, correlation=n + 100) for n in range(1, 24, 2)]
    assert any(finding.code is Cause.SLOWED_DOWN for finding in explain(events).findings) is is_slowed


def test_waiting_calls_of_rocm_are_blamed_as_those_of_cuda(explain):
    events = [
        *launched(100, 900, 10, stream=1, correlation=1, by="hipLaunchKernel"),
        call(20, 985, "hipFree", correlation=5),
        *launched(1_020, 900, 1_010, stream=2, correlation=6, by="hipLaunchKernel"),
        span(0, 2_000, "step"),
    ]
    (found,) = explain(events).findings
    assert found.code is Cause.ALLOC_SYNC


def test_the_longest_of_the_calls_that_held_up_the_host_is_named(explain):
    """A copy that waited for the work in front of it, and behind it a look at a stream that was idle by then."""
    copy = work(940, 10, "Memcpy DtoH (Device -> Pageable)", stream=20, correlation=3, cat="gpu_memcpy", bytes=64)
    events = [
        *launched(40, 900, 10, stream=20, correlation=1),
        *launched(45, 1_500, 20, stream=7, correlation=2),
        call(60, 900, "cudaMemcpyAsync", correlation=3),
        copy,
        call(961, 4, "cudaStreamSynchronize", correlation=4),
        *launched(1_010, 2_000, 1_000, stream=21, correlation=5),
    ]
    texts = [finding.text for finding in explain(events).findings if finding.code is Cause.HOST_SYNC_STREAM]
    assert texts
    assert all("cudaMemcpyAsync (900 µs)" in text for text in texts)


def test_the_host_on_the_critical_path_is_in_its_innermost_range(tmp_path):
    events = [
        *launched(20, 10, 10, stream=7, correlation=1),
        *launched(110, 10, 100, stream=7, correlation=2),
        span(0, 200, "step", "user_annotation"),
        span(35, 55, "load"),
        span(40, 0, "look"),
        span(50, 60, "other thread", tid=999),
        call(60, 10, "cudaMalloc", correlation=9),
    ]
    path = gsl.load_trace(write(tmp_path / "run.json", kineto(events))).critical_path()
    steps = path.to_pandas()
    assert steps.name.tolist() == ["step", "load", "load", "cudaMalloc", "load", "step", "gemm", "gemm"]
    assert steps.duration_ns.tolist() == [15_000, 5_000, 20_000, 10_000, 20_000, 10_000, 10_000, 10_000]


def test_a_launch_that_is_not_told_is_no_launch_without_delay(tmp_path):
    untold = [work(at, 50, stream=7, correlation=9) for at in (200, 300, 400)]
    events = [*launched(100, 50, 20, stream=7, correlation=1), *untold]
    text = str(gsl.load_trace(write(tmp_path / "run.json", kineto(events))).timeline()._repr_mimebundle_(["text/plain"]))
    assert "the launch of 3 of 4 is not told" in text
    assert "kernels start 80.0 µs after their launch (median)" in text


def test_a_file_without_work_of_a_gpu_says_so(tmp_path):
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto([span(0, 5, "aten::add")])))
    assert "No work of a GPU is in the file" in str(trace.timeline()._repr_mimebundle_(["text/plain"]))
    trace.timeline().save(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert ("No work of a GPU is in the file" in page, "every kernel, copy and fill" in page) == (True, False)
    assert "No work of a GPU is in the file" in str(trace.timeline())
    assert "no work of a GPU is in the file" in str(trace.explain())


def test_what_was_selected_no_file_of_others_says(tmp_path):
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(launched(100, 50, 20, stream=7, correlation=1))))
    assert "does not say which stream was selected" in str(trace.strays())


def test_calls_that_a_part_lacks_are_looked_for_in_the_whole(tmp_path):
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(one_behind_the_other())))
    assert "the trace that this is a part of" in str(trace.where(kind="kernel").explain())
