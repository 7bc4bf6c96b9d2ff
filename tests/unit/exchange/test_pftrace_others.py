"""Perfetto files of others, and damaged ones, become traces or errors of our own."""

from __future__ import annotations

import gzip
import sys
import zlib
from functools import partial

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import gpustreamlab as gsl
from gpustreamlab._util import host
from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange import find_format
from gpustreamlab.exchange._formats import is_pftrace
from gpustreamlab.typing import LaneKind
from tests.unit.exchange.test_pftrace import assert_all_same, random_trace

read_pftrace = partial(gsl.load_trace, format="perfetto")

BEGIN, END, INSTANT, COUNTER = (
    getattr(pb.TrackEvent, f"TYPE_{name}") for name in ("SLICE_BEGIN", "SLICE_END", "INSTANT", "COUNTER")
)
BOOTTIME, MONOTONIC, REALTIME = 6, 3, 1


class File:
    """A file that others could have written, made with Perfetto's own messages."""

    def __init__(self):
        self.trace = pb.Trace()

    def packet(self, *, sequence=1, **fields):
        return self.trace.packet.add(trusted_packet_sequence_id=sequence, **fields)

    def track(self, uuid, name="", *, parent=0, thread=None, sequence=1):
        track = self.packet(sequence=sequence).track_descriptor
        track.uuid, track.parent_uuid = uuid, parent
        if thread:
            track.thread.pid, track.thread.tid, track.thread.thread_name = 5, 6, thread
        else:
            track.name = name
        return track

    def event(self, kind, ns, uuid, name="", *, category="cat", sequence=1, **fields):
        packet = self.packet(sequence=sequence, timestamp=ns)
        event = packet.track_event
        event.type, event.track_uuid = kind, uuid
        if name:
            event.name = name
            event.categories.append(category)
        for field, value in fields.items():
            target = getattr(event, field)
            target.extend(value) if isinstance(value, list) else None
        return packet

    def clocks(self, *, sequence=1, primary=None, **times):
        snapshot = self.packet(sequence=sequence).clock_snapshot
        for name, ns in times.items():
            snapshot.clocks.add(clock_id=int(name.strip("_")), timestamp=ns)
        if primary:
            snapshot.primary_trace_clock = primary
        return snapshot

    def read(self, folder):
        path = folder / "others.pftrace"
        path.write_bytes(self.trace.SerializeToString())
        return read_pftrace(path)


@pytest.fixture
def file():
    return File()


def spans(trace):
    """Return lane, name, start and end of spans, in their order."""
    columns = (trace.lane, trace.name, trace.start_ns, trace.end_ns)
    return [
        (trace.lanes[lane].name, trace.names[name], start, end)
        for lane, name, start, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def test_slices_of_threads_are_annotations_that_nest(file, tmp_path):
    file.track(1, thread="main")
    file.track(2, "async", parent=1)
    for kind, ns, uuid, name in [
        (BEGIN, 0, 1, "a"),
        (BEGIN, 10, 1, "b"),
        (END, 20, 1, ""),
        (INSTANT, 25, 2, "i"),
        (END, 30, 1, ""),
    ]:
        file.event(kind, ns, uuid, name)
    trace = file.read(tmp_path)
    assert spans(trace) == [("host: main", "a", 0, 30), ("host: main", "b", 10, 20), ("host: main: async", "i", 25, 25)]
    assert trace.parent.tolist() == [-1, 0, -1]
    assert trace.metadata.imported == "3 slices and instants of 7 packets"
    assert "holds no work of a GPU" in trace.metadata.missing[0]


def test_ends_that_end_nothing_and_slices_without_end_are_counted(file, tmp_path):
    for kind, ns, name in [
        (END, 0, ""),
        (BEGIN, 5, "a"),
        (END, 8, ""),
        (END, 9, ""),
        (BEGIN, 10, "open"),
        (BEGIN, 12, "b"),
        (END, 20, ""),
    ]:
        file.event(kind, ns, 1, name)
    trace = file.read(tmp_path)
    assert [span[1:] for span in spans(trace)] == [("a", 5, 8), ("open", 10, 20), ("b", 12, 20)]
    assert "1 slices have no end" in trace.metadata.imported
    assert "2 ends end nothing" in trace.metadata.imported


def test_the_end_of_one_moment_comes_before_the_next_beginning_as_in_the_file(file, tmp_path):
    for kind, ns, name in [(BEGIN, 0, "a"), (END, 5, ""), (BEGIN, 5, "b"), (END, 7, "")]:
        file.event(kind, ns, 1, name)
    assert [span[1:] for span in spans(file.read(tmp_path))] == [("a", 0, 5), ("b", 5, 7)]


def test_numbers_of_names_hold_until_a_sequence_starts_anew(file, tmp_path):
    for sequence, first, name in [(1, 0, "a"), (2, 1, "b"), (1, 10, "c")]:
        packet = file.packet(sequence=sequence, sequence_flags=1)
        packet.interned_data.event_names.add(iid=7, name=name)
        packet.trace_packet_defaults.track_event_defaults.track_uuid = sequence
        for kind, ns in ((BEGIN, first), (END, first + 4)):
            packet = file.packet(sequence=sequence, timestamp=ns, sequence_flags=2)
            packet.track_event.type = kind
            packet.track_event.name_iid = 7
    assert [(name, start) for _, name, start, _ in spans(file.read(tmp_path))] == [("a", 0), ("b", 1), ("c", 10)]


def test_events_behind_lost_packets_are_refused_until_names_are_said_anew(file, tmp_path):
    file.event(INSTANT, 1, 1, "kept")
    packet = file.event(INSTANT, 2, 1, "")
    packet.sequence_flags, packet.track_event.name_iid = 2, 1
    packet = file.packet(sequence_flags=1)
    packet.interned_data.event_names.add(iid=1, name="known")
    packet = file.event(INSTANT, 3, 1, "")
    packet.sequence_flags, packet.track_event.name_iid = 2, 1
    packet = file.event(INSTANT, 4, 1, "")
    packet.previous_packet_dropped, packet.sequence_flags, packet.track_event.name_iid = 1, 2, 1
    trace = file.read(tmp_path)
    assert [(name, start) for _, name, start, _ in spans(trace)] == [("kept", 1), ("known", 3)]
    assert "2 events whose names are lost" in trace.metadata.imported


def test_clocks_are_brought_together_by_snapshots(file, tmp_path):
    file.clocks(_6=1_000, _3=400, _1=1_700_000_000_000_001_000)
    file.clocks(_6=2_000, _3=1_500)
    for ns, clock in [(100, 0), (500, MONOTONIC), (1_600, MONOTONIC), (1_700_000_000_000_001_005, REALTIME)]:
        file.event(INSTANT, ns, 1, f"{clock}").timestamp_clock_id = clock
    file.event(INSTANT, 5, 1, "unknown").timestamp_clock_id = 40
    trace = file.read(tmp_path)
    assert [(name, start) for _, name, start, _ in spans(trace)] == [("0", 100), ("1", 1_005), ("3", 1_100), ("3", 2_100)]
    assert trace.metadata.epoch_unix_ns == 1_700_000_000_000_000_000
    assert "1 events whose time is not told" in trace.metadata.imported


def test_a_clock_of_one_sequence_counts_from_packet_to_packet(file, tmp_path):
    packet = file.packet(sequence_flags=1)
    packet.trace_packet_defaults.timestamp_clock_id = 64
    snapshot = file.clocks(_6=5_000)
    snapshot.clocks.add(clock_id=64, timestamp=7, is_incremental=True, unit_multiplier_ns=1_000)
    for kind, lasts in ((BEGIN, 1), (END, 3), (BEGIN, 0), (END, 2)):
        file.event(kind, lasts, 1, "a" if kind == BEGIN else "")
    assert [span[2:] for span in spans(file.read(tmp_path))] == [(6_000, 9_000), (9_000, 11_000)]


def test_times_since_1970_count_from_the_first(file, tmp_path):
    first_ns = 1_712_195_495_519_689_047
    for ns in (first_ns, first_ns + 1):
        file.event(INSTANT, ns, 1, "a")
    trace = file.read(tmp_path)
    assert (trace.start_ns.tolist(), trace.metadata.epoch_unix_ns) == ([0, 1], first_ns)


def test_flows_from_a_thread_to_a_gpu_are_launches(file, tmp_path):
    file.track(1, thread="main")
    for uuid, ns, category, flows in [
        (1, 0, "cpu_op", {"flow_ids": [4]}),
        (2, 10, "kernel", {"terminating_flow_ids": [4], "flow_ids": [9]}),
        (3, 40, "gpu_memcpy", {"terminating_flow_ids": [9]}),
    ]:
        file.event(BEGIN, ns, uuid, category, category=category, **flows)
        file.event(END, ns + 5, uuid)
    trace = file.read(tmp_path)
    assert [lane.kind for lane in trace.lanes] == [LaneKind.HOST, LaneKind.STREAM, LaneKind.STREAM]
    launch, wait = trace.edges.select("launch"), trace.edges.select("wait")
    assert [(edges.source.tolist(), edges.target.tolist()) for edges in (launch, wait)] == [([0], [1]), ([1], [2])]
    assert trace.queued_ns.tolist() == [0, 0, 40]
    assert trace.kind.tolist() == [7, 1, 2]


def test_work_of_gpus_with_its_own_specifications(file, tmp_path):
    packet = file.packet(timestamp=100)
    stage = packet.gpu_render_stage_event
    for names, target in ((("copy engine", "compute"), stage.specifications.hw_queue), (("gemm",), stage.specifications.stage)):
        for name in names:
            target.add(name=name)
    for gpu, ns in ((0, 100), (1, 150)):
        stage = file.packet(timestamp=ns).gpu_render_stage_event
        stage.gpu_id, stage.hw_queue_id, stage.stage_id, stage.duration = gpu, 1, 0, 60
    trace = file.read(tmp_path)
    assert spans(trace) == [("GPU 0 compute", "gemm", 100, 160), ("GPU 1 compute", "gemm", 150, 210)]
    assert [lane.device for lane in trace.lanes] == [0, 1]
    assert "1 render stages without a queue or a duration" in trace.metadata.imported


def test_counters_have_their_units_and_lanes(file, tmp_path):
    file.track(1, thread="main")
    file.track(2, "memory", parent=1).counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
    track = file.track(3, "added")
    track.counter.is_incremental, track.counter.unit_multiplier = True, 10
    file.event(INSTANT, 0, 1, "a")
    for ns, uuid, value in [(1, 2, -7), (2, 3, 1), (3, 3, 2)]:
        file.event(COUNTER, ns, uuid).track_event.counter_value = value
    counters = file.read(tmp_path).counters
    assert counters.names == ("memory_bytes", "added")
    assert (counters.value.tolist(), counters.lane.tolist(), counters.time_ns.tolist()) == ([-7, 10, 30], [0, 1, 1], [1, 2, 3])


def test_packed_packets_and_packed_files_are_unpacked(file, tmp_path):
    for ns in range(3):
        file.event(INSTANT, ns, 1, "a")
    inner = file.trace.SerializeToString()
    outer = File()
    outer.packet(timestamp=0)
    outer.trace.packet.add(compressed_packets=zlib.compress(inner))
    outer.event(INSTANT, 9, 1, "a")
    assert outer.read(tmp_path).start_ns.tolist() == [0, 1, 2, 9]
    (tmp_path / "run.gz").write_bytes(gzip.compress(inner))
    assert read_pftrace(tmp_path / "run.gz").start_ns.tolist() == [0, 1, 2]


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(file, tmp_path):
    for ns in range(200):
        file.event(INSTANT, ns, 1, f"name {ns}")
    content = file.trace.SerializeToString()
    (tmp_path / "cut").write_bytes(content[:-5])
    trace = read_pftrace(tmp_path / "cut")
    assert len(trace) == 199
    assert "bytes at its end are no whole packet" in trace.metadata.recovery_note
    packed = gzip.compress(content)
    (tmp_path / "cut.gz").write_bytes(packed[:-9])
    assert "it cannot be unpacked to its end" in read_pftrace(tmp_path / "cut.gz").metadata.doubt


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}", b'\n{"traceEvents": []}' * 9, b"\n\n\n\n", b"PAR1", b"<html>", b"\x0a\x00", b"\x1f\x8b"]
)
def test_what_is_none_is_refused(tmp_path, content):
    path = tmp_path / "run"
    path.write_bytes(content)
    assert not is_pftrace(content)
    with pytest.raises(TraceFileError, match="holds no|cannot be|is empty"):
        read_pftrace(path)


def test_too_large_a_file_is_refused(file, tmp_path, monkeypatch):
    for uuid in range(1, 9):
        file.event(INSTANT, uuid, uuid, "a")
    monkeypatch.setattr(host, "LARGEST_UNPACKED_BYTES", 10)
    with pytest.raises(TraceFileError, match="larger than"):
        file.read(tmp_path)


def test_a_file_of_ours_comes_back_where_it_was_cut_and_says_so_where_its_own_data_is_damaged(tmp_path):
    path, trace = tmp_path / "run.pftrace", random_trace(0)
    trace.save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    assert_all_same(read_pftrace(path), trace)
    place = content.index(b"PAR1") + 50
    path.write_bytes(content[:place] + bytes(9) + content[place + 9 :])
    with pytest.raises(TraceFileError, match="which gpustreamlab wrote, cannot be read as a trace"):
        read_pftrace(path)


def a_file_of_others():
    file = File()
    packet = file.packet(sequence_flags=1)
    packet.interned_data.event_names.add(iid=7, name="a")
    packet.trace_packet_defaults.timestamp_clock_id = 64
    packet.trace_packet_defaults.track_event_defaults.track_uuid = 1
    file.clocks(_6=5_000, _3=70).clocks.add(clock_id=64, timestamp=7, is_incremental=True, unit_multiplier_ns=1_000)
    file.track(1, thread="main")
    file.track(3, "added").counter.is_incremental = True
    for place in range(12):
        file.event(BEGIN, place, 1 + place % 2, "b", category="kernel", flow_ids=[place % 3])
        file.event(END, place + 2, 1 + place % 2, sequence=1 + place % 3)
        file.event(COUNTER, place, 3).track_event.counter_value = place
        stage = file.packet(timestamp=place).gpu_render_stage_event
        stage.hw_queue_iid, stage.duration = 1, place
    return file.trace.SerializeToString()


def test_what_we_wrote_is_read_as_a_file_of_others_without_our_own_part(tmp_path):
    path = tmp_path / "run.pftrace"
    trace = random_trace(1, 50, epoch_ns=0)
    trace.save(path)
    assert_all_same(read_pftrace(path), trace)
    whole = pb.Trace.FromString(path.read_bytes())
    for packet in whole.packet:
        packet.DiscardUnknownFields()
    path.write_bytes(whole.SerializeToString())
    other = read_pftrace(path)
    kept = sorted(zip(trace.start_ns.tolist(), trace.end_ns.tolist(), strict=True))
    shift_ns = int(other.start_ns.min()) - int(trace.start_ns.min())
    markers = [(moment.time_ns, moment.time_ns) for moment in trace.markers]
    assert sorted(zip((other.start_ns - shift_ns).tolist(), (other.end_ns - shift_ns).tolist(), strict=True)) == sorted(
        kept + markers
    )


def test_without_perfetto_s_package_our_own_files_are_read_and_others_say_what_to_install(file, tmp_path, monkeypatch):
    path, trace = tmp_path / "run.pftrace", random_trace(0, 20)
    trace.save(path)
    file.event(INSTANT, 5, 1, "a")
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    assert_all_same(read_pftrace(path), trace)
    for work in (lambda: file.read(tmp_path), lambda: trace.save(path)):
        with pytest.raises(MissingExtraError, match=r"pip install .*\[perfetto\]"):
            work()
    assert find_format(tmp_path / "others.pftrace") == "perfetto"
