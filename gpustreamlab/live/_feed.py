"""Updates of a page: what is new, everything so far, or what a page has missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpustreamlab.draw import SpanColumns, draw_figure, pack_columns
from gpustreamlab.errors import OptionError
from gpustreamlab.live._finding import FindingWatch
from gpustreamlab.live._spans import MAX_SPANS, SpanReader
from gpustreamlab.live._tables import TablePlanner
from gpustreamlab.recorder import Recorder

DEFAULT_CAPACITY = 1_000_000
"""Spans that a live view holds; the oldest make room."""
DEFAULT_MAX_RATE = 20_000
"""Items of one update beyond which narrow spans are merged."""
SNAPSHOT_LEVEL = 1
"""How hard all spans are compressed: a page that waits for them, and the kernel, have better things to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a page is sent."""

    facts: dict[str, Any]
    """All but the spans, as a JSON object."""
    blob: bytes
    """The spans, which ``facts["manifest"]`` tells how to read."""


class LiveFeed:
    """Turns what a recorder collects into updates of a page.

    Every method may be called from any thread. Nothing here waits for the device. Memory is bounded: 4 bytes for each of
    `capacity` spans, and some MB.

    Parameters
    ----------
    recorder
        Where spans come from.
    title
        Returns the title of the timeline.
    capacity
        How many spans a page holds; the oldest make room.
    max_rate
        How many items an update has, or up to twice as many; where more spans came, narrow ones are merged.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        title: Callable[[], str] = str,
        capacity: int = DEFAULT_CAPACITY,
        max_rate: int = DEFAULT_MAX_RATE,
    ) -> None:
        self.capacity = check_span_limit("capacity", capacity)
        self.max_rate = check_span_limit("max_rate", max_rate)
        self._recorder = recorder
        self._title = title
        self._lock = threading.RLock()
        self._reader = SpanReader(recorder, capacity)
        self._planner = TablePlanner(recorder)
        self._finding = FindingWatch(recorder)
        self._number = 0
        self._pending_count = 0
        with recorder.observing():
            self._planner.changes(self._reader, title=title(), now_ns=0)

    def refresh(self) -> Update | None:
        """Return what is new since the last refresh; None where nothing is."""
        with self._lock, self._recorder.observing():
            clear_count, pending = self._reader.clear_count, self._pending_count
            new = self._reader.read_new(self.max_rate)
            self._pending_count = self._recorder.pending_count
            now_ns = self._recorder.now_ns()
            is_cleared = new.is_moved or self._reader.clear_count != clear_count
            if self._reader.clear_count != clear_count:
                self._finding.forget()
            changed = self._planner.changes(
                self._reader,
                title=self._title(),
                now_ns=now_ns,
                finding=self._finding.text,
                basis=self._finding.basis,
                pending_count=self._pending_count,
            )
            if not (new.span_count or changed or is_cleared or self._pending_count != pending):
                return None
            self._number += 1
            merged = 0 if new.is_moved else new.span_count - len(new.columns)
            facts = {"missed": new.missed_count, "merged": merged, "is_cleared": is_cleared, "is_moved": new.is_moved}
            return self._pack(changed | facts, new.columns, now_ns, level=None)

    def find(self, *, is_last: bool = False) -> None:
        """Find out how much ran at once; the next refresh tells it. Does nothing where that was found shortly before.

        Parameters
        ----------
        is_last
            Whether to do it in any case.
        """
        with self._recorder.observing():
            self._finding.look(self._reader.span_count, is_last=is_last)

    def snapshot(self) -> Update:
        """Return everything up to the last refresh, for a page that comes later or has missed something."""
        with self._lock, self._recorder.observing():
            columns = self._reader.read_again(self._reader.first)
            return self._pack({"tables": self._planner.whole()}, columns, self._recorder.now_ns(), level=SNAPSHOT_LEVEL)

    def figure(self) -> dict[str, Any]:
        """Return the figure as an item of BokehJS; the page draws everything else into it."""
        from bokeh.embed import json_item

        with self._lock:
            item: dict[str, Any] = json_item(draw_figure(self._planner.planned))
        return item

    def _pack(self, facts: dict[str, Any], columns: SpanColumns, now_ns: int, *, level: int | None) -> Update:
        manifest, blob = pack_columns(columns, level=level)
        common = {
            "number": self._number,
            "manifest": manifest,
            "now_ns": float(now_ns - self._reader.zero_ns),
            "clear_count": self._reader.clear_count,
            "pending": self._pending_count,
        }
        return Update(facts=facts | common, blob=blob)


def check_span_limit(name: str, value: object) -> int:
    """Return a limit on spans; raise `OptionError` for what is none.

    Examples
    --------
    >>> check_span_limit("capacity", 1_000)
    1000
    """
    if type(value) is not int or not 1 <= value <= MAX_SPANS:
        raise OptionError(
            f"{name} is {value!r}; it must be a number of spans, from 1 to {MAX_SPANS:,}. "
            f"Use for example lab.timeline({name}=100_000)."
        )
    return value
