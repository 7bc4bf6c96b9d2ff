"""The order of accesses: vector clocks against plain reachability in a graph, and what a CUDA device tells of order."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import ACCESSES_KEPT, FREED_KEPT, ROWS_KEPT, HazardSearch, LaneClocks, covers, may_share, region_of
from gpustreamlab.backends.cuda._stream import AccessOrder
from tests.helpers.happens_before import Oracle, kind_of
from tests.helpers.long_runs import count

LANES, EVENTS, ARENA_BYTES = 4, 3, 32  # with room between three arrays of 8 bytes

lanes = st.integers(0, LANES - 1)
slices = st.tuples(st.integers(0, 7), st.integers(1, 8), st.sampled_from([1, 1, 2, 3]))
steps = st.one_of(
    st.tuples(st.just("access"), lanes, st.integers(0, 2), st.booleans(), st.none() | slices),
    st.tuples(st.just("record"), lanes, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait"), lanes, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("lane done"), lanes),
    st.tuples(st.just("event done"), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("card done"), st.integers(0, 2)),
    st.tuples(st.just("free"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("close"), lanes),
)


class Programs:
    """Runs the same steps through the searches of some cards and the oracle. All cards have the same handles and addresses."""

    def __init__(self, cards=1):
        self.searches, self.oracle = [HazardSearch(card=card) for card in range(cards)], Oracle()
        for search in self.searches[1:]:
            search.stand_beside(self.searches[0])
        self.moments, self.met = {}, {}
        self.numbers = {lane: (lane % cards, lane // cards) for lane in range(LANES)}  # card and handle
        self.handles = Counter(card for card, _ in self.numbers.values())
        # Three arrays of 8 bytes; memory that is freed is given out again, shifted against what was there.
        self.pieces = [self.allocate(place % cards, 8 * place) for place in range(3)]
        self.step, self.steps_of, self.access_of = 0, {}, {}

    def allocate(self, card, start):
        return self.searches[card].allocate(0, start, start + 8, (8,), "u1")

    def search(self, lane):
        return self.searches[self.numbers[lane][0]]

    def clocks(self, lane):
        return self.search(lane).clocks

    def lane(self, lane):
        return self.clocks(lane).lane(self.numbers[lane][1])

    @property
    def found(self):
        return [row for search in self.searches for row in search.found.values()]

    def access(self, lane, place, is_write, cut):
        piece = self.pieces[place]
        chosen = range(8) if cut is None else range(*cut[:2])[:: cut[2]]
        if not len(chosen):
            return
        self.step += 1
        region = None if cut is None else region_of(piece.start + chosen[0], (len(chosen),), (cut[2],), 1)
        touch = [(piece, region)]
        args = ([], touch) if is_write else (touch, [])
        self.search(lane).work(self.lane(lane), "work", self.step, *args)
        node_bytes = frozenset((piece.lane.card, piece.start + byte) for byte in chosen)
        self.met[self.step] = self.oracle.access(self.numbers[lane], is_write, node_bytes, piece.number)
        self.access_of[self.step] = self.oracle.accesses[-1]
        self.steps_of[self.oracle.accesses[-1].node] = self.step

    def record(self, lane, event):
        self.moments[event] = self.clocks(lane).record(self.lane(lane))
        self.oracle.events[event] = self.oracle.on_lane(self.numbers[lane])

    def wait(self, lane, event):
        if event in self.moments:
            self.clocks(lane).wait(self.lane(lane), self.moments[event])
            self.oracle.on_lane(self.numbers[lane], self.oracle.events[event])

    def lane_done(self, lane):
        self.clocks(lane).host_wait(self.clocks(lane).record(self.lane(lane)))
        self.oracle.host_wait(self.oracle.last.get(self.numbers[lane]))

    def event_done(self, event):
        if event in self.moments:
            self.searches[-1].clocks.host_wait(self.moments[event])
            self.oracle.host_wait(self.oracle.events[event])

    def card_done(self, card):
        card %= len(self.searches)
        self.searches[card].clocks.host_wait_all()
        self.oracle.host_wait(*(node for lane, node in self.oracle.last.items() if lane[0] == card))

    def free(self, place, shift):
        card = self.pieces[place].lane.card
        self.searches[card].free(self.pieces[place])
        free = set(range(ARENA_BYTES))
        for other, piece in enumerate(self.pieces):
            if other != place and piece.lane.card == card:
                free -= set(range(piece.start, piece.end))
        starts = [start for start in range(ARENA_BYTES - 7) if free >= set(range(start, start + 8))]
        self.pieces[place] = self.allocate(card, starts[min(shift, len(starts) - 1)])

    def close(self, lane):
        """Wait for a lane and give its place to another one."""
        self.lane_done(lane)
        card, handle = self.numbers[lane]
        self.clocks(lane).close(handle)
        self.numbers[lane] = card, self.handles[card]
        self.handles[card] += 1

    def run(self, program):
        for name, *args in program:
            getattr(self, name.replace(" ", "_"))(*args)


SHIFTED = [("access", 0, 2, True, None), ("free", 2, 2), ("access", 1, 2, True, None)]
"""Memory that is handed out again two bytes further on, while another lane may still write what it was."""


ON_ANOTHER_CARD = [
    ("access", 0, 0, True, None),
    ("record", 0, 0),
    ("wait", 1, 0),
    ("card done", 1),
    ("access", 2, 0, True, None),
]
"""The host waits for a card whose stream has waited for another card's event."""


@settings(max_examples=count(200, 1_000))
@given(st.integers(1, 3), st.lists(steps, max_size=40))
@example(1, SHIFTED)
@example(3, ON_ANOTHER_CARD)
def test_an_access_is_told_of_exactly_if_it_conflicts_with_one_that_no_path_orders_before_it(cards, program):
    programs = Programs(cards)
    programs.run(program)
    # THEN
    found = programs.found
    assert {int(row.second.place) for row in found} == {step for step, met in programs.met.items() if met}
    for row in found:  # and each pair that is named is such a pair
        pairs = {programs.steps_of[other.node]: other for other in programs.met[int(row.second.place)]}
        first, second = pairs[int(row.first.place)], programs.access_of[int(row.second.place)]
        assert row.kind == kind_of(first, second)
        assert row.is_certain
    assert not any(search.let_go_count for search in programs.searches)


@settings(max_examples=count(75, 300))
@given(st.integers(1, 3), st.lists(steps, max_size=40))
def test_waiting_for_the_lanes_that_are_named_leaves_no_hazard(cards, program):
    programs = Programs(cards)
    plain = programs.access

    def access_behind_all(lane, place, is_write, cut):
        touch = [(programs.pieces[place], None)]
        clock = programs.lane(lane)
        search = programs.search(lane)
        for other in search.unordered(clock, [] if is_write else touch, touch if is_write else []):
            search.clocks.wait(clock, programs.searches[other.card].clocks.record(other))
        plain(lane, place, is_write, cut)

    programs.access = access_behind_all
    programs.run(program)
    assert not programs.found


arrays = st.tuples(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([-16, -6, -3, -1, 0, 1, 2, 4, 5, 8, 16])), max_size=3),
    st.sampled_from([1, 2, 4]),
)


@settings(max_examples=count(150, 400))
@given(arrays, arrays)
def test_regions_overlap_exactly_if_they_share_a_byte(first, second):
    regions, sets = [], []
    for start, dims, itemsize in (first, second):
        shape, strides = tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
        regions.append(region_of(start, shape, strides, itemsize))
        starts = [start + sum(map(int.__mul__, strides, index)) for index in np.ndindex(shape)]
        sets.append({byte + more for byte in starts for more in range(itemsize)})
    # THEN
    assert [(region.start, region.end) for region in regions] == [(min(own), max(own) + 1) for own in sets]
    assert may_share(*regions) is bool(sets[0] & sets[1])
    if covers(*regions):
        assert sets[0] >= sets[1]
    for region, own in zip(regions, sets, strict=True):
        assert not region.is_whole or len(own) == region.end - region.start


def test_regions_too_hard_to_compare_may_overlap():
    # GIVEN two arrays of many dimensions, which NumPy gives up on
    sizes = tuple(range(2, 14))
    strides = (
        10_007, 20_011, 40_009, 80_021, 160_001, 320_009, 640_007, 1_280_023, 2_560_021, 5_120_029, 10_240_033, 20_480_011,
    )  # fmt: skip
    # THEN
    assert may_share(region_of(0, sizes, strides, 1), region_of(5_003, sizes, strides[::-1], 1)) is None


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_lane_that_closes_is_forgotten_once_the_host_has_waited_for_its_work(is_waited_for):
    clocks = LaneClocks()
    lane = clocks.lane(1)
    clocks.host_wait(clocks.record(lane))
    if not is_waited_for:
        lane.used_tick = lane.tick
    tick = lane.used_tick
    clocks.close(1)
    assert clocks.is_before(lane, tick, clocks.lane(2)) is is_waited_for
    clocks.host_wait_all()
    assert clocks.is_before(lane, tick, clocks.lane(2))
    assert lane.is_gone
    assert (lane in clocks.host, list(clocks.lanes)) == (False, [2])


class Bounded:
    """A search in which one lane writes pieces of memory."""

    def __init__(self):
        self.search = HazardSearch()

    def write(self, piece, region=None, lane=1, place=None):
        self.search.work(self.search.clocks.lane(lane), "set", place, [], [(piece, region)])

    def piece(self, place):
        return self.search.allocate(0, place * 8, place * 8 + 8, (8,), "u1")

    def free_pieces(self, count):
        for place in range(count):
            piece = self.piece(place)
            self.write(piece)
            self.search.free(piece)


def test_what_is_kept_is_bounded_and_what_goes_is_counted():
    # GIVEN many accesses of one piece, many pieces that were freed, and many hazards
    accesses, freed, rows = Bounded(), Bounded(), Bounded()
    piece = accesses.search.allocate(0, 0, 10_000, (10_000,), "u1")
    for place in range(3 * ACCESSES_KEPT):
        accesses.write(piece, region_of(10 * place, (5,), (1,), 1))
    freed.free_pieces(FREED_KEPT + 10)
    shared = rows.piece(0)
    for place in range(ROWS_KEPT + 8):
        rows.write(shared, lane=place % 2, place=place)
    # THEN
    assert (len(piece.accesses), accesses.search.let_go_count) == (ACCESSES_KEPT, 2 * ACCESSES_KEPT)
    assert FREED_KEPT // 2 <= len(freed.search._freed) <= FREED_KEPT
    assert freed.search.let_go_count >= FREED_KEPT // 2
    assert len(rows.search.found) == ROWS_KEPT
    assert rows.search.unlisted_count > 0


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_freed_memory_that_the_host_has_waited_for_is_let_go_silently(is_waited_for):
    bounded = Bounded()
    bounded.free_pieces(FREED_KEPT)
    if is_waited_for:
        bounded.search.clocks.host_wait_all()
    piece = bounded.piece(1 << 20)
    bounded.write(piece)
    bounded.search.free(piece)
    assert bool(bounded.search.let_go_count) is not is_waited_for


class Sink:
    """Writes down what it is told."""

    def __init__(self):
        self.lock = threading.RLock()
        self.told = []

    def record(self, handle):
        self.told.append(("record", handle))
        return f"moment of {handle}"

    def wait(self, handle, moment):
        self.told.append(("wait", handle, moment))

    def host_wait(self, moment):
        self.told.append(("host", moment))

    def host_wait_stream(self, handle):
        self.told.append(("host", handle))


def test_an_event_means_what_was_recorded_last_until_it_goes_back_to_its_pool():
    order, event = AccessOrder(), object()
    order.watch(sink := Sink())
    order.record(1, event)
    order.wait(2, event)
    order.record(3, event)
    order.host_wait(event)
    order.forget([event])
    order.wait(2, event)
    assert sink.told == [
        ("record", 1), ("wait", 2, "moment of 1"), ("record", 3), ("host", "moment of 3"), ("wait", 2, None),
    ]  # fmt: skip


def test_what_a_tool_sees_done_while_it_looks_on_is_no_order():
    order, event = AccessOrder(), object()
    order.watch(sink := Sink())
    order.record(1, event)
    with order.looking_on():
        order.host_wait(event)
        order.host_wait_stream(1)
    order.host_wait_stream(1)
    assert sink.told == [("record", 1), ("host", 1)]


def test_a_new_watch_knows_nothing_of_events_from_before():
    order, event = AccessOrder(), object()
    order.watch(Sink())
    order.record(1, event)
    order.watch(sink := Sink())
    order.wait(2, event)
    order.watch(None)
    order.wait(2, event)
    assert sink.told == [("wait", 2, None)]
