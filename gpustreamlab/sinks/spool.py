"""A run on disk while it goes on: nothing is lost when the process is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gpustreamlab._util.background import Updater
from gpustreamlab._util.defences import HomeProcess, delayed_interrupts, process_lock
from gpustreamlab.errors import DeviceError, SpoolWarning
from gpustreamlab.model import Counters
from gpustreamlab.record import NO_ROWS, START, Cursor, Delta, Recorder, Tables
from gpustreamlab.sinks._spool_format import Batch, BatchEncoder, SpoolFile
from gpustreamlab.typing import SpoolState

_log = logging.getLogger(__name__)


MAX_BATCH_ROWS = 65_536
"""Rows of one batch: 7 MB before they are compressed."""
LISTS = ("lanes", "threads", "partitions", "layouts", "markers")
"""Tables that are written as what was added."""
SAMPLE_COLUMNS = ("time_ns", "lane", "name", "value")
"""Columns of `gpustreamlab.model.Counters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How much of what a recorder has is on disk."""

    cursor: Cursor = START
    """Where the next delta begins."""
    row_count: int = 0
    """Rows that count: those since the last clear."""
    missed_count: int = 0
    """Rows that were overwritten before they could be written, since the last clear."""
    unfinished: str = ""
    """The ranges that had not ended."""
    tables: Tables | None = None
    """The tables as they were written."""


def read_changes(
    recorder: Recorder, known: Progress, *, title: str, batch_rows: int, is_last: bool = False
) -> Iterator[tuple[Batch, Progress]]:
    """Read what is new, as batches, each with the progress that writing it makes.

    Parameters
    ----------
    recorder
        What is spooled.
    known
        What is on disk already.
    title
        The title of the session.
    batch_rows
        How many rows a batch has at most.
    is_last
        Whether to look at everything again, and to write that this is the end.
    """
    with recorder.observing():
        delta = _read(recorder, known.cursor, title)
        facts, progress = _changed_facts(delta, known, str(recorder.unfinished()), is_last=is_last)
    row_count = delta.row_count
    if not row_count and not facts and not is_last:
        return
    for low in range(0, max(row_count, 1), batch_rows):
        high = min(low + batch_rows, row_count)
        columns = {name: values[low:high] for name, values in delta.columns.items()}
        cursor = delta.cursor._replace(row=delta.first + high)
        progress = dataclasses.replace(progress, cursor=cursor, row_count=progress.row_count + high - low)
        yield Batch(columns, facts | _state_facts(recorder, progress, is_last=is_last and high == row_count)), progress
        facts = {}


def limit_batch(recorder: Recorder, known: Progress, limit_bytes: int) -> Batch:
    """Return a batch that says that nothing more is written, for lack of room."""
    facts = _state_facts(recorder, known, is_last=False) | {"limit_bytes": limit_bytes}
    if not known.tables:  # without them, nothing could be read of a file in which this stands alone
        facts["tables"] = {"metadata": dataclasses.asdict(recorder.changes(until=START).tables.metadata)}
    return Batch(NO_ROWS, facts)


def end_batch(recorder: Recorder, known: Progress) -> Batch:
    """Return a batch that says that the session was closed, and how many rows were not written."""
    unwritten_count = recorder.changes(known.cursor, collects=False).cursor.row - known.cursor.row
    facts = _state_facts(recorder, known, is_last=True)
    return Batch(NO_ROWS, facts | {"missed": known.missed_count + unwritten_count})


def _read(recorder: Recorder, cursor: Cursor, title: str) -> Delta:
    try:
        return recorder.changes(cursor, title=title)
    except DeviceError:  # what had been collected before the device failed is still to be had
        return recorder.changes(cursor, title=title, collects=False)


def _changed_facts(delta: Delta, known: Progress, unfinished: str, *, is_last: bool) -> tuple[dict[str, Any], Progress]:
    tables = delta.tables if is_last or delta.is_changed else known.tables
    facts = {
        "clear": delta.is_cleared,
        "names": delta.names,
        "details": [dataclasses.asdict(detail) for detail in delta.details],
        "edges": delta.edges.tolist(),
        "dependencies": _lists(delta.dependencies) if len(delta.dependencies["wait"]) else {},
        "counters": _counter_facts(delta.counters) if len(delta.counters) else {},
        "tables": _changed_tables(tables, known.tables),
    }
    facts = {name: value for name, value in facts.items() if value}
    if unfinished != known.unfinished:
        facts["unfinished"] = unfinished
    row_count, missed_count = (0, 0) if delta.is_cleared else (known.row_count, known.missed_count)
    missed_count += delta.missed
    return facts, Progress(
        cursor=delta.cursor, row_count=row_count, missed_count=missed_count, unfinished=unfinished, tables=tables
    )


def _counter_facts(counters: Counters) -> dict[str, Any]:
    return {"names": counters.names, **_lists({name: getattr(counters, name) for name in SAMPLE_COLUMNS})}


def _lists(columns: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in columns.items()}


def _state_facts(recorder: Recorder, progress: Progress, *, is_last: bool) -> dict[str, Any]:
    """Say what is different in every batch."""
    facts = {
        "written_unix_ns": time.time_ns(),
        "missed": progress.missed_count,
        "lost": recorder.lost_count,
        "pending": recorder.pending_count,
        "capturing": recorder.kernels.is_on,
    }
    return facts | {"end": True} if is_last else facts


def _changed_tables(tables: Tables | None, known: Tables | None) -> dict[str, Any]:
    if tables is None or tables is known:
        return {}
    changed: dict[str, Any] = {}
    for name in LISTS:
        old, new = getattr(known, name, ()), getattr(tables, name)
        if old != new:
            changed[name] = _list_change(old, new)
    if known is None or known.metadata != tables.metadata:
        changed["metadata"] = dataclasses.asdict(tables.metadata)
    return changed


def _list_change(old: Sequence[Any], new: Sequence[Any]) -> dict[str, Any]:
    """Say how one list becomes another: how many are dropped at its beginning, how many then stay, and what follows."""
    dropped = old.index(new[0]) if new and new[0] in old else len(old)
    stay = 0
    for before, after in zip(old[dropped:], new, strict=False):
        if before != after:
            break
        stay += 1
    return {"drop": dropped, "keep": stay, "add": [_plain(value) for value in new[stay:]]}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


REFRESH_HZ = 5.0
"""How often what is new is written, a second."""
RESERVED_BYTES = 1 << 13
"""Room that is kept below the limit, to write that it was reached."""
LEAST_ROWS = 512
"""Rows of one batch where the room ends: each takes 2 KB beside them."""

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
    title
        Returns the title of the session.
    refresh_hz
        How often what is new is written, a second.
    """

    def __init__(self, file: SpoolFile, recorder: Recorder, title: str = "", *, refresh_hz: float = REFRESH_HZ) -> None:
        self._file = file
        self._recorder = recorder
        self._title = title
        self._home = HomeProcess()
        self._lock = process_lock()
        self._state = SpoolState.WRITING
        self._problem = ""
        self._is_warned = False
        self._progress = Progress()
        self._encoder = BatchEncoder()
        self.refresh()
        self._updater = Updater(_step_of(self), refresh_hz=refresh_hz, name="gpustreamlab spool")
        self._updater.start()

    def __repr__(self) -> str:
        return f"<Spool {str(self.path)!r}: {self.summary}>"

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def state(self) -> SpoolState:
        """Whether what is new is being written."""
        return self._state

    @property
    def problem(self) -> str:
        """Why nothing is being written; empty where it is."""
        return self._problem

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._file.size_bytes

    @property
    def limit_bytes(self) -> int:
        """How large the file may become; what comes later is kept in memory only."""
        return self._file.limit_bytes

    @property
    def span_count(self) -> int:
        """Spans in the file, of those that were not cleared."""
        return self._progress.row_count

    @property
    def missed_count(self) -> int:
        """Spans that made room in memory before they could be written."""
        return self._progress.missed_count

    @property
    def summary(self) -> str:
        """How it stands, in half a line."""
        missed = f", {self.missed_count:,} missed" if self.missed_count else ""
        problem = f" ({self._problem})" if self._problem else ""
        return f"{self.span_count:,} spans{missed}, {self.size_bytes:,} bytes, {self._state.value}{problem}"

    def refresh(self) -> bool:
        """Write what is new now; return whether all of it is in the file. A file that cannot be written raises nothing."""
        if self._home.is_another:
            return False  # in a forked child the file is the parent's, and a thread that is not here may hold the lock
        with self._lock:
            return self._state in _ALIVE and self._write_changes()

    def close(self) -> None:
        """Write what is left, and that this is the end; close the file. Idempotent."""
        if self._home.is_another:
            return
        self._updater.stop()
        with self._lock:
            if self._state is not SpoolState.CLOSED:
                self._write_end()
                self._state = SpoolState.CLOSED
                self._file.close()

    def _write_changes(self, *, is_last: bool = False) -> bool:
        try:
            changes = read_changes(
                self._recorder, self._progress, title=self._title, batch_rows=MAX_BATCH_ROWS, is_last=is_last
            )
            for batch, progress in changes:
                if not self._write(batch, progress):
                    return False
        except Exception as error:  # noqa: BLE001 - what fails here must not disturb the work that is recorded
            _log.debug("The spool could not be written", exc_info=True)
            self._give_up(SpoolState.FAILING, f"{type(error).__name__}: {error}")
            return False
        return True

    def _write(self, batch: Batch, progress: Progress) -> bool:
        try:
            if self._file.is_gone:
                self._give_up(SpoolState.REMOVED, "the file was removed")
                return False
            if not self._append(batch, progress):
                small = read_changes(self._recorder, self._progress, title=self._title, batch_rows=LEAST_ROWS)
                all(self._append(*part) for part in small)  # what fits
                said = limit_batch(self._recorder, self._progress, self.limit_bytes)  # room is kept for it
                self._file.append(self._with_head(self._encoder.encode(said)))
                self._give_up(SpoolState.FULL, f"it has reached spool_limit_bytes={self.limit_bytes:,}")
                return False
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.cut()
            self._give_up(SpoolState.FAILING, error.strerror or str(error))
            return False
        self._state, self._problem = SpoolState.WRITING, ""
        return True

    def _append(self, batch: Batch, progress: Progress) -> bool:
        """Write a batch if there is room for it; tell whether there was."""
        data = self._with_head(self._encoder.encode(batch))
        if self.size_bytes + len(data) > self.limit_bytes - RESERVED_BYTES:
            return False
        with delayed_interrupts():  # a batch that is in the file and does not count would come twice
            self._file.append(data)
            self._progress = progress
        return True

    def _write_end(self) -> None:
        if self._state in _ALIVE:
            self._write_changes(is_last=True)
        with contextlib.suppress(OSError):
            if self._state is SpoolState.FULL:
                self._file.append(self._encoder.encode(end_batch(self._recorder, self._progress)))  # likewise
            if self._state in {SpoolState.WRITING, SpoolState.FULL}:
                self._file.append(self._with_head(self._encoder.end()))

    def _with_head(self, data: bytes) -> bytes:
        """Put the head before what is the first that the file holds: what failed to be written took none with it."""
        return data if self.size_bytes else self._encoder.head + data

    def _give_up(self, state: SpoolState, why: str) -> None:
        """Note why nothing is written, and warn the first time."""
        self._state, self._problem = state, why
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


def _step_of(spool: Spool) -> Callable[[], bool]:
    """Return a function that refreshes a spool and does not keep it alive; False where there is nothing left to do."""
    known = weakref.ref(spool)

    def step() -> bool:
        alive = known()
        if alive is not None:
            alive.refresh()
        return alive is not None and alive.state in _ALIVE

    return step
