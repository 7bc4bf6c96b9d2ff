"""The host's clock in the simulated world."""

from __future__ import annotations


class HostClock:
    """Virtual time of the simulated host, in ns since the backend was made. Only calls into the backend move it.

    Real Python time is never part of it: a loop that computes for a second between two launches costs nothing here.

    Examples
    --------
    >>> clock = HostClock()
    >>> clock.advance(4_000)
    4000
    >>> clock.jump_to(1_000)  # never backwards
    4000
    """

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0
        """The time."""

    def advance(self, duration_ns: int) -> int:
        """Let time pass, and return the new time."""
        return self.jump_to(self.now_ns + duration_ns)

    def jump_to(self, time_ns: int) -> int:
        """Block the host until a time, if that is ahead, and return the new time."""
        self.now_ns = max(self.now_ns, time_ns)
        return self.now_ns
