"""Room and lanes: what is in view at which size; how lanes are folded, pinned and hidden; what fingers do."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from gpustreamlab.model import Counters, Lane
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    MS,
    empty_trace,
    make_trace,
    many_partitions_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)

pytestmark = pytest.mark.browser

NAMES = "w.laneOrder.map(code => w.tables.lanes[code].name)"


def name_place(reader, lane):
    """Return where the name of a lane is, in px of the window."""
    left, top = reader.js("(({ left, top }) => [left, top])(v.figureElement.getBoundingClientRect())")
    place = reader.js(
        """(() => { const { top, bottom } = w.tables.lanes.find(lane => lane.name === argument)
        return [w.frame.left - 20, (w.yAt(top) + w.yAt(bottom)) / 2] })()""",
        lane,
    )
    return left + place[0], top + place[1]


def open_sheet(reader, lane):
    reader.page.mouse.click(*name_place(reader, lane))
    sheet = reader.page.get_by_role("dialog", name="Lane", exact=True)
    sheet.wait_for()
    return sheet


def lanes_trace(count=6):
    return make_trace([(f"lane {k}", "x", 100 * k, 100 * k + 80) for k in range(count)])


# ---- room

TRACES = {
    "empty": empty_trace(),
    "one": one_lane_trace(),
    "pipeline": pipeline_trace(),
    "kernels": kernel_trace(),
    "100 lanes": random_trace(2_000, 100),
    "100 lanes in partitions": many_partitions_trace(),
}


def test_names_that_differ_at_their_end_are_told_apart_where_they_are_cut(read):
    lanes = [f"rank {rank} node 1 GPU 0 stream {stream}" for rank in (0, 1) for stream in (7, 13, 20)]
    reader = read(make_trace([(lane, "x", 0, MS) for lane in lanes]), width=560)
    said = reader.js(
        """(() => {
          const said = [], ctx = document.createElement("canvas").getContext("2d")
          ctx.fillText = text => said.push(text)
          v.painter.paintMain(ctx, 1)
          return said.filter(text => text.startsWith("rank"))
        })()"""
    )
    assert [re.fullmatch(r"(rank \d).*….*( \d+)", text).groups() for text in said] == [
        (f"rank {rank}", f" {stream}") for rank in (0, 1) for stream in (7, 13, 20)
    ]


def test_on_a_phone_a_counter_keeps_its_name_and_the_tip_has_its_scale(read):
    names = ("sm_occupancy_percent", "pcie_rx_bytes_per_s")
    counters = Counters(time_ns=[0, MS] * 2, lane=[0] * 4, name=[0, 0, 1, 1], value=[40.0, 0.0, 54.7e9, 0.0], names=names)
    trace = replace(make_trace([("a", "x", 0, MS)]), counters=counters)
    said = """(() => {
      const said = [], ctx = document.createElement("canvas").getContext("2d")
      ctx.fillText = text => said.push(text)
      v.painter.paintMain(ctx, 1)
      return said.filter(text => /^(SM occ|PCIe)/.test(text))
    })()"""
    assert read(trace, width=1200).js(said) == ["SM occupancy (%)", "PCIe rx, to 54.7 GB/s"]
    reader = read(trace, width=390)
    assert reader.js(said) == ["SM occupancy", "PCIe rx"]
    left, top = reader.js("(({ left, top }) => [left, top])(v.figureElement.getBoundingClientRect())")
    x, y = reader.js("[w.frame.left - 20, w.frame.top + w.tables.card_rows.at(-1).top + 5]")
    reader.page.mouse.move(left + x, top + y)
    assert "PCIe rx, to 54.7 GB/s" in reader.tip()


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_axis_strips_and_overview_are_above_the_fold(read, trace):
    reader = read(trace, width=1366, height=768)
    assert reader.page.evaluate("document.documentElement.scrollHeight") <= 768
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 1366
    below = reader.js("v.figureElement.getBoundingClientRect().top + w.frame.bottom")
    assert below <= reader.box("minimap")[1] + 1
    assert reader.box("minimap")[1] + reader.box("minimap")[3] <= 768
    # THEN the card is below the axis, and above all lanes
    assert reader.js("w.tables.card_rows.every(row => row.bottom <= w.lanesTop() - w.frame.top)")
    assert reader.js("v.plot.above.length") == 1
    # WHEN something is pinned, its details are in view, too
    if len(trace):
        reader.js("w.show(w.laneRows[w.laneOrder[0]][0], 0)")
        reader.settle()
        reader.settle()
        left, top, width, height = reader.box("drawer")
        assert (left + width <= 1366, top + height <= 768) == (True, True)
        assert reader.box("figure")[0] + reader.box("figure")[2] <= left
        assert reader.page.evaluate("document.documentElement.scrollHeight") <= 768


def test_the_axis_of_a_phone_has_few_labels(read):
    # Each text of the axis with where it is, and how wide.
    texts = """(() => {
      const {ticker, formatter} = v.plot.above[0], {major} = ticker.get_ticks(w.x0, w.x1, v.plot.x_range, 0)
      const ticks = major.filter(at => at >= w.x0 && at <= w.x1), ctx = document.createElement("canvas").getContext("2d")
      ctx.font = v.plotView.axis_views?.[0]?.visuals.major_label_text.font_value?.() ?? "11px sans-serif"
      return formatter.doFormat(ticks).map((text, place) => [text, w.pxAt(ticks[place]), ctx.measureText(text).width])
        .filter(([text]) => text)
    })()"""
    for width, least, most in ((390, 2, 4), (1200, 5, 20)):
        told = read(pipeline_trace(), width=width).js(texts)
        assert least <= len(told) <= most
        # THEN they stand apart
        for (_, x, wide), (_, other_x, other_wide) in itertools.pairwise(told):
            assert x + wide / 2 + 4 < other_x - other_wide / 2


def test_rows_are_dense_whatever_the_room_and_many_lanes_scroll(read):
    few, many = read(lanes_trace(2), height=900), read(lanes_trace(100), height=900)
    heights = "w.tables.lanes.map(lane => lane.bottom - lane.top)"
    assert few.js(heights) == [24, 24]
    assert not few.js("w.canScroll")
    assert set(many.js(heights)) == {24}
    assert many.js("w.canScroll")


def test_streams_without_work_are_one_line_until_they_are_asked_for(read):
    lanes = tuple(Lane(name=f"s{number}", stream=number) for number in range(6))
    reader = read(make_trace([("s1", "x", 0, 100), ("s4", "x", 0, 100)], lanes=lanes))
    assert reader.js(NAMES) == ["s1", "s4"]
    assert "4 streams without work" in reader.written()
    left, top, _, _ = reader.frame()
    reader.page.mouse.click(left + 40, top + reader.js("(w.tables.idle.top + w.tables.idle.bottom) / 2"))
    reader.settle()
    assert sorted(reader.js(NAMES)) == [f"s{number}" for number in range(6)]
    assert not any("without work" in text for text in reader.written())


def test_the_scroll_bar_is_beside_the_lanes(read):
    reader = read(lanes_trace(100), height=700)
    _, top, right, bottom = reader.frame()
    x, y, _, height = reader.box("scroll")
    assert (y, y + height) == pytest.approx((top + reader.js("w.parts.headPx"), bottom), abs=1)
    assert right <= x <= right + 20


def test_lanes_stay_where_they_are_when_a_click_opens_details(read):
    reader = read(lanes_trace(4), height=640)
    tops = "w.tables.lanes.map(lane => Math.round(w.yAt(lane.top)))"
    before = reader.js(tops)
    reader.click("x", 1)
    reader.settle()
    assert reader.pinned() == ["x", 100]
    assert reader.js(tops) == before


def test_what_a_search_goes_to_stays_in_view_when_its_details_open(read):
    reader = read(lanes_trace(100), width=1366, height=768)
    for text in ("lane 77", "lane 12", "lane 93"):
        reader.search(text)
        reader.page.locator(".gsl-search input").press("Enter")
        reader.settle()
        reader.settle()
        top, bottom, room = reader.js(
            "(row => [row.top - w.scrollPx, row.bottom - w.scrollPx, w.lanesPx])(w.tables.rows[w.pinned.row])"
        )
        assert top >= 0
        assert bottom <= room + 1


def test_all_lanes_are_folded_at_once(read):
    reader = read(lanes_trace(30))
    reader.press("v")
    reader.page.get_by_role("button", name="Fold all lanes").click()
    assert reader.js("w.tables.lanes.every(lane => lane.folded && lane.bottom - lane.top <= 16)")


def test_the_tip_follows_lanes_that_scroll_below_a_pointer_at_rest(read):
    reader = read(lanes_trace(100), height=700)
    reader.hover("x", 2)
    assert "lane 2" in reader.tip()
    reader.js("w.scrollTo(w.scrollPx + w.tables.lanes[1].top)")
    reader.settle()
    assert "lane 2" not in (reader.tip() or "")


# ---- the strip


def test_the_overview_is_of_the_whole_run_and_its_window_is_dragged(read):
    reader = read(make_trace([("a", "x", 0, 4 * MS), ("b", "y", 1 * MS, 2 * MS), ("b", "z", 8 * MS, 9 * MS)]))
    left, top, _, _ = reader.box("minimap")
    coloured = """(({pixels, left, width}) => argument.map(ns => {
      const x = Math.round((v.minimap.pxAt(ns) - left) / width * pixels.width)
      const words = Array.from({length: pixels.height}, (_, y) => pixels.words[y * pixels.width + x])
      return new Set(words.filter(Boolean)).size }))(v.minimap)"""
    # THEN of two streams at once there are two colours, and none where nothing runs
    assert reader.js(coloured, [1.5 * MS, 3 * MS, 6 * MS]) == [2, 1, 0]
    reader.js("w.setRange(7.5e6, 8.5e6)")
    reader.settle()
    reader.drag((left + reader.js("v.minimap.pxAt(8e6)"), top + 8), (left + reader.js("v.minimap.pxAt(3e6)"), top + 8))
    assert sum(reader.window()) / 2 == pytest.approx(3 * MS, rel=0.02)


# ---- scrolling


def test_many_notches_of_the_wheel_scroll_the_page_and_none_is_swallowed(read):
    reader = read(random_trace(2_000, 100), height=700)
    reader.page.evaluate("document.body.style.paddingBottom = '9000px'")
    reader.page.mouse.move(*reader.at(reader.window()[1] / 2, 100))
    window = reader.window()
    for _ in range(20):
        reader.page.mouse.wheel(0, 100)
        # The pointer stays over the picture: the picture is scrolled back under it.
        reader.page.wait_for_function("argument => scrollY === argument", arg=100)
        reader.page.evaluate("scrollTo(0, 0)")
    assert reader.window() == window
    assert reader.js("w.scrollPx") == 0


def touches(reader, *steps):
    """Send fingers to the browser itself: the first step puts them down, the last takes them away."""
    session = reader.page.context.new_cdp_session(reader.page)
    for kind, points in steps:
        session.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]},
        )
    reader.settle()


def test_one_finger_scrolls_the_page_or_moves_time_and_two_zoom(read):
    reader = read(pipeline_trace(), width=390, height=700, has_touch=True, is_mobile=True)
    reader.page.evaluate("document.body.style.paddingBottom = '900px'")
    reader.page.evaluate("() => { window.rest = new Promise(done => addEventListener('scrollend', done, { once: true })) }")
    before = reader.window()
    x, y = reader.at(sum(before) / 2, 60)
    touches(
        reader, ("touchStart", [(x, y)]), *(("touchMove", [(x, y - 20 * k)]) for k in range(1, 9)), ("touchEnd", []),
    )  # fmt: skip
    reader.page.wait_for_function("scrollY > 50")
    assert reader.window() == before
    reader.page.evaluate("async () => { await window.rest }")
    reader.page.evaluate("scrollTo(0, 0)")
    # WHEN two fingers part, the time between them gets more room
    x, y = reader.at(sum(before) / 2, 60)
    touches(
        reader,
        ("touchStart", [(x - 20, y), (x + 20, y)]),
        *(("touchMove", [(x - 20 - 5 * k, y), (x + 20 + 5 * k, y)]) for k in range(1, 9)),
        ("touchEnd", []),
    )
    start, end = reader.window()
    assert (end - start) / (before[1] - before[0]) == pytest.approx(40 / 120, rel=0.1)
    assert (start + end) / 2 == pytest.approx(sum(before) / 2, rel=0.05)
    assert reader.page.evaluate("[scrollY, visualViewport.scale]") == [0, 1]
    # WHEN one goes sideways, time moves
    touches(
        reader, ("touchStart", [(x, y)]), *(("touchMove", [(x - 10 * k, y)]) for k in range(1, 9)), ("touchEnd", []),
    )  # fmt: skip
    assert reader.window()[0] > start
    assert reader.window()[1] - reader.window()[0] == pytest.approx(end - start)


# ---- lanes


def test_lanes_are_folded_and_hidden_in_their_sheet(read):
    reader = read(lanes_trace(60), height=700)
    sheet = open_sheet(reader, "lane 3")
    assert sheet.inner_text().startswith("lane 3")
    sheet.get_by_role("button", name="Fold").click()
    reader.press("Escape")
    assert reader.js("(({ top, bottom }) => bottom - top)(w.tables.lanes.find(lane => lane.name === 'lane 3'))") == 16
    row, _ = reader.find("x", 3)
    # WHEN a lane is hidden, it comes back by the menu, or when something in it is looked for
    sheet = open_sheet(reader, "lane 3")
    sheet.press("h")
    assert "lane 3" not in reader.js(NAMES)
    reader.press("v")
    reader.page.get_by_role("button", name="Show all lanes").click()
    assert "lane 3" in reader.js(NAMES)
    reader.press("Escape")
    reader.js("w.setIn('hidden', 'lane 3', true)")
    reader.search("stream:lane 3")
    reader.page.locator(".gsl-search input").fill('stream:"lane 3"')
    reader.js("w.show(argument, 0)", row)
    assert "lane 3" in reader.js(NAMES)


def test_a_lane_is_reached_and_told_by_keys_alone(read):
    reader = read(partition_trace())
    reader.page.locator(".gsl-viewer").focus()
    reader.press("l")
    sheet = reader.page.get_by_role("dialog", name="Lane", exact=True)
    first, second = reader.js(NAMES)[:2]
    assert sheet.get_by_role("heading").inner_text() == first
    reader.press("ArrowDown")
    assert sheet.get_by_role("heading").inner_text() == second
    assert sheet.inner_text().count(reader.js("w.planned.groups[w.planned.lanes[w.lane].group].label")) == 1
    reader.press("f")
    assert reader.page.locator(".gsl-status").inner_text() == f"{second} is folded"
    assert sheet.get_by_role("button", name="Open").is_visible()
    for button in sheet.get_by_role("button").all():
        assert button.get_attribute("aria-label")
    reader.press("Escape")
    assert not sheet.is_visible()


def test_a_group_is_folded_by_a_click_on_its_name_and_opens_for_what_is_looked_for(read):
    reader = read(partition_trace())
    left, top, _, _ = reader.frame()
    names, group = reader.js(NAMES), reader.js("w.tables.groups[0]")
    inside = reader.js("w.laneOrder.filter(code => w.tables.lanes[code].group === 0)")
    reader.page.mouse.click(left - 60, top + reader.js("w.tables.groups[0].top") + 10)
    reader.settle()
    assert reader.js(NAMES) == names[len(inside) :]
    assert reader.js("w.tables.groups[0].bottom - w.tables.groups[0].top") == 20
    assert "folded" in reader.js("w.tables.groups[0].detail")
    # THEN its work still counts, and comes back
    reader.js("w.show(w.laneRows[argument][0], 0)", inside[0])
    assert reader.js(NAMES) == names
    assert reader.js("w.tables.groups[0].label") == group["label"]


def test_every_name_band_and_strip_tells_itself_in_full(read):
    name = "a stream whose name is far too long for the room beside the bars"
    reader = read(make_trace([(name, "x", 0, 100), ("b", "y", 0, 100)]))
    reader.page.mouse.move(*name_place(reader, name))
    reader.settle()
    assert reader.tip().startswith(name)
    assert re.search(r"spans\s+1\b", reader.tip())
    reader = read(partition_trace())
    left, top, right, _ = reader.frame()
    reader.page.mouse.move(left - 60, top + reader.js("w.tables.groups[0].top") + 10)
    reader.settle()
    assert reader.tip().startswith(reader.js("w.tables.groups[0].label"))
    strip = top + reader.js("w.tables.card_rows[0].bottom - 8")
    reader.page.mouse.move((left + right) / 2, strip)
    reader.settle()
    assert reader.tip().startswith("132 SMs, as many as work can have had")
    assert re.search(r"prefill\s+\d+ SMs", reader.tip())
    reader.page.mouse.move(left - 30, strip)
    reader.settle()
    assert "at most those of its partition" in reader.tip()


def test_what_was_chosen_of_lanes_is_kept_and_comes_back(read):
    reader = read(partition_trace())
    keep = "w.kept.get('lanes').read()"
    assert reader.js(keep) is None
    first, second = reader.js(NAMES)[:2]
    reader.js("(w.setIn('folded', argument[1], true), w.setIn('hidden', argument[0], true))", [first, second])
    kept = reader.js(keep)
    other = read(partition_trace())
    other.js("w.kept.get('lanes').write(argument)", kept)
    assert other.js(NAMES) == reader.js(NAMES) != [first, second]
    assert other.js(keep) == kept
