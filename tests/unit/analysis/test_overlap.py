"""Overlap: small traces by hand, properties against brute force, what bounds it, how it is said, and that of parts."""

from __future__ import annotations

import gc
import math
import re
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpustreamlab as gsl
from gpustreamlab import Session, Trace
from gpustreamlab.analysis import (
    capture_facts,
    compare_traces,
    comparison_line,
    count_steps,
    counted_kinds,
    counted_rows,
    distinct,
    overlap,
    summary_text,
    sweep,
)
from gpustreamlab.analysis._busy import of_each_trace
from gpustreamlab.draw import plan_picture
from gpustreamlab.errors import OptionError, StreamNotFoundError
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Device, Lane, SMLimits, TraceMetadata, WorkDetail
from gpustreamlab.typing import CaptureTier, SpanKind
from gpustreamlab.workloads import spin, spin_card
from tests.helpers.kernel_traces import DECODE, PREFILL
from tests.helpers.traces import (
    empty_trace,
    make_kernel_trace,
    make_trace,
    nested_trace,
    pipeline_trace,
    random_trace,
)

ALL = (SpanKind.RANGE, *DEVICE_WORK)
LANES = tuple(Lane(name=f"s{number}", stream=number) for number in range(40))


def test_two_lanes_by_hand():
    result = overlap(make_trace([("a", "x", 0, 100), ("b", "y", 40, 300)]))
    assert result.busy_ns.tolist() == [100, 260]
    assert result.common_ns.tolist() == [[100, 60], [60, 260]]
    assert result.concurrency_ns.tolist() == [0, 240, 60]
    assert (result.wall_ns, result.active_ns, result.sum_ns, result.ideal_ns) == (300, 300, 360, 260)
    assert result.mean_concurrency == 1.2
    assert result.max_concurrency == 360 / 260
    assert result.common_share.tolist() == [[1.0, 0.6], [0.6, 1.0]]


def test_empty_trace_has_no_busy_time_and_no_concurrency():
    result = overlap(empty_trace())
    assert (result.wall_ns, result.sum_ns, result.concurrency_ns.tolist()) == (0, 0, [0])
    assert math.isnan(result.mean_concurrency)
    assert math.isnan(result.max_concurrency)


def test_times_that_are_years_apart_are_exact():
    result = overlap(make_trace([("a", "x", 0, 7), ("b", "x", 5, 1 << 61), ("b", "x", (1 << 61) + 2, 1 << 62)]))
    assert result.common_ns.tolist() == [[7, 2], [2, (1 << 62) - 7]]
    assert result.concurrency_ns.tolist() == [2, (1 << 62) - 4, 2]


@st.composite
def traces(draw, max_lanes=5):
    lane_count = draw(st.integers(1, max_lanes))
    count = draw(st.integers(0, 30))
    spans = []
    for _ in range(count):
        start = draw(st.integers(-20, 60))
        spans.append((f"s{draw(st.integers(0, lane_count - 1))}", "x", start, start + draw(st.integers(0, 25))))
    return make_trace(spans, lanes=LANES[:lane_count])


def busy_at(trace, kinds=ALL, window=None):
    """Tell for each ns of a window which lanes are busy with spans that count; shape (n_lanes, n_ns), bool."""
    if window is None:
        window = (int(trace.start_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    busy = np.zeros((len(trace.lanes), window[1] - window[0]), bool)
    columns = (getattr(trace, name).tolist() for name in ("start_ns", "end_ns", "lane", "kind"))
    for start, end, lane, code in zip(*columns, strict=True):
        kind = SPAN_KINDS[code]
        is_captured = any(begin <= start < stop for begin, stop in trace.metadata.capture_windows)
        if kind in kinds and not (kind is SpanKind.RANGE and is_captured):
            busy[lane, max(start - window[0], 0) : max(end - window[0], 0)] = True
    return busy


def assert_matches(result, busy):
    counts = busy.astype(np.int64)
    assert np.array_equal(result.common_ns, counts @ counts.T)
    assert np.array_equal(result.concurrency_ns[1:], np.bincount(counts.sum(axis=0), minlength=len(busy) + 1)[1:])
    assert np.array_equal(result.busy_ns, np.diagonal(result.common_ns))


@given(traces() | traces(max_lanes=40), st.integers(2, 6) | st.just(1 << 17))
def test_overlap_is_what_counting_every_nanosecond_gives_whatever_the_windows_of_the_sweep(trace, window_edges):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpustreamlab.analysis._busy.WINDOW_EDGES", window_edges)
        result, busy = overlap(trace), busy_at(trace)
    assert_matches(result, busy)
    assert result.wall_ns == result.concurrency_ns.sum() == busy.shape[1]


def test_threads_give_what_one_thread_gives(monkeypatch):
    trace = random_trace(3_000, 20)
    alone = overlap(trace)
    monkeypatch.setattr("gpustreamlab.analysis._busy.THREADED_ROWS", 1)
    monkeypatch.setattr("gpustreamlab.analysis._busy.WINDOW_EDGES", 64)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    threaded = overlap(trace)
    assert np.array_equal(alone.common_ns, threaded.common_ns)
    assert np.array_equal(alone.concurrency_ns, threaded.concurrency_ns)
    assert alone.concurrency_ns.sum() == alone.wall_ns


def test_streams_of_others_on_which_nothing_ran_are_left_out():
    lanes = (Lane(name="a", stream=1), Lane(name="b", stream=2), Lane(name="default stream", stream=0, outside=True))
    assert [lane.name for lane in overlap(make_trace([("a", "gemm", 0, 9)], lanes=lanes)).lanes] == ["a", "b"]
    busy = make_trace([("a", "gemm", 0, 9), ("default stream", "gemm", 0, 9)], lanes=lanes)
    assert [lane.name for lane in overlap(busy).lanes] == ["a", "b", "default stream"]


WINDOWS = ((), ((0, 140),), ((20, 50), (60, 70)), ((10, 20), (20, 30), (25, 40)))  # touching and overlapping ones are one


def mixed_trace(seed):
    """Ranges, work and calls on 3 lanes, from 0 to 140 ns."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 25))
    start_ns = rng.integers(0, 100, size)
    windows = WINDOWS[seed % 4]
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + rng.integers(0, 40, size),
        queued_ns=start_ns,
        lane=rng.integers(0, 3, size),
        name=np.zeros(size, np.int32),
        kind=rng.choice([0, 0, 1, 2, 3, 4, 5], size),
        parent=np.full(size, -1),
        thread=np.full(size, -1),
        names=("x",),
        lanes=tuple(Lane(name=name, stream=number) for number, name in enumerate("abc")),
        metadata=TraceMetadata(
            backend="sim",
            device=Device(name="demo", sm_count=4, simulated=True),
            tier=CaptureTier.KERNELS if windows else CaptureTier.RANGES,
            capture_windows=windows,
        ),
    )


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_the_overlap_of_a_stretch_of_time_is_exact(first):
    for seed in range(first, first + 50):
        trace = mixed_trace(seed)
        t0, t1 = sorted(np.random.default_rng(seed + 1_000).integers(0, 141, 2).tolist())
        part = trace.between(t0, t1)
        result = part.overlap()
        assert_matches(result, busy_at(trace, counted_kinds(part), (t0, t1)))
        if SpanKind.RANGE in counted_kinds(trace):  # the same kinds count then, unless a part has next to no ranges
            pair = result["a", "b"]
            assert (pair.common_ns, pair.busy_ns) == (result.common_ns[0, 1], tuple(result.busy_ns[:2]))


def test_busy_times_of_neighbouring_windows_add_up():
    for seed in range(0, 400, 4):  # without captures: whichever spans there are, the same kinds count
        trace = mixed_trace(seed)
        borders = [0, *sorted(np.random.default_rng(seed).integers(0, 140, 4).tolist()), 140]
        parts = [trace.between(t0, t1).overlap() for t0, t1 in pairwise(borders)]

        assert sum(part.common_ns for part in parts).tolist() == overlap(trace).common_ns.tolist()


def test_a_range_that_began_before_a_capture_counts_in_a_part_within_it():
    # GIVEN a range that began uncaptured, one that began captured, and a kernel
    trace = replace(
        mixed_trace(0),
        name=[0, 0, 0], start_ns=[40, 55, 60], end_ns=[90, 95, 70], queued_ns=[40, 55, 50],
        lane=[0, 1, 2], kind=[0, 0, 1], parent=[-1] * 3, thread=[-1] * 3, partition=[-1] * 3,
        metadata=replace(mixed_trace(1).metadata, capture_windows=((50, 100),)),
    )  # fmt: skip
    part = trace.between(65, 85)

    assert counted_rows(trace).tolist() == counted_rows(part).tolist() == [True, False, True]
    assert part.overlap().busy_ns.tolist() == [20, 0, 5]
    lines = [[line for line in summary_text(one).splitlines() if line.startswith("Queueing")] for one in (part, trace)]
    assert lines[0] == lines[1] != []


def test_windows_of_capture_elsewhere_are_not_told_of_a_part():
    trace = replace(mixed_trace(5), metadata=replace(mixed_trace(5).metadata, capture_windows=((0, 10), (20, 100))))

    assert "in 2 windows" in capture_facts(trace.between(5, 60))[0]
    assert capture_facts(trace.between(30, 60)) == []


def test_ranges_count_where_their_work_was_left_out_by_choice():
    with Session("sim") as lab:
        a, b = lab.stream("a"), lab.stream("b")
        for stream in (a, b):
            with lab.on(stream, "step"):
                spin(lab, 30_000)
        lab.synchronize()
        trace = lab.trace
    for part in (trace.where(kind="range"), trace.where(name="step"), trace[trace.kind == 0]):
        result = part.overlap()
        assert SpanKind.RANGE in result.counted
        assert (result.busy_ns > 0).all()
        assert result["a", "b"].is_upper_bound
    assert trace.where(stream="a").overlap().busy_ns.tolist() == trace.overlap().busy_ns[:1].tolist()
    assert trace.where(kind="kernel").overlap().common_ns.tolist() == trace.overlap().common_ns.tolist()
    assert SpanKind.RANGE not in trace.between(0, 1).overlap().counted


def test_a_pair_has_its_figures_and_prints_in_a_line():
    result = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "gemm"], kind=["copy", "kernel"]).overlap()
    pair = result["copy", "gemm"]

    assert (pair.common_ns, pair.busy_ns, pair.shares, pair.common_share) == (50, (100, 200), (0.5, 0.25), 0.5)
    assert result["gemm", "copy"].shares == (0.25, 0.5)
    assert str(pair) == "copy and gemm on unknown device: 50 ns in common, 50% of copy, 25% of gemm"
    assert repr(result["copy", "copy"]).startswith("<OverlapPair: copy and copy")
    assert "on NVIDIA H200 (simulated): at most" in str(pipeline_trace().overlap()["upload", "compute"])


@pytest.mark.parametrize("wrong", ["copy", 0, ("a",), ("a", "b", "c"), slice(0, 2)])
def test_what_is_no_pair_is_told(wrong):
    with pytest.raises(OptionError, match=r"Use overlap\['copy', 'compute'\]"):
        pipeline_trace().overlap()[wrong]


def test_an_unknown_stream_of_a_pair_is_told_with_the_nearest():
    with pytest.raises(StreamNotFoundError, match="no stream 'up-load'. Did you mean 'upload'"):
        pipeline_trace().overlap()["compute", "up-load"]


def test_pictures_and_reports_of_a_part_say_that_it_is_one(tmp_path):
    part = pipeline_trace().between(0, 2_000_000)
    part.timeline().save(tmp_path / "part.svg")

    assert "A part, cut out of a trace of 24 spans" in summary_text(part)
    assert "A part, cut out of a trace of 24 spans" in (tmp_path / "part.svg").read_text()
    assert summary_text(part.between(0, 0)).startswith("Image pipeline: timeline of 0 spans in 3 streams")
    assert "No spans\n" in summary_text(part.between(0, 0))


def full(blocks=132, **options):
    """Return a kernel of which one block fits on an SM."""
    return {"detail": WorkDetail(full_name="k", grid=(blocks, 1, 1), dynamic_shared_bytes=SMLimits().shared_bytes), **options}


def small(blocks, **launch):
    return {"detail": WorkDetail(full_name="s", grid=(blocks, 1, 1), **launch)}


def copy(name):
    return (name, {"kind": "copy"})


def both(first, second):
    """Return two spans that run for 100 ns each, the second 10 ns after the first, in two lanes."""
    return make_kernel_trace(
        [("a", first[0], 0, 100, first[1]), ("b", second[0], 10, 110, second[1])], partitions=(PREFILL, DECODE)
    )


@pytest.mark.parametrize(
    ("first", "second", "most", "reason"),
    [
        (copy("memcpy HtoD (pinned)"), copy("memcpy HtoD"), 1.0, "copies to the device share an engine"),
        (copy("memcpy DtoH (pinned)"), copy("memcpy DtoH"), 1.0, "copies to the host share an engine"),
        (copy("memcpy HtoD (pinned)"), copy("memcpy DtoH"), 2.0, ""),
        (copy("memcpy DtoD"), copy("memcpy DtoD"), 2.0, ""),
        (("k", full()), ("k", full()), 1.0, "kernels share the SMs"),
        (("k", full(131)), ("k", full(132)), 2.0, ""),
        # As many as fit on 132 SMs at once: 2,048 threads, 65,536 registers, 228 KiB or 32 blocks on each.
        (("s", small(132 * 8 - 1, block=(256, 1, 1))), ("s", small(132 * 8, block=(256, 1, 1))), 2.0, ""),
        (("s", small(132 * 8, block=(256, 1, 1))), ("s", small(132 * 8, block=(256, 1, 1))), 1.0, "kernels share the SMs"),
        (("s", small(132 * 2, block=(256, 1, 1), registers=128)), ("k", full()), 1.0, "kernels share the SMs"),
        (("s", small(132 * 7, static_shared_bytes=32 << 10)), ("k", full()), 1.0, "kernels share the SMs"),
        (("s", small(132 * 32 - 1)), ("k", full()), 2.0, ""),
        (("k", full()), copy("memcpy HtoD"), 2.0, ""),
        # 96 and 36 SMs beside each other are the whole card, which both can use at full speed.
        (("k", full(96, partition=0)), ("k", full(36, partition=1)), 2.0, ""),
        (("k", full(36, partition=1)), ("k", full(36, partition=1)), 1.0, "kernels share the SMs"),
        # One needs the whole card, the other 36 of its 132 SMs.
        (("k", full()), ("k", full(36, partition=1)), 200 / 127, "kernels share the SMs"),
    ],
)
def test_bound_knows_copy_engines_and_sms(first, second, most, reason):
    result = overlap(both(first, second))
    assert result.max_concurrency == pytest.approx(most)
    # THEN the bound is one of work at full speed: more says that the work slowed each other
    slowed = f"mean concurrency 1.82; at full speed at most {most:.2f}: {reason}, so they slowed each other>"
    assert repr(result).endswith(slowed if reason else f"mean concurrency 1.82 of at most {most:.2f}>")


def test_work_of_a_graph_that_overlaps_in_its_own_lane_counts_once():
    spans = [("a", "k", 0, 100, full()), ("a", "k", 0, 100, full()), ("b", "k", 100, 150, full())]
    result = overlap(make_kernel_trace(spans))
    assert (result.sum_ns, result.ideal_ns, result.max_concurrency) == (150, 150, 1.0)


def test_kernels_without_a_known_grid_leave_the_bound_to_the_streams_and_it_says_so():
    result = overlap(both(("k", full()), ("other", {})))
    assert result.max_concurrency == 2.0
    assert "left out where their grids are not known" in " ".join(str(result).split())
    assert "left out" not in str(overlap(both(("k", full()), ("k", full()))))


def test_thirty_kernels_that_fill_the_card_are_no_gain_and_compare_measures_the_loss():
    # GIVEN 30 kernels of 200 us that fill the card, one after the other, and in three streams where they slow each other
    one = make_kernel_trace([("a", "k", 200 * k, 200 * (k + 1), full()) for k in range(30)])
    lanes = "abc"
    three = make_kernel_trace([(lanes[k % 3], "k", 802 * (k // 3), 802 * (k // 3 + 1), full()) for k in range(30)])

    # THEN nothing is called a gain, and only measured walls say what is faster
    texts = (summary_text(three), str(overlap(three)), repr(overlap(three)))
    assert all(
        "mean concurrency 3.00; at full speed at most 1.00: kernels share the SMs, so they slowed each other"
        in " ".join(t.split())
        for t in texts
    )
    assert not any(word in text for text in texts for word in ("gain", "at best"))
    assert comparison_line(compare_traces(one, three)) == "wall time 6.00 µs → 8.02 µs (1.34× as long)"
    text = str(gsl.compare(one, three))
    assert "speed-up" not in text
    assert "mean concurrency" in text


def test_text_says_that_ranges_are_an_upper_bound_and_kernels_are_not():
    text, kernels = str(overlap(pipeline_trace())), " ".join(str(overlap(nested_trace())).split())
    assert repr(overlap(pipeline_trace())) == (
        "<Overlap: 3 streams on NVIDIA H200 (simulated), wall 7.50 ms, sum over streams 14.9 ms, mean concurrency up to 1.99>"
    )
    assert re.search(r"compute +5\.88 +4\.40 \(81%\) +3\.00 \(83%\)", text)
    assert re.search(r"\n2 +3\.40 +45%", text)
    assert ("upper bound" in text, "upper bound" in kernels) == (True, False)
    assert "wall is from the first to the last of them" in kernels


def test_text_says_what_is_missing_and_that_it_is_simulated():
    text = str(overlap(pipeline_trace(dropped_spans=1234, pending_spans=5)))
    assert "Not counted: 1,234 spans dropped." in text
    assert "5 spans have not ended yet: lab.synchronize() waits for them." in text
    text = summary_text(pipeline_trace(pending_spans=2, recovery_note="The run was cut short"))
    assert "2 spans had not ended when the run was cut short" in text
    assert "synchronize" not in text


@pytest.mark.parametrize("columns", [80, 110])
@pytest.mark.parametrize("lane_count", [3, 5, 16])
def test_a_matrix_that_is_too_wide_is_listed_by_pairs(monkeypatch, columns, lane_count):
    monkeypatch.setenv("COLUMNS", str(columns))
    spans = [(f"a_stream_with_a_long_name_{lane}", "x", 0, 10**9) for lane in range(lane_count)]
    text = str(overlap(make_trace(spans)))
    assert max(map(len, text.splitlines())) <= columns
    assert ("share of shorter" in text) == (lane_count > {80: 3, 110: 5}[columns])
    assert "queued or running" in text
    assert "busy" not in text


def test_a_forgotten_synchronize_is_said_in_the_same_words_everywhere():
    with gsl.Session("sim") as lab:
        with lab.on(lab.stream("a"), "step"):
            spin_card(lab, 1_000_000)
        report, trace = str(lab.trace.overlap()), lab.trace
        texts = (report, str(lab.timeline()), repr(lab.timeline()), summary_text(trace), plan_picture(trace).header.empty)
    for text in texts:
        assert "1 span has not ended yet: lab.synchronize() waits for it" in " ".join(text.split())
    assert "2 spans in 1 host thread" in texts[2]  # its launch is there already, and that its stream was made
    # THEN nothing explains figures that are not there
    assert "Mean concurrency" not in report
    assert "What the ranges contain" not in report


@given(st.lists(st.lists(st.integers(0, 60), max_size=12, unique=True).map(lambda times: sorted(times)[: len(times) // 2 * 2])))
def test_steps_are_those_of_counting_at_each_time(lanes):
    times_ns, counts = count_steps([np.array(lane, np.int64) for lane in lanes])
    moments = sorted({time for lane in lanes for time in lane})
    wanted, before = [], None
    for moment in moments:
        busy = sum(start <= moment < end for lane in lanes for start, end in zip(lane[::2], lane[1::2], strict=True))
        if busy != before:
            wanted.append((moment, busy))
        before = busy
    assert list(zip(times_ns.tolist(), counts.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("late_ns", [10**6, 1 << 61, (1 << 63) - 2])
def test_steps_of_any_length_of_time_are_exact(late_ns):
    times_ns, counts = count_steps([np.array([0, late_ns]), np.array([5, late_ns]), np.array([], np.int64)])
    assert (times_ns.tolist(), counts.tolist()) == ([0, 5, late_ns], [1, 2, 0])


def test_what_is_found_of_a_trace_is_kept_for_two_as_long_as_they_live():
    asked = []

    @of_each_trace
    def found(trace, *options):
        asked.append((len(trace), *options))
        return len(trace)

    traces = [random_trace(count, 2) for count in (5, 6, 7)]
    assert [found(trace) for trace in (traces[0], traces[0], traces[1])] == [5, 5, 6]
    assert found(traces[1], "other") == 6
    assert asked == [(5,), (6,), (6, "other")]
    found(traces[2])  # the first one is forgotten
    found(traces[1])
    assert asked[3:] == [(7,)]
    found(traces[0])
    assert asked[4:] == [(5,)]
    assert sweep(traces[0]) is sweep(traces[0])
    lives = weakref.ref(traces[0])
    traces.clear()
    gc.collect()
    assert lives() is None


SPREADS = st.sampled_from([1, 1 << 20, 1 << 50])


@given(hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-5, 5)), SPREADS, st.integers(1, 4))
def test_it_is_what_numpy_says(column, spread, repeat):
    column = np.repeat(column * spread, repeat)
    values, places = distinct(column)
    expected, expected_places = np.unique(column, return_inverse=True)

    assert values.tolist() == expected.tolist()
    assert places.tolist() == expected_places.tolist()
