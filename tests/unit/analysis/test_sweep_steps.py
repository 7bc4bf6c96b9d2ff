"""Steps of the number of busy lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import count_steps


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
