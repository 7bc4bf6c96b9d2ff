"""Share out the SMs anew while work is in flight: drain the streams that move, and only those, then switch."""

from __future__ import annotations

import keyword
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import EllipsisType
from typing import NamedTuple

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.analysis import Share
from gpustreamlab.backends import Backend, BackendStream, ContextSpec, order_behind
from gpustreamlab.errors import OptionError, PartitionError, PartitionInUseError, PartitionNotFoundError, nearest_hint
from gpustreamlab.green import ContextCache, context_specs, fit_layout, plan_layout, warn_user
from gpustreamlab.model import Lane, Layout, Partition, Verification, VerifiedStream, WorkqueueOptions
from gpustreamlab.recorder import RecordedLane, Recorder
from gpustreamlab.streams.life import SessionLocks
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
            partitions=tuple(replace(part, sm_ids=sm_ids[part.name]) for part in layout or () if part.name in sm_ids),
            streams=tuple(
                _verified_stream(stream, ids.tolist(), sm_ids) for stream, ids in zip(streams, seen[len(own) :], strict=True)
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

    def close(self) -> None:
        """Close the streams. Idempotent."""
        while self._streams:
            with delayed_interrupts():  # what is not closed stays known
                self._streams.popitem()[1].close()

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


def _verified_stream(stream: Stream, seen: Sequence[int], sm_ids: Mapping[str, tuple[int, ...]]) -> VerifiedStream:
    own = sm_ids.get(stream.partition or "")
    inside = tuple(sm for sm in seen if own is None or sm in own)
    outside = tuple(sm for sm in seen if own is not None and sm not in own)
    return VerifiedStream(name=stream.name, partition=stream.partition, inside=inside, outside=outside)


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


_log = logging.getLogger(__name__)


class _Move(NamedTuple):
    """Where a stream goes in one change of places."""

    spec: ContextSpec | None  # what the green context there is made of; None for the whole card
    part: Partition | None
    wanted: str | None  # the partition that the stream wants to be in from then on


DRAIN_ROUNDS = 100  # How often streams that move are waited for, while others go on giving them work


class Partitions:
    """The current layout of one session, and the way to another."""

    def __init__(self, backend: Backend, recorder: Recorder, cache: ContextCache, locks: SessionLocks) -> None:
        self.cache = cache
        self.layout: Layout | None = None
        """How the SMs are shared out now; None for the whole card."""
        self.find_streams: Callable[[], Collection[Stream]] = tuple
        """Finds the session's streams, closed ones too."""
        self._backend = backend
        self._recorder = recorder
        self._locks = locks
        self.probe = SMProbe(backend, cache)
        """Finds out which SMs the partitions have."""
        self._listeners: dict[object, Callable[[Layout | None], object]] = {}

    def plan_moves(self, layout: Layout | None, renamed: Mapping[str, str]) -> list[Stream]:
        """Return the streams that would be drained and moved for a layout."""
        with self._locks.state:
            for old, new in renamed.items():
                if (self.layout is not None and old not in self.layout) or (layout is not None and new not in layout):
                    raise PartitionError(
                        f"renamed says that partition {old!r} is {new!r} from now on; the layouts have no such names. "
                        "Give old names of the layout in use, and new ones of the next."
                    )
            return _leaving(self._plan_switch(layout, renamed))

    def switch(self, layout: Layout | None, renamed: Mapping[str, str]) -> Layout | None:
        """Go over to a layout: make its contexts, drain the streams that move, and switch all of them together.

        An error or an interrupt leaves the old layout, whole; once the switch itself has begun, the new one. Who calls holds
        the lock for moves. Streams that are made meanwhile are made in the old layout, and move along.
        """
        self._require_idle_hosts(self.plan_moves(layout, renamed))
        granted = self.probe.with_known_sms(self._make_contexts(layout))
        self._change(lambda: self._plan_switch(granted, renamed), lambda: self._take_layout(granted))
        return granted

    def prepare(self, layout: Layout) -> Layout:
        """Make the contexts of a layout; return it with the SMs that the device really granted. Waits for no repartition."""
        granted = self._make_contexts(layout)
        return layout if granted is None else granted

    def stay(self, stream: Stream, name: str | None) -> bool:
        """Tell whether a stream is in a partition, or on the whole card; it then wants to stay. Under the lock of the state."""
        part = None if name is None else self.find(name)
        if stream.is_lent:
            raise PartitionError(
                f"Stream {stream.name!r} is lent by another library, which decides on its SMs. Make one of the session's own "
                f"with lab.stream('other', partition={name!r})."
            )
        if self._spec_of(part) != stream._recorded.spec or name != stream.partition:
            return False
        stream._wanted_partition = name
        return True

    def move(self, stream: Stream, name: str | None) -> None:
        """Move one stream to a partition of the current layout, or to the whole card; nothing where it is closed meanwhile.

        Who calls holds the lock for moves.
        """
        with self._locks.state:
            if stream.is_closed or self.stay(stream, name):
                return
            part = None if name is None else self.find(name)
        if self._spec_of(part) != stream._recorded.spec:
            self._require_idle_hosts([stream])
        self._change(lambda: {} if stream.is_closed else {stream: _Move(self._spec_of(part), part, name)})

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

    def make_place(self, name: str, priority: int, partition: str | None) -> RecordedLane:
        """Return a place for a new stream to work, in the layout in force. Under the lock of the state."""
        part = None if partition is None else self.find(partition)
        return self._make(name, priority, self._spec_of(part), part)

    def adopt(self, name: str, lent: BackendStream) -> RecordedLane:
        """Return the place of a stream that others own. Under the lock of the state."""
        return self._register(name, lent, None, None, is_lent=True)

    def verify(self) -> Verification:
        """Prove where every stream's work runs, and keep the SM ids that were seen. Who calls holds the lock for moves."""
        with ExitStack() as staying:
            streams = [
                stream for stream in self.find_streams() if not stream.is_closed and staying.enter_context(stream._staying())
            ]
            proof = self.probe.verify(self.layout, streams)
        self._keep_located()
        return proof

    def locate(self) -> Layout | None:
        """Return the layout with the SM ids of each partition, measured where they are not known; no stream is touched.

        Who calls holds the lock for moves.
        """
        if self.layout is not None and not self.layout.has_verified_sms:
            self.probe.locate(self.layout)
            self._keep_located()
        return self.layout

    def watch(self, listener: Callable[[Layout | None], object]) -> Callable[[], None]:
        """Call a function after each change; return what stops that. One that raises is dropped and logged."""
        if not callable(listener):
            raise OptionError(
                f"A listener for layouts is a function, not a {type(listener).__name__}. Use lab.partitions.watch(print)."
            )
        key = object()
        self._listeners[key] = listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def tell(self) -> None:
        """Tell everyone who watches how the layout is now."""
        for key, listener in [*self._listeners.items()]:
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
            with self._locks.state, delayed_interrupts():  # the trace has the same
                self.layout = located
                self._recorder.note_verified(located)
            self.tell()

    def _make(self, name: str, priority: int, spec: ContextSpec | None, part: Partition | None) -> RecordedLane:
        maker = self._backend if spec is None else self.cache.get(spec)
        made = maker.create_stream(priority=priority)
        try:
            return self._register(name, made, spec, part)
        except BaseException:
            made.close()
            raise

    def _register(
        self, name: str, made: BackendStream, spec: ContextSpec | None, part: Partition | None, *, is_lent: bool = False
    ) -> RecordedLane:
        device, context, handle = made.key
        lane = Lane(
            name=name,
            device=device,
            context=context,
            stream=handle,
            priority=made.priority,
            partition=None if part is None else part.name,
            sm_count=made.sm_count if part is None else part.granted_sms,
            is_blocking=made.is_blocking,
        )
        return self._recorder.add_lane(lane, made, _plain(part), spec=spec, is_lent=is_lent)

    def _spec_of(self, part: Partition | None) -> ContextSpec | None:
        """Return what the context of a partition of the current layout is made of."""
        return None if part is None else context_specs(self.layout).get(part.name)

    def _change(self, plan: Callable[[], dict[Stream, _Move]], finish: Callable[[], object] = bool) -> None:
        """Drain the streams that move until all are idle at once, and let them work in their new places together.

        Others go on meanwhile: they make, close and feed streams. Someone who feeds one through its handle could keep it busy
        for ever. After some rounds the move goes on, and new work stays behind what is left.
        """
        is_changed = False
        try:
            with self._locks.state:
                moving = _leaving(plan())
            for rounds_left in reversed(range(DRAIN_ROUNDS)):
                self._drain(moving)
                with self._locks.state:
                    moves = plan()
                    moving = _leaving(moves)
                    with _announced(moving):
                        self._require_idle_hosts(moving)
                        if rounds_left and not all(stream._backend_stream.query() for stream in moving):
                            continue
                        with delayed_interrupts():
                            places = self._make_places(moves, finish)
                            is_changed = True
                            self._settle(moves, places)
                        break
        finally:
            if is_changed:
                self.tell()  # after an interrupt too

    def _make_places(self, moves: Mapping[Stream, _Move], finish: Callable[[], object]) -> list[RecordedLane]:
        """Return the place of each stream that goes somewhere, made where it has none; a failure leaves no new ones."""
        places: list[RecordedLane] = []
        with ExitStack() as undoing:
            for stream, (spec, part, _) in moves.items():
                place = stream._places.get(spec)
                if place is None:
                    place = self._make(stream.name, stream.priority, spec, part)
                    undoing.callback(place.stream.close)
                    undoing.callback(place.close)
                elif place.part != _plain(part):  # the same SMs under another name or request
                    place = self._register(stream.name, place.stream, spec, part)
                    undoing.callback(place.close)
                places.append(place)
            finish()
            undoing.pop_all()
        return places

    def _settle(self, moves: Mapping[Stream, _Move], places: list[RecordedLane]) -> None:
        """Let the streams work there from now on. Nothing here waits."""
        before = [stream._backend_stream for stream in moves]
        for (stream, move), place in zip(moves.items(), places, strict=True):
            stream._wanted_partition = move.wanted
            stream._settle(place)
        for old, place in zip(before, places, strict=True):
            if place.stream is not old and not old.query():  # another thread may have given it work since it was found idle
                order_behind(self._backend, place.stream, old)

    def _plan_switch(self, layout: Layout | None, renamed: Mapping[str, str]) -> dict[Stream, _Move]:
        """Plan where all streams go that are open now."""
        specs, moves = context_specs(layout), {}
        for stream in self.find_streams():
            if stream.is_closed or stream.is_lent:
                continue
            wanted = renamed.get(stream._wanted_partition or "", stream._wanted_partition)
            part = layout[wanted] if layout is not None and wanted is not None and wanted in layout else None
            if layout is not None and stream.partition is not None and part is None:
                raise PartitionInUseError(
                    f"Partition {stream.partition!r} is in use by stream {stream.name!r}, and the new layout has none of this "
                    f"name. Keep it, close the stream, or move it first with lab.stream({stream.name!r}, partition=None)."
                )
            moves[stream] = _Move(None if part is None else specs.get(part.name), part, wanted)
        return moves

    def _take_layout(self, layout: Layout | None) -> None:
        if layout != self.layout:
            self._recorder.note_layout(layout)
        self.layout = layout

    def _drain(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            stream._drain()
        self._recorder.collect()

    def _require_idle_hosts(self, moving: Iterable[Stream]) -> None:
        for stream in moving:
            if self._recorder.is_in_use(stream._recorded):
                raise PartitionInUseError(
                    f"Stream {stream.name!r} is selected by a thread, or has a range open, so it cannot move to other SMs. "
                    f"Leave `with lab.on({stream.name!r})` (or the %%gpustream cell), "
                    "and end() what lab.recording.start_range began."
                )

    def _make_contexts(self, layout: Layout | None) -> Layout | None:
        """Make every context of a layout, and read back what was granted."""
        specs = context_specs(layout)
        if layout is None or not specs:
            return layout
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


def _leaving(moves: Mapping[Stream, _Move]) -> list[Stream]:
    """Return the streams that go to other SMs."""
    return [stream for stream, move in moves.items() if move.spec != stream._recorded.spec]


@contextmanager
def _announced(streams: Iterable[Stream]) -> Iterator[None]:
    """Let threads that select one of the streams meanwhile wait for the end of the block. Under the lock of the state."""
    leaving = tuple(streams)
    try:
        for stream in leaving:
            stream._is_leaving = True
        yield
    finally:
        for stream in leaving:
            stream._is_leaving = stream.is_closed


def _plain(part: Partition | None) -> Partition | None:
    """Return a partition as it was planned, without what was measured."""
    return part if part is None or part.sm_ids is None else replace(part, sm_ids=None)
