"""What outlives the sessions of a device; see decisions 0019 and 0020 in docs/explanations/decisions."""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from gpustreamlab._util.defences import in_forked_child
from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.backends.cuda._libcuda import import_cupy
from gpustreamlab.model import SMResource

KEPT_SPLITS = 1_024  # Structured splits that are kept; their descriptions take a few hundred bytes each


class IdleContexts:
    """The green contexts of one device that no session uses at the moment, by what they are made of. Any thread may ask.

    What they are made of belongs to the process too: the groups into which the device was split.

    On the drivers tried, a green context that is destroyed leaves 4 MiB on the device and 1.6 MiB on the host behind. So it
    is given back here instead, and never destroyed: that would give nothing back, and libraries may know its streams.
    """

    def __init__(self) -> None:
        self._groups: tuple[list[Any], SMResource] | None = None
        self._splits: OrderedDict[tuple[SplitGroup, ...], list[Any]] = OrderedDict()
        self._lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it
        self._kept: deque[tuple[ContextSpec, Any]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def find_groups(self, split: Callable[[], tuple[list[Any], SMResource]]) -> tuple[list[Any], SMResource]:
        """Return the smallest groups and what they are, split once: two splits need not number the same SMs alike."""
        with self._lock:
            if self._groups is None:
                self._groups = split()
            return self._groups

    def find_split(self, wanted: tuple[SplitGroup, ...], split: Callable[[], list[Any]]) -> list[Any]:
        """Return the groups of a structured split, made once: those of two splits need not be disjoint."""
        with self._lock:
            groups = self._splits.get(wanted)
            if groups is None:
                groups = self._splits[wanted] = split()
                if len(self._splits) > KEPT_SPLITS:
                    self._splits.popitem(last=False)
            return groups

    def take(self, spec: ContextSpec) -> Any | None:
        """Return a `cuda.core.Context` made of this, which is the caller's from now on; None if there is none."""
        with self._lock:
            for place, (known, context) in enumerate(self._kept):
                if known == spec:
                    del self._kept[place]
                    return context
        return None

    def give(self, spec: ContextSpec, context: Any) -> None:
        """Take a `cuda.core.Context` back, whose streams nobody uses."""
        with self._lock:
            self._kept.append((spec, context))


KEPT_EVENTS = 16_384  # Events of one device that are kept while no session uses them


class IdleEvents:
    """The timing events of one device that no session uses at the moment. Any thread may ask.

    CUPTI 13.0 keeps 41 bytes for each event that was recorded while it tells of events, and has them back from none that is
    destroyed; one that is recorded again costs nothing more. So they are given back here. Those beyond `KEPT_EVENTS` are
    destroyed.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._keep_count = KEPT_EVENTS

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> Any | None:
        """Return a `cuda.core.Event`, which is the caller's from now on; None if there is none."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def give(self, events: Iterable[Any]) -> None:
        """Take `cuda.core.Event` objects back. Work may still be on its way to them."""
        for event in events:
            if len(self._kept) < self._keep_count:
                self._kept.append(event)
            else:
                event.close()

    def close(self) -> None:
        """Destroy all, and from now on what is given back at once: the process ends."""
        self._keep_count = 0
        while (event := self.take()) is not None:
            event.close()


class IdleStreams:
    """The streams of one device that no session uses at the moment. Any thread may ask.

    A library that has seen a stream may use its handle at any later time: torch records an event on it where page-locked memory
    is freed that was copied there. On a destroyed stream that ends the process. So streams are lent again and never destroyed,
    not at the end of the process either, as torch does with its own. There are as many as were ever open at once.
    """

    def __init__(self, is_idle: Callable[[Any], bool]) -> None:
        self._is_idle = is_idle
        self._lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it
        self._kept: dict[tuple[object, int], list[Any]] = {}

    def __len__(self) -> int:
        return sum(len(streams) for streams in self._kept.values())

    def take(self, context: object, priority: int, make: Callable[[], Any]) -> Any:
        """Return a `cuda.core.Stream` without work, which is the caller's from now on: a kept one, or a new one."""
        with self._lock:
            kept = self._kept.get((context, priority), [])
            place = next((place for place in reversed(range(len(kept))) if self._is_idle(kept[place])), None)
            if place is not None:
                return kept.pop(place)
        made = make()
        keep_for_good(made)
        return made

    def give(self, context: object, priority: int, stream: Any) -> None:
        """Take a stream back; it may still have work."""
        with self._lock:
            self._kept.setdefault((context, priority), []).append(stream)


def keep_for_good(owner: object) -> None:
    """Let an object never be destroyed, not at the end of the process either: one reference is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Idle:
    """What no session of one device uses at the moment, and the next one may."""

    def __init__(self) -> None:
        self.contexts = IdleContexts()
        self.streams = IdleStreams(_has_no_work)
        self.events = IdleEvents()
        self.order_events = IdleEvents()

    def close(self) -> None:
        """Destroy the events, and from now on what is given back at once: the process ends. Libraries may outlive this."""
        for kept in (self.events, self.order_events):
            with suppress(Exception):  # after an error of the device that stays, everything fails
                kept.close()


def _has_no_work(stream: Any) -> bool:
    return bool(import_cupy().cuda.Stream.from_external(stream).done)


_idle: dict[tuple[int, int], Idle] = {}
_left: list[object] = []  # What must not be destroyed here: a forked child's parent owns it, or its primary context is gone


def idle_on(ordinal: int, primary_id: int) -> Idle:
    """Return what is idle on one device."""
    gone = [known for known in [*_idle] if known[0] == ordinal and known[1] != primary_id]
    _left.extend(_idle.pop(known, None) for known in gone)
    return _idle.setdefault((ordinal, primary_id), Idle())


@atexit.register
def _close_all() -> None:
    for idle in _idle.values():
        idle.close()


def _leave_to_the_parent() -> None:
    _left.extend(_idle.values())
    _idle.clear()


in_forked_child(_leave_to_the_parent)
