"""Green contexts of a session: made once for each set of SMs, used again, bounded in number."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from gpustreamlab._util.defences import delayed_interrupts, process_lock
from gpustreamlab.analysis import (
    PartitionOptions,
    Share,
    check_layout,
    check_rounding,
    check_workqueue,
    options_of,
    plan_partitions,
    require_mapping,
    unenforced_layout,
)
from gpustreamlab.backends import Backend, BackendContext, ContextSpec, SplitGroup
from gpustreamlab.draw import sm_map_svg, sm_map_text, still_html
from gpustreamlab.errors import PartitionUnavailableError, PartitionWarning, SessionClosedError
from gpustreamlab.model import Capabilities, Capability, Device, Layout, WorkqueueOptions, show_text
from gpustreamlab.typing import Feature, Rounding

__all__ = ["ContextCache", "SMMap", "context_specs", "fit_layout", "plan_layout", "warn_user"]


def plan_layout(
    backend: Backend,
    shares: Mapping[str, Share],
    *,
    round: Rounding | str,  # noqa: A002 - what the user types
    strict: bool,
    workqueue: WorkqueueOptions | None,
) -> Layout:
    """Plan a layout with what this device has; warn once of what it lacks, or raise with `strict`.

    Raises
    ------
    PartitionUnavailableError
        With `strict`, if a feature is missing.
    PartitionError
        If the SMs cannot be shared out like this.
    """
    check_rounding(round)
    require_mapping(shares)
    check_workqueue(workqueue)
    lacking = _lacking_features(backend.capabilities, shares, workqueue)
    if lacking:
        message = " ".join(f"{item.feature} is not available: {item.detail} (needs {item.needs})." for item in lacking)
        if strict:
            raise PartitionUnavailableError(f"{message} Leave out strict=True to go on without.")
        instead = "; ".join(item.fallback for item in lacking)
        warn_user(f"{message} Going on with: {instead}.")
    if backend.device.sm_resource is None:
        return unenforced_layout(shares, backend.device)
    features = {item.feature for item in lacking}
    if features & {Feature.COSCHEDULING, Feature.BACKFILL}:
        shares = {name: share.sms if isinstance(share, PartitionOptions) else share for name, share in shares.items()}
    usable = None if Feature.WORKQUEUES in features else workqueue
    return plan_partitions(shares, backend.device, round=round, workqueue=usable)


def fit_layout(backend: Backend, layout: Layout, *, round: Rounding | str, strict: bool) -> Layout:  # noqa: A002
    """Return a layout that was planned, as this device can have it.

    One that was not enforced where it comes from, or needs what this device lacks, is planned anew from what it asked for.

    Raises
    ------
    PartitionUnavailableError
        With `strict`, if a feature is missing.
    PartitionError
        If the layout does not fit the device.
    """
    check_rounding(round)
    shares: dict[str, Share] = {part.name: options_of(part) or part.requested_sms for part in layout}
    is_same_kind = layout.is_enforced == (backend.device.sm_resource is not None)
    needs_split = any(part.is_structured for part in layout) and not backend.capabilities.has(Feature.UNEQUAL_SPLIT)
    if is_same_kind and not needs_split and not _lacking_features(backend.capabilities, shares, layout.workqueue):
        return check_layout(layout, backend.device)
    return plan_layout(backend, shares, round=round, strict=strict, workqueue=layout.workqueue)


def _lacking_features(
    capabilities: Capabilities, shares: Mapping[str, Share], workqueue: WorkqueueOptions | None
) -> list[Capability]:
    if not capabilities.has(Feature.GREEN_CONTEXTS):
        return [capabilities[Feature.GREEN_CONTEXTS]]
    options = [share for share in shares.values() if isinstance(share, PartitionOptions)]
    wanted = {
        Feature.COSCHEDULING: any(share.coscheduled_sms or share.preferred_coscheduled_sms for share in options),
        Feature.BACKFILL: any(share.backfill for share in options),
        Feature.WORKQUEUES: workqueue is not None,
    }
    return [capabilities[feature] for feature, is_wanted in wanted.items() if is_wanted and not capabilities.has(feature)]


def warn_user(message: str) -> None:
    """Warn at the line outside this package that asked for it, so that each cell is told."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 - what `warnings` does itself
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gpustreamlab"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PartitionWarning, stacklevel=level)


@lru_cache(maxsize=256)
def context_specs(layout: Layout | None) -> Mapping[str, ContextSpec]:
    """Return what each partition's context is made of; none for a layout that is not enforced."""
    if layout is None or not layout.is_enforced:
        return MappingProxyType({})
    if not any(part.is_structured for part in layout):
        return MappingProxyType({part.name: ContextSpec(groups=part.groups, workqueue=layout.workqueue) for part in layout})
    # The driver takes groups in their order: rigid ones first, so that small steps do not break up what they need.
    parts = sorted(layout, key=lambda part: (part.backfill, -part.coscheduled_sms))
    split = tuple(
        SplitGroup(
            sms=part.split[part.place],
            coscheduled_sms=part.coscheduled_sms,
            preferred_coscheduled_sms=part.preferred_coscheduled_sms,
            backfill=part.backfill,
        )
        for part in parts
    )
    return MappingProxyType(
        {part.name: ContextSpec(split=split, place=place, workqueue=layout.workqueue) for place, part in enumerate(parts)}
    )


class ContextCache:
    """The green contexts of one backend, by what they are made of.

    Creating a context costs about a millisecond and, on the drivers tried, some MiB of device memory that do not come back.
    So contexts are kept, and used again for the same set of SMs. What a session gives up, the next one of the process may use:
    the backend keeps it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._contexts: dict[ContextSpec, BackendContext] = {}
        self._is_closed = False
        self._making = process_lock()  # while a context is made

    def __len__(self) -> int:
        return len(self._contexts)

    def __contains__(self, spec: object) -> bool:
        return spec in self._contexts

    def get(self, spec: ContextSpec) -> BackendContext:
        """Return the context of a spec, making it on first use: that may wait for the device, another thread's, too.

        Raises
        ------
        SessionClosedError
            If the session was closed meanwhile.
        """
        context = self._contexts.get(spec)
        if context is not None:
            return context
        with self._making, delayed_interrupts():  # a context that was made is in the cache
            if self._is_closed:
                raise SessionClosedError(
                    "This session was closed meanwhile; it makes no green contexts. Start another with gpustreamlab.Session()."
                )
            if spec not in self._contexts:
                self._contexts[spec] = self._backend.create_context(spec)
            return self._contexts[spec]

    def close(self) -> None:
        """Destroy every context, and make no more. Idempotent."""
        with self._making:
            self._is_closed = True
        failures: list[Exception] = []
        while self._contexts:
            spec, context = next(reversed(self._contexts.items()))
            try:
                context.close()
            except Exception as error:  # noqa: BLE001 - raised below, after the other contexts
                failures.append(error)
            self._contexts.pop(spec, None)  # an interrupt before this line leaves it for the next call
        if failures:
            raise failures[0]


class SMMap:
    """A drawing of a card: one cell for each SM, coloured by partition. Made by `PartitionTools.map`."""

    def __init__(self, device: Device, layout: Layout | None) -> None:
        self.device = device
        """The card."""
        self.layout = layout
        """The partitions, with the SM ids where they were measured."""

    def __repr__(self) -> str:
        return f"<SMMap of {self.device.label}, {len(self.layout) if self.layout else 0} partitions>"

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        return sm_map_text(device=self.device, layout=self.layout)

    def _repr_html_(self) -> str:
        return still_html(self._repr_svg_(), str(self))

    def _repr_svg_(self) -> str:
        return sm_map_svg(device=self.device, layout=self.layout)
