"""Values of any sort are whole numbers or none, and damage of any sort comes to an end."""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from functools import partial

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange import _nsys_report
from gpustreamlab.exchange._nsys_report import NO_NUMBER, open_report
from gpustreamlab.trace import as_trace
from tests.helpers.long_runs import count
from tests.helpers.nsys_files import OTHER_PID, two_streams

read_nsys = partial(gsl.load_trace, format="nsys")

VALUES = [
    *(None, 0, 1, -1, 127, 128, -128, -129, 32_767, -32_769, 1 << 23, -(1 << 23) - 1, 1 << 31, 1 << 47, -(1 << 47), 1 << 62),
    *((1 << 63) - 1, -(1 << 63), 1.5, 3.0, "", "text", "7", "x" * 70, "y" * 9_000, b"", b"\x01" * 200, "é" * 40),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def test_what_is_no_whole_number_is_none(path):
    base = sqlite3.connect(path)
    base.execute("create table t (a INTEGER, b, c REAL, d TEXT)")
    base.executemany("insert into t values (?, ?, ?, ?)", [(value, value, value, value) for value in VALUES])
    base.execute("delete from t where rowid = 3")
    base.execute("update t set rowid = rowid * 1000000007")
    base.commit()
    wanted = base.execute("select a, b, c, d from t order by rowid").fetchall()
    base.close()
    with open_report(path) as report:
        got = report.numbers("t", ["b", "absent", "a", "d", "c"])
        assert report.count("t") == len(wanted)
    for place, name in enumerate("abcd"):
        assert got[name].tolist() == [row[place] if type(row[place]) is int else NO_NUMBER for row in wanted]
    assert set(got["absent"].tolist()) == {NO_NUMBER}


def test_long_tables_of_whole_numbers_are_read_exactly_and_so_is_what_is_none_in_the_midst_of_them(path):
    rows = [(place - 9_000, (1 << 60) - place, None if place % 7 == 0 else -place) for place in range(40_000)]
    rows[20_000] = ("late", 1.5, b"\x01")
    base = sqlite3.connect(path)
    base.execute("create table t (a INTEGER, b INTEGER NOT NULL, c int)")
    base.executemany("insert into t values (?, ?, ?)", rows)
    base.execute("delete from t where rowid between 17000 and 17999")
    base.commit()
    base.close()
    wanted = rows[:16_999] + rows[17_999:]
    with open_report(path) as report:
        got = report.numbers("t", ["a", "b", "c"])
        alone = report.numbers("t", ["c"])["c"]
    for place, name in enumerate("abc"):
        assert got[name].tolist() == [row[place] if type(row[place]) is int else NO_NUMBER for row in wanted]
    assert alone.tolist() == got["c"].tolist()


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
    trace = as_trace(trace)
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
    tried = count(50, 150)
    assert 3 < try_damage(path, range(tried), page_bytes) < tried


def test_any_damage_of_a_folder_gives_a_trace_or_an_error_of_ours(tmp_path):
    folder, read = two_streams().write_folder(tmp_path / "run"), 0
    files = sorted(folder.iterdir())
    for seed in range(60):
        chance = random.Random(seed)
        file = chance.choice(files)
        content = file.read_bytes()
        file.write_bytes(mutate(content, chance, 64))
        try:
            read_nsys(folder)
            read += 1
        except TraceFileError:
            continue
        finally:
            file.write_bytes(content)
    assert 0 < read < 60


def test_any_values_give_a_trace_or_an_error_of_ours(path, monkeypatch):
    monkeypatch.setattr(_nsys_report, "MOST_FACTS", 100)
    strange = [None, -1, 0, 1, 255, 1 << 31, 1 << 32, 0xFFFF_FFFF, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), 2.5, "x", b"\0"]
    content, read = content_of(path, 4_096), 0
    for seed in range(tried := count(10, 60)):
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
    assert read > tried / 2
