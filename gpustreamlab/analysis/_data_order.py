"""Which orders the data ask for: work that uses what other work wrote, or writes what it used.

Memory is looked at byte by byte: a read comes behind the last write of each byte, a write behind that and behind all reads
since. What stood before is in front of these in turn. All accesses to one stretch of bytes that none of them cuts are put in
the order in which their work was enqueued; then the last write before each, and the next one behind, are found for all at once.
Opaque work, of which it is not known what all it touches, asks for nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import is_work
from gpustreamlab.analysis._program import in_launch_order
from gpustreamlab.model import ACCESS_CERTAINTIES, Trace
from gpustreamlab.typing import AccessCertainty, BoolArray, Int64Array

Pairs = frozenset[tuple[int, int]]
"""Work, as places in the order of the launches, and what has to begin only when it has ended."""
PART_ROWS = 1 << 22
"""So many accesses to stretches of memory are put in order at once, about 400 MB."""
MOST_PARTS = 64
"""Of so many parts, one after the other, an array is filled that is looked at as written anew."""

_RAW, _WAR, _WAW = range(3)  # Why work comes behind other work
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

    @cached_property
    def next_host_uses(self) -> Mapping[int, int]:
        """Of work that uses memory of the host which work next uses some of it, or what may be made of it; the last."""
        kept = self.is_host
        columns = {name: getattr(self, name)[kept] for name in ("place", "buffer", "begin", "end", "is_host")}
        used = Memory(**columns, is_write=kept[kept], is_opaque=self.is_opaque)  # whoever uses it next comes behind, as a write
        found: dict[int, int] = {}
        for before, after in used.edges():
            found[before] = max(after, found.get(before, -1))
        newest = np.maximum.accumulate(self.buffer)  # numbers grow as memory is allocated, or first seen
        uploads = kept & ~self.is_write
        place, buffer = self.place[uploads], self.buffer[uploads]
        for row in np.flatnonzero(kept & self.is_write).tolist():
            before = int(self.place[row])
            is_new = buffer > newest[np.searchsorted(self.place, before, side="right") - 1]
            is_made = (place > before) & (is_new | (buffer == self.buffer[row]))
            found[before] = max(found.get(before, -1), *place[is_made][-1:].tolist(), -1)
        return {before: after for before, after in found.items() if after >= 0}

    def _in_turn(self, buffers: int) -> Int64Array:
        """Return in which array each touch is where what is written anew is so in another array, of so many in turn."""
        turn = self._versions % buffers
        array = np.unique(self.buffer, return_inverse=True)[1] * (int(turn.max(initial=0)) + 1) + turn
        found: Int64Array = array + 1
        return found

    @cached_property
    def _versions(self) -> Int64Array:
        """Of which version of its array each touch is."""
        version = np.zeros(len(self.place), np.int64)
        order = np.lexsort((self.place, self.buffer))
        for own in np.split(order, 1 + np.flatnonzero(np.diff(self.buffer[order]))):
            version[own] = _versions(self, own)
        return version


def read_memory(trace: Trace, rows: Int64Array) -> Memory:
    """Read what some work touched, given by rows in the order of its launches."""
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


class Order(NamedTuple):
    """The work of a trace in the order of its launches."""

    row: Int64Array  # Rows of the trace; shape (n_works,)
    place: Int64Array  # Place in that order by row, -1 for what is no work; shape (n_spans,)
    lane: Int64Array  # By place; shape (n_works,)
    is_opaque: BoolArray  # By place; shape (n_works,)


Conflicts = tuple[Int64Array, ...]
"""Conflicts: places of the work before and behind, code of the reason, buffer."""


def order_of(trace: Trace) -> tuple[Order, Conflicts]:
    """Return the work of a trace in order, and what data order between streams: by places, as columns."""
    # Of all work of a stream that has to be in front for one reason there is the last: its stream orders the others.
    row = in_launch_order(trace, np.flatnonzero(is_work(trace)))
    memory, place = read_memory(trace, row), np.full(len(trace), -1, np.int64)
    place[row] = np.arange(len(row))
    order = Order(row, place, trace.lane[row].astype(np.int64), memory.is_opaque)
    parts = [*_conflicts(memory, order.lane)] or [(np.empty(0, np.int64),) * 4]
    return order, _reduced(order.lane, *map(np.concatenate, zip(*parts, strict=True)))


def _reduced(lanes: Int64Array, before: Int64Array, after: Int64Array, *reason: Int64Array) -> Conflicts:
    """Return of the conflicts of one reason the last of each stream that the same work comes behind."""
    lane = lanes[before]
    rank = np.lexsort((before, lane, *reason, after))
    columns = [column[rank] for column in (before, after, *reason)]
    keys = np.stack((lane[rank], *columns[1:]))
    is_last = np.append((np.diff(keys) != 0).any(axis=0), True)[: len(rank)]
    return tuple(column[is_last] for column in columns)


def _conflicts(memory: Memory, lane: Int64Array | None = None) -> Iterator[Conflicts]:
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
