"""Tell whether an event loop ran other things between two moments of a thread.

A selection that stays in force while its task is suspended is in force for every other task of the thread. What finds that out
must cost next to nothing where no loop runs, must not load asyncio, and must not fill the loop with callbacks: a notebook's
cell runs inside a loop and may make a hundred thousand selections.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["LoopWatch", "loop_finder"]


class LoopWatch:
    """Counts how often the event loop of a thread came round while it was watched; one callback waits at a time."""

    __slots__ = ("round_count", "waits_in")

    def __init__(self) -> None:
        self.round_count = 0
        """Differs between two moments of one thread only if its loop ran in between."""
        self.waits_in: object = None
        """The loop whose next round will be counted. One that is stopped before that never comes round."""

    def start(self, loop: Any) -> None:
        """Count the next round of a loop; for one that is not `waits_in`."""
        self.waits_in = loop
        with suppress(Exception):  # a loop that takes no callbacks is not watched, and works on
            loop.call_soon(self._count)

    def _count(self) -> None:
        self.round_count += 1
        self.waits_in = None


def loop_finder() -> Callable[[], object] | None:
    """Return asyncio's own function that finds the loop running in a thread, or None; None while asyncio is not loaded."""
    found: Callable[[], object] | None = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return found
