"""Share out the SMs anew while work is in flight: drain the streams that move, and only those, then switch."""

from __future__ import annotations

import keyword
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpustreamlab.backends import Backend, BackendStream, ContextSpec
from gpustreamlab.errors import (
    OptionError,
    PartitionError,
    PartitionInUseError,
    PartitionNotFoundError,
    nearest_hint,
)
from gpustreamlab.green import ContextCache, context_specs, warn_user
from gpustreamlab.interrupts import delayed_interrupts
from gpustreamlab.model import Lane, Layout, Partition, Verification
from gpustreamlab.recorder import Recorder
from gpustreamlab.sm_probe import SMProbe
from gpustreamlab.streams import Home, Stream

__all__ = ["Partitions"]

_log = logging.getLogger(__name__)

DRAIN_ROUNDS = 100
"""How often streams that move are waited for, while others go on giving them work."""


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
        self.probe = SMProbe(backend, cache)
        """Finds out which SMs the partitions have."""
        self._listeners: dict[object, Callable[[Layout | None], object]] = {}

    def plan_moves(self, layout: Layout | None, streams: Iterable[Stream], renamed: Mapping[str, str]) -> list[Stream]:
        """Return the streams that would be drained and moved for a layout.

        Raises
        ------
        PartitionInUseError
            If a stream works in a partition that the layout does not have.
        """
        for old, new in renamed.items():
            if (self.layout is not None and old not in self.layout) or (layout is not None and new not in layout):
                raise PartitionError(
                    f"renamed says that partition {old!r} is {new!r} from now on; the layouts have no such names. "
                    "Give old names of the layout in use, and new ones of the next."
                )
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
        homes: list[Home] = []
        try:
            layout = self.probe.with_known_sms(self._make_contexts(layout))
            specs = context_specs(layout)
            for stream in own:
                self._add_home(homes, stream, layout, specs, renamed)
            self._drain(moving)
        except BaseException:
            self._abandon(own, homes)
            self._trim(own)
            raise
        try:
            with delayed_interrupts():
                before = [stream.home for stream in own]
                for stream, home in zip(own, homes, strict=True):
                    stream.wanted_partition = _wanted(stream, renamed)
                    stream.settle(home)
                if layout != self.layout:
                    self._recorder.note_layout(layout)
                self.layout = layout
                self._order_behind(before, homes)
            self._trim(own)
        finally:
            if self.layout is layout:
                self.tell()  # after an interrupt too
        return layout

    def prepare(self, layout: Layout, streams: Sequence[Stream]) -> Layout:
        """Make the contexts of a layout; return it with the SMs that the device really granted."""
        try:
            granted = self._make_contexts(layout)
        finally:
            self._trim(streams)
        return layout if granted is None else granted

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
        moving = [] if spec == stream.home.spec else [stream]
        self._require_idle_hosts(moving)
        self._drain(moving)
        try:
            with delayed_interrupts():
                home = self.make_home(stream.name, stream.priority, name, known=stream)
                before = stream.home
                stream.wanted_partition = name
                stream.settle(home)
                self._order_behind([before], [home])
        finally:
            if stream.partition == name:
                self.tell()  # after an interrupt too

    def find(self, name: str) -> Partition:
        """Return a partition of the current layout; raise `PartitionNotFoundError` where there is none of this name."""
        if self.layout is not None and name in self.layout:
            return self.layout[name]
        shown = str(name)[:40]
        if self.layout is not None and len(self.layout):
            raise PartitionNotFoundError(f"There is no partition {shown!r}. {nearest_hint(shown, self.layout.names)}")
        example = shown if shown.isidentifier() and not keyword.iskeyword(shown) else "decode"
        raise PartitionNotFoundError(
            f"There is no partition {shown!r}: the SMs are not shared out. Use lab.partition({example}=32, other='rest'), or "
            f"%gpupartition {example}=32 other=rest."
        )

    def make_home(self, name: str, priority: int, partition: str | None, known: Stream | None = None) -> Home:
        """Return a place for a stream to work: the one it had there before, or a new one."""
        part = None if partition is None else self.find(partition)
        spec = context_specs(self.layout).get(partition) if partition is not None else None
        return self._home(name, priority, spec, part, known)

    def adopt(self, name: str, lent: BackendStream) -> Home:
        """Return the place of a stream that others own."""
        return self._register(name, lent, None, None, is_lent=True)

    def verify(self, streams: Sequence[Stream]) -> Verification:
        """Prove where every stream's work runs, and keep the SM ids that were seen."""
        proof = self.probe.verify(self.layout, streams)
        self._keep_located()
        return proof

    def locate(self) -> Layout | None:
        """Return the layout with the SM ids of each partition, measured where they are not known; no stream is touched."""
        if self.layout is not None and not self.layout.has_verified_sms:
            self.probe.locate(self.layout)
            self._keep_located()
        return self.layout

    def watch(self, listener: Callable[[Layout | None], object]) -> Callable[[], None]:
        """Call a function after each change; return what stops that. One that raises is dropped and logged."""
        if not callable(listener):
            raise OptionError(
                f"A listener for layouts is a function, not a {type(listener).__name__}. Use lab.watch_layout(print)."
            )
        key = object()
        self._listeners[key] = listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def tell(self) -> None:
        """Tell everyone who watches how the layout is now."""
        for key, listener in tuple(self._listeners.items()):
            try:
                listener(self.layout)
            except Exception:  # noqa: BLE001 - a widget must not break the user's work; logged below
                self._listeners.pop(key, None)
                _log.exception("A listener for layouts failed and was dropped")

    def close(self) -> None:
        """Destroy the contexts; their streams have to be closed before. Idempotent."""
        try:
            self.probe.close()
        finally:
            self.cache.close()

    def _keep_located(self) -> None:
        located = self.probe.with_known_sms(self.layout)
        if located is not None and located != self.layout:
            with delayed_interrupts():
                self.layout = located
                self._recorder.note_verified(located)
            self.tell()

    def _wanted_spec(
        self, stream: Stream, layout: Layout | None, specs: Mapping[str, ContextSpec], renamed: Mapping[str, str]
    ) -> ContextSpec | None:
        wanted = _wanted(stream, renamed)
        if layout is not None and stream.partition is not None and wanted not in layout:
            raise PartitionInUseError(
                f"Partition {stream.partition!r} is in use by stream {stream.name!r}, and the new layout has none of this "
                f"name. Keep it, close the stream, or move it first with lab.stream({stream.name!r}, partition=None)."
            )
        return specs.get(wanted) if wanted is not None else None

    def _require_idle_hosts(self, moving: Iterable[Stream]) -> None:
        for stream in moving:
            if self._recorder.is_in_use(stream.recorded):
                raise PartitionInUseError(
                    f"Stream {stream.name!r} is selected by a thread, or has a range open, so it cannot move to other SMs. "
                    f"Leave `with lab.on({stream.name!r})` (or the %%gpustream cell), and end() what lab.start_range began."
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
            warn_user(
                f"Partition {part.name!r} was planned with {part.granted_sms} SMs; the device granted {granted[part.name]}."
            )
        if not wrong:
            return layout
        parts = tuple(replace(part, granted_sms=granted[part.name]) for part in layout)
        left_sms = self._backend.device.sm_count - sum(granted.values())
        return replace(layout, partitions=parts, remainder_sms=max(0, left_sms))

    def _add_home(
        self,
        homes: list[Home],
        stream: Stream,
        layout: Layout | None,
        specs: Mapping[str, ContextSpec],
        renamed: Mapping[str, str],
    ) -> None:
        wanted = _wanted(stream, renamed)
        part = layout[wanted] if layout is not None and wanted is not None and wanted in layout else None
        spec = specs.get(wanted) if wanted is not None else None
        before = stream.home_in(spec)
        if before is not None and before.partition == _plain(part):
            homes.append(before)
            return
        with delayed_interrupts():  # a stream that was made is in the list
            homes.append(self._home(stream.name, stream.priority, spec, part, stream))

    def _home(self, name: str, priority: int, spec: ContextSpec | None, part: Partition | None, known: Stream | None) -> Home:
        plain = _plain(part)
        before = None if known is None else known.home_in(spec)
        if before is not None and before.partition == plain:
            return before
        if before is not None:
            made = before.backend_stream  # the same SMs under another name or request
        elif spec is None:
            made = self._backend.create_stream(priority=priority)
        else:
            made = self.cache.get(spec).create_stream(priority=priority)
        try:
            return self._register(name, made, spec, plain)
        except BaseException:
            if before is None:
                made.close()
            raise

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
            sm_count=made.sm_count if part is None else part.granted_sms,
        )
        return Home(spec, part, made, self._recorder.add_lane(lane, made, part), is_lent)

    def _order_behind(self, before: Sequence[Home], after: Sequence[Home]) -> None:
        """Keep new work of streams that moved behind what another thread may have enqueued since they were found idle."""
        for old, new in zip(before, after, strict=True):
            if old.backend_stream is not new.backend_stream and not old.backend_stream.query():
                event = self._backend.acquire_event()
                old.backend_stream.record(event)
                new.backend_stream.wait(event)
                self._backend.release_events((event,))

    def _abandon(self, streams: Sequence[Stream], homes: Sequence[Home]) -> None:
        """Give up homes that were made and are not going to be used."""
        for stream, home in zip(streams, homes, strict=False):
            before = stream.home_in(home.spec)
            if before is home:
                continue
            home.recorded.close()
            if before is None:
                home.backend_stream.close()

    def _drain(self, moving: Sequence[Stream]) -> None:
        """Wait until all streams are idle at once: meanwhile other threads may give work to those that were waited for.

        Someone who feeds a stream through its handle could keep it busy for ever. After some rounds the move goes on, and new
        work stays behind what is left; see `_order_behind`.
        """
        for _ in range(DRAIN_ROUNDS if moving else 0):
            for stream in moving:
                stream.backend_stream.synchronize()
            self._require_idle_hosts(moving)
            if all(stream.backend_stream.query() for stream in moving):
                break
        self._recorder.collect()

    def _trim(self, streams: Sequence[Stream]) -> None:
        if len(self.cache) <= self.cache.limit:
            return
        in_use = {stream.home.spec for stream in streams} | set(context_specs(self.layout).values())
        for stream in streams:
            if self._recorder.is_in_use(stream.recorded):
                in_use |= stream.specs  # a thread may have entered the old place a moment ago

        def leave(spec: ContextSpec) -> None:
            for stream in streams:
                stream.leave_home(spec)
            self.probe.forget(spec)

        self.cache.trim({spec for spec in in_use if spec is not None}, leave)


def _plain(part: Partition | None) -> Partition | None:
    """Return a partition as it was planned, without what was measured."""
    return part if part is None or part.sm_ids is None else replace(part, sm_ids=None)


def _wanted(stream: Stream, renamed: Mapping[str, str]) -> str | None:
    """Return the partition that a stream goes to, by its name in the next layout."""
    wanted = stream.wanted_partition
    return None if wanted is None else renamed.get(wanted, wanted)
