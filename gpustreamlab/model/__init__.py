"""Frozen values: the trace and its parts."""

from gpustreamlab.model._columns import EDGE_KINDS, Counters, Edges, WorkDetail, unchangeable
from gpustreamlab.model._device import (
    CHROME_BACKEND,
    KINETO_BACKEND,
    NSYS_BACKEND,
    PERFETTO_BACKEND,
    SCHEMA_VERSION,
    Capabilities,
    Capability,
    Clocks,
    Device,
    Lane,
    Marker,
    Note,
    SMLimits,
    TraceMetadata,
)
from gpustreamlab.model._fields import MAX_NAME_LENGTH, check_fields, check_name, display_name, show_text
from gpustreamlab.model._merge import merge
from gpustreamlab.model._notes import read_written, written_entries
from gpustreamlab.model._partition import (
    Layout,
    LayoutChange,
    Partition,
    SMResource,
    Verification,
    VerifiedLane,
    VerifiedPartition,
    WorkqueueOptions,
)
from gpustreamlab.model._trace import COLUMN_DTYPES, DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.model._whole_file import write_file_whole

__all__ = [
    "CHROME_BACKEND",
    "COLUMN_DTYPES",
    "DEVICE_WORK",
    "EDGE_KINDS",
    "KINETO_BACKEND",
    "MAX_NAME_LENGTH",
    "NSYS_BACKEND",
    "PERFETTO_BACKEND",
    "SCHEMA_VERSION",
    "SPAN_KINDS",
    "Capabilities",
    "Capability",
    "Clocks",
    "Counters",
    "Device",
    "Edges",
    "Lane",
    "Layout",
    "LayoutChange",
    "Marker",
    "Note",
    "Partition",
    "SMLimits",
    "SMResource",
    "Trace",
    "TraceMetadata",
    "Verification",
    "VerifiedLane",
    "VerifiedPartition",
    "WorkDetail",
    "WorkqueueOptions",
    "check_fields",
    "check_name",
    "display_name",
    "merge",
    "read_written",
    "show_text",
    "unchangeable",
    "write_file_whole",
    "written_entries",
]
