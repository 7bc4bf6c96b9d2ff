"""Which waits the data need: those of the streams of a trace, and those of a program in which some are left out.

A wait orders all that was in front of it, also by way of third streams: each stream knows of the others what it waited for, and
what those had waited for until then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gpustreamlab.analysis._busy import distinct
from gpustreamlab.analysis._data_order import Conflicts, Memory, Order, Pairs, order_of
from gpustreamlab.analysis._program import KERNEL, Program
from gpustreamlab.model import EDGE_KINDS, Trace
from gpustreamlab.typing import EdgeKind, Int8Array, Int64Array, Need

NEEDS = tuple(Need)  # By their code in what `wait_needs` returns
NEEDED, NOT_NEEDED, _NOT_KNOWN = map(NEEDS.index, (Need.NEEDED, Need.NOT_NEEDED, Need.NOT_KNOWN))
_STRENGTHS = (-1, NOT_NEEDED, _NOT_KNOWN, NEEDED)
"""Codes of needs, -1 for none; of several waits of one span that which comes later here counts."""
KNOWN_ORDERS = 1 << 25
"""So many pairs of a wait and a stream are followed through waits of third streams; beyond, what those order is not known."""


def strongest_need(needs: Int64Array) -> int:
    """Return the code of the need of several waits that one line makes: what one of them needs, all keep."""
    return max(map(int, needs), key=_STRENGTHS.index)


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
    order, conflicts = order_of(trace)
    source, target = order.place[trace.edges.source[waits]], order.place[trace.edges.target[waits]]
    of_work = (source >= 0) & (target >= 0)
    if not of_work.any():
        return WaitNeeds(found, none, none)
    own = waits[of_work]
    found[own], edge, buffer = _needs_of(order, conflicts, source[of_work], target[of_work])
    found[waits[~of_work]] = _needs_of_ranges(trace, own, waits[~of_work], found)
    return WaitNeeds(found, own[edge], buffer)


def _needs_of(
    order: Order, conflicts: Conflicts, source: Int64Array, target: Int64Array
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
    def of(cls, order: Order, source: Int64Array, target: Int64Array, lane_count: int = 0) -> _Waits:
        """Return them of all waits, given by places; of so many lanes at least."""
        size = max(lane_count, int(order.lane.max(initial=0)) + 1), len(order.row)
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

    def __init__(self, order: Order, waits: _Waits) -> None:
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

    def clocks(self) -> Int64Array:
        """Return up to which work of each lane all has ended when each work has, by places; shape (n_works, n_lanes), int64."""
        found = np.full((len(self._order.lane), len(self._of_lane)), -1, np.int64)
        for here, numbers in enumerate(self._of_lane):
            own, mine = np.flatnonzero(self._order.lane == here), np.array(numbers, np.int64)
            last = np.searchsorted(self._waits.target[mine], own, side="right") - 1
            found[own[last >= 0]] = self._known[mine[last[last >= 0]]]
            found[own, here] = own
        return found

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
    target = trace.edges.target
    begin_ns = int(trace.start_ns.min(initial=0))
    width = int(trace.end_ns.max(initial=0)) - begin_ns + 2
    keys = (trace.lane[trace.edges.source].astype(np.int64) * len(trace.lanes) + trace.lane[target]) * width - begin_ns
    known = of_work[np.argsort((keys + trace.start_ns[target])[of_work], kind="stable")]
    starts, row = (keys + trace.start_ns[target])[known], target[of_ranges]
    first, last = (np.searchsorted(starts, keys[of_ranges] + times[row]) for times in (trace.start_ns, trace.end_ns))
    found = np.full(len(of_ranges), _NOT_KNOWN, np.int8)
    has_work = np.flatnonzero(first < last)
    # Between the first and the last of each; what is between two ranges is not asked.
    bounds = np.stack((first[has_work], last[has_work]), axis=1).reshape(-1)
    strongest = np.maximum.reduceat(np.append(rank[need[known]], 0), bounds)[::2] if len(has_work) else np.empty(0, np.int64)
    found[has_work] = np.argsort(rank)[strongest]
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
    homes = np.array([work.home for work in program.works], np.int64)
    opaque = np.flatnonzero(memory.is_opaque)
    found: list[tuple[int, int]] = []
    for home in np.unique(homes).tolist():
        own = np.flatnonzero(homes == home)
        before = np.concatenate((np.full((1, clocks.shape[1]), -1), clocks[own]))
        for lane in np.flatnonzero(before[-1] >= 0).tolist():
            if lane == home:
                continue
            # What was not known before: opaque work of the other stream, and all of it where opaque work waits.
            others = np.append(-1, opaque[homes[opaque] == lane])
            known = np.stack((before[:-1, lane], before[1:, lane]))
            last = others[np.searchsorted(others, known[1], side="right") - 1]
            is_new = last > known[0]
            found += zip(last[is_new].tolist(), own[is_new].tolist(), strict=True)
            waiting = own[memory.is_opaque[own]]
            done = np.append(-1, clocks[waiting, lane])
            is_new = done[1:] > done[:-1]
            found += zip(done[1:][is_new].tolist(), waiting[is_new].tolist(), strict=True)
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


_NEEDED_CALLS: WeakKeyDictionary[Program, tuple[Memory, frozenset[int]]] = WeakKeyDictionary()
"""What was found, and of which memory; it is asked for with each change that leaves waits out."""


def needed_calls(program: Program, memory: Memory) -> frozenset[int]:
    """Return which waits of the host it may need, as far as it can be told; by their places in `Program.calls`.

    Memory of the host that was used before the wait is used again behind it: the host has written or read it meanwhile, why
    else copy it again. Or the host reads a result, and then copies memory to the device that nothing had used so far, or other
    bytes of the allocation that has the result: they may be made of it. A copy of which it is not known what it touches may use
    any. Of several waits that would do the first is kept.
    """
    known = _NEEDED_CALLS.get(program)
    if known is None or known[0] is not memory:
        known = _NEEDED_CALLS[program] = memory, _find_needed_calls(program, memory)
    return known[1]


def _find_needed_calls(program: Program, memory: Memory) -> frozenset[int]:
    next_use = dict(memory.next_host_uses)
    unknown = [place for place in np.flatnonzero(memory.is_opaque).tolist() if program.works[place].kind != KERNEL]
    next_use |= dict.fromkeys(unknown, len(program.works) - 1)
    last_unknown = max(unknown, default=-1)
    watched: dict[int, list[int]] = {}
    for place in sorted(next_use):
        watched.setdefault(program.works[place].home, []).append(place)
    clocks = _clocks(program)
    done = np.full(clocks.shape[1], -1)
    launched, found = -1, set()
    for number, call in enumerate(program.calls):
        launched = max([launched, *call.works])
        if not call.awaits or launched == len(program.works) - 1:
            continue
        ahead = clocks[[*call.awaits]].max(axis=0)
        for lane, places in watched.items():
            newly = places[bisect_right(places, done[lane]) : bisect_right(places, ahead[lane])]
            if any(next_use[place] > launched for place in newly):
                found.add(number)
        done = np.maximum(done, ahead)
        if last_unknown > launched:
            found.add(number)
    return frozenset(found)


def _clocks(program: Program) -> Int64Array:
    """Return for each work up to which work of each stream all has ended when it has; shape (n_works, n_streams), int64."""
    place = np.arange(len(program.works))
    lane = np.array([work.home for work in program.works], np.int64)
    order = Order(place, place, lane, np.zeros(len(place), bool))
    source, target = np.array(sorted(program.waits), np.int64).reshape(-1, 2).T
    return _Paths(order, _Waits.of(order, source, target, len(program.seats))).clocks()
