"""Write traces for Perfetto: each stream and thread is a track, each span a slice, each wait and launch a flow.

Source: https://perfetto.dev/docs/reference/synthetic-track-event. All packets are of one sequence, whose first one interns all
strings and tells of a clock that counts whole nanoseconds from the trace's first moment.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from gpustreamlab._util.shell import steps
from gpustreamlab.errors import TraceError
from gpustreamlab.exchange._chrome_write import nesting_order, sublanes
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.exchange._pftrace import OWN_HEAD, VARINT_BYTES, load_messages
from gpustreamlab.exchange._pftrace_events import BEGIN, CLEARED, COUNTER, END, INSTANT, NEEDS_STATE
from gpustreamlab.model import SPAN_KINDS, Lane, Trace, WorkDetail, parquet_bytes, write_file_whole
from gpustreamlab.typing import Int64Array, LaneKind

SUFFIXES = (".pftrace", ".pftrace.gz")
LAST_NS = (1 << 62) - 1  # The latest time in a file: of 2116
_SEQUENCE = 1
_BOOTTIME, _CLOCK = 6, 64  # Numbers of clocks: the one of the file, and that of the sequence
_BLOCK_PACKETS = 4_096  # Packets that are written at once
_PACKED_LEVEL = 6
_NUMBERS = {"correlation": "correlation", "size_bytes": "size_bytes", "queued_ns": "queued_before_ns"}
"""Arguments of spans that are numbers, and their names in the file."""
_ARGUMENTS = ("full_name", "launch", *_NUMBERS.values())


def write_pftrace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace for Perfetto's viewer and engine."""
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


class _Writer:
    """The packets of one trace, in blocks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._block = load_messages().Trace()
        self._shift_ns, self._first_ns = _clock(trace)
        sub = sublanes(trace.start_ns, trace.end_ns, trace.lane)
        counts = np.ones(len(trace.lanes), np.int64)
        np.maximum.at(counts, trace.lane, sub + 1)
        place = (np.cumsum(counts) - counts)[trace.lane] + sub
        self._order = nesting_order(trace.start_ns, trace.end_ns, place)  # Rows in the order in which they are written
        self._bounds = np.searchsorted(place[self._order], np.arange(int(counts.sum()) + 1)).tolist()
        """Where spans of each track begin in it."""
        self._tracks = _Tracks(trace, counts.tolist())

    def write(self, file: Any) -> None:
        """Write everything into a file that is open."""
        self._file = file
        file.write(_own_packet(parquet_bytes(self._trace)))
        self._write_head()
        self._write_tracks_and_counters()
        self._write_slices()
        file.write(self._block.SerializeToString())

    def _packet(self, **fields: Any) -> Any:
        """Return a new packet."""
        if len(self._block.packet) == _BLOCK_PACKETS:
            self._file.write(self._block.SerializeToString())
            self._block = type(self._block)()
        return self._block.packet.add(trusted_packet_sequence_id=_SEQUENCE, **fields)

    def _event(self, time_ns: int, kind: int, uuid: int) -> Any:
        """Return a new track event."""
        packet = self._packet()
        packet.timestamp, packet.sequence_flags = time_ns - self._first_ns, NEEDS_STATE
        event = packet.track_event
        event.type, event.track_uuid = kind, uuid
        return event

    def _write_head(self) -> None:
        """Write the packet that all others need: it interns strings, and tells of the clock."""
        texts = [text for detail in self._trace.details for text in (detail.full_name, _launch_text(detail))]
        self._packet(
            sequence_flags=CLEARED,
            trace_packet_defaults={"timestamp_clock_id": _CLOCK},
            clock_snapshot={
                "clocks": [
                    {"clock_id": _BOOTTIME, "timestamp": self._first_ns + self._shift_ns},
                    {"clock_id": _CLOCK, "timestamp": 0},
                ]
            },
            interned_data={
                "event_names": _interned(self._trace.names),
                "event_categories": _interned([kind.value for kind in SPAN_KINDS]),
                "debug_annotation_names": _interned(_ARGUMENTS),
                "debug_annotation_string_values": [{"iid": iid, "str": text.encode()} for iid, text in enumerate(texts, 1)],
            },
        )

    def _write_tracks_and_counters(self) -> None:
        trace, tracks = self._trace, self._tracks
        samples = trace.counters
        counters = [
            (tracks.add_counter(lane, samples.names[name]), samples.time_ns[rows], samples.value[rows])
            for lane, name, rows in _samples(trace)
        ]
        markers = tracks.add("markers") if trace.markers else 0
        for told in tracks.all:
            self._packet(track_descriptor=told)
        for one in trace.markers:
            event = self._event(one.time_ns, INSTANT, markers)
            event.name = one.text
            event.categories.append(one.kind.value)
        for uuid, times_ns, values in counters:
            for time_ns, value in zip(times_ns.tolist(), values.tolist(), strict=True):
                self._event(time_ns, COUNTER, uuid).double_counter_value = value

    def _write_slices(self) -> None:
        """Write the beginnings and ends of spans, track by track: of each in the order of time, as they nest."""
        trace = self._trace
        sources, targets = self._flows()
        with steps(len(self._tracks.spans), "writing") as step:
            for (uuid, lane), bounds in zip(self._tracks.spans, pairwise(self._bounds), strict=True):
                rows, open_ends_ns = self._order[slice(*bounds)], list[int]()
                columns = (rows, trace.start_ns[rows], trace.end_ns[rows], trace.name[rows] + 1, trace.kind[rows] + 1)
                told = zip(*(column.tolist() for column in columns), self._arguments(rows), strict=True)
                for row, start_ns, end_ns, name, kind, arguments in told:
                    while open_ends_ns and open_ends_ns[-1] <= start_ns:
                        self._event(open_ends_ns.pop(), END, uuid)
                    open_ends_ns.append(end_ns)
                    event = self._event(start_ns, BEGIN, uuid)
                    event.name_iid = name
                    event.category_iids.append(kind)
                    if row in sources:
                        event.flow_ids.extend(sources[row])
                    if row in targets:
                        event.terminating_flow_ids.extend(targets[row])
                    for name_iid, field, value in arguments:
                        setattr(event.debug_annotations.add(name_iid=name_iid), field, value)
                while open_ends_ns:
                    self._event(open_ends_ns.pop(), END, uuid)
                step(trace.lanes[lane].name[:40])

    def _arguments(self, rows: Int64Array) -> Iterator[list[tuple[int, str, int]]]:
        """Yield the arguments of each span, with the name of their field: numbers above 0, and how it was launched."""
        trace, columns = self._trace, []
        for iid, name in enumerate(_NUMBERS, len(_ARGUMENTS) - len(_NUMBERS) + 1):
            values = trace.start_ns - trace.queued_ns if name == "queued_ns" else trace.extra.get(name)
            if values is not None and values.dtype.kind in "iu":
                columns.append((iid, values[rows].tolist()))
        details = trace.extra["detail"][rows].tolist() if "detail" in trace.extra else [-1] * len(rows)
        for place, code in enumerate(details):
            told = [(iid, "uint_value", values[place]) for iid, values in columns if values[place] > 0]
            if code >= 0:
                told += [(iid, "string_value_iid", 2 * code + iid) for iid in (1, 2)]
            yield told

    def _flows(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the ids of flows that begin at spans, and of those that end there; one that goes back in time is none."""
        edges, start_ns = self._trace.edges, self._trace.start_ns
        drawn = np.flatnonzero(start_ns[edges.source] < start_ns[edges.target])
        found: list[dict[int, list[int]]] = []
        for rows in (edges.source, edges.target):
            found.append(defaultdict(list))
            for flow, row in zip((drawn + 1).tolist(), rows[drawn].tolist(), strict=True):
                found[-1][row].append(flow)
        return found[0], found[1]


class _Tracks:
    """The rows of the viewer, in their order."""

    def __init__(self, trace: Trace, counts: Sequence[int]) -> None:
        self._device = trace.metadata.device
        self.all: list[dict[str, Any]] = []  # Descriptors, in the order of their uuids, which begin with 1
        self.spans: list[tuple[int, int]] = []  # Number and lane of each track of spans
        self._ranks: Counter[int] = Counter()
        self._groups: dict[tuple[object, ...], int] = {}
        self._of_lane: list[int] = []
        for code, (lane, count) in enumerate(zip(trace.lanes, counts, strict=True)):
            parent = self._group(lane)
            numbers = [self.add(lane.name if not place else f"{lane.name} ({place + 1})", parent) for place in range(count)]
            self.spans += [(number, code) for number in numbers]
            self._of_lane.append(numbers[0])

    def add(self, name: str, parent: int = 0, unit: str = "") -> int:
        """Add a row, of a counter where it has a unit; return its uuid."""
        self._ranks[parent] += 1
        # Two tracks of one name are two, and are shown in the order in which they are told.
        told = {"uuid": len(self.all) + 1, "name": name, "sibling_order_rank": self._ranks[parent]}
        told |= {"sibling_merge_behavior": "SIBLING_MERGE_BEHAVIOR_NONE"} | ({"parent_uuid": parent} if parent else {})
        counter = {"unit": "UNIT_SIZE_BYTES"} if unit == "bytes" else {"unit_name": unit}
        self.all.append(told | ({"counter": counter} if unit else {"child_ordering": "EXPLICIT"}))
        return len(self.all)

    def add_counter(self, lane: int, name: str) -> int:
        """Add a row for a counter of a lane; return its number."""
        return self.add(name, self._of_lane[lane], name.rpartition("_")[2])

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


def _launch_text(detail: WorkDetail) -> str:
    """Return how work was launched."""
    shared = detail.static_shared_bytes + detail.dynamic_shared_bytes
    parts = [
        f"{word} {'x'.join(map(str, three))}" for word, three in (("grid", detail.grid), ("block", detail.block)) if any(three)
    ]
    parts += [f"{count:,} {what}" for count, what in ((detail.registers, "registers"), (shared, "B shared")) if count]
    parts += [f"graph {detail.graph}"] if detail.graph else []
    return ", ".join(parts)


def _interned(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return strings with their numbers, which begin with 1."""
    return [{"iid": number, "name": text} for number, text in enumerate(texts, 1)]


def _clock(trace: Trace) -> tuple[int, int]:
    """Return what is added to the trace's times in the file, and its earliest time."""
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
    return shift_ns, first_ns


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


def _own_packet(data: bytes) -> bytes:
    """Return the packet that holds a trace of ours, a Parquet file."""
    front = OWN_HEAD + _varint(len(data))
    return b"\n" + _varint(len(front) + len(data)) + front + data


def _varint(value: int) -> bytes:
    """Return a size in `VARINT_BYTES`, more than it may need."""
    return bytes(value >> 7 * place & 0x7F | (0x80 if place < VARINT_BYTES - 1 else 0) for place in range(VARINT_BYTES))
