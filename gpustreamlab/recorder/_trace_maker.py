"""Make traces of rows, with the tables that their codes point into and how all of it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpustreamlab.backends import Backend
from gpustreamlab.model import Trace, TraceMetadata
from gpustreamlab.recorder._buffer import SPAN_COLUMNS
from gpustreamlab.recorder._kernel_tier import KernelTier
from gpustreamlab.recorder._lanes import LaneTable
from gpustreamlab.recorder._markers import Markers
from gpustreamlab.recorder._names import NameTable
from gpustreamlab.recorder._places import Places
from gpustreamlab.recorder._snapshot import build_trace
from gpustreamlab.recorder._thread_names import ThreadNames
from gpustreamlab.recorder._trace_work import NO_WORK, WorkTables
from gpustreamlab.typing import CaptureTier, Int64Array


class TraceMaker:
    """Knows what the codes in the rows of a recorder mean.

    Parameters
    ----------
    backend
        Whose device and clock are told of.
    names, threads, lanes, places, markers, kernels
        The recorder's tables.
    now_ns
        The present time on the backend's clock; asking costs no virtual time.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        names: NameTable,
        threads: ThreadNames,
        lanes: LaneTable,
        places: Places,
        markers: Markers,
        kernels: KernelTier,
        now_ns: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._names = names
        self._threads = threads
        self._lanes = lanes
        self._places = places
        self._markers = markers
        self._kernels = kernels
        self._now_ns = now_ns
        self._unselected_before = 0
        self.forget()

    @property
    def version(self) -> tuple[int, ...]:
        """What changes whenever a table does."""
        self._markers.settle_cell()
        counts = self._names.count, self._threads.count, self._places.edit_count, self._markers.edit_count
        return (*counts, self._lanes.edit_count, self._kernels.edit_count)

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of, since `forget`; 0 where the backend does not count it."""
        return getattr(self._backend, "unselected_work", 0) - self._unselected_before

    def forget(self) -> None:
        """Count work with no stream selected from now on."""
        self._unselected_before = getattr(self._backend, "unselected_work", 0)

    def make(
        self,
        columns: Mapping[str, Int64Array],
        edges: Sequence[tuple[int, int]],
        *,
        title: str,
        dropped_count: int,
        pending_count: int,
        unselected_work: int,
    ) -> Trace:
        """Return rows as a trace; `edges` are pairs of range numbers, of which the second waited for the first."""
        metadata = self._metadata(
            title, dropped_count=dropped_count, pending_count=pending_count, unselected_work=unselected_work
        )
        return self._build(columns, names=self._names.texts, edges=edges, metadata=metadata, work=self._kernels.tables())

    def make_tables(self, *, title: str, dropped_count: int) -> Trace:
        """Return a trace without spans, their names and edges: all that stays small. It has every lane."""
        columns = {name: np.empty(0, np.int64) for name in SPAN_COLUMNS}
        metadata = self._metadata(title, dropped_count=dropped_count, pending_count=0)
        return self._build(columns, names=(), edges=(), metadata=metadata, work=NO_WORK, keeps_lanes=True)

    def _build(
        self,
        columns: Mapping[str, Int64Array],
        *,
        names: Sequence[str],
        edges: Sequence[tuple[int, int]],
        metadata: TraceMetadata,
        work: WorkTables,
        keeps_lanes: bool = False,
    ) -> Trace:
        # The tables are read last: what points into them is known by now, and they only grow.
        return build_trace(
            columns,
            names=names,
            lanes=self._lanes.all,
            threads=self._threads.texts,
            edges=edges,
            partitions=self._places.partitions,
            layouts=self._places.changes(self._backend.host_to_clock_ns),
            markers=self._markers.changes(self._backend.host_to_clock_ns),
            metadata=metadata,
            work=work,
            keeps_lanes=keeps_lanes,
        )

    def _metadata(self, title: str, *, dropped_count: int, pending_count: int, unselected_work: int = 0) -> TraceMetadata:
        clock, kernels = self._backend.clock_info(), self._kernels
        return TraceMetadata(
            backend=self._backend.name,
            device=self._backend.device,
            clock=clock.description,
            clock_error_ns=clock.clock_error_ns,
            range_error_ns=clock.range_error_ns,
            range_correction_ns=clock.range_correction_ns,
            host_error_ns=clock.host_error_ns,
            tier=CaptureTier.KERNELS if kernels.windows.were_any else CaptureTier.RANGES,
            capture_windows=kernels.windows.until(self._now_ns),
            capture_source=kernels.description if kernels.windows.were_any else "",
            capture_note=kernels.note,
            kernel_error_ns=kernels.error_ns if kernels.windows.were_any else 0,
            dropped_spans=dropped_count,
            dropped_records=kernels.dropped_count,
            dropped_markers=self._markers.dropped_count,
            pending_spans=pending_count,
            unselected_work=unselected_work,
            epoch_unix_ns=clock.epoch_unix_ns,
            title=title,
        )
