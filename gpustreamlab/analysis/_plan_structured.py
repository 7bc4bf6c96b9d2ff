"""Plan the unequal groups of a structured split (CUDA 13.1 and later).

Source: CUDA driver API, ``cuDevSmResourceSplit``, and the CUDA programming guide, 4.6. No driver that has it was at hand: these
rules are read, not measured, and a session reads back what the device really granted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
            room = left_sms if step <= _TPC_SMS else min(left_sms, _rigid_room(requests, granted, resource))
            granted[request.name] = max(0, room - room % step)
            left_sms -= granted[request.name]
    is_missed = rounding is Rounding.EXACT and any(request.sms not in {None, granted[request.name]} for request in requests)
    if is_missed or left_sms < 0 or _rigid_room(requests, granted, resource) < 0 or min(granted.values()) < 1:
        return None
    partitions = tuple(_to_partition(request, granted[request.name], resource) for request in requests)
    return Layout(partitions=partitions, remainder_sms=left_sms)


def _to_partition(request: Request, granted_sms: int, resource: SMResource) -> Partition:
    options = request.options
    return Partition(
        name=request.name,
        requested_sms=granted_sms if request.sms is None else request.sms,
        granted_sms=granted_sms,
        split_sms=granted_sms,
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
    return sms - sms % step if rounding is Rounding.DOWN else -(-sms // step) * step


def _rigid_room(requests: Sequence[Request], granted: Mapping[str, int], resource: SMResource) -> int:
    """Return how many SMs are left for groups of more than a TPC: the remainder of the smallest split serves none of them."""
    taken = sum(granted.get(request.name, 0) for request in requests if _step_sms(request, resource) > _TPC_SMS)
    return resource.group_count * resource.group_sms - taken
