"""Calls that the package makes for itself are known by their numbers, and by thread and time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _calls as _own_calls
from gpustreamlab.backends.cuda.cupti._calls import SLACK_NS, OwnCalls

ME = threading.get_ident() & 0xFFFF_FFFF


class Clock:
    now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def own(clock):
    return OwnCalls(clock)


def are_own(own, starts, *, thread=ME, numbers=None):
    count = len(starts)
    return own.are_own(
        thread=np.full(count, thread, np.int64),
        start_host_ns=np.array(starts, np.int64),
        correlation=np.zeros(count, np.int64) if numbers is None else np.array(numbers, np.int64),
    ).tolist()


def test_calls_are_known_by_their_numbers_for_several_drains(own):
    own.note(np.array([5, 6]))
    own.note(np.empty(0, np.int64))
    own.note(np.array([9]))

    assert are_own(own, [0, 0, 0, 0], numbers=[5, 7, 9, 6]) == [True, False, True, True]


def test_calls_are_known_by_thread_and_time(own, clock):
    clock.now_ns = 100_000
    with own.making():
        clock.now_ns = 200_000
    starts = [100_000 - SLACK_NS - 1, 100_000 - SLACK_NS, 150_000, 200_000 + SLACK_NS, 200_000 + SLACK_NS + 1]

    assert are_own(own, starts) == [False, True, True, True, False]
    assert are_own(own, starts, thread=ME ^ 1) == [False] * 5


def test_a_stretch_within_another_does_not_end_it(own, clock):
    with own.making():
        clock.now_ns = 50_000
        with own.making():
            clock.now_ns = 60_000
        clock.now_ns = 100_000

    assert are_own(own, [80_000, 120_000]) == [True, False]


def test_a_stretch_that_fails_counts_all_the_same(own, clock):
    with pytest.raises(ValueError, match="no luck"):
        with own.making():
            clock.now_ns = 50_000
            raise ValueError("no luck")

    assert are_own(own, [40_000]) == [True]


def test_nothing_is_own_at_first(own):
    assert are_own(own, [0, 1]) == [False, False]
    assert are_own(own, []) == []


def test_memory_is_bounded(own, monkeypatch):
    monkeypatch.setattr(_own_calls, "KEPT_CALLS", 3)
    own.note(np.arange(10))

    assert are_own(own, [10**9] * 3, numbers=[6, 7, 9]) == [False, True, True]
