from __future__ import annotations

import pytest

from gpustreamlab.backends.sim._clock import HostClock
from gpustreamlab.errors import NotSimulatedError


def test_time_that_no_trace_can_hold_is_refused_and_the_clock_stays():
    clock = HostClock()
    assert clock.jump_to((1 << 63) - 1) == clock.jump_to(5) == (1 << 63) - 1
    for go_on in (lambda: clock.advance(1), lambda: clock.jump_to(1 << 70)):
        with pytest.raises(NotSimulatedError, match=r"beyond 2\*\*63 ns.*another session"):
            go_on()
    assert clock.now_ns == (1 << 63) - 1
