"""Files of Nsight Systems and their tables: rows as columns, by name; absent tables are empty, whatever a column may hold."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import REPORT_SUFFIXES
from gpustreamlab.exchange._nsys_pages import CHUNK_PAGES, NO_NUMBER, Pages
from gpustreamlab.record import MAX_FULL_NAME
from gpustreamlab.typing import BoolArray, Int64Array

Columns: TypeAlias = dict[str, Int64Array]

MOST_ROWS = 20_000_000
"""Most rows of a table that are read."""
MOST_TABLES = 2_000
"""Most tables of a file."""
MOST_FACTS = 65_536
"""Most rows of a table of facts: devices, contexts, streams."""
LARGEST_VALUE_BYTES = 16 << 20
"""Largest text that SQLite may make."""

_MAGIC = b"SQLite format 3\0"
_LAST_WORDS = 300
"""Characters of what nsys said that a message repeats."""
_SCHEMA_PAGE = 1
_FETCH_ROWS = 8_192
_LARGEST_TIME_NS = 1 << 61
_FLOAT_TYPES = ("REAL", "FLOA", "DOUB")
"""In columns of these types SQLite stores whole numbers that it reads as floats."""


@contextmanager
def as_sqlite(path: str | PathLike[str]) -> Iterator[Path]:
    """Give the SQLite file that a file is, or that nsys exports it as, in a folder that is removed afterwards.

    Raises
    ------
    TraceFileError
        If there is none, it is still being written, or nsys is needed and not there.
    """
    given = Path(path)
    if _is_sqlite(given):
        _require_whole(given)
        yield given
    elif given.suffix.lower() in REPORT_SUFFIXES:
        with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
            yield _export(given, Path(folder))
    else:
        raise TraceFileError(f"{str(given)!r} is no SQLite file of Nsight Systems. {export_hint('run.nsys-rep')}")


def export_hint(name: str) -> str:
    """Return what to type for a report."""
    return f"Export it with: nsys export --type sqlite -o {Path(name).stem}.sqlite {name}"


class _Table(NamedTuple):
    root: int
    columns: tuple[str, ...]
    is_plain: bool
    """Whether its rows lie on the pages as its columns are declared."""


class Report:
    """A report, open for reading.

    Parameters
    ----------
    path
        An SQLite file.
    name
        How messages call it.

    Raises
    ------
    sqlite3.Error, DamagedError
        By this and every method, if the file is damaged.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._leaves: dict[str, tuple[Int64Array, int]] = {}
        with ExitStack() as stack:
            self._pages = Pages(stack.enter_context(path.open("rb")))
            self._base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            stack.callback(self._base.close)
            self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES)
            self._base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._tables = self._read_tables()
            self._opened = stack.pop_all()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._tables)

    @property
    def step_count(self) -> int:
        """How many steps reading every table takes."""
        return 1 + self._pages.count // CHUNK_PAGES

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of a table's columns; none of an absent one."""
        return self._tables[table].columns if table in self._tables else ()

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return self._find_leaves(table)[1] if table in self._tables else 0

    def numbers(self, table: str, columns: Sequence[str], step: Callable[[], None] = lambda: None) -> Columns:
        """Return columns as whole numbers, `NO_NUMBER` where there is none, in the order of the rows."""
        there = [name for name in columns if name in self.columns(table)]
        found = dict(zip(there, self._read_numbers(table, there, step), strict=True)) if there else {}
        return {name: found[name] if name in found else np.full(self.count(table), NO_NUMBER) for name in columns}

    def texts(self, table: str, column: str, limit: int) -> Iterator[str | None]:
        """Yield a column's texts, cut off behind `limit` characters; None where there is none."""
        for (text,) in self._select(table, [f"substr({_quoted(column)}, 1, {limit + 1})"]):
            yield text if type(text) is str else None

    def strings(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return what numbers of names stand for."""
        wanted = set(numbers)
        if not {"id", "value"} <= {*self.columns("StringIds")}:
            return {}
        rows = self._select("StringIds", ["id", f"substr(value, 1, {MAX_FULL_NAME + 1})"])
        return {number: text for number, text in rows if number in wanted and type(text) is str}

    def facts(self, table: str, columns: Sequence[str]) -> list[dict[str, int | str]]:
        """Return the rows of a small table, as far as they are whole numbers and texts."""
        there = [name for name in columns if name in self.columns(table)]
        rows = islice(self._select(table, map(_quoted, there)), MOST_FACTS) if there else ()
        return [{name: value for name, value in zip(there, row, strict=True) if type(value) in {int, str}} for row in rows]

    def _read_tables(self) -> dict[str, _Table]:
        self._pages.leaves(_SCHEMA_PAGE)  # a tree, before SQLite reads it
        self._base.execute("pragma trusted_schema=off")
        rows = self._base.execute(
            f"select name, rootpage from sqlite_master where type = 'table' and rootpage > 0 limit {MOST_TABLES}"  # noqa: S608
        ).fetchall()
        tables = {}
        for name, root in rows:
            told = self._base.execute(f"pragma table_xinfo({_quoted(name)})").fetchall()
            is_plain = not any(
                hidden or key or any(kind in str(declared).upper() for kind in _FLOAT_TYPES)
                for _, _, declared, _, _, key, hidden in told
            )
            # Columns that SQLite makes when they are read, by whatever a file says, are left alone: nsys has none.
            tables[name] = _Table(root, tuple(str(row[1]) for row in told if not row[6]), is_plain)
        return tables

    def _find_leaves(self, table: str) -> tuple[Int64Array, int]:
        """Return the pages of a table, and how many rows they have. Thereby they are known to be a tree, which has an end."""
        if table not in self._leaves:
            leaves, row_count = self._pages.leaves(self._tables[table].root)
            if row_count > MOST_ROWS:
                raise TraceFileError(
                    f"{self._name!r} has {row_count:,} rows of {table}; {MOST_ROWS:,} are read. Profile for a shorter time: "
                    "nsys profile --duration=10."
                )
            self._leaves[table] = leaves, row_count
        return self._leaves[table]

    def _read_numbers(self, table: str, columns: Sequence[str], step: Callable[[], None]) -> Int64Array:
        (leaves, row_count), kind = self._find_leaves(table), self._tables[table]
        places = [kind.columns.index(name) for name in columns]
        found = self._pages.read(leaves, row_count, places, step) if kind.is_plain else None
        return self._ask_numbers(table, columns, step) if found is None else found

    def _ask_numbers(self, table: str, columns: Sequence[str], step: Callable[[], None]) -> Int64Array:
        """Return columns as SQLite reads them."""
        cursor = self._select(table, map(_quoted, columns))
        parts = [np.empty((len(columns), 0), np.int64)]
        while rows := cursor.fetchmany(_FETCH_ROWS):
            values = (value if type(value) is int else NO_NUMBER for row in rows for value in row)
            parts.append(np.fromiter(values, np.int64, len(rows) * len(columns)).reshape(-1, len(columns)).T)
            step()
        return np.concatenate(parts, axis=1)

    def _select(self, table: str, columns: Iterable[str]) -> sqlite3.Cursor:
        self._find_leaves(table)
        return self._base.execute(f"select {', '.join(columns)} from {_quoted(table)} order by rowid")  # noqa: S608 - quoted


def timed(rows: Columns) -> tuple[Columns, int]:
    """Return the rows whose times make sense, and how many others there are."""
    start_ns, end_ns = rows["start"], rows["end"]
    is_good = (start_ns > -_LARGEST_TIME_NS) & (end_ns < _LARGEST_TIME_NS) & (start_ns <= end_ns)
    return chosen(rows, is_good), len(is_good) - int(np.count_nonzero(is_good))


def chosen(rows: Columns, which: BoolArray) -> Columns:
    """Return some of the rows."""
    return rows if which.all() else {name: values[which] for name, values in rows.items()}


def or_nought(values: Int64Array, below: int = 1 << 40) -> Int64Array:
    """Return the numbers, with 0 for those that are none, or beyond all reason."""
    found: Int64Array = np.where((values >= 0) & (values < below), values, 0)
    return found


def alike(columns: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the first of each sort of rows that are equal in all columns, as they come, and the sort of each row.

    Examples
    --------
    >>> first, sort = alike([np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5])])
    >>> first.tolist(), sort.tolist()
    ([0, 1, 2], [0, 1, 2, 0])
    """
    import pandas as pd  # slow to load

    sorts = pd.DataFrame(dict(enumerate(columns))).groupby([*range(len(columns))], sort=False)
    sort = sorts.ngroup().to_numpy(np.int64)
    return np.flatnonzero(np.diff(np.maximum.accumulate(sort), prepend=-1)), sort


def or_else(values: Int64Array, other: int) -> Int64Array:
    """Return the numbers, with another one where there is none."""
    if not len(values) or values.min() != NO_NUMBER:
        return values
    found: Int64Array = np.where(values == NO_NUMBER, other, values)
    return found


def joined(parts: Sequence[Columns]) -> Columns:
    """Return rows behind each other."""
    some = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    return some[0] if len(some) == 1 else {name: np.concatenate([part[name] for part in some]) for name in some[0]}


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


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


def _export(path: Path, folder: Path) -> Path:
    """Let nsys write the SQLite file of a report."""
    program, target = shutil.which("nsys"), folder / "report.sqlite"
    if program is None:
        raise TraceFileError(
            f"{str(path)!r} is a report that only Nsight Systems can read, and nsys is not installed here. Where it is: "
            f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
        )
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
            f"{str(path)!r} cannot be exported: nsys ended with {done.returncode} and said {said!r}. It may be of a newer nsys "
            "than this one; export it where it was recorded."
        )
    return target
