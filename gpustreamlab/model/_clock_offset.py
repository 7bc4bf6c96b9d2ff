"""How far the clock of a trace is behind a reference clock, when, and how exactly that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpustreamlab.errors import TraceError
from gpustreamlab.model._fields import Checked, Count, Whole
from gpustreamlab.typing import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Checked):
    """A step of a clock, for example of a virtual machine that was suspended.

    Which side of the step a span between its two times was on cannot be told: it may be misplaced by the whole step.
    """

    start_ns: Whole
    """The last time by the trace's own clock that is certainly before the step, in ns."""
    end_ns: Whole
    """The first one that is certainly behind it; before `start_ns` where no time that the clock showed is in doubt."""
    by_ns: Whole
    """By how much it went ahead of the reference; negative where it fell behind, as it does while a machine is suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset(Checked):
    """What to add to the times of a trace so that they are on a reference clock, and the bound on the error of that.

    Between two points both are interpolated; beyond the last ones they go on as they went.

    Examples
    --------
    >>> offset = ClockOffset(reference="client", at_ns=(0, 1_000), ahead_ns=(50, 52), error_ns=(3, 5))
    >>> offset.shift(np.array([0, 500, 2_000])).tolist(), offset.error_at(np.array([500, 2_000])).tolist()
    ([50, 551, 2054], [4, 7])
    """

    reference: str
    """Which clock: two traces whose offsets name the same one can be put together."""
    at_ns: tuple[Whole, ...]
    """When, by the trace's own clock, in ns, ascending."""
    ahead_ns: tuple[Whole, ...]
    """What to add then, in ns."""
    error_ns: tuple[Count, ...]
    """Bound on the error of that, in ns."""
    jumps: tuple[ClockJump, ...] = ()
    """Steps of the clock, in order of time."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.at_ns or not len(self.at_ns) == len(self.ahead_ns) == len(self.error_ns):
            raise TraceError("A ClockOffset has as many at_ns as ahead_ns and error_ns, and at least one.")
        if (np.diff(np.array(self.at_ns)) <= 0).any():
            raise TraceError("ClockOffset.at_ns ascends.")

    @property
    def points(self) -> tuple[Int64Array, Int64Array]:
        """`at_ns` and `ahead_ns` as arrays of shape (n_points,), as `merge` takes them."""
        return np.array(self.at_ns, np.int64), np.array(self.ahead_ns, np.int64)

    def shift(self, times_ns: Int64Array) -> Int64Array:
        """Return times of the trace, in ns, by the reference clock."""
        return times_ns + interpolate(*self.points, times_ns)

    def error_at(self, times_ns: Int64Array) -> Int64Array:
        """Return the bound on the error of `shift`, in ns, for times by the trace's own clock."""
        return interpolate(self.points[0], np.array(self.error_ns, np.int64), times_ns)

    def error_between(self, start_ns: int, end_ns: int) -> int:
        """Return the largest bound between two times, in ns, but for those at which a jump leaves open what they were."""
        at_ns = np.unique([*np.clip(self.at_ns, start_ns, end_ns), start_ns, end_ns])
        is_clear = np.all([(at_ns <= jump.start_ns) | (at_ns >= jump.end_ns) for jump in self.jumps], axis=0)
        return int(self.error_at(at_ns)[is_clear].max(initial=0))


def interpolate(at_ns: Int64Array, values: Int64Array, times_ns: Int64Array) -> Int64Array:
    """Return what a value that is known at some times is at others: on the line between its two neighbours, also beyond them.

    Parameters
    ----------
    at_ns, values
        Shape (n_points,), `at_ns` ascending; one point or more.
    times_ns
        When it is asked for.
    """
    if len(at_ns) == 1:
        return np.full(np.shape(times_ns), values[0], np.int64)
    place = np.clip(np.searchsorted(at_ns, times_ns), 1, len(at_ns) - 1)
    slope = (values[place] - values[place - 1]) / (at_ns[place] - at_ns[place - 1])
    told: Int64Array = values[place - 1] + np.rint(slope * (times_ns - at_ns[place - 1])).astype(np.int64)
    return told
