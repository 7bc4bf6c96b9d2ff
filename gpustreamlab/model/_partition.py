"""Partitions of the SMs of a card, as values."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.errors import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A named share of the SMs of one device."""

    name: str
    """How the user calls it."""
    requested_sms: int
    """How many SMs were asked for."""
    granted_sms: int
    """How many SMs the device granted."""
    groups: tuple[int, ...] = ()
    """Indices of the SM groups of the split that it is made of."""
    sm_ids: tuple[int, ...] | None = None
    """The SM ids that were seen to run its work; None until measured."""

    def __post_init__(self) -> None:
        if self.requested_sms < 0 or self.granted_sms < 0:
            raise TraceError(f"Partition {self.name!r} has a negative number of SMs.")
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.sm_ids is not None:
            object.__setattr__(self, "sm_ids", tuple(self.sm_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the SMs of one device are shared out."""

    partitions: tuple[Partition, ...]
    """The partitions, in the order in which they were asked for."""
    remainder_sms: int = 0
    """SMs that no partition has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", tuple(self.partitions))
        names = [partition.name for partition in self.partitions]
        if len(set(names)) != len(names):
            raise TraceError(f"A layout names each partition once; got {names}.")
