"""What is ordered before what: vector clocks over lanes, events and the host.

Source: L. Lamport 1978; C. Flanagan and S. Freund, "FastTrack", PLDI 2009 (an access is one tick of one lane's clock).
"""

from __future__ import annotations

from typing import TypeAlias


class LaneClock:
    """One lane: its own time, and how much of every other lane's work is ordered before what it does next."""

    __slots__ = ("host_seen", "is_gone", "knows", "number", "tick", "used_tick")

    def __init__(self, number: int) -> None:
        self.number = number
        """The lane."""
        self.tick = 1
        """Its time; it goes on where others may begin to wait for it. Work of one tick is in the lane's order anyway."""
        self.used_tick = 0
        """Its time when it worked last."""
        self.knows: Moment = {}
        """The newest tick of each other lane that is ordered before what this one does next."""
        self.host_seen = 0
        """Which of the host's waits are in `knows`."""
        self.is_gone = False
        """Whether all that it ever did is ordered before everything that comes."""

    def __repr__(self) -> str:
        return f"<LaneClock {self.number} at {self.tick}>"


Moment: TypeAlias = dict[LaneClock, int]
"""For each lane the newest tick that has been reached there: what a recorded event stands for."""


class LaneClocks:
    """The clocks of all lanes, and the host's.

    There is one clock for all threads of the host: they order one another by locks, queues and joins that cannot be seen from
    here, so a wait of any thread counts for all. That finds less, and never claims too much.

    Examples
    --------
    >>> clocks = LaneClocks()
    >>> copy, compute = clocks.lane(1), clocks.lane(2)
    >>> written = copy.tick
    >>> clocks.is_before(copy, written, compute)
    False
    >>> clocks.wait(compute, clocks.record(copy))
    >>> clocks.is_before(copy, written, compute)
    True
    """

    def __init__(self) -> None:
        self.lanes: dict[int, LaneClock] = {}
        """Every lane whose work may still be unordered, by its number."""
        self.host: Moment = {}
        """What the host has waited for."""
        self.host_count = 0
        """How often that has changed."""

    def lane(self, number: int) -> LaneClock:
        """Return the clock of a lane, with all that the host has waited for: call it where something is enqueued there."""
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = LaneClock(number)
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
            self.host_count += 1

    def host_wait_all(self) -> None:
        """Order all that the host enqueues from now on behind everything: the device was idle."""
        for lane in self.lanes.values():
            self.host[lane] = lane.tick
            lane.tick += 1
        self.host_count += 1

    def is_host_before(self, lane: LaneClock, tick: int) -> bool:
        """Tell whether work of a lane at a tick is ordered before everything that is enqueued from now on."""
        return tick <= self.host.get(lane, 0) or lane.is_gone

    def forget(self, number: int) -> None:
        """Let go of a lane that takes no more work, once the host has waited for all of it."""
        lane = self.lanes.get(number)
        if lane is None or self.host.get(lane, 0) < lane.used_tick:
            return
        lane.is_gone = True
        del self.lanes[number]
        for knows in (self.host, *(other.knows for other in self.lanes.values())):
            knows.pop(lane, None)


def _merge(into: Moment, moment: Moment) -> bool:
    """Take in what is newer; tell whether anything was."""
    is_newer = False
    for lane, tick in moment.items():
        if tick > into.get(lane, 0) and not lane.is_gone:
            into[lane] = tick
            is_newer = True
    return is_newer
