"""The lesson on a program that exists already, executed: what it shows is checked as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpustreamlab as gsl
from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "11-your-program.ipynb"


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), ("idle",), "pass", tags=["show"])


def test_it_says_why_the_gpu_is_idle_on_one_stream(lesson):
    card = gsl.load_trace(lesson[0] / "before.parquet").idle().card
    assert card.calls[0][0] == "cudaLaunchKernel"
    assert len(card.step_ns) == 10
    printed = " ".join(lesson[1].split())
    assert "a step the card is idle" in printed
    assert "with the host in cudaLaunchKernel" in printed


def test_the_mended_program_is_faster_and_the_gate_says_so(lesson):
    idle = read_tables(lesson[0], ("idle",))["idle"]
    assert idle.loc["after", "wall ms"] < 0.95 * idle.loc["before", "wall ms"]
    assert idle.loc["after", "idle %"] < 20 < idle.loc["before", "idle %"]
    assert "exit status: 0 1" in lesson[1]


def test_page_and_traces_are_left_behind(lesson):
    assert {path.name for path in lesson[0].glob("*")} >= {"train.html", "before.parquet", "after.parquet"}
