"""The offline page and the notebook form: their text, their figure and what the viewer knows beside the spans."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import logging
import re
import shutil
from pathlib import Path

import bokeh
import pytest
from bokeh.embed import json_item
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import span_rows
from gpustreamlab.draw import (
    draw_figure,
    inline_html,
    pack_columns,
    page_data,
    plan_header,
    plan_picture,
    plan_tables,
    timeline_page,
    viewer_script,
    viewer_style,
    write_html,
)
from gpustreamlab.draw._columns import to_wide
from gpustreamlab.draw._html import LEVEL, fill_template
from gpustreamlab.draw._picture import EMPTY_WINDOW_NS
from gpustreamlab.typing import CaptureTier, SpanKind
from scripts import bundle_viewer
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
    without_spans,
)


def from_wide(text):
    """The slow and plain way back, as page.js goes it."""
    letters = []
    for code in map(ord, text):
        letters += [0] if code > 127 and code - 128 not in b"\0\r<" else []
        letters.append(code & 127)
    bits = "".join(f"{letter:07b}" for letter in letters)
    return bytes(int(bits[first : first + 8], 2) for first in range(0, len(bits) // 8 * 8, 8))


def spans_of(trace):
    return pack_columns(plan_picture(trace).columns, level=LEVEL)[1]


def unpacked(page, part):
    form, letters = re.search(rf'<script type="([\w/-]+)" id="gsl-{part}">(.*?)</script>', page, re.DOTALL).groups()
    return gzip.decompress(from_wide(letters) if form == "text/x-wide" else base64.b64decode(letters)).decode()


@given(
    st.one_of(
        st.binary(max_size=40),
        st.just(bytes(range(256)) * 300),
        st.lists(st.sampled_from([0, 13, 60, 242, 94, 132]), max_size=60).map(bytes),
    )
)
def test_wide_letters_stand_for_the_bytes_and_end_no_script(data):
    text = to_wide(data)
    assert from_wide(text) == data
    assert not {"\0", "\r"} & set(text)
    assert max(map(ord, text), default=0) < 256  # the browser keeps such a text in a byte a letter
    assert not re.search(r"<[!/]|<$", text)


def test_wide_letters_of_two_pieces_end_no_script():
    data = bytes((7 << 13) - 1) + bytes([ord("<"), 2 * ord("!")])  # the last letter of the first piece, the first of the second
    assert from_wide(to_wide(data)) == data
    assert "<" not in to_wide(data)


def test_page_asks_for_nothing_from_elsewhere_and_holds_no_path_of_this_machine():
    page = timeline_page(pipeline_trace())
    scripts = viewer_script() + viewer_style()
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!data:)[a-z/]""", page)
    assert not re.search(r"https?://(?!www\.w3\.org/)", scripts)
    for sign in ("@import", "url(http", "innerHTML", "</script"):
        assert sign not in scripts
    for text in (page, unpacked(page, "data")):
        assert not any(sign in text for sign in ("@import", "url(http", "/work", "/tmp", "/home"))


def test_hostile_name_is_never_markup():
    page, form = timeline_page(evil_trace()), inline_html(evil_trace())
    assert EVIL_NAME not in page + form
    assert page.count("</script>") == 5
    assert "<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; (measured)</title>" in page
    assert re.findall(r"<(\w+)", form) == ["div", "img", "iframe"]


def test_header_has_title_device_errors_and_what_is_missing():
    page = timeline_page(pipeline_trace(dropped_spans=1_234, pending_spans=5))
    for text in (
        "Image pipeline", "NVIDIA H200", "SIMULATED", "Tier: ranges", "clock error ±500 ns", "correction of 2.60 µs",
        "1,234 spans dropped", "5 spans have not ended yet: lab.synchronize() waits for them",
    ):  # fmt: skip
        assert text in page
    assert "16 spans are folded into the last row" in timeline_page(make_trace([("a", "x", k, 1_000) for k in range(80)]))


def test_page_carries_every_span_exactly_and_only_the_core_of_bokeh():
    trace = random_trace(3_000, 4)
    page = timeline_page(trace)
    manifest = json.loads(unpacked(page, "data"))["manifest"]
    assert manifest["n"] == sum(count for _, count in manifest["runs"]) == 3_000
    assert from_wide("".join(re.findall(r'<script type="text/x-wide">(.*?)</script>', page, re.DOTALL))) == spans_of(trace)
    framed = timeline_page(trace, with_static=False)
    assert base64.b64decode(re.search(r'hidden><script type="text/plain">([^<]*)<', framed).group(1)) == spans_of(trace)
    assert json.loads(unpacked(framed, "data"))["tables"] == json.loads(unpacked(page, "data"))["tables"]
    library = unpacked(page, "bokeh")
    assert "bokeh.min.js" in library
    assert "bokeh-widgets" not in library
    assert "bokeh-mathjax" not in library


def test_page_is_small():
    # 2.73 MB with Bokeh's glyphs.
    assert len(timeline_page(random_trace(100_000))) < 1_500_000
    plain = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    assert len(timeline_page(empty_trace())) < 0.465 * plain.stat().st_size


def test_page_can_be_written_to_an_open_file():
    target = io.StringIO()
    write_html(pipeline_trace(), target)
    assert target.getvalue().startswith("<!DOCTYPE html>")


def test_inline_form_has_a_small_picture_with_words_and_a_frame_with_the_page():
    trace = pipeline_trace()
    form = inline_html(trace)
    assert re.search(r'<img class="gsl-picture"[^>]*alt="Image pipeline: timeline of 24 spans', form)
    assert 'src="data:image/svg+xml;base64,' in form
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', form).group(1))
    assert page.startswith("<!DOCTYPE html>")
    assert "<noscript>" not in page
    trace = random_trace(2_000)
    assert len(inline_html(trace)) - len(timeline_page(trace, with_static=False)) < 150_000


@pytest.mark.parametrize("name", ["rows.js", "bundle.js"])
def test_bundle_is_made_of_the_modules_and_another_is_noticed(name, tmp_path, capsys):
    folder = shutil.copytree(bundle_viewer.FOLDER, tmp_path / "viewer")
    assert bundle_viewer.main(["--check", "--folder", str(folder)]) == 0, "Run: make viewer"
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write("// more\n")
    assert bundle_viewer.main(["--check", "--folder", str(folder)]) == 1
    assert "Run: make viewer" in capsys.readouterr().err


def test_every_module_is_in_the_bundle():
    # The bundler names each above what it declares, and leaves out those that nobody needs.
    modules = {path.name for path in bundle_viewer.FOLDER.glob("*.js")} - set(bundle_viewer.NO_MODULES)
    assert set(re.findall(r"^  // (\w+\.js)$", viewer_script(), re.MULTILINE)) == modules


@pytest.mark.parametrize("part", ["%%", "%%TITLE%%", "a %% b"])
def test_parts_of_a_template_are_not_looked_through(part, monkeypatch):
    monkeypatch.setattr("gpustreamlab.draw._html.viewer_text", lambda name: "<p>%%NOTE%%</p><i>%%TITLE%%</i>")
    assert fill_template("any.html", note=part, title="t") == f"<p>{part}</p><i>t</i>"


# ---- figure


def figure_of(trace):
    return draw_figure(page_data(plan_picture(trace))[0]["tables"])


def test_window_is_the_session_with_a_margin_also_without_spans():
    plot, empty = figure_of(pipeline_trace()), figure_of(empty_trace())
    assert (plot.x_range.start, plot.x_range.end, plot.x_range.min_interval) == (-75_000, 7_575_000, 10)
    assert (empty.x_range.start, empty.x_range.end) == pytest.approx((-0.01 * EMPTY_WINDOW_NS, 1.01 * EMPTY_WINDOW_NS))


def test_bokeh_has_no_tools_and_the_axis_is_divided_by_decimals_then_minutes():
    plot = figure_of(pipeline_trace())
    assert (plot.toolbar.tools, plot.toolbar_location) == ([], None)
    tickers = {ticker.base: ticker for ticker in plot.xaxis[0].ticker.tickers}
    assert (tickers[10].max_interval, tickers[60].min_interval) == (20e9, 60e9)
    assert plot.xgrid[0].ticker is plot.xaxis[0].ticker


def test_figure_holds_no_spans_and_no_names_and_bokeh_warns_of_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="bokeh"):
        traces = (pipeline_trace(), random_trace(20_000, 100), evil_trace())
        small, large, evil = (json.dumps(json_item(figure_of(trace))) for trace in traces)
    assert len(large) < len(small) + 100
    assert len(small) < 10_000
    assert EVIL_NAME not in evil
    assert caplog.messages == []


# ---- tables

TRACES = {
    "empty": empty_trace(), "pipeline": pipeline_trace(), "nested": nested_trace(), "evil": evil_trace(),
    "partitions": partition_trace(), "repartition": repartition_trace(), "8-partitions": many_partitions_trace(),
    "100-lanes": random_trace(500, 100),
}  # fmt: skip


def tables_of(trace, **options):
    width_ns = float(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0.0
    return plan_tables(trace, span_rows(trace)[0], zero_ns=0, width_ns=width_ns, header=plan_header(trace), **options)


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_tables_are_json_every_code_points_into_its_table_and_a_live_view_needs_no_spans(trace):
    tables = json.loads(json.dumps(tables_of(trace), allow_nan=False))
    assert len(tables["names"]) == len(tables["name_styles"]) == len(trace.names)
    assert len(tables["kinds"]) == len(tables["kind_hatches"]) == len(tables["kind_counted"]) == len(SpanKind)
    assert len(tables["partitions"]) == len(trace.partitions) + 1
    assert {row["lane"] for row in tables["rows"]} == set(range(len(trace.lanes)))
    assert all(-1 <= lane["group"] < len(tables["groups"]) for lane in tables["lanes"])
    assert all(-1 <= part["band"] < len(tables["bands"]) for part in tables["partitions"])
    header, rows = plan_header(trace), span_rows(trace)[0]
    live = plan_tables(without_spans(trace), rows, zero_ns=0, width_ns=tables["extent_ns"], header=header, counted=["range"])
    live = json.loads(json.dumps(live))
    # The page sees itself whether the work of a lane is kernels or copies.
    for lane in (*tables["lanes"], *live["lanes"]):
        lane["parts"] = [[{"kernels": "work"}.get(label, label), *borders] for label, *borders in lane["parts"]]
    # It knows no times: its lanes come in the order in which they got their rows.
    heights = [sorted(round(lane["bottom"] - lane["top"], 2) for lane in one["lanes"]) for one in (tables, live)]
    assert heights[0] == heights[1]
    placed = {"lanes", "groups", "rows", "memory"}
    assert {key for key in tables if tables[key] != live[key]} <= {"kind_counted", "kind_on_sms", *placed}


def test_times_of_the_axis_are_texts_as_javascript_has_not_enough_digits():
    tables = tables_of(make_trace([("a", "x", 0, 10)], epoch_unix_ns=1_763_000_000_123_456_789))
    assert (tables["zero_ns"], tables["epoch_unix_ns"]) == ("0", "1763000000123456789")


def test_names_are_short_and_hold_no_signs_that_turn_a_line_round():
    tables = tables_of(make_trace([("a\u202eb", "x" * 10_000, 0, 1), ("a\u202eb", "\u202e🙂 שלום", 1, 2)]))
    assert tables["names"] == ["x" * 100 + "…" + "x" * 99, "␣🙂 שלום"]
    # The label is for reading; the name selects the stream in a DataFrame.
    assert (tables["lanes"][0]["label"], tables["lanes"][0]["name"]) == ("a␣b", "a\u202eb")


def test_counted_kinds_are_those_of_the_trace_or_as_said():
    trace = nested_trace()
    assert tables_of(trace)["kind_counted"] == [False, True, True, True, *[False] * 5]
    assert tables_of(trace, counted=(SpanKind.RANGE,))["kind_counted"] == [True] + [False] * 8


def test_header_is_plain_text_and_that_of_a_live_view_counts_what_it_is_told():
    header = tables_of(evil_trace())["header"]
    assert (header["title"], header["badge"], header["missing"]) == (EVIL_NAME, "MEASURED", [])
    trace = pipeline_trace(dropped_spans=3, tier=CaptureTier.KERNELS)
    told = plan_header(without_spans(trace), span_count=1_234, width_ns=5e9)
    assert told.facts == "NVIDIA H200 · 1,234 spans in 3 streams · 5.00 s"
    assert "Tier: kernels" in told.source
    assert told.missing[0].startswith("3 spans dropped")


def test_ten_thousand_lanes_have_their_place():
    tables = tables_of(random_trace(100, 10_000))
    assert len(tables["lanes"]) == 10_000
    assert max(lane["bottom"] for lane in tables["lanes"]) == tables["height_px"] - tables["idle_px"]
