"""JSON in Chrome's trace event format, of any writer."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange import _json_events
from gpustreamlab.exchange._chrome import slices_at
from gpustreamlab.exchange._frame import match_begins
from gpustreamlab.exchange._json_events import guess_writer
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS
from tests.helpers.kineto import two_streams

read_chrome = partial(gsl.load_trace, format="chrome")


def read(path, content):
    """Read what a file with this content tells: bytes, text, or a value for JSON."""
    data = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(data)
    return read_chrome(path)


def spans_of(trace):
    """Return (lane, name, kind, start, end) of each span."""
    return [
        (trace.lanes[lane].name, trace.names[name], SPAN_KINDS[kind].value, start, end)
        for lane, name, kind, start, end in zip(
            trace.lane.tolist(),
            trace.name.tolist(),
            trace.kind.tolist(),
            trace.start_ns.tolist(),
            trace.end_ns.tolist(),
            strict=True,
        )
    ]


def edges_of(trace):
    """Return (name, name, kind) of each edge."""
    edges = trace.edges
    return [
        (trace.names[trace.name[source]], trace.names[trace.name[target]], EDGE_KINDS[kind].value)
        for source, target, kind in zip(edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True)
    ]


def meta(what, name, *, pid, tid=None, **rest):
    return {"ph": "M", "pid": pid, "name": what, "args": {"name": name}} | ({} if tid is None else {"tid": tid}) | rest


def x(name, ts, dur, *, pid=1, tid=7, **args):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur} | ({"args": args} if args else {})


def jax_file():
    """Return a profile as XLA writes it: arguments are texts, and the list ends with an empty event."""
    kernel = "regs:32 static_shared:1024 dynamic_shared:0 grid:64,2,1 block:128,1,1 occ_pct:50"
    copy = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
    return {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [
            meta("process_name", "/device:GPU:0", pid=1),
            meta("process_name", "/device:GPU:1", pid=2),
            meta("process_name", "/host:CPU", pid=701),
            meta("thread_name", "Stream #17(Kernel)", pid=1, tid=17),
            meta("thread_name", "Stream #13(MemcpyH2D,Memset)", pid=1, tid=13),
            meta("thread_name", "XLA Ops", pid=1, tid=99),
            meta("thread_name", "Stream #17(Kernel)", pid=2, tid=17),
            meta("thread_name", "python", pid=701, tid=5),
            x("cuLaunchKernel", 10.0, 5.5, pid=701, tid=5, correlation_id="101", device_id="0"),
            x("PjitFunction(f)", 9.0, 30, pid=701, tid=5),
            x(
                "void gemm<float>(float*)",
                20.001,
                50.25,
                pid=1,
                tid=17,
                context_id="$$1",
                correlation_id="101",
                hlo_op="dot.3",
                hlo_module="jit_f",
                kernel_details=kernel,
            ),
            x("MemcpyH2D", 12, 3, pid=1, tid=13, correlation_id="102", memcpy_details=copy),
            x("Memset", 15, 1, pid=1, tid=13, correlation_id="103", Memset_details="kind:device num_bytes:512 async:1"),
            x("MemoryResidency", 0, 500, pid=1, tid=13, MemoryResidency_details="kind:device num_bytes:1 addr:0x0"),
            x("dot.3", 20.001, 50.25, pid=1, tid=99, correlation_id="101"),
            x("fusion", 1000.0, 9.9999999999999995e-07, pid=2, tid=17, correlation_id="7"),
            {},
        ],
    }


def all_phases():
    """Return a list with an event of each phase."""
    return [
        meta("process_name", "app", pid=1),
        meta("thread_name", "main", pid=1, tid=7),
        {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 7, "args": {"sort_index": 9}},
        {"ph": "B", "name": "outer", "pid": 1, "tid": 7, "ts": 1.5},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 7, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 7, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 7, "ts": 4.25},
        {"ph": "E", "pid": 1, "tid": 7, "ts": 5},
        {"ph": "B", "name": "open", "pid": 1, "tid": 7, "ts": 6},
        {"ph": "b", "cat": "net", "id": "0x1", "name": "request", "pid": 1, "tid": 7, "ts": 1},
        {"ph": "b", "cat": "net", "id": "0x2", "name": "request 2", "pid": 1, "tid": 8, "ts": 1.5},
        {"ph": "n", "cat": "net", "id": "0x1", "name": "half", "pid": 1, "tid": 7, "ts": 1.75},
        {"ph": "e", "cat": "net", "id": "0x1", "name": "request", "pid": 1, "tid": 7, "ts": 2},
        {"ph": "e", "cat": "net", "id": "0x2", "name": "request 2", "pid": 1, "tid": 8, "ts": 9},
        {"ph": "b", "cat": "net", "id2": {"local": 1}, "name": "mine", "pid": 1, "ts": 1},
        {"ph": "e", "cat": "net", "id2": {"local": 1}, "name": "theirs", "pid": 2, "ts": 2},
        {"ph": "i", "name": "tick", "pid": 1, "tid": 7, "ts": 2.5, "s": "t"},
        {"ph": "R", "name": "mark", "pid": 1, "tid": 7, "ts": 2.75},
        {"ph": "I", "name": "all", "pid": 1, "tid": 7, "ts": 7, "s": "g"},
        {"ph": "C", "name": "memory", "pid": 1, "ts": 1, "args": {"used": 5, "free": "2.5", "note": "x"}},
        {"ph": "C", "name": "load", "pid": 1, "ts": 0.5, "args": {"value": 0.25}},
        x("producer", 20, 5, tid=8),
        x("consumer", 30, 5),
        {"ph": "s", "id": 1, "cat": "c", "name": "flow", "pid": 1, "tid": 8, "ts": 22},
        {"ph": "f", "id": 1, "cat": "c", "name": "flow", "pid": 1, "tid": 7, "ts": 26},
        {"ph": "f", "id": 1, "cat": "c", "name": "flow", "pid": 1, "tid": 7, "ts": 31, "bp": "e"},
        {"ph": "P", "name": "sample", "pid": 1, "tid": 7, "ts": 3},
        x("backwards", 5, -1),
        x("timeless", None, 1),
    ]


def test_every_phase_is_read_or_counted(tmp_path):
    trace = read(tmp_path / "a.json", all_phases())
    assert sorted(spans_of(trace)) == [
        ("host: async net", "half", "marker", 1_750, 1_750),
        ("host: async net", "request", "annotation", 1_000, 2_000),
        ("host: async net", "request 2", "annotation", 1_500, 9_000),
        ("host: main", "consumer", "annotation", 30_000, 35_000),
        ("host: main", "inner", "annotation", 2_000, 3_000),
        ("host: main", "mark", "marker", 2_750, 2_750),
        ("host: main", "outer", "annotation", 1_500, 4_250),
        ("host: main", "tick", "marker", 2_500, 2_500),
        ("host: thread 8", "producer", "annotation", 20_000, 25_000),
    ]
    assert edges_of(trace) == [("producer", "consumer", "wait")]
    assert [(one.time_ns, one.text) for one in trace.markers] == [(7_000, "all")]
    samples = trace.counters
    assert [
        (time, samples.names[name], value)
        for time, name, value in zip(samples.time_ns.tolist(), samples.name.tolist(), samples.value.tolist(), strict=True)
    ] == [(500, "load", 0.25), (1_000, "memory used", 5.0), (1_000, "memory free", 2.5)]
    used = trace.metadata.imported
    assert used.startswith("9 spans (0 of GPUs), 3 samples, 1 markers from 21 of 29 events; not read: ")
    assert "2 begins without an end" in used
    assert "2 ends without a begin" in used
    assert "2 refused, as their times make no sense" in used
    inner, outer = (trace.names.index(name) for name in ("inner", "outer"))
    assert trace.name[trace.parent[np.flatnonzero(trace.name == inner)]].tolist() == [outer]


def test_a_profile_of_jax_has_streams_kernels_and_launches(tmp_path):
    trace = read(tmp_path / "host.trace.json.gz", gzip.compress(json.dumps(jax_file()).encode()))
    assert [(lane.name, lane.kind.value, lane.key) for lane in trace.lanes] == [
        ("GPU 0 stream 13", "stream", (0, 0, 13)),
        ("GPU 0 stream 17", "stream", (0, 1, 17)),
        ("GPU 1 stream 17", "stream", (1, 0, 17)),
        ("/device:GPU:0: XLA Ops", "host", (0, 0, 0)),
        ("host: python", "host", (0, 0, 0)),
    ]
    assert spans_of(trace) == [
        ("host: python", "PjitFunction(f)", "annotation", 9_000, 39_000),
        ("host: python", "cuLaunchKernel", "host", 10_000, 15_500),
        ("GPU 0 stream 13", "memcpy HtoD", "copy", 12_000, 15_000),
        ("GPU 0 stream 13", "memset", "fill", 15_000, 16_000),
        ("GPU 0 stream 17", "gemm<float>", "kernel", 20_001, 70_251),
        ("/device:GPU:0: XLA Ops", "dot.3", "annotation", 20_001, 70_251),
        ("GPU 1 stream 17", "fusion", "kernel", 1_000_000, 1_000_000),
    ]
    kernel = trace.details[trace.extra["detail"][4]]
    assert (kernel.grid, kernel.block, kernel.registers, kernel.static_shared_bytes) == ((64, 2, 1), (128, 1, 1), 32, 1024)
    assert kernel.full_name == "void gemm<float>(float*)"
    assert trace.extra["size_bytes"].tolist() == [0, 0, 4096, 512, 0, 0, 0]
    assert edges_of(trace) == [("cuLaunchKernel", "gemm<float>", "launch")]
    assert trace.queued_ns[4] == 10_000
    assert trace.parent[4] == 0  # what the thread had open when it launched
    assert not trace.metadata.waits_told
    assert "1 spans of allocated memory on streams" in trace.metadata.imported
    assert any("3 of 4 kernels, copies and fills have no call" in fact for fact in trace.metadata.missing)
    assert trace.overlap()["GPU 0 stream 13", "GPU 0 stream 17"].common_ns == 0


def test_flows_from_calls_to_streams_are_launches_and_told_once(tmp_path):
    content = jax_file()
    content["traceEvents"][-1:] = [
        {"ph": "s", "id": 1, "name": "l", "pid": 701, "tid": 5, "ts": 11},
        {"ph": "f", "id": 1, "name": "l", "pid": 1, "tid": 17, "ts": 20.001, "bp": "e"},
        {"ph": "s", "id": 2, "name": "l", "pid": 701, "tid": 5, "ts": 11},
        {"ph": "f", "id": 2, "name": "l", "pid": 1, "tid": 13, "ts": 13, "bp": "e"},
    ]
    assert sorted(edges_of(read(tmp_path / "a.json", content))) == [
        ("cuLaunchKernel", "gemm<float>", "launch"),
        ("cuLaunchKernel", "memcpy HtoD", "launch"),
    ]


@pytest.mark.parametrize("block_bytes", [4, 7, 100, 1_000, 1 << 20])
@pytest.mark.parametrize(
    "layout",
    [
        '{"a": {"traceEvents": [1]}, "traceEvents": [%s], "z": [{"b": "]"}, {}], "baseTimeNanoseconds": 1700000000000000000}',
        '\ufeff{ "baseTimeNanoseconds":1700000000000000000,\n "traceEvents" : [ %s ] }\n',
    ],
)
def test_the_layout_and_the_size_of_blocks_make_no_difference(tmp_path, monkeypatch, block_bytes, layout):
    monkeypatch.setattr(_json_events, "BLOCK_BYTES", block_bytes)
    events = [x(f'}}, {{"{number}"] é', number, 0.5, nested=[{"a": 1}, {"b": [{}, {}]}]) for number in range(12)]
    joined = " ,\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    trace = read(tmp_path / "a.json", layout % joined)
    assert trace.names == tuple(event["name"] for event in events)
    assert trace.start_ns.tolist() == [number * 1_000 for number in range(12)]
    assert trace.metadata.epoch_unix_ns == 1_700_000_000_000_000_000
    assert not trace.metadata.recovery_note


def test_a_list_may_lack_its_end_and_an_object_says_so(tmp_path):
    event = json.dumps(x("a", 1, 1))
    for text in (f"[{event}", f"[{event},\n", f"[{event}]"):
        trace = read(tmp_path / "a.json", text)
        assert (len(trace), trace.metadata.recovery_note) == (1, "")
    trace = read(tmp_path / "a.json", '{"traceEvents": [' + event)
    assert (len(trace), "it ends within its events" in trace.metadata.recovery_note) == (1, True)


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_was_whole_of_a_cut_file_is_kept(tmp_path, is_packed):
    rng = random.Random(1)
    text = json.dumps([x("".join(rng.choices("abcdefgh", k=80)), number, 1) for number in range(2_000)]).encode()
    whole = gzip.compress(text) if is_packed else text
    trace = read(tmp_path / "a.json", whole[: len(whole) // 2])
    assert 900 < len(trace) < 1_100
    assert trace.start_ns.tolist() == [number * 1_000 for number in range(len(trace))]
    why = "it cannot be unpacked to its end (it ends early)" if is_packed else "it ends within its events"
    assert trace.metadata.recovery_note == f"not all of the file was read: {why}"


def test_damage_costs_the_event_that_it_hits(tmp_path):
    events = [json.dumps(x("a", number, 1)) for number in range(9)]
    trace = read(tmp_path / "a.json", "[" + ",".join(events[:5]) + ', {"ph": "X" "name"}, ' + ",".join(events[5:]) + "]")
    assert trace.start_ns.tolist() == [number * 1_000 for number in range(9)]
    assert trace.metadata.imported.endswith("from 9 of 10 events; not read: 1 damaged events")


def test_what_json_forbids_and_some_write_is_read(tmp_path):
    raw = b'[{"ph":"X","name":"a\tb\\ud83d\\ude00\xff","ts":1,"dur":2,"args":{"v":nan}}, {"name":"\\ud800"}, 3, null, [], ]'
    trace = read(tmp_path / "a.json", raw)
    assert trace.names == ("a b😀�",)
    assert "4 damaged events" in trace.metadata.imported


def test_times_are_exact_decimals(tmp_path):
    times = ["1e999999999", "1712195495505583.033", "1712195495505583.034", '"1712195495505583.5"', "1.7121954955055845e15"]
    trace = read(tmp_path / "a.json", "[" + ",".join(f'{{"ph":"X","name":"a","ts":{ts},"dur":0.001}}' for ts in times) + "]")
    assert trace.metadata.epoch_unix_ns + trace.start_ns[0] == 1_712_195_495_505_583_033
    assert trace.start_ns.tolist() == [0, 1, 467, 1_467]
    assert trace.duration_ns.tolist() == [1] * 4
    assert "1 refused, as their times make no sense" in trace.metadata.imported


def test_lanes_stand_as_the_file_says(tmp_path):
    order = {"ph": "M", "name": "thread_sort_index", "pid": 1}
    events = [x("a", 1, 1, tid=1), x("b", 2, 1, tid=2), *({"tid": tid, "args": {"sort_index": -tid}} | order for tid in (1, 2))]
    assert [lane.name for lane in read(tmp_path / "a.json", events).lanes] == ["host: thread 2", "host: thread 1"]


@pytest.mark.parametrize(
    "content", ["", "<html></html>", "{}", "[]", '{"traceEvents": 3}', '{"traceEvents": []}', '[{"ph": "M"}]', "[["]
)
def test_a_file_that_is_no_trace_says_so(tmp_path, content):
    with pytest.raises(TraceFileError, match=r"a\.json.*(holds n|is empty)"):
        read(tmp_path / "a.json", content)
    with pytest.raises(TraceFileError, match="There is no trace file"):
        read_chrome(tmp_path / "none.json")


def test_who_wrote_a_file_is_told_by_its_head():
    assert guess_writer(json.dumps(two_streams()).encode()) == "kineto"
    assert guess_writer(b'{"schemaVersion": 1, "traceEvents": [') == "kineto"
    assert guess_writer(json.dumps(jax_file()).encode()) == "chrome"
    assert guess_writer(json.dumps(all_phases()).encode()) == "chrome"
    assert guess_writer(b"") == "chrome"


def test_spans_that_do_not_nest_end_by_their_names(tmp_path):
    events = [
        {"ph": phase, "ts": ts, "pid": 1, "tid": 1, "id": 1, "cat": "net", "name": name}
        for ts, (phase, name) in enumerate([("b", "load"), ("b", "store"), ("e", "load"), ("e", "store")])
    ]
    trace = read(tmp_path / "run.json", events)
    assert [span[1:] for span in spans_of(trace)] == [("load", "annotation", 0, 2_000), ("store", "annotation", 1_000, 3_000)]


def test_begins_and_ends_match_as_a_stack_of_each_thread_does():
    rng = np.random.default_rng(3)
    for _ in range(50):
        size = int(rng.integers(0, 30))
        group, time_ns, is_begin = rng.integers(0, 3, size), rng.integers(0, 20, size), rng.random(size) < 0.6
        name = rng.integers(0, 3, size)
        stacks, wanted = {}, set()
        for place in sorted(range(size), key=lambda one: (time_ns[one], one)):
            stack = stacks.setdefault(group[place], [])
            if is_begin[place]:
                stack.append(place)
            elif stack:
                named = [begin for begin in stack if name[begin] == name[place]]
                wanted.add(((named or stack)[-1], place))
                stack.remove((named or stack)[-1])
        begins, ends = match_begins(group, time_ns, is_begin, name)
        assert set(zip(begins.tolist(), ends.tolist(), strict=True)) == wanted


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 8)), max_size=12), st.integers(0, 20))
def test_flows_are_bound_as_a_search_of_all_slices_says(slices, at_ns):
    rows = sorted(slices, key=lambda one: (one[1], -one[2]))
    track, start, length = np.array(rows, np.int64).reshape(-1, 3).T
    end = start + length
    moments = np.array([0, 1, 0, 1]), np.full(4, at_ns), np.array([0, 0, 1, 1], bool)
    found = slices_at(track, start, end, *moments)
    for place, (one, is_next) in enumerate(zip(moments[0].tolist(), moments[2].tolist(), strict=True)):
        mine = np.flatnonzero(track == one)
        following = mine[start[mine] >= at_ns]
        around = mine[(start[mine] <= at_ns) & (at_ns < end[mine])]
        if is_next:
            assert found[place] == (following[0] if len(following) else -1)
        elif len(around):
            assert found[place] == around[-1]
        else:
            assert found[place] == -1 or end[found[place]] == at_ns
