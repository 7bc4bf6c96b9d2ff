"""The Bokeh figure, read through its sources."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from bokeh.embed import json_item
from bokeh.models import (
    AdaptiveTicker,
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    HTMLLabel,
    PanTool,
    PlainText,
    Plot,
    ResetTool,
    Segment,
    WheelZoomTool,
)

from gpustreamlab.draw import draw_timeline, plan_scene
from gpustreamlab.model import Edges
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    many_partitions_trace,
    nested_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)


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


def test_lane_labels_are_plain_text_with_priority():
    axis = by_name(draw_timeline(pipeline_trace()), Plot, "lanes").yaxis[0]
    labels = list(axis.major_label_overrides.values())
    assert all(isinstance(label, PlainText) for label in labels)
    assert [label.text for label in labels] == ["compute\npriority -1", "upload", "download"]


def test_long_times_have_minute_ticks():
    tickers = list(draw_timeline(pipeline_trace()).select({"type": AdaptiveTicker}))
    assert {ticker.base for ticker in tickers} == {10, 60}


@pytest.mark.parametrize(
    "trace",
    [
        empty_trace(),
        one_lane_trace(),
        nested_trace(),
        evil_trace(),
        random_trace(200, 100),
        partition_trace(),
        repartition_trace(),
        many_partitions_trace(),
    ],
    ids=["empty", "one", "nested", "evil", "100", "partitions", "repartition", "8-partitions"],
)
def test_every_trace_becomes_valid_json_without_a_warning(trace, caplog):
    assert json.loads(json.dumps(json_item(draw_timeline(trace))))["doc"]
    assert caplog.records == []


def test_package_does_not_import_bokeh_before_it_draws():
    code = "import sys, gpustreamlab.timeline; sys.exit('bokeh' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def labels(layout, name):
    return [label.text for label in layout.select({"type": HTMLLabel}) if label.name == name]


def test_partitions_have_a_label_and_a_lettered_band():
    layout = draw_timeline(partition_trace())
    assert sorted(labels(layout, "group label")) == [
        "decode · 36 SMs \u2003verified",
        "prefill · 96 SMs \u2003asked for 90 · verified",
        "whole card · 132 SMs \u2003shares SMs with every partition",
    ]
    assert sorted(labels(layout, "group band")) == ["", "A", "B"]


def test_without_partitions_there_is_no_band_no_strip_and_no_field_in_the_hover():
    layout = draw_timeline(nested_trace())
    assert list(layout.select({"type": HTMLLabel})) == []
    assert sorted(model.name for model in layout.select({"type": Plot})) == ["busy", "lanes"]
    assert all("partition" not in dict(tool.tooltips) for tool in layout.select({"type": HoverTool}))
    assert "partition" not in sources(layout)["spans"].data


def test_every_span_knows_its_partition_as_it_was():
    trace = repartition_trace()
    layout = draw_timeline(trace)
    hover = next(tool for tool in layout.select({"type": HoverTool}) if "partition" in dict(tool.tooltips))
    names = hover.formatters["@place"].args["partitions"]
    shown = Counter(names[code] for code in sources(layout)["spans"].data["partition"])
    assert shown == {
        "whole card · 132 SMs": 4, "prefill · 96 SMs (asked for 90)": 4, "prefill · 64 SMs": 4,
        "decode · 36 SMs": 4, "decode · 68 SMs": 4,
    }  # fmt: skip


def test_bars_are_as_high_as_the_sms_that_their_span_had():
    trace = repartition_trace()
    scene = plan_scene(trace)
    height = scene.row_bottom[scene.row] - scene.row_top[scene.row]
    sms = np.array([*(part.granted_sms for part in trace.partitions), 132])[trace.partition[scene.span]]
    for lane in range(len(trace.lanes)):
        mine = trace.lane[scene.span] == lane
        order = np.argsort(sms[mine], kind="stable")
        assert (np.diff(height[mine][order]) >= 0).all()
        assert len(set(np.round(height[mine], 6))) == len(set(sms[mine]))
    assert [trace.lane[span] for span in scene.span] == [scene.row_lane[row] for row in scene.row]


def test_hover_says_where_a_layout_was_not_enforced():
    layout = draw_timeline(partition_trace(is_enforced=False))
    hover = next(tool for tool in layout.select({"type": HoverTool}) if "partition" in dict(tool.tooltips))
    assert "prefill · asked for 90, not enforced: all 132 SMs" in hover.formatters["@place"].args["partitions"]


def test_strip_of_sms_has_the_steps_of_each_partition_on_the_common_time_axis():
    layout = draw_timeline(repartition_trace())
    assert by_name(layout, Plot, "sms").x_range is by_name(layout, Plot, "lanes").x_range
    assert by_name(layout, Plot, "sms").y_range.end == 132
    bands = by_name(layout, Plot, "lanes").js_property_callbacks["change:inner_width"][0].args["sms"]
    assert [max(band.data["count"]) for band in bands] == [96, 68, 132]


def test_changes_of_the_layout_are_marked_with_their_texts():
    layout = draw_timeline(repartition_trace())
    marks = by_name(layout, Plot, "lanes").js_property_callbacks["change:inner_width"][0].args["marks"][0]
    assert marks.data["time"].tolist() == [1_950_000, 5_950_000]
    assert marks.data["text"] == ["prefill 96 SMs, decode 36 SMs", "prefill 96→64, decode 36→68"]


def test_hostile_partition_names_stay_texts():
    layout = draw_timeline(evil_trace())
    assert any(EVIL_NAME[:10] in text for text in labels(layout, "group label"))
    assert EVIL_NAME not in json.dumps([label.styles for label in layout.select({"type": HTMLLabel})])


def test_arrows_between_lanes_point_the_way_that_they_go():
    base = repartition_trace()
    rows = [int(np.flatnonzero((base.lane == lane) & (base.partition >= 0))[-1]) for lane in (0, 1)]
    trace = replace(base, edges=Edges(source=[rows[0]], target=[rows[1]], kind=[0]))
    layout = draw_timeline(trace)
    segment = next(renderer for renderer in layout.select({"name": "waits"}) if isinstance(renderer.glyph, Segment))
    y0, y1 = segment.data_source.data["y0"][0], segment.data_source.data["y1"][0]
    lanes = {box.lane: box for box in plan_scene(trace).lanes}
    is_down = lanes[int(trace.lane[rows[0]])].top < lanes[int(trace.lane[rows[1]])].top
    assert (y0 < y1) == is_down
