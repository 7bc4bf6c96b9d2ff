"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does.

Packets are told one after the other: strings are interned, tracks described and clocks compared before they are used.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab._util.shell import steps
from gpustreamlab._util.words import install_line
from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange._formats import frames, unpacked, varint_size
from gpustreamlab.exchange._frame import Frame, match_begins, not_read, own_name
from gpustreamlab.exchange._pftrace_events import AGENT, BEGIN, COMPLETE, END, INSTANT, WORK, Events, Track, TrackKey
from gpustreamlab.model import PERFETTO_BACKEND, Counters, Lane, Trace, parquet_trace
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

OWN_HEAD = bytes.fromhex("50016801f2940e")
"""How a packet of ours begins: sequence 1, cleared, and field 29,022, which Perfetto has not and skips: a Parquet file."""
VARINT_BYTES = 5
MOST_LISTED = 6  # How many kinds of packets that are not read are named
_STEP_BYTES = 1 << 20  # After so many bytes progress is shown


def read_pftrace(path: str | PathLike[str]) -> Trace:
    """Read a trace of Perfetto's, packed by gzip or not."""
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
    return _Maker(packets, events).trace()


class _Maker:
    """Makes a trace of what a file of others tells."""

    def __init__(self, packets: Packets, events: Events) -> None:
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
            facts={"waits_told": int(is_stream.sum()) < 2, "recovery_note": self._packets.cut},
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
        is_work = set(track[np.isin(self._events.kind[event], [*WORK.values()])].tolist())
        used = np.unique(track).tolist()
        agents = {code: int(found[1]) for code in is_work if (found := AGENT.search(self._track_name_of(keys[code])))}
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
        damaged = f"; {self._packets.damaged_count:,} damaged packets" if self._packets.damaged_count else ""
        return f"{not_read(self._packets.left_out, MOST_LISTED)}{damaged}"


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
        self.cut = ""  # What tells that not all of it is there
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
        self.cut = self.cut or ("bytes at its end are no whole packet" if self.lost_bytes else "")

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
            self.cut = "it cannot be unpacked to its end"
        return b"".join(parts)
