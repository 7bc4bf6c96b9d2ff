"""What live timelines show, sessions, nodes and clusters, and the timelines: one for all cells that ask for the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from gpustreamlab._util.background import DEFAULT_REFRESH_HZ, check_refresh_hz, has_threads
from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.shell import is_in_marimo, running_kernel_shell
from gpustreamlab._util.words import StandsElsewhere
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Note, with_written
from gpustreamlab.recorder import Journal
from gpustreamlab.sinks.live import DEFAULT_CAPACITY, LiveFeed, check_span_limit
from gpustreamlab.timeline import Timeline
from gpustreamlab.trace import Trace
from gpustreamlab.typing import SessionState

if TYPE_CHECKING:
    from gpustreamlab.notebook.live_timeline import LiveTimeline

__all__ = ["WATCHED_GUESSES", "LiveViews", "Watched"]

WATCHED_GUESSES = {
    "lab.synchronize()": "sync wait wait_all",
    "lab.timeline()": "show view live plot draw gantt summary stats",
    "lab.timeline().save('run.html')": "export to_html",
    "lab.explain()": "why why_slow advise advice suggest diagnose analyze bottleneck bottlenecks report",
    "lab.stream('copy')": "create_stream new_stream Stream",
    "lab.on('copy', 'label')": "use run",
    "lab.trace.to_pandas()": "spans events df",
    "lab.trace.where(kind='kernel')": "kernels",
    "lab.clear()": "reset",
    "gpustreamlab.compare(a, b)": "compare diff",
    "gpustreamlab.load_trace('run.parquet')": "load load_trace open",
    "gpustreamlab doctor, in a shell": "doctor",
}
"""What to type for names that a session, a node and a cluster might have."""


class Watched(StandsElsewhere, ABC):
    """What records, is shown while it does, and is written notes on: a session, a node, a cluster."""

    _guesses: ClassVar = WATCHED_GUESSES
    _views: LiveViews
    _last_trace: Trace | None = None
    _notes: tuple[Note, ...] = ()

    @property
    @abstractmethod
    def trace(self) -> Trace:
        """What was recorded so far."""

    @property
    @abstractmethod
    def state(self) -> SessionState:
        """Where it is in its life."""

    def timeline(
        self, *, live: bool = True, refresh_hz: float = DEFAULT_REFRESH_HZ, capacity: int = DEFAULT_CAPACITY
    ) -> Timeline:
        """Return the timeline of what ran so far; of several devices, on one clock.

        In a notebook it goes on growing while work runs; when the session closes it becomes a picture that stays. Elsewhere it
        is a picture of now.

        Parameters
        ----------
        live
            Whether it may go on growing.
        refresh_hz
            How often it is updated then, 1 to 20 times a second.
        capacity
            How many spans it holds then; the oldest make room, and it says so.

        Raises
        ------
        OptionError
            If an argument is out of range.
        """
        if not isinstance(live, bool):
            raise OptionError(
                f"live is {live!r}; it must be True or False. Use lab.timeline(live=False) for a picture of now; a trace "
                "has its own: gpustreamlab.load_trace('run.parquet').timeline()."
            )
        check_refresh_hz(refresh_hz)
        check_span_limit("capacity", capacity)
        is_shown = running_kernel_shell() is not None or is_in_marimo()
        if live and self.state is SessionState.OPEN and is_shown and has_threads():
            made = self._views.get(self, refresh_hz, capacity)
            if made is not None:
                return made
        return self.trace.timeline()

    @abstractmethod
    def _newest_hazard_ns(self) -> int:
        """Return when the newest hazard was found, by the host's clock; -1 where there is none."""

    def _keep_notes(self, notes: tuple[Note, ...]) -> None:
        """Take what the reader of a live timeline has written on it, all of it."""
        self._notes = notes
        if self._last_trace is not None:
            self._last_trace = with_written(self._last_trace, notes)


class LiveViews:
    """Makes live timelines, and finishes them when what they show closes."""

    def __init__(self, recorder: Journal) -> None:
        self._recorder = recorder
        self._made: dict[tuple[float, int], LiveTimeline] = {}
        self._lock = process_lock()
        self._is_finished = False

    def get(self, target: Watched, refresh_hz: float, capacity: int) -> LiveTimeline | None:
        """Return the timeline for these options, made on first use; None where they are finished."""
        from gpustreamlab.notebook.live_timeline import LiveTimeline

        with self._lock:
            known = self._made.get((refresh_hz, capacity))
            if known is None and not self._is_finished:
                feed = LiveFeed(self._recorder, capacity=capacity)
                known = self._made[refresh_hz, capacity] = LiveTimeline(target, feed, refresh_hz=refresh_hz)
            return known

    def finish(self) -> None:
        """Let every timeline become a picture that stays."""
        with self._lock:
            self._is_finished = True
        for timeline in [*self._made.values()]:
            timeline.finish()
