"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does.

Packets are told one after the other: strings are interned, tracks described and clocks compared before they are used.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab._util.shell import steps
from gpustreamlab._util.words import install_line
from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange._formats import frames, unpacked, varint_size
from gpustreamlab.exchange._frame import ANNOTATION, COPY, FILL, HOST, KERNEL, MARKER, Frame, match_begins, not_read, own_name
from gpustreamlab.model import PERFETTO_BACKEND, Counters, Lane, Trace, parquet_trace
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

CLEARED, NEEDS_STATE = 1, 2
"""Flags of a packet: what its sequence interned before does not hold any more; it needs what was interned."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of track events."""
OWN_HEAD = bytes.fromhex("50016801f2940e")
"""How a packet of ours begins: sequence 1, cleared, and field 29,022, which Perfetto has not and skips: a Parquet file."""
VARINT_BYTES = 5
_STEP_BYTES = 1 << 20  # After so many bytes progress is shown
MOST_LISTED = 6  # How many kinds of packets that are not read are named
COMPLETE = 6  # Type of what begins and ends a slice at once: legacy events, and render stages
LARGEST_NS = 1 << 62  # Later times, of 2116, are refused
_MOST_GPUS = 4_096
REALTIME, BOOTTIME, FIRST_SEQUENCE_CLOCK = 1, 6, 64
"""Numbers of clocks: the time since 1970, the one of files that name no other, and from 64 on those of one sequence."""
_PHASES = {ord("B"): BEGIN, ord("E"): END, ord("X"): COMPLETE, ord("I"): INSTANT, ord("i"): INSTANT, ord("R"): INSTANT}
_WORK = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}  # Categories that tell of work of a GPU
# Those of AMD's rocprofv3 and rocprofiler-systems. Source: ``generatePerfetto.cpp`` of rocprofiler-sdk
_WORK |= {
    f"{maker}{name}": kind for maker in ("", "rocm_") for name, kind in (("kernel_dispatch", KERNEL), ("memory_copy", COPY))
}
_CALLS = {"hip_api", "hsa_api", "rccl_api", "rocm_hip_api", "rocm_hsa_api"}
_AGENT = re.compile(r"\b(?:AGENT|GPU) \[(\d{1,7})\]", re.IGNORECASE)

_UNITS, _BUILTIN = {1: "ns", 2: "count", 3: "bytes"}, {1: "thread_time", 2: "thread_instruction_count"}
"""Units of counters, and names of those that Perfetto names."""

TrackKey: TypeAlias = int | tuple[int, str]  # The uuid of a track, or GPU and queue of render stages
_Moment: TypeAlias = tuple[int, int]  # A time in ns, and the number of its clock


def read_pftrace(path: str | PathLike[str]) -> Trace:
    """Read a trace of Perfetto's, packed by gzip or not."""
    packets = Packets(path)
    own = packets.own()
    if own is not None:
        del packets
        return parquet_trace(own, f"{str(path)!r}, which gpustreamlab wrote,")
    events = _Events(packets.left_out)
    for data, packet in packets:
        events.read(data, packet)
    if not packets.count:
        raise TraceFileError(
            f"{str(path)!r} holds no packet of a trace of Perfetto's in {packets.lost_bytes:,} bytes. It was cut off, is "
            "damaged, or another program wrote it."
        )
    return _Maker(packets, events).trace()


@dataclass(slots=True)
class _Clock:
    """A clock of one sequence, as its last snapshot tells."""

    time_ns: int
    unit_ns: int
    is_incremental: bool
    other: int  # Number of a clock of all, and how far that is ahead
    ahead_ns: int

    def moment(self, time: int) -> _Moment:
        """Return a time on the other clock."""
        time_ns = time * self.unit_ns
        if self.is_incremental:
            time_ns = self.time_ns = self.time_ns + time_ns
        return time_ns + self.ahead_ns, self.other


@dataclass(slots=True)
class _Sequence:
    """What packets of one sequence said for later ones."""

    is_known: bool = False  # Whether it was cleared, and nothing was lost since then
    clocks: dict[int, _Clock] = field(default_factory=dict)
    names: dict[int, int] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)  # Kind of span by the number of a category
    stages: dict[int, str] = field(default_factory=dict)
    clock: int = 0
    defaults: Any = None  # Defaults of track events
    sums: dict[int, float] = field(default_factory=dict)  # Of incremental counters, by track


class Rows(NamedTuple):
    """Events; shape (n_events,) each."""

    time_ns: Int64Array
    clock: Int64Array
    track: Int64Array
    type: Int64Array
    name: Int64Array
    kind: Int64Array
    duration_ns: Int64Array


class Track(NamedTuple):
    """What a track descriptor says."""

    name: str = ""
    parent: int = 0
    process: str = ""
    thread: str = ""  # What the thread is called, or its number; empty where it is none
    unit: str = ""
    multiplier: int = 1


class _Events:
    """All that is told, and which texts and tracks there are."""

    def __init__(self, left_out: Counter[str]) -> None:
        self.names: dict[str, int] = {"": 0}
        self.tracks: dict[TrackKey, int] = {}
        self.counters: dict[int, int] = {}  # Number of each track of samples, by its uuid
        self.descriptors: dict[int, Any] = {}
        self.snapshots: list[dict[int, int]] = []  # The same moment on several clocks, in ns
        self.primary_clock = BOOTTIME
        self.flows = array("Q")
        """Of each end of a flow, one after the other: which event it is of, its id, and whether it is the last one."""
        self.samples = array("d")
        """Of each sample, one after the other: which event it came with, which counter it is of, and its value."""
        self.stage_count = 0
        self._left_out = left_out
        self._rows, self._count = array("q"), 0
        """Values of events, one event after the other, and how many events those are."""
        self._sequences: dict[int, _Sequence] = {}
        self._specifications: tuple[Sequence[Any], Sequence[Any]] = (), ()  # Queues and stages that events themselves list
        self._readers = {
            "track_event": self._read_event,
            "gpu_render_stage_event": self._read_stage,
            "clock_snapshot": self._read_snapshot,
            "track_descriptor": self._read_descriptor,
        }

    def read(self, data: str | None, packet: Any) -> None:
        """Take in the next packet, and the name of what it holds."""
        sequence = self._sequence(packet)
        if packet.HasField("interned_data"):
            self._intern(packet.interned_data, sequence)
        if packet.HasField("trace_packet_defaults"):
            sequence.clock = packet.trace_packet_defaults.timestamp_clock_id
            sequence.defaults = packet.trace_packet_defaults.track_event_defaults
        moment = self._moment(packet, sequence) if packet.HasField("timestamp") else None
        if data in self._readers:
            self._readers[data](packet, sequence, moment)
        elif data is not None:
            self._left_out[data.replace("_", " ")] += 1

    def columns(self) -> tuple[Rows, BoolArray]:
        """Return all events, with times on the primary clock, and of which those are known."""
        columns = Rows(*np.array(self._rows).reshape(-1, len(Rows._fields)).T)
        clock = np.where(columns.clock == 0, self.primary_clock, columns.clock)
        time_ns, is_known = columns.time_ns.copy(), np.ones(len(clock), bool)
        used = np.unique(clock).tolist()
        for number in used:
            # Where nothing says how clocks belong together, the only one is as good as any.
            if number == self.primary_clock or (len(used) == 1 and not self.snapshots):
                continue
            rows = np.flatnonzero(clock == number)
            shared = [one for one in self.snapshots if {number, self.primary_clock} <= one.keys()]
            own, others = np.array(sorted((one[number], one[self.primary_clock]) for one in shared), np.int64).reshape(-1, 2).T
            is_known[rows] = len(own) > 0
            if len(own):
                last = np.maximum(np.searchsorted(own, time_ns[rows], side="right") - 1, 0)
                time_ns[rows] += (others - own)[last]
        return columns._replace(time_ns=time_ns), is_known

    def track(self, uuid: int) -> Track:
        """Return what is known of a track."""
        told = self.descriptors.get(uuid)
        if told is None:
            return Track()
        counter = told.counter
        return Track(
            name=text_of(told.name or told.static_name or told.atrace_name) or _BUILTIN.get(counter.type, ""),
            parent=told.parent_uuid,
            process=text_of(told.process.process_name),
            thread=text_of(told.thread.thread_name) or f"thread {told.thread.tid}" if told.HasField("thread") else "",
            unit=text_of(counter.unit_name) or _UNITS.get(counter.unit, ""),
            multiplier=counter.unit_multiplier if counter.HasField("unit_multiplier") else 1,
        )

    def wall_clock_ns(self) -> int:
        """Return when the primary clock was 0, in ns since 1970; 0 where nothing says so."""
        found = ({REALTIME, self.primary_clock} <= one.keys() and one for one in self.snapshots)
        return next((one[REALTIME] - one[self.primary_clock] for one in found if one), 0)

    def _sequence(self, packet: Any) -> _Sequence:
        """Return what the packet's sequence said so far that still holds."""
        number = packet.trusted_packet_sequence_id
        known = self._sequences.get(number)
        is_cleared = packet.sequence_flags & CLEARED or packet.incremental_state_cleared
        if known is None or is_cleared or packet.previous_packet_dropped:
            known = self._sequences[number] = _Sequence(bool(is_cleared), known.clocks if known else {})
        return known

    @staticmethod
    def _moment(packet: Any, sequence: _Sequence) -> _Moment | None:
        time_ns, clock = packet.timestamp, packet.timestamp_clock_id or sequence.clock
        if clock >= FIRST_SEQUENCE_CLOCK:
            if clock not in sequence.clocks:
                return None
            time_ns, clock = sequence.clocks[clock].moment(time_ns)
        return (time_ns, clock) if 0 <= time_ns < LARGEST_NS else None

    def _intern(self, interned: Any, sequence: _Sequence) -> None:
        for one in interned.event_names:
            sequence.names[one.iid] = self._name(one.name)
        for one in interned.event_categories:
            sequence.kinds[one.iid] = kind_of(one.name)
        for one in interned.gpu_specifications:
            sequence.stages[one.iid] = text_of(one.name)

    def _name(self, name: str | bytes) -> int:
        return self.names.setdefault(cut_text(text_of(name)), len(self.names))

    def _read_descriptor(self, packet: Any, *_: Any) -> None:
        told = packet.track_descriptor
        if told.uuid in self.descriptors:
            self.descriptors[told.uuid].MergeFrom(told)
        else:
            self.descriptors[told.uuid] = told

    def _read_snapshot(self, packet: Any, sequence: _Sequence, _: _Moment | None) -> None:
        told = packet.clock_snapshot
        self.primary_clock = told.primary_trace_clock or self.primary_clock
        times = {one.clock_id: one.timestamp * (one.unit_multiplier_ns or 1) for one in told.clocks}
        shared = {number: ns for number, ns in times.items() if number < FIRST_SEQUENCE_CLOCK and ns < LARGEST_NS}
        self.snapshots.append(shared)
        other = self.primary_clock if self.primary_clock in shared else next(iter(shared), None)
        for one in told.clocks:
            if one.clock_id >= FIRST_SEQUENCE_CLOCK and other is not None:
                time_ns, unit_ns = times[one.clock_id], one.unit_multiplier_ns or 1
                ahead_ns = shared[other] - time_ns
                sequence.clocks[one.clock_id] = _Clock(time_ns, unit_ns, one.is_incremental, other, ahead_ns)

    def _read_event(self, packet: Any, sequence: _Sequence, moment: _Moment | None) -> None:
        event = packet.track_event
        type_, name, duration_ns = event.type, event.name_iid, 0
        if event.HasField("legacy_event"):  # of Chrome's browser
            old = event.legacy_event
            type_, name, duration_ns = type_ or _PHASES.get(old.phase, 0), name or old.name_iid, old.duration_us * 1_000
        reason = self._refused(packet, sequence, type_, moment, duration_ns)
        if reason or moment is None:
            self._left_out[reason] += 1
            return
        number, kind = self._count, ANNOTATION
        if type_ == INSTANT:
            kind = MARKER
        elif event.category_iids:
            kind = sequence.kinds.get(event.category_iids[0], ANNOTATION)
        elif event.categories:
            kind = kind_of(event.categories[0])
        uuid = event.track_uuid if event.HasField("track_uuid") or not sequence.defaults else sequence.defaults.track_uuid
        code = self._name(event.name) if event.HasField("name") else sequence.names.get(name, 0)
        self._add(moment, uuid, type_, code, kind, duration_ns)
        if type_ == COUNTER:
            is_double = event.HasField("double_counter_value")
            self._add_sample(number, sequence, uuid, event.double_counter_value if is_double else event.counter_value)
        self._read_more(event, sequence, number)

    def _read_more(self, event: Any, sequence: _Sequence, number: int) -> None:
        """Read the flows of an event, and samples of counters that it brings along."""
        for ids, is_last in ((event.flow_ids, 0), (event.terminating_flow_ids, 1)):
            for flow in ids:
                self.flows.extend((number, flow, is_last))
        for what in ("extra_counter", "extra_double_counter"):
            uuids = getattr(event, f"{what}_track_uuids") or getattr(sequence.defaults, f"{what}_track_uuids", ())
            for uuid, value in zip(uuids, getattr(event, f"{what}_values"), strict=False):
                self._add_sample(number, sequence, uuid, value)

    @staticmethod
    def _refused(packet: Any, sequence: _Sequence, type_: int, moment: _Moment | None, duration_ns: int) -> str:
        """Return why an event is not read; empty where it is."""
        if not 0 < type_ <= COUNTER and type_ != COMPLETE:
            return "events of other types"
        if moment is None:
            return "events whose time is not told"
        if not 0 <= duration_ns < LARGEST_NS:
            return "events with a negative duration"
        if packet.sequence_flags & NEEDS_STATE and not sequence.is_known:
            return "events whose names are lost"
        return ""

    def _add(self, moment: _Moment, track: TrackKey, *rest: int) -> None:
        self._rows.extend((*moment, self.tracks.setdefault(track, len(self.tracks)), *rest))
        self._count += 1

    def _add_sample(self, event: int, sequence: _Sequence, uuid: int, value: float) -> None:
        if uuid in self.descriptors and self.descriptors[uuid].counter.is_incremental:
            value = sequence.sums[uuid] = sequence.sums.get(uuid, 0) + value
        self.samples.extend((event, self.counters.setdefault(uuid, len(self.counters)), value))

    def _read_stage(self, packet: Any, sequence: _Sequence, moment: _Moment | None) -> None:
        """Read work of a GPU: its queue and stage are interned, or listed by an event before."""
        event = packet.gpu_render_stage_event
        if event.HasField("specifications"):
            told = event.specifications
            self._specifications = told.hw_queue or self._specifications[0], told.stage or self._specifications[1]
        queue, stage = (
            sequence.stages.get(iid) if iid else text_of(listed[number].name) if number < len(listed) else None
            for iid, number, listed in zip(
                (event.hw_queue_iid, event.stage_iid), (event.hw_queue_id, event.stage_id), self._specifications, strict=True
            )
        )
        if queue is None or moment is None or not 0 < event.duration < LARGEST_NS:
            self._left_out["render stages without a queue or a duration"] += 1
            return
        name = self._name(event.name or stage or "")
        self._add(moment, (min(max(event.gpu_id, 0), _MOST_GPUS), queue), COMPLETE, name, KERNEL, event.duration)
        self.stage_count += 1


def kind_of(category: str | bytes) -> int:
    """Return the kind of spans of a category."""
    found = text_of(category).lower()
    return HOST if found in _CALLS else _WORK.get(found, ANNOTATION)


def text_of(text: str | bytes) -> str:
    """Return a text; what is no UTF-8 comes as bytes."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


class _Maker:
    """Makes a trace of what a file of others tells."""

    def __init__(self, packets: Packets, events: _Events) -> None:
        self._packets, self._told = packets, events
        self._events, self._is_known = events.columns()
        packets.left_out["events whose time is not told"] += int((~self._is_known).sum())
        self._lanes: list[Lane] = []
        self._names = Counter[str]()
        self._lane_of: dict[TrackKey | None, int] = {}
        self._notes = ""

    def trace(self) -> Trace:
        """Return the trace."""
        event, start_ns, end_ns, slice_of = self._slices()
        lane = self._track_lanes(event)[self._events.track[event]]
        counters = self._counters()
        if not len(event) and not len(counters):
            raise TraceFileError(
                f"{self._packets.path!r} holds no track events and no work of a GPU in {self._packets.count:,} packets"
                f"{self._not_read()}. Record with the data source track_event or gpu.renderstages."
            )
        flows = self._flows(slice_of)
        is_stream = np.array([one.kind is LaneKind.STREAM for one in self._lanes], bool)
        thread = np.where(is_stream, -1, np.cumsum(~is_stream) - 1)
        order = np.lexsort((~end_ns, start_ns))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        columns = {"start_ns": start_ns, "end_ns": end_ns, "lane": lane, "thread": thread[lane]}
        columns |= {"name": self._events.name[event], "kind": self._events.kind[event]}
        return Frame(
            backend=PERFETTO_BACKEND,
            source="Perfetto",
            path=self._packets.path,
            lanes=self._lanes,
            threads=[one.name.removeprefix("host: ") for one in self._lanes if one.kind is LaneKind.HOST],
            names=[*self._told.names],
            parts=[{name: values[order] for name, values in columns.items()}],
            flows=place[flows],
            counters=counters,
            epoch_ns=self._told.wall_clock_ns(),
            imported=self._used(len(order), len(counters), len(flows)),
            missing=_missing(is_stream, has_flows=len(flows) > 0),
            facts={"waits_told": int(is_stream.sum()) < 2},
        ).trace()

    def _slices(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return of slices and instants their first event, start and end, and the slice of each event, or -1."""
        # An end belongs to the newest slice of its track that is open, whatever its name is.
        events, kind = self._events, np.where(self._is_known, self._events.type, 0)
        both = np.flatnonzero((kind == BEGIN) | (kind == END))
        is_begin = kind[both] == BEGIN
        begins, ends = match_begins(events.track[both], events.time_ns[both], is_begin, np.zeros(len(both), np.int64))
        starting = np.flatnonzero((kind == BEGIN) | (kind == INSTANT) | (kind == COMPLETE))
        of = np.full(len(kind), -1)
        of[starting] = np.arange(len(starting))
        start_ns = events.time_ns[starting]
        end_ns, is_open = start_ns + events.duration_ns[starting], kind[starting] == BEGIN
        ended = of[both[begins]]
        end_ns[ended], is_open[ended] = events.time_ns[both[ends]], False
        of[both[ends]] = ended
        if is_open.any():
            self._notes = f"; {is_open.sum():,} slices have no end and last until the last event"
            end_ns[is_open] = np.maximum(events.time_ns[self._is_known].max(), start_ns[is_open])
        unmatched = len(both) - int(is_begin.sum()) - len(ends)
        self._notes += f"; {unmatched:,} ends end nothing" if unmatched else ""
        return starting, start_ns, end_ns, of

    def _flows(self, slice_of: Int64Array) -> Int64Array:
        """Return the slices that flows lead from and to: from each event of a flow to the next one, up to its last one."""
        told = np.array(self._told.flows).reshape(-1, 3)
        told = told[slice_of[told[:, 0].astype(np.int64)] >= 0]
        event, flow, is_last = told[:, 0].astype(np.int64), told[:, 1], told[:, 2] > 0
        # Where an event ends one flow and is in another of the same number, it ends that first.
        order = np.lexsort((~is_last, event, self._events.time_ns[event], flow))
        event, flow, is_last = event[order], flow[order], is_last[order]
        is_next = (flow[1:] == flow[:-1]) & ~is_last[:-1]
        source, target = slice_of[event[:-1][is_next]], slice_of[event[1:][is_next]]
        flows: Int64Array = np.stack((source[source != target], target[source != target]), axis=1)
        return flows

    def _track_lanes(self, event: Int64Array) -> Int64Array:
        """Return the lane of each track; tracks that are no threads share one where name and parent are the same."""
        keys, track = [*self._told.tracks], self._events.track[event]
        is_work = set(track[np.isin(self._events.kind[event], [*_WORK.values()])].tolist())
        used = np.unique(track).tolist()
        agents = {code: int(found[1]) for code in is_work if (found := _AGENT.search(self._track_name_of(keys[code])))}
        ordinals = {agent: place for place, agent in enumerate(sorted({*agents.values()}))}
        rank: dict[Any, int] = {uuid: place for place, uuid in enumerate(self._told.descriptors)}
        has_many = len({keys[code][0] for code in used if isinstance(keys[code], tuple)}) > 1
        lanes, known = np.zeros(len(keys), np.int64), dict[object, int]()
        for code in sorted(used, key=lambda code: (isinstance(keys[code], tuple), rank.get(keys[code], len(rank)), keys[code])):
            key, is_stream = keys[code], code in is_work
            if isinstance(key, tuple):
                gpu, queue = key
                lanes[code] = self._add_lane(f"GPU {gpu} {queue}" if has_many else queue, is_stream=True, device=gpu)
                continue
            one = self._told.track(key)
            shared = key if one.thread or not one.name else (one.name, one.parent, is_stream)
            if shared not in known:
                device = ordinals[agents[code]] if code in agents else 0
                known[shared] = self._add_lane(self._track_name(key, one), is_stream=is_stream, device=device)
            lanes[code] = self._lane_of[key] = known[shared]
        return lanes

    def _track_name_of(self, key: TrackKey) -> str:
        return key[1] if isinstance(key, tuple) else self._told.track(key).name

    def _track_name(self, uuid: int, track: Track) -> str:
        """Return what a track is called."""
        if track.thread:
            return track.name or track.thread
        over = self._told.track(track.parent)
        parts = [part for part in (over.process or over.name or over.thread, track.name or track.process) if part]
        return ": ".join(parts) or (f"track {uuid}" if uuid else "default track")

    def _add_lane(self, name: str, *, is_stream: bool, device: int = 0) -> int:
        """Add a lane with a name of its own; return its number."""
        name = cut_text(name)
        name = own_name(name if is_stream else f"host: {name}", self._names)
        kind = LaneKind.STREAM if is_stream else LaneKind.HOST
        self._lanes.append(Lane(name=name, device=device, stream=len(self._lanes) + 1, kind=kind))
        return len(self._lanes) - 1

    def _counters(self) -> Counters:
        """Return the samples of counters."""
        event, code, value = np.array(self._told.samples).reshape(-1, 3).T
        event, code = event.astype(np.int64), code.astype(np.int64)
        is_known = self._is_known[event]
        event, code, value = event[is_known], code[is_known], value[is_known]
        tracks = [(uuid, self._told.track(uuid)) for uuid in self._told.counters]
        texts = [_counter_name(uuid, track) for uuid, track in tracks]
        names = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        table = [(names[text], self._counter_lane(track)) for text, (_, track) in zip(texts, tracks, strict=True)]
        name, lane = np.array(table, np.int32).reshape(-1, 2)[code].T
        multiplier = np.array([track.multiplier for _, track in tracks], np.float64)[code]
        return Counters(time_ns=self._events.time_ns[event], lane=lane, name=name, value=value * multiplier, names=tuple(names))

    def _counter_lane(self, track: Track) -> int:
        """Return the lane that a counter is of: that of its track, else one for all others."""
        if track.parent in self._lane_of:
            return self._lane_of[track.parent]
        if None not in self._lane_of:
            self._lane_of[None] = self._add_lane("counters", is_stream=False)
        return self._lane_of[None]

    def _used(self, spans: int, samples: int, flows: int) -> str:
        """Say how much was read, left out and refused."""
        parts = [
            (spans - self._told.stage_count, "slices and instants"),
            (self._told.stage_count, "pieces of work of GPUs"),
            (samples, "samples of counters"),
            (flows, "flows"),
        ]
        used = ", ".join(f"{count:,} {what}" for count, what in parts if count)
        return f"{used} of {self._packets.count:,} packets{self._notes}{self._not_read()}"

    def _not_read(self) -> str:
        text = not_read(self._packets.left_out, MOST_LISTED)
        text += f"; {self._packets.damaged_count:,} damaged packets" if self._packets.damaged_count else ""
        text += f"; {self._packets.lost_bytes:,} bytes at the end are no whole packet" if self._packets.lost_bytes else ""
        return text + ("; the file is cut off" if self._packets.is_cut else "")


def _missing(is_stream: BoolArray, *, has_flows: bool) -> tuple[str, ...]:
    """Say what the file does not tell."""
    facts = []
    if is_stream.any():
        facts.append("The file has no properties of GPUs: when kernels fill their SMs is not known.")
    else:
        facts.append("The file holds no work of a GPU: its tracks are read as threads of the host.")
    if is_stream.sum() > 1:
        facts.append("Whether streams waited for events is not told, but for flows between their work.")
    if has_flows:
        facts.append("Flows do not say what they stand for: those from a thread to a GPU are launches here, others are waits.")
    return tuple(facts)


def _counter_name(uuid: int, track: Track) -> str:
    """Return the name of a counter, with its unit."""
    name = track.name or f"counter {uuid}"
    return cut_text(name if not track.unit or name.endswith(track.unit) else f"{name}_{track.unit}")


def load_messages() -> Any:
    """Return Perfetto's module of messages."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise MissingExtraError(
            "Perfetto's files are read and written by its package perfetto, which is not installed. "
            f"Install it with: {install_line('perfetto')} - or save as .json.gz, which Perfetto opens, too."
        ) from error
    return perfetto_trace_pb2


class Packets:
    """The packets of a file, packed by gzip or not; one that was cut off is read as far as it goes."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = str(path)
        self.left_out = Counter[str]()  # How many packets and events were not read, by what they are
        self.count = self.damaged_count = self.lost_bytes = self._inflated_bytes = 0
        self.is_cut = False  # Whether the file could not be unpacked to its end
        self._most_bytes = room_bytes()
        self._content = self._read(Path(path))

    def own(self) -> bytes | None:
        """Return the trace that a file of ours holds; None for files of others, and for several of ours in one."""
        if self._content.count(OWN_HEAD) != 1:
            return None
        begin = self._content.index(OWN_HEAD) + len(OWN_HEAD)
        data = begin + VARINT_BYTES
        return self._content[data : data + varint_size(self._content[begin:data])]

    def __iter__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what each packet holds, and its message; those that are packed are unpacked."""
        shown = 0
        with steps(len(self._content) // _STEP_BYTES, "reading") as step:
            for end, data, packet in self._parsed(self._content):
                if data == "compressed_packets":
                    yield from (inner[1:] for inner in self._parsed(self._inflated(packet.compressed_packets)))
                else:
                    yield data, packet
                while shown < end // _STEP_BYTES:
                    shown += 1
                    step("packets")

    def _parsed(self, content: bytes) -> Iterator[tuple[int, str | None, Any]]:
        """Yield where each packet of some bytes ends, what it holds, and its message."""
        parse, done = load_messages().TracePacket.FromString, 0
        from google.protobuf.message import DecodeError

        for begin, end in frames(content):
            if end > len(content):
                break
            done = end
            self.count += 1
            try:
                packet = parse(content[begin:end])
            except DecodeError:
                self.damaged_count += 1
            else:
                yield end, packet.WhichOneof("data"), packet
        self.lost_bytes += len(content) - done

    def _inflated(self, packed: bytes) -> bytes:
        """Return packets that are packed within a packet; nothing where that is damaged."""
        try:
            content = zlib.decompressobj().decompress(packed, self._most_bytes + 1)
        except zlib.error:
            self.left_out["damaged packed packets"] += 1
            return b""
        self._inflated_bytes += len(content)
        require_room(self._inflated_bytes, repr(self.path), self._most_bytes)
        return content

    def _read(self, path: Path) -> bytes:
        parts: list[bytes] = []
        try:
            require_room(path.stat().st_size, repr(self.path))
            with path.open("rb") as file:
                parts.extend(unpacked(file))
        except TraceFileError:
            raise
        except (OSError, EOFError, zlib.error) as error:
            if not parts:
                raise TraceFileError(f"{self.path!r} cannot be read: {error}. Copy it again.") from error
            self.is_cut = True
        return b"".join(parts)
