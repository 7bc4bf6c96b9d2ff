"""The timeline as a figure of a paper."""

from __future__ import annotations

import io
import struct
import sys
from itertools import pairwise
from xml.etree import ElementTree as ET

import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.draw import paper_svg, plan_picture
from gpustreamlab.errors import MissingExtraError, OptionError
from gpustreamlab.model import Device, Marker
from gpustreamlab.timeline import Timeline
from gpustreamlab.typing import MarkerKind
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.svg_texts import check_texts_within, text_boxes
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

SVG = "{http://www.w3.org/2000/svg}"
TRACES = {
    "empty": empty_trace(), "one": one_lane_trace(), "pipeline": pipeline_trace(), "nested": nested_trace(),
    "evil": evil_trace(), "kernels": kernel_trace(), "windows": kernel_trace(windows=((2_000_000, 4_000_000),)),
    "partitions": partition_trace(), "repartition": repartition_trace(), "8-partitions": many_partitions_trace(),
    "100-lanes": random_trace(500, 100), "20k": random_trace(20_000),
}  # fmt: skip
PT_MM = 25.4 / 72


def sizes_of(svg):
    """Return the width and height in mm, and the sizes of all texts in pt."""
    root = ET.fromstring(svg)
    width_mm, height_mm = (float(root.get(name).removesuffix("mm")) for name in ("width", "height"))
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width_mm / width == pytest.approx(height_mm / height, rel=1e-3)
    return width_mm, height_mm, {round(box[3] * width_mm / width / PT_MM, 2) for box in text_boxes(svg)}


def texts(svg):
    return [box[4] for box in text_boxes(svg)]


@pytest.mark.parametrize(("width_mm", "font_pt"), [(85, 7), (178, 8), (60.5, 5.5), (178, 7), (85, 10)])
@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_figure_has_the_width_and_the_letters_that_were_asked_for_and_nothing_beyond_its_border(trace, width_mm, font_pt):
    svg = paper_svg(trace, width_mm=width_mm, font_pt=font_pt)
    width, height, sizes = sizes_of(svg)
    assert (width, sizes) == (width_mm, {font_pt})
    assert height < 300
    check_texts_within(svg)


@given(st.floats(40, 420), st.floats(4, 20), st.sampled_from(sorted(TRACES)))
@settings(deadline=None, max_examples=40)
def test_any_size_is_a_figure_or_an_error_that_says_which_size_would_do(width_mm, font_pt, name):
    try:
        svg = paper_svg(TRACES[name], width_mm=width_mm, font_pt=font_pt)
    except OptionError as error:
        largest = float(str(error).split("at most font_pt=")[1].split(",")[0])
        svg = paper_svg(TRACES[name], width_mm=width_mm, font_pt=max(4.0, largest))
    check_texts_within(svg)


def test_figure_has_lanes_sms_axis_and_legend_and_no_headings():
    shown = texts(paper_svg(kernel_trace(title="A title"), width_mm=178))
    assert {"prefill", "kernels", "prefill · 96 SMs", "132 SMs", "A 96", "time, ms", "0", "7", "attention", "gemm_bf16"} <= set(
        shown
    )
    assert not any(word in text for text in shown for word in ("A title", "SIMULATED", "mean concurrency", "NVIDIA", "clock"))


def test_figure_says_what_it_must_not_hide_and_nothing_of_what_was_measured():
    facts = " ".join(texts(paper_svg(pipeline_trace(dropped_spans=3))))
    assert "Simulated, not measured. Ranges only: bars contain waiting. 3 spans dropped" in facts
    measured = make_trace([("a", "x", 0, 400)], backend="cuda", device=Device(name="card", sm_count=4))
    shown = texts(paper_svg(measured))
    assert not any("imulated" in text for text in shown)
    assert "20,000 spans in" in " ".join(texts(paper_svg(random_trace(20_000))))


def test_labels_of_lanes_do_not_cover_each_other_or_the_bars():
    for trace in (kernel_trace(), random_trace(500, 100), many_partitions_trace()):
        for width_mm in (85, 178):
            svg = paper_svg(trace, width_mm=width_mm)
            labels = sorted(
                (box for box in text_boxes(svg) if box[4].startswith(("stream ", "prefill", "decode"))), key=lambda box: box[2]
            )
            lanes = [box for box in labels if "SMs" not in box[4]]
            assert len(lanes) >= 3
            assert all(upper[2] + 9 <= lower[2] for upper, lower in pairwise(lanes))
            # They end left of where time begins: all on one line.
            assert len({round(box[1]) for box in lanes}) == 1


def test_partitions_are_in_the_legend_where_their_lines_are_too_low_for_a_name():
    assert "part 0 · 16 SMs" in texts(paper_svg(many_partitions_trace()))
    few = texts(paper_svg(partition_trace()))
    assert sum(text.startswith("prefill · 96 SMs") for text in few) == 1


def test_cells_are_no_moments_of_a_paper_and_marks_are():
    markers = (
        Marker(time_ns=100_000, text="In [4]", kind=MarkerKind.CELL),
        Marker(time_ns=300_000, text="warm up", kind=MarkerKind.MARK),
    )
    with_both = make_trace([("a", "x", 0, 1_000_000)], markers=markers)
    shown = texts(paper_svg(with_both))
    assert "warm up" in shown
    assert "In [4]" not in shown
    lanes = [(name, "x", 0, 1_000_000) for name in "abcd"]
    only_cells, none = paper_svg(make_trace(lanes, markers=markers[:1])), paper_svg(make_trace(lanes))
    assert sizes_of(only_cells)[1] == pytest.approx(sizes_of(none)[1], abs=0.3)


def test_hostile_names_are_text():
    svg = paper_svg(evil_trace())
    assert EVIL_NAME not in svg
    assert {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()} <= {
        "svg", "title", "defs", "pattern", "rect", "path", "text", "tspan", "g",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "paper", "width_mm": 0}, r"width_mm is 0; it must be a number from 40 to 420"),
        ({"style": "paper", "width_mm": "85"}, r"width_mm is '85'; it must be a number from 40 to 420"),
        ({"style": "paper", "width_mm": float("nan")}, r"width_mm is nan; it must be"),
        ({"style": "paper", "font_pt": 100}, r"font_pt is 100; it must be a number from 4 to 20"),
        ({"style": "paper", "font_pt": True}, r"font_pt is True; it must be a number"),
        ({"style": "paper", "width_mm": 40, "font_pt": 20}, r"Use at most font_pt=5\.6, or a wider picture"),
        ({"style": "papr"}, r"style is 'papr'; choose from 'page' and 'paper'\. Did you mean 'paper'\?"),
        ({"style": None}, r"style is None; choose from 'page' and 'paper'"),
        ({"style": ["paper"]}, r"style is \['paper'\]; choose from 'page' and 'paper'"),
        ({"width_mm": 85}, r"width_mm is 85, but only a figure of a paper has one\. Add style='paper'"),
        ({"font_pt": 7}, r"font_pt is 7, but only a figure of a paper"),
    ],
)
def test_wrong_option_is_an_error_with_the_choices_and_no_file(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        Timeline(pipeline_trace()).save(tmp_path / "fig.svg", **options)
    assert list(tmp_path.iterdir()) == []


def test_page_is_no_figure_of_a_paper(tmp_path):
    with pytest.raises(OptionError, match=r"A page is no figure of a paper\. Use save\('fig\.svg', style='paper'\)"):
        Timeline(pipeline_trace()).save(tmp_path / "fig.html", style="paper")


@pytest.mark.parametrize("width_mm", [85, 178])
def test_pdf_has_the_width_the_texts_and_their_fonts(tmp_path, width_mm):
    path = Timeline(kernel_trace(title="A → title")).save(tmp_path / "fig.pdf", style="paper", width_mm=width_mm, font_pt=8)
    (page,) = (document := pypdf.PdfReader(path)).pages
    assert float(page.mediabox.width) * PT_MM == pytest.approx(width_mm, abs=0.05)
    sizes, fonts = set(), set()

    def note(text, matrix, text_matrix, font, size):
        if text.strip():
            sizes.add(round(abs(size * text_matrix[0] * matrix[0]), 1))
            fonts.add(font["/BaseFont"].partition("+")[2])

    shown = page.extract_text(visitor_text=note)
    assert {"prefill", "kernels", "132 SMs", "time, ms", "Simulated, not measured."} <= {
        text for text in ("prefill", "kernels", "132 SMs", "time, ms", "Simulated, not measured.") if text in shown
    }
    assert sizes == {8.0}
    assert fonts == {"Roboto-Regular", "Roboto-Bold"}
    assert not page.images
    assert "102 spans" in document.metadata.title


def test_pdf_and_png_of_the_page_style_and_of_paper(tmp_path):
    timeline = Timeline(pipeline_trace())
    page = pypdf.PdfReader(timeline.save(tmp_path / "run.pdf")).pages[0]
    assert float(page.mediabox.width) == pytest.approx(1000 * 0.75)
    assert "Image pipeline" in page.extract_text()
    data = timeline.save(tmp_path / "fig.png", style="paper", width_mm=85).read_bytes()
    # 600 pixels to the inch.
    assert struct.unpack(">I", data[16:20])[0] == pytest.approx(85 / 25.4 * 600, abs=2)
    assert struct.unpack(">I", data[data.index(b"pHYs") + 4 :][:4])[0] == round(600 / 0.0254)
    svg = timeline.save(tmp_path / "fig.svg", style="paper").read_text(encoding="utf-8")
    assert sizes_of(svg)[0] == 85


def test_same_trace_is_the_same_pdf(tmp_path):
    one, two = (Timeline(pipeline_trace()).save(tmp_path / f"{name}.pdf", style="paper").read_bytes() for name in "ab")
    assert one == two


@pytest.mark.usefixtures("installed_as_wheel")
def test_missing_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpustreamlab\[pdf\]'"):
        Timeline(pipeline_trace()).save(tmp_path / "fig.pdf", style="paper")
    assert list(tmp_path.iterdir()) == []


def bars_of(figure):
    return figure.select_one({"name": "spans"}).data_source.data


def test_figure_of_bokeh_has_a_bar_for_each_span_at_its_time_in_its_lane():
    trace = make_trace([("b", "x", 1_000_000, 3_000_000), ("a", "y", 2_000_000, 4_500_000)], edges=[(0, 1)])
    figure = Timeline(trace).figure()
    bars = bars_of(figure)
    by_name = {name: place for place, name in enumerate(bars["name"])}
    assert [bars[side][by_name["x"]] for side in ("left", "right")] == [0, 2]
    assert [bars[side][by_name["y"]] for side in ("left", "right")] == [1, 3.5]
    # A lane is 1 high with its middle at its number, named on the axis.
    labels = figure.yaxis[0].major_label_overrides
    for place, lane in enumerate(bars["lane"]):
        number = round(float(bars["y"][place]))
        assert labels[number] == lane
        assert abs(bars["y"][place] - number) + bars["height"][place] / 2 <= 0.5
    assert "SIMULATED" in figure.title.text
    assert figure.xaxis[0].axis_label.endswith(", ms")
    (wait,) = zip(*(figure.select_one({"name": "waits"}).data_source.data[end] for end in ("x0", "x1")), strict=True)
    assert wait[0] <= wait[1]


def test_figure_of_bokeh_can_be_changed_and_saved(tmp_path):
    from bokeh.embed import file_html
    from bokeh.models import Span
    from bokeh.resources import INLINE

    figure = Timeline(kernel_trace()).figure()
    figure.add_layout(Span(location=1.5, dimension="height"))
    figure.select_one({"name": "spans"}).glyph.fill_color = "#123456"
    page = file_html(figure, INLINE, title="mine")
    assert "#123456" in page
    assert "gemm_bf16" in page
    assert len(bars_of(figure)["left"]) == len(kernel_trace())


def test_figure_of_bokeh_is_bounded_and_says_so():
    figure = Timeline(random_trace(60_000)).figure()
    bars = bars_of(figure)
    assert len(bars["left"]) <= 20_000
    assert sum(bars["count"]) == 60_000
    assert "60,000 spans in" in figure.title.text
    assert len(bars_of(Timeline(random_trace(20_000)).figure())["left"]) == 20_000


def test_figure_of_bokeh_of_nothing():
    figure = Timeline(empty_trace()).figure()
    assert len(bars_of(figure)["left"]) == 0
    assert plan_picture(empty_trace()).header.badge in figure.title.text
    assert figure.select_one({"name": "waits"}) is None
    assert io.StringIO(repr(figure)).read()


def test_bars_that_are_low_have_their_names_in_smaller_letters():
    trace = make_trace([(f"s{place}", f"name{place}", 0, 1_000) for place in range(60)])
    (labels,) = [group for group in ET.fromstring(paper_svg(trace)).iter(f"{SVG}g") if group.get("stroke-linejoin") == "round"]
    assert labels.get("font-size") == "75%"
    assert [text.text for text in labels.iter(f"{SVG}text")] == [f"name{place}" for place in range(60)]
