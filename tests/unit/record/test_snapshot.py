"""Which lanes a trace has."""

from __future__ import annotations

import numpy as np

from gpustreamlab.model import Lane
from gpustreamlab.record._trace_maker import _worth_lanes


def test_streams_of_others_of_which_nothing_is_told_are_no_lanes():
    own, idle = Lane(name="own", stream=1), Lane(name="never used", stream=2)
    waited, memory, worked = (Lane(name=name, stream=number, outside=True) for number, name in enumerate("wmk", 3))
    rows, counters = np.array([0, 4, 4]), np.array([3], np.int32)
    kept, code = _worth_lanes((own, idle, waited, memory, worked), rows, counters)
    assert kept == (own, idle, memory, worked)
    assert code.tolist() == [0, 1, -1, 2, 3]
    assert code[rows].tolist() == [0, 3, 3]
    assert _worth_lanes((), rows[:0], counters[:0])[0] == ()
