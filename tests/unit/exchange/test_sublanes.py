"""Spans of a sub-lane nest or follow each other, and nothing is given more sub-lanes than it needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.exchange import _chrome_write
from gpustreamlab.exchange._chrome_write import nesting_order, sublanes

SPANS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 12), st.integers(0, 2)), max_size=40)


def columns(spans):
    start, lasts, lane = np.array(spans, np.int64).reshape(-1, 3).T
    return start, start + lasts, lane


def cross(first, second):
    """Whether two spans overlap and neither holds the other."""
    (a, b), (c, d) = sorted((first, second))
    return a < c < b < d


@given(SPANS)
def test_no_two_spans_of_a_sub_lane_cross(spans):
    start, end, lane = columns(spans)
    found = sublanes(start, end, lane)
    for code in set(lane.tolist()):
        mine = lane == code
        assert set(found[mine].tolist()) == set(range(found[mine].max() + 1))
        for sub in set(found[mine].tolist()):
            rows = np.flatnonzero(mine & (found == sub)).tolist()
            times = [(int(start[row]), int(end[row])) for row in rows]
            assert not any(cross(one, other) for one in times for other in times)


@given(SPANS)
def test_a_lane_without_crossing_spans_needs_one(spans):
    start, end, lane = columns(spans)
    found = sublanes(start, end, lane)
    for code in set(lane.tolist()):
        times = [(int(start[row]), int(end[row])) for row in np.flatnonzero(lane == code)]
        if not any(cross(one, other) for one in times for other in times):
            assert not found[lane == code].any()


@given(SPANS)
def test_the_order_is_by_lane_start_and_length(spans):
    start, end, lane = columns(spans)
    order = nesting_order(start, end, lane).tolist()
    assert order == sorted(range(len(spans)), key=lambda row: (lane[row], start[row], -end[row]))


@pytest.mark.parametrize("reverse", [False, True])
def test_what_nests_too_deep_for_a_viewer_goes_on_in_another_sub_lane(monkeypatch, reverse):
    monkeypatch.setattr(_chrome_write, "MOST_NESTED", 3)
    start = np.arange(5)[:: -1 if reverse else 1].copy()
    found = sublanes(start, 20 - start, np.zeros(5, int))
    assert sorted(found.tolist()) == [0, 0, 0, 1, 1]


def test_the_widest_times_do_not_overflow():
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    start, end = np.array([least, least, 0]), np.array([0, most, most])
    assert sublanes(start, end, np.zeros(3, int)).tolist() == [0, 0, 0]
