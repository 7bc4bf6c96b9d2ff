"""Perfetto's own engine, without a network, finds all that is written as Chrome's JSON, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.model import Edges
from tests.helpers.kernel_traces import kernel_trace, random_kernel_trace
from tests.helpers.trace_processor import PROBLEMS, TraceProcessor
from tests.helpers.traces import nested_trace, partition_trace, random_trace, repartition_trace

SLICES = (
    "select s.ts, s.dur, s.name, s.category, t.name as thread, p.name as process from slice s join thread_track k on "
    "s.track_id = k.id join thread t using (utid) join process p using (upid)"
)
FLOWS = (
    "select a.ts as ts, a.dur as dur, a.name as name, b.ts as next_ts, b.dur as next_dur, b.name as next_name "
    "from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id"
)


@pytest.fixture(scope="module")
def engine():
    processor = TraceProcessor()
    yield processor
    processor.close()


def overlapping(count=2_000):
    rng = np.random.default_rng(5)
    start_ns = rng.integers(0, 1_000_000, count) + 7_000_000_000_000_001
    end_ns = start_ns + rng.integers(0, 3_000, count) * rng.integers(0, 2, count)
    source, target = rng.integers(0, count, (2, 400))
    edges = Edges(source=source, target=target, kind=rng.integers(0, 2, 400))
    return replace(random_trace(count, 4), start_ns=start_ns, end_ns=end_ns, edges=edges)


@pytest.mark.parametrize(
    "make", [kernel_trace, nested_trace, partition_trace, repartition_trace, overlapping, lambda: random_kernel_trace(3_000)]
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
