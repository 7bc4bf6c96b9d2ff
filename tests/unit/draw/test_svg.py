"""The static picture."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from gpustreamlab.draw import plan_scene, timeline_svg
from gpustreamlab.draw._partition_svg import _means
from gpustreamlab.draw._svg import MAX_SVG_BARS, MAX_SVG_WAITS, merge_bars
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

SVG = "{http://www.w3.org/2000/svg}"
TRACES = {
    "empty": empty_trace(), "one": one_lane_trace(), "pipeline": pipeline_trace(), "nested": nested_trace(),
    "evil": evil_trace(),
    "partitions": partition_trace(), "repartition": repartition_trace(), "8-partitions": many_partitions_trace(),
    "100-lanes": random_trace(500, 100), "20k": random_trace(20_000),
}  # fmt: skip


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_picture_is_well_formed_small_and_runs_nothing(trace):
    svg = timeline_svg(trace)
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "defs", "pattern", "rect", "path", "text", "tspan", "g"}
    assert len(svg) < 200_000


def test_picture_has_header_lanes_axis_and_bar_labels():
    shown = texts(timeline_svg(pipeline_trace(dropped_spans=3)))
    for text in (
        "Image pipeline",
        "SIMULATED",
        "upload",
        "priority -1",
        "prefill · 96 SMsasked for 90",
        "132 SMs",
        "whole card · 132 SMs",
        "filter",
        "3 busy",
        "0 ms",
        "7 ms",
    ):
        assert text in shown
    assert any("3 spans dropped" in text for text in shown)


def test_hostile_names_are_text():
    svg = timeline_svg(evil_trace())
    assert EVIL_NAME not in svg
    assert EVIL_NAME in texts(svg)


def test_long_notes_are_wrapped_and_never_cut():
    clock = " ".join(f"word{number}" for number in range(26))
    shown = " ".join(texts(timeline_svg(pipeline_trace(clock=clock))))
    assert "word0" in shown
    assert "word25" in shown
    assert "…" not in shown.split("upload")[0]


def test_empty_picture_says_what_to_do():
    assert "No spans yet: select a stream with lab.on(...)" in texts(timeline_svg(empty_trace()))


def test_many_spans_are_merged_and_the_picture_says_so():
    scene = plan_scene(random_trace(20_000))
    first, *_ = merge_bars(scene, 900 / scene.width_ns)
    assert len(first) <= MAX_SVG_BARS
    assert any("20,000 spans in" in text for text in texts(timeline_svg(random_trace(20_000))))


def test_merged_bar_has_the_look_of_its_longest_span():
    scene = plan_scene(make_trace([("a", "x", 0, 1), ("a", "y", 1, 9), ("a", "x", 9, 10), ("a", "x", 1_000_000, 2_000_000)]))
    first, left_px, right_px, longest = merge_bars(scene, 1e-4, limit=10)
    assert first.tolist() == [0, 3]
    assert longest.tolist() == [1, 3]
    assert (left_px[0], right_px[0]) == (0, pytest.approx(0.001))


def test_arrows_are_bounded():
    trace = make_trace([("a", "x", 0, 100), ("b", "x", 100, 200)], edges=[(0, 1)] * 1_000)
    assert timeline_svg(trace).count("h6z") == MAX_SVG_WAITS


def test_picture_marks_changes_of_the_layout():
    shown = texts(timeline_svg(repartition_trace()))
    assert "prefill 96 SMs, decode 36 SMs" in shown
    assert "prefill 96→64, decode 36→68" in shown
    assert "decode · 36→68 SMs" in shown


def test_picture_without_partitions_has_no_sign_of_them():
    svg = timeline_svg(nested_trace())
    assert "SMs" not in svg.split("</title>")[1]
    assert "stroke-dasharray" not in svg


def test_picture_of_a_layout_that_is_not_enforced_says_so():
    assert any("Layout not enforced" in text for text in texts(timeline_svg(partition_trace(is_enforced=False))))


def test_means_of_a_step_function_keep_its_area():
    times_ns, values = np.array([2.0, 5.0, 9.0]), np.array([4.0, 1.0, 0.0])
    edges_ns = np.array([0.0, 3.0, 6.0, 12.0])
    assert _means(times_ns, values, edges_ns) * np.diff(edges_ns) == pytest.approx([4, 9, 3])
