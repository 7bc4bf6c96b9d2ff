"""Named ranges, their bounded buffer, and the trace made from it."""

from __future__ import annotations

from gpustreamlab.record._buffer import FIRST_WORK_NUMBER, SPAN_COLUMNS, RowFinder, RowRing
from gpustreamlab.record._card_clocks import CardClocks
from gpustreamlab.record._details import MAX_FULL_NAME
from gpustreamlab.record._in_flight import DEFAULT_PENDING_LIMIT, Unended
from gpustreamlab.record._joined import JoinedJournal, Journal
from gpustreamlab.record._journal import NO_DEPENDENCIES, NO_ROWS, START, Cursor, Delta, join, join_samples
from gpustreamlab.record._names import cut_text
from gpustreamlab.record._ranges import LEFT, NO_EVENTS, STEP, LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.record._recorder import DEFAULT_RING_SIZE, Recorder
from gpustreamlab.record._tables import Tables
from gpustreamlab.record._trace_maker import build_trace
from gpustreamlab.record._unfinished import LossReport
from gpustreamlab.record._work import DEPENDENCY_COLUMNS

__all__ = [
    "DEFAULT_PENDING_LIMIT",
    "DEFAULT_RING_SIZE",
    "DEPENDENCY_COLUMNS",
    "FIRST_WORK_NUMBER",
    "LEFT",
    "MAX_FULL_NAME",
    "NO_DEPENDENCIES",
    "NO_EVENTS",
    "NO_ROWS",
    "SPAN_COLUMNS",
    "START",
    "STEP",
    "CardClocks",
    "Cursor",
    "Delta",
    "JoinedJournal",
    "Journal",
    "LaneWriter",
    "LossReport",
    "OpenRange",
    "Range",
    "RecordedLane",
    "Recorder",
    "RowFinder",
    "RowRing",
    "Tables",
    "ThreadState",
    "Unended",
    "build_trace",
    "cut_text",
    "join",
    "join_samples",
]
