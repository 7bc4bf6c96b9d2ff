"""Which orders the data ask for: work that uses what other work wrote, or writes what it used; and which waits that needs.

Memory is looked at byte by byte: a read comes behind the last write of each byte, a write behind that and behind all reads
since. What stood before is in front of these in turn. All accesses to one stretch of bytes that none of them cuts are put in
the order in which their work was enqueued; then the last write before each, and the next one behind, are found for all at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import distinct, is_work
from gpustreamlab.model import ACCESS_CERTAINTIES, EDGE_KINDS, Trace
from gpustreamlab.typing import AccessCertainty, BoolArray, EdgeKind, HazardKind, Int8Array, Int64Array, Need

DATA_KINDS = (HazardKind.READ_AFTER_WRITE, HazardKind.WRITE_AFTER_READ, HazardKind.WRITE_AFTER_WRITE)
"""Kinds of `DataEdges`, by their code."""
NEEDS = tuple(Need)  # By their code in what `wait_needs` returns
PART_ROWS = 1 << 22
"""So many accesses to stretches of memory are put in order at once, about 400 MB."""
KNOWN_ORDERS = 1 << 25
"""So many pairs of a wait and a stream are followed through waits of third streams; beyond, what those order is not known."""

_RAW, _WAR, _WAW = range(3)
_NEEDED, _NOT_NEEDED, _NOT_KNOWN = map(NEEDS.index, (Need.NEEDED, Need.NOT_NEEDED, Need.NOT_KNOWN))
_UNKNOWN = ACCESS_CERTAINTIES.index(AccessCertainty.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataEdges:
    """Work that has to come behind work of other streams because of data, as columns of equal length.

    Of all work of a stream that has to be in front for one reason there is the last: its stream orders the others.
    """

    before: Int64Array
    """Row of the work that has to end first; shape (n_edges,), int64."""
    after: Int64Array
    """Row of the work that comes behind it; shape (n_edges,), int64, ascending in the order of the launches."""
    kind: Int8Array
    """Code of the reason, by `DATA_KINDS`; shape (n_edges,), int8."""
    buffer: Int64Array
    """The memory, as `Accesses.buffer` numbers it; shape (n_edges,), int64."""
    is_certain: BoolArray
    """Whether it is known that both use the same bytes; shape (n_edges,), bool."""

    def __len__(self) -> int:
        return len(self.before)


class WorkOrder(NamedTuple):
    """The work of a trace in the order in which it was enqueued."""

    row: Int64Array  # Rows of the trace; shape (n_works,)
    place: Int64Array  # Place in that order by row, -1 for what is no work; shape (n_spans,)
    lane: Int64Array  # By place; shape (n_works,)
    is_opaque: BoolArray  # Whether it is not known what all it touches, by place; shape (n_works,)


def work_order(trace: Trace) -> WorkOrder:
    """Return the kernels, copies and fills of a trace in the order of their launches; nodes of a graph as it was captured."""
    row, none = np.flatnonzero(is_work(trace)), np.zeros(len(trace), np.int64)
    detail = trace.extra.get("detail", none - 1)[row]
    node = np.array([*(one.node for one in trace.details), -1], np.int64)[detail]
    call = trace.extra.get("correlation", none)[row]
    row = row[np.lexsort((trace.start_ns[row], node, call, trace.queued_ns[row]))]
    place = np.full(len(trace), -1, np.int64)
    place[row] = np.arange(len(row))
    is_known, touched = np.zeros(len(row), bool), place[trace.accesses.span]
    is_known[touched] = True
    is_known[touched[(trace.accesses.buffer == 0) & (trace.accesses.end > trace.accesses.begin)]] = False
    return WorkOrder(row, place, trace.lane[row].astype(np.int64), ~is_known)


def data_edges(trace: Trace, order: WorkOrder | None = None) -> DataEdges:
    """Find what data order between streams.

    Parameters
    ----------
    trace
        The spans, with what they read and wrote. Work of which nothing is known has no edge.
    order
        What `work_order` returns of it, where that is known already.

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
    order = work_order(trace) if order is None else order
    parts = [*_conflicts(trace, order)] or [(np.empty(0, np.int64),) * 5]
    before, after, kind, buffer, is_certain = _reduced(order, *map(np.concatenate, zip(*parts, strict=True)))
    return DataEdges(
        before=order.row[before],
        after=order.row[after],
        kind=kind.astype(np.int8),
        buffer=buffer,
        is_certain=is_certain.astype(bool),
    )


_Columns = tuple[Int64Array, ...]
"""Conflicts: places of the work before and behind, code of the reason, buffer, whether it is certain."""


def _reduced(order: WorkOrder, before: Int64Array, after: Int64Array, *reason: Int64Array) -> _Columns:
    """Return of the conflicts of one reason the last of each stream that the same work comes behind."""
    lane = order.lane[before]
    rank = np.lexsort((before, lane, *reason, after))
    columns = [column[rank] for column in (before, after, *reason)]
    keys = np.stack((lane[rank], *columns[1:]))
    is_last = np.append((np.diff(keys) != 0).any(axis=0), True)[: len(rank)]
    return tuple(column[is_last] for column in columns)


def _conflicts(trace: Trace, order: WorkOrder) -> Iterator[_Columns]:
    """Yield conflicts between streams, of some stretches of memory at a time; one may come more than once."""
    told = trace.accesses
    used = np.flatnonzero((told.buffer > 0) & (told.end > told.begin) & (order.place[told.span] >= 0))
    if not len(used):
        return
    place, is_sure = order.place[told.span[used]], told.certainty[used] != _UNKNOWN
    # In the order of the launches; of one work reads come first. Its last access of a kind, a certain one, stands for all.
    code = 4 * place + 2 * told.is_write[used] + is_sure
    first, last, buffer_of = _stretches(told.buffer[used], told.begin[used], told.end[used])
    count = np.zeros(len(buffer_of) + 1, np.int64)
    np.add.at(count, first, 1)
    np.add.at(count, last, -1)
    rows = np.cumsum(np.cumsum(count))  # accesses to all stretches up to each
    bounds = np.unique((0, *np.searchsorted(rows, np.arange(PART_ROWS, rows[-1], PART_ROWS)).tolist(), len(buffer_of)))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        inside = np.flatnonzero((first < end) & (last > begin))
        least = np.maximum(first[inside], begin)
        count = np.minimum(last[inside], end) - least
        source = np.repeat(inside, count)
        stretch = np.arange(len(source)) + np.repeat(least - np.cumsum(count) + count, count)
        keys = (stretch - begin) * (4 * len(order.row)) + code[source]
        rank = np.argsort(keys, kind="stable")
        rank = rank[np.append(np.diff(keys[rank] >> 1) != 0, True)]
        source, stretch = source[rank], stretch[rank]
        for ahead, behind, kinds in _neighbours(stretch, code[source] & 2 > 0):
            crosses = order.lane[place[source[ahead]]] != order.lane[place[source[behind]]]
            before, after = source[ahead[crosses]], source[behind[crosses]]
            sure = (is_sure[before] & is_sure[after]).astype(np.int64)
            yield _reduced(order, place[before], place[after], kinds[crosses], told.buffer[used[before]], sure)


def _stretches(buffer: Int64Array, begin: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Cut memory where any access begins or ends; return each access's first stretch, that behind its last, and all buffers."""
    buffers, points = np.concatenate((buffer, buffer)), np.concatenate((begin, end))
    order = np.lexsort((points, buffers))
    is_new = np.append(True, (np.diff(buffers[order]) != 0) | (np.diff(points[order]) != 0))
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return number[: len(begin)], number[len(begin) :], buffers[order][is_new]


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


def wait_needs(trace: Trace, edges: DataEdges | None = None, order: WorkOrder | None = None) -> Int8Array:
    """Tell of each edge of a trace whether data need it.

    Parameters
    ----------
    trace
        The spans, with their edges and accesses.
    edges, order
        What `data_edges` and `work_order` return of it, where that is known already.

    Returns
    -------
    ndarray of int8, shape (n_edges,)
        The code of the `Need` of each wait, by `NEEDS`; -1 for edges of other kinds.

    Notes
    -----
    Orders of the host (calls that block, or that come later) are not asked: a wait is needed where data would be without an
    order but for that. Of waits of one stream for another that can stand for each other, the fewest count as needed, and those
    that wait for less. Between ranges a wait is what the waits of the work in them are.
    """
    order = work_order(trace) if order is None else order
    edges = data_edges(trace, order) if edges is None else edges
    found = np.full(len(trace.edges), -1, np.int8)
    waits = np.flatnonzero(trace.edges.kind == EDGE_KINDS.index(EdgeKind.WAIT))
    if not len(waits):
        return found
    source, target = order.place[trace.edges.source[waits]], order.place[trace.edges.target[waits]]
    of_work = (source >= 0) & (target >= 0)
    found[waits] = _NOT_KNOWN
    if len(trace.accesses) and of_work.any():
        found[waits[of_work]] = _needs_of(order, edges, source[of_work], target[of_work])
        found[waits[~of_work]] = _needs_of_ranges(trace, waits[of_work], waits[~of_work], found)
    return found


def _needs_of(order: WorkOrder, edges: DataEdges, source: Int64Array, target: Int64Array) -> Int8Array:
    """Return what each wait between works is, given by places: what has to end, and what waits."""
    waits = _Waits.of(order, source, target)
    need = np.full(len(waits.source), _NOT_NEEDED, np.int8)
    before, after = order.place[edges.before], order.place[edges.after]
    least, most = waits.find(order.lane[before], before, order.lane[after], after)
    is_far = least > most
    for is_meant, code in ((edges.is_certain, _NEEDED), (~edges.is_certain, _NOT_KNOWN)):
        near = np.flatnonzero(is_meant & ~is_far)
        need[_fewest(least[near], most[near], need == _NEEDED)] = code
    if is_far.any() or order.is_opaque.any():
        if len(need) * (int(order.lane.max()) + 1) > KNOWN_ORDERS:
            need[need == _NOT_NEEDED] = _NOT_KNOWN
        else:
            paths = _Paths(order, waits)
            sure, guessed = (np.flatnonzero(is_far & is_meant) for is_meant in (edges.is_certain, ~edges.is_certain))
            need[paths.of_data(before[sure], after[sure])] = _NEEDED
            maybe = np.union1d(paths.of_data(before[guessed], after[guessed]), paths.of_opaque())
            need[maybe[need[maybe] == _NOT_NEEDED]] = _NOT_KNOWN
    found = np.full(len(source), _NOT_NEEDED, np.int8)
    found[waits.edge] = need
    found[source >= target] = _NOT_KNOWN  # launched before what it waited for: the order is not known
    return found


class _Waits(NamedTuple):
    """Waits of one stream for another that order more than those before them; by streams, then as they follow each other."""

    source: Int64Array  # Place of the last work that has to end; shape (n_waits,), ascending within two streams
    target: Int64Array  # Place of the first work that waits; likewise
    source_lane: Int64Array
    target_lane: Int64Array
    edge: Int64Array  # Which of the edges each is
    size: tuple[int, int]  # How many lanes, and how much work there is

    @classmethod
    def of(cls, order: WorkOrder, source: Int64Array, target: Int64Array) -> _Waits:
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


def _fewest(first: Int64Array, last: Int64Array, has: BoolArray) -> Int64Array:
    """Return the fewest numbers, beside those that one has, so that there is one from each first to each last; low ones."""
    most = np.full(len(has), len(has))
    np.minimum.at(most, first, last)
    nearest = np.minimum.accumulate(np.where(has, np.arange(len(has)), len(has))[::-1])[::-1]
    begins = np.flatnonzero(most < np.minimum(nearest, len(has)))[::-1]
    taken: list[int] = []
    for begin, end in zip(begins.tolist(), most[begins].tolist(), strict=True):
        if not taken or taken[-1] > end:
            taken.append(begin)
    return np.array(taken, np.int64)


class _Paths:
    """What each stream knows of the others once it has waited, also through third ones, and by which waits."""

    def __init__(self, order: WorkOrder, waits: _Waits) -> None:
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

    def of_data(self, before: Int64Array, after: Int64Array) -> Int64Array:
        """Return the waits by which works come behind others of other lanes, given by places, where they do."""
        lanes, place = distinct(self._order.lane[before] * len(self._of_lane) + self._order.lane[after])
        found = [np.empty(0, np.int64)]
        for code, pair in enumerate(lanes.tolist()):
            there, here = divmod(pair, len(self._of_lane))
            mine = np.array(self._of_lane[here], np.int64)
            own = np.flatnonzero(place == code)
            first = np.searchsorted(self._known[mine, there], before[own])
            is_in_time = first < np.searchsorted(self._waits.target[mine], after[own], side="right")
            found.append(self._back(np.unique(mine[first[is_in_time]]), there))
        return np.unique(np.concatenate(found))

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


def shared_lanes(edges: DataEdges, trace: Trace) -> frozenset[tuple[int, int]]:
    """Return the lanes of which the second uses data of the first, or writes what that uses, as indices of `Trace.lanes`."""
    pairs, _ = distinct(trace.lane[edges.before].astype(np.int64) * len(trace.lanes) + trace.lane[edges.after])
    return frozenset(divmod(pair, len(trace.lanes)) for pair in pairs.tolist())
