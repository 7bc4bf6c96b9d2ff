"""A call on every number of SMs: table, knee, and models of how its time depends on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gpustreamlab.analysis import blocks_that_fit
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns, rate_text
from gpustreamlab.draw import Chart, sweep_chart
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.model import Device, Trace
from gpustreamlab.tuning._measure import WORK, Measurement, Rig, Task, check_count
from gpustreamlab.typing import FloatArray, Int64Array

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Fit", "Sweep", "fit_times"]

NO_FIT_ERROR = 0.15  # A model whose held-out error is above this, in the median, fits nothing
FEWEST_SIZES = 4  # With fewer sizes nothing can be held out
TIE_DIGITS = 3  # Models whose median errors are the same to this many digits are told apart by their worst error
MOST_KERNELS = 4  # How many kernels the waves of a call are told apart by: those with most time
KNEE_SHARE = 0.05  # The knee is the smallest size that is at most this share slower than the fastest one
PART = "sweep"  # The partition in which calls are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model of the time that a call takes on some number of SMs."""

    model: str
    """``"Amdahl"``, ``"roofline"``, ``"waves"`` or ``"waves and a floor"``."""
    formula: str
    """The model with its numbers; times in us, n is the number of SMs."""
    errors: FloatArray
    """Relative error at each size when the model was fitted to the others; shape (n_sizes,), float64."""
    predict: Callable[[ArrayLike], FloatArray]
    """Returns the time in ns for numbers of SMs."""

    @property
    def median_error(self) -> float:
        """The median of the held-out errors, without sign."""
        return float(np.median(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        """The largest of them, without sign."""
        return float(np.abs(self.errors).max())

    def __str__(self) -> str:
        return f"{self.model}: {self.formula}; held-out error {self.median_error:.1%}, at most {self.worst_error:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Reported):
    """What a call takes on each number of SMs, alone. Made by `Bench.sweep`."""

    _columns: ClassVar = ()

    name: str
    """What was measured."""
    points: tuple[Measurement, ...]
    """One for each size, the smallest first."""
    fits: tuple[Fit, ...]
    """Models of the time, that with the smallest held-out error first; empty where there are fewer than four sizes."""
    is_whole: bool = True
    """Whether all sizes were measured; False after Ctrl-C."""

    @property
    def sizes(self) -> Int64Array:
        """Numbers of SMs; shape (n_sizes,), int64."""
        return np.array([one.sm_count for one in self.points], np.int64)

    @property
    def median_ns(self) -> FloatArray:
        """The median time of a call on each; shape (n_sizes,), float64, in ns."""
        return np.array([one.median_ns for one in self.points])

    @property
    def fit(self) -> Fit | None:
        """The model that holds best for sizes that it has not seen; None where none is right to 15% in the median."""
        return self.fits[0] if self.fits and self.fits[0].median_error <= NO_FIT_ERROR else None

    @property
    def memory_bytes(self) -> float:
        """What a call reads and writes in the card's memory, the median of what was counted; NaN where nothing counted it."""
        known = [one.memory_bytes for one in self.points if one.memory_bytes >= 0]
        return float(np.median(known)) if known else math.nan

    @property
    def knee(self) -> int:
        """The smallest number of SMs whose time is at most 5% above the shortest: more SMs are of little use to it alone."""
        times = self.median_ns
        return int(self.sizes[np.flatnonzero(times <= times.min() * (1 + KNEE_SHARE))[0]])

    def predict(self, sm_count: int) -> float:
        """Return the time of a call on some number of SMs, in ns: as measured there, else by the model.

        Raises
        ------
        MeasureError
            If it was not measured there, and no model fits.
        """
        for one in self.points:
            if one.sm_count == sm_count:
                return one.median_ns
        if self.fit is None:
            raise MeasureError(
                f"{self.name!r} was not measured on {sm_count} SMs, and no model fits. Measure it: lab.bench.sweep(f, "
                f"sms=[{sm_count}])."
            )
        return float(self.fit.predict(sm_count)[0])

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row for each size: SMs, median, interval, calls, speed against the smallest size, and what memory moved."""
        first = self.points[0]
        return [
            {
                "sm_count": one.sm_count,
                "median_ns": one.median_ns,
                "low_ns": one.interval_ns[0],
                "high_ns": one.interval_ns[1],
                "calls": len(one.samples_ns),
                "speed": first.median_ns / one.median_ns,
                "memory_bytes_per_s": one.memory_bytes_per_s,
            }
            for one in self.points
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return `table` as a ``pandas.DataFrame``."""
        import pandas as pd

        return pd.DataFrame(self.table)

    def plot(self) -> Chart:
        """Return a chart, as SVG in its ``svg``: times with their intervals, the models, and the knee."""
        return sweep_chart(self)

    def _line(self) -> str:
        low, high = self.points[0], self.points[-1]
        fit = (
            str(self.fit)
            if self.fit is not None
            else "no model fits"
            if len(self.points) >= FEWEST_SIZES
            else "too few sizes to fit"
        )
        return (
            f"{self.name}: {format_ns(low.median_ns)} on {count_text(low.sm_count, 'SM')}, {format_ns(high.median_ns)} on "
            f"{high.sm_count:,}; knee at {self.knee:,} SMs; {fit}"
        )

    def _report(self) -> Report:
        rows = [["SMs", "median", "95% interval", "speed", "memory"]]
        rows += [
            [
                f"{row['sm_count']:,}",
                format_ns(row["median_ns"]),
                f"{format_ns(row['low_ns'])} to {format_ns(row['high_ns'])}",
                f"{row['speed']:.2f}",
                rate_text(row["memory_bytes_per_s"]),
            ]
            for row in self.table
        ]
        fits = [["model", "formula (us)", "held-out error", "worst"]]
        fits += [[one.model, one.formula, f"{one.median_error:.1%}", f"{one.worst_error:.0%}"] for one in self.fits]
        tables = [ReportTable(caption="A call alone, by SMs", rows=rows)]
        if self.fits:
            tables.append(
                ReportTable(caption="Models, fitted without the size whose error is told", rows=fits, has_row_heads=True)
            )
        notes = [
            "Speed: against the smallest size. Knee: the smallest size at most 5% above the shortest time.",
            "Alone: beside other work memory is shared, which lab.bench.corun measures.",
        ]
        if not self.is_whole:
            notes.append("It was interrupted: larger sizes were not measured.")
        notes += dict.fromkeys(note for one in self.points for note in one.notes)
        return Report(title="Sweep:", line=self._line(), tables=tuple(tables), notes=tuple(notes))


def measure_size(rig: Rig, task: Task, size: int, *, repeats: int, warmup: int, is_counted: bool) -> Measurement:
    """Measure calls of a task on so many SMs, where it is counted what they draw from memory for long enough for that."""
    least_ns = rig.counted_ns if is_counted else 0
    if size == rig.lab.device.sm_count:
        stream = rig.session.stream("whole-card")
    else:
        rig.session.partition({PART: size})
        stream = rig.session.stream(PART, partition=PART)
    return rig.measure(task, stream, repeats=repeats, warmup=warmup, least_ns=least_ns)


def read_sizes(device: Device, sms: str | Sequence[int]) -> list[int]:
    """Return the sizes to measure, in ascending order."""
    granted = device.grantable_sms
    if isinstance(sms, str):
        if sms != "all":
            raise OptionError(f"sms is {sms!r}; give 'all', or sizes such as sms={list(granted[:3])}.")
        return list(granted)
    sizes = [check_count("sms", size, 1) for size in sms]
    if not sizes:
        raise OptionError(f"sms has no sizes; give 'all', or some of {_shown(granted)}.")
    wrong = [size for size in sizes if size not in granted]
    if wrong:
        nearest = min(granted, key=lambda size: abs(size - wrong[0]))
        raise OptionError(
            f"{device.label} grants no partition of {wrong[0]} SMs; the nearest size is {nearest}. device.grantable_sms has "
            f"all: {_shown(granted)}."
        )
    return sorted(set(sizes))


def _shown(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) if len(sizes) <= 8 else f"{sizes[0]}, {sizes[1]}, {sizes[2]}, ..., {sizes[-1]}"


def waves_of(trace: Trace) -> Mapping[int, float]:
    """Return of each kind of kernel how many SMs all its blocks fill at once, and its share of the time."""
    blocks = trace.extra.get("grid_blocks")
    rows = np.flatnonzero(np.isin(trace.kind, WORK))
    if blocks is None or not len(rows):
        return {}
    rows = rows[blocks[rows] > 0]
    sms = np.ceil(blocks[rows] / np.maximum(blocks_that_fit(trace)[rows], 1)).astype(np.int64)
    found: dict[int, float] = {}
    for size, lasted_ns in zip(sms.tolist(), trace.duration_ns[rows].tolist(), strict=True):
        found[size] = found.get(size, 0.0) + lasted_ns
    total = sum(found.values())
    return {size: lasted_ns / total for size, lasted_ns in found.items()}


_Columns = Callable[[FloatArray], FloatArray]
_Solved = tuple[Callable[[FloatArray], FloatArray], str]


def fit_times(sizes: ArrayLike, times_ns: ArrayLike, blocks: Mapping[int, float] | None = None) -> tuple[Fit, ...]:
    """Fit all models, each by the sum of squared relative errors; those with the smallest held-out error come first.

    Parameters
    ----------
    sizes, times_ns
        Numbers of SMs, and how long a call took on each, in ns; shape (n_sizes,).
    blocks
        Of kernels whose grids and occupancy are known: how many SMs one wave of all their blocks would fill, and their share of
        the time. Without it the models of waves are left out.

    Returns
    -------
    tuple of Fit
        Empty with fewer than `FEWEST_SIZES` sizes.

    Examples
    --------
    >>> best = fit_times([8, 16, 32, 64, 128], [1100, 600, 350, 225, 162.5])[0]
    >>> best.model, round(float(best.predict(100)[0])), best.median_error < 1e-9
    ('Amdahl', 180, True)
    """
    n, t = np.asarray(sizes, float), np.asarray(times_ns, float)
    if len(n) < FEWEST_SIZES:
        return ()
    models: dict[str, Callable[[FloatArray, FloatArray], _Solved]] = {"Amdahl": _amdahl, "roofline": _roofline}
    if blocks:
        waves = sorted(blocks, key=lambda one: -blocks[one])[:MOST_KERNELS]
        models["waves"] = lambda n, t: _linear(n, t, lambda n: _waves(n, waves), [f"ceil({one}/n)" for one in waves])
        models["waves and a floor"] = lambda n, t: _linear(
            n, t, lambda n: np.column_stack([np.ones_like(n), _waves(n, waves)]), ["1", *(f"ceil({one}/n)" for one in waves)]
        )
    fits = [_held_out(name, solve, n, t) for name, solve in models.items()]
    # On a floor several models are right at most sizes: the sizes where they differ decide.
    return tuple(sorted(fits, key=lambda one: (round(one.median_error, TIE_DIGITS), one.worst_error)))


def _held_out(name: str, solve: Callable[[FloatArray, FloatArray], _Solved], n: FloatArray, t: FloatArray) -> Fit:
    errors = np.empty(len(n))
    for place in range(len(n)):
        others = np.arange(len(n)) != place
        predict, _ = solve(n[others], t[others])
        errors[place] = predict(n[place : place + 1])[0] / t[place] - 1
    predict, formula = solve(n, t)
    return Fit(
        model=name, formula=formula, errors=errors, predict=lambda sizes: predict(np.atleast_1d(np.asarray(sizes, float)))
    )


def _amdahl(n: FloatArray, t: FloatArray) -> _Solved:
    return _linear(n, t, lambda n: np.column_stack([np.ones_like(n), 1 / n]), ["1", "1/n"])


def _roofline(n: FloatArray, t: FloatArray) -> _Solved:
    """As long as work over SMs, but no shorter than a floor: memory that some SMs draw full, or kernels that fill no more."""
    best: tuple[float, float, float] = (np.inf, 0.0, 0.0)
    for knee in range(len(n) + 1):
        left, right = np.argsort(n)[:knee], np.argsort(n)[knee:]
        slope = _scale(1 / n[left] / t[left]) if len(left) else 0.0
        floor = _scale(1 / t[right]) if len(right) else 0.0
        error = float((((np.maximum(slope / n, floor)) / t - 1) ** 2).sum())
        best = min(best, (error, slope, floor))
    _, slope, floor = best
    return lambda n: np.maximum(slope / n, floor), f"max({floor / 1e3:.3g}, {slope / 1e3:.4g}/n)"


def _scale(over: FloatArray) -> float:
    """Return the factor that brings values nearest to 1, by squares."""
    return float(over.sum() / (over**2).sum())


def _waves(n: FloatArray, waves: Sequence[int]) -> FloatArray:
    return np.column_stack([np.ceil(one / n) for one in waves])


def _linear(n: FloatArray, t: FloatArray, columns: _Columns, words: Sequence[str]) -> _Solved:
    """Fit a sum of columns with factors that are not negative: the best of all subsets of the columns."""
    table = columns(n) / t[:, None]
    best, factors = np.inf, np.zeros(table.shape[1])
    for count in range(1, table.shape[1] + 1):
        for chosen in itertools.combinations(range(table.shape[1]), count):
            found = np.linalg.lstsq(table[:, chosen], np.ones(len(n)), rcond=None)[0]
            error = float(((table[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < best:
                best, factors = error, np.zeros(table.shape[1])
                factors[list(chosen)] = found
    least = 1e-9 * float(np.abs(columns(n) @ factors).max())
    used = [(factor, word) for factor, word in zip(factors, words, strict=True) if factor > least]
    formula = " + ".join(f"{factor / 1e3:.4g}" + ("" if word == "1" else f" {word}") for factor, word in used)
    return lambda n: np.asarray(columns(n) @ factors), formula or "0"
