"""The picture of a trace: its plan, and its Bokeh figure."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpustreamlab.analysis import (
    Concurrency,
    basis_of,
    busy_edges,
    busy_word,
    concurrency,
    count_steps,
    finding_text,
    over_wall,
    span_rows,
    used_stream_count,
)
from gpustreamlab.draw._columns import SpanColumns, columns_of
from gpustreamlab.draw._header import Header, plan_header
from gpustreamlab.draw._scene import Scene, plan_scene
from gpustreamlab.model import Trace
from gpustreamlab.typing import Int64Array, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """A trace, laid out and counted."""

    trace: Trace  # The spans
    columns: SpanColumns  # The spans as they are drawn: by row, then by start
    scene: Scene  # Where everything is
    header: Header  # What stands above it
    counted: tuple[SpanKind, ...]  # Kinds of spans that count as busy time
    steps: tuple[Int64Array, Int64Array]
    """When the number of busy lanes changes, on the trace's clock, and to what, as `count_steps` returns."""


def plan_picture(trace: Trace) -> Picture:
    """Lay out a trace, and find what is to be said about it."""
    with ThreadPoolExecutor(1) as pool:
        # Sorting takes most of the time, and numpy sorts without the interpreter's lock.
        found = pool.submit(basis_of, trace)
        counting = pool.submit(lambda: _count(trace, found.result().counted))
        rows, codes = span_rows(trace)
        basis = found.result()
        scene = plan_scene(trace, rows, strip_word=busy_word(basis.counted))
        columns = columns_of(trace, codes, scene.zero_ns)
        steps, result = counting.result()
    finding = finding_text(result, trace.metadata, lane_count=used_stream_count(trace), counted=basis.counted)
    return Picture(
        trace=trace,
        columns=columns,
        scene=scene,
        header=plan_header(trace, finding=finding, basis=basis),
        counted=basis.counted,
        steps=steps,
    )


def _count(trace: Trace, counted: tuple[SpanKind, ...]) -> tuple[tuple[Int64Array, Int64Array], Concurrency]:
    edges_ns = busy_edges(trace, counted)
    steps = count_steps(edges_ns)
    return steps, over_wall(trace, concurrency(trace, edges_ns, steps))


FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"  # The font of all texts
EMPTY_WINDOW_NS = 1e6  # How much time a figure shows in which nothing ran yet
FIRST_HEIGHT_PX = 300  # Height until the viewer has planned the lanes; it sets the height before the figure is drawn


def draw_figure(tables: Mapping[str, Any]) -> Any:
    """Make the figure of a timeline: a time axis with its grid, and ranges.

    Examples
    --------
    >>> plot = draw_figure({"extent_ns": 2e6, "border_px": 120})
    >>> plot.x_range.start, plot.x_range.end, plot.tools
    (-20000.0, 2020000.0, [])
    """
    from bokeh.models import Range1d
    from bokeh.plotting import figure

    width_ns = float(tables["extent_ns"]) or EMPTY_WINDOW_NS
    plot = figure(
        name="timeline",
        x_range=Range1d(-0.01 * width_ns, 1.01 * width_ns, min_interval=10),
        y_range=Range1d(FIRST_HEIGHT_PX, 0),
        height=FIRST_HEIGHT_PX,
        sizing_mode="stretch_width",
        tools="",  # The viewer moves the picture itself, and has keys and a menu, with names.
        toolbar_location=None,
        min_border_left=int(tables["border_px"]),
        min_border_right=20,
        min_border_top=2,
        min_border_bottom=2,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        lod_threshold=None,
    )
    # Bokeh warns of a figure without renderers; the viewer takes this one out.
    plot.scatter([], [], visible=False)
    plot.yaxis.visible = False
    plot.ygrid.visible = False
    axis = plot.xaxis[0]
    axis.ticker = plot.xgrid[0].ticker = _time_ticker()
    axis.major_label_text_font = FONT
    axis.major_label_text_font_size = "12px"
    axis.axis_label = None  # The viewer writes it: far from 0 it says from when on the ticks count.
    axis.minor_tick_line_color = None
    return plot


def _time_ticker() -> Any:
    """Return a ticker for nanoseconds: decimal steps up to 20 s, then minutes and hours."""
    from bokeh.models import AdaptiveTicker, CompositeTicker

    count = {"desired_num_ticks": 6, "num_minor_ticks": 0}
    short = AdaptiveTicker(mantissas=[1, 2, 5], base=10, max_interval=20e9, **count)
    long = AdaptiveTicker(mantissas=[1, 2, 5, 10, 15, 30], base=60, min_interval=60e9, **count)
    return CompositeTicker(tickers=[short, long], **count)
