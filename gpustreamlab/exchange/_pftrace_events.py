"""Packets of a Perfetto trace as events: interned strings, track descriptors, clock snapshots, and what happened."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpustreamlab.exchange._frame import ANNOTATION, COPY, FILL, HOST, KERNEL, MARKER
from gpustreamlab.exchange._rows import called
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import BoolArray, Int64Array

CLEARED, NEEDS_STATE = 1, 2
"""Flags of a packet: what its sequence interned before does not hold any more; it needs what was interned."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of track events."""
COMPLETE = 6  # Type of what begins and ends a slice at once: legacy events, and render stages
LARGEST_NS = 1 << 62  # Later times, of 2116, are refused
_MOST_GPUS = 4_096
REALTIME, BOOTTIME, FIRST_SEQUENCE_CLOCK = 1, 6, 64
"""Numbers of clocks: the time since 1970, the one of files that name no other, and from 64 on those of one sequence."""
_PHASES = {ord("B"): BEGIN, ord("E"): END, ord("X"): COMPLETE, ord("I"): INSTANT, ord("i"): INSTANT, ord("R"): INSTANT}
WORK = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}  # Categories that tell of work of a GPU
# Those of AMD's rocprofv3 and rocprofiler-systems. Source: ``generatePerfetto.cpp`` of rocprofiler-sdk
WORK |= {
    f"{maker}{name}": kind for maker in ("", "rocm_") for name, kind in (("kernel_dispatch", KERNEL), ("memory_copy", COPY))
}
_CALLS = {"hip_api", "hsa_api", "rccl_api", "rocm_hip_api", "rocm_hsa_api"}
AGENT = re.compile(r"\b(?:AGENT|GPU) \[(\d{1,7})\]", re.IGNORECASE)

_UNITS, _BUILTIN = {1: "ns", 2: "count", 3: "bytes"}, {1: "thread_time", 2: "thread_instruction_count"}
"""Units of counters, and names of those that Perfetto names."""

TrackKey: TypeAlias = int | tuple[int, str]  # The uuid of a track, or GPU and queue of render stages
_Moment: TypeAlias = tuple[int, int]  # A time in ns, and the number of its clock


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


class Events:
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
        text = text_of(name)
        text = called(COPY, text) if text.startswith("MEMORY_COPY_") else text  # of AMD
        return self.names.setdefault(cut_text(text), len(self.names))

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
    return HOST if found in _CALLS else WORK.get(found, ANNOTATION)


def text_of(text: str | bytes) -> str:
    """Return a text; what is no UTF-8 comes as bytes."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")
