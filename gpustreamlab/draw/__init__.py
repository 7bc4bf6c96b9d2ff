"""Pictures of traces: a Bokeh figure, an offline page, a static picture. Bokeh is imported when the first figure is drawn."""

from gpustreamlab.draw._figure import draw_timeline
from gpustreamlab.draw._html import write_html
from gpustreamlab.draw._inline import inline_html
from gpustreamlab.draw._scene import MAX_DRAWN_EDGES, MAX_DRAWN_SPANS, Scene, plan_scene
from gpustreamlab.draw._svg import timeline_svg

__all__ = [
    "MAX_DRAWN_EDGES",
    "MAX_DRAWN_SPANS",
    "Scene",
    "draw_timeline",
    "inline_html",
    "plan_scene",
    "timeline_svg",
    "write_html",
]
