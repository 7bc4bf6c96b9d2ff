"""The page that compares two traces, in a real browser."""

from __future__ import annotations

import pytest

from gpustreamlab import compare
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)
from tests.helpers.windows import Heard

pytestmark = pytest.mark.browser

RANGES = "[[gslViewer, gslViewerB].map(v => v.view.x0), [gslViewer, gslViewerB].map(v => v.view.x1)]"


@pytest.fixture
def open_compared(open_page, tmp_path):
    return lambda a, b, warm=True, **options: open_page(compare(a, b).save(tmp_path / "compared.html"), warm=warm, **options)


def ranges(opened):
    (a0, b0), (a1, b1) = opened.page.evaluate(RANGES)
    return (a0, a1), (b0, b1)


@pytest.mark.parametrize(
    "traces",
    [
        pytest.param((pipeline_trace(), pipeline_trace(4)), id="pipeline"),
        pytest.param((partition_trace(), repartition_trace()), id="partitions"),
        pytest.param((empty_trace(), random_trace(20_000)), id="empty-beside-full"),
    ],
)
def test_page_opens_offline_without_a_request_or_an_error(open_compared, traces):
    opened = open_compared(*traces, warm=False)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("data:", "file:"))] == []
    assert opened.page.locator(".gsl-viewer").count() == 2


def test_both_begin_with_the_same_range_from_their_own_first_span(open_compared):
    # GIVEN a trace that starts late and is shorter
    late = make_trace([("a", "x", 10**9, 10**9 + 400), ("a", "y", 10**9 + 400, 10**9 + 500)])
    opened = open_compared(make_trace([("a", "x", 0, 1000)]), late)
    # THEN
    first, second = ranges(opened)
    assert first == second == (-10, 1010)
    assert opened.page.evaluate("gslViewerB.view.store.row(0).start[0]") == 0
    frames = opened.page.evaluate("[gslViewer, gslViewerB].map(v => [v.view.frame.left, v.view.frame.right])")
    assert frames[0] == frames[1]


def test_both_have_one_range_from_their_own_first_span_however_one_is_zoomed(open_compared):
    opened = open_compared(pipeline_trace(), pipeline_trace(4))
    full = ranges(opened)[0]
    for place in (0, 1):
        opened.page.locator(".gsl-figure").nth(place).hover()
        opened.page.keyboard.down("Control")
        opened.page.mouse.wheel(0, -400)
        opened.page.keyboard.up("Control")
        opened.settle()
        first, second = ranges(opened)
        assert first == second
        assert first[1] - first[0] < full[1] - full[0]
    opened.page.locator(".gsl-figure").nth(1).hover()
    opened.page.keyboard.press("f")
    opened.settle()
    assert ranges(opened) == (full, full)
    assert opened.errors == []
    opened = open_compared(pipeline_trace(), pipeline_trace(2))
    opened.page.evaluate("gslViewer.view.setRange(1e6, 1e6 + 2)")
    opened.settle()
    first, second = ranges(opened)
    assert first == second
    opened.page.evaluate("gslViewerB.view.setRange(-1e12, 1e12)")
    opened.settle()
    first, second = ranges(opened)
    assert first == second


def test_a_name_looks_the_same_in_both(open_compared):
    spans = [("s", name, at, at + 10) for at, name in enumerate(f"kernel {letter}" for letter in "abcdefghijklmn")]
    opened = open_compared(make_trace(spans), make_trace(spans[::-1][:9]))
    look_of = "v => Object.fromEntries(v.view.tables.names.map((name, i) => [name, v.view.tables.name_styles[i].join()]))"
    looks = opened.page.evaluate(f"[gslViewer, gslViewerB].map({look_of})")
    assert len(set(looks[0].values())) == 14
    assert {name: looks[0][name] for name in looks[1]} == looks[1]


def test_tables_say_what_differs(open_compared):
    opened = open_compared(pipeline_trace(), pipeline_trace(4))
    text = opened.page.inner_text(".gsl-tables")
    assert "wall time\t7.50 ms\t5.50 ms\t−2.00 ms\t×0.73" in text
    assert "copy in\t6→4\t5.40 ms\t3.60 ms\t−1.80 ms\t×0.67\t900 µs" in text
    assert opened.page.locator(".gsl-tables table").count() == 3


def test_hostile_names_are_text(open_compared):
    opened = open_compared(evil_trace(), evil_trace())
    assert EVIL_NAME in opened.page.inner_text("body")
    assert opened.page.locator("img[src='x']").count() == 0
    assert opened.dialogs == []
    assert opened.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (700, "dark")])
def test_page_fits_its_width_and_follows_the_scheme(open_compared, width, scheme):
    opened = open_compared(partition_trace(), repartition_trace(), width=width, scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")


def test_in_a_notebook_the_frame_takes_the_height_of_its_content(lend, tmp_path):
    # GIVEN the form that a notebook shows, in a page of its own
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><body>{compare(pipeline_trace(), pipeline_trace(4))._repr_html_()}", encoding="utf-8")
    page = lend(Heard, width=1280, height=720).page
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelector('iframe').clientHeight > 600")
    assert page.locator("details summary").count() == 1
