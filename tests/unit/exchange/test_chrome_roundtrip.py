"""What is written as Chrome's JSON comes back as it was, and viewers lose nothing of it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange import _chrome_write
from gpustreamlab.model import Counters, Edges
from tests.helpers.kernel_traces import kernel_trace, random_kernel_trace
from tests.helpers.trace_processor import PROBLEMS, TraceProcessor
from tests.helpers.traces import (
    evil_trace,
    nested_trace,
    partition_trace,
    random_trace,
    repartition_trace,
)
from tests.unit.model.equality import assert_same_trace

SLICES = (
    "select s.ts, s.dur, s.name, s.category, t.name as thread, p.name as process from slice s join thread_track k on "
    "s.track_id = k.id join thread t using (utid) join process p using (upid)"
)
FLOWS = (
    "select a.ts as ts, a.dur as dur, a.name as name, b.ts as next_ts, b.dur as next_dur, b.name as next_name "
    "from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"
)

read_chrome = partial(gsl.load_trace, format="chrome")


def written(trace, path):
    """Write a trace; return the object that the file holds."""
    trace.save(path)
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def overlapping(count=300, *, lane_count=3, within_ns=20_000, first_ns=0):
    """Return spans of any length in few lanes, with edges between any two."""
    rng = np.random.default_rng(0)
    start_ns = rng.integers(0, within_ns, count) + first_ns
    end_ns = start_ns + rng.integers(0, 3_000, count) * (rng.random(count) > 0.1)
    source, target = rng.integers(0, count, (2, count // 3))
    edges = Edges(source=source, target=target, kind=rng.integers(0, 2, count // 3))
    return replace(random_trace(count, lane_count), start_ns=start_ns, end_ns=end_ns, edges=edges)


@pytest.mark.parametrize("make", [kernel_trace, partition_trace, repartition_trace, nested_trace, evil_trace, overlapping])
@pytest.mark.parametrize("name", ["run.json", "RUN.JSON.GZ"])
def test_traces_of_all_sorts_come_back_in_small_blocks_too(tmp_path, monkeypatch, make, name):
    monkeypatch.setattr(_chrome_write, "_BLOCK_ROWS", 17)
    trace = make()
    trace.save(tmp_path / name)
    read = read_chrome(tmp_path / name)
    assert_same_trace(read, trace)
    assert read.details == trace.details
    assert not read.metadata.recovery_note


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15), st.integers(0, 1)), max_size=25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_spans_of_one_thread_nest_or_follow_each_other(tmp_path, spans):
    start_ns, lasts_ns, lane = np.array(spans, np.int64).reshape(-1, 3).T
    trace = replace(random_trace(len(spans), 2), start_ns=start_ns, end_ns=start_ns + lasts_ns, lane=lane)
    threads = defaultdict(list)
    for event in written(trace, tmp_path / "run.json")["traceEvents"]:
        if event["ph"] == "X":
            assert event["tid"] >= _chrome_write.FIRST_THREAD
            start = round(event["ts"] * 1_000)
            threads[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1_000)))
    assert sum(map(len, threads.values())) == len(spans)
    for mine in threads.values():
        for place, (start, end) in enumerate(mine):
            for other_start, other_end in mine[place + 1 :]:
                nests = (start <= other_start and other_end <= end) or (other_start <= start and end <= other_end)
                assert nests or end <= other_start or other_end <= start


def test_times_are_decimals_of_three_digits_since_the_first_moment(tmp_path):
    epoch_ns = 1_712_195_495_505_583_033
    trace = overlapping()
    late = replace(
        trace, start_ns=trace.start_ns + epoch_ns, end_ns=trace.end_ns + epoch_ns, queued_ns=trace.queued_ns + epoch_ns
    )
    late = replace(late, metadata=replace(trace.metadata, epoch_unix_ns=7))
    top = written(late, tmp_path / "run.json")
    assert top["baseTimeNanoseconds"] == 7 + int(late.start_ns.min())
    rows = [event for event in top["traceEvents"] if event["ph"] == "X"]
    assert [round(event["ts"] * 1_000) for event in rows] == (trace.start_ns - trace.start_ns.min()).tolist()
    text = (tmp_path / "run.json").read_text()
    spans = text[text.index('{"ph":"X"') :]
    assert all(len(part.split(",")[0].partition(".")[2].rstrip("}\n ]")) == 3 for part in spans.split('"ts":')[1:])


def test_lanes_stand_in_our_order_and_partitions_are_groups(tmp_path):
    trace = partition_trace()
    events = written(trace, tmp_path / "run.json")["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = [(names[event["pid"]], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    card = "GPU 0 NVIDIA H200 (simulated)"
    prefill, decode = f"{card}, partition prefill (96 SMs)", f"{card}, partition decode (36 SMs)"
    assert threads == [(card, "logging"), (prefill, "prefill"), (decode, "decode"), (prefill, "kv")]
    order = [event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"]
    assert order == [0, 1, 2, 3]
    assert len({event["tid"] for event in events if event["name"] == "thread_name"}) == 4


def test_a_span_tells_what_a_detail_does_and_where_it_ran(tmp_path):
    trace = kernel_trace()
    rows = [event for event in written(trace, tmp_path / "run.json")["traceEvents"] if event["ph"] == "X"]
    kernel = int(np.flatnonzero(trace.extra["grid_blocks"] > 0)[0])
    detail, args = trace.details[trace.extra["detail"][kernel]], rows[kernel]["args"]
    assert args["detail"]["full_name"] == detail.full_name
    assert args["detail"]["grid"] == list(detail.grid)
    assert args["detail"]["registers"] == detail.registers
    assert args["correlation"] == trace.extra["correlation"][kernel]
    assert args["thread"] == trace.threads[trace.thread[kernel]]
    assert rows[kernel]["cat"] == "kernel"


def test_flows_stand_behind_their_spans_and_go_forward(tmp_path):
    trace = overlapping()
    begins, ends, last = {}, {}, None
    rows = 0
    for event in written(trace, tmp_path / "run.json")["traceEvents"]:
        if event["ph"] == "X":
            last, rows = event, rows + 1
        elif event["ph"] in "sf":
            assert (event["pid"], event["tid"], event["ts"]) == (last["pid"], last["tid"], last["ts"])
            (begins if event["ph"] == "s" else ends)[event["id"]] = rows - 1, event["ts"]
    assert len(begins) == len(ends) > 30
    for number, (row, ts) in begins.items():
        assert (row, ends[number][0]) == (trace.edges.source[number], trace.edges.target[number])
        assert ts < ends[number][1]


def test_markers_and_changes_of_the_layout_are_instants_of_all_lanes(tmp_path):
    trace = repartition_trace()
    instants = [event for event in written(trace, tmp_path / "run.json")["traceEvents"] if event["ph"] == "i"]
    assert [(event["s"], event["ts"], event["cat"]) for event in instants] == [("g", 1950.0, "layout"), ("g", 5950.0, "layout")]
    assert "decode 68 SMs" in instants[1]["name"]


def test_samples_that_are_no_numbers_are_no_values_for_viewers(tmp_path):
    counters = Counters(time_ns=[0, 5, 9], lane=[0, 1, 0], name=[0, 0, 0], value=[1.5, np.nan, -0.0], names=("pool_bytes",))
    trace = replace(random_trace(5, 2), counters=counters)
    rows = [event for event in written(trace, tmp_path / "run.json")["traceEvents"] if event["ph"] == "C"]
    assert [(row["name"], row["args"]) for row in rows] == [
        ("pool_bytes of stream 0", {"value": 1.5}),
        ("pool_bytes of stream 1", {}),
        ("pool_bytes of stream 0", {"value": 0.0}),
    ]
    assert_same_trace(read_chrome(tmp_path / "run.json"), trace)


def test_long_names_are_cut_in_events_and_whole_in_the_table(tmp_path):
    trace = replace(random_trace(40, 2, name_count=2), names=("x" * 5_000, "x" * 6_000))
    assert max(len(event["name"]) for event in written(trace, tmp_path / "run.json")["traceEvents"]) < 1_100
    assert read_chrome(tmp_path / "run.json").names == trace.names


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_that_was_cut_behind_its_own_data_comes_back(tmp_path, name):
    trace, path = kernel_trace(40), tmp_path / name
    trace.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    assert_same_trace(read_chrome(path), trace)
    path.write_bytes(data[:300])
    with pytest.raises(TraceFileError, match=r"run\.json.*cut off"):
        read_chrome(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: base64.b64encode(base64.b64decode(columns)[:-4] + b"PAR2").decode(),
        lambda columns: f"!{columns[1:]}",
        lambda columns: columns[:8] + columns,
    ],
    ids=["another end", "no base64", "twice"],
)
def test_a_file_that_was_changed_says_so(tmp_path, change):
    path = tmp_path / "run.json"
    nested_trace().save(path)
    text = path.read_text()
    (columns,) = re.findall(r'"(UEFSM[A-Za-z0-9+/]+=*)"', text)
    path.write_text(text.replace(columns, change(columns)))
    with pytest.raises(TraceFileError, match=r"run\.json'.*(cannot be read as a trace|is damaged)"):
        read_chrome(path)


@pytest.fixture(scope="module")
def engine():
    processor = TraceProcessor()
    yield processor
    processor.close()


@pytest.mark.parametrize(
    "make",
    [
        kernel_trace,
        nested_trace,
        partition_trace,
        repartition_trace,
        lambda: overlapping(2_000, lane_count=4, within_ns=10**6, first_ns=7_000_000_000_000_001),
        lambda: random_kernel_trace(3_000),
    ],
)
def test_the_engine_finds_every_span_flow_and_sample_exactly(tmp_path, engine, make):
    trace = make()
    trace.save(tmp_path / "run.json")
    engine.load((tmp_path / "run.json").read_bytes())
    assert engine.query(PROBLEMS) == []
    moments = [trace.start_ns, trace.counters.time_ns, np.array([one.time_ns for one in trace.layouts], np.int64)]
    first_ns = min(int(times.min()) for times in moments if len(times))
    start_ns, duration_ns = (trace.start_ns - first_ns).tolist(), trace.duration_ns.tolist()
    names = [trace.names[name] for name in trace.name]
    found = engine.query(SLICES)
    assert sorted(row[:3] for row in found) == sorted(zip(start_ns, duration_ns, names, strict=True))
    assert {row[4] for row in found} >= {trace.lanes[lane].name for lane in np.unique(trace.lane)}
    rows = list(zip(start_ns, duration_ns, names, strict=True))
    drawn = [
        (*rows[source], *rows[target])
        for source, target in zip(trace.edges.source.tolist(), trace.edges.target.tolist(), strict=True)
        if start_ns[source] < start_ns[target] and duration_ns[source] and duration_ns[target]
    ]
    assert sorted(engine.query(FLOWS)) == sorted(drawn)
    values = engine.query("select ts, value from counter")
    assert sorted(values) == sorted(
        zip((trace.counters.time_ns - first_ns).tolist(), trace.counters.value.tolist(), strict=True)
    )
