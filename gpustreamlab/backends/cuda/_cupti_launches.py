"""When work was launched, and by which thread, where CUPTI records no calls: that makes launches half as dear (H200).

The record of a kernel tells when it was queued; those of copies, fills and graphs do not. But each thread has buffers of its
own, and writes into them in the order of what it does: a copy was launched after whatever lies before it there, of which the
begin of the range around it is one.

Of a thread that does nothing but copy, and opens no range itself, copies may be taken for earlier than they were.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpustreamlab.backends._activity import CallBatch, CallClass
from gpustreamlab.backends.cuda._cupti import CALL_DOMAINS
from gpustreamlab.backends.cuda._cupti_constants import WORK_KINDS, RecordKind
from gpustreamlab.backends.cuda._cupti_records import PLACE, Columns, Records
from gpustreamlab.backends.cuda._cupti_wall import WallClock
from gpustreamlab.backends.cuda._cupti_work import Texts
from gpustreamlab.backends.cuda._own_calls import SLACK_NS, OwnCalls
from gpustreamlab.typing import Int64Array

CALL_NAME = "launch"
"""How a call is named of which nothing but its work is known."""

_NEVER = np.iinfo(np.int64).max


class LaunchReader:
    """Finds launches without records of calls."""

    def __init__(self) -> None:
        self._is_needed = False
        self._until_ns = _NEVER
        self._last: dict[int, int] = {}
        """By thread, the newest time in its buffers so far."""

    def begin(self) -> None:
        """Forget what threads did before, and take that all calls are recorded."""
        self._is_needed = False
        self._last.clear()

    def take_over(self) -> None:
        """Find launches from now on: calls are not recorded any more."""
        self._is_needed, self._until_ns = True, _NEVER

    def leave_off(self, wall_ns: int) -> None:
        """Find launches up to this time of CUPTI's clock: later ones have their calls."""
        self._until_ns = wall_ns

    def note(self, records: Records, thread: int) -> Records:
        """Return the records of one buffer, with two fields more for work: ``threadId`` and ``launched``.

        Parameters
        ----------
        records
            Of one buffer, with the places of all.
        thread
            Whose buffer it is.

        Notes
        -----
        ``launched`` is when the call was made, by CUPTI's clock, or a time that lies before that and after all else that the
        thread did before; 0 where launches need not be found.
        """
        kinds = [kind for kind in (*WORK_KINDS, RecordKind.MARKER) if kind in records.columns]
        if not kinds:
            return records
        tables = [records.columns[kind] for kind in kinds]
        places = [len(table[PLACE]) for table in tables]
        launched = self._find(kinds, tables, thread) if self._is_needed else [np.zeros(count, np.int64) for count in places]
        columns = dict(records.columns)
        for kind, table, times in zip(kinds, tables, launched, strict=True):
            if kind != RecordKind.MARKER:
                columns[kind] = {**table, "launched": times, "threadId": np.full(len(times), thread, np.uint32)}
        return replace(records, columns=columns)

    def read(self, records: Records, texts: Texts, own: OwnCalls, wall: WallClock, *, until_host_ns: int) -> CallBatch:
        """Return the launches but own ones, one for each call; see `CallReader.read`.

        The times of `start_ns` and `end_ns` are that at which the work was queued, or, where nothing tells of that, its start.
        """
        tables = [records.columns[kind] for kind in WORK_KINDS if kind in records.columns]
        parts = [_launch_rows(table) for table in tables]
        rows = np.concatenate([np.empty((5, 0), np.int64), *parts], axis=1)
        if not rows.shape[1]:
            return CallBatch()
        rows = rows[:, np.lexsort((rows[2], rows[1], rows[0]))]
        correlation, launched_ns, called_ns, thread, is_exact = rows[:, np.diff(rows[0], prepend=0) > 0]
        start_host_ns = wall.to_host_ns(launched_ns)
        recorded = [records.columns[kind]["correlationId"] for kind in CALL_DOMAINS if kind in records.columns]
        kept = (start_host_ns <= until_host_ns) & (launched_ns <= self._until_ns)
        kept &= ~np.isin(correlation, np.concatenate([np.empty(0, np.int64), *recorded]))
        # A time that lies before the launch may be that of an own kernel.
        kept &= ~own.are_own(thread=np.where(is_exact, thread, -1), start_host_ns=start_host_ns, correlation=correlation)
        count = int(kept.sum())
        return CallBatch(
            start_ns=called_ns[kept],
            end_ns=called_ns[kept],
            start_host_ns=start_host_ns[kept],
            thread=thread[kept],
            name=np.full(count, texts.name(CALL_NAME), np.int64),
            call_class=np.full(count, CallClass.LAUNCH, np.int64),
            correlation=correlation[kept],
            size_bytes=np.zeros(count, np.int64),
        )

    def _find(self, kinds: list[RecordKind], tables: list[Columns], thread: int) -> list[Int64Array]:
        """Return for each table when its work was launched, or a time shortly before."""
        known = np.concatenate([_known_times(kind, table) for kind, table in zip(kinds, tables, strict=True)])
        order = np.argsort(np.concatenate([table[PLACE] for table in tables]), kind="stable")
        times = known[order]
        at = np.maximum.accumulate(np.where(times > 0, np.arange(len(times)), -1))
        # What comes first in its buffer was launched after what the thread did before, and before what follows. A launch takes
        # longer than two clocks differ, so that one after the begin of a range is not taken for one before it.
        following = int(times[times > 0][0]) - SLACK_NS if (times > 0).any() else _NEVER
        first = min(self._last[thread] + SLACK_NS if thread in self._last else _NEVER, following)
        before = np.where(at >= 0, times[at] + SLACK_NS, first)
        if times.max() > 0:
            self._last[thread] = max(self._last.get(thread, 0), int(times.max()))
        launched = np.empty_like(before)
        launched[order] = np.where(times > 0, times, before)
        parts = np.split(launched, np.cumsum([len(table[PLACE]) for table in tables])[:-1])
        # Work starts after its launch, which is all that is known of a thread that has told nothing else; and the first range
        # of a thread takes a millisecond to open, so that what it did before may lie well before that.
        return [np.minimum(part, _latest_launch(table)) for part, table in zip(parts, tables, strict=True)]


def _latest_launch(table: Columns) -> Int64Array:
    """Return when work started, or a time that never comes."""
    if "start" not in table:
        return np.full(len(table[PLACE]), _NEVER)
    start: Int64Array = table["start"].astype(np.int64)
    return np.where(start > 0, start, _NEVER)


def _known_times(kind: RecordKind, table: Columns) -> Int64Array:
    """Return when the host did what a record is of, 0 where it does not tell."""
    if kind == RecordKind.MARKER:
        return table["timestamp"].astype(np.int64)
    if "queued" not in table:
        return np.zeros(len(table[PLACE]), np.int64)
    # What a node of a graph says is taken where it can be.
    return np.where((table["graphId"] == 0) | (table["queued"] <= table["start"]), table["queued"], 0)


def _launch_rows(table: Columns) -> Int64Array:
    """Return correlation, time of the launch, time to show for it, thread, and whether the time is exact; shape (5, n)."""
    is_known = (table["launched"] > 0) & (table["correlationId"] > 0)
    queued = _known_times(RecordKind.KERNEL, table)
    called = np.where(queued > 0, queued, table["start"])
    rows = (table["correlationId"], table["launched"], called, table["threadId"], queued > 0)
    return np.stack([values[is_known].astype(np.int64) for values in rows])
