"""Reads a trace of any file, and makes one of a spool, however the run ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from gpustreamlab.errors import OptionError, TraceError, TraceFileError
from gpustreamlab.exchange import check_format, lend, read_as, read_ranks
from gpustreamlab.model import COLUMN_DTYPES, Counters, Trace, TraceMetadata, WorkDetail, table_to_trace
from gpustreamlab.record import NO_DEPENDENCIES, NO_ROWS, SPAN_COLUMNS, Delta, Tables, build_trace, join
from gpustreamlab.sinks._spool_format import FACTS_KEY, Batch, BatchReader
from gpustreamlab.sinks.spool import LISTS
from gpustreamlab.typing import Int64Array

__all__ = ["read_any", "read_spool"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
"""Begins a URL; a Windows drive has one letter."""
_INDEX_COLUMNS = ("parent", "thread", "partition", "detail")
"""Columns in which -1 stands for nothing."""


def read_any(path: str | PathLike[str] | Iterable[str | PathLike[str]], format: str = "auto") -> Trace:  # noqa: A002
    """Read a trace of ours, or what another tool recorded; see `gpustreamlab.load_trace`."""
    check_format(format)
    given = path if isinstance(path, Iterable) and not isinstance(path, (str, bytes)) else [path]
    with ExitStack() as stack:
        paths = [stack.enter_context(lend(_local_path(one))) for one in given]
        if not paths:
            raise OptionError("load_trace() got no file. Give the path of one, or those of all ranks of a job.")
        return read_ranks(paths, format) if len(paths) > 1 else read_as(format, paths[0], {"spool": read_spool})


def _local_path(path: object) -> Path:
    """Return the path that was given, or that a URL stands for."""
    text = fspath(path) if isinstance(path, (str, PathLike)) else None
    if not isinstance(text, str):
        raise OptionError(f"load_trace() got a {type(path).__name__}; it takes a path, as gsl.load_trace('run.parquet').")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    parts = urlsplit(text)
    if scheme[1].lower() != "file" or parts.netloc not in ("", "localhost"):
        raise OptionError(
            f"{text!r} is on another machine, and gpustreamlab opens no connection. Download it, then give the file's path: "
            "gsl.load_trace('run.json.gz')."
        )
    return Path(unquote(parts.path))


def read_spool(path: str | PathLike[str]) -> Trace:
    """Read what ``Session(spool=...)`` has written so far; see `gpustreamlab.load_trace`."""
    target = Path(path)
    try:
        reader = BatchReader(target)
        try:
            replay = _Replay()
            for batch in reader:
                replay.apply(batch)
        finally:
            reader.close()
        return replay.trace(reader.damage)
    except (TraceError, OSError, *_GARBAGE) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        raise TraceFileError(
            f"{str(target)!r} cannot be read as a spool: {reason.rstrip('.')}. Nothing of it can be used."
        ) from error


_GARBAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError)
"""What a file raises whose checksums are right and whose contents are not."""


class ToldTables:
    """The tables and the details of work, as the facts of batches tell of them one after the other."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {name: [] for name in LISTS}
        self._metadata: dict[str, Any] | None = None
        self._details: list[dict[str, Any]] = []

    @property
    def is_told(self) -> bool:
        """Whether enough was told to make anything of it."""
        return self._metadata is not None

    def apply(self, facts: Mapping[str, Any]) -> bool:
        """Take in the facts of the next batch; tell whether a table has changed."""
        tables = facts.get("tables", {})
        for name in LISTS:
            if name in tables:
                change = tables[name]
                kept = self._lists[name][change["drop"] :][: change["keep"]]
                self._lists[name] = kept + change["add"]
        self._metadata = tables.get("metadata", self._metadata)
        self._details += facts.get("details", ())
        return bool(tables)

    def made(self, *, first_detail: int = 0) -> tuple[Tables, tuple[WorkDetail, ...]]:
        """Return the tables as they are, and the details from one on: they are stored as those of a saved trace are."""
        import pyarrow as pa

        metadata = self._metadata or {}
        facts = {
            "schema_version": metadata["schema_version"],
            "metadata": metadata,
            "names": [],
            "extra": [],
            "counter_names": [],
            "layout": None,
            "details": self._details[first_detail:],
            **self._lists,
        }
        table = pa.table({name: pa.array([], pa.int64()) for name in COLUMN_DTYPES})
        trace = table_to_trace(table.replace_schema_metadata({FACTS_KEY: json.dumps(facts)}))
        return Tables(*(getattr(trace, name) for name in Tables._fields)), trace.details


class _Replay:
    """Does again what the batches of a spool say, in their order."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._tables = ToldTables()
        self._last: dict[str, Any] = {}
        self._limit_bytes = 0
        self._unfinished = ""

    def apply(self, batch: Batch) -> None:
        """Take in the next batch."""
        facts = batch.facts
        if facts.get("clear"):  # gives their memory back
            self._batches = [known._replace(columns=NO_ROWS) for known in self._batches]
        self._batches.append(batch)
        self._tables.apply(facts)
        self._unfinished = facts.get("unfinished", self._unfinished)
        self._limit_bytes = facts.get("limit_bytes", self._limit_bytes)
        self._last = facts

    def trace(self, damage: str) -> Trace:
        """Return everything as a trace.

        Parameters
        ----------
        damage
            What stopped the reading before the end.
        """
        if not self._tables.is_told:
            raise ValueError("it was cut off before anything was in it")
        tables, details = self._tables.made()
        delta = join([delta_of(batch, tables) for batch in self._batches])._replace(details=details)
        return build_trace(
            delta.with_facts(
                dropped_spans=self._last["missed"] + self._last["lost"],
                pending_spans=self._last["pending"],
                capture_windows=self._windows(tables.metadata, delta.columns),
                recovery_note=self._note(damage),
            )
        )

    def _windows(self, metadata: TraceMetadata, columns: Mapping[str, Int64Array]) -> tuple[tuple[int, int], ...]:
        """Return when kernels were captured: a window that was open lasts as long as there are spans."""
        windows = metadata.capture_windows
        if not (windows and self._last["capturing"]):
            return windows
        start_ns, end_ns = windows[-1]
        return (*windows[:-1], (start_ns, int(columns["end_ns"].max(initial=end_ns))))

    def _note(self, damage: str) -> str:
        """Say what may be missing."""
        notes = []
        if not self._last.get("end"):
            written = datetime.fromtimestamp(self._last["written_unix_ns"] / 1e9, UTC)
            missing = f"what came after {written:%Y-%m-%d %H:%M:%S} UTC is missing"
            notes.append(f"recovered from a spool whose session was not closed: {missing}")
            notes += [f"at that time {self._unfinished}"] if self._unfinished else []
        if damage and self._last.get("end"):
            notes.append("the end of the spool is damaged")
        if self._limit_bytes:
            notes.append(
                f"the spool reached its limit of {self._limit_bytes:,} bytes (spool_limit_bytes), later spans are missing"
            )
        return "; ".join(notes)


def delta_of(batch: Batch, tables: Tables) -> Delta:
    """Return what a batch adds, but for details."""
    facts, count = batch.facts, batch.row_count
    return Delta(
        tables,
        columns={name: batch.columns[name] if name in batch.columns else _absent(name, count) for name in SPAN_COLUMNS},
        is_cleared=facts.get("clear", False),
        names=facts.get("names", ()),
        edges=np.array(facts.get("edges", ()), np.int64).reshape(-1, 2),
        dependencies={name: np.array(values, np.int64) for name, values in facts.get("dependencies", NO_DEPENDENCIES).items()},
        counters=Counters(**facts.get("counters", {})),
    )


def _absent(name: str, count: int) -> Int64Array:
    return np.full(count, -1 if name in _INDEX_COLUMNS else 0, np.int64)
