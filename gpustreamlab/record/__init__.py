"""Named ranges, their bounded buffer, and the trace made from it."""

from __future__ import annotations

from gpustreamlab.record._buffer import SPAN_COLUMNS, Drained, SpanBuffer
from gpustreamlab.record._counters import SAMPLE_EVERY_NS, LaneSample, Sampler, samples_that_count
from gpustreamlab.record._extents import Relatives
from gpustreamlab.record._kernel_tier import WorkTables
from gpustreamlab.record._ranges import LEFT, NO_EVENTS, STEP, Entry, LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.record._recorder import DEFAULT_RING_SIZE, Recorder
from gpustreamlab.record._trace_maker import build_trace
from gpustreamlab.record._unfinished import Blame, Unfinished
from gpustreamlab.record._waiting import DEFAULT_PENDING_LIMIT
from gpustreamlab.record._work import DEPENDENCY_COLUMNS

__all__ = [
    "DEFAULT_PENDING_LIMIT",
    "DEFAULT_RING_SIZE",
    "DEPENDENCY_COLUMNS",
    "LEFT",
    "NO_EVENTS",
    "SAMPLE_EVERY_NS",
    "SPAN_COLUMNS",
    "STEP",
    "Blame",
    "Drained",
    "Entry",
    "LaneSample",
    "LaneWriter",
    "OpenRange",
    "Range",
    "RecordedLane",
    "Recorder",
    "Relatives",
    "Sampler",
    "SpanBuffer",
    "ThreadState",
    "Unfinished",
    "WorkTables",
    "build_trace",
    "samples_that_count",
]
