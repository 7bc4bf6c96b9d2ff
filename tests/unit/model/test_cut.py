"""Parts of traces, against plain Python over random traces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab import Trace
from gpustreamlab.errors import OptionError, StreamNotFoundError
from gpustreamlab.model import (
    EDGE_KINDS,
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
    table_to_trace,
)
from gpustreamlab.typing import CaptureTier
from tests.helpers.long_runs import count
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import TIMES_NS, traces

SEEDS = count(100, 500)
PARTS = tuple(Partition(name=name, requested_sms=8, granted_sms=8 * code) for code, name in enumerate("pqr", 1))
LAYOUTS = (None, Layout(partitions=PARTS[:1]), Layout(partitions=PARTS[1:]))


def random_trace(seed, span_count=None):
    """A trace of everything, with times from 0 to 100 ns; parents may stand anywhere, and go in a circle."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 14)) if span_count is None else span_count
    start_ns = rng.integers(0, 100, size)
    parent = rng.integers(-1, max(size, 1), size)
    edge_count, sample_count = (int(rng.integers(0, 12)) if size else 0), int(rng.integers(0, 12))
    windows = ((), ((0, 100),), ((20, 50), (60, 70)))[seed % 3]
    moments = [int(at) for at in rng.integers(0, 100, 6)]
    layouts = tuple(LayoutChange(time_ns=at, layout=LAYOUTS[at % 3]) for at in moments[: seed % 4])
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + rng.integers(0, 40, size),
        queued_ns=start_ns - 5,
        lane=rng.integers(0, 3, size),
        name=rng.integers(0, 4, size),
        kind=rng.integers(0, len(SPAN_KINDS), size),
        parent=np.where(parent == np.arange(size), -1, parent),
        thread=rng.integers(-1, 2, size),
        partition=rng.integers(-1, 3, size),
        partitions=PARTS,
        names=("step", "gemm", "copy", "fill"),
        lanes=tuple(Lane(name=name, stream=number) for number, name in enumerate(("a", "b", "host: main"))),
        threads=("MainThread", "worker"),
        extra={"number": np.arange(size)},
        edges=Edges(
            source=rng.integers(0, max(size, 1), edge_count),
            target=rng.integers(0, max(size, 1), edge_count),
            kind=rng.integers(0, len(EDGE_KINDS), edge_count),
        ),
        counters=Counters(
            time_ns=rng.integers(0, 100, sample_count),
            lane=rng.integers(0, 3, sample_count),
            name=rng.integers(0, 2, sample_count),
            value=np.arange(sample_count),
            names=("pool_used_bytes", "pool_reserved_bytes"),
        ),
        layouts=layouts,
        layout=None if layouts else LAYOUTS[seed % 3],
        markers=tuple(Marker(time_ns=at, text=f"mark {at}", kind="mark") for at in moments[3:]),
        metadata=TraceMetadata(
            backend="sim",
            device=Device(name="demo", sm_count=132, simulated=True),
            tier=CaptureTier.KERNELS if windows else CaptureTier.RANGES,
            capture_windows=windows,
            dropped_spans=seed % 5,
            unselected_work=7,
        ),
    )


def rows_of(trace):
    """Spans as dicts, and what belongs to them as text: nothing of it is a code."""
    return [
        {
            "number": int(trace.extra["number"][row]),
            "start_ns": int(trace.start_ns[row]),
            "end_ns": int(trace.end_ns[row]),
            "queued_ns": int(trace.queued_ns[row]),
            "lane": trace.lanes[trace.lane[row]].name,
            "name": trace.names[trace.name[row]],
            "kind": SPAN_KINDS[trace.kind[row]].value,
            "thread": None if trace.thread[row] < 0 else trace.threads[trace.thread[row]],
            "partition": None if trace.partition[row] < 0 else trace.partitions[trace.partition[row]].name,
            "parent": None if trace.parent[row] < 0 else int(trace.extra["number"][trace.parent[row]]),
        }
        for row in range(len(trace))
    ]


def with_parents(rows, kept):
    """The kept rows with their nearest ancestor that is kept; going up a circle ends where nothing is kept in it."""
    by_number, numbers = {row["number"]: row for row in rows}, {row["number"] for row in kept}
    result = []
    for row in kept:
        above, seen = row["parent"], set()
        while above is not None and above not in numbers and above not in seen:
            seen.add(above)
            above = by_number[above]["parent"]
        found = above in numbers and above != row["number"]
        result.append(row | {"parent": above if found else None})
    return result


def edges_of(trace):
    number = trace.extra["number"]
    edges = zip(trace.edges.source, trace.edges.target, trace.edges.kind, strict=True)
    return [(int(number[source]), int(number[target]), int(kind)) for source, target, kind in edges]


def assert_part(part, whole, kept):
    """Fail unless a part is these spans, with parents, edges and metadata that follow from them."""
    numbers = {row["number"] for row in kept}
    assert rows_of(part) == with_parents(rows_of(whole), kept)
    assert edges_of(part) == [edge for edge in edges_of(whole) if edge[0] in numbers and edge[1] in numbers]
    assert part.metadata.part_of_spans == len(whole)
    assert part.metadata.dropped_spans == whole.metadata.dropped_spans
    assert part.metadata.unselected_work == 0
    assert {part.name for part in part.partitions} == {row["partition"] for row in kept} - {None}


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_a_stretch_of_time_is_what_plain_python_finds(first):
    for seed in range(first, first + 50):
        trace = random_trace(seed)
        t0, t1 = sorted(np.random.default_rng(seed + 10_000).integers(-10, 120, 2).tolist())
        part = trace.between(t0, t1)

        kept = []
        for row in rows_of(trace):
            inside = any(t0 <= at < t1 for at in range(row["start_ns"], max(row["end_ns"], row["start_ns"] + 1)))
            if inside:
                kept.append(row | {"start_ns": max(row["start_ns"], t0), "end_ns": min(row["end_ns"], t1)})
        assert_part(part, trace, kept)
        before = {row["number"]: row for row in rows_of(trace)}
        for number, start_ns, end_ns in zip(part.extra["number"], *uncut(part), strict=True):
            assert (start_ns, end_ns) == (before[number]["start_ns"], before[number]["end_ns"])
        assert [mark.text for mark in part.markers] == [mark.text for mark in trace.markers if t0 <= mark.time_ns < t1]
        assert part.metadata.capture_windows == trace.metadata.capture_windows
        for at in range(t0, t1):
            assert layout_at(part, at) == layout_at(trace, at)
            assert counters_at(part, at) == counters_at(trace, at)
        assert all(t0 <= at < max(t1, t0 + 1) for at in part.counters.time_ns)
        assert part.layout == (layout_at(trace, t1 - 1) if trace.layouts else trace.layout)


def uncut(part):
    return part.extra.get("uncut_start_ns", part.start_ns), part.extra.get("uncut_end_ns", part.end_ns)


def layout_at(trace, at):
    return next((change.layout for change in reversed(trace.layouts) if change.time_ns <= at), None)


def counters_at(trace, at):
    """What holds at a time, by lane and name."""
    held = {}
    samples = zip(*(getattr(trace.counters, name).tolist() for name in ("time_ns", "lane", "name", "value")), strict=True)
    for time_ns, lane, name, value in sorted(samples, key=lambda sample: sample[0]):
        if time_ns <= at:
            held[lane, name] = value
    return held


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_rows_are_what_plain_python_finds(first):
    for seed in range(first, first + 50):
        trace, rng = random_trace(seed), np.random.default_rng(seed + 20_000)
        rows, mask = rows_of(trace), rng.random(len(trace)) < 0.6
        chosen = rng.permutation(len(trace))[: int(rng.integers(0, len(trace) + 1))] - len(trace) * (seed % 2)
        step = (1, 2, -1)[seed % 3]

        assert_part(trace[mask], trace, [row for row, stays in zip(rows, mask, strict=True) if stays])
        assert_part(trace[mask.tolist()], trace, [row for row, stays in zip(rows, mask, strict=True) if stays])
        assert_part(trace[chosen], trace, [rows[place] for place in chosen])
        assert_part(trace[2:9:step], trace, rows[2:9:step])
        assert (trace[mask].counters, trace[mask].layouts) == (trace.counters, trace.layouts)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_streams_kinds_and_names_are_what_plain_python_finds(first):
    for seed in range(first, first + 50):
        trace, rng = random_trace(seed), np.random.default_rng(seed + 30_000)
        wanted = {
            "stream": [None, "a", ["b", "host: main"]][rng.integers(3)],
            "kind": [None, "kernel", ["range", "copy"]][rng.integers(3)],
            "name": [None, "gemm", ("step", "fill")][rng.integers(3)],
        }
        part = trace.where(**wanted)

        def fits(row, wanted=wanted):
            return all(
                value is None or row["lane" if key == "stream" else key] in ([value] if isinstance(value, str) else value)
                for key, value in wanted.items()
            )

        assert_part(part, trace, list(filter(fits, rows_of(trace))))
        lanes = {"a": ["a"], None: ["a", "b", "host: main"]}.get(wanted["stream"] if wanted["stream"] in ("a", None) else 0)
        assert [lane.name for lane in part.lanes] == (lanes or ["b", "host: main"])
        own = [lane.name for lane in part.lanes]
        values = zip(trace.counters.lane, trace.counters.value, strict=True)
        assert part.counters.value.tolist() == [value for lane, value in values if trace.lanes[lane].name in own]
        assert all(part.lanes[lane].name in own for lane in part.counters.lane)


@settings(max_examples=count(20, 60), deadline=None)
@given(traces(), TIMES_NS, TIMES_NS, st.data())
def test_a_part_is_a_trace_that_is_saved_and_loaded_exactly(trace, t0, t1, data):
    trace = replace(
        trace, extra={name: column for name, column in trace.extra.items() if not name.startswith(("uncut", "work"))}
    )
    rows = data.draw(st.lists(st.sampled_from(range(len(trace))), unique=True)) if len(trace) else []
    for part in (trace.between(*sorted((t0, t1))), trace[rows], trace.where(stream=trace.lanes[0].name)):
        assert_same_trace(table_to_trace(pa.table(part)), part)


def test_the_end_of_time_can_be_given():
    trace = random_trace(3, span_count=9)

    assert len(trace.between(-(10**30), 10**30)) == 9
    assert "uncut_start_ns" not in trace.between(-(10**30), 10**30).extra
    assert len(trace.between(50, 50)) == 0
    assert rows_of(trace.where()) == rows_of(trace[:]) == rows_of(trace)
    assert len(trace[[]]) == 0
    assert repr(trace[:2]) == "<Trace: 2 spans in 3 streams on demo (simulated), 3 dropped, cut out of 9>"
    works = replace(trace, extra={"work_start_ns": np.full(9, 5), "work_end_ns": np.full(9, 95)}).between(20, 50)
    assert {*works.extra["work_start_ns"].tolist(), *works.extra["work_end_ns"].tolist()} == {20, 50}
    assert len(trace.between(np.int64(0), 1e6)) == 9


BAD = {
    "reversed": (lambda trace: trace.between(9, 3), OptionError, r"t1_ns is 3, before t0_ns, 9\. Use trace\.between\(3, 9\)"),
    "half a nanosecond": (lambda trace: trace.between(0.5, 3), OptionError, "t0_ns is 0.5; it must be a whole number"),
    "no time": (lambda trace: trace.between(0, math.nan), OptionError, "t1_ns is nan"),
    "endless": (lambda trace: trace.between(0, math.inf), OptionError, "t1_ns is inf"),
    "truth": (lambda trace: trace.between(True, 3), OptionError, "t0_ns is True"),
    "text": (lambda trace: trace.between("0", 3), OptionError, "t0_ns is '0'"),
    "unknown stream": (lambda trace: trace.where(stream="hots: main"), StreamNotFoundError, "Did you mean 'host: main'"),
    "one unknown stream": (
        lambda trace: trace.where(stream=["a", "zzzz"]),
        StreamNotFoundError,
        "no stream 'zzzz'. Choose from",
    ),
    "a number for a stream": (lambda trace: trace.where(stream=7), StreamNotFoundError, "no stream 7"),
    "unknown kind": (lambda trace: trace.where(kind="kernels"), OptionError, "no kind 'kernels'. Did you mean 'kernel'"),
    "unknown name": (lambda trace: trace.where(name="gem"), OptionError, "no name 'gem'. Did you mean 'gemm'"),
    "short mask": (lambda trace: trace[[True]], OptionError, "A mask of 1 rows cannot choose from 9 spans"),
    "row beyond": (lambda trace: trace[[0, 9]], OptionError, "has rows 0 to 9; the trace has 9 spans"),
    "row before": (lambda trace: trace[[-10]], OptionError, "has rows -10 to -10"),
    "row twice": (lambda trace: trace[[1, -8]], OptionError, "names a row twice"),
    "one row": (lambda trace: trace[3], OptionError, r"trace\[3\] is no choice of rows"),
    "a name": (lambda trace: trace["a"], OptionError, r"trace\.where\(stream='copy'\)"),
    "floats": (lambda trace: trace[[0.5]], OptionError, "no choice of rows"),
    "iterated": (list, OptionError, "no choice of rows"),
}


@pytest.mark.parametrize(("cut", "error", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_cut_is_told(cut, error, message):
    with pytest.raises(error, match=message):
        cut(random_trace(3, span_count=9))
