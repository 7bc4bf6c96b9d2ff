"""The live timeline of another process, in a notebook."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpustreamlab._util.background import Updater
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange import find_format
from gpustreamlab.model import with_written
from gpustreamlab.notebook.views import LiveViews, Watched
from gpustreamlab.run._running import recorded_by, spools_of
from gpustreamlab.sinks.arrived import FollowedSpool
from gpustreamlab.trace import Trace, as_trace
from gpustreamlab.typing import SessionState

__all__ = ["Followed", "live"]

READS_HZ = 5.0  # As often as a spool is written


class Followed(Watched):
    """A process that is being recorded, followed while it goes on; `gpustreamlab.live` makes it.

    It has the `trace` so far and its live `timeline`, and shows itself as that. It is followed until it ends, or `close`; the
    process itself is not touched.

    Parameters
    ----------
    pid
        Number of the process.
    spool
        The file that it records to.
    """

    def __init__(self, pid: int, spool: FollowedSpool) -> None:
        self.pid = pid
        self._spool = spool
        self._state = SessionState.OPEN
        self._closing = threading.Lock()
        self._views = LiveViews(spool)
        self._updater = Updater(self._read, refresh_hz=READS_HZ, name=f"gpustreamlab live {pid}")
        self._updater.start()

    def __repr__(self) -> str:
        return f"<Followed: process {self.pid}, {self._spool.span_count:,} spans, {self._state.value}>"

    @property
    def trace(self) -> Trace:
        """What it has recorded by now, or had when it was closed here."""
        return as_trace(with_written(self._spool.trace(), self._notes))

    @property
    def state(self) -> SessionState:
        """Open while the process is followed, then closed."""
        return self._state

    def close(self) -> None:
        """Follow the process no more; its live timelines become pictures that stay. Idempotent."""
        self._updater.stop()
        with self._closing:
            if self._state is SessionState.OPEN:
                self._state = SessionState.CLOSED
                self._views.finish()
                self._spool.close()

    def _read(self) -> bool:
        """Take in what is new; tell whether more may come."""
        is_there = not self._spool.is_ended
        with suppress(OSError):  # the file was removed
            # In this order: what was written before the process ended is read.
            is_there = is_there and _records_to(self.pid, self._spool)
            self._spool.read()
        if not is_there:
            self.close()
        return is_there

    def _newest_hazard_ns(self) -> int:
        return -1

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.timeline())

    def _display_(self) -> Any:
        """Return what marimo shows."""
        return self.timeline()


def _records_to(pid: int, spool: FollowedSpool) -> bool:
    """Tell whether a process has a file open."""
    try:
        return spool.path in spools_of(pid)
    except OptionError:  # the process has ended
        return False


def live(pid: int) -> Followed:
    """Follow a process that is being recorded: in a notebook, the last line of a cell shows its live timeline.

    It was started by ``gpustreamlab run`` or ``record``, or its session has a file, as ``Session(spool=True)``. Of several
    sessions that record, the one with the most spans is followed. The process is not touched.

    Parameters
    ----------
    pid
        Number of the process.

    Raises
    ------
    OptionError
        If there is no such process, it is another user's, is not recorded, or has recorded nothing yet.

    Examples
    --------
    ::

        running = gsl.live(4711)
        running                     # the live timeline
        running.trace.explain()
    """
    if type(pid) is not int:
        raise OptionError(f"live() got {pid!r}; it takes the number of a process, as gsl.live(4711).")
    paths = recorded_by(pid)
    if any(_is_of_record(path) for path in paths):
        raise OptionError(
            f"Process {pid} is recorded by gpustreamlab record, and gpustreamlab.live follows gpustreamlab run, and "
            f"sessions. For a page that follows it: gpustreamlab live {pid}"
        )
    spools = [FollowedSpool(path) for path in paths]
    for spool in spools:
        spool.read()
    chosen = max(spools, key=lambda spool: spool.span_count)
    for spool in spools:
        if spool is not chosen or not spool.is_told:
            spool.close()
    if not chosen.is_told:
        raise OptionError(f"Process {pid} has recorded nothing yet.")
    return Followed(pid, chosen)


def _is_of_record(path: Path) -> bool:
    try:
        return find_format(path) == "record"
    except TraceFileError:  # nothing is in it yet
        return False
