"""What the page's engine holds, merges and finds, against Python's own answers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpustreamlab.analysis import bin_width_ns, merge_narrow
from tests.helpers.engine import make_columns, pack, random_columns, take

pytestmark = pytest.mark.browser


def expected_rows(columns, kept=None):
    """What the rows of a store hold, by row code."""
    fields = {
        "start": "start_ns", "end": "end_ns", "name": "name", "kind": "kind", "thread": "thread", "partition": "partition",
        "queueing": "queueing_ns", "place": "place", "count": "count", "busy": "busy_ns",
    }  # fmt: skip
    kept = np.ones(len(columns), bool) if kept is None else kept
    codes = range(int(columns.row.max(initial=-1)) + 1)
    return [{js: getattr(columns, py)[kept & (columns.row == code)].tolist() for js, py in fields.items()} for code in codes]


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
    told = engine.evaluate(
        """async ([packed, rows, codes, queries]) => { const store = await make(packed, rows)
        return JSON.stringify(queries.map(([bin, x0, x1]) => codes.map(code => itemsOf(store, code, x0, x1, bin)))) }""",
        [[pack(columns)], rows, codes, queries],
    )
    found = json.loads(told)  # as values Playwright sends them ten times as slowly
    for code, own in [(code, columns.row == code) for code in codes]:
        row, start, end = columns.row[own], columns.start_ns[own], columns.end_ns[own]
        for (bin_ns, x0, x1), by_code in zip(queries, found, strict=True):
            merged = merge_narrow(row, start, end, bin_ns)
            seen = (merged.left_ns <= x1) & (merged.right_ns >= x0)
            expected = {"left": merged.left_ns, "right": merged.right_ns, "busy": merged.busy_ns}
            expected |= {name: getattr(merged, name) for name in ("first", "last", "count")}
            items = by_code[codes.index(code)]
            assert items == {name: values[seen].tolist() for name, values in expected.items()}, (bin_ns, x0, x1)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        *((shape, None) for shape in SHAPES),
        *((shape, [{"lane": 0, "overlaps": True}] * 4) for shape in ("random", "over each other")),
    ],
)
def test_items_are_those_of_python_also_where_the_tables_say_that_rows_overlap(engine, shape, rows):
    check_items(engine, make_columns(*SHAPES[shape]()), rows)


def test_bin_widths_are_those_of_python(engine):
    scales = [0, 1e-9, 1e-3, 0.6, 1, 4 / 3, 1.5, 2, 2.1, 8, 9.99, *np.geomspace(1, 1e13, 200).tolist()]
    assert engine.evaluate("scales => scales.map(E.binWidth)", scales) == [bin_width_ns(scale) for scale in scales]


# Columns and store


@pytest.mark.parametrize("level", [None, 1, 6])
@pytest.mark.parametrize(("count", "merged"), [(0, False), (2_000, False), (2_000, True)])
def test_batches_come_back_exactly(engine, level, count, merged):
    columns = random_columns(6, count, merged=merged)
    state = engine.evaluate("async packed => stateOf(await make(packed))", [pack(columns, level)])
    assert state["rows"] == expected_rows(columns)
    assert state["spanCount"] == columns.count.sum()


def test_extreme_values_come_back_exactly(engine):
    start = np.array([-(1 << 52), -5, 0, 1 << 33, (1 << 52) - 9])
    columns = make_columns(
        [0, 0, 0, 0, 2], start, start + np.array([3, 0, 1, 1 << 40, 9]),
        thread=[-1, 0, 127, 128, 40_000], name=[0, 255, 256, 65_536, 1 << 31],
        queueing_ns=[-1, -129, 1 << 31, -(1 << 33), 0],
        place=[1 << 33, 5, 6, 1 << 32, 0], partition=[0, 1, 2, 300, 0],
        edges=np.array([[-7, 0, 1 << 50, 70_000], [-9, 1, -9, 2]]),
    )  # fmt: skip
    for level in (None, 6):
        state = engine.evaluate("async packed => stateOf(await make(packed))", [pack(columns, level)])
        assert state["rows"] == expected_rows(columns)
        assert state["edges"] == {"x0": [-7, -9], "row0": [0, 1], "x1": [1 << 50, -9], "row1": [70_000, 2]}
        assert (state["firstNs"], state["lastNs"]) == (-(1 << 52), 1 << 52)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("lateness", [0, 60, 5_000])
@pytest.mark.parametrize("merged", [False, True])
def test_many_batches_hold_the_same_as_one(engine, chunk, lateness, merged):
    columns = random_columns(chunk + lateness, 300, lateness=lateness, overlaps=lateness == 60, merged=merged)
    arrival = np.argsort(columns.place)
    packed = [pack(take(columns, arrival[at : at + chunk])) for at in range(0, len(columns), chunk)]
    one, many, filtered_one, filtered_many = engine.evaluate(
        """async ([whole, packed]) => { const both = []
        const filter = {names: new Set([3, 4, 5]), kinds: new Set([2]), partitions: new Set([1])}
        const one = await make(whole), many = await make(packed)
        for (const store of [one, many]) { both.push(stateOf(store)) }
        one.setFilter(filter)
        const watched = new E.SpanStore()
        watched.setFilter(filter)
        for (const [manifest, text] of packed) {
          watched.append(await E.readBatch(manifest, bytesOf(text)))
          watched.rows.forEach(({code}) => watched.row(code))
        }
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
            last_ns = left[len(left) - capacity * 7 // 8 - 1][0]
            gone = sum(end_ns <= last_ns for end_ns, *_ in left)
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
        for (const [manifest, text] of packed) {
          for (const one of [store, watched]) one.append(await E.readBatch(manifest, bytesOf(text)))
          watched.rows.forEach(({code}) => watched.row(code))
        }
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


def test_the_first_span_that_reaches_a_time_is_found_after_late_spans(engine):
    columns = random_columns(12, 300, rows=1, overlaps=True, lateness=900)
    arrival = np.argsort(columns.place)
    packed = [pack(take(columns, arrival[at : at + 20])) for at in range(0, 300, 20)]
    wrong = engine.evaluate(
        """async packed => { const store = new E.SpanStore({}), wrong = []
        for (const [manifest, text] of packed) {
          store.append(await E.readBatch(manifest, bytesOf(text)))
          const row = store.row(0), ends = [...row.end.subarray(0, row.length)]
          for (let t = 0; t < 5000; t += 13) {
            const first = ends.findIndex(end => end >= t)
            if (row.firstEndingFrom(t) !== (first < 0 ? row.length : first)) wrong.push([row.length, t, first])
          }
        }
        return wrong.slice(0, 3) }""",
        packed,
    )
    assert wrong == []


KEEP_16 = "async packed => stateOf(await make(packed, null, {{{}: 16}}))"


def test_edges_are_bounded(engine):
    def packed(number):
        edges = np.array([[number * 10, 0, number * 10 + 5, 1]])
        return pack(make_columns([0], [number * 10], [number * 10 + 4], edges=edges, place=[number]))

    state = engine.evaluate(KEEP_16.format("edgeCapacity"), [packed(k) for k in range(100)])
    assert len(state["edges"]["x0"]) <= 16
    assert state["edges"]["x0"][-1] == 990
    state = engine.evaluate(KEEP_16.format("capacity"), [packed(k) for k in range(100)])
    assert state["edges"]["x1"][0] > state["rows"][0]["end"][0] - 10


def test_places_and_times_find_a_span(engine):
    columns = random_columns(8, 300, overlaps=True)
    found = engine.evaluate(
        """async packed => { const store = await make(packed)
        return store.rows.map(row => { const {code} = row, starts = [...row.start.subarray(0, row.length)]
          return [starts.map((start, index) => store.indexOf(code, start, row.place[index])),
            starts.map(start => row.indexAt(start)), store.indexOf(code, 17.5, 3), row.indexAt(-1)] }) }""",
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
            for (let k = i; k <= j; k++) {
              busy += row.busy[k]
              count += row.count[k]
              if (store.matches[row.name[k]]) matches += row.count[k]
            }
            const got = [row.busySum(i, j), row.countSum(i, j), store.matchCount(row.code, i, j)]
            if (got.join() !== [busy, count, matches].join()) wrong.push([row.code, i, j, got, busy, count, matches])
          }
        }
        return wrong.slice(0, 3) }""",
        packed,
    )
    assert wrong == []


@pytest.mark.parametrize("overlaps", [False, True])
def test_search_goes_through_all_matches_in_order_of_time(engine, overlaps):
    columns = random_columns(11, 800, overlaps=overlaps)
    wanted = [3, 77, 150]
    middle = float(np.median(columns.start_ns[np.isin(columns.name, wanted)]))
    names = [f"name {code}" if code not in wanted else f"WANTED {code}" for code in range(300)]
    found = engine.evaluate(
        """async ([packed, names, middle]) => { const store = await make(packed)
        store.setMatches(Uint8Array.from(names, name => name.startsWith("WANTED")))
        const walk = direction => { const places = []; let at = null
          while ((at = E.nextMatch(store, at, direction))) places.push(store.row(at.row).place[at.index])
          return places }
        const matches = store.matches
        const from = E.nextMatch(store, {time: middle}), to = E.nextMatch(store, {time: middle}, -1)
        const startOf = ({row, index}) => store.row(row).start[index]
        const result = [walk(1), walk(-1), E.countMatches(store), startOf(from), startOf(to)]
        const also = Uint8Array.from(matches); also.also = (row, index) => row.end[index] - row.start[index] > 5
        store.setMatches(also)
        const longer = walk(1)
        store.setMatches(null)
        return [...result, longer, E.nextMatch(store, null)] }""",
        [[pack(columns)], names, middle],
    )
    forward, backward, count, later, earlier, longer, nothing = found
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
    assert nothing is None
