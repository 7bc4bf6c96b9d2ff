"""Does watching change what is watched? Patterns of work with nothing on, in a session, in ranges, captured, and afterwards.

Each pattern runs in one process in every state: before gpustreamlab is imported (twice: the second pass is the reference, the
first over the second is the noise), in an open session, on a selected lane, in ranges, with kernels captured, after that, and
after the session has closed. It does so after four preconditions, since what a stream did last decides how the card fetches its
next command. The wall is the host's, from the first call to the return of ``torch.cuda.synchronize()``; the overlap is that of
the device's own timer, stored by the kernels. What the pattern computes is compared bit for bit.

``serialised`` stands for a wall over 1.25 times the reference's where the device's timer agrees: less than 0.8 of the overlap,
or, where a copy has no kernel behind it, a second stream that began at least 0.2 ms later. Without either the wall decides.
A range costs the host a few microseconds: on many streams with short work that is a visible part of the wall, without anything
being serialised (``added_us``). torch.profiler is measured beside it, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench._common import machine, report
from bench._observer_judging import (
    AFTER_CLOSE,
    AFTER_PROFILER,
    AFTER_STOP,
    KERNELS_AND_CALLS,
    LAUNCH_BOUND_GOAL,
    NONE,
    NONE_FIRST,
    PROFILER,
    QUIET_GOAL,
    RANGES,
    RECORDING_GOAL,
    RECORDING_STATES,
    SELECTED,
    SESSION,
    STATES,
    Row,
    judge,
    median,
    pattern_lines,
    print_cases,
    state_lines,
)
from bench._observer_patterns import (
    FIRST_USE,
    GRAPH,
    PARTITION_SMS,
    PATTERNS,
    PRECONDITIONS,
    STEADY,
    STREAMS,
    Interval,
    Kit,
    On,
    Pattern,
    PlainStream,
    Work,
)

NEEDS_GPU = True
REPEATS = 7
FIRST_USE_REPEATS = 3
TORCH_STREAMS = 32  # its pool: more of them are the same streams again
PARTITIONS = ("p", "q")
PROFILER_LIMIT_S = 120


# Streams


class PlainLanes:
    """Streams of torch, and new ones for what is more than its pool has."""

    def __init__(self) -> None:
        self._streams = [PlainStream.of_torch(torch.cuda.Stream()) for _ in range(TORCH_STREAMS)]
        self._streams += [PlainStream.new() for _ in range(STREAMS - TORCH_STREAMS)]
        self._of_priority: dict[tuple[int, ...], list[PlainStream]] = {}

    @contextmanager
    def arranged(self, pattern: Pattern) -> Iterator[None]:
        """Do nothing: plain streams have the whole card."""
        yield

    def standing(self, pattern: Pattern) -> On:
        """Return what selects the streams that every pattern uses."""
        streams = self._streams
        if pattern.priorities:
            if pattern.priorities not in self._of_priority:
                made = [PlainStream.of_torch(torch.cuda.Stream(priority=priority)) for priority in pattern.priorities]
                self._of_priority[pattern.priorities] = made
            streams = self._of_priority[pattern.priorities]
        return lambda place, label: streams[place]

    @contextmanager
    def fresh(self, pattern: Pattern) -> Iterator[On]:
        """Return what selects streams that are made now, and destroy them at the end."""
        priorities = pattern.priorities or (0,) * pattern.stream_count
        streams = [PlainStream.new(priority) for priority in priorities]
        yield lambda place, label: streams[place]


class SessionLanes:
    """Streams of a session, selected with or without a range around the work."""

    def __init__(self, lab: Any, *, is_ranged: bool) -> None:
        self._lab = lab
        self._is_ranged = is_ranged
        self._numbers = itertools.count()

    @contextmanager
    def arranged(self, pattern: Pattern) -> Iterator[None]:
        """Share out the SMs for a pattern that needs it, and take that back."""
        if not pattern.is_partitioned:
            yield
            return
        self._lab.partition({PARTITIONS[0]: PARTITION_SMS, PARTITIONS[1]: "rest"})
        try:
            yield
        finally:
            for stream in [stream for stream in self._lab.streams.values() if stream.partition is not None]:
                stream.close()
            self._lab.partition(None)

    def standing(self, pattern: Pattern) -> On:
        """Return what selects the streams that every pattern uses."""
        if pattern.is_partitioned:
            return self._on(pattern, "partitioned")
        return self._on(pattern, "priority" if pattern.priorities else "s")

    @contextmanager
    def fresh(self, pattern: Pattern) -> Iterator[On]:
        """Return what selects streams that are made now, and close them at the end."""
        prefix = f"new{next(self._numbers)}."
        try:
            yield self._on(pattern, prefix)
        finally:
            for stream in [stream for name, stream in self._lab.streams.items() if name.startswith(prefix)]:
                stream.close()

    def _on(self, pattern: Pattern, prefix: str) -> On:
        lab, names = self._lab, [f"{prefix}{place}" for place in range(pattern.stream_count)]
        for place, name in enumerate(names):
            options: dict[str, Any] = {}
            if pattern.priorities:
                options["priority"] = pattern.priorities[place]
            if pattern.is_partitioned:
                options["partition"] = PARTITIONS[place]
            lab.stream(name, **options)
        if self._is_ranged:
            return lambda place, label: lab.on(names[place], label)
        return lambda place, label: lab.select(names[place])


Lanes = PlainLanes | SessionLanes


# Measuring


class Bench:
    """All patterns with their buffers, measured in one state after the other."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.kit = Kit()
        self.plain = PlainLanes()
        self.rows: list[Row] = []
        self._made = [(pattern, self._make(pattern)) for pattern in patterns]

    def _make(self, pattern: Pattern) -> Work | str:
        """Return a pattern that has run twice, or what went wrong."""
        try:
            work = pattern.make(self.kit)
            for _ in range(2):
                work.run(self.plain.standing(pattern))
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - becomes a row; the other patterns go on
            return told(error)
        return work

    def measure(self, state: str, lanes: Lanes, preconditions: Sequence[str] = PRECONDITIONS) -> None:
        """Add a row for each pattern and precondition."""
        began_s = time.perf_counter()
        gc.collect()
        self.kit.wake()
        gc.disable()
        try:
            for pattern, work in self._made:
                self.rows += [self._row(state, lanes, pattern, work, precondition) for precondition in preconditions]
        finally:
            gc.enable()
        print(f"{state}: {time.perf_counter() - began_s:.1f} s", flush=True)

    def fail(self, state: str, error: Exception) -> None:
        """Add a row for a state that could not be had."""
        self.rows.append({"state": state, "pattern": "all", "precondition": "all", "error": told(error)})

    def _row(self, state: str, lanes: Lanes, pattern: Pattern, work: Work | str, precondition: str) -> Row:
        row: Row = {"state": state, "pattern": pattern.name, "precondition": precondition}
        row |= {"streams": pattern.stream_count, "launch_bound": pattern.is_launch_bound}
        if isinstance(work, str):
            return row | {"error": work}
        try:
            with lanes.arranged(pattern):
                return row | self._figures(lanes, pattern, work, precondition)
        except Exception as error:  # noqa: BLE001 - becomes a row; the other patterns go on
            return row | {"error": told(error)}

    def _figures(self, lanes: Lanes, pattern: Pattern, work: Work, precondition: str) -> Row:
        for output in work.outputs:
            output.zero_()
        torch.cuda.synchronize()
        runs = []
        if precondition == FIRST_USE:
            for _ in range(FIRST_USE_REPEATS):
                with lanes.fresh(pattern) as on:
                    runs.append(self._run(work, on))
                    del on  # it holds plain streams, which end with the last who knows them
        else:
            on = lanes.standing(pattern)
            if precondition == STEADY:
                self._run(work, on)
            for repeat in range(REPEATS):
                self.kit.prepare(precondition, repeat, pattern.stream_count, on)
                runs.append(self._run(work, on))
        walls_us, overlaps, seconds_us = zip(*runs, strict=True)
        return {
            "wall_us": round(statistics.median(walls_us), 1),
            "best_us": round(min(walls_us), 1),
            "overlap": median(overlaps, 3),
            "second_start_us": median(seconds_us, 1),
            "digest": digest(work.outputs),
        }

    def _run(self, work: Work, on: On) -> tuple[float, float | None, float | None]:
        """Run a pattern once; return its wall, and by the device's timer its overlap and when the second stream began."""
        times = self.kit.times
        torch.cuda.synchronize()
        times[:] = 0
        began_s = time.perf_counter()
        work.run(on)
        torch.cuda.synchronize()
        wall_us = (time.perf_counter() - began_s) * 1e6
        known = [*work.intervals, *([] if work.second is None else [work.second])]
        if any(times[list(interval)].min() == 0 for interval in known):
            raise RuntimeError("A kernel has stored no times, so it did not run.")
        second_us = None if work.second is None else float(times[work.second[1]] - times[work.second[0]]) / 1e3
        return wall_us, overlap_of(times, work.intervals), second_us


def overlap_of(times: np.ndarray[Any, Any], intervals: Sequence[Interval]) -> float | None:
    """Return the sum of the intervals over the time from the first start to the last end."""
    if not intervals:
        return None
    begins, ends = (times[[interval[side] for interval in intervals]] for side in (0, 1))
    return float((ends - begins).sum() / max(ends.max() - begins.min(), 1))


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """Return a digest of some 4,000 numbers of each output."""
    summing = hashlib.sha256()
    for output in outputs:
        flat = output.reshape(-1)
        step = max(flat.numel() // 4_096, 1) | 1  # odd, so that it meets every place of a block
        summing.update(flat[::step].contiguous().cpu().numpy().tobytes())
    return summing.hexdigest()[:16]


def told(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def measure_observed(bench: Bench, *, is_events_only: bool) -> str:
    """Measure every state, in the order of a session's life; return the library's version."""
    bench.measure(NONE_FIRST, bench.plain)
    bench.measure(NONE, bench.plain)
    if "gpustreamlab" in sys.modules:
        raise RuntimeError("gpustreamlab was imported before the states without it were measured.")
    import gpustreamlab

    lab = gpustreamlab.Session("cuda", capture="ranges")
    try:
        with lab.capture("ranges") if is_events_only else contextlib.nullcontext():
            for name in (f"s{place}" for place in range(STREAMS)):
                lab.stream(name)
            bench.measure(SESSION, bench.plain)
            _begin_anew(lab)
            bench.measure(SELECTED, SessionLanes(lab, is_ranged=False))
            _begin_anew(lab)
            bench.measure(RANGES, SessionLanes(lab, is_ranged=True))
            _begin_anew(lab)
        if not is_events_only:
            for state in RECORDING_STATES:
                _measure_recording(bench, lab, state)
            bench.measure(AFTER_STOP, bench.plain)
    finally:
        lab.close()
    bench.measure(AFTER_CLOSE, bench.plain)
    return str(gpustreamlab.__version__)


def _measure_recording(bench: Bench, lab: Any, state: str) -> None:
    try:
        with lab.capture("kernels", host=state == KERNELS_AND_CALLS) as capture:
            bench.measure(state, SessionLanes(lab, is_ranged=True))
            note = capture.note
        if note:
            bench.fail(state, RuntimeError(f"kernels were not captured: {note}"))
    except Exception as error:  # noqa: BLE001 - becomes a row; the states behind it go on
        bench.fail(state, error)
    _begin_anew(lab)


def _begin_anew(lab: Any) -> None:
    lab.synchronize()
    lab.clear()


def measure_profiler(bench: Bench) -> None:
    """Measure the same without us, under torch.profiler, and after it."""
    bench.measure(NONE, bench.plain, [STEADY])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        bench.measure(PROFILER, bench.plain, [STEADY])
    bench.measure(AFTER_PROFILER, bench.plain, [STEADY])


def child_rows(kind: str, only: str) -> list[Row]:
    """Return what a process of its own measures: with torch.profiler, or what has CUDA graphs.

    Where a graph was launched in a recording, CUPTI stays in the process; what it then costs would be that of all patterns.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench.observer", kind, "--only", only, "--json", str(path)]
        try:
            subprocess.run(command, cwd=Path(__file__).resolve().parent.parent, check=True, timeout=PROFILER_LIMIT_S)
            return list(json.loads(path.read_text(encoding="utf-8")))
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            return [{"state": PROFILER, "pattern": "all", "precondition": STEADY, "error": told(error)}]


# Commands


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Does watching change what is watched?")
    parser.add_argument("--json", type=Path, help="store the figures here")
    parser.add_argument("--events", action="store_true", help="ranges timed by events alone: no state that captures kernels")
    parser.add_argument("--only", default="", help="only patterns with this text in their names")
    parser.add_argument("--profiler", action="store_true", help="measure torch.profiler alone, and store its rows")
    parser.add_argument("--graphs", action="store_true", help="measure patterns with CUDA graphs alone, and store their rows")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and store the figures."""
    began_s = time.perf_counter()
    options = make_parser().parse_args(sys.argv[1:] if argv is None else argv)
    chosen = [pattern for pattern in PATTERNS if options.only in pattern.name]
    has_graphs = any(GRAPH in pattern.name for pattern in chosen)
    if not options.profiler:
        chosen = [pattern for pattern in chosen if (GRAPH in pattern.name) is options.graphs]
    bench = Bench(chosen)
    if options.profiler:
        measure_profiler(bench)
        options.json.write_text(json.dumps(bench.rows), encoding="utf-8")
        return
    version = measure_observed(bench, is_events_only=options.events)
    if options.graphs:
        options.json.write_text(json.dumps(bench.rows), encoding="utf-8")
        return
    rows = bench.rows + (child_rows("--graphs", options.only) if has_graphs and not options.events else [])
    beside = child_rows("--profiler", options.only)
    judge(rows)
    judge(beside)
    states = [state for state in STATES if not options.events or state not in {*RECORDING_STATES, AFTER_STOP}]
    lines, totals = pattern_lines(rows, beside, states), state_lines(rows + [row for row in beside if row["state"] != NONE])
    title = f"{len(lines)} patterns, steady, beside the same with nothing on (goals: {QUIET_GOAL}; recording {RECORDING_GOAL}, "
    title += f"launch-bound {LAUNCH_BOUND_GOAL})"
    report(title, lines, [])
    report("States, over all patterns and preconditions", totals, [])
    print_cases(rows + [row for row in beside if row["state"] != NONE])
    print(f"Took {time.perf_counter() - began_s:.0f} s.")
    if options.json is not None:
        facts = machine()
        facts["versions"] |= {"gpustreamlab, as imported": version, "cuda of torch": torch.version.cuda}
        stored = {"title": title, "machine": facts, "rows": lines, "states": totals, "events_only": options.events}
        stored |= {"measurements": rows, "beside": beside}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # torch's pinned memory has been on streams that are gone by now; where it is freed, torch would record events on them.
    os._exit(0)
