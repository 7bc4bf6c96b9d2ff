"""What a Perfetto file of our own holds for ourselves: tables, and of each span what its slice does not tell.

Slices tell times, names, lanes and kinds, flows tell edges, counter tracks tell samples. What is left are columns of small
numbers: differences, in as few bytes as the largest needs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import TraceError
from gpustreamlab.exchange._protobuf import Bytes, Fields, bytes_field, number_field, text_field
from gpustreamlab.model import COLUMN_DTYPES, Counters, Edges, Trace
from gpustreamlab.typing import Int64Array

OWN_FIELD = 29_022
"""Number of the field of a packet that holds this; Perfetto has no such field, and skips it."""
FACTS, COLUMN = 1, 2
"""Fields of that message."""
_NAME, _SIZE, _COUNT, _DATA = 1, 2, 3, 4
"""Fields of a column."""
FACTS_KEY = b"gpustreamlab"
_RELATIVE = {
    "queued_ns": "start_ns",
    "work_start_ns": "start_ns",
    "work_end_ns": "end_ns",
    "uncut_start_ns": "start_ns",
    "uncut_end_ns": "end_ns",
}
"""Times that are near others; they are stored as the distance."""
_PLAIN = ("queued_ns", "parent", "thread", "partition")
"""Columns of all traces that slices do not tell."""
ARGUMENTS = {"detail": 1, "correlation": 2, "size_bytes": 3, "queued_ns": 4}
"""Columns that arguments of slices tell, and the numbers of their names."""
_DTYPES = frozenset(np.dtype(f"{kind}{size}").str for kind in "iuf" for size in (1, 2, 4, 8) if (kind, size) != ("f", 1))
_EXTRA, _BY_DETAIL = "extra:", "by detail:"
"""What the names of extra columns begin with; the second ones hold a number for each detail, the last one for none."""


class Facts(msgspec.Struct):
    """What stands beside the columns."""

    tables: str
    """The tables of the trace, as a saved one holds them."""
    shift_ns: int
    """What was added to the trace's times."""
    lanes: list[tuple[int, int]]
    """Number and lane of each track of spans, in the order in which those are written."""
    samples: list[tuple[int, int, int]]
    """Number, lane and name of each track of counters; other ones are computed from spans."""
    extra: dict[str, str]
    """Columns that not every trace has, and how they are stored."""
    told: list[str]
    """Columns that arguments of slices tell."""


def tables_of(trace: Trace) -> bytes:
    """Return all but spans, edges and counters, as JSON."""
    columns: dict[str, Any] = dict.fromkeys(COLUMN_DTYPES, np.empty(0, np.int64))
    bare = replace(
        trace,
        **columns,
        extra={name: column[:0] for name, column in trace.extra.items()},
        edges=Edges(),
        counters=Counters(names=trace.counters.names),
    )
    return bytes((bare.to_arrow().schema.metadata or {})[FACTS_KEY])


def read_tables(text: bytes) -> tuple[Trace, tuple[str, ...]]:
    """Return a trace without spans that holds the tables, and the names of counters.

    Raises
    ------
    TraceError
        If they are damaged or of a newer version.
    """
    import pyarrow as pa

    try:
        names = [*COLUMN_DTYPES, *map(str, json.loads(text)["extra"])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"its tables are damaged: {error!r:.200}") from error
    table = pa.table([pa.array([], pa.int64())] * len(names), names=names)
    trace = Trace.from_arrow(table.replace_schema_metadata({FACTS_KEY: text}))
    return trace, trace.counters.names


def argument_values(trace: Trace, name: str) -> Int64Array | None:
    """Return the numbers that an argument of spans has, 0 where a span lacks it; None where no number can say it.

    Parameters
    ----------
    trace
        The trace.
    name
        ``"queued_ns"`` for how long before its start a span was queued, ``"detail"`` for the code of the detail and 1, or an
        extra column.
    """
    if name == "queued_ns":
        values = trace.start_ns - trace.queued_ns
    elif name not in trace.extra or trace.extra[name].dtype.kind not in "iu":
        return None
    else:
        values = _as_int64(trace.extra[name]) + (name == "detail")
    return values if not len(values) or values.min() >= 0 else None


def own_columns(trace: Trace, order: Int64Array, told: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return what slices, flows and the arguments told do not tell of a trace whose spans are written in some order."""
    columns: dict[str, NDArray[Any]] = {
        "row": np.diff(order, prepend=0),
        "edge": np.diff(_as_int64(trace.edges.kind), prepend=0),
    }
    columns |= {name: _small(trace, name, getattr(trace, name)) for name in _PLAIN if name not in told}
    detail = trace.extra.get("detail")
    for name, values in trace.extra.items():
        if name in told:
            continue
        if detail is not None and name != "detail" and values.dtype.kind in "iu":
            table = np.zeros(len(trace.details) + 1, values.dtype)
            table[detail] = values
            if (table[detail] == values).all():
                columns[_BY_DETAIL + name] = _as_int64(table)
                continue
        columns[_EXTRA + name] = _small(trace, name, values)
    return columns


def span_columns(
    known: Mapping[str, NDArray[Any]], columns: Mapping[str, Int64Array], facts: Facts
) -> tuple[dict[str, Int64Array], dict[str, NDArray[Any]]]:
    """Return the columns of `own_columns` as the trace had them: those of all traces, and the extra ones.

    Parameters
    ----------
    known
        Starts and ends, and as `argument_values` returns them what arguments tell.
    columns
        What the file holds.
    facts
        What it says of them.

    Raises
    ------
    KeyError, ValueError, IndexError, TypeError
        If a column is missing, or of another length than the spans.
    """
    count = len(known["start_ns"])

    def whole(name: str, key: str) -> Int64Array:
        if name in facts.told:
            return known["start_ns"] - known[name] if name == "queued_ns" else known[name] - (name == "detail")
        values = _sized(columns[key], count)
        return values + known[_RELATIVE[name]] if name in _RELATIVE else np.cumsum(values)

    plain = {name: whole(name, name) for name in _PLAIN}
    others: dict[str, NDArray[Any]] = {}
    for name, text in facts.extra.items():
        if text not in _DTYPES:
            raise ValueError(f"a column holds {text!r:.40}")
        dtype, key = np.dtype(text), _EXTRA + name
        if _BY_DETAIL + name in columns:
            others[name] = columns[_BY_DETAIL + name][whole("detail", _EXTRA + "detail")].astype(dtype)
        elif dtype.kind == "f":
            others[name] = _sized(columns[key], count).astype(f"i{dtype.itemsize}").view(dtype)
        else:
            others[name] = whole(name, key).astype(dtype)
    return plain, others


def write_column(name: str, values: NDArray[Any]) -> list[bytes]:
    """Return a column as the bytes of a message, plane by plane of its bytes: packed, those of a kind are shorter."""
    values = _as_int64(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    fitting = (size for size in (1, 2, 4, 8) if np.iinfo(f"i{size}").min <= low and high <= np.iinfo(f"i{size}").max)
    size = next(fitting) if low or high else 0
    planes = values.astype(f"<i{size}").view(np.uint8).reshape(-1, size).T.tobytes() if size else b""
    return [text_field(_NAME, name), number_field(_SIZE, size), number_field(_COUNT, len(values)), bytes_field(_DATA, planes)]


def read_column(data: Bytes, fields: Fields) -> tuple[str, Int64Array]:
    """Return a column that `write_column` wrote; `fields` are those of its message alone.

    Raises
    ------
    ValueError
        If it is damaged, or longer than anything of the file can be.
    """
    (first, *_), (last, *_) = fields.spans(_NAME)
    begin, end = (int(place[0]) for place in fields.spans(_DATA))
    size, count = int(fields.numbers(_SIZE)[0]), int(fields.numbers(_COUNT)[0])
    if (
        fields.is_damaged[0]
        or first < 0
        or count > len(data)
        or size not in (0, 1, 2, 4, 8)
        or size * count != max(end - begin, 0)
    ):
        raise ValueError("a column is damaged")
    name = data[int(first) : int(last)].tobytes().decode()
    if not size:
        return name, np.zeros(count, np.int64)
    planes = np.ascontiguousarray(data[begin:end].reshape(size, count).T)
    return name, planes.view(f"<i{size}").reshape(-1).astype(np.int64)


def _small(trace: Trace, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers that are small where those of a column are near each other, or near other ones."""
    if values.dtype.kind == "f":
        return values
    whole = _as_int64(values)
    return whole - getattr(trace, _RELATIVE[name]) if name in _RELATIVE else np.diff(whole, prepend=0)


def _sized(values: Int64Array, count: int) -> Int64Array:
    if len(values) != count:
        raise ValueError(f"a column has {len(values):,} rows; the file has {count:,} spans")
    return values


def _as_int64(values: NDArray[Any]) -> Int64Array:
    """Return numbers of at most 64 bits with their bits as those of an int64."""
    if values.dtype.kind == "f":
        return values.view(f"i{values.dtype.itemsize}").astype(np.int64)
    return values.astype(np.int64)
