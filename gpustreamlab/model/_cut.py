"""Traces made of other traces, and of plain columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustreamlab.errors import GPUStreamLabError, OptionError, StreamNotFoundError, TraceError, nearest_hint
from gpustreamlab.model._columns import COLUMN_DTYPES, DEVICE_WORK, SPAN_KINDS, Counters, Edges
from gpustreamlab.model._device import COLUMNS_BACKEND, NO_COMMON_TIME, Device, Lane, Note, TraceMetadata
from gpustreamlab.model._partition import Partition
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array, LaneKind, NoteKind, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.model._trace import Trace

_T = TypeVar("_T", bound="Trace")
_WORK = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)
_INT64 = np.iinfo(np.int64)


def cut_time(trace: _T, t0_ns: int, t1_ns: int) -> _T:
    """Return what is in a stretch of time; see `Trace.between`."""
    first_ns, last_ns = _time_ns("t0_ns", t0_ns), _time_ns("t1_ns", t1_ns)
    if last_ns < first_ns:
        raise OptionError(f"t1_ns is {last_ns}, before t0_ns, {first_ns}. Use trace.between({last_ns}, {first_ns}).")
    start_ns, end_ns = trace.start_ns, trace.end_ns
    is_in = (start_ns < last_ns) & ((end_ns > first_ns) | (start_ns >= first_ns)) & (first_ns < last_ns)
    rows = np.flatnonzero(is_in)
    fields = _fields(trace, rows)
    fields |= {name: np.clip(fields[name], first_ns, last_ns) for name in ("start_ns", "end_ns")}
    extra = fields["extra"]
    extra |= {name: np.clip(extra[name], first_ns, last_ns) for name in ("work_start_ns", "work_end_ns") if name in extra}
    if (fields["start_ns"] != start_ns[rows]).any() or (fields["end_ns"] != end_ns[rows]).any():
        fields["extra"] = {"uncut_start_ns": start_ns[rows], "uncut_end_ns": end_ns[rows]} | extra
    begun = [change for change in trace.layouts if change.time_ns < last_ns]
    # The one that is in force at the beginning stays, with its own time.
    layouts = begun[max(sum(change.time_ns <= first_ns for change in begun) - 1, 0) :]
    return replace(
        trace,
        **fields,
        counters=_counters_between(trace.counters, first_ns, last_ns),
        layouts=tuple(layouts),
        layout=layouts[-1].layout if layouts else None if trace.layouts else trace.layout,
        markers=tuple(marker for marker in trace.markers if first_ns <= marker.time_ns < last_ns),
        notes=tuple(note for note in trace.notes if _reaches(note, first_ns, last_ns)),
    )


def _reaches(note: Note, first_ns: int, last_ns: int) -> bool:
    return note.time_ns < last_ns and (note.time_ns if note.end_ns is None else note.end_ns - 1) >= first_ns


def without_tools(trace: _T) -> _T:
    """Leave out what programs did on copies, and what was measured: it is no work of the user's."""
    shown = [lane.name for lane in trace.lanes if not lane.is_tools]
    if len(shown) == len(trace.lanes):
        return trace
    kept = cut_where(trace, shown, None, None, None)
    whole = trace.metadata
    return replace(
        kept, metadata=replace(kept.metadata, part_of_spans=whole.part_of_spans, unselected_work=whole.unselected_work)
    )


def cut_where(trace: _T, stream: object, kind: object, name: object, device: object) -> _T:
    """Return the spans of some streams, kinds, names and devices; see `Trace.where`."""
    is_lane = _chosen("stream", stream, [lane.name for lane in trace.lanes], StreamNotFoundError)
    is_lane &= _of_devices(trace, device)
    lanes = tuple(lane for lane, stays in zip(trace.lanes, is_lane.tolist(), strict=True) if stays)
    left = {None, *(lane.name for lane in lanes)}
    is_kind, is_name = _chosen("kind", kind, SPAN_KINDS), _chosen("name", name, trace.names)
    of_lanes = is_lane[trace.lane]
    rows = np.flatnonzero(of_lanes & is_kind[trace.kind] & is_name[trace.name])
    fields, code = _fields(trace, rows, of_lanes), np.cumsum(is_lane) - 1
    counters = _samples(trace.counters, np.flatnonzero(is_lane[trace.counters.lane]))
    return replace(
        trace,
        **fields | {"lane": code[fields["lane"]], "metadata": _on_devices(fields["metadata"], lanes)},
        lanes=lanes,
        counters=replace(counters, lane=code[counters.lane]),
        notes=tuple(note for note in trace.notes if note.stream in left),
    )


def _of_devices(trace: Trace, device: object) -> BoolArray:
    """Tell which lanes are streams of some devices, or threads of a process that has such a stream; shape (n_lanes,), bool."""
    is_stream = np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)
    if device is None:
        return np.ones(len(trace.lanes), bool)
    known = sorted({lane.device for lane in trace.lanes if lane.kind is LaneKind.STREAM})
    number_of = np.array([lane.device for lane in trace.lanes], np.int64)
    chosen = np.array(known, np.int64)[_chosen("device", device, known)]
    found = is_stream & np.isin(number_of, chosen)
    process = np.array([lane.process for lane in trace.lanes], np.int64)
    threads: BoolArray = ~is_stream & np.isin(process, process[found])
    return found | threads


def _on_devices(meta: TraceMetadata, lanes: Sequence[Lane]) -> TraceMetadata:
    """Say of which devices a part of a trace of several is."""
    numbers = {lane.device for lane in lanes if lane.kind is LaneKind.STREAM}
    devices = tuple(device for device in meta.devices if device.ordinal in numbers)
    if not devices:
        return meta
    device = meta.device if meta.device.ordinal in numbers else devices[0]
    if len(devices) > 1:
        return replace(meta, device=device, devices=devices)
    missing = tuple(fact for fact in meta.missing if fact != NO_COMMON_TIME)
    return replace(meta, device=device, devices=(), missing=missing)


def cut_rows(trace: _T, key: object) -> _T:
    """Return some rows; see `Trace.__getitem__`."""
    every_row = np.arange(len(trace))
    if isinstance(key, slice):
        return _with_rows(trace, every_row[key])
    given = np.asarray(key)
    if given.ndim != 1 or (given.dtype.kind not in "biu" and given.size):
        raise OptionError(
            f"trace[{key!r:.60}] is no choice of rows. Use trace[10:20], trace[trace.duration_ns > 1_000], trace[[3, 5]], or "
            "trace.where(stream='copy')."
        )
    if given.dtype.kind == "b":
        if len(given) != len(trace):
            raise OptionError(f"A mask of {len(given):,} rows cannot choose from {len(trace):,} spans. Make it of this trace.")
        return _with_rows(trace, every_row[given])
    if given.size and not -len(trace) <= int(given.min()) <= int(given.max()) < len(trace):
        raise OptionError(f"trace[...] has rows {given.min()} to {given.max()}; the trace has {len(trace):,} spans.")
    rows = every_row[given.astype(np.int64)]
    if len(np.unique(rows)) < len(rows):
        raise OptionError("trace[...] names a row twice; a trace holds each span once. Use numpy.unique(rows).")
    return _with_rows(trace, rows)


def _with_rows(trace: _T, rows: Int64Array) -> _T:
    return replace(trace, **_fields(trace, rows, np.ones(len(trace), bool)))


def _fields(trace: Trace, rows: Int64Array, among: BoolArray | None = None) -> dict[str, Any]:
    """Return all fields that are other ones with some rows only, which were chosen, by what they are, among these."""
    place = np.full(len(trace) + 1, -1)  # the last is that of row -1
    place[rows] = np.arange(len(rows))
    # The nearest ancestor that is kept, or -1; a row that is not kept where parents go in a circle.
    nearest = np.append(np.where(place[:-1] >= 0, np.arange(len(trace)), trace.parent), -1)
    for _ in range(len(trace).bit_length()):
        nearest = nearest[nearest]
    parent = place[nearest[trace.parent][rows]]
    source, target = place[trace.edges.source], place[trace.edges.target]
    both = (source >= 0) & (target >= 0)
    columns = {name: getattr(trace, name)[rows] for name in COLUMN_DTYPES}
    used = np.unique(columns["partition"][columns["partition"] >= 0])
    code = np.full(len(trace.partitions) + 1, -1)
    code[used] = np.arange(len(used))
    return columns | {
        "parent": np.where(parent == np.arange(len(rows)), -1, parent),
        "partition": code[columns["partition"]],
        "partitions": tuple(trace.partitions[place] for place in used.tolist()),
        "extra": {name: values[rows] for name, values in trace.extra.items()},
        "edges": Edges(source=source[both], target=target[both], kind=trace.edges.kind[both]),
        "accesses": trace.accesses.moved(place),
        "metadata": _metadata(trace, rows, among),
    }


def _metadata(trace: Trace, rows: Int64Array, among: BoolArray | None) -> TraceMetadata:
    """Say that it is a part. Where ranges were chosen and their work was left out, they count as they do without capture."""
    meta = replace(trace.metadata, part_of_spans=trace.metadata.part_of_spans or len(trace), unselected_work=0)
    kind = trace.kind[rows]
    if among is None or np.isin(kind, _WORK).any() or not (kind == _RANGE).any() or not np.isin(trace.kind[among], _WORK).any():
        return meta
    return replace(meta, tier=CaptureTier.RANGES, capture_windows=(), capture_source="", capture_note="", kernel_error_ns=0)


def _counters_between(counters: Counters, first_ns: int, last_ns: int) -> Counters:
    """Return the samples of a stretch of time; those that are in force at its beginning stand at its beginning."""
    order = np.argsort(counters.time_ns, kind="stable")
    past = order[counters.time_ns[order] <= first_ns]
    keys = np.stack((counters.lane[past], counters.name[past]))[:, ::-1]
    in_force = past[len(past) - 1 - np.unique(keys, axis=1, return_index=True)[1]] if len(past) else past
    is_in = (first_ns < counters.time_ns[order]) & (counters.time_ns[order] < last_ns)
    kept = _samples(counters, np.concatenate((np.sort(in_force), order[is_in])))
    return replace(kept, time_ns=np.maximum(kept.time_ns, first_ns))


def _samples(counters: Counters, rows: Int64Array) -> Counters:
    return replace(counters, **{name: getattr(counters, name)[rows] for name in ("time_ns", "lane", "name", "value")})


def _chosen(what: str, wanted: object, known: Sequence[Any], error: type[GPUStreamLabError] = OptionError) -> BoolArray:
    """Tell which entries of a table are wanted; shape (n_entries,), bool."""
    if wanted is None:
        return np.ones(len(known), bool)
    values = set(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else {wanted}
    unknown = [value for value in values if value not in known]
    if unknown:
        raise error(f"The trace has no {what} {unknown[0]!r}. {nearest_hint(str(unknown[0]), [str(one) for one in known])}")
    return np.array([value in values for value in known], bool)


def _time_ns(name: str, value: Any) -> int:
    whole = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not whole or value != value // 1:  # NaN and infinity are not equal to that either
        raise OptionError(f"{name} is {value!r}; it must be a whole number of nanoseconds. Use trace.between(0, 1_000_000).")
    return min(max(int(value), _INT64.min), _INT64.max)


_HOST = (SpanKind.HOST, SpanKind.ANNOTATION, SpanKind.SAMPLE)


def fields_of_columns(
    *,
    numbers: Mapping[str, ArrayLike | None],
    texts: Mapping[str, Iterable[object] | None],
    kind: str | Iterable[str],
    partition_sms: Mapping[str, int],
    device: Device,
    title: str,
) -> dict[str, Any]:
    """Return the fields of the trace of these columns; see `Trace.from_columns`."""
    arrays = {column: np.atleast_1d(np.asarray(values)) for column, values in numbers.items() if values is not None}
    listed = {column: list(values) for column, values in texts.items() if values is not None}
    listed |= {} if isinstance(kind, str) else {"kind": list(kind)}
    lengths = {column: len(values) for column, values in (listed | arrays).items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"The columns differ in length: {lengths}. Pass one value per span in each.")
    span_count = lengths["start_ns"]
    nobody = [None] * span_count
    lane, streams = _codes("stream", listed["stream"])
    name, names = _codes("name", listed.get("name", ["span"] * span_count))
    thread, threads = _codes("thread", listed.get("thread", nobody))
    partition, parts = _codes("partition", listed.get("partition", nobody))
    kinds = _kinds(listed.get("kind", [kind] * span_count))
    return {
        "start_ns": arrays["start_ns"],
        "end_ns": arrays["end_ns"],
        "queued_ns": arrays.get("queued_ns", arrays["start_ns"]),
        "lane": lane,
        "name": name,
        "kind": kinds,
        "parent": arrays.get("parent", np.full(span_count, -1)),
        "thread": thread,
        "partition": partition,
        "names": names,
        "lanes": _lanes(streams, lane, kinds),
        "threads": threads,
        "partitions": _partitions(parts, partition_sms, device.sm_count),
        "metadata": TraceMetadata(
            backend=COLUMNS_BACKEND,
            device=device,
            tier=CaptureTier.KERNELS if np.isin(kinds, _WORK).any() else CaptureTier.RANGES,
            title=title,
        ),
    }


def _codes(column: str, texts: Sequence[object]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return texts as codes, and what they mean, in the order in which they appear; None is -1 where it is allowed."""
    codes: dict[object, int] = {}
    for row, text in enumerate(texts):
        if text is None and column in {"thread", "partition"}:
            continue
        if not isinstance(text, str):
            raise TraceError(f"Column {column!r} holds {text!r} in row {row}, not text. Use [str(one) for one in {column}].")
        codes.setdefault(text, len(codes))
    return np.array([codes.get(text, -1) for text in texts], np.int64), tuple(map(str, codes))


def _kinds(texts: Sequence[object]) -> NDArray[Any]:
    codes = {kind.value: code for code, kind in enumerate(SPAN_KINDS)}
    for row, text in enumerate(texts):
        if text not in codes:
            raise TraceError(f"Column 'kind' holds {text!r} in row {row}. {nearest_hint(str(text), codes)}")
    return np.array([codes[str(text)] for text in texts], np.int64)


def _lanes(streams: Sequence[str], lane: NDArray[Any], kinds: NDArray[Any]) -> tuple[Lane, ...]:
    """Return a lane for each stream; one that holds nothing but calls and annotations is a thread of the host."""
    on_device = np.zeros(len(streams), bool)
    on_device[lane[~np.isin(kinds, [SPAN_KINDS.index(kind) for kind in _HOST])]] = True
    return tuple(
        Lane(name=stream, stream=number, kind=LaneKind.STREAM if is_stream else LaneKind.HOST)
        for number, (stream, is_stream) in enumerate(zip(streams, on_device.tolist(), strict=True), 1)
    )


def _partitions(parts: Sequence[str], sms: Mapping[str, int], sm_count: int) -> tuple[Partition, ...]:
    missing = [part for part in parts if part not in sms]
    if missing or (parts and not sm_count):
        raise TraceError(
            f"How many SMs partition {(missing or parts)[0]!r} or the card has is not said. Pass for example "
            f"partition_sms={{{(missing or parts)[0]!r}: 32}}, sm_count=132."
        )
    return tuple(Partition(name=part, requested_sms=sms[part], granted_sms=sms[part]) for part in parts)


def written_entries(trace: Trace) -> list[list[str | None]]:
    """Return what readers wrote: time, end or None, lane or None, text; times as text, which loses no digit in a browser."""
    return [
        [str(note.time_ns), None if note.end_ns is None else str(note.end_ns), note.stream, note.text]
        for note in trace.notes
        if note.kind is NoteKind.NOTE
    ]


def read_written(entries: object) -> tuple[Note, ...]:
    """Read what a reader wrote in a browser: time, end or None, lane or None, text; what is none of that is left out.

    Examples
    --------
    >>> [note.text for note in read_written([["5", None, None, "here"], ["x", None, None, "no time"], 7])]
    ['here']
    """
    notes = []
    for entry in entries if isinstance(entries, list) else []:
        with contextlib.suppress(TypeError, ValueError, TraceError):
            time_ns, end_ns, stream, text = entry
            end_ns = None if end_ns is None else int(end_ns)
            notes.append(Note(time_ns=int(time_ns), end_ns=end_ns, stream=stream, text=text))
    return tuple(notes)


def with_written(trace: _T, notes: tuple[Note, ...]) -> _T:
    """Return a trace with what a reader wrote in the place of the notes that readers wrote before."""
    others = (note for note in trace.notes if note.kind is not NoteKind.NOTE)
    return replace(trace, notes=(*others, *notes))
