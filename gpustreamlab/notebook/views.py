"""The live timelines of a session: one for all cells that ask for the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustreamlab._util.background import check_refresh_hz
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Trace
from gpustreamlab.record import Journal
from gpustreamlab.sinks.live import LiveFeed, check_span_limit

if TYPE_CHECKING:
    from gpustreamlab.cluster import Cluster
    from gpustreamlab.node import Node
    from gpustreamlab.notebook.live_timeline import LiveTimeline
    from gpustreamlab.session import Session

__all__ = ["LiveViews", "check_timeline_options"]


class LiveViews:
    """Makes live timelines, and finishes them when the session closes. Who changes it holds the session's lock."""

    def __init__(self, recorder: Journal) -> None:
        self._recorder = recorder
        self._made: dict[tuple[float, int], LiveTimeline] = {}

    def get(self, session: Session | Node | Cluster, refresh_hz: float, capacity: int) -> LiveTimeline:
        """Return the timeline of a session for these options, made on first use."""
        from gpustreamlab.notebook.live_timeline import LiveTimeline

        known = self._made.get((refresh_hz, capacity))
        if known is None:
            feed = LiveFeed(self._recorder, capacity=capacity)
            known = self._made[refresh_hz, capacity] = LiveTimeline(session, feed, refresh_hz=refresh_hz)
        return known

    def finish(self) -> None:
        """Let every timeline become a picture that stays."""
        for timeline in [*self._made.values()]:
            timeline.finish()


def check_timeline_options(trace: object, live: object, refresh_hz: object, capacity: object) -> None:
    """Raise `OptionError` for what a timeline cannot be made of."""
    if not isinstance(live, bool):
        raise OptionError(f"live is {live!r}; it must be True or False. Use lab.timeline(live=False) for a picture of now.")
    check_refresh_hz(refresh_hz)
    check_span_limit("capacity", capacity)
    if trace is not None and not isinstance(trace, Trace):
        raise OptionError(
            f"A timeline is drawn of a trace, not of a {type(trace).__name__}. Use "
            "lab.timeline(gpustreamlab.load_trace('run.parquet')), or lab.timeline() for what ran so far."
        )
