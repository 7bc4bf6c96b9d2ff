"""The summary stands for the picture in words."""

from __future__ import annotations

from gpustreamlab.analysis import headline, missing_facts, summary_text
from gpustreamlab.draw import plan_picture, text_timeline
from gpustreamlab.model import Device, Lane
from tests.helpers.traces import empty_trace, evil_trace, make_kernel_trace, pipeline_trace, random_trace


def test_summary_has_spans_lanes_wall_concurrency_errors_and_tier():
    text = summary_text(pipeline_trace(dropped_spans=7, pending_spans=2))
    for part in (
        "24 spans in 3 streams", "SIMULATED", "7.50 ms", "upload 5.40 ms (72%)", "mean concurrency up to 1.99. Ranges",
        "Tier: ranges", "clock error ±500 ns", "correction of 2.60 µs", "7 spans dropped", "2 spans have not ended yet",
    ):  # fmt: skip
        assert part in text


def test_summary_of_a_real_device_says_measured():
    device = Device(name="NVIDIA H200", sm_count=132)
    assert "NVIDIA H200 (measured on hardware)" in headline(pipeline_trace(device=device))


def test_summary_of_nothing_is_sensible():
    assert summary_text(empty_trace()).startswith("Timeline of 0 spans in 0 streams")
    assert missing_facts(empty_trace().metadata) == []


def test_summary_says_the_same_as_the_page_and_the_text_timeline():
    # GIVEN a range that reaches beyond the kernels in it, and two streams on which nothing ran
    lanes = tuple(Lane(name=name, stream=number) for number, name in enumerate("abc", 1))
    spans = [("a", "step", 0, 20_700, {"kind": "range"}), ("a", "sum", 7_000, 20_500, {"parent": 0})]
    trace = make_kernel_trace(spans, lanes=lanes)

    # THEN duration, busy share and number of streams are the same everywhere
    summary, header = summary_text(trace), plan_picture(trace).header
    assert "2 spans in 1 stream on" in summary
    assert "2 spans in 1 stream · 20.7 µs" in header.facts
    assert header.finding == "Busy 65% of the time; one stream, so nothing can overlap"
    assert summary.splitlines()[0] in text_timeline(trace, 200)
    assert summary.splitlines()[:3] == [
        "Timeline of 2 spans in 1 stream on NVIDIA H200 (SIMULATED): 20.7 µs",
        "Busy: a 13.5 µs (65%)",
        header.finding,
    ]


def test_summary_of_many_lanes_counts_the_rest():
    assert "and 80 more streams" in summary_text(random_trace(500, 100))


def test_summary_shows_no_control_signs():
    assert not set(summary_text(evil_trace())) & {"\u2028", "\u202e", "\x1b"}


def test_summary_of_ten_thousand_lanes_counts_no_pairs(monkeypatch):
    monkeypatch.setattr("gpustreamlab.analysis._overlap._matrix", None)  # hours for so many
    text = summary_text(random_trace(2_000, 10_000))
    assert "in 1,811 streams" in text
    assert "and 1,791 more streams" in text
