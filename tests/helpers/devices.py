"""Traces made by hand of two devices: of one process, and of two."""

from __future__ import annotations

from gpustreamlab import Trace
from gpustreamlab.model import SPAN_KINDS, Device, Edges, Lane, TraceMetadata, WorkDetail


def trace_of(rows, lanes, **options):
    """Return a trace of rows of lane, kind, name, start and end in us, and what else each has: queued, launched_by, blocks."""
    names = sorted({row[2] for row in rows})
    more = [row[5] if len(row) > 5 else {} for row in rows]
    launches = [(one["launched_by"], place) for place, one in enumerate(more) if "launched_by" in one]
    blocks = [one.get("blocks", 0) for one in more]
    threads = [lane.name.removeprefix("host: ") for lane in lanes if lane.kind == "host"]
    options = {"device": Device(name="demo", sm_count=4)} | options
    return Trace(
        start_ns=[1_000 * row[3] for row in rows],
        end_ns=[1_000 * row[4] for row in rows],
        queued_ns=[1_000 * one.get("queued", row[3]) for row, one in zip(rows, more, strict=True)],
        lane=[row[0] for row in rows],
        name=[names.index(row[2]) for row in rows],
        kind=[SPAN_KINDS.index(row[1]) for row in rows],
        parent=[-1] * len(rows),
        thread=[one.get("thread", -1) for one in more],
        threads=threads,
        names=names,
        lanes=lanes,
        extra={"grid_blocks": blocks, "detail": [place if count else -1 for place, count in enumerate(blocks)]},
        details=[WorkDetail(full_name=row[2], grid=(count, 1, 1)) for row, count in zip(rows, blocks, strict=True)],
        edges=Edges(source=[a for a, _ in launches], target=[b for _, b in launches], kind=[1] * len(launches)),
        metadata=TraceMetadata(backend="kineto", tier="kernels", **options),
    )


def two_devices(rows=(), **options):
    """Return a trace of one process with a stream on each of two devices."""
    lanes = [
        Lane(name="a", device=0, stream=7, sm_count=4),
        Lane(name="b", device=1, stream=7, sm_count=4),
        Lane(name="host: main", kind="host"),
    ]
    rows = rows or [(0, "kernel", "k", 0, 100, {"blocks": 1_000}), (1, "kernel", "k", 10, 110, {"blocks": 1_000})]
    return trace_of(rows, lanes, **options)


def two_ranks(rows=(), **options):
    """Return a trace of two processes, each with a device and a thread of its own."""
    lanes = [
        Lane(name="a", device=0, stream=7, sm_count=4, process=0),
        Lane(name="b", device=1, stream=7, sm_count=4, process=1),
        Lane(name="host: one", kind="host", process=0),
        Lane(name="host: two", kind="host", process=1),
    ]
    rows = rows or [
        (2, "host", "cudaLaunchKernel", 0, 5),
        (0, "kernel", "k", 10, 50, {"launched_by": 0, "queued": 0, "thread": 0}),
        (3, "host", "cudaLaunchKernel", 20, 25),
        (1, "kernel", "k", 30, 90, {"launched_by": 2, "queued": 20, "thread": 1}),
        (2, "host", "cudaDeviceSynchronize", 40, 95),
    ]
    return trace_of(rows, lanes, **options)
