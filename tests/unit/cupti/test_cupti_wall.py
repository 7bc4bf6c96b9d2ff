"""The wall clock, which may be set, and the host's clock, which may not."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _clock
from gpustreamlab.backends.cuda.cupti._clock import WallClock

AHEAD_NS = 1_795_297_293_000_000_000
SECOND_NS = 1_000_000_000


class Clocks:
    now_ns = 0
    step_ns = 0

    def wall(self):
        return AHEAD_NS + self.step_ns + self.now_ns

    def host(self):
        return self.now_ns


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def wall(clocks):
    return WallClock(clocks.wall, clocks.host)


def test_each_time_is_turned_by_what_held_then(clocks, wall):
    assert wall.to_host_ns(np.array([AHEAD_NS - 50, AHEAD_NS + 10**12])).tolist() == [-50, 10**12]
    moments, times = [-50], [AHEAD_NS - 50]
    for second, step_ns in enumerate([0, 0, 5 * SECOND_NS, 5 * SECOND_NS, 5 * SECOND_NS + 100_000, 5 * SECOND_NS + 100_000]):
        clocks.now_ns, clocks.step_ns = second * SECOND_NS, step_ns
        wall.look()
        clocks.now_ns += 1_000
        moments.append(clocks.now_ns)
        times.append(clocks.wall())

    assert wall.to_host_ns(np.array(times[::-1])).tolist() == moments[::-1]
    assert [wall.to_wall_ns(moment) for moment in moments] == times
    assert wall.to_host_ns(np.empty(0, np.int64)).tolist() == []


def test_a_clock_that_is_set_on_and_on_takes_bounded_memory(clocks, wall, monkeypatch, caplog):
    monkeypatch.setattr(_clock, "JUMP_NS", 10**18)
    for number in range(2_000):
        clocks.now_ns, clocks.step_ns = number * SECOND_NS, number * 3_000
        wall.look()

    assert len(wall._stretches) == _clock.KEPT_STRETCHES
    assert wall.to_host_ns(np.array([clocks.wall()])).tolist() == [clocks.now_ns]
    assert caplog.text == ""
