"""What counts as busy: kernels where they were captured, ranges elsewhere, threads of the host never."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import (
    compare_traces,
    concurrency,
    counted_kinds,
    counted_rows,
    overlap,
    sm_kinds,
    sm_time_steps,
    summary_text,
    utilization,
)
from gpustreamlab.draw import plan_picture, text_timeline, timeline_svg
from gpustreamlab.model import DEVICE_WORK
from gpustreamlab.typing import CaptureTier, SpanKind
from gpustreamlab.workloads import spin_card
from tests.helpers.kernel_traces import DECODE, kernel_trace
from tests.helpers.traces import make_kernel_trace, make_trace, nested_trace, pipeline_trace, without_spans

HOST = "host: MainThread"
ALL = (SpanKind.RANGE, *DEVICE_WORK)


def windowed(*windows, **options):
    """Ranges of 100 ns every 200 ns on "a", each around a kernel of 50 ns if it is captured; calls of the host."""
    spans = []
    for at in range(0, 1_000, 200):
        spans.append(("a", "step", at, at + 100, {"kind": "range"}))
        if any(first <= at < last for first, last in windows):
            spans.append(("a", "gemm", at + 20, at + 70, {"parent": len(spans) - 1}))
            spans.append(("b", "copy", at + 60, at + 90, {"kind": "copy", "parent": len(spans) - 2}))
            spans.append((HOST, "cudaLaunchKernel", at + 5, at + 10, {"kind": "host"}))
    return make_kernel_trace(spans, windows=windows, **options)


def test_ranges_in_a_window_leave_it_to_their_kernels_and_others_count():
    trace = windowed((0, 1_000))
    assert counted_kinds(trace) == DEVICE_WORK
    assert {trace.names[code] for code in trace.name[counted_rows(trace)]} == {"gemm", "copy"}
    assert overlap(trace).busy_ns.tolist() == [250, 150]
    trace = windowed((200, 400), (600, 601))
    assert counted_kinds(trace) == ALL
    assert overlap(trace).busy_ns.tolist() == [3 * 100 + 2 * 50, 2 * 30]
    assert (overlap(trace).wall_ns, concurrency(trace).sum_ns) == (900, 460)
    assert counted_rows(trace, counted_kinds(trace)).tolist() == counted_rows(trace).tolist()
    assert counted_rows(trace, [SpanKind.RANGE]).sum() == 5
    # a range that began before the capture and holds kernels of it counts for the time without them
    spans = [("a", "outer", 0, 400, {"kind": "range"}), ("a", "gemm", 200, 300, {"parent": 0}), ("b", "gemm", 200, 300)]
    result = concurrency(make_kernel_trace(spans, windows=((150, 500),)))
    assert (result.sum_ns, result.range_only_ns) == (500, 300)
    assert concurrency(pipeline_trace()).range_only_ns == concurrency(pipeline_trace()).sum_ns


@pytest.mark.parametrize(
    ("trace", "counted"),
    [
        (without_spans(kernel_trace()), DEVICE_WORK),
        (without_spans(pipeline_trace()), ALL),
        (nested_trace(), DEVICE_WORK),  # of an older version, without windows
        (make_trace([("a", "x", 0, 10)], tier=CaptureTier.KERNELS), ALL),
    ],
)
def test_without_spans_or_windows_the_tier_tells(trace, counted):
    assert counted_kinds(trace) == counted


@pytest.mark.parametrize(("length_ns", "share"), [(1, None), (10, None), (11, "1%"), (100, "9%"), (1_000, "50%"), (0, None)])
def test_ranges_that_are_next_to_nothing_beside_kernels_do_not_count(length_ns, share):
    # GIVEN kernels for 1,000 ns on two streams, half of them together, and a range in front of the capture
    spans = [
        ("a", "early", 0, length_ns, {"kind": "range"}),
        ("a", "step", 9_990, 10_990, {"kind": "range"}),
        ("a", "gemm", 10_000, 10_600, {"parent": 1}),
        ("b", "copy", 10_300, 10_700, {"kind": "copy", "parent": 1}),
    ]
    trace = make_kernel_trace(spans, windows=((9_900, 11_000),))

    # THEN all figures are of the kernels alone, or all of them count the range and say how much it is
    counts = share is not None
    assert counted_kinds(trace) == (ALL if counts else DEVICE_WORK)
    assert (SpanKind.RANGE in sm_kinds(trace)) is counts
    expected_ns = length_ns if counts else 0
    result, together = overlap(trace), concurrency(trace)
    assert (result.sum_ns, together.sum_ns, utilization(trace).busy_ns[-1]) == (
        1_000 + expected_ns, 1_000 + expected_ns, 600 + expected_ns,
    )  # fmt: skip
    assert result.range_only_ns == together.range_only_ns == expected_ns
    assert result.wall_ns == together.wall_ns == utilization(trace).wall_ns == (10_700 if counts else 700)
    assert ("upper bound" in str(result)) is counts
    text = summary_text(trace)
    if counts:
        assert f". {share} of the busy time is by ranges only, which contain waiting" in text
        assert f"{share} of that time is by ranges only" in " ".join(str(result).split())
    else:
        assert "At most" not in text
        assert "ranges count" not in text


@pytest.mark.parametrize("kind", ["wait", "host", "marker", "annotation", "sample"])
def test_kinds_that_are_no_work_do_not_count(kind):
    spans = [("a", "x", 0, 10, {"partition": 0}), ("b", "y", 5, 50, {"kind": kind, "partition": 0})]
    trace = make_trace(spans, partitions=(DECODE,))
    assert overlap(trace).busy_ns.tolist() == [10, 0]
    assert (utilization(trace).busy_ns.tolist(), overlap(trace).wall_ns) == ([10], 10)


def test_copies_overlap_but_use_no_sms():
    trace = make_kernel_trace(
        [
            ("a", "gemm", 0, 100, {"partition": 0}),
            ("b", "copy", 50, 300, {"kind": "copy", "partition": 0}),
            ("b", "fill", 300, 400, {"kind": "fill", "partition": 0}),
        ],
        partitions=(DECODE,),
    )
    assert overlap(trace).common_ns[0, 1] == 50
    assert sm_kinds(trace) == (SpanKind.KERNEL,)
    (step,) = sm_time_steps(trace)
    assert (step.size.name, step.edges_ns.tolist()) == ("decode", [0, 100])
    result = utilization(trace)
    assert (result.busy_ns[0], result.wall_ns, result.card_sm_ns) == (100, 400, 100 * 36)
    assert result.counted == (SpanKind.KERNEL,)
    assert "copies and fills use no SMs" in str(result)


def test_ranges_count_for_the_sms_where_only_they_were_captured():
    assert sm_kinds(pipeline_trace()) == (SpanKind.RANGE, SpanKind.KERNEL)
    assert "use no SMs" not in str(utilization(pipeline_trace()))
    trace = windowed((200, 400))
    assert sm_kinds(trace) == (SpanKind.RANGE, SpanKind.KERNEL)
    assert "upper bound" in str(utilization(trace))
    assert "upper bound" not in str(utilization(windowed((0, 1_000))))


@pytest.mark.parametrize("kind", ["kernel", "copy", "range"])
def test_threads_of_the_host_never_count(kind):
    # GIVEN a trace made by hand, with work on the lane of a thread
    spans = [("a", "k", 0, 100, {"kind": "range"}), ("host: MainThread", "k", 500, 900, {"kind": kind})]
    trace = make_kernel_trace(spans, tier="ranges", windows=())

    # THEN no figure has it
    result, together, used = overlap(trace), concurrency(trace), utilization(trace)
    assert result.wall_ns == together.wall_ns == used.wall_ns == 100
    assert result.sum_ns == together.sum_ns == used.busy_ns.sum() == 100
    assert result.range_only_ns == together.range_only_ns == 100
    assert "Queued or running: a 100 ns (100%)" in summary_text(trace)


def ranges_of_a_stretch_without_capture(*, work_after):
    """Two kernels in two ranges of a session that captures kernels, but not then."""
    with gsl.Session("sim", host=False) as lab:
        with lab.capture("ranges"):
            for name in "ab":
                with lab.on(lab.stream(name), "step"):
                    spin_card(lab, 1_000_000)
            lab.synchronize()
        if work_after:
            spin_card(lab, 1_000_000, stream=lab.stream("a"))
            lab.synchronize()
        return lab.trace


def views_of(trace):
    header = plan_picture(trace).header
    texts = (text_timeline(trace), summary_text(trace), str(overlap(trace)), timeline_svg(trace), *asdict(header).values())
    return " ".join(" ".join(map(str, texts)).split()), header


def test_a_trace_in_which_only_ranges_count_is_shown_as_one_of_ranges():
    # GIVEN a session that captured kernels, but not while these two ranges ran
    trace = ranges_of_a_stretch_without_capture(work_after=False)
    assert (trace.metadata.tier, set(trace.kind.tolist())) == (CaptureTier.KERNELS, {0})

    # THEN every view says that bars contain waiting, and none says that a stream was busy, or that kernels are in it
    words, header = views_of(trace)
    assert header.tier == "ranges only: bars contain waiting"
    assert header.busy_word == "queued or running"
    assert "Tier: ranges (event pairs; ranges contain queueing)" in words
    assert "kernels were captured at other times only" in words
    for wrong in ("busy", "Busy", "kernels + ranges", "every kernel", "0% of the time"):
        assert wrong not in words


def test_a_trace_in_which_some_ranges_count_says_busy_nowhere():
    words, header = views_of(ranges_of_a_stretch_without_capture(work_after=True))
    assert header.tier.startswith("kernels + ranges")
    assert header.busy_word == "queued or running"
    assert "of the busy time is by ranges only" in words
    assert "busy" not in words.replace("of the busy time is by ranges only", "")


def test_a_comparison_with_a_trace_of_ranges_alone_says_what_it_is():
    trace = ranges_of_a_stretch_without_capture(work_after=False)
    result = compare_traces(trace, windowed((0, 1_000)))
    assert result.counted[0] == (SpanKind.RANGE,)
    assert result.busy_word == "queued or running"
    assert (result.names.a.is_there | ~result.names.a.is_captured).all()
