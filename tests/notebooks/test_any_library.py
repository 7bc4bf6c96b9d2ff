"""The lesson on libraries and streams, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import load_trace
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import CaptureTier, SpanKind
from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "04-any-library.ipynb"
TABLES = ("where", "lengths", "workspaces")
"""Tables that the notebook makes, read back by the tests."""
HAZARDS = ("planted", "fixed")
"""Results of `hazards`, kept as tables."""
BATCHES = 5


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    keep = "\n".join(f"{name}.to_pandas().to_json('{name}.json', orient='split')" for name in HAZARDS)
    lengths = "lengths.to_frame().to_json('lengths.json', orient='split')"
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), ("where", "workspaces"), f"{keep}\n{lengths}")


@pytest.fixture(scope="module")
def tables(lesson):
    return read_tables(lesson[0], (*TABLES, *HAZARDS))


def test_each_part_of_the_pipeline_ran_on_its_stream_and_its_sms(tables, lesson):
    where = tables["where"]

    assert where.loc["copy", ["copy", "kernel"]].tolist() == [BATCHES, 0]
    assert where.loc["prepare", ["copy", "kernel"]].tolist() == [0, 3 * BATCHES]
    assert where.loc["infer", ["copy", "kernel"]].tolist() == [0, 6 * BATCHES]
    assert where.loc["infer", "SMs"] + where.loc["prepare", "SMs"] == where.loc["copy", "SMs"] == 132
    assert "all work inside ranges ran on the selected stream" in lesson[1]


def test_streams_change_the_time_and_not_the_results(tables, lesson):
    lengths = tables["lengths"]["ms"]

    assert 1.3 < lengths["one stream"] / lengths["three streams"] < 2
    assert "largest difference from one stream: 0.0\n" in lesson[1]


def test_a_library_with_a_stream_of_its_own_is_found_and_then_led(lesson):
    assert "strays before: 3, after: 0" in lesson[1]
    assert "3 kernels ran on another stream than the selected one, outside the partition" in " ".join(lesson[1].split())


def test_the_planted_race_is_found_and_its_fix_is_clean(tables):
    planted = tables["planted"]

    assert set(zip(planted["kind"], planted["first_stream"], planted["second_stream"], strict=True)) == {
        ("read-after-write", "copy", "prepare"),
        ("read-after-write", "prepare", "infer"),
        ("use-after-free", "infer", "prepare"),
    }
    assert planted["fix"][0] == "lab.stream('prepare').wait(lab.stream('copy'))"
    assert tables["fixed"].empty


def test_a_guard_keeps_streams_apart_and_scratch_lets_them_overlap(tables):
    workspaces = tables["workspaces"]

    assert workspaces["right"].all()
    assert workspaces.loc["guarded", "2 streams busy, ms"] == 0
    assert workspaces.loc["with_scratch", "2 streams busy, ms"] > 0.8 * workspaces.loc["with_scratch", "ms"]
    assert workspaces.loc["with_scratch", "ms"] < 0.6 * workspaces.loc["guarded", "ms"]


def test_each_task_kept_its_stream_while_the_other_one_ran(lesson):
    assert re.search(r"\{'alice': \['alice', 'alice', 'alice'\], 'bob': \['bob', 'bob', 'bob'\]\} \| after: None", lesson[1])


def test_what_was_kept_is_the_pipeline(lesson):
    trace = load_trace(lesson[0] / "any-library.parquet")

    assert trace.metadata.tier is CaptureTier.KERNELS
    assert trace.metadata.simulated
    kinds, counts = np.unique(trace.kind, return_counts=True)
    found = {SPAN_KINDS[kind]: int(count) for kind, count in zip(kinds, counts, strict=True)}
    assert found.pop(SpanKind.HOST) > 9 * BATCHES  # a launch of each kernel, and what copies, allocates and waits
    assert found == {SpanKind.RANGE: 3 * BATCHES, SpanKind.KERNEL: 9 * BATCHES, SpanKind.COPY: BATCHES}
    page = (lesson[0] / "any-library.html").read_text(encoding="utf-8")
    assert "SIMULATED" in page
    assert "three libraries, three streams" in page
