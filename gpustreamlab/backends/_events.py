"""A pool of events: making one costs the host about as much as recording one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from gpustreamlab.backends._protocol import Backend, BackendStream

E = TypeVar("E")


class EventPool(Generic[E]):
    """Events that wait to be used again.

    ``list.append`` and ``list.pop`` are atomic, so any thread may take and give back without a lock.

    Parameters
    ----------
    create
        Makes one event.
    keep_count
        How many idle events are kept; what comes back beyond that is dropped.
    """

    def __init__(self, create: Callable[[], E], *, keep_count: int = 262_144) -> None:
        self._create = create
        self._keep_count = keep_count
        self._idle: list[E] = []

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self) -> E:
        """Take an idle event, or make one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._create()

    def release(self, events: Iterable[E]) -> None:
        """Give events back."""
        self._idle.extend(events)
        del self._idle[self._keep_count :]

    def clear(self) -> list[E]:
        """Empty the pool and return what was in it, for closing."""
        idle, self._idle = self._idle, []
        return idle


def acquire_order_event(backend: Backend) -> Any:
    """Take an event that orders work and has no time: on CUDA it never waits in the queue of a copy engine."""
    pool = getattr(backend, "order_events", None)
    return backend.acquire_event() if pool is None else pool.acquire()


def release_order_events(backend: Backend, events: Iterable[Any]) -> None:
    """Give events of `acquire_order_event` back."""
    pool = getattr(backend, "order_events", None)
    if pool is None:
        backend.release_events(events)
    else:
        pool.release(events)


def order_behind(backend: Backend, stream: BackendStream, ahead: BackendStream) -> None:
    """Let a stream's later work wait for all that another one holds now; the event goes back to its pool in any case."""
    event = acquire_order_event(backend)
    try:
        ahead.record(event)
        stream.wait(event)
    finally:
        release_order_events(backend, (event,))
