"""Frozen values: the trace and its parts."""

from gpustreamlab.model._counters import Counters
from gpustreamlab.model._device import Device
from gpustreamlab.model._edges import EDGE_KINDS, Edges
from gpustreamlab.model._lane import Lane
from gpustreamlab.model._metadata import SCHEMA_VERSION, TraceMetadata
from gpustreamlab.model._partition import Layout, Partition
from gpustreamlab.model._trace import COLUMN_DTYPES, SPAN_KINDS, Trace
from gpustreamlab.model._whole_file import write_file_whole

__all__ = [
    "COLUMN_DTYPES",
    "EDGE_KINDS",
    "SCHEMA_VERSION",
    "SPAN_KINDS",
    "Counters",
    "Device",
    "Edges",
    "Lane",
    "Layout",
    "Partition",
    "Trace",
    "TraceMetadata",
    "write_file_whole",
]
