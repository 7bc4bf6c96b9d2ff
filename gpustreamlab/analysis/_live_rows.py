"""Which row each span is drawn in, decided as spans come in: rows are only added, and never change their meaning.

A range arrives when it has ended, so after all that it encloses. How deep a span lies is known all the same, from the ranges
that are still open. What cannot be known is how far those will reach: a span never moves to another row later, so spans of
several threads may lie on other shelves than in a picture drawn afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._distinct import distinct
from gpustreamlab.analysis._family import Family
from gpustreamlab.analysis._row_table import LEAST_SHARE, RowTable
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, place_in_slots
from gpustreamlab.typing import Int64Array

KEPT_INTERVALS = 512
"""How many of a row's last spans are known, to place one that comes late between them."""

_NEVER_NS = 1 << 62


class ArrivedSpans(NamedTuple):
    """Spans in the order in which they came, as columns of equal length."""

    number: Int64Array
    """Numbers that tell spans apart; shape (n,), int64."""
    parent: Int64Array
    """Number of the enclosing span, or -1; shape (n,), int64."""
    lane: Int64Array
    """Shape (n,), int64."""
    start_ns: Int64Array
    """Shape (n,), int64."""
    end_ns: Int64Array
    """Shape (n,), int64."""
    sms: Int64Array
    """How many SMs each could use; shape (n,), int64."""


class OpenSpans(NamedTuple):
    """Spans that have not come yet and enclose some that have, as columns of equal length."""

    number: Int64Array
    """Shape (n,), int64."""
    parent: Int64Array
    """Shape (n,), int64."""
    lane: Int64Array
    """Shape (n,), int64."""


class LiveRows:
    """The rows of a timeline that grows.

    Parameters
    ----------
    tolerance_ns
        Spans that overlap by no more than this count as following each other.

    Examples
    --------
    >>> rows = LiveRows()
    >>> column = lambda *values: np.array(values, np.int64)
    >>> gemm = ArrivedSpans(column(1), column(0), column(0), column(500), column(900), column(132))
    >>> rows.add(gemm, OpenSpans(column(0), column(-1), column(0))).tolist()
    [0]
    >>> step = ArrivedSpans(column(0), column(-1), column(0), column(0), column(1000), column(132))
    >>> rows.add(step, OpenSpans(column(), column(), column())).tolist()
    [1]
    >>> rows.table(lane_count=1).shelf.tolist()
    [1, 0]
    """

    def __init__(self, tolerance_ns: int = 0) -> None:
        self.tolerance_ns = tolerance_ns
        self.folded_spans = 0
        """Spans in rows where they may cover others."""
        self._taken_count = 0
        self._family = Family()
        self._lanes: dict[int, _Lane] = {}
        self._shelves: list[_Shelf] = []
        self._codes: dict[tuple[int, int], int] = {}
        self._code_shelf: list[int] = []
        self._code_sms: list[int] = []

    def __len__(self) -> int:
        return len(self._code_shelf)

    @property
    def version(self) -> tuple[int, ...]:
        """What changes whenever the table does."""
        return len(self._code_shelf), len(self._shelves), self._taken_count, self.folded_spans

    @property
    def awaited(self) -> Collection[int]:
        """Numbers of open spans that keep a place; one that will never come must be told to `forget`."""
        return [number for lane in self._lanes.values() for number in lane.held]

    def forget(self, numbers: Collection[int]) -> None:
        """Give up the places of open spans that will never come."""
        for lane in self._lanes.values():
            for number in lane.held.keys() & set(numbers):
                del lane.held[number]

    def add(self, spans: ArrivedSpans, open_spans: OpenSpans) -> Int64Array:
        """Return the code of each span's row; shape (n,), int64."""
        if not len(spans.number):
            return np.empty(0, np.int64)
        depth, root = self._family.add(spans, open_spans)
        shelf = self._append_flat(spans, depth)
        if shelf is None:
            shelf = self._place(spans, self._tracks(spans, root), depth)
        return self._encode(shelf, spans.sms)

    def reserve(self, lane_count: int) -> None:
        """Give each lane that has no row one, for its first spans."""
        for code in range(lane_count):
            if not self._lane(code).shelves:
                self._code(self._shelf(code, 0, 0, 0), -1)

    def table(self, *, lane_count: int) -> RowTable:
        """Return the rows so far; every lane has one."""
        self.reserve(lane_count)
        ranks = self._ranks()
        shelf = np.array(self._code_shelf, np.int64)
        lane = np.array([entry.lane for entry in self._shelves], np.int64)[shelf]
        return RowTable(
            lane=lane,
            shelf=ranks[shelf],
            share=self._shares(lane),
            overlaps=np.array([entry.is_folded for entry in self._shelves], bool)[shelf],
            folded_spans=self.folded_spans,
        )

    def _shares(self, lane: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        sms = np.array(self._code_sms, np.int64)
        most = np.ones(int(lane.max(initial=-1)) + 1, np.int64)
        np.maximum.at(most, lane, sms)
        return np.where(sms < 0, 1.0, np.maximum(LEAST_SHARE, sms / most[lane]))

    def _ranks(self) -> Int64Array:
        """Return the place of each shelf within its lane, from the top."""
        ranks = np.zeros(len(self._shelves), np.int64)
        for lane in self._lanes.values():
            order = sorted(lane.shelves, key=lambda number: self._shelves[number].order)
            ranks[order] = np.arange(len(order))
        return ranks

    def _append_flat(self, spans: ArrivedSpans, depth: Int64Array) -> Int64Array | None:
        """Put spans of which none overlap behind all others, each lane's on its first shelf; None where that is not so."""
        if depth.any() or any(lane.held for lane in self._lanes.values()):
            return None
        order, bounds, lanes = _by_lane(spans.lane)
        start_ns, end_ns = spans.start_ns[order], spans.end_ns[order]
        opens = np.zeros(len(order), bool)
        opens[bounds[:-1]] = True
        if not (opens[1:] | ((start_ns[1:] >= end_ns[:-1]) & (end_ns[1:] >= end_ns[:-1]))).all():
            return None
        numbers = [self._shelf(lane, 0, 0, 0) for lane in lanes]
        for number, first in zip(numbers, bounds[:-1].tolist(), strict=True):
            if start_ns[first] < self._shelves[number].reach_ns or self._shelves[number].is_folded:
                return None
        shelf = np.empty(len(order), np.int64)
        for lane, number, first, last in zip(lanes, numbers, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            self._shelves[number].extend(start_ns[first:last], end_ns[first:last])
            free_ns = self._lane(lane).free_ns
            free_ns[0] = max(free_ns[0], self._shelves[number].reach_ns)
            shelf[order[first:last]] = number
        return shelf

    # Tracks: spans that nothing encloses, and all within them, side by side where they overlap

    def _tracks(self, spans: ArrivedSpans, root: Int64Array) -> Int64Array:
        """Return the track of each span within its lane; shape (n,)."""
        number, place = distinct(root)
        lane = np.empty(len(number), np.int64)
        lane[place] = spans.lane
        start_ns = np.full(len(number), _NEVER_NS)
        np.minimum.at(start_ns, place, spans.start_ns)
        # An outermost span that has not come yet keeps its track: it may reach any distance.
        end_ns = np.full(len(number), _NEVER_NS)
        outermost = root == spans.number
        end_ns[place[outermost]] = spans.end_ns[outermost]
        slot = place_in_slots(lane, start_ns, end_ns, self.tolerance_ns)
        track = np.zeros(len(number), np.int64)
        for code in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == code)
            block = _Blocks(number[rows], start_ns[rows], end_ns[rows])
            track[rows] = self._take_tracks(code, block, is_plain=not slot[rows].any())
        return track[place]

    def _take_tracks(self, lane: int, blocks: _Blocks, *, is_plain: bool) -> Int64Array:
        """Return the track of each block; `is_plain` if none of them overlap."""
        state = self._lane(lane)
        held = state.held
        kept = {number: held[number] for number in held.keys() & set(blocks.number.tolist())} if held else {}
        is_first_free = len(kept) == len(held) and not any(kept.values())
        if is_plain and is_first_free and int(blocks.start_ns.min()) >= state.free_ns[0] - self.tolerance_ns:
            track = np.zeros(len(blocks.number), np.int64)
        else:
            track = self._fit_tracks(state, blocks, kept)
        state.take(blocks, track, kept)
        return track

    def _fit_tracks(self, lane: _Lane, blocks: _Blocks, kept: Mapping[int, int]) -> Int64Array:
        """Put blocks, by their starts, on the first track that is free; one that has a track stays there."""
        busy_ns = [_NEVER_NS if track in lane.held.values() else free_ns for track, free_ns in enumerate(lane.free_ns)]
        untouched = {track for track, until_ns in enumerate(busy_ns) if until_ns < _NEVER_NS}
        tracks = np.zeros(len(blocks.number), np.int64)
        for row in np.argsort(blocks.start_ns, kind="stable").tolist():
            number, start_ns, end_ns = int(blocks.number[row]), int(blocks.start_ns[row]), int(blocks.end_ns[row])
            track = kept.get(number, -1)
            if track >= 0:
                busy_ns[track] = end_ns
            else:
                track = self._free_track(lane, busy_ns, untouched, start_ns, end_ns)
                busy_ns[track] = max(busy_ns[track], end_ns)
            untouched.discard(track)
            tracks[row] = track
        lane.free_ns += [-_NEVER_NS] * (len(busy_ns) - len(lane.free_ns))
        return tracks

    def _free_track(self, lane: _Lane, busy_ns: list[int], untouched: Collection[int], start_ns: int, end_ns: int) -> int:
        """Return the first track that is free by then, or was free then, or a new one while there are few."""
        for track, before_ns in enumerate(busy_ns):
            if not _collides(start_ns, end_ns, before_ns, self.tolerance_ns):
                return track
            shelf = lane.known.get((track, 0, 0)) if track in untouched else None
            if shelf is not None and self._shelves[shelf].has_room(start_ns, end_ns, self.tolerance_ns):
                return track
        if len(busy_ns) >= MAX_LANE_ROWS:
            return MAX_LANE_ROWS - 1
        busy_ns.append(-_NEVER_NS)
        return len(busy_ns) - 1

    # Shelves: one for each track, depth and what still overlaps

    def _place(self, spans: ArrivedSpans, track: Int64Array, depth: Int64Array) -> Int64Array:
        """Return the number of each span's shelf; shape (n,)."""
        deepest, widest = int(depth.max()) + 1, int(track.max()) + 1
        keys, group = distinct((spans.lane * widest + track) * deepest + depth)
        slot = place_in_slots(group, spans.start_ns, spans.end_ns, self.tolerance_ns)
        order = np.lexsort((spans.start_ns, group))
        bounds = np.append(np.searchsorted(group[order], np.arange(len(keys))), len(order))
        shelf = np.empty(len(group), np.int64)
        for key, first, last in zip(keys.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            rows = order[first:last]
            lane, rest = divmod(key, widest * deepest)
            place = (lane, rest // deepest, rest % deepest)
            shelf[rows] = self._fill(place, spans.start_ns[rows], spans.end_ns[rows], is_plain=not slot[rows].any())
        return shelf

    def _fill(self, place: tuple[int, int, int], starts: Int64Array, ends: Int64Array, *, is_plain: bool) -> Int64Array | int:
        """Put spans of one lane, track and depth, in order of their starts, on shelves."""
        number = self._shelf(*place, 0)
        shelf = self._shelves[number]
        if is_plain and not shelf.is_folded and starts[0] >= shelf.reach_ns - self.tolerance_ns and ends[0] > shelf.reach_ns:
            shelf.extend(starts, ends)
            return number
        placed = [self._fit(*place, *span) for span in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array(placed, np.int64)

    def _fit(self, lane: int, track: int, depth: int, start_ns: int, end_ns: int) -> int:
        """Put one span on the first shelf that has room."""
        for slot in range(MAX_LANE_ROWS):
            number = self._shelf(lane, track, depth, slot)
            shelf = self._shelves[number]
            if shelf.is_folded:
                break
            if shelf.take(start_ns, end_ns, self.tolerance_ns):
                return number
        self.folded_spans += 1
        return number

    def _shelf(self, lane: int, track: int, depth: int, slot: int) -> int:
        """Return the number of a shelf, making it if there is room in the lane, else that of the lane's last one."""
        state = self._lane(lane)
        number = state.known.get((track, depth, slot))
        if number is not None:
            return number
        if len(state.shelves) < MAX_LANE_ROWS - 1:
            made = _Shelf(lane, (track, depth, slot))
        elif state.folded is not None:
            return state.folded
        else:
            state.folded = len(self._shelves)
            made = _Shelf(lane, (_NEVER_NS, 0, 0), is_folded=True)
        number = len(self._shelves)
        self._shelves.append(made)
        state.shelves.append(number)
        if not made.is_folded:
            state.known[track, depth, slot] = number
        return number

    def _lane(self, code: int) -> _Lane:
        return self._lanes.setdefault(code, _Lane())

    # Codes: a shelf and the SMs that its spans had

    def _encode(self, shelf: Int64Array, sms: Int64Array) -> Int64Array:
        width = int(sms.max()) + 2
        keys, place = distinct(shelf * width + sms + 1)
        codes = [self._code(key // width, key % width - 1) for key in keys.tolist()]
        return np.array(codes, np.int64)[place]

    def _code(self, shelf: int, sms: int) -> int:
        known = self._codes.get((shelf, sms))
        if known is not None:
            return known
        # A row made for a lane that had no spans yet is taken by its first ones.
        code = self._codes.pop((shelf, -1), len(self._code_shelf))
        self._taken_count += 1
        if code == len(self._code_shelf):
            self._code_shelf.append(shelf)
            self._code_sms.append(sms)
        self._code_sms[code] = sms
        self._codes[shelf, sms] = code
        return code


def _by_lane(lane: Int64Array) -> tuple[Int64Array, Int64Array, list[int]]:
    """Return the order by lane, where each lane begins in it and where the last ends, and which lanes there are."""
    # numpy sorts 16-bit keys by radix, in linear time.
    order: Int64Array = np.argsort(lane.astype(np.uint16) if int(lane.max()) < 1 << 16 else lane, kind="stable")
    ordered = lane[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return order, np.append(first, len(lane)), ordered[first].tolist()


class _Blocks(NamedTuple):
    """Outermost spans of one lane, each with all that it encloses."""

    number: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array


@dataclass(slots=True)
class _Lane:
    """What one lane has."""

    shelves: list[int] = field(default_factory=list)
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Shelves by track, depth and slot."""
    folded: int | None = None
    """The last shelf, for what fits nowhere."""
    free_ns: list[int] = field(default_factory=lambda: [-_NEVER_NS])
    """Where what has come on each track ends."""
    held: dict[int, int] = field(default_factory=dict)
    """Track of each outermost span that has not come yet."""

    def take(self, blocks: _Blocks, track: Int64Array, kept: Collection[int]) -> None:
        """Note which tracks blocks were given; `kept` are those that had one."""
        for number in kept:
            del self.held[number]
        is_open = blocks.end_ns == _NEVER_NS
        self.held |= dict(zip(blocks.number[is_open].tolist(), track[is_open].tolist(), strict=True))
        free_ns = np.array(self.free_ns)
        np.maximum.at(free_ns, track[~is_open], blocks.end_ns[~is_open])
        self.free_ns = free_ns.tolist()


@dataclass(slots=True)
class _Shelf:
    """A row of spans that follow each other, and the last of them."""

    lane: int
    order: tuple[int, int, int]
    """Track, depth, slot: from the top."""
    is_folded: bool = False
    """Whether it takes what fits nowhere."""
    reach_ns: int = -_NEVER_NS
    """End of the last one."""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    since_ns: int = -_NEVER_NS
    """End of the last one that is not known any more."""

    def extend(self, starts: Int64Array, ends: Int64Array) -> None:
        """Take spans that come behind all others."""
        self.starts += starts[-KEPT_INTERVALS:].tolist()
        self.ends += ends[-KEPT_INTERVALS:].tolist()
        if len(starts) > KEPT_INTERVALS:
            self.since_ns = int(ends[-KEPT_INTERVALS - 1])
        self.reach_ns = self.ends[-1]
        self._trim()

    def has_room(self, start_ns: int, end_ns: int, tolerance_ns: int) -> bool:
        """Tell whether a span fits between the others."""
        at = bisect_right(self.starts, start_ns)
        before_ns = self.ends[at - 1] if at else self.since_ns
        if _collides(start_ns, end_ns, before_ns, tolerance_ns):
            return False
        return at == len(self.starts) or not _collides(self.starts[at], self.ends[at], end_ns, tolerance_ns)

    def take(self, start_ns: int, end_ns: int, tolerance_ns: int) -> bool:
        """Take a span if it has room between the others."""
        if not self.has_room(start_ns, end_ns, tolerance_ns):
            return False
        at = bisect_right(self.starts, start_ns)
        self.starts.insert(at, start_ns)
        self.ends.insert(at, end_ns)
        self.reach_ns = self.ends[-1]
        self._trim()
        return True

    def _trim(self) -> None:
        excess = len(self.starts) - KEPT_INTERVALS
        if excess > KEPT_INTERVALS:
            self.since_ns = self.ends[excess - 1]
            del self.starts[:excess], self.ends[:excess]


def _collides(start_ns: int, end_ns: int, before_ns: int, tolerance_ns: int) -> bool:
    """Tell whether a span cannot follow one that ends at `before_ns` on one row."""
    return start_ns < before_ns and (start_ns < before_ns - tolerance_ns or end_ns <= before_ns)
