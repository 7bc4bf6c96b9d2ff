"""The saved page in a real browser: what is in the file, and that it needs nothing else."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import replace

import pypdf
import pytest

from gpustreamlab.model import Marker
from gpustreamlab.timeline import Timeline
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)
from tests.helpers.windows import Heard

pytestmark = pytest.mark.browser


@pytest.fixture
def save(tmp_path):
    return lambda trace, name="run.html": Timeline(trace).save(tmp_path / name)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(empty_trace(), id="empty"),
        pytest.param(pipeline_trace(), id="pipeline"),
        pytest.param(many_partitions_trace(16, 8, 20_000), id="20k-in-partitions"),
    ],
)
def test_page_opens_offline_without_a_request_or_an_error(save, open_page, trace):
    path = save(trace)
    opened = open_page(path)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert opened.js("s.spanCount") == len(trace)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # No packed data is left behind.
    assert opened.page.locator("script[type='text/plain'], #gsl-state").count() == 0


@pytest.mark.parametrize(
    ("trace", "colours"), [(partition_trace(), "dark"), (random_trace(2_000, 100), "light")], ids=["partitions", "100-lanes"]
)
def test_print_is_one_sheet_with_the_whole_run_its_legend_and_no_controls(save, open_page, trace, colours):
    opened = open_page(save(trace), scheme=colours, warm=True)
    (sheet,) = pypdf.PdfReader(io.BytesIO(opened.page.pdf(format="A4", landscape=True, print_background=True))).pages
    text = unicodedata.normalize("NFKC", sheet.extract_text())  # fonts have one letter for "fi"
    # THEN texts are texts, every lane is there, and nothing to press
    assert "SIMULATED" in text
    assert all(lane.name in text for lane in trace.lanes)
    assert all(name in text for name in trace.names) or "kernel *" in text
    assert not any(word in text for word in ("Search", "streams shown"))
    assert not sheet.images
    # AND the page on the screen is as before
    assert opened.page.locator(".gsl-viewer").is_visible()
    assert opened.page.locator("#gsl-print").is_hidden()
    assert opened.errors == []


def test_page_holds_the_columns_of_the_trace_exactly(save, open_page):
    trace = nested_trace()
    opened = open_page(save(trace), warm=True)
    rows = opened.js(
        "w.tables.rows.map((_, code) => { const r = s.row(code); return ['place', 'start', 'end', 'name', 'kind', 'thread']"
        ".map(name => [...r[name]].slice(0, r.length)) })"
    )
    spans = sorted(span for row in rows for span in zip(*row, strict=True))
    wanted = [(k, trace.start_ns[k], trace.end_ns[k], trace.name[k], trace.kind[k], trace.thread[k]) for k in range(len(trace))]
    assert spans == wanted


@pytest.mark.parametrize("name", [EVIL_NAME, "$$\\mathbb{evil}$$ \\(x\\) \\[y\\]"], ids=["hostile", "mathematics"])
def test_names_are_text_everywhere(save, open_page, name):
    trace = evil_trace(name)
    trace = replace(trace, markers=(Marker(time_ns=10**6, text=name, kind="mark"),))
    opened = open_page(save(trace))
    opened.settle()
    assert name in opened.page.inner_text("h1")
    assert opened.page.title().startswith(name)
    assert opened.page.locator("img[src='x']").count() == 0
    assert (opened.dialogs, opened.errors) == ([], [])
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests)
    assert opened.page.evaluate("typeof MathJax") == "undefined"


def test_page_without_javascript_shows_the_picture_and_the_header_and_names_are_text_in_it(save, open_page):
    opened = open_page(save(evil_trace()), javascript=False, width=390)
    box = opened.page.locator("noscript > svg").bounding_box()
    assert box["height"] > 120
    assert box["width"] < 390
    assert "2 streams on" in opened.page.inner_text("header")
    assert opened.page.locator("noscript svg text", has_text=EVIL_NAME[:12]).count() > 0
    assert opened.page.locator("noscript img, noscript script, body > svg").count() == 0


@pytest.mark.parametrize("part", ['id="gsl-data">', '"gsl-spans" hidden><script type="text/x-wide">'])
def test_damaged_page_says_so_and_keeps_its_header(save, lend, part):
    path = save(pipeline_trace())
    text = path.read_text(encoding="utf-8")
    begin = text.index(part) + len(part) + 40
    path.write_text(f"{text[:begin]}{'!' * 60}{text[begin + 60 :]}", encoding="utf-8")
    page = lend(Heard, width=1280, height=720).page
    page.goto(path.as_uri())
    page.wait_for_function("document.getElementById('gsl-state').textContent !== ''")
    assert "cannot be drawn in this browser" in page.inner_text("#gsl-state")
    assert "NVIDIA H200" in page.inner_text("header")
