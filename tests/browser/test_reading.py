"""Reading a timeline: tips, details, search, contrast, hostile names; with a real mouse and real keys."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.planted import needed_and_needless_waits
from tests.helpers.reader import open_readers
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


@pytest.fixture(scope="module")
def nested_page(windows, tmp_path_factory):
    """Return a reader of one page, for tests that only search it."""
    with open_readers(windows, tmp_path_factory.mktemp("searched")) as function:
        yield function(nested_trace())


@pytest.fixture
def searched(nested_page):
    """Return the reader of a page in which nothing is searched."""
    nested_page.search("")
    assert nested_page.js("w.matches") is None
    assert nested_page.text("found") in (None, "")
    yield nested_page
    assert nested_page.errors == []


# ---- tips


def test_tip_shows_every_fact_of_a_span_and_goes_when_the_pointer_leaves_or_drags(read):
    reader = read(pipeline_trace())
    reader.hover("filter", 1)
    lines = reader.tip().split("\n")
    facts = dict(zip(lines[1::2], lines[2::2], strict=True))
    assert lines[0] == "filter"
    assert facts == {
        "stream": "compute", "partition": "prefill · 96 SMs (asked for 90)", "kind": "range", "start": "1.90 ms (1,900,000 ns)",
        "duration": "600 µs (600,000 ns)", "queueing": "930 µs (930,000 ns)", "thread": "MainThread",
        "waited for": "copy in on upload · ended as this started",
    }  # fmt: skip
    reader.hover("filter")
    assert reader.tip()
    reader.page.mouse.down()
    reader.page.mouse.move(*reader.place(*reader.find("filter")), steps=2)
    reader.settle()
    assert reader.tip() is None
    reader.page.mouse.up()
    reader.hover("filter", 2)
    assert reader.tip()
    reader.page.mouse.move(5, 5, steps=3)
    reader.page.locator(".gsl-tip").wait_for(state="hidden")
    assert reader.js("w.hovered") is None


@pytest.mark.parametrize("size", [(1200, 900), (700, 420)], ids=str)
def test_tip_stays_in_the_window_and_off_the_span(read, size):
    reader = read(nested_trace(), width=size[0], height=size[1])
    for name in ("step", "gemm", "worker A", "wait for step"):
        for share in (0.02, 0.98):
            x, y = reader.place(*reader.find(name), share)
            if y > size[1]:
                continue
            reader.page.mouse.move(x, y)
            reader.settle()
            box = reader.page.locator(".gsl-tip").bounding_box()
            left, top, right, bottom = box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]
            assert left >= 0
            assert right <= size[0]
            assert top >= 0
            assert bottom <= size[1]
            assert not (left <= x <= right and top <= y <= bottom)


def test_tip_of_merged_spans_counts_them_and_their_names(read):
    trace = random_trace(60_000, 4)
    reader = read(trace)
    # The middle of one of the merged bars that are painted.
    items = reader.js("({ row: [...w.painted.items.row], first: [...w.painted.items.first], last: [...w.painted.items.last] })")
    number = next(n for n in range(300, 2_000) if items["last"][n] - items["first"][n] > 1)
    row, first, last = (items[key][number] for key in ("row", "first", "last"))
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
    busy_ns = reader.js("s.row(argument.row).busySum(argument.first, argument.last)", hit)
    assert f"{int(busy_ns):,} ns" in text
    assert "zoom in" in text


# ---- details


def test_click_pins_esc_and_a_click_beside_unpin_and_a_drag_only_pans(read):
    reader = read(nested_trace())
    reader.click("softmax")
    text = reader.text("details")
    for fact in ("softmax", "main", "kernel", "3.00 ms (3,000,000 ns)", "2.00 ms (2,000,000 ns)", "row 3, start_ns 3000000"):
        assert fact in text
    assert reader.pinned() == ["softmax", 3_000_000]
    reader.press("Escape")
    assert reader.text("details") is None
    assert reader.pinned() is None
    reader = read(pipeline_trace())
    reader.click("filter")
    assert reader.pinned()
    reader.page.mouse.click(*reader.at(-50_000, 10))
    reader.settle()
    assert reader.pinned() is None
    reader = read(pipeline_trace())
    before = reader.window()
    x, y = reader.place(*reader.find("filter", 3))
    reader.drag((x, y), (x - 150, y))
    assert reader.window()[0] > before[0]
    assert reader.pinned() is None


def test_click_on_merged_spans_tells_of_them_and_zooms_until_they_come_apart(read):
    reader = read(random_trace(60_000, 4))
    row = reader.js("w.laneRows[w.laneOrder[0]][0]")
    _, top, _, bottom = reader.span_box(row, 0)
    reader.page.mouse.click(reader.at(reader.window()[1] / 2)[0], (top + bottom) / 2)
    reader.settle()
    hit = reader.js("w.pinned")
    assert reader.text("details").startswith(f"{hit['count']:,} spans")
    reader.page.locator(".gsl-details").get_by_role("button", name="Zoom here").click()
    reader.settle()
    shown = reader.js(
        "[...w.painted.items.row].filter((row, i) => row === argument && w.painted.items.count[i] === 1).length", hit["row"]
    )
    assert shown >= hit["count"]
    reader.press("ArrowRight")
    assert reader.js("w.pinned.index") == hit["last"] + 1


def test_details_name_what_encloses_the_span_and_go_there(read):
    reader = read(nested_trace())
    reader.click("gemm")
    enclosing = reader.page.locator(".gsl-inside button")
    assert enclosing.all_inner_texts() == ["step · 10.0 ms", "forward · 6.00 ms"]
    enclosing.nth(1).click()
    reader.settle()
    assert reader.pinned() == ["forward", 0]
    assert reader.page.locator(".gsl-inside button").all_inner_texts() == ["step · 10.0 ms"]


def test_details_are_copied_as_text_or_offered_selected(read):
    reader = read(nested_trace(), permissions=["clipboard-read", "clipboard-write"])
    reader.click("softmax")
    reader.page.get_by_role("button", name="Copy these details").click()
    reader.page.wait_for_function("document.querySelector('.gsl-details button:nth-of-type(2)').textContent === 'Copied'")
    copied = reader.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("name\tsoftmax\nstream\tmain\n")
    assert "duration\t2.00 ms (2,000,000 ns)" in copied
    reader = read(nested_trace(), own=True)
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


def test_details_tell_of_waits_in_the_order_of_their_gaps_and_what_is_hidden(read):
    reader = read(pipeline_trace())
    reader.click("filter", 2)
    waits = reader.page.locator(".gsl-waits")
    assert waits.locator("h4, li").all_inner_texts() == ["Waited for", "copy in on upload · ended as this started"]
    waits.get_by_role("button").click()
    reader.settle()
    assert reader.pinned() == ["copy in", 2 * MS]
    assert waits.locator("h4, li").all_inner_texts() == ["Waited by", "filter on compute · started as this ended"]
    reader.click("copy out", 2)
    assert waits.locator("li").all_inner_texts() == ["statistics on compute · ended 20.0 µs before this started"]
    waits.get_by_role("button").click()
    reader.settle()
    assert reader.pinned() == ["statistics", 3_500_000]
    spans = [("a", "early", 0, 100), ("b", "late", 50, 400), ("c", "join", 430, 500), ("c", "alone", 600, 700)]
    reader = read(make_trace(spans, edges=[(0, 2), (1, 2)]))
    reader.click("join")
    waits = reader.page.locator(".gsl-waits li")
    assert waits.all_inner_texts() == [
        "late on b · ended 30 ns before this started",
        "early on a · ended 330 ns before this started",
    ]
    reader.click_chip("late")
    reader.settle()
    assert waits.all_inner_texts()[0] == "a span that is not shown on b · ended 30 ns before this started"
    assert reader.page.locator(".gsl-waits").get_by_role("button").count() == 1
    reader.click("alone")
    assert waits.count() == 0


def test_waits_say_whether_data_need_them_in_the_tip_and_in_the_drawer(read):
    reader = read(needed_and_needless_waits(1 << 20))
    reader.hover("use")
    assert "data need this wait" in reader.tip()
    reader.hover("multiply")
    assert "data need this wait (buffer" in reader.tip()
    reader.click("other")
    assert reader.page.locator(".gsl-waits li").first.inner_text().endswith("no data need this wait")


# ---- search


def test_search_counts_dims_and_goes_on_in_time(read):
    reader = read(partition_trace())
    reader.press("Tab")
    reader.page.mouse.move(*reader.at(0, 4))
    reader.press("/")
    reader.page.keyboard.type("ATT")
    reader.page.wait_for_function("document.querySelector('.gsl-found').textContent === '20 found'")
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
def test_search_fields_find_exactly(searched, text, names):
    reader = searched
    reader.search(text)
    found = reader.js(
        """w.tables.rows.flatMap((_, row) => [...Array(s.row(row).length).keys()].filter(i => s.matchCount(row, i, i))
        .map(i => w.tables.names[s.row(row).name[i]]))"""
    )
    assert set(found) == names
    count = len(found)
    assert reader.text("found") == (f"{count} found" if count else "none found")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("foo:bar", "no field foo: name, stream, kind, partition, thread, is:stray", id="field"),
        pytest.param("kind:kernel foo:", "no field foo: name, stream, kind, partition, thread, is:stray", id="field-beside"),
        pytest.param(">abc", ">abc is not a duration: >1ms, <5us", id="duration"),
        pytest.param(">1", ">1 is not a duration: >1ms, <5us", id="no-unit"),
        pytest.param("kind:", "", id="empty-value"),
        pytest.param('stream:""', "", id="empty-quotes"),
        pytest.param(">", "", id="empty-duration"),
        pytest.param("  ", "", id="spaces"),
    ],
)
def test_search_that_means_nothing_dims_nothing_and_says_why(searched, text, says):
    reader = searched
    reader.search(text)
    assert (reader.text("found") or reader.text("problem") or "") == says
    assert reader.js("w.matches") is None
    reader.search("kind:kernel")
    assert reader.text("found") == "3 found"


def test_search_dims_in_the_picture(read):
    reader = read(make_trace([("a", "alpha", 0, 100), ("a", "beta", 100, 200)]))
    before = [_colour(reader, "alpha"), _colour(reader, "beta")]
    reader.search("alpha")
    after = [_colour(reader, "alpha"), _colour(reader, "beta")]
    assert after[0] == before[0]
    assert _luminance(after[1]) > _luminance(before[1])
    reader.search("<50ns")
    assert _luminance(_colour(reader, "alpha")) > _luminance(before[0])


def test_search_in_many_spans_counts_them_all_and_names_that_look_like_fields_are_found(read):
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
    reader = read(make_trace([("a", "at::mm", 0, 100), ("a", "step:1", 100, 200), ("a", "<lambda>", 200, 300)]))
    for text in ("at::mm", "step:1", "<lambda>"):
        reader.search(text)
        assert reader.text("found") == "1 found"


# ---- all of it


def test_hostile_names_are_text_in_every_control(read):
    reader = read(evil_trace())
    reader.hover(EVIL_NAME)
    assert EVIL_NAME in reader.tip()
    reader.click(EVIL_NAME)
    reader.search("img src")
    assert reader.text("found") == "1 of 2"
    reader.js("document.querySelector('.gsl-more').click()")
    for part in ("details", "all"):
        assert EVIL_NAME in reader.text(part)
    assert reader.page.locator("img[src='x']").count() == 0
    assert reader.dialogs == []


def test_forced_colours_are_drawn_and_a_destroyed_viewer_takes_its_listeners_and_nodes(read):
    reader = read(partition_trace(), forced_colors="active", reduced_motion="reduce")
    reader.click("gemm")
    reader.press("?")
    assert reader.text("help")
    assert reader.page.evaluate("document.getAnimations().length") == 0
    # The system's grey may be as strong as its ink: the grid strikes out no text.
    grids = "v.plotView.model.center.filter(part => /Grid$/.test(part.type)).map(part => part.grid_line_alpha)"
    assert set(reader.js(grids)) == {0.25}
    reader = read(pipeline_trace())
    assert set(reader.js(grids)) == {0.7}
    reader.hover("filter")
    reader.page.evaluate("gslViewer.destroy()")
    assert reader.page.locator(".gsl-viewer, .gsl-tip, .gsl-sheet").count() == 0
    before = reader.window()
    reader.press("w", "?", "/")
    assert reader.window() == before


def test_focus_walks_through_all_controls_and_shows_itself(read):
    reader = read(partition_trace())
    seen = []
    reader.page.keyboard.press("Tab")
    while not reader.page.evaluate("document.activeElement === document.body"):
        name, ring = reader.page.evaluate(
            """() => { const e = document.activeElement, isRoot = e.matches(".gsl-viewer")
            const ring = isRoot ? getComputedStyle(e.querySelector(".gsl-figure"), "::after").borderTopStyle
              : getComputedStyle(e).outlineStyle
            return [e.ariaLabel || e.textContent, ring] }"""
        )
        seen.append(name)
        assert ring == "solid", name
        assert len(seen) < 60
        reader.page.keyboard.press("Tab")
    shown = reader.page.evaluate(
        """[...document.querySelectorAll("button, input, textarea, [tabindex='0']")]
        .filter(e => e.checkVisibility({ visibilityProperty: true }) && !e.disabled).map(e => e.ariaLabel || e.textContent)"""
    )
    assert set(shown) <= set(seen)
    assert {"Search spans", "Keys and mouse", "prefill · 96 SMs"} <= set(seen)


def test_the_focus_ring_is_seen_all_around_the_picture_also_over_the_bands_of_partitions(read):
    reader = read(partition_trace())
    while not reader.page.evaluate("document.activeElement.matches('.gsl-viewer')"):
        reader.page.keyboard.press("Tab")
    left, top, _, height = reader.box("figure")
    ring = reader.page.evaluate("getComputedStyle(document.querySelector('.gsl-figure'), '::after').borderLeftColor")
    image = reader.page.screenshot(clip={"x": left, "y": top, "width": 1, "height": height})
    colours = reader.page.evaluate(PIXELS, list(image))
    assert {f"rgb({', '.join(map(str, colour))})" for colour in colours} == {ring}


def _colour(reader, name):
    """Return the painted colour near the right end of a span, where no text is."""
    x, y = reader.place(*reader.find(name), 0.9)
    return reader.page.evaluate(PIXELS, list(reader.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})))[0]


def _luminance(colour):
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


PIXELS = """async bytes => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)]))
  const ctx = new OffscreenCanvas(image.width, image.height).getContext("2d")
  ctx.drawImage(image, 0, 0)
  const { data } = ctx.getImageData(0, 0, image.width, image.height)
  return [...Array(data.length / 4).keys()].map(n => [...data.slice(4 * n, 4 * n + 3)])
}"""
