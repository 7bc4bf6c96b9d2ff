"""Appends what a recorder collects to a file, some times a second."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

from gpustreamlab.background import Updater
from gpustreamlab.errors import SpoolWarning
from gpustreamlab.interrupts import delayed_interrupts
from gpustreamlab.recorder import Recorder
from gpustreamlab.spool._changes import Progress, end_batch, limit_batch, read_changes, rows_between
from gpustreamlab.spool._file import SpoolFile
from gpustreamlab.spool._format import Batch, BatchEncoder
from gpustreamlab.typing import SpoolState

_log = logging.getLogger(__name__)

REFRESH_HZ = 5.0
"""How often what is new is written, a second."""
RESERVED_BYTES = 1 << 13
"""Room that is kept below the limit, to write that it was reached."""
LEAST_ROWS = 64
"""Fewer rows are not written for themselves where the room ends: each batch takes 2 KB beside them."""

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

    def __init__(
        self, file: SpoolFile, recorder: Recorder, title: Callable[[], str] = str, *, refresh_hz: float = REFRESH_HZ
    ) -> None:
        self._file = file
        self._recorder = recorder
        self._title = title
        self._owner = os.getpid()
        self._lock = threading.RLock()
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
        if self._owner != os.getpid():
            return False  # in a forked child the file is the parent's, and a thread that is not here may hold the lock
        with self._lock:
            return self._state in _ALIVE and self._write_changes()

    def close(self) -> None:
        """Write what is left, and that this is the end; close the file. Idempotent."""
        if self._owner != os.getpid():
            return
        self._updater.stop()
        with self._lock, delayed_interrupts():
            if self._state is not SpoolState.CLOSED:
                self._write_end()
                self._state = SpoolState.CLOSED
                self._file.close()

    def _write_changes(self, *, is_last: bool = False) -> bool:
        try:
            for batch, progress in read_changes(self._recorder, self._progress, title=self._title(), is_last=is_last):
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
                self._append_what_fits(batch, progress)
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

    def _append_what_fits(self, batch: Batch, progress: Progress) -> None:
        """Write the first rows of a batch for which there is no room as a whole: what fits, in halves."""
        done_count, part_count = 0, batch.row_count // 2
        while part_count >= LEAST_ROWS:
            part = rows_between(self._recorder, batch, progress, done_count, done_count + part_count)
            done_count += part_count if self._append(*part) else 0
            part_count //= 2

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
                "with lab.trace.save('run.parquet'). lab.spool says how it stands.",
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
