"""Packets of Perfetto's traces, many at once.

Source: protos/perfetto/trace of Perfetto's sources (trace_packet.proto, track_event.proto, track_descriptor.proto).

Each track has sequences of packets of its own: what is the same in all packets of one is said once, and times are distances
from the packet before. One sequence begins the spans, a second one ends them, a third one those that last no time: so the
packets of each are in the order of time, all of one size. Engines bring all packets into the order of time, and leave those of
one moment as they are in the file: where spans follow each other at once, the end of the first has to come before the beginning
of the next one, so ends stand in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.exchange._protobuf import (
    FIXED64,
    LENGTH,
    Bytes,
    Hole,
    Numbers,
    Parts,
    bytes_field,
    fixed_field,
    hole,
    number_field,
    tag,
    text_field,
    varint,
    width_of,
    write_rows,
)
from gpustreamlab.typing import BoolArray, Int64Array

PACKET = 1
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, SEQUENCE_FLAGS = 8, 10, 11, 12, 13
CLOCK_SNAPSHOT, TIMESTAMP_CLOCK, PACKET_DEFAULTS, TRACK_DESCRIPTOR = 6, 58, 59, 60
"""Fields of a packet."""
CLEARED, NEEDS_STATE = 1, 2
"""Flags of a packet: what was said before does not hold any more; it needs what was said."""
BOOTTIME, OWN_CLOCK = 6, 64
"""Numbers of clocks; those from 64 on are of one sequence."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of events."""
ANNOTATIONS, CATEGORY, TYPE, NAME, TRACK = 4, 3, 9, 10, 11
FLOW, FLOW_END, COUNTER_VALUE, COUNTER_DOUBLE = 47, 48, 30, 44
CATEGORY_TEXT, NAME_TEXT = 22, 23
"""Fields of an event."""
ANNOTATION_NUMBER, ANNOTATION_TEXT = 3, 17
"""Fields of an annotation: a whole number, and the number of a text."""
OWN_FIELD = 29_022
"""Number of the field of a packet that holds the trace, as a Parquet file; Perfetto has no such field, and skips it."""
BLOCK_ROWS = 1 << 14
"""Packets that are made at once: they stay in the processor's cache."""
_INTERNED = {"category": 1, "name": 2, "annotation": 3, "text": 29}


class Annotation(NamedTuple):
    """An argument of spans."""

    name: int
    """Number of its name."""
    values: NDArray[np.integer]
    """One a span, at least 0: a number, or that of a text."""
    is_text: bool
    """Whether it is a text."""
    is_there: BoolArray | None
    """Which spans have it; None for all."""


class Spans(NamedTuple):
    """Spans of one track, in the order of their starts; of those that begin at once, longer ones are first."""

    start_ns: Numbers
    end_ns: Numbers
    name: NDArray[np.integer]
    """Number of the name, from 1."""
    category: NDArray[np.integer]
    """Number of the category, from 1."""
    annotations: Sequence[Annotation]
    flows: Sequence[tuple[int, Int64Array, Int64Array]]
    """Fields, and of each which spans it is of, in their order, and its number."""


class Packets(NamedTuple):
    """Packets of one sequence."""

    number: int
    track: int
    base_ns: int
    """Time from which on the times of its packets count."""

    def head(self, interned: bytes = b"") -> bytes:
        """Return the packets that stand before all others."""
        state = number_field(SEQUENCE, self.number) + number_field(SEQUENCE_FLAGS, CLEARED)
        defaults = bytes_field(
            PACKET_DEFAULTS,
            number_field(TIMESTAMP_CLOCK, OWN_CLOCK),
            bytes_field(TRACK_EVENT, number_field(TRACK, self.track)),
        )
        first = bytes_field(PACKET, state, defaults, interned)
        clocks = (
            bytes_field(1, number_field(1, OWN_CLOCK), number_field(2, self.base_ns), number_field(3, 1)),
            bytes_field(1, number_field(1, BOOTTIME), number_field(2, self.base_ns)),
        )
        return first + bytes_field(PACKET, number_field(SEQUENCE, self.number), bytes_field(CLOCK_SNAPSHOT, *clocks))

    @property
    def front(self) -> bytes:
        """What stands in each packet before its event."""
        return number_field(SEQUENCE, self.number) + number_field(SEQUENCE_FLAGS, NEEDS_STATE)

    def packets(self, event: Parts, times_ns: Numbers) -> Iterator[Bytes]:
        """Yield packets with an event each; times in order. The lengths of packets and events have two bytes."""
        lasts = hole(np.diff(times_ns, prepend=np.uint64(self.base_ns)), tag(TIMESTAMP))
        inner = self.front + tag(TRACK_EVENT, LENGTH) + varint(width_of(event), 2)
        size = len(inner) + width_of([*event, lasts])
        # What differs from packet to packet stands together: it packs better.
        parts = [tag(PACKET, LENGTH) + varint(size, 2) + inner, *event, lasts]
        for first in range(0, len(times_ns), BLOCK_ROWS):
            yield write_rows(parts, first, min(first + BLOCK_ROWS, len(times_ns)), tag(TYPE))


def span_packets(spans: Spans, first_sequence: int, track: int, base_ns: int, interned: bytes) -> Iterator[bytes | Bytes]:
    """Yield all packets of the spans of a track; they use three numbers of sequences."""
    sequences = [Packets(first_sequence + place, track, base_ns) for place in range(3)]
    lasts = spans.end_ns > spans.start_ns
    ends_ns = np.sort(spans.end_ns[lasts], kind="stable")
    if len(ends_ns):
        yield sequences[0].head()
        yield from sequences[0].packets([number_field(TYPE, END)], ends_ns)
    yield sequences[1].head(interned)
    yield from _beginnings(spans, sequences[1])
    if not lasts.all():
        yield sequences[2].head()
        yield from sequences[2].packets([number_field(TYPE, END)], spans.end_ns[~lasts])


def counter_packets(
    times_ns: Numbers, values: NDArray[np.float64], number: int, track: int, base_ns: int
) -> Iterator[bytes | Bytes]:
    """Yield all packets of the samples of a track, which are in the order of time."""
    sequence = Packets(number, track, base_ns)
    yield sequence.head()
    event: Parts = [number_field(TYPE, COUNTER), Hole(values, 0, front=tag(COUNTER_DOUBLE, FIXED64))]
    yield from sequence.packets(event, times_ns)


def instant_packet(time_ns: int, track: int, category: str, text: str) -> bytes:
    """Return a packet of a moment."""
    event = (
        number_field(TYPE, INSTANT)
        + number_field(TRACK, track)
        + text_field(CATEGORY_TEXT, category)
        + text_field(NAME_TEXT, text)
    )
    return bytes_field(PACKET, number_field(SEQUENCE, 1), number_field(TIMESTAMP, time_ns), bytes_field(TRACK_EVENT, event))


def interned_data(**tables: dict[int, str]) -> bytes:
    """Return the field of a packet that gives texts their numbers."""
    entries = (
        bytes_field(_INTERNED[table], number_field(1, number), text_field(2, text))
        for table, texts in tables.items()
        for number, text in texts.items()
    )
    return bytes_field(INTERNED, *entries)


def _beginnings(spans: Spans, sequence: Packets) -> Iterator[bytes | Bytes]:
    event: list[bytes | Hole] = [number_field(TYPE, BEGIN)]
    event += [hole(spans.category, tag(CATEGORY)), hole(spans.name, tag(NAME))]
    for one in spans.annotations:
        value = hole(one.values)
        head = number_field(1, one.name) + tag(ANNOTATION_TEXT if one.is_text else ANNOTATION_NUMBER)
        front = tag(ANNOTATIONS, LENGTH) + varint(len(head) + value.width) + head
        event.append(value._replace(front=front, is_there=one.is_there))
    more: dict[int, bytes] = {}
    for field, rows, numbers in spans.flows:
        is_first = np.diff(rows, prepend=-1) > 0
        is_there = np.zeros(len(spans.start_ns), bool)
        values = np.zeros(len(spans.start_ns), np.uint64)
        is_there[rows] = True
        values[rows[is_first]] = numbers[is_first]
        if len(rows):
            event.append(Hole(values, 0, is_there, tag(field, FIXED64)))
        for row, number in zip(rows[~is_first].tolist(), numbers[~is_first].tolist(), strict=True):
            more[row] = more.get(row, b"") + fixed_field(field, number)
    done = 0
    for block in sequence.packets(event, spans.start_ns):
        longer = {row - done: flows for row, flows in more.items() if done <= row < done + len(block)}
        yield from _with_more(block, longer, sequence.front, width_of(event))
        done += len(block)


def _with_more(block: Bytes, more: dict[int, bytes], front: bytes, event_bytes: int) -> Iterator[bytes | Bytes]:
    """Yield rows; those that have more than one flow of a field are made longer."""
    done, begin = 0, 3 + len(front) + 3
    for row in sorted(more):
        packet = block[row].tobytes()
        event = bytes_field(TRACK_EVENT, packet[begin : begin + event_bytes], more[row])
        yield block[done:row]
        yield bytes_field(PACKET, front, event, packet[begin + event_bytes :])
        done = row + 1
    yield block[done:]
