"""Grids that were sized for the whole card, and what is said about partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustreamlab.analysis import card_sized_grids, partition_warnings, summary_text
from gpustreamlab.analysis._grids import LISTED_GRIDS, MOST_BLOCKS_PER_SM
from gpustreamlab.draw._html import timeline_page
from gpustreamlab.model import Layout
from gpustreamlab.typing import CaptureTier
from tests.helpers.traces import DECODE, PREFILL, make_trace, partition_trace


def kernels(*grids, kind="kernel", code=1):
    """Return a trace of kernels in the decode partition, (name, blocks) each."""
    spans = [
        ("a", name, 100 * k, 100 * k + 50, {"kind": kind, "blocks": blocks, "partition": code})
        for k, (name, blocks) in enumerate(grids)
    ]
    return make_trace(spans, partitions=(PREFILL, DECODE), tier=CaptureTier.KERNELS)


def test_grid_of_one_block_for_each_sm_of_the_card_is_found():
    (grid,) = card_sized_grids(kernels(("gemm", 264)))
    assert (grid.name, grid.partition, grid.grid_blocks, grid.granted_sms, grid.span_count) == ("gemm", "decode", 264, 36, 1)
    assert grid.waves == pytest.approx(7.333, abs=1e-3)
    assert str(grid) == (
        "gemm was launched with 264 blocks, 2 for each of the card's 132 SMs, in decode with 36 SMs: 7.33 blocks per SM. "
        "Size the grid by stream.sm_count"
    )


@pytest.mark.parametrize("blocks", [0, 1, 36, 131, 133, 132 * (MOST_BLOCKS_PER_SM + 1)])
def test_other_grids_are_not_found(blocks):
    assert card_sized_grids(kernels(("gemm", blocks))) == ()


def test_grids_on_the_whole_card_are_not_found():
    assert card_sized_grids(kernels(("gemm", 132), code=-1)) == ()


def test_ranges_are_not_found():
    assert card_sized_grids(kernels(("gemm", 132), kind="range")) == ()


def test_partition_of_all_sms_is_not_found():
    trace = kernels(("gemm", 132))
    assert card_sized_grids(replace(trace, partitions=(PREFILL, replace(DECODE, granted_sms=132)))) == ()


def test_layout_that_is_not_enforced_has_no_smaller_partitions():
    trace = replace(kernels(("gemm", 132)), layout=Layout(partitions=(PREFILL, DECODE), is_enforced=False))
    assert card_sized_grids(trace) == ()


def test_trace_without_grids_finds_nothing():
    assert card_sized_grids(partition_trace()) == ()


def test_launches_of_one_kernel_are_counted_and_the_most_frequent_is_first():
    found = card_sized_grids(kernels(("rare", 132), ("often", 264), ("often", 264), ("often", 132)))
    assert [(grid.name, grid.grid_blocks, grid.span_count) for grid in found] == [
        ("often", 264, 2),
        ("rare", 132, 1),
        ("often", 132, 1),
    ]
    assert "(2 times)" in str(found[0])


def test_warnings_are_bounded_and_shown_in_the_summary_and_on_the_page():
    trace = kernels(*((f"kernel {k}", 132) for k in range(LISTED_GRIDS + 2)))
    warnings = partition_warnings(trace)
    assert len(warnings) == LISTED_GRIDS + 1
    assert warnings[-1].startswith("2 more kernels")
    assert "Size the grid by stream.sm_count" in summary_text(trace)
    assert "Size the grid by stream.sm_count" in timeline_page(trace)


def test_layouts_that_are_not_as_they_read_are_warned_about():
    assert partition_warnings(partition_trace()) == []
    assert partition_warnings(partition_trace(is_enforced=False))[0].startswith("Layout not enforced")
    shared = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=tuple(range(95, 131)))))
    assert partition_warnings(replace(partition_trace(), layout=shared))[0] == ("Partition prefill: shares 1 SM with decode")
