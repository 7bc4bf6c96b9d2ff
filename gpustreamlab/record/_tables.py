"""What the codes in a recorder's rows mean, the moments that were marked, and how all of it was measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.host import host_id
from gpustreamlab.backends import Backend
from gpustreamlab.errors import DeviceError, SessionError
from gpustreamlab.model import Lane, Layout, LayoutChange, Marker, Partition, TraceMetadata
from gpustreamlab.record._names import OTHER_NAMES, CodeTable, LaneTable, Threads
from gpustreamlab.typing import MarkerKind

if TYPE_CHECKING:
    from gpustreamlab.record._kernel_tier import KernelTier

NAME_LIMIT = 65_536  # Different range names told apart in one session
KEPT_LAYOUTS = 1_000  # Changes of the layout that are kept for the trace; the newest count
PARTITION_LIMIT = 65_536  # Different partitions (by name and SMs) told apart in one session
KEPT_MARKERS = 10_000  # Markers that are kept for the trace; the newest count
TABLES_EVERY_S = 10.0  # After how long the tables count as changed in any case


class Tables(NamedTuple):
    """What stays small, as it is now; parts that have not changed are equal."""

    lanes: Sequence[Lane]  # Every lane, by the code that rows have
    threads: Sequence[str]  # By their code
    partitions: Sequence[Partition]  # By their code
    layouts: Sequence[LayoutChange]  # When the SMs were shared out anew, in order of time
    markers: Sequence[Marker]  # Moments that were marked, in order of time. Recorders tell them by the chunk
    metadata: TraceMetadata  # How all of it was measured; without the spans that are missing or pending


class SessionTables:
    """The tables of one session."""

    def __init__(self, backend: Backend, next_number: Callable[[], int], host_ns: int) -> None:
        self._backend = backend
        self.names: CodeTable[str] = CodeTable(NAME_LIMIT, OTHER_NAMES)  # Of spans
        self.lanes = LaneTable()  # Streams, and threads of the host
        self.threads = Threads(self.lanes)  # Of the host
        self.markers = Markers(next_number, host_ns)  # Moments that were marked
        self._partitions: list[Partition] = []
        self._partition_codes: dict[Partition, int] = {}
        self._layouts: deque[tuple[int, Layout | None]] = deque(maxlen=KEPT_LAYOUTS)
        self._edit_count = 0
        self._unselected_before = getattr(backend, "unselected_work", 0)
        # What was told once stays, though the clock is known better later.
        self._to_clock_ns = lru_cache(maxsize=KEPT_LAYOUTS)(backend.host_to_clock_ns)

    @property
    def version(self) -> tuple[object, ...]:
        """What changes whenever a table does, and now and then by itself: the errors of the clock have none."""
        clock = int(time.monotonic() / TABLES_EVERY_S)
        return len(self.threads), self._edit_count, self.lanes.edit_count, self.markers.dropped_count, clock

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected, without a span, since `forget`; 0 where the backend does not count it."""
        return getattr(self._backend, "unselected_work", 0) - self._unselected_before

    def partition_code(self, partition: Partition | None) -> int:
        """Return the code of a partition, or -1 for the whole card."""
        if partition is None:
            return -1
        plain = replace(partition, sm_ids=None)
        known = self._partition_codes.get(plain)
        if known is not None:
            return known
        if len(self._partitions) >= PARTITION_LIMIT:
            raise SessionError(
                f"This session has had {PARTITION_LIMIT:,} different partitions, more than a trace keeps. "
                "Start another with gpustreamlab.Session()."
            )
        self._edit_count += 1
        self._partitions.append(partition)
        code = self._partition_codes[plain] = len(self._partitions) - 1
        return code

    def note_layout(self, layout: Layout | None, host_ns: int) -> None:
        """Note a layout and the host time at which it began."""
        self._edit_count += 1
        self._layouts.append((host_ns, layout))

    def note_verified(self, layout: Layout) -> None:
        """Keep the measured SM ids of the newest layout's partitions."""
        self._edit_count += 1
        for partition in layout:
            self._partitions[self.partition_code(partition)] = partition
        if self._layouts:
            self._layouts[-1] = (self._layouts[-1][0], layout)

    def forget(self) -> None:
        """Forget markers, and all layouts but the newest; count work with no stream selected from now on."""
        self._edit_count += 1
        while len(self._layouts) > 1:
            self._layouts.popleft()
        self.markers.clear()
        self._unselected_before = getattr(self._backend, "unselected_work", 0)

    def make(self, kernels: KernelTier, title: str) -> Tables:
        """Return all tables as they are now, but for markers."""
        return Tables(
            lanes=self.lanes.all,
            threads=self.threads.texts,
            partitions=tuple(self._partitions),
            layouts=tuple(LayoutChange(time_ns=self._to_clock_ns(at_ns), layout=layout) for at_ns, layout in [*self._layouts]),
            markers=(),
            metadata=self._metadata(kernels, title),
        )

    def new_markers(self) -> list[Marker]:
        """Return the markers that were not told yet, their times put on the backend's clock."""
        return self.markers.take(self._backend.host_to_clock_ns)

    def _metadata(self, kernels: KernelTier, title: str) -> TraceMetadata:
        clock = self._backend.clock_info()
        return TraceMetadata(
            backend=self._backend.name,
            device=self._backend.device,
            clock=clock.description,
            clock_error_ns=clock.clock_error_ns,
            range_error_ns=clock.range_error_ns,
            range_correction_ns=clock.range_correction_ns,
            host_error_ns=clock.host_error_ns,
            dropped_markers=self.markers.dropped_count,
            epoch_unix_ns=clock.epoch_unix_ns,
            host=host_id(),
            title=title,
            **kernels.facts(),
        )


@dataclass(slots=True)
class _Cell:
    """The cell that runs, while no range was opened in it."""

    host_ns: int
    text: str
    number: int  # Number taken when it was last looked at


class Markers:
    """The marked moments of a session, and the cell that runs."""

    def __init__(self, next_number: Callable[[], int], host_ns: int) -> None:
        self._next_number = next_number
        self._noted: deque[tuple[int, str, MarkerKind]] = deque(maxlen=KEPT_MARKERS)  # those that were not taken yet
        self._count = 0
        # The cell that made the session has no name before it ends.
        self._cell: _Cell | None = _Cell(host_ns, "", next_number())
        self._lock = process_lock()

    @property
    def dropped_count(self) -> int:
        """Markers that made room for newer ones."""
        return max(0, self._count - KEPT_MARKERS)

    def note(self, text: str, kind: MarkerKind, host_ns: int) -> None:
        """Mark a moment of the host's clock."""
        with self._lock:
            self._count += 1
            self._noted.append((host_ns, text, kind))

    def begin_cell(self, text: str, host_ns: int) -> None:
        """Note that a cell begins; it is marked as soon as a range is opened in it."""
        with self._lock:
            self.settle_cell()
            self._cell = _Cell(host_ns, text, self._next_number())

    def end_cell(self, text: str) -> None:
        """Note that the cell of this name has ended: what follows is not its own."""
        with self._lock:
            if self._cell is not None and not self._cell.text:
                self._cell.text = text
            self.settle_cell()
            self._cell = None

    def settle_cell(self) -> None:
        """Mark the cell that runs if a range was opened in it."""
        with self._lock:
            cell = self._cell
            if cell is None or not cell.text:
                return
            number = self._next_number()
            if number > cell.number + 1:
                self._cell = None
                self.note(cell.text, MarkerKind.CELL, cell.host_ns)
            else:
                cell.number = number

    def take(self, to_clock_ns: Callable[[int], int]) -> list[Marker]:
        """Return those that were not taken yet, their times put on the backend's clock."""
        taken: list[Marker] = []
        # A device that fails by now leaves them here.
        with self._lock, suppress(DeviceError):
            self.settle_cell()
            while self._noted:
                host_ns, text, kind = self._noted[0]
                taken.append(Marker(time_ns=to_clock_ns(host_ns), text=text, kind=kind))
                self._noted.popleft()
        return taken

    def clear(self) -> None:
        """Forget all markers; the cell that runs is marked anew if more ranges come."""
        with self._lock:
            self._noted.clear()
            self._count = 0
            if self._cell is not None:
                self._cell.number = self._next_number()
