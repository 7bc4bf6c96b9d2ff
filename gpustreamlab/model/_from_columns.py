"""A trace of plain columns: of another tool, of a table, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustreamlab.errors import TraceError, nearest_hint
from gpustreamlab.model._device import Device
from gpustreamlab.model._lane import Lane
from gpustreamlab.model._metadata import COLUMNS_BACKEND, TraceMetadata
from gpustreamlab.model._partition import Partition
from gpustreamlab.model._trace import DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.typing import CaptureTier, LaneKind, SpanKind

_HOST = (SpanKind.HOST, SpanKind.ANNOTATION)


def trace_from_columns(
    *,
    start_ns: ArrayLike,
    end_ns: ArrayLike,
    stream: Iterable[str],
    name: Iterable[str] | None,
    kind: str | Iterable[str],
    queued_ns: ArrayLike | None,
    thread: Iterable[str | None] | None,
    parent: ArrayLike | None,
    partition: Iterable[str | None] | None,
    partition_sms: Mapping[str, int] | None,
    device: str,
    sm_count: int,
    title: str,
) -> Trace:
    """Return the trace of these columns; see `Trace.from_columns`."""
    texts: dict[str, Sequence[Any] | None] = {
        column: None if values is None else list(values)
        for column, values in {"stream": stream, "name": name, "thread": thread, "partition": partition}.items()
    }
    numbers = {"start_ns": start_ns, "end_ns": end_ns, "queued_ns": queued_ns, "parent": parent}
    texts["kind"] = None if isinstance(kind, str) else list(kind)
    arrays = {column: np.atleast_1d(np.asarray(values)) for column, values in numbers.items() if values is not None}
    lengths = {column: len(values) for column, values in (texts | arrays).items() if values is not None}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"The columns differ in length: {lengths}. Pass one value per span in each.")
    span_count = lengths["start_ns"]
    lane, streams = _codes("stream", texts["stream"] or [])
    kinds = _kinds(texts["kind"] or [kind] * span_count)
    names, threads = _codes("name", texts["name"] or ["span"] * span_count), _codes("thread", texts["thread"])
    place, parts = _codes("partition", texts["partition"])
    nobody = np.full(span_count, -1)
    return Trace(
        start_ns=arrays["start_ns"],
        end_ns=arrays["end_ns"],
        queued_ns=arrays.get("queued_ns", arrays["start_ns"]),
        lane=lane,
        name=names[0],
        kind=kinds,
        parent=arrays.get("parent", nobody),
        thread=threads[0] if threads[1] else nobody,
        partition=place if parts else nobody,
        names=names[1],
        lanes=_lanes(streams, lane, kinds),
        threads=threads[1],
        partitions=_partitions(parts, partition_sms or {}, sm_count),
        metadata=TraceMetadata(
            backend=COLUMNS_BACKEND,
            device=Device(name=device, sm_count=sm_count),
            tier=CaptureTier.KERNELS
            if {SPAN_KINDS[code] for code in set(kinds.tolist())} & {*DEVICE_WORK}
            else CaptureTier.RANGES,
            title=title,
        ),
    )


def _codes(column: str, texts: Sequence[object] | None) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return texts as codes, and what they mean, in the order in which they appear; None is -1 where it is allowed."""
    codes: dict[object, int] = {}
    for row, text in enumerate(texts or ()):
        if text is None and column in {"thread", "partition"}:
            continue
        if not isinstance(text, str):
            raise TraceError(f"Column {column!r} holds {text!r} in row {row}, not text. Use [str(one) for one in {column}].")
        codes.setdefault(text, len(codes))
    return np.array([codes.get(text, -1) for text in texts or ()], np.int64), tuple(map(str, codes))


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
