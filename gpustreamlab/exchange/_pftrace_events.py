"""The events of Perfetto's traces as columns, and what was said before them: texts, tracks, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.progress import steps
from gpustreamlab.exchange._matching import match_begins
from gpustreamlab.exchange._pftrace_file import BLOCK_PACKETS, Packets
from gpustreamlab.exchange._pftrace_packets import (
    BEGIN,
    CATEGORY,
    CATEGORY_TEXT,
    COUNTER,
    COUNTER_DOUBLE,
    COUNTER_VALUE,
    END,
    FLOW,
    FLOW_END,
    INSTANT,
    NAME,
    NAME_TEXT,
    TRACK,
    TYPE,
)
from gpustreamlab.exchange._protobuf import FIXED64, Bytes, Fields, Numbers, read_fields
from gpustreamlab.record import cut_text
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array

COMPLETE = 6
"""Type of an event that begins and ends a span; Perfetto has such events among its old ones only."""
NO_TRACK = (1 << 64) - 1
"""Number of the track of events that name none."""
_OLD_EVENT, _OLD_FLOW, _OLD_FLOW_END = 6, 36, 42
_DELTA_US, _ABSOLUTE_US = 1, 16
_MORE_TRACKS, _MORE_VALUES, _MORE_DOUBLE_TRACKS, _MORE_DOUBLES = 31, 12, 45, 46
_THREAD_COUNTS = (2, 8, 17, 20)
_PHASES = {ord("B"): BEGIN, ord("E"): END, ord("X"): COMPLETE, ord("I"): INSTANT, ord("i"): INSTANT, ord("R"): INSTANT}
"""Old types of events, and what they are."""
_LARGEST_US = (1 << 62) // 1_000


class Texts:
    """Texts of a file by their numbers, each once; long ones are cut."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self.all: dict[str, int] = {}
        """Numbers of texts."""

    def code(self, text: bytes) -> int:
        """Return the number of a text."""
        known = self._codes.get(text)
        if known is None:
            cut = cut_text(text.decode("utf-8", "replace"))
            known = self._codes[text] = self.all.setdefault(cut, len(self.all))
        return known


class Events(NamedTuple):
    """Events as columns; shape (n_events,) each."""

    packet: Int64Array
    """Which packet each is of."""
    type: Int64Array
    """What it is, 0 for nothing that is read."""
    track: Numbers
    """Number of its track, or `NO_TRACK`."""
    name: Int64Array
    """Number of its name in its sequence, 0 for none."""
    name_text: Int64Array
    """Number of its name where it is in the event itself, or -1."""
    category: Int64Array
    """Likewise, of its first category."""
    category_text: Int64Array
    value: FloatArray
    """What a counter counts."""
    duration_ns: Int64Array
    """How long it lasts, of a complete one."""
    is_delta: BoolArray
    """Whether its time is told as the distance from another event, in the old way."""
    flows: tuple[Int64Array, Numbers, BoolArray]
    """Of each end of a flow: which event it is of, its number, and whether it is the last one."""
    samples: list[tuple[int, int, float, bool]]
    """Samples that other events bring along: event, place among those of the event, value, whether it is no whole number."""
    sample_tracks: dict[int, tuple[list[int], list[int]]]
    """Of events that say it, tracks of those samples: of whole numbers, and of others."""


def read_events(packets: Packets, texts: Texts, left_out: Counter[str]) -> Events:
    """Read the events of all packets."""
    first, last = packets.event
    rows = np.flatnonzero(last >= 0)
    blocks: list[Events] = []
    with steps(max(-(-len(rows) // BLOCK_PACKETS), 1), "reading") as step:
        for begin in range(0, max(len(rows), 1), BLOCK_PACKETS):
            part = rows[begin : begin + BLOCK_PACKETS]
            fields = read_fields(packets.data, first[part], last[part])
            blocks.append(_block(packets.data, fields, part, begin, texts, left_out))
            step("events")
    return _joined(blocks)


def _joined(blocks: Sequence[Events]) -> Events:
    columns: dict[str, Any] = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in Events._fields[:10]}
    flows = tuple(np.concatenate(column) for column in zip(*(block.flows for block in blocks), strict=True))
    tracks = {event: found for block in blocks for event, found in block.sample_tracks.items()}
    samples = [one for block in blocks for one in block.samples]
    return Events(**columns | {"flows": flows, "samples": samples, "sample_tracks": tracks})


def _block(data: Bytes, fields: Fields, packet: Int64Array, begin: int, texts: Texts, left_out: Counter[str]) -> Events:
    kind, duration_ns = fields.numbers(TYPE).astype(np.int64), np.zeros(len(packet), np.int64)
    kind[(kind > COUNTER) | (kind < 0)] = 0
    name = _small(fields.numbers(NAME))
    _read_old(data, fields, kind, duration_ns, name, left_out)
    value = fields.numbers(COUNTER_VALUE).view(np.int64).astype(np.float64)
    doubles = fields.rows(COUNTER_DOUBLE, FIXED64)
    value[fields.owner[doubles]] = fields.value[doubles].view(np.float64)
    is_delta = np.zeros(len(packet), bool)
    for number in (_DELTA_US, _ABSOLUTE_US):
        is_delta[fields.owner[fields.rows(number)]] = True
    for number in _THREAD_COUNTS:
        left_out["thread times and instruction counts"] += len(fields.rows(number))
    left_out["damaged events"] += int(fields.is_damaged.sum())
    kind[fields.is_damaged] = 0
    samples, sample_tracks = _more_samples(fields, begin)
    return Events(
        packet=packet,
        type=kind,
        track=fields.numbers(TRACK, NO_TRACK),
        name=name,
        name_text=_text_codes(data, fields, NAME_TEXT, texts),
        category=_small(fields.numbers(CATEGORY)),
        category_text=_text_codes(data, fields, CATEGORY_TEXT, texts),
        value=value,
        duration_ns=duration_ns,
        is_delta=is_delta,
        flows=_flows(fields, begin),
        samples=samples,
        sample_tracks=sample_tracks,
    )


def _small(numbers: Numbers) -> Int64Array:
    """Return numbers of texts; those that are too large for any are 0."""
    return np.where(numbers < 1 << 32, numbers, 0).astype(np.int64)


def _text_codes(data: Bytes, fields: Fields, number: int, texts: Texts) -> Int64Array:
    codes = np.full(len(fields.is_damaged), -1, np.int64)
    first, last = fields.spans(number)
    rows = np.flatnonzero(last >= 0)
    view = data.data
    spans = zip(first[rows].tolist(), last[rows].tolist(), strict=True)
    codes[rows] = [texts.code(bytes(view[begin:end])) for begin, end in spans]
    return codes


def _read_old(
    data: Bytes, fields: Fields, kind: Int64Array, duration_ns: Int64Array, name: Int64Array, left_out: Counter[str]
) -> None:
    """Let events that are of the old kind say what they are."""
    first, last = fields.spans(_OLD_EVENT)
    rows = np.flatnonzero((last >= 0) & (kind == 0))
    if not len(rows):
        return
    old = read_fields(data, first[rows], last[rows])
    phase, lasts_us = old.numbers(2).astype(np.int64), old.numbers(3).view(np.int64)
    for code in np.unique(phase).tolist():
        found = rows[phase == code]
        kind[found] = _PHASES.get(code, 0)
        if code not in _PHASES:
            left_out["old asynchronous events"] += len(found)
    is_timed = (lasts_us >= 0) & (lasts_us < _LARGEST_US)
    kind[rows[~is_timed]] = 0
    left_out["events with a negative duration"] += int((~is_timed).sum())
    duration_ns[rows] = np.where(is_timed, lasts_us, 0) * 1_000
    name[rows] = np.where(name[rows] > 0, name[rows], _small(old.numbers(1)))


def _flows(fields: Fields, begin: int) -> tuple[Int64Array, Numbers, BoolArray]:
    parts = []
    for number, wire, is_last in ((FLOW, 1, False), (_OLD_FLOW, 0, False), (FLOW_END, 1, True), (_OLD_FLOW_END, 0, True)):
        rows = fields.rows(number, wire)
        parts.append((fields.owner[rows] + begin, fields.value[rows], np.full(len(rows), is_last)))
    event, flow, last = (np.concatenate(column) for column in zip(*parts, strict=True))
    return event, flow, last


def _more_samples(
    fields: Fields, begin: int
) -> tuple[list[tuple[int, int, float, bool]], dict[int, tuple[list[int], list[int]]]]:
    """Return samples of counters that other events bring along."""
    samples: list[tuple[int, int, float, bool]] = []
    for number, wire, is_double in ((_MORE_VALUES, 0, False), (_MORE_DOUBLES, FIXED64, True)):
        places = Counter[int]()
        rows = fields.rows(number, wire)
        values = fields.value[rows].view(np.float64 if is_double else np.int64).tolist()
        for event, value in zip(fields.owner[rows].tolist(), values, strict=True):
            samples.append((event + begin, places[event], float(value), is_double))
            places[event] += 1
    tracks: dict[int, tuple[list[int], list[int]]] = {}
    for number, place in ((_MORE_TRACKS, 0), (_MORE_DOUBLE_TRACKS, 1)):
        rows = fields.rows(number)
        for event, track in zip(fields.owner[rows].tolist(), fields.value[rows].tolist(), strict=True):
            tracks.setdefault(event + begin, ([], []))[place].append(track)
    return samples, tracks


class Matched(NamedTuple):
    """Spans, in the order of their events in the file."""

    event: Int64Array
    """The event that begins each span; shape (n_spans,)."""
    start_ns: Int64Array
    end_ns: Int64Array
    is_open: BoolArray
    """Whether nothing ends it: it lasts until the last event."""
    span_of: Int64Array
    """Of each event, the span that it begins or ends, or -1; shape (n_events,)."""
    unmatched: int
    """Ends that end nothing."""


def match_spans(events: Events, time_ns: Int64Array, is_used: BoolArray) -> Matched:
    """Find the spans of events; times of all of them are given, and which ones count."""
    kind = np.where(is_used, events.type, 0)
    both = np.flatnonzero((kind == BEGIN) | (kind == END))
    is_begin = kind[both] == BEGIN
    begins, ends = match_begins(events.track[both], time_ns[both], is_begin, np.zeros(len(both), np.int64))
    starting = np.flatnonzero((kind == BEGIN) | (kind == INSTANT) | (kind == COMPLETE))
    span_of = np.full(len(kind), -1)
    span_of[starting] = np.arange(len(starting))
    start_ns = time_ns[starting]
    end_ns, is_open = start_ns + events.duration_ns[starting], kind[starting] == BEGIN
    ended = span_of[both[begins]]
    end_ns[ended], is_open[ended] = time_ns[both[ends]], False
    span_of[both[ends]] = ended
    if is_open.any():
        last_ns = int(time_ns[np.flatnonzero(is_used)].max())
        end_ns[is_open] = np.maximum(last_ns, start_ns[is_open])
    return Matched(starting, start_ns, end_ns, is_open, span_of, len(both) - int(is_begin.sum()) - len(ends))


def link_flows(events: Events, time_ns: Int64Array, span_of: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the spans that flows come from, and those that they go to: from each event of a flow to the next one.

    An event that is the last one of its flow ends it; the next one of its number begins another.
    """
    event, flow, is_last = events.flows
    kept = span_of[event] >= 0
    event, flow, is_last = event[kept], flow[kept], is_last[kept]
    # Where an event ends one flow and is in another of the same number, it ends that first.
    order = np.lexsort((~is_last, event, time_ns[event], flow))
    event, flow, is_last = event[order], flow[order], is_last[order]
    is_next = (flow[1:] == flow[:-1]) & ~is_last[:-1]
    source, target = span_of[event[:-1][is_next]], span_of[event[1:][is_next]]
    differs = source != target
    return source[differs], target[differs]
