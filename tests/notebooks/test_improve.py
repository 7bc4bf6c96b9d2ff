"""The lesson on programs that are changed by machine, executed: what it shows is checked as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "12-improve.ipynb"


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), ("changes", "times"), "pass", tags=["show"])


def test_the_program_takes_less_than_half_as_long_by_changes_that_were_measured(lesson):
    tables = read_tables(lesson[0], ("changes", "times"))
    times = tables["times"]["wall, us"]
    assert times["after"] < 0.5 * times["before"]
    assert (tables["changes"]["measured, us"] > 0).all()
    assert tables["changes"]["measured, us"].sum() == pytest.approx(times["before"] - times["after"], rel=0.05)


def test_a_program_whose_wait_is_needed_is_left_and_one_that_draws_is_refused(lesson):
    printed = " ".join(lesson[1].split())
    assert "left as it is: nothing that was tried" in printed
    assert "draws from a generator that is not its own" in printed
    assert (lesson[0] / "improved.html").stat().st_size > 10_000
