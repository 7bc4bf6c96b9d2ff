"""Takes the events of Chrome's trace event format, of any phase, and keeps what they tell as columns."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec
import numpy as np

from gpustreamlab.exchange._chrome_json import Event
from gpustreamlab.exchange._chrome_tracks import Tracks
from gpustreamlab.exchange._chrome_xla import ARGS, NO_ARGS, Args, Shape, whole_of
from gpustreamlab.exchange._event_file import WRONG, nanoseconds
from gpustreamlab.exchange._matching import match_begins
from gpustreamlab.model import SPAN_KINDS, Marker
from gpustreamlab.record import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import Int64Array, MarkerKind, SpanKind

MOST_MARKERS = 10_000
"""Most instants that become markers across all lanes; later ones are left out, and counted."""
MOST_QUANTITIES = 4_096
"""Most quantities of counters."""

ANNOTATION, HOST, MARKER = (SPAN_KINDS.index(kind) for kind in (SpanKind.ANNOTATION, SpanKind.HOST, SpanKind.MARKER))
_NO_NUMBERS, _FURTHER = OF_VALUES = ("values of counters that are no numbers", "values of further counters")
"""What is left out of events that are read."""
_SENSELESS = "refused, as their times make no sense"
_SLICE_COLUMNS = ("start_ns", "end_ns", "track", "shape", "correlation", "kind")
_OF_XLA = (b"correlation_id", b"_details")
"""What stands in arguments that are read."""
_VALUES = msgspec.json.Decoder(dict[str, object])


class Events:
    """What the events of a file tell, in their order."""

    def __init__(self) -> None:
        self.tracks = Tracks()
        """Processes and threads."""
        self.shapes: dict[Shape, int] = {}
        """What many slices share, by its code."""
        self.flows = {name: array("q") for name in ("id", "phase", "time_ns", "track", "is_next")}
        """Ends of flows."""
        self.quantities: dict[tuple[int, str], int] = {}
        """Process and name of each counter, by its code."""
        self.samples = array("q"), array("q"), array("d")
        """Time, counter and value."""
        self.markers: list[Marker] = []
        """Instants of all lanes."""
        self.left_out: Counter[str] = Counter()
        """What was not used, in words, and how many."""
        self._rows = array("q")
        self._plain: dict[str, int] = {}
        self._known_tracks: dict[tuple[object, object], int] = {}
        self._halves = {name: array("q") for name in ("group", "time_ns", "is_begin", "track", "shape", "name")}
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
        for event in events:
            if event.ph == "M":
                self.tracks.take_name(event)
                continue
            take = self._take.get(event.ph) if isinstance(event.ph, str) else None
            if take is None:
                if event.ph is not None:  # XLA ends its list with an empty event
                    self.left_out[f"of phase {str(event.ph)[:8]!r}"] += 1
                continue
            time_ns = _nanoseconds(event.ts)
            if time_ns is None:
                self.left_out[_SENSELESS] += 1
            else:
                take(event, time_ns)

    def _add(self, row: tuple[int, ...]) -> None:
        self._rows.extend(row)

    def _shape(self, event: Event, args: Args = NO_ARGS) -> int:
        is_memory = not (args.allocated is args.freed is args.resident is None)
        details = [str(given)[:256] if given is not None else "" for given in (args.kernel, args.copy, args.fill)]
        kernel, copy, fill = details
        shape = Shape(str("" if event.name is None else event.name), kernel, copy, fill, is_memory)
        known = self.shapes.get(shape)
        if known is None:
            known = self.shapes.setdefault(shape._replace(name=cut_text(shape.name, MAX_FULL_NAME)), len(self.shapes))
        if args is NO_ARGS and type(event.name) is str and len(event.name) < MAX_FULL_NAME:
            self._plain[event.name] = known
        return known

    def _slice(self, event: Event, time_ns: int) -> None:
        lasts_ns = _nanoseconds(event.dur)
        if lasts_ns is None or lasts_ns < 0:
            self.left_out[_SENSELESS] += 1
            return
        try:
            track = self._known_tracks[event.pid, event.tid]
        except (KeyError, TypeError):
            track = self._track(event)
        raw, args = bytes(event.args), NO_ARGS
        if _OF_XLA[0] in raw or _OF_XLA[1] in raw:
            with suppress(*WRONG):
                args = ARGS.decode(raw)
            if args.context is not None:
                self.tracks.take_context(track, whole_of(args.context))
        shape = self._plain.get(event.name) if args is NO_ARGS and type(event.name) is str else None
        if shape is None:
            shape = self._shape(event, args)
        correlation = 0 if args is NO_ARGS else max(whole_of(args.correlation), 0)
        self._add((time_ns, time_ns + lasts_ns, track, shape, correlation, HOST if correlation else ANNOTATION))

    def _track(self, event: Event) -> int:
        """Return the number of an event's thread, and know it from now on."""
        track = self.tracks.thread(event)
        with suppress(TypeError):  # of a list, which is no key
            self._known_tracks[event.pid, event.tid] = track
        return track

    def _half(self, event: Event, time_ns: int) -> None:
        """Take a begin or an end: of a thread, or of an id (async)."""
        is_async = event.ph not in {"B", "E"}
        track = self.tracks.asynchronous(event) if is_async else self.tracks.thread(event)
        key: object = ("async", str(event.cat), _id_of(event), str(event.scope)) if is_async else track
        group = self._groups.setdefault(key, len(self._groups))
        is_begin = event.ph in {"B", "b", "S"}
        text = str(event.name)[:MAX_FULL_NAME]
        name = self._half_names.setdefault(text, len(self._half_names))
        row = (group, time_ns, is_begin, track, self._shape(event) if is_begin else -1, name)
        for values, value in zip(self._halves.values(), row, strict=True):
            values.append(value)

    def close(self) -> dict[str, Int64Array]:
        """Return all slices as columns, and forget them: begins and ends are matched, and those without a partner counted."""
        halves = {name: np.frombuffer(values, np.int64) for name, values in self._halves.items()}
        is_begin = halves["is_begin"] == 1
        begins, ends = match_begins(halves["group"], halves["time_ns"], is_begin, halves["name"])
        nothing = np.zeros(len(begins), np.int64)
        matched = [halves["time_ns"][begins], halves["time_ns"][ends], halves["track"][begins], halves["shape"][begins]]
        self._rows.frombytes(np.stack((*matched, nothing, nothing + ANNOTATION), axis=1).tobytes())
        without_end = int(is_begin.sum()) - len(begins)
        without_begin = len(is_begin) - int(is_begin.sum()) - len(ends)
        self.left_out += Counter({"begins without an end": without_end, "ends without a begin": without_begin})
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, len(_SLICE_COLUMNS)).T
        self._rows, self._halves = array("q"), {}
        return dict(zip(_SLICE_COLUMNS, rows, strict=True))

    def _instant(self, event: Event, time_ns: int) -> None:
        if event.s == "g" and event.ph != "n":
            if len(self.markers) < MOST_MARKERS:
                self.markers.append(Marker(time_ns=time_ns, text=cut_text(str(event.name)), kind=MarkerKind.MARK))
            else:
                self.left_out["instants of all lanes"] += 1
            return
        track = self.tracks.asynchronous(event) if event.ph == "n" else self.tracks.thread(event)
        self._add((time_ns, time_ns, track, self._shape(event), 0, MARKER))

    def _flow(self, event: Event, time_ns: int) -> None:
        key = str(event.cat), str(event.name), _id_of(event)
        number = self._flow_ids.setdefault(key, len(self._flow_ids))
        is_next = event.ph == "f" and event.bp != "e"
        row = (number, "stf".index(str(event.ph)), time_ns, self.tracks.thread(event), is_next)
        for values, value in zip(self.flows.values(), row, strict=True):
            values.append(value)

    def _sample(self, event: Event, time_ns: int) -> None:
        try:
            given = _VALUES.decode(event.args)
        except WRONG:
            given = {}
        title = str(event.name) + ("" if event.id is None else f" {event.id}")
        numbers = {key: number for key, value in given.items() if (number := _float(value)) is not None}
        self.left_out[_NO_NUMBERS] += len(given) - len(numbers)
        for key, number in numbers.items():
            name = title if key == "value" or len(given) == 1 else f"{title} {key}"
            quantity = self.tracks.process(event), cut_text(name)
            if quantity not in self.quantities and len(self.quantities) >= MOST_QUANTITIES:
                self.left_out[_FURTHER] += 1
                continue
            code = self.quantities.setdefault(quantity, len(self.quantities))
            times, codes, values = self.samples
            times.append(time_ns)
            codes.append(code)
            values.append(number)


def _nanoseconds(raw: msgspec.Raw) -> int | None:
    try:
        return nanoseconds(raw)
    except ArithmeticError:  # an exponent beyond that of all decimals
        return None


def _id_of(event: Event) -> object:
    """Return the id that an event shares with its partners; one that is local to its process is so."""
    if isinstance(event.id2, dict):
        known = event.id2.get("global")
        return str(known) if known is not None else (str(event.pid), str(event.id2.get("local")))
    return str(event.id)


def _float(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
