"""The lesson on two cards, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.notebooks import run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "06-two-cards.ipynb"
LAST = """
edges = two.edges.select("wait")
kernel = two.kind == 1
between = [(two.lanes[two.lane[a]].device, two.lanes[two.lane[b]].device)
           for a, b in zip(edges.source, edges.target) if two.lane[a] != two.lane[b] and two.kind[a] and two.kind[b] in (1, 2)]
print("edges:", sorted(set(between)), "strays:", len(two.strays()), "copies:", len(two.where(name="memcpy PtoP")))
print("checked on:", [lane.device for lane in node.trace.lanes if lane.name == "check"])
"""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), (), LAST, tags=["show"])


def test_each_request_was_copied_once_and_waited_for_on_the_other_card(lesson):
    assert "edges: [(0, 1)] strays: 0 copies: 4" in lesson[1]
    assert "checked on: [1]" in lesson[1]


def test_what_is_said_of_the_copy_and_of_both_ways_is_what_was_measured(lesson):
    handed = re.search(r"Handing over: ([\d.]+) ms of ([\d.]+) ms, at (\d+) GB/s \(simulated", lesson[1])
    assert float(handed[1]) == pytest.approx(4 * (8 << 20) / 396e6 + 4 * 0.0015, rel=0.02)
    cards = re.search(r"One card ([\d.]+) ms, two cards ([\d.]+) ms: ([\d.]+) times", lesson[1])
    one_ms, two_ms, times = map(float, cards.groups())
    assert (one_ms / two_ms, float(handed[2])) == (pytest.approx(times, abs=0.02), two_ms)
