"""How long the device takes for a call: measured in a session of its own, whose calls the host makes in turns."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gpustreamlab.analysis import memory_bytes_per_s
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns, rate_text
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.model import BENCH, DEVICE_WORK, SPAN_KINDS, ClockRates, Trace
from gpustreamlab.typing import CaptureTier, FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.session import Session

__all__ = ["Measurement", "interval"]

AHEAD = 4  # How many calls of one task are enqueued ahead of the device at least, so that it need not wait for the host
AHEAD_NS = 1_000_000  # How much work of one task is, if that takes more calls: meanwhile the host calls the others
MOST_AHEAD = 64
MOST_CALLS = 20_000  # Calls of a short task beside a long one, at most
# How many periods of the card's counters calls go on at least where it is asked what they draw from memory: two go by until it
# is known when the counters come.
COUNTED_PERIODS = 6
GAP_SHARE = 0.1  # A call whose stream stands still for more than this share of its time is said to be bound by the host
DRIFT_SHARE = 0.05  # Halves of the samples whose medians differ by more are said to drift
WORK = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)
_RESAMPLES = 2_000
_SEED = 20_26


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Measurement(Reported):
    """What the device took for calls of one function. Made by `Bench.measure`."""

    _columns: ClassVar = ("samples_ns", "busy_ns")

    name: str
    """What was measured."""
    sm_count: int
    """SMs of the stream on which it ran."""
    samples_ns: Int64Array
    """From the start of the first work of each call to the end of its last; shape (n_calls,), int64. Warm-up is left out."""
    busy_ns: Int64Array
    """How long the work of each call took, without the gaps between; shape (n_calls,), int64."""
    device: str
    """The device's name; a simulated one says so."""
    by: str
    """``"kernels"``: from the first start to the last end of the work of a call; ``"ranges"``: between two events."""
    launch_count: int = 0
    """Kernels, copies and fills of a call; 0 where they are not known."""
    memory_bytes: float = math.nan
    """What a call reads and writes in the card's memory, by the card's counters, in bytes; NaN where they say nothing, as of
    calls that are over before a GPU has counted."""
    notes: tuple[str, ...] = ()
    """What may be wrong with it, one sentence each."""

    @property
    def median_ns(self) -> float:
        """The median of the samples."""
        return float(np.median(self.samples_ns))

    @property
    def interval_ns(self) -> tuple[float, float]:
        """Where the median lies, by the bootstrap: 95%."""
        return interval(self.samples_ns)

    @property
    def memory_bytes_per_s(self) -> float:
        """What calls draw from the card's memory while their work runs, on average; NaN where nothing counted it."""
        return self.memory_bytes * 1e9 / float(np.mean(self.busy_ns))

    def percentile_ns(self, share: float) -> float:
        """Return the time that a share of the calls (0 to 1) does not exceed, in ns: that of one of them."""
        return quantile_ns(self.samples_ns, share)

    def _line(self) -> str:
        low, high = self.interval_ns
        return (
            f"{self.name}: {format_ns(self.median_ns)} ({format_ns(low)} to {format_ns(high)}) on "
            f"{count_text(self.sm_count, 'SM')}, median of {count_text(len(self.samples_ns), 'call')}"
        )

    def _report(self) -> Report:
        low, high = self.interval_ns
        rows = [
            ["median", "95% interval of it", "p95", "longest", "busy"],
            [
                format_ns(self.median_ns),
                f"{format_ns(low)} to {format_ns(high)}",
                format_ns(self.percentile_ns(0.95)),
                format_ns(int(self.samples_ns.max())),
                f"{int(self.busy_ns.sum()) / max(int(self.samples_ns.sum()), 1):.0%}",
            ],
        ]
        by = "by its kernels" if self.by == "kernels" else "by events around it"
        how = f"Timed {by}, from the first start to the last end of a call's work, on {self.device}."
        drawn = rate_text(self.memory_bytes_per_s)
        told = [f"Drawn from the card's memory while its work runs, as the card counted: {drawn}."] if drawn else []
        notes = (how, *told, *self.notes)
        return Report(title="Measured:", line=self._line(), tables=(ReportTable(caption="One call", rows=rows),), notes=notes)


def quantile_ns(samples_ns: Int64Array, share: float) -> float:
    """Return the least of some samples that a share of them does not exceed: what lies between two was not measured."""
    if not 0 <= share <= 1:
        raise OptionError(f"share is {share!r}; it is 0 to 1, for example percentile_ns(0.95).")
    return float(np.quantile(samples_ns, share, method="inverted_cdf"))


class Rig:
    """A session in which work is measured, on the device of the user's, whose trace and layout stay as they are."""

    def __init__(self, lab: Session) -> None:
        self.lab = lab
        counts = True if lab.device.simulated else "auto"  # a simulated device counts where it is told to, and for nothing
        self.session = type(lab)(lab._backend, title="measurements", hazards="off", host=False, counters=counts)
        sampler = self.session._counters
        # A GPU counts some times a second: for so long calls have to go on for it to be told what they draw from memory.
        self.counted_ns = COUNTED_PERIODS * sampler.period_ns if sampler else 0
        self._twins: dict[tuple[str, int], Any] = {}  # Streams of the rig as streams of the user's session, by name and handle

    def twin(self, stream: Any) -> Any:
        """Return a stream of the rig as one of the user's session: its functions may ask that what is selected."""
        key = (stream.name, stream.handle)
        if key not in self._twins:
            name = f"{BENCH}{stream.name}/{stream.handle:x}"
            self._twins[key] = self.lab._table.get(name, None, ..., stream, is_tools=True)
        return self._twins[key]

    def adopted(self, stream: Any) -> Any:
        """Return a stream of the user's as one of the rig."""
        with self.lab.select(stream) as chosen:
            made = self.session.stream(chosen.name, external=chosen)
        self._twins[made.name, made.handle] = chosen
        return made

    def close(self) -> None:
        """Close it, and the streams that stood for its own."""
        try:
            for twin in self._twins.values():
                if twin.name.startswith(BENCH):
                    twin.close()
        finally:
            self.session.close()

    def measure(self, task: Task, stream: Any, *, repeats: int, warmup: int, least_ns: int = 0) -> Measurement:
        """Measure calls of a task on a stream of the rig, which last for so long in all, if `MOST_CALLS` do."""
        now = self.lab._backend.host_time_ns
        if warmup:
            drive(self, [(task, stream)], lambda counts: counts[0] < warmup)
        before = self.lab._backend.read_clocks()
        until_ns = now() + least_ns
        (calls,) = drive(
            self,
            [(task, stream)],
            lambda counts: counts[0] < repeats or (counts[0] < MOST_CALLS and now() < until_ns),
        )
        after = self.lab._backend.read_clocks()
        require_work(calls, task, stream.name)
        return Measurement(
            name=task.name,
            sm_count=stream.sm_count,
            samples_ns=calls.duration_ns,
            busy_ns=calls.busy_ns,
            device=self.lab.device.label,
            by="kernels" if calls.has_kernels else "ranges",
            launch_count=calls.launch_count,
            memory_bytes=calls.memory_bytes,
            notes=(*_notes_of(calls, task), *clock_notes(before, after)),
        )


@contextmanager
def opened_rig(lab: Session) -> Iterator[Rig]:
    """Open a rig for a ``with`` block."""
    with lab.capture("ranges"):  # else the user's trace had the rig's work and calls, as strays
        lab.synchronize()  # what the user's streams hold is no part of it
        rig = Rig(lab)
        try:
            with lab._accesses.paused():
                yield rig
                rig.session.synchronize()
        finally:
            rig.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is called again and again."""

    name: str  # How its calls are named in the trace
    call: Callable[[], object]  # Enqueues its work on the selected stream
    setup: Callable[[], object] | None = None  # Called before each call, on the same stream; its work is no part of the samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What the device did for the calls of one task, in their order. All columns have shape (n_calls,), in ns."""

    start_ns: Int64Array  # When the first work of each began
    end_ns: Int64Array  # When the last work of each ended
    busy_ns: Int64Array  # How long its work took, summed; the same as from start to end where kernels are not known
    launch_count: int  # Kernels, copies and fills of a call, at most; 0 where they are not known
    has_kernels: bool  # Whether kernels were captured
    stray_count: int  # Pieces of work on other streams than that of the call
    host_ns: Int64Array  # How long the host took for each call
    waited_count: int
    """Calls behind which the stream had nothing to do any more: the call, or the host, has waited for the device."""
    host_share: float  # Share of the time in which the host made calls; near 1 it never had to wait, and sets the pace
    memory_bytes: float  # What the card's memory moved for each, if nothing else ran; NaN where that was not counted

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """From the first start to the last end of each call."""
        return self.end_ns - self.start_ns

    @property
    def period_ns(self) -> Int64Array:
        """From the end of the call before to the end of each, the first left out; shape (n_calls - 1,)."""
        return np.diff(self.end_ns)


def check_task(call: str, task: object) -> Callable[[], object]:
    """Return a callable that takes nothing."""
    if not callable(task):
        raise OptionError(
            f"{call} takes a function without arguments that enqueues work, not {task!r:.60}. Use {call.partition('(')[0]}"
            "(lambda: f(x))."
        )
    return task


def check_count(name: str, value: object, least: int) -> int:
    """Return a whole number of at least so many."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(
            f"{name} is {value!r:.40}; give a whole number of at least {least}, for example {name}={max(least, 10)}."
        )
    return int(value)


def ahead_of(call_ns: float) -> int:
    """Return how many calls of a task are enqueued ahead of the device, by how long one takes.

    Examples
    --------
    >>> ahead_of(50_000), ahead_of(3_000_000), ahead_of(1_000)
    (20, 4, 64)
    """
    return int(np.clip(np.ceil(AHEAD_NS / max(call_ns, 1)), AHEAD, MOST_AHEAD))


def drive(
    rig: Rig,
    tasks: Sequence[tuple[Task, Any]],
    goes_on: Callable[[Sequence[int]], bool],
    *,
    ahead: Sequence[int] | None = None,
) -> list[Calls]:
    """Call tasks in turns, each on its stream, until told to stop; return what the device did for the calls of each.

    The host fills the queue of whichever task has the least ahead of the device, so that all streams have work as long as it
    keeps up; one selection serves all calls of a filling, as it takes the host longer than many a launch. Earlier records of
    the rig are forgotten.
    """
    bench = rig.session
    bench.synchronize()
    bench.clear()
    queues = [_Queue(task, stream, depth) for (task, stream), depth in zip(tasks, ahead or [AHEAD] * len(tasks), strict=True)]
    now, waiting_ns = rig.lab._backend.host_time_ns, 0
    began_ns = now()
    while goes_on([len(queue.host_ns) for queue in queues]):
        queue = min(queues, key=lambda one: (len(one.flying) / one.depth, len(one.host_ns)))
        if len(queue.flying) >= queue.depth:
            waiting_ns -= now()
            _await_room(queues, yields=not rig.lab.device.simulated)
            waiting_ns += now()
            continue
        with rig.lab.select(rig.twin(queue.stream)), bench.select(queue.stream):
            while len(queue.flying) < queue.depth and goes_on([len(queue.host_ns) for queue in queues]):
                queue.call(bench, now)
    host_share = 1 - waiting_ns / max(now() - began_ns, 1)
    bench.synchronize()
    trace = bench.trace
    return [_calls_of(trace, queue, host_share) for queue in queues]


class _Queue:
    """The calls of one task: those that were made, and those of which the device has not done all."""

    def __init__(self, task: Task, stream: Any, depth: int) -> None:
        self.task, self.stream, self.depth = task, stream, depth
        self.flying: deque[Any] = deque()
        self.host_ns: list[int] = []
        self.waited_count = 0

    def call(self, bench: Session, now: Callable[[], int]) -> None:
        """Make one more call, on the stream that is selected."""
        if self.task.setup is not None:
            with bench.range("setup"):
                self.task.setup()
        began_ns = now()
        with bench.range(self.task.name):
            self.task.call()
        self.host_ns.append(now() - began_ns)
        event = self.stream.record()
        self.waited_count += event.query()
        self.flying.append(event)


def _await_room(queues: Sequence[_Queue], *, yields: bool) -> None:
    """Wait until half of a queue has ended, and forget all calls that have: being asked first is no advantage.

    A simulated device needs the host's questions for its time to go on: there, another program's turn would only take long.
    """
    while all(2 * len(queue.flying) > queue.depth for queue in queues):
        for queue in queues:
            while queue.flying and queue.flying[0].query():
                queue.flying.popleft()
        if yields:
            time.sleep(0)


def _calls_of(trace: Trace, queue: _Queue, host_share: float) -> Calls:
    name = queue.task.name
    code = trace.names.index(name) if name in trace.names else -1
    lane = next(place for place, one in enumerate(trace.lanes) if one.name == queue.stream.name)
    rows = np.flatnonzero((trace.kind == _RANGE) & (trace.name == code) & (trace.lane == lane))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    place_of = np.full(len(trace), -1, np.int64)
    place_of[rows] = np.arange(len(rows))
    work = np.flatnonzero(np.isin(trace.kind, WORK))
    owner = trace.parent[work].astype(np.int64)
    while True:  # up to the call, through ranges in between
        onward = (owner >= 0) & (place_of[owner] < 0)
        if not onward.any():
            break
        owner[onward] = trace.parent[owner[onward]]
    place = np.where(owner >= 0, place_of[owner], -1)
    work, place = work[place >= 0], place[place >= 0]
    start_ns, end_ns = trace.start_ns[rows].copy(), trace.end_ns[rows].copy()
    busy_ns, counts = end_ns - start_ns, np.bincount(place, minlength=len(rows))
    if len(work):
        known = counts > 0
        first, last, busy = (
            np.full(len(rows), np.iinfo(np.int64).max),
            np.zeros(len(rows), np.int64),
            np.zeros(len(rows), np.int64),
        )
        np.minimum.at(first, place, trace.start_ns[work])
        np.maximum.at(last, place, trace.end_ns[work])
        np.add.at(busy, place, trace.duration_ns[work])
        start_ns, end_ns, busy_ns = (np.where(known, *pair) for pair in ((first, start_ns), (last, end_ns), (busy, busy_ns)))
        if not known.all():
            start_ns, end_ns, busy_ns = (values[known] for values in (start_ns, end_ns, busy_ns))
    return Calls(
        start_ns=start_ns,
        end_ns=end_ns,
        busy_ns=busy_ns,
        launch_count=int(counts.max(initial=0)),
        has_kernels=trace.metadata.tier == CaptureTier.KERNELS,
        stray_count=int((trace.lane[work] != lane).sum()),
        host_ns=np.array(queue.host_ns, np.int64),
        waited_count=queue.waited_count,
        host_share=host_share,
        memory_bytes=_memory_bytes(trace, start_ns, end_ns, is_apart=queue.task.setup is not None),
    )


def _memory_bytes(trace: Trace, start_ns: Int64Array, end_ns: Int64Array, *, is_apart: bool) -> float:
    """Return what the card's memory moved for each of some calls: for all of them, or only within each, over their number."""
    count = len(start_ns)
    if not count:
        return math.nan
    if not is_apart:  # what ran in between is theirs, too
        start_ns, end_ns = start_ns.min(keepdims=True), end_ns.max(keepdims=True)
    drawn = memory_bytes_per_s(trace, start_ns, end_ns)
    return drawn * float((end_ns - start_ns).sum()) / 1e9 / count


def require_work(calls: Calls, task: Task, stream: str) -> None:
    """Raise where nothing was seen to run."""
    if not len(calls) or int(calls.duration_ns.max()) <= 0 or (calls.has_kernels and not calls.launch_count):
        raise MeasureError(
            f"{task.name!r} enqueued no work on stream {stream!r}, so there is nothing to measure. Pass a function that "
            "enqueues work on the stream that is selected, for example lambda: xp.matmul(a, b, out=c)."
        )


def _notes_of(calls: Calls, task: Task) -> list[str]:
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


def name_of(function: object) -> str:
    """Return what a function is called; a stand-in for one without a name."""
    name = getattr(function, "__name__", "") or type(function).__name__
    return "call" if name == "<lambda>" else name


def interval(samples: ArrayLike) -> tuple[float, float]:
    """Return the interval of the median by the percentile bootstrap: 2,000 draws with replacement, the seed fixed.

    Parameters
    ----------
    samples
        Shape (n,), n at least 1.

    Returns
    -------
    tuple of float
        The ends of the middle 95% of the resamples. Source: Efron, "Bootstrap Methods", Annals of Statistics 7 (1979).

    Examples
    --------
    >>> interval([5.0])
    (5.0, 5.0)
    >>> low, high = interval([9, 10, 10, 11, 10, 9, 12])
    >>> low <= 10 <= high
    True
    """
    drawn = _drawn(np.asarray(samples, float))
    return middle(np.median(drawn, axis=1))


def means(samples: ArrayLike, place: int = 0) -> FloatArray:
    """Return the means of the resamples; shape (2,000,). Different places draw independently."""
    found: FloatArray = np.mean(_drawn(np.asarray(samples, float), place), axis=1)
    return found


def _drawn(values: FloatArray, place: int = 0) -> FloatArray:
    chance = np.random.default_rng((_SEED, place))
    drawn: FloatArray = values[chance.integers(0, len(values), (_RESAMPLES, len(values)))]
    return drawn


def middle(found: FloatArray) -> tuple[float, float]:
    """Return the ends of the middle of resamples, 95% of them."""
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
