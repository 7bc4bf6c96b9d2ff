"""The timeline as a Bokeh figure: the same one for the notebook, the file and the live view."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpustreamlab.analysis import display_name
from gpustreamlab.draw._axis import lane_axis, time_axis
from gpustreamlab.draw._partition_figure import BAND_PX, SMS_PX, draw_groups, draw_marks, draw_sm_strip, partition_sources
from gpustreamlab.draw._plot import FONT, new_figure, plain
from gpustreamlab.draw._scene import Scene, plan_scene, text_width_px, used_hatches
from gpustreamlab.draw._templates import template
from gpustreamlab.model import SPAN_KINDS, Trace

STRIP_PX = 92
"""Height of the strip of busy streams, with the time axis."""

SCROLL_PX = 520
"""Lanes that are higher than this scroll within the page, so that the time axis stays in view."""

EMPTY_TEXT = "No spans yet: select a stream with lab.on(...)"

_TIPS = ("name", "stream", "kind", "start", "duration", "queueing", "thread")


def draw_timeline(trace: Trace, scene: Scene | None = None) -> Any:
    """Draw a trace as a Bokeh layout on one time axis: lanes with bars, SM-time by partition, the number of busy streams.

    Parameters
    ----------
    trace
        The spans.
    scene
        Their layout, where it is planned already.

    Returns
    -------
    bokeh.models.Column
        As wide as its place, with fixed heights. Columns that a test or a live view reads are in the sources named ``spans``
        (all that is drawn), ``steps`` and, for each partition, ``sms 0`` and so on; ``bars``, ``merges``, ``labels``, ``strip``
        and ``stack 0`` and so on are filled in the browser, for what is in view.
    """
    from bokeh.models import Column, Range1d

    scene = plan_scene(trace) if scene is None else scene
    margin_ns = max(1.0, scene.width_ns * 0.01)
    limits = (-10 * margin_ns, scene.width_ns + 10 * margin_ns)
    x_range = Range1d(
        -margin_ns, (scene.width_ns or 1e6) + margin_ns, bounds=limits if scene.width_ns else None, min_interval=10
    )
    sources = _sources(trace, scene)
    scroll_px = SCROLL_PX - (SMS_PX if scene.bands else 0)
    scrolls = scene.height_px > scroll_px
    border_px = _border_px(scene)
    lanes = _draw_lanes(trace, scene, x_range, sources, toolbar=None if scrolls else "above", border_px=border_px)
    strips = _draw_strips(scene, x_range, sources, toolbar="above" if scrolls else None, border_px=border_px)
    _keep_detail(trace, scene, lanes, sources)
    wide = {"sizing_mode": "stretch_width"}
    if scrolls:
        # Both keep room for the scroll bar, so that the lanes and the strip stay on one time axis.
        gutter = {"scrollbar-gutter": "stable", "overflow-x": "hidden"}
        lanes = Column(lanes, styles={**gutter, "max-height": f"{scroll_px}px", "overflow-y": "auto"}, **wide)
        strips = [Column(*strips, styles={**gutter, "overflow-y": "hidden"}, **wide)]
    return Column(lanes, *strips, **wide)


def lanes_height_px(scene: Scene) -> int:
    """Return how high the lanes are drawn; something is always shown."""
    return max(60, round(scene.height_px))


def _sources(trace: Trace, scene: Scene) -> dict[str, Any]:
    from bokeh.models import ColumnDataSource

    span = scene.span
    columns = {
        "left": scene.left_ns,
        "right": scene.right_ns,
        "queueing": (trace.start_ns[span] - trace.queued_ns[span]).astype(np.float64),
        "row": _small(scene.row),
        "name": _small(trace.name[span]),
        "kind": _small(trace.kind[span]),
        "thread": trace.thread[span].astype(np.int16 if len(trace.threads) < 1 << 15 else np.int32),
    }
    if scene.partition_texts:
        # The whole card, -1 in the trace, is the last.
        columns["partition"] = _small(trace.partition[span] % len(scene.partition_texts))
    empty = {
        "bars": ("left", "right", "top", "bottom", "fill", "edge", "place"),
        "merges": ("left", "right", "top", "bottom", "fill", "count", "longest"),
        "labels": ("x", "y", "text", "colour", "fill"),
    }
    sources = {name: ColumnDataSource({column: [] for column in names}, name=name) for name, names in empty.items()}
    # BokehJS 3.9 never comes back from drawing a step area of no points.
    sources["strip"] = ColumnDataSource({"time": [0.0, 1.0], "count": [0, 0], "zero": [0, 0]}, name="strip")
    for sign in used_hatches(trace, scene):
        sources[f"hatch {sign}"] = ColumnDataSource(
            {column: [] for column in ("left", "right", "top", "bottom")}, name=f"hatch {sign}"
        )
    sources |= partition_sources(scene)
    sources["spans"] = ColumnDataSource(columns, name="spans")
    sources["steps"] = ColumnDataSource({"time": scene.step_ns, "count": _small(scene.step_count)}, name="steps")
    return sources


def _small(codes: Any) -> Any:
    """Return codes from 0 on in the smallest type that a browser reads directly."""
    top = int(codes.max(initial=0))
    return codes.astype(np.uint8 if top < 1 << 8 else np.uint16 if top < 1 << 16 else np.int32)


def _border_px(scene: Scene) -> int:
    texts = [text for box in scene.lanes for text in (box.label, box.detail)]
    return int(max([56.0, *(text_width_px(text) for text in texts)]) + 18) + (BAND_PX if scene.groups else 0)


def _draw_lanes(
    trace: Trace, scene: Scene, x_range: Any, sources: dict[str, Any], *, toolbar: str | None, border_px: int
) -> Any:
    from bokeh.models import Range1d

    height_px = lanes_height_px(scene)
    toolbar_px = 32 if toolbar else 0
    plot = new_figure(x_range, Range1d(height_px, 0), height_px + toolbar_px + 4, toolbar, border_px)
    plot.name = "lanes"
    lane_axis(plot, scene)
    _draw_bands(plot, scene)
    draw_groups(plot, scene, border_px)
    box = {"left": "left", "right": "right", "top": "top", "bottom": "bottom"}
    bars = plain(
        plot.quad(**box, source=sources["bars"], fill_color="fill", line_color="#ffffff", line_alpha="edge", name="bars")
    )
    merged = plain(
        plot.quad(**box, source=sources["merges"], fill_color="fill", line_color=None, fill_alpha=0.85, name="merges")
    )
    for sign in used_hatches(trace, scene):
        look = {"hatch_pattern": sign, "hatch_color": "#101418", "hatch_alpha": 0.2, "hatch_scale": 10}
        plain(plot.quad(**box, source=sources[f"hatch {sign}"], fill_color=None, line_color=None, **look, name="hatches"))
    text = plot.text(
        "x", "y", text="text", source=sources["labels"], text_color="colour", text_font_size="11px", text_font={"value": FONT},
        text_baseline="middle", background_fill_color="fill", name="labels",
    )  # fmt: skip
    plain(text)
    draw_marks(plot, scene, sources, with_labels=True)
    if len(scene.edges):
        _draw_edges(plot, scene)
    if not len(scene.span):
        plot.text(
            [(x_range.start + x_range.end) / 2], [height_px / 2], text=[EMPTY_TEXT], text_align="center",
            text_baseline="middle", text_font_size="14px", text_font={"value": FONT}, text_color="#777777", name="empty",
        )  # fmt: skip
    _add_hovers(plot, trace, scene, sources, bars, merged)
    return plot


def _draw_bands(plot: Any, scene: Scene) -> None:
    """Shade every second lane, so that the eye finds the way from a bar to its label."""
    shaded = scene.lanes[1::2]
    plot.hstrip(
        y0=[box.top for box in shaded],
        y1=[box.bottom for box in shaded],
        fill_color="#808080",
        fill_alpha=0.1,
        line_color=None,
        level="underlay",
    )


def _draw_edges(plot: Any, scene: Scene) -> None:
    """Draw each wait as a thin line from the end of what was waited for to the start of what waited, with a head."""
    source, target = scene.edges[:, 0], scene.edges[:, 1]
    from_row, to_row = scene.row[source], scene.row[target]
    down = scene.row_top[from_row] <= scene.row_top[to_row]
    y0 = np.where(down, scene.row_bottom[from_row], scene.row_top[from_row])
    y1 = np.where(down, scene.row_top[to_row], scene.row_bottom[to_row])
    x0, x1 = scene.right_ns[source], scene.left_ns[target]
    plot.segment(x0=x0, y0=y0, x1=x1, y1=y1, line_color="#888888", line_width=1, line_alpha=0.9, name="waits")
    for marker, rows in (("inverted_triangle", down), ("triangle", ~down)):
        plot.scatter(x1[rows], y1[rows], marker=marker, size=6, color="#888888", line_color=None, name="waits")


def _add_hovers(plot: Any, trace: Trace, scene: Scene, sources: dict[str, Any], bars: Any, merged: Any) -> None:
    from bokeh.models import CustomJSHover, HoverTool

    args: dict[str, Any] = {
        "spans": sources["spans"],
        "names": [display_name(name, 200) for name in trace.names],
        "streams": [display_name(lane.name, 200) for lane in trace.lanes],
        "threads": [display_name(thread, 200) for thread in trace.threads],
        "kinds": [kind.value for kind in SPAN_KINDS],
        "row_lane": scene.row_lane.tolist(),
    }
    fields: tuple[str, ...] = _TIPS
    if scene.partition_texts:
        args["partitions"] = list(scene.partition_texts)
        fields = (*_TIPS[:2], "partition", *_TIPS[2:])
    tips = [(field, f"@place{{{field}}}") for field in fields]
    formatter = CustomJSHover(args=args, code=template("units.js") + template("hover.js"))
    common: dict[str, Any] = {"point_policy": "follow_mouse", "show_arrow": False, "visible": False}
    plot.add_tools(HoverTool(renderers=[bars], tooltips=tips, formatters={"@place": formatter}, **common))
    merged_tips = [
        ("spans", "@count{0,0} that are too narrow to draw here: zoom in"),
        ("longest", "@longest{name}"),
        ("", "@longest{duration}"),
    ]
    plot.add_tools(HoverTool(renderers=[merged], tooltips=merged_tips, formatters={"@longest": formatter}, **common))


def _draw_strips(scene: Scene, x_range: Any, sources: dict[str, Any], *, toolbar: str | None, border_px: int) -> list[Any]:
    if not scene.bands:
        return [_draw_strip(scene, x_range, sources, toolbar=toolbar, border_px=border_px)]
    sms = draw_sm_strip(scene, x_range, sources, toolbar=toolbar, border_px=border_px)
    return [sms, _draw_strip(scene, x_range, sources, toolbar=None, border_px=border_px)]


def _draw_strip(scene: Scene, x_range: Any, sources: dict[str, Any], *, toolbar: str | None, border_px: int) -> Any:
    from bokeh.models import FixedTicker, Range1d

    most = int(scene.step_count.max(initial=0))
    height_px = STRIP_PX + (32 if toolbar else 0)
    plot = new_figure(x_range, Range1d(0, max(1, most) * 1.15), height_px, toolbar, border_px)
    plot.name = "busy"
    plot.varea_step(
        x="time",
        y1="zero",
        y2="count",
        source=sources["strip"],
        step_mode="after",
        fill_color="#4c8dae",
        fill_alpha=0.75,
        name="strip",
    )
    plot.yaxis.ticker = FixedTicker(ticks=[0, most] if most else [0])
    plot.yaxis.major_label_overrides = {0: "0", most: f"{most:,} busy"}
    plot.yaxis.minor_tick_line_color = None
    plot.ygrid.visible = False
    draw_marks(plot, scene, sources, with_labels=False)
    time_axis(plot, x_range)
    return plot


def _keep_detail(trace: Trace, scene: Scene, lanes: Any, sources: dict[str, Any]) -> None:
    """Fill the drawn sources in the browser, whenever what is in view changes."""
    from bokeh.models import CustomJS

    signs = used_hatches(trace, scene)
    args = {
        **{name: source for name, source in sources.items() if " " not in name and name != "marks"},
        "sms": [sources[f"sms {place}"] for place in range(len(scene.bands))],
        "stacks": [sources[f"stack {place}"] for place in range(len(scene.bands))],
        "marks": [sources["marks"], sources["mark labels"]] if scene.marks else [],
        "has_groups": bool(scene.groups),
        "mark_rows": list(scene.mark_rows),
        "hatched": [sources[f"hatch {sign}"] for sign in signs],
        "lanes": lanes,
        "row_top": scene.row_top.tolist(),
        "row_bottom": scene.row_bottom.tolist(),
        "names": [display_name(name) for name in trace.names],
        "fills": [style.fill for style in scene.styles],
        "texts": [style.text for style in scene.styles],
        "kind_fills": list(scene.kind_fill),
        # A browser finds a hatch by its number, from 1; 0 is none, and for a kind: the name's.
        "hatches": [signs.index(style.hatch) + 1 if style.hatch in signs else 0 for style in scene.styles],
        "kind_hatches": [signs.index(sign) + 1 if sign in signs else 0 for sign in scene.kind_hatch],
    }
    callback = CustomJS(args=args, code=template("detail.js"))
    lanes.x_range.js_on_change("start", callback)
    lanes.x_range.js_on_change("end", callback)
    lanes.js_on_change("inner_width", callback)
