"""What was asked for a partition: SMs, a share of the card, or the rest."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from gpustreamlab.errors import PartitionError
from gpustreamlab.model import Partition, check_fields, check_name

_ROUNDING_SLACK = 1e-6
"""Part of an SM that a share may lack because its product with the card is rounded."""
MAX_COSCHEDULED_SMS = 32
"""Most SMs that a structured split schedules together. Source: CUDA driver API, ``cuDevSmResourceSplit``."""
_Coscheduled: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_COSCHEDULED_SMS, multiple_of=2)]

REST = "rest"
"""What is asked for by a partition that takes all SMs that the others leave."""


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


Share: TypeAlias = int | float | str | PartitionOptions
"""What `plan_partitions` takes for a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One partition as it was asked for, in SMs."""

    name: str
    sms: int | None
    """None for the rest."""
    options: PartitionOptions


def read_requests(shares: Mapping[str, Share], sm_count: int) -> list[Request]:
    """Return what was asked for, in SMs.

    Raises
    ------
    InvalidNameError
        If a partition's name cannot be used.
    PartitionError
        If nothing, no number, or more than one rest was asked for.
    """
    require_mapping(shares)
    requests = [
        _read_request(check_name(name, "partition", "lab.partition(decode=32)"), shares[name], sm_count) for name in shares
    ]
    rests = [request.name for request in requests if request.sms is None]
    if len(rests) > 1:
        raise PartitionError(
            f"Only one partition can have the rest; {', '.join(rests)} ask for it. Give the others SMs or shares."
        )
    return requests


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
    if isinstance(share, PartitionOptions):
        return Request(name=name, sms=_to_sms(name, share.sms, sm_count), options=share)
    sms = _to_sms(name, share, sm_count)
    return Request(name=name, sms=sms, options=PartitionOptions(sms=REST if sms is None else sms))


def _to_sms(name: str, share: object, sm_count: int) -> int | None:
    if isinstance(share, str):
        return _text_to_sms(name, share, sm_count)
    if isinstance(share, float):
        return _part_of_card(name, share, repr(share), sm_count)
    try:
        if isinstance(share, bool):
            raise TypeError
        return operator.index(share)  # type: ignore[arg-type] # what has no index is refused below
    except TypeError:
        raise _unreadable(name, share) from None


def _text_to_sms(name: str, text: str, sm_count: int) -> int | None:
    word = text.strip().lower()
    if word == REST:
        return None
    try:
        if word.endswith("%"):
            return _part_of_card(name, float(word[:-1]) / 100, repr(text), sm_count)
        return _part_of_card(name, float(word), repr(text), sm_count) if "." in word else int(word)
    except ValueError as error:
        if isinstance(error, PartitionError):
            raise
        raise _unreadable(name, text) from None


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
