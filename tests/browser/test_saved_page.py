"""The saved page in a real browser."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import utilisation
from gpustreamlab.timeline import Timeline
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

pytestmark = pytest.mark.browser


@pytest.fixture
def save(tmp_path):
    return lambda trace, name="run.html": Timeline(trace).save(tmp_path / name)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(empty_trace(), id="empty"),
        pytest.param(pipeline_trace(), id="pipeline"),
        pytest.param(nested_trace(), id="nested"),
        pytest.param(random_trace(2_000, 100), id="100-lanes"),
        pytest.param(random_trace(20_000), id="20k-spans"),
        pytest.param(partition_trace(), id="partitions"),
        pytest.param(repartition_trace(), id="repartition"),
        pytest.param(many_partitions_trace(), id="8-partitions"),
        pytest.param(many_partitions_trace(16, 8, 20_000), id="20k-in-partitions"),
    ],
)
def test_page_opens_offline_without_a_request_or_an_error(save, open_page, trace):
    path = save(trace)
    opened = open_page(path)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]


def test_bars_of_the_page_are_the_spans_of_the_trace(save, open_page):
    opened = open_page(save(pipeline_trace()))
    assert opened.model("bars", "m.data.left.length") == 24
    assert opened.model("bars", "Math.min(...m.data.left)") == 0
    assert {"copy in", "copy out", "filter"} <= set(opened.model("labels", "m.data.text"))


def test_hostile_names_are_text_everywhere(save, open_page):
    opened = open_page(save(evil_trace()))
    left, top, width, height = opened.frame_box()
    for share in (0.1, 0.6, 0.9):
        opened.page.mouse.move(left + share * width, top + height * 0.25)
        opened.page.wait_for_timeout(150)
    body = opened.page.inner_text("body")
    assert EVIL_NAME in opened.page.inner_text("h1")
    assert EVIL_NAME in body
    assert opened.page.title().startswith(EVIL_NAME)
    assert opened.page.locator("img[src='x']").count() == 0
    assert opened.dialogs == []
    assert opened.errors == []
    assert all(url.startswith(("file:", "data:")) for url in opened.requests)


def test_hover_shows_every_field_and_a_hostile_name_as_text(save, open_page):
    opened = open_page(save(evil_trace()))
    left, top, width, height = opened.frame_box()
    opened.page.mouse.move(left + 0.2 * width, top + height * 0.25)
    text = _tooltip(opened)
    for field in ("name", "stream", "partition", "kind", "start", "duration", "queueing", "thread"):
        assert field in text
    assert text.count(EVIL_NAME) == 3  # name, stream, thread
    assert "4.00 ms (4,000,000 ns)" in text
    assert opened.page.locator("img[src='x']").count() == 0
    assert opened.dialogs == []


def test_hover_over_merged_bars_says_how_many_spans_they_hold(save, open_page):
    opened = open_page(save(random_trace(20_000)))
    place = opened.model("merges", "[m.data.left[5], m.data.right[5], m.data.top[5], m.data.bottom[5], m.data.count[5]]")
    start, end = opened.model("lanes", "[m.x_range.start, m.x_range.end]")
    left, top, width, _ = opened.frame_box()
    opened.page.mouse.move(left + ((place[0] + place[1]) / 2 - start) / (end - start) * width, top + (place[2] + place[3]) / 2)
    assert f"{place[4]} that are too narrow" in _tooltip(opened)


def test_nothing_is_lost_when_narrow_spans_are_merged(save, open_page):
    opened = open_page(save(random_trace(20_000)))
    drawn = opened.model("bars", "m.data.left.length") + opened.model("merges", "m.data.count.reduce((a, b) => a + b, 0)")
    assert drawn == 20_000


def test_wheel_zoom_changes_the_unit_of_the_axis_and_reset_restores_it(save, open_page):
    opened = open_page(save(pipeline_trace()))
    before_ns = opened.window_ns()
    assert _tick(opened).endswith(" ms")
    left, top, width, height = opened.frame_box()
    opened.page.mouse.move(left + width / 2, top + height / 2)
    for _ in range(100):
        if opened.window_ns() < 900_000:
            break
        opened.page.mouse.wheel(0, -100)
        opened.settle()
    assert 10_000 < opened.window_ns() < 900_000
    assert _tick(opened).endswith(" µs")
    opened.page.locator(".bk-ToolbarButton.bk-tool-icon-reset, .bk-tool-icon-reset").first.click()
    opened.settle()
    assert opened.window_ns() == before_ns
    assert _tick(opened).endswith(" ms")


def test_dragging_pans_the_lanes_and_the_strip_together(save, open_page):
    opened = open_page(save(pipeline_trace()))
    left, top, width, height = opened.frame_box()
    before_ns = opened.model("lanes", "m.x_range.start")
    opened.page.mouse.move(left + width * 0.7, top + height / 2)
    opened.page.mouse.down()
    opened.page.mouse.move(left + width * 0.6, top + height / 2, steps=5)
    opened.page.mouse.up()
    opened.settle()
    assert opened.model("lanes", "m.x_range.start") > before_ns
    assert opened.model("busy", "m.x_range.start") == opened.model("lanes", "m.x_range.start")


def test_strip_shows_how_many_streams_are_busy(save, open_page):
    spans = [("a", "x", 0, 100), ("b", "y", 50, 150)]
    opened = open_page(save(make_trace(spans)))
    assert opened.model("strip", "[m.data.time, m.data.count]") == [[0, 50, 100, 150], [1, 2, 1, 0]]


def test_dark_scheme_changes_background_and_text(save, open_page):
    path = save(pipeline_trace())
    light, dark = open_page(path), open_page(path, scheme="dark")
    assert _background(light) == "rgb(255, 255, 255)"
    assert _background(dark) == "rgb(20, 23, 26)"
    dark.page.emulate_media(color_scheme="light")
    dark.settle()
    assert _background(dark) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1200, 700])
def test_page_fits_its_width(save, open_page, width):
    opened = open_page(save(nested_trace()), width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.frame_box()[2] > width / 2


@pytest.mark.parametrize(
    "trace", [pytest.param(pipeline_trace(), id="pipeline"), pytest.param(random_trace(500, 100), id="100-lanes")]
)
def test_reset_button_stays_in_view_when_the_window_changes(save, open_page, trace):
    opened = open_page(save(trace), height=900)
    for width in (700, 1000, 820):
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.settle()
        box = opened.page.locator(".bk-tool-icon-reset").first.bounding_box()
        assert box["x"] + box["width"] < width - 20


@pytest.mark.parametrize(
    "name",
    ["i", "WWWWWWWWWWWWWWWWWWWWWWWW", "漢字漢字漢字漢字漢字漢字漢字漢字", "🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂"],
    ids=["narrow", "wide", "han", "emoji"],
)
def test_lanes_and_strip_are_aligned_whatever_the_labels(save, open_page, name):
    opened = open_page(save(make_trace([(name, "x", 0, 100)])))
    assert opened.model("lanes", "m.inner_width") == opened.model("busy", "m.inner_width")


def test_hundred_lanes_scroll_and_keep_the_time_axis_in_view(save, open_page):
    opened = open_page(save(random_trace(2_000, 100)), height=900)
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 900
    assert opened.model("lanes", "m.height") > 3_000
    assert opened.model("lanes", "m.inner_width") == opened.model("busy", "m.inner_width")


def test_wheel_over_the_names_scrolls_the_lanes_and_zooms_nothing(save, open_page):
    opened = open_page(save(random_trace(500, 100)), height=900)
    left, top, *_ = opened.frame_box()
    before_ns = opened.window_ns()
    opened.page.mouse.move(left - 40, top + 200)
    opened.page.mouse.wheel(0, 300)
    opened.page.wait_for_timeout(300)
    assert opened.frame_box()[1] < top - 100
    assert opened.window_ns() == before_ns


def test_empty_page_says_what_to_do(save, open_page):
    opened = open_page(save(empty_trace()))
    assert opened.model("empty", "m.data_source.data.text[0]") == "No spans yet: select a stream with lab.on(...)"


def test_page_without_javascript_shows_the_picture(save, open_page):
    opened = open_page(save(pipeline_trace()), javascript=False)
    assert opened.page.locator("img.gsl-picture").bounding_box()["height"] > 200


def test_partitions_have_bands_left_of_their_lanes(save, open_page):
    opened = open_page(save(partition_trace()))
    left, top, _, height = opened.frame_box()
    bands = _boxes(opened, "group band")
    assert [band["text"] for band in bands] == ["A", "B", ""]
    assert all(band["right"] < left and band["width"] > 20 and band["isShown"] for band in bands)
    assert bands[0]["top"] == pytest.approx(top, abs=2)
    assert bands[-1]["bottom"] == pytest.approx(top + height, abs=3)
    heads = _boxes(opened, "group label")
    assert heads[0]["text"].startswith("prefill · 96 SMs")
    assert all(head["left"] == pytest.approx(band["left"], abs=1) for head, band in zip(heads, bands, strict=True))


def test_bands_stay_where_they_are_while_the_lanes_are_zoomed(save, open_page):
    opened = open_page(save(partition_trace()))
    before = _boxes(opened, "group band")
    left, top, width, height = opened.frame_box()
    opened.page.mouse.move(left + width / 2, top + height / 2)
    opened.page.mouse.wheel(0, -300)
    opened.settle()
    assert _boxes(opened, "group band") == before


def test_hover_shows_the_partition_as_it_was_when_the_span_ran(save, open_page):
    opened = open_page(save(repartition_trace()))
    left, top, width, _ = opened.frame_box()
    start, end, y = opened.model("lanes", "[m.x_range.start, m.x_range.end, m.y_range.start]")
    row = opened.model("bars", "(m.data.top[0] + m.data.bottom[0]) / 2")
    shown = []
    for time_ns in (400_000, 3_400_000, 8_400_000):
        opened.page.mouse.move(left + (time_ns - start) / (end - start) * width, top + row)
        opened.page.wait_for_timeout(200)
        shown.append(_tooltip(opened))
    for text, partition in zip(
        shown, ("whole card · 132 SMs", "prefill · 96 SMs (asked for 90)", "prefill · 64 SMs"), strict=True
    ):
        assert partition in text
    assert y > 0


def test_strip_of_sms_stacks_the_partitions_in_view(save, open_page):
    spans = [("a", "x", 0, 100, {"partition": 0}), ("b", "y", 50, 150, {"partition": 1})]
    trace = partition_trace()
    opened = open_page(save(make_trace(spans, partitions=trace.partitions, layout=trace.layout)))
    assert opened.model("stack 0", "[m.data.time, m.data.low, m.data.high]") == [
        [0, 50, 100, 150], [0, 0, 0, 0], [96, 96, 0, 0],
    ]  # fmt: skip
    assert opened.model("stack 1", "[m.data.low, m.data.high]") == [[96, 96, 0, 0], [96, 132, 36, 0]]


def test_strip_of_many_steps_keeps_the_mean_and_never_exceeds_the_card(save, open_page):
    opened = open_page(save(many_partitions_trace(16, 8, 20_000)))
    assert opened.model("stack 7", "Math.max(...m.data.high)") <= 132
    drawn = opened.model("stack 0", "m.data.high.reduce((a, b) => a + b, 0) / m.data.high.length")
    start, end = opened.model("lanes", "[m.x_range.start, m.x_range.end]")
    trace = many_partitions_trace(16, 8, 20_000)
    busy_ns = float(utilisation(trace).busy_ns[0])
    assert drawn == pytest.approx(16 * busy_ns / (end - start), rel=0.01)


def test_lanes_and_strips_are_aligned_in_partitions(save, open_page):
    for trace in (partition_trace(), many_partitions_trace()):
        opened = open_page(save(trace))
        widths = {opened.model(name, "m.inner_width") for name in ("lanes", "sms", "busy")}
        assert len(widths) == 1


def test_changes_of_the_layout_have_labels(save, open_page):
    opened = open_page(save(repartition_trace()))
    assert opened.model("mark labels", "m.data.text") == ["prefill 96 SMs, decode 36 SMs", "prefill 96→64, decode 36→68"]


@pytest.mark.parametrize("width", [1200, 700])
def test_page_of_partitions_fits_its_width(save, open_page, width):
    for trace in (partition_trace(), many_partitions_trace()):
        opened = open_page(save(trace), width=width)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.frame_box()[2] > width / 2


def test_hundred_lanes_in_partitions_scroll_with_their_bands(save, open_page):
    opened = open_page(save(many_partitions_trace()), height=900)
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 900
    left, top, *_ = opened.frame_box()
    before = _boxes(opened, "group band")[0]["top"]
    opened.page.mouse.move(left - 40, top + 200)
    opened.page.mouse.wheel(0, 300)
    opened.page.wait_for_timeout(300)
    assert _boxes(opened, "group band")[0]["top"] < before - 100
    assert opened.page.locator("img[src='x']").count() == 0
    assert opened.dialogs == []


def test_labels_of_partitions_follow_the_scheme(save, open_page):
    opened = open_page(save(partition_trace()), scheme="dark")
    assert {box["colour"] for box in _boxes(opened, "group label")} == {"rgb(230, 233, 236)"}
    opened.page.emulate_media(color_scheme="light")
    opened.settle()
    assert {box["colour"] for box in _boxes(opened, "group label")} == {"rgb(27, 31, 36)"}


def _boxes(opened, name):
    """Return the boxes of HTML labels of that name, from the top: their text, place and colour, and whether one sees them."""
    return opened.page.evaluate(
        """name => {
        const all = v => [v, ...(v.child_views || []).flatMap(all), ...(v.renderer_views ? [...v.renderer_views.values()] : [])]
        const own = [...new Set([...Bokeh.index.roots].flatMap(all))].filter(v => v.model.name === name)
        const clipped = e => { for (e = e.parentNode; e; e = e.parentNode || e.host)
            if (e.nodeType === 1 && e.className.includes('Frame') && getComputedStyle(e).overflow !== 'visible') return true
            return false }
        const text = v => [...v.el.shadowRoot.childNodes].filter(c => c.nodeType === 3).map(c => c.data).join('')
        return own.map(v => { const r = v.el.getBoundingClientRect()
            return {text: text(v), left: r.left, right: r.right, top: r.top, bottom: r.bottom,
                    width: r.width, colour: getComputedStyle(v.el).color, isShown: !clipped(v.el)} })
            .sort((a, b) => a.top - b.top) }""",
        name,
    )


def _tick(opened):
    """Return what the time axis writes at one of its ticks."""
    return opened.page.evaluate(
        """() => { const plot = Bokeh.documents.flatMap(d => [...d._all_models.values()]).find(m => m.name === 'busy')
        const axis = plot.below[0], range = plot.x_range
        const ticks = axis.ticker.get_ticks(range.start, range.end, range, NaN).major
        return axis.formatter.doFormat(ticks, {loc: 0})[1] }"""
    )


def _tooltip(opened):
    """Wait for the tooltip, and return its text: it is within a shadow root."""
    opened.page.locator(".bk-Tooltip").first.wait_for()
    cells = ".bk-tooltip-row-label, .bk-tooltip-row-value"
    return opened.page.locator(".bk-Tooltip").first.evaluate(
        f"e => [...e.shadowRoot.querySelectorAll('{cells}')].map(c => c.textContent).join(' ')"
    )


def _background(opened):
    return opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
