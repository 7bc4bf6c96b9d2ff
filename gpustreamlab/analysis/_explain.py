"""Why work did not overlap: why, what proves it, what changing it gains, and what to type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from gpustreamlab.analysis._advice import MOST_WORKS, Advice, Step, advise, delays_with_priority, read_run
from gpustreamlab.analysis._advice_text import step_texts
from gpustreamlab.analysis._busy import (
    counted_kinds,
    counted_rows,
    distinct,
    is_work,
    lane_devices,
    lane_processes,
    require_one_rank,
    require_trace,
)
from gpustreamlab.analysis._card_idle import card_idle
from gpustreamlab.analysis._causes import LONGER, Found, find_causes, idle_in_calls
from gpustreamlab.analysis._changes import Run, apart, in_one_stream
from gpustreamlab.analysis._data_order import NEEDED, NOT_NEEDED
from gpustreamlab.analysis._device_causes import CODES, SURE, piece_of
from gpustreamlab.analysis._explain_text import TEXTS, finding_texts, make_room
from gpustreamlab.analysis._explanation import LEAST_SHARE, Explanation, Finding, Forecast, joined
from gpustreamlab.analysis._overlap import concurrency
from gpustreamlab.analysis._pieces import LatePieces, Pieces, StepTime, find_pieces, needed_chain_ns, pieces_on_time
from gpustreamlab.analysis._replay import Impossible, replay
from gpustreamlab.analysis._rows import MAX_LANE_ROWS
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.analysis._stacks import find_host_bound, name_threads, with_operation
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Cause, Certainty, Int64Array, LaneKind, SpanKind

PAIRS_TOLD = 4  # Up to how many pairs of streams are told apart for one cause; what more cost is added up
PROFILER_TIMES = 10  # The profiler's own time is told if it costs so many times what else is told
OF_HOST = (
    Cause.HOST_SYNC_DEVICE,
    Cause.HOST_SYNC_STREAM,
    Cause.HOST_LATE,
    Cause.LAUNCH_BOUND,
    Cause.LAZY_LOAD,
    Cause.ALLOC_SYNC,
    Cause.PAGEABLE_COPY,
    Cause.HOST_CALL,
    Cause.QUEUE_FULL,
    Cause.PROFILER_OVERHEAD,
)
"""What a program does all the time without harm; told where something is to be gained."""
CALLED = (Cause.LAZY_LOAD, Cause.ALLOC_SYNC, Cause.QUEUE_FULL, Cause.PROFILER_OVERHEAD)
"""Causes whose calls are simply too long: what the run would be without is scheduled anew."""
SAME_KIND = (frozenset({Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM}), frozenset({Cause.HOST_LATE, Cause.LAUNCH_BOUND}))
"""Causes that one change mends together."""
NOT_TRIED = (Cause.HOST_LATE, Cause.NOT_OFFERED, Cause.HOST_FUNC, Cause.SERIALISED_BY_TOOL, Cause.LEGACY_STREAM, Cause.UNKNOWN)
"""Causes that are not scheduled anew without: whether what the host does could be done earlier nobody knows."""
LEFT_AS_IT_IS = "Leave it as it is: scheduled anew without it the run is no shorter."
NO_GAIN: Mapping[Cause, str] = MappingProxyType(
    dict.fromkeys((Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM, Cause.LAUNCH_BOUND, Cause.PAGEABLE_COPY), LEFT_AS_IT_IS)
    | dict.fromkeys((Cause.PARTITION_SMALL, *CALLED), LEFT_AS_IT_IS)
)
"""What is to be done where it is known that nothing is gained; for other causes what is always said."""
SHARED = "Both need the SMs."
FEWEST_LATE, SHORT_SHARE, LATE_TIMES, LATE_SHARE = 4, 0.1, 5, 0.01
"""A stream of so many kernels, which take so little of the run, is told of where 5% of them wait for so many times what they
take, and for so much of the run."""
LEAST_DELAY = 0.1  # By which share of the delay work has to begin sooner for a priority to be told
SLOWED_TOLD = 4  # How many kernels that were slowed are told by their names
IDLE_SHARE = 0.05  # From which share of that time on it is told that the card was idle while the host was in a call
NOT_OFFERED_SHARE = 0.2
"""From which share of that time on it is told that nothing was there to overlap with: streams never begin and end as one."""
WAIT_WEIGHT = 0.5  # How much of the time of a wait for an event counts in the order of findings
NEEDS_DATA = "waits for data that streams need are kept as they are"  # What bounds the gain where waits for data do


def explain(trace: Trace, first: str | int | None = None, second: str | None = None) -> Explanation:
    """Say why pieces of work did not overlap.

    Parameters
    ----------
    trace
        The spans; with calls of the host in it (``lab.capture("kernels", host=True)``) most can be told.
    first, second
        Two streams, or names of ranges or kernels, of which it is asked; None for all streams. One alone: it and all others. A
        row number as `first`: why that span began late.

    Returns
    -------
    Explanation
        Findings, ranked by what changing each is predicted to gain. Where work overlapped, or nothing is to be gained, there
        are none.

    Raises
    ------
    OptionError
        If it is no trace, or nothing has such a name; or if what is asked of is of several ranks: ``trace.where(device=1)`` is
        of one.

    Notes
    -----
    A piece of work is a run of kernels, copies and fills of one stream without a pause. It began late if other streams worked
    while its stream was idle. Until its launch the host held it up, from then to its start the device. Each cause is told by
    records that it must leave; the codes are those of `Cause`. What changing it gains is found by scheduling the run anew with
    that changed, and with what work is known to read and to write kept in order; first it is scheduled as it was, and how far
    that is off is said. Where it cannot be, or where it is not known what a wait is for, the most that overlap could save is
    told, and nothing is promised.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 1_000_000], end_ns=[900_000, 2_000_000], stream=["copy", "compute"], queued_ns=[-5_000, 995_000]
    ... )
    >>> explain(trace, "copy", "compute").findings[0].code
    <Cause.HOST_LATE: 'HOST_LATE'>
    """
    require_trace(trace, "explain")
    rows = counted_rows(trace)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        return _of_row(trace, rows, int(first))
    groups = [_named_rows(trace, rows, name) for name in (first, second) if name is not None]
    if len(groups) == 2:
        rows = groups[0] | groups[1]
    elif groups:
        process = lane_processes(trace)[trace.lane]
        rows = rows & np.isin(process, process[groups[0]])
    require_one_rank(trace, rows, "explain")
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    if len(groups) == 1:
        found = found.among(groups[0][pieces.row[found.piece]] | ((found.before >= 0) & groups[0][found.before]))
    result = _explanation(trace, rows, pieces, found, is_part=len(groups) == 2)
    if len(groups) < 2:
        return result
    same = [_put_apart(trace, one, groups) for one in _same_stream(trace, groups, (str(first), str(second)))]
    idle = [str(name) for name, group in zip((first, second), groups, strict=True) if not group.any()]
    return replace(
        result,
        findings=(*same, *result.findings),
        gain_ns=max([result.gain_ns, *(finding.saves_ns for finding in same)]),
        bound_ns=max([result.bound_ns, *(finding.bound_ns for finding in same)]),
        asked=f"nothing ran on {display_name(idle[0], 40)!r}" if idle and len(result.streams) < 2 else "",
    )


def _of_row(trace: Trace, rows: BoolArray, row: int) -> Explanation:
    """Say why one span began late, however little that cost."""
    if not 0 <= row < len(trace):
        raise OptionError(f"explain({row}) names a row; the trace has rows 0 to {len(trace) - 1:,}.")
    process = lane_processes(trace)[trace.lane]
    rows = rows & (process == process[row])
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    inside = np.flatnonzero(rows & descendants(trace, np.arange(len(trace)) == row))
    places = piece_of(trace, pieces, inside)
    found = found.among(np.isin(found.piece, places[places >= 0]))
    result = _explanation(trace, rows, pieces, found, is_part=False, least_ns=1)
    delay_ns = int(trace.start_ns[row] - trace.queued_ns[row])
    began = f"began {format_ns(delay_ns)} after its launch" if delay_ns > 0 else "has no time of its launch"
    held = "" if result.findings else "; nothing held it up while others worked"
    name, stream = (
        display_name(text, 40) for text in (trace.names[int(trace.name[row])], trace.lanes[int(trace.lane[row])].name)
    )
    return replace(result, asked=f"row {row:,}, {name} on {stream!r}, {began}{held}", host_bound=())


def _explanation(
    trace: Trace, rows: BoolArray, pieces: Pieces, found: Found, *, is_part: bool, least_ns: int | None = None
) -> Explanation:
    whole = concurrency(trace[rows]) if is_part else concurrency(trace, pieces.edges, pieces.steps.steps)
    used, chain_ns = np.unique(trace.lane[rows]), needed_chain_ns(pieces)
    shares = whole.shared.reason if whole.shared.busy_ns > whole.busiest_ns else ""
    result = Explanation(
        findings=(),
        asked="",
        host_bound=find_host_bound(trace, used.tolist(), pieces),
        streams=tuple(trace.lanes[lane].name for lane in used.tolist()),
        active_ns=whole.active_ns,
        together_ns=whole.together_ns,
        offered_ns=max(pieces.offered_ns, whole.together_ns),
        gain_ns=0,
        bound_ns=max(whole.active_ns - max(whole.ideal_ns, chain_ns), 0),
        forecast=None,
        reason=NEEDS_DATA if chain_ns > whole.ideal_ns else shares,
        idle="" if is_part or len(used) != 1 else _idle_text(trace),
        is_ranges=SpanKind.RANGE in counted_kinds(trace) and trace.metadata.tier is not CaptureTier.KERNELS,
        has_calls=bool((pieces.launch >= 0).any()),
        looked_share=pieces.looked_share,
        metadata=trace.metadata,
    )
    findings = _grouped(trace, pieces, found, result.bound_ns, result.worth_ns if least_ns is None else least_ns)
    findings = name_threads(trace, pieces, found, findings)
    advice = _advised(trace, rows, found)
    if advice is not None:
        slowed_ns = max((one.bound_ns for one in findings if one.code is Cause.SLOWED_DOWN), default=0)
        advice = replace(advice, slowed_ns=slowed_ns)
        asked = set() if least_ns is not None else {*used.tolist()} if is_part else {*range(len(trace.lanes))}
        findings = _with_steps(trace, advice, findings, asked)
        if least_ns is None and advice.is_certain:
            findings += _short_and_late(trace, rows, advice, findings)
        result = replace(result, forecast=_forecast(advice), gain_ns=sum(finding.saves_ns for finding in findings))
    if least_ns is None and not is_part:
        findings += _idle_in_calls(trace, pieces, findings, max(result.worth_ns, int(IDLE_SHARE * result.active_ns)))
    if least_ns is None and not any(finding.saves_ns for finding in findings):
        findings += _not_offered(trace, rows, pieces, result, findings)
    return replace(result, findings=tuple(sorted(findings, key=_rank)))


def _idle_text(trace: Trace) -> str:
    """Say why a card was idle with one stream; empty where it hardly was, or kernels are not known."""
    if trace.metadata.tier is not CaptureTier.KERNELS or len({lane.process for lane in trace.lanes}) > 1:
        return ""
    found = card_idle(trace)
    return f"one stream, {found.line}" if found.idle_ns > LEAST_SHARE * found.wall_ns else ""


def _rank(finding: Finding) -> tuple[bool, int, bool, float]:
    """Return the key to sort findings by: what is promised, by how much; then the others by how long work waited.

    A tool that lets nothing overlap goes first, since without it the run is another one. A wait mostly orders data, so that
    what can be mended without harm goes before it.
    """
    is_run, saves_ns = finding.code is not Cause.SERIALISED_BY_TOOL, -finding.saves_ns
    if finding.code is Cause.LAZY_LOAD:
        saves_ns = -min(finding.saves_ns, finding.waited_ns)  # it is loaded once: what comes again and again counts for more
    if finding.code is not Cause.EVENT_WAIT:
        return is_run, saves_ns, False, -finding.waited_ns
    return is_run, saves_ns, finding.pieces.need[0] == NEEDED, -finding.waited_ns * WAIT_WEIGHT


# What changing it gains


def _advised(trace: Trace, rows: BoolArray, found: Found) -> Advice | None:
    """Schedule the run anew; None where it is not known what ran, or on which of several cards."""
    work = rows & is_work(trace)
    if not work.any() or trace.metadata.is_predicted or trace.metadata.tier is not CaptureTier.KERNELS:
        return None
    cards = np.unique(lane_devices(trace)[trace.lane[work]])
    # All work of the card: what was not asked about holds it up, too.
    process = lane_processes(trace)[trace.lane]
    own = is_work(trace) & np.isin(process, process[work]) & np.isin(lane_devices(trace)[trace.lane], cards)
    if len(cards) > 1 or not (trace.queued_ns[own] < trace.start_ns[own]).any() or not trace.metadata.device.sm_count:
        return None
    return advise(trace, np.flatnonzero(own), _held_calls(found))


def _held_calls(found: Found) -> dict[Cause, list[int]]:
    """Return the calls that were simply too long, by cause."""
    calls = {code: found.call[(found.cause == CODES.index(code)) & (found.call >= 0)].tolist() for code in CALLED}
    return {code: sorted({*rows}) for code, rows in calls.items() if rows}


def held_calls(trace: Trace) -> dict[Cause, list[int]]:
    """Return the calls of a trace that held up launches and were simply too long, by cause."""
    return _held_calls(find_causes(trace, find_pieces(trace, counted_rows(trace))))


def _forecast(advice: Advice) -> Forecast:
    return Forecast(
        measured_ns=advice.measured_ns,
        replayed_ns=advice.replayed_ns,
        gain_ns=advice.gain_ns,
        change_count=len(advice.steps),
        floor_ns=advice.floor_ns,
        floor_of=advice.floor_of,
        is_bound=advice.is_bound,
        slowed_ns=advice.slowed_ns,
        works_share=advice.works_share,
    )


def _with_steps(trace: Trace, advice: Advice, findings: Sequence[Finding], asked: set[int]) -> list[Finding]:
    """Give each change to the finding that it mends, or make one where it is of the lanes asked for.

    What is then left of the others was scheduled anew.
    """
    left = [_without_gain(trace, advice, one) if advice.is_certain else one for one in findings]
    told = []
    for number, step in enumerate(advice.steps):
        causes = next((some for some in SAME_KIND if step.cause in some), frozenset({step.cause}))
        own = [one for one in left if one.code in causes and _is_of_step(trace, one, step)]
        own.sort(key=lambda one: (one.code is not step.cause, -one.waited_ns))
        works = step.before.program.works
        if not own and not (asked and {works[place].home for place in step.places} <= asked):
            continue
        first = works[step.places[0] if step.places else 0]
        held = step.held or [(call.row, works[call.works[0]].row) for call in step.shortened]
        base = joined(own) if own else _finding_of(trace, first.row, step.cause, step.gain_ns, held)
        text, fix = _texts_of_call(trace, base) if step.shortened and not own else step_texts(trace, step)
        told.append(
            replace(
                base,
                step=number,
                saves_ns=0 if advice.is_bound else step.gain_ns,
                bound_ns=step.gain_ns if advice.is_bound else 0,
                text=base.text if own else text,
                fix=fix or base.fix,
            )
        )
        left = [one for one in left if not any(one is mended for mended in own)]
    return [*told, *left]


def _is_of_step(trace: Trace, finding: Finding, step: Step) -> bool:
    """Tell whether a change leaves out what a finding tells of: of waits of streams those between the same two."""
    program = step.before.program
    gone = program.waits - step.after.program.waits
    if finding.code is not Cause.EVENT_WAIT or finding.pair_count > 1 or program.names:
        return True
    names = [lane.name for lane in trace.lanes]
    lanes = {(program.works[before].lane, program.works[after].lane) for before, after in gone}
    return any((names[before], names[after]) == (finding.other, finding.stream) for before, after in lanes)


def _without_gain(trace: Trace, advice: Advice, finding: Finding) -> Finding:
    """Say of a finding that it was scheduled anew without it, and that this gains nothing."""
    if finding.code in NOT_TRIED:
        return finding
    if finding.code is Cause.GRID_FILLS_DEVICE:
        return replace(finding, bound_ns=0, fix=_sooner(trace, advice, finding))
    if finding.code is Cause.EVENT_WAIT and not (finding.pieces.need == NEEDED).any():
        return replace(finding, bound_ns=0, fix=LEFT_AS_IT_IS)
    return replace(finding, bound_ns=0, fix=NO_GAIN.get(finding.code, finding.fix))


def _idle_in_calls(trace: Trace, pieces: Pieces, findings: Sequence[Finding], least_ns: int) -> list[Finding]:
    """Tell of calls that held the host while the whole card was idle, by their names, where that is not told already."""
    told = {(one.code, trace.name[one.call_row]) for one in findings if one.call_row >= 0}
    if any(one.saves_ns and one.code in CALLED for one in findings):
        return []
    found = []
    for code, row, call, inside_ns in idle_in_calls(trace, pieces):
        for name in np.unique(trace.name[call]).tolist():
            own = np.flatnonzero(trace.name[call] == name)
            total_ns, longest = int(inside_ns[own].sum()), own[np.argmax(inside_ns[own])]
            if total_ns < least_ns or (code, name) in told:
                continue
            base = _finding_of(
                trace, int(row[longest]), code, total_ns, [*zip(call[own].tolist(), row[own].tolist(), strict=True)]
            )
            text, fix = _texts_of_call(trace, base)
            idle = f" Nothing ran on the card meanwhile: {format_ns(total_ns)} in all."
            base = replace(base, text=text + idle, fix=fix, bound_ns=total_ns, waited_ns=total_ns)
            found.append(with_operation(trace, pieces, base))
    return found


def _texts_of_call(trace: Trace, finding: Finding) -> tuple[str, str]:
    """Say what happened in the call of a finding, and what to do."""
    words = {"piece": 0, "before": -1, "call": finding.call_row, "waited_ns": finding.waited_ns}
    return finding_texts(finding.code, trace, finding.pieces, **words, is_proved=True, need=NOT_NEEDED)


def _short_and_late(trace: Trace, rows: BoolArray, advice: Advice, findings: Sequence[Finding]) -> list[Finding]:
    """Find streams of short kernels that wait for long behind a full card: that costs the run nothing, and each much."""
    found = []
    told = {one.stream for one in findings if one.code is Cause.GRID_FILLS_DEVICE}
    for lane in np.unique(trace.lane[rows]).tolist():
        own = np.flatnonzero(rows & (trace.lane == lane) & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)))
        lasted_ns, stream = trace.end_ns[own] - trace.start_ns[own], trace.lanes[lane].name
        if len(own) < FEWEST_LATE or stream in told or lasted_ns.sum() > SHORT_SHARE * advice.measured_ns:
            continue
        free_ns = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(trace.end_ns[own])[:-1])
        late_ns = trace.start_ns[own] - np.maximum(trace.queued_ns[own], free_ns)
        longest = int(np.argmax(late_ns))
        worth_ns = max(LATE_TIMES * int(np.median(lasted_ns)), LATE_SHARE * advice.measured_ns)
        if np.quantile(late_ns, 0.95) < worth_ns or (delays := delays_with_priority(advice, lane)) is None:
            continue
        row = int(own[longest])
        base = _finding_of(trace, row, Cause.GRID_FILLS_DEVICE, int(late_ns[longest]))
        # Latency is the loss here, not throughput: with priority or without the whole takes as long.
        others = np.flatnonzero(rows & (trace.lane != lane) & (trace.start_ns < trace.start_ns[row]))
        before = int(others[np.argmax(trace.end_ns[others])]) if len(others) else row
        helps = delays[1].most_ns <= 0.5 * delays[0].most_ns
        fix = _sooner(trace, advice, base) if helps else make_room(trace, row, before)
        most_ns, median_ns = (format_ns(int(np.quantile(late_ns, share))) for share in (0.95, 0.5))
        waited = f"{median_ns} in the median, and 5% of them {most_ns} or longer"
        text = f"{len(own):,} short kernels of {stream!r} waited for room on the SMs: {waited}."
        found.append(replace(base, text=text, fix=fix, piece_count=len(own), waited_ns=int(late_ns.sum()), other_row=before))
    return found


def _sooner(trace: Trace, advice: Advice, finding: Finding) -> str:
    """Say how much sooner work would begin with priority, where all of it takes as long in any order."""
    before = finding.other_row
    if before >= 0 and trace.lanes[int(trace.lane[finding.row])].priority < trace.lanes[int(trace.lane[before])].priority:
        return f"{SHARED} {make_room(trace, finding.row, before)}"
    told = delays_with_priority(advice, int(trace.lane[finding.row]))
    if told is None or told[0].most_ns - told[1].most_ns < LEAST_DELAY * told[0].most_ns:
        return f"{SHARED} In another order they take as long."
    stream = repr(display_name(finding.stream, 40))
    (median_ns, most_ns), after = told
    return (
        f"{SHARED} In all they take as long in any order. With priority, lab.stream({stream}, priority=-1), work of {stream} "
        f"would begin {format_ns(after.median_ns)} after it could (median; {format_ns(median_ns)} now), 95% of it within "
        f"{format_ns(after.most_ns)} ({format_ns(most_ns)} now). Blocks that run are not pushed out."
    )


def _finding_of(trace: Trace, row: int, code: Cause, waited_ns: int, held: Sequence[tuple[int, int]] = ()) -> Finding:
    """Make a finding of work that was not late, to be told with other words; of calls that stood still, with their work."""
    pieces = pieces_on_time(trace, row, waited_ns, held)
    row = int(pieces.row[0])
    stream = trace.lanes[int(trace.lane[row])].name
    return Finding(
        code=code,
        certainty=Certainty.PROVED,
        stream=stream,
        other=None,
        saves_ns=0,
        bound_ns=0,
        waited_ns=0,
        piece_count=len(pieces.row),
        pair_count=1,
        row=row,
        other_row=-1,
        call_row=int(pieces.call_row[0]),
        text="",
        fix="",
        pieces=pieces,
    )


def _not_offered(
    trace: Trace, rows: BoolArray, pieces: Pieces, result: Explanation, findings: Sequence[Finding]
) -> list[Finding]:
    """Say for how long only one stream had work, where nothing that was found tells why, and every launch is known."""
    missing_ns = result.active_ns - result.offered_ns
    unexplained_ns = result.bound_ns - sum(finding.waited_ns for finding in findings)
    if (
        min(missing_ns, unexplained_ns) < NOT_OFFERED_SHARE * result.active_ns
        or not missing_ns
        or not pieces.is_launch_known.all()
    ):
        return []
    from_ns, to_ns = StepTime(pieces.offered_edges).longest_alone_ns
    inside_ns = np.minimum(trace.end_ns, to_ns) - np.maximum(trace.start_ns, from_ns)
    row = int(np.argmax(np.where(rows, inside_ns, -1)))
    happened, fix = TEXTS[Cause.NOT_OFFERED]
    stream = trace.lanes[int(trace.lane[row])].name
    words = {"missing": format_ns(missing_ns), "stream": display_name(stream, 40), "longest": format_ns(to_ns - from_ns)}
    return [
        Finding(
            code=Cause.NOT_OFFERED,
            certainty=Certainty.PROVED,
            stream=stream,
            other=None,
            saves_ns=0,
            bound_ns=min(missing_ns, unexplained_ns),
            waited_ns=min(missing_ns, unexplained_ns),
            piece_count=1,
            pair_count=1,
            row=row,
            other_row=-1,
            call_row=-1,
            text=happened.format(**words),
            fix=fix,
            pieces=pieces_on_time(trace, row, min(missing_ns, unexplained_ns)),
        )
    ]


def _named_rows(trace: Trace, rows: BoolArray, name: object) -> BoolArray:
    """Return the work of a stream, or of all ranges or kernels of a name; shape (n_spans,), bool."""
    found = work_of(trace, rows, name)
    if found is None:
        hint = name_hint(trace, name)
        raise StreamNotFoundError(f"The trace has no stream, range or kernel {name!r:.60}. {hint} Use trace.explain() for all.")
    if name in trace.names and not found.any():
        count = int((trace.name == trace.names.index(str(name))).sum())
        raise OptionError(f"{name!r} names no work of a stream in this trace: {count:,} spans of the host. Name a stream.")
    return found


def work_of(trace: Trace, rows: BoolArray, name: object) -> BoolArray | None:
    """Return which of some rows are of a stream, or in ranges or kernels of a name; None where nothing has that name.

    A stream on which nothing ran gives way to a range of its name.
    """
    is_lane = np.array([lane.name == name and lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)
    of_stream: BoolArray = rows & is_lane[trace.lane]
    if name in trace.names and not of_stream.any():
        return rows & descendants(trace, trace.name == trace.names.index(str(name)))
    return of_stream if is_lane.any() else None


def name_hint(trace: Trace, name: object) -> str:
    """Suggest the stream, range or kernel whose name is nearest."""
    streams = [lane.name for lane in trace.lanes if lane.kind is LaneKind.STREAM]
    return nearest_hint(str(name)[:60], [*streams, *trace.names])


def _same_stream(trace: Trace, groups: Sequence[BoolArray], names: tuple[str, str]) -> list[Finding]:
    """Say that two things share a stream, if they do."""
    lanes = [np.unique(trace.lane[group]) for group in groups]
    shared = np.intersect1d(lanes[0], lanes[1])
    if not len(shared) or names[0] == names[1]:
        return []
    stream = trace.lanes[int(shared[0])].name
    on_it = [np.flatnonzero(group & (trace.lane == shared[0])) for group in groups]
    least_ns = min(int(trace.duration_ns[rows].sum()) for rows in on_it)
    first, second = (display_name(name, 40) for name in names)
    return [
        Finding(
            code=Cause.SAME_LANE,
            certainty=Certainty.PROVED,
            stream=stream,
            other=stream,
            saves_ns=0,
            bound_ns=least_ns,
            waited_ns=least_ns,
            piece_count=min(map(len, on_it)),
            pair_count=1,
            row=int(on_it[1][0]),
            other_row=int(on_it[0][0]),
            call_row=-1,
            text=f"{first} and {second} are both on {stream!r}: a stream runs its work in order.",
            fix="If neither needs the other's result, put one on a stream of its own: lab.stream('other').",
        )
    ]


def _put_apart(trace: Trace, finding: Finding, groups: Sequence[BoolArray]) -> Finding:
    """Find what it gains to give the second of two things on one stream a stream of its own; the same where nobody knows."""
    gain_ns = _gain_ns(trace, lambda run: apart(run, _places(run, groups[1] & ~groups[0])), needs_memory=True)
    return finding if gain_ns is None else replace(finding, saves_ns=max(0, gain_ns), bound_ns=0)


def gained_ns(trace: Trace, rows: BoolArray) -> int | None:
    """Return what it gained that some work is on several streams: how much longer it takes on one; None where nobody knows."""
    gain_ns = _gain_ns(trace, lambda run: in_one_stream(run, _places(run, rows)), needs_memory=False)
    return None if gain_ns is None else -gain_ns


def _places(run: Run, rows: BoolArray) -> list[int]:
    return [place for place, work in enumerate(run.program.works) if rows[work.row]]


def _gain_ns(trace: Trace, change: Callable[[Run], Run | None], *, needs_memory: bool) -> int | None:
    """Return what a change of a short run gains, in ns; None where it cannot be scheduled anew."""
    rows = np.flatnonzero(is_work(trace))
    if not 0 < len(rows) <= MOST_WORKS or len(trace.devices) > 1 or not trace.metadata.device.sm_count:
        return None
    run = read_run(trace, rows)
    if needs_memory and not run.memory.is_known:
        return None
    try:
        changed, before_ns = change(run), replay(run.program).wall_ns
        return 0 if changed is None else before_ns - replay(changed.program).wall_ns
    except Impossible:
        return None


def descendants(trace: Trace, member: BoolArray) -> BoolArray:
    """Tell which rows are some rows, or in ranges among them; shape (n_spans,), bool."""
    inside = np.append(member, False)
    for _ in range(4 * MAX_LANE_ROWS):
        grown = inside[:-1] | inside[trace.parent]
        if (grown == inside[:-1]).all():
            break
        inside[:-1] = grown
    found: BoolArray = inside[:-1]
    return found


def _grouped(trace: Trace, pieces: Pieces, found: Found, most_ns: int, least_ns: int) -> list[Finding]:
    """Put together what has one cause and one pair of streams; add up further pairs; leave out what is not worth telling."""
    if not len(found.piece):
        return []
    found = found.once_each()
    other = np.where(found.before >= 0, trace.lane[found.before], -1)
    width = len(trace.lanes) + 1
    pairs, pair = distinct((found.cause * width + pieces.lane[found.piece]) * width + other + 1)
    cause = pairs // (width * width)
    is_apart = np.bincount(pair, weights=found.saves_ns) >= least_ns
    for code in np.unique(cause).tolist():
        if (cause == code).sum() > PAIRS_TOLD:
            is_apart[cause == code] = False
    groups, group_of_pair = np.unique(np.where(is_apart, np.arange(len(pairs)), len(pairs) + cause), return_inverse=True)
    group = group_of_pair[pair].astype(np.intp, copy=False)
    waited_ns = np.bincount(group, weights=found.saves_ns)
    cause_of_group = np.zeros(len(groups), np.int64)
    cause_of_group[group_of_pair] = cause
    is_elsewhere = np.isin(cause_of_group, [CODES.index(code) for code in (Cause.OTHER_STREAM, *LONGER)])
    bound_ns = np.where(is_elsewhere, waited_ns, np.minimum(waited_ns, most_ns))
    # Why work that had been launched did not begin is told also where nothing is to be gained by it.
    is_of_host = np.isin(cause_of_group, [CODES.index(code) for code in OF_HOST])
    worth_ns = np.where(is_of_host & (least_ns > 1), bound_ns, waited_ns)
    # That the profiler takes some time is no news.
    worth_ns[(cause_of_group == CODES.index(Cause.PROFILER_OVERHEAD)) & (worth_ns < PROFILER_TIMES * least_ns)] = 0
    first, second = pairs // width % width, pairs % width - 1
    both_ways = np.unique(np.stack([group_of_pair, np.minimum(first, second), np.maximum(first, second)]), axis=1)[0]
    counts, pair_counts = np.bincount(group), np.bincount(both_ways.astype(np.intp, copy=False))
    members = np.split(np.lexsort((found.waited_ns, found.saves_ns, group)), np.cumsum(counts)[:-1])
    return [
        _finding(
            trace,
            pieces,
            found,
            members[place][::-1],
            piece_count=int(counts[place]),
            pair_count=int(pair_counts[place]),
            waited_ns=int(waited_ns[place]),
            bound_ns=int(bound_ns[place]),
        )
        for place in np.flatnonzero(worth_ns >= least_ns).tolist()
    ]


def _slowed_text(trace: Trace, row: Int64Array, waited_ns: Int64Array) -> str:
    """Say which kernels were slowed, where there are several, by their names; what cost most comes first."""
    sums = [(int(waited_ns[trace.name[row] == name].sum()), name) for name in np.unique(trace.name[row]).tolist()]
    told = [f"{display_name(trace.names[name], 40)} {format_ns(cost_ns)}" for cost_ns, name in sorted(sums, reverse=True)]
    more = f" and {len(told) - SLOWED_TOLD:,} others" if len(told) > SLOWED_TOLD else ""
    return f" In all {', '.join(told[:SLOWED_TOLD])}{more}." if len(told) > 1 else ""


def _finding(
    trace: Trace,
    pieces: Pieces,
    found: Found,
    members: Int64Array,
    *,
    piece_count: int,
    pair_count: int,
    waited_ns: int,
    bound_ns: int,
) -> Finding:
    """Make one of what was found, of which what saves most comes first."""
    longest, late = int(members[0]), found.piece[members]
    piece, before, call = (int(column[longest]) for column in (found.piece, found.before, found.call))
    code = CODES[int(found.cause[longest])]
    need = pieces.needs_of(pieces.row[late], found.before[members])
    is_kept = code is Cause.EVENT_WAIT and pair_count == 1 and need[0] == NEEDED
    text, fix = finding_texts(
        code,
        trace,
        pieces,
        piece=piece,
        before=before,
        call=call,
        waited_ns=int(found.waited_ns[longest]),
        is_proved=SURE[int(found.certainty[longest])] is Certainty.PROVED,
        need=int(need[0]),
    )
    if code is Cause.SLOWED_DOWN:
        text += _slowed_text(trace, found.call[members], found.waited_ns[members])
        call, found = -1, replace(found, call=np.full(len(found.call), -1))
    return Finding(
        code=code,
        certainty=SURE[int(found.certainty[longest])],
        stream=trace.lanes[int(pieces.lane[piece])].name,
        other=trace.lanes[int(trace.lane[before])].name if before >= 0 else None,
        row=int(pieces.row[piece]),
        other_row=before,
        call_row=call,
        text=text,
        fix=fix,
        pieces=LatePieces(
            row=pieces.row[late],
            other_row=found.before[members],
            call_row=found.call[members],
            idle_since_ns=pieces.idle_since_ns[late],
            launched_ns=pieces.launched_ns[late],
            start_ns=pieces.start_ns[late],
            waited_ns=found.waited_ns[members],
            certainty=found.certainty[members],
            need=need.astype(np.int64),
        ),
        piece_count=piece_count,
        pair_count=pair_count,
        waited_ns=waited_ns,
        saves_ns=0,
        bound_ns=0 if is_kept else bound_ns,
    )
