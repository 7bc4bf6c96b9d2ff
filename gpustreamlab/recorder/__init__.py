"""Named ranges, their bounded buffer, and the trace made from it."""

from gpustreamlab.recorder._buffer import Drained, SpanBuffer
from gpustreamlab.recorder._family import Relatives
from gpustreamlab.recorder._ranges import LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.recorder._recorder import DEFAULT_PENDING_LIMIT, DEFAULT_RING_SIZE, Recorder

__all__ = [
    "DEFAULT_PENDING_LIMIT",
    "DEFAULT_RING_SIZE",
    "Drained",
    "LaneWriter",
    "OpenRange",
    "Range",
    "RecordedLane",
    "Recorder",
    "Relatives",
    "SpanBuffer",
    "ThreadState",
]
