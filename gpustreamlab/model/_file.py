"""Traces as Arrow tables and in files: Parquet, and pages of HTML that hold it. Nothing is ever unpickled: metadata is JSON.

pyarrow is loaded by the functions that need it: a session and a picture do without.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Container, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.host import require_room
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.model._columns import (
    ACCESS_DTYPES,
    COLUMN_DTYPES,
    SPAN_KINDS,
    Accesses,
    Counters,
    Edges,
    WorkDetail,
    unchangeable,
)
from gpustreamlab.model._cut import read_written, with_written
from gpustreamlab.model._device import SCHEMA_VERSION, Lane, Marker, Note, TraceMetadata
from gpustreamlab.model._fields import Whole
from gpustreamlab.model._partition import Layout, LayoutChange, Partition
from gpustreamlab.model._trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_KEY = b"gpustreamlab"
EDGES_KEY = b"gpustreamlab.edges"
COUNTERS_KEY = b"gpustreamlab.counters"
ACCESSES_KEY = b"gpustreamlab.accesses"
CHECKSUM_KEY = b"gpustreamlab.checksum"
"""Holds a CRC-32 of the others: Parquet has one for each page of a column, and none for its footer, which holds these."""

_SINCE_VERSION_2 = ("partition",)

_COUNTER_COLUMNS = ("time_ns", "lane", "name", "value")
_SAVE_AGAIN = "It is damaged, or another program wrote it; save it again with lab.trace.save('run.parquet')."


class _Version(msgspec.Struct):
    """What is read first: the rest of a newer version may mean something else."""

    schema_version: Whole


class _Facts(_Version, kw_only=True):
    """All that a trace's metadata holds. What is unknown is left out, as newer versions add fields."""

    metadata: TraceMetadata
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    threads: tuple[str, ...]
    extra: tuple[str, ...]
    counter_names: tuple[str, ...]
    layout: Layout | None
    partitions: tuple[Partition, ...] = ()
    layouts: tuple[LayoutChange, ...] = ()
    markers: tuple[Marker, ...] = ()
    notes: tuple[Note, ...] = ()
    details: tuple[WorkDetail, ...] = ()


_TABLES = ("metadata", "names", "lanes", "threads", "layout", "partitions", "layouts", "markers", "notes", "details")
"""What the metadata holds as the trace does."""


def trace_to_table(trace: Trace) -> pa.Table:
    """Return the table that stands for the trace, with everything else in its schema's metadata."""
    import pyarrow as pa

    arrays = {name: pa.array(getattr(trace, name)) for name in COLUMN_DTYPES}
    for name, texts in _texts(trace).items():
        codes = getattr(trace, name)
        indices = pa.array(codes.astype(np.int32), mask=codes < 0)
        arrays[name] = pa.DictionaryArray.from_arrays(indices, pa.array(list(texts), pa.string()))
    arrays |= {name: pa.array(values) for name, values in trace.extra.items()}
    return pa.table(arrays).replace_schema_metadata(_schema_metadata(trace))


def _texts(holder: Trace | _Facts) -> dict[str, Sequence[str]]:
    """Return what the codes of each column of texts mean."""
    lanes, kinds = [lane.name for lane in holder.lanes], [kind.value for kind in SPAN_KINDS]
    return {"lane": lanes, "name": holder.names, "kind": kinds, "thread": holder.threads}


def table_to_trace(table: pa.Table) -> Trace:
    """Return the trace that a table of `trace_to_table` stands for."""
    import pyarrow as pa

    if not isinstance(table, pa.Table):
        raise TraceError(f"A trace is made of a pyarrow.Table, as pyarrow.table(trace) returns; got {type(table).__name__}.")
    return make_trace(table.schema, table.column)


def make_trace(schema: pa.Schema, read: Callable[[str], pa.ChunkedArray]) -> Trace:
    """Return the trace of a table of which each column is read when it is its turn, and let go: two of all would need room."""
    metadata = schema.metadata or {}
    facts = _read_facts(metadata)
    texts = _texts(facts)
    _require_columns(schema, [*COLUMN_DTYPES, *facts.extra], texts)

    def values_of(name: str) -> Any:
        column = _checked(read(name))
        return unchangeable(_codes(column, texts[name]) if name in texts else _numbers(column, name))

    return Trace(
        **{name: values_of(name) for name in COLUMN_DTYPES if name in schema.names},
        **{name: getattr(facts, name) for name in _TABLES},
        extra={name: values_of(name) for name in facts.extra},
        edges=Edges(**_unpack(metadata, EDGES_KEY, ("source", "target", "kind"))),
        counters=Counters(**_unpack(metadata, COUNTERS_KEY, _COUNTER_COLUMNS), names=facts.counter_names),
        accesses=Accesses(**_unpack(metadata, ACCESSES_KEY, tuple(ACCESS_DTYPES))),
    )


def _schema_metadata(trace: Trace) -> dict[bytes, bytes]:
    facts = _Facts(
        schema_version=SCHEMA_VERSION,
        extra=tuple(trace.extra),
        counter_names=trace.counters.names,
        **{name: getattr(trace, name) for name in _TABLES},
    )
    metadata = {
        METADATA_KEY: json.dumps(msgspec.to_builtins(facts)).encode(),
        EDGES_KEY: _pack({"source": trace.edges.source, "target": trace.edges.target, "kind": trace.edges.kind}),
        COUNTERS_KEY: _pack({name: getattr(trace.counters, name) for name in _COUNTER_COLUMNS}),
    }
    if len(trace.accesses):
        metadata[ACCESSES_KEY] = _pack({name: values.astype(np.int64) for name, values in trace.accesses.columns.items()})
    return metadata | {CHECKSUM_KEY: _checksum(metadata)}


def _checksum(metadata: dict[bytes, bytes]) -> bytes:
    ours = b"".join(metadata.get(key, b"") for key in (METADATA_KEY, EDGES_KEY, COUNTERS_KEY, ACCESSES_KEY))
    return str(zlib.crc32(ours)).encode()


def _read_facts(metadata: dict[bytes, bytes]) -> _Facts:
    if METADATA_KEY not in metadata:
        raise TraceError("It holds no gpustreamlab metadata, so it is no trace that Trace.save wrote.")
    if metadata.get(CHECKSUM_KEY, _checksum(metadata)) != _checksum(metadata):  # older files have none
        raise TraceError(f"The checksum of its metadata is wrong. {_SAVE_AGAIN}")
    try:
        version = msgspec.json.decode(metadata[METADATA_KEY], type=_Version).schema_version
        if version > SCHEMA_VERSION:
            raise TraceError(
                f"It has schema version {version}; this gpustreamlab reads up to {SCHEMA_VERSION}. "
                "Update with: pip install --upgrade gpustreamlab"
            )
        return msgspec.json.decode(metadata[METADATA_KEY], type=_Facts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"Its metadata is not what Trace.save writes: {error}. {_SAVE_AGAIN}") from error


def _require_columns(schema: pa.Schema, names: Sequence[str], texts: Container[str] = ()) -> None:
    """Raise `TraceError` where a column is missing, or holds something else than numbers, or texts."""
    import pyarrow as pa

    missing = [name for name in names if name not in schema.names and name not in _SINCE_VERSION_2]
    if missing:
        raise TraceError(f"The table lacks the columns {missing} of a trace.")
    for field in (schema.field(name) for name in names if name in schema.names):
        is_text = pa.types.is_dictionary(field.type) or pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or (is_text and field.name in texts)):
            raise TraceError(f"Column {field.name!r} holds {field.type}, not numbers. {_SAVE_AGAIN}")


def _checked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as it is; raise `TraceError` where it is damaged."""
    import pyarrow as pa

    try:
        column.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise TraceError(f"Its columns are damaged: {error}. {_SAVE_AGAIN}") from error
    return column


def _codes(column: pa.ChunkedArray, texts: Sequence[str]) -> NDArray[Any]:
    """Turn dictionary-encoded text into codes of our own table; null becomes -1."""
    import pyarrow as pa

    place = {text: code for code, text in enumerate(texts)}
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if len(column) and not (pa.types.is_string(held) or pa.types.is_large_string(held)):
        raise TraceError(f"A column of names holds {held}, not text. {_SAVE_AGAIN}")
    codes = np.empty(len(column), np.int32)
    done = 0
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        unknown = [text for text in encoded.dictionary.to_pylist() if text not in place]
        if unknown:
            raise TraceError(f"A column names {unknown[0]!r}, which the trace's own table does not hold.")
        own = np.array([place[text] for text in encoded.dictionary.to_pylist()] or [-1], np.int32)
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        codes[done : done + len(chunk)] = np.where(indices < 0, -1, own[indices])
        done += len(chunk)
    return codes


def _numbers(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    if column.null_count:
        raise TraceError(f"Column {name!r} has {column.null_count} nulls; a trace has none.")
    values: NDArray[Any] = column.to_numpy()
    return values


def _pack(columns: dict[str, NDArray[Any]]) -> bytes:
    import pyarrow as pa

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes())


def _unpack(metadata: dict[bytes, bytes], key: bytes, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    import pyarrow as pa

    if key not in metadata:
        return {}
    try:
        table = pa.ipc.open_stream(base64.b64decode(metadata[key], validate=True)).read_all()
        _require_columns(table.schema, names)
        return {name: _numbers(_checked(table[name]), name) for name in names}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"Its table {key.decode()} cannot be read: {error} {_SAVE_AGAIN}") from error


REASON_CHARACTERS = 240  # How much is told of what pyarrow says; some versions say a paragraph


def write_trace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write the trace as one Parquet file."""
    write_file_whole(path, lambda partial: write_parquet(trace, partial))


def write_parquet(trace: Trace, file: Path | BinaryIO, table: pa.Table | None = None) -> None:
    """Write the trace as Parquet into an open file, or where nobody looks yet; a table may have columns besides."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = trace_to_table(trace) if table is None else table
    # Times and rows ascend: their differences take half the room.
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    encodings = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    pq.write_table(table, file, compression="zstd", use_dictionary=texts, column_encoding=encodings, write_page_checksum=True)


def parquet_bytes(trace: Trace) -> bytes:
    """Return the trace as the bytes of a Parquet file, for a file of another format to hold."""
    file = io.BytesIO()
    write_parquet(trace, file)
    return file.getvalue()


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a Parquet file that `write_trace` wrote."""
    target = Path(path)
    try:
        with target.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise TraceFileError(f"{str(target)!r} cannot be read: {error.strerror}. Check its owner and mode.") from error
    if begins != b"PAR1":
        raise TraceFileError(
            f"{str(target)!r} is no trace: it is no Parquet file of lab.trace.save('run.parquet'). gsl.load_trace(path) reads "
            "spools, pages with data, and what other tools record."
        )
    return parquet_trace(target, repr(str(target)))


def parquet_trace(file: Path | bytes | bytearray | memoryview, shown: str) -> Trace:
    """Read a Parquet file, or the bytes of one; what it is called in errors is given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = file if isinstance(file, Path) else pa.BufferReader(file)
    try:
        told = pq.read_metadata(source)
        texts = [name for name in COLUMN_DTYPES if name in told.schema.names]  # as codes: what is told once may take gigabytes
        with pq.ParquetFile(source, metadata=told, page_checksum_verification=True, read_dictionary=texts) as opened:
            groups = [told.row_group(place) for place in range(told.num_row_groups)]
            row_count = sum(group.num_rows for group in groups)
            if told.num_rows != row_count:  # no checksum covers how many rows a group of them has
                raise TraceError(f"It holds {row_count} rows and should hold {told.num_rows}. It is damaged; save it again.")
            row_bytes = sum(np.dtype(COLUMN_DTYPES.get(name, np.int64)).itemsize for name in opened.schema_arrow.names)
            require_room(max(row_count * row_bytes, sum(group.total_byte_size for group in groups)), shown)
            return make_trace(opened.schema_arrow, lambda name: opened.read([name]).column(name))
    except TraceFileError:
        raise
    except TraceError as error:
        raise TraceFileError(f"{shown} cannot be read as a trace. {error}") from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise TraceFileError(
            f"{shown} cannot be read as a trace: {textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=' …')} "
            "It is damaged or truncated; save it again."
        ) from error


_BEGIN = b'<script type="application/vnd.apache.parquet" id="gsl-trace">'
_NOTES = b'<script id="gsl-notes" type="application/json">'
_END = b"</script>"
_OUR_PAGE = b' id="gsl-bokeh">'


def trace_element(trace: Trace) -> str:
    """Return the element that holds a trace; letters of base64 can end none.

    Examples
    --------
    >>> trace_element(Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"]))[:66]
    '<script type="application/vnd.apache.parquet" id="gsl-trace">UEFSM'
    """
    return (_BEGIN + base64.b64encode(parquet_bytes(trace)) + _END).decode()


def read_page(path: str | PathLike[str]) -> Trace:
    """Read the trace of a page that ``lab.timeline().save("run.html", with_data=True)`` wrote."""
    text, shown = _read(path), repr(str(path))
    if _OUR_PAGE not in text:
        raise TraceFileError(
            f"{shown} is no trace: it is a web page (HTML) of something else, as a download that asks for a login is. "
            "Download the file itself."
        )
    place = text.find(_BEGIN)
    if place < 0:
        raise TraceFileError(
            f"{shown} is a picture of a timeline and holds no data. Write it with its data where the trace is: "
            "lab.timeline().save('run.html', with_data=True)."
        )
    try:
        data = base64.b64decode(_element(text, _BEGIN), validate=True)
        written = read_written(json.loads(_element(text, _NOTES))) if _NOTES in text else None
    except (ValueError, RecursionError) as error:  # notes that are nested too deep
        raise TraceFileError(f"The data of the page {shown} is damaged or cut off: {error}. Copy it again.") from error
    trace = parquet_trace(data, f"the data of the page {shown}")
    return trace if written is None else with_written(trace, written)


def _element(text: bytes, begin: bytes) -> bytes:
    first = text.find(begin) + len(begin)
    end = text.find(_END, first)
    return text[first:end] if end >= 0 else b"="


def is_bare_page(path: str | PathLike[str]) -> bool:
    """Tell whether a file is a page of ours without data: whoever has the trace can draw it again."""
    text = _read(path)
    return _OUR_PAGE in text and _BEGIN not in text


def _read(path: str | PathLike[str]) -> bytes:
    try:
        require_room(Path(path).stat().st_size, repr(str(path)))
        return Path(path).read_bytes()
    except TraceFileError:
        raise
    except OSError as error:
        raise TraceFileError(f"{str(path)!r} cannot be read: {error.strerror}. Check its owner and mode.") from error


def write_file_whole(path: str | PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file beside its target and move it there, so that nobody ever finds half a file.

    Notes
    -----
    A link is followed, and a file that is replaced keeps its mode. Each call writes in a folder of its own, where nobody else
    can put a link and a new file gets the mode that it would get beside its target.
    """
    target = _writable_target(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".gpustreamlab-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            partial = Path(folder, target.name)
            write(partial)
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, partial)
            partial.replace(target)
    except OSError as error:
        raise _not_written(path, error.strerror or error) from error


def _writable_target(path: str | PathLike[str]) -> Path:
    """Return the file that a path stands for; raise `TraceFileError` where there cannot be one."""
    try:
        target = Path(path).expanduser().resolve()
        if not target.parent.is_dir():
            raise _not_written(path, f"there is no folder {str(target.parent)!r}")
        if target.exists() and not target.is_file():
            raise _not_written(path, "a folder or a device stands there")
    except TraceFileError:
        raise
    except OSError as error:
        raise _not_written(path, error.strerror or error) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_written(path, error) from error
    return target


def _not_written(path: object, reason: object) -> TraceFileError:
    return TraceFileError(f"{str(path)!r} cannot be written: {reason}. Give a path in a writable folder.")
