"""Rows decided while spans come in: late, and in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab import Trace
from gpustreamlab.analysis import MAX_LANE_ROWS, ArrivedSpans, OpenSpans, RowPlanner, span_rows
from gpustreamlab.analysis._rows import LEVEL_TOLERANCE_NS
from gpustreamlab.model import SPAN_KINDS, Device, Lane, Partition, TraceMetadata
from gpustreamlab.typing import SpanKind

LANES = 3
SMS = (132, 96, 32)
TICK = 10 * LEVEL_TOLERANCE_NS


class Played:
    """Threads that open and close ranges; each step takes a tick."""

    def __init__(self):
        self.now, self.number = 0, 0
        self.open = {}
        self.spans = []  # in the order of their ends

    def start(self, thread, lane, sms=132):
        self.now += 1
        stack = self.open.setdefault(thread, [])
        parent = stack[-1]["number"] if stack else -1
        stack.append({"number": self.number, "parent": parent, "lane": lane, "start": self.now, "sms": sms, "kind": "range"})
        self.number += 1

    def end(self, thread):
        self.now += 1
        self.spans.append(self.open[thread].pop() | {"end": self.now})

    def end_all(self):
        for thread, stack in self.open.items():
            while stack:
                self.end(thread)


def spans_of(*spans, first=0):
    """Make spans of (kind, start, end[, lane[, number, parent]]), times in ticks."""
    names = ("kind", "start", "end", "lane", "number", "parent")
    rows = [(*span, *(0, first + place, -1)[len(span) - 3 :]) for place, span in enumerate(spans)]
    return [dict(zip(names, row, strict=True)) | {"sms": 132} for row in rows]


def ranges_of(*intervals, first=0):
    return spans_of(*(("range", *interval) for interval in intervals), first=first)


def column(spans, name):
    return np.array([span[name] for span in spans], np.int64)


def arrived(spans):
    number, parent, lane, start, end, sms = (
        column(spans, name) for name in ("number", "parent", "lane", "start", "end", "sms")
    )
    kind = np.array([SPAN_KINDS.index(SpanKind(span["kind"])) for span in spans], np.int64)
    return ArrivedSpans(number, parent, lane, start * TICK, end * TICK, sms, kind)


def open_around(spans, later):
    """What encloses the spans and comes later."""
    by_number = {span["number"]: span for span in later}
    found = {}
    for span in spans:
        parent = span["parent"]
        while parent in by_number and parent not in found:
            found[parent] = by_number[parent]
            parent = found[parent]["parent"]
    return OpenSpans(*(column(list(found.values()), name) for name in ("number", "parent", "lane")))


def feed(*batches, rows=None):
    """Give batches of spans to the rows; return these, and the code of each span."""
    rows = RowPlanner() if rows is None else rows
    codes = [
        rows.add(arrived(batch), open_around(batch, [span for after in batches[place + 1 :] for span in after]))
        for place, batch in enumerate(batches)
    ]
    return rows, np.concatenate(codes) if codes else np.empty(0, np.int64)


def placed(*batches, lane_count=1):
    """The sub-row and the layer of each span, in the order in which they came."""
    rows, codes = feed(*(spans_of(*batch, first=100 * place) for place, batch in enumerate(batches)))
    table = rows.table(lane_count=lane_count)
    return table.sub_row[codes].tolist(), table.layer[codes].tolist()


def trace_of(spans):
    """Make the trace that the same ranges give afterwards."""
    place = {span["number"]: row for row, span in enumerate(spans)}
    zeros = np.zeros(len(spans), np.int64)
    return Trace(
        start_ns=column(spans, "start") * TICK,
        end_ns=column(spans, "end") * TICK,
        queued_ns=zeros,
        lane=column(spans, "lane"),
        name=zeros,
        kind=zeros,
        parent=np.array([place.get(span["parent"], -1) for span in spans], np.int64),
        thread=zeros - 1,
        partition=np.array([SMS.index(span["sms"]) - 1 for span in spans], np.int64),
        names=("work",),
        lanes=tuple(Lane(name=f"lane {code}") for code in range(LANES)),
        partitions=tuple(Partition(name=f"p{sms}", requested_sms=sms, granted_sms=sms) for sms in SMS[1:]),
        metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=132)),
    )


def places(table, codes):
    columns = (table.lane, table.sub_row, np.round(table.share, 9), table.overlaps)
    return list(zip(*(values[codes].tolist() for values in columns), strict=True))


def assert_rows_are_in_order(spans, codes, table):
    for code in np.unique(codes[~table.overlaps[codes]]).tolist():
        mine = sorted((span["start"], span["end"]) for span, own in zip(spans, codes.tolist(), strict=True) if own == code)
        assert all(after[0] >= before[1] for before, after in itertools.pairwise(mine)), (code, mine)


@st.composite
def batches_of(draw, spans):
    batches, at = [], 0
    while at < len(spans):
        size = draw(st.integers(1, 6))
        batches.append(spans[at : at + size])
        at += size
    return batches


@st.composite
def programs(draw, threads=1, sms=SMS):
    """Draw ranges that open and close, in batches."""
    played = Played()
    for _ in range(draw(st.integers(0, 30))):
        thread = draw(st.integers(0, threads - 1))
        if played.open.get(thread) and draw(st.booleans()):
            played.end(thread)
        else:
            played.start(thread, draw(st.integers(0, LANES - 1)), draw(st.sampled_from(sms)))
    played.end_all()
    return draw(batches_of(played.spans))


@given(programs())
def test_nested_spans_lie_where_they_lie_in_a_picture_drawn_afterwards(batches):
    rows, codes = feed(*batches)
    table, afterwards = span_rows(trace_of([span for batch in batches for span in batch]))

    assert places(rows.table(lane_count=LANES), codes) == places(table, afterwards)


@given(programs(threads=3, sms=SMS[:1]))
def test_no_range_hides_another_whatever_threads_do_and_children_lie_below_their_parents(batches):
    rows, codes = feed(*batches)
    table, spans = rows.table(lane_count=LANES), [span for batch in batches for span in batch]
    assert_rows_are_in_order(spans, codes, table)
    sub_row = {span["number"]: (span["lane"], row) for span, row in zip(spans, table.sub_row[codes].tolist(), strict=True)}

    for span in spans:
        lane, row = sub_row.get(span["parent"], (-1, -1))
        assert lane != span["lane"] or sub_row[span["number"]][1] > row


@given(programs(threads=3))
def test_codes_never_change_their_meaning(batches):
    rows, codes, seen = RowPlanner(), [], []
    for place, batch in enumerate(batches):
        later = [span for after in batches[place + 1 :] for span in after]
        codes += rows.add(arrived(batch), open_around(batch, later)).tolist()
        seen += [span["lane"] for span in batch]
        assert rows.table(lane_count=LANES).lane[codes].tolist() == seen


KINDS = st.sampled_from(["kernel", "copy", "host", "annotation", "range"])
ANYTHING = st.lists(st.tuples(KINDS, st.integers(0, 50), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=60)


@given(
    ANYTHING.map(lambda rows: spans_of(*((kind, at, at + lasts, lane) for kind, at, lasts, lane in rows))).flatmap(batches_of)
)
def test_no_span_of_a_row_overlaps_another_in_whatever_order_they_come(batches):
    rows, codes = feed(*batches)
    table, spans = rows.table(lane_count=LANES), [span for batch in batches for span in batch]
    assert_rows_are_in_order(spans, codes, table)
    assert table.lane[codes].tolist() == [span["lane"] for span in spans]
    assert table.layer[codes].tolist() == [int(span["kind"] in {"kernel", "copy", "host"}) for span in spans]
    for lane in range(LANES):
        own = np.flatnonzero(table.lane == lane)
        assert (np.diff(table.layer[own][np.argsort(table.sub_row[own])]) >= 0).all()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 100), (95, 200), (198, 300)], [0, 0, 0]),  # overlap by the clock's error
        ([(0, 100), (95, 98)], [0, 1]),  # covered
    ],
)
def test_ranges_that_overlap_by_the_clocks_error_share_a_row(spans, expected):
    first, *later = ranges_of(*spans)
    _, codes = feed([first], later, rows=RowPlanner(tolerance_ns=10 * TICK))
    assert codes.tolist() == expected


COMING = {
    "a child after its parent": ([[("range", 0, 10, 0, 0, -1)], [("range", 5, 20, 0, 1, 0)]], [0, 1]),
    "kernels before their range": (
        [[("kernel", 1, 2), ("kernel", 2, 3)], [("range", 0, 5)], [("kernel", 3, 4)]],
        [1, 1, 0, 1],
    ),
    "kernels in nested ranges": (
        [[("kernel", 2, 3, 0, 5, 1), ("range", 1, 4, 0, 1, 0), ("range", 0, 6, 0, 0, -1), ("kernel", 5, 6, 0, 6, 0)]],
        [2, 1, 0, 2],
    ),
    "late kernels": ([[("kernel", 0, 1), ("kernel", 5, 6)], [("copy", 2, 3)], [("kernel", 0, 1)]], [0, 0, 0, 1]),
    "late, then behind": ([[("kernel", 10, 11)], [("kernel", 0, 1), ("kernel", 11, 12)], [("kernel", 1, 9)]], [0, 0, 0, 0]),
    "late, and reaching on": (
        [[("kernel", 10, 11)], [("kernel", 9, 10), ("kernel", 10, 30)], [("kernel", 11, 12)]],
        [0, 0, 1, 0],
    ),
    "of a graph": (
        [[("kernel", 0, 9), ("kernel", 1, 5), ("kernel", 6, 8)], [("kernel", 9, 10), ("kernel", 9, 12)]],
        [0, 1, 1, 1, 0],
    ),
    "annotations around others": (
        [[("annotation", 2, 3), ("annotation", 1, 4), ("annotation", 5, 6)], [("annotation", 0, 7)], [("host", 2, 3)]],
        [2, 1, 2, 0, 3],
    ),
    "calls made of others": ([[("host", 0, 9), ("host", 1, 2), ("host", 3, 4)]], [0, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize(("batches", "expected"), COMING.values(), ids=COMING)
def test_each_span_finds_its_sub_row(batches, expected):
    sub_row, layer = placed(*batches)
    assert sub_row == expected
    assert layer == [int(span[0] in {"kernel", "copy", "host"}) for batch in batches for span in batch]


KEPT_INTERVALS = 512
"""How many of a sub-row's last spans are known."""


def test_late_kernels_take_one_more_row_where_nobody_knows_what_was_there():
    count = 3 * KEPT_INTERVALS
    early = [("kernel", 2 * k, 2 * k + 1) for k in range(count)]
    late = [("kernel", 2 * k + 1, 2 * k + 2) for k in range(count - 1)]
    sub_row, _ = placed(early, late, [("kernel", 3 * count, 4 * count)], [("kernel", 1, 2)])
    assert (set(sub_row[:count]), set(sub_row[count:-2]), sub_row[-2:]) == ({0}, {0, 1}, [0, 2])


def test_a_span_that_is_later_than_all_that_came_one_by_one_and_is_known_is_put_elsewhere():
    count = 2 * KEPT_INTERVALS + 2
    spans = [[("kernel", 2 * k, 2 * k + 1)] for k in reversed(range(1, count))]  # each in front of all others
    assert placed(*spans, [("kernel", 0, 1)])[0] == [*[0] * (count - 1), 1]


@pytest.mark.parametrize("size", [1, 100])
def test_what_fits_nowhere_is_folded_into_the_last_row_of_its_level_and_counted(size):
    crowd = spans_of(*(("kernel", k, 1_000) for k in range(100)))
    rows, codes = feed(*([span] for span in crowd)) if size == 1 else feed(crowd)
    before = rows.version
    feed(ranges_of((0, 1), first=500), crowd[:2], rows=rows)
    table = rows.table(lane_count=1)

    assert rows.version != before
    assert table.overlaps[codes].tolist() == [*[False] * (MAX_LANE_ROWS - 1), *[True] * (101 - MAX_LANE_ROWS)]
    assert rows.folded_spans == table.folded_spans == 102 - MAX_LANE_ROWS
    assert table.sub_row.max() == MAX_LANE_ROWS


@pytest.mark.parametrize("kind", ["kernel", "annotation", "host", "range"])
def test_every_lane_has_a_row_which_gives_way_to_its_first_spans(kind):
    rows = RowPlanner()
    assert rows.table(lane_count=2).lane.tolist() == [0, 1]
    before = rows.version
    _, codes = feed(spans_of((kind, 0, 1, 1)), rows=rows)
    table = rows.table(lane_count=2)

    assert rows.version != before
    assert (table.lane.tolist(), table.sub_row.tolist(), table.share.tolist()) == ([1, 0], [0, 0], [1.0, 1.0])
    assert table.layer[codes].tolist() == [int(kind in {"kernel", "host"})]
