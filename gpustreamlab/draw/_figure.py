"""The timeline as a figure of Bokeh with glyphs of its own, for those who go on with Bokeh."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpustreamlab.analysis import axis_unit, display_name
from gpustreamlab.draw._bars import bar_fills, bar_shapes
from gpustreamlab.draw._picture import FONT, plan_picture
from gpustreamlab.draw._scene import Scene
from gpustreamlab.draw._svg import MAX_FILE_BARS, left_out, merged_items, wait_edges
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import FloatArray

_WIDTH_PX, _LABELS_PX = 1_000, 160
_LANE_PX, _AROUND_PX, _HEIGHT_LIMITS_PX = 42, 90, (220, 1_600)
_MAX_WAITS = 5_000
_ALPHA = {"solid": 1.0, "open": 0.35, "hollow": 0.0}
"""How opaque work is, ranges that may have waited, and what waited for certain."""
_TIPS = [("name", "@name"), ("kind", "@kind"), ("lane", "@lane"), ("from", "@left{0,0.000}"), ("to", "@right{0,0.000}")]


def timeline_figure(trace: Trace) -> Any:
    """Draw a trace as a figure of Bokeh, of bars that can be changed.

    The first lane is on top. A lane is 1 high, with its middle at its number from 0 on, and the bars of its rows are within.

    Parameters
    ----------
    trace
        The spans.

    Returns
    -------
    bokeh.plotting.figure
        With at most 20,000 bars: narrow neighbours share one where there are more spans, with their count and busy time.
    """
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure

    picture = plan_picture(trace)
    scene, columns, header = picture.scene, picture.columns, picture.header
    items = merged_items(columns, (_WIDTH_PX - _LABELS_PX) / max(1.0, scene.width_ns), MAX_FILE_BARS)
    if len(columns.row) <= MAX_FILE_BARS:  # as many as can be are bars of their own
        items = merged_items(columns, 1.0, MAX_FILE_BARS)
    unit, unit_ns = axis_unit(scene.width_ns or 1e6)
    top, bottom = _row_places(scene)
    order = sorted(range(len(scene.lanes)), key=lambda lane: scene.lanes[lane].top)
    labels = [scene.lanes[lane].texts[0] for lane in order]
    row, kinds = columns.row[items.pick], columns.kind[items.pick].tolist()
    names = [display_name(trace.names[code]) for code in columns.name[items.pick].tolist()]
    lane_names = [trace.lanes[lane].name for lane in scene.rows.lane[row].tolist()]
    bars = {
        "left": items.left_ns / unit_ns,
        "right": items.right_ns / unit_ns,
        "y": (top[row] + bottom[row]) / 2,
        "height": bottom[row] - top[row],
        "name": names,
        "kind": [SPAN_KINDS[kind].value for kind in kinds],
        "lane": [display_name(name) for name in lane_names],
        "count": items.count,
        "busy_ns": items.busy_ns,
        "fill": bar_fills(picture, items, items.count == 1),
        "alpha": [_ALPHA[shape] for shape in bar_shapes(picture, items)],
    }
    height_px = int(np.clip(_AROUND_PX + _LANE_PX * len(labels), *_HEIGHT_LIMITS_PX))
    plot = figure(
        title=" · ".join([f"{header.title} ({header.badge})", *left_out(picture, items, _MAX_WAITS)]),
        width=_WIDTH_PX,
        height=height_px,
        y_range=(max(1, len(labels)) - 0.5, -0.5),
        x_axis_label=f"time since the first start, {unit}",
        tools="xpan,xwheel_zoom,box_zoom,reset,save",
        active_scroll=None,
    )
    spans = plot.hbar(
        y="y", height="height", left="left", right="right", fill_color="fill", fill_alpha="alpha", line_color="fill",
        line_width=0.5, source=ColumnDataSource(bars), name="spans",
    )  # fmt: skip
    plot.add_tools(HoverTool(renderers=[spans], tooltips=[*_TIPS, ("spans", "@count{0,0}")]))
    edges = wait_edges(picture, _MAX_WAITS)
    if len(edges):
        ends = {"x0": edges[:, 0] / unit_ns, "x1": edges[:, 2] / unit_ns}
        down = top[edges[:, 1]] <= top[edges[:, 3]]
        ends["y0"] = np.where(down, bottom[edges[:, 1]], top[edges[:, 1]])
        ends["y1"] = np.where(down, top[edges[:, 3]], bottom[edges[:, 3]])
        plot.segment(x0="x0", y0="y0", x1="x1", y1="y1", source=ColumnDataSource(ends), color="#57606a", name="waits")
    plot.yaxis.ticker = list(range(len(labels)))
    plot.yaxis.major_label_overrides = dict(enumerate(labels))
    plot.ygrid.grid_line_color = None
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.major_label_text_font = axis.axis_label_text_font = FONT
    return plot


def _row_places(scene: Scene) -> tuple[FloatArray, FloatArray]:
    """Return the borders of each row's bars where each lane is 1 high; shape (n_rows,), float64, twice."""
    count = len(scene.lanes)
    lane_top = np.array([box.top for box in scene.lanes], np.float64)
    lane_px = np.array([box.bottom for box in scene.lanes], np.float64) - lane_top
    number = np.empty(count)
    number[np.argsort(lane_top, kind="stable")] = np.arange(count)
    lane = scene.rows.lane
    base = number[lane] - 0.5
    top: FloatArray = base + (scene.row_top - lane_top[lane]) / lane_px[lane]
    bottom: FloatArray = base + (scene.row_bottom - lane_top[lane]) / lane_px[lane]
    return top, bottom
