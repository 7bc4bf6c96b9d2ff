"""`Session.bench`: what calls take on some SMs, what they cost each other, and which layout serves them best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from gpustreamlab._util.shell import steps
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.groups import Group
from gpustreamlab.model import Layout
from gpustreamlab.streams.stream import Stream
from gpustreamlab.tuning._corun import FEWEST_CALLS, Bencher, Corun, place_of, read_tasks
from gpustreamlab.tuning._measure import Measurement, Task, check_count, check_task, name_of, opened_rig
from gpustreamlab.tuning._sweep import Sweep, fit_times, measure_size, read_sizes, waves_of
from gpustreamlab.tuning._tune import CONFIRMED, FEW_PLACES, Constraint, Search, Tuning, candidates, read_objective
from gpustreamlab.typing import SupportsCudaStream

__all__ = ["Bench"]


class Bench(Group):
    """Measure functions in a session of its own on the same device: nothing of it is in this session's trace.

    This session's layout stays as it is, and its capture pauses meanwhile.
    """

    _guesses: ClassVar = {
        "lab.bench.tune({'prefill': f, 'decode': g})": "optimize optimise autotune split",
        "lab.bench.measure(f)": "run time benchmark",
    }

    def measure(
        self,
        function: Callable[[], object],
        *,
        stream: str | Stream | SupportsCudaStream | None = None,
        repeats: int = 20,
        warmup: int = 3,
        setup: Callable[[], object] | None = None,
    ) -> Measurement:
        """Measure how long the device takes for a call, again and again.

        Calls are enqueued ahead of the device; one counts from the start of its first kernel to the end of its last, or, where
        kernels are not captured, between two events.

        Parameters
        ----------
        function
            Takes nothing and enqueues work on the selected stream, by any library that follows it.
        stream
            Where; None for the stream that is selected, or one of the whole card.
        repeats, warmup
            How many calls count, and how many come before them.
        setup
            Called before each call on the same stream; its work does not count.

        Raises
        ------
        MeasureError
            If nothing was enqueued on the stream.
        OptionError
            If the function is none, or a number is too small.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     lab.bench.measure(lambda: spin(lab, 50_000), repeats=5)
        <Measurement: call: 50.0 µs (50.0 µs to 50.0 µs) on 132 SMs, median of 5 calls>
        """
        lab = self._session
        lab._life.require_open("measure")
        task = _task("measure", function, repeats, warmup, setup)
        with opened_rig(lab) as rig:
            given = lab.current if stream is None else stream
            chosen = rig.session.stream("measured") if given is None else rig.adopted(given)
            return rig.measure(task, chosen, repeats=repeats, warmup=warmup)

    def sweep(
        self,
        function: Callable[[], object],
        sms: str | Sequence[int] = "all",
        *,
        repeats: int = 10,
        warmup: int = 2,
        setup: Callable[[], object] | None = None,
    ) -> Sweep:
        """Measure a call alone on partitions of many sizes, and fit models of how its time depends on the SMs.

        Parameters
        ----------
        function, repeats, warmup, setup
            As `measure` takes them.
        sms
            ``"all"`` for each size of ``device.grantable_sms``, or some of them.

        Raises
        ------
        OptionError
            If the device grants no partition of a size.
        MeasureError
            If nothing was enqueued.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     lab.bench.sweep(lambda: spin(lab, 10_000, blocks=2048), sms=[8, 16, 32, 64, 124], repeats=3).knee
        64
        """
        lab = self._session
        lab._life.require_open("sweep the SMs")
        task = _task("sweep", function, repeats, warmup, setup)
        sizes = read_sizes(lab.device, sms)
        points: list[Measurement] = []
        waves: Mapping[int, float] = {}
        with opened_rig(lab) as rig, steps(len(sizes), f"sweep of {task.name}") as step:
            try:
                for size in sizes:
                    is_counted = size == sizes[-1]  # what a call moves is the same on each
                    points.append(measure_size(rig, task, size, repeats=repeats, warmup=warmup, is_counted=is_counted))
                    waves = waves_of(rig.session.trace)
                    step(f"{size} SMs")
            except KeyboardInterrupt:
                if not points:
                    raise
        fits = fit_times([one.sm_count for one in points], [one.median_ns for one in points], waves)
        return Sweep(name=task.name, points=tuple(points), fits=fits, is_whole=len(points) == len(sizes))

    def corun(
        self,
        tasks: Mapping[str, Callable[[], object]],
        layout: Layout | Mapping[str, int | str] | None = None,
        *,
        priorities: Mapping[str, int] | None = None,
        repeats: int = 12,
    ) -> Corun:
        """Measure tasks beside each other in steady state, and alone: what each loses, and what all gain.

        Parameters
        ----------
        tasks
            Functions by name, as `measure` takes them.
        layout
            A partition for each task, by its name; None for streams on the whole card.
        priorities
            Of the tasks' streams; 0 where there is none.
        repeats
            Calls of the longest task; shorter ones are called for as long.

        Raises
        ------
        OptionError
            If there are fewer than two tasks, or the layout has no partition for one.
        MeasureError
            If a task enqueues nothing.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     both = lab.bench.corun({"a": lambda: spin(lab, 50_000), "b": lambda: spin(lab, 100_000)})
        ...     round(both.speedup, 1), round(both["a"].slowdown, 1)
        (2.0, 1.0)
        """
        self._session._life.require_open("measure tasks beside each other")
        known = read_tasks("lab.bench.corun", tasks)
        check_count("repeats", repeats, FEWEST_CALLS)
        place = place_of(layout, priorities, known)
        with opened_rig(self._session) as rig:
            return Bencher(rig, known, repeats).measure(place)

    def tune(
        self,
        tasks: Mapping[str, Callable[[], object]] | None = None,
        objective: str | Callable[[Corun], float] = "throughput",
        *,
        constraint: str | None = None,
        priorities: bool = True,
        repeats: int = 8,
        budget_s: float | None = None,
        **unknown: object,
    ) -> Tuning:
        """Find out by measuring which split of the SMs serves tasks best, or whether plain streams or priorities do.

        Up to 24 candidates are all measured, of more those that a climb from a few splits comes by. The best three are
        measured again with three times as many calls. Ctrl-C keeps what was measured.

        Parameters
        ----------
        tasks
            Functions by name, as `measure` takes them.
        objective
            ``"throughput"``; ``"makespan"``: each called once; or a function of a `Corun` that returns what to maximise.
        constraint
            What has to hold: ``"decode.p95 < 2 ms"``, ``"decode.slowdown < 1.5"``.
        priorities
            Whether a higher priority for one task on the whole card is a candidate.
        repeats
            Calls of the longest task for each candidate.
        budget_s
            After so many seconds no more candidates are measured; None for no limit.

        Raises
        ------
        OptionError
            If something cannot be read.
        MeasureError
            If a task enqueues nothing, or the budget is over before one candidate was measured.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     tuning = lab.bench.tune({"a": lambda: spin(lab, 50_000), "b": lambda: spin(lab, 100_000)}, repeats=4)
        ...     str(tuning.best.place)
        'plain streams'
        """
        lab = self._session
        lab._life.require_open("tune")
        if unknown:
            raise OptionError(
                f"lab.bench.tune has no option {next(iter(unknown))!r}. Use lab.bench.tune({{'prefill': f, 'decode': g}}, "
                "constraint='decode.p95 < 2 ms')."
            )
        known = read_tasks("lab.bench.tune", tasks)
        check_count("repeats", repeats, FEWEST_CALLS)
        if budget_s is not None and not budget_s > 0:
            raise OptionError(f"budget_s is {budget_s!r}; give seconds above 0, or None for no limit.")
        judge, sought = read_objective(objective)
        names = [task.name for task in known]
        limit = None if constraint is None else Constraint.read(constraint, names)
        plain, splits = candidates(lab.device, names, lab._backend.priority_range, priorities=priorities)
        count = len(plain) + len(splits)
        with opened_rig(lab) as rig, steps(min(FEW_PLACES, count) + CONFIRMED, "tuning") as step:
            search = Search(Bencher(rig, known, repeats), judge, limit, budget_s, step)
            search.run(plain, splits)
        if not search.trials:
            raise MeasureError(
                f"budget_s={budget_s:g} was over before one candidate was measured. Give more, or cheaper functions: "
                "lab.bench.tune(..., budget_s=60)."
            )
        return Tuning(
            trials=tuple(search.ranked),
            objective=sought,
            constraint="" if limit is None else limit.text,
            candidate_count=count,
            notes=tuple(search.notes),
            lab=lab,
        )


def _task(call: str, function: object, repeats: int, warmup: int, setup: Callable[[], object] | None) -> Task:
    """Return what is measured, if it and its numbers can be."""
    check_count("repeats", repeats, 2)
    check_count("warmup", warmup, 0)
    return Task(name=name_of(function), call=check_task(f"lab.bench.{call}(f)", function), setup=setup)
