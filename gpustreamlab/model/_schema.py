"""A trace as an Arrow table and back. Nothing is ever unpickled: the metadata is JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gpustreamlab.errors import TraceError
from gpustreamlab.model._counters import Counters
from gpustreamlab.model._detail import WorkDetail
from gpustreamlab.model._device import Device
from gpustreamlab.model._edges import Edges
from gpustreamlab.model._lane import Lane
from gpustreamlab.model._marker import Marker
from gpustreamlab.model._metadata import SCHEMA_VERSION, TraceMetadata
from gpustreamlab.model._partition import Layout, LayoutChange, Partition, SMResource, WorkqueueOptions
from gpustreamlab.model._trace import COLUMN_DTYPES, SPAN_KINDS, Trace

METADATA_KEY = b"gpustreamlab"
EDGES_KEY = b"gpustreamlab.edges"
COUNTERS_KEY = b"gpustreamlab.counters"

_SINCE_VERSION_2 = ("partition",)

_T = TypeVar("_T")


def trace_to_table(trace: Trace) -> pa.Table:
    """Return the table that stands for the trace, with everything else in its schema's metadata."""
    texts = {
        "lane": [lane.name for lane in trace.lanes],
        "name": trace.names,
        "kind": [kind.value for kind in SPAN_KINDS],
        "thread": trace.threads,
    }
    arrays = {name: pa.array(getattr(trace, name)) for name in COLUMN_DTYPES if name not in texts}
    arrays |= {name: _dictionary_array(getattr(trace, name), values) for name, values in texts.items()}
    arrays |= {name: pa.array(values) for name, values in trace.extra.items()}
    order = [*COLUMN_DTYPES, *trace.extra]
    table = pa.table({name: arrays[name] for name in order})
    return table.replace_schema_metadata(_schema_metadata(trace))


def table_to_trace(table: pa.Table) -> Trace:
    """Return the trace that a table of `trace_to_table` stands for.

    Raises
    ------
    TraceError
        If the table is no trace, is from a newer version, or does not hold together.
    """
    facts = _read_facts(table.schema.metadata or {})
    missing = [name for name in COLUMN_DTYPES if name not in table.column_names and name not in _SINCE_VERSION_2]
    if missing:
        raise TraceError(f"The table lacks the columns {missing} of a trace.")
    lanes = tuple(_build(Lane, lane) for lane in facts["lanes"])
    texts = {
        "lane": [lane.name for lane in lanes],
        "name": facts["names"],
        "kind": [kind.value for kind in SPAN_KINDS],
        "thread": facts["threads"],
    }
    columns = {
        name: _codes(table[name], texts[name]) if name in texts else _numbers(table[name])
        for name in COLUMN_DTYPES
        if name in table.column_names
    }
    extra = {name: _numbers(table[name]) for name in facts["extra"]}
    return Trace(
        **columns,
        names=tuple(facts["names"]),
        lanes=lanes,
        threads=tuple(facts["threads"]),
        extra=extra,
        metadata=_read_metadata(facts["metadata"]),
        edges=_read_edges(table.schema.metadata),
        counters=_read_counters(table.schema.metadata, facts["counter_names"]),
        partitions=tuple(_build(Partition, part) for part in facts.get("partitions", ())),
        layout=_read_layout(facts["layout"]),
        layouts=tuple(
            LayoutChange(time_ns=change["time_ns"], layout=_read_layout(change["layout"]))
            for change in facts.get("layouts", ())
        ),
        markers=tuple(_build(Marker, marker) for marker in facts.get("markers", ())),
        details=tuple(_build(WorkDetail, detail) for detail in facts.get("details", ())),
    )


def _schema_metadata(trace: Trace) -> dict[bytes, bytes]:
    facts = {
        "schema_version": SCHEMA_VERSION,
        "metadata": dataclasses.asdict(trace.metadata),
        "names": trace.names,
        "lanes": [dataclasses.asdict(lane) for lane in trace.lanes],
        "threads": trace.threads,
        "extra": list(trace.extra),
        "counter_names": trace.counters.names,
        "partitions": [dataclasses.asdict(part) for part in trace.partitions],
        "layout": None if trace.layout is None else dataclasses.asdict(trace.layout),
        "layouts": [dataclasses.asdict(change) for change in trace.layouts],
        "markers": [dataclasses.asdict(marker) for marker in trace.markers],
        "details": [dataclasses.asdict(detail) for detail in trace.details],
    }
    return {
        METADATA_KEY: json.dumps(facts).encode(),
        EDGES_KEY: _pack({"source": trace.edges.source, "target": trace.edges.target, "kind": trace.edges.kind}),
        COUNTERS_KEY: _pack({name: getattr(trace.counters, name) for name in ("time_ns", "lane", "name", "value")}),
    }


def _read_facts(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    if METADATA_KEY not in metadata:
        raise TraceError("It holds no gpustreamlab metadata, so it is no trace that Trace.save wrote.")
    facts: dict[str, Any] = json.loads(metadata[METADATA_KEY])
    version = facts["schema_version"]
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"It has schema version {version}; this gpustreamlab reads up to {SCHEMA_VERSION}. "
            "Update with: pip install --upgrade gpustreamlab"
        )
    return facts


def _read_metadata(facts: dict[str, Any]) -> TraceMetadata:
    device = facts["device"]
    resource = device.get("sm_resource")
    built = _build(Device, device | {"sm_resource": None if resource is None else _build(SMResource, resource)})
    return _build(TraceMetadata, facts | {"device": built})


def _read_layout(facts: dict[str, Any] | None) -> Layout | None:
    if facts is None:
        return None
    workqueue = facts.get("workqueue")
    parts = {
        "partitions": tuple(_build(Partition, part) for part in facts["partitions"]),
        "workqueue": None if workqueue is None else _build(WorkqueueOptions, workqueue),
    }
    return _build(Layout, facts | parts)


def _read_edges(metadata: dict[bytes, bytes]) -> Edges:
    return Edges(**_unpack(metadata[EDGES_KEY])) if EDGES_KEY in metadata else Edges()


def _read_counters(metadata: dict[bytes, bytes], names: list[str]) -> Counters:
    return Counters(**_unpack(metadata[COUNTERS_KEY]), names=tuple(names)) if COUNTERS_KEY in metadata else Counters()


def _build(kind: type[_T], facts: dict[str, Any]) -> _T:
    """Make a dataclass from what was stored: unknown fields are ignored, missing ones take their defaults."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in facts.items() if name in known})


def _dictionary_array(codes: NDArray[Any], texts: object) -> pa.DictionaryArray:
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(texts), pa.string()))  # type: ignore[call-overload]


def _codes(column: pa.ChunkedArray, texts: list[str]) -> NDArray[Any]:
    """Turn dictionary-encoded text into codes of our own table; null becomes -1."""
    place = {text: code for code, text in enumerate(texts)}
    codes = np.empty(len(column), np.int64)
    done = 0
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        unknown = [text for text in encoded.dictionary.to_pylist() if text not in place]
        if unknown:
            raise TraceError(f"A column names {unknown[0]!r}, which the trace's own table does not hold.")
        own = np.array([place[text] for text in encoded.dictionary.to_pylist()] or [-1], np.int64)
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        codes[done : done + len(chunk)] = np.where(indices < 0, -1, own[indices])
        done += len(chunk)
    return codes


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    if column.null_count:
        raise TraceError(f"A column of {column.type} has {column.null_count} nulls; a trace has none.")
    values: NDArray[Any] = column.to_numpy()
    return values


def _pack(columns: dict[str, NDArray[Any]]) -> bytes:
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes())


def _unpack(packed: bytes) -> dict[str, NDArray[Any]]:
    table = pa.ipc.open_stream(base64.b64decode(packed)).read_all()
    return {name: _numbers(table[name]) for name in table.column_names}
