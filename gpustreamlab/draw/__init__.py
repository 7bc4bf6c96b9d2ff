"""Pictures of traces: the viewer for page and notebook, a static picture, text. Bokeh is imported when a figure is drawn."""

from gpustreamlab.draw._colours import GREY, NameLooks, fill_of, name_styles, partition_style, style_entries
from gpustreamlab.draw._columns import WORK_DEFAULTS, SpanColumns, columns_of, pack_columns
from gpustreamlab.draw._groups import plan_groups
from gpustreamlab.draw._html import (
    comparison_page,
    comparison_tables_html,
    inline_html,
    packed_bokeh,
    page_data,
    plan_tables,
    timeline_page,
    viewer_script,
    viewer_style,
    write_html,
)
from gpustreamlab.draw._legend import plan_memory
from gpustreamlab.draw._picture import Header, draw_figure, plan_header, plan_picture
from gpustreamlab.draw._scene import detail_entries, is_partly_captured, plan_scene, stray_facts
from gpustreamlab.draw._sm_map import grid_of, plan_sm_map, sm_map_svg, sm_map_text
from gpustreamlab.draw._svg import MAX_FILE_BARS, PNG_SCALE, picture_html, still_html, svg_png, timeline_svg
from gpustreamlab.draw._text import TextTimeline, text_timeline
from gpustreamlab.draw._tuning import Chart, sweep_chart, tuning_chart
from gpustreamlab.draw._why import Drawn, hazard_entries, hazard_tables, why_tables

__all__ = [
    "GREY",
    "MAX_FILE_BARS",
    "PNG_SCALE",
    "WORK_DEFAULTS",
    "Chart",
    "Drawn",
    "Header",
    "NameLooks",
    "SpanColumns",
    "TextTimeline",
    "columns_of",
    "comparison_page",
    "comparison_tables_html",
    "detail_entries",
    "draw_figure",
    "fill_of",
    "grid_of",
    "hazard_entries",
    "hazard_tables",
    "inline_html",
    "is_partly_captured",
    "name_styles",
    "pack_columns",
    "packed_bokeh",
    "page_data",
    "partition_style",
    "picture_html",
    "plan_groups",
    "plan_header",
    "plan_memory",
    "plan_picture",
    "plan_scene",
    "plan_sm_map",
    "plan_tables",
    "sm_map_svg",
    "sm_map_text",
    "still_html",
    "stray_facts",
    "style_entries",
    "svg_png",
    "sweep_chart",
    "text_timeline",
    "timeline_page",
    "timeline_svg",
    "tuning_chart",
    "viewer_script",
    "viewer_style",
    "why_tables",
    "write_html",
]
