"""A million spans as Perfetto's own Python builder writes them, read: seconds and megabytes. Medians of the rounds."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench._common import median_seconds, report
from bench._traces import make_trace
from gpustreamlab import Trace
from gpustreamlab.exchange._pftrace import read_pftrace

NEEDS_GPU = False
SPAN_COUNT = 1_000_000
ROUNDS = 3


def main(argv: list[str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pftrace"
        path.write_bytes(built_by_perfetto(make_trace(SPAN_COUNT)))
        seconds = median_seconds(partial(read_pftrace, path), rounds=ROUNDS)
        row = {"work": "what Perfetto's builder wrote: read", "s": round(seconds, 2), "MB": round(path.stat().st_size / 1e6, 2)}
    report(f"{SPAN_COUNT:,} spans as a Perfetto file (median of {ROUNDS} rounds)", [row], argv)


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


if __name__ == "__main__":
    main()
