"""Find out which SMs the partitions have, and prove that work stays inside: kernels tell where they ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import EllipsisType

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import Share
from gpustreamlab.backends import Backend, BackendStream, ContextSpec
from gpustreamlab.errors import PartitionError
from gpustreamlab.green import ContextCache, context_specs, fit_layout, plan_layout
from gpustreamlab.model import Layout, Verification, VerifiedLane, VerifiedPartition, WorkqueueOptions
from gpustreamlab.streams.stream import Stream
from gpustreamlab.typing import Int64Array, Rounding


class SMProbe:
    """Runs the backend's probe in partitions, on streams of its own, and remembers what was seen."""

    def __init__(self, backend: Backend, cache: ContextCache) -> None:
        self._backend = backend
        self._cache = cache
        self._streams: dict[ContextSpec, BackendStream] = {}
        self._sm_ids: dict[ContextSpec, tuple[int, ...]] = {}

    def locate(self, layout: Layout) -> None:
        """Measure the SM ids of each partition, in its own context."""
        specs = context_specs(layout)
        seen = self._backend.probe_sms([self._stream(spec) for spec in specs.values()])
        self._keep(specs, seen)

    def verify(self, layout: Layout | None, streams: Sequence[Stream]) -> Verification:
        """Run the probe in every partition's own context and on every stream, all at once."""
        specs = context_specs(layout)
        own = [self._stream(spec) for spec in specs.values()]
        self._backend.probe_sms([])  # what is compiled or loaded on first use does not count
        began_ns = self._backend.host_time_ns()
        seen = self._backend.probe_sms([*own, *(stream._backend_stream for stream in streams)])
        duration_ns = self._backend.host_time_ns() - began_ns
        sm_ids = self._keep(specs, seen)
        return Verification(
            device=self._backend.device.label,
            sm_count=self._backend.device.sm_count,
            partitions=tuple(
                VerifiedPartition(
                    name=part.name, requested_sms=part.requested_sms, granted_sms=part.granted_sms, sm_ids=sm_ids[part.name]
                )
                for part in layout or ()
                if part.name in sm_ids
            ),
            lanes=tuple(
                _verified_lane(stream, ids.tolist(), sm_ids) for stream, ids in zip(streams, seen[len(own) :], strict=True)
            ),
            duration_ns=duration_ns,
            is_enforced=layout is None or layout.is_enforced,
        )

    def with_known_sms(self, layout: Layout | None) -> Layout | None:
        """Return the layout with the SM ids that were measured before: a context keeps its SMs."""
        if layout is None:
            return None
        known = {name: self._sm_ids.get(spec) for name, spec in context_specs(layout).items()}
        return replace(layout, partitions=tuple(replace(part, sm_ids=known.get(part.name)) for part in layout))

    def forget(self, spec: ContextSpec) -> None:
        """Close the stream in a context that is about to go."""
        with delayed_interrupts():  # what is not closed stays known
            self._sm_ids.pop(spec, None)
            stream = self._streams.pop(spec, None)
            if stream is not None:
                stream.close()

    def close(self) -> None:
        """Close the streams. Idempotent."""
        for spec in [*self._streams]:
            self.forget(spec)

    def _stream(self, spec: ContextSpec) -> BackendStream:
        if spec not in self._streams:
            with delayed_interrupts():  # a stream that was made is known
                self._streams[spec] = self._cache.get(spec).create_stream(priority=0)
        return self._streams[spec]

    def _keep(self, specs: Mapping[str, ContextSpec], seen: Sequence[Int64Array]) -> dict[str, tuple[int, ...]]:
        """Remember what was seen in the partitions' own contexts, which come first."""
        sm_ids = {name: tuple(ids.tolist()) for name, ids in zip(specs, seen, strict=False)}
        self._sm_ids.update({specs[name]: ids for name, ids in sm_ids.items()})
        return sm_ids


def _verified_lane(stream: Stream, seen: Sequence[int], sm_ids: Mapping[str, tuple[int, ...]]) -> VerifiedLane:
    own = sm_ids.get(stream.partition or "")
    inside = tuple(sm for sm in seen if own is None or sm in own)
    outside = tuple(sm for sm in seen if own is not None and sm not in own)
    return VerifiedLane(name=stream.name, partition=stream.partition, inside=inside, outside=outside)


def read_plan(
    backend: Backend,
    plan: Mapping[str, Share] | Layout | EllipsisType | None,
    shares: Mapping[str, Share],
    *,
    rounding: Rounding | str,
    strict: bool = False,
    workqueue: WorkqueueOptions | None = None,
) -> Layout | None:
    """Return the layout for what was given as one mapping or layout, or as keywords; None for the whole card."""
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
    """Return new names of partitions by old ones."""
    if renamed is not None and not isinstance(renamed, Mapping):
        raise PartitionError(
            f"renamed is a {type(renamed).__name__}; it has new names by old ones. Use renamed={{'old': 'new'}}."
        )
    return dict(renamed or {})
