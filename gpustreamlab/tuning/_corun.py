"""Tasks beside each other: what each loses, and what all gain against one after the other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis import memory_bytes_per_s
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import format_ns, rate_text
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.model import Layout, check_name
from gpustreamlab.tuning._measure import (
    AHEAD,
    AHEAD_NS,
    MOST_CALLS,
    Calls,
    Rig,
    Task,
    ahead_of,
    check_task,
    clock_notes,
    drive,
    interval,
    means,
    middle,
    quantile_ns,
    require_work,
    stray_notes,
)
from gpustreamlab.typing import BoolArray, Int64Array

__all__ = ["Corun", "Place", "TaskTimes", "read_tasks"]

FEWEST_CALLS = 4  # Periods that a task needs for its median to be told
LEAST_BUSY = 0.9  # A task alone whose work runs for less of its time is bound by the host
CALLING = 0.9  # Where the host makes calls for more of the time, it is what sets the pace of all
HOLDING = 2  # A call that takes the host this many times as long as another task's period keeps that one from being called
STARVED_TURNS = 4
"""A task that was called this many times as often as it had to be keeps another one from running: that one is not awaited."""
LEAST_NS = 4_000_000
"""On a GPU, calls are made until they have taken this long at least: those of short tasks more often than was asked for."""


class Place(NamedTuple):
    """How tasks run beside each other."""

    shares: tuple[tuple[str, int | str], ...] = ()
    """What each partition gets, as `Session.partition` takes it; empty for streams on the whole card."""
    priorities: tuple[tuple[str, int], ...] = ()
    """The priority of each task's stream, where it is not 0."""

    def __str__(self) -> str:
        split = ", ".join(f"{name} {size}" for name, size in self.shares)
        first = ", ".join(f"{name} {value}" for name, value in self.priorities)
        return (split or "plain streams") + (f", priority {first}" if first else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """What one task took; a call counts from the end of the one before it on its stream to its own end, in ns."""

    name: str
    """The task."""
    sm_count: int
    """SMs of its stream beside the others."""
    together_ns: Int64Array
    """Beside the others; shape (n_calls,), int64."""
    alone_ns: Int64Array
    """Alone on the whole card; shape (n_calls,), int64."""
    alone_there_ns: Int64Array
    """Alone where it runs beside the others: on its partition; shape (n_calls,), int64."""
    memory_bytes: float = math.nan
    """What a call reads and writes in the card's memory, counted alone, in bytes; NaN where nothing counted it."""

    @property
    def memory_bytes_per_s(self) -> float:
        """What it draws from the card's memory alone on the whole card, on average; NaN where nothing counted it."""
        return self.memory_bytes * 1e9 / float(np.mean(self.alone_ns))

    @property
    def slowdown(self) -> float:
        """How many times as long its calls take beside the others as alone on the whole card, by the means."""
        return float(np.mean(self.together_ns) / np.mean(self.alone_ns))

    @property
    def interference(self) -> float:
        """How many times as long as alone on the same SMs: what the others cost it beyond its share."""
        return float(np.mean(self.together_ns) / np.mean(self.alone_there_ns))

    def percentile_ns(self, share: float) -> float:
        """Return the time that a share of its calls (0 to 1) does not exceed beside the others, in ns: that of one of them."""
        return quantile_ns(self.together_ns, share)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Corun(Reported):
    """Tasks beside each other, in steady state. Made by `Bench.corun`."""

    _columns: ClassVar = ()

    place: Place
    """How they ran."""
    layout: Layout | None
    """The partitions as they were granted; None for the whole card."""
    tasks: tuple[TaskTimes, ...]
    """The tasks."""
    makespan_ns: Int64Array
    """From the start of the first to the end of the last, when each is called once; shape (n_rounds,), int64, in ns."""
    memory_bytes_per_s: float = math.nan
    """What all draw from the card's memory beside each other, on average; NaN where nothing counted it."""
    notes: tuple[str, ...] = ()
    """What may be wrong with it, one sentence each."""

    def __getitem__(self, name: str) -> TaskTimes:
        for one in self.tasks:
            if one.name == name:
                return one
        raise OptionError(f"There is no task {name!r}; there are {', '.join(repr(one.name) for one in self.tasks)}.")

    @property
    def speedup(self) -> float:
        """How many times as fast as one after the other on the whole card: the sum of the tasks' speeds.

        Each speed is against that task alone. Source: STP of Eyerman and Eeckhout, IEEE Micro 28 (2008).
        """
        return float(sum(1 / one.slowdown for one in self.tasks))

    @property
    def speedup_interval(self) -> tuple[float, float]:
        """Where `speedup` lies, by the bootstrap of all samples: 95%."""
        total = sum(
            means(one.alone_ns, 2 * place) / means(one.together_ns, 2 * place + 1) for place, one in enumerate(self.tasks)
        )
        return middle(np.asarray(total))

    @property
    def serial_ns(self) -> float:
        """What each called once takes one after the other on the whole card, in ns, by the medians."""
        return sum(float(np.median(one.alone_ns)) for one in self.tasks)

    def metric(self, name: str) -> float:
        """Return a figure by its name: ``"speedup"``, ``"makespan"``, ``"task.p95"``, also p50, p99, mean and slowdown."""
        if name in {"speedup", "makespan"}:
            return self.speedup if name == "speedup" else float(np.median(self.makespan_ns))
        task, _, what = name.rpartition(".")
        times = self[task]
        if what == "slowdown":
            return times.slowdown
        if what == "mean":
            return float(times.together_ns.mean())
        if re.fullmatch(r"p\d{1,2}", what):
            return times.percentile_ns(int(what[1:]) / 100)
        raise OptionError(
            f"{name!r} is no figure. There are speedup, makespan, and {task or 'task'}.p50, .p95, .p99, .mean, .slowdown."
        )

    def _line(self) -> str:
        low, high = self.speedup_interval
        verdict = "" if low <= 1 <= high else ", a gain" if low > 1 else ", a loss"
        return (
            f"{' and '.join(one.name for one in self.tasks)}, {self.place}: {self.speedup:.2f} times as fast as one "
            f"after the other ({low:.2f} to {high:.2f}{verdict})"
        )

    def _report(self) -> Report:
        rows = [["task", "SMs", "alone, whole card", "alone there", "together", "slowdown", "p95", "p99"]]
        for one in self.tasks:
            alone, there, together = (
                format_ns(float(np.median(x))) for x in (one.alone_ns, one.alone_there_ns, one.together_ns)
            )
            tail = [format_ns(one.percentile_ns(share)) for share in (0.95, 0.99)]
            rows.append([one.name, f"{one.sm_count:,}", alone, there, together, f"{one.slowdown:.2f}", *tail])
        caption = "A call, from the end of the one before it to its own (medians)"
        low, high = interval(self.makespan_ns)
        rates = [(f"{one.name} alone", one.memory_bytes_per_s) for one in self.tasks]
        rates.append(("all beside each other", self.memory_bytes_per_s))
        drawn = ", ".join(f"{who} {rate_text(rate)}" for who, rate in rates if rate >= 0)
        notes = (
            "Together: in steady state, short tasks are called again until the longest has ended.",
            f"Each called once: {format_ns(float(np.median(self.makespan_ns)))} ({format_ns(low)} to "
            f"{format_ns(high)}) from the first start to the last end; one after the other {format_ns(self.serial_ns)}.",
            *([f"Drawn from the card's memory, as it counted: {drawn}."] if drawn else []),
            *self.notes,
        )
        table = ReportTable(caption=caption, rows=rows, has_row_heads=True)
        return Report(title="Co-run:", line=self._line(), tables=(table,), notes=notes)


class Bencher:
    """Measures places of the same tasks; what each takes alone is measured once for each number of SMs."""

    def __init__(self, rig: Rig, tasks: Sequence[Task], repeats: int) -> None:
        self._rig = rig
        self._tasks = tasks
        self._repeats = max(repeats, FEWEST_CALLS)
        self._alone: dict[tuple[str, int], Calls] = {}
        self._call_ns: dict[str, float] = {}
        self._least_ns = LEAST_NS

    def measure(self, place: Place, *, scale: int = 1, with_there: bool = True) -> Corun:
        """Measure the tasks beside each other; `scale` times as many calls as otherwise."""
        repeats = self._repeats * scale
        self._least_ns = max(LEAST_NS * scale, self._rig.counted_ns if with_there else 0)
        alone = [self.alone(task, Place(), repeats) for task in self._tasks]
        before = self._rig.lab._backend.read_clocks()
        there = [
            self.alone(task, place, repeats) if with_there and place.shares else known
            for task, known in zip(self._tasks, alone, strict=True)
        ]
        streams, layout = self._streams(place)
        pairs = list(zip(self._tasks, streams, strict=True))
        self._drive(pairs, [AHEAD] * len(pairs))  # warm
        together = self._drive(pairs, self._counts(alone, repeats))
        drawn = memory_bytes_per_s(self._rig.session.trace, *(np.array([edge]) for edge in _all_ran(together)))
        makespans = [self._makespan(pairs) for _ in range(max(3, repeats // 4))]
        for calls, (task, stream) in zip(together, pairs, strict=True):
            require_work(calls, task, stream.name)
        notes = self._notes(alone, together)
        return Corun(
            place=place,
            layout=layout,
            tasks=tuple(
                TaskTimes(
                    name=task.name,
                    sm_count=stream.sm_count,
                    together_ns=_within_all(calls, together),
                    alone_ns=by.period_ns,
                    alone_there_ns=where.period_ns,
                    memory_bytes=by.memory_bytes,
                )
                for (task, stream), calls, by, where in zip(pairs, together, alone, there, strict=True)
            ),
            makespan_ns=np.array(makespans, np.int64),
            memory_bytes_per_s=drawn,
            notes=(*notes, *clock_notes(before, self._rig.lab._backend.read_clocks())),
        )

    def _notes(self, alone: Sequence[Calls], together: Sequence[Calls]) -> list[str]:
        """Return what may be wrong with a measurement of all tasks."""
        notes = []
        if together[0].host_share > CALLING:
            notes.append(
                f"The host made calls for {together[0].host_share:.0%} of the time: what tasks lose beside each other is its "
                "doing, not the device's. Let each function do more of its work in one call, or capture it: "
                "plan = lab.program(f).plan(); plan.run(); plan.capture()."
            )
        for task, calls, solo in zip(self._tasks, together, alone, strict=True):
            notes += [f"{task.name}: {note}" for note in stray_notes(calls)]
            busy = int(solo.busy_ns[1:].sum()) / max(int(solo.period_ns.sum()), 1)
            if solo.has_kernels and busy < LEAST_BUSY and not calls.stray_count:
                notes.append(
                    f"{task.name} is bound by the host: alone it keeps the device busy for {busy:.0%} of its time. "
                    "What others do in the rest is gained from the host's time."
                )
            others_ns = [float(np.mean(one.period_ns)) for one in alone if one is not solo]
            host_ns = float(np.median(calls.host_ns))
            if host_ns > HOLDING * min(others_ns):
                notes.append(
                    f"A call of {task.name} holds the host for {format_ns(host_ns)}, in which no other task is called: "
                    "how long those take is then the host's doing. Leave waits and pageable copies out of it."
                )
            if len(_within_all(calls, together)) < 2:
                notes.append(
                    f"{task.name} starves: beside the others it ended less than two calls in the time of many; what it "
                    "takes is at least what is told."
                )
        return notes

    def alone(self, task: Task, place: Place, repeats: int) -> Calls:
        """Return what a task takes alone on as many SMs as it has in a place."""
        streams, _ = self._streams(place)
        stream = streams[self._tasks.index(task)]
        key = (task.name, stream.sm_count)
        known = self._alone.get(key)
        if known is None or len(known) < self._at_least(repeats, self._call_ns[task.name]):
            (warm,) = self._drive([(task, stream)], [2])
            require_work(warm, task, stream.name)
            self._call_ns[task.name] = float(warm.duration_ns.min())
            (known,) = self._drive([(task, stream)], [self._at_least(repeats, self._call_ns[task.name]) + 1])
            require_work(known, task, stream.name)
            self._alone[key] = known
        return known

    def _at_least(self, repeats: int, call_ns: float) -> int:
        """Return how often a task is called that takes so long."""
        if self._rig.lab.device.simulated:
            return repeats
        return max(repeats, min(MOST_CALLS, int(np.ceil(self._least_ns / max(call_ns, 1)))))

    def _streams(self, place: Place) -> tuple[list[Any], Layout | None]:
        """Return the stream of each task in a place, which is made if need be."""
        bench, first = self._rig.session, dict(place.priorities)
        names = [f"{task.name}{first[task.name]:+d}" if first.get(task.name) else task.name for task in self._tasks]
        layout, kind = (bench.partition(dict(place.shares)), "part") if place.shares else (None, "whole")
        return [
            bench.stream(f"{kind}.{name}", priority=first.get(task.name, 0), partition=task.name if place.shares else None)
            for name, task in zip(names, self._tasks, strict=True)
        ], layout

    def _drive(self, pairs: Sequence[tuple[Task, Any]], counts: Sequence[int]) -> list[Calls]:
        def goes_on(made: Sequence[int]) -> bool:
            share = [one / wanted for one, wanted in zip(made, counts, strict=True)]
            return min(share) < 1 and max(share) < STARVED_TURNS  # else one keeps another from running at all

        # A queue holds no more than half of the calls: else one is done before another begins.
        ahead = [
            max(1, min(ahead_of(self._call_ns.get(task.name, AHEAD_NS)), count // 2))
            for (task, _), count in zip(pairs, counts, strict=True)
        ]
        return drive(self._rig, pairs, goes_on, ahead=ahead)

    def _counts(self, alone: Sequence[Calls], repeats: int) -> list[int]:
        """Return how often each task is called: the longest as often as asked for, shorter ones for as long as that takes."""
        lengths = np.array([np.median(calls.period_ns) for calls in alone])
        ratio = float(lengths.max() / max(lengths.min(), 1))
        # What is counted is no reason to call short tasks more often than can be.
        repeats = max(repeats, min(self._at_least(repeats, float(lengths.max())), int(MOST_CALLS / ratio) - 2))
        counts = np.ceil((repeats + 1) * lengths.max() / np.maximum(lengths, 1)).astype(int)
        if counts.max() > MOST_CALLS:
            short, long = self._tasks[int(counts.argmax())].name, self._tasks[int(counts.argmin())].name
            raise MeasureError(
                f"{long!r} takes {lengths.max() / lengths.min():,.0f} times as long as {short!r}, which would have to "
                f"be called {counts.max():,} times beside it. Let {short!r} do some hundred of its calls in one."
            )
        return counts.tolist()  # type: ignore[no-any-return]

    def _makespan(self, pairs: Sequence[tuple[Task, Any]]) -> int:
        calls = self._drive(pairs, [1] * len(pairs))
        return int(max(one.end_ns.max() for one in calls) - min(one.start_ns.min() for one in calls))


def _within_all(calls: Calls, together: Sequence[Calls]) -> Int64Array:
    """Return the periods of a task while all tasks ran: from the last first end to the first last end."""
    found: Int64Array = calls.period_ns[_inside(calls, together)]
    if len(found):
        return found
    begin_ns, end_ns = min(int(one.start_ns[0]) for one in together), min(int(one.end_ns[-1]) for one in together)
    if (calls.end_ns <= end_ns).sum() >= FEWEST_CALLS:
        return calls.period_ns  # it was another one that starved
    # What a task that starved took is at least the time in which others ran, not what it took behind them.
    return np.array([max(end_ns - begin_ns, 1)], np.int64)


def _inside(calls: Calls, together: Sequence[Calls]) -> BoolArray:
    """Tell which periods lie in the time in which all tasks ran; shape (n_calls - 1,)."""
    begin_ns, end_ns = _all_ran(together)
    return (calls.end_ns[:-1] >= begin_ns) & (calls.end_ns[1:] <= end_ns)


def _all_ran(together: Sequence[Calls]) -> tuple[int, int]:
    """Return from when until when all tasks ran, in ns."""
    return max(int(one.start_ns[0]) for one in together), min(int(one.end_ns[-1]) for one in together)


def read_tasks(call: str, tasks: Mapping[str, Callable[[], object]] | None) -> list[Task]:
    """Return the tasks of a mapping."""
    if not isinstance(tasks, Mapping) or len(tasks) < 2:
        raise OptionError(f"{call} takes two or more functions by name: {call}({{'prefill': f, 'decode': g}}).")
    return [
        Task(name=check_name(name, "task", "prefill"), call=check_task(f"{call}(...)", function))
        for name, function in tasks.items()
    ]


def place_of(
    layout: Layout | Mapping[str, int | str] | None, priorities: Mapping[str, int] | None, tasks: Sequence[Task]
) -> Place:
    """Return where tasks run."""
    names = [task.name for task in tasks]
    unknown = sorted(set(priorities or {}) - set(names))
    if unknown:
        raise OptionError(f"priorities names {unknown[0]!r}, which is no task. The tasks are {', '.join(names)}.")
    first = tuple(sorted((priorities or {}).items()))
    if layout is None:
        return Place((), first)
    shares = {part.name: part.granted_sms for part in layout} if isinstance(layout, Layout) else dict(layout)
    missing = [name for name in names if name not in shares]
    if missing:
        raise OptionError(
            f"The layout has no partition for task {missing[0]!r}; it has {', '.join(shares)}. Name the partitions as "
            "the tasks."
        )
    return Place(tuple(shares.items()), first)
