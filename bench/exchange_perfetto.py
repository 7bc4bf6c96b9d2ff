"""A million spans as a Perfetto file and back: seconds and megabytes, beside Perfetto's own Python builder on the same spans.

The first trace holds nothing but spans; the second one has half as many kernels, each with the call that launched it, a flow
from there, and how it was launched. Perfetto's builder writes names, times and tracks alone, and what it wrote is read as a
file of others. Figures are medians of the rounds; where there is one round alone, it says so.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench._common import median_seconds, report
from bench._traces import make_trace
from gpustreamlab import Trace
from gpustreamlab.exchange._pftrace import read_pftrace
from gpustreamlab.exchange._pftrace_write import write_pftrace
from gpustreamlab.model import SPAN_KINDS, Edges, Lane, WorkDetail
from gpustreamlab.typing import CaptureTier, LaneKind, SpanKind

NEEDS_GPU = False
SPAN_COUNT = 1_000_000
ROUNDS = 3


def main(argv: list[str] | None = None) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, trace in (("spans", make_trace(SPAN_COUNT)), ("calls and kernels", make_launches(SPAN_COUNT // 2))):
            path = Path(folder) / "run.pftrace"
            rows.append(_row(f"{name}: write", partial(write_pftrace, trace, path), path))
            rows.append(_row(f"{name}: read", partial(read_pftrace, path), path))
            packed = path.with_suffix(".pftrace.gz")
            rows.append(_row(f"{name}: write, packed", partial(write_pftrace, trace, packed), packed))
        began = time.perf_counter()
        content = built_by_perfetto(make_trace(SPAN_COUNT))
        seconds = time.perf_counter() - began
        packed_mb = len(gzip.compress(content, 6, mtime=0)) / 1e6
        rows.append({"work": "Perfetto's builder (1 round)", "s": seconds, "MB": len(content) / 1e6, "MB packed": packed_mb})
        path.write_bytes(content)
        rows.append(_row("what it wrote: read", partial(read_pftrace, path), path))
    report(f"{SPAN_COUNT:,} spans as a Perfetto file (median of {ROUNDS} rounds)", rows, argv)


def make_launches(kernel_count: int) -> Trace:
    """Return kernels in 16 streams, each launched by a call of one thread, with what a trace of kernels has."""
    work = make_trace(kernel_count)
    rng = np.random.default_rng(1)
    call_start_ns = np.sort(rng.integers(0, int(work.end_ns.max()), kernel_count))
    start_ns = np.maximum(work.start_ns, 0)
    zeros, ones = np.zeros(kernel_count, np.int64), np.ones(kernel_count, np.int64)
    details = tuple(
        WorkDetail(full_name=f"void gemm<float, {k}>(float*)", grid=(k + 1, 1, 1), block=(256, 1, 1)) for k in range(40)
    )
    detail = rng.integers(0, len(details), kernel_count)
    call_end_ns = np.append(call_start_ns[1:], call_start_ns[-1] + 9)

    def both(calls: Any, kernels: Any) -> Any:
        return np.concatenate((calls, kernels))

    joined = replace(
        work,
        start_ns=both(call_start_ns, start_ns),
        end_ns=both(call_end_ns, work.end_ns),
        queued_ns=both(call_start_ns, np.minimum(call_start_ns, start_ns)),
        lane=both(zeros + len(work.lanes), work.lane),
        name=both(zeros, work.name),
        kind=both(ones * SPAN_KINDS.index(SpanKind.HOST), ones * SPAN_KINDS.index(SpanKind.KERNEL)),
        parent=both(-ones, -ones),
        thread=both(zeros, zeros),
        partition=both(-ones, -ones),
        lanes=(*work.lanes, Lane(name="host: MainThread", kind=LaneKind.HOST)),
        extra={
            "detail": both(-ones, detail).astype(np.int32),
            "correlation": both(np.arange(kernel_count), np.arange(kernel_count)),
            "grid_blocks": both(zeros, detail + 1),
        },
        details=details,
        edges=Edges(
            source=np.arange(kernel_count),
            target=np.arange(kernel_count, 2 * kernel_count),
            kind=np.ones(kernel_count, np.int8),
        ),
        metadata=replace(work.metadata, tier=CaptureTier.KERNELS),
    )
    return joined[np.argsort(joined.start_ns, kind="stable")]


def built_by_perfetto(trace: Trace) -> bytes:
    """Return the spans as Perfetto's own Python builder writes them."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    for code, lane in enumerate(trace.lanes, 1):
        track = builder.add_packet().track_descriptor
        track.uuid, track.name = code, lane.name
    first = builder.add_packet()
    first.trusted_packet_sequence_id, first.sequence_flags = 1, 1
    for code, name in enumerate(trace.names, 1):
        first.interned_data.event_names.add(iid=code, name=name)
    columns = (trace.start_ns, trace.end_ns, trace.lane + 1, trace.name + 1)
    for start_ns, end_ns, lane, name in zip(*(column.tolist() for column in columns), strict=True):
        for kind, ns in ((pb.TrackEvent.TYPE_SLICE_BEGIN, start_ns), (pb.TrackEvent.TYPE_SLICE_END, end_ns)):
            packet = builder.add_packet()
            packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = ns, 1, 2
            packet.track_event.type, packet.track_event.track_uuid = kind, lane
            if kind == pb.TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name_iid = name
    content: bytes = builder.serialize()
    return content


def _row(name: str, work: Callable[[], object], path: Path) -> dict[str, Any]:
    seconds = median_seconds(work, rounds=ROUNDS)
    packed = path.suffix == ".gz"
    size_mb = path.stat().st_size / 1e6
    return {"work": name, "s": round(seconds, 2), "MB packed" if packed else "MB": round(size_mb, 2)}


if __name__ == "__main__":
    main()
