"""Which split of the SMs, or which streams and priorities, serve some tasks best: measured, confirmed, applied."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.draw import Chart, tuning_chart
from gpustreamlab.errors import MeasureError, OptionError, StreamExistsError
from gpustreamlab.model import Device, Layout
from gpustreamlab.tuning._corun import Bencher, Corun, Place
from gpustreamlab.tuning._measure import interval

if TYPE_CHECKING:
    import pandas as pd

    from gpustreamlab.session import Session

__all__ = ["Constraint", "Trial", "Tuning"]

FEW_PLACES = 24  # Up to so many candidates all are measured; of more, those that a climb comes by
CONFIRMED = 3  # How many of the best are measured again, at least
MOST_CONFIRMED = 10  # How many are, at most, until the best of all is one of them
NEAR = 0.05  # A constraint that is kept by less than this share of its limit may not be kept in another run
CONFIRM_SCALE = 3  # How many times as many calls they get then
THROUGHPUT, MAKESPAN = "throughput: most work in the same time", "makespan: each called once, done soonest"
UNITS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}

Objective = str | Callable[[Corun], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a place has to keep: a figure of a co-run below or above a limit."""

    text: str  # As it was given
    figure: str  # What is limited, such as ``decode.p95``
    excess: Callable[[Corun], float]
    """Returns how far a co-run is from keeping it, as a share of the limit; 0 or less where it keeps it."""

    @classmethod
    def read(cls, constraint: str, names: Sequence[str]) -> Constraint:
        """Read ``"decode.p95 < 2 ms"`` or ``"decode.slowdown <= 1.5"``."""
        read = re.fullmatch(r"\s*([\w.\-+/#@:]+?)\.(\w+)\s*(<=|<|>=|>)\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*(\S*)\s*", str(constraint))
        example = f"constraint='{names[-1]}.p95 < 2 ms'"
        if read is None:
            raise OptionError(
                f"constraint={constraint!r} cannot be read. Write a task, a figure, a limit and a unit: {example}."
            )
        task, what, sign, number, unit = read.groups()
        if task not in names or not re.fullmatch(r"p\d{1,2}|mean|slowdown", what):
            raise OptionError(f"constraint={constraint!r} names no figure of a task. Tasks are {', '.join(names)}: {example}.")
        is_time = what != "slowdown"
        if is_time != bool(unit) or (unit and unit not in UNITS_NS):
            raise OptionError(f"constraint={constraint!r} has no unit that fits; give ns, us, ms or s for times: {example}.")
        limit = float(number) * UNITS_NS.get(unit, 1.0)
        if not limit:
            raise OptionError(f"constraint={constraint!r} has a limit of 0, which nothing keeps: {example}.")
        way = 1.0 if sign in {"<", "<="} else -1.0
        figure = f"{task}.{what}"
        return cls(
            text=str(constraint).strip(),
            figure=figure,
            excess=lambda found: way * (found.metric(figure) - limit) / limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate, as it was measured."""

    place: Place
    """Where the tasks ran."""
    corun: Corun
    """What was measured; the longer measurement where it was confirmed."""
    score: float
    """The objective: more is better."""
    excess: float
    """How far it is from keeping the constraint; 0 or less where it keeps it."""
    is_confirmed: bool = False
    """Whether it was measured again, with more calls."""

    @property
    def is_feasible(self) -> bool:
        """Whether it keeps the constraint."""
        return self.excess <= 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuning(Reported):
    """Places that were tried for some tasks, and the best of them. Made by `Bench.tune`."""

    _columns: ClassVar = ()

    trials: tuple[Trial, ...]
    """All that were measured, the best first: those that keep the constraint, the confirmed ones before others."""
    objective: str
    """What was sought."""
    constraint: str
    """What had to be kept; empty for nothing."""
    candidate_count: int
    """How many candidates there were."""
    notes: tuple[str, ...]
    """How it went, one sentence each."""
    lab: Session
    """The session that `apply` changes."""

    @property
    def best(self) -> Trial:
        """The best candidate; where none keeps the constraint, the one that comes nearest to it."""
        return self.trials[0]

    @property
    def is_feasible(self) -> bool:
        """Whether any candidate keeps the constraint."""
        return self.best.is_feasible

    @property
    def pareto(self) -> tuple[Trial, ...]:
        """Candidates than which no other is better in throughput and in the slowdown of the task that loses most."""
        points = [(one.corun.speedup, max(task.slowdown for task in one.corun.tasks)) for one in self.trials]
        front = [
            trial
            for trial, (more, slow) in zip(self.trials, points, strict=True)
            if not any((a >= more and b <= slow) and (a > more or b < slow) for a, b in points)
        ]
        return tuple(sorted(front, key=lambda one: -one.corun.speedup))

    def apply(self) -> Layout | None:
        """Share out the SMs as the best candidate did, and make the stream of each task there; return the layout.

        Raises
        ------
        MeasureError
            If no candidate keeps the constraint.
        StreamExistsError
            If a stream of a task's name has another priority. Nothing is changed then.
        PartitionInUseError
            If streams work in partitions that would go.
        """
        if not self.is_feasible:
            raise MeasureError(
                f"No candidate keeps {self.constraint!r}; the nearest is {self.best.place}. Loosen the constraint, or apply it "
                "by hand: lab.partition(...)."
            )
        place, lab = self.best.place, self.lab
        self._require_streams(dict(place.priorities))
        layout = lab.partition(dict(place.shares)) if place.shares else lab.partition(None)
        first = dict(place.priorities)
        for task in self.best.corun.tasks:
            lab.stream(task.name, priority=first.get(task.name, 0), partition=task.name if place.shares else None)
        return layout

    def _require_streams(self, first: Mapping[str, int]) -> None:
        """Raise, before anything is changed, where a stream of a task's name cannot be as it has to."""
        for task in self.best.corun.tasks:
            known = self.lab.streams.get(task.name)
            wanted = first.get(task.name, 0)
            if known is not None and known.priority != wanted:
                raise StreamExistsError(
                    f"Stream {task.name!r} exists with priority {known.priority}, and the best candidate has it with {wanted}. "
                    f"Close it with lab.stream({task.name!r}).close(), then apply again; or tune with priorities=False."
                )

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row for each candidate, the best first."""
        return [
            {
                "place": str(one.place),
                "score": one.score,
                "feasible": one.is_feasible,
                "confirmed": one.is_confirmed,
                "speedup": one.corun.speedup,
                "makespan_ns": float(np.median(one.corun.makespan_ns)),
                **{f"{task.name}.slowdown": task.slowdown for task in one.corun.tasks},
                **{f"{task.name}.p95_ns": task.percentile_ns(0.95) for task in one.corun.tasks},
            }
            for one in self.trials
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return `table` as a ``pandas.DataFrame``."""
        import pandas as pd

        return pd.DataFrame(self.table)

    def plot(self) -> Chart:
        """Return a chart: the candidates by throughput and by the slowdown of the task that loses most."""
        return tuning_chart(self)

    def _line(self) -> str:
        best = self.best
        kept = f", keeps {self.constraint}" if self.constraint and best.is_feasible else ""
        kept = kept or (f", but none of them keeps {self.constraint}: this one is nearest" if self.constraint else "")
        count = count_text(self.candidate_count, "candidate")
        return f"{best.place}: {self._sought(best)}{kept}. Of {count} {len(self.trials):,} were measured"

    def _sought(self, best: Trial) -> str:
        """Return what the objective is for the best candidate."""
        found = best.corun
        if self.objective == MAKESPAN:
            low, high = interval(found.makespan_ns)
            done = f"each called once takes {format_ns(found.metric('makespan'))} ({format_ns(low)} to {format_ns(high)}"
            return f"{done}; one after the other {format_ns(found.serial_ns)})"
        low, high = found.speedup_interval
        gain = (
            "no gain that is certain" if low <= 1 <= high else "a gain" if low > 1 else "a loss: run them one after the other"
        )
        own = "" if self.objective == THROUGHPUT else f"{self.objective} {best.score:.4g}, "
        return f"{own}{found.speedup:.2f} times as fast as one after the other ({low:.2f} to {high:.2f}, {gain})"

    def _report(self) -> Report:
        names = [task.name for task in self.best.corun.tasks]
        rows = [["place", "speed-up", "makespan", *(f"{name} (p95)" for name in names), ""]]
        for one in self.trials[:20]:
            low, high = one.corun.speedup_interval
            marks = [*(["confirmed"] if one.is_confirmed else []), *([] if one.is_feasible else ["breaks the constraint"])]
            rows.append(
                [
                    str(one.place),
                    f"{one.corun.speedup:.2f} ({low:.2f} to {high:.2f})",
                    format_ns(float(np.median(one.corun.makespan_ns))),
                    *(f"{task.slowdown:.2f} ({format_ns(task.percentile_ns(0.95))})" for task in one.corun.tasks),
                    ", ".join(marks),
                ]
            )
        notes = (
            f"Sought: {self.objective}. Speed-up: against one after the other on the whole card, each measured alone. "
            "Of each task: how many times as long a call takes as alone on the whole card. In brackets: the time that 95% of "
            "its calls keep. Makespan: until all are done, each called once.",
            "tuning.apply() shares out the SMs like the first row.",
            *self.notes,
        )
        return Report(
            title="Tuning:",
            line=self._line(),
            tables=(ReportTable(caption="Candidates, the best first", rows=rows, names=()),),
            notes=notes,
        )


def rank(trial: Trial) -> tuple[float, float]:
    """Return how a candidate stands, the best lowest: what keeps the constraint comes first."""
    return max(trial.excess, 0.0), -trial.score


def read_objective(objective: Objective) -> tuple[Callable[[Corun], float], str]:
    """Return what says how good a co-run is, and its name."""
    if callable(objective):
        return objective, getattr(objective, "__name__", "function")
    if objective == "throughput":
        return lambda found: found.speedup, THROUGHPUT
    if objective == "makespan":
        return lambda found: -found.metric("makespan"), MAKESPAN
    raise OptionError(
        f"objective is {objective!r:.40}; give 'throughput', 'makespan', or a function of a Corun that returns what to "
        "maximise."
    )


def candidates(
    device: Device, names: Sequence[str], priority_range: tuple[int, int], *, priorities: bool
) -> tuple[list[Place], list[Place]]:
    """Return the candidates on the whole card, and all splits of the SMs into one partition for each task."""
    lowest, highest = priority_range
    plain = [Place()]
    if priorities and highest < lowest:
        plain += [Place((), ((name, highest),)) for name in names]
    resource = device.sm_resource
    if resource is None:
        return plain, []
    unit, whole = resource.group_sms, device.sm_count
    most = whole // unit
    splits = [
        Place(tuple(zip(names, (*(count * unit for count in counts), "rest"), strict=True)))
        for counts in itertools.product(range(1, most), repeat=len(names) - 1)
        if whole - sum(counts) * unit >= min(unit, resource.min_sms)
    ]
    return plain, splits


class Search:
    """What was measured so far, and what comes next."""

    def __init__(
        self,
        bencher: Bencher,
        judge: Callable[[Corun], float],
        limit: Constraint | None,
        budget_s: float | None,
        step: Callable[[str], None],
    ) -> None:
        self._bencher = bencher
        self._judge = judge
        self._limit = limit
        self._end_s = None if budget_s is None else time.monotonic() + budget_s
        self._step = step
        self.trials: dict[Place, Trial] = {}
        self.notes: list[str] = []

    def run(self, plain: Sequence[Place], splits: Sequence[Place]) -> None:
        """Measure candidates, until Ctrl-C; what was measured by then counts."""
        try:
            self._run(plain, splits)
        except KeyboardInterrupt:
            if not self.trials:
                raise
            self.notes.append("It was interrupted: what had been measured by then counts.")
        if self.trials:
            best = self.ranked[0].corun
            self.notes += dict.fromkeys((*self._few_calls(best), *best.notes))

    @property
    def ranked(self) -> list[Trial]:
        """What was measured, the best first: the confirmed ones before others."""
        return sorted(self.trials.values(), key=lambda one: (not one.is_confirmed, *rank(one)))

    def _run(self, plain: Sequence[Place], splits: Sequence[Place]) -> None:
        """Measure all candidates if they are few, else those that a climb comes by; then the best ones again."""
        for place in [*plain, *(splits if len(plain) + len(splits) <= FEW_PLACES else [])]:
            if self._is_over():
                break
            self._try(place)
        if len(plain) + len(splits) > FEW_PLACES and not self._is_over():
            self._climb(splits)
        self._confirm()

    def _is_over(self) -> bool:
        if self._end_s is None or time.monotonic() < self._end_s:
            return False
        if not any("budget" in note for note in self.notes):
            self.notes.append("The budget was over before all candidates were measured.")
        return True

    def _try(self, place: Place) -> Trial:
        known = self.trials.get(place)
        if known is None:
            known = self.trials[place] = self._judged(self._bencher.measure(place, with_there=False))
            self._step(str(place))
        return known

    def _judged(self, found: Corun) -> Trial:
        excess = 0.0 if self._limit is None else float(self._limit.excess(found))
        score = self._judge(found)
        if not isinstance(score, (int, float, np.number)) or not np.isfinite(score):  # type: ignore[redundant-expr]
            raise OptionError(f"The objective returned {score!r:.40} for {found.place}; return a number, the more the better.")
        return Trial(place=found.place, corun=found, score=float(score), excess=excess)

    def _climb(self, splits: Sequence[Place]) -> None:
        """Begin at even and at lopsided splits, and go on to the best neighbour as long as that is better."""
        sizes = {place: _sizes(place) for place in splits}
        by_sizes = {size: place for place, size in sizes.items()}
        for size in _spread(list(by_sizes)):
            if self._is_over():
                return
            self._try(by_sizes[size])
        for _ in range(len(splits)):
            here = min((trial for trial in self.trials.values() if trial.place in sizes), key=rank)
            near = [one for one in _neighbours(sizes[here.place], by_sizes) if by_sizes[one] not in self.trials]
            if not near or self._is_over():
                return
            found = [self._try(by_sizes[one]) for one in near]
            if min(map(rank, found)) >= rank(here):
                return

    def _confirm(self) -> None:
        """Measure the best again with more calls: the best of many short measurements is partly the luckiest."""
        confirmed: list[Place] = []
        while len(confirmed) < min(MOST_CONFIRMED, len(self.trials)):
            best = min(self.trials.values(), key=rank)
            if len(confirmed) >= CONFIRMED and best.is_confirmed:
                break
            if self._is_over() and confirmed:
                break
            place = min((one for one in self.trials.values() if not one.is_confirmed), key=rank).place
            self._measure_again(place)
            confirmed.append(place)
        if Place() in self.trials and Place() not in confirmed and not self._is_over():
            self._measure_again(Place())
        best = min((one for one in self.trials.values() if one.is_confirmed), key=rank)
        if self._limit is not None and -NEAR < best.excess <= 0:
            self.notes.append(f"The constraint is kept by {-best.excess:.1%} of its limit alone: another run may not keep it.")

    def _few_calls(self, found: Corun) -> Iterator[str]:
        """Tell where the share of calls that the constraint is about is all of them."""
        figure = "" if self._limit is None else self._limit.figure
        if tail := re.fullmatch(r"(.+)\.p(\d+)", figure):
            count, left = len(found[tail[1]].together_ns), 1 - int(tail[2]) / 100
            if count * left < 1:
                yield f"{figure} is the longest of {count_text(count, 'call')}: measure more, with repeats={round(1 / left)}."

    def _measure_again(self, place: Place) -> None:
        found = self._judged(self._bencher.measure(place, scale=CONFIRM_SCALE))
        self.trials[place] = replace(found, is_confirmed=True)
        self._step(f"again: {place}")


def _sizes(place: Place) -> tuple[int, ...]:
    """Return the sizes of all partitions but the last, which gets the rest."""
    return tuple(int(size) for _, size in place.shares[:-1])


def _spread(sizes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return some sizes far from each other: the middle one, and quarters of the way."""
    ordered = sorted(sizes)
    return list(dict.fromkeys(ordered[len(ordered) * share // 8] for share in (4, 2, 6, 1, 7)))


def _neighbours(size: tuple[int, ...], known: Mapping[tuple[int, ...], object]) -> list[tuple[int, ...]]:
    """Return the sizes that differ in one step of one partition, or give a step of one to another."""
    step = min(one[0] for one in known)  # splits begin with one group of SMs
    moves = [tuple(step * (place == way) for way in range(len(size))) for place in range(len(size))]
    found = [tuple(np.add(size, np.multiply(move, sign)).tolist()) for move in moves for sign in (1, -1)]
    found += [tuple((np.array(size) + np.array(a) - np.array(b)).tolist()) for a, b in itertools.permutations(moves, 2)]
    return [one for one in found if one in known]
