"""What a trace holds, in words: the summary, and what is missing of its kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gpustreamlab.analysis._busy import Basis, basis_of, busy_edges, busy_word, interval_sum_ns, stream_count, uncut_ns
from gpustreamlab.analysis._concurrency import Concurrency, concurrency, over_wall, used_stream_count, used_streams
from gpustreamlab.analysis._grids import grid_advice, partition_warnings
from gpustreamlab.analysis._host_waits import capture_edges, host_waits, wait_line
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.analysis._sm_time import sms_text
from gpustreamlab.analysis._strays import stray_line, strays
from gpustreamlab.analysis._utilization import utilization
from gpustreamlab.model import NO_COMMON_TIME, SPAN_KINDS, Trace, TraceMetadata, display_name
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind

WHOLE_SHARE = 0.995
"""Share of the time from which on kernels count as captured throughout."""


def kernel_lines(trace: Trace) -> list[str]:
    """Say what kernels and calls tell of queueing, strays and waits of the host, one line each."""
    found, waits = strays(trace), host_waits(trace)
    lines = [queueing_line(trace)]
    lines += [f"Strays: {stray_line(found)}: see strays()"] if found else []
    lines += [f"Host: {wait_line(waits)}"] if waits else []
    return [line for line in lines if line]


def capture_facts(trace: Trace, basis: Basis | None = None) -> list[str]:
    """Say when kernels were captured, where that was not all the time.

    Parameters
    ----------
    trace
        The spans.
    basis
        What its figures are of; None to find out.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 60], end_ns=[50, 100], queued_ns=[0, 0], lane=[0, 0], name=[0, 0], kind=[0, 1], parent=[-1, -1],
    ...     thread=[0, 0], names=("step",), threads=("MainThread",), lanes=(Lane(name="compute", stream=1),),
    ...     metadata=TraceMetadata(
    ...         backend="sim", device=Device(name="demo", sm_count=4), tier="kernels", capture_windows=((55, 80), (90, 100))
    ...     ),
    ... )
    >>> capture_facts(trace)
    ['kernels captured in 2 windows, 35% of the time: elsewhere ranges count']
    """
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


NOTE_CHARACTERS = 300
"""How many characters of a note are shown."""

_MEAN = "; mean concurrency "

LISTED_LANES = 20
"""How many lanes a summary lists."""


def summary_text(trace: Trace) -> str:
    """Describe a trace in a few lines: for terminals, and as the text that stands for a picture.

    Parameters
    ----------
    trace
        The spans.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 250], queued_ns=[0, 0], lane=[0, 1], name=[0, 1], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("copy", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="copies", stream=1), Lane(name="compute", stream=2)),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4, simulated=True)),
    ... )
    >>> print(summary_text(trace))
    Timeline of 2 spans in 2 streams on demo (SIMULATED): 250 ns
    Queued or running: copies 100 ns (40%), compute 200 ns (80%)
    What ran at once is not known, at most 50 ns; mean concurrency up to 1.20. Ranges contain waiting
    Tier: ranges (event pairs; ranges contain queueing) · times are modelled, not measured
    """
    basis = basis_of(trace)
    edges_ns = busy_edges(trace, basis.counted)
    result = over_wall(trace, concurrency(trace, edges_ns))
    lines = [f"{headline(trace)}: {format_ns(result.wall_ns)}" if len(trace) else headline(trace)]
    lines += [] if len(trace) else filter(None, [empty_hint(trace.metadata)])
    if result.sum_ns:
        finding = finding_text(result, trace.metadata, lane_count=used_stream_count(trace), counted=basis.counted)
        lines += [_busy_line(trace, edges_ns, result, basis.counted), *([finding] if finding else [])]
    lines += [*kernel_lines(trace), *partition_lines(trace)]
    lines.append(" · ".join(trace_facts(trace, basis)))
    missing = [*missing_facts(trace.metadata), *partition_warnings(trace)]
    last = [" · ".join(missing), grid_advice(trace)]
    return "\n".join([*lines, *(line for line in last if line)])


def partition_lines(trace: Trace) -> list[str]:
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


def finding_text(result: Concurrency, meta: TraceMetadata, *, lane_count: int, counted: Collection[SpanKind]) -> str:
    """Say in one line how much ran at once; empty where nothing ran, or where that is not known.

    Parameters
    ----------
    result
        How much did.
    meta
        Where the numbers come from.
    lane_count
        Of how many streams.
    counted
        Which kinds of spans count as busy; where ranges do, all is an upper bound, and the line says so, and how much of the
        busy time that is. Of what share of the time that is nothing is said then: nobody knows for how long any stream worked.
    """
    if not result.sum_ns or NO_COMMON_TIME in meta.missing:
        return ""
    if lane_count < 2:
        word = "Queued or running" if SpanKind.RANGE in counted else "Busy"
        return f"{word} {format_share(result.active_ns / result.wall_ns)} of the time; one stream, so nothing can overlap"
    has_ranges = SpanKind.RANGE in counted
    if has_ranges and result.together_ns:
        together = f"What ran at once is not known, at most {format_ns(result.together_ns)}"
    else:
        # Of many streams a high share says little: 2 of 100 may have been all.
        counts = f"2 to {result.peak_lanes:,}" if result.peak_lanes > 2 else "2"
        together = f"{counts} streams at once {format_share(result.together_share)} of the time any worked"
    bound = f"{together}{_MEAN}{result.mean_text(counted)}"
    if not has_ranges:
        return bound
    if not 0 < result.range_only_ns < result.sum_ns:
        return f"{bound}. Ranges contain waiting"
    by_ranges = format_share(result.range_only_ns / result.sum_ns)
    return f"{bound}. {by_ranges} of the busy time is by ranges only, which contain waiting"


def plain_finding(finding: str) -> str:
    """Return what a `finding_text` begins with, as the one sentence of a picture's head ends with it.

    Examples
    --------
    >>> plain_finding("What ran at once is not known, at most 50 ns; mean concurrency up to 1.20. Ranges contain waiting")
    'what ran at once is not known, at most 50 ns'
    """
    return f"{finding[:1].lower()}{finding[1:].partition(_MEAN)[0]}"


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
    streams, threads = used_stream_count(trace), len(trace.lanes) - stream_count(trace)
    told = [count_text(streams, "stream")] if streams or not threads else []
    return " and ".join([*told, *([count_text(threads, "host thread")] if threads else [])])


def device_text(meta: TraceMetadata) -> str:
    """Name the device, and say whether it is real, as far as that is known."""
    known = (("PREDICTED", meta.is_predicted), ("SIMULATED", meta.simulated), ("from columns", meta.is_from_columns))
    source = next((word for word, is_so in known if is_so), "measured on hardware")
    return f"{display_name(meta.device_name)} ({source})"


def source_facts(meta: TraceMetadata, tier: CaptureTier | None = None) -> list[str]:
    """Say how the times were taken and how far they can be trusted.

    Parameters
    ----------
    meta
        What the trace says about itself.
    tier
        What the figures are of, see `basis_of`; None for the tier of the metadata.
    """
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


def captured_by(meta: TraceMetadata) -> str:
    """Say what told of kernels, and how exactly: another tool's file does not say that, only in which steps it counts."""
    error = f", ±{format_ns(meta.kernel_error_ns)}" if meta.kernel_error_ns else ""
    return f" by {display_name(meta.capture_source)}{error}" if meta.capture_source else ""


def missing_facts(meta: TraceMetadata) -> list[str]:
    """Say what the trace does not hold; empty where nothing is missing."""
    facts = [f"A part, cut out of a trace of {count_text(meta.part_of_spans, 'span')}"] if meta.part_of_spans else []
    if meta.capture_note:
        lead = "Kernels were not captured" if meta.tier is CaptureTier.RANGES else "Some kernels are missing"
        facts.append(f"{lead}: {display_name(meta.capture_note, NOTE_CHARACTERS)}")
    if meta.dropped_spans:
        facts.append(dropped_text(meta))
    if meta.pending_spans:
        facts.append(pending_text(meta.pending_spans, meta))
    if meta.recovery_note:
        facts.append(display_name(meta.recovery_note, NOTE_CHARACTERS))
    return [*facts, *(display_name(fact, NOTE_CHARACTERS) for fact in meta.missing)]


def dropped_text(meta: TraceMetadata) -> str:
    """Say how many spans are missing, and why."""
    records = f", {meta.dropped_records:,} of them kernels, copies and calls" if meta.dropped_records else ""
    reasons = "a full buffer, a closed stream, an error or an interrupt"
    return f"{count_text(meta.dropped_spans, 'span')} dropped{records} ({reasons})"


def pending_text(count: int, meta: TraceMetadata) -> str:
    """Say that spans have not ended, and what waits for them; of a run that was cut short nothing does.

    Examples
    --------
    >>> from gpustreamlab.model import Device
    >>> meta = TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4))
    >>> pending_text(1, meta), pending_text(2, meta)
    ('1 span has not ended yet: lab.synchronize() waits for it', '2 spans have not ended yet: lab.synchronize() waits for them')
    """
    if meta.recovery_note:
        return f"{count_text(count, 'span')} had not ended when the run was cut short"
    if count == 1:
        return "1 span has not ended yet: lab.synchronize() waits for it"
    return f"{count:,} spans have not ended yet: lab.synchronize() waits for them"


def empty_hint(meta: TraceMetadata, *, nothing: str = "No spans yet") -> str:
    """Say why a trace may be empty, as far as that is known, and what to type; nothing where spans have not ended yet.

    Examples
    --------
    >>> from gpustreamlab.model import Device
    >>> device = Device(name="demo", sm_count=4)
    >>> empty_hint(TraceMetadata(backend="cuda", device=device))
    "No spans yet: select a stream with lab.on(...), or record all work with lab.capture('kernels')"
    >>> empty_hint(TraceMetadata(backend="sim", device=device, unselected_work=1))
    "1 kernel, copy or fill was launched with no stream selected: use lab.on(...), or record all with lab.capture('kernels')"
    """
    count = meta.unselected_work
    if meta.part_of_spans or meta.is_from_columns or meta.imported:
        return nothing.removesuffix(" yet")
    if meta.pending_spans:
        return ""
    if not count:
        if meta.tier is not CaptureTier.RANGES:
            return f"{nothing}: no kernel, copy or fill has ended"
        return f"{nothing}: select a stream with lab.on(...), or record all work with lab.capture('kernels')"
    work = "1 kernel, copy or fill was" if count == 1 else f"{count:,} kernels, copies or fills were"
    return f"{work} launched with no stream selected: use lab.on(...), or record all with lab.capture('kernels')"


def _busy_line(trace: Trace, edges_ns: Sequence[Int64Array], result: Concurrency, counted: Collection[SpanKind]) -> str:
    shown = []
    streams = used_streams(trace)
    for place in streams[:LISTED_LANES]:
        busy_ns = interval_sum_ns(edges_ns[place])
        shown.append(
            f"{display_name(trace.lanes[place].name, 32)} {format_ns(busy_ns)} ({format_share(busy_ns / result.wall_ns)})"
        )
    more = len(streams) - len(shown)
    return f"{busy_word(counted).capitalize()}: {', '.join(shown)}{f' and {more:,} more streams' if more else ''}"
