"""The lesson on traces of others, executed: what it shows is checked as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab.workloads import sample_profile
from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "09-your-traces.ipynb"
TABLES = ("busiest", "files", "both")


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), TABLES, "print('state:', lab.state.value)", tags=["show"])


def test_its_session_is_closed_at_the_end(lesson):
    assert "state: closed" in lesson[1]


def test_what_it_says_of_the_file_is_what_the_file_holds(lesson):
    trace = gsl.load_trace(sample_profile())
    tables = read_tables(lesson[0], TABLES)
    assert tables["busiest"]["name"].tolist()[0] == "memcpy HtoD (pinned)"
    assert tables["busiest"]["runs"].tolist()[0] == 5
    assert tables["both"].loc["streams", "the file"] == 5
    files = tables["files"].set_index("suffix")
    assert files["spans read back"].dropna().tolist() == [len(trace)] * 3
    assert files["the same"].dropna().astype(bool).all()
    assert "the page answers the same: True" in lesson[1]


def test_files_of_every_kind_are_left_behind(lesson):
    assert {path.suffix for path in lesson[0].glob("yours*")} == {".parquet", ".gz", ".csv", ".html"}
