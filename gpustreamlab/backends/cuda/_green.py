"""Green contexts: parts of the SMs, through cuda.core.

A device is split once into its smallest groups, and a context is made of several of them: below CUDA 13.1 a split gives equal
groups only, and no group can be split again. From 13.1 on, a structured split gives unequal groups. A context is never made
current: its streams are used from the primary context. Source: CUDA programming guide, 4.6, and FACTS.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gpustreamlab.backends._features import Version, green_capabilities, version_capabilities
from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.backends.cuda._idle import IdleContexts, keep_for_good
from gpustreamlab.backends.cuda._libcuda import mapped_errors
from gpustreamlab.backends.cuda._stream import CudaStream
from gpustreamlab.errors import DeviceError, GPUStreamLabError
from gpustreamlab.model import Capabilities, SMResource, WorkqueueOptions
from gpustreamlab.typing import Feature

MakeStream = Callable[[Any, int, int], CudaStream]
"""Makes a stream of ours in a `cuda.core.Context`, with the context's number and a priority."""


@dataclass(eq=False, repr=False, kw_only=True)
class GreenContexts:
    """Splits one device and makes its green contexts."""

    core: Any  # The `cuda.core` module
    device: Any  # The `cuda.core.Device`, whose primary context is current in every call
    driver: Version
    bindings: Version | None  # CUDA versions of the driver and of cuda.bindings
    has_memory_pools: bool = True  # Whether the device allocates in the order of a stream: one of the capabilities
    make_stream: MakeStream  # Makes a stream of ours
    scope: Callable[[], AbstractContextManager[None]]
    """Makes the device current for cuda.core and CuPy, as a context manager: streams are made in any thread."""
    idle: IdleContexts  # Contexts of earlier sessions, to use again
    resource: SMResource | None = field(default=None, init=False)
    capabilities: Capabilities = field(init=False)

    def __post_init__(self) -> None:
        self._numbers = count(1)
        allowed = version_capabilities(self.driver, self.bindings)
        self._is_structured = allowed.has(Feature.UNEQUAL_SPLIT)
        self._groups: list[Any] = []
        problem = ""
        try:
            if allowed.has(Feature.GREEN_CONTEXTS):
                with mapped_errors("Reading the SMs of the device"):
                    self._groups, self.resource = self.idle.find_groups(self._split_smallest)
        except DeviceError as error:
            # A device without green contexts says so here; the capabilities carry its words.
            problem = str(error.__cause__ or error)
        self.capabilities = green_capabilities(
            self.driver, self.bindings, self.resource, problem, has_memory_pools=self.has_memory_pools
        )

    def create(self, spec: ContextSpec) -> CudaContext:
        """Return a context of a spec: one that an earlier session made, or a new one."""
        context = self.idle.take(spec)
        if context is None:
            context = self._make(spec)
            keep_for_good(context)

        def give_back() -> None:
            with self.scope():
                self.idle.give(spec, context)

        return CudaContext(context, next(self._numbers), self.make_stream, self.scope, give_back)

    def _make(self, spec: ContextSpec) -> Any:
        what = (
            f"a green context of groups {spec.groups}"
            if spec.groups
            else f"a green context of {spec.split[spec.place].sms} SMs"
        )
        with mapped_errors(f"Creating {what}"):
            resources = (
                [self._groups[group] for group in spec.groups]
                if spec.groups
                else [self.idle.find_split(spec.split, lambda: self._split(spec.split))[spec.place]]
            )
            if spec.workqueue is not None:
                resources.append(self._workqueue(spec.workqueue))
            return self.device.create_context(self.core.ContextOptions(resources=resources))

    def _split_smallest(self) -> tuple[list[Any], SMResource]:
        """Split into as many of the smallest groups as there are; the driver gives fewer than the division says."""
        sms = self.device.resources.sm
        groups, remainder = sms.split(self.core.SMResourceOptions(count=(sms.min_partition_size,) * self._most_groups(sms)))
        resource = SMResource(
            # With bindings for CUDA 12 the minimum is cuda.core's own guess; what the driver made of it counts.
            min_sms=max(sms.min_partition_size, groups[0].sm_count),
            alignment_sms=sms.coscheduled_alignment,
            group_sms=groups[0].sm_count,
            group_count=len(groups),
            remainder_sms=remainder.sm_count if remainder is not None else 0,
            is_structured=self._is_structured,
            remainder_joins=_can_join(groups[0], remainder),
        )
        return [*groups, *([remainder] if remainder is not None and remainder.sm_count else [])], resource

    def _most_groups(self, sms: Any) -> int:
        most: int = sms.sm_count // sms.min_partition_size
        if not self._is_structured:
            return most
        # A structured split refuses what it cannot grant in full instead of giving fewer groups.
        for number in range(most, 0, -1):
            try:
                sms.split(self.core.SMResourceOptions(count=(sms.min_partition_size,) * number))
            except Exception as error:
                if isinstance(error, GPUStreamLabError) or number == 1:
                    raise
            else:
                return number
        return 1

    def _split(self, split: tuple[SplitGroup, ...]) -> list[Any]:
        options = self.core.SMResourceOptions(
            count=tuple(group.sms for group in split),
            coscheduled_sm_count=_where_given([group.coscheduled_sms for group in split]),
            preferred_coscheduled_sm_count=_where_given([group.preferred_coscheduled_sms for group in split]),
            backfill=tuple(group.backfill for group in split),
        )
        groups, _ = self.device.resources.sm.split(options)
        return list(groups)

    def _workqueue(self, options: WorkqueueOptions) -> Any:
        resource = self.device.resources.workqueue
        resource.configure(
            self.core.WorkqueueResourceOptions(sharing_scope=options.sharing_scope, concurrency_limit=options.concurrency_limit)
        )
        return resource


@dataclass(eq=False, repr=False)
class CudaContext:
    """One green context; see `gpustreamlab.backends._protocol.BackendContext`."""

    context: Any  # The `cuda.core.Context`
    number: int  # Number of the context within the backend, from 1
    make_stream: MakeStream
    scope: Callable[[], AbstractContextManager[None]]
    give_back: Callable[[], None]
    sm_count: int = field(init=False)  # How many SMs the device granted, read back from the context
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.sm_count = self.context.resources.sm.sm_count

    def create_stream(self, *, priority: int) -> CudaStream:
        """Make a non-blocking stream whose kernels run on these SMs only."""
        doing = f"Creating a stream of priority {priority} in a green context of {self.sm_count} SMs"
        with mapped_errors(doing), self.scope():
            return self.make_stream(self.context, self.number, priority)

    def close(self) -> None:
        """Give the context up for the next session, after its streams were closed. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            with mapped_errors(f"Giving up a green context of {self.sm_count} SMs"):
                self.give_back()


def _where_given(counts: list[int]) -> tuple[int, ...] | None:
    """Return the counts, or None where no group asks for any: the driver's default."""
    return tuple(counts) if any(counts) else None


def _can_join(group: Any, remainder: Any) -> bool:
    """Tell whether one context can be made of groups and the remainder: they need the same alignment.

    Source: CUDA driver API, ``cuDevResourceGenerateDesc``.
    """
    return remainder is None or remainder.coscheduled_alignment == group.coscheduled_alignment
