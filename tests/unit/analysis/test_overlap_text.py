"""An overlap on the screen."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import overlap, summary_text
from gpustreamlab.draw import plan_picture
from gpustreamlab.workloads import spin_card
from tests.helpers.traces import empty_trace, make_trace, nested_trace, pipeline_trace, random_trace


def test_text_says_that_ranges_are_an_upper_bound_and_kernels_are_not():
    text, kernels = str(overlap(pipeline_trace())), " ".join(str(overlap(nested_trace())).split())
    assert repr(overlap(pipeline_trace())) == (
        "<Overlap: 3 streams on NVIDIA H200 (simulated), wall 7.50 ms, sum over streams 14.9 ms, mean concurrency up to 1.99>"
    )
    assert re.search(r"compute +5\.88 +4\.40 \(81%\) +3\.00 \(83%\)", text)
    assert re.search(r"\n2 +3\.40 +45%", text)
    assert ("upper bound" in text, "upper bound" in kernels) == (True, False)
    assert "wall is from the first to the last of them" in kernels


def test_text_says_what_is_missing_and_that_it_is_simulated():
    text = str(overlap(pipeline_trace(dropped_spans=1234, pending_spans=5)))
    assert "Not counted: 1,234 spans dropped." in text
    assert "5 spans have not ended yet: lab.synchronize() waits for them." in text
    text = summary_text(pipeline_trace(pending_spans=2, recovery_note="The run was cut short"))
    assert "2 spans had not ended when the run was cut short" in text
    assert "synchronize" not in text


def test_many_lanes_are_listed_by_pairs_and_the_rest_is_counted():
    result = overlap(random_trace(500, 30))
    note = f"… {30 * 29 // 2 - 30:,} more pairs: see .to_pandas()"
    assert note in str(result)
    (cell,) = (cell for cell in ET.fromstring(result._repr_html_()).iter("td") if cell.text == note)
    assert (cell.get("colspan"), "text-align:left" in cell.get("style")) == ("4", True)


@pytest.mark.parametrize("columns", [80, 110])
@pytest.mark.parametrize("lane_count", [3, 5, 16])
def test_a_matrix_that_is_too_wide_is_listed_by_pairs(monkeypatch, columns, lane_count):
    monkeypatch.setenv("COLUMNS", str(columns))
    spans = [(f"a_stream_with_a_long_name_{lane}", "x", 0, 10**9) for lane in range(lane_count)]
    text = str(overlap(make_trace(spans)))
    assert max(map(len, text.splitlines())) <= columns
    assert ("share of shorter" in text) == (lane_count > {80: 3, 110: 5}[columns])
    assert "queued or running" in text
    assert "busy" not in text


@pytest.mark.parametrize("trace", [empty_trace(), make_trace([("a", "x", 5, 5)])], ids=["empty", "no-length"])
def test_nothing_busy_is_said_in_words(trace):
    assert "no time recorded" in str(overlap(trace))
    assert "no time recorded" in overlap(trace)._repr_html_()


def test_a_forgotten_synchronize_is_said_in_the_same_words_everywhere():
    with gsl.Session("sim") as lab:
        with lab.on(lab.stream("a"), "step"):
            spin_card(lab, 1_000_000)
        report, trace = str(lab.trace.overlap()), lab.trace
        texts = (report, str(lab.timeline()), repr(lab.timeline()), summary_text(trace), plan_picture(trace).header.empty)
    for text in texts:
        assert "1 span has not ended yet: lab.synchronize() waits for it" in " ".join(text.split())
    # THEN nothing explains figures that are not there
    assert "Mean concurrency" not in report
    assert "What the ranges contain" not in report


def test_the_time_of_each_stream_stands_above_a_list_of_pairs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    trace = make_trace([(f"a stream with a long name {k}", "k", 0, 100_000 * (k + 1)) for k in range(6)])
    printed = str(overlap(trace))
    assert "share of shorter" in printed
    for k in range(6):
        assert re.search(rf"long name {k} +0\.{k + 1}00\n", printed)
