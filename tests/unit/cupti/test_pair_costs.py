"""Where a pair of events stands around its kernel."""

from __future__ import annotations

import numpy as np

from gpustreamlab.backends import RangeTimes
from gpustreamlab.backends.cuda._clock import PairCost, locate_pairs


def test_pairs_are_located_around_their_kernels():
    first_ns = np.array([10_000, 20_000, 90_000], np.int64)
    timers_ns = np.stack([first_ns, first_ns + 5_000], axis=1)
    places = RangeTimes(first_ns - [3_000, 3_100, 9_000], first_ns + 5_000 + [400, 500, 4_000], first_ns - 9_000)

    assert locate_pairs(places, timers_ns) == PairCost(3_100, 500)
