"""Events that outlive their session, for the next one; see docs/explanations/decisions/0019-idle-contexts.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

KEPT_EVENTS = 16_384
"""Events of one device that are kept while no session uses them."""


class IdleEvents:
    """The timing events of one device that no session uses at the moment. Any thread may ask.

    CUPTI 13.0 keeps 41 bytes for each event that was recorded while it tells of events, and has them back from none that is
    destroyed; one that is recorded again costs nothing more. So they are given back here. Those beyond `KEPT_EVENTS` are
    destroyed.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._keep_count = KEPT_EVENTS

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> Any | None:
        """Return a `cuda.core.Event`, which is the caller's from now on; None if there is none."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def give(self, events: Iterable[Any]) -> None:
        """Take `cuda.core.Event` objects back. Work may still be on its way to them."""
        for event in events:
            if len(self._kept) < self._keep_count:
                self._kept.append(event)
            else:
                event.close()

    def close(self) -> None:
        """Destroy all, and from now on what is given back at once: the process ends."""
        self._keep_count = 0
        while (event := self.take()) is not None:
            event.close()
