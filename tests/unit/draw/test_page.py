"""The offline page and the notebook form, as text."""

from __future__ import annotations

import base64
import gzip
import html
import io
import re

import pytest

from gpustreamlab.draw import inline_html, write_html
from gpustreamlab.draw._html import pack_text, timeline_page
from gpustreamlab.draw._templates import fill_template
from tests.helpers.traces import EVIL_NAME, empty_trace, evil_trace, pipeline_trace, random_trace


def unpacked(page, part):
    packed = re.search(rf'id="gsl-{part}">([^<]*)<', page).group(1)
    return gzip.decompress(base64.b64decode(packed)).decode()


def test_page_asks_for_nothing_from_elsewhere():
    page = timeline_page(pipeline_trace())
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!data:)[a-z/]""", page)
    assert "@import" not in page
    assert "url(http" not in page


def test_page_holds_no_path_of_this_machine():
    page = timeline_page(pipeline_trace())
    data = unpacked(page, "data")
    for text in (page, data):
        assert "/work" not in text
        assert "/tmp" not in text
        assert "/home" not in text


def test_hostile_name_is_never_markup_in_the_page():
    page = timeline_page(evil_trace())
    assert EVIL_NAME not in page
    assert page.count("</script>") == 3
    assert "<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; (real hardware)</title>" in page


def test_header_has_title_device_errors_and_what_is_missing():
    page = timeline_page(pipeline_trace(dropped_spans=1_234, pending_spans=5))
    for text in (
        "Image pipeline", "NVIDIA H200", "SIMULATED", "Tier: ranges", "clock error ±500 ns", "correction of 2.60 µs",
        "1,234 spans dropped", "5 spans pending", "copy in",
    ):  # fmt: skip
        assert text in page


def test_header_says_how_many_spans_are_not_drawn():
    from gpustreamlab.draw import plan_scene

    trace = random_trace(100, 4)
    page = timeline_page(trace, scene=plan_scene(trace, max_spans=60))
    assert "the 40 shortest of 100 spans" in page


def test_page_is_far_smaller_than_the_plain_library():
    assert len(timeline_page(empty_trace())) < 520_000


def test_page_carries_only_the_core_of_bokeh():
    library = unpacked(timeline_page(empty_trace()), "bokeh")
    assert "bokeh.min.js" in library
    assert "bokeh-widgets" not in library
    assert "mathjax" not in library.lower()[:200]


def test_page_can_be_written_to_an_open_file():
    target = io.StringIO()
    write_html(pipeline_trace(), target)
    assert target.getvalue().startswith("<!DOCTYPE html>")


def test_packing_is_the_same_every_time():
    assert pack_text("abc") == pack_text("abc")


def test_inline_form_has_picture_with_words_and_a_frame_with_the_page():
    form = inline_html(pipeline_trace())
    assert re.search(r'<img class="gsl-picture"[^>]*alt="Image pipeline: timeline of 24 spans', form)
    assert 'src="data:image/svg+xml;base64,' in form
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', form).group(1))
    assert page.startswith("<!DOCTYPE html>")
    assert "<noscript>" not in page


def test_inline_form_of_a_hostile_trace_holds_one_frame_and_one_picture():
    form = inline_html(evil_trace())
    assert EVIL_NAME not in form
    assert re.findall(r"<(\w+)", form) == ["div", "img", "iframe"]


@pytest.mark.parametrize("part", ["%%", "%%TITLE%%", "a %% b"])
def test_parts_of_a_template_are_not_looked_through(part, monkeypatch):
    monkeypatch.setattr("gpustreamlab.draw._templates.template", lambda name: "<p>%%NOTE%%</p><i>%%TITLE%%</i>")
    assert fill_template("any.html", note=part, title="t") == f"<p>{part}</p><i>t</i>"
