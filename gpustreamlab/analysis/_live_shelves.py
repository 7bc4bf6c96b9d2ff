"""The shelves of a timeline that grows: each takes spans that follow each other, and one a level those that fit nowhere."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis._regions import LAYER_OF_LEVEL, LEVEL_TOLERANCE_NS, Level
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, place_in_slots
from gpustreamlab.typing import BoolArray, Int64Array

KEPT_INTERVALS = 512
"""How many of a shelf's last spans are known, to place one that comes late between them."""
NEVER_NS = 1 << 62


class Place(NamedTuple):
    """Where shelves belong that lie directly below each other, one for each slot."""

    lane: int
    level: int = 0
    """Code of the `Level`."""
    track: int = 0
    depth: int = 0


class Shelves:
    """All shelves, by number; they are only ever added.

    Parameters
    ----------
    tolerance_ns
        Ranges that overlap by no more than this count as following each other.
    """

    def __init__(self, tolerance_ns: int) -> None:
        self.tolerance_ns = tolerance_ns
        self.folded_spans = 0
        """Spans in shelves where they may cover others."""
        self._shelves: list[_Shelf] = []
        self._known: dict[tuple[Place, int], int] = {}
        self._folded: dict[tuple[int, int], int] = {}
        self._of_lane: dict[int, list[int]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._reserved: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._shelves)

    @property
    def lane(self) -> Int64Array:
        """Lane of each shelf; shape (n_shelves,), int64."""
        return np.array([shelf.lane for shelf in self._shelves], np.int64)

    @property
    def layer(self) -> Int64Array:
        """`Layer` of each shelf; shape (n_shelves,), int64."""
        return LAYER_OF_LEVEL[np.array([shelf.order[0] for shelf in self._shelves], np.int64)]

    @property
    def is_folded(self) -> BoolArray:
        """Shelves whose spans may cover each other; shape (n_shelves,), bool."""
        return np.array([shelf.is_folded for shelf in self._shelves], bool)

    @property
    def ranks(self) -> Int64Array:
        """Place of each shelf within its lane, from the top; shape (n_shelves,), int64."""
        ranks = np.zeros(len(self._shelves), np.int64)
        for numbers in self._of_lane.values():
            order = sorted(numbers, key=lambda number: self._shelves[number].order)
            ranks[order] = np.arange(len(order))
        return ranks

    def reserve(self, lane: int) -> int | None:
        """Make a shelf for the first spans of a lane that has none, whatever they are; return its number, or None."""
        if self._of_lane.get(lane):
            return None
        self._reserved[lane] = number = self._number(Place(lane), 0)
        return number

    def reach_ns(self, place: Place) -> int:
        """Return where the last span of a place's first shelf ends; never, if it takes what fits nowhere."""
        shelf = self._shelves[self._number(place, 0)]
        return NEVER_NS if shelf.is_folded else shelf.reach_ns

    def has_room(self, place: Place, start_ns: int, end_ns: int) -> bool:
        """Tell whether a place has a first shelf, with room for a span."""
        number = self._known.get((place, 0))
        return number is not None and self._shelves[number].has_room(start_ns, end_ns, self._tolerance_ns(place))

    def append(self, place: Place, starts: Int64Array, ends: Int64Array) -> int:
        """Put spans that follow each other behind all others on a place's first shelf; return its number."""
        number = self._number(place, 0)
        self._shelves[number].extend(starts, ends)
        return number

    def fill(self, place: Place, starts: Int64Array, ends: Int64Array, *, is_plain: bool) -> Int64Array | int:
        """Put ranges of one place, in order of their starts, on shelves; `is_plain` if none of them overlap."""
        number = self._number(place, 0)
        if is_plain and self._can_follow(number, place, starts, ends):
            self._shelves[number].extend(starts, ends)
            return number
        return self._fit_all(place, starts, ends)

    def fill_by_time(self, place: Place, starts: Int64Array, ends: Int64Array) -> Int64Array | int:
        """Put spans of another level, in order of their starts, on shelves."""
        number = self._number(place, 0)
        if (starts[1:] >= ends[:-1]).all() and self._can_follow(number, place, starts, ends):
            self._shelves[number].extend(starts, ends)
            return number
        if place.level == Level.WORK:
            return self._fill_slots(place, starts, ends)
        # Those that cover others come after them, and above them.
        order = np.lexsort((-starts, ends))
        numbers = np.empty(len(starts), np.int64)
        numbers[order] = self._fit_all(place, starts[order], ends[order])
        return numbers

    def _fill_slots(self, place: Place, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Put work on shelves: what overlaps, as that of a graph may, below each other."""
        slots = place_in_slots(np.zeros(len(starts), np.int64), starts, ends, LEVEL_TOLERANCE_NS)
        order = np.lexsort((ends, starts))  # of those that start together, first what has no length: they share a shelf
        numbers = np.empty(len(starts), np.int64)
        for slot in range(min(int(slots.max()) + 1, MAX_LANE_ROWS)):
            rows = order[slots[order] == slot]
            numbers[rows] = self._merge(place, slot, starts[rows], ends[rows])
        rows = np.flatnonzero(slots >= MAX_LANE_ROWS)
        numbers[rows] = self._fit_all(place, starts[rows], ends[rows])
        return numbers

    def _merge(self, place: Place, slot: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Put spans that follow each other behind those of a shelf; those that come too late for it, where there is room."""
        number = self._number(place, slot)
        shelf = self._shelves[number]
        if shelf.is_folded:
            return self._fit_all(place, starts, ends)
        numbers = np.empty(len(starts), np.int64)
        at = int(np.searchsorted(starts, shelf.reach_ns))
        numbers[:at] = self._fit_late(place, starts[:at], ends[:at])
        while at < len(starts) and starts[at] < shelf.reach_ns:
            # What came late may have reached further still.
            numbers[at] = self._fit(place, int(starts[at]), int(ends[at]))
            at += 1
        if at < len(starts):
            shelf.extend(starts[at:], ends[at:])
            numbers[at:] = number
        return numbers

    def _fit_late(self, place: Place, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Put late spans where there is room: few of them one by one, many on the first shelf that none of them reaches."""
        if len(starts) > KEPT_INTERVALS:
            for slot in range(MAX_LANE_ROWS):
                number = self._number(place, slot)
                if self._can_follow(number, place, starts, ends):
                    self._shelves[number].extend(starts, ends)
                    return np.full(len(starts), number)
        return self._fit_all(place, starts, ends)

    def _fit_all(self, place: Place, starts: Int64Array, ends: Int64Array) -> Int64Array:
        return np.array([self._fit(place, *span) for span in zip(starts.tolist(), ends.tolist(), strict=True)], np.int64)

    def _fit(self, place: Place, start_ns: int, end_ns: int) -> int:
        """Put one span on the first shelf that has room."""
        tolerance_ns = self._tolerance_ns(place)
        for slot in range(MAX_LANE_ROWS):
            number = self._number(place, slot)
            shelf = self._shelves[number]
            if shelf.is_folded:
                break
            if shelf.take(start_ns, end_ns, tolerance_ns):
                return number
        self.folded_spans += 1
        return number

    def _can_follow(self, number: int, place: Place, starts: Int64Array, ends: Int64Array) -> bool:
        """Tell whether spans, of which none overlap, come behind all of a shelf."""
        shelf = self._shelves[number]
        return not shelf.is_folded and not collides(int(starts[0]), int(ends[0]), shelf.reach_ns, self._tolerance_ns(place))

    def _tolerance_ns(self, place: Place) -> int:
        return self.tolerance_ns if place.level == Level.RANGE else LEVEL_TOLERANCE_NS

    def _number(self, place: Place, slot: int) -> int:
        """Return the number of a shelf, making it if there is room in the lane, else that of the level's last one."""
        number = self._known.get((place, slot))
        if self._reserved:
            number = self._take_reserved(place, slot, number)
        if number is not None:
            return number
        key = place.lane, place.level
        if self._counts.get(key, 0) < MAX_LANE_ROWS - 1:
            made = _Shelf(place.lane, _order(place, slot))
            self._known[place, slot] = len(self._shelves)
        elif key in self._folded:
            return self._folded[key]
        else:
            self._folded[key] = len(self._shelves)
            made = _Shelf(place.lane, (place.level, NEVER_NS, 0, 0), is_folded=True)
        number = len(self._shelves)
        self._shelves.append(made)
        self._of_lane.setdefault(place.lane, []).append(number)
        self._counts[key] = self._counts.get(key, 0) + 1
        return number

    def _take_reserved(self, place: Place, slot: int, number: int | None) -> int | None:
        """Let the first spans of a lane have the shelf that was made for them."""
        reserved = self._reserved.pop(place.lane, None)
        if reserved is None or reserved == number:
            return number
        del self._known[Place(place.lane), 0]
        self._known[place, slot] = reserved
        self._shelves[reserved].order = _order(place, slot)
        self._counts[place.lane, Level.RANGE] = 0
        self._counts[place.lane, place.level] = 1
        return reserved


def _order(place: Place, slot: int) -> tuple[int, int, int, int]:
    """Return what shelves of a lane are sorted by, from the top."""
    is_upwards = place.level in {Level.ANNOTATION, Level.CALL}
    return place.level, place.track, place.depth, -slot if is_upwards else slot


@dataclass(slots=True)
class _Shelf:
    """A row of spans that follow each other, and the last of them."""

    lane: int
    order: tuple[int, int, int, int]
    """Level, track, depth, slot: from the top."""
    is_folded: bool = False
    """Whether it takes what fits nowhere."""
    reach_ns: int = -NEVER_NS
    """End of the last one."""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    since_ns: int = -NEVER_NS
    """End of the last one that is not known any more."""

    def extend(self, starts: Int64Array, ends: Int64Array) -> None:
        """Take spans that come behind all others."""
        self.starts += starts[-KEPT_INTERVALS:].tolist()
        self.ends += ends[-KEPT_INTERVALS:].tolist()
        if len(starts) > KEPT_INTERVALS:
            excess = len(self.starts) - KEPT_INTERVALS
            self.since_ns = int(ends[-KEPT_INTERVALS - 1])
            del self.starts[:excess], self.ends[:excess]
        self.reach_ns = self.ends[-1]
        self._trim()

    def has_room(self, start_ns: int, end_ns: int, tolerance_ns: int) -> bool:
        """Tell whether a span fits between the others."""
        at = bisect_right(self.starts, start_ns)
        before_ns = self.ends[at - 1] if at else self.since_ns
        if collides(start_ns, end_ns, before_ns, tolerance_ns):
            return False
        return at == len(self.starts) or not collides(self.starts[at], self.ends[at], end_ns, tolerance_ns)

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


def collides(start_ns: int, end_ns: int, before_ns: int, tolerance_ns: int) -> bool:
    """Tell whether a span cannot follow one that ends at `before_ns` on one row."""
    return start_ns < before_ns and (start_ns < before_ns - tolerance_ns or end_ns <= before_ns)
