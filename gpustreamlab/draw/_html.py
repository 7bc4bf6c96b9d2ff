"""The timeline as one HTML page that needs nothing else, and the viewer's scripts and styles, for the live view too."""

from __future__ import annotations

import gzip
import json
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from typing import IO, Any

from gpustreamlab.analysis import grid_advice, summary_text
from gpustreamlab.draw._columns import pack_columns, to_base85
from gpustreamlab.draw._header import header_html
from gpustreamlab.draw._picture import Picture, draw_figure, plan_picture
from gpustreamlab.draw._svg import picture_uri, timeline_svg
from gpustreamlab.draw._tables import scene_tables
from gpustreamlab.draw._why import why_tables
from gpustreamlab.model import Trace, trace_element, write_file_whole

LEVEL = 6
"""How hard spans are compressed: more takes far longer for a percent or two."""


def write_html(trace: Trace, target: str | PathLike[str] | IO[str], *, with_data: bool = False) -> None:
    """Write a trace's timeline as one page that opens offline.

    Parameters
    ----------
    trace
        The spans.
    target
        A path, or an open text file.
    with_data
        Whether the trace itself is within.

    Raises
    ------
    TraceFileError
        If the path cannot be written.
    """
    page = timeline_page(trace, with_data=with_data)
    if isinstance(target, (str, PathLike)):
        write_file_whole(target, lambda partial: partial.write_text(page, encoding="utf-8"))
    else:
        target.write(page)


def timeline_page(trace: Trace, *, picture: Picture | None = None, with_static: bool = True, with_data: bool = False) -> str:
    """Return the page as text.

    Parameters
    ----------
    trace
        The spans.
    picture
        Their layout, where it is planned already.
    with_static
        Whether a static picture is within, for browsers without JavaScript.
    with_data
        Whether the trace itself is within, which the viewer does not need, for `gpustreamlab.load_trace`.

    Notes
    -----
    BokehJS, the viewer and the data are compressed; the browser's own `DecompressionStream` (in all since 2023) unpacks them.
    What is compressed is written in letters that can end no script, attribute or comment.
    """
    picture = plan_picture(trace) if picture is None else picture
    data, spans = page_letters(*page_data(picture))
    advice = grid_advice(trace)
    return fill_template(
        "page.html",
        title=f"{escape(picture.header.title)} ({picture.header.badge.lower()})",
        style=viewer_text("page.css") + viewer_style(),
        header=header_html(picture.header, picture.scene.notes),
        advice=f'<p class="gsl-source">{escape(advice)}</p>' if advice else "",
        # Not as an image: that would be a third larger, and where this is shown no scripts run anyway.
        static=f"<noscript>{timeline_svg(trace, picture=picture)}</noscript>" if with_static else "",
        bokeh=bokeh_text(),
        viewer=viewer_packed(),
        data=data,
        spans=spans,
        trace=_trace_letters(trace) if with_data else "",
        boot=viewer_text("page.js"),
    )


def _trace_letters(trace: Trace) -> str:
    return f"{trace_element(trace)}\n"


def page_data(picture: Picture, tables: dict[str, Any] | None = None) -> tuple[dict[str, Any], bytes]:
    """Return what a viewer draws a picture from: a JSON object with the figure, the tables and the manifest; and the spans.

    Parameters
    ----------
    picture
        The picture.
    tables
        Its tables, where they are not its own alone: two timelines on one page share some, and do not say why.
    """
    from bokeh.embed import json_item

    if tables is None:
        tables = scene_tables(picture.trace, picture.scene, picture.header, picture.counted)
        tables["why"] = why_tables(picture.trace, picture.scene.zero_ns)
    manifest, spans = pack_columns(picture.columns, level=LEVEL)
    return {"item": json_item(draw_figure(tables)), "tables": tables, "manifest": manifest}, spans


def page_letters(data: dict[str, Any], spans: bytes) -> tuple[str, str]:
    """Return both parts of `page_data` as letters for a page."""
    return pack_text(json.dumps(data, separators=(",", ":"))), to_base85(spans)


def pack_text(text: str, level: int = 6) -> str:
    """Return a text compressed, as letters; the same text always gives the same."""
    return to_base85(gzip.compress(text.encode(), level, mtime=0))


@cache
def bokeh_text() -> str:
    """Return BokehJS, compressed, as letters."""
    return to_base85(packed_bokeh())


@cache
def viewer_packed() -> str:
    """Return the viewer's scripts, compressed, as letters."""
    return pack_text(viewer_script(), 9)


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


@cache
def viewer_text(name: str) -> str:
    """Return one of the viewer's files as text."""
    return files("gpustreamlab.draw").joinpath("viewer", name).read_text(encoding="utf-8")


def viewer_script() -> str:
    """Return all modules as one classic script, which sets ``gpustreamlab`` to what ``viewer/index.js`` exports.

    ``scripts/bundle_viewer.py`` makes it.
    """
    return viewer_text("bundle.js")


@cache
def viewer_style() -> str:
    """Return the style sheet of the viewer; all its rules begin with ``.gsl-``."""
    return viewer_text("viewer.css")


@cache
def packed_bokeh() -> bytes:
    """Return BokehJS, compressed by gzip; the same version always gives the same bytes."""
    from bokeh.resources import Resources

    # Only the core: no widgets, tables, mathematics or WebGL are used.
    text = "\n".join(Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw)
    return gzip.compress(text.encode(), 9, mtime=0)


def fill_template(name: str, **parts: str) -> str:
    """Return a file with each ``%%NAME%%`` replaced by its part; parts go in as they are, and are never looked through."""
    pieces = viewer_text(name).split("%%")
    # Every odd piece is a name: a part that holds %% itself is not split again.
    pieces[1::2] = [parts[piece.lower()] for piece in pieces[1::2]]
    return "".join(pieces)
