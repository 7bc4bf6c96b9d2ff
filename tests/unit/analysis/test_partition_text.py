"""Partitions in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustreamlab.analysis import change_text, proof_text, sms_text, summary_text
from gpustreamlab.model import Layout, Partition
from tests.helpers.traces import DECODE, PREFILL, nested_trace, partition_trace, repartition_trace

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


def test_summary_without_partitions_has_no_word_about_them():
    assert "SM" not in summary_text(nested_trace()).replace("SIMULATED", "")
