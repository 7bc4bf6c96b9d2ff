"""Pictures of traces: the viewer for page and notebook, a static picture, text. Bokeh is imported when a figure is drawn."""

from gpustreamlab.draw._colours import NameLooks, name_styles, partition_style, style_entries
from gpustreamlab.draw._columns import SpanColumns, columns_of, pack_columns
from gpustreamlab.draw._compare import comparison_page, comparison_tables_html
from gpustreamlab.draw._graph import GraphEdge, GraphNode, graph_html, graph_svg
from gpustreamlab.draw._header import Header, plan_header
from gpustreamlab.draw._html import inline_html, packed_bokeh, timeline_page, viewer_script, viewer_style, write_html
from gpustreamlab.draw._picture import draw_figure, plan_picture
from gpustreamlab.draw._scene import detail_entries, is_partly_captured, plan_scene
from gpustreamlab.draw._sm_map import NO_PARTITION_FILL, grid_of, plan_sm_map, sm_map_svg, sm_map_text
from gpustreamlab.draw._svg import MAX_FILE_BARS, PNG_SCALE, svg_png, timeline_svg
from gpustreamlab.draw._tables import plan_tables
from gpustreamlab.draw._text import TextTimeline, text_timeline
from gpustreamlab.draw._tuning import sweep_figure, tuning_figure
from gpustreamlab.draw._why import hazard_tables, why_tables

__all__ = [
    "MAX_FILE_BARS",
    "NO_PARTITION_FILL",
    "PNG_SCALE",
    "GraphEdge",
    "GraphNode",
    "Header",
    "NameLooks",
    "SpanColumns",
    "TextTimeline",
    "columns_of",
    "comparison_page",
    "comparison_tables_html",
    "detail_entries",
    "draw_figure",
    "graph_html",
    "graph_svg",
    "grid_of",
    "hazard_tables",
    "inline_html",
    "is_partly_captured",
    "name_styles",
    "pack_columns",
    "packed_bokeh",
    "partition_style",
    "plan_header",
    "plan_picture",
    "plan_scene",
    "plan_sm_map",
    "plan_tables",
    "sm_map_svg",
    "sm_map_text",
    "style_entries",
    "svg_png",
    "sweep_figure",
    "text_timeline",
    "timeline_page",
    "timeline_svg",
    "tuning_figure",
    "viewer_script",
    "viewer_style",
    "why_tables",
    "write_html",
]
