"""Charts of measurements as SVG: time against SMs, and candidates by throughput and by what a task loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from gpustreamlab.draw._sm_map import GRID, INK, PAPER, SOFT, svg_text
from gpustreamlab.draw._svg import still_html
from gpustreamlab.model import display_name

MODEL_COLOURS = ("#0072B2", "#D55E00")  # of two models, or sorts. Source: Okabe and Ito, Color Universal Design
WIDTH_PX, HEIGHT_PX = 660, 360  # a cell of a window of 700 px holds it
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 62, WIDTH_PX - 16, 40, HEIGHT_PX - 46
_LOG_TICKS = tuple(number * 10**power for power in range(6) for number in (1, 1.2, 1.5, 2, 3, 5))


class Chart:
    """A chart as SVG text, in `svg`; a notebook shows it in its own colours."""

    def __init__(
        self, title: str, x: Sequence[float], y: Sequence[float], words: tuple[str, str], *, is_log: bool = False
    ) -> None:
        self._x = (min(x), max(x)) if max(x) > min(x) else (0.9 * min(x), 1.1 * max(x))
        self._top, self._is_log = 1.08 * max(y) or 1.0, is_log
        self._legend: list[str] = []
        middle = (_LEFT_PX + _RIGHT_PX) / 2
        self._title = title
        along_y = svg_text(0, 0, words[1], "middle", SOFT)
        self._parts = [
            f'<text x="{_LEFT_PX}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
            svg_text(middle, HEIGHT_PX - 8, words[0], "middle", SOFT),
            f'<g transform="translate(14 {(_TOP_PX + _BOTTOM_PX) / 2}) rotate(-90)">{along_y}</g>',
        ]
        for tick in [one for one in _LOG_TICKS if self._x[0] <= one <= self._x[1]] if is_log else _ticks(*self._x):
            self._parts.append(f'<path d="M{self.x(tick):.1f} {_TOP_PX}V{_BOTTOM_PX}" stroke="{GRID}"/>')
            self._parts.append(svg_text(self.x(tick), _BOTTOM_PX + 16, f"{tick:g}", "middle", INK, 11))
        for tick in _ticks(0, self._top):
            self._parts.append(f'<path d="M{_LEFT_PX} {self.y(tick):.1f}H{_RIGHT_PX}" stroke="{GRID}"/>')
            self._parts.append(svg_text(_LEFT_PX - 6, self.y(tick) + 4, f"{tick:g}", "end", INK, 11))

    @property
    def svg(self) -> str:
        """The chart as a file of its own would have it: dark on white."""
        place = f'x="{_RIGHT_PX - 296}" y="{_TOP_PX + 2}" width="296" height="{17 * len(self._legend) + 8}"'
        legend = f'<rect {place} fill="{PAPER}" fill-opacity=".8"/>' + "".join(
            f'<g transform="translate({_RIGHT_PX - 290} {_TOP_PX + 8 + 17 * row})">{entry}</g>'
            for row, entry in enumerate(self._legend)
        )
        size = f'width="{WIDTH_PX}" height="{HEIGHT_PX}" viewBox="0 0 {WIDTH_PX} {HEIGHT_PX}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui,Segoe UI,Helvetica,Arial,sans-serif" '
            f'font-size="12" fill="{INK}"><title>{escape(self._title)}</title>'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(self._parts)}{legend}</svg>'
        )

    def __repr__(self) -> str:
        return f"<Chart: {self._title}>"

    def _repr_html_(self) -> str:
        return still_html(self.svg, self._title)

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis, in px."""
        low, high, at = map(math.log, (*self._x, value)) if self._is_log else (*self._x, value)
        return _LEFT_PX + 14 + (at - low) / (high - low) * (_RIGHT_PX - _LEFT_PX - 28)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis, which begins at 0, in px."""
        return _BOTTOM_PX - value / self._top * (_BOTTOM_PX - _TOP_PX)

    def line(self, x: Sequence[float], y: Sequence[float], colour: str, dash: str, text: str) -> None:
        """Draw a line, and name it in the legend."""
        path = "L".join(f"{self.x(one):.1f} {self.y(min(other, self._top)):.1f}" for one, other in zip(x, y, strict=True))
        look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        self._parts.append(f'<path d="M{path}" {look}/>')
        self._name(f'<path d="M0 6H22" {look}/>', text)

    def dots(self, rows: Sequence[tuple[float, float, float, float, str]], look: str, text: str, radius: float = 4) -> None:
        """Draw values with their intervals (x, y, low, high, what each is), and name them in the legend."""
        for x, y, low, high, told in rows:
            bar = f'<path d="M{self.x(x):.1f} {self.y(low):.1f}V{self.y(high):.1f}" stroke="{SOFT}" stroke-width="2"/>'
            dot = f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" {look}/>'
            self._parts.append(f"<g><title>{escape(told)}</title>{bar if high > low else ''}{dot}</g>")
        self._name(f'<circle cx="11" cy="6" r="{radius}" {look}/>', text)

    def mark(self, x: float, text: str) -> None:
        """Mark a value of the horizontal axis."""
        at, is_right = self.x(x), self.x(x) > (_LEFT_PX + _RIGHT_PX) / 2
        self._parts.append(f'<path d="M{at:.1f} {_TOP_PX}V{_BOTTOM_PX}" stroke="{SOFT}" stroke-dasharray="5 3"/>')
        place = at - 5 if is_right else at + 5
        self._parts.append(svg_text(place, (_TOP_PX + _BOTTOM_PX) / 2, text, "end" if is_right else "start", SOFT))

    def _name(self, swatch: str, text: str) -> None:
        self._legend.append(f"{swatch}{svg_text(30, 10, text, 'start', INK)}")


def _ticks(low: float, high: float) -> list[float]:
    """Return up to eight round numbers from one to another."""
    raw = (high - low) / 8
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def sweep_chart(sweep: Any) -> Chart:
    """Draw a `Sweep`: medians with their intervals, the two best models, and the knee."""
    rows = [
        (row["sm_count"], row["median_ns"] / 1e6, row["low_ns"] / 1e6, row["high_ns"] / 1e6, _told(row)) for row in sweep.table
    ]
    title = f"{display_name(sweep.name)}: a call alone, by SMs"
    words = ("SMs of its partition", "time of a call, ms")
    chart = Chart(title, [row[0] for row in rows], [row[3] for row in rows], words)
    wide = np.linspace(float(sweep.sizes[0]), float(sweep.sizes[-1]), 400)
    chart.mark(sweep.knee, f"knee: {sweep.knee} SMs")
    for fit, colour, dash in zip(sweep.fits, MODEL_COLOURS, ("none", "6 4"), strict=False):
        text = f"{fit.model}, held-out error {fit.median_error:.1%}"
        chart.line(wide.tolist(), (fit.predict(wide) / 1e6).tolist(), colour, dash, text)
    chart.dots(rows, f'fill="{INK}"', "measured, 95% interval")
    return chart


def _told(row: dict[str, Any]) -> str:
    low, median, high = (row[f"{name}_ns"] / 1e6 for name in ("low", "median", "high"))
    return f"{row['sm_count']} SMs: {median:.4f} ms ({low:.4f} to {high:.4f})"


def tuning_chart(tuning: Any) -> Chart:
    """Draw a `Tuning`: the speed-up of each candidate by the slowdown of the task that loses most, with the Pareto front."""
    rows = [(one, _row_of(one)) for one in tuning.trials]
    words = ("slowdown of the task that loses most", "times as fast as one after the other")
    chart = Chart("Candidates", [row[0] for _, row in rows], [row[3] for _, row in rows], words, is_log=True)
    front = [_row_of(one) for one in tuning.pareto]
    chart.line([row[0] for row in front], [row[1] for row in front], SOFT, "2 3", "Pareto front")
    for has_shares, colour, text in ((True, MODEL_COLOURS[0], "partitions"), (False, MODEL_COLOURS[1], "whole card")):
        own = [row for one, row in rows if bool(one.place.shares) == has_shares]
        if own:
            chart.dots(own, f'fill="{colour}"', text)
    chart.dots([_row_of(tuning.best)], f'fill="none" stroke="{INK}" stroke-width="2"', "best", radius=8)
    return chart


def _row_of(one: Any) -> tuple[float, float, float, float, str]:
    slow, gain = max(task.slowdown for task in one.corun.tasks), one.corun.speedup
    return slow, gain, *one.corun.speedup_interval, f"{one.place}: {gain:.2f} times as fast, slowdown {slow:.2f}"
