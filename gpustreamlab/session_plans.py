"""Read what a caller asks of the SMs."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType

from gpustreamlab.analysis import Share
from gpustreamlab.backends import Backend
from gpustreamlab.errors import PartitionError
from gpustreamlab.green import fit_layout, plan_layout
from gpustreamlab.model import Layout, WorkqueueOptions
from gpustreamlab.typing import Rounding

__all__ = ["read_plan", "read_renamed"]


def read_plan(
    backend: Backend,
    plan: Mapping[str, Share] | Layout | EllipsisType | None,
    shares: Mapping[str, Share],
    *,
    rounding: Rounding | str,
    strict: bool = False,
    workqueue: WorkqueueOptions | None = None,
) -> Layout | None:
    """Return the layout for what was given as one mapping or layout, or as keywords; None for the whole card.

    Raises
    ------
    PartitionError
        If both were given, or the SMs cannot be shared out like this.
    """
    if plan is not ... and shares:
        raise PartitionError(
            f"Partitions are given either as one mapping or layout, or as keywords; both were given ({', '.join(shares)})."
        )
    if plan is None:
        return None
    if isinstance(plan, Layout):
        return fit_layout(backend, plan, round=rounding, strict=strict)
    asked = shares if plan is ... else plan
    return plan_layout(backend, asked, round=rounding, strict=strict, workqueue=workqueue)


def read_renamed(renamed: Mapping[str, str] | None) -> dict[str, str]:
    """Return new names of partitions by old ones.

    Raises
    ------
    PartitionError
        If what was given is no mapping.
    """
    if renamed is not None and not isinstance(renamed, Mapping):
        raise PartitionError(
            f"renamed is a {type(renamed).__name__}; it has new names by old ones. Use renamed={{'old': 'new'}}."
        )
    return dict(renamed or {})
