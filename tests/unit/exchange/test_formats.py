"""What is in a file tells its format; what is no trace is told for what it is; a suffix chooses what is written."""

from __future__ import annotations

import gzip
import os
import tempfile

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange import WRITERS, find_format
from gpustreamlab.exchange._formats import HEAD_BYTES
from tests.helpers.kineto import write_two_streams
from tests.helpers.traces import partition_trace, pipeline_trace
from tests.unit.model.equality import assert_same_trace


@pytest.fixture
def trace():
    return pipeline_trace()


def parquet_of(trace, folder):
    trace.save(folder / "some.parquet")
    return (folder / "some.parquet").read_bytes()


def test_a_format_that_is_named_is_tried_whatever_is_in_the_file(tmp_path):
    (tmp_path / "run").write_bytes(b"\0\1\2\3")
    told = {"kineto": "neither a list", "chrome": "neither a list", "nsys": "no SQLite file", "perfetto": "no packet"}
    for name, words in (told | {"parquet": "is no trace", "spool": "as a spool", "html": "web page"}).items():
        with pytest.raises(TraceFileError, match=words):
            gsl.load_trace(tmp_path / "run", format=name)
    for given, words in {"kinetto": "Did you mean 'kineto'", None: "Choose from", ("kineto",): "kineto"}.items():
        with pytest.raises(OptionError, match=f"format is .*, which is none.*{words}"):
            gsl.load_trace(tmp_path / "run", format=given)


NO_TRACE = {
    "long text": ("aü".encode() * HEAD_BYTES, "looks like a text"),
    "text": (b"hello, world\n" * 9, "looks like a text \\('hello, world"),
    "pickle": (b"\x80\x04\x95", "a pickle, which is not opened"),
    "zeros": (bytes(400), "nothing but zeros, as after a copy that was cut off"),
    "Arrow": (b"ARROW1\0\0", "an Arrow file. pyarrow reads it"),
    "ZIP": (b"PK\x03\x04rest", "cannot be unpacked: File is not a zip file"),
    "empty ZIP": (b"PK\x05\x06" + bytes(18), "a ZIP archive with nothing in it"),
    "UTF-16": ('{"traceEvents": []}'.encode("utf-16"), "Save it as UTF-8"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "CSV": (b'"start_ns","end_ns"\n1,2\n', "from_columns"),
    "XPlane": (b"\x0a\x03abc", "cannot be read as an XPlane file"),
    "bytes": (b"\x01\x02\xff\xfe\x00", "begins with 01 02 ff fe 00"),
    "gzip in gzip": (gzip.compress(gzip.compress(b"x")), "packed by gzip twice"),
    "page of a login": (b"<!DOCTYPE html><html>Sign in</html>", "web page \\(HTML\\) of something else.*Download"),
    "packed page": (gzip.compress(b"\n<HTML>404</HTML>"), "'.*run.json' is no trace: it is a web page"),
    "nothing": (b"", "is empty: the run ended before anything was written"),
    "packed nothing": (gzip.compress(b""), "cannot be unpacked|is empty"),
    "cut off at once": (gzip.compress(b"x" * 99)[:11], "cannot be unpacked.*cut off or is damaged; copy it again"),
    "damaged gzip": (b"\x1f\x8b" + bytes(40), "cannot be unpacked"),
}


@pytest.mark.parametrize(("data", "words"), NO_TRACE.values(), ids=NO_TRACE.keys())
def test_what_is_no_trace_says_what_it_looks_like(tmp_path, data, words):
    path = tmp_path / ("run.xplane.pb" if "XPlane" in words else "run.json")
    path.write_bytes(data)
    with pytest.raises(TraceFileError, match=words) as told:
        gsl.load_trace(path)
    assert str(path) in str(told.value)
    assert "gpustreamlab-" not in str(told.value)  # no name of a temporary file
    assert "looks like" not in str(told.value) or "gsl.load_trace() reads Parquet" in str(told.value)


def test_a_folder_and_what_is_missing_say_what_to_give(tmp_path):
    with pytest.raises(TraceFileError, match=r"is a folder.*sorted\(pathlib.Path\("):
        gsl.load_trace(tmp_path)
    for name in ("gone.json", "n" * 300, "nul\0byte"):
        with pytest.raises(TraceFileError, match=r"no trace file at .*save\(path\)"):
            gsl.load_trace(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path):
    (tmp_path / "run").write_bytes(b"x")
    (tmp_path / "run").chmod(0)
    with pytest.raises(TraceFileError, match="Check its owner and mode"):
        gsl.load_trace(tmp_path / "run")


def test_urls_are_never_opened_and_what_is_no_path_says_so(trace):
    for url in ("https://example.org/run.json.gz", "s3://bucket/run.json", "file:///run.json"):
        with pytest.raises(OptionError, match=r"is a URL, and gpustreamlab opens no connection. Download it"):
            gsl.load_trace(url)
    for given in (3, None, b"run.parquet", trace, [3]):
        with pytest.raises(OptionError, match=r"it takes a path, as gsl.load_trace\('run.parquet'\)"):
            gsl.load_trace(given)


def test_several_files_of_other_formats_are_no_ranks(trace, tmp_path):
    paths = [write_two_streams(tmp_path), tmp_path / "run.parquet"]
    trace.save(paths[1])
    with pytest.raises(OptionError, match=r"run.parquet' is read as 'parquet'.*Load it alone"):
        gsl.load_trace(paths)
    with pytest.raises(OptionError, match="got no file"):
        gsl.load_trace([])


def test_what_is_unpacked_goes_away_and_says_where_there_is_no_room(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    trace.save(tmp_path / "run.parquet")
    path = tmp_path / "run.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "run.parquet").read_bytes()))
    assert_same_trace(gsl.load_trace(path), trace)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceFileError, match="cannot be unpacked"):
        gsl.load_trace(path)
    assert not [*(tmp_path / "temporary").iterdir()]
    (tmp_path / "temporary").rmdir()
    with pytest.raises(FileNotFoundError):
        gsl.load_trace(path)


def test_a_suffix_chooses_what_is_written(trace, tmp_path):
    for suffix in WRITERS:
        trace.save(tmp_path / f"run.v2{suffix.upper()}")
    trace.save(tmp_path / "run")
    assert find_format(tmp_path / "run") == "parquet"
    for name in ("run.xlsx", "run.html", "run.gz", "run.parquet.gz", "run.v2"):
        with pytest.raises(OptionError, match=rf"cannot be saved as '{name}': choose from '.parquet', '.pftrace', .*'.csv'"):
            trace.save(tmp_path / name)


def test_pandas_polars_duckdb_and_pyarrow_read_a_trace_without_copies():
    trace = partition_trace()
    table = pa.table(trace)
    for name in ("start_ns", "end_ns", "queued_ns", "parent", "partition", *trace.extra):
        mine = getattr(trace, name) if name in ("start_ns", "end_ns", "queued_ns", "parent", "partition") else trace.extra[name]
        assert table[name].chunk(0).buffers()[1].address == mine.ctypes.data, name
    wanted = [int(value) for value in trace.end_ns - trace.start_ns]
    assert duckdb.sql("select end_ns - start_ns as took from trace").fetchnumpy()["took"].tolist() == wanted
    frame = pl.DataFrame(trace)
    assert frame["start_ns"].to_numpy(allow_copy=False).ctypes.data == trace.start_ns.ctypes.data
    assert (frame["end_ns"] - frame["start_ns"]).to_list() == wanted
    assert frame["lane"].cast(pl.String).to_list() == [trace.lanes[code].name for code in trace.lane.tolist()]
    assert pd.DataFrame.from_arrow(trace)["end_ns"].tolist() == trace.end_ns.tolist()


@pytest.mark.parametrize("suffix", [*(suffix for suffix in WRITERS if suffix != ".csv"), ".html"])
def test_what_was_saved_is_told_by_its_first_bytes_and_comes_back_exactly(tmp_path, suffix):
    for number, trace in enumerate((pipeline_trace(), partition_trace(), gsl.load_trace(write_two_streams(tmp_path)))):
        path = tmp_path / f"{number}{suffix}"
        trace.timeline().save(path, with_data=True) if suffix == ".html" else trace.save(path)
        path.rename(tmp_path / "nothing said")
        assert_same_trace(gsl.load_trace(tmp_path / "nothing said"), trace)


@pytest.mark.parametrize("suffix", [".PFTRACE", ".Pftrace.GZ", ".JSON.gz", ".PARQUET"])
def test_a_suffix_in_capitals_is_the_same_suffix(tmp_path, suffix):
    pipeline_trace().save(tmp_path / f"RUN{suffix}")
    assert ((tmp_path / f"RUN{suffix}").read_bytes()[:2] == b"\x1f\x8b") == suffix.lower().endswith(".gz")
    assert_same_trace(gsl.load_trace(tmp_path / f"RUN{suffix}"), pipeline_trace())
