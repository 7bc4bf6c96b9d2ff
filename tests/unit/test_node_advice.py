"""What changing gains on several cards: each program has a better version, which runs as it was said."""

from __future__ import annotations

import pytest

from gpustreamlab import Node
from tests.helpers.node_advice import CASES, recorded, waits_of_the_host
from tests.helpers.traces import wall_ns


def run(program, cards, *, is_better):
    with Node(range(cards), backend="sim") as node:
        return recorded(node, program, is_better=is_better)


@pytest.mark.parametrize(("program", "cause", "cards"), [*((*case, 2) for case in CASES), (waits_of_the_host, CASES[0][1], 4)])
def test_mending_gains_on_several_cards_what_was_said_and_is_then_promised_no_more(program, cause, cards):
    worse, better = (run(program, cards, is_better=is_better) for is_better in (False, True))
    found, then = worse.explain(), better.explain()
    assert found.findings[0].code is cause
    assert found.gain_ns == pytest.approx(wall_ns(worse) - wall_ns(better), rel=0.03)
    assert found.forecast.floor_ns <= wall_ns(better)
    assert then.gain_ns == 0
    assert "anew" in str(found)
