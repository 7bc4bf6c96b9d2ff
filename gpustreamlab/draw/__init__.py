"""Pictures of traces: a Bokeh figure, an offline page, a static picture. Bokeh is imported when the first figure is drawn."""

from gpustreamlab.draw._colours import PartitionStyle, partition_style
from gpustreamlab.draw._figure import draw_timeline
from gpustreamlab.draw._html import write_html
from gpustreamlab.draw._inline import inline_html
from gpustreamlab.draw._scene import MAX_DRAWN_EDGES, MAX_DRAWN_SPANS, Scene, plan_scene
from gpustreamlab.draw._sm_map import sm_map_svg, sm_map_text
from gpustreamlab.draw._svg import timeline_svg

__all__ = [
    "MAX_DRAWN_EDGES",
    "MAX_DRAWN_SPANS",
    "PartitionStyle",
    "Scene",
    "draw_timeline",
    "inline_html",
    "partition_style",
    "plan_scene",
    "sm_map_svg",
    "sm_map_text",
    "timeline_svg",
    "write_html",
]
