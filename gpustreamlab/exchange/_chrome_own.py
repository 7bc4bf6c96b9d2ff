"""Read back what `write_chrome` wrote."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.exchange._chrome_format import FACTS_KEY, FORMAT, column_keys, shown_names
from gpustreamlab.exchange._chrome_json import Event, Top
from gpustreamlab.exchange._event_file import WRONG, EventFile
from gpustreamlab.model import COLUMN_DTYPES, EDGE_KINDS, SPAN_KINDS, Counters, Edges, Trace
from gpustreamlab.typing import Int64Array

_64_BITS = (1 << 64) - 1
_MOST_COLUMNS = 4_096


class _Ours(msgspec.Struct):
    """What stands under our own key."""

    format: int
    facts: msgspec.Raw
    base_ns: int
    span_count: int
    threads: list[tuple[int, int]]
    columns: dict[str, str]
    edge_count: int
    hidden_edges: list[tuple[int, int, int, int]]
    counter_tracks: list[tuple[int, int]]
    sample_count: int


class _Coded(msgspec.Struct, gc=False):
    code: int


class _Value(msgspec.Struct, gc=False):
    value: float | None = None


_SAMPLE = msgspec.json.Decoder(_Value)
_GARBAGE = (*WRONG, ValueError, KeyError, TypeError, IndexError, OverflowError)
"""What a file raises that is JSON and not what we wrote."""


def read_own(file: EventFile[Event, Top], blocks: Iterable[list[Event]]) -> Trace:
    """Return the trace of a file that `write_chrome` wrote.

    Raises
    ------
    TraceFileError
        If it is damaged, or of a newer version. What was whole of a file that was cut off is read.
    """
    try:
        reader = _Reader(msgspec.json.decode(file.facts.ours, type=_Ours))
        for events in blocks:
            reader.take(events)
        return reader.trace(file)
    except TraceFileError:
        raise
    except (TraceError, *_GARBAGE) as error:
        raise TraceFileError(
            f"{file.path!r} cannot be read as a trace that gpustreamlab wrote: {type(error).__name__}: {error}. It is damaged, "
            "another program changed it, or it is of a newer version; write it again, or update gpustreamlab."
        ) from error


class _Reader:
    """Takes events in the order of the file, and makes the trace of them."""

    def __init__(self, ours: _Ours) -> None:
        if ours.format > FORMAT or len(ours.columns) > _MOST_COLUMNS:
            raise ValueError(f"it is of format {ours.format} with {len(ours.columns)} columns, and {FORMAT} is read")
        self._ours = ours
        self._tables = _tables(ours.facts)
        self._lanes = dict(ours.threads)
        self._names = {name: code for code, name in enumerate(shown_names(self._tables.names))}
        self._threads = {name: code for code, name in enumerate(self._tables.threads)}
        self._kinds = {kind.value: code for code, kind in enumerate(SPAN_KINDS)}
        self._args = _args_decoder(ours.columns)
        self._times = {name: array("Q") for name in ("start_ns", "end_ns", "queued_ns")}
        self._codes = {name: array("q") for name in COLUMN_DTYPES if name not in self._times}
        self._extra: list[list[Any]] = [[] for _ in ours.columns]
        self._ends: dict[str, dict[int, tuple[int, str]]] = {"s": {}, "f": {}}
        self._samples = array("Q"), array("q"), array("d")

    def take(self, events: list[Event]) -> None:
        """Take the next events."""
        for event in events:
            if event.ph == "X":
                self._take_span(event)
            elif event.ph == "s" or event.ph == "f":
                if type(event.id) is int:  # it stands behind its span
                    self._ends[event.ph][event.id] = len(self._times["start_ns"]) - 1, str(event.cat)
            elif event.ph == "C":
                self._take_sample(event)

    def _take_span(self, event: Event) -> None:
        args = self._args.decode(event.args)
        since_ns = _digits(event.ts)
        self._times["start_ns"].append(since_ns)
        self._times["end_ns"].append((since_ns + _digits(event.dur)) & _64_BITS)
        self._times["queued_ns"].append(args.queued_ns & _64_BITS)
        codes = self._codes
        codes["lane"].append(self._lanes[event.tid])  # type: ignore[index] # a tid of another type is no key
        codes["name"].append(self._names[event.name])  # type: ignore[index]
        codes["kind"].append(self._kinds[event.cat])  # type: ignore[index]
        codes["parent"].append(args.parent)
        codes["thread"].append(-1 if args.thread is None else self._threads[args.thread])
        codes["partition"].append(-1 if args.partition is None else args.partition.code)
        for place, column in enumerate(self._extra):
            column.append(getattr(args, f"extra_{place}"))

    def _take_sample(self, event: Event) -> None:
        times, tracks, values = self._samples
        if type(event.track) is not int:
            raise ValueError("a sample is of no known quantity")
        value = _SAMPLE.decode(event.args).value
        times.append(_digits(event.ts))
        tracks.append(event.track)
        values.append(_of_bits(event.bits, "float64") if value is None else value)

    def trace(self, file: EventFile[Event, Top]) -> Trace:
        """Return everything as a trace."""
        base_ns = self._ours.base_ns
        columns: dict[str, Any] = {name: _moved(times, base_ns) for name, times in self._times.items()}
        columns |= {name: np.array(values, np.int64) for name, values in self._codes.items()}
        count = len(columns["start_ns"])
        missing = self._ours.span_count - count
        are_moved = missing != 0 and (not file.cut or file.damaged_count > 0)  # not the end is missing: rows are other ones
        known_count = 0 if are_moved else count
        columns["parent"] = np.where(columns["parent"] < known_count, columns["parent"], -1)
        extra = {
            name: _column(values, dtype) for (name, dtype), values in zip(self._ours.columns.items(), self._extra, strict=True)
        }
        trace = replace(self._tables, **columns, extra=extra, edges=self._edges(known_count), counters=self._counters(base_ns))
        if not (missing or file.cut or file.damaged_count):
            return trace
        why = file.cut or (f"{file.damaged_count:,} events are damaged" if file.damaged_count else "events were taken out")
        why += ", so parents and edges of spans are not known" if are_moved else ""
        note = f"{missing:,} of {self._ours.span_count:,} spans are missing from the file: {why}"
        return replace(trace, metadata=replace(trace.metadata, recovery_note=note))

    def _edges(self, known_count: int) -> Edges:
        """Return the edges in their order; those of which an end is missing, or not among the first rows, are left out."""
        kinds = {kind.value: code for code, kind in enumerate(EDGE_KINDS)}
        begins, ends = self._ends["s"], self._ends["f"]
        drawn = [(number, row, ends[number][0], kinds[kind]) for number, (row, kind) in begins.items() if number in ends]
        rows = sorted({edge for edge in (*drawn, *self._ours.hidden_edges) if max(edge[1:3]) < known_count})
        source, target, kind = np.array([edge[1:] for edge in rows], np.int64).reshape(-1, 3).T
        return Edges(source=source, target=target, kind=kind.astype(np.int8))

    def _counters(self, base_ns: int) -> Counters:
        names = self._tables.counters.names
        times, tracks, values = self._samples
        lane, name = np.array([*self._ours.counter_tracks, (-1, -1)], np.int64)[np.array(tracks, np.int64)].T
        return Counters(time_ns=_moved(times, base_ns), lane=lane, name=name, value=np.array(values, np.float64), names=names)


def _tables(facts: msgspec.Raw) -> Trace:
    """Return a trace without spans that holds the tables."""
    import pyarrow as pa

    table = pa.table({name: pa.array([], pa.int64()) for name in COLUMN_DTYPES})
    return Trace.from_arrow(table.replace_schema_metadata({FACTS_KEY: bytes(facts)}))


def _args_decoder(columns: dict[str, str]) -> msgspec.json.Decoder[Any]:
    """Return what reads the ``args`` of a span: what every span has, and the extra columns."""
    fields: list[Any] = [
        ("queued_ns", int),
        ("parent", int, -1),
        ("thread", str | None, None),
        ("partition", _Coded | None, None),
    ]
    names = {f"extra_{place}": key for place, key in enumerate(column_keys(columns).values())}
    for place, (name, dtype) in enumerate(columns.items()):
        if name == "detail":
            fields.append((f"extra_{place}", _Coded | None, None))
        else:
            fields.append((f"extra_{place}", float | str if np.dtype(dtype).kind == "f" else int, 0))
    return msgspec.json.Decoder(msgspec.defstruct("Args", fields, rename=names, gc=False))


def _column(values: list[Any], dtype: str) -> NDArray[Any]:
    """Return an extra column."""
    if any(isinstance(value, _Coded) or value is None for value in values):
        return np.array([-1 if value is None else value.code for value in values], dtype)
    column = np.array([_of_bits(value, dtype) if isinstance(value, str) else value for value in values], dtype)
    for row in [row for row, value in enumerate(values) if isinstance(value, str)]:  # what is no number keeps its bits
        column.view(f"u{column.dtype.itemsize}")[row] = int(values[row])
    return column


def _of_bits(bits: object, dtype: str) -> float:
    size = np.dtype(dtype).itemsize
    return float(np.array([int(str(bits))], f"u{size}").view(f"f{size}")[0])


def _digits(raw: msgspec.Raw) -> int:
    """Return whole nanoseconds of a decimal with three digits, as we write it."""
    whole, _, part = bytes(raw).partition(b".")
    if len(part) != 3:
        raise ValueError("a time has not three digits behind its point")
    return int(whole + part)


def _moved(times: array[int], base_ns: int) -> Int64Array:
    """Return times that were counted from the first moment of a trace."""
    return (np.array(times, np.uint64) + np.uint64(base_ns % (1 << 64))).view(np.int64)
