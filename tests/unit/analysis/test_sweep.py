"""Steps of the number of busy lanes, and distinct values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpustreamlab.analysis import count_steps, distinct


@given(st.lists(st.lists(st.integers(0, 60), max_size=12, unique=True).map(lambda times: sorted(times)[: len(times) // 2 * 2])))
def test_steps_are_those_of_counting_at_each_time(lanes):
    times_ns, counts = count_steps([np.array(lane, np.int64) for lane in lanes])
    moments = sorted({time for lane in lanes for time in lane})
    wanted, before = [], None
    for moment in moments:
        busy = sum(start <= moment < end for lane in lanes for start, end in zip(lane[::2], lane[1::2], strict=True))
        if busy != before:
            wanted.append((moment, busy))
        before = busy
    assert list(zip(times_ns.tolist(), counts.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("late_ns", [10**6, 1 << 61, (1 << 63) - 2])
def test_steps_of_any_length_of_time_are_exact(late_ns):
    times_ns, counts = count_steps([np.array([0, late_ns]), np.array([5, late_ns]), np.array([], np.int64)])
    assert (times_ns.tolist(), counts.tolist()) == ([0, 5, late_ns], [1, 2, 0])


SPREADS = st.sampled_from([1, 1 << 20, 1 << 50])


@given(hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-5, 5)), SPREADS, st.integers(1, 4))
def test_it_is_what_numpy_says(column, spread, repeat):
    column = np.repeat(column * spread, repeat)
    values, places = distinct(column)
    expected, expected_places = np.unique(column, return_inverse=True)

    assert values.tolist() == expected.tolist()
    assert places.tolist() == expected_places.tolist()
