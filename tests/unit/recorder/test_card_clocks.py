"""Clocks of cards, compared again and again, against stand-ins of two cards whose clocks drift apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab.model import shifted_moment
from gpustreamlab.recorder import CardClocks

ERROR_NS = 1_500
S = 1_000_000_000


class Card:
    """A card whose clock is ahead of the host's by what a function tells."""

    def __init__(self, host, ahead_ns=lambda _ns: 0):
        self.device = SimpleNamespace(simulated=False)
        self.host, self._ahead_ns = host, ahead_ns
        self.failure = None

    def glance_ns(self):
        return self.host.now_ns

    def host_to_clock_ns(self, host_ns):
        return host_ns + self._ahead_ns(host_ns)

    def ahead_of(self, other):
        if self.failure:
            raise self.failure
        now_ns = self.host.now_ns
        return (0, 0) if other is self else (other._ahead_ns(now_ns) - self._ahead_ns(now_ns), ERROR_NS)


@pytest.fixture
def host():
    return SimpleNamespace(now_ns=0)


@pytest.fixture
def open_clocks():
    opened = []

    def make(cards):
        clocks = CardClocks(cards)
        clocks._updater.stop()  # here each comparison is asked for
        opened.append(clocks)
        return clocks

    yield make
    for clocks in opened:
        clocks.stop()


def wander_ns(host_ns):
    """Return an offset that drifts by 2.8 us a second, which changes slowly: by 0.25 ppm in 30 s."""
    return round(2_800 * host_ns / S + 2_000 * np.sin(host_ns / (30 * S) * 2 * np.pi / 4))


def test_they_are_compared_soon_and_then_more_and_more_seldom(host, open_clocks):
    clocks = open_clocks([Card(host), Card(host, wander_ns)])
    at_s = []
    while host.now_ns < 60 * S:
        before = len(clocks._compared)
        clocks.compare()
        if len(clocks._compared) > before:
            at_s.append(host.now_ns / S)
        host.now_ns += S // 20
    assert at_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 22.8, 32.8, 42.8, 52.8])


def test_an_hour_of_drift_that_changes_is_followed_to_a_fraction_of_a_microsecond(host, open_clocks):
    second = Card(host, wander_ns)
    clocks = open_clocks([Card(host), second])
    for host.now_ns in range(0, 3_600 * S, S // 2):
        clocks.compare()
    for host_ns in range(0, 3_600 * S, 7 * S):
        found_ns = shifted_moment(second.host_to_clock_ns(host_ns), clocks.ahead()[1])
        assert abs(found_ns - host_ns) < 300
    assert clocks.error_ns(3_600 * S) < 4_000


def test_what_comes_after_the_last_comparison_goes_on_at_a_pace_measured_over_as_long(host, open_clocks):
    second = Card(host, lambda host_ns: round(2_800 * host_ns / S) + (150 if host_ns // 1_000 % 2 else -150))  # and noise
    clocks = open_clocks([Card(host), second])
    for host.now_ns in range(0, 30 * S, 50_001_000):
        clocks.compare()
        found_ns = shifted_moment(second.host_to_clock_ns(host.now_ns), clocks.ahead()[1])
        if host.now_ns > S:
            assert abs(found_ns - host.now_ns) < 1_000 <= clocks.error_ns(host.now_ns)


def test_the_stated_error_grows_with_the_longest_gap_and_beyond_the_last(host, open_clocks):
    clocks = open_clocks([Card(host), Card(host)])
    assert clocks.error_ns(S) == ERROR_NS + 5_000
    for host.now_ns in (S, 61 * S):
        clocks.compare()
    assert clocks.error_ns(61 * S) == ERROR_NS + 3_000
    assert clocks.error_ns(67 * S) == ERROR_NS + 3_000 + 600 + 2 * ERROR_NS * 6 // 60


def test_simulated_cards_and_one_alone_share_a_clock(host, open_clocks):
    simulated = [Card(host), Card(host, wander_ns)]
    for card in simulated:
        card.device.simulated = True
    for cards in (simulated, [Card(host)]):
        clocks = open_clocks(cards)
        host.now_ns += S
        clocks.compare()
        assert len(clocks._compared) == 1
        assert not clocks._updater.is_running
        assert clocks.error_ns(100 * S) == 0
