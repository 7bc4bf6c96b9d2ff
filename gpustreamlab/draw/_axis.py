"""The axes of the timeline: time that reads well at every zoom, and lanes by name."""

from __future__ import annotations

from typing import Any

from gpustreamlab.draw._scene import Scene, label_lines
from gpustreamlab.draw._templates import template


def time_axis(plot: Any, x_range: Any) -> None:
    """Give a figure's x axis round times in the unit that suits what is in view."""
    from bokeh.models import CustomJSTickFormatter, PlainText

    plot.xaxis.ticker = time_ticker()
    plot.xgrid.ticker = plot.xaxis[0].ticker
    plot.xaxis.formatter = CustomJSTickFormatter(args={"x_range": x_range}, code=template("ticks.js"))
    plot.xaxis.axis_label = PlainText(text="time since the first start")
    plot.xaxis.minor_tick_line_color = None


def time_ticker() -> Any:
    """Return a ticker for nanoseconds: decimal steps up to 20 s, then minutes and hours."""
    from bokeh.models import AdaptiveTicker, CompositeTicker

    count = {"desired_num_ticks": 6, "num_minor_ticks": 0}
    short = AdaptiveTicker(mantissas=[1, 2, 5], base=10, max_interval=20e9, **count)
    long = AdaptiveTicker(mantissas=[1, 2, 5, 10, 15, 30], base=60, min_interval=60e9, **count)
    return CompositeTicker(tickers=[short, long], **count)


def lane_axis(plot: Any, scene: Scene) -> None:
    """Write the lanes' names beside them, and no time below: the strip has it."""
    from bokeh.models import FixedTicker, NoOverlap, PlainText

    lines = label_lines(scene.lanes)
    plot.yaxis.ticker = FixedTicker(ticks=[middle for middle, _ in lines])
    # Plain text: a bare string in an axis label is searched for mathematics, and $$ would load a renderer from elsewhere.
    plot.yaxis.major_label_overrides = {middle: PlainText(text=text) for middle, text in lines}
    plot.yaxis.major_label_policy = NoOverlap()
    plot.yaxis.major_tick_line_color = None
    plot.yaxis.minor_tick_line_color = None
    plot.ygrid.visible = False
    plot.xaxis.visible = False
    plot.xgrid.ticker = time_ticker()
