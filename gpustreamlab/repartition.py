"""Share out the SMs anew while work is in flight: drain the streams that move, and only those, then switch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpustreamlab.analysis import PartitionOptions, Share, check_rounding, plan_partitions, unenforced_layout
from gpustreamlab.backends import Backend, BackendStream, ContextSpec
from gpustreamlab.errors import (
    PartitionError,
    PartitionInUseError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    PartitionWarning,
    nearest_hint,
)
from gpustreamlab.green import ContextCache, context_specs
from gpustreamlab.interrupts import delayed_interrupts
from gpustreamlab.model import (
    Capability,
    Lane,
    Layout,
    Partition,
    Verification,
    VerifiedLane,
    VerifiedPartition,
    WorkqueueOptions,
)
from gpustreamlab.recorder import Recorder
from gpustreamlab.streams import Home, Stream
from gpustreamlab.typing import Feature, Rounding

__all__ = ["Partitions"]

_log = logging.getLogger(__name__)


class Partitions:
    """The current layout of one session, and the way to another.

    Parameters
    ----------
    backend, recorder
        The session's.
    cache
        Its green contexts.
    """

    def __init__(self, backend: Backend, recorder: Recorder, cache: ContextCache) -> None:
        self.cache = cache
        self.layout: Layout | None = None
        """How the SMs are shared out now; None for the whole card."""
        self._backend = backend
        self._recorder = recorder
        self._probes: dict[ContextSpec, BackendStream] = {}
        self._sm_ids: dict[ContextSpec, tuple[int, ...]] = {}
        self._listeners: list[Callable[[Layout | None], object]] = []

    def plan(
        self,
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
        device = self._backend.device
        lacking = self._lacking_features(shares, workqueue)
        if lacking:
            message = " ".join(f"{item.feature} cannot be had: {item.detail} (needs {item.needs})." for item in lacking)
            if strict:
                raise PartitionUnavailableError(f"{message} Leave out strict=True to go on without.")
            instead = "; ".join(item.fallback for item in lacking)
            warnings.warn(f"{message} Going on with: {instead}.", PartitionWarning, stacklevel=4)
        if device.sm_resource is None:
            return unenforced_layout(shares, device)
        features = {item.feature for item in lacking}
        plain = {name: share.sms if isinstance(share, PartitionOptions) else share for name, share in shares.items()}
        return plan_partitions(
            plain if features & {Feature.COSCHEDULING, Feature.BACKFILL} else shares,
            device,
            round=round,
            workqueue=None if Feature.WORKQUEUES in features else workqueue,
        )

    def verify(self, streams: Sequence[Stream]) -> Verification:
        """Run the probe in every partition's own context and on every stream; keep the SM ids that were seen."""
        probes = self.probe_streams()
        self._backend.probe_sms([])  # what is compiled or loaded on first use does not count
        began_ns = self._backend.host_time_ns()
        seen = self._backend.probe_sms([*probes.values(), *(stream.backend_stream for stream in streams)])
        duration_ns = self._backend.host_time_ns() - began_ns
        sm_ids = {name: tuple(ids.tolist()) for name, ids in zip(probes, seen, strict=False)}
        self.keep_verified(sm_ids)
        lanes = [_verified_lane(stream, ids.tolist(), sm_ids) for stream, ids in zip(streams, seen[len(probes) :], strict=True)]
        return Verification(
            device=self._backend.device.label,
            sm_count=self._backend.device.sm_count,
            partitions=tuple(
                VerifiedPartition(
                    name=part.name, requested_sms=part.requested_sms, granted_sms=part.granted_sms, sm_ids=sm_ids[part.name]
                )
                for part in self.layout or ()
                if part.name in sm_ids
            ),
            lanes=tuple(lanes),
            duration_ns=duration_ns,
        )

    def locate(self) -> Layout | None:
        """Return the layout with the SM ids of each partition, measured where they are not known; no stream is touched."""
        if context_specs(self.layout) and self.layout is not None and not self.layout.has_verified_sms:
            probes = self.probe_streams()
            seen = self._backend.probe_sms(list(probes.values()))
            self.keep_verified({name: tuple(ids.tolist()) for name, ids in zip(probes, seen, strict=True)})
        return self.layout

    def plan_moves(self, layout: Layout | None, streams: Iterable[Stream], renamed: Mapping[str, str]) -> list[Stream]:
        """Return the streams that would be drained and moved for a layout.

        Raises
        ------
        PartitionInUseError
            If a stream works in a partition that the layout does not have.
        """
        specs = context_specs(layout)
        return [
            stream
            for stream in streams
            if not stream.is_lent and self._wanted_spec(stream, layout, specs, renamed) != stream.home.spec
        ]

    def switch(self, layout: Layout | None, streams: Iterable[Stream], renamed: Mapping[str, str]) -> Layout | None:
        """Go over to a layout: make its contexts, drain the streams that move, and switch all of them together.

        An error or an interrupt leaves the old layout, whole; once the switch itself has begun, the new one.

        Returns
        -------
        Layout or None
            The layout with the SMs that the device really granted.

        Raises
        ------
        PartitionInUseError
            If a stream works in a partition that would go, or is selected while it would have to move.
        DeviceError
            If the driver refuses a context.
        """
        own = [stream for stream in streams if not stream.is_lent]
        moving = self.plan_moves(layout, own, renamed)
        self._require_idle_hosts(moving)
        layout = self._make_contexts(layout)
        specs = context_specs(layout)
        homes = [(stream, self._find_home(stream, layout, specs, renamed)) for stream in own]
        self._drain(moving)
        with delayed_interrupts():
            for stream, home in homes:
                stream.wanted_partition = renamed.get(stream.wanted_partition or "", stream.wanted_partition)
                if home is not stream.home:
                    stream.settle(home)
            self.layout = layout
            self._recorder.note_layout(layout)
        self._trim(own)
        self._tell()
        return layout

    def move(self, stream: Stream, name: str | None) -> None:
        """Move one stream to a partition of the current layout, or to the whole card."""
        if name is not None:
            self.find(name)
        if stream.is_lent:
            raise PartitionError(
                f"Stream {stream.name!r} is lent by another library, which decides on its SMs. Make one of the session's own "
                f"with lab.stream('other', partition={name!r})."
            )
        specs = context_specs(self.layout)
        spec = specs.get(name) if name is not None else None
        if spec == stream.home.spec and name == stream.partition:
            stream.wanted_partition = name
            return
        self._require_idle_hosts([stream])
        home = self.make_home(stream.name, stream.priority, name, known=stream)
        self._drain([stream])
        with delayed_interrupts():
            stream.wanted_partition = name
            stream.settle(home)
        self._tell()

    def find(self, name: str) -> Partition:
        """Return a partition of the current layout; raise `PartitionNotFoundError` where there is none of this name."""
        if self.layout is not None and name in self.layout:
            return self.layout[name]
        known = () if self.layout is None else self.layout.names
        hint = nearest_hint(str(name), known)
        raise PartitionNotFoundError(
            f"There is no partition {str(name)[:40]!r}. {hint}{' ' if hint else ''}Make it first, for example with "
            f"lab.partition({str(name)[:40] if str(name).isidentifier() else 'decode'}=32)."
        )

    def make_home(self, name: str, priority: int, partition: str | None, known: Stream | None = None) -> Home:
        """Return a place for a stream to work: the one it had there before, or a new one."""
        part = None if partition is None else self.find(partition)
        spec = context_specs(self.layout).get(partition) if partition is not None else None
        return self._home(name, priority, spec, part, known)

    def adopt(self, name: str, lent: BackendStream) -> Home:
        """Return the place of a stream that others own."""
        return self._register(name, lent, None, None, is_lent=True)

    def probe_streams(self) -> dict[str, BackendStream]:
        """Return a stream in each partition's own context that no one else uses, by the partition's name."""
        probes = {}
        for name, spec in context_specs(self.layout).items():
            if spec not in self._probes:
                self._probes[spec] = self.cache.get(spec).create_stream(priority=0)
            probes[name] = self._probes[spec]
        return probes

    def keep_verified(self, sm_ids: Mapping[str, tuple[int, ...]]) -> None:
        """Keep the SM ids that were seen in each partition, in the layout and in the trace."""
        if self.layout is None or not sm_ids:
            return
        for name, spec in context_specs(self.layout).items():
            self._sm_ids[spec] = sm_ids[name]
        self.layout = self._with_known_sm_ids(self.layout)
        self._recorder.note_verified(self.layout)
        self._tell()

    def watch(self, listener: Callable[[Layout | None], object]) -> Callable[[], None]:
        """Call a function after each change; return what stops that. One that raises is dropped and logged."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        """Destroy the contexts; their streams have to be closed before. Idempotent."""
        while self._probes:
            self._probes.popitem()[1].close()
        self.cache.close()

    def _lacking_features(self, shares: Mapping[str, Share], workqueue: WorkqueueOptions | None) -> list[Capability]:
        capabilities = self._backend.capabilities
        if not capabilities.has(Feature.GREEN_CONTEXTS):
            return [capabilities[Feature.GREEN_CONTEXTS]]
        options = [share for share in shares.values() if isinstance(share, PartitionOptions)]
        wanted = {
            Feature.COSCHEDULING: any(share.coscheduled_sms or share.preferred_coscheduled_sms for share in options),
            Feature.BACKFILL: any(share.backfill for share in options),
            Feature.WORKQUEUES: workqueue is not None,
        }
        return [capabilities[feature] for feature, is_wanted in wanted.items() if is_wanted and not capabilities.has(feature)]

    def _wanted_spec(
        self, stream: Stream, layout: Layout | None, specs: Mapping[str, ContextSpec], renamed: Mapping[str, str]
    ) -> ContextSpec | None:
        wanted = renamed.get(stream.wanted_partition or "", stream.wanted_partition)
        if layout is not None and stream.partition is not None and wanted not in layout:
            raise PartitionInUseError(
                f"Partition {stream.partition!r} is in use by stream {stream.name!r}, and the new layout has none of this "
                f"name. Keep the partition, close the stream, or move it first with lab.stream({stream.name!r}, partition=None)."
            )
        return specs.get(wanted) if wanted is not None else None

    def _require_idle_hosts(self, moving: Iterable[Stream]) -> None:
        for stream in moving:
            if stream.recorded.is_selected:
                raise PartitionInUseError(
                    f"Stream {stream.name!r} is selected by a thread, so it cannot move to other SMs. "
                    f"Leave `with lab.on({stream.name!r})` (or the %%gpustream cell) first."
                )

    def _make_contexts(self, layout: Layout | None) -> Layout | None:
        """Make every context of a layout, and read back what was granted."""
        specs = context_specs(layout)
        if layout is None or not specs:
            return layout
        if len(specs) > self.cache.limit:
            raise PartitionError(
                f"The layout has {len(specs)} partitions, more than the {self.cache.limit} green contexts that this session "
                f"keeps. Start it with gpustreamlab.Session(context_limit={len(specs)})."
            )
        granted = {name: self.cache.get(spec).sm_count for name, spec in specs.items()}
        wrong = [part for part in layout if part.granted_sms != granted[part.name]]
        for part in wrong:
            message = (
                f"Partition {part.name!r} was planned with {part.granted_sms} SMs; the device granted {granted[part.name]}."
            )
            warnings.warn(message, PartitionWarning, stacklevel=4)
        if not wrong:
            return self._with_known_sm_ids(layout)
        parts = tuple(replace(part, granted_sms=granted[part.name]) for part in layout)
        left_sms = self._backend.device.sm_count - sum(granted.values())
        return replace(layout, partitions=parts, remainder_sms=max(0, left_sms))

    def _with_known_sm_ids(self, layout: Layout) -> Layout:
        """Take over the SM ids that were measured before: a context keeps its SMs."""
        specs = context_specs(layout)
        known = {spec: self._sm_ids[spec] for spec in specs.values() if spec in self._sm_ids}
        parts = tuple(replace(part, sm_ids=known.get(specs[part.name], part.sm_ids)) for part in layout)
        return replace(layout, partitions=parts)

    def _find_home(
        self, stream: Stream, layout: Layout | None, specs: Mapping[str, ContextSpec], renamed: Mapping[str, str]
    ) -> Home:
        wanted = renamed.get(stream.wanted_partition or "", stream.wanted_partition)
        part = layout[wanted] if layout is not None and wanted is not None and wanted in layout else None
        spec = specs.get(wanted) if wanted is not None else None
        return self._home(stream.name, stream.priority, spec, part, stream)

    def _home(self, name: str, priority: int, spec: ContextSpec | None, part: Partition | None, known: Stream | None) -> Home:
        plain = None if part is None else replace(part, sm_ids=None)
        before = None if known is None else known.home_in(spec)
        if before is not None and before.partition == plain:
            return before
        if before is not None:
            made = before.backend_stream  # the same SMs under another name or request
        elif spec is None:
            made = self._backend.create_stream(priority=priority)
        else:
            made = self.cache.get(spec).create_stream(priority=priority)
        return self._register(name, made, spec, plain)

    def _register(
        self, name: str, made: BackendStream, spec: ContextSpec | None, part: Partition | None, *, is_lent: bool = False
    ) -> Home:
        device, context, handle = made.key
        lane = Lane(
            name=name,
            device=device,
            context=context,
            stream=handle,
            priority=made.priority,
            partition=None if part is None else part.name,
            sm_count=self._backend.device.sm_count if part is None else part.granted_sms,
        )
        return Home(spec, part, made, self._recorder.add_lane(lane, made, part), is_lent)

    def _drain(self, moving: Iterable[Stream]) -> None:
        for stream in moving:
            stream.backend_stream.synchronize()
        self._recorder.collect()

    def _trim(self, streams: Iterable[Stream]) -> None:
        in_use = {stream.home.spec for stream in streams} | set(context_specs(self.layout).values())

        def leave(spec: ContextSpec) -> None:
            for stream in streams:
                stream.leave_home(spec)
            probe = self._probes.pop(spec, None)
            if probe is not None:
                probe.close()
            self._sm_ids.pop(spec, None)

        self.cache.trim({spec for spec in in_use if spec is not None}, leave)

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(self.layout)
            except Exception:  # noqa: BLE001 - a widget must not break the user's work; logged below
                self._listeners.remove(listener)
                _log.exception("A listener for layouts failed and was dropped")


def _verified_lane(stream: Stream, seen: Sequence[int], sm_ids: Mapping[str, tuple[int, ...]]) -> VerifiedLane:
    own = sm_ids.get(stream.partition or "")
    inside = tuple(sm for sm in seen if own is None or sm in own)
    outside = tuple(sm for sm in seen if own is not None and sm not in own)
    return VerifiedLane(
        name=stream.name, partition=stream.partition if own is not None else None, inside=inside, outside=outside
    )
