"""Read JSON in Chrome's trace event format: what JAX and XLA, VizTracer and many others write, and `write_chrome`.

What is a stream of a GPU is told by names as XLA gives them: a process ``/device:GPU:0`` with threads ``Stream #17(Kernel)``.
All other threads are threads of the host. Times are decimals of microseconds, and read as such.

Source: "Trace Event Format" (Chromium), and ``tsl/profiler/convert/trace_events_to_json.cc`` (OpenXLA).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._chrome_dialects import XLA, adapted, find_dialect, stream_of
from gpustreamlab.exchange._frame import (
    ANNOTATION,
    HOST,
    MARKER,
    Columns,
    Frame,
    add_launches,
    launch_note,
    match_begins,
    not_read,
    own_name,
    unknown_device,
)
from gpustreamlab.exchange._json_events import WRONG, EventFile, nanoseconds, own_data, whole_number
from gpustreamlab.model import CHROME_BACKEND, SPAN_KINDS, Counters, Device, Lane, Marker, Trace, WorkDetail, parquet_trace
from gpustreamlab.recorder import MAX_FULL_NAME, Intervals, cut_text, find_innermost
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind, MarkerKind, SpanKind

_GRID = re.compile(r"\bgrid:(\d+),(\d+),(\d+)")
_BLOCK = re.compile(r"\bblock:(\d+),(\d+),(\d+)")
_NUMBER = re.compile(r"\b(regs|static_shared|dynamic_shared|size|num_bytes):(\d{1,18})\b")
MOST_MARKERS = 10_000  # Most instants that become markers across all lanes; later ones are left out, and counted

_NO_NUMBERS = "values of counters that are no numbers"
_SENSELESS = "refused, as their times make no sense"
_SLICE_COLUMNS = ("start_ns", "end_ns", "track", "shape", "correlation", "kind")
_OF_XLA = (b"correlation_id", b"_details")  # What stands in arguments that are read


def read_chrome(path: str | PathLike[str]) -> Trace:
    """Read JSON in Chrome's trace event format, packed by gzip or not."""
    try:
        data = own_data(Path(path))
    except TraceFileError:
        raise
    except OSError:  # told where events are read
        data = None
    except ValueError as error:
        raise TraceFileError(
            f"{str(path)!r} was written by gpustreamlab, and is damaged or was cut off: {error}. Copy it again."
        ) from error
    if data is not None:
        return parquet_trace(data, repr(str(path)))
    file, events = EventFile(path, Event, Top), Events()
    for block in file.blocks():
        events.take(block)
    return _Maker(file, events).trace()


class _Maker:
    """Turns the events of one file into a trace."""

    def __init__(self, file: EventFile[Event, Top], events: Events) -> None:
        self._file, self._told = file, events
        self._event_count = file.event_count + file.damaged_count
        self._slices = events.close()
        if not (len(self._slices["start_ns"]) or len(events.samples[0]) or events.markers):
            raise TraceFileError(
                f"{file.path!r} holds no slices, instants or counters in {self._event_count:,} events: nothing was "
                f"recorded, or it is another tool's{f', or {file.cut}' if file.cut else ''}."
            )

    def trace(self) -> Trace:
        """Return the trace."""
        told, tracks = self._told, self._told.tracks
        is_gpu = self._drop_memory()
        slices = self._slices
        track = slices["track"]
        is_summary = np.array([*map(tracks.is_summary, tracks.known), False], bool)[track]
        slices["kind"] = np.where(is_summary & (slices["kind"] == HOST), ANNOTATION, slices["kind"])
        lanes, threads, lane, thread = tracks.lanes(np.unique(track))
        flows = self._flow_pairs()
        names, details = self._describe(is_gpu)
        slices |= {"lane": lane[track], "thread": thread[track]}
        call = self._launches(is_gpu)
        counters = self._counters(lanes)
        told.left_out["damaged events"] += self._file.damaged_count
        devices = [device for device, _ in tracks.streams.values()]
        work_count = int(is_gpu.sum())
        idle = unknown_device(min(devices, default=0)) if work_count else Device(name="unknown device", ordinal=0, sm_count=0)
        base_ns, viztracer = self._file.facts.base_ns, self._file.facts.viztracer
        told_ns = viztracer.get("baseTimeNanoseconds") if isinstance(viztracer, dict) else 0
        return Frame(
            backend=CHROME_BACKEND,
            source=tracks.dialect.source,
            path=self._file.path,
            lanes=lanes,
            threads=threads,
            names=names,
            parts=[slices],
            details=details,
            flows=flows,
            counters=counters,
            markers=sorted(told.markers, key=lambda one: one.time_ns),
            idle_device=idle,
            base_ns=whole_number(base_ns) or whole_number(told_ns),
            least_step_ns=1,
            imported=self._used(work_count, len(is_gpu)),
            missing=self._missing(call),
            facts={
                "waits_told": len(tracks.streams) < 2,
                "recovery_note": f"not all of the file was read: {self._file.cut}" if self._file.cut else "",
            },
        ).trace()

    def _drop_memory(self) -> BoolArray:
        """Leave out what lasts as long as memory was allocated; return which of the rest is work of a GPU."""
        slices, tracks = self._slices, self._told.tracks
        is_gpu: BoolArray = np.array([*(track in tracks.streams for track in tracks.known), False], bool)[slices["track"]]
        is_gpu &= slices["kind"] != MARKER
        if waits := tracks.dialect.waits:  # of a stream, and no work
            is_gpu &= ~np.array([bool(waits.match(shape.name)) for shape in self._told.shapes] or [False])[slices["shape"]]
        is_memory = is_gpu & np.array([shape.is_memory for shape in self._told.shapes] or [False], bool)[slices["shape"]]
        self._told.left_out["spans of allocated memory on streams"] += int(is_memory.sum())
        self._slices = {name: values[~is_memory] for name, values in slices.items()}
        kept: BoolArray = is_gpu[~is_memory]
        return kept

    def _describe(self, is_gpu: BoolArray) -> tuple[list[str], tuple[WorkDetail, ...]]:
        """Give slices their names, and work its kind, detail and bytes; return all names and details."""
        slices, shapes = self._slices, [*self._told.shapes]
        names: dict[str, int] = {}
        plain = [names.setdefault(cut_text(shape.name), len(names)) for shape in shapes]
        works = [work_of(shape) for shape in shapes]
        short = [names.setdefault(cut_text(short_name(shape.name)), len(names)) for shape in shapes]
        details = {detail: code for code, detail in enumerate(dict.fromkeys(detail for _, detail, _ in works))}
        rows = [(SPAN_KINDS.index(kind), details[detail], size) for kind, detail, size in works]
        kind, detail, size = np.array(rows or [(0, -1, 0)], np.int64)[slices["shape"]].T
        code = slices["shape"]
        slices["name"] = np.where(is_gpu, np.array(short or [0])[code], np.array(plain or [0])[code])
        slices["kind"] = np.where(is_gpu, kind, slices["kind"])
        slices["detail"] = np.where(is_gpu, detail, -1)
        slices["size_bytes"] = np.where(is_gpu, size, 0)
        return [*names], tuple(details)

    def _launches(self, is_gpu: BoolArray) -> Int64Array:
        """Give work the thread and the time of its call; return the call of each, or -1."""
        slices = self._slices
        calls, work = ({name: values[rows] for name, values in slices.items()} for rows in (slices["kind"] == HOST, is_gpu))
        call = add_launches(work, calls)
        slices["queued_ns"] = slices["start_ns"].copy()
        slices["queued_ns"][is_gpu] = work["queued_ns"]
        slices["thread"][is_gpu] = work["thread"]
        return call

    def _flow_pairs(self) -> Int64Array:
        """Return rows of slices of which the first leads to the second, shape (n, 2); count ends that lead nowhere."""
        slices = self._slices
        flow, phase, at_ns, at_track, is_next = np.frombuffer(self._told.flows, np.int64).reshape(-1, 5).T
        rows = np.flatnonzero(slices["kind"] != MARKER)
        track, start_ns, end_ns = (slices[name][rows] for name in ("track", "start_ns", "end_ns"))
        bound = slices_at(track, start_ns, end_ns, at_track, at_ns, is_next == 1)
        bound = np.append(rows, -1)[bound]
        order = np.lexsort((phase, at_ns))
        last: dict[int, int] = {}
        pairs, loose = [], 0
        ends = (values[order].tolist() for values in (flow, phase, bound))
        for number, part, row in zip(*ends, strict=True):
            source = last.pop(number, -1) if part == 2 else last.get(number, -1)
            if part and (source < 0 or row < 0):
                loose += 1
            elif part and source != row:
                pairs.append((source, row))
            if part < 2:
                last[number] = row
        self._told.left_out["ends of flows that lead from or to no slice"] += loose
        return np.array(pairs, np.int64).reshape(-1, 2)

    def _counters(self, lanes: list[Lane]) -> Counters:
        """Return the samples; each process that has some gets a lane."""
        quantities, taken = self._told.quantities, Counter(one.name for one in lanes)
        names = {name: code for code, name in enumerate(dict.fromkeys(name for _, name in quantities))}
        lane_of: dict[int, int] = {}
        for process in dict.fromkeys(process for process, _ in quantities):
            lane_of[process] = len(lanes)
            name = own_name(f"host: counters of {self._told.tracks.process_name(process)}", taken)
            lanes.append(Lane(name=name, kind=LaneKind.HOST))
        table = np.array([(lane_of[process], names[name]) for process, name in quantities] or [(0, 0)], np.int64)
        time_ns, code = (np.array(values, np.int64) for values in self._told.samples[:2])
        order = np.argsort(time_ns, kind="stable")
        lane, name_code = table[code[order]].T
        value = np.array(self._told.samples[2], np.float64)[order]
        return Counters(time_ns=time_ns[order], lane=lane, name=name_code, value=value, names=tuple(names))

    def _used(self, work_count: int, count: int) -> str:
        """Say how many events were read, used, left out and refused."""
        told = self._told
        used = f"{count:,} spans ({work_count:,} of GPUs), {len(told.samples[0]):,} samples, {len(told.markers):,} markers"
        used_count = self._event_count - sum(number for what, number in told.left_out.items() if what != _NO_NUMBERS)
        return f"{used} from {used_count:,} of {self._event_count:,} events{not_read(told.left_out)}"

    def _missing(self, call: Int64Array) -> list[str]:
        """Say what the file does not tell."""
        if not len(call):
            return [
                "No thread of the file is a stream of a GPU as JAX and XLA name them (process '/device:GPU:0', thread "
                "'Stream #7(Kernel)'), or another known tool: all are shown as threads of the host."
            ]
        facts = ["The file has no properties of GPUs: when kernels fill their SMs is not known.", *launch_note(call)]
        dialect = self._told.tracks.dialect
        if dialect is not XLA:
            facts += [dialect.hint] if dialect.hint else []
        elif not any(shape.kernel for shape in self._told.shapes):
            facts.append("The file does not tell grids and blocks of kernels; JAX's .xplane.pb beside it does.")
        if len(self._told.tracks.streams) > 1:
            facts.append("Whether streams waited for events is not told.")
        return facts


def work_of(shape: Shape) -> tuple[SpanKind, WorkDetail, int]:
    """Return what work on a stream is, how it was launched, and its bytes."""
    numbers = {key: int(value) for text in (shape.kernel, shape.copy, shape.fill) for key, value in _NUMBER.findall(text)}
    name = shape.name.lower()
    is_copy, is_fill = shape.copy or name.startswith("memcpy"), shape.fill or name.startswith("memset")
    detail = WorkDetail(
        full_name=shape.name,
        grid=_three(_GRID.search(shape.kernel)),
        block=_three(_BLOCK.search(shape.kernel)),
        registers=numbers.get("regs", 0),
        static_shared_bytes=numbers.get("static_shared", 0),
        dynamic_shared_bytes=numbers.get("dynamic_shared", 0),
    )
    kind = SpanKind.COPY if is_copy else SpanKind.FILL if is_fill else SpanKind.KERNEL
    return kind, detail, numbers.get("size", numbers.get("num_bytes", 0))


def _three(found: re.Match[str] | None) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in found.groups()) if found else (0, 0, 0)
    return sizes if max(sizes) < 1 << 32 else (0, 0, 0)  # type: ignore[return-value] # it has three groups


def slices_at(
    track: Int64Array, start_ns: Int64Array, end_ns: Int64Array, at_track: Int64Array, at_ns: Int64Array, is_next: BoolArray
) -> Int64Array:
    """Return which slice each moment of a track is bound to, or -1; slices come in the order of their starts."""
    found = np.full(len(at_ns), -1, np.int64)
    rows = np.flatnonzero(np.isin(track, np.unique(at_track)))
    if not len(rows):
        return found
    # An instant lasts a moment here. What ended just then counts where nothing else is around.
    slices = Intervals(track[rows], start_ns[rows], np.maximum(end_ns, start_ns + 1)[rows], rows)
    around, before = (find_innermost(slices, at_track, at_ns - ago_ns) for ago_ns in (0, 1))
    around = np.where((around < 0) & (before >= 0) & (end_ns[rows[before]] == at_ns), before, around)
    found = np.where(around >= 0, rows[around], -1)
    for one in np.unique(at_track[is_next]).tolist():
        mine, asking = rows[track[rows] == one], np.flatnonzero((at_track == one) & is_next)
        found[asking] = np.append(mine, -1)[np.searchsorted(start_ns[mine], at_ns[asking])]
    return found


class Event(msgspec.Struct, gc=False):
    """One event. What may be of any kind is looked at when it is used."""

    ph: object = None
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    id: object = None
    id2: object = None
    scope: object = None
    s: object = None
    bp: object = None
    args: msgspec.Raw = msgspec.Raw(b"")


class Top(msgspec.Struct):
    """What is read of a file beside its events."""

    base_ns: object = msgspec.field(name="baseTimeNanoseconds", default=None)
    viztracer: object = msgspec.field(name="viztracer_metadata", default=None)


class _NameArgs(msgspec.Struct, gc=False):
    name: object = None
    sort_index: object = None


class _WorkArgs(msgspec.Struct, gc=False):
    """What XLA tells of work. Its values are texts."""

    correlation: object = msgspec.field(name="correlation_id", default=None)
    context: object = msgspec.field(name="context_id", default=None)
    kernel: object = msgspec.field(name="kernel_details", default=None)
    copy: object = msgspec.field(name="memcpy_details", default=None)
    fill: object = msgspec.field(name="Memset_details", default=None)
    allocated: object = msgspec.field(name="memalloc_details", default=None)
    freed: object = msgspec.field(name="MemFree_details", default=None)
    resident: object = msgspec.field(name="MemoryResidency_details", default=None)


_NAME = msgspec.json.Decoder(_NameArgs)
_VALUES = msgspec.json.Decoder(dict[str, object])
_ARGS = msgspec.json.Decoder(_WorkArgs)
_NO_ARGS = _WorkArgs()


class Shape(NamedTuple):
    """What many slices share."""

    name: str
    kernel: str = ""
    copy: str = ""
    fill: str = ""
    is_memory: bool = False  # Whether it lasts as long as memory was allocated


class Track(NamedTuple):
    """A thread, or what a process does in none, of one category."""

    process: int
    thread: str
    is_async: bool = False


class Tracks:
    """Numbers for processes and for what runs in them, and the lanes that those become."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self.known: dict[Track, int] = {}
        self._names: dict[tuple[int, str | None], str] = {}  # Of processes and of their threads
        self._order: dict[tuple[int, str | None], int] = {}
        self.contexts: dict[int, int] = {}  # By track; the first one that was told counts

    def process(self, event: Event) -> int:
        """Return the number of an event's process."""
        return self._processes.setdefault(str(event.pid), len(self._processes))

    def number(self, event: Event, *, is_async: bool = False) -> int:
        """Return the number of an event's track."""
        track = Track(self.process(event), str(event.cat)[:80] if is_async else str(event.tid), is_async)
        return self.known.setdefault(track, len(self.known))

    def take_name(self, event: Event) -> None:
        """Take what an event of metadata says of a process or a thread."""
        what, _, fact = str(event.name).partition("_")
        if what not in {"process", "thread"} or fact not in {"name", "sort_index"}:
            return
        with suppress(*WRONG):
            args = _NAME.decode(event.args)
            key = self.process(event), str(event.tid) if what == "thread" else None
            if fact == "name" and args.name is not None:
                self._names[key] = cut_text(str(args.name)).strip()
            elif fact == "sort_index":
                self._order[key] = whole_number(args.sort_index)

    def close(self) -> None:
        """Tell what each track is, as all names are known."""
        named = {key[0]: (name, find_dialect(name)) for key, name in self._names.items() if key[1] is None}
        self._gpus = {process: (name, found) for process, (name, found) in named.items() if found is not None}
        self.dialect = next((found for _, found in self._gpus.values()), XLA)
        if self.dialect.beside:
            beside = {process: one for process, one in named.items() if self.dialect.beside.search(one[0])}
            self._gpus |= {process: (name, self.dialect) for process, (name, _) in beside.items()}
        self.streams: dict[Track, tuple[int, int]] = {}
        """Device and number of each track that is a stream, where the names are those that a known tool gives."""
        for track in self.known:
            if track.process in self._gpus and not track.is_async:
                name, dialect = self._gpus[track.process]
                found = stream_of(dialect, name, self._names.get(track[:2], ""), track.thread)
                if found is not None:
                    self.streams[track] = found

    def is_summary(self, track: Track) -> bool:
        """Tell whether a track sums up what a device did, as XLA's lines "XLA Ops" and "Steps" do."""
        return track.process in self._gpus and track not in self.streams

    def lanes(self, used: Int64Array) -> tuple[list[Lane], list[str], Int64Array, Int64Array]:
        """Return the lanes of tracks that are used, streams first, and the threads; and of each track its lane and thread."""
        tracks = [*self.known]
        places = sorted(used.tolist(), key=lambda place: self._rank(place, tracks[place]))
        lane, thread = np.full(len(tracks) + 1, -1, np.int64), np.full(len(tracks) + 1, -1, np.int64)
        lanes: list[Lane] = []
        threads: list[str] = []
        for place, name in zip(places, self._texts([tracks[place] for place in places]), strict=True):
            lane[place], track = len(lanes), tracks[place]
            if track in self.streams:
                device, number = self.streams[track]
                lanes.append(Lane(name=name, device=device, stream=number, context=self.contexts.get(place, 0)))
                continue
            is_summary = self.is_summary(track)
            lanes.append(Lane(name=name if is_summary else f"host: {name}", kind=LaneKind.HOST))
            if not (track.is_async or is_summary):
                thread[place] = len(threads)
                threads.append(name)
        return lanes, threads, lane, thread

    def _rank(self, place: int, track: Track) -> tuple[object, ...]:
        """Return what puts tracks in order: streams, then as the file says, then as they came."""
        if track in self.streams:
            return 0, *self.streams[track], place
        order = self._order.get((track.process, None), 0), track.process, track.is_async, self._order.get(track[:2], 0)
        return 1, *order, place

    def process_name(self, process: int) -> str:
        """Return what a process is called."""
        pid = next((pid for pid, number in self._processes.items() if number == process), "others")
        return self._names.get((process, None)) or f"process {pid}"

    def _texts(self, tracks: list[Track]) -> list[str]:
        """Return a name of its own for each track."""
        has_more = len({device for device, _ in self.streams.values()}) > 1
        hosts = {track.process for track in tracks if track.process not in self._gpus}
        names = []
        for track in tracks:
            if track in self.streams:
                device, number = self.streams[track]
                name = self._names.get(track[:2], "") if self.dialect.keeps_names else ""
                names.append(f"GPU {device} " * has_more + (name or f"stream {number}"))
                continue
            known = self._names.get(track[:2]) or f"thread {track.thread}"
            name = f"async {track.thread}" if track.is_async else known
            is_one = len(hosts) == 1 and track.process not in self._gpus
            names.append(name if is_one else f"{self.process_name(track.process)}: {name}")
        counts, taken = Counter(names), Counter[str]()
        return [
            own_name(name if counts[name] == 1 else f"{name} ({track.thread})", taken)
            for name, track in zip(names, tracks, strict=True)
        ]


class Events:
    """What the events of a file tell, in their order."""

    def __init__(self) -> None:
        self.tracks = Tracks()
        self.shapes: dict[Shape, int] = {}  # What many slices share, by its code
        self.flows = array("q")  # Of each end of a flow id, phase, time, track, and whether it is bound to the next slice
        self.quantities: dict[tuple[int, str], int] = {}  # Process and name of each counter, by its code
        self.samples = array("q"), array("q"), array("d")  # Time, counter and value
        self.markers: list[Marker] = []  # Instants of all lanes
        self.left_out: Counter[str] = Counter()  # What was not used, in words, and how many
        self._rows = array("q")
        self._plain: dict[str, int] = {}
        self._known_tracks: dict[tuple[object, object], int] = {}
        self._halves = array("q")  # Of each begin and end group, time, whether it is a begin, track, shape and name
        self._half_names: dict[str, int] = {}
        self._groups: dict[object, int] = {}
        self._flow_ids: dict[object, int] = {}
        self._take: dict[object, Callable[[Event, int], None]] = {
            "X": self._slice,
            **dict.fromkeys("BEbeSF", self._half),
            **dict.fromkeys("iIRn", self._instant),
            **dict.fromkeys("stf", self._flow),
            "C": self._sample,
        }

    def take(self, events: list[Event]) -> None:
        """Take the next events."""
        for event in adapted(events):
            if event.ph == "M":
                self.tracks.take_name(event)
                continue
            take = self._take.get(event.ph) if isinstance(event.ph, str) else None
            if take is None:
                if event.ph is not None:  # XLA ends its list with an empty event
                    self.left_out[f"of phase {str(event.ph)[:8]!r}"] += 1
                continue
            time_ns = nanoseconds(event.ts)
            if time_ns is None:
                self.left_out[_SENSELESS] += 1
            else:
                take(event, time_ns)

    def _shape(self, event: Event, args: _WorkArgs = _NO_ARGS) -> int:
        is_memory = not (args.allocated is args.freed is args.resident is None)
        kernel, copy, fill = (str(given)[:256] if given is not None else "" for given in (args.kernel, args.copy, args.fill))
        shape = Shape(str("" if event.name is None else event.name), kernel, copy, fill, is_memory)
        known = self.shapes.get(shape)
        if known is None:
            known = self.shapes.setdefault(shape._replace(name=cut_text(shape.name, MAX_FULL_NAME)), len(self.shapes))
        if args is _NO_ARGS and type(event.name) is str and len(event.name) < MAX_FULL_NAME:
            self._plain[event.name] = known
        return known

    def _slice(self, event: Event, time_ns: int) -> None:
        lasts_ns = nanoseconds(event.dur)
        if lasts_ns is None or lasts_ns < 0:
            self.left_out[_SENSELESS] += 1
            return
        try:
            track = self._known_tracks[event.pid, event.tid]
        except (KeyError, TypeError):
            track = self.tracks.number(event)
            with suppress(TypeError):  # of a list, which is no key
                self._known_tracks[event.pid, event.tid] = track
        raw, args = bytes(event.args), _NO_ARGS
        if _OF_XLA[0] in raw or _OF_XLA[1] in raw:
            with suppress(*WRONG):
                args = _ARGS.decode(raw)
            if args.context is not None:
                self.tracks.contexts.setdefault(track, _whole_of(args.context))
        shape = self._plain.get(event.name) if args is _NO_ARGS and type(event.name) is str else None
        if shape is None:
            shape = self._shape(event, args)
        correlation = 0 if args is _NO_ARGS else max(_whole_of(args.correlation), 0)
        self._rows.extend((time_ns, time_ns + lasts_ns, track, shape, correlation, HOST if correlation else ANNOTATION))

    def _half(self, event: Event, time_ns: int) -> None:
        """Take a begin or an end: of a thread, or of an id (async)."""
        is_async = event.ph not in {"B", "E"}
        track = self.tracks.number(event, is_async=is_async)
        key: object = ("async", str(event.cat), _id_of(event), str(event.scope)) if is_async else track
        group = self._groups.setdefault(key, len(self._groups))
        is_begin = event.ph in {"B", "b", "S"}
        name = self._half_names.setdefault(str(event.name)[:MAX_FULL_NAME], len(self._half_names))
        self._halves.extend((group, time_ns, is_begin, track, self._shape(event) if is_begin else -1, name))

    def close(self) -> Columns:
        """Return all slices, in the order of their starts: begins and ends are matched, those without a partner counted."""
        self.tracks.close()
        group, time_ns, opens, track, shape, name = np.frombuffer(self._halves, np.int64).reshape(-1, 6).T
        is_begin = opens == 1
        begins, ends = match_begins(group, time_ns, is_begin, name)
        nothing = np.zeros(len(begins), np.int64)
        matched = [time_ns[begins], time_ns[ends], track[begins], shape[begins]]
        self._rows.frombytes(np.stack((*matched, nothing, nothing + ANNOTATION), axis=1).tobytes())
        self.left_out["begins without an end"] += int(is_begin.sum()) - len(begins)
        self.left_out["ends without a begin"] += len(is_begin) - int(is_begin.sum()) - len(ends)
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, len(_SLICE_COLUMNS)).T
        order = np.lexsort((-rows[1], rows[0]))
        self._rows = array("q")
        return {name: values[order] for name, values in zip(_SLICE_COLUMNS, rows, strict=True)}

    def _instant(self, event: Event, time_ns: int) -> None:
        if event.s != "g" or event.ph == "n":
            track = self.tracks.number(event, is_async=event.ph == "n")
            self._rows.extend((time_ns, time_ns, track, self._shape(event), 0, MARKER))
        elif len(self.markers) < MOST_MARKERS:
            self.markers.append(Marker(time_ns=time_ns, text=cut_text(str(event.name)), kind=MarkerKind.MARK))
        else:
            self.left_out["instants of all lanes"] += 1

    def _flow(self, event: Event, time_ns: int) -> None:
        key = str(event.cat), str(event.name), _id_of(event)
        number = self._flow_ids.setdefault(key, len(self._flow_ids))
        is_next = event.ph == "f" and event.bp != "e"
        self.flows.extend((number, "stf".index(str(event.ph)), time_ns, self.tracks.number(event), is_next))

    def _sample(self, event: Event, time_ns: int) -> None:
        given: dict[str, object] = {}
        with suppress(*WRONG):
            given = _VALUES.decode(event.args)
        title = str(event.name) + ("" if event.id is None else f" {event.id}")
        numbers = {key: number for key, value in given.items() if (number := _float(value)) is not None}
        self.left_out[_NO_NUMBERS] += len(given) - len(numbers)
        for key, number in numbers.items():
            name = title if key == "value" or len(given) == 1 else f"{title} {key}"
            quantity = self.tracks.process(event), cut_text(name)
            times, codes, values = self.samples
            times.append(time_ns)
            codes.append(self.quantities.setdefault(quantity, len(self.quantities)))
            values.append(number)


def _whole_of(value: object) -> int:
    """Return a whole number, also of a text such as XLA writes."""
    if isinstance(value, str):
        digits = value.removeprefix("$$")
        return whole_number(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    return whole_number(value)


def _id_of(event: Event) -> str:
    """Return the id that an event shares with its partners; one of two parts is that of its process."""
    return str(event.id if event.id2 is None else (event.pid, event.id2))


def _float(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
