"""The lesson on work that does not overlap, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustreamlab.typing import Cause
from tests.helpers.notebooks import read_tables, run_lesson, shown_timelines

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "08-why-no-overlap.ipynb"
TABLES = ("table",)
"""Tables that the notebook makes, read back by the tests."""
CAUSES = [
    Cause.SAME_LANE,
    Cause.HOST_SYNC_DEVICE,
    Cause.HOST_LATE,
    Cause.EVENT_WAIT,
    Cause.PAGEABLE_COPY,
    Cause.COPY_ENGINE,
    Cause.GRID_FILLS_DEVICE,
    Cause.LAUNCH_BOUND,
]
"""What each part is about."""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    last = "print('riddle:', answer.findings[0].code)"
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), TABLES, last, tags=["show"])


@pytest.fixture(scope="module")
def table(lesson):
    return read_tables(lesson[0], TABLES)["table"]


def test_each_part_is_explained_by_its_cause(lesson, table):
    assert table.index.tolist() == CAUSES
    assert set(re.findall(r"^1\. ([A-Z_]+): saves ", lesson[1], re.MULTILINE)) == set(CAUSES)


def test_what_is_promised_comes_true(table):
    promised = table[table["saves, ms"] > 0]
    won = promised["before, ms"] - promised["after, ms"]
    assert len(promised) >= 6
    assert ((won - promised["saves, ms"]).abs() < 0.3 * promised["saves, ms"]).all()


def test_each_part_is_mended(table):
    assert (table["would save, ms"] <= 0.3 * table["saves, ms"]).all()
    assert (table["times as fast"] > 1.3).all()
    assert table["what remains"].drop([Cause.HOST_SYNC_DEVICE, Cause.SAME_LANE]).eq("no finding").all()
    # Its kernels are on one stream still, where more may gain: a bound, of which nothing is promised.
    assert table.loc[Cause.SAME_LANE, ["what remains", "would save, ms"]].tolist() in (["no finding", 0], [Cause.SAME_LANE, 0])


def test_the_order_that_is_real_remains(table):
    assert table.loc[Cause.HOST_SYNC_DEVICE, "what remains"] == Cause.EVENT_WAIT


def test_what_a_fix_does_beside_overlap_is_told(lesson):
    ordinary, pinned = re.search(r"copy alone took ([\d.]+) ms from ordinary memory, ([\d.]+) ms from", lesson[1]).groups()
    waited, waits = re.search(r"request began ([\d.]+) ms after the long kernel, now ([\d.]+) ms", lesson[1]).groups()
    whole, parted = re.search(r"long kernel took ([\d.]+) ms on all SMs, now ([\d.]+) ms", lesson[1]).groups()

    assert float(ordinary) > 2 * float(pinned)
    assert float(waited) > 3 > 0.1 > float(waits)
    assert float(whole) < float(parted) < 1.2 * float(whole)


def test_the_guard_passes_the_mended_pipeline_and_explains_the_other(lesson):
    guarded = lesson[1].partition("mended: as expected.")[2]

    assert guarded.lstrip().startswith("load and step overlapped for 0 ns, 0% of the shorter one")
    assert "1. HOST_SYNC_DEVICE" in guarded


def test_the_riddle_has_an_answer(lesson):
    assert re.search(r"^riddle: (PAGEABLE_COPY|HOST_SYNC_STREAM)$", lesson[1], re.MULTILINE)


def test_it_says_that_the_times_are_simulated(lesson):
    assert "simulated, no hardware behind them" in lesson[1]
    assert "(measured" not in lesson[1]
    assert lesson[1].count("(simulated H200)") > len(CAUSES)


def test_the_timelines_are_shown_as_page_picture_and_text(lesson):
    assert len(shown_timelines(lesson[2])) == 3
