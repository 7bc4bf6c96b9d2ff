"""The one builder of traces by hand, and small ones to draw and to compute with; see also `kernel_traces`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.analysis import is_work
from gpustreamlab.analysis._data_order import order_of
from gpustreamlab.model import (
    EDGE_KINDS,
    SPAN_KINDS,
    Device,
    Edges,
    Lane,
    Layout,
    LayoutChange,
    Partition,
    TraceMetadata,
)
from gpustreamlab.typing import CaptureTier, EdgeKind, LaneKind, SpanKind

EVIL_NAME = "</script><img src=x onerror=alert(1)>"
MS = 1_000_000
WORK = ("kernel", "copy", "fill")
FACTS = {"backend": "sim", "device": Device(name="NVIDIA H200", sm_count=132, simulated=True), "clock": "virtual"}
TABLES = ("layout", "layouts", "markers", "counters", "partitions", "extra", "details")


def make_trace(spans, *, kind="range", lanes=None, threads=("MainThread",), edges=(), **rest):
    """Build a trace from tuples (lane, name, start_ns, end_ns[, options]), in the order given.

    Parameters
    ----------
    spans
        Options are ``kind``, ``parent`` (a row), ``queued_ns``, ``thread``, ``partition``, ``blocks``, and of kernels
        ``detail`` (a `WorkDetail`), ``size_bytes``, ``correlation``.
    kind
        Of the spans that say no other.
    lanes
        None makes a stream of each name in the order in which they come, and a host thread of each that begins with "host:".
    edges
        Tuples (source row, target row) of waits, or (source row, target row, kind).
    rest
        Tables of the trace (`TABLES`) and facts of its metadata.
    """
    rows = rows_of(spans, kind)
    lanes = lanes_of(rows) if lanes is None else lanes
    names = tuple(dict.fromkeys(row["name"] for row in rows))
    lane_codes = {lane.name: code for code, lane in enumerate(lanes)}
    tables = {name: rest.pop(name) for name in TABLES if name in rest}
    if any("blocks" in row for row in rows):
        tables["extra"] = {"grid_blocks": [row.get("blocks", 0) for row in rows]}
    return Trace(
        start_ns=[row["start_ns"] for row in rows],
        end_ns=[row["end_ns"] for row in rows],
        queued_ns=[row.get("queued_ns", row["start_ns"]) for row in rows],
        lane=[lane_codes[row["lane"]] for row in rows],
        name=[names.index(row["name"]) for row in rows],
        kind=[SPAN_KINDS.index(SpanKind(row["kind"])) for row in rows],
        parent=[row.get("parent", -1) for row in rows],
        thread=[row.get("thread", 0) for row in rows],
        partition=[row.get("partition", -1) for row in rows],
        names=names,
        lanes=lanes,
        threads=threads,
        edges=edges_of(edges),
        metadata=TraceMetadata(**FACTS | rest),
        **tables,
    )


def make_kernel_trace(spans, *, windows=None, **rest):
    """Build a trace of the kernel tier, as `make_trace` does: spans are kernels, and the columns of work are there.

    `windows` are from when to when kernels were captured; None stands for the whole time.
    """
    rows = rows_of(spans, "kernel")
    details = tuple(dict.fromkeys(row["detail"] for row in rows if "detail" in row))
    if windows is None:
        windows = ((min((r["start_ns"] for r in rows), default=0), max((r["end_ns"] for r in rows), default=0) + 1),)
    extra = extra_columns(rows, details)
    return make_trace(spans, kind="kernel", extra=extra, details=details, **kernel_facts(windows) | rest)


def rows_of(spans, kind):
    """Name the parts of each tuple."""
    return [
        {"lane": lane, "name": name, "start_ns": start, "end_ns": end, "kind": kind} | (options[0] if options else {})
        for lane, name, start, end, *options in spans
    ]


def kernel_facts(windows):
    """Metadata of a trace with kernels."""
    tier = {"tier": CaptureTier.KERNELS, "capture_windows": windows}
    return FACTS | tier | {"capture_source": "CUPTI 13.0", "kernel_error_ns": 200}


def lanes_of(rows):
    """Name lanes in the order in which they come."""
    names = dict.fromkeys(row["lane"] for row in rows)
    return tuple(
        Lane(name=name, stream=number, kind=LaneKind.HOST if name.startswith("host:") else LaneKind.STREAM)
        for number, name in enumerate(names, 1)
    )


def edges_of(edges):
    """Make edges of tuples; waits where they say nothing else."""
    full = [(*edge, EdgeKind.WAIT)[:3] for edge in edges]
    return Edges(
        source=[source for source, _, _ in full],
        target=[target for _, target, _ in full],
        kind=[EDGE_KINDS.index(EdgeKind(kind)) for _, _, kind in full],
    )


def extra_columns(rows, details):
    """Return the columns that a trace has as soon as kernels were captured."""
    found = [row.get("detail") for row in rows]
    shared = [0 if detail is None else detail.static_shared_bytes + detail.dynamic_shared_bytes for detail in found]
    first, last, counts = work_below(rows)
    return {
        "detail": np.array([-1 if detail is None else details.index(detail) for detail in found], np.int32),
        "correlation": np.array([row.get("correlation", 0) for row in rows], np.int64),
        "size_bytes": np.array([row.get("size_bytes", 0) for row in rows], np.int64),
        "grid_blocks": np.array([0 if detail is None else detail.grid_blocks for detail in found], np.int64),
        "block_threads": np.array([0 if detail is None else detail.block_threads for detail in found], np.int64),
        "registers": np.array([0 if detail is None else detail.registers for detail in found], np.int64),
        "shared_bytes": np.array(shared, np.int64),
        "work_start_ns": np.array(first, np.int64),
        "work_end_ns": np.array(last, np.int64),
        "work_count": np.array(counts, np.int64),
    }


def work_below(rows):
    """Return the first start, last end and number of the work below each row, at any depth."""
    times = [[] for _ in rows]
    for row in rows:
        if row["kind"] not in WORK:
            continue
        above, seen = row.get("parent", -1), set()
        while above >= 0 and above not in seen:
            seen.add(above)
            times[above].append((row["start_ns"], row["end_ns"]))
            above = rows[above].get("parent", -1)
    for place, row in enumerate(rows):
        if row["kind"] in WORK:
            times[place] = [(row["start_ns"], row["end_ns"])]
    first = [min(start for start, _ in found) if found else row["start_ns"] for found, row in zip(times, rows, strict=True)]
    last = [max(end for _, end in found) if found else row["start_ns"] for found, row in zip(times, rows, strict=True)]
    return first, last, [len(found) for found in times]


def empty_trace(**meta):
    """A session in which nothing ran yet."""
    return make_trace([], lanes=(), **meta)


def one_lane_trace():
    """Four ranges on one stream."""
    names = ("load", "filter", "statistics", "store")
    return make_trace(
        [("default", name, k * MS, (k + 1) * MS - 100_000, {"queued_ns": k * MS - 300_000}) for k, name in enumerate(names)]
    )


def pipeline_trace(batch_count=6, **meta):
    """A double-buffered pipeline of three streams: upload, compute, download, with waits."""
    spans, edges = [], []
    for k in range(batch_count):
        up = k * MS
        run = up + 900_000
        down = run + 1_100_000
        first = len(spans)
        spans.append(("upload", "copy in", up, up + 900_000, {"queued_ns": up - 40_000}))
        spans.append(("compute", "filter", run, run + 600_000, {"queued_ns": up - 30_000, "partition": 0}))
        later = {"queued_ns": up - 20_000, "partition": 0}
        spans.append(("compute", "statistics", run + 600_000, run + 980_000, later))
        spans.append(("download", "copy out", down - 100_000, down + 500_000, {"queued_ns": up - 10_000}))
        edges += [(first, first + 1), (first + 2, first + 3)]
    lanes = (
        Lane(name="upload", stream=1),
        Lane(name="compute", stream=2, priority=-1, partition="prefill"),
        Lane(name="download", stream=3),
    )
    prefill = Partition(name="prefill", requested_sms=90, granted_sms=96)
    layout = Layout(partitions=(prefill,), remainder_sms=36)
    facts = {"clock_error_ns": 500, "range_error_ns": 400, "range_correction_ns": 2600, "title": "Image pipeline"} | meta
    return make_trace(spans, lanes=lanes, edges=edges, layout=layout, partitions=(prefill,), **facts)


PREFILL = Partition(name="prefill", requested_sms=90, granted_sms=96, sm_ids=tuple(range(96)))
DECODE = Partition(name="decode", requested_sms=36, granted_sms=36, sm_ids=tuple(range(96, 132)))


def partition_trace(*, is_enforced=True, **meta):
    """Two streams in partitions, one of both with two more, and one stream on the whole card."""
    spans = []
    for k in range(5):
        begin = k * 2 * MS
        spans.append(("prefill", "gemm", begin, begin + 1_700_000, {"partition": 0}))
        spans.append(("kv", "copy kv", begin + 1_700_000, begin + 1_950_000, {"partition": 0}))
        spans += [("decode", "attention", at, at + 350_000, {"partition": 1}) for at in range(begin, begin + 2 * MS, 500_000)]
    spans.append(("logging", "checksum", 4 * MS, 5 * MS))
    lanes = (
        Lane(name="logging", stream=9, sm_count=132),
        Lane(name="prefill", stream=1, partition="prefill", sm_count=96),
        Lane(name="decode", stream=2, partition="decode", sm_count=36, priority=-1),
        Lane(name="kv", stream=3, partition="prefill", sm_count=96),
    )
    layout = Layout(partitions=(PREFILL, DECODE), is_enforced=is_enforced)
    facts = {"title": "Prefill beside decode", "clock_error_ns": 500} | meta
    return make_trace(
        spans,
        lanes=lanes,
        layout=layout,
        layouts=(LayoutChange(time_ns=-MS, layout=layout),),
        partitions=(PREFILL, DECODE),
        **facts,
    )


def repartition_trace(**meta):
    """Whole card for 2 ms, prefill 96 and decode 36 for 4 ms, then 64 and 68 for 4 ms."""
    small = Partition(name="prefill", requested_sms=64, granted_sms=64)
    large = Partition(name="decode", requested_sms=68, granted_sms=68)
    parts = (PREFILL, DECODE, small, large)
    first, second = Layout(partitions=parts[:2]), Layout(partitions=parts[2:])
    spans = []
    for k in range(10):
        code = -1 if k < 2 else 0 if k < 6 else 2
        spans.append(("prefill", "gemm", k * MS, k * MS + 900_000, {"partition": code}))
        spans.append(("decode", "attention", k * MS + 300_000, k * MS + 700_000, {"partition": code + 1 if code >= 0 else -1}))
    lanes = (
        Lane(name="prefill", stream=1, partition="prefill", sm_count=64),
        Lane(name="decode", stream=2, partition="decode", sm_count=68),
    )
    changes = (LayoutChange(time_ns=1_950_000, layout=first), LayoutChange(time_ns=5_950_000, layout=second))
    return make_trace(spans, lanes=lanes, layout=second, layouts=changes, partitions=parts, title="Repartition", **meta)


def many_partitions_trace(lane_count=100, partition_count=8, span_count=2_000):
    """Lanes without order in partitions of 16 SMs, with hostile names."""
    plain = random_trace(span_count, lane_count)
    parts = tuple(
        Partition(name=f"{EVIL_NAME} {number}" if number == 2 else f"part {number}", requested_sms=12, granted_sms=16)
        for number in range(partition_count)
    )
    lanes = tuple(
        replace(lane, partition=parts[place % partition_count].name, sm_count=16) for place, lane in enumerate(plain.lanes)
    )
    layout = Layout(partitions=parts, remainder_sms=max(0, 132 - 16 * partition_count))
    return replace(plain, lanes=lanes, partitions=parts, partition=plain.lane % partition_count, layout=layout)


def nested_trace():
    """Ranges in ranges on two streams, with kernels inside, every kind, and two threads on one stream."""
    ms = MS
    spans = [
        ("main", "step", 0, 10 * ms),
        ("main", "forward", 0, 6 * ms, {"parent": 0}),
        ("main", "gemm", 200_000, 3 * ms, {"parent": 1, "kind": "kernel"}),
        ("main", "softmax", 3 * ms, 5 * ms, {"parent": 1, "kind": "kernel"}),
        ("main", "backward", 6 * ms, 10 * ms, {"parent": 0}),
        ("main", "gemm", 6_500_000, 9 * ms, {"parent": 4, "kind": "kernel"}),
        ("side", "worker A", 1 * ms, 7 * ms, {"thread": 1}),
        ("side", "copy", 2 * ms, 4 * ms, {"thread": 1, "parent": 6, "kind": "copy"}),
        ("side", "worker B", 3 * ms, 9 * ms, {"thread": 2}),
        ("side", "fill", 5 * ms, 8 * ms, {"thread": 2, "parent": 8, "kind": "fill"}),
        ("side", "wait for step", 9 * ms, 10 * ms, {"kind": "wait"}),
        ("side", "done", 10 * ms, 10 * ms, {"kind": "marker"}),
    ]
    return make_trace(spans, threads=("MainThread", "Worker-1", "Worker-2"), tier=CaptureTier.KERNELS)


def evil_trace(name=EVIL_NAME):
    """Names that try to leave their place, everywhere where there is a name."""
    other = "$$\\mathbb{evil}$$ {{ x }} @{name} &lt;b&gt; \"'`\u2028\u202eabc"
    spans = [
        (name, name, 0, 4 * MS),
        (name, other, 4 * MS, 6 * MS),
        (other, name, 2 * MS, 7 * MS),
        (other, "long " * 500, 7 * MS, 9 * MS),
    ]
    lanes = (Lane(name=name, stream=1, partition=name), Lane(name=other, stream=2, partition=other, priority=-3))
    return make_trace(
        spans,
        lanes=lanes,
        threads=(name,),
        title=name,
        clock=name,
        device=Device(name=name, sm_count=1, simulated=False),
        backend=name,
    )


def random_trace(span_count, lane_count=16, *, name_count=12, seed=0, mean_ns=8_000, **meta):
    """Spans that do not overlap within their lane, as columns, in order of time."""
    rng = np.random.default_rng(seed)
    lane = rng.integers(0, lane_count, span_count)
    gap_ns, duration_ns = rng.integers(0, mean_ns // 2, span_count), rng.integers(mean_ns // 8, mean_ns, span_count)
    start_ns = np.empty(span_count, np.int64)
    for code in range(lane_count):
        rows = lane == code
        start_ns[rows] = np.cumsum(gap_ns[rows] + duration_ns[rows]) - duration_ns[rows]
    order = np.argsort(start_ns, kind="stable")
    lane, start_ns, duration_ns = lane[order], start_ns[order], duration_ns[order]
    zeros = np.zeros(span_count, np.int64)
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + duration_ns,
        queued_ns=start_ns - rng.integers(0, 20_000, span_count),
        lane=lane,
        name=rng.integers(0, name_count, span_count),
        kind=zeros,
        parent=zeros - 1,
        thread=zeros,
        names=tuple(f"kernel {number}" for number in range(name_count)),
        lanes=tuple(Lane(name=f"stream {number}", stream=number + 1) for number in range(lane_count)),
        threads=("MainThread",),
        metadata=TraceMetadata(backend="sim", device=Device(name="NVIDIA H200", sm_count=132, simulated=True), **meta),
    )


def without_spans(trace):
    """The same tables, as a live view has them before the first span."""
    none = np.empty(0, np.int64)
    columns = ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread", "partition")
    return replace(trace, **dict.fromkeys(columns, none), extra={}, edges=Edges())


def unnumbered(trace):
    """Return a trace whose names differ by more than a number, so that each is a group of its own."""
    return replace(trace, names=tuple(name.replace(" ", "") for name in trace.names))


def data_edges(trace):
    """Return the rows of work that data order between streams, what is in front first, with codes of why, and buffers."""
    order, (before, after, kind, buffer) = order_of(trace)
    return order.row[before], order.row[after], kind, buffer


def data_order(trace):
    """Return between which streams data order work, as pairs of names."""
    before, after, *_ = data_edges(trace)
    return [
        (trace.lanes[trace.lane[first]].name, trace.lanes[trace.lane[second]].name)
        for first, second in zip(before, after, strict=True)
    ]


def wall_ns(trace):
    """Return how long the work of a trace took, in ns."""
    work = is_work(trace)
    return int(trace.end_ns[work].max() - trace.start_ns[work].min())
