"""Figures of measurements: time against SMs, and candidates by throughput and by what a task loses."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gpustreamlab.model import display_name
from gpustreamlab.typing import FloatArray, Int64Array

MODEL_COLOURS = ("#0072B2", "#D55E00")
"""Of the two models that are drawn. Source: Okabe and Ito, Color Universal Design."""
WIDTH, HEIGHT = 660, 360
"""Size of a figure in CSS pixels: a cell of a window of 700 px holds it."""


class _Fit(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def median_error(self) -> float: ...

    @property
    def predict(self) -> Any: ...


class _Sweep(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> Int64Array: ...

    @property
    def median_ns(self) -> FloatArray: ...

    @property
    def table(self) -> list[dict[str, Any]]: ...

    @property
    def fits(self) -> tuple[_Fit, ...]: ...

    @property
    def knee(self) -> int: ...


def sweep_figure(sweep: _Sweep) -> Any:
    """Return a Bokeh figure of a sweep: medians with their intervals, the two best models, and the knee."""
    from bokeh.models import HoverTool, Label, Span
    from bokeh.plotting import ColumnDataSource

    figure = _figure(f"{display_name(sweep.name)}: a call alone, by SMs", "SMs of its partition", "time of a call, ms")
    rows = sweep.table
    source = ColumnDataSource(
        {
            "sms": [row["sm_count"] for row in rows],
            **{name: [row[f"{name}_ns"] / 1e6 for row in rows] for name in ("median", "low", "high")},
        }
    )
    for fit, colour, dash in zip(sweep.fits, MODEL_COLOURS, ("solid", "dashed"), strict=False):
        wide = np.linspace(float(sweep.sizes[0]), float(sweep.sizes[-1]), 400)
        figure.line(
            wide,
            fit.predict(wide) / 1e6,
            line_width=2,
            line_alpha=0.8,
            color=colour,
            line_dash=dash,
            legend_label=f"{fit.model}, held-out error {fit.median_error:.1%}",
        )
    figure.segment("sms", "low", "sms", "high", source=source, line_width=2, color="#444444")
    dots = figure.scatter("sms", "median", source=source, size=7, color="#222222", legend_label="measured, 95% interval")
    shown = [("SMs", "@sms"), ("median", "@median{0.0000} ms"), ("from", "@low"), ("to", "@high")]
    figure.add_tools(HoverTool(renderers=[dots], tooltips=shown))
    figure.add_layout(Span(location=sweep.knee, dimension="height", line_dash="dashed", line_color="#888888"))
    is_right = sweep.knee > np.mean(sweep.sizes[[0, -1]])
    side = {"x_offset": -4, "text_align": "right"} if is_right else {"x_offset": 4}
    knee = Label(x=sweep.knee, y=HEIGHT // 3, y_units="screen", text=f"knee: {sweep.knee} SMs", text_color="#666666", **side)
    figure.add_layout(knee)
    figure.y_range.start = 0
    figure.legend.location = "top_right"
    return figure


class _Tuning(Protocol):
    @property
    def trials(self) -> Any: ...

    @property
    def pareto(self) -> Any: ...

    @property
    def best(self) -> Any: ...


def tuning_figure(tuning: _Tuning) -> Any:
    """Return a Bokeh figure of candidates: speed-up by the slowdown of the task that loses most, with the Pareto front."""
    from bokeh.models import HoverTool
    from bokeh.plotting import ColumnDataSource

    figure = _figure(
        "Candidates", "slowdown of the task that loses most", "times as fast as one after the other", x_axis_type="log"
    )

    def columns(trials: Any) -> dict[str, list[Any]]:
        return {
            "slow": [max(task.slowdown for task in one.corun.tasks) for one in trials],
            "gain": [one.corun.speedup for one in trials],
            "low": [one.corun.speedup_interval[0] for one in trials],
            "high": [one.corun.speedup_interval[1] for one in trials],
            "place": [str(one.place) for one in trials],
        }

    split = [one for one in tuning.trials if one.place.shares]
    whole = [one for one in tuning.trials if not one.place.shares]
    front = columns(tuning.pareto)
    figure.line(front["slow"], front["gain"], color="#888888", line_dash="dotted", legend_label="Pareto front")
    drawn = []
    kinds = ((split, "circle", MODEL_COLOURS[0], "partitions"), (whole, "square", MODEL_COLOURS[1], "whole card"))
    for trials, marker, colour, text in kinds:
        source = ColumnDataSource(columns(trials))
        figure.segment("slow", "low", "slow", "high", source=source, color=colour, line_alpha=0.6)
        drawn.append(figure.scatter("slow", "gain", source=source, marker=marker, size=8, color=colour, legend_label=text))
    best = ColumnDataSource(columns([tuning.best]))
    ring = {"fill_color": None, "line_color": "#111111", "line_width": 2}
    figure.scatter("slow", "gain", source=best, size=16, legend_label="best", **ring)
    shown = [("", "@place"), ("times as fast", "@gain{0.00}"), ("slowdown", "@slow{0.00}")]
    figure.add_tools(HoverTool(renderers=drawn, tooltips=shown))
    figure.legend.location = "top_right"
    return figure


def _figure(title: str, x: str, y: str, **more: Any) -> Any:
    from bokeh.plotting import figure

    made = figure(
        title=title,
        width=WIDTH,
        height=HEIGHT,
        x_axis_label=x,
        y_axis_label=y,
        tools="pan,box_zoom,wheel_zoom,reset,save",
        output_backend="svg",
        **more,
    )
    made.toolbar.logo = None
    return made
