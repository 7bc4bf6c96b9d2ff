"""The saved page in a real browser: what is in the file, and that it needs nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.analysis import merge_narrow
from gpustreamlab.draw import plan_picture
from gpustreamlab.model import Marker
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

HOUR_NS = 3_600 * 10**9
ODD = {
    "one-instant": make_trace([("a", "x", 5, 5)]),
    "ns-beside-an-hour": make_trace([("a", "x", 0, 1), ("b", "y", 0, HOUR_NS), ("a", "z", HOUR_NS - 1, HOUR_NS)]),
    "names-of-10-kB": make_trace([("a" * 10_000, "x" * 10_000, 0, 10), ("b", "漢🙂" * 5_000, 0, 9)]),
    "right-to-left": make_trace([("\u202eabc שלום", "مرحبا\u202e", 0, 10), ("🙂" * 30, "🙂", 5, 9)]),
    "10,000-lanes": random_trace(20_000, 10_000),
    "years": make_trace([("a", "x", -(10**17), 10**17), ("b", "y", 0, 1)]),
    "folded": make_trace([("a", "x", k, 1_000) for k in range(80)]),
}


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
        pytest.param(many_partitions_trace(16, 8, 20_000), id="20k-in-partitions"),
        *(pytest.param(trace, id=name) for name, trace in ODD.items()),
    ],
)
def test_page_opens_offline_without_a_request_or_an_error(save, open_page, trace):
    path = save(trace)
    opened = open_page(path)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert opened.view("s.spanCount") == len(trace)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_page_holds_the_columns_of_the_trace_exactly(save, open_page):
    trace = nested_trace()
    opened = open_page(save(trace), warm=True)
    rows = opened.view(
        "v.tables.rows.map((_, code) => { const r = s.row(code); return ['place', 'start', 'end', 'name', 'kind', 'thread']"
        ".map(name => [...r[name]].slice(0, r.length)) })"
    )
    spans = sorted(span for row in rows for span in zip(*row, strict=True))
    wanted = [(k, trace.start_ns[k], trace.end_ns[k], trace.name[k], trace.kind[k], trace.thread[k]) for k in range(len(trace))]
    assert spans == wanted


@pytest.mark.parametrize("zoom", [1, 3, 40, 1_000])
def test_items_add_up_to_the_spans_in_view_at_every_zoom(save, open_page, zoom):
    trace = random_trace(20_000)
    opened = open_page(save(trace), warm=True)
    middle_ns, width_ns = trace.end_ns.max() / 2, trace.end_ns.max() * 1.02 / zoom
    counted = opened.page.evaluate(
        """async ([x0, x1]) => {
        const v = gslViewer.view
        v.setRange(x0, x1)
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))
        const {items} = v.painted
        return {x0: v.x0, x1: v.x1, nsPerPx: v.nsPerPx,
                count: [...items.count].slice(0, items.length).reduce((a, b) => a + b, 0),
                busy: [...items.busy].slice(0, items.length).reduce((a, b) => a + b, 0)} }""",
        [middle_ns - width_ns / 2, middle_ns + width_ns / 2],
    )
    columns = plan_picture(trace).columns
    whole = json.loads(json.dumps(counted))
    width = opened.page.evaluate(f"gpustreamlab.binWidth({whole['nsPerPx']})")
    items = merge_narrow(columns.row, columns.start_ns, columns.end_ns, int(width))
    seen = (items.right_ns >= whole["x0"]) & (items.left_ns <= whole["x1"])
    assert (counted["count"], counted["busy"]) == (items.count[seen].sum(), items.busy_ns[seen].sum())
    if zoom == 1:
        assert counted["count"] == 20_000


def test_page_says_what_it_shows_and_how_far_to_trust_it(save, open_page):
    trace = pipeline_trace(dropped_spans=1_234, pending_spans=5)
    header = open_page(save(trace), warm=True).page.inner_text("header")
    for text in (
        "Image pipeline", "NVIDIA H200", "SIMULATED", "Tier: ranges", "clock error ±500 ns", "1,234 spans dropped",
        "5 spans have not ended yet: lab.synchronize() waits for them",
    ):  # fmt: skip
        assert text in header


def test_hostile_names_are_text_everywhere(save, open_page):
    trace = replace(evil_trace(), markers=(Marker(time_ns=10**6, text=EVIL_NAME, kind="mark"),))
    opened = open_page(save(trace))
    assert EVIL_NAME in opened.page.inner_text("h1")
    assert opened.page.title().startswith(EVIL_NAME)
    assert opened.page.locator("img[src='x']").count() == 0
    assert opened.dialogs == []
    assert opened.errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests)


def test_mathematics_in_a_name_loads_no_renderer(save, open_page):
    name = "$$\\mathbb{evil}$$ \\(x\\) \\[y\\]"
    opened = open_page(save(make_trace([(name, name, 0, 10)], title=name, threads=(name,))))
    opened.page.wait_for_timeout(300)
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert opened.page.evaluate("typeof MathJax") == "undefined"
    assert opened.page.inner_text("h1").startswith(name)


def test_dark_scheme_changes_background_and_text(save, open_page):
    path = save(pipeline_trace())
    light, dark = open_page(path), open_page(path, scheme="dark")
    assert _background(light) == "rgb(255, 255, 255)"
    assert _background(dark) == "rgb(20, 23, 26)"
    dark.page.emulate_media(color_scheme="light")
    dark.settle()
    assert _background(dark) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1200, 700])
@pytest.mark.parametrize("trace", [nested_trace(), partition_trace(), many_partitions_trace()], ids=["nested", "two", "many"])
def test_page_fits_its_width(save, open_page, width, trace):
    opened = open_page(save(trace), width=width, warm=True)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.view("v.frame.right - v.frame.left") > width / 2


def test_hundred_lanes_scroll_and_keep_the_time_axis_in_view(save, open_page):
    opened = open_page(save(random_trace(2_000, 100)), height=900, warm=True)
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 900
    assert opened.view("v.tables.height_px") > 3_000


def test_page_without_javascript_shows_the_picture_and_the_header(save, open_page):
    opened = open_page(save(pipeline_trace()), javascript=False)
    assert opened.page.locator("img.gsl-picture").bounding_box()["height"] > 200
    assert "NVIDIA H200" in opened.page.inner_text("header")


@pytest.mark.parametrize("part", ["gsl-data", "gsl-spans", "gsl-viewer", "gsl-bokeh"])
def test_damaged_page_says_so_and_keeps_its_header(save, open_page, chromium, part):
    path = save(pipeline_trace())
    text = path.read_text(encoding="utf-8")
    begin = text.index(f'id="{part}">') + len(f'id="{part}">') + 40
    path.write_text(f"{text[:begin]}{'!' * 60}{text[begin + 60 :]}", encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("document.getElementById('gsl-state').textContent !== ''")
    assert "cannot be drawn in this browser" in page.inner_text("#gsl-state")
    assert "NVIDIA H200" in page.inner_text("header")
    page.close()


def test_page_draws_no_sooner_than_it_is_complete_and_leaves_no_packed_data_behind(save, open_page):
    opened = open_page(save(random_trace(5_000)))
    assert opened.page.locator("script[type='text/plain']").count() == 0
    assert opened.page.locator("#gsl-state").count() == 0


def test_changes_of_the_layout_and_cells_are_marked(save, open_page):
    markers = (Marker(time_ns=500_000, text="In [3]", kind="cell"),)
    opened = open_page(save(replace(repartition_trace(), markers=markers)), warm=True)
    assert opened.view("v.tables.marks.map(mark => [mark.kind, mark.text])") == [
        ["cell", "In [3]"],
        ["layout", "prefill 96 SMs, decode 36 SMs"],
        ["layout", "prefill 96→64, decode 36→68"],
    ]


def test_edges_are_in_the_page(save, open_page):
    trace = pipeline_trace(2)
    opened = open_page(save(trace), warm=True)
    ends = opened.view("[[...s.edges.x0].slice(0, s.edges.length), [...s.edges.x1].slice(0, s.edges.length)]")
    wanted = np.stack((trace.end_ns[trace.edges.source], trace.start_ns[trace.edges.target]), axis=1)
    assert sorted(zip(*ends, strict=True)) == sorted(map(tuple, wanted.tolist()))


def _background(opened):
    return opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
