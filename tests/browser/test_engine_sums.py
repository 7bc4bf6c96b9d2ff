"""What the page's engine adds up: busy lanes and SMs, against Python's own answers."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.analysis import (
    busy_edges,
    counted_kinds,
    sm_kinds,
    sm_time_steps,
)
from gpustreamlab.draw import columns_of, detail_entries
from gpustreamlab.draw._card import span_sms
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.engine import make_columns, pack, take
from tests.helpers.kernel_traces import MS, kernel_trace
from tests.helpers.traces import make_trace, nested_trace, partition_trace, random_trace, repartition_trace

pytestmark = pytest.mark.browser


def tables_of(trace, codes_lane, *, zero_ns=0):
    counted, on_sms = counted_kinds(trace), sm_kinds(trace)
    steps = sm_time_steps(trace)
    sizes = [step.size for step in steps]
    whole = sizes[-1] if sizes[-1].name is None else None
    partitions = [{"text": "whole", "sms": 132, "band": sizes.index(whole) if whole else -1}]
    for part in trace.partitions:
        band = next(k for k, size in enumerate(sizes) if (size.name, size.granted_sms) == (part.name, part.granted_sms))
        partitions.append({"text": f"{part.name} {part.granted_sms}", "sms": part.granted_sms, "band": band})
    return {
        "header": {"has_common_time": True},
        "names": list(trace.names),
        "details": detail_entries(trace.details, trace.metadata.device.sm_limits),
        "lanes": [{"device": 0, "host": lane.kind == "host"} for lane in trace.lanes],
        "rows": [{"lane": int(lane), "overlaps": False, "inner": bool(inner)} for lane, inner in codes_lane],
        "kinds": [kind.value for kind in SPAN_KINDS],
        "kind_counted": [kind in counted for kind in SPAN_KINDS],
        "kind_on_sms": [kind in on_sms for kind in SPAN_KINDS],
        "capture": {"windows": [[start - zero_ns, end - zero_ns] for start, end in trace.metadata.capture_windows]},
        "partitions": partitions,
        "bands": [{} for _ in sizes],
        "cards": [{"device": 0, "sms": 132}],
    }


def rowed(trace):
    """Give each span a row: by lane, thread and depth of nesting."""
    depth, above = np.zeros(len(trace), np.int64), trace.parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, trace.parent[above], -1)
    keys, codes = np.unique(np.stack((trace.lane, trace.thread, depth)), axis=1, return_inverse=True)
    is_range, inner = trace.kind == SPAN_KINDS.index(SpanKind.RANGE), np.ones(keys.shape[1], bool)
    np.logical_and.at(inner, codes.ravel(), is_range & (trace.parent >= 0) & is_range[trace.parent])
    return codes.ravel(), list(zip(keys[0].tolist(), inner.tolist(), strict=True))


def deep_trace(seed=0, count=400, *, inner=(("kernel", 0, 0.4), ("copy", 0.5, 0.9)), **meta):
    """Ranges with kernels inside, on lanes and partitions, with waits, and spans of no length."""
    rng = np.random.default_rng(seed)
    spans, at = [], [0, 50, 90]
    for number in range(count):
        lane = int(rng.integers(0, 3))
        begin = at[lane] + int(rng.choice([0, 0, 13, 400]))
        length = int(rng.choice([0, 7, 90, 800]))
        options = {"partition": int(rng.integers(-1, 2))} if meta.get("partitions") else {}
        place = len(spans)
        spans.append((f"lane {lane}", f"step {number % 5}", begin, begin + length, options))
        for kind, from_, to in inner:
            times = begin + int(length * from_), begin + int(length * to)
            spans.append((f"lane {lane}", kind, *times, options | {"kind": kind, "parent": place}))
        spans.append((f"lane {lane}", "wait", begin + length, begin + length + 5, options | {"kind": "wait"}))
        at[lane] = begin + length + 5
    return make_trace(spans, **meta)


BUSY_TRACES = {
    "flat": lambda: random_trace(4_000, 5, mean_ns=300),
    "100 lanes": lambda: random_trace(4_000, 100),
    "nested": nested_trace,
    "deep": deep_trace,
    "deep kernels": lambda: deep_trace(1, tier="kernels"),
    "kernels": kernel_trace,
    "kernels at times": lambda: kernel_trace(windows=((0, 2 * MS), (5 * MS, 6 * MS))),
    "deep, kernels at times": lambda: deep_trace(2, tier="kernels", capture_windows=((3_000, 9_000), (20_000, 21_500))),
    "partitions": partition_trace,
    "repartition": repartition_trace,
    "waits between": lambda: deep_trace(6, inner=()),
    "no length": lambda: make_trace([("a", "x", 5, 5), ("b", "x", 7, 7)]),
    "short": lambda: deep_trace(7, 30),
    "deep in partitions": lambda: deep_trace(3, 700, partitions=repartition_trace().partitions[:2]),
}


def load_trace(engine, trace, *, chunk=None):
    codes, lanes = rowed(trace)
    columns = columns_of(trace, codes, 0)
    tables = tables_of(trace, lanes)
    arrival = np.argsort(columns.place)
    size = chunk or max(1, len(columns))
    packed = [pack(take(columns, arrival[at : at + size])) for at in range(0, len(columns), size)]
    return packed, tables


def check_sms(engine, trace, *, chunk=None, evaluate_between=False):
    packed, tables = load_trace(engine, trace, chunk=chunk)
    first, last = int(trace.start_ns.min()), int(trace.end_ns.max()) + 1
    middle, width = (first + last) / 2, last - first
    windows = [[first, last, 7], [first, last, 1150], [first - width, last + width, 90], [middle, middle + width / 50, 40]]
    windows += [[middle, middle + 3, 10], [last + 5, last + 9, 3], [first, last, 1]]
    found = engine.evaluate(
        """async ([packed, tables, windows, between]) => { const store = await make([], tables.rows)
        for (const [manifest, text] of packed) {
          store.append(await E.readBatch(manifest, bytesOf(text)))
          if (between) for (const window of windows.slice(-2)) E.cardLayers(store, tables, {kind: "sms", device: -1}, ...window)
        }
        return windows.map(([x0, x1, n]) =>
          E.cardLayers(store, tables, {kind: "sms", device: -1}, x0, x1, n).map(({lane, mean}) => [lane, [...mean]])) }""",
        [packed, tables, windows, evaluate_between],
    )
    crossed = lanes_with_crossed_rows(trace)
    for (x0, x1, _), layers in zip(windows, found, strict=True):
        means = {lane: np.zeros(len(mean)) for lane, mean in layers}
        for lane, mean in layers:
            means[lane] += mean
        for lane, mean in means.items():
            if lane in crossed:  # a page would give its spans rows of their own
                continue
            np.testing.assert_allclose(mean, sms_at(trace, lane, x0, x1, len(mean)), rtol=1e-7, atol=1e-3)


def lanes_with_crossed_rows(trace):
    """Lanes with a row of `rowed` in which a span ends behind the start of the next."""
    codes, _ = rowed(trace)
    order = np.lexsort((trace.start_ns, codes))
    same = codes[order][1:] == codes[order][:-1]
    return set(trace.lane[order][1:][same & (trace.start_ns[order][1:] < trace.end_ns[order][:-1])].tolist())


def sms_at(trace, lane, x0, x1, n):
    """Mean SMs of a lane's work in each of n equal columns, added up span by span."""
    edges, sms = np.linspace(x0, x1, n + 1), span_sms(trace)
    own = np.flatnonzero((trace.lane == lane) & (sms > 0))
    until = np.clip(edges[:, None] - trace.start_ns[own], 0, trace.duration_ns[own]) @ sms[own].astype(float)
    return np.diff(until) / np.diff(edges)


@pytest.mark.parametrize("name", BUSY_TRACES)
def test_sms_are_those_of_python(engine, name):
    check_sms(engine, BUSY_TRACES[name]())


@pytest.mark.parametrize("name", BUSY_TRACES)
def test_gaps_of_lanes_are_those_of_python(engine, name):
    trace = BUSY_TRACES[name]()
    packed, tables = load_trace(engine, trace, chunk=200)
    times = np.random.default_rng(0).integers(trace.start_ns.min() - 9, trace.end_ns.max() + 9, 200).tolist()
    codes = [[code for code, row in enumerate(tables["rows"]) if row["lane"] == lane] for lane in range(len(trace.lanes))]
    found = engine.evaluate(
        """async ([packed, tables, codes, times]) => { const store = await make(packed, tables.rows)
        const around = (own, time) => { const {end, next} = E.busyAround(store, tables, own, time); return [end, next] }
        return codes.map(own => times.map(time => around(own, time))) }""",
        [packed, tables, codes, times],
    )
    for edges, told in zip(busy_edges(trace), found, strict=True):
        starts, ends = edges[::2], edges[1::2]
        for time, (end, following) in zip(times, told, strict=True):
            place = int(np.searchsorted(starts, time, side="right"))
            if place and ends[place - 1] > time:
                assert end > time
                continue
            assert end == (ends[place - 1] if place else -np.inf)
            assert following == (starts[place] if place < len(starts) else np.inf)


GROWING = ["deep", "deep kernels", "deep, kernels at times", "kernels at times", "repartition", "flat", "100 lanes"]


@pytest.mark.parametrize(
    ("name", "chunk", "between"),
    [
        *((name, 37, between) for name in GROWING for between in (False, True)),
        ("short", 1, True),
        ("deep in partitions", 50, True),
    ],
)
def test_sms_grow_with_what_is_appended(engine, name, chunk, between):
    check_sms(engine, BUSY_TRACES[name](), chunk=chunk, evaluate_between=between)


@pytest.mark.parametrize("lane_count", [1, 60])
@pytest.mark.parametrize("width_ns", [10, 15, 100])
def test_columns_narrower_than_a_ns_are_exact_far_from_0(engine, width_ns, lane_count):
    end, zeros = 7_200 * 10**9, np.zeros(lane_count, np.int64)
    columns = make_columns(np.arange(lane_count), zeros, zeros + end)
    tables = {
        "rows": [{"lane": lane} for lane in range(lane_count)], "kind_counted": [True], "bands": [{}],
        "cards": [{"device": 0, "sms": 132}], "names": ["x"], "kinds": ["kernel"], "details": [],
        "lanes": [{"device": 0} for _ in range(lane_count)], "partitions": [{"text": "whole", "sms": 132, "band": 0}],
    }  # fmt: skip
    # WHEN all lanes are busy in the whole window, and in 0.8 of it
    windows = [[end / 2 + offset, end / 2 + offset + width_ns, 1080] for offset in (0, 0.1, 1 / 3)]
    windows.append([end - 0.8 * width_ns, end + 0.2 * width_ns, 1080])
    found = engine.evaluate(
        """async ([packed, tables, windows]) => { const store = await make(packed, tables.rows)
        return windows.map(window => [
          ...E.cardLayers(store, tables, {kind: "sms", device: -1}, ...window)[0]?.mean ?? [0]]) }""",
        [[pack(columns)], tables, windows],
    )
    # THEN every column's mean is right to the last digits
    for (x0, x1, _), sms in zip(windows, found, strict=True):
        wide = np.clip((end - x0) / (x1 - x0) * len(sms) - np.arange(len(sms)), 0, 1)  # many lanes have wider columns
        np.testing.assert_allclose(sms, 132 * wide, rtol=1e-9, atol=1e-9)


def test_each_card_has_its_own_sms_and_work_those_that_its_grid_fills(engine):
    # 96 of 132 SMs of the first card at 0 to 60, 16 blocks of which 8 fit on an SM at 40 to 100, 80 of the second at 20 to 80
    columns = make_columns([0, 1, 2], [0, 40, 20], [60, 100, 80], partition=[1, 0, 0], detail=[-1, 0, -1])
    tables = {
        "rows": [{"lane": lane} for lane in range(3)], "lanes": [{"device": 0}, {"device": 0}, {"device": 5}],
        "kind_counted": [True], "kinds": ["kernel"], "names": ["x"],
        "details": [["x", [16, 1, 1], [256, 1, 1], 32, 0, 0, 0, 8]],
        "partitions": [{"text": "whole", "sms": 132, "band": 1}, {"text": "prefill", "sms": 96, "band": 0}], "bands": [{}, {}],
        "cards": [{"device": 0, "sms": 132}, {"device": 5, "sms": 80}],
    }  # fmt: skip
    first, second, areas = engine.evaluate(
        """async ([packed, tables]) => { const store = await make(packed, tables.rows)
        const of = device => E.cardLayers(store, tables, {kind: "sms", device}, 0, 100, 5)
        return [of(0).map(({mean}) => [...mean]), of(5).map(({mean}) => [...mean]),
          E.stackLayers(of(0), Array.from({length: 5}, () => [96]), 132).map(([, low, high]) => [[...low], [...high]])] }""",
        [[pack(columns)], tables],
    )
    assert (first, second) == ([[96, 96, 96, 0, 0], [0, 0, 2, 2, 2]], [[0, 80, 80, 80, 0]])
    # THEN the partition stands at its place, and the whole card's work where that is idle, or above it
    assert areas[0] == [[0] * 5, [96, 96, 96, 0, 0]]
    assert areas[1:] == [[[96, 96, 96, 0, 0], [96, 96, 96, 2, 2]], [[96] * 5, [96, 96, 98, 96, 96]]]


def test_spans_that_stand_for_several_count_as_such(engine):
    columns = make_columns([0, 0], [0, 100], [100, 110], count=[40, 1], busy_ns=[25, 10])
    tables = {
        "names": ["x"],
        "rows": [{"lane": 0}],
        "kinds": ["kernel"],
        "kind_counted": [True],
        "details": [],
        "lanes": [{"device": 0}],
        "partitions": [{"text": "whole", "sms": 1, "band": 0}],
        "bands": [{}],
        "cards": [{"device": 0, "sms": 1}],
    }
    (sms,) = engine.evaluate(
        """async ([packed, tables]) => E.cardLayers(
          await make(packed, tables.rows), tables, {kind: "sms", device: -1}, 0, 200, 4).map(({mean}) => [...mean])""",
        [[pack(columns)], tables],
    )
    assert sms == [0.25, 0.25, 0.2, 0]


def test_a_counter_holds_each_value_until_the_next_one(engine):
    line = {"lane": 0, "time": [0, 10, 30], "value": [100, 300, 200]}
    tables = {"kinds": [], "names": [], "partitions": [], "cards": [], "lanes": [{"device": 0, "host": True}], "rows": []}
    means = engine.evaluate(
        """async ([tables, line]) => { const store = await make([], []), row = {kind: "counter", device: -1, lines: [line]}
        const windows = [[0, 40, 4], [-20, 20, 2], [35, 45, 1]]
        return windows.map(window => [...E.cardLayers(store, tables, row, ...window)[0].mean]) }""",
        [tables, line],
    )
    assert means == [[100, 300, 300, 200], [0, 200], [200]]
