"""What a trace holds, in words: the summary, how it was recorded, and what is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from gpustreamlab.analysis._busy import (
    Basis,
    basis_of,
    busy_edges,
    busy_word,
    interval_sum_ns,
    stream_count,
    told_ns,
    uncut_ns,
    used_stream_count,
    used_streams,
)
from gpustreamlab.analysis._host_waits import capture_edges, host_waits, wait_line
from gpustreamlab.analysis._makers import maker_of
from gpustreamlab.analysis._overlap import Overlap, concurrency, finding_text
from gpustreamlab.analysis._report import NOTE_CHARACTERS, device_text, doubt_facts, empty_hint, missing_facts
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.analysis._strays import stray_line, strays
from gpustreamlab.analysis._utilization import layout_warnings, size_of, sms_text, utilization
from gpustreamlab.model import SPAN_KINDS, Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array, SpanKind

WHOLE_SHARE = 0.995  # Share of the time from which on kernels count as captured throughout
LISTED_LANES = 20  # How many lanes a summary lists
MOST_BLOCKS_PER_SM = 32
"""Most blocks that an SM holds at once on any card so far; a grid of more per SM was not sized by the SMs. Source: CUDA C++
Programming Guide, technical specifications per compute capability."""
LISTED_GRIDS = 3  # How many kernels the advice names: those with most launches
_LIBRARY = re.compile(
    r"gemm|gemv|cutlass|cublas|cudnn|cufft|cusparse|cusolver|nvjet|xmma|fmha|flash_|nccl|splitk|winograd|convolve"
    r"|(?:^|_)sm\d\d+_|\b(?:at|c10|cub|thrust|cute|cudf|raft|rmm|ggml)::|^cupy_|^triton_",
    re.IGNORECASE,
)
"""Signs of kernels whose grids a library sizes, in their names: advice on those could not be followed."""


def summary_text(trace: Trace) -> str:
    """Describe a trace in a few lines: for terminals, and as the text that stands for a picture."""
    basis = basis_of(trace)
    edges_ns = busy_edges(trace, basis.counted)
    result = concurrency(trace)
    lines = [f"{headline(trace)}: {format_ns(told_ns(trace))}" if len(trace) else headline(trace)]
    lines += [] if len(trace) else filter(None, [empty_hint(trace.metadata)])
    if result.sum_ns:
        finding = finding_text(result)
        lines += [_busy_line(trace, edges_ns, result, basis.counted), *([finding] if finding else [])]
    lines += [*_kernel_lines(trace), *_partition_lines(trace)]
    lines.append(" · ".join(trace_facts(trace, basis)))
    doubts = doubt_facts(trace.metadata)
    missing = [*map(maker_of(trace).words, missing_facts(trace.metadata)[len(doubts) :]), *partition_warnings(trace)]
    last = [" · ".join(missing), grid_advice(trace)]
    return "\n".join([*(f"{doubt}." for doubt in doubts), *lines, *(line for line in last if line)])


def _busy_line(trace: Trace, edges_ns: Sequence[Int64Array], result: Overlap, counted: Collection[SpanKind]) -> str:
    shown = []
    streams = used_streams(trace)
    for place in streams[:LISTED_LANES]:
        busy_ns = interval_sum_ns(edges_ns[place])
        shown.append(
            f"{display_name(trace.lanes[place].name, 32)} {format_ns(busy_ns)} ({format_share(busy_ns / result.wall_ns)})"
        )
    more = len(streams) - len(shown)
    return f"{busy_word(counted).capitalize()}: {', '.join(shown)}{f' and {more:,} more streams' if more else ''}"


def _kernel_lines(trace: Trace) -> list[str]:
    """Say what kernels and calls tell of queueing, strays and waits of the host, one line each."""
    found, waits = strays(trace), host_waits(trace)
    lines = [queueing_line(trace)]
    lines += [f"Strays: {stray_line(found)}: see strays()"] if found else []
    lines += [f"Host: {wait_line(waits)}"] if waits else []
    return [line for line in lines if line]


def queueing_line(trace: Trace) -> str:
    """Say how long kernels waited between their launch and their start; empty where there are none."""
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    waited_ns = uncut_ns(trace)[0][rows] - trace.queued_ns[rows]
    waited_ns = waited_ns[waited_ns > 0]  # 0 stands for a launch that the trace does not tell
    if not len(waited_ns):
        return ""
    median, most = format_ns(float(np.median(waited_ns))), format_ns(int(waited_ns.max()))
    told = "" if len(waited_ns) == len(rows) else f"; the launch of {len(rows) - len(waited_ns):,} of {len(rows):,} is not told"
    return f"Queueing: kernels start {median} after their launch (median), at most {most}{told}"


def _partition_lines(trace: Trace) -> list[str]:
    """Say how long each partition was busy, one line each; empty where there are none."""
    if (trace.layout is None and not trace.partitions) or not all(device.sm_count for device in trace.devices):
        return []
    result = utilization(trace)
    word = busy_word(result.counted)
    lines = []
    for place, (name, busy_ns, share) in enumerate(
        zip(result.names, result.busy_ns.tolist(), result.share.tolist(), strict=True)
    ):
        if not busy_ns and (trace.layout is None or name not in trace.layout):
            continue
        sms = sms_text(int(result.granted_sms[place]), int(result.requested_sms[place]))
        where = "Whole card" if name is None else f"Partition {display_name(name, 32)}"
        lines.append(f"{where}: {sms}, {word} {format_ns(busy_ns)} ({format_share(share)} of its time)")
    more = len(lines) - LISTED_LANES
    lines = [*lines[:LISTED_LANES], f"and {more:,} more partitions"] if more > 0 else lines
    total = f"SM-time: {format_share(result.card_share)} of the card's {result.sm_count:,} SMs"
    return [*lines, f"{total}, at most: a partition in use may leave SMs idle"] if result.wall_ns else lines


def grid_advice(trace: Trace) -> str:
    """Say in one sentence which kernels of the user, in a partition, have a grid for the whole card; empty where none has."""
    # It is a hint, no proof: where the card's SM count is a power of two, grids that were sized by the data are found as well.
    blocks = trace.extra.get("grid_blocks")
    if blocks is None or not trace.partitions:
        return ""
    card_sms = trace.metadata.device.sm_count
    sizes = [size_of(trace, part) for part in trace.partitions]
    is_smaller = np.array([*(0 < size.granted_sms < card_sms for size in sizes), False])
    fits = (blocks > 0) & (blocks % card_sms == 0) & (blocks <= MOST_BLOCKS_PER_SM * card_sms)
    is_kernel = trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)
    rows = np.flatnonzero(is_kernel & fits & is_smaller[trace.partition] & ~_of_libraries(trace))
    found: Counter[tuple[str, int, str, int]] = Counter()
    keys, counts = np.unique(
        np.stack((trace.name[rows], trace.partition[rows], blocks[rows].astype(np.int64))), axis=1, return_counts=True
    )
    for (name, code, count), launches in zip(keys.T.tolist(), counts.tolist(), strict=True):
        # Partitions of one name and size, told apart only by their groups, count together.
        found[trace.names[name], count, trace.partitions[code].name, sizes[code].granted_sms] += launches
    if not found:
        return ""
    told = [
        f"{display_name(name, 40)} ({grid:,} blocks on the {sms:,} SMs of {display_name(partition, 24)}, "
        f"{count_text(launches, 'launch', 'launches')})"
        for (name, grid, partition, sms), launches in found.most_common(LISTED_GRIDS)
    ]
    more = len(found) - LISTED_GRIDS
    told += [f"{more:,} more"] if more > 0 else []
    return f"Grids of a multiple of the card's {card_sms:,} SMs: {', '.join(told)}. Size them by stream.sm_count"


def partition_warnings(trace: Trace) -> list[str]:
    """Say what about a trace's partitions is not as it reads: not enforced, not as measured."""
    return layout_warnings(trace.layout)


def _of_libraries(trace: Trace) -> BoolArray:
    """Tell which spans have the name of a library's kernel; shape (n_spans,), bool."""
    by_name = np.array([_LIBRARY.search(name) is not None for name in trace.names], bool)[trace.name]
    detail = trace.extra.get("detail")
    if detail is None:
        return by_name
    # The name alone may be too short to tell; the last entry is that of a span without details.
    by_detail = np.array([*(_LIBRARY.search(one.full_name) is not None for one in trace.details), False], bool)[detail]
    found: BoolArray = by_name | by_detail
    return found


def headline(trace: Trace) -> str:
    """Say what a trace is in half a line: title, spans, streams, device, simulated or real."""
    meta = trace.metadata
    title = f"{display_name(meta.title)}: timeline" if meta.title else "Timeline"
    return f"{title} of {counts_text(trace, len(trace))} on {device_text(meta)}"


def counts_text(trace: Trace, span_count: int) -> str:
    """Write how many spans there are, in how many streams and threads: "62 spans in 2 streams and 1 host thread"."""
    return f"{count_text(span_count, 'span')} in {lanes_text(trace)}"


def lanes_text(trace: Trace) -> str:
    """Write in how many streams and threads spans are: "2 streams and 1 host thread"."""
    streams, threads = used_stream_count(trace), trace._thread_count  # noqa: SLF001 - of this package
    told = [count_text(streams, "stream")] if streams or not threads else []
    return " and ".join([*told, *([count_text(threads, "host thread")] if threads else [])])


def source_facts(meta: TraceMetadata, tier: CaptureTier | None = None) -> list[str]:
    """Say how the times were taken and how far they can be trusted; the tier is that of the figures, see `basis_of`."""
    if meta.is_from_columns:
        return ["Spans as given in columns: how they were measured, and with which errors, is not known"]
    if (tier or meta.tier) is CaptureTier.RANGES:
        captured = "Tier: ranges (event pairs; ranges contain queueing)"
    else:
        captured = f"Tier: kernels (every kernel, copy and fill{captured_by(meta)})"
    if meta.imported:
        return [captured, display_name(meta.imported, NOTE_CHARACTERS)]
    if meta.simulated and not (meta.clock_error_ns or meta.range_error_ns or meta.range_correction_ns):
        return [captured, "times are modelled, not measured"]
    # An error of 0 is one that is not known, or that of a model: nothing is exact to the nanosecond.
    error = f" ±{format_ns(meta.range_error_ns)}" if meta.range_error_ns else ""
    correction = f" after a correction of {format_ns(meta.range_correction_ns)}" if meta.range_correction_ns else ""
    clock = [f"clock error ±{format_ns(meta.clock_error_ns)}"] if meta.clock_error_ns else []
    return [captured, *clock, *([f"ranges{error}{correction}"] if error or correction else [])]


def trace_facts(trace: Trace, basis: Basis) -> list[str]:
    """Say how a trace was recorded: `source_facts`, and `capture_facts`."""
    facts = source_facts(trace.metadata, basis.tier)
    if trace.metadata.imported and not stream_count(trace):
        facts[0] = "No work of a GPU is in the file"
    return [*facts, *capture_facts(trace, basis)]


def capture_facts(trace: Trace, basis: Basis | None = None) -> list[str]:
    """Say when kernels were captured, where that was not all the time."""
    windows = trace.metadata.capture_windows
    if not windows:
        return []
    basis = basis_of(trace) if basis is None else basis
    if basis.tier is CaptureTier.RANGES:
        return ["kernels were captured at other times only"]
    if not len(trace):
        return [f"kernels captured in {len(windows):,} windows"] if len(windows) > 1 else []
    wall_ns, edges_ns = int(trace.end_ns.max()) - int(trace.start_ns.min()), capture_edges(trace)
    where = f" in {len(edges_ns) // 2:,} windows" if len(edges_ns) > 2 else ""
    share = interval_sum_ns(edges_ns) / wall_ns if wall_ns else 1.0
    if share >= WHOLE_SHARE:
        return []
    elsewhere = ": elsewhere ranges count" if SpanKind.RANGE in basis.counted else ""
    return [f"kernels captured{where}{',' if where else ''} {format_share(share)} of the time{elsewhere}"]


def captured_by(meta: TraceMetadata) -> str:
    """Say what told of kernels, and how exactly: another tool's file does not say that, only in which steps it counts."""
    error = f", ±{format_ns(meta.kernel_error_ns)}" if meta.kernel_error_ns else ""
    return f" by {display_name(meta.capture_source)}{error}" if meta.capture_source else ""
