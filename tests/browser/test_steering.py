"""Steering a timeline: keys, selection, ruler, legend, following; with a real mouse and real keys."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import format_ns
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    MS,
    make_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    unnumbered,
)

pytestmark = pytest.mark.browser


# ---- keys


def test_w_and_s_zoom_at_the_pointer_or_about_the_middle_and_a_and_d_pan(read):
    reader = read(pipeline_trace())
    x, y = reader.at(2 * MS, 8)
    reader.page.mouse.move(x, y)
    time_ns = reader.js("w.timeAt(argument - v.figureElement.getBoundingClientRect().left)", x)
    before = reader.window()
    reader.press("w", "w")
    inner = reader.window()
    assert inner[1] - inner[0] == pytest.approx((before[1] - before[0]) / 2.25)
    assert reader.js("w.timeAt(argument - v.figureElement.getBoundingClientRect().left)", x) == pytest.approx(time_ns)
    reader.press("S")
    assert reader.window()[1] - reader.window()[0] == pytest.approx((before[1] - before[0]) / 1.5)
    reader.page.mouse.move(2, 2)
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    before = reader.window()
    reader.press("w")
    after = reader.window()
    assert sum(after) == pytest.approx(sum(before))
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 1.5)
    reader.page.mouse.move(*reader.at(3 * MS, 8))
    reader.press("w", "w")
    before = reader.window()
    reader.press("d")
    assert reader.window()[0] == pytest.approx(before[0] + 0.2 * (before[1] - before[0]))
    reader.press("a", "a")
    assert reader.window()[0] == pytest.approx(before[0] - 0.2 * (before[1] - before[0]))


def test_f_fits_the_pinned_span_then_everything(read):
    reader = read(pipeline_trace())
    everything = reader.window()
    reader.click("filter", 2)
    reader.press("f")
    start, end = reader.window()
    assert (start, end) == pytest.approx((2_900_000 - 60_000, 3_500_000 + 60_000))
    reader.press("f")
    assert reader.window() == everything


def test_arrows_step_through_rows_and_bring_what_they_pin_into_view(read):
    reader = read(nested_trace())
    reader.click("gemm")
    walk = []
    for key in (*["ArrowRight"] * 3, *["ArrowUp"] * 3, *["ArrowDown"] * 3):
        reader.press(key)
        walk.append(reader.pinned()[0])
    assert walk == ["softmax", "gemm", "gemm", "backward", "step", "step", "forward", "softmax", "worker A"] or walk == [
        "softmax", "gemm", "gemm", "backward", "step", "step", "backward", "gemm", "worker A",
    ]  # fmt: skip
    reader = read(random_trace(20_000))
    reader.page.mouse.move(*reader.at(reader.window()[1] * 0.5, 8))
    reader.press("ArrowRight", "ArrowRight")
    row, start, end = reader.js(
        "[w.pinned.row, s.row(w.pinned.row).start[w.pinned.index], s.row(w.pinned.row).end[w.pinned.index]]"
    )
    x0, x1 = reader.window()
    assert row == reader.js("w.laneRows[w.laneOrder[0]][0]")
    assert x0 <= start <= end <= x1
    assert (end - start) / (x1 - x0) > 0.003


def test_keys_go_by_place_and_leave_texts_and_modifiers_alone(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    for key in ("Control+s", "Control+a", "Alt+d", "Meta+f"):
        reader.page.evaluate("addEventListener('keydown', event => event.preventDefault(), { once: true })")
        reader.press(key)
    assert reader.window() == before
    before = reader.window()
    reader.page.evaluate(
        """() => { const root = document.querySelector(".gsl-viewer"); root.focus()
        root.dispatchEvent(new KeyboardEvent("keydown", { key: "ц", code: "KeyW", bubbles: true, composed: true })) }"""
    )
    assert reader.window()[1] - reader.window()[0] == pytest.approx((before[1] - before[0]) / 1.5)
    before = reader.window()
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.page.locator(".gsl-search input").click()
    reader.page.keyboard.type("was d")
    reader.page.wait_for_timeout(200)
    assert reader.window() == before
    assert reader.page.locator(".gsl-search input").input_value() == "was d"


def test_keys_work_at_once_but_those_that_scroll_are_left_to_a_page_that_is_higher_than_the_window(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.press("w")
    assert reader.window()[1] - reader.window()[0] == pytest.approx((before[1] - before[0]) / 1.5)
    reader.press("ArrowRight")
    assert reader.pinned()
    reader = read(pipeline_trace(), height=300)
    reader.press("PageDown")
    reader.page.wait_for_function("scrollY > 0")
    reader.press("ArrowDown")
    assert reader.pinned() is None


def test_keys_need_the_pointer_or_the_focus_in_a_frame_and_on_a_page_of_several(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.page.evaluate("Object.defineProperty(window, 'parent', { value: {} })")
    reader.press("w")
    assert reader.window() == before
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.press("w")
    assert reader.window() != before
    reader.page.evaluate("document.body.append(Object.assign(document.createElement('div'), { className: 'gsl-viewer' }))")
    reader.page.evaluate(
        "document.body.append(Object.assign(document.createElement('p'), { id: 'below', textContent: 'below' }))"
    )
    before = reader.window()
    reader.page.mouse.move(2, 2)
    reader.press("w")
    assert reader.window() == before
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.press("w")
    assert reader.window() != before


def test_everything_that_takes_the_focus_keeps_its_keys_from_jupyterlab(read):
    reader = read(partition_trace())
    reader.click("gemm")
    reader.press("t", "?")
    bare = reader.page.evaluate(
        """() => [...document.querySelectorAll(".gsl-viewer, .gsl-viewer :is(button, input, textarea, [tabindex])")]
        .filter(e => !e.closest(".gsl-figure") && e.dataset.lmSuppressShortcuts !== "true").map(e => e.outerHTML)"""
    )
    assert bare == []


def test_help_sheet_opens_with_a_key_and_closes_with_esc(read):
    reader = read(pipeline_trace(), width=700)
    reader.click("filter")
    reader.press("?")
    assert "Zoom in, out" in reader.text("help")
    assert "Pause" not in reader.text("help")
    box = reader.page.locator(".gsl-help").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 700
    reader.press("Escape")
    assert reader.text("help") is None
    assert reader.pinned() is not None
    reader.page.locator(".gsl-help-button").click()
    assert reader.text("help")


# ---- selection


def test_shift_drag_measures_a_window_and_moves_nothing(read):
    reader = read(partition_trace())
    before = reader.window()
    _select(reader, 2 * MS, 6 * MS, "gemm", "attention")
    assert reader.window() == before
    assert reader.pinned() is None
    assert reader.js("[w.selection.start, w.selection.end]") == pytest.approx([2 * MS, 6 * MS], abs=20_000)
    start, end = reader.js("[w.selection.start, w.selection.end]")
    assert reader.js("(text => text.split(',')[0])(v.status.textContent)") == f"Selected {format_ns(end - start)}"
    # THEN keys zoom there, and Esc takes it away
    reader.press("f")
    assert reader.window() == pytest.approx([start, end])
    reader.press("Escape")
    assert reader.js("w.selection") is None


def test_edges_of_spans_are_met_and_the_card_and_the_page_may_be_dragged_over_too(read):
    reader = read(pipeline_trace())
    places = [reader.place(*reader.find("filter", 1), share) for share in (0.02, 0.98)]
    reader.drag(places[0], places[1], shift=True)
    assert reader.js("[w.selection.start, w.selection.end]") == [1_900_000, 2_500_000]
    reader = read(partition_trace())
    y = reader.frame()[1] + reader.js("(w.tables.card_rows[0].top + w.tables.card_rows[0].bottom) / 2")
    reader.drag((reader.at(2 * MS)[0], y), (reader.at(6 * MS)[0], y + 10), shift=True)
    assert reader.js("w.selection.end - w.selection.start") == pytest.approx(4 * MS, abs=20_000)


# ---- legend


def test_partitions_stay_in_the_legend_where_they_have_room_to_the_px(read):
    reader = read(partition_trace())
    used, room = reader.page.evaluate(
        """(({ children, clientWidth }) => [[...children].filter(e => !e.hidden).reduce((sum, e) => sum + e.offsetWidth + 2, 0),
        clientWidth])(document.querySelector(".gsl-legend"))"""
    )
    reader.page.set_viewport_size({"width": 1200 - room + used + 3, "height": 900})
    reader.settle()
    shown = reader.page.locator(".gsl-legend .gsl-chip:visible .gsl-text").all_text_contents()
    assert shown == ["prefill · 96 SMs", "decode · 36 SMs", "whole card · 132 SMs"]


def test_the_whole_card_is_in_the_legend_only_where_anything_ran_on_it(read):
    trace = partition_trace()
    reader = read(trace.where(stream=["prefill", "decode", "kv"]))
    shown = reader.page.locator(".gsl-legend .gsl-chip .gsl-text").all_text_contents()
    assert shown[:2] == ["prefill · 96 SMs", "decode · 36 SMs"]
    assert not [text for text in shown if text.startswith("whole card")]


def test_legend_orders_names_by_time_toggles_them_and_shows_only_one(read):
    trace = partition_trace()
    reader = read(trace, width=1600)
    # THEN the partitions, of which the hue tells, are there, and the names on demand
    told = reader.page.locator(".gsl-legend .gsl-text").all_text_contents()
    assert told == ["prefill · 96 SMs", "decode · 36 SMs", "whole card · 132 SMs"]
    reader.js("w.set('colour', 'name')")
    names = ".gsl-legend [data-entry^=hiddenNames]"
    chips = reader.page.locator(names)
    assert chips.all_text_contents()[:4] == ["gemm8.50 ms", "attention7.00 ms", "copy kv1.25 ms", "checksum1.00 ms"]
    chips.nth(1).click()
    reader.settle()
    assert reader.drawn_count() == len(trace) - 20
    assert chips.nth(1).get_attribute("aria-pressed") == "false"
    text = chips.nth(1).locator(".gsl-text")
    assert "line-through" in text.evaluate("text => getComputedStyle(text).textDecoration")
    assert chips.all_inner_texts()[1] == "attention\n7.00 ms"
    assert reader.page.evaluate("document.activeElement.dataset.entry") == chips.nth(1).get_attribute("data-entry")
    chips.nth(1).click()
    reader.settle()
    assert reader.drawn_count() == len(trace)
    reader = read(trace, width=1600)
    reader.js("w.set('colour', 'name')")
    chips = reader.page.locator(names)
    chips.nth(1).click(modifiers=["Alt"])
    reader.settle()
    assert reader.drawn_count() == 20
    reader.page.get_by_role("button", name="Show all", exact=True).click()
    reader.settle()
    assert reader.drawn_count() == len(trace)
    chips.nth(0).click(modifiers=["Control"])
    chips.nth(0).click(modifiers=["Control"])
    reader.settle()
    assert reader.drawn_count() == len(trace)
    reader = read(nested_trace())
    reader.click_chip("kernel")
    reader.settle()
    assert reader.drawn_count() == 9
    parts = read(partition_trace())
    parts.click_chip("decode · 36 SMs")
    parts.settle()
    assert parts.drawn_count() == 11


def test_hiding_a_name_keeps_the_pin_on_its_span_or_drops_it(read):
    reader = read(pipeline_trace())
    reader.click("statistics", 3)
    before = reader.pinned()
    reader.click_chip("filter")
    reader.settle()
    assert reader.pinned() == before
    assert "statistics" in reader.text("details")
    reader.click_chip("statistics")
    reader.settle()
    assert reader.pinned() is None
    assert reader.text("details") is None


def test_a_caption_of_the_legend_stands_beside_its_first_entry_at_every_width(read):
    reader = read(kernel_trace(), width=1200)
    parts = """[...document.querySelectorAll('.gsl-of')]
      .filter(caption => caption.offsetParent)
      .map(caption => [caption.textContent,
      ...[caption, caption.nextElementSibling]
      .map(part => part.getBoundingClientRect()).map(({ top, bottom }) => Math.round((top + bottom) / 2))])"""
    for colour, captions in (
        ("partition", ["colour: partition", "kind", "calls"]),
        ("name", ["colour: name", "kind", "calls"]),
    ):
        reader.js("w.set('colour', argument)", colour)
        seen = set()
        for width in (*range(420, 1240, 160), 1_800, 3_000):
            reader.page.set_viewport_size({"width": width, "height": 800})
            reader.settle()
            found = reader.js(parts)
            told = [caption for caption, *_ in found]
            assert told == [caption for caption in captions if caption in told], width
            assert all(abs(own - entry) <= 3 for _, own, entry in found), width
            seen.update(told)
        assert seen == set(captions)


@pytest.mark.parametrize("width", [1200, 700])
def test_legend_of_many_names_has_one_line_and_opens_the_rest(read, width):
    reader = read(unnumbered(random_trace(4_000, 4, name_count=60)), width=width)
    assert reader.page.locator(".gsl-legend .gsl-chip:visible .gsl-text").all_text_contents() == [
        f"stream {k}" for k in range(4)
    ]
    assert reader.page.locator(".gsl-more").inner_text() == "60 names"
    reader.js("w.set('colour', 'name')")
    shown = reader.page.locator(".gsl-legend .gsl-chip:visible").count()
    assert 3 <= shown <= 14
    more = reader.page.locator(".gsl-more")
    assert more.inner_text() == f"+ {60 - shown} more"
    assert reader.page.locator(".gsl-legend").bounding_box()["height"] < 30
    more.click()
    sheet = reader.page.locator(".gsl-all")
    assert sheet.locator(".gsl-chip[data-entry^=hiddenNames]").count() == 60
    box = sheet.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    sheet.locator(".gsl-chip").nth(30).click()
    reader.settle()
    assert reader.js("w.hiddenNames.size") == 1
    assert sheet.is_visible()
    reader.press("Escape")
    assert not sheet.is_visible()


# ---- live


LIVE = """async () => {
  // What is brought up to date every 2 s is so at once.
  window.setTimeout = (plain => (action, ms, ...rest) => plain(action, Math.min(ms ?? 0, 50), ...rest))(window.setTimeout)
  const {Viewer, SpanStore, SpanBatch} = gpustreamlab, old = gslViewer, {tables} = old.view
  const place = old.element.parentElement, item = old.item, store = new SpanStore({})
  old.destroy()
  store.setRows(tables.rows)
  window.gslViewer = new Viewer({element: place, Bokeh, item, tables, store, live: true})
  window.append = (start, lengthNs, code = 0) => {
    const n = start.length, codes = new Uint8Array(n), zeros = new Float64Array(n)
    const name = codes.slice().fill(code)
    const columns = {start, end: start.map(t => t + lengthNs), name, kind: codes, partition: codes, queueing: zeros}
    store.append(new SpanBatch([[0, 0, n]], {...columns, thread: new Int32Array(n), place: start.map(t => t + 1)}))
    gslViewer.view.appended()
  }
  let at = 0
  window.feed = n => {
    append(Float64Array.from({length: n}, (_, i) => at + i * 2000), 1000)
    at += n * 2000
  }
  await gslViewer.start()
  feed(1000)
}"""


def _go_live(reader):
    """Put a live viewer in the place of the page's; `feed(n)` appends n spans of 1 us, `append(starts, length)` late ones."""
    reader.page.evaluate(LIVE)
    reader.settle()


def test_follow_sticks_to_now_until_the_reader_looks_elsewhere(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
    _go_live(reader)
    follow = reader.page.get_by_role("button", name="Stick to now")
    assert follow.get_attribute("aria-pressed") == "true"
    reader.js("feed(500)")
    reader.settle()
    start, end = reader.window()
    assert start <= 0
    assert end >= 1500 * 2_000 - 1_000
    reader.page.mouse.move(*reader.at(1_500_000, 8))
    reader.press("w")
    assert follow.get_attribute("aria-pressed") == "false"
    held = reader.window()
    reader.js("feed(500)")
    reader.settle()
    assert reader.window() == held
    reader.press("End")
    assert follow.get_attribute("aria-pressed") == "true"
    assert reader.window()[1] >= 2000 * 2_000 - 1_000


def test_follow_keeps_the_zoom_that_has_now_in_view_and_shows_the_last_seconds(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
    _go_live(reader)
    reader.js("w.setRange(1.5e6, 2.01e6)")
    reader.js("feed(5000)")
    reader.settle()
    start, end = reader.window()
    assert end - start == pytest.approx(510_000)
    assert end >= 6000 * 2_000 - 1_000
    reader.page.mouse.move(*reader.at((start + end) / 2, 8))
    reader.press("0")
    reader.js("feed(5000)")
    reader.settle()
    assert reader.window()[0] <= 0
    assert reader.window()[1] >= 11_000 * 2_000 - 1_000
    _go_live(reader)
    reader.js("(w.nowNs = 60e9, w.appended())")
    reader.settle()
    start, end = reader.window()
    assert end - start == pytest.approx(10e9)
    assert end == pytest.approx(60.2e9)


def test_pause_holds_the_picture_and_counts_what_came(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
    _go_live(reader)
    reader.page.mouse.move(*reader.at(1_000_000, 8))
    reader.press("Space")
    held = reader.window()
    reader.js("feed(1234)")
    reader.settle()
    assert reader.window() == held
    assert reader.text("came") == "Paused, 1,234 new spans"
    assert reader.js("s.length") == 2_234
    reader.press("Space")
    assert reader.text("came") in (None, "")
    assert reader.window()[1] >= 2_234 * 2_000 - 1_000


def test_pinned_span_stays_pinned_while_late_spans_arrive_before_it(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
    _go_live(reader)
    reader.js("w.set('pinned', { row: 0, index: 700 })")
    start = reader.pinned()[1]
    reader.js("append(Float64Array.of(1500), 200)")
    reader.settle()
    assert reader.js("w.pinned.index") == 701
    assert reader.pinned()[1] == start


def test_names_of_a_live_legend_stay_where_they_are_while_they_are_read(read):
    reader = read(make_trace([("a", "first", 0, 1_000), ("a", "second", 2_000, 3_000), ("a", "third", 4_000, 5_000)]))
    _go_live(reader)
    names = reader.page.locator(".gsl-all [data-entry^=hiddenNames] .gsl-text")
    reader.page.wait_for_function("document.querySelector('.gsl-more').textContent === '1 name'")
    reader.js("append(Float64Array.of(3e6), 5e6, 2)")
    reader.page.wait_for_function("document.querySelector('.gsl-more').textContent === '2 names'")
    reader.page.locator(".gsl-more").click()
    assert names.all_inner_texts() == ["third", "first"]
    reader.js("append(Float64Array.of(9e6), 9e6, 1)")
    reader.page.wait_for_function("document.querySelector('.gsl-more').textContent === '3 names'")
    assert names.all_inner_texts() == ["third", "first"]
    reader.press("Escape")
    reader.page.locator(".gsl-more").click()
    assert names.all_inner_texts() == ["second", "third", "first"]


def test_only_a_live_session_can_be_followed_and_paused(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
    _go_live(reader)
    assert reader.page.locator(".gsl-follow").is_visible()
    reader.js("w.set('isLive', false)")
    assert not reader.page.locator(".gsl-follow").is_visible()
    reader.press("Space")
    assert reader.js("w.isPaused") is False
    reader = read(pipeline_trace())
    assert reader.page.locator(".gsl-follow").count() == 0
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    reader.press("Space")
    assert reader.js("w.isPaused") is False


def _select(reader, start_ns, end_ns, upper, lower):
    """Drag with Shift from one time in a name's row to another time in another's."""
    y0, y1 = (reader.place(*reader.find(name))[1] for name in (upper, lower))
    reader.drag((reader.at(start_ns)[0], y0), (reader.at(end_ns)[0], y1), shift=True)
