"""Events of Chrome's trace event format as columns: slices, tracks, flows, samples and marks, in the order of a file."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import numpy as np

from gpustreamlab.exchange._chrome_dialects import XLA, adapted, find_dialect, stream_of
from gpustreamlab.exchange._frame import ANNOTATION, HOST, MARKER, Columns, match_begins, own_name
from gpustreamlab.exchange._json_events import WRONG, nanoseconds, whole_number
from gpustreamlab.model import Lane, Marker
from gpustreamlab.recorder import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import Int64Array, LaneKind, MarkerKind

MOST_MARKERS = 10_000  # Most instants that become markers across all lanes; later ones are left out, and counted
NO_NUMBERS = "values of counters that are no numbers"
_SENSELESS = "refused, as their times make no sense"
_SLICE_COLUMNS = ("start_ns", "end_ns", "track", "shape", "correlation", "kind")
_OF_XLA = (b"correlation_id", b"_details")  # What stands in arguments that are read
_EVENT_ID = re.compile(rb'"(?:event|notify)[ _]?id"\s*:\s*"?(\d{1,18})', re.IGNORECASE)


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
        kind = HOST if correlation else ANNOTATION
        if (b"vent" in raw or b"otify" in raw) and (found := _EVENT_ID.search(raw)):
            correlation = correlation or int(found[1])  # of an annotation it tells which event that waits for, or records
        self._rows.extend((time_ns, time_ns + lasts_ns, track, shape, correlation, kind))

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
        self.left_out[NO_NUMBERS] += len(given) - len(numbers)
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
