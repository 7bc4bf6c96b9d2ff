"""Tuning: what calls take on some SMs, what they cost each other, and which layout serves them best; all of it measured."""

from gpustreamlab.tuning._bench import Room
from gpustreamlab.tuning._corun import Corun, Place, TaskTimes, corun
from gpustreamlab.tuning._fits import Fit, fit_times
from gpustreamlab.tuning._measure import Conditions, Measurement, Ratio, measure
from gpustreamlab.tuning._predict import Prediction, what_if
from gpustreamlab.tuning._statistics import interval, outliers
from gpustreamlab.tuning._sweep import Sweep, sweep
from gpustreamlab.tuning._tune import Trial, Tuning, tune

__all__ = [
    "Conditions",
    "Corun",
    "Fit",
    "Measurement",
    "Place",
    "Prediction",
    "Ratio",
    "Room",
    "Sweep",
    "TaskTimes",
    "Trial",
    "Tuning",
    "corun",
    "fit_times",
    "interval",
    "measure",
    "outliers",
    "sweep",
    "tune",
    "what_if",
]
