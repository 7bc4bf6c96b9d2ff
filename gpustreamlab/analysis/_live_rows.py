"""Which row each span is drawn in, decided as spans come in: rows are only added, and never change their meaning.

A range arrives when it has ended, so after all that it encloses. How deep it lies is known all the same, from the ranges that
are still open. What cannot be known is how far those will reach: a span never moves to another row later, so ranges of several
threads may lie on other shelves than in a picture drawn afterwards.

Kernels, copies and fills come late and not in order; each finds room in the rows below the ranges. Of ranges of others, and of
calls, nothing is known before they have ended: each is put above all that it covers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._live_shelves import NEVER_NS, Place, Shelves, collides
from gpustreamlab.analysis._regions import LEVEL_COUNT, LEVEL_OF_KIND, Level
from gpustreamlab.analysis._rows import LEAST_SHARE, MAX_LANE_ROWS, RowTable, climb, place_in_slots
from gpustreamlab.analysis._sweep import distinct
from gpustreamlab.typing import Int64Array

REMEMBERED_SPANS = 1 << 16
"""How many of the last spans are remembered, for one that comes after the span around it."""


class Nesting:
    """Which span encloses which."""

    def __init__(self) -> None:
        # By number, modulo the size: a newer span takes the place of an older one.
        self._number = np.full(REMEMBERED_SPANS, -1, np.int64)
        self._parent = np.full(REMEMBERED_SPANS, -1, np.int64)
        self._lane = np.zeros(REMEMBERED_SPANS, np.int64)

    def add(self, spans: ArrivedSpans, open_spans: OpenSpans) -> tuple[Int64Array, Int64Array]:
        """Return how many spans of its lane enclose each span, and the number of the outermost of them, or its own."""
        if (spans.parent < 0).all():
            self._remember(spans)
            return np.zeros(len(spans.number), np.int64), spans.number
        number = np.concatenate((spans.number, open_spans.number))
        lane = np.concatenate((spans.lane, open_spans.lane))
        above_number = np.concatenate((spans.parent, open_spans.parent))
        above = _rows_of(number, above_number)
        past = self._recall(distinct(above_number[(above < 0) & (above_number >= 0)])[0])
        if len(past[0]):
            columns = zip((number, lane, above_number), past, strict=True)
            number, lane, above_number = (np.concatenate(pair) for pair in columns)
            above = _rows_of(number, above_number)
        self._remember(spans)
        above = _same_lane(above, lane)
        depth, root = climb(above)
        return depth[: len(spans.number)], number[root[: len(spans.number)]]

    def _remember(self, spans: ArrivedSpans) -> None:
        place = spans.number % REMEMBERED_SPANS
        self._number[place], self._parent[place], self._lane[place] = spans.number, spans.parent, spans.lane

    def _recall(self, wanted: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return number, lane and parent of those that came before and are remembered, and of what encloses them."""
        found: list[Int64Array] = []
        for _ in range(MAX_LANE_ROWS):
            place = wanted % REMEMBERED_SPANS
            place = place[(self._number[place] == wanted) & (wanted >= 0)]
            if not place.size:
                break
            found.append(place)
            wanted = np.unique(self._parent[place])
        places = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return self._number[places], self._lane[places], self._parent[places]


def _rows_of(number: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the row of each wanted number, or -1."""
    least, width = int(number.min()), int(number.max() - number.min()) + 1
    if width <= 8 * len(number):
        # Numbers that follow each other: a table of them is faster than sorting.
        table = np.full(width + 1, -1, np.int64)
        table[number - least] = np.arange(len(number))
        at = wanted - least
        return table[np.where((at >= 0) & (at < width), at, width)]
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], wanted), len(order) - 1)
    rows: Int64Array = np.where((number[order][at] == wanted) & (wanted >= 0), order[at], -1)
    return rows


def _same_lane(above: Int64Array, lane: Int64Array) -> Int64Array:
    """Climb on where the enclosing span is of another lane."""
    above = above.copy()
    parents = above.copy()
    for _ in range(4 * MAX_LANE_ROWS):
        away = np.flatnonzero((above >= 0) & (lane[above] != lane))
        if not away.size:
            break
        above[away] = parents[above[away]]
    return above


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
    kind: Int64Array
    """Code of the `SpanKind`; shape (n,), int64."""

    def select(self, rows: Int64Array) -> ArrivedSpans:
        """Return some of them."""
        return ArrivedSpans(*(column[rows] for column in self))


class OpenSpans(NamedTuple):
    """Ranges that have not come yet and enclose some spans that have, as columns of equal length."""

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
        Ranges that overlap by no more than this count as following each other.

    Examples
    --------
    >>> rows = LiveRows()
    >>> column = lambda *values: np.array(values, np.int64)
    >>> gemm = ArrivedSpans(column(1), column(0), column(0), column(500), column(900), column(132), column(0))
    >>> rows.add(gemm, OpenSpans(column(0), column(-1), column(0))).tolist()
    [0]
    >>> step = ArrivedSpans(column(0), column(-1), column(0), column(0), column(1000), column(132), column(0))
    >>> rows.add(step, OpenSpans(column(), column(), column())).tolist()
    [1]
    >>> rows.table(lane_count=1).shelf.tolist()
    [1, 0]
    """

    def __init__(self, tolerance_ns: int = 0) -> None:
        self._taken_count = 0
        self._nesting = Nesting()
        self._lanes: dict[int, _Lane] = {}
        self._shelves = Shelves(tolerance_ns)
        self._codes: dict[tuple[int, int], int] = {}
        self._code_shelf: list[int] = []
        self._code_sms: list[int] = []

    def __len__(self) -> int:
        return len(self._code_shelf)

    @property
    def folded_spans(self) -> int:
        """Spans in rows where they may cover others."""
        return self._shelves.folded_spans

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
        level = LEVEL_OF_KIND[spans.kind]
        ranges = np.flatnonzero(level == Level.RANGE)
        if len(ranges) == len(level):
            return self._encode(self._place_ranges(spans, open_spans), spans.sms)
        shelf = np.empty(len(level), np.int64)
        if len(ranges):
            shelf[ranges] = self._place_ranges(spans.select(ranges), open_spans)
        others = np.flatnonzero(level)
        shelf[others] = self._place_by_time(spans.select(others), level[others])
        return self._encode(shelf, spans.sms)

    def reserve(self, lane_count: int) -> None:
        """Give each lane that has no row one, for its first spans."""
        for code in range(lane_count):
            number = self._shelves.reserve(code)
            if number is not None:
                self._code(number, -1)

    def table(self, *, lane_count: int) -> RowTable:
        """Return the rows so far; every lane has one."""
        self.reserve(lane_count)
        shelf = np.array(self._code_shelf, np.int64)
        lane = self._shelves.lane[shelf]
        sms = np.array(self._code_sms, np.int64)
        most = np.zeros(lane_count, np.int64)
        np.maximum.at(most, lane, sms)
        return RowTable(
            lane=lane,
            shelf=self._shelves.ranks[shelf],
            share=np.where(sms < 0, 1.0, np.maximum(LEAST_SHARE, sms / np.maximum(most[lane], 1))),
            lane_sms=most,
            layer=self._shelves.layer[shelf],
            overlaps=self._shelves.is_folded[shelf],
            folded_spans=self.folded_spans,
        )

    # Ranges: by track, depth, and what still overlaps

    def _place_ranges(self, spans: ArrivedSpans, open_spans: OpenSpans) -> Int64Array:
        """Return the number of each range's shelf; shape (n,)."""
        depth, root = self._nesting.add(spans, open_spans)
        shelf = self._append_flat(spans, depth)
        return self._place(spans, self._tracks(spans, root), depth) if shelf is None else shelf

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
        for lane, first in zip(lanes, bounds[:-1].tolist(), strict=True):
            if start_ns[first] < self._shelves.reach_ns(Place(lane)):
                return None
        shelf = np.empty(len(order), np.int64)
        for lane, first, last in zip(lanes, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            shelf[order[first:last]] = self._shelves.append(Place(lane), start_ns[first:last], end_ns[first:last])
            free_ns = self._lane(lane).free_ns
            free_ns[0] = max(free_ns[0], int(end_ns[last - 1]))
        return shelf

    # Tracks: spans that nothing encloses, and all within them, side by side where they overlap

    def _tracks(self, spans: ArrivedSpans, root: Int64Array) -> Int64Array:
        """Return the track of each span within its lane; shape (n,)."""
        number, place = distinct(root)
        lane = np.empty(len(number), np.int64)
        lane[place] = spans.lane
        start_ns = np.full(len(number), NEVER_NS)
        np.minimum.at(start_ns, place, spans.start_ns)
        # An outermost span that has not come yet keeps its track: it may reach any distance.
        end_ns = np.full(len(number), NEVER_NS)
        outermost = root == spans.number
        end_ns[place[outermost]] = spans.end_ns[outermost]
        slot = place_in_slots(lane, start_ns, end_ns, self._shelves.tolerance_ns)
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
        if is_plain and is_first_free and int(blocks.start_ns.min()) >= state.free_ns[0] - self._shelves.tolerance_ns:
            track = np.zeros(len(blocks.number), np.int64)
        else:
            track = self._fit_tracks(lane, blocks, kept)
        state.take(blocks, track, kept)
        return track

    def _fit_tracks(self, lane: int, blocks: _Blocks, kept: Mapping[int, int]) -> Int64Array:
        """Put blocks, by their starts, on the first track that is free; one that has a track stays there."""
        state = self._lane(lane)
        busy_ns = [NEVER_NS if track in state.held.values() else free_ns for track, free_ns in enumerate(state.free_ns)]
        untouched = {track for track, until_ns in enumerate(busy_ns) if until_ns < NEVER_NS}
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
        state.free_ns += [-NEVER_NS] * (len(busy_ns) - len(state.free_ns))
        return tracks

    def _free_track(self, lane: int, busy_ns: list[int], untouched: Collection[int], start_ns: int, end_ns: int) -> int:
        """Return the first track that is free by then, or was free then, or a new one while there are few."""
        for track, before_ns in enumerate(busy_ns):
            if not collides(start_ns, end_ns, before_ns, self._shelves.tolerance_ns):
                return track
            if track in untouched and self._shelves.has_room(Place(lane, track=track), start_ns, end_ns):
                return track
        if len(busy_ns) >= MAX_LANE_ROWS:
            return MAX_LANE_ROWS - 1
        busy_ns.append(-NEVER_NS)
        return len(busy_ns) - 1

    def _place(self, spans: ArrivedSpans, track: Int64Array, depth: Int64Array) -> Int64Array:
        """Return the number of each span's shelf; shape (n,)."""
        deepest, widest = int(depth.max()) + 1, int(track.max()) + 1
        keys, group = distinct((spans.lane * widest + track) * deepest + depth)
        slot = place_in_slots(group, spans.start_ns, spans.end_ns, self._shelves.tolerance_ns)
        order = np.lexsort((spans.start_ns, group))
        bounds = np.append(np.searchsorted(group[order], np.arange(len(keys))), len(order))
        shelf = np.empty(len(group), np.int64)
        for key, first, last in zip(keys.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            rows = order[first:last]
            lane, rest = divmod(key, widest * deepest)
            place = Place(lane, track=rest // deepest, depth=rest % deepest)
            columns = spans.start_ns[rows], spans.end_ns[rows]
            shelf[rows] = self._shelves.fill(place, *columns, is_plain=not slot[rows].any())
        return shelf

    # All else: by time

    def _place_by_time(self, spans: ArrivedSpans, level: Int64Array) -> Int64Array:
        """Return the number of each span's shelf; shape (n,)."""
        key = spans.lane * LEVEL_COUNT + level
        order, bounds, keys = _by_lane(key)
        start_ns = spans.start_ns[order]
        if ((start_ns[1:] < start_ns[:-1]) & (key[order][1:] == key[order][:-1])).any():
            order = np.lexsort((-spans.end_ns, spans.start_ns, key))
            start_ns = spans.start_ns[order]
        end_ns = spans.end_ns[order]
        shelf = np.empty(len(order), np.int64)
        for code, first, last in zip(keys, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            place = Place(*divmod(code, LEVEL_COUNT))
            shelf[order[first:last]] = self._shelves.fill_by_time(place, start_ns[first:last], end_ns[first:last])
        return shelf

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

    free_ns: list[int] = field(default_factory=lambda: [-NEVER_NS])
    """Where what has come on each track ends."""
    held: dict[int, int] = field(default_factory=dict)
    """Track of each outermost span that has not come yet."""

    def take(self, blocks: _Blocks, track: Int64Array, kept: Collection[int]) -> None:
        """Note which tracks blocks were given; `kept` are those that had one."""
        for number in kept:
            del self.held[number]
        is_open = blocks.end_ns == NEVER_NS
        self.held |= dict(zip(blocks.number[is_open].tolist(), track[is_open].tolist(), strict=True))
        free_ns = np.array(self.free_ns)
        np.maximum.at(free_ns, track[~is_open], blocks.end_ns[~is_open])
        self.free_ns = free_ns.tolist()
