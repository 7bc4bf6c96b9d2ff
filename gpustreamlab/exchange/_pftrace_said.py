"""What packets of Perfetto's traces say about later ones: numbers of texts, tracks, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.exchange._pftrace_events import NO_TRACK, Texts
from gpustreamlab.exchange._pftrace_file import THREAD_OLD, Packets
from gpustreamlab.exchange._pftrace_packets import (
    BOOTTIME,
    CLOCK_SNAPSHOT,
    INTERNED,
    OWN_CLOCK,
    PACKET_DEFAULTS,
    TIMESTAMP_CLOCK,
    TRACK,
    TRACK_DESCRIPTOR,
    TRACK_EVENT,
)
from gpustreamlab.exchange._protobuf import LENGTH, Field, read_field
from gpustreamlab.typing import BoolArray, Int64Array

REALTIME, MONOTONIC = 1, 3
"""Numbers of the clock that tells the time since 1970, and of one that stands still while the machine sleeps."""
CATEGORIES, NAMES, GPU_SPECIFICATIONS = 1, 2, 24
"""Tables of texts."""
LARGEST_NS = 1 << 62
"""Later times, of 2116, are refused."""
MOST_CLOCKS = 256
"""Clocks with larger numbers are not known."""
_MORE_TRACKS, _MORE_DOUBLE_TRACKS = 31, 45
_LARGEST_NUMBER = 1 << 32
_FIRST_OLD_TRACK = NO_TRACK - 1


@dataclass(slots=True)
class Track:
    """What a file says of a track."""

    name: str = ""
    parent: int = 0
    process: str = ""
    thread: str = ""
    """What the thread is called, or its number; empty where it is none."""
    unit: str = ""
    multiplier: int = 1
    is_incremental: bool = False
    """Whether samples are distances from the ones before."""


class Defaults(NamedTuple):
    """What holds for packets that say nothing else."""

    clock: int = 0
    track: int = NO_TRACK
    more_tracks: tuple[int, ...] = ()
    more_double_tracks: tuple[int, ...] = ()


class Snapshot(NamedTuple):
    """The same moment on several clocks."""

    packet: int
    sequence: int
    clocks: dict[int, tuple[int, int, bool]]
    """Time in ns, ns of its unit, and whether times are distances from the ones before; by the clock's number."""


@dataclass(slots=True)
class Said:
    """What a file says, but for events."""

    generation: Int64Array
    """Of each packet; within one, numbers keep their meaning."""
    is_known: BoolArray
    """Of each generation, whether it has been said from the start."""
    version: Int64Array
    """Of each packet; within one, defaults are the same."""
    texts: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Number in `Texts` by table, and by generation and number in the file."""
    gpu_categories: dict[tuple[int, int], int] = field(default_factory=dict)
    defaults: dict[int, Defaults] = field(default_factory=dict)
    """By version."""
    tracks: dict[int, Track] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    pairs: dict[tuple[int, int], Int64Array] = field(default_factory=dict)
    """Times of the same moments on two clocks, in order, as far as they were asked for; shape (n, 2)."""
    primary_clock: int = BOOTTIME

    def lookup(self, table: int, packet: Int64Array, number: Int64Array) -> Int64Array:
        """Return the number in `Texts` of numbers in the file; -1 for 0, and for those that nothing is said of."""
        known = self.texts.get(table, {})
        keys, place = np.unique(self.generation[packet] * _LARGEST_NUMBER + number, return_inverse=True)
        codes = [known.get(divmod(key, _LARGEST_NUMBER), -1) for key in keys.tolist()]
        return np.array(codes, np.int64)[place]


def read_said(packets: Packets, texts: Texts) -> Said:
    """Read what packets say."""
    _, sequence = np.unique(packets.sequence, return_inverse=True)
    order = np.argsort(sequence, kind="stable")
    is_first = np.diff(sequence[order], prepend=-1) > 0
    starts = packets.is_cleared | packets.is_behind_loss
    has_defaults = np.zeros(len(packets), bool)
    has_defaults[[one.packet for one in packets.said if PACKET_DEFAULTS in one.fields]] = True
    heads = np.flatnonzero(is_first | starts[order])
    said = Said(
        generation=_counted(order, is_first | starts[order]),
        is_known=packets.is_cleared[order][heads],
        version=_counted(order, is_first | (starts | has_defaults)[order]),
    )
    view = packets.data.data
    for one in packets.said:
        for number, (first, last) in one.fields.items():
            fields = list(read_message(view, first, last))
            if number == INTERNED:
                _read_texts(view, fields, int(said.generation[one.packet]), said, texts)
            elif number == PACKET_DEFAULTS:
                said.defaults[int(said.version[one.packet])] = _read_defaults(view, fields)
            elif number == CLOCK_SNAPSHOT:
                _read_snapshot(view, fields, one.packet, int(packets.sequence[one.packet]), said)
            elif number == TRACK_DESCRIPTOR:
                _read_track(view, fields, said)
            elif number == THREAD_OLD:
                uuid = _FIRST_OLD_TRACK - int(packets.sequence[one.packet])
                _read_thread(view, (0, 0, 0, first, last), said.tracks.setdefault(uuid, Track()))
    return said


def read_message(view: memoryview, first: int, last: int) -> Iterator[Field]:
    """Yield the fields of a message, up to what is damaged."""
    while first < last and (found := read_field(view, first, last)):
        yield found
        first = found[4]


def _counted(order: Int64Array, begins: BoolArray) -> Int64Array:
    """Return for each packet how many times something had begun, with packets in some order."""
    counts = np.empty(len(order), np.int64)
    counts[order] = np.cumsum(begins) - 1
    return counts


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _text(view: memoryview, found: Field) -> bytes:
    return bytes(view[found[3] : found[4]])


def _read_texts(view: memoryview, fields: list[Field], generation: int, said: Said, texts: Texts) -> None:
    for table, wire, _, first, last in fields:
        if table not in (CATEGORIES, NAMES, GPU_SPECIFICATIONS) or wire != LENGTH:
            continue
        number, text, category = 0, b"", 0
        for found in read_message(view, first, last):
            if found[:2] == (1, 0):
                number = found[2]
            elif found[:2] == (2, LENGTH):
                text = _text(view, found)
            elif found[0] == 4:
                category = found[2]
        said.texts.setdefault(table, {})[generation, number] = texts.code(text)
        said.gpu_categories[generation, number] = category


def _read_defaults(view: memoryview, fields: list[Field]) -> Defaults:
    found = Defaults()
    for number, wire, value, first, last in fields:
        if number == TIMESTAMP_CLOCK:
            found = found._replace(clock=value)
        elif (number, wire) == (TRACK_EVENT, LENGTH):
            inner = list(read_message(view, first, last))
            found = found._replace(
                track=next((one[2] for one in reversed(inner) if one[0] == TRACK), NO_TRACK),
                more_tracks=tuple(one[2] for one in inner if one[0] == _MORE_TRACKS),
                more_double_tracks=tuple(one[2] for one in inner if one[0] == _MORE_DOUBLE_TRACKS),
            )
    return found


def _read_snapshot(view: memoryview, fields: list[Field], packet: int, sequence: int, said: Said) -> None:
    clocks = {}
    for number, wire, value, first, last in fields:
        if number == 2 and wire == 0:
            said.primary_clock = value
        elif (number, wire) == (1, LENGTH):
            inner = {found[0]: found[2] for found in read_message(view, first, last)}
            unit_ns = inner.get(4, 1) or 1
            time_ns = inner.get(2, 0) * unit_ns
            if time_ns < LARGEST_NS and unit_ns < 1 << 32 and inner.get(1, 0) < _LARGEST_NUMBER:
                clocks[inner.get(1, 0)] = time_ns, unit_ns, bool(inner.get(3))
    said.snapshots.append(Snapshot(packet, sequence, clocks))


def _read_track(view: memoryview, fields: list[Field], said: Said) -> None:
    uuid = next((found[2] for found in fields if found[:2] == (1, 0)), 0)
    track = said.tracks.setdefault(uuid, Track())
    for found in fields:
        number, wire, value, *_ = found
        if number in (2, 10, 13) and wire == LENGTH:
            track.name = _text(view, found).decode("utf-8", "replace")
        elif (number, wire) == (5, 0):
            track.parent = value
        elif (number, wire) == (3, LENGTH):
            texts = {one[0]: one for one in read_message(view, *found[3:])}
            track.process = _text(view, texts[6]).decode("utf-8", "replace") if 6 in texts else ""
        elif (number, wire) == (4, LENGTH):
            _read_thread(view, found, track)
        elif (number, wire) == (8, LENGTH):
            _read_counter(view, found, track)


def _read_thread(view: memoryview, found: Field, track: Track) -> None:
    inner = {one[0]: one for one in read_message(view, *found[3:])}
    name = _text(view, inner[5]).decode("utf-8", "replace") if 5 in inner else ""
    track.thread = name or f"thread {_signed(inner[2][2]) if 2 in inner else 0}"


def _read_counter(view: memoryview, found: Field, track: Track) -> None:
    inner = {one[0]: one for one in read_message(view, *found[3:])}
    units = {1: "ns", 2: "count", 3: "bytes"}
    track.unit = (
        _text(view, inner[6]).decode("utf-8", "replace") if 6 in inner else units.get(inner[3][2], "") if 3 in inner else ""
    )
    track.multiplier = _signed(inner[4][2]) if 4 in inner else 1
    track.is_incremental = bool(inner[5][2]) if 5 in inner else False
    builtin = {1: "thread_time", 2: "thread_instruction_count"}
    track.name = track.name or (builtin.get(inner[1][2], "") if 1 in inner else "")


class Times(NamedTuple):
    """Times of packets."""

    time_ns: Int64Array
    """On the file's own clock, in ns."""
    is_known: BoolArray
    """Whether it can be told."""


def packet_times(packets: Packets, said: Said) -> Times:
    """Return when packets are of, on the clock that counts for the whole file."""
    clock, is_known = packets.clock.copy(), packets.has_time & (packets.time < np.uint64(LARGEST_NS))
    by_version = np.zeros(int(said.version.max(initial=0)) + 1, np.int64)
    for version, defaults in said.defaults.items():
        by_version[version] = defaults.clock
    clock = np.where(clock == 0, by_version[said.version], clock)
    clock[clock == 0] = said.primary_clock
    is_known &= (clock > 0) & (clock < MOST_CLOCKS)
    time_ns = np.where(is_known, packets.time, 0).astype(np.int64)
    used = np.unique(clock[is_known]).tolist()
    for number in used:
        rows = np.flatnonzero((clock == number) & is_known)
        if number >= OWN_CLOCK:
            for own, snapshots in _by_sequence(packets, said, number, rows):
                time_ns[own], is_known[own] = _own_clock(said, snapshots, number, own, time_ns[own])
        # Where nothing says how clocks belong together, the only one is as good as any.
        elif number != said.primary_clock and (len(used) > 1 or said.snapshots):
            time_ns[rows], is_known[rows] = _translated(said, number, time_ns[rows])
    return Times(time_ns, is_known)


def wall_clock_ns(said: Said) -> int | None:
    """Return when the file's own clock was 0, in ns since 1970; None where nothing says so."""
    for snapshot in said.snapshots:
        if {REALTIME, said.primary_clock} <= snapshot.clocks.keys():
            return snapshot.clocks[REALTIME][0] - snapshot.clocks[said.primary_clock][0]
    return None


def _by_sequence(packets: Packets, said: Said, clock: int, rows: Int64Array) -> Iterator[tuple[Int64Array, list[Snapshot]]]:
    """Yield packets of each sequence, and its snapshots that tell of a clock."""
    snapshots: dict[int, list[Snapshot]] = {}
    for one in said.snapshots:
        if clock in one.clocks:
            snapshots.setdefault(one.sequence, []).append(one)
    order = rows[np.argsort(packets.sequence[rows], kind="stable")]
    heads = np.flatnonzero(np.diff(packets.sequence[order], prepend=-1))
    for own in np.split(order, heads[1:]):
        yield own, snapshots.get(int(packets.sequence[own[0]]), [])


def _own_clock(
    said: Said, snapshots: list[Snapshot], number: int, packet: Int64Array, times: Int64Array
) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Return times of a clock that one sequence has for itself: each snapshot says what it is from then on."""
    result, is_known = times.copy(), np.zeros(len(times), bool)
    bounds = [*np.searchsorted(packet, [one.packet for one in snapshots]).tolist(), len(packet)]
    for snapshot, first, last in zip(snapshots, bounds, bounds[1:], strict=False):
        begin_ns, unit_ns, is_incremental = snapshot.clocks[number]
        if unit_ns > 1 and (times[first:last] >= LARGEST_NS // unit_ns).any():
            continue
        part = times[first:last] * unit_ns
        if is_incremental:
            part = begin_ns + np.cumsum(part)
            if ((part < 0) | (part >= LARGEST_NS)).any():  # none is larger, so the first sum that is too large shows
                continue
        for other in (said.primary_clock, *snapshot.clocks):
            if other < OWN_CLOCK and other in snapshot.clocks:
                moved = part + (snapshot.clocks[other][0] - begin_ns)
                if other == said.primary_clock:
                    result[first:last], is_known[first:last] = moved, True
                else:
                    result[first:last], is_known[first:last] = _translated(said, other, moved)
                break
    return result, is_known


def _translated(said: Said, number: int, times_ns: Int64Array) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Return times of another clock on the file's own one, and whether they can be told."""
    for middle in (said.primary_clock, MONOTONIC, REALTIME):
        found, is_known = _by_snapshots(said, number, middle, times_ns)
        if is_known and middle != said.primary_clock:
            found, is_known = _by_snapshots(said, middle, said.primary_clock, found)
        if is_known:
            return found, np.ones(len(times_ns), bool)
    return times_ns, np.zeros(len(times_ns), bool)


def _by_snapshots(said: Said, number: int, other: int, times_ns: Int64Array) -> tuple[Int64Array, bool]:
    """Return times of one clock on another one, each by the last snapshot before it; and whether there is any."""
    if (number, other) not in said.pairs:
        shared = (one.clocks for one in said.snapshots if {number, other} <= one.clocks.keys())
        found = sorted((clocks[number][0], clocks[other][0]) for clocks in shared)
        said.pairs[number, other] = np.array(found, np.int64).reshape(-1, 2)
    own, others = said.pairs[number, other].T
    if not len(own):
        return times_ns, False
    place = np.maximum(np.searchsorted(own, times_ns, side="right") - 1, 0)
    return times_ns + (others - own)[place], True
