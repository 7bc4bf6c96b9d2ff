"""A trace as an Arrow table and back. Nothing is ever unpickled: the metadata is JSON."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gpustreamlab.errors import TraceError
from gpustreamlab.model._columns import Counters, Edges, WorkDetail, unchangeable
from gpustreamlab.model._device import SCHEMA_VERSION, Lane, Marker, Note, TraceMetadata
from gpustreamlab.model._fields import Whole
from gpustreamlab.model._partition import Layout, LayoutChange, Partition
from gpustreamlab.model._trace import COLUMN_DTYPES, SPAN_KINDS, Trace

METADATA_KEY = b"gpustreamlab"
EDGES_KEY = b"gpustreamlab.edges"
COUNTERS_KEY = b"gpustreamlab.counters"
CHECKSUM_KEY = b"gpustreamlab.checksum"
"""Holds a CRC-32 of the three others: Parquet has one for each page of a column, and none for its footer, which holds these."""

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
    """Return the trace that a table of `trace_to_table` stands for.

    Raises
    ------
    TraceError
        If the table is no trace, is from a newer version, or does not hold together.
    """
    if not isinstance(table, pa.Table):
        raise TraceError(f"Trace.from_arrow() takes a pyarrow.Table, as trace.to_arrow() returns; got {type(table).__name__}.")
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
    return metadata | {CHECKSUM_KEY: _checksum(metadata)}


def _checksum(metadata: dict[bytes, bytes]) -> bytes:
    ours = b"".join(metadata.get(key, b"") for key in (METADATA_KEY, EDGES_KEY, COUNTERS_KEY))
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
    missing = [name for name in names if name not in schema.names and name not in _SINCE_VERSION_2]
    if missing:
        raise TraceError(f"The table lacks the columns {missing} of a trace.")
    for field in (schema.field(name) for name in names if name in schema.names):
        is_text = pa.types.is_dictionary(field.type) or pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or (is_text and field.name in texts)):
            raise TraceError(f"Column {field.name!r} holds {field.type}, not numbers. {_SAVE_AGAIN}")


def _checked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as it is; raise `TraceError` where it is damaged."""
    try:
        column.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise TraceError(f"Its columns are damaged: {error}. {_SAVE_AGAIN}") from error
    return column


def _codes(column: pa.ChunkedArray, texts: Sequence[str]) -> NDArray[Any]:
    """Turn dictionary-encoded text into codes of our own table; null becomes -1."""
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
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes())


def _unpack(metadata: dict[bytes, bytes], key: bytes, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    if key not in metadata:
        return {}
    try:
        table = pa.ipc.open_stream(base64.b64decode(metadata[key], validate=True)).read_all()
        _require_columns(table.schema, names)
        return {name: _numbers(_checked(table[name]), name) for name in names}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"Its table {key.decode()} cannot be read: {error} {_SAVE_AGAIN}") from error
