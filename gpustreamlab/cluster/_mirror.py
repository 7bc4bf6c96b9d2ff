"""What has arrived of an engine's records: it is read as the engine's own recorder would be."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from gpustreamlab.analysis import Hazard
from gpustreamlab.cluster._worker import Changes
from gpustreamlab.memory.hazards import hazard_notes
from gpustreamlab.model import Counters, Device, Lane, Marker, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record import (
    DEPENDENCY_COLUMNS,
    FIRST_WORK_NUMBER,
    NO_DEPENDENCIES,
    START,
    Cursor,
    Delta,
    RowRing,
    Tables,
    build_trace,
    join_samples,
)
from gpustreamlab.sinks._spool_format import BatchEncoder, BatchReader
from gpustreamlab.sinks.reading import ToldTables, delta_of
from gpustreamlab.typing import Int64Array, MarkerKind

RANGE_NUMBERS = 1 << 32
"""How many ranges of an engine are told apart from those of the others; behind `FIRST_WORK_NUMBER`, `WORK_NUMBERS`."""
WORK_NUMBERS = 1 << 44
KEPT_PAIRS = 1 << 20
"""Edges, and dependencies, that are kept; the newest count."""
KEPT_PARTS = 1_000
"""Parts of samples after which those before are joined."""


class Mirror:
    """The records of one session of one engine, as far as they have arrived.

    Parameters
    ----------
    name
        Of the engine; the names of its lanes begin with it.
    process
        A number for the process, one in the cluster.
    device
        Number of its device, one in the cluster: two engines may share a card.
    host
        The machine.
    ring_size
        How many spans are kept; the oldest make room and are counted.
    """

    def __init__(self, name: str, *, process: int, device: int, host: str, ring_size: int) -> None:
        self.name = name
        self.process = process
        self.device = device
        self.host = host
        self.arrived = 0
        """Number of the last answer that has arrived."""
        self.received_bytes = 0
        """Bytes that came, for spans and all else."""
        self._lock = threading.RLock()
        self._rows = RowRing(ring_size)
        self._edges = RowRing(KEPT_PAIRS, ("source", "target"))
        self._dependencies = RowRing(KEPT_PAIRS, DEPENDENCY_COLUMNS)
        self._samples: list[Counters] = []
        self._names: list[str] = []
        self._details: list[WorkDetail] = []
        self._told = ToldTables()
        self._tables: Tables | None = None
        self._version = 0
        self._state: dict[str, Any] = {}
        self.extent_ns = (0, 0)
        """From when to when spans have arrived, by the engine's clock."""
        self.compared_from_ns = 0
        """From when on, by the engine's clock, all engines that are there could do the same."""
        self.unended_count = 0
        """Ranges that had not ended when the engine was lost."""
        self._open: Sequence[tuple[int, int, int, int]] = ()
        self._now_ns = 0
        self.hazards: tuple[tuple[Hazard, int], ...] = ()
        """What was found there, and when, by the engine's clock, in ns."""
        self.newest_hazard_ns, self.hazards_ns = -1, -1
        """When the newest was found, by the clock of the engine's host, and when that came here, by our own; -1 for none."""
        self.loss: tuple[Marker, ...] = ()
        """A mark where what is known of the engine ends, if it is lost."""
        self._head = BatchEncoder().head

    def __repr__(self) -> str:
        return f"<Mirror of engine {self.name!r}: {len(self._rows):,} spans>"

    @property
    def is_told(self) -> bool:
        """Whether anything has arrived."""
        return self._tables is not None

    @property
    def span_count(self) -> int:
        """Spans that have arrived since the engine's recorder was cleared, those that made room too."""
        return len(self._rows) + self._rows.dropped_count

    @property
    def missed_count(self) -> int:
        """Spans that are missing: they made room on the engine before they were read, or here."""
        return self.lost_count + self._rows.dropped_count

    @property
    def lost_count(self) -> int:
        """Spans that never came here: they made room on the engine before they were read, or never came into its buffer."""
        return int(self._state.get("missed", 0)) + int(self._state.get("lost", 0))

    @property
    def pending_count(self) -> int:
        """Ranges whose work had not ended when the last answer was made."""
        return int(self._state.get("pending", 0))

    @property
    def metadata(self) -> TraceMetadata:
        """What it says of itself; its device has the number that it has in the cluster."""
        return self.changes(until=START).tables.metadata

    def take(self, data: bytes, number: int) -> None:
        """Take in an answer.

        Parameters
        ----------
        data
            A batch, see `gpustreamlab.cluster._worker.read`.
        number
            Its number.
        """
        reader = BatchReader(self._head + data)
        batches = list(reader)
        reader.close()
        with self._lock:
            for batch in batches:
                facts = batch.facts
                known_details = len(self._details)
                if self._told.apply(facts) or self._tables is None:
                    tables, details = self._told.made(first_detail=known_details)
                    self._tables, self._version = self.placed(tables), self._version + 1
                elif facts.get("details"):
                    details = self._told.made(first_detail=known_details)[1]
                else:
                    details = ()
                delta = delta_of(batch, self._tables)
                if delta.is_cleared:
                    self._clear()
                self._details += details
                self._names += delta.names
                self._rows.append({**delta.columns, **self._numbered(delta.columns, ("number", "parent", "correlation"))})
                self._edges.append(self._numbered(dict(zip(("source", "target"), delta.edges.T, strict=True))))
                if len(delta.dependencies["wait"]):
                    self._dependencies.append({**delta.dependencies, **self._numbered(delta.dependencies, ("record", "wait"))})
                self._note_extent(delta)
                self._take_samples(delta.counters)
                self._state = facts
                self._tables = self._with_open_window(self._tables)
            self.arrived = number
            self.received_bytes += len(data)

    def hear(self, changes: Changes) -> None:
        """Take in what an answer tells of now: which ranges have not ended, and which hazards were found."""
        self._open, self._now_ns = changes.open_ranges, changes.now_ns
        if changes.hazards is not None:
            self.hazards, self.hazards_ns = changes.hazards, time.monotonic_ns()
        self.newest_hazard_ns = changes.newest_hazard_ns

    def end(self, text: str) -> None:
        """Let nothing be open or waited for any more, and mark where what is known of the engine ends."""
        with self._lock:
            self.unended_count, self._state = self.pending_count, {**self._state, "pending": 0}
            self._open, self._version = (), self._version + 1
            if any(self.extent_ns):
                self.loss = (Marker(time_ns=self.extent_ns[1], text=text, kind=MarkerKind.MARK),)

    def changes(
        self,
        since: Cursor = START,
        *,
        until: Cursor | None = None,
        awaited: Collection[int] | None = None,
        collects: bool = True,
        title: str = "",
    ) -> Delta:
        """Return what has arrived since a cursor, as `Recorder.changes` does for its own process."""
        with self._lock:
            tables = self._tables
            if tables is None:
                raise ValueError(f"Nothing of engine {self.name!r} has arrived yet.")
            rows = self._rows.read(since.row, None if until is None else until.row)
            end = until or Cursor(
                row=rows.cursor,
                clear_count=rows.clear_count,
                name=len(self._names),
                detail=len(self._details),
                edge=self._edges.appended_count,
                dependency=self._dependencies.appended_count,
                sample=(len(self._samples), 0),
                version=(self._version, rows.clear_count),
            )
            edges = self._edges.read(since.edge, end.edge).columns
            is_again = until is not None
            return Delta(
                tables=tables._replace(markers=(*tables.markers, *self.loss)),
                columns=rows.columns,
                cursor=end,
                missed=rows.missed,
                is_cleared=rows.clear_count != since.clear_count,
                is_changed=end.version != since.version,
                names=tuple(self._names[since.name : end.name]),
                details=tuple(self._details[since.detail : end.detail]),
                edges=np.stack((edges["source"], edges["target"]), axis=1),
                dependencies=NO_DEPENDENCIES if is_again else self._dependencies.read(since.dependency).columns,
                counters=Counters() if is_again else join_samples(self._samples[since.sample[0] :]),
                is_capturing=bool(self._state.get("capturing")),
            )

    def to_clock_ns(self, host_ns: int) -> int:
        """Return the time as it is: of the engine's host only times on its trace's clock arrive."""
        return host_ns

    def now_ns(self) -> int:
        """Return the last time that is known of the engine's clock, in ns: later than that nothing is drawn."""
        return max(self.extent_ns[1], self._now_ns)

    def unended(self) -> list[tuple[int, int, int, int]]:
        """Return what had not ended when the last answer was made; nothing of an engine that is lost."""
        return [*self._open]

    def observing(self) -> AbstractContextManager[None]:
        """Do nothing: reading here costs no engine anything."""
        return nullcontext()

    @property
    def unselected_work(self) -> int:
        """Return 0: it is not told."""
        return 0

    def trace(self, *, title: str = "") -> Trace:
        """Return what has arrived as a trace, on the engine's own clock."""
        facts = {"dropped_spans": self.missed_count, "pending_spans": self.pending_count}
        trace = build_trace(self.changes(title=title).with_facts(**facts))
        notes = [note for one in self.hazards for note in hazard_notes(trace, *one, prefix=f"{self.name}:")]
        return replace(trace, notes=(*trace.notes, *notes)) if notes else trace

    def _with_open_window(self, tables: Tables) -> Tables:
        """Let a window of capture that has not ended last as long as there are spans."""
        meta = tables.metadata
        if not (meta.capture_windows and self._state.get("capturing")):
            return tables
        begin_ns, end_ns = meta.capture_windows[-1]
        windows = (*meta.capture_windows[:-1], (begin_ns, max(end_ns, self.extent_ns[1])))
        return tables._replace(metadata=replace(meta, capture_windows=windows))

    def _numbered(
        self, columns: Mapping[str, Int64Array], names: Sequence[str] = ("source", "target")
    ) -> dict[str, Int64Array]:
        """Return columns of numbers, which no other engine has then; -1 stays, and 0 of calls."""
        found = {}
        for name in names:
            values = columns[name]
            step = np.where(values >= FIRST_WORK_NUMBER, WORK_NUMBERS, RANGE_NUMBERS)
            is_none = values <= 0 if name == "correlation" else values < 0
            found[name] = np.where(is_none, values, values + self.process * step)
        return found

    def _clear(self) -> None:
        for ring in (self._rows, self._edges, self._dependencies):
            ring.clear()
        self._samples = [Counters()] * len(self._samples)
        self.extent_ns, self.compared_from_ns = (0, 0), 0

    def _note_extent(self, delta: Delta) -> None:
        if delta.row_count:
            begin_ns, end_ns = int(delta.columns["start_ns"].min()), int(delta.columns["end_ns"].max())
            before = self.extent_ns
            self.extent_ns = (min(before[0], begin_ns), max(before[1], end_ns)) if any(before) else (begin_ns, end_ns)

    def _take_samples(self, samples: Counters) -> None:
        if not len(samples):
            return
        if len(self._samples) % KEPT_PARTS == KEPT_PARTS - 1:
            joined = join_samples(self._samples)
            self._samples = [*[Counters()] * (len(self._samples) - 1), joined]
        self._samples.append(samples)

    def placed(self, tables: Tables) -> Tables:
        """Return the tables with names and numbers that are unique in the cluster."""
        lanes: Sequence[Lane] = [
            replace(lane, name=f"{self.name}:{lane.name}", process=self.process, device=self.device) for lane in tables.lanes
        ]
        device = self._placed_device(tables.metadata.device)
        threads = tuple(f"{self.name}:{thread}" for thread in tables.threads)
        return tables._replace(
            lanes=tuple(lanes), threads=threads, metadata=replace(tables.metadata, device=device, devices=())
        )

    def _placed_device(self, device: Device) -> Device:
        return replace(device, ordinal=self.device, host=self.host)
