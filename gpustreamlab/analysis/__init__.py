"""Pure functions of traces: rows, overlap, summaries, units."""

from gpustreamlab.analysis._busy import (
    Basis,
    basis_of,
    busy_edges,
    busy_word,
    counted_kinds,
    counted_rows,
    is_work,
    sm_kinds,
    stream_count,
)
from gpustreamlab.analysis._compare import ComparedFigures, ComparedItems, TraceComparison, compare_traces
from gpustreamlab.analysis._compare_rows import TextTable, comparison_line, comparison_tables, wall_line
from gpustreamlab.analysis._concurrency import Concurrency, concurrency
from gpustreamlab.analysis._distinct import distinct
from gpustreamlab.analysis._extent import over_wall, stream_extent, used_stream_count
from gpustreamlab.analysis._grids import CardSizedGrid, card_sized_grids, grid_advice, partition_warnings
from gpustreamlab.analysis._happens_before import LaneClock, LaneClocks, Moment
from gpustreamlab.analysis._hazard_search import Access, FoundHazard, HazardSearch, Piece, Side, Touch
from gpustreamlab.analysis._hazards import NO_LANE, Hazard, Hazards, HazardSide
from gpustreamlab.analysis._host_waits import HostWaits, WaitGroup, host_waits
from gpustreamlab.analysis._kernel_text import capture_facts
from gpustreamlab.analysis._layers import Layer
from gpustreamlab.analysis._live_rows import ArrivedSpans, LiveRows, OpenSpans
from gpustreamlab.analysis._lod import Merged, bin_width_ns, merge_narrow
from gpustreamlab.analysis._name_groups import group_labels, name_group
from gpustreamlab.analysis._overlap import Overlap, overlap
from gpustreamlab.analysis._overlap_pair import OverlapPair
from gpustreamlab.analysis._partition_text import change_text, layout_warnings, proof_text, sms_text
from gpustreamlab.analysis._partly import partly_captured
from gpustreamlab.analysis._plan import check_layout, check_rounding, check_workqueue, plan_partitions, unenforced_layout
from gpustreamlab.analysis._regions import Region, region_of
from gpustreamlab.analysis._row_table import RowTable, span_rows
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, Rows, assign_rows
from gpustreamlab.analysis._scratch import ScratchStatistics, ScratchTable
from gpustreamlab.analysis._shares import REST, PartitionOptions, Share, options_of, require_mapping
from gpustreamlab.analysis._sm_time import (
    PartitionSize,
    SMSteps,
    layout_size,
    layout_spells,
    partition_sizes,
    size_of,
    sm_time_steps,
    stack_sms,
)
from gpustreamlab.analysis._strays import StrayGroup, Strays, nearest_ranges, strays
from gpustreamlab.analysis._summary import (
    counts_text,
    empty_hint,
    finding_text,
    headline,
    missing_facts,
    pending_text,
    source_facts,
    summary_text,
)
from gpustreamlab.analysis._sweep import count_steps
from gpustreamlab.analysis._ticks import axis_unit, time_ticks
from gpustreamlab.analysis._units import format_ms, format_ns, format_share
from gpustreamlab.analysis._utilization import Utilization, utilization
from gpustreamlab.model import display_name

__all__ = [
    "MAX_LANE_ROWS",
    "NO_LANE",
    "REST",
    "Access",
    "ArrivedSpans",
    "Basis",
    "CardSizedGrid",
    "ComparedFigures",
    "ComparedItems",
    "Concurrency",
    "FoundHazard",
    "Hazard",
    "HazardSearch",
    "HazardSide",
    "Hazards",
    "HostWaits",
    "LaneClock",
    "LaneClocks",
    "Layer",
    "LiveRows",
    "Merged",
    "Moment",
    "OpenSpans",
    "Overlap",
    "OverlapPair",
    "PartitionOptions",
    "PartitionSize",
    "Piece",
    "Region",
    "RowTable",
    "Rows",
    "SMSteps",
    "ScratchStatistics",
    "ScratchTable",
    "Share",
    "Side",
    "StrayGroup",
    "Strays",
    "TextTable",
    "Touch",
    "TraceComparison",
    "Utilization",
    "WaitGroup",
    "assign_rows",
    "axis_unit",
    "basis_of",
    "bin_width_ns",
    "busy_edges",
    "busy_word",
    "capture_facts",
    "card_sized_grids",
    "change_text",
    "check_layout",
    "check_rounding",
    "check_workqueue",
    "compare_traces",
    "comparison_line",
    "comparison_tables",
    "concurrency",
    "count_steps",
    "counted_kinds",
    "counted_rows",
    "counts_text",
    "display_name",
    "distinct",
    "empty_hint",
    "finding_text",
    "format_ms",
    "format_ns",
    "format_share",
    "grid_advice",
    "group_labels",
    "headline",
    "host_waits",
    "is_work",
    "layout_size",
    "layout_spells",
    "layout_warnings",
    "merge_narrow",
    "missing_facts",
    "name_group",
    "nearest_ranges",
    "options_of",
    "over_wall",
    "overlap",
    "partition_sizes",
    "partition_warnings",
    "partly_captured",
    "pending_text",
    "plan_partitions",
    "proof_text",
    "region_of",
    "require_mapping",
    "size_of",
    "sm_kinds",
    "sm_time_steps",
    "sms_text",
    "source_facts",
    "span_rows",
    "stack_sms",
    "strays",
    "stream_count",
    "stream_extent",
    "summary_text",
    "time_ticks",
    "unenforced_layout",
    "used_stream_count",
    "utilization",
    "wall_line",
]
