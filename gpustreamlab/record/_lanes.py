"""The lanes of a trace: the session's streams, streams of others, and threads of the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from gpustreamlab.backends import StreamFacts
from gpustreamlab.errors import SessionError
from gpustreamlab.model import Lane, Layout, LayoutChange, Partition
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


KEPT_LAYOUTS = 1_000
"""Changes of the layout that are kept for the trace; the newest count."""
PARTITION_LIMIT = 65_536
"""Different partitions (by name and SMs) told apart in one session."""


class Places:
    """The partitions that work ran in, and the layouts that there were."""

    def __init__(self) -> None:
        self._partitions: list[Partition] = []
        self._codes: dict[Partition, int] = {}
        self._layouts: deque[tuple[int, Layout | None]] = deque(maxlen=KEPT_LAYOUTS)
        self.edit_count = 0
        """Goes up with every change."""
        self._clock_ns: dict[int, int] = {}  # of the kept layouts: the backend's clock by host time, asked for once

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Every partition by its code."""
        return tuple(self._partitions)

    def code(self, partition: Partition | None) -> int:
        """Return the code of a partition, or -1 for the whole card."""
        if partition is None:
            return -1
        plain = replace(partition, sm_ids=None)
        known = self._codes.get(plain)
        if known is not None:
            return known
        if len(self._partitions) >= PARTITION_LIMIT:
            raise SessionError(
                f"This session has had {PARTITION_LIMIT:,} different partitions, more than a trace keeps. "
                "Start another with gpustreamlab.Session()."
            )
        self.edit_count += 1
        self._partitions.append(partition)
        code = self._codes[plain] = len(self._partitions) - 1
        return code

    def note_layout(self, layout: Layout | None, host_ns: int) -> None:
        """Note a layout and the host time at which it began."""
        self.edit_count += 1
        self._layouts.append((host_ns, layout))

    def note_verified(self, layout: Layout) -> None:
        """Keep the measured SM ids of the newest layout's partitions."""
        self.edit_count += 1
        for partition in layout:
            self._partitions[self.code(partition)] = partition
        if self._layouts:
            self._layouts[-1] = (self._layouts[-1][0], layout)

    def changes(self, to_clock_ns: Callable[[int], int]) -> tuple[LayoutChange, ...]:
        """Return the layouts, with their times put on the backend's clock."""
        kept = tuple(self._layouts)
        known = self._clock_ns
        # Stored when it is whole, and not read again: other threads ask at the same time.
        clock_ns = {host_ns: known[host_ns] if host_ns in known else to_clock_ns(host_ns) for host_ns, _ in kept}
        self._clock_ns = clock_ns
        return tuple(LayoutChange(time_ns=clock_ns[host_ns], layout=layout) for host_ns, layout in kept)

    def clear(self) -> None:
        """Forget all layouts but the newest."""
        self.edit_count += 1
        while len(self._layouts) > 1:
            self._layouts.popleft()
