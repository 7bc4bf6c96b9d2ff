"""Named ranges, the log of what ended, and the trace made from it."""

from __future__ import annotations

from gpustreamlab.recorder._chunks import (
    ACCESS_COLUMNS,
    DEPENDENCY_COLUMNS,
    FIRST_WORK_NUMBER,
    HOST_WAITS,
    SAMPLE_COLUMNS,
    SPAN_COLUMNS,
    START,
    Chunk,
    ChunkLog,
    join,
    make_samples,
    newer_half,
    thinned,
)
from gpustreamlab.recorder._extents import Intervals, RowFinder, find_innermost
from gpustreamlab.recorder._in_flight import NO_UNENDED, Unended
from gpustreamlab.recorder._journal import CardClocks, JoinedJournal, Journal, capture_windows
from gpustreamlab.recorder._ranges import NO_EVENTS, STEP, LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.recorder._recorder import DEFAULT_RING_SIZE, LossReport, Recorder
from gpustreamlab.recorder._tables import KEPT_MARKERS, Tables, cut_text
from gpustreamlab.recorder._trace_maker import NO_DEPENDENCIES, TraceData, build_trace, counters_of, fold
from gpustreamlab.recorder._work import KEPT_LAUNCHES, MAX_FULL_NAME

__all__ = [
    "ACCESS_COLUMNS",
    "DEFAULT_RING_SIZE",
    "DEPENDENCY_COLUMNS",
    "FIRST_WORK_NUMBER",
    "HOST_WAITS",
    "KEPT_LAUNCHES",
    "KEPT_MARKERS",
    "MAX_FULL_NAME",
    "NO_DEPENDENCIES",
    "NO_EVENTS",
    "NO_UNENDED",
    "SAMPLE_COLUMNS",
    "SPAN_COLUMNS",
    "START",
    "STEP",
    "CardClocks",
    "Chunk",
    "ChunkLog",
    "Intervals",
    "JoinedJournal",
    "Journal",
    "LaneWriter",
    "LossReport",
    "OpenRange",
    "Range",
    "RecordedLane",
    "Recorder",
    "RowFinder",
    "Tables",
    "ThreadState",
    "TraceData",
    "Unended",
    "build_trace",
    "capture_windows",
    "counters_of",
    "cut_text",
    "find_innermost",
    "fold",
    "join",
    "make_samples",
    "newer_half",
    "thinned",
]
