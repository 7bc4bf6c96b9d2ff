"""What a summary says of the kernel tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustreamlab.analysis import (
    capture_facts,
    card_sized_grids,
    grid_advice,
    headline,
    missing_facts,
    source_facts,
    summary_text,
)
from gpustreamlab.typing import CaptureTier
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import MS, make_kernel_trace, pipeline_trace, without_spans


def test_the_tier_says_who_told_and_how_exactly():
    assert source_facts(kernel_trace().metadata)[0] == "Tier: kernels (every kernel, copy and fill by CUPTI 13.0, ±200 ns)"
    assert source_facts(kernel_trace(capture_source="").metadata)[0] == "Tier: kernels (every kernel, copy and fill)"


def test_host_threads_are_no_streams():
    assert "in 5 streams and 2 host threads on" in headline(kernel_trace())
    assert "in 3 streams on" in headline(kernel_trace(has_host=False, has_strays=False))
    assert "host:" not in summary_text(kernel_trace()).splitlines()[1]


def test_kernels_are_no_upper_bound():
    text = summary_text(kernel_trace())
    assert "contain waiting" not in text
    assert "At most" not in text
    assert "contain waiting" in summary_text(kernel_trace(6, windows=((2 * MS, 5 * MS),)))


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        (((0, 8 * MS),), []),
        (((0, 3_900_000),), ["kernels captured 50% of the time: elsewhere ranges count"]),
        (((0, MS), (2 * MS, 3 * MS)), ["kernels captured in 2 windows, 25% of the time: elsewhere ranges count"]),
        ((), []),
    ],
    ids=["whole", "half", "two", "unknown"],
)
def test_windows_are_told_where_they_do_not_cover_everything(windows, words):
    trace = kernel_trace(4, windows=windows)
    assert capture_facts(trace) == words
    assert all(fact in summary_text(trace) for fact in words)


def test_tables_without_spans_say_only_what_they_know():
    assert capture_facts(without_spans(kernel_trace())) == []
    assert capture_facts(without_spans(kernel_trace(windows=((0, MS), (2 * MS, 3 * MS))))) == ["kernels captured in 2 windows"]


def test_what_is_missing_is_said_with_its_reason():
    meta = kernel_trace(dropped_spans=1_200, dropped_records=1_000, capture_note="torch.profiler took over").metadata
    assert missing_facts(meta) == [
        "Some kernels are missing: torch.profiler took over",
        "1,200 spans dropped, 1,000 of them kernels, copies and calls "
        "(a full buffer, a closed stream, an error or an interrupt)",
    ]
    ranges = pipeline_trace(capture_note="nsys is active", tier=CaptureTier.RANGES).metadata
    assert missing_facts(ranges) == ["Kernels were not captured: nsys is active"]


def queueing_line(trace):
    return "".join(line for line in summary_text(trace).splitlines() if line.startswith("Queueing"))


def test_queueing_is_from_the_launch_to_the_start():
    spans = [
        ("a", "k", 100, 200, {"queued_ns": 50}),
        ("a", "k", 200, 300, {"queued_ns": 60}),
        ("a", "k", 300, 400, {"queued_ns": 70}),
    ]
    line = queueing_line(make_kernel_trace(spans))
    assert line == "Queueing: kernels start 140 ns after their launch (median), at most 230 ns"
    assert queueing_line(pipeline_trace()) == ""
    assert queueing_line(make_kernel_trace([("a", "k", 100, 200)])) == ""


def test_grids_are_read_from_what_the_kernels_were_launched_with():
    # GIVEN kernels that are no library's
    trace = replace(kernel_trace(4), details=tuple(replace(one, full_name="mine") for one in kernel_trace(4).details))
    names = {(grid.name, grid.partition): grid.span_count for grid in card_sized_grids(trace)}
    assert names == {("elementwise", "decode"): 8, ("hash_join", "prefill"): 4}
    assert "elementwise (8 ×, 528 blocks on the 36 SMs of decode)" in grid_advice(trace)
