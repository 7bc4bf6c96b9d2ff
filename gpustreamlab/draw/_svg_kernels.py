"""What the kernel tier adds to the static picture: strays, memory, when kernels were captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpustreamlab.analysis import Merged
from gpustreamlab.draw._legend import STRAY_COLOUR
from gpustreamlab.draw._memory import MemoryLine, MemoryStrip, format_bytes
from gpustreamlab.draw._picture import Picture
from gpustreamlab.draw._scene import Scene
from gpustreamlab.draw._svg_plot import ACCENT, GRID, PAPER, SOFT, SVGPlot, svg_text

MEMORY_COLOUR = "#8cc9b4"

STRAY_PX = 8
"""Size of the corner on work that left its stream."""

MAX_STRAYS = 500
"""Most corners in a picture."""


def stray_shapes(picture: Picture, items: Merged, plot: SVGPlot) -> Iterator[str]:
    """Draw a red corner on each kernel, copy or fill that ran on another stream than its range had selected."""
    scene, columns = picture.scene, picture.columns
    owner, row = columns.owner_lane[items.pick], columns.row[items.pick]
    places = np.flatnonzero((owner >= 0) & (owner != scene.rows.lane[row]))[:MAX_STRAYS]
    x0, x1 = plot.x(items.left_ns[places]), plot.x(items.right_ns[places])
    corners = []
    for place, begin, end in zip(places.tolist(), x0.tolist(), x1.tolist(), strict=True):
        top = plot.y(float(scene.row_top[row[place]]))
        right = max(begin + STRAY_PX / 2, end)
        corners.append(f"M{right - STRAY_PX:.1f} {top:.1f}h{STRAY_PX}v{STRAY_PX}z")
    if corners:
        yield f'<path d="{"".join(corners)}" fill="{STRAY_COLOUR}" stroke="{PAPER}"/>'


def memory_shapes(strips: Sequence[MemoryStrip], plot: SVGPlot) -> Iterator[str]:
    """Draw the memory of lanes: what is in use as an area, what is reserved as a line."""
    for strip in strips:
        top, bottom = plot.y(strip.top) + 2, plot.y(strip.bottom) - 1
        if bottom - top < 4:
            continue
        for line in strip.lines:
            path = _step_line(line, plot, bottom, (bottom - top) / (strip.most_bytes or 1))
            area = f"V{bottom:.1f}H{max(plot.left_px, plot.left_px + float(line.time_ns[0]) * plot.scale_x):.1f}z"
            if line.is_filled:
                yield f'<path d="{path}{area}" fill="{MEMORY_COLOUR}" fill-opacity=".6"/>'
            yield f'<path d="{path}" fill="none" stroke="{MEMORY_COLOUR if line.is_filled else SOFT}"/>'
        label = svg_text(plot.right_px - 4, top + 9, f"max {format_bytes(strip.most_bytes)}", "end", SOFT, 10)
        yield f'<g stroke="{PAPER}" stroke-width="3" paint-order="stroke">{label}</g>'


def capture_shapes(scene: Scene, plot: SVGPlot) -> Iterator[str]:
    """Draw when kernels were captured, where they were not all the time."""
    if not scene.is_partly_captured:
        return
    top, bottom = plot.strip_bottom_px + 4, plot.bottom_px
    yield f'<path d="M{plot.left_px:.1f} {bottom:.1f}H{plot.right_px:.1f}" stroke="{GRID}"/>'
    for begin_ns, end_ns in scene.windows:
        begin, end = (float(np.clip(x, plot.left_px, plot.right_px)) for x in plot.x(np.array([begin_ns, end_ns])))
        size = f'width="{max(1.0, end - begin):.1f}" height="{bottom - top - 4:.1f}"'
        yield f'<rect x="{begin:.1f}" y="{top + 2:.1f}" {size} fill="{ACCENT}"/>'
    yield svg_text(plot.left_px - 8, bottom - 1, "kernels captured", "end", SOFT, 10)


def _step_line(line: MemoryLine, plot: SVGPlot, bottom: float, scale: float) -> str:
    xs, ys = np.maximum(plot.x(line.time_ns), plot.left_px), bottom - line.value * scale
    steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in zip(xs[1:].tolist(), ys[1:].tolist(), strict=True))
    return f"M{xs[0]:.1f} {ys[0]:.1f}{steps}H{max(float(xs[-1]), plot.right_px):.1f}"
