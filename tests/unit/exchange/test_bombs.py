"""Files that are small on disk and large in memory, or of which each part takes as long as all before it."""

from __future__ import annotations

import gzip
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab._util import host
from gpustreamlab.errors import TraceFileError
from tests.helpers.files import METADATA_KEY

LIMIT_BYTES = 2 << 20


@pytest.fixture
def low_limit(monkeypatch):
    monkeypatch.setattr(host, "LARGEST_UNPACKED_BYTES", LIMIT_BYTES)


@pytest.mark.parametrize(
    ("name", "begin", "part"),
    [
        ("ours.json.gz", b'{"gpustreamlab": "', b"A"),
        ("events.json.gz", b'{"traceEvents": [', b" "),
        ("kineto.json.gz", b'{"schemaVersion": 1, "a": "', b"A"),
        ("packets.pftrace.gz", b"\x0a\x02\x50\x01", b"\x0a\x00"),
        ("rows.parquet.gz", b"PAR1", b"\0"),
        ("page.html.gz", b"<!DOCTYPE html>", b" "),
    ],
)
def test_what_is_packed_unpacks_up_to_the_limit(tmp_path, low_limit, name, begin, part):
    path = tmp_path / name
    path.write_bytes(gzip.compress(begin + part * (2 * LIMIT_BYTES)))
    with pytest.raises(TraceFileError, match=rf"{name}' is larger than 2,097,152 bytes, unpacked.*Load it where more is free"):
        gsl.load_trace(path)


def test_a_packed_file_that_looks_like_a_tar_by_chance_is_none(tmp_path, low_limit):
    # GIVEN a time in its head with which the sum of a tar's head is right
    path, packed = tmp_path / "rows.parquet.gz", gzip.compress(b"PAR1" + b"\0" * (2 * LIMIT_BYTES), mtime=0)
    for time_s in range(1_795_900_000, 1_796_000_000):
        path.write_bytes(packed[:4] + time_s.to_bytes(4, "little") + packed[8:])
        if tarfile.is_tarfile(path):
            break
    with pytest.raises(TraceFileError, match="is larger than 2,097,152 bytes, unpacked"):
        gsl.load_trace(path)


def zeros(row_count):
    """Return a table of a trace with so many equal rows."""
    table = pa.table(Trace.from_columns(start_ns=[0], end_ns=[0], stream=["a"]))
    return table.take(pa.array(np.zeros(row_count, np.int64)))


def test_the_rows_of_a_parquet_file_are_counted_before_they_are_read(tmp_path, low_limit, monkeypatch):
    path = tmp_path / "zeros.parquet"
    pq.write_table(zeros(50_000), path, compression="zstd")
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_: pytest.fail("columns are read"))
    with pytest.raises(TraceFileError, match="is larger than 2,097,152 bytes, unpacked"):
        gsl.load_trace(path)


def test_a_parquet_file_of_something_else_is_known_by_its_columns(tmp_path, monkeypatch):
    path, table = tmp_path / "other.parquet", zeros(3)
    pq.write_table(pa.table({"zero": [0, 0]}), path)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_: pytest.fail("columns are read"))
    with pytest.raises(TraceFileError, match="holds no gpustreamlab metadata"):
        gsl.load_trace(path)
    place = table.column_names.index("start_ns")
    pq.write_table(table.set_column(place, "start_ns", pa.array(["0"] * 3)), path)
    assert METADATA_KEY in pq.read_schema(path).metadata
    with pytest.raises(TraceFileError, match="'start_ns' holds .*string.*, not numbers"):
        gsl.load_trace(path)


def test_a_text_of_a_parquet_file_is_held_once_whatever_the_schema_says(tmp_path):
    path, table = tmp_path / "text.parquet", zeros(2_000)
    long = pa.array(["a" * 100_000]).take(pa.array(np.zeros(2_000, np.int64)))
    pq.write_table(table.set_column(table.column_names.index("name"), "name", long), path)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(TraceFileError, match="trace's own table does not hold"):
        gsl.load_trace(path)
    assert pa.default_memory_pool().max_memory() <= max(before, pa.total_allocated_bytes() + (200 << 20) // 2)


def test_the_columns_of_a_parquet_file_are_never_there_twice(tmp_path, monkeypatch):
    path, row_count = tmp_path / "run.parquet", 100_000
    pq.write_table(zeros(row_count), path)
    plain, held = pq.ParquetFile.read, []

    def read(*args):
        table = plain(*args)
        held.append(pa.total_allocated_bytes())
        return table

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    before = pa.total_allocated_bytes()
    assert len(gsl.load_trace(path)) == row_count
    assert len(held) == 9
    assert max(held) - before < 3 * 8 * row_count  # of 49 bytes a row


def test_half_of_the_memory_that_is_free_is_the_limit_where_it_is_less(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_CONTAINER", tmp_path)
    assert host.room_bytes() == host.LARGEST_UNPACKED_BYTES
    (tmp_path / "meminfo").write_text("MemTotal:  900 kB\nMemAvailable:   600 kB\n")
    assert host.room_bytes() == 300 << 10
    for name, text in {"max": "400000\n", "current": "300000\n", "stat": "anon 7\ninactive_file 100000\nslab 5\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert host.room_bytes() == 100_000
    (tmp_path / "memory.max").write_text("max\n")
    assert host.room_bytes() == 300 << 10


def test_a_deep_nest_is_read_as_it_is(tmp_path):
    path, depth = tmp_path / "run.json", 10_000
    begins = [{"ph": "B", "name": "f", "ts": place} for place in range(depth)]
    path.write_text(json.dumps(begins + [{"ph": "E", "ts": depth + place} for place in range(depth)]))
    trace = gsl.load_trace(path)
    assert trace.parent.tolist() == [*range(-1, depth - 1)]
    assert trace.end_ns.tolist() == [1_000 * (2 * depth - 1 - place) for place in range(depth)]
