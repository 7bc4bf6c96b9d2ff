"""Traces become files that Perfetto's own engine reads to the nanosecond, and that come back exactly."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab.errors import TraceError
from gpustreamlab.model import (
    SPAN_KINDS,
    Counters,
    Device,
    Edges,
    Lane,
    Layout,
    LayoutChange,
    Marker,
    Partition,
    TraceMetadata,
    WorkDetail,
)
from gpustreamlab.typing import CaptureTier, LaneKind
from tests.helpers.trace_processor import PROBLEMS, SLICES, TraceProcessor
from tests.unit.model.equality import assert_same_trace

read_pftrace = partial(gsl.load_trace, format="perfetto")

EPOCH_NS = 1_712_195_495_519_689_047
NAMES = ("gemm", "", "kernel<float, (int)3>", "😀 relu\n\t\x01\x7f", "x" * 4_000, "名前", "a\x00b", "</script>")
LANES = (
    Lane(name="a", stream=7, partition="left", sm_count=64),
    Lane(name="a (2)", stream=8),
    Lane(name="host: 😀\n", kind=LaneKind.HOST),
    Lane(name="b", stream=9, device=1),
    Lane(name="empty", stream=10, device=1, partition="left"),
)
PARTITIONS = (Partition(name="left", requested_sms=60, granted_sms=64), Partition(name="r\x02", requested_sms=8, granted_sms=8))
DETAILS = (
    WorkDetail(full_name="void gemm<float>(float*)", grid=(128, 2, 1), block=(256, 1, 1), registers=32, graph=3, label="x"),
    WorkDetail(full_name=""),
    WorkDetail(full_name="copy 😀", static_shared_bytes=7),
)
EXTRA = {
    "detail": np.int32,
    "correlation": np.int64,
    "size_bytes": np.int64,
    "grid_blocks": np.int64,
    "work_start_ns": np.int64,
    "row": np.uint64,
    "share": np.float64,
    "small": np.int8,
    "half": np.float32,
}


@pytest.fixture(scope="module")
def engine():
    processor = TraceProcessor()
    yield processor
    processor.close()


def random_trace(seed: int, count: int = 60, *, epoch_ns: int = EPOCH_NS, scale_ns: int = 40, least: int = 0) -> Trace:
    """Return spans without any order: nested, overlapping, at once, of no time, before the trace's zero."""
    rng = np.random.default_rng(seed)
    start_ns = rng.integers(-scale_ns, scale_ns, count)
    lasts_ns = rng.integers(0, scale_ns // 2 + 1, count) * rng.integers(0, 2, count)
    detail = rng.integers(-1, len(DETAILS), count)
    extra = {name: rng.integers(least, 100, count).astype(dtype) for name, dtype in EXTRA.items()}
    extra |= {"detail": detail.astype(np.int32), "grid_blocks": np.array([256, 0, 7, -5])[detail]}
    extra["share"] = rng.random(count)
    parent = rng.integers(-1, count, count)
    edge_count = count // 2
    samples = count // 3
    value = rng.random(samples) * 1e12
    value[:1] = np.nan
    layout = Layout(partitions=PARTITIONS[:1], remainder_sms=68)
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + lasts_ns,
        queued_ns=start_ns - rng.integers(least, 20, count),
        lane=rng.integers(0, len(LANES) - 1, count),
        name=rng.integers(0, len(NAMES) - 1, count),
        kind=rng.integers(0, len(SPAN_KINDS), count),
        parent=np.where(parent == np.arange(count), -1, parent),
        thread=rng.integers(-1, 2, count),
        partition=rng.integers(-1, len(PARTITIONS), count),
        names=NAMES,
        lanes=LANES,
        threads=("Main", "😀"),
        partitions=PARTITIONS,
        layouts=(LayoutChange(time_ns=3, layout=layout),),
        markers=(Marker(time_ns=-5, text="mark 😀\n", kind="mark"), Marker(time_ns=7, text="", kind="cell")),
        extra=extra,
        details=DETAILS,
        edges=Edges(
            source=rng.integers(0, count, edge_count),
            target=rng.integers(0, count, edge_count),
            kind=rng.integers(0, 2, edge_count),
        ),
        counters=Counters(
            time_ns=rng.integers(-scale_ns, scale_ns, samples),
            lane=rng.integers(0, len(LANES), samples),
            name=rng.integers(0, 2, samples),
            value=value,
            names=("pool_bytes", "load", "unused_ns"),
        ),
        metadata=TraceMetadata(
            backend="cuda",
            device=Device(name="NVIDIA H200", sm_count=132),
            tier=CaptureTier.KERNELS,
            capture_windows=((-scale_ns, scale_ns),),
            epoch_unix_ns=epoch_ns,
            title="a title",
            missing=("this",),
        ),
    )


def round_trip(trace, path):
    trace.save(path)
    return read_pftrace(path)


def assert_all_same(got, wanted):
    assert_same_trace(got, wanted)
    assert got.details == wanted.details


def expected_slices(trace, *, shift_ns):
    """Return what the engine has to say, from the columns alone."""
    return Counter(
        (start + shift_ns, end - start, trace.names[name].partition("\x00")[0], SPAN_KINDS[kind].value)
        for start, end, name, kind in zip(
            trace.start_ns.tolist(), trace.end_ns.tolist(), trace.name.tolist(), trace.kind.tolist(), strict=True
        )
    )


SEEDS = st.integers(0, 1 << 32)


@settings(deadline=None, max_examples=25)
@given(
    SEEDS, st.integers(1, 80), st.sampled_from([0, EPOCH_NS, -5]), st.sampled_from([3, 40, 10**15]), st.sampled_from([0, -9])
)
def test_every_trace_comes_back_exactly(tmp_path_factory, seed, count, epoch_ns, scale_ns, least):
    trace = random_trace(seed, count, epoch_ns=epoch_ns, scale_ns=scale_ns, least=least)
    assert_all_same(round_trip(trace, tmp_path_factory.mktemp("run") / "run.pftrace"), trace)


@pytest.mark.parametrize("seed", range(3))
def test_perfetto_s_engine_finds_every_span_with_its_times(engine, tmp_path, seed):
    trace = random_trace(seed, 300, scale_ns=[40, 1_000, 10**12][seed])
    trace.save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    rows = engine.query(f"{SLICES} where t.name != 'markers'")
    assert Counter(row[:4] for row in rows) == expected_slices(trace, shift_ns=EPOCH_NS)
    assert engine.query(PROBLEMS) == []
    markers = engine.query(f"{SLICES} where t.name = 'markers' order by ts")
    assert [row[:4] for row in markers] == [(EPOCH_NS - 5, 0, "mark 😀\n", "mark"), (EPOCH_NS + 7, 0, "", "cell")]


def test_a_sub_lane_takes_what_would_change_the_times_of_others(engine, tmp_path):
    trace = Trace.from_columns(start_ns=[0, 500, 1_200], end_ns=[1_000, 1_500, 1_300], stream=["a"] * 3, name=["x", "y", "z"])
    trace.save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    rows = engine.query(f"{SLICES} order by s.ts")
    assert [row[:3] + row[4:] for row in rows] == [
        (0, 1_000, "x", "a", 0),
        (500, 1_000, "y", "a (2)", 0),
        (1_200, 100, "z", "a (2)", 1),
    ]


def test_flows_join_what_waited_with_what_it_waited_for(engine, tmp_path):
    trace = random_trace(5, 200)
    trace.save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    rows = engine.query(
        "select a.ts, a.dur, b.ts as to_ts, b.dur as to_dur from flow f "
        "join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in"
    )
    start_ns, lasts_ns = trace.start_ns + EPOCH_NS, trace.duration_ns
    source, target = trace.edges.source, trace.edges.target
    drawn = start_ns[source] < start_ns[target]
    columns = (start_ns[source], lasts_ns[source], start_ns[target], lasts_ns[target])
    assert Counter(rows) == Counter(zip(*(column[drawn].tolist() for column in columns), strict=True))
    assert 10 < drawn.sum() < len(drawn)


def test_counters_are_the_samples(engine, tmp_path):
    trace = Trace.from_columns(
        start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"], kind="kernel", sm_count=132, device="demo"
    )
    samples = Counters(time_ns=[10, 20, 5], lane=[0, 0, 1], name=[0, 0, 0], value=[1.5, 0, 7], names=("pool_bytes",))
    replace(trace, counters=samples).save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    rows = engine.query(
        "select t.name, p.name as parent, u.unit, c.ts, c.value from counter c join track t on t.id = c.track_id "
        "left join track p on p.id = t.parent_id join counter_track u on u.id = t.id order by t.name, p.name, c.ts"
    )
    assert rows == [
        ("pool_bytes", "compute", "bytes", 5, 7.0),
        ("pool_bytes", "copy", "bytes", 10, 1.5),
        ("pool_bytes", "copy", "bytes", 20, 0.0),
    ]


def test_tracks_are_grouped_by_device_and_partition_in_our_order(engine, tmp_path):
    random_trace(1, 40, scale_ns=10**6).save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    rows = engine.query(
        "select t.name, p.name as parent, extract_arg(t.source_arg_set_id, 'sibling_order_rank') as rank from track t "
        "left join track p on p.id = t.parent_id where t.type not like '%counter%' order by t.id"
    )
    places = {(name, parent) for name, parent, _ in rows}
    assert {("a", "partition left (64 SMs)"), ("a (2)", "GPU 0 NVIDIA H200"), ("host: 😀\n", "host"), ("b", "GPU 1")} <= places
    assert ("partition left (64 SMs)", "GPU 0 NVIDIA H200") in places
    assert all(rank is not None for *_, rank in rows)


def test_arguments_say_how_work_was_launched(engine, tmp_path):
    random_trace(2, 50).save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    found = dict(engine.query("select distinct key, coalesce(string_value, '') from args where key = 'debug.launch'"))
    assert found == {"debug.launch": "grid 128x2x1, block 256x1x1, 32 registers, graph 3"} or "7 B shared" in found.values()
    keys = {key for (key,) in engine.query("select distinct key from args where key like 'debug.%'")}
    assert keys == {"debug.full_name", "debug.launch", "debug.correlation", "debug.size_bytes", "debug.queued_before_ns"}


def test_a_packed_file_is_the_same_and_is_the_same_each_time(tmp_path):
    trace = random_trace(3)
    plain, packed, again = (tmp_path / name for name in ("run.pftrace", "run.pftrace.gz", "again.pftrace.gz"))
    for path in (plain, packed, again):
        trace.save(path)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()
    assert_all_same(read_pftrace(packed), trace)


@pytest.mark.parametrize("lanes", [(), LANES])
def test_a_trace_without_spans_comes_back(tmp_path, lanes):
    trace = random_trace(0)[:0]
    trace = replace(trace, lanes=lanes, counters=Counters(), edges=Edges(), extra={}, markers=())
    assert_all_same(round_trip(trace, tmp_path / "run.pftrace"), trace)


def test_names_of_thousands_of_lanes_and_flows_of_one_span(engine, tmp_path):
    count = 600
    trace = Trace.from_columns(start_ns=range(count), end_ns=[2 * count] * count, stream=map(str, range(count)))
    edges = Edges(source=[0] * (count - 1), target=range(1, count), kind=[0] * (count - 1))
    trace = replace(trace, edges=edges)
    assert_all_same(round_trip(trace, tmp_path / "run.pftrace"), trace)
    engine.load((tmp_path / "run.pftrace").read_bytes())
    assert engine.query("select count(*), count(distinct slice_in) from flow") == [(count - 1, count - 1)]
    assert engine.query(PROBLEMS) == []


def test_what_nests_deeper_than_the_engine_shows_is_not_lost(engine, tmp_path):
    count = 1_100
    trace = Trace.from_columns(start_ns=range(count), end_ns=range(3 * count, 2 * count, -1), stream=["a"] * count)
    trace.save(tmp_path / "run.pftrace")
    engine.load((tmp_path / "run.pftrace").read_bytes())
    assert Counter(row[:4] for row in engine.query(SLICES)) == expected_slices(trace, shift_ns=0)
    assert engine.query(PROBLEMS) == []


def test_times_beyond_what_a_file_holds_are_moved_or_refused(tmp_path):
    most = np.iinfo(np.int64).max
    late = Trace.from_columns(start_ns=[most - 10, -5 + most], end_ns=[most - 9, most], stream=["a", "b"])
    late = replace(late, metadata=replace(late.metadata, epoch_unix_ns=EPOCH_NS))
    early = Trace.from_columns(start_ns=[-most - 1], end_ns=[-most // 2 - 5], stream=["a"])
    for trace in (late, early):
        assert_all_same(round_trip(trace, tmp_path / "run.pftrace"), trace)
    wide = Trace.from_columns(start_ns=[-most], end_ns=[most], stream=["a"])
    with pytest.raises(TraceError, match=r"trace.between\(a, b\)"):
        wide.save(tmp_path / "wide.pftrace")
