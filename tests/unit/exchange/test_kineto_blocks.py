"""Files of PyTorch's profiler are read in blocks: of any layout, cut off or damaged, and with a bound on what is kept."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from decimal import Decimal

import msgspec
import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.exchange import _json_events
from gpustreamlab.exchange._json_events import LARGEST_TIME_NS, EventFile, all_nanoseconds
from gpustreamlab.exchange._kineto_events import Event, Facts
from tests.helpers.kineto import call, kineto, launched, span, two_streams, work, write

NASTY = [
    {"ph": "X", "name": "a },{ b", "args": {"name": [{"x": 1}, {"y": [{}, {}]}]}},
    {"ph": "M", "name": 'quoted " and \\ "},\n  {"', "args": {}},
    {"ph": "i", "name": "ä€😀", "tid": "stream 7"},
    {"ph": "X", "name": "", "cat": None, "ts": 1.25, "dur": 3},
]


def as_kineto(content):
    """Write as the profiler itself does: blanks, lines, and facts behind the events."""
    events = ",\n  ".join(json.dumps(event, indent=4)[:-2] + "\n  }" for event in content["traceEvents"])
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + events + '\n  ],\n  "baseTimeNanoseconds": 7000\n}\n'


LAYOUTS = {
    "profiler": as_kineto,
    "line": json.dumps,
    "indented": lambda content: json.dumps(content, indent=1),
    "compact": lambda content: json.dumps(content, separators=(",", ":"), ensure_ascii=False),
    "list": lambda content: json.dumps(content["traceEvents"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_bytes", [7, 100, 1 << 20])
def test_events_are_the_same_in_any_layout_and_block(tmp_path, monkeypatch, layout, block_bytes):
    monkeypatch.setattr(_json_events, "BLOCK_BYTES", block_bytes)
    chance = random.Random(block_bytes)
    events = [{**chance.choice(NASTY), "pid": place} for place in range(40)]
    path = tmp_path / "run.json"
    path.write_text(LAYOUTS[layout]({"deviceProperties": [{"id": 3}], "traceEvents": events, "baseTimeNanoseconds": 7000}))
    file = EventFile(path, Event, Facts)
    read = [event for block in file.blocks() for event in block]
    assert [(event.ph, event.name, event.pid, event.tid) for event in read] == [
        (event["ph"], event["name"], event["pid"], event.get("tid")) for event in events
    ]
    assert (file.event_count, file.damaged_count, file.cut) == (40, 0, "")
    assert file.facts.base_ns == (None if layout == "list" else 7000)


def oracle_ns(text):
    try:
        number = Decimal(text.strip('"')) * 1000
        value = int(number.to_integral_value()) if number.is_finite() and abs(number) < 1 << 70 else LARGEST_TIME_NS
    except ArithmeticError:
        return LARGEST_TIME_NS
    return value if abs(value) < LARGEST_TIME_NS else LARGEST_TIME_NS


@pytest.mark.parametrize("odd", [[], ["-1.5"], ["null", '"7"', "1e3"], ["0.0005"], ["9" * 19], ["2999999999999999.999"]])
def test_times_are_exact(odd):
    chance = random.Random(3)
    texts = [f"{chance.randrange(10 ** chance.randint(1, 15))}.{chance.randrange(1000):03}" for _ in range(200)]
    texts += [text.rstrip("0").rstrip(".") for text in texts] + ["2305843009213693.951", "1712195495505583.033"] + odd
    chance.shuffle(texts)
    assert all_nanoseconds([msgspec.Raw(text.encode()) for text in texts]).tolist() == [oracle_ns(text) for text in texts]


CUT = "what was whole of it is here, the rest is not known"


def test_what_was_whole_of_a_cut_file_is_kept_and_said(tmp_path):
    events = two_streams()["traceEvents"]
    text = json.dumps(two_streams())
    whole = json.dumps(kineto([]))[:-2]
    ends = np.cumsum([len(whole), *(len(json.dumps(event)) + 2 for event in events)])[1:] - 2
    path, chance = tmp_path / "run.json", random.Random(1)
    for cut in [chance.randrange(len(whole) + 400, len(text) - 2) for _ in range(30)]:
        path.write_text(text[:cut])
        trace = gsl.load_trace(path)
        assert f" of {(ends <= cut).sum()} events" in trace.metadata.imported
        assert trace.metadata.recovery_note == f"it ends within its events: {CUT}"
        assert trace.metadata.doubt.startswith(f"The trace is cut short: it ends within its events: {CUT}.")
    path.write_text(text[:-1])
    assert "it cannot be read behind its events" in gsl.load_trace(path).metadata.recovery_note


def test_what_can_be_unpacked_of_a_cut_or_damaged_file_is_kept_and_said(tmp_path):
    content = kineto([work(at, 5, f"kernel {at * 7919 % 1009}", stream=7, correlation=at) for at in range(1, 400)])
    packed, path = gzip.compress(json.dumps(content).encode(), mtime=0), tmp_path / "run.json.gz"
    for cut in range(1000, len(packed), 900):
        path.write_bytes(packed[:cut])
        trace, unpacked = gsl.load_trace(path), zlib.decompressobj(31).decompress(packed[:cut])
        assert abs(len(trace) - unpacked.count(b"}}")) <= 1
        assert trace.metadata.recovery_note == f"it cannot be unpacked to its end (it ends early): {CUT}"
    path.write_bytes(gzip.compress(json.dumps(content).encode()[:999]) + gzip.compress(json.dumps(content).encode()[999:]))
    assert len(gsl.load_trace(path)) == 399


@pytest.mark.parametrize("damage", ['{"ph": "X", "name": ', "7", "{{}}", '{"name": "\\x"}', '"}, {"', "[1, {}]"])
def test_damage_in_the_middle_costs_what_it_hits(tmp_path, damage):
    events = [json.dumps(work(at, 5, stream=7, correlation=at)) for at in range(20)]
    path = tmp_path / "run.json"
    path.write_text('{"traceEvents": [' + ", ".join([*events[:9], damage, *events[9:]]) + '], "distributedInfo": {"rank": 3}}')
    trace = gsl.load_trace(path)
    assert len(trace) >= 19  # one may be within a text that was opened
    assert trace.metadata.title == "rank 3"
    assert "damaged" in trace.metadata.imported


def test_damage_before_the_events_costs_what_stands_there(tmp_path):
    text = json.dumps(two_streams()).replace("1700000000000000000,", "17000 00000,")
    (tmp_path / "run.json").write_text(text)
    trace = gsl.load_trace(tmp_path / "run.json")
    assert len(trace) == 23
    assert trace.metadata.recovery_note == f"it cannot be read before its events: {CUT}"


def test_of_a_key_that_is_there_twice_the_last_counts(tmp_path):
    text = json.dumps(kineto([work(0, 5, stream=7, correlation=1)])).replace('"stream": 7', '"stream": 7, "stream": 9')
    (tmp_path / "run.json").write_text(text)
    assert [lane.name for lane in gsl.load_trace(tmp_path / "run.json").lanes] == ["stream 9"]


def test_values_of_another_kind_count_as_none(tmp_path):
    odd = {**work(0, 5, "gemm", stream=7, correlation="x", grid=[1, 2], device=1 << 70, context=2.5), "pid": [3]}
    path = write(tmp_path / "run.json", kineto([odd, work(6, 5, stream=7, correlation=2)]))
    trace = gsl.load_trace(path)
    assert [lane.key for lane in trace.lanes] == [(0, 0, 7), (0, 1, 7)]
    assert trace.extra["grid_blocks"].tolist() == [0, 128]


def test_too_large_an_event_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(_json_events, "BLOCK_BYTES", 512)
    monkeypatch.setattr(_json_events, "LARGEST_EVENT_BYTES", 4_000)
    large = {"ph": "X", "cat": "kernel", "name": "x" * 9_000, "ts": 0, "dur": 1}
    events = [work(0, 5, stream=7, correlation=1), large, *(work(at, 5, stream=7, correlation=at) for at in range(6, 30))]
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(events)))
    assert len(trace) >= 24
    assert "damaged" in trace.metadata.imported


def test_work_that_begins_before_its_call_is_said(tmp_path):
    events = [*launched(5, 9, 8, stream=7, correlation=1), *launched(40, 9, 20, stream=7, correlation=2)]
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(events)))
    (doubt,) = trace.quality().doubts
    assert (doubt.check, doubt.record_count, doubt.of, doubt.worst_ns) == ("clocks", 1, 2, 3_000)
    assert trace.metadata.doubt == doubt.text


def test_newest_rows_of_waits_and_events_are_no_work(tmp_path):
    def row(cat, name, tid, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": 20, "dur": 9, "args": args}

    run = [*launched(5, 9, 1, stream=7, correlation=1), call(10, 30, "cudaStreamSynchronize", correlation=5)]
    newest = [
        row("cuda_sync", "Stream Sync", 1_000_007, cuda_sync_kind="Stream Sync", correlation=5, device=0, context=1),
        row("cuda_sync", "Event Sync", 1, cuda_sync_kind="Event Sync", stream=-1, correlation=6, device=0, context=1),
        row("cuda_event", "CUDA Event Record", 7, event_id=3, stream=7, correlation=4, device=0, context=1),
    ]
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(run + newest)))
    assert [lane.name for lane in trace.lanes] == ["stream 7", "host: thread 100"]
    assert len(trace) == 3
    assert trace.metadata.imported.endswith("of 6 events; not read: 1 cuda_event")
    assert [trace.names[trace.name[row]] for row in trace.host_waits().row] == ["cudaStreamSynchronize"]


def test_nodes_of_a_graph_have_their_places(tmp_path):
    ids = {20: (3 << 32) + 5, 30: (3 << 32) + 2, 40: (3 << 32) + 9}
    nodes = [work(at, 5, stream=7, correlation=1, **{"graph id": 3, "graph node id": node}) for at, node in ids.items()]
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto([call(0, 5, "cudaGraphLaunch", correlation=1), *nodes])))
    found = trace.extra["detail"][trace.kind == 1]
    assert [(trace.details[code].graph, trace.details[code].node) for code in found.tolist()] == [(3, 1), (3, 0), (3, 2)]


@pytest.mark.parametrize("backend", ["nccl", None])
def test_the_rank_is_told(tmp_path, backend):
    path = write(
        tmp_path / "r.json", kineto([span(0, 1, "x")], distributedInfo={"rank": 1, "world_size": 8, "backend": backend})
    )
    assert gsl.load_trace(path).metadata.title == ("rank 1 of 8, nccl" if backend else "rank 1 of 8")


def test_a_user_s_range_covers_what_was_launched_in_it_on_any_stream(tmp_path):
    rows = [span(0, 50, "step", "user_annotation"), *launched(90, 9, 3, stream=7, correlation=1)]
    rows += [*launched(95, 20, 40, stream=9, correlation=2), *launched(120, 5, 60, stream=9, correlation=3)]
    trace = gsl.load_trace(write(tmp_path / "run.json", kineto(rows)))
    step = trace.names.index("step")
    (row,) = np.flatnonzero(trace.name == step)
    assert [int(trace.extra[name][row]) for name in ("work_start_ns", "work_end_ns", "work_count")] == [90_000, 115_000, 2]
