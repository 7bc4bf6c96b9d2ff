"""Free block slots of the simulated SMs, kept per group of SMs instead of per SM."""

from __future__ import annotations

from collections.abc import Iterable

from gpustreamlab.backends.sim._commands import Batch
from gpustreamlab.errors import OptionError


class SlotPool:
    """The slots of all SMs.

    SMs that every stream's allowed set either contains or excludes are alike; they form one group, and only the group's free
    slots are counted. A set of SMs is then a bit mask of groups.

    Parameters
    ----------
    sm_count
        How many SMs there are.
    slots_per_sm
        Slots of each.
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
        """Cut a group in two: what the set excludes becomes a new group.

        Parameters
        ----------
        number
            The group to cut.
        sm_ids
            The set whose part stays.
        held
            Batches that hold slots of the group, with the slots that a block takes. Their blocks are dealt out to both parts.

        Returns
        -------
        int
            Number of the new group.
        """
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
        """Take slots for as many blocks as fit, spread over the groups in proportion to their room.

        Returns
        -------
        tuple of int, list and int
            Blocks placed; (group, blocks) of each group used; bit mask of these groups.
        """
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
