"""The texts beside the code: scripts, styles and pages."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def template(name: str) -> str:
    """Return one of the package's templates as text."""
    return files("gpustreamlab.draw").joinpath("templates", name).read_text(encoding="utf-8")


def fill_template(name: str, **parts: str) -> str:
    """Return a template with each ``%%NAME%%`` replaced by its part; parts go in as they are, and are never looked through."""
    pieces = template(name).split("%%")
    # Every odd piece is a name: a part that holds %% itself is not split again.
    pieces[1::2] = [parts[piece.lower()] for piece in pieces[1::2]]
    return "".join(pieces)
