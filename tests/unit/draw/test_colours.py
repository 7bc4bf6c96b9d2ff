"""The look of names."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import name_group
from gpustreamlab.draw import name_styles, partition_style
from gpustreamlab.draw._colours import NAME_HATCHES, PALETTE, PARTITION_PALETTE, text_colour

# Names that differ by a number look alike, see the last test.
NAMES = st.lists(st.text(max_size=8), unique_by=name_group, max_size=60)


@given(NAMES)
def test_first_seven_differ_in_colour_and_first_28_in_colour_or_hatch(names):
    styles = name_styles(names)
    assert len({style.fill for style in styles[:7]}) == min(7, len(names))
    assert len({(style.fill, style.hatch) for style in styles[:28]}) == min(28, len(names))


@given(NAMES)
def test_names_that_are_neighbours_in_the_palette_differ_in_hatch_too(names):
    hatches = {style.fill: style.hatch for style in name_styles(names)[:7]}
    for first, second in pairwise(PALETTE):
        assert first not in hatches or second not in hatches or hatches[first] != hatches[second]


@given(NAMES, NAMES)
def test_a_name_keeps_its_look_when_more_follow(names, more):
    both = list({name_group(name): name for name in [*more, *names]}.values())
    both = list(dict.fromkeys([*names, *both]))
    assert name_styles(both)[: len(names)] == name_styles(names)


@given(NAMES)
def test_looks_come_from_the_palette(names):
    for style in name_styles(names):
        assert style.fill in PALETTE
        assert style.hatch in NAME_HATCHES


def test_a_lone_name_has_the_same_colour_in_every_run():
    assert name_styles(["gemm"]) == name_styles(["gemm"])
    assert [name_styles([name])[0].fill for name in ("gemm", "copy", "filter")] == ["#D55E00", "#0072B2", "#0072B2"]


def test_partitions_differ_in_colour_hatch_and_letter():
    styles = [partition_style(index) for index in range(800)]
    assert len({style.fill for style in styles[:8]}) == len({style.hatch for style in styles[:8]}) == 8
    assert len({(style.fill, style.hatch) for style in styles[:64]}) == 64
    assert len({style.letter for style in styles}) == 800
    assert [styles[index].letter for index in (0, 1, 26, 51, 52, 702)] == ["A", "B", "AA", "AZ", "BA", "AAA"]


def test_partitions_have_no_colour_of_a_name():
    assert not set(PARTITION_PALETTE) & set(PALETTE)


@pytest.mark.parametrize("fill", [*PALETTE, *PARTITION_PALETTE])
def test_text_on_every_colour_is_readable(fill):
    def luminance(colour):
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(fill), luminance(text_colour(fill))))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_names_that_differ_by_a_number_look_alike():
    first, other, second, alone = name_styles(["h2d 0", "gemm_fp16", "h2d 1", "gemm_fp32"])
    assert first == second
    assert len({first.fill, other.fill, alone.fill}) == 3
