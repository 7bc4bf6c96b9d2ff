"""The lesson on what really ran, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import load_trace
from gpustreamlab.analysis import host_waits
from gpustreamlab.typing import CaptureTier, LaneKind, SpanKind
from tests.helpers.notebooks import read_tables, run_lesson, shown_timelines

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "03-what-really-ran.ipynb"
TABLES = ("tiers", "inside", "cost", "stated", "gain", "queued", "memory")
"""Tables that the notebook makes, read back by the tests."""
KINDS = list(SpanKind)


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), TABLES, "by_kernels.save('tiers.parquet')")


@pytest.fixture(scope="module")
def tables(lesson):
    return read_tables(lesson[0], TABLES)


@pytest.fixture(scope="module")
def trace(lesson):
    return load_trace(lesson[0] / "what-really-ran.parquet")


def test_ranges_seem_to_overlap_and_kernels_do_not(tables):
    # GIVEN two kernels that each take the whole card for 1 ms
    tiers = tables["tiers"]

    # THEN by ranges the second one was busy beside the first, by kernels it waited
    assert tiers.loc["ranges", "both, ms"] == pytest.approx(1, abs=0.02)
    assert tiers.loc["kernels", "both, ms"] == 0
    assert tiers.loc["ranges", "right busy, ms"] == pytest.approx(2, abs=0.02)
    assert tiers.loc["kernels", ["left busy, ms", "right busy, ms"]].tolist() == pytest.approx([1, 1], abs=0.01)


def test_a_range_knows_the_work_inside(tables):
    inside = tables["inside"]

    assert inside["kernels"].tolist() == [1, 1]
    assert inside.loc["left", "waited inside, ms"] < 0.02
    assert inside.loc["right", "waited inside, ms"] == pytest.approx(1, abs=0.02)
    assert (inside["first kernel, ms"] >= inside["range starts, ms"]).all()
    assert (inside["last kernel ends, ms"] <= inside["range ends, ms"] + 0.001).all()


def test_the_host_is_seen_waiting_for_both(lesson):
    trace = load_trace(lesson[0] / "tiers.parquet")

    assert [lane.kind for lane in trace.lanes] == [LaneKind.STREAM, LaneKind.STREAM, LaneKind.HOST]
    (group,) = host_waits(trace).groups
    assert (group.call, group.call_count) == ("cudaDeviceSynchronize", 1)
    assert group.total_ns == pytest.approx(2_000_000, rel=0.02)


def test_the_kernels_of_a_line_are_counted_by_name(lesson):
    said = re.search(r"4 lines launched (\d+) kernels, copies and fills; most by '(.*)': (\d+)\.", lesson[1])

    assert (int(said[1]), said[2], int(said[3])) == (7, "(v - v.mean()) / v.std()", 4)
    assert re.search(r"the longest: .*sort", lesson[1])


def test_the_cost_and_the_errors_of_both_tiers_are_stated(tables):
    cost, stated = tables["cost"]["host, us a launch"], tables["stated"]

    assert 0 < cost["launch alone"] == cost["kernels captured"] < cost["in a range"]
    assert stated.columns.tolist() == ["ranges", "kernels"]
    assert (stated.drop("spans") == 0).all(axis=None)
    assert stated.loc["spans", "kernels"] > 2 * stated.loc["spans", "ranges"]


def test_the_stray_is_found_and_mended(lesson):
    assert "the result is right: True" in lesson[1]
    assert "strays before: 3, of them outside the partition: 3; after: 0" in lesson[1]
    assert re.search(r"^multiply +stream \d+ +mine +left half for the whole card", lesson[1], re.MULTILINE)


def test_the_stall_is_found_and_mended(lesson, tables, trace):
    each, once = "float() in each step", "read once"
    gain = tables["gain"]

    assert gain.loc[each, "blocking calls"] - gain.loc[once, "blocking calls"] == 59
    assert gain.loc[once, "stream busy, %"] > 95 > 90 > gain.loc[each, "stream busy, %"]
    assert gain.loc[each, "us a step"] > 1.2 * gain.loc[once, "us a step"]
    assert float(re.search(r"same losses: True - ([\d.]+) times as fast", lesson[1])[1]) > 1.2
    first = host_waits(trace).groups[0]
    assert (first.call, first.call_count, first.waited_for) == ("cudaMemcpyAsync", 60, "sum")


def test_launches_lead_to_kernels_that_queue_longer_where_the_host_is_ahead(tables, trace):
    queued = tables["queued"]

    assert queued.loc["read once", "median, us"] > 5 * queued.loc["float() in each step", "median, us"]
    work = np.isin(trace.kind, [KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)])
    assert queued.loc["float() in each step", "launches"] == work.sum()


def test_waits_for_events_are_edges_of_ranges_and_of_kernels(lesson):
    assert "range first -> range second: " in lesson[1]
    assert "kernel spin -> kernel spin: " in lesson[1]


def test_memory_that_a_stream_gave_back_stays_reserved(tables):
    memory = tables["memory"]

    assert memory["pool_reserved, MiB"].tolist() == [64, 8]
    assert memory["pool_used, MiB"].tolist() == [0, 8]


def test_what_needs_a_gpu_says_so(lesson):
    assert "torch: not tried here" in lesson[1]
    assert "ranges of others: not on the simulated device" in lesson[1]


def test_a_killed_run_is_read_back(lesson):
    ranges, kernels, last = re.search(r"(\d+) ranges and (\d+) kernels, the last step is 'step (\d+)'", lesson[1]).groups()

    assert "exit status -9" in lesson[1]
    assert int(kernels) == int(ranges) == int(last) + 1 >= 500
    assert "recovered from a spool whose session was not closed" in lesson[1]


def test_the_kept_trace_has_kernels_and_the_page_says_that_it_is_simulated(lesson, trace):
    page = (lesson[0] / "what-really-ran.html").read_text(encoding="utf-8")

    assert trace.metadata.tier is CaptureTier.KERNELS
    assert "SIMULATED" in page
    assert lesson[1].count("(simulated H200)") >= 6
    assert "(measured" not in lesson[1]


def test_the_timelines_are_shown_as_page_picture_and_text(lesson):
    assert len(shown_timelines(lesson[2])) == 5
