"""Grids that were sized for the whole card, and what is said about partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustreamlab.analysis import card_sized_grids, grid_advice, partition_warnings, summary_text
from gpustreamlab.draw import text_timeline, timeline_page
from gpustreamlab.model import Layout
from gpustreamlab.typing import CaptureTier
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import DECODE, PREFILL, make_trace, partition_trace


def kernels(*grids, kind="kernel", code=1):
    """Return a trace of kernels in the decode partition, (name, blocks) each."""
    spans = [
        ("a", name, 100 * k, 100 * k + 50, {"kind": kind, "blocks": blocks, "partition": code})
        for k, (name, blocks) in enumerate(grids)
    ]
    return make_trace(spans, partitions=(PREFILL, DECODE), tier=CaptureTier.KERNELS)


def test_grid_of_one_block_for_each_sm_of_the_card_is_found():
    (grid,) = card_sized_grids(kernels(("mine", 264)))
    assert (grid.name, grid.partition, grid.grid_blocks, grid.granted_sms, grid.span_count) == ("mine", "decode", 264, 36, 1)
    assert grid.waves == pytest.approx(7.333, abs=1e-3)
    assert str(grid) == (
        "mine was launched with 264 blocks, 2 for each of the card's 132 SMs, in decode with 36 SMs: 7.33 blocks per SM. "
        "Size the grid by stream.sm_count"
    )


def test_launches_of_one_kernel_are_counted_and_the_most_frequent_is_first():
    found = card_sized_grids(kernels(("rare", 132), ("often", 264), ("often", 264), ("often", 132)))
    assert [(grid.name, grid.grid_blocks, grid.span_count) for grid in found] == [
        ("often", 264, 2),
        ("rare", 132, 1),
        ("often", 132, 1),
    ]
    assert "(2 times)" in str(found[0])


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel2<cutlass_80_tensorop>", "sm90_xmma_gemm_f16f16", "nvjet_hsh_128x64", "ampere_sgemm_128x64_nn",
        "void at::native::vectorized_elementwise_kernel<4>", "cudnn_pooling", "cupy_add__float32",
        "void cub::DeviceReduceKernel",
        "void flash_fwd_kernel<128>", "ncclDevKernel_AllReduce", "void gemv2T_kernel_val", "triton_poi_fused_add_0",
    ],
)  # fmt: skip
def test_kernels_of_libraries_are_not_advised_on(name):
    trace = kernels((name, 132))
    assert card_sized_grids(trace) == ()
    assert "sm_count" not in summary_text(trace)


def test_a_short_name_is_of_a_library_where_the_full_name_is():
    trace = kernel_trace()
    assert card_sized_grids(trace) == ()  # "elementwise", which is at::native's
    mine = replace(trace, details=tuple(replace(one, full_name="mine") for one in trace.details))
    names = {(grid.name, grid.partition): grid.span_count for grid in card_sized_grids(mine)}
    assert names == {("elementwise", "decode"): 8, ("hash_join", "prefill"): 4}
    assert "elementwise (528 blocks on the 36 SMs of decode, 8 launches)" in grid_advice(mine)
    users = ["saxpy", "my_kernel<4>", "scatter", "platform_step", "attention"]
    assert len(card_sized_grids(kernels(*((name, 132) for name in users)))) == len(users)


def test_advice_is_one_sentence_below_the_picture():
    trace = kernels(*((f"kernel {k}", 132) for k in range(3 + 2)))
    advice = "Size them by stream.sm_count"
    assert "kernel 0 (132 blocks on the 36 SMs of decode, 1 launch)" in grid_advice(trace)
    assert "2 more, see card_sized_grids()" in grid_advice(trace)
    assert partition_warnings(trace) == []
    assert summary_text(trace).endswith(advice)
    assert " ".join(text_timeline(trace, 80).split()).endswith(advice)
    page = timeline_page(trace, with_static=False)
    assert page.count(advice) == 1
    assert page.index('<main id="gsl-timeline">') < page.index(advice)


def test_layouts_that_are_not_as_they_read_are_warned_about():
    assert partition_warnings(partition_trace()) == []
    assert partition_warnings(partition_trace(is_enforced=False))[0].startswith("Layout not enforced")
    shared = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=tuple(range(95, 131)))))
    assert partition_warnings(replace(partition_trace(), layout=shared))[0] == ("Partition prefill: shares 1 SM with decode")


NONE = {
    **{f"{blocks} blocks": kernels(("mine", blocks)) for blocks in (0, 1, 36, 131, 133, 132 * 33)},
    "on the whole card": kernels(("mine", 132), code=-1),
    "a range": kernels(("mine", 132), kind="range"),
    "a partition of all SMs": replace(kernels(("mine", 132)), partitions=(PREFILL, replace(DECODE, granted_sms=132))),
    "not enforced": replace(kernels(("mine", 132)), layout=Layout(partitions=(PREFILL, DECODE), is_enforced=False)),
    "no grids": partition_trace(),
}


@pytest.mark.parametrize("trace", NONE.values(), ids=NONE)
def test_other_grids_are_not_found(trace):
    assert card_sized_grids(trace) == ()
