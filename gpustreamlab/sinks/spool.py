"""A run on disk while it goes on: nothing is lost when the process is killed; and traces of it, and of any other file."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from gpustreamlab._util.background import Updater, held_weakly
from gpustreamlab._util.defences import HomeProcess, delayed_interrupts, process_lock
from gpustreamlab.analysis import with_waits_for_ranks
from gpustreamlab.errors import DeviceError, OptionError, SpoolWarning, TraceError, TraceFileError
from gpustreamlab.exchange import are_ours, check_format, read_as, read_ranks
from gpustreamlab.model import Trace, merge
from gpustreamlab.recorder import START, Chunk, Recorder, fold, join, newer_half
from gpustreamlab.sinks._spool_format import BatchEncoder, BatchReader, ChunkDecoder, SpoolFile
from gpustreamlab.typing import SpoolState

_log = logging.getLogger(__name__)


MAX_BATCH_ROWS = 65_536  # About so many rows are written at once: 7 MB before they are compressed
REFRESH_HZ = 5.0  # How often what is new is written, a second
RESERVED_BYTES = 1 << 13  # Room that is kept below the limit, to write that it was reached
LEAST_ROWS = 512  # Rows of one batch where the room ends: each takes 2 KB beside them

_ALIVE = (SpoolState.WRITING, SpoolState.FAILING)


class Spool:
    """A file that what is recorded is appended to while a session runs; made by ``Session(spool="run.gsl")``.

    Nothing is written by the threads that record: one of its own drains the recorder. What is on disk stays readable when the
    process is killed, by `gpustreamlab.load_trace`. A file that cannot be written any more costs one warning, and the session
    goes on in memory.

    Parameters
    ----------
    file
        An empty one, which becomes its own.
    recorder
        What is spooled.
    refresh_hz
        How often what is new is written, a second.
    is_ring
        Whether a full file begins anew with the newest that memory holds, else it stays as it is.
    """

    def __init__(self, file: SpoolFile, recorder: Recorder, *, refresh_hz: float = REFRESH_HZ, is_ring: bool = False) -> None:
        self._file = file
        self._is_ring = is_ring
        self._recorder = recorder
        self._home = HomeProcess()
        self._lock = process_lock()
        self.state = SpoolState.WRITING
        """Whether what is new is being written."""
        self.problem = ""
        """Why nothing is being written; empty where it is."""
        self._is_warned = False
        self._place = START
        self._unfinished = ""
        self.span_count = 0
        """Spans in the file, of those that were not cleared."""
        self.missed_count = 0
        """Spans that made room in memory before they could be written."""
        self._left_out = 0
        self._encoder = BatchEncoder()
        self.refresh()
        self._updater = Updater(held_weakly(self._step), refresh_hz=refresh_hz, name="gpustreamlab spool")
        self._updater.start()

    def __repr__(self) -> str:
        return f"<Spool {str(self.path)!r}: {self.summary}>"

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._file.size_bytes

    @property
    def limit_bytes(self) -> int:
        """Largest size of the file; later records are kept in memory only."""
        return self._file.limit_bytes

    @property
    def summary(self) -> str:
        """State of the spool, in half a line."""
        missed = f", {self.missed_count:,} missed" if self.missed_count else ""
        problem = f" ({self.problem})" if self.problem else ""
        return f"{self.span_count:,} spans{missed}, {self.size_bytes:,} bytes, {self.state.value}{problem}"

    def refresh(self) -> bool:
        """Write what is new now; return whether all of it is in the file. A file that cannot be written raises nothing."""
        if self._home.is_another:
            return False  # in a forked child the file is the parent's, and a thread that is not here may hold the lock
        with self._lock:
            return self.state in _ALIVE and self._write_changes()

    def _step(self) -> bool:
        """Write what is new; tell whether there may be more to write."""
        self.refresh()
        return self.state in _ALIVE

    def close(self) -> None:
        """Write what is left, and that this is the end; close the file. Idempotent."""
        if self._home.is_another:
            return
        self._updater.stop()
        with self._lock:
            if self.state is not SpoolState.CLOSED:
                self._write_end()
                self.state = SpoolState.CLOSED
                self._file.close()

    def _write_changes(self, *, is_last: bool = False) -> bool:
        try:
            with self._recorder.observing():
                chunk, unfinished = self._read(collects=True), self._recorder.unfinished()
                facts = {} if unfinished == self._unfinished else {"unfinished": unfinished}
                is_more = not chunk.is_empty or chunk.is_anew or facts or is_last
                while is_more:
                    is_end = is_last and chunk.place == self._recorder.log.place
                    chunk = chunk._replace(tables=self._recorder.tables) if is_end else chunk
                    if not self._write(chunk, facts | ({"end": True} if is_end else {})):
                        return False
                    self._unfinished, facts, is_more = unfinished, {}, chunk.place != self._recorder.log.place
                    chunk = self._read(collects=False) if is_more else chunk
        except Exception as error:  # noqa: BLE001 - what fails here must not disturb the work that is recorded
            _log.debug("The spool could not be written", exc_info=True)
            self._give_up(SpoolState.FAILING, f"{type(error).__name__}: {error}")
            return False
        return True

    def _read(self, *, collects: bool) -> Chunk:
        try:
            return self._recorder.changes(self._place, most=MAX_BATCH_ROWS, collects=collects)
        except DeviceError:  # what had been collected before the device failed is still to be had
            return self._recorder.changes(self._place, most=MAX_BATCH_ROWS, collects=False)

    def _write(self, chunk: Chunk, facts: dict[str, Any]) -> bool:
        try:
            if self._file.is_gone:
                self._give_up(SpoolState.REMOVED, "the file was removed")
                return False
            if not self._append(chunk, facts) and not (self._is_ring and self._renew(facts)):
                before = self.span_count
                if any(not self._append(piece, {}) for piece in chunk.split(LEAST_ROWS)):  # what fits
                    self._left_out = chunk.row_count - self.span_count + before if self._place == chunk.place else 0
                tables = None if self.size_bytes else self._recorder.tables  # of what has none, nothing can be read
                self._file.append(self._encoded(self._now(tables=tables), {"limit_bytes": self.limit_bytes}))
                self._give_up(SpoolState.FULL, f"it has reached spool_limit_bytes={self.limit_bytes:,}")
                return False
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.cut()
            self._give_up(SpoolState.FAILING, error.strerror or str(error))
            return False
        self.state, self.problem = SpoolState.WRITING, ""
        return True

    def _append(self, chunk: Chunk, facts: Mapping[str, Any]) -> bool:
        """Write a chunk if there is room for it; tell whether there was."""
        data = self._encoded(chunk, facts)
        if self.size_bytes + len(data) > self.limit_bytes - RESERVED_BYTES:
            return False
        with delayed_interrupts():  # what is in the file and does not count would come twice
            self._file.append(data)
            self._place = chunk.place
            if chunk.is_anew:
                self.span_count = self.missed_count = 0
            self.span_count += chunk.row_count
            self.missed_count += chunk.missed
        return True

    def _renew(self, facts: Mapping[str, Any]) -> bool:
        """Begin the file anew, half full at most, with the newest that memory holds; tell whether that was possible."""
        chunk = self._recorder.changes(START, collects=False)._replace(tables=self._recorder.tables)
        told = {**facts, "unfinished": self._recorder.unfinished()}
        while len(data := self._encoder.head + self._encoder.encode(chunk, self._stamped(told))) > self.limit_bytes // 2:
            if chunk.row_count < LEAST_ROWS:  # names alone take more
                return False
            chunk = newer_half(chunk)
        with delayed_interrupts():
            self._file.replace(data)
            self._place, self.span_count, self.missed_count = chunk.place, chunk.row_count, chunk.missed
        return True

    def _now(self, **told: Any) -> Chunk:
        """Return a chunk that says how the recorder stands."""
        recorder = self._recorder
        is_capturing = recorder.kernels.is_on
        return Chunk(lost=recorder.lost_count, pending=recorder.pending_count, is_capturing=is_capturing, **told)

    def _write_end(self) -> None:
        if self.state in _ALIVE:
            self._write_changes(is_last=True)
        with contextlib.suppress(OSError):
            if self.state is SpoolState.FULL:
                unwritten = self._recorder.changes(self._place, collects=False)
                said = self._now(missed=self._left_out + unwritten.row_count + unwritten.missed)
                self._file.append(self._encoded(said, {"end": True}))  # room is kept for it
            if self.state in {SpoolState.WRITING, SpoolState.FULL}:
                self._file.append(self._with_head(self._encoder.end()))

    def _encoded(self, chunk: Chunk, facts: Mapping[str, Any]) -> bytes:
        return self._with_head(self._encoder.encode(chunk, self._stamped(facts)))

    @staticmethod
    def _stamped(facts: Mapping[str, Any]) -> dict[str, Any]:
        return {**facts, "written_unix_ns": time.time_ns()}

    def _with_head(self, data: bytes) -> bytes:
        """Put the head before what is the first that the file holds: what failed to be written took none with it."""
        return data if self.size_bytes else self._encoder.head + data

    def _give_up(self, state: SpoolState, why: str) -> None:
        """Note why nothing is written, and warn the first time."""
        self.state, self.problem = state, why
        if self._is_warned:
            return
        self._is_warned = True
        again = " It is tried again, some times a second." if state is SpoolState.FAILING else ""
        try:
            warnings.warn(
                f"The run is not written to {str(self.path)!r} any more: {why}.{again} Recording goes on in memory; keep it "
                "with lab.trace.save('run.parquet'). lab.recording.spool says how it stands.",
                SpoolWarning,
                stacklevel=2,
            )
        except SpoolWarning as warning:  # where warnings are errors; a thread has no caller to raise it to
            _log.warning("%s", warning)


def read_any(path: str | PathLike[str] | Iterable[str | PathLike[str]], format: str = "auto") -> Trace:  # noqa: A002
    """Read a trace of ours, or what another tool recorded; see `gpustreamlab.load_trace`."""
    check_format(format)
    given = path if isinstance(path, Iterable) and not isinstance(path, (str, bytes)) else [path]
    paths = [_path(one) for one in given]
    if not paths:
        raise OptionError("load_trace() got no file. Give the path of one, or those of all ranks of a job.")
    if len(paths) > 1 and not are_ours(paths, format):
        return read_ranks(paths, format)
    traces = [read_as(format, path, {"spool": read_spool}) for path in paths]
    if len(traces) == 1:
        return traces[0]
    ranks = [trace.metadata.rank for trace in traces]
    is_told = min(ranks) >= 0 and len(set(ranks)) == len(ranks)
    return with_waits_for_ranks(merge(traces, processes=ranks if is_told else range(len(traces))))


def _path(given: object) -> Path:
    text = fspath(given) if isinstance(given, (str, PathLike)) else None
    if not isinstance(text, str):
        raise OptionError(f"load_trace() got a {type(given).__name__}; it takes a path, as gsl.load_trace('run.parquet').")
    if "://" in text:
        raise OptionError(
            f"{text!r} is a URL, and gpustreamlab opens no connection. Download it, then give the file's path: "
            "gsl.load_trace('run.json.gz')."
        )
    return Path(text)


def read_spool(path: str | PathLike[str]) -> Trace:
    """Read what ``Session(spool=...)`` has written so far; see `gpustreamlab.load_trace`."""
    target = Path(path)
    try:
        decoder = ChunkDecoder()
        reader = BatchReader(target, decoder)
        try:
            return _Replay(reader, decoder).trace()
        finally:
            reader.close()
    except (TraceError, OSError, *_GARBAGE) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        raise TraceFileError(
            f"{str(target)!r} cannot be read as a spool: {reason.rstrip('.')}. Nothing of it can be used."
        ) from error


_GARBAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError)
"""What a file raises whose checksums are right and whose contents are not."""


class _Replay:
    """Reads a spool again, in the order in which it was written."""

    def __init__(self, reader: BatchReader, decoder: ChunkDecoder) -> None:
        self._last: Mapping[str, Any] = {}
        self._limit_bytes = 0
        self._unfinished = ""
        chunks: list[Chunk] = []
        for chunk, facts in reader:
            if chunk.is_anew:  # gives the memory of those before back
                chunks.clear()
            chunks.append(chunk)
            self._unfinished = facts.get("unfinished", self._unfinished)
            self._limit_bytes = facts.get("limit_bytes", self._limit_bytes)
            self._last = facts
        if not any(chunk.tables for chunk in chunks):
            raise ValueError("it was cut off before anything was in it")
        told = join(chunks)
        self._told = told if decoder.markers is None else told._replace(markers=decoder.markers)
        self._damage = reader.damage

    def trace(self) -> Trace:
        """Return everything as a trace."""
        return fold([self._told], recovery_note=self._note(self._damage))

    def _note(self, damage: str) -> str:
        """Say what may be missing."""
        notes = []
        if not self._last.get("end"):
            written = datetime.fromtimestamp(self._last["written_unix_ns"] / 1e9, UTC)
            missing = f"what came after {written:%Y-%m-%d %H:%M:%S} UTC is missing"
            notes.append(f"recovered from a spool whose session was not closed: {missing}")
            notes += [f"at that time {self._unfinished}"] if self._unfinished else []
        if damage and self._last.get("end"):
            notes.append("the end of the spool is damaged")
        if self._limit_bytes:
            notes.append(
                f"the spool reached its limit of {self._limit_bytes:,} bytes (spool_limit_bytes), later spans are missing"
            )
        return "; ".join(notes)
