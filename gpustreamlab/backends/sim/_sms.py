"""The simulated SMs: their free block slots, kept for each group of SMs, and how a driver shares them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpustreamlab.backends._features import green_capabilities
from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.backends.sim._commands import Batch
from gpustreamlab.errors import DeviceError, NotSimulatedError, OptionError
from gpustreamlab.model import Capabilities, SMResource
from gpustreamlab.typing import Feature

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._cost import DevicePreset


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


_TPC_SMS = 2  # SMs of a TPC, the least that is scheduled together; a remainder is made of single TPCs of many GPCs


class SMSplitter:
    """Says how a device's SMs can be shared out, and finds those of a context."""

    def __init__(self, preset: DevicePreset) -> None:
        groups, version = preset.sm_groups, preset.cuda_version
        self._preset = preset
        self._ids = () if groups is None else groups.cut(preset.sm_count)
        resource = None
        if groups is not None:
            resource = SMResource(
                min_sms=groups.min_sms,
                alignment_sms=groups.alignment_sms,
                group_sms=groups.group_sms,
                group_count=len(self._ids) - 1,
                remainder_sms=len(self._ids[-1]),
            )
        self.capabilities: Capabilities = green_capabilities(
            version, version, resource, has_memory_pools=preset.has_memory_pools
        )
        """What the driver can do; its bindings are taken to have the same version."""
        self.resource: SMResource | None = None
        """How the SMs can be shared out; None where they cannot."""
        if resource is not None and self.capabilities.has(Feature.GREEN_CONTEXTS):
            self.resource = replace(resource, is_structured=self.capabilities.has(Feature.UNEQUAL_SPLIT))

    def find_sm_ids(self, spec: ContextSpec) -> frozenset[int]:
        """Return the SM ids of a context."""
        resource = self._require(Feature.GREEN_CONTEXTS)
        if spec.workqueue is not None:
            self._require(Feature.WORKQUEUES)
        if bool(spec.groups) == bool(spec.split):
            given = "both" if spec.groups else "neither"
            raise _refuse("INVALID_VALUE", f"a context is made of groups or of a split, and {given} was given", "Give one.")
        if spec.groups:
            return self._collect_groups(spec.groups, resource)
        self._require(Feature.UNEQUAL_SPLIT)
        if not 0 <= spec.place < len(spec.split):
            raise _refuse(
                "INVALID_VALUE",
                f"place {spec.place} is none of the {len(spec.split)} groups of the split",
                f"Give 0 to {len(spec.split) - 1}.",
            )
        return self._split(spec.split, resource)[spec.place]

    def _require(self, feature: Feature) -> SMResource:
        """Return the device's SM resource if the driver has a feature."""
        item = self.capabilities[feature]
        if self.resource is None or not item.available:
            raise _refuse(
                "NOT_SUPPORTED",
                f"the simulated {self._preset.name} has no {feature} ({item.detail})",
                f"It needs {item.needs}. Without it: {item.fallback}.",
            )
        return self.resource

    def _collect_groups(self, groups: tuple[int, ...], resource: SMResource) -> frozenset[int]:
        last = resource.group_count if resource.remainder_sms else resource.group_count - 1
        wrong = [group for group in groups if not 0 <= group <= last]
        if wrong or len(set(groups)) != len(groups):
            what = f"there are no groups {wrong}" if wrong else f"groups {list(groups)} name one twice"
            rest = f"; {last} is the remainder of {resource.remainder_sms} SMs" if resource.remainder_sms else ""
            raise _refuse("INVALID_RESOURCE_CONFIGURATION", what, f"Give numbers from 0 to {last}, each once{rest}.")
        return frozenset(sm for group in groups for sm in self._ids[group])

    def _split(self, split: Sequence[SplitGroup], resource: SMResource) -> list[frozenset[int]]:
        """Take the groups of a structured split from the card, those first that have to be scheduled together."""
        free = [list(ids) for ids in self._ids]
        taken: list[frozenset[int]] = [frozenset()] * len(split)
        steps = [group.coscheduled_sms or resource.alignment_sms for group in split]
        # Large steps first, so that small ones do not break up what they need.
        for place in sorted(range(len(split)), key=lambda place: (split[place].backfill, -steps[place])):
            group, step = split[place], steps[place]
            _check_sizes(group, step, resource)
            ids = _take(free, group.sms, step)
            if group.backfill:
                ids += _take(free, group.sms - len(ids), _TPC_SMS)
            if len(ids) < group.sms:
                raise _refuse(
                    "INVALID_RESOURCE_CONFIGURATION",
                    f"group {place} of the split asked for {group.sms} SMs, {step} at a time scheduled together, and only "
                    f"{len(ids)} such are left",
                    "Ask for fewer SMs or a smaller co-scheduled size, or allow backfill.",
                )
            taken[place] = frozenset(ids)
        return taken


def _check_sizes(group: SplitGroup, step: int, resource: SMResource) -> None:
    if step > resource.group_sms:
        raise NotSimulatedError(
            f"The simulated device does not model {step} SMs that are scheduled together; give at most {resource.group_sms} as "
            "coscheduled_sms."
        )
    unit = _TPC_SMS if group.backfill else step
    what = fix = ""
    if step < 1 or (step % _TPC_SMS and step != resource.alignment_sms):
        what, fix = f"a co-scheduled size of {step} SMs is not a multiple of {_TPC_SMS}", "Give 2, 4 or 8."
    elif group.sms < 1 or group.sms % unit:
        what, fix = f"{group.sms} SMs are no multiple of {unit}", f"Give {max(unit, group.sms - group.sms % unit)}."
    elif group.preferred_coscheduled_sms % step:
        what = f"a preferred co-scheduled size of {group.preferred_coscheduled_sms} SMs is not a multiple of {step}"
        fix = f"Give {step} or {2 * step}."
    if what:
        raise _refuse("INVALID_RESOURCE_CONFIGURATION", what, fix)


def _take(free: list[list[int]], sms: int, step: int) -> list[int]:
    """Take up to so many SMs from the card in order, `step` at a time from one group; the last entry is the remainder."""
    taken: list[int] = []
    for pool in free if step <= _TPC_SMS else free[:-1]:
        while len(taken) + step <= sms and len(pool) >= step:
            taken += pool[:step]
            del pool[:step]
    return taken


def _refuse(code: str, what: str, fix: str) -> DeviceError:
    return DeviceError(f"Creating a green context failed: {what}. {fix}", driver_code=code)
