"""Moments that are marked: by the user, and by notebook cells that recorded ranges."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpustreamlab.errors import DeviceError
from gpustreamlab.model import Marker
from gpustreamlab.typing import MarkerKind

KEPT_MARKERS = 10_000
"""Markers that are kept for the trace; the newest count."""


class Markers:
    """The marked moments of a session, and the cell that runs.

    Parameters
    ----------
    next_number
        Takes the next number of a range: two calls tell whether ranges were opened between them, at no cost for the ranges.
    host_ns
        Now, on the host's clock.
    limit
        How many are kept.
    """

    def __init__(self, next_number: Callable[[], int], host_ns: int, limit: int = KEPT_MARKERS) -> None:
        self._next_number = next_number
        self._noted: deque[_Noted] = deque(maxlen=limit)
        self.edit_count = 0
        """Goes up with every change."""
        self._sorted: tuple[Marker, ...] | None = ()
        # The cell that made the session has no name before it ends.
        self._cell: _Cell | None = _Cell(host_ns, "", next_number())
        self._lock = threading.RLock()
        self.dropped_count = 0
        """Markers that made room for newer ones."""

    def note(self, text: str, kind: MarkerKind, host_ns: int) -> None:
        """Mark a moment of the host's clock."""
        with self._lock:
            self.dropped_count += len(self._noted) == self._noted.maxlen
            self._noted.append(_Noted(host_ns, text, kind))
            self.edit_count += 1
            self._sorted = None

    def begin_cell(self, text: str, host_ns: int) -> None:
        """Note that a cell begins; it is marked as soon as a range is opened in it."""
        with self._lock:
            self.settle_cell()
            self._cell = _Cell(host_ns, text, self._next_number())

    def end_cell(self, text: str) -> None:
        """Note that the cell of this name has ended: what follows is not its own."""
        with self._lock:
            if self._cell is not None and not self._cell.text:
                self._cell.text = text
            self.settle_cell()
            self._cell = None

    def settle_cell(self) -> None:
        """Mark the cell that runs if a range was opened in it."""
        with self._lock:
            cell = self._cell
            if cell is None or not cell.text:
                return
            number = self._next_number()
            if number > cell.number + 1:
                self._cell = None
                self.note(cell.text, MarkerKind.CELL, cell.host_ns)
            else:
                cell.number = number

    def changes(self, to_clock_ns: Callable[[int], int]) -> tuple[Marker, ...]:
        """Return the markers in order of time, their times put on the backend's clock."""
        with self._lock:
            self.settle_cell()
            if self._sorted is None:
                try:
                    made = [entry.marker(to_clock_ns) for entry in self._noted]
                except DeviceError:  # a device that fails by now keeps no one from what was marked before
                    return _in_order(entry.made for entry in self._noted if entry.made is not None)
                self._sorted = _in_order(made)
            return self._sorted

    def clear(self) -> None:
        """Forget all markers; the cell that runs is marked anew if more ranges come."""
        with self._lock:
            self._noted.clear()
            self.edit_count += 1
            self._sorted = None
            self.dropped_count = 0
            if self._cell is not None:
                self._cell.number = self._next_number()


def _in_order(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    return tuple(sorted(markers, key=lambda marker: marker.time_ns))


@dataclass(slots=True)
class _Noted:
    """A marker whose time is put on the backend's clock when it is first asked for."""

    host_ns: int
    text: str
    kind: MarkerKind
    made: Marker | None = None

    def marker(self, to_clock_ns: Callable[[int], int]) -> Marker:
        if self.made is None:
            self.made = Marker(time_ns=to_clock_ns(self.host_ns), text=self.text, kind=self.kind)
        return self.made


@dataclass(slots=True)
class _Cell:
    """The cell that runs, while no range was opened in it."""

    host_ns: int
    text: str
    number: int
    """Number taken when it was last looked at."""
