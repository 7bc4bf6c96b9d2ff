"""The lesson on tuning, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.notebooks import run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "05-tune.ipynb"


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), (), "print('state:', lab.state.value)", tags=["show"])


def test_its_session_is_closed_at_the_end(lesson):
    assert "state: closed" in lesson[1]


def test_partitions_pay_for_unequal_tasks_and_not_for_equal_ones(lesson):
    gains = [float(found) for found in re.findall(r"<Tuning: .*?: (\d\.\d\d) times as fast", lesson[1])]
    constrained, free, full = gains
    assert constrained > 1.4
    assert free >= constrained * 0.99
    assert full < 1.05


def test_the_layout_that_was_applied_is_on_the_timeline(lesson):
    assert (lesson[0] / "tune.html").stat().st_size > 100_000
