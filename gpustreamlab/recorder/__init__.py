"""Named ranges, their bounded buffer, and the trace made from it."""

from gpustreamlab.recorder._buffer import SPAN_COLUMNS, Drained, SpanBuffer
from gpustreamlab.recorder._counters import SAMPLE_EVERY_NS, samples_that_count
from gpustreamlab.recorder._dependencies import DEPENDENCY_COLUMNS
from gpustreamlab.recorder._family import Relatives
from gpustreamlab.recorder._ranges import LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.recorder._recorder import DEFAULT_RING_SIZE, Recorder
from gpustreamlab.recorder._samples import LaneSample, Sampler
from gpustreamlab.recorder._snapshot import build_trace
from gpustreamlab.recorder._trace_work import WorkTables
from gpustreamlab.recorder._unfinished import Blame, Unfinished
from gpustreamlab.recorder._waiting import DEFAULT_PENDING_LIMIT

__all__ = [
    "DEFAULT_PENDING_LIMIT",
    "DEFAULT_RING_SIZE",
    "DEPENDENCY_COLUMNS",
    "SAMPLE_EVERY_NS",
    "SPAN_COLUMNS",
    "Blame",
    "Drained",
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
