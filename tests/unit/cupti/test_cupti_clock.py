"""CUPTI's times on the session's clock: a drifting clock, read in steps, is followed within the stated error."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti._clock import (
    GRAIN_NS,
    KEPT_ANCHORS,
    TAGS,
    UNKNOWN_DRIFT_PPM,
    CuptiClock,
    anchor_launcher,
    wall_minus_host_ns,
)

WALL_NS = 1_795_297_293_000_000_000
ORIGIN_NS = 777_000_000_000
STEP_NS = 32
SECOND_NS = 1_000_000_000


class Card:
    """Runs anchors, and says by CUPTI's clock when: it drifts, and both are read in steps."""

    def __init__(self, drift_ppm, *, seed=0):
        self.drift_ppm = drift_ppm
        self.host_ns = 0
        self.rng = np.random.default_rng(seed)
        self.clock = CuptiClock(launch=self._launch, origin_timer_ns=ORIGIN_NS, host_time_ns=lambda: self.host_ns)
        self.device_ns = 0
        self.sent = {}

    def cupti_ns(self, device_ns):
        """Return CUPTI's time of moments of the card, exact to its steps."""
        moments = np.asarray(device_ns, np.int64)
        drift = self.drift_ppm(moments) if callable(self.drift_ppm) else moments * (self.drift_ppm * 1e-6)
        noise = self.rng.integers(-STEP_NS, STEP_NS + 1, moments.shape)
        return WALL_NS + moments + np.rint(drift).astype(np.int64) + noise

    def anchor(self, device_ns):
        """Run an anchor at a moment and let its record come."""
        self.send(device_ns)
        self.come_back()

    def send(self, device_ns):
        self.device_ns = self.host_ns = int(device_ns)
        return self.clock.send()

    def come_back(self):
        tags = list(self.sent)
        starts = self.cupti_ns([self.sent[tag] for tag in tags])
        self.clock.note(starts, starts + 1_700, np.array(tags, np.int64))
        self.sent.clear()

    def error_ns(self, device_ns):
        """Return how far off placed moments are: the worst."""
        moments = np.asarray(device_ns, np.int64)
        return int(np.abs(self.clock.place(self.cupti_ns(moments)) - moments).max())

    def _launch(self, tag):
        self.sent[tag] = self.device_ns
        noise = int(self.rng.integers(-STEP_NS, 1))
        began_ns = ORIGIN_NS + self.device_ns + noise
        return np.array([began_ns, began_ns + 1_000], np.uint64)


@pytest.mark.parametrize(("drift_ppm", "last_second"), [(3.0, 10_000), (-3.0, 1_000), (0.0, 1_000)])
def test_a_steady_drift_is_followed_for_hours_within_the_stated_error(drift_ppm, last_second):
    """Up to 10,000 s, drained five times a second, an anchor a second: placed when the drain comes, beyond the last anchor."""
    card = Card(drift_ppm)
    card.anchor(0)
    worst_ns = 0
    for second in range(1, last_second + 1):
        begin_ns = second * SECOND_NS
        if second % 100 == 1:  # a look now and then keeps the test short
            moments = begin_ns - np.linspace(0, SECOND_NS, 20).astype(np.int64) + SECOND_NS // 2
            worst_ns = max(worst_ns, card.error_ns(moments))
            # CUPTI's own step at the moment itself is part of what is placed.
            assert worst_ns <= card.clock.error_ns + STEP_NS
        card.anchor(begin_ns)

    assert card.clock.error_ns < 500 + UNKNOWN_DRIFT_PPM * 1_000  # what was placed with one anchor alone counts
    assert card.error_ns(np.arange(last_second - 500, last_second) * SECOND_NS + SECOND_NS // 3) < 150


def test_the_error_is_small_where_the_drift_is_known_and_follows_a_drift_that_changes():
    """The wall clock is slewed for a while, as NTP does."""
    card = Card(lambda moments: 3e-6 * moments + 20e-6 * np.maximum(0, moments - 300 * SECOND_NS))
    for number in range(8):
        card.anchor(number * SECOND_NS // 5)
    assert card.error_ns([SECOND_NS // 2]) <= card.clock.error_ns + STEP_NS
    for second in range(2, 400):
        card.anchor(second * SECOND_NS)
        moments = second * SECOND_NS - np.linspace(0, SECOND_NS, 10).astype(np.int64)
        assert card.error_ns(moments) <= card.clock.error_ns + STEP_NS
        assert second > 300 or card.clock.error_ns <= 250
    assert card.error_ns(np.arange(0, 399 * SECOND_NS, SECOND_NS // 7)) <= card.clock.error_ns + STEP_NS


def test_one_anchor_alone_places_within_the_assumed_drift():
    card = Card(9.0)
    assert card.clock.place(np.array([5, 7])).tolist() == [5, 7]
    card.anchor(0)

    assert card.error_ns([SECOND_NS // 2]) > 4_000
    assert card.error_ns([SECOND_NS // 2]) <= card.clock.error_ns + STEP_NS
    assert card.clock.place(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("side", [-1, 1])
def test_beyond_the_anchors_the_drift_goes_on(side):
    card = Card(5.0)
    for number in range(11):
        card.anchor(10 * SECOND_NS + number * SECOND_NS // 5)
    middle_ns = 11 * SECOND_NS

    moments = middle_ns + side * np.arange(2, 4) * SECOND_NS

    assert card.error_ns(moments) <= card.clock.error_ns + STEP_NS
    assert card.error_ns(moments) < 500


def test_anchors_farther_apart_than_the_usual_span_still_tell_the_drift():
    card = Card(3.0)
    for number in range(4):
        card.anchor(number * 30 * SECOND_NS)

    assert card.error_ns([92 * SECOND_NS]) < 200


def test_a_pause_of_an_hour_does_not_spoil_the_stated_error():
    card = Card(lambda moments: 3e-6 * moments + 1e-9 * np.maximum(0, moments - 100 * SECOND_NS))
    for second in range(100):
        card.anchor(second * SECOND_NS)
    card.error_ns([99 * SECOND_NS + 1_000])
    card.clock.forget_sent()
    for second in range(3_700, 3_800):
        card.anchor(second * SECOND_NS)

    moments = np.concatenate([np.arange(99), np.arange(3_700, 3_799)]) * SECOND_NS + 1_000
    assert card.error_ns(moments) <= card.clock.error_ns + STEP_NS
    assert card.clock.error_ns < 2_000


def test_anchors_are_matched_by_their_tags():
    card = Card(0.0)
    for number in range(5):
        card.send(number * SECOND_NS)
    assert card.clock.oldest_waiting_host_ns == 0
    card.sent = dict(reversed(card.sent.items()))  # records may come in any order

    card.come_back()

    assert card.clock.anchor_count == 5
    assert card.clock.oldest_waiting_host_ns is None
    assert card.error_ns(np.arange(5) * SECOND_NS) <= GRAIN_NS + STEP_NS
    assert card.clock.tail_ns == 700


def test_records_of_unknown_forgotten_or_unfinished_anchors_are_ignored():
    card = Card(0.0)
    card.send(0)
    card.clock.forget_sent()
    card.come_back()
    sent = card.send(0)
    sent.timers[:] = 0  # it has not run, whatever the record says

    card.come_back()
    card.clock.note(np.array([WALL_NS]), np.array([WALL_NS + 5]), np.array([4_000]))

    assert card.clock.anchor_count == 0
    assert card.clock.tail_ns is None
    assert card.clock.oldest_waiting_host_ns is None


def test_tags_begin_again_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("gpustreamlab.backends.cuda.cupti._clock.KEPT_ANCHORS", 50)
    monkeypatch.setattr("gpustreamlab.backends.cuda.cupti._clock.TAGS", 100)
    card = Card(3.0)
    for number in range(310):
        card.anchor(number * SECOND_NS)

    assert card.clock.anchor_count == 50
    assert card.error_ns([309 * SECOND_NS]) < 200
    assert KEPT_ANCHORS >= 3_600


def test_the_wall_clock_is_read_between_two_readings_of_the_host():
    # The second of five readings was the fastest.
    host = iter([0, 900, 1_000, 1_010, 2_000, 2_500, 3_000, 3_800, 4_000, 4_900])
    wall = iter([70_000, 71_006, 72_000, 73_000, 74_000])

    assert wall_minus_host_ns(lambda: next(wall), lambda: next(host)) == 71_006 - 1_005


def test_each_tag_has_its_own_timers():
    launched = []

    def spin(duration_ns, timers, shared_bytes):
        launched.append((duration_ns, shared_bytes))
        timers[:] = 5, 6

    launch = anchor_launcher(spin, np.empty)
    first, second = launch(1), launch(TAGS)

    assert launched == [(1_000, 1), (1_000, TAGS)]
    assert first.tolist() == second.tolist() == [5, 6]
    assert not np.shares_memory(first, second)
