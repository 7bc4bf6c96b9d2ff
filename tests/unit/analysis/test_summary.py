"""What a summary says: spans, kernels, partitions, and what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustreamlab import Trace
from gpustreamlab.analysis import (
    capture_facts,
    change_text,
    grid_advice,
    headline,
    missing_facts,
    partition_warnings,
    proof_text,
    sms_text,
    source_facts,
    summary_text,
)
from gpustreamlab.draw import plan_picture, text_timeline, timeline_page, timeline_svg
from gpustreamlab.model import NO_COMMON_TIME, Device, Lane, Layout, Partition
from gpustreamlab.typing import CaptureTier
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    DECODE,
    MS,
    PREFILL,
    empty_trace,
    evil_trace,
    make_kernel_trace,
    make_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
    without_spans,
)


def test_summary_has_spans_lanes_wall_concurrency_errors_and_tier():
    text = summary_text(pipeline_trace(dropped_spans=7, pending_spans=2))
    for part in (
        "24 spans in 3 streams", "SIMULATED", "7.50 ms", "upload 5.40 ms (72%)", "mean concurrency up to 1.99. Ranges",
        "Tier: ranges", "clock error ±500 ns", "correction of 2.60 µs", "7 spans dropped", "2 spans have not ended yet",
    ):  # fmt: skip
        assert part in text


def test_summary_says_the_same_as_the_page_and_the_text_timeline():
    # GIVEN a range that reaches beyond the kernels in it, and two streams on which nothing ran
    lanes = tuple(Lane(name=name, stream=number) for number, name in enumerate("abc", 1))
    spans = [("a", "step", 0, 20_700, {"kind": "range"}), ("a", "sum", 7_000, 20_500, {"parent": 0})]
    trace = make_kernel_trace(spans, lanes=lanes)

    # THEN duration, busy share and number of streams are the same everywhere
    summary, header = summary_text(trace), plan_picture(trace).header
    assert "2 spans in 1 stream on" in summary
    assert "2 spans in 1 stream · 13.5 µs" in header.facts
    assert header.finding == "Busy 100% of the time, on one stream"
    assert summary.splitlines()[0] in text_timeline(trace, 200)
    assert summary.splitlines()[:3] == [
        "Timeline of 2 spans in 1 stream on NVIDIA H200 (SIMULATED): 13.5 µs",
        "Busy: a 13.5 µs (100%)",
        header.finding,
    ]


def test_summary_of_ten_thousand_lanes_counts_no_pairs(monkeypatch):
    monkeypatch.setattr("gpustreamlab.analysis._overlap._matrix", None)  # hours for so many
    text = summary_text(random_trace(2_000, 10_000))
    assert "in 1,811 streams" in text
    assert "and 1,791 more streams" in text


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


BOTH = Layout(partitions=(PREFILL, DECODE))


@pytest.mark.parametrize(("granted", "requested", "text"), [(96, 90, "96 SMs (asked for 90)"), (1, 1, "1 SM"), (8, 8, "8 SMs")])
def test_sms_are_written_with_what_was_asked_for(granted, requested, text):
    assert sms_text(granted, requested) == text


@pytest.mark.parametrize(
    ("sm_ids", "text"),
    [
        (None, ""),
        (tuple(range(96, 132)), "verified"),
        (tuple(range(96, 130)), "34 of 36 SMs seen"),
        (tuple(range(95, 131)), "shares 1 SM with prefill"),
        ((0, 1), "2 of 36 SMs seen, shares 2 SMs with prefill"),
    ],
)
def test_proof_says_what_was_seen(sm_ids, text):
    decode = replace(DECODE, sm_ids=sm_ids)
    assert proof_text(decode, Layout(partitions=(PREFILL, decode))) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (None, None, ""),
        (BOTH, BOTH, ""),
        (None, BOTH, "prefill 96 SMs, decode 36 SMs"),
        (BOTH, Layout(partitions=(PREFILL,)), "decode gone"),
        (BOTH, Layout(partitions=(replace(PREFILL, granted_sms=64), DECODE)), "prefill 96→64"),
        (BOTH, Layout(partitions=()), "no partitions"),
        (None, replace(BOTH, is_enforced=False), "prefill 96 SMs, decode 36 SMs (not enforced)"),
        (BOTH, replace(BOTH, is_enforced=False), "(not enforced)"),
    ],
)
def test_changes_are_written(before, after, text):
    assert change_text(before, after) == text


def test_changes_of_many_partitions_are_cut():
    layout = Layout(partitions=[Partition(name=f"p{k}", requested_sms=8, granted_sms=8) for k in range(9)])
    assert change_text(None, layout) == "p0 8 SMs, p1 8 SMs, p2 8 SMs, p3 8 SMs and 5 more"


def test_summary_has_a_line_for_each_partition():
    lines = summary_text(partition_trace()).splitlines()
    assert "Partition prefill: 96 SMs (asked for 90), queued or running 9.75 ms (98% of its time)" in lines
    assert "Whole card: 132 SMs, queued or running 1.00 ms (10% of its time)" in lines
    assert any(line.startswith("SM-time: ") for line in lines)
    assert sum(line.startswith("Partition decode") for line in summary_text(repartition_trace()).splitlines()) == 2


def test_it_says_no_more_than_it_knows():
    text, kernels = summary_text(nested_trace()), kernel_trace()
    assert "SM" not in text.replace("SIMULATED", "")
    assert summary_text(empty_trace()).startswith("Timeline of 0 spans in 0 streams")
    assert missing_facts(empty_trace().metadata) == []
    assert not set(summary_text(evil_trace())) & {"\u2028", "\u202e", "\x1b"}
    assert "NVIDIA H200 (measured on hardware)" in headline(pipeline_trace(device=Device(name="NVIDIA H200", sm_count=132)))
    assert source_facts(kernels.metadata)[0] == "Tier: kernels (every kernel, copy and fill by CUPTI 13.0, ±200 ns)"
    assert source_facts(kernel_trace(capture_source="").metadata)[0] == "Tier: kernels (every kernel, copy and fill)"
    assert "in 5 streams and 2 host threads on" in headline(kernels)
    assert "in 3 streams on" in headline(kernel_trace(has_host=False, has_strays=False))
    assert "host:" not in summary_text(kernels).splitlines()[1]
    assert ("contain waiting" in summary_text(kernels), "At most" in summary_text(kernels)) == (False, False)
    assert "contain waiting" in summary_text(kernel_trace(6, windows=((2 * MS, 5 * MS),)))
    assert capture_facts(without_spans(kernels)) == []
    assert capture_facts(without_spans(kernel_trace(windows=((0, MS), (2 * MS, 3 * MS))))) == ["kernels captured in 2 windows"]


def test_processes_whose_times_say_nothing_of_each_other_are_not_said_to_have_worked_at_once():
    trace = Trace.from_columns(start_ns=[0, 0], end_ns=[9, 9], stream=["a", "b"], sm_count=4)
    assert "at once" in summary_text(trace)
    apart = replace(trace, metadata=replace(trace.metadata, missing=(NO_COMMON_TIME,)))
    assert "at once" not in summary_text(apart)
    assert "cannot be compared" in summary_text(apart).replace("\n  ", " ")
    assert "\n\n" not in summary_text(apart)
    assert "at once" not in str(apart.timeline()._repr_mimebundle_()["text/html"])
    assert ("≤ 2" in str(trace.timeline()), "≤ 2" in str(apart.timeline())) == (True, False)
    assert "No stream was ever busy" not in str(apart.timeline())
    pictures = [timeline_svg(one) for one in (trace, apart)]
    assert ["Where the time went" in picture for picture in pictures] == [True, False]
    assert ["cannot be compared" in picture for picture in pictures] == [False, True]


def grids(*launches, code=1, **rest):
    """Return a trace of kernels in the decode partition, (name, blocks) each."""
    spans = [
        ("a", name, 100 * k, 100 * k + 50, {"blocks": blocks, "partition": code, **rest})
        for k, (name, blocks) in enumerate(launches)
    ]
    return make_trace(spans, kind="kernel", partitions=(PREFILL, DECODE), tier=CaptureTier.KERNELS)


def test_advice_on_grids_is_one_sentence_below_the_picture():
    trace = grids(("rare", 132), ("often", 264), ("often", 264), *((f"kernel {k}", 132) for k in range(3)))
    advice = grid_advice(trace)
    assert advice == (
        "Grids of a multiple of the card's 132 SMs: often (264 blocks on the 36 SMs of decode, 2 launches), "
        "rare (132 blocks on the 36 SMs of decode, 1 launch), kernel 0 (132 blocks on the 36 SMs of decode, 1 launch), "
        "2 more. Size them by stream.sm_count"
    )
    assert summary_text(trace).endswith(advice)
    assert " ".join(text_timeline(trace, 80).split()).endswith(advice)
    page = timeline_page(trace, with_static=False)
    end = "Size them by stream.sm_count"
    assert page.count(end) == 1
    assert page.index('<main id="gsl-timeline">') < page.index(end)


def test_kernels_of_libraries_are_not_advised_on_by_their_name_or_full_name():
    names = (
        "void cutlass::Kernel2<cutlass_80_tensorop>", "sm90_xmma_gemm_f16f16", "nvjet_hsh_128x64", "ampere_sgemm_128x64_nn",
        "void at::native::vectorized_elementwise_kernel<4>", "cudnn_pooling", "cupy_add__float32", "ncclDevKernel_AllReduce",
        "void flash_fwd_kernel<128>", "void cub::DeviceReduceKernel", "void gemv2T_kernel_val", "triton_poi_fused_add_0",
    )  # fmt: skip
    assert grid_advice(grids(*((name, 132) for name in names))) == ""
    users = ("saxpy", "my_kernel<4>", "scatter", "platform_step", "attention")
    assert all(grid_advice(grids((name, 132))) for name in users)
    trace = kernel_trace()
    assert grid_advice(trace) == ""  # "elementwise", which is at::native's
    mine = replace(trace, details=tuple(replace(one, full_name="mine") for one in trace.details))
    assert "elementwise (528 blocks on the 36 SMs of decode, 8 launches), hash_join (" in grid_advice(mine)


OTHER_GRIDS = {
    **{f"{blocks} blocks": grids(("mine", blocks)) for blocks in (0, 1, 36, 131, 133, 132 * 33)},
    "on the whole card": grids(("mine", 132), code=-1),
    "a range": grids(("mine", 132), kind="range"),
    "a partition of all SMs": replace(grids(("mine", 132)), partitions=(PREFILL, replace(DECODE, granted_sms=132))),
    "not enforced": replace(grids(("mine", 132)), layout=Layout(partitions=(PREFILL, DECODE), is_enforced=False)),
    "no grids": partition_trace(),
}


@pytest.mark.parametrize("trace", OTHER_GRIDS.values(), ids=OTHER_GRIDS)
def test_other_grids_are_not_advised_on(trace):
    assert grid_advice(trace) == ""


def test_layouts_that_are_not_as_they_read_are_warned_about():
    assert partition_warnings(partition_trace()) == []
    assert partition_warnings(partition_trace(is_enforced=False))[0].startswith("Layout not enforced")
    shared = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=tuple(range(95, 131)))))
    assert partition_warnings(replace(partition_trace(), layout=shared))[0] == ("Partition prefill: shares 1 SM with decode")
