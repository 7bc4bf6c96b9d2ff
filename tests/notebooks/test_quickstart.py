"""The quickstart, executed on the simulated device as `make demo` executes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustreamlab import load_trace
from gpustreamlab.model import SPAN_KINDS
from tests.helpers.notebooks import run_without_gpu, shown_timelines

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01-quickstart.ipynb"
RANGES = {"upload": {"upload"}, "compute": {"batch", "filter", "statistics"}, "download": {"download"}}
"""Names of the ranges in each lane of the pipeline."""
BATCH_COUNT = 8


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    folder = tmp_path_factory.mktemp("demo")
    return run_without_gpu(NOTEBOOK, folder)


@pytest.fixture(scope="module")
def trace(demo):
    return load_trace(demo[0] / "trace.parquet")


def test_the_results_are_right_and_said_to_be(demo):
    assert f"{8 * BATCH_COUNT} pictures are right." in demo[1]


def test_the_streams_overlap_and_the_notebook_says_how_much(demo):
    overlap = re.search(r"mean concurrency ([\d.]+)\s+of\s+at\s+most\s+([\d.]+)", demo[1])
    against_one = re.search(r"([\d.]+) times as fast \(simulated ", demo[1])

    assert 1.5 < float(overlap[1]) <= float(overlap[2])
    assert float(against_one[1]) > 1.5


def test_it_says_that_the_device_is_simulated(demo):
    assert "simulated, no hardware behind them" in demo[1]
    assert "No hardware stands behind these times." in demo[1]
    assert "SIMULATED" in (demo[0] / "timeline.html").read_text(encoding="utf-8")


def test_the_timelines_are_shown_as_page_picture_and_text(demo):
    shown = shown_timelines(demo[2])
    assert len(shown) >= 3
    head = r"three streams: timeline of (\d+) spans in 3 streams and 1 host thread on"
    assert (
        int(re.match(head, shown[0]["text/plain"])[1]) > 192 + 168
    )  # ranges and work, and a call at least for each of the latter


def test_the_timeline_is_one_file_that_needs_no_other(demo):
    folder, printed, _ = demo
    page = (folder / "timeline.html").read_text(encoding="utf-8")

    assert str(folder / "timeline.html") in printed
    assert 100_000 < len(page) < 2_000_000
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!data:)[a-z/]""", page)
    assert "@import" not in page
    assert "url(http" not in page
    assert str(folder) not in page


def test_the_trace_has_the_pipelines_lanes_and_ranges(trace):
    is_range = trace.kind == SPAN_KINDS.index("range")
    found = {
        lane.name: {trace.names[code] for code in trace.name[is_range & (trace.lane == row)]}
        for row, lane in enumerate(trace.lanes)
    }

    assert {name: ranges for name, ranges in found.items() if ranges} == RANGES
    assert is_range.sum() == BATCH_COUNT * sum(map(len, RANGES.values()))
    assert trace.metadata.simulated
    assert (trace.metadata.dropped_spans, trace.metadata.pending_spans) == (0, 0)


def test_each_batch_is_filtered_after_its_upload_and_downloaded_after_both(trace):
    def times(name):
        rows = trace.name == trace.names.index(name)
        return trace.start_ns[rows], trace.end_ns[rows]

    (_, uploaded), (began, ended), (saved, _) = times("upload"), times("batch"), times("download")

    assert (uploaded <= began).all()
    assert (ended <= saved).all()
    assert len(trace.edges) > BATCH_COUNT
