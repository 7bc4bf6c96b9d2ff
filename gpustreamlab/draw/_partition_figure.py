"""Partitions in the Bokeh figure: bands beside their lanes, marks of changes, and the strip of SM-time."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpustreamlab.draw._axis import time_ticker
from gpustreamlab.draw._colours import DARK_TEXT
from gpustreamlab.draw._groups import SMBand
from gpustreamlab.draw._hatches import hatch_image
from gpustreamlab.draw._plot import FONT, new_figure, plain
from gpustreamlab.draw._scene import GROUP_PX, GroupBox, Scene, text_width_px

SMS_PX = 78
"""Height of the strip of SM-time."""

BAND_PX = 26
"""Width of the coloured band left of a partition's lanes, with its letter."""

_MARK_COLOUR = "#8a4b00"
_TINT = 0.3


def partition_sources(scene: Scene) -> dict[str, Any]:
    """Return the sources of the strip of SM-time and of the marks: what there is (``sms 0``, ``marks``) and what is drawn."""
    from bokeh.models import ColumnDataSource

    sources = {}
    for place, band in enumerate(scene.bands):
        sources[f"sms {place}"] = _steps_source(band, f"sms {place}")
        # BokehJS 3.9 never comes back from drawing a step area of no points.
        empty = {"time": [0.0, 1.0], "low": [0, 0], "high": [0, 0]}
        sources[f"stack {place}"] = ColumnDataSource(empty, name=f"stack {place}")
    if scene.marks:
        texts = [mark.text for mark in scene.marks]
        marks = {
            "time": np.array([mark.time_ns for mark in scene.marks]),
            "text": texts,
            "width": [text_width_px(text, 11) for text in texts],
        }
        sources["marks"] = ColumnDataSource(marks, name="marks")
        sources["mark labels"] = ColumnDataSource(
            {name: [] for name in ("x", "y", "text", "align", "shift")}, name="mark labels"
        )
    return sources


def draw_groups(plot: Any, scene: Scene, border_px: int) -> None:
    """Draw a line with the name above the lanes of each partition, and a band in its colour left of them.

    Parameters
    ----------
    plot
        The figure of the lanes; one unit of its y axis is one px.
    scene
        The partitions.
    border_px
        Room left of the lanes.
    """
    from bokeh.models import BoxAnnotation

    if scene.groups:
        plot.styles = {"overflow": "clip"}
    for box in scene.groups:
        style = box.group.style
        tint = BoxAnnotation(
            top=box.top, bottom=box.head_bottom, fill_color=style.fill, fill_alpha=_TINT, line_color=None, level="underlay"
        )
        plot.add_layout(tint)
        plot.add_layout(_head(box, border_px))
        plot.add_layout(_band(box))


def draw_marks(plot: Any, scene: Scene, sources: dict[str, Any], *, with_labels: bool) -> None:
    """Draw a line at each change of the layout, from the top to the bottom, and its label where there is room."""
    if not scene.marks:
        return
    plain(
        plot.vspan(
            x="time", source=sources["marks"], line_color=_MARK_COLOUR, line_dash="dashed", line_width=1.5, name="mark lines"
        )
    )
    if with_labels:
        labels = plot.text(
            "x", "y", text="text", text_align="align", x_offset="shift", source=sources["mark labels"],
            text_baseline="middle", text_font_size="11px", text_font={"value": FONT}, text_font_style="bold",
            text_color=_MARK_COLOUR, name="mark labels",
        )  # fmt: skip
        plain(labels)


def draw_sm_strip(scene: Scene, x_range: Any, sources: dict[str, Any], *, toolbar: str | None, border_px: int) -> Any:
    """Draw the SMs that the partitions occupy over time, stacked, as high as the card has SMs."""
    from bokeh.models import FixedTicker, Range1d

    plot = new_figure(x_range, Range1d(0, scene.sm_count), SMS_PX + (32 if toolbar else 0), toolbar, border_px)
    plot.name = "sms"
    for place, band in enumerate(scene.bands):
        area = plot.varea_step(
            x="time", y1="low", y2="high", source=sources[f"stack {place}"], step_mode="after", fill_color=band.style.fill,
            hatch_pattern=band.style.hatch, hatch_color=DARK_TEXT, hatch_alpha=0.3, hatch_scale=8, name="sm areas",
        )  # fmt: skip
        plain(area)
    plot.yaxis.ticker = FixedTicker(ticks=[0, scene.sm_count])
    plot.yaxis.major_label_overrides = {0: "0", scene.sm_count: f"{scene.sm_count:,} SMs"}
    plot.yaxis.minor_tick_line_color = None
    plot.ygrid.visible = False
    plot.xaxis.visible = False
    plot.xgrid.ticker = time_ticker()
    plot.min_border_top = 10
    draw_marks(plot, scene, sources, with_labels=False)
    return plot


def _steps_source(band: SMBand, name: str) -> Any:
    from bokeh.models import ColumnDataSource

    sms = band.step_sms.astype(np.uint16 if band.step_sms.max(initial=0) < 1 << 16 else np.int32)
    return ColumnDataSource({"time": band.step_ns, "count": sms}, name=name)


def _head(box: GroupBox, border_px: int) -> Any:
    """Return the line above a partition's lanes: it begins left of them, and its text may run on above them."""
    group, indent_px = box.group, BAND_PX + 6
    styles = {
        "width": f"{border_px - indent_px}px",
        "padding-left": f"{indent_px}px",
        "background": f"{group.style.fill}{round(255 * _TINT):02x}",
    }
    text = f"{group.label} \u2003{group.detail}" if group.detail else group.label
    return _side_box(text, box.top, box.head_bottom - box.top, styles, name="group label")


def _band(box: GroupBox) -> Any:
    """Return the band left of a partition's lanes, with its letter above."""
    style = box.group.style
    styles = {
        "width": f"{BAND_PX}px",
        "text-align": "center",
        "background": f"{hatch_image(style.hatch)} {style.fill}".strip(),
    }
    return _side_box(style.letter, box.top, box.bottom - box.top - 1, styles, name="group band", text_color=DARK_TEXT)


def _side_box(text: str, top_px: float, height_px: float, styles: dict[str, str], **more: Any) -> Any:
    """Return a box at the left edge. Of all annotations, only those of HTML are not cut off at the frame."""
    from bokeh.models import HTMLLabel

    fixed = {
        "height": f"{height_px:.2f}px",
        "line-height": f"{GROUP_PX}px",
        "box-sizing": "content-box",
        "font-family": FONT,
        "white-space": "pre",
        "pointer-events": "none",
        "transform": "none",
    }
    return HTMLLabel(
        x=0, x_units="canvas", y=top_px, text=text, text_font=FONT, text_font_size="12px", text_font_style="bold",
        styles=fixed | styles, **more,
    )  # fmt: skip
