"""The look of names and partitions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import name_group
from gpustreamlab.draw import name_styles, partition_style
from gpustreamlab.draw._colours import CALL_STYLES, NAME_HATCHES, PALETTE, PARTITION_PALETTE, call_class, text_colour

# Names that differ by a number look alike, see below.
NAMES = st.lists(st.text(max_size=8), unique_by=name_group, max_size=60)


@given(NAMES, NAMES)
def test_names_have_looks_of_the_palette_that_differ_and_stay_when_more_follow(names, more):
    styles = name_styles(names)
    assert {style.fill for style in styles} <= set(PALETTE)
    assert {style.hatch for style in styles} <= set(NAME_HATCHES)
    assert len({style.fill for style in styles[:7]}) == min(7, len(names))
    assert len({(style.fill, style.hatch) for style in styles[:28]}) == min(28, len(names))
    hatches = {style.fill: style.hatch for style in styles[:7]}
    assert all(hatches.get(first, "") != hatches.get(second) for first, second in pairwise(PALETTE))
    both = list(dict.fromkeys([*names, *{name_group(name): name for name in [*more, *names]}.values()]))
    assert name_styles(both)[: len(names)] == styles


def test_a_lone_name_has_the_same_colour_in_every_run():
    assert [name_styles([name])[0].fill for name in ("gemm", "copy", "filter")] == ["#D55E00", "#0072B2", "#0072B2"]


def test_names_that_differ_by_a_number_look_alike():
    first, other, second, alone = name_styles(["h2d 0", "gemm_fp16", "h2d 1", "gemm_fp32"])
    assert first == second
    assert len({first.fill, other.fill, alone.fill}) == 3


def test_partitions_differ_in_colour_hatch_and_letter_and_from_names():
    styles = [partition_style(index) for index in range(800)]
    assert len({style.fill for style in styles[:8]}) == len({style.hatch for style in styles[:8]}) == 8
    assert len({(style.fill, style.hatch) for style in styles[:64]}) == 64
    assert len({style.letter for style in styles}) == 800
    assert [styles[index].letter for index in (0, 1, 26, 51, 52, 702)] == ["A", "B", "AA", "AZ", "BA", "AAA"]
    assert not set(PARTITION_PALETTE) & set(PALETTE)


@pytest.mark.parametrize("fill", [*PALETTE, *PARTITION_PALETTE])
def test_text_on_every_colour_is_readable(fill):
    def luminance(colour):
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(fill), luminance(text_colour(fill))))
    assert (high + 0.05) / (low + 0.05) >= 4.5


CALLS = {
    "launch": ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cuMemsetD8Async", "cudaGraphLaunch"),
    "synchronise": ("cudaDeviceSynchronize", "cuEventSynchronize"),
    "memory": ("cuMemAllocAsync", "cudaFree", "cuMemHostAlloc"),
    "event": ("cudaEventRecord", "cuStreamWaitEvent"),
    "": ("cuApplyLayerNorm", "cudf: join", "step", "cuda kernel"),
}


@pytest.mark.parametrize(("label", "name"), [(label, name) for label, names in CALLS.items() for name in names])
def test_calls_are_told_by_what_they_are_for(label, name):
    assert call_class(name) == label


def test_calls_take_no_look_from_other_names():
    step, call, gemm = name_styles(["step", "cudaStreamSynchronize", "gemm"])
    assert [step, gemm] == list(name_styles(["step", "gemm"]))
    assert call == CALL_STYLES["synchronise"]
