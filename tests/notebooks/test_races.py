"""The lesson on races, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.helpers.notebooks import read_tables, run_lesson, shown_timelines

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "10-races.ipynb"
HAZARDS = ("first_look", "second_look", "freed_early", "held")
"""Results of `hazards`, kept as tables."""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    keep = "\n".join(f"{name}.to_pandas().to_json('{name}.json', orient='split')" for name in HAZARDS)
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), ("table",), keep)


@pytest.fixture(scope="module")
def tables(lesson):
    return read_tables(lesson[0], ("table", *HAZARDS))


def test_it_is_wrong_now_and_then_until_both_lines_are_there(tables):
    wrong, runs = tables["table"]["wrong"], tables["table"]["runs"].iloc[0]
    assert 0 < wrong["as it was"] < runs / 2
    assert wrong["one line"] > 0
    assert wrong["both lines"] == 0
    assert tables["table"]["hazards"].tolist() == [2, 1, 0]


def test_each_mistake_in_the_loop_is_one_row_with_a_count(tables):
    runs = tables["table"]["runs"].iloc[0]
    rows = tables["first_look"].set_index("kind")["hazard_count"]
    assert rows.to_dict() == {"read-after-write": 3 * runs, "write-after-read": 2 * runs}
    assert tables["second_look"]["kind"].tolist() == ["write-after-read"]


def test_the_lines_that_are_named_are_those_that_mend_it(tables):
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    hopeful, one_line, mended = (
        next(cell for cell in cells if f"def {name}" in cell) for name in ("hopeful", "waits", "mended")
    )
    lines = tables["first_look"]["fix"].tolist()
    assert [[line in cell for line in lines] for cell in (hopeful, one_line, mended)] == [
        [False, False],
        [True, False],
        [True, True],
    ]


def test_memory_that_goes_too_early_is_held(tables):
    early = tables["freed_early"].iloc[0]
    assert (early["kind"], early["fix"]) == ("use-after-free", "lab.stream('compute').hold(weights)")
    assert tables["held"].empty


def test_it_says_what_it_ran_on_and_shows_the_mended_runs(lesson):
    assert len(re.findall(r"\(lab\.xp, simulated H200\)", lesson[1])) == 5
    assert "measured on" not in lesson[1]
    assert len(shown_timelines(lesson[2])) == 1
