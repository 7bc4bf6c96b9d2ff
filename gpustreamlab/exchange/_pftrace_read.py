"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import NamedTuple

import numpy as np

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import LEAST_WALL_CLOCK_NS, not_read
from gpustreamlab.exchange._pftrace_events import NO_TRACK, Events, Texts, link_flows, match_spans, read_events
from gpustreamlab.exchange._pftrace_file import Packets, read_packets
from gpustreamlab.exchange._pftrace_packets import COUNTER, INSTANT, OWN_FIELD
from gpustreamlab.exchange._pftrace_said import (
    CATEGORIES,
    GPU_SPECIFICATIONS,
    LARGEST_NS,
    NAMES,
    Defaults,
    Said,
    Track,
    packet_times,
    read_message,
    read_said,
    wall_clock_ns,
)
from gpustreamlab.exchange._protobuf import LENGTH, Numbers, read_fields
from gpustreamlab.model import EDGE_KINDS, PERFETTO_BACKEND, SPAN_KINDS, Counters, Device, Edges, Lane, Trace, TraceMetadata
from gpustreamlab.model._file import parquet_trace
from gpustreamlab.record import FIRST_WORK_NUMBER, Delta, Tables, build_trace, cut_text
from gpustreamlab.typing import BoolArray, CaptureTier, EdgeKind, FloatArray, Int64Array, LaneKind, SpanKind

MOST_LANES = 4_096
"""Most lanes of a file; tracks of one name and parent share one."""
MOST_LISTED = 6
"""How many kinds of packets that are not read are named."""
_WORK = {"kernel": SpanKind.KERNEL, "gpu_memcpy": SpanKind.COPY, "gpu_memset": SpanKind.FILL}
"""Categories that tell of work of a GPU."""
_KERNEL, _MARKER, _ANNOTATION = (SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.MARKER, SpanKind.ANNOTATION))


def read_pftrace(path: str | PathLike[str]) -> Trace:
    """Read a trace of Perfetto's, packed by gzip or not.

    Returns
    -------
    Trace
        What `write_pftrace` wrote, exactly as it was. Of files of others: slices, instants, flows and counters of track events,
        and work of GPUs (render stages). Each track is a lane, a thread of the host unless its slices have categories of work
        of a GPU. Slices are annotations, instants are markers; what nothing ended lasts until the last event.
        ``trace.metadata.imported`` counts what was used, left out and refused.

    Notes
    -----
    Nothing of our own files is lost. Of others' are not read: arguments of slices, times and instruction counts of threads in
    events of the old kind, old asynchronous events, events whose time is the distance from another event in the old way,
    process ids, and all other data sources. An end belongs to what began last on its track, whatever its name is.

    Raises
    ------
    TraceFileError
        If the file holds no packet or no event of those, is too large, or is one of ours whose own data is damaged.

    Examples
    --------
    >>> from gpustreamlab.exchange._pftrace import write_pftrace
    >>> from gpustreamlab.exchange._pftrace_read import read_pftrace
    >>> path = getfixture("tmp_path") / "run.pftrace.gz"
    >>> write_pftrace(Trace.from_columns(start_ns=[0, 5], end_ns=[9, 7], stream=["a", "b"]), path)
    >>> read_pftrace(path)
    <Trace: 2 spans in 2 lanes on unknown device>
    """
    name, texts = str(path), Texts()
    packets = read_packets(path)
    own = [one.fields[OWN_FIELD] for one in packets.said if OWN_FIELD in one.fields]
    if len(own) == 1:
        data = packets.data[slice(*own[0])].tobytes()
        del packets
        return parquet_trace(data, f"{name!r}, which gpustreamlab wrote,")
    return _Builder(name, packets, read_said(packets, texts), texts).build()


class _Rows(NamedTuple):
    """Spans as columns."""

    start_ns: Int64Array
    end_ns: Int64Array
    lane: Int64Array
    name: Int64Array
    kind: Int64Array


class _Builder:
    """Makes a trace of what a file of others tells."""

    def __init__(self, path: str, packets: Packets, said: Said, texts: Texts) -> None:
        self._path, self._packets, self._said, self._texts = path, packets, said, texts
        self._left_out = packets.left_out
        events = read_events(packets, texts, self._left_out)
        self._times = packet_times(packets, said)
        self._time_ns = self._times.time_ns[events.packet]
        is_used = self._times.is_known[events.packet] & ~events.is_delta & (events.type > 0)
        self._left_out["events whose time is not told"] += int((~is_used & (events.type > 0)).sum())
        lacks = packets.needs_state[events.packet] & ~said.is_known[said.generation[events.packet]]
        self._left_out["events whose names are lost"] += int((is_used & lacks).sum())
        self._is_used = is_used & ~lacks
        self._events = _with_default_tracks(events, said)
        self._matched = match_spans(self._events, self._time_ns, self._is_used)
        self._lanes: list[Lane] = []
        self._names: Counter[str] = Counter()
        self._lane_of: dict[int, int] = {}

    def build(self) -> Trace:
        """Return the trace."""
        slices, stages, counters = self._slices(), self._stages(), self._counters()
        rows = _Rows(*(np.concatenate(pair) for pair in zip(slices, stages, strict=True)))
        if not len(rows.start_ns) and not len(counters):
            raise TraceFileError(
                f"{self._path!r} holds no track events and no work of a GPU in {len(self._packets):,} packets"
                f"{self._not_read()}. Record with the data source track_event or gpu.renderstages."
            )
        source, target = link_flows(self._events, self._time_ns, self._matched.span_of)
        is_stream = np.array([one.kind is LaneKind.STREAM for one in self._lanes], bool)
        is_launch = ~is_stream[rows.lane[source]] & is_stream[rows.lane[target]]
        queued_ns = rows.start_ns.copy()
        np.minimum.at(queued_ns, target[is_launch], rows.start_ns[source[is_launch]])
        order = np.lexsort((~rows.end_ns, rows.start_ns))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        columns = self._columns(rows, queued_ns, is_stream, order)
        shift_ns, epoch_ns = self._epoch(rows.start_ns, counters)
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] = columns[name] - shift_ns
        used, columns["name"] = np.unique(columns["name"], return_inverse=True)
        every = [*self._texts.all]
        metadata = self._metadata(columns, epoch_ns, is_stream)
        counts = (len(slices.start_ns), len(stages.start_ns), len(counters), len(source))
        metadata = replace(metadata, imported=self._used(*counts), missing=self._missing(is_stream, counts[3]))
        threads = tuple(lane.name.removeprefix("host: ") for lane in self._lanes if lane.kind is LaneKind.HOST)
        delta = Delta(
            Tables(tuple(self._lanes), threads, (), (), (), metadata),
            columns,
            names=tuple(every[code] for code in used.tolist()),
            counters=replace(counters, time_ns=counters.time_ns - shift_ns),
        )
        codes = np.where(is_launch, EDGE_KINDS.index(EdgeKind.LAUNCH), EDGE_KINDS.index(EdgeKind.WAIT))
        return replace(build_trace(delta), edges=Edges(source=place[source], target=place[target], kind=codes))

    def _columns(self, rows: _Rows, queued_ns: Int64Array, is_stream: BoolArray, order: Int64Array) -> dict[str, Int64Array]:
        """Return the columns of a `Delta`, in some order."""
        nothing = {"parent": -1, "partition": -1, "detail": -1, "size_bytes": 0, "correlation": 0}
        thread = np.where(is_stream, -1, np.cumsum(~is_stream) - 1)
        return {name: np.full(len(order), value, np.int64) for name, value in nothing.items()} | {
            "start_ns": rows.start_ns[order],
            "end_ns": rows.end_ns[order],
            "queued_ns": queued_ns[order],
            "lane": rows.lane[order],
            "name": rows.name[order],
            "kind": rows.kind[order],
            "thread": thread[rows.lane[order]],
            "number": FIRST_WORK_NUMBER + np.arange(len(order)),
        }

    def _slices(self) -> _Rows:
        """Return the spans of track events."""
        events, event = self._events, self._matched.event
        names = self._texts_of(NAMES, event, events.name, events.name_text)
        names[names < 0] = self._texts.code(b"")
        categories = self._texts_of(CATEGORIES, event, events.category, events.category_text)
        kinds = np.array([*(self._kind(text) for text in self._texts.all), _ANNOTATION], np.int64)
        kind = np.where(events.type[event] == INSTANT, _MARKER, kinds[categories])
        uuids, track = np.unique(events.track[event], return_inverse=True)
        is_work = np.zeros(len(uuids), bool)
        is_work[track[np.isin(kind, [SPAN_KINDS.index(one) for one in _WORK.values()])]] = True
        lanes = self._track_lanes(uuids.tolist(), is_work.tolist())
        return _Rows(self._matched.start_ns, self._matched.end_ns, lanes[track], names, kind)

    @staticmethod
    def _kind(category: str) -> int:
        return SPAN_KINDS.index(_WORK.get(category.lower(), SpanKind.ANNOTATION))

    def _texts_of(self, table: int, event: Int64Array, number: Int64Array, text: Int64Array) -> Int64Array:
        """Return the number of the text of each event, in it or said before; -1 for none."""
        found = text[event]
        rows = np.flatnonzero((found < 0) & (number[event] > 0))
        found[rows] = self._said.lookup(table, self._events.packet[event[rows]], number[event[rows]])
        return found

    def _track_lanes(self, uuids: Sequence[int], is_work: Sequence[bool]) -> Int64Array:
        """Return the lane of each track; tracks that are no threads share one where name and parent are the same."""
        rank = {uuid: place for place, uuid in enumerate(self._said.tracks)}
        order = sorted(range(len(uuids)), key=lambda place: (rank.get(uuids[place], len(rank)), uuids[place]))
        lanes = np.zeros(len(uuids), np.int64)
        known: dict[object, int] = {}
        for place in order:
            uuid = uuids[place]
            track = self._said.tracks.get(uuid, Track())
            key = uuid if track.thread or not track.name else (track.name, track.parent, is_work[place])
            if key not in known:
                known[key] = self._add_lane(self._track_name(uuid, track), is_stream=is_work[place])
            lanes[place] = self._lane_of[uuid] = known[key]
        return lanes

    def _track_name(self, uuid: int, track: Track) -> str:
        """Return what a track is called."""
        if track.thread:
            return track.name or track.thread
        over = self._said.tracks.get(track.parent, Track()) if track.parent else Track()
        parts = [part for part in (over.process or over.name or over.thread, track.name or track.process) if part]
        return ": ".join(parts) or ("default track" if uuid in (0, NO_TRACK) else f"track {uuid}")

    def _add_lane(self, name: str, *, is_stream: bool, device: int = 0) -> int:
        """Add a lane with a name of its own; return its number."""
        if len(self._lanes) >= MOST_LANES:
            raise TraceFileError(
                f"{self._path!r} has more than {MOST_LANES:,} tracks with names of their own; so many are read. Record less."
            )
        name = cut_text(name)
        name = name if is_stream else f"host: {name}"
        self._names[name] += 1
        while self._names[name] > 1:
            name = f"{name} ({self._names[name]})"
            self._names[name] += 1
        kind = LaneKind.STREAM if is_stream else LaneKind.HOST
        self._lanes.append(Lane(name=name, device=device, stream=len(self._lanes) + 1, kind=kind))
        return len(self._lanes) - 1

    def _stages(self) -> _Rows:
        """Return the work of GPUs."""
        first, last = self._packets.gpu
        packet = np.flatnonzero(last >= 0)
        fields = read_fields(self._packets.data, first[packet], last[packet])
        duration = fields.numbers(2)
        queues, stages = self._inline_specifications(fields.spans(7))
        queue = self._named(packet, fields.numbers(13), fields.numbers(3), queues)
        name = self._named(packet, fields.numbers(14), fields.numbers(4), stages)
        name_first, name_last = fields.spans(17)
        view = self._packets.data.data
        for row in np.flatnonzero(name_last >= 0).tolist():
            name[row] = self._texts.code(bytes(view[int(name_first[row]) : int(name_last[row])]))
        has_time = self._times.is_known[packet] & (duration < np.uint64(LARGEST_NS)) & ~fields.is_damaged
        fits = has_time & (queue >= 0) & (duration > 0)
        self._left_out["render stages without a queue or a duration"] += int((~fits).sum())
        rows = np.flatnonzero(fits)
        gpu = np.minimum(fields.numbers(11), MOST_LANES).astype(np.int64)[rows]
        keys, place = np.unique(gpu << 32 | queue[rows], return_inverse=True)
        every = [*self._texts.all]
        has_many = len(np.unique(gpu)) > 1
        lanes = []
        for device, code in (divmod(key, 1 << 32) for key in keys.tolist()):
            name_of = f"GPU {device} {every[code]}" if has_many else every[code]
            lanes.append(self._add_lane(name_of, is_stream=True, device=device))
        name[name < 0] = self._texts.code(b"")
        start_ns = self._times.time_ns[packet[rows]]
        end_ns = start_ns + duration[rows].astype(np.int64)
        return _Rows(start_ns, end_ns, np.array(lanes, np.int64)[place], name[rows], np.full(len(rows), _KERNEL, np.int64))

    def _named(self, packet: Int64Array, interned: Numbers, inline: Numbers, names: Sequence[int]) -> Int64Array:
        """Return the text of a queue or a stage of each packet, said before or by all; -1 for none."""
        number = np.where(interned < 1 << 32, interned, 0).astype(np.int64)
        found = self._said.lookup(GPU_SPECIFICATIONS, packet, number)
        known = np.array([*names, -1], np.int64)
        place = np.minimum(inline, len(names)).astype(np.int64)
        return np.where(number > 0, found, known[place])

    def _inline_specifications(self, places: tuple[Int64Array, Int64Array]) -> tuple[list[int], list[int]]:
        """Return the texts of queues and stages that events themselves say; the last ones count."""
        queues: list[int] = []
        stages: list[int] = []
        view = self._packets.data.data
        for first, last in zip(*(place[places[1] >= 0].tolist() for place in places), strict=True):
            fields = [one for one in read_message(view, first, last) if one[1] == LENGTH]
            found = [[self._specification(view, *one[3:]) for one in fields if one[0] == number] for number in (2, 3)]
            queues, stages = found[0] or queues, found[1] or stages
        return queues, stages

    def _specification(self, view: memoryview, first: int, last: int) -> int:
        texts = {one[0]: bytes(view[one[3] : one[4]]) for one in read_message(view, first, last) if one[1] == LENGTH}
        return self._texts.code(texts.get(1, b""))

    def _counters(self) -> Counters:
        """Return the samples of counters."""
        events = self._events
        rows = np.flatnonzero((events.type == COUNTER) & self._is_used)
        event, track, value = self._more_samples()
        event = np.concatenate((rows, event))
        track = np.concatenate((events.track[rows], track))
        value = np.concatenate((events.value[rows], value))
        order = np.argsort(event, kind="stable")
        event, track, value = event[order], track[order], value[order]
        uuids, place = np.unique(track, return_inverse=True)
        told = [self._said.tracks.get(uuid, Track()) for uuid in uuids.tolist()]
        value = value * np.array([one.multiplier for one in told], np.float64)[place]
        value = _summed(value, place, self._said.generation[events.packet[event]], [one.is_incremental for one in told])
        lanes = [self._counter_lane(uuid, one) for uuid, one in zip(uuids.tolist(), told, strict=True)]
        texts = [_counter_name(uuid, one) for uuid, one in zip(uuids.tolist(), told, strict=True)]
        names = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        return Counters(
            time_ns=self._time_ns[event],
            lane=np.array(lanes, np.int32)[place],
            name=np.array([names[text] for text in texts], np.int32)[place],
            value=value,
            names=tuple(names),
        )

    def _more_samples(self) -> tuple[Int64Array, Numbers, FloatArray]:
        """Return event, track and value of samples that events of other kinds bring along."""
        found = []
        nothing = Defaults()
        versions = self._said.version[self._events.packet]
        for event, place, value, is_double in self._events.samples:
            defaults = self._said.defaults.get(int(versions[event]), nothing)
            own = self._events.sample_tracks.get(event, ([], []))[is_double]
            tracks = own or (defaults.more_double_tracks if is_double else defaults.more_tracks)
            if place < len(tracks) and self._is_used[event]:
                found.append((event, tracks[place], value))
            else:
                self._left_out["samples of no counter"] += 1
        events, tracks, values = zip(*found, strict=True) if found else ((), (), ())
        return np.array(events, np.int64), np.array(tracks, np.uint64), np.array(values, np.float64)

    def _counter_lane(self, uuid: int, track: Track) -> int:
        """Return the lane that a counter is of: that of its track, else one for all others."""
        if track.parent in self._lane_of:
            return self._lane_of[track.parent]
        if -1 not in self._lane_of:
            self._lane_of[-1] = self._add_lane("counters", is_stream=False)
        return self._lane_of[-1]

    def _epoch(self, start_ns: Int64Array, counters: Counters) -> tuple[int, int]:
        """Return what is subtracted from times, and when the trace's zero was; times since 1970 count from the first one."""
        first_ns = min(int(times.min()) for times in (start_ns, counters.time_ns) if len(times))
        if first_ns >= LEAST_WALL_CLOCK_NS:
            return first_ns, first_ns
        return 0, wall_clock_ns(self._said) or 0

    def _metadata(self, columns: dict[str, Int64Array], epoch_ns: int, is_stream: BoolArray) -> TraceMetadata:
        """Return what the file tells of itself."""
        start_ns, end_ns = columns["start_ns"], columns["end_ns"]
        is_in_us = not ((start_ns % 1_000).any() or (end_ns % 1_000).any())
        step_ns = 1_000 if is_in_us else 0
        devices = Counter(self._lanes[lane].device for lane in columns["lane"].tolist() if is_stream[lane])
        device = devices.most_common(1)[0][0] if devices else 0
        return TraceMetadata(
            backend=PERFETTO_BACKEND,
            device=Device(name=f"GPU {device}", ordinal=device, sm_count=0),
            clock=f"that of the file, in steps of {'1 us' if is_in_us else '1 ns'}",
            clock_error_ns=step_ns,
            host_error_ns=step_ns,
            kernel_error_ns=step_ns,
            tier=CaptureTier.KERNELS,
            capture_windows=((int(start_ns.min()), int(end_ns.max())),) if len(start_ns) else (),
            capture_source="Perfetto",
            epoch_unix_ns=epoch_ns,
            waits_told=int(is_stream.sum()) < 2,
        )

    def _used(self, slices: int, stages: int, samples: int, flows: int) -> str:
        """Say how much was read, left out and refused."""
        parts = [
            (slices, "slices and instants"),
            (stages, "pieces of work of GPUs"),
            (samples, "samples of counters"),
            (flows, "flows"),
        ]
        used = ", ".join(f"{count:,} {what}" for count, what in parts if count)
        opened = int(self._matched.is_open.sum())
        notes = f"; {opened:,} slices have no end and last until the last event" if opened else ""
        notes += f"; {self._matched.unmatched:,} ends end nothing" if self._matched.unmatched else ""
        return f"{used} of {len(self._packets):,} packets{notes}{self._not_read()}"

    def _not_read(self) -> str:
        text = not_read(self._left_out, MOST_LISTED)
        text += f"; {self._packets.damaged:,} damaged packets" if self._packets.damaged else ""
        text += f"; {self._packets.lost_bytes:,} bytes at the end are no whole packet" if self._packets.lost_bytes else ""
        return text + ("; the file is cut off" if self._packets.is_cut else "")

    def _missing(self, is_stream: BoolArray, flow_count: int) -> tuple[str, ...]:
        """Say what the file does not tell."""
        facts = []
        if is_stream.any():
            facts.append("The file has no properties of GPUs: when kernels fill their SMs is not known.")
        else:
            facts.append("The file holds no work of a GPU: its tracks are read as threads of the host.")
        if is_stream.sum() > 1:
            facts.append("Whether streams waited for events is not told, but for flows between their work.")
        if flow_count:
            facts.append(
                "Flows do not say what they stand for: those from a thread to a GPU are launches here, others are waits."
            )
        return tuple(facts)


def _summed(value: FloatArray, track: Int64Array, generation: Int64Array, is_incremental: Sequence[bool]) -> FloatArray:
    """Return samples with those of some tracks added up, each generation on its own."""
    rows = np.flatnonzero(np.array(is_incremental, bool)[track])
    order = rows[np.lexsort((rows, generation[rows], track[rows]))]
    for part in np.split(order, np.flatnonzero(np.diff(track[order]) | np.diff(generation[order])) + 1):
        value[part] = np.cumsum(value[part])
    return value


def _counter_name(uuid: int, track: Track) -> str:
    """Return the name of a counter, with its unit."""
    name = track.name or f"counter {uuid}"
    return cut_text(name if not track.unit or name.endswith(track.unit) else f"{name}_{track.unit}")


def _with_default_tracks(events: Events, said: Said) -> Events:
    """Return events with the tracks that their sequence says for those that name none."""
    known = np.full(int(said.version.max(initial=0)) + 1, NO_TRACK, np.uint64)
    for version, defaults in said.defaults.items():
        known[version] = defaults.track
    is_none = events.track == NO_TRACK
    return events._replace(track=np.where(is_none, known[said.version[events.packet]], events.track))
