"""How long the device takes for a call: samples, their median with its interval, and what they may be compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.errors import MeasureError
from gpustreamlab.model import ClockRates
from gpustreamlab.tuning._bench import Calls, Lab, Room, Task, check_count, check_task, drive, require_work
from gpustreamlab.tuning._statistics import interval, outliers, ratio_interval
from gpustreamlab.typing import Int64Array

__all__ = ["Conditions", "Measurement", "Ratio", "measure"]

GAP_SHARE = 0.1
"""A call whose stream stands still for more than this share of its time is said to be bound by the host."""
DRIFT_SHARE = 0.05
"""Halves of the samples whose medians differ by more are said to drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How something was measured: what has to be alike for two measurements to be compared."""

    device: str
    """The device's name; a simulated one says so."""
    driver: str
    """The CUDA version of its driver."""
    by: str
    """``"kernels"``: from the first start to the last end of the work of a call; ``"ranges"``: between two events."""
    has_setup: bool
    """Whether something ran before each call."""

    def differences(self, other: Conditions) -> list[str]:
        """Return what differs, one phrase each."""
        words = {"device": "device", "driver": "driver", "by": "timed by", "has_setup": "with setup"}
        pairs = ((word, getattr(self, name), getattr(other, name)) for name, word in words.items())
        return [f"{word} {mine} and {its}" for word, mine, its in pairs if mine != its]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One median over another one."""

    value: float
    """How many times as long the first takes as the second."""
    interval: tuple[float, float]
    """Where the ratio lies, by the bootstrap: 95%."""

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.3g} times as long ({low:.3g} to {high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Measurement(Reported):
    """What the device took for calls of one function. Made by `Session.measure`."""

    _columns: ClassVar = ("samples_ns", "busy_ns")

    name: str
    """What was measured."""
    sm_count: int
    """SMs of the stream on which it ran."""
    samples_ns: Int64Array
    """From the start of the first work of each call to the end of its last; shape (n_calls,), int64. Warm-up is left out."""
    busy_ns: Int64Array
    """How long the work of each call took, without the gaps between; shape (n_calls,), int64."""
    conditions: Conditions
    """How it was measured."""
    launch_count: int = 0
    """Kernels, copies and fills of a call; 0 where they are not known."""
    notes: tuple[str, ...] = ()
    """What may be wrong with it, one sentence each."""

    @property
    def median_ns(self) -> float:
        """The median of the samples. Outliers move it as little as any sample does."""
        return float(np.median(self.samples_ns))

    @property
    def interval_ns(self) -> tuple[float, float]:
        """Where the median lies, by the bootstrap: 95%."""
        return interval(self.samples_ns)

    @property
    def outlier_count(self) -> int:
        """How many samples are far from the others; they are kept. The rule stands in `gpustreamlab.tuning.outliers`."""
        return int(outliers(self.samples_ns).sum())

    def percentile_ns(self, share: float) -> float:
        """Return the time that a share of the calls (0 to 100) does not exceed, in ns."""
        return float(np.percentile(self.samples_ns, share))

    def compare(self, other: Measurement) -> Ratio:
        """Return how many times as long this takes as the other.

        Raises
        ------
        MeasureError
            If the two were not measured alike.
        """
        differences = self.conditions.differences(other.conditions)
        if differences:
            raise MeasureError(
                f"{self.name!r} and {other.name!r} were not measured alike: {', '.join(differences)}. Measure both in "
                "one session."
            )
        return Ratio(value=self.median_ns / other.median_ns, interval=ratio_interval(self.samples_ns, other.samples_ns))

    def _line(self) -> str:
        low, high = self.interval_ns
        return (
            f"{self.name}: {format_ns(self.median_ns)} ({format_ns(low)} to {format_ns(high)}) on "
            f"{count_text(self.sm_count, 'SM')}, "
            f"median of {count_text(len(self.samples_ns), 'call')}"
        )

    def _report(self) -> Report:
        rows = [["median", "95% interval of it", "p95", "longest", "outliers", "busy"]]
        low, high = self.interval_ns
        rows.append(
            [
                format_ns(self.median_ns),
                f"{format_ns(low)} to {format_ns(high)}",
                format_ns(self.percentile_ns(95)),
                format_ns(int(self.samples_ns.max())),
                f"{self.outlier_count:,}",
                f"{int(self.busy_ns.sum()) / max(int(self.samples_ns.sum()), 1):.0%}",
            ]
        )
        by = "by its kernels" if self.conditions.by == "kernels" else "by events around it"
        how = f"Timed {by}, from the first start to the last end of a call's work, on {self.conditions.device}."
        return Report(
            title="Measured:", line=self._line(), tables=(ReportTable(caption="One call", rows=rows),), notes=(how, *self.notes)
        )


def measure(
    room: Room,
    function: Callable[[], object],
    *,
    stream: Any = None,
    repeats: int,
    warmup: int,
    setup: Callable[[], object] | None,
) -> Measurement:
    """Measure calls on a stream of the user's; see `Session.measure`."""
    task = Task(name=name_of(function), call=check_task("lab.measure(f)", function), setup=setup)
    check_count("repeats", repeats, 2)
    check_count("warmup", warmup, 0)
    with room.bench() as bench:
        given = room.lab.current if stream is None else stream
        chosen = bench.stream("measured") if given is None else adopted(room, bench, given)
        return measure_on(room, bench, task, chosen, repeats=repeats, warmup=warmup)


def measure_on(room: Room, bench: Lab, task: Task, stream: Any, *, repeats: int, warmup: int) -> Measurement:
    """Measure calls of a task on a stream of a bench."""
    if warmup:
        drive(room, bench, [(task, stream)], lambda counts: counts[0] < warmup)
    before = room.backend.read_clocks()
    (calls,) = drive(room, bench, [(task, stream)], lambda counts: counts[0] < repeats)
    after = room.backend.read_clocks()
    require_work(calls, task, stream.name)
    return Measurement(
        name=task.name,
        sm_count=stream.sm_count,
        samples_ns=calls.duration_ns,
        busy_ns=calls.busy_ns,
        conditions=conditions_of(bench, calls, has_setup=task.setup is not None),
        launch_count=calls.launch_count,
        notes=(*notes_of(calls, task), *clock_notes(before, after)),
    )


def conditions_of(bench: Lab, calls: Calls, *, has_setup: bool = False) -> Conditions:
    """Return how calls were measured."""
    device = bench.device
    by = "kernels" if calls.has_kernels else "ranges"
    return Conditions(device=device.label, driver=device.driver_version, by=by, has_setup=has_setup)


def notes_of(calls: Calls, task: Task) -> list[str]:
    """Return what may be wrong with the samples of a task."""
    notes = []
    samples, count = calls.duration_ns, len(calls)
    host_ns, device_ns = float(np.median(calls.host_ns)), float(np.median(samples))
    if calls.waited_count * 2 > count and host_ns > 0.5 * device_ns:
        notes.append(
            f"{task.name} waits for the device, or launches slower than it runs: behind {calls.waited_count} of "
            f"{count} calls the "
            "stream had nothing to do. Leave synchronisations out of the function."
        )
    idle = 1 - int(calls.busy_ns.sum()) / max(int(samples.sum()), 1)
    if calls.launch_count and idle > GAP_SHARE and not calls.stray_count:
        notes.append(
            f"Bound by the host: for {idle:.0%} of a call no work of it runs, which no number of SMs changes. Fewer "
            "launches help: plan.run(), then plan.capture(), of plan = lab.program(f).plan() makes them one."
        )
    notes += stray_notes(calls)
    halves = np.median(samples[: count // 2]), np.median(samples[count // 2 :])
    if count >= 8 and abs(halves[1] - halves[0]) > DRIFT_SHARE * halves[0]:
        notes.append(
            f"It drifts: the second half took {halves[1] / halves[0]:.2f} times as long as the first. Take more warm-up."
        )
    return notes


def stray_notes(calls: Calls) -> list[str]:
    """Return that work ran elsewhere, where it did."""
    if not calls.stray_count:
        return []
    return [
        f"{calls.stray_count} pieces of work ran on other streams than the one that was selected: they are not "
        "confined to its SMs, and may run ahead of it. lab.trace.strays() names them in a run of your own."
    ]


def clock_notes(before: ClockRates | None, after: ClockRates | None) -> list[str]:
    """Return what the card's clocks did meanwhile; nothing where they cannot be read."""
    if before is None or after is None:
        return []
    notes = []
    if after.limits:
        notes.append(f"The card was slowed down meanwhile: {', '.join(after.limits)}.")
    if before.sm_mhz and abs(after.sm_mhz - before.sm_mhz) > 0.05 * before.sm_mhz:
        notes.append(f"The SM clock went from {before.sm_mhz:,} to {after.sm_mhz:,} MHz meanwhile. Take more warm-up.")
    return notes


def adopted(room: Room, bench: Lab, stream: Any) -> Any:
    """Return a stream of the user's as one of the bench."""
    with room.lab.select(stream) as chosen:
        made = bench.stream(chosen.name, external=chosen)
    room.twins[made.name, made.handle] = chosen
    return made


def name_of(function: object) -> str:
    """Return what a function is called; a stand-in for one without a name."""
    name = getattr(function, "__name__", "") or type(function).__name__
    return "call" if name == "<lambda>" else name
