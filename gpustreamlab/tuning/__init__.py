"""Tuning: what calls take on some SMs, what they cost each other, and which layout serves them best; all of it measured."""

from gpustreamlab.tuning._corun import Corun, Place, TaskTimes
from gpustreamlab.tuning._measure import Measurement, interval
from gpustreamlab.tuning._predict import Prediction, what_if
from gpustreamlab.tuning._sweep import Fit, Sweep, fit_times
from gpustreamlab.tuning._tune import Trial, Tuning

__all__ = [
    "Corun",
    "Fit",
    "Measurement",
    "Place",
    "Prediction",
    "Sweep",
    "TaskTimes",
    "Trial",
    "Tuning",
    "fit_times",
    "interval",
    "what_if",
]
