"""The picture as a bitmap."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

from gpustreamlab.errors import MissingExtraError, OptionError
from gpustreamlab.timeline import Timeline
from tests.helpers.traces import empty_trace, evil_trace, pipeline_trace

pytestmark = pytest.mark.usefixtures("installed_as_wheel")


@pytest.fixture
def save(tmp_path):
    return lambda trace, **options: Timeline(trace).save(tmp_path / "run.png", **options).read_bytes()


def size_px(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("scale", [0.5, 3.0, np.float64(1.5)])
def test_picture_has_scale_pixels_for_each_px(save, scale):
    assert size_px(save(pipeline_trace(), scale=scale))[0] == 1000 * scale


def test_odd_traces_have_a_picture_and_texts_are_in_it(save):
    assert [size_px(save(trace))[0] for trace in (empty_trace(), evil_trace())] == [2000, 2000]
    assert save(pipeline_trace(title="A title")) != save(pipeline_trace(title="B title"))


@pytest.mark.parametrize("scale", [0, -1, 0.05, 9, float("nan"), float("inf"), "2", True, 10**400])
def test_scale_that_is_no_number_in_its_range_is_an_option_error(save, scale):
    with pytest.raises(OptionError, match=r"scale is .*; it must be a number from 0\.1 to 8"):
        save(pipeline_trace(), scale=scale)


@pytest.mark.parametrize("package", ["resvg_py", "font_roboto"])
def test_missing_package_says_what_to_install(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gpustreamlab\[png\]'") as caught:
        Timeline(pipeline_trace()).save(tmp_path / "run.png")
    assert isinstance(caught.value, ImportError)
    assert list(tmp_path.iterdir()) == []


def test_save_writes_pixels_and_takes_a_scale_where_there_are_pixels(tmp_path):
    path = Timeline(pipeline_trace()).save(tmp_path / "run.png", scale=1)
    assert size_px(path.read_bytes())[0] == 1000
    assert size_px(Timeline(pipeline_trace()).save(tmp_path / "two.PNG").read_bytes())[0] == 2000
    with pytest.raises(OptionError, match=r"only a \.png has pixels"):
        Timeline(pipeline_trace()).save(tmp_path / "run.svg", scale=3)
    assert not (tmp_path / "run.svg").exists()
