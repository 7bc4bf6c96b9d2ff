"""Which work has to stand behind which, by the memory that both use; and which waits of the host its own memory asks for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._program import KERNEL, Program
from gpustreamlab.model import Trace
from gpustreamlab.typing import AccessCertainty, Int64Array

Pairs = frozenset[tuple[int, int]]
"""Work, as places in `Program.works`, and what has to begin only when it has ended."""

MOST_PARTS = 64
"""Of so many parts, one after the other, an array is filled that is looked at as written anew."""


class Touch(NamedTuple):
    """Memory that work uses."""

    buffer: int  # number of the allocation
    begin: int  # first byte
    end: int  # byte behind the last one
    is_write: bool  # whether it is written, else read
    is_host: bool  # whether it is memory of the host


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What each work touches; what follows from it is worked out once."""

    touches: tuple[tuple[Touch, ...] | None, ...]
    """In the order of the works; None for opaque work, of which it is not known."""
    _edges: dict[int, Pairs] = field(default_factory=dict, repr=False)

    @property
    def is_known(self) -> bool:
        """Whether there is no opaque work."""
        return None not in self.touches

    def edges(self, buffers: int = 1) -> Pairs:
        """Return what the data ask for, within streams too; opaque work asks for nothing, see `needed_waits`.

        A read stands behind the write of what it reads, a write behind all that used its place. With more buffers a write that
        replaces a whole array stands behind what used the array so many versions before: as if the program had so many arrays.
        Memory of the host is not copied: the host itself writes it.
        """
        if buffers not in self._edges:
            self._edges[buffers] = frozenset(_edges(self.touches, buffers))
        return self._edges[buffers]


def read_memory(trace: Trace, rows: Int64Array) -> Memory:
    """Read what some work touched.

    Parameters
    ----------
    trace
        With its accesses.
    rows : ndarray of int64, shape (n_works,)
        The work, in the order of its launches.
    """
    accesses = trace.accesses
    place = np.full(len(trace), -1, np.int64)
    place[rows] = np.arange(len(rows))
    found: list[list[Touch] | None] = [None] * len(rows)
    unknown = list(AccessCertainty).index(AccessCertainty.UNKNOWN)
    is_opaque = (accesses.certainty == unknown) | ((accesses.buffer == 0) & (accesses.end > accesses.begin))
    own = np.flatnonzero(place[accesses.span] >= 0)
    columns = (place[accesses.span[own]], accesses.buffer[own], accesses.begin[own], accesses.end[own])
    flags = (accesses.is_write[own], accesses.is_host[own], is_opaque[own])
    opaque = set()
    for work, buffer, begin, end, is_write, is_host, is_unknown in zip(
        *(column.tolist() for column in (*columns, *flags)), strict=True
    ):
        if is_unknown:
            opaque.add(work)
        touches = found[work]
        if touches is None:
            touches = found[work] = []
        if end > begin:
            touches.append(Touch(buffer, begin, end, is_write, is_host))
    return Memory(
        tuple(None if some is None or place in opaque else tuple(some) for place, some in enumerate(found)),
    )


class _Users:
    """Who used the bytes of one version of a buffer since they were last written: stretches that do not meet, in order."""

    __slots__ = ("begins", "ends", "readers", "writers")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.writers: list[int] = []  # who wrote it last, or -1
        self.readers: list[list[int]] = []  # who has read it since

    def _split(self, at: int) -> None:
        place = bisect_right(self.begins, at) - 1
        if place >= 0 and self.begins[place] < at < self.ends[place]:
            self.begins.insert(place + 1, at)
            self.ends.insert(place + 1, self.ends[place])
            self.ends[place] = at
            self.writers.insert(place + 1, self.writers[place])
            self.readers.insert(place + 1, list(self.readers[place]))

    def meet(self, touch: Touch) -> Iterable[int]:
        """Yield who has to end before this may be touched."""
        first = bisect_right(self.ends, touch.begin)
        for place in range(first, bisect_left(self.begins, touch.end)):
            if self.writers[place] >= 0:
                yield self.writers[place]
            if touch.is_write:
                yield from self.readers[place]

    def add(self, work: int, touch: Touch) -> None:
        """Note that it was touched."""
        self._split(touch.begin)
        self._split(touch.end)
        first, last = bisect_left(self.begins, touch.begin), bisect_left(self.begins, touch.end)
        if touch.is_write:
            self.begins[first:last], self.ends[first:last] = [touch.begin], [touch.end]
            self.writers[first:last], self.readers[first:last] = [work], [[]]
            return
        at, place = touch.begin, first
        while at < touch.end:
            is_there = place < len(self.begins) and self.begins[place] == at
            if is_there:
                self.readers[place].append(work)
            else:
                until = min(touch.end, self.begins[place]) if place < len(self.begins) else touch.end
                self.begins.insert(place, at)
                self.ends.insert(place, until)
                self.writers.insert(place, -1)
                self.readers.insert(place, [work])
            at = self.ends[place]
            place += 1

    def is_replaced_by(self, touches: Sequence[Touch]) -> bool:
        """Tell whether some writes cover all that was used."""
        at = 0
        spans = sorted((touch.begin, touch.end) for touch in touches if touch.is_write)
        for begin, end in zip(self.begins, self.ends, strict=True):
            while at < len(spans) and spans[at][1] <= begin:
                at += 1
            if at == len(spans) or spans[at][0] > begin or spans[at][1] < end:
                return False
        return True


def _edges(all_touches: Sequence[tuple[Touch, ...] | None], buffers: int) -> Iterable[tuple[int, int]]:
    versions: dict[int, list[_Users]] = {}
    replacing = _replacing(all_touches) if buffers > 1 else {}
    left: dict[int, int] = {}  # By buffer: until which work its newest version is still filled
    for work, touches in enumerate(all_touches):
        if not touches:
            continue
        for buffer, own in _by_buffer(touches).items():
            past = versions.setdefault(buffer, [_Users()])
            fill = replacing.get((work, buffer))
            if fill is not None and left.get(buffer, -1) < work and past[-1].is_replaced_by(fill.writes):
                left[buffer] = fill.last
                past.append(_Users())
                del past[: -buffers - 1]
            older = past[-1:]
            if left.get(buffer, -1) >= work:
                # What used the place before: with two buffers the version before the last.
                older = [past[-1], *past[:-buffers][-1:]]
            for touch in own:
                for before in (before for users in older for before in users.meet(touch)):
                    if before != work:
                        yield before, work
            for touch in own:
                past[-1].add(work, touch)


def _by_buffer(touches: Iterable[Touch]) -> dict[int, list[Touch]]:
    found: dict[int, list[Touch]] = {}
    for touch in touches:
        found.setdefault(touch.buffer, []).append(touch)
    return found


@dataclass(slots=True)
class _Fill:
    """Writes of an array that follow each other with no read between: by one work or by several, each of another part."""

    writes: list[Touch]
    last: int  # the work with the last of them

    def meets(self, touches: Iterable[Touch]) -> bool:
        """Tell whether some of that is written already."""
        return any(one.begin < other.end and other.begin < one.end for one in touches for other in self.writes)


def _replacing(all_touches: Sequence[tuple[Touch, ...] | None]) -> dict[tuple[int, int], _Fill]:
    """Return what is written of a buffer until it is read, by the work with the first of these writes and the buffer."""
    found: dict[tuple[int, int], _Fill] = {}
    newest: dict[int, _Fill] = {}
    for work, touches in enumerate(all_touches):
        for buffer, own in _by_buffer(touches or ()).items():
            if any(not touch.is_write or touch.is_host for touch in own):
                newest.pop(buffer, None)
                continue
            fill = newest.get(buffer)
            if fill is None or len(fill.writes) >= MOST_PARTS or fill.meets(own):
                fill = newest[buffer] = found[work, buffer] = _Fill([], work)
            fill.writes += own
            fill.last = work
    return found


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
    for place, touches in enumerate(memory.touches):
        if touches is None:
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
    for place, work in enumerate(program.works):
        if memory.touches[place] is not None:
            continue
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
    else copy it again. A copy of which it is not known what it touches may use any. Of several waits that would do the first is
    kept.
    """
    next_use = _next_uses(memory.touches)
    unknown = [place for place, some in enumerate(memory.touches) if some is None and program.works[place].kind != KERNEL]
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


def _next_uses(touches: Sequence[tuple[Touch, ...] | None]) -> dict[int, int]:
    """Return for work that uses memory of the host which work uses some of it next; of several the last."""
    found: dict[int, int] = {}
    later: dict[int, list[tuple[int, int, int]]] = {}  # By buffer: stretches with who uses them next
    for place in range(len(touches) - 1, -1, -1):
        for touch in touches[place] or ():
            if not touch.is_host:
                continue
            seen = later.setdefault(touch.buffer, [])
            users = [user for begin, end, user in seen if begin < touch.end and touch.begin < end and user != place]
            if users:
                found[place] = max(found.get(place, -1), *users)
            seen[:] = [one for one in seen if one[0] < touch.begin or touch.end < one[1]]
            seen.append((touch.begin, touch.end, place))
    return found


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
