"""The timeline within a notebook: the page in a frame, and a picture where frames or scripts are not shown."""

from __future__ import annotations

from html import escape

from gpustreamlab.analysis import summary_text
from gpustreamlab.draw._html import timeline_page
from gpustreamlab.draw._picture import Picture, plan_picture
from gpustreamlab.draw._svg import picture_uri, timeline_svg
from gpustreamlab.model import Trace


def inline_html(trace: Trace, *, words: str | None = None, picture: Picture | None = None, svg: str | None = None) -> str:
    """Return the timeline as HTML for a notebook's output.

    The frame has no height until its script has drawn; then it takes its place and hides the picture. Where scripts or frames
    are not shown (GitHub, an untrusted notebook) the picture stays.

    Parameters
    ----------
    trace
        The spans.
    words
        What the picture shows, for those who do not see it; None for a summary.
    picture, svg
        Their layout and static picture, where they are known already.
    """
    picture = plan_picture(trace) if picture is None else picture
    svg = timeline_svg(trace, picture=picture) if svg is None else svg
    words = summary_text(trace) if words is None else words
    page = timeline_page(trace, picture=picture, with_static=False)
    return (
        '<div class="gpustreamlab-timeline">'
        f'<img class="gsl-picture" style="max-width:100%;height:auto" alt="{escape(words)}" src="{picture_uri(svg)}">'
        f'<iframe title="Timeline" style="width:100%;height:0;border:0;display:block" srcdoc="{escape(page)}"></iframe>'
        "</div>"
    )
