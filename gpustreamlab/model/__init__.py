"""Frozen values: the trace and its parts."""

from gpustreamlab.model._capability import Capabilities, Capability
from gpustreamlab.model._counters import Counters
from gpustreamlab.model._detail import SM_SHARED_BYTES, WorkDetail
from gpustreamlab.model._device import Device
from gpustreamlab.model._edges import EDGE_KINDS, Edges
from gpustreamlab.model._fields import check_fields
from gpustreamlab.model._lane import Lane
from gpustreamlab.model._marker import Marker
from gpustreamlab.model._metadata import SCHEMA_VERSION, TraceMetadata
from gpustreamlab.model._names import MAX_NAME_LENGTH, check_name, display_name
from gpustreamlab.model._partition import Layout, LayoutChange, Partition, SMResource, WorkqueueOptions
from gpustreamlab.model._shown import show_text
from gpustreamlab.model._trace import COLUMN_DTYPES, DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.model._verification import Verification, VerifiedLane, VerifiedPartition
from gpustreamlab.model._whole_file import write_file_whole

__all__ = [
    "COLUMN_DTYPES",
    "DEVICE_WORK",
    "EDGE_KINDS",
    "MAX_NAME_LENGTH",
    "SCHEMA_VERSION",
    "SM_SHARED_BYTES",
    "SPAN_KINDS",
    "Capabilities",
    "Capability",
    "Counters",
    "Device",
    "Edges",
    "Lane",
    "Layout",
    "LayoutChange",
    "Marker",
    "Partition",
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
    "show_text",
    "write_file_whole",
]
