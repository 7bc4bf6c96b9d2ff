"""The picture as a bitmap."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest

from gpustreamlab.draw import _svg as png
from gpustreamlab.draw import svg_png, timeline_svg
from gpustreamlab.errors import GPUStreamLabError, MissingExtraError, OptionError
from gpustreamlab.timeline import Timeline
from tests.helpers.traces import empty_trace, evil_trace, pipeline_trace

pytestmark = pytest.mark.usefixtures("installed_as_wheel")


def chunks(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, found = 8, []
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        found.append((kind, body))
        place += 12 + size
    return found


def size_px(data):
    return struct.unpack(">II", dict(chunks(data))[b"IHDR"][:8])


@pytest.mark.parametrize("scale", [0.5, 1, 2, 3.0, np.float64(1.5)])
def test_picture_has_scale_pixels_for_each_px_and_says_its_size(scale):
    data = svg_png(timeline_svg(pipeline_trace()), scale=scale)
    assert size_px(data)[0] == 1000 * scale
    per_metre = struct.unpack(">IIB", dict(chunks(data))[b"pHYs"])
    assert per_metre == (round(scale * 96 / 0.0254), round(scale * 96 / 0.0254), 1)
    assert next(kind for kind, _ in chunks(data)) == b"IHDR"


def test_odd_traces_have_a_picture_and_texts_are_in_it():
    assert [size_px(svg_png(timeline_svg(trace)))[0] for trace in (empty_trace(), evil_trace())] == [2000, 2000]
    with_title = svg_png(timeline_svg(pipeline_trace(title="A title")))
    assert with_title != svg_png(timeline_svg(pipeline_trace(title="B title")))


@pytest.mark.parametrize("scale", [0, -1, 0.05, 9, float("nan"), float("inf"), "2", True, None, 10**400])
def test_scale_that_is_no_number_in_its_range_is_an_option_error(scale):
    with pytest.raises(OptionError, match=r"scale is .*; it must be a number from 0\.1 to 8"):
        svg_png(timeline_svg(pipeline_trace()), scale=scale)


def test_missing_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpustreamlab\[png\]'") as caught:
        Timeline(pipeline_trace()).save(tmp_path / "run.png")
    assert isinstance(caught.value, ImportError)
    assert list(tmp_path.iterdir()) == []


def test_machine_without_fonts_is_an_error_and_no_picture_without_words(monkeypatch):
    render = png._renderer()
    no_texts = timeline_svg(empty_trace()).split("<text")[0] + "</svg>"
    monkeypatch.setattr(png, "_renderer", lambda: lambda svg, scale: render(no_texts, scale))
    png._has_fonts.cache_clear()
    try:
        with pytest.raises(GPUStreamLabError, match="no font was found"):
            svg_png(timeline_svg(pipeline_trace()))
    finally:
        png._has_fonts.cache_clear()


def test_save_writes_pixels_and_takes_a_scale_where_there_are_pixels(tmp_path):
    path = Timeline(pipeline_trace()).save(tmp_path / "run.png", scale=1)
    assert size_px(path.read_bytes())[0] == 1000
    assert size_px(Timeline(pipeline_trace()).save(tmp_path / "two.PNG").read_bytes())[0] == 2000
    with pytest.raises(OptionError, match=r"only a \.png has pixels"):
        Timeline(pipeline_trace()).save(tmp_path / "run.svg", scale=3)
    assert not (tmp_path / "run.svg").exists()
