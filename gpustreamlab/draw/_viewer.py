"""The viewer's scripts and styles, as text and bytes: the same for the page, the notebook and the live view."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

VIEWER_FILES: tuple[str, ...] = (
    # spans
    "arrays.js", "columns.js", "intervals.js", "unions.js", "steps.js", "sm_stack.js", "matches.js", "name_times.js", "rows.js",
    "evict.js", "store.js", "lod.js", "busy.js", "totals.js",
    # picture
    "units.js", "view.js", "theme.js", "brush.js", "paint.js", "paint_lanes.js", "paint_bars.js", "paint_edges.js",
    "paint_marks.js", "memory.js", "paint_strips.js", "paint_overlay.js", "layer.js", "scroll.js", "minimap.js", "viewer.js",
    # controls
    "nodes.js", "names.js", "work_facts.js", "facts.js", "copy.js", "pins.js", "query.js", "examples.js", "help.js",
    "tips.js", "waits.js", "details.js", "search.js", "keys.js", "select.js", "ruler.js", "waits_button.js", "legend.js",
    "follow.js", "compare.js",
)  # fmt: skip
"""The scripts of the viewer, in the order in which they stand in one scope."""

_DECLARED = re.compile(r"^(?:class|(?:async )?function\*?|const|let) ([A-Za-z_$][\w$]*)", re.MULTILINE)


@cache
def viewer_text(name: str) -> str:
    """Return one of the viewer's files as text."""
    return files("gpustreamlab.draw").joinpath("viewer", name).read_text(encoding="utf-8")


@cache
def viewer_script() -> str:
    """Return all scripts as one JavaScript expression.

    Its value is an object with all that the files declare, among it the class ``Viewer``. A page writes
    ``const gsl = <script>``, a module ``export default <script>``.
    """
    return scope([viewer_text(name) for name in VIEWER_FILES])


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


def scope(scripts: Iterable[str]) -> str:
    """Put scripts into one scope of their own, and return an expression of what they declare.

    Examples
    --------
    >>> print(scope(["const a = 1", "function two() {}"]))
    (() => {
    "use strict"
    const a = 1
    function two() {}
    return {a, two}
    })()
    """
    body = "\n".join(scripts)
    return f'(() => {{\n"use strict"\n{body}\nreturn {{{", ".join(_DECLARED.findall(body))}}}\n}})()'


def fill_template(name: str, **parts: str) -> str:
    """Return a file with each ``%%NAME%%`` replaced by its part; parts go in as they are, and are never looked through."""
    pieces = viewer_text(name).split("%%")
    # Every odd piece is a name: a part that holds %% itself is not split again.
    pieces[1::2] = [parts[piece.lower()] for piece in pieces[1::2]]
    return "".join(pieces)
