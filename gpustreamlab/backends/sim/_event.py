"""Events of the simulated device."""

from __future__ import annotations

from gpustreamlab.backends.sim._commands import Mark


class SimEvent:
    """A point that a stream can record and others can wait for. Recording it again forgets the point before."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: Mark | None = None
        """What the last record left in its stream; None before the first."""

    def __repr__(self) -> str:
        if self.mark is None:
            return "<SimEvent, not recorded>"
        return f"<SimEvent, reached at {self.mark.time_ns} ns>" if self.mark.time_ns >= 0 else "<SimEvent, recorded>"
