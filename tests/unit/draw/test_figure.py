"""The Bokeh figure that the viewer paints into."""

from __future__ import annotations

import json
import logging

import pytest
from bokeh.embed import json_item

from gpustreamlab.draw import draw_figure, plan_picture
from gpustreamlab.draw._html import page_data
from gpustreamlab.draw._picture import EMPTY_WINDOW_NS
from tests.helpers.traces import EVIL_NAME, empty_trace, evil_trace, pipeline_trace, random_trace


def figure_of(trace):
    data, _ = page_data(plan_picture(trace))
    return draw_figure(data["tables"])


def test_window_is_the_session_with_a_margin():
    plot = figure_of(pipeline_trace())
    assert (plot.x_range.start, plot.x_range.end) == (-75_000, 7_575_000)
    assert plot.x_range.min_interval == 10


def test_a_session_without_spans_has_a_window_too():
    plot = figure_of(empty_trace())
    assert plot.x_range.start == pytest.approx(-0.01 * EMPTY_WINDOW_NS)
    assert plot.x_range.end == pytest.approx(1.01 * EMPTY_WINDOW_NS)


def test_tools_move_time_and_select():
    plot = figure_of(pipeline_trace())
    tools = [type(tool).__name__ for tool in plot.toolbar.tools]
    assert tools == ["PanTool", "WheelZoomTool", "BoxZoomTool", "BoxSelectTool", "ResetTool"]
    assert type(plot.toolbar.active_drag).__name__ == "PanTool"
    assert type(plot.toolbar.active_scroll).__name__ == "WheelZoomTool"
    assert {tool.dimensions for tool in plot.toolbar.tools[:3]} == {"width"}


def test_time_axis_is_divided_by_decimals_up_to_20_s_and_by_minutes_above():
    plot = figure_of(pipeline_trace())
    tickers = {ticker.base: ticker for ticker in plot.xaxis[0].ticker.tickers}
    assert tickers[10].max_interval == 20e9
    assert tickers[60].min_interval == 60e9
    assert plot.xgrid[0].ticker is plot.xaxis[0].ticker


def test_figure_holds_no_spans_and_no_names():
    small, large = (json.dumps(json_item(figure_of(trace))) for trace in (pipeline_trace(), random_trace(20_000, 100)))
    assert len(large) < len(small) + 100
    assert len(small) < 10_000
    assert EVIL_NAME not in json.dumps(json_item(figure_of(evil_trace())))


def test_bokeh_finds_nothing_to_warn_of(caplog):
    with caplog.at_level(logging.WARNING, logger="bokeh"):
        json_item(figure_of(pipeline_trace()))
    assert caplog.messages == []
