"""What has arrived of an engine's records: it is read as the engine's own recorder would be."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from gpustreamlab.analysis import Hazard
from gpustreamlab.cluster._worker import Changes
from gpustreamlab.memory.hazards import hazard_notes
from gpustreamlab.model import Device, Lane, Marker, Trace, TraceMetadata
from gpustreamlab.record import (
    FIRST_WORK_NUMBER,
    NO_UNENDED,
    SPAN_COLUMNS,
    START,
    Chunk,
    ChunkLog,
    Tables,
    Unended,
    fold,
)
from gpustreamlab.sinks._spool_format import BatchEncoder, BatchReader, ChunkDecoder
from gpustreamlab.typing import Int64Array, MarkerKind

RANGE_NUMBERS = 1 << 32
"""How many ranges of an engine are told apart from those of the others; behind `FIRST_WORK_NUMBER`, `WORK_NUMBERS`."""
WORK_NUMBERS = 1 << 44


class Mirror:
    """The records of one session of one engine, as far as they have arrived."""

    def __init__(self, name: str, *, process: int, device: int, host: str, ring_size: int) -> None:
        self.name = name
        self.process = process
        self.device = device
        self.host = host
        self.arrived = 0  # The engine's place behind the last chunk that has arrived
        self.log = 0  # Number of the engine's log; 0 before anything was heard
        self.received_bytes = 0  # Bytes that came, for spans and all else
        self._lock = threading.RLock()
        self._log = ChunkLog(ring_size)
        self._last, self._missed = Chunk(), 0
        self.extent_ns = (0, 0)  # From when to when spans have arrived, by the engine's clock
        self.compared_from_ns = 0  # From when on, by the engine's clock, all engines that are there could do the same
        self.unended_count = 0  # Ranges that had not ended when the engine was lost
        self._open: Sequence[tuple[int, int, int, int]] = ()
        self._now_ns = 0
        self.hazards: tuple[tuple[Hazard, int], ...] = ()  # What was found there, and when, by the engine's clock, in ns
        self.newest_hazard_ns, self.hazards_ns = -1, -1
        """When the newest was found, by the clock of the engine's host, and when that came here, by our own; -1 for none."""
        self.loss: tuple[Marker, ...] = ()  # A mark where what is known of the engine ends, if it is lost
        self._head, self._decoder = BatchEncoder().head, ChunkDecoder()

    def __repr__(self) -> str:
        return f"<Mirror of engine {self.name!r}: {len(self._log):,} spans>"

    @property
    def is_told(self) -> bool:
        """Whether anything has arrived."""
        return self._log.tables is not None

    @property
    def span_count(self) -> int:
        """Spans that have arrived since the engine's recorder was cleared, those that made room too."""
        return self._log.appended_count

    @property
    def dropped_count(self) -> int:
        """Spans that are missing: they made room on the engine before they were read, or here, or never came."""
        return self._missed + self._last.lost + self._log.dropped_count

    @property
    def lost_count(self) -> int:
        """Spans that never came into the engine's log."""
        return self._last.lost

    @property
    def pending_count(self) -> int:
        """Ranges whose work had not ended when the last answer was made."""
        return self._last.pending

    @property
    def tables(self) -> Tables:
        """As they were told last."""
        tables = self._log.tables
        if tables is None:
            raise ValueError(f"Nothing of engine {self.name!r} has arrived yet.")
        return tables

    @property
    def metadata(self) -> TraceMetadata:
        """What it says of itself; its device has the number that it has in the cluster."""
        return self.tables.metadata

    def take(self, data: bytes, place: int) -> None:
        """Take in an answer."""
        reader = BatchReader(self._head + data, self._decoder)
        chunks = [batch.chunk for batch in reader]
        reader.close()
        with self._lock:
            for chunk in chunks:
                if chunk.is_anew:
                    self._log.clear()
                    self.extent_ns, self.compared_from_ns, self._missed = (0, 0), 0, 0
                self._log.add(self._placed_chunk(chunk))
                self._missed += chunk.missed
                self._note_extent(chunk)
                self._last = chunk
            self._log.seal()
            self.arrived = place
            self.received_bytes += len(data)

    def hear(self, changes: Changes) -> None:
        """Take in what an answer tells of now: which ranges have not ended, and which hazards were found."""
        self.log, self._open, self._now_ns = changes.log, changes.open_ranges, changes.now_ns
        if changes.hazards is not None:
            self.hazards, self.hazards_ns = changes.hazards, time.monotonic_ns()
        self.newest_hazard_ns = changes.newest_hazard_ns

    def end(self, text: str) -> None:
        """Let nothing be open or waited for any more, and mark where what is known of the engine ends."""
        with self._lock:
            self.unended_count, self._last = self.pending_count, self._last._replace(pending=0)
            self._open = ()
            if any(self.extent_ns):
                self.loss = (Marker(time_ns=self.extent_ns[1], text=text, kind=MarkerKind.MARK),)
                self._log.add(Chunk(markers=self.loss))
                self._log.seal()

    def changes(self, since: int = START, *, collects: bool = True, **options: Any) -> Chunk:
        """Return what has arrived since a place, as `Recorder.changes` does for its own process."""
        with self._lock:
            told, last = self._log.read(since, **options), self._last
            return told._replace(lost=last.lost, pending=last.pending, is_capturing=last.is_capturing)

    def follow(self, since: int) -> tuple[Chunk, Unended]:
        """Return that; which ranges have not ended is told in `unended` alone."""
        return self.changes(since), NO_UNENDED

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

    def trace(self) -> Trace:
        """Return what has arrived as a trace, on the engine's own clock."""
        trace = fold([self.changes()])
        notes = [note for one in self.hazards for note in hazard_notes(trace, *one, prefix=f"{self.name}:")]
        return replace(trace, notes=(*trace.notes, *notes)) if notes else trace

    def _placed_chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with numbers that no other engine has; -1 stays, and 0 of calls."""
        rows = chunk.rows.copy()
        for name in ("number", "parent", "correlation"):
            place = SPAN_COLUMNS.index(name)
            rows[place] = self._numbered(rows[place], above=0 if name == "correlation" else -1)
        source, record, target, wait = chunk.dependencies
        return chunk._replace(
            rows=rows,
            edges=self._numbered(chunk.edges),
            dependencies=np.stack((source, self._numbered(record), target, self._numbered(wait))),
            tables=None if chunk.tables is None else self.placed(chunk.tables),
        )

    def _numbered(self, numbers: Int64Array, *, above: int = -1) -> Int64Array:
        step = np.where(numbers >= FIRST_WORK_NUMBER, WORK_NUMBERS, RANGE_NUMBERS)
        return np.where(numbers > above, numbers + self.process * step, numbers)

    def _note_extent(self, chunk: Chunk) -> None:
        if chunk.row_count:
            begin_ns, end_ns = int(chunk.columns["start_ns"].min()), int(chunk.columns["end_ns"].max())
            before = self.extent_ns
            self.extent_ns = (min(before[0], begin_ns), max(before[1], end_ns)) if any(before) else (begin_ns, end_ns)

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
