"""The viewer's engine: what JavaScript holds, merges and adds up, against Python's own answers."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import (
    bin_width_ns,
    busy_edges,
    count_steps,
    counted_kinds,
    merge_narrow,
    overlap,
    sm_time_steps,
    stack_sms,
)
from gpustreamlab.draw._columns import SpanColumns, columns_of, pack_columns
from gpustreamlab.draw._viewer import scope, viewer_text
from gpustreamlab.model import SPAN_KINDS
from tests.helpers.traces import make_trace, nested_trace, partition_trace, random_trace, repartition_trace

pytestmark = pytest.mark.browser

FILES = (
    "arrays.js", "evict.js", "intervals.js", "matches.js", "rows.js", "sm_stack.js", "unions.js",
    "columns.js", "store.js", "lod.js", "busy.js", "totals.js",
)  # fmt: skip

HELPERS = r"""
const bytesOf = text => Uint8Array.from(atob(text), sign => sign.charCodeAt(0))
const ITEM_COLUMNS = ["first", "last", "left", "right", "count", "busy", "pick"]
const ROW_FIELDS = ["start", "end", "name", "kind", "thread", "partition", "queueing", "place", "count", "busy"]
const list = (values, length) => Array.from({length}, (_, index) => values[index])
const rowOf = row => Object.fromEntries(ROW_FIELDS.map(name => [name, list(row[name], row.length)]))
const edgesOf = edges => Object.fromEntries(["x0", "row0", "x1", "row1"].map(name => [name, list(edges[name], edges.length)]))
const stateOf = store => ({rows: store.rows.map((_, code) => rowOf(store.row(code))), length: store.length, spanCount: store.spanCount,
  evictedCount: store.evictedCount, firstNs: store.firstNs, lastNs: store.lastNs, edges: edgesOf(store.edges)})
const itemsOf = (store, code, x0, x1, bin) => {
  const out = new E.LodItems(2)
  E.decimate(store, code, x0, x1, bin, out)
  return Object.fromEntries(ITEM_COLUMNS.map(name => [name, list(out[name], out.length)]))
}
window.make = async (packed, rows, options = {}) => {
  const store = new E.SpanStore(options)
  if (rows) store.setRows(rows)
  for (const [manifest, text] of packed) store.append(await E.readBatch(manifest, bytesOf(text)))
  return store
}
Object.assign(window, {bytesOf, stateOf, itemsOf, rowOf})
"""

KINDS = ("names", "kinds", "partitions")
MS = 1_000_000


@pytest.fixture(scope="module")
def engine(chromium):
    page = chromium.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    script = scope([viewer_text(name) for name in FILES])
    page.evaluate(f"() => {{ window.E = {script}\n{HELPERS} }}")
    yield page
    page.close()
    assert errors == []


def make_columns(row, start_ns, end_ns, **more):
    row, start_ns, end_ns = (np.asarray(column, np.int64) for column in (row, start_ns, end_ns))
    order = np.lexsort((more.get("place", np.arange(len(row))), end_ns, start_ns, row))
    zeros = np.zeros(len(row), np.int64)
    columns = {name: zeros for name in ("name", "kind", "thread", "partition", "queueing_ns")} | {"place": np.arange(len(row))}
    columns |= {"row": row, "start_ns": start_ns, "end_ns": end_ns} | {
        name: np.asarray(column) for name, column in more.items()
    }
    return SpanColumns(**{name: column[order] if name != "edges" else column for name, column in columns.items()})


def pack(columns, level=None):
    manifest, blob = pack_columns(columns, level=level)
    return [manifest, base64.b64encode(blob).decode()]


def take(columns, rows):
    fields = ("row", "start_ns", "end_ns", "name", "kind", "thread", "partition", "queueing_ns", "place", "count", "busy_ns")
    return make_columns(**{name: getattr(columns, name)[rows] for name in fields})


def expected_rows(columns, kept=None):
    """What the rows of a store hold, by row code."""
    fields = {
        "start": "start_ns", "end": "end_ns", "name": "name", "kind": "kind", "thread": "thread", "partition": "partition",
        "queueing": "queueing_ns", "place": "place", "count": "count", "busy": "busy_ns",
    }  # fmt: skip
    kept = np.ones(len(columns), bool) if kept is None else kept
    codes = range(int(columns.row.max(initial=-1)) + 1)
    return [{js: getattr(columns, py)[kept & (columns.row == code)].tolist() for js, py in fields.items()} for code in codes]


def random_columns(seed, count=400, *, rows=4, overlaps=False, lateness=0, merged=False):
    """Spans of some rows with gaps and lengths of 0, in order of arrival, which is up to `lateness` places late."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, rows, count)
    length = rng.choice([0, 0, 1, 3, 8, 40, 700], count)
    gap = rng.choice([0, 1, 5, 30], count)
    start = rng.integers(0, 4_000, count) if overlaps else np.zeros(count, np.int64)
    for code in range(rows if not overlaps else 0):
        own = row == code
        start[own] = np.cumsum(gap[own] + length[own]) - length[own]
    arrival = np.argsort(start + rng.integers(0, lateness + 1, count), kind="stable")
    place = np.empty(count, np.int64)
    place[arrival] = np.arange(count)
    more = {"name": rng.integers(0, 300, count), "kind": rng.integers(0, 7, count), "thread": rng.integers(-1, 3, count)}
    more |= {"partition": rng.integers(0, 3, count), "queueing_ns": rng.integers(-9, 70_000, count)}
    if merged:
        more |= {"count": rng.integers(1, 400, count), "busy_ns": (length * rng.random(count)).astype(np.int64)}
    return make_columns(row, start, start + length, place=place, **more)


# Level of detail


def borders(width):
    """Spans that start, end or lie on the borders of bins."""
    start = np.array([0, width - 1, width, width, 2 * width, 3 * width - 1, 3 * width, 5 * width, 6 * width, 6 * width + 1])
    end = np.array(
        [width - 1, width, width, 2 * width - 1, 3 * width - 1, 3 * width, 5 * width, 6 * width, 6 * width + 1, 7 * width]
    )
    return np.zeros(10, np.int64), start, end


def touching(tolerance, seed, count=600):
    """Spans that reach beyond the next start by no more than the tolerance, but never beyond its end."""
    rng = np.random.default_rng(seed)
    length = rng.choice([1, 2, 5, tolerance, 3 * tolerance, 20 * tolerance], count)
    start = np.zeros(count, np.int64)
    for place in range(1, count):
        reach = start[place - 1] + length[place - 1]
        start[place] = max(start[place - 1], reach - rng.integers(0, tolerance + 1) + rng.choice([0, 0, 7]))
        length[place] = max(length[place], reach - start[place])
    return np.zeros(count, np.int64), start, start + length


HUGE = (1 << 52) - 5_000
SHAPES = {
    "random": lambda: (lambda c: (c.row, c.start_ns, c.end_ns))(random_columns(1, 900)),
    "no length": lambda: (np.zeros(500, np.int64), np.repeat(np.arange(50) * 3, 10), np.repeat(np.arange(50) * 3, 10)),
    "borders of 8": lambda: borders(8),
    "borders of 12": lambda: borders(12),
    "1 ns beside an hour": lambda: (
        np.zeros(2_001, np.int64),
        np.append(np.arange(2_000) * 2, 5_000),
        np.append(np.arange(2_000) * 2 + 1, 3_600 * 10**9),
    ),
    "near 2^52": lambda: (np.zeros(1_000, np.int64), HUGE + np.arange(1_000) * 5, HUGE + np.arange(1_000) * 5 + 3),
    "before zero": lambda: (np.zeros(900, np.int64), np.arange(900) * 7 - 3_000, np.arange(900) * 7 - 3_000 + 4),
    "reaching over by 9": lambda: touching(9, 2),
    "reaching over by 100": lambda: touching(100, 3),
    "over each other": lambda: (lambda c: (c.row, c.start_ns, c.end_ns))(random_columns(4, 700, overlaps=True)),
    "one in another": lambda: (
        np.zeros(401, np.int64),
        np.append(0, np.arange(400) * 9),
        np.append(4_000, np.arange(400) * 9 + 6),
    ),
    "one": lambda: (np.zeros(1, np.int64), np.array([5]), np.array([9])),
}
BINS_NS = (1, 2, 3, 4, 6, 8, 12, 24, 64, 96, 256, 1024, 1536, 3 << 20, 1 << 42)


def windows_of(columns, seed=0):
    rng = np.random.default_rng(seed)
    first, last = int(columns.start_ns.min()), int(columns.end_ns.max())
    inner = np.sort(rng.integers(first - 5, last + 6, (12, 2)), axis=1).tolist()
    half = [[x0 + 0.5, x1 + 0.5] for x0, x1 in inner[:3]]
    instants = [[x, x] for x in (first, last, (first + last) // 2)]
    return [[first, last], [first - 10, first - 1], [last + 1, last + 10], *inner, *half, *instants]


def check_items(engine, columns, rows=None):
    queries = [[bin_ns, *window] for bin_ns in BINS_NS for window in windows_of(columns, bin_ns)]
    codes = sorted(set(columns.row.tolist()))
    found = engine.evaluate(
        """async ([packed, rows, codes, queries]) => { const store = await make(packed, rows)
        return queries.map(([bin, x0, x1]) => codes.map(code => itemsOf(store, code, x0, x1, bin))) }""",
        [[pack(columns)], rows, codes, queries],
    )
    for code, own in [(code, columns.row == code) for code in codes]:
        row, start, end = columns.row[own], columns.start_ns[own], columns.end_ns[own]
        for (bin_ns, x0, x1), by_code in zip(queries, found, strict=True):
            merged = merge_narrow(row, start, end, bin_ns)
            seen = (merged.left_ns <= x1) & (merged.right_ns >= x0)
            expected = {"left": merged.left_ns, "right": merged.right_ns, "busy": merged.busy_ns}
            expected |= {name: getattr(merged, name) for name in ("first", "last", "count", "pick")}
            items = by_code[codes.index(code)]
            assert items == {name: values[seen].tolist() for name, values in expected.items()}, (bin_ns, x0, x1)


@pytest.mark.parametrize("shape", SHAPES)
def test_items_are_those_of_python(engine, shape):
    check_items(engine, make_columns(*SHAPES[shape]()))


@pytest.mark.parametrize("shape", ["random", "over each other"])
def test_items_are_the_same_where_the_tables_say_that_rows_overlap(engine, shape):
    check_items(engine, make_columns(*SHAPES[shape]()), [{"lane": 0, "overlaps": True}] * 4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spans=st.lists(st.tuples(st.integers(-60, 300), st.integers(0, 40)), min_size=1, max_size=40),
    bin_ns=st.sampled_from(BINS_NS[:10]),
    window=st.tuples(st.integers(-70, 350), st.integers(0, 200)),
)
def test_any_items_are_those_of_python(engine, spans, bin_ns, window):
    columns = make_columns([0] * len(spans), [start for start, _ in spans], [start + length for start, length in spans])
    x0, x1 = window[0], window[0] + window[1]
    items = engine.evaluate(
        "async ([packed, x0, x1, bin]) => itemsOf(await make(packed), 0, x0, x1, bin)", [[pack(columns)], x0, x1, bin_ns]
    )
    merged = merge_narrow(columns.row, columns.start_ns, columns.end_ns, bin_ns)
    seen = (merged.left_ns <= x1) & (merged.right_ns >= x0)
    assert items["first"] == merged.first[seen].tolist()
    assert items["last"] == merged.last[seen].tolist()
    assert items["right"] == merged.right_ns[seen].tolist()
    assert items["busy"] == merged.busy_ns[seen].tolist()
    assert items["pick"] == merged.pick[seen].tolist()


def test_bin_widths_are_those_of_python(engine):
    scales = [0, 1e-9, 1e-3, 0.6, 1, 4 / 3, 1.5, 2, 2.1, 8, 9.99, *np.geomspace(1, 1e13, 200).tolist()]
    assert engine.evaluate("scales => scales.map(E.binWidth)", scales) == [bin_width_ns(scale) for scale in scales]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("overlaps", [False, True])
def test_counts_and_busy_time_agree_at_every_zoom(engine, overlaps, merged):
    columns = random_columns(5, 5_000, overlaps=overlaps, merged=merged)
    sums = engine.evaluate(
        """async ([packed, bins]) => { const store = await make(packed), add = values => values.reduce((a, b) => a + b, 0)
        return bins.map(bin => store.rows.map(({code}) => { const items = itemsOf(store, code, -1e15, 1e15, bin)
          return [add(items.count), add(items.busy)] })) }""",
        [[pack(columns)], BINS_NS],
    )
    expected = [[columns.count[columns.row == code].sum(), columns.busy_ns[columns.row == code].sum()] for code in range(4)]
    assert all(of_bin == expected for of_bin in sums)


# Columns and store


@pytest.mark.parametrize("level", [None, 1, 6])
@pytest.mark.parametrize("merged", [False, True])
def test_batches_come_back_exactly(engine, level, merged):
    columns = random_columns(6, 2_000, merged=merged)
    state = engine.evaluate("async packed => stateOf(await make(packed))", [pack(columns, level)])
    assert state["rows"] == expected_rows(columns)
    assert state["spanCount"] == columns.count.sum()


def test_extreme_values_come_back_exactly(engine):
    start = np.array([-(1 << 52), -5, 0, 1 << 33, (1 << 52) - 9])
    columns = make_columns(
        [0, 0, 0, 0, 2], start, start + [3, 0, 1, 1 << 40, 9],
        thread=[-1, 0, 127, 128, 40_000], name=[0, 255, 256, 65_536, 1 << 31], queueing_ns=[-1, -129, 1 << 31, -(1 << 33), 0],
        place=[1 << 33, 5, 6, 1 << 32, 0], partition=[0, 1, 2, 300, 0], edges=np.array([[-7, 0, 1 << 50, 70_000], [-9, 1, -9, 2]]),
    )  # fmt: skip
    for level in (None, 6):
        state = engine.evaluate("async packed => stateOf(await make(packed))", [pack(columns, level)])
        assert state["rows"] == expected_rows(columns)
        assert state["edges"] == {"x0": [-7, -9], "row0": [0, 1], "x1": [1 << 50, -9], "row1": [70_000, 2]}
        assert (state["firstNs"], state["lastNs"]) == (-(1 << 52), 1 << 52)


def test_an_empty_batch_is_an_empty_store(engine):
    state = engine.evaluate("async packed => stateOf(await make(packed))", [pack(make_columns([], [], []), 6)])
    assert (state["rows"], state["length"], state["firstNs"], state["lastNs"]) == ([], 0, 0, 0)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("lateness", [0, 60, 5_000])
@pytest.mark.parametrize("merged", [False, True])
def test_many_batches_hold_the_same_as_one(engine, chunk, lateness, merged):
    columns = random_columns(chunk + lateness, 300, lateness=lateness, overlaps=lateness == 60, merged=merged)
    arrival = np.argsort(columns.place)
    packed = [pack(take(columns, arrival[at : at + chunk])) for at in range(0, len(columns), chunk)]
    one, many, filtered_one, filtered_many = engine.evaluate(
        """async ([whole, packed]) => { const filter = {names: new Set([3, 4, 5]), kinds: new Set([2]), partitions: new Set([1])}
        const one = await make(whole), many = await make(packed), both = []
        for (const store of [one, many]) { both.push(stateOf(store)) }
        one.setFilter(filter)
        const watched = new E.SpanStore(); watched.setFilter(filter)
        for (const [manifest, text] of packed) { watched.append(await E.readBatch(manifest, bytesOf(text))); watched.rows.forEach(({code}) => watched.row(code)) }
        return [...both, stateOf(one), stateOf(watched)] }""",
        [[pack(columns)], packed],
    )
    assert one["rows"] == many["rows"] == expected_rows(columns)
    assert {name: one[name] for name in one if name != "rows"} == {name: many[name] for name in many if name != "rows"}
    shown = ~(np.isin(columns.name, [3, 4, 5]) | (columns.kind == 2) | (columns.partition == 1))
    assert filtered_one["rows"] == filtered_many["rows"] == expected_rows(columns, shown)


def evict_one_by_one(batches, capacity):
    """Which places are left, and how many spans went, as the rule says."""
    left, evicted = [], 0
    for batch in batches:
        left += list(zip(batch.end_ns, batch.row, batch.start_ns, batch.place, batch.count, strict=True))
        if len(left) > capacity:
            left.sort()
            gone = len(left) - capacity * 7 // 8
            evicted += sum(span[4] for span in left[:gone])
            left = left[gone:]
    return sorted(int(span[3]) for span in left), int(evicted)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("capacity", [1, 40, 150])
def test_the_spans_that_ended_first_go(engine, overlaps, merged, capacity):
    columns = random_columns(capacity, 500, overlaps=overlaps, merged=merged)
    arrival = np.argsort(columns.place)
    batches = [take(columns, arrival[at : at + 16]) for at in range(0, 500, 16)]
    state, filtered = engine.evaluate(
        """async ([packed, capacity]) => { const store = new E.SpanStore({capacity})
        const filter = {kinds: new Set([0, 1])}
        const watched = new E.SpanStore({capacity}); watched.setFilter(filter)
        for (const [manifest, text] of packed) { for (const one of [store, watched]) one.append(await E.readBatch(manifest, bytesOf(text)))
          watched.rows.forEach(({code}) => watched.row(code)) }
        return [stateOf(store), stateOf(watched)] }""",
        [[pack(batch) for batch in batches], capacity],
    )
    places, evicted = evict_one_by_one(batches, capacity)
    assert sorted(place for row in state["rows"] for place in row["place"]) == places
    assert state["evictedCount"] == evicted
    assert state["length"] == len(places) <= capacity
    kept = np.isin(columns.place, places)
    assert state["spanCount"] == columns.count[kept].sum()
    assert state["rows"] == expected_rows(columns, kept)
    assert filtered["rows"] == expected_rows(columns, kept & ~np.isin(columns.kind, [0, 1]))


def test_edges_are_bounded(engine):
    def packed(number):
        edges = np.array([[number * 10, 0, number * 10 + 5, 1]])
        return pack(make_columns([0], [number * 10], [number * 10 + 4], edges=edges, place=[number]))

    state = engine.evaluate(
        "async packed => stateOf(await make(packed, null, {edgeCapacity: 16}))", [packed(k) for k in range(100)]
    )
    assert len(state["edges"]["x0"]) <= 16
    assert state["edges"]["x0"][-1] == 990
    state = engine.evaluate(
        "async packed => stateOf(await make(packed, null, {capacity: 16}))", [packed(k) for k in range(100)]
    )
    assert state["edges"]["x1"][0] > state["rows"][0]["end"][0] - 10


def test_places_and_times_find_a_span(engine):
    columns = random_columns(8, 300, overlaps=True)
    found = engine.evaluate(
        """async packed => { const store = await make(packed)
        return store.rows.map(row => [list(row.start, row.length).map((start, index) => store.indexOf(row.code, start, row.place[index])),
          list(row.start, row.length).map(start => store.indexAt(row.code, start)), store.indexOf(row.code, 17.5, 3), store.indexAt(row.code, -1)])
        function list(values, length) { return Array.from({length}, (_, index) => values[index]) } }""",
        [pack(columns)],
    )
    for code, (by_place, by_time, *missing) in enumerate(found):
        start = columns.start_ns[columns.row == code]
        assert by_place == list(range(len(start)))
        assert by_time == (np.searchsorted(start, start, side="right") - 1).tolist()
        assert missing == [-1, -1]


def test_sums_over_spans_are_exact_after_late_spans_and_evictions(engine):
    columns = random_columns(9, 900, lateness=400, merged=True)
    arrival = np.argsort(columns.place)
    packed = [pack(take(columns, arrival[at : at + 30])) for at in range(0, 900, 30)]
    wrong = engine.evaluate(
        """async packed => { const store = new E.SpanStore({capacity: 500}), wrong = []
        store.setMatches(Uint8Array.from({length: 200}, (_, name) => name % 3 === 0))
        for (const [manifest, text] of packed) {
          store.append(await E.readBatch(manifest, bytesOf(text)))
          for (const row of store.rows) for (let i = 0; i < row.length; i += 7) for (let j = i; j < row.length; j += 11) {
            let busy = 0, count = 0, matches = 0
            for (let k = i; k <= j; k++) { busy += row.busy[k]; count += row.count[k]; if (store.matches[row.name[k]]) matches += row.count[k] }
            const got = [store.busySum(row.code, i, j), store.countSum(row.code, i, j), store.matchCount(row.code, i, j)]
            if (got.join() !== [busy, count, matches].join()) wrong.push([row.code, i, j, got, busy, count, matches])
          }
        }
        return wrong.slice(0, 3) }""",
        packed,
    )
    assert wrong == []


# Busy lanes and SMs


def tables_of(trace, codes_lane, *, zero_ns=0):
    counted = counted_kinds(trace)
    steps = sm_time_steps(trace)
    sizes = [step.size for step in steps]
    whole = sizes[-1] if sizes[-1].name is None else None
    partitions = [{"text": "whole", "sms": 132, "band": sizes.index(whole) if whole else -1}]
    for part in trace.partitions:
        band = next(k for k, size in enumerate(sizes) if (size.name, size.granted_sms) == (part.name, part.granted_sms))
        partitions.append({"text": f"{part.name} {part.granted_sms}", "sms": part.granted_sms, "band": band})
    return {
        "names": list(trace.names),
        "rows": [{"lane": int(lane), "overlaps": False} for lane in codes_lane],
        "kind_counted": [kind in counted for kind in SPAN_KINDS],
        "partitions": partitions,
        "bands": [{} for _ in sizes],
        "sm_count": 132,
    }


def rowed(trace):
    """Give each span a row: by lane, thread and depth of nesting."""
    depth, above = np.zeros(len(trace), np.int64), trace.parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, trace.parent[above], -1)
    keys, codes = np.unique(np.stack((trace.lane, trace.thread, depth)), axis=1, return_inverse=True)
    return codes.ravel(), keys[0]


def deep_trace(seed=0, count=400, **meta):
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
        for kind, from_, to in (("kernel", 0, 0.4), ("copy", 0.5, 0.9)):
            inner = begin + int(length * from_), begin + int(length * to)
            spans.append((f"lane {lane}", kind, *inner, options | {"kind": kind, "parent": place}))
        spans.append((f"lane {lane}", "wait", begin + length, begin + length + 5, options | {"kind": "wait"}))
        at[lane] = begin + length + 5
    return make_trace(spans, **meta)


def lanes_at(trace, x0, x1, n):
    """Mean number of busy lanes in each column, from the steps."""
    times, counts = count_steps(busy_edges(trace))
    return mean_of_steps(times, counts, x0, x1, n)


def mean_of_steps(times, counts, x0, x1, n):
    borders = np.linspace(x0, x1, n + 1)
    if not len(times):
        return np.zeros(n)
    area = np.concatenate(([0], np.cumsum(counts[:-1] * np.diff(times)))).astype(float)
    place = np.searchsorted(times, borders, side="right") - 1
    until = np.where(place < 0, 0, area[place] + counts[place] * (borders - times[place]))
    return np.diff(until) / np.diff(borders)


BUSY_TRACES = {
    "flat": lambda: random_trace(4_000, 5, mean_ns=300),
    "100 lanes": lambda: random_trace(4_000, 100),
    "nested": nested_trace,
    "deep": deep_trace,
    "deep kernels": lambda: deep_trace(1, tier="kernels"),
    "partitions": partition_trace,
    "repartition": repartition_trace,
    "no length": lambda: make_trace([("a", "x", 5, 5), ("b", "x", 7, 7)]),
}


def load_trace(engine, trace, *, chunk=None):
    codes, lanes = rowed(trace)
    columns = columns_of(trace, codes, 0)
    tables = tables_of(trace, lanes)
    arrival = np.argsort(columns.place)
    size = chunk or max(1, len(columns))
    packed = [pack(take(columns, arrival[at : at + size])) for at in range(0, len(columns), size)]
    return packed, tables


def check_busy(engine, trace, *, chunk=None, evaluate_between=False):
    packed, tables = load_trace(engine, trace, chunk=chunk)
    first, last = int(trace.start_ns.min()), int(trace.end_ns.max()) + 1
    middle, width = (first + last) / 2, last - first
    windows = [[first, last, 7], [first, last, 1150], [first - width, last + width, 90], [middle, middle + width / 50, 40]]
    windows += [[middle, middle + 3, 10], [last + 5, last + 9, 3], [first, last, 1]]
    found = engine.evaluate(
        """async ([packed, tables, windows, between]) => { const store = await make([], tables.rows)
        for (const [manifest, text] of packed) { store.append(await E.readBatch(manifest, bytesOf(text)))
          if (between) { E.busyShares(store, tables, 0, 1000, 5); E.smShares(store, tables, 0, 1000, 5) } }
        return windows.map(([x0, x1, n]) => [[...E.busyShares(store, tables, x0, x1, n).lanes], E.smShares(store, tables, x0, x1, n).map(band => [...band]),
          E.stepsOf(store, tables, x0, x1, 1e6), E.stepsOf(store, tables, x0, x1, 3)]) }""",
        [packed, tables, windows, evaluate_between],
    )
    steps = sm_time_steps(trace)
    stack = stack_sms(steps, 132)
    times, counts = count_steps(busy_edges(trace))
    for (x0, x1, n), (lanes, bands, exact, few) in zip(windows, found, strict=True):
        np.testing.assert_allclose(lanes, lanes_at(trace, x0, x1, n), rtol=1e-9, atol=1e-6)
        assert len(bands) == len(stack)
        for band, (band_times, sms) in zip(bands, stack, strict=True):
            np.testing.assert_allclose(band, mean_of_steps(band_times, sms, x0, x1, n), rtol=1e-9, atol=1e-4)
        check_steps(exact, times, counts, x0, x1)
        assert few is None or few == exact


def check_steps(steps, times, counts, x0, x1):
    """Steps may repeat a number, where one lane's span follows another at once; their values are those of Python."""
    assert steps["time"][0] == x0
    assert steps["time"] == sorted(set(steps["time"]))
    place = np.searchsorted(times, steps["time"], side="right") - 1
    assert steps["count"] == np.where(place < 0, 0, np.append(counts, 0)[place]).tolist()
    inside = times[(times > x0) & (times <= x1)]
    assert set(inside.tolist()) <= set(steps["time"])


@pytest.mark.parametrize("name", BUSY_TRACES)
def test_busy_lanes_and_sms_are_those_of_python(engine, name):
    check_busy(engine, BUSY_TRACES[name]())


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("name", ["deep", "deep kernels", "repartition", "flat"])
def test_busy_lanes_and_sms_grow_with_what_is_appended(engine, name, between):
    check_busy(engine, BUSY_TRACES[name](), chunk=37, evaluate_between=between)


def test_sms_of_many_partitions_are_never_more_than_the_card(engine):
    trace = deep_trace(3, 700, partitions=repartition_trace().partitions[:2])
    check_busy(engine, trace, chunk=50, evaluate_between=True)


def test_unions_are_of_what_is_left_after_an_eviction(engine):
    trace = deep_trace(4, 300)
    packed, tables = load_trace(engine, trace, chunk=40)
    lanes, fresh = engine.evaluate(
        """async ([packed, tables]) => { const store = await make([], tables.rows, {capacity: 300}), ask = one => [...E.busyShares(one, tables, 0, 60000, 500).lanes]
        let fresh, last
        for (const [manifest, text] of packed) { store.append(await E.readBatch(manifest, bytesOf(text))); last = ask(store) }
        fresh = await make([], tables.rows)
        const filled = new Map(store.rows.map(row => [row.code, row]))
        for (const [code, row] of filled) if (row.length) fresh.append(new E.SpanBatch([[code, 0, row.length]], Object.fromEntries(["start", "end", "name", "kind", "thread", "partition", "queueing", "place"].map(name => [name, row[name].slice(0, row.length)]))))
        return [last, ask(fresh)] }""",
        [packed, tables],
    )
    assert sum(lanes) > 0
    np.testing.assert_allclose(lanes, fresh, rtol=1e-9, atol=1e-9)


def test_kinds_count_anew_when_the_first_kernel_arrives(engine):
    trace = deep_trace(5, 50, tier="kernels")
    packed, tables = load_trace(engine, trace, chunk=20)
    before = tables | {"kind_counted": [True] + tables["kind_counted"][1:]}
    lanes = engine.evaluate(
        """async ([packed, before, tables]) => { const store = await make(packed, tables.rows)
        E.busyShares(store, before, 0, 9000, 30); E.smShares(store, before, 0, 9000, 30)
        return [...E.busyShares(store, tables, 0, 9000, 30).lanes] }""",
        [packed, before, tables],
    )
    np.testing.assert_allclose(lanes, lanes_at(trace, 0, 9000, 30), rtol=1e-9, atol=1e-9)


# Totals and searches


@pytest.mark.parametrize("name", [name for name in BUSY_TRACES if name != "100 lanes"])
def test_totals_of_the_whole_are_those_of_overlap(engine, name):
    trace = BUSY_TRACES[name]()
    packed, tables = load_trace(engine, trace)
    window = {"start": int(trace.start_ns.min()), "end": int(trace.end_ns.max())}
    found = engine.evaluate(
        "async ([packed, tables, window]) => E.totals(await make(packed, tables.rows), tables, window)",
        [packed, tables, window],
    )
    expected = overlap(trace)
    assert found["wall_ns"] == expected.wall_ns
    assert [lane["busy"] for lane in found["lanes"]] == expected.busy_ns.tolist()
    assert [lane["count"] for lane in found["lanes"]] == np.bincount(trace.lane).tolist()
    for pair in found["pairs"]:
        assert pair["both_ns"] == expected.common_ns[pair["a"], pair["b"]]
        assert pair["share"] == expected.common_share[pair["a"], pair["b"]]
    busy_lanes = int((expected.busy_ns > 0).sum())
    assert len(found["pairs"]) == busy_lanes * (busy_lanes - 1) // 2
    names = {entry["name"]: (entry["count"], entry["busy"]) for entry in found["names"]}
    assert names == {
        code: (int((trace.name == code).sum()), int(trace.duration_ns[trace.name == code].sum()))
        for code in range(len(trace.names))
    }
    assert [entry["busy"] for entry in found["names"]] == sorted((busy for _, busy in names.values()), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_totals_of_a_window_are_those_of_the_clipped_trace(engine, seed):
    trace = deep_trace(seed, 200)
    packed, tables = load_trace(engine, trace)
    start, end = 4_003, 4_003 + 9_000 // (seed + 1)
    lanes = [0, 2]
    found = engine.evaluate(
        "async ([packed, tables, {start, end, lanes}]) => E.totals(await make(packed, tables.rows), tables, {start, end, lanes: new Set(lanes)})",
        [packed, tables, {"start": start, "end": end, "lanes": lanes}],
    )
    left, right = np.maximum(trace.start_ns, start), np.minimum(trace.end_ns, end)
    inside = ((left < right) | ((left == right) & (trace.duration_ns == 0))) & np.isin(trace.lane, lanes)
    spans = [
        (
            trace.lanes[trace.lane[k]].name,
            trace.names[trace.name[k]],
            int(left[k]),
            int(right[k]),
            {"kind": SPAN_KINDS[trace.kind[k]]},
        )
        for k in np.flatnonzero(inside)
    ]
    clipped = make_trace(spans, lanes=trace.lanes)
    expected = overlap(clipped)
    assert {lane["lane"]: lane["busy"] for lane in found["lanes"]} == {lane: int(expected.busy_ns[lane]) for lane in lanes}
    assert {lane["lane"]: lane["count"] for lane in found["lanes"]} == {
        lane: int((trace.lane[inside] == lane).sum()) for lane in lanes
    }
    assert [(pair["a"], pair["b"], pair["both_ns"]) for pair in found["pairs"]] == [(0, 2, expected.common_ns[0, 2])]
    assert found["wall_ns"] == expected.wall_ns
    for entry in found["names"]:
        own = inside & (trace.name == entry["name"])
        assert (entry["count"], entry["busy"]) == (own.sum(), (right - left)[own].sum())


def test_spans_that_stand_for_several_count_as_such(engine):
    columns = make_columns([0, 0], [0, 100], [100, 110], count=[40, 1], busy_ns=[25, 10])
    tables = {"names": ["x"], "rows": [{"lane": 0}], "kind_counted": [True], "partitions": [], "bands": [], "sm_count": 1}
    lanes, found = engine.evaluate(
        """async ([packed, tables]) => { const store = await make(packed, tables.rows)
        return [[...E.busyShares(store, tables, 0, 200, 4).lanes], E.totals(store, tables, {start: 50, end: 200, lanes: null})] }""",
        [[pack(columns)], tables],
    )
    assert lanes == [0.25, 0.25, 0.2, 0]
    assert found["lanes"] == [{"lane": 0, "count": 41, "busy": 22.5}]
    assert found["names"] == [{"name": 0, "count": 41, "busy": 22.5}]


@pytest.mark.parametrize("overlaps", [False, True])
def test_search_goes_through_all_matches_in_order_of_time(engine, overlaps):
    columns = random_columns(11, 800, overlaps=overlaps)
    wanted = [3, 77, 150]
    middle = float(np.median(columns.start_ns[np.isin(columns.name, wanted)]))
    names = [f"name {code}" if code not in wanted else f"WANTED {code}" for code in range(300)]
    found = engine.evaluate(
        """async ([packed, names, middle]) => { const store = await make(packed)
        store.setMatches(E.findNames(names, " wanted"))
        const walk = direction => { const places = []; let at = null
          while ((at = E.nextMatch(store, at, direction))) places.push(store.row(at.row).place[at.index])
          return places }
        const matches = store.matches
        const from = E.nextMatch(store, {time: middle}), to = E.nextMatch(store, {time: middle}, -1)
        const result = [walk(1), walk(-1), E.countMatches(store), from && store.row(from.row).start[from.index], to && store.row(to.row).start[to.index]]
        const also = Uint8Array.from(matches); also.also = (row, index) => row.end[index] - row.start[index] > 5
        store.setMatches(also)
        const longer = walk(1)
        store.setMatches(null)
        return [...result, longer, E.nextMatch(store, null), E.findNames(names, " ")] }""",
        [[pack(columns)], names, middle],
    )
    forward, backward, count, later, earlier, longer, *nothing = found
    own = np.flatnonzero(np.isin(columns.name, wanted))
    order = own[np.lexsort((own, columns.row[own], columns.start_ns[own]))]
    assert forward == columns.place[order].tolist()
    assert backward == forward[::-1]
    assert count == len(own)
    starts = columns.start_ns[order]
    assert later == starts[starts >= middle][0]
    assert earlier == starts[starts <= middle][-1]
    is_long = columns.end_ns[order] - columns.start_ns[order] > 5
    assert longer == columns.place[order][is_long].tolist()
    assert nothing == [None, None]


# Speed


def million(count):
    trace = random_trace(count, 16)
    return columns_of(trace, trace.lane, 0)


def test_a_million_spans_load_and_merge_quickly(engine):
    figures = engine.evaluate(
        """async ([manifest, text]) => { const raw = await E.inflate(bytesOf(text)), times = {load: [], merge: []}
        for (let round = 0; round < 5; round++) {
          let begin = performance.now()
          const store = new E.SpanStore({})
          store.append(E.unpackColumns(manifest, raw))
          times.load.push(performance.now() - begin)
          const out = new E.LodItems(), bin = E.binWidth((store.lastNs - store.firstNs) / 1150)
          for (let frame = 0; frame < 8; frame++) {
            begin = performance.now()
            out.length = 0
            for (let code = 0; code < 16; code++) E.decimate(store, code, store.firstNs, store.lastNs, bin, out)
            times.merge.push(performance.now() - begin)
          }
        }
        return [Math.min(...times.load), Math.min(...times.merge)] }""",
        pack(million(1_000_000), 6),
    )
    # Generous: the machine may be busy. 40 and 2 ms are usual.
    assert figures[0] < 400
    assert figures[1] < 15
