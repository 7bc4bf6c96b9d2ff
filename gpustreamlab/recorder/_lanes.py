"""The lanes of a trace: the session's streams, streams of others, and threads of the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from gpustreamlab.backends import StreamFacts
from gpustreamlab.model import Lane
from gpustreamlab.typing import LaneKind

OUTSIDE_LANES = 256
"""Streams that no session made and that have lanes of their own; further ones share a lane."""
HOST_LANES = 256
"""Threads of the host that have lanes of their own; further ones share a lane."""
OTHER_STREAMS = "other streams"
"""Name of the lane that further streams share."""
OTHER_THREADS = "host: other threads"
"""Name of the lane that further threads share."""


class LaneTable:
    """Every lane, by its index. Lanes are added and shown anew, and never go."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._names: dict[str, int] = {}
        self._limits = {OTHER_STREAMS: OUTSIDE_LANES, OTHER_THREADS: HOST_LANES}
        # Re-entrant: a finaliser or a signal handler may come here in the middle of it.
        self._lock = threading.RLock()
        self.edit_count = 0
        """Goes up with every change."""

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def all(self) -> tuple[Lane, ...]:
        """Every lane."""
        return tuple(self._lanes)

    def add(self, lane: Lane) -> int:
        """Return the index of the lane that a session's stream has by its name, made on first use."""
        with self._lock:
            known = self._names.get(lane.name)
            return self._append(lane) if known is None else known

    def show(self, index: int, lane: Lane) -> None:
        """Let the trace show a lane like this from now on."""
        with self._lock:
            self._lanes[index] = lane
            self.edit_count += 1

    def add_outside(self, context: int, stream: int, facts: StreamFacts) -> int:
        """Return the index of a lane for a stream that no session made."""
        # Names of the session's own streams have no space: the two never meet.
        name = facts.name if " " in facts.name else f"stream {facts.name}"
        lane = Lane(
            name=name, device=facts.device, context=context, stream=stream, sm_count=max(0, facts.sm_count), outside=True
        )
        return self._add_bounded(lane, OTHER_STREAMS, lambda: replace(lane, context=0, stream=0, sm_count=0))

    def add_host(self, thread: int, name: str) -> int:
        """Return the index of a lane for a thread of the host."""
        lane = Lane(name=f"host: {name}", stream=thread, kind=LaneKind.HOST)
        return self._add_bounded(lane, OTHER_THREADS, lambda: replace(lane, stream=0))

    def _add_bounded(self, lane: Lane, shared: str, make_shared: Callable[[], Lane]) -> int:
        with self._lock:
            if self._limits[shared] > 1:
                self._limits[shared] -= 1
                return self._append(replace(lane, name=self._free_name(lane.name)))
            known = self._names.get(shared)
            return self._append(replace(make_shared(), name=shared)) if known is None else known

    def _free_name(self, name: str) -> str:
        taken = {*self._names, OTHER_STREAMS, OTHER_THREADS}
        return name if name not in taken else next(free for n in count(2) if (free := f"{name} ({n})") not in taken)

    def _append(self, lane: Lane) -> int:
        index = len(self._lanes)
        self._lanes.append(lane)
        self._names[lane.name] = index
        self.edit_count += 1
        return index
