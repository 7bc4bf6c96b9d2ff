"""Free block slots of the simulated SMs, kept per group of SMs instead of per SM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpustreamlab.backends.sim._commands import Batch
from gpustreamlab.errors import OptionError


class SlotPool:
    """The slots of all SMs.

    SMs that every stream's allowed set either contains or excludes are alike; they form one group, and only the group's free
    slots are counted. A set of SMs is then a bit mask of groups.
    """

    def __init__(self, sm_count: int, slots_per_sm: int) -> None:
        self.sm_count = sm_count
        self.slots_per_sm = slots_per_sm
        self.groups: list[frozenset[int]] = [frozenset(range(sm_count))]
        """SM ids of each group."""
        self.free: list[int] = [sm_count * slots_per_sm]
        """Free slots of each group."""
        self.full_mask = 1
        """All groups."""

    def check_sm_ids(self, sm_ids: Iterable[int]) -> frozenset[int]:
        """Return the SM ids as a set, or say what is wrong with them."""
        wanted = frozenset(sm_ids)
        wrong = sorted(sm for sm in wanted if not 0 <= sm < self.sm_count)
        if wrong or not wanted:
            raise OptionError(
                f"A simulated stream was given the SMs {wrong or 'of an empty set'}; this device has SMs 0 to "
                f"{self.sm_count - 1}. Give some of those as sm_ids, or None for all."
            )
        return wanted

    def plan_splits(self, sm_ids: frozenset[int]) -> list[int]:
        """Return the groups that the set would cut in two."""
        return [number for number, group in enumerate(self.groups) if sm_ids & group and group - sm_ids]

    def split(self, number: int, sm_ids: frozenset[int], held: Iterable[tuple[Batch, int]]) -> int:
        """Cut a group in two: what the set excludes becomes a new group."""
        group = self.groups[number]
        kept, cut = group & sm_ids, group - sm_ids
        new = len(self.groups)
        self.groups[number] = kept
        self.groups.append(cut)
        self.free[number] = len(kept) * self.slots_per_sm
        self.free.append(len(cut) * self.slots_per_sm)
        self.full_mask |= 1 << new
        # The widest blocks first: all widths are powers of two, so what is left always fits (see the module's test).
        for batch, slots in sorted(held, key=lambda item: -item[1]):
            self._deal(batch, slots, number, new)
        return new

    def mask_of(self, sm_ids: frozenset[int] | None) -> int:
        """Return the bit mask of a set of SMs that no group crosses."""
        if sm_ids is None:
            return self.full_mask
        return sum(1 << number for number, group in enumerate(self.groups) if group <= sm_ids)

    def has_room(self, mask: int, slots: int) -> bool:
        """Tell whether a block of so many slots finds room in the groups of a mask."""
        return any(free >= slots and mask >> number & 1 for number, free in enumerate(self.free))

    def take(self, mask: int, slots: int, blocks: int) -> tuple[int, list[tuple[int, int]], int]:
        """Take slots for as many blocks as fit, spread over the groups in proportion to their room."""
        free = self.free
        if len(free) == 1:
            count = min(free[0] // slots, blocks)
            if not mask or count < 1:
                return 0, [], 0
            free[0] -= count * slots
            return count, [(0, count)], 1
        rooms = [(number, room // slots) for number, room in enumerate(free) if mask >> number & 1 and room >= slots]
        total = sum(room for _, room in rooms)
        count = left = min(total, blocks)
        parts = []
        used = 0
        for number, room in rooms:
            # Proportional, rounded up, so that the last group never has to take more than it has.
            share = min(left, -(-count * room // total))
            if share:
                free[number] -= share * slots
                parts.append((number, share))
                used |= 1 << number
                left -= share
        return count, parts, used

    def give_back(self, parts: list[tuple[int, int]], slots: int) -> None:
        """Free the slots of blocks that ended."""
        for number, count in parts:
            self.free[number] += count * slots

    def _deal(self, batch: Batch, slots: int, kept: int, new: int) -> None:
        """Deal out a batch's blocks on a group that was cut in two."""
        count = next(count for number, count in batch.parts if number == kept)
        sizes = len(self.groups[kept]), len(self.groups[new])
        rooms = self.free[kept] // slots, self.free[new] // slots
        stay = min(max(count * sizes[0] // sum(sizes), count - rooms[1]), rooms[0])
        batch.parts = [part for part in batch.parts if part[0] != kept]
        batch.parts += [part for part in ((kept, stay), (new, count - stay)) if part[1]]
        batch.mask = sum(1 << number for number, _ in batch.parts)
        self.free[kept] -= stay * slots
        self.free[new] -= (count - stay) * slots


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
