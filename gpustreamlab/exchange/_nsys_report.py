"""Exports of Nsight Systems and their tables: rows as columns, by name; absent tables are empty, whatever a column may hold."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from gpustreamlab._util.background import thread_pool
from gpustreamlab._util.shell import steps
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import REPORT_SUFFIXES, is_nsys_folder
from gpustreamlab.model import Device, Partition, SMLimits, most_blocks
from gpustreamlab.recorder import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import Int64Array

Columns: TypeAlias = dict[str, Int64Array]

NO_NUMBER = int(np.iinfo(np.int64).min)  # Stands for all that is no whole number: NULL, text, a float, a blob
SAMPLES = "GPU_METRICS"  # The table of samples of the cards' counters
MOST_ROWS = 20_000_000  # Most rows of a table that are read
MOST_FACTS = 65_536  # Most rows of a table of facts: devices, contexts, streams
LARGEST_VALUE_BYTES = 16 << 20  # Largest text that SQLite may make

_MAGIC = b"SQLite format 3\0"
_LAST_WORDS = 300  # Characters of what nsys said that a message repeats
_FETCH_ROWS = 16_384
LARGEST = 1 << 61  # Larger numbers are none
_MOST_SMS = 1 << 16
_FLAGS = {1: True, 2: False, 3: True}
"""Whether streams and the legacy default stream wait for each other, by what nsys calls flag."""
_GPU_COLUMNS = {
    "name": "name",
    "sms": "smCount",
    "major": "computeMajor",
    "minor": "computeMinor",
    "memory": "totalMemory",
    "registers": "maxRegistersPerSm",
    "shared_bytes": "maxShmemPerSm",
    "blocks": "maxBlocksPerSm",
    "warps": "maxWarpsPerSm",
    "warp": "threadsPerWarp",
    "engines": "asyncEngines",
    "bandwidth": "memoryBandwidth",
}
_MASK_WORD = re.compile(r"0x[0-9a-fA-F]{1,8}")

_Facts: TypeAlias = Mapping[str, int | str]


@contextmanager
def open_report(path: str | PathLike[str]) -> Iterator[Report]:
    """Open an SQLite file, a folder of Parquet files, or what nsys exports a report as, which is removed afterwards."""
    given = Path(path)
    if is_nsys_folder(given):
        yield _Folder(given, str(path))
        return
    with nullcontext(given) if _is_sqlite(given) else _exported(given) as file:
        _require_whole(file)
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            yield _Database(base, str(path))


def export_hint(name: str) -> str:
    """Return what to type for a report."""
    return f"Export it with: nsys export --type sqlite -o {Path(name).stem}.sqlite {name}"


class Report(ABC):
    """A report, open for reading."""

    damaged_count = 0  # Rows that are no rows at all
    cut = ""  # What tells that not all of it is there

    def __init__(self, name: str, columns: Mapping[str, Sequence[str]]) -> None:
        self._name, self._columns = name, columns
        self._counts: dict[str, int] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._columns)

    def columns(self, table: str) -> Sequence[str]:
        """Return the names of a table's columns; none of an absent one."""
        return self._columns.get(table, ())

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        if table in self._columns and table not in self._counts:
            self._counts[table] = self._count(table)
            if self._counts[table] > MOST_ROWS:
                raise TraceFileError(
                    f"{self._name!r} has more than {MOST_ROWS:,} rows of {table}, which are not read. Profile for a shorter "
                    "time: nsys profile --duration=10."
                )
        return self._counts.get(table, 0)

    def numbers(self, table: str, columns: Sequence[str]) -> Columns:
        """Return columns as whole numbers, `NO_NUMBER` where there is none, in the order of the rows."""
        found = {name: np.full(self.count(table), NO_NUMBER) for name in columns}
        if there := self._there(table, columns):
            self._fill(table, {name: found[name] for name in there})
        return found

    def texts(self, table: str, column: str, limit: int) -> Iterator[str | None]:
        """Yield a column's texts, cut off behind `limit` characters; None where there is none."""
        for (text,) in self._rows(table, [column], limit + 1) if self._there(table, [column]) else ():
            yield text[: limit + 1] if type(text) is str else None

    def strings(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return what numbers of names stand for."""
        wanted = set(numbers)
        known = self.numbers("StringIds", ["id"])["id"].tolist()
        texts = self.texts("StringIds", "value", MAX_FULL_NAME)
        return {number: text for number, text in zip(known, texts, strict=False) if number in wanted and text is not None}

    def facts(self, table: str, columns: Sequence[str]) -> list[dict[str, int | str]]:
        """Return the rows of a small table, as far as they are whole numbers and texts."""
        there = self._there(table, columns)
        rows = islice(self._rows(table, there), MOST_FACTS) if there else ()
        return [{name: value for name, value in zip(there, row, strict=True) if type(value) in {int, str}} for row in rows]

    def _there(self, table: str, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name in self.columns(table)]

    @abstractmethod
    def _count(self, table: str) -> int: ...

    @abstractmethod
    def _fill(self, table: str, columns: Columns) -> None: ...

    @abstractmethod
    def _rows(self, table: str, columns: Sequence[str], length: int = 0) -> Iterable[Sequence[Any]]: ...


class _Database(Report):
    """An SQLite file. Nothing that it holds is executed: rows are asked of its tables alone."""

    def __init__(self, base: sqlite3.Connection, name: str) -> None:
        self._base = base
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES)
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        base.execute("pragma trusted_schema=off")
        columns: dict[str, list[str]] = {}
        self._whole: dict[str, set[str]] = {}  # Of each table the columns that are declared to hold whole numbers
        # Columns that SQLite makes when they are read, by whatever a file says, are left alone: nsys has none.
        for table, column, sort in base.execute(
            "select tables.name, columns.name, columns.type from sqlite_master tables, pragma_table_xinfo(tables.name) columns "
            "where tables.type = 'table' and tables.rootpage > 0 and columns.hidden = 0"
        ):
            columns.setdefault(table, []).append(column)
            self._whole.setdefault(table, set()).update([column] if "INT" in sort.upper() else [])
        super().__init__(name, columns)

    def _count(self, table: str) -> int:
        # With the limit it ends, also where pages of a damaged file are below themselves.
        asked = f"select count(*) from (select 1 from {_quoted(table)} not indexed limit {MOST_ROWS + 1})"  # noqa: S608 - quoted
        return int(self._base.execute(asked).fetchone()[0])

    def _fill(self, table: str, columns: Columns) -> None:
        count, done = self.count(table), 0
        with steps(-(-count // _FETCH_ROWS), "reading") as step, thread_pool(1) as pool:
            for parts in self._numbers(pool, table, [*columns]):
                for column, part in zip(columns.values(), parts, strict=True):
                    column[done : done + len(part)] = part[: count - done]
                done += len(parts[0])
                step(f"{self._name}, {table}")

    def _numbers(self, pool: Executor, table: str, columns: Sequence[str]) -> Iterator[Sequence[Int64Array]]:
        """Yield the columns of some rows after the other: one text, which Arrow reads while SQLite writes the next.

        To make an object of each number takes longer than all else; only what Arrow takes for none comes one by one.
        """
        last, reading = -LARGEST, deque[tuple[int, Future[list[Int64Array]]]]()
        names, values = ", ".join(map(_quoted, columns)), ",".join(["%s"] * len(columns))
        rows = f"from {_quoted(table)} not indexed where rowid > ? order by rowid limit {_FETCH_ROWS}"
        line = f"printf('{values}', {names})" if self._whole[table].issuperset(columns) else "null"
        for _ in range(0, self.count(table), _FETCH_ROWS):
            for text in ("cast(group_concat(line, char(10)) as blob)", "null"):  # of what is too long there is none
                with suppress(sqlite3.DataError):
                    sql = f"select max(place), {text} from (select rowid as place, {line} as line {rows})"  # noqa: S608 - quoted
                    place, told = self._base.execute(sql, (last,)).fetchone()
                    break
            if place is None:
                break
            reading.append((last, pool.submit(_columns_of, told, len(columns))))
            last = place
            if len(reading) > 1:
                yield self._read(f"select {names} {rows}", *reading.popleft())
        yield from (self._read(f"select {names} {rows}", *one) for one in reading)

    def _read(self, sql: str, last: int, reading: Future[list[Int64Array]]) -> Sequence[Int64Array]:
        """Return the columns of some rows, as Arrow has read them, or one number after the other."""
        with suppress(pa.ArrowInvalid, TypeError):
            return reading.result()
        found = zip(*self._base.execute(sql, (last,)), strict=True)
        return [np.array([one if type(one) is int else NO_NUMBER for one in column], np.int64) for column in found]

    def _rows(self, table: str, columns: Sequence[str], length: int = 0) -> Iterable[Sequence[Any]]:
        told = ", ".join(f"substr({_quoted(name)}, 1, {length})" if length else _quoted(name) for name in columns)
        # "not indexed", so that they come as they lie in the file, and each once.
        return self._base.execute(f"select {told} from {_quoted(table)} not indexed order by rowid limit {self.count(table)}")  # noqa: S608


class _Folder(Report):
    """What ``nsys export --type=parquetdir`` writes: a Parquet file for each table."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {file.stem: file for file in sorted(folder.glob("*.parquet"))}
        super().__init__(name, {table: pq.read_schema(file).names for table, file in self._files.items()})

    def _count(self, table: str) -> int:
        return int(pq.read_metadata(self._files[table]).num_rows)

    def _fill(self, table: str, columns: Columns) -> None:
        for name, values in columns.items():
            column = self._read(table, [name])[0]
            if pa.types.is_integer(column.type):
                values[: len(column)] = column.cast(pa.int64(), safe=False).fill_null(NO_NUMBER)[: len(values)]

    def _rows(self, table: str, columns: Sequence[str], length: int = 0) -> Iterable[Sequence[Any]]:
        return zip(*self._read(table, columns).to_pydict().values(), strict=True)

    def _read(self, table: str, columns: Sequence[str]) -> pa.Table:
        with pq.ParquetFile(self._files[table]) as file:
            return file.read(columns=list(columns), use_threads=False)


def _columns_of(text: bytes, width: int) -> list[Int64Array]:
    """Return the columns of lines of whole numbers between commas; nothing stands for none."""
    names = [str(place) for place in range(width)]
    read = pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1)
    parse = pa.csv.ParseOptions(quote_char=False, ignore_empty_lines=False)
    convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64()), null_values=[""])
    table = pa.csv.read_csv(pa.BufferReader(text), read, parse, convert)
    return [column.fill_null(NO_NUMBER).to_numpy() for column in table.columns]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_sqlite(path: Path) -> bool:
    if not path.is_file():
        raise TraceFileError(f"{str(path)!r} cannot be read: there is no such file.")
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _require_whole(path: Path) -> None:
    """Raise an error where rows lie in a file beside it: a program is writing, or ended before it was done."""
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        if beside.is_file() and beside.stat().st_size:
            raise TraceFileError(
                f"{str(path)!r} is not whole: {beside.name!r} lies beside it, so it is still being written, or that was cut "
                f"short. Wait until it is done. {export_hint('run.nsys-rep')}"
            )


@contextmanager
def _exported(path: Path) -> Iterator[Path]:
    """Let nsys write the SQLite file of a report."""
    if path.suffix.lower() not in REPORT_SUFFIXES:
        raise TraceFileError(f"{str(path)!r} is no SQLite file of Nsight Systems. {export_hint('run.nsys-rep')}")
    program = shutil.which("nsys")
    if program is None:
        raise TraceFileError(
            f"{str(path)!r} is a report that only Nsight Systems can read, and nsys is not installed here. Where it is: "
            f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
        target = Path(folder) / "report.sqlite"
        command = [program, "export", "--type", "sqlite", "--output", str(target), str(path.absolute())]
        try:
            done = subprocess.run(  # noqa: S603 - the program that the user has installed, with one file's name
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise TraceFileError(f"{str(path)!r} cannot be exported: {program!r} does not run, {error}.") from error
        if done.returncode or not target.is_file() or not _is_sqlite(target):
            said = " ".join(f"{done.stdout} {done.stderr}".split())[-_LAST_WORDS:]
            raise TraceFileError(
                f"{str(path)!r} cannot be exported: nsys ended with {done.returncode} and said {said!r}. It may be of a newer "
                "nsys than this one; export it where it was recorded."
            )
        yield target


class Place(NamedTuple):
    """A stream: what tells it from others."""

    process: int  # Number of the process
    device: int  # As its process counts
    context: int
    green: int  # The green context; 0 for none
    stream: int


class Places:
    """What a report tells of cards, contexts and streams."""

    def __init__(self, report: Report) -> None:
        gpus = report.facts("TARGET_INFO_GPU", ["id", "cuDevice", "uuid", *_GPU_COLUMNS.values()])
        self._gpus = {_whole(told, "id"): told for told in gpus}
        self._by_cuda = {_whole(told, "cuDevice"): _whole(told, "id") for told in gpus if "cuDevice" in told}
        self._by_process = {
            (_whole(told, "pid"), _whole(told, "cudaId")): _whole(told, "gpuId")
            for told in report.facts("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
        }
        contexts = ["processId", "contextId", "nullStreamId", "isGreenContext", "numMultiprocessors", "tpcMask"]
        self._contexts = {_context_key(told): told for told in report.facts("TARGET_INFO_CUDA_CONTEXT_INFO", contexts)}
        for told in report.facts("TARGET_INFO_CUDA_NULL_STREAM", ["processId", "contextId", "streamId"]):
            self._contexts.setdefault(_context_key(told), {"nullStreamId": _whole(told, "streamId")})
        streams = ["streamId", "processId", "contextId", "priority", "flag"]
        self._streams = {
            (*_context_key(told), _whole(told, "streamId")): told for told in report.facts("TARGET_INFO_CUDA_STREAM", streams)
        }

    def gpu_of(self, process: int, device: int) -> int:
        """Return the card that a process calls this device: with CUDA_VISIBLE_DEVICES each counts its own from 0."""
        known = self._by_process.get((process, device))
        return max(self._by_cuda.get(device, device) if known is None else known, 0)

    def device(self, gpu: int) -> Device:
        """Return what the report tells of a card."""
        told = self._gpus.get(gpu, {})
        found = {key: told.get(name, 0) for key, name in _GPU_COLUMNS.items()}
        of = {key: max(_whole(found, key), 0) for key in found}
        limits = {name: of[name] for name in ("blocks", "registers", "shared_bytes")} | {"threads": of["warps"] * of["warp"]}
        limits["blocks"] = limits["blocks"] or (most_blocks(of["major"], of["minor"]) if of["major"] else 0)
        return Device(
            name=cut_text(str(found["name"] or f"GPU {gpu}")),
            ordinal=gpu,
            uuid=cut_text(str(told.get("uuid") or "")),
            sm_count=min(of["sms"], _MOST_SMS),
            compute_capability=(of["major"], of["minor"]),
            memory_bytes=of["memory"],
            memory_bytes_per_s=of["bandwidth"] or None,
            copy_engines=of["engines"] or None,
            sm_limits=SMLimits(**{name: number if number < 1 << 40 else 0 for name, number in limits.items()}),
        )

    def green_of(self, process: int, context: int, told: int) -> int:
        """Return the green context of work; in some versions its context is the green one itself."""
        return told or (context if _whole(self._contexts.get((process, context), {}), "isGreenContext") == 1 else 0)

    def partition(self, process: int, green: int, name: str) -> Partition | None:
        """Return the SMs of a green context; None where the report does not tell how many."""
        told = self._contexts.get((process, green), {})
        sms = _whole(told, "numMultiprocessors")
        if not 0 < sms <= _MOST_SMS:
            return None
        return Partition(name=name, requested_sms=sms, granted_sms=sms, groups=_tpcs(str(told.get("tpcMask", ""))))

    def is_null(self, place: Place) -> bool:
        """Tell whether a stream is the legacy default stream of its context."""
        told = self._contexts.get((place.process, place.context), {})
        return not place.green and told.get("nullStreamId") == place.stream

    def stream(self, place: Place) -> tuple[int, bool | None]:
        """Return the priority of a stream, and whether it and the legacy default stream wait for each other, if known."""
        keys = [(place.process, context, place.stream) for context in (place.green, place.context)]
        told: _Facts = next((self._streams[key] for key in keys if key in self._streams), {})
        number = _whole(told, "priority") & 0xFFFF_FFFF  # of 32 bits, stored without its sign
        is_blocking = True if self.is_null(place) else _FLAGS.get(_whole(told, "flag"))
        return number - (1 << 32 if number >> 31 else 0), is_blocking


def _context_key(told: _Facts) -> tuple[int, int]:
    return _whole(told, "processId"), _whole(told, "contextId")


def _whole(told: _Facts, name: str) -> int:
    value = told.get(name, 0)
    return value if type(value) is int and -LARGEST < value < LARGEST else 0


def _tpcs(mask: str) -> tuple[int, ...]:
    """Return which TPCs a mask has: words of 32 bits, the lowest first. Source: CUPTI, ``CUpti_ActivityGreenContext``."""
    words = mask.split(",")[:32]
    if not all(_MASK_WORD.fullmatch(word.strip()) for word in words):
        return ()
    numbers = [int(word, 16) for word in words]
    return tuple(32 * place + bit for place, number in enumerate(numbers) for bit in range(32) if number >> bit & 1)
