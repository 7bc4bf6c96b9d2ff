"""A recorded run as a program: work with what it needs, and the calls of the host that launched it and waited for it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import lane_devices, lane_processes
from gpustreamlab.analysis._card_counters import counted_bytes, memory_gives
from gpustreamlab.analysis._host_waits import are_cooperative, host_waits, is_blocking
from gpustreamlab.analysis._utilization import blocks_that_fit
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import EdgeKind, Int64Array, LaneKind, MarkerKind, SpanKind

KERNEL, UPLOAD, DOWNLOAD, OTHER = KINDS = range(4)
"""Kinds of work: what needs SMs, what needs the copy engine into the device or out of it, and what needs neither."""
HELD_SHARE = 0.5  # A copy of pageable memory held up its call where that went on until this share of it was done
_MAKES_STREAM = re.compile(r"^(cu(da)?|hip)(Stream|GreenCtx|GreenCtxStream)Create", re.IGNORECASE)
_OF_DEVICE = re.compile(r"(device|ctx|context)sync", re.IGNORECASE)
SHORT_CALL_NS = 20_000  # Calls that take less, launch nothing and wait for nothing are no case for a change of their own
SLOW_LAUNCH_NS = 100_000  # A launch that takes so long did more than to launch
FREE_SHARE = 0.25  # Work whose stream was free by this share of its delay was not held up by that
UNKNOWN_WAVES = 4  # Waves of a kernel whose grid is not known: it is taken to fill its SMs


class Work(NamedTuple):
    """A kernel, copy or fill."""

    row: int  # its row of the trace
    lane: int  # the stream that it is in now
    home: int  # the stream that it was in when it was recorded
    kind: int  # `KERNEL`, `UPLOAD`, `DOWNLOAD` or `OTHER`
    alone_ns: int  # how long it takes alone on the SMs that it ran on
    blocks: int  # blocks of its grid
    slots: int  # slots of an SM that a block takes; a power of two
    sms: int  # how many SMs it ran on
    size_bytes: int  # of a copy what it moves; of a kernel what it reads and writes, as far as that is known
    is_pageable: bool  # whether it is a copy of memory of the host that is not page-locked
    is_whole: bool = False  # whether all its blocks have to begin at once
    name: int = -1  # code of its name in the trace


class Call(NamedTuple):
    """A call of the host."""

    row: int  # its row of the trace; -1 for a launch of which no call was recorded
    thread: int  # who made it
    gap_ns: int  # since the call before it of that thread had ended, or since the run began
    cost_ns: int  # what it takes if it need not wait
    works: tuple[int, ...] = ()  # what it launches, as places in `Program.works`
    latency_ns: int = 0  # from its begin until that may begin
    awaits: tuple[int, ...] = ()  # what it waits for: of each stream the last, as places in `Program.works`
    back_ns: int = 0  # from the end of what it waited for to its return
    makes_stream: bool = False  # whether it makes a stream
    is_of_device: bool = False  # whether it waits for all streams
    ends_cell: bool = False  # whether a cell of a notebook begins between it and the next launch of its thread


class Part(NamedTuple):
    """A partition of the layout, whether anything ran in it or not."""

    name: str
    sms: frozenset[int]


class Card(NamedTuple):
    """The device, as the scheduler takes it."""

    sm_count: int
    slots_per_sm: int
    memory_bytes_per_s: int
    priority_range: tuple[int, int]
    share_engine: bool = False  # whether copies both ways share one engine


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Program:
    """What ran, and how it was launched. Nothing in it can be changed; a change makes another one."""

    card: Card
    works: tuple[Work, ...]
    """In the order in which they were launched."""
    calls: tuple[Call, ...]
    """In the order in which they began; those of one thread one behind the other."""
    waits: frozenset[tuple[int, int]]
    """Which work had to end before which began, in other streams, as places in `works`."""
    seats: tuple[frozenset[int] | None, ...]
    """On which SMs each stream runs; None for all."""
    priorities: tuple[int, ...]
    """Of each stream; a lower number goes first."""
    parts: tuple[Part, ...] = ()
    """The partitions."""
    names: tuple[str, ...] = ()
    """What its streams are called where they are others than those of the trace."""
    has_calls: bool = False
    """Whether it is known when the host waited."""
    thread_count: int = 1
    """How many threads launched."""
    cards: tuple[int, ...] = ()
    """On which card each stream is, counted from 0; empty for one card."""

    def card_of(self, lane: int) -> int:
        """Return on which card a stream is, counted from 0."""
        return self.cards[lane] if self.cards else 0

    def main_lane(self, *kinds: int) -> tuple[int, float]:
        """Return the stream whose work, of some kinds or of all, takes longest alone, and its share of all such work."""
        alone_ns = Counter[int]()
        for work in self.works:
            alone_ns[work.lane] += work.alone_ns * (not kinds or work.kind in kinds)
        lane, most_ns = alone_ns.most_common(1)[0]
        return lane, most_ns / max(1, alone_ns.total())

    def change(self, **changed: object) -> Program:
        """Return the same with some of it changed."""
        return replace(self, **changed)  # type: ignore[arg-type]


def read_program(trace: Trace, rows: Int64Array) -> Program:
    """Read kernels, copies and fills of devices that are alike as a program, with durations as they were recorded."""
    rows = in_launch_order(trace, rows)
    used = np.unique(lane_devices(trace)[trace.lane[rows]])
    cards = np.minimum(np.searchsorted(used, lane_devices(trace)), len(used) - 1).tolist() if len(used) > 1 else ()
    place = np.full(len(trace) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    card = _card_of(trace)
    parts = tuple(_parts_of(trace))
    seats = _seats_of(trace, rows, parts)
    works = tuple(_works_of(trace, rows, card, seats))
    waits = trace.edges.select(EdgeKind.WAIT)
    is_own = (place[waits.source] >= 0) & (place[waits.target] >= 0)
    pairs = zip(place[waits.source[is_own]].tolist(), place[waits.target[is_own]].tolist(), strict=True)
    calls = _calls_of(trace, rows, place, works)
    return Program(
        card=card,
        works=works,
        calls=calls,
        waits=frozenset((before, after) for before, after in pairs if before < after),
        seats=seats,
        priorities=tuple(lane.priority for lane in trace.lanes),
        parts=parts,
        has_calls=any(call.row >= 0 for call in calls),
        thread_count=len(np.unique(trace.thread[rows])),
        cards=tuple(cards),
    )


def in_launch_order(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return some work in the order of its launches, nodes of a graph as it was captured; else in the order of its starts."""
    none = np.zeros(len(trace), np.int64)
    node = np.array([*(one.node for one in trace.details), -1], np.int64)[trace.extra.get("detail", none - 1)[rows]]
    call = trace.extra.get("correlation", none)[rows]
    queued_ns = trace.queued_ns[rows] if knows_launches(trace, rows) else none[: len(rows)]
    ordered: Int64Array = rows[np.lexsort((trace.end_ns[rows], trace.start_ns[rows], node, call, queued_ns))]
    return ordered


def knows_launches(trace: Trace, rows: Int64Array) -> bool:
    """Tell whether it is known when any of some work was launched."""
    return bool((trace.queued_ns[rows] < trace.start_ns[rows]).any())


# The device and its work


def _card_of(trace: Trace) -> Card:
    device = trace.metadata.device
    priorities = [0, *(lane.priority for lane in trace.lanes)]
    return Card(
        max(1, device.sm_count),
        1 << max(5, math.ceil(math.log2(max(1, device.sm_limits.blocks)))),
        round(device.memory_bytes_per_s * memory_gives(trace)) if device.memory_bytes_per_s else 1 << 60,
        (max(priorities), min(priorities)),
        device.share_engine,
    )


def _parts_of(trace: Trace) -> Iterator[Part]:
    """Place the partitions one behind the other, as their ids are not always known."""
    first = 0
    for part in trace.layout or ():
        yield Part(part.name, frozenset(range(first, first + part.granted_sms)))
        first += part.granted_sms


def _seats_of(trace: Trace, rows: Int64Array, parts: Sequence[Part]) -> tuple[frozenset[int] | None, ...]:
    """Return on which SMs each stream ran: those of the partition in which its last work did."""
    by_name = {part.name: part.sms for part in parts}
    seats: list[frozenset[int] | None] = [None] * len(trace.lanes)
    for lane, code in zip(trace.lane[rows].tolist(), trace.partition[rows].tolist(), strict=True):
        if code >= 0:
            part = trace.partitions[code]
            seats[lane] = by_name.get(part.name, frozenset(range(part.granted_sms)))
    return tuple(seats)


def _works_of(trace: Trace, rows: Int64Array, card: Card, seats: Sequence[frozenset[int] | None]) -> Iterator[Work]:
    none = np.zeros(len(trace), np.int64)
    blocks, sizes = (trace.extra.get(name, none)[rows].tolist() for name in ("grid_blocks", "size_bytes"))
    counted = counted_bytes(trace, rows)
    traffic = np.where(counted < 0, _traffic(trace)[rows], counted).tolist()
    fit = blocks_that_fit(trace)[rows].tolist()
    is_copy = (trace.kind[rows] == SPAN_KINDS.index(SpanKind.COPY)).tolist()
    kinds, pageable = _copy_kinds(trace, rows)
    columns = (rows, trace.lane[rows], _own_ns(trace, rows), are_cooperative(trace)[rows], trace.name[rows])
    for place, (row, lane, lasted_ns, is_whole, name) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        seat = seats[lane]
        sms = card.sm_count if seat is None else len(seat)
        grid, slots = blocks[place], card.slots_per_sm
        if is_copy[place] or (not grid and trace.kind[row] != SPAN_KINDS.index(SpanKind.KERNEL)):
            yield Work(row, lane, lane, kinds[place], max(1, lasted_ns), 0, 0, sms, sizes[place], pageable[place])
            continue
        if grid:
            slots = 1 << max(0, math.ceil(math.log2(card.slots_per_sm / fit[place])))
        else:
            grid = UNKNOWN_WAVES * sms
        needs = grid, slots, sms, traffic[place]
        yield Work(row, lane, lane, KERNEL, max(1, lasted_ns), *needs, is_pageable=False, is_whole=is_whole, name=name)


def _own_ns(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return how long each work took once the one in front on its stream had ended: dependent launches begin before that."""
    order = rows[np.lexsort((trace.start_ns[rows], trace.lane[rows]))]
    begin_ns, found = trace.start_ns[order], np.zeros(len(trace), np.int64)
    for first, last in pairwise(np.append(np.flatnonzero(np.diff(trace.lane[order], prepend=-1)), len(order)).tolist()):
        own = order[first:last]
        begin_ns[first + 1 : last] = np.maximum(begin_ns[first + 1 : last], np.maximum.accumulate(trace.end_ns[own])[:-1])
    found[order] = np.maximum(trace.end_ns[order] - begin_ns, 0)
    return found[rows]


def _copy_kinds(trace: Trace, rows: Int64Array) -> tuple[list[int], list[bool]]:
    """Tell which way copies went, and which were of pageable memory, by their names and by what they went between."""
    ways = [UPLOAD if "htod" in name.lower() else DOWNLOAD if "dtoh" in name.lower() else OTHER for name in trace.names]
    pageable = np.array([*("pageable" in name for name in trace.names), False])[trace.name[rows]]
    if "detail" in trace.extra:
        pageable |= np.array([*("pageable" in one.full_name.lower() for one in trace.details), False])[
            trace.extra["detail"][rows]
        ]
    kinds = np.array([*ways, OTHER], np.int64)[trace.name[rows]]
    return kinds.tolist(), (pageable & (kinds != OTHER)).tolist()


def _traffic(trace: Trace) -> Int64Array:
    """Return how many bytes each row reads and writes, as far as it is known; shape (n_spans,), int64."""
    accesses = trace.accesses
    is_own = (accesses.buffer > 0) & ~accesses.is_host
    sizes = np.where(is_own, accesses.end - accesses.begin, 0)
    found: Int64Array = np.bincount(accesses.span.astype(np.intp), weights=sizes, minlength=len(trace)).astype(np.int64)
    return found


# The host


class _HostSpan(NamedTuple):
    """A call, or a launch of which no call was recorded."""

    start_ns: int
    end_ns: int
    row: int
    works: tuple[int, ...]


def _calls_of(trace: Trace, rows: Int64Array, place: Int64Array, works: Sequence[Work]) -> tuple[Call, ...]:
    threads = _threads_of(trace, rows, place)
    begin_ns = min((spans[0].start_ns for spans in threads), default=0)
    awaited = _awaited(trace, rows, place)
    makes = np.array([*(bool(_MAKES_STREAM.search(name)) for name in trace.names), False])
    latencies_ns = _latencies_ns(trace, rows, place, [work.kind for work in works])
    cells_ns = np.array(sorted(mark.time_ns for mark in trace.markers if mark.kind is MarkerKind.CELL), np.int64)
    found: list[tuple[int, Call]] = []
    for thread, spans in enumerate(threads):
        last_ns = begin_ns
        next_ns = _next_launches(spans)
        for span, launch_ns in zip(spans, next_ns, strict=True):
            call = _call_of(trace, works, span, awaited.get(span.row, ()), latencies_ns)
            is_making = span.row >= 0 and bool(makes[trace.name[span.row]])
            gap_ns = max(0, span.start_ns - last_ns)
            ends_cell = bool(np.searchsorted(cells_ns, launch_ns) > np.searchsorted(cells_ns, span.start_ns))
            call = call._replace(thread=thread, gap_ns=gap_ns, makes_stream=is_making, ends_cell=ends_cell)
            found.append((span.start_ns, call))
            last_ns = max(last_ns, span.end_ns)
    found.sort(key=lambda one: one[0])
    return tuple(_folded([call for _, call in found]))


def _folded(calls: Sequence[Call]) -> Iterator[Call]:
    """Take short calls that neither launch nor wait together with the gap in front of what their thread calls next."""
    passed: dict[int, int] = {}
    for call in calls:
        if call.works or call.awaits or call.makes_stream or call.cost_ns >= SHORT_CALL_NS:
            yield call._replace(gap_ns=call.gap_ns + passed.pop(call.thread, 0))
        else:
            passed[call.thread] = passed.get(call.thread, 0) + call.gap_ns + call.cost_ns


def _latencies_ns(trace: Trace, rows: Int64Array, place: Int64Array, kinds: Sequence[int]) -> dict[int, int]:
    """Return how long after its launch work begins that nothing holds up, by kind, in ns: the lower quartile of such delays.

    A kind of which all work was held up begins as the others do.
    """
    queued_ns = trace.queued_ns[rows]
    delay_ns = trace.start_ns[rows] - queued_ns
    free_ns = np.full(len(rows), np.iinfo(np.int64).min)
    for lane in np.unique(trace.lane[rows]).tolist():
        own = np.flatnonzero(trace.lane[rows] == lane)
        free_ns[own[1:]] = np.maximum.accumulate(trace.end_ns[rows[own]])[:-1]
    waits = trace.edges.select(EdgeKind.WAIT)
    is_own = place[waits.target] >= 0
    np.maximum.at(free_ns, place[waits.target[is_own]], trace.end_ns[waits.source[is_own]])
    is_free = (delay_ns > 0) & (free_ns <= queued_ns + FREE_SHARE * delay_ns)
    some, share = (is_free, 0.25) if is_free.any() else (delay_ns > 0, 0.0)
    if not some.any():
        return dict.fromkeys(KINDS, 0)
    if len(np.unique(lane_processes(trace)[trace.lane[rows]])) > 1:
        share = 0.0  # nearly all may have waited for other processes
    of_kind, found = np.array(kinds), {}
    for kind in KINDS:
        own = delay_ns[some & (of_kind == kind)]
        found[kind] = int(np.quantile(own if len(own) else delay_ns[some], share, method="lower"))
    return found


def _next_launches(spans: Sequence[_HostSpan]) -> list[int]:
    """Return when the thread launches next behind each call, in ns."""
    found, next_ns = [], spans[-1].start_ns
    for span in reversed(spans):
        found.append(next_ns)
        next_ns = span.start_ns if span.works else next_ns
    return found[::-1]


def _call_of(
    trace: Trace, works: Sequence[Work], span: _HostSpan, awaited: tuple[int, ...], latencies_ns: Mapping[int, int]
) -> Call:
    """Tell what a call costs, what it launches and what it waits for; who made it and when is for the caller to say."""
    lasted_ns = span.end_ns - span.start_ns
    if span.works:
        first = works[span.works[0]]
        latency_ns = latencies_ns[first.kind]
        start_ns, end_ns = int(trace.start_ns[first.row]), int(trace.end_ns[first.row])
        if first.is_pageable and span.end_ns >= start_ns + HELD_SHARE * (end_ns - start_ns):
            return Call(span.row, 0, 0, latency_ns, span.works, latency_ns, span.works[:1], span.end_ns - end_ns)
        # What a launch did besides, such as to load code, its work waits for.
        is_behind = lasted_ns >= SLOW_LAUNCH_NS and start_ns >= span.end_ns
        return Call(span.row, 0, 0, lasted_ns, span.works, max(latency_ns, lasted_ns) if is_behind else latency_ns)
    if awaited:
        ended_ns = max(int(trace.end_ns[works[one].row]) for one in awaited)
        back_ns = span.end_ns - max(span.start_ns, min(ended_ns, span.end_ns))
        is_of_device = bool(_OF_DEVICE.search(trace.names[trace.name[span.row]]))
        return Call(span.row, 0, 0, 0, awaits=awaited, back_ns=back_ns, is_of_device=is_of_device)
    return Call(span.row, 0, 0, lasted_ns)


def _threads_of(trace: Trace, rows: Int64Array, place: Int64Array) -> list[list[_HostSpan]]:
    """Return what each thread did from its first launch on, in order; a call within another one belongs to that."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    launched: dict[int, list[int]] = {}
    for call, work in zip(launches.source.tolist(), place[launches.target].tolist(), strict=True):
        if work >= 0:
            launched.setdefault(call, []).append(work)
    by_lane: dict[int, list[_HostSpan]] = {}
    calls = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.HOST))
    columns = (trace.start_ns[calls], trace.end_ns[calls], calls, trace.lane[calls])
    for start_ns, end_ns, row, lane in zip(*(column.tolist() for column in columns), strict=True):
        by_lane.setdefault(lane, []).append(_HostSpan(start_ns, end_ns, row, tuple(sorted(launched.get(row, ())))))
    has_call = np.zeros(len(rows), bool)
    has_call[[work for some in launched.values() for work in some]] = True
    is_known = knows_launches(trace, rows)
    lanes = {lane.name: number for number, lane in enumerate(trace.lanes) if lane.kind is LaneKind.HOST}
    for work in np.flatnonzero(~has_call).tolist():
        row, thread = int(rows[work]), int(trace.thread[rows[work]])
        lane = lanes.get(f"host: {trace.threads[thread]}", -2 - thread) if thread >= 0 else -1
        queued_ns = int(trace.queued_ns[row]) if is_known else 0
        by_lane.setdefault(lane, []).append(_HostSpan(queued_ns, queued_ns, -1, (work,)))
    threads = [_outermost(sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))) for spans in by_lane.values()]
    threads = [_held(trace, rows, spans) if is_known else spans for spans in threads if spans]
    if trace.metadata.simulated and threads:
        # Its host has one clock, which goes on in calls alone: threads make them in turn.
        return [sorted((span for spans in threads for span in spans), key=lambda span: span.start_ns)]
    return _joined(threads) if is_known else threads


def _joined(threads: list[list[_HostSpan]]) -> list[list[_HostSpan]]:
    """Put threads one behind the other of which each begins when the one before has ended: whoever started it had waited."""
    found: list[list[_HostSpan]] = []
    for spans in sorted(threads, key=lambda spans: spans[0].start_ns):
        before = next((one for one in found if max(span.end_ns for span in one) <= spans[0].start_ns), None)
        if before is None:
            found.append(spans)
        else:
            before += spans
    return found


def _held(trace: Trace, rows: Int64Array, spans: list[_HostSpan]) -> list[_HostSpan]:
    """Let launches of copies of pageable memory of which no call is known last until the copy has ended.

    What the thread launched while it should have stood still tells that it did not.
    """
    places = [span.works[0] if span.row < 0 else -1 for span in spans]
    pageable = np.array(_copy_kinds(trace, rows)[1], bool)
    for number, place in enumerate(places[:-1]):
        end_ns = int(trace.end_ns[rows[place]])
        if place >= 0 and pageable[place] and spans[number + 1].start_ns >= end_ns:
            spans[number] = spans[number]._replace(end_ns=end_ns)
    return spans


def _outermost(spans: list[_HostSpan]) -> list[_HostSpan]:
    """Leave out calls within others, and all before the first launch."""
    found: list[_HostSpan] = []
    for span in spans:
        if found and span.end_ns <= found[-1].end_ns:
            found[-1] = found[-1]._replace(works=found[-1].works + span.works)
        elif found or span.works:
            found.append(span)
    return found


def _awaited(trace: Trace, rows: Int64Array, place: Int64Array) -> dict[int, tuple[int, ...]]:
    """Return for calls that waited for work the last of it in each stream, by their rows."""
    found: dict[int, list[int]] = {}
    syncs = trace.edges.select(EdgeKind.SYNC)
    for work, call in zip(place[syncs.source].tolist(), syncs.target.tolist(), strict=True):
        if work >= 0:
            found.setdefault(call, []).append(work)
    if len(syncs):
        return {call: tuple(sorted(works)) for call, works in found.items()}
    return _guessed(trace, rows, place)


def _guessed(trace: Trace, rows: Int64Array, place: Int64Array) -> dict[int, tuple[int, ...]]:
    """Return the same where no waits of calls are recorded: of the device by their names, of streams by what ended then."""
    waits = host_waits(trace)
    queued_ns = trace.queued_ns[rows]
    of_lane = {lane: np.flatnonzero(trace.lane[rows] == lane) for lane in np.unique(trace.lane[rows]).tolist()}
    found: dict[int, tuple[int, ...]] = {}
    columns = (waits.row, waits.name, waits.start_ns, waits.waited_for)
    for call, name, start_ns, row in zip(*(column.tolist() for column in columns), strict=True):
        word = waits.names[name].lower()
        if not is_blocking(word) or row < 0 or place[row] < 0:
            continue
        if not _OF_DEVICE.search(word):
            found[call] = (int(place[row]),)
            continue
        launched = (own[: np.searchsorted(queued_ns[own], start_ns)] for own in of_lane.values())
        found[call] = tuple(sorted(int(own[-1]) for own in launched if len(own)))
    return found
