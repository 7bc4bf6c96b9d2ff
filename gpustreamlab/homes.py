"""Places where streams work: made before a move, taken at the switch, given up where there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpustreamlab.backends import Backend, BackendStream, ContextSpec, order_behind
from gpustreamlab.green import ContextCache
from gpustreamlab.interrupts import delayed_interrupts
from gpustreamlab.model import Lane, Partition
from gpustreamlab.recorder import Recorder
from gpustreamlab.streams import Home, Stream

__all__ = ["HomeMaker", "PlannedHomes"]


class HomeMaker:
    """Makes places for the streams of one session. Who calls it holds the session's lock of its state.

    Parameters
    ----------
    backend, recorder, cache
        The session's.
    """

    def __init__(self, backend: Backend, recorder: Recorder, cache: ContextCache) -> None:
        self._backend = backend
        self._recorder = recorder
        self._cache = cache

    def make(
        self, name: str, priority: int, spec: ContextSpec | None, part: Partition | None, known: Stream | None = None
    ) -> Home:
        """Return a place for a stream to work: the one that a known stream had there before, or a new one."""
        plain = _plain(part)
        before = None if known is None else known.home_in(spec)
        if before is not None and before.partition == plain:
            return before
        if before is not None:
            made = before.backend_stream  # the same SMs under another name or request
        elif spec is None:
            made = self._backend.create_stream(priority=priority)
        else:
            made = self._cache.get(spec).create_stream(priority=priority)
        try:
            return self._register(name, made, spec, plain)
        except BaseException:
            if before is None:
                made.close()
            raise

    def adopt(self, name: str, lent: BackendStream) -> Home:
        """Return the place of a stream that others own."""
        return self._register(name, lent, None, None, is_lent=True)

    def order_behind(self, before: Sequence[Home], after: Sequence[Home]) -> None:
        """Keep new work of streams that moved behind what another thread may have enqueued since they were found idle."""
        for old, new in zip(before, after, strict=True):
            if old.backend_stream is not new.backend_stream and not old.backend_stream.query():
                order_behind(self._backend, new.backend_stream, old.backend_stream)

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


class _Planned(NamedTuple):
    """Where a stream goes."""

    home: Home
    """The place."""
    wanted: str | None
    """The partition that it then wants."""
    is_new: bool
    """Whether the place was made for this, and not known to the stream."""
    has_new_stream: bool
    """Whether the backend's stream was made for this."""


class PlannedHomes:
    """Where streams go in one change of places. Who calls it holds the session's lock of its state, except for `abandon`.

    Parameters
    ----------
    maker
        Makes the places.
    """

    def __init__(self, maker: HomeMaker) -> None:
        self._maker = maker
        self._planned: dict[Stream, _Planned] = {}
        self.is_settled = False
        """True once the streams work there."""

    @property
    def moving(self) -> list[Stream]:
        """The streams that go to other SMs."""
        return [stream for stream, planned in self._planned.items() if planned.home.spec != stream.home.spec]

    def put(self, stream: Stream, spec: ContextSpec | None, part: Partition | None, wanted: str | None) -> None:
        """Plan where a stream goes; nothing is made where it has the place, or is planned to go there."""
        known = self._planned.get(stream)
        if known is not None and known.home.spec == spec and known.home.partition == _plain(part):
            self._planned[stream] = known._replace(wanted=wanted)
            return
        if known is not None:
            self._drop(stream)
        before = stream.home_in(spec)
        if before is not None and before.partition == _plain(part):
            self._planned[stream] = _Planned(before, wanted, is_new=False, has_new_stream=False)
            return
        with delayed_interrupts():  # a stream that was made is in the plan
            home = self._maker.make(stream.name, stream.priority, spec, part, stream)
            self._planned[stream] = _Planned(home, wanted, is_new=True, has_new_stream=before is None)

    def keep(self, streams: Collection[Stream]) -> None:
        """Drop all streams but these: the others were closed meanwhile."""
        for stream in [stream for stream in self._planned if stream not in streams]:
            self._drop(stream)

    def settle(self) -> None:
        """Let the streams work there from now on. Nothing here waits; interrupts have to be held back by who calls."""
        before, after = [], []
        for stream, planned in tuple(self._planned.items()):
            before.append(stream.home)
            after.append(planned.home)
            del self._planned[stream]
            stream.wanted_partition = planned.wanted
            stream.settle(planned.home)
        self.is_settled = True
        self._maker.order_behind(before, after)

    def abandon(self) -> None:
        """Give up the places that were made and are not going to be used."""
        for stream in tuple(self._planned):
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        with delayed_interrupts():
            planned = self._planned.pop(stream, None)
            if planned is not None and planned.is_new:
                planned.home.recorded.close()
                if planned.has_new_stream:
                    planned.home.backend_stream.close()


def _plain(part: Partition | None) -> Partition | None:
    """Return a partition as it was planned, without what was measured."""
    return part if part is None or part.sm_ids is None else replace(part, sm_ids=None)
