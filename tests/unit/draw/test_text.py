"""The timeline as text: columns by hand and against a brute-force count, hostile names, sizes of terminals."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gpustreamlab.draw import TextTimeline, text_timeline
from gpustreamlab.draw._text import MAX_LETTERS, MAX_TEXT_LANES, NOT_BUSY, choose_rows, plan_text_grid
from tests.helpers.traces import (
    empty_trace,
    evil_trace,
    make_kernel_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
    unnumbered,
)

HEBREW, FAMILY = "\u05e2\u05d1\u05e8\u05d9\u05ea", "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def lane_line(text, name):
    return next(line for line in text.splitlines() if line.strip().startswith(name) and "│" in line)


def bar_of(text, name):
    return lane_line(text, name).split("│")[1]


NUMBERED = [("a", f"h2d {k}", 10 * k, 10 * k + 10) for k in range(30)]


@pytest.mark.parametrize(
    ("spans", "bar", "told"),
    [
        pytest.param(
            # The first five columns of 10 ns are busy none, a tenth, a half, nine tenths, all of it.
            [("a", "x", 19, 20), ("a", "y", 25, 30), ("a", "z", 31, 40), ("a", "x", 40, 50), ("b", "w", 0, 530)],
            " ░▒▓█", "A w 530 ns ×1", id="shades",
        ),
        pytest.param(
            [("a", "gemm", 0, 400), ("a", "copy", 400, 530)],
            "A" + "█" * 39 + "B" + "█" * 12, "A gemm 400 ns ×1   B copy 130 ns ×1", id="a letter where the name changes",
        ),
        pytest.param(
            [("a", "step", 0, 530), ("a", "gemm", 0, 200, {"parent": 0})],
            "B" + "█" * 19 + "A" + "█" * 32, "A step 530 ns ×1", id="the name of an inner range wins",
        ),
        pytest.param(
            [*NUMBERED, ("b", "step 1", 0, 100), ("b", "step 1", 100, 150), ("b", "end", 530, 530)],
            "A" + "█" * 29, "A h2d * 300 ns ×30   B step 1 150 ns ×2", id="one letter for names that differ by a number",
        ),
        pytest.param(
            [("a", "x", 0, 10), ("a", "wait", 10, 20, {"kind": "wait"}), ("a", "tick", 530, 530)],
            "█" + NOT_BUSY + " " * 50 + NOT_BUSY, f"{NOT_BUSY} waits, host, marks, no length", id="not busy",
        ),
    ],
)  # fmt: skip
def test_signs_of_a_lane_in_53_columns_of_10_ns(spans, bar, told):
    text = text_timeline(make_trace(spans), 77)
    assert bar_of(text, "a") == bar.ljust(53)
    assert told in text


def test_letters_are_bounded_and_none_stands_where_no_name_has_most_of_the_column():
    text = text_timeline(unnumbered(random_trace(20_000)), 80)
    assert set(bar_of(text, "stream 3")) <= set(" ░▒▓█")
    assert f"and {12 - MAX_LETTERS} more names" in text


def test_busy_line_is_the_mean_number_of_busy_streams():
    spans = [("a", "x", 0, 530), ("b", "y", 100, 200), ("c", "z", 100, 150), ("d", "z", 100, 150)]
    line = lane_line(text_timeline(make_trace(spans), 77), "queued or running")
    assert line.split("│")[1] == "▂" * 10 + "█" * 5 + "▄" * 5 + "▂" * 33
    assert line.endswith("≤ 4")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(0, 90)), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_shares_are_those_of_a_brute_force_count(rows, column_count):
    # GIVEN busy times counted in steps of a tenth of a column's share of one ns
    trace = make_trace([(f"lane {lane}", "x", start, start + length) for lane, start, length in rows])
    shown = choose_rows(trace)
    grid = plan_text_grid(trace, shown, column_count)
    borders = np.linspace(grid.zero_ns, grid.zero_ns + grid.width_ns, column_count + 1)
    expected = np.zeros((len(trace.lanes), column_count))
    for place, lane in enumerate(shown.lanes):
        edges = shown.edges[lane]
        for start, end in zip(edges[0::2], edges[1::2], strict=True):
            expected[place] += np.clip(np.minimum(end, borders[1:]) - np.maximum(start, borders[:-1]), 0, None)
    expected /= grid.width_ns / column_count
    # THEN
    np.testing.assert_allclose(grid.shares, expected, atol=1e-9)
    np.testing.assert_allclose(grid.busy_lanes, expected.sum(axis=0), atol=1e-9)
    assert (grid.touched | (grid.shares < 1e-9)).all()


@pytest.mark.parametrize("width", [40, 61, 80, 133])
@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(empty_trace(), id="empty"),
        pytest.param(make_trace([("a", "x", 7, 7)]), id="one-span-of-0-ns"),
        pytest.param(make_trace([("a", "x", 0, 1), ("b", "y", 0, 3600 * 10**9)]), id="1-ns-beside-an-hour"),
        pytest.param(pipeline_trace(dropped_spans=3), id="pipeline"),
        pytest.param(partition_trace(), id="partitions"),
        pytest.param(repartition_trace(), id="repartition"),
        pytest.param(nested_trace(), id="nested"),
        pytest.param(many_partitions_trace(), id="many-partitions"),
        pytest.param(evil_trace(), id="hostile"),
        pytest.param(evil_trace(HEBREW * 20), id="right-to-left"),
        pytest.param(evil_trace(f"漢字😀{FAMILY}" * 1200), id="emoji-10-kB"),
        pytest.param(random_trace(9_000, 3_000), id="3000-lanes"),
    ],
)
def test_no_line_is_wider_than_the_terminal_and_no_sign_controls_it(trace, width):
    lines = text_timeline(trace, width).split("\n")
    assert max(cell_len(line) for line in lines) <= width
    assert not any(sign < " " or sign in "\u202e\u2028" for line in lines for sign in line)


def test_more_lanes_than_fit_are_cut_with_a_sign_and_the_busiest_stay():
    trace = random_trace(9_000, 3_000)
    shown = choose_rows(trace)
    text = text_timeline(trace, 80)
    busy_ns = np.array([edges[1::2].sum() - edges[0::2].sum() for edges in shown.edges])
    assert len(shown.lanes) == MAX_TEXT_LANES
    assert sorted(shown.busy_ns) == sorted(np.sort(busy_ns)[-MAX_TEXT_LANES:])
    assert list(shown.lanes) == sorted(shown.lanes)
    assert f"… {3_000 - MAX_TEXT_LANES:,} more streams not shown: none was queued or running for longer" in text
    assert len(text.splitlines()) < MAX_TEXT_LANES + 15


def test_calls_after_the_last_span_do_not_make_a_thread_busier_than_the_whole_time():
    host = "host: MainThread"
    trace = make_kernel_trace([
        ("a", "gemm", 100, 1_100), (host, "cudaLaunchKernel", 50, 600, {"kind": "host"}),
        (host, "cudaDeviceSynchronize", 600, 1_300, {"kind": "host"}),
    ])  # fmt: skip
    assert lane_line(text_timeline(trace, 80), host).split("│")[2].strip() == "100%"


def test_lanes_stand_below_their_partition_with_its_sms():
    lines = text_timeline(partition_trace(), 80).splitlines()
    places = [
        next(place for place, line in enumerate(lines) if line.startswith(start))
        for start in ("prefill · 96 SMs", "  kv", "decode · 36 SMs", "  decode", "whole card · 132 SMs", "  logging")
    ]
    assert places == sorted(places)
    # Changes of the partitions are marked and listed.
    text = text_timeline(repartition_trace(), 80)
    assert text.splitlines()[2].count("▼") == 2
    assert "▼ 5.95 ms prefill 96→64, decode 36→68" in text


def test_a_picture_of_ranges_says_first_that_bars_contain_waiting_and_calls_nothing_busy():
    # GIVEN four ranges of four streams whose kernels ran one after the other
    spans = [(name, "step", 0, 100) for name in "abcd"]
    text = text_timeline(make_trace(spans), 100)
    assert text.splitlines()[0].endswith("100 ns; bars contain waiting")
    assert "≤ 4" in lane_line(text, "queued or running")
    assert "busy" not in text
    # THEN where kernels were captured it is as ever
    kernels = text_timeline(make_kernel_trace(spans), 100)
    assert "waiting" not in kernels
    assert "≤ 4" in lane_line(kernels, "busy streams")
    assert "busy share of a column" in kernels


def test_header_and_notes_say_where_the_times_come_from():
    text = " ".join(text_timeline(pipeline_trace(dropped_spans=3), 80).split())
    assert "Image pipeline: timeline of 24 spans in 3 streams on NVIDIA H200 (SIMULATED): 7.50 ms" in text
    assert "mean concurrency up to 1.99. Ranges contain waiting" in text
    assert "Tier: ranges (event pairs; ranges contain queueing) · clock error ±500 ns" in text
    assert "⚠ 3 spans dropped" in text


def test_axis_has_units_from_ns_to_minutes():
    def axis(end_ns):
        return next(line for line in text_timeline(make_trace([("a", "x", 0, end_ns)]), 80).splitlines() if "╵" in line)

    assert "╵0 ns" in axis(50)
    assert "╵20 µs" in axis(50_000)
    assert "╵20 s" in axis(50 * 10**9)
    assert "╵10 min" in axis(3000 * 10**9)


def test_rich_draws_the_same_with_colours_at_its_own_width_and_str_at_that_of_the_terminal(monkeypatch):
    def printed(**options):
        console = Console(file=io.StringIO(), width=72, **options)
        console.print(TextTimeline(partition_trace()))
        return console.file.getvalue()

    plain = printed(color_system=None)
    assert [line.rstrip() for line in plain.splitlines()] == text_timeline(partition_trace(), 72).splitlines()
    assert "\x1b[" in printed(force_terminal=True, color_system="standard")
    assert "\x1b[" not in plain
    monkeypatch.setenv("COLUMNS", "100")
    assert str(TextTimeline(pipeline_trace())) == text_timeline(pipeline_trace(), 100)
