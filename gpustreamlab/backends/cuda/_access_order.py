"""What orders work on a CUDA device, told to those who watch accesses: events, waits, and what the host has waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpustreamlab.analysis import Moment
from gpustreamlab.backends._features import AccessSink
from gpustreamlab.backends.cuda._tracked import Tracker


class AccessOrder:
    """Hands the order on while somebody watches. One for each backend; its streams tell it.

    Events of ranges are not told of: nobody waits for them. What a tool sees done while it only looks on is no order that the
    program has.
    """

    def __init__(self, beside: AccessOrder | None = None) -> None:
        self.sink: AccessSink | None = None
        """Who watches; None for nobody."""
        self.tracker: Tracker | None = None
        """What follows CuPy's calls; the same for all cards that are watched."""
        self.moments: dict[int, Moment] = {}
        """What events stand for, by the identity of each, which may take no weak references."""
        self.cards: list[AccessOrder] = [] if beside is None else beside.cards
        """Those of all cards of the node."""
        self.cards.append(self)
        self._thread = threading.local()

    def watch(self, sink: AccessSink | None) -> None:
        """Tell somebody from now on, or nobody."""
        self.sink = sink
        self.moments.clear()

    def record(self, handle: int, event: object) -> None:
        """Note that an event was recorded."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                self.moments[id(event)] = sink.record(handle)

    def wait(self, handle: int, event: object) -> None:
        """Note that a stream's later work waits for an event."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                sink.wait(handle, self._find(event))

    def host_wait(self, event: object) -> None:
        """Note that the host has seen an event reached."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait(self._find(event))

    def host_wait_stream(self, handle: int) -> None:
        """Note that the host has seen a stream idle."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait_stream(handle)

    def host_wait_all(self) -> None:
        """Note that the host has seen the device idle."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait_all()

    def close_stream(self, handle: int) -> None:
        """Note that a stream was destroyed."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                sink.close_stream(handle)

    def forget(self, events: Iterable[object]) -> None:
        """Let events mean nothing any more: they go back to their pool, and ranges record them next."""
        for event in events:
            self.moments.pop(id(event), None)

    @contextmanager
    def looking_on(self) -> Iterator[None]:
        """Let what this thread sees done be no order."""
        before = self._is_looking_on
        self._thread.is_looking_on = True
        try:
            yield
        finally:
            self._thread.is_looking_on = before

    def _find(self, event: object) -> Moment | None:
        """Return what an event stands for, of whichever card it is: each is recorded on streams of its own."""
        return next((moment for card in self.cards if (moment := card.moments.get(id(event))) is not None), None)

    @property
    def _is_looking_on(self) -> bool:
        return getattr(self._thread, "is_looking_on", False)


class NullStream:
    """CUDA's NULL stream, on which a wait is put in where work with no lane selected lacks one."""

    def __init__(self, core_stream: Any, order: AccessOrder, scope: Callable[[], AbstractContextManager[None]]) -> None:
        self._core_stream = core_stream
        self._order = order
        self._scope = scope

    def record(self, event: Any) -> None:
        """Record an event."""
        with self._scope():
            self._core_stream.record(event)
        self._order.record(0, event)

    def wait(self, event: Any) -> None:
        """Make later work wait for an event."""
        with self._scope():
            self._core_stream.wait(event)
        self._order.wait(0, event)
