"""The viewer in a real browser: what it paints, and how it is moved."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from gpustreamlab.analysis import format_ns
from gpustreamlab.draw import page_data, plan_picture
from gpustreamlab.model import NO_COMMON_TIME, Marker
from tests.helpers.kernel_traces import kernel_trace, serial_trace
from tests.helpers.reader import open_readers
from tests.helpers.traces import (
    MS,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

pytestmark = pytest.mark.browser

HELPERS = """
window.view = window.gslViewer.view
// Of a copy: reading a canvas itself would change how the browser paints it.
window.pixels = layer => {
  const {canvas} = gslViewer.plotView.canvas_view[layer], {width, height} = canvas
  const copy = Object.assign(document.createElement("canvas"), {width, height})
  const ctx = copy.getContext("2d", {willReadFrequently: true})
  ctx.drawImage(canvas, 0, 0)
  return ctx
}
window.pixel = (x, y) => {
  const ratio = gslViewer.plotView.canvas_view.pixel_ratio
  return [...pixels("primary").getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data].slice(0, 3)
}
window.rgb = text => [1, 3, 5].map(place => parseInt(text.slice(place, place + 2), 16))
window.rowMiddle = code => view.frame.top + (view.tables.rows[code].top + view.tables.rows[code].bottom) / 2 - view.scrollPx
window.frames = (count = 3) => new Promise(done => {
  const next = left => left ? requestAnimationFrame(() => next(left - 1)) : setTimeout(done, 20)
  next(count)
})
"""


@pytest.fixture
def show(windows, tmp_path):
    """Return a function that shows a trace in a window of its own; console errors fail the test at its end."""
    with open_readers(windows, tmp_path) as read:

        def show_it(trace, *, height=800, scheme="light", **options):
            options |= {"color_scheme": scheme, "reduced_motion": "reduce"}
            shown = read(trace, height=height, **options)
            shown.page.evaluate(HELPERS)
            return shown

        yield show_it


def point(shown, px, py):
    """Return the place in the window of a place in the figure."""
    left, top, _, _ = shown.box("figure")
    return left + px, top + py


TRACES = {
    "empty": empty_trace(),
    "one lane": one_lane_trace(),
    "pipeline": pipeline_trace(),
    "nested": nested_trace(),
    "partitions": partition_trace(),
    "repartition": repartition_trace(),
    "evil": evil_trace(),
    "0 ns": make_trace([("a", "instant", 5, 5)]),
    "1 ns beside an hour": make_trace([("a", "hour", 0, 3600 * 10**9), ("b", "tick", 1800 * 10**9, 1800 * 10**9 + 1)]),
    "names of 10 kB": make_trace([("a" * 10_000, "x" * 10_000, 0, 10), ("b", "漢🙂" * 5_000, 0, 9)]),
    "right to left": make_trace([("\u202eabc שלום", "مرحبا\u202e", 0, 10), ("🙂" * 30, "🙂", 5, 9)]),
    "years": make_trace([("a", "x", -(10**17), 10**17), ("b", "y", 0, 1)]),
    "folded": make_trace([("a", "x", k, 1_000) for k in range(80)]),
    "100 lanes in partitions": many_partitions_trace(),
    "100 lanes": random_trace(2_000, 100),
    "100,000 spans": random_trace(100_000),
    "kernels": kernel_trace(),
    "kernels without host": kernel_trace(has_host=False),
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_every_trace_is_painted_without_an_error(show, trace):
    paint_everywhere(show(trace), trace)


def paint_everywhere(shown, trace):
    for width, scheme in ((1200, "light"), (700, "dark")):
        shown.page.emulate_media(color_scheme=scheme)
        shown.page.set_viewport_size({"width": width, "height": 800})
        shown.page.wait_for_function(f"Math.abs(gslViewer.element.clientWidth - {width}) < 60")
        shown.settle()
        assert shown.value("view.painted.items.length > 0") == (len(trace) > 0)
        # The whole viewer is within the window, at every width.
        assert shown.value("document.documentElement.scrollWidth <= innerWidth")
        assert shown.value("view.frame.right - view.frame.left") > 0.6 * shown.value("gslViewer.figureElement.clientWidth")
    shown.page.set_viewport_size({"width": 390, "height": 800})
    shown.settle()
    assert shown.value("document.documentElement.scrollWidth") <= 390


def test_a_bar_has_the_hue_of_its_partition_or_stream_and_the_tint_of_its_name(show):
    found = """view.painted.segments.map(({row, from}) => {
      const at = view.painted.items.first[from], columns = view.store.row(row), lane = view.tables.lanes[columns.lane]
      const x = view.pxAt(columns.start[at]) + 3, y = view.yAt(view.tables.rows[row].top) + 3
      const tints = view.tables.palette[view.planned.groups[view.planned.lanes[columns.lane].group]?.hue ?? columns.lane % 6]
      const fill = rgb(tints[view.tables.name_styles[columns.name[at]][1]])
      const isBar = columns.end[at] - columns.start[at] > 8 * view.nsPerPx
      return {seen: pixel(x, y), fill, isSeen: isBar && !columns.isPale && !lane.host}
    }).filter(({isSeen}) => isSeen)"""
    for trace, least in ((kernel_trace(), 3), (serial_trace("kernels"), 4)):
        bars = show(trace, width=1536, height=1200).value(found)
        assert len(bars) >= least
        for bar in bars:
            assert bar["seen"] == bar["fill"]


def test_what_lies_under_the_pointer_is_found(show):
    shown = show(nested_trace())
    assert shown.value("view.hitAt(view.pxAt(1.5e6), rowMiddle(0))") == {"row": 0, "index": 0}
    # WHEN the pointer is 2 px beside the last span of a row
    assert shown.value("view.hitAt(view.pxAt(view.store.row(0).end[0]) + 2, rowMiddle(0))") == {"row": 0, "index": 0}
    # THEN it is still found; further away, or between the lanes, nothing is
    assert shown.value("view.hitAt(view.pxAt(view.store.row(0).end[0]) + 5, rowMiddle(0))") is None
    assert shown.value("view.hitAt(view.pxAt(1.5e6), view.lanesBottom() + 5)") is None
    assert shown.value("Math.abs(view.timeAt(view.pxAt(123456)) - 123456) < 1e-3")


@pytest.mark.parametrize("key", ["Control", "Meta"])
def test_the_wheel_with_a_key_zooms_at_the_pointer(show, key):
    shown = show(pipeline_trace(), height=400)
    before = shown.value("[view.x1 - view.x0, view.timeAt(view.frame.left + 300)]")
    shown.page.mouse.move(*point(shown, *shown.value("[view.frame.left + 300, view.frame.top + 60]")))
    shown.page.keyboard.down(key)
    shown.page.mouse.wheel(0, -200)
    shown.page.keyboard.up(key)
    shown.page.wait_for_function(f"view.x1 - view.x0 < {before[0]}")
    assert shown.value("view.timeAt(view.frame.left + 300)") == pytest.approx(before[1], abs=before[0] / 500)
    assert shown.value("[scrollY, visualViewport.scale]") == [0, 1]


@pytest.mark.parametrize("px", ["view.frame.left + 300", "20"], ids=["bars", "names that all fit"])
def test_the_wheel_over_bars_and_names_scrolls_the_page(show, px):
    shown = show(one_lane_trace(), height=180)
    window, place = shown.window(), point(shown, *shown.value(f"[{px}, view.frame.top + 20]"))
    assert (place[1] < 180, shown.value("view.canScroll")) == (True, False)
    shown.page.mouse.move(*place)
    shown.page.mouse.wheel(0, 50)
    shown.page.wait_for_function("scrollY > 20")
    assert shown.window() == window


def test_the_wheel_scrolls_lanes_where_the_page_cannot_and_zooms_over_the_axis_or_with_ctrl(show):
    shown = show(random_trace(2_000, 100))
    inside, axis = (point(shown, *shown.value(f"[600, {y}]")) for y in ("view.lanesTop() + 60", "view.frame.top - 8"))
    window, width = shown.window(), shown.value("view.x1 - view.x0")
    shown.page.mouse.move(*inside)
    shown.page.mouse.click(*inside)  # a click catches nobody
    shown.page.mouse.wheel(0, 120)
    shown.page.wait_for_function("view.scrollPx === 120")
    assert shown.window() == window
    shown.page.mouse.move(*axis)
    shown.page.mouse.wheel(0, -200)
    shown.page.wait_for_function(f"view.x1 - view.x0 < {width}")
    width = shown.value("view.x1 - view.x0")
    shown.page.mouse.move(*inside)
    shown.page.keyboard.down("Control")
    shown.page.mouse.wheel(0, -200)
    shown.page.keyboard.up("Control")
    shown.page.wait_for_function(f"view.x1 - view.x0 < {width}")


def test_the_wheel_over_the_names_scrolls_the_lanes_and_the_time_axis_stays_in_view(show):
    shown = show(random_trace(2_000, 100), height=950)
    assert shown.value("document.documentElement.scrollHeight") <= 950
    window = shown.window()
    shown.page.mouse.move(*point(shown, 20, 200))
    shown.page.mouse.wheel(0, 300)
    shown.page.wait_for_function("view.scrollPx > 0")
    assert shown.value("view.scrollPx") == 300
    assert shown.window() == window
    # THEN another lane is under the pointer, and Shift does the same over the bars
    first = shown.value("view.laneOrder.indexOf(view.visibleLanes()[0])")
    assert first >= 3
    shown.page.mouse.move(*point(shown, 600, 200))
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, 300)
    shown.page.keyboard.up("Shift")
    shown.page.wait_for_function("view.scrollPx === 600")
    assert shown.window() == window


def test_dragging_moves_time_and_lanes(show):
    shown = show(random_trace(2_000, 100))
    shown.value("view.zoomBy(0.2)")
    before = shown.value("[view.timeAt(view.frame.left + 400), view.nsPerPx]")
    x, y = point(shown, *shown.value("[view.frame.left + 400, view.frame.top + 300]"))
    shown.drag((x, y), (x + 100, y - 150))
    # A machine under load paints it later.
    shown.page.wait_for_function(f"Math.abs(view.timeAt(view.frame.left + 500) - {before[0]}) <= {6 * before[1]}")
    assert shown.value("view.scrollPx") == pytest.approx(150, abs=31)


def test_the_scroll_bar_goes_where_it_is_dragged(show):
    shown = show(random_trace(2_000, 100))
    left, top, width, _ = shown.box("scroll")
    shown.drag((left + width / 2, top + 10), (left + width / 2, top + 2000))
    shown.page.wait_for_function("view.tables.height_px - view.lanesPx - view.scrollPx < 1")
    assert shown.value("view.visibleLanes().at(-1) === view.laneOrder.at(-1)")
    # WHEN the lanes are scrolled by other means, the bar follows
    shown.value("view.scrollTo(0)")
    assert shown.value("document.querySelector('.gsl-scroll').scrollTop") == 0


def test_the_minimap_moves_and_resizes_the_window(show):
    shown = show(pipeline_trace())
    width = shown.value("(view.zoomBy(0.2), view.x1 - view.x0)")

    def at(ns):
        left, top, _, _ = shown.box("minimap")
        return left + shown.value(f"gslViewer.minimap.pxAt({ns})"), top + 18

    # WHEN it is clicked, the window is centred there
    shown.page.mouse.click(*at(5 * MS))
    assert sum(shown.window()) / 2 == pytest.approx(5 * MS, rel=0.01)
    # WHEN its inside is dragged, it moves
    shown.drag(at(5 * MS), at(3 * MS))
    assert sum(shown.window()) / 2 == pytest.approx(3 * MS, rel=0.01)
    assert shown.value("view.x1 - view.x0") == pytest.approx(width)
    # WHEN its right edge is dragged, the left one stays
    x0, x1 = shown.window()
    shown.drag(at(x1), at(x1 + MS))
    assert shown.window() == [pytest.approx(x0), pytest.approx(x1 + MS, rel=0.01)]
    # WHEN it is double-clicked, all is in view
    shown.page.mouse.dblclick(*at(3 * MS))
    assert shown.value("view.x1 - view.x0") == pytest.approx(7.5 * MS * 1.02)


@pytest.mark.parametrize(("grip", "way"), [("left", -1), ("right", 1)])
def test_a_grip_dragged_past_the_map_leaves_the_other_edge(show, grip, way):
    shown = show(random_trace(2_000, 5), width=800)
    shown.value("(() => { const {end} = view.extent(); view.setRange(0.4 * end, 0.6 * end) })()")
    before = shown.window()
    left, top, width, _ = shown.box("minimap")
    px = shown.value("gslViewer.minimap.windowPx()")[way > 0]
    path = (left + px, left + px + way * 50, left + (width + 600) * (way > 0) - 300)
    shown.drag(*((x, top + 18) for x in path))
    # THEN the dragged edge stops at the rim, and the other one is where it was
    after, extent = shown.window(), shown.value("view.extent()")
    rim = {"left": -0.1 * extent["end"], "right": 1.1 * extent["end"]}
    assert after[way > 0] == pytest.approx(rim[grip], abs=1)
    assert after[way < 0] == pytest.approx(before[way < 0], abs=1)


def test_no_button_is_without_a_name_and_a_window_stays_within_what_there_is(show):
    shown = show(pipeline_trace())
    assert shown.value("gslViewer.plot.toolbar.tools.length") == 0
    shadows = (
        "(root => [...root.querySelectorAll('*')].flatMap(one => [one, ...(one.shadowRoot ? every(one.shadowRoot) : [])]))"
    )
    shown.value(f"(window.every = {shadows}, 0)")
    assert (
        shown.value(
            "every(document).filter(one => one.matches('button, [class*=bk-tool], [role=button]') && !one.ariaLabel).length"
        )
        == 0
    )
    shown.value("view.setRange(-1e15, 1e15)")
    assert shown.value("view.x1 - view.x0") <= 7.5 * MS * 1.2 + 1
    for call in ("view.setRange(2e6, 2e6 + 0.5)", "view.setRange(NaN, 5)", "view.setRange(5, 5)", "view.setRange(9, 3)"):
        shown.value(call)
        assert shown.window() == [2e6 - 4.75, 2e6 + 5.25]
    # THEN Bokeh's own range is the same
    assert shown.value("[gslViewer.plot.x_range.start, gslViewer.plot.x_range.end]") == [2e6 - 4.75, 2e6 + 5.25]


def test_marks_of_the_pointer_do_not_paint_the_bars_again(show):
    shown = show(nested_trace(), height=2_000)  # the lanes are as high as can be, also beside the panels
    shown.value("(() => { window.paints = 0; const paint = gslViewer.painter.paintMain.bind(gslViewer.painter); "
                "gslViewer.painter.paintMain = (...all) => { window.paints++; paint(...all) } })()")  # fmt: skip
    for change in (
        "view.set('hovered', {row: 1, index: 0})",
        "view.set('pinned', {row: 0, index: 0})",
        "view.set('selection', {start: 1e6, end: 3e6})",
    ):
        shown.value(change)
    drawn = shown.value("""(() => {
      const ctx = pixels("overlays")
      return ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height).data.filter(value => value).length
    })()""")
    assert shown.value("window.paints") == 0
    assert drawn > 2_000


def test_the_theme_is_followed(show):
    shown = show(pipeline_trace(), scheme="light")
    colours = """[getComputedStyle(document.body).backgroundColor, gslViewer.theme.isDark,
      gslViewer.plot.above[0].major_label_text_color]"""
    light = shown.value(colours)
    shown.page.emulate_media(color_scheme="dark")
    shown.page.wait_for_function("gslViewer.theme.isDark")
    dark = shown.value(colours)
    assert (light[:2], dark[:2]) == (["rgb(255, 255, 255)", False], ["rgb(20, 23, 26)", True])
    assert light[2] != dark[2]


def alive(session, page, names):
    """Return how many objects of each class of the viewer are left after a collection."""
    for _ in range(4):
        session.send("HeapProfiler.collectGarbage")
    counts = {}
    for name in names:
        prototype = session.send("Runtime.evaluate", {"expression": f"gpustreamlab.{name}.prototype"})["result"]["objectId"]
        objects = session.send("Runtime.queryObjects", {"prototypeObjectId": prototype})["objects"]["objectId"]
        count = {"objectId": objects, "functionDeclaration": "function () { return this.length }", "returnByValue": True}
        counts[name] = session.send("Runtime.callFunctionOn", count)["result"]["value"]
        session.send("Runtime.releaseObject", {"objectId": objects})
    return counts


def test_destroyed_viewers_and_their_spans_are_freed(show):
    shown = show(pipeline_trace(), scheme="dark", own=True)
    session = shown.page.context.new_cdp_session(shown.page)
    classes = ["Viewer", "View", "SpanStore", "Row"]
    before = alive(session, shown.page, classes)
    assert before["Viewer"] == before["SpanStore"] == 1
    shown.page.evaluate("""async () => {
      const {Viewer, SpanStore} = gpustreamlab, make = () => {
        const element = document.body.appendChild(document.createElement("div")), store = new SpanStore()
        store.setRows(view.tables.rows)
        store.row(0)
        return new Viewer({element, Bokeh, item: gslViewer.item, tables: view.tables, store})
      }
      for (let i = 0; i < 3; i++) {
        const viewer = await make().start()
        await frames()
        viewer.view.zoomBy(0.5)
        await frames()
        viewer.destroy()
      }
      // Two that are made at once, and one that is gone before it is there.
      const pair = [make(), make()]
      await Promise.all(pair.map(one => one.start()))
      for (const one of pair) one.destroy()
      const early = make(), started = early.start()
      early.destroy()
      await started
    }""")
    end_s = time.monotonic() + 30
    while (left := alive(session, shown.page, classes)) != before and time.monotonic() < end_s:
        pass
    assert left == before


def test_a_viewer_waits_until_it_is_in_the_page(show):
    trace = pipeline_trace()
    shown = show(trace, own=True)
    data, _ = page_data(plan_picture(trace))
    shown.page.evaluate("data => { window.data = data }", json.loads(json.dumps(data)))
    shown.value("""(() => {
      window.element = document.createElement("div")
      window.late = new gpustreamlab.Viewer({element, Bokeh, item: data.item, tables: data.tables, store: view.store})
      window.started = late.start().then(() => "started")
      const nowhere = document.createElement("div"), {store} = view
      window.dropped = new gpustreamlab.Viewer({element: nowhere, Bokeh, item: data.item, tables: data.tables, store})
      window.ended = dropped.start()
    })()""")
    shown.page.wait_for_timeout(120)
    assert shown.value("late.plotView === undefined")
    shown.value("document.body.append(element), null")
    assert shown.value("started") == "started"
    assert shown.value("late.view.painted.items.length") > 0
    # WHEN it is destroyed before it could start, it never does
    shown.value("dropped.destroy()")
    assert shown.value("ended.then(() => dropped.plotView === undefined)") is True


def test_canvases_come_back_after_two_quick_changes_of_the_width(show):
    shown = show(pipeline_trace())
    for _ in range(3):
        shown.value("""(async () => { const body = document.body
          body.style.width = "0px"; await new Promise(done => setTimeout(done, 30))
          body.style.width = "800px"; await new Promise(done => setTimeout(done, 30)); body.style.width = "" })()""")
    shown.page.wait_for_timeout(1_000)  # they lose their size, and come back some time after
    canvases = "[gslViewer.plotView.canvas_view.primary.canvas, gslViewer.minimap.canvas]"
    shown.page.wait_for_function(f"{canvases}.every(c => c.width > 700) && gslViewer.figureElement.style.width === ''")


TIMES_NS = [
    *(0, 1, 7.5, 999, 999.4, 999.5, 1000, 12_345, 99_950, 999_499, 999_500, 1e6, 1_234_567, 999_960),
    *(5e8, 1e9, 119.9e9, 120e9, 3.6e12, -2_500),
]


TICKS = [
    ([0, 5e5, 1e6], 0, 2e6, ["0.0 ms", "0.5 ms", "1.0 ms"]),
    ([-20, 0, 20], -25, 60, ["-20 ns", "0 ns", "20 ns"]),
    ([60e9, 120e9], 0, 200e9, ["1 min", "2 min"]),
    ([1799999999980, 1800000000000], 1799999999980, 50, ["+80 ns", "+100 ns"]),
]
"""Times, the begin and the width of the window, and how short they are written."""


def test_times_are_written_as_python_writes_them_and_ticks_are_short_at_every_zoom(show):
    shown = show(empty_trace())
    values = [*TIMES_NS, *(17 * 3**power for power in range(26)), *(k * 500 + 100_000 for k in range(50))]
    assert shown.value(f"{values}.map(gpustreamlab.formatNs)") == [format_ns(value) for value in values]
    assert shown.value("[0, 999, 1000, 1234567].map(gpustreamlab.formatCount)") == ["0", "999", "1,000", "1,234,567"]
    for ticks, start, width, texts in TICKS:
        assert shown.value(f"gpustreamlab.formatTicks({ticks}, {start}, {width})") == texts


def test_an_empty_picture_says_what_to_do(show):
    written = show(empty_trace()).written()
    assert "No spans yet: select a stream with lab.on(...), or record all work with lab.capture('kernels')" in written
    assert "132 SMs" in written
    assert "1 span has not ended yet: lab.synchronize() waits for it" in show(empty_trace(pending_spans=1)).written()


def test_of_many_streams_the_fold_says_how_many_are_shown(show):
    shown = show(random_trace(2_000, 100))
    seen, fold = [], "▾ {} of 100 streams shown: scroll"
    for px in (0, 300, 1e9):
        shown.value(f"view.scrollTo({px})")
        seen.append(shown.written())
    shown.value("view.scrollTo(0)")
    count = shown.value("view.laneOrder.filter(code => view.tables.lanes[code].bottom - 11 < view.lanesPx).length")
    assert fold.format(count) in seen[0]
    assert not any("above" in text for text in seen[0])
    assert any(text.endswith("above") for text in seen[1])
    assert any(" of 100 streams shown" in text for text in seen[1])
    assert not any(" of 100 " in text for text in seen[2])


def test_of_many_lanes_only_those_in_view_are_painted(show):
    trace = random_trace(20_000, 10_000)
    shown = show(trace)
    assert shown.value("view.visibleLanes().length") < 30
    assert shown.value("new Set(view.painted.segments.map(one => view.tables.rows[one.row].lane)).size") < 30
    assert shown.value("(view.scrollTo(1e9), view.visibleLanes().at(-1) === view.laneOrder.at(-1))")
    paint_everywhere(shown, trace)


def test_what_overlaps_is_outlined_and_fitted_up_to_its_latest_end(show):
    shown = show(make_trace([("a", "long", 0, 1_200), *[("a", "short", 10 + k, 1_000 - 5 * k) for k in range(120)]]))
    row = shown.value("view.store.rows.find(row => row.overlaps).code")
    hit = f"{{row: {row}, first: 0, last: view.store.row({row}).length - 1}}"
    latest, last = shown.value(f"[Math.max(...view.store.row({row}).end), view.store.row({row}).end.at(-1)]")
    assert latest > last
    assert shown.value(f"gpustreamlab.endOfHit(view.store.row({row}), 0, view.store.row({row}).length - 1)") == latest
    # WHEN it is pinned, its outline and "Zoom here" reach there
    shown.value(f"view.set('pinned', {hit})")
    right = shown.value("(box => box.left + box.width)(gpustreamlab.boxOf(view, view.pinned))")
    assert right == pytest.approx(shown.value(f"view.pxAt({latest})"), abs=1)
    assert shown.value("gpustreamlab.timesOf(view, view.pinned)")[1] == latest
    shown.value("view.fitAround(...gpustreamlab.timesOf(view, view.pinned))")
    assert shown.window()[1] > latest


def marked(trace, *markers):
    start_ns = int(trace.start_ns.min())
    return replace(trace, markers=tuple(Marker(time_ns=start_ns + at, text=text, kind=kind) for at, text, kind in markers))


def test_labels_of_changes_win_over_those_of_marks_and_these_over_cells(show):
    trace = repartition_trace()
    change_ns = trace.layouts[0].time_ns - int(trace.start_ns.min())
    shown = show(
        marked(trace, (change_ns - 9, "In [4]", "cell"), (change_ns - 5, "warm up", "mark"), (change_ns, "In [5]", "cell"))
    )
    written = shown.written()
    assert "prefill 96 SMs, decode 36 SMs" in written
    assert "warm up" in written
    assert not {"In [4]", "In [5]"} & set(written)


def test_a_mark_next_to_the_pointer_tells_its_text_and_time(show):
    shown = show(marked(pipeline_trace(), (3 * MS, "warm up", "mark"), (3 * MS, "In [4]", "cell"), (6 * MS, "In [5]", "cell")))
    # WHEN the pointer is 3 px beside the line, above the lanes
    shown.page.mouse.move(*point(shown, *shown.value("[view.pxAt(3e6) + 3, view.frame.top + 5]")))
    shown.settle()
    tip = shown.page.locator(".gsl-tip")
    assert tip.is_visible()
    assert re.findall(r"warm up|In \[\d\]|3\.00 ms \([\d,]+ ns\)", tip.inner_text()) == [
        "warm up", "3.00 ms (3,000,000 ns)", "In [4]", "3.00 ms (3,000,000 ns)",
    ]  # fmt: skip
    assert shown.value("view.hovered") is None
    # WHEN it is further away, nothing is told; over a span, that is
    shown.page.mouse.move(*point(shown, *shown.value("[view.pxAt(3e6) + 6, view.frame.top + 5]")))
    shown.settle()
    assert not tip.is_visible()
    at = """(() => {
      const {row} = view.painted.segments[0]
      return [view.pxAt(view.store.row(row).start[0]) + 2, rowMiddle(row)]
    })()"""
    shown.page.mouse.move(*point(shown, *shown.value(at)))
    shown.settle()
    assert tip.is_visible()
    assert shown.value("view.hovered.index") == 0


def waiting_trace():
    """Return two lanes in which each span of the second waited for one of the first, 16 times."""
    spans = [
        span
        for k in range(16)
        for span in (("a", f"make {k % 2}", 100 * k, 100 * k + 50), ("b", "use", 100 * k + 60, 100 * k + 90))
    ]
    return make_trace(spans, edges=[(2 * k, 2 * k + 1) for k in range(16)])


def test_arrows_lead_to_where_ranges_had_to_wait_and_only_those_in_view_are_drawn(show):
    spans = [("a", "x", 0, 400), ("b", "then", 500, 1000), ("c", "inside", 100, 900), ("d", "short", 100, 300)]
    shown = show(make_trace(spans, edges=[(0, 1), (0, 2), (0, 3)]))
    heads = """(() => {
      const {edges} = view.store, places = [...Array(edges.length).keys()]
      return places.map(place => gpustreamlab.headTime(view.store, edges, place)).sort((a, b) => a - b)
    })()"""
    assert shown.value(heads) == [300, 400, 500]
    spans = [(f"lane {k}", "x", 100 * k, 100 * k + 50) for k in range(60)]
    shown = show(make_trace(spans, edges=[(k, k + 1) for k in range(59)]), height=420)
    # Of a lane at the border its edge alone may be in view; one more where its source is.
    seen = shown.value(
        "view.visibleLanes().filter(code => view.laneRows[code].some(row => view.isSeen(view.tables.rows[row]))).length"
    )
    assert shown.arrows()[0] == seen
    assert seen <= 16
    shown = show(make_trace([("a", "x", 0, 100), ("b", "y", 900, 1000), ("c", "z", 400, 600)], edges=[(0, 1), (0, 2)]))
    assert shown.arrows()[0] == 2
    # WHEN only the first passes by, and no end of the second is in view
    shown.value("view.setRange(610, 890)")
    assert shown.arrows() == [0, 0]
    shown.value("view.setRange(390, 590)")
    assert shown.arrows() == [1, 0]
    # THEN those of a pinned span are there also where they pass by, and only they are full
    shown.value("view.set('pinned', {row: view.tables.rows.findIndex(row => row.lane === 0), index: 0})")
    assert shown.arrows() == [1, 2]


def test_arrows_are_grey_and_those_of_the_hovered_span_in_ink_and_hidden_with_their_spans(show):
    shown = show(waiting_trace())
    alphas = """(() => {
      const alphas = [], plain = CanvasRenderingContext2D.prototype.stroke
      CanvasRenderingContext2D.prototype.stroke = function (...all) { alphas.push(this.strokeStyle); plain.apply(this, all) }
      for (const paint of [gpustreamlab.paintEdges, gpustreamlab.paintOwnEdges]) paint(pixels("primary"), gslViewer.painter)
      CanvasRenderingContext2D.prototype.stroke = plain
      return alphas
    })()"""
    colours = shown.value("[v => v.theme.rim, v => v.theme.ink].map(colour => colour(gslViewer))")
    assert shown.value(alphas) == colours[:1]
    shown.value("view.set('hovered', {row: 0, index: 3})")
    assert shown.value(alphas) == colours
    assert shown.arrows() == [16, 1]
    shown.value("view.set('hiddenNames', new Set([view.tables.names.indexOf('make 0')]))")
    assert shown.arrows()[0] == 8
    shown.value("view.set('hiddenNames', new Set([view.tables.names.indexOf('use')]))")
    assert shown.arrows()[0] == 0
    shown.value("view.set('hiddenNames', new Set())")
    assert shown.arrows()[0] == 16


def test_the_waits_are_switched_in_the_menu_and_by_a_key(show):
    shown = show(waiting_trace())
    shown.page.get_by_role("button", name="How the picture looks").click()
    box = shown.page.get_by_role("checkbox", name="Waits as arrows")
    assert box.is_checked()
    box.click()
    assert shown.arrows() == [0, 0]
    assert shown.value("view.kept.get('waits').read()") is False
    shown.page.keyboard.press("Escape")
    shown.page.keyboard.press("e")
    assert (shown.arrows(), shown.value("view.kept.get('waits').read()")) == ([16, 0], None)


def test_simulated_engines_are_not_said_to_have_worked_at_once(show):
    trace = random_trace(200, 4)
    lanes = tuple(replace(lane, device=place // 2) for place, lane in enumerate(trace.lanes))
    shown = show(replace(trace, lanes=lanes, metadata=replace(trace.metadata, missing=(NO_COMMON_TIME,))))
    written = shown.written()
    assert not any("at once" in text for text in written)


def test_a_narrow_span_is_no_hot_spot(show):
    # One span of 1 ns, and beside it columns in which as little ran.
    spans = [("a", "x", 1_000_000, 1_000_001), *(("a", "x", 1_200_000 + 1000 * k, 1_200_001 + 1000 * k) for k in range(99))]
    shown = show(make_trace([*spans, ("b", "y", 0, 2_000_000)]))
    row = shown.value("view.painted.segments.find(one => view.tables.lanes[view.tables.rows[one.row].lane].name === 'a').row")
    seen = [
        shown.value(f"pixel(view.pxAt({ns}), view.yAt(view.tables.rows[{row}].top) + 3)") for ns in (1_000_000.5, 1_250_000)
    ]
    low = [
        shown.value(f"pixel(view.pxAt({ns}), view.yAt(view.tables.rows[{row}].bottom) - 1.5)")
        for ns in (1_000_000.5, 1_250_000)
    ]
    # THEN both are as low as can be seen, and of one colour
    assert low[0] == low[1]
    assert low[0] not in seen


def test_names_that_differ_by_a_number_are_one_entry_of_the_legend(show):
    numbered = [("copy", f"h2d {k}", 100 * k, 100 * k + 80) for k in range(30)]
    shown = show(make_trace([*numbered, ("compute", "gemm_fp16", 0, 900), ("compute", "gemm_fp32", 900, 990)]))
    shown.value("view.set('colour', 'name')")
    chips = shown.page.locator('.gsl-legend [data-entry^="hiddenNames"] .gsl-text')
    assert chips.all_inner_texts() == ["h2d *", "gemm_fp16", "gemm_fp32"]
    assert "h2d *, 30 names" in shown.page.locator(".gsl-legend .gsl-chip").first.get_attribute("title")
    shown.page.locator(".gsl-legend .gsl-chip").first.click()
    assert shown.value("view.hiddenNames.size") == 30
