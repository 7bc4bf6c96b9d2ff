"""Rows of kernels, calls and ranges of others, decided while they come in: late, and in any order."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, ArrivedSpans, LiveRows, OpenSpans
from gpustreamlab.analysis._live_shelves import KEPT_INTERVALS
from gpustreamlab.analysis._regions import LEVEL_TOLERANCE_NS
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind

FIRST_WORK = 1 << 40
NONE_OPEN = OpenSpans(*(np.empty(0, np.int64),) * 3)
TICK = 10 * LEVEL_TOLERANCE_NS


def arrived(*spans, lane=0, sms=132):
    """Make spans of (kind, start, end[, lane[, number, parent]]), times in ticks."""
    rows = [(*span, lane)[:4] if len(span) < 4 else span for span in spans]
    numbers = [row[4] if len(row) > 4 else FIRST_WORK + place for place, row in enumerate(rows)]
    parents = [row[5] if len(row) > 5 else -1 for row in rows]
    return ArrivedSpans(
        np.array(numbers, np.int64),
        np.array(parents, np.int64),
        np.array([row[3] for row in rows], np.int64),
        np.array([row[1] * TICK for row in rows], np.int64),
        np.array([row[2] * TICK for row in rows], np.int64),
        np.full(len(rows), sms),
        np.array([SPAN_KINDS.index(SpanKind(row[0])) for row in rows], np.int64),
    )


def shelves_of(*batches, lane_count=1, reserve=False):
    """Give batches to the rows; return the shelf and the layer of each span, in the order in which they came."""
    rows = LiveRows()
    if reserve:
        rows.reserve(lane_count)
    codes = np.concatenate([rows.add(batch, NONE_OPEN) for batch in batches])
    table = rows.table(lane_count=lane_count)
    return table.shelf[codes].tolist(), table.layer[codes].tolist()


def test_kernels_that_come_before_their_range_lie_below_it():
    kernels = arrived(("kernel", 1, 2), ("kernel", 2, 3))
    shelf, layer = shelves_of(kernels, arrived(("range", 0, 5, 0, 0, -1)), arrived(("kernel", 3, 4)))
    assert shelf == [1, 1, 0, 1]
    assert layer == [1, 1, 0, 1]


def test_kernels_in_nested_ranges_have_one_row():
    batch = arrived(
        ("kernel", 2, 3, 0, FIRST_WORK, 1),
        ("range", 1, 4, 0, 1, 0),
        ("range", 0, 6, 0, 0, -1),
        ("kernel", 5, 6, 0, FIRST_WORK + 1, 0),
    )
    assert shelves_of(batch) == ([2, 1, 0, 2], [1, 0, 0, 1])


def test_a_kernel_that_comes_late_finds_room_between_others():
    shelf, _ = shelves_of(arrived(("kernel", 0, 1), ("kernel", 5, 6)), arrived(("copy", 2, 3)), arrived(("kernel", 0, 1)))
    assert shelf == [0, 0, 0, 1]


def test_a_batch_that_begins_late_puts_only_that_elsewhere():
    shelf, _ = shelves_of(arrived(("kernel", 0, 5)), arrived(("kernel", 3, 4), ("kernel", 5, 6), ("kernel", 6, 7)))
    assert shelf == [0, 1, 0, 0]


def test_a_late_kernel_that_reaches_on_pushes_what_follows():
    shelf, _ = shelves_of(arrived(("kernel", 10, 11)), arrived(("kernel", 0, 1), ("kernel", 11, 12)), arrived(("kernel", 1, 9)))
    assert shelf == [0, 0, 0, 0]


def test_many_late_kernels_share_one_more_row():
    count = 3 * KEPT_INTERVALS
    early = arrived(*(("kernel", 2 * k, 2 * k + 1) for k in range(count)))
    late = arrived(*(("kernel", 2 * k + 1, 2 * k + 2) for k in range(count - 1)))
    shelf, _ = shelves_of(early, late, arrived(("kernel", 3 * count, 4 * count)))
    assert set(shelf[:count]) == {0}
    assert set(shelf[count:-1]) == {1}
    assert shelf[-1] == 0


def test_kernels_of_a_graph_lie_below_each_other():
    shelf, _ = shelves_of(
        arrived(("kernel", 0, 9), ("kernel", 1, 5), ("kernel", 6, 8)), arrived(("kernel", 9, 10), ("kernel", 9, 12))
    )
    assert shelf == [0, 1, 1, 1, 0]


def test_a_range_of_others_lies_above_what_it_covers_although_it_comes_later():
    inner = arrived(("annotation", 2, 3), ("annotation", 1, 4), ("annotation", 5, 6))
    shelf, layer = shelves_of(inner, arrived(("annotation", 0, 7)), arrived(("host", 2, 3)))
    assert shelf == [2, 1, 2, 0, 3]
    assert layer == [0, 0, 0, 0, 1]


def test_a_call_that_is_made_of_others_lies_above_them():
    assert shelves_of(arrived(("host", 0, 9), ("host", 1, 2), ("host", 3, 4)))[0] == [0, 1, 1]
    assert shelves_of(arrived(("host", 1, 2)), arrived(("host", 3, 4)), arrived(("host", 0, 9)))[0] == [1, 1, 0]


@pytest.mark.parametrize("kind", ["kernel", "annotation", "host", "range"])
def test_the_row_made_for_an_empty_lane_is_taken_by_its_first_spans_whatever_they_are(kind):
    rows = LiveRows()
    rows.reserve(2)
    before = rows.version
    code = rows.add(arrived((kind, 0, 1, 1)), NONE_OPEN).tolist()
    assert code == [1]
    assert len(rows) == 2
    assert rows.version != before
    assert rows.table(lane_count=2).layer.tolist() == [0, int(kind in {"kernel", "host"})]


def test_a_row_taken_by_kernels_is_not_used_by_ranges():
    shelf, layer = shelves_of(arrived(("kernel", 0, 1)), arrived(("range", 0, 1, 0, 0, -1)), reserve=True)
    assert (shelf, layer) == ([1, 0], [1, 0])


def test_each_level_folds_on_its_own_and_counts():
    rows = LiveRows()
    crowd = arrived(*(("kernel", k, 1_000) for k in range(MAX_LANE_ROWS + 4)))
    codes = rows.add(crowd, NONE_OPEN)
    rows.add(arrived(("range", 0, 1, 0, 0, -1)), NONE_OPEN)
    table = rows.table(lane_count=1)
    assert rows.folded_spans == 5
    assert table.overlaps[codes].tolist() == [*[False] * (MAX_LANE_ROWS - 1), *[True] * 5]
    assert table.shelf.max() == MAX_LANE_ROWS
    more = rows.add(crowd, NONE_OPEN)
    assert rows.table(lane_count=1).overlaps[more].all()


KINDS = st.sampled_from(["kernel", "copy", "host", "annotation", "range"])


@given(
    st.lists(st.tuples(KINDS, st.integers(0, 50), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=60), st.data()
)
def test_no_span_of_a_row_overlaps_another_in_whatever_order_they_come(spans, data):
    rows, codes, at = LiveRows(), [], 0
    everything = [
        (kind, start, start + duration, lane, number, -1) for number, (kind, start, duration, lane) in enumerate(spans)
    ]
    while at < len(everything):
        size = data.draw(st.integers(1, 20))
        codes.append(rows.add(arrived(*everything[at : at + size]), NONE_OPEN))
        at += size
    codes = np.concatenate(codes)
    columns, table = arrived(*everything), rows.table(lane_count=3)

    assert table.lane[codes].tolist() == columns.lane.tolist()
    for code in np.unique(codes[~table.overlaps[codes]]).tolist():
        mine = np.flatnonzero(codes == code)
        mine = mine[np.lexsort((columns.end_ns[mine], columns.start_ns[mine]))]
        starts, ends = columns.start_ns[mine], columns.end_ns[mine]
        assert (starts[1:] >= ends[:-1]).all()
        assert len(set(np.isin(columns.kind[mine], [1, 2, 3]).tolist())) == 1
    for lane in range(3):
        own = np.flatnonzero(table.lane == lane)
        assert (np.diff(table.layer[own][np.argsort(table.shelf[own])]) >= 0).all()


def test_what_has_no_length_hides_no_span_that_starts_with_it():
    rows = LiveRows()
    first = rows.add(arrived(("kernel", 0, 50, 0, 0, -1), ("kernel", 0, 0, 0, 1, -1)), NONE_OPEN)
    second = rows.add(arrived(("kernel", 0, 50, 0, 2, -1)), NONE_OPEN)
    assert first[0] == first[1]
    assert second[0] != first[0]


def test_twenty_thousand_kernels_take_little_time():
    count = 20_000
    start_ns = np.sort(np.random.default_rng(0).integers(0, 10**9, count))
    lane = np.arange(count) % 16
    zeros = np.zeros(count, np.int64)
    rows, times_s = LiveRows(), []
    for batch in range(3):
        starts = start_ns + batch * 10**9
        spans = ArrivedSpans(FIRST_WORK + np.arange(count), zeros - 1, lane, starts, starts + 1, zeros + 132, zeros + 1)
        began_s = time.thread_time()
        rows.add(spans, NONE_OPEN)
        times_s.append(time.thread_time() - began_s)

    assert len(rows) == 16
    assert min(times_s) < 0.05  # 3 ms on the machine on which it was written
