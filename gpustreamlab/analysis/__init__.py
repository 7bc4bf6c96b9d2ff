"""Pure functions of traces: rows, overlap, summaries, units."""

from gpustreamlab.analysis._busy import busy_edges, counted_kinds
from gpustreamlab.analysis._overlap import Overlap, overlap
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, Rows, assign_rows
from gpustreamlab.analysis._summary import device_text, headline, missing_facts, source_facts, summary_text
from gpustreamlab.analysis._sweep import count_steps
from gpustreamlab.analysis._ticks import axis_unit, time_ticks
from gpustreamlab.analysis._units import display_name, format_ms, format_ns, format_share

__all__ = [
    "MAX_LANE_ROWS",
    "Overlap",
    "Rows",
    "assign_rows",
    "axis_unit",
    "busy_edges",
    "count_steps",
    "counted_kinds",
    "device_text",
    "display_name",
    "format_ms",
    "format_ns",
    "format_share",
    "headline",
    "missing_facts",
    "overlap",
    "source_facts",
    "summary_text",
    "time_ticks",
]
