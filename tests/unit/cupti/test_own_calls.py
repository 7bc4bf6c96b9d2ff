"""Calls that the package makes for itself are known by their numbers, and by thread and time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _calls
from gpustreamlab.backends.cuda.cupti._calls import SLACK_NS, OwnCalls

ME = threading.get_ident() & 0xFFFF_FFFF


def are_own(own, starts, *, thread=ME, numbers=None):
    count = len(starts)
    return own.are_own(
        thread=np.full(count, thread, np.int64),
        start_host_ns=np.array(starts, np.int64),
        correlation=np.zeros(count, np.int64) if numbers is None else np.array(numbers, np.int64),
    ).tolist()


def test_calls_are_known_by_their_numbers_as_far_as_they_are_kept(monkeypatch):
    own = OwnCalls(lambda: 0)
    assert are_own(own, [0, 1]) == [False, False]
    for numbers in ([5, 6], [], [9]):
        own.note(np.array(numbers, np.int64))
    assert are_own(own, [0, 0, 0, 0], numbers=[5, 7, 9, 6]) == [True, False, True, True]
    monkeypatch.setattr(_calls, "KEPT_CALLS", 3)
    own.note(np.arange(10))
    assert are_own(own, [10**9] * 3, numbers=[6, 7, 9]) == [False, True, True]


def test_calls_are_known_by_thread_and_time_also_where_a_stretch_lies_within_another_and_fails():
    now = [100_000]
    own = OwnCalls(lambda: now[0])
    with own.making():
        now[0] = 120_000
        with pytest.raises(ValueError, match="no luck"), own.making():
            now[0] = 130_000
            raise ValueError("no luck")
        now[0] = 200_000
    starts = [100_000 - SLACK_NS - 1, 100_000 - SLACK_NS, 150_000, 200_000 + SLACK_NS, 200_000 + SLACK_NS + 1]

    assert are_own(own, starts) == [False, True, True, True, False]
    assert are_own(own, starts, thread=ME ^ 1) == [False] * 5
