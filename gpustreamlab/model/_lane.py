"""One row of the timeline: a stream of a context of a device."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model._fields import Count, Whole, check_fields
from gpustreamlab.typing import LaneKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stream as the timeline shows it.

    Stream ids are unique only within a context, so a lane is known by device, context and stream together.
    """

    name: str
    """How the user calls the stream."""
    device: Count = 0
    """CUDA device ordinal."""
    context: Whole = 0
    """Number of the context within the session; 0 is the primary context."""
    stream: int = 0
    """The stream's handle, or its number on the simulated device."""
    partition: str | None = None
    """Name of the partition that the stream belongs to, or None for the whole card."""
    sm_count: Count = 0
    """How many SMs its kernels may run on: those granted to the partition, or all of the card; 0 where unknown."""
    priority: Whole = 0
    """CUDA priority: lower numbers run first, 0 is the lowest priority."""
    kind: LaneKind = LaneKind.STREAM
    """A stream, or a thread of the host."""
    outside: bool = False
    """True for a stream that the session neither made nor took: others work in it."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells two lanes apart: device, context, stream."""
        return (self.device, self.context, self.stream)
