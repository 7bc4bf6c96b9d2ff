"""The form of a spool: one Arrow IPC stream. A batch is a chunk; a message of an engine is one without the head.

Any Arrow reader reads the rows. All else is custom metadata of the batch: a JSON object of facts (`FACTS_KEY`) and a checksum
of the facts and the rows (`CHECKSUM_KEY`), so that a torn or damaged batch is told from a whole one.
"""

from __future__ import annotations

import base64
import io
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.model import Lane, LayoutChange, Marker, Partition, TraceMetadata, WorkDetail
from gpustreamlab.recorder import ACCESS_COLUMNS, DEPENDENCY_COLUMNS, SAMPLE_COLUMNS, SPAN_COLUMNS, Chunk, Tables
from gpustreamlab.typing import Int64Array

if TYPE_CHECKING:
    import pyarrow as pa


SPOOL_VERSION = 2  # Version of the form that this package writes; it reads this one and every older one
VERSION_KEY = b"gpustreamlab.spool"
FACTS_KEY = b"gpustreamlab"
CHECKSUM_KEY = b"crc32"
COMPRESSION_LEVEL = 1  # Of zstd: 15 bytes and 0.2 us for a span of 104 bytes; level 3 saves less than a tenth more


_TABLES = {
    "lanes": tuple[Lane, ...],
    "threads": tuple[str, ...],
    "partitions": tuple[Partition, ...],
    "layouts": tuple[LayoutChange, ...],
    "metadata": TraceMetadata,
}
_INDEX_COLUMNS = ("parent", "thread", "partition", "detail")  # Columns in which -1 stands for nothing


class Batch(NamedTuple):
    """A chunk, and what else is said with it."""

    chunk: Chunk
    facts: Mapping[str, Any]  # A JSON object: what was said of it, and of nothing that is in the chunk


class BatchEncoder:
    """Turns chunks into the bytes of one stream. What it returned need not be written."""

    # It lets go of the interpreter as seldom as it can: each time, a busy cell keeps it for 5 ms and more.

    def __init__(self) -> None:
        import pyarrow as pa

        self._pa = pa
        self._schema = pa.schema(
            [(name, pa.int64()) for name in SPAN_COLUMNS], metadata={VERSION_KEY: str(SPOOL_VERSION).encode()}
        )
        # One thread: the cores are the user's.
        self._options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", COMPRESSION_LEVEL), use_threads=False)
        self.head = self._schema.serialize().to_pybytes()  # What stands before the first batch that is written

    def encode(self, chunk: Chunk, facts: Mapping[str, Any] | None = None) -> bytes:
        """Return the bytes of a chunk, with facts beside it."""
        text = json.dumps({**_facts_of(chunk), **(facts or {})}, separators=(",", ":")).encode()
        values = np.ascontiguousarray(chunk.rows)
        checksum = str(_checksum(text, SPAN_COLUMNS, [values])).encode()
        sink, writer = self._open()
        writer.write_batch(self._rows(values), custom_metadata={FACTS_KEY: text, CHECKSUM_KEY: checksum})
        return self._behind_head(sink)

    def end(self) -> bytes:
        """Return what stands behind the last batch."""
        sink, writer = self._open()
        writer.close()
        return self._behind_head(sink)

    def _open(self) -> tuple[pa.BufferOutputStream, pa.RecordBatchStreamWriter]:
        """Begin the stream anew, in memory."""
        sink = self._pa.BufferOutputStream()
        return sink, self._pa.ipc.RecordBatchStreamWriter(sink, self._schema, options=self._options)

    def _rows(self, values: NDArray[np.int64]) -> pa.RecordBatch:
        """Return rows of shape (n_columns, n_rows) as Arrow's, which share their memory."""
        row_count = values.shape[1]
        data, column_bytes = self._pa.py_buffer(values), row_count * values.itemsize
        arrays = [
            self._pa.Array.from_buffers(self._pa.int64(), row_count, [None, data.slice(place * column_bytes, column_bytes)])
            for place in range(len(values))
        ]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _behind_head(self, sink: pa.BufferOutputStream) -> bytes:
        made: bytes = sink.getvalue().slice(len(self.head)).to_pybytes()
        return made


def _facts_of(chunk: Chunk) -> dict[str, Any]:
    """Return all of a chunk but its rows, as a JSON object; what is empty is left out."""
    texts = {"counters": chunk.counter_names, "markers": chunk.markers, "details": chunk.details, "names": chunk.names}
    facts: dict[str, Any] = {name: msgspec.to_builtins(tuple(values)) for name, values in texts.items()}
    facts["counters"] = {"names": facts["counters"]} if facts["counters"] else {}
    if chunk.samples.shape[1]:
        time_ns, lane, name, value = chunk.samples
        facts["counters"] |= dict(
            zip(SAMPLE_COLUMNS, map(np.ndarray.tolist, (time_ns, lane, name, value.view(np.float64))), strict=True)
        )
    facts["edges"] = chunk.edges.T.tolist()
    if chunk.dependencies.shape[1]:
        facts["dependencies"] = dict(zip(DEPENDENCY_COLUMNS, chunk.dependencies.tolist(), strict=True))
    if chunk.tables is not None:
        facts["tables"] = {name: msgspec.to_builtins(getattr(chunk.tables, name)) for name in _TABLES}
    if chunk.accesses.shape[1]:  # as numbers in text they would take ten times the room
        facts["accesses"] = base64.b64encode(zlib.compress(chunk.accesses.astype("<i8").tobytes(), 1)).decode()
    facts |= {"anew": chunk.is_anew, "overrun": chunk.missed, "overrun_accesses": chunk.missed_accesses}
    facts = {name: value for name, value in facts.items() if value}
    return facts | {"lost": chunk.lost, "pending": chunk.pending, "capturing": chunk.is_capturing}


class ChunkDecoder:
    """Turns batches into the chunks that they were made of, those of older versions too."""

    # Version 1 told lists as what was added, markers with the tables, of a clear that rows are forgotten and names are not, and
    # how many rows were missed since then.

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {}
        self._metadata: Any = None
        self._names: list[str] = []
        self._details: list[WorkDetail] = []
        self._counter_names: list[str] = []
        self._missed = 0
        self.markers: tuple[Marker, ...] | None = None  # All of them, as version 1 tells them

    def chunk(self, columns: Mapping[str, Int64Array], facts: Mapping[str, Any]) -> Chunk:
        """Return the chunk of a batch."""
        count = len(columns["number"])
        if facts.get("anew"):
            self._counter_names = []
        told, known = facts.get("counters", {}), len(self._counter_names)
        is_old = "overrun" not in facts and "missed" in facts
        new_counters = told.get("names", [])[known:] if is_old else told.get("names", [])
        self._counter_names += new_counters
        samples = np.array([told.get(name, ()) for name in SAMPLE_COLUMNS[:3]], np.int64).reshape(3, -1)
        values = np.array(told.get("value", ()), np.float64).view(np.int64)
        dependencies = facts.get("dependencies", {})
        chunk = Chunk(
            rows=np.stack([columns[name] if name in columns else _absent(name, count) for name in SPAN_COLUMNS]),
            edges=np.array(facts.get("edges", ()), np.int64).reshape(-1, 2).T,
            dependencies=np.array([dependencies.get(name, ()) for name in DEPENDENCY_COLUMNS], np.int64).reshape(4, -1),
            samples=np.concatenate((samples, values.reshape(1, -1))),
            accesses=_read_accesses(facts.get("accesses", "")),
            names=tuple(facts.get("names", ())),
            details=msgspec.convert(facts.get("details", ()), tuple[WorkDetail, ...]),
            counter_names=tuple(new_counters),
            markers=msgspec.convert(facts.get("markers", ()), tuple[Marker, ...]),
            tables=self._tables(facts.get("tables", {})),
            missed=facts.get("overrun", 0),
            missed_accesses=facts.get("overrun_accesses", 0),
            is_anew=facts.get("anew", False),
            lost=facts["lost"],
            pending=facts["pending"],
            is_capturing=facts["capturing"],
        )
        return self._of_version_1(chunk, facts) if is_old else chunk

    def _tables(self, told: Mapping[str, Any]) -> Tables | None:
        if not told:
            return None
        for name, value in told.items():
            if name == "metadata":
                self._metadata = value
            elif isinstance(value, dict):  # what was added
                kept = self._lists.get(name, [])[value["drop"] :][: value["keep"]]
                self._lists[name] = kept + value["add"]
            else:
                self._lists[name] = value
        if "markers" in self._lists:
            self.markers = msgspec.convert(self._lists["markers"], tuple[Marker, ...])
        made: dict[str, Any] = {
            name: msgspec.convert(self._lists.get(name, ()), kind) for name, kind in _TABLES.items() if name != "metadata"
        }
        return Tables(**made, markers=(), metadata=msgspec.convert(self._metadata, TraceMetadata))

    def _of_version_1(self, chunk: Chunk, facts: Mapping[str, Any]) -> Chunk:
        self._names += chunk.names
        self._details += chunk.details
        is_anew = facts.get("clear", False)
        missed, self._missed = facts["missed"] - (0 if is_anew else self._missed), facts["missed"]
        if not is_anew:
            return chunk._replace(missed=missed)
        tables = chunk.tables or self._tables({"metadata": self._metadata})
        names, details, counter_names = (*self._names,), (*self._details,), (*self._counter_names,)
        return chunk._replace(
            missed=missed, is_anew=True, tables=tables, names=names, details=details, counter_names=counter_names
        )


def _read_accesses(text: str) -> Int64Array:
    data = zlib.decompress(base64.b64decode(text)) if text else b""
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(len(ACCESS_COLUMNS), -1)


def _absent(name: str, count: int) -> Int64Array:
    return np.full(count, -1 if name in _INDEX_COLUMNS else 0, np.int64)


class BatchReader:
    """Reads the whole batches of a spool, in order; stops at the first one that is torn or damaged."""

    def __init__(self, source: str | PathLike[str] | bytes, decoder: ChunkDecoder | None = None) -> None:
        import pyarrow as pa

        self._failures = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError)
        self._file = io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")  # noqa: SIM115 - closed by `close`
        try:
            self._stream = pa.ipc.open_stream(pa.PythonFile(_Clipped(self._file), mode="r"))
            _check_schema(self._stream.schema)
        except BaseException as error:
            self.close()
            if isinstance(error, self._failures) and not isinstance(error, TraceFileError):
                reason = " ".join(str(error).split())
                raise TraceFileError(f"its beginning is damaged, or it is something else: {reason}") from error
            raise
        self._decoder = ChunkDecoder() if decoder is None else decoder
        self.damage = ""  # What stopped the reading before the end; empty if nothing did
        self.read_bytes = 0  # How much was read by the end of the last whole batch

    def __iter__(self) -> Iterator[Batch]:
        while True:
            try:
                rows, carried = self._stream.read_next_batch_with_custom_metadata()
                columns, facts = _decode(rows, dict(carried or {}))
            except StopIteration:
                return
            except self._failures as error:
                self.damage = " ".join(str(error).split()) or type(error).__name__
                return
            self.read_bytes = self._file.tell()
            yield Batch(self._decoder.chunk(columns, facts), facts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _check_schema(schema: pa.Schema) -> None:
    if VERSION_KEY not in (schema.metadata or {}):
        raise ValueError("it is an Arrow stream, but no spool that Session(spool=...) wrote")
    version = int(schema.metadata[VERSION_KEY])
    if version > SPOOL_VERSION:
        raise TraceFileError(
            f"it is a spool of version {version}; this gpustreamlab reads up to {SPOOL_VERSION}. "
            "Update with: pip install --upgrade gpustreamlab"
        )


def _decode(rows: pa.RecordBatch, carried: Mapping[bytes, bytes]) -> tuple[dict[str, Int64Array], dict[str, Any]]:
    rows.validate(full=True)
    columns = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        columns[name] = column.to_numpy(zero_copy_only=False)
    text = carried[FACTS_KEY]
    if _checksum(text, columns, columns.values()) != int(carried[CHECKSUM_KEY]):
        raise ValueError("the checksum of a batch is wrong")
    return columns, json.loads(text)


def _checksum(text: bytes, names: Iterable[str], parts: Iterable[NDArray[np.int64]]) -> int:
    """Return the checksum of a batch's facts, the names of its columns and their values, one column after another."""
    value = zlib.crc32(text, zlib.crc32(" ".join(names).encode()))  # the names stand in the schema, which may be damaged too
    for part in parts:
        value = zlib.crc32(np.ascontiguousarray(part).data, value)
    return value


class _Clipped(io.RawIOBase):
    """A file that is never asked for more than it has: a damaged length must not take memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left_bytes if size < 0 else min(size, self._left_bytes)
        data = self._file.read(wanted)
        self._left_bytes -= len(data)
        return data


DEFAULT_LIMIT_BYTES = 16 << 30  # How large a spool may become: about a billion spans
LEAST_LIMIT_BYTES = 1 << 16


class SpoolFile:
    """A new file to append to. Each write goes to the system at once: a killed process loses nothing of it."""

    def __init__(
        self,
        path: str | PathLike[str] | bool,  # noqa: FBT001 - `spool=True` is what the user types
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self._descriptor = -1
        self.limit_bytes = _check_limit(limit_bytes)
        self.path = _chosen_path(path)
        self._is_new = not os.path.lexists(self.path)
        self.size_bytes = 0  # Bytes that count; what stands behind them is the rest of a write that failed
        self._descriptor = _open_new(self.path)

    def __del__(self) -> None:
        self.close()

    @property
    def is_gone(self) -> bool:
        """True if the file was removed: what is written then goes nowhere."""
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, data: bytes) -> None:
        """Append bytes; where that fails, or is interrupted, none of them count."""
        if os.fstat(self._descriptor).st_size != self.size_bytes:
            os.ftruncate(self._descriptor, self.size_bytes)
        os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size_bytes += len(data)

    def replace(self, data: bytes) -> None:
        """Hold these bytes instead of what there is. Who reads it meanwhile reads the file of before to its end."""
        partial = self.path.with_name(f"{self.path.name}.part")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        before, size_bytes = self._descriptor, self.size_bytes
        try:
            self._descriptor, self.size_bytes = descriptor, 0
            self.append(data)
            partial.replace(self.path)
        except BaseException:
            self._descriptor, self.size_bytes = before, size_bytes
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        os.close(before)

    def cut(self) -> None:
        """Give back what a failed write has left behind."""
        os.ftruncate(self._descriptor, self.size_bytes)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def discard(self) -> None:
        """Close the file, and remove it if it was not there before: nothing came of what it was for."""
        self.close()
        if self._is_new:
            self.path.unlink(missing_ok=True)


def open_spool_file(path: str | PathLike[str] | bool | None, limit_bytes: int) -> SpoolFile | None:  # noqa: FBT001
    """Return the file of ``Session(spool=path)``, or None where none is asked for."""
    _check_limit(limit_bytes)  # whether there is a file or not
    return None if path is None or path is False else SpoolFile(path, limit_bytes=limit_bytes)


def _check_limit(value: object) -> int:
    if type(value) is not int or value < LEAST_LIMIT_BYTES:
        raise OptionError(
            f"spool_limit_bytes is {value!r}; it must be a number of bytes, at least {LEAST_LIMIT_BYTES:,}. "
            "Use for example gpustreamlab.Session(spool='run.gsl', spool_limit_bytes=4 << 30)."
        )
    return value


def _chosen_path(path: object) -> Path:
    if path is True:
        return free_path(Path(time.strftime("gpustreamlab-%Y%m%d-%H%M%S.gsl")).absolute())
    if not isinstance(path, (str, PathLike)) or not str(path):
        raise OptionError(
            f"spool is {path!r}; it must be a file name, or True to have one chosen. Use gpustreamlab.Session(spool='run.gsl')."
        )
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, TypeError, ValueError) as error:
        raise _not_opened(path, error) from error


def _open_new(path: Path) -> int:
    try:
        if path.is_dir():
            raise _not_opened(path, "it is a folder", f"Name a file in it: spool={str(path / 'run.gsl')!r}.")
        if path.exists() and not path.is_file():
            raise _not_opened(path, "it is no file")
        if path.exists() and path.stat().st_size:
            raise _not_opened(path, "it holds something already", f"Use spool={str(free_path(path))!r}.")
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except TraceFileError:
        raise
    except (OSError, ValueError) as error:
        raise _not_opened(path, getattr(error, "strerror", None) or error) from error


def free_path(path: Path) -> Path:
    """Return the path, or the first one after it that is not taken."""
    number = 2
    free = path
    while free.exists():
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return free


def _not_opened(
    path: object, reason: object, fix: str = "Give a path in a writable folder, or leave spool out."
) -> TraceFileError:
    return TraceFileError(f"The run cannot be spooled to {str(path)!r}: {reason}. {fix}")
