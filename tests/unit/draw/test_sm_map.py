"""The card as a grid of SMs."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gpustreamlab.draw import grid_of, sm_map_svg, sm_map_text
from gpustreamlab.model import Device, Layout, Partition
from tests.helpers.traces import DECODE, EVIL_NAME, PREFILL

CARD = Device(name="NVIDIA H200", sm_count=132, simulated=True)
KNOWN = Layout(partitions=(PREFILL, DECODE))
UNKNOWN = Layout(partitions=(replace(PREFILL, sm_ids=None), replace(DECODE, sm_ids=None)))
MIXED = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=None)))
LAYOUTS = {"known": KNOWN, "unknown": UNKNOWN, "mixed": MIXED, "none": None, "no partitions": Layout(partitions=())}
SVG = "{http://www.w3.org/2000/svg}"


def texts_of(layout, **card):
    svg = sm_map_svg(device=replace(CARD, **card), layout=layout)
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def ids(texts):
    return [int(text) for text in texts if text.isdigit()]


def test_every_sm_has_a_cell_with_its_id_and_its_partitions_letter():
    shown = texts_of(KNOWN)
    assert ids(shown) == list(range(132))
    # One of each is in the legend, which has requested and granted SMs.
    assert (shown.count("A"), shown.count("B")) == (97, 37)
    assert {"prefill: 96 SMs (asked for 90), verified", "decode: 36 SMs, verified"} <= set(shown)
    assert "(SIMULATED)" in shown[0]
    assert "SIMULATED" not in texts_of(KNOWN, simulated=False)[0]


@pytest.mark.parametrize("sm_count", [24, 132, 192, 600])
def test_sms_stand_column_by_column_as_in_the_partitioner(sm_count):
    grid = grid_of(replace(CARD, sm_count=sm_count))
    whole = Partition(name="all", requested_sms=sm_count, granted_sms=sm_count, sm_ids=tuple(range(sm_count)))
    svg = ET.fromstring(sm_map_svg(device=replace(CARD, sm_count=sm_count), layout=Layout(partitions=(whole,))))
    cells = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("rx") == "3"][-sm_count:]
    columns, rows = ([float(cell.get(axis)) for cell in cells] for axis in "xy")
    lefts, tops = sorted(set(columns)), sorted(set(rows))
    assert (len(lefts), len(tops)) == (grid.column_count, grid.row_count)
    places = [(lefts.index(x), tops.index(y)) for x, y in zip(columns, rows, strict=True)]
    assert places == [divmod(sm_id, grid.row_count) for sm_id in range(sm_count)]


def test_unknown_sms_have_no_ids_and_stand_beside_those_that_are_known():
    svg, shown = sm_map_svg(device=CARD, layout=UNKNOWN), texts_of(UNKNOWN)
    assert ids(shown) == []
    assert "not located yet (count only)" in shown
    assert svg.count("stroke-dasharray") == 132
    mixed = texts_of(MIXED)
    assert (mixed.count("A"), mixed.count("B"), len(ids(mixed))) == (97, 37, 132)
    assert any("lab.partitions.verify()" in text for text in mixed)
    assert "   ?  B x 36, not located" in sm_map_text(device=CARD, layout=MIXED)


SHARED = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=tuple(range(90, 126)))))


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        pytest.param(Layout(partitions=(DECODE,), remainder_sms=96), ["in no partition: 96 SMs"], id="in none"),
        pytest.param(SHARED, ["A+B", "shares 6 SMs with decode"], id="of two partitions"),
        pytest.param(
            Layout(partitions=(PREFILL, replace(DECODE, sm_ids=DECODE.sm_ids[:30]))),
            ["decode: 36 SMs, 30 of 36 SMs seen", "not seen in any partition: 6 SMs"], id="not all seen",
        ),
        pytest.param(
            replace(KNOWN, is_enforced=False),
            ["prefill: asked for 90 SMs, not enforced", "cannot be partitioned"], id="not enforced",
        ),
        pytest.param(
            Layout(partitions=(Partition(name="p", requested_sms=2, granted_sms=2, sm_ids=(0, 143)),)),
            ["have gaps: cells up to 143"], id="ids with gaps",
        ),
    ],
)  # fmt: skip
def test_legend_tells_of_sms_that_are_not_as_they_should_be(layout, told):
    shown = " | ".join(texts_of(layout))
    assert [text for text in told if text not in shown] == []


def test_signs_of_such_sms():
    assert texts_of(SHARED).count("A+B") == 6
    assert "######" in sm_map_text(device=CARD, layout=SHARED)
    not_enforced = texts_of(replace(KNOWN, is_enforced=False))
    assert (not_enforced.count("A"), not_enforced.count("B")) == (1, 1)  # in the legend only


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("sm_count", [1, 4, 132, 300, 2_000])
def test_map_is_well_formed_for_every_card(layout, sm_count):
    svg = sm_map_svg(device=replace(CARD, sm_count=sm_count), layout=layout)
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "style", "defs", "pattern", "rect", "path", "text"}
    assert "nan" not in svg


def test_hostile_names_are_text():
    layout = Layout(partitions=(replace(PREFILL, name=EVIL_NAME),))
    svg = sm_map_svg(device=replace(CARD, name=EVIL_NAME), layout=layout, title=EVIL_NAME)
    assert EVIL_NAME not in svg
    assert "<img" not in svg
    assert "\x1b" not in sm_map_text(device=CARD, layout=Layout(partitions=(replace(PREFILL, name="a\x1b[31m\n"),)))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_text_has_a_sign_for_every_sm(layout):
    text = sm_map_text(device=CARD, layout=layout)
    rows = re.findall(r"^ *\d+  ([A-Z.?]+)$", text, re.MULTILINE)
    assert sum(map(len, rows)) in (0, 132)
    assert text.startswith("SMs of NVIDIA H200 (132 SMs, SIMULATED)")
