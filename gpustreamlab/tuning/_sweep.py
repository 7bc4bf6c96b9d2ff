"""A call on every number of SMs: table, knee, and models of how its time depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpustreamlab._util.shell import steps
from gpustreamlab.analysis import blocks_that_fit
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.draw import Chart, sweep_chart
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.model import Trace
from gpustreamlab.tuning._bench import WORK, Lab, Room, Task, check_count, check_task
from gpustreamlab.tuning._fits import FEWEST_SIZES, NO_FIT_ERROR, Fit, fit_times
from gpustreamlab.tuning._measure import Measurement, measure_on, name_of
from gpustreamlab.typing import FloatArray, Int64Array

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Sweep", "sweep"]

KNEE_SHARE = 0.05
"""The knee is the smallest size that is at most this share slower than the fastest one."""
PART = "sweep"
"""The partition in which calls are measured."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Reported):
    """What a call takes on each number of SMs, alone. Made by `Session.sweep`."""

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
                f"{self.name!r} was not measured on {sm_count} SMs, and no model fits. Measure it: lab.sweep(f, "
                f"sms=[{sm_count}])."
            )
        return float(self.fit.predict(sm_count)[0])

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row for each size: SMs, median, interval, calls, outliers, speed against the smallest size."""
        first = self.points[0]
        return [
            {
                "sm_count": one.sm_count,
                "median_ns": one.median_ns,
                "low_ns": one.interval_ns[0],
                "high_ns": one.interval_ns[1],
                "calls": len(one.samples_ns),
                "outliers": one.outlier_count,
                "speed": first.median_ns / one.median_ns,
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
        rows = [["SMs", "median", "95% interval", "speed", "outliers"]]
        rows += [
            [
                f"{row['sm_count']:,}",
                format_ns(row["median_ns"]),
                f"{format_ns(row['low_ns'])} to {format_ns(row['high_ns'])}",
                f"{row['speed']:.2f}",
                f"{row['outliers']}",
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
            "Alone: beside other work memory is shared, which lab.corun measures.",
        ]
        if not self.is_whole:
            notes.append("It was interrupted: larger sizes were not measured.")
        notes += dict.fromkeys(note for one in self.points for note in one.notes)
        return Report(title="Sweep:", line=self._line(), tables=tuple(tables), notes=tuple(notes))


def sweep(
    room: Room,
    function: Callable[[], object],
    *,
    sms: str | Sequence[int],
    repeats: int,
    warmup: int,
    setup: Callable[[], object] | None,
) -> Sweep:
    """Measure calls on partitions of every size; see `Session.sweep`."""
    task = Task(name=name_of(function), call=check_task("lab.sweep(f)", function), setup=setup)
    check_count("repeats", repeats, 2)
    check_count("warmup", warmup, 0)
    sizes = read_sizes(room.lab, sms)
    points: list[Measurement] = []
    waves: Mapping[int, float] = {}
    is_whole = True
    with room.bench() as bench, steps(len(sizes), f"sweep of {task.name}") as step:
        try:
            for size in sizes:
                points.append(_point(room, bench, task, size, repeats, warmup))
                waves = waves_of(bench.trace)
                step(f"{size} SMs")
        except KeyboardInterrupt:
            if not points:
                raise
            is_whole = False
    fits = fit_times([one.sm_count for one in points], [one.median_ns for one in points], waves)
    return Sweep(name=task.name, points=tuple(points), fits=fits, is_whole=is_whole)


def _point(room: Room, bench: Lab, task: Task, size: int, repeats: int, warmup: int) -> Measurement:
    whole = bench.device.sm_count
    if size == whole:
        return measure_on(room, bench, task, bench.stream("whole-card"), repeats=repeats, warmup=warmup)
    bench.partition({PART: size})
    return measure_on(room, bench, task, bench.stream(PART, partition=PART), repeats=repeats, warmup=warmup)


def read_sizes(lab: Lab, sms: str | Sequence[int]) -> list[int]:
    """Return the sizes to measure, in ascending order.

    Raises
    ------
    OptionError
        If one cannot be granted.
    """
    device = lab.device
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
            f"{device.label} grants no partition of {wrong[0]} SMs; the nearest size is {nearest}. "
            "device.grantable_sms has all: "
            f"{_shown(granted)}."
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
