"""Plan the unequal groups of a structured split (CUDA 13.1 and later).

Source: CUDA driver API, ``cuDevSmResourceSplit``, and the CUDA programming guide, 4.6. No driver that has it was at hand: these
rules are read, not measured, and a session reads back what the device really granted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpustreamlab.analysis._shares import Request
from gpustreamlab.model import Device, Layout, Partition, SMResource
from gpustreamlab.typing import Rounding

_TPC_SMS = 2
"""Step of counts that backfill can reach: the SMs of a TPC."""


def plan_structured(requests: Sequence[Request], device: Device, resource: SMResource, rounding: Rounding) -> Layout | None:
    """Return a layout in which each partition is a multiple of its own co-scheduled size, or None where there is none."""
    granted = {request.name: _rounded_sms(request, resource, rounding) for request in requests if request.sms is not None}
    left_sms = device.sm_count - sum(granted.values())
    for request in requests:
        if request.sms is None:
            step = _step_sms(request, resource)
            free_sms = _free_groups(requests, granted, resource) * _usable_sms(step, resource)
            room = left_sms if step <= _TPC_SMS else min(left_sms, free_sms)
            granted[request.name] = max(0, room - room % step)
            left_sms -= granted[request.name]
    is_missed = rounding is Rounding.EXACT and any(request.sms not in {None, granted[request.name]} for request in requests)
    if is_missed or left_sms < 0 or _free_groups(requests, granted, resource) < 0 or min(granted.values()) < 1:
        return None
    split = tuple(granted[request.name] for request in requests)
    partitions = tuple(_to_partition(request, place, split, resource) for place, request in enumerate(requests))
    return Layout(partitions=partitions, remainder_sms=left_sms)


def split_instead(partitions: Sequence[Partition], resource: SMResource) -> tuple[Partition, ...]:
    """Return partitions planned in groups as those of one structured split, for a remainder that does not join groups."""
    split = tuple(part.granted_sms for part in partitions)
    return tuple(
        replace(part, split=split, place=place, backfill=resource.group_count in part.groups)
        for place, part in enumerate(partitions)
    )


def _to_partition(request: Request, place: int, split: tuple[int, ...], resource: SMResource) -> Partition:
    options, granted_sms = request.options, split[place]
    return Partition(
        name=request.name,
        requested_sms=granted_sms if request.sms is None else request.sms,
        granted_sms=granted_sms,
        split=split,
        place=place,
        takes_rest=request.sms is None,
        coscheduled_sms=options.coscheduled_sms or (0 if options.is_structured else resource.alignment_sms),
        preferred_coscheduled_sms=options.preferred_coscheduled_sms,
        backfill=options.backfill,
    )


def _step_sms(request: Request, resource: SMResource) -> int:
    if request.options.backfill:
        return _TPC_SMS
    return request.options.coscheduled_sms or resource.alignment_sms


def _rounded_sms(request: Request, resource: SMResource, rounding: Rounding) -> int:
    step, sms = _step_sms(request, resource), request.sms or 0
    # Backfill relaxes where SMs come from, not how many there have to be at least.
    least_sms = request.options.coscheduled_sms or resource.alignment_sms
    if rounding is Rounding.DOWN:
        return sms - sms % step if sms >= least_sms else 0
    return -(-max(sms, least_sms) // step) * step


def _free_groups(requests: Sequence[Request], granted: Mapping[str, int], resource: SMResource) -> int:
    """Return how many smallest groups are left, if each partition with steps of more than a TPC has groups of its own.

    Careful: two such partitions might share a group. The remainder of the smallest split serves none of them.
    """
    taken = 0
    for request in requests:
        step = _step_sms(request, resource)
        if step > _TPC_SMS:
            taken += -(-granted.get(request.name, 0) // _usable_sms(step, resource))
    return resource.group_count - taken


def _usable_sms(step: int, resource: SMResource) -> int:
    """Return how many SMs of a group serve a partition with this step."""
    return resource.group_sms // step * step or resource.group_sms
