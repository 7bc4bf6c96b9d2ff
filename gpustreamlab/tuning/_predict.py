"""What a recorded run would take with something changed: its layout, its waits, its streams, its launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import EllipsisType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis import Finding, Share, plan_partitions
from gpustreamlab.analysis._advice import change_run, read_run, run_of
from gpustreamlab.analysis._changes import Run, with_priorities
from gpustreamlab.analysis._explain import held_calls
from gpustreamlab.analysis._program import KERNEL, UNKNOWN_WAVES, Program, knows_launches, read_program
from gpustreamlab.analysis._replay import Impossible, Replayed, replay
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.errors import MeasureError, OptionError, nearest_hint
from gpustreamlab.model import PREDICTED, SPAN_KINDS, Lane, Layout, Partition, Trace
from gpustreamlab.timeline import Comparison
from gpustreamlab.tuning._measure import WORK
from gpustreamlab.tuning._solo import Need, Parts, Pieces, parts_of, pieces_of, sweeps_of
from gpustreamlab.typing import Cause, Change, Int64Array, LaneKind, SpanKind

__all__ = ["Prediction", "what_if"]

LEAST_ERROR = 0.03
"""No smaller error is stated of a simulated run, whose rules are those of the prediction: -3 to +3% were found with two or more
solo times a kernel."""
LEAST_ERROR_GPU = 0.1
"""Nor of a GPU's. Source: `bench.tuning` on an H100, 12 predictions of 4 programs: off by 5 to 9% in the median of three
runs."""
BANDWIDTH = 4_000_000_000_000
"""Bytes per second of the memory where sweeps tell what is drawn from it. Only shares of it count: that is inferred."""
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Reported):
    """What a recorded run would take with something changed. Made by `Trace.what_if`. Only `measured` was measured."""

    _columns: ClassVar = ()

    trace: Trace
    """The run as it is predicted; its device says that it is."""
    measured: Trace
    """The run as it was recorded."""
    layout: Layout | None
    """The layout that it is predicted for; None for the whole card."""
    changes: tuple[str, ...] = ()
    """What else is changed."""
    makespan_ns: int
    """From the first start to the last end of the work, in ns, predicted."""
    measured_ns: int
    """The same as it was recorded, with the layout that it had."""
    own_ns: int
    """The same as it is predicted for the layout that it had."""
    held_out: tuple[float, float]
    """Error of the solo times used, as a share: the mean, weighted by busy time, of what the models are off by at the sizes
    around those used when they have not seen these, and the worst at any size. Sizes that were swept count with the interval of
    their median."""
    notes: tuple[str, ...] = ()
    """What the prediction leaves out, one sentence each."""

    @property
    def own_error(self) -> float:
        """By how much the prediction for the run's own layout is off, as a share of what was measured."""
        return self.own_ns / self.measured_ns - 1

    @property
    def error(self) -> float:
        """How far off the makespan may be, as a share of it: an expectation, no bound.

        It is `own_error` without its sign and the error of the solo times, at least 3% for the simulated device and 10% for a
        GPU.
        """
        least = LEAST_ERROR if self.measured.metadata.simulated else LEAST_ERROR_GPU
        return max(least, abs(self.own_error) + self.held_out[0])

    def compare(self) -> Comparison:
        """Return the recorded run and the predicted one beside each other; see `gpustreamlab.compare`."""
        return Comparison(self.measured, self.trace)

    def _line(self) -> str:
        return (
            f"{format_ns(self.makespan_ns)} predicted (±{self.error:.1%}) with {self._changed_text()}; "
            f"{format_ns(self.measured_ns)} recorded"
        )

    def _changed_text(self) -> str:
        told = list(self.changes)
        if self.layout is not self.measured.layout or not told:
            told.insert(0, _layout_text(self.layout))
        return ", ".join(told)

    def _report(self) -> Report:
        rows = [["stream", "SMs then", "SMs", "busy then", "busy", "ended then", "ends"]]
        first_ns = [int(one.start_ns.min()) for one in (self.measured, self.trace)]
        for place, now in enumerate(self.trace.lanes):
            then = self.measured.lanes[place] if place < len(self.measured.lanes) else None
            busy = [_work_of_lane(one, place) for one in (self.measured, self.trace)]
            if busy[0][0] or busy[1][0]:
                cells = [format_ns(side[0]) for side in busy]
                ends = [format_ns(max(0, side[1] - zero)) for side, zero in zip(busy, first_ns, strict=True)]
                rows.append([now.name, f"{then.sm_count}" if then else "", f"{now.sm_count}", *cells, *ends])
        held, worst = self.held_out
        solo = (
            "Kernels take alone what lets the run as it was last as it did."
            if self.changes and not any(self.held_out)
            else f"The solo times are off by {held:.1%}, weighted by busy time, and by {worst:.0%} at worst: held out where a "
            "model tells them, else their interval."
        )
        own = f"At its own layout it is off by {self.own_error:+.1%}: {format_ns(self.own_ns)} predicted."
        return Report(
            title="Prediction:",
            line=self._line(),
            tables=(ReportTable(caption="Streams, recorded and predicted", rows=rows, has_row_heads=True),),
            notes=(own, solo, "Predicted, not measured: run it to know.", *self.notes),
        )


def what_if(
    trace: Trace,
    layout: Layout | Mapping[str, Share] | EllipsisType | None,
    sweep: object,
    change: Change | str | Iterable[Change | str],
    without: Finding | Cause | str | Iterable[Finding | Cause | str],
    priority: Mapping[str, int] | None,
) -> Prediction:
    """Predict what a recorded run would take with something changed; see `Trace.what_if`."""
    if len(trace.devices) > 1:
        raise OptionError(
            f"what_if() is of one device, and {trace.metadata.device_label} have streams here. Use "
            f"trace.where(device={trace.devices[0].ordinal}).what_if(...)."
        )
    rows = np.flatnonzero(np.isin(trace.kind, WORK))
    if not (trace.kind[rows] == SPAN_KINDS.index(SpanKind.KERNEL)).any():
        raise MeasureError(
            "The trace has no kernels, and ranges cannot be scheduled anew. Record it with kernels: lab.capture('kernels'), "
            "then lab.trace.what_if(...)."
        )
    if not trace.metadata.device.sm_count:
        raise MeasureError(
            "How many SMs the device of the trace has is not known, so nothing is scheduled anew. Say it where the trace is "
            "made: gsl.Trace.from_columns(..., sm_count=132)."
        )
    made, causes = _changes_of(change), _causes_of(without)
    is_layout = not isinstance(layout, EllipsisType)
    if is_layout and any(one in MOVING for one in made):
        raise OptionError(f"A layout is of the streams that there are: give either it or {', '.join(map(str, MOVING))}.")
    if not (is_layout or made or causes or priority):
        raise OptionError("what_if() was given nothing to change. Give a layout, change=, without= or priority=.")
    return (_of_layout if is_layout else _of_changes)(trace, rows, _Asked(layout, sweep, made, causes, priority or {}))


class _Asked(NamedTuple):
    """What is to be changed."""

    layout: Any
    sweep: object
    changes: tuple[Change, ...]
    without: tuple[Cause, ...]
    priority: Mapping[str, int]


MOVING = (Change.MORE_STREAMS, Change.ONE_STREAM)  # Changes that give work other streams


def _changes_of(given: Change | str | Iterable[Change | str]) -> tuple[Change, ...]:
    named = [given] if isinstance(given, str) else [*given]
    for one in named:
        if one not in [*Change]:
            hint = nearest_hint(str(one), [change.value for change in Change])
            raise OptionError(f"what_if(change={one!r}) is no change. {hint}")
    return tuple(map(Change, named))


def _causes_of(given: Finding | Cause | str | Iterable[Finding | Cause | str]) -> tuple[Cause, ...]:
    named = [given] if isinstance(given, (str, Finding)) else [*given]
    codes = [one.code if isinstance(one, Finding) else one for one in named]
    for one in codes:
        if one not in [*Cause]:
            raise OptionError(f"what_if(without={one!r}) is no finding and no cause. {nearest_hint(str(one), [*Cause])}")
    return tuple(map(Cause, codes))


def _of_changes(trace: Trace, rows: Int64Array, asked: _Asked) -> Prediction:
    """Predict what kernels that take what they took would come to."""
    run = read_run(trace, rows)
    own = _played(run.program)
    changed = _prioritised(trace, change_run(trace, run, asked.changes, asked.without, held_calls(trace)), asked.priority)
    new = _played(changed.program)
    works = changed.program.works
    is_moved = len(changed.program.seats) != len(run.program.seats) or any(work.lane != work.home for work in works)
    lanes, lane = _lanes_of(trace, changed.program), None
    if is_moved:
        lane = np.array([len(trace.lanes) + work.lane for work in works], np.int64)
    told = [change.value for change in asked.changes] + [f"without {cause}" for cause in asked.without]
    told += [f"priority {level} for {name}" for name, level in asked.priority.items()]
    return Prediction(
        trace=_trace_of(trace, _rows_of(run.program), _moved(trace, rows, own, new), lanes, trace.layout, lane),
        measured=trace,
        layout=trace.layout,
        changes=tuple(told),
        makespan_ns=new.wall_ns,
        measured_ns=_wall_ns(trace, rows),
        own_ns=own.wall_ns,
        held_out=(0.0, 0.0),
        notes=tuple(_run_notes(trace, run.program)),
    )


def _of_layout(trace: Trace, rows: Int64Array, asked: _Asked) -> Prediction:
    """Predict what another layout, and other changes, would come to: of kernels that take what their sweeps say."""
    sweeps = sweeps_of(asked.sweep)
    program = read_program(trace, rows)
    pieces = pieces_of(trace, _rows_of(program))
    parts = parts_of(trace, pieces, sweeps)
    own_lanes = _own_lanes(trace, pieces)
    given, card = asked.layout, trace.metadata.device.sm_count
    planned = given if isinstance(given, Layout) or given is None else plan_partitions(given, trace.metadata.device)
    lanes = _new_lanes(trace, planned)
    run = run_of(trace, program)
    own = _played(_seated(program, pieces, _seats(own_lanes, card), parts.need))
    changed = change_run(trace, run, asked.changes, asked.without, held_calls(trace) if asked.without or asked.changes else {})
    changed = _prioritised(trace, changed, asked.priority)
    new = _played(_seated(changed.program, pieces, _seats(lanes, card), parts.need))
    return Prediction(
        trace=_trace_of(trace, pieces.rows, _moved(trace, rows, own, new), lanes, planned),
        measured=trace,
        layout=planned,
        changes=tuple(change.value for change in asked.changes),
        makespan_ns=new.wall_ns,
        measured_ns=_wall_ns(trace, rows),
        own_ns=own.wall_ns,
        held_out=parts.error_at([lanes[lane].sm_count for lane in pieces.lane.tolist()]),
        notes=(*_run_notes(trace, program), *_notes(pieces, parts, lanes)),
    )


def _rows_of(program: Program) -> Int64Array:
    return np.array([work.row for work in program.works], np.int64)


def _wall_ns(trace: Trace, rows: Int64Array) -> int:
    return int(trace.end_ns[rows].max() - trace.start_ns[rows].min())


def _moved(trace: Trace, rows: Int64Array, own: Replayed, new: Replayed) -> Replayed:
    """Return new times on the clock of the trace: the run as it was begins when it began."""
    later_ns = int(trace.start_ns[rows].min()) - int(own.start_ns.min())
    return Replayed(new.start_ns + later_ns, new.end_ns + later_ns, new.launched_ns + later_ns)


def _played(program: Program) -> Replayed:
    try:
        return replay(program)
    except Impossible as error:
        raise MeasureError(
            "The waits of the run form a ring, so its work would never end when scheduled anew. Use a part of the trace: "
            "trace.between(t0_ns, t1_ns).what_if(...)."
        ) from error


def _prioritised(trace: Trace, run: Run, priority: Mapping[str, int]) -> Run:
    if not priority:
        return run
    names = {lane.name: number for number, lane in enumerate(trace.lanes) if lane.kind is LaneKind.STREAM}
    unknown = [name for name in priority if name not in names]
    if unknown:
        raise OptionError(f"The trace has no stream {unknown[0]!r}. {nearest_hint(unknown[0], [*names])}")
    return with_priorities(run, {names[name]: level for name, level in priority.items()})


def _seated(
    program: Program, pieces: Pieces, seats: Sequence[frozenset[int] | None], need_of: Callable[[int, int], Need | None]
) -> Program:
    """Return a program on other SMs, whose kernels take what their sweeps say; memory is shared by what these show of it."""
    card = program.card.sm_count
    works = []
    for place, work in enumerate(program.works):
        seat = seats[pieces.lane[place]]
        sms = card if seat is None else len(seat)
        need = need_of(place, sms) if pieces.is_kernel[place] else None
        free_ns, full_ns = (work.alone_ns, 0.0) if need is None else (need.free_ns, need.full_ns)
        if work.kind == KERNEL:
            blocks = work.blocks if pieces.blocks[place] else UNKNOWN_WAVES * sms
            size_bytes = int(full_ns * (BANDWIDTH / 1e9))
            works.append(work._replace(alone_ns=max(1, round(free_ns)), sms=sms, blocks=blocks, size_bytes=size_bytes))
        else:
            works.append(work)
    return program.change(works=tuple(works), seats=tuple(seats), card=program.card._replace(memory_bytes_per_s=BANDWIDTH))


def _lanes_of(trace: Trace, program: Program) -> tuple[Lane, ...]:
    """Return the lanes, and behind them those of a program with other streams."""
    sms = trace.metadata.device.sm_count
    first = next(lane for lane in trace.lanes if lane.kind is LaneKind.STREAM)
    if len(program.seats) == len(trace.lanes) and all(work.lane == work.home for work in program.works):
        return tuple(replace(lane, priority=level) for lane, level in zip(trace.lanes, program.priorities, strict=True))
    used = {lane: place for place, lane in enumerate(sorted({work.lane for work in program.works}), 1)}
    names = [f"stream {used.get(number, len(used) + 1 + number)}, predicted" for number in range(len(program.seats))]
    new = [
        replace(first, name=name, stream=FIRST_NEW_STREAM + number, partition=None, sm_count=sms)
        for number, name in enumerate(names)
    ]
    return (*trace.lanes, *new)


FIRST_NEW_STREAM = 1 << 20  # Number of the first stream that only a prediction has


def _own_lanes(trace: Trace, work: Pieces) -> tuple[Lane, ...]:
    """Return the lanes with the SMs that they had."""
    lanes = []
    for place, lane in enumerate(trace.lanes):
        codes = np.unique(trace.partition[work.rows[work.lane == place]]).tolist()
        sizes = {trace.partitions[code].granted_sms if code >= 0 else trace.metadata.device.sm_count for code in codes}
        if len(sizes) > 1:
            raise OptionError(
                f"Stream {lane.name!r} ran with several sizes, {', '.join(map(str, sorted(sizes)))} SMs. Predict from the part "
                "with one layout: trace.between(t0_ns, t1_ns).what_if(layout, sweep=...)."
            )
        part = trace.partitions[codes[0]].name if codes and codes[0] >= 0 else None
        lanes.append(replace(lane, partition=part, sm_count=sizes.pop() if sizes else lane.sm_count))
    return tuple(lanes)


def _seats(lanes: tuple[Lane, ...], card: int) -> list[frozenset[int] | None]:
    """Place partitions one behind the other, as their ids are not always known."""
    sizes = {lane.partition: lane.sm_count for lane in lanes if lane.partition is not None}
    first = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    return [
        None
        if lane.partition is None
        else frozenset(sm % card for sm in range(first[lane.partition], first[lane.partition] + lane.sm_count))
        for lane in lanes
    ]


def _new_lanes(trace: Trace, layout: Layout | None) -> tuple[Lane, ...]:
    """Return the lanes with the partitions of a layout: of the name of their own one, else of their own name, else none."""
    card = trace.metadata.device.sm_count
    if layout is None or not layout.is_enforced:
        return tuple(replace(lane, partition=None, sm_count=card) for lane in trace.lanes)
    if sum(part.granted_sms for part in layout) > card:
        raise OptionError(f"The layout has more SMs than the {card} of {trace.metadata.device.label}: {layout}.")
    names = [name if name in layout else None for lane in trace.lanes for name in [lane.partition or lane.name]]
    names = [lane.name if name is None and lane.name in layout else name for name, lane in zip(names, trace.lanes, strict=True)]
    unused = [name for name in layout.names if name not in names]
    if unused:
        known = [*dict.fromkeys(name for lane in trace.lanes for name in (lane.partition, lane.name) if name)]
        raise OptionError(
            f"No stream would run in partition {unused[0]!r}: streams go to the partition of their own one's name, or of their "
            f"own name. {nearest_hint(unused[0], known)}"
        )
    return tuple(
        replace(lane, partition=name, sm_count=card if name is None else layout[name].granted_sms)
        for name, lane in zip(names, trace.lanes, strict=True)
    )


def _trace_of(
    trace: Trace,
    rows: Int64Array,
    played: Replayed,
    lanes: tuple[Lane, ...],
    layout: Layout | None,
    lane: Int64Array | None = None,
) -> Trace:
    """Return the work at its new times, with the ranges around it."""
    first_ns = np.full(len(trace), np.iinfo(np.int64).max)
    last_ns = np.full(len(trace), np.iinfo(np.int64).min)
    first_ns[rows], last_ns[rows] = played.start_ns, played.end_ns
    lane_of = trace.lane.astype(np.int64)
    if lane is not None:
        lane_of[rows] = lane
    for row in rows.tolist():
        outer = int(trace.parent[row])
        while outer >= 0:
            first_ns[outer], last_ns[outer] = min(first_ns[outer], first_ns[row]), max(last_ns[outer], last_ns[row])
            outer = int(trace.parent[outer])
    is_kept = (last_ns >= first_ns) & ((trace.kind == _RANGE) | np.isin(np.arange(len(trace)), rows))
    if lane is not None:
        is_kept &= trace.kind != _RANGE  # one range may be of several streams now
    rows = np.flatnonzero(is_kept)
    rows = rows[np.argsort(first_ns[rows], kind="stable")]
    cut = trace[rows]
    start, end = first_ns[rows], last_ns[rows]
    parts: tuple[Partition, ...] = tuple(layout) if layout is not None and layout.is_enforced else ()
    code = {part.name: place for place, part in enumerate(parts)}
    by_lane = np.array([code.get(lane.partition or "", -1) for lane in lanes], np.int32)
    extra: dict[str, Any] = {name: values for name, values in cut.extra.items() if not name.startswith("uncut_")}
    extra |= {name: values for name, values in (("work_start_ns", start), ("work_end_ns", end)) if name in extra}
    device = replace(trace.metadata.device, name=f"{trace.metadata.device.name}, predicted", simulated=True)
    metadata = replace(
        trace.metadata,
        device=device,
        clock=f"{PREDICTED} by scheduling a recorded run anew",
        title=f"{trace.metadata.title}, predicted".removeprefix(", "),
        capture_source="a prediction",
        capture_windows=((int(start.min()), int(end.max())),),
    )
    return replace(
        cut,
        start_ns=start,
        end_ns=end,
        queued_ns=np.minimum(cut.queued_ns, start),
        lane=lane_of[rows].astype(np.int32),
        partition=by_lane[lane_of[rows]],
        partitions=parts,
        lanes=lanes,
        metadata=metadata,
        extra=extra,
        layout=layout,
        layouts=(),
        markers=(),
    )


def _notes(work: Pieces, parts: Parts, lanes: tuple[Lane, ...]) -> tuple[str, ...]:
    """Say what the times of a layout leave out."""
    notes = []
    kernels = np.flatnonzero(work.is_kernel).tolist()
    silent = list(dict.fromkeys(key for place in kernels if (key := parts.key[place]) is not None and not parts.draws(place)))
    if silent:
        notes.append(
            f"Taken to draw nothing from memory, as sweeps show no floor of it: {_listed(silent)}. Beside others that may take "
            "longer."
        )
    plain = [place for place in kernels if parts.key[place] is None]
    if plain:
        share = work.duration_ns[plain].sum() / max(1, work.duration_ns.sum())
        notes.append(f"Kernels without a sweep, {share:.1%} of the busy time, are taken to run for as long as they did.")
    beyond = [
        name
        for name, solo in parts.solos.items()
        for sizes in [{lanes[work.lane[place]].sm_count for place in kernels if parts.key[place] == name}]
        if any(not solo.sweep.sizes[0] <= size <= solo.sweep.sizes[-1] for size in sizes)
    ]
    if beyond:
        notes.append(f"Outside the sizes of its sweep: {_listed(beyond)}.")
    return tuple(notes)


def _run_notes(trace: Trace, program: Program) -> Iterator[str]:
    """Say what scheduling a run anew leaves out."""
    rows = _rows_of(program)
    if not trace.metadata.simulated:
        yield "By the rules of the simulated device. Twelve predictions on an H100 were off by 25% at most."
    if not knows_launches(trace, rows):
        yield "The trace does not tell when work was launched: all of it is taken to be launched at once."
    elif not program.has_calls:
        yield (
            "The trace has no calls of the host: where the host waited for the device, launches stay when they were. "
            "lab.capture('kernels', host=True) records them."
        )
    used = np.unique(trace.lane[rows]).tolist()
    if sum(bool(trace.lanes[lane].is_blocking) for lane in used) > 1:
        yield "That the legacy default stream and streams that block wait for each other is not kept."
    for lane in used:
        own = rows[trace.lane[rows] == lane]
        if (trace.start_ns[own][1:] < trace.end_ns[own][:-1]).any():
            yield "Work of one stream that ran at once, as in CUDA graphs, is taken to run one after the other."
            return


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _work_of_lane(trace: Trace, lane: int) -> tuple[int, int]:
    """Return how long the work of a lane takes, and when it ends, in ns."""
    rows = np.flatnonzero((trace.lane == lane) & np.isin(trace.kind, WORK))
    return (int(trace.duration_ns[rows].sum()), int(trace.end_ns[rows].max())) if len(rows) else (0, 0)


def _layout_text(layout: Layout | None) -> str:
    if layout is None or not layout.is_enforced:
        return "the whole card"
    return ", ".join(f"{part.name} {part.granted_sms}" for part in layout) + " SMs"
