"""Ranges whose work had not ended: what to look at when the device, or the process, dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any

from gpustreamlab._util.shell import running_kernel_shell
from gpustreamlab.errors import DeviceError, StickyDeviceError
from gpustreamlab.record._in_flight import RangesInFlight
from gpustreamlab.record._names import CodeTable
from gpustreamlab.record._ranges import NO_EVENTS, FinishedRange

_log = logging.getLogger(__name__)


LISTED_RANGES = 8  # How many ranges a message lists
SHOWN_CHARACTERS = 60  # Of a range's name in a message


class LossReport:
    """Names what ran where when the device's context was lost, and remembers it: later errors are of the same cause.

    As a context manager it names the ranges in a `StickyDeviceError` that passes through it to the user.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._text = ""
        self.is_told = False  # Whether an error with the name of the range went to the user
        self.is_closing = False  # Whether the session is being closed: errors then go to `sift`, and not to the user

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
            found = self._find()
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


def describe_unfinished(
    in_flight: RangesInFlight, names: CodeTable[str], is_event_done: Callable[[Any], bool], *, idle_host_ns: int = -1
) -> str:
    """Say which ranges' work has not ended, in the order in which they were opened; empty where all has."""
    opened = {(one.number, one.name, one.lane.name) for one in in_flight.open()}
    firsts, untold, count = [], [], 0
    for lane in in_flight.lanes:
        for queue, _ in lane.queues():
            rows = _not_ended(queue, is_event_done, idle_host_ns)
            named = [(row[3], row[1], lane.name) for row in rows]
            firsts += named[:1]
            count += len(named)
            untold += named if rows and rows[0][0] is NO_EVENTS else []
    texts, parts = names.all, []
    if untold:
        parts.append(f"not known to have ended: {_listed(untold, texts)}")
    elif firsts:
        firsts.sort()
        more = f", then {_listed(firsts[1:], texts)}" if firsts[1:] else ""
        closed = f" ({count:,} were closed and had not ended)" if count > len(firsts) else ""
        parts.append(f"the first range that had not ended was {_listed(firsts[:1], texts)}{more}{closed}")
    if opened:
        parts.append(f"open: {_listed(opened, texts)}")
    return "; ".join(parts)


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


def _listed(ranges: Collection[tuple[int, int, str]], texts: Sequence[str]) -> str:
    """Name ranges, each a number, the code of a name and a stream."""
    shown = []
    for _, code, stream in sorted(ranges)[:LISTED_RANGES]:
        name = texts[code] if len(texts[code]) <= SHOWN_CHARACTERS else f"{texts[code][:SHOWN_CHARACTERS]}…"
        shown.append(f"{name!r} on stream {stream!r}")
    more = f" and {len(ranges) - LISTED_RANGES:,} more" if len(ranges) > LISTED_RANGES else ""
    return f"{', '.join(shown)}{more}"
