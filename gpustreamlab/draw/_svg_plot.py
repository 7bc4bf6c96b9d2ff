"""Where things are in the static picture, and how its texts are written."""

from __future__ import annotations

from html import escape

import numpy as np

from gpustreamlab.draw._scene import Scene, text_width_px
from gpustreamlab.typing import FloatArray, Int64Array

WIDTH_PX = 1000
"""Width of the picture."""

MAX_SVG_HEIGHT_PX = 2_400
"""Tallest area of lanes in the picture; rows get lower where a trace needs more."""

STRIP_PX = 44
"""Height of the strip of busy streams."""

CAPTURE_PX = 14
"""Height of the strip that tells when kernels were captured."""

SMS_STRIP_PX = 56
"""Height of the strip of SM-time."""

BAND_PX = 22
"""Width of the coloured band left of a partition's lanes."""

INK, SOFT, GRID, PAPER, WARN, ACCENT = "#1b1f24", "#57606a", "#d0d7de", "#ffffff", "#8a4b00", "#0550ae"

_STRIP_GAP_PX = 10


class SVGPlot:
    """Where things are in the picture, in px.

    Parameters
    ----------
    scene
        What is drawn.
    top_px
        Where the lanes begin, below the header.
    """

    def __init__(self, scene: Scene, top_px: float) -> None:
        texts = [text for box in scene.lanes for text in box.texts]
        band_px = BAND_PX if scene.groups else 0
        self.left_px = band_px + min(220.0, 24 + max([40.0, *(text_width_px(text, 11) for text in texts)]))
        self.right_px = WIDTH_PX - 24.0  # half of the last time on the axis stands beyond it
        self.top_px = top_px
        self.scale_y = min(1.0, MAX_SVG_HEIGHT_PX / max(1.0, scene.height_px))
        self.lanes_bottom_px = top_px + max(40.0, scene.height_px * self.scale_y)
        self.sms_top_px = self.lanes_bottom_px + _STRIP_GAP_PX
        self.sms_bottom_px = self.sms_top_px + SMS_STRIP_PX
        self.strip_top_px = (self.sms_bottom_px if scene.bands else self.lanes_bottom_px) + _STRIP_GAP_PX
        self.strip_bottom_px = self.strip_top_px + STRIP_PX
        self.bottom_px = self.strip_bottom_px + (CAPTURE_PX if scene.is_partly_captured else 0)
        self.end_ns = scene.width_ns or 1e6
        self.scale_x = (self.right_px - self.left_px) / self.end_ns

    def x(self, time_ns: FloatArray | Int64Array) -> FloatArray:
        """Return where times are."""
        return self.left_px + np.asarray(time_ns, np.float64) * self.scale_x

    def y(self, place_px: float) -> float:
        """Return where a place of the scene is."""
        return self.top_px + place_px * self.scale_y


def svg_text(x: float, y: float, text: str, anchor: str, colour: str, size_px: int = 12) -> str:
    """Write one line of text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size_px}">{escape(text)}</text>'
