"""Write traces for Perfetto: each stream and thread is a track, each span a slice, each wait and launch a flow.

Source: https://perfetto.dev/docs/reference/synthetic-track-event. Times are whole nanoseconds since 1970, where the trace knows
them; Perfetto holds those exactly.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpustreamlab._util.progress import steps
from gpustreamlab.analysis import busy_edges, count_steps, sm_time_steps, stack_sms
from gpustreamlab.errors import TraceError
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.exchange._pftrace_packets import (
    CLEARED,
    FLOW,
    FLOW_END,
    OWN_FIELD,
    PACKET,
    SEQUENCE,
    SEQUENCE_FLAGS,
    TRACK_DESCRIPTOR,
    Annotation,
    Spans,
    counter_packets,
    instant_packet,
    interned_data,
    span_packets,
)
from gpustreamlab.exchange._protobuf import bytes_field, number_field, text_field
from gpustreamlab.exchange._sublanes import nesting_order, sublanes
from gpustreamlab.model import SPAN_KINDS, Lane, Trace, WorkDetail, write_file_whole
from gpustreamlab.model._file import parquet_bytes
from gpustreamlab.typing import FloatArray, Int64Array, LaneKind

SUFFIXES = (".pftrace", ".pftrace.gz")
MOST_SAMPLES = 20_000
"""Samples of a counter that is computed from spans; beyond, it is averaged over so many parts of the time."""
LAST_NS = (1 << 62) - 1
"""The latest time in a file: of 2116."""
_MASK = (1 << 64) - 1
_PACKED_LEVEL = 6
_EXPLICIT, _NEVER_MERGED = 3, 2
"""Tracks are shown in the order told, and two of one name are two."""
_BYTES_UNIT = 3
ARGUMENTS = {"detail": 1, "correlation": 2, "size_bytes": 3, "queued_ns": 4}
"""Arguments of spans that are numbers, and the number of each one's name."""
_ARGUMENT_NAMES = {**{number: name for name, number in ARGUMENTS.items()}, 1: "full_name", 4: "queued_before_ns", 5: "launch"}
"""Arguments of spans by their numbers."""
_LAUNCH = 5
_CATEGORIES = {code: kind.value for code, kind in enumerate(SPAN_KINDS, 1)}


def write_pftrace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace for Perfetto's viewer and engine.

    Parameters
    ----------
    trace
        The trace. `read_pftrace` returns the same one.
    path
        Where; the suffix is ``.pftrace``, or ``.pftrace.gz`` for a packed one.

    Raises
    ------
    OptionError
        If the suffix is another one.
    TraceError
        If times are further apart than 146 years.
    TraceFileError
        If the file cannot be written; one that was there before is then left as it was.

    Notes
    -----
    Tracks are grouped by device and partition. Where spans of a lane overlap and do not nest, as Perfetto wants them to, the
    lane has several tracks. A wait or launch is drawn as a flow where its source starts first. The SMs in use and the busy
    streams are counters, averaged over 20,000 parts of the time where they change more often.

    Examples
    --------
    >>> from gpustreamlab.exchange._pftrace import write_pftrace
    >>> from gpustreamlab.exchange._pftrace_read import read_pftrace
    >>> path = getfixture("tmp_path") / "run.pftrace"
    >>> write_pftrace(Trace.from_columns(start_ns=[0, 5], end_ns=[9, 7], stream=["a", "b"]), path)
    >>> read_pftrace(path).end_ns.tolist()
    [9, 7]
    """
    name = require_suffix(path, SUFFIXES, "Perfetto's files")
    writer = _Writer(trace)

    def write(target: Path) -> None:
        with target.open("wb") as file:
            if not name.endswith(".gz"):
                writer.write(file)
                return
            with gzip.GzipFile("", "wb", _PACKED_LEVEL, file, mtime=0) as packed:
                writer.write(packed)

    write_file_whole(path, write)


class _Track(NamedTuple):
    """A row of the viewer."""

    uuid: int
    parent: int
    rank: int
    name: str
    counter: str | None = None
    """Name of what it counts, with the unit; None for a track of spans, or a group."""

    def packet(self) -> bytes:
        """Return what tells of it."""
        fields = number_field(1, self.uuid) + number_field(12, self.rank) + number_field(15, _NEVER_MERGED)
        fields += number_field(5, self.parent) if self.parent else b""
        if self.counter is not None:
            unit = (
                number_field(3, _BYTES_UNIT)
                if self.counter.endswith("_bytes")
                else text_field(6, self.counter.rpartition("_")[2])
            )
            fields += bytes_field(8, unit)
        else:
            fields += number_field(11, _EXPLICIT)
        return bytes_field(PACKET, number_field(SEQUENCE, 1), bytes_field(TRACK_DESCRIPTOR, fields, text_field(2, self.name)))


class _Writer:
    """The packets of one trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._shift_ns, self._base_ns = _clock(trace)
        sub = sublanes(trace.start_ns, trace.end_ns, trace.lane)
        counts = np.ones(len(trace.lanes), np.int64)
        np.maximum.at(counts, trace.lane, sub + 1)
        place = (np.cumsum(counts) - counts)[trace.lane] + sub
        self._order = nesting_order(trace.start_ns, trace.end_ns, place)
        """Rows in the order in which they are written."""
        self._bounds = np.searchsorted(place[self._order], np.arange(int(counts.sum()) + 1)).tolist()
        """Where spans of each track begin in it."""
        self._tracks = _Tracks(trace, counts.tolist())
        told = {name: _argument_values(trace, name) for name in ARGUMENTS}
        self._told = {name: values for name, values in told.items() if values is not None}
        """Arguments of spans; 0 for those that lack one."""
        self._sequence = 2

    def write(self, file: Any) -> None:
        """Write everything into a file that is open."""
        trace, tracks = self._trace, self._tracks
        samples = _samples(trace)
        counters = [tracks.add_counter(lane, trace.counters.names[name]) for lane, name, _ in samples]
        computed = [(tracks.add_computed(*key), steps) for key, steps in _computed(trace).items()]
        markers = tracks.add("markers") if trace.markers else 0
        head = number_field(SEQUENCE, 1), number_field(SEQUENCE_FLAGS, CLEARED)
        file.write(bytes_field(PACKET, *head, bytes_field(OWN_FIELD, parquet_bytes(trace))))
        file.write(b"".join(track.packet() for track in tracks.all))
        file.write(b"".join(instant_packet(self._times(one.time_ns), markers, one.kind, one.text) for one in trace.markers))
        for uuid, (_, _, rows) in zip(counters, samples, strict=True):
            self._write_counter(file, uuid, trace.counters.time_ns[rows], trace.counters.value[rows])
        for uuid, (times_ns, values) in computed:
            self._write_counter(file, uuid, times_ns, values)
        self._write_spans(file, self._flows())

    def _write_counter(self, file: Any, uuid: int, times_ns: Int64Array, values: FloatArray) -> None:
        for block in counter_packets(self._times(times_ns), values, self._sequence, uuid, self._base_ns):
            file.write(block)
        self._sequence += 1

    def _write_spans(self, file: Any, flows: Sequence[_Flows]) -> None:
        texts = [_launch_texts(detail) for detail in self._trace.details]
        with steps(len(self._tracks.spans), "writing") as step:
            for (uuid, lane), (first, last) in zip(self._tracks.spans, pairwise(self._bounds), strict=True):
                if first < last:
                    spans, interned = self._spans(first, last, flows, texts)
                    for block in span_packets(spans, self._sequence, uuid, self._base_ns, interned):
                        file.write(block)
                    self._sequence += 3
                step(self._trace.lanes[lane].name[:40])

    def _spans(self, first: int, last: int, flows: Sequence[_Flows], texts: Sequence[_Texts]) -> tuple[Spans, bytes]:
        """Return the spans of one track, and what gives their texts numbers."""
        trace, rows = self._trace, self._order[first:last]
        annotations = [
            _annotation(ARGUMENTS[name], values[rows], is_text=name == "detail") for name, values in self._told.items()
        ]
        used: dict[int, str] = {}
        if "detail" in self._told:
            code = self._told["detail"][rows]
            has_launch = np.array([False, *(bool(launch) for _, launch in texts)])[code]
            annotations.append(_annotation(_LAUNCH, np.where(has_launch, code + len(texts), 0), is_text=True))
            for one in np.unique(code[code > 0]).tolist():
                used[one], used[one + len(texts)] = texts[one - 1]
        spans = Spans(
            start_ns=self._times(trace.start_ns[rows]),
            end_ns=self._times(trace.end_ns[rows]),
            name=trace.name[rows] + 1,
            category=trace.kind[rows] + 1,
            annotations=[one for one in annotations if one is not None],
            flows=[(flow.field, *flow.within(first, last)) for flow in flows],
        )
        names = {code + 1: trace.names[code] for code in np.unique(trace.name[rows]).tolist()}
        return spans, interned_data(name=names, category=_CATEGORIES, annotation=_ARGUMENT_NAMES, text=used)

    def _times(self, times_ns: Any) -> Any:
        """Return times on the file's clock."""
        if isinstance(times_ns, int):
            return times_ns + self._shift_ns
        return times_ns.view(np.uint64) + np.uint64(self._shift_ns & _MASK)

    def _flows(self) -> list[_Flows]:
        """Return the flows that begin at spans, and those that end there; one that goes back in time is none."""
        edges, start_ns = self._trace.edges, self._trace.start_ns
        drawn = np.flatnonzero(start_ns[edges.source] < start_ns[edges.target])
        place = np.empty(len(self._order), np.int64)
        place[self._order] = np.arange(len(place))
        flows = []
        for field, rows in ((FLOW, edges.source), (FLOW_END, edges.target)):
            at = place[rows[drawn]]
            order = np.argsort(at, kind="stable")
            flows.append(_Flows(field, at[order], drawn[order] + 1))
        return flows


class _Flows(NamedTuple):
    """Beginnings of flows, or their ends."""

    field: int
    place: Int64Array
    """Which spans they are of, in the order in which those are written."""
    number: Int64Array

    def within(self, first: int, last: int) -> tuple[Int64Array, Int64Array]:
        """Return those of some spans, which are counted from the first one."""
        begin, end = np.searchsorted(self.place, (first, last))
        return self.place[begin:end] - first, self.number[begin:end]


class _Tracks:
    """The rows of the viewer, in their order."""

    def __init__(self, trace: Trace, counts: Sequence[int]) -> None:
        self._device = trace.metadata.device
        self.all: list[_Track] = []
        """In the order of their numbers, which begin with 1."""
        self.spans: list[tuple[int, int]] = []
        """Number and lane of each track of spans."""
        self._ranks: Counter[int] = Counter()
        self._groups: dict[tuple[object, ...], int] = {}
        self._of_lane: list[int] = []
        for code, (lane, count) in enumerate(zip(trace.lanes, counts, strict=True)):
            parent = self._group(lane)
            numbers = [self.add(lane.name if not place else f"{lane.name} ({place + 1})", parent) for place in range(count)]
            self.spans += [(number, code) for number in numbers]
            self._of_lane.append(numbers[0])

    def add(self, name: str, parent: int = 0, counter: str | None = None) -> int:
        """Add a row; return its number."""
        self._ranks[parent] += 1
        self.all.append(_Track(len(self.all) + 1, parent, self._ranks[parent], name, counter))
        return len(self.all)

    def add_counter(self, lane: int, name: str) -> int:
        """Add a row for a counter of a lane; return its number."""
        return self.add(name, self._of_lane[lane], name)

    def add_computed(self, device: int, name: str, unit: str) -> int:
        """Add a row for a counter that is computed from the spans of a device; return its number."""
        return self.add(name, self._groups["device", device], unit)

    def _group(self, lane: Lane) -> int:
        """Return the row under which a lane stands."""
        if lane.kind is LaneKind.HOST:
            return self._known(("host",), "host", 0)
        name = f"GPU {lane.device}" + (f" {self._device.label}" if lane.device == self._device.ordinal else "")
        device = self._known(("device", lane.device), name, 0)
        if lane.partition is None:
            return device
        sms = f" ({lane.sm_count} SMs)" if lane.sm_count else ""
        return self._known((lane.device, lane.partition), f"partition {lane.partition}{sms}", device)

    def _known(self, key: tuple[object, ...], name: str, parent: int) -> int:
        if key not in self._groups:
            self._groups[key] = self.add(name, parent)
        return self._groups[key]


_Texts: TypeAlias = tuple[str, str]


def _launch_texts(detail: WorkDetail) -> _Texts:
    """Return the full name, and how it was launched."""
    shared = detail.static_shared_bytes + detail.dynamic_shared_bytes
    parts = [
        f"{word} {'x'.join(map(str, three))}" for word, three in (("grid", detail.grid), ("block", detail.block)) if any(three)
    ]
    parts += [f"{count:,} {what}" for count, what in ((detail.registers, "registers"), (shared, "B shared")) if count]
    parts += [f"graph {detail.graph}"] if detail.graph else []
    return detail.full_name, ", ".join(parts)


def _annotation(name: int, values: Int64Array, *, is_text: bool) -> Annotation | None:
    """Return an argument of spans; None where none has it, as all numbers are 0."""
    is_there = values > 0
    return Annotation(name, values, is_text, None if is_there.all() else is_there) if is_there.any() else None


def _argument_values(trace: Trace, name: str) -> Int64Array | None:
    """Return the numbers that an argument of spans has, 0 where a span lacks it; None where one is below 0 or all lack it."""
    if name == "queued_ns":
        values: Int64Array = trace.start_ns - trace.queued_ns
    elif name not in trace.extra or trace.extra[name].dtype.kind not in "iu":
        return None
    else:
        values = trace.extra[name].astype(np.int64) + (name == "detail")
    return values if not len(values) or values.min() >= 0 else None


def _clock(trace: Trace) -> tuple[int, int]:
    """Return what is added to the trace's times in the file, and the earliest time there."""
    times = [int(column.min()) for column in (trace.start_ns, trace.counters.time_ns) if len(column)]
    times += [int(column.max()) for column in (trace.end_ns, trace.counters.time_ns) if len(column)]
    times += [marker.time_ns for marker in trace.markers]
    first_ns, last_ns = min(times, default=0), max(times, default=0)
    if last_ns - first_ns > LAST_NS:
        raise TraceError(
            f"The trace lasts from {first_ns:,} to {last_ns:,} ns; a file holds {LAST_NS:,} ns. "
            "Write a part of it: trace.between(a, b)."
        )
    shift_ns = trace.metadata.epoch_unix_ns
    if first_ns + shift_ns < 0 or last_ns + shift_ns > LAST_NS:
        shift_ns = -first_ns
    return shift_ns, first_ns + shift_ns


def _samples(trace: Trace) -> list[tuple[int, int, Int64Array]]:
    """Return lane, name, and the rows in the order of time of each counter."""
    counters = trace.counters
    order = np.lexsort((counters.time_ns, counters.name, counters.lane))
    lane, name = counters.lane[order], counters.name[order]
    is_new = (np.diff(lane, prepend=-1) != 0) | (np.diff(name, prepend=-1) != 0)
    heads = np.flatnonzero(is_new)
    return [
        (int(lane[head]), int(name[head]), rows)
        for head, rows in zip(heads, np.split(order, heads[1:]), strict=bool(len(heads)))
    ]


_Steps: TypeAlias = tuple[Int64Array, FloatArray]


def _computed(trace: Trace) -> dict[tuple[int, str, str], _Steps]:
    """Return times and values of what is counted of each device: busy streams, and SMs in use; with names and units."""
    found: dict[tuple[int, str, str], _Steps] = {}
    if not len(trace):
        return found
    edges, streams = busy_edges(trace), [lane.kind is LaneKind.STREAM for lane in trace.lanes]
    for device in dict.fromkeys(lane.device for lane, is_stream in zip(trace.lanes, streams, strict=True) if is_stream):
        own = [edges[code] for code, lane in enumerate(trace.lanes) if streams[code] and lane.device == device]
        found[device, "streams busy", "streams"] = _averaged(*count_steps(own))
        card = next((card for card in trace.devices if card.ordinal == device), trace.metadata.device)
        if device == card.ordinal and card.sm_count:
            parts = stack_sms(sm_time_steps(trace, card), card.sm_count)
            times_ns = np.concatenate([times for times, _ in parts])
            changes = np.concatenate([np.diff(heights, prepend=0) for _, heights in parts])
            order = np.argsort(times_ns, kind="stable")
            is_last = np.diff(times_ns[order], append=times_ns[order[-1:]] + 1) > 0
            found[device, "SMs in use", "SMs"] = _averaged(times_ns[order][is_last], np.cumsum(changes[order])[is_last])
    return {key: value for key, value in found.items() if len(value[0])}


def _averaged(times_ns: Int64Array, values: Int64Array) -> _Steps:
    """Return steps, or where there are many, the average of each part of the time."""
    if len(times_ns) <= MOST_SAMPLES:
        return times_ns, values.astype(np.float64)
    since_ns = (times_ns - times_ns[0]).astype(np.float64)
    area = np.append(0, np.cumsum(np.diff(since_ns) * values[:-1]))
    bounds = np.linspace(0, since_ns[-1], MOST_SAMPLES + 1)
    means = np.diff(np.interp(bounds, since_ns, area)) / np.diff(bounds)
    return times_ns[0] + np.ceil(bounds).astype(np.int64), np.append(means, 0)
