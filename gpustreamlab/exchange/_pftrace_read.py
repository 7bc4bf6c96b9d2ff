"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import LEAST_WALL_CLOCK_NS, not_read
from gpustreamlab.exchange._matching import match_begins
from gpustreamlab.exchange._pftrace_events import COMPLETE, WORK_KINDS, Events, Track, TrackKey
from gpustreamlab.exchange._pftrace_packets import BEGIN, END, INSTANT, Packets
from gpustreamlab.model import EDGE_KINDS, PERFETTO_BACKEND, Counters, Device, Edges, Lane, Trace, TraceMetadata, parquet_trace
from gpustreamlab.record import FIRST_WORK_NUMBER, SPAN_COLUMNS, Delta, Tables, build_trace, cut_text
from gpustreamlab.typing import BoolArray, CaptureTier, EdgeKind, Int64Array, LaneKind

MOST_LANES = 4_096
"""Most lanes of a file; tracks of one name and parent share one."""
MOST_LISTED = 6
"""How many kinds of packets that are not read are named."""


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
    Nothing of our own files is lost. Of others' are not read: arguments of slices, legacy events that are asynchronous or tell
    their time as a distance, process ids, and all other data sources. Strings and clocks have to be interned and told before
    they are used. An end belongs to what began last on its track, whatever its name is.

    Raises
    ------
    MissingExtraError
        If it is a file of others, and Perfetto's package is not installed.
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
    packets = Packets(path)
    own = packets.own()
    if own is not None:
        del packets
        return parquet_trace(own, f"{str(path)!r}, which gpustreamlab wrote,")
    events = Events(packets.left_out)
    for data, packet in packets:
        events.read(data, packet)
    if not packets.count:
        raise TraceFileError(
            f"{str(path)!r} holds no packet of a trace of Perfetto's in {packets.lost_bytes:,} bytes. It was cut off, is "
            "damaged, or another program wrote it."
        )
    return _Builder(packets, events).build()


class _Slices(NamedTuple):
    """Slices, in the order of the events that begin them."""

    event: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    of: Int64Array
    """Of each event, the slice that it begins or ends, or -1; shape (n_events,)."""


class _Builder:
    """Makes a trace of what a file of others tells."""

    def __init__(self, packets: Packets, events: Events) -> None:
        self._packets, self._told = packets, events
        self._events, self._is_known = events.columns()
        packets.left_out["events whose time is not told"] += int((~self._is_known).sum())
        self._lanes: list[Lane] = []
        self._names = Counter[str]()
        self._lane_of: dict[TrackKey | None, int] = {}
        self._notes = ""

    def build(self) -> Trace:
        """Return the trace."""
        events, slices = self._events, self._slices()
        lane = self._track_lanes(slices)[events.track[slices.event]]
        counters = self._counters()
        if not len(slices.event) and not len(counters):
            raise TraceFileError(
                f"{self._packets.path!r} holds no track events and no work of a GPU in {self._packets.count:,} packets"
                f"{self._not_read()}. Record with the data source track_event or gpu.renderstages."
            )
        source, target = self._flows(slices)
        is_stream = np.array([one.kind is LaneKind.STREAM for one in self._lanes], bool)
        is_launch = ~is_stream[lane[source]] & is_stream[lane[target]]
        queued_ns = slices.start_ns.copy()
        np.minimum.at(queued_ns, target[is_launch], slices.start_ns[source[is_launch]])
        order = np.lexsort((~slices.end_ns, slices.start_ns))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        shift_ns, epoch_ns = self._epoch(slices.start_ns, counters)
        used, name = np.unique(events.name[slices.event[order]], return_inverse=True)
        texts, thread = [*self._told.names], np.where(is_stream, -1, np.cumsum(~is_stream) - 1)
        columns = {name: np.zeros(len(order), np.int64) for name in SPAN_COLUMNS}
        columns |= {name: np.full(len(order), -1) for name in ("parent", "partition", "detail")}
        columns |= {
            "start_ns": slices.start_ns[order] - shift_ns,
            "end_ns": slices.end_ns[order] - shift_ns,
            "queued_ns": queued_ns[order] - shift_ns,
            "lane": lane[order],
            "name": name,
            "kind": events.kind[slices.event[order]],
            "thread": thread[lane[order]],
            "number": FIRST_WORK_NUMBER + np.arange(len(order)),
        }
        metadata = self._metadata(columns, is_stream)
        metadata = replace(
            metadata,
            epoch_unix_ns=epoch_ns,
            imported=self._used(len(order), len(counters), len(source)),
            missing=_missing(is_stream, has_flows=len(source) > 0),
        )
        threads = tuple(one.name.removeprefix("host: ") for one in self._lanes if one.kind is LaneKind.HOST)
        delta = Delta(
            Tables(tuple(self._lanes), threads, (), (), (), metadata),
            columns,
            names=tuple(texts[code] for code in used.tolist()),
            counters=replace(counters, time_ns=counters.time_ns - shift_ns),
        )
        codes = np.where(is_launch, EDGE_KINDS.index(EdgeKind.LAUNCH), EDGE_KINDS.index(EdgeKind.WAIT))
        return replace(build_trace(delta), edges=Edges(source=place[source], target=place[target], kind=codes))

    def _slices(self) -> _Slices:
        """Return slices and instants: an end belongs to the newest slice of its track that is open."""
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
        return _Slices(starting, start_ns, end_ns, of)

    def _flows(self, slices: _Slices) -> tuple[Int64Array, Int64Array]:
        """Return the slices that flows come from, and go to: from each event of a flow to the next one, up to its last one."""
        told, of = np.array(self._told.flows).reshape(-1, 3), slices.of
        told = told[of[told[:, 0].astype(np.int64)] >= 0]
        event, flow, is_last = told[:, 0].astype(np.int64), told[:, 1], told[:, 2] > 0
        # Where an event ends one flow and is in another of the same number, it ends that first.
        order = np.lexsort((~is_last, event, self._events.time_ns[event], flow))
        event, flow, is_last = event[order], flow[order], is_last[order]
        is_next = (flow[1:] == flow[:-1]) & ~is_last[:-1]
        source, target = slices.of[event[:-1][is_next]], slices.of[event[1:][is_next]]
        differs = source != target
        return source[differs], target[differs]

    def _track_lanes(self, slices: _Slices) -> Int64Array:
        """Return the lane of each track; tracks that are no threads share one where name and parent are the same."""
        keys, track = [*self._told.tracks], self._events.track[slices.event]
        is_work = set(track[np.isin(self._events.kind[slices.event], WORK_KINDS)].tolist())
        used = np.unique(track).tolist()
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
                known[shared] = self._add_lane(self._track_name(key, one), is_stream=is_stream)
            lanes[code] = self._lane_of[key] = known[shared]
        return lanes

    def _track_name(self, uuid: int, track: Track) -> str:
        """Return what a track is called."""
        if track.thread:
            return track.name or track.thread
        over = self._told.track(track.parent)
        parts = [part for part in (over.process or over.name or over.thread, track.name or track.process) if part]
        return ": ".join(parts) or (f"track {uuid}" if uuid else "default track")

    def _add_lane(self, name: str, *, is_stream: bool, device: int = 0) -> int:
        """Add a lane with a name of its own; return its number."""
        if len(self._lanes) >= MOST_LANES:
            raise TraceFileError(
                f"{self._packets.path!r} has more than {MOST_LANES:,} tracks with names of their own; so many are read. "
                "Record less."
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

    def _epoch(self, start_ns: Int64Array, counters: Counters) -> tuple[int, int]:
        """Return what is subtracted from times, and when the trace's zero was; times since 1970 count from the first one."""
        first_ns = min(int(times.min()) for times in (start_ns, counters.time_ns) if len(times))
        if first_ns >= LEAST_WALL_CLOCK_NS:
            return first_ns, first_ns
        return 0, self._told.wall_clock_ns()

    def _metadata(self, columns: dict[str, Int64Array], is_stream: BoolArray) -> TraceMetadata:
        """Return what the file tells of its device and times."""
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
            waits_told=int(is_stream.sum()) < 2,
        )

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
