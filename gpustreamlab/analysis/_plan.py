"""Plan partitions: what a device would grant for what is asked, without touching it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import msgspec

from gpustreamlab.errors import OptionError, PartitionError, PartitionUnavailableError
from gpustreamlab.model import Device, Layout, Partition, SMResource, WorkqueueOptions, check_fields, check_name
from gpustreamlab.typing import Rounding

_ROUNDING_SLACK = 1e-6  # Part of an SM that a share may lack because its product with the card is rounded
MAX_COSCHEDULED_SMS = 32
"""Most SMs that a structured split schedules together. Source: CUDA driver API, ``cuDevSmResourceSplit``."""
_Coscheduled: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_COSCHEDULED_SMS, multiple_of=2)]

REST = "rest"  # What is asked for by a partition that takes all SMs that the others leave


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """A partition's SMs, with what only a structured split can do (CUDA 13.1 and later).

    Source: CUDA driver API, ``CU_DEV_SM_RESOURCE_GROUP_PARAMS``.

    Examples
    --------
    >>> PartitionOptions(sms=32, coscheduled_sms=4).is_structured
    True
    """

    sms: int | float | str
    """SMs as a whole number, a share (0.25 or ``"25%"``) of the card, or ``"rest"``."""
    coscheduled_sms: _Coscheduled = 0
    """SMs that must be scheduled together, for clusters; 0 for the device's default."""
    preferred_coscheduled_sms: _Coscheduled = 0
    """SMs that should be, where possible; 0 for no wish."""
    backfill: bool = False
    """Whether that may be relaxed to reach the count."""

    def __post_init__(self) -> None:
        check_fields(self, PartitionError)

    @property
    def is_structured(self) -> bool:
        """True if a structured split is needed."""
        return bool(self.coscheduled_sms or self.preferred_coscheduled_sms or self.backfill)


def options_of(part: Partition) -> PartitionOptions | None:
    """Return what a planned partition asked of a structured split; None for one that was planned in groups."""
    if part.groups or not part.is_structured:
        return None
    return PartitionOptions(
        sms=part.requested_sms,
        coscheduled_sms=part.coscheduled_sms,
        preferred_coscheduled_sms=part.preferred_coscheduled_sms,
        backfill=part.backfill,
    )


Share: TypeAlias = int | float | str | PartitionOptions  # What `plan_partitions` takes for a partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One partition as it was asked for, in SMs."""

    name: str
    sms: int | None  # None for the rest
    options: PartitionOptions
    is_share: bool = False  # True where the nearest that the device grants will do


def read_requests(shares: Mapping[str, Share], sm_count: int) -> list[Request]:
    """Return what was asked for, in SMs; raise for names that cannot be used, nothing or no number. Several rests are equal."""
    require_mapping(shares)
    requests = [
        _read_request(check_name(name, "partition", "lab.partition(decode=32)"), shares[name], sm_count) for name in shares
    ]
    rests = sum(request.sms is None for request in requests)
    if rests <= 1:
        return requests
    each = (sm_count - sum(request.sms or 0 for request in requests)) // rests
    return [request if request.sms is not None else replace(request, sms=each, is_share=True) for request in requests]


def require_mapping(shares: object) -> None:
    """Raise `PartitionError` for what names no partition."""
    if not isinstance(shares, Mapping):
        raise PartitionError(
            f"Partitions are given as a mapping of names to SMs; this is of type {type(shares).__name__}. "
            "Use lab.partition(prefill=96, decode=32)."
        )
    if not shares:
        raise PartitionError(
            "No partition was named. Use for example lab.partition(prefill=96, decode='rest'); lab.partition(None) goes back "
            "to the whole card."
        )


def _read_request(name: str, share: Share, sm_count: int) -> Request:
    asked = share.sms if isinstance(share, PartitionOptions) else share
    sms = _to_sms(name, asked, sm_count)
    options = share if isinstance(share, PartitionOptions) else PartitionOptions(sms=REST if sms is None else sms)
    is_share = isinstance(asked, float) or (isinstance(asked, str) and ("%" in asked or "." in asked))
    return Request(name=name, sms=sms, options=options, is_share=is_share)


def _to_sms(name: str, share: object, sm_count: int) -> int | None:
    number = share
    try:
        if isinstance(share, str):
            word = share.strip().lower()
            if word == REST:
                return None
            is_part = word.endswith("%") or "." in word
            number = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1) if is_part else int(word)
        elif isinstance(share, bool):
            raise TypeError
        # What has no index is refused below.
        sms = number if isinstance(number, float) else operator.index(number)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise _unreadable(name, share) from None
    return _part_of_card(name, sms, repr(share), sm_count) if isinstance(sms, float) else sms


def _part_of_card(name: str, share: float, text: str, sm_count: int) -> int:
    if not math.isfinite(share) or not 0 < share <= 1:
        whole = f" For SMs, give the whole number {round(share)}." if math.isfinite(share) and 1 < share <= sm_count else ""
        raise PartitionError(
            f"Partition {name!r} asks for the share {text}; shares of the card are above 0 and at most 1 (100%).{whole}"
        )
    return max(1, math.floor(share * sm_count + _ROUNDING_SLACK))  # so that shares of 100% are never more than the card


def _unreadable(name: str, share: object) -> PartitionError:
    if isinstance(share, Mapping):
        return PartitionError(
            f"Partition {name!r} asks for a mapping. Pass it without a name: lab.partition({{'prefill': 96}})."
        )
    return PartitionError(
        f"Partition {name!r} asks for {str(share)[:40]!r}; give SMs as a whole number, a share such as 0.25 or '25%', "
        "or 'rest'."
    )


_TPC_SMS = 2  # Step of counts that backfill can reach: the SMs of a TPC


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
    partitions = tuple(
        Partition(
            name=request.name,
            requested_sms=granted_sms if request.sms is None else request.sms,
            granted_sms=granted_sms,
            split=split,
            place=place,
            takes_rest=request.sms is None,
            coscheduled_sms=request.options.coscheduled_sms or (0 if request.options.is_structured else resource.alignment_sms),
            preferred_coscheduled_sms=request.options.preferred_coscheduled_sms,
            backfill=request.options.backfill,
        )
        for place, (request, granted_sms) in enumerate(zip(requests, split, strict=True))
    )
    return Layout(partitions=partitions, remainder_sms=left_sms)


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
    """Return how many smallest groups are left, if each partition with steps of more than a TPC has groups of its own."""
    # Careful: two such partitions might share a group. The remainder of the smallest split serves none of them.
    taken = 0
    for request in requests:
        step = _step_sms(request, resource)
        if step > _TPC_SMS:
            taken += -(-granted.get(request.name, 0) // _usable_sms(step, resource))
    return resource.group_count - taken


def _usable_sms(step: int, resource: SMResource) -> int:
    """Return how many SMs of a group serve a partition with this step."""
    return resource.group_sms // step * step or resource.group_sms


LISTED_TERMS = 8  # Partitions that a message lists
_HOW_TO_PLAN = "Plan one with gpustreamlab.plan_partitions({'prefill': 96, 'decode': 'rest'}, lab.device)."


@dataclass(frozen=True, slots=True)
class _Grant:
    """Whole groups, and perhaps the remainder."""

    groups: int
    has_remainder: bool = False

    def sms(self, resource: SMResource) -> int:
        return self.groups * resource.group_sms + (resource.remainder_sms if self.has_remainder else 0)


def plan_partitions(
    shares: Mapping[str, Share],
    device: Device | None = None,
    *,
    round: Rounding | str = Rounding.UP,  # noqa: A002 - what the user types
    workqueue: WorkqueueOptions | None = None,
) -> Layout:
    """Return what a device would grant for what is asked. Touches no device.

    Parameters
    ----------
    shares
        For each partition its SMs as a whole number, a share of the card (0.25 or ``"25%"``), ``"rest"`` for all that the
        others leave (several share it equally), or `PartitionOptions`.
    device
        The device, for example ``lab.device``; its `SMResource` says what can be granted.
    round
        ``"up"``: at least what was asked, and for shares that cannot all have that the nearest; ``"down"``: at most;
        ``"exact"``: exactly, or an error.
    workqueue
        How the partitions share work queues.

    Returns
    -------
    Layout
        Disjoint partitions in the order in which they were asked for. Equal requests give equal layouts.

    Raises
    ------
    PartitionError
        If the SMs cannot be shared out like this; ``nearest`` and the message hold the nearest plan that works.
    PartitionUnavailableError
        If the device cannot partition its SMs, or lacks a feature that was asked for.
    InvalidNameError
        If a partition's name cannot be used.
    OptionError
        If there is no such rounding.

    Notes
    -----
    Below CUDA 13.1 a device is split once into its smallest groups, and a partition is made of several of them; what is left
    over of the split stays together, and the one partition gets it for which that wastes fewest SMs.

    Examples
    --------
    >>> from gpustreamlab.model import Device, SMResource
    >>> h200 = Device(
    ...     name="H200",
    ...     sm_count=132,
    ...     sm_resource=SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12),
    ... )
    >>> print(plan_partitions({"prefill": 96, "decode": 32}, h200))
    Layout: prefill 100 SMs (asked for 96), decode 32 SMs (asked for 32)
    The device grants SMs in groups, and what is left over to one partition;
        round='exact' refuses instead.
    >>> plan_partitions({"prefill": "75%", "decode": "rest"}, h200, round="down")["prefill"].granted_sms
    96
    """
    rounding = check_rounding(round)
    if not isinstance(device, Device):
        raise OptionError(
            f"Partitions are planned for a device, not for {device!r:.40}. Use gsl.plan_partitions({{...}}, lab.device)."
        )
    requests = read_requests(shares, device.sm_count)
    check_workqueue(workqueue)
    resource = _require_resource(device, [request.name for request in requests if request.options.is_structured])
    problem = _size_problem(requests, device, min_sms=resource.min_sms)
    if problem:
        raise _refuse(problem, requests, resource)
    if any(request.options.is_structured for request in requests):
        layout = plan_structured(requests, device, resource, rounding)
        if layout is None:
            # Whole groups without the remainder can be had in any split of at most their size.
            rigid = replace(resource, remainder_sms=0)
            raise _refuse(_why_not(requests, rigid, rounding), requests, rigid)
        return replace(layout, workqueue=workqueue)
    grants = _solve(requests, resource, rounding)
    if grants is None and rounding is Rounding.UP:
        grants = _solve_shares(requests, resource)
    if grants is None:
        reason = _why_not(requests, resource, rounding)
        if rounding is Rounding.UP and _solve(requests, resource, Rounding.DOWN) is not None:
            reason += "; with round='down' they can"
        raise _refuse(reason, requests, resource)
    return _to_layout(requests, grants, device, resource, workqueue)


def unenforced_layout(shares: Mapping[str, Share], device: Device) -> Layout:
    """Return the layout of a device that cannot partition its SMs: every partition is the whole card."""
    requests = read_requests(shares, device.sm_count)
    problem = _size_problem(requests, device, min_sms=1)
    if problem:
        raise PartitionError(f"{problem}.")
    left_sms = device.sm_count - sum(request.sms or 0 for request in requests)
    rest = next((request.name for request in requests if request.sms is None), None)
    if rest is not None and not left_sms:
        raise PartitionError(f"Partition {rest!r} asks for the rest, and the others leave none of {device.sm_count} SMs.")
    partitions = tuple(
        Partition(
            name=request.name, requested_sms=left_sms if request.sms is None else request.sms, granted_sms=device.sm_count
        )
        for request in requests
    )
    return Layout(partitions=partitions, is_enforced=False)


def check_layout(layout: Layout, device: Device) -> Layout:
    """Return a layout that fits a device; raise `PartitionError` for one that does not."""
    if not isinstance(layout, Layout):
        raise PartitionError(f"A {type(layout).__name__} is not a layout. {_HOW_TO_PLAN}")
    if not layout.is_enforced:
        return layout
    resource = _require_resource(device, [part.name for part in layout if part.is_structured])
    groups = [group for part in layout for group in part.groups]
    last = resource.group_count if resource.remainder_sms else resource.group_count - 1
    fits = all(0 <= group <= last for group in groups) and len(set(groups)) == len(groups)
    counts = all(part.is_structured or part.granted_sms == resource.sms_of(part.groups) > 0 for part in layout)
    if not layout.partitions or not fits or not counts or sum(part.granted_sms for part in layout) > device.sm_count:
        raise PartitionError(f"This layout is not of {device.label}: {layout}. {_HOW_TO_PLAN}")
    return layout


def check_rounding(rounding: Rounding | str) -> Rounding:
    """Return a rounding rule by its name; raise `OptionError` where there is none."""
    try:
        return Rounding(rounding)
    except ValueError:
        raise OptionError(f"Unknown rounding {rounding!r}. Choose from 'up', 'down' and 'exact'.") from None


def check_workqueue(workqueue: object) -> None:
    """Raise `PartitionError` for what is neither `WorkqueueOptions` nor None."""
    if workqueue is not None and not isinstance(workqueue, WorkqueueOptions):
        raise PartitionError(
            f"workqueue is a {type(workqueue).__name__}. Use gpustreamlab.WorkqueueOptions(concurrency_limit=4), or none."
        )


def _require_resource(device: Device, structured: Sequence[str]) -> SMResource:
    """Return how the SMs of a device are shared out, if it can do that; some partitions may need a structured split."""
    resource = device.sm_resource
    if resource is None:
        raise PartitionUnavailableError(
            f"{device.label} cannot partition its SMs. See lab.partitions.capabilities for what it needs; "
            "lab.partition(...) without strict=True goes on with plain streams."
        )
    if structured and not resource.is_structured:
        raise PartitionUnavailableError(
            f"Partition {structured[0]!r} asks for co-scheduling or backfill, which needs CUDA 13.1 in the driver and the "
            f"bindings; {device.label} has {device.driver_version or 'an older one'}. Leave those options out, or see "
            "lab.partitions.capabilities."
        )
    return resource


def _size_problem(requests: Sequence[Request], device: Device, *, min_sms: int) -> str:
    """Say what no rounding can grant, or nothing."""
    asked = [(request.name, request.sms) for request in requests if request.sms is not None]
    for name, sms in asked:
        if sms < 1:
            return f"Partition {name!r} asks for {sms:,} SMs; the smallest partition has {min_sms}"
        if sms > device.sm_count:
            return f"Partition {name!r} asks for {sms:,} SMs; {device.label} has {device.sm_count}"
    total = sum(sms for _, sms in asked)
    if total > device.sm_count:
        listed = _shortened([f"{name} {sms}" for name, sms in asked], " + ")
        return f"{listed} = {total:,} SMs; {device.label} has {device.sm_count}"
    return ""


def _solve(requests: Sequence[Request], resource: SMResource, rounding: Rounding) -> list[_Grant] | None:
    """Return the best grants, or None where there are none; each partition in turn is tried as owner of the remainder."""
    owners = _owners(requests, resource)
    rest = next((place for place, request in enumerate(requests) if request.sms is None), None)
    if rest is not None and resource.remainder_sms:
        owners = [rest, *(place for place in owners if place not in {None, rest})]
    plans = [plan for owner in owners if (plan := _grant(requests, resource, rounding, owner)) is not None]
    return min(plans, key=lambda plan: _cost(requests, plan, resource), default=None)


def _owners(requests: Sequence[Request], resource: SMResource) -> list[int | None]:
    """Return who may have the remainder: nobody, or each partition, the last one first."""
    return [None, *reversed(range(len(requests)))] if resource.remainder_sms else [None]


def _solve_shares(requests: Sequence[Request], resource: SMResource) -> list[_Grant] | None:
    """Return the grants nearest to shares, if partitions that were asked for in SMs have at least those."""
    grants = _nearest(requests, resource)
    if grants is None or any(request.sms is None for request in requests):
        return None
    pairs = zip(requests, grants, strict=True)
    return grants if all(request.is_share or grant.sms(resource) >= (request.sms or 0) for request, grant in pairs) else None


def _grant(requests: Sequence[Request], resource: SMResource, rounding: Rounding, owner: int | None) -> list[_Grant] | None:
    """Return the grants for one owner of the remainder, or None where they do not fit."""
    counts = [_group_count(request, resource, rounding, place == owner) for place, request in enumerate(requests)]
    if rounding is Rounding.DOWN:
        is_rest_owner = owner is not None and requests[owner].sms is None  # the remainder alone is rest enough
        _shrink(counts, resource.group_count - sum(request.sms is None for request in requests) + is_rest_owner, owner)
    used = sum(count for count in counts if count is not None)
    grants = [
        _Grant(resource.group_count - used if count is None else count, place == owner) for place, count in enumerate(counts)
    ]
    fits = used <= resource.group_count and all(grant.groups >= 0 and grant.sms(resource) > 0 for grant in grants)
    exact = rounding is not Rounding.EXACT or all(
        request.sms in {None, grant.sms(resource)} for request, grant in zip(requests, grants, strict=True)
    )
    return grants if fits and exact else None


def _group_count(request: Request, resource: SMResource, rounding: Rounding, has_remainder: bool) -> int | None:  # noqa: FBT001
    if request.sms is None:
        return None
    wanted = request.sms - (resource.remainder_sms if has_remainder else 0)
    if rounding is Rounding.UP:
        return max(0, -(-wanted // resource.group_sms))
    return wanted // resource.group_sms  # below 0 where the remainder alone is too much


def _shrink(counts: list[int | None], group_count: int, owner: int | None) -> None:
    """Take groups from the largest partitions until all fit; only the owner of the remainder can be left without any."""
    known = [place for place, count in enumerate(counts) if count is not None]
    while known and sum(counts[place] or 0 for place in known) > group_count:
        largest = max(known, key=lambda place: (counts[place] or 0) - (place != owner))
        counts[largest] = (counts[largest] or 0) - 1


def _cost(requests: Sequence[Request], grants: Sequence[_Grant], resource: SMResource) -> tuple[int, float]:
    """Return how far grants are from what was asked: in all, and for the partition that is worst off in proportion."""
    pairs = [(request.sms, grant.sms(resource)) for request, grant in zip(requests, grants, strict=True) if request.sms]
    misses = [abs(granted - asked) for asked, granted in pairs]
    return sum(misses), max((miss / asked for miss, (asked, _) in zip(misses, pairs, strict=True)), default=0.0)


def _to_layout(
    requests: Sequence[Request],
    grants: Sequence[_Grant],
    device: Device,
    resource: SMResource,
    workqueue: WorkqueueOptions | None,
) -> Layout:
    partitions, first = [], 0
    for request, grant in zip(requests, grants, strict=True):
        groups = (*range(first, first + grant.groups), *([resource.group_count] if grant.has_remainder else []))
        first += grant.groups
        sms, is_rest = grant.sms(resource), request.sms is None
        requested_sms = sms if request.sms is None else request.sms
        partitions.append(
            Partition(name=request.name, requested_sms=requested_sms, granted_sms=sms, groups=groups, takes_rest=is_rest)
        )
    left_sms = device.sm_count - sum(part.granted_sms for part in partitions)
    mixes = any(resource.group_count in part.groups and len(part.groups) > 1 for part in partitions)
    if mixes and not resource.remainder_joins:
        # The remainder does not join groups here: the same is granted by one structured split.
        split = tuple(part.granted_sms for part in partitions)
        partitions = [
            replace(part, split=split, place=place, backfill=resource.group_count in part.groups)
            for place, part in enumerate(partitions)
        ]
    return Layout(partitions=tuple(partitions), remainder_sms=left_sms, workqueue=workqueue)


def _why_not(requests: Sequence[Request], resource: SMResource, rounding: Rounding) -> str:
    asked = _shortened([f"{request.name}={'rest' if request.sms is None else request.sms}" for request in requests], " and ")
    more = f", and {resource.remainder_sms} more to one partition" if resource.remainder_sms else ""
    grants = f"this device grants multiples of {resource.group_sms} SMs ({resource.group_count} groups in all{more})"
    rule = {Rounding.UP: "at least", Rounding.DOWN: "at most", Rounding.EXACT: "exactly"}[rounding]
    return f"{asked} cannot be granted with {rule} these SMs each: {grants}"


def _refuse(reason: str, requests: Sequence[Request], resource: SMResource) -> PartitionError:
    nearest = nearest_sms(requests, resource)
    if nearest is None:
        most = resource.group_count + bool(resource.remainder_sms)
        advice = f"There is no plan for {len(requests)} partitions; this device has room for {most}."
    else:
        listed = _shortened([f"{name}={sms}" for name, sms in nearest.items()], ", ")
        advice = f"The nearest plan that works: {listed}."
    return PartitionError(f"{reason}. {advice}", nearest=nearest)


def _shortened(terms: Sequence[str], between: str) -> str:
    """Join terms, and leave out the middle of many."""
    if len(terms) <= LISTED_TERMS:
        return between.join(terms)
    return between.join([*terms[: LISTED_TERMS - 2], "…", terms[-1]])


def nearest_sms(requests: Sequence[Request], resource: SMResource) -> dict[str, int] | None:
    """Return SMs by partition that can be granted exactly and are near to what was asked; None where there are none."""
    grants = _nearest(requests, resource)
    return (
        None if grants is None else {request.name: grant.sms(resource) for request, grant in zip(requests, grants, strict=True)}
    )


def _nearest(requests: Sequence[Request], resource: SMResource) -> list[_Grant] | None:
    room = resource.usable_sms
    known = [min(max(request.sms, 1), room) for request in requests if request.sms is not None]
    rest = max(1, room - sum(known))
    asked = [rest if request.sms is None else min(max(request.sms, 1), room) for request in requests]
    scale = min(1.0, room / sum(asked))
    wishes = [
        Request(name=request.name, sms=max(1, int(sms * scale)), options=request.options)
        for request, sms in zip(requests, asked, strict=True)
    ]
    plans = [plan for owner in _owners(wishes, resource) if (plan := _fill(wishes, resource, owner)) is not None]
    return min(plans, key=lambda plan: _cost(wishes, plan, resource), default=None)


def _fill(wishes: Sequence[Request], resource: SMResource, owner: int | None) -> list[_Grant] | None:
    """Give each partition the least it can have, then group by group to the one that misses most."""
    grants = [_Grant(int(place != owner), has_remainder=place == owner) for place in range(len(wishes))]
    left = resource.group_count - sum(grant.groups for grant in grants)
    if left < 0:
        return None
    for _ in range(left):
        missing = [(wish.sms or 0) - grant.sms(resource) for wish, grant in zip(wishes, grants, strict=True)]
        worst = max(range(len(grants)), key=missing.__getitem__)
        if 2 * missing[worst] < resource.group_sms:
            break
        grants[worst] = _Grant(grants[worst].groups + 1, grants[worst].has_remainder)
    return grants
