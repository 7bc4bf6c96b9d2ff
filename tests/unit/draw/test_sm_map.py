"""The card as a grid of SMs."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gpustreamlab.draw import sm_map_svg, sm_map_text
from gpustreamlab.draw._sm_map import plan_sm_map
from gpustreamlab.model import Device, Layout, Partition
from gpustreamlab.notebook._form import Surroundings, view_of
from gpustreamlab.notebook._state import start
from tests.helpers.traces import DECODE, EVIL_NAME, PREFILL

CARD = Device(name="NVIDIA H200", sm_count=132, simulated=True)
KNOWN = Layout(partitions=(PREFILL, DECODE))
UNKNOWN = Layout(partitions=(replace(PREFILL, sm_ids=None), replace(DECODE, sm_ids=None)))
MIXED = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=None)))
LAYOUTS = {"known": KNOWN, "unknown": UNKNOWN, "mixed": MIXED, "none": None, "no partitions": Layout(partitions=())}
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def ids(svg):
    return [int(text) for text in texts(svg) if text.isdigit()]


def test_every_sm_has_a_cell_with_its_id_and_its_partitions_letter():
    svg = sm_map_svg(device=CARD, layout=KNOWN)
    assert ids(svg) == list(range(132))
    letters = [text for text in texts(svg) if text in ("A", "B")]
    # One of each is in the legend.
    assert (letters.count("A"), letters.count("B")) == (97, 37)


@pytest.mark.parametrize("sm_count", [24, 132, 192, 600])
def test_sms_stand_where_the_partitioner_has_them(sm_count):
    # GIVEN the card as the partitioner draws it: cells column by column
    device = replace(CARD, sm_count=sm_count)
    view = view_of(start(device, None), Surroundings())["device"]
    # WHEN the map draws it with all ids known
    whole = Partition(name="all", requested_sms=sm_count, granted_sms=sm_count, sm_ids=tuple(range(sm_count)))
    svg = ET.fromstring(sm_map_svg(device=device, layout=Layout(partitions=(whole,))))
    cells = [rect for rect in svg.iter(f"{SVG}rect") if rect.get("rx") == "3"][-sm_count:]
    # THEN each SM has the same column and row
    columns, rows = ([float(cell.get(axis)) for cell in cells] for axis in "xy")
    lefts, tops = sorted(set(columns)), sorted(set(rows))
    assert (len(lefts), len(tops)) == (view["column_count"], view["row_count"])
    places = [(lefts.index(x), tops.index(y)) for x, y in zip(columns, rows, strict=True)]
    assert places == [divmod(sm_id, view["row_count"]) for sm_id in range(sm_count)]


def test_legend_has_requested_and_granted_sms():
    shown = texts(sm_map_svg(device=CARD, layout=KNOWN))
    assert "prefill: 96 SMs (asked for 90), verified" in shown
    assert "decode: 36 SMs, verified" in shown


def test_simulated_card_says_so():
    assert "(SIMULATED)" in texts(sm_map_svg(device=CARD, layout=KNOWN))[0]
    assert "SIMULATED" not in sm_map_svg(device=replace(CARD, simulated=False), layout=KNOWN)


def test_unknown_sms_have_no_ids():
    svg = sm_map_svg(device=CARD, layout=UNKNOWN)
    assert ids(svg) == []
    assert "not located yet (count only)" in texts(svg)
    assert svg.count("stroke-dasharray") == 132
    assert plan_sm_map(CARD, UNKNOWN).located == ()


def test_known_sms_stand_beside_a_count_of_unknown_ones():
    plan = plan_sm_map(CARD, MIXED)
    assert [places for places in plan.located if places] == [(0,)] * 96
    assert plan.loose == ((1, 36),)
    assert any("lab.partitions.verify()" in note for note in plan.notes)


def test_sms_in_no_partition_are_counted():
    layout = Layout(partitions=(DECODE,), remainder_sms=96)
    assert "in no partition: 96 SMs" in texts(sm_map_svg(device=CARD, layout=layout))


def test_sm_of_two_partitions_has_both_letters_and_a_warning():
    layout = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=tuple(range(90, 126)))))
    shown = texts(sm_map_svg(device=CARD, layout=layout))
    assert shown.count("A+B") == 6
    assert any("shares 6 SMs with decode" in text for text in shown)
    assert "######" in sm_map_text(device=CARD, layout=layout)


def test_partition_that_was_not_seen_in_full_says_how_many_were():
    layout = Layout(partitions=(PREFILL, replace(DECODE, sm_ids=DECODE.sm_ids[:30])))
    shown = texts(sm_map_svg(device=CARD, layout=layout))
    assert "decode: 36 SMs, 30 of 36 SMs seen" in shown
    assert "not seen in any partition: 6 SMs" in shown


def test_layout_that_is_not_enforced_colours_nothing():
    layout = replace(KNOWN, is_enforced=False)
    assert all(not places for places in plan_sm_map(CARD, layout).located)
    assert "prefill: asked for 90 SMs, not enforced" in texts(sm_map_svg(device=CARD, layout=layout))
    assert any("cannot be partitioned" in text for text in texts(sm_map_svg(device=CARD, layout=layout)))


def test_ids_with_gaps_get_cells_and_a_note():
    plan = plan_sm_map(CARD, Layout(partitions=(Partition(name="p", requested_sms=2, granted_sms=2, sm_ids=(0, 143)),)))
    assert len(plan.located) == 144
    assert any("have gaps" in note for note in plan.notes)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("sm_count", [1, 4, 132, 300, 2_000])
def test_map_is_well_formed_for_every_card(layout, sm_count):
    svg = sm_map_svg(device=replace(CARD, sm_count=sm_count), layout=layout)
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "defs", "pattern", "rect", "path", "text"}
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
