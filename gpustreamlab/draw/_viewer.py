"""The viewer's scripts and styles, as text and bytes: the same for the page, the notebook and the live view."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files


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
