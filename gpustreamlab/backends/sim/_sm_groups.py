"""How the SMs of a simulated device hang together, which decides how they can be shared out."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SMGroups:
    """The smallest groups that a driver splits a device into.

    Examples
    --------
    >>> SMGroups(min_sms=4, alignment_sms=2).cut(10)
    ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    """

    min_sms: int
    """Fewest SMs that a partition can have."""
    alignment_sms: int
    """SMs that are scheduled together."""
    table: tuple[tuple[int, ...], ...] = ()
    """SM ids of each group, those of one TPC side by side; empty for groups of SMs that follow each other."""

    def __post_init__(self) -> None:
        if min(self.min_sms, self.alignment_sms) < 1:
            raise OptionError(
                f"SMGroups has min_sms={self.min_sms} and alignment_sms={self.alignment_sms}; give at least 1, such as 8 and 8."
            )
        listed = [sm for group in self.table for sm in group]
        if len(set(listed)) != len(listed) or any(len(group) != self.group_sms for group in self.table):
            raise OptionError(
                f"SMGroups has a table that does not list {self.group_sms} SMs in each group, each SM once. Leave it out for "
                "groups of SMs that follow each other."
            )

    @property
    def group_sms(self) -> int:
        """SMs of each group: the smallest partition, in whole steps of the alignment."""
        return -(-self.min_sms // self.alignment_sms) * self.alignment_sms

    def cut(self, sm_count: int) -> tuple[tuple[int, ...], ...]:
        """Return the SM ids of each group, and last those of the remainder, of which there may be none.

        Raises
        ------
        OptionError
            If the device is too small for one group, or lacks an SM of the table.
        """
        size = self.group_sms
        groups = self.table or tuple(tuple(range(at, at + size)) for at in range(0, sm_count - size + 1, size))
        grouped = {sm for group in groups for sm in group}
        if not groups or not grouped <= set(range(sm_count)):
            raise OptionError(
                f"SMGroups of {size} SMs do not fit a device with SMs 0 to {sm_count - 1}. Give smaller ones, or None for a "
                "device that cannot partition its SMs."
            )
        return (*groups, tuple(sm for sm in range(sm_count) if sm not in grouped))
