"""The live timeline of another process, in a notebook."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from gpustreamlab._util.background import Updater
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.model import with_written
from gpustreamlab.notebook.views import LiveViews, Watched
from gpustreamlab.run._running import follow, records_to
from gpustreamlab.sinks.arrived import FollowedFile
from gpustreamlab.trace import Trace, as_trace
from gpustreamlab.typing import SessionState

__all__ = ["Followed", "live"]


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

    def __init__(self, pid: int, spool: FollowedFile) -> None:
        self.pid = pid
        self._spool = spool
        self._state = SessionState.OPEN
        self._closing = threading.Lock()
        self._views = LiveViews(spool)
        self._updater = Updater(self._read, refresh_hz=spool.reads_hz, name=f"gpustreamlab live {pid}")
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
        is_there = records_to(self.pid, self._spool)  # first: what was written before it ended is read
        with suppress(OSError, TraceFileError):  # the file was removed, or is damaged
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


def live(pid: int) -> Followed:
    """Follow a process that is being recorded: in a notebook, the last line of a cell shows its live timeline.

    It was started by ``gpustreamlab run`` or ``record`` (a program in C++, too), or its session has a file, as
    ``Session(spool=True)``. Of several sessions that record, the one with the most spans is followed. The process is not
    touched.

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
    return Followed(pid, follow(pid))
