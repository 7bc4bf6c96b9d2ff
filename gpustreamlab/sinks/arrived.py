"""What another process records: kept here as its own recorder would have it, and read from its spool as that grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange import find_format
from gpustreamlab.exchange._stored import StoredFrames
from gpustreamlab.model import Trace
from gpustreamlab.recorder import DEFAULT_RING_SIZE, NO_UNENDED, START, Chunk, ChunkLog, Tables, Unended, fold
from gpustreamlab.sinks._spool_format import BatchEncoder, BatchReader, ChunkDecoder

PIECE_BYTES = 1 << 26  # How much of a spool is read at once; a batch is smaller


class Arrived:
    """A journal of chunks that came from another process. Every method may be called from any thread."""

    def __init__(self, ring_size: int) -> None:
        self.extent_ns = (0, 0)  # From when to when spans have arrived, by the other's clock
        self._lock = threading.RLock()
        self._log = ChunkLog(ring_size)
        self._last, self._missed = Chunk(), 0
        self._open: Sequence[tuple[int, int, int, int]] = ()
        self._now_ns = 0

    @property
    def is_told(self) -> bool:
        """Whether anything has arrived."""
        return self._log.tables is not None

    @property
    def span_count(self) -> int:
        """Spans that have arrived since the other's recorder was cleared, those that made room too."""
        return self._log.appended_count

    @property
    def dropped_count(self) -> int:
        """Spans that are missing: they made room there before they were read, or here, or never came."""
        return self._missed + self._last.lost + self._log.dropped_count

    @property
    def lost_count(self) -> int:
        """Spans that never came into the other's log."""
        return self._last.lost

    @property
    def pending_count(self) -> int:
        """Ranges whose work had not ended when the last chunk was made."""
        return self._last.pending

    @property
    def tables(self) -> Tables:
        """As they were told last."""
        tables = self._log.tables
        if tables is None:
            raise ValueError("Nothing has arrived yet.")
        return tables

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Take in chunks."""
        with self._lock:
            for chunk in chunks:
                if chunk.is_anew:
                    self._log.clear()
                    self.extent_ns, self._missed = (0, 0), 0
                self._log.add(self._placed_chunk(chunk))
                self._missed += chunk.missed
                self._note_extent(chunk)
                self._last = chunk
            self._log.seal()

    def _placed_chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk as it is kept here."""
        return chunk

    def _note_extent(self, chunk: Chunk) -> None:
        if chunk.row_count:
            begin_ns, end_ns = int(chunk.columns["start_ns"].min()), int(chunk.columns["end_ns"].max())
            before = self.extent_ns
            self.extent_ns = (min(before[0], begin_ns), max(before[1], end_ns)) if any(before) else (begin_ns, end_ns)

    def changes(self, since: int = START, *, collects: bool = True, **options: int) -> Chunk:
        """Return what has arrived since a place, as `Recorder.changes` does for its own process."""
        with self._lock:
            told, last = self._log.read(since, **options), self._last
            return told._replace(lost=last.lost, pending=last.pending, is_capturing=last.is_capturing)

    def follow(self, since: int) -> tuple[Chunk, Unended]:
        """Return that; which ranges have not ended is told in `unended` alone."""
        return self.changes(since), NO_UNENDED

    def to_clock_ns(self, host_ns: int) -> int:
        """Return the time as it is: only times on the other's clock arrive."""
        return host_ns

    def now_ns(self) -> int:
        """Return the last time that is known of the other's clock, in ns: later than that nothing is drawn."""
        return max(self.extent_ns[1], self._now_ns)

    def unended(self) -> list[tuple[int, int, int, int]]:
        """Return what had not ended when that was told last."""
        return [*self._open]

    def observing(self) -> AbstractContextManager[None]:
        """Do nothing: reading here costs the other nothing."""
        return nullcontext()

    @property
    def unselected_work(self) -> int:
        """Return 0: it is not told."""
        return 0

    def trace(self) -> Trace:
        """Return what has arrived as a trace, on the other's own clock."""
        return fold([self.changes()])


class FollowedRecord(Arrived):
    """What ``gpustreamlab record`` writes of a process, read as it grows."""

    reads_hz = 1.0  # A read parses up to MBs

    def __init__(self, path: Path) -> None:
        super().__init__(DEFAULT_RING_SIZE)
        self.path = path
        self.is_ended = False  # Whether the process has
        self._frames = StoredFrames(path)

    def read(self) -> None:
        """Take in what was written since.

        Raises
        ------
        TraceFileError
            If the file cannot be read.
        """
        told = self._frames.read_chunk()
        if told is not None:
            self.is_ended = not told.is_capturing
            self.add([told])

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._frames.close()


class FollowedSpool(Arrived):
    """A spool that another process writes, read as it grows; where that begins anew, so does this."""

    reads_hz = 5.0  # As often as it is written

    def __init__(self, path: Path) -> None:
        super().__init__(DEFAULT_RING_SIZE)
        self.path = path
        self.is_ended = False  # Whether its session has closed it
        self._file: BinaryIO | None = None
        self._file_number, self._place = -1, 0
        self._decoder = ChunkDecoder()

    def read(self) -> None:
        """Take in what was written since; a batch of which only a part is there comes the next time.

        Raises
        ------
        OSError
            If the file cannot be read.
        """
        with self._lock:
            while not self.is_ended and self._read_piece():
                pass

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    def _read_piece(self) -> int:
        """Take in the whole batches of a piece; return how many there were."""
        with suppress(FileNotFoundError):  # it was removed: it is open, and read to its end
            if self.path.stat().st_ino != self._file_number:  # a full ring becomes another file
                self.close()
                self._file = self.path.open("rb")
                self._file_number, self._place = os.fstat(self._file.fileno()).st_ino, 0
                self._decoder = ChunkDecoder()
        if self._file is None:
            return 0
        self._file.seek(self._place)
        data = self._file.read(PIECE_BYTES)
        before = BatchEncoder().head if self._place else b""
        try:
            reader = BatchReader(before + data, self._decoder)
        except TraceFileError:  # its head is not whole yet
            return 0
        chunks, read_bytes = list[Chunk](), 0
        for chunk, facts in reader:
            chunks.append(chunk._replace(is_anew=True) if not self._place and not chunks else chunk)
            read_bytes = reader.read_bytes - len(before)
            self.is_ended = bool(facts.get("end"))
        reader.close()
        self._place += read_bytes
        self.add(chunks)
        return len(chunks)


FollowedFile: TypeAlias = FollowedRecord | FollowedSpool


def followed_file(path: Path) -> FollowedFile:
    """Return what follows a file that another process records to, whatever kind that is."""
    try:
        return FollowedRecord(path) if find_format(path) == "record" else FollowedSpool(path)
    except TraceFileError:  # nothing is in it yet
        return FollowedSpool(path)
