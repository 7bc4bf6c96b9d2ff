"""The timeline within a notebook: the page in a frame, and a picture where frames or scripts are not shown."""

from __future__ import annotations

from html import escape

from gpustreamlab.analysis import Overlap, overlap, summary_text
from gpustreamlab.draw._html import timeline_page
from gpustreamlab.draw._scene import Scene, plan_scene
from gpustreamlab.draw._svg import picture_uri, timeline_svg
from gpustreamlab.model import Trace


def inline_html(trace: Trace, *, scene: Scene | None = None, result: Overlap | None = None, svg: str | None = None) -> str:
    """Return the timeline as HTML for a notebook's output.

    The frame has no height until its script has drawn; then it takes its place and hides the picture. Where scripts or frames
    are not shown (GitHub, an untrusted notebook) the picture stays.

    Parameters
    ----------
    trace
        The spans.
    scene, result, svg
        Their layout, overlap and picture, where they are known already.
    """
    scene = plan_scene(trace) if scene is None else scene
    result = overlap(trace) if result is None else result
    svg = timeline_svg(trace, scene=scene, result=result) if svg is None else svg
    page = timeline_page(trace, scene=scene, result=result, with_picture=False)
    words = escape(summary_text(trace, result))
    return (
        '<div class="gpustreamlab-timeline">'
        f'<img class="gsl-picture" style="max-width:100%;height:auto" alt="{words}" src="{picture_uri(svg)}">'
        f'<iframe title="Timeline" style="width:100%;height:0;border:0;display:block" srcdoc="{escape(page)}"></iframe>'
        "</div>"
    )
