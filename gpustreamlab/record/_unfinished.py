"""Ranges whose work had not ended: what to look at when the device, or the process, dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from gpustreamlab._util.shell import running_kernel_shell
from gpustreamlab.errors import DeviceError, StickyDeviceError
from gpustreamlab.record._in_flight import RangesInFlight
from gpustreamlab.record._names import CodeTable
from gpustreamlab.record._ranges import NO_EVENTS, FinishedRange

_log = logging.getLogger(__name__)


LISTED_RANGES = 8
"""How many ranges a message lists."""
SHOWN_CHARACTERS = 60
"""Of a range's name in a message."""


class NamedRange(NamedTuple):
    """A range by its name and stream."""

    number: int
    """Ranges are numbered as they open."""
    name: str
    """Its label."""
    stream: str
    """The stream that it is on."""

    def __str__(self) -> str:
        name = self.name if len(self.name) <= SHOWN_CHARACTERS else f"{self.name[:SHOWN_CHARACTERS]}…"
        return f"{name!r} on stream {self.stream!r}"


class Unfinished(NamedTuple):
    """The ranges whose work had not ended."""

    waiting: tuple[NamedRange, ...]
    """Of each thread and stream the first closed range that had not ended, in the order in which they were opened."""
    waiting_count: int
    """How many closed ranges had not ended."""
    opened: tuple[NamedRange, ...]
    """Ranges that were open, in the order in which they were opened."""
    untold: tuple[NamedRange, ...]
    """Closed ranges of whose work not all was told, in the order in which they were opened: some of them may have ended."""

    def __str__(self) -> str:
        parts = []
        if self.untold:
            parts.append(f"not known to have ended: {_listed(self.untold)}")
        elif self.waiting:
            first, *others = self.waiting
            more = f", then {_listed(others)}" if others else ""
            count = f" ({self.waiting_count:,} were closed and had not ended)" if self.waiting_count > len(self.waiting) else ""
            parts.append(f"the first range that had not ended was {first}{more}{count}")
        if self.opened:
            parts.append(f"open: {_listed(self.opened)}")
        return "; ".join(parts)


class LossReport:
    """Names what ran where when the device's context was lost, and remembers it: later errors are of the same cause.

    As a context manager it names the ranges in a `StickyDeviceError` that passes through it to the user.
    """

    def __init__(self, find: Callable[[], Unfinished]) -> None:
        self._find = find
        self._text = ""
        self.is_told = False
        """Whether an error with the name of the range went to the user."""
        self.is_closing = False
        """Whether the session is being closed: errors then go to `sift`, and not to the user."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, StickyDeviceError):
            self.tell(error)

    @property
    def is_lost(self) -> bool:
        """Whether the device is known to be lost."""
        return bool(self._text)

    def tell(self, error: StickyDeviceError) -> None:
        """Name the ranges in an error; the first time, those of now."""
        if not self._text:
            found = str(self._find())
            where = f"{found[0].upper()}{found[1:]}" if found else "No range was open, and all had ended"
            what = "the Jupyter kernel" if running_kernel_shell() is not None else "this process"
            self._text = f"{where}. Only a restart of {what} brings the device back."
        self.is_told = self.is_told or not self.is_closing
        error.where = self._text

    def sift(self, failures: Sequence[tuple[str, Exception]]) -> list[tuple[str, Exception]]:
        """Return the failures of a close that are new: of those of a lost context the first, if none was told yet."""
        if not self.is_told and not any(isinstance(error, StickyDeviceError) for _, error in failures):
            return list(failures)
        kept: list[tuple[str, Exception]] = []
        for what, error in failures:
            if not isinstance(error, DeviceError):
                kept.append((what, error))
            elif isinstance(error, StickyDeviceError) and not self.is_told:
                self.tell(error)
                self.is_told = True
                kept.append((what, error))
            else:
                _log.debug("Closing %s failed after the device's context was lost: %s", what, error)
        return kept


def find_unfinished(
    in_flight: RangesInFlight, names: CodeTable[str], is_event_done: Callable[[Any], bool], *, idle_host_ns: int = -1
) -> Unfinished:
    """Find the ranges whose work has not ended."""
    first: list[NamedRange] = []
    count = 0
    untold: list[NamedRange] = []
    still_open = in_flight.open()
    queues = [(lane, queue) for lane in in_flight.lanes for queue, _ in lane.queues()]
    texts = names.all
    opened = {NamedRange(one.number, texts[one.name], one.lane.name) for one in still_open}
    for lane, queue in queues:
        if waiting := _not_ended(queue, is_event_done, idle_host_ns):
            count += len(waiting)
            named = [NamedRange(row[3], texts[row[1]], lane.name) for row in waiting]
            first += named[:1]
            if waiting[0][0] is NO_EVENTS:
                untold += named
    return Unfinished(tuple(sorted(first)), count, tuple(sorted(opened)), tuple(sorted(untold)))


def _not_ended(
    queue: Sequence[FinishedRange], is_event_done: Callable[[Any], bool], idle_host_ns: int
) -> Sequence[FinishedRange]:
    """Return a stream's closed ranges from the first one on that has not ended: a stream ends them in order."""
    for place, row in enumerate(queue):
        if row[5] <= idle_host_ns:
            continue
        try:
            if row[0] is NO_EVENTS or not is_event_done(row[0][1]):
                return queue[place:]
        except Exception:  # noqa: BLE001 - a lost context answers every question with an error
            return queue[place:]
    return ()


def _listed(ranges: Sequence[NamedRange]) -> str:
    more = f" and {len(ranges) - LISTED_RANGES:,} more" if len(ranges) > LISTED_RANGES else ""
    return f"{', '.join(map(str, ranges[:LISTED_RANGES]))}{more}"
