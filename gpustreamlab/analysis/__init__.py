"""Pure functions of traces: rows, overlap, summaries, units.

All that is imported here is for the other rooms; `__all__` is what users are promised.
"""

from gpustreamlab.analysis._busy import (
    Basis,
    basis_of,
    busy_edges,
    busy_word,
    count_steps,
    counted_kinds,
    counted_rows,
    distinct,
    first_of_each,
    hash_rows,
    interval_sum_ns,
    is_work,
    per_row,
    sm_kinds,
    stream_extent,
    sweep,
    told_ns,
    turns_of,
    union_edges,
    used_stream_count,
)
from gpustreamlab.analysis._card_counters import MEMORY_GIVES, counter_label, counter_means, means_text, memory_bytes_per_s
from gpustreamlab.analysis._card_idle import NO_CALL, CardIdle, card_idle
from gpustreamlab.analysis._compare import (
    TraceComparison,
    compare_traces,
    comparison_line,
    comparison_tables,
    wall_line,
)
from gpustreamlab.analysis._expect import (
    NOTHING_TIMED,
    Check,
    Checked,
    Missed,
    check_expression,
    expect_faster,
    expect_no_host_waits,
    expect_no_strays,
    expect_none,
    expect_overlap,
    judge,
)
from gpustreamlab.analysis._explain import explain
from gpustreamlab.analysis._explain_text import CAUSE_TITLES, code_lines, finding_texts
from gpustreamlab.analysis._explanation import LISTED_FINDINGS, Explanation, Finding
from gpustreamlab.analysis._hazard_search import (
    ACCESSES_KEPT,
    FREED_KEPT,
    ROWS_KEPT,
    FoundHazard,
    HazardSearch,
    LaneClock,
    LaneClocks,
    Moment,
    Piece,
    Side,
    Touch,
)
from gpustreamlab.analysis._hazards import NO_STREAM, Hazard, Hazards, HazardSide
from gpustreamlab.analysis._host_waits import CopyRates, HostWaits, copy_rates, host_waits
from gpustreamlab.analysis._idle_and_path import (
    IDLE_TEXTS,
    CriticalPath,
    Idle,
    PathPart,
    QueueLength,
    critical_path,
    idle,
)
from gpustreamlab.analysis._makers import maker_of
from gpustreamlab.analysis._needed_waits import NEEDS, wait_needs
from gpustreamlab.analysis._overlap import (
    Overlap,
    OverlapPair,
    concurrency,
    finding_text,
    overlap,
)
from gpustreamlab.analysis._plan import (
    REST,
    PartitionOptions,
    Share,
    check_layout,
    check_rounding,
    check_workqueue,
    options_of,
    plan_partitions,
    require_mapping,
    unenforced_layout,
)
from gpustreamlab.analysis._quality import CHECKS, Doubt, Quality, quality
from gpustreamlab.analysis._regions import Region, covers, region_of
from gpustreamlab.analysis._regions import overlap as may_share
from gpustreamlab.analysis._report import doubt_facts, dropped_text, empty_hint, html_of_table, missing_facts, pending_text
from gpustreamlab.analysis._rows import MAX_LANE_ROWS, ArrivedSpans, OpenSpans, RowPlanner, RowTable, span_rows
from gpustreamlab.analysis._scale import (
    Merged,
    bin_width_ns,
    count_text,
    format_ms,
    format_ns,
    format_share,
    group_labels,
    merge_narrow,
    name_group,
    time_ticks,
)
from gpustreamlab.analysis._scratch import ScratchStatistics, ScratchTable
from gpustreamlab.analysis._stacks import BY_CALL
from gpustreamlab.analysis._steps import Phase, Steps, StepsBy, name_tags, named_steps, steps, tag_columns, tagged_name
from gpustreamlab.analysis._stragglers import Lateness, Stragglers, stragglers, with_waits_for_ranks
from gpustreamlab.analysis._strays import Strays, nearest_ranges, strays
from gpustreamlab.analysis._summary import (
    capture_facts,
    captured_by,
    counts_text,
    grid_advice,
    headline,
    lanes_text,
    partition_warnings,
    source_facts,
    summary_text,
    trace_facts,
)
from gpustreamlab.analysis._totals import Totals, TotalsBy, totals
from gpustreamlab.analysis._utilization import (
    PartitionSize,
    Utilization,
    blocks_that_fit,
    change_text,
    layout_size,
    layout_spells,
    layout_warnings,
    partition_sizes,
    proof_text,
    size_of,
    sm_time_steps,
    sms_text,
    stack_sms,
    utilization,
    whole_card,
)
from gpustreamlab.model import display_name

__all__ = [
    "CAUSE_TITLES",
    "CHECKS",
    "CardIdle",
    "CriticalPath",
    "Doubt",
    "Explanation",
    "Finding",
    "HostWaits",
    "Idle",
    "Lateness",
    "Overlap",
    "OverlapPair",
    "PartitionOptions",
    "PathPart",
    "Quality",
    "QueueLength",
    "Steps",
    "Stragglers",
    "Strays",
    "Totals",
    "TraceComparison",
    "Utilization",
    "card_idle",
    "code_lines",
    "critical_path",
    "explain",
    "host_waits",
    "idle",
    "lanes_text",
    "may_share",
    "overlap",
    "plan_partitions",
    "quality",
    "steps",
    "stragglers",
    "strays",
    "totals",
    "utilization",
    "with_waits_for_ranks",
]
