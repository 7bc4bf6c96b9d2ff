"""Objects that work in flight needs: kept until the device is done with them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from gpustreamlab._util.arrays import Owner, check_array, find_arrays, find_owner, is_array, is_empty
from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.tasks import close_later_work
from gpustreamlab.backends import Backend, BackendStream, acquire_order_event, release_order_events
from gpustreamlab.errors import DeviceError, GPUStreamLabError, OptionError

if TYPE_CHECKING:
    from gpustreamlab.memory.guards import Guard

__all__ = ["Keeper", "KeptStream", "LaneSelection", "call_on"]

_log = logging.getLogger(__name__)


T = TypeVar("T")

SWEPT_OWNERS = 1_024  # Owners of memory in use that a sweep looks at: a millisecond
CHECKED_OWNERS = 64  # Owners that a call looks at in passing


KeptStream: TypeAlias = Any  # A `gpustreamlab.streams.stream.Stream`, which is above this room
LaneSelection: TypeAlias = Any
"""A `gpustreamlab.streams.selection.Selection`: it has the stream as ``stream``, and selects it for a ``with`` block."""
HoldWatch: TypeAlias = Any
"""A `gpustreamlab.memory.hazards.AccessWatch`: it gets what could not be freed while a stream used it."""


class _Held(NamedTuple):
    """Objects, and the event behind the last work that needs them."""

    event: Any
    objects: tuple[object, ...]
    moments: tuple[tuple[HoldWatch, Any], ...] = ()
    """Moments of the event for the watchers of accesses."""


class _Deferred:
    """Memory that streams use for as long as anybody refers to it, and a little longer."""

    __slots__ = ("owner", "streams")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.streams: set[KeptStream] = set()


class Keeper:
    """Keeps objects alive until the device is done with them. One for each session.

    Nothing here waits for the device. Its lock is held around the lists alone; what is let go dies outside of it, since that
    may run code of others.
    """

    def __init__(self, backend: Backend, observing: Callable[[], AbstractContextManager[None]]) -> None:
        self._backend = backend
        self._observing = observing
        self._lock = process_lock()
        self._queues: dict[BackendStream, deque[_Held]] = {}
        self._deferred: dict[int, _Deferred] = {}
        self._turns: deque[int] = deque()
        self._guards: WeakSet[Guard] = WeakSet()
        self.writers: Callable[[Any], tuple[KeptStream, ...] | None] = lambda _array: None
        """Tells which streams wrote an array last; None for an array whose accesses nobody follows."""
        self.find: Callable[[object], KeptStream | None] = lambda _name: None
        """Finds a stream by its name."""
        self._watches: list[HoldWatch] = []

    def add_watch(self, watch: HoldWatch) -> None:
        """Tell who watches accesses what is kept until when, as long as it watches."""
        self._watches = [*(one for one in self._watches if one.is_watching), watch]

    @property
    def held_count(self) -> int:
        """Objects that are kept: those of work in flight, and the memory of arrays that crossed streams and are still used."""
        with self._lock:
            in_flight = sum(len(held.objects) for queue in self._queues.values() for held in queue)
            return in_flight + len(self._deferred)

    def hold(self, stream: KeptStream, objects: tuple[object, ...]) -> None:
        """Keep objects, and the arrays that are in them now, until what the stream holds now is done."""
        if objects:
            inside = [array for one in objects if not is_array(one) for array in find_arrays(one)]
            self._tidy(self._keep(stream, (*objects, *inside)))

    def use(self, stream: KeptStream, array: T, after: object = None) -> T:
        """Order a stream behind those that wrote an array, and keep its memory until the stream is done with it."""
        stream._require_open()
        check_array(array, stream.name)
        for producer in self._producers(stream, array, after):
            if producer is not stream:
                stream.wait(producer)
        self.defer(stream, array)
        return array

    def defer(self, stream: KeptStream, array: object) -> None:
        """Keep an array's memory until nobody else refers to it, and then until what the stream holds then is done."""
        owner = find_owner(array)
        with self._lock:
            known = self._deferred.get(owner.key)
            if known is None:
                self._turns.append(owner.key)  # first: one without a turn would be kept for good after an interrupt
                known = self._deferred[owner.key] = _Deferred(owner)
            known.streams.add(stream)
        self._tidy(stream._backend_stream)

    def sweep(self) -> None:
        """Let go of what the device is done with. Never waits, never raises for a device that has failed."""
        if self._queues:
            self._let_go(self._take_done([*self._queues]))
        if self._deferred:
            self._let_go(self._take_done(self._retire(SWEPT_OWNERS)))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let go of what is done behind a wait for the device; what is not used any more is noted in front of it."""
        self.sweep()
        yield
        self.sweep()

    def settle(self, stream: KeptStream, backend_stream: BackendStream, *, is_last: bool) -> None:
        """Let go of what a stream held in a place where its work was waited for; called before it is destroyed there."""
        unused: list[_Deferred] = []
        with self._lock:
            done = list(self._queues.pop(backend_stream, ()))
            for key, known in list(self._deferred.items()) if is_last else ():
                known.streams.discard(stream)
                if not known.streams:
                    unused.append(self._deferred.pop(key))
        self._let_go(done)

    def add_guard(self, guard: Guard) -> None:
        """Let a guard give its event back when the session closes."""
        with self._lock:
            self._guards.add(guard)

    def end_left_uses(self) -> None:
        """End the uses of guards that an interrupt has left in this thread."""
        for guard in [*self._guards]:
            guard.end_left_uses()

    def close(self) -> None:
        """Let go of everything; called when the work of all streams was waited for. Idempotent."""
        with self._lock:
            done = [held for queue in self._queues.values() for held in queue]
            unused = list(self._deferred.values())
            self._queues.clear()
            self._deferred.clear()
            self._turns.clear()
            guards = list(self._guards)
        self._let_go(done)
        unused.clear()
        for guard in guards:
            guard.abandon()

    def _producers(self, stream: KeptStream, array: object, after: object) -> tuple[Any, ...]:
        if isinstance(after, str):
            return (self.find(after),)
        if after is not None:
            # An Event of `gpustreamlab.streams.stream`, which is above this module.
            if getattr(after, "_stream", after) is None and not after.is_closed:  # type: ignore[attr-defined]
                raise OptionError(
                    f"Stream {stream.name!r} cannot wait for an event that was never recorded. Record it behind the work that "
                    "wrote the array: event.record(lab.stream(name)), or after=lab.stream(name).record()."
                )
            return (after,)
        known = () if is_empty(array) else self.writers(array)
        if known is None:
            raise OptionError(
                f"Which stream wrote this {type(array).__name__} is not known, so stream {stream.name!r} cannot wait for it. "
                f"Name it: lab.stream({stream.name!r}).use(array, after='name of its stream'), or give after= an event. If "
                "nothing was selected as it was written, it has no stream: call lab.synchronize() before it is used on one."
            )
        return known

    def _tidy(self, place: BackendStream) -> None:
        """Let go in passing: of what is done in one place, and where memory was found that nobody uses any more."""
        places = self._retire(CHECKED_OWNERS) if self._deferred else set()
        places.add(place)
        # The event that was recorded last is not asked for.
        worth = [one for one in places if len(self._queues.get(one, ())) > 1]
        if worth:
            self._let_go(self._take_done(worth))

    def _take_done(self, places: Iterable[BackendStream]) -> list[_Held]:
        """Take from the lists what is done: in each place, events happen in the order of their recording."""
        done: list[_Held] = []
        with self._observing(), self._lock:
            for place in places:
                queue = self._queues.get(place)
                while queue and self._is_done(queue[0].event):
                    done.append(queue.popleft())
                if queue is not None and not queue:
                    del self._queues[place]
        return done

    def _is_done(self, event: Any) -> bool:
        try:
            return self._backend.is_event_done(event)
        except GPUStreamLabError as error:
            # A device that has failed raises where the user calls it; closing lets go of everything.
            _log.debug("Whether held objects can be let go is not known: %s", error)
            return False

    def _let_go(self, done: list[_Held]) -> None:
        if done:
            for held in done:
                for watch, moment in held.moments:
                    watch.kept_until(held.objects, moment)
            release_order_events(self._backend, [held.event for held in done])
            done.clear()

    def _keep(self, stream: KeptStream, objects: tuple[object, ...]) -> BackendStream:
        """Record an event, and keep objects until it has happened; return where."""
        place: BackendStream = stream._backend_stream  # read once: another thread may move the stream
        if getattr(place, "is_capturing", False):
            capture = self._backend.find_capture(place)
            if capture is not None:  # at each launch of the graph its work needs them again
                capture.keep.extend(objects)
                return place
            raise DeviceError(
                f"Stream {stream.name!r} is being captured into a CUDA graph, so nothing can be held for it: an event would "
                "become part of the graph. Keep what the graph uses, with references of your own, while it is launched."
            )
        event = acquire_order_event(self._backend)
        with stream._loss_report:
            place.record(event)
        moments = tuple((watch, moment) for watch in self._watches if (moment := watch.moment(stream)) is not None)
        with self._lock:
            self._queues.setdefault(place, deque()).append(_Held(event, objects, moments))
        return place

    def _retire(self, count: int) -> set[BackendStream]:
        """Hold for a last time what nobody refers to any more, of the next so many owners; return where."""
        with self._lock:
            alone = self._take_alone(min(count, len(self._turns)))
            by_stream: dict[KeptStream, list[_Deferred]] = {}
            for known in alone:
                for stream in known.streams:
                    by_stream.setdefault(stream, []).append(known)
        later: set[int] = set()
        for stream, owners in by_stream.items():
            if not self._keep_last(stream, owners):
                later.update(known.owner.key for known in owners)
        with self._lock:
            for known in alone:
                if known.owner.key not in later:
                    self._deferred.pop(known.owner.key, None)
        return {stream._backend_stream for stream in by_stream}

    def _take_alone(self, count: int) -> list[_Deferred]:
        """Return those of the next so many owners to which nobody refers. Their turn goes when they have gone."""
        alone: list[_Deferred] = []
        for _ in range(count):
            known = self._deferred.get(self._turns[0])
            if known is None:
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            if known.owner.is_alone():
                alone.append(known)
        return alone

    def _keep_last(self, stream: KeptStream, owners: list[_Deferred]) -> bool:
        """Tell whether owners are kept for what the stream holds; if not, they wait for its close, or for another try."""
        if stream.is_closed:  # who closes it may still wait for its work, and calls `settle` then
            return False
        try:
            self._keep(stream, tuple(known.owner for known in owners))
        except GPUStreamLabError as error:
            _log.debug("The memory of %d arrays is kept for now: %s", len(owners), error)
            return False
        return True


def call_on(
    keeper: Keeper,
    selection: LaneSelection,
    call: Callable[..., T],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    hold: Iterable[object],
) -> T:
    """Call a function with a stream, selected; keep what it was given and returned until its work is done."""
    name = selection.stream.name
    if not callable(call):
        raise OptionError(
            f"lab.run_on calls a function, and {call!r:.80} is none. Use: lab.run_on({name!r}, function, *arguments)."
        )
    if isinstance(hold, (str, bytes, Mapping)) or hasattr(hold, "shape") or not isinstance(hold, Iterable):
        raise OptionError(f"hold= takes several objects, not one {type(hold).__name__}. Put it into a list: hold=[x].")
    held = [*args, *kwargs.values(), *hold]
    with selection as stream:
        try:
            result = call(stream, *args, **kwargs)
            if close_later_work(result):
                raise OptionError(f"{_made_later(call, name)} What it made is closed.")
        except BaseException as error:  # it may have enqueued work before
            try:
                if not stream.is_closed:
                    keeper.hold(stream, _worth_keeping(held))
            except GPUStreamLabError as failure:
                error.add_note(f"What the call was given is not held until its work is done: {failure}")
            raise
        keeper.hold(stream, _worth_keeping([*held, result]))
    return result


def _made_later(call: object, name: str) -> str:
    called = getattr(call, "__qualname__", None) or repr(call)[:80]
    return (
        f"lab.run_on({name!r}, {called}) makes a coroutine or generator, whose body would run later, with nothing selected. "
        f"Decorate the function, and call it yourself: @lab.on({name!r}) selects the stream in each of its steps."
    )


_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)  # Arguments of a call that own no device memory


def _worth_keeping(objects: Iterable[object]) -> tuple[object, ...]:
    return tuple(one for one in objects if not isinstance(one, _PLAIN))
