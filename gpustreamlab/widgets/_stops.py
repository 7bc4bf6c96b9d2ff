"""Where the boundary between two partitions can stand, given what the device can grant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpustreamlab.analysis import REST, PartitionOptions, plan_partitions
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.model import Device, Layout, WorkqueueOptions
from gpustreamlab.typing import Rounding
from gpustreamlab.widgets._draft import DraftRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The line between two partitions, or between the last one and the SMs in no partition."""

    left: int
    """Key of the partition before it."""
    right: int | None
    """Key of the partition behind it; None for the SMs in no partition."""
    left_sms: int
    """SMs that the partition before it has now."""
    both_sms: int
    """SMs of both sides together."""
    stops: tuple[int, ...]
    """SMs that the partition before it can have while all other partitions keep theirs, ascending."""

    def nearest(self, left_sms: int) -> int:
        """Return the stop that is nearest to a wish."""
        return min(self.stops, key=lambda stop: (abs(stop - left_sms), stop))


def boundaries_of(
    rows: Sequence[DraftRow], layout: Layout, device: Device, rounding: Rounding, workqueue: WorkqueueOptions | None
) -> tuple[Boundary, ...]:
    """Return the boundaries of a draft that gives a layout, in its order."""
    parts = layout.partitions
    found = []
    for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
        is_last = place + 1 == len(parts)
        both_sms = part.granted_sms + (layout.remainder_sms if is_last else parts[place + 1].granted_sms)
        stops = {part.granted_sms}
        for left_sms in grantable_sms(device):
            moved = moved_rows(rows, place, left_sms, None if is_last else both_sms - left_sms)
            wanted = [other.granted_sms for other in parts]
            wanted[place : place + 2] = [left_sms] if is_last else [left_sms, both_sms - left_sms]
            if left_sms <= both_sms and min(wanted) > 0 and _grants(moved, device, rounding, workqueue) == wanted:
                stops.add(left_sms)
        right = None if is_last else rows[place + 1].key
        found.append(
            Boundary(left=row.key, right=right, left_sms=part.granted_sms, both_sms=both_sms, stops=tuple(sorted(stops)))
        )
    return tuple(found)


def moved_rows(rows: Sequence[DraftRow], place: int, left_sms: int, right_sms: int | None) -> tuple[DraftRow, ...]:
    """Return the rows with SMs moved over one boundary; who asks for the rest goes on doing so where that still holds."""
    moved = list(rows)
    keeps_rest = right_sms is not None
    moved[place] = _with_sms(moved[place], left_sms, keeps_rest=keeps_rest)
    if right_sms is not None:
        moved[place + 1] = _with_sms(moved[place + 1], right_sms, keeps_rest=True)
    return tuple(moved)


def grantable_sms(device: Device) -> tuple[int, ...]:
    """Return all sizes that a partition of a device can have, ascending."""
    resource = device.sm_resource
    if resource is None:
        return ()
    groups = [count * resource.group_sms for count in range(resource.group_count + 1)]
    sizes = {*groups, *(sms + resource.remainder_sms for sms in groups)}
    return tuple(sorted(sms for sms in sizes if sms > 0))


def _with_sms(row: DraftRow, sms: int, *, keeps_rest: bool) -> DraftRow:
    return row if keeps_rest and row.request.strip().lower() == REST else replace(row, request=str(sms))


def _grants(
    rows: Sequence[DraftRow], device: Device, rounding: Rounding, workqueue: WorkqueueOptions | None
) -> list[int] | None:
    shares: dict[str, int | float | str | PartitionOptions] = {row.name: row.share for row in rows}
    try:
        layout = plan_partitions(shares, device, round=rounding, workqueue=workqueue)
    except GPUStreamLabError:
        return None
    return [part.granted_sms for part in layout]
