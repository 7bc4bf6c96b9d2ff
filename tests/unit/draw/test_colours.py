"""The look of names and partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import name_group
from gpustreamlab.draw import GREY, fill_of, name_styles, partition_style
from gpustreamlab.draw._colours import (
    CALL_STYLES,
    DARK_TEXT,
    GREY_TINTS,
    HUES,
    NAME_HATCHES,
    call_class,
    line_of,
)

# Names that differ by a number look alike, see below.
NAMES = st.lists(st.text(max_size=8), unique_by=name_group, max_size=60)


@given(NAMES, NAMES)
def test_names_that_follow_each_other_differ_and_stay_as_they_are_when_more_follow(names, more):
    styles = name_styles(names)
    assert {style.hatch for style in styles} <= set(NAME_HATCHES)
    for first in range(0, len(names), 4):
        assert len({style.tint for style in styles[first : first + 4]}) == len(styles[first : first + 4])
    for first in range(0, len(names), GREY):
        assert len({style.hue for style in styles[first : first + GREY]}) == len(styles[first : first + GREY])
    assert len({(style.tint, style.hatch) for style in styles[:16]}) == min(16, len(names))
    both = list(dict.fromkeys([*names, *{name_group(name): name for name in [*more, *names]}.values()]))
    assert name_styles(both)[: len(names)] == styles


def test_a_lone_name_has_the_same_look_in_every_run():
    looks = [(style.hue, style.tint) for name in ("gemm", "copy", "filter") for style in name_styles([name])]
    assert looks == [(10, 2), (10, 2), (9, 3)]


def test_names_that_differ_by_a_number_look_alike():
    first, other, second, alone = name_styles(["h2d 0", "gemm_fp16", "h2d 1", "gemm_fp32"])
    assert first == second
    assert len({first.tint, other.tint, alone.tint}) == len({first.hue, other.hue, alone.hue}) == 3


def test_partitions_differ_in_hue_hatch_and_letter():
    styles = [partition_style(index) for index in range(800)]
    assert len({style.fill for style in styles[:6]}) == 6
    assert len({style.hatch for style in styles[:8]}) == 8
    assert len({(style.fill, style.hatch) for style in styles[:48]}) == 48
    assert len({style.letter for style in styles}) == 800
    assert [styles[index].letter for index in (0, 1, 26, 51, 52, 702)] == ["A", "B", "AA", "AZ", "BA", "AAA"]


# ---- how colours are seen

# How people see linear RGB who lack one sort of cones. Source: Machado, Oliveira, Fernandes, A Physiologically-based Model for
# Simulation of Color Vision Deficiency, 2009, severity 1.0.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear RGB to the cones, and from their cube roots to lightness and two axes. Source: Ottosson, OKLab, 2020.
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
PAPERS = {"light": ("#ffffff", "#1b1f24"), "dark": ("#14171a", "#e6e9ec")}
ALL_FILLS = [*itertools.chain(*HUES), *GREY_TINTS, *(style.fill for style in CALL_STYLES.values())]


def linear(colour):
    channels = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def seen(colour, vision="normal"):
    """A colour as OKLab, as it is seen."""
    cones = TO_CONES @ np.clip(np.array(VISIONS[vision]) @ linear(colour), 0, 1)
    return TO_LAB @ np.cbrt(cones)


def distance(one, other, vision="normal"):
    return float(np.linalg.norm(seen(one, vision) - seen(other, vision)))


def contrast(one, other):
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_measures_are_those_of_their_sources():
    assert seen("#ffffff") == pytest.approx([1, 0, 0], abs=1e-3)
    assert seen("#ff0000") == pytest.approx([0.628, 0.225, 0.126], abs=1e-3)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert all(distance("#808080", "#808080", vision) == 0 for vision in VISIONS)
    # Red and green of one lightness: far apart for most people, near for those with a common deficiency.
    assert distance("#b05050", "#5b7a3a") > 0.15 > 0.07 > distance("#b05050", "#5b7a3a", "deuteranopia")


@pytest.mark.parametrize("vision", VISIONS)
def test_hues_are_told_apart_with_every_kind_of_colour_vision_and_from_the_paper(vision):
    firsts = [fill_of(hue) for hue in range(GREY + 1)]
    for count, (of_all, of_some) in {6: (0.14, 0.075), GREY: (0.085, 0.055)}.items():
        pairs = itertools.combinations([*firsts[:count], fill_of(GREY)], 2)
        assert min(distance(*pair, vision) for pair in pairs) >= (of_all if vision == "normal" else of_some)
    # Two partitions, or streams, are the most common case, and three or four not rare.
    assert distance(firsts[0], firsts[1], vision) >= 0.14
    for paper, _ in PAPERS.values():
        assert min(distance(fill, paper, vision) for fill in firsts) >= 0.1


def test_tints_are_of_their_hue_and_told_apart_by_lightness():
    for tints in (*HUES, GREY_TINTS):
        lightness = sorted(float(seen(tint)[0]) for tint in tints)
        assert np.diff(lightness).min() >= 0.045
        for tint in tints[1:] if tints in HUES else ():
            own, first = (np.degrees(np.arctan2(*seen(colour)[:0:-1])) for colour in (tint, tints[0]))
            assert abs(own - first) < 4
    # Of the first six no tint is nearer to another hue than its own tints are.
    for one, other in itertools.combinations(HUES[:6], 2):
        assert min(distance(a, b) for a in one for b in other) >= 0.07


@pytest.mark.parametrize("fill", ALL_FILLS)
def test_text_on_every_colour_and_outlines_in_every_theme_are_readable(fill):
    assert contrast(fill, DARK_TEXT) >= 4.5
    # The first yellow and grey would be taken for other hues if they were darker.
    assert fill in {"#f0e442", "#c3c9d0"} or contrast(fill, "#ffffff") >= 2
    for paper, ink in PAPERS.values():
        assert contrast(line_of(fill, ink), paper) >= 3


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
    assert call.hue == GREY + 1 + list(CALL_STYLES).index("synchronise")
