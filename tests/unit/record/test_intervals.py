"""The innermost interval around a moment, against a slow and plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.record._buffer import Intervals, find_innermost

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)), max_size=12)
MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), max_size=12)


def plainly(rows, group, at):
    """Of those around the moment the one that started last, and of two such the later one."""
    around = [
        (start, number) for number, (mine, start, width) in enumerate(rows) if mine == group and start <= at < start + width
    ]
    return max(around)[1] if around else -1


@given(ROWS, MOMENTS)
def test_the_one_that_started_last_is_found(rows, moments):
    group, start, width = np.array(rows, np.int64).reshape(-1, 3).T
    asked, at = np.array(moments, np.int64).reshape(-1, 2).T
    found = find_innermost(Intervals(group, start, start + width, np.arange(len(rows))), asked, at)

    assert found.tolist() == [plainly(rows, *moment) for moment in moments]


def test_an_interval_is_not_around_itself():
    nested = Intervals(*np.array([[1, 1, 1], [0, 0, 5], [10, 10, 8], [0, 1, 2]]))
    found = find_innermost(nested, np.array([1, 1, 1]), np.array([0, 0, 5]), itself=np.array([0, 1, 2]))

    assert found.tolist() == [-1, 0, 1]


def test_a_long_row_of_siblings_takes_few_rounds():
    count = 200_000
    start = np.append(0, np.arange(count) * 10)
    end = np.append(count * 10 + 1, start[1:] + 5)
    intervals = Intervals(np.zeros(count + 1, np.int64), start, end, np.arange(count + 1))
    found = find_innermost(intervals, np.zeros(2, np.int64), np.array([count * 10 - 7, count * 10 - 3]))

    assert found.tolist() == [count, 0]
