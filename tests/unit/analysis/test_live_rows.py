"""Rows decided while spans come in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import MAX_LANE_ROWS, ArrivedSpans, LiveRows, OpenSpans, span_rows
from gpustreamlab.model import Device, Lane, Partition, Trace, TraceMetadata

LANES = 3
SMS = (132, 96, 32)


class Played:
    """Threads that open and close ranges; each step takes 10 ns."""

    def __init__(self):
        self.now, self.number = 0, 0
        self.open = {}
        self.spans = []  # in the order of their ends

    def start(self, thread, lane, sms=132):
        self.now += 10
        stack = self.open.setdefault(thread, [])
        stack.append({"number": self.number, "parent": stack[-1]["number"] if stack else -1, "lane": lane, "start": self.now})
        stack[-1] |= {"sms": sms, "thread": thread}
        self.number += 1
        return stack[-1]

    def end(self, thread):
        self.now += 10
        span = self.open[thread].pop()
        self.spans.append(span | {"end": self.now})

    def end_all(self):
        for thread, stack in self.open.items():
            while stack:
                self.end(thread)


def column(spans, name):
    return np.array([span[name] for span in spans], np.int64)


def arrived(spans):
    columns = (column(spans, name) for name in ("number", "parent", "lane", "start", "end", "sms"))
    return ArrivedSpans(*columns, np.zeros(len(spans), np.int64))


def open_around(spans, everything):
    """What encloses the spans and comes later."""
    by_number = {span["number"]: span for span in everything}
    here, found = {span["number"] for span in spans}, {}
    for span in spans:
        parent = span["parent"]
        while parent in by_number and parent not in here and parent not in found:
            found[parent] = by_number[parent]
            parent = found[parent]["parent"]
    return OpenSpans(*(column(list(found.values()), name) for name in ("number", "parent", "lane")))


def feed(spans, sizes, rows=None):
    """Give the spans to the rows in batches; return the code of each."""
    rows = LiveRows() if rows is None else rows
    codes, at = [], 0
    for size in sizes:
        batch, later = spans[at : at + size], spans[at + size :]
        codes.append(rows.add(arrived(batch), open_around(batch, later)))
        at += size
    return rows, np.concatenate(codes) if codes else np.empty(0, np.int64)


def trace_of(spans):
    """Make the trace that the same spans give afterwards."""
    place = {span["number"]: row for row, span in enumerate(spans)}
    return Trace(
        start_ns=column(spans, "start"),
        end_ns=column(spans, "end"),
        queued_ns=column(spans, "start"),
        lane=column(spans, "lane"),
        name=np.zeros(len(spans), np.int64),
        kind=np.zeros(len(spans), np.int64),
        parent=np.array([place.get(span["parent"], -1) for span in spans], np.int64),
        thread=np.full(len(spans), -1),
        partition=np.array([SMS.index(span["sms"]) - 1 for span in spans], np.int64),
        names=("work",),
        lanes=tuple(Lane(name=f"lane {code}") for code in range(LANES)),
        partitions=tuple(Partition(name=f"p{sms}", requested_sms=sms, granted_sms=sms) for sms in SMS[1:]),
        metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=132)),
    )


def places(table, codes):
    return list(
        zip(
            table.lane[codes].tolist(), table.shelf[codes].tolist(), np.round(table.share[codes], 9).tolist(),
            table.overlaps[codes].tolist(), strict=True,
        )
    )  # fmt: skip


@st.composite
def programs(draw, threads=1, has_partitions=True):
    """Draw ranges that open and close, and how many come at once."""
    played = Played()
    for _ in range(draw(st.integers(0, 30))):
        thread = draw(st.integers(0, threads - 1))
        if played.open.get(thread) and draw(st.booleans()):
            played.end(thread)
        else:
            played.start(thread, draw(st.integers(0, LANES - 1)), draw(st.sampled_from(SMS if has_partitions else SMS[:1])))
    played.end_all()
    sizes = []
    while sum(sizes) < len(played.spans):
        sizes.append(draw(st.integers(1, 6)))
    return played.spans, sizes


@given(programs())
def test_nested_spans_lie_where_they_lie_in_a_picture_drawn_afterwards(program):
    spans, sizes = program
    rows, codes = feed(spans, sizes)
    table, afterwards = span_rows(trace_of(spans))

    assert places(rows.table(lane_count=LANES), codes) == places(table, afterwards)


@given(programs(threads=3))
def test_no_span_hides_another_whatever_threads_do(program):
    spans, sizes = program
    rows, codes = feed(spans, sizes)

    assert_rows_are_in_order(spans, codes, rows.table(lane_count=LANES))


@given(programs(threads=3, has_partitions=False))
def test_children_lie_below_their_parents(program):
    spans, sizes = program
    rows, codes = feed(spans, sizes)
    shelf = rows.table(lane_count=LANES).shelf[codes]
    place = {span["number"]: row for row, span in enumerate(spans)}

    for row, span in enumerate(spans):
        above = place.get(span["parent"])
        if above is not None and spans[above]["lane"] == span["lane"]:
            assert shelf[row] > shelf[above]


@given(programs(threads=3), st.randoms(use_true_random=False))
def test_codes_never_change_their_meaning(program, random):
    spans, sizes = program
    rows, at, seen = LiveRows(), 0, []
    for size in sizes:
        batch = spans[at : at + size]
        rows.add(arrived(batch), open_around(batch, spans[at + size :]))
        table = rows.table(lane_count=LANES)
        assert table.lane[: len(seen)].tolist() == seen
        seen = table.lane.tolist()
        at += size


def assert_rows_are_in_order(spans, codes, table):
    for code in np.unique(codes).tolist():
        if table.overlaps[code]:
            continue
        mine = sorted((span["start"], span["end"]) for span, own in zip(spans, codes.tolist(), strict=True) if own == code)
        assert all(after[0] >= before[1] for before, after in itertools.pairwise(mine)), (code, mine)


def spans_of(*intervals, lane=0, first=0):
    return [
        {"number": first + row, "parent": -1, "lane": lane, "start": start, "end": end, "sms": 132}
        for row, (start, end) in enumerate(intervals)
    ]


def test_spans_that_overlap_by_the_clocks_error_share_a_row():
    spans = spans_of((0, 100), (95, 200), (198, 300))
    _rows, codes = feed(spans, [1, 2], LiveRows(tolerance_ns=10))

    assert codes.tolist() == [0, 0, 0]


def test_a_span_covered_by_the_one_before_it_gets_a_row_of_its_own_however_short():
    _rows, codes = feed(spans_of((0, 100), (95, 98)), [1, 1], LiveRows(tolerance_ns=10))

    assert codes.tolist() == [0, 1]


def test_a_span_that_comes_late_fits_between_others():
    _rows, codes = feed(spans_of((0, 10), (50, 60), (20, 30)), [1, 1, 1])

    assert codes.tolist() == [0, 0, 0]


def test_a_span_later_than_all_that_is_remembered_is_put_elsewhere():
    spans = spans_of(*((10 * n, 10 * n + 5) for n in range(3_000)))
    late = spans_of((6, 8), first=5_000)
    _rows, codes = feed(spans + late, [3_000, 1])

    assert np.unique(codes[:-1]).tolist() == [0]
    assert codes[-1] == 1


def test_what_fits_nowhere_is_folded_into_one_row_and_counted():
    spans = spans_of(*((n, 1_000 + n) for n in range(100)))
    rows, codes = feed(spans, [100])
    table = rows.table(lane_count=1)

    assert len(table) == MAX_LANE_ROWS
    assert table.overlaps.tolist() == [False] * (MAX_LANE_ROWS - 1) + [True]
    assert rows.folded_spans == table.folded_spans == 100 - (MAX_LANE_ROWS - 1)
    assert_rows_are_in_order(spans, codes, table)


def test_an_open_range_keeps_its_track_until_it_comes():
    played = Played()
    outer = played.start("a", 0)
    played.start("a", 0)
    played.end("a")
    played.start("b", 0)
    played.end("b")
    played.end("a")
    rows, codes = feed(played.spans, [1, 1, 1])
    table = rows.table(lane_count=1)

    inner, other, last = table.shelf[codes].tolist()
    assert last < inner < other or other < last < inner
    assert outer["number"] == 0
    assert not rows.awaited


def test_the_place_of_a_range_that_never_comes_is_given_up():
    played = Played()
    played.start("a", 0)
    played.start("a", 0)
    played.end("a")
    rows, _ = feed(played.spans, [])
    rows.add(arrived(played.spans), OpenSpans(*(np.array([value]) for value in (0, -1, 0))))
    assert list(rows.awaited) == [0]
    rows.forget([0])
    later = spans_of((1_000, 1_100), first=50)
    codes = rows.add(arrived(later), OpenSpans(*(np.empty(0, np.int64),) * 3))

    assert not rows.awaited
    assert rows.table(lane_count=1).shelf[codes].tolist() == [0]


def test_a_child_that_comes_after_its_parent_still_lies_below_it():
    parent = spans_of((0, 100))
    child = [{"number": 1, "parent": 0, "lane": 0, "start": 50, "end": 200, "sms": 132}]
    rows, codes = feed(parent + child, [1, 1])

    assert rows.table(lane_count=1).shelf[codes].tolist() == [0, 1]


def test_every_lane_has_a_row_and_its_first_spans_take_it():
    rows = LiveRows()
    assert rows.table(lane_count=2).lane.tolist() == [0, 1]
    codes = rows.add(arrived(spans_of((0, 10), lane=1)), OpenSpans(*(np.empty(0, np.int64),) * 3))

    assert codes.tolist() == [1]
    assert rows.table(lane_count=2).share.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("count", [100_000])
def test_plain_spans_are_placed_by_columns(count):
    start = np.arange(count) * 10
    spans = ArrivedSpans(
        np.arange(count), np.full(count, -1), np.arange(count) % 16, start, start + 5, np.full(count, 132), 0 * start
    )
    codes = LiveRows().add(spans, OpenSpans(*(np.empty(0, np.int64),) * 3))

    assert codes.tolist() == (np.arange(count) % 16).tolist()
