"""The lesson on programs, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "07-programs.ipynb"
TABLES = ("table",)


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), TABLES, "print('state:', lab.state.value)", tags=["show"])


@pytest.fixture(scope="module")
def walls(lesson):
    """Return the wall times in ms, a row for each program and a column for each way to run it."""
    return read_tables(lesson[0], TABLES)["table"].pivot(index="program", columns="how", values="wall, ms")


def test_its_session_is_closed_at_the_end(lesson):
    assert "state: closed" in lesson[1]


def test_plans_are_faster_where_something_can_overlap(walls):
    assert walls.loc["pipeline", "planned"] < 0.6 * walls.loc["pipeline", "one stream"]
    assert walls.loc["no barrier", "planned"] < 0.7 * walls.loc["barrier", "planned"]


def test_a_graph_helps_where_the_host_is_the_limit(walls):
    small = walls.loc["small kernels"]
    assert small["planned"] < 1.05 * small["one stream"]
    assert small["replayed"] < 0.5 * small["one stream"]


def test_the_barrier_is_named(lesson):
    assert "decides by values that may be others in the next run" in lesson[1]
