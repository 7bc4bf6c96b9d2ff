"""What a pair of events cost at which time."""

from __future__ import annotations

import threading

import numpy as np

from gpustreamlab.backends import RangeTimes
from gpustreamlab.backends.cuda import _calibrate
from gpustreamlab.backends.cuda._calibrate import PairCost, PairCosts, locate_pairs


def test_the_cost_is_the_one_of_the_time_at_which_a_pair_was_opened():
    costs = PairCosts(PairCost(3_500, 0))
    costs.note(1_000, PairCost(3_900, 600))
    costs.note(2_000, PairCost(3_400, 10))
    asked = np.array([2_000, 0, 999, 1_000, 1_999, 5_000])

    assert costs.before_ns(asked).tolist() == [3_400, 3_500, 3_500, 3_900, 3_900, 3_400]
    assert costs.after_ns(asked).tolist() == [10, 0, 0, 600, 600, 10]
    assert costs.last == PairCost(3_400, 10)
    assert costs.before_ns(np.empty(0, np.int64)).tolist() == []


def test_it_can_be_read_while_another_thread_notes():
    costs = PairCosts(PairCost(0, 0))

    def note():
        for number in range(1, 500):
            costs.note(number, PairCost(number, number))

    thread = threading.Thread(target=note)
    thread.start()
    late = np.array([10**9])
    read = []
    while thread.is_alive():
        read.append(int(costs.before_ns(late)[0]))
    thread.join()

    assert read == sorted(read)
    assert int(costs.after_ns(late)[0]) == 499


def test_pairs_are_located_around_their_kernels():
    first_ns = np.array([10_000, 20_000, 90_000], np.int64)
    timers_ns = np.stack([first_ns, first_ns + 5_000], axis=1)
    places = RangeTimes(first_ns - [3_000, 3_100, 9_000], first_ns + 5_000 + [400, 500, 4_000], first_ns - 9_000)

    assert locate_pairs(places, timers_ns) == PairCost(3_100, 500)


def test_only_so_many_changes_are_kept_and_the_first_of_them_holds_for_all_before(monkeypatch):
    monkeypatch.setattr(_calibrate, "KEPT_COSTS", 3)
    costs = PairCosts(PairCost(1, 1))
    for number in range(2, 7):
        costs.note(number * 100, PairCost(number, number))

    assert costs.before_ns(np.array([0, 450, 500, 600])).tolist() == [4, 4, 5, 6]


def test_what_was_measured_beside_other_work_is_told_from_the_rest():
    plain = PairCost(3_500, 600)

    assert PairCost(3_700, 900).is_near(plain)
    assert not PairCost(203_500, 600).is_near(plain)
    assert not PairCost(3_500, 9_000).is_near(plain)
