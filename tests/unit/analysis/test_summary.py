"""The summary stands for the picture in words."""

from __future__ import annotations

from gpustreamlab.analysis import headline, missing_facts, summary_text
from gpustreamlab.model import Device
from tests.helpers.traces import empty_trace, evil_trace, pipeline_trace, random_trace


def test_summary_has_spans_lanes_wall_concurrency_errors_and_tier():
    text = summary_text(pipeline_trace(dropped_spans=7, pending_spans=2))
    for part in (
        "24 spans in 3 streams", "SIMULATED", "7.50 ms", "upload 5.40 ms (72%)", "gain at most 1.99×", "Tier: ranges",
        "clock error ±500 ns", "correction of 2.60 µs", "7 spans dropped", "2 spans pending",
    ):  # fmt: skip
        assert part in text


def test_summary_of_a_real_device_says_measured():
    device = Device(name="NVIDIA H200", sm_count=132)
    assert "NVIDIA H200 (measured on hardware)" in headline(pipeline_trace(device=device))


def test_summary_of_nothing_is_sensible():
    assert summary_text(empty_trace()).startswith("Timeline of 0 spans in 0 streams")
    assert missing_facts(empty_trace().metadata) == []


def test_summary_of_many_lanes_counts_the_rest():
    assert "and 80 more streams" in summary_text(random_trace(500, 100))


def test_summary_shows_no_control_signs():
    assert not set(summary_text(evil_trace())) & {"\u2028", "\u202e", "\x1b"}


def test_summary_of_ten_thousand_lanes_counts_no_pairs(monkeypatch):
    monkeypatch.setattr("gpustreamlab.analysis._overlap._matrix", None)  # hours for so many
    assert "and 9,980 more streams" in summary_text(random_trace(2_000, 10_000))
