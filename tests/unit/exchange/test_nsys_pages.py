"""What is read off the pages of a database is what SQLite reads, and damage of any sort comes to an end."""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress

import pytest

from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange import _nsys_report
from gpustreamlab.exchange._nsys import read_nsys
from gpustreamlab.exchange._nsys_pages import NO_NUMBER, DamagedError
from gpustreamlab.exchange._nsys_report import Report
from tests.helpers.nsys_files import OTHER_PID, NsysFile, two_streams

VALUES = [
    *(None, 0, 1, -1, 127, 128, -128, -129, 32_767, -32_769, 1 << 23, -(1 << 23) - 1, 1 << 31, 1 << 47, -(1 << 47), 1 << 62),
    *((1 << 63) - 1, -(1 << 63), 1.5, 3.0, "", "text", "7", "x" * 70, "y" * 9_000, b"", b"\x01" * 200, "é" * 40),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def write_random(path, seed):
    """Write a table of values of any sort; return its columns."""
    chance = random.Random(seed)
    columns = [f"c{place}" for place in range(chance.randint(1, 40))]
    values = VALUES if seed % 3 else [value for value in VALUES if not isinstance(value, (str, bytes)) or len(value) < 100]
    rows = [[chance.choice(values) for _ in columns] for _ in range(chance.choice([0, 1, 50, 700]))]
    base = sqlite3.connect(path)
    base.execute(f"pragma page_size={chance.choice([512, 1_024, 4_096, 65_536])}")
    kinds = [chance.choice(["INTEGER", "TEXT", "REAL", "", "BLOB"]) for _ in columns]
    base.execute(f"create table t ({', '.join(f'{name} {kind}' for name, kind in zip(columns, kinds, strict=True))})")
    base.executemany(f"insert into t values ({', '.join('?' * len(columns))})", rows)
    if seed % 4 == 0:
        base.execute("delete from t where rowid % 3 = 0")
    if seed % 5 == 0:
        base.execute("update t set rowid = rowid * 1000000007")
    base.commit()
    base.close()
    return columns


@pytest.mark.parametrize("seed", range(24))
def test_numbers_are_those_that_sqlite_reads(path, seed):
    columns = write_random(path, seed)
    chosen = random.Random(seed).sample([*columns, "absent"], min(5, len(columns)))
    base = sqlite3.connect(path)
    wanted = base.execute(f"select {', '.join(columns)} from t order by rowid").fetchall()
    base.close()
    report = Report(path, "run")
    try:
        got = report.numbers("t", chosen)
        assert report.count("t") == len(wanted)
    finally:
        report.close()
    for name in chosen:
        place = columns.index(name) if name in columns else None
        values = [NO_NUMBER if place is None or type(row[place]) is not int else row[place] for row in wanted]
        assert got[name].tolist() == values


def test_plain_tables_are_read_off_their_pages(path, monkeypatch):
    two_streams().write(path)
    monkeypatch.setattr(Report, "_ask_numbers", None)  # SQLite is not asked
    assert len(read_nsys(path)) == 13


def test_a_table_that_goes_round_in_a_ring_is_found_out(path):
    made = NsysFile()
    for at in range(3_000):
        made.kernel(at, at + 1, correlation=at)
    content = bytearray(made.write(path, page_bytes=512).read_bytes())
    interiors = [at for at in range(512, len(content), 512) if content[at] == 5]
    assert len(interiors) > 2
    for at in interiors:  # every one is below itself
        content[at + 8 : at + 12] = (at // 512 + 1).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match="names a page twice"):
        read_nsys(path)


def test_a_schema_that_goes_round_in_a_ring_is_found_out(path):
    base = sqlite3.connect(path)
    base.execute("pragma page_size=512")
    for table in range(60):
        base.execute(f"create table t{table} (start, end, deviceId)")
    base.commit()
    base.close()
    content = bytearray(path.read_bytes())
    assert content[100] == 5
    content[108:112] = (1).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match="names a page twice"):
        read_nsys(path)


def test_rows_that_are_said_to_be_larger_than_the_file_are_found_out(path):
    made = NsysFile()
    made.nvtx(0, 1, "a" * 12_000)
    content = made.write(path, page_bytes=512).read_bytes()
    told = bytes([0x80 | 12_000 >> 7])  # the first byte of a size in two
    at = next(at for at in range(512, len(content)) if content[at : at + 1] == told and content[at + 2 : at + 3] == b"\x01")
    path.write_bytes(content[:at] + b"\xff\x7f\x01" + content[at + 3 :])
    with pytest.raises(TraceFileError, match="larger than it is"):
        read_nsys(path)


def test_a_kind_of_value_that_is_below_nought_is_found_out(path):
    base = sqlite3.connect(path)
    base.execute("create table CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, bytes, x, y, z, u, v, w)")
    base.execute("insert into CUPTI_ACTIVITY_KIND_MEMSET values (1000000, 2000000, 0, 70000, 7, 7, 7, 7, 7, 7)")
    base.commit()
    base.close()
    content = path.read_bytes()
    told = bytes([11, 3, 3, 8, 3, 1, 1, 1, 1, 1, 1])  # how long the head of the row is, and the kinds of its values
    assert content.count(told) == 1
    path.write_bytes(content.replace(told, told[:1] + b"\xc0" + b"\x80" * 7 + b"\0" + told[-1:]))
    with pytest.raises(TraceFileError, match="beyond its row"):
        read_nsys(path)


def test_a_file_that_becomes_shorter_is_damaged(path):
    write_random(path, 2)
    report = Report(path, "run")
    try:
        with path.open("r+b") as file:
            file.truncate(512)
        with pytest.raises(DamagedError, match="became shorter"):
            report.numbers("t", ["c0"])
    finally:
        report.close()


def mutate(content, chance, page_bytes):
    """Return a report with some bytes changed: anywhere, in the head, at the beginning of pages, or a piece moved."""
    broken = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(broken))
        kind = chance.randrange(6)
        if kind == 0:
            broken[at] = chance.randrange(256)
        elif kind == 1:
            broken[chance.randrange(16, 100)] = chance.choice([0, 1, 2, 5, 13, 127, 128, 255])
        elif kind == 2:
            at = at // page_bytes * page_bytes + chance.randrange(14)
            broken[at] = chance.choice([0, 1, 2, 5, 10, 13, 127, 128, 255])
        elif kind == 3:
            size = chance.randint(1, 64)
            broken[at : at + size] = chance.randbytes(min(size, len(broken) - at))
        elif kind == 4:
            source, target = (chance.randrange(len(broken) // page_bytes) * page_bytes for _ in range(2))
            broken[target : target + page_bytes] = broken[source : source + page_bytes]
        else:
            del broken[chance.randrange(len(broken) // 2, len(broken)) :]
    return bytes(broken)


def content_of(path, page_bytes):
    made = two_streams()
    for at in range(60):
        made.launch(10_000 + at, 20_000 + at * 9, 20_008 + at * 9, f"kernel{at % 7}", correlation=100 + at, pid=OTHER_PID)
        made.nvtx(10_000 + at, 10_002 + at, f"range {at}", pid=OTHER_PID)
    return made.write(path, page_bytes=page_bytes).read_bytes()


def ask(trace):
    """Ask what no trace may fail at; those of several ranks say that they are."""
    repr((trace.idle(), trace.overlap(), trace.host_waits()))
    with suppress(OptionError):
        repr((trace.explain(), trace.critical_path()))


def try_damage(path, seeds, page_bytes):
    """Read damaged reports; return how many of them were read."""
    content, read = content_of(path, page_bytes), 0
    for seed in seeds:
        path.write_bytes(mutate(content, random.Random(seed), page_bytes))
        try:
            trace = read_nsys(path)
            if seed % 8 == 0:
                ask(trace)
            read += 1
        except TraceFileError:
            continue
    return read


@pytest.mark.parametrize("page_bytes", [512, 4_096])
def test_any_damage_gives_a_trace_or_an_error_of_ours(path, page_bytes):
    assert 10 < try_damage(path, range(150), page_bytes) < 150


def test_any_values_give_a_trace_or_an_error_of_ours(path, monkeypatch):
    monkeypatch.setattr(_nsys_report, "MOST_FACTS", 100)
    strange = [None, -1, 0, 1, 255, 1 << 31, 1 << 32, 0xFFFF_FFFF, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), 2.5, "x", b"\0"]
    content, read = content_of(path, 4_096), 0
    for seed in range(60):
        chance = random.Random(seed)
        path.write_bytes(content)
        base = sqlite3.connect(path, isolation_level=None)
        base.execute("pragma synchronous=off")
        tables = [name for (name,) in base.execute("select name from sqlite_master where type = 'table'")]
        for _ in range(chance.randint(1, 8)):
            table = chance.choice(tables)
            column = chance.choice([row[1] for row in base.execute(f"pragma table_info({table})")])
            kind = chance.randrange(8)
            if kind == 0:
                base.execute(f"drop table {table}")
                tables.remove(table)
            elif kind == 1:
                base.execute(f'alter table {table} rename column "{column}" to "other{chance.random()}"')
            else:
                base.execute(f'update {table} set "{column}" = ? where rowid % ? = 0', (chance.choice(strange), kind - 1))
        base.close()
        try:
            trace = read_nsys(path)
            ask(trace)
            read += 1
        except TraceFileError:
            continue
    assert read > 30
