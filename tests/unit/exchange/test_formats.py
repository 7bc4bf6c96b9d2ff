"""What is in a file tells its format; what is no trace is told for what it is; a suffix chooses what is written."""

from __future__ import annotations

import errno
import gzip
import os
import random
import sqlite3
import sys
import time
import types

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab import Session
from gpustreamlab._util import host
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange import FORMATS, WRITERS, _formats, _pftrace_packets, find_format
from gpustreamlab.exchange._formats import HEAD_BYTES
from gpustreamlab.workloads import spin
from tests.helpers.kineto import write_two_streams
from tests.helpers.traces import make_trace, partition_trace, pipeline_trace
from tests.unit.model.equality import assert_same_trace


@pytest.fixture
def trace():
    return pipeline_trace()


@pytest.fixture
def readers(monkeypatch):
    """Stand in for the readers of others' files: what was asked of which."""
    asked = []

    def reader(name):
        return lambda path: asked.append((name, path)) or make_trace([("a", name, 0, 9)])

    def add(module, **functions):
        made = types.ModuleType(f"gpustreamlab.exchange.{module}")
        vars(made).update(functions)
        monkeypatch.setitem(sys.modules, made.__name__, made)

    monkeypatch.setattr(_formats, "read_arrow", reader("arrow"))
    add("_nsys", read_nsys=reader("nsys"))
    add("_pftrace", read_pftrace=reader("perfetto"))
    add("_pftrace_packets", is_pftrace=lambda head: b"packet" in head)
    add("_chrome", read_chrome=reader("chrome"))
    add("_chrome_json", guess_writer=lambda head: "kineto" if b'"deviceProperties"' in head else "chrome")
    add("_kineto", read_kineto=reader("kineto"))
    return asked


def html_of(trace, folder, **options):
    trace.timeline().save(folder / "page.html", **options)
    return (folder / "page.html").read_bytes()


def spool_of(folder):
    with Session("sim", spool=folder / "spool.gsl", capture="ranges") as lab:
        lab.stream("a")
        with lab.on("a", "x"):
            spin(lab, 1_000)
    return (folder / "spool.gsl").read_bytes()


def sqlite_of(folder):
    with sqlite3.connect(folder / "some.sqlite") as database:
        database.execute("create table t (x)")
    database.close()
    return (folder / "some.sqlite").read_bytes()


def parquet_of(trace, folder):
    trace.save(folder / "some.parquet")
    return (folder / "some.parquet").read_bytes()


CONTENTS = {
    "parquet": parquet_of,
    "spool": lambda trace, folder: spool_of(folder),
    "html": lambda trace, folder: html_of(trace, folder, with_data=True),
    "nsys": lambda trace, folder: sqlite_of(folder),
    "arrow": lambda trace, folder: b"ARROW1\0\0 and so on",
    "kineto": lambda trace, folder: b'\xef\xbb\xbf \n{"deviceProperties": []',
    "chrome": lambda trace, folder: b'[{"ph": "X"}',
    "perfetto": lambda trace, folder: b"\x0a\x06packet",
}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_the_first_bytes_choose_the_reader_whatever_the_suffix(trace, readers, tmp_path, name, is_packed):
    assert set(CONTENTS) == set(FORMATS)
    data = CONTENTS[name](trace, tmp_path)
    path = tmp_path / ("run.parquet" if name != "parquet" else "run.json")
    path.write_bytes(gzip.compress(data) if is_packed and name != "perfetto" else data)
    for form in ("auto", name):
        loaded = gsl.load_trace(path, form)
        if name in ("parquet", "html"):
            assert_same_trace(loaded, trace)
        elif name == "spool":
            assert loaded.names == ("x",)
        else:
            asked, given = readers.pop()
            assert asked == name
            # Arrow and SQLite are unpacked in front of their readers; the others unpack by themselves
            assert (given == path) is (name not in ("arrow", "nsys") or not is_packed)
    assert not readers


def test_a_format_that_is_named_is_tried_whatever_is_in_the_file(readers, tmp_path):
    (tmp_path / "run").write_bytes(b"\0\1\2\3")
    for name in ("kineto", "chrome", "nsys", "perfetto", "arrow"):
        gsl.load_trace(tmp_path / "run", format=name)
        assert readers.pop() == (name, tmp_path / "run")
    for name, words in {"parquet": "is no trace", "spool": "as a spool", "html": "web page"}.items():
        with pytest.raises(TraceFileError, match=words):
            gsl.load_trace(tmp_path / "run", format=name)
    for given, words in {"kinetto": "Did you mean 'kineto'", None: "Choose from", ("kineto",): "kineto"}.items():
        with pytest.raises(OptionError, match=f"format is .*, which is none.*{words}"):
            gsl.load_trace(tmp_path / "run", format=given)


def test_a_report_of_nsys_is_known_by_its_name_where_nothing_else_knows_it(readers, tmp_path):
    (tmp_path / "run.NSYS-REP").write_bytes(b"\x10\x20 no one knows")
    assert len(gsl.load_trace(tmp_path / "run.NSYS-REP")) == 1
    assert readers == [("nsys", tmp_path / "run.NSYS-REP")]


NO_TRACE = {
    "long text": ("aü".encode() * HEAD_BYTES, "looks like a text"),
    "text": (b"hello, world\n" * 9, "looks like a text \\('hello, world"),
    "pickle": (b"\x80\x04\x95", "a pickle, which is not opened"),
    "zeros": (bytes(400), "nothing but zeros, as after a copy that was cut off"),
    "ZIP": (b"PK\x03\x04rest", "a ZIP archive. Unpack it"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "CSV": (b'"start_ns","end_ns"\n1,2\n', "from_columns"),
    "XPlane": (b"\x0a\x03abc", "an XPlane file of JAX or XLA. Read the .trace.json.gz that lies beside it"),
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
def test_what_is_no_trace_says_what_it_looks_like(readers, tmp_path, data, words):
    path = tmp_path / ("run.xplane.pb" if "XPlane" in words else "run.json")
    path.write_bytes(data)
    with pytest.raises(TraceFileError, match=words) as told:
        gsl.load_trace(path)
    assert str(path) in str(told.value)
    assert "gpustreamlab-" not in str(told.value)  # no name of a temporary file
    assert "looks like" not in str(told.value) or "gsl.load_trace() reads Parquet" in str(told.value)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-4] + bytes(4), lambda data: data[:-400], lambda data: data[:-40] + bytes(40)]
)
def test_a_packed_file_that_is_damaged_further_on_goes_to_its_reader(readers, tmp_path, damage):
    chance = random.Random(3)
    text = b'{"deviceProperties": [' + bytes(chance.randrange(32, 127) for _ in range(2_000))
    (tmp_path / "run").write_bytes(damage(gzip.compress(text)))
    gsl.load_trace(tmp_path / "run")
    assert readers == [("kineto", tmp_path / "run")]


def test_a_file_of_many_packed_parts_is_looked_at_in_bounded_time(readers, tmp_path):
    text = b'{"deviceProperties": []}'
    (tmp_path / "run").write_bytes(b"".join(gzip.compress(text[place : place + 5]) for place in range(0, len(text), 5)))
    gsl.load_trace(tmp_path / "run")
    assert readers == [("kineto", tmp_path / "run")]
    (tmp_path / "run").write_bytes(gzip.compress(b"") * 100_000)
    began_s = time.monotonic()
    with pytest.raises(TraceFileError, match="cannot be unpacked|is empty"):
        gsl.load_trace(tmp_path / "run")
    assert time.monotonic() - began_s < 5


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


def test_urls_of_files_are_paths_and_others_are_never_opened(trace, tmp_path):
    path = tmp_path / "a run %41.parquet"
    trace.save(path)
    assert_same_trace(gsl.load_trace(path.as_uri()), trace)
    assert_same_trace(gsl.load_trace(path.as_uri().replace("file://", "FILE://localhost")), trace)
    for url in ("https://example.org/run.json.gz", "s3://bucket/run.json", "file://host/run.json"):
        with pytest.raises(OptionError, match=r"on another machine, and gpustreamlab opens no connection. Download it"):
            gsl.load_trace(url)
    for given in (3, None, b"run.parquet", trace, [3]):
        with pytest.raises(OptionError, match=r"it takes a path, as gsl.load_trace\('run.parquet'\)"):
            gsl.load_trace(given)


def test_several_files_are_ranks_of_one_job(readers, trace, tmp_path):
    paths = [tmp_path / f"rank{rank}.json" for rank in range(3)]
    for path in paths:
        path.write_bytes(b'{"deviceProperties": []')
    gsl.load_trace(path for path in paths)
    gsl.load_trace([str(path) for path in paths], "kineto")
    gsl.load_trace(paths[:1])
    assert readers == [("kineto", paths), ("kineto", paths), ("kineto", paths[0])]
    trace.save(tmp_path / "run.parquet")
    with pytest.raises(OptionError, match=r"run.parquet' is read as 'parquet'.*Load it alone"):
        gsl.load_trace([*paths, tmp_path / "run.parquet"])
    with pytest.raises(OptionError, match="got no file"):
        gsl.load_trace([])


def test_what_is_unpacked_is_bounded_and_goes_away(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(_formats.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = tmp_path / "run.parquet.gz"
    path.write_bytes(gzip.compress(parquet_of(trace, tmp_path)))
    assert_same_trace(gsl.load_trace(path), trace)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceFileError, match="cannot be unpacked"):
        gsl.load_trace(path)
    path.write_bytes(gzip.compress(b"PAR1" + bytes(1 << 20)))
    with (
        monkeypatch.context() as patched,
        pytest.raises(TraceFileError, match=r"run\.parquet\.gz' is larger than 1,000 bytes, unpacked"),
    ):
        patched.setattr(host, "LARGEST_UNPACKED_BYTES", 1_000)
        gsl.load_trace(path)

    def fail(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_formats, "_unpack", fail)
    with pytest.raises(TraceFileError, match="No space left on device. Make room there, or choose another folder"):
        gsl.load_trace(path)
    assert not [*(tmp_path / "temporary").iterdir()]


def test_a_suffix_chooses_what_is_written(trace, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(_formats, "_load", lambda name: lambda trace, path: written.append((name, path.name)))
    for suffix in WRITERS:
        trace.save(tmp_path / f"run.v2{suffix.upper()}")
    trace.save(tmp_path / "run")
    assert written == [*((WRITERS[suffix], f"run.v2{suffix.upper()}") for suffix in WRITERS), (WRITERS[".parquet"], "run")]
    for name in ("run.xlsx", "run.html", "run.gz", "run.parquet.gz", "run.v2"):
        with pytest.raises(
            OptionError, match=rf"cannot be saved as '{name}': choose from '.parquet', '.pftrace', .*'.feather'"
        ):
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


@pytest.mark.parametrize("suffix", [*(suffix for suffix in WRITERS if suffix not in {".csv", ".nsys-rep"}), ".html"])
def test_what_was_saved_is_told_by_its_first_bytes_and_comes_back_exactly(tmp_path, suffix):
    for number, trace in enumerate((pipeline_trace(), partition_trace(), gsl.load_trace(write_two_streams(tmp_path)))):
        path = tmp_path / f"{number}{suffix}"
        trace.timeline().save(path, with_data=True) if suffix == ".html" else trace.save(path)
        path.rename(tmp_path / "nothing said")
        assert_same_trace(gsl.load_trace(tmp_path / "nothing said"), trace)


@pytest.mark.parametrize("suffix", [".PFTRACE", ".Pftrace.GZ", ".JSON.gz", ".Arrow", ".PARQUET"])
def test_a_suffix_in_capitals_is_the_same_suffix(tmp_path, suffix):
    pipeline_trace().save(tmp_path / f"RUN{suffix}")
    assert ((tmp_path / f"RUN{suffix}").read_bytes()[:2] == b"\x1f\x8b") == suffix.lower().endswith(".gz")
    assert_same_trace(gsl.load_trace(tmp_path / f"RUN{suffix}"), pipeline_trace())


def test_where_the_look_at_a_file_of_perfetto_ends_is_no_matter(tmp_path, monkeypatch):
    make_trace([("a", f"name {k % 50}", 10 * k, 10 * k + 5) for k in range(400)]).save(tmp_path / "run.pftrace")
    for look_bytes in range(6_000, 6_120):
        monkeypatch.setattr(_pftrace_packets, "_LOOK_BYTES", look_bytes)
        assert find_format(tmp_path / "run.pftrace") == "perfetto", look_bytes
