"""The Bokeh figure, read through its sources."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import (
    AdaptiveTicker,
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    PanTool,
    PlainText,
    Plot,
    ResetTool,
    WheelZoomTool,
)

from gpustreamlab.draw import draw_timeline
from tests.helpers.traces import empty_trace, evil_trace, nested_trace, one_lane_trace, pipeline_trace, random_trace


def by_name(layout, kind, name):
    return next(model for model in layout.select({"type": kind}) if model.name == name)


def sources(layout):
    """Return the sources that the layout's callbacks see, by name."""
    callback = by_name(layout, Plot, "lanes").js_property_callbacks["change:inner_width"][0]
    return {name: value for name, value in callback.args.items() if isinstance(value, ColumnDataSource)}


def test_spans_are_in_the_source():
    trace = pipeline_trace()
    data = sources(draw_timeline(trace))["spans"].data
    assert len(data["left"]) == len(trace)
    assert sorted((data["right"] - data["left"]).tolist()) == sorted(trace.duration_ns.tolist())
    assert set(np.unique(data["row"])) == {0, 1, 2}


def test_queueing_is_start_minus_enqueue():
    trace = one_lane_trace()
    assert sources(draw_timeline(trace))["spans"].data["queueing"].tolist() == [300_000] * 4


def test_strip_has_every_change_of_the_number_of_busy_streams():
    data = sources(draw_timeline(nested_trace()))["steps"].data
    assert data["count"].tolist() == [1, 2, 1, 2, 1, 0]
    assert data["time"].tolist() == [200_000, 2e6, 4e6, 6.5e6, 8e6, 9e6]


def test_lanes_and_strip_share_the_time_axis():
    layout = draw_timeline(pipeline_trace())
    assert by_name(layout, Plot, "lanes").x_range is by_name(layout, Plot, "busy").x_range


def test_tools_are_pan_wheel_box_zoom_reset_and_hover():
    tools = by_name(draw_timeline(pipeline_trace()), Plot, "lanes").toolbar.tools
    for kind in (PanTool, WheelZoomTool, BoxZoomTool, ResetTool, HoverTool):
        assert any(isinstance(tool, kind) for tool in tools)


def test_hover_asks_for_every_field():
    layout = draw_timeline(pipeline_trace())
    fields = [label for tool in layout.select({"type": HoverTool}) for label, _ in tool.tooltips]
    assert {"name", "stream", "start", "duration", "queueing", "thread"} <= set(fields)


def test_lane_labels_are_plain_text_with_priority_and_partition():
    axis = by_name(draw_timeline(pipeline_trace()), Plot, "lanes").yaxis[0]
    labels = list(axis.major_label_overrides.values())
    assert all(isinstance(label, PlainText) for label in labels)
    assert [label.text for label in labels] == ["upload", "compute\npriority -1 · prefill (96 SMs)", "download"]


def test_long_times_have_minute_ticks():
    tickers = list(draw_timeline(pipeline_trace()).select({"type": AdaptiveTicker}))
    assert {ticker.base for ticker in tickers} == {10, 60}


@pytest.mark.parametrize(
    "trace",
    [empty_trace(), one_lane_trace(), nested_trace(), evil_trace(), random_trace(200, 100)],
    ids=["empty", "one", "nested", "evil", "100"],
)
def test_every_trace_becomes_valid_json_without_a_warning(trace, caplog):
    assert json.loads(json.dumps(json_item(draw_timeline(trace))))["doc"]
    assert caplog.records == []


def test_package_does_not_import_bokeh_before_it_draws():
    code = "import sys, gpustreamlab.timeline; sys.exit('bokeh' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
