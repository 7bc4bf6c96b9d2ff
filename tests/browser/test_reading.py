"""Reading a timeline: tips, details, search, keys, selection, ruler, legend, following; with a real mouse and real keys."""

from __future__ import annotations


import numpy as np
import pytest

from gpustreamlab.analysis import overlap
from gpustreamlab.draw._html import timeline_page
from tests.helpers.traces import (
    EVIL_NAME,
    MS,
    evil_trace,
    make_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)

pytestmark = pytest.mark.browser


class Reader:
    """A page with one viewer, and the hands of who reads it."""

    def __init__(self, page):
        self.page, self.errors, self.dialogs = page, [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def load(self, path):
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", state="attached")
        self.settle()
        return self

    def settle(self):
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))"
        )

    def js(self, expression, argument=None):
        """Evaluate JavaScript of the viewer `v`, its view `w` and its store `s`."""
        body = f"argument => {{ const v = gslViewer, w = v.view, s = w.store; return {expression} }}"
        return self.page.evaluate(body, argument)

    def find(self, name, occurrence=0):
        """Return [row, index] of the span of this name that starts as the n-th."""
        return self.js(
            """w.tables.rows.flatMap((_, row) => [...s.row(row).name ?? []].slice(0, s.row(row).length)
            .map((name, index) => [row, index, s.row(row).start[index], w.tables.names[name]]))
            .filter(span => span[3] === argument[0]).sort((a, b) => a[2] - b[2])[argument[1]].slice(0, 2)""",
            [name, occurrence],
        )

    def place(self, row, index, share=0.5):
        """Return where a span is painted, in px of the window."""
        return self.js(
            """(() => { const box = v.figureElement.getBoundingClientRect(), [row, index, share] = argument, columns = s.row(row), place = w.tables.rows[row]
            const time = columns.start[index] + share * (columns.end[index] - columns.start[index])
            return [box.left + w.pxAt(time), box.top + w.yAt((place.top + place.bottom) / 2)] })()""",
            [row, index, share],
        )

    def span_box(self, row, index):
        """Return left, top, right, bottom of a painted span in px of the window."""
        return self.js(
            """(() => { const box = v.figureElement.getBoundingClientRect(), [row, index] = argument, columns = s.row(row), place = w.tables.rows[row]
            return [box.left + w.pxAt(columns.start[index]), box.top + w.yAt(place.top), box.left + w.pxAt(columns.end[index]), box.top + w.yAt(place.bottom)] })()""",
            [row, index],
        )

    def frame(self):
        """Return left, top, right, bottom of the lanes in px of the window."""
        return self.js(
            """(() => { const box = v.figureElement.getBoundingClientRect()
            return [box.left + w.frame.left, box.top + w.frame.top, box.left + w.frame.right, box.top + w.frame.top + w.lanesPx] })()"""
        )

    def at(self, time_ns, lane_px=None):
        """Return where a time is, in px of the window; below the lanes' top by so many px."""
        left, top, _, _ = self.frame()
        return self.js("v.figureElement.getBoundingClientRect().left + w.pxAt(argument)", time_ns), top + (lane_px or 5)

    def hover(self, name, occurrence=0, share=0.5):
        self.page.mouse.move(*self.place(*self.find(name, occurrence), share))
        self.settle()

    def click(self, name, occurrence=0):
        self.page.mouse.click(*self.place(*self.find(name, occurrence)))
        self.settle()

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def drag(self, start, end, *, shift=False):
        mouse, keyboard = self.page.mouse, self.page.keyboard
        if shift:
            keyboard.down("Shift")
        mouse.move(*start)
        mouse.down()
        mouse.move(*end, steps=6)
        mouse.up()
        if shift:
            keyboard.up("Shift")
        self.settle()

    def search(self, text):
        self.page.locator(".gsl-search input").fill(text)
        self.page.wait_for_timeout(200)
        self.settle()

    def tip(self):
        tip = self.page.locator(".gsl-tip")
        return tip.inner_text() if tip.is_visible() else None

    def text(self, part):
        place = self.page.locator(f".gsl-{part}").first
        return place.inner_text() if place.is_visible() else None

    def pinned(self):
        """Return name and start of the pinned span."""
        return self.js(
            "w.pinned && [w.tables.names[s.row(w.pinned.row).name[w.pinned.index]], s.row(w.pinned.row).start[w.pinned.index]]"
        )

    def window(self):
        return self.js("[w.x0, w.x1]")

    def drawn_count(self):
        return self.js("w.tables.rows.reduce((sum, _, row) => sum + s.row(row).length, 0)")


@pytest.fixture
def read(chromium, tmp_path):
    """Return a function that opens a trace's page and returns its reader; console errors fail the test."""
    readers = []

    def open_it(trace, *, width=1200, height=900, **context):
        path = tmp_path / f"page{len(readers)}.html"
        path.write_text(timeline_page(trace), encoding="utf-8")
        opened = chromium.new_context(viewport={"width": width, "height": height}, **context)
        readers.append((opened, Reader(opened.new_page())))
        return readers[-1][1].load(path)

    yield open_it
    said = [reader.errors for _, reader in readers]
    for opened, _ in readers:
        opened.close()
    assert said == [[] for _ in readers]


# ---- tips


def test_tip_shows_every_fact_of_a_span(read):
    reader = read(pipeline_trace())
    reader.hover("filter", 1)
    lines = reader.tip().split("\n")
    facts = dict(zip(lines[1::2], lines[2::2], strict=True))
    assert lines[0] == "filter"
    assert facts == {
        "stream": "compute", "partition": "prefill · 96 SMs (asked for 90)", "kind": "range", "start": "1.90 ms (1,900,000 ns)",
        "duration": "600 µs (600,000 ns)", "queueing": "930 µs (930,000 ns)", "thread": "MainThread",
    }  # fmt: skip


@pytest.mark.parametrize("size", [(1200, 900), (700, 420), (700, 900)], ids=str)
def test_tip_stays_in_the_window_and_off_the_span(read, size):
    reader = read(nested_trace(), width=size[0], height=size[1])
    for name in ("step", "gemm", "backward", "worker A", "fill", "wait for step"):
        for share in (0.02, 0.5, 0.98):
            x, y = reader.place(*reader.find(name), share)
            if y > size[1]:
                continue
            reader.page.mouse.move(x, y)
            reader.settle()
            box = reader.page.locator(".gsl-tip").bounding_box()
            left, top, right, bottom = box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]
            assert 0 <= left
            assert right <= size[0]
            assert 0 <= top
            assert bottom <= size[1]
            assert not (left <= x <= right and top <= y <= bottom)


def test_tip_goes_when_the_pointer_leaves_or_drags(read):
    reader = read(pipeline_trace())
    reader.hover("filter")
    assert reader.tip()
    reader.page.mouse.down()
    reader.page.mouse.move(*reader.place(*reader.find("filter")), steps=2)
    reader.settle()
    assert reader.tip() is None
    reader.page.mouse.up()
    reader.hover("filter", 2)
    assert reader.tip()
    reader.page.mouse.move(5, 5)
    reader.settle()
    assert reader.tip() is None
    assert reader.js("w.hovered") is None


def test_tip_of_merged_spans_counts_them_and_their_names(read):
    trace = random_trace(60_000, 4)
    reader = read(trace)
    # The middle of one of the merged bars that are painted.
    row, first, last = reader.js(
        """(() => { const { items } = w.painted, i = Array.from(items.first).findIndex((first, i) => i > 300 && items.last[i] - first > 1)
        return [items.row[i], items.first[i], items.last[i]] })()"""
    )
    left, right = reader.place(row, first, 0)[0], reader.place(row, last, 1)[0]
    reader.page.mouse.move((left + right) / 2, reader.place(row, first)[1])
    reader.settle()
    hit = reader.js("w.hovered")
    assert (hit["row"], hit["first"], hit["last"]) == (row, first, last)
    columns = reader.js("[...s.row(argument.row).name.slice(argument.first, argument.last + 1)]", hit)
    text = reader.tip()
    assert text.startswith(f"{len(columns):,} spans")
    codes, counts = np.unique(columns, return_counts=True)
    for code, count in zip(codes, counts, strict=True):
        if len(codes) <= 5:
            assert f"{trace.names[code]} × {count:,}" in text
    busy_ns = reader.js("s.busySum(argument.row, argument.first, argument.last)", hit)
    assert f"{int(busy_ns):,} ns" in text
    assert "zoom in" in text


# ---- details


def test_click_pins_the_details_and_esc_unpins(read):
    reader = read(nested_trace())
    reader.click("softmax")
    text = reader.text("details")
    for fact in ("softmax", "main", "kernel", "3.00 ms (3,000,000 ns)", "2.00 ms (2,000,000 ns)", "row 3, start_ns 3000000"):
        assert fact in text
    assert reader.pinned() == ["softmax", 3_000_000]
    reader.press("Escape")
    assert reader.text("details") is None
    assert reader.pinned() is None


def test_click_beside_all_spans_unpins(read):
    reader = read(pipeline_trace())
    reader.click("filter")
    assert reader.pinned()
    reader.page.mouse.click(*reader.at(-50_000, 10))
    reader.settle()
    assert reader.pinned() is None


def test_details_name_what_encloses_the_span_and_go_there(read):
    reader = read(nested_trace())
    reader.click("gemm")
    enclosing = reader.page.locator(".gsl-inside button")
    assert enclosing.all_inner_texts() == ["step · 10.0 ms", "forward · 6.00 ms"]
    enclosing.nth(1).click()
    reader.settle()
    assert reader.pinned() == ["forward", 0]
    assert reader.page.locator(".gsl-inside button").all_inner_texts() == ["step · 10.0 ms"]


def test_drag_pans_and_pins_nothing(read):
    reader = read(pipeline_trace())
    before = reader.window()
    x, y = reader.place(*reader.find("filter", 3))
    reader.drag((x, y), (x - 150, y))
    assert reader.window()[0] > before[0]
    assert reader.pinned() is None


def test_details_are_copied_as_text(read):
    reader = read(nested_trace(), permissions=["clipboard-read", "clipboard-write"])
    reader.click("softmax")
    reader.page.get_by_role("button", name="Copy these details").click()
    reader.page.wait_for_function("document.querySelector('.gsl-details button:nth-of-type(2)').textContent === 'Copied'")
    copied = reader.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("name\tsoftmax\nstream\tmain\n")
    assert "duration\t2.00 ms (2,000,000 ns)" in copied


def test_copying_without_a_clipboard_offers_selected_text(read):
    reader = read(nested_trace())
    reader.page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined }); document.execCommand = () => false }"
    )
    reader.click("softmax")
    reader.page.get_by_role("button", name="Copy these details").click()
    reader.settle()
    assert reader.page.locator(".gsl-offer").is_visible()
    selected = reader.page.evaluate("(a => a.value.slice(a.selectionStart, a.selectionEnd))(document.activeElement)")
    assert selected.startswith("name\tsoftmax")


def test_details_follow_the_trace_clock_beyond_2_to_the_53(read):
    zero_ns = 1_700_000_000_123_456_789
    trace = make_trace([("a", "x", zero_ns, zero_ns + 5), ("a", "y", zero_ns + 7, zero_ns + 9)])
    reader = read(trace)
    reader.click("y")
    assert f"start_ns {zero_ns + 7}" in reader.text("details")


# ---- search


def test_search_counts_dims_and_goes_on_in_time(read):
    reader = read(partition_trace())
    reader.press("Tab")
    reader.page.mouse.move(*reader.at(0, 4))
    reader.press("/")
    reader.page.keyboard.type("ATT")
    reader.page.wait_for_timeout(200)
    assert reader.text("found") == "20 found"
    assert reader.js("[...w.matches]") == [0, 0, 1, 0]
    starts = []
    for number in range(1, 4):
        reader.press("Enter")
        assert reader.text("found") == f"{number} of 20"
        starts.append(reader.pinned()[1])
    assert starts == [0, 500_000, 1_000_000]
    reader.press("Shift+Enter")
    assert reader.text("found") == "2 of 20"
    reader.press("Shift+Enter", "Shift+Enter")
    assert reader.text("found") == "20 of 20"
    reader.press("Enter")
    assert reader.text("found") == "1 of 20"
    reader.press("Escape")
    assert reader.js("w.matches") is None
    assert reader.page.locator(".gsl-search input").input_value() == ""
    assert reader.page.evaluate("document.activeElement.className") == "gsl-viewer"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("stream:side", {"worker A", "copy", "worker B", "fill", "wait for step", "done"}, id="stream"),
        pytest.param("kind:kernel", {"gemm", "softmax"}, id="kind"),
        pytest.param("kind:kernel soft", {"softmax"}, id="kind-and-name"),
        pytest.param("worker a", {"worker A"}, id="words"),
        pytest.param('"worker b"', {"worker B"}, id="quotes"),
        pytest.param(">5ms", {"step", "forward", "worker A", "worker B"}, id="longer"),
        pytest.param("< 2500 us  stream:main", {"softmax", "gemm"}, id="shorter"),
        pytest.param("thread:worker-2", {"worker B", "fill"}, id="thread"),
        pytest.param("kind:copy kind:kernel", set(), id="contradiction"),
        pytest.param(".*", set(), id="no-pattern"),
        pytest.param("(", set(), id="bracket"),
    ],
)
def test_search_fields_find_exactly(read, text, names):
    reader = read(nested_trace())
    reader.search(text)
    found = reader.js(
        """w.tables.rows.flatMap((_, row) => [...Array(s.row(row).length).keys()].filter(i => s.matchCount(row, i, i))
        .map(i => w.tables.names[s.row(row).name[i]]))"""
    )
    assert set(found) == names
    count = len(found)
    assert reader.text("found") == (f"{count} found" if count else "none found")


def test_search_dims_in_the_picture(read):
    reader = read(make_trace([("a", "alpha", 0, 100), ("a", "beta", 100, 200)]))
    before = [_colour(reader, "alpha"), _colour(reader, "beta")]
    reader.search("alpha")
    after = [_colour(reader, "alpha"), _colour(reader, "beta")]
    assert after[0] == before[0]
    assert _luminance(after[1]) > _luminance(before[1])
    reader.search("<50ns")
    assert _luminance(_colour(reader, "alpha")) > _luminance(before[0])


def test_search_in_many_spans_counts_them_all(read):
    trace = random_trace(50_000)
    reader = read(trace)
    reader.search("kernel 1")
    wanted = np.isin(trace.name, [code for code, name in enumerate(trace.names) if "kernel 1" in name])
    assert reader.text("found") == f"{wanted.sum():,} found"
    reader.page.locator(".gsl-search input").press("Enter")
    reader.page.locator(".gsl-search input").press("Enter")
    reader.settle()
    assert reader.text("found") == f"2 of {wanted.sum():,}"
    assert reader.pinned()[1] == np.sort(trace.start_ns[wanted])[1] - trace.start_ns.min()


# ---- keys


def test_w_and_s_zoom_at_the_pointer(read):
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


def test_zoom_without_the_pointer_is_about_the_middle(read):
    reader = read(pipeline_trace())
    reader.page.mouse.move(2, 2)
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    before = reader.window()
    reader.press("w")
    after = reader.window()
    assert sum(after) == pytest.approx(sum(before))
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 1.5)


def test_a_and_d_pan(read):
    reader = read(pipeline_trace())
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


def test_arrows_step_through_a_row_and_between_rows(read):
    reader = read(nested_trace())
    reader.click("gemm")
    walk = []
    for key in (
        "ArrowRight",
        "ArrowRight",
        "ArrowRight",
        "ArrowUp",
        "ArrowUp",
        "ArrowUp",
        "ArrowDown",
        "ArrowDown",
        "ArrowDown",
    ):
        reader.press(key)
        walk.append(reader.pinned()[0])
    assert walk == ["softmax", "gemm", "gemm", "backward", "step", "step", "forward", "softmax", "worker A"] or walk == [
        "softmax", "gemm", "gemm", "backward", "step", "step", "backward", "gemm", "worker A",
    ]  # fmt: skip


def test_arrows_bring_what_they_pin_into_view(read):
    reader = read(random_trace(20_000))
    reader.page.mouse.move(*reader.at(reader.window()[1] * 0.5, 8))
    reader.press("ArrowRight", "ArrowRight")
    row, start, end = reader.js(
        "[w.pinned.row, s.row(w.pinned.row).start[w.pinned.index], s.row(w.pinned.row).end[w.pinned.index]]"
    )
    x0, x1 = reader.window()
    assert row == 0
    assert x0 <= start <= end <= x1
    assert (end - start) / (x1 - x0) > 0.003


def test_keys_do_nothing_while_a_text_is_written(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.page.locator(".gsl-search input").click()
    reader.page.keyboard.type("was d")
    reader.page.wait_for_timeout(200)
    assert reader.window() == before
    assert reader.page.locator(".gsl-search input").input_value() == "was d"


def test_keys_with_modifiers_belong_to_the_browser(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    for key in ("Control+s", "Control+a", "Alt+d", "Meta+f"):
        reader.page.evaluate("addEventListener('keydown', event => event.preventDefault(), { once: true })")
        reader.press(key)
    assert reader.window() == before


def test_keys_need_the_pointer_or_the_focus(read):
    reader = read(pipeline_trace())
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


def test_in_a_notebook_keys_need_the_focus_and_stay_within(read):
    reader = read(pipeline_trace())
    reader.page.evaluate(
        """() => { const notebook = document.createElement("div"); notebook.className = "jp-Notebook"; notebook.tabIndex = 0
        document.body.append(notebook); notebook.append(document.querySelector(".gsl-viewer")); window.reached = []
        notebook.addEventListener("keydown", event => reached.push(event.key)) }"""
    )
    reader.settle()
    before = reader.window()
    reader.page.evaluate("document.activeElement.blur()")
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.press("w")
    assert reader.window() == before
    reader.click("filter")
    reader.press("w")
    assert reader.window() != before
    assert reader.page.evaluate("document.activeElement.dataset.lmSuppressShortcuts") == "true"


def test_everything_that_takes_the_focus_keeps_its_keys_from_jupyterlab(read):
    reader = read(partition_trace())
    reader.click("gemm")
    reader.press("t", "?")
    bare = reader.page.evaluate(
        """() => [...document.querySelectorAll(".gsl-viewer, .gsl-viewer :is(button, input, textarea, [tabindex])")]
        .filter(e => !e.closest(".gsl-figure") && e.dataset.lmSuppressShortcuts !== "true").map(e => e.outerHTML)"""
    )
    assert bare == []


def test_letters_go_by_their_place_where_the_keyboard_writes_no_latin(read):
    reader = read(pipeline_trace())
    before = reader.window()
    reader.page.evaluate(
        """() => { const root = document.querySelector(".gsl-viewer"); root.focus()
        root.dispatchEvent(new KeyboardEvent("keydown", { key: "ц", code: "KeyW", bubbles: true, composed: true })) }"""
    )
    assert reader.window()[1] - reader.window()[0] == pytest.approx((before[1] - before[0]) / 1.5)


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


def test_shift_drag_sums_up_a_window_and_moves_nothing(read):
    trace = partition_trace()
    reader = read(trace)
    before = reader.window()
    _select(reader, 2 * MS, 6 * MS, "gemm", "attention")
    assert reader.window() == before
    assert reader.pinned() is None
    selection = reader.js(
        "[w.selection.start, w.selection.end, [...w.selection.lanes].map(code => w.tables.lanes[code].name).sort()]"
    )
    assert selection[0] == pytest.approx(2 * MS, abs=10_000)
    assert selection[1] == pytest.approx(6 * MS, abs=10_000)
    assert selection[2] == ["decode", "kv", "prefill"]
    reader.js("w.set('selection', { ...w.selection, start: 2e6, end: 6e6 })")
    assert _tables(reader) == {
        "Streams": [["prefill", "3.40 ms", "85%", "2"], ["decode", "2.80 ms", "70%", "8"], ["kv", "500 µs", "13%", "2"]],
        "Names": [["gemm", "3.40 ms", "51%", "2"], ["attention", "2.80 ms", "42%", "8"], ["copy kv", "500 µs", "7%", "2"]],
        "Overlap": [["prefill + decode", "2.50 ms", "89%"], ["decode + kv", "300 µs", "60%"]],
    }
    assert "Selected 4.00 ms" in reader.text("selection")


def test_totals_of_everything_are_those_of_the_overlap(read):
    trace = random_trace(3_000, 5)
    reader = read(trace)
    reader.page.mouse.move(*reader.at(1000, 8))
    reader.press("t")
    result = overlap(trace)
    shown = reader.js("gpustreamlab.totals(s, w.tables, w.selection)")
    assert [row["busy"] for row in shown["lanes"]] == result.busy_ns.tolist()
    assert {(pair["a"], pair["b"]): pair["both_ns"] for pair in shown["pairs"]} == {
        (a, b): int(result.common_ns[a, b]) for a in range(5) for b in range(a + 1, 5)
    }
    assert len(_tables(reader)["Overlap"]) == 10


def test_box_tool_of_bokeh_selects_too(read):
    reader = read(partition_trace())
    reader.page.locator(".bk-tool-icon-box-select").first.click()
    left, top, _, bottom = reader.frame()
    reader.drag((reader.at(1 * MS)[0], top + 3), (reader.at(3 * MS)[0], bottom - 3))
    assert reader.js("w.selection.start") == pytest.approx(1 * MS, abs=10_000)
    assert reader.js("w.selection.end") == pytest.approx(3 * MS, abs=10_000)
    assert "Selected 2.0" in reader.text("selection")


def test_filter_expression_gives_the_selected_spans(read):
    trace = partition_trace()
    reader = read(trace, permissions=["clipboard-read", "clipboard-write"])
    _select(reader, 2 * MS, 6 * MS, "gemm", "attention")
    start, end = reader.js("[w.selection.start, w.selection.end]")
    frame = _copied_frame(reader, trace)
    lane = np.array([trace.lanes[code].name for code in trace.lane])
    wanted = (trace.end_ns >= np.floor(start)) & (trace.start_ns <= np.ceil(end)) & (lane != "logging")
    assert frame.index.tolist() == np.flatnonzero(wanted).tolist()
    assert 0 < len(frame) < len(trace)


def test_filter_expression_is_exact_and_quotes_hostile_names(read):
    zero_ns = 1_700_000_000_123_456_789
    evil = "a\"b\\c'] | True #\n\u2028\U0001f600" + EVIL_NAME + "x" * 300
    spans = [
        (evil, "x", zero_ns, zero_ns + 10),
        ("other", "y", zero_ns + 11, zero_ns + 30),
        (evil, "z", zero_ns + 40, zero_ns + 50),
    ]
    trace = make_trace(spans)
    reader = read(trace)
    reader.js("w.set('selection', { start: 0, end: 35, lanes: new Set([0]) })")
    expression = reader.js("gpustreamlab.dataFrameFilter(w.tables, w.selection)")
    assert str(zero_ns) in expression
    assert str(zero_ns + 35) in expression
    assert _evaluate(expression, trace).name.tolist() == ["x"]


def test_selection_zooms_and_clears_by_button_and_key(read):
    reader = read(partition_trace())
    _select(reader, 2 * MS, 6 * MS, "gemm", "attention")
    start, end = reader.js("[w.selection.start, w.selection.end]")
    reader.page.locator(".gsl-selection").get_by_role("button", name="Zoom here").click()
    assert reader.window() == pytest.approx([start, end])
    reader.page.locator(".gsl-selection").get_by_role("button", name="Clear").click()
    reader.settle()
    assert reader.text("selection") is None
    reader.press("t")
    assert reader.text("selection")
    reader.press("Escape")
    assert reader.js("w.selection") is None


# ---- ruler


def test_ruler_measures_between_two_clicks(read):
    reader = read(pipeline_trace())
    reader.page.mouse.move(*reader.at(2 * MS, 8))
    reader.press("m")
    assert reader.text("measured") == "Click where it starts"
    reader.page.mouse.click(*reader.at(2 * MS, 8))
    reader.page.mouse.move(*reader.at(3 * MS, 8), steps=3)
    reader.settle()
    assert reader.text("measured").endswith("click where it ends")
    reader.page.mouse.click(*reader.at(4 * MS, 8))
    reader.settle()
    assert reader.js("w.ruler.end - w.ruler.start") == pytest.approx(2 * MS, rel=0.01)
    length, rate = reader.text("measured").split(" · ")
    assert length.endswith(" ms")
    assert float(rate.removesuffix(" Hz")) == pytest.approx(500, rel=0.01)
    assert reader.pinned() is None
    reader.press("Escape")
    assert reader.js("w.ruler") is None
    assert reader.text("measured") in (None, "")


def test_ruler_snaps_to_edges_of_spans(read):
    reader = read(pipeline_trace())
    reader.page.get_by_role("button", name="Measure between two clicks").click()
    for share in (0.02, 0.98):
        reader.page.mouse.click(*reader.place(*reader.find("filter", 1), share))
    reader.settle()
    assert reader.js("[w.ruler.start, w.ruler.end]") == [1_900_000, 2_500_000]
    assert reader.text("measured") == "600 µs · 1.67 kHz"


def test_ruler_measures_the_pinned_span_by_keys_alone(read):
    reader = read(pipeline_trace())
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    reader.press("ArrowRight", "r", "Enter")
    start, end = reader.js("[s.row(w.pinned.row).start[w.pinned.index], s.row(w.pinned.row).end[w.pinned.index]]")
    assert reader.js("[w.ruler.start, w.ruler.end]") == [start, end]


# ---- legend


def test_legend_orders_names_by_time_and_toggles_them(read):
    trace = partition_trace()
    reader = read(trace)
    chips = reader.page.locator(".gsl-chip")
    assert chips.all_inner_texts()[:4] == ["gemm\n48%", "attention\n39%", "copy kv\n7%", "checksum\n6%"]
    chips.nth(1).click()
    reader.settle()
    assert reader.drawn_count() == len(trace) - 20
    assert chips.nth(1).get_attribute("aria-pressed") == "false"
    assert "line-through" in reader.page.evaluate(
        "getComputedStyle(document.querySelectorAll('.gsl-chip')[1].querySelector('.gsl-text')).textDecoration"
    )
    assert chips.all_inner_texts()[1] == "attention\n39%"
    assert reader.page.evaluate("document.activeElement.dataset.entry") == chips.nth(1).get_attribute("data-entry")
    chips.nth(1).click()
    reader.settle()
    assert reader.drawn_count() == len(trace)


def test_alt_click_shows_only_this_and_again_all(read):
    trace = partition_trace()
    reader = read(trace)
    chips = reader.page.locator(".gsl-chip")
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


def test_kinds_and_partitions_toggle_too(read):
    reader = read(nested_trace())
    chip = lambda text: reader.page.locator(".gsl-chip", has_text=text).filter(has_not=reader.page.locator("small"))
    chip("kernel").click()
    reader.settle()
    assert reader.drawn_count() == 9
    parts = read(partition_trace())
    parts.page.locator(".gsl-chip", has_text="decode").click()
    parts.settle()
    assert parts.drawn_count() == 11


def test_hiding_a_name_keeps_the_pin_on_its_span_or_drops_it(read):
    reader = read(pipeline_trace())
    reader.click("statistics", 3)
    before = reader.pinned()
    reader.page.locator(".gsl-legend .gsl-chip", has_text="filter").click()
    reader.settle()
    assert reader.pinned() == before
    assert "statistics" in reader.text("details")
    reader.page.locator(".gsl-legend .gsl-chip", has_text="statistics").click()
    reader.settle()
    assert reader.pinned() is None
    assert reader.text("details") is None


@pytest.mark.parametrize("width", [1200, 700])
def test_legend_of_many_names_has_two_lines_and_opens_the_rest(read, width):
    reader = read(random_trace(4_000, 4, name_count=60), width=width)
    shown = reader.page.locator(".gsl-legend .gsl-chip:visible").count()
    assert 3 <= shown <= 14
    more = reader.page.locator(".gsl-more")
    assert more.inner_text() == f"+ {60 - shown} more"
    assert reader.page.locator(".gsl-legend").bounding_box()["height"] < 56
    more.click()
    sheet = reader.page.locator(".gsl-all")
    assert sheet.locator(".gsl-chip").count() == 60
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


def _go_live(reader):
    """Put a live viewer in the place of the page's, with the same spans; `feed(n)` appends n spans of 1 us."""
    reader.page.evaluate(
        """async () => { const {Viewer, SpanStore, SpanBatch} = gpustreamlab, old = gslViewer, {tables} = old.view
        const place = old.element.parentElement, item = old.item, store = new SpanStore({})
        old.destroy()
        store.setRows(tables.rows)
        window.gslViewer = new Viewer({element: place, Bokeh, item, tables, store, live: true})
        let at = 0
        window.feed = n => {
          const start = Float64Array.from({length: n}, (_, i) => at + i * 2000), end = start.map(t => t + 1000), zeros = new Uint8Array(n)
          at += n * 2000
          store.append(new SpanBatch([[0, 0, n]], {start, end, name: zeros, kind: zeros, partition: zeros, thread: new Int32Array(n), queueing: new Float64Array(n), place: start.map((_, i) => at + i)}))
          gslViewer.view.appended()
        }
        await gslViewer.start()
        feed(1000) }"""
    )
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


def test_follow_keeps_the_zoom_that_has_now_in_view(read):
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


def test_follow_shows_the_last_seconds_of_a_long_session(read):
    reader = read(make_trace([("a", "x", 0, 1_000)]))
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
    reader.js(
        """(() => { const one = gpustreamlab.SpanBatch, zeros = new Uint8Array(1)
        s.append(new one([[0, 0, 1]], {start: Float64Array.of(1500), end: Float64Array.of(1700), name: zeros, kind: zeros, partition: zeros,
        thread: new Int32Array(1), queueing: new Float64Array(1), place: Float64Array.of(5)})); w.appended() })()"""
    )
    reader.settle()
    assert reader.js("w.pinned.index") == 701
    assert reader.pinned()[1] == start


def test_static_page_has_no_live_buttons(read):
    reader = read(pipeline_trace())
    assert reader.page.locator(".gsl-follow").count() == 0
    reader.page.evaluate("document.querySelector('.gsl-viewer').focus()")
    reader.press("Space")
    assert reader.js("w.isPaused") is False


# ---- all of it


def test_hostile_names_are_text_in_every_control(read):
    reader = read(evil_trace())
    reader.hover(EVIL_NAME)
    assert EVIL_NAME in reader.tip()
    reader.click(EVIL_NAME)
    reader.press("t")
    reader.search("img src")
    assert reader.text("found") == "1 of 2"
    for part in ("details", "selection", "legend"):
        assert EVIL_NAME in reader.text(part)
    assert reader.page.locator("img[src='x']").count() == 0
    assert reader.dialogs == []


@pytest.mark.parametrize("width", [1200, 700])
def test_nothing_is_wider_than_the_page(read, width):
    reader = read(evil_trace("W" * 2_000), width=width)
    reader.page.mouse.click(*reader.place(0, 0))
    reader.settle()
    reader.press("t")
    assert reader.text("details")
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(read, scheme):
    reader = read(nested_trace(), color_scheme=scheme)
    reader.page.locator(".gsl-chip").nth(8).click()
    reader.click("softmax")
    reader.press("t")
    reader.hover("step")
    low = reader.page.evaluate(CONTRASTS)
    assert [entry for entry in low if entry["ratio"] < 4.5] == []
    assert len(low) > 40


def test_forced_colours_and_reduced_motion_draw_without_a_word(read):
    reader = read(partition_trace(), forced_colors="active", reduced_motion="reduce")
    reader.click("gemm")
    reader.press("t", "?")
    assert reader.text("help")
    assert reader.page.evaluate("document.getAnimations().length") == 0


def test_focus_walks_through_all_controls_and_shows_itself(read):
    reader = read(partition_trace())
    seen = []
    for _ in range(16):
        reader.page.keyboard.press("Tab")
        name, outline = reader.page.evaluate(
            """() => { const e = document.activeElement, shown = e.matches(".gsl-viewer") ? e.querySelector(".gsl-figure") : e
            return [e.getAttribute("aria-label") || e.textContent, getComputedStyle(shown).outlineStyle] }"""
        )
        seen.append(name)
        assert outline == "solid" or name not in ("Search spans", "Keys and mouse")
    for wanted in ("Search spans", "Measure between two clicks", "Keys and mouse", "gemm, 48% of all names' time"):
        assert wanted in seen


def test_destroying_the_viewer_takes_its_listeners_and_nodes(read):
    reader = read(pipeline_trace())
    reader.hover("filter")
    reader.page.evaluate("gslViewer.destroy()")
    assert reader.page.locator(".gsl-viewer, .gsl-tip, .gsl-sheet").count() == 0
    before = reader.window()
    reader.press("w", "?", "/")
    assert reader.window() == before


def test_controls_declare_nothing_twice():
    from collections import Counter

    from gpustreamlab.draw._viewer import _DECLARED, viewer_script

    names = Counter(_DECLARED.findall(viewer_script()))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 100


def _select(reader, start_ns, end_ns, upper, lower):
    """Drag with Shift from one time in a name's row to another time in another's."""
    y0, y1 = (reader.place(*reader.find(name))[1] for name in (upper, lower))
    reader.drag((reader.at(start_ns)[0], y0), (reader.at(end_ns)[0], y1), shift=True)


def _tables(reader):
    return reader.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".gsl-selection table")].map(table => [table.caption.textContent,
        [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))]))"""
    )


def _copied_frame(reader, trace):
    reader.page.get_by_role("button", name="Copy a pandas expression").click()
    reader.page.wait_for_function("document.querySelector('.gsl-selection header').textContent.includes('Copied')")
    return _evaluate(reader.page.evaluate("navigator.clipboard.readText()"), trace)


def _evaluate(expression, trace):
    class Lab:
        pass

    lab = Lab()
    lab.trace = trace
    return eval(expression, {"lab": lab})


def _colour(reader, name):
    """Return the painted colour near the right end of a span, where no text is."""
    x, y = reader.place(*reader.find(name), 0.9)
    shot = reader.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
    return tuple(
        reader.page.evaluate(
            """async bytes => { const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)])), canvas = new OffscreenCanvas(1, 1)
            const ctx = canvas.getContext("2d"); ctx.drawImage(image, 0, 0); return [...ctx.getImageData(0, 0, 1, 1).data].slice(0, 3) }""",
            list(shot),
        )
    )


def _luminance(colour):
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


CONTRASTS = """() => {
  const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a] }
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1)
  const ground = e => { const layers = []; for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor))
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]) }
  const light = c => { const [r, g, b] = c.map(v => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  return [...document.querySelectorAll(".gsl-viewer *")].filter(e => e.checkVisibility() && !e.matches(".gsl-swatch, .gsl-out, .gsl-figure *")
    && ([...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.matches("input"))).map(e => {
      const under = ground(e), ink = over(parse(getComputedStyle(e).color), under), [a, b] = [light(ink), light(under)].sort((p, q) => q - p)
      return { text: e.textContent.slice(0, 30), ratio: (a + 0.05) / (b + 0.05) } })
}"""
