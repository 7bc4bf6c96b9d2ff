"""The timeline as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from html import escape
from os import PathLike
from typing import IO

from gpustreamlab.analysis import Overlap, overlap
from gpustreamlab.draw._figure import draw_timeline
from gpustreamlab.draw._header import header_html, plan_header
from gpustreamlab.draw._scene import Scene, plan_scene
from gpustreamlab.draw._svg import picture_uri, timeline_svg
from gpustreamlab.draw._templates import fill_template, template
from gpustreamlab.model import Trace, write_file_whole


def write_html(trace: Trace, target: str | PathLike[str] | IO[str]) -> None:
    """Write a trace's timeline as one page that opens offline.

    Parameters
    ----------
    trace
        The spans.
    target
        A path, or an open text file.

    Raises
    ------
    TraceFileError
        If the path cannot be written.
    """
    page = timeline_page(trace)
    if isinstance(target, (str, PathLike)):
        write_file_whole(target, lambda partial: partial.write_text(page, encoding="utf-8"))
    else:
        target.write(page)


def timeline_page(trace: Trace, *, scene: Scene | None = None, result: Overlap | None = None, with_picture: bool = True) -> str:
    """Return the page as text.

    Parameters
    ----------
    trace
        The spans.
    scene, result
        Their layout and overlap, where they are known already.
    with_picture
        Whether a static picture is within, for browsers without JavaScript.

    Notes
    -----
    BokehJS and the figure are compressed, which makes an empty page of 1.3 MB one of 0.5 MB; the browser's own
    `DecompressionStream` (in all since 2023) unpacks them. Compressed text is base64, so no name can end a script.
    """
    from bokeh.embed import json_item

    scene = plan_scene(trace) if scene is None else scene
    result = overlap(trace) if result is None else result
    header = plan_header(trace, scene, result)
    return fill_template(
        "page.html",
        title=f"{escape(header.title)} ({header.badge.lower()})",
        style=template("page.css"),
        header=header_html(header),
        picture=_noscript(timeline_svg(trace, scene=scene, result=result)) if with_picture else "",
        bokeh=_packed_bokeh(),
        data=pack_text(json.dumps(json_item(draw_timeline(trace, scene)), separators=(",", ":"))),
        boot=template("boot.js"),
    )


def pack_text(text: str, level: int = 6) -> str:
    """Return a text compressed, as base64; the same text always gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), level, mtime=0)).decode()


def _noscript(svg: str) -> str:
    return f'<noscript><img class="gsl-picture" alt="" src="{picture_uri(svg)}"></noscript>'


@cache
def _packed_bokeh() -> str:
    from bokeh.resources import Resources

    # Only the core: no widgets, tables, mathematics or WebGL are used.
    return pack_text("\n".join(Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw), 9)
