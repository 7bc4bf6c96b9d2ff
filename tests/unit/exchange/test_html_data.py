"""A page can hold its data, which comes back exactly."""

from __future__ import annotations

import base64
import io
import re

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import gpustreamlab as gsl
from gpustreamlab import compare
from gpustreamlab._util import host
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.model import trace_element
from tests.helpers.traces import EVIL_NAME, empty_trace, evil_trace, pipeline_trace
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

ELEMENT = re.compile(
    rb'<script type="application/vnd.apache.parquet" id="gsl-trace">([A-Za-z0-9+/=]+)</script>\n<script data-code='
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.html"


@settings(max_examples=15)
@given(traces())
def test_every_trace_comes_back_exactly(tmp_path_factory, trace):
    element = trace_element(trace)
    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(f'<!DOCTYPE html><script type="text/plain" id="gsl-bokeh"></script>{element}')
    assert_same_trace(gsl.load_trace(path), trace)


@pytest.mark.parametrize("make", [pipeline_trace, empty_trace, evil_trace])
def test_a_whole_page_comes_back_exactly(path, make):
    trace = make()
    assert trace.timeline().save(path, with_data=True) == path
    assert_same_trace(gsl.load_trace(path), trace)
    assert EVIL_NAME.encode() not in path.read_bytes()


def test_any_program_can_take_the_parquet_out(path):
    trace = pipeline_trace()
    trace.timeline().save(path, with_data=True)
    (letters,) = ELEMENT.findall(path.read_bytes())
    table = pq.read_table(io.BytesIO(base64.b64decode(letters)))
    assert table["start_ns"].to_pylist() == trace.start_ns.tolist()
    assert pq.ParquetFile(io.BytesIO(base64.b64decode(letters))).metadata.row_group(0).column(0).compression == "ZSTD"


def test_data_is_within_only_where_it_was_asked_for(path):
    trace = pipeline_trace()
    trace.timeline().save(path, with_data=True)
    with_data = path.read_bytes()
    trace.timeline().save(path)
    page = path.read_bytes()
    assert b"gsl-trace" not in page
    assert with_data.count(b"<script") == page.count(b"<script") + 1
    with pytest.raises(TraceFileError, match=r"is a picture of a timeline and holds no data.*with_data=True"):
        gsl.load_trace(path)
    compare(trace, trace).save(path)
    with pytest.raises(TraceFileError, match=r"is a picture of a timeline and holds no data.*with_data=True"):
        gsl.load_trace(path)


@pytest.mark.parametrize("name", ["run.svg", "run.png"])
def test_a_picture_holds_no_data(tmp_path, name):
    with pytest.raises(OptionError, match=rf"only a .html holds data. Leave it out to write '{name}'"):
        pipeline_trace().timeline().save(tmp_path / name, with_data=True)
    assert not [*tmp_path.iterdir()]


DAMAGES = {
    "cut off": lambda page: page[: page.index(b'id="gsl-trace"') + 200],
    "no letters": lambda page: page.replace(b'gsl-trace">', b'gsl-trace">\xff'),
    "letters are lost": lambda page: page.replace(b'gsl-trace">UEFS', b'gsl-trace">'),
    "nothing within": lambda page: ELEMENT.sub(b'<script type="application/vnd.apache.parquet" id="gsl-trace"></script>', page),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_data_is_told_with_the_name_of_the_page(path, damage):
    pipeline_trace().timeline().save(path, with_data=True)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TraceFileError, match=r"run\.html.*(damaged|is empty)"):
        gsl.load_trace(path)


@pytest.mark.parametrize("depth", [500, 200_000])
def test_notes_of_a_page_that_are_nested_deep_are_none_or_damage(path, depth):
    pipeline_trace().timeline().save(path, with_data=True)
    notes = b'<script id="gsl-notes" type="application/json">[[1, null, ' + b"[" * depth + b"]" * depth + b', "a"]]</script>'
    path.write_bytes(path.read_bytes().replace(b"</body>", notes + b"</body>"))
    if depth == 500:
        assert gsl.load_trace(path).notes == ()
        return
    with pytest.raises(TraceFileError, match=r"run\.html.*is damaged or cut off: maximum recursion depth"):
        gsl.load_trace(path)


def test_a_page_that_is_too_large_is_refused(path, monkeypatch):
    monkeypatch.setattr(host, "LARGEST_UNPACKED_BYTES", 100)
    pipeline_trace().timeline().save(path, with_data=True)
    with pytest.raises(TraceFileError, match="larger than 100 bytes"):
        gsl.load_trace(path)
