"""Which orders the data ask for: work that uses what other work wrote, or writes what it used; and which waits need that.

Memory is looked at byte by byte: a read comes behind the last write of each byte, a write behind that and behind all reads
since. What stood before is in front of these in turn. All accesses to one stretch of bytes that none of them cuts are put in
the order in which their work was enqueued; then the last write before each, and the next one behind, are found for all at once.
Opaque work, of which it is not known what all it touches, asks for nothing by itself: waits that may order it are not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import distinct, is_work
from gpustreamlab.analysis._program import KERNEL, Program, in_launch_order
from gpustreamlab.model import ACCESS_CERTAINTIES, EDGE_KINDS, Trace
from gpustreamlab.typing import AccessCertainty, BoolArray, EdgeKind, HazardKind, Int8Array, Int64Array, Need

Pairs = frozenset[tuple[int, int]]
"""Work, as places in the order of the launches, and what has to begin only when it has ended."""
DATA_KINDS = (HazardKind.READ_AFTER_WRITE, HazardKind.WRITE_AFTER_READ, HazardKind.WRITE_AFTER_WRITE)
"""Kinds of `DataEdges`, by their code."""
NEEDS = tuple(Need)  # By their code in what `wait_needs` returns
PART_ROWS = 1 << 22
"""So many accesses to stretches of memory are put in order at once, about 400 MB."""
KNOWN_ORDERS = 1 << 25
"""So many pairs of a wait and a stream are followed through waits of third streams; beyond, what those order is not known."""
MOST_PARTS = 64
"""Of so many parts, one after the other, an array is filled that is looked at as written anew."""

_RAW, _WAR, _WAW = range(3)
NEEDED, NOT_NEEDED, _NOT_KNOWN = map(NEEDS.index, (Need.NEEDED, Need.NOT_NEEDED, Need.NOT_KNOWN))
_STRENGTHS = (-1, NOT_NEEDED, _NOT_KNOWN, NEEDED)
"""Codes of needs, -1 for none; of several waits of one span that which comes later here counts."""
_UNKNOWN = ACCESS_CERTAINTIES.index(AccessCertainty.UNKNOWN)


class Touch(NamedTuple):
    """Memory that work uses."""

    buffer: int  # number of the allocation
    begin: int  # first byte
    end: int  # byte behind the last one
    is_write: bool  # whether it is written, else read
    is_host: bool  # whether it is memory of the host


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """What each work touches, as columns of equal length in the order of the works; what follows is worked out once."""

    place: Int64Array
    """Which work, by its place in the order of the launches; shape (n_touches,), int64, ascending; no opaque work."""
    buffer: Int64Array
    """Number of the allocation; likewise."""
    begin: Int64Array
    """First byte; likewise."""
    end: Int64Array
    """Byte behind the last one; likewise."""
    is_write: BoolArray
    """Whether it is written, else read; shape (n_touches,), bool."""
    is_host: BoolArray
    """Whether it is memory of the host; likewise."""
    is_opaque: BoolArray
    """Of which work it is not known what all it touches; shape (n_works,), bool."""
    _edges: dict[int, Pairs] = field(default_factory=dict, repr=False)

    @property
    def is_known(self) -> bool:
        """Whether there is no opaque work."""
        return not self.is_opaque.any()

    @cached_property
    def touches(self) -> tuple[tuple[Touch, ...] | None, ...]:
        """The same by work; None for opaque work."""
        columns = (self.buffer, self.begin, self.end, self.is_write, self.is_host)
        all_touches = [Touch(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]
        bounds = np.searchsorted(self.place, np.arange(len(self.is_opaque) + 1)).tolist()
        slices = zip(self.is_opaque.tolist(), pairwise(bounds), strict=True)
        return tuple(None if is_opaque else tuple(all_touches[first:last]) for is_opaque, (first, last) in slices)

    def edges(self, buffers: int = 1) -> Pairs:
        """Return what the data ask for, within streams too; opaque work asks for nothing.

        With more buffers each write that replaces a whole array writes another one, of so many in turn: it stands behind what
        used the array so many versions before. Memory of the host is one: the host itself writes it.
        """
        if buffers not in self._edges:
            found = _conflicts(self if buffers == 1 else replace(self, buffer=self._in_turn(buffers)))
            pairs = [pair for before, after, *_ in found for pair in zip(before.tolist(), after.tolist(), strict=True)]
            self._edges[buffers] = frozenset(pairs)
        return self._edges[buffers]

    def _in_turn(self, buffers: int) -> Int64Array:
        """Return in which array each touch is where what is written anew is so in another array, of so many in turn."""
        turn = np.zeros(len(self.place), np.int64)
        order = np.lexsort((self.place, self.buffer))
        for own in np.split(order, 1 + np.flatnonzero(np.diff(self.buffer[order]))):
            turn[own] = _versions(self, own) % buffers
        _, array = np.unique(np.stack((self.buffer, turn)), axis=1, return_inverse=True)
        found: Int64Array = array.reshape(-1) + 1
        return found


def read_memory(trace: Trace, rows: Int64Array) -> Memory:
    """Read what some work touched.

    Parameters
    ----------
    trace
        With its accesses.
    rows : ndarray of int64, shape (n_works,)
        The work, in the order of its launches.
    """
    told = trace.accesses
    at = np.full(len(trace), -1, np.int64)
    at[rows] = np.arange(len(rows))
    place, is_opaque = at[told.span], np.ones(len(rows), bool)
    is_own, has_bytes = place >= 0, told.end > told.begin
    is_opaque[place[is_own]] = False
    is_opaque[place[is_own & ((told.certainty == _UNKNOWN) | ((told.buffer == 0) & has_bytes))]] = True
    kept = np.flatnonzero(is_own & has_bytes)
    kept = kept[~is_opaque[place[kept]]]
    kept = kept[np.argsort(place[kept], kind="stable")]
    columns = {name: getattr(told, name)[kept] for name in ("buffer", "begin", "end", "is_write", "is_host")}
    return Memory(place=place[kept], **columns, is_opaque=is_opaque)


def _versions(memory: Memory, own: Int64Array) -> Int64Array:
    """Return of which version of one array each of its touches is: a new one is written over all that was ever used of it."""
    version, number = np.zeros(len(own), np.int64), 0
    used: list[tuple[int, int]] = []
    for first, last, is_fill in _fills(memory, own):
        rows = own[first:last]
        spans = zip(memory.begin[rows].tolist(), memory.end[rows].tolist(), strict=True)
        written = _joined(spans)
        number += is_fill and _joined([*used, *written]) == written
        version[first:last] = number
        used = _joined([*used, *written])
    return version


def _fills(memory: Memory, own: Int64Array) -> Iterator[tuple[int, int, bool]]:
    """Cut the touches of one array into writes that follow each other, each of another part, and what else one work does."""
    begins = [0, *(1 + np.flatnonzero(np.diff(memory.place[own]))).tolist(), len(own)]
    begin, end = memory.begin[own].tolist(), memory.end[own].tolist()
    only_writes = (memory.is_write & ~memory.is_host)[own].tolist()
    first, is_fill = 0, False
    for start, stop in pairwise(begins):
        writes = all(only_writes[start:stop])
        goes_on = is_fill and writes and start - first < MOST_PARTS
        goes_on &= not any(begin[a] < end[b] and begin[b] < end[a] for a in range(first, start) for b in range(start, stop))
        if not goes_on and start:
            yield first, start, is_fill
        if not goes_on:
            first, is_fill = start, writes
    yield first, len(own), is_fill


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches that meet.

    Examples
    --------
    >>> _joined([(4, 8), (0, 4), (9, 10)])
    [(0, 8), (9, 10)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


class DataEdges(NamedTuple):
    """Work that has to come behind work of other streams because of data, as columns of equal length.

    Of all work of a stream that has to be in front for one reason there is the last: its stream orders the others.
    """

    before: Int64Array
    """Row of the work that has to end first; shape (n_edges,), int64."""
    after: Int64Array
    """Row of the work that comes behind it; shape (n_edges,), int64, ascending in the order of the launches."""
    kind: Int64Array
    """Code of the reason, by `DATA_KINDS`; shape (n_edges,), int64."""
    buffer: Int64Array
    """The memory, as `Accesses.buffer` numbers it; shape (n_edges,), int64."""


class _Order(NamedTuple):
    """The work of a trace in the order of its launches."""

    row: Int64Array  # Rows of the trace; shape (n_works,)
    place: Int64Array  # Place in that order by row, -1 for what is no work; shape (n_spans,)
    lane: Int64Array  # By place; shape (n_works,)
    is_opaque: BoolArray  # By place; shape (n_works,)


_Columns = tuple[Int64Array, ...]
"""Conflicts: places of the work before and behind, code of the reason, buffer."""


def _order(trace: Trace) -> tuple[_Order, _Columns]:
    """Return the work of a trace in order, and what data order between streams: by places, as columns."""
    row = in_launch_order(trace, np.flatnonzero(is_work(trace)))
    memory, place = read_memory(trace, row), np.full(len(trace), -1, np.int64)
    place[row] = np.arange(len(row))
    order = _Order(row, place, trace.lane[row].astype(np.int64), memory.is_opaque)
    parts = [*_conflicts(memory, order.lane)] or [(np.empty(0, np.int64),) * 4]
    return order, _reduced(order.lane, *map(np.concatenate, zip(*parts, strict=True)))


def data_edges(trace: Trace) -> DataEdges:
    """Find what data order between streams.

    Parameters
    ----------
    trace
        The spans, with what they read and wrote. Opaque work has no edge.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from gpustreamlab.model import Accesses
    >>> trace = Trace.from_columns(start_ns=[0, 5], end_ns=[5, 9], stream=["a", "b"], kind="kernel")
    >>> touched = {"span": [0, 1], "buffer": [1, 1], "begin": [0, 4], "end": [8, 8], "is_write": [True, False]}
    >>> edges = data_edges(replace(trace, accesses=Accesses(**touched, is_host=[False] * 2, certainty=[0, 0])))
    >>> edges.before.tolist(), edges.after.tolist(), DATA_KINDS[edges.kind[0]].value
    ([0], [1], 'read-after-write')
    """
    order, (before, after, kind, buffer) = _order(trace)
    return DataEdges(order.row[before], order.row[after], kind, buffer)


def _reduced(lanes: Int64Array, before: Int64Array, after: Int64Array, *reason: Int64Array) -> _Columns:
    """Return of the conflicts of one reason the last of each stream that the same work comes behind."""
    lane = lanes[before]
    rank = np.lexsort((before, lane, *reason, after))
    columns = [column[rank] for column in (before, after, *reason)]
    keys = np.stack((lane[rank], *columns[1:]))
    is_last = np.append((np.diff(keys) != 0).any(axis=0), True)[: len(rank)]
    return tuple(column[is_last] for column in columns)


def _conflicts(memory: Memory, lane: Int64Array | None = None) -> Iterator[_Columns]:
    """Yield conflicts, of some stretches of memory at a time, those between streams where lanes are given; some twice."""
    if not len(memory.place):
        return
    place, work_count = memory.place, len(memory.is_opaque)
    # In the order of the launches; of one work reads come first.
    code = 2 * place + memory.is_write
    first, last, stretch_count = _stretches(memory)
    count = np.zeros(stretch_count + 1, np.int64)
    np.add.at(count, first, 1)
    np.add.at(count, last, -1)
    rows = np.cumsum(np.cumsum(count))  # touches of all stretches up to each
    bounds = np.unique((0, *np.searchsorted(rows, np.arange(PART_ROWS, rows[-1], PART_ROWS)).tolist(), stretch_count))
    for begin, end in pairwise(bounds.tolist()):
        inside = np.flatnonzero((first < end) & (last > begin))
        least = np.maximum(first[inside], begin)
        count = (np.minimum(last[inside], end) - least).astype(np.intp, copy=False)
        source = np.repeat(inside, count)
        stretch = np.arange(len(source)) + np.repeat(least - np.cumsum(count) + count, count)
        keys = (stretch - begin) * (2 * work_count) + code[source]
        rank = np.argsort(keys, kind="stable")
        rank = rank[np.append(True, np.diff(keys[rank]) != 0)[: len(rank)]]
        source, stretch = source[rank], stretch[rank]
        for ahead, behind, kind in _neighbours(stretch, memory.is_write[source]):
            before, after, buffer = place[source[ahead]], place[source[behind]], memory.buffer[source[ahead]]
            is_told = before != after if lane is None else lane[before] != lane[after]
            told = (before[is_told], after[is_told], kind[is_told], buffer[is_told])
            yield told if lane is None else _reduced(lane, *told)


def _stretches(memory: Memory) -> tuple[Int64Array, Int64Array, int]:
    """Cut memory where any touch begins or ends; return each one's first stretch, that behind its last, and how many."""
    buffers, points = np.concatenate((memory.buffer,) * 2), np.concatenate((memory.begin, memory.end))
    order = np.lexsort((points, buffers))
    is_new = np.append(True, (np.diff(buffers[order]) != 0) | (np.diff(points[order]) != 0))
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    first, last = np.split(number, 2)
    return first, last, int(is_new.sum())


def _neighbours(stretch: Int64Array, is_write: BoolArray) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
    """Yield of ordered accesses which one comes behind which, and why: the last write before each, the next behind a read."""
    at = np.arange(len(stretch))
    previous = np.append(-1, np.maximum.accumulate(np.where(is_write, at, -1)))[:-1]
    after = np.flatnonzero((previous >= 0) & (stretch[previous] == stretch))
    yield previous[after], after, np.where(is_write[after], _WAW, _RAW)
    following = np.append(np.minimum.accumulate(np.where(is_write, at, len(at))[::-1])[::-1], len(at))[1:]
    before = np.flatnonzero(~is_write & (following < len(at)))
    before = before[stretch[following[before]] == stretch[before]]
    yield before, following[before], np.full(len(before), _WAR)


class WaitNeeds(NamedTuple):
    """Whether data need the waits of a trace, and which memory they are for."""

    need: Int8Array
    """Of each edge the code of the `Need` of its wait, by `NEEDS`; -1 for edges of other kinds; shape (n_edges,), int8."""
    edge: Int64Array
    """Needed waits, by their places among the edges, one for each buffer; shape (n_uses,), int64, ascending."""
    buffer: Int64Array
    """The buffer, as `Accesses.buffer` numbers it; shape (n_uses,), int64. A wait that is needed by way of third streams has it
    with the last wait on that way."""

    def by_row(self, trace: Trace) -> tuple[Int8Array, list[str]]:
        """Return what the waits of each span are, the strongest of several, -1 for none; and for which buffers; (n_spans,)."""
        strength, target = np.zeros(len(trace), np.int8), trace.edges.target
        waits = np.flatnonzero(self.need >= 0)
        np.maximum.at(strength, target[waits], np.argsort(_STRENGTHS[1:])[self.need[waits]].astype(np.int8) + 1)
        buffers: dict[int, dict[int, None]] = {}
        for row, buffer in zip(target[self.edge].tolist(), self.buffer.tolist(), strict=True):
            buffers.setdefault(row, {})[buffer] = None
        texts = [""] * len(trace)
        for row, some in buffers.items():
            texts[row] = ", ".join(map(str, sorted(some)))
        return np.array(_STRENGTHS, np.int8)[strength], texts


def wait_needs(trace: Trace) -> WaitNeeds:
    """Tell of each edge of a trace whether data need it.

    Parameters
    ----------
    trace
        The spans, with their edges and accesses.

    Notes
    -----
    Orders of the host (calls that block, or that come later) are not asked: a wait is needed where data would be without an
    order but for that. Of waits of one stream for another that can stand for each other, the fewest count as needed, and those
    that wait for less. Between ranges a wait is what the waits of the work in them are.

    Examples
    --------
    >>> wait_needs(Trace.from_columns(start_ns=[0], end_ns=[5], stream=["a"])).need.tolist()
    []
    """
    found, none = np.full(len(trace.edges), -1, np.int8), np.empty(0, np.int64)
    waits = np.flatnonzero(trace.edges.kind == EDGE_KINDS.index(EdgeKind.WAIT))
    found[waits] = _NOT_KNOWN
    if not len(waits) or not len(trace.accesses):
        return WaitNeeds(found, none, none)
    order, conflicts = _order(trace)
    source, target = order.place[trace.edges.source[waits]], order.place[trace.edges.target[waits]]
    of_work = (source >= 0) & (target >= 0)
    if not of_work.any():
        return WaitNeeds(found, none, none)
    own = waits[of_work]
    found[own], edge, buffer = _needs_of(order, conflicts, source[of_work], target[of_work])
    found[waits[~of_work]] = _needs_of_ranges(trace, own, waits[~of_work], found)
    return WaitNeeds(found, own[edge], buffer)


def _needs_of(
    order: _Order, conflicts: _Columns, source: Int64Array, target: Int64Array
) -> tuple[Int8Array, Int64Array, Int64Array]:
    """Return what each wait between works is, given by places (what has to end, what waits), and which needs which buffer."""
    waits = _Waits.of(order, source, target)
    need = np.full(len(waits.source), NOT_NEEDED, np.int8)
    before, after, _, buffer = conflicts
    least, most = waits.find(order.lane[before], before, order.lane[after], after)
    near, far = np.flatnonzero(least <= most), np.flatnonzero(least > most)
    chosen = _fewest(least[near], most[near], len(need))
    need[chosen] = NEEDED
    uses = np.full(len(before), -1, np.int64)
    uses[near] = chosen[np.searchsorted(chosen, least[near])]
    if len(far) or order.is_opaque.any():
        if len(need) * (int(order.lane.max()) + 1) > KNOWN_ORDERS:
            need[need == NOT_NEEDED] = _NOT_KNOWN
        else:
            paths = _Paths(order, waits)
            uses[far], on_the_way = paths.of_data(before[far], after[far])
            need[on_the_way] = NEEDED
            maybe = paths.of_opaque()
            need[maybe[need[maybe] == NOT_NEEDED]] = _NOT_KNOWN
    found = np.full(len(source), NOT_NEEDED, np.int8)
    found[waits.edge] = need
    found[source >= target] = _NOT_KNOWN  # launched before what it waited for: the order is not known
    pairs = np.unique(np.stack((waits.edge[uses[uses >= 0]], buffer[uses >= 0])), axis=1)
    return found, pairs[0], pairs[1]


class _Waits(NamedTuple):
    """Waits of one stream for another that order more than those before them; by streams, then as they follow each other."""

    source: Int64Array  # Place of the last work that has to end; shape (n_waits,), ascending within two streams
    target: Int64Array  # Place of the first work that waits; likewise
    source_lane: Int64Array
    target_lane: Int64Array
    edge: Int64Array  # Which of the edges each is
    size: tuple[int, int]  # How many lanes, and how much work there is

    @classmethod
    def of(cls, order: _Order, source: Int64Array, target: Int64Array) -> _Waits:
        """Return them of all waits, given by places."""
        size = int(order.lane.max(initial=0)) + 1, len(order.row)
        lanes = order.lane[source] * size[0] + order.lane[target]
        rank = np.lexsort((source, target, lanes))
        rank = rank[(source[rank] < target[rank]) & (order.lane[source[rank]] != order.lane[target[rank]])]
        keys = lanes[rank] * size[1] + source[rank]
        edge = rank[np.append(True, keys[1:] > np.maximum.accumulate(keys)[:-1])[: len(rank)]]
        source, target = source[edge], target[edge]
        return cls(source, target, order.lane[source], order.lane[target], edge, size)

    def find(
        self, source_lane: Int64Array, source: Int64Array, target_lane: Int64Array, target: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the first and the last wait between two streams that orders works; the last is before the first for none."""
        lanes, lane_count, work_count = self.source_lane * self.size[0] + self.target_lane, *self.size
        asked = (source_lane * lane_count + target_lane) * work_count
        first = np.searchsorted(lanes * work_count + self.source, asked + source)
        last = np.searchsorted(lanes * work_count + self.target, asked + target, side="right") - 1
        return first, last


def _fewest(first: Int64Array, last: Int64Array, count: int) -> Int64Array:
    """Return the fewest of so many numbers so that there is one from each first to each last; low ones, ascending."""
    most = np.full(count, count)
    np.minimum.at(most, first, last)
    begins = np.flatnonzero(most < count)[::-1]
    taken: list[int] = []
    for begin, end in zip(begins.tolist(), most[begins].tolist(), strict=True):
        if not taken or taken[-1] > end:
            taken.append(begin)
    return np.array(taken[::-1], np.int64)


class _Paths:
    """What each stream knows of the others once it has waited, also through third ones, and by which waits."""

    def __init__(self, order: _Order, waits: _Waits) -> None:
        self._order, self._waits = order, waits
        count, lane_count = len(waits.edge), waits.size[0]
        self._known = np.full((count, lane_count), -1, np.int64)
        """Place of the last work of each lane that a wait orders, by the wait."""
        self._by = np.full((count, lane_count), -1, np.int32)
        """The wait of the same stream that told of that first."""
        self._behind = np.full(count, -1, np.int64)
        """The last wait of a wait's source stream that was in front of what it waits for, or -1."""
        self._of_lane: list[list[int]] = [[] for _ in range(lane_count)]
        """Waits by the lane that waits, in their order."""
        self._learn()

    def _learn(self) -> None:
        waits, known, by = self._waits, self._known, self._by
        targets: list[list[int]] = [[] for _ in self._of_lane]
        ordered = np.argsort(waits.target, kind="stable")
        columns = (
            ordered,
            waits.source[ordered],
            waits.target[ordered],
            waits.source_lane[ordered],
            waits.target_lane[ordered],
        )
        for number, source, target, there, here in zip(*(column.tolist() for column in columns), strict=True):
            if self._of_lane[here]:
                before = self._of_lane[here][-1]
                known[number], by[number] = known[before], by[before]
            place = bisect_right(targets[there], source) - 1
            told = known[self._of_lane[there][place]].copy() if place >= 0 else np.full(len(self._of_lane), -1)
            self._behind[number] = self._of_lane[there][place] if place >= 0 else -1
            told[there] = source
            is_new = told > known[number]
            known[number, is_new], by[number, is_new] = told[is_new], number
            self._of_lane[here].append(number)
            targets[here].append(target)

    def of_data(self, before: Int64Array, after: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return by which wait each work comes behind that of another lane, by places; -1 for none; and all on the way."""
        lanes, place = distinct(self._order.lane[before] * len(self._of_lane) + self._order.lane[after])
        last, found = np.full(len(before), -1, np.int64), [np.empty(0, np.int64)]
        for code, pair in enumerate(lanes.tolist()):
            there, here = divmod(pair, len(self._of_lane))
            mine = np.array(self._of_lane[here], np.int64)
            own = np.flatnonzero(place == code)
            first = np.searchsorted(self._known[mine, there], before[own])
            is_in_time = first < np.searchsorted(self._waits.target[mine], after[own], side="right")
            last[own[is_in_time]] = mine[first[is_in_time]]
            found.append(self._back(np.unique(mine[first[is_in_time]]), there))
        return last, np.unique(np.concatenate(found))

    def of_opaque(self) -> Int64Array:
        """Return the waits by which anything may come behind opaque work, or that behind anything."""
        opaque = np.flatnonzero(self._order.is_opaque)
        lane, found = self._order.lane[opaque], [np.empty(0, np.int64)]
        for here, numbers in enumerate(self._of_lane):
            mine = np.array(numbers, np.int64)
            last = np.searchsorted(self._waits.target[mine], opaque[lane == here], side="right") - 1
            behind = mine[np.unique(last[last >= 0])]
            for there in np.flatnonzero((self._known[mine] >= 0).any(axis=0)).tolist() if numbers else ():
                first = np.unique(np.searchsorted(self._known[mine, there], opaque[lane == there]))
                ahead = mine[first[first < len(mine)]]
                found.append(self._back(np.union1d(behind[self._known[behind, there] >= 0], ahead), there))
        return np.unique(np.concatenate(found))

    def _back(self, numbers: Int64Array, lane: int) -> Int64Array:
        """Return the waits through which waits know of a lane."""
        found = [np.empty(0, np.int64)]
        while len(numbers):
            numbers = np.unique(self._by[numbers, lane]).astype(np.int64)
            found.append(numbers)
            numbers = self._behind[numbers[self._waits.source_lane[numbers] != lane]]
        return np.concatenate(found)


def _needs_of_ranges(trace: Trace, of_work: Int64Array, of_ranges: Int64Array, need: Int8Array) -> Int8Array:
    """Return what waits between ranges are: the strongest of those between the same streams whose work waits in the range."""
    rank = np.array([2, 0, 1])  # of the needs, by their code
    source, target = trace.edges.source, trace.edges.target
    lanes = trace.lane[source].astype(np.int64) * len(trace.lanes) + trace.lane[target]
    known = of_work[np.lexsort((trace.start_ns[target[of_work]], lanes[of_work]))]
    found = np.full(len(of_ranges), _NOT_KNOWN, np.int8)
    starts_ns = trace.start_ns[target[known]]
    for place, edge in enumerate(of_ranges.tolist()):
        begin, end = np.searchsorted(lanes[known], (lanes[edge], lanes[edge] + 1))
        row = target[edge]
        first, last = begin + np.searchsorted(starts_ns[begin:end], (trace.start_ns[row], trace.end_ns[row]))
        if first < last:
            found[place] = np.argsort(rank)[rank[need[known[first:last]]].max()]
    return found


# What a program needs


def across(program: Program, pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Leave out pairs of one stream, which keeps the order of its work anyway."""
    lanes = [work.lane for work in program.works]
    return frozenset((before, after) for before, after in pairs if lanes[before] != lanes[after])


def kept_for_opaque(program: Program, memory: Memory, pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Return what remains of some orders between streams where only work of which it is not known what it touches keeps them.

    Opaque work stays behind all that was in front of it, and in front of all that was behind it, also by way of other streams.
    """
    if memory.is_known:
        return frozenset()
    clocks = _clocks(program.change(waits=program.waits | frozenset(pairs)))
    opaque: dict[int, list[int]] = {}
    for place in np.flatnonzero(memory.is_opaque).tolist():
        opaque.setdefault(program.works[place].home, []).append(place)
    found = set()
    known = [[-1] * len(program.seats) for _ in program.seats]  # by lane: up to where it has waited for each other one
    for place, work in enumerate(program.works):
        clock, before = clocks[place], known[work.home]
        for lane, last in enumerate(clock):
            if lane == work.home or last <= before[lane]:
                continue
            own = opaque.get(lane, ())
            at = bisect_right(own, last) - 1
            if at >= 0 and own[at] > before[lane]:
                found.add((own[at], place))
        known[work.home] = clock
    return frozenset(found) | _behind_opaque(program, memory, clocks)


def _behind_opaque(program: Program, memory: Memory, clocks: Sequence[Sequence[int]]) -> Pairs:
    """Return for opaque work the last of each stream in front of it, where that is not in front of opaque work before it."""
    last: dict[int, Sequence[int]] = {}
    found = set()
    for place in np.flatnonzero(memory.is_opaque).tolist():
        work = program.works[place]
        before = last.get(work.home, [-1] * len(program.seats))
        found |= {(done, place) for lane, done in enumerate(clocks[place]) if lane != work.home and done > before[lane]}
        last[work.home] = clocks[place]
    return frozenset(found)


def host_orders(program: Program, calls: Iterable[int]) -> Pairs:
    """Return the orders between streams that some waits of the host gave: all launched behind it follows what it awaited."""
    chosen = set(calls)
    found = set()
    pending: dict[int, dict[int, int]] = {}  # By lane that has launched nothing since: the last awaited work of each lane
    homes = {work.home for work in program.works}
    for number, call in enumerate(program.calls):
        for place in call.works:
            home = program.works[place].home
            found |= {(before, place) for lane, before in pending.pop(home, {}).items() if lane != home}
        if number in chosen:
            for before in call.awaits:
                for home in homes:
                    own = pending.setdefault(home, {})
                    lane = program.works[before].home
                    own[lane] = max(before, own.get(lane, -1))
    return frozenset(found)


def needed_calls(program: Program, memory: Memory) -> frozenset[int]:
    """Return which waits of the host it may need, as far as it can be told; by their places in `Program.calls`.

    Memory of the host that was used before the wait is used again behind it: the host has written or read it meanwhile, why
    else copy it again. Or the host reads a result, and then copies memory to the device that nothing had used so far: it may be
    made of that result. A copy of which it is not known what it touches may use any. Of several waits that would do the first
    is kept.
    """
    next_use = _next_uses(memory)
    unknown = [place for place in np.flatnonzero(memory.is_opaque).tolist() if program.works[place].kind != KERNEL]
    next_use |= dict.fromkeys(unknown, len(program.works) - 1)
    last_unknown = max(unknown, default=-1)
    watched: dict[int, list[int]] = {}
    for place in sorted(next_use):
        watched.setdefault(program.works[place].home, []).append(place)
    clocks = _clocks(program)
    done = [-1] * len(program.seats)
    launched, found = -1, set()
    for number, call in enumerate(program.calls):
        launched = max([launched, *call.works])
        if not call.awaits or launched == len(program.works) - 1:
            continue
        ahead = [max(column) for column in zip(*(clocks[place] for place in call.awaits), strict=True)]
        for lane, places in watched.items():
            newly = places[bisect_right(places, done[lane]) : bisect_right(places, ahead[lane])]
            if any(next_use[place] > launched for place in newly):
                found.add(number)
        done = [max(pair) for pair in zip(done, ahead, strict=True)]
        if last_unknown > launched:
            found.add(number)
    return frozenset(found)


def _next_uses(memory: Memory) -> dict[int, int]:
    """Return for work that uses memory of the host which work next uses some of it, or what may be made of it; the last."""
    kept = memory.is_host
    columns = {name: getattr(memory, name)[kept] for name in ("place", "buffer", "begin", "end", "is_host")}
    used = Memory(**columns, is_write=kept[kept], is_opaque=memory.is_opaque)  # whoever uses it next comes behind, as a write
    found: dict[int, int] = {}
    for before, after in used.edges():
        found[before] = max(after, found.get(before, -1))
    newest = np.maximum.accumulate(memory.buffer)  # numbers grow as memory is allocated, or first seen
    uploads = kept & ~memory.is_write
    place, buffer = memory.place[uploads], memory.buffer[uploads]
    for row in np.flatnonzero(kept & memory.is_write).tolist():
        before = int(memory.place[row])
        is_made = (place > before) & (buffer > newest[np.searchsorted(memory.place, before, side="right") - 1])
        found[before] = max(found.get(before, -1), *place[is_made][-1:].tolist(), -1)
    return {before: after for before, after in found.items() if after >= 0}


def _clocks(program: Program) -> list[list[int]]:
    """Return for each work up to which work of each stream all has ended when it has; shape (n_works, n_streams)."""
    before: dict[int, list[int]] = {}
    for source, target in program.waits:
        before.setdefault(target, []).append(source)
    last: list[list[int]] = [[-1] * len(program.seats) for _ in program.seats]
    clocks: list[list[int]] = []
    for place, work in enumerate(program.works):
        clock = list(last[work.home])
        for source in before.get(place, ()):
            clock = [max(pair) for pair in zip(clock, clocks[source], strict=True)]
        clock[work.home] = place
        clocks.append(clock)
        last[work.home] = clock
    return clocks
