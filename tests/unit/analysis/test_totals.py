"""Calls and times by name, stream and partition."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Trace
from gpustreamlab.analysis import overlap, source_facts, totals, utilization
from gpustreamlab.draw import plan_picture
from gpustreamlab.errors import OptionError
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import make_trace, partition_trace, random_trace


def test_names_are_sums_and_names_that_differ_by_a_number_are_one():
    trace = make_trace([("a", f"h2d {k}", 10 * k, 10 * k + 4 + k) for k in range(5)] + [("b", "gemm 1", 0, 100)])
    frame = trace.totals("name").to_pandas()
    assert frame.columns.tolist() == ["name", "calls", "total_ns", "mean_ns", "max_ns", "share"]
    assert frame.to_numpy().tolist() == [["gemm 1", 1, 100, 100.0, 100, 1.0], ["h2d *", 5, 30, 6.0, 8, 0.3]]


def test_calls_of_the_host_come_behind_what_streams_did():
    spans = [("a", "step", 0, 60), ("a", "gemm", 10, 50, {"kind": "kernel"}), ("host", "cudaDeviceSynchronize", 5, 105)]
    trace = make_trace([*spans[:2], (*spans[2], {"kind": "host"}), ("host", "cudaLaunchKernel", 0, 4, {"kind": "host"})])
    assert trace.totals("name").labels == ("step", "gemm", "cudaDeviceSynchronize", "cudaLaunchKernel")


def test_calls_of_an_operator_are_one_and_kernels_of_other_template_numbers_are_not():
    names = [f"aten::to, seq = {k}, op_id = {k + 7}" for k in range(3)] + ["batch=1, head 2", "batch=3, head 4"]
    trace = make_trace([("a", name, 10 * k, 10 * k + 9) for k, name in enumerate([*names, "k<1>(int)", "k<2>(int)"])])
    assert sorted(trace.totals("name").labels) == ["aten::to, seq = *, op_id = *", "batch=*, head *", "k<1>(int)", "k<2>(int)"]


@pytest.mark.parametrize("seed", range(3))
def test_streams_are_busy_as_everywhere_else(seed):
    trace = random_trace(500, 4, seed=seed)
    found, expected = totals(trace, "stream"), overlap(trace)
    busy_ns = dict(zip((lane.name for lane in trace.lanes), expected.busy_ns.tolist(), strict=True))
    assert dict(zip(found.labels, found.total_ns.tolist(), strict=True)) == {
        k: v for k, v in busy_ns.items() if k in found.labels
    }
    assert found.window_ns == expected.wall_ns
    assert (np.diff(found.total_ns) <= 0).all()
    assert (found.share <= 1).all()


@pytest.mark.parametrize("trace", [partition_trace(), kernel_trace()], ids=["ranges", "kernels"])
def test_partitions_are_busy_as_in_utilization(trace):
    found, expected = totals(trace, "partition"), utilization(trace)
    assert dict(zip(found.labels, found.total_ns.tolist(), strict=True)) == dict(
        zip(expected.names, expected.busy_ns.tolist(), strict=True)
    )


def test_a_part_is_that_of_the_clipped_trace():
    trace = partition_trace()
    part = trace.totals("stream", 2_000_000, 6_000_000)
    assert part.window_ns == 4_000_000
    wanted = trace.between(2_000_000, 6_000_000).totals("stream").to_pandas()
    assert part.to_pandas().drop(columns="share").equals(wanted.drop(columns="share"))
    # A range whose kernels are in another part does not count there.
    kernels = kernel_trace()
    for by in ("name", "stream", "partition"):
        parts = [kernels.totals(by, *window) for window in ((0, 3_000_000), (3_000_000, 7_790_000))]
        assert sum(int(part.total_ns.sum()) for part in parts) <= int(kernels.totals(by).total_ns.sum())


def test_an_error_that_is_not_known_is_not_said():
    meta = kernel_trace(kernel_error_ns=0, clock_error_ns=0, range_error_ns=0, range_correction_ns=1_200).metadata
    assert source_facts(meta) == [
        "Tier: kernels (every kernel, copy and fill by CUPTI 13.0)",
        "ranges after a correction of 1.20 µs",
    ]


def test_ranges_of_two_streams_that_never_meet_are_known_not_to_have_run_at_once():
    apart = Trace.from_columns(start_ns=[0, 10], end_ns=[9, 20], stream=["a", "b"])
    near = Trace.from_columns(start_ns=[0, 8], end_ns=[9, 20], stream=["a", "b"])
    assert plan_picture(apart).header.finding.startswith("2 streams at once 0% of the time any worked")
    assert plan_picture(near).header.finding.startswith("What ran at once is not known, at most 1 ns")


def test_of_more_than_two_streams_the_sentence_says_how_many_worked_at_once_at_most():
    def sentence_of(*lanes, long_ns):
        spans = [(name, "x", 10 * place, 10 * place + long_ns) for place, name in enumerate(lanes)]
        return plan_picture(make_trace(spans, kind="kernel", tier="kernels")).header.finding

    assert sentence_of("a", "b", long_ns=15).startswith("2 streams at once 20% of the time any worked")
    assert "2 to 3 streams at once " in sentence_of(*"abcde", long_ns=25)
    assert sentence_of(*"abcde", long_ns=10).startswith("2 streams at once 0% of the time any worked")


def test_another_word_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match=r"'streams'.*stream"):
        totals(partition_trace(), "streams")
