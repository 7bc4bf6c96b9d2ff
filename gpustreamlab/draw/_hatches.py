"""Hatches in static pictures: the same signs that Bokeh draws."""

from __future__ import annotations

HATCH_PATHS = {
    "/": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    "\\": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    "-": "M0 4H8",
    "|": "M4 0V8",
    "x": "M0 0L8 8M8 0L0 8",
    "+": "M4 0V8M0 4H8",
    ".": "M4 3V5",
}
"""The lines of each hatch, within a square of 8 by 8."""

_NUMBERS = {sign: str(number) for number, sign in enumerate(HATCH_PATHS)}


def hatch_fill(sign: str) -> str:
    """Return what fills a shape with a hatch, or an empty text where the sign is none."""
    return f"url(#h{_NUMBERS[sign]})" if sign in _NUMBERS else ""


def hatch_patterns() -> str:
    """Define all hatches, for the ``defs`` of a picture."""
    return "".join(
        f'<pattern id="h{_NUMBERS[sign]}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="#101418" stroke-opacity=".4" fill="none"/></pattern>'
        for sign, path in HATCH_PATHS.items()
    )
