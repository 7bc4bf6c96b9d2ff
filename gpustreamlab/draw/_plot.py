"""An empty figure, as all parts of the timeline begin."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
"""The font of all texts."""


def new_figure(x_range: Any, y_range: Any, height_px: int, toolbar: str | None, border_px: int) -> Any:
    """Return a figure as wide as its place, with the timeline's tools and no decoration."""
    from bokeh.plotting import figure

    plot = figure(
        x_range=x_range,
        y_range=y_range,
        height=height_px,
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        active_drag="xpan",
        active_scroll="xwheel_zoom",
        toolbar_location=toolbar,
        min_border_left=border_px,
        min_border_right=18,
        min_border_top=2,
        min_border_bottom=2,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        lod_threshold=None,
    )
    plot.toolbar.logo = None
    # BokehJS 3.9 measures the bar before its buttons and then hides the last one, reset, in a menu.
    plot.toolbar.stylesheets = [":host { min-width: 190px; justify-self: end; justify-content: flex-end }"]
    plot.axis.major_label_text_font = plot.axis.axis_label_text_font = FONT
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "12px"
    plot.axis.axis_label_text_font_style = "normal"
    return plot


def plain(renderer: Any) -> Any:
    """Drop the looks for selected and muted glyphs, which nothing here uses and BokehJS would compute for each bar."""
    renderer.selection_glyph = renderer.nonselection_glyph = renderer.muted_glyph = None
    return renderer
