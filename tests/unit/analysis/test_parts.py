"""Figures of parts of a trace: those of the time, the streams, the names that were cut out; and methods of traces."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gpustreamlab import Session, Trace, compare
from gpustreamlab.analysis import (
    capture_facts,
    counted_kinds,
    counted_rows,
    overlap,
    summary_text,
)
from gpustreamlab.errors import OptionError, StreamNotFoundError
from gpustreamlab.model import SPAN_KINDS, Device, Lane, TraceMetadata
from gpustreamlab.typing import CaptureTier, SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.traces import partition_trace, pipeline_trace, repartition_trace

WINDOWS = ((), ((0, 140),), ((20, 50), (60, 70)))


def random_trace(seed):
    """Ranges, work and calls on 3 lanes, from 0 to 140 ns."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 25))
    start_ns = rng.integers(0, 100, size)
    windows = WINDOWS[seed % 3]
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


def busy_at(trace, kinds):
    """For each ns from 0 to 140 the lanes that are busy, by what counts in the whole trace."""
    busy = [set() for _ in range(140)]
    windows = trace.metadata.capture_windows
    for start, end, lane, code in zip(
        *(getattr(trace, name).tolist() for name in ("start_ns", "end_ns", "lane", "kind")), strict=True
    ):
        kind = SPAN_KINDS[code]
        is_covered = kind is SpanKind.RANGE and any(begin <= start < stop for begin, stop in windows)
        if kind in kinds and not is_covered:
            for at in range(start, end):
                busy[at].add(lane)
    return busy


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_the_overlap_of_a_stretch_of_time_is_exact(first):
    for seed in range(first, first + 50):
        trace = random_trace(seed)
        t0, t1 = sorted(np.random.default_rng(seed + 1_000).integers(0, 141, 2).tolist())
        part = trace.between(t0, t1)
        result, busy = part.overlap(), busy_at(trace, counted_kinds(part))[t0:t1]

        for one in range(3):
            for other in range(3):
                assert result.common_ns[one, other] == sum({one, other} <= lanes for lanes in busy)
        assert result.concurrency_ns[1:].tolist() == [sum(len(lanes) == count for lanes in busy) for count in (1, 2, 3)]
        if SpanKind.RANGE in counted_kinds(trace):  # the same kinds count then, unless a part has next to no ranges
            pair = result["a", "b"]
            assert (pair.common_ns, pair.busy_ns) == (result.common_ns[0, 1], tuple(result.busy_ns[:2]))


def test_busy_times_of_neighbouring_windows_add_up():
    for seed in range(0, 300, 3):  # without captures: whichever spans there are, the same kinds count
        trace = random_trace(seed)
        borders = [0, *sorted(np.random.default_rng(seed).integers(0, 140, 4).tolist()), 140]
        parts = [trace.between(t0, t1).overlap() for t0, t1 in pairwise(borders)]

        assert sum(part.common_ns for part in parts).tolist() == overlap(trace).common_ns.tolist()


def test_a_range_that_began_before_a_capture_counts_in_a_part_within_it():
    # GIVEN a range that began uncaptured, one that began captured, and a kernel
    trace = replace(
        random_trace(0),
        name=[0, 0, 0], start_ns=[40, 55, 60], end_ns=[90, 95, 70], queued_ns=[40, 55, 50],
        lane=[0, 1, 2], kind=[0, 0, 1], parent=[-1] * 3, thread=[-1] * 3, partition=[-1] * 3,
        metadata=replace(random_trace(1).metadata, capture_windows=((50, 100),)),
    )  # fmt: skip
    part = trace.between(65, 85)

    assert counted_rows(trace).tolist() == counted_rows(part).tolist() == [True, False, True]
    assert part.overlap().busy_ns.tolist() == [20, 0, 5]
    lines = [[line for line in summary_text(one).splitlines() if line.startswith("Queueing")] for one in (part, trace)]
    assert lines[0] == lines[1] != []


def test_windows_of_capture_elsewhere_are_not_told_of_a_part():
    trace = replace(random_trace(5), metadata=replace(random_trace(5).metadata, capture_windows=((0, 10), (20, 100))))

    assert "in 2 windows" in capture_facts(trace.between(5, 60))[0]
    assert capture_facts(trace.between(30, 60)) == []


def test_the_use_of_partitions_in_a_stretch_of_time_is_exact():
    trace = repartition_trace()
    result = trace.between(4_000_000, 7_000_000).utilization()
    early = trace.between(0, 1_500_000).utilization()

    # 96 of 132 SMs from 4 to 5.95 ms, then 64; the last gemm ends at 6.9 ms.
    places = [(name, sms) for name, sms in zip(result.names, result.granted_sms.tolist(), strict=True)]
    assert dict(zip(places, result.busy_ns.tolist(), strict=True)) == {
        ("prefill", 96): 1_800_000, ("decode", 36): 800_000, ("prefill", 64): 900_000, ("decode", 68): 400_000,
    }  # fmt: skip
    assert dict(zip(places, result.window_ns.tolist(), strict=True))["prefill", 96] == 1_950_000
    assert early.names == (None,)
    assert early.card_share == 1.0 - 100_000 / 1_500_000


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


def test_a_pair_of_idle_streams_has_no_share():
    pair = Trace.from_columns(start_ns=[0, 5], end_ns=[0, 9], stream=["a", "b"]).overlap()["a", "b"]

    assert np.isnan([*pair.shares, pair.common_share]).tolist() == [True, False, True]


@pytest.mark.parametrize("wrong", ["copy", 0, ("a",), ("a", "b", "c"), slice(0, 2)])
def test_what_is_no_pair_is_told(wrong):
    with pytest.raises(OptionError, match=r"Use overlap\['copy', 'compute'\]"):
        pipeline_trace().overlap()[wrong]


def test_an_unknown_stream_of_a_pair_is_told_with_the_nearest():
    with pytest.raises(StreamNotFoundError, match="no stream 'up-load'. Did you mean 'upload'"):
        pipeline_trace().overlap()["compute", "up-load"]


def test_a_trace_is_compared_with_a_file_and_shows_its_timeline(tmp_path):
    trace = partition_trace()
    trace.save(tmp_path / "run.parquet")
    assert trace.timeline().trace is trace
    assert str(compare(trace, tmp_path / "run.parquet")) == str(compare(trace, trace))


def test_pictures_and_reports_of_a_part_say_that_it_is_one(tmp_path):
    part = pipeline_trace().between(0, 2_000_000)
    part.timeline().save(tmp_path / "part.svg")

    assert "A part, cut out of a trace of 24 spans" in summary_text(part)
    assert "A part, cut out of a trace of 24 spans" in (tmp_path / "part.svg").read_text()
    assert summary_text(part.between(0, 0)).startswith("Image pipeline: timeline of 0 spans in 3 streams")
    assert "No spans\n" in summary_text(part.between(0, 0))
