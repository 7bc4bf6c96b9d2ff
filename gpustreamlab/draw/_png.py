"""The static picture as a bitmap, for places that take no SVG. Rendered by resvg, which is imported when it is needed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from gpustreamlab._util.words import install_line
from gpustreamlab.draw._svg import MAX_FILE_BARS, timeline_svg
from gpustreamlab.errors import GPUStreamLabError, MissingExtraError, OptionError
from gpustreamlab.model import Trace

PNG_SCALE = 2.0
"""Pixels of a picture for each px of the page, where nothing else is asked for."""

SCALE_LIMITS = (0.1, 8.0)
"""Least and most of them: the most makes a picture of 8,000 px in width."""

FONT_FAMILY = "Roboto"
"""What stands for ``sans-serif`` in pictures."""
FONT_FACES = ("Roboto", "RobotoBold", "RobotoItalic")
"""Its faces, as the package ``font-roboto`` names them."""

_CSS_DPI = 96
_INCH_M = 0.0254
_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'


def timeline_png(trace: Trace, *, scale: float = PNG_SCALE) -> bytes:
    """Draw a trace as a PNG picture: what `timeline_svg` draws.

    Parameters
    ----------
    trace
        The spans.
    scale
        Pixels for each px of the page: at 2, a picture is 2,000 pixels wide. It says its size, so a document shows it as wide
        at every scale.

    Raises
    ------
    OptionError
        If the scale is no number from 0.1 to 8.
    MissingExtraError
        If the package that renders is not installed.
    GPUStreamLabError
        If this machine has no font to write the texts in.
    """
    given: object = scale
    least, most = SCALE_LIMITS
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not least <= scale <= most:
        raise OptionError(f"scale is {scale!r}; it must be a number from {least:g} to {most:g}. Use save('run.png', scale=2).")
    render = _renderer()
    if not _has_fonts():
        raise GPUStreamLabError(
            "A picture without its texts would say nothing, and no font was found on this machine. "
            f"Install one with: {install_line('png')} - or save as .svg or .html, which need none here."
        )
    png = render(timeline_svg(trace, max_bars=MAX_FILE_BARS), float(scale))
    # The size of its pixels, so that it is as wide at every scale. Source: PNG specification, chunk ``pHYs``.
    per_metre = round(_CSS_DPI * scale / _INCH_M)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    head_end = 8 + 12 + 13  # signature, then the header, which comes first
    return png[:head_end] + chunk + png[head_end:]


def _renderer() -> Callable[[str, float], bytes]:
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise MissingExtraError(
            "Saving a timeline as .png needs the package resvg-py, which is not installed. "
            f"Install it with: {install_line('png')} - or save as .svg, which needs nothing more."
        ) from error

    # A machine need not have a font: the extra brings one, for what the page's families do not find here.
    fonts: dict[str, Any] = {"font_files": _font_files(), "sans_serif_family": FONT_FAMILY} if _font_files() else {}

    def render(svg: str, scale: float) -> bytes:
        # Roboto has no arrow, and a text with one would be drawn in whatever other font there is.
        return bytes(svg_to_bytes(svg_string=svg.replace("→", " to ") if fonts else svg, zoom=scale, **fonts))

    return render


@cache
def _font_files() -> list[str]:
    """Return the files of the font that the extra brings; none where only the renderer was installed."""
    try:
        import font_roboto
    except ImportError:
        return []
    return [font_roboto.font_files[name] for name in FONT_FACES]


@cache
def _has_fonts() -> bool:
    # Without fonts, resvg leaves texts out and says nothing.
    render = _renderer()
    return render(_PROBE.format('<text y="15" font-family="sans-serif">x</text>'), 1.0) != render(_PROBE.format(""), 1.0)
