"""Where work ran, and when that changed: the partitions by code, and the layouts by time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from gpustreamlab.errors import SessionError
from gpustreamlab.model import Layout, LayoutChange, Partition

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
