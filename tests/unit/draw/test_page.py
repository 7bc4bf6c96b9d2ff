"""The offline page and the notebook form, as text."""

from __future__ import annotations

import gzip
import html
import io
import json
import re
import shutil
from pathlib import Path

import bokeh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.draw import inline_html, pack_columns, plan_picture, timeline_page, viewer_script, viewer_style, write_html
from gpustreamlab.draw._columns import ALPHABET, to_base85
from gpustreamlab.draw._html import LEVEL, fill_template, pack_text
from scripts import bundle_viewer
from tests.helpers.traces import EVIL_NAME, empty_trace, evil_trace, make_trace, pipeline_trace, random_trace


def from_base85(text):
    """The slow and plain way back, as page.js goes it."""
    digits = [ALPHABET.index(letter) for letter in text] + [84] * (-len(text) % 5)
    words = [sum(digit * 85**place for place, digit in enumerate(digits[k : k + 5][::-1])) for k in range(0, len(digits), 5)]
    return b"".join(word.to_bytes(4, "big") for word in words)[: len(text) * 4 // 5]


def part_of(page, part):
    return from_base85(re.search(rf'id="gsl-{part}">([^<]*)<', page).group(1))


def unpacked(page, part):
    return gzip.decompress(part_of(page, part)).decode()


@given(st.binary(max_size=40))
def test_letters_stand_for_the_bytes(data):
    assert from_base85(to_base85(data)) == data


def test_letters_of_much_are_those_of_its_pieces():
    data = bytes(range(256)) * 300
    assert from_base85(to_base85(data)) == data


def test_letters_need_no_escaping():
    assert len(ALPHABET) == 85
    assert html.escape(ALPHABET) == ALPHABET
    assert "-" not in ALPHABET  # no comment ends


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
    assert page.count("</script>") == 5
    assert "<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; (real hardware)</title>" in page


def test_header_has_title_device_errors_and_what_is_missing():
    page = timeline_page(pipeline_trace(dropped_spans=1_234, pending_spans=5))
    for text in (
        "Image pipeline", "NVIDIA H200", "SIMULATED", "Tier: ranges", "clock error ±500 ns", "correction of 2.60 µs",
        "1,234 spans dropped", "5 spans have not ended yet: lab.synchronize() waits for them",
    ):  # fmt: skip
        assert text in page


def test_header_says_what_the_picture_may_hide():
    page = timeline_page(make_trace([("a", "x", k, 1_000) for k in range(80)]))
    assert "16 spans are folded into the last row" in page


def test_page_carries_every_span_exactly():
    trace = random_trace(3_000, 4)
    page = timeline_page(trace)
    data = json.loads(unpacked(page, "data"))
    assert data["manifest"]["n"] == 3_000
    assert sum(count for _, count in data["manifest"]["runs"]) == 3_000
    assert part_of(page, "spans") == pack_columns(plan_picture(trace).columns, level=LEVEL)[1]


def test_page_of_many_spans_is_smaller_than_the_drawn_figure_was():
    # 2.73 MB with Bokeh's glyphs.
    assert len(timeline_page(random_trace(100_000))) < 1_500_000


def test_page_is_far_smaller_than_the_plain_library():
    plain = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    assert len(timeline_page(empty_trace())) < 0.449 * plain.stat().st_size


def test_page_carries_only_the_core_of_bokeh():
    library = unpacked(timeline_page(empty_trace()), "bokeh")
    assert "bokeh.min.js" in library
    assert "bokeh-widgets" not in library
    assert "bokeh-mathjax" not in library


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


def test_inline_form_is_the_page_and_a_small_picture():
    trace = random_trace(2_000)
    assert len(inline_html(trace)) - len(timeline_page(trace, with_static=False)) < 150_000


def test_bundle_is_made_of_the_modules():
    assert bundle_viewer.main(["--check"]) == 0, "Run: make viewer"


@pytest.mark.parametrize("name", ["rows.js", "bundle.js"])
def test_bundle_that_is_not_made_of_the_modules_is_noticed(name, tmp_path, capsys):
    folder = shutil.copytree(bundle_viewer.FOLDER, tmp_path / "viewer")
    assert bundle_viewer.main(["--check", "--folder", str(folder)]) == 0
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write("// more\n")
    assert bundle_viewer.main(["--check", "--folder", str(folder)]) == 1
    assert "Run: make viewer" in capsys.readouterr().err


def test_every_module_is_in_the_bundle():
    # The bundler names each above what it declares, and leaves out those that nobody needs.
    modules = {path.name for path in bundle_viewer.FOLDER.glob("*.js")} - set(bundle_viewer.NO_MODULES)
    assert set(re.findall(r"^  // (\w+\.js)$", viewer_script(), re.MULTILINE)) == modules


def test_scripts_and_styles_ask_for_nothing_from_elsewhere():
    text = viewer_script() + viewer_style()
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "@import" not in text
    assert "innerHTML" not in text
    assert "</script" not in text


@pytest.mark.parametrize("part", ["%%", "%%TITLE%%", "a %% b"])
def test_parts_of_a_template_are_not_looked_through(part, monkeypatch):
    monkeypatch.setattr("gpustreamlab.draw._html.viewer_text", lambda name: "<p>%%NOTE%%</p><i>%%TITLE%%</i>")
    assert fill_template("any.html", note=part, title="t") == f"<p>{part}</p><i>t</i>"
