"""Find accesses to memory that conflict and are not ordered, one by one, as they are enqueued."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias

from gpustreamlab.analysis._regions import Region, covers, overlap
from gpustreamlab.typing import HazardKind


@dataclass(slots=True, eq=False, repr=False)
class LaneClock:
    """One lane: its own time, and how much of every other lane's work is ordered before what it does next."""

    handle: int  # Its stream's; another lane may have had it before, or have it later
    name: str = ""  # What it is called; empty where that is not known
    tick: int = 1  # Its time; it goes on where others may begin to wait for it. Work of one tick is in the lane's order anyway.
    used_tick: int = 0  # Its time when it worked last
    knows: Moment = field(default_factory=dict)
    """The newest tick of each other lane that is ordered before what this one does next."""
    host_seen: int = 0  # Which of the host's waits are in `knows`
    is_gone: bool = False  # Whether all that it ever did is ordered before everything that comes
    card: int = 0  # Number of the device that it is on


Moment: TypeAlias = dict[LaneClock, int]
"""For each lane the newest tick that has been reached there: what a recorded event stands for."""


class LaneClocks:
    """The clocks of all lanes of a card, and the host's, which is one for all cards that stand beside each other."""

    # There is one clock for all threads of the host: they order one another by locks, queues and joins that cannot be seen from
    # here, so a wait of any thread counts for all. That finds less, and never claims too much.

    def __init__(self, name_lane: Callable[[int], str] = str, card: int = 0) -> None:
        self.card = card  # Number of the device
        self.lanes: dict[int, LaneClock] = {}  # The lanes that there are, by the handle that each has now
        self.host: Moment = {}  # What the host has waited for
        self.host_count = 0  # How often that has changed
        self._name_lane = name_lane
        self._closed: set[LaneClock] = set()  # whose work may still be unordered
        self._cards = {card: self}

    def stand_beside(self, other: LaneClocks) -> None:
        """Be of the same host as another card's clocks: what the host has waited for on one is in order on both."""
        self._cards, self.host, self.host_count = other._cards, other.host, other.host_count
        self._cards[self.card] = self

    def lane(self, handle: int) -> LaneClock:
        """Return the clock of a lane, with all that the host has waited for: call it where something is enqueued there."""
        lane = self.lanes.get(handle)
        if lane is None:
            lane = self.lanes[handle] = LaneClock(handle, self._name_lane(handle), card=self.card)
        if lane.host_seen != self.host_count:
            lane.host_seen = self.host_count
            _merge(lane.knows, self.host)
        return lane

    def is_before(self, lane: LaneClock, tick: int, other: LaneClock) -> bool:
        """Tell whether work of a lane at a tick is ordered before what another lane does next."""
        return lane is other or tick <= other.knows.get(lane, 0) or lane.is_gone

    def record(self, lane: LaneClock) -> Moment:
        """Return what an event stands for that is recorded now."""
        moment = dict(lane.knows)
        moment[lane] = lane.tick
        lane.tick += 1
        return moment

    def wait(self, lane: LaneClock, moment: Moment) -> None:
        """Order a lane's later work behind an event."""
        _merge(lane.knows, moment)

    def host_wait(self, moment: Moment) -> None:
        """Order all that the host enqueues from now on behind an event that it has seen reached."""
        if _merge(self.host, moment):
            self._tell_lanes()

    def host_wait_all(self) -> None:
        """Order all that the host enqueues from now on behind everything here: the device was idle."""
        for lane in (*self.lanes.values(), *self._closed):
            if len(self._cards) > 1:
                _merge(self.host, lane.knows)  # what it had waited for on other cards has ended, too
            self.host[lane] = lane.tick
            lane.tick += 1
        self._tell_lanes()
        self._forget_closed()

    def is_host_before(self, lane: LaneClock, tick: int) -> bool:
        """Tell whether work of a lane at a tick is ordered before everything that is enqueued from now on."""
        return tick <= self.host.get(lane, 0) or lane.is_gone

    def close(self, handle: int) -> None:
        """Let go of a lane that takes no more work, once the host has waited for all of it."""
        lane = self.lanes.pop(handle, None)
        if lane is not None:
            self._closed.add(lane)
            self._forget_closed()

    def _tell_lanes(self) -> None:
        """Let each lane, of all cards, take in what the host knows before its next work."""
        for card in self._cards.values():
            card.host_count += 1

    def _forget_closed(self) -> None:
        for lane in [lane for lane in self._closed if self.host.get(lane, 0) >= lane.used_tick]:
            self._closed.remove(lane)
            lane.is_gone, lane.knows = True, {}
            self.host.pop(lane, None)
            for card in self._cards.values():
                card.forget(lane)

    def forget(self, gone: LaneClock) -> None:
        """Let no lane here keep what it knows of one that all work is ordered behind."""
        for lane in (*self.lanes.values(), *self._closed):
            lane.knows.pop(gone, None)


def _merge(into: Moment, moment: Moment) -> bool:
    """Take in what is newer; tell whether anything was."""
    is_newer = False
    for lane, tick in moment.items():
        if tick > into.get(lane, 0) and not lane.is_gone:
            into[lane] = tick
            is_newer = True
    return is_newer


ACCESSES_KEPT = 64
"""How many accesses to a piece of memory are kept that later ones may conflict with; the oldest make room, and are counted."""
FREED_KEPT = 4_096  # How many freed pieces are kept whose last uses are not ordered yet; the oldest make room, and are counted
PLAIN_ACCESSES = 8  # How many accesses of one lane alone are kept before it is asked which of them are needed
ROWS_KEPT = 1_000  # How many kinds of hazards are told apart; further ones are only counted


def _no_owner() -> None:
    """Keep nothing."""


@dataclass(slots=True, eq=False, repr=False)
class Piece:
    """Memory that was allocated once. Its number is never used again; its address is, once it was freed."""

    number: int  # How many pieces there were before it
    start: int
    end: int
    shape: tuple[int, ...]  # Of the array that it was made for
    dtype: object
    lane: LaneClock  # The lane out of whose pool it is
    owner: Callable[[], object] = _no_owner
    """Returns an object that keeps the memory, without keeping it by itself; None where that is gone."""
    accesses: list[Access] = field(default_factory=list)  # What later accesses may conflict with
    only: LaneClock | None = None  # The lane of all these accesses; None where there are several, or none
    freed: list[Access] = field(default_factory=list)  # Uses of arrays that had the memory before, and were freed
    over: Moment = field(default_factory=dict)
    """Up to where each lane's uses had ended before the memory could be freed: it was kept until then."""
    place: object = None  # Where it was allocated
    name: str = ""  # What its array was called when somebody looked last; empty where nobody did

    @property
    def whole(self) -> Region:
        """All of it."""
        return Region(self.start, self.end)


class Access:
    """One lane's read or write."""

    __slots__ = ("is_met", "is_write", "lane", "order", "piece", "place", "region", "tick", "told", "work")

    def __init__(
        self,
        piece: Piece,
        lane: LaneClock,
        region: Region | None,
        work: str,
        place: object,
        order: int,
        is_write: bool,  # noqa: FBT001 - on the hot path, where naming them costs
        is_met: bool,  # noqa: FBT001
    ) -> None:
        self.piece = piece
        self.lane = lane
        self.tick = lane.used_tick = lane.tick
        self.region = region  # Which bytes; None for all of the piece
        self.work = work
        self.place = place
        self.order = order
        self.is_write = is_write
        self.is_met = is_met  # Whether another one was there that is not ordered before it
        self.told = 0  # The last step that was found to conflict with it

    @property
    def bounds(self) -> Region:
        """The bytes."""
        return self.piece.whole if self.region is None else self.region


_NO_LANE = LaneClock(-1)
NO_ACCESS = Access(Piece(0, 0, 0, (), "", _NO_LANE), _NO_LANE, None, "", None, 0, False, False)  # noqa: FBT003 - see there
"""Stands for the last access where there is none."""

Touch: TypeAlias = "tuple[Piece, Region | None]"  # A piece of memory, and which of its bytes; None for all of them


class Side(NamedTuple):
    """One of the two accesses of a hazard."""

    lane: LaneClock  # Its lane
    place: str  # Name of the range around it; empty outside all ranges
    work: str  # What accessed the memory
    order: int  # How many steps came before it


@dataclass(slots=True, eq=False)
class FoundHazard:
    """Two accesses without an order, and those like them."""

    kind: HazardKind
    first: Side
    second: Side
    piece: Piece
    scratch_bytes: int | None = None  # How much scratch was asked for, where it was used after its end; None for other hazards
    is_certain: bool = False
    count: int = 0
    host_ns: int = 0  # When it was found first, by the search's clock


class HazardSearch:
    """Follows every access and every order on a card, in the order in which the host enqueues them. It is not locked."""

    # Work is noted in the search of its lane's card. A piece of memory is of the card that has it, and any card may touch it.

    def __init__(
        self,
        name_place: Callable[[object], str] = str,
        name_lane: Callable[[int], str] = str,
        clock: Callable[[], int] = int,
        card: int = 0,
    ) -> None:
        self.clocks = LaneClocks(name_lane, card)  # What is ordered before what
        self.found: dict[tuple[HazardKind, LaneClock, LaneClock, str, str], FoundHazard] = {}
        """The hazards: one for each kind, pair of lanes and pair of ranges."""
        self._name_place = name_place
        self._clock = clock
        self._freed = _FreedMemory()
        self.step_count = 0
        self._take_step = count(1).__next__
        self._take_number = count(1).__next__
        self.clear()

    def stand_beside(self, other: HazardSearch) -> None:
        """Share with the search of another card of the host what is ordered, and the numbers of steps and of memory."""
        self.clocks.stand_beside(other.clocks)
        self._take_step, self._take_number = other._take_step, other._take_number

    def clear(self) -> None:
        """Forget what was found and counted. What is kept to find more stays."""
        self.found.clear()
        self.access_count = 0
        """Accesses seen."""
        self.piece_count = 0
        """Pieces of memory seen."""
        self.let_go_count = 0
        """Accesses that were forgotten to keep memory bounded; a hazard with one of them goes unfound."""
        self.unlisted_count = 0
        """Hazards that are counted, and in no row."""

    # Memory

    def allocate(self, handle: int, start: int, end: int, shape: tuple[int, ...], dtype: object) -> Piece:
        """Take note of a new piece of memory; it may have been somebody else's before."""
        self.piece_count += 1
        piece = Piece(self._take_number(), start, end, shape, dtype, self.clocks.lane(handle))
        piece.freed = self._freed.take(start, end)
        return piece

    def free(self, piece: Piece) -> None:
        """Take note that a piece of memory goes back to its pool; what still uses it is kept until that is ordered."""
        left = self._newest([*piece.freed, *piece.accesses]) if piece.freed else piece.accesses
        if piece.over:
            left = [use for use in left if use.tick > piece.over.get(use.lane, 0)]
        piece.accesses, piece.freed, piece.only = [], [], None
        if left:
            self._freed.put(piece.start, piece.end, left)
            if len(self._freed) > FREED_KEPT:
                self.let_go_count += self._freed.trim(self.clocks)

    @staticmethod
    def kept_until(piece: Piece, moment: Moment) -> None:
        """Take note that a piece could not be freed before a moment was reached."""
        _merge(piece.over, moment)

    def _newest(self, uses: list[Access]) -> list[Access]:
        """Return the last use of each lane and place in memory: it stands for those before it."""
        left = list({(use.lane, use.bounds): use for use in uses}.values())
        self.let_go_count += max(0, len(left) - ACCESSES_KEPT)
        return left[-ACCESSES_KEPT:]

    # Accesses

    def work(self, lane: LaneClock, work: str, place: object, reads: Iterable[Touch], writes: Iterable[Touch]) -> None:
        """Take note of work: what it reads, then what it writes."""
        self.step_count = step = self._take_step()
        is_write = False
        for touches in (reads, writes):
            for piece, region in touches:
                self.access_count += 1
                accesses = piece.accesses
                last = accesses[-1] if accesses else NO_ACCESS
                if (
                    last.lane is lane
                    and last.tick == lane.tick
                    and last.region is region
                    and last.is_write is is_write
                    and last.place is place
                    and not last.is_met
                ):  # the same again: what it was compared with has not changed
                    last.order, last.work = step, work
                elif piece.only is not lane or not self._touch_alone(lane, piece, region, work, place, is_write):
                    self._touch(lane, piece, region, work, place, is_write=is_write)
            is_write = True

    def ended(self, lane: LaneClock, work: str, place: object, piece: Piece, ending: str, scratch_bytes: int) -> None:
        """Take note that the work noted last used scratch that its lane may have given to others since, or freed."""
        # No order makes that right. Whether others wrote there meanwhile is not asked: it is not the array's memory any more.
        first = Side(piece.lane, "", ending, 0)
        second = Side(lane, self._name_place(place), work, self.step_count)
        self._count(HazardKind.USE_AFTER_FREE, first, second, piece, is_certain=True, scratch_bytes=scratch_bytes)

    def unordered(self, lane: LaneClock, reads: Iterable[Touch], writes: Iterable[Touch]) -> set[LaneClock]:
        """Return the lanes that work has to wait for, to be no hazard. Nothing is noted."""
        lanes = {access.lane for touch in reads for access, _ in self._conflicts(lane, touch, is_write=False)}
        return lanes | {access.lane for touch in writes for access, _ in self._conflicts(lane, touch, is_write=True)}

    def last_writers(self, piece: Piece, region: Region | None) -> list[Access]:
        """Return the writes that an array's values may come from, oldest first."""
        bounds = piece.whole if region is None else region
        return [access for access in piece.accesses if access.is_write and overlap(access.bounds, bounds) is not False]

    def _touch_alone(
        self,
        lane: LaneClock,
        piece: Piece,
        region: Region | None,
        work: str,
        place: object,
        is_write: bool,  # noqa: FBT001 - on the hot path
    ) -> bool:
        """Note an access of the only lane that there was; tell whether that was possible without comparing anything."""
        accesses = piece.accesses
        if is_write and piece.freed:
            return False
        if is_write and region is None:
            accesses.clear()
        elif len(accesses) >= PLAIN_ACCESSES:
            return False
        accesses.append(Access(piece, lane, region, work, place, self.step_count, is_write, False))  # noqa: FBT003 - see there
        return True

    def _touch(self, lane: LaneClock, piece: Piece, region: Region | None, work: str, place: object, *, is_write: bool) -> None:
        """Compare an access with those before it, and keep it."""
        accesses = piece.accesses
        if not accesses and is_write and region is None and all(use.lane is lane for use in piece.freed):
            piece.freed, piece.only = [], lane  # new memory, which was this lane's own before
            piece.accesses = [Access(piece, lane, None, work, place, self.step_count, True, False)]  # noqa: FBT003 - see there
            return
        is_met = is_write and bool(piece.freed) and self._is_met(lane, piece.freed, is_write=True)
        if is_write and region is None and not is_met:
            piece.freed = []
        kept = self._drop_covered(lane, piece, region, is_write=is_write) if accesses else []
        is_met = is_met or self._is_met(lane, kept, is_write=is_write)
        if is_met:
            self._tell_all(lane, (piece, region), work, place, is_write=is_write)
        is_alone = not kept or (piece.only is lane and not is_met)
        piece.only = lane if is_alone or all(access.lane is lane for access in kept) else None
        kept.append(Access(piece, lane, region, work, place, self.step_count, is_write, is_met))
        piece.accesses = kept
        if len(kept) > ACCESSES_KEPT:
            self._make_room(piece)

    @staticmethod
    def _is_met(lane: LaneClock, accesses: list[Access], *, is_write: bool) -> bool:
        """Tell whether an access may conflict with one of these."""
        for access in accesses:
            other = access.lane
            if other is lane or access.tick <= lane.knows.get(other, 0) or other.is_gone:
                continue
            if is_write or access.is_write:
                return True
        return False

    @staticmethod
    def _drop_covered(lane: LaneClock, piece: Piece, region: Region | None, *, is_write: bool) -> list[Access]:
        """Return the accesses that a new one does not stand for."""
        # It stands for one that it is ordered behind, whose bytes it covers, and that was a read if it is one: whatever
        # conflicts with the earlier one, unordered, conflicts with the new one as well.
        kept = []
        knows = lane.knows
        for access in piece.accesses:
            other = access.lane
            if other is lane or access.tick <= knows.get(other, 0) or other.is_gone:
                known = access.region
                if (is_write or not access.is_write) and (
                    region is None or known is region or covers(region, piece.whole if known is None else known)
                ):
                    continue
            kept.append(access)
        return kept

    def _conflicts(self, lane: LaneClock, touch: Touch, *, is_write: bool) -> Iterator[tuple[Access, bool]]:
        """Find earlier accesses that are not ordered before this one, and whether they certainly share a byte with it."""
        piece, region = touch
        bounds = piece.whole if region is None else region
        for access in (*piece.accesses, *(piece.freed if is_write else ())):
            if (is_write or access.is_write) and not self.clocks.is_before(access.lane, access.tick, lane):
                shared = overlap(access.bounds, bounds)
                if shared is not False:
                    yield access, shared is True

    def _tell_all(self, lane: LaneClock, touch: Touch, work: str, place: object, *, is_write: bool) -> None:
        piece, region = touch
        for access, is_certain in self._conflicts(lane, touch, is_write=is_write):
            if access.told != self.step_count:  # work that reads and writes an array meets each access once
                access.told = self.step_count
                kind = HazardKind.WRITE_AFTER_WRITE if access.is_write else HazardKind.WRITE_AFTER_READ
                if access.piece is not piece:
                    kind = HazardKind.USE_AFTER_FREE
                elif not is_write:
                    kind = HazardKind.READ_AFTER_WRITE
                first = Side(access.lane, self._name_place(access.place), access.work, access.order)
                second = Side(lane, self._name_place(place), work, self.step_count)
                self._count(kind, first, second, access.piece, is_certain=is_certain)
        if is_write and piece.freed:
            bounds = piece.whole if region is None else region
            piece.freed = [
                access
                for access in piece.freed
                if not (covers(bounds, access.bounds) and self.clocks.is_before(access.lane, access.tick, lane))
            ]

    def _count(
        self, kind: HazardKind, first: Side, second: Side, piece: Piece, *, is_certain: bool, scratch_bytes: int | None = None
    ) -> None:
        key = kind, first.lane, second.lane, first.place, second.place
        row = self.found.get(key)
        if row is None:
            if len(self.found) >= ROWS_KEPT:
                self.unlisted_count += 1
                return
            row = self.found[key] = FoundHazard(kind, first, second, piece, scratch_bytes, host_ns=self._clock())
        row.count += 1
        row.is_certain |= is_certain

    def _make_room(self, piece: Piece) -> None:
        """Let go of an access: of one that everything is ordered behind, else of the oldest."""
        accesses = piece.accesses
        before = len(accesses)
        accesses[:] = [access for access in accesses if not self.clocks.is_host_before(access.lane, access.tick)]
        if len(accesses) == before:
            del accesses[0]
            self.let_go_count += 1


def _uses_in(uses: list[Access], start: int, end: int) -> list[Access]:
    """Return the uses that may share a byte with a piece."""
    found = []
    for use in uses:
        place: Piece | Region = use.piece if use.region is None else use.region
        if place.start < end and start < place.end:
            found.append(use)
    return found


class _FreedMemory:
    """What used memory that has gone back to a pool, by address. Entries do not overlap."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, list[Access]]] = {}  # by first address: behind the last, and the uses
        self._starts: list[int] = []  # the first addresses, sorted

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, start: int, end: int, uses: list[Access]) -> None:
        """Keep the last uses of a piece. What was there before was taken when it was handed out, unless pools lie in pools."""
        uses = [*self.take(start, end), *uses]
        if uses:
            self._entries[start] = (end, uses)
            insort(self._starts, start)

    def take(self, start: int, end: int) -> list[Access]:
        """Return the last uses of memory that is handed out again; what lies beside it stays."""
        first = last = bisect_left(self._starts, end)
        while first and self._entries[self._starts[first - 1]][0] > start:
            first -= 1
        starts = self._starts[first:last]
        del self._starts[first:last]
        taken: list[Access] = []
        for begin in starts:
            behind, uses = self._entries.pop(begin)
            taken += _uses_in(uses, start, end)
            if begin < start:
                self.put(begin, start, _uses_in(uses, begin, start))
            if end < behind:
                self.put(end, behind, _uses_in(uses, end, behind))
        return taken

    def trim(self, clocks: LaneClocks) -> int:
        """Let go of half of what is allowed; return how many uses were let go of that may still matter."""
        left = {
            start: (end, [use for use in uses if not clocks.is_host_before(use.lane, use.tick)])
            for start, (end, uses) in self._entries.items()
        }
        self._entries = {start: entry for start, entry in left.items() if entry[1]}
        order = sorted(self._entries, key=lambda start: max(use.order for use in self._entries[start][1]))
        gone_count = sum(len(self._entries.pop(start)[1]) for start in order[: len(order) - FREED_KEPT // 2])
        self._starts = sorted(self._entries)
        return gone_count
