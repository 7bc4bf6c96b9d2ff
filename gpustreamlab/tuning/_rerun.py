"""Recorded work scheduled anew: what of it would run when, by the rules of the simulated device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import blocks_that_fit, host_waits
from gpustreamlab.backends.sim import DevicePreset, KernelSpec
from gpustreamlab.errors import MeasureError
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.schedule._commands import CopyRun, CopySpec, DeviceWork, Mark, StreamQueue, Wait
from gpustreamlab.schedule._scheduler import Scheduler
from gpustreamlab.tuning._measure import WORK
from gpustreamlab.typing import BoolArray, EdgeKind, Int64Array, SpanKind

__all__ = ["Need", "Seat", "Work", "run_again", "work_of"]

BANDWIDTH = 4_000_000_000_000
"""Bytes per second of the model's memory. Only shares of it count: what kernels draw is inferred, not known."""
_UNKNOWN_WAVES = 4  # Waves of a kernel whose grid is not known: it is taken to fill its SMs
_MOST_ROUNDS = 12  # How often what the host waited for is worked out anew, until its launches stay where they are
_END = 1 << 62
_KERNEL, _COPY = SPAN_KINDS.index(SpanKind.KERNEL), SPAN_KINDS.index(SpanKind.COPY)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the work of a stream runs."""

    sm_count: int  # How many SMs it may use
    sm_ids: frozenset[int] | None  # Which; None for all


@dataclass(frozen=True, slots=True)
class Need:
    """What a kernel takes alone on the SMs of its stream."""

    alone_ns: float  # How long it runs, in ns
    free_ns: float  # How long it would run if the memory gave all that it asks for, in ns; at most `alone_ns`
    full_ns: float
    """For how long it would take all that the memory gives, in ns; 0 where what it draws is not known, and taken as nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The kernels, copies and fills of a trace, in the order of their streams. Columns have shape (n_work,)."""

    rows: Int64Array  # Rows of the trace
    lane: Int64Array  # Their streams
    blocks: Int64Array  # Blocks of their grids; 0 where not known
    fit: Int64Array  # How many of them fit on an SM
    duration_ns: Int64Array  # How long each took
    ready_ns: Int64Array  # When each could begin at the earliest after the host had launched it, in ns from the first launch
    engine: Int64Array  # Copy engine: 0 into the device, 1 out of it; -1 for none of both
    is_kernel: BoolArray  # Which are kernels
    waits: tuple[tuple[int, int], ...]  # Which (place in these columns) had to end before which began, across streams
    holds: tuple[tuple[int, int, int], ...]
    """Where the host waited: behind which place it launched nothing, from which place on, and how long after its end, in ns."""
    has_launch_times: bool  # Whether the trace tells when work was launched


def work_of(trace: Trace) -> Work:
    """Return what of a trace ran on the device."""
    rows = np.flatnonzero(np.isin(trace.kind, WORK))
    if not (trace.kind[rows] == _KERNEL).any():
        raise MeasureError(
            "The trace has no kernels, and ranges cannot be scheduled anew. Record it with kernels: lab.capture('kernels'), "
            "then lab.trace.what_if(layout, sweep=...)."
        )
    rows = rows[np.lexsort((trace.end_ns[rows], trace.start_ns[rows]))]
    start_ns, queued_ns = trace.start_ns[rows], trace.queued_ns[rows]
    was_told = queued_ns < start_ns
    has_launch_times = bool(was_told.any())
    latency_ns = int((start_ns - queued_ns)[was_told].min()) if has_launch_times else 0
    zero_ns = int(min(queued_ns.min(), start_ns.min()))
    ready_ns = np.where(was_told, queued_ns - zero_ns + latency_ns, 0) if has_launch_times else np.zeros(len(rows), np.int64)
    place = np.full(len(trace), -1, np.int64)
    place[rows] = np.arange(len(rows))
    waits = trace.edges.select(EdgeKind.WAIT)
    pairs = zip(place[waits.source].tolist(), place[waits.target].tolist(), strict=True)
    blocks = trace.extra.get("grid_blocks", np.zeros(len(trace), np.int64))[rows].astype(np.int64)
    return Work(
        rows=rows,
        lane=trace.lane[rows].astype(np.int64),
        blocks=blocks,
        fit=blocks_that_fit(trace)[rows],
        duration_ns=trace.duration_ns[rows],
        ready_ns=ready_ns,
        engine=_engines(trace, rows),
        is_kernel=trace.kind[rows] == _KERNEL,
        waits=tuple(sorted({(before, after) for before, after in pairs if 0 <= before < after})),
        holds=_holds(trace, rows, place) if has_launch_times else (),
        has_launch_times=has_launch_times,
    )


def _engines(trace: Trace, rows: Int64Array) -> Int64Array:
    """Tell which way copies went, by their names or by what they went between."""
    ways = [0 if "htod" in name.lower() else 1 if "dtoh" in name.lower() else -1 for name in trace.names]
    found = np.array([*ways, -1], np.int64)[trace.name[rows]]
    found[trace.kind[rows] != _COPY] = -1
    return found


def _holds(trace: Trace, rows: Int64Array, place: Int64Array) -> tuple[tuple[int, int, int], ...]:
    """Return where the host waited for work before it launched more: its own calls if the trace has them, else its copies."""
    by_launch = np.argsort(trace.queued_ns[rows], kind="stable")
    queued_ns = trace.queued_ns[rows][by_launch]
    found = host_waits(trace)
    awaited: list[tuple[int, int]] = []  # place, when the call returned
    if found.call_count:
        ends_ns = (found.start_ns + found.duration_ns).tolist()
        awaited = [(int(place[row]), end) for row, end in zip(found.waited_for.tolist(), ends_ns, strict=True) if row >= 0]
    else:
        detail = trace.extra.get("detail")
        for row in rows[trace.kind[rows] == _COPY].tolist():
            code = -1 if detail is None else int(detail[row])
            text = trace.names[trace.name[row]] + (trace.details[code].full_name if code >= 0 else "")
            if "pageable" in text:
                awaited.append((int(place[row]), int(trace.end_ns[row])))
    holds = []
    for one, returned_ns in awaited:
        after = int(np.searchsorted(queued_ns, returned_ns))
        # What was launched while the host should have stood still was launched by another thread, or it did not wait.
        if after < len(rows) and one >= 0 and queued_ns[after] >= trace.end_ns[rows[one]]:
            holds.append((one, int(by_launch[after]), int(queued_ns[after] - trace.end_ns[rows[one]])))
    return tuple(dict.fromkeys(holds))


def run_again(
    trace: Trace, work: Work, seats: Sequence[Seat], need_of: Callable[[int, int], Need | None]
) -> tuple[Int64Array, Int64Array]:
    """Schedule work anew: each stream in its order, never before its launch or what it waited for.

    Where the host waited for work before it launched more, its launches move with that work. They are fixed before a run, so it
    is run again until they stay.
    """
    specs = _specs(trace, work, seats, need_of)
    by_launch = np.argsort(trace.queued_ns[work.rows], kind="stable")
    rank = np.empty(len(by_launch), np.int64)
    rank[by_launch] = np.arange(len(by_launch))
    ready_ns = work.ready_ns
    for _ in range(_MOST_ROUNDS):
        start_ns, end_ns = _run(trace, work, seats, specs, ready_ns)
        moved_ns = _with_holds(work, by_launch, rank, end_ns, ready_ns)
        if (moved_ns == ready_ns).all():
            break
        ready_ns = moved_ns
    return start_ns, end_ns


def _with_holds(work: Work, by_launch: Int64Array, rank: Int64Array, end_ns: Int64Array, last_ns: Int64Array) -> Int64Array:
    """Return when work is ready if the host launches on after what it waited for has ended.

    What it waited for ended in a run in which work was ready at `last_ns`. Where its own launch has moved since, its end is
    taken to have moved alike, so a long chain of waits comes to rest after few runs.
    """
    if not work.holds:
        return work.ready_ns
    ready_ns = work.ready_ns.copy()
    latency_ns = int(work.ready_ns.min())
    for one, after, gap_ns in sorted(work.holds, key=lambda hold: rank[hold[1]]):
        first = int(rank[after])
        due_ns = int(end_ns[one] + ready_ns[one] - last_ns[one]) + gap_ns + latency_ns
        if first:
            due_ns = max(due_ns, int(ready_ns[by_launch[first - 1]]) + 1)
        ready_ns[by_launch[first:]] += due_ns - int(ready_ns[after])
    return ready_ns


def _specs(
    trace: Trace, work: Work, seats: Sequence[Seat], need_of: Callable[[int, int], Need | None]
) -> Mapping[int, KernelSpec]:
    """Return each kernel as the scheduler takes it: a grid of equal blocks that alone takes the time of the sweep."""
    slots_per_sm = _slots_per_sm(trace)
    found: dict[int, KernelSpec] = {}
    for place in np.flatnonzero(work.is_kernel).tolist():
        sms = seats[work.lane[place]].sm_count
        need = need_of(place, sms)
        if need is None:
            need = Need(float(work.duration_ns[place]), float(work.duration_ns[place]), 0.0)
        blocks, slots = int(work.blocks[place]), slots_per_sm
        if blocks:
            slots = 1 << max(0, math.ceil(math.log2(slots_per_sm / int(work.fit[place]))))
        else:
            blocks = _UNKNOWN_WAVES * sms
        waves = -(-blocks // (sms * (slots_per_sm // slots)))
        found[place] = KernelSpec(
            name=str(place),
            blocks=blocks,
            block_slots=slots,
            block_ns=max(1, round(need.free_ns / waves)),
            block_bytes=int(need.full_ns * (BANDWIDTH / 1e9) / blocks),
        )
    return found


def _slots_per_sm(trace: Trace) -> int:
    return 1 << max(5, math.ceil(math.log2(max(1, trace.metadata.device.sm_limits.blocks))))


def _run(
    trace: Trace, work: Work, seats: Sequence[Seat], specs: Mapping[int, KernelSpec], ready_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    priorities = [0, *(lane.priority for lane in trace.lanes)]
    preset = DevicePreset(
        name="prediction",
        sm_count=trace.metadata.device.sm_count,
        slots_per_sm=_slots_per_sm(trace),
        memory_bytes_per_s=BANDWIDTH,
        priority_range=(max(priorities), min(priorities)),
    )
    # Behind the two engines each stream has one of its own, for what takes its time and shares nothing: fills, for example.
    scheduler = Scheduler(preset, engine_count=2 + len(seats))
    start_ns, end_ns = np.full(len(work.rows), -1, np.int64), np.full(len(work.rows), -1, np.int64)

    def observe(done: DeviceWork) -> None:
        start_ns[int(done.name)], end_ns[int(done.name)] = done.start_ns, done.end_ns

    scheduler.observer = observe
    streams: list[StreamQueue] = [
        scheduler.add_stream(number, lane.priority, seat.sm_ids)
        for number, (lane, seat) in enumerate(zip(trace.lanes, seats, strict=True))
    ]
    marks = {before: Mark() for before, _ in work.waits}
    awaited: dict[int, list[int]] = {}
    for before, after in work.waits:
        awaited.setdefault(after, []).append(before)
    for place, lane in enumerate(work.lane.tolist()):
        stream, due_ns = streams[lane], int(ready_ns[place])
        for before in awaited.get(place, ()):
            scheduler.submit(stream, Wait(marks[before]), due_ns)
        if place in specs:
            scheduler.submit_kernel(stream, specs[place], due_ns)
        else:
            engine = int(work.engine[place])
            spec = CopySpec(str(place), engine if engine >= 0 else 2 + lane, 0, max(1, int(work.duration_ns[place])))
            scheduler.submit(stream, CopyRun(stream, spec), due_ns)
        if place in marks:
            scheduler.submit(stream, marks[place], due_ns)
    scheduler.run_before(_END)
    if (end_ns < 0).any():
        raise MeasureError(
            "The waits of the trace form a ring, so its work would never end when scheduled anew. Use a part of it: "
            "trace.between(t0_ns, t1_ns).what_if(layout, sweep=...)."
        )
    return start_ns, end_ns
