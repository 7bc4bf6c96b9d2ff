"""Utilization: small traces by hand, then properties against a brute-force count."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import sm_time_steps, stack_sms, utilization
from gpustreamlab.errors import TraceError
from gpustreamlab.model import Device, Lane, Layout, LayoutChange, Partition
from tests.helpers.traces import (
    DECODE,
    PREFILL,
    empty_trace,
    make_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

MS = 1_000_000
CARD = Device(name="card", sm_count=132, simulated=True)


def test_two_partitions_and_the_whole_card_by_hand():
    spans = [("a", "x", 0, 100, {"partition": 0}), ("b", "x", 40, 60, {"partition": 1}), ("c", "x", 50, 120)]
    result = utilization(make_trace(spans, partitions=(PREFILL, DECODE)))
    assert result.names == ("prefill", "decode", None)
    assert result.requested_sms.tolist() == [90, 36, 132]
    assert result.granted_sms.tolist() == [96, 36, 132]
    assert result.busy_ns.tolist() == [100, 20, 70]
    assert result.window_ns.tolist() == [120, 120, 120]
    assert result.sm_ns.tolist() == [9_600, 720, 9_240]
    # Prefill alone for 40, with decode for 20, then all of the card until 120, whoever has it.
    assert result.card_sm_ns == 40 * 96 + 10 * 132 + 10 * 132 + 60 * 132
    assert result.share.tolist() == pytest.approx([100 / 120, 20 / 120, 70 / 120])


def test_a_name_with_two_sizes_has_two_rows_with_their_own_windows():
    result = utilization(repartition_trace())
    assert result.names == ("prefill", "decode", "prefill", "decode", None)
    assert result.granted_sms.tolist() == [96, 36, 64, 68, 132]
    assert result.busy_ns.tolist() == [3_600_000, 1_600_000, 3_600_000, 1_600_000, 1_800_000]
    assert result.window_ns.tolist() == [4 * MS, 4 * MS, 3_950_000, 3_950_000, 9_900_000]


def test_partition_that_comes_back_has_one_row():
    first, second = Layout(partitions=(PREFILL,)), Layout(partitions=(DECODE,))
    changes = [LayoutChange(time_ns=time_ns, layout=layout) for time_ns, layout in ((0, first), (40, second), (70, first))]
    trace = make_trace([("a", "x", 0, 100, {"partition": 0})], partitions=(PREFILL,), layouts=changes, layout=first)
    result = utilization(trace)
    assert result.names == ("prefill", "decode")
    # It ran on for all of the time, which counts as its own; the idle one had it for 30 ns.
    assert result.window_ns.tolist() == [100, 30]
    assert result.share.tolist() == [1.0, 0.0]


def test_partition_measured_later_is_the_same_one():
    unseen = replace(PREFILL, sm_ids=None)
    spans = [("a", "x", 0, 10, {"partition": 0}), ("a", "x", 20, 30, {"partition": 1})]
    assert utilization(make_trace(spans, partitions=(unseen, PREFILL))).busy_ns.tolist() == [20]


def test_spans_beyond_their_layout_by_the_clocks_error_never_make_more_than_all():
    change = LayoutChange(time_ns=0, layout=Layout(partitions=(PREFILL,)))
    gone = LayoutChange(time_ns=90, layout=None)
    spans = [("a", "x", 0, 100, {"partition": 0}), ("b", "x", 0, 200)]
    result = utilization(make_trace(spans, partitions=(PREFILL,), layouts=(change, gone)))
    assert result.window_ns.tolist() == [100, 200]
    assert result.share[0] == 1


def test_partitions_that_were_gone_before_the_first_span_are_left_out():
    changes = (
        LayoutChange(time_ns=-20, layout=Layout(partitions=(PREFILL,))),
        LayoutChange(time_ns=-10, layout=Layout(partitions=(DECODE,))),
    )
    trace = make_trace([("a", "x", 0, 10, {"partition": 0})], partitions=(DECODE,), layouts=changes, layout=changes[-1].layout)
    assert utilization(trace).names == ("decode",)


def test_layout_that_is_not_enforced_counts_the_whole_card():
    result = utilization(partition_trace(is_enforced=False))
    assert result.granted_sms.tolist() == [132, 132, 132]
    assert result.card_share <= 1


def test_empty_trace_has_no_time_and_no_share():
    result = utilization(empty_trace())
    assert (result.names, result.wall_ns, result.card_sm_ns, result.busy_ns.tolist()) == ((None,), 0, 0, [0])
    assert math.isnan(result.card_share)
    assert np.isnan(result.share).all()


def test_text_and_html_say_what_the_figures_mean():
    result = utilization(partition_trace())
    for form in (str(result), result._repr_html_()):
        for part in ("prefill", "96", "90", "whole card", "counts them once", "contain the queueing", "Simulated", "idle"):
            assert part in form
    assert repr(result).startswith("<Utilization: 2 partitions on NVIDIA H200 (simulated), ")


def test_times_that_cannot_be_right_are_refused():
    with pytest.raises(TraceError, match="SM-time does not fit"):
        utilization(make_trace([("a", "x", 0, 1 << 57)]))


@st.composite
def partitioned(draw):
    sizes = draw(st.lists(st.sampled_from((8, 40, 64, 96)), min_size=0, max_size=4))
    parts = tuple(Partition(name=f"p{k}", requested_sms=sms, granted_sms=sms) for k, sms in enumerate(sizes))
    spans = []
    for _ in range(draw(st.integers(1, 20))):
        start = draw(st.integers(-10, 40))
        code = draw(st.integers(-1, len(parts) - 1))
        spans.append(("s", "x", start, start + draw(st.integers(0, 20)), {"partition": code}))
    return make_trace(spans, partitions=parts, lanes=(Lane(name="s"),))


@given(partitioned())
def test_busy_time_and_sm_time_are_what_counting_every_nanosecond_gives(trace):
    result = utilization(trace)
    first, last = int(trace.start_ns.min()), int(trace.end_ns.max())
    busy = {code: np.zeros(last - first, bool) for code in range(-1, len(trace.partitions))}
    for start, end, code in zip(trace.start_ns.tolist(), trace.end_ns.tolist(), trace.partition.tolist(), strict=True):
        busy[code][start - first : end - first] = True
    sms = sum((busy[code] * part.granted_sms for code, part in enumerate(trace.partitions)), start=busy[-1] * 132)
    names = {part.name: code for code, part in enumerate(trace.partitions)} | {None: -1}
    assert result.busy_ns.tolist() == [int(busy[names[name]].sum()) for name in result.names]
    assert result.card_sm_ns == int(np.minimum(sms, 132).sum())


@pytest.mark.parametrize(
    "trace", [partition_trace(), repartition_trace(), pipeline_trace(), random_trace(500)], ids=["two", "re", "one", "none"]
)
def test_stack_ends_at_nothing_and_never_exceeds_the_card(trace):
    steps = sm_time_steps(trace)
    for times_ns, sms in stack_sms(steps, 132):
        assert (np.diff(times_ns) > 0).all()
        assert (sms >= 0).all()
        assert not len(sms) or sms[-1] == 0
    assert steps[-1].size.name is None or all(step.size.name for step in steps)
