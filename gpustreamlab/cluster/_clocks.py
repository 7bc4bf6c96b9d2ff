"""The clocks of many processes, compared with the client's by messages that go there and back."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.model import ClockJump, ClockOffset, interpolate
from gpustreamlab.typing import FloatArray, Int64Array

MAX_DRIFT = 500e-6
"""How fast two clocks drift apart at most: Linux's kernel lets nobody steer its clock further (MAXFREQ in timex.h). What
goes beyond is a jump; with one burst only, nothing else is known of the drift."""
WINDOW = 8  # Over how many bursts the drift before and after an interval is measured; two alone tell it to their trips only
POINT_LIMIT = 2_048  # How many bursts of an engine are kept; where there are more, old ones are thinned, and that error counts
POOR = 4  # By how many times a first or last burst is worse than its neighbour for that one to speak for it
EDGE_NS = 10**12  # How far beyond the last burst the point is that tells how the drift goes on


class Clocks(Mapping[Hashable, ClockOffset]):
    """How far the clocks of engines are behind the client's, as a `ClockOffset` by engine."""

    # A message is sent at `sent_ns` and answered at `received_ns` by the client's clock; it tells `told_ns`, the engine's, read
    # in between. So the clocks are apart by the middle of the two less what was told, to half the round trip, however
    # the trip is divided into there and back. The best of a burst of such pings, say 20 each second, counts. Between two bursts
    # the difference is interpolated. That is wrong by no more than the drift changes there: it is bounded by the drift before
    # and after the interval, each measured over 8 bursts, with what the round trips leave open. (Where a curve has slopes
    # between a and b, its chord over a length L is off by (b - a) L / 4 at most.) Beyond the last burst the bound grows by the
    # largest drift that was seen, and by how much that varied. A jump that `MAX_DRIFT` and the round trips may hide is taken
    # for drift; apart from jumps, times of an engine do not run backwards.

    def __init__(self, reference: str | None = None) -> None:
        self.reference = uuid.uuid4().hex[:12] if reference is None else reference  # Name of the client's clock
        self._engines: dict[Hashable, _Engine] = {}

    def __getitem__(self, engine: Hashable) -> ClockOffset:
        """Return what is known of an engine's clock; `KeyError` if it never answered."""
        held = self._engines[engine]
        if held.offset is None:
            held.offset = held.measure(self.reference)
        return held.offset

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    def add(self, engine: Hashable, pings: Iterable[tuple[int, int, int]]) -> ClockJump | None:
        """Take a burst of pings, ``(sent_ns, told_ns, received_ns)``; return the jump of the clock since the last one."""
        burst = np.array(list(pings), np.int64).reshape(-1, 3)
        trip_ns = burst[:, 2] - burst[:, 0]
        if not len(burst) or trip_ns.min() < 0:
            raise OptionError("A burst has one or more pings (sent_ns, told_ns, received_ns), and received_ns is the latest.")
        sent_ns, told_ns, received_ns = burst[trip_ns.argmin()].tolist()
        half_ns = (received_ns - sent_ns + 1) // 2 + 1
        held = self._engines.setdefault(engine, _Engine())
        return held.add(told_ns, sent_ns + (received_ns - sent_ns) // 2 - told_ns, half_ns)


@dataclass(slots=True)
class _Side:
    """What was measured between two jumps: for each burst when, the difference, and half the round trip, in ns."""

    at: list[int]
    ahead: list[int]
    half: list[int]
    settled: list[int]  # For each burst the bound on the error until the next one, where bursts were thinned there; else 0

    def __len__(self) -> int:
        return len(self.at)

    def drop(self, place: int) -> None:
        for column in (self.at, self.ahead, self.half, self.settled):
            del column[place]

    def arrays(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        return np.array(self.at), np.array(self.ahead), np.array(self.half)

    def drift(self, last: int = -1) -> tuple[float, float]:
        """Return the drift over the bursts up to one, and how far it may be off."""
        last %= len(self)
        first = max(0, last - WINDOW)
        if first == last:
            return 0.0, MAX_DRIFT
        length = self.at[last] - self.at[first]
        return (self.ahead[last] - self.ahead[first]) / length, (self.half[last] + self.half[first]) / length

    def bend(self, place: int) -> int:
        """Return how far a burst is from the line between its neighbours, in ns."""
        before, after = place - 1, place + 1
        share = (self.at[place] - self.at[before]) / (self.at[after] - self.at[before])
        return abs(self.ahead[place] - self.ahead[before] - round(share * (self.ahead[after] - self.ahead[before])))

    def errors(self) -> tuple[Int64Array, FloatArray]:
        """Return the bound for each interval, in ns, shape (n_bursts - 1,), and the least and the greatest drift seen."""
        at, ahead, half = self.arrays()
        left, right = np.arange(len(at) - 1), np.arange(1, len(at))
        own, own_doubt = _slope(at, ahead, half, left, right)
        # Where nothing is measured on one side, what the interval itself leaves open stands for it.
        begin, end = np.maximum(left - WINDOW, 0), np.minimum(right + WINDOW, len(at) - 1)
        before, before_doubt = _slope(at, ahead, half, begin, left)
        after, after_doubt = _slope(at, ahead, half, right, end)
        before, before_doubt = np.where(begin == left, own, before), np.where(begin == left, own_doubt, before_doubt)
        after, after_doubt = np.where(end == right, own, after), np.where(end == right, own_doubt, after_doubt)
        least = np.minimum(before - before_doubt, after - after_doubt)
        most = np.maximum(before + before_doubt, after + after_doubt)
        misfit = np.maximum(abs(own - before), abs(own - after))
        spread = np.maximum((most - least) / 4, misfit) * (at[right] - at[left])
        error = np.maximum(half[left], half[right]) + np.ceil(spread).astype(np.int64)
        seen = np.array([min(before.min(), after.min()), max(before.max(), after.max())])
        return np.maximum(error, np.array(self.settled[:-1])), seen

    def thin(self) -> None:
        """Drop those of the older half that change least when they are missing."""
        error = self.errors()[0].tolist()
        half = len(self) // 2
        self.settled[:half] = error[:half]
        cost = {place: max(error[place - 1], error[place]) + self.bend(place) for place in range(1, half - 1, 2)}
        for place in sorted(sorted(cost, key=cost.__getitem__)[: len(cost) // 2 + 1], reverse=True):
            self.settled[place - 1] = cost[place]
            self.drop(place)

    def without_poor_ends(self) -> _Side:
        """Return a side without a first and a last burst that say less than what the drift says of them."""
        begin = int(len(self) > 2 and self.half[0] > POOR * self.half[1])
        end = len(self) - int(len(self) > 2 + begin and self.half[-1] > POOR * self.half[-2])
        return _Side(self.at[begin:end], self.ahead[begin:end], self.half[begin:end], self.settled[begin:end])

    def points(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return when, the difference, and the bound, in ns; the first and the last point tell how they go on beyond."""
        at, ahead, half = self.arrays()
        if len(at) == 1:
            error, first_drift, growth = half, 0.0, MAX_DRIFT
        else:
            by_interval, seen = self.errors()
            error = np.maximum(np.append(by_interval, 0), np.insert(by_interval, 0, 0))
            first_drift = self.drift(min(WINDOW, len(at) - 1))[0]
            growth = abs(seen).max() + seen[1] - seen[0] + self.drift()[1]
        last_drift, grown = self.drift()[0], round(growth * EDGE_NS)
        return (
            np.concatenate((at[:1] - EDGE_NS, at, at[-1:] + EDGE_NS)),
            np.concatenate((ahead[:1] - round(first_drift * EDGE_NS), ahead, ahead[-1:] + round(last_drift * EDGE_NS))),
            np.concatenate((error[:1] + grown, error, error[-1:] + grown)),
        )


def _slope(
    at: Int64Array, ahead: Int64Array, half: Int64Array, first: Int64Array, last: Int64Array
) -> tuple[FloatArray, FloatArray]:
    """Return the drift from some bursts to others, and how far it may be off."""
    length = np.maximum(at[last] - at[first], 1)
    return (ahead[last] - ahead[first]) / length, (half[last] + half[first]) / length


@dataclass(slots=True)
class _Engine:
    """What is known of one engine's clock."""

    sides: list[_Side] = field(default_factory=list)
    jumps: list[ClockJump] = field(default_factory=list)  # Between each two sides one
    offset: ClockOffset | None = None  # What was measured, until the next burst comes

    def add(self, at: int, ahead: int, half: int) -> ClockJump | None:
        self.offset = None
        side = self.sides[-1] if self.sides else None
        jump = None if side is None else _jump(side, at, ahead, half)
        if jump is not None:  # what an earlier side has shown may be shown once more
            jump = replace(jump, end_ns=max(one.end_ns for one in (jump, *self.jumps)))
        if side is None or jump is not None:
            self.sides.append(_Side([at], [ahead], [half], [0]))
            self.jumps += [] if jump is None else [jump]
            return jump
        if at <= side.at[-1]:  # the same reading again, or one that came out of order
            return None
        for column, value in zip((side.at, side.ahead, side.half, side.settled), (at, ahead, half, 0), strict=True):
            column.append(value)
        # A burst that was bad as a whole says less than its neighbours.
        if len(side) > 2 and side.half[-2] > max(side.half[-3] + half, side.bend(len(side) - 2)):
            side.drop(len(side) - 2)
        if sum(map(len, self.sides)) > POINT_LIMIT and len(side) > POINT_LIMIT // 4:
            max(self.sides, key=len).thin()
        return None

    def measure(self, reference: str) -> ClockOffset:
        columns = self.sides[0].without_poor_ends().points()
        for jump, side in zip(self.jumps, self.sides[1:], strict=True):
            columns = _joined(columns, side.without_poor_ends().points(), jump)
        at, ahead, error = columns
        return ClockOffset(
            reference=reference,
            at_ns=tuple(at.tolist()),
            ahead_ns=tuple(ahead.tolist()),
            error_ns=tuple(error.tolist()),
            jumps=tuple(self.jumps),
        )


def _jump(side: _Side, at: int, ahead: int, half: int) -> ClockJump | None:
    """Return the jump that a clock must have made for a burst to be as it is; None if it may have drifted there."""
    drift, doubt = side.drift()
    for last in range(-1, -1 - min(4, len(side)), -1):  # the last one alone may have been bad, and hide it
        passed = at + ahead - side.at[last] - side.ahead[last]  # by the client's clock
        by, trips = round(drift * passed) - (ahead - side.ahead[last]), half + side.half[last]
        if abs(by) > trips + (doubt + MAX_DRIFT) * passed:
            break
    else:
        return None
    for _ in range(-1 - last):  # on which side of the step these were is not known
        side.drop(-1)
    if by < 0 and at > side.at[-1]:  # it stood still
        return ClockJump(start_ns=side.at[-1], end_ns=at, by_ns=by)
    reach = round((passed + trips) * (1 + MAX_DRIFT)) + 1  # no side of the step can have shown more than passed
    return ClockJump(start_ns=at - reach, end_ns=side.at[-1] + reach, by_ns=by)


def _joined(
    first: tuple[Int64Array, ...], second: tuple[Int64Array, ...], jump: ClockJump
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the points before a jump and those behind it as one; what may have been on either side is off by as much."""
    middle = (jump.start_ns + jump.end_ns) // 2
    kept = first[0][first[0] < max(middle, jump.end_ns)], second[0][second[0] > min(middle, jump.start_ns)]
    at = np.concatenate((*kept, [middle - EDGE_NS, middle - 1, middle, middle + EDGE_NS]))
    if jump.start_ns + 1 < jump.end_ns:
        at = np.append(at, [jump.start_ns, jump.start_ns + 1, jump.end_ns - 1, jump.end_ns])
    at = np.unique(at)
    is_before, in_doubt = at < middle, (at > jump.start_ns) & (at < jump.end_ns)
    ahead = interpolate(first[0], first[1], at), interpolate(second[0], second[1], at)
    error = interpolate(first[0], first[2], at), interpolate(second[0], second[2], at)
    doubted = abs(ahead[0] - ahead[1]) + np.maximum(*error)
    return at, np.where(is_before, *ahead), np.where(in_doubt, doubted, np.where(is_before, *error))
